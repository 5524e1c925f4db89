"""What calibration and evaluation of a fleet cost beside its training.

python benchmarks/evaluation.py --members 40 --record results/bench.jsonl

A few epochs are trained and timed; every member is then calibrated on all training rows and measured on the test rows
with both kinds of statistics, as every run by recipe is. The share is that of a run of the paper's length.
"""

import argparse
import time
from statistics import median

import torch

from tikas.experiments.bench import Figure
from tikas.experiments.bench_script import headline, line_of
from tikas.experiments.records import append
from tikas.experiments.run import error_on, load_rows, run
from tikas.training.devices import full_precision, suitable_device
from tikas.training.recipe import Recipe


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=40)
    parser.add_argument("--epochs", type=int, default=5, help="how many to train and time")
    parser.add_argument("--record", help="a file to add the figure to")
    arguments = parser.parse_args()
    device, full = suitable_device(None), Recipe()
    print(headline(device), flush=True)

    rows = load_rows("mnist")
    outcome = run(Recipe(epochs=arguments.epochs), range(arguments.members), rows)
    epoch = median(line["seconds"] for line in outcome.trained.histories[0][1:])

    started = time.perf_counter()
    train_x = torch.from_numpy(rows.train_x).to(device)
    for ladder in outcome.trained.ladders:
        ladder.to(device)
        for chosen in (train_x, train_x[:100]):
            with full_precision():
                ladder.calibrate(chosen)
            error_on(ladder, rows.test_x, rows.test_y)
        ladder.cpu()
    evaluation = time.perf_counter() - started

    share = evaluation / (full.epochs * epoch)
    details = {"share_of_training": share, "seconds": evaluation, "seconds_per_epoch": epoch}
    figure = Figure("evaluation", f"{arguments.members} seeds", details=details)
    print(line_of(figure), f"{evaluation:.2f} s beside {full.epochs} epochs of {epoch:.2f} s: {share:.2%}")
    if arguments.record:
        append(arguments.record, figure.record(device, quick=False))


if __name__ == "__main__":
    main()
