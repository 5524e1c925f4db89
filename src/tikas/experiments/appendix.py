"""How the appendix's autoencoders are made of a cell: a recipe's network, with a decoder on one of its rungs."""

from __future__ import annotations

from collections.abc import Sequence

from tikas.data.streams import generator
from tikas.model.autoencoder import Autoencoder
from tikas.model.ladder import Ladder
from tikas.training.building import build_ladder
from tikas.training.fit import Build
from tikas.training.recipe import Recipe


def build_for(attached: int | None) -> Build:
    """What makes the members of a cell: autoencoders where it names a rung to attach a decoder to, else ladders.

    The input's λ of the recipe is the weight of the reconstruction.

    Examples
    --------
    >>> recipe = Recipe(network=(32, 16), costs=(1000, 0))
    >>> network = build_for(2)(recipe, (64,), 10, 0)
    >>> network.attached, network.cost, type(build_for(None)(recipe, (64,), 10, 0)).__name__
    (2, 1000.0, 'Ladder')
    """
    if attached is None:
        return build_ladder

    def build(recipe: Recipe, input_shape: Sequence[int], outputs: int, seed: int | None) -> Ladder:
        return Autoencoder(
            input_shape,
            recipe.rungs(outputs),
            attached,
            noise=recipe.levels_of_noise(),
            cost=recipe.levels_of_costs()[0],
            generator=None if seed is None else generator(seed, "weights"),
        )

    return build
