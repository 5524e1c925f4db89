"""The Γ-model around any network: the ladder's own costs, noise where it belongs, and a module like any other."""

import os
import pickle
import re
from collections.abc import Callable
from copy import deepcopy
from datetime import timedelta

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from tikas import Dense, Ladder
from tikas.data.sources import load
from tikas.data.splits import split
from tikas.model.gamma import Gamma, gamma
from tikas.model.heads import width_of_output
from tikas.model.parallel import CostsOf
from tikas.model.running_statistics import calibrate_running_statistics, running_statistics_left_alone


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


UNLABELED, LABELED, TARGETS = normal(12, 6, seed=1), normal(9, 6, seed=2), torch.arange(9) % 3
IMAGES = normal(10, 3, 8, 8, seed=3)


class Block(nn.Module):
    """Two convolutions, and what came in added to what they make of it."""

    def __init__(self, below: int, channels: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(below, channels, 3, stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(channels)
        self.shortcut = nn.Identity()
        if stride > 1 or below != channels:
            self.shortcut = nn.Sequential(nn.Conv2d(below, channels, 1, stride), nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        hidden = functional.relu(self.first_norm(self.first(x)))
        return functional.relu(self.second_norm(self.second(hidden)) + self.shortcut(x))


class ResNet(nn.Module):
    def __init__(self, channels: int = 1, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(channels, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.blocks = nn.Sequential(Block(8, 8, 1), Block(8, 32, 2))
        self.head = nn.Linear(32, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class Attention(nn.Module):
    """Rows of pixels as tokens, two layers of attention with dropout, and a head on the mean token."""

    def __init__(self, side: int = 8, classes: int = 10) -> None:
        super().__init__()
        self.embed = nn.Linear(side, 32)
        self.position = nn.Parameter(torch.zeros(side, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.encoder(self.embed(x.squeeze(1)) + self.position)).mean(1))


def dense_network(epsilon: float = 1e-10) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 5, bias=False),
        nn.BatchNorm1d(5, eps=epsilon),
        nn.ReLU(),
        nn.Linear(5, 4, bias=False),
        nn.BatchNorm1d(4, eps=epsilon),
        nn.ReLU(),
        nn.Linear(4, 3, bias=False),
    )


# The paper's costs.


def ladder_and_gamma(dtype: torch.dtype) -> tuple[Ladder, Gamma]:
    """The same Γ-model, as a ladder with a cost on its top alone and as a network with batch normalisation."""
    network = dense_network().to(dtype)
    ladder = Ladder((6,), [Dense(5), Dense(4), Dense(3)], noise=(0.3, 0.2, 0.2, 0.2), costs=0.7).to(dtype)
    model = gamma(network, n_classes=3, noise=(0.3, 0.2), cost=0.7)
    with torch.no_grad():
        for level, layer in ((1, 0), (2, 3), (3, 6)):
            ladder.rungs[level].weight.copy_(network[layer].weight)
            if level < 3:
                network[layer + 1].bias.copy_(normal(len(network[layer + 1].bias), seed=level))
                ladder.rungs[level].beta.copy_(network[layer + 1].bias)
        for name in ("beta", "gamma", "denoiser.a"):
            value = model.rung.get_parameter(name).add_(normal(*model.rung.get_parameter(name).shape, seed=7) / 4)
            ladder.rungs[3].get_parameter(name).copy_(value)
    return ladder, model


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_around_a_dense_network_it_is_the_ladder_with_a_cost_on_its_top(dtype, tolerance):
    ladder, model = ladder_and_gamma(dtype)
    noise = [normal(21, units, seed=units).to(dtype) for units in (6, 5, 4, 3)]
    weights = torch.linspace(0, 2, 9, dtype=dtype)
    ours, theirs = (
        each.costs(UNLABELED.to(dtype), LABELED.to(dtype), TARGETS, noise=noise, weights=weights)
        for each in (model, ladder)
    )
    same = {"rtol": tolerance, "atol": tolerance}
    torch.testing.assert_close(ours.total, theirs.total, **same)
    torch.testing.assert_close(ours.supervised, theirs.supervised, **same)
    torch.testing.assert_close(ours.denoising, theirs.denoising[-1:], **same)

    ours.total.backward()
    theirs.total.backward()
    pairs = [(model.network[layer].weight, ladder.rungs[level].weight) for level, layer in ((1, 0), (2, 3), (3, 6))]
    pairs += [(model.network[layer].bias, ladder.rungs[level].beta) for level, layer in ((1, 1), (2, 4))]
    for name in ("beta", "gamma", "denoiser.a"):
        pairs.append((model.rung.get_parameter(name), ladder.rungs[3].get_parameter(name)))
    for ours, theirs in pairs:
        assert theirs.grad.abs().max() > 1e-3
        torch.testing.assert_close(ours.grad, theirs.grad, **same)


def test_eval_mode_is_the_calibrated_ladders():
    ladder, model = (each.calibrate(UNLABELED).eval() for each in ladder_and_gamma(torch.float32))
    for ours, theirs in zip(model.encode(LABELED), ladder.encode(LABELED), strict=True):
        torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(model(LABELED)[:1], model(LABELED[:1]))


def test_without_a_cost_it_is_the_network_with_noise_and_has_no_denoiser():
    model = gamma(dense_network(), n_classes=3, cost=0)
    costs = model.costs(UNLABELED, LABELED, TARGETS)
    assert costs.total == costs.supervised > 0
    assert costs.denoising.tolist() == [0.0]
    assert model.rung.denoiser is None


def test_without_labelled_rows_the_denoising_cost_remains():
    model = gamma(dense_network(), n_classes=3, cost=2.0)
    noise = model.draw_noise(UNLABELED, 21, torch.Generator().manual_seed(0))
    costs = model.costs(UNLABELED, noise=[draw[9:] for draw in noise])
    both = model.costs(UNLABELED, LABELED, TARGETS, noise=noise)
    assert costs.supervised == 0
    assert costs.total == 2 * costs.denoising[0]
    torch.testing.assert_close(costs.denoising, both.denoising)
    none = model.costs(UNLABELED, LABELED[:0], TARGETS[:0], noise=[draw[9:] for draw in noise])
    assert none == costs


# Noise.


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm2d(3),
        nn.InstanceNorm2d(3, affine=True),
        nn.InstanceNorm2d(3),
        nn.GroupNorm(3, 3),
        nn.LayerNorm((3, 8, 8)),
        nn.LayerNorm(8),
        nn.LayerNorm(8, elementwise_affine=False),
        nn.RMSNorm(8),
    ],
    ids=lambda layer: str(layer).partition(",")[0],
)
def test_noise_comes_after_every_kind_of_normalisation_and_before_its_scale(layer):
    layer = deepcopy(layer)
    if layer.weight is not None:
        nn.init.normal_(layer.weight, generator=torch.Generator().manual_seed(0))
    network = nn.Sequential(layer, nn.Flatten(), nn.Linear(192, 4))
    model = gamma(network, n_classes=4, noise=(0.0, 0.5))
    seen = []
    network[1].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    noise = [normal(10, *shape, seed=4) for shape in ((3, 8, 8), (3, 8, 8), (4,))]
    model.costs(IMAGES, noise=noise)
    corrupted, clean = seen
    scale = 1.0
    if layer.weight is not None:
        channels = not isinstance(layer, nn.LayerNorm | nn.RMSNorm)
        scale = layer.weight.detach()[:, None, None] if channels else layer.weight.detach()
    torch.testing.assert_close(corrupted - clean, 0.5 * scale * noise[1], rtol=1e-4, atol=1e-5)


class NormOfChannels(nn.LayerNorm):
    """As ConvNeXt has it: of every position, over channels that come first."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


@pytest.mark.parametrize("channels", [3, 8])
def test_a_layer_normalisation_that_turns_its_maps_has_noise_in_proportion_to_each_channels_scale(channels):
    layer = NormOfChannels(channels)
    scale = nn.init.normal_(layer.weight, generator=torch.Generator().manual_seed(0)).detach()[:, None, None]
    network = nn.Sequential(layer, nn.Flatten(), nn.Linear(64 * channels, 4))
    seen = []
    network[1].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    noise = [normal(10, *shape, seed=4) for shape in ((channels, 8, 8), (channels, 8, 8), (4,))]
    gamma(network, n_classes=4, noise=(0.0, 0.5)).costs(normal(10, channels, 8, 8, seed=5), noise=noise)
    corrupted, clean = seen
    torch.testing.assert_close(corrupted - clean, 0.5 * scale * noise[1], rtol=1e-4, atol=1e-5)


def test_a_scale_of_the_networks_own_does_not_outgrow_the_noise():
    """γ·relu(z + n + β) with γ in the next weights is the same model, so it has the same costs."""
    one, other = dense_network(), dense_network()
    scale = normal(5, seed=5).exp()
    with torch.no_grad():
        other[1].weight.copy_(scale)
        other[3].weight.div_(scale)
    noise = [normal(21, units, seed=units) for units in (6, 5, 4, 3)]
    costs = [gamma(net, n_classes=3).costs(UNLABELED, LABELED, TARGETS, noise=noise).total for net in (one, other)]
    torch.testing.assert_close(*costs)


def test_noise_stays_out_of_everything_but_the_corrupted_passes():
    network = dense_network()
    before = network(UNLABELED)
    model = gamma(network, n_classes=3, noise=5.0)
    model.costs(UNLABELED, LABELED, TARGETS)
    assert torch.equal(network(UNLABELED), before)
    assert torch.equal(model(UNLABELED), model(UNLABELED))
    with pytest.raises(RuntimeError):
        model.costs(UNLABELED[:, :2])
    assert torch.equal(network(UNLABELED), before)


def test_noise_that_is_drawn_hangs_on_the_seed_alone():
    model = gamma(dense_network(), n_classes=3)
    costs = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        costs.append(model.costs(UNLABELED, LABELED, TARGETS).total.item())
    assert costs[0] == costs[1] != costs[2]
    draws = [model.draw_noise(UNLABELED, 21, torch.Generator().manual_seed(3)) for _ in range(2)]
    assert all(torch.equal(one, other) for one, other in zip(*draws, strict=True))


def test_every_place_of_a_network_with_attention_is_known_by_its_shape():
    model = gamma(Attention(), n_classes=10, example=normal(2, 1, 8, 8))
    assert model.shapes == [(1, 8, 8), *[(8, 32)] * 5, (10,)]
    costs = [model.eval().costs(normal(4, 1, 8, 8), noise=[normal(4, *shape) for shape in model.shapes])] * 2
    assert costs[0].total == costs[1].total
    assert "noise=0.3 on the input, 0.3 on 5 layers and the scores" in repr(model)


def test_a_normalisation_that_sees_rows_and_tokens_as_one_has_its_noise_too():
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.head = nn.LayerNorm(4), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.norm(x.reshape(-1, 4)).reshape(-1, 5, 4)).mean(1)

    rows = normal(6, 5, 4)
    model = gamma(Tokens(), n_classes=3, example=rows)
    assert model.shapes == [(5, 4), (20,), (3,)]
    noise = model.draw_noise(rows, 10)
    assert model.costs(rows, rows[:4], TARGETS[:4], noise=noise).total > 0


def test_tokens_get_no_noise_on_the_input():
    network = nn.Sequential(nn.Embedding(20, 8), nn.Flatten(), nn.LayerNorm(40), nn.Linear(40, 3))
    tokens = torch.arange(50).reshape(10, 5) % 20
    model = gamma(network, n_classes=3, example=tokens)
    assert model.shapes == [(40,), (3,)]
    model.costs(tokens, tokens[:6], TARGETS[:6], noise=model.draw_noise(tokens, 16)).total.backward()
    assert network[0].weight.grad.abs().max() > 0
    assert model.calibrate(tokens).eval()(tokens[:1]).shape == (1, 3)


# Statistics.


def test_costs_and_scores_leave_the_running_statistics_alone():
    network = dense_network()
    model = gamma(network, n_classes=3)
    before = deepcopy(network.state_dict())
    model.costs(UNLABELED, LABELED, TARGETS)
    model(UNLABELED)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    network(UNLABELED)
    assert not torch.equal(network[1].running_mean, before["1.running_mean"])


def test_labelled_and_unlabelled_rows_keep_statistics_of_their_own():
    model = gamma(dense_network(), n_classes=3)
    noise = model.draw_noise(UNLABELED, 21)
    one = model.costs(UNLABELED, LABELED, TARGETS, noise=noise)
    moved = model.costs(UNLABELED, 3 * LABELED + 1, TARGETS, noise=noise)
    assert one.denoising == moved.denoising
    other = model.costs(3 * UNLABELED + 1, LABELED, TARGETS, noise=noise)
    assert one.supervised == other.supervised


@pytest.mark.parametrize("chunk", [7, 1000])
def test_calibration_is_exact_however_the_rows_are_cut(chunk):
    """In training mode a batch of all rows has the very statistics that calibration is to find."""
    torch.manual_seed(0)
    model = gamma(ResNet(3), n_classes=10)
    rows = normal(40, 3, 8, 8, seed=9)
    expected = model(rows)
    model.calibrate(rows, chunk=chunk)
    assert model.training
    torch.testing.assert_close(model.eval()(rows), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model(rows[:1]), model(rows)[:1], rtol=1e-4, atol=1e-4)


def test_calibration_turns_dropout_off_and_modes_back():
    network = nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))
    model = gamma(network, n_classes=3).train()
    network[3].eval()
    model.calibrate(UNLABELED)
    torch.testing.assert_close(network[2].running_mean, network[0](UNLABELED).mean(0))
    assert [module.training for module in network] == [True, True, True, False, True]


class Centering(nn.Module):
    """Brings its rows to another scale in the place where they lie."""

    def __init__(self):
        super().__init__()
        self.rest = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 4), nn.BatchNorm1d(4))
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rest(x.sub_(0.5).mul_(2)))


def test_rows_are_left_as_they_are_by_a_network_that_works_in_place():
    model, rows = gamma(Centering(), n_classes=3), UNLABELED.clone()
    model.costs(rows, LABELED, TARGETS)
    model.calibrate(rows)
    scores = model(rows)
    assert torch.equal(rows, UNLABELED)
    assert torch.allclose(model.eval()(rows), scores, atol=1e-5)


class Frozen(nn.Module):
    """The usual way to go on from a network's own statistics: `train` leaves a layer in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.hidden = nn.BatchNorm1d(6), nn.Linear(6, 5)
        self.norm, self.head = nn.BatchNorm1d(5), nn.Linear(5, 3)
        self.frozen.running_mean.fill_(2.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.hidden(self.frozen(x))))

    def train(self, mode: bool = True) -> "Frozen":
        super().train(mode)
        self.frozen.eval()
        return self


def test_layers_that_stay_in_eval_mode_in_training_keep_their_statistics():
    network = Frozen()
    model = gamma(network, n_classes=3).train()
    trained = model(UNLABELED)
    model.calibrate(UNLABELED)
    assert network.frozen.running_mean.tolist() == [2.0] * 6
    assert network.norm.running_mean.abs().max() > 0
    torch.testing.assert_close(model.eval()(UNLABELED), trained, rtol=1e-4, atol=1e-5)


def test_a_model_that_is_in_eval_mode_as_a_whole_has_all_its_statistics_set():
    network = Frozen()
    gamma(network, n_classes=3).eval().calibrate(UNLABELED)
    torch.testing.assert_close(network.frozen.running_mean, UNLABELED.mean(0))


def test_a_layer_that_works_twice_gathers_both_calls():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.head = nn.BatchNorm1d(6), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.norm(x) + self.norm(x + 2))

    model = gamma(Twice(), n_classes=3).calibrate(UNLABELED)
    torch.testing.assert_close(model.network.norm.running_mean, UNLABELED.mean(0) + 1)


def instance_normalised(**settings) -> nn.Sequential:
    torch.manual_seed(0)
    norm = nn.InstanceNorm2d(4, affine=True, track_running_stats=True, **settings)
    return nn.Sequential(nn.Conv2d(3, 4, 3), norm, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))


@pytest.mark.parametrize("lazy", [nn.LazyBatchNorm2d, lambda: nn.LazyInstanceNorm2d(track_running_stats=True)])
@pytest.mark.parametrize("example", [None, IMAGES])
def test_layers_that_learn_their_shape_from_rows_keep_their_statistics_for_calibration(lazy, example):
    network = nn.Sequential(nn.LazyConv2d(4, 3), lazy(), nn.ReLU(), nn.Flatten(), nn.LazyLinear(3))
    model = gamma(network, n_classes=3, example=example)
    model.costs(IMAGES)
    assert (network[1].running_mean.tolist(), network[1].num_batches_tracked) == ([0.0] * 4, 0)
    model.calibrate(IMAGES)
    torch.testing.assert_close(network[1].running_mean, network[0](IMAGES).mean((0, 2, 3)))


@pytest.mark.parametrize("chunk", [3, 1000])
def test_instance_normalisation_that_keeps_statistics_is_calibrated_with_what_its_rows_have_on_average(chunk):
    network = instance_normalised()
    model = gamma(network, n_classes=3).calibrate(IMAGES, chunk=chunk).eval()
    each = network[0](IMAGES)
    torch.testing.assert_close(network[1].running_mean, each.mean((2, 3)).mean(0))
    torch.testing.assert_close(network[1].running_var, each.var((2, 3), correction=0).mean(0))
    scores = network(IMAGES)
    torch.testing.assert_close(model.rung.mean, scores.mean(0))
    torch.testing.assert_close(model.rung.deviation, scores.std(0, correction=0))


def test_instance_normalisation_of_one_row_after_another_is_calibrated_like_that_of_all_together():
    class RowByRow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.InstanceNorm2d(3, track_running_stats=True)

        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([self.norm(row) for row in x])

    one_by_one, together = RowByRow().eval(), nn.Sequential(nn.InstanceNorm2d(3, track_running_stats=True)).eval()
    for network in (one_by_one, together):
        calibrate_running_statistics(network, IMAGES.split(5))
    torch.testing.assert_close(one_by_one.norm.running_mean, together[0].running_mean)
    torch.testing.assert_close(one_by_one.norm.running_var, together[0].running_var)


def test_layers_that_keep_no_statistics_stay_so():
    network = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4), nn.BatchNorm2d(4, track_running_stats=False), nn.Flatten()
    )
    model = gamma(network.append(nn.Linear(144, 3)), n_classes=3).calibrate(IMAGES)
    model.costs(IMAGES)
    for layer in (network[1], network[2]):
        assert (layer.track_running_stats, layer.running_mean) == (False, None)


def test_a_pass_ends_with_the_layer_whose_statistics_it_is_for():
    network, passes = dense_network().eval(), []
    network[6].register_forward_hook(lambda *_: passes.append("to the end"))
    calibrate_running_statistics(network, UNLABELED.split(4))
    assert passes == ["to the end"]  # to see which layers work, and how often


def test_all_layers_are_set_in_one_pass_over_a_single_chunk_as_in_one_each_over_many():
    together, apart = ResNet().double().eval(), ResNet().double().eval()
    apart.load_state_dict(together.state_dict())
    passes, images = [], IMAGES[:, :1].double()
    together.register_forward_hook(lambda *_: passes.append("to the end"))
    calibrate_running_statistics(together, [images])
    calibrate_running_statistics(apart, images.split(5))
    assert passes == ["to the end"] * 2  # the first one is to see which layers work, and how often
    for name, buffer in apart.named_buffers():
        torch.testing.assert_close(together.get_buffer(name), buffer)


def test_a_pass_that_fails_leaves_layers_as_they_were():
    """One that learns its shape from rows, and has seen none, too."""
    network = nn.Sequential(nn.BatchNorm1d(6), nn.LazyBatchNorm1d())
    with pytest.raises(ArithmeticError), running_statistics_left_alone(network):
        raise ArithmeticError
    assert [layer.track_running_stats for layer in network] == [True, True]
    assert network[1].has_uninitialized_params()


def test_costs_leave_the_running_statistics_of_instance_normalisation_alone():
    network = instance_normalised()
    model = gamma(network, n_classes=3).calibrate(IMAGES)
    before = deepcopy(network.state_dict())
    costs = model.costs(IMAGES, IMAGES[:9] + 5, TARGETS)
    costs.total.backward()
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    scores = model.eval()(IMAGES[:2])
    torch.testing.assert_close(model.rung.calibrated.normalize(network(IMAGES[:2])), model.encode(IMAGES[:2])[0])
    assert not torch.allclose(model.train()(IMAGES[:2]), scores)


def test_a_layer_that_is_called_by_keyword_is_calibrated():
    class ByKeyword(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.head = nn.BatchNorm1d(6), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(input=self.norm(input=x))

    model = gamma(ByKeyword(), n_classes=3).calibrate(UNLABELED)
    torch.testing.assert_close(model.network.norm.running_mean, UNLABELED.mean(0))
    assert [tuple(draw.shape) for draw in model.draw_noise(UNLABELED, 2)] == [(2, 6), (2, 6), (2, 3)]


class EndsInFunction(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.function, self.scores = function, nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.scores(x), dim=-1)


@pytest.mark.parametrize(
    ("network", "name"),
    [
        (nn.Sequential(nn.Linear(4, 3), nn.Softmax(1)), "Softmax"),
        (nn.Sequential(nn.Linear(4, 3), nn.Sequential(nn.LogSoftmax(1))), "LogSoftmax"),
        (EndsInFunction(functional.softmax), "softmax"),
        (EndsInFunction(torch.log_softmax), "log_softmax"),
        (EndsInFunction(lambda scores, dim: scores.softmax(dim)), "softmax"),
    ],
)
def test_a_softmax_at_the_end_is_refused(network, name):
    with pytest.raises(ValueError, match=f"The network ends in {name}; expected class scores"):
        gamma(network, n_classes=3)


def test_a_batch_of_one_row_is_refused():
    model, rows = gamma(nn.Linear(4, 3), n_classes=3), torch.rand(8, 4)
    with pytest.raises(ValueError, match=r"Got 1 unlabelled row; .* give two rows or more"):
        model.costs(rows[:1])
    with pytest.raises(ValueError, match=r"Got 1 labelled row; .* give two rows or more"):
        model.costs(rows, rows[:1], torch.tensor([1]))
    with pytest.raises(ValueError, match=r"Got 1 row; .* give two rows or more"):
        model(rows[:1])


def test_eval_mode_without_calibration_is_refused_with_what_to_do():
    model = gamma(dense_network(), n_classes=3).eval()
    with pytest.raises(RuntimeError, match=re.escape("call calibrate(rows) with training rows first")):
        model(UNLABELED)
    with pytest.raises(ValueError, match="no rows to calibrate with"):
        model.calibrate(UNLABELED[:0])
    with pytest.raises(ValueError, match="Got 1 row to calibrate with"):
        model.calibrate(UNLABELED[:1])


# What it refuses.


class LastLayerFirst(nn.Module):
    """The head stands above the rest, and `forward` asks for values: nothing here can be told without rows."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.body = nn.Linear(5, 4), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x)) if float(x.abs().max()) >= 0 else x


class Counted(nn.Module):
    """It asks how many rows there are, as networks with a token of the class do."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.head = nn.Parameter(torch.zeros(1, 6)), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x + self.token.expand(len(x), -1))


class Averaged(nn.Module):
    """A convolution, and something that its `forward` does to the maps."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.maps, self.function = nn.Conv2d(3, 4, 1), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.maps(x))


class Ending(nn.Module):
    """A linear layer, and something that its `forward` does with the rows and with it."""

    def __init__(self, function: Callable[["Ending", Tensor], Tensor], width: int = 4) -> None:
        super().__init__()
        self.function, self.head, self.other = function, nn.Linear(6, width), nn.Linear(6, 10)
        self.scale = nn.Parameter(torch.ones(10))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


@pytest.mark.parametrize(
    "network",
    [
        nn.Linear(6, 4),
        torch.compile(nn.Sequential(nn.Linear(6, 4)), backend="eager"),
        nn.DataParallel(nn.Sequential(nn.Linear(6, 4))),
        nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4)),
        nn.Sequential(nn.Conv2d(3, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        ResNet(3, classes=4),
        Attention(classes=4),
        Counted(),
        Averaged(lambda maps: maps.mean((2, 3))),
        Averaged(lambda maps: torch.mean(maps, dim=[-2, -1])),
        Averaged(lambda maps: functional.adaptive_avg_pool2d(maps, 1).flatten(1)),
    ],
    ids=[
        *("one layer", "compiled", "on devices", "linear", "convolution", "ResNet", "attention", "counted rows"),
        *("mean", "mean by a function", "pooling by a function"),
    ],
)
def test_scores_of_another_width_are_refused_at_construction_with_both_shapes(network):
    expected = "The network gives scores of shape (rows, 4), and n_classes=10 asks for (rows, 10)."
    with pytest.raises(ValueError, match=re.escape(expected)):
        gamma(network, n_classes=10)


@pytest.mark.parametrize(
    "ending",
    [
        lambda net, x: net.head(x) * 0.5,
        lambda net, x: 0.5 * net.head(x),
        lambda net, x: net.head(x) / 2,
        lambda net, x: net.head(x) + 1.0,
        lambda net, x: 1 - net.head(x),
        lambda net, x: -net.head(x),
        lambda net, x: net.head(x) ** 2,
        lambda net, x: torch.mul(net.head(x), other=2),
        lambda net, x: net.head(x).div(2),
        lambda net, x: net.head(x).float(),
        lambda net, x: net.head(x).double(),
        lambda net, x: net.head(x).half(),
        lambda net, x: net.head(x).to(torch.float64),
        lambda net, x: net.head(x).to(x.dtype),
        lambda net, x: net.head(x).contiguous(),
        lambda net, x: net.head(x).clone(),
    ],
)
def test_arithmetic_with_numbers_and_conversions_do_not_hide_the_width(ending):
    with pytest.raises(ValueError, match=re.escape("scores of shape (rows, 4), and n_classes=10 asks for (rows, 10)")):
        gamma(Ending(ending), n_classes=10)


@pytest.mark.parametrize(
    "ending",
    [
        lambda net, x: net.head(x) * net.scale,
        lambda net, x: net.scale * net.head(x),
        lambda net, x: torch.mul(net.head(x), other=net.scale),
        lambda net, x: net.head(x).add(net.scale),
        lambda net, x: net.head(x) + net.other(x),
        lambda net, x: net.head(x) - torch.ones(10),
        lambda net, x: net.head(x) / x.new_ones(10),
    ],
)
def test_a_tensor_that_widens_the_scores_is_not_taken_for_a_number(ending):
    assert gamma(Ending(ending, width=1), n_classes=10)(UNLABELED).shape == (12, 10)


def for_as_many_dimensions(net: Ending, x: Tensor) -> Tensor:
    return net.head(x) if len(x.size()) == 2 else net.other(x.mean(1))


def test_how_many_dimensions_rows_have_is_not_taken_for_known():
    assert gamma(Ending(for_as_many_dimensions), n_classes=10)(UNLABELED[:, None]).shape == (12, 10)


def test_what_cannot_be_told_without_rows_is_told_with_an_example_or_in_the_first_call():
    expected = re.escape("The network gives scores of shape (2, 4), and n_classes=3 asks for (2, 3).")
    with pytest.raises(ValueError, match=expected):
        gamma(LastLayerFirst(), n_classes=3, example=UNLABELED)
    model = gamma(LastLayerFirst(), n_classes=3)
    for call in (model, model.costs, model.calibrate, lambda rows: model.draw_noise(rows, 3)):
        with pytest.raises(ValueError, match=expected):
            call(UNLABELED[:2])
    assert gamma(LastLayerFirst(), n_classes=4, example=UNLABELED).shapes == [(6,), (4,)]
    with pytest.raises(RuntimeError, match="give gamma an example"):
        _ = gamma(LastLayerFirst(), n_classes=4).shapes


@pytest.mark.parametrize(
    ("network", "width"),
    [
        (nn.Sequential(nn.Linear(6, 4), nn.LogSoftmax(1)), 4),
        (nn.Sequential(nn.Sequential(nn.Linear(6, 5), nn.Sequential(nn.Linear(5, 4))), nn.Dropout()), 4),
        (nn.Sequential(nn.Linear(6, 4), nn.Flatten()), None),
        (nn.Sequential(nn.Conv2d(3, 4, 1), nn.Flatten()), None),
        (nn.Sequential(nn.Conv2d(3, 4, 1), nn.AdaptiveAvgPool2d(2)), None),
        (nn.Sequential(nn.Linear(6, 4), nn.AdaptiveAvgPool1d(1)), None),
        (nn.Identity(), None),
        (Averaged(lambda maps: maps.mean((1, 2))), None),
        (Averaged(lambda maps: functional.adaptive_avg_pool2d(maps, 2).flatten(1)), None),
        (nn.Sequential(nn.Linear(6, 5), nn.LazyLinear(4)), 4),
        (LastLayerFirst(), None),
    ],
)
def test_a_width_is_told_only_where_it_is_certain(network, width):
    assert width_of_output(network) == width


class Remembering(nn.Module):
    """It keeps in itself what it sees, and goes another way in its first call."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 4)
        self.register_buffer("calls", torch.zeros(()))
        self.seen: list[Tensor] = []
        self.place: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self._buffers["calls"].add_(torch.rand(()) + 1)
        self.seen.append(x)
        if self.place is None:
            self.place = torch.zeros_like(x[:1])
        return self.head(x + self.place)


def test_a_network_that_remembers_its_calls_remembers_none_when_it_is_wrapped():
    network, heard = nn.Sequential(nn.Identity(), Remembering()), []
    network.register_forward_hook(lambda *given: heard.append(given))
    network[1].register_forward_hook(lambda *given: heard.append(given))
    state = torch.get_rng_state()
    model = gamma(network, n_classes=4)
    assert (network[1].seen, network[1].place, heard) == ([], None, [])
    assert network[1].calls == 0
    assert torch.equal(torch.get_rng_state(), state)
    assert model.costs(UNLABELED).total > 0
    with pytest.raises(ValueError, match=re.escape("scores of shape (rows, 4), and n_classes=3")):
        gamma(Remembering(), n_classes=3)


def test_of_a_network_that_cannot_be_copied_the_first_call_tells_the_width():
    network = nn.Sequential(nn.Linear(6, 4))
    network.last = network(UNLABELED)  # with its history, which torch does not copy
    with pytest.raises(ValueError, match=re.escape("scores of shape (12, 4), and n_classes=3 asks for (12, 3)")):
        gamma(network, n_classes=3)(UNLABELED)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([nn.AdaptiveAvgPool2d(1)], "(2, 3, 1, 1), and n_classes=3 asks for (2, 3). End it with nn.Flatten(),"),
        ([], "(2, 3, 8, 8), and n_classes=3 asks for (2, 3). End it with nn.AdaptiveAvgPool2d(1) and nn.Flatten(),"),
        ([nn.Flatten(2), nn.Linear(64, 3), nn.Identity()], "(2, 3, 3), and n_classes=3 asks for (2, 3). End it with"),
        ([nn.Conv2d(3, 5, 1), nn.Flatten(2), nn.Linear(64, 3)], "(2, 5, 3), and n_classes=3 asks for (2, 3). Let it"),
        ([nn.Flatten(0), nn.Unflatten(0, (-1, 3))], "(128, 3), and n_classes=3 asks for (2, 3). Let it give as many"),
    ],
)
def test_scores_of_other_dimensions_are_refused_with_what_to_add(layers, message):
    with pytest.raises(ValueError, match=re.escape(f"The network gives scores of shape {message}")):
        gamma(nn.Sequential(nn.Conv2d(3, 3, 1), *layers), n_classes=3, example=IMAGES)


@pytest.mark.parametrize("within", [lambda model: model, nn.Sequential, nn.DataParallel])
def test_a_model_with_costs_of_its_own_is_refused(within):
    network = within(Ladder((6,), [Dense(3)]))
    with pytest.raises(TypeError, match=r"a Ladder, whose own costs .* LadderClassifier rungs"):
        gamma(network, n_classes=3)
    network = within(gamma(dense_network(), n_classes=3))
    with pytest.raises(TypeError, match=r"a Gamma, whose own costs .* give the network that it stands around"):
        gamma(network, n_classes=3)


def test_rows_that_are_no_tensor_are_refused_at_every_door():
    model, rows = gamma(dense_network(), n_classes=3), UNLABELED.numpy()
    doors = (
        model,
        model.costs,
        model.calibrate,
        lambda given: model.costs(UNLABELED, given, TARGETS),
        lambda given: model.draw_noise(given, 3),
        lambda given: gamma(dense_network(), n_classes=3, example=given),
    )
    for door in doors:
        with pytest.raises(TypeError, match=re.escape("Got rows as ndarray; expected a torch.Tensor. Make one with")):
            door(rows)


def seeing(*above: nn.Module) -> nn.Sequential:
    return nn.Sequential(*above, nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 3))


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        (IMAGES.double(), TypeError, r"Got rows of type torch.float64, .* computes in torch.float32: .*x\.to\(torch"),
        ((255 * IMAGES).byte(), TypeError, r"Got rows of type torch.uint8, .* Give it x\.float\(\) / 255\."),
        ((255 * IMAGES).long(), TypeError, r"Got rows of type torch.int64, .* Give it x\.to\(torch.float32\)\."),
        (IMAGES.movedim(1, -1), ValueError, r"Got rows of shape \(10, 8, 8, 3\), .* turn .* x\.movedim\(-1, -3\)"),
    ],
)
def test_rows_that_the_network_refuses_are_refused_with_what_to_do(rows, error, message):
    model = gamma(seeing(), n_classes=3)
    doors = [model, model.costs, model.calibrate]
    for door in doors[:2] if rows.dtype == torch.float64 else doors:  # calibration brings them to its own type
        with pytest.raises(error, match=message):
            door(rows)


def test_grey_images_without_their_channel_are_refused_with_how_to_give_it():
    model = gamma(nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(144, 3)), n_classes=3)
    for door in (model, model.costs, model.calibrate):
        with pytest.raises(ValueError, match=r"Got rows of shape \(10, 8, 8\), .* channels.* x\.unsqueeze\(1\)\.$"):
            door(IMAGES[:, 0])
    assert model(IMAGES[:, :1]).shape == (10, 3)


def test_a_network_that_turns_its_rows_itself_gets_them_as_they_are():
    class Turned(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.movedim(-1, 1) / 255

    rows = (255 * IMAGES).byte().movedim(1, -1)
    assert gamma(seeing(Turned()), n_classes=3).calibrate(rows).eval()(rows).shape == (10, 3)


def test_what_else_goes_wrong_in_a_network_is_said_as_the_network_says_it():
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        gamma(dense_network(), n_classes=3)(UNLABELED[:, :2])
    tokens = nn.Sequential(nn.Embedding(20, 8), nn.Flatten(), nn.Linear(40, 3))
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        gamma(tokens, n_classes=3)(torch.ones(10, 4, dtype=torch.int64))


@pytest.mark.parametrize(
    "through",
    [lambda model: model, deepcopy, lambda model: pickle.loads(pickle.dumps(model))],
    ids=["itself", "copy", "pickle"],
)
def test_a_normalisation_layer_that_came_later_is_refused_and_not_left_without_noise(through):
    model = through(nn.SyncBatchNorm.convert_sync_batchnorm(gamma(dense_network(), n_classes=3)))
    for call in (lambda: model.costs(UNLABELED), lambda: model.draw_noise(UNLABELED, 3)):
        with pytest.raises(RuntimeError, match=r"Layer 1 of the network, SyncBatchNorm, came into it after gamma"):
            call()
    gamma(model.network.eval(), n_classes=3).costs(UNLABELED)


@pytest.mark.filterwarnings("ignore")
def test_compiled_costs_refuse_a_layer_that_came_later_too():
    torch.compiler.reset()
    model = gamma(dense_network(), n_classes=3)
    compiled = torch.compile(model.costs, backend="eager")
    compiled(UNLABELED, LABELED, TARGETS)
    model.network[1] = nn.BatchNorm1d(5)
    with pytest.raises(RuntimeError, match="Layer 1 of the network, BatchNorm1d, came into it after gamma"):
        compiled(UNLABELED, LABELED, TARGETS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_classes": 1}, "n_classes=1: expected a whole number of at least 2."),
        ({"n_classes": 3.0}, "n_classes=3.0: expected a whole number"),
        ({"noise": "loud"}, "noise='loud': expected a number, or several numbers."),
        ({"cost": "much"}, "cost='much': expected a number"),
        ({"cost": [1.0, 2.0]}, "cost=[1.0, 2.0]: expected a finite number of at least 0."),
        ({"noise": -0.1}, "noise=-0.1: expected one deviation, or two"),
        ({"noise": (0.3, 0.2, 0.2)}, "noise=(0.3, 0.2, 0.2): expected one deviation, or two"),
        ({"cost": float("nan")}, "cost=nan: expected a finite number of at least 0."),
    ],
)
def test_settings_that_make_no_sense_are_refused_with_what_would(changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        gamma(**{"network": dense_network(), "n_classes": 3, **changes})


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [torch.jit.script, lambda network: torch.jit.trace(network, UNLABELED)])
def test_a_network_that_torch_jit_made_is_refused_since_no_noise_would_come_to_its_layers(make):
    for network in (make(dense_network()), nn.Sequential(make(dense_network()))):
        with pytest.raises(TypeError, match=r"what torch\.jit made of a network: .* Give the network that"):
            gamma(network, n_classes=3)


def test_what_is_no_network_or_gives_no_scores_is_refused():
    with pytest.raises(TypeError, match=re.escape("expected a torch.nn.Module that ends in class scores")):
        gamma("conv_small", n_classes=3)

    class Pair(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x, x

    with pytest.raises(TypeError, match="The network returns tuple; wrap it"):
        gamma(Pair(), n_classes=6)(UNLABELED)


@pytest.mark.parametrize(
    ("units", "message"),
    [
        ((6, 5, 4), "Got noise for 3 places and there are more"),
        ((6, 5, 4, 3, 3), "Got noise for 5 places; this network has 4 of them."),
        ((6, 5, 5, 3), "Got noise of shape (9, 5) for place 2, whose values are of shape (9, 4)"),
    ],
)
def test_noise_of_other_shapes_is_refused(units, message):
    noise = [normal(21, count) for count in units]
    with pytest.raises(ValueError, match=re.escape(message)):
        gamma(dense_network(), n_classes=3).costs(UNLABELED, LABELED, TARGETS, noise=noise)


@pytest.mark.parametrize(
    ("noise", "kind"),
    [
        (0.3, "float"),
        ([np.zeros((12, units)) for units in (6, 5, 4, 3)], "ndarray"),
        ([normal(12, units).double() for units in (6, 5, 4, 3)], "torch.float64"),
    ],
)
def test_noise_that_is_no_list_of_tensors_of_the_networks_type_is_refused(noise, kind):
    with pytest.raises(TypeError, match=f"Got noise as {kind}; expected"):
        gamma(dense_network(), n_classes=3).costs(UNLABELED, noise=noise)


def test_denoising_costs_of_no_rows_and_weights_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=re.escape("Got no unlabelled rows, of shape (0, 6)")):
        gamma(dense_network(), n_classes=3).costs(UNLABELED[:0], LABELED, TARGETS)
    assert gamma(dense_network(), n_classes=3, cost=0).costs(UNLABELED[:0], LABELED, TARGETS).total > 0
    with pytest.raises(ValueError, match=re.escape("Got weights of shape (9, 1); expected one for each")):
        gamma(dense_network(), n_classes=3).costs(UNLABELED, LABELED, TARGETS, weights=torch.ones(9, 1))


def test_labelled_rows_without_targets_are_refused():
    with pytest.raises(ValueError, match="Got 9 labelled rows and no targets"):
        gamma(dense_network(), n_classes=3).costs(UNLABELED, LABELED)


# Networks that people have, on scikit-learn's digits as images.


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    source = load("digits")
    labeled = torch.from_numpy(split(source.train_y, 50, seed=0).labeled)
    rows, tests = (torch.from_numpy(x).reshape(-1, 1, 8, 8) for x in (source.train_x, source.test_x))
    return rows, torch.from_numpy(source.train_y), labeled, tests, torch.from_numpy(source.test_y)


@pytest.mark.parametrize(("network", "updates", "bound"), [(ResNet, 40, 0.3), (Attention, 80, 0.5)])
def test_a_network_that_exists_learns_digits_from_fifty_labels(network, updates, bound):
    rows, classes, labeled, tests, test_classes = digits()
    torch.manual_seed(0)
    model = gamma(network(), n_classes=10, noise=0.2, cost=0.1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.004)
    history = []
    for _ in range(updates):
        optimizer.zero_grad()
        costs = model.costs(rows[torch.randint(len(rows), (64,))], rows[labeled], classes[labeled])
        costs.total.backward()
        optimizer.step()
        history.append([costs.supervised.item(), costs.denoising.item()])
    first, last = (torch.tensor(part).mean(0) for part in (history[:10], history[-10:]))
    assert (last < 0.7 * first).all()
    model.calibrate(rows).eval()
    error = (model(tests).argmax(1) != test_classes).double().mean().item()
    assert error < bound  # by chance 0.9


# A module like any other.


def calibrated_model() -> Gamma:
    torch.manual_seed(1)
    return gamma(ResNet(3), n_classes=10).calibrate(IMAGES).eval()


def through_state_dict(model: Gamma, _) -> Gamma:
    other = gamma(ResNet(3), n_classes=10).eval()
    other.load_state_dict(model.state_dict())
    return other


def through_safetensors(model: Gamma, folder) -> Gamma:
    save_file(model.state_dict(), folder / "model.safetensors")
    other = gamma(ResNet(3), n_classes=10).eval()
    other.load_state_dict(load_file(folder / "model.safetensors"))
    return other


@pytest.mark.parametrize(
    "through",
    [
        through_state_dict,
        through_safetensors,
        lambda model, _: pickle.loads(pickle.dumps(model)),
        lambda model, _: deepcopy(model),
    ],
    ids=["state dict", "safetensors", "pickle", "copy"],
)
def test_a_model_comes_back_as_it_was(through, tmp_path):
    model = calibrated_model()
    other = through(model, tmp_path)
    assert torch.equal(model(IMAGES), other(IMAGES))
    noise = model.draw_noise(IMAGES, 10)
    one, two = (each.costs(IMAGES, noise=noise) for each in (model, other))
    assert torch.equal(one.total, two.total)
    with torch.no_grad():
        other.network.head.weight.zero_()
    assert not torch.equal(model(IMAGES), other(IMAGES))


def test_the_networks_own_names_stay_what_they_were():
    network = ResNet(3)
    names = {f"network.{name}" for name in network.state_dict()}
    model = gamma(network, n_classes=10)
    rung = {f"rung.{name}" for name in ("beta", "gamma", "mean", "deviation", "denoiser.a")}
    assert model.state_dict().keys() == names | rung | {"calibrated"}


def test_it_takes_the_networks_precision_and_goes_where_it_is_sent():
    model = gamma(dense_network().double(), n_classes=3)
    costs = model.costs(UNLABELED.double(), LABELED.double(), TARGETS)
    assert {costs.total.dtype, costs.denoising.dtype} == {torch.float64}
    assert model.calibrate(UNLABELED).eval()(UNLABELED.double()).dtype == torch.float64
    meta = gamma(dense_network(), n_classes=3).to("meta")
    meta.costs(UNLABELED.to("meta"), LABELED.to("meta"), TARGETS.to("meta")).total.backward()
    assert {p.grad.device.type for p in meta.parameters()} == {"meta"}


@pytest.mark.filterwarnings("ignore")
def test_a_compiler_takes_the_whole_of_it_as_one_graph_that_computes_the_same():
    """Without the last stage, which makes machine code of the graph: that takes a minute on a busy machine."""
    torch.compiler.reset()
    network = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.LayerNorm(5), nn.Linear(5, 3))
    model = gamma(network, n_classes=3)
    noise = model.draw_noise(UNLABELED, 21)
    before = deepcopy(model.state_dict())
    results = []
    for costs_of in (model.costs, torch.compile(model.costs, fullgraph=True, dynamic=False, backend="aot_eager")):
        model.zero_grad()
        costs = costs_of(UNLABELED, LABELED, TARGETS, noise=noise)
        costs.total.backward()
        results.append([costs.total.detach()] + [p.grad.clone() for p in model.parameters()])
    for eager, compiled in zip(*results, strict=True):
        torch.testing.assert_close(compiled, eager, rtol=1e-4, atol=1e-5)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.filterwarnings("ignore")
def test_a_network_that_was_compiled_and_called_before_has_its_noise_too():
    hidden, head = nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5)), nn.Linear(5, 3)
    network = nn.Sequential(torch.compile(hidden, backend="aot_eager"), head)
    network(UNLABELED)
    model, other = gamma(network, n_classes=3), gamma(nn.Sequential(hidden, head), n_classes=3)
    noise = other.draw_noise(UNLABELED, len(UNLABELED))
    costs, expected = (each.costs(UNLABELED, noise=noise) for each in (model, other))
    torch.testing.assert_close(costs.total, expected.total)


def rows_of(rank: int) -> tuple[Tensor, Tensor]:
    return normal(8, 3, 8, 8, seed=10 + rank), normal(6, 3, 8, 8, seed=20 + rank)


def train_in_a_process(rank: int, folder: str, port: int) -> None:
    """One update of one of two processes, each with rows of its own."""
    torch.set_num_threads(1)
    store = torch.distributed.TCPStore("127.0.0.1", port)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(minutes=1))
    model = model_of_the_processes(seed=rank)  # the first one's weights are what counts
    costs_of = DistributedDataParallel(CostsOf(model))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    unlabeled, labeled = rows_of(rank)
    noise = [draw.roll(rank, 0) for draw in model.draw_noise(unlabeled, 14, torch.Generator().manual_seed(0))]
    costs_of(unlabeled, labeled, torch.arange(6), noise=noise).total.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    optimizer.step()
    costs_of(unlabeled, labeled, torch.arange(6)).total.backward()
    torch.save((gradients, model.state_dict()), f"{folder}/{rank}.pt")
    store.set(f"{rank} is done", "")
    store.wait([f"{each} is done" for each in range(2)])  # the first to leave would take the other's connection along
    os._exit(0)  # to take connections down has been seen to hang


def model_of_the_processes(seed: int) -> Gamma:
    torch.manual_seed(seed)
    return gamma(ResNet(3), n_classes=10)


def test_two_processes_train_one_model(tmp_path, monkeypatch):
    """Their gradients are the mean of what each would find alone, and their weights stay the same."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    meeting_point = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    arguments = str(tmp_path), meeting_point.port
    processes = torch.multiprocessing.spawn(train_in_a_process, arguments, nprocs=2, join=False, daemon=True)
    assert processes.join(timeout=60) or processes.join(timeout=60), "one after the other ends"
    (gradients, state), (other_gradients, other_state) = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert all(torch.equal(value, other_gradients[name]) for name, value in gradients.items())
    assert all(torch.equal(value, other_state[name]) for name, value in state.items())

    model = model_of_the_processes(seed=0)
    for rank in range(2):
        unlabeled, labeled = rows_of(rank)
        noise = [draw.roll(rank, 0) for draw in model.draw_noise(unlabeled, 14, torch.Generator().manual_seed(0))]
        (model.costs(unlabeled, labeled, torch.arange(6), noise=noise).total / 2).backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-3, atol=1e-5)


def test_a_width_that_a_hook_changes_is_not_taken_for_known() -> None:
    network = nn.Sequential(nn.Linear(4, 3))
    network[0].register_forward_hook(lambda _, __, scores: scores[:, :2])
    assert gamma(network, 2).train()(torch.rand(5, 4)).shape == (5, 2)


def test_a_network_may_look_at_a_switch_of_its_own() -> None:
    class Switched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.top = nn.Linear(4, 3)
            self.register_buffer("on", torch.tensor(True))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.top(x) if self.on else x

    with pytest.raises(ValueError, match="n_classes=2"):
        gamma(Switched(), 2)
