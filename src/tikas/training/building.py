"""From a recipe to a member: the ladder that it describes, or the Γ-model around a module that has a name."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import cast

import torch

from tikas.data.streams import generator
from tikas.model.checks import hint_of_channels_last
from tikas.model.gamma import gamma
from tikas.model.ladder import Ladder
from tikas.model.specs import MapTooSmallError
from tikas.model.zoo import MODULES, ZOO, least_side
from tikas.training.devices import single_precision
from tikas.training.networks import TOP
from tikas.training.randomness import own_randomness
from tikas.training.recipe import Recipe


def build_ladder(recipe: Recipe, input_shape: Sequence[int], outputs: int, seed: int | None) -> Ladder:
    """The ladder that a recipe describes, with the first weights of this seed (or of none in particular).

    Where the network is a module it is the Γ-model around it, which has all of a ladder that training asks for. Torch's
    global generators stay as they are, unless there is no seed: then first weights are drawn from them.

    Raises
    ------
    ValueError
        Where the network has another number of outputs, or does not fit the images.

    Examples
    --------
    >>> build_ladder(Recipe(network=(500, 250)), (784,), outputs=10, seed=0).shapes
    [(784,), (500,), (250,), (10,)]
    """
    if recipe.is_module:
        return _build_around_module(recipe, input_shape, outputs, seed)
    try:
        with single_precision():
            ladder = Ladder(
                input_shape=input_shape,
                rungs=recipe.rungs(outputs),
                noise=recipe.levels_of_noise(),
                costs=recipe.levels_of_costs(),
                denoiser=recipe.denoiser,
                task=recipe.task,
                generator=None if seed is None else generator(seed, "weights"),
            )
    except MapTooSmallError as error:
        name = str(recipe.network[0])
        if name not in ZOO:
            raise
        raise _too_small(name, tuple(input_shape)) from error
    if ladder.shapes[-1] != (outputs,):
        raise ValueError(
            f"network={recipe.network!r} has a top of shape {ladder.shapes[-1]}; the data ask for {(outputs,)}. "
            f"For a dense top put 'top' behind 'global', network={(*recipe.network, TOP)!r}, or let the rung below "
            f"'global' have {outputs} channels."
        )
    return ladder


def _build_around_module(recipe: Recipe, input_shape: Sequence[int], outputs: int, seed: int | None) -> Ladder:
    name = str(recipe.network[0])
    try:
        with single_precision():
            with nullcontext() if seed is None else own_randomness(seed):  # layers draw their first weights there
                network = MODULES[name](outputs, input_shape[0])
            rows = torch.zeros(2, *input_shape)
            return cast("Ladder", gamma(network, outputs, recipe.levels_of_noise(), recipe.costs[0], example=rows))
    except RuntimeError as error:
        if min(input_shape[1:]) >= least_side(name):
            raise
        raise _too_small(name, tuple(input_shape)) from error


def _too_small(name: str, shape: tuple[int, ...]) -> MapTooSmallError:
    side = least_side(name)
    return MapTooSmallError(
        f"network={name!r} takes images of {side} by {side} pixels or more, and these have shape {shape}. Give larger "
        "images, or rungs of your own, for example network=['conv 32 3', 'max 2', 100]."
        f"{hint_of_channels_last(shape)}"
    )
