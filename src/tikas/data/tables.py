"""Tables from CSV, Parquet and Excel files: what is in them, told before anything is learned; and arrays of NumPy."""

from __future__ import annotations

import codecs
import csv
import io
import os
import shlex
import textwrap
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tikas.data.columns import (
    GAPS,
    LEADING_ZERO,
    LEFT_OUT,
    UNNAMED,
    Column,
    Kind,
    Profile,
    decimal_mark,
    describe_left_out,
    did_you_mean,
    parse_numbers,
    profile_columns,
)
from tikas.data.datasets import FRESH_COPY, Dataset
from tikas.data.labels import encode_labels, is_unlabeled

Array = NDArray[Any]
Task = Literal["classification", "regression"]

TEXT_SUFFIXES, EXCEL_SUFFIXES, ARRAY_SUFFIXES = (".csv", ".tsv", ".txt"), (".xlsx", ".xls", ".ods"), (".npy", ".npz")
SUFFIXES = (*TEXT_SUFFIXES, ".parquet", *EXCEL_SUFFIXES, *ARRAY_SUFFIXES)
UNLABELED = frozenset(["", "nan", "NaN", "NAN", "NaT", "<NA>", "NULL", "null", "#N/A", "-1", "-1.0"])
"""Cells of a target that mark an unlabeled row."""
UNCLEAR = frozenset(
    (
        *("?", "??", "-", "--", ".", "na", "n/a", "n.a.", "none", "unlabeled", "unlabelled", "not labeled"),
        *("not labelled", "no label", "nolabel", "unknown", "not known", "unk", "undefined", "missing"),
        *("not available", "tbd", "todo", "to do", "unclassified", "unassigned"),
    )
)
"""Cells of a target, in lower case, that may mark an unlabeled row or be a class."""
WHOLE_NUMBER = r"-?(0|[1-9]\d*)(\.0*)?"
"""A whole number without leading zeros: 0123 is a name."""
SEPARATORS = ",;\t|"
SNIFFED_ROWS, SNIFFED_BYTES = 1000, 2**16
DECODED_BYTES = 2**24
CHUNK_ROWS = 20_000
MAX_NAMED = 10
MIN_LEAK_ROWS = 10
"""Labeled rows from which a column that determines the target is told of."""
MAX_LEAK_VALUES = 1000
"""Different values of a column up to which it is compared with the target."""
LEAK_CORRELATION = 0.9999


class UnclearLabelsError(ValueError):
    """Cells of a target may mark unlabeled rows or be a class.

    Attributes
    ----------
    counts : dict of str to int
        Rows with each of these cells.

    Examples
    --------
    >>> print(UnclearLabelsError("rows.csv", "kind", {"unknown": 12}))
    rows.csv: 12 rows have the target kind='unknown'. If these rows have no label: --unlabeled unknown. If it is a
    class: --unlabeled ''.
    """

    def __init__(self, path: object, target: str, counts: Mapping[str, int]) -> None:
        self.counts = dict(counts)
        found = ", ".join(f"{target}={value!r}" for value in counts)
        each = " and ".join(f"{count} {'row has' if count == 1 else 'rows have'}" for count in counts.values())
        which, what = ("these rows", "it is a class") if len(counts) == 1 else ("all these rows", "they are classes")
        given = " ".join(value if value.isalnum() else repr(value) for value in counts)
        super().__init__(
            f"{path}: {each} the target {found}. If {which} have no label: --unlabeled {given}. If {what}: "
            "--unlabeled ''."
        )


@dataclass(frozen=True)
class ColumnSummary:
    """A column as it was read: what it holds, and what becomes of it."""

    name: str
    kind: Kind
    gaps: int
    distinct: int
    use: str
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class TableSummary:
    """What was read from a table, before training.

    Parameters
    ----------
    source : str
        The file, and how it was read.
    rows : int
        Number of rows.
    columns : tuple of ColumnSummary
        All columns but the target.
    target : str
        Name of the column with labels or values.
    labels : dict of str to int
        Labeled rows of each class, empty in a regression.
    labeled, unlabeled : int
        Number of rows with and without a label or value.
    target_range : tuple of float, optional
        Smallest and largest value, and mean, of a regression's target.
    duplicates : int
        Rows that repeat an earlier row in all columns that are used.
    contradictions : int
        Labeled rows that are equal to others in these columns and have another label.
    problems : tuple of str
        What should be looked at, other than in single columns.

    Examples
    --------
    >>> rows = pd.DataFrame({"size": [1.5, None, 2.5, 2, 4], "id": ["a", "b", "c", "d", "e"]})
    >>> table = describe(rows, ["up", None, "down", "up", "down"], "kind")
    >>> print(table)
    5 rows, 2 columns and the target kind
    labeled: 4 of 5 rows (down 2, up 2); unlabeled: 1
    number: size (1 gap) -> standardized, gaps filled with the median and marked
    left out: id (identifies the rows)
    >>> table.to_dict()["columns"][0]["gaps"]
    1
    """

    source: str
    rows: int
    columns: tuple[ColumnSummary, ...]
    target: str
    labels: dict[str, int]
    labeled: int
    unlabeled: int
    target_range: tuple[float, float, float] | None = None
    duplicates: int = 0
    contradictions: int = 0
    problems: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as JSON values."""
        return asdict(self)

    @property
    def notices(self) -> list[str]:
        """Everything that should be looked at, a sentence each."""
        found = [f"column {column.name!r}: {problem}" for column in self.columns for problem in column.problems]
        if self.duplicates:
            rows = "row repeats an earlier one" if self.duplicates == 1 else "rows repeat earlier ones"
            found.append(f"{self.duplicates} {rows} in all columns that are used")
        if self.contradictions:
            found.append(f"{self.contradictions} labeled rows equal others in these columns, with another label")
        return [*self.problems, *found]

    def __str__(self) -> str:
        """Return the summary as lines of at most 100 characters."""
        source = f"{self.source}: " if self.source else ""
        lines = [
            f"{source}{_plural(self.rows, 'row')}, {_plural(len(self.columns), 'column')} and the target {self.target}"
        ]
        labels = ", ".join(f"{name} {count}" for name, count in list(self.labels.items())[: 2 * MAX_NAMED])
        if len(self.labels) > 2 * MAX_NAMED:
            labels += f" and {len(self.labels) - 2 * MAX_NAMED} more classes"
        if self.target_range is not None:
            low, high, mean = self.target_range
            labels = f"{low:g} to {high:g}, mean {mean:.4g}"
        lines.append(f"labeled: {self.labeled} of {_plural(self.rows, 'row')} ({labels}); unlabeled: {self.unlabeled}")
        for kind, plural in (
            ("number", "numbers"),
            ("category", "categories"),
            ("boolean", "booleans"),
            ("date", "dates"),
        ):
            for use in dict.fromkeys(column.use for column in self.columns if column.kind == kind):
                chosen = [column for column in self.columns if column.kind == kind and column.use == use]
                names = [_described(column) for column in chosen]
                title = f"{kind}: " if len(chosen) == 1 else f"{len(chosen)} {plural}: "
                lines.append(f"{title}{_listed(names)} -> {use}")
        left_out = [f"{column.name} ({column.use})" for column in self.columns if column.kind in LEFT_OUT]
        if left_out:
            lines.append(f"left out: {', '.join(left_out)}")
        lines += [f"notice: {notice}" for notice in self.notices]
        return "\n".join(textwrap.fill(line, 100, subsequent_indent="  ", break_long_words=False) for line in lines)


@dataclass(frozen=True, eq=False)
class Table:
    """The rows of a table for an estimator: the columns that it learns from as they were read, and the targets.

    Parameters
    ----------
    rows : DataFrame
        The columns that are used.
    targets, classes : ndarray
        As in a `Dataset`.
    kinds : dict of str to str
        What each column holds, for the parameter `columns` of an estimator.
    summary : TableSummary
        What was read.
    """

    rows: pd.DataFrame
    targets: Array
    classes: Array | None
    kinds: dict[str, str]
    summary: TableSummary

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def labeled(self) -> NDArray[np.bool_]:
        """Whether each row is labeled, ``(n,)``."""
        return ~np.isnan(self.targets) if self.classes is None else self.targets >= 0


def read_table(
    path: str | os.PathLike[str],
    target: str | None = None,
    *,
    ignore: Sequence[str] = (),
    categorical: Sequence[str] = (),
    numeric: Sequence[str] = (),
    unlabeled: Collection[str] | None = None,
    task: Task = "classification",
) -> Table | Dataset:
    """Read training rows and their targets from a file.

    Parameters
    ----------
    path : path
        A ``.csv``, ``.tsv`` or ``.txt`` file with a header line, in UTF-8, UTF-16 or Windows-1252, its fields separated
        by commas, semicolons, tabs or bars, with decimal points or commas; a ``.parquet`` file; an Excel file; or a
        ``.npz`` file with the arrays ``x``, rows first, and ``y``.
    target : str, optional
        The column with the labels or values; in a ``.npz`` file, the array (default ``y``). Empty cells mark unlabeled
        rows, and so does -1 in a classification.
    ignore, categorical, numeric : sequence of str, default=()
        Columns to leave out, and columns that hold categories or numbers whatever they look like.
    unlabeled : collection of str, optional
        Other cells of the target that mark unlabeled rows. None raises an error if there are cells such as
        ``unknown``, ``?`` and ``NA``, which may be classes.
    task : {"classification", "regression"}, default="classification"
        Whether the targets are classes or values.

    Returns
    -------
    Table or Dataset
        A Dataset if the file has arrays.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    UnclearLabelsError
        If cells of the target may mark unlabeled rows or be a class.
    ValueError
        If the file cannot be read, columns do not exist, or the targets are not classes or values. The message has
        every problem, with its count.
    ImportError
        If a library that reads the file is not installed.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "flowers.csv")
    ...     _ = path.write_text("length;color;kind\\n5,1;red;iris\\n4,9;blue;\\n6,1;red;rose\\n5,5;;iris\\n")
    ...     flowers = read_table(path, target="kind")
    >>> flowers.kinds, flowers.targets.tolist(), flowers.classes.tolist()
    ({'length': 'number', 'color': 'category'}, [0, -1, 1, 0], ['iris', 'rose'])
    """
    path = Path(path).expanduser()
    _check_suffix(path)
    if path.suffix.lower() in ARRAY_SUFFIXES:
        for name, columns in (("ignore", ignore), ("categorical", categorical), ("numeric", numeric)):
            if columns:
                raise ValueError(f"--{name} applies to columns with names, and the arrays of {path} have none.")
        return _array_data(path, target, task)
    if target is None:
        raise ValueError(f"{path} has no labels yet: name their column with --target.{_columns_of(path)}")
    file = _read_file(path, target, as_text=[*categorical])
    _check_columns(path, file.names, target, {"ignore": ignore, "categorical": categorical, "numeric": numeric})
    position = file.names.index(target)
    texts = _texts(file.frame.iloc[:, position])
    features = file.frame.drop(columns=position)
    features.columns = pd.Index([name for number, name in enumerate(file.names) if number != position])
    features = features.drop(columns=list(ignore))
    labels: Array
    targets: Array
    classes: Array | None
    if task == "regression":
        labels = targets = _target_values(path, texts, file.decimal, unlabeled)
        classes = None
    else:
        _check_unclear(path, target, texts, unlabeled)
        labels = _target_labels(texts, {*UNLABELED, *(unlabeled or ())})
        targets, classes = encode_labels(labels)
    kinds: dict[Any, str] = dict.fromkeys(categorical, "category")
    kinds |= dict.fromkeys(numeric, "number")
    profiles = profile_columns(features, kinds)
    ignored = [Profile(Column(name, "ignored"), 0, 0) for name in dict.fromkeys(ignore)]
    summary = _summary(features, profiles, labels, target, f"{path.name}{file.note}", file.problems, ignored)
    used = [profile.column.used for profile in profiles]
    if not any(used):
        raise ValueError(
            f"{path}: no column is left to learn from: {describe_left_out([each.column for each in profiles])}. Say "
            "what a column holds with --numeric or --categorical."
        )
    kept: dict[str, str] = {each.column.name: each.column.kind for each in profiles if each.column.used}
    return Table(features.loc[:, used], targets, classes, kept, summary)


def describe(table: pd.DataFrame, y: Any, target: str = "y", *, kinds: Mapping[Any, str] | None = None) -> TableSummary:
    """Return what a table holds, as `read_table` tells it of a file.

    Parameters
    ----------
    table : DataFrame
        The rows, without the target.
    y : array-like of shape (n,)
        Labels, None where unlabeled; or values, NaN where unlabeled.
    target : str, default="y"
        Name of the target.
    kinds : dict, optional
        What columns hold, where it should not be found out.
    """
    labels: Array = np.asarray(y, dtype=object) if isinstance(y, list | tuple) else np.asarray(y)
    return _summary(table, profile_columns(table, kinds), labels, target)


def read_chunks(
    path: str | os.PathLike[str],
    names: Sequence[str] = (),
    wanted: Collection[str] = (),
    *,
    rows: int | None = None,
) -> Iterator[pd.DataFrame]:
    """Read a file part by part, for predictions. Cells of a text file stay as they are.

    Parameters
    ----------
    path : path
        As for `read_table`, without arrays. A text file that holds only numbers needs no header line.
    names : sequence of str, default=()
        Names of the columns of a text file without a header line.
    wanted : collection of str, default=()
        Names that tell a header line of numbers from a row.
    rows : int, optional
        Rows of a part. Default: 20,000.

    Yields
    ------
    DataFrame
        All columns, named. Its ``attrs["decimal"]`` is the decimal mark of a text file.
    """
    path = Path(path).expanduser()
    _check_suffix(path)
    rows = rows or CHUNK_ROWS
    parts: Iterator[pd.DataFrame]
    if path.suffix.lower() in TEXT_SUFFIXES:
        parts = _text_parts(path, list(names), wanted, rows)
    elif path.suffix.lower() == ".parquet":
        parts = _parquet_parts(path, rows)
    else:
        frame, _ = _read_excel(path)
        parts = (frame[first : first + rows] for first in range(0, len(frame), rows))
    empty = True
    for part in parts:
        empty = empty and not len(part)
        part.columns = pd.Index([str(name) for name in part.columns])
        yield part
    if empty:
        raise ValueError(f"{path} has no rows.")


def require_columns(path: Path, frame: pd.DataFrame, **options: Sequence[str]) -> None:
    """Raise ValueError if columns that were named by options do not exist."""
    names = list(frame.columns)
    problems = [
        f"no column {name!r} (--{option}).{did_you_mean(name, names)}"
        for option, columns in options.items()
        for name in columns
        if name not in names
    ]
    if problems:
        raise ValueError(f"{path}: {_listed(problems, '; ')} It has the columns {_listed(names)}.")


def feature_table(path: Path, frame: pd.DataFrame, columns: Sequence[Column], *, named: bool = True) -> pd.DataFrame:
    """Return the columns of a model from a part of a file, numbers read with the file's decimal mark."""
    if named:
        _check_model_columns(path, list(frame.columns), [column.name for column in columns])
        table = frame[[column.name for column in columns]].copy()
    else:
        table = frame.copy()
    if frame.attrs.get("decimal") == ",":
        for column in columns:
            if column.kind == "number" and table[column.name].dtype == object:
                texts = table[column.name].str.strip()
                numbers = pd.Series(parse_numbers(texts, ","), table.index, dtype=object)
                table[column.name] = numbers.where(numbers.notna(), texts)
    return table


def number_table(
    path: Path, frame: pd.DataFrame, names: Sequence[str], *, required: bool, first_row: int = 1
) -> pd.DataFrame:
    """Return columns as numbers, for a model that takes nothing else; raise ValueError with every cell that is none.

    `required` is whether the model knows them by name, and `first_row` the number of the first row in the file.
    """
    _check_model_columns(path, list(frame.columns), names)
    values = {name: _column_numbers(frame[name], frame.attrs.get("decimal", ".")) for name in names}
    problems = []
    for name, numbers in values.items():
        wrong = np.isnan(numbers)
        if wrong.any():
            row = int(wrong.argmax())
            cell = frame[name].iat[row]
            cell = "" if pd.isna(cell) else str(cell).strip()[:40]
            count = _plural(int(wrong.sum()), "cell")
            problems.append(f"column {name!r}: {count} (row {first_row + row}: {cell!r})")
    if problems:
        wrong_names = shlex.join([name for name, numbers in values.items() if np.isnan(numbers).any()])
        advice = "" if required else f" Or leave out columns that the model does not have: --ignore {wrong_names}."
        raise ValueError(
            f"{path} has cells that are not numbers, and the model takes numbers without gaps: "
            f"{_listed(problems, '; ')}. Fill them in, or train with preprocess='columns', which does.{advice}"
        )
    return pd.DataFrame(values, frame.index, dtype=np.float32)


def labels_of(cells: pd.Series, classes: Collection[Any]) -> Array:
    """Return labels, None where unlabeled. A label among the classes of a model is one, even ``NA`` or ``unknown``."""
    texts = _texts(cells)
    known = {str(name) for name in classes}
    unlabeled = {text for text in texts.unique() if text in UNLABELED | GAPS or text.lower() in UNCLEAR}
    return _target_labels(texts, unlabeled - known)


def values_of(path: Path, cells: pd.Series, decimal: str = ".") -> NDArray[np.float64]:
    """Return the values of a regression's target, NaN where it has none."""
    return _target_values(path, _texts(cells), decimal, None)


# Files


class _File(NamedTuple):
    """The content of a file: columns by position, their names, and how it was read."""

    frame: pd.DataFrame
    names: list[str]
    note: str = ""
    decimal: str = "."
    problems: tuple[str, ...] = ()


class _TextFormat(NamedTuple):
    """How a text file is written, and its first lines as text."""

    encoding: str
    separator: str
    decimal: str
    names: list[str]
    head: pd.DataFrame

    @property
    def width(self) -> int:
        return int(self.head.shape[1])

    @property
    def note(self) -> str:
        encoding = {"cp1252": "Windows-1252", "utf-16": "UTF-16"}.get(self.encoding)
        separator = {";": "semicolons", "\t": "tabs", "|": "bars"}.get(self.separator)
        found = [f"{encoding} text"] if encoding else []
        found += [f"fields separated by {separator}"] if separator else []
        found += ["decimal commas"] if self.decimal == "," else []
        return f" ({', '.join(found)})" if found else ""


def _check_suffix(path: Path) -> None:
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(
            f"{path} has the suffix {path.suffix!r}; expected {', '.join(SUFFIXES)}, or a folder of images."
        )
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist. Give the path of a table, or of a folder of images.")


def _read_file(path: Path, target: str, as_text: Sequence[str]) -> _File:
    """Read a whole file."""
    suffix = path.suffix.lower()
    if suffix in TEXT_SUFFIXES:
        file = _read_text(path, target, as_text)
    elif suffix == ".parquet":
        with _reading(path, "a Parquet file"):
            frame = pd.read_parquet(path)
        file = _File(frame, [str(name) for name in frame.columns])
    else:
        frame, note = _read_excel(path)
        file = _File(frame, [str(name) for name in frame.columns], note)
    if file.frame.empty:
        raise ValueError(f"{path} has no rows.")
    file.frame.columns = pd.RangeIndex(len(file.names))
    return file


def _read_excel(path: Path) -> tuple[pd.DataFrame, str]:
    """Return the first sheet, and its name if there are others."""
    try:
        with _reading(path, "an Excel file"), pd.ExcelFile(path) as book:
            sheets = [str(name) for name in book.sheet_names]
            frame = pd.read_excel(book, sheet_name=sheets[0], keep_default_na=False, na_values=sorted(GAPS))
    except ImportError as error:
        raise ImportError(
            f"Reading {path.name} needs another package: pip install 'tikas[excel]'. ({error})"
        ) from error
    return frame, f" (sheet {sheets[0]!r}, the first of {len(sheets)})" if len(sheets) > 1 else ""


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


@contextmanager
def _reading_text(path: Path, text: _TextFormat | None = None) -> Iterator[None]:
    """Raise ValueError with all lines of the wrong length if a text file is not a table."""
    try:
        with warnings.catch_warnings():
            # Rows longer than the header are an error.
            warnings.simplefilter("error", pd.errors.ParserWarning)
            yield
    except (UnicodeError, csv.Error, pd.errors.ParserError, pd.errors.ParserWarning, pd.errors.EmptyDataError) as error:
        lines = "" if text is None else _wrong_lines(path, text)
        raise ValueError(
            f"{path} cannot be read as a table ({lines or textwrap.shorten(str(error), 200)}). Every line needs as "
            "many fields as the first; put quotes around fields that contain the separator."
        ) from error


def _wrong_lines(path: Path, text: _TextFormat) -> str:
    """Say how many lines have more fields than the first one, and which."""
    try:
        with path.open(encoding=text.encoding, newline="") as file:
            reader = csv.reader(file, delimiter=text.separator, skipinitialspace=True)
            lines = ((reader.line_num, len(fields)) for fields in reader)
            wrong = [f"line {number}: {width} fields" for number, width in lines if width > text.width]
    except (UnicodeError, csv.Error):
        return ""
    return f"expected {text.width} fields; {_listed(wrong)}; {_plural(len(wrong), 'line')} in all" if wrong else ""


def _short_lines(path: Path, text: _TextFormat) -> int:
    """Return how many lines without quotes have fewer fields than the first one."""
    separator, n_separators = text.separator.encode(), text.width - 1
    if text.encoding == "utf-16":
        return 0
    with path.open("rb") as file:
        return sum(line.count(separator) < n_separators and b'"' not in line and not line.isspace() for line in file)


def _sniff(path: Path, wanted: Collection[str]) -> _TextFormat:
    """Find out how a text file is written."""
    encoding = _encoding(path)
    with path.open(encoding=encoding, newline="") as file:
        separator = _separator(file.read(SNIFFED_BYTES), path.suffix.lower())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pd.errors.ParserWarning)  # `_reading_text` tells of lines of a wrong length
        head = pd.read_csv(
            path,
            sep=separator,
            encoding=encoding,
            header=None,
            nrows=1 + SNIFFED_ROWS,
            dtype=object,
            index_col=False,
            keep_default_na=False,
            skipinitialspace=True,
            on_bad_lines="skip",
        )
    head = head.apply(lambda cells: cells.str.strip())
    first, names = head.iloc[0].tolist(), []
    if _is_header(first, wanted):
        names = [cell or f"{UNNAMED}{column}" for column, cell in enumerate(first)]
        head = head[1:]
    cells = pd.Series(head.to_numpy().ravel(), dtype=object).drop_duplicates()
    return _TextFormat(encoding, separator, decimal_mark(cells.fillna("").astype(object)), names, head)


def _encoding(path: Path) -> str:
    """Return UTF-8 if all of the file is, UTF-16 if its first bytes say so, and else Windows-1252."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    encoding = "utf-8-sig"
    with path.open("rb") as file:
        while block := file.read(DECODED_BYTES):
            if block.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) and file.tell() == len(block):
                return "utf-16"
            if b"\x00" in block:
                raise ValueError(
                    f"{path} is not text: it contains bytes that are zero. Give a CSV file, or change its suffix."
                )
            if encoding == "utf-8-sig":
                try:
                    decoder.decode(block)
                except UnicodeDecodeError:
                    encoding = "cp1252"
    return encoding


def _separator(text: str, suffix: str) -> str:
    """Return what separates the fields: what gives all first lines the same number of fields, and the most of them."""
    if suffix == ".tsv":
        return "\t"
    found = {}
    for separator in SEPARATORS:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, skipinitialspace=True)
        try:
            widths = [len(fields) for fields in reader if any(field.strip() for field in fields)]
        except csv.Error:  # a field that is too long
            widths = []
        widths = widths[:-1] if len(widths) > 2 else widths  # the last line may be cut
        first = widths[0] if widths else 1
        found[separator] = (len(set(widths)) == 1 and first > 1, first)
    return max(SEPARATORS, key=found.__getitem__)


def _is_header(cells: Sequence[str], wanted: Collection[str]) -> bool:
    """Return whether the first line names the columns: a cell is not a number, or all wanted names are there."""
    given = pd.Series([cell for cell in cells if cell not in GAPS], dtype=object)
    plain = given[~given.str.lower().isin(["true", "false"])]
    if np.isnan(parse_numbers(plain, decimal_mark(plain))).any():
        return True
    return bool(wanted) and set(wanted) <= set(cells) and len(set(cells)) == len(cells)


def _read_text(path: Path, target: str, as_text: Sequence[str]) -> _File:
    """Read a text file. Codes with leading zeros and the target stay text."""
    with _reading_text(path):
        text = _sniff(path, [target, *as_text])
    if not text.names:
        raise ValueError(f"{path} has no header line, so it has no column {target!r}. Add a line of names.")
    coded = [bool(text.head[number].str.fullmatch(LEADING_ZERO).any()) for number in range(text.width)]
    kept = [number for number, name in enumerate(text.names) if name in (target, *as_text) or coded[number]]
    with _reading_text(path, text):
        frame = pd.read_csv(
            path,
            sep=text.separator,
            encoding=text.encoding,
            decimal=text.decimal,
            header=0,
            names=list(range(text.width)),
            index_col=False,
            dtype=dict.fromkeys(kept, object),
            keep_default_na=False,
            na_values={number: sorted(GAPS) for number, name in enumerate(text.names) if name != target},
            skipinitialspace=True,
            low_memory=False,
        )
    short = _short_lines(path, text)
    problems = (
        (f"{_plural(short, 'line')} with fewer fields than the first; what they lack is read as gaps",) if short else ()
    )
    return _File(frame, text.names, text.note, text.decimal, problems)


def _parquet_parts(path: Path, rows: int) -> Iterator[pd.DataFrame]:
    try:
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise ImportError(f"Reading {path.name} needs pyarrow: pip install 'tikas[parquet]'.") from error
    with _reading(path, "a Parquet file"):
        file = ParquetFile(path)
    with file:
        batches = (batch.to_pandas() for batch in file.iter_batches(rows))
        yield from _each(batches, lambda: _reading(path, "a Parquet file"))


def _each(parts: Iterator[pd.DataFrame], reading: Callable[[], AbstractContextManager[None]]) -> Iterator[pd.DataFrame]:
    """Yield the parts, each read in the context of `reading`, which is left while a part is used."""
    while True:
        with reading():
            part = next(parts, None)
        if part is None:
            return
        yield part


def _text_parts(path: Path, columns: list[str], wanted: Collection[str], rows: int) -> Iterator[pd.DataFrame]:
    with _reading_text(path):
        text = _sniff(path, wanted)
    names = text.names
    if not names:
        names = [str(number + 1) for number in range(text.width)]
        if columns:
            if len(columns) != text.width:
                raise ValueError(
                    f"{path} has no header line, and {text.width} columns; expected {len(columns)}: "
                    f"{_listed(columns)}. Add a line of names."
                )
            names = columns
            message = f"{path} has no header line; its columns are taken to be {_listed(columns)}."
            warnings.warn(message, UserWarning, stacklevel=5)
    with _reading_text(path, text):
        reader = pd.read_csv(
            path,
            sep=text.separator,
            encoding=text.encoding,
            header=0 if text.names else None,
            names=list(range(text.width)),
            index_col=False,
            dtype=object,
            keep_default_na=False,
            skipinitialspace=True,
            chunksize=rows,
        )
    with reader:
        for cells in _each(reader, lambda: _reading_text(path, text)):
            frame = cells.fillna("")  # what short lines lack
            frame.columns = pd.Index(names)
            frame.attrs["decimal"] = text.decimal
            yield frame


def _columns_of(path: Path) -> str:
    """Return a sentence with the columns of a file, if it can be read."""
    try:
        if path.suffix.lower() in TEXT_SUFFIXES:
            names = _sniff(path, ()).names
        else:
            names = list(next(read_chunks(path, rows=1)).columns)
    except (ValueError, OSError, ImportError, pd.errors.ParserError, pd.errors.EmptyDataError):
        return ""
    return f" It has the columns {_listed(names)}." if names else ""


def _check_columns(path: Path, names: list[str], target: str, options: Mapping[str, Sequence[str]]) -> None:
    """Raise ValueError with all names that do not exist, are not unique or contradict each other."""
    given = {"target": [target], **options}
    problems = []
    for option, columns in given.items():
        for name in dict.fromkeys(columns):
            if name not in names:
                problems.append(f"no column {name!r} (--{option}).{did_you_mean(name, names)}")
            others = [other for other in given if other > option and name in given[other]]
            problems += [f"{name!r} is given as --{option} and --{other}" for other in others]
    counts = Counter(names)
    problems += [
        f"{count} columns are named {name!r}"
        for name, count in counts.items()
        if count > 1 and name not in options["ignore"]
    ]
    if problems:
        raise ValueError(f"{path}: {_listed(problems, '; ')} It has the columns {_listed(names)}.")
    if not set(names) - {target, *options["ignore"]}:
        raise ValueError(f"{path} has no column to learn from, only {_listed(names)}.")


def _check_model_columns(path: Path, names: list[str], wanted: Sequence[str]) -> None:
    missing = [name for name in wanted if name not in names]
    if missing:
        described = [
            f"{name!r}{did_you_mean(name, set(names) - set(wanted)).replace(' Did', ': did')}" for name in missing
        ]
        raise ValueError(
            f"{path} lacks {_plural(len(missing), 'column')} that the model was trained with: {_listed(described)}. It "
            f"has {_listed(names)}."
        )
    doubled = [name for name in wanted if names.count(name) > 1]
    if doubled:
        raise ValueError(f"{path} has more than one column {_listed(doubled)}. Give each a unique name.")


def _column_numbers(cells: pd.Series, decimal: str) -> NDArray[np.float64]:
    """Return a column as numbers, true and false as 1 and 0, NaN where a cell is none of these."""
    if pd.api.types.is_numeric_dtype(cells) or pd.api.types.is_bool_dtype(cells):
        return np.asarray(cells.to_numpy(np.float64, na_value=np.nan))
    texts = _texts(cells)
    numbers = parse_numbers(texts, decimal)
    lower = texts.str.lower().to_numpy()
    return np.where(lower == "true", 1.0, np.where(lower == "false", 0.0, numbers))


def _texts(cells: pd.Series) -> pd.Series:
    """Return cells as text without spaces around it, the empty text for a gap."""
    cells = cells.astype(object)
    return cells.where(cells.notna(), "").map(str).str.strip().astype(object)


# Targets


def _check_unclear(path: Path, target: str, texts: pd.Series, unlabeled: Collection[str] | None) -> None:
    """Raise an error if cells may mark unlabeled rows and nobody has said so, or if none is as somebody has said."""
    counts = texts.value_counts()
    if unlabeled is None:
        unclear = {text: int(count) for text, count in counts.items() if text.lower() in UNCLEAR}
        if set(counts.index) - UNLABELED - set(unclear) in ({"1"}, {"1.0"}, {"+1"}):
            unclear |= {text: int(counts[text]) for text in ("-1", "-1.0") if text in counts}
        if unclear:
            raise UnclearLabelsError(path, target, unclear)
        return
    absent = [value for value in unlabeled if value and value not in counts]
    if absent:
        raise ValueError(
            f"{path}: no row has the target {target}={absent[0]!r} (--unlabeled)."
            f"{did_you_mean(absent[0], counts.index)}"
        )


def _target_labels(texts: pd.Series, unlabeled: Collection[str]) -> Array:
    """Return labels, None where unlabeled: all integers, or all floats (one with a fraction), or else strings."""
    labeled = ~texts.isin(set(unlabeled)).to_numpy()
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


def _target_values(
    path: Path, texts: pd.Series, decimal: str, unlabeled: Collection[str] | None
) -> NDArray[np.float64]:
    """Return the values of a regression, NaN where they are missing."""
    values = parse_numbers(texts, decimal)
    empty = texts.isin({*GAPS, *(unlabeled or ())}) | texts.str.lower().isin(UNCLEAR)
    values[empty.to_numpy()] = np.nan
    wrong = np.isnan(values) & ~empty.to_numpy()
    if wrong.any():
        rows = np.flatnonzero(wrong)
        examples = [f"{texts.iat[row]!r} in row {row + 1}" for row in rows[:MAX_NAMED].tolist()]
        raise ValueError(
            f"{path}: {_plural(len(rows), 'cell')} of the target are not numbers ({', '.join(examples)}; rows are "
            "counted from 1 below the header). Leave a cell empty if there is no value, or learn classes with --task "
            "classification."
        )
    return values


# Summary


def _summary(
    table: pd.DataFrame,
    profiles: Sequence[Profile],
    labels: Array,
    target: str,
    source: str = "",
    problems: Sequence[str] = (),
    ignored: Sequence[Profile] = (),
) -> TableSummary:
    """Return the summary of the columns and labels of a table."""
    is_regression = labels.dtype.kind == "f"
    labeled = ~np.isnan(labels) if is_regression else ~is_unlabeled(labels)
    given = labels[labeled]
    counts = (
        {} if is_regression else {str(name): count for name, count in sorted(Counter(given.tolist()).items(), key=str)}
    )
    used = [number for number, profile in enumerate(profiles) if profile.column.used]
    leaks = {number: _leak(table.iloc[:, number], profiles[number], labels, labeled) for number in used}
    columns = [
        ColumnSummary(
            profile.column.name,
            profile.column.kind,
            profile.gaps,
            profile.distinct,
            _use(profile),
            (*leaks.get(number, ()), *profile.problems),
        )
        for number, profile in enumerate([*profiles, *ignored])
    ]
    duplicates, contradictions = _repeated(table.iloc[:, used], labels, labeled)
    return TableSummary(
        source=source,
        rows=len(table),
        columns=tuple(columns),
        target=target,
        labels=counts,
        labeled=int(labeled.sum()),
        unlabeled=int((~labeled).sum()),
        target_range=(float(given.min()), float(given.max()), float(given.mean()))
        if is_regression and len(given)
        else None,
        duplicates=duplicates,
        contradictions=0 if is_regression else contradictions,
        problems=(*problems, *_class_problems(counts)),
    )


def _use(profile: Profile) -> str:
    """Say what becomes of a column."""
    kind = profile.column.kind
    if kind in LEFT_OUT:
        return LEFT_OUT[kind]
    if kind == "number":
        return "standardized, gaps filled with the median and marked" if profile.gaps else "standardized"
    if kind == "date":
        return "time, month, weekday and hour as far as they vary, standardized"
    return "one column for each value, rare ones together"


def _described(column: ColumnSummary) -> str:
    """Return the name of a column with the number of its values, if they are categories, and of its gaps."""
    found = [_plural(column.distinct, "value")] if column.kind == "category" else []
    found += [_plural(column.gaps, "gap")] if column.gaps else []
    return f"{column.name} ({', '.join(found)})" if found else column.name


def _class_problems(counts: Mapping[str, int]) -> list[str]:
    """Tell of classes that differ only in case, and of classes with a single label."""
    groups: dict[str, list[str]] = {}
    for name in counts:
        groups.setdefault(name.lower(), []).append(name)
    problems = [
        f"the classes {' and '.join(map(repr, group))} differ only in case"
        for group in groups.values()
        if len(group) > 1
    ]
    single = [name for name, count in counts.items() if count == 1]
    if single:
        problems.append(f"{_plural(len(single), 'class', 'classes')} with a single label: {_listed(single)}")
    return problems


def _leak(cells: pd.Series, profile: Profile, labels: Array, labeled: NDArray[np.bool_]) -> tuple[str, ...]:
    """Tell if a column equals or determines the target, or is filled in only where there is a label."""
    known = labels[labeled]
    if len(known) < MIN_LEAK_ROWS:
        return ()
    found = []
    if profile.gaps and np.array_equal(cells.isna().to_numpy(), ~labeled):
        found.append("is filled in exactly where there is a label: it may follow from it")
    given = cells.to_numpy()[labeled]
    if known.dtype.kind == "f":
        comparable = given.dtype.kind in "iuf" and np.isfinite(given).all() and np.ptp(given) > 0 and np.ptp(known) > 0
        if comparable and abs(np.corrcoef(given, known)[0, 1]) > LEAK_CORRELATION:
            found.append("is the target, up to a factor: leave it out (--ignore) if it is not known beforehand")
        return tuple(found)
    if profile.distinct > MAX_LEAK_VALUES:
        return tuple(found)
    codes, distinct = pd.factorize(given, use_na_sentinel=False)
    if not 2 <= len(distinct) <= len(known) / 4:
        return tuple(found)
    pairs = {*zip(codes.tolist(), known.tolist(), strict=True)}
    if len(pairs) == len(distinct):
        what = "equals" if len(distinct) == len({label for _, label in pairs}) else "determines"
        found.append(f"{what} the target in all labeled rows: leave it out (--ignore) if it is not known beforehand")
    return tuple(found)


def _repeated(table: pd.DataFrame, labels: Array, labeled: NDArray[np.bool_]) -> tuple[int, int]:
    """Return how many rows repeat an earlier one, and how many labeled ones equal others with another label."""
    if not table.shape[1]:
        return 0, 0
    hashes = pd.util.hash_pandas_object(table, index=False)
    repeated = int(hashes.duplicated().sum())
    if not repeated:
        return 0, 0
    known = pd.DataFrame({"row": hashes.to_numpy()[labeled], "label": [str(label) for label in labels[labeled]]})
    different = known.groupby("row")["label"].transform("nunique") > 1
    return repeated, int(different.sum())


def _plural(count: int, noun: str, plural: str = "") -> str:
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def _listed(names: Sequence[str], separator: str = ", ") -> str:
    more = len(names) - MAX_NAMED
    return separator.join(map(str, names[:MAX_NAMED])) + (f"{separator}… ({more} more)" if more > 0 else "")


# Arrays


def _array_data(path: Path, target: str | None, task: Task) -> Dataset:
    """Return the arrays of a file as a data set."""
    x, y = read_arrays(path, target)
    if y is None:
        raise ValueError(f"{path} has no labels. Save them as y in a .npz file.")
    rows = x.astype(np.float32)
    if task == "regression":
        return Dataset(rows, _target_values(path, y, ".", None))
    codes, classes = encode_labels(_target_labels(y, UNLABELED | GAPS))
    return Dataset(rows, codes, classes=classes)


def read_arrays(path: Path, target: str | None = None) -> tuple[Array, pd.Series | None]:
    """Return the rows of a ``.npy`` or ``.npz`` file, and the cells of the target as text if it has one."""
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist. Give the path of a table, or of a folder of images.")
    with _reading(path, "plain NumPy arrays"), path.open("rb") as file:
        loaded = np.load(file)
        arrays = {"x": loaded} if isinstance(loaded, np.ndarray) else dict(loaded)
    if "x" not in arrays or (target and target not in arrays):
        raise ValueError(f"{path} contains the arrays {', '.join(arrays)}; expected x and {target or 'y'}.")
    x, y = arrays["x"], arrays.get(target or "y")
    if not len(x):
        raise ValueError(f"{path} has no rows.")
    if y is None:
        return x, None
    if y.shape != x.shape[:1]:
        raise ValueError(f"{path}: the labels have shape {y.shape}, but x has shape {x.shape}. Save one label per row.")
    return x, pd.Series(y.astype(str), dtype=object).str.strip()
