"""Callbacks: what is shown, logged or written while a fit runs. Each is called with a `Progress`."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tikas.training.environment import is_first_process

if TYPE_CHECKING:
    from rich.console import Console
    from torch.utils.tensorboard import SummaryWriter

LOGGER = logging.getLogger("tikas")
"""Gets a line now and then at level INFO, whether a fit is verbose or not."""

SECONDS_BETWEEN_LINES = 30.0
"""Least time between two lines about the epochs of a fit; the first and the last epoch always have one."""


class Progress(NamedTuple):
    """State of a fit: epochs done and in total, each training member's newest history line, or a message before it.

    With members in several groups, trained one after the other, the epochs of all groups count. Lines are those of
    `history_`: ``member``, ``epoch``, ``learning_rate``, ``total``, ``supervised``, ``denoising``, ``seconds``, and
    ``validation_error`` where it was measured. Before training, when settings are not known yet, `epochs` is 0. Within
    a long epoch, `part` is the share of it that is done; there is no line and no message then.
    """

    epoch: int
    epochs: int
    members: Sequence[Mapping[str, Any]]
    message: str = ""
    part: float = 0.0


Callback = Callable[[Progress], object]


class ProgressLines:
    """Writes messages at once, and a line about the epochs now and then: costs, validation error and time left.

    Parameters
    ----------
    write : callable
        Takes a line.
    title : str, default="training"
        Begins each line.
    seconds : float, default=SECONDS_BETWEEN_LINES
        Least time between two lines.
    """

    def __init__(
        self, write: Callable[[str], object], title: str = "training", seconds: float = SECONDS_BETWEEN_LINES
    ) -> None:
        self.write, self.title, self.seconds = write, title, seconds
        self._error: float | None = None
        self._began: tuple[float, int] | None = None
        self._written = -seconds
        self._last: str | None = None

    def __call__(self, progress: Progress) -> None:
        """Write a message, or a line if it is time."""
        now = time.monotonic()
        if progress.message:
            self.write(f"{self.title}: {progress.message}")
        if progress.part:
            return
        if not progress.members:  # another group of members starts
            self._error, self._began = None, (now, progress.epoch)
            return
        self._error = _newest_error(progress, self._error)
        line = f"{self.title}: epoch {progress.epoch}/{progress.epochs}, {_figures(progress.members, self._error)}"
        if self._began is not None and self._began[1] < progress.epoch < progress.epochs:
            began, first = self._began
            left = (now - began) / (progress.epoch - first) * (progress.epochs - progress.epoch)
            line += f", {timedelta(seconds=round(left))} left"
        self._last = line
        if now >= self._written + self.seconds:
            self._written = now
            self.close()

    def close(self) -> None:
        """Write the line of the last epoch, if that was not written."""
        if self._last is not None:
            self.write(self._last)
            self._last = None


@contextmanager
def progress_bar(
    *, shown: bool = True, title: str = "training", console: Console | None = None
) -> Iterator[Callable[[Progress], None] | None]:
    """Draw a progress bar while the context lasts; yields the callback to give to `Trainer`, None if `shown` is false.

    It is drawn on standard error, unless a console is given. Without a terminal, messages and a line now and then are
    printed. Of several processes, the first draws it.
    """
    if not (shown and is_first_process()):
        yield None
        return
    from rich.console import Console as RichConsole
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = console or RichConsole(stderr=True)
    if not console.is_terminal:
        yield ProgressLines(lambda line: console.print(line, markup=False, highlight=False, soft_wrap=True), title)
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
            error = _newest_error(progress, error)
            figures = progress.message or _figures(progress.members, error)
            bar.update(task, total=progress.epochs or None, completed=progress.epoch, figures=figures)

        yield update


@contextmanager
def closed_at_the_end(callbacks: Sequence[Callback]) -> Iterator[None]:
    """Call the method ``close`` of the callbacks that have one when the context ends."""
    try:
        yield
    finally:
        for callback in callbacks:
            close = getattr(callback, "close", None)
            if close is not None:
                close()


@contextmanager
def fit_callbacks(
    callbacks: Sequence[Callback] | None, *, verbose: bool, title: str = "training"
) -> Iterator[list[Callback]]:
    """Yield the callbacks of a fit: those given, the progress bar if `verbose`, and the lines of the log.

    Of several processes, the first alone has callbacks.
    """
    if callable(callbacks) or not all(map(callable, callbacks or ())):
        raise ValueError(f"callbacks={callbacks!r}: expected a list of callables, such as [tikas.TensorBoard()].")
    if not is_first_process():
        yield []
        return
    with progress_bar(shown=verbose, title=title) as bar:
        shown: list[Callback] = [] if bar is None else [bar]
        if LOGGER.isEnabledFor(logging.INFO):
            shown.append(ProgressLines(LOGGER.info, title))
        yield [*shown, *(callbacks or ())]


class TensorBoard:
    """Callback that writes the costs, learning rate and validation error of every epoch for TensorBoard.

    Each fit has a folder of its own in `log_dir`, with one folder for each member if there are several. Clones, as a
    search makes them, write into the same `log_dir`. It needs the package tensorboard: ``pip install
    'tikas[tensorboard]'``.

    Parameters
    ----------
    log_dir : str or Path, default="runs"
        The folder that ``tensorboard --logdir`` shows.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from tikas import LadderClassifier, TensorBoard
    >>> X, y = [[0.0], [0.1], [0.9], [1.0]] * 10, [0, -1, -1, 1] * 10
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     classifier = LadderClassifier((4,), epochs=2, batch_size=20, callbacks=[TensorBoard(folder)]).fit(X, y)
    ...     len(list(Path(folder).glob("*/events*")))
    1
    """

    _fits = count()

    def __init__(self, log_dir: str | Path = "runs") -> None:
        self.log_dir = log_dir
        self._writers: dict[int, SummaryWriter] = {}
        self._folder = Path(log_dir)

    def __call__(self, progress: Progress) -> None:
        """Write the newest line of each member."""
        if not self._writers:
            name = f"{datetime.now():%Y-%m-%d-%H%M%S}-{os.getpid()}-{next(self._fits)}"
            self._folder = Path(self.log_dir, name)
        for line in progress.members:
            writer = self._writer(line["member"], several=len(progress.members) > 1)
            scalars = {f"cost/{name}": line[name] for name in ("total", "supervised")}
            scalars |= {f"denoising/level {level}": cost for level, cost in enumerate(line["denoising"])}
            scalars |= {name: line[name] for name in ("learning_rate", "validation_error") if name in line}
            for name, value in scalars.items():
                writer.add_scalar(name, value, line["epoch"])

    def _writer(self, member: int, *, several: bool) -> SummaryWriter:
        if member not in self._writers:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError as error:
                raise ImportError(
                    "The callback TensorBoard needs the package tensorboard: pip install 'tikas[tensorboard]'."
                ) from error
            self._writers[member] = SummaryWriter(self._folder / f"member-{member}" if several else self._folder)
        return self._writers[member]

    def close(self) -> None:
        """Finish the files of a fit; the next one begins new ones."""
        for writer in self._writers.values():
            writer.close()
        self._writers = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_writers": {}}  # a copy, or a pickle, begins files of its own


def _newest_error(progress: Progress, before: float | None) -> float | None:
    """Return the mean validation error over the members, the one `before` if it was not measured again."""
    if not progress.members:  # another group of members starts
        return None
    if "validation_error" in progress.members[0]:
        return _mean(progress.members, "validation_error")
    return before


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


def _figures(lines: Sequence[Mapping[str, Any]], error: float | None) -> str:
    """Return the mean costs over the members and the newest validation error, where there is one."""
    if not lines:
        return ""
    costs = f"cost {_mean(lines, 'total'):.4g} ({_mean(lines, 'supervised'):.2g})"
    return costs if error is None else f"{costs}, error {error:.2f}"


def _mean(lines: Sequence[Mapping[str, Any]], name: str) -> float:
    return float(sum(line[name] for line in lines) / len(lines))
