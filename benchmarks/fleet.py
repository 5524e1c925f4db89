"""Fleets of 1, 4, 10 and 40 seeds of the paper's MNIST ladder: milliseconds per update and seed.

    python benchmarks/fleet.py --members 1 4 10 40 --record results/fleet.jsonl

The first epoch warms up (compiles, captures) and is timed apart; the second is what counts.
"""

import argparse
import time

import torch

from tikas.data.splits import split
from tikas.data.streams import Examples, Streams
from tikas.experiments.records import append, hardware, revision, versions
from tikas.experiments.run import load_rows
from tikas.training.engine import UPDATES_IN_A_REPLAY, launch
from tikas.training.fleet import build_ladder
from tikas.training.recipe import Recipe


def measure(members: int, recipe: Recipe, examples: Examples, epoch_rows: int) -> dict[str, float]:
    """Milliseconds per update and seed of one fleet, and the seconds that its warm-up took."""
    device = examples.rows.device
    seeds = list(range(members))
    few = examples.rows[:epoch_rows]
    few_examples = Examples(few, examples.targets[:epoch_rows], examples.outputs)
    splits = [split(few_examples.targets.cpu().numpy(), recipe.labels, seed=seed) for seed in seeds]
    ladders = [build_ladder(recipe, tuple(few.shape[1:]), examples.outputs, seed).to(device) for seed in seeds]
    block = UPDATES_IN_A_REPLAY if device.type == "cuda" else 1
    streams = Streams(
        few_examples, splits, seeds, ladders[0].shapes, recipe.batch_size, recipe.labeled_batch_size, block
    )
    fleet = launch(ladders, streams, updates=100_000)
    seconds = []
    for _ in range(2):
        started = time.perf_counter()
        costs = fleet.train_epoch(torch.full((streams.updates,), recipe.learning_rate))
        assert costs.isfinite().all()
        seconds.append(time.perf_counter() - started)
    return {"ms": 1000 * seconds[1] / streams.updates / members, "warm_up_seconds": seconds[0] - seconds[1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, nargs="+", default=[1, 4, 10, 40])
    parser.add_argument("--rows", type=int, default=60_000, help="unlabelled rows in the timed epoch")
    parser.add_argument("--record", help="a file to add the figures to")
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows = load_rows("mnist")
    examples = Examples(torch.from_numpy(rows.train_x), torch.from_numpy(rows.train_y), 10).to(torch.device(device))
    print(f"{hardware(device)}, torch {torch.__version__}")
    for members in arguments.members:
        figures = measure(members, Recipe(), examples, arguments.rows)
        ms, warm_up = figures["ms"], figures["warm_up_seconds"]
        print(f"{members:4d} seeds: {ms:.4f} ms per update and seed, warm-up {warm_up:.1f} s", flush=True)
        if arguments.record:
            entry = {"benchmark": "fleet", "members": members, "rows": arguments.rows, **figures}
            append(
                arguments.record,
                {**entry, "hardware": hardware(device), "versions": versions(), "revision": revision()},
            )


if __name__ == "__main__":
    main()
