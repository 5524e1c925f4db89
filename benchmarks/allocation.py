"""How much faster an update is on a CPU if the C library keeps freed memory for the next allocation.

    python benchmarks/allocation.py --record results/bench.jsonl

Every update allocates activations and gradients, and frees them. By default glibc returns large blocks to the system,
which clears their pages before the next use. Each measurement runs in its own process, with glibc's thresholds set in
the environment: "returned" has the defaults, "kept" has both thresholds at 1 GiB. glibc raises its thresholds by itself
after a process has freed something large, such as a data set, so these figures hold for a process that has not.
"""

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from statistics import median

import torch

from common import Figure, new_parser, print_machine, report, start_engine
from tikas.training.recipe import Recipe

LADDERS: dict[str, tuple[Recipe, tuple[int, ...], int, int]] = {
    "dense, 1 seed": (Recipe(), (784,), 1, 100),
    "dense, 4 seeds": (Recipe(), (784,), 4, 25),
    "conv_small Γ, 1 seed": (Recipe(network=("conv_small",), costs=(1.0,)), (1, 28, 28), 1, 10),
}
"""Recipe, shape of a row, members, and updates to time."""
KEPT = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**30)}


def measure(name: str, program: str) -> dict[str, float]:
    """Return milliseconds and new pages of memory per update and member, measured in this process."""
    recipe, shape, members, updates = LADDERS[name]
    engine = start_engine(recipe, torch.device("cpu"), members=members, updates=5, shape=shape, program=program)
    rates = torch.full((5,), 0.002)
    engine.engine.train_epoch(rates)  # without the settings of a fit, which keep memory too
    started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(updates // 5):
        engine.engine.train_epoch(rates)
    seconds = time.perf_counter() - started
    pages = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    return {"ms": 1000 * seconds / updates / members, "pages": pages / updates / members}


def measure_in_process(name: str, program: str, *, kept: bool) -> dict[str, float]:
    """Return the same, measured in a process of its own."""
    environment = {key: value for key, value in os.environ.items() if key not in KEPT}
    command = [sys.executable, __file__, "--worker", name, "--program", program]
    done = subprocess.run(
        command, env=environment | (KEPT if kept else {}), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"allocation.py: {name}: {''.join(done.stderr.strip().splitlines()[-1:])}")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main(arguments: Sequence[str] | None = None) -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--ladders", nargs="+", choices=LADDERS, default=list(LADDERS))
    parser.add_argument("--rounds", type=int, default=3, help="processes of each side")
    parser.add_argument("--program", choices=("compiled", "uncompiled"), default="compiled")
    parser.add_argument("--worker", choices=LADDERS, help="measure in this process and print the figures as JSON")
    options = parser.parse_args(arguments)
    if options.worker:
        print(json.dumps(measure(options.worker, options.program)))
        return
    device = torch.device("cpu")
    print_machine(device)
    for name in options.ladders:
        rounds = [
            [measure_in_process(name, options.program, kept=kept) for kept in (False, True)]
            for _ in range(options.rounds)
        ]
        returned, kept = (
            {key: median(each[side][key] for each in rounds) for key in ("ms", "pages")} for side in (0, 1)
        )
        against = f"{name}, returned"
        report(Figure("allocation", against, returned["ms"], details={"pages": returned["pages"]}), options, device)
        ratio = returned["ms"] / kept["ms"]
        figure = Figure("allocation", f"{name}, kept", kept["ms"], ratio, against, {"pages": kept["pages"]})
        report(figure, options, device)


if __name__ == "__main__":
    main()
