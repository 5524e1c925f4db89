"""The members of an estimator: made of a recipe or of a module of one's own, and what they answer together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from math import prod
from numbers import Real
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tikas.model.gamma import Gamma, gamma
from tikas.model.ladder import Ladder
from tikas.training.devices import full_precision
from tikas.training.fit import Build
from tikas.training.recipe import Recipe

MOST_IN_A_CHUNK = 2**25
"""Values of the largest level among the rows that are answered at once."""


def build_around(module: nn.Module, rows: NDArray[np.float32]) -> Build:
    """What makes members of a module: each a copy of it, with its own weights, and the Γ-model around the copy.

    Parameters
    ----------
    module
        It stays as it is. Members are in single precision.
    rows
        What it takes; it is tried on the first two.

    Examples
    --------
    >>> build = build_around(nn.Linear(4, 3), np.zeros((5, 4), np.float32))
    >>> build(Recipe(network=(), noise=0.3, costs=2.0), (4,), 3, 0).rung.cost
    2.0
    """

    def build(recipe: Recipe, input_shape: Sequence[int], outputs: int, seed: int | None) -> Ladder:
        if seed is not None:
            torch.manual_seed(seed)  # for what a module draws by itself, in dropout; see `own_randomness`
        example = torch.from_numpy(rows[:2])
        copy = deepcopy(module).cpu().float()
        try:
            model = gamma(copy, outputs, recipe.levels_of_noise(), recipe.costs[0], example=example)
        except (RuntimeError, IndexError, NotImplementedError) as error:
            raise ValueError(
                f"network={type(module).__name__}(…) does not take rows of shape {tuple(input_shape)}: "
                f"{str(error).splitlines()[0]}. Give X in the shape that it takes, images as "
                "(n, channels, height, width) even if they are grey, or change its first layers."
            ) from error
        return cast("Ladder", model)  # it has all of a ladder that training asks for

    return build


def settings_around_module(chosen: Mapping[str, Any], task: str) -> dict[str, Any]:
    """What a recipe says instead of these settings where the network is a module: no rungs, and a single cost.

    Raises
    ------
    ValueError
        Where a setting is for rungs.

    Examples
    --------
    >>> settings_around_module({"costs": None, "activation": "relu", "denoiser": "gaussian"}, "classification")
    {'network': (), 'costs': 1.0}
    """
    if task != "classification":
        raise ValueError(
            "A network of your own gets the Γ-model, which denoises class scores: give LadderRegressor rungs, for "
            "example network=['conv 32 3', 'max 2', 100]."
        )
    for name in ("activation", "denoiser"):
        if chosen[name] != getattr(Recipe, name):
            raise ValueError(
                f"{name}={chosen[name]!r} is for rungs, and the network is a module of your own. Leave {name} out."
            )
    costs = 1.0 if chosen["costs"] is None else chosen["costs"]
    if not isinstance(costs, Real):
        raise ValueError(
            f"costs={costs!r}: a network of your own has one denoising cost, on its class scores. Give one number."
        )
    return {"network": (), "costs": costs}


@contextmanager
def own_randomness() -> Iterator[None]:
    """Leave torch's global generators afterwards as they were before, whoever seeds them inside.

    Examples
    --------
    >>> before = torch.get_rng_state()
    >>> with own_randomness():
    ...     dropped = nn.functional.dropout(torch.ones(5))
    >>> torch.equal(torch.get_rng_state(), before)
    True
    """
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        yield


def top_bias(member: Ladder) -> Tensor | None:
    """β of the outputs, where they have one.

    Examples
    --------
    >>> from tikas import Dense, Ladder
    >>> top_bias(Ladder(input_shape=(4,), rungs=[Dense(5), Dense(3)])).tolist()
    [0.0, 0.0, 0.0]
    """
    return (member.rung if isinstance(member, Gamma) else member.rungs[-1]).beta


@torch.no_grad()
def mean_answer(
    members: Sequence[Ladder],
    rows: NDArray[Any],
    device: torch.device,
    *,
    latent: bool = False,
    probabilities: bool = False,
) -> NDArray[np.float64]:
    """The mean over the members of their outputs, of their top latents or of their class probabilities.

    Flat ladders answer in double precision: the last digits of a float32 product vary with the number of rows in it,
    and a row's answer is not to depend on its company. On maps that would take several times as long, and a module may
    know no other precision than its own; those answer in single precision, on `device`.
    """
    flat = all(isinstance(member, Ladder) and all(len(shape) == 1 for shape in member.shapes) for member in members)
    place, precision = (torch.device("cpu"), torch.float64) if flat else (device, torch.float32)
    total = torch.zeros((), dtype=torch.float64)
    for member in members:
        copy = deepcopy(member).to(place, precision)
        size = max(1, min(4096, MOST_IN_A_CHUNK // max(map(prod, copy.shapes))))
        chunks = (chunk.to(place, precision) for chunk in torch.from_numpy(rows).split(size))
        with full_precision():
            answers = torch.cat([copy.encode(chunk)[0 if latent else 1].cpu() for chunk in chunks]).double()
        total = total + (answers.softmax(-1) if probabilities else answers)
    return np.asarray((total / len(members)).numpy())
