"""A word about columns of a table that say nothing of what a row is like."""

from __future__ import annotations

import os
import re
import warnings

import numpy as np
from numpy.typing import NDArray

from tikas.data.cells import ignoring
from tikas.data.tables import Table

NAMELESS = re.compile(r"column \d+|Unnamed: \d+")
"""What a column without a name is called, here and by pandas."""
FEWEST_NUMBERED = 10
"""Rows that are numbered by a column, and not by chance."""


def warn_of_numbered_rows(table: Table, path: str | os.PathLike[str]) -> None:
    """Warn of columns that number the rows, as pandas writes its index: training would learn from the order of rows.

    Those are whole numbers, none of them twice, that leave none out; without a name they may leave some out.

    Examples
    --------
    >>> table = Table(np.arange(40, dtype=np.float32).reshape(20, 2) / 2, y=None, columns=("id", "size"))
    >>> with warnings.catch_warnings(record=True, action="always") as caught:
    ...     warn_of_numbered_rows(table, "mine.csv")
    >>> print(caught[0].message)
    mine.csv: the column 'id' numbers the rows, from 0 to 19, and is learnt from as any other. Ignore it (--ignore ...
    """
    if table.columns is None or len(table.x) < FEWEST_NUMBERED:
        return
    for name, column in zip(table.columns, table.x.T, strict=True):
        ascending = np.sort(column).astype(np.float64)
        if _leaves_none_out(ascending) or (NAMELESS.fullmatch(name) and _are_distinct_and_whole(ascending)):
            warnings.warn(
                f"{path}: the column {name!r} numbers the rows, from {ascending[0]:.0f} to {ascending[-1]:.0f}, and is "
                f"learnt from as any other. Ignore it ({ignoring([name])}) unless the number says what a row is "
                "like.",
                UserWarning,
                stacklevel=2,
            )


def _leaves_none_out(ascending: NDArray[np.float64]) -> bool:
    """Whether these are whole numbers that follow each other; beyond 2²⁴, as single precision rounds such numbers."""
    rounding = float(np.spacing(np.abs(ascending).max().astype(np.float32)))
    if rounding <= 1:
        return _are_distinct_and_whole(ascending) and bool(np.diff(ascending).max() == 1)
    counted = ascending[0] + np.arange(len(ascending))
    return len(ascending) > 2 * rounding and bool((np.abs(ascending - counted) <= rounding).all())


def _are_distinct_and_whole(ascending: NDArray[np.float64]) -> bool:
    return bool((ascending == np.rint(ascending)).all() and (np.diff(ascending) > 0).all())
