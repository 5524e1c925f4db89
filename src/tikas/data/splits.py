"""Which training rows are labelled, which are held out, and which are only looked at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

# Each draw has a stream of its own, so that the held-out rows do not depend on how many labels are asked for.
# Not zero: NumPy takes [seed, 0] for the same seed as [seed].
_VALIDATION_STREAM, _LABEL_STREAM, _SPARED_STREAM = 1, 2, 3


@dataclass(frozen=True, eq=False)
class Split:
    """The rows of a training set, by what a run may use of them.

    The labelled rows stand among the unlabelled ones: a ladder denoises every row it may look at, and knows the class
    of a few of them. So `labeled` is a part of `unlabeled`, and `validation` is apart from both.

    Parameters
    ----------
    labeled : ndarray of int64
        Rows whose label is used, as many of each class; in no particular order.
    unlabeled : ndarray of int64
        Every row that is not held out, ascending.
    validation : ndarray of int64
        Rows held out to choose settings on, ascending.

    Examples
    --------
    >>> rows = Split(labeled=np.array([7, 2]), unlabeled=np.arange(8), validation=np.array([8, 9]))
    >>> bool(np.isin(rows.labeled, rows.unlabeled).all()), bool(np.isin(rows.labeled, rows.validation).any())
    (True, False)
    """

    labeled: NDArray[np.int64]
    unlabeled: NDArray[np.int64]
    validation: NDArray[np.int64]

    def rows_of_an_update(self, batch_size: int, labeled_batch_size: int) -> tuple[int, int]:
        """How many unlabelled and labelled rows an update has: where every row is labelled, they are the same rows.

        Examples
        --------
        >>> y = np.arange(60) % 3
        >>> split(y, labels=6).rows_of_an_update(100, 50), split(y, labels=None).rows_of_an_update(20, 50)
        ((60, 50), (20, 20))
        """
        unlabeled = min(batch_size, len(self.unlabeled))
        return unlabeled, unlabeled if self.fully_labeled else labeled_batch_size

    @property
    def fully_labeled(self) -> bool:
        return len(self.labeled) == len(self.unlabeled)

    def hidden(self, y: NDArray[np.int64]) -> NDArray[np.int64]:
        """Rows whose label is known, and neither used nor held out: training looks at them without it.

        Examples
        --------
        >>> y = np.array([0, 1, 0, 1, -1])
        >>> len(split(y, labels=2, validation=1).hidden(y))
        1
        """
        return np.setdiff1d(self.unlabeled[y[self.unlabeled] >= 0], self.labeled)


def split(
    y: ArrayLike,
    labels: int | None,
    *,
    validation: int = 0,
    seed: int = 0,
    classes: Sequence[object] | None = None,
) -> Split:
    """Hold out validation rows, then choose the labelled rows, balanced over the classes.

    The rows depend on `y`, the counts and the seed alone. With the same seed and validation rows, a class's share of
    few labels is a part of its share of many.

    Parameters
    ----------
    y : array-like of int, shape (n,)
        The class of each row; −1 where it is not known.
    labels : int or None
        How many labels to use: equally many of each class, a remainder going to classes chosen at random. ``None``,
        or as many as there are, means every known label, however many each class has.
    validation : int, default=0
        How many rows to hold out, drawn from the rows whose class is known. Each class keeps at least one of its own
        to train on.
    seed : int, default=0
        Not negative.
    classes : sequence, optional
        What each class is called, for the messages; by default, its number.

    Returns
    -------
    Split

    Raises
    ------
    ValueError
        If `y` is not made of classes, or the counts cannot be had from it.

    Examples
    --------
    >>> import numpy as np
    >>> from tikas.data.splits import split
    >>> y = np.repeat([0, 1, 2], 10)
    >>> rows = split(y, labels=6, validation=5, seed=1)
    >>> np.bincount(y[rows.labeled]).tolist()
    [2, 2, 2]
    >>> len(rows.unlabeled), len(rows.validation)
    (25, 5)
    """
    y = _checked_classes(y)
    for name, value in (("labels", labels), ("validation", validation), ("seed", seed)):
        if value is not None and value < 0:
            raise ValueError(f"{name}={value} was given; expected 0 or more.")

    known = np.flatnonzero(y >= 0)
    found = np.unique(y[known])
    if validation > known.size - found.size:
        raise ValueError(
            f"validation={validation} rows cannot be held out of {known.size} rows with a known label: each of the "
            f"{found.size} classes needs one to train on. Hold out at most {known.size - found.size}."
        )
    held_out = _held_out(y, known, found, validation, seed)
    in_training = np.ones(len(y), dtype=bool)
    in_training[held_out] = False
    known = known[in_training[known]]
    rows_of = {str(c) if classes is None else repr(classes[c]): known[y[known] == c] for c in found}
    return Split(
        labeled=_balanced(rows_of, labels, np.random.default_rng([seed, _LABEL_STREAM])),
        unlabeled=np.flatnonzero(in_training).astype(np.int64),
        validation=np.sort(held_out).astype(np.int64),
    )


def _held_out(
    y: NDArray[np.int64], known: NDArray[np.int64], classes: NDArray[np.int64], validation: int, seed: int
) -> NDArray[np.int64]:
    """Rows drawn from all that are known; where that takes a class's last row, from all but one of each class."""
    drawn = np.random.default_rng([seed, _VALIDATION_STREAM]).choice(known, validation, replace=False)
    kept = np.setdiff1d(known, drawn)
    if len(np.unique(y[kept])) == len(classes):
        return np.asarray(drawn)
    rng = np.random.default_rng([seed, _SPARED_STREAM])
    spared = [rng.choice(known[y[known] == each]) for each in classes]
    return np.asarray(rng.choice(np.setdiff1d(known, spared), validation, replace=False))


def _checked_classes(y: ArrayLike) -> NDArray[np.int64]:
    y = np.asarray(y)
    if y.ndim != 1 or not np.issubdtype(y.dtype, np.integer):
        raise ValueError(
            f"y has shape {y.shape} and type {y.dtype}; expected one whole number per row. "
            f"Number the classes from 0, with −1 where the class is not known."
        )
    if not np.any(y >= 0):
        raise ValueError(f"None of the {len(y)} rows has a known label. At least one of each class is needed.")
    if y.min() < -1:
        raise ValueError(f"y holds {y.min()}; expected classes from 0, and −1 where the class is not known.")
    return y.astype(np.int64)


def _balanced(rows_of: dict[str, NDArray[np.int64]], labels: int | None, rng: np.random.Generator) -> NDArray[np.int64]:
    n_classes = len(rows_of)
    available = sum(rows.size for rows in rows_of.values())
    labels = available if labels is None else labels
    if labels > available:
        raise ValueError(f"{labels} labels were asked for but {available} are there to train on. Ask for at most that.")
    if labels < n_classes:
        raise ValueError(
            f"{labels} labels cannot cover {n_classes} classes: each needs at least one. Ask for {n_classes} or more."
        )

    shuffled = [rng.permutation(rows) for rows in rows_of.values()]
    shares = np.full(n_classes, labels // n_classes)
    shares[rng.permutation(n_classes)[: labels % n_classes]] += 1
    if labels == available:
        shares = np.array([rows.size for rows in shuffled])
    for name, rows, share in zip(rows_of, shuffled, shares, strict=True):
        if rows.size < share:
            raise ValueError(
                f"Class {name} has {rows.size} labelled rows to train on, but {share} are needed for {labels} labels "
                f"balanced over {n_classes} classes. Ask for at most {n_classes * min(map(len, shuffled))}, hold out "
                f"fewer rows, or use every label there is (--labels all, or labels=None in Python)."
            )
    chosen = np.concatenate([rows[:share] for rows, share in zip(shuffled, shares, strict=True)])
    return rng.permutation(chosen).astype(np.int64)
