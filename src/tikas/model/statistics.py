"""Means and deviations by name: of a batch, and of any number of rows gathered batch by batch."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tikas.model.layout import batch_dims, per_unit, rows_dim

EPSILON = 1e-10


class Statistics(NamedTuple):
    """The mean and the standard deviation of each unit, laid out to broadcast over a batch."""

    mean: Tensor
    deviation: Tensor

    def normalize(self, x: Tensor) -> Tensor:
        """(x - μ) / σ, unit by unit."""
        return (x - self.mean) / self.deviation


def normalize_batches(
    x: Tensor, sizes: Sequence[int], shape: tuple[int, ...]
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """N(x) for batches of `sizes` rows that lie one after another in x, each normalised with its own statistics.

    Returns the normalised rows, and the mean and the deviation of each batch; gradients flow through all of them.
    Neighbours of one size are normalised in one operation.
    """
    rows = rows_dim(shape)
    runs = [(size, len(list(run))) for size, run in groupby(sizes)]
    normalized, means, deviations = [], [], []
    for (size, count), run in zip(runs, torch.split(x, [size * count for size, count in runs], rows), strict=True):
        apart = run.reshape(*run.shape[:rows], count, size, *run.shape[rows:][1:])
        z, mean, deviation = _NormalizeBatch.apply(apart, batch_dims(shape))  # type: ignore[no-untyped-call]
        normalized.append(z.reshape(run.shape))
        means += mean.unbind(rows - 1)
        deviations += deviation.unbind(rows - 1)
    return normalized[0] if len(normalized) == 1 else torch.cat(normalized, rows), means, deviations


class _NormalizeBatch(torch.autograd.Function):
    """z = (x - μ)/σ, σ = sqrt(variance + ε) with the biased variance, and its derivative in closed form.

    With gz, gμ and gσ the gradients that arrive at the three results, and N values a unit,

        gx = (gz - mean(gz) - z mean(gz z))/σ + (gμ + gσ z)/N

    Autograd would find the same through four times as many operations, and on a CPU these small ones are the bill.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, dims: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
        mean = x.mean(dims, keepdim=True)
        centered = x - mean
        deviation = (centered.square().mean(dims, keepdim=True) + EPSILON).sqrt()
        normalized = centered / deviation
        ctx.save_for_backward(normalized, deviation)
        ctx.dims = dims
        return normalized, mean, deviation

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        normalized, deviation = ctx.saved_tensors
        to_normalized, to_mean, to_deviation = gradients
        count = normalized.numel() // deviation.numel()
        offset = to_mean / count - to_normalized.mean(ctx.dims, keepdim=True) / deviation
        slope = to_deviation / count - (to_normalized * normalized).mean(ctx.dims, keepdim=True) / deviation
        return torch.addcmul(torch.addcmul(offset, slope, normalized), to_normalized, 1 / deviation), None


class Gathering:
    """Statistics of more rows than fit in memory: exact, by merging the moments of batches in double precision.

    Chan, Golub and LeVeque's pairwise update, so no large sums of squares are subtracted from each other.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.count = 0
        self.mean: Tensor = torch.zeros((), dtype=torch.float64)
        self.squares: Tensor = torch.zeros((), dtype=torch.float64)

    def add(self, x: Tensor) -> None:
        """Merge the rows of one more batch."""
        dims = batch_dims(self.shape)
        count = 1
        for dim in dims:
            count *= x.shape[dim]
        variance, mean = torch.var_mean(x.double(), dim=dims, correction=0)
        together = self.count + count
        difference = mean - self.mean.to(mean.device)
        self.mean = self.mean.to(mean.device) + difference * (count / together)
        self.squares = (
            self.squares.to(mean.device) + variance * count + difference.square() * (self.count * count / together)
        )
        self.count = together

    def moments(self) -> tuple[Tensor, Tensor]:
        """The mean and the deviation, ``(*members, units)``, in double precision."""
        return self.mean, (self.squares / self.count + EPSILON).sqrt()


def calibrated_statistics(mean: Tensor, deviation: Tensor, shape: tuple[int, ...]) -> Statistics:
    """Statistics that were gathered earlier, laid out to broadcast over a batch."""
    return Statistics(per_unit(mean, shape), per_unit(deviation, shape))
