"""Standardization and whitening, fitted on training rows, and warnings about the scale of rows."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from math import prod, sqrt
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

CONSTANT_RATIO = 1e-6
"""Values count as constant if their deviation is at most this fraction of the largest: it is rounding error."""
CONTRAST = 55 / sqrt(3072)
"""Root mean square of an image after contrast normalization: a norm of 55 for the 3072 values of CIFAR-10."""
REGULARIZER = 0.1
"""Added to each variance in whitening, so that directions with almost no variance are not amplified."""
CHUNK_ROWS = 2048
MAX_VALUES = 3 * 64 * 64
"""Largest number of values of an image to whiten: memory grows with its square, the time to fit with its cube."""
SCALE_CHUNK_ROWS = 4096
MIN_PIXELS = 50
"""Columns from which values like pixels, such as 8 by 8 of them, are pixels and not counts."""
FIT_VALUES, APPLY_VALUES = 2**22, 2**18
"""Values of which moments are computed, and which are standardized, at a time."""
MAX_NAMED = 5
FAR, FAR_SINGLE = 2, 10
"""Rows (many, or a single one) farther outside the training range than this many times its width have another scale."""
NARROW = 1 / 100
"""Images that cover less than this fraction of the training range have another scale."""


@dataclass(frozen=True, eq=False)
class Transform(ABC):
    """Base class of both transforms, which saves and restores their tensors."""

    DTYPE: ClassVar[torch.dtype]

    mean: Tensor

    def to(self, device: str | torch.device) -> Self:
        """Return a copy on another device."""
        return type(self)(**{name: tensor.to(device) for name, tensor in self.tensors().items()})

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors to save."""
        return vars(self).copy()

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """Restore from `tensors()`; raise ValueError if these are not the tensors of this transform."""
        names = {field.name for field in fields(cls)}
        usable = all(tensor.dtype == cls.DTYPE and tensor.isfinite().all() for tensor in tensors.values())
        if tensors.keys() != names or not usable or not cls(**tensors)._is_valid():
            found = ", ".join(f"{name} {tuple(tensor.shape)} of {tensor.dtype}" for name, tensor in tensors.items())
            raise ValueError(f"expected the finite {cls.DTYPE} tensors of a {cls.__name__}; found {found}")
        return cls(**tensors)

    @abstractmethod
    def _is_valid(self) -> bool:
        """Return whether the tensors fit each other and have possible values."""

    def _check_shape(self, rows: Tensor) -> None:
        if rows.shape[1:] != self.mean.shape:
            raise ValueError(
                f"Got rows of shape {tuple(rows.shape)}; expected (n, {', '.join(map(str, self.mean.shape))}), the "
                "shape this was fitted on (images have their channels first)."
            )


@dataclass(frozen=True, eq=False)
class Standardization(Transform):
    """z = (x - μ) / σ for each column, or for each channel of images.

    A column that is constant in the training rows is centered but not scaled.

    Parameters
    ----------
    mean, deviation : Tensor of float64, shape of a row
        μ and σ. float64 keeps the differences of large numbers that vary little, such as years.

    Examples
    --------
    >>> rows = torch.tensor([[1990.0, 5.0], [2010.0, 5.0]])
    >>> Standardization.fit(rows)(rows)
    tensor([[-1.,  0.],
            [ 1.,  0.]])
    """

    DTYPE = torch.float64

    deviation: Tensor

    @classmethod
    def fit(cls, rows: Tensor | Iterable[Tensor], device: str | torch.device | None = None) -> Self:
        """Fit on training rows ``(n, columns)`` or ``(n, channels, height, width)``, finite, at least two.

        They may be given in parts, of at least one row each. The moments of parts are merged in double precision by the
        pairwise update of Chan, Golub and LeVeque.
        """
        parts = _split(rows, FIT_VALUES) if isinstance(rows, Tensor) else rows
        count, mean, variance, largest, shape = 0, *[torch.zeros((), dtype=torch.float64)] * 3, torch.Size()
        for part in parts:
            given, shape = part.to(device or part.device).double(), part.shape[1:]
            dims = (0, *range(2, given.dim()))
            part_deviation, part_mean = torch.std_mean(given, dims, correction=0, keepdim=True)
            total, difference = count + len(given), part_mean - mean
            before, share = count / total, len(given) / total
            mean = mean + difference * share
            variance = variance * before + part_deviation.square() * share + difference.square() * (before * share)
            largest = torch.maximum(largest.to(given.device), given.abs().amax(dims, keepdim=True))
            count = total
        deviation = variance.sqrt()
        # The deviation of constant columns is rounding error. It may exceed 1 for large numbers: hence the clamp.
        deviation = torch.where(deviation <= CONSTANT_RATIO * largest, deviation.clamp(min=1.0), deviation)
        return cls(*(each[0].expand(shape).contiguous() for each in (mean, deviation)))

    @torch.no_grad()
    def __call__(self, rows: Tensor) -> Tensor:
        """Standardize rows ``(n, *shape)`` on their device; float64 rows stay float64."""
        self._check_shape(rows)
        mean, deviation = self.mean.to(rows.device), self.deviation.to(rows.device)
        standardized = torch.empty_like(rows, dtype=torch.promote_types(rows.dtype, torch.float32))
        for part, given in zip(_split(standardized), _split(rows), strict=True):
            part.copy_((given - mean) / deviation)
        return standardized

    def _is_valid(self) -> bool:
        return self.deviation.shape == self.mean.shape and bool((self.deviation > 0).all())


@dataclass(frozen=True, eq=False)
class Whitening(Transform):
    """Contrast normalization, then ZCA whitening: z = (C + 0.1·I)^(-1/2) (x - μ).

    μ and C are mean and covariance (1/n) of the contrast-normalized training images. A direction of variance λ keeps
    the variance λ / (λ + 0.1). Of all whitening matrices, the symmetric one changes images least.

    Parameters
    ----------
    mean : Tensor of float32, shape of an image
        μ.
    matrix : Tensor of float32, shape (values, values)
        (C + 0.1·I)^(-1/2), symmetric; `values` is the number of values of an image.

    References
    ----------
    Krizhevsky, Learning multiple layers of features from tiny images, 2009, appendix A.

    Examples
    --------
    >>> images = torch.rand(500, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    >>> whitened = Whitening.fit(images)(images)
    >>> whitened.shape, bool((whitened.mean(0).abs() < 1e-5).all())
    (torch.Size([500, 3, 4, 4]), True)
    """

    DTYPE = torch.float32

    matrix: Tensor

    @classmethod
    def fit(cls, images: Tensor | Iterable[Tensor], device: str | torch.device | None = None) -> Self:
        """Fit on at least two training images ``(n, ...)``, on `device` (default: theirs), where the result stays.

        They may be given in parts.
        """
        total, products, count, shape = torch.empty(0), torch.empty(0), 0, torch.Size()
        for part in [images] if isinstance(images, Tensor) else images:
            if count == 0:
                shape, device = part.shape[1:], torch.device(device or part.device)
                values = prod(shape)
                if values > MAX_VALUES:
                    raise ValueError(
                        f"Images of shape {tuple(shape)} have {values} values; whitening takes at most {MAX_VALUES}, "
                        "because the size of its matrix is the square of that. Make the images smaller, or set "
                        "preprocess='none'."
                    )
                total = torch.zeros(values, dtype=torch.float64, device=device)
                products = torch.zeros(values, values, dtype=torch.float64, device=device)
            for rows in _normalized_chunks(part, total.device, _product_dtype(total.device)):
                total += rows.sum(0, dtype=torch.float64)
                products += rows.T @ rows
            count += len(part)
        mean = total / count
        covariance = products.div_(count).sub_(torch.outer(mean, mean))
        variances, directions = torch.linalg.eigh(covariance)
        scaled = directions * (variances.clamp(min=0) + REGULARIZER) ** -0.25
        return cls(mean.float().reshape(shape), (scaled @ scaled.T).float())

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """Whiten raw images ``(n, *shape)``; the result is on their device.

        Products are computed on the device of the matrix, `CHUNK_ROWS` images at a time. float64 images stay float64.
        """
        self._check_shape(images)
        device = self.matrix.device
        dtype = torch.promote_types(images.dtype, torch.float32)
        product_dtype = torch.promote_types(dtype, _product_dtype(device))
        mean, matrix = self.mean.flatten().to(product_dtype), self.matrix.to(product_dtype)
        whitened = torch.empty(images.shape, dtype=dtype, device=images.device)
        chunks = whitened.view(len(images), mean.numel()).split(CHUNK_ROWS)
        for chunk, rows in zip(chunks, _normalized_chunks(images, device, product_dtype), strict=True):
            chunk.copy_((rows - mean) @ matrix)
        return whitened

    def _is_valid(self) -> bool:
        return self.matrix.shape == (self.mean.numel(), self.mean.numel())


class PixelScaling(Standardization):
    """z = x / s with one s for all values: 255 for bytes, else the largest value of the training rows.

    Examples
    --------
    >>> PixelScaling.fit(torch.tensor([[0.0, 255.0], [51.0, 102.0]]))(torch.tensor([[0.0, 51.0]]))
    tensor([[0.0000, 0.2000]])
    """

    @classmethod
    def fit(cls, rows: Tensor | Iterable[Tensor], device: str | torch.device | None = None) -> Self:
        """Fit on training rows ``(n, ...)``, finite, which may be given in parts."""
        highest, shape = 0.0, torch.Size()
        for part in [rows] if isinstance(rows, Tensor) else rows:
            highest, shape, device = max(highest, float(part.max())), part.shape[1:], device or part.device
        scale = torch.full(shape, pixel_scale(highest), dtype=cls.DTYPE, device=device)
        return cls(torch.zeros_like(scale), scale)


TRANSFORMS: dict[str, type[Standardization] | type[Whitening]] = {
    "pixels": PixelScaling,
    "standardize": Standardization,
    "whiten": Whitening,
}
"""The transforms of arrays by the value of `preprocess`."""


def normalize_contrast(images: Tensor) -> Tensor:
    """Give every image ``(n, ...)`` the mean zero and the same root mean square; constant images become zeros.

    (x - mean) / (‖x - mean‖ / 55) for 3072 values; the norm grows with the square root of the number of values.
    """
    rows = images.flatten(1).to(torch.promote_types(images.dtype, torch.float32))
    # The float64 mean of one repeated value is exactly that value, so a constant image becomes exactly zero.
    centered = rows - rows.mean(1, keepdim=True, dtype=torch.float64).to(rows.dtype)
    deviation = torch.linalg.vector_norm(centered, dim=1, keepdim=True, dtype=torch.float64) / sqrt(rows.shape[1])
    constant = deviation <= CONSTANT_RATIO * rows.abs().amax(1, keepdim=True)
    scale = torch.where(constant, 0, CONTRAST / deviation)
    return (centered * scale.to(rows.dtype)).reshape(images.shape)


def _split(rows: Tensor, values: int = APPLY_VALUES) -> tuple[Tensor, ...]:
    """Split rows into parts of about so many values, to need little memory beside the rows."""
    return torch.split(rows, max(1, values // max(1, prod(rows.shape[1:]))))


def _product_dtype(device: torch.device) -> torch.dtype:
    """Return float64 on a GPU, where it is fast enough and float32 products may use TF32 (ten bits), else float32."""
    return torch.float64 if device.type == "cuda" else torch.float32


def _normalized_chunks(images: Tensor, device: torch.device, dtype: torch.dtype) -> Iterator[Tensor]:
    for chunk in images.split(CHUNK_ROWS):
        yield normalize_contrast(chunk.to(device).to(dtype)).flatten(1)  # cast after the copy: fewer bytes


class ScaleWarning(UserWarning):
    """Columns are far from unit size, are constant, or have another scale than the training rows."""


def check_scale(X: NDArray[Any], columns: Sequence[str] | None = None, *, stacklevel: int = 3) -> None:
    """Warn if the scale of training rows would keep a ladder from learning.

    A ladder adds noise with a deviation of about 0.3 to its input and reconstructs the input. Compared with values up
    to 255 that noise is negligible; differences of 0.001 are lost in it.

    Parameters
    ----------
    X : ndarray of shape (n, ...)
        Finite numbers; all dimensions except the first are columns.
    columns : sequence of str, optional
        Column names for the warnings.
    stacklevel : int, default=3
        As for `warnings.warn`.

    Raises
    ------
    ValueError
        If every column is constant.

    Warns
    -----
    ScaleWarning
        If the values look like unscaled pixels or counts, or otherwise if columns are far from unit size. Also if
        columns are constant at a value other than zero.
    """
    X = X.reshape(len(X), -1)
    mean, deviation, lowest, highest = _statistics(X)
    varying = highest > lowest
    if not varying.any():
        raise ValueError(
            f"Each of the {X.shape[1]} columns has the same value in all {len(X)} rows, as float32, so nothing can be "
            "learned. Check how the rows were read, and scale tiny values or subtract the mean of large ones."
        )
    messages = []
    far = _far_from_unit_size(X, mean, deviation, varying)
    if _looks_like_pixels(X, lowest, highest, deviation):
        low, high = float(lowest.min()), float(highest.max())
        messages.append(
            f"The values range from {low:g} to {high:g}, like pixels or counts that were not scaled. Divide them by "
            f"{pixel_scale(high):g}, or set preprocess='standardize'."
        )
    elif far.any():
        messages.append(
            f"Columns are far from unit size: {_listed(far, mean, deviation, columns)}. Scale them with "
            "preprocess='standardize'."
        )
    constant = ~varying & (lowest != 0)
    if constant.any():
        messages.append(
            f"Columns are constant: {_listed(constant, mean, deviation, columns)}. Drop them, for example with "
            "scikit-learn's VarianceThreshold or tikas train --ignore."
        )
    for message in messages:
        warnings.warn(message, ScaleWarning, stacklevel=stacklevel)


def choose_scaling(X: NDArray[Any], *, images: bool) -> Literal["none", "pixels", "standardize"]:
    """Return the transform that rows need: none if `check_scale` would not warn of their scale.

    Parameters
    ----------
    X : ndarray of shape (n, ...)
        Finite numbers; all dimensions except the first are columns.
    images : bool
        Whether the columns are channels of images.
    """
    X = X.reshape(len(X), -1)
    mean, deviation, lowest, highest = _statistics(X)
    varying = highest > lowest
    if not varying.any():
        return "none"
    if _looks_like_pixels(X, lowest, highest, deviation):
        return "pixels" if images or X.shape[1] >= MIN_PIXELS else "standardize"
    return "standardize" if _far_from_unit_size(X, mean, deviation, varying).any() else "none"


def pixel_scale(highest: float) -> float:
    """Return what pixels up to `highest` are divided by."""
    return 255.0 if 128 < highest <= 255 else highest if highest > 0 else 1.0


def _statistics(
    X: NDArray[Any],
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[Any], NDArray[Any]]:
    """Return mean, deviation, lowest and highest value of each column."""
    mean = X.mean(axis=0, dtype=np.float64)
    squares = np.zeros(X.shape[1])
    for part in _parts(X):  # a float64 copy of all rows might not fit into memory
        squares += np.square(part - mean).sum(axis=0)
    return mean, np.sqrt(squares / len(X)), X.min(axis=0), X.max(axis=0)


def _looks_like_pixels(
    X: NDArray[Any], lowest: NDArray[Any], highest: NDArray[Any], deviation: NDArray[np.float64]
) -> bool:
    """Return whether values start at zero or are whole numbers, and most columns reach half of a maximum up to 255."""
    low, high = lowest.min(), highest.max()
    varying = highest > lowest
    if low < 0 or high > 255 or deviation.max() <= 2 or (highest[varying] >= high / 2).mean() <= 0.5:
        return False
    return bool(low <= high / 100) or all(np.all(np.rint(part) == part) for part in _parts(X))


def _parts(X: NDArray[Any]) -> Iterator[NDArray[Any]]:
    for start in range(0, len(X), SCALE_CHUNK_ROWS):
        yield X[start : start + SCALE_CHUNK_ROWS]


def _far_from_unit_size(
    X: NDArray[Any], mean: NDArray[np.float64], deviation: NDArray[np.float64], varying: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Return which columns are too large or too small compared with a ladder's noise."""
    largest = deviation.max()
    if largest < 0.01:
        return varying
    far = varying & ((deviation > 10) | (np.abs(mean) > 10 * deviation + 10))
    # Columns much smaller than the largest have no effect beside it. But rare indicators (0 or 1) may be small.
    if largest > 100 * np.median(deviation[varying]) and not all(
        np.all((part == 0) | (part == 1)) for part in _parts(X)
    ):
        far |= varying & (deviation < min(largest / 100, 0.1))
    return np.asarray(far)


def _listed(
    chosen: NDArray[np.bool_],
    mean: NDArray[np.float64],
    deviation: NDArray[np.float64],
    columns: Sequence[str] | None,
) -> str:
    """Return the names, means and deviations of the first chosen columns."""
    indices = np.flatnonzero(chosen).tolist()
    described = [f"{_name(i, columns)} (mean {mean[i]:.3g}, deviation {deviation[i]:.3g})" for i in indices[:MAX_NAMED]]
    return ", ".join(described) + (f" and {len(indices) - MAX_NAMED} more" if len(indices) > MAX_NAMED else "")


def _name(column: int, columns: Sequence[str] | None) -> str:
    return f"X[:, {column}]" if columns is None else repr(str(columns[column]))


class NotedRange:
    """Smallest and largest value of each column of rows that pass in chunks; raises ValueError if one is not finite.

    Parameters
    ----------
    chunks : iterable of ndarray
    columns : sequence of str
        Column names for the error.
    """

    def __init__(self, chunks: Iterable[NDArray[np.float32]], columns: Sequence[str] = ()) -> None:
        self.chunks, self.columns = chunks, columns
        self.lowest: NDArray[np.float32] = np.full((), np.inf, np.float32)
        self.highest: NDArray[np.float32] = np.full((), -np.inf, np.float32)

    def __iter__(self) -> Iterator[Tensor]:
        first_row = 0
        for chunk in self.chunks:
            lowest, highest = chunk.min(0), chunk.max(0)  # NaN if one of the values is
            if not (np.isfinite(lowest).all() and np.isfinite(highest).all()):
                row, *place = np.argwhere(~np.isfinite(chunk))[0].tolist()
                name = f"column {self.columns[place[0]]!r}" if self.columns else f"position {tuple(place)}"
                raise ValueError(
                    f"Input X contains NaN, infinity or a value too large for dtype('float32'), first in row "
                    f"{first_row + row}, {name}. Fill in missing values, or leave out the column or these rows."
                )
            self.lowest, self.highest = np.minimum(self.lowest, lowest), np.maximum(self.highest, highest)
            first_row += len(chunk)
            yield torch.from_numpy(chunk)

    def bounds(self) -> NDArray[np.float32]:
        """Return two rows: the smallest and the largest value of every column."""
        return np.stack([self.lowest, self.highest])


def value_range(
    X: NDArray[Any], preprocess: str, earlier: tuple[float, float] | None = None
) -> tuple[float, float] | None:
    """Return the smallest and largest value of transformed training rows and of the range `earlier`; None if whitened.

    Whitening removes brightness and contrast, so another scale cannot be recognized after it.
    """
    if preprocess == "whiten":
        return None
    lowest, highest = float(X.min()), float(X.max())
    return (lowest, highest) if earlier is None else (min(lowest, earlier[0]), max(highest, earlier[1]))


def warn_other_scale(
    X: NDArray[Any],
    training_range: tuple[float, float],
    columns: Sequence[str] | None = None,
    *,
    standardized: bool = False,
    stacklevel: int = 2,
) -> None:
    """Warn if rows to predict have another scale than the training rows.

    They have if half of them lie far outside the range of the training rows (farther for a few rows, which may be
    outliers), or if they are images and every channel covers only a tiny part of that range.

    Parameters
    ----------
    X : ndarray of shape (n, columns) or (n, channels, height, width)
        At least one row, transformed.
    training_range : tuple of float
        `value_range` of the training rows.
    columns : sequence of str, optional
        Column names for the warning.
    standardized : bool, default=False
        Whether the rows were standardized, for the warning.
    stacklevel : int, default=2
        As for `warnings.warn`.
    """
    lowest, highest = training_range
    width = highest - lowest
    outside = np.maximum(X - highest, lowest - X).reshape(len(X), -1)
    narrow = X.ndim > 2 and 0 < np.ptp(X, (0, *range(2, X.ndim))).max() < NARROW * width
    if np.median(outside.max(1)) <= max(FAR, FAR_SINGLE / len(X)) * width and not narrow:
        return
    transformed = ", standardized as the training rows were," if standardized else ""
    farthest = "" if X.ndim > 2 else f" The farthest column is {_name(int(np.median(outside, 0).argmax()), columns)}."
    warnings.warn(
        f"The rows to predict{transformed} range from {X.min():.3g} to {X.max():.3g}, but the training rows ranged "
        f"from {lowest:.3g} to {highest:.3g}: their scale is different, so predictions are unreliable. Give rows "
        f"in the same units, scaled in the same way as in fit.{farthest}",
        ScaleWarning,
        stacklevel=stacklevel + 1,
    )


def warn_few_rows(rows: int, batch_size: int, stacklevel: int = 2) -> None:
    """Warn if there are fewer rows than a batch has, so that every update uses all of them."""
    if rows < batch_size:
        warnings.warn(
            f"{rows} rows are fewer than a batch of {batch_size}: every update uses all of them. Add unlabeled rows, "
            f"or choose a batch_size of {rows} or less.",
            UserWarning,
            stacklevel=stacklevel + 1,
        )
