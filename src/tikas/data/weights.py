"""Weights as repetitions: a row of weight two is there twice, and one of weight zero is not there."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_REPEATED = 10
"""How many times the rows of positive weight, at most, repetitions may come to."""


def as_counts(weights: NDArray[np.float64]) -> NDArray[np.int64] | None:
    """The smallest whole numbers with the ratios of the weights; None where they would repeat too many rows.

    Examples
    --------
    >>> as_counts(np.array([0.5, 0.75, 0.0])).tolist()
    [2, 3, 0]
    >>> as_counts(np.array([1.0, 0.0318])) is None
    True
    """
    positive = weights[weights > 0]
    if not len(positive):
        return None
    with np.errstate(over="ignore"):
        ratios = weights / positive.min()
    for scale in range(1, MOST_REPEATED + 1):  # no ratio is below one, so that a larger scale could not fit
        counts = np.rint(scale * ratios)
        if not counts.sum() <= MOST_REPEATED * len(positive):
            return None
        if np.allclose(counts, scale * ratios, rtol=1e-6, atol=0):  # single precision is enough
            return np.asarray(counts, np.int64)
    return None


def places_of(
    rows: NDArray[np.float32], targets: NDArray[Any], counts: NDArray[np.int64] | None = None
) -> NDArray[np.int64]:
    """Where the rows are that are trained on, each as often as it counts.

    Where none of them is there twice, they keep their order. Else the order follows from what they are, so that rows
    which were repeated and rows that count so often are the same to every draw from them.

    Parameters
    ----------
    rows
        ``(n, ...)``.
    targets
        ``(n,)``; rows of other targets are other rows.
    counts
        How often each counts; without them, once.

    Examples
    --------
    >>> rows, targets = np.float32([[3], [1], [2]]), np.array([0, 1, 0])
    >>> places_of(rows, targets).tolist()
    [0, 1, 2]
    >>> places_of(rows, targets, np.array([2, 1, 0])).tolist()
    [0, 0, 1]
    >>> places_of(rows[[0, 1, 0]], targets[[0, 1, 0]]).tolist()
    [0, 2, 1]
    """
    places = np.arange(len(rows)) if counts is None else np.repeat(np.arange(len(rows)), counts)
    digests = [_digest(row, target) for row, target in zip(rows, targets, strict=True)]
    if len({digests[place] for place in places}) == len(places):
        return places
    return np.array(sorted(places.tolist(), key=digests.__getitem__))


def _digest(row: NDArray[np.float32], target: Any) -> bytes:
    """Of what they are; zero and minus zero are the same."""
    return hashlib.blake2b((row + 0).tobytes() + (target + 0).tobytes(), digest_size=16).digest()
