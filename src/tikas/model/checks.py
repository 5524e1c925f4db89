"""What ladders and the Γ-model are built of, checked at their doors: what was given, what expected, what to do."""

from collections.abc import Iterable, Sequence
from math import isfinite, prod
from numbers import Integral
from typing import Any, get_args

from torch import nn
from torch.jit import ScriptModule

from tikas.model.denoisers import DENOISERS
from tikas.model.heads import softmax_at_the_end, width_of_output
from tikas.model.names import Task
from tikas.model.specs import MapTooSmallError, RungSpec, Shape, shapes_of

MOST_CHANNELS = 4
"""Of images as they come: grey, colour, either with transparency."""

LEAST_SIDE = 16
"""Of images that are not square, to be told by their channels alone."""

SET_CLASSES = ", or set n_classes."
"""The other way out where a network has too many or too few outputs."""


class WrongScoresError(ValueError):
    """The scores of a network are not one for each row and class."""


def check_settings(
    input_shape: Sequence[int],
    rungs: Sequence[RungSpec],
    noise: float | Sequence[float],
    costs: float | Sequence[float] | None,
    denoiser: str,
    task: str,
) -> tuple[list[float], list[float]]:
    """The noise and the cost of every level, once everything about them is known to be good.

    Examples
    --------
    >>> from tikas import Dense
    >>> check_settings((64,), [Dense(32), Dense(10)], noise=0.3, costs=None, denoiser="gaussian", task="classification")
    ([0.3, 0.3, 0.3], [1000.0, 10.0, 0.1])
    """
    if not isinstance(rungs, Sequence) or not rungs or not all(isinstance(rung, RungSpec) for rung in rungs):
        raise ValueError(f"rungs={rungs!r}: expected rungs, the output's last, for example [Dense(100), Dense(10)].")
    check_input_shape(input_shape)
    try:
        shapes = shapes_of(input_shape, rungs)
    except MapTooSmallError as error:
        raise MapTooSmallError(f"{error}{hint_of_channels_last(tuple(input_shape))}") from error
    check_top(shapes[-1], task)
    if denoiser not in tuple(DENOISERS):
        raise ValueError(f"denoiser={denoiser!r}: choose one of {', '.join(map(repr, DENOISERS))}.")
    if task not in get_args(Task):
        raise ValueError(f"task={task!r}: choose 'classification' or 'regression'.")
    levels = len(rungs) + 1
    noises = _floats("noise", noise)
    noises = noises if isinstance(noises, list) else [noises] * levels
    weights = _floats("costs", [*[1000.0, 10.0][: levels - 1], *[0.1] * max(1, levels - 2)] if costs is None else costs)
    weights = weights if isinstance(weights, list) else [0.0] * (levels - 1) + [weights]
    for name, values in (("noise", noises), ("costs", weights)):
        if len(values) != levels:
            raise ValueError(
                f"{name} has {len(values)} values; with {len(rungs)} rungs give {levels}, "
                "one for the input and one for each rung, or a single number."
            )
        if not all(isfinite(value) and value >= 0 for value in values):
            raise ValueError(f"{name}={values}: every value must be finite and at least 0.")
    return noises, weights


def _floats(name: str, given: Any) -> float | list[float]:
    """A number, or several, of whatever a user has for numbers: lists, arrays, tensors."""
    plain = given.tolist() if hasattr(given, "tolist") else given
    try:
        return [float(value) for value in plain] if isinstance(plain, Iterable) else float(plain)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}={given!r}: expected a number, or several numbers.") from error


def check_input_shape(shape: Sequence[int]) -> None:
    """The shape of one row, or of one image with its channels first.

    Examples
    --------
    >>> check_input_shape((3, 32, 32))
    >>> check_input_shape((32, 32, 3))
    Traceback (most recent call last):
    ValueError: input_shape=(32, 32, 3): that is (height, width, channels); expected (3, 32, 32), channels first. ...
    """
    good = isinstance(shape, Sequence) and all(isinstance(side, Integral) and side > 0 for side in shape)
    if not good or len(shape) not in (1, 3):
        remedy = f" For grey images give {(1, *shape)}." if good and len(shape) == 2 else ""
        if getattr(shape, "ndim", 0) == 1:
            remedy = f" Give a tuple, {tuple(shape.tolist())}."  # type: ignore[attr-defined]
        raise ValueError(
            f"input_shape={shape!r}: expected (features,), the shape of one row. For images it is "
            f"(channels, height, width).{remedy}"
        )
    if channels_last(tuple(shape)):
        height, width, channels = shape
        raise ValueError(
            f"input_shape={tuple(shape)}: that is (height, width, channels); expected {(channels, height, width)}, "
            f"channels first. Turn the images with numpy.moveaxis(images, -1, -3). Maps that really are {channels} "
            f"wide can lie on their side, {(height, channels, width)}."
        )


def channels_last(shape: Shape) -> bool:
    """Whether a shape of three is certainly that of images with their channels at the end.

    Square images are told by that; others by so few channels behind sides of `LEAST_SIDE` pixels or more. Maps that are
    really so narrow lie as well with their height and width exchanged.

    Examples
    --------
    >>> channels_last((32, 32, 3)), channels_last((480, 640, 1)), channels_last((3, 32, 32)), channels_last((96, 3, 3))
    (True, True, False, False)
    """
    if len(shape) != 3 or shape[2] > MOST_CHANNELS:
        return False
    height, width, _ = shape
    return height == width > MOST_CHANNELS or min(height, width) >= LEAST_SIDE


def hint_of_channels_last(shape: Shape) -> str:
    """What to add to an error about maps that are too small, where the channels may be at the end; else nothing.

    Examples
    --------
    >>> hint_of_channels_last((14, 28, 3))
    ' The input has shape (14, 28, 3), read as (channels, height, width). If it is (height, width, channels), ...
    >>> hint_of_channels_last((3, 14, 28))
    ''
    """
    if len(shape) != 3 or shape[2] > MOST_CHANNELS or shape[2] >= min(shape[:2]):
        return ""
    return (
        f" The input has shape {shape}, read as (channels, height, width). If it is (height, width, channels), turn "
        "the images with numpy.moveaxis(images, -1, -3)."
    )


def check_top(shape: Shape, task: str) -> None:
    """One value for each class, or for each value of a regression.

    Examples
    --------
    >>> check_top((10,), "classification")
    >>> check_top((10, 6, 6), "classification")
    Traceback (most recent call last):
    ValueError: The top rung makes maps of shape (10, 6, 6); expected the shape (outputs,). ...
    """
    if len(shape) != 1:
        raise ValueError(
            f"The top rung makes maps of shape {shape}; expected the shape (outputs,). End with Dense(outputs), or "
            "with GlobalMeanPool() over maps of as many channels."
        )
    if shape == (1,) and task == "classification":
        raise ValueError(
            "The top rung has the shape (1,); expected (classes,), two at the least: a softmax of one value is always "
            "1. End with Dense(2) to tell two classes apart, or give task='regression'."
        )


def check_gamma(network: nn.Module, n_classes: int, noise: float | Sequence[float], cost: float) -> tuple[float, float]:
    """The noise of the input and that of all other places, once everything is known to be good.

    Examples
    --------
    >>> check_gamma(nn.Linear(4, 3), n_classes=3, noise=0.3, cost=1.0)
    (0.3, 0.3)
    """
    if not isinstance(network, nn.Module):
        raise TypeError(f"network={network!r}: expected a torch.nn.Module that ends in class scores.")
    if any(isinstance(module, ScriptModule) for module in network.modules()):
        raise TypeError(
            f"network={type(network).__name__}(…) is, or has in it, what torch.jit made of a network: no noise comes "
            "to layers in there, and their statistics cannot be set. Give the network that it was made of, compiled by "
            "torch.compile if at all."
        )
    if isinstance(n_classes, bool) or not isinstance(n_classes, Integral) or n_classes < 2:
        raise ValueError(f"n_classes={n_classes!r}: expected a whole number of at least 2.")
    noises = _floats("noise", noise)
    noises = noises if isinstance(noises, list) else [noises] * 2
    if len(noises) != 2 or not all(isfinite(value) and value >= 0 for value in noises):
        raise ValueError(
            f"noise={noise!r}: expected one deviation, or two, the input's and the one for all other places; finite "
            "and at least 0."
        )
    check_cost(cost)
    softmax = softmax_at_the_end(network)
    if softmax is not None:
        raise ValueError(
            f"The network ends in {softmax}; expected class scores, which a softmax comes after: it is a part of the "
            "cost. Leave that layer out."
        )
    width = width_of_output(network)
    if width not in (None, n_classes):
        raise WrongScoresError(wrong_scores(("rows", width), "rows", n_classes))
    return noises[0], noises[1]


def check_cost(cost: float) -> None:
    """λ where there is one.

    Examples
    --------
    >>> check_cost(-1.0)
    Traceback (most recent call last):
    ValueError: cost=-1.0: expected a finite number of at least 0.
    """
    weight = _floats("cost", cost)
    if isinstance(weight, list) or not (isfinite(weight) and weight >= 0):
        raise ValueError(f"cost={cost!r}: expected a finite number of at least 0.")


def wrong_scores(given: tuple[Any, ...], rows: Any, n_classes: int) -> str:
    """What to say of a network whose scores are not `n_classes` for each row.

    Examples
    --------
    >>> wrong_scores((8, 5), 8, n_classes=3)
    'The network gives scores of shape (8, 5), and n_classes=3 asks for (8, 3). Let its last layer have 3 outputs, ...
    >>> wrong_scores((8, 3, 6, 6), 8, n_classes=3)
    'The network gives scores of shape (8, 3, 6, 6), ... End it with nn.AdaptiveAvgPool2d(1) and nn.Flatten(), ...
    """
    shapes = [f"({', '.join(map(str, shape))})" for shape in (given, (rows, n_classes))]
    if len(given) > 2 and given[1] == n_classes:
        pooling = f"nn.AdaptiveAvgPool{len(given) - 2}d(1) and " if prod(given[2:]) > 1 else ""
        remedy = f"End it with {pooling}nn.Flatten(), for one score of each class."
    elif len(given) > 2 and given[-1] == n_classes:
        remedy = "Let it give one score of each class for a whole row, for example their mean over dimension 1."
    elif given[-1:] == (n_classes,):
        remedy = "Let it give as many rows of scores as it gets rows."
    else:
        remedy = f"Let its last layer have {n_classes} outputs{SET_CLASSES}"
    return f"The network gives scores of shape {shapes[0]}, and n_classes={n_classes} asks for {shapes[1]}. {remedy}"
