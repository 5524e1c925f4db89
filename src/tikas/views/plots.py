"""Pictures of the results: boxes of the seeds beside the paper's interval, and error against seconds.

They need matplotlib, from the extra `plots`. The same records and the same matplotlib give the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tikas.experiments.cells import Cell, Row, Table
from tikas.experiments.ledger import Ledger
from tikas.experiments.readings import Reading, reading

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OURS, PAPERS, QUIET = "#1f5fa8", "#c2571a", "#8a8a8a"
STABLE: dict[Any, Any] = {
    "svg.hashsalt": "tikas",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


class PlotsMissingError(RuntimeError):
    """matplotlib is not installed."""


def draw(pictures: Mapping[str, Table | tuple[Cell, ...]], ledger: Ledger, folder: Path) -> list[Path]:
    """Draw each picture into a file of the folder, and return where they are.

    Raises
    ------
    PlotsMissingError
        Where matplotlib is not installed.

    Examples
    --------
    >>> from tikas.experiments.paper import TABLE_1
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [path.name for path in draw({"table1.svg": TABLE_1}, Ledger(), Path(folder))]
    ['table1.svg']
    """
    paths = []
    for name, subject in pictures.items():
        path = folder / name
        with figure_in(path) as figure:
            if isinstance(subject, Table):
                _boxes(figure, subject, ledger)
            else:
                _curve(figure, subject, ledger)
        paths.append(path)
    return paths


@contextmanager
def figure_in(path: str | Path) -> Iterator[Any]:
    """A figure that is saved at the end, without date and with the same names in it every time.

    Raises
    ------
    PlotsMissingError
        Where matplotlib is not installed.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with figure_in(Path(folder, "empty.svg")) as figure:
    ...         figure.set_size_inches(2, 1)
    ...     "<svg" in Path(folder, "empty.svg").read_text()
    True
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise PlotsMissingError(
            "matplotlib is not installed, so nothing was drawn; pip install 'tikas[plots]' brings it."
        ) from error
    with mpl.rc_context(STABLE):
        figure = Figure(layout="constrained")
        yield figure
        figure.savefig(path, metadata={"Date": None, "Creator": None})


def _boxes(figure: Any, table: Table, ledger: Ledger) -> None:
    """One panel for each column that has something to show; rows from top to bottom as in the table."""
    rows = [row for row in table.rows if isinstance(row, Row)]
    columns = [column for column in table.columns if any(cell.column == column for row in rows for cell in row.cells)]
    titles = 0.075 * max(len(row.title) for row in rows)
    figure.set_size_inches(titles + 2.6 * len(columns), 1.2 + 0.45 * len(rows))
    panels: Sequence[Axes] = figure.subplots(1, len(columns), sharey=True, squeeze=False)[0]
    for axes, column in zip(panels, columns, strict=True):
        for place, row in enumerate(rows):
            for cell in row.cells:
                if cell.column == column:
                    _box(axes, place, cell, reading(cell, ledger))
        _log_ticks(axes)
        axes.set_title(f"{column} labels", fontsize=9)
        axes.set_xlabel("test error, %")
    panels[0].set_yticks(range(len(rows)), [row.title for row in rows])
    panels[0].set_ylim(len(rows) - 0.5, -0.5)
    _legend(figure, published=table.has_published, abreast=min(2, len(columns)))


def _legend(figure: Any, *, published: bool, abreast: int) -> None:
    from matplotlib.lines import Line2D

    seeds = Line2D([], [], color=OURS, marker=".", label="measured: the seeds, their quartiles and median")
    paper = Line2D([], [], color=PAPERS, marker="D", markersize=3.5, linewidth=1, label="paper: mean ± deviation")
    handles = [seeds, paper] if published else [seeds]
    figure.legend(handles=handles, loc="outside lower right", ncols=abreast, frameon=False, fontsize=8)


def _box(axes: Axes, place: int, cell: Cell, found: Reading | None) -> None:
    """The seeds above, the paper's mean and deviation below."""
    if cell.published is not None:
        axes.errorbar(
            cell.published.mean,
            place + 0.24,
            xerr=None if cell.published.deviation is None else [[_left(cell)], [cell.published.deviation]],
            fmt="D",
            markersize=3.5,
            capsize=2.5,
            linewidth=1,
            color=PAPERS,
        )
    if found is None:
        axes.text(0.98, place - 0.1, "missing", transform=axes.get_yaxis_transform(), ha="right", color=QUIET)
        return
    errors = list(found.errors.values())
    line = {"color": OURS, "linewidth": 1}
    axes.boxplot(
        errors,
        positions=[place - 0.12],
        widths=0.3,
        orientation="horizontal",
        manage_ticks=False,
        showfliers=False,
        boxprops=line,
        whiskerprops=line,
        capprops=line,
        medianprops={**line, "linewidth": 2},
    )
    axes.plot(errors, [place - 0.12] * len(errors), ".", color=OURS, alpha=0.4, markersize=4, markeredgewidth=0)


def _left(cell: Cell) -> float:
    """The deviation to the left, kept above zero for the logarithmic axis."""
    assert cell.published is not None
    assert cell.published.deviation is not None
    return min(cell.published.deviation, 0.9 * cell.published.mean)


def _log_ticks(axes: Axes) -> None:
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, StrMethodFormatter

    axes.set_xscale("log")
    low, high = axes.get_xlim()
    few = MaxNLocator(4, steps=(1, 2, 5, 10))
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)) if high / low > 5 else few)
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_locator(NullLocator())


def _curve(figure: Any, cells: Sequence[Cell], ledger: Ledger) -> None:
    """Mean error with its 95 % interval against seconds a member, for each schedule with warm-up and without.

    Lines join what is without: which schedule had to wait for the compiler is a matter of which ran first.
    """
    figure.set_size_inches(4.6, 3.4)
    axes: Axes = figure.subplots()
    found = [(cell, each, each.seconds) for cell in cells if (each := reading(cell, ledger)) is not None]
    timed = [(cell, each, seconds) for cell, each, seconds in found if seconds is not None]
    for hardware in sorted({each.hardware for _, each, _ in timed}):
        points = [(cell, each, seconds) for cell, each, seconds in timed if each.hardware == hardware]
        means = [each.summary.mean for _, each, _ in points]
        seconds = [seconds for *_, seconds in points]
        reach = [(interval[1] - interval[0]) / 2 if (interval := e.summary.interval()) else 0 for _, e, _ in points]
        style: dict[str, Any] = {"markersize": 4, "linewidth": 1}
        fleets = ", ".join(map(str, sorted({size for _, each, _ in points for size in each.sizes})))
        label = f"{hardware}, fleets of {fleets}"
        color = axes.errorbar(seconds, means, reach, fmt="o", capsize=2.5, label=label, **style)[0].get_color()
        without = {known: each.summary.mean for _, each, _ in points if (known := each.updates_seconds) is not None}
        axes.plot([*without], [*without.values()], "o-", color=color, markerfacecolor="white", **style)
        for cell, each, x in points:
            where = (x, each.summary.mean)
            axes.annotate(f"{cell.recipe.epochs} epochs", where, (5, 5), textcoords="offset points", fontsize=8)
            axes.hlines(each.summary.mean, each.updates_seconds or x, x, color=color, linewidth=0.6, linestyle="dotted")
    _log_ticks(axes)
    axes.set_xlabel("seconds a member (hollow: without warm-up)")
    axes.set_ylabel("test error, %")
    figure.legend(loc="outside lower right", frameon=False, fontsize=8)
