"""`Ladder.from_sequential`: in eval mode the ladder computes what the network computes, and it trains on from there."""

import random
import re
import warnings
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from tikas import Dense, Ladder, gamma
from tikas.model import ladder as ladder_module
from tikas.model.normalization import calibrate_running_statistics, normalize


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


ROWS, IMAGES = normal(40, 6, seed=1) + 0.5, normal(24, 2, 9, 9, seed=2) + 0.3


def conv(below: int, channels: int, kernel: int, activation: nn.Module | None = None, **settings) -> nn.Sequential:
    layer = nn.Conv2d(below, channels, kernel, **settings)
    return nn.Sequential(layer, nn.BatchNorm2d(channels), activation or nn.ReLU())


NETWORKS: dict[str, tuple[nn.Sequential, Tensor]] = {
    "dense": (
        nn.Sequential(
            *(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU()),
            *(nn.Linear(8, 7, bias=False), nn.BatchNorm1d(7), nn.LeakyReLU(0.1)),
            nn.Identity(),
            nn.Linear(7, 4),
        ),
        ROWS,
    ),
    "every activation": (
        nn.Sequential(
            *(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh()),
            *(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.GELU()),
            *(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.LeakyReLU()),
            *(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.GELU(approximate="tanh")),
            *(nn.Linear(8, 8), nn.BatchNorm1d(8)),
            *(nn.Linear(8, 4), nn.BatchNorm1d(4, eps=0.1)),
        ),
        ROWS,
    ),
    "normalized input and outputs of rungs": (
        nn.Sequential(
            *(nn.BatchNorm1d(6), nn.Linear(6, 8), nn.ReLU(), nn.BatchNorm1d(8)),
            *(nn.Linear(8, 8), nn.BatchNorm1d(8, affine=False), nn.Tanh(), nn.BatchNorm1d(8), nn.Linear(8, 4)),
        ),
        ROWS,
    ),
    "pooling rounded down": (
        nn.Sequential(
            *(conv(2, 5, 3, padding=1), nn.MaxPool2d(2)),
            *(conv(5, 6, 3, padding=2), conv(6, 6, 2, stride=2), nn.AvgPool2d(2)),
            *(nn.Flatten(), nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4)),
        ),
        IMAGES,
    ),
    "pooling rounded up": (
        nn.Sequential(
            *(conv(2, 5, 3, padding="same"), nn.MaxPool2d(2, ceil_mode=True), nn.AvgPool2d(2, ceil_mode=True)),
            *(nn.Sequential(conv(5, 6, 2)), nn.Flatten(), nn.Linear(24, 4)),
        ),
        IMAGES,
    ),
    "global pooling at the top": (
        nn.Sequential(
            *(conv(2, 5, 4, nn.LeakyReLU(0.1), padding=3), nn.MaxPool2d(3, stride=2)),
            *(conv(5, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        ),
        IMAGES,
    ),
    "normalized pooling": (
        nn.Sequential(
            *(conv(2, 5, 3, stride=2), nn.AvgPool2d(2), nn.BatchNorm2d(5), nn.Conv2d(5, 6, 1), nn.ReLU()),
            *(nn.AdaptiveAvgPool2d((1, 1)), nn.Flatten(), nn.BatchNorm1d(6), nn.Linear(6, 4)),
        ),
        IMAGES,
    ),
    "activation after max pooling": (
        nn.Sequential(
            *(nn.Conv2d(2, 5, 3), nn.BatchNorm2d(5), nn.MaxPool2d(2), nn.ReLU()),
            *(nn.Flatten(), nn.BatchNorm1d(45), nn.Linear(45, 4)),
        ),
        IMAGES,
    ),
    "flattened images": (
        nn.Sequential(nn.Flatten(), nn.BatchNorm1d(162), nn.Linear(162, 8), nn.ReLU(), nn.Linear(8, 4)),
        IMAGES,
    ),
    "mean over the whole map at the top": (
        nn.Sequential(conv(2, 5, 4), nn.Conv2d(5, 4, 1), nn.AvgPool2d(6), nn.Flatten()),
        IMAGES,
    ),
    "convolution over the whole map at the top": (
        nn.Sequential(conv(2, 5, 4), nn.MaxPool2d(2), nn.Conv2d(5, 4, 3), nn.BatchNorm2d(4), nn.Flatten()),
        IMAGES,
    ),
    "convolutions on maps of one position": (
        nn.Sequential(conv(2, 5, 3), nn.AvgPool2d(7), conv(5, 6, 1), nn.Conv2d(6, 4, 1, bias=False), nn.Flatten()),
        IMAGES,
    ),
    "convolutions after global pooling": (
        nn.Sequential(
            *(conv(2, 5, 3), nn.AdaptiveAvgPool2d(1), nn.BatchNorm2d(5)),
            *(nn.Conv2d(5, 6, 1), nn.Tanh(), nn.BatchNorm2d(6), nn.Conv2d(6, 4, 1, stride=2), nn.Flatten()),
        ),
        IMAGES,
    ),
    "nothing normalized": (
        nn.Sequential(
            *(nn.Conv2d(2, 5, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(5, 6, 3), nn.Tanh()),
            *(nn.Flatten(), nn.Linear(24, 9), nn.Linear(9, 4)),
        ),
        IMAGES,
    ),
}


def trained(name: str) -> tuple[nn.Sequential, Tensor]:
    """Return a network after a few updates, with scales of both signs in its BatchNorm layers, and its rows."""
    network, rows = NETWORKS[name]
    network, targets = deepcopy(network), torch.arange(len(rows)) % 4
    torch.manual_seed(0)
    for layer in network.modules():
        if hasattr(layer, "reset_parameters"):
            layer.reset_parameters()
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d) and layer.weight is not None:
            nn.init.normal_(layer.weight, mean=0.5)
            nn.init.normal_(layer.bias, std=0.3)
    for layer in network:  # max pooling directly above needs positive scales; see the test of the error
        if isinstance(layer, nn.BatchNorm2d):
            layer.weight.data.abs_()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.02)
    for _ in range(8):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network.train()(rows), targets).backward()
        optimizer.step()
    return network.eval(), rows


def assert_same_outputs(ladder: Ladder, network: nn.Sequential, rows: Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(ladder.eval()(rows), network.eval()(rows), rtol=tolerance, atol=tolerance)


# The same outputs


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_ladder_computes_what_the_network_computes(name, dtype, tolerance):
    network, rows = trained(name)
    network, rows = network.to(dtype), rows.to(dtype)
    ladder = Ladder.from_sequential(network, input_shape=rows.shape[1:], costs=0.1)
    assert {parameter.dtype for parameter in ladder.parameters()} == {dtype}
    for given in (rows, 3 * rows.flip(0) - 1, rows[:1]):
        assert_same_outputs(ladder, network, given, tolerance)


@pytest.mark.parametrize("name", NETWORKS)
def test_with_rows_every_rung_has_the_statistics_of_these_rows(name):
    network, rows = trained(name)
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
            layer.eps = 1e-10
    calibrate_running_statistics(network, [rows])
    ladder = Ladder.from_sequential(network, input_shape=rows.shape[1:], rows=rows)
    assert_same_outputs(ladder, network, rows)
    assert_same_outputs(ladder, network, 3 * rows.flip(0) - 1, tolerance=1e-4)
    if name != "pooling rounded down":  # where a convolution pads what was pooled, a mean cannot be subtracted
        assert_same_outputs(ladder.calibrate(rows), network, rows, tolerance=1e-4)
        torch.testing.assert_close(ladder.train()(rows), network(rows), rtol=1e-4, atol=1e-4)


def random_layer(place: int, channels: int, maps: bool, rng: random.Random) -> nn.Module:
    kind = rng.choice((("weights", "norm"), ("norm", "activation"), ("activation", "pool"))[place % 3])
    if kind == "norm":
        return (nn.BatchNorm2d if maps else nn.BatchNorm1d)(channels)
    if kind == "activation":
        return rng.choice((nn.ReLU, nn.LeakyReLU, nn.Tanh, nn.GELU))()
    if not maps:
        return nn.Linear(channels, 4) if kind == "weights" else nn.Identity()
    if kind == "pool":
        pool, size = rng.choice((nn.MaxPool2d, nn.AvgPool2d)), rng.randint(1, 3)
        return pool(size, rng.choice((None, 1, 2)), ceil_mode=rng.random() < 0.5)
    kernel, stride = rng.randint(1, 4), rng.choice((1, 1, 2))
    padding = rng.choice((0, kernel - 1, "same" if stride == 1 else 0))
    return nn.Conv2d(channels, rng.randint(2, 5), kernel, stride, padding, bias=rng.random() < 0.7)


def random_network(rows: Tensor, rng: random.Random) -> nn.Sequential:
    """Return layers in an order that PyTorch accepts; rungs may not be able to replace them."""
    network = nn.Sequential()
    for place in range(7):
        below = network(rows)
        network.append(random_layer(place, below.shape[1], below.dim() == 4, rng))
    if rows.dim() == 4:
        network.extend((rng.choice((nn.AdaptiveAvgPool2d(1), nn.Identity())), nn.Flatten()))
    network.append(nn.Linear(network(rows).shape[1], 3))
    for layer in network:
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.normal_(layer.weight, 0.8, 0.5)
            nn.init.normal_(layer.bias)
            layer.running_mean.normal_()
            layer.running_var.uniform_(0.5, 2)
    return network.eval()


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
def test_random_networks_are_converted_exactly_or_raise_value_error():
    converted = 0
    for seed in range(300):
        torch.manual_seed(seed)
        rows = torch.randn(16, 2, 9, 7) if seed % 3 else torch.randn(16, 6)
        try:
            network = random_network(rows, random.Random(seed))
        except (RuntimeError, ValueError):  # PyTorch does not accept it: a window is larger than its map
            continue
        expected = network(rows)
        scale = expected.abs().max().clamp_min(1)
        for given in (None, rows):
            try:
                ladder = Ladder.from_sequential(network, rows.shape[1:], rows=given, costs=0.0).eval()
            except ValueError:
                continue
            torch.testing.assert_close(ladder(rows) / scale, expected / scale, rtol=0, atol=1e-5)
            converted += 1
    assert converted > 50


def test_in_training_mode_the_ladder_normalizes_like_batch_norm():
    network, rows = trained("dense")
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm1d):
            layer.eps = 1e-10
    ladder = Ladder.from_sequential(network)
    expected = normalize(network.train()(rows), ladder.shapes[3])
    torch.testing.assert_close(ladder.encode(rows)[0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["dense", "pooling rounded up"])
def test_sync_batch_norm_is_converted_like_batch_norm(name):
    network, rows = trained(name)
    network = nn.SyncBatchNorm.convert_sync_batchnorm(network)
    assert_same_outputs(Ladder.from_sequential(network, input_shape=rows.shape[1:]), network, rows)


def test_scales_of_zero_are_exact():
    network, rows = trained("dense")
    with torch.no_grad():
        network[1].weight[:3] = 0
        network[4].weight[0] = 0
    assert_same_outputs(Ladder.from_sequential(network), network, rows)

    layers = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.AvgPool2d(7), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 3)
    nn.init.zeros_(layers[1].weight)
    network = nn.Sequential(*layers)
    assert_same_outputs(Ladder.from_sequential(network, input_shape=(2, 9, 9)), network, IMAGES)


def test_a_channel_that_is_zero_on_the_given_rows_is_exact_on_others():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(2, 4, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    with torch.no_grad():
        network[0].weight.mul_(0.01)
        network[0].bias[:2] = -0.05
    assert not network(IMAGES)[:, :2].any()
    assert network(10 * IMAGES)[:, :2].any()
    assert_same_outputs(Ladder.from_sequential(network, (2, 9, 9), rows=IMAGES), network, 10 * IMAGES)


def test_a_layer_that_is_used_several_times_becomes_several_rungs():
    torch.manual_seed(0)
    activation, norm, weights = nn.Tanh(), nn.BatchNorm1d(6), nn.Linear(6, 6)
    repeated = nn.Sequential(weights, norm, activation)
    network = nn.Sequential(repeated, weights, norm, activation, repeated, nn.Linear(6, 4)).eval()
    norm.running_mean.normal_()
    ladder = Ladder.from_sequential(network)
    assert ladder.shapes == [(6,)] * 4 + [(4,)]
    assert_same_outputs(ladder, network, 3 * ROWS)


def test_subclasses_of_sequential_are_sequentials_unless_they_have_their_own_forward():
    class Network(nn.Sequential):
        pass

    class Residual(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + x

    network = Network(Network(nn.Linear(6, 8), nn.ReLU()), nn.Linear(8, 3))
    assert_same_outputs(Ladder.from_sequential(network), network, ROWS)
    for other in (nn.Linear(6, 3), Residual(nn.Linear(6, 6))):
        with pytest.raises(TypeError, match=type(other).__name__):
            Ladder.from_sequential(other)
    with pytest.raises(ValueError, match="Layer 0, Residual,"):
        Ladder.from_sequential(nn.Sequential(Residual(nn.Linear(6, 6)), nn.Linear(6, 3)))


def test_dropout_is_left_out_with_a_warning_that_names_the_layers():
    network, rows = trained("dense")
    network = nn.Sequential(nn.Dropout(0.2), *network[:3], nn.Sequential(nn.Dropout(0.5), *network[3:])).eval()
    with pytest.warns(UserWarning, match=re.escape("0, 4.0")) as caught:
        ladder = Ladder.from_sequential(network)
    assert caught[0].filename == __file__
    assert_same_outputs(ladder, network, rows)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Ladder.from_sequential(trained("dense")[0])


@pytest.mark.parametrize(
    "add_hook",
    [
        lambda network: gamma(network, n_classes=3),
        lambda network: nn.utils.spectral_norm(network[0]),
        lambda network: prune.random_unstructured(network[3], "weight", 2),
    ],
    ids=["gamma", "spectral norm", "pruning"],
)
def test_a_network_with_hooks_that_set_its_weights_can_be_converted(add_hook):
    network = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))
    add_hook(network)
    assert_same_outputs(Ladder.from_sequential(network), network, ROWS)


# The ladder


def test_settings_are_passed_to_the_ladder():
    network, rows = trained("dense")
    settings = {"noise": 0.1, "costs": (10, 1, 0.1, 0.1), "denoiser": "mlp"}
    one, same, other = (
        Ladder.from_sequential(network, **settings, generator=torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)
    )
    assert [rung.noise for rung in one.rungs] == [0.1] * 4
    assert [rung.cost for rung in one.rungs] == [10, 1, 0.1, 0.1]
    assert torch.equal(one.rungs[2].back.weight, same.rungs[2].back.weight)
    assert not torch.equal(one.rungs[2].back.weight, other.rungs[2].back.weight)
    assert torch.equal(one(rows), other(rows))
    assert_same_outputs(Ladder.from_sequential(network, task="regression", costs=1.0), network, rows)


def test_nothing_is_shared_with_the_network():
    network, rows = trained("dense")
    before = network(rows)
    with torch.no_grad():
        for tensor in Ladder.from_sequential(network).state_dict().values():
            tensor.zero_()
    assert torch.equal(network(rows), before)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_ladder_trains(name):
    network, rows = trained(name)
    above = len(Ladder.from_sequential(network, input_shape=rows.shape[1:]).rungs) - 1
    ladder = Ladder.from_sequential(network, input_shape=rows.shape[1:], costs=[1.0] + [0.0] * above)
    optimizer = torch.optim.Adam(ladder.parameters(), lr=0.01)
    totals = []
    torch.manual_seed(0)
    for _ in range(15):
        optimizer.zero_grad()
        costs = ladder.costs(rows, rows[:12], torch.arange(12) % 4)
        costs.total.backward()
        optimizer.step()
        totals.append(costs.total.item())
    assert totals[-1] < 0.9 * totals[0]
    assert ladder.calibrate(rows).eval()(rows).isfinite().all()


@pytest.mark.parametrize(
    ("activation", "name"),
    [
        (nn.LeakyReLU(0.1), "leaky_relu"),
        (nn.LeakyReLU(), "leaky_relu(0.01)"),
        (nn.LeakyReLU(-0.5), "leaky_relu(-0.5)"),
        (nn.GELU(), "gelu"),
        (nn.GELU(approximate="tanh"), "gelu(tanh)"),
        (None, "linear"),
    ],
)
def test_activations_that_specs_cannot_express_have_their_parameter_in_their_name(activation, name):
    layers = [nn.Linear(6, 8), nn.BatchNorm1d(8), *([] if activation is None else [activation]), nn.Linear(8, 4)]
    ladder = Ladder.from_sequential(nn.Sequential(*layers)).eval()
    assert ladder.rungs[1].activation.name == name
    other = Ladder.from_sequential(nn.Sequential(*layers[:-1], nn.Linear(8, 4))).eval()
    other.load_state_dict(ladder.state_dict())
    for copy in (other, deepcopy(ladder)):
        assert torch.equal(copy(ROWS), ladder(ROWS))
    same_names = Ladder((6,), [Dense(8, activation=name.partition("(")[0]), Dense(4)])
    assert ladder.state_dict().keys() == same_names.state_dict().keys()


@pytest.mark.parametrize("name", ["dense", "normalized pooling", "nothing normalized"])
@pytest.mark.parametrize("with_rows", [False, True])
def test_the_default_device_changes_nothing(name, with_rows):
    class OnCPU(Ladder):
        def __init__(self, *args, **kwargs) -> None:
            with torch.device("cpu"):
                super().__init__(*args, **kwargs)

    network, rows = trained(name)
    arguments = {"input_shape": rows.shape[1:], "rows": rows if with_rows else None, "costs": 0.1}
    expected = Ladder.from_sequential(network, **arguments).eval()
    with torch.device("meta"):  # a tensor made there has no values
        ladder = OnCPU.from_sequential(network, **arguments).eval()
    assert isinstance(ladder, OnCPU)
    assert torch.equal(ladder(rows), expected(rows))


@pytest.mark.parametrize("name", ["normalized pooling", "nothing normalized"])
def test_statistics_do_not_depend_on_the_chunks_of_rows(name, monkeypatch):
    network, rows = trained(name)
    expected = Ladder.from_sequential(network, rows.shape[1:], rows=rows, costs=0.0).state_dict()
    monkeypatch.setattr(ladder_module, "MAX_SINGLE_PASS_VALUES", 1)
    monkeypatch.setattr(ladder_module, "MAX_CHUNK_ROWS_CPU", 7)
    found = Ladder.from_sequential(network, rows.shape[1:], rows=rows, costs=0.0).state_dict()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


# Errors


@pytest.mark.parametrize(
    ("layers", "named"),
    [
        ([nn.LSTM(2, 3)], "Layer 0, LSTM, cannot become a rung"),
        ([nn.Sequential(nn.Conv2d(2, 4, 3), nn.LayerNorm(7))], "Layer 0.1, LayerNorm,"),
        ([nn.Conv2d(2, 4, 5, padding=1)], "1 instead of 0, 2 or 4"),
        ([nn.Conv2d(2, 4, (3, 1))], "(3, 1) is not square"),
        ([nn.Conv2d(2, 4, 3, groups=2)], "groups"),
        ([nn.Conv2d(2, 4, 3, dilation=2)], "dilation"),
        ([nn.Conv2d(2, 4, 3, padding=1, padding_mode="reflect")], "padded with zeros"),
        ([nn.MaxPool2d(3, padding=1)], "padding"),
        ([nn.AdaptiveAvgPool2d(3)], "AdaptiveAvgPool2d(1)"),
        ([nn.Conv2d(2, 4, 3), nn.PReLU()], "ReLU, LeakyReLU, Tanh, GELU"),
        ([nn.ReLU()], "Layer 0, ReLU,"),
        ([nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Tanh()], "Layer 2, Tanh,"),
        ([nn.Conv2d(2, 4, 3), nn.AvgPool2d(2), nn.ReLU()], "Layer 2, ReLU,"),
        ([nn.Conv2d(2, 4, 3), nn.MaxPool2d(2), nn.GELU()], "Layer 2, GELU,"),
        ([nn.BatchNorm2d(2, track_running_stats=False)], "no running statistics"),
        ([nn.Conv2d(2, 4, 3), nn.Conv2d(4, 4, 3, padding=1)], "Layer 1, Conv2d,"),
        ([nn.Linear(9, 4)], "Put nn.Flatten() before it"),
        ([nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 3), nn.Softmax(1)], "Leave out a softmax"),
    ],
)
def test_a_layer_that_cannot_become_a_rung_raises_value_error_with_its_name_and_an_alternative(layers, named):
    network = nn.Sequential(*layers)
    if not isinstance(layers[-1], nn.Softmax):
        network.append(nn.AdaptiveAvgPool2d(1))
    with pytest.raises(ValueError, match=re.escape(named)) as caught:
        Ladder.from_sequential(network, input_shape=(2, 9, 9))
    assert "cannot become a rung" in str(caught.value)
    assert "tikas.gamma(network, n_classes)" in str(caught.value)


def test_max_pooling_of_channels_with_a_negative_scale_raises_value_error():
    network = nn.Sequential(conv(2, 4, 3), nn.AvgPool2d(2), nn.BatchNorm2d(4), nn.MaxPool2d(2), nn.Flatten())
    network.append(nn.Linear(4, 3))
    Ladder.from_sequential(network, input_shape=(2, 9, 9))
    with torch.no_grad():
        network[2].weight[1] = -1
    with pytest.raises(ValueError, match=r"Layer 3, MaxPool2d,.*negative scale"):
        Ladder.from_sequential(network, input_shape=(2, 9, 9))


@pytest.mark.parametrize(
    ("layers", "shape", "named"),
    [
        ([nn.Linear(6, 3), nn.ReLU()], None, "Layer 0, Linear,"),
        ([nn.Linear(6, 3), nn.BatchNorm1d(3), nn.BatchNorm1d(3)], None, "Layer 0, Linear,"),
        ([nn.Linear(4, 1)], None, "(1,)"),
        ([nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(1)], None, "input_shape=(channels, height, width)"),
        ([nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(1)], 28, "input_shape=28"),
        ([nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(1)], (28, 28), "input_shape=(28, 28)"),
        ([nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1)], (28, 28, 3), "(3, 28, 28)"),
        ([nn.AdaptiveAvgPool2d(1), nn.Conv2d(2, 4, 3, padding=1)], (2, 9, 9), "(2,)"),
        ([nn.Conv2d(3, 4, 3)], (3, 8, 8), "(4, 6, 6)"),
        ([nn.Conv2d(3, 4, 3), nn.MaxPool2d(6)], (3, 8, 8), "(4, 1, 1)"),
        ([nn.Conv2d(3, 4, 3), nn.AvgPool2d(5)], (3, 8, 8), "(4, 1, 1)"),
        ([nn.Conv2d(3, 4, 3), nn.AvgPool2d(6)], (3, 8, 9), "(4, 1, 1)"),
        ([nn.Conv2d(3, 4, 5, stride=4)], (3, 8, 8), "(4, 1, 1)"),
        ([nn.Conv2d(3, 4, 3, padding=1)], (3, 3, 3), "(4, 3, 3)"),
    ],
)
def test_a_network_that_cannot_become_a_ladder_raises_value_error(layers, shape, named):
    with pytest.raises(ValueError, match=re.escape(named)):
        Ladder.from_sequential(nn.Sequential(*layers), shape)


def test_rows_of_another_shape_raise_the_error_of_the_network():
    network = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(196, 3))
    for shape, named in (((2, 7, 7), "2x100 and 196x3"), ((3, 9, 9), "2 channels, but got 3")):
        with pytest.raises(RuntimeError, match=named):
            Ladder.from_sequential(network, shape)


@pytest.mark.parametrize("count", [0, 1])
def test_fewer_than_two_rows_raise_value_error(count):
    with pytest.raises(ValueError, match=f"{count} rows.*at least two"):
        Ladder.from_sequential(nn.Sequential(nn.Linear(6, 3)), rows=torch.rand(count, 6))
