"""What `tikas train` starts from: a recipe that suits the data and, where one is named, the network."""

from collections.abc import Sequence
from dataclasses import replace

from tikas.data.kinds import Kind, kind_of
from tikas.training.recipe import DIGITS, Recipe
from tikas.training.suitable import costs_for, suitable_costs_on_maps

CIFAR10 = Recipe(
    data="cifar10",
    labels=4000,
    preprocess="whiten",
    network=("conv_large",),
    activation="leaky_relu",
    costs=(4.0,),
    epochs=70,
    annealed=0.14,
)
"""The paper's, for 4000 labels."""

OF_DATA_SETS = {"digits": DIGITS, "cifar10": CIFAR10}
OF_KINDS: dict[Kind, Recipe] = {
    "data set": Recipe(),
    "table": replace(DIGITS, labels="all", preprocess="standardize"),
    "folder": replace(DIGITS, labels="all"),
}


def preset_for(arguments: Sequence[str]) -> Recipe:
    """The recipe whose values hold for what the arguments of `tikas train` leave open.

    Its costs and epochs are for a data set; rows of one's own get theirs once they are there.

    Examples
    --------
    >>> preset_for(["train"]).data, preset_for(["train", "--data", "mnist"]).costs
    ('digits', (1000.0, 10.0, 0.1))
    >>> preset_for(["train", "--data=mnist", "--network", "conv_small"]).costs
    (1.0,)
    >>> preset_for(["train", "--network"]).costs  # the input and the top
    (1000.0, 0.1)
    """
    data = (_values_of("--data", arguments) or ["digits"])[0]
    preset = replace(OF_DATA_SETS.get(data, OF_KINDS[kind_of(data)]), data=data)
    words = _values_of("--network", arguments)
    if words is None:
        return preset
    try:
        chosen = Recipe(network=tuple(int(word) if word.isdecimal() else word for word in words), costs=(0.0,))
    except ValueError:
        return preset  # the parser will say what is wrong with it
    costs = suitable_costs_on_maps(chosen.network) if chosen.takes_maps else Recipe.costs
    if chosen.is_module:
        preset = replace(preset, activation=Recipe.activation)  # it has its own
    return replace(preset, network=chosen.network, costs=costs_for(chosen.levels, costs))


def _values_of(flag: str, arguments: Sequence[str]) -> list[str] | None:
    """What follows a flag, up to the next one, the last time that it is there; None where it is not."""
    for place, argument in reversed([*enumerate(arguments)]):
        name, equals, value = argument.partition("=")
        if name == flag:
            values = [value] if equals else []
            for following in arguments[place + 1 :]:
                if following.startswith("--"):
                    break
                values.append(following)
            return values
    return None
