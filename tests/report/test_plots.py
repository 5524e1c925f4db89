"""Pictures of `tikas.plot`: what they show is what the model does, and axes go in and come out."""

import sys

import numpy as np
import pytest
import torch
from matplotlib import pyplot
from matplotlib.figure import Figure
from torch import nn

import tikas
import tikas.data.splits
from tikas import LadderClassifier, LadderRegressor, plot
from tikas.report import denoising
from tikas.report.denoising import denoising_functions, reconstructed
from tikas.report.plots import COLORS, class_codes

RANDOM = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _closed_figures():
    yield
    pyplot.close("all")


def axes():
    return Figure(layout="constrained").subplots()


def contrast(one, other):
    """Contrast of two colors, by the formula of WCAG 2."""

    def luminance(color):
        parts = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


def test_history_shows_each_cost_as_the_mean_of_the_members(digits):
    classifier, _ = digits
    ax = plot.history(classifier, ax=axes())
    lines = {line.get_label(): line for line in ax.get_lines()}
    assert {"total", "supervised", "denoising, input (× 100)", "denoising, layer 1 (× 1)"} <= set(lines)
    means = [np.mean([line["total"] for line in classifier.history_ if line["epoch"] == e]) for e in range(1, 7)]
    assert lines["total"].get_xydata()[:, 1] == pytest.approx(means)
    assert ax.get_yscale() == "log"


def test_history_shows_a_validation_error_only_where_it_was_measured():
    X, y = RANDOM.normal(size=(90, 4)), np.arange(90) % 2
    parts = tikas.data.splits.split(y, 20, validation=30, seed=0)
    fitted = LadderClassifier((8,), epochs=40, batch_size=30, random_state=0).fit(X, y, splits=[parts])
    measured = [line["epoch"] for line in fitted.history_ if line.get("validation_error") is not None]
    ax = plot.history(fitted, ax=axes())
    (right,) = [each for each in ax.figure.axes if each is not ax]
    assert right.get_lines()[0].get_xdata().tolist() == measured
    assert right.get_ylabel() == "validation error, %"


def test_the_drawn_denoising_function_is_that_of_the_ladder(digits):
    """Equation (2) at u = 0.7 for the drawn values of z̃, then normalized with the calibrated μ and σ."""
    classifier, rows = digits
    for rung, function in zip(classifier.ladder_.rungs, denoising_functions(classifier, rows.X), strict=True):
        a, u, z = rung.denoiser.a[:, function.unit].double(), 0.7, torch.from_numpy(function.corrupted)
        mean = a[0] * torch.sigmoid(a[1] * u + a[2]) + a[3] * u + a[4]
        weight = a[5] * torch.sigmoid(a[6] * u + a[7]) + a[8] * u + a[9]
        expected = (z - mean) * weight + mean
        if function.level != "input":
            expected = (expected - rung.mean[function.unit]) / rung.deviation[function.unit]
        drawn = denoising._learned(rung, function.unit, function.corrupted, {"median": u})["median"]
        assert drawn == pytest.approx(expected.detach().numpy(), abs=1e-4)


def test_denoised_values_of_a_trained_level_are_nearer_than_noisy_ones(digits):
    classifier, rows = digits
    functions = denoising_functions(classifier, rows.X)
    assert [(function.level, function.units) for function in functions] == [
        ("input", 64),
        ("layer 1", 32),
        ("output", 10),
    ]
    assert functions[0].denoised_error < functions[0].noisy_error == pytest.approx(0.04, rel=0.05)  # noise 0.2
    assert all(np.isfinite(curve).sum() > 20 for function in functions for curve in function.optimal.values())


def test_the_optimal_function_of_normal_values_is_linear_with_the_known_slope():
    """z ~ N(0, 1), z̃ = z + 0.5 n and an uninformative u: E[z | z̃] = z̃ / 1.25."""
    z = RANDOM.normal(size=20_000)
    corrupted, u = z + 0.5 * RANDOM.normal(size=20_000), RANDOM.normal(size=20_000)
    at = np.linspace(-2, 2, 9)
    found = denoising._conditional_mean(z, corrupted, u, at, 0.0)
    assert found == pytest.approx(at / 1.25, abs=0.06)


def test_the_optimal_function_is_not_drawn_where_there_are_no_values():
    z = RANDOM.normal(size=1000)
    found = denoising._conditional_mean(z, z, z, np.array([0.0, 50.0]), 0.0)
    assert np.isfinite(found[0])
    assert np.isnan(found[1])


@pytest.mark.parametrize("given", ["none", "one", "list"])
def test_axes_go_in_and_come_out(given, digits):
    classifier, rows = digits
    figure = Figure(layout="constrained")
    ax = None
    if given == "one":
        ax = figure.subplots()
    elif given == "list":
        ax = figure.subplots(3, 1)
    panels = plot.denoisers(classifier, rows.X, ax=ax)
    assert [panel.get_title() for panel in panels] == ["input", "layer 1", "output"]
    if given != "none":
        assert {panel.figure for panel in panels} == {figure}
    with pytest.raises(ValueError, match=r"2 axes.*3"):
        plot.denoisers(classifier, ax=figure.subplots(2, 1))


def test_without_rows_the_learned_functions_alone_are_drawn(digits):
    panels = plot.denoisers(digits[0], ax=Figure().subplots(3))
    assert [len(panel.get_lines()) for panel in panels] == [3, 3, 3]


def test_reconstructions_are_nearer_to_the_rows_than_strong_noise(digits):
    classifier, rows = digits
    levels = reconstructed(classifier, rows.X[:300])
    assert [each.factor for each in levels] == [0, 0.5, 1, 2, 4]
    distances = [[float((x - each.clean).square().mean()) for x in (each.noisy, each.denoised)] for each in levels]
    assert distances[0][0] == 0
    assert all(denoised < noisy for noisy, denoised in distances[3:])
    strips = plot.reconstructions(classifier, rows.X[:300], ax=Figure().subplots(10))
    assert [strip.get_ylabel() for strip in strips][1::2] == ["denoised"] * 5
    pixels = strips[0].images[0].get_array()
    assert np.array_equal(pixels[:, :8], np.clip(rows.X[0], 0, 1))


def test_latent_marks_labeled_unlabeled_and_wrong_rows(digits):
    classifier, rows = digits
    y = np.where(rows.learned, rows.labels, -1)
    y[0] = (classifier.predict(rows.X[:1])[0] + 1) % 10  # a label that is surely not predicted
    ax = plot.latent(classifier, rows.X, y, ax=axes())
    unlabeled, right, wrong = (part.get_offsets() for part in ax.collections)
    n_wrong = int((classifier.predict(rows.X[:60]) != y[:60]).sum())
    assert n_wrong >= 1
    assert (len(unlabeled), len(right), len(wrong)) == (len(y) - 60, 60 - n_wrong, n_wrong)
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == [*map(str, range(10)), "labeled", "unlabeled", "wrong"]


def test_latent_by_t_sne(digits):
    classifier, rows = digits
    ax = plot.latent(classifier, rows.X[:80], method="tsne", ax=axes())
    assert ax.get_xlabel() == "t-SNE 1"
    with pytest.raises(ValueError, match=r"umap.*tsne"):
        plot.latent(classifier, rows.X[:80], method="umap", ax=axes())


def test_confusion_counts_the_labeled_rows(digits):
    classifier, rows = digits
    ax = plot.confusion(classifier, rows.X, rows.labels, ax=axes())
    numbers = [int(text.get_text()) for text in ax.texts]
    assert len(numbers) == 100
    assert sum(numbers) == 660


def test_calibration_is_of_the_predicted_class(digits):
    classifier, rows = digits
    known = rows.labels != None  # noqa: E711 - element by element
    ax = plot.calibration(classifier, rows.X, rows.labels, ax=axes())
    curve = next(line for line in ax.get_lines() if line.get_label() == "model").get_xydata()
    scores = classifier.predict_proba(rows.X[known])
    assert 0 <= curve.min() <= curve.max() <= 1
    assert len(curve) == 10
    assert curve[:, 0].mean() == pytest.approx(scores.max(1).mean(), abs=0.01)
    assert curve[:, 1].mean() == pytest.approx((scores.argmax(1) == rows.labels[known]).mean(), abs=0.01)


def test_predictions_show_the_shares_of_unlabeled_rows_and_labels(digits):
    classifier, rows = digits
    ax = plot.predictions(classifier, rows.X, rows.labels, ax=axes())
    predicted, labels = (np.array([bar.get_width() for bar in bars]) for bars in ax.containers)
    assert predicted.sum() == pytest.approx(100)
    assert labels == pytest.approx(100 * np.bincount(rows.labels[:660].astype(int)) / 660)


def test_a_regression_shows_values_and_has_no_map():
    X = RANDOM.normal(size=(60, 3))
    y = np.where(np.arange(60) < 30, X[:, 0], np.nan)
    fitted = LadderRegressor((8,), epochs=2, batch_size=30, random_state=0).fit(X, y)
    ax = plot.predictions(fitted, X, y, ax=axes())
    assert ax.get_xlabel() == "value"
    for draw in (plot.latent, plot.confusion, plot.calibration):
        with pytest.raises(ValueError, match=r"(?i)regress"):
            draw(fitted, X, y, ax=axes())


@pytest.mark.parametrize(("costs", "denoised", "named"), [(0.0, None, "costs=0"), (1.0, ["output"], "Γ-model")])
def test_a_model_without_a_decoder_says_so(costs, denoised, named):
    X = RANDOM.normal(size=(60, 3))
    fitted = LadderClassifier((8,), costs=costs, epochs=2, batch_size=30).fit(X, np.arange(60) % 2)
    if denoised is None:
        with pytest.raises(ValueError, match=named):
            plot.denoisers(fitted, X)
    else:
        assert [panel.get_title() for panel in plot.denoisers(fitted, X)] == denoised
        with pytest.raises(ValueError, match=named):
            plot.reconstructions(fitted, X)


def test_a_module_shows_the_denoising_of_its_scores():
    layers = [nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2)]
    X = RANDOM.normal(size=(60, 3))
    fitted = LadderClassifier(nn.Sequential(*layers), epochs=2, batch_size=30).fit(X, np.arange(60) % 2)
    assert [panel.get_title() for panel in plot.denoisers(fitted, X)] == ["output"]
    assert "denoising, output (× 1)" in [line.get_label() for line in plot.history(fitted).get_lines()]


def test_an_image_network_shows_all_levels(digits):
    images = digits[1].X[:200]
    fitted = LadderClassifier(("conv 4 3", "max 2"), costs=(10, 1, 1, 1), epochs=1, random_state=0)
    fitted.fit(images, np.arange(200) % 2)
    assert len(plot.denoisers(fitted, images, ax=Figure().subplots(4))) == 4
    assert len(plot.reconstructions(fitted, images, ax=Figure().subplots(10))) == 10


def test_labels_are_recognized_as_values_or_text(digits):
    labels = np.array([3, "3", 3.0, None, "x"], dtype=object)
    assert class_codes(digits[0], labels).tolist() == [3, 3, 3, -1, -2]


@pytest.mark.parametrize("color", COLORS)
@pytest.mark.parametrize("background", ["#ffffff", "#14171b"])
def test_colors_are_seen_on_white_and_on_dark(color, background):
    assert contrast(color, background) >= 3


def test_the_module_is_found_in_every_way_of_importing_it():
    from tikas.plot import history

    assert tikas.plot.history is history is plot.history
    assert sorted(plot.__all__) == plot.__all__


def test_without_matplotlib_the_error_names_the_extra(monkeypatch, digits):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r"matplotlib.*tikas\[plots\]"):
        plot.history(digits[0])


def test_an_estimator_that_is_not_fitted_says_so():
    with pytest.raises(ValueError, match="not fitted"):
        plot.history(LadderClassifier())
