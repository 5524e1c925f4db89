"""Contrast normalisation and whitening of images: fitted on training images, then one product an image."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod, sqrt
from typing import Self

import torch
from torch import Tensor

CONTRAST = 55 / sqrt(3072)
"""Root mean square of an image's values after `normalize_contrast`: a norm of 55 for the 3072 values of CIFAR-10."""
REGULARIZER = 0.1
"""Added to the variance of every direction, so that those with next to none are not blown up."""
CHUNK_ROWS = 2048
MOST_VALUES = 3 * 64 * 64
"""Of an image to be whitened: the matrix has the square of it, finding it takes the cube."""


def normalize_contrast(images: Tensor) -> Tensor:
    """Give every image the mean zero and the same norm: (x − mean) / (‖x − mean‖ / 55), for 3072 values.

    Parameters
    ----------
    images : Tensor of shape (n, ...)
        The scale of the pixels does not matter. The norm grows with the root of the number of values, so that they
        are of the same size in images of any size.

    Returns
    -------
    Tensor of the same shape
        In single precision, or double if the images are. All zeros for an image whose values are all the same, but for
        rounding.

    Examples
    --------
    >>> import torch
    >>> from tikas.data.whitening import normalize_contrast
    >>> images = torch.rand(2, 3, 32, 32)
    >>> images[1] = 0.7
    >>> normalize_contrast(images).flatten(1).norm(dim=1).round(decimals=3).tolist()
    [55.0, 0.0]
    """
    rows = images.flatten(1).to(_precision(images))
    # In double precision, the mean of one value that is repeated is that value, and nothing is left of the image.
    centred = rows - rows.mean(1, keepdim=True, dtype=torch.float64).to(rows.dtype)
    deviation = torch.linalg.vector_norm(centred, dim=1, keepdim=True, dtype=torch.float64) / sqrt(rows.shape[1])
    constant = deviation <= 1e-6 * rows.abs().amax(1, keepdim=True)
    scale = torch.where(constant, 0, CONTRAST / deviation)
    return (centred * scale.to(rows.dtype)).reshape(images.shape)


@dataclass(frozen=True, eq=False)
class Whitening:
    """Contrast normalisation, then ZCA whitening: z = (C + 0.1·I)^(−1/2) (x − μ).

    μ and C are mean and covariance (1/n) of the contrast-normalised training images. A direction in which these have
    the variance λ is left with the variance λ / (λ + 0.1), and images stay images: of all matrices that whiten, the
    symmetric one changes them least.

    Parameters
    ----------
    mean : Tensor of float32, shape of an image
        μ.
    matrix : Tensor of float32, shape (values, values)
        (C + 0.1·I)^(−1/2), symmetric; `values` is the number of values in an image.

    References
    ----------
    Krizhevsky, Learning multiple layers of features from tiny images, 2009, appendix A.

    Examples
    --------
    >>> import torch
    >>> from tikas.data.whitening import Whitening
    >>> images = torch.rand(500, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    >>> whitening = Whitening.fit(images)
    >>> whitened = whitening(images)
    >>> whitened.shape
    torch.Size([500, 3, 4, 4])
    >>> bool((whitened.mean(0).abs() < 1e-5).all())
    True
    """

    mean: Tensor
    matrix: Tensor

    @classmethod
    def fit(cls, images: Tensor, device: str | torch.device | None = None) -> Self:
        """Fit on training images.

        Parameters
        ----------
        images : Tensor of shape (n, ...)
            Raw images, finite, at least two. They stay where they are, but for a chunk at a time.
        device
            Where to compute, and where the result lies; by default where the images are.

        Raises
        ------
        ValueError
            If there are fewer than two images, or they have too many values to be whitened.
        """
        shape = images.shape[1:]
        if len(images) < 2 or not prod(shape):
            raise ValueError(f"Whitening is fitted on two images or more; got images of shape {tuple(images.shape)}.")
        if prod(shape) > MOST_VALUES:
            raise ValueError(
                f"Images of shape {tuple(shape)} have {prod(shape)} values each; whitening takes images of up to "
                f"{MOST_VALUES}, since its matrix has the square of that. Make the images smaller, or leave "
                f"whitening out (preprocess='none')."
            )
        device = torch.device(device or images.device)
        total = torch.zeros(prod(shape), dtype=torch.float64, device=device)
        products = torch.zeros(prod(shape), prod(shape), dtype=torch.float64, device=device)
        for rows in _normalized_chunks(images, device, _precision_of_products(device)):
            total += rows.sum(0, dtype=torch.float64)
            products += rows.T @ rows
        mean = total / len(images)
        covariance = products.div_(len(images)).sub_(torch.outer(mean, mean))
        variances, directions = torch.linalg.eigh(covariance)
        scaled = directions * (variances.clamp(min=0) + REGULARIZER) ** -0.25
        return cls(mean.float().reshape(shape), (scaled @ scaled.T).float())

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """Whiten raw images of the shape that this was fitted on.

        The result is in single precision, or double if they are, and lies where they do; the products are computed
        where the fit lies.
        """
        if images.shape[1:] != self.mean.shape:
            raise ValueError(
                f"Got images of shape {tuple(images.shape)}; expected (n, {', '.join(map(str, self.mean.shape))}), "
                f"as the whitening was fitted on. Give images of that size, channels first."
            )
        device = self.matrix.device
        precision = torch.promote_types(_precision(images), _precision_of_products(device))
        mean, matrix = self.mean.flatten().to(precision), self.matrix.to(precision)
        whitened = torch.empty(images.shape, dtype=_precision(images), device=images.device)
        chunks = whitened.view(len(images), mean.numel()).split(CHUNK_ROWS)
        for chunk, rows in zip(chunks, _normalized_chunks(images, device, precision), strict=True):
            chunk.copy_((rows - mean) @ matrix)
        return whitened

    def to(self, device: str | torch.device) -> Self:
        """The same whitening with its tensors on another device."""
        return type(self)(self.mean.to(device), self.matrix.to(device))

    def tensors(self) -> dict[str, Tensor]:
        """What it consists of, to be saved; `from_tensors` takes it back."""
        return {"mean": self.mean, "matrix": self.matrix}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """Take back what `tensors` gave.

        Raises
        ------
        ValueError
            If these are not the tensors of a whitening: others, of other shapes, or not finite.

        Examples
        --------
        >>> import torch
        >>> from tikas.data.whitening import Whitening
        >>> images = torch.rand(20, 1, 3, 3)
        >>> whitening = Whitening.fit(images)
        >>> bool((Whitening.from_tensors(whitening.tensors())(images) == whitening(images)).all())
        True
        """
        if tensors.keys() != {"mean", "matrix"}:
            raise ValueError(f"a whitening has the tensors mean and matrix; these are {', '.join(sorted(tensors))}")
        mean, matrix = tensors["mean"], tensors["matrix"]
        if matrix.shape != (mean.numel(), mean.numel()):
            raise ValueError(f"a whitening of images {tuple(mean.shape)} has no matrix of {tuple(matrix.shape)}")
        for tensor in (mean, matrix):
            if tensor.dtype != torch.float32 or not tensor.isfinite().all():
                raise ValueError("the tensors of a whitening are finite numbers in single precision")
        return cls(mean, matrix)


def _precision(images: Tensor) -> torch.dtype:
    return torch.promote_types(images.dtype, torch.float32)


def _precision_of_products(device: torch.device) -> torch.dtype:
    """Double on a GPU, where that is quick enough and single precision may have been set to mean ten bits."""
    return torch.float64 if device.type == "cuda" else torch.float32


def _normalized_chunks(images: Tensor, device: torch.device, dtype: torch.dtype) -> Iterator[Tensor]:
    for chunk in images.split(CHUNK_ROWS):
        yield normalize_contrast(chunk.to(device).to(dtype)).flatten(1)  # cast there: fewer bytes travel
