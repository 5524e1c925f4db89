"""Tables and figures from records: ``results/README.md``, its SVGs, and marked tables in other Markdown files.

`python -m tikas.paper.render --page README.md` renders all of them.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from math import sqrt
from pathlib import Path
from typing import Literal

from tikas.paper.experiments import (
    CURVE,
    EXPERIMENTS,
    TABLE_1,
    TABLE_2,
    TABLE_3,
    TABLE_4,
    TABLES,
    TEXT,
    Experiment,
    Quotation,
    Row,
    Table,
)
from tikas.paper.records import Measurement, Records, Summary, rival_key
from tikas.report.plots import Errors, PlotsMissingError, Timing, plot_error_against_seconds, plot_errors

Verdict = Literal["better", "compatible", "worse", "untested"]

LEVEL = 0.05
"""Significance level of a verdict, two-sided, for each experiment by itself."""

ROUNDING = 0.01 / sqrt(12)
"""Deviation of rounding to 0.01 %, the step of errors on 10,000 rows. Smaller deviations, such as the 0 of seeds that
tie, count as this one."""

TITLE = "# The paper's tables, measured"

MISSING = "missing"

PAGE_TABLES = {"mnist": (TEXT, TABLE_1), "convolutions": (TABLE_2, TABLE_3)}
"""Tables for other Markdown files, by the name in their marker ``<!-- table: mnist -->``."""

BY_NAME = {experiment.name: experiment for experiment in EXPERIMENTS}


# Statistics


def interval(summary: Summary) -> tuple[float, float] | None:
    """The 95 % confidence interval of the mean by Student's t, within 0 and 100; None for a single run."""
    from scipy import stats

    if summary.deviation is None or summary.runs < 2:
        return None
    margin = stats.t.ppf(1 - LEVEL / 2, summary.runs - 1) * max(summary.deviation, ROUNDING) / sqrt(summary.runs)
    return max(0.0, float(summary.mean - margin)), min(100.0, float(summary.mean + margin))


def p_value(one: Summary, other: Summary) -> float | None:
    """The p-value of equal means: Welch's test, or Student's with the other side's deviation if one is a single run.

    None where both are single runs. Deviations below `ROUNDING` count as `ROUNDING`, which only makes p larger.
    """
    from scipy import stats

    known = [(each.mean, max(each.deviation, ROUNDING), each.runs) for each in (one, other) if each.deviation is not None and each.runs > 1]
    if not known:
        return None
    if len(known) == 2:
        return float(stats.ttest_ind_from_stats(*known[0], *known[1], equal_var=False).pvalue)
    (_, deviation, runs), single = known[0], min(one.runs, other.runs)
    distance = abs(one.mean - other.mean) / (deviation * sqrt(1 / runs + 1 / single))
    return float(2 * stats.t.sf(distance, runs - 1))
