"""What a user would pick instead: scikit-learn's methods on the same splits, with settings that no test error chose."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tikas.data.splits import split
from tikas.experiments.records import hardware, revision, versions
from tikas.experiments.rows import Rows

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Method:
    """How an estimator is made, and whether it learns from unlabelled rows.

    Examples
    --------
    >>> METHODS["svm"].make(0, {"C": 10})
    SVC(C=10, random_state=0)
    """

    title: str
    make: Callable[[int, Settings], Any]
    learns_unlabeled: bool


@dataclass(frozen=True)
class Rival:
    """A method of scikit-learn's to measure on some labels of a data set.

    Parameters
    ----------
    name
        ``rivals/labels/method``.
    settings
        What differs from scikit-learn's defaults; and ``rows``, where only some of all rows are shown to the method.

    Examples
    --------
    >>> Rival("rivals/100/svm", 100, {"C": 10}).method
    'svm'
    """

    name: str
    labels: int
    settings: Settings = field(default_factory=dict)
    data: str = "mnist"
    seeds: int = 10

    @property
    def method(self) -> str:
        """The part of the name that says which of `METHODS` this is."""
        return self.name.rpartition("/")[2]


def _label_spreading(_: int, settings: Settings) -> Any:
    from sklearn.semi_supervised import LabelSpreading

    return LabelSpreading(**settings)


def _svm(seed: int, settings: Settings) -> Any:
    from sklearn.svm import SVC

    return SVC(random_state=seed, **settings)


def _self_training_svm(seed: int, settings: Settings) -> Any:
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.semi_supervised import SelfTrainingClassifier

    # Probabilities by Platt's method, as SVC(probability=True) had them.
    return SelfTrainingClassifier(CalibratedClassifierCV(_svm(seed, settings), ensemble=False))


def _self_training_logistic(_: int, settings: Settings) -> Any:
    from sklearn.linear_model import LogisticRegression
    from sklearn.semi_supervised import SelfTrainingClassifier

    return SelfTrainingClassifier(LogisticRegression(**settings))


def _mlp(seed: int, settings: Settings) -> Any:
    from sklearn.neural_network import MLPClassifier

    return MLPClassifier(random_state=seed, **settings)


METHODS = {
    "label-spreading": Method("LabelSpreading", _label_spreading, learns_unlabeled=True),
    "self-training-svm": Method("SelfTrainingClassifier over an SVM", _self_training_svm, learns_unlabeled=True),
    "self-training-logistic": Method(
        "SelfTrainingClassifier over logistic regression", _self_training_logistic, learns_unlabeled=True
    ),
    "mlp": Method("MLPClassifier on the labels alone", _mlp, learns_unlabeled=False),
    "svm": Method("SVM on the labels alone", _svm, learns_unlabeled=False),
}

SOME_ROWS = {"C": 10, "rows": 5000}
"""With all rows of MNIST a fit was not done after 20 minutes, and was stopped: how long it takes is not known."""

NEIGHBOURS = {"kernel": "knn", "n_neighbors": 7}
"""The other kernel asks for a matrix of all rows by all rows, 14 GB for MNIST."""

LAYERS = {"hidden_layer_sizes": [1000, 500, 250, 250, 250], "max_iter": 500}
"""The ladder's own network."""

RIVALS = (
    Rival("rivals/100/label-spreading", 100, NEIGHBOURS),
    Rival("rivals/100/self-training-svm", 100, SOME_ROWS),
    Rival("rivals/100/self-training-logistic", 100, {"max_iter": 1000}),
    Rival("rivals/100/mlp", 100, LAYERS),
    Rival("rivals/100/svm", 100, {"C": 10}),
    Rival("rivals/1000/label-spreading", 1000, NEIGHBOURS),
    Rival("rivals/1000/self-training-svm", 1000, SOME_ROWS),
    Rival("rivals/1000/self-training-logistic", 1000, {"max_iter": 1000}),
    Rival("rivals/1000/mlp", 1000, LAYERS),
    Rival("rivals/1000/svm", 1000, {"C": 10}),
)


def measure_rival(rival: Rival, seed: int, rows: Rows) -> dict[str, Any]:
    """Fit a rival on the rows and labels that a ladder of this seed gets; a record of its test error and its time.

    Examples
    --------
    >>> from tikas.experiments.rows import load_rows
    >>> record = measure_rival(Rival("rivals/50/svm", 50, {"C": 10}, data="digits"), 0, load_rows("digits"))
    >>> record["rival"]["method"], 5 < record["test_error"] < 20
    ('svm', True)
    """
    import sklearn
    from sklearn.exceptions import ConvergenceWarning

    method = METHODS[rival.method]
    x = rows.train_x.reshape(len(rows.train_x), -1)
    test_x = rows.test_x.reshape(len(rows.test_x), -1)
    labeled = split(rows.train_y, rival.labels, seed=seed).labeled
    known = np.full(len(x), -1)
    known[labeled] = rows.train_y[labeled]
    shown = labeled if not method.learns_unlabeled else _shown(len(x), labeled, rival.settings.get("rows"), seed)
    model = method.make(seed, {name: value for name, value in rival.settings.items() if name != "rows"})
    started = time.perf_counter()
    with warnings.catch_warnings(record=True, action="always") as caught:
        model.fit(x[shown], known[shown])
    seconds = time.perf_counter() - started
    wrong = model.predict(test_x) != rows.test_y
    return {
        "cell": rival.name,
        "rival": {
            "method": rival.method,
            "settings": dict(rival.settings),
            "data": rival.data,
            "labels": rival.labels,
        },
        "seed": seed,
        "test_error": 100 * float(np.mean(wrong)),
        "converged": not any(issubclass(each.category, ConvergenceWarning) for each in caught),
        "members": 1,
        "seconds": seconds,
        "hardware": hardware("cpu"),
        "versions": {**versions(), "scikit-learn": sklearn.__version__},
        "revision": revision(),
    }


def _shown(rows: int, labeled: NDArray[np.int64], wanted: int | None, seed: int) -> NDArray[np.int64]:
    """All rows, or so many of them, the labelled ones among them."""
    if wanted is None:
        return np.arange(rows)
    others = np.setdiff1d(np.arange(rows), labeled)
    return np.sort(np.concatenate([labeled, np.random.default_rng(seed).permutation(others)[: wanted - len(labeled)]]))
