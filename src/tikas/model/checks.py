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
    """The noise and the cost of every level, once everything about them is known to be good.

    Examples
    --------
    >>> from tikas import Dense
    >>> check_settings((64,), [Dense(32), Dense(10)], noise=0.3, costs=None, denoiser="gaussian", task="classification")
    ([0.3, 0.3, 0.3], [1000.0, 10.0, 0.1])
    """
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
    """Whether a shape of three is that of square images with their channels at the end.

    Examples
    --------
    >>> channels_last((32, 32, 3)), channels_last((3, 32, 32)), channels_last((96, 3, 3))
    (True, False, False)
    """
    return len(shape) == 3 and shape[0] == shape[1] > MOST_CHANNELS >= shape[2]


def check_top(shape: Shape) -> None:
    """One value for each class, or for each value of a regression.

    Examples
    --------
    >>> check_top((10,))
    >>> check_top((10, 6, 6))
    Traceback (most recent call last):
    ValueError: The top rung makes maps of shape (10, 6, 6); expected the shape (outputs,). ...
    """
    if len(shape) != 1:
        raise ValueError(
            f"The top rung makes maps of shape {shape}; expected the shape (outputs,). End with Dense(outputs), or "
            "with GlobalMeanPool() over maps of as many channels."
        )


def check_rows(x: Tensor, shape: tuple[int, ...]) -> None:
    """Rows of the input's shape.

    Examples
    --------
    >>> check_rows(torch.zeros(100, 3, 32, 32), (3, 32, 32))
    >>> check_rows(torch.zeros(100, 32, 32, 3), (3, 32, 32))
    Traceback (most recent call last):
    ValueError: Got rows of shape (100, 32, 32, 3); this ladder takes (rows, 3, 32, 32). Channels come first: ...
    """
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


def check_some(x: Tensor) -> None:
    """Rows to take statistics of, one at the least.

    Examples
    --------
    >>> check_some(torch.zeros(0, 64))
    Traceback (most recent call last):
    ValueError: Got rows of shape (0, 64): there are no rows to calibrate with; give training rows, the more the better.
    """
    if x.numel() == 0:
        raise ValueError(
            f"Got rows of shape {tuple(x.shape)}: there are no rows to calibrate with; give training rows, the more "
            "the better."
        )


def check_targets(targets: Tensor | None, rows: torch.Size, task: Task, outputs: tuple[int, ...]) -> None:
    """A class, or values, for each of the labelled rows.

    Examples
    --------
    >>> check_targets(torch.tensor([0, 2, 1]), torch.Size([3]), "classification", (3,))
    >>> check_targets(torch.zeros(3, 2), torch.Size([3]), "regression", (1,))
    Traceback (most recent call last):
    ValueError: Got targets of shape (3, 2); expected values of (3, 1).
    """
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
    """One draw for each level.

    Examples
    --------
    >>> check_noise([torch.zeros(8, 4), torch.zeros(8, 3)], rows=8, shapes=[(4,), (3,)])
    >>> check_noise([torch.zeros(8, 4)], rows=8, shapes=[(4,), (3,)])
    Traceback (most recent call last):
    ValueError: Got noise of shapes [(8, 4)]; expected one tensor for each level: [(8, 4), (8, 3)].
    """
    given = [tuple(draw.shape) for draw in noise]
    expected = [(rows, *shape) for shape in shapes]
    fits = [shape[-len(wanted) :] == wanted for shape, wanted in zip(given, expected, strict=False)]
    if len(given) != len(expected) or not all(fits):
        raise ValueError(f"Got noise of shapes {given}; expected one tensor for each level: {expected}.")


def check_gamma(network: nn.Module, n_classes: int, noise: float | Sequence[float], cost: float) -> tuple[float, float]:
    """The noise of the input and that of all other places, once everything is known to be good.

    Examples
    --------
    >>> check_gamma(nn.Linear(4, 3), n_classes=3, noise=0.3, cost=1.0)
    (0.3, 0.3)
    """
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
    """What to say of a network whose last layer is not `n_classes` wide.

    Examples
    --------
    >>> wrong_scores((8, 5), 8, n_classes=3)
    'The network gives scores of shape (8, 5), and n_classes=3 asks for (8, 3). Let its last layer have 3 outputs, ...
    """
    shapes = [f"({', '.join(map(str, shape))})" for shape in (given, (rows, n_classes))]
    return (
        f"The network gives scores of shape {shapes[0]}, and n_classes={n_classes} asks for {shapes[1]}. "
        f"Let its last layer have {n_classes} outputs, or set n_classes."
    )
