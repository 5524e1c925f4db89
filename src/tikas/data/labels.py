"""Targets: which are unlabeled, class codes, the values of a regression, and the weights of labels."""

from __future__ import annotations

import warnings
from math import inf, isfinite
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import assert_all_finite, check_array
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.validation import check_non_negative, column_or_1d

Array = NDArray[Any]

NO_LABEL = -1
MIN_SHARE_OF_MARKS = 0.2
"""Share of targets of a regression that are -1 from which `warn_minus_one` takes them for marks."""
MIN_LABELS_TO_WARN = 20
"""`encode_labels` warns about labels that look like the values of a regression if there are more than this."""


def as_array(y: ArrayLike) -> Array:
    """Convert `y` to an array without changing the type of its items.

    NumPy turns ``["cat", -1]`` into two strings, and a pandas integer column with missing values into floats; here
    both become object arrays with their items as they were.
    """
    items = np.asarray(y, dtype=object if isinstance(y, list | tuple) else None)
    is_integer = getattr(getattr(y, "dtype", None), "kind", "") in ("i", "u")
    return np.asarray(y, dtype=object) if is_integer and items.dtype.kind == "f" else items


def one_per_row(y: ArrayLike | None, rows: int) -> Array:
    """Return `y` as an array with one item for each of `rows` rows; raise ValueError if it has another length."""
    if y is None:
        raise ValueError(
            "This estimator requires y to be passed, but the target y is None. Give a label for each row, or -1 "
            "(NaN for a regressor) where there is none."
        )
    items = as_array(y)
    if items.ndim != 1:
        items = column_or_1d(items, warn=True)
    if len(items) != rows:
        raise ValueError(
            f"X has {rows} rows and y has {len(items)}: inconsistent numbers of samples. Give one label for each row "
            "of X, or -1 (NaN for a regressor) where there is none."
        )
    return items


def is_missing(y: Array) -> NDArray[np.bool_]:
    """Return which items are None, NaN or ``pd.NA``: the unlabeled rows of a regression."""
    if y.dtype.kind == "O":
        return np.array([_is_missing(item) for item in y], dtype=bool)
    return np.isnan(y) if y.dtype.kind == "f" else np.zeros(len(y), dtype=bool)


def is_unlabeled(y: Array) -> NDArray[np.bool_]:
    """Return which rows are unlabeled: -1, and in float or object arrays also NaN, None and ``pd.NA``."""
    if y.dtype.kind == "O":
        return np.array([_is_missing(item) or item == NO_LABEL for item in y], dtype=bool)
    if y.dtype.kind in "iuf":
        return np.asarray(is_missing(y) | (y == NO_LABEL))
    return np.zeros(len(y), dtype=bool)


def _is_missing(item: Any) -> bool:
    # pd.NA is recognized by its type's name, so that pandas is not imported; NaN and NaT do not equal themselves.
    return item is None or type(item).__name__ == "NAType" or bool(item != item)


def regression_values(y: Array) -> NDArray[np.float64]:
    """Convert the targets of a regression to float64; None, NaN and ``pd.NA`` become NaN, and -1 is a value."""
    if y.dtype.kind == "O":
        y = np.array([np.nan if _is_missing(item) else item for item in y], dtype=object)
    try:
        values: NDArray[np.float64] = y.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"A regressor learns numbers, NaN where unlabeled, but y contains other values ({error}). For classes use "
            "LadderClassifier (tikas train --task classification)."
        ) from error
    assert_all_finite(values, allow_nan=True, input_name="y")
    return values


def warn_minus_one(values: NDArray[np.float64], *, stacklevel: int = 3) -> None:
    """Warn if -1 seems to mark the unlabeled rows of a regression: at least every fifth, and no other is negative."""
    marked = values == NO_LABEL
    others = np.unique(values[~marked])
    if marked.mean() >= MIN_SHARE_OF_MARKS and len(others) > 1 and others[0] >= 0:  # NaN is sorted to the end
        warnings.warn(
            f"{marked.sum()} of {len(values)} targets are -1, the only negative value. For a regressor -1 is a value: "
            "if it marks unlabeled rows, give NaN there, np.where(y == -1, np.nan, y).",
            UserWarning,
            stacklevel=stacklevel,
        )


def mean_and_deviation(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return the mean and standard deviation of values (none missing); the deviation of equal values is set to 1."""
    if values.min() == values.max():
        return float(values[0]), 1.0
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        mean, deviation = float(values.mean()), float(values.std())
    if not (isfinite(mean) and 0 < deviation < inf):
        raise ValueError(
            f"The targets run from {values.min():g} to {values.max():g}, and their mean or standard deviation is not a "
            "positive number of 64 bits. Give them in a unit in which they are about 1."
        )
    return mean, deviation


def encode_labels(y: Array, classes: Array | None = None, *, stacklevel: int = 3) -> tuple[NDArray[np.int64], Array]:
    """Return each row's class code (-1 where unlabeled), and the classes.

    Parameters
    ----------
    y
        One label per row: integers, whole floats, booleans, strings or objects.
    classes
        The classes in the order of their codes; default: the sorted labels of `y`.
    stacklevel
        Stack level of the warning about labels that look like the values of a regression; 3 is the caller's caller.
    """
    unlabeled = is_unlabeled(y)
    if unlabeled.all():
        raise ValueError(
            f"None of the {len(y)} rows is labeled (-1, None and NaN mark unlabeled rows). Label at least one row of "
            "each class."
        )
    labels = as_labels(y[~unlabeled])
    found, indices = np.unique(labels, return_inverse=True)
    if len(found) < 2:
        hint = " If -1 is a class here, encode the labels, for example y > 0." if _has_minus_one(y) else ""
        raise ValueError(
            f"y has one class only, {found.tolist()[0]!r}: a classifier needs labeled rows of at least two classes, "
            f"and -1, None and NaN mark unlabeled ones.{hint}"
        )
    _check_negative(found, has_minus_one=_has_minus_one(y), stacklevel=stacklevel + 1)
    if labels.dtype.kind in "iuf" and MIN_LABELS_TO_WARN < len(labels) < 2 * len(found):
        warnings.warn(
            f"The {len(labels)} labels are {len(found)} different numbers, and each becomes a class. To "
            "predict numbers, use LadderRegressor (tikas train --task regression).",
            UserWarning,
            stacklevel=stacklevel,
        )
    order = np.arange(len(found))
    if classes is not None:
        given = classes.tolist()
        if classes.ndim != 1 or len(given) != len(found) or set(given) != set(found.tolist()):
            raise ValueError(
                f"classes={given}, but the labels in y are {found.tolist()}. Name each class once, and label at least "
                "one row of each."
            )
        order = np.argsort(classes)
    codes = np.full(len(y), NO_LABEL, dtype=np.int64)
    codes[~unlabeled] = order[indices]
    return codes, found[np.argsort(order)]


def _has_minus_one(y: Array) -> bool:
    return bool((is_unlabeled(y) & ~is_missing(y)).any())


def _check_negative(classes: Array, *, has_minus_one: bool, stacklevel: int) -> None:
    """Warn if a class is below -1, which may be meant for unlabeled rows; beside -1, which may be a class, raise."""
    if classes.dtype.kind not in "if" or classes[0] >= NO_LABEL:
        return
    lowest = classes.tolist()[0]
    if has_minus_one:
        raise ValueError(
            f"y contains {lowest} and -1. Only -1 marks unlabeled rows, and {lowest} would be a class. If all numbers "
            "are classes, encode them, for example with sklearn.preprocessing.LabelEncoder; if all negative ones mark "
            "unlabeled rows, give np.where(y < 0, -1, y)."
        )
    warnings.warn(
        f"y contains {lowest}, which is taken for a class: only -1, None and NaN mark unlabeled rows. If it marks "
        "unlabeled rows, replace it by -1.",
        UserWarning,
        stacklevel=stacklevel,
    )


def look_continuous(y: Array) -> bool:
    """Return whether targets are values rather than classes, as far as they tell.

    They are if they are floats with fractions, floats below -1, or more than 20 different floats of which hardly any
    occurs three times, none of them -1.
    """
    known = y[~is_missing(y)]
    if known.dtype.kind == "O":
        known = np.array(known.tolist())
    if known.dtype.kind != "f" or not len(known):
        return False
    if (known % 1 != 0).any() or (known < NO_LABEL).any():
        return True
    different = len(np.unique(known))
    return different > MIN_LABELS_TO_WARN and len(known) < 3 * different and not _has_minus_one(known)


def as_labels(labels: Array) -> Array:
    """Return labels (none missing) as an array of one sortable type; raise ValueError if they cannot be classes."""
    are_text = labels.dtype.kind == "U"
    if labels.dtype.kind == "O":
        types = {"str" if isinstance(item, str) else type(item).__name__ for item in labels}
        are_text = types == {"str"}
        if "str" in types and not are_text:
            raise ValueError(f"y mixes labels of different types: {', '.join(sorted(types))}. Use one type.")
        if not are_text:
            labels = np.array(labels.tolist())
    if are_text:
        # np.array(["cat", -1]) contains the string "-1": almost certainly an unlabeled row, not a class
        wrong = [text for text in np.unique(labels).tolist() if not text.strip() or text in ("-1", "nan", "<NA>")]
        if wrong:
            raise ValueError(
                f"y is an array of text that contains {wrong[0]!r}. For unlabeled rows, give y as an array of dtype "
                "object with None in these rows."
            )
    elif labels.dtype.kind == "f":
        with np.errstate(invalid="ignore"):
            fractions = labels[labels % 1 != 0]
        if len(fractions):
            raise ValueError(
                f"Unknown label type: continuous. y contains {fractions[0]}, but classes are whole numbers, strings or "
                "booleans. Round it, or predict numbers with LadderRegressor (tikas train --task regression)."
            )
    elif labels.dtype.kind not in "biu":
        raise ValueError(
            f"Unknown label type: {labels.dtype}. y contains {labels[0]!r}, but classes are whole numbers, strings or "
            "booleans."
        )
    return labels


def check_sample_weight(sample_weight: ArrayLike, rows: int) -> NDArray[np.float64]:
    """Return `sample_weight` as float64 ``(rows,)``; raise ValueError unless all are finite and at least 0."""
    weights: NDArray[np.float64] = check_array(
        sample_weight, dtype=np.float64, ensure_2d=False, input_name="sample_weight"
    )
    if weights.shape != (rows,):
        raise ValueError(f"sample_weight.shape == {weights.shape}, expected {(rows,)}: one weight per row of X.")
    check_non_negative(weights, "sample_weight")
    return weights


def label_weights(
    codes: NDArray[np.int64],
    classes: Array,
    sample_weight: NDArray[np.float64] | None,
    class_weight: dict[Any, float] | str | None,
) -> NDArray[np.float64] | None:
    """Return the weight of each row's label: its sample weight times its class's weight; None without weights."""
    if sample_weight is None and class_weight is None:
        return None
    labeled = codes != NO_LABEL
    weights = np.ones(len(codes)) if sample_weight is None else sample_weight.copy()
    if class_weight is not None:
        per_class = compute_class_weight(class_weight, classes=classes, y=classes[codes[labeled]])
        weights[labeled] *= per_class[codes[labeled]]
    totals = np.bincount(codes[labeled], weights[labeled], minlength=len(classes))
    for name, total in zip(classes.tolist(), totals, strict=True):
        if not total > 0:
            raise ValueError(
                f"The labels of class {name!r} have a total weight of {total:g}. Give each class positive weights, or "
                "remove its labels."
            )
    return weights
