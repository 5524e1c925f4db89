"""The paper's networks by name: their levels, activations and tops, and the supervised network before Conv-Large."""

import pytest
import torch
from torch import nn

from tikas import Ladder
from tikas.model.specs import MapTooSmallError, shapes_of
from tikas.model.zoo import NETWORKS, conv_pool_cnn_c, smallest_side

INPUT_SHAPES = {"mlp": (784,), "conv_fc": (1, 28, 28), "conv_small": (1, 28, 28), "conv_large": (3, 32, 32)}

# From the paper: channels and side of square maps, or units
LEVELS = {
    "mlp": [(784,), (1000,), (500,), (250,), (250,), (250,), (10,)],
    "conv_fc": [(1, 28), (1000, 3), (500, 3), (250, 3), (250, 3), (250, 3), (10, 3), (10,)],
    "conv_small": [(1, 28), (32, 32), (32, 16), (64, 14), (64, 16), (64, 8), (128, 6), (10, 6), (10,), (10,)],
    "conv_large": [
        *((3, 32), (96, 30), (96, 32), (96, 34), (96, 17), (192, 15), (192, 17), (192, 15), (192, 8), (192, 6)),
        *((192, 6), (10, 6), (10,)),
    ],
}


@pytest.mark.parametrize("name", NETWORKS)
def test_every_level_has_the_shape_of_the_paper(name):
    expected = [(*level, level[1]) if len(level) == 2 else level for level in LEVELS[name]]
    assert shapes_of(INPUT_SHAPES[name], NETWORKS[name](10)) == expected


@pytest.mark.parametrize("name", ["conv_fc", "conv_small", "conv_large"])
def test_the_full_ladder_denoises_every_level_down_to_the_image(name):
    with torch.device("meta"):  # shapes without values
        ladder = Ladder(INPUT_SHAPES[name], NETWORKS[name](10))
        rows = torch.empty(4, *INPUT_SHAPES[name])
        costs = ladder.costs(rows, rows, torch.zeros(4, dtype=torch.int64))
        costs.total.backward()
        assert [level.shape[1:] for level in ladder.denoise(rows)] == ladder.shapes
    assert costs.denoising.shape == (len(LEVELS[name]),)


def test_conv_large_has_leaky_activations_and_no_scale_at_the_top():
    with torch.device("meta"):
        rungs = Ladder(INPUT_SHAPES["conv_large"], NETWORKS["conv_large"](10), costs=0).rungs
    pools = (4, 8, 12)
    assert [rung.activation.name for rung in rungs[1:]] == [
        "linear" if level in pools else "leaky_relu" for level in range(1, 13)
    ]
    assert rungs[1].activation.function(torch.tensor(-1.0)).item() == pytest.approx(-0.1)
    assert rungs[-1].gamma is None
    assert rungs[-1].beta.shape == (10,)


def test_conv_small_has_relu_and_a_scale_at_the_top():
    with torch.device("meta"):
        rungs = Ladder(INPUT_SHAPES["conv_small"], NETWORKS["conv_small"](10), costs=0).rungs
    assert [rung.activation.name for rung in rungs[1:]] == [
        *("relu", "linear", "relu", "relu", "linear", "relu", "relu", "linear", "linear")
    ]
    assert rungs[-1].gamma.shape == rungs[-1].beta.shape == (10,)


@pytest.mark.parametrize(
    ("name", "side"), [("mlp", 1), ("conv_fc", 26), ("conv_small", 5), ("conv_large", 11), ("conv_pool_cnn_c", 12)]
)
def test_smallest_side_is_that_of_the_smallest_images_a_network_takes(name, side):
    assert smallest_side(name) == side
    if name in NETWORKS and side > 1:
        shapes_of((3, side, side), NETWORKS[name](10))
        with pytest.raises(MapTooSmallError):
            shapes_of((3, side, side - 1), NETWORKS[name](10))


def test_conv_pool_cnn_c_has_the_layers_of_its_paper():
    network = conv_pool_cnn_c()
    assert not any(isinstance(layer, nn.BatchNorm2d) for layer in network)
    assert [layer.p for layer in network if isinstance(layer, nn.Dropout)] == [0.2, 0.5, 0.5]
    pools = [layer for layer in network if isinstance(layer, nn.MaxPool2d)]
    assert [(pool.kernel_size, pool.stride) for pool in pools] == [(3, 2), (3, 2)]
    shapes, x = [], torch.rand(2, 3, 32, 32)
    for layer in network.eval():
        x = layer(x)
        if isinstance(layer, nn.Conv2d | nn.MaxPool2d):
            shapes.append(tuple(x.shape[1:3]))
    assert shapes == [
        *((96, 32), (96, 32), (96, 32), (96, 16), (192, 16), (192, 16), (192, 16), (192, 8)),
        *((192, 6), (192, 6), (10, 6)),
    ]
    assert x.shape == (2, 10)
    assert conv_pool_cnn_c(outputs=7, channels=1).eval()(torch.rand(2, 1, 32, 32)).shape == (2, 7)


def test_conv_pool_cnn_c_keeps_signals_at_one_scale_with_its_initial_weights():
    torch.manual_seed(0)
    x, deviations = torch.randn(4, 3, 32, 32), []
    for layer in conv_pool_cnn_c().eval():
        x = layer(x)
        if isinstance(layer, nn.Conv2d):
            deviations.append(x.std().item())
    assert 0.5 < min(deviations) < max(deviations) < 5
