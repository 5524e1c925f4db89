"""Dense ladders compute what the NumPy oracle computes: costs, gradients and calibrated outputs."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from comparison import COSTS, TASKS, assert_same_costs, assert_same_gradients, compare, dense
from oracle import DENOISERS, Array, Oracle, Settings, as_float32
from tikas import Dense, Ladder
from tikas.model.specs import RungSpec

ACTIVATIONS = [("relu", "relu"), ("leaky_relu", "tanh"), ("gelu", "linear")]

# The oracle itself, against numbers computed by hand


def test_oracle_agrees_with_a_ladder_of_one_unit_computed_by_hand():
    settings = Settings((1,), (Dense(1),), (0.5, 0.5), (0.5, 2.0), "linear", "regression")
    parameters = {
        "rungs.0.denoiser.a": [[0], [1], [2], [0]],
        "rungs.1.weight": [[2]],
        "rungs.1.beta": [1],
        "rungs.1.gamma": [2],
        "rungs.1.back.weight": [[3]],
        "rungs.1.denoiser.a": [[0.5], [1], [0], [0.5]],
    }
    oracle = Oracle(settings, {name: np.array(values, float) for name, values in parameters.items()})
    column = np.array([[0.0], [2.0]])
    noise = [np.zeros((4, 1)), np.array([[0.0], [2.0], [1.0], [1.0]])]
    costs = oracle.costs(column - 1, column, np.array([[1.0], [5.0]]), noise)
    # Labeled: W x = 0, 4, normalized −1, 1, with noise −1, 2, output 0, 6; the targets are 1, 5.
    assert costs.supervised == pytest.approx(1)
    # Top: z̃ = −0.5, 1.5, u = −1, 1, ẑ = 0.25, 2.75, divided by the clean deviation 2; the targets are −1, 1.
    # Input: u = −1, 1, ẑ = −3, 3; the targets are −1, 1.
    np.testing.assert_allclose(costs.denoising, [4, (1.125**2 + 0.375**2) / 2])
    assert costs.total == pytest.approx(1 + 0.5 * 4 + 2 * (1.125**2 + 0.375**2) / 2)


@pytest.mark.parametrize(
    ("name", "denoised", "parameters"),
    [
        ("gaussian", (2 - 8) * 18 + 8, {"a": [2, 1, -1, 3, 4, 6, 2, -2, 7, 8]}),
        ("mlp", 16 + 5, {"a": [1, 2, 3, 4], "b": [10], "c": [2, -1, -2, 1]}),
        ("no-product", 8 + 5, {"a": [1, 2, 3], "b": [10], "c": [1, -1, 1]}),
        ("linear", 16, {"a": [1, 2, 3, 4]}),
        ("additive", 1 + 1 + 10 + 3 + 9, {"a": [1, 2, 3, -3, 5, 6, 1, -2, 9]}),
    ],
)
def test_oracle_denoisers_agree_with_values_computed_by_hand(name, denoised, parameters):
    function, _ = DENOISERS[name]
    assert function(np.array(2.0), np.array(1.0), **parameters) == pytest.approx(denoised)


def test_oracle_gradients_agree_with_central_differences():
    both, step = compare(dense(activations=("gelu", "leaky_relu"))), 1e-6
    for name, gradient in both.numpy_gradients().items():
        values = both.oracle.parameters[name]
        direction = np.random.default_rng(0).normal(size=values.shape)

        def total(shift: float, name=name, values=values, direction=direction) -> float:
            moved = {**both.oracle.parameters, name: values + shift * direction}
            return both.numpy_costs(Oracle(both.settings, moved)).total

        slope = (total(step) - total(-step)) / (2 * step)
        assert (gradient * direction).sum() == pytest.approx(slope, rel=1e-6, abs=1e-7), name


# Costs


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("activations", ACTIVATIONS, ids="-".join)
@pytest.mark.parametrize("costs", COSTS)
@pytest.mark.parametrize("denoiser", DENOISERS)
def test_costs_agree_with_the_oracle(denoiser, costs, activations, task):
    both = compare(dense(costs, activations, denoiser=denoiser, task=task))
    expected = both.numpy_costs()
    assert_same_costs(both.torch_costs(both.ladder()), expected)
    assert_same_costs(both.torch_costs(both.ladder(torch.float32)), expected, relative=1e-5)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(("unlabeled", "labeled"), [(5, 40), (40, 5), (9, 9), (2, 3)])
def test_costs_agree_with_the_oracle_for_any_batch_sizes(unlabeled, labeled, task):
    both = compare(dense(activations=("tanh", "leaky_relu"), task=task), unlabeled=unlabeled, labeled=labeled)
    assert_same_costs(both.torch_costs(both.ladder()), both.numpy_costs())


@pytest.mark.parametrize("units", [(4, 3), (3, 6, 2), (2, 7, 5, 3, 6, 4)], ids=str)
def test_costs_agree_with_the_oracle_for_any_number_of_rungs(units):
    below, *above = units
    noise, costs = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6), (5.0, 2.0, 1.0, 0.5, 0.2, 0.1)
    both = compare(Settings((below,), tuple(map(Dense, above)), noise[: len(units)], costs[: len(units)]))
    assert_same_costs(both.torch_costs(both.ladder()), both.numpy_costs())


@pytest.mark.parametrize("task", TASKS)
def test_weighted_supervised_cost_agrees_with_the_oracle(task):
    both = compare(dense(task=task))
    weights = as_float32(np.random.default_rng(5).uniform(0, 3, len(both.batch.labeled)))
    weights[2] = 0
    expected = both.numpy_costs(weights=weights)
    assert abs(expected.supervised / both.numpy_costs().supervised - 1) > 0.01
    assert_same_costs(both.torch_costs(both.ladder(), weights=torch.from_numpy(weights)), expected)
    assert_same_costs(both.torch_costs(both.ladder(), weights=torch.from_numpy(2 * weights)), expected)


def test_one_number_means_the_noise_of_every_level_and_the_cost_of_the_top():
    both = compare(dense("gamma", noise=(0.3, 0.3, 0.3, 0.3)))
    rungs: list[RungSpec] = [Dense(5), Dense(4), Dense(3)]
    ladder = Ladder(input_shape=(6,), rungs=rungs, noise=0.3, costs=0.7).double()
    ladder.load_state_dict(both.ladder().state_dict())
    assert_same_costs(both.torch_costs(ladder), both.numpy_costs())


def test_noise_that_the_ladder_draws_has_the_deviation_of_each_level():
    # With this many rows, two draws of the noise give nearly the same costs, and other deviations give others.
    rows = 20_000
    both = compare(dense(), unlabeled=rows, labeled=rows)
    batch, parameters = both.batch, both.oracle.parameters
    for name, a in parameters.items():
        if "denoiser" in name:
            a[:] = np.arange(10)[:, None] == 9  # ẑ = z̃: the cost of each level is its own noise
    torch.manual_seed(3)
    drawn = both.ladder().costs(*map(torch.from_numpy, (batch.unlabeled, batch.labeled, batch.targets)))

    def expected(noise: tuple[float, ...]) -> Array:
        return both.numpy_costs(Oracle(dense(noise=noise), parameters)).denoising

    noise = both.settings.noise
    np.testing.assert_allclose(drawn.denoising.detach().numpy(), expected(noise), rtol=0.02)
    for level in range(4):
        doubled = tuple(deviation * (2 if at == level else 1) for at, deviation in enumerate(noise))
        assert expected(doubled)[level] / expected(noise)[level] > 1.1


# Gradients


@pytest.mark.parametrize(
    "settings",
    [
        *(pytest.param(dense(denoiser=name), id=f"full {name}") for name in DENOISERS),
        pytest.param(dense(activations=("gelu", "tanh")), id="full gelu tanh"),
        pytest.param(dense(activations=("leaky_relu", "linear")), id="full leaky_relu linear"),
        pytest.param(dense(task="regression"), id="full regression"),
        pytest.param(dense("gamma"), id="gamma"),
        pytest.param(dense("gamma", task="regression"), id="gamma regression"),
        pytest.param(dense("bottom"), id="bottom"),
        pytest.param(dense("middle"), id="middle"),
        pytest.param(dense("baseline"), id="baseline"),
    ],
)
def test_gradients_of_every_parameter_agree_with_the_oracle(settings):
    both = compare(settings)
    expected = both.numpy_gradients()
    assert_same_gradients(both.torch_gradients(), expected)
    assert_same_gradients(both.torch_gradients(torch.float32), expected, relative=1e-5)


# Eval mode


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("activations", ACTIVATIONS, ids="-".join)
@pytest.mark.parametrize("chunk", [1, 7, 32, 53, 1000])
def test_calibrated_outputs_agree_with_the_oracle_for_any_chunk(chunk, activations, task):
    both = compare(dense(activations=activations, task=task))
    rng = np.random.default_rng(2)
    train, test = as_float32(rng.normal(0.5, 2, (53, 6))), as_float32(rng.normal(0.5, 2, (9, 6)))
    expected = both.oracle.predict(test, both.oracle.calibrate(train))
    for dtype, relative in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        ladder = both.ladder(dtype)
        ladder.calibrate(torch.from_numpy(train).to(dtype), chunk=chunk)
        found = ladder.eval()(torch.from_numpy(test).to(dtype)).detach().numpy()
        np.testing.assert_allclose(found, expected, rtol=relative, atol=relative * np.abs(expected).max())


def test_calibration_in_float32_is_exact_for_a_mean_much_larger_than_the_deviation():
    both = compare(dense())
    rng = np.random.default_rng(2)
    train, test = as_float32(rng.normal(30, 1, (500, 6))), as_float32(rng.normal(30, 1, (9, 6)))
    expected = both.oracle.predict(test, both.oracle.calibrate(train))
    ladder = both.ladder(torch.float32)
    ladder.calibrate(torch.from_numpy(train).float(), chunk=64)
    found = ladder.eval()(torch.from_numpy(test).float()).detach().numpy()
    np.testing.assert_allclose(found, expected, atol=2e-4)


@pytest.mark.parametrize("task", TASKS)
def test_outputs_in_training_mode_are_normalized_with_the_statistics_of_the_batch(task):
    both = compare(dense(task=task))
    rows = both.batch.unlabeled
    found = both.ladder().train()(torch.from_numpy(rows)).detach().numpy()
    np.testing.assert_allclose(found, both.oracle.encode_clean(rows)[-1].scores, rtol=1e-10)


def test_encode_returns_the_latent_of_the_top_and_the_output():
    both = compare(dense())
    rows = both.batch.unlabeled
    top = both.oracle.encode_clean(rows)[-1]
    for found, expected in zip(both.ladder().encode(torch.from_numpy(rows)), (top.z, top.scores), strict=True):
        np.testing.assert_allclose(found.detach().numpy(), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("costs", COSTS)
def test_reconstructions_agree_with_the_oracle(costs):
    both = compare(dense(costs))
    rows, noise = both.batch.unlabeled, [draw[7:] for draw in both.batch.noise]
    expected: dict[int, Array] = {}

    class Recording(Oracle):
        def denoise(self, level: int, z: Array, u: Array) -> Array:
            expected[level] = super().denoise(level, z, u)
            return expected[level]

    both.numpy_costs(Recording(both.settings, both.oracle.parameters))
    found = both.ladder().denoise(torch.from_numpy(rows), noise=[torch.from_numpy(draw) for draw in noise])
    assert [level for level, denoised in enumerate(found) if denoised is not None] == sorted(expected)
    for level, denoised in expected.items():
        np.testing.assert_allclose(found[level].numpy(), denoised, rtol=1e-10, atol=1e-12)


def test_calibrated_statistics_are_part_of_the_state_dict():
    both = compare(dense())
    rows = torch.from_numpy(both.batch.unlabeled)
    calibrated, other = both.ladder(), both.ladder()
    calibrated.calibrate(rows)
    other.load_state_dict(calibrated.state_dict())
    torch.testing.assert_close(other.eval()(rows[:2]), calibrated.eval()(rows[:2]), rtol=0, atol=0)
    mean, deviation = both.oracle.calibrate(both.batch.unlabeled)[1]
    np.testing.assert_allclose(calibrated.state_dict()["rungs.1.mean"].numpy(), mean, rtol=1e-10)
    np.testing.assert_allclose(calibrated.state_dict()["rungs.1.deviation"].numpy(), deviation, rtol=1e-10)


# The order of the noise


def test_noise_is_scaled_by_the_deviations_of_the_ladder_and_has_the_labeled_rows_first():
    both = compare(dense(), unlabeled=9, labeled=4)
    ladder = both.ladder()
    costs = both.torch_costs(ladder)
    swapped = replace(both.batch, noise=[np.roll(draw, 9, axis=0) for draw in both.batch.noise])
    other = replace(both, batch=swapped).torch_costs(ladder)
    assert abs(other.supervised.item() / costs.supervised.item() - 1) > 1e-3
    only_labeled = [np.vstack([draw[:4], np.zeros_like(draw[4:])]) for draw in both.batch.noise]
    same = replace(both, batch=replace(both.batch, noise=only_labeled)).torch_costs(ladder)
    assert same.supervised.item() == pytest.approx(costs.supervised.item(), rel=1e-12)
    assert abs(same.denoising[0].item() / costs.denoising[0].item() - 1) > 1e-3
