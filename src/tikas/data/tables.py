"""Rows and targets from CSV, TSV and Parquet files, and from files of NumPy arrays."""

from __future__ import annotations

import csv
import io
import math
import os
import re
import warnings
import zipfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tikas.data.datasets import Dataset, ignore_flag
from tikas.data.images import FORMATS, as_images
from tikas.data.labels import encode_labels

Array = NDArray[Any]
Record = tuple[str, Sequence[object]]
"""Where a record stands, such as ``line 3``, and its cells."""

SUFFIXES = (".csv", ".tsv", ".npy", ".npz", ".parquet")
MISSING = frozenset({"", "?", "NA", "N/A", "n/a", "#N/A", "<NA>", "nan", "NaN", "NAN", "NULL", "null", "None"})
BOOLEANS = {"true": 1.0, "false": 0.0}
COMMA_TO_POINT = str.maketrans(",.", ".?")  # a point among decimal commas makes no number
QUOTED = re.compile(r'"[^"]*"')
DECIMAL_COMMA = re.compile(r'(?:^|[;\t])\s*"?[-+]?\d*,\d+"?\s*(?:[;\t]|$)', re.MULTILINE)
UNNAMED = re.compile(r"column \d+|Unnamed: \d+")
"""Names of columns without a name, here and in pandas."""
MIN_NUMBERED = 10
"""Fewer rows may be numbered by chance."""
MAX_NAMED = 10


@dataclass(frozen=True, eq=False)
class _Table:
    """Features, float32 and finite, and the texts of the target column, with what messages need."""

    path: Path
    features: Array
    names: tuple[str, ...]
    target: str
    texts: list[str] | None
    point: str = "."
    places: Sequence[int] | None = None


def read_table(
    path: str | os.PathLike[str],
    target: str | None = None,
    ignore: Sequence[str] = (),
    task: Literal["classification", "regression"] = "classification",
) -> Dataset:
    raise NotImplementedError
