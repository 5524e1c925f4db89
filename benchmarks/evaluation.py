"""What calibration and evaluation of a fleet cost beside its training.

    python benchmarks/evaluation.py --members 40 --record results/bench.jsonl
    python benchmarks/evaluation.py --data digits --members 4 --epochs 20

After training, members are parted, checked, calibrated each on its own training rows, and measured on the test rows
with both kinds of statistics, as in every run by recipe: the seconds are those by the clock from the end of the last
epoch to the end of the run, nothing left out, and their share is that of a run of the recipe's own length. Where rows
are held out, all members are measured on them after every epoch: that is a share of each epoch.

Records up to revision 0da3b3b are of a calibration written out here, on all training rows at once, without the parting
and the check; those up to db58b27 have bringing rows and members to the device in their seconds.
"""

import argparse
import time
from dataclasses import replace
from itertools import pairwise
from statistics import median

import torch

from tikas.experiments.bench import Figure
from tikas.experiments.bench_script import headline, report
from tikas.experiments.rows import Rows, load_rows
from tikas.experiments.run import measure
from tikas.training.devices import suitable_device
from tikas.training.fit import Progress
from tikas.training.recipe import DIGITS, Recipe

RECIPES = {"digits": DIGITS, "mnist": Recipe()}
HELD_OUT = {"digits": 200, "mnist": 10_000}


class Clock:
    """What the time was after every epoch, the device having done all that it was told, and the seconds of each."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stamps: list[float] = []
        self.training: list[float] = []

    def __call__(self, progress: Progress) -> None:
        if progress.members:
            self.stamps.append(self.now())
            self.training.append(progress.members[0]["seconds"])

    def now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    @property
    def epoch(self) -> float:
        """The seconds of an epoch's training; the first one warms up."""
        return median(self.training[1:])


def trained(recipe: Recipe, members: int, rows: Rows, device: torch.device) -> tuple[Clock, float]:
    """Train and measure as every run by recipe does; the clock of its epochs, and the time when all was over."""
    clock = Clock(device)
    measure([recipe] * members, range(members), rows, device=str(device), on_epoch=clock)
    return clock, clock.now()


def after_training(recipe: Recipe, members: int, epochs: int, rows: Rows, device: torch.device) -> dict[str, float]:
    """Seconds of the last calibration and evaluation, and of an epoch."""
    clock, ended = trained(replace(recipe, epochs=epochs), members, rows, device)
    seconds = ended - clock.stamps[-1]
    return _figures(seconds, clock.epoch, share=seconds / (recipe.epochs * clock.epoch))


def after_every_epoch(recipe: Recipe, members: int, epochs: int, rows: Rows, device: torch.device) -> dict[str, float]:
    """Seconds of an epoch, and by the clock beyond them, which the measuring of held-out rows takes."""
    clock, _ = trained(replace(recipe, epochs=epochs), members, rows, device)
    by_the_clock = [later - earlier for earlier, later in pairwise(clock.stamps)]
    seconds = median(passed - spent for passed, spent in zip(by_the_clock, clock.training[1:], strict=True))
    return _figures(seconds, clock.epoch, share=seconds / clock.epoch)


def _figures(seconds: float, epoch: float, share: float) -> dict[str, float]:
    return {"share_of_training": share, "seconds": seconds, "seconds_per_epoch": epoch}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=RECIPES, default="mnist")
    parser.add_argument("--members", type=int, default=40)
    parser.add_argument("--epochs", type=int, default=5, help="how many to train and time; at least 2")
    parser.add_argument("--held-out", type=int, help="how many rows; by default 10,000 of MNIST, 200 of the digits")
    parser.add_argument("--device", help="cpu or cuda; by default a GPU if there is one")
    parser.add_argument("--record", help="a file to add the figures to")
    arguments = parser.parse_args()
    members, epochs = arguments.members, arguments.epochs
    if epochs < 2:
        parser.error(f"--epochs {epochs}: expected at least 2, of which the first warms up.")
    device, rows, recipe = suitable_device(arguments.device), load_rows(arguments.data), RECIPES[arguments.data]
    held_out = replace(recipe, validation=arguments.held_out or HELD_OUT[arguments.data])
    print(headline(device), flush=True)
    for when, measured, of in (
        ("after training", after_training, recipe),
        ("after every epoch", after_every_epoch, held_out),
    ):
        details = measured(of, members, epochs, rows, device)
        share, seconds, epoch = details.values()
        line = f"{when}: {seconds:.3g} s, an epoch {epoch:.3g} s, {share:.2%} of training"
        what = f"{members} seeds, {when}" if arguments.data == "mnist" else f"{arguments.data}, {members} seeds, {when}"
        report(Figure("evaluation", what, details=details), line, device, arguments.record)


if __name__ == "__main__":
    main()
