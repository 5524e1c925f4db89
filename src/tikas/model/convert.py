"""`Ladder.from_sequential`: the layers of an `nn.Sequential` become rungs that compute the same in eval mode.

A rung computes h = φ(γ·(z + β)) with z = (W h − mean)/deviation. The network's values at the same place may differ from
h by a scale and a shift of each channel, for example where BatchNorm follows the activation. This difference is carried
from rung to rung, and the next weights absorb it: V (scale·h + shift) + b = (V·scale) h + (V shift + b).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from typing import Any, NamedTuple, TypeGuard, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.lazy import LazyModuleMixin

from tikas.model.gamma import LayerNoise
from tikas.model.ladder import Ladder, check_calibration_rows, check_input_shape, check_rows
from tikas.model.layers import ACTIVATIONS, Activation, ConvRung, DenseRung, NormalizedRung
from tikas.model.specs import Conv, Dense, GlobalMeanPool, MaxPool, MeanPool, Padding, RungSpec, Shape

AnyLadder = TypeVar("AnyLadder", bound=Ladder)

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.SyncBatchNorm)
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.AlphaDropout, nn.FeatureAlphaDropout)
ACTIVATION_LAYERS = (nn.ReLU, nn.LeakyReLU, nn.Tanh, nn.GELU)
RUNG_LAYERS = (nn.Linear, nn.Conv2d, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d)

ALTERNATIVE = "tikas.gamma(network, n_classes) works with any network."

MIN_SCALE = 1e-6
"""Smallest factor between z and what the activation sees: β is divided by it."""


@dataclass(frozen=True)
class Layer:
    """A layer and its name in the network."""

    name: str
    module: nn.Module

    def __str__(self) -> str:
        module = f"{type(self.module).__name__}(…)" if list(self.module.children()) else self.module
        return f"Layer {self.name}, {module},"

    def error(self, reason: str) -> ValueError:
        """Return the error for a layer that no rung can replace."""
        return ValueError(f"{self} cannot become a rung: {reason} {ALTERNATIVE}")


@dataclass
class Block:
    """The layers that become one rung."""

    layer: Layer  # Linear, Conv2d or pooling
    spec: RungSpec
    flattened: bool  # whether nn.Flatten comes before the layer
    norm: Layer | None = None  # BatchNorm between the layer and the activation
    activation: Activation | None = None
    norms_after: list[Layer] = field(default_factory=list)  # BatchNorm after the activation

    @property
    def is_weighted(self) -> bool:
        return isinstance(self.layer.module, nn.Linear | nn.Conv2d)


def from_sequential(
    cls: type[AnyLadder],
    network: nn.Sequential,
    input_shape: Sequence[int] | None,
    rows: Tensor | None,
    **settings: Any,
) -> AnyLadder:
    """Return the ladder of `Ladder.from_sequential`."""
    if not _is_sequential(network):
        raise TypeError(f"Got {type(network).__name__}; expected an nn.Sequential. {ALTERNATIVE}")
    layers = list(_layers(network))
    input_norms, blocks = _group(layers)
    _check_hooks(network)
    shape = _input_shape(blocks[0].layer, input_shape)
    _check_shapes(blocks, shape)
    dropouts = [layer.name for layer in layers if isinstance(layer.module, DROPOUTS)]
    if dropouts:
        message = f"Dropout (layer {', '.join(dropouts)}) is left out, because a ladder adds noise of its own."
        warnings.warn(message, UserWarning, stacklevel=3)
    ladder = cls(input_shape=shape, rungs=[block.spec for block in blocks], **settings)
    parameter = next(network.parameters(), None)
    if parameter is not None:
        ladder.to(parameter)
    if rows is not None:
        check_rows(rows, shape)
        check_calibration_rows(rows, len(rows), chunk=None)
    with torch.no_grad():
        _copy_values(ladder, input_norms, blocks, rows)
    return ladder


# Grouping layers into rungs


def _is_sequential(module: nn.Module) -> TypeGuard[nn.Sequential]:
    """Return whether a module only runs its layers one after the other; a subclass may do something else."""
    return isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward


def _layers(network: nn.Sequential, prefix: str = "") -> Iterator[Layer]:
    """Yield all layers in order, also those of nested Sequentials."""
    for name, module in zip(network._modules, network, strict=True):  # named_children would leave out repeated layers
        if _is_sequential(module):
            yield from _layers(module, f"{prefix}{name}.")
        else:
            yield Layer(prefix + name, module)


def _group(layers: Sequence[Layer]) -> tuple[list[Layer], list[Block]]:
    """Return the BatchNorm layers of the input, and the block of each rung."""
    input_norms: list[Layer] = []
    blocks: list[Block] = []
    flattened = False
    for layer in layers:
        kind = type(layer.module)
        if kind in (nn.Identity, *DROPOUTS):
            continue
        if isinstance(layer.module, LazyModuleMixin):
            raise ValueError(f"{layer} has no shape yet. First run the network on a few rows: network(rows).")
        if isinstance(layer.module, nn.Flatten):
            if (layer.module.start_dim, layer.module.end_dim) != (1, -1):
                raise layer.error("only nn.Flatten(), which flattens whole rows, can.")
            flattened = True
        elif kind in BATCH_NORMS:
            if layer.module.running_mean is None:
                raise layer.error("it has no running statistics, so its output depends on the batch.")
            if blocks:
                _add_norm(blocks[-1], layer, flattened)
            else:
                input_norms.append(layer)
        elif kind in ACTIVATION_LAYERS:
            _add_activation(blocks, layer)
        elif kind in RUNG_LAYERS:
            blocks.append(Block(layer, _spec(layer, after_one_position=_is_one_position(blocks)), flattened))
            flattened = False
        elif kind in (nn.Softmax, nn.LogSoftmax) and layer is layers[-1]:
            raise ValueError(f"{layer} must be left out: the output of a ladder is class scores.")
        else:
            raise layer.error(f"rungs are made of {_names(RUNG_LAYERS)}, BatchNorm, and {_names(ACTIVATION_LAYERS)}.")
    if not blocks:
        raise ValueError(f"The network has no Linear, Conv2d or pooling layer. {ALTERNATIVE}")
    _check_top(blocks[-1])
    for block in blocks:
        if isinstance(block.spec, Dense | Conv):
            name: Any = block.activation.name.partition("(")[0] if block.activation else "linear"
            block.spec = replace(block.spec, activation=name)
    return input_norms, blocks


def _names(kinds: Sequence[type]) -> str:
    return ", ".join(kind.__name__ for kind in kinds)


def _add_norm(block: Block, layer: Layer, flattened: bool) -> None:
    """Add BatchNorm before the activation if it directly follows the weights or the pooling, otherwise after it."""
    is_flattened_map = flattened and not isinstance(block.spec, Dense | GlobalMeanPool)
    if block.norm or block.activation or block.norms_after or is_flattened_map:
        block.norms_after.append(layer)
    else:
        block.norm = layer


def _add_activation(blocks: list[Block], layer: Layer) -> None:
    """Add an activation to the last weighted block. An increasing one may be exchanged with max pooling before it."""
    increasing = not isinstance(layer.module, nn.GELU) and getattr(layer.module, "negative_slope", 0) >= 0
    index = len(blocks) - 1
    while index >= 0 and increasing and _is_plain_max_pool(blocks[index]):
        index -= 1
    if index < 0 or not blocks[index].is_weighted or blocks[index].activation or blocks[index].norms_after:
        raise layer.error("an activation must follow Linear or Conv2d, or their BatchNorm, and only one can.")
    blocks[index].activation = _activation(layer.module)


def _is_plain_max_pool(block: Block) -> bool:
    return isinstance(block.spec, MaxPool) and block.norm is None and not block.norms_after


def _activation(module: nn.Module) -> Activation:
    """Return the activation of a layer. Slopes and forms that specs have no name for get it in parentheses."""
    if isinstance(module, nn.ReLU):
        return ACTIVATIONS["relu"]
    if isinstance(module, nn.Tanh):
        return ACTIVATIONS["tanh"]
    if isinstance(module, nn.LeakyReLU):
        slope = float(module.negative_slope)
        if slope == 0.1:
            return ACTIVATIONS["leaky_relu"]
        function = partial(functional.leaky_relu, negative_slope=slope)
        return ACTIVATIONS["leaky_relu"]._replace(name=f"leaky_relu({slope:g})", function=function)
    assert isinstance(module, nn.GELU)
    if module.approximate == "none":
        return ACTIVATIONS["gelu"]
    function = partial(functional.gelu, approximate=module.approximate)
    return ACTIVATIONS["gelu"]._replace(name=f"gelu({module.approximate})", function=function)


def _check_top(top: Block) -> None:
    if top.activation is not None:
        raise top.layer.error(f"it is the top, which has no activation, but {top.activation.name} follows it.")
    if top.norms_after:
        raise top.norms_after[0].error("after the top there can be one BatchNorm, directly after it.")


def _is_one_position(blocks: list[Block]) -> bool:
    """Return whether the network has maps of one position here, of which the last rung keeps only the channels."""
    if not blocks:
        return False
    is_dense_conv = isinstance(blocks[-1].spec, Dense) and isinstance(blocks[-1].layer.module, nn.Conv2d)
    return isinstance(blocks[-1].spec, GlobalMeanPool) or is_dense_conv


def _spec(layer: Layer, *, after_one_position: bool) -> RungSpec:
    """Return the rung of a Linear, Conv2d or pooling layer. On maps of one position, a 1×1 convolution is dense."""
    module = layer.module
    if isinstance(module, nn.Linear):
        return Dense(module.out_features)
    if isinstance(module, nn.Conv2d):
        conv = _conv(layer, module)
        if not after_one_position:
            return conv
        if conv.kernel == 1:
            return Dense(conv.features)
    if after_one_position:
        raise layer.error("it works on maps, but the global pooling before it leaves one position.")
    if isinstance(module, nn.AdaptiveAvgPool2d):
        if set(_pair(module.output_size)) != {1}:
            raise layer.error("only AdaptiveAvgPool2d(1), the mean over the whole map, can.")
        return GlobalMeanPool()
    assert isinstance(module, nn.MaxPool2d | nn.AvgPool2d)
    return _pool(layer, module)


def _conv(layer: Layer, module: nn.Conv2d) -> Conv:
    if module.groups > 1 or module.padding_mode != "zeros" or set(module.dilation) != {1}:
        raise layer.error("only convolutions without groups and dilation, padded with zeros, can.")
    kernel, stride = _square(layer, module.kernel_size), _square(layer, module.stride)
    zeros = module.padding if isinstance(module.padding, str) else _square(layer, module.padding)
    padding: Padding
    if zeros in ("valid", 0):
        padding = "valid"
    elif zeros == "same" or zeros * 2 == kernel - 1:
        padding = "same"
    elif zeros == kernel - 1:
        padding = "full"
    else:
        raise layer.error(
            f"padding {zeros} of a kernel of {kernel} is neither valid (0), same ({(kernel - 1) / 2:g}) nor full "
            f"({kernel - 1})."
        )
    return Conv(module.out_channels, kernel, padding, stride)


def _pool(layer: Layer, module: nn.MaxPool2d | nn.AvgPool2d) -> MaxPool | MeanPool:
    unusual = getattr(module, "return_indices", False) or getattr(module, "divisor_override", None)
    if unusual or set(_pair(module.padding)) != {0} or set(_pair(getattr(module, "dilation", 1))) != {1}:
        raise layer.error("only pooling without padding, dilation, indices and divisor_override can.")
    kind = MaxPool if isinstance(module, nn.MaxPool2d) else MeanPool
    size, stride = _square(layer, module.kernel_size), _square(layer, module.stride)
    return kind(size, stride, "up" if module.ceil_mode else "down")


def _pair(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, Sequence) else (value, value)


def _square(layer: Layer, sides: Any) -> int:
    height, width = _pair(sides)
    if height != width:
        raise layer.error(f"{sides} is not square.")
    return int(height)


# Checks


def _check_hooks(network: nn.Module) -> None:
    """Raise ValueError for hooks, which may change what a layer computes; that of a Γ-model adds noise only there."""
    for name, module in network.named_modules():
        for hook in (*module._forward_pre_hooks.values(), *module._forward_hooks.values()):
            if not isinstance(hook, LayerNoise):
                raise ValueError(
                    f"{f'Layer {name}' if name else 'The network'}, {type(module).__name__}, has the hook "
                    f"{getattr(hook, '__name__', type(hook).__name__)}, which a rung cannot have. Remove it; hooks of "
                    f"torch.nn.utils with remove_weight_norm, remove_spectral_norm or prune.remove. {ALTERNATIVE}"
                )


def _input_shape(first: Layer, given: Sequence[int] | None) -> Shape:
    if given is not None:
        check_input_shape(given)
        return tuple(given)
    if isinstance(first.module, nn.Linear):
        return (first.module.in_features,)
    raise ValueError(f"{first} takes maps of any size: give input_shape=(channels, height, width).")


def _check_shapes(blocks: list[Block], below: Shape) -> None:
    """Check that every layer fits on the level below it, and that the top makes one value for each output."""
    for block in blocks:
        if block is blocks[-1]:
            block.spec = _without_maps(block.spec, below)
        try:
            shape = block.spec.shape(below)
        except ValueError as error:
            raise block.layer.error(str(error)) from error
        _check_features(block, below, shape)
        below = shape
    if len(below) > 1:
        raise blocks[-1].layer.error(f"it is the top, and makes maps of shape {below} instead of (outputs,).")


def _without_maps(top: RungSpec, below: Shape) -> RungSpec:
    """Return the rung that makes a row of what a top that covers the whole map makes as a map of one position."""
    sides = set(below[1:])
    if isinstance(top, MeanPool) and sides == {top.size}:
        return GlobalMeanPool()
    if isinstance(top, Conv) and sides == {top.kernel} and not max(top.zeros):
        return Dense(top.features, top.activation)
    return top


def _check_features(block: Block, below: Shape, shape: Shape) -> None:
    """Check the numbers of features that a layer and its BatchNorm were built for."""
    module, expected, found = block.layer.module, 0, 0
    if isinstance(module, nn.Linear):
        if len(below) > 1 and not block.flattened:
            raise block.layer.error(f"it would be applied to each line of maps {below}. Put nn.Flatten() before it.")
        expected, found = module.in_features, prod(below)
    elif isinstance(module, nn.Conv2d):
        expected, found = module.in_channels, below[0]
    if expected != found:
        raise ValueError(
            f"{block.layer} takes {expected} features, but the level below it has shape {below}. Give the input_shape "
            "that the network was built for."
        )
    if block.norm is not None and block.norm.module.num_features != shape[0]:
        raise ValueError(f"{block.norm} follows a level of shape {shape}; expected num_features={shape[0]}.")


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
    assert module.running_mean is not None
    assert module.running_var is not None
    mean, variance = module.running_mean.double().cpu(), module.running_var.double().cpu()
    scale = torch.ones_like(mean) if module.weight is None else module.weight.double().cpu()
    shift = torch.zeros_like(mean) if module.bias is None else module.bias.double().cpu()
    return _BatchNorm(mean, (variance + module.eps).sqrt(), scale, shift)


class _Difference(NamedTuple):
    """Network value = scale·(ladder value) + shift, with a scale and a shift for each channel."""

    scale: Tensor
    shift: Tensor

    def flattened(self, units: int) -> _Difference:
        """Repeat those of each channel for all its units in a flattened map."""
        times = units // len(self.scale)
        return _Difference(self.scale.repeat_interleave(times), self.shift.repeat_interleave(times))

    def then(self, norm: _BatchNorm) -> _Difference:
        """Return the difference where the network also applies BatchNorm."""
        factor = norm.scale / norm.deviation
        return _Difference(self.scale * factor, (self.shift - norm.mean) * factor + norm.shift)


def _copy_values(ladder: Ladder, input_norms: list[Layer], blocks: list[Block], rows: Tensor | None) -> None:
    """Set weights, statistics, β and γ from the bottom up; `rows` give the statistics where the network has none."""
    channels = ladder.shapes[0][0]
    one = torch.ones(channels, dtype=torch.float64, device="cpu")
    difference = _after_norms(_Difference(one, torch.zeros_like(one)), input_norms, ladder.shapes[0])
    for level, block in enumerate(blocks, 1):
        rung = cast("NormalizedRung", ladder.rungs[level])
        if block.activation is not None:
            rung.activation = block.activation
        if block.is_weighted:
            difference = _copy_weights(rung, block, difference)
        elif isinstance(block.spec, MaxPool) and bool((difference.scale < 0).any()):
            raise block.layer.error("BatchNorm below it has a negative scale, which turns the maximum into a minimum.")

        # Statistics of the rung: W h has them where the network's value before BatchNorm has those of BatchNorm.
        norm = None if block.norm is None else _batch_norm(block.norm)
        mean, deviation = torch.zeros_like(difference.scale), torch.ones_like(difference.scale)
        if norm is not None:
            scale = torch.where(difference.scale == 0, norm.deviation, difference.scale)
            mean, deviation = (norm.mean - difference.shift) / scale, norm.deviation / scale.abs()
        elif rows is not None:
            statistics = ladder._statistics_at(level, ladder._split_rows(rows))
            deviation = statistics.deviation.cpu()
            if rung.beta is not None or not _is_padded_next(blocks[level:]):  # padding must see no shift
                mean = statistics.mean.cpu()

        # Network value before the activation, as a function of z
        value = _Difference(difference.scale * deviation, difference.scale * mean + difference.shift)
        if norm is not None:
            value = value.then(norm)
        difference = _set_rung(rung, mean, deviation, value)
        difference = _after_norms(difference, block.norms_after, rung.shape)
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
                "it pads with zeros what a bias or BatchNorm has shifted, with no activation in between."
            )
        scale, shift = below.scale[:, None, None], below.shift[:, None, None]
    constant = (weight * shift).flatten(1).sum(1)
    if layer.bias is not None:
        constant = constant + layer.bias.double().cpu()
    rung.weight.copy_(weight * scale)
    return _Difference(torch.ones_like(constant), constant)


def _set_rung(rung: NormalizedRung, mean: Tensor, deviation: Tensor, value: _Difference) -> _Difference:
    """Let φ(γ·(z + β)) be φ(a·z + c), with a and c the scale and shift of `value`; return the difference that is left.

    With γ: γ = a, β = c/a. Without γ, of φ(s·x) = s·φ(x): β = c/a, and a is left; a negative a changes the sign of W.
    Without β, of a linear rung: all is left.
    """
    a, c = value
    if rung.gamma is None and isinstance(rung, DenseRung | ConvRung):
        rung.weight[a < 0] *= -1
        mean, a = torch.where(a < 0, -mean, mean), a.abs()
    if rung.beta is not None:
        # Where a is almost zero, z is made smaller by a larger deviation, so that a can be larger.
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


def _after_norms(difference: _Difference, norms: list[Layer], shape: Shape) -> _Difference:
    """Return the difference after BatchNorm layers, which may come after nn.Flatten."""
    for layer in norms:
        norm = _batch_norm(layer)
        features = len(norm.mean)
        if features not in (len(difference.scale), prod(shape)):
            raise layer.error(f"it has {features} features, but the level below it has shape {shape}.")
        difference = difference.flattened(features).then(norm)
    return difference


def _is_padded_next(blocks: list[Block]) -> bool:
    """Return whether the next weights are a convolution with padding."""
    weighted = next((block for block in blocks if block.is_weighted), None)
    return weighted is not None and isinstance(weighted.spec, Conv) and max(weighted.spec.zeros) > 0
