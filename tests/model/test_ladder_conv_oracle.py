"""Ladders on maps compute what the NumPy oracle computes, with rungs of every kind, alone and packed."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from comparison import NETWORKS, TASKS, Comparison, assert_same_costs, assert_same_gradients, compare
from oracle import DENOISERS, LAYERS, Array, Settings, Shape, as_float32
from tikas import Conv, Dense, GlobalMeanPool, Ladder, MaxPool, MeanPool
from tikas.model.layers import RUNG_MODULES
from tikas.model.specs import rung_text
from tikas.training.ensemble import pack

# The oracle itself, against numbers computed by hand


def test_oracle_convolutions_agree_with_values_computed_by_hand():
    maps = np.array([[[[1.0, 2.0, 3.0]] * 3]])
    kernel = np.arange(4.0).reshape(1, 1, 2, 2)  # 0 1 / 2 3
    valid, full = (LAYERS["conv"](Conv(1, 2, padding=padding), (1, 3, 3)) for padding in ("valid", "full"))
    np.testing.assert_array_equal(valid.up(maps, kernel)[0, 0, 0], [0 + 2 + 2 + 6, 0 + 3 + 4 + 9])
    np.testing.assert_array_equal(full.up(maps, kernel)[0, 0, 0], [3, 2 + 6, 4 + 9, 6])
    above = np.array([[[[1.0, 10.0], [0, 0]]]])
    # The last row and column of the kernel meet the first position of the map above.
    np.testing.assert_array_equal(valid.down(above, kernel)[0, 0, :2], [[3, 32, 20], [1, 10, 0]])


def test_oracle_pooling_agrees_with_values_computed_by_hand():
    maps = np.arange(9.0).reshape(1, 1, 3, 3)
    pool, mean, overlapping = (
        LAYERS[spec.kind](spec, (1, 3, 3)) for spec in (MaxPool(2), MeanPool(2), MaxPool(2, stride=1))
    )
    np.testing.assert_array_equal(pool.up(maps, None)[0, 0], [[4, 5], [7, 8]])
    np.testing.assert_array_equal(mean.up(maps, None)[0, 0], [[2, 3.5], [6.5, 8]])
    above = np.array([[[[1.0, 2.0], [3.0, 4.0]]]])
    np.testing.assert_array_equal(pool.down(above, None)[0, 0], [[1, 1, 2], [1, 1, 2], [3, 3, 4]])
    np.testing.assert_array_equal(overlapping.down(above, None)[0, 0], [[1, 1.5, 2], [2, 2.5, 3], [3, 3.5, 4]])


# Costs, gradients and calibrated outputs


def with_costs(settings: Settings, costs: str) -> Settings:
    """Return the same network as a full ladder, with the input's cost alone, as a Γ-model, or without a cost."""
    above = (0.0,) * settings.top
    choices = {"full": settings.costs, "bottom": (3.0, *above), "gamma": (*above, 0.7), "baseline": (0.0, *above)}
    return replace(settings, costs=choices[costs])


def small(settings: Settings, seed: int = 1) -> Comparison:
    return compare(settings, seed, unlabeled=5, labeled=4)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("costs", ["full", "bottom", "gamma", "baseline"])
@pytest.mark.parametrize("network", NETWORKS)
def test_costs_on_maps_agree_with_the_oracle(network, costs, task):
    both = small(with_costs(replace(NETWORKS[network], task=task), costs))
    expected = both.numpy_costs()
    assert_same_costs(both.torch_costs(both.ladder()), expected)
    assert_same_costs(both.torch_costs(both.ladder(torch.float32)), expected, relative=1e-5)


@pytest.mark.parametrize("denoiser", DENOISERS)
def test_denoisers_have_parameters_for_each_channel(denoiser):
    both = small(replace(NETWORKS["pooling"], denoiser=denoiser))
    assert both.ladder().rungs[0].denoiser.a.shape[1] == 2
    assert_same_costs(both.torch_costs(both.ladder()), both.numpy_costs())


@pytest.mark.parametrize(
    ("network", "costs"),
    [
        *((network, "full") for network in NETWORKS),
        ("global top", "bottom"),
        ("pooling", "gamma"),
        ("strides", "baseline"),
    ],
)
def test_gradients_on_maps_agree_with_the_oracle(network, costs):
    both = small(with_costs(NETWORKS[network], costs))
    expected = both.numpy_gradients()
    assert_same_gradients(both.torch_gradients(), expected)
    assert_same_gradients(both.torch_gradients(torch.float32), expected, relative=1e-5)


@pytest.mark.parametrize("chunk", [1, 7, None])
@pytest.mark.parametrize("network", NETWORKS)
def test_calibrated_outputs_on_maps_agree_with_the_oracle(network, chunk):
    both = compare(NETWORKS[network])
    rng = np.random.default_rng(2)
    train, test = (as_float32(rng.normal(0.5, 2, (rows, *both.settings.input_shape))) for rows in (23, 6))
    expected = both.oracle.predict(test, both.oracle.calibrate(train))
    for dtype, relative in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        ladder = both.ladder(dtype).calibrate(torch.from_numpy(train).to(dtype), chunk=chunk)
        found = ladder.eval()(torch.from_numpy(test).to(dtype)).detach().numpy()
        np.testing.assert_allclose(found, expected, rtol=relative, atol=relative * np.abs(expected).max())


# One rung at a time, of many kinds and sizes, up and down

RUNGS = [
    *(
        Conv(3, kernel, padding=padding, stride=stride)
        for kernel, padding, stride in product((1, 2, 3, 4), ("valid", "same", "full"), (1, 2, 3))
    ),
    *(
        pool(size, stride=stride, rounding=rounding)
        for pool, size, stride, rounding in product((MaxPool, MeanPool), (1, 2, 3), (1, 2, 3, 4), ("up", "down"))
    ),
    GlobalMeanPool(),
    Dense(4),
]


@pytest.mark.parametrize("spec", RUNGS, ids=rung_text)
def test_encoder_and_decoder_operations_agree_with_the_oracle_for_maps_of_any_size(spec):
    rng = np.random.default_rng(0)
    for below in [*((2, side, 4 + side % 3) for side in range(4, 10)), (2, 12, 4), (2, 4, 12)]:
        layer = LAYERS[spec.kind](spec, below)
        rung = RUNG_MODULES[type(spec)](spec, below, top=False, noise=0.0, cost=1.0)
        rung.add_back()
        rung.double()
        assert rung.shape == spec.shape(below) == layer.shape
        weight, back = draw(rng, layer.weight_shape), draw(rng, layer.back_shape)
        with torch.no_grad():
            for module, values in ((rung, weight), (rung.back, back)):
                if values is not None:
                    module.weight.copy_(torch.from_numpy(values))
        h, denoised = rng.normal(size=(3, *below)), rng.normal(size=(3, *layer.shape))
        up, down = rung.up(torch.from_numpy(h)), rung.back(torch.from_numpy(denoised))
        np.testing.assert_allclose(up.detach().numpy(), layer.up(h, weight), rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(down.detach().numpy(), layer.down(denoised, back), rtol=1e-12, atol=1e-12)


def draw(rng: np.random.Generator, shape: Shape | None) -> Array | None:
    return None if shape is None else rng.normal(size=shape)


@pytest.mark.parametrize("below", [(1, 40, 3), (1, 3, 40)], ids=["tall", "wide"])
def test_a_kernel_larger_than_one_side_only_is_an_ordinary_convolution(below):
    rung = RUNG_MODULES[Conv](Conv(2, 5, padding="full"), below, top=False, noise=0.0, cost=1.0)
    rung.add_back()
    assert not rung.is_product
    assert not rung.back.transposed


# Members


@pytest.mark.parametrize("network", NETWORKS)
def test_packed_ladders_on_maps_compute_what_each_computes_alone(network):
    comparisons = [small(NETWORKS[network], seed) for seed in (1, 2, 3)]
    ladders = [both.ladder() for both in comparisons]
    packed = pack(ladders)
    batches = [both.batch for both in comparisons]
    rows, labeled, targets = (
        torch.from_numpy(np.stack([getattr(batch, part) for batch in batches]))
        for part in ("unlabeled", "labeled", "targets")
    )
    noise = [torch.from_numpy(np.stack(draws)) for draws in zip(*(batch.noise for batch in batches), strict=True)]
    costs = packed.costs(rows, labeled, targets, noise=noise)
    costs.total.sum().backward()
    parameters = dict(packed.named_parameters())
    for member, (both, ladder) in enumerate(zip(comparisons, ladders, strict=True)):
        alone = both.torch_costs(ladder)
        alone.total.backward()
        for cost, expected in zip(costs, alone, strict=True):
            torch.testing.assert_close(cost[member], expected, rtol=1e-12, atol=0)
        for name, parameter in ladder.named_parameters():
            torch.testing.assert_close(parameters[name].grad[member], parameter.grad, rtol=1e-9, atol=1e-11)
    together = packed.calibrate(rows).eval()(rows)
    for member, ladder in enumerate(ladders):
        alone = ladder.calibrate(rows[member]).eval()(rows[member])
        torch.testing.assert_close(together[member], alone, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("network", NETWORKS)
def test_outputs_of_packed_ladders_are_those_of_the_members(network):
    ladders = [small(NETWORKS[network], seed).ladder() for seed in (1, 2)]
    rows = torch.from_numpy(small(NETWORKS[network]).batch.unlabeled)
    together = pack(ladders)(torch.stack([rows, rows]))
    for member, ladder in enumerate(ladders):
        torch.testing.assert_close(together[member], ladder(rows), rtol=1e-10, atol=1e-12)


def test_members_may_differ_in_noise_and_costs():
    one = NETWORKS["pooling"]
    other = replace(one, noise=tuple(2 * n for n in one.noise), costs=tuple(3 * c for c in one.costs))
    comparisons = [small(settings) for settings in (one, other)]
    packed = pack([both.ladder() for both in comparisons])
    batch = comparisons[0].batch
    rows, labeled, targets = (
        torch.from_numpy(np.stack([part] * 2)) for part in (batch.unlabeled, batch.labeled, batch.targets)
    )
    costs = packed.costs(rows, labeled, targets, noise=[torch.from_numpy(np.stack([n] * 2)) for n in batch.noise])
    for member, both in enumerate(comparisons):
        alone = replace(both, batch=batch).torch_costs(both.ladder())
        for cost, expected in zip(costs, alone, strict=True):
            torch.testing.assert_close(cost[member], expected, rtol=1e-12, atol=0)
    assert costs.total[1] > 2 * costs.total[0]


# Initial values, names and channels of zeros


def test_initial_kernels_are_uniform_with_deviation_one_over_the_root_of_their_inputs():
    generator = torch.Generator().manual_seed(0)
    ladder = Ladder((20, 9, 9), [Conv(30, 3), MaxPool(2), Dense(2)], costs=(1, 1, 1, 1), generator=generator)
    for weight, inputs in ((ladder.rungs[1].weight, 20 * 9), (ladder.rungs[1].back.weight, 30 * 9)):
        values = weight.detach().numpy() * np.sqrt(inputs)
        assert values.std() == pytest.approx(1, abs=0.02)
        assert np.abs(values).max() == pytest.approx(np.sqrt(3), abs=0.01)
        assert (values**4).mean() == pytest.approx(1.8, abs=0.05)  # kurtosis: 1.8 if uniform, 3 if normal


def test_parameters_on_maps_have_stable_names_and_shapes():
    rungs = [Conv(4, 3, padding="full"), MaxPool(2), Dense(5), Dense(3)]
    ladder = Ladder((2, 7, 7), rungs, costs=(1, 1, 1, 1, 1))
    assert {name: tuple(p.shape) for name, p in ladder.named_parameters()} == {
        "rungs.0.denoiser.a": (10, 2),
        "rungs.1.weight": (4, 2, 3, 3),
        "rungs.1.beta": (4,),
        "rungs.1.back.weight": (2, 4, 3, 3),
        "rungs.1.denoiser.a": (10, 4),
        "rungs.2.denoiser.a": (10, 4),
        "rungs.3.weight": (5, 4 * 5 * 5),
        "rungs.3.beta": (5,),
        "rungs.3.back.weight": (4 * 5 * 5, 5),
        "rungs.3.denoiser.a": (10, 5),
        "rungs.4.weight": (3, 5),
        "rungs.4.beta": (3,),
        "rungs.4.gamma": (3,),
        "rungs.4.back.weight": (5, 3),
        "rungs.4.denoiser.a": (10, 3),
    }
    buffers = {name: tuple(b.shape) for name, b in ladder.named_buffers() if name.startswith("rungs.2")}
    assert buffers == {"rungs.2.mean": (4,), "rungs.2.deviation": (4,)}


@pytest.mark.parametrize("zero", [False, True])
def test_a_channel_of_zeros_does_not_make_the_cost_of_a_pooling_rung_explode(zero: bool):
    generator = torch.Generator().manual_seed(0)
    rungs = [Conv(4, 3), MaxPool(2), GlobalMeanPool(), Dense(3)]
    ladder = Ladder((1, 8, 8), rungs, costs=(1, 1, 1, 1, 1), generator=generator)
    with torch.no_grad():
        for rung in ladder.rungs:
            rung.denoiser.a[9] = 0.5  # ẑ is not zero
        if zero:
            ladder.rungs[1].beta[2] = -100.0
    rows = torch.rand(20, 1, 8, 8, generator=generator)
    noise = [torch.randn(26, *shape, generator=generator) for shape in ladder.shapes]
    costs = ladder.costs(rows, rows[:6], torch.tensor([0, 1, 2, 0, 1, 2]), noise)
    assert costs.denoising.max() < 100
