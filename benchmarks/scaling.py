"""How the time of an update grows with width, depth and batch, and what share of the hardware's speed it reaches.

    python benchmarks/scaling.py --record results/bench.jsonl
    python benchmarks/scaling.py --only utilization --members 1 40

Width scales the input and every hidden layer of the paper's MNIST ladder, depth counts hidden layers of 250 units,
batch is the rows of both batches, rows is those of an epoch. A power of the size is fitted to each. Utilization divides
the operations per second in the products of an update (forward and backward, nothing else) by those of a large matrix
product in the same precision. `--quick` takes small settings and few rounds, and compiles nothing on a CPU.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import linear_regression

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from common import (
    Figure,
    Side,
    epochs_of,
    interleave,
    new_parser,
    print_machine,
    report,
    seeds_in_words,
    start_engine,
    timed_figure,
)
from tikas.training.environment import pick_device
from tikas.training.recipe import Recipe

HIDDEN = (1000, 500, 250, 250, 250)
PRODUCTS_PER_BLOCK = 10
"""Several, because the time of a single product would include its launch and the synchronization."""


@dataclass(frozen=True)
class Setting:
    """One point of a curve: its size, and what is trained there."""

    size: float
    recipe: Recipe
    updates: int
    shape: tuple[int, ...] = (784,)


def curves(updates: int, quick: bool) -> dict[str, list[Setting]]:
    """The settings of every curve; a quick run leaves the largest of each out."""
    base = Recipe()
    found = {
        "width": [
            Setting(
                factor,
                replace(base, network=tuple(round(factor * units) for units in HIDDEN)),
                updates,
                (round(784 * factor),),
            )
            for factor in (0.25, 0.5, 1, 2)
        ],
        "depth": [Setting(layers, replace(base, network=(250,) * layers), updates) for layers in (2, 4, 8, 16)],
        "batch": [
            Setting(rows, replace(base, batch_size=rows, labeled_batch_size=rows), updates)
            for rows in (25, 50, 100, 200)
        ],
        "rows": [
            Setting(100 * updates * factor, replace(base, network=(250, 250)), updates * factor)
            for factor in (1, 2, 4, 8)
        ],
    }
    return {name: settings[:-1] if quick else settings for name, settings in found.items()}


def exponent(sizes: Sequence[float], milliseconds: Sequence[float]) -> float:
    """k of time ≈ c·sizeᵏ: the slope of a line through the logarithms."""
    return linear_regression(np.log(sizes).tolist(), np.log(milliseconds).tolist()).slope


def measure_curve(name: str, settings: Sequence[Setting], options: argparse.Namespace, device: torch.device) -> None:
    """Time all settings of a curve in turn, and report each and the fitted power."""
    epochs = name == "rows"  # of which an update takes the same time
    engines = [
        start_engine(each.recipe, device, updates=each.updates, shape=each.shape, program=options.program)
        for each in settings
    ]
    sides = [
        epochs_of(engine, f"{name} {setting.size:g}", units=1 if epochs else None)
        for engine, setting in zip(engines, settings, strict=True)
    ]
    timings = interleave(sides, device, options.seconds)
    unit = {"unit": "an epoch"} if epochs else {}
    for side, engine in zip(sides, engines, strict=True):
        report(timed_figure("scaling", side.name, timings[side.name], engine, **unit), options, device)
    power = exponent([each.size for each in settings], [timings[side.name].ms for side in sides])
    report(Figure("scaling", f"{name}: exponent", details={"exponent": power}), options, device)


def operations(recipe: Recipe, shape: tuple[int, ...]) -> int:
    """Floating-point operations in the products and convolutions of an update of one member, forward and backward."""
    engine = start_engine(recipe, torch.device("cpu"), updates=2, shape=shape, program="eager")
    engine.batches.start_epoch()
    with FlopCounterMode(display=False) as counter:
        engine.engine.costs(*engine.batches.batch(0)).total.backward()
    return int(counter.get_total_flops())


def measure_utilization(
    members: int, options: argparse.Namespace, device: torch.device, recipe: Recipe | None = None
) -> None:
    """Time updates and large products in turn, and report the share of their operations per second."""
    recipe = recipe or Recipe()
    size = 8192 if device.type == "cuda" else 2048
    engine = start_engine(recipe, device, members=members, program=options.program)
    work = members * operations(recipe, (784,))
    dtype = engine.dtype
    left, right = (torch.rand(size, size, device=device).to(dtype) for _ in range(2))

    def large_products() -> None:
        with engine.arithmetic():
            for _ in range(PRODUCTS_PER_BLOCK):
                torch.matmul(left, right)

    sides = [
        epochs_of(engine, "update", units=engine.batches.updates),
        Side("large product", large_products, PRODUCTS_PER_BLOCK),
    ]
    timings = interleave(sides, device, options.seconds)
    reached = work / timings["update"].ms * 1e-9
    possible = 2 * size**3 / timings["large product"].ms * 1e-9
    details = {
        "utilisation": reached / possible,  # so spelled in the records
        "teraflops": reached,
        "large_product_teraflops": possible,
        "gigaflop_of_an_update": work * 1e-9 / members,
        "dtype": str(dtype).removeprefix("torch."),
        "members": members,
    }
    figure = Figure("utilisation", seeds_in_words(members), timings["update"].ms / members, details=details)
    report(figure, options, device)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--only", nargs="+", choices=("width", "depth", "batch", "rows", "utilization"))
    parser.add_argument("--members", type=int, nargs="+", help="for utilization; by default 1, and 40 on a GPU")
    parser.add_argument("--quick", action="store_true", help="small settings and few rounds")
    options = parser.parse_args(arguments)
    device = pick_device(options.device)
    on_gpu = device.type == "cuda"
    options.seconds = 4.0 if options.quick else 30.0
    options.program = "uncompiled" if options.quick and not on_gpu else "compiled"
    print_machine(device)
    for name, settings in curves(100 if on_gpu else 3, options.quick).items():
        if not options.only or name in options.only:
            measure_curve(name, settings, options, device)
    if not options.only or "utilization" in options.only:
        for members in options.members or ([1, 40] if on_gpu else [1]):
            measure_utilization(members, options, device)


if __name__ == "__main__":
    main()
