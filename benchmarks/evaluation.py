"""What calibration and evaluation of a fleet cost beside its training.

python benchmarks/evaluation.py --members 40 --record results/bench.jsonl

After training, every member is calibrated on all training rows and measured on the test rows with both kinds of
statistics, as every run by recipe is: its share is that of a run of the paper's length. Rows and members are on the
device before the clock starts, as they are when training ends; records up to revision db58b27 have bringing them there
in their seconds. Where rows are held out, all members are measured on them after every epoch: that is a share of each
epoch.
"""

import argparse
import time
from itertools import pairwise
from statistics import median

import torch

from tikas.experiments.bench import Figure
from tikas.experiments.bench_script import headline, report
from tikas.experiments.rows import Rows, load_rows
from tikas.experiments.run import errors_of_members, run, splits_of
from tikas.training.devices import full_precision, suitable_device
from tikas.training.fit import Progress
from tikas.training.recipe import Recipe


def after_training(rows: Rows, members: int, epochs: int, device: torch.device) -> dict[str, float]:
    """Seconds of the last calibration and evaluation, and of an epoch."""
    recipes = [Recipe(epochs=epochs)] * members
    outcome = run(recipes[0], range(members), rows)
    epoch = median(line["seconds"] for line in outcome.trained.histories[0][1:])
    splits = splits_of(recipes, range(members), rows.train_y)
    train_x = torch.from_numpy(rows.train_x).to(device)
    trained = [ladder.to(device) for ladder in outcome.trained.ladders]
    started = time.perf_counter()
    for ladder in trained:
        with full_precision():
            ladder.calibrate(train_x)
        ladder.cpu()
    test = torch.from_numpy(rows.test_x).to(device), torch.from_numpy(rows.test_y).to(device)
    errors_of_members(outcome.trained, recipes, splits, rows.train_x, [test] * members)
    seconds = time.perf_counter() - started
    return {"share_of_training": seconds / (Recipe().epochs * epoch), "seconds": seconds, "seconds_per_epoch": epoch}


def after_every_epoch(rows: Rows, members: int, epochs: int, held_out: int) -> dict[str, float]:
    """Seconds of an epoch, and by the clock beyond them, which the measuring of held-out rows takes."""
    stamps, training = [], []

    def stamp(progress: Progress) -> None:
        if progress.members:
            stamps.append(time.perf_counter())
            training.append(progress.members[0]["seconds"])

    run(Recipe(epochs=epochs, validation=held_out), range(members), rows, on_epoch=stamp)
    by_the_clock = [later - earlier for earlier, later in pairwise(stamps)]
    seconds = median(clock - spent for clock, spent in zip(by_the_clock, training[1:], strict=True))
    epoch = median(training[1:])
    return {"share_of_training": seconds / epoch, "seconds": seconds, "seconds_per_epoch": epoch}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=40)
    parser.add_argument("--epochs", type=int, default=5, help="how many to train and time")
    parser.add_argument("--held-out", type=int, default=10_000)
    parser.add_argument("--record", help="a file to add the figures to")
    arguments = parser.parse_args()
    device, rows = suitable_device(None), load_rows("mnist")
    print(headline(device), flush=True)
    members, epochs = arguments.members, arguments.epochs
    for when, details in (
        ("after training", after_training(rows, members, epochs, device)),
        ("after every epoch", after_every_epoch(rows, members, epochs, arguments.held_out)),
    ):
        share, seconds, epoch = details.values()
        line = f"{when}: {seconds:.3g} s, an epoch {epoch:.3g} s, {share:.2%} of training"
        report(Figure("evaluation", f"{members} seeds, {when}", details=details), line, device, arguments.record)


if __name__ == "__main__":
    main()
