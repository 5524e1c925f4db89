"""Columns of a table as numbers: what each column holds, and the encoding that is fitted, saved and applied to rows.

Numbers are imputed and standardized, categories and booleans become a column for each value, dates become parts. What
identifies the rows, constants and free text are left out. No target is looked at, so unlabeled rows count like others.
"""

from __future__ import annotations

import datetime as dt
import re
import warnings
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from decimal import Decimal
from math import isfinite
from typing import Any, Literal, NamedTuple, Self, get_args

import narwhals as nw
import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.compose import ColumnTransformer
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

Array = NDArray[Any]
Floats = NDArray[np.float64]
Kind = Literal["number", "boolean", "category", "date", "id", "constant", "text", "empty", "ignored"]
Given = Literal["number", "boolean", "category", "date", "ignored"]
"""Kinds that a user may give."""

USED = ("number", "boolean", "category", "date")
GAPS = frozenset(["", "?", "NA", "N/A", "n/a", "#N/A", "<NA>", "nan", "NaN", "NAN", "NaT", "NULL", "null", "None"])
"""Texts of cells that hold nothing."""
MAX_ONE_HOT = 40
"""A category with more frequent values also becomes a number, the logarithm of how many rows have the value."""
MAX_WRONG = 0.05
"""Largest share of cells that are no numbers or dates in a column that is read as numbers or dates."""
MAX_CODES = 20
"""A column of numbers and other texts is a category if it has at most so many different cells."""
MIN_DISTINCT = 0.9
"""Text is an identifier, or free text, if more than this share of its cells are different."""
MIN_NUMBERED = 10
"""In a table with fewer rows, a column of numbers may look like row numbers by chance."""
TEXT_WORDS, LONG_TEXT_WORDS = 3, 5
"""Words a cell, on average, from which different cells, and repeated ones, are free text."""
MAX_TRIED = 1000
"""Different texts of a column that are tried as numbers and dates, before all are read."""
MAX_NUMBER = float(np.finfo(np.float32).max)
MAX_EXAMPLES, MAX_LISTED = 3, 10
MAX_SORTED = 10_000
"""Different cells of a column that are sorted; more are left in the order in which they occur."""
UNNAMED = "Unnamed: "
"""Beginning of pandas' names for columns without a name."""
ID_NAME = re.compile(r"(^|[\W_])(?i:id|uuid|guid|key|index|nr|no|number)$|[a-z](Id|ID|No|Nr)$")
LEADING_ZERO = r"[-+]?0\d+"
"""A number written like this is a code, such as a postal code."""

_DAYS: tuple[str, ...] = (
    "%d.%m.%Y",
    "%d/%m/%Y",
    "%m/%d/%Y",
    "%d-%m-%Y",
    "%m-%d-%Y",
    "%Y/%m/%d",
    "%Y.%m.%d",
    "%d.%m.%y",
    "%d/%m/%y",
)
_DAYS += ("%m/%d/%y", "%d %b %Y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y", "%d-%b-%Y", "%d-%b-%y")
_TIMES = ("", " %H:%M", " %H:%M:%S", " %I:%M %p")
DATE_FORMATS = ("ISO8601", *(f"{day}{time}" for time in _TIMES for day in _DAYS))
"""Formats of dates, as `pandas.to_datetime` takes them, in the order in which they are tried."""
SWAPPED = {day: day.replace("%d", "%_").replace("%m", "%d").replace("%_", "%m") for day in DATE_FORMATS}
"""The same formats with day and month exchanged."""
DATE_PARTS = ("time", "month sin", "month cos", "weekday sin", "weekday cos", "hour sin", "hour cos")
FREQUENCY = "frequency"

THOUSANDS, EUROPEAN = r"[-+]?\d{1,3}(,\d{3})+(\.\d+)?", r"[-+]?\d{1,3}([. ']\d{3})+(,\d+)?"
DECIMAL_COMMA = r"[-+]?(\d*,(\d{1,2}|\d{4,})|0,\d+|\d{4,},\d+|\d{1,3}([. ']\d{3})+,\d+)"
"""A number that can only be read with a decimal comma, unlike 1,234."""


@dataclass(frozen=True)
class Column:
    """A column, and the fitted values of its encoding.

    Parameters
    ----------
    name : str
        Its name, or its position.
    kind : {"number", "boolean", "category", "date", "id", "constant", "text", "empty", "ignored"}
        What it holds. The last five are left out.
    decimal : {".", ","}
        Decimal mark of numbers that are written as text.
    date_format : str
        Format of dates that are written as text.
    categories : tuple of str
        The different cells of a category, the empty text for a gap.
    rare : tuple of int
        Positions of the categories that share one column.
    counts : tuple of int
        Rows of each category, if their logarithm is a number of the encoding.
    parts : tuple of str
        Names of the numbers that the column becomes; the empty text for a number itself.
    medians, means, deviations : tuple of float
        Of each of these numbers: what replaces a gap, and how it is standardized.
    gaps : bool
        Whether the encoding has a column that says where a number is missing.
    """

    name: str
    kind: Kind
    decimal: str = "."
    date_format: str = DATE_FORMATS[0]
    categories: tuple[str, ...] = ()
    rare: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()
    parts: tuple[str, ...] = ()
    medians: tuple[float, ...] = ()
    means: tuple[float, ...] = ()
    deviations: tuple[float, ...] = ()
    gaps: bool = False

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Restore from ``asdict``; raise ValueError if the values are not those of a fitted column."""
        lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list | tuple)}
        column = cls(**{**values, **lists})
        all_lists = {field.name for field in fields(cls) if field.default == ()}
        numbers = (*column.medians, *column.means, *column.deviations)
        codes = range(len(column.categories))
        allowed = {"number": ("",), "date": DATE_PARTS, "boolean": (FREQUENCY,), "category": (FREQUENCY,)}
        valid = (
            lists.keys() == all_lists
            and isinstance(column.name, str)
            and column.kind in get_args(Kind)
            and column.decimal in (".", ",")
            and column.date_format in DATE_FORMATS
            and type(column.gaps) is bool
            and all(isinstance(each, str) for each in column.categories)
            and len(set(column.categories)) == len(codes)
            and (len(codes) > 0) == (column.kind in ("category", "boolean"))
            and all(type(each) is int and each in codes for each in column.rare)
            and len(set(column.rare)) == len(column.rare)
            and len(column.frequent) <= MAX_ONE_HOT
            and all(type(each) is int and 0 < each < 2**53 for each in column.counts)
            and len(column.counts) == (len(codes) if column.parts and codes else 0)
            and len(set(column.parts)) == len(column.parts)
            and all(part in allowed.get(column.kind, ()) for part in column.parts)
            and bool(column.parts or column.frequent) == column.used
            and column.gaps <= (column.kind in ("number", "date"))
            and {len(column.medians), len(column.means), len(column.deviations)} == {len(column.parts)}
            and all(type(each) is float and isfinite(each) for each in numbers)
            and all(each > 0 for each in column.deviations)
        )
        if not valid:
            raise ValueError(f"the values of the column {str(values.get('name'))[:50]!r} do not fit each other")
        return column

    @property
    def used(self) -> bool:
        """Whether the column is part of the encoding."""
        return self.kind in USED

    @property
    def frequent(self) -> list[int]:
        """Positions of the categories that have a column of their own."""
        rare = set(self.rare)
        return [code for code in range(len(self.categories)) if code not in rare]

    @property
    def outputs(self) -> list[str]:
        """Names of the values that the column becomes: its numbers, where it has gaps, its categories."""
        names = [f"{self.name}: {part}" if part else self.name for part in self.parts]
        names += [f"{self.name}: missing"] * self.gaps
        names += [f"{self.name}={self.categories[code] or 'missing'}" for code in self.frequent]
        return names + [f"{self.name}=rare"] * bool(self.rare and self.frequent)


class Profile(NamedTuple):
    """What a column of a table holds, and what should be told about it."""

    column: Column
    gaps: int
    distinct: int
    problems: tuple[str, ...] = ()


class ColumnEncoder:
    """Turns the rows of a table into numbers, column by column.

    Parameters
    ----------
    columns : sequence of Column
        All columns of the table, in their order.

    Examples
    --------
    >>> table = pd.DataFrame({"size": [1.0, None, 3.0, 4.0], "kind": ["cat", "dog", "cat", "dog"], "unit": "cm"})
    >>> encoder = ColumnEncoder.fit(table)
    >>> [(column.name, column.kind) for column in encoder.columns]
    [('size', 'number'), ('kind', 'category'), ('unit', 'constant')]
    >>> encoder.names
    ['size', 'size: missing', 'kind=cat', 'kind=dog']
    >>> encoder(table)[:, 1:].tolist()
    [[0.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """

    def __init__(self, columns: Sequence[Column]) -> None:
        self.columns = tuple(columns)
        self._transformer = _rebuild(self.columns)

    @classmethod
    def fit(cls, table: pd.DataFrame, kinds: Mapping[Hashable, str] | None = None) -> Self:
        """Find out what the columns hold, unless `kinds` says it, and fit the encoding.

        Raises
        ------
        ValueError
            If no column is left.
        """
        return cls.fit_columns(table, [profile.column for profile in profile_columns(table, kinds)])

    @classmethod
    def fit_columns(cls, table: pd.DataFrame, columns: Sequence[Column]) -> Self:
        """Fit the encoding of columns whose kinds are known."""
        if not any(column.used for column in columns):
            raise ValueError(
                f"No column is left to learn from: {describe_left_out(columns)}. Add columns of numbers, categories or "
                "dates, or say what a column holds (--numeric or --categorical, in Python the parameter columns)."
            )
        # One row in tiny tables, two in small ones, five from 250 rows on, a thousandth of large ones.
        frequency = max(1 + (len(table) >= 20), min(5, len(table) // 50), len(table) // 1000)
        prepared = [_prepare(column, table.iloc[:, position], frequency) for position, column in enumerate(columns)]
        values, _ = _values(table, prepared)
        layout = _Layout.of(prepared)
        transformer = _transformer(layout, frequency, MAX_ONE_HOT).fit(values)
        return cls(_fitted(prepared, layout, transformer))

    @property
    def names(self) -> list[str]:
        """Names of the values of an encoded row."""
        layout, used = _Layout.of(self.columns), [column for column in self.columns if column.used]
        numbers = [name for column in used for name in column.outputs[: len(column.parts)]]
        gaps = [self.columns[position].name + ": missing" for position in layout.gap_columns]
        return numbers + gaps + [name for column in used for name in column.outputs[len(column.parts) + column.gaps :]]

    def __call__(self, table: pd.DataFrame) -> NDArray[np.float32]:
        """Encode rows. Unseen categories count as rare ones, and cells that are no numbers or dates as gaps.

        Warns
        -----
        UserWarning
            If columns have such cells.
        """
        values, problems = _values(table, self.columns)
        if problems:
            warnings.warn(f"Cells that count as gaps: {'; '.join(problems)}.", UserWarning, stacklevel=2)
        if not len(values):
            return np.empty((0, len(self.names)), np.float32)
        return np.ascontiguousarray(self._transformer.transform(values), np.float32)

    def to_json(self) -> list[dict[str, Any]]:
        """Return the fitted values."""
        return [asdict(column) for column in self.columns]

    @classmethod
    def from_json(cls, columns: Sequence[Mapping[str, Any]]) -> Self:
        """Restore from `to_json`; raise an error if something does not fit."""
        encoder = cls([Column.from_json(values) for values in columns])
        if not any(column.used for column in encoder.columns):
            raise ValueError("no column is used")
        return encoder


LEFT_OUT = {
    "id": "identifies the rows",
    "constant": "the same in all rows",
    "text": "free text",
    "empty": "empty",
    "ignored": "as you asked",
}
"""Why a column of each kind is left out."""


def describe_left_out(columns: Sequence[Column]) -> str:
    """Return the columns that are left out, with the reasons; not those that a user has left out."""
    found = [
        f"{column.name} ({LEFT_OUT[column.kind]})"
        for column in columns
        if column.kind in LEFT_OUT and column.kind != "ignored"
    ]
    return ", ".join(found[:MAX_LISTED]) + (f" and {len(found) - MAX_LISTED} more" if len(found) > MAX_LISTED else "")


# What a column holds


def profile_columns(table: pd.DataFrame, kinds: Mapping[Hashable, str] | None = None) -> list[Profile]:
    """Find out what each column holds; `kinds` has what is known, by name.

    Raises
    ------
    ValueError
        If `kinds` has a column that does not exist, or a kind that does not exist.
    """
    kinds = kinds or {}
    for name, kind in kinds.items():
        if name not in table.columns:
            raise ValueError(
                f"columns={dict(kinds)!r}: there is no column {name!r}.{did_you_mean(name, table.columns)}"
            )
        if kind not in get_args(Given):
            raise ValueError(f"columns={dict(kinds)!r}: expected one of {', '.join(get_args(Given))} for {name!r}.")
    return [_profile(table.iloc[:, position], name, kinds.get(name)) for position, name in enumerate(table.columns)]


def did_you_mean(name: object, names: Any) -> str:
    """Return a sentence with the names that are nearest to a misspelled one, whatever their case."""
    from difflib import get_close_matches

    by_lower = {str(each).lower().strip(): str(each) for each in names}
    near = [by_lower[each] for each in get_close_matches(str(name).lower().strip(), by_lower, n=3, cutoff=0.6)]
    return f" Did you mean {' or '.join(map(repr, near))}?" if near else ""


def _profile(cells: pd.Series, name: Hashable, given: str | None) -> Profile:
    gaps = int(cells.isna().sum())
    label = str(name)
    if given == "ignored":
        return Profile(Column(label, "ignored"), gaps, cells.nunique())
    if pd.api.types.is_datetime64_any_dtype(cells) and given in (None, "date"):
        kind: Kind = "date" if cells.nunique() > 1 else "constant" if gaps < len(cells) else "empty"
        return Profile(Column(label, kind), gaps, cells.nunique())
    is_number = pd.api.types.is_numeric_dtype(cells) and not pd.api.types.is_bool_dtype(cells)
    if is_number and given in (None, "number"):
        return _profile_numbers(cells, name, given)
    texts = _Texts.of(cells)
    if pd.api.types.is_bool_dtype(cells) and given is None:
        given = "boolean"
    if isinstance(cells.dtype, pd.CategoricalDtype) and given is None:
        given = "category"
    return _profile_texts(texts, name, given)


def _profile_numbers(cells: pd.Series, name: Hashable, given: str | None) -> Profile:
    values = cells.to_numpy(np.float64, na_value=np.nan)
    infinite = int((np.abs(values) > MAX_NUMBER).sum())
    values = values[np.abs(values) <= MAX_NUMBER]
    gaps, column = len(cells) - len(values), Column(str(name), "number")
    problems = [f"{_count(infinite, 'cell')} infinite or too large, read as gaps"] if infinite else []
    distinct = len(pd.unique(values))
    if distinct == 0:
        column = replace(column, kind="empty")
    elif distinct == 1 and not gaps:
        column = replace(column, kind="constant")
    elif given is None and _is_numbering(values, distinct, gaps, str(name)):
        column = replace(column, kind="id")
    else:
        problems += _code_for_gaps(values)
    return Profile(column, gaps, distinct, tuple(problems))


def _is_numbering(values: Floats, distinct: int, gaps: int, name: str) -> bool:
    """Return whether whole numbers identify the rows: all different, and consecutive, in order, or named so."""
    if gaps or len(values) < MIN_NUMBERED or values[0] % 1 != 0 or (values % 1 != 0).any():
        return False
    if distinct < len(values):
        return bool(ID_NAME.search(name)) and distinct > len(values) * MIN_DISTINCT
    steps = np.diff(values)
    in_order = bool((steps > 0).all() or (steps < 0).all())
    consecutive = np.ptp(values) == len(values) - 1
    return bool(consecutive or in_order or name.startswith(UNNAMED) or ID_NAME.search(name))


def _code_for_gaps(values: Floats) -> list[str]:
    """Tell of numbers such as -999 that lie far from all others."""
    found = []
    for code in (float(values.min()), float(values.max())):
        others = values[values != code] if re.fullmatch(r"-?9{2,}\.0|-9\.0", str(code)) else values[:0]
        if len(others) >= MIN_NUMBERED and np.abs(others - code).min() > np.ptp(others):
            rows = len(values) - len(others)
            found.append(f"{code:g} in {_count(rows, 'row')} is far from all others: if it means a gap, leave it empty")
    return found


def _profile_texts(texts: _Texts, name: Hashable, given: str | None) -> Profile:
    """Profile a column of text, or one that should be read as text."""
    column, n, n_distinct = Column(str(name), "category"), int(texts.counts.sum()), len(texts.distinct)
    if n == 0:
        return Profile(replace(column, kind="empty"), texts.gaps, 0)
    if n_distinct == 1 and not texts.gaps:
        return Profile(replace(column, kind="constant"), 0, 1)
    distinct = pd.Series(texts.distinct, dtype=object)
    if given == "category":
        return Profile(column, texts.gaps, n_distinct, _spellings(texts))
    if given == "boolean" or (given is None and set(distinct.str.lower()) <= {"true", "false"}):
        return Profile(replace(column, kind="boolean"), texts.gaps, n_distinct)

    some = distinct.iloc[:: 1 + n_distinct // MAX_TRIED]
    numbers, decimal = np.full(n_distinct, np.nan), "."
    if not np.isnan(parse_numbers(some, decimal_mark(some))).all():
        decimal = decimal_mark(distinct)
        numbers = parse_numbers(distinct, decimal)
    wrong = texts.counts[np.isnan(numbers)].sum()
    codes = given is None and wrong < n and bool(distinct.str.fullmatch(LEADING_ZERO).any())
    few = wrong <= MAX_WRONG * n or (n_distinct > MAX_CODES and wrong <= n / 2)
    if given == "number" or (given is None and few and not codes):
        finite = numbers[~np.isnan(numbers)]
        if not len(finite):
            return Profile(replace(column, kind="empty"), len(texts.codes), 0, _unread(texts, numbers, "numbers"))
        as_numbers = pd.Series(np.append(numbers, np.nan)[texts.codes])
        profile = _profile_numbers(as_numbers, name, given)
        column = replace(profile.column, decimal=decimal)
        return profile._replace(column=column, problems=(*_unread(texts, numbers, "numbers"), *profile.problems))

    if given == "date" or (given is None and not codes):
        date_format, dates = _read_dates(distinct)
        unread = np.isnat(dates)
        if given == "date" or texts.counts[unread].sum() <= MAX_WRONG * n:
            problems = list(_unread(texts, np.where(unread, np.nan, 0.0), "dates"))
            swapped = SWAPPED[date_format]
            if swapped != date_format and not np.isnat(_parse_dates(distinct, swapped)[~unread]).any():
                problems.append(f"read as {date_format}, but {swapped} would fit as well")
            kind: Kind = "date" if len(np.unique(dates[~unread])) > 1 else "constant"
            gaps = texts.gaps + int(texts.counts[unread].sum())
            column = replace(column, kind=kind, date_format=date_format)
            return Profile(column, gaps, n_distinct, tuple(problems))

    words = float((distinct.str.count(" ") + 1).to_numpy(float) @ texts.counts) / n
    named = bool(ID_NAME.search(str(name))) and n_distinct > n / 2
    if (n_distinct > MIN_DISTINCT * n or named) and n_distinct > 2:
        return Profile(replace(column, kind="text" if words >= TEXT_WORDS else "id"), texts.gaps, n_distinct)
    if words >= LONG_TEXT_WORDS and n_distinct > n / 2:
        return Profile(replace(column, kind="text"), texts.gaps, n_distinct)
    return Profile(column, texts.gaps, n_distinct, _spellings(texts))


def _spellings(texts: _Texts) -> tuple[str, ...]:
    """Tell of categories that differ only in case."""
    groups: dict[str, list[str]] = {}
    for text in texts.distinct:
        groups.setdefault(text.lower(), []).append(text)
    doubles = [" and ".join(map(repr, group)) for group in groups.values() if len(group) > 1]
    return (f"{_some(doubles)} differ only in case",) if doubles else ()


def _unread(texts: _Texts, numbers: Floats, what: str) -> tuple[str, ...]:
    """Tell how many cells are not what the column holds, with examples."""
    wrong = np.isnan(numbers)
    if not wrong.any():
        return ()
    count, examples = int(texts.counts[wrong].sum()), [repr(str(text)[:40]) for text in texts.distinct[wrong]]
    return (f"{_count(count, 'cell')} not {what}, read as gaps ({_some(examples)})",)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _some(items: Sequence[str]) -> str:
    more = len(items) - MAX_EXAMPLES
    return ", ".join(items[:MAX_EXAMPLES]) + (f" and {more} more" if more > 0 else "")


# Cells


class _Texts(NamedTuple):
    """The cells of a column as text: the position of each among the different ones, -1 for a gap."""

    codes: NDArray[np.int64]
    distinct: Array
    counts: NDArray[np.int64]

    @property
    def gaps(self) -> int:
        return len(self.codes) - int(self.counts.sum())

    @classmethod
    def of(cls, cells: pd.Series, *, lower: bool = False) -> Self:
        """Read cells of any type, in lower case if asked; raise TypeError for lists and other objects.

        Everything is done on the different cells, of which a column of a million rows usually has few.
        """
        try:
            codes, found = pd.factorize(cells)
        except TypeError as error:
            raise TypeError(
                _wrong_type(cells, next(each for each in cells if not isinstance(each, Hashable)))
            ) from error
        texts = [_as_text(each, cells) for each in found]
        texts = [text.lower() if lower and text not in GAPS else text for text in texts]
        merged, unique = pd.factorize(np.array(texts, dtype=object), sort=len(texts) <= MAX_SORTED)
        is_gap = np.array([text in GAPS for text in unique], dtype=bool)
        kept = np.where(is_gap, -1, np.cumsum(~is_gap) - 1)
        codes = np.append(kept[merged], -1).astype(np.int64)[codes]
        distinct = unique[~is_gap]
        return cls(codes, distinct, np.bincount(codes[codes >= 0], minlength=len(distinct)))


def _as_text(cell: Any, cells: pd.Series) -> str:
    if isinstance(cell, str):
        return cell.strip()
    if isinstance(cell, bool | np.bool_):
        return str(bool(cell))
    if isinstance(cell, float | np.floating | Decimal):
        return str(int(cell)) if isfinite(cell) and cell == int(cell) else str(cell)
    if isinstance(cell, int | np.integer):
        return str(int(cell))
    if isinstance(cell, dt.date | np.datetime64):
        return str(pd.Timestamp(cell).isoformat())
    if isinstance(cell, bytes):
        return cell.decode(errors="replace").strip()
    if isinstance(cell, dt.time | dt.timedelta | pd.Interval | pd.Period):
        return str(cell)
    raise TypeError(_wrong_type(cells, cell))


def _wrong_type(cells: pd.Series, cell: object) -> str:
    return (
        f"The column {str(cells.name)!r} contains a {type(cell).__name__}, but each cell of a table must be a string, "
        "a number, a boolean or a date. Leave the column out, or give its parts in columns of their own."
    )


def decimal_mark(texts: pd.Series) -> str:
    """Return the decimal mark of different texts: a comma if one of them is a number with a comma, such as 12,5."""
    return "," if texts.str.fullmatch(DECIMAL_COMMA).any() else "."


def parse_numbers(texts: pd.Series, decimal: str = ".") -> Floats:
    """Return texts as numbers, NaN where they are none; also with signs of thousands, percent and currency."""
    if decimal == ",":
        european = texts.str.fullmatch(EUROPEAN)
        texts = texts.where(~european, texts.str.replace(r"[. ']", "", regex=True))
        texts = texts.where(~texts.str.fullmatch(r"[-+]?\d*,\d*([eE][-+]?\d+)?"), texts.str.replace(",", "."))
    numbers = pd.to_numeric(texts, errors="coerce").to_numpy(np.float64, na_value=np.nan)
    failed = np.isnan(numbers)
    if failed.any():
        rest = texts[failed].str.replace(r"^[$€£¥]\s*|\s*[$€£¥%]$", "", regex=True)
        if decimal == ",":
            rest = rest.str.replace(r"[. ']", "", regex=True).str.replace(",", ".")
        else:
            rest = rest.where(~rest.str.fullmatch(THOUSANDS), rest.str.replace(",", ""))
        plain = rest.str.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)")
        numbers = numbers.copy()
        numbers[failed] = pd.to_numeric(rest.where(plain), errors="coerce").to_numpy(np.float64, na_value=np.nan)
    return np.where(np.abs(numbers) <= MAX_NUMBER, numbers, np.nan)


def _read_dates(texts: pd.Series) -> tuple[str, Array]:
    """Return the format that fits most texts, and the dates, NaT where it does not fit."""
    best, dates = DATE_FORMATS[0], np.full(len(texts), np.datetime64("NaT", "s"))
    some = texts.iloc[:: 1 + len(texts) // MAX_TRIED]
    if some.str.contains(r"\d{1,4}\D+\w+\D+\d{1,4}").mean() <= MAX_WRONG:  # neither a date: nothing to try
        return best, dates
    most = 0
    for date_format in DATE_FORMATS:
        if (":" in date_format or date_format == "ISO8601" or not some.str.contains(":").all()) and most < len(some):
            fitting = int((~np.isnat(_parse_dates(some, date_format))).sum())
            if fitting > most:
                best, most = date_format, fitting
    return (best, _parse_dates(texts, best)) if most else (best, dates)


def _parse_dates(texts: pd.Series, date_format: str) -> Array:
    """Return dates in UTC, NaT where a text does not have the format."""
    dates = pd.to_datetime(texts, format=date_format, errors="coerce", utc=True)
    return np.asarray(dates.dt.tz_localize(None).to_numpy("datetime64[s]"))


def _date_parts(dates: Array) -> dict[str, Floats]:
    """Return the numbers that dates become, NaN where there is none."""
    missing = np.isnat(dates)
    index = pd.DatetimeIndex(np.where(missing, np.datetime64(0, "s"), dates))
    parts = {"time": dates.astype("datetime64[s]").astype(np.float64) / 86_400}
    for name, values, period in (
        ("month", index.month + index.day / 31 - 1, 12),
        ("weekday", index.day_of_week, 7),
        ("hour", index.hour + index.minute / 60, 24),
    ):
        angle = np.asarray(values, np.float64) * (2 * np.pi / period)
        parts |= {f"{name} sin": np.sin(angle), f"{name} cos": np.cos(angle)}
    return {name: np.where(missing, np.nan, values) for name, values in parts.items()}


# Encoding


class _Layout(NamedTuple):
    """Where the numbers and categories of the columns stand in the matrix that the transformer takes.

    First all numbers (`owners`: their columns), then the codes of the categories (`coded`: their columns).
    `gap_numbers` are the positions of those numbers, in `gap_columns`, whose gaps have a column of the encoding.
    """

    owners: list[int]
    coded: list[int]
    gap_numbers: list[int]
    gap_columns: list[int]

    @classmethod
    def of(cls, columns: Sequence[Column]) -> Self:
        owners = [position for position, column in enumerate(columns) for _ in column.parts]
        gap_columns = [position for position, column in enumerate(columns) if column.gaps]
        coded = [position for position, column in enumerate(columns) if len(column.frequent) > 0]
        return cls(owners, coded, [owners.index(position) for position in gap_columns], gap_columns)


def _prepare(column: Column, cells: pd.Series, min_frequency: int) -> Column:
    """Return a column with everything that is known before the transformer is fitted: its parts and categories."""
    if column.kind == "number":
        numbers, _ = _numbers(column, cells)
        return replace(column, parts=("",), gaps=bool(np.isnan(numbers).sum() >= min_frequency))
    if column.kind == "date":
        dates, _ = _dates(column, cells)
        parts = _date_parts(dates)
        varying = [name for name, values in parts.items() if np.nanmax(values) - np.nanmin(values) > 1e-6]
        return replace(column, parts=tuple(varying), gaps=bool(np.isnat(dates).sum() >= min_frequency))
    if column.kind in ("boolean", "category"):
        texts = _Texts.of(cells, lower=column.kind == "boolean")
        categories = tuple(texts.distinct.tolist()) + ("",) * bool(texts.gaps)
        column = replace(column, categories=categories)
        counts = (*texts.counts.tolist(), *[texts.gaps] * bool(texts.gaps))
        if len(categories) > MAX_ONE_HOT or max(counts) < min_frequency:
            column = replace(column, counts=counts, parts=(FREQUENCY,))
    return column


def _values(table: pd.DataFrame, columns: Sequence[Column]) -> tuple[Floats, list[str]]:
    """Return the matrix of numbers and codes that the transformer takes, and what was read as a gap."""
    layout, numbers, codes, problems = _Layout.of(columns), [], {}, []
    for position, column in enumerate(columns):
        if not column.used:
            continue
        cells, unread = table.iloc[:, position], ""
        if column.kind == "number":
            values, unread = _numbers(column, cells)
            numbers.append(values)
        elif column.kind == "date":
            dates, unread = _dates(column, cells)
            parts = _date_parts(dates)
            numbers += [parts[name] for name in column.parts]
        else:
            codes[position] = found = _codes(column, cells)
            if column.parts:
                counts = np.log(np.append(column.counts, 1))  # an unseen category counts as one row
                numbers.append(counts[found])
        if unread:
            problems.append(f"{column.name}: {unread}")
    matrix = [*numbers, *(codes[position].astype(np.float64) for position in layout.coded)]
    return np.stack(matrix, axis=1), problems


def _numbers(column: Column, cells: pd.Series) -> tuple[Floats, str]:
    """Return a column as numbers, NaN where there is none, and how many cells are none although they hold something."""
    if pd.api.types.is_numeric_dtype(cells) or pd.api.types.is_bool_dtype(cells):
        values = cells.to_numpy(np.float64, na_value=np.nan)
        return np.where(np.abs(values) <= MAX_NUMBER, values, np.nan), ""
    texts = _Texts.of(cells)
    numbers = parse_numbers(pd.Series(texts.distinct, dtype=object), column.decimal)
    return np.append(numbers, np.nan)[texts.codes], "".join(_unread(texts, numbers, "numbers"))


def _dates(column: Column, cells: pd.Series) -> tuple[Array, str]:
    """Return a column as dates, NaT where there is none, and how many cells are none although they hold something."""
    if pd.api.types.is_datetime64_any_dtype(cells):
        if getattr(cells.dtype, "tz", None) is not None:
            cells = cells.dt.tz_convert("UTC").dt.tz_localize(None)
        return cells.to_numpy("datetime64[s]"), ""
    texts = _Texts.of(cells)
    distinct = pd.Series(texts.distinct, dtype=object)
    dates = _parse_dates(distinct, column.date_format)
    if np.isnat(dates).any():  # such as a file of a program that writes all dates in the same way
        dates = np.where(np.isnat(dates), _parse_dates(distinct, DATE_FORMATS[0]), dates)
    problem = "".join(_unread(texts, np.where(np.isnat(dates), np.nan, 0.0), "dates"))
    return np.append(dates, np.datetime64("NaT", "s"))[texts.codes], problem


def _codes(column: Column, cells: pd.Series) -> NDArray[np.int64]:
    """Return the position of each cell among the categories; -1 if it is none of them."""
    texts = _Texts.of(cells, lower=column.kind == "boolean")
    known = {text: code for code, text in enumerate(column.categories)}
    found = [known.get(text, known.get(_as_whole(text), -1)) for text in texts.distinct]
    return np.array([*found, known.get("", -1)], dtype=np.int64)[texts.codes]


def _as_whole(text: str) -> str:
    """Return ``1.0`` as ``1``: a file may hold whole numbers as floats because of gaps."""
    return re.sub(r"\.0*$", "", text) if re.fullmatch(r"-?\d+\.0*", text) else text


def _transformer(layout: _Layout, min_frequency: int, max_categories: int | None) -> ColumnTransformer:
    """Return the transformer, not fitted."""
    numbers, first = len(layout.owners), len(layout.owners)
    one_hot = OneHotEncoder(
        min_frequency=min_frequency,
        max_categories=max_categories,
        handle_unknown="infrequent_if_exist",
        sparse_output=False,
        dtype=np.float32,
    )
    parts = [
        ("numbers", make_pipeline(SimpleImputer(strategy="median"), StandardScaler()), list(range(numbers))),
        ("gaps", MissingIndicator(features="all"), layout.gap_numbers),
        ("categories", one_hot, list(range(first, first + len(layout.coded)))),
    ]
    return ColumnTransformer([part for part in parts if part[2]])


def _fitted(columns: Sequence[Column], layout: _Layout, transformer: ColumnTransformer) -> list[Column]:
    """Return the columns with the values that the transformer has learned."""
    fitted = list(columns)
    if layout.owners:
        imputer, scaler = (step for _, step in transformer.named_transformers_["numbers"].steps)
        for position in sorted(set(layout.owners)):
            own = [number for number, owner in enumerate(layout.owners) if owner == position]
            fitted[position] = replace(
                fitted[position],
                medians=tuple(imputer.statistics_[own].tolist()),
                means=tuple(scaler.mean_[own].tolist()),
                deviations=tuple(scaler.scale_[own].tolist()),
            )
    if layout.coded:
        one_hot = transformer.named_transformers_["categories"]
        for position, rare in zip(layout.coded, one_hot.infrequent_categories_, strict=True):
            codes = () if rare is None else tuple(int(code) for code in rare)
            fitted[position] = replace(fitted[position], rare=codes)
    return fitted


def _rebuild(columns: Sequence[Column]) -> ColumnTransformer:
    """Return the transformer with the fitted values of the columns.

    scikit-learn has no other way to set medians and categories than to fit: it is fitted to a few rows that have these
    medians, and in which the frequent categories occur twice and one of the rare ones once. Other rare ones count as
    unknown, so they have the same column. Means and deviations are set.
    """
    layout = _Layout.of(columns)
    codes = [[*columns[position].frequent * 2, *columns[position].rare[:1]] for position in layout.coded]
    rows = max([2, *map(len, codes)])
    medians = [median for column in columns for median in column.medians]
    matrix = [np.full(rows, median) for median in medians]
    matrix += [np.array([*own, *[own[0]] * (rows - len(own))], dtype=np.float64) for own in codes]
    if not matrix:
        return ColumnTransformer([])
    transformer = _transformer(layout, 2, None).fit(np.stack(matrix, axis=1))
    if layout.owners:
        scaler = transformer.named_transformers_["numbers"][-1]
        scaler.mean_ = np.array([mean for column in columns for mean in column.means])
        scaler.scale_ = np.array([deviation for column in columns for deviation in column.deviations])
        scaler.var_ = scaler.scale_**2
    return transformer


# Frames


def as_frame(X: Any) -> pd.DataFrame | None:
    """Return a frame of pandas, polars, pyarrow or another library as one of pandas; None if X is no frame."""
    if isinstance(X, pd.DataFrame):
        return X
    frame = nw.from_native(X, eager_only=True, pass_through=True)
    if not isinstance(frame, nw.DataFrame):
        return None
    return pd.DataFrame({column.name: column.to_numpy() for column in frame.iter_columns()})


def needs_encoding(X: Any) -> bool:
    """Return whether X is a table with gaps, or with columns that are not numbers or booleans."""
    frame = as_frame(X)
    if frame is None:
        return _array_needs_encoding(X)
    for position in range(frame.shape[1]):
        cells = frame.iloc[:, position]
        if not (pd.api.types.is_numeric_dtype(cells) or pd.api.types.is_bool_dtype(cells)):
            if cells.dtype != object or _array_needs_encoding(cells.to_numpy()[:, np.newaxis]):
                return True
        elif cells.isna().any():
            return True
    return False


def _array_needs_encoding(X: Any) -> bool:
    if hasattr(X, "toarray") or not (hasattr(X, "__array__") or isinstance(X, list | tuple)):
        return False
    try:
        array = np.asarray(X)
        if array.ndim != 2 or array.size == 0:
            return False
        if array.dtype.kind in "OUS":
            array = array.astype(np.float64)
    except ValueError:  # of lists of different lengths, too: what uses them raises an error that says so
        return np.ndim(np.asarray(X, dtype=object)) == 2
    except TypeError:
        return True
    return array.dtype.kind == "f" and bool(np.isnan(array).any())


def as_table(X: Any) -> pd.DataFrame:
    """Return a frame or a two-dimensional array as a frame of pandas."""
    frame = as_frame(X)
    if frame is not None:
        return frame
    array = np.asarray(X, dtype=object) if isinstance(X, list | tuple) else np.asarray(X)
    if array.ndim != 2:
        raise ValueError(f"X has shape {array.shape}; columns are encoded in a table (rows, columns).")
    table = pd.DataFrame(array)
    return table.infer_objects() if array.dtype == object else table
