"""A study of `tikas tune` as figure and page: its trials, how important each setting was, and what was found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tikas.report.page import STYLE, Facts, Page, Picture, Pictures, Section, Table, Text, draw
from tikas.report.plots import BLUE, ORANGE
from tikas.training.recipe import Recipe
from tikas.training.tune import Measured

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHOWN = 10
"""Trials in the table."""
LOGARITHMIC = ("cost_", "learning_rate", "width")
"""Beginnings of the parameters that are searched on a logarithmic scale."""
CAUTION = "The best trial was chosen by these labels, so its error on new rows is likely to be larger."


def plot_importances(path: str | Path, importances: Mapping[str, float]) -> None:
    """Draw the share of the differences between trials that each parameter of a study explains, the largest first.

    Parameters
    ----------
    path : str or Path
        The SVG file to write.
    importances : mapping of str to float
        By the name of the parameter, from the largest to the smallest.

    Raises
    ------
    ImportError
        If matplotlib is not installed.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     plot_importances(folder + "/importances.svg", {"noise": 0.7, "learning_rate": 0.3})
    ...     "learning rate" in Path(folder, "importances.svg").read_text()
    True
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("Figures need matplotlib: pip install 'tikas[plots]'.") from error
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(5, 0.6 + 0.4 * len(importances)), layout="constrained")
        _draw_importances(figure.add_subplot(), importances)
        figure.savefig(path, metadata={"Date": None, "Creator": None})


def _draw_importances(axes: Axes, importances: Mapping[str, float]) -> None:
    bars = axes.barh([_words(name) for name in importances], list(importances.values()), color=BLUE)
    axes.bar_label(bars, fmt="%.2f", padding=3)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.2 * max(importances.values(), default=1.0))
    axes.set_xlabel("importance")


def study_page(
    trials: Sequence[Measured],
    importances: Mapping[str, float],
    name: str,
    unit: str,
    facts: Sequence[tuple[str, str]],
    read: str,
    commands: Sequence[str],
) -> Page:
    """Return the page on a study.

    Parameters
    ----------
    trials : sequence of Measured
        The finished trials, the best first.
    importances : mapping of str to float
        By parameter; empty if they cannot be known.
    name : str
        What was tuned.
    unit : str
        Unit of the errors: " %", or nothing.
    facts : sequence of (str, str)
        Counts to show at the top.
    read : str
        What was read from a table; empty for other data.
    commands : sequence of str
        The command that wrote the page, and the one that trains with what was found.
    """
    best = trials[0]
    succeeded = [trial for trial in trials if trial.errors]
    sentences = [f"The best of {len(trials)} trials has a cross-validated error of {_error(best, unit)}."]
    defaults = [trial for trial in succeeded if trial.number == 0]
    sentences += [f"The default settings have {_error(trial, unit)}." for trial in defaults]
    lines = [
        [str(trial.number + 1), _error(trial, unit), *settings_text(trial.recipe), f"{trial.seconds:.1f}"]
        for rank, trial in enumerate(trials)
        if rank < SHOWN or trial.number == 0
    ]
    header = ["trial", "error ± standard error", "network", "noise", "costs", "learning rate", "seconds"]
    caption = "The best trials, and trial 1, which has the default settings"
    sections = [Section("Trials", [Table(caption, header, lines), Pictures([_over_time(succeeded, unit)])])]
    if importances:
        pictures = [
            draw(
                lambda axes: _draw_importances(axes, importances),
                "Importance of each setting: " + ", ".join(f"{_words(n)} {v:.2f}" for n, v in importances.items()),
                "The share of the differences between trials that each setting explains",
            ),
            *(_scatter(succeeded, parameter, unit) for parameter in importances),
        ]
        sections.append(Section("What the settings do", [Pictures(pictures)]))
    if read:
        sections.append(Section("What was read", [Text(line) for line in read.splitlines() if line.strip()]))
    sections.append(Section("Run it again", [Text(command, code=True) for command in commands]))
    return Page(f"Study of {name}", [*sentences, CAUTION], Facts(facts), sections)


def settings_text(recipe: Recipe) -> list[str]:
    """Return network, noise, costs and learning rate of a recipe as text."""
    lists = (recipe.network or ("none",)), recipe.noise, recipe.costs, (recipe.learning_rate,)
    return [" ".join(value if isinstance(value, str) else f"{value:g}" for value in values) for values in lists]


def _error(trial: Measured, unit: str) -> str:
    if not trial.errors:
        return f"failed: {trial.failure}"
    form = ".2f" if unit else ".4g"
    return f"{trial.error:{form}} ± {trial.standard_error:{form}}{unit}"


def _over_time(trials: Sequence[Measured], unit: str) -> Picture:
    """Return the error of each trial in their order, and the smallest so far."""
    ordered = sorted(trials, key=lambda trial: trial.number)
    numbers = [trial.number + 1 for trial in ordered]
    smallest = [min(trial.error for trial in ordered[: end + 1]) for end in range(len(ordered))]

    def draw_on(axes: Axes) -> None:
        axes.plot(numbers, [trial.error for trial in ordered], "o", color=BLUE, label="trial")
        axes.step(numbers, smallest, where="post", color=ORANGE, label="smallest so far")
        axes.set_xlabel("trial")
        axes.set_ylabel(f"error in{unit}" if unit else "error")
        axes.legend()

    return draw(
        draw_on, f"Error of every trial; the smallest is {smallest[-1]:.4g}{unit}.", "The trials in their order"
    )


def _scatter(trials: Sequence[Measured], parameter: str, unit: str) -> Picture:
    """Return the error of each trial by the value of one parameter."""
    values, errors = [trial.params[parameter] for trial in trials], [trial.error for trial in trials]

    def draw_on(axes: Axes) -> None:
        axes.plot(values, errors, "o", color=BLUE)
        if parameter.startswith(LOGARITHMIC):
            axes.set_xscale("log")
        if parameter in ("width", "layers"):
            axes.set_xticks(sorted(set(values)), list(map(str, sorted(set(values)))))
            axes.minorticks_off()
        axes.set_xlabel(_words(parameter))
        axes.set_ylabel(f"error in{unit}" if unit else "error")

    return draw(draw_on, f"Error of every trial by {_words(parameter)}; the best has {values[0]:.3g}.", "")


def _words(parameter: str) -> str:
    return parameter.replace("_", " ")
