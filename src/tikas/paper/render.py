"""Tables and figures from records. In Markdown pages, a table is placed between two markers, the first with its name:

    <!-- table: table1 -->
    <!-- /table -->

`python -m tikas.paper.render --page README.md` fills those of ``results/README.md`` and of the given pages, and draws
the figures in ``results``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import sqrt
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, get_args

import typer
from scipy import stats

from tikas.paper.experiments import CURVE, EXPERIMENTS, TABLE_4, TABLES, Experiment, Summary, Table, select
from tikas.paper.figures import Errors, Timing, plot_error_against_seconds, plot_errors
from tikas.paper.records import Measurement, Records

Verdict = Literal["better", "compatible", "worse", "untested"]

SIGNIFICANCE = 0.05
"""Significance level of a verdict: two-sided, without correction for multiple experiments."""

ROUNDING = 0.01 / sqrt(12)
"""Standard deviation of rounding to 0.01 %, the resolution of errors on 10,000 rows. Smaller deviations, such as 0 for
equal errors, are replaced by it."""

MISSING = "missing"

SUMMARIES = {
    "mnist": ["text", "table1/full", "table1/bottom", "table1/gamma", "table1/baseline"],
    "convolutions": [
        "table2/fc",
        "table2/small-gamma",
        "table2/small-gamma-input-long",
        "table2/small-full",
        "table2/small-baseline",
        "table3/large-gamma",
        "table3/large-baseline",
    ],
}
"""Short tables for the README: the rows of the paper's tables that each contains, by its name."""

BY_NAME = {experiment.name: experiment for experiment in EXPERIMENTS}


# Statistics


def interval(summary: Summary) -> tuple[float, float] | None:
    """Return the 95 % confidence interval of the mean by Student's t, within 0 and 100; None for a single run."""
    if summary.deviation is None:
        return None
    margin = stats.t.ppf(1 - SIGNIFICANCE / 2, summary.runs - 1) * max(summary.deviation, ROUNDING) / sqrt(summary.runs)
    return max(0.0, float(summary.mean - margin)), min(100.0, float(summary.mean + margin))


def p_value(one: Summary, other: Summary) -> float | None:
    """Return the p-value of equal means by Welch's test, or by Student's t-test if one side is a single run.

    None if both are single runs. Deviations below `ROUNDING` are replaced by it, which only makes p larger.
    """
    single = [each for each in (one, other) if each.runs == 1]
    if len(single) == 2:
        return None
    sides = [(each.mean, max(each.deviation or 0.0, ROUNDING), each.runs) for each in (one, other)]
    # Student's t-test weights each variance by the number of runs - 1: a single run counts without a deviation.
    return float(stats.ttest_ind_from_stats(*sides[0], *sides[1], equal_var=bool(single)).pvalue)


class Comparison(NamedTuple):
    """The measurement of an experiment, and how its mean compares with the published or another measured mean."""

    measurement: Measurement | None
    p: float | None = None
    verdict: Verdict | None = None


def compare(experiment: Experiment, records: Records) -> Comparison:
    """Return the measurement of an experiment, and its verdict if there is something to compare with."""
    measurement = records.measurement(experiment.key)
    reference = experiment.published
    if experiment.against and (other := records.measurement(BY_NAME[experiment.against].key)):
        reference = other.summary
    if measurement is None or reference is None:
        return Comparison(measurement)
    p = p_value(measurement.summary, reference)
    if p is None:
        return Comparison(measurement, p, "untested")
    if p >= SIGNIFICANCE:
        return Comparison(measurement, p, "compatible")
    return Comparison(measurement, p, "better" if measurement.summary.mean < reference.mean else "worse")


# Tables


def all_tables(records: Records) -> dict[str, str]:
    """Return all tables as Markdown, by the name in their marker."""
    tables = {"verdicts": _verdict_table(records), "curve": _curve_table(records)}
    tables["table4-order"] = _order_table(records)
    for table in TABLES:
        tables[table.name] = _paper_table(table, records)
        tables[f"{table.name}-details"] = _detail_table(table.experiments, records)
    for name, rows in SUMMARIES.items():
        tables[name] = _summary_table([each for row in rows for each in select(EXPERIMENTS, [row])], records)
    return tables


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]], text_columns: int = 1) -> str:
    """Return a Markdown table; columns after the first `text_columns` are aligned to the right."""
    rules = ["---" if column < text_columns else "---:" for column in range(len(header))]
    lines = (header, rules, *rows)
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _paper_table(table: Table, records: Records) -> str:
    """Return a table as the paper prints it, with the measured error above the paper's."""
    rows = [[title, *(_cell(cell, records) for cell in cells)] for title, cells in table.rows.items()]
    return markdown_table(["", *table.columns], rows)


def _cell(cell: Experiment | str, records: Records) -> str:
    if isinstance(cell, str):
        return f"*{cell}*" if cell else ""
    measurement, _, verdict = compare(cell, records)
    measured = f"**{measurement.summary.text()}**" if measurement else MISSING
    return f"{measured}{f', {verdict}' if verdict else ''}<br>{_reference(cell)}"


def _reference(experiment: Experiment) -> str:
    return experiment.published.text() if experiment.published else f"against `{experiment.against}`"


def _detail_table(experiments: Iterable[Experiment], records: Records) -> str:
    rows = []
    for experiment in experiments:
        measurement, p, verdict = compare(experiment, records)
        tested = ["" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}", verdict or ""]
        labeled = measurement.labeled.text(3) if measurement and measurement.labeled else ""
        measured = error_cells(measurement, experiment.seeds)
        row = [f"`{experiment.name}`", _reference(experiment), *measured, *tested, labeled, *timing_cells(measurement)]
        rows.append(row)
    header = ["experiment", "paper", "measured", "95 % interval", "seeds", "p", "verdict"]
    return markdown_table([*header, "labeled rows' statistics", "seconds", "hardware"], rows)


def error_cells(measurement: Measurement | None, seeds: int) -> list[str]:
    """Return mean ± deviation, interval and number of seeds as text. Seeds are listed unless they start at 0."""
    if measurement is None:
        return [MISSING, "", f"0 of {seeds}"]
    limits, measured = interval(measurement.summary), set(measurement.errors)
    count = f"{len(measured)} of {seeds}"
    if measured >= set(range(seeds)):
        count = str(len(measured))
    elif measured != set(range(len(measured))):
        count += f": {', '.join(map(str, measurement.errors))}"
    return [measurement.summary.text(3), f"{limits[0]:.3f} to {limits[1]:.3f}" if limits else "", count]


def timing_cells(measurement: Measurement | None) -> list[str]:
    """Return the seconds per member and the hardware as text."""
    if measurement is None:
        return ["", ""]
    total, members_on = len(measurement.errors), measurement.members_on.items()
    names = [name if count == total else f"{name} ({count} of {total})" for name, count in members_on]
    return [_seconds(measurement.seconds), "; ".join(names)]


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds:.2g}" if seconds < 1 else f"{seconds:.1f}" if seconds < 100 else f"{seconds:.0f}"


def _verdict_table(records: Records) -> str:
    rows = []
    for title, published in (("with a figure in the paper", True), ("compared with another experiment", False)):
        experiments = [each for table in TABLES for each in table.experiments if bool(each.published) == published]
        comparisons = [compare(experiment, records) for experiment in experiments]
        counts = Counter(each.verdict for each in comparisons)
        measured = sum(each.measurement is not None for each in comparisons)
        numbers = [len(experiments), measured, *(counts[verdict] for verdict in get_args(Verdict))]
        rows.append([title, *map(str, numbers)])
    return markdown_table(["experiments", "number", "measured", *get_args(Verdict)], rows)


def _order_table(records: Records) -> str:
    """Return the table of the denoising functions of Table 4, ordered by mean error if all are measured."""
    rows = []
    for column in TABLE_4.columns:
        published, measured = {}, {}
        for experiment in TABLE_4.experiments:
            if str(experiment.labels) == column and experiment.published:
                name, found = experiment.name.split("/")[1], records.measurement(experiment.key)
                published[name] = experiment.published.mean
                if found:
                    measured[name] = found.summary.mean
        orders = [" < ".join(sorted(means, key=means.__getitem__)) for means in (published, measured)]
        rows.append([column, orders[0], orders[1] if len(measured) == len(published) else MISSING])
    return markdown_table(["labels", "order in the paper", "order measured"], rows, text_columns=3)


def _curve_table(records: Records) -> str:
    rows = []
    for experiment in CURVE:
        measurement = records.measurement(experiment.key)
        seconds, hardware = timing_cells(measurement)
        sizes = _listed(measurement.sizes) if measurement else ""
        steady = ""
        if measurement and measurement.seconds_per_epoch:
            steady = _seconds(measurement.seconds_per_epoch * experiment.recipe.epochs)
        measured = error_cells(measurement, experiment.seeds)
        rows.append([str(experiment.recipe.epochs), *measured, seconds, steady, sizes, hardware])
    header = ["epochs", "measured", "95 % interval", "seeds", "seconds", "without warm-up", "ensembles of", "hardware"]
    return markdown_table(header, rows, text_columns=0)


def _summary_table(experiments: Iterable[Experiment], records: Records) -> str:
    titles = {cell: title for table in TABLES for title, cells in table.rows.items() for cell in cells}
    rows = []
    for experiment in experiments:
        measurement = records.measurement(experiment.key)
        measured = measurement.summary.text() if measurement else MISSING
        seeds = str(len(measurement.errors)) if measurement else ""
        paper = experiment.published.text() if experiment.published else ""
        rows.append([titles[experiment], experiment.data, str(experiment.labels), measured, seeds, paper])
    return markdown_table(["", "data", "labels", "tikas", "seeds", "paper"], rows, text_columns=2)


# Pages and figures

_MARKED = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- /table -->)", re.DOTALL)


def fill(page: str, tables: Mapping[str, str]) -> str:
    """Return a page with these tables between their markers; other tables stay unchanged."""

    def replace(found: re.Match[str]) -> str:
        start, name, end = found.groups()
        return f"{start}{tables[name]}\n{end}" if name in tables else found[0]

    return _MARKED.sub(replace, page)


def fill_pages(paths: Iterable[Path], tables: Mapping[str, str]) -> None:
    """Write the tables between their markers in these files."""
    for path in paths:
        path.write_text(fill(path.read_text(), tables))


def render(records: Records, results: Path, pages: Iterable[Path] = ()) -> list[Path]:
    """Fill the tables of README.md in the folder `results` and of other pages, and draw the figures.

    Parameters
    ----------
    records : Records
    results : Path
        The folder for the figures and README.md; without that file a page with all tables is written.
    pages : iterable of Path, optional
        Other Markdown files with marked tables.

    Returns
    -------
    list of Path
        The files that were written.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [path.name for path in render(Records(), Path(folder))]
    ['README.md']
    """
    page = results / "README.md"
    tables = all_tables(records)
    if not page.exists():
        sections = [f"## {name}\n\n<!-- table: {name} -->\n<!-- /table -->\n" for name in tables]
        page.write_text("\n".join(["# Results\n", *sections]))
    written = [page, *pages]
    fill_pages(written, tables)
    return [*written, *draw_figures(records, results)]


def draw_figures(records: Records, folder: Path) -> list[Path]:
    """Draw the errors of each table with a measured experiment, and error against seconds, as SVG files."""
    drawn = []
    for table in TABLES:
        rows: dict[str, dict[str, Errors]] = {}
        for title, cells in table.rows.items():
            row = {str(cell.labels): errors_of(cell, records) for cell in cells if isinstance(cell, Experiment)}
            if row:
                rows[title] = row
        if any(errors.measured for row in rows.values() for errors in row.values()):
            drawn.append(folder / f"{table.name}.svg")
            plot_errors(drawn[-1], table.columns, rows)
    curve = _timings(records)
    if curve:
        drawn.append(folder / "curve.svg")
        plot_error_against_seconds(drawn[-1], curve)
    return drawn


def errors_of(experiment: Experiment, records: Records) -> Errors:
    """Return the measured errors of an experiment and the published ones, for a figure."""
    measurement, published = records.measurement(experiment.key), experiment.published
    measured = list(measurement.errors.values()) if measurement else []
    return Errors(measured, published.mean if published else None, published.deviation if published else None)


def _timings(records: Records) -> dict[str, list[Timing]]:
    """Return the timings of the curve by hardware, which is named together with the sizes of its ensembles."""
    timings: dict[str, list[Timing]] = {}
    sizes: dict[str, set[int]] = {}
    for experiment in CURVE:
        measurement = records.measurement(experiment.key)
        if measurement is None or measurement.seconds is None or measurement.seconds_per_epoch is None:
            continue
        error, limits = measurement.summary.mean, interval(measurement.summary)
        margin = (limits[1] - limits[0]) / 2 if limits else 0.0
        epochs, steady = experiment.recipe.epochs, measurement.seconds_per_epoch * experiment.recipe.epochs
        timing = Timing(f"{epochs} epochs", error, margin, measurement.seconds, steady)
        timings.setdefault(measurement.hardware, []).append(timing)
        sizes.setdefault(measurement.hardware, set()).update(measurement.sizes)
    return {f"{name}, ensembles of {_listed(sizes[name])}": timings[name] for name in sorted(timings)}


def _listed(sizes: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(sizes)))


def main(
    results: Annotated[Path, typer.Option(help="Folder with the records.")] = Path("results"),
    page: Annotated[list[Path] | None, typer.Option(help="Another page with marked tables.")] = None,
) -> None:
    """Fill the tables of README.md in the folder with the records and of other pages, and draw the figures."""
    render(Records.read(results), results, page or [])


if __name__ == "__main__":
    typer.run(main)
