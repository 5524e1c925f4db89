"""The benchmarks: the engine against plain PyTorch, fleets, scaling, utilisation of the hardware, and convolutions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from tikas.experiments.bench import (
    Figure,
    Program,
    Side,
    Timing,
    eager_ladder,
    epochs_of,
    exponent,
    interleave,
    program_of,
    quicker,
    start_fleet,
)
from tikas.training.engine import suitable_arithmetic
from tikas.training.fleet import Fleet
from tikas.training.randomness import own_randomness
from tikas.training.recipe import Recipe

MNIST = Recipe()
IMAGES = {"conv_fc": (1, 28, 28), "conv_small": (1, 28, 28), "conv_large": (3, 32, 32)}
CONVOLUTIONAL = {
    "conv_fc, full": Recipe(network=("conv_fc",)),
    "conv_small, Γ": Recipe(network=("conv_small",), costs=(1.0,)),
    "conv_small, full": Recipe(network=("conv_small",), costs=(1000.0, 10.0, 0.1)),
    "conv_large, Γ": Recipe(network=("conv_large",), costs=(4.0,), activation="leaky_relu"),
}
PRODUCTS_IN_A_BLOCK = 10
"""One large product alone would be timed together with its launch and the wait for it, and seem slower than it is."""


class RivalMissingError(RuntimeError):
    """There is nothing here to measure the engine against: `eager_ladder` found no checkout of the repository."""


@dataclass(frozen=True)
class Plan:
    """How to measure.

    Attributes
    ----------
    quick
        Small settings and few rounds, for a look; on a CPU compiled code only where the engine meets plain PyTorch.
    members
        Sizes of the fleets; by default 1, 4, 10 and 40, or of those what a CPU does quickly.

    Examples
    --------
    >>> plan = Plan(torch.device("cpu"), quick=True)
    >>> plan.fleets, plan.program, plan.seconds
    ((1, 4), 'uncompiled', 4.0)
    >>> Plan(torch.device("cpu"), members=(2, 8)).fleets
    (2, 8)
    """

    device: torch.device
    quick: bool = False
    members: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if any(members < 1 for members in self.members):
            raise ValueError(f"members={self.members}: expected numbers of at least 1.")

    @property
    def seconds(self) -> float:
        """How long the sides of one comparison take turns."""
        return 4.0 if self.quick else 30.0

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def program(self) -> Program:
        """Where a benchmark has many settings: a quick one on a CPU has no time to compile them one by one."""
        return "compiled" if self.on_gpu or not self.quick else "uncompiled"

    @property
    def fleets(self) -> tuple[int, ...]:
        return self.members or ((1, 4, 10, 40) if self.on_gpu else (1, 4) if self.quick else (1, 4, 10))


def _engine(plan: Plan) -> Iterator[Figure]:
    """One seed of the paper's MNIST ladder: the engine against the plain ladder of ``benchmarks/eager.py``."""
    eager = eager_ladder()
    if eager is None:
        raise RivalMissingError(
            "benchmarks/eager.py: the plain ladder to measure against is in the repository, not in the package. "
            "Run this in a checkout of the repository."
        )
    fleet = start_fleet(MNIST, plan.device)
    examples = fleet.streams.examples
    widths = [shape[0] for shape in fleet.ladders[0].shapes]
    labeled = torch.arange(100, device=plan.device)
    with own_randomness(seed=0):
        ladder = eager.EagerLadder(widths, MNIST.noise[0], MNIST.levels_of_costs()).to(plan.device)
        training = eager.EagerTraining(ladder, examples.rows, examples.targets, labeled, MNIST.batch_size)
        updates = 20 if plan.on_gpu else fleet.streams.updates
        plain = Side("plain PyTorch", lambda: [training.update() for _ in range(updates)], updates)
        ours = epochs_of(fleet, "engine")
        timings = interleave([plain, ours], plan.device, 3 * plan.seconds)
    yield Figure("engine", plain.name, timings[plain.name].ms)
    yield _figure("engine", ours.name, timings[ours.name], fleet, against=(plain.name, timings[plain.name]))


def _fleets(plan: Plan) -> Iterator[Figure]:
    """Fleets of several sizes: milliseconds per update and seed, against a seed alone (or the smallest fleet)."""
    started = {
        members: start_fleet(MNIST, plan.device, members=members, program=plan.program) for members in plan.fleets
    }
    sides = {members: epochs_of(fleet, _of_members(members)) for members, fleet in started.items()}
    timings = interleave(list(sides.values()), plan.device, len(sides) * plan.seconds)
    smallest = _of_members(min(started))
    for members, fleet in started.items():
        name = sides[members].name
        against = None if name == smallest else (smallest, timings[smallest])
        yield _figure("fleets", name, timings[name], fleet, against=against, members=members)


def _scaling(plan: Plan) -> Iterator[Figure]:
    """How an update grows with width, depth and batch, and an epoch with the rows; a power is fitted to each."""
    for name, make, sizes in _axes(plan):
        started = {size: make(size) for size in sizes}
        epochs = name == "rows"
        sides = [epochs_of(fleet, f"{name} {size:g}", units=1 if epochs else None) for size, fleet in started.items()]
        timings = interleave(sides, plan.device, plan.seconds)
        for side, fleet in zip(sides, started.values(), strict=True):
            unit: dict[str, Any] = {"unit": "an epoch"} if epochs else {}
            yield _figure("scaling", side.name, timings[side.name], fleet, **unit)
        power = exponent(sizes, [timings[side.name].ms for side in sides])
        yield Figure("scaling", f"{name}: exponent", details={"exponent": power})


def _axes(plan: Plan) -> Iterator[tuple[str, Callable[[float], Fleet], Sequence[float]]]:
    """What is varied, how a fleet of such a size is made, and the sizes."""
    updates = 100 if plan.on_gpu else 3

    def of_width(factor: float) -> Fleet:
        network = tuple(round(factor * units) for units in (1000, 500, 250, 250, 250))
        return start(replace(MNIST, network=network), shape=(round(784 * factor),))

    def of_batch(rows: float) -> Fleet:
        return start(replace(MNIST, batch_size=int(rows), labeled_batch_size=int(rows)))

    def start(recipe: Recipe, updates: int = updates, shape: tuple[int, ...] = (784,)) -> Fleet:
        return start_fleet(recipe, plan.device, updates=updates, shape=shape, program=plan.program)

    def some(*sizes: float) -> Sequence[float]:
        return sizes[:-1] if plan.quick else sizes

    yield "width", of_width, some(0.25, 0.5, 1, 2)
    yield "depth", lambda rungs: start(replace(MNIST, network=(250,) * int(rungs))), some(2, 4, 8, 16)
    yield "batch", of_batch, some(25, 50, 100, 200)
    small = replace(MNIST, network=(250, 250))
    counts = some(*(100.0 * updates * factor for factor in (1, 2, 4, 8)))
    yield "rows", lambda rows: start(small, updates=int(rows) // 100), counts


def _utilisation(plan: Plan) -> Iterator[Figure]:
    """Operations a second in the products of an update, over those of one large matrix product of the same kind."""
    size = 8192 if plan.on_gpu else 2048
    for members in sorted({min(plan.fleets), max(plan.fleets)}) if plan.on_gpu else [1]:
        fleet = start_fleet(MNIST, plan.device, members=members)
        work = members * operations(MNIST, (784,))
        left, right = (torch.rand(size, size, device=plan.device).to(fleet.dtype) for _ in range(2))

        def large(fleet: Fleet = fleet, left: torch.Tensor = left, right: torch.Tensor = right) -> None:
            with suitable_arithmetic(fleet):
                for _ in range(PRODUCTS_IN_A_BLOCK):
                    torch.matmul(left, right)

        large_products = Side("large product", large, PRODUCTS_IN_A_BLOCK)
        sides = [epochs_of(fleet, "update", units=fleet.streams.updates), large_products]
        timings = interleave(sides, plan.device, plan.seconds)
        achieved, best = work / timings["update"].ms * 1e-9, 2 * size**3 / timings["large product"].ms * 1e-9
        yield Figure(
            "utilisation",
            _of_members(members),
            timings["update"].ms / members,
            details={
                "utilisation": achieved / best,
                "teraflops": achieved,
                "large_product_teraflops": best,
                "gigaflop_of_an_update": work * 1e-9 / members,
                "dtype": str(fleet.dtype).removeprefix("torch."),
                "program": program_of(fleet),
                "members": members,
            },
        )


def _convolutions(plan: Plan) -> Iterator[Figure]:
    """The paper's convolutional networks: the engine's program against plain PyTorch, where these are two."""
    for name, full in CONVOLUTIONAL.items():
        rows = full.batch_size if plan.program == "compiled" else 10
        recipe = replace(full, batch_size=rows, labeled_batch_size=rows)
        updates, shape = 20 if plan.on_gpu else 2, IMAGES[str(recipe.network[0])]
        fleet = start_fleet(recipe, plan.device, updates=updates, shape=shape, program=plan.program)
        sides, against = [epochs_of(fleet, name)], None
        if program_of(fleet) != "plain":
            plain = start_fleet(recipe, plan.device, updates=updates, shape=shape, program="plain")
            sides.append(epochs_of(plain, "plain PyTorch"))
        timings = interleave(sides, plan.device, plan.seconds)
        if len(sides) > 1:
            against = ("plain PyTorch", timings["plain PyTorch"])
        yield _figure("convolutions", name, timings[name], fleet, against=against, rows=f"{rows} + {rows}")


def operations(recipe: Recipe, shape: tuple[int, ...]) -> int:
    """Floating-point operations in the products and convolutions of one member's update, there and back.

    Examples
    --------
    Thirty rows (labelled, corrupted and clean) go up through 5×10 weights, whose gradient is as large a product again;
    ten go down, and there the gradient goes on to what is below too.

    >>> recipe = Recipe(network=(), costs=(10.0, 1.0), batch_size=10, labeled_batch_size=10)
    >>> operations(recipe, (5,)) - 2 * 5 * 10 * (2 * 30 + 3 * 10)
    0
    """
    fleet = start_fleet(recipe, torch.device("cpu"), updates=2, shape=shape, program="plain")
    fleet.streams.start_epoch()
    batch = fleet.streams.batch(0)
    with FlopCounterMode(display=False) as counter:
        fleet.costs(**batch._asdict()).total.backward()
    return int(counter.get_total_flops())


def _figure(
    benchmark: str,
    what: str,
    timing: Timing,
    fleet: Fleet,
    *,
    against: tuple[str, Timing] | None = None,
    **details: object,
) -> Figure:
    ratio = None if against is None else quicker(timing, against[1])
    told = {"program": program_of(fleet), "warm_up_seconds": timing.warm_up, **details}
    return Figure(benchmark, what, timing.ms, ratio, "" if against is None else against[0], told)


def _of_members(members: int) -> str:
    return f"{members} seed{'s' * (members > 1)}"


BENCHMARKS: dict[str, Callable[[Plan], Iterator[Figure]]] = {
    "engine": _engine,
    "fleets": _fleets,
    "scaling": _scaling,
    "utilisation": _utilisation,
    "convolutions": _convolutions,
}
