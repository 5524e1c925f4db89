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

        Examples
        --------
        >>> low, high = Summary(1.0, 0.1, 10).interval()
        >>> round(low, 4), round(high, 4)
        (0.9285, 1.0715)
        """
        if self.deviation is None or self.runs < 2:
            return None
        reach = float(stats.t.ppf((1 + confidence) / 2, self.runs - 1)) * self.deviation / sqrt(self.runs)
        return self.mean - reach, self.mean + reach


def p_value(one: Summary, other: Summary) -> float | None:
    """How probable a difference at least this large is between runs with the same mean; None if that cannot be said.

    Welch's test, which does not suppose that both vary as much. Where one side is a single run there is no second
    variance, so the other side's is supposed for both (Student's test).

    Examples
    --------
    >>> round(p_value(Summary(0.93, 0.05, 10), Summary(1.06, 0.37, 40)), 3)
    0.038
    """
    known = [side for side in (one, other) if side.deviation is not None and side.runs > 1]
    if not known:
        return None
    if all(side.deviation == 0 for side in known):
        return 1.0 if one.mean == other.mean else 0.0
    if len(known) == 1:
        assert known[0].deviation is not None
        single = other if known[0] is one else one
        distance = abs(one.mean - other.mean) / (known[0].deviation * sqrt(1 / known[0].runs + 1 / single.runs))
        return float(2 * stats.t.sf(distance, known[0].runs - 1))
    test = stats.ttest_ind_from_stats(
        one.mean, one.deviation, one.runs, other.mean, other.deviation, other.runs, equal_var=False
    )
    return float(test.pvalue)


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
