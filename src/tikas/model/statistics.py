"""Means and deviations by name: of a batch, and of any number of rows gathered batch by batch."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from tikas.model.layout import batch_dims

EPSILON = 1e-10


class Statistics(NamedTuple):
    """The mean and the standard deviation of each unit, laid out to broadcast over a batch.

    Examples
    --------
    >>> statistics = Statistics(mean=torch.tensor([[2.0, 0.0]]), deviation=torch.tensor([[1.0, 10.0]]))
    >>> statistics.normalize(torch.tensor([[1.0, 10.0], [3.0, -10.0]]))
    tensor([[-1.,  1.],
            [ 1., -1.]])
    """

    mean: Tensor
    deviation: Tensor

    def normalize(self, x: Tensor) -> Tensor:
        """(x - μ) / σ, unit by unit."""
        return (x - self.mean) / self.deviation


def normalize(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """N(x), a batch normalised with its own statistics, in float32 at least.

    Examples
    --------
    >>> normalize(torch.tensor([[1.0], [3.0]]), shape=(1,))
    tensor([[-1.],
            [ 1.]])
    """
    x = _precise(x)
    if x.dim() == 1 + len(shape):
        return torch.batch_norm(x, None, None, None, None, True, 0.0, EPSILON, False)
    return normalize_with_statistics(x, shape)[0]


def normalize_with_statistics(x: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, Statistics]:
    """N(x) and the statistics that it was normalised with; gradients flow through all three.

    Examples
    --------
    >>> normalized, statistics = normalize_with_statistics(torch.tensor([[1.0], [3.0]]), shape=(1,))
    >>> normalized.flatten(), statistics.mean, statistics.deviation
    (tensor([-1.,  1.]), tensor([[2.]]), tensor([[1.]]))
    """
    normalized, mean, deviation = _NormalizeBatch.apply(_precise(x), batch_dims(shape))  # type: ignore[no-untyped-call]
    return normalized, Statistics(mean, deviation)


def _precise(x: Tensor) -> Tensor:
    """What a product in half precision gave; a mean and a deviation of it need more digits than it has."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


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


MOST_AT_ONCE = 2**18
"""Values that a CPU takes the moments of at once, in two passes over them while they are in its caches:
`torch.var_mean` takes several times as long there."""


class Gathering:
    """Statistics of more rows than fit in memory: exact, by merging the moments of batches in double precision.

    Chan, Golub and LeVeque's pairwise update, so no large sums of squares are subtracted from each other.

    Parameters
    ----------
    shape
        Of a row.

    Examples
    --------
    >>> gathering = Gathering(shape=(1,))
    >>> for rows in ([[1.0], [2.0]], [[6.0]]):
    ...     gathering.add(torch.tensor(rows))
    >>> [round(float(moment), 4) for moment in gathering.moments()]
    [3.0, 2.1602]
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.count = 0
        self.mean: Tensor = torch.zeros((), dtype=torch.float64, device="cpu")  # a number, which any device takes
        self.squares: Tensor = self.mean

    def add(self, x: Tensor) -> None:
        """Merge the rows of one more batch."""
        dims = batch_dims(self.shape)
        if x.is_cuda:
            self._merge(*torch.var_mean(x.double(), dims, correction=0), x.numel())
            return
        for rows in x.split(max(1, MOST_AT_ONCE * x.shape[dims[0]] // x.numel()), dims[0]):
            values = rows.double()
            mean = values.mean(dims, keepdim=True)
            self._merge((values - mean).square_().mean(dims), mean.squeeze(dims), values.numel())

    def _merge(self, variance: Tensor, mean: Tensor, values: int) -> None:
        count = values // mean.numel()
        together = self.count + count
        difference = mean - self.mean
        self.mean = self.mean + difference * (count / together)
        self.squares = self.squares + variance * count + difference.square() * (self.count * count / together)
        self.count = together

    def moments(self) -> tuple[Tensor, Tensor]:
        """The mean and the deviation, ``(*members, units)``, in double precision."""
        return self.mean, (self.squares / self.count + EPSILON).sqrt()
