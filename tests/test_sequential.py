"""A ladder from a network that exists gives what the network gave, and learns on from there."""

import random
import re
import warnings
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.utils._python_dispatch import TorchDispatchMode

from tikas import Dense, Ladder, gamma
from tikas.model.layers import CannotBeARungError
from tikas.model.running_statistics import calibrate_running_statistics


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


ROWS, IMAGES = normal(40, 6, seed=1) + 0.5, normal(24, 2, 9, 9, seed=2) + 0.3


def conv(below: int, channels: int, kernel: int, *, activation: nn.Module | None = None, **how) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(below, channels, kernel, **how), nn.BatchNorm2d(channels), activation or nn.ReLU())


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
    "normalised input and outputs of rungs": (
        nn.Sequential(
            *(nn.BatchNorm1d(6), nn.Linear(6, 8), nn.ReLU(), nn.BatchNorm1d(8)),
            *(nn.Linear(8, 8), nn.BatchNorm1d(8, affine=False), nn.Tanh(), nn.BatchNorm1d(8), nn.Linear(8, 4)),
        ),
        ROWS,
    ),
    "images, odd maps, pooling rounded down": (
        nn.Sequential(
            *(conv(2, 5, 3, padding=1), nn.MaxPool2d(2)),
            *(conv(5, 6, 3, padding=2), conv(6, 6, 2, stride=2), nn.AvgPool2d(2)),
            *(nn.Flatten(), nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4)),
        ),
        IMAGES,
    ),
    "images, odd maps, pooling rounded up": (
        nn.Sequential(
            *(conv(2, 5, 3, padding="same"), nn.MaxPool2d(2, ceil_mode=True), nn.AvgPool2d(2, ceil_mode=True)),
            *(nn.Sequential(conv(5, 6, 2)), nn.Flatten(), nn.Linear(24, 4)),
        ),
        IMAGES,
    ),
    "global pooling on top": (
        nn.Sequential(
            *(conv(2, 5, 4, padding=3, activation=nn.LeakyReLU(0.1)), nn.MaxPool2d(3, stride=2)),
            *(conv(5, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        ),
        IMAGES,
    ),
    "normalised pooling": (
        nn.Sequential(
            *(conv(2, 5, 3, stride=2), nn.AvgPool2d(2), nn.BatchNorm2d(5), nn.Conv2d(5, 6, 1), nn.ReLU()),
            *(nn.AdaptiveAvgPool2d((1, 1)), nn.Flatten(), nn.BatchNorm1d(6), nn.Linear(6, 4)),
        ),
        IMAGES,
    ),
    "activation behind max-pooling": (
        nn.Sequential(
            *(nn.Conv2d(2, 5, 3), nn.BatchNorm2d(5), nn.MaxPool2d(2), nn.ReLU()),
            *(nn.Flatten(), nn.BatchNorm1d(45), nn.Linear(45, 4)),
        ),
        IMAGES,
    ),
    "flattened images": (
        nn.Sequential(nn.Flatten(), nn.Linear(162, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4)),
        IMAGES,
    ),
    "mean over the whole map on top": (
        nn.Sequential(conv(2, 5, 4), nn.Conv2d(5, 4, 1), nn.AvgPool2d(6), nn.Flatten()),
        IMAGES,
    ),
    "convolution of the whole map on top": (
        nn.Sequential(conv(2, 5, 4), nn.MaxPool2d(2), nn.Conv2d(5, 4, 3), nn.BatchNorm2d(4), nn.Flatten()),
        IMAGES,
    ),
    "convolutions of one position": (
        nn.Sequential(
            *(conv(2, 5, 3), nn.AvgPool2d(7), conv(5, 6, 1), nn.Conv2d(6, 4, 1, bias=False), nn.Flatten()),
        ),
        IMAGES,
    ),
    "convolutions of means": (
        nn.Sequential(
            *(conv(2, 5, 3), nn.AdaptiveAvgPool2d(1), nn.BatchNorm2d(5)),
            *(nn.Conv2d(5, 6, 1), nn.Tanh(), nn.BatchNorm2d(6), nn.Conv2d(6, 4, 1, stride=2), nn.Flatten()),
        ),
        IMAGES,
    ),
    "nothing normalised": (
        nn.Sequential(
            *(nn.Conv2d(2, 5, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(5, 6, 3), nn.Tanh()),
            *(nn.Flatten(), nn.Linear(24, 9), nn.Linear(9, 4)),
        ),
        IMAGES,
    ),
}


def trained(name: str) -> tuple[nn.Sequential, Tensor]:
    """A network some updates old, with scales of both signs in its batch normalisation."""
    network, rows = NETWORKS[name]
    network, targets = deepcopy(network), torch.arange(len(rows)) % 4
    torch.manual_seed(0)
    for layer in network.modules():
        if hasattr(layer, "reset_parameters"):
            layer.reset_parameters()
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d) and layer.weight is not None:
            nn.init.normal_(layer.weight, mean=0.5)
            nn.init.normal_(layer.bias, std=0.3)
    for layer in network:  # what max-pooling sees directly must not be turned around: see the test of that below
        if isinstance(layer, nn.BatchNorm2d):
            layer.weight.data.abs_()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.02)
    for _ in range(8):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network.train()(rows), targets).backward()
        optimizer.step()
    return network.eval(), rows


@pytest.mark.parametrize("name", NETWORKS)
def test_in_eval_mode_the_ladder_gives_what_the_network_gives(name):
    network, rows = trained(name)
    ladder = Ladder.from_sequential(network, input_shape=rows.shape[1:], costs=0.1).eval()
    others = 3 * rows.flip(0) - 1
    for given in (rows, others, rows[:1]):
        torch.testing.assert_close(ladder(given), network(given), rtol=1e-5, atol=1e-5)


def drawn_layer(place: int, channels: int, maps: bool, rng: random.Random) -> nn.Module:
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


def drawn_network(rows: Tensor, rng: random.Random) -> nn.Sequential:
    """Layers in an order that torch allows, and rungs perhaps."""
    network = nn.Sequential()
    for place in range(7):
        made = network(rows)
        network.append(drawn_layer(place, made.shape[1], made.dim() == 4, rng))
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
def test_of_many_drawn_networks_each_is_refused_or_taken_over_exactly():
    taken = 0
    for seed in range(300):
        torch.manual_seed(seed)
        rows = torch.randn(16, 2, 9, 7) if seed % 3 else torch.randn(16, 6)
        try:
            network = drawn_network(rows, random.Random(seed))
        except (RuntimeError, ValueError):  # torch refuses it: a window larger than its map
            continue
        expected = network(rows)
        scale = expected.abs().max().clamp_min(1)
        for given in (None, rows):
            try:
                ladder = Ladder.from_sequential(network, rows.shape[1:], rows=given, costs=0.0).eval()
            except CannotBeARungError:
                continue
            torch.testing.assert_close(ladder(rows) / scale, expected / scale, rtol=0, atol=1e-5)
            taken += 1
    assert taken > 50


class OnTheCPU(Ladder):
    """As somebody's is on the GPU that they made the default; no tensor on 'meta' could be brought anywhere."""

    def __init__(self, *arguments, **settings) -> None:
        with torch.device("cpu"):
            super().__init__(*arguments, **settings)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("with_rows", [False, True])
def test_another_default_device_changes_nothing(name, with_rows):
    network, rows = trained(name)
    arguments = {"input_shape": rows.shape[1:], "rows": rows if with_rows else None, "costs": 0.1}
    expected = Ladder.from_sequential(network, **arguments).eval()
    with torch.device("meta"):
        ladder = OnTheCPU.from_sequential(network, **arguments).eval()
    assert torch.equal(ladder(rows), expected(rows))


@pytest.mark.parametrize("name", NETWORKS)
def test_in_double_precision_the_two_are_the_same(name):
    network, rows = trained(name)
    ladder = Ladder.from_sequential(network.double(), input_shape=rows.shape[1:]).eval()
    torch.testing.assert_close(ladder(rows.double()), network(rows.double()), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", [name for name in NETWORKS if name != "images, odd maps, pooling rounded down"])
def test_with_rows_it_computes_the_same_with_those_rows_statistics_at_every_rung(name):
    """Even where the network does not normalise. (Left out: the network that pads a map right after pooling it.)"""
    network, rows = trained(name)
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
            layer.eps = 1e-10
    calibrate_running_statistics(network, [rows])
    ladder = Ladder.from_sequential(network, input_shape=rows.shape[1:], rows=rows).eval()
    torch.testing.assert_close(ladder(rows), network(rows), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ladder.calibrate(rows)(rows), network(rows), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ladder.train()(rows), network(rows), rtol=1e-4, atol=1e-4)


def test_with_rows_pooling_below_padding_is_still_exact_before_it_is_calibrated():
    network, rows = trained("images, odd maps, pooling rounded down")
    ladder = Ladder.from_sequential(network, input_shape=rows.shape[1:], rows=rows).eval()
    torch.testing.assert_close(ladder(rows), network(rows), rtol=1e-5, atol=1e-5)


class LargestTensor(TorchDispatchMode):
    """Watches what is computed inside, and keeps the size of the largest result."""

    values = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        if isinstance(made, Tensor):
            self.values = max(self.values, made.numel())
        return made


def test_however_many_rows_it_is_given_it_looks_at_a_few_thousand_together():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(2, 50), nn.ReLU(), nn.Linear(50, 3)).eval()
    rows = torch.rand(20_000, 2)
    with LargestTensor() as largest:
        ladder = Ladder.from_sequential(network, rows=rows)
    assert largest.values <= 4096 * 50
    torch.testing.assert_close(ladder.eval()(rows), network(rows), rtol=1e-5, atol=1e-5)
    before = deepcopy(ladder.state_dict())
    torch.testing.assert_close(dict(ladder.calibrate(rows).state_dict()), dict(before), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["normalised pooling", "nothing normalised"])
def test_levels_too_large_to_keep_are_made_again_with_the_same_result(name, monkeypatch):
    network, rows = trained(name)
    kept = Ladder.from_sequential(network, rows.shape[1:], rows=rows, costs=0.0).state_dict()
    monkeypatch.setattr("tikas.model.calibration.MOST_KEPT", 0)
    again = Ladder.from_sequential(network, rows.shape[1:], rows=rows, costs=0.0).state_dict()
    assert all(torch.equal(tensor, again[name]) for name, tensor in kept.items())


@pytest.mark.parametrize(
    ("count", "message"),
    [(0, "Got rows of shape (0, 6): there are no rows to calibrate with"), (1, "Got 1 row to calibrate with")],
)
def test_no_rows_at_all_and_a_single_one_are_refused(count, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Ladder.from_sequential(nn.Sequential(nn.Linear(6, 3)), rows=torch.rand(count, 6))


@pytest.mark.parametrize("name", NETWORKS)
def test_the_ladder_trains_on(name):
    network, rows = trained(name)
    levels = len(Ladder.from_sequential(network, input_shape=rows.shape[1:]).rungs)
    ladder = Ladder.from_sequential(network, input_shape=rows.shape[1:], costs=[1.0] + [0.0] * (levels - 1))
    targets = torch.arange(12) % 4
    optimizer = torch.optim.Adam(ladder.parameters(), lr=0.01)
    totals = []
    torch.manual_seed(0)
    for _ in range(15):
        optimizer.zero_grad()
        costs = ladder.costs(rows, rows[:12], targets)
        costs.total.backward()
        optimizer.step()
        totals.append(costs.total.item())
    assert totals[-1] < 0.9 * totals[0]
    assert all(p.grad.isfinite().all() for p in ladder.parameters())
    assert ladder.calibrate(rows).eval()(rows).isfinite().all()


def test_in_training_mode_a_normalised_network_and_its_ladder_do_the_same():
    network, rows = trained("dense")
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm1d):
            layer.eps = 1e-10
    ladder = Ladder.from_sequential(network)
    scores = network.train()(rows)
    torch.testing.assert_close(ladder.rungs[3].normalize(scores), ladder.encode(rows)[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("activation", [nn.LeakyReLU(), nn.GELU(approximate="tanh")], ids=["slope", "tanh"])
def test_weights_are_loaded_only_where_the_activations_are_the_same(activation, tmp_path):
    network = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), activation, nn.Linear(8, 4)).eval()
    ladder = Ladder.from_sequential(network).eval()
    torch.save(ladder.state_dict(), tmp_path / "weights.pt")
    weights = torch.load(tmp_path / "weights.pt", weights_only=True)
    again = deepcopy(ladder)
    for parameter in again.parameters():
        parameter.data.zero_()
    again.load_state_dict(weights)
    assert torch.equal(again(ROWS), ladder(ROWS))

    name = "leaky_relu" if isinstance(activation, nn.LeakyReLU) else "gelu"
    usual = Ladder((6,), [Dense(8, activation=name), Dense(4)])
    with pytest.raises(RuntimeError, match=r"Unexpected key.*rungs\.1\.function"):
        usual.load_state_dict(weights)
    with pytest.raises(RuntimeError, match=rf"is {name}\(.*\) here and the usual one of its name in the state dict"):
        again.load_state_dict({name: tensor for name, tensor in weights.items() if "function" not in name})


def test_weights_of_another_slope_are_refused():
    one, other = (
        Ladder.from_sequential(nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.LeakyReLU(slope), nn.Linear(8, 4)))
        for slope in (0.01, 0.2)
    )
    with pytest.raises(
        RuntimeError, match=r"leaky_relu\(negative_slope=0.01\) here and leaky_relu\(negative_slope=0.2\)"
    ):
        one.load_state_dict(other.state_dict())


def test_settings_are_the_ladders():
    network, rows = trained("dense")
    draw = torch.Generator()
    one, same, other = (
        Ladder.from_sequential(
            network, noise=0.1, costs=(10, 1, 0.1, 0.1), denoiser="mlp", generator=draw.manual_seed(seed)
        )
        for seed in (0, 0, 1)
    )
    assert [rung.noise for rung in one.rungs] == [0.1] * 4
    assert [rung.cost for rung in one.rungs] == [10, 1, 0.1, 0.1]
    assert torch.equal(one.rungs[2].back.weight, same.rungs[2].back.weight)
    assert not torch.equal(one.rungs[2].back.weight, other.rungs[2].back.weight)
    assert torch.equal(one(rows), other(rows))
    values = Ladder.from_sequential(network, task="regression", costs=1.0).eval()
    torch.testing.assert_close(values(rows), network(rows), rtol=1e-5, atol=1e-5)


def test_nothing_is_shared_with_the_network():
    network, rows = trained("dense")
    before = network(rows)
    ladder = Ladder.from_sequential(network)
    with torch.no_grad():
        for tensor in ladder.state_dict().values():
            tensor.zero_()
    assert torch.equal(network(rows), before)


def test_a_layer_that_stands_in_several_places_counts_in_each():
    torch.manual_seed(0)
    activation, norm, weights, rows = nn.Tanh(), nn.BatchNorm1d(6), nn.Linear(6, 6), 3 * ROWS
    again = nn.Sequential(weights, norm, activation)
    network = nn.Sequential(again, weights, norm, activation, again, nn.Linear(6, 4)).eval()
    norm.running_mean.normal_()
    ladder = Ladder.from_sequential(network).eval()
    assert len(ladder.rungs) == 5
    torch.testing.assert_close(ladder(rows), network(rows), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["dense", "images, odd maps, pooling rounded up"])
def test_batch_normalisation_that_was_trained_in_several_processes_is_taken_over_too(name):
    network, rows = trained(name)
    network = nn.SyncBatchNorm.convert_sync_batchnorm(network)
    ladder = Ladder.from_sequential(network, input_shape=rows.shape[1:]).eval()
    torch.testing.assert_close(ladder(rows), network(rows), rtol=1e-5, atol=1e-5)


def test_a_scale_of_zero_is_no_trouble():
    network, rows = trained("dense")
    with torch.no_grad():
        network[1].weight[:3] = 0
        network[4].weight[0] = 0
    torch.testing.assert_close(Ladder.from_sequential(network).eval()(rows), network(rows), rtol=1e-5, atol=1e-5)


def test_a_channel_that_is_silent_on_the_rows_is_exact_where_it_is_not():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(2, 4, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    with torch.no_grad():
        network[0].weight.mul_(0.01)
        network[0].bias[:2] = -0.05
    ladder = Ladder.from_sequential(network, input_shape=(2, 9, 9), rows=IMAGES).eval()
    others = 10 * IMAGES
    assert not network(IMAGES)[:, :2].any()
    assert network(others)[:, :2].any()
    torch.testing.assert_close(ladder(others), network(others), rtol=1e-5, atol=1e-5)


def test_dropout_is_left_out_with_a_word():
    network, rows = trained("dense")
    dropping = nn.Sequential(nn.Dropout(0.2), *network[:3], nn.Sequential(nn.Dropout(0.5), *network[3:])).eval()
    with pytest.warns(UserWarning, match=re.escape("Dropout is left out (layer 0, 4.0): a ladder has noise")) as caught:
        ladder = Ladder.from_sequential(dropping).eval()
    assert caught[0].filename == __file__
    torch.testing.assert_close(ladder(rows), network(rows), rtol=1e-5, atol=1e-5)


def test_without_dropout_nothing_is_said():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Ladder.from_sequential(trained("dense")[0])


# What cannot become rungs.

OTHERWISE = "tikas.gamma(network, n_classes) works around any network."


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([nn.LSTM(2, 3)], "Layer 0, LSTM(2, 3), cannot become a rung: rungs are made of"),
        ([nn.TransformerEncoderLayer(4, 2)], "Layer 0, TransformerEncoderLayer(…), cannot become a rung:"),
        ([nn.Sequential(nn.Conv2d(2, 4, 3), nn.LayerNorm(7))], "Layer 0.1, LayerNorm((7,)"),
        ([nn.Conv2d(2, 4, 5, padding=1)], "padding 1 of a kernel of 5 is neither valid (0), same (2) nor full (4)."),
        ([nn.Conv2d(2, 4, (3, 1))], "(3, 1) is not square."),
        ([nn.Conv2d(2, 4, 3, groups=2)], "only convolutions without groups or dilation, padded with zeros, can."),
        ([nn.Conv2d(2, 4, 3, padding=1, padding_mode="reflect")], "padded with zeros, can."),
        ([nn.MaxPool2d(3, padding=1)], "only pooling without padding, dilation, indices or a divisor"),
        ([nn.AvgPool2d(2, divisor_override=3)], "only pooling without padding"),
        ([nn.AdaptiveAvgPool2d(3)], "only AdaptiveAvgPool2d(1), the mean over the whole map, can."),
        (
            [nn.AdaptiveAvgPool2d(1), nn.Conv2d(2, 4, 3, padding=1)],
            "Layer 1, Conv2d(2, 4, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1)), can",
        ),
        (
            [nn.AdaptiveAvgPool2d(1), nn.Conv2d(2, 4, 1), nn.MaxPool2d(1)],
            "it works on maps, and the mean over whole maps before it leaves one position.",
        ),
        *(
            ([nn.Conv2d(2, 4, 3), layer], "of activations, ReLU, LeakyReLU, Tanh, GELU.")
            for layer in (nn.PReLU(), nn.ELU(), nn.ReLU6(), nn.Sigmoid(), nn.Hardtanh(), nn.Softmax(1))
        ),
        ([nn.Flatten(2)], "only nn.Flatten() of whole rows can."),
        ([nn.ReLU()], "an activation comes after Linear or Conv2d"),
        ([nn.Conv2d(2, 4, 3), nn.MaxPool2d(2), nn.LeakyReLU(-0.5)], "an activation comes after Linear or Conv2d"),
        ([nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Tanh()], "an activation comes after Linear or Conv2d"),
        ([nn.Conv2d(2, 4, 3), nn.AvgPool2d(2), nn.ReLU()], "an activation comes after Linear or Conv2d"),
        ([nn.Conv2d(2, 4, 3), nn.MaxPool2d(2), nn.GELU()], "an activation comes after Linear or Conv2d"),
        ([nn.BatchNorm2d(2, track_running_stats=False)], "it keeps no running statistics"),
        ([nn.Conv2d(2, 4, 3), nn.Conv2d(4, 4, 3, padding=1)], "it pads with zeros what a bias or batch normalisation"),
        ([nn.Linear(9, 4)], "it works on each row of a map (2, 9, 9); put nn.Flatten() before it."),
    ],
)
def test_what_cannot_become_a_rung_is_named_with_what_always_works(layers, message):
    with pytest.raises(ValueError, match=re.escape(message)) as refusal:
        Ladder.from_sequential(nn.Sequential(*layers, nn.Flatten(), nn.Linear(196, 3)), input_shape=(2, 9, 9))
    assert str(refusal.value).endswith(OTHERWISE)
    assert "cannot become a rung" in str(refusal.value)


def test_pooling_what_was_turned_around_is_refused():
    network = nn.Sequential(conv(2, 4, 3), nn.AvgPool2d(2), nn.BatchNorm2d(4), nn.MaxPool2d(2), nn.Flatten())
    with torch.no_grad():
        network[2].weight[1] = -1
    with pytest.raises(ValueError, match="what it pools has a negative scale from batch normalisation"):
        Ladder.from_sequential(nn.Sequential(*network, nn.Linear(4, 3)), input_shape=(2, 9, 9))


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([nn.Linear(6, 3), nn.ReLU()], "it is the top, and a ladder's top has no relu after it."),
        ([nn.Linear(6, 3), nn.BatchNorm1d(3), nn.BatchNorm1d(3)], "Layer 2, BatchNorm1d(3"),
        ([nn.Dropout()], "There is no Linear, Conv2d or pooling layer in the network."),
    ],
)
def test_a_network_without_a_top_is_refused(layers, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Ladder.from_sequential(nn.Sequential(*layers))


@pytest.mark.parametrize("softmax", [nn.Softmax(dim=1), nn.LogSoftmax(dim=1)])
def test_of_a_softmax_at_the_end_it_is_said_to_leave_it_out(softmax):
    message = f"Layer 1, {softmax}: leave it out, the top of a ladder gives scores."
    with pytest.raises(ValueError, match=re.escape(message)):
        Ladder.from_sequential(nn.Sequential(nn.Linear(6, 3), softmax))


@pytest.mark.parametrize(
    ("add_hook", "message"),
    [
        (lambda network: nn.utils.spectral_norm(network[0]), "Layer 0, Linear, has a hook, SpectralNorm, that may"),
        (lambda network: prune.random_unstructured(network[2], "weight", 2), "Layer 2, Linear, has a hook"),
        (lambda network: network[1].register_forward_hook(lambda *_: None), "Layer 1, ReLU, has a hook, <lambda>, "),
        (lambda network: network.register_forward_pre_hook(lambda *_: None), "The network, Sequential, has a hook"),
    ],
)
def test_a_hook_is_refused_since_what_it_does_is_not_known(add_hook, message):
    network = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    add_hook(network)
    with pytest.raises(ValueError, match=f"{re.escape(message)}.* Remove it"):
        Ladder.from_sequential(network)


def test_a_network_that_gamma_stands_around_can_become_a_ladder():
    network = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)).eval()
    gamma(network, n_classes=3)
    torch.testing.assert_close(Ladder.from_sequential(network).eval()(ROWS), network(ROWS), rtol=1e-5, atol=1e-5)


def test_of_a_lazy_layer_it_is_said_to_run_the_network_first():
    network = nn.Sequential(nn.Linear(6, 5), nn.LazyBatchNorm1d(), nn.ReLU(), nn.LazyLinear(3)).eval()
    with pytest.raises(ValueError, match=r"Layer 1, LazyBatchNorm1d\(.*\), has no shape yet\. First run the network"):
        Ladder.from_sequential(network)
    expected = network(ROWS)
    torch.testing.assert_close(Ladder.from_sequential(network).eval()(ROWS), expected, rtol=1e-5, atol=1e-5)


def test_a_sequential_of_another_name_is_taken():
    class Block(nn.Sequential):
        def __init__(self, below: int, features: int) -> None:
            super().__init__(nn.Linear(below, features), nn.ReLU())

    class Network(nn.Sequential):
        pass

    network = Network(Block(6, 8), Block(8, 5), nn.Linear(5, 3)).eval()
    ladder = Ladder.from_sequential(network).eval()
    assert ladder.shapes == [(6,), (8,), (5,), (3,)]
    torch.testing.assert_close(ladder(ROWS), network(ROWS), rtol=1e-5, atol=1e-5)


def test_what_is_no_sequential_is_refused():
    class Own(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + x

    for network in (nn.Linear(6, 3), Own(nn.Linear(6, 6))):
        with pytest.raises(TypeError, match=re.escape(f"expected an nn.Sequential. {OTHERWISE}")):
            Ladder.from_sequential(network)
    with pytest.raises(CannotBeARungError, match=re.escape("Layer 0, Own(")):
        Ladder.from_sequential(nn.Sequential(Own(nn.Linear(6, 6)), nn.Linear(6, 3)))


@pytest.mark.parametrize(
    ("layers", "shape", "message"),
    [
        ([nn.Linear(4, 5), nn.BatchNorm1d(6), nn.Linear(5, 2)], None, "stands on a level of shape (5,)."),
        ([nn.Conv2d(1, 5, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1)], (1, 8, 8), "a level of shape (5, 6, 6)."),
        ([nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(1)], 28, "input_shape=28: expected (features,)"),
        ([nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(1)], (28, 28), "For grey images give (1, 28, 28)."),
        ([nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1)], (28, 28, 3), "expected (3, 28, 28), channels first."),
        ([nn.Conv2d(3, 4, 9), nn.AdaptiveAvgPool2d(1)], (3, 8, 8), "Layer 0, Conv2d(3, 4, kernel_size=(9, 9), stride"),
        ([nn.Conv2d(3, 4, 9), nn.AdaptiveAvgPool2d(1)], (3, 8, 8), "a kernel of (9, 9) is larger than the map"),
        ([nn.MaxPool2d(9), nn.Flatten(), nn.Linear(3, 2)], (3, 8, 8), "pooling leaves nothing"),
        ([nn.Conv2d(3, 4, 3)], (3, 8, 8), "it is the top, and makes maps of shape (4, 6, 6); expected the shape"),
        ([nn.Conv2d(3, 4, 3), nn.MaxPool2d(6)], (3, 8, 8), "it is the top, and makes maps of shape (4, 1, 1)"),
        ([nn.Conv2d(3, 4, 3), nn.AvgPool2d(5)], (3, 8, 8), "it is the top, and makes maps of shape (4, 1, 1)"),
        ([nn.Conv2d(3, 4, 3), nn.AvgPool2d(6)], (3, 8, 9), "it is the top, and makes maps of shape (4, 1, 1)"),
        ([nn.Conv2d(3, 4, 5, stride=4)], (3, 8, 8), "it is the top, and makes maps of shape (4, 1, 1)"),
        ([nn.Linear(4, 1)], None, "The top rung has the shape (1,); expected (classes,), two at the least"),
    ],
)
def test_a_network_that_cannot_stand_on_its_input_is_refused_with_both_shapes(layers, shape, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Ladder.from_sequential(nn.Sequential(*layers), shape)


def test_shapes_that_do_not_fit_are_refused_with_both():
    network = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(100, 3))
    with pytest.raises(ValueError, match=re.escape("give input_shape, (channels, height, width).")):
        Ladder.from_sequential(network)
    with pytest.raises(ValueError, match=re.escape("takes 2 inputs and stands on a level of shape (3, 7, 7).")):
        Ladder.from_sequential(network, input_shape=(3, 7, 7))
    with pytest.raises(ValueError, match=re.escape("takes 100 inputs and stands on a level of shape (4, 7, 7).")):
        Ladder.from_sequential(network, input_shape=(2, 9, 9))
    assert Ladder.from_sequential(network, input_shape=(2, 7, 7)).shapes == [(2, 7, 7), (4, 5, 5), (3,)]
