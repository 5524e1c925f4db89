"""Pictures of a fitted estimator, with matplotlib axes in and out. Users import them as `tikas.plot`."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from tikas.data.labels import is_unlabeled, one_per_row, regression_values
from tikas.data.sources import RowSource
from tikas.estimators.base import LadderEstimator
from tikas.report.denoising import (
    DenoisingFunction,
    Reconstruction,
    denoising_functions,
    level_names,
    reconstructed,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[Any]
Method = Literal["pca", "tsne"]

BLUE, ORANGE, GREEN, RED, GRAY = "#3a82c4", "#d0741e", "#2f9a68", "#d64550", "#7d858e"
COLORS = (BLUE, ORANGE, GREEN, RED, "#9467bd", "#a8754f", "#d869b0", GRAY, "#93932a", "#22a3b3")
"""Seen on white and on a dark background: a contrast of 3 or more to both."""
MAX_MAPPED_ROWS = 2000
MAX_LEGEND, MAX_CELLS = 10, 25
"""Most classes with a color in the legend, and most classes in a confusion matrix with numbers."""
MAX_HORIZONTAL = 24
"""Most characters in the names of all classes together, to write them horizontally below a confusion matrix."""
MAX_INK_SHARE = 0.7
"""Cells of a confusion matrix above this share of the largest have white numbers."""
MAX_SHOWN_IMAGES = 8


def history(estimator: LadderEstimator, *, ax: Axes | None = None) -> Axes:
    """Draw the learning curves: every cost, and the validation error if it was measured.

    Parameters
    ----------
    estimator : LadderClassifier or LadderRegressor
        Fitted. Of several members the mean is drawn, and each one faintly.
    ax : matplotlib Axes, optional
        Default: those of a new figure.

    Returns
    -------
    matplotlib Axes
        With the costs; a validation error has its own axis on the right.

    Examples
    --------
    >>> from tikas import LadderClassifier, plot
    >>> classifier = LadderClassifier((4,), epochs=3, batch_size=4).fit([[0.0], [0.2], [0.8], [1.0]], [0, -1, -1, 1])
    >>> plot.history(classifier).get_ylabel()
    'cost'
    """
    check_is_fitted(estimator)
    ax = _axes(ax)
    draw_history(ax, estimator)
    return ax


def draw_history(ax: Axes, estimator: LadderEstimator) -> None:
    """Draw the learning curves."""
    from matplotlib.ticker import MaxNLocator

    labels = cost_names(estimator)
    for (name, label), color in zip(labels.items(), _cycle(len(labels)), strict=True):
        curves = _curves(estimator.history_, name)
        if len(curves) > 1:
            for epochs, values in curves:
                ax.plot(epochs, values, color=color, alpha=0.25, linewidth=0.8)
        ax.plot(*_mean_curve(curves), color=color, label=label, linewidth=1.6)
    ax.set_yscale("log")
    ax.set_xlabel("epoch")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_ylabel("cost")
    lines = ax.get_lines()
    errors = _curves(estimator.history_, "validation_error")
    if errors:
        right = ax.twinx()
        unit = "validation error, %" if estimator.task == "classification" else "validation error, standardized"
        right.plot(*_mean_curve(errors), color=_ink(), linestyle="--", marker=".", label=unit)
        right.set_ylabel(unit)
        right.set_ylim(bottom=0)
        right.spines["right"].set_visible(True)
        lines = [*lines, *right.get_lines()]
    shown = [line for line in lines if not str(line.get_label()).startswith("_")]
    ax.legend(handles=shown, fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)


def cost_names(estimator: LadderEstimator) -> dict[str, str]:
    """Return the title of each cost in `history_` that the training used, by a key for `_curves`."""
    names = {"total": "total", "supervised": "supervised"}
    levels = level_names(estimator.ladder_)
    for index, (rung, level) in enumerate(zip(estimator.ladder_.rungs, levels, strict=True)):
        if rung.denoiser is not None and rung.cost > 0:
            names[f"denoising {index}"] = f"denoising, {level} (× {rung.cost:g})"
    return names


def _curves(lines: Sequence[Any], name: str) -> list[tuple[Array, Array]]:
    """Return the epochs and values of a quantity for each member that has it."""
    curves = []
    for member in sorted({line["member"] for line in lines}):
        points = [(line["epoch"], history_value(line, name)) for line in lines if line["member"] == member]
        points = [point for point in points if point[1] is not None]
        if points:
            curves.append(tuple(np.array(points, float).T))
    return curves


def history_value(line: Any, name: str) -> float | None:
    """Return a quantity of a line of `history_` by its key in `cost_names`; None where it was not measured."""
    if name.startswith("denoising "):
        return float(line["denoising"][int(name.removeprefix("denoising "))])
    value: float | None = line.get(name)
    return value


def _mean_curve(curves: Sequence[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Return the mean over the members, of the epochs that all of them have."""
    epochs = curves[0][0]
    for others, _ in curves[1:]:
        epochs = np.intersect1d(epochs, others)
    return epochs, np.mean([values[np.isin(each, epochs)] for each, values in curves], axis=0)


# Denoising functions


def denoisers(estimator: LadderEstimator, X: ArrayLike | None = None, *, ax: Any = None) -> Array:
    """Draw the denoising function of each level as learned, and the optimal one for the distribution of rows.

    One panel for each level with a denoising cost, for the unit whose error is the median over the level: the estimate
    ẑ of the clean value against the noisy value z̃, for a low, a median and a high signal u from the level above. The
    optimal function is the mean clean value of rows with this z̃ and this u, E[z | z̃, u], by local linear regression
    over `X` with noise drawn several times.

    Parameters
    ----------
    estimator : LadderClassifier or LadderRegressor
        Fitted, with a denoising cost. The first member is drawn.
    X : array-like, optional
        Rows as for `predict`, some hundred or more. Without them only the learned functions are drawn, of unit 0.
    ax : matplotlib Axes or array of Axes, optional
        One for each level, or one to be divided. Default: those of a new figure.

    Returns
    -------
    ndarray of matplotlib Axes
        One for each level with a denoising cost, the lowest first.

    Raises
    ------
    ValueError
        If the model has no denoising cost, or `ax` has another number of axes.

    Examples
    --------
    >>> from tikas import LadderClassifier, plot
    >>> X = [[0.0], [0.2], [0.8], [1.0]] * 10
    >>> classifier = LadderClassifier((4,), costs=(10, 1, 1), epochs=3, batch_size=20).fit(X, [0, -1, -1, 1] * 10)
    >>> [panel.get_title() for panel in plot.denoisers(classifier, X)]
    ['input', 'layer 1', 'output']
    """
    check_is_fitted(estimator)
    functions = denoising_functions(estimator, X)
    panels = _panels(ax, len(functions))
    for panel, function in zip(panels, functions, strict=True):
        draw_denoiser(panel, function)
        panel.set_title(function.level)
    return panels


def draw_denoiser(ax: Axes, function: DenoisingFunction) -> None:
    """Draw the denoising function of one level."""
    for (label, learned), color in zip(function.learned.items(), (BLUE, GRAY, ORANGE), strict=True):
        ax.plot(function.corrupted, learned, color=color, linewidth=1.8, label=f"learned, {label} u")
        if function.optimal is not None:
            ax.plot(function.corrupted, function.optimal[label], color=color, linestyle=":", linewidth=2.2)
    if function.optimal is not None:
        ax.plot([], [], color=_ink(), linestyle=":", linewidth=2.2, label="optimal")
    ax.set_xlabel(f"noisy value z̃ of unit {function.unit}")
    ax.set_ylabel("estimate ẑ")
    ax.legend(fontsize="small")


# Reconstructions


def reconstructions(estimator: LadderEstimator, X: ArrayLike, *, ax: Any = None) -> Array:
    """Draw what the decoder makes of the input under rising noise: none, and 0.5 to 4 times that of training.

    Images are drawn, noisy and denoised. Of other rows the root mean square error of the noisy and of the
    reconstructed rows is drawn against the noise.

    Parameters
    ----------
    estimator : LadderClassifier or LadderRegressor
        Fitted, with a denoising cost at the input. The first member is drawn.
    X : array-like
        Rows as for `predict`. All of them (up to 1000) are run through the decoder together, because a batch is
        normalized with its own statistics; the first eight images are drawn.
    ax : matplotlib Axes or array of Axes, optional
        Images need two for each of the five noise levels, noisy and denoised, others one; or one to be divided.

    Returns
    -------
    ndarray of matplotlib Axes

    Raises
    ------
    ValueError
        If the model has no denoising cost at the input, as a Γ-model.

    Examples
    --------
    >>> from tikas import LadderClassifier, plot
    >>> X = [[0.0], [0.2], [0.8], [1.0]] * 10
    >>> classifier = LadderClassifier((4,), costs=(10, 1, 1), epochs=3, batch_size=20).fit(X, [0, -1, -1, 1] * 10)
    >>> plot.reconstructions(classifier, X)[0].get_ylabel()
    'root mean square error'
    """
    check_is_fitted(estimator)
    rows = reconstructed(estimator, X)
    if not is_image(estimator.input_shape_):
        panels = _panels(ax, 1)
        draw_reconstruction_errors(panels[0], estimator, rows)
        return panels
    panels = _panels(ax, 2 * len(rows), columns=1)
    draw_reconstructed_images(panels, estimator, rows)
    return panels


def draw_reconstruction_errors(ax: Axes, estimator: LadderEstimator, rows: Sequence[Reconstruction]) -> None:
    """Draw the errors of noisy and of reconstructed rows against the noise."""
    deviation = estimator.ladder_.rungs[0].noise
    noise = [each.factor * float(deviation) for each in rows]
    noisy = [float((each.noisy - each.clean).square().mean().sqrt()) for each in rows]
    denoised = [float((each.denoised - each.clean).square().mean().sqrt()) for each in rows]
    ax.plot(noise, noisy, "o-", color=ORANGE, label="noisy rows")
    ax.plot(noise, denoised, "o-", color=BLUE, label="reconstructed rows")
    ax.axvline(float(deviation), color=GRAY, linestyle=":", label="noise in training")
    ax.set_xlabel("deviation of the noise at the input")
    ax.set_ylabel("root mean square error")
    ax.set_ylim(bottom=0)
    ax.legend(fontsize="small")


def draw_reconstructed_images(panels: Array, estimator: LadderEstimator, rows: Sequence[Reconstruction]) -> None:
    """Draw images, a strip of noisy and a strip of denoised ones for each noise level."""
    count = min(MAX_SHOWN_IMAGES, len(rows[0].clean))
    scale = pixel_range(rows[0].clean)
    strips = []
    for each in rows:
        noise = each.factor * float(estimator.ladder_.rungs[0].noise)
        strips += [(f"noise {noise:.2g}", each.noisy), ("denoised", each.denoised)]
    for panel, (title, images) in zip(panels, strips, strict=True):
        shown = [as_picture(image, estimator.input_shape_, scale) for image in images[:count].numpy()]
        panel.imshow(np.concatenate(_with_gaps(shown), axis=1), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        panel.set_xticks([])
        panel.set_yticks([])
        panel.set_ylabel(title, rotation=0, ha="right", va="center", fontsize="small")
        for side in panel.spines.values():
            side.set_visible(False)


def _with_gaps(pictures: Sequence[Array]) -> list[Array]:
    """Return pictures with a gap of middle gray after each but the last."""
    gap = np.full((pictures[0].shape[0], max(1, pictures[0].shape[1] // 12), *pictures[0].shape[2:]), 0.5)
    return [part for picture in pictures for part in (picture, gap)][:-1]


def is_image(shape: Sequence[int]) -> bool:
    """Return whether rows of this shape can be shown as images: gray or in color, and not a single line."""
    return len(shape) == 3 and shape[0] in (1, 3) and min(shape[1:]) > 1


def pixel_range(rows: Tensor) -> tuple[float, float]:
    """Return the values to show as black and white: 0 and 1 if they contain all, else the outer percentiles."""
    values = rows.flatten()[:: 1 + rows.numel() // 10**6].double().numpy()
    if values.min() >= 0 and values.max() <= 1:
        return 0.0, 1.0
    low, high = np.quantile(values, [0.005, 0.995]).tolist()
    return low, max(high, low + 1e-6)


def as_picture(row: Array, shape: Sequence[int], scale: tuple[float, float]) -> Array:
    """Return one row as an image ``(height, width)`` or ``(height, width, 3)`` with values in [0, 1]."""
    low, high = scale
    image = np.clip((row.reshape(shape) - low) / (high - low), 0, 1)
    return np.asarray(image[0] if shape[0] == 1 else np.moveaxis(image, 0, -1))


# Map of the top latent


def latent(
    estimator: LadderEstimator,
    X: ArrayLike,
    y: ArrayLike | None = None,
    *,
    method: Method = "pca",
    ax: Axes | None = None,
) -> Axes:
    """Draw a map of rows: the top latent of the network in two dimensions.

    Colors are predicted classes. Labeled rows are large, unlabeled ones small, and a cross marks a labeled row whose
    predicted class is another one than its label.

    Parameters
    ----------
    estimator : LadderClassifier
        Fitted.
    X : array-like
        Rows as for `predict`; of more than 2000, some evenly spread ones are drawn, and every labeled one.
    y : array-like, optional
        Their labels, -1, None or NaN where unlabeled.
    method : {"pca", "tsne"}, default="pca"
        Principal components, which keep distances as well as a plane can; or t-SNE, which keeps neighbors.
    ax : matplotlib Axes, optional
        Default: those of a new figure.

    Returns
    -------
    matplotlib Axes

    Raises
    ------
    ValueError
        For a regressor, whose top has one value, or an unknown method.

    Examples
    --------
    >>> from tikas import LadderClassifier, plot
    >>> X, y = [[0.0], [0.2], [0.8], [1.0]] * 10, [0, -1, -1, 1] * 10
    >>> classifier = LadderClassifier((4,), epochs=3, batch_size=20).fit(X, y)
    >>> plot.latent(classifier, X, y).get_xlabel()
    'principal component 1'
    """
    check_is_fitted(estimator)
    if estimator.task == "regression":
        raise ValueError("A regression has one output: its top latent is a line, which needs no map.")
    rows = take(X, slice(None))
    codes = np.full(len(rows), -1) if y is None else class_codes(estimator, one_per_row(y, len(rows)))
    some = np.arange(0, len(rows), ceil(len(rows) / MAX_MAPPED_ROWS))
    chosen = np.union1d(np.flatnonzero(codes != -1), some)
    rows = take(rows, chosen)
    predicted = estimator.predict_proba(rows).argmax(1)
    ax = _axes(ax)
    draw_map(ax, estimator.transform(rows), predicted, codes[chosen], class_names(estimator), method)
    return ax


def draw_map(
    ax: Axes, latents: Array, predicted: Array, codes: Array, classes: Sequence[str], method: Method = "pca"
) -> None:
    """Draw the map of latents; `codes` are class codes of the labels, -1 without label, -2 for an unknown class."""
    points = project(latents, method)
    colors = np.array(_cycle(len(classes)))[predicted]
    labeled, wrong = codes != -1, (codes != -1) & (codes != predicted)
    right = labeled & ~wrong
    x, y = points.T
    ax.scatter(x[~labeled], y[~labeled], s=7, c=colors[~labeled], alpha=0.55, linewidths=0, rasterized=True)
    few = right.sum() <= MAX_MAPPED_ROWS // 4
    edge = _ink() if few else "none"
    size, alpha = (34, 1.0) if few else (10, 0.7)
    look: dict[str, Any] = {"alpha": alpha, "edgecolors": edge, "linewidths": 0.8, "rasterized": not few}
    ax.scatter(x[right], y[right], s=size, c=colors[right], **look)
    ax.scatter(x[wrong], y[wrong], s=42, c=_ink(), marker="x", linewidths=1.6)
    handles = [
        _marker(name, color, "o", 5)
        for name, color in zip(classes, _cycle(len(classes)), strict=True)
        if len(classes) <= MAX_LEGEND
    ]
    if right.any():
        handles.append(_marker("labeled", GRAY, "o", 6 if few else 4, edge))
    if (~labeled).any():
        handles.append(_marker("unlabeled", GRAY, "o", 2.5))
    if wrong.any():
        handles.append(_marker("wrong", _ink(), "x", 6, _ink()))
    columns = min(5, len(handles))
    place: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.08), "ncols": columns}
    ax.legend(handles=handles, fontsize="small", frameon=False, handletextpad=0.2, columnspacing=1.0, **place)
    name = "principal component" if method == "pca" else "t-SNE"
    ax.set_xlabel(f"{name} 1")
    ax.set_ylabel(f"{name} 2")
    ax.set_xticks([])
    ax.set_yticks([])


def project(latents: Array, method: Method) -> Array:
    """Return latents in two dimensions."""
    if method == "pca":
        from sklearn.decomposition import PCA

        points: Array = PCA(2, random_state=0).fit_transform(latents)
    elif method == "tsne":
        from sklearn.manifold import TSNE

        perplexity = min(30.0, (len(latents) - 1) / 3)
        points = TSNE(2, perplexity=perplexity, init="pca", random_state=0).fit_transform(latents)
    else:
        raise ValueError(f"method={method!r}: choose 'pca' or 'tsne'.")
    return points


def _marker(label: str, color: str, marker: str, size: float, edge: str = "none") -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], linestyle="", marker=marker, color=color, markersize=size, markeredgecolor=edge, label=label)


# How good the predictions are


def confusion(estimator: LadderEstimator, X: ArrayLike, y: ArrayLike, *, ax: Axes | None = None) -> Axes:
    """Draw the confusion matrix of the labeled rows: how often which class was predicted for which.

    Parameters
    ----------
    estimator : LadderClassifier
        Fitted.
    X : array-like
        Rows as for `predict`; for an honest picture, rows that the model did not learn from.
    y : array-like
        Their labels; unlabeled rows are left out.
    ax : matplotlib Axes, optional
        Default: those of a new figure.

    Returns
    -------
    matplotlib Axes

    Examples
    --------
    >>> from tikas import LadderClassifier, plot
    >>> X, y = [[0.0], [0.2], [0.8], [1.0]] * 10, [0, -1, -1, 1] * 10
    >>> classifier = LadderClassifier((4,), epochs=3, batch_size=20).fit(X, y)
    >>> plot.confusion(classifier, X, y).get_ylabel()
    'label'
    """
    codes, probabilities = _judged(estimator, X, y)
    ax = _axes(ax)
    draw_confusion(ax, codes, probabilities.argmax(1), class_names(estimator))
    return ax


def draw_confusion(ax: Axes, codes: Array, predicted: Array, classes: Sequence[str]) -> None:
    """Draw a confusion matrix; rows of unknown classes are left out."""
    from sklearn.metrics import ConfusionMatrixDisplay

    known = codes >= 0
    few = len(classes) <= MAX_CELLS
    display = ConfusionMatrixDisplay.from_predictions(
        codes[known],
        predicted[known],
        labels=range(len(classes)),
        display_labels=classes,
        include_values=few,
        text_kw={"fontsize": "small"},
        cmap=_transparent_to("#174a86"),
        colorbar=not few,
        xticks_rotation="vertical" if sum(map(len, classes)) > MAX_HORIZONTAL else "horizontal",
        ax=ax,
    )
    if few:  # the display assumes opaque cells
        most = display.confusion_matrix.max()
        for text, count in zip(display.text_.ravel(), display.confusion_matrix.ravel(), strict=True):
            text.set_color("white" if count > MAX_INK_SHARE * most else _ink())
    else:
        ax.set_xticks([])
        ax.set_yticks([])
    ax.set_xlabel("predicted class")
    ax.set_ylabel("label")


def calibration(estimator: LadderEstimator, X: ArrayLike, y: ArrayLike, *, ax: Axes | None = None) -> Axes:
    """Draw the calibration curve: how often the predicted class is right, against its probability.

    Parameters
    ----------
    estimator : LadderClassifier
        Fitted.
    X : array-like
        Rows as for `predict`; for an honest picture, rows that the model did not learn from.
    y : array-like
        Their labels; unlabeled rows are left out.
    ax : matplotlib Axes, optional
        Default: those of a new figure.

    Returns
    -------
    matplotlib Axes

    Examples
    --------
    >>> from tikas import LadderClassifier, plot
    >>> X, y = [[0.0], [0.2], [0.8], [1.0]] * 10, [0, -1, -1, 1] * 10
    >>> classifier = LadderClassifier((4,), epochs=3, batch_size=20).fit(X, y)
    >>> plot.calibration(classifier, X, y).get_xlabel()
    'probability of the predicted class'
    """
    codes, probabilities = _judged(estimator, X, y)
    ax = _axes(ax)
    draw_calibration(ax, codes == probabilities.argmax(1), probabilities.max(1))
    return ax


def draw_calibration(ax: Axes, correct: Array, confidence: Array) -> None:
    """Draw how often predictions are right against their probability, in up to ten bins of equally many rows."""
    from sklearn.calibration import CalibrationDisplay

    bins = calibration_bins(len(correct))
    confidence = np.clip(confidence, 0, 1)
    CalibrationDisplay.from_predictions(
        correct.astype(int), confidence, n_bins=bins, strategy="quantile", ax=ax, color=BLUE, name="model"
    )
    for line in ax.get_lines():
        if line.get_linestyle() == ":":
            line.set_color(_ink())
    ax.set_xlabel("probability of the predicted class")
    ax.set_ylabel("fraction of right predictions")
    ax.legend(fontsize="small", loc="upper left")


def calibration_bins(rows: int) -> int:
    """Return the number of bins of a calibration curve: at least 20 rows in each, at most ten bins."""
    return max(1, min(10, rows // 20))


def predictions(
    estimator: LadderEstimator, X: ArrayLike, y: ArrayLike | None = None, *, ax: Axes | None = None
) -> Axes:
    """Draw how the predictions are distributed: classes of the unlabeled rows, or values of a regression.

    Parameters
    ----------
    estimator : LadderClassifier or LadderRegressor
        Fitted.
    X : array-like
        Rows as for `predict`.
    y : array-like, optional
        Their labels: the share of each class among the labels is drawn beside that among the unlabeled rows. Of a
        regression, the values.
    ax : matplotlib Axes, optional
        Default: those of a new figure.

    Returns
    -------
    matplotlib Axes

    Examples
    --------
    >>> from tikas import LadderClassifier, plot
    >>> X, y = [[0.0], [0.2], [0.8], [1.0]] * 10, [0, -1, -1, 1] * 10
    >>> classifier = LadderClassifier((4,), epochs=3, batch_size=20).fit(X, y)
    >>> plot.predictions(classifier, X, y).get_xlabel()
    'share of rows, %'
    """
    check_is_fitted(estimator)
    ax, rows = _axes(ax), take(X, slice(None))
    if estimator.task == "regression":
        values = np.full(len(rows), np.nan) if y is None else regression_values(one_per_row(y, len(rows)))
        draw_values(ax, estimator.predict(rows), values)
        return ax
    codes = np.full(len(rows), -1) if y is None else class_codes(estimator, one_per_row(y, len(rows)))
    n_classes = len(estimator.classes_)
    predicted = np.zeros(0, int)
    if (codes == -1).any():
        predicted = estimator.predict_proba(take(rows, np.flatnonzero(codes == -1))).argmax(1)
    counts = {
        "predicted, unlabeled rows": np.bincount(predicted, minlength=n_classes),
        "labels": np.bincount(codes[codes >= 0], minlength=n_classes),
    }
    draw_classes(ax, counts, class_names(estimator))
    return ax


def draw_classes(ax: Axes, counts: dict[str, Array], classes: Sequence[str]) -> None:
    """Draw the shares of classes as bars, one for each way of counting that counted anything."""
    shown = {name: 100 * each / each.sum() for name, each in counts.items() if each.sum()}
    height = 0.8 / max(1, len(shown))
    for index, ((name, shares), color) in enumerate(zip(shown.items(), (BLUE, GRAY), strict=False)):
        ax.barh(np.arange(len(classes)) + index * height, shares, height, label=name, color=color)
    ax.set_yticks(np.arange(len(classes)) + 0.4 - height / 2, classes)
    ax.invert_yaxis()
    ax.set_xlabel("share of rows, %")
    ax.legend(fontsize="small", loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)


def draw_values(ax: Axes, predicted: Array, values: Array) -> None:
    """Draw the distribution of predicted values beside that of the known values."""
    known = values[~np.isnan(values)]
    edges = np.histogram_bin_edges(np.concatenate([predicted, known]), bins=30)
    for name, each, color in (("predicted", predicted, BLUE), ("known values", known, GRAY)):
        if len(each):
            ax.hist(
                each, edges.tolist(), weights=np.full(len(each), 100 / len(each)), alpha=0.6, color=color, label=name
            )
    ax.set_xlabel("value")
    ax.set_ylabel("share of rows, %")
    ax.legend(fontsize="small")


def draw_predicted_values(ax: Axes, values: Array, predicted: Array) -> None:
    """Draw known values against predicted ones."""
    from sklearn.metrics import PredictionErrorDisplay

    PredictionErrorDisplay.from_predictions(
        values,
        predicted,
        kind="actual_vs_predicted",
        subsample=MAX_MAPPED_ROWS,
        random_state=0,
        ax=ax,
        scatter_kwargs={"s": 10, "color": BLUE, "alpha": 0.6, "linewidths": 0, "rasterized": True},
        line_kwargs={"color": _ink()},
    )
    ax.set_xlabel("predicted value")
    ax.set_ylabel("known value")


# Rows and axes


def take(X: Any, chosen: Any) -> Any:
    """Return some rows of an array, a data frame, a list or a source of rows."""
    if hasattr(X, "iloc"):
        return X.iloc[chosen]
    if isinstance(X, RowSource):
        return pd.DataFrame(X[chosen], columns=list(X.feature_names)) if X.feature_names else X[chosen]
    return np.asarray(X)[chosen]


def class_names(estimator: Any) -> list[str]:
    """Return the classes as text."""
    return [str(name) for name in estimator.classes_]


def class_codes(estimator: Any, labels: Array) -> Array:
    """Return class codes of labels: -1 where unlabeled, -2 for a class that the model does not have.

    A label also equals a class as text: a class may be "1" in the model and 1 in a file.
    """
    classes = estimator.classes_.tolist()
    codes = {str(name): code for code, name in enumerate(classes)} | {name: code for code, name in enumerate(classes)}
    unlabeled = is_unlabeled(labels)
    return np.array(
        [
            -1 if missing else codes.get(label, codes.get(str(label), -2))
            for label, missing in zip(labels.tolist(), unlabeled, strict=True)
        ],
        dtype=np.int64,
    )


def _judged(estimator: Any, X: ArrayLike, y: ArrayLike) -> tuple[Array, Array]:
    """Return codes and class probabilities of the labeled rows; raise ValueError if there are none."""
    check_is_fitted(estimator)
    if estimator.task == "regression":
        raise ValueError("A LadderRegressor predicts no classes. Give a LadderClassifier.")
    rows = take(X, slice(None))
    codes = class_codes(estimator, one_per_row(y, len(rows)))
    labeled = np.flatnonzero(codes != -1)
    if not len(labeled):
        raise ValueError(f"None of the {len(codes)} rows is labeled. Give rows with known classes.")
    return codes[labeled], estimator.predict_proba(take(rows, labeled))


def _axes(ax: Axes | None) -> Axes:
    """Return the given axes or those of a new figure of pyplot."""
    return _pyplot().subplots(layout="constrained")[1] if ax is None else ax


def _panels(ax: Any, count: int, columns: int = 3) -> Array:
    """Return axes for a number of panels: those given, those of a new figure, or single axes divided."""
    columns = min(columns, count)
    rows = ceil(count / columns)
    if ax is None:
        size = (3.6 * columns, 3.0 * rows) if columns > 1 or count == 1 else (6.4, 0.55 * rows)
        figure = _pyplot().figure(figsize=size, layout="constrained")
        grid = figure.add_gridspec(rows, columns)
    elif isinstance(ax, np.ndarray | list | tuple):
        given = np.asarray(ax, dtype=object).ravel()
        if len(given) != count:
            raise ValueError(f"Got {len(given)} axes, but {count} are needed.")
        return given
    else:
        figure = ax.figure
        ax.set_axis_off()
        grid = ax.get_subplotspec().subgridspec(rows, columns)
    panels = np.empty(count, dtype=object)
    for index in range(count):
        panels[index] = figure.add_subplot(grid[index // columns, index % columns])
    return panels


def _pyplot() -> Any:
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError("Figures need matplotlib: pip install 'tikas[plots]'.") from error
    return pyplot


def _ink() -> str:
    """Return the color of text in the current style."""
    import matplotlib as mpl

    return str(mpl.rcParams["text.color"])


def _transparent_to(color: str) -> Any:
    """Return a color map that shows the background for 0 and a color for the largest value."""
    from matplotlib.colors import LinearSegmentedColormap, to_rgba

    return LinearSegmentedColormap.from_list("tikas", [to_rgba(color, 0.0), to_rgba(color, 1.0)])


def _cycle(count: int) -> list[str]:
    """Return so many colors: those that can be told apart best, or of a color circle if there are too few."""
    if count <= len(COLORS):
        return list(COLORS[:count])
    import matplotlib as mpl

    circle = mpl.colormaps["hsv"]
    return [mpl.colors.to_hex(circle(index / count)) for index in range(count)]
