"""`Ladder.from_sequential`: converts an `nn.Sequential` to a ladder that computes the same in eval mode.

A rung computes h = φ(γ·(z + β)) with z = (W h − mean)/deviation. The value at the same point of the network may differ
from h by a scale and a shift of each channel, for example where BatchNorm follows the activation. This difference is
passed on from rung to rung, and the next weights A and bias b absorb it: A (scale·h + shift) + b = (A·scale) h +
(A shift + b).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, TypeGuard, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from tikas.model.ladder import Ladder, check_input_shape, check_rows, check_two_rows
from tikas.model.layers import ACTIVATIONS, Activation, ConvRung, DenseRung, NormalizedRung
from tikas.model.normalization import eval_mode
from tikas.model.specs import ActivationName, Conv, Dense, GlobalMeanPool, MaxPool, MeanPool, Padding, RungSpec, Shape

AnyLadder = TypeVar("AnyLadder", bound=Ladder)

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.SyncBatchNorm)
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.AlphaDropout, nn.FeatureAlphaDropout)
ACTIVATION_NAMES: dict[type[nn.Module], ActivationName] = {
    nn.ReLU: "relu",
    nn.LeakyReLU: "leaky_relu",
    nn.Tanh: "tanh",
    nn.GELU: "gelu",
}
RUNG_LAYERS = (nn.Linear, nn.Conv2d, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d)
LAYERS = (*RUNG_LAYERS, *BATCH_NORMS, *ACTIVATION_NAMES, *DROPOUTS, nn.Flatten, nn.Identity)

ALTERNATIVE = "tikas.gamma(network, n_classes) works with any network."

MIN_SCALE = 1e-6
"""Smallest absolute value of a in φ(a·z + c), because β = c/a."""


@dataclass(frozen=True)
class Layer:
    """A layer and its name in the network."""

    name: str
    module: nn.Module

    def error(self, reason: str) -> ValueError:
        """Return the error for a layer that no rung can replace."""
        kind = type(self.module).__name__
        return ValueError(f"Layer {self.name}, {kind}, cannot become a rung: {reason} {ALTERNATIVE}")


@dataclass
class Block:
    """The layers that become one rung."""

    layer: Layer  # Linear, Conv2d or pooling
    spec: RungSpec
    channels: int
    norm: Layer | None = None  # BatchNorm between the layer and the activation
    activation: Activation | None = None
    norms_after: list[Layer] = field(default_factory=list)  # BatchNorm after the activation

    @property
    def is_weighted(self) -> bool:
        return isinstance(self.layer.module, nn.Linear | nn.Conv2d)

    @property
    def is_plain_max_pool(self) -> bool:
        return isinstance(self.spec, MaxPool) and self.norm is None and not self.norms_after


def from_sequential(
    cls: type[AnyLadder],
    network: nn.Sequential,
    input_shape: Sequence[int] | None,
    rows: Tensor | None,
    **settings: Any,
) -> AnyLadder:
    """Convert a network to a ladder; see `Ladder.from_sequential`."""
    if not _is_sequential(network):
        raise TypeError(f"Got {type(network).__name__}; expected an nn.Sequential. {ALTERNATIVE}")
    layers = list(_layers(network))
    shape = _input_shape(layers, input_shape)
    parameter = next(network.parameters(), torch.zeros(()))
    with torch.no_grad(), eval_mode(network):
        input_norms, blocks = _group(layers, parameter.new_zeros(2, *shape))
    dropouts = [layer.name for layer in layers if isinstance(layer.module, DROPOUTS)]
    if dropouts:
        message = f"Dropout (layer {', '.join(dropouts)}) is left out, because a ladder adds its own noise."
        warnings.warn(message, UserWarning, stacklevel=3)
    ladder = cls(input_shape=shape, rungs=[block.spec for block in blocks], **settings).to(parameter)
    if rows is not None:
        check_rows(rows, shape)
        check_two_rows(len(rows))
    with torch.no_grad():
        _copy_values(ladder, input_norms, blocks, rows)
    return ladder


def _is_sequential(module: nn.Module) -> TypeGuard[nn.Sequential]:
    """Return whether a module only runs its layers one after the other; a subclass may do something else."""
    return isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward


def _layers(network: nn.Sequential, prefix: str = "") -> Iterator[Layer]:
    """Yield all layers in order, including those of nested Sequentials."""
    for name, module in zip(network._modules, network, strict=True):  # named_children would leave out repeated layers
        if _is_sequential(module):
            yield from _layers(module, f"{prefix}{name}.")
        else:
            yield Layer(prefix + name, module)


def _input_shape(layers: Sequence[Layer], given: Sequence[int] | None) -> Shape:
    if given is not None:
        check_input_shape(given)
        return tuple(given)
    first = next((layer.module for layer in layers if isinstance(layer.module, RUNG_LAYERS)), None)
    if not isinstance(first, nn.Linear):
        raise ValueError("The network takes maps of any size: give input_shape=(channels, height, width).")
    return (first.in_features,)


# Grouping layers into rungs


def _group(layers: Sequence[Layer], x: Tensor) -> tuple[list[Layer], list[Block]]:
    """Return the BatchNorm layers before the first rung, and the block of each rung.

    The layers run on the rows `x` one by one, which gives the shapes and lets PyTorch check that the layers fit.
    """
    input_norms: list[Layer] = []
    blocks: list[Block] = []
    for layer in layers:
        kind = type(layer.module)
        if kind not in LAYERS:
            names = ", ".join(each.__name__ for each in (*RUNG_LAYERS, *ACTIVATION_NAMES))
            raise layer.error(f"only {names} and BatchNorm can. Leave out a softmax at the end.")
        below, x = x, layer.module(x)
        if kind in RUNG_LAYERS:
            blocks.append(Block(layer, _spec(layer, below, x), channels=x.shape[1]))
        elif kind in ACTIVATION_NAMES:
            _add_activation(blocks, layer)
        elif kind in BATCH_NORMS and blocks:
            _add_norm(blocks[-1], layer)
        elif kind in BATCH_NORMS:
            input_norms.append(layer)
    if blocks[-1].activation is not None or blocks[-1].norms_after:
        raise blocks[-1].layer.error("it is the last rung, so no activation and at most one BatchNorm can follow it.")
    return input_norms, blocks


def _add_norm(block: Block, layer: Layer) -> None:
    """Add BatchNorm before the activation if it directly follows the weights or the pooling, otherwise after it."""
    is_flattened = cast("nn.BatchNorm1d", layer.module).num_features != block.channels
    if block.norm or block.activation or block.norms_after or is_flattened:
        block.norms_after.append(layer)
    else:
        block.norm = layer


def _add_activation(blocks: Sequence[Block], layer: Layer) -> None:
    """Add an activation to the last block with weights. An increasing one commutes with max pooling before it."""
    index = len(blocks) - 1
    while index >= 0 and blocks[index].is_plain_max_pool and not isinstance(layer.module, nn.GELU):
        index -= 1
    if index < 0 or not blocks[index].is_weighted or blocks[index].activation or blocks[index].norms_after:
        raise layer.error("an activation must follow Linear or Conv2d, directly or after one BatchNorm.")
    block, name = blocks[index], ACTIVATION_NAMES[type(layer.module)]
    block.activation = _activation(layer.module, ACTIVATIONS[name])
    block.spec = replace(cast("Dense | Conv", block.spec), activation=name)


def _activation(module: nn.Module, known: Activation) -> Activation:
    """Return the activation of a layer. A parameter that specs cannot express is added to its name in parentheses."""
    if isinstance(module, nn.LeakyReLU) and module.negative_slope != 0.1:
        slope = float(module.negative_slope)
        function = partial(functional.leaky_relu, negative_slope=slope)
        return known._replace(name=f"{known.name}({slope:g})", function=function)
    if isinstance(module, nn.GELU) and module.approximate != "none":
        function = partial(functional.gelu, approximate=module.approximate)
        return known._replace(name=f"{known.name}({module.approximate})", function=function)
    return known


def _spec(layer: Layer, below: Tensor, output: Tensor) -> RungSpec:
    """Return the rung of a layer with input `below`. A kernel that covers the whole map becomes a rung without maps."""
    module = layer.module
    if isinstance(module, nn.Linear):
        if below.dim() != 2:
            raise layer.error("its input consists of maps. Put nn.Flatten() before it.")
        return Dense(module.out_features, "linear")
    if isinstance(module, nn.AdaptiveAvgPool2d):
        if output.shape[2:] != (1, 1):
            raise layer.error("only AdaptiveAvgPool2d(1), the mean over the whole map, can.")
        return GlobalMeanPool()
    assert isinstance(module, nn.Conv2d | nn.MaxPool2d | nn.AvgPool2d)
    kernel, stride = _square(layer, module.kernel_size), _square(layer, module.stride)
    zeros = module.padding if isinstance(module.padding, str) else _square(layer, module.padding)
    covers_map = below.shape[2:] == (kernel, kernel)
    if isinstance(module, nn.Conv2d):
        if module.groups > 1 or module.padding_mode != "zeros" or set(module.dilation) != {1}:
            raise layer.error("only convolutions without groups and dilation, padded with zeros, can.")
        padding = _padding(layer, kernel, zeros)
        if covers_map and padding == "valid":
            return Dense(module.out_channels, "linear")
        return Conv(module.out_channels, kernel, padding, stride, "linear")
    if zeros != 0:
        raise layer.error("only pooling without padding can.")
    if isinstance(module, nn.AvgPool2d) and covers_map:
        return GlobalMeanPool()
    kind = MaxPool if isinstance(module, nn.MaxPool2d) else MeanPool
    return kind(kernel, stride, "up" if module.ceil_mode else "down")


def _padding(layer: Layer, kernel: int, zeros: int | str) -> Padding:
    """Return the name of a padding; `zeros` is PyTorch's name or the number of zeros on each side."""
    names: dict[int | float | str, Padding] = {kernel - 1: "full", (kernel - 1) / 2: "same", 0: "valid"}
    names |= {"same": "same", "valid": "valid"}
    if zeros not in names:
        raise layer.error(f"its padding is {zeros} instead of 0, {(kernel - 1) / 2:g} or {kernel - 1}.")
    return names[zeros]


def _square(layer: Layer, sides: int | tuple[int, ...]) -> int:
    height, width = sides if isinstance(sides, tuple) else (sides, sides)
    if height != width:
        raise layer.error(f"{sides} is not square.")
    return height


# Copying values


class _BatchNorm(NamedTuple):
    """BatchNorm in eval mode: scale·(x − mean)/deviation + shift, in double precision on the CPU."""

    mean: Tensor
    deviation: Tensor
    scale: Tensor
    shift: Tensor


def _batch_norm(layer: Layer) -> _BatchNorm:
    module = layer.module
    assert isinstance(module, BATCH_NORMS)
    if module.running_mean is None or module.running_var is None:
        raise layer.error("it has no running statistics, so its output depends on the batch.")
    mean, variance = module.running_mean.double().cpu(), module.running_var.double().cpu()
    scale = torch.ones_like(mean) if module.weight is None else module.weight.double().cpu()
    shift = torch.zeros_like(mean) if module.bias is None else module.bias.double().cpu()
    return _BatchNorm(mean, (variance + module.eps).sqrt(), scale, shift)


class _Difference(NamedTuple):
    """Network value = scale·(ladder value) + shift, with a scale and a shift for each channel."""

    scale: Tensor
    shift: Tensor

    def flattened(self, units: int) -> _Difference:
        """Repeat the scale and shift of each channel for all its units in a flattened map."""
        times = units // len(self.scale)
        return _Difference(self.scale.repeat_interleave(times), self.shift.repeat_interleave(times))

    def then(self, norm: _BatchNorm) -> _Difference:
        """Return the difference after the network's BatchNorm."""
        factor = norm.scale / norm.deviation
        return _Difference(self.scale * factor, (self.shift - norm.mean) * factor + norm.shift)


def _copy_values(ladder: Ladder, input_norms: list[Layer], blocks: list[Block], rows: Tensor | None) -> None:
    """Set weights, statistics, β and γ from the bottom up; `rows` give the statistics where the network has none."""
    channels = ladder.shapes[0][0]
    one = torch.ones(channels, dtype=torch.float64, device="cpu")
    difference = _after_norms(_Difference(one, torch.zeros_like(one)), input_norms)
    for level, block in enumerate(blocks, 1):
        rung = cast("NormalizedRung", ladder.rungs[level])
        if block.activation is not None:
            rung.activation = block.activation
        if block.is_weighted:
            difference = _copy_weights(rung, block, difference)
        elif isinstance(block.spec, MaxPool) and bool((difference.scale < 0).any()):
            raise block.layer.error("BatchNorm below it has a negative scale, which turns the maximum into a minimum.")

        # Statistics of W h. Those of BatchNorm are the statistics of scale·(W h) + shift.
        norm = None if block.norm is None else _batch_norm(block.norm)
        mean, deviation = torch.zeros_like(difference.scale), torch.ones_like(difference.scale)
        if norm is not None:
            scale = torch.where(difference.scale == 0, norm.deviation, difference.scale)
            mean, deviation = (norm.mean - difference.shift) / scale, norm.deviation / scale.abs()
        elif rows is not None:
            statistics = ladder._statistics_at(level, ladder._split_rows(rows))
            deviation = statistics.deviation.cpu()
            if rung.beta is not None or not _is_padded_next(blocks[level:]):  # zeros must stay zeros
                mean = statistics.mean.cpu()

        # Network value before the activation, as a function of z
        value = _Difference(difference.scale * deviation, difference.scale * mean + difference.shift)
        if norm is not None:
            value = value.then(norm)
        difference = _set_rung(rung, mean, deviation, value)
        difference = _after_norms(difference, block.norms_after)
    ladder.calibrated.fill_(True)


def _copy_weights(rung: NormalizedRung, block: Block, below: _Difference) -> _Difference:
    """Set W, and return the difference between the layer's output and W h, which is a shift."""
    layer = block.layer.module
    assert isinstance(layer, nn.Linear | nn.Conv2d)
    assert isinstance(rung, DenseRung | ConvRung)
    weight = layer.weight.double().cpu()
    if isinstance(rung, DenseRung):
        weight = weight.flatten(1)
        scale, shift = below.flattened(weight.shape[1])
    else:
        if max(rung.spec.zeros) and bool(below.shift.any()):
            raise block.layer.error(
                "it pads with zeros, but a bias or BatchNorm shifts its input, with no activation in between."
            )
        scale, shift = below.scale[:, None, None], below.shift[:, None, None]
    constant = (weight * shift).flatten(1).sum(1)
    if layer.bias is not None:
        constant = constant + layer.bias.double().cpu()
    rung.weight.copy_(weight * scale)
    return _Difference(torch.ones_like(constant), constant)


def _set_rung(rung: NormalizedRung, mean: Tensor, deviation: Tensor, value: _Difference) -> _Difference:
    """Set β and γ so that φ(γ·(z + β)) = φ(a·z + c) with the scale a and the shift c of `value`.

    Return the remaining difference. With γ: γ = a, β = c/a, and none remains. Without γ, where φ(s·x) = s·φ(x) for
    s > 0: β = c/a, and |a| remains; W changes its sign where a < 0. Without β, on a linear rung: a and c remain.
    """
    a, c = value
    if rung.gamma is None and isinstance(rung, DenseRung | ConvRung):
        rung.weight[a < 0] *= -1
        mean, a = torch.where(a < 0, -mean, mean), a.abs()
    if rung.beta is not None:
        # Where a is almost zero, a larger deviation makes z smaller, so that a can be larger.
        larger = torch.where(a.abs() < MIN_SCALE, torch.full_like(a, MIN_SCALE).copysign(a), a)
        deviation = torch.where(a == 0, deviation, deviation * larger / a)
        a = larger
    rung.mean.copy_(mean)
    rung.deviation.copy_(deviation)
    if rung.beta is None:
        return _Difference(a, c)
    rung.beta.copy_(c / a)
    if rung.gamma is None:
        return _Difference(a, torch.zeros_like(c))
    rung.gamma.copy_(a)
    return _Difference(torch.ones_like(a), torch.zeros_like(c))


def _after_norms(difference: _Difference, norms: list[Layer]) -> _Difference:
    """Return the difference after BatchNorm layers, which may come after nn.Flatten."""
    for layer in norms:
        norm = _batch_norm(layer)
        difference = difference.flattened(len(norm.mean)).then(norm)
    return difference


def _is_padded_next(blocks: list[Block]) -> bool:
    """Return whether the next block with weights is a convolution with padding."""
    weighted = next((block for block in blocks if block.is_weighted), None)
    return weighted is not None and isinstance(weighted.spec, Conv) and max(weighted.spec.zeros) > 0
