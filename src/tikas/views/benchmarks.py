"""Benchmarks as a table."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from tikas.experiments.bench import Figure
from tikas.experiments.bench_script import ratio_of


def benchmark_table(figures: Sequence[Figure], title: str) -> Table:
    """A line for every figure, a rule between benchmarks.

    Examples
    --------
    >>> table = benchmark_table([Figure("fleets", "1 seed", 12.5)], "some machine")
    >>> [column.header for column in table.columns]
    ['', '', 'ms an update', 'times as quick as', '']
    """
    table = Table(title=title)
    table.add_column("")
    table.add_column("")
    table.add_column("ms an update", justify="right")
    table.add_column("times as quick as")
    table.add_column("")
    named = ""
    for figure in figures:
        if figure.benchmark != named:
            table.add_section()
        ms = "" if figure.ms is None else f"{figure.ms:.4g}"
        shown = "" if figure.benchmark == named else figure.benchmark
        table.add_row(shown, figure.what, ms, ratio_of(figure), figure.said)
        named = figure.benchmark
    return table
