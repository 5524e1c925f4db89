"""Measure how many rows per second a Predictor scores: alone, and in the processes of Ray and Dask.

    OMP_NUM_THREADS=1 python benchmarks/scoring.py --rows 400000 --workers 2

Each way reads the same Parquet files of 30 float32 columns, predicts them with a network of the estimators' default
size, and gathers the predictions in one frame. Every way runs once before it is measured, which starts its processes
and loads the model there; then the median of the rounds is taken. `load` is the machine's load average: where it
exceeds the number of workers by far, the figures mean little. Needs the extra `cluster`.
"""

import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median

import numpy as np
import pandas as pd
import torch

from common import Figure, new_parser, print_machine, report
from tikas import LadderClassifier
from tikas.io import Predictor

COLUMNS = [f"column {number}" for number in range(30)]
FILES = 16
BATCH_SIZE = 16_384


def write_files(folder: Path, rows: int) -> Predictor:
    """Write a model and the Parquet files of its rows."""
    generator = np.random.default_rng(0)
    table = pd.DataFrame(generator.standard_normal((rows, len(COLUMNS)), np.float32), columns=COLUMNS)
    labels = np.where(table["column 0"] > 0, "yes", "no")
    model = LadderClassifier(epochs=1, random_state=0).fit(table[:2000], labels[:2000])
    table["id"] = np.arange(rows)
    (folder / "rows").mkdir()
    for number, part in enumerate(np.array_split(np.arange(rows), FILES)):
        table.iloc[part].to_parquet(folder / f"rows/part-{number:02}.parquet", index=False)
    return Predictor(model.save(folder / "model.safetensors"), keep=["id"])


def seconds(score: Callable[[], pd.DataFrame], rows: int, rounds: int) -> float:
    """Return the median seconds of a way to score all rows, after a first time that is not counted."""
    times = []
    for _ in range(1 + rounds):
        start = time.perf_counter()
        predicted = score()
        times.append(time.perf_counter() - start)
        assert len(predicted) == rows
    return median(times[1:])


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()

    import dask.dataframe
    import ray.data

    print_machine(torch.device("cpu"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        predictor = write_files(folder, options.rows)
        files = sorted(map(str, folder.glob("rows/*.parquet")))

        def measure(what: str, score: Callable[[], pd.DataFrame]) -> None:
            taken = seconds(score, options.rows, options.rounds)
            details = {"rows_per_second": round(options.rows / taken), "seconds": taken, "load": os.getloadavg()[0]}
            report(Figure("scoring", what, details=details), options, torch.device("cpu"))

        measure("predictor alone", lambda: pd.concat([predictor(pd.read_parquet(file)) for file in files]))

        ray.init(num_cpus=options.workers, include_dashboard=False)
        scored = ray.data.read_parquet(str(folder / "rows")).map_batches(predictor, batch_size=BATCH_SIZE)
        measure(f"Ray Data, {options.workers} workers", scored.to_pandas)
        ray.shutdown()

        with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
            partitions = dask.dataframe.read_parquet(files).map_partitions(predictor)
            measure(f"Dask, {options.workers} processes", lambda: partitions.compute(scheduler="processes", pool=pool))


if __name__ == "__main__":
    main()
