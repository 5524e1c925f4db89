"""Rows that are read when they are needed: arrays on disk, sparse matrices, and views of these.

Parquet files are in `tikas.data.parquet`, folders of images in `tikas.data.images`. Nothing here needs torch.
"""

from __future__ import annotations

import mmap
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Indices = NDArray[np.int64]

STREAM_FROM = 2**30
"""Bytes, as float32, from which `fit` streams a memory-mapped array. Counted in bytes and not in free memory, so that a
fit does not depend on the machine: streamed rows are shuffled in another order."""
BLOCK_BYTES = 2**20
"""Size of the blocks of an array in which its rows are read and shuffled."""
CHUNK_VALUES = 2**22
"""Values that are read at a time where rows are read one after the other."""


class RowSource(ABC):
    """Rows of float32 that are read from where they are.

    Like an array, a source has `shape`, `ndim`, `dtype` and a length, ``source[2:5]`` and ``source[[7, 1]]`` are arrays
    of rows, and `reshape` changes the shape of the rows.

    Attributes
    ----------
    shape : tuple of int
        Number of rows, and the shape of a row.
    block_edges : ndarray of int64 or None
        First row of each block, and the number of rows. Reading a whole block takes little longer than reading one of
        its rows, so epochs are shuffled by blocks. None: every row by itself is read fast enough.
    feature_names : tuple of str
        Names of the columns, if they have names.
    """

    dtype = np.dtype(np.float32)
    block_edges: Indices | None = None
    feature_names: tuple[str, ...] = ()

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape

    @abstractmethod
    def take(self, rows: Indices) -> NDArray[np.float32]:
        """Read rows, in the order of these indices. Threads may call this at the same time."""

    @property
    def ndim(self) -> int:
        """Number of dimensions, that of the rows included."""
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> NDArray[np.float32]:
        if isinstance(rows, slice):
            return self.take(np.arange(*rows.indices(len(self)), dtype=np.int64))
        indices = np.asarray(rows)
        return self.take(np.flatnonzero(indices) if indices.dtype == bool else indices.astype(np.int64, copy=False))

    def reshape(self, n: int, *shape: int) -> RowSource:
        """Return the same rows in another shape; `n` is their number."""
        if shape == (-1,):
            shape = (prod(self.shape[1:]),)
        if n != len(self) or prod(shape) != prod(self.shape[1:]):
            raise ValueError(f"Rows of shape {self.shape} cannot have the shape {(n, *shape)}.")
        return self if shape == self.shape[1:] else RowView(self, row_shape=shape)


AnyRows = Array | RowSource
"""Rows in memory, or those of a source."""


class RowView(RowSource):
    """Rows of another source: some of them, transformed, in another shape.

    Parameters
    ----------
    source : RowSource
    rows : ndarray of int64, optional
        Ascending indices of the rows of the view; default: all.
    transform : callable, optional
        Maps an array of rows to an array of as many rows.
    row_shape : tuple of int, optional
        Shape of a row of the view; default: as in the source.

    Examples
    --------
    >>> numbers = ArrayRows(np.arange(12).reshape(6, 2))
    >>> RowView(numbers, rows=np.array([1, 4]), transform=lambda rows: -rows)[:]
    array([[-2., -3.],
           [-8., -9.]], dtype=float32)
    """

    def __init__(
        self,
        source: RowSource,
        *,
        rows: Indices | None = None,
        transform: Callable[[Array], Array] | None = None,
        row_shape: tuple[int, ...] | None = None,
    ) -> None:
        super().__init__((len(source) if rows is None else len(rows), *(row_shape or source.shape[1:])))
        self.source, self.rows, self.transform = source, rows, transform
        self.block_edges, self.feature_names = source.block_edges, source.feature_names
        if rows is not None and source.block_edges is not None:
            self.block_edges = np.unique(np.searchsorted(rows, source.block_edges))

    def take(self, rows: Indices) -> NDArray[np.float32]:
        """Read rows, in the order of these indices."""
        values = self.source.take(rows if self.rows is None else self.rows[rows])
        if self.transform is not None and len(values):
            values = self.transform(values)
        return values.reshape(len(values), *self.shape[1:])


class ArrayRows(RowSource):
    """Rows of an array, such as ``numpy.load(file, mmap_mode="r")``, read block by block and converted to float32.

    Parameters
    ----------
    array : ndarray of numbers or booleans, shape (n, ...)

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.save(folder + "/rows.npy", np.arange(12).reshape(6, 2))
    ...     rows = ArrayRows(np.load(folder + "/rows.npy", mmap_mode="r"))
    ...     rows[[4, 0]]
    array([[8., 9.],
           [0., 1.]], dtype=float32)
    """

    def __init__(self, array: Array) -> None:
        super().__init__(array.shape)
        self.array = array
        self._size = max(1, BLOCK_BYTES // max(1, prod(array.shape[1:]) * array.dtype.itemsize))
        self.block_edges = np.append(np.arange(0, len(array), self._size), len(array)).astype(np.int64)
        self._mapping = _mapping_of(array)

    def take(self, rows: Indices) -> NDArray[np.float32]:
        """Read rows, in the order of these indices."""
        found = np.empty((len(rows), *self.shape[1:]), np.float32)
        order = np.argsort(rows, kind="stable")  # forward through the file
        starts = np.flatnonzero(np.diff(rows[order] // self._size, prepend=-1))
        with np.errstate(over="ignore"):  # values too large for float32 become infinite, which is checked once
            for part in np.split(order, starts[1:]) if len(order) else ():
                self._read_ahead(rows[part])
                found[part] = self.array[rows[part]]
                if self._mapping is not None:  # else the process would seem to use as much memory as the file has
                    self._mapping.madvise(mmap.MADV_DONTNEED)
        return found

    def _read_ahead(self, rows: Indices) -> None:
        """Have the system read these rows of a block at once, and no more.

        By itself it reads as far ahead as it is set to: with 8 MiB, it read seven times as much as was needed.
        """
        if self._mapping is None or not self.array.flags.c_contiguous:
            return
        start = self.array.ctypes.data - np.frombuffer(self._mapping, np.uint8).ctypes.data
        are_close = rows[-1] - rows[0] < 4 * len(rows)
        for part in [rows] if are_close else np.split(rows, len(rows)):
            first, after = (start + int(row) * self.array.strides[0] for row in (part[0], part[-1] + 1))
            first -= first % mmap.PAGESIZE
            self._mapping.madvise(mmap.MADV_WILLNEED, first, after - first)


def _mapping_of(array: Array) -> mmap.mmap | None:
    """Return the mapping of a memory-mapped array if its pages may be dropped, as they can be read again."""
    if getattr(array, "mode", "c") == "c" or not hasattr(mmap, "MADV_DONTNEED"):  # private changes are in no file
        return None
    base: Any = array
    while base is not None and not isinstance(base, mmap.mmap):
        base = getattr(base, "base", None)
    return base


class SparseRows(RowSource):
    """Rows of a sparse matrix, made dense when they are read.

    Parameters
    ----------
    matrix : scipy.sparse matrix or array in CSR format

    Examples
    --------
    >>> from scipy.sparse import csr_array
    >>> SparseRows(csr_array([[0, 0, 5], [0, 4, 0]]))[1:]
    array([[0., 4., 0.]], dtype=float32)
    """

    def __init__(self, matrix: Any) -> None:
        super().__init__(matrix.shape)
        self.matrix = matrix

    def take(self, rows: Indices) -> NDArray[np.float32]:
        """Read rows, in the order of these indices."""
        dense: Array = self.matrix[rows].toarray()
        return dense.astype(np.float32, order="C", copy=False)


def chunks(rows: AnyRows, chosen: Indices | None = None, values: int = CHUNK_VALUES) -> Iterator[Array]:
    """Yield all rows, or chosen ones, one after the other, in chunks of about so many values."""
    n = len(rows) if chosen is None else len(chosen)
    size = max(1, values // max(1, prod(rows.shape[1:])))
    for start in range(0, n, size):
        part = slice(start, start + size)
        yield rows[part if chosen is None else chosen[part]]


def spread_sample(rows: Indices, count: int, seed: int = 0) -> Indices:
    """Return at most `count` of these rows, one random row of each of `count` equal parts, so that they stay in order.

    Rows at equal distances would all be of one class in a file whose classes take turns.
    """
    if len(rows) <= count:
        return rows
    edges = np.linspace(0, len(rows), count + 1)
    positions = edges[:-1] + np.random.default_rng(seed).random(count) * np.diff(edges)
    return rows[np.minimum(positions.astype(np.int64), len(rows) - 1)]
