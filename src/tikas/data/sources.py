"""Data sets by name: found on disk, downloaded with their hashes, or shipped with scikit-learn."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tikas.data.cifar10 import CIFAR10, THINGS, read_cifar10
from tikas.data.mnist import CLOTHES, DIGITS, FASHION_MNIST, MNIST, read_mnist
from tikas.data.published import Arrays, PublishedData, files_of


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images with their classes, in the training and test rows that everybody compares on.

    Parameters
    ----------
    name : str
        The name it was asked for by.
    train_x, test_x : ndarray of float32, shape (n, channels, height, width)
        Pixels in [0, 1].
    train_y, test_y : ndarray of int64, shape (n,)
        The class of each row, an index into `classes`; in folders of images, -1 where it is not known.
    classes : tuple of str
        What each class is called.

    Examples
    --------
    >>> digits = load("digits")
    >>> digits.name, digits.train_x.shape, digits.classes[:3]
    ('digits', (1297, 1, 8, 8), ('0', '1', '2'))
    """

    name: str
    train_x: NDArray[np.float32]
    train_y: NDArray[np.int64]
    test_x: NDArray[np.float32]
    test_y: NDArray[np.int64]
    classes: tuple[str, ...]


@dataclass(frozen=True)
class _Source:
    published: PublishedData
    classes: tuple[str, ...]
    read: Callable[[list[Path]], Arrays]


_SOURCES = {
    source.published.name: source
    for source in (
        _Source(MNIST, DIGITS, read_mnist),
        _Source(FASHION_MNIST, CLOTHES, partial(read_mnist, name=FASHION_MNIST.name)),
        _Source(CIFAR10, THINGS, read_cifar10),
    )
}

NAMES = ("digits", *_SOURCES)


def load(name: str, data_dir: str | os.PathLike[str] | None = None) -> Dataset:
    """Load a data set by its name.

    Parameters
    ----------
    name : {"digits", "mnist", "fashion-mnist", "cifar10"}
        ``"digits"`` ships with scikit-learn: 1297 training and 500 test images of 8×8 pixels, always the same rows.
        The next two are four IDX files each, gzipped or not. ``"cifar10"`` is six batches, of the binary or the Python
        version, or the archive of either; nothing in a Python batch is executed.
    data_dir : path, optional
        The folder that holds the files, or that holds a folder named like the data set which does. The environment
        variable ``TIKAS_DATA`` stands in for it. Without either, the files are downloaded once and kept.

    Returns
    -------
    Dataset

    Raises
    ------
    ValueError
        If there is no data set of that name, or a file does not hold what its name promises.
    FileNotFoundError
        If files are missing from the folder that was named, or cannot be downloaded.

    Examples
    --------
    >>> from tikas.data.sources import load
    >>> digits = load("digits")
    >>> digits.train_x.shape, digits.test_x.shape
    ((1297, 1, 8, 8), (500, 1, 8, 8))
    >>> digits.classes[digits.test_y[0]]
    '4'
    """
    if name not in NAMES:
        close = difflib.get_close_matches(name.lower(), NAMES, n=1)
        suggestion = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"There is no data set named {name!r}: choose from {', '.join(NAMES)}{suggestion}")
    if name == "digits":
        return _digits()
    source = _SOURCES[name]
    return Dataset(name, *source.read(files_of(source.published, data_dir)), classes=source.classes)


def _digits() -> Dataset:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, targets = load_digits(return_X_y=True)
    x = (images / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    y = targets.astype(np.int64)
    train, test = train_test_split(np.arange(len(y)), test_size=500, stratify=y, random_state=0)
    return Dataset("digits", x[train], y[train], x[test], y[test], DIGITS)
