"""Measure methods of scikit-learn on MNIST, with the splits and labels that a ladder of the same seed gets.

    python benchmarks/other_methods.py --list
    python benchmarks/other_methods.py methods/100 --record results/other-methods.jsonl

No setting was chosen by these test errors. What has a record in results/ is not measured again. No GPU is used.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.semi_supervised import LabelSpreading, SelfTrainingClassifier
from sklearn.svm import SVC

from common import RESULTS, load_flat, new_parser, provenance
from tikas.data.datasets import Dataset
from tikas.data.splits import split
from tikas.paper.records import Records, append_record, record_key

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Method:
    """A method of scikit-learn: how it is made from a seed and settings, and whether it learns from unlabeled rows."""

    title: str
    make: Callable[[int, Settings], ClassifierMixin]
    learns_unlabeled: bool


def _self_training_svm(seed: int, settings: Settings) -> ClassifierMixin:
    svm = SVC(random_state=seed, **settings)
    return SelfTrainingClassifier(CalibratedClassifierCV(svm, ensemble=False))  # probabilities by Platt's method


METHODS = {
    "label-spreading": Method("LabelSpreading", lambda _, settings: LabelSpreading(**settings), True),
    "self-training-svm": Method("SelfTrainingClassifier over an SVM", _self_training_svm, True),
    "self-training-logistic": Method(
        "SelfTrainingClassifier over logistic regression",
        lambda _, settings: SelfTrainingClassifier(LogisticRegression(**settings)),
        True,
    ),
    "mlp": Method(
        "MLPClassifier on the labels alone", lambda seed, settings: MLPClassifier(random_state=seed, **settings), False
    ),
    "svm": Method("SVM on the labels alone", lambda seed, settings: SVC(random_state=seed, **settings), False),
}

SETTINGS: dict[str, Settings] = {
    "label-spreading": {"kernel": "knn", "n_neighbors": 7},  # kernel="rbf" needs a matrix of rows by rows: 14 GB
    "self-training-svm": {"C": 10, "rows": 5000},  # a fit on all rows was stopped after 20 minutes
    "self-training-logistic": {"max_iter": 1000},
    "mlp": {"hidden_layer_sizes": [1000, 500, 250, 250, 250], "max_iter": 500},  # the ladder's own network
    "svm": {"C": 10},
}
"""What differs from scikit-learn's defaults; `rows` is how many rows a method gets, labeled ones included."""


@dataclass(frozen=True)
class Comparison:
    """A method on a data set with some labels.

    Examples
    --------
    >>> Comparison("svm", 100).name
    'methods/100/svm'
    """

    method: str
    labels: int
    data: str = "mnist"
    seeds: int = 10
    settings: Settings = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"methods/{self.labels}/{self.method}"

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of a record that say what was measured."""
        method = {"name": self.method, "title": METHODS[self.method].title, "settings": dict(self.settings)}
        return {"data": self.data, "labels": self.labels, "method": method}

    @property
    def key(self) -> Hashable:
        """What the records of this comparison are found by."""
        return record_key(self.fields)


COMPARISONS = [Comparison(method, labels, settings=SETTINGS[method]) for labels in (100, 1000) for method in METHODS]


def measure(comparison: Comparison, seed: int, train: Dataset, test: Dataset) -> dict[str, Any]:
    """Fit a method on the rows and labels of a seed, and return a record with its test error and its seconds."""
    method, settings = METHODS[comparison.method], dict(comparison.settings)
    labeled = split(train.targets, comparison.labels, seed=seed).labeled
    known = np.full(len(train), -1)
    known[labeled] = train.targets[labeled]
    rows = labeled
    if method.learns_unlabeled:
        rows = some_rows(len(train), labeled, settings.pop("rows", len(train)), seed)
    model = method.make(seed, settings)
    started = time.perf_counter()
    with warnings.catch_warnings(record=True, action="always") as caught:
        model.fit(train.rows[rows], known[rows])
    seconds = time.perf_counter() - started
    about = provenance("cpu")
    about["versions"] |= {"scikit-learn": sklearn.__version__}
    return {
        "experiment": comparison.name,
        **comparison.fields,
        "seed": seed,
        "test_error": 100 * float(np.mean(model.predict(test.rows) != test.targets)),
        "converged": not any(issubclass(each.category, ConvergenceWarning) for each in caught),
        "members": 1,
        "seconds": seconds,
        **about,
    }


def some_rows(total: int, labeled: NDArray[np.int64], count: int, seed: int) -> NDArray[np.int64]:
    """Return `count` of all rows, in order: the labeled ones, and random others."""
    others = np.setdiff1d(np.arange(total), labeled)
    drawn = np.random.default_rng(seed).permutation(others)[: count - len(labeled)]
    return np.sort(np.concatenate([labeled, drawn]))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = new_parser(__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="methods, such as methods/100 or methods/100/svm")
    parser.add_argument("--list", action="store_true", help="print all names and settings")
    parser.add_argument("--seeds", type=int, help="by default 10")
    parser.add_argument("--data-dir", type=Path, help="the folder with the files of MNIST")
    parser.set_defaults(record=RESULTS / "other-methods.jsonl")
    options = parser.parse_args(arguments)
    if options.list:
        for each in COMPARISONS:
            print(f"{each.name:<36}{METHODS[each.method].title}, {dict(each.settings)}")
        return
    records = Records.read(RESULTS, options.record)
    for name in options.names:
        found = [each for each in COMPARISONS if f"{each.name}/".startswith(f"{name}/")]
        if not found:
            parser.error(f"no method is named {name}; --list shows all names")
        for comparison in found:
            train, test = load_flat(comparison.data, options.data_dir)
            for seed in range(options.seeds or comparison.seeds):
                if seed not in records.members(comparison.key):
                    record = measure(comparison, seed, train, test)
                    append_record(options.record, record)
                    print(f"{comparison.name}, seed {seed}: {record['test_error']:.2f} %, {record['seconds']:.1f} s")


if __name__ == "__main__":
    main()
