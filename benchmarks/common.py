"""Shared by the benchmark scripts: engines on synthetic rows, interleaved timing, and lines and records of figures."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

import torch

if TYPE_CHECKING:
    from tikas.data.datasets import Dataset

Program = Literal["compiled", "uncompiled", "eager"]

RESULTS = Path(__file__).resolve().parents[1] / "results"
CLASSES = 10
LONG_RUN = 100_000
"""So many updates that `choose_engine` compiles."""
MIN_ROUNDS = 3

# Engines on synthetic rows


@dataclass(frozen=True)
class TimedEngine:
    """An engine on synthetic rows, with the precision and the number of threads that `Trainer.fit` gives it."""

    engine: Any
    exact: bool
    small: bool

    @property
    def members(self) -> int:
        return self.engine.members

    @property
    def batches(self) -> Any:
        return self.engine.batches

    @property
    def dtype(self) -> torch.dtype:
        """The type of what products read."""
        return getattr(self.engine, "dtype", torch.float32)

    @property
    def program(self) -> str:
        """The engine's class and the type of its products, for example ``"CompiledEngine, bfloat16"``."""
        return f"{type(self.engine).__name__}, {str(self.dtype).removeprefix('torch.')}"

    def arithmetic(self) -> AbstractContextManager[None]:
        """Return a context with the precision and the number of threads of a fit with this engine."""
        from tikas.training.environment import arithmetic

        return arithmetic(self.batches.device, exact=self.exact, small=self.small)

    def train_epoch(self) -> torch.Tensor:
        """Train for one epoch in that context."""
        with self.arithmetic():
            return self.engine.train_epoch(torch.full((self.batches.updates,), 0.002))


def start_engine(
    recipe: Any,
    device: torch.device,
    *,
    members: int = 1,
    updates: int | None = None,
    shape: tuple[int, ...] = (784,),
    program: Program = "compiled",
    exact: bool = False,
) -> TimedEngine:
    """Build the engine that would train this recipe, on as many synthetic rows as make these updates an epoch.

    Uniform noise takes as long to train on as images do.

    Parameters
    ----------
    recipe : Recipe
    device : torch.device
    members : int, default=1
        Members of the ensemble; their seeds are 0, 1, ...
    updates : int, optional
        Updates per epoch. By default 600, as with MNIST, on a GPU, and 5 on a CPU.
    shape : tuple of int, default=(784,)
        Shape of a row.
    program : "compiled", "uncompiled" or "eager"
        "compiled": the engine for a long run. "uncompiled": the engine for a short run. "eager": `EagerEngine`.
    exact : bool, default=False
        float32 products instead of bf16 and TF32.

    Examples
    --------
    >>> from tikas.training.recipe import Recipe
    >>> recipe = Recipe(network=(4,), batch_size=10, labeled_batch_size=10)
    >>> engine = start_engine(recipe, torch.device("cpu"), members=2, updates=3, shape=(5,))
    >>> engine.members, engine.batches.updates, len(engine.batches.rows)
    (2, 3, 30)
    """
    from tikas.data.batches import Batches
    from tikas.data.splits import split
    from tikas.training.engines import GPU_BLOCK, SECOND_THREAD_FROM, EagerEngine, choose_engine, multiplications

    on_gpu = device.type == "cuda"
    count = recipe.batch_size * (updates or (600 if on_gpu else 5))
    rows = torch.rand(count, *shape, generator=torch.Generator().manual_seed(0)).to(device)
    targets = torch.arange(count) % CLASSES
    seeds = range(members)
    splits = [split(targets.numpy(), min(100, count // 2), seed=seed) for seed in seeds]
    models = [recipe.build(shape, CLASSES, seed).to(device) for seed in seeds]
    batches = Batches(
        rows,
        targets.to(device),
        None,
        splits,
        seeds,
        models[0].shapes,
        recipe.batch_size,
        recipe.labeled_batch_size,
        block=GPU_BLOCK if on_gpu else 1,
        denoising=any(recipe.costs),
    )
    if program == "eager":
        engine = EagerEngine(models, batches)
    else:
        engine = choose_engine(models, batches, LONG_RUN if program == "compiled" else 0, exact=exact)
    return TimedEngine(engine, exact, multiplications(models, batches) < SECOND_THREAD_FROM)


# Timing


@dataclass(frozen=True)
class Side:
    """One of several things to be timed: what a block of it runs, and how many units of work that is.

    Examples
    --------
    >>> side = Side("sorted", lambda: [sorted(range(100)) for _ in range(10)], units=10)
    >>> interleave([side], torch.device("cpu"), seconds=0)["sorted"].ms > 0
    True
    """

    name: str
    block: Callable[[], object]
    units: float


@dataclass(frozen=True)
class Timing:
    """Milliseconds per unit of work, one figure per block, and how many seconds longer the first block took."""

    blocks: Sequence[float]
    warm_up: float

    @property
    def ms(self) -> float:
        """The median: a block that another program delayed does not count."""
        return median(self.blocks)


def interleave(sides: Sequence[Side], device: torch.device, seconds: float) -> dict[str, Timing]:
    """Run a block of each side to warm up, then all of them in turn for about this long, at least three times.

    Taking turns makes a busy machine slow all sides alike. On a CPU all of them keep freed memory, as in a fit.
    """
    from tikas.training.environment import freed_memory_kept, training_environment

    blocks: dict[str, list[float]] = {side.name: [] for side in sides}
    with training_environment(), freed_memory_kept(enabled=device.type == "cpu"):
        first = {side.name: _seconds(side.block, device) for side in sides}
        started, rounds = time.perf_counter(), 0
        while rounds < MIN_ROUNDS or time.perf_counter() - started < seconds:
            rounds += 1
            for side in sides:
                blocks[side.name].append(1000 * _seconds(side.block, device) / side.units)
    return {
        side.name: Timing(blocks[side.name], max(0.0, first[side.name] - median(blocks[side.name]) * side.units / 1000))
        for side in sides
    }


def _seconds(block: Callable[[], object], device: torch.device) -> float:
    synchronize(device)
    started = time.perf_counter()
    block()
    synchronize(device)
    return time.perf_counter() - started


def synchronize(device: torch.device) -> None:
    """Wait until a GPU has finished all work; on a CPU do nothing."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def epochs_of(engine: TimedEngine, name: str, *, units: float | None = None) -> Side:
    """An epoch of this engine as a side; by default the unit is one update of one member."""
    return Side(name, engine.train_epoch, units or engine.batches.updates * engine.members)


# Figures, as lines and as records


@dataclass(frozen=True)
class Figure:
    """One line of a benchmark.

    Attributes
    ----------
    ms
        Milliseconds per update (and member, where there are several), or None where the figure is something else.
    ratio, against
        How many times as fast as what.
    details
        Everything else that is recorded.
    """

    benchmark: str
    what: str
    ms: float | None = None
    ratio: float | None = None
    against: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)

    def line(self) -> str:
        """The figure as a line of text."""
        ms = "" if self.ms is None else f"{self.ms:.4g} ms"
        ratio = "" if self.ratio is None else f"{self.ratio:.2f} x {self.against}"
        details = ", ".join(
            f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in self.details.items()
            if isinstance(value, int | float | str)
        )
        return f"{self.what:<30}{ms:>12}   {ratio:<24} {details}".rstrip()

    def record(self, device: torch.device, *, quick: bool = False) -> dict[str, Any]:
        """The figure as a record, with hardware, versions and revision."""
        ms = {} if self.ms is None else {"ms": self.ms}
        ratio = {} if self.ratio is None else {"ratio": self.ratio, "against": self.against}
        own = {"benchmark": self.benchmark, "what": self.what, **ms, **ratio, **self.details, "quick": quick}
        return own | provenance(device)


def timed_figure(
    benchmark: str,
    what: str,
    timing: Timing,
    engine: TimedEngine,
    against: tuple[str, Timing] | None = None,
    **details: Any,
) -> Figure:
    """A figure of an engine's timing, with its program and warm-up, and the ratio to another side if one is given."""
    known = {"program": engine.program, "warm_up_seconds": timing.warm_up, **details}
    if against is None:
        return Figure(benchmark, what, timing.ms, details=known)
    name, other = against
    return Figure(benchmark, what, timing.ms, other.ms / timing.ms, name, known)


def provenance(device: torch.device | str) -> dict[str, Any]:
    """Hardware, versions and revision: the fields that every record has."""
    from tikas.paper.records import revision
    from tikas.training.summary import hardware, versions

    return {"hardware": hardware(device), "versions": versions(), "revision": revision()}


def report(figure: Figure, options: argparse.Namespace, device: torch.device, line: str = "") -> None:
    """Print a figure, as `line` where one is given, and add its record to the file of ``--record``."""
    print(line or figure.line(), flush=True)
    write_record(options.record, figure.record(device, quick=getattr(options, "quick", False)))


def write_record(path: Path | None, record: Mapping[str, Any]) -> None:
    """Add a record to a file, where one is given."""
    if path is not None:
        from tikas.paper.records import append_record

        append_record(path, record)


def print_machine(device: torch.device) -> None:
    """Print hardware and versions on one line."""
    about = provenance(device)
    print(", ".join([about["hardware"], *(f"{name} {version}" for name, version in about["versions"].items())]))


def load_flat(data: str, data_dir: Path | None = None) -> tuple[Dataset, Dataset]:
    """Return the training and the test rows of a data set, images as vectors of their pixels."""
    from tikas.data.datasets import load_dataset

    train, test = load_dataset(data, data_dir)
    return tuple(replace(part, rows=part.rows.reshape(len(part), -1)) for part in (train, test))


def new_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser with the options that all scripts have: ``--device`` and ``--record``."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", help="cpu or cuda; by default a GPU if there is one")
    parser.add_argument("--record", type=Path, help="a .jsonl file to append the records to")
    return parser


def seeds_in_words(members: int) -> str:
    """``"1 seed"`` or ``"4 seeds"``."""
    return f"{members} seed{'s' * (members > 1)}"
