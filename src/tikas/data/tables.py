"""Rows and targets from CSV, TSV and Parquet files, and from files of NumPy arrays."""

from __future__ import annotations

import csv
import os
import re
import warnings
import zipfile
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tikas.data.datasets import Dataset
from tikas.data.images import FORMATS, as_images
from tikas.data.labels import NO_LABEL, encode_labels
from tikas.data.transforms import ignore_flag

Array = NDArray[Any]
Task = Literal["classification", "regression"]

SUFFIXES = (".csv", ".tsv", ".npy", ".npz", ".parquet")
MISSING = ("", "?", "NA", "N/A", "n/a", "#N/A", "<NA>", "nan", "NaN", "NAN", "NaT", "NULL", "null", "None")
BOOLEANS = {"true": 1.0, "false": 0.0}
QUOTED = re.compile(r'"[^"]*"')
UNNAMED = re.compile(r"column \d+|Unnamed: \d+")
"""Names of columns without a name, here and in pandas."""
MAX_EXACT_INTEGER = 2**53
"""Larger integers may be equal to their neighbors as floats."""
MIN_NUMBERED = 10
"""Fewer rows than this may be numbered by chance."""
MAX_NAMED = 10


class _Table(NamedTuple):
    """The content of a file: features, with their names if they have any, and the target's cells as text."""

    values: Array
    names: tuple[str, ...]
    target: str | None
    texts: pd.Series | None
    where: Callable[[int], str]
    """Describes where in the file a row is."""


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
    path = Path(path).expanduser()
    table = _read(path, (), target, ignore)
    if table.texts is None:
        advice = "name their column with --target, and leave it empty in unlabeled rows"
        if path.suffix.lower() in (".npy", ".npz"):
            advice = "save them with the rows: numpy.savez('rows.npz', x=rows, y=labels), -1 where unlabeled"
        raise ValueError(f"{path} has no labels: {advice}.")
    _warn_numbered_rows(path, table)
    rows = table.values.astype(np.float32)
    if rows.ndim > 2:
        rows = as_images(rows)
    if task == "regression":
        values = _target_values(path, table)
        if np.isnan(values).all():
            raise ValueError(f"{path}: none of the {len(rows)} rows has a value of {table.target!r}.")
        return Dataset(rows, values, feature_names=table.names)
    try:
        codes, classes = encode_labels(_target_labels(table.texts))
    except ValueError as error:
        raise ValueError(f"{path}, {table.target!r}: {error}") from error
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
    path = Path(path).expanduser()
    table = _read(path, feature_names, target, ignore)
    rows = table.values.astype(np.float32)
    if table.texts is None:
        return rows, None
    if task == "regression":
        return rows, _target_values(path, table)
    return rows, _target_labels(table.texts, [name for name in classes if isinstance(name, str)])


def _read(path: Path, feature_names: Sequence[str], target: str | None, ignore: Sequence[str]) -> _Table:
    suffix = path.suffix.lower()
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; expected a file.")
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist. Check its spelling, and the folder you are in.")
    if suffix in FORMATS:
        raise ValueError(f"{path} is a single image. Give its folder, {path.parent}, for all images in it.")
    if suffix not in SUFFIXES:
        raise ValueError(f"{path} has the suffix {suffix!r}; expected one of {', '.join(SUFFIXES)}.")
    if target is not None and target in ignore:
        raise ValueError(f"The column {target!r} is both the target and to be ignored.")
    if suffix in (".npy", ".npz"):
        return _read_arrays(path, target, ignore)
    if suffix == ".parquet":
        return _read_parquet(path, feature_names, target, ignore)
    return _read_text(path, feature_names, target, ignore)


def _read_text(path: Path, feature_names: Sequence[str], target: str | None, ignore: Sequence[str]) -> _Table:
    try:
        separator = _separator(path)
        options: dict[str, Any] = {
            "sep": separator,
            "encoding": "utf-8-sig",
            "skipinitialspace": True,
            "keep_default_na": False,  # cells are shown in messages as they are in the file
        }
        first = pd.read_csv(path, header=None, nrows=1, dtype=str, **options).iloc[0].str.strip().tolist()
        has_header = _is_header(first, [*feature_names, *ignore, *([target] if target else [])])
        names = [cell or f"column {number}" for number, cell in enumerate(first, 1)] if has_header else []
        features, label = _select_columns(path, names, len(first), feature_names, target, ignore)
        with warnings.catch_warnings():
            # Rows longer than the header are an error; shorter ones get empty cells, which are an error in a feature.
            warnings.simplefilter("error", pd.errors.ParserWarning)
            frame = pd.read_csv(
                path,
                header=0 if has_header else None,
                names=list(range(len(first))),
                index_col=False,
                dtype=None if label is None else {label: str},
                low_memory=False,
                **options,
            )
    except (UnicodeDecodeError, pd.errors.ParserError, pd.errors.ParserWarning, pd.errors.EmptyDataError) as error:
        raise ValueError(
            f"{path} cannot be read as a table ({str(error).strip()}). Every line needs as many fields as the first; "
            "put fields that contain the separator in quotes, close all quotes, and save the file as UTF-8 text."
        ) from error

    def where(row: int) -> str:
        return f"line {_line(path, separator, row + has_header)}"

    return _from_frame(path, frame, names, features, label, where)


def _separator(path: Path) -> str:
    """Return what separates the fields: the most frequent of comma, semicolon and tab in the first line."""
    if path.suffix.lower() == ".tsv":
        return "\t"
    with path.open(encoding="utf-8-sig") as file:
        first_line = next((line for line in file if line.strip()), "")
    return max(",;\t", key=QUOTED.sub("", first_line).count)


def _line(path: Path, separator: str, record: int) -> int:
    """Return the line on which a record begins; records and lines differ by blank lines and by quoted line breaks."""
    line = 1
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, delimiter=separator, skipinitialspace=True)
        for cells in reader:
            if len(cells) > 1 or any(cell.strip() for cell in cells):
                if record == 0:
                    break
                record -= 1
            line = reader.line_num + 1
    return line


def _is_header(cells: Sequence[str], wanted: Collection[str]) -> bool:
    """Whether the first record has a cell of text; or else all the wanted names, which are numbers then."""
    if np.isnan(_as_numbers(pd.Series([cell for cell in cells if cell not in MISSING], dtype=str))).any():
        return True
    return bool(wanted) and set(wanted) <= set(cells) and len(set(cells)) == len(cells)


def _select_columns(
    path: Path, names: list[str], width: int, feature_names: Sequence[str], target: str | None, ignore: Sequence[str]
) -> tuple[list[int], int | None]:
    """Return the positions of the feature columns and of the target."""
    targets = [] if target is None else [target]
    if not names:
        if targets or ignore:
            name = [*targets, *ignore][0]
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


def _listed(names: Sequence[str], separator: str = ", ") -> str:
    return separator.join(names[:MAX_NAMED]) + (f"{separator}…" if len(names) > MAX_NAMED else "")


def _read_parquet(path: Path, feature_names: Sequence[str], target: str | None, ignore: Sequence[str]) -> _Table:
    try:
        frame = pd.read_parquet(path)
    except ImportError as error:
        raise ImportError("Reading Parquet files needs pyarrow: pip install 'tikas[parquet]'.") from error
    except (ValueError, OSError) as error:  # the types of pyarrow's errors
        raise ValueError(f"{path} cannot be read as a Parquet file ({error}).") from error
    names = [str(name) for name in frame.columns]
    features, label = _select_columns(path, names, len(names), feature_names, target, ignore)
    frame.columns = pd.RangeIndex(len(names))
    return _from_frame(path, frame, names, features, label, _row_number)


def _row_number(row: int) -> str:
    return f"row {row} (counted from 0)"


def _from_frame(
    path: Path,
    frame: pd.DataFrame,
    names: list[str],
    features: list[int],
    label: int | None,
    where: Callable[[int], str],
) -> _Table:
    """Convert the feature columns to numbers and the target to text; columns have their positions as names."""
    if frame.empty:
        raise ValueError(f"{path} has no rows.")
    values = np.stack([_as_numbers(frame[column]) for column in features], axis=1)
    bad = ~_finite_as_float32(values)
    problems = {}
    for index in np.flatnonzero(bad.any(axis=0)):
        row, column = int(bad[:, index].argmax()), features[index]
        name = names[column] if names else str(column + 1)
        problems[name] = f"{where(row)}, column {name!r}: {str(frame[column].iat[row]).strip()!r}"
    if problems:
        raise _not_finite(path, list(problems.values()), list(problems) if names else [])
    feature_names = tuple(names[column] for column in features) if names else ()
    if label is None:
        return _Table(values, feature_names, None, None, where)
    cells = frame[label].astype(object)
    texts = cells.where(cells.notna(), "").map(str).str.strip()
    return _Table(values, feature_names, names[label], texts, where)


def _as_numbers(column: pd.Series) -> NDArray[np.float64]:
    """Return a column as float64; NaN where a cell is not a number, 1 and 0 for true and false."""
    if not pd.api.types.is_numeric_dtype(column):
        texts = column.astype(str).str.strip()
        column = texts.str.lower().map(BOOLEANS).fillna(pd.to_numeric(texts, errors="coerce"))
    return np.asarray(column.to_numpy(np.float64, na_value=np.nan))


def _finite_as_float32(values: Array) -> NDArray[np.bool_]:
    with np.errstate(over="ignore"):
        return np.asarray(np.isfinite(values.astype(np.float32)))


def _not_finite(path: Path, problems: Sequence[str], columns: Sequence[str] = ()) -> ValueError:
    """Return the error about cells that are not finite numbers in single precision."""
    advice = (
        "Encode text as numbers, write numbers like 12.5, and fill in missing values (scikit-learn's SimpleImputer) or "
        "leave such rows out."
    )
    if columns:
        advice += f" Or leave out the columns: {ignore_flag(columns)}. If they hold the labels: --target."
    return ValueError(
        f"{path} holds cells that are not finite numbers (in single precision): {_listed(problems, '; ')}. {advice}"
    )


def _target_values(path: Path, table: _Table) -> NDArray[np.float64]:
    """Return the values of a regression, NaN where there is none."""
    assert table.texts is not None
    values = _as_numbers(table.texts)
    bad = ~np.isfinite(values) & ~table.texts.isin(MISSING).to_numpy()
    if bad.any():
        row = int(bad.argmax())
        raise _not_finite(path, [f"{table.where(row)}, column {table.target!r}: {table.texts.iat[row]!r}"])
    return values


def _target_labels(texts: pd.Series, names: Collection[str] = ()) -> Array:
    """Return labels: whole numbers, else numbers, else strings; None where unlabeled. `names` stay as they are.

    Whole numbers stay strings where different ones would become equal, like 0123 and 123: these are names.
    """
    labels: dict[str, Any] = {text: text if text in names else None for text in texts.unique()}
    given = pd.Series([text for text in labels if text not in (*names, *MISSING, str(NO_LABEL))], dtype=str)
    numbers = pd.to_numeric(given, errors="coerce").astype(float)
    all_numbers, all_whole = np.isfinite(numbers).all(), (numbers % 1 == 0).all()
    # "1.0" and "1" are one number, written by different programs; "01" and "1" are two names.
    spellings = given.str.replace(r"\.0*$", "", regex=True).nunique()
    are_names = spellings > numbers.nunique() or (numbers.abs() >= MAX_EXACT_INTEGER).any()
    for text, number in zip(given, numbers.tolist(), strict=True):
        if not all_numbers:
            labels[text] = text
        elif not all_whole:
            labels[text] = number
        elif number != NO_LABEL:
            labels[text] = text if are_names else int(number)
    items = [labels[text] for text in texts]
    return np.array(items, dtype=object if None in items or len(set(map(type, items))) > 1 else None)


def _warn_numbered_rows(path: Path, table: _Table) -> None:
    """Warn of columns that number the rows, like pandas' index: a network would learn from the order of the rows."""
    rows = len(table.values)
    if rows < MIN_NUMBERED:
        return
    for name, column in zip(table.names, table.values.T, strict=False):  # arrays have no names
        low, high = column.min(), column.max()
        # Columns without a name may skip numbers: rows were dropped after they were numbered.
        if not (high - low == rows - 1 or UNNAMED.fullmatch(name)):
            continue
        if (column == np.rint(column)).all() and len(np.unique(column)) == rows:
            warnings.warn(
                f"{path}: the column {name!r} numbers the rows, from {low:.0f} to {high:.0f}, and is learned from like "
                f"any other. Leave it out ({ignore_flag([name])}), unless the number says something about a row.",
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
    finite = _finite_as_float32(x)
    if not finite.all():
        index = np.unravel_index(finite.argmin(), x.shape)
        raise _not_finite(path, [f"{x_name}{[int(each) for each in index]}: {str(x[index])!r}"])
    if y is None:
        return _Table(x, (), None, None, _row_number)
    if y.shape != (len(x),):
        raise ValueError(f"{path}: {y_name} has shape {y.shape}, but there are {len(x)} rows. Save one label per row.")
    return _Table(x, (), y_name, pd.Series(y.astype(str), dtype=str).str.strip(), _row_number)
