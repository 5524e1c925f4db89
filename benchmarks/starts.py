"""How long training takes to start: the first time that a shape is trained on a machine, and the second.

    python benchmarks/starts.py --record results/starts.jsonl

Every start is a process of its own, of a fleet on made-up rows of the shape of MNIST's (of CIFAR-10's for Conv-Large).
The first finds nothing that was compiled before, the second what the first left. Seconds are those from the launch of
the fleet, torch imported and rows in memory, to the end of its first updates; the share of Python and torch, which a
process needs before it can do anything, is told beside them.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory

from tikas.experiments.bench import Figure, start_fleet
from tikas.experiments.bench_script import headline, report
from tikas.training.devices import suitable_device
from tikas.training.engine import suitable_arithmetic
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
    """Start one fleet in this process; the seconds that took, and those that the process had spent before."""
    import torch

    before = time.clock_gettime(time.CLOCK_BOOTTIME) - _birth()
    recipe, shape, members = SHAPES[name]
    place, started = suitable_device(device), time.perf_counter()
    fleet = start_fleet(recipe, place, members=members, updates=10, shape=shape)
    with suitable_arithmetic(fleet):
        fleet.train_epoch(torch.full((10,), 0.002)).sum().item()  # which waits for a GPU
    return {"seconds": time.perf_counter() - started, "seconds_before": before}


def _birth() -> float:
    """When this process began, in seconds since the machine did."""
    behind_name = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return int(behind_name[19]) / os.sysconf("SC_CLK_TCK")


def start_elsewhere(name: str, device: str | None, cache: str | Path) -> dict[str, float]:
    """Start one fleet in a process of its own, which keeps what it compiles in this folder."""
    command = [sys.executable, __file__, "--child", name, *(["--device", device] if device else [])]
    environment = {**os.environ, **{variable: str(Path(cache, variable)) for variable in CACHES}}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr.strip().splitlines()[-1]}")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--device", help="cpu or cuda; by default a GPU if there is one")
    parser.add_argument("--record", help="a file to add the figures to")
    parser.add_argument("--cache", type=Path, help="where compiled code is kept; by default it is deleted at the end")
    parser.add_argument("--child", choices=SHAPES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(start(arguments.child, arguments.device)))
        return
    device = suitable_device(arguments.device)
    print(headline(device), flush=True)
    for name in arguments.shapes:
        with nullcontext(arguments.cache) if arguments.cache else TemporaryDirectory() as cache:
            for which in ("first", "second"):
                details = start_elsewhere(name, arguments.device, cache)
                figure = Figure("starts", f"{name}, {which} start", details=details)
                line = f"{figure.what}: {details['seconds']:.1f} s, and {details['seconds_before']:.1f} s before"
                report(figure, line, device, arguments.record)


if __name__ == "__main__":
    main()
