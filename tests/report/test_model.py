"""The report on a model: its figures are those of the rows, and what cannot be known is not claimed."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix

import tikas
from tikas import LadderClassifier, LadderRegressor
from tikas.data.datasets import Dataset
from tikas.data.splits import split
from tikas.report.evaluation import ReportRows, evaluate, rows_of_training
from tikas.report.model import model_page
from tikas.report.page import Text, render
from tikas.training.summary import MeasuredError

RANDOM = np.random.default_rng(0)
MAX_BYTES = 3_000_000


def section(page, title):
    (found,) = [each for each in page.sections if each.title == title]
    return found


def blocks(page, kind):
    return [block for each in page.sections for block in each.blocks if isinstance(block, kind)]


def words(page):
    return " ".join([*page.verdict, *(block.text for block in blocks(page, Text))])


class Checker(HTMLParser):
    """Collects headings, images and ids, and checks that every element is closed."""

    def __init__(self, html):
        super().__init__()
        self.open, self.headings, self.images, self.ids, self.names = [], [], [], [], set()
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.names.add(tag)
        self.ids += [given["id"]] if "id" in given else []
        if tag in ("h1", "h2", "h3"):
            self.headings.append(int(tag[1]))
        if tag == "img":
            self.images.append(given)
        if tag not in ("img", "meta", "link", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def page(digits):
    return model_page(digits[0], "digits", digits[1])


def test_the_verdict_is_the_error_on_rows_that_were_not_learned(page, digits):
    classifier, rows = digits
    held_out = (rows.labels != None) & ~rows.learned  # noqa: E711 - element by element
    wrong = int((classifier.predict(rows.X[held_out]) != rows.labels[held_out]).sum())
    error = MeasuredError.of_classes("labels held out", wrong, 600)
    assert page.verdict[0] == f"Wrong on {wrong} of 600 labels held out: an error of {error.text()}."
    assert "10 classes" in page.verdict[1]
    assert "1,797 rows, 60 of them labeled" in page.verdict[1]
    guess = np.argmax(np.bincount(rows.labels[:60].astype(int)))
    trivial = MeasuredError.of_classes("", int((rows.labels[held_out] != guess).sum()), 600)
    assert trivial.text() in page.verdict[2]


def test_classes_are_counted_as_in_the_confusion_matrix(page, digits):
    classifier, rows = digits
    held_out = np.arange(60, 660)
    counts = confusion_matrix(rows.labels[held_out].astype(int), classifier.predict(rows.X[held_out]))
    table = section(page, "How good it is").blocks[-1]
    assert table.header[:4] == ["class", "labels learned", "rows", "found"]
    assert [int(row[2]) for row in table.rows] == counts.sum(1).tolist()
    for code, row in enumerate(table.rows):
        assert row[3].startswith(f"{100 * counts[code, code] / counts[code].sum():.0f} %")
        assert row[4] == f"{100 * counts[code, code] / counts[:, code].sum():.0f} %"


def test_the_surest_mistakes_are_shown_as_images(page, digits):
    classifier, rows = digits
    scores = classifier.predict_proba(rows.X[60:660])
    wrong = np.flatnonzero(scores.argmax(1) != rows.labels[60:660].astype(int))
    surest = wrong[np.argsort(-scores[wrong].max(1))][:18]
    pictures = section(page, "Its surest mistakes").blocks[-1].pictures
    assert [int(re.match(r"Row (\d+)", each.alt)[1]) for each in pictures] == (surest + 61).tolist()
    assert pictures[0].pixels
    assert f"({100 * scores[surest[0]].max():.0f} %)" in pictures[0].caption


def test_a_page_is_well_formed_small_and_can_be_read_aloud(page):
    html = render(page)
    assert len(html.encode()) < MAX_BYTES
    checked = Checker(html.removeprefix("<!DOCTYPE html>"))
    assert checked.headings[0] == 1
    assert checked.headings.count(1) == 1
    assert all(after - before <= 1 for before, after in zip(checked.headings, checked.headings[1:], strict=False))
    assert len(set(checked.ids)) == len(checked.ids)
    assert len(checked.images) >= 10
    assert all(len(image["alt"]) > 20 and image["src"].startswith("data:image/") for image in checked.images)
    assert not checked.names & {"script", "iframe", "object", "link rel=stylesheet"}
    assert '<html lang="en">' in html
    assert not re.findall(r"https?://(?!www\.w3\.org)", re.sub(r"base64,[\w+/=]+", "", html))


@pytest.mark.usefixtures("undrawn")
def test_names_from_the_data_are_escaped(cancer):
    html = render(model_page(cancer[0], "<i>cancer</i>", cancer[1]))
    assert "<malignant>" not in html
    assert "&lt;malignant&gt;" in html
    assert "radius &lt;b&gt;&amp;" in html
    assert "<i>cancer" not in html


@pytest.mark.usefixtures("undrawn")
def test_rows_of_a_table_are_shown_with_their_columns(cancer):
    classifier, rows = cancer
    page = model_page(classifier, "cancer", rows)
    table = section(page, "Its surest mistakes").blocks[-1]
    assert table.header[:5] == ["row", "label", "predicted", "probability", "radius <b>&"]
    number, label, predicted, _, radius = table.rows[0][:5]
    assert rows.labels[int(number) - 1] == label != predicted
    assert float(radius) == pytest.approx(rows.X.iloc[int(number) - 1, 0], rel=1e-3)


@pytest.mark.usefixtures("undrawn")
def test_without_rows_no_error_is_claimed(digits):
    page = model_page(digits[0], "digits")
    assert "not been measured" in page.verdict[0]
    assert "%" not in " ".join(page.verdict)
    assert {"Its surest mistakes", "Map of the rows"}.isdisjoint(each.title for each in page.sections)
    assert words(page).count("tikas report MODEL --data FILE") == 3


@pytest.mark.usefixtures("undrawn")
def test_rows_that_ended_the_training_are_no_proof_either():
    """With early stopping the error on the validation rows is the least of many."""
    X, y = RANDOM.normal(size=(90, 4)), np.arange(90) % 2
    parts = [split(y, 20, validation=30, seed=0)]
    for early_stopping in (False, True):
        model = LadderClassifier((8,), epochs=40, batch_size=30, early_stopping=early_stopping, random_state=0)
        model.fit(X, y, splits=parts)
        data = Dataset(X.astype(np.float32), y, classes=np.arange(2))
        rows = rows_of_training(data, replace(data, rows=X[:0], targets=y[:0]), parts, early_stopping=early_stopping)
        assert evaluate(model, rows).error.rows == (40 if early_stopping else 70)
        verdict = model_page(model, "m").verdict[0]
        assert "only been measured in training" in verdict
        assert ("too low" in verdict) == early_stopping


@pytest.mark.usefixtures("undrawn")
def test_learned_labels_are_no_proof(digits):
    classifier, rows = digits
    chosen = rows.learned
    page = model_page(classifier, "digits", ReportRows(rows.X[chosen], rows.labels[chosen], np.ones(60, bool)))
    assert "not been measured" in page.verdict[0]
    assert "All labels of the given rows were learned" in words(page)


@pytest.mark.usefixtures("undrawn")
def test_rows_of_another_file_are_called_new_only_with_a_warning(digits):
    classifier, rows = digits
    new = ReportRows(rows.X[100:200], rows.labels[100:200], None, "labeled rows of new.csv", surely_new=False)
    page = model_page(classifier, "digits", new)
    assert "of 100 labeled rows of new.csv" in page.verdict[0]
    assert "If the model learned from some of them" in page.verdict[2]


@pytest.mark.usefixtures("undrawn")
def test_few_labels_have_a_wide_interval_and_no_calibration_curve(digits):
    classifier, rows = digits
    page = model_page(classifier, "digits", ReportRows(rows.X[100:110], rows.labels[100:110]))
    error = evaluate(classifier, ReportRows(rows.X[100:110], rows.labels[100:110])).error
    assert error.high - error.low > 25
    assert "10 labeled rows are too few for a calibration curve" in words(page)


@pytest.mark.usefixtures("undrawn")
def test_a_label_that_the_model_does_not_know_counts_as_wrong(digits):
    classifier, rows = digits
    labels = np.array(["ten"] * 5, dtype=object)
    assert evaluate(classifier, ReportRows(rows.X[:5], labels)).error.value == 100
    assert render(model_page(classifier, "digits", ReportRows(rows.X[:5], labels)))


def test_a_regression_has_its_own_figures():
    X = RANDOM.normal(size=(120, 3))
    y = X[:, 0] + 0.1 * RANDOM.normal(size=120)
    learned = np.arange(120) < 60
    model = LadderRegressor((8,), epochs=20, random_state=0, batch_size=60).fit(X, np.where(learned, y, np.nan))
    labels = np.where(np.arange(120) < 100, y, np.nan)
    page = model_page(model, "heights", ReportRows(X, labels, learned, "values held out"))
    residuals = model.predict(X[60:100]) - y[60:100]
    error = MeasuredError.of_values("values held out", residuals)
    assert error.value == pytest.approx(np.sqrt(np.mean(residuals**2)))
    assert error.low < error.value < error.high
    assert f"On 40 values held out it is off by {error.text()}" in page.verdict[0]
    largest = section(page, "Its largest errors").blocks[1].rows[0]
    assert int(largest[0]) - 61 == np.argmax(np.abs(residuals))
    assert "Map of the rows" not in [each.title for each in page.sections]
    assert len(render(page)) < MAX_BYTES


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(("costs", "named"), [(0.0, "costs=0"), (1.0, "Γ-model")])
def test_what_a_model_has_not_is_said(costs, named):
    X = RANDOM.normal(size=(60, 3))
    model = LadderClassifier((8,), costs=costs, epochs=2, batch_size=30, random_state=0).fit(X, np.arange(60) % 2)
    assert named in words(model_page(model, "m", ReportRows(X, np.full(60, None))))


@pytest.mark.usefixtures("undrawn")
def test_what_a_file_remembers_is_enough_for_its_report(digits, tmp_path):
    classifier, rows = digits
    loaded = tikas.load(classifier.save(tmp_path / "model"))
    assert render(model_page(loaded, "digits", rows)) == render(model_page(classifier, "digits", rows))


@pytest.mark.usefixtures("undrawn")
def test_an_expression_in_python_trains_it_again(digits):
    classifier, _ = digits
    code = section(model_page(classifier, "m"), "Run it again").blocks[1].text
    again = eval(code.removesuffix(".fit(X, y)"), {"LadderClassifier": LadderClassifier})
    assert again._recipe() == classifier.recipe_
    assert (again.random_state, again.n_members) == (0, 2)
