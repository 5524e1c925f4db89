"""Milliseconds per update and seed: a plain PyTorch ladder, and tikas's engine with one seed and with several.

    python benchmarks/engine.py
    python benchmarks/engine.py --members 1 4 10 40 --exact --record results/bench.jsonl

The paper's MNIST ladder, 100 labeled and 100 unlabeled rows per update, on synthetic rows. Plain PyTorch is
`benchmarks/eager.py`, one seed. All sides are measured in turn, an epoch each, after one epoch of warm-up, in which the
engine is compiled: on a CPU that takes about half a minute for each number of seeds. `--exact` adds the engine with
float32 products, for comparison with bf16 or TF32.
"""

from collections.abc import Sequence

import torch

from common import (
    Figure,
    Side,
    TimedEngine,
    epochs_of,
    interleave,
    new_parser,
    print_machine,
    report,
    seeds_in_words,
    start_engine,
    timed_figure,
)
from eager import EagerLadder, EagerTraining
from tikas.training.environment import pick_device
from tikas.training.recipe import Recipe


def plain_pytorch(recipe: Recipe, engine: TimedEngine, updates: int) -> Side:
    """Return a block of updates of the plain PyTorch ladder, one seed, on the rows of this engine."""
    batches = engine.batches
    widths = [*batches.rows.shape[1:], *recipe.network, 10]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        ladder = EagerLadder(widths, recipe.noise[0], recipe.cost_per_level()).to(batches.device)
    labeled = torch.arange(recipe.labeled_batch_size, device=batches.device)
    training = EagerTraining(ladder, batches.rows, batches.targets, labeled, recipe.batch_size)

    def block() -> None:
        with engine.arithmetic():
            for _ in range(updates):
                training.update()

    return Side("plain PyTorch", block, updates)


def main(arguments: Sequence[str] | None = None, recipe: Recipe | None = None) -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--members", type=int, nargs="+", help="by default 1 10 40 on a GPU, 1 4 on a CPU")
    parser.add_argument("--exact", action="store_true", help="also measure float32 products")
    parser.add_argument("--updates", type=int, help="updates per epoch; by default 600 on a GPU, 5 on a CPU")
    parser.add_argument("--uncompiled", dest="program", action="store_const", const="uncompiled", default="compiled")
    parser.add_argument("--quick", action="store_true", help="2 seconds per side instead of 20")
    options = parser.parse_args(arguments)
    device, recipe = pick_device(options.device), recipe or Recipe()
    sizes = options.members or ([1, 10, 40] if device.type == "cuda" else [1, 4])
    print_machine(device)

    engines = {}
    for members in sizes:
        for exact in [False, True] if options.exact else [False]:
            name = seeds_in_words(members) + ", exact" * exact
            engines[name] = start_engine(
                recipe, device, members=members, updates=options.updates, program=options.program, exact=exact
            )
    first = next(iter(engines.values()))
    plain = plain_pytorch(recipe, first, min(20, first.batches.updates))
    sides = [plain, *(epochs_of(engine, name) for name, engine in engines.items())]
    timings = interleave(sides, device, len(sides) * (2.0 if options.quick else 20.0))

    against = plain.name, timings[plain.name]
    report(Figure("engine", plain.name, timings[plain.name].ms), options, device)
    for name, engine in engines.items():
        report(timed_figure("engine", name, timings[name], engine, against, members=engine.members), options, device)


if __name__ == "__main__":
    main()
