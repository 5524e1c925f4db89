"""The progress bar: epoch, costs, error and time left, on a terminal; elsewhere a line for what comes before epochs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from tikas.training.fit import Progress


@contextmanager
def progress_bar(
    *, shown: bool = True, title: str = "training", console: Console | None = None
) -> Iterator[Callable[[Progress], None] | None]:
    """A bar for as long as the context lasts; gives what to call after every epoch, or None where nothing is shown.

    Parameters
    ----------
    shown
        Whether a bar is wanted. What is not a terminal gets none, but a line before each fleet starts: what it needs.
    title
        What stands before the bar.
    console
        Where it is drawn; standard error by default.

    Examples
    --------
    >>> import sys
    >>> from rich.console import Console
    >>> from tikas.training.fit import Progress
    >>> with progress_bar(console=Console(file=sys.stdout)) as on_epoch:
    ...     on_epoch(Progress(0, 10, [], "getting ready: 5 members, about 0.4 of 23 GB"))
    ...     on_epoch(Progress(1, 10, [{"total": 1.0, "supervised": 0.5}]))
    training: getting ready: 5 members, about 0.4 of 23 GB
    """
    if not shown:
        yield None
        return
    from rich.console import Console as RichConsole
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = console or RichConsole(stderr=True)
    if not console.is_terminal:
        yield lambda progress: _tell(console, title, progress.doing)
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

        def on_epoch(progress: Progress) -> None:
            nonlocal error
            error = last_error(progress, error)
            bar.update(task, total=progress.epochs, completed=progress.epoch, figures=figures(progress, error))

        yield on_epoch


def _tell(console: Console, title: str, doing: str) -> None:
    if doing:
        console.print(f"{title}: {doing}", markup=False, highlight=False, soft_wrap=True)


def last_error(progress: Progress, before: float | None) -> float | None:
    """The validation error to show, averaged over the members: of an epoch that was not measured, the one before it.

    Where a fleet gets ready there is none: the one before is another's.

    Examples
    --------
    >>> from tikas.training.fit import Progress
    >>> told = [Progress(1, 4, [{"validation_error": 3.0}]), Progress(2, 4, [{"total": 1.0}]), Progress(2, 4, [])]
    >>> [last_error(progress, before=5.0) for progress in told]
    [3.0, 5.0, None]
    """
    lines = progress.members
    if lines and "validation_error" in lines[0]:
        return _mean(lines, "validation_error")
    return before if lines else None


def figures(progress: Progress, error: float | None = None) -> str:
    """The costs of an epoch, averaged over the members, and the validation error where there is one.

    Before the first epoch, what is being done.

    Examples
    --------
    >>> from tikas.training.fit import Progress
    >>> progress = Progress(3, 10, [{"total": 1.0, "supervised": 0.5}, {"total": 2.0, "supervised": 0.3}])
    >>> figures(progress), figures(progress, error=4.5)
    ('cost 1.5 (0.4)', 'cost 1.5 (0.4), error 4.50')
    """
    lines = progress.members
    if not lines:
        return progress.doing
    shown = f"cost {_mean(lines, 'total'):.4g} ({_mean(lines, 'supervised'):.2g})"
    return shown if error is None else f"{shown}, error {error:.2f}"


def _mean(lines: Sequence[Mapping[str, float]], name: str) -> float:
    return sum(line[name] for line in lines) / len(lines)
