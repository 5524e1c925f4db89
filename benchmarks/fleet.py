"""Fleets of 1, 4, 10 and 40 seeds of the paper's MNIST ladder: milliseconds per update and seed.

    python benchmarks/fleet.py --members 1 4 10 40 --record results/fleet.jsonl

The fleets take turns, an epoch each (of 600 updates on a GPU), after one that warms up. Order, batches, noise and costs
are part of an epoch.
"""

from tikas.experiments.bench_script import run

if __name__ == "__main__":
    run("fleets", __doc__)
