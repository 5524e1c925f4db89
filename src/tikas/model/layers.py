"""The modules built from rung specs: encoder and decoder operation, normalization, noise and activation of a level.

A single ladder and a packed ensemble run the same code: see `tikas.model.normalization` for the shapes.
"""

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any, ClassVar, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from tikas.model.denoisers import Denoiser
from tikas.model.normalization import (
    Processes,
    Statistics,
    normalize,
    normalize_together,
    normalize_with_statistics,
    per_member,
    per_unit,
)
from tikas.model.specs import Conv, Dense, GlobalMeanPool, MaxPool, MeanPool, Pool, RungSpec

MIN_POOL_DEVIATION = 0.1
"""Smallest deviation that ẑ is divided by in the cost of a pooling rung below the top.

Other levels are weighted sums of many inputs, which always vary. But a channel that is zero in a whole batch has a
deviation of √ε = 1e-5 after pooling: its cost would be 10¹⁰ ẑ², and one such batch would ruin the weights.
"""


class Activation(NamedTuple):
    """The function φ in h = φ(γ·(z + β)), and whether γ and β exist: where they are not redundant."""

    name: str
    function: Callable[[Tensor], Tensor]
    scale: bool
    bias: bool


def _identity(x: Tensor) -> Tensor:
    return x


ACTIVATIONS: dict[str, Activation] = {
    "relu": Activation("relu", functional.relu, scale=False, bias=True),
    "leaky_relu": Activation("leaky_relu", partial(functional.leaky_relu, negative_slope=0.1), scale=False, bias=True),
    "tanh": Activation("tanh", torch.tanh, scale=True, bias=True),
    "gelu": Activation("gelu", functional.gelu, scale=True, bias=True),
    "linear": Activation("linear", _identity, scale=False, bias=False),
}


def _activation_of(spec: RungSpec, *, top: bool) -> Activation:
    """Return the activation of a rung. The top is linear (its softmax is part of the cost), with β and by default γ."""
    if top:
        return Activation("linear", _identity, scale=getattr(spec, "scale", True), bias=True)
    if isinstance(spec, Dense | Conv):
        return ACTIVATIONS[spec.activation or "relu"]
    return ACTIVATIONS["linear"]


class Back(nn.Module):
    """The decoder operation from a level to the one below it: V ẑ. This base class has no weights."""

    def __init__(self, spec: RungSpec, below: tuple[int, ...]) -> None:
        super().__init__()
        self.spec = spec
        self.below = below

    def reset(self, generator: torch.Generator | None) -> None:
        """Draw the initial weights."""

    def forward(self, denoised: Tensor) -> Tensor:
        """Return V ẑ, in the shape of the level below."""
        raise NotImplementedError


class Rung(nn.Module):
    """One level of a ladder. This base class is the input level, without encoder operation and normalization.

    Attributes
    ----------
    shape
        Shape of a row at this level.
    activation
        φ, applied to γ·(z + β).
    noise, cost
        Standard deviation of the noise, and λ. Tensors ``(members,)`` where the members of a packed ensemble differ.
    beta, gamma
        β and γ, or None.
    denoiser, back
        g, and the decoder operation from this level to the one below it. None if no cost needs them.
    """

    noise: float | Tensor
    cost: float | Tensor
    mean: Tensor
    deviation: Tensor
    beta: Tensor | None
    gamma: Tensor | None

    def __init__(
        self,
        shape: tuple[int, ...],
        *,
        activation: Activation = ACTIVATIONS["linear"],
        noise: float = 0.0,
        cost: float = 0.0,
    ) -> None:
        super().__init__()
        self.shape = shape
        self.activation = activation
        self.noise = noise
        self.cost = cost
        self.register_parameter("beta", nn.Parameter(torch.zeros(shape[0])) if activation.bias else None)
        self.register_parameter("gamma", nn.Parameter(torch.ones(shape[0])) if activation.scale else None)
        self.denoiser: Denoiser | None = None
        self.back: Back | None = None

    def extra_repr(self) -> str:
        return f"shape={self.shape}, noise={self.noise}, cost={self.cost}"

    def add_back(self) -> None:
        """Add the decoder operation."""
        raise NotImplementedError

    def reset(self, generator: torch.Generator | None) -> None:
        """Set the initial values of all parameters."""
        if self.beta is not None:
            nn.init.zeros_(self.beta)
        if self.gamma is not None:
            nn.init.ones_(self.gamma)
        if self.denoiser is not None:
            self.denoiser.reset()
        if self.back is not None:
            self.back.reset(generator)

    def up(self, hidden: Tensor) -> Tensor:
        """Return z_pre = W h for h of the level below; the input level returns the rows unchanged."""
        return hidden

    def set_statistics(self, statistics: Statistics) -> None:
        """Set the statistics that eval mode normalizes with."""
        raise NotImplementedError

    def normalize(
        self,
        batches: Sequence[Tensor],
        *,
        clean: bool,  # noqa: ARG002
        processes: Processes | None = None,  # noqa: ARG002
    ) -> tuple[Sequence[Tensor], Statistics | None]:
        """Normalize z_pre of each batch with the statistics of that batch; those of the last are returned if `clean`.

        `processes` are those that share the batches.
        """
        return batches, None

    def normalize_calibrated(self, projected: Tensor) -> Tensor:
        """Normalize z_pre with the statistics that `Ladder.calibrate` set."""
        return projected

    def normalize_denoised(self, denoised: Tensor, statistics: Statistics | None) -> Tensor:  # noqa: ARG002
        """Return ẑ_BN = (ẑ − μ)/σ, with the statistics of the clean batch."""
        return denoised

    def corrupt(self, clean: Tensor, noise: Tensor) -> Tensor:
        """Add standard-normal noise, multiplied by this level's deviation."""
        if isinstance(self.noise, Tensor):
            return torch.addcmul(clean, per_member(self.noise, self.shape), noise)
        return torch.add(clean, noise, alpha=self.noise)

    def activate(self, latent: Tensor) -> Tensor:
        """Return h = φ(γ·(z + β))."""
        if self.beta is not None:
            latent = latent + per_unit(self.beta, self.shape)
        if self.gamma is not None:
            latent = per_unit(self.gamma, self.shape) * latent
        return self.activation.function(latent)


class NormalizedRung(Rung):
    """A level above the input: W h is normalized per unit, or on maps per channel."""

    back_type: ClassVar[type[Back]]

    def __init__(self, spec: RungSpec, below: tuple[int, ...], *, top: bool, noise: float, cost: float) -> None:
        super().__init__(spec.shape(below), activation=_activation_of(spec, top=top), noise=noise, cost=cost)
        self.spec = spec
        self.below = below
        self.is_hidden_pool = isinstance(spec, Pool | GlobalMeanPool) and not top
        self.register_buffer("mean", torch.zeros(self.shape[0]))
        self.register_buffer("deviation", torch.ones(self.shape[0]))

    def add_back(self) -> None:
        self.back = self.back_type(self.spec, self.below)

    def normalize(
        self, batches: Sequence[Tensor], *, clean: bool, processes: Processes | None = None
    ) -> tuple[Sequence[Tensor], Statistics | None]:
        if processes is not None:
            results = normalize_together(batches, self.shape, processes)
            return [normalized for normalized, _ in results], results[-1][1]
        if not clean:
            return [normalize(batch, self.shape) for batch in batches], None
        *corrupted, last = batches
        normalized, statistics = normalize_with_statistics(last, self.shape)
        return [*(normalize(batch, self.shape) for batch in corrupted), normalized], statistics

    def normalize_calibrated(self, projected: Tensor) -> Tensor:
        return Statistics(per_unit(self.mean, self.shape), per_unit(self.deviation, self.shape)).normalize(projected)

    def normalize_denoised(self, denoised: Tensor, statistics: Statistics | None) -> Tensor:
        assert statistics is not None
        if self.is_hidden_pool:
            statistics = Statistics(statistics.mean, statistics.deviation.clamp_min(MIN_POOL_DEVIATION))
        return statistics.normalize(denoised)

    def set_statistics(self, statistics: Statistics) -> None:
        self.mean.copy_(statistics.mean)
        self.deviation.copy_(statistics.deviation)


# Dense


def product(x: Tensor, weight: Tensor) -> Tensor:
    """Return x Wᵀ, also with members: ``(members, rows, in)`` and ``(members, out, in)``. In bf16 if the weight is."""
    if weight.dtype == torch.bfloat16 != x.dtype:
        return product(x.bfloat16(), weight).to(x.dtype)
    return x @ weight.mT if x.dim() == 2 else cast("Tensor", _Product.apply(x, weight))  # type: ignore[no-untyped-call]


class _Product(torch.autograd.Function):
    """x Wᵀ with the gradient of W in the memory layout of W.

    With a member dimension, autograd returns it transposed; copying all gradients to that layout took a fifth of an
    ensemble's update on a GPU.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight.mT

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        (grad,) = gradients
        grad_x, grad_weight = grad @ weight.to(grad.dtype), grad.mT @ x.to(grad.dtype)
        return grad_x.to(x.dtype), grad_weight.to(weight.dtype)  # under autocast the dtypes differ


def reset_dense_weight(weight: Tensor, generator: torch.Generator | None) -> None:
    """Draw normal weights with deviation 1/√inputs."""
    nn.init.normal_(weight, std=weight.shape[-1] ** -0.5, generator=generator)


class DenseBack(Back):
    """V of a dense rung, ``(units below, units above)``. The result is reshaped to the level below."""

    def __init__(self, spec: Dense, below: tuple[int, ...]) -> None:
        super().__init__(spec, below)
        self.weight = nn.Parameter(torch.empty(prod(below), spec.features))

    def reset(self, generator: torch.Generator | None) -> None:
        reset_dense_weight(self.weight, generator)

    def forward(self, denoised: Tensor) -> Tensor:
        return product(denoised, self.weight).reshape(*denoised.shape[:-1], *self.below)


class DenseRung(NormalizedRung):
    """A fully connected level; ``weight`` is W, ``(units, units below)``."""

    back_type = DenseBack

    def __init__(self, spec: Dense, below: tuple[int, ...], *, top: bool, noise: float, cost: float) -> None:
        super().__init__(spec, below, top=top, noise=noise, cost=cost)
        self.weight = nn.Parameter(torch.empty(spec.features, prod(below)))

    def reset(self, generator: torch.Generator | None) -> None:
        reset_dense_weight(self.weight, generator)
        super().reset(generator)

    def up(self, hidden: Tensor) -> Tensor:
        return product(hidden.flatten(-len(self.below)), self.weight)


# Convolutions


def convolve(x: Tensor, weight: Tensor, zeros: tuple[int, int], stride: int = 1) -> Tensor:
    """Convolve maps ``(*members, rows, channels, height, width)`` with each member's own kernels.

    `weight` is ``(*members, channels out, channels in, kernel, kernel)``; `zeros` are the numbers of zeros before
    and after each side. Members become groups of one convolution.
    """
    before, after = zeros
    members = weight.shape[:-4]
    if is_product(weight.shape[-1], max(x.shape[-2:]) + before + after, stride):
        return _convolve_by_product(functional.pad(x, (before, after, before, after)), weight, stride)
    if before != after:
        x, before = functional.pad(x, (before, after, before, after)), 0
    convolved = functional.conv2d(
        _members_to_channels(x, members), weight.flatten(0, -4), stride=stride, padding=before, groups=prod(members)
    )
    return _channels_to_members(convolved, members, x.shape[:-3])


def transposed_convolve(
    x: Tensor, weight: Tensor, zeros: tuple[int, int], stride: int, sides: tuple[int, ...]
) -> Tensor:
    """Convolve transposed, from maps ``(*members, rows, channels, h, w)`` to maps with `sides`, ``(height, width)``.

    `zeros` and `stride` are those of the convolution in the other direction. Equals `convolve` with mirrored zeros on
    maps whose values are `stride` positions apart, without multiplying the zeros. Positions in no window get zero.
    """
    if weight.shape[-1] > max(x.shape[-2:]):
        whole = _transpose_by_product(x, weight, stride)
    else:
        members = weight.shape[:-4]
        kernels = weight.flip(-1, -2).transpose(-3, -4).flatten(0, -4)
        folded = functional.conv_transpose2d(
            _members_to_channels(x, members), kernels, stride=stride, groups=prod(members)
        )
        whole = _channels_to_members(folded, members, x.shape[:-3])
    before = zeros[0]
    (height, width), (whole_height, whole_width) = sides, whole.shape[-2:]
    return functional.pad(whole, (-before, width + before - whole_width, -before, height + before - whole_height))


def is_product(kernel: int, padded_side: int, stride: int) -> bool:
    """Return whether a convolution is faster as a matrix product: with 1×1 kernels, or kernels nearly as large as maps.

    `padded_side` is the longer side, with its zeros. A kernel with more positions than the map that it makes is nearly
    a dense layer; on a GPU the 26×26 kernel of Conv-FC took thirty times as long without the product.
    """
    return kernel == stride == 1 or kernel > (padded_side - kernel) // stride + 1


def _convolve_by_product(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    """Convolve with one matrix product over the windows of all maps."""
    kernel = weight.shape[-1]
    if kernel == 1:
        windows = x.movedim(-3, -1)
    else:
        windows = x.unfold(-2, kernel, stride).unfold(-2, kernel, stride).movedim(-5, -3).flatten(-3)
    # windows: (*members, rows, height, width, channels * kernel * kernel)
    convolved = product(windows.flatten(weight.dim() - 4, -2), weight.flatten(-3))
    return convolved.view(*windows.shape[:-1], -1).movedim(-1, -3)


def _transpose_by_product(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    """Compute the window of each position with one matrix product, and sum up the overlapping windows."""
    kernel, (height, width) = weight.shape[-1], x.shape[-2:]
    matrix = weight.flip(-1, -2).movedim(-3, -1).flatten(-4, -2)
    positions = x.movedim(-3, -1).flatten(-4 if x.dim() > 3 else 0, -2)
    windows = product(positions, matrix).view(*x.shape[:-3], height, width, -1, kernel, kernel)
    bottom, right = (height - 1) * stride, (width - 1) * stride
    shifted = []
    for i in range(height):
        for j in range(width):
            margins = (j * stride, right - j * stride, i * stride, bottom - i * stride)
            shifted.append(functional.pad(windows[..., i, j, :, :, :], margins))
    return torch.stack(shifted).sum(0)


def _members_to_channels(x: Tensor, members: Sequence[int]) -> Tensor:
    """Reshape ``(*members, rows, channels, h, w)`` to ``(rows, members * channels, h, w)``, one group per member."""
    if not members:
        return x.flatten(0, -4)
    return x.flatten(0, -5).transpose(0, 1).flatten(1, 2)


def _channels_to_members(x: Tensor, members: Sequence[int], batch: Sequence[int]) -> Tensor:
    """Undo `_members_to_channels`; `batch` are the sizes of the dimensions before the channels."""
    if not members:
        return x.reshape(*batch, *x.shape[1:])
    rows, channels, *sides = x.shape
    return x.reshape(rows, *members, channels // prod(members), *sides).movedim(0, len(members))


def _reset_kernels(weight: Tensor, generator: torch.Generator | None) -> None:
    """Draw uniform weights with deviation 1/√inputs."""
    bound = (3 / weight[0].numel()) ** 0.5
    nn.init.uniform_(weight, -bound, bound, generator=generator)


class ConvBack(Back):
    """V of a convolution, ``(channels below, channels above, kernel, kernel)``: a convolution with mirrored padding.

    Where that would multiply mostly zeros (a stride, or a kernel larger than the map), a transposed convolution
    computes the same sums.
    """

    spec: Conv

    def __init__(self, spec: Conv, below: tuple[int, ...]) -> None:
        super().__init__(spec, below)
        self.transposed = spec.stride > 1 or spec.kernel > max(spec.shape(below)[1:])
        self.weight = nn.Parameter(torch.empty(below[0], spec.features, spec.kernel, spec.kernel))

    def reset(self, generator: torch.Generator | None) -> None:
        _reset_kernels(self.weight, generator)

    def forward(self, denoised: Tensor) -> Tensor:
        if self.transposed:
            return transposed_convolve(denoised, self.weight, self.spec.zeros, self.spec.stride, self.below[1:])
        before, after = self.spec.zeros
        return convolve(denoised, self.weight, (self.spec.kernel - 1 - before, self.spec.kernel - 1 - after))


class ConvRung(NormalizedRung):
    """A convolutional level; ``weight`` is W, ``(channels, channels below, kernel, kernel)``.

    `is_product`: whether the convolution is computed as a matrix product.
    """

    spec: Conv
    back_type = ConvBack

    def __init__(self, spec: Conv, below: tuple[int, ...], *, top: bool, noise: float, cost: float) -> None:
        super().__init__(spec, below, top=top, noise=noise, cost=cost)
        self.is_product = is_product(spec.kernel, max(below[1:]) + sum(spec.zeros), spec.stride)
        self.weight = nn.Parameter(torch.empty(spec.features, below[0], spec.kernel, spec.kernel))

    def reset(self, generator: torch.Generator | None) -> None:
        _reset_kernels(self.weight, generator)
        super().reset(generator)

    def up(self, hidden: Tensor) -> Tensor:
        return convolve(hidden, self.weight, self.spec.zeros, self.spec.stride)


# Pooling


class PoolBack(Back):
    """Copies each value to every position of its window.

    A position in several windows gets the mean of their values, one in no window gets zero.
    """

    spec: Pool

    def forward(self, denoised: Tensor) -> Tensor:
        if self.spec.step == self.spec.size:  # windows side by side; interpolate keeps channels last in memory
            *batch, height, width = denoised.shape
            tiled = functional.interpolate(denoised.flatten(0, -4), scale_factor=self.spec.size)
            return self._crop(tiled.reshape(*batch, height * self.spec.size, width * self.spec.size))
        total = self._sum_over_windows(denoised.flatten(0, -3).unsqueeze(1))
        windows = self._sum_over_windows(denoised.new_ones(1, 1, *denoised.shape[-2:]))
        return (total / windows.clamp_min(1)).reshape(*denoised.shape[:-2], *self.below[1:])

    def _sum_over_windows(self, values: Tensor) -> Tensor:
        """Return, for maps ``(count, 1, height, width)``, at each position the sum of the values of its windows."""
        ones = values.new_ones(1, 1, self.spec.size, self.spec.size)
        return self._crop(functional.conv_transpose2d(values, ones, stride=self.spec.step))

    def _crop(self, x: Tensor) -> Tensor:
        """Crop maps, or extend them with zeros, to the sides of the level below."""
        down, right = (side - given for side, given in zip(self.below[1:], x.shape[-2:], strict=True))
        return functional.pad(x, (0, right, 0, down)) if down or right else x


class PoolRung(NormalizedRung):
    """A level that takes the maximum or the mean of each window."""

    spec: Pool
    back_type = PoolBack

    def up(self, hidden: Tensor) -> Tensor:
        pool = functional.max_pool2d if isinstance(self.spec, MaxPool) else functional.avg_pool2d
        maps = hidden.flatten(0, -4)
        pooled = pool(maps, self.spec.size, self.spec.step, ceil_mode=self.spec.rounding == "up")
        return pooled.reshape(*hidden.shape[:-3], *self.shape)


class GlobalBack(Back):
    """Copies each channel's value to every position of its map."""

    def forward(self, denoised: Tensor) -> Tensor:
        return denoised[..., None, None].expand(*denoised.shape, *self.below[1:])


class GlobalRung(NormalizedRung):
    """A level that takes the mean of each channel over its map."""

    back_type = GlobalBack

    def up(self, hidden: Tensor) -> Tensor:
        return torch.mean(hidden, (-2, -1))


RUNG_MODULES: dict[type[RungSpec], Callable[..., NormalizedRung]] = {
    Dense: DenseRung,
    Conv: ConvRung,
    MaxPool: PoolRung,
    MeanPool: PoolRung,
    GlobalMeanPool: GlobalRung,
}
"""The module of each kind of rung, which is built from the spec and the shape of the level below."""
