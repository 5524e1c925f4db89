"""The convolutional rung: convolutions up, mirrored convolutions down, with members in front where there are any."""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional

from tikas.model.dense import product
from tikas.model.rung import Back, NormalizedRung
from tikas.model.specs import Conv

Sides = tuple[int, int]


def convolve(x: Tensor, weight: Tensor, padding: Sides, stride: int = 1) -> Tensor:
    """The convolution of maps ``(*members, rows, channels, height, width)`` with a kernel for every member.

    Parameters
    ----------
    x, weight
        The maps, and the kernels ``(*members, channels out, channels in, height, width)``.
    padding
        Zeros before the first position and after the last one, on either side.

    Examples
    --------
    >>> convolve(torch.ones(2, 5, 1, 8, 8), torch.ones(2, 3, 1, 3, 3), padding=(0, 0)).shape  # two members
    torch.Size([2, 5, 3, 6, 6])
    """
    before, after = padding
    members = weight.shape[:-4]
    if is_product(weight.shape[-1], max(x.shape[-2:]) + before + after, stride):
        return _convolve_by_product(functional.pad(x, (before, after, before, after)), weight, stride)
    if before != after:
        x, before = functional.pad(x, (before, after, before, after)), 0
    convolved = functional.conv2d(
        _fold(x, members), weight.flatten(0, -4), stride=stride, padding=before, groups=prod(members)
    )
    return _unfold(convolved, members, x.shape[:-3])


def spread(x: Tensor, weight: Tensor, padding: Sides, stride: int, sides: Sequence[int]) -> Tensor:
    """The way back of a convolution: every value spread by the kernel over the positions that it was made of.

    That is `convolve` with the mirrored padding, kernel - 1 - `padding`, of values that stand `stride` positions
    apart; but it passes over the zeros between and around them. Positions that the convolution never saw get zero.

    Parameters
    ----------
    padding, stride
        Of the convolution that made the maps `x`.
    sides
        Height and width of the maps that it made them of.

    Examples
    --------
    >>> spread(torch.ones(1, 1, 1, 2), torch.ones(1, 1, 1, 1), padding=(0, 0), stride=2, sides=(1, 4))
    tensor([[[[1., 0., 1., 0.]]]])
    """
    if weight.shape[-1] > max(x.shape[-2:]):
        whole = _spread_by_product(x, weight, stride)
    else:
        members = weight.shape[:-4]
        kernels = weight.flip(-1, -2).transpose(-3, -4).flatten(0, -4)
        folded = functional.conv_transpose2d(_fold(x, members), kernels, stride=stride, groups=prod(members))
        whole = _unfold(folded, members, x.shape[:-3])
    before = padding[0]
    (height, width), (reached_down, reached_right) = sides, whole.shape[-2:]
    return functional.pad(whole, (-before, width + before - reached_right, -before, height + before - reached_down))


def is_product(kernel: int, padded_side: int, stride: int) -> bool:
    """Whether a convolution is better made by a matrix product: of single positions, or of nearly whole maps.

    The side is the longer one, with its padding.
    A kernel with more positions than the maps that it makes is nearly a dense layer, as that of Conv-FC. Convolution
    kernels are not made for these: on a GPU a 26×26 one took thirty times as long as the product.

    Examples
    --------
    >>> is_product(1, 6, stride=1), is_product(26, 28, stride=1), is_product(3, 28, stride=1)
    (True, True, False)
    """
    return kernel == stride == 1 or kernel > (padded_side - kernel) // stride + 1


def _convolve_by_product(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    """The windows of each map as rows of a product."""
    x = x.expand(*weight.shape[:-4], *x.shape[-4:]) if weight.dim() > 4 else x
    windows = _windows(x, weight.shape[-1], stride)
    made = product(windows.flatten(weight.dim() - 4, -2), weight.flatten(-3))
    return made.view(*windows.shape[:-1], -1).movedim(-1, -3)


def _windows(x: Tensor, kernel: int, stride: int) -> Tensor:
    """What a kernel sees at every position that it stands at, ``(*members, rows, height, width, values)``."""
    if kernel == 1:
        return x.movedim(-3, -1)
    return x.unfold(-2, kernel, stride).unfold(-2, kernel, stride).movedim(-5, -3).flatten(-3)


def _spread_by_product(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    """What every position of the few sends to its window, added up where windows overlap."""
    kernel, (height, width) = weight.shape[-1], x.shape[-2:]
    matrix = weight.flip(-1, -2).movedim(-3, -1).flatten(-4, -2)
    rows = x.movedim(-3, -1).flatten(-4 if x.dim() > 3 else 0, -2)
    windows = product(rows, matrix).view(*x.shape[:-3], height, width, -1, kernel, kernel)
    bottom, right = (height - 1) * stride, (width - 1) * stride
    return torch.stack(
        [
            functional.pad(
                windows[..., i, j, :, :, :],
                (j * stride, right - j * stride, i * stride, bottom - i * stride),
            )
            for i in range(height)
            for j in range(width)
        ]
    ).sum(0)


def _fold(x: Tensor, members: Sequence[int]) -> Tensor:
    """Maps with the members among their channels, ``(rows, members * channels, height, width)``: a group for each."""
    if not members:
        return x.flatten(0, -4)
    return x.expand(*members, *x.shape[-4:]).flatten(0, -5).transpose(0, 1).flatten(1, 2)


def _unfold(x: Tensor, members: Sequence[int], batch: Sequence[int]) -> Tensor:
    """What `_fold` did, undone; `batch` are the dimensions in front of the channels before it."""
    if not members:
        return x.reshape(*batch, *x.shape[1:])
    rows, channels, *sides = x.shape
    return x.reshape(rows, *members, channels // prod(members), *sides).movedim(0, len(members))


def reset_kernels(weight: Tensor, generator: torch.Generator | None) -> None:
    """Uniform, of deviation 1/√inputs.

    Examples
    --------
    >>> weight = torch.empty(64, 16, 5, 5)
    >>> reset_kernels(weight, torch.Generator().manual_seed(0))
    >>> round(weight.std().item(), 3), bool(weight.abs().max() <= 3**0.5 * 0.05)
    (0.05, True)
    """
    bound = (3 / weight[0].numel()) ** 0.5
    nn.init.uniform_(weight, -bound, bound, generator=generator)


class ConvBack(Back):
    """V, from a map down to the one that it was made of: ``(channels below, channels above, kernel, kernel)``.

    A plain convolution with the mirrored padding: valid for full, full for valid, same for same. Where that would
    multiply mostly zeros (a stride; a kernel larger than the map), the same sums are made by `spread`.

    Examples
    --------
    >>> back = ConvBack(Conv(32, 5, padding="full"), (32, 32, 32), below=(1, 28, 28))
    >>> back.weight.shape, back(torch.zeros(2, 32, 32, 32)).shape
    (torch.Size([1, 32, 5, 5]), torch.Size([2, 1, 28, 28]))
    """

    def __init__(self, spec: Conv, shape: tuple[int, ...], below: tuple[int, ...]) -> None:
        super().__init__()
        self.spec = spec
        self.sides = below[1:]
        self.sparse = spec.stride > 1 or spec.kernel > max(shape[1:])
        self.weight = nn.Parameter(torch.empty(below[0], shape[0], spec.kernel, spec.kernel))

    def reset(self, generator: torch.Generator | None) -> None:
        reset_kernels(self.weight, generator)

    def forward(self, denoised: Tensor) -> Tensor:
        if self.sparse:
            return spread(denoised, self.weight, self.spec.padded, self.spec.stride, self.sides)
        before, after = self.spec.padded
        return convolve(denoised, self.weight, (self.spec.kernel - 1 - before, self.spec.kernel - 1 - after))


class ConvRung(NormalizedRung):
    """A rung whose way up is a convolution: ``weight`` is W, ``(channels, channels below, kernel, kernel)``.

    Examples
    --------
    >>> rung = ConvRung(Conv(32, 5, padding="full"), (1, 28, 28), top=False, noise=0.3, cost=0.1)
    >>> rung.weight.shape, rung.up(torch.zeros(2, 1, 28, 28)).shape
    (torch.Size([32, 1, 5, 5]), torch.Size([2, 32, 32, 32]))
    """

    def __init__(self, spec: Conv, below: tuple[int, ...], *, top: bool, noise: float, cost: float) -> None:
        super().__init__(spec, below, top=top, noise=noise, cost=cost)
        self.spec = spec
        self.is_product = is_product(spec.kernel, max(below[1:]) + sum(spec.padded), spec.stride)
        self.weight = nn.Parameter(torch.empty(spec.features, below[0], spec.kernel, spec.kernel))

    def add_back(self) -> None:
        self.back = ConvBack(self.spec, self.shape, self.below)

    def reset(self, generator: torch.Generator | None) -> None:
        reset_kernels(self.weight, generator)
        super().reset(generator)

    def up(self, below: Tensor) -> Tensor:
        return convolve(below, self.weight, self.spec.padded, self.spec.stride)
