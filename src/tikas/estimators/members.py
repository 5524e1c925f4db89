"""Members around a module of one's own: each a copy of it, with the Γ-model on top."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tikas.data.images import TURN
from tikas.model.checks import SET_CLASSES, WrongScoresError, channels_last
from tikas.model.gamma import Gamma, gamma
from tikas.model.ladder import Ladder
from tikas.model.refusals import RefusedRowsError
from tikas.training.fit import Build
from tikas.training.randomness import own_randomness
from tikas.training.recipe import Recipe, check_around_module

SHAPES = (
    "Give X in the shape that it takes, images as (n, channels, height, width) even if they are grey, or change its "
    "first layers."
)
TOKENS = (
    "Rows come to it as floating-point numbers: let it make whole ones of them, x.long(), and keep noise off them, "
    "noise=(0, 0.3)."
)
"""What to do about rows that a module does not take: of another shape, or for a table of embeddings."""
CLASSES_OF_Y = "; n_classes is the number of classes in y, or in the parameter classes."
"""What to say in place of `SET_CLASSES`: estimators have no such parameter."""


def build_around(module: nn.Module, rows: NDArray[np.float32]) -> Build:
    """What makes members of a module: each a copy of it, with its own weights, and the Γ-model around the copy.

    Parameters
    ----------
    module
        It stays as it is. Members are in single precision. No ladder or Γ-model, which have costs of their own.
    rows
        What it takes; it is tried on the first two.

    Examples
    --------
    >>> build = build_around(nn.Linear(4, 3), np.zeros((5, 4), np.float32))
    >>> build(Recipe(network=(), noise=0.3, costs=2.0), (4,), 3, 0).rung.cost
    2.0
    """

    def build(recipe: Recipe, input_shape: Sequence[int], outputs: int, seed: int | None) -> Ladder:
        example = torch.from_numpy(rows[:2])
        copy = _copied(module).cpu().float()
        try:
            with own_randomness(seed):  # it is tried: lazy layers draw their first weights then
                model = gamma(copy, outputs, recipe.levels_of_noise(), recipe.costs[0], example=example)
        except WrongScoresError as error:
            raise ValueError(str(error).replace(SET_CLASSES, CLASSES_OF_Y)) from error
        except (RuntimeError, IndexError, RefusedRowsError) as error:
            said = _in_a_line(error.__cause__ if isinstance(error, RefusedRowsError) else error)
            remedy = TOKENS if "'indices'" in said else SHAPES  # of a table; too many for a tensor are another matter
            if isinstance(error, RefusedRowsError) and channels_last(tuple(input_shape)):
                remedy = TURN
            raise ValueError(
                f"network={type(module).__name__}(…) does not take rows of shape {tuple(input_shape)}: {said}. {remedy}"
            ) from error
        return cast("Ladder", model)  # it has all of a ladder that training asks for

    return build


def _copied(module: nn.Module) -> nn.Module:
    try:
        return deepcopy(module)
    except Exception as error:  # whatever a stranger's module keeps
        raise TypeError(
            f"network={type(module).__name__}(…) cannot be copied, and every member is a copy of it: "
            f"{_in_a_line(error)}. Leave out of it what copy.deepcopy does not take, and run lazy layers on a "
            "few rows first."
        ) from error


def _in_a_line(error: BaseException | None) -> str:
    return str(error).partition("\n")[0].rstrip(".") or type(error).__name__


def settings_around_module(chosen: Mapping[str, Any], task: str) -> dict[str, Any]:
    """What a recipe says instead of these settings where the network is a module: no rungs, and a single cost.

    Raises
    ------
    ValueError
        Where a setting is for rungs.

    Examples
    --------
    >>> chosen = {"network": nn.Linear(4, 3), "costs": None, "activation": "relu", "denoiser": "gaussian"}
    >>> settings_around_module(chosen, "classification")
    {'network': (), 'costs': 1.0}
    """
    check_around_module({**chosen, "task": task}, "a network of your own")
    return {"network": (), "costs": 1.0 if chosen["costs"] is None else chosen["costs"]}


def top_bias(member: Ladder) -> Tensor | None:
    """β of the outputs, where they have one.

    Examples
    --------
    >>> from tikas import Dense, Ladder
    >>> top_bias(Ladder(input_shape=(4,), rungs=[Dense(5), Dense(3)])).tolist()
    [0.0, 0.0, 0.0]
    """
    return (member.rung if isinstance(member, Gamma) else member.rungs[-1]).beta
