"""Digits with 50 labels: `LadderClassifier()` against methods of scikit-learn, over ten seeds.

    python benchmarks/digits.py --record results/digits-50-labels.jsonl

Each seed draws its own 1297 training rows, 500 test rows and 50 labels, balanced over the classes, the same for every
method. The settings of scikit-learn's methods are the best of a small grid on these test rows, which favors them. Those
of the ladder were chosen on seeds 0 to 9; the seeds here start at 100, and split the same 1797 rows differently.
"""

import statistics
import time
import warnings
from collections.abc import Callable, Sequence

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.semi_supervised import LabelSpreading, SelfTrainingClassifier
from sklearn.svm import SVC

from common import new_parser, print_machine, provenance, write_record
from tikas import LadderClassifier
from tikas.data.splits import split
from tikas.training.environment import pick_device

Make = Callable[[int], ClassifierMixin]

METHODS: dict[str, list[tuple[str, bool, Make]]] = {
    "LadderClassifier()": [("", True, lambda seed: LadderClassifier(random_state=seed))],
    "LadderClassifier(costs=0)": [("", True, lambda seed: LadderClassifier(costs=0, random_state=seed))],
    "LabelSpreading": [
        *((f"rbf, gamma={g}", True, lambda _, g=g: LabelSpreading(kernel="rbf", gamma=g)) for g in (1, 2, 5, 10, 20)),
        *((f"knn, {k}", True, lambda _, k=k: LabelSpreading(kernel="knn", n_neighbors=k)) for k in (3, 5, 7, 10)),
    ],
    "SelfTrainingClassifier": [
        ("SVC", True, lambda seed: SelfTrainingClassifier(SVC(probability=True, C=10, random_state=seed))),
        ("logistic regression", True, lambda _: SelfTrainingClassifier(LogisticRegression(max_iter=1000))),
    ],
    "MLPClassifier": [
        ("256-128", False, lambda seed: MLPClassifier((256, 128), max_iter=500, random_state=seed)),
        ("100", False, lambda seed: MLPClassifier(max_iter=1000, random_state=seed)),
    ],
    "SVC on the labels": [
        *((f"C={c}", False, lambda seed, c=c: SVC(C=c, random_state=seed)) for c in (1, 10)),
    ],
}
"""For each method its settings: a name, whether it learns from unlabeled rows, and how to make it from a seed."""


def measure(make: Make, learns_unlabeled: bool, seed: int) -> tuple[float, float]:
    """The test error in percent, and the seconds of the fit."""
    X, y = load_digits(return_X_y=True)
    train_x, test_x, train_y, test_y = train_test_split(X / 16, y, test_size=500, random_state=seed, stratify=y)
    labeled = split(train_y, 50, seed=seed).labeled
    known = np.full(len(train_y), -1)
    known[labeled] = train_y[labeled]
    started = time.perf_counter()
    model = make(seed)
    if learns_unlabeled:
        model.fit(train_x, known)
    else:
        model.fit(train_x[labeled], train_y[labeled])
    seconds = time.perf_counter() - started
    return 100 * float(np.mean(model.predict(test_x) != test_y)), seconds


def main(arguments: Sequence[str] | None = None) -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--seeds", type=int, default=10, help="how many, from 100 on")
    options = parser.parse_args(arguments)
    for kind in (ConvergenceWarning, FutureWarning, RuntimeWarning):
        warnings.simplefilter("ignore", kind)
    device = pick_device(options.device)
    print_machine(device)
    print(
        f"digits, 50 labels, {options.seeds} seeds\n\n{'method':<28}{'setting':<22}{'test error, %':>16}{'seconds':>10}"
    )
    for method in options.methods:
        runs = {
            setting: [measure(make, learns_unlabeled, seed) for seed in range(100, 100 + options.seeds)]
            for setting, learns_unlabeled, make in METHODS[method]
        }
        best = min(runs, key=lambda setting: statistics.mean(error for error, _ in runs[setting]))
        errors = [error for error, _ in runs[best]]
        seconds = statistics.mean(second for _, second in runs[best])
        deviation = statistics.stdev(errors) if len(errors) > 1 else 0.0
        print(f"{method:<28}{best:<22}{statistics.mean(errors):>9.2f} ± {deviation:.2f}{seconds:>10.2f}", flush=True)
        figures = {"method": method, "setting": best, "errors": errors, "seconds": seconds}
        write_record(options.record, {"benchmark": "digits-50-labels", **figures, **provenance(device)})


if __name__ == "__main__":
    main()
