"""The page of results: the paper's tables with published against measured, made from the records and nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import groupby

from tikas.experiments.cells import Cell, Quotation, Row, Table
from tikas.experiments.compare import LEVEL, Summary
from tikas.experiments.ledger import Ledger
from tikas.experiments.paper import CURVE, TABLE_1, TABLE_4, TABLES
from tikas.experiments.protocol import Setting
from tikas.experiments.readings import Judgement, Reading, chosen, in_words, judge, reading, reference
from tikas.experiments.rivals import METHODS, RIVALS, Rival
from tikas.experiments.studies import STUDIES
from tikas.experiments.tasks import CELLS
from tikas.views.markdown import markdown_table

TITLE = "# The paper, measured"
MISSING = "missing"
BY_NAME = {cell.name: cell for cell in CELLS}


def results_page(ledger: Ledger) -> str:
    """The whole page, in Markdown. The same records always give the same page.

    Examples
    --------
    >>> page = results_page(Ledger())
    >>> page.splitlines()[0]
    '# The paper, measured'
    """
    parts = [_opening(ledger), *(_table_section(table, ledger) for table in TABLES)]
    parts += [_curve_section(ledger), _rivals_section(ledger), _studies_section(ledger), _CLOSING]
    return "\n\n".join(part for part in parts if part) + "\n"


def pictures(ledger: Ledger) -> dict[str, Table | tuple[Cell, ...]]:
    """What is drawn beside the page, by the name of its file: each table with a measured cell, and the curve.

    Examples
    --------
    >>> record = {"recipe": {"epochs": 5}, "test_error": 2.0, "seconds": 60, "members": 2, "hardware": "a GPU"}
    >>> list(pictures(Ledger.of([{**record, "seed": 0}])))
    ['curve.svg']
    """
    drawn: dict[str, Table | tuple[Cell, ...]] = {
        f"{table.name}.svg": table for table in TABLES if any(reading(cell, ledger) for cell in table.cells)
    }
    if any(reading(cell, ledger) for cell in CURVE):
        drawn["curve.svg"] = CURVE
    return drawn


def _opening(ledger: Ledger) -> str:
    cells = [cell for table in TABLES for cell in table.cells]
    published, ours = [cell for cell in cells if cell.published], [cell for cell in cells if not cell.published]
    return f"""{TITLE}

`tikas reproduce --render` makes this page from the records beside it; a test compares the two, so it cannot be edited.
{_counted("cells with a figure of the paper's", published, ledger)}
{_counted("without one, each compared with another cell measured here", ours, ledger)}

Errors are test errors in percent: mean ± deviation over seeds, which decide on labelled rows, first weights, order and
noise. Final runs train on all training rows, the last update counts, and settings were written down before them. Six
cells were searched for after test errors of their model were known, by held-out rows again, as their notes tell:
`text/full-chosen/50`, `table2/small-gamma-chosen/100`, `table2/small-gamma-short/100`, `table2/small-gamma-input/100`,
`table2/small-gamma-input-long/100` and `table2/small-full/100`. The paper's own settings stand beside them. A record
belongs to the cell that has its recipe; the cell that it names is the one that it was run for. Those of
`text/full-chosen/50`, of the first three Γ-models chosen here, of seeds 0 to 4 of `table2/small-full/100` and of some
settings of their studies were run by scripts before the cell or the setting was in git: their revisions have the code
that trained them, and not its name. At db9d938 recipes had a field more, at its default, which its 139 records were
committed without.

The interval holds the true mean with 95 % confidence (Student's t; cut at 0 and 100). The verdict compares the measured
mean with the published one, or where there is none with that of the cell it is *against*, by Welch's test, two-sided at
{100 * LEVEL:g} % for each cell by itself: *better* and *worse* are differences that chance would hardly make,
*compatible* is the rest, and *untested* are single runs on both sides. Where one side is a single run,
the other's deviation stands in for its own (Student's test). The paper's number of runs is 10, 40 for the ladders at
100 labels, 4 on CIFAR-10 and 1 for the convolutional references with all labels.

Statistics for prediction come from all training rows. The paper's authors took them from the labelled rows alone: those
errors are in the column *labelled rows' statistics*, and the verdict does not use them. Seconds are a fleet's wall
clock by its members, compiling and capture included."""


def _counted(what: str, cells: Sequence[Cell], ledger: Ledger) -> str:
    judgements = [judge(reading(cell, ledger), reference(cell, ledger, BY_NAME)) for cell in cells]
    counts = Counter(each.verdict for each in judgements if each is not None)
    measured = sum(reading(cell, ledger) is not None for cell in cells)
    verdicts = ", ".join(f"{counts[name]} {name}" for name in ("better", "compatible", "worse", "untested"))
    return f"Of {len(cells)} {what}, {measured} are measured: {verdicts}."


def _table_section(table: Table, ledger: Ledger) -> str:
    rows = [_layout_row(row, table, ledger) for row in table.rows]
    if table is TABLE_1:
        rows += _rivals_in_layout(table.columns, ledger)
    below = " (below it the paper's)" if table.has_published else ""
    beside = " beside the paper's mean ± deviation" if table.has_published else ""
    parts = [
        f"## {table.title}",
        f"Test error, %{below}, by number of labels.",
        markdown_table(["", *table.columns], rows),
    ]
    if f"{table.name}.svg" in pictures(ledger):
        parts.append(f"![Errors of the seeds{beside}]({table.name}.svg)")
    parts.append(_details(table.cells, ledger))
    notes = [table.note, *(f"`{cell.name}`: {cell.note}." for cell in table.cells if cell.note)]
    if table is TABLE_4:
        notes += [_order(table, column, ledger) for column in table.columns]
    return "\n\n".join([*parts, *(note for note in notes if note)])


def _layout_row(row: Row | Quotation, table: Table, ledger: Ledger) -> list[str]:
    if isinstance(row, Quotation):
        figures = (row.figures.get(column) for column in table.columns)
        quoted = (f"*{in_words(each, each.places)}*" if each else "" for each in figures)
        return [f"*{row.title}* (quoted: {row.source})", *quoted]
    by_column = {cell.column: cell for cell in row.cells}
    return [row.title, *(_layout_cell(by_column.get(column), ledger) for column in table.columns)]


def _layout_cell(cell: Cell | None, ledger: Ledger) -> str:
    if cell is None:
        return ""
    found = reading(cell, ledger)
    judgement = judge(found, reference(cell, ledger, BY_NAME))
    measured = f"**{in_words(found.summary)}**" if found else MISSING
    compared = f", {judgement.verdict}" if judgement else ""
    return f"{measured}{compared}<br>{_compared_with(cell)}"


def _compared_with(cell: Cell) -> str:
    return in_words(cell.published) if cell.published else f"against `{cell.against}`"


def _order(table: Table, column: str, ledger: Ledger) -> str:
    """The rows of a column from the lowest mean to the highest, as published and as measured, if all are measured."""
    found = {cell: reading(cell, ledger) for cell in table.cells if cell.column == column}
    measured = {cell: each.summary.mean for cell, each in found.items() if each is not None}
    if len(measured) < len(found):
        return ""
    published = {cell: cell.published.mean for cell in found if cell.published is not None}
    paper, ours = (
        " < ".join(cell.name.split("/")[1] for cell in sorted(means, key=lambda cell: means[cell]))
        for means in (published, measured)
    )
    return f"Order of the means at {column} labels: paper {paper}; measured {ours}."


def _rivals_in_layout(columns: Sequence[str], ledger: Ledger) -> list[list[str]]:
    """The rivals as rows: they were measured here, on the same splits, and the paper has no figure for them."""
    rows = []
    for method, description in METHODS.items():
        by_column = {str(rival.labels): rival for rival in RIVALS if rival.method == method}
        found = [reading(by_column[column], ledger) if column in by_column else None for column in columns]
        cells = [f"**{in_words(each.summary)}**" if each else MISSING for each in found]
        shown = [cell if column in by_column else "" for cell, column in zip(cells, columns, strict=True)]
        fewer = {rival.settings["rows"] for rival in by_column.values() if "rows" in rival.settings}
        behind = f", {', '.join(map(str, fewer))} rows shown" if fewer else ""
        rows.append([f"scikit-learn: {description.title}{behind}", *shown])
    return rows


def _details(cells: Iterable[Cell], ledger: Ledger) -> str:
    header = ["cell", "paper", "measured", "95 % interval", "seeds", "p", "verdict"]
    rows = []
    for cell in cells:
        found, against = reading(cell, ledger), reference(cell, ledger, BY_NAME)
        judgement = judge(found, against)
        rows.append([f"`{cell.name}`", _compared_with(cell), *_figures(found, cell.seeds, judgement), *_beside(found)])
    return markdown_table([*header, "labelled rows' statistics", "seconds", "hardware"], rows)


def _figures(found: Reading | None, wanted: int, judgement: Judgement | None) -> list[str]:
    if found is None:
        return [MISSING, "", f"0 of {wanted}", "", ""]
    tested = ["", ""]
    if judgement is not None:
        tested = ["" if judgement.p is None else _probability(judgement.p), judgement.verdict]
    return [in_words(found.summary, 3), _interval(found.summary), _seeds(found.errors, wanted), *tested]


def _seeds(measured: Collection[int], wanted: int) -> str:
    """How many; and which, where some are missing that are not the last: other seeds may be harder."""
    if set(measured).issuperset(range(wanted)):
        return str(len(measured))
    which = "" if set(measured) == set(range(len(measured))) else f": {', '.join(map(str, measured))}"
    return f"{len(measured)} of {wanted}{which}"


def _beside(found: Reading | None) -> list[str]:
    if found is None:
        return ["", "", ""]
    return ["" if found.labeled is None else in_words(found.labeled, 3), _seconds(found.seconds), found.all_hardware]


def _interval(summary: Summary) -> str:
    """Student's interval, as far as errors go: that of two seeds reaches far below zero."""
    interval = summary.interval()
    return "" if interval is None else f"{max(0, interval[0]):.3f} to {min(100, interval[1]):.3f}"


def _probability(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds:.2g}" if seconds < 1 else f"{seconds:.1f}" if seconds < 100 else f"{seconds:.0f}"


def _curve_section(ledger: Ledger) -> str:
    rows = []
    for cell in CURVE:
        found = reading(cell, ledger)
        without = "" if found is None else _seconds(found.updates_seconds)
        figures = _figures(found, cell.seeds, None)[:3]
        beside = _beside(found)[1:]
        fleets = "" if found is None else found.fleets
        rows.append([str(cell.recipe.epochs), *figures, *beside[:1], without, fleets, *beside[1:]])
    header = ["epochs", "measured", "95 % interval", "seeds", "seconds", "without warm-up", "fleets of", "hardware"]
    parts = [
        "## Error against seconds: the full ladder at 100 labels, by its number of epochs",
        "Schedules are to be compared by their time without warm-up, where that was kept: what was compiled for the "
        "first is there for the others. Nor are rows to be compared whose fleets or hardware differ: a member of a "
        "larger fleet takes less time, and one beside other runs more.",
        markdown_table(header, rows, numbers_from=0),
    ]
    if "curve.svg" in pictures(ledger):
        parts.insert(1, "![Test error against seconds a member](curve.svg)")
    return "\n\n".join(parts)


def _rivals_section(ledger: Ledger) -> str:
    rows = [[f"`{rival.name}`", _settings(rival), *_rival_figures(rival, ledger)] for rival in RIVALS]
    header = ["", "differs from scikit-learn's defaults", "measured", "95 % interval", "seeds", "seconds", "hardware"]
    return "\n\n".join(
        [
            "## Rivals: scikit-learn's methods on the same splits of MNIST",
            "No setting was chosen by these errors. `rows` is how many of the 60,000 a method was shown, where a fit "
            "on all of them was stopped after 20 minutes. Seconds are those of `fit`.",
            markdown_table(header, rows, numbers_from=2),
        ]
    )


def _settings(rival: Rival) -> str:
    return ", ".join(f"{name}={value}" for name, value in rival.settings.items())


def _rival_figures(rival: Rival, ledger: Ledger) -> list[str]:
    found = reading(rival, ledger)
    return [*_figures(found, rival.seeds, None)[:3], *_beside(found)[1:]]


def _studies_section(ledger: Ledger) -> str:
    """Studies of which a setting was tried, in full; the others by name."""
    parts = [
        "## Studies: validation error on 10,000 held-out training rows",
        "Some seeds are harder than others: settings are to be compared by the seeds that they share. Where not all "
        "were tried, and not the first, they are named.",
    ]
    untried = []
    for name, points in groupby(STUDIES, key=lambda setting: setting.study):
        settings = list(points)
        if any(reading(setting, ledger) for setting in settings):
            parts += [f"### `{name}`", _study_table(settings, ledger)]
        else:
            untried.append(f"`{name}`")
    if untried:
        parts.append(f"Not run: {', '.join(untried)}.")
    return "\n\n".join(parts)


def _study_table(settings: Sequence[Setting], ledger: Ledger) -> str:
    choice = chosen(settings, ledger)
    found = {setting: reading(setting, ledger) for setting in settings}
    complete = all(each and set(each.errors).issuperset(range(setting.seeds)) for setting, each in found.items())
    rows = []
    for setting, each in found.items():
        point = setting.name.rpartition("/")[2]
        labeled = "" if each is None or each.labeled is None else in_words(each.labeled, 3)
        figures = [*_figures(each, setting.seeds, None)[:3], labeled]
        marked = f"**{point}** ({'chosen' if complete else 'best so far'})" if setting == choice else point
        rows.append([marked, *figures])
    header = ["setting", "validation error, %", "95 % interval", "seeds", "labelled rows' statistics"]
    return markdown_table(header, rows)


_CLOSING = """## To measure it again

```console
$ tikas reproduce --list              # every name, with how much of it is measured
$ tikas reproduce table1/full/100     # what is missing of a cell; a row or a table likewise
$ tikas reproduce all                 # what is missing of the paper and of the curve
$ tikas reproduce rivals              # what is missing of scikit-learn's methods; no GPU needed
$ tikas reproduce study/gamma/100     # choose a setting on held-out rows
$ tikas reproduce --render            # this page and its pictures
```

A member that has a record is never run again. Records of several machines are merged by putting their files here; of
two records of one member the first counts, by the name of its file, then by its line."""
