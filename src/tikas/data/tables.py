"""Rows and targets from CSV, TSV and Parquet files, and from files of NumPy arrays."""

from __future__ import annotations

import os
import re
import shlex
import textwrap
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tikas.data.datasets import FRESH_COPY, Dataset
from tikas.data.labels import encode_labels

Array = NDArray[Any]
Task = Literal["classification", "regression"]

SUFFIXES = (".csv", ".tsv", ".npy", ".npz", ".parquet")
MISSING = ("", "?", "NA", "N/A", "n/a", "#N/A", "<NA>", "nan", "NaN", "NAN", "NaT", "NULL", "null", "None")
UNLABELED = (*MISSING, "-1", "-1.0")
BOOLEANS = {"true": 1.0, "false": 0.0}
QUOTED = re.compile(r'"[^"]*"')
WHOLE_NUMBER = r"-?(0|[1-9]\d*)(\.0*)?"
"""A whole number without leading zeros: 0123 is a name."""
UNNAMED = "Unnamed: "
"""Beginning of pandas' names for columns without a name."""
MIN_NUMBERED = 10
"""In a table with fewer rows, a column may look like row numbers by chance."""
MAX_NAMED = 10


class _Table(NamedTuple):
    """The content of a file: features, with their names if they have any, and the target's cells as text."""

    values: Array
    names: tuple[str, ...]
    texts: pd.Series | None


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
        A ``.csv`` or ``.tsv`` file in UTF-8 with a header line, its fields separated by commas, semicolons or tabs; a
        ``.parquet`` file; or a ``.npz`` file with the arrays ``x``, rows first, and ``y``. Features are numbers or
        booleans.
    target : str, optional
        The column with the labels or values; in a ``.npz`` file, the array (default ``y``). Empty cells, ``?``, ``NA``
        and the like mark unlabeled rows, and so does -1 in a classification.
    ignore : sequence of str, default=()
        Columns to leave out, whatever they contain.
    task : {"classification", "regression"}, default="classification"
        Whether the targets are classes or values.

    Returns
    -------
    Dataset
        With feature names if the file has names.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If a feature is not a number, a column does not exist, or the targets are not classes or values. The message
        names the file, the column and the row, counted from 1 below the header.
    ImportError
        If pyarrow is needed and not installed.

    Warns
    -----
    UserWarning
        If a column looks like row numbers.

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
    path = Path(path).expanduser()
    table = _read(path, (), target, ignore)
    if table.texts is None:
        raise ValueError(f"{path} has no labels. Name their column with --target; in a .npz file, save them as y.")
    _warn_row_numbers(path, table)
    rows = table.values.astype(np.float32)
    if task == "regression":
        return Dataset(rows, _target_values(path, table.texts), feature_names=table.names)
    codes, classes = encode_labels(_target_labels(table.texts))
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
        As for `read_table`. A file that contains only numbers needs no header line.
    feature_names : sequence of str, default=()
        The columns to read, in this order; others may contain anything. Default: all but `target` and `ignore`.
    target, ignore, task
        As for `read_table`.
    classes : collection, default=()
        Names of classes. A label among them is not read as a missing one, even ``NA`` or ``None``.
    """
    path = Path(path).expanduser()
    table = _read(path, feature_names, target, ignore)
    rows = table.values.astype(np.float32)
    if table.texts is None:
        return rows, None
    if task == "regression":
        return rows, _target_values(path, table.texts)
    return rows, _target_labels(table.texts, classes)


def _read(path: Path, feature_names: Sequence[str], target: str | None, ignore: Sequence[str]) -> _Table:
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise ValueError(f"{path} has the suffix {suffix!r}; expected {', '.join(SUFFIXES)}, or a folder of images.")
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist. Give the path of a table, or of a folder of images.")
    if suffix in (".npy", ".npz"):
        return _read_arrays(path, target)
    if suffix == ".parquet":
        with _reading(path, "a Parquet file"):
            frame = pd.read_parquet(path)
        names = [str(name) for name in frame.columns]
        frame.columns = pd.RangeIndex(len(names))
    else:
        frame, names = _read_text(path, target, [*feature_names, *ignore, *([target] if target else [])])
    if frame.empty:
        raise ValueError(f"{path} has no rows.")
    features, label = _select_columns(path, names, frame.shape[1], feature_names, target, ignore)
    texts = None
    if label is not None:
        cells = frame[label].astype(object)
        texts = cells.where(cells.notna(), "").map(str).str.strip()
    chosen = [names[column] if names else str(column + 1) for column in features]
    values = _feature_values(path, frame[features], chosen, required=bool(feature_names))
    return _Table(values, tuple(chosen) if names else (), texts)


@contextmanager
def _reading(path: Path, form: str) -> Iterator[None]:
    """Raise ValueError if a file is not of this form or damaged."""
    try:
        yield
    except (FileNotFoundError, ImportError):
        raise
    except Exception as error:  # libraries raise many types for damaged files
        reason = textwrap.shorten(f"{type(error).__name__}: {error}", 200)
        raise ValueError(f"{path} cannot be read as {form} ({reason}). {FRESH_COPY}") from error


def _read_text(path: Path, target: str | None, wanted: Sequence[str]) -> tuple[pd.DataFrame, list[str]]:
    """Return the cells, columns by position, and the names of the columns; none without a header line."""
    try:
        options: dict[str, Any] = {
            "sep": _separator(path),
            "encoding": "utf-8-sig",
            "skipinitialspace": True,
            "keep_default_na": False,  # cells are shown in messages as they are in the file
        }
        first = pd.read_csv(path, header=None, nrows=1, dtype=str, **options).iloc[0].str.strip().tolist()
        names = []
        if _is_header(first, wanted):
            names = [cell or f"{UNNAMED}{column}" for column, cell in enumerate(first)]
        with warnings.catch_warnings():
            # Rows longer than the header are an error; shorter ones get empty cells, which are an error in a feature.
            warnings.simplefilter("error", pd.errors.ParserWarning)
            frame = pd.read_csv(
                path,
                header=0 if names else None,
                names=list(range(len(first))),
                index_col=False,
                dtype={column: str for column, name in enumerate(names) if name == target},
                low_memory=False,
                **options,
            )
    except (UnicodeDecodeError, pd.errors.ParserError, pd.errors.ParserWarning, pd.errors.EmptyDataError) as error:
        raise ValueError(
            f"{path} cannot be read as a table ({str(error).strip()}). Every line needs as many fields as the first, "
            "and the file must be UTF-8 text."
        ) from error
    return frame, names


def _separator(path: Path) -> str:
    """Return what separates the fields: the most frequent of comma, semicolon and tab in the first line."""
    if path.suffix.lower() == ".tsv":
        return "\t"
    with path.open(encoding="utf-8-sig") as file:
        first_line = next((line for line in file if line.strip()), "")
    return max(",;\t", key=QUOTED.sub("", first_line).count)


def _is_header(cells: Sequence[str], wanted: Collection[str]) -> bool:
    """Return whether the first line names the columns: a cell is not a number, or all wanted names are there."""
    if np.isnan(_as_numbers(pd.Series([cell for cell in cells if cell not in MISSING], dtype=str))).any():
        return True
    return bool(wanted) and set(wanted) <= set(cells) and len(set(cells)) == len(cells)


def _select_columns(
    path: Path, names: list[str], width: int, feature_names: Sequence[str], target: str | None, ignore: Sequence[str]
) -> tuple[list[int], int | None]:
    """Return the positions of the feature columns and of the target."""
    unused = [*ignore, *([target] if target else [])]
    if not names:
        if unused:
            raise ValueError(f"{path} has no header line, so it has no column {unused[0]!r}. Add a line of names.")
        if feature_names:
            message = f"{path} has no header line; its columns are taken to be {_listed(feature_names)}."
            warnings.warn(message, UserWarning, stacklevel=4)
        return list(range(width)), None
    features = feature_names or [name for name in names if name not in unused]
    for name in [*unused, *features]:
        if name not in names:
            reason = ", which the model was trained with" if name in feature_names else ""
            raise ValueError(f"{path} has no column {name!r}{reason}; it has {_listed(names)}.")
        if names.count(name) > 1 and name not in ignore:
            raise ValueError(f"{path} has {names.count(name)} columns {name!r}. Give each a unique name.")
    if not features:
        raise ValueError(f"{path} has no feature column, only {_listed(names)}.")
    return [names.index(name) for name in features], names.index(target) if target else None


def _listed(names: Sequence[str], separator: str = ", ") -> str:
    return separator.join(names[:MAX_NAMED]) + (f"{separator}…" if len(names) > MAX_NAMED else "")


def _feature_values(path: Path, frame: pd.DataFrame, names: Sequence[str], *, required: bool) -> NDArray[np.float64]:
    """Return the features as numbers; otherwise raise ValueError with the first wrong cell of each column."""
    values = np.stack([_as_numbers(frame[column]) for column in frame], axis=1)
    wrong = np.isnan(values)
    problems = {}
    for column in np.flatnonzero(wrong.any(axis=0)).tolist():
        row = int(wrong[:, column].argmax())
        problems[names[column]] = f"row {row + 1}, column {names[column]!r}: {str(frame.iat[row, column]).strip()!r}"
    if problems:
        ignore = f"; or leave out the columns: {shlex.join(['--ignore', *problems])}. If they are the labels: --target"
        raise ValueError(
            f"{path} contains cells that are not numbers (rows are counted from 1 below the header): "
            f"{_listed(list(problems.values()), '; ')}. Write numbers like 12.5, encode text, and fill in missing "
            f"values{'' if required else ignore}."
        )
    return values


def _as_numbers(column: pd.Series) -> NDArray[np.float64]:
    """Return a column as float64; NaN where a cell is not a number, 1 and 0 for true and false."""
    if not pd.api.types.is_numeric_dtype(column):
        texts = column.astype(str).str.strip()
        column = texts.str.lower().map(BOOLEANS).fillna(pd.to_numeric(texts, errors="coerce"))
    return np.asarray(column.to_numpy(np.float64, na_value=np.nan))


def _target_values(path: Path, texts: pd.Series) -> NDArray[np.float64]:
    """Return the values of a regression, NaN where they are missing."""
    values = _as_numbers(texts)
    wrong = np.isnan(values) & ~texts.isin(MISSING).to_numpy()
    if wrong.any():
        row = int(wrong.argmax())
        raise ValueError(f"{path}, row {row + 1}: the target {texts.iat[row]!r} is not a number.")
    return values


def _target_labels(texts: pd.Series, classes: Collection[Any] = ()) -> Array:
    """Return labels, None where unlabeled: all integers, or all floats (one with a fraction), or else strings."""
    labeled = ~texts.isin(set(UNLABELED) - set(classes)).to_numpy()
    given = texts[labeled]
    numbers = pd.to_numeric(given, errors="coerce").astype(float)
    labels: list[Any] = given.tolist()
    if given.str.fullmatch(WHOLE_NUMBER).all():
        labels = [int(text.partition(".")[0]) for text in labels]
    elif np.isfinite(numbers).all() and (numbers % 1 != 0).any():
        labels = numbers.tolist()
    items = np.full(len(texts), None, dtype=object)
    items[labeled] = labels
    return items


def _warn_row_numbers(path: Path, table: _Table) -> None:
    """Warn about columns of row numbers, like pandas' index: a network would learn from the order of the rows."""
    rows = len(table.values)
    if rows < MIN_NUMBERED:
        return
    for name, column in zip(table.names, table.values.T, strict=False):  # arrays have no names
        low, high = column.min(), column.max()
        # Columns without a name may skip numbers: rows were dropped after they were numbered.
        if high - low != rows - 1 and not name.startswith(UNNAMED):
            continue
        if (column % 1 == 0).all() and len(np.unique(column)) == rows:
            warnings.warn(
                f"{path}: the column {name!r} looks like row numbers, from {low:.0f} to {high:.0f}, but is used as a "
                f"feature. Leave it out ({shlex.join(['--ignore', name])}), unless the number describes the row.",
                UserWarning,
                stacklevel=3,
            )


def _read_arrays(path: Path, target: str | None) -> _Table:
    with _reading(path, "plain NumPy arrays"), path.open("rb") as file:
        loaded = np.load(file)
        arrays = {"x": loaded} if isinstance(loaded, np.ndarray) else dict(loaded)
    if "x" not in arrays or (target and target not in arrays):
        raise ValueError(f"{path} contains the arrays {', '.join(arrays)}; expected x and {target or 'y'}.")
    x, y = arrays["x"], arrays.get(target or "y")
    if y is None:
        return _Table(x, (), None)
    if y.shape != x.shape[:1]:
        raise ValueError(f"{path}: the labels have shape {y.shape}, but x has shape {x.shape}. Save one label per row.")
    return _Table(x, (), pd.Series(y.astype(str), dtype=str).str.strip())
