"""What counts as a label and what as none: y as people have it, turned into codes and classes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

NO_LABEL = -1
Array = NDArray[Any]


def is_unlabeled(y: Array) -> NDArray[np.bool_]:
    """Where y has no label: -1, and in arrays of floats or objects NaN, None and ``pd.NA`` too.

    Examples
    --------
    >>> is_unlabeled(np.array(["cat", None, "dog", float("nan")], dtype=object)).tolist()
    [False, True, False, True]
    """
    if y.dtype.kind == "O":
        return np.array([_is_no_label(value) for value in y], dtype=bool)
    if y.dtype.kind == "f":
        return np.asarray(np.isnan(y) | (y == NO_LABEL))
    if y.dtype.kind in "iu":
        return np.asarray(y == NO_LABEL)
    return np.zeros(len(y), dtype=bool)


def _is_no_label(value: Any) -> bool:
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    if isinstance(value, str | bool | np.bool_):
        return False
    return isinstance(value, int | float | np.integer | np.floating) and (value != value or value == NO_LABEL)


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

    Examples
    --------
    >>> codes, classes = encode_labels(np.array(["cat", None, "dog"], dtype=object))
    >>> codes.tolist(), classes.tolist()
    ([0, -1, 1], ['cat', 'dog'])
    """
    unlabeled = is_unlabeled(y)
    if unlabeled.all():
        raise ValueError(
            f"None of the {len(y)} rows is labelled (-1, None and NaN mark rows without a label). "
            "Label at least one row of each class."
        )
    labels = _of_one_kind(y[~unlabeled])
    found = np.unique(labels)
    if classes is None:
        classes = found
    _check_classes(found, classes)
    codes = np.full(len(y), NO_LABEL, dtype=np.int64)
    order = np.argsort(classes, kind="stable")
    codes[~unlabeled] = order[np.searchsorted(classes, labels, sorter=order)]
    return codes, classes


def _of_one_kind(labels: Array) -> Array:
    """Labels as an array that can be sorted, once they are known to be labels."""
    if labels.dtype.kind == "O":
        kinds = {_kind(value) for value in labels}
        if len(kinds) > 1:
            raise ValueError(
                f"y mixes labels of different types: {', '.join(sorted(kinds))}. Make them all of one type."
            )
        labels = labels if kinds == {"string"} else np.array(labels.tolist())
    if labels.dtype.kind == "f":
        if np.isinf(labels).any():
            raise ValueError("Input y contains infinity. Classes are whole numbers, strings or booleans.")
        broken = labels[labels != np.round(labels)]
        if len(broken):
            raise ValueError(
                f"Unknown label type: continuous. y holds {broken[0]}, and classes are whole numbers, strings or "
                "booleans. Round it to classes, or use LadderRegressor for values."
            )
    elif labels.dtype.kind not in "biuUSO":
        raise ValueError(f"Unknown label type: {labels.dtype}. Classes are whole numbers, strings or booleans.")
    return labels


def _kind(value: Any) -> str:
    if isinstance(value, bool | np.bool_):
        return "boolean"
    if isinstance(value, int | float | np.integer | np.floating):
        return "number"
    return "string" if isinstance(value, str) else type(value).__name__


def _check_classes(found: Array, classes: Array) -> None:
    if len(np.unique(classes)) != len(classes):
        raise ValueError(f"classes={classes.tolist()} names a class twice.")
    unknown = np.setdiff1d(found, classes)
    if len(unknown):
        raise ValueError(f"y holds {unknown[0]!r}, which is not among the given classes {classes.tolist()}.")
    missing = np.setdiff1d(classes, found)
    if len(missing):
        raise ValueError(
            f"No row is labelled {missing[0]!r}, one of the given classes {classes.tolist()}. "
            "Label at least one row of each class, or leave that class out of `classes`."
        )
    if len(classes) < 2:
        raise ValueError(
            f"y has one class only, {classes.tolist()[0]!r}: a classifier needs labelled rows of at least two classes."
        )
