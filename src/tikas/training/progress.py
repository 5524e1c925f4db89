"""The progress bar: epoch, costs, error and time left, on a terminal and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from tikas.training.fit import Progress


@contextmanager
def progress_bar(
    *, shown: bool = True, title: str = "training", console: Console | None = None
) -> Iterator[Callable[[Progress], None] | None]:
    """A bar for as long as the context lasts; gives what to call after every epoch, or None where no bar is shown.

    Parameters
    ----------
    shown
        Whether a bar is wanted; on what is not a terminal there is none in any case.
    title
        What stands before the bar.
    console
        Where it is drawn; standard error by default.

    Examples
    --------
    >>> import io
    >>> from rich.console import Console
    >>> with progress_bar(console=Console(file=io.StringIO())) as on_epoch:
    ...     on_epoch is None  # not a terminal: `fit` takes None for no callback
    True
    """
    if not shown:
        yield None
        return
    from rich.console import Console as RichConsole
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = console or RichConsole(stderr=True)
    if not console.is_terminal:
        yield None
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

        def on_epoch(progress: Progress) -> None:
            bar.update(task, total=progress.epochs, completed=progress.epoch, figures=figures(progress))

        yield on_epoch


def figures(progress: Progress) -> str:
    """The costs of an epoch, and the validation error where there is one, averaged over the members.

    Before the first epoch, what is being done.

    Examples
    --------
    >>> from tikas.training.fit import Progress
    >>> figures(Progress(3, 10, [{"total": 1.0, "supervised": 0.5}, {"total": 2.0, "supervised": 0.3}]))
    'cost 1.5 (0.4)'
    """
    lines = progress.members
    if not lines:
        return progress.doing
    names = [name for name in ("total", "supervised", "validation_error") if name in lines[0]]
    means = {name: sum(line[name] for line in lines) / len(lines) for name in names}
    shown = f"cost {means['total']:.4g} ({means['supervised']:.2g})"
    return shown + (f", error {means['validation_error']:.2f}" if "validation_error" in means else "")
