"""Data sets by name: digits, MNIST, Fashion-MNIST and CIFAR-10; found on disk, downloaded, or from scikit-learn."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

DATASETS = ("digits", "mnist", "fashion-mnist", "cifar10")


@dataclass(frozen=True, eq=False)
class Dataset:
    """Rows with their targets.

    Parameters
    ----------
    rows : ndarray of float32, shape (n, *shape)
        Features ``(n, d)``, or images ``(n, channels, height, width)``.
    targets : ndarray of shape (n,)
        int64 class codes, -1 where unlabeled; or float32 values, NaN where unlabeled, if `classes` is None.
    weights : ndarray of shape (n,), optional
        Weight of each row's label; None if all count the same.
    feature_names : tuple of str, default=()
        Names of the columns, where they have names.
    classes : ndarray, optional
        Name of each class; None for a regression.

    Examples
    --------
    >>> train, test = load_dataset("digits")
    >>> train.rows.shape, train.n_outputs, int(train.labeled.sum()), len(test)
    ((1297, 1, 8, 8), 10, 1297, 500)
    """

    rows: NDArray[np.float32]
    targets: NDArray[Any]
    weights: NDArray[Any] | None = None
    feature_names: tuple[str, ...] = ()
    classes: NDArray[Any] | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def labeled(self) -> NDArray[np.bool_]:
        """Which rows are labeled, ``(n,)``."""
        return ~np.isnan(self.targets) if self.classes is None else self.targets >= 0

    @property
    def n_outputs(self) -> int:
        """The number of classes, or 1 for a regression."""
        return 1 if self.classes is None else len(self.classes)


def load_dataset(name: str, data_dir: str | os.PathLike[str] | None = None) -> tuple[Dataset, Dataset]:
    """Return the training and test rows of a data set by name."""
    raise NotImplementedError


def kind_of(data: str) -> Literal["data set", "table", "folder"]:
    """Return what `data` names."""
    raise NotImplementedError
