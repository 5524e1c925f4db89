"""Checks of scale: a ladder's noise has a fixed size, so its rows should be of about unit size."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tikas.data.cells import ignoring

BLOCK_ROWS = 4096
MOST_NAMED = 5
FAR, FAR_ALONE = 2, 10
"""Widths of the training rows' range that others lie beyond it if they are of another scale: many of them, or one."""
NARROW = 1 / 100
"""Share of the training rows' range that images cover if they are of another scale: of pixels divided by 255, say."""
MOST_COMPARED = 1000
"""Rows, from all over, that are enough to tell their scale by."""


class ScaleWarning(UserWarning):
    """Columns are not of about unit size, carry no information, or are of another scale than those of training rows."""


class _Columns(NamedTuple):
    """What is known of each column."""

    lowest: NDArray[np.float64]
    highest: NDArray[np.float64]
    mean: NDArray[np.float64]
    deviation: NDArray[np.float64]


def check_scale(X: NDArray[Any], columns: Sequence[str] | None = None) -> None:
    """Warn where the scale of the rows would keep a ladder from learning.

    A ladder adds noise of deviation 0.3 or so to its input, and asks for the input back. Where the values run to 255
    that noise is nothing, and where they differ by 0.001 it is everything. Nothing is changed here: what to do is said
    in the warning. Columns that are zero in every row are ordinary (blank borders, categories that did not occur) and
    pass in silence.

    Parameters
    ----------
    X : ndarray of numbers, shape (n, d) or (n, ...)
        Finite values. Beyond two dimensions, all but the first are taken together.
    columns : sequence of str, optional
        The names of the columns, for the warnings.

    Raises
    ------
    ValueError
        If every column holds one value in all rows, so that nothing can be learned.

    Warns
    -----
    ScaleWarning
        At most once each: for pixels or counts that were not divided by their maximum; for columns far from unit size,
        all of them too small included; for columns constant at a value other than zero.

    Examples
    --------
    >>> import warnings
    >>> import numpy as np
    >>> from tikas.data.preprocess import check_scale
    >>> pixels = np.random.default_rng(0).integers(0, 256, size=(100, 64))
    >>> check_scale(pixels / 255)
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     check_scale(pixels)
    >>> print(caught[0].message)
    The values run from 0 to 255, like pixels or counts that were not scaled. ... Divide them by 255, or set
    preprocess='standardize'.
    """
    X = np.asarray(X)
    X = X.reshape(len(X), -1)
    if len(X) < 2:
        return  # one row has no scale
    found = _describe(X)
    varying = found.highest > found.lowest
    if not varying.any():
        raise ValueError(
            f"Each of the {X.shape[1]} columns holds a single value in all {len(X)} rows, so there is nothing to "
            f"learn from. Check how the rows were read or preprocessed."
        )
    messages = (
        _unscaled_pixels(X, found, varying) or _far_from_unit_size(X, found, varying, columns),
        _constant_columns(found, varying, columns),
    )
    for message in messages:
        if message:
            warnings.warn(message, ScaleWarning, stacklevel=3)  # the line that came through the door


def _describe(X: NDArray[Any]) -> _Columns:
    mean = X.mean(axis=0, dtype=np.float64)
    squares = np.zeros(X.shape[1])
    for start in range(0, len(X), BLOCK_ROWS):  # in blocks: a float64 copy of all rows may not fit
        squares += np.square(X[start : start + BLOCK_ROWS] - mean).sum(axis=0)
    lowest, highest = X.min(axis=0).astype(np.float64), X.max(axis=0).astype(np.float64)
    return _Columns(lowest, highest, mean, np.sqrt(squares / len(X)))


def _unscaled_pixels(X: NDArray[Any], found: _Columns, varying: NDArray[np.bool_]) -> str | None:
    """Pixels and counts start at zero or are whole numbers, and most columns reach high into one common range."""
    low, high = found.lowest.min(), found.highest.max()
    reaches_high = found.highest[varying] >= high / 2
    if low < 0 or high > 255 or found.deviation.max() <= 2 or reaches_high.mean() <= 0.5:
        return None
    if low > high / 100 and not np.all(np.rint(X) == X):
        return None
    divisor = 255.0 if high > 128 else high
    return (
        f"The values run from {low:g} to {high:g}, like pixels or counts that were not scaled. A ladder's usual noise "
        f"of 0.3 assumes values of about unit size. Divide them by {divisor:g}, or set preprocess='standardize'."
    )


def _far_from_unit_size(
    X: NDArray[Any], found: _Columns, varying: NDArray[np.bool_], columns: Sequence[str] | None
) -> str | None:
    deviation, mean = found.deviation, np.abs(found.mean)
    largest = deviation.max()
    if largest < 0.01:
        finding, offenders = "The columns hardly vary", varying
    else:
        finding = "Columns are far from unit size"
        offenders = varying & ((deviation > 10) | (mean > 10 * deviation + 10))
        if largest > 100 * np.median(deviation[varying]) and not _all_zero_or_one(X):
            offenders |= varying & (deviation < min(largest / 100, 0.1))
    if not offenders.any():
        return None
    size = np.where(offenders, np.maximum(mean, deviation), 1)
    farthest_first = np.argsort(-np.abs(np.log(size)), kind="stable")
    named = [
        f"{_name(column, columns)} (mean {found.mean[column]:.3g}, deviation {deviation[column]:.3g})"
        for column in farthest_first[: min(MOST_NAMED, offenders.sum())]
    ]
    return (
        f"{finding}: {_listed(named, offenders.sum())}. A ladder's usual noise of 0.3 assumes a deviation of about 1. "
        "Bring them to one scale with preprocess='standardize'."
    )


def _all_zero_or_one(X: NDArray[Any]) -> bool:
    """Indicators keep their scale however rare they are, though rare ones have a small deviation."""
    return bool(np.all((X == 0) | (X == 1)))


def _constant_columns(found: _Columns, varying: NDArray[np.bool_], columns: Sequence[str] | None) -> str | None:
    constant = np.flatnonzero(~varying & (found.lowest != 0))
    if not constant.size:
        return None
    remedy = "scikit-learn's VarianceThreshold"
    if columns is not None:
        remedy += f", or tikas train {ignoring([str(columns[column]) for column in constant.tolist()])}"
    named = [f"{_name(column, columns)} (always {found.lowest[column]:g})" for column in constant[:MOST_NAMED]]
    return (
        f"Columns are constant and carry no information: {_listed(named, constant.size)}. Drop them, for instance with "
        f"{remedy}."
    )


def _name(column: int, columns: Sequence[str] | None) -> str:
    return f"X[:, {column}]" if columns is None else repr(str(columns[column]))


def _listed(named: list[str], n_found: int) -> str:
    more = f" and {n_found - len(named)} more" if n_found > len(named) else ""
    return ", ".join(named) + more


def range_to_keep(
    X: NDArray[Any], preprocess: str, earlier: tuple[float, float] | None = None
) -> tuple[float, float] | None:
    """The smallest and the largest value of training rows as a ladder takes them; None of whitened ones.

    However bright images are, they are the same to whitening. A ladder that goes on knows the range of its earlier rows
    too.

    Examples
    --------
    >>> range_to_keep(np.array([[0.0, 0.5], [1.0, 0.25]]), "none")
    (0.0, 1.0)
    >>> range_to_keep(np.array([[0.25, 2.0]]), "none", earlier=(0.0, 1.0))
    (0.0, 2.0)
    """
    if preprocess == "whiten":
        return None
    lowest, highest = float(X.min()), float(X.max())
    return (lowest, highest) if earlier is None else (min(lowest, earlier[0]), max(highest, earlier[1]))


def warn_of_other_scale(
    X: NDArray[Any],
    fitted_on: tuple[float, float],
    columns: Sequence[str] | None = None,
    *,
    standardized: bool = False,
    stacklevel: int = 2,
) -> None:
    """Warn where rows to predict are of another scale than those that a model was fitted on.

    They are if half of them lie far beyond its smallest and largest value. A few rows must lie farther than many: one
    alone may be just odd. And images are if none of their channels covers more than next to nothing of that range, but
    they are not blank.

    Parameters
    ----------
    X : ndarray of shape (n, columns) or, of images, (n, channels, height, width)
        At least one row, as a ladder takes it.
    fitted_on : tuple of float
        The smallest and the largest value of the training rows.
    columns : sequence of str, optional
        The names of the columns, for the warning.
    standardized : bool, default=False
        Whether these rows were standardised as those were.
    stacklevel : int, default=2
        As of `warnings.warn`.

    Warns
    -----
    ScaleWarning
        With both ranges, the column that is farthest off and what to do.

    Examples
    --------
    >>> import warnings
    >>> pixels = np.random.default_rng(0).integers(0, 256, size=(100, 64))
    >>> warn_of_other_scale(pixels / 200, fitted_on=(0.0, 1.0))
    >>> with warnings.catch_warnings(record=True, action="always") as caught:
    ...     warn_of_other_scale(pixels, fitted_on=(0.0, 1.0))
    >>> print(caught[0].message)
    The rows to predict run from 0 to 255, and those that the model was fitted on ran from 0 to 1: they are of another
    scale, and predictions for them mean little. Give them in the units of the training rows, scaled as those were;
    X[:, ...] is farthest off.
    """
    lowest, highest = fitted_on
    beyond = np.maximum(X - highest, lowest - X).reshape(len(X), -1)
    narrow = X.ndim > 2 and 0 < np.ptp(X, (0, *range(2, X.ndim))).max() < NARROW * (highest - lowest)
    if np.median(beyond.max(1)) <= max(FAR, FAR_ALONE / len(X)) * (highest - lowest) and not narrow:
        return
    taken = ", standardised as the training rows were," if standardized else ""
    named = "" if X.ndim > 2 else f"; {_name(int(np.median(beyond, 0).argmax()), columns)} is farthest off"
    warnings.warn(
        f"The rows to predict{taken} run from {X.min():.3g} to {X.max():.3g}, and those that the model was fitted on "
        f"ran from {lowest:.3g} to {highest:.3g}: they are of another scale, and predictions for them mean little. "
        f"Give them in the units of the training rows, scaled as those were{named}.",
        ScaleWarning,
        stacklevel=stacklevel + 1,
    )


def warn_of_few_rows(rows: int, batch_size: int, stacklevel: int = 2) -> None:
    """Warn where there are fewer rows than a batch has; they are all used in every update then.

    Examples
    --------
    >>> import warnings
    >>> with warnings.catch_warnings(record=True, action="always") as caught:
    ...     warn_of_few_rows(60, 100)
    >>> "60 rows are fewer than a batch of 100" in str(caught[0].message)
    True
    """
    if rows < batch_size:
        warnings.warn(
            f"{rows} rows are fewer than a batch of {batch_size}: every update sees all of them. "
            f"Add unlabelled rows, or silence this warning with batch_size={rows} or less.",
            UserWarning,
            stacklevel=stacklevel + 1,
        )
