"""Exact statistics of a ladder's rungs for eval mode, over any number of rows in bounded memory."""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from tikas.model.layout import rows_dim
from tikas.model.rung import Rung
from tikas.model.statistics import Gathering

MOST_IN_A_CHUNK = 2**25
"""Values of the largest level among those rows that are calibrated at once: 256 MB in double precision."""

MOST_ON_GPU = 2**26
"""The same on a GPU, which waits for its orders rather than for its memory."""

MOST_ROWS = 4096
"""Rows that a CPU calibrates at once: with more it is slower."""

MOST_KEPT = 2**26
"""Values of a level that are kept while the one above it is calibrated; of a larger one they are made again."""


@torch.no_grad()
def calibrate_rungs(rungs: Sequence[Rung], x: Tensor, chunk: int | None = None) -> None:
    """Set the mean and the deviation of every rung from these rows, with those of the rungs below it already set.

    Parameters
    ----------
    rungs
        The input level first.
    x
        The rows, ``(*members, rows, *shape)``, any number of them.
    chunk
        How many rows are looked at together; by default 4096 on a CPU, or fewer where maps are large, and more on a
        GPU.

    Examples
    --------
    >>> from tikas import Dense, Ladder
    >>> ladder = Ladder(input_shape=(4,), rungs=[Dense(5), Dense(3)])
    >>> rows = torch.rand(50, 4)
    >>> calibrate_rungs(ladder.rungs, rows, chunk=20)
    >>> bool(torch.allclose(ladder.rungs[1].mean, ladder.rungs[1].up(rows).mean(0), atol=1e-6))
    True
    """
    ascent = Ascent(rungs, x, chunk)
    for level, rung in enumerate(rungs[1:], 1):
        mean, deviation = ascent.moments(level)
        rung.mean.copy_(mean)
        rung.deviation.copy_(deviation)


class Ascent:
    """Rows on their way up a ladder, a chunk of them at a time, to a rung whose statistics are still to be set.

    Parameters
    ----------
    rungs, x, chunk
        As `calibrate_rungs` takes them.

    Examples
    --------
    >>> from tikas import Dense, Ladder
    >>> ladder = Ladder(input_shape=(4,), rungs=[Dense(3)])
    >>> rows = torch.rand(50, 4)
    >>> mean, deviation = Ascent(ladder.rungs, rows, chunk=20).moments(level=1)
    >>> bool(torch.allclose(mean.float(), ladder.rungs[1].up(rows).mean(0), atol=1e-6))
    True
    """

    def __init__(self, rungs: Sequence[Rung], x: Tensor, chunk: int | None = None) -> None:
        shapes = [rung.shape for rung in rungs]
        self.rungs = rungs
        self.count = x.numel() // prod(shapes[0])
        values = prod(rungs[-1].mean.shape[:-1]) * max(map(prod, shapes))  # that a row of every member has
        most = MOST_ON_GPU // values if x.is_cuda else min(MOST_ROWS, MOST_IN_A_CHUNK // values)
        chunk = chunk or max(1, most)
        self._reached, self._hidden = 0, list(torch.split(x, chunk, rows_dim(shapes[0])))
        self._projected: list[Tensor] = []

    def moments(self, level: int) -> tuple[Tensor, Tensor]:
        """The mean and the deviation of what comes up to a rung, all rungs below it being set by now.

        Rungs are asked for from the bottom up, those that need it.
        """
        if self._projected:
            rung = self.rungs[self._reached]
            self._hidden = [rung.activate(rung.calibrated.normalize(projected)) for projected in self._projected]
            self._projected = []
        rung = self.rungs[level]
        between = self.rungs[self._reached + 1 : level]
        gathering = Gathering(rung.shape)
        kept = self.count * prod(rung.shape) <= MOST_KEPT
        for hidden in self._hidden:
            projected = rung.up(_climb(between, hidden.to(rung.mean)))
            gathering.add(projected)
            if kept:
                self._projected.append(projected)
        if kept:
            self._reached = level
        return gathering.moments()


def _climb(rungs: Sequence[Rung], hidden: Tensor) -> Tensor:
    """h of the last of these rungs, with the statistics that are set already."""
    for rung in rungs:
        hidden = rung.activate(rung.calibrated.normalize(rung.up(hidden)))
    return hidden
