"""What a notebook shows of an estimator: scikit-learn's diagram, and of a fitted one its error, curve and data."""

from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import sklearn

from tikas import LadderClassifier
from tikas.data.splits import split
from tikas.report.representation import html_of_fit


def test_an_estimator_shows_its_fit_below_the_diagram(digits):
    classifier, _ = digits
    html = classifier._repr_html_()
    assert html_of_fit(classifier) in classifier._repr_mimebundle_()["text/html"]
    assert "sk-top-container" in html
    assert "learned from 1,797 rows, 60 of them labeled" in html
    assert "was not measured" in html
    assert "learned from" not in LadderClassifier()._repr_html_()
    with sklearn.config_context(display="text"):
        assert not hasattr(classifier, "_repr_html_")
        assert list(classifier._repr_mimebundle_()) == ["text/plain"]


def test_the_curve_is_that_of_the_total_cost(digits):
    classifier, _ = digits
    figure = ElementTree.fromstring(html_of_fit(classifier))
    (line,) = figure.iter("polyline")
    points = np.array([[float(number) for number in point.split(",")] for point in line.attrib["points"].split()])
    costs = [
        np.mean([line["total"] for line in classifier.history_ if line["epoch"] == epoch]) for epoch in range(1, 7)
    ]
    assert np.corrcoef(points[:, 1], np.log(costs))[0, 1] < -0.999  # y points down
    assert f"from {costs[0]:.4g} to {costs[-1]:.4g} over 6 epochs" in "".join(figure.itertext())


def test_the_error_and_what_was_read_are_shown_where_they_are_known():
    X, y = np.random.default_rng(0).normal(size=(90, 4)), np.arange(90) % 2
    fitted = LadderClassifier((8,), epochs=40, batch_size=30, random_state=0)
    fitted.fit(X, y, splits=[split(y, 20, validation=30, seed=0)])
    last = [line["validation_error"] for line in fitted.history_ if line.get("validation_error") is not None][-1]
    assert f"{last:.1f} % on 30 validation rows" in html_of_fit(fitted)
    fitted.training_ = replace(fitted.training_, read="columns <b>: 4 numbers,\n  all used\nrows: 90")
    html = html_of_fit(fitted)
    assert "<li>columns &lt;b&gt;: 4 numbers, all used</li>" in html
    assert "<li>rows: 90</li>" in html
