"""Measure how fast training is on this machine: `make bench` runs all of these in their quick form.

    python benchmarks/bench.py
    python benchmarks/bench.py engine scaling --full --record results/bench.jsonl

engine: plain PyTorch, one seed and ensembles. scaling: width, depth, batch, rows, and utilization of the hardware.
convolutions: the paper's convolutional networks. `--full` takes the full settings, which is many minutes on a CPU.
"""

from collections.abc import Sequence

import convolutions
import engine
import scaling
from common import new_parser

BENCHMARKS = {"engine": engine.main, "scaling": scaling.main, "convolutions": convolutions.main}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = new_parser(__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(BENCHMARKS)}; by default all")
    parser.add_argument("--full", action="store_true", help="full settings and more rounds")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"unknown benchmark {', '.join(unknown)}; choose from {', '.join(BENCHMARKS)}")
    shared = [] if options.full else ["--quick"]
    shared += ["--device", options.device] if options.device else []
    shared += ["--record", str(options.record)] if options.record else []
    for name in options.names or BENCHMARKS:
        print(f"\n{name}")
        BENCHMARKS[name](shared)


if __name__ == "__main__":
    main()
