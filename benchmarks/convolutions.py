"""Milliseconds an update of convolutional ladders: conv_fc (full), conv_small (Γ and full) and conv_large (Γ).

    python benchmarks/convolutions.py --record results/bench.jsonl

The engine's program against plain PyTorch, 100 + 100 rows. On a CPU this takes many minutes; `--quick` takes few rows
and the plain program alone.
"""

from tikas.experiments.bench_script import run

if __name__ == "__main__":
    run("convolutions", __doc__)
