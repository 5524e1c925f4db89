"""Measure training on rows that stay in a file against rows in memory, and the memory that a fit needs.

    OMP_NUM_THREADS=2 python benchmarks/streaming.py --folder /tmp --data-dir ~/data --record results/streaming.jsonl

Parts, of which ``--parts`` chooses some:

speed    MNIST's training images, drawn until there are ``--gigabytes``, each with its own noise on every pixel, are
         written to ``--folder``. Two engines of the estimators' default network train in turns: on the file, and on its
         first 200,000 rows in memory. A turn is ten windows of the file. The file's pages are dropped from the cache
         before; how much was read from the disk is recorded (`gigabytes_from_disk`).
fit      `LadderClassifier().fit` on that file for one epoch, in a process of its own.
memory   The same for arrays in memory and a sparse matrix.

Memory is what the kernel tells of the process (Linux): `peak` is the largest resident set during `fit` (VmHWM), and
`baseline` the resident set before it: libraries are loaded, an array in memory is filled, and a small fit was made.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from common import LONG_RUN, Figure, load_flat, new_parser, print_machine, report

PARTS = ("speed", "fit", "memory")
ROW_VALUES, LABELS = 784, 1000
WINDOWS_IN_A_TURN = 10
CPU = torch.device("cpu")
CASES: dict[str, dict[str, Any]] = {
    "200,000 x 30": {"rows": 200_000, "columns": 30},
    "60,000 x 784": {"rows": 60_000, "columns": 784},
    "10,000,000 x 20": {"rows": 10_000_000, "columns": 20, "network": (16,), "batch_size": 1000},
    "sparse 20,000 x 50,000, 1 %": {"rows": 20_000, "columns": 50_000, "density": 0.01},
}
"""Arrays in memory; the default network and batches of 100 rows unless others are given, to save time."""


def write_file(path: Path, rows: int, data_dir: Path | None) -> None:
    """Write images of MNIST, each with its own noise, until there are so many rows."""
    images = load_flat("mnist", data_dir)[0].rows
    generator = np.random.default_rng(0)
    file = np.lib.format.open_memmap(path, "w+", np.float32, (rows, ROW_VALUES))
    for start in range(0, rows, 10_000):
        part = images[generator.integers(0, len(images), min(10_000, rows - start))]
        file[start : start + len(part)] = 0.99 * part + 0.01 * generator.random(part.shape, np.float32)
        if start % 100_000 == 0:
            file.flush()
    file.flush()


def drop_from_cache(path: Path) -> None:
    """Have the next reads of a file come from the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_from_disk() -> int:
    """Return the bytes that this process has read from a disk."""
    return int(Path("/proc/self/io").read_text().split("read_bytes:")[1].split()[0])


def memory(name: str) -> int:
    """Return a figure of this process's memory in bytes: VmRSS, RssAnon, or VmHWM, the peak."""
    return 1024 * int(Path("/proc/self/status").read_text().split(f"{name}:")[1].split()[0])


def labels_of(rows: int) -> np.ndarray:
    """Return labels of a few rows, -1 for the others."""
    labels = np.full(rows, -1)
    labels[np.linspace(0, rows - 1, min(LABELS, rows)).astype(int)] = np.arange(min(LABELS, rows)) % 10
    return labels


def measure_speed(path: Path, options: Any) -> None:
    """Train on the file and on rows in memory in turns."""
    from tikas.data.batches import Batches, StreamedBatches
    from tikas.data.sources import ArrayRows
    from tikas.data.splits import Split
    from tikas.training.engines import SECOND_THREAD_FROM, choose_engine, multiplications
    from tikas.training.environment import arithmetic, freed_memory_kept, training_environment
    from tikas.training.recipe import SMALL, default_costs

    file = np.load(path, mmap_mode="r")
    held = np.array(file[: min(len(file), 200_000)])
    recipe = replace(SMALL, costs=default_costs(SMALL.network, held[:1000], "classification"))
    engines = {}
    for name, rows in (("file", file), ("memory", held)):
        labels = labels_of(len(rows))
        split = Split(np.flatnonzero(labels >= 0), np.arange(len(rows)), np.empty(0, np.int64))
        model = recipe.build((ROW_VALUES,), 10, 0)
        arguments = torch.from_numpy(labels), None, [split], [0], model.shapes, recipe.batch_size
        if name == "file":
            batches = StreamedBatches(ArrayRows(rows), *arguments, recipe.labeled_batch_size, device=CPU)
        else:
            batches = Batches(torch.from_numpy(rows), *arguments, recipe.labeled_batch_size)
        engines[name] = choose_engine([model], batches, 0 if options.quick else LONG_RUN, exact=False)
    small = multiplications([model], batches) < SECOND_THREAD_FROM
    streamed = engines["file"].batches
    turn = WINDOWS_IN_A_TURN * streamed.window
    turns = min(options.turns, max(1, streamed.updates // turn))
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    done = dict.fromkeys(engines, 0)

    def train(name: str, updates: int) -> float:
        """Train for so many updates, over the ends of epochs, and return the seconds of one."""
        engine, started, left = engines[name], time.perf_counter(), updates
        while left:
            first = done[name] % engine.batches.updates
            part = min(left, engine.batches.updates - first)
            engine.train_epoch(torch.full((part,), 0.001), first)
            done[name] += part
            left -= part
        return (time.perf_counter() - started) / updates

    with training_environment(), freed_memory_kept(enabled=not small), arithmetic(CPU, exact=False, small=small):
        for name in engines:  # compiles, and reads the first window
            train(name, 50)
        drop_from_cache(path)
        before = read_from_disk()
        for _ in range(turns):
            for name in engines:
                seconds[name].append(train(name, turn))
    streamed.close()
    ratio = median(memory / file for file, memory in zip(seconds["file"], seconds["memory"], strict=True))
    details = {
        "gigabytes": file.nbytes / 1e9,
        "updates": turns * turn,
        "turns": turns,
        "ms_in_memory": 1000 * median(seconds["memory"]),
        "gigabytes_from_disk": (read_from_disk() - before) / 1e9,
        "program": type(engines["file"]).__name__,
        "load": os.getloadavg()[0],
    }
    figure = Figure("streaming", "speed", 1000 * median(seconds["file"]), ratio, "in memory", details)
    report(figure, options, CPU)


def measured_fit(case: dict[str, Any]) -> dict[str, Any]:
    """Fit to the rows of a case in this process, and return what it needed."""
    from tikas import LadderClassifier

    settings = {"epochs": 1, "random_state": 0, "device": "cpu"}
    settings |= {name: case[name] for name in ("network", "batch_size") if name in case}
    generator = np.random.default_rng(0)
    small = generator.random((400, 5), dtype=np.float32)
    LadderClassifier(**settings).fit(small, np.arange(400) % 2)
    if "file" in case:
        X = np.load(case["file"], mmap_mode="r")
        drop_from_cache(Path(case["file"]))
    elif "density" in case:
        from scipy.sparse import random

        X = random(case["rows"], case["columns"], case["density"], "csr", np.float32, random_state=0)
    else:
        X = generator.random((case["rows"], case["columns"]), dtype=np.float32)
    y = labels_of(X.shape[0])
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    baseline, started, before = memory("VmRSS"), time.perf_counter(), read_from_disk()
    classifier = LadderClassifier(**settings).fit(X, y)
    peak = memory("VmHWM")
    size = 4 * X.shape[0] * X.shape[1]
    return {
        "gigabytes": size / 1e9,
        "baseline_mb": baseline / 1e6,
        "peak_mb": peak / 1e6,
        "more_than_before_mb": (peak - baseline) / 1e6,
        "times_the_data": 1 + (peak - baseline) / size,
        "seconds": time.perf_counter() - started,
        "seconds_of_the_epoch": classifier.history_[0]["seconds"],
        "gigabytes_from_disk": (read_from_disk() - before) / 1e9,
        "load": os.getloadavg()[0],
    }


def measure_fit(what: str, case: dict[str, Any], options: Any) -> None:
    """Fit in a process of its own, and report what it needed."""
    command = [sys.executable, __file__, "--case", json.dumps(case)]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    report(Figure("streaming", what, details=json.loads(printed.splitlines()[-1])), options, CPU)


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--folder", type=Path, default=Path("build/streaming"), help="where the file is written")
    parser.add_argument("--data-dir", type=Path, help="folder with the files of MNIST")
    parser.add_argument("--gigabytes", type=float, default=10.0)
    parser.add_argument("--turns", type=int, default=1000, help="most turns; by default, as many as the file has")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--quick", action="store_true", help="small arrays, and nothing is compiled")
    parser.add_argument("--case", type=json.loads, help="fit to this array in this process (used by the script itself)")
    options = parser.parse_args()
    if options.case:
        print(json.dumps(measured_fit(options.case)))
        return
    print_machine(CPU)
    if {"speed", "fit"} & {*options.parts}:
        options.folder.mkdir(parents=True, exist_ok=True)
        path = options.folder / "rows.npy"
        try:
            write_file(path, int(options.gigabytes * 1e9 / 4 / ROW_VALUES), options.data_dir)
            if "speed" in options.parts:
                measure_speed(path, options)
            if "fit" in options.parts:
                measure_fit("fit to a file", {"file": str(path)}, options)
        finally:
            path.unlink(missing_ok=True)
    if "memory" in options.parts:
        for name, case in CASES.items():
            measure_fit(name, {**case, "rows": case["rows"] // 100} if options.quick else case, options)


if __name__ == "__main__":
    main()
