"""The torch ladder computes what an independent NumPy ladder computes: costs, gradients, calibrated outputs, names."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

import oracle as o
import oracle_rungs as r
from tikas import Conv, Dense, GlobalMeanPool, Ladder, MaxPool, MeanPool
from tikas.model.specs import RungSpec

COSTS = {
    "full": (2.0, 1.0, 0.5, 0.3),
    "bottom": (3.0, 0.0, 0.0, 0.0),
    "gamma": (0.0, 0.0, 0.0, 0.7),
    "middle": (0.0, 2.0, 0.0, 0.0),
    "baseline": (0.0, 0.0, 0.0, 0.0),
}
ACTIVATIONS = [("relu", "relu"), ("leaky_relu", "tanh"), ("gelu", "linear")]
TASKS = ["classification", "regression"]
NOISE = (0.3, 0.2, 0.5, 0.4)


def describe(costs: str = "full", activations: tuple[str, str] = ("relu", "relu"), **changes: object) -> o.Description:
    return replace(o.dense((6, 5, 4, 3), activations, NOISE, COSTS[costs]), **changes)


def spec_of(description: o.Description, level: int) -> RungSpec:
    """What the torch ladder is told of a rung."""
    rung, top = description.rungs[level - 1], level == description.top
    activation = None if top else description.activations[level - 1]
    match rung:
        case r.Dense(units):
            return Dense(units, activation=activation, scale=description.scaled_top)
        case r.Conv(features, kernel, padding, stride):
            return Conv(features, kernel, padding=padding, stride=stride, activation=activation)
        case r.Pool("max", size, stride, rounding):
            return MaxPool(size, stride=stride, rounding=rounding)
        case r.Pool("mean", size, stride, rounding):
            return MeanPool(size, stride=stride, rounding=rounding)
    return GlobalMeanPool(scale=description.scaled_top)


def torch_ladder(description: o.Description, parameters: o.Parameters, dtype: torch.dtype = torch.float64) -> Ladder:
    """The torch ladder of this description that holds exactly these parameters."""
    ladder = Ladder(
        input_shape=description.input_shape,
        rungs=[spec_of(description, level) for level in range(1, description.top + 1)],
        noise=description.noise,
        costs=description.costs,
        denoiser=description.denoiser,
        task=description.task,
    ).to(dtype)
    own = dict(ladder.named_parameters())
    assert own.keys() == parameters.keys()
    with torch.no_grad():
        for name, values in parameters.items():
            assert own[name].shape == values.shape, name
            own[name].copy_(torch.from_numpy(values))
    return ladder


@dataclass(frozen=True)
class Pair:
    """One ladder twice, and a batch for it."""

    oracle: o.Oracle
    batch: o.Batch

    def ladder(self, dtype: torch.dtype = torch.float64) -> Ladder:
        return torch_ladder(self.oracle.description, self.oracle.parameters, dtype)

    def numpy_costs(self, oracle: o.Oracle | None = None, weights: o.Array | None = None) -> o.Costs:
        batch = self.batch
        return (oracle or self.oracle).costs(batch.unlabelled, batch.labelled, batch.targets, batch.noise, weights)

    def torch_costs(self, ladder: Ladder, **options: torch.Tensor):
        dtype, batch = next(ladder.parameters()).dtype, self.batch
        targets = torch.from_numpy(batch.targets)
        return ladder.costs(
            torch.from_numpy(batch.unlabelled).to(dtype),
            torch.from_numpy(batch.labelled).to(dtype),
            targets.to(dtype) if targets.is_floating_point() else targets,
            noise=[torch.from_numpy(draw).to(dtype) for draw in batch.noise],
            **options,
        )

    def torch_slopes(self) -> o.Parameters:
        """The gradient of the total; zero for a parameter that no cost reaches."""
        ladder = self.ladder()
        self.torch_costs(ladder).total.backward()
        return {
            name: np.zeros(tuple(p.shape)) if p.grad is None else p.grad.numpy()
            for name, p in ladder.named_parameters()
        }

    def numpy_slopes(self, oracle: o.Oracle | None = None) -> o.Parameters:
        oracle = oracle or self.oracle
        return o.central_differences(
            lambda parameters: self.numpy_costs(replace(oracle, parameters=parameters)).total, oracle.parameters
        )


def pair(description: o.Description, seed: int = 1, **sizes: int) -> Pair:
    rng = np.random.default_rng(seed)
    parameters = o.random_parameters(description, rng)
    return Pair(o.Oracle(description, parameters), o.random_batch(description, rng, **sizes))


def assert_same_costs(found, expected: o.Costs, relative: float = 1e-10) -> None:
    assert found.supervised.item() == pytest.approx(expected.supervised, rel=relative)
    assert found.total.item() == pytest.approx(expected.total, rel=relative)
    np.testing.assert_allclose(found.denoising.detach().numpy(), expected.denoising, rtol=relative, atol=0)


# The oracle itself, by hand.


def test_one_unit_ladder_worked_by_hand_agrees_with_the_oracle():
    description = o.dense((1, 1), (), (0.5, 0.5), (0.5, 2.0), "linear", "regression")
    one = {
        "rungs.0.denoiser.a": [[0], [1], [2], [0]],
        "rungs.1.weight": [[2]],
        "rungs.1.beta": [1],
        "rungs.1.gamma": [2],
        "rungs.1.back.weight": [[3]],
        "rungs.1.denoiser.a": [[0.5], [1], [0], [0.5]],
    }
    ladder = o.Oracle(description, {name: np.array(values, float) for name, values in one.items()})
    column = np.array([[0.0], [2.0]])
    noise = [np.zeros((4, 1)), np.array([[0.0], [2.0], [1.0], [1.0]])]
    costs = ladder.costs(column - 1, column, np.array([[1.0], [5.0]]), noise)
    # Labelled: 2x = 0, 4, normalised −1, 1, noised −1, 2, output 0, 6 against 1, 5.
    assert costs.supervised == pytest.approx(1)
    # Top: z̃ = −0.5, 1.5, u = −1, 1, ẑ = 0.25, 2.75, halved by the clean deviation, against −1, 1.
    # Input: u = −1, 1, ẑ = −3, 3, against −1, 1.
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
def test_denoisers_worked_by_hand_at_z_2_and_u_1_agree_with_the_oracle(name, denoised, parameters):
    function, _ = o.DENOISERS[name]
    assert function(np.array(2.0), np.array(1.0), **parameters) == pytest.approx(denoised)


# (a) Costs.


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("activations", ACTIVATIONS, ids="-".join)
@pytest.mark.parametrize("costs", COSTS)
@pytest.mark.parametrize("denoiser", o.DENOISERS)
def test_costs_agree_with_numpy(denoiser, costs, activations, task):
    both = pair(describe(costs, activations, denoiser=denoiser, task=task))
    expected = both.numpy_costs()
    assert_same_costs(both.torch_costs(both.ladder()), expected)
    assert_same_costs(both.torch_costs(both.ladder(torch.float32)), expected, relative=1e-5)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(("unlabelled", "labelled"), [(5, 40), (40, 5), (9, 9), (2, 3)])
def test_costs_agree_with_numpy_whatever_the_sizes_of_the_two_batches(unlabelled, labelled, task):
    both = pair(describe(activations=("tanh", "leaky_relu"), task=task), unlabelled=unlabelled, labelled=labelled)
    assert_same_costs(both.torch_costs(both.ladder()), both.numpy_costs())


@pytest.mark.parametrize("units", [(4, 3), (3, 6, 2), (2, 7, 5, 3, 6, 4)], ids=str)
def test_costs_agree_with_numpy_whatever_the_number_of_rungs(units):
    rungs = len(units) - 1
    noise, costs = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)[: rungs + 1], (5.0, 2.0, 1.0, 0.5, 0.2, 0.1)[: rungs + 1]
    both = pair(o.dense(units, ("relu",) * (rungs - 1), noise, costs))
    assert_same_costs(both.torch_costs(both.ladder()), both.numpy_costs())


@pytest.mark.parametrize("task", TASKS)
def test_weighted_supervised_cost_agrees_with_numpy(task):
    both = pair(describe(task=task))
    weights = o.single(np.random.default_rng(5).uniform(0, 3, len(both.batch.labelled)))
    weights[2] = 0
    found = both.torch_costs(both.ladder(), weights=torch.from_numpy(weights))
    expected = both.numpy_costs(weights=weights)
    assert_same_costs(found, expected)
    assert abs(expected.supervised / both.numpy_costs().supervised - 1) > 0.01
    assert_same_costs(both.torch_costs(both.ladder(), weights=torch.from_numpy(2 * weights)), expected)


def test_one_number_for_noise_and_costs_means_every_level_and_the_top_alone():
    description = describe("gamma", noise=(0.3, 0.3, 0.3, 0.3))
    both = pair(description)
    rungs = [Dense(5, activation="relu"), Dense(4), Dense(3)]
    ladder = Ladder(input_shape=(6,), rungs=rungs, noise=0.3, costs=0.7).double()
    ladder.load_state_dict(both.ladder().state_dict())
    assert_same_costs(both.torch_costs(ladder), both.numpy_costs())


def test_noise_that_the_ladder_draws_has_the_deviation_of_each_level():
    """With this many rows two draws of the noise give nearly one cost, and other deviations give others."""
    rows = 20_000
    both = pair(describe(), unlabelled=rows, labelled=rows)
    batch, parameters = both.batch, both.oracle.parameters
    for name, a in parameters.items():
        if "denoiser" in name:
            a[:] = np.arange(10)[:, None] == 9  # ẑ = z̃, so that every cost is the noise of its own level, and no tails
    torch.manual_seed(3)
    drawn = both.ladder().costs(*map(torch.from_numpy, (batch.unlabelled, batch.labelled, batch.targets)))

    def expected(noise: tuple[float, ...]) -> o.Array:
        return both.numpy_costs(o.Oracle(describe(noise=noise), parameters)).denoising

    np.testing.assert_allclose(drawn.denoising.detach().numpy(), expected(NOISE), rtol=0.02)
    for level in range(4):
        doubled = tuple(deviation * (2 if at == level else 1) for at, deviation in enumerate(NOISE))
        assert expected(doubled)[level] / expected(NOISE)[level] > 1.1


# (b) Gradients.


@pytest.mark.parametrize(
    "description",
    [
        *(pytest.param(describe(denoiser=name), id=f"full {name}") for name in o.DENOISERS),
        pytest.param(describe(activations=("gelu", "tanh")), id="full gelu tanh"),
        pytest.param(describe(activations=("leaky_relu", "linear")), id="full leaky_relu linear"),
        pytest.param(describe(task="regression"), id="full regression"),
        pytest.param(describe("gamma"), id="gamma"),
        pytest.param(describe("gamma", task="regression"), id="gamma regression"),
        pytest.param(describe("bottom"), id="bottom"),
        pytest.param(describe("middle"), id="middle"),
        pytest.param(describe("baseline"), id="baseline"),
    ],
)
def test_gradients_of_every_parameter_entry_agree_with_central_differences(description):
    both = pair(description)
    found, expected = both.torch_slopes(), both.numpy_slopes()
    assert found.keys() == expected.keys()
    for name, slopes in expected.items():
        np.testing.assert_allclose(found[name], slopes, rtol=1e-6, atol=2e-8 * (1 + np.abs(slopes).max()), err_msg=name)
        assert np.abs(slopes).max() > 1e-4, f"{name} is not tested: its gradient vanishes"


# (c) Eval mode.


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("activations", ACTIVATIONS, ids="-".join)
@pytest.mark.parametrize("chunk", [1, 7, 32, 53, 1000])
def test_calibrated_outputs_agree_with_numpy_for_any_chunk(chunk, activations, task):
    both = pair(describe(activations=activations, task=task))
    rng = np.random.default_rng(2)
    train, test = o.single(rng.normal(0.5, 2, (53, 6))), o.single(rng.normal(0.5, 2, (9, 6)))
    expected = both.oracle.predict(test, both.oracle.calibrate(train))
    for dtype, relative in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        ladder = both.ladder(dtype)
        ladder.calibrate(torch.from_numpy(train).to(dtype), chunk=chunk)
        found = ladder.eval()(torch.from_numpy(test).to(dtype)).detach().numpy()
        np.testing.assert_allclose(found, expected, rtol=relative, atol=relative * np.abs(expected).max())


def test_calibration_in_float32_stays_exact_where_the_mean_dwarfs_the_deviation():
    both = pair(describe())
    rng = np.random.default_rng(2)
    train, test = o.single(rng.normal(30, 1, (500, 6))), o.single(rng.normal(30, 1, (9, 6)))
    expected = both.oracle.predict(test, both.oracle.calibrate(train))
    ladder = both.ladder(torch.float32)
    ladder.calibrate(torch.from_numpy(train).float(), chunk=64)
    found = ladder.eval()(torch.from_numpy(test).float()).detach().numpy()
    np.testing.assert_allclose(found, expected, atol=2e-4)


def test_training_mode_outputs_agree_with_numpy_on_the_statistics_of_the_batch():
    both = pair(describe())
    rows = both.batch.unlabelled
    found = both.ladder().train()(torch.from_numpy(rows)).detach().numpy()
    np.testing.assert_allclose(found, both.oracle.clean(rows)[-1].scores, rtol=1e-10)


def test_calibrated_statistics_travel_with_the_state_dict():
    both = pair(describe())
    rows = torch.from_numpy(both.batch.unlabelled)
    calibrated, other = both.ladder(), both.ladder()
    calibrated.calibrate(rows)
    other.load_state_dict(calibrated.state_dict())
    torch.testing.assert_close(other.eval()(rows[:2]), calibrated.eval()(rows[:2]), rtol=0, atol=0)


# (d) Names, shapes and first values.

ENCODER = {
    "rungs.1.weight": (5, 6),
    "rungs.1.beta": (5,),
    "rungs.2.weight": (4, 5),
    "rungs.2.beta": (4,),
    "rungs.3.weight": (3, 4),
    "rungs.3.beta": (3,),
    "rungs.3.gamma": (3,),
}
TOP = {"rungs.3.denoiser.a": (10, 3)}
MIDDLE = TOP | {
    "rungs.3.back.weight": (4, 3),
    "rungs.2.denoiser.a": (10, 4),
    "rungs.2.back.weight": (5, 4),
    "rungs.1.denoiser.a": (10, 5),
}
WHOLE = MIDDLE | {"rungs.1.back.weight": (6, 5), "rungs.0.denoiser.a": (10, 6)}
DECODERS = {"full": WHOLE, "bottom": WHOLE, "gamma": TOP, "middle": MIDDLE, "baseline": {}}


def fresh(costs: str = "full", denoiser: str = "gaussian", units: tuple[int, ...] = (6, 5, 4, 3), **options) -> Ladder:
    rungs = [Dense(units[1], activation="relu"), Dense(units[2]), Dense(units[3])]
    return Ladder(input_shape=units[:1], rungs=rungs, noise=0.3, costs=COSTS[costs], denoiser=denoiser, **options)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("costs", COSTS)
def test_parameters_are_exactly_those_that_the_costs_need(costs, task):
    ladder = fresh(costs, task=task)
    assert {name: tuple(p.shape) for name, p in ladder.named_parameters()} == ENCODER | DECODERS[costs]
    buffers = {name for name, _ in ladder.named_buffers()}
    assert set(ladder.state_dict()) - buffers == set(ENCODER | DECODERS[costs])


@pytest.mark.parametrize(
    ("denoiser", "rows"),
    [
        ("mlp", {"a": 4, "b": 1, "c": 4}),
        ("no-product", {"a": 3, "b": 1, "c": 3}),
        ("linear", {"a": 4}),
        ("additive", {"a": 9}),
    ],
)
def test_rival_denoisers_have_the_parameters_of_the_paper_for_every_unit(denoiser, rows):
    shapes = {name: tuple(p.shape) for name, p in fresh(denoiser=denoiser).named_parameters() if "denoiser" in name}
    assert shapes == {
        f"rungs.{level}.denoiser.{name}": (count, units)
        for level, units in enumerate((6, 5, 4, 3))
        for name, count in rows.items()
    }


@pytest.mark.parametrize(
    ("activation", "names"),
    [
        ("relu", {"beta"}),
        ("leaky_relu", {"beta"}),
        ("linear", set()),
        ("tanh", {"beta", "gamma"}),
        ("gelu", {"beta", "gamma"}),
    ],
)
def test_scale_and_bias_exist_only_where_they_are_not_redundant(activation, names):
    ladder = Ladder(input_shape=(6,), rungs=[Dense(5, activation=activation), Dense(3)], noise=0.3, costs=0)
    found = {name.removeprefix("rungs.1.") for name, _ in ladder.named_parameters() if name.startswith("rungs.1.")}
    assert found == names | {"weight"}


def test_gaussian_denoiser_starts_at_zero_with_a2_and_a7_at_one():
    ladder = fresh()
    parameters = dict(ladder.named_parameters())
    for level in range(4):
        a = parameters[f"rungs.{level}.denoiser.a"].detach().numpy()
        np.testing.assert_array_equal(a, np.outer([0, 1, 0, 0, 0, 0, 1, 0, 0, 0], np.ones(a.shape[1])))


def test_scales_start_at_one_and_biases_at_zero():
    for name, parameter in fresh().named_parameters():
        if name.endswith("gamma"):
            assert torch.equal(parameter, torch.ones_like(parameter))
        if name.endswith("beta"):
            assert torch.equal(parameter, torch.zeros_like(parameter))


def test_first_weights_are_normal_with_deviation_one_over_the_root_of_their_inputs():
    torch.manual_seed(0)
    units = (400, 300, 200, 100)
    parameters = dict(fresh(units=units).named_parameters())
    for level in range(1, 4):
        for name, inputs in (("weight", units[level - 1]), ("back.weight", units[level])):
            values = parameters[f"rungs.{level}.{name}"].detach().numpy() * np.sqrt(inputs)
            assert values.std() == pytest.approx(1, abs=0.03), (level, name)
            assert values.mean() == pytest.approx(0, abs=0.03), (level, name)
            # A uniform of this deviation has kurtosis 1.8 and ends at 1.73; a truncated normal ends early too.
            assert (values**4).mean() == pytest.approx(3, abs=0.25), (level, name)
            assert np.abs(values).max() > 3.2, (level, name)
