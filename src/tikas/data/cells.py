"""What stands in the cells of a table: numbers, labels, and gaps."""

from __future__ import annotations

import math
import shlex
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

MISSING = frozenset({"", "?", "NA", "N/A", "n/a", "#N/A", "<NA>", "nan", "NaN", "NAN", "NULL", "null", "None"})
UNLABELED = MISSING | {"-1"}
BOOLEANS = {"true": 1.0, "false": 0.0}
IMPUTE = "Fill missing values in first (scikit-learn's SimpleImputer), or leave such rows out."
TARGET = "If these are the labels, name them as the target (--target)."
MOST_NAMED = 20


def number(text: str) -> float:
    """The number that a text spells, and no number (NaN) where it spells none.

    Examples
    --------
    >>> number(" 5.1 "), number("iris"), number("1_000")
    (5.1, nan, nan)
    """
    try:
        return math.nan if "_" in text else float(text)  # Python's own way to group digits
    except ValueError:
        return math.nan


def feature(text: str) -> float:
    """The number that a cell of a feature column holds: a boolean is 1 or 0, as it is in Parquet files and arrays.

    Examples
    --------
    >>> feature("2.5"), feature("True"), feature("FALSE"), feature("yes")
    (2.5, 1.0, 0.0, nan)
    """
    value = number(text)
    return BOOLEANS.get(text.strip().lower(), value) if math.isnan(value) else value


def ignoring(columns: Sequence[str]) -> str:
    """The flag that leaves these columns out, as a shell takes it.

    Examples
    --------
    >>> print(ignoring(["city", "date of birth"]))
    --ignore city 'date of birth'
    """
    return shlex.join(["--ignore", *columns[:MOST_NAMED]]) + (" …" if len(columns) > MOST_NAMED else "")


def refuse(place: str, value: str, texts: Sequence[str] = ()) -> NoReturn:
    """Say what is wrong with a value that is no finite number, where it stands, and which columns hold text there.

    Examples
    --------
    >>> refuse("flowers.csv, line 3, column 'width'", "?")
    Traceback (most recent call last):
    ValueError: flowers.csv, line 3, column 'width': the value is missing ('?'). Fill missing values in first ...
    """
    if value in MISSING:
        raise ValueError(f"{place}: the value is missing ({value!r}). {IMPUTE} {TARGET}")
    if "," in value and math.isfinite(number(value.replace(",", ".", 1))):
        raise ValueError(f"{place}: {value!r} has a comma in it. Write numbers with a decimal point, such as 12.5.")
    raise ValueError(
        f"{place}: {value!r} is not a finite number (in single precision). Features must be numbers: encode what is "
        f"text, or ignore it ({ignoring(texts)}). {TARGET}"
    )


def labels_of(texts: Iterable[str], names: Collection[str] = ()) -> NDArray[Any]:
    """Make labels of their texts: whole numbers if all are, else numbers if all are, else strings; None for gaps.

    Whole numbers stay strings where two that are written differently would become one, as 0123 and 123 would: these
    are names. A point with nothing but zeros behind it makes no difference. Texts among `names`, which are known to be
    names of classes, stay as they are.

    Examples
    --------
    >>> labels_of(["3", "1.0"]), labels_of(["iris", "?"]), labels_of(["0123", "123"])
    (array([3, 1]), array(['iris', None], dtype=object), array(['0123', '123'], dtype='<U4'))
    >>> labels_of(["0123", "1.0"], names=["0123", "123", "1"])
    array(['0123', 1], dtype=object)
    """
    stripped = [text.strip() for text in texts]
    values = iter(_converted([text for text in stripped if text not in UNLABELED and text not in names]))
    labels = [text if text in names else None if text in UNLABELED else next(values) for text in stripped]
    if None not in labels and len({type(label) for label in labels}) <= 1:
        return np.array(labels)
    y = np.empty(len(labels), dtype=object)
    y[:] = labels
    return y


def values_of(texts: Iterable[str]) -> NDArray[Any]:
    """Make values of a regression of their texts: numbers, -1 too; None for gaps, and a text that is none stays one.

    Examples
    --------
    >>> values_of(["-1", "2.5", "?"]), values_of(["3", "3.0"])
    (array([-1.0, 2.5, None], dtype=object), array([3., 3.]))
    """
    stripped = [text.strip() for text in texts]
    values = [None if text in MISSING else text if math.isnan(number(text)) else number(text) for text in stripped]
    if all(isinstance(value, float) for value in values):
        return np.array(values)
    y = np.empty(len(values), dtype=object)
    y[:] = values
    return y


def _converted(texts: list[str]) -> list[Any]:
    numbers = [number(text) for text in texts]
    if not all(math.isfinite(value) for value in numbers):
        return texts
    if not all(value.is_integer() for value in numbers):
        return numbers
    names = any(abs(value) >= 2**53 for value in numbers)  # a float would make neighbours equal
    names = names or len({_without_fraction(text) for text in texts}) > len(set(numbers))
    labels = texts if names else [int(value) for value in numbers]
    # −1.0, as a column with gaps may spell it
    return [None if value == -1 else label for value, label in zip(numbers, labels, strict=True)]


def _without_fraction(text: str) -> str:
    whole, _, fraction = text.partition(".")
    return text if fraction.strip("0") else whole
