"""Rows of a folder of Parquet files, read when they are needed, and its targets, read whole."""

from __future__ import annotations

import os
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tikas.data.datasets import FRESH_COPY, Dataset
from tikas.data.labels import NO_LABEL, encode_labels, regression_values
from tikas.data.sources import Array, Indices, RowSource

try:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
except ImportError as error:
    raise ImportError("Reading Parquet files needs pyarrow: pip install 'tikas[parquet]'.") from error

Task = Literal["classification", "regression"]

MAX_GROUP_BYTES = 2**25
"""Bytes of a row group, as float32, above which a warning says that rows are hardly shuffled."""
MAX_NAMED = 10


class ParquetRows(RowSource):
    """Rows of Parquet files, one after the other, as float32; the row groups of the files are the blocks.

    Parameters
    ----------
    files : sequence of Path
    columns : sequence of str
        The columns to read, numbers or booleans, in this order.
    """

    def __init__(self, files: Sequence[Path], columns: Sequence[str]) -> None:
        self._metadata = []
        self._groups: list[tuple[int, int]] = []
        """File and number in it of each row group that has rows."""
        sizes = []
        for number, file in enumerate(files):
            with _reading(file):
                metadata = pq.read_metadata(file)
            self._metadata.append(metadata)
            for group in range(metadata.num_row_groups):
                if rows := metadata.row_group(group).num_rows:
                    self._groups.append((number, group))
                    sizes.append(rows)
        self.files, self.feature_names = list(files), tuple(columns)
        self.block_edges = np.cumsum([0, *sizes], dtype=np.int64)
        self._latest: tuple[int, NDArray[np.float32]] | None = None
        super().__init__((int(self.block_edges[-1]), len(columns)))

    def take(self, rows: Indices) -> NDArray[np.float32]:
        """Read rows, in the order of these indices."""
        found = np.empty((len(rows), self.shape[1]), np.float32)
        assert self.block_edges is not None
        groups = np.searchsorted(self.block_edges, rows, side="right") - 1
        order = np.argsort(groups, kind="stable")
        starts = np.flatnonzero(np.diff(groups[order], prepend=-1))
        for part in np.split(order, starts[1:]) if len(order) else ():
            group = int(groups[part[0]])
            found[part] = self._read_group(group)[rows[part] - self.block_edges[group]]
        return found

    def _read_group(self, group: int) -> NDArray[np.float32]:
        """Return a row group; the latest one is kept, since the next rows are often in it too."""
        latest = self._latest
        if latest is not None and latest[0] == group:
            return latest[1]
        self._latest = latest = None  # before the next one needs memory
        file, number = self._groups[group]
        path, metadata = self.files[file], self._metadata[file]
        with _reading(path), pq.ParquetFile(path, metadata=metadata) as reader:
            table = reader.read_row_group(number, columns=list(self.feature_names))
        values = np.empty((table.num_rows, self.shape[1]), np.float32)
        with np.errstate(over="ignore"):  # values too large for float32 become infinite, which is checked once
            for position, name in enumerate(self.feature_names):
                values[:, position] = _numbers(table.column(name))
        self._latest = group, values
        return values


def _numbers(column: Any) -> Array:
    """Return a column as numbers, NaN where there is none."""
    if pa.types.is_decimal(column.type):
        column = column.cast(pa.float64())
    elif not pa.types.is_integer(column.type) and not pa.types.is_floating(column.type):
        column = column.cast(pa.int8())  # booleans, and columns that have no value in any row
    return np.asarray(column.to_numpy())


def find_parquet(folder: str | os.PathLike[str]) -> list[Path]:
    """Return the Parquet files in a folder, sorted by name, without those whose name begins with a dot or underscore.

    Examples
    --------
    >>> find_parquet("/")
    []
    """
    files = [file for file in sorted(Path(folder).expanduser().iterdir()) if file.suffix.lower() == ".parquet"]
    return [file for file in files if not file.name.startswith((".", "_")) and file.is_file()]


def open_parquet(
    folder: str | os.PathLike[str],
    target: str | None = None,
    ignore: Sequence[str] = (),
    task: Task = "classification",
    columns: Sequence[str] = (),
) -> tuple[ParquetRows, Array | None]:
    """Return the rows of a folder of Parquet files, which stay there, and their targets, to be given to `fit`.

    Parameters
    ----------
    folder : path
        Folder with one or more ``.parquet`` files of the same columns, or one such file.
    target : str, optional
        The column with the labels or values. Null marks unlabeled rows; in a classification -1 and the empty text do,
        too.
    ignore : sequence of str, default=()
        Columns to leave out. All others are features and must be numbers or booleans.
    task : {"classification", "regression"}, default="classification"
        Whether the targets are classes or values.
    columns : sequence of str, default=()
        The features, in this order. Default: all columns but `target` and `ignore`, in the order of the first file.

    Returns
    -------
    rows : ParquetRows
        What estimators take as X.
    y : ndarray or None
        What they take as y: labels, -1 or None where there is none, or values, NaN where there is none. None without a
        target.

    Raises
    ------
    FileNotFoundError
        If there is no such folder, or no Parquet file in it.
    ValueError
        If a file is damaged, has other columns than the first, or a column that is not a number.

    Warns
    -----
    UserWarning
        If a column looks like row numbers, or row groups are so large that rows are hardly shuffled.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> from tikas import LadderClassifier
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for number in range(2):
    ...         part = pd.DataFrame({"size": [0.0, 0.1, 0.9, 1.0] * 10, "kind": ["low", None, None, "high"] * 10})
    ...         part.to_parquet(f"{folder}/{number}.parquet")
    ...     rows, y = open_parquet(folder, target="kind")
    ...     classifier = LadderClassifier((8,), epochs=3, batch_size=20).fit(rows, y)
    >>> rows.shape, y[:2], classifier.feature_names_in_.tolist()
    ((80, 1), array(['low', None], dtype=object), ['size'])
    """
    path = Path(folder).expanduser()
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist. Give the path of a folder of Parquet files.")
    files = find_parquet(path) if path.is_dir() else [path]
    if not files:
        raise FileNotFoundError(f"{path} contains no .parquet file. Give a folder with such files.")
    schemas = []
    for file in files:
        with _reading(file):
            schemas.append(pq.read_schema(file))
    left_out = [*ignore, *([target] if target else [])]
    names = list(columns) or _feature_names(files[0], schemas[0], left_out)
    for file, schema in zip(files, schemas, strict=True):
        _check_schema(file, schema, names, target)
    rows = ParquetRows(files, names)
    if not len(rows):
        raise ValueError(f"{path} has no rows.")
    if not columns:
        _warn(path, rows)
    return rows, None if target is None else _read_targets(files, target, task)


def read_parquet_folder(
    folder: str | os.PathLike[str], target: str | None, ignore: Sequence[str] = (), task: Task = "classification"
) -> Dataset:
    """Return training rows that stay in their Parquet files, and their targets; see `open_parquet`."""
    if target is None:
        raise ValueError(f"{folder} has no labels. Name their column with --target.")
    rows, y = open_parquet(folder, target, ignore, task)
    assert y is not None
    if task == "regression":
        return Dataset(rows, regression_values(y), feature_names=rows.feature_names)
    codes, classes = encode_labels(y)
    return Dataset(rows, codes, feature_names=rows.feature_names, classes=classes)


@contextmanager
def _reading(file: Path) -> Iterator[None]:
    """Raise ValueError if a file is not a Parquet file or damaged."""
    try:
        yield
    except (FileNotFoundError, MemoryError):
        raise
    except Exception as error:  # libraries raise many types for damaged files
        reason = textwrap.shorten(f"{type(error).__name__}: {error}", 200)
        raise ValueError(f"{file} cannot be read as a Parquet file ({reason}). {FRESH_COPY}") from error


def _feature_names(file: Path, schema: Any, left_out: Sequence[str]) -> list[str]:
    """Return the names of all columns but those that are left out, which must exist."""
    for name in left_out:
        if name not in schema.names:
            raise ValueError(f"{file} has no column {name!r}; it has {_listed(schema.names)}.")
    names = [name for name in schema.names if name not in left_out]
    if not names:
        raise ValueError(f"{file} has no feature column, only {_listed(schema.names)}.")
    return names


def _check_schema(file: Path, schema: Any, names: Sequence[str], target: str | None) -> None:
    """Raise ValueError unless a file has these columns, each once, and the features are numbers or booleans."""
    for name in [*names, *([target] if target else [])]:
        count = schema.names.count(name)
        if count != 1:
            raise ValueError(
                f"{file} has {count} columns {name!r}; it has {_listed(schema.names)}. All files of a folder need the "
                "same columns, each once."
            )
    wrong = [f"{name!r} ({schema.field(name).type})" for name in names if not _is_number(schema.field(name).type)]
    if wrong:
        raise ValueError(
            f"{file} has columns that are not numbers or booleans: {_listed(wrong)}. Encode them, or leave them out "
            "(--ignore; ignore=[…] in Python)."
        )


def _is_number(kind: Any) -> bool:
    tests = pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal, pa.types.is_null
    return any(test(kind) for test in tests)


def _read_targets(files: Sequence[Path], target: str, task: Task) -> Array:
    """Return the targets of all rows, in the type of the column."""
    columns = []
    for file in files:
        with _reading(file):
            columns.append(pq.read_table(file, columns=[target], partitioning=None).column(target))
    try:
        column = pa.chunked_array([chunk for column in columns for chunk in column.chunks], _common_type(columns))
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, TypeError) as error:
        kinds = sorted({str(column.type) for column in columns})
        raise ValueError(f"The column {target!r} has the types {', '.join(kinds)} in different files.") from error
    kind = column.type
    if task == "regression":
        if not _is_number(kind):
            raise ValueError(f"The column {target!r} contains {kind}, but a regression learns numbers.")
        return _numbers(column).astype(np.float64)
    if pa.types.is_integer(kind):
        return np.asarray(pc.fill_null(column, NO_LABEL).to_numpy())
    if _is_number(kind) and not pa.types.is_boolean(kind):  # whole numbers with gaps, written by pandas
        return _numbers(column)
    encoded = column.cast(kind.value_type) if pa.types.is_dictionary(kind) else column
    encoded = encoded.combine_chunks().dictionary_encode()
    labels = np.array([*encoded.dictionary.to_pylist(), None], dtype=object)
    labels[labels == ""] = None
    labels[labels == str(NO_LABEL)] = None
    codes: Array = pc.fill_null(encoded.indices, len(labels) - 1).to_numpy()
    return np.asarray(labels[codes])


def _common_type(columns: Sequence[Any]) -> Any:
    """Return the type of the columns; those without any value may have none."""
    kinds = [column.type for column in columns if not pa.types.is_null(column.type)]
    return kinds[0] if kinds else pa.null()


def _warn(path: Path, rows: ParquetRows) -> None:
    """Warn about columns that look like row numbers, and about large row groups."""
    for name in rows.feature_names:
        low, high = _integer_range(rows, name)
        if len(rows) > 1 and high - low == len(rows) - 1:
            warnings.warn(
                f"{path}: the column {name!r} looks like row numbers, from {low} to {high}, but is used as a feature. "
                f"Leave it out (--ignore {name}), unless the number describes the row.",
                UserWarning,
                stacklevel=3,
            )
    assert rows.block_edges is not None
    largest = int(np.diff(rows.block_edges).max())
    needed = 4 * largest * rows.shape[1]
    if needed > MAX_GROUP_BYTES:
        good = MAX_GROUP_BYTES // 8 // (4 * rows.shape[1])
        warnings.warn(
            f"{path} has row groups of {largest} rows, {needed / 1e6:.0f} MB in memory. These are read as a whole, and "
            f"rows are shuffled among few of them. If they are sorted, write them with about {good} rows in a group "
            "(row_group_size in pandas, polars and pyarrow).",
            UserWarning,
            stacklevel=3,
        )


def _integer_range(rows: ParquetRows, name: str) -> tuple[int, int]:
    """Return the smallest and largest value of a column of integers as the files tell them; (0, 0) if they do not."""
    lowest, highest = [], []
    for file, group in rows._groups:
        columns = rows._metadata[file].row_group(group)
        position = rows._metadata[file].schema.names.index(name)
        statistics = columns.column(position).statistics
        if statistics is None or not statistics.has_min_max or not isinstance(statistics.min, int):
            return 0, 0
        lowest.append(statistics.min)
        highest.append(statistics.max)
    return min(lowest), max(highest)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:MAX_NAMED]) + (", …" if len(names) > MAX_NAMED else "")
