"""The layers of an `nn.Sequential`, sorted into what will be rungs."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.lazy import LazyModuleMixin

from tikas.model.names import ActivationName, Padding, Rounding
from tikas.model.specs import Conv, Dense, GlobalMeanPool, MaxPool, MeanPool, RungSpec

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.SyncBatchNorm)
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.AlphaDropout, nn.FeatureAlphaDropout)
WEIGHTED = (nn.Linear, nn.Conv2d)
MONOTONE = ("relu", "leaky_relu", "tanh")
SOFTMAXES = (nn.Softmax, nn.LogSoftmax)

OTHERWISE = "tikas.gamma(network, n_classes) works around any network."


class CannotBeARungError(ValueError):
    """A layer that no rung computes; the message names it.

    Examples
    --------
    >>> print(Named("2", nn.Sigmoid()).refused("it is no activation of a rung."))
    Layer 2, Sigmoid(), cannot become a rung: it is no activation of a rung. tikas.gamma(network, n_classes) works ...
    """

    def __init__(self, name: str, layer: nn.Module, reason: str) -> None:
        shown = f"{type(layer).__name__}(…)" if list(layer.children()) else layer
        super().__init__(f"Layer {name}, {shown}, cannot become a rung: {reason} {OTHERWISE}")


@dataclass(frozen=True)
class Named:
    """A layer and its name in the network."""

    name: str
    layer: nn.Module

    def refused(self, reason: str) -> CannotBeARungError:
        return CannotBeARungError(self.name, self.layer, reason)


@dataclass
class Group:
    """The layers that make one rung: a weighted or pooling one, then perhaps batch normalisation and an activation.

    A convolution on maps of one position is a dense rung. The first group has no layer of its own: it is the input.

    Attributes
    ----------
    rung
        The rung that it becomes.
    norm
        Batch normalisation between `layer` and `activation`.
    function
        The activation as it is in the network, where a rung's own of that name is another one.
    after
        Batch normalisation of what comes out, for the next weights to take in.
    flattened
        Whether maps below it were flattened.

    Examples
    --------
    >>> _, group = group_layers([Named("0", nn.Conv2d(1, 32, 5)), Named("1", nn.BatchNorm2d(32))])
    >>> group.rung, group.norm.name
    (Conv(features=32, kernel=5, padding='valid', stride=1, activation='linear'), '1')
    """

    named: Named
    rung: RungSpec | None = None
    norm: Named | None = None
    activation: ActivationName | None = None
    function: Callable[[Tensor], Tensor] | None = None
    after: list[Named] = field(default_factory=list)
    flattened: bool = False

    @property
    def weighted(self) -> bool:
        return isinstance(self.named.layer, WEIGHTED)


def is_sequence(layer: nn.Module) -> TypeGuard[nn.Sequential]:
    """Whether it computes what its layers do one after the other, as subclasses of nn.Sequential need not.

    Examples
    --------
    >>> is_sequence(nn.Sequential(nn.ReLU())), is_sequence(nn.ReLU())
    (True, False)
    """
    return isinstance(layer, nn.Sequential) and type(layer).forward is nn.Sequential.forward


def named_layers(network: nn.Sequential, prefix: str = "") -> Iterator[Named]:
    """All layers, those of `nn.Sequential`s within it in their places.

    Examples
    --------
    >>> network = nn.Sequential(nn.Linear(4, 5), nn.Sequential(nn.ReLU(), nn.Linear(5, 3)))
    >>> [named.name for named in named_layers(network)]
    ['0', '1.0', '1.1']
    """
    for name, layer in zip(network._modules, network, strict=True):  # named_children would tell a layer only once
        if is_sequence(layer):
            yield from named_layers(layer, f"{prefix}{name}.")
        else:
            yield Named(prefix + name, layer)


def group_layers(layers: Sequence[Named]) -> list[Group]:
    """The input's group, then one for each rung.

    Raises
    ------
    CannotBeARungError
        For a layer that is no part of any rung, or stands where it cannot be.

    Examples
    --------
    >>> layers = named_layers(nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.ReLU(), nn.Linear(5, 3)))
    >>> [group.rung for group in group_layers(list(layers))]
    [None, Dense(features=5, activation='relu', scale=True), Dense(features=3, activation='linear', scale=True)]
    """
    groups = [Group(Named("", nn.Identity()))]
    flattened = False
    for named in layers:
        kind, last = type(named.layer), groups[-1]
        if kind in (nn.Identity, *DROPOUTS):
            continue
        if isinstance(named.layer, LazyModuleMixin):
            raise ValueError(
                f"Layer {named.name}, {named.layer}, has no shape yet. First run the network on rows, network(rows)."
            )
        if isinstance(named.layer, nn.Flatten):
            if (named.layer.start_dim, named.layer.end_dim) != (1, -1):
                raise named.refused("only nn.Flatten() of whole rows can.")
            flattened = True
        elif kind in BATCH_NORMS:
            _add_norm(last, named, flattened)
        elif kind in ACTIVATIONS:
            _add_activation(groups, named)
        elif kind in RUNGS:
            rung = RUNGS[kind](named)
            if kind is not nn.Linear and _leaves_one_position(last):
                rung = _on_one_position(rung, named)
            groups.append(Group(named, rung, flattened=flattened))
            flattened = False
        elif kind in SOFTMAXES and named is layers[-1]:
            raise ValueError(f"Layer {named.name}, {named.layer}: leave it out, the top of a ladder gives scores.")
        else:
            raise named.refused(
                f"rungs are made of {_names(RUNGS)}, BatchNorm and, of activations, {_names(ACTIVATIONS)}."
            )
    if len(groups) == 1:
        raise ValueError(f"There is no Linear, Conv2d or pooling layer in the network. {OTHERWISE}")
    top = groups[-1]
    if top.activation is not None:
        raise top.named.refused(f"it is the top, and a ladder's top has no {top.activation} after it.")
    if top.after:
        raise top.after[0].refused("behind the top there is place for one, right after it.")
    for group in groups[1:]:
        if isinstance(group.rung, Dense | Conv):
            group.rung = replace(group.rung, activation=group.activation or "linear")
    return groups


def _names(kinds: Iterable[type]) -> str:
    return ", ".join(kind.__name__ for kind in kinds)


def _leaves_one_position(group: Group) -> bool:
    """Whether the network has maps there of which the rung keeps the channels alone."""
    return isinstance(group.rung, GlobalMeanPool) or (
        isinstance(group.rung, Dense) and isinstance(group.named.layer, nn.Conv2d)
    )


def _on_one_position(rung: RungSpec, named: Named) -> Dense:
    if not isinstance(rung, Conv) or rung.kernel > 1:
        raise named.refused("it works on maps, and the mean over whole maps before it leaves one position.")
    return Dense(rung.features)


def _add_norm(group: Group, named: Named, flattened: bool) -> None:
    if getattr(named.layer, "running_mean", None) is None:
        raise named.refused("it keeps no running statistics, so a row's output depends on its batch.")
    maps = flattened and not isinstance(group.rung, Dense | GlobalMeanPool)
    if group.rung is None or group.norm or group.activation or group.after or maps:
        group.after.append(named)
    else:
        group.norm = named


def _add_activation(groups: list[Group], named: Named) -> None:
    """Give an activation to the weighted layer before it; max-pooling in between does not mind an increasing one."""
    activation, function = ACTIVATIONS[type(named.layer)](named.layer)
    increasing = activation in MONOTONE and getattr(named.layer, "negative_slope", 0) >= 0
    place = len(groups) - 1
    while isinstance(groups[place].rung, MaxPool) and increasing and _bare(groups[place]):
        place -= 1
    group = groups[place]
    if not group.weighted or group.activation is not None or group.after:
        raise named.refused("an activation comes after Linear or Conv2d, and their batch normalisation, once.")
    group.activation, group.function = activation, function


def _bare(group: Group) -> bool:
    return group.norm is None and not group.after


def _leaky_relu(layer: nn.Module) -> tuple[ActivationName, Callable[[Tensor], Tensor] | None]:
    slope = float(layer.negative_slope)  # type: ignore[arg-type]
    if slope == 0.1:
        return "leaky_relu", None
    return "leaky_relu", partial(functional.leaky_relu, negative_slope=slope)


def _gelu(layer: nn.Module) -> tuple[ActivationName, Callable[[Tensor], Tensor] | None]:
    return "gelu", None if layer.approximate == "none" else partial(functional.gelu, approximate="tanh")


ACTIVATIONS: dict[type, Callable[[nn.Module], tuple[ActivationName, Callable[[Tensor], Tensor] | None]]] = {
    nn.ReLU: lambda _: ("relu", None),
    nn.LeakyReLU: _leaky_relu,
    nn.Tanh: lambda _: ("tanh", None),
    nn.GELU: _gelu,
}


def _dense(named: Named) -> Dense:
    return Dense(named.layer.out_features)  # type: ignore[arg-type]


def _conv(named: Named) -> Conv:
    layer = named.layer
    assert isinstance(layer, nn.Conv2d)
    if layer.groups > 1 or layer.padding_mode != "zeros" or set(layer.dilation) != {1}:
        raise named.refused("only convolutions without groups or dilation, padded with zeros, can.")
    kernel, stride = _square(named, layer.kernel_size), _square(named, layer.stride)
    paddings: dict[int | str, Padding] = {kernel - 1: "full", "same": "same", "valid": "valid"}
    if kernel % 2:
        paddings[kernel // 2] = "same"
    paddings[0] = "valid"
    padding = layer.padding if isinstance(layer.padding, str) else _square(named, layer.padding)
    if padding not in paddings:
        raise named.refused(
            f"padding {padding} of a kernel of {kernel} is neither valid (0), same ({(kernel - 1) / 2:g}) nor full "
            f"({kernel - 1})."
        )
    return Conv(layer.out_channels, kernel, paddings[padding], stride)


def _pool(named: Named) -> MaxPool | MeanPool:
    layer = named.layer
    assert isinstance(layer, nn.MaxPool2d | nn.AvgPool2d)
    unusual = getattr(layer, "return_indices", False) or getattr(layer, "divisor_override", None)
    if unusual or set(_pair(layer.padding)) != {0} or set(_pair(getattr(layer, "dilation", 1))) != {1}:
        raise named.refused("only pooling without padding, dilation, indices or a divisor of its own can.")
    pool = MaxPool if isinstance(layer, nn.MaxPool2d) else MeanPool
    rounding: Rounding = "up" if layer.ceil_mode else "down"
    return pool(_square(named, layer.kernel_size), _square(named, layer.stride), rounding)


def _global_pool(named: Named) -> GlobalMeanPool:
    if set(_pair(named.layer.output_size)) != {1}:
        raise named.refused("only AdaptiveAvgPool2d(1), the mean over the whole map, can.")
    return GlobalMeanPool()


RUNGS: dict[type, Callable[[Named], RungSpec]] = {
    nn.Linear: _dense,
    nn.Conv2d: _conv,
    nn.MaxPool2d: _pool,
    nn.AvgPool2d: _pool,
    nn.AdaptiveAvgPool2d: _global_pool,
}


def _pair(value: object) -> tuple[object, ...]:
    return tuple(value) if isinstance(value, Sequence | torch.Size) else (value, value)


def _square(named: Named, sides: object) -> int:
    height, width = _pair(sides)
    if height != width or not isinstance(height, int):
        raise named.refused(f"{sides} is not square.")
    return height
