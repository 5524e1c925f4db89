"""Which targets count as unlabeled, the encoding of classes, and weights of rows and classes."""

from __future__ import annotations

import hashlib
import warnings
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.validation import column_or_1d

Array = NDArray[Any]

NO_LABEL = -1
MIN_LABELS_TO_WARN = 20  # only if there are more labels, encode_labels warns of numbers that look like values
SAMPLED_COLUMNS = 32  # row_indices compares this many columns first, which tells most rows apart
MAX_REPETITION = 10  # as_counts repeats the rows of positive weight at most this often on average


def as_array(y: ArrayLike) -> Array:
    """Convert `y` to an array without changing the type of its items.

    NumPy turns ``["cat", -1]`` into two strings, and a pandas integer column with missing values into floats; here
    both become object arrays with their items as they were. Masked items become None.
    """
    if isinstance(y, np.ma.MaskedArray):
        return np.asarray(y.tolist(), dtype=object)
    items = np.asarray(y, dtype=object if isinstance(y, list | tuple) else None)
    is_integer = getattr(getattr(y, "dtype", None), "kind", "") in ("i", "u")
    return np.asarray(y, dtype=object) if is_integer and items.dtype.kind == "f" else items


def one_per_row(y: ArrayLike | None, rows: int) -> Array:
    """Return `y` as an array with one item for each of `rows` rows; raise ValueError if it has another length."""
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
    """Return which rows are unlabeled: -1, and in float or object arrays also NaN, None and ``pd.NA``."""
    if y.dtype.kind == "O":
        return np.array([_is_missing(item) or _is_nan_or_minus_one(item) for item in y], dtype=bool)
    if y.dtype.kind == "f":
        return np.asarray(np.isnan(y) | (y == NO_LABEL))
    return np.asarray(y == NO_LABEL) if y.dtype.kind in "iu" else np.zeros(len(y), dtype=bool)


def _is_missing(item: Any) -> bool:
    return item is None or type(item).__name__ in ("NAType", "NaTType")  # by name, so that pandas is not imported


def _is_nan_or_minus_one(item: Any) -> bool:
    return _type_name(item) == "number" and bool(item != item or item == NO_LABEL)


def _type_name(item: Any) -> str:
    if isinstance(item, bool | np.bool_):
        return "boolean"
    if isinstance(item, int | float | np.integer | np.floating):
        return "number"
    return "string" if isinstance(item, str) else type(item).__name__


def as_values(y: Array) -> NDArray[np.float64]:
    """Convert the targets of a regression to float64; None, NaN and ``pd.NA`` become NaN, and -1 is a value."""
    if y.dtype.kind not in "biuf":
        y = np.array([np.nan if _is_missing(item) else item for item in y], dtype=object)
        wrong = [item for item in y if _type_name(item) not in ("number", "boolean")]
        if wrong:
            raise ValueError(
                f"y holds {wrong[0]!r}, but a regressor learns numbers (NaN where unlabeled). Convert y to numbers, or "
                "learn classes with LadderClassifier (tikas train --task classification)."
            )
    values: NDArray[np.float64] = y.astype(np.float64)
    if np.isinf(values).any():
        raise ValueError("Input y contains infinity or a value too large for float64. Give finite values, or NaN.")
    return values


def scale_of_values(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return the mean and standard deviation of a regression's values (none missing); deviation 1 for equal values."""
    if values.min() == values.max():
        return float(values[0]), 1.0
    with np.errstate(over="ignore", invalid="ignore"):
        mean, deviation = float(values.mean()), float(values.std())
    if not 0 < deviation < np.inf:
        raise ValueError(
            f"y runs from {values.min():.3g} to {values.max():.3g}, and the squares of such values are out of range. "
            "Rescale y."
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
        Of the warning about labels that look like the values of a regression; 3 is the caller's caller.
    """
    if classes is not None and classes.ndim != 1:
        raise ValueError(f"classes={classes.tolist()!r}: expected a list of the classes, such as [0, 1].")
    unlabeled = is_unlabeled(y)
    if unlabeled.all():
        raise ValueError(
            f"None of the {len(y)} rows is labeled (-1, None and NaN mark unlabeled rows). Label at least one row of "
            "each class."
        )
    labels = _same_type(y[~unlabeled], "y")
    found = np.unique(labels)
    classes = found if classes is None else _same_type(classes, "classes")
    _check_classes(found, classes)
    if labels.dtype.kind in "iuf" and MIN_LABELS_TO_WARN < len(labels) < 2 * len(found):
        warnings.warn(
            f"The {len(labels)} labels are {len(found)} different numbers, and each becomes a class. If they are "
            "values, use LadderRegressor (tikas train --task regression).",
            UserWarning,
            stacklevel=stacklevel,
        )
    codes = np.full(len(y), NO_LABEL, dtype=np.int64)
    order = np.argsort(classes, kind="stable")
    codes[~unlabeled] = order[np.searchsorted(classes, labels, sorter=order)]
    return codes, classes


def labels_to_compare(labels: Array, classes: Array) -> Array:
    """Return labels (none missing) in a type that can be compared with `classes`: both text, or neither."""
    labels = _same_type(labels, "y")
    if (labels.dtype.kind in "UO") != (classes.dtype.kind in "UO"):
        raise ValueError(
            f"y holds {labels.tolist()[0]!r}, and the classes are {classes.tolist()[0]!r}, ...: text never equals a "
            "number. Give y in the type it had in fit."
        )
    return labels


def _same_type(labels: Array, name: str) -> Array:
    """Return labels in one sortable type; raise ValueError if they are not integers, whole floats, booleans or text."""
    if labels.dtype.kind == "O":
        types = {_type_name(item) for item in labels}
        if len(types) > 1:
            raise ValueError(f"{name} mixes labels of different types: {', '.join(sorted(types))}. Use one type.")
        if types <= {"boolean", "number"}:
            labels = _without_objects(labels, name)
        elif types != {"string"}:
            raise _unknown_type(types.pop(), name)
    if labels.dtype.kind == "f":
        if np.isinf(labels).any():
            raise ValueError(f"Input {name} contains infinity. Classes are whole numbers, strings or booleans.")
        fractions = labels[labels != np.round(labels)]
        if len(fractions):
            raise ValueError(
                f"Unknown label type: continuous. {name} holds {fractions[0]}, but classes are whole numbers, strings "
                "or booleans. Round it, or learn values with LadderRegressor (tikas train --task regression)."
            )
    elif labels.dtype.kind in "UO":
        # np.array(["cat", -1]) holds the string "-1": almost certainly an unlabeled row, not a class
        wrong = [text for text in np.unique(labels).tolist() if not text.strip() or text in ("-1", "nan", "<NA>")]
        if wrong:
            raise ValueError(
                f"{name} is an array of text that contains {wrong[0]!r}. For unlabeled rows, give {name} as an array "
                "of dtype object with None in these rows."
            )
    elif labels.dtype.kind not in "biu":
        raise _unknown_type(str(labels.dtype), name)
    return labels


def _without_objects(labels: Array, name: str) -> Array:
    """Convert an object array of numbers or of booleans to its own type, if that holds every item exactly."""
    given = labels.tolist()
    items = np.array(given)
    inexact = [value for value, item in zip(given, items.tolist(), strict=True) if value == value != item]
    if items.dtype.kind == "O" or inexact:
        raise ValueError(
            f"{name} holds {inexact[0] if inexact else max(given, key=abs)}, which is too large to be stored exactly "
            "with the other labels. Convert all labels to text, with None where there is none."
        )
    return items


def _unknown_type(found: str, name: str) -> ValueError:
    return ValueError(
        f"Unknown label type: {found}. Classes are whole numbers, strings or booleans; convert {name} to one of them."
    )


def _check_classes(found: Array, classes: Array) -> None:
    """Check that given classes are unique, at least two, and just those that are found among the labels."""
    if len(np.unique(classes)) != len(classes):
        raise ValueError(f"classes={classes.tolist()} names a class twice. Name each once.")
    unknown = np.setdiff1d(found, classes).tolist()
    if unknown:
        raise ValueError(
            f"y holds {unknown[0]!r}, which is not among the given classes {classes.tolist()}. Add it to `classes`, or "
            "mark the row as unlabeled."
        )
    missing = np.setdiff1d(classes, found).tolist()
    if missing:
        raise ValueError(
            f"No row is labeled {missing[0]!r}, one of the given classes {classes.tolist()}. Label at least one row of "
            "each class, or remove it from `classes`."
        )
    if len(classes) < 2:
        raise ValueError(
            f"y has one class only, {classes.tolist()[0]!r}: a classifier needs labeled rows of at least two classes."
        )


def check_sample_weight(sample_weight: ArrayLike, rows: int) -> NDArray[np.float64]:
    """Return `sample_weight` as float64 ``(rows,)``; raise ValueError if it is not finite, at least 0, one per row."""
    weights = np.asarray(sample_weight, dtype=np.float64)
    if weights.ndim == 0:
        weights = np.full(rows, weights)
    if weights.shape != (rows,):
        raise ValueError(f"sample_weight.shape == {weights.shape}, expected {(rows,)}: one weight per row of X.")
    if not (np.isfinite(weights) & (weights >= 0)).all():
        worst = weights[~(np.isfinite(weights) & (weights >= 0))][0]
        raise ValueError(f"sample_weight holds {worst}. Negative values, infinity and NaN are not weights.")
    return weights


def label_weights(
    codes: NDArray[np.int64],
    classes: Array,
    sample_weight: ArrayLike | None,
    class_weight: dict[Any, float] | str | None,
) -> NDArray[np.float64] | None:
    """Return the weight of each row's label: its sample weight times its class's weight; None if all are equal."""
    if sample_weight is None and class_weight is None:
        return None
    weights = np.ones(len(codes)) if sample_weight is None else check_sample_weight(sample_weight, len(codes)).copy()
    labeled = codes != NO_LABEL
    if class_weight is not None:
        per_class = compute_class_weight(class_weight, classes=classes, y=classes[codes[labeled]])
        if not ((per_class >= 0) & (per_class < np.inf)).all():
            raise ValueError(f"class_weight={class_weight!r}: expected finite numbers of at least 0.")
        weights[labeled] *= per_class[codes[labeled]]
    zero = np.setdiff1d(codes[labeled], codes[labeled & (weights > 0)])
    if len(zero):
        raise ValueError(
            f"Every labeled row of class {classes[zero].tolist()[0]!r} has weight zero. Give at least one row of each "
            "class a positive weight, or remove that class's labels."
        )
    return weights


def as_counts(weights: NDArray[np.float64]) -> NDArray[np.int64] | None:
    """Return the smallest integers with the ratios of `weights`, or None if they would repeat rows too often."""
    positive = weights[weights > 0]
    if not len(positive):
        return None
    with np.errstate(over="ignore"):
        ratios = weights / positive.min()
    for scale in range(1, MAX_REPETITION + 1):  # every positive ratio is >= 1, so larger scales repeat too often
        counts = np.rint(scale * ratios)
        if not counts.sum() <= MAX_REPETITION * len(positive):
            return None
        if np.allclose(counts, scale * ratios, rtol=1e-6, atol=0):  # float32 weights are no more exact than that
            return np.asarray(counts, np.int64)
    return None


def row_indices(rows: Array, targets: Array, counts: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
    """Return the indices of the rows to train on, each repeated `counts` times (default: once).

    If no row occurs twice, the indices ascend. Otherwise equal rows must be interchangeable, so that a row of weight
    two trains like the row given twice: the indices are sorted by a hash of row and target, wherever the rows stand.
    """
    indices = np.arange(len(rows)) if counts is None else np.repeat(np.arange(len(rows)), counts)
    if counts is None or counts.max() <= 1:
        columns = rows.reshape(len(rows), -1)
        middle = max(0, (columns.shape[1] - SAMPLED_COLUMNS) // 2)
        # Rows that differ in a few columns are different; all columns are read only if some rows are equal in these.
        for part in (columns[:, middle : middle + SAMPLED_COLUMNS], columns):
            if len(np.unique(_checksums(part, targets)[indices])) == len(indices):
                return indices
    digests = [
        hashlib.blake2b((row + 0).tobytes() + (target + 0).tobytes(), digest_size=16).digest()  # -0.0 + 0 is 0.0
        for row, target in zip(rows, targets, strict=True)
    ]
    return np.array(sorted(indices.tolist(), key=digests.__getitem__))


def _checksums(rows: Array, targets: Array) -> NDArray[np.uint64]:
    """Return a 64-bit checksum of each row and target. Integer products: exact in any order, unlike floats."""
    sums = np.zeros(len(rows), np.uint64)
    random = np.random.default_rng(0)
    for part in (rows.reshape(len(rows), -1), targets.reshape(len(targets), -1)):
        factors = random.integers(0, 2**64, part.shape[1] * part.itemsize // 4, np.uint64)
        for start in range(0, len(part), 4096):
            bits = (np.ascontiguousarray(part[start : start + 4096]) + 0).view(np.uint32)
            sums[start : start + 4096] += bits @ factors
    return sums
