"""Measure every method on every data set, with few labels. What has a record is not measured again.

    make benchmark
    PYTHONPATH=benchmarks python benchmarks/few_labels/run.py --record results/few-labels.jsonl --data digits wine

A draw has 30 % test rows, and 5, 10 or 20 labels a class among the other rows: "balanced", so many of each class, or
"random", as many in total but drawn at random (with at least one of each class). A regression has 10 times as many
labels as a class. The seed of a draw decides test rows, labels and the initial weights.
"""

from __future__ import annotations

import argparse
import resource
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import sklearn
from datasets import CHOSEN_ON, LOADERS, Table, load
from methods import CLASSIFICATION_ONLY, METHODS, Draw, encode
from sklearn.model_selection import train_test_split

from common import provenance
from tikas.paper.records import append_record, read_records

LABELS = (5, 10, 20)
DRAWS = 5
LABELS_OF_REGRESSION = 10
"""A regression has this many times the labels of a class."""


class Case(NamedTuple):
    """What a record is found by."""

    data: str
    labels: int
    choice: str
    seed: int
    method: str


def cases(
    data: Sequence[str], methods: Sequence[str], labels: Sequence[int], choices: Sequence[str], draws: int
) -> Iterator[Case]:
    """Yield the cases, all data sets with the first draw before the second."""
    for seed in range(draws):
        for name in data:
            for count in labels:
                for choice in choices:
                    for method in methods:
                        yield Case(name, count, choice, seed, method)


def draw_rows(table: Table, labels: int, choice: str, seed: int) -> Draw | None:
    """Return a draw, or None if a class would have too few rows for it."""
    is_class = table.task == "classification"
    rows = np.arange(len(table.y))
    train, test = train_test_split(rows, test_size=0.3, random_state=seed, stratify=table.y if is_class else None)
    rng, y = np.random.default_rng([seed, labels]), table.y[train]
    if not is_class:
        count = labels * LABELS_OF_REGRESSION
        if count > len(train) // 2:
            return None
        labeled = rng.choice(len(train), count, replace=False)
    else:
        by_class = [rng.permutation(np.flatnonzero(y == code)) for code in np.unique(table.y)]
        if min(map(len, by_class)) <= labels or labels * len(by_class) > len(train) // 2:
            return None
        if choice == "balanced":
            labeled = np.concatenate([own[:labels] for own in by_class])
        else:
            firsts = np.array([own[0] for own in by_class])
            others = rng.permutation(np.setdiff1d(np.arange(len(train)), firsts))
            labeled = np.concatenate([firsts, others[: (labels - 1) * len(by_class)]])
    frames = table.X.iloc[train].reset_index(drop=True), table.X.iloc[test].reset_index(drop=True)
    return Draw(*frames, y, np.sort(labeled), seed, table.task, encode(*frames))


def measure(case: Case, table: Table, draw: Draw) -> dict[str, Any]:
    """Run a method, and return its record."""
    _, test = train_test_split(
        table.y, test_size=0.3, random_state=case.seed, stratify=table.y if table.task == "classification" else None
    )
    started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = METHODS[case.method](draw)
    seconds = time.perf_counter() - started
    if table.task == "classification":
        error = 100 * float(np.mean(fitted.predicted != test))
    else:
        error = 100 * float(np.sqrt(np.mean((fitted.predicted - test) ** 2)) / test.std())
    about = provenance("cpu")
    about["versions"] |= {"scikit-learn": sklearn.__version__}
    return {
        **case._asdict(),
        "task": table.task,
        "kind": table.kind,
        "half": "chosen on" if table.name in CHOSEN_ON else "reported",
        "rows": len(draw.train),
        "columns": draw.encoded[0].shape[1],
        "labeled": len(draw.labeled),
        "error": error,
        "cv_error": fitted.cv_error,
        "seconds": seconds,
        "grown_mb": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024,
        **fitted.details,
        **about,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--data", nargs="+", default=sorted(LOADERS), choices=sorted(LOADERS), metavar="NAME")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS), metavar="NAME")
    parser.add_argument("--labels", nargs="+", type=int, default=list(LABELS))
    parser.add_argument("--choices", nargs="+", default=["balanced", "random"])
    parser.add_argument("--draws", type=int, default=DRAWS)
    options = parser.parse_args()
    known = read_records(options.record) if options.record.exists() else []
    done = {Case(*(record[name] for name in Case._fields)) for record in known}
    tables: dict[str, Table] = {}
    for case in cases(options.data, options.methods, options.labels, options.choices, options.draws):
        if case in done:
            continue
        table = tables.setdefault(case.data, load(case.data))
        if table.task == "regression" and (case.method in CLASSIFICATION_ONLY or case.choice == "balanced"):
            continue
        draw = draw_rows(table, case.labels, case.choice, case.seed)
        if draw is None:
            continue
        record = measure(case, table, draw)
        append_record(options.record, record)
        print(*case, f"{record['error']:.1f} %, {record['seconds']:.1f} s", flush=True)


if __name__ == "__main__":
    main()
