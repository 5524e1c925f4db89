"""What is shown while a fit runs: `Progress` is passed to every callback, `progress_bar` is the callback that draws."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from rich.console import Console


class Progress(NamedTuple):
    """State of a fit: epochs done and in total, each training member's newest history line, or a message before it.

    With members in several groups, trained one after the other, the epochs of all groups count. Within a long epoch,
    `part` is the share of it that is done; there is no line and no message then.
    """

    epoch: int
    epochs: int
    members: Sequence[Mapping[str, Any]]
    message: str = ""
    part: float = 0.0


@contextmanager
def progress_bar(
    *, shown: bool = True, title: str = "training", console: Console | None = None
) -> Iterator[Callable[[Progress], None] | None]:
    """Draw a progress bar while the context lasts; yields the callback to give to `Trainer`, None if `shown` is false.

    It is drawn on standard error, unless a console is given. Without a terminal, only messages are printed.
    """
    if not shown:
        yield None
        return
    from rich.console import Console as RichConsole
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = console or RichConsole(stderr=True)
    if not console.is_terminal:
        yield lambda progress: _print_message(console, title, progress.message)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[figures]}"),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=None, figures="")
        error: float | None = None

        def update(progress: Progress) -> None:
            nonlocal error
            if progress.part:
                bar.update(task, completed=progress.epoch + progress.part)
                return
            lines = progress.members
            if not lines:  # another group of members starts
                error = None
            elif "validation_error" in lines[0]:
                error = _mean(lines, "validation_error")
            figures = progress.message or _figures(lines, error)
            bar.update(task, total=progress.epochs, completed=progress.epoch, figures=figures)

        yield update


@contextmanager
def row_bar(
    title: str, rows: int, *, shown: bool = True, console: Console | None = None
) -> Iterator[Callable[[int], None]]:
    """Draw a progress bar of rows with the time left, on standard error if that is a terminal.

    Yields a function to call with the number of rows that were done since the last call.
    """
    from rich.console import Console as RichConsole
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = console or RichConsole(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn(), TimeRemainingColumn()
    with Bar(*columns, console=console, transient=True, disable=not (shown and console.is_terminal)) as bar:
        task = bar.add_task(title, total=rows)
        yield lambda done: bar.advance(task, done)


def _print_message(console: Console, title: str, message: str) -> None:
    if message:
        console.print(f"{title}: {message}", markup=False, highlight=False, soft_wrap=True)


def _figures(lines: Sequence[Mapping[str, Any]], error: float | None) -> str:
    """Return the mean costs over the members and the newest validation error, where there is one."""
    costs = f"cost {_mean(lines, 'total'):.4g} ({_mean(lines, 'supervised'):.2g})"
    return costs if error is None else f"{costs}, error {error:.2f}"


def _mean(lines: Sequence[Mapping[str, Any]], name: str) -> float:
    return float(sum(line[name] for line in lines) / len(lines))
