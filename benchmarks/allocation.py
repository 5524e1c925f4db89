"""What it gains on a CPU that updates keep the memory they free (`tikas.training.allocation`).

    python benchmarks/allocation.py --record results/bench.jsonl

Each side trains in processes of its own, on few made-up rows, in turn: the C library adapts to what a process has freed
before. So the gain is that of a process that has freed nothing large; one that has read MNIST has adapted by then.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from contextlib import nullcontext
from statistics import median

import torch

from tikas.experiments.bench import Figure, start_fleet
from tikas.experiments.bench_script import headline, line_of, report
from tikas.training.allocation import freed_memory_kept
from tikas.training.engine import suitable_arithmetic
from tikas.training.recipe import Recipe

CPU = torch.device("cpu")
NETWORKS: dict[str, tuple[Recipe, tuple[int, ...], int, int]] = {
    "dense, 1 seed": (Recipe(), (784,), 1, 100),
    "dense, 4 seeds": (Recipe(), (784,), 4, 25),
    "conv_small Γ, 1 seed": (Recipe(network=("conv_small",), costs=(1.0,)), (1, 28, 28), 1, 10),
}
"""The recipe, the shape of a row, the members, and the updates that are timed."""


def train(name: str, *, kept: bool) -> dict[str, float]:
    """Milliseconds of an update and member in this process, and the pages that the system had to find for it."""
    recipe, shape, members, timed = NETWORKS[name]
    fleet = start_fleet(recipe, CPU, members=members, updates=5, shape=shape)
    rates = torch.full((5,), 0.002)
    with suitable_arithmetic(fleet), freed_memory_kept(CPU) if kept else nullcontext():
        fleet.train_epoch(rates)
        started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(timed // 5):
            fleet.train_epoch(rates)
        seconds = time.perf_counter() - started
        pages = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    return {"ms": 1000 * seconds / timed / members, "pages": pages / timed / members}


def train_elsewhere(name: str, *, kept: bool) -> dict[str, float]:
    command = [sys.executable, __file__, "--child", name, *(["--kept"] if kept else [])]
    figures: dict[str, float] = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="processes of each side")
    parser.add_argument("--record", help="a file to add the figures to")
    parser.add_argument("--child", choices=NETWORKS, help=argparse.SUPPRESS)
    parser.add_argument("--kept", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(train(arguments.child, kept=arguments.kept)))
        return
    print(headline(CPU), flush=True)
    for name in NETWORKS:
        rounds = [{kept: train_elsewhere(name, kept=kept) for kept in (False, True)} for _ in range(arguments.rounds)]
        ms, pages = (
            {kept: median(each[kept][figure] for each in rounds) for kept in (False, True)}
            for figure in ("ms", "pages")
        )
        back, kept = (f"{name}, {how}" for how in ("handed back", "kept"))
        for figure in (
            Figure("allocation", back, ms[False], details={"pages": pages[False]}),
            Figure("allocation", kept, ms[True], ms[False] / ms[True], back, {"pages": pages[True]}),
        ):
            report(figure, f"{line_of(figure)}    {figure.details['pages']:.0f} pages", CPU, arguments.record)


if __name__ == "__main__":
    main()
