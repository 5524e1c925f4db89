"""Utilisation: operations a second in the products of an update over those of one large matrix product.

    python benchmarks/utilisation.py --members 1 40 --record results/bench.jsonl

Both in the engine's own arithmetic (bf16, TF32 or float32), taking turns. Counted are products forwards and backwards,
nothing else: what an update spends on the rest shows as missing utilisation.
"""

from tikas.experiments.bench_script import run

if __name__ == "__main__":
    run("utilisation", __doc__)
