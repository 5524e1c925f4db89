"""What calibration and evaluation of a fleet cost beside its training.

    python benchmarks/evaluation.py --members 40 --record results/bench.jsonl
    python benchmarks/evaluation.py --data digits --members 4 --epochs 40
    python benchmarks/evaluation.py --data digits --members 4 --epochs 40 --costs 1

After training, members are parted, checked, calibrated each on its own training rows, and measured on the test rows
with both kinds of statistics, as in every run by recipe: the seconds are those by the clock from the end of the last
epoch to the end of the run, nothing left out, and their share is that of a run of the recipe's own length. Where rows
are held out, all members are measured on them after every so many epochs: from the first time to the last, that is all
by the clock beyond the seconds of the epochs, and a share of these.

Records up to revision 0da3b3b are of a calibration written out here, on all training rows at once, without the parting
and the check; those up to db58b27 have bringing rows and members to the device in their seconds. Up to b21721b every
epoch was measured, and what is recorded of epochs are medians.
"""

import argparse
import time
from dataclasses import replace
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
        self.measured: list[int] = []
        """After which epochs the members were measured on held-out rows."""

    def __call__(self, progress: Progress) -> None:
        if progress.members:
            self.stamps.append(self.now())
            self.training.append(progress.members[0]["seconds"])
            if "validation_error" in progress.members[0]:
                self.measured.append(progress.epoch)

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


def while_training(recipe: Recipe, members: int, epochs: int, rows: Rows, device: torch.device) -> dict[str, float]:
    """Seconds of measuring held-out rows and of an epoch, means over the epochs from the first time to the last."""
    clock, _ = trained(replace(recipe, epochs=epochs), members, rows, device)
    every = clock.measured[0]
    last = epochs - epochs % every  # behind which there is no whole number of epochs to a measuring
    if last == every:
        raise SystemExit(f"--epochs {epochs}: held-out rows were measured but once in these. Give twice as many.")
    training = sum(clock.training[every:last])
    seconds = clock.stamps[last - 1] - clock.stamps[every - 1] - training
    details = _figures(seconds * every / (last - every), training / (last - every), share=seconds / training)
    return details | {"epochs_between": every}


def _figures(seconds: float, epoch: float, share: float) -> dict[str, float]:
    return {"share_of_training": share, "seconds": seconds, "seconds_per_epoch": epoch}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=RECIPES, default="mnist")
    parser.add_argument("--members", type=int, default=40)
    parser.add_argument("--epochs", type=int, default=5, help="how many to train and time; at least 2")
    parser.add_argument("--costs", type=float, nargs="+", help="1 for a Γ-model, 0 for the supervised network")
    parser.add_argument("--held-out", type=int, help="how many rows; by default 10,000 of MNIST, 200 of the digits")
    parser.add_argument("--device", help="cpu or cuda; by default a GPU if there is one")
    parser.add_argument("--record", help="a file to add the figures to")
    arguments = parser.parse_args()
    members, epochs = arguments.members, arguments.epochs
    if epochs < 2:
        parser.error(f"--epochs {epochs}: expected at least 2, of which the first warms up.")
    device, rows, recipe = suitable_device(arguments.device), load_rows(arguments.data), RECIPES[arguments.data]
    if arguments.costs:
        recipe = replace(recipe, costs=tuple(arguments.costs))
    held_out = replace(recipe, validation=arguments.held_out or HELD_OUT[arguments.data])
    data = [] if arguments.data == "mnist" else [arguments.data]
    weights = [f"costs {' '.join(f'{cost:g}' for cost in arguments.costs)}"] if arguments.costs else []
    print(headline(device), flush=True)
    for measured, of in ((after_training, recipe), (while_training, held_out)):
        details = measured(of, members, epochs, rows, device)
        when = _when(details.get("epochs_between"))
        what = ", ".join([*data, f"{members} seeds", *weights, when])
        line = (
            f"{when}: {details['seconds']:.3g} s, an epoch {details['seconds_per_epoch']:.3g} s, "
            f"{details['share_of_training']:.2%} of training"
        )
        report(Figure("evaluation", what, details=details), line, device, arguments.record)


def _when(epochs_between: float | None) -> str:
    if epochs_between is None:
        return "after training"
    return "after every epoch" if epochs_between == 1 else f"after every {epochs_between} epochs"


if __name__ == "__main__":
    main()
