"""How wrong ladders are: members while they train, on the rows held out for them, and any ladder afterwards."""

from collections.abc import Iterable, Sequence
from math import ceil, prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tikas.data.splits import Split
from tikas.model.ladder import Ladder
from tikas.model.layout import rows_dim
from tikas.training.fleet import Fleet
from tikas.training.recipe import Calibration

MOST_WATCHED = 1_000
"""Rows that the statistics come from when held-out rows are measured after an epoch: enough to watch training by."""

MOST_IN_A_CHUNK, MOST_ON_GPU = 2**26, 2**27
"""Values of the largest level, of all members together, among those rows that are measured at once."""

MOST_ROWS, MOST_OF_A_MODULE = 2048, 1024
"""Rows that are measured at once by a CPU, which is slower with more; and of a module, on any device: how large the
maps within it are is not known."""

PASSES = 3
"""What training takes of a row, in units of looking at one: the way up, and back to its values and to the weights."""

MOST_OF_THE_WORK = 0.015
"""How much measuring may be of training, by count, for it and calibration to take less than 3 % of the time.

For a row's pass in training, one that is looked at takes 0.3 to 0.6 of its time in full ladders, whose way down is not
counted, 0.4 to 1.5 in Γ-models and 0.3 to 1.2 without denoising; of a few hundred rows, 0.2 to 0.8 of an update's. That
is on two cores, of digits, MNIST and tables of 150 to 20,000 rows with one to eight members.
"""


def calibration_rows(split: Split, calibration: Calibration) -> NDArray[np.int64]:
    """Which rows of a member the statistics for prediction come from.

    Examples
    --------
    >>> from tikas.data.splits import split
    >>> chosen = split(np.arange(30) % 3, 6, validation=9)
    >>> len(calibration_rows(chosen, "labeled")), len(calibration_rows(chosen, "all"))
    (6, 21)
    """
    return split.labeled if calibration == "labeled" else split.unlabeled


def epochs_between(looked_at: int, trained_on: int, updates: int) -> int:
    """After every how many epochs held-out rows are measured, for that to take little beside training.

    It follows from counts and never from the clock, so that a run has the same history on any machine, however busy,
    and whether or not it was cut short in between.

    Parameters
    ----------
    looked_at
        Rows of a member: those held out, and those of which statistics are taken.
    trained_on
        Rows of a member that an update takes up the network, those that go up clean and corrupted counted twice.
    updates
        Of an epoch.

    Examples
    --------
    >>> epochs_between(549 + 200, 2 * 100 + 50, updates=10)  # of the digits, and then of MNIST
    7
    >>> epochs_between(981 + 10_000, 2 * 100 + 100, updates=500)
    2
    """
    in_updates = max(1, looked_at / (PASSES * trained_on))  # of few rows it is the calls that take time
    return ceil(in_updates / (MOST_OF_THE_WORK * updates))


class HeldOut:
    """The rows held out for the members of a fleet, and those of which statistics are taken to measure them with.

    Attributes
    ----------
    every
        After so many epochs they are measured again; after the last one they are in any case.

    Examples
    --------
    >>> from tikas.data.splits import split
    >>> from tikas.data.streams import Examples, Streams
    >>> from tikas.model.specs import Dense
    >>> ladder, classes = Ladder((8,), [Dense(5), Dense(3)]), torch.arange(60) % 3
    >>> examples, splits = Examples(torch.rand(60, 8), classes, 3), [split(classes.numpy(), 9, validation=20)]
    >>> fleet = Fleet([ladder], Streams(examples, splits, [0], ladder.shapes, 20, 20))
    >>> 0 <= HeldOut(fleet, splits, "all").errors()[0] <= 100
    True
    """

    def __init__(self, fleet: Fleet, splits: Sequence[Split], calibration: Calibration) -> None:
        self.fleet = fleet
        seen = [calibration_rows(split, calibration) for split in splits]
        watched = [chosen[:: 1 + len(chosen) // MOST_WATCHED] for chosen in seen]
        parts = len(fleet.parts())
        members = fleet.member_dims if parts == 1 else ()
        self._watched, self._judged = (
            torch.as_tensor(np.stack(chosen), device=fleet.device).view(parts, *members, -1)
            for chosen in (watched, [split.validation for split in splits])
        )
        streams, looked_at = fleet.streams, self._watched.shape[-1] + self._judged.shape[-1]
        trained_on = 2 * streams.denoised_batch_size + streams.labeled_batch_size
        self.every = epochs_between(looked_at, trained_on, streams.updates)

    @torch.no_grad()
    def errors(self) -> list[float]:
        """Of every member as it is now: a percentage, or a root mean square for regression.

        Members that are trained as one ladder are measured as one.
        """
        rows, targets = self.fleet.streams.examples.rows, self.fleet.streams.examples.targets
        errors: list[float] = []
        for ladder, watched, judged in zip(self.fleet.parts(), self._watched, self._judged, strict=True):
            ladder.train()  # where Ctrl-C left it in eval mode, in which nothing tells frozen layers from others
            ladder.calibrate(rows[watched]).eval()
            chunks = judged.split(_rows_at_once(ladder, judged.shape[:-1], rows), -1)
            outputs = _outputs(ladder, (rows[chunk] for chunk in chunks))
            errors += _errors(outputs, targets[judged], ladder.task).flatten().tolist()
            ladder.train()
        return errors


@torch.no_grad()
def error_of(ladder: Ladder, rows: Tensor, targets: Tensor) -> float:
    """The percentage of rows that a calibrated ladder gets wrong, or for regression its root mean square error.

    Examples
    --------
    >>> from tikas.model.specs import Dense
    >>> ladder = Ladder(input_shape=(4,), rungs=[Dense(2)]).calibrate(torch.rand(50, 4)).eval()
    >>> error_of(ladder, torch.rand(10, 4), torch.zeros(10, dtype=torch.int64)) in range(0, 101, 10)
    True
    """
    across = rows_dim(ladder.shapes[0])
    chunks = rows.split(_rows_at_once(ladder, rows.shape[:across], rows), across)
    return float(_errors(_outputs(ladder, chunks), targets, ladder.task))


def _rows_at_once(ladder: Ladder, members: Sequence[int], rows: Tensor) -> int:
    """How many rows of every member are measured together, as memory likes it."""
    if not isinstance(ladder, Ladder):
        return MOST_OF_A_MODULE
    values = prod(members) * max(map(prod, ladder.shapes))
    return max(1, MOST_ON_GPU // values if rows.is_cuda else min(MOST_ROWS, MOST_IN_A_CHUNK // values))


def _outputs(ladder: Ladder, chunks: Iterable[Tensor]) -> Tensor:
    return torch.cat([ladder(chunk) for chunk in chunks], -2)


def _errors(outputs: Tensor, targets: Tensor, task: str) -> Tensor:
    if task == "classification":
        return 100 * (outputs.argmax(-1) != targets).double().mean(-1)
    return (outputs - targets).double().square().mean((-1, -2)).sqrt()
