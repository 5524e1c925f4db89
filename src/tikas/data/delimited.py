"""Tables in text files: what separates their fields, whether they have a header, and the numbers of a record."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

from tikas.data.cells import MISSING, feature, refuse

QUOTED = re.compile(r'"[^"]*"')


def records_of(path: Path, file: TextIO) -> Iterator[tuple[int, list[str]]]:
    """Yield each record that is not blank, with the line it begins on.

    Examples
    --------
    >>> from io import StringIO
    >>> list(records_of(Path("flowers.csv"), StringIO('"Size, cm";kind\\n\\n5.1;iris\\n')))
    [(1, ['Size, cm', 'kind']), (3, ['5.1', 'iris'])]
    """
    opening = QUOTED.sub("", file.readline())
    file.seek(0)
    delimiter = "\t" if path.suffix.lower() == ".tsv" or ("\t" in opening and "," not in opening) else ","
    if delimiter not in opening and ";" in opening:
        delimiter = ";"
    reader = csv.reader(file, delimiter=delimiter, strict=True)
    line = 1
    try:
        for fields in reader:
            if len(fields) > 1 or any(field.strip() for field in fields):
                yield line, fields
            line = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(f"{path}, line {line}: {error}. Check the quotes in and after that line.") from error


def is_header(fields: Sequence[str], wanted: Sequence[str]) -> bool:
    """Whether a first line names columns: a text is in it, or all names that are looked for are, be they numbers.

    Examples
    --------
    >>> is_header(["5.1", "True"], []), is_header(["length", "2"], []), is_header(["1", "2"], ["2"])
    (False, True, True)
    """
    stripped = [field.strip() for field in fields]
    if any(map(_is_text, stripped)):
        return True
    return bool(wanted) and set(wanted) <= set(stripped) and len(set(stripped)) == len(stripped)


def row_of(path: Path, line: int, fields: list[str], columns: Sequence[str] | None) -> NDArray[np.float32]:
    """The numbers of a record; the line, and columns if there are names, are for the message where one is none.

    Examples
    --------
    >>> row_of(Path("flowers.csv"), 2, ["5.5", "True"], columns=None)
    array([5.5, 1. ], dtype=float32)
    """
    with np.errstate(over="ignore"):
        row = np.array([feature(field) for field in fields], dtype=np.float32)
    if not np.isfinite(row).all():
        bad = int(np.argmin(np.isfinite(row)))
        column = f"column {bad + 1}" if columns is None else f"column {columns[bad]!r}"
        texts = [name for name, field in zip(columns or (), fields, strict=False) if _is_text(field.strip())]
        refuse(f"{path}, line {line}, {column}", fields[bad].strip(), texts)
    return row


def _is_text(field: str) -> bool:
    return field not in MISSING and math.isnan(feature(field))
