"""Splits: which training rows are used with their label, without it, or held out for validation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

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
