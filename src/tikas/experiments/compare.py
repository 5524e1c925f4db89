"""Whether two means of test errors differ: summaries, intervals and the test that the verdicts come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import mean, stdev
from typing import Literal

from scipy import stats

from tikas.experiments.cells import Published

Verdict = Literal["better", "compatible", "worse", "untested"]

LEVEL = 0.05
"""Two-sided, for each cell by itself: of twenty cells that are the same, one is called different."""
ROUNDING = 0.01 / sqrt(12)
"""The deviation of rounding to 0.01 %, the step of errors on 10,000 test rows and of published figures. Seeds that tie
vary less than one can see, and not by nothing: the test takes no deviation for smaller than this."""


@dataclass(frozen=True)
class Summary:
    """Mean, deviation over the runs (None where unknown) and number of runs."""

    mean: float
    deviation: float | None
    runs: int

    @classmethod
    def of(cls, errors: Sequence[float]) -> Summary:
        """Of the errors of some seeds.

        Examples
        --------
        >>> Summary.of([1.0, 2.0, 3.0])
        Summary(mean=2.0, deviation=1.0, runs=3)
        """
        return cls(mean(errors), stdev(errors) if len(errors) > 1 else None, len(errors))

    @classmethod
    def of_published(cls, published: Published) -> Summary:
        """Of a figure in a paper; a number of runs that was not given counts as one.

        Examples
        --------
        >>> Summary.of_published(Published(0.36))
        Summary(mean=0.36, deviation=None, runs=1)
        """
        return cls(published.mean, published.deviation, published.runs or 1)

    def interval(self, confidence: float = 1 - LEVEL) -> tuple[float, float] | None:
        """Where the true mean lies with this confidence, by Student's t; None from a single run.

        A deviation below `ROUNDING` counts as that.

        Examples
        --------
        >>> low, high = Summary(1.0, 0.1, 10).interval()
        >>> round(low, 4), round(high, 4)
        (0.9285, 1.0715)
        """
        if self.deviation is None or self.runs < 2:
            return None
        reach = float(stats.t.ppf((1 + confidence) / 2, self.runs - 1)) * _visible(self.deviation) / sqrt(self.runs)
        return self.mean - reach, self.mean + reach


def p_value(one: Summary, other: Summary) -> float | None:
    """How probable a difference at least this large is between runs with the same mean; None if that cannot be said.

    Welch's test, which does not suppose that both vary as much. Where one side is a single run there is no second
    variance, so the other side's is supposed for both (Student's test).

    A deviation below `ROUNDING`, such as the zero of seeds that tie, counts as that. It makes p larger than the tests
    would have it, never smaller, so that no more than `LEVEL` of the cells that are the same are called different; to
    leave such cells untested would keep that promise too, but call nothing different however far apart it is.

    Examples
    --------
    >>> round(p_value(Summary(0.93, 0.05, 10), Summary(1.06, 0.37, 40)), 3)
    0.038
    >>> round(p_value(Summary(0.35, 0.0, 3), Summary(0.36, None, 1)), 3)
    0.095
    """
    known = [side for side in (one, other) if side.deviation is not None and side.runs > 1]
    if not known:
        return None
    if len(known) == 1:
        single = other if known[0] is one else one
        deviation = _visible(known[0].deviation)
        distance = abs(one.mean - other.mean) / (deviation * sqrt(1 / known[0].runs + 1 / single.runs))
        return float(2 * stats.t.sf(distance, known[0].runs - 1))
    figures = [figure for side in known for figure in (side.mean, _visible(side.deviation), side.runs)]
    test = stats.ttest_ind_from_stats(*figures, equal_var=False)
    return float(test.pvalue)


def _visible(deviation: float | None) -> float:
    assert deviation is not None
    return max(deviation, ROUNDING)


def verdict(measured: Summary, reference: Summary) -> Verdict:
    """Whether the measured error is lower than the reference ("better"), higher, or not told apart from it.

    Examples
    --------
    >>> verdict(Summary(0.80, 0.06, 10), Summary(0.84, 0.08, 10))
    'compatible'
    >>> verdict(Summary(0.36, None, 1), Summary(0.40, None, 1))
    'untested'
    """
    p = p_value(measured, reference)
    if p is None:
        return "untested"
    if p >= LEVEL:
        return "compatible"
    return "better" if measured.mean < reference.mean else "worse"
