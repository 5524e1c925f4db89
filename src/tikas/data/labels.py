"""What counts as a label or a value and what as none: y as people have it, turned into what a ladder trains on."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.validation import _check_sample_weight, column_or_1d

NO_LABEL = -1
KINDS = {"boolean", "number", "string"}
FEW_LABELS = 20
"""So many may be of a class each."""
Array = NDArray[Any]


def as_array(y: ArrayLike) -> Array:
    """y as an array whose items are still what they were.

    NumPy gives the items of a list one type, so that ``["cat", -1]`` would become two words; here it stays a word and
    a number. And of pandas' whole numbers with gaps it makes floats; here they stay whole numbers, and gaps gaps. What
    is masked is a gap too.

    Examples
    --------
    >>> as_array(["cat", -1]).tolist()
    ['cat', -1]
    >>> as_array(np.ma.masked_equal([3, 0, 7], 0)).tolist()
    [3, None, 7]
    """
    if isinstance(y, np.ma.MaskedArray):
        return np.asarray(y.tolist(), dtype=object)  # None where it is masked
    whole = getattr(getattr(y, "dtype", None), "kind", "") in ("i", "u")
    items = np.asarray(y, dtype=object if isinstance(y, list | tuple) else None)
    return items if not whole or items.dtype.kind != "f" else np.asarray(y, dtype=object)


def one_for_each_row(y: ArrayLike | None, rows: int) -> Array:
    """y as an array, once it is known to have one item for each of so many rows.

    Examples
    --------
    >>> one_for_each_row(["cat", -1], 2).tolist()
    ['cat', -1]
    >>> one_for_each_row(["cat", -1], 3)
    Traceback (most recent call last):
    ValueError: X has 3 rows and y has 2: inconsistent numbers of samples. ...
    """
    if y is None:
        raise ValueError(
            "This estimator requires y to be passed, but the target y is None. Give a label for each row, or -1 "
            "(for a regressor NaN) where there is none."
        )
    items = as_array(y)
    if items.ndim != 1:
        items = column_or_1d(items, warn=True)
    if len(items) != rows:
        raise ValueError(
            f"X has {rows} rows and y has {len(items)}: inconsistent numbers of samples. Give one label for each row "
            "of X, or -1 (for a regressor NaN) where there is none."
        )
    return items


def is_unlabeled(y: Array) -> NDArray[np.bool_]:
    """Where y has no label: -1, and in arrays of floats or objects NaN, None and ``pd.NA`` too.

    Examples
    --------
    >>> is_unlabeled(np.array(["cat", None, "dog", float("nan")], dtype=object)).tolist()
    [False, True, False, True]
    """
    if y.dtype.kind == "O":
        return np.array([_is_missing(value) or _is_number_for_none(value) for value in y], dtype=bool)
    if y.dtype.kind == "f":
        return np.asarray(np.isnan(y) | (y == NO_LABEL))
    if y.dtype.kind in "iu":
        return np.asarray(y == NO_LABEL)
    return np.zeros(len(y), dtype=bool)


def _is_missing(value: Any) -> bool:
    return value is None or type(value).__name__ in ("NAType", "NaTType")  # pandas need not be there


def _is_number_for_none(value: Any) -> bool:
    return _kind(value) == "number" and bool(value != value or value == NO_LABEL)


def _kind(value: Any) -> str:
    if isinstance(value, bool | np.bool_):
        return "boolean"
    if isinstance(value, int | float | np.integer | np.floating):
        return "number"
    return "string" if isinstance(value, str) else type(value).__name__


def as_values(y: Array) -> NDArray[np.float64]:
    """The values of a regression, NaN where there is none: None and ``pd.NA`` mark that too, -1 does not.

    Examples
    --------
    >>> as_values(np.array([0.5, None, -1], dtype=object)).tolist()
    [0.5, nan, -1.0]
    """
    if y.dtype.kind not in "biuf":
        y = np.array([np.nan if _is_missing(value) else value for value in y], dtype=object)
        wrong = [value for value in y if _kind(value) not in ("number", "boolean")]
        if wrong:
            raise ValueError(
                f"y holds {wrong[0]!r}: a regressor learns numbers, with NaN where there is none. Convert y, or learn "
                "classes: LadderClassifier, or tikas train --task classification."
            )
    values: NDArray[np.float64] = y.astype(np.float64)
    if np.isinf(values).any():
        raise ValueError("Input y contains infinity or a value too large for float64. Give finite values, or NaN.")
    return values


def scale_of_values(values: NDArray[np.float64]) -> tuple[float, float]:
    """The mean and the deviation of the values of a regression, none of them missing; 1 where they are all the same.

    Examples
    --------
    >>> scale_of_values(np.array([1.0, 3.0])), scale_of_values(np.array([5.0]))
    ((2.0, 1.0), (5.0, 1.0))
    """
    if values.min() == values.max():
        return float(values[0]), 1.0
    with np.errstate(over="ignore", invalid="ignore"):
        mean, deviation = float(values.mean()), float(values.std())
    if not 0 < deviation < np.inf:
        raise ValueError(
            f"y runs from {values.min():.3g} to {values.max():.3g}: the square of that is no number any more. Divide y "
            "by its size."
        )
    return mean, deviation


def encode_labels(y: Array, classes: Array | None = None) -> tuple[NDArray[np.int64], Array]:
    """The number of each row's class, -1 where it has no label, and the classes in order.

    Parameters
    ----------
    y
        One value a row: integers, whole floats, booleans, strings or objects.
    classes
        The classes that there are, if more is known of them than y shows.

    Raises
    ------
    ValueError
        Where no row is labelled, where the labels are of one class, are not labels, or do not fit `classes`.

    Warns
    -----
    UserWarning
        Where the labels are numbers of so many classes that they look like values.

    Examples
    --------
    >>> codes, classes = encode_labels(np.array(["cat", None, "dog"], dtype=object))
    >>> codes.tolist(), classes.tolist()
    ([0, -1, 1], ['cat', 'dog'])
    """
    if classes is not None and classes.ndim != 1:
        raise ValueError(f"classes={classes.tolist()!r}: expected a list of the classes, such as [0, 1].")
    unlabeled = is_unlabeled(y)
    if unlabeled.all():
        raise ValueError(
            f"None of the {len(y)} rows is labelled (-1, None and NaN mark rows without a label). "
            "Label at least one row of each class."
        )
    labels = _of_one_kind(y[~unlabeled], "y")
    found = np.unique(labels)
    classes = found if classes is None else _of_one_kind(classes, "classes")
    _check_classes(found, classes)
    if labels.dtype.kind in "iuf" and FEW_LABELS < len(labels) < 2 * len(found):
        warnings.warn(
            f"The {len(labels)} labels are {len(found)} different numbers, and each of these is a class. If they are "
            "values, learn them as such: LadderRegressor, or tikas train --task regression.",
            UserWarning,
            stacklevel=3,  # the line that asks for a fit
        )
    codes = np.full(len(y), NO_LABEL, dtype=np.int64)
    order = np.argsort(classes, kind="stable")
    codes[~unlabeled] = order[np.searchsorted(classes, labels, sorter=order)]
    return codes, classes


def _of_one_kind(labels: Array, name: str) -> Array:
    """Labels as an array that can be sorted, once they are known to be labels."""
    if labels.dtype.kind == "O":
        kinds = {_kind(value) for value in labels}
        if len(kinds) > 1:
            raise ValueError(
                f"{name} mixes labels of different types: {', '.join(sorted(kinds))}. Make them all of one type."
            )
        if not kinds <= KINDS:
            raise _not_labels(name, kinds.pop())
        labels = labels if kinds == {"string"} else _in_one_type(labels, name)
    if labels.dtype.kind == "f":
        _check_whole(labels, name)
    elif labels.dtype.kind in "UO":
        _check_no_marks(labels, name)
    elif labels.dtype.kind not in "biuO":
        raise _not_labels(name, str(labels.dtype))
    return labels


def labels_to_compare(labels: Array, classes: Array) -> Array:
    """Labels, none of them missing, once they are known to be text where the classes are, and numbers where they are.

    Examples
    --------
    >>> labels_to_compare(np.array(["0", "1"]), classes=np.array([0, 1, 2]))
    Traceback (most recent call last):
    ValueError: y holds '0', and the classes are 0, ...: no text is equal to a number. Give y as it was given to fit.
    """
    labels = _of_one_kind(labels, "y")
    if (labels.dtype.kind in "UO") != (classes.dtype.kind in "UO"):
        raise ValueError(
            f"y holds {labels.tolist()[0]!r}, and the classes are {classes.tolist()[0]!r}, ...: no text is equal to a "
            "number. Give y as it was given to fit."
        )
    return labels


def _in_one_type(labels: Array, name: str) -> Array:
    """Numbers or booleans as an array of a type of their own, if one holds all of them exactly."""
    values = labels.tolist()
    items = np.array(values)
    changed = [value for value, item in zip(values, items.tolist(), strict=True) if value == value != item]
    if items.dtype.kind == "O" or changed:
        raise ValueError(
            f"{name} holds {changed[0] if changed else max(values, key=abs)}, too large a number to be exact beside "
            "the others. Make text of them all, with None where there is no label."
        )
    return items


def _not_labels(name: str, given: str) -> ValueError:
    return ValueError(
        f"Unknown label type: {given}. Classes are whole numbers, strings or booleans; convert {name} to one of them."
    )


def _check_whole(labels: Array, name: str) -> None:
    if np.isinf(labels).any():
        raise ValueError(f"Input {name} contains infinity. Classes are whole numbers, strings or booleans.")
    broken = labels[labels != np.round(labels)]
    if len(broken):
        raise ValueError(
            f"Unknown label type: continuous. {name} holds {broken[0]}, and classes are whole numbers, strings or "
            "booleans. Round it to classes, or learn values: LadderRegressor, or tikas train --task regression."
        )


def _check_no_marks(labels: Array, name: str) -> None:
    if any(not label.strip() for label in np.unique(labels)):
        raise ValueError(
            f"{name} holds an empty text, which would be a class of its own. Put None where there is no label, in an "
            "array of dtype object."
        )
    marks = np.intersect1d(labels, ("-1", "nan", "<NA>"))
    if len(marks):
        raise ValueError(
            f"{name} is an array of text with {marks.tolist()[0]!r} in it, which is what becomes of the number when it "
            f"is put among text. Give {name} as an array of dtype object, with None where there is no label."
        )


def _check_classes(found: Array, classes: Array) -> None:
    if len(np.unique(classes)) != len(classes):
        raise ValueError(f"classes={classes.tolist()} names a class twice. Name each once.")
    unknown = np.setdiff1d(found, classes).tolist()
    if unknown:
        raise ValueError(
            f"y holds {unknown[0]!r}, which is not among the given classes {classes.tolist()}. "
            "Add it to `classes`, or mark the row as unlabelled."
        )
    missing = np.setdiff1d(classes, found).tolist()
    if missing:
        raise ValueError(
            f"No row is labelled {missing[0]!r}, one of the given classes {classes.tolist()}. "
            "Label at least one row of each class, or leave that class out of `classes`."
        )
    if len(classes) < 2:
        raise ValueError(
            f"y has one class only, {classes.tolist()[0]!r}: a classifier needs labelled rows of at least two classes."
        )


def label_weights(
    codes: NDArray[np.int64],
    classes: Array,
    sample_weight: ArrayLike | None,
    class_weight: dict[Any, float] | str | None,
) -> NDArray[np.float64] | None:
    """How much each row's label counts: its own weight times its class's; None where all count the same.

    Examples
    --------
    >>> label_weights(np.array([0, 1, -1]), np.array(["cat", "dog"]), [1, 2, 3], {"dog": 10}).tolist()
    [1.0, 20.0, 3.0]
    """
    if sample_weight is None and class_weight is None:
        return None
    weights = np.array(_check_sample_weight(sample_weight, codes, dtype=np.float64, ensure_non_negative=True))
    labeled = codes != NO_LABEL
    if class_weight is not None:
        of_class = compute_class_weight(class_weight, classes=classes, y=classes[codes[labeled]])
        if not ((of_class >= 0) & (of_class < np.inf)).all():
            raise ValueError(f"class_weight={class_weight!r}: expected finite numbers of at least 0.")
        weights[labeled] *= of_class[codes[labeled]]
    weightless = np.setdiff1d(codes[labeled], codes[labeled & (weights > 0)])
    if len(weightless):
        raise ValueError(
            f"Every labelled row of class {classes[weightless].tolist()[0]!r} has weight zero. Give at least one row "
            "of each class a positive weight, or leave that class's labels out."
        )
    return weights
