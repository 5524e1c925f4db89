"""Columns of any scale brought to mean zero and deviation one, as fitted on training rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

CONSTANT = 1e-6
"""A column whose deviation is less than this share of its largest value is constant, but for rounding."""


@dataclass(frozen=True, eq=False)
class Standardization:
    """z = (x - μ) / σ, column by column; for images channel by channel.

    A column that is the same in all training rows becomes zero in these, and is not scaled in others. One of numbers so
    large that it is hardly more than their rounding is never made larger.

    Parameters
    ----------
    mean, deviation : Tensor of float64, shape of a row
        μ and σ. In double precision: of large numbers that vary little, such as years, single precision would leave
        nothing.

    Examples
    --------
    >>> import torch
    >>> from tikas.data.standardization import Standardization
    >>> rows = torch.tensor([[1990.0, 5.0], [2010.0, 5.0]])
    >>> standardization = Standardization.fit(rows)
    >>> standardization(rows)
    tensor([[-1.,  0.],
            [ 1.,  0.]])
    """

    mean: Tensor
    deviation: Tensor

    @classmethod
    def fit(cls, rows: Tensor, device: str | torch.device | None = None) -> Self:
        """Fit on training rows, ``(n, columns)`` or ``(n, channels, height, width)``, finite, at least two."""
        if len(rows) < 2:
            raise ValueError(f"Columns are standardised by two rows or more; got rows of shape {tuple(rows.shape)}.")
        given = rows.to(device or rows.device).double()
        dims = (0, *range(2, given.dim()))
        deviation, mean = torch.std_mean(given, dims, correction=0, keepdim=True)
        constant = deviation <= CONSTANT * given.abs().amax(dims, keepdim=True)
        deviation = torch.where(constant, deviation.clamp(min=1.0), deviation)  # of seconds since 1970 it may be 1000
        return cls(*(each[0].expand(given.shape[1:]).contiguous() for each in (mean, deviation)))

    @torch.no_grad()
    def __call__(self, rows: Tensor) -> Tensor:
        """Rows of the shape that this was fitted on; in single precision, or double if they are, where they lie."""
        if rows.shape[1:] != self.mean.shape:
            raise ValueError(
                f"Got rows of shape {tuple(rows.shape)}; expected (n, {', '.join(map(str, self.mean.shape))}), as the "
                "standardisation was fitted on."
            )
        mean, deviation = self.mean.to(rows.device), self.deviation.to(rows.device)
        return ((rows - mean) / deviation).to(torch.promote_types(rows.dtype, torch.float32))

    def to(self, device: str | torch.device) -> Self:
        """The same with its tensors on another device."""
        return type(self)(self.mean.to(device), self.deviation.to(device))

    def tensors(self) -> dict[str, Tensor]:
        """What it consists of, to be saved; `from_tensors` takes it back."""
        return {"mean": self.mean, "deviation": self.deviation}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """Take back what `tensors` gave.

        Raises
        ------
        ValueError
            If these are not the tensors of a standardisation.

        Examples
        --------
        >>> import torch
        >>> from tikas.data.standardization import Standardization
        >>> rows = torch.rand(20, 3)
        >>> fitted = Standardization.fit(rows)
        >>> bool((Standardization.from_tensors(fitted.tensors())(rows) == fitted(rows)).all())
        True
        """
        if tensors.keys() != {"mean", "deviation"}:
            raise ValueError(f"a standardisation has a mean and a deviation; these are {', '.join(sorted(tensors))}")
        mean, deviation = tensors["mean"], tensors["deviation"]
        if mean.shape != deviation.shape:
            raise ValueError(f"a mean of shape {tuple(mean.shape)} has no deviation of {tuple(deviation.shape)}")
        for tensor in (mean, deviation):
            if tensor.dtype != torch.float64 or not tensor.isfinite().all():
                raise ValueError("the tensors of a standardisation are finite numbers in double precision")
        if not (deviation > 0).all():
            raise ValueError("the deviations of a standardisation are positive")
        return cls(mean, deviation)
