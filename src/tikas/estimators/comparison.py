"""How good is it? Estimators side by side, by cross-validation over the labeled rows."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.stats import binomtest

from tikas.data.columns import as_table
from tikas.data.labels import encode_labels, one_per_row, regression_values
from tikas.data.splits import Split
from tikas.estimators.base import LadderEstimator
from tikas.estimators.classifier import LadderClassifier

Array = NDArray[Any]

FOLDS = 5
CONFIDENCE = 0.95
RESAMPLES = 2000
_FOLD_STREAM = 4
"""Number of the random stream of the folds, beside those of `tikas.data.splits`."""


@dataclass(frozen=True, eq=False)
class Method:
    """A method in a comparison.

    Parameters
    ----------
    name : str
        Its name.
    errors : ndarray of float, shape (n,)
        For each tested row 1 if its class was wrong, 0 if it was right; or the squared error of its value.
    seconds : float
        Duration of all its fits.
    """

    name: str
    errors: NDArray[np.float64]
    seconds: float


@dataclass(frozen=True, eq=False)
class Comparison:
    """Errors of methods on the same labeled rows, each predicted by members that had not seen it.

    Parameters
    ----------
    methods : tuple of Method
        The methods, the most interesting first.
    task : {"classification", "regression"}
        Whether errors are percentages of wrong classes, or root mean squared errors.
    folds : int
        Number of parts that were held out, one after the other.

    Examples
    --------
    >>> ladder = Method("ladder", np.array([0, 0, 0, 0, 0, 0, 0, 1.0]), 2.0)
    >>> network = Method("network", np.array([1, 1, 1, 1, 1, 1, 1, 0.0]), 1.0)
    >>> comparison = Comparison((ladder, network), "classification", 4)
    >>> comparison.table.round(1).values.tolist()
    [['ladder', 12.5, 0.3, 52.7, 2.0], ['network', 87.5, 47.3, 99.7, 1.0]]
    >>> comparison.verdict
    'ladder: no difference from network that 8 labels could show.'
    """

    methods: tuple[Method, ...]
    task: str
    folds: int

    @property
    def n_labels(self) -> int:
        """The number of rows that were tested."""
        return len(self.methods[0].errors)

    @property
    def table(self) -> pd.DataFrame:
        """The methods with their error, the ends of its 95 % interval, and seconds."""
        lines = [(method.name, *self._error(method.errors), method.seconds) for method in self.methods]
        return pd.DataFrame(lines, columns=["method", "error", "low", "high", "seconds"])

    @property
    def verdict(self) -> str:
        """Whether the first method is better than the second, as far as so few labels can tell; empty for one."""
        if len(self.methods) < 2:
            return ""
        first, second = self.methods[:2]
        better = self._is_better(first.errors, second.errors)
        if better is None:
            return f"{first.name}: no difference from {second.name} that {self.n_labels} labels could show."
        return f"{first.name}: {'better' if better else 'worse'} than {second.name}."

    def _error(self, errors: NDArray[np.float64]) -> tuple[float, float, float]:
        """Return the error and its interval: exact binomial for classes, by resampling rows for values."""
        if self.task == "classification":
            found = binomtest(int(errors.sum()), len(errors)).proportion_ci(CONFIDENCE, method="exact")
            return 100 * float(errors.mean()), 100 * float(found.low), 100 * float(found.high)
        low, high = _resampled(errors)
        return float(np.sqrt(errors.mean())), float(np.sqrt(low)), float(np.sqrt(high))

    def _is_better(self, errors: NDArray[np.float64], other: NDArray[np.float64]) -> bool | None:
        """Return whether errors are smaller than others on the same rows; None if that may be by chance."""
        if self.task == "classification":  # McNemar's exact test: only rows on which they differ count
            lost, won = int(((errors == 1) & (other == 0)).sum()), int(((errors == 0) & (other == 1)).sum())
            if lost + won == 0 or binomtest(won, lost + won).pvalue >= 1 - CONFIDENCE:
                return None
            return won > lost
        low, high = _resampled(errors - other)
        return None if low <= 0 <= high else high < 0


def _resampled(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return the 95 % interval of a mean over rows, by drawing rows with replacement."""
    drawn = np.random.default_rng(0).integers(0, len(values), (RESAMPLES, len(values)))
    low, high = np.quantile(values[drawn].mean(1), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def cross_validate(
    estimators: Mapping[str, LadderEstimator], X: Any, y: ArrayLike, *, folds: int = FOLDS, seed: int = 0
) -> Comparison | None:
    """Compare estimators by cross-validation over the labeled rows.

    The labeled rows are dealt into folds. For each fold, members are trained on all other rows, the unlabeled ones too,
    and tested on it. The folds are members of one ensemble, which trains in a fraction of the time of so many fits.
    Scaling and encoding of columns, which look at no target, are fitted to all rows.

    Parameters
    ----------
    estimators : dict of str to LadderClassifier or LadderRegressor
        What to compare, by name. Each fold gets their `n_members` members.
    X, y
        As for their `fit`.
    folds : int, default=5
        Number of folds, at most the number of labeled rows.
    seed : int, default=0
        Determines the folds, and the members.

    Returns
    -------
    Comparison or None
        None if there are too few labels: with fewer than two labeled rows whose class has another one.

    Raises
    ------
    KeyboardInterrupt
        If Ctrl-C was pressed.
    """
    first = next(iter(estimators.values()))
    n_rows = len(X)
    if isinstance(first, LadderClassifier):
        codes, classes = encode_labels(one_per_row(y, n_rows))
        truth: Array = classes[codes]
    else:
        truth = regression_values(one_per_row(y, n_rows))
        codes = np.where(np.isnan(truth), -1, 0)
    held_out, splits = _folds(codes, folds, seed, equal_labels=first.calibration == "labeled")
    if not splits:
        return None
    tested = np.sort(np.concatenate(held_out))
    methods = []
    for name, estimator in estimators.items():
        started = time.perf_counter()
        members = estimator.n_members
        fitted = copy(estimator).set_params(n_members=members * len(splits), random_state=seed)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".* fewer than a batch")
            fitted.fit(X, y, splits=splits * members)
        if fitted.interrupted_:
            raise KeyboardInterrupt
        errors = np.full(n_rows, np.nan)
        for fold, rows in enumerate(held_out):
            numbers = [number for number, own in enumerate(fitted.seeds_) if (own - seed) % len(splits) == fold]
            if numbers:  # else all members of this fold diverged, of which `fit` has warned
                part = copy(fitted)
                part.ladders_ = [fitted.ladders_[number] for number in numbers]
                predicted = part.predict(_select(X, rows))
                wrong = predicted != truth[rows] if first.task == "classification" else (predicted - truth[rows]) ** 2
                errors[rows] = wrong
        methods.append(Method(name, errors[tested], time.perf_counter() - started))
    complete = ~np.isnan([method.errors for method in methods]).any(axis=0)
    return Comparison(
        tuple(Method(method.name, method.errors[complete], method.seconds) for method in methods),
        first.task,
        len(splits),
    )


def _folds(
    codes: NDArray[np.int64], folds: int, seed: int, *, equal_labels: bool
) -> tuple[list[NDArray[np.int64]], list[Split]]:
    """Deal the labeled rows into folds, class by class; return the rows of each, and the split that leaves them out.

    The only label of a class stays in training. Members of an ensemble need equally many rows: where a fold is smaller,
    a random unlabeled row is left out of training (or a labeled one, if there are none or the labels must be equally
    many).
    """
    rng = np.random.default_rng([seed, _FOLD_STREAM])
    labeled = np.flatnonzero(codes >= 0)
    counts = np.bincount(codes[labeled], minlength=1)
    dealt = [rng.permutation(labeled[codes[labeled] == code]) for code in np.flatnonzero(counts > 1)]
    rows = np.concatenate([*dealt, np.empty(0, np.int64)]).astype(np.int64)
    n_folds = min(folds, len(rows))
    if n_folds < 2:
        return [], []
    held_out = [np.sort(rows[fold::n_folds]) for fold in range(n_folds)]
    largest, splits = max(map(len, held_out)), []
    for own in held_out:
        out = own
        if len(own) < largest:
            spare = np.flatnonzero(codes < 0)
            if len(spare) < 2 or equal_labels:
                spare = np.setdiff1d(rows[codes[rows] == counts.argmax()], own)
            out = np.append(own, rng.choice(spare))
        splits.append(
            Split(
                labeled=rng.permutation(np.setdiff1d(labeled, out)),
                unlabeled=np.setdiff1d(np.arange(len(codes)), out),
                validation=np.empty(0, np.int64),
            )
        )
    return held_out, splits


def _select(X: Any, rows: NDArray[np.int64]) -> Any:
    """Return some rows of an array or a frame."""
    return as_table(X).iloc[rows] if hasattr(X, "columns") else np.asarray(X)[rows]
