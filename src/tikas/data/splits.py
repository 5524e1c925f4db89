"""Splits: which training rows are used with their label, without it, or held out; splitters for scikit-learn."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.model_selection import (
    BaseCrossValidator,
    KFold,
    ShuffleSplit,
    StratifiedKFold,
    StratifiedShuffleSplit,
)
from sklearn.utils import check_random_state

from tikas.data.arrays import to_numpy
from tikas.data.labels import as_array, is_missing, is_unlabeled, look_continuous

# Each draw has its own random stream, so the validation rows do not depend on the number of labels.
# The numbers start at 1 because NumPy treats the seed [seed, 0] as [seed].
_VALIDATION_STREAM, _LABEL_STREAM, _KEPT_STREAM = 1, 2, 3


@dataclass(frozen=True, eq=False)
class Split:
    """Row indices of a training set. `labeled` is a subset of `unlabeled`; `validation` is disjoint from both.

    Parameters
    ----------
    labeled : ndarray of int64
        Rows whose label is used, in random order.
    unlabeled : ndarray of int64
        All rows that are not held out, ascending. All of them are used for the denoising costs.
    validation : ndarray of int64
        Labeled rows held out, ascending.
    """

    labeled: NDArray[np.int64]
    unlabeled: NDArray[np.int64]
    validation: NDArray[np.int64]

    @property
    def fully_labeled(self) -> bool:
        """Whether the label of every training row is used."""
        return len(self.labeled) == len(self.unlabeled)

    def batch_sizes(self, batch_size: int, labeled_batch_size: int) -> tuple[int, int]:
        """Return how many unlabeled and labeled rows an update has; in a fully labeled split both are the same rows."""
        unlabeled = min(batch_size, len(self.unlabeled))
        return unlabeled, unlabeled if self.fully_labeled else labeled_batch_size

    def hidden(self, y: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the training rows whose label is known but not used."""
        return np.setdiff1d(self.unlabeled[y[self.unlabeled] >= 0], self.labeled)


def split(
    y: ArrayLike,
    labels: int | None,
    *,
    validation: int = 0,
    seed: int = 0,
    classes: Sequence[object] | NDArray[np.generic] | None = None,
) -> Split:
    """Return a split: hold out validation rows, then choose labeled rows, balanced over the classes.

    The result depends on `y`, the counts and the seed alone. With the same seed and validation rows, the labeled rows
    of a class with few labels are a subset of those with many.

    Parameters
    ----------
    y : array-like of int, shape (n,)
        Class code of each row; -1 where it is not known.
    labels : int or None
        Number of labels to use: equally many of each class, and the remainder from random classes. None, or the number
        of all known labels, uses all of them, balanced or not.
    validation : int, default=0
        Number of labeled rows to hold out. Each class keeps at least one labeled row to train on.
    seed : int, default=0
    classes : sequence, optional
        Names of the classes for error messages; default: their codes.

    Raises
    ------
    ValueError
        If `y` has too few labels for the counts.

    Examples
    --------
    >>> import numpy as np
    >>> y = np.repeat([0, 1, 2], 10)
    >>> rows = split(y, labels=6, validation=5, seed=1)
    >>> np.bincount(y[rows.labeled]).tolist(), len(rows.unlabeled), len(rows.validation)
    ([2, 2, 2], 25, 5)
    """
    y = np.asarray(y, np.int64)
    known = np.flatnonzero(y >= 0)
    codes = np.unique(y[known])
    if not known.size:
        raise ValueError(f"None of the {len(y)} rows is labeled; expected at least one labeled row of each class.")
    if validation > known.size - codes.size:
        raise ValueError(
            f"validation={validation} is too many: {known.size} rows are labeled, and each of the {codes.size} classes "
            f"needs one to train on. Hold out at most {known.size - codes.size}."
        )
    held_out = _draw_validation(y, known, codes, validation, seed)
    in_training = np.ones(len(y), dtype=bool)
    in_training[held_out] = False
    known = known[in_training[known]]
    names = [str(code) if classes is None else repr(classes[code]) for code in codes]
    rows = [known[y[known] == code] for code in codes]
    return Split(
        labeled=_draw_balanced(rows, names, labels, np.random.default_rng([seed, _LABEL_STREAM])),
        unlabeled=np.flatnonzero(in_training).astype(np.int64),
        validation=np.sort(held_out).astype(np.int64),
    )


def _draw_validation(
    y: NDArray[np.int64], known: NDArray[np.int64], codes: NDArray[np.int64], validation: int, seed: int
) -> NDArray[np.int64]:
    """Draw from all labeled rows; if a class has no row left, draw again, keeping one random row per class."""
    drawn = np.random.default_rng([seed, _VALIDATION_STREAM]).choice(known, validation, replace=False)
    if len(np.unique(y[np.setdiff1d(known, drawn)])) == len(codes):
        return np.asarray(drawn)
    rng = np.random.default_rng([seed, _KEPT_STREAM])
    kept = [rng.choice(known[y[known] == code]) for code in codes]
    return np.asarray(rng.choice(np.setdiff1d(known, kept), validation, replace=False))


def _draw_balanced(
    rows: list[NDArray[np.int64]], names: list[str], labels: int | None, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Draw `labels` rows, equally many from each class's `rows`."""
    n_classes, available = len(rows), sum(map(len, rows))
    labels = available if labels is None else labels
    if labels > available:
        raise ValueError(f"labels={labels} is too many: there are {available} labeled rows to train on.")
    if labels < n_classes:
        raise ValueError(f"labels={labels} is too few: {n_classes} classes need at least one each.")
    shuffled = [rng.permutation(of_class) for of_class in rows]
    counts = np.full(n_classes, labels // n_classes)
    counts[rng.permutation(n_classes)[: labels % n_classes]] += 1
    if labels == available:
        counts = np.array([len(of_class) for of_class in rows])
    for name, of_class, count in zip(names, rows, counts, strict=True):
        if len(of_class) < count:
            raise ValueError(
                f"Class {name} has {len(of_class)} labeled rows to train on, but labels={labels} balanced over "
                f"{n_classes} classes needs {count}. Ask for at most {n_classes * min(map(len, rows))} labels, hold "
                "out fewer rows, or use all labels (--labels all, or labels=None in Python)."
            )
    chosen = np.concatenate([of_class[:count] for of_class, count in zip(shuffled, counts, strict=True)])
    return rng.permutation(chosen).astype(np.int64)


class _LabeledSplitter(BaseCrossValidator):  # type: ignore[misc]
    """Base class of the splitters: one of scikit-learn's splits the labeled rows, and the unlabeled ones are added."""

    n_splits: int
    task: Literal["classification", "regression"] | None
    random_state: Any

    @abstractmethod
    def _splitter(self, *, stratified: bool, counts: NDArray[np.int64]) -> Any:
        """Return scikit-learn's splitter for labeled rows, `counts` of each class or in total."""

    def _is_shuffled(self) -> bool:
        return True

    def get_n_splits(
        self,
        X: Any = None,  # noqa: ARG002
        y: Any = None,  # noqa: ARG002
        groups: Any = None,  # noqa: ARG002
    ) -> int:
        """Return the number of splits; the arguments are ignored."""
        return self.n_splits

    def split(
        self,
        X: Any,  # noqa: ARG002
        y: ArrayLike | None = None,
        groups: Any = None,  # noqa: ARG002
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Yield the training rows and the test rows of each split.

        Any first part of the training rows has unlabeled rows and rows of each class in the proportion of all, so that
        `learning_curve`, which takes such parts, needs no shuffling.

        Parameters
        ----------
        X : array-like
            Ignored: y has the number of rows.
        y : array-like of shape (n_samples,)
            Labels, -1, None, NaN or ``pd.NA`` where unlabeled; or numbers, None, NaN or ``pd.NA`` where unlabeled.
        groups : object
            Ignored, for scikit-learn.

        Yields
        ------
        tuple of ndarray of int64
            Indices of the training rows and of the test rows.
        """
        if y is None:
            raise ValueError(f"{type(self).__name__} splits labeled rows: give y, with -1 or NaN where unlabeled.")
        targets = as_array(to_numpy(y)).ravel()
        values = look_continuous(targets) if self.task is None else self.task == "regression"
        missing = is_missing(targets) if values else is_unlabeled(targets)
        labeled, unlabeled = np.flatnonzero(~missing), np.flatnonzero(missing)
        codes = np.zeros(len(labeled), dtype=np.int64)
        if not values and len(labeled):
            codes = np.unique(targets[labeled].astype(str), return_inverse=True)[1].astype(np.int64)
        rng = check_random_state(self.random_state)
        splitter = self._splitter(stratified=not values, counts=np.bincount(codes, minlength=1))
        for chosen, held_out in splitter.split(codes, codes):
            groups_of_rows = [labeled[chosen[codes[chosen] == code]] for code in np.unique(codes)]
            yield _interleave([unlabeled, *groups_of_rows], rng if self._is_shuffled() else None), labeled[held_out]


def _interleave(groups: Sequence[NDArray[np.int64]], rng: np.random.RandomState | None) -> NDArray[np.int64]:
    """Return the rows of all groups, so that every first part has each group's share of rows; shuffle if `rng`."""
    ordered = groups if rng is None else [rng.permutation(rows) for rows in groups]
    positions = np.concatenate([(np.arange(len(rows)) + 0.5) / max(1, len(rows)) for rows in ordered])
    return np.asarray(np.concatenate(ordered)[np.argsort(positions, kind="stable")])


class LabeledKFold(_LabeledSplitter):
    """K-fold cross-validation over the labeled rows; the unlabeled ones are in every training part, in no test part.

    Classes are stratified as `StratifiedKFold` does, values split as `KFold` does. So plain scoring strings work, and
    no label of a test part is learned.

    Parameters
    ----------
    n_splits : int, default=5
        Number of folds, at least 2.
    shuffle : bool, default=False
        Whether to shuffle the rows before they are split.
    random_state : int, RandomState or None, default=None
        Determines the folds if `shuffle` is true.
    task : {"classification", "regression"} or None, default=None
        Whether targets are classes or values. Values are not stratified, and -1 is one of them. None: floats with
        fractions, below -1, or with more than 20 different values that hardly repeat are values.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.model_selection import cross_val_score
    >>> from tikas import LabeledKFold, LadderClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> y[::2] = -1  # 75 labels are left
    >>> [(len(train), len(test)) for train, test in LabeledKFold(3).split(X, y)]
    [(125, 25), (125, 25), (125, 25)]
    >>> classifier = LadderClassifier((8,), preprocess="standardize", epochs=2)
    >>> cross_val_score(classifier, X, y, cv=LabeledKFold(3)).shape
    (3,)
    """

    def __init__(
        self,
        n_splits: int = 5,
        *,
        shuffle: bool = False,
        random_state: Any = None,
        task: Literal["classification", "regression"] | None = None,
    ) -> None:
        self.n_splits = n_splits
        self.shuffle = shuffle
        self.random_state = random_state
        self.task = task

    def _is_shuffled(self) -> bool:
        return self.shuffle

    def _splitter(self, *, stratified: bool, counts: NDArray[np.int64]) -> Any:
        most = int(counts.max())
        if most < self.n_splits:
            of_class = " of any class" if stratified else ""
            raise ValueError(
                f"n_splits={self.n_splits}, but there are at most {most} labeled rows{of_class}. Label more rows, "
                "choose fewer folds, or use LabeledShuffleSplit."
            )
        kind = StratifiedKFold if stratified else KFold
        return kind(self.n_splits, shuffle=self.shuffle, random_state=self.random_state)


class LabeledShuffleSplit(_LabeledSplitter):
    """Random test parts of labeled rows; the unlabeled ones are in every training part, in no test part.

    Classes are stratified as `StratifiedShuffleSplit` does, values split as `ShuffleSplit` does.

    Parameters
    ----------
    n_splits : int, default=10
        Number of splits.
    test_size : float, int or None, default=None
        Share, or number, of the labeled rows to test on. None: what `train_size` leaves, or 0.1.
    train_size : float, int or None, default=None
        Share, or number, of the labeled rows to train on. None: all others. Labeled rows in neither part are left out.
    random_state : int, RandomState or None, default=None
        Determines the splits.
    task : {"classification", "regression"} or None, default=None
        Whether targets are classes or values. Values are not stratified, and -1 is one of them. None: floats with
        fractions, below -1, or with more than 20 different values that hardly repeat are values.

    Examples
    --------
    >>> import numpy as np
    >>> from tikas import LabeledShuffleSplit
    >>> y = np.repeat([0, 1, -1], 20)
    >>> splitter = LabeledShuffleSplit(2, train_size=6, test_size=10, random_state=0)
    >>> [(np.unique(y[train], return_counts=True)[1].tolist(), len(test)) for train, test in splitter.split(None, y)]
    [([20, 3, 3], 10), ([20, 3, 3], 10)]
    """

    def __init__(
        self,
        n_splits: int = 10,
        *,
        test_size: float | None = None,
        train_size: float | None = None,
        random_state: Any = None,
        task: Literal["classification", "regression"] | None = None,
    ) -> None:
        self.n_splits = n_splits
        self.test_size = test_size
        self.train_size = train_size
        self.random_state = random_state
        self.task = task

    def _splitter(self, *, stratified: bool, counts: NDArray[np.int64]) -> Any:
        if not counts.sum():
            raise ValueError("No row of y is labeled, so there is nothing to split. Label some rows.")
        kind = StratifiedShuffleSplit if stratified else ShuffleSplit
        return kind(self.n_splits, test_size=self.test_size, train_size=self.train_size, random_state=self.random_state)
