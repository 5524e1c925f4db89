"""What a ladder is given, checked at its door: what was given, what was expected, what to do."""

from collections.abc import Iterable, Sequence
from math import isfinite
from typing import Literal, get_args

import torch
from torch import Tensor

from tikas.model.denoisers import DENOISERS
from tikas.model.rungs import Dense

Task = Literal["classification", "regression"]


def check_settings(
    input_shape: Sequence[int],
    rungs: Sequence[Dense],
    noise: float | Sequence[float],
    costs: float | Sequence[float] | None,
    denoiser: str,
    task: str,
) -> tuple[list[float], list[float]]:
    """The noise and the cost of every level, once everything about them is known to be good."""
    if not rungs or not all(hasattr(rung, "build") for rung in rungs):
        raise ValueError(f"rungs={rungs!r}: expected rungs, the output's last, for example [Dense(100), Dense(10)].")
    if not isinstance(input_shape, Sequence) or len(input_shape) != 1 or input_shape[0] < 1:
        raise ValueError(f"input_shape={input_shape!r}: expected (features,), the shape of one row.")
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


def check_rows(x: Tensor, shape: tuple[int, ...]) -> None:
    """Rows of the input's shape."""
    if x.dim() <= len(shape) or tuple(x.shape[-len(shape) :]) != shape:
        raise ValueError(
            f"Got rows of shape {tuple(x.shape)}; this ladder takes (rows, {', '.join(map(str, shape))}). "
            "Reshape them, or build the ladder with their input_shape."
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
