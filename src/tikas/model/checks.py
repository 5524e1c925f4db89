"""What ladders and the Γ-model are given, checked at their doors: what was given, what was expected, what to do."""

from collections.abc import Iterable, Sequence
from math import isfinite
from numbers import Integral
from typing import Any, get_args

import torch
from torch import Tensor, nn

from tikas.model.denoisers import DENOISERS
from tikas.model.heads import width_of_output
from tikas.model.names import Task
from tikas.model.specs import RungSpec, Shape, shapes_of

MOST_CHANNELS = 4
"""Of images as they come: grey, colour, either with transparency."""


def check_settings(
    input_shape: Sequence[int],
    rungs: Sequence[RungSpec],
    noise: float | Sequence[float],
    costs: float | Sequence[float] | None,
    denoiser: str,
    task: str,
) -> tuple[list[float], list[float]]:
    """The noise and the cost of every level, once everything about them is known to be good."""
    if not rungs or not all(isinstance(rung, RungSpec) for rung in rungs):
        raise ValueError(f"rungs={rungs!r}: expected rungs, the output's last, for example [Dense(100), Dense(10)].")
    check_input_shape(input_shape)
    check_top(shapes_of(input_shape, rungs)[-1])
    if denoiser not in DENOISERS:
        raise ValueError(f"denoiser={denoiser!r}: choose one of {', '.join(map(repr, DENOISERS))}.")
    if task not in get_args(Task):
        raise ValueError(f"task={task!r}: choose 'classification' or 'regression'.")
    levels = len(rungs) + 1
    noises = [float(n) for n in noise] if isinstance(noise, Iterable) else [float(noise)] * levels
    if costs is None:
        weights = [1000.0, 10.0, *[0.1] * (levels - 2)]
    elif isinstance(costs, Iterable):
        weights = [float(c) for c in costs]
    else:
        weights = [0.0] * (levels - 1) + [float(costs)]
    for name, values in (("noise", noises), ("costs", weights)):
        if len(values) != levels:
            raise ValueError(
                f"{name} has {len(values)} values; with {len(rungs)} rungs give {levels}, "
                "one for the input and one for each rung, or a single number."
            )
        if not all(isfinite(value) and value >= 0 for value in values):
            raise ValueError(f"{name}={values}: every value must be finite and at least 0.")
    return noises, weights


def check_input_shape(shape: Sequence[int]) -> None:
    """The shape of one row, or of one image with its channels first."""
    good = isinstance(shape, Sequence) and all(isinstance(side, Integral) and side > 0 for side in shape)
    if not good or len(shape) not in (1, 3):
        grey = f" For grey images give {(1, *shape)}." if good and len(shape) == 2 else ""
        raise ValueError(
            f"input_shape={shape!r}: expected (features,), the shape of one row. For images it is "
            f"(channels, height, width).{grey}"
        )
    if channels_last(tuple(shape)):
        height, width, channels = shape
        raise ValueError(
            f"input_shape={tuple(shape)}: that is (height, width, channels); expected {(channels, height, width)}, "
            "channels first. Turn the images with numpy.moveaxis(images, -1, -3)."
        )


def channels_last(shape: Shape) -> bool:
    """Whether a shape of three is that of square images with their channels at the end."""
    return len(shape) == 3 and shape[0] == shape[1] > MOST_CHANNELS >= shape[2]


def check_top(shape: Shape) -> None:
    """One value for each class, or for each value of a regression."""
    if len(shape) != 1:
        raise ValueError(
            f"The top rung makes maps of shape {shape}; expected the shape (outputs,). End with Dense(outputs), or "
            "with GlobalMeanPool() over maps of as many channels."
        )


def check_rows(x: Tensor, shape: tuple[int, ...]) -> None:
    """Rows of the input's shape."""
    if x.dim() <= len(shape) or tuple(x.shape[-len(shape) :]) != shape:
        last = len(shape) == 3 and x.dim() > 3 and tuple(x.shape[-3:]) == (*shape[1:], shape[0])
        raise ValueError(
            f"Got rows of shape {tuple(x.shape)}; this ladder takes (rows, {', '.join(map(str, shape))}). "
            + (
                "Channels come first: turn the images with x.movedim(-1, -3)."
                if last
                else "Reshape them, or build the ladder with their input_shape."
            )
        )


def check_targets(targets: Tensor | None, rows: torch.Size, task: Task, outputs: tuple[int, ...]) -> None:
    """A class, or values, for each of the labelled rows."""
    if targets is None:
        if rows[-1]:
            raise ValueError(f"Got {rows[-1]} labelled rows and no targets; give the target of each.")
        return
    if task == "classification":
        whole = not (targets.is_floating_point() or targets.is_complex())
        if tuple(targets.shape) != tuple(rows) or not whole:
            raise ValueError(
                f"Got targets of shape {tuple(targets.shape)} and type {targets.dtype}; expected the number of a "
                f"class for each labelled row, whole numbers of shape {tuple(rows)}."
            )
    elif tuple(targets.shape) != (*rows, *outputs):
        raise ValueError(f"Got targets of shape {tuple(targets.shape)}; expected values of {(*rows, *outputs)}.")


def check_noise(noise: Sequence[Tensor], rows: int, shapes: Sequence[tuple[int, ...]]) -> None:
    """One draw for each level."""
    given = [tuple(draw.shape) for draw in noise]
    expected = [(rows, *shape) for shape in shapes]
    fits = [shape[-len(wanted) :] == wanted for shape, wanted in zip(given, expected, strict=False)]
    if len(given) != len(expected) or not all(fits):
        raise ValueError(f"Got noise of shapes {given}; expected one tensor for each level: {expected}.")


def check_gamma(network: nn.Module, n_classes: int, noise: float | Sequence[float], cost: float) -> tuple[float, float]:
    """The noise of the input and that of all other places, once everything is known to be good."""
    if not isinstance(network, nn.Module):
        raise TypeError(f"network={network!r}: expected a torch.nn.Module that ends in class scores.")
    if isinstance(n_classes, bool) or not isinstance(n_classes, Integral) or n_classes < 2:
        raise ValueError(f"n_classes={n_classes!r}: expected a whole number of at least 2.")
    noises = tuple(float(value) for value in noise) if isinstance(noise, Sequence) else (float(noise),) * 2
    if len(noises) != 2 or not all(isfinite(value) and value >= 0 for value in noises):
        raise ValueError(
            f"noise={noise!r}: expected one deviation, or two, the input's and the one for all other places; finite "
            "and at least 0."
        )
    if not (isfinite(cost) and cost >= 0):
        raise ValueError(f"cost={cost!r}: expected a finite number of at least 0.")
    width = width_of_output(network)
    if width not in (None, n_classes):
        raise ValueError(wrong_scores(("rows", width), "rows", n_classes))
    return noises[0], noises[1]


def wrong_scores(given: tuple[Any, ...], rows: Any, n_classes: int) -> str:
    """What to say of a network whose last layer is not `n_classes` wide."""
    shapes = [f"({', '.join(map(str, shape))})" for shape in (given, (rows, n_classes))]
    return (
        f"The network gives scores of shape {shapes[0]}, and n_classes={n_classes} asks for {shapes[1]}. "
        f"Let its last layer have {n_classes} outputs, or set n_classes."
    )
