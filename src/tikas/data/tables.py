"""Rows and targets from CSV, TSV and Parquet files, and from files of NumPy arrays."""

from __future__ import annotations

import csv
import io
import os
import re
import warnings
import zipfile
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tikas.data.datasets import Dataset, ignore_flag
from tikas.data.images import FORMATS, as_images
from tikas.data.labels import encode_labels

Array = NDArray[Any]
Task = Literal["classification", "regression"]

SUFFIXES = (".csv", ".tsv", ".npy", ".npz", ".parquet")
MISSING = {"", "?", "NA", "N/A", "n/a", "#N/A", "<NA>", "nan", "NaN", "NAN", "NaT", "NULL", "null", "None"}
BOOLEANS = {"true": 1.0, "false": 0.0}
MAX_NUMBER = float(np.finfo(np.float32).max)
COMMA_TO_POINT = str.maketrans(",.", ".?")  # a point among decimal commas does not make a number
QUOTED = re.compile(r'"[^"]*"')
DECIMAL_COMMA = re.compile(r'(?:^|[;\t])\s*"?[-+]?\d*,\d+"?\s*(?:[;\t]|$)', re.MULTILINE)
UNNAMED = re.compile(r"column \d+|Unnamed: \d+")
"""Names that columns without a name get, here and in pandas."""
MIN_NUMBERED = 10
"""Fewer rows than this may be numbered by chance."""
MAX_NAMED = 10


@dataclass(frozen=True, eq=False)
class _Table:
    """The content of a file: `rows`, the same as float64 `columns` if these have names, and the target's texts."""

    path: Path
    rows: NDArray[np.float32]
    names: tuple[str, ...]
    columns: Sequence[Array]
    target: str
    texts: pd.Series | None
    decimal: str
    place: Callable[[int], str]


def read_table(
    path: str | os.PathLike[str],
    target: str | None = None,
    ignore: Sequence[str] = (),
    task: Task = "classification",
) -> Dataset:
    """Read training rows and their targets from a file.

    Parameters
    ----------
    path : path
        A ``.csv`` or ``.tsv`` file with a header line, its fields separated by commas, semicolons or tabs; a
        ``.parquet`` file; or a ``.npz`` file with the arrays ``x``, rows first, and ``y``. Features are numbers or
        booleans. Numbers may have decimal commas, unless commas separate the fields.
    target : str, optional
        The column (in a ``.npz`` file the array, default ``y``) that holds the labels or values. Empty cells, ``?``,
        ``NA`` and the like mark unlabeled rows; in a classification -1, too.
    ignore : sequence of str, default=()
        Columns to leave out, whatever they hold.
    task : {"classification", "regression"}, default="classification"
        Whether the targets are classes or values.

    Returns
    -------
    Dataset
        With feature names if the file has names.

    Raises
    ------
    FileNotFoundError, IsADirectoryError
        If there is no such file.
    ValueError
        If a feature is not a finite number, a column does not exist, or the targets are not classes or values. The
        message names the file, the column and the line.
    ImportError
        If pyarrow is needed and not installed.

    Warns
    -----
    UserWarning
        If a column numbers the rows.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "flowers.csv")
    ...     _ = path.write_text("length,width,kind\\n5.1,3.5,iris\\n4.9,3.0,\\n6.1,2.8,rose\\n")
    ...     flowers = read_table(path, target="kind")
    >>> flowers.feature_names, flowers.rows.shape, flowers.targets.tolist(), flowers.classes.tolist()
    (('length', 'width'), (3, 2), [0, -1, 1], ['iris', 'rose'])
    """
    table = _read(path, (), target, ignore)
    if table.texts is None:
        advice = "name their column with --target, and leave it empty in unlabeled rows"
        if table.path.suffix.lower() in (".npy", ".npz"):
            advice = "save them with the rows: numpy.savez('rows.npz', x=rows, y=labels), -1 where unlabeled"
        raise ValueError(f"{table.path} has no labels: {advice}.")
    _warn_numbered_rows(table)
    rows = as_images(table.rows) if table.rows.ndim > 2 else table.rows
    if task == "regression":
        values = _target_values(table)
        if np.isnan(values).all():
            raise ValueError(f"{table.path}: none of the {len(rows)} rows has a value of {table.target!r}.")
        return Dataset(rows, values, feature_names=table.names)
    try:
        codes, classes = encode_labels(_target_labels(table.texts))
    except ValueError as error:
        raise ValueError(f"{table.path}, {table.target!r}: {error}") from error
    return Dataset(rows, codes, feature_names=table.names, classes=classes)


def read_table_rows(
    path: str | os.PathLike[str],
    feature_names: Sequence[str] = (),
    target: str | None = None,
    ignore: Sequence[str] = (),
    task: Task = "classification",
    classes: Collection[Any] = (),
) -> tuple[NDArray[np.float32], Array | None]:
    """Return rows to predict, and their labels (None where unlabeled) or values (NaN) if a target is named.

    Parameters
    ----------
    path : path
        As of `read_table`. A file of numbers alone needs no header line.
    feature_names : sequence of str, default=()
        The columns to read, in this order; others may hold anything. Default: all but `target` and `ignore`.
    target, ignore, task
        As of `read_table`.
    classes : collection, default=()
        Names of classes: labels that are among them stay as they are, even ``?`` and ``0123``.
    """
    table = _read(path, feature_names, target, ignore)
    if table.texts is None:
        return table.rows, None
    if task == "regression":
        return table.rows, _target_values(table)
    return table.rows, _target_labels(table.texts, {name for name in classes if isinstance(name, str)})


def _read(
    path: str | os.PathLike[str], feature_names: Sequence[str], target: str | None, ignore: Sequence[str]
) -> _Table:
    path = Path(path).expanduser()
    suffix = path.suffix.lower()
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; expected a file.")
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist. Check its spelling, and the folder you are in.")
    if suffix in FORMATS:
        raise ValueError(f"{path} is a single image. Give its folder, {path.parent}, for all images in it.")
    if suffix not in SUFFIXES:
        raise ValueError(f"{path} has the suffix {suffix!r}; expected one of {', '.join(SUFFIXES)}.")
    if path.stat().st_size == 0:
        raise ValueError(f"{path} is empty.")
    if target is not None and target in ignore:
        raise ValueError(f"The column {target!r} is both the target and to be ignored.")
    if suffix in (".npy", ".npz"):
        return _read_arrays(path, target, ignore)
    if suffix == ".parquet":
        return _read_parquet(path, feature_names, target, ignore)
    return _read_text(path, feature_names, target, ignore)


def _read_text(path: Path, feature_names: Sequence[str], target: str | None, ignore: Sequence[str]) -> _Table:
    content = path.read_bytes()
    if b"\0" in content[:4096]:
        raise ValueError(f"{path} is not a text file. Save the table as UTF-8 text, or correct the suffix.")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("latin-1")
    separator = _separator(path, text)
    decimal = "," if separator != "," and "," in text and DECIMAL_COMMA.search(text) else "."
    first, lines = _scan(path, text, separator)
    has_header = _is_header(first, [*feature_names, *ignore, *([target] if target else [])], decimal)
    names = [cell or f"column {number}" for number, cell in enumerate(first, 1)] if has_header else []
    features, label = _select_columns(path, names, len(first), feature_names, target, ignore)
    lines = lines[has_header:]
    if not lines:
        raise ValueError(f"{path} has a header line, but no rows.")
    frame = pd.read_csv(
        io.StringIO(text),
        sep=separator,
        decimal=decimal,
        header=0 if has_header else None,
        names=range(len(first)),
        usecols=features if label is None else [*features, label],
        index_col=False,
        dtype=None if label is None else {label: str},
        keep_default_na=False,  # a cell that is not a number makes its column one of text
        skipinitialspace=True,
        low_memory=False,
    )
    return _from_frame(path, frame, names, features, label, decimal, lambda row: f"line {lines[row]}")


def _separator(path: Path, text: str) -> str:
    """Return the separator that is equally often in the first two lines, or else the most frequent in the first."""
    if path.suffix.lower() == ".tsv":
        return "\t"
    lines = [line for line in QUOTED.sub("", text[:100_000]).splitlines() if line.strip()][:2] or [""]
    for separator in "\t;,":  # the comma last, because it may be the decimal comma
        if 0 < lines[0].count(separator) == lines[-1].count(separator):
            return separator
    return max(",;\t", key=lines[0].count)


def _scan(path: Path, text: str, separator: str) -> tuple[list[str], list[int]]:
    """Return the cells of the first record, and the lines of all records; check that all have as many cells.

    This takes 1 s for 50 MB. pandas, which reads the numbers, knows no lines and fills up records that are too short.
    """
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, skipinitialspace=True, strict=True)
    first: list[str] = []
    lines: list[int] = []
    line = 1
    try:
        for cells in reader:
            if len(cells) > 1 or any(map(str.strip, cells)):
                first = first or [cell.strip() for cell in cells]
                lines.append(line)
                if len(cells) != len(first):
                    raise ValueError(
                        f"{path}, line {line}: {len(cells)} fields, but line {lines[0]} has {len(first)}. Every line "
                        "needs as many; put a field that contains the separator in quotes."
                    )
            line = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(f"{path}, line {line}: {error}. Check the quotes in and after that line.") from error
    if not lines:
        raise ValueError(f"{path} holds blank lines only.")
    return first, lines


def _is_header(cells: Sequence[str], wanted: Collection[str], decimal: str) -> bool:
    """Whether the first record has a cell of text; or else all the wanted names, which are numbers then."""
    if any(cell not in MISSING and cell.lower() not in BOOLEANS and np.isnan(_number(cell, decimal)) for cell in cells):
        return True
    return bool(wanted) and set(wanted) <= set(cells) and len(set(cells)) == len(cells)


def _select_columns(
    path: Path, names: list[str], width: int, feature_names: Sequence[str], target: str | None, ignore: Sequence[str]
) -> tuple[list[int], int | None]:
    """Return the positions of the feature columns and of the target."""
    targets = [] if target is None else [target]
    if not names:
        for name in (*targets, *ignore):
            raise ValueError(f"{path} has no header line, so it has no column {name!r}. Add a line of column names.")
        if feature_names:
            message = f"{path} has no header line; its columns are taken to be {_listed(feature_names)}."
            warnings.warn(message, UserWarning, stacklevel=5)
        return list(range(width)), None
    features = feature_names or [name for name in names if name not in targets and name not in ignore]
    for name in (*targets, *ignore, *features):
        if name not in names:
            reason = ", which the model was trained with" if name in feature_names else ""
            raise ValueError(f"{path} has no column {name!r}{reason}; it has {_listed(names)}.")
        if names.count(name) > 1 and name not in ignore:
            raise ValueError(f"{path} has {names.count(name)} columns {name!r}. Give each a name of its own.")
    if not features:
        raise ValueError(f"{path} has no feature column, only {_listed(names)}.")
    return [names.index(name) for name in features], None if target is None else names.index(target)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:MAX_NAMED]) + (", …" if len(names) > MAX_NAMED else "")


def _read_parquet(path: Path, feature_names: Sequence[str], target: str | None, ignore: Sequence[str]) -> _Table:
    try:
        frame = pd.read_parquet(path)
    except ImportError as error:
        raise ImportError("Reading Parquet files needs pyarrow: pip install 'tikas[parquet]'.") from error
    except (ValueError, OSError) as error:  # the types of pyarrow's errors
        raise ValueError(f"{path} cannot be read as a Parquet file ({error}).") from error
    names = [str(name) for name in frame.columns]
    features, label = _select_columns(path, names, len(names), feature_names, target, ignore)
    if not len(frame):
        raise ValueError(f"{path} has no rows.")
    frame.columns = range(len(names))
    return _from_frame(path, frame, names, features, label, ".", _row_number)


def _row_number(row: int) -> str:
    return f"row {row} (counted from 0)"


def _from_frame(
    path: Path,
    frame: pd.DataFrame,
    names: list[str],
    features: list[int],
    label: int | None,
    decimal: str,
    place: Callable[[int], str],
) -> _Table:
    columns, problems = [], {}
    for position in features:
        column = _as_numbers(frame[position], decimal)
        columns.append(column)
        bad = ~(np.abs(column) <= MAX_NUMBER)
        if bad.any():
            row = int(bad.argmax())
            name = names[position] if names else str(position + 1)
            problems[name] = f"{place(row)}, column {name!r}: {str(frame[position].iat[row]).strip()!r}"
    if problems:
        raise _not_numbers(path, list(problems.values()), list(problems) if names else [])
    rows = np.stack(columns, axis=1, dtype=np.float32, casting="same_kind")
    target = "" if label is None else names[label]
    texts = None if label is None else frame[label].astype(object).where(frame[label].notna(), "").map(str).str.strip()
    return _Table(path, rows, tuple(names[each] for each in features) if names else (), columns, target, texts, decimal, place)


def _as_numbers(column: pd.Series, decimal: str) -> Array:
    """Return a column as float64; NaN where a cell is not a number, true and false as 1 and 0."""
    if not pd.api.types.is_numeric_dtype(column):
        texts = column.astype(str).str.strip()
        if decimal == ",":
            texts = texts.str.translate(COMMA_TO_POINT)
        column = texts.str.lower().map(BOOLEANS).fillna(pd.to_numeric(texts, errors="coerce"))
    return np.asarray(column.to_numpy(np.float64, na_value=nan))


def _not_numbers(path: Path, problems: Sequence[str], columns: Sequence[str] = ()) -> ValueError:
    """Return the error about cells that are not finite numbers in single precision."""
    listed = "; ".join(problems[:MAX_NAMED]) + ("; …" if len(problems) > MAX_NAMED else "")
    advice = (
        "Encode text as numbers, write numbers like 12.5, and fill in missing values (scikit-learn's SimpleImputer) or "
        "leave such rows out."
    )
    if columns:
        advice += f" Or leave out the columns: {ignore_flag(columns)}. If they hold the labels: --target."
    return ValueError(f"{path} holds cells that are not finite numbers (in single precision): {listed}. {advice}")


def _target_values(table: _Table) -> NDArray[np.float64]:
    """Return the values of a regression, NaN where there is none."""
    assert table.texts is not None
    values = _as_numbers(table.texts, table.decimal)
    bad = ~np.isfinite(values) & ~table.texts.isin(MISSING).to_numpy()
    if bad.any():
        row = int(bad.argmax())
        raise _not_numbers(table.path, [f"{table.place(row)}, column {table.target!r}: {table.texts.iat[row]!r}"])
    return values


def _target_labels(texts: pd.Series, names: Collection[str] = ()) -> Array:
    """Return labels: whole numbers, else numbers, else strings; None where unlabeled. `names` stay as they are.

    Whole numbers stay strings where different ones would become equal, like 0123 and 123: these are names.
    """
    labels: dict[str, Any] = dict.fromkeys(texts.unique())
    given = [text for text in labels if text not in MISSING and text != "-1" and text not in names]
    numbers = [_number(text) for text in given]
    if not all(map(isfinite, numbers)):
        labels.update(zip(given, given, strict=True))
    elif not all(map(float.is_integer, numbers)):
        labels.update(zip(given, numbers, strict=True))
    else:
        # A float is exact up to 2**53. "1.0" and "1" are the same number, written by programs; "01" is another name.
        spellings = {re.sub(r"\.0*$", "", text) for text in given}
        as_text = len(spellings) > len(set(numbers)) or any(abs(number) >= 2**53 for number in numbers)
        for text, number in zip(given, numbers, strict=True):
            labels[text] = None if number == -1 else text if as_text else int(number)
    labels.update((name, name) for name in names)
    items = [labels[text] for text in texts]
    return np.array(items, dtype=object if None in items or len(set(map(type, items))) > 1 else None)


def _number(text: str, decimal: str = ".") -> float:
    """Return the number that a text spells, NaN if none; 1_000 is Python's spelling alone."""
    try:
        return nan if "_" in text else float(text.translate(COMMA_TO_POINT) if decimal == "," else text)
    except ValueError:
        return nan


def _warn_numbered_rows(table: _Table) -> None:
    """Warn of columns that number the rows, like pandas' index: a network would learn from the order of the rows."""
    for name, column in zip(table.names, table.columns, strict=False):
        low, high, n = column.min(), column.max(), len(column)
        # Columns without a name may skip numbers: rows were dropped after they were numbered.
        if n < MIN_NUMBERED or not (high - low == n - 1 or UNNAMED.fullmatch(name)):
            continue
        if (column == np.rint(column)).all() and len(np.unique(column)) == n:
            warnings.warn(
                f"{table.path}: the column {name!r} numbers the rows, from {low:.0f} to {high:.0f}, and is learned from "
                f"like any other. Leave it out ({ignore_flag([name])}), unless the number says something about a row.",
                UserWarning,
                stacklevel=3,
            )


def _read_arrays(path: Path, target: str | None, ignore: Sequence[str]) -> _Table:
    if ignore:
        raise ValueError(f"{path} holds arrays, whose columns have no names, so it has no column {ignore[0]!r}.")
    try:
        with path.open("rb") as file:
            loaded = np.load(file, allow_pickle=False)
            arrays = {"x": loaded} if isinstance(loaded, np.ndarray) else dict(loaded)
    except (ValueError, EOFError, OSError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{path} does not hold plain NumPy arrays ({error}). Save them with numpy.save or numpy.savez, without "
            "Python objects; labels.astype(str) converts labels to text."
        ) from error
    y_name = target or "y"
    others = [name for name in arrays if name != y_name]
    x_name = "x" if "x" in others else others[0] if len(others) == 1 else None
    if x_name is None or (target and target not in arrays):
        raise ValueError(
            f"{path} holds the arrays {', '.join(arrays) or '(none)'}; expected x and {y_name}, as of "
            f"numpy.savez('rows.npz', x=rows, {y_name}=labels)."
        )
    x, y = arrays[x_name], arrays.get(y_name)
    if x.ndim < 2 or not x.size or x.dtype.kind not in "fiub":
        raise ValueError(
            f"{path}: {x_name} has shape {x.shape} and type {x.dtype}; expected numbers, rows first, (n, ...)."
        )
    with np.errstate(over="ignore"):
        rows = x.astype(np.float32)
    if not np.isfinite(rows).all():
        index = np.unravel_index(np.isfinite(rows).argmin(), x.shape)
        raise _not_numbers(path, [f"{x_name}{[int(each) for each in index]}: {str(x[index])!r}"])
    if y is not None and y.shape != (len(x),):
        raise ValueError(f"{path}: {y_name} has shape {y.shape}, but there are {len(x)} rows. Save one label per row.")
    texts = None if y is None else pd.Series(y.astype(str).tolist(), dtype=str).str.strip()
    return _Table(path, rows, (), [], y_name, texts, ".", _row_number)
