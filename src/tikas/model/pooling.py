"""The pooling rungs: linear levels without weights, and the copies that lead down from them."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from tikas.model.rung import Back, NormalizedRung
from tikas.model.specs import MaxPool, Pool, RungSpec
from tikas.model.statistics import Statistics

LEAST_DEVIATION = 0.1
"""What ẑ is divided by at least, for the cost of a pooling rung."""


class _Pooling(NormalizedRung):
    """What pooling rungs have in common: below the top, a channel silent in a batch does not blow up their cost.

    Values come to other rungs through products with many inputs, which vary; here they come as they are, and a channel
    of rectified zeros has a deviation of √ε = 1e-5. Its cost would be 10¹⁰ times ẑ², and one such batch undoes what
    was learnt.
    """

    def __init__(self, spec: RungSpec, below: tuple[int, ...], *, top: bool, noise: float, cost: float) -> None:
        super().__init__(spec, below, top=top, noise=noise, cost=cost)
        self.least_deviation = 0.0 if top else LEAST_DEVIATION

    def statistics_of_cost(self, statistics: Statistics) -> Statistics:
        return Statistics(statistics.mean, statistics.deviation.clamp_min(self.least_deviation))


class PoolBack(Back):
    """Every value copied to all positions of its window, and windows that reach beyond the map cut off.

    A position in several windows takes the mean of their values, one in no window zero.

    Examples
    --------
    >>> back = PoolBack(MaxPool(2), below=(1, 1, 3))
    >>> back(torch.tensor([[[[5.0, 7.0]]]]))  # of the second window, half lies on the map
    tensor([[[[5., 5., 7.]]]])
    >>> PoolBack(MaxPool(2, stride=1), below=(1, 1, 3))(torch.tensor([[[[5.0, 7.0]]]]))
    tensor([[[[5., 6., 7.]]]])
    """

    def __init__(self, spec: Pool, below: tuple[int, ...]) -> None:
        super().__init__()
        self.spec = spec
        self.sides = below[1:]

    def forward(self, denoised: Tensor) -> Tensor:
        if self.spec.step == self.spec.size:
            return _fit(_tile(denoised, self.spec.size), self.sides)
        total = self._sum_of_windows(denoised.flatten(0, -3).unsqueeze(1))
        windows = self._sum_of_windows(denoised.new_ones(1, 1, *denoised.shape[-2:]))
        return (total / windows.clamp_min(1)).reshape(*denoised.shape[:-2], *self.sides)

    def _sum_of_windows(self, values: Tensor) -> Tensor:
        """At every position the sum of the values whose windows it lies in, for maps ``(count, 1, height, width)``."""
        ones = values.new_ones(1, 1, self.spec.size, self.spec.size)
        return _fit(functional.conv_transpose2d(values, ones, stride=self.spec.step), self.sides)


def _tile(x: Tensor, size: int) -> Tensor:
    """Every position as a square of `size` times `size` positions; channels stay last in memory if they are."""
    *batch, height, width = x.shape
    return functional.interpolate(x.flatten(0, -4), scale_factor=size).reshape(*batch, height * size, width * size)


def _fit(x: Tensor, sides: Sequence[int]) -> Tensor:
    """Maps cut off, or continued with zeros, to be as large as `sides`."""
    down, right = (side - given for side, given in zip(sides, x.shape[-2:], strict=True))
    return functional.pad(x, (0, right, 0, down)) if down or right else x


class PoolRung(_Pooling):
    """A rung whose way up takes the largest value, or the mean, of every window.

    Examples
    --------
    >>> rung = PoolRung(MaxPool(2), (1, 2, 3), top=False, noise=0.3, cost=0.1)
    >>> rung.up(torch.tensor([[[[1.0, 2.0, 5.0], [3.0, 4.0, 6.0]]]]))
    tensor([[[[4., 6.]]]])
    """

    def __init__(self, spec: Pool, below: tuple[int, ...], *, top: bool, noise: float, cost: float) -> None:
        super().__init__(spec, below, top=top, noise=noise, cost=cost)
        self.spec = spec

    def add_back(self) -> None:
        self.back = PoolBack(self.spec, self.below)

    def up(self, below: Tensor) -> Tensor:
        pool = functional.max_pool2d if isinstance(self.spec, MaxPool) else functional.avg_pool2d
        maps = below.flatten(0, -4)
        pooled = pool(maps, self.spec.size, self.spec.step, ceil_mode=self.spec.rounding == "up")
        return pooled.reshape(*below.shape[:-3], *self.shape)


class GlobalBack(Back):
    """Every channel's value copied to all positions of its map.

    Examples
    --------
    >>> GlobalBack(below=(1, 2, 2))(torch.tensor([[5.0]]))
    tensor([[[[5., 5.],
              [5., 5.]]]])
    """

    def __init__(self, below: tuple[int, ...]) -> None:
        super().__init__()
        self.sides = below[1:]

    def forward(self, denoised: Tensor) -> Tensor:
        return denoised[..., None, None].expand(*denoised.shape, *self.sides)


class GlobalRung(_Pooling):
    """A rung whose way up is the mean of every channel's map.

    Examples
    --------
    >>> from tikas.model.specs import GlobalMeanPool
    >>> rung = GlobalRung(GlobalMeanPool(), (1, 2, 2), top=True, noise=0.3, cost=0.1)
    >>> rung.up(torch.tensor([[[[1.0, 2.0], [3.0, 6.0]]]]))
    tensor([[3.]])
    """

    def add_back(self) -> None:
        self.back = GlobalBack(self.below)

    def up(self, below: Tensor) -> Tensor:
        return torch.mean(below, (-2, -1))
