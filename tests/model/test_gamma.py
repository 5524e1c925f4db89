"""`gamma`: the ladder's costs around any module, noise in its normalization layers, and exact running statistics."""

import pickle
import re
import sys
from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from safetensors.torch import load_file, save_file
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from comparison import assert_compiled_eval_mode_needs_calibration, assert_compiled_once_for_all_sizes
from tikas import Dense, Ladder, gamma
from tikas.model.gamma import Gamma
from tikas.model.normalization import calibrate_running_statistics, frozen_running_statistics


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


UNLABELED, LABELED, TARGETS = normal(12, 6, seed=1), normal(9, 6, seed=2), torch.arange(9) % 3
IMAGES = normal(10, 3, 8, 8, seed=3)
NOISE = [normal(21, units, seed=units) for units in (6, 5, 4, 3)]
"""For `dense_network`: the input, two layers of BatchNorm and the scores."""


def dense_network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Linear(6, 5, bias=False), nn.BatchNorm1d(5, eps=1e-10), nn.ReLU()),
        *(nn.Linear(5, 4, bias=False), nn.BatchNorm1d(4, eps=1e-10), nn.ReLU()),
        nn.Linear(4, 3, bias=False),
    )


class ResNet(nn.Module):
    def __init__(self, channels: int = 3, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(channels, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.first, self.first_norm = nn.Conv2d(16, 32, 3, 2, padding=1, bias=False), nn.BatchNorm2d(32)
        self.second, self.second_norm = nn.Conv2d(32, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32)
        self.shortcut = nn.Sequential(nn.Conv2d(16, 32, 1, 2), nn.BatchNorm2d(32))
        self.head = nn.Linear(32, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        hidden = functional.relu(self.first_norm(self.first(x)))
        hidden = functional.relu(self.second_norm(self.second(hidden)) + self.shortcut(x))
        return self.head(hidden.mean((2, 3)))


class Attention(nn.Module):
    """Lines of pixels as tokens, a layer of attention with dropout, and a head on the mean token."""

    def __init__(self, side: int = 8, classes: int = 10) -> None:
        super().__init__()
        self.embed, self.position = nn.Linear(side, 32), nn.Parameter(torch.zeros(side, 32))
        self.encoder = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True, norm_first=True)
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.encoder(self.embed(x.squeeze(1)) + self.position)).mean(1))


class Function(nn.Module):
    """Layers by name, and a function of them and the rows."""

    def __init__(self, function: Callable[[nn.Module, Tensor], Tensor], **layers: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


# Costs


def ladder_and_gamma(dtype: torch.dtype) -> tuple[Ladder, Gamma]:
    """The same Γ-model twice: a ladder with a cost at the top alone, and `gamma` around a network with BatchNorm."""
    network = dense_network().to(dtype)
    ladder = Ladder((6,), [Dense(5), Dense(4), Dense(3)], noise=(0.3, 0.2, 0.2, 0.2), costs=0.7).to(dtype)
    model = gamma(network, n_classes=3, noise=(0.3, 0.2), cost=0.7)
    with torch.no_grad():
        for level, layer in ((1, 0), (2, 3), (3, 6)):
            ladder.rungs[level].weight.copy_(network[layer].weight)
            if level < 3:
                network[layer + 1].bias.copy_(normal(len(network[layer + 1].bias), seed=level))
                ladder.rungs[level].beta.copy_(network[layer + 1].bias)
        for name, parameter in model.rungs[0].named_parameters():
            parameter.add_(normal(*parameter.shape, seed=7) / 4)
            ladder.rungs[3].get_parameter(name).copy_(parameter)
    return ladder, model


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_costs_and_gradients_are_those_of_a_ladder_with_a_cost_at_the_top(dtype, tolerance):
    ladder, model = ladder_and_gamma(dtype)
    batch = UNLABELED.to(dtype), LABELED.to(dtype), TARGETS
    options = {"noise": [draw.to(dtype) for draw in NOISE], "weights": torch.linspace(0, 2, 9, dtype=dtype)}
    found, expected = (each.costs(*batch, **options) for each in (model, ladder))
    same = {"rtol": tolerance, "atol": tolerance}
    torch.testing.assert_close(found, expected._replace(denoising=expected.denoising[-1:]), **same)

    found.total.backward()
    expected.total.backward()
    pairs = [(model.network[layer].weight, ladder.rungs[level].weight) for level, layer in ((1, 0), (2, 3), (3, 6))]
    pairs += [(model.network[layer].bias, ladder.rungs[level].beta) for level, layer in ((1, 1), (2, 4))]
    top = dict(ladder.rungs[3].named_parameters())
    pairs += [(parameter, top[name]) for name, parameter in model.rungs[0].named_parameters()]
    assert len(pairs) == 8
    for one, other in pairs:
        assert other.grad.abs().max() > 1e-3
        torch.testing.assert_close(one.grad, other.grad, **same)


def test_outputs_in_eval_mode_are_those_of_the_calibrated_ladder():
    ladder, model = (each.calibrate(UNLABELED).eval() for each in ladder_and_gamma(torch.float32))
    torch.testing.assert_close(model.encode(LABELED), ladder.encode(LABELED))
    torch.testing.assert_close(model(LABELED)[:1], model(LABELED[:1]))


def test_without_a_cost_there_is_no_denoiser():
    model = gamma(dense_network(), n_classes=3, cost=0)
    costs = model.costs(UNLABELED[:0], LABELED, TARGETS)
    assert costs.total == costs.supervised > 0
    assert costs.denoising.tolist() == [0.0]
    assert model.rungs[0].denoiser is None


def test_without_labeled_rows_the_denoising_cost_remains():
    model = gamma(dense_network(), n_classes=3, cost=2.0)
    noise = [draw[9:] for draw in NOISE]
    costs = model.costs(UNLABELED, noise=noise)
    assert costs.supervised == 0
    assert costs.total == 2 * costs.denoising[0]
    torch.testing.assert_close(costs.denoising, model.costs(UNLABELED, LABELED, TARGETS, noise=NOISE).denoising)
    assert model.costs(UNLABELED, LABELED[:0], TARGETS[:0], noise=noise) == costs


def test_labeled_and_unlabeled_rows_are_normalized_with_their_own_statistics():
    model = gamma(dense_network(), n_classes=3)
    costs = model.costs(UNLABELED, LABELED, TARGETS, noise=NOISE)
    assert model.costs(UNLABELED, 3 * LABELED + 1, TARGETS, noise=NOISE).denoising == costs.denoising
    assert model.costs(3 * UNLABELED + 1, LABELED, TARGETS, noise=NOISE).supervised == costs.supervised


def test_a_network_may_change_its_input_in_place():
    def centered(network: nn.Module, x: Tensor) -> Tensor:
        return network.rest(x.sub_(0.5).mul_(2))

    model, rows = gamma(Function(centered, rest=dense_network()), n_classes=3), UNLABELED.clone()
    model.costs(rows, LABELED, TARGETS)
    scores = model.calibrate(rows)(rows)
    assert torch.equal(rows, UNLABELED)
    torch.testing.assert_close(model.eval()(rows), scores, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("network", "updates", "bound"), [(ResNet, 40, 0.3), (Attention, 60, 0.6)])
def test_a_network_learns_digits_from_50_labels(network, updates, bound):
    images, digits = load_digits(return_X_y=True)
    x, y = torch.from_numpy(images).float().reshape(-1, 1, 8, 8) / 16, torch.from_numpy(digits)
    x, y, test_x, test_y = x[:1400], y[:1400], x[1400:], y[1400:]
    labeled = torch.cat([torch.nonzero(y == digit)[:5, 0] for digit in range(10)])
    torch.manual_seed(0)
    model = gamma(network() if network is Attention else network(1), n_classes=10, noise=0.2, cost=0.1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.004)
    history = []
    for _ in range(updates):
        optimizer.zero_grad()
        costs = model.costs(x[torch.randint(len(x), (64,))], x[labeled], y[labeled])
        costs.total.backward()
        optimizer.step()
        history.append([costs.supervised.item(), costs.denoising.item()])
    first, last = (torch.tensor(part).mean(0) for part in (history[:10], history[-10:]))
    assert (last < 0.8 * first).all()
    error = (model.calibrate(x).eval()(test_x).argmax(1) != test_y).double().mean().item()
    assert error < bound  # 0.9 by chance


# Noise


class ChannelsFirstNorm(nn.LayerNorm):
    """As in ConvNeXt: normalizes each position over the channels, which come first."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


@pytest.mark.parametrize(
    ("layer", "weight_shape"),
    [
        (nn.BatchNorm2d(3), (3, 1, 1)),
        (nn.InstanceNorm2d(3, affine=True), (3, 1, 1)),
        (nn.InstanceNorm2d(3), ()),
        (nn.GroupNorm(3, 3), (3, 1, 1)),
        (nn.LayerNorm((3, 8, 8)), (3, 8, 8)),
        (nn.LayerNorm(8), (8,)),
        (nn.LayerNorm(8, elementwise_affine=False), ()),
        (nn.RMSNorm(8), (8,)),
        (ChannelsFirstNorm(3), (3, 1, 1)),
    ],
    ids=lambda value: str(value).partition(",")[0],
)
def test_noise_is_added_after_every_kind_of_normalization_and_before_its_scale(layer, weight_shape):
    layer, weight = deepcopy(layer), torch.ones(())
    if weight_shape:
        weight = nn.init.normal_(layer.weight, generator=torch.Generator().manual_seed(0)).detach().view(weight_shape)
    network = nn.Sequential(layer, nn.Flatten(), nn.Linear(192, 4))
    model = gamma(network, n_classes=4, noise=(0.0, 0.5))
    outputs = []
    network[1].register_forward_pre_hook(lambda _, inputs: outputs.append(inputs[0].detach()))
    noise = [normal(10, *shape, seed=4) for shape in ((3, 8, 8), (3, 8, 8), (4,))]
    model.costs(IMAGES, noise=noise)
    corrupted, clean = outputs
    torch.testing.assert_close(corrupted - clean, 0.5 * weight * noise[1], rtol=1e-4, atol=1e-5)


def test_a_channels_first_norm_is_recognized_on_square_maps_with_as_many_channels():
    layer = ChannelsFirstNorm(8)
    weight = nn.init.normal_(layer.weight, generator=torch.Generator().manual_seed(0)).detach()
    model = gamma(nn.Sequential(layer, nn.Flatten(), nn.Linear(512, 4)), n_classes=4, noise=(0.0, 0.5))
    x, noise = normal(10, 8, 8, 8, seed=5), normal(10, 8, 8, 8, seed=4)
    with model.layer_noise.active(lambda _: noise):
        corrupted = layer(x)
    torch.testing.assert_close(corrupted - layer(x), 0.5 * weight[:, None, None] * noise, rtol=1e-4, atol=1e-5)


def test_a_scale_does_not_outgrow_the_noise():
    # γ·relu(z + n + β) with γ multiplied into the next weights is the same model, so it has the same costs.
    one, other = dense_network(), dense_network()
    scale = normal(5, seed=5).exp()
    with torch.no_grad():
        other[1].weight.copy_(scale)
        other[3].weight.div_(scale)
    costs = [gamma(network, n_classes=3).costs(UNLABELED, LABELED, TARGETS, noise=NOISE) for network in (one, other)]
    torch.testing.assert_close(costs[0].total, costs[1].total)


def test_only_corrupted_passes_have_noise_even_after_an_error():
    network = dense_network()
    before = network(UNLABELED)
    model = gamma(network, n_classes=3, noise=5.0)
    model.costs(UNLABELED, LABELED, TARGETS)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        model.costs(UNLABELED[:, :2])
    assert torch.equal(network(UNLABELED), before)
    assert torch.equal(model(UNLABELED), model(UNLABELED))


def test_drawn_noise_depends_on_the_seed_alone():
    model = gamma(dense_network(), n_classes=3)
    costs = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        costs.append(model.costs(UNLABELED, LABELED, TARGETS).total.item())
    assert costs[0] == costs[1] != costs[2]
    one, other = (model.draw_noise(UNLABELED, 21, torch.Generator().manual_seed(3)) for _ in range(2))
    assert all(torch.equal(*draws) for draws in zip(one, other, strict=True))
    assert [draw.shape for draw in one] == [draw.shape for draw in NOISE]


def test_shapes_are_those_of_the_input_every_normalization_and_the_scores():
    rows = normal(4, 1, 8, 8)
    model = gamma(Attention(), n_classes=10, example=rows)
    assert model.shapes == [(1, 8, 8), *[(8, 32)] * 3, (10,)]
    assert model.costs(rows, noise=[normal(4, *shape) for shape in model.shapes]).total.isfinite()
    assert "0.3 on 3 layers" in repr(model)
    with pytest.raises(RuntimeError, match="example"):
        _ = gamma(Attention(), n_classes=10).shapes


def test_a_normalization_may_see_rows_and_tokens_as_one_dimension():
    def score(network: nn.Module, x: Tensor) -> Tensor:
        return network.head(network.norm(x.reshape(-1, 4)).reshape(-1, 5, 4)).mean(1)

    rows = normal(6, 5, 4)
    model = gamma(Function(score, norm=nn.LayerNorm(4), head=nn.Linear(4, 3)), n_classes=3, example=rows)
    assert model.shapes == [(5, 4), (20,), (3,)]
    assert model.costs(rows, rows[:4], TARGETS[:4], noise=model.draw_noise(rows, 10)).total > 0


def test_tokens_get_no_noise():
    network = nn.Sequential(nn.Embedding(20, 8), nn.Flatten(), nn.LayerNorm(40), nn.Linear(40, 3))
    tokens = torch.arange(50).reshape(10, 5) % 20
    model = gamma(network, n_classes=3, example=tokens)
    assert model.shapes == [(40,), (3,)]
    model.costs(tokens, tokens[:6], TARGETS[:6], noise=model.draw_noise(tokens, 16)).total.backward()
    assert network[0].weight.grad.abs().max() > 0
    assert model.calibrate(tokens).eval()(tokens[:1]).shape == (1, 3)


@pytest.mark.parametrize("copy", [lambda model: model, deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_normalization_layers_that_replace_others_get_noise_too(copy):
    model = copy(gamma(dense_network(), n_classes=3))
    expected = model.costs(UNLABELED, LABELED, TARGETS, noise=NOISE)
    for index, units in ((1, 5), (4, 4)):
        model.network[index] = nn.BatchNorm1d(units, eps=1e-10)
    assert model.costs(UNLABELED, LABELED, TARGETS, noise=NOISE) == expected
    assert [draw.shape for draw in model.draw_noise(UNLABELED, 21)] == [draw.shape for draw in NOISE]


@pytest.mark.parametrize(
    ("units", "error", "named"), [((6, 5, 4), IndexError, "empty list"), ((6, 5, 5, 3), RuntimeError, "[9, 4]")]
)
def test_noise_of_other_shapes_raises_an_error(units, error, named):
    noise = [normal(21, count) for count in units]
    with pytest.raises(error, match=re.escape(named)):
        gamma(dense_network(), n_classes=3).costs(UNLABELED, LABELED, TARGETS, noise=noise)


# Running statistics and calibration


def test_costs_and_scores_do_not_change_running_statistics():
    network = dense_network()
    model = gamma(network, n_classes=3).calibrate(UNLABELED)
    before = deepcopy(network.state_dict())
    model.costs(UNLABELED, LABELED + 5, TARGETS).total.backward()
    scores = model(UNLABELED[:2])
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert not torch.allclose(model.eval()(UNLABELED[:2]), scores)
    network.train()(UNLABELED)
    assert not torch.equal(network[1].running_mean, before["1.running_mean"])


@pytest.mark.parametrize("chunk", [7, None])
def test_calibration_is_exact_for_any_chunk(chunk):
    torch.manual_seed(0)
    model = gamma(ResNet(), n_classes=10)
    rows = normal(40, 3, 8, 8, seed=9)
    expected = model(rows)  # in training mode, a batch of all rows has the statistics that calibration must find
    model.calibrate(rows, chunk=chunk)
    assert model.training
    torch.testing.assert_close(model.eval()(rows), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model(rows[:1]), model(rows)[:1], rtol=1e-4, atol=1e-4)


def test_calibration_takes_one_pass_for_a_single_chunk_and_otherwise_stops_at_the_layer_that_it_sets():
    networks = [ResNet().double().eval() for _ in range(2)]
    networks[1].load_state_dict(networks[0].state_dict())
    images, full_passes = IMAGES.double(), [0, 0]
    for index, chunks in enumerate(([images], images.split(5))):

        def count(*_: object, index: int = index) -> None:
            full_passes[index] += 1

        networks[index].register_forward_hook(count)
        calibrate_running_statistics(networks[index], chunks)
    assert full_passes == [2, 1]  # of which one finds the order of the layers
    buffers = dict(networks[1].named_buffers())
    for name, buffer in networks[0].named_buffers():
        torch.testing.assert_close(buffer, buffers[name])


def test_calibration_turns_dropout_off_and_restores_the_mode_of_every_layer():
    network = nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))
    model = gamma(network, n_classes=3).train()
    network[3].eval()
    model.calibrate(UNLABELED)
    torch.testing.assert_close(network[2].running_mean, network[0](UNLABELED).mean(0))
    assert [module.training for module in network] == [True, True, True, False, True]


def test_frozen_layers_keep_their_statistics():
    network = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    network[0].running_mean.fill_(2.0)
    model = gamma(network, n_classes=3).train()
    network[0].eval()  # what a user's own train() does for frozen layers
    expected = model(UNLABELED)
    model.calibrate(UNLABELED)
    assert network[0].running_mean.tolist() == [2.0] * 6
    torch.testing.assert_close(model.eval()(UNLABELED), expected, rtol=1e-4, atol=1e-5)
    model.calibrate(UNLABELED)  # with the whole model in eval mode, no layer is frozen
    torch.testing.assert_close(network[0].running_mean, UNLABELED.mean(0))


def test_frozen_layers_without_statistics_raise_runtime_error_naming_the_layer():
    network = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    model = gamma(network, n_classes=3)
    network.eval()  # the network alone: a mistake for model.eval()
    for use in (model.costs, model.calibrate):
        with pytest.raises(RuntimeError, match="BatchNorm1d layer '1'"):
            use(UNLABELED)
    assert model.eval().calibrate(UNLABELED).train().costs(UNLABELED).total.isfinite()


def test_costs_in_eval_mode_raise_runtime_error_naming_train():
    model = gamma(dense_network(), n_classes=3).calibrate(UNLABELED).eval()
    with pytest.raises(RuntimeError, match=r"Gamma is in eval mode: call train\(\)"):
        model.costs(UNLABELED)


def test_a_layer_called_twice_and_by_keyword_is_calibrated_with_both_inputs():
    def score(network: nn.Module, x: Tensor) -> Tensor:
        return network.head(input=network.norm(input=x) + network.norm(x + 2))

    model = gamma(Function(score, norm=nn.BatchNorm1d(6), head=nn.Linear(6, 3)), n_classes=3).calibrate(UNLABELED)
    torch.testing.assert_close(model.network.norm.running_mean, UNLABELED.mean(0) + 1)


def test_lazy_layers_get_noise_after_their_first_pass_and_exact_statistics():
    network = nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.ReLU(), nn.Flatten(), nn.LazyLinear(3))
    model = gamma(network, n_classes=3)
    model.costs(IMAGES)
    assert [draw.shape for draw in model.draw_noise(IMAGES, 10)] == [(10, 3, 8, 8), (10, 4, 6, 6), (10, 3)]
    model.calibrate(IMAGES)
    torch.testing.assert_close(network[1].running_mean, network[0](IMAGES).mean((0, 2, 3)))


def test_layers_without_running_statistics_stay_without():
    norms = [nn.InstanceNorm2d(4), nn.BatchNorm2d(4, track_running_stats=False)]
    network = nn.Sequential(nn.Conv2d(3, 4, 3), *norms, nn.Flatten(), nn.Linear(144, 3))
    gamma(network, n_classes=3).calibrate(IMAGES).costs(IMAGES)
    assert [(norm.track_running_stats, norm.running_mean) for norm in norms] == [(False, None)] * 2


def test_frozen_running_statistics_restores_layers_after_an_error():
    network = nn.Sequential(nn.BatchNorm1d(6), nn.BatchNorm1d(6, track_running_stats=False))
    with pytest.raises(ArithmeticError), frozen_running_statistics(network):
        raise ArithmeticError
    assert [layer.track_running_stats for layer in network] == [True, False]


# Errors


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"n_classes": 1}, "n_classes=1"),
        ({"n_classes": 3.0}, "features=3.0"),
        ({"noise": -0.1}, "noise=-0.1"),
        ({"noise": (0.3, 0.2, 0.2)}, "noise=(0.3, 0.2, 0.2)"),
        ({"cost": float("nan")}, "cost=nan"),
    ],
)
def test_wrong_settings_raise_value_error_naming_the_setting(changes, named):
    with pytest.raises(ValueError, match=re.escape(named)):
        gamma(**{"network": dense_network(), "n_classes": 3, **changes})


@pytest.mark.parametrize("wrap", [lambda model: model, nn.Sequential, nn.DataParallel])
@pytest.mark.parametrize("make", [lambda: Ladder((6,), [Dense(3)]), lambda: gamma(dense_network(), n_classes=3)])
def test_a_network_with_its_own_costs_raises_type_error(make, wrap):
    model = make()
    with pytest.raises(TypeError, match=type(model).__name__):
        gamma(wrap(model), n_classes=3)


@pytest.mark.parametrize("softmax", [nn.Softmax(1), nn.Sequential(nn.ReLU(), nn.LogSoftmax(1))])
def test_a_network_that_ends_in_softmax_raises_value_error(softmax):
    with pytest.raises(ValueError, match=r"Softmax\(dim=1\)"):
        gamma(nn.Sequential(nn.Linear(4, 3), softmax), n_classes=3)


def test_a_network_that_does_not_return_a_tensor_raises_type_error():
    with pytest.raises(TypeError, match="returns tuple"):
        gamma(Function(lambda _, x: (x, x)), n_classes=6)(UNLABELED)


def test_scores_of_another_width_raise_value_error_with_an_example_or_in_the_first_call():
    expected = re.escape("(2, 4), but n_classes=3 needs (2, 3)")
    with pytest.raises(ValueError, match=expected):
        gamma(nn.Linear(6, 4), n_classes=3, example=UNLABELED)
    model = gamma(nn.Linear(6, 4), n_classes=3)
    for call in (model, model.costs, model.calibrate, lambda rows: model.draw_noise(rows, 3)):
        with pytest.raises(ValueError, match=expected):
            call(UNLABELED[:2])


@pytest.mark.parametrize(
    ("layers", "shape"), [([], "(2, 3, 8, 8)"), ([nn.Flatten(2)], "(2, 3, 64)"), ([nn.Flatten(0)], "(384,)")]
)
def test_scores_of_other_dimensions_raise_value_error_with_both_shapes(layers, shape):
    with pytest.raises(ValueError, match=re.escape(shape) + r".*\(2, 3\)"):
        gamma(nn.Sequential(nn.Conv2d(3, 3, 1), *layers), n_classes=3, example=IMAGES)


def test_without_an_example_the_network_does_not_run_before_the_first_call():
    rows = []
    network = nn.Linear(6, 3)
    network.register_forward_pre_hook(lambda _, inputs: rows.append(inputs))
    state = torch.get_rng_state()
    gamma(network, n_classes=3)
    assert rows == []
    assert torch.equal(torch.get_rng_state(), state)


def test_rows_that_are_not_a_tensor_raise_type_error_in_every_method():
    model, rows = gamma(dense_network(), n_classes=3), UNLABELED.numpy()
    for call in (
        model,
        model.costs,
        model.calibrate,
        lambda given: model.costs(UNLABELED, given, TARGETS),
        lambda given: model.draw_noise(given, 3),
        lambda given: gamma(dense_network(), n_classes=3, example=given),
    ):
        with pytest.raises(TypeError, match=r"ndarray.*torch\.Tensor"):
            call(rows)


def test_rows_are_given_to_the_network_unchanged():
    def channels_last(network: nn.Module, x: Tensor) -> Tensor:
        return network.rest(x.movedim(-1, 1) / 255)

    rows = (40 * IMAGES + 128).byte().movedim(1, -1)
    model = gamma(Function(channels_last, rest=ResNet()), n_classes=10, example=rows)
    assert model.calibrate(rows).eval()(rows).shape == (10, 10)


def test_a_batch_that_is_too_small_raises_value_error():
    model = gamma(dense_network(), n_classes=3)
    for count in (0, 1):
        with pytest.raises(ValueError, match=f"{count} unlabeled row"):
            model.costs(UNLABELED[:count], LABELED, TARGETS)
    with pytest.raises(ValueError, match="1 labeled row"):
        model.costs(UNLABELED, LABELED[:1], TARGETS[:1])
    for method in (model, model.calibrate):
        with pytest.raises(ValueError, match="1 row"):
            method(UNLABELED[:1])


def test_targets_and_weights_are_checked():
    model = gamma(dense_network(), n_classes=3)
    with pytest.raises(ValueError, match=r"9 labeled rows.*no targets"):
        model.costs(UNLABELED, LABELED)
    with pytest.raises(ValueError, match=r"target 3.*from 0 to 2"):
        model.costs(UNLABELED, LABELED, TARGETS + 1)
    with pytest.raises(ValueError, match=re.escape("(9, 1)")):
        model.costs(UNLABELED, LABELED, TARGETS, weights=torch.ones(9, 1))


def test_eval_mode_without_calibration_raises_runtime_error_naming_calibrate():
    with pytest.raises(RuntimeError, match=r"calibrate\(rows\)"):
        gamma(dense_network(), n_classes=3).eval()(UNLABELED)


# State dicts, copies, devices, compilers, processes


def test_the_state_dict_keeps_the_names_of_the_network():
    network = ResNet()
    names = {f"network.{name}" for name in network.state_dict()}
    rung = {f"rungs.0.{name}" for name in ("beta", "gamma", "mean", "deviation", "denoiser.a")}
    assert gamma(network, n_classes=10).state_dict().keys() == names | rung | {"calibrated"}


def copy_by_safetensors(model: Gamma, folder) -> Gamma:
    save_file(model.state_dict(), folder / "model.safetensors")
    other = gamma(ResNet(), n_classes=10).eval()
    other.load_state_dict(load_file(folder / "model.safetensors"))
    return other


@pytest.mark.parametrize(
    "copy",
    [copy_by_safetensors, lambda model, _: pickle.loads(pickle.dumps(model)), lambda model, _: deepcopy(model)],
    ids=["safetensors", "pickle", "deepcopy"],
)
def test_a_copied_model_computes_the_same_and_shares_nothing(copy, tmp_path):
    torch.manual_seed(1)
    model = gamma(ResNet(), n_classes=10).calibrate(IMAGES).eval()
    other = copy(model, tmp_path)
    assert torch.equal(model(IMAGES), other(IMAGES))
    noise = model.draw_noise(IMAGES, 10)
    one, two = (each.train().costs(IMAGES, noise=noise) for each in (model, other))
    assert torch.equal(one.total, two.total)
    with torch.no_grad():
        other.network.head.weight.zero_()
    assert not torch.equal(model(IMAGES), other(IMAGES))


def test_the_model_takes_the_precision_and_device_of_the_network():
    model = gamma(dense_network().double(), n_classes=3)
    costs = model.costs(UNLABELED.double(), LABELED.double(), TARGETS)
    assert {costs.total.dtype, costs.denoising.dtype} == {torch.float64}
    assert model.calibrate(UNLABELED).eval()(UNLABELED.double()).dtype == torch.float64
    meta = gamma(dense_network().to("meta"), n_classes=3)
    meta.costs(UNLABELED.to("meta"), LABELED.to("meta"), TARGETS.to("meta")).total.backward()
    assert {parameter.grad.device.type for parameter in meta.parameters()} == {"meta"}


@pytest.mark.skipif(torch.__version__ < "2.11", reason="older compilers do not take isinstance with a union of types")
@pytest.mark.filterwarnings("ignore")
def test_compiled_costs_are_one_graph_and_equal_the_eager_ones():
    # "aot_eager" leaves out the last stage, which generates machine code and takes long.
    torch.compiler.reset()
    network = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.LayerNorm(5), nn.Linear(5, 3))
    model = gamma(network, n_classes=3)
    noise = model.draw_noise(UNLABELED, 21)
    before, results = deepcopy(model.state_dict()), []
    for costs_of in (model.costs, torch.compile(model.costs, fullgraph=True, dynamic=False, backend="aot_eager")):
        model.zero_grad()
        costs = costs_of(UNLABELED, LABELED, TARGETS, noise=noise)
        costs.total.backward()
        results.append([costs.total.detach()] + [parameter.grad.clone() for parameter in model.parameters()])
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.skipif(torch.__version__ < "2.11", reason="older compilers do not take isinstance with a union of types")
@pytest.mark.filterwarnings("ignore")
def test_costs_are_compiled_once_for_all_sizes_after_the_first():
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    assert_compiled_once_for_all_sizes(gamma(network, n_classes=3), (3, 8, 8))


@pytest.mark.skipif(torch.__version__ < "2.13", reason="older compilers do not look at the buffer")
@pytest.mark.filterwarnings("ignore")
def test_a_compiled_model_without_calibration_raises_runtime_error_naming_calibrate():
    assert_compiled_eval_mode_needs_calibration(gamma(dense_network(), n_classes=3), UNLABELED)


@pytest.mark.filterwarnings("ignore")
def test_a_network_compiled_and_called_before_gets_noise_too():
    hidden, head = nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5)), nn.Linear(5, 3)
    network = nn.Sequential(torch.compile(hidden, backend="aot_eager"), head)
    network(UNLABELED)
    model, expected = gamma(network, n_classes=3), gamma(nn.Sequential(deepcopy(hidden), head), n_classes=3)
    noise = expected.draw_noise(UNLABELED, len(UNLABELED))
    torch.testing.assert_close(model.costs(UNLABELED, noise=noise), expected.costs(UNLABELED, noise=noise))


def test_costs_train_under_distributed_data_parallel(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # init_process_group replaces it
    torch.manual_seed(0)
    model = gamma(ResNet(), n_classes=10)
    noise = model.draw_noise(IMAGES, 10)
    expected = torch.autograd.grad(model.costs(IMAGES, noise=noise).total, model.network.head.weight)[0]
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        DistributedDataParallel(model)(IMAGES, IMAGES[:0], noise=noise).total.backward()
    finally:
        torch.distributed.destroy_process_group()
    torch.testing.assert_close(model.network.head.weight.grad, expected)


def test_a_class_instead_of_a_module_raises_type_error() -> None:
    with pytest.raises(TypeError, match=r"Linear.*nn\.Module"):
        gamma(nn.Linear, n_classes=3)
