"""Predictions of a model on the rows that a report is about, and how good they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, prod
from statistics import mean
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tikas.data.datasets import Dataset
from tikas.data.labels import regression_values
from tikas.data.splits import Split
from tikas.data.tables import Table
from tikas.estimators.base import LadderEstimator
from tikas.report.plots import class_codes, class_names, take
from tikas.training.summary import MeasuredError

Array = NDArray[Any]

MAX_JUDGED, MAX_UNLABELED, MAX_MAPPED = 20_000, 5000, 2000
"""Most rows of each kind in a report; of more, evenly spread ones are taken."""
MAX_PRODUCTS = 10**11
"""Most multiplications for the predictions of a report: seconds on a CPU. Fewer rows are taken of a larger network."""


@dataclass(frozen=True, eq=False)
class ReportRows:
    """The rows that a report is about.

    Parameters
    ----------
    X : array-like of shape (n, ...)
        Rows as for `predict`.
    labels : ndarray of shape (n,)
        Classes, None where unlabeled; or values, NaN where unknown.
    learned : ndarray of bool, shape (n,), optional
        Rows whose label the model learned, or that decided when its training ended. Default: none.
    source : str
        What the labeled rows are that it did not learn, such as "test rows".
    surely_new : bool
        Whether it is known that the model did not learn the other labels.
    """

    X: Any
    labels: Array
    learned: NDArray[np.bool_] | None = None
    source: str = "labeled rows"
    surely_new: bool = True


def rows_of_training(
    train: Dataset | Table, test: Dataset | Table, splits: Sequence[Split], *, early_stopping: bool = False
) -> ReportRows:
    """Return the rows of a training, judged by the test rows or else by the labels that no member has used.

    With early stopping, validation rows decide which epoch is kept, so an error on them would be too low.

    Examples
    --------
    >>> from tikas.data.datasets import load_dataset
    >>> from tikas.data.splits import split
    >>> train, test = load_dataset("digits")
    >>> rows = rows_of_training(train, test, [split(train.targets, 50, seed=0)])
    >>> rows.source, int(rows.learned.sum()), int((rows.labels != None).sum())
    ('test rows', 50, 550)
    """
    learned = used_labels(len(train), splits, early_stopping=early_stopping)
    labels = _labels(train)
    if not len(test):
        X: Any = train.rows
        if isinstance(train, Dataset) and isinstance(X, np.ndarray) and train.feature_names:
            X = pd.DataFrame(train.rows, columns=list(train.feature_names))
        return ReportRows(X, labels, learned, "labels held out")
    kept = np.union1d(np.flatnonzero(learned), _some(np.arange(len(train)), MAX_UNLABELED))
    labels[~learned] = np.nan if train.classes is None else None
    return ReportRows(
        np.concatenate([train.rows[kept], test.rows]),
        np.concatenate([labels[kept], _labels(test)]),
        np.concatenate([learned[kept], np.zeros(len(test), bool)]),
        "test rows",
    )


def used_labels(rows: int, splits: Sequence[Split], *, early_stopping: bool) -> NDArray[np.bool_]:
    """Return which labels any member learned, or was stopped by."""
    used = np.zeros(rows, bool)
    for split in splits:
        used[split.labeled] = True
        if early_stopping:
            used[split.validation] = True
    return used


def _labels(dataset: Dataset | Table) -> Array:
    """Return class names, None where unlabeled; or values."""
    if dataset.classes is None:
        return dataset.targets.copy()
    labels: Array = dataset.classes[dataset.targets].astype(object)
    labels[~dataset.labeled] = None
    return labels


class Evaluation:
    """Predictions of a model on rows: judged by the labels that it did not learn, on unlabeled rows, and on a map.

    Attributes
    ----------
    judged, unlabeled, learned : ndarray of int
        Indices of rows with a label that was not learned, without a label, and with a label that was learned; of many,
        some.
    n_judged, n_unlabeled : int
        How many there are in total.
    """

    def __init__(self, estimator: LadderEstimator, rows: ReportRows) -> None:
        self.estimator: Any = estimator
        self.rows = rows
        if estimator.task == "classification":
            self.targets: Array = class_codes(estimator, rows.labels)
            known = self.targets != -1
        else:
            self.targets = regression_values(rows.labels)
            known = ~np.isnan(self.targets)
        learned = np.zeros(len(known), bool) if rows.learned is None else rows.learned
        judged, unlabeled = np.flatnonzero(known & ~learned), np.flatnonzero(~known)
        self.n_judged, self.n_unlabeled = len(judged), len(unlabeled)
        share = min(1.0, MAX_PRODUCTS / max(1, (len(judged) + len(unlabeled)) * _products_per_row(estimator)))
        self.judged = _some(judged, max(1, min(MAX_JUDGED, int(share * len(judged)))))
        self.unlabeled = _some(unlabeled, max(1, min(MAX_UNLABELED, int(share * len(unlabeled)))))
        self.learned = _some(np.flatnonzero(known & learned), MAX_MAPPED)

    @cached_property
    def probabilities(self) -> Array:
        """Class probabilities of the judged rows."""
        return np.asarray(self.estimator.predict_proba(take(self.rows.X, self.judged)))

    @cached_property
    def predicted(self) -> Array:
        """Class codes or values that are predicted for the judged rows."""
        if self.estimator.task == "classification":
            return np.asarray(self.probabilities.argmax(1))
        return np.asarray(self.estimator.predict(take(self.rows.X, self.judged)))

    @cached_property
    def predicted_unlabeled(self) -> Array:
        """The same for the unlabeled rows."""
        if not len(self.unlabeled):
            return np.zeros(0, np.int64)
        X = take(self.rows.X, self.unlabeled)
        if self.estimator.task == "classification":
            return np.asarray(self.estimator.predict_proba(X).argmax(1))
        return np.asarray(self.estimator.predict(X))

    @property
    def correct(self) -> NDArray[np.bool_]:
        """Which judged rows are classified correctly."""
        return np.asarray(self.predicted == self.targets[self.judged])

    @property
    def source(self) -> str:
        """The judged rows in words."""
        if len(self.judged) == self.n_judged:
            return self.rows.source
        return f"{self.rows.source} (of {self.n_judged:,})"

    @cached_property
    def error(self) -> MeasuredError | None:
        """The error on the judged rows; None without any."""
        if not len(self.judged):
            return None
        if self.estimator.task == "classification":
            return MeasuredError.of_classes(self.source, int((~self.correct).sum()), len(self.judged))
        return MeasuredError.of_values(self.source, self.predicted - self.targets[self.judged])

    @cached_property
    def trivial_error(self) -> MeasuredError:
        """The error of a guess that ignores the row: the most frequent class or the mean of the learned labels."""
        targets = self.targets[self.judged]
        if self.estimator.task == "regression":
            return MeasuredError.of_values(self.source, self.estimator.target_mean_ - targets)
        guess = int(np.argmax(self.estimator.training_.class_counts))
        return MeasuredError.of_classes(self.source, int((targets != guess).sum()), len(targets))

    def surest_wrong(self, count: int) -> list[tuple[int, int]]:
        """Return (position among the judged rows, row) of the surest wrong predictions; of values, the farthest."""
        if self.estimator.task == "classification":
            wrong = np.flatnonzero(~self.correct)
            order = wrong[np.argsort(-self.probabilities[wrong].max(1), kind="stable")]
        else:
            order = np.argsort(-np.abs(self.predicted - self.targets[self.judged]), kind="stable")
        return [(int(position), int(self.judged[position])) for position in order[:count]]

    def label_text(self, row: int) -> str:
        """Return the label of a row as text."""
        return str(self.rows.labels[row] if self.estimator.task == "classification" else f"{self.targets[row]:.4g}")

    def predicted_text(self, position: int) -> str:
        """Return the prediction for a judged row as text."""
        if self.estimator.task == "regression":
            return f"{self.predicted[position]:.4g}"
        return class_names(self.estimator)[int(self.predicted[position])]

    def mapped(self) -> Array:
        """Return indices of rows for a map: some of each kind."""
        each = MAX_MAPPED // 3
        return np.sort(np.concatenate([_some(rows, each) for rows in (self.learned, self.judged, self.unlabeled)]))


def evaluate(estimator: LadderEstimator, rows: ReportRows) -> Evaluation:
    """Return the evaluation of a fitted estimator on rows.

    Examples
    --------
    >>> from tikas import LadderClassifier
    >>> X, y = np.array([[0.0], [0.1], [0.9], [1.0]] * 10), np.array(["low", None, None, "high"] * 10, dtype=object)
    >>> classifier = LadderClassifier((8,), costs=1.0, epochs=50, batch_size=20, random_state=0).fit(X, y)
    >>> truth = np.array(["low", "low", "high", "low"] * 10, dtype=object)
    >>> evaluate(classifier, ReportRows(X, truth, learned=y != None, source="hidden labels")).error.text()
    '0.0 % (95 % interval 0.0 to 16.1 %)'
    """
    return Evaluation(estimator, rows)


def validation_text(estimator: Any) -> str:
    """Return the validation error that was measured in training; empty without one.

    With early stopping it is that of the epoch that was kept for it.
    """
    by_epoch: dict[int, list[float]] = {}
    for line in estimator.history_:
        if line.get("validation_error") is not None:
            by_epoch.setdefault(line["epoch"], []).append(line["validation_error"])
    if not by_epoch:
        return ""
    errors = [mean(by_epoch[epoch]) for epoch in sorted(by_epoch)]
    rows, error = f"{estimator.training_.validation:,} validation rows", errors[-1]
    if estimator.recipe_.early_stopping:
        rows, error = f"the {rows} that ended its training, so rather too low", min(errors)
    if estimator.task == "classification":
        return f"{error:.1f} % on {rows}"
    return f"{error * estimator.target_deviation_:.4g} on {rows}"


def _some(rows: Array, most: int) -> Array:
    """Return evenly spread ones of some indices."""
    return rows[:: ceil(len(rows) / most)] if len(rows) > most else rows


def _products_per_row(estimator: LadderEstimator) -> float:
    """Return about how many multiplications the prediction of a row takes."""
    model = estimator.ladder_
    if not model.packable:
        positions = prod(estimator.input_shape_[1:])
        return float(positions * sum(parameter.numel() for parameter in model.parameters()))
    products = 0
    for rung in model.rungs:
        encoder = [
            parameter for name, parameter in rung.named_parameters() if not name.startswith(("back", "denoiser"))
        ]
        products += prod(rung.shape[1:]) * sum(parameter.numel() for parameter in encoder)
    return float(products * len(estimator.ladders_))
