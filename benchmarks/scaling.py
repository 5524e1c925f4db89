"""Scaling: milliseconds an update against width, depth and batch, and an epoch's against its rows, with fitted powers.

    python benchmarks/scaling.py --record results/bench.jsonl

Width scales the input and every hidden rung of the paper's MNIST ladder, depth counts hidden rungs of 250 units, batch
is both batches' rows. On a CPU every setting is compiled first unless `--quick` is given.
"""

from tikas.experiments.bench_script import run

if __name__ == "__main__":
    run("scaling", __doc__)
