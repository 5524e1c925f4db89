"""Speed, side by side: short blocks of every side in turn, so that a busy machine slows all of them alike."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import linear_regression, median
from types import ModuleType
from typing import Any, Literal

import numpy as np
import torch

import tikas
from tikas.data.splits import split
from tikas.data.streams import Examples, Streams
from tikas.experiments.records import hardware, revision, versions
from tikas.training.allocation import freed_memory_kept
from tikas.training.building import build_ladder
from tikas.training.captured import CapturedFleet, SideBySide
from tikas.training.engine import UPDATES_IN_A_REPLAY, launch, suitable_arithmetic
from tikas.training.fleet import Fleet
from tikas.training.recipe import Recipe

Program = Literal["compiled", "uncompiled", "plain"]

LEAST_ROUNDS = 3
CLASSES = 10
MANY_UPDATES = 100_000
"""So long a run that the engine compiles for it."""

WORDS = {
    "program": "{}",
    "dtype": "{}",
    "rows": "{} rows",
    "unit": "milliseconds of {}",
    "exponent": "{:.2f}",
    "warm_up_seconds": "warm-up {:.1f} s",
    "utilisation": "{:.1%} of a large product",
    "teraflops": "{:.3g} TFLOP/s",
    "gigaflop_of_an_update": "{:.3g} GFLOP an update",
}
"""How details are said to people; a record has them all, by their names."""


@dataclass(frozen=True)
class Side:
    """Something to be timed: what one block of it runs, and how many units of work that is.

    Examples
    --------
    >>> side = Side("sorted", lambda: [sorted(range(100)) for _ in range(10)], units=10)
    >>> interleave([side], torch.device("cpu"), seconds=0)["sorted"].ms > 0  # milliseconds of sorting once
    True
    """

    name: str
    block: Callable[[], object]
    units: float


@dataclass(frozen=True)
class Timing:
    """Milliseconds a unit of work, one figure for every block, and the seconds that the first block took longer.

    Examples
    --------
    >>> Timing([1.0, 9.0, 1.1], warm_up=0.5).ms  # the median: a block that was held up does not count
    1.1
    """

    blocks: Sequence[float]
    warm_up: float

    @property
    def ms(self) -> float:
        return median(self.blocks)


@dataclass(frozen=True)
class Figure:
    """One line of a benchmark.

    Attributes
    ----------
    ms
        Milliseconds of one update, of one member where there are more; None where the line is about something else.
    ratio, against
        How many times as quick as what.
    details
        Whatever else is to be known.
    """

    benchmark: str
    what: str
    ms: float | None = None
    ratio: float | None = None
    against: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def said(self) -> str:
        """The details in words; a warm-up of less than a second is none.

        Examples
        --------
        >>> Figure("fleets", "4 seeds", details={"program": "plain", "warm_up_seconds": 2.345, "members": 4}).said
        'plain, warm-up 2.3 s'
        """
        shown = {name: value for name, value in self.details.items() if name in WORDS}
        if shown.get("warm_up_seconds", 0) < 1:
            shown.pop("warm_up_seconds", None)
        return ", ".join(WORDS[name].format(value) for name, value in shown.items())

    def record(self, device: torch.device, *, quick: bool) -> dict[str, Any]:
        """What goes to the results: the line itself, the hardware and the versions."""
        ratio = {} if self.ratio is None else {"ratio": self.ratio, "against": self.against}
        return {
            "benchmark": self.benchmark,
            "what": self.what,
            **({} if self.ms is None else {"ms": self.ms}),
            **ratio,
            **self.details,
            "quick": quick,
            "hardware": hardware(device),
            "versions": versions(),
            "revision": revision(),
        }


def interleave(sides: Sequence[Side], device: torch.device, seconds: float) -> dict[str, Timing]:
    """Run every side's block once to warm up, then all of them in turn, again and again, for about these seconds.

    On a CPU all have the memory kept that they free, plain PyTorch too, whose users would go without.

    Examples
    --------
    >>> naps = [Side("short", lambda: time.sleep(0.001), 1), Side("long", lambda: time.sleep(0.004), 1)]
    >>> timings = interleave(naps, torch.device("cpu"), seconds=0.05)
    >>> 1.5 < quicker(timings["short"], timings["long"]) < 5
    True
    """
    blocks: dict[str, list[float]] = {side.name: [] for side in sides}
    with freed_memory_kept(device):
        first = {side.name: _seconds(side.block, device) for side in sides}
        started, rounds = time.perf_counter(), 0
        while rounds < LEAST_ROUNDS or time.perf_counter() - started < seconds:
            rounds += 1
            for side in sides:
                blocks[side.name].append(1000 * _seconds(side.block, device) / side.units)
    return {
        side.name: Timing(blocks[side.name], max(0.0, first[side.name] - median(blocks[side.name]) * side.units / 1000))
        for side in sides
    }


def _seconds(block: Callable[[], object], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    started = time.perf_counter()
    block()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started


def quicker(one: Timing, other: Timing) -> float:
    """How many times as quick one is as the other, by the milliseconds that are told of both.

    Examples
    --------
    >>> quicker(Timing([1.0, 2.0, 1.0], 0), Timing([3.0, 6.0, 4.0], 0))
    4.0
    """
    return other.ms / one.ms


def exponent(sizes: Sequence[float], times: Sequence[float]) -> float:
    """k of time ≈ c·sizeᵏ: the slope of a straight line through the logarithms.

    Examples
    --------
    >>> round(exponent([1, 2, 4], [3, 12, 48]), 6)
    2.0
    """
    return linear_regression(np.log(sizes).tolist(), np.log(times).tolist()).slope


# What is timed


def random_examples(rows: int, shape: tuple[int, ...], device: torch.device) -> Examples:
    """Rows of uniform noise: an update takes as long on them as on pictures.

    Examples
    --------
    >>> examples = random_examples(30, (1, 8, 8), torch.device("cpu"))
    >>> tuple(examples.rows.shape), examples.targets.bincount().tolist()
    ((30, 1, 8, 8), [3, 3, 3, 3, 3, 3, 3, 3, 3, 3])
    """
    draw = torch.Generator().manual_seed(0)
    targets = torch.arange(rows) % CLASSES
    return Examples(torch.rand(rows, *shape, generator=draw), targets, CLASSES).to(device)


def start_fleet(
    recipe: Recipe,
    device: torch.device,
    *,
    members: int = 1,
    updates: int | None = None,
    shape: tuple[int, ...] = (784,),
    program: Program = "compiled",
) -> Fleet:
    """A fleet that the engine would train this recipe with, on as many random rows as make these updates an epoch.

    Parameters
    ----------
    updates
        By default those of MNIST on a GPU, and a few on a CPU.
    program
        ``"compiled"``: what the engine chooses for a long run. ``"uncompiled"``: for a short one. ``"plain"``: eager
        PyTorch whatever the device.

    Examples
    --------
    >>> fleet = start_fleet(Recipe(network=(4,), batch_size=10), torch.device("cpu"), members=2, updates=3, shape=(5,))
    >>> fleet.members, fleet.streams.updates, len(fleet.streams.examples.rows)
    (2, 3, 30)
    """
    updates = updates or (600 if device.type == "cuda" else 5)
    examples = random_examples(recipe.batch_size * updates, shape, device)
    labels = min(100, len(examples.rows) // 2)
    splits = [split(examples.targets.cpu().numpy(), labels, seed=seed) for seed in range(members)]
    ladders = [build_ladder(recipe, shape, CLASSES, seed).to(device) for seed in range(members)]
    streams = Streams(
        examples,
        splits,
        range(members),
        ladders[0].shapes,
        recipe.batch_size,
        recipe.labeled_batch_size,
        most_in_block=UPDATES_IN_A_REPLAY if device.type == "cuda" else 1,
        denoising=any(recipe.costs),
    )
    if program == "plain":
        return Fleet(ladders, streams)
    return launch(ladders, streams, MANY_UPDATES if program == "compiled" else 0)


def epochs_of(fleet: Fleet, name: str, *, units: float | None = None) -> Side:
    """A fleet's epoch as a side; a unit of work is one update of one member unless something else is said.

    Examples
    --------
    >>> fleet = start_fleet(Recipe(network=(4,), batch_size=10), torch.device("cpu"), members=2, updates=3, shape=(5,))
    >>> epochs_of(fleet, "2 seeds").units, epochs_of(fleet, "an epoch", units=1).units
    (6, 1)
    """
    rates = torch.full((fleet.streams.updates,), 0.002)

    def epoch() -> None:
        with suitable_arithmetic(fleet):
            fleet.train_epoch(rates)

    return Side(name, epoch, units or fleet.streams.updates * fleet.members)


def program_of(fleet: Fleet) -> str:
    """Which of the engine's programs a fleet runs, in a word or two.

    Examples
    --------
    >>> program_of(start_fleet(Recipe(network=(4,), batch_size=10), torch.device("cpu"), shape=(3,), program="plain"))
    'plain'
    """
    if type(fleet).__name__ == "FusedFleet":  # whose module needs Triton
        return f"written out, {str(fleet.dtype).removeprefix('torch.')} products"
    if isinstance(fleet, SideBySide):
        return f"{program_of(fleet.fleets[0])}, side by side"
    compiled = fleet.costs != fleet.ladder.costs
    if isinstance(fleet, CapturedFleet):
        return "compiled and captured" if compiled else "captured"
    if not compiled:
        return "plain"
    return "compiled" if fleet.dtype == torch.float32 else "compiled, bfloat16 products"


def eager_ladder() -> ModuleType | None:
    """The plain ladder that the engine is measured against; None where this is no checkout of the repository.

    Examples
    --------
    >>> module = eager_ladder()
    >>> module is None or list(module.EagerLadder([4, 3, 2], 0.3, [1, 1, 1]).encoder[0].weight.shape) == [3, 4]
    True
    """
    path = Path(tikas.__file__).parents[2] / "benchmarks" / "eager.py"
    spec = importlib.util.spec_from_file_location("eager", path) if path.is_file() else None
    if spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
