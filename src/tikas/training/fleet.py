"""Many seeds as one program: ladders of one shape stacked into one, and the update that trains them together."""

from collections.abc import Sequence
from copy import deepcopy

import torch
from torch import Tensor, nn

from tikas.data.streams import Examples, generator
from tikas.model.ladder import Costs, Ladder
from tikas.model.rungs import Dense
from tikas.data.streams import Batch
from tikas.training.recipe import Recipe


def build_ladder(recipe: Recipe, input_shape: Sequence[int], outputs: int, seed: int) -> Ladder:
    """The ladder that a recipe describes, with the first weights of this seed."""
    return Ladder(
        input_shape=input_shape,
        rungs=[*(Dense(units, activation=recipe.activation) for units in recipe.network), Dense(outputs)],
        noise=recipe.levels_of_noise(),
        costs=recipe.levels_of_costs(),
        denoiser=recipe.denoiser,
        task=recipe.task,
        generator=generator(seed, "weights"),
    )


def stack(ladders: Sequence[Ladder]) -> Ladder:
    """One ladder with a leading member dimension on every parameter and statistic; a ladder alone stays as it is.

    `tikas.model` is written so that such a ladder computes what its members would: see `tikas.model.layout`.
    """
    if len(ladders) == 1:
        return deepcopy(ladders[0])
    return _rebuild(ladders[0], [torch.stack(tensors) for tensors in zip(*map(_tensors, ladders), strict=True)])


def unstack(fleet: Ladder, members: int) -> list[Ladder]:
    """The members of a stacked ladder, each on its own again."""
    if members == 1:
        return [deepcopy(fleet)]
    return [_rebuild(fleet, [tensor[member].clone() for tensor in _tensors(fleet)]) for member in range(members)]
