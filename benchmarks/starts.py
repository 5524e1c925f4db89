"""How long training takes to start: the first time that a shape is trained on a machine, and the second time.

    python benchmarks/starts.py --record results/bench.jsonl

Every start is a process of its own, on synthetic rows of the shape of MNIST (of CIFAR-10 for Conv-Large). The first
finds no compiled code, the second what the first has cached. `seconds` lasts from building the engine, with torch
imported and the rows in memory, to the end of the first ten updates; `seconds_before` is what Python and torch took.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory

from common import Figure, new_parser, print_machine, report, start_engine
from tikas.training.environment import pick_device
from tikas.training.recipe import Recipe

SHAPES: dict[str, tuple[Recipe, tuple[int, ...], int]] = {
    "dense, 1 seed": (Recipe(), (784,), 1),
    "dense, 40 seeds": (Recipe(), (784,), 40),
    "conv_small Γ, 5 seeds": (Recipe(network=("conv_small",), costs=(1.0,)), (1, 28, 28), 5),
    "conv_small full, 1 seed": (Recipe(network=("conv_small",), costs=(1000.0, 10.0, 1.0)), (1, 28, 28), 1),
    "conv_fc full, 2 seeds": (Recipe(network=("conv_fc",)), (1, 28, 28), 2),
    "conv_large Γ, 1 seed": (Recipe(network=("conv_large",), costs=(4.0,), activation="leaky_relu"), (3, 32, 32), 1),
}
CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


def start(name: str, device: str | None) -> dict[str, float]:
    """Start training in this process; the seconds of that, and the seconds since the process began."""
    before = time.clock_gettime(time.CLOCK_BOOTTIME) - _process_start()
    recipe, shape, members = SHAPES[name]
    started = time.perf_counter()
    engine = start_engine(recipe, pick_device(device), members=members, updates=10, shape=shape)
    engine.train_epoch().sum().item()  # item waits for a GPU
    return {"seconds": time.perf_counter() - started, "seconds_before": before}


def _process_start() -> float:
    """When this process began, in seconds since the machine started: field 22 of /proc/self/stat."""
    after_name = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return int(after_name[19]) / os.sysconf("SC_CLK_TCK")


def start_in_process(name: str, device: str | None, cache: str | Path) -> dict[str, float]:
    """The same in a process of its own, which caches compiled code in this folder."""
    command = [sys.executable, __file__, "--worker", name, *(["--device", device] if device else [])]
    environment = {**os.environ, **{variable: str(Path(cache, variable)) for variable in CACHES}}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"starts.py: {name}: {''.join(done.stderr.strip().splitlines()[-1:])}")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main(arguments: Sequence[str] | None = None) -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--cache", type=Path, help="where to cache compiled code; by default it is deleted at the end")
    parser.add_argument("--worker", choices=SHAPES, help="start in this process and print the figures as JSON")
    options = parser.parse_args(arguments)
    if options.worker:
        print(json.dumps(start(options.worker, options.device)))
        return
    device = pick_device(options.device)
    print_machine(device)
    for name in options.shapes:
        with nullcontext(options.cache) if options.cache else TemporaryDirectory() as cache:
            for which in ("first", "second"):
                details = start_in_process(name, options.device, cache)
                report(Figure("starts", f"{name}, {which} start", details=details), options, device)


if __name__ == "__main__":
    main()
