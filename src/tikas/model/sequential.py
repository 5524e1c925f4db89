"""A ladder from an `nn.Sequential` that somebody already has: its layers become rungs that compute the same."""

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from tikas.model.batch_checks import check_calibration, check_rows
from tikas.model.calibration import Ascent
from tikas.model.checks import check_input_shape
from tikas.model.corruption import Corruption
from tikas.model.ladder import Ladder
from tikas.model.layers import DROPOUTS, OTHERWISE, Group, Named, group_layers, is_sequence, named_layers
from tikas.model.rungs import ConvRung, DenseRung, MaxPool, NormalizedRung
from tikas.model.specs import Conv, Dense, GlobalMeanPool, MeanPool, RungSpec, Shape

SomeLadder = TypeVar("SomeLadder", bound=Ladder)

SMALLEST_SCALE = 1e-6
"""A unit's scale is kept this far from zero, because what a rung does to z it does by dividing by it."""


class Difference(NamedTuple):
    """How the network's values differ from the ladder's at the same place: network = scale·ladder + shift.

    Examples
    --------
    >>> Difference(torch.tensor([2.0, 3.0]), torch.zeros(2)).spread(units=4).scale  # maps of two positions
    tensor([2., 2., 3., 3.])
    """

    scale: Tensor
    shift: Tensor

    def spread(self, units: int) -> "Difference":
        """For each unit of maps that were flattened, what held for its channel."""
        times = units // len(self.scale)
        return Difference(self.scale.repeat_interleave(times), self.shift.repeat_interleave(times))


class Affine(NamedTuple):
    """What batch normalisation does to x: scale·(x - mean)/deviation + shift."""

    mean: Tensor
    deviation: Tensor
    scale: Tensor
    shift: Tensor


@torch.no_grad()
def from_sequential(
    kind: type[SomeLadder],
    network: nn.Sequential,
    input_shape: Sequence[int] | None,
    rows: Tensor | None,
    **settings: Any,
) -> SomeLadder:
    """What `Ladder.from_sequential` does.

    Where the network computes φ(a·z + c), with z normalised, a rung with a scale takes γ = a, β = c/a. One without,
    of φ(s x) = s φ(x), computes φ(z + c/a), and the next weights take the factor a; a negative a turns the signs of W.

    Examples
    --------
    >>> network = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))
    >>> network = network.eval()
    >>> ladder = from_sequential(Ladder, network, (1, 8, 8), rows=None).eval()
    >>> images = torch.rand(5, 1, 8, 8)
    >>> ladder.shapes, bool(torch.allclose(ladder(images), network(images), atol=1e-5))
    ([(1, 8, 8), (32,), (10,)], True)
    """
    if not is_sequence(network):
        raise TypeError(f"Got {type(network).__name__}; expected an nn.Sequential. {OTHERWISE}")
    layers = list(named_layers(network))
    groups = group_layers(layers)
    _check_hooks(network)
    below = _input_shape(groups, input_shape)
    _check_shapes(groups[1:], below)
    rungs = [group.rung for group in groups if group.rung is not None]
    ladder = kind(input_shape=below, rungs=rungs, **settings)
    ladder.to(next(network.parameters(), torch.empty(0)))
    _warn_of_dropout(layers)

    ascent = None if rows is None else _ascent(ladder, rows)
    one, none = (torch.full(below[:1], value, dtype=torch.float64, device="cpu") for value in (1.0, 0.0))
    difference = _after(groups[0], Difference(one, none), below)
    for level, (group, rung) in enumerate(zip(groups[1:], ladder.rungs[1:], strict=True), 1):
        assert isinstance(rung, NormalizedRung)
        if group.function is not None:
            _give_function(rung, group.function)
        moments = partial(ascent.moments, level) if ascent else None
        difference = _fill(rung, group, difference, moments, shifts=not _padded_next(groups[level + 1 :]))
        difference = _after(group, difference, rung.shape)
    ladder.calibrated.fill_(True)
    return ladder


def _ascent(ladder: Ladder, rows: Tensor) -> Ascent:
    check_rows(rows, ladder.shapes[0])
    check_calibration(rows, len(rows), chunk=None)
    return Ascent(ladder.rungs, rows)


def _fill(
    rung: NormalizedRung,
    group: Group,
    below: Difference,
    moments: Callable[[], tuple[Tensor, Tensor]] | None,
    *,
    shifts: bool,
) -> Difference:
    """Give a rung what its layers hold, and tell how what comes out of it differs from what comes out of them.

    x of the network is scale·y + shift, with y the ladder's, before either is normalised: W takes what it can of it.
    """
    if group.weighted:
        x = _take_weights(rung, group, below)
    else:
        x = below
        if isinstance(group.rung, MaxPool) and bool((x.scale < 0).any()):
            raise group.named.refused("what it pools has a negative scale from batch normalisation.")
    norm = _affine(group.norm) if group.norm else None
    if norm is not None:
        factor = torch.where(x.scale == 0, norm.deviation, x.scale)
        mean, deviation = (norm.mean - x.shift) / factor, norm.deviation / factor.abs()
    elif moments is not None:
        mean, deviation = (moment.cpu() for moment in moments())
        mean = mean if shifts else torch.zeros_like(mean)
    else:
        mean, deviation = torch.zeros_like(x.scale), torch.ones_like(x.scale)
    a, c = x.scale * deviation, x.scale * mean + x.shift
    if norm is not None:
        a, c = norm.scale * a / norm.deviation, norm.scale * (c - norm.mean) / norm.deviation + norm.shift
    return _set_values(rung, mean, deviation, a, c)


def _take_weights(rung: NormalizedRung, group: Group, below: Difference) -> Difference:
    """W·(scale·h + shift) + bias: the scale goes into the columns of W, and the shift comes out as a constant."""
    layer = group.named.layer
    assert isinstance(layer, nn.Linear | nn.Conv2d)
    assert isinstance(rung, DenseRung | ConvRung)
    weight = layer.weight.double().cpu()
    if isinstance(rung, DenseRung):
        weight = weight.flatten(1)
        below = below.spread(weight.shape[1])
    else:
        assert isinstance(group.rung, Conv)
        if max(group.rung.padded) and bool(below.shift.any()):
            raise group.named.refused(
                "it pads with zeros what a bias or batch normalisation before it has shifted, with no activation in "
                "between."
            )
        below = Difference(below.scale[:, None, None], below.shift[:, None, None].expand(weight.shape[1:]))
    constant = (weight * below.shift).flatten(1).sum(1)
    if layer.bias is not None:
        constant = constant + layer.bias.double().cpu()
    rung.weight.copy_(weight * below.scale)
    return Difference(torch.ones_like(constant), constant)


def _set_values(rung: NormalizedRung, mean: Tensor, deviation: Tensor, a: Tensor, c: Tensor) -> Difference:
    """Let φ(γ·(z + β)) be φ(a·z + c), up to a factor and a shift that are told."""
    if isinstance(rung, DenseRung | ConvRung) and rung.gamma is None:
        rung.weight[a < 0] *= -1
        mean, a = torch.where(a < 0, -mean, mean), a.abs()
    if rung.beta is not None:
        deviation, a = _away_from_zero(deviation, a)
    rung.mean.copy_(mean)
    rung.deviation.copy_(deviation)
    if rung.beta is None:
        return Difference(a, c)
    rung.beta.copy_(c / a)
    if rung.gamma is None:
        return Difference(a, torch.zeros_like(c))
    rung.gamma.copy_(a)
    return Difference(torch.ones_like(a), torch.zeros_like(c))


def _away_from_zero(deviation: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    """A larger deviation where the scale is too small, so that a·z stays what it is; none where the scale is zero."""
    least = torch.full_like(a, SMALLEST_SCALE).copysign(a)
    kept = torch.where(a.abs() < SMALLEST_SCALE, least, a)
    return torch.where(a == 0, deviation, deviation * kept / a), kept


def _affine(named: Named) -> Affine:
    layer = named.layer
    assert isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d | nn.SyncBatchNorm)
    assert layer.running_mean is not None
    assert layer.running_var is not None
    mean, variance = layer.running_mean.double().cpu(), layer.running_var.double().cpu()
    scale = torch.ones_like(mean) if layer.weight is None else layer.weight.double().cpu()
    shift = torch.zeros_like(mean) if layer.bias is None else layer.bias.double().cpu()
    return Affine(mean, (variance + layer.eps).sqrt(), scale, shift)


def _after(group: Group, difference: Difference, shape: Shape) -> Difference:
    """What batch normalisation behind the activation, or of the input, adds to the difference."""
    for named in group.after:
        norm = _affine(named)
        if len(norm.mean) not in (len(difference.scale), prod(shape)):
            raise named.refused(f"it has {len(norm.mean)} features, and rows have the shape {shape} there.")
        difference = difference.spread(len(norm.mean))
        factor = norm.scale / norm.deviation
        difference = Difference(difference.scale * factor, (difference.shift - norm.mean) * factor + norm.shift)
    return difference


def _padded_next(groups: Sequence[Group]) -> bool:
    """Whether the next weights, with nothing but pooling before them, see zeros beside their maps."""
    weighted = next((group for group in groups if group.weighted), None)
    return weighted is not None and isinstance(weighted.rung, Conv) and max(weighted.rung.padded) > 0


def _input_shape(groups: Sequence[Group], given: Sequence[int] | None) -> Shape:
    if given is not None:
        check_input_shape(given)
        return tuple(given)
    first = groups[1].named
    if isinstance(first.layer, nn.Linear):
        return (first.layer.in_features,)
    raise ValueError(
        f"The network begins with {first.layer}, which works on maps of any size; give input_shape, "
        "(channels, height, width)."
    )


def _give_function(rung: NormalizedRung, function: Callable[[Tensor], Tensor]) -> None:
    """An activation that no spec has a name for: state dicts tell of it, and are refused where they tell of another."""
    rung.activation = rung.activation._replace(function=function)
    rung.register_state_dict_post_hook(_tell_function)  # type: ignore[no-untyped-call]
    rung.register_load_state_dict_pre_hook(_check_function)  # type: ignore[no-untyped-call]


def _function_in_words(rung: NormalizedRung) -> str:
    function = rung.activation.function
    assert isinstance(function, partial)
    settings = ", ".join(f"{name}={value!r}" for name, value in function.keywords.items())
    return f"{function.func.__name__}({settings})"


def _tell_function(rung: NormalizedRung, state: dict[str, Tensor], prefix: str, _metadata: object) -> None:
    words = _function_in_words(rung).encode()
    state[f"{prefix}function"] = torch.tensor(list(words), dtype=torch.uint8, device="cpu")


def _check_function(rung: NormalizedRung, state: dict[str, Tensor], prefix: str, *others: Any) -> None:
    errors: list[str] = others[-1]
    told = state.pop(f"{prefix}function", None)
    known = "the usual one of its name" if told is None else bytes(told.tolist()).decode()
    if known != (own := _function_in_words(rung)):
        errors.append(
            f"{prefix}function: the activation is {own} here and {known} in the state dict. Make the ladder by "
            "from_sequential of the network that the weights are from."
        )


def _check_shapes(groups: Sequence[Group], below: Shape) -> None:
    """That every layer can stand where it does, and the last one makes one value for each output."""
    for group in groups:
        assert group.rung is not None
        if group is groups[-1]:
            group.rung = _without_a_map(group.rung, below)
        try:
            made = group.rung.shape(below)
        except ValueError as error:
            raise group.named.refused(str(error)) from error
        _check_width(group, below, made)
        below = made
    if len(below) > 1:
        top = groups[-1].named
        raise top.refused(f"it is the top, and makes maps of shape {below}; expected the shape (outputs,).")


def _without_a_map(top: RungSpec, below: Shape) -> RungSpec:
    """The rung that gives as a row what this one gives as maps of one position, looking at all positions at once."""
    sides = set(below[1:])
    if isinstance(top, MeanPool) and sides == {top.size}:
        return GlobalMeanPool()
    if isinstance(top, Conv) and sides == {top.kernel} and not max(top.padded):
        return Dense(top.features, top.activation)
    return top


def _check_width(group: Group, below: Shape, made: Shape) -> None:
    """That a layer stands on what it was made for, and its normalisation on what that layer makes."""
    layer = group.named.layer
    takes, given = 0, 0
    if isinstance(layer, nn.Linear):
        if len(below) > 1 and not group.flattened:
            raise group.named.refused(f"it works on each row of a map {below}; put nn.Flatten() before it.")
        takes, given = layer.in_features, prod(below)
    elif isinstance(layer, nn.Conv2d):
        takes, given = layer.in_channels, below[0]
    if takes != given:
        raise ValueError(
            f"Layer {group.named.name}, {layer}, takes {takes} inputs and stands on a level of shape {below}. "
            "Give the input_shape that the network was made for."
        )
    if group.norm is not None and group.norm.layer.num_features != made[0]:
        raise ValueError(
            f"Layer {group.norm.name}, {group.norm.layer}, stands on a level of shape {made}. Build it with "
            f"num_features={made[0]}."
        )


def _check_hooks(network: nn.Module) -> None:
    """That layers compute what they are made of; the Γ-model's own hook does nothing outside of it."""
    for name, module in network.named_modules():
        for hook in (*module._forward_pre_hooks.values(), *module._forward_hooks.values()):
            if not isinstance(hook, Corruption):
                raise ValueError(
                    f"{f'Layer {name}' if name else 'The network'}, {type(module).__name__}, has a hook, "
                    f"{getattr(hook, '__name__', type(hook).__name__)}, that may change what it computes, and a rung "
                    "has none. Remove it; what torch.nn.utils put there for weights, with its remove_weight_norm, "
                    f"remove_spectral_norm or prune.remove. {OTHERWISE}"
                )


def _warn_of_dropout(layers: Sequence[Named]) -> None:
    left_out = [named.name for named in layers if isinstance(named.layer, DROPOUTS)]
    if left_out:
        warnings.warn(
            f"Dropout is left out (layer {', '.join(left_out)}): a ladder has noise of its own.",
            UserWarning,
            stacklevel=5,
        )
