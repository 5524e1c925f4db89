"""What the members of an estimator answer together: some thousand rows at a time, on a GPU where that is worth it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from math import prod
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tikas.model.ladder import Ladder
from tikas.training.precision import full_precision

Answer = Literal["outputs", "latents", "probabilities"]

MOST_IN_A_CHUNK = 2**25
"""Values of the largest level among the rows that are answered at once."""
MOST_ROWS, MOST_IMAGES = 4096, 1024
"""Rows that are answered at once, flat or not; how large the maps within a module are is not known."""
WORTH_A_GPU = 10**11
"""Products of flat ladders that are worth a GPU: some seconds of a CPU in double precision."""


def place_of_answers(members: Sequence[Ladder], rows: int, device: str | None) -> torch.device:
    """Where so many rows are answered: on the GPU that was asked for, or else on any, if it is here and worth it.

    A model may come from a machine with other devices. Flat ladders answer a few rows where they lie, on the CPU.

    Examples
    --------
    >>> from tikas import Dense, Ladder
    >>> place_of_answers([Ladder(input_shape=(4,), rungs=[Dense(3)])], rows=10, device="cuda:1")
    device(type='cpu')
    """
    asked = torch.device(device or "cuda")
    here = asked.type == "cuda" and (asked.index or 0) < torch.cuda.device_count()
    weights = sum(parameter.numel() for member in members for parameter in member.parameters())
    return asked if here and (not _flat(members) or rows * weights >= WORTH_A_GPU) else torch.device("cpu")


@torch.no_grad()
def mean_answer(
    members: Sequence[Ladder],
    rows: NDArray[Any],
    asked: Answer,
    *,
    device: str | None = None,
    prepare: Callable[[Tensor], Tensor] = lambda chunk: chunk,
) -> NDArray[np.float64]:
    """The mean over the members of their outputs, of their top latents or of their class probabilities.

    Flat ladders answer in double precision: the last digits of a float32 product vary with the number of rows in it,
    and a row's answer is not to depend on its company. On maps that would take several times as long, and a module may
    know no other precision than its own; those answer in single precision.

    Parameters
    ----------
    members
        They stay where they are; copies answer.
    rows
        As many as there are: what is done to them is done to some thousand at a time.
    asked
        Which of the three.
    device
        As `place_of_answers` takes it.
    prepare
        What is done to rows before members take them.

    Examples
    --------
    >>> from tikas import Dense, Ladder
    >>> rows = np.linspace(0, 1, 8, dtype=np.float32).reshape(4, 2)
    >>> members = [Ladder(input_shape=(2,), rungs=[Dense(3)]).calibrate(torch.from_numpy(rows)).eval() for _ in "ab"]
    >>> mean_answer(members, rows, "probabilities").sum(1).round(6).tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    place, precision = place_of_answers(members, len(rows), device), torch.float64 if _flat(members) else torch.float32
    copies = [_encoder(member).to(place, precision) for member in members]
    largest = max(prod(shape) for copy in copies for shape in copy.shapes)
    size = max(1, min(MOST_ROWS if _flat(members) else MOST_IMAGES, MOST_IN_A_CHUNK // largest))
    means = []
    with full_precision():
        for chunk in torch.from_numpy(rows).split(size):
            taken = prepare(chunk).to(place, precision)
            answers = [_answer(copy, taken, asked) for copy in copies]
            means.append(torch.stack(answers).mean(0).cpu())
    return np.asarray(torch.cat(means).numpy())


def _encoder(member: Ladder) -> Ladder:
    """A copy without what answers no question: denoisers, and the ways down."""
    parts = [part for rung in getattr(member, "rungs", ()) for part in (rung.denoiser, rung.back)]
    return deepcopy(member, {id(part): None for part in parts if part is not None})


def _answer(member: Ladder, rows: Tensor, asked: Answer) -> Tensor:
    latents, outputs = (each.double() for each in member.encode(rows))
    if asked == "probabilities":
        return outputs.softmax(-1)
    return latents if asked == "latents" else outputs


def _flat(members: Sequence[Ladder]) -> bool:
    return all(isinstance(member, Ladder) and all(len(shape) == 1 for shape in member.shapes) for member in members)
