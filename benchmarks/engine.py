"""The engine against the plain ladder of `eager.py`, one seed of the paper's MNIST ladder, 100 + 100 rows.

    python benchmarks/engine.py --record results/bench.jsonl

On a CPU the engine's code is compiled first, about half a minute. `--quick` takes fewer rounds.
"""

from tikas.experiments.bench_script import run

if __name__ == "__main__":
    run("engine", __doc__)
