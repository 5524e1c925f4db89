"""Weights as repetitions: a row of weight two is there twice, and one of weight zero is not there."""

from __future__ import annotations

from fractions import Fraction
from math import lcm
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_REPEATED = 10
"""How many times the rows, at most, repetitions may come to."""


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
    ratios = weights / positive.min()
    different = np.unique(ratios)
    if different[-1] > MOST_REPEATED * len(weights):
        return None
    fractions = [Fraction(ratio).limit_denominator(MOST_REPEATED) for ratio in different.tolist()]
    if not np.allclose([float(fraction) for fraction in fractions], different, rtol=1e-9, atol=0):
        return None
    counts = np.rint(ratios * lcm(*(fraction.denominator for fraction in fractions))).astype(np.int64)
    return counts if counts.sum() <= MOST_REPEATED * len(weights) else None


def places_of(
    rows: NDArray[np.float32], targets: NDArray[Any], counts: NDArray[np.int64] | None = None
) -> NDArray[np.int64]:
    """Where the rows are that are trained on, each as often as it counts.

    Where none of them is there twice, they keep their order. Else the order follows from what they are, so that rows
    which were repeated and rows that count so often are the same to every draw from them.

    Parameters
    ----------
    rows
        ``(n, ...)``, laid out row by row.
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
    keys = np.concatenate([_bytes(rows), _bytes(targets)], axis=1)
    if len({keys[place].tobytes() for place in places}) == len(places):
        return places
    return places[np.argsort(keys.view(f"V{keys.shape[1]}")[places, 0], kind="stable")]


def _bytes(values: NDArray[Any]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(values).reshape(len(values), -1).view(np.uint8)
