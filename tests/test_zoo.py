"""The paper's networks: their rungs, their map sizes, their settings."""

import pytest
import torch
from torch import nn

from tikas import Ladder
from tikas.model.specs import shapes_of
from tikas.model.zoo import MODULES, ZOO, conv_pool_cnn_c
from tikas.training.building import build_ladder
from tikas.training.recipe import Recipe

IMAGES = {"mlp": (784,), "conv_fc": (1, 28, 28), "conv_small": (1, 28, 28), "conv_large": (3, 32, 32)}

# NOTES.md, section 1: channels and sides, rung by rung.
LEVELS = {
    "mlp": [(784,), (1000,), (500,), (250,), (250,), (250,), (10,)],
    "conv_fc": [(1, 28), (1000, 3), (500, 3), (250, 3), (250, 3), (250, 3), (10, 3), (10,)],
    "conv_small": [(1, 28), (32, 32), (32, 16), (64, 14), (64, 16), (64, 8), (128, 6), (10, 6), (10,), (10,)],
    "conv_large": [
        (3, 32), (96, 30), (96, 32), (96, 34), (96, 17), (192, 15), (192, 17), (192, 15), (192, 8), (192, 6),
        (192, 6), (10, 6), (10,),
    ],
}  # fmt: skip


def square(level: tuple[int, ...]) -> tuple[int, ...]:
    """Channels and side of square maps, or the units of a dense level."""
    assert len(level) == 1 or level[1] == level[2]
    return level[:2]


@pytest.mark.parametrize("name", ZOO)
def test_every_level_is_as_large_as_in_the_paper(name):
    assert [square(level) for level in shapes_of(IMAGES[name], ZOO[name](10))] == LEVELS[name]


@pytest.mark.parametrize("name", ZOO)
def test_a_recipe_names_a_network_and_the_ladder_of_it_is_built(name):
    recipe = Recipe(network=name, costs=1.0)
    with torch.device("meta"):
        ladder = build_ladder(recipe, IMAGES[name], 10, seed=None)
    assert [square(level) for level in ladder.shapes] == LEVELS[name]
    assert recipe.levels == len(LEVELS[name])
    assert recipe.levels_of_costs() == (0.0,) * (len(LEVELS[name]) - 1) + (1.0,)


@pytest.mark.parametrize(("name", "least"), [("conv_fc", 26), ("conv_small", 5), ("conv_large", 11)])
def test_images_that_are_too_small_for_a_network_are_refused_with_what_it_takes(name, least):
    with torch.device("meta"):
        build_ladder(Recipe(network=name, costs=1.0), (3, least, least), 10, seed=None)
    said = rf"'{name}' takes images of {least} by {least} pixels or more, .*\(3, {least}, {least - 1}\). Give larger"
    with pytest.raises(ValueError, match=said):
        build_ladder(Recipe(network=name, costs=1.0), (3, least, least - 1), 10, seed=None)


def test_images_that_are_too_small_may_have_their_channels_last():
    with pytest.raises(ValueError, match=r"'conv_small' takes .* If it is \(height, width, channels\), turn"):
        build_ladder(Recipe(network="conv_small", costs=1.0), (14, 28, 3), 10, seed=None)


@pytest.mark.parametrize("name", ["conv_fc", "conv_small", "conv_large"])
def test_the_full_ladder_goes_down_to_the_image_on_every_network(name):
    with torch.device("meta"):
        ladder = Ladder(IMAGES[name], ZOO[name](10), costs=None)
        rows = torch.empty(4, *IMAGES[name])
        costs = ladder.costs(rows, rows, torch.zeros(4, dtype=torch.int64))
        costs.total.backward()
        assert [tuple(level.shape[1:]) for level in ladder.denoise(rows)] == ladder.shapes
    assert costs.denoising.shape == (len(LEVELS[name]),)


def test_conv_large_is_leaky_and_has_no_scale_on_top():
    ladder = Ladder(IMAGES["conv_large"], ZOO["conv_large"](10), costs=0)
    slopes = [-rung.activation.function(torch.tensor(-1.0)).item() for rung in ladder.rungs[1:-1]]
    assert slopes == pytest.approx([0.1] * 3 + [1] + [0.1] * 3 + [1] + [0.1] * 3)  # pooling is linear
    assert ladder.rungs[-1].gamma is None
    assert ladder.rungs[-1].beta is not None


def test_conv_small_has_scale_and_bias_on_top():
    top = Ladder(IMAGES["conv_small"], ZOO["conv_small"](10), costs=0).rungs[-1]
    assert top.gamma is not None
    assert top.beta is not None


def test_the_recipes_activation_holds_where_a_network_says_none():
    small, large = (
        Recipe(network=name, activation="tanh", costs=1.0).rungs(10) for name in ("conv_small", "conv_large")
    )
    assert {rung.activation for rung in small[:-1] if hasattr(rung, "activation")} == {"tanh"}
    assert {rung.activation for rung in large if hasattr(rung, "activation")} == {"leaky_relu"}


@pytest.mark.parametrize(("outputs", "shapes"), [(10, ("(7,)", "(10,)")), (3, ("(7,)", "(3,)"))])
def test_a_network_whose_top_is_not_as_wide_as_the_data_ask_is_refused_with_both_shapes(outputs, shapes):
    with pytest.raises(ValueError, match="has a top of shape") as caught:
        build_ladder(Recipe(network=("conv 7 1", "global"), costs=1.0), (3, 8, 8), outputs, seed=0)
    assert all(shape in str(caught.value) for shape in shapes)


def test_conv_pool_cnn_c_is_the_supervised_original():
    network = conv_pool_cnn_c()
    layers = list(network)
    assert not any(isinstance(layer, nn.BatchNorm2d) for layer in layers)
    assert [layer.p for layer in layers if isinstance(layer, nn.Dropout)] == [0.2, 0.5, 0.5]
    pools = [layer for layer in layers if isinstance(layer, nn.MaxPool2d)]
    assert [(pool.kernel_size, pool.stride) for pool in pools] == [(3, 2), (3, 2)]
    sizes, x = [], torch.rand(2, 3, 32, 32)
    for layer in network.eval():
        x = layer(x)
        if isinstance(layer, nn.Conv2d | nn.MaxPool2d):
            sizes.append(tuple(x.shape[1:3]))
    assert sizes == [
        (96, 32), (96, 32), (96, 32), (96, 16), (192, 16), (192, 16), (192, 16), (192, 8), (192, 6), (192, 6), (10, 6),
    ]  # fmt: skip
    assert x.shape == (2, 10)
    assert conv_pool_cnn_c(outputs=7, channels=1).eval()(torch.rand(2, 1, 32, 32)).shape == (2, 7)


@pytest.mark.parametrize("name", MODULES)
def test_a_recipe_makes_the_gamma_model_of_a_module_with_the_weights_of_a_seed(name):
    recipe = Recipe(network=name, costs=2.0, noise=(0.1, 0.2))
    assert (recipe.levels, recipe.takes_maps) == (2, True)
    one, other, again = (build_ladder(recipe, (1, 16, 12), outputs=3, seed=seed) for seed in (0, 1, 0))
    assert (one.noise, one.rung.noise, one.rung.cost) == (0.1, 0.2, 2.0)
    first, another, same = (next(model.network.parameters()) for model in (one, other, again))
    assert torch.equal(first, same)
    assert not torch.allclose(first, another, atol=0.1)


def test_conv_pool_cnn_c_starts_with_signals_of_one_scale_from_layer_to_layer():
    torch.manual_seed(0)
    x, deviations = torch.randn(4, 3, 32, 32), []
    for layer in conv_pool_cnn_c().eval():
        x = layer(x)
        if isinstance(layer, nn.Conv2d):
            deviations.append(x.std().item())
    assert min(deviations) > 0.5
    assert max(deviations) < 5
