"""What a fit leaves for its report: on what it was trained, where, by which command, and how good the model is."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from math import isfinite, sqrt
from pathlib import Path
from typing import Any, Self

import numpy as np
import sklearn
import torch
from numpy.typing import ArrayLike

import tikas

CPU_INFO = Path("/proc/cpuinfo")
CONFIDENCE = 0.95
RESAMPLES, MAX_RESAMPLED_VALUES = 1000, 2_000_000
"""Bootstrap samples of an RMSE, and the most values of them in memory at once."""


def hardware(device: Any) -> str:
    """Return the name of the GPU, or of the processor with the number of threads.

    Set the environment variable TIKAS_SHARED if other programs use the same hardware: ", shared" is then added,
    because the seconds are not comparable with others.
    """
    if torch.device(device).type == "cuda":
        name = torch.cuda.get_device_name(device)
    else:
        name = f"{_processor(CPU_INFO)}, {torch.get_num_threads()} threads"
    return f"{name}, shared" if os.environ.get("TIKAS_SHARED") else name


@cache
def _processor(path: Path) -> str:
    """Return the name of the processor, with its family if the name has no number, as on some virtual machines."""
    try:
        info = dict(re.findall(r"^(.+?)\s*: (.*)$", path.read_text(), re.MULTILINE))
        name: str = info["model name"]
        has_number = re.search(r"\d", name.partition("@")[0])  # after the @ is the clock rate
        return name if has_number else f"{name} (family {info['cpu family']}, model {info['model']})"
    except (OSError, KeyError):
        return platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    """Return the versions of tikas, PyTorch, scikit-learn and Python."""
    return {
        "tikas": tikas.__version__,
        "torch": torch.__version__,
        "scikit-learn": sklearn.__version__,
        "python": platform.python_version(),
    }


@dataclass(frozen=True)
class MeasuredError:
    """An error on labeled rows that the model did not learn from, with its 95 % interval.

    Attributes
    ----------
    source : str
        Which rows these are, such as "test rows".
    rows : int
        Number of rows.
    value, low, high : float
        Wrong rows in percent, or root mean square error; and the ends of the interval.
    percent : bool
        Whether these are percentages of wrong rows.

    Examples
    --------
    >>> MeasuredError.of_classes("test rows", wrong=21, rows=500).text()
    '4.2 % (95 % interval 2.8 to 6.3 %)'
    """

    source: str
    rows: int
    value: float
    low: float
    high: float
    percent: bool

    @classmethod
    def of_classes(cls, source: str, wrong: int, rows: int) -> Self:
        """Return the percentage of wrong rows, with Wilson's interval of a binomial proportion."""
        from scipy.stats import binomtest

        ends = binomtest(wrong, rows).proportion_ci(CONFIDENCE, method="wilson")
        return cls(source, rows, 100 * wrong / rows, 100 * float(ends.low), 100 * float(ends.high), percent=True)

    @classmethod
    def of_values(cls, source: str, residuals: ArrayLike) -> Self:
        """Return the root mean square of residuals, with the percentile interval of a bootstrap over the rows."""
        squares = np.square(np.asarray(residuals, np.float64))
        rows, random = len(squares), np.random.default_rng(0)
        chunk = max(1, MAX_RESAMPLED_VALUES // rows)
        sizes = [min(chunk, RESAMPLES - start) for start in range(0, RESAMPLES, chunk)]
        means = np.concatenate([squares[random.integers(rows, size=(size, rows))].mean(1) for size in sizes])
        low, high = np.sqrt(np.quantile(means, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])).tolist()
        return cls(source, rows, sqrt(squares.mean()), low, high, percent=False)

    def text(self) -> str:
        """Return the error and its interval as text."""
        if self.percent:
            return f"{self.value:.1f} % (95 % interval {self.low:.1f} to {self.high:.1f} %)"
        return f"{self.value:.4g} (95 % interval {self.low:.4g} to {self.high:.4g})"


@dataclass(frozen=True)
class TrainingSummary:
    """What a model was trained on and where; the last fields are those of the command line.

    Attributes
    ----------
    rows, labeled, validation : int
        Number of rows learned from, of labels used, and of labeled rows held out; of the first member.
    class_counts : tuple of int
        Number of labels of each class; empty for a regression.
    seconds : float
        Wall-clock time of the fit.
    hardware : str
        Name of the GPU or the processor.
    versions : mapping of str to str
        Of tikas, PyTorch, scikit-learn and Python.
    command, data, digest : str
        The command that trained the model, the data set or file it was given, and a digest of that file's content.
    target : str
        Column with the labels.
    labels : int
        Number of labels that the command asked for; 0 means all.
    read : str
        What was read from the file, line by line; an indented line continues the one before it.
    error : MeasuredError or None
        The error on rows that the model did not learn from, if it was measured.

    Examples
    --------
    >>> from tikas import LadderClassifier
    >>> fitted = LadderClassifier((4,), epochs=1, batch_size=4).fit([[0.0], [0.2], [0.8], [1.0]], [0, -1, -1, 1])
    >>> fitted.training_.rows, fitted.training_.labeled, fitted.training_.class_counts
    (4, 2, (1, 1))
    """

    rows: int = 0
    labeled: int = 0
    validation: int = 0
    class_counts: tuple[int, ...] = ()
    seconds: float = 0.0
    hardware: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    command: str = ""
    data: str = ""
    digest: str = ""
    target: str = ""
    labels: int = 0
    read: str = ""
    error: MeasuredError | None = None

    @property
    def read_lines(self) -> list[str]:
        """The lines of `read`, continued ones joined."""
        return re.sub(r"\n\s+", " ", self.read.strip()).splitlines()

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Self:
        """Return the summary of a model file; raise ValueError unless every field has a possible value."""
        values = dict(given)
        counts = values["class_counts"]
        error = values["error"]
        valid = values.keys() == {each.name for each in fields(cls)} and isinstance(counts, list)
        values["class_counts"] = tuple(counts)
        values["error"] = None if error is None else MeasuredError(**error)
        summary = cls(**values)
        numbers = [summary.rows, summary.labeled, summary.validation, summary.labels, *summary.class_counts]
        texts = [summary.hardware, summary.command, summary.data, summary.digest, summary.target, summary.read]
        texts += [*summary.versions.keys(), *summary.versions.values()]
        reals = [summary.seconds]
        if summary.error is not None:
            texts.append(summary.error.source)
            numbers.append(summary.error.rows)
            valid &= isinstance(summary.error.percent, bool)
            reals += [summary.error.value, summary.error.low, summary.error.high]
        valid &= all(type(number) is int and number >= 0 for number in numbers)
        valid &= all(isinstance(text, str) for text in texts)
        valid &= all(isfinite(real) and real >= 0 for real in reals)
        if not valid:
            raise ValueError("the summary of the training has fields of other types")
        return summary
