"""SVG figures of errors: each seed beside the published mean, and error against training time. They need matplotlib."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MEASURED, PUBLISHED, MISSING = "#1f5fa8", "#c2571a", "#8a8a8a"

STYLE: dict[Any, Any] = {
    "svg.hashsalt": "tikas",  # the same ids in the file every time
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


@dataclass(frozen=True)
class Errors:
    """Measured errors of some seeds (empty: missing), and the published mean with its deviation, where known."""

    measured: Sequence[float] = ()
    published: float | None = None
    deviation: float | None = None


@dataclass(frozen=True)
class Timing:
    """A mean error, half the width of its confidence interval, and the seconds of a member with and without warm-up."""

    label: str
    error: float
    margin: float
    seconds: float
    seconds_without_warm_up: float


@contextmanager
def svg_figure(path: str | Path) -> Iterator[Any]:
    """Yield a matplotlib figure and save it at the end, with the same bytes for the same content.

    Raises ImportError if matplotlib is not installed.
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("Figures need matplotlib: pip install 'tikas[plots]'.") from error
    with mpl.rc_context(STYLE):
        figure = Figure(layout="constrained")
        yield figure
        figure.savefig(path, metadata={"Date": None, "Creator": None})


def plot_errors(path: str | Path, columns: Sequence[str], rows: Mapping[str, Mapping[str, Errors]]) -> None:
    """Draw the errors of every seed, one panel for each column and one line for each row.

    Parameters
    ----------
    path : str or Path
        The SVG file to write.
    columns : sequence of str
        Numbers of labels, as text.
    rows : mapping of str to mapping of str to Errors
        By the title of the row, then by column.

    Raises
    ------
    ImportError
        If matplotlib is not installed.

    Examples
    --------
    >>> import tempfile
    >>> rows = {"Ladder": {"100": Errors([1.1, 0.9], published=1.06, deviation=0.37)}, "Γ": {"100": Errors()}}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     plot_errors(folder + "/errors.svg", ["100"], rows)
    ...     "missing" in Path(folder, "errors.svg").read_text()
    True
    """
    with svg_figure(path) as figure:
        figure.set_size_inches(0.075 * max(map(len, rows)) + 2.6 * len(columns), 1.2 + 0.45 * len(rows))
        draw_errors(figure, columns, rows)


def draw_errors(figure: Any, columns: Sequence[str], rows: Mapping[str, Mapping[str, Errors]]) -> None:
    """Draw on a figure what `plot_errors` draws."""
    panels: Sequence[Axes] = figure.subplots(1, len(columns), sharey=True, squeeze=False)[0]
    for axes, column in zip(panels, columns, strict=True):
        for line, row in enumerate(rows.values()):
            if column in row:
                _draw_errors(axes, line, row[column])
        _set_log_ticks(axes)
        axes.set_title(f"{column} labels", fontsize=9)
        axes.set_xlabel("test error, %")
    panels[0].set_yticks(range(len(rows)), list(rows))
    panels[0].set_ylim(len(rows) - 0.5, -0.5)
    published = any(errors.published is not None for row in rows.values() for errors in row.values())
    _draw_legend(figure, published=published, columns=min(2, len(columns)))


def _draw_errors(axes: Axes, line: int, errors: Errors) -> None:
    """Draw the seeds above the line, the published mean and deviation below it."""
    if errors.published is not None:
        margin: list[list[float]] | None = None
        if errors.deviation is not None:  # a logarithmic axis cannot show 0
            margin = [[min(errors.deviation, 0.9 * errors.published)], [errors.deviation]]
        look: dict[str, Any] = {"markersize": 3.5, "capsize": 2.5, "linewidth": 1, "color": PUBLISHED}
        axes.errorbar(errors.published, line + 0.24, xerr=margin, fmt="D", **look)
    if not errors.measured:
        axes.text(0.98, line - 0.1, "missing", transform=axes.get_yaxis_transform(), ha="right", color=MISSING)
        return
    style = {"color": MEASURED, "linewidth": 1}
    axes.boxplot(
        errors.measured,
        positions=[line - 0.12],
        widths=0.3,
        orientation="horizontal",
        manage_ticks=False,
        showfliers=False,
        boxprops=style,
        whiskerprops=style,
        capprops=style,
        medianprops={**style, "linewidth": 2},
    )
    heights = [line - 0.12] * len(errors.measured)
    axes.plot(errors.measured, heights, ".", color=MEASURED, alpha=0.4, markersize=4, markeredgewidth=0)


def _draw_legend(figure: Any, *, published: bool, columns: int) -> None:
    from matplotlib.lines import Line2D

    seeds = Line2D([], [], color=MEASURED, marker=".", label="measured: seeds, quartiles and median")
    paper = Line2D([], [], color=PUBLISHED, marker="D", markersize=3.5, linewidth=1, label="paper: mean ± deviation")
    handles = [seeds, paper] if published else [seeds]
    figure.legend(handles=handles, loc="outside lower right", ncols=columns, frameon=False, fontsize=8)


def _set_log_ticks(axes: Axes) -> None:
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, StrMethodFormatter

    axes.set_xscale("log")
    low, high = axes.get_xlim()
    few = MaxNLocator(4, steps=(1, 2, 5, 10))  # 1, 2, 5 alone would leave a narrow range without ticks
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)) if high / low > 5 else few)
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_locator(NullLocator())


def plot_error_against_seconds(path: str | Path, series: Mapping[str, Sequence[Timing]]) -> None:
    """Draw mean errors with their intervals against the seconds of a member, one color for each series.

    Filled markers include the warm-up. Lines connect the hollow ones, which do not: only the schedule that ran first
    had to wait for the compiler.

    Parameters
    ----------
    path : str or Path
        The SVG file to write.
    series : mapping of str to sequence of Timing
        By the name in the legend.

    Raises
    ------
    ImportError
        If matplotlib is not installed.

    Examples
    --------
    >>> import tempfile
    >>> timings = [Timing("5 epochs", 1.5, 0.1, 4.0, 3.2), Timing("10 epochs", 1.1, 0.1, 8.0, 6.4)]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     plot_error_against_seconds(folder + "/curve.svg", {"two cores": timings})
    ...     "5 epochs" in Path(folder, "curve.svg").read_text()
    True
    """
    style: dict[str, Any] = {"markersize": 4, "linewidth": 1}
    with svg_figure(path) as figure:
        figure.set_size_inches(4.6, 3.4)
        axes: Axes = figure.subplots()
        for name, timings in series.items():
            seconds, errors = [each.seconds for each in timings], [each.error for each in timings]
            margins = [each.margin for each in timings]
            bars = axes.errorbar(seconds, errors, margins, fmt="o", capsize=2.5, label=name, **style)
            color = bars[0].get_color()
            steady = [each.seconds_without_warm_up for each in timings]
            axes.plot(steady, errors, "o-", color=color, markerfacecolor="white", **style)
            for left, each in zip(steady, timings, strict=True):
                axes.annotate(each.label, (each.seconds, each.error), (5, 5), textcoords="offset points", fontsize=8)
                axes.hlines(each.error, left, each.seconds, color=color, linewidth=0.6, linestyle="dotted")
        _set_log_ticks(axes)
        axes.set_xlabel("seconds per member (hollow: without warm-up)")
        axes.set_ylabel("test error, %")
        figure.legend(loc="outside lower right", frameon=False, fontsize=8)
