"""A user's own rows, read from a file: CSV, TSV, NumPy arrays, Parquet."""

from __future__ import annotations

import itertools
import os
import zipfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from tikas.data.cells import TARGET, ignoring, labels_of, refuse
from tikas.data.delimited import is_header, records_of, row_of

Targets = Callable[[Iterable[str]], NDArray[Any]]
"""Makes labels, or values, of the texts that stand for them in a file."""


@dataclass(frozen=True, eq=False)
class Table:
    """Rows from a file.

    Parameters
    ----------
    x : ndarray of float32, shape (n, d)
        The feature columns, finite; an array file of more dimensions keeps them, (n, ...).
    y : ndarray of shape (n,) or None
        The labels: whole numbers, numbers or strings. Where some rows are unlabelled it is an object array that holds
        ``None`` for those. ``None`` altogether where the file has no labels or no target was named.
    columns : tuple of str or None
        The names of the feature columns, where the file names them.
    """

    x: NDArray[np.float32]
    y: NDArray[Any] | None
    columns: tuple[str, ...] | None

    @property
    def flat(self) -> NDArray[np.float32]:
        """The rows ``(n, columns)``.

        Examples
        --------
        >>> Table(np.zeros((5, 8, 8), np.float32), y=None, columns=None).flat.shape
        (5, 64)
        """
        return self.x.reshape(len(self.x), -1)


def read_table(
    path: str | os.PathLike[str],
    target: str | None = None,
    make_targets: Targets = labels_of,
    columns: Sequence[str] = (),
    ignore: Sequence[str] = (),
) -> Table:
    """Read rows, and their labels where a target is named, from a file.

    Parameters
    ----------
    path : path
        A ``.csv`` or ``.tsv`` file (its first line is a header if any field there is no number or boolean), a ``.npy``
        array with rows first, a ``.npz`` file with the array ``x`` and perhaps ``y``, or a ``.parquet`` file. Booleans
        are 1 and 0.
    target : str, optional
        The column that holds the labels, by its name in the header; in a ``.npz`` file, the array that does, ``y``
        unless named. An empty field, ``?``, ``NA``, ``nan`` and ``-1`` mark an unlabelled row.
    make_targets : callable, default=labels_of
        What makes labels of the texts there. For a regression it is `tikas.data.cells.values_of`, to which ``-1`` is
        a value like any other.
    columns : sequence of str, optional
        The feature columns that are wanted, by their names; others may hold anything. By default, all but the target.
        In a file that names no columns they mean nothing.
    ignore : sequence of str, optional
        Columns that are not looked at, by their names, whatever they hold.

    Returns
    -------
    Table

    Raises
    ------
    FileNotFoundError, IsADirectoryError
        If there is no such file.
    ValueError
        If the file does not hold a table of finite numbers; the message names the line and the column. If it has no
        column of a name that was given.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from tikas.data.tables import read_table
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "flowers.csv")
    ...     _ = path.write_text("length,width,kind\\n5.1,3.5,iris\\n4.9,3.0,?\\n")
    ...     table = read_table(path, target="kind")
    >>> table.columns, table.x.shape
    (('length', 'width'), (2, 2))
    >>> table.y
    array(['iris', None], dtype=object)
    """
    path = Path(path)
    readers = {
        ".csv": _read_text,
        ".tsv": _read_text,
        ".npy": _read_arrays,
        ".npz": _read_arrays,
        ".parquet": _read_parquet,
    }
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; expected a file. Name one of the files in it.")
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist. Check the spelling and the folder it is looked for in.")
    reader = readers.get(path.suffix.lower())
    if reader is None:
        suffix = f"the suffix {path.suffix!r}" if path.suffix else "no suffix"
        raise ValueError(f"{path} has {suffix}; expected one of {', '.join(readers)}.")
    if path.stat().st_size == 0:
        raise ValueError(f"{path} is empty; expected rows of numbers.")
    if target is not None and target in ignore:
        raise ValueError(f"The column {target!r} holds the labels, and is to be ignored too. Leave out one of the two.")
    return reader(path, target, make_targets, columns, ignore)


def _read_text(
    path: Path, target: str | None, make_targets: Targets, columns: Sequence[str], ignore: Sequence[str]
) -> Table:
    with path.open("rb") as file:
        if b"\0" in file.read(4096):
            raise ValueError(f"{path} is not a text file. Save the table as UTF-8 text, or correct its suffix.")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return _parse(path, file, target, make_targets, columns, ignore)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error}). Save the table as UTF-8.") from error


def _parse(
    path: Path,
    file: TextIO,
    target: str | None,
    make_targets: Targets,
    columns: Sequence[str],
    ignore: Sequence[str],
) -> Table:
    records = records_of(path, file)
    first = next(records, None)
    if first is None:
        raise ValueError(f"{path} holds blank lines only; expected rows of numbers.")
    names = None
    if is_header(first[1], [*columns, *ignore, *(() if target is None else (target,))]):
        names = [field.strip() or f"column {place}" for place, field in enumerate(first[1], start=1)]
    else:
        records = itertools.chain([first], records)
    if target is not None and names is None:
        raise ValueError(
            f"{path} has no header line, so the target {target!r} cannot be found in it. Add a line with column names."
        )
    if ignore and names is None:
        raise ValueError(f"{path} has no header line, so there is no {ignore[0]!r} in it to ignore. Add one.")
    place = None if target is None or names is None else _place_of(target, names, path)
    features = None if names is None else _places_of(columns, ignore, names, place, path)
    taken = None if names is None or features is None else [names[i] for i in features]

    rows, labels = [], []
    for line, fields in records:
        if len(fields) != len(first[1]):
            raise ValueError(
                f"{path}, line {line}: {len(fields)} fields, but line {first[0]} has {len(first[1])}. "
                f"Every line needs as many; quote a field that holds the separator."
            )
        if place is not None:
            labels.append(fields[place])
        rows.append(row_of(path, line, fields if features is None else [fields[i] for i in features], taken))
    if not rows:
        raise ValueError(f"{path} has a header line but no rows under it.")
    return Table(
        x=_with_features(np.stack(rows), path),
        y=make_targets(labels) if place is not None else None,
        columns=None if taken is None else tuple(taken),
    )


def _places_of(
    columns: Sequence[str], ignore: Sequence[str], names: Sequence[str], target: int | None, path: Path
) -> list[int]:
    """Where the wanted columns are; all but the target and what is ignored where none is wanted in particular."""
    for name in ignore:
        if name not in names:
            raise ValueError(f"{path} has no column {name!r} to ignore; it has {_in_short(names)}.")
    wanted = columns or [name for i, name in enumerate(names) if i != target and name not in ignore]
    for name in wanted:
        if names.count(name) > 1:
            raise ValueError(f"{path} has {names.count(name)} columns {name!r}. Give each a name of its own.")
        if name not in names:
            raise ValueError(
                f"{path} has no column {name!r}, which the model was trained with; it has {_in_short(names)}."
            )
    return [names.index(name) for name in wanted]


def _in_short(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (", …" if len(names) > 8 else "")


def _place_of(target: str, names: list[str], path: Path) -> int:
    if names.count(target) != 1:
        found = "is there more than once" if target in names else "is not there"
        raise ValueError(
            f"{path}: the target column {target!r} {found}. Its columns: {', '.join(names[:20])}"
            f"{', …' if len(names) > 20 else ''}."
        )
    return names.index(target)


def _read_arrays(
    path: Path, target: str | None, make_targets: Targets, _: Sequence[str], ignore: Sequence[str]
) -> Table:
    if ignore:
        raise ValueError(f"{path} is an array, whose columns have no names: there is no {ignore[0]!r} to ignore.")
    arrays = _loaded(path)
    y_name = target or "y"
    rest = [name for name in arrays if name != y_name]
    x_name = "x" if "x" in rest else rest[0] if len(rest) == 1 else None
    if x_name is None:
        raise ValueError(
            f"{path} holds the arrays {', '.join(arrays) or '(none)'}; expected one named x, or a single one."
        )
    if target is not None and target not in arrays:
        raise ValueError(
            f"{path} has no array {target!r} for the target; it has {', '.join(arrays)}. "
            f"Save rows and labels together: numpy.savez('rows.npz', x=rows, {target}=labels)."
        )
    x = _finite(arrays[x_name], f"{path}, array {x_name!r}")
    y = arrays.get(y_name)
    if y is not None and y.shape != x.shape[:1]:
        raise ValueError(f"{path}: {y_name} has shape {y.shape} but there are {len(x)} rows. Save one label per row.")
    return Table(x, y=None if y is None else make_targets(y.astype(str).tolist()), columns=None)


def _loaded(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with path.open("rb") as file:
            loaded = np.load(file, allow_pickle=False)
            return {"x": loaded} if isinstance(loaded, np.ndarray) else dict(loaded)
    except (ValueError, EOFError, OSError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{path} does not hold plain NumPy arrays ({error}). Save them with numpy.save or numpy.savez, "
            f"without Python objects in them; labels.astype(str) makes text of labels."
        ) from error


def _finite(array: NDArray[Any], place: str) -> NDArray[np.float32]:
    if array.ndim < 2:
        raise ValueError(f"{place} has shape {array.shape}; expected rows and columns, (n, d) or (n, ...).")
    if array.dtype.kind not in "fiub":
        raise ValueError(f"{place} is of type {array.dtype}; expected numbers.")
    with np.errstate(over="ignore"):
        x = _with_features(array.astype(np.float32), place)
    if not np.isfinite(x).all():
        index = np.unravel_index(np.argmin(np.isfinite(x)), x.shape)
        refuse(f"{place}, at {[int(i) for i in index]}", str(array[index]))
    return x


def _with_features(x: NDArray[np.float32], place: Path | str) -> NDArray[np.float32]:
    if x.size == 0:
        raise ValueError(f"{place} has shape {x.shape}; expected at least one row and one feature column.")
    return x


def _read_parquet(
    path: Path, target: str | None, make_targets: Targets, columns: Sequence[str], ignore: Sequence[str]
) -> Table:
    try:
        import pandas as pd

        frame = pd.read_parquet(path)
    except ImportError as error:
        raise ValueError(f"{path} needs pandas and pyarrow to be read: pip install pandas pyarrow.") from error
    except (ValueError, OSError) as error:  # pyarrow's errors are ValueErrors or OSErrors
        raise ValueError(f"{path} is not a readable Parquet file ({error}).") from error
    names = [str(name) for name in frame.columns]
    place = None if target is None else _place_of(target, names, path)
    features, taken = [], _places_of(columns, ignore, names, place, path)
    others = [i for i in taken if not pd.api.types.is_numeric_dtype(frame.iloc[:, i])]
    if others:
        raise ValueError(
            f"{path}, column {names[others[0]]!r} is of type {frame.iloc[:, others[0]].dtype}; expected numbers. "
            f"Encode it as numbers, or ignore it ({ignoring([names[i] for i in others])}). {TARGET}"
        )
    for i in taken:
        name, column = names[i], frame.iloc[:, i]
        values = column.to_numpy(dtype=np.float64, na_value=np.nan)
        if not np.isfinite(values).all():
            bad = int(np.argmin(np.isfinite(values)))
            refuse(f"{path}, row {bad} (counted from 0), column {name!r}", str(values[bad]))
        features.append(values)
    x = np.stack(features, axis=1) if features else np.empty((len(frame), 0))
    labels = None
    if place is not None:
        given = frame.iloc[:, place]
        labels = make_targets("" if gap else str(value) for value, gap in zip(given, given.isna(), strict=True))
    return Table(_finite(x, str(path)), labels, tuple(names[i] for i in taken))
