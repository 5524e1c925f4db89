"""Compare the speed of two revisions of tikas, interleaved on the same machine.

    python benchmarks/compare_revisions.py OTHER_CHECKOUT
    python benchmarks/compare_revisions.py OTHER_CHECKOUT --gpu --out comparison.json

OTHER_CHECKOUT is a folder with the other revision's `src/tikas`; `git worktree add OTHER_CHECKOUT REVISION` makes one.
Each side runs in its own process with its own `src` first on PYTHONPATH, and the two are measured in turn, so that a
busy machine slows both alike. Building, compiling and warm-up happen before the first measurement. If a revision needs
libraries that this environment does not have, put the folder where they are installed on PYTHONPATH.

The ratio is (milliseconds of the other revision) / (milliseconds of this one): above 1, this revision is faster. It is
the median over the rounds of the ratio within each round.

CPU cases: an eager update of the digits network, compiled updates of the MNIST network (one seed and four), a fit of
150 x 4 rows for one epoch, `import tikas`, `tikas --help`. GPU cases (`--gpu`): updates of the MNIST network on 60,000
synthetic rows (one seed, ten, forty) and of the digits network, captured without compiling. `--cases` chooses by name,
also among further ones: `tikas train` ("demo") and convolutions.

Revisions up to 7fcccce have another API: `_start_old` uses it, and can go when nobody compares with these any more.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import IO, Any, NamedTuple

HERE = Path(__file__).resolve().parents[1]
START_SECONDS = 240
"""How long a worker may take to build, compile and warm up one case."""


# The cases


@dataclass(frozen=True)
class Case:
    """One thing to measure.

    Attributes
    ----------
    kind
        "engine" and "fit" run in a process that stays; "import", "help" and "demo" start a process each time.
    network
        "mnist" is the paper's network with the default recipe, "digits" the small one, "conv_small" its Γ-model.
    program
        "eager", "uncompiled" (what the engine chooses for a short run) or "compiled" (for a long one).
    """

    kind: str
    device: str = "cpu"
    network: str = "mnist"
    program: str = "compiled"
    members: int = 1
    updates: int = 5
    default: bool = True


CASES = {
    "digits, eager": Case("engine", network="digits", program="eager", updates=12),
    "mnist, compiled, 1 seed": Case("engine"),
    "mnist, compiled, 4 seeds": Case("engine", members=4),
    "small fit": Case("fit"),
    "import": Case("import"),
    "help": Case("help"),
    "demo": Case("demo", default=False),
    "conv_small, eager": Case("engine", network="conv_small", program="eager", updates=2, default=False),
    "gpu, 1 seed": Case("engine", "cuda", updates=600),
    "gpu, 10 seeds": Case("engine", "cuda", members=10, updates=600),
    "gpu, 40 seeds": Case("engine", "cuda", members=40, updates=600),
    "gpu, digits captured": Case("engine", "cuda", network="digits", program="uncompiled", updates=120),
    "gpu, conv_small": Case("engine", "cuda", network="conv_small", updates=20, default=False),
    "gpu, conv_small, 5 seeds": Case("engine", "cuda", network="conv_small", members=5, updates=20, default=False),
}
SHAPES = {"mnist": (784,), "digits": (64,), "conv_small": (1, 28, 28)}


class Running(NamedTuple):
    """A case that is ready to be timed: one block of work, and how many units it is (updates of one seed, or fits).

    `synchronize` waits until the device has finished. `program` is the engine's class and the type of its products:
    two sides that differ there do not run the same work.
    """

    block: Callable[[], object]
    units: int
    synchronize: Callable[[], None]
    program: str = ""


# In the worker: start a case with the API of the revision that is imported


def start(case: Case) -> Running:
    """Build what a case measures, in this process."""
    if case.kind == "fit":
        return start_fit()
    import torch

    device = torch.device(case.device)
    synchronize = torch.cuda.synchronize if device.type == "cuda" else _nothing
    start_api = _start_new if find_spec("tikas.training.engines") else _start_old
    block, program = start_api(case, device)
    return Running(block, case.updates * case.members, synchronize, program)


def _start_new(case: Case, device: Any) -> tuple[Callable[[], object], str]:
    from common import start_engine
    from tikas.training.environment import freed_memory_kept, training_environment
    from tikas.training.recipe import SMALL, Recipe

    engine = start_engine(
        _recipe(case.network, Recipe, SMALL),
        device,
        members=case.members,
        updates=case.updates,
        shape=SHAPES[case.network],
        program=case.program,
    )

    def train_epoch() -> None:
        with training_environment(), freed_memory_kept(enabled=device.type == "cpu" and not engine.small):
            engine.train_epoch()

    return train_epoch, engine.program


def _start_old(case: Case, device: Any) -> tuple[Callable[[], object], str]:
    import torch
    from tikas.data.streams import Examples, Streams
    from tikas.training.allocation import freed_memory_kept
    from tikas.training.building import build_ladder
    from tikas.training.engine import UPDATES_IN_A_REPLAY, launch, suitable_arithmetic
    from tikas.training.fleet import Fleet

    from common import LONG_RUN
    from tikas.data.splits import split
    from tikas.training.recipe import DIGITS, Recipe

    recipe = _recipe(case.network, Recipe, DIGITS)
    count = recipe.batch_size * case.updates
    draw = torch.Generator().manual_seed(0)
    rows = torch.rand(count, *SHAPES[case.network], generator=draw)
    examples = Examples(rows, torch.arange(count) % 10, 10).to(device)
    seeds = range(case.members)
    splits = [split(examples.targets.cpu().numpy(), min(100, count // 2), seed=seed) for seed in seeds]
    ladders = [build_ladder(recipe, SHAPES[case.network], 10, seed).to(device) for seed in seeds]
    streams = Streams(
        examples,
        splits,
        seeds,
        ladders[0].shapes,
        recipe.batch_size,
        recipe.labeled_batch_size,
        most_in_block=UPDATES_IN_A_REPLAY if device.type == "cuda" else 1,
        denoising=any(recipe.costs),
    )
    if case.program == "eager":
        fleet = Fleet(ladders, streams)
    else:
        fleet = launch(ladders, streams, LONG_RUN if case.program == "compiled" else 0)

    rates = torch.full((case.updates,), 0.002)

    def train_epoch() -> None:
        with suitable_arithmetic(fleet), freed_memory_kept(device):
            fleet.train_epoch(rates)

    return train_epoch, f"{type(fleet).__name__}, {str(fleet.dtype).removeprefix('torch.')}"


def _recipe(network: str, recipe: Any, small: Any) -> Any:
    if network == "digits":
        return small
    if network == "conv_small":
        return recipe(network=("conv_small",), costs=(1.0,))
    return recipe()


def start_fit() -> Running:
    """A fit of 150 x 4 rows for one epoch, of a new estimator each time."""
    import numpy as np

    from tikas import LadderClassifier

    rows = np.random.default_rng(0).random((150, 4)).astype("float32")
    labels = np.full(150, -1)
    labels[:30] = np.arange(30) % 3

    def fit() -> None:
        LadderClassifier(epochs=1, random_state=0, device="cpu").fit(rows, labels)

    return Running(fit, 1, _nothing)


def _nothing() -> None:
    pass


def seconds_of(running: Running, blocks: int) -> float:
    """The seconds of so many blocks, the device having finished before and after."""
    running.synchronize()
    started = time.perf_counter()
    for _ in range(blocks):
        running.block()
    running.synchronize()
    return time.perf_counter() - started


def serve() -> None:
    """The worker's loop: a command per line on standard input, a reply per line on what was standard output.

    Everything else that is printed in this process goes to standard error, so that it cannot get between the replies.
    """
    import warnings

    import tikas

    warnings.simplefilter("ignore")
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    running: Running | None = None

    def reply(**values: Any) -> None:
        replies.write(json.dumps(values) + "\n")
        replies.flush()

    reply(tikas=str(Path(tikas.__file__).resolve()))
    for line in sys.stdin:
        command = json.loads(line)
        try:
            if "case" in command:
                running = None  # free the memory of the case before
                running = start(CASES[command["case"]])
                first = seconds_of(running, 1)
                seconds_of(running, 1)
                reply(warm_up_seconds=first, block_seconds=seconds_of(running, 1), program=running.program)
            else:
                assert running is not None
                seconds = seconds_of(running, command["blocks"])
                reply(ms=1000 * seconds / (command["blocks"] * running.units))
        except Exception as error:  # one case that fails must not end the others
            reply(error=f"{type(error).__name__}: {error}")


# In the parent: two workers, measured in turn


@dataclass
class Checkout:
    """A revision of tikas on disk, and the worker process that runs it."""

    name: str
    path: Path
    worker: subprocess.Popen[str] | None = None
    log: IO[str] | None = None

    @property
    def environment(self) -> dict[str, str]:
        paths = [str(self.path / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}

    @property
    def revision(self) -> str:
        command = ["git", "-C", str(self.path), "describe", "--always", "--dirty", "--abbrev=12"]
        try:
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            return ""  # a copy without its repository

    def send(self, **command: Any) -> None:
        if self.worker is None or self.worker.poll() is not None:
            self.stop()
            self._start()
        assert self.worker is not None
        assert self.worker.stdin is not None
        self.worker.stdin.write(json.dumps(command) + "\n")
        self.worker.stdin.flush()

    def receive(self, seconds: float) -> dict[str, Any]:
        """The worker's next reply; RuntimeError where it reports an error, dies or takes longer than this."""
        assert self.worker is not None
        assert self.worker.stdout is not None
        ready, _, _ = select.select([self.worker.stdout], [], [], seconds)
        line = self.worker.stdout.readline() if ready else ""
        if not line:
            last = self.stop()
            raise RuntimeError(f"{self.name}: no reply in {seconds:.0f} s" if not ready else f"{self.name}: {last}")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise RuntimeError(f"{self.name}: {reply['error']}")
        return reply

    def _start(self) -> None:
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.worker = subprocess.Popen(
            [sys.executable, __file__, "--serve"],
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )
        imported = Path(self.receive(60)["tikas"])
        if not imported.is_relative_to(self.path):
            self.stop()
            raise RuntimeError(f"{self.path}: Python imports tikas from {imported} instead.")

    def run(self, *arguments: str) -> str:
        """Run Python with these arguments; its output."""
        command = [sys.executable, *arguments]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        if done.returncode:
            last = "".join(done.stderr.strip().splitlines()[-1:])
            raise RuntimeError(f"{self.name}: `{' '.join(command)}` ended with {done.returncode}: {last}")
        return done.stdout

    def stop(self) -> str:
        """End the worker, if there is one, and return the last line that it wrote to its log."""
        if self.worker is None or self.log is None:
            return ""
        with self.worker, self.log:  # closes its pipes and the log
            self.worker.kill()
            self.worker.wait()
            self.log.seek(0)
            lines = self.log.read().strip().splitlines()
        self.worker = self.log = None
        return lines[-1] if lines else "the worker ended without a message"


def measure_workers(
    name: str, sides: Sequence[Checkout], rounds: int, seconds: float, deadline: float
) -> tuple[list[list[float]], dict[str, Any]]:
    """Milliseconds of both sides in every round, one list per side; and what else is recorded of the case."""
    ready = []
    for side in sides:  # one after the other: an engine may time its own choices while it starts
        side.send(case=name)
        ready.append(side.receive(START_SECONDS))
    blocks = [max(1, round(seconds / each["block_seconds"])) for each in ready]

    def measure(side: Checkout) -> float:
        side.send(blocks=blocks[sides.index(side)])
        return float(side.receive(60 + 20 * seconds)["ms"])

    details = {"warm_up_seconds": [each["warm_up_seconds"] for each in ready], "blocks": blocks}
    details["programs"] = [each["program"] for each in ready]
    return in_turn(measure, sides, rounds, deadline), details


def measure_processes(
    case: Case, sides: Sequence[Checkout], rounds: int, deadline: float
) -> tuple[list[list[float]], dict[str, Any]]:
    """The same for what needs a new process each time."""
    timed = "import time; t = time.perf_counter(); import tikas; print(1000 * (time.perf_counter() - t))"
    printed: dict[str, str] = {}

    def measure(side: Checkout) -> float:
        if case.kind == "import":
            return float(side.run("-c", timed))
        with tempfile.TemporaryDirectory() as folder:
            demo = ["train", "--device", "cpu", "--output", str(Path(folder, "model.safetensors"))]
            started = time.perf_counter()
            printed[side.name] = side.run("-m", "tikas", *(["--help"] if case.kind == "help" else demo))
            return 1000 * (time.perf_counter() - started)

    for side in sides:
        measure(side)  # writes the bytecode
    milliseconds = in_turn(measure, sides, 3 if case.kind == "demo" else max(rounds, 10), deadline)
    return milliseconds, {"printed": printed} if case.kind == "demo" else {}


def in_turn(
    measure: Callable[[Checkout], float], sides: Sequence[Checkout], rounds: int, deadline: float
) -> list[list[float]]:
    """Measure both sides once a round, the other one first every second time; after the deadline, three rounds."""
    found: list[list[float]] = [[], []]
    for index in range(rounds):
        if index >= 3 and time.perf_counter() > deadline:
            break
        for side in (0, 1) if index % 2 == 0 else (1, 0):
            found[side].append(measure(sides[side]))
    return found


def compare(other: Path, names: Sequence[str], options: argparse.Namespace) -> dict[str, Any]:
    """Measure all cases; print a line for each, and write the record after each if a path is given."""
    from tikas.training.summary import hardware, versions

    device = CASES[names[0]].device
    sides = [Checkout("other", other), Checkout("this", options.this.resolve())]
    deadline = time.perf_counter() + options.time_limit
    record: dict[str, Any] = {
        "benchmark": "compare_revisions",
        "revisions": {side.name: side.revision for side in sides},
        "hardware": hardware(device),
        "versions": {name: version for name, version in versions().items() if name != "tikas"},
        "cases": {},
    }
    print(", ".join([record["hardware"], *(f"{name} {version}" for name, version in record["versions"].items())]))
    print(f"other: {sides[0].revision or other}\nthis:  {sides[1].revision or sides[1].path}\n")
    print(f"{'case':<28}{'other, ms':>12}{'this, ms':>12}{'ratio':>8}   over rounds", flush=True)
    try:
        for name in names:
            case = CASES[name]
            try:
                if time.perf_counter() > deadline:
                    raise TimeoutError(f"skipped: --time-limit {options.time_limit:g} s is over")
                if case.kind in ("engine", "fit"):
                    found, details = measure_workers(name, sides, options.rounds, options.seconds, deadline)
                else:
                    found, details = measure_processes(case, sides, options.rounds, deadline)
            except (RuntimeError, OSError, ValueError) as error:  # TimeoutError is an OSError
                record["cases"][name] = {"error": str(error)}
                print(f"{name:<28}{error}", flush=True)
            else:
                record["cases"][name] = figures(found) | details
                print(line_of(name, record["cases"][name]), flush=True)
            if options.out:
                options.out.parent.mkdir(parents=True, exist_ok=True)
                options.out.write_text(json.dumps(record, indent=1) + "\n")
    finally:
        for side in sides:
            side.stop()
    return record


def figures(found: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Median milliseconds of both sides, and the median, smallest and largest ratio within a round."""
    ratios = [other / this for other, this in zip(*found, strict=True)]
    return {
        "other_ms": median(found[0]),
        "this_ms": median(found[1]),
        "ratio": median(ratios),
        "lowest_ratio": min(ratios),
        "highest_ratio": max(ratios),
        "rounds": len(ratios),
    }


def line_of(name: str, case: dict[str, Any]) -> str:
    """One case as a line of text."""
    spread = f"{case['lowest_ratio']:.3f} to {case['highest_ratio']:.3f}, {case['rounds']} rounds"
    programs = " | ".join(case["programs"]) if any(case.get("programs", ())) else ""
    line = f"{name:<28}{case['other_ms']:>12.4g}{case['this_ms']:>12.4g}{case['ratio']:>8.3f}   {spread}   {programs}"
    return line.rstrip()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, nargs="?", help="the checkout to compare with")
    parser.add_argument("--this", type=Path, default=HERE, help="the checkout to measure; by default that of this file")
    parser.add_argument("--gpu", action="store_true", help="the GPU cases instead of the CPU cases")
    parser.add_argument("--cases", nargs="+", choices=CASES, metavar="CASE", help=f"of: {', '.join(CASES)}")
    parser.add_argument("--rounds", type=int, default=9, help="how often both sides are measured")
    parser.add_argument("--seconds", type=float, default=0.7, help="roughly, of each measurement")
    parser.add_argument("--time-limit", type=float, help="seconds; by default 210 with --gpu, else 900")
    parser.add_argument("--out", type=Path, help="a JSON file for the record, written after each case")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve:
        serve()
        return
    if options.other is None or not (options.other / "src" / "tikas").is_dir():
        parser.error(f"{options.other}: expected a checkout, a folder that contains src/tikas.")
    options.time_limit = options.time_limit or (210 if options.gpu else 900)
    device = "cuda" if options.gpu else "cpu"
    names = options.cases or [name for name, case in CASES.items() if case.default and case.device == device]
    compare(options.other.resolve(), names, options)


if __name__ == "__main__":
    main()
