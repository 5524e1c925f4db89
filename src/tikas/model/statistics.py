"""Means and deviations by name: of a batch, and of any number of rows gathered batch by batch."""

from typing import NamedTuple

import torch
from torch import Tensor

from tikas.model.layout import batch_dims, per_unit

EPSILON = 1e-10


class Statistics(NamedTuple):
    """The mean and the standard deviation of each unit, laid out to broadcast over a batch."""

    mean: Tensor
    deviation: Tensor

    def normalize(self, x: Tensor) -> Tensor:
        """(x - μ) / σ, unit by unit."""
        return (x - self.mean) / self.deviation


def batch_statistics(x: Tensor, shape: tuple[int, ...]) -> Statistics:
    """The statistics of one batch, σ = sqrt(variance + ε) with the biased variance; gradients flow through both."""
    variance, mean = torch.var_mean(x, dim=batch_dims(shape), correction=0, keepdim=True)
    return Statistics(mean, (variance + EPSILON).sqrt())


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
