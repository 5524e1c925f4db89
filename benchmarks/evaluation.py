"""Measure how long calibration and evaluation take beside the training itself.

    python benchmarks/evaluation.py --members 40 --record results/bench.jsonl
    python benchmarks/evaluation.py --data digits --members 4 --epochs 40 --costs 1

"after training": seconds from the end of the last epoch until all members are unpacked, calibrated and measured on the
test rows with both kinds of statistics, as a share of a run of the recipe's own length. "after every N epochs": rows
are held out and measured during training; seconds beyond those of the epochs, from the first measurement to the last,
as a share of these epochs.

Records up to revision 0da3b3b measured a calibration written for this benchmark; those up to db58b27 include copying
rows and members to the device; up to b21721b every epoch was measured, and the figures of epochs are medians.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch

from common import Figure, load_flat, new_parser, print_machine, report, synchronize
from tikas.data.datasets import Dataset
from tikas.data.splits import split
from tikas.training.callbacks import Progress
from tikas.training.ensemble import to_device
from tikas.training.environment import full_precision, pick_device
from tikas.training.recipe import SMALL, Recipe
from tikas.training.trainer import Trainer, error_of

SETTINGS = {"digits": (SMALL, 50, 200), "mnist": (Recipe(), 100, 10_000)}
"""Recipe, number of labels, and validation rows of each data set."""


class Clock:
    """A callback that keeps the time after every epoch, its training seconds, and which epochs were validated."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.times: list[float] = []
        self.training: list[float] = []
        self.validated: list[int] = []

    def __call__(self, progress: Progress) -> None:
        if progress.members:
            self.times.append(self.now())
            self.training.append(progress.members[0]["seconds"])
            if "validation_error" in progress.members[0]:
                self.validated.append(progress.epoch)

    def now(self) -> float:
        """Return the time at which the device has finished its work."""
        synchronize(self.device)
        return time.perf_counter()


def run(
    recipe: Recipe, labels: int, validation: int, members: int, rows: tuple[Dataset, Dataset], device: torch.device
) -> tuple[Clock, float]:
    """Train an ensemble and measure its members; return the clock of its epochs, and when everything had finished."""
    (train, test), clock, seeds = rows, Clock(device), range(members)
    splits = [split(train.targets, labels, validation=validation, seed=seed) for seed in seeds]
    result = Trainer(recipe, device=device, callbacks=[clock]).fit(train, splits, list(seeds))
    test_rows, targets = torch.from_numpy(test.rows).to(device), torch.from_numpy(test.targets).to(device)
    with full_precision():
        for member, chosen in zip(result.members, splits, strict=True):
            model = to_device(member, device)
            error_of(model, test_rows, targets)
            model.calibrate(torch.from_numpy(train.rows[chosen.labeled]).to(device))
            error_of(model, test_rows, targets)
    return clock, clock.now()


def after_training(clock: Clock, finished: float, epochs: int) -> dict[str, float]:
    """Return the seconds of calibration and evaluation, and their share of a run of so many epochs."""
    seconds, epoch = finished - clock.times[-1], median(clock.training[1:])  # the first epoch warms up
    return {"share_of_training": seconds / (epochs * epoch), "seconds": seconds, "seconds_per_epoch": epoch}


def during_training(clock: Clock) -> dict[str, float]:
    """Return the seconds of a measurement of the validation rows, and their share of the epochs between two."""
    first, last = clock.validated[0], clock.validated[-1]
    last -= last % first  # the last epoch is always measured, also where it is not due
    if last == first:
        raise SystemExit(f"evaluation.py: validation takes place every {first} epochs; train at least {2 * first}")
    training = sum(clock.training[first:last])
    seconds = clock.times[last - 1] - clock.times[first - 1] - training
    count = (last - first) // first
    figures = {"seconds": seconds / count, "seconds_per_epoch": training / (last - first), "epochs_between": first}
    return {"share_of_training": seconds / training, **figures}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--data", choices=SETTINGS, default="mnist")
    parser.add_argument("--data-dir", type=Path, help="the folder with the files of MNIST")
    parser.add_argument("--members", type=int, default=40)
    parser.add_argument("--epochs", type=int, default=5, help="epochs to train and time; at least 2")
    parser.add_argument("--costs", type=float, nargs="+", help="1 for a Γ-model, 0 for the supervised network")
    parser.add_argument("--validation", type=int, help="held-out rows; by default 10,000 of MNIST, 200 of the digits")
    options = parser.parse_args(arguments)
    device, rows = pick_device(options.device), load_flat(options.data, options.data_dir)
    recipe, labels, validation = SETTINGS[options.data]
    recipe = replace(recipe, costs=options.costs or recipe.costs)
    short = replace(recipe, epochs=options.epochs)
    name = f"{options.data}, {options.members} seeds"
    name += f", costs {' '.join(f'{cost:g}' for cost in options.costs)}" if options.costs else ""
    print_machine(device)
    clock, finished = run(short, labels, 0, options.members, rows, device)
    details = after_training(clock, finished, recipe.epochs)
    report(Figure("evaluation", f"{name}, after training", details=details), options, device)
    clock, _ = run(short, labels, options.validation or validation, options.members, rows, device)
    details = during_training(clock)
    what = f"{name}, after every {details['epochs_between']} epochs"
    report(Figure("evaluation", what, details=details), options, device)


if __name__ == "__main__":
    main()
