"""`Ladder` as a PyTorch module: settings, settled names, checks, calibration, copies, and a training loop."""

import pickle
import re
from copy import deepcopy

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from comparison import (
    COSTS,
    TASKS,
    assert_compiled_eval_mode_needs_calibration,
    assert_compiled_once_for_all_sizes,
)
from tikas import Conv, Dense, GlobalMeanPool, Ladder, MaxPool, MeanPool
from tikas.model import ladder as ladder_module
from tikas.model.ladder import squared_distance
from tikas.model.layers import DenseRung

LEVELS = [(6,), (5,), (4,), (3,)]


def small_ladder(**changes) -> Ladder:
    settings = {"input_shape": (6,), "rungs": [Dense(5), Dense(4), Dense(3)], "costs": (10, 1, 0.1, 0.1)}
    return Ladder(**{**settings, **changes}, generator=torch.Generator().manual_seed(0))


def small_conv_ladder() -> Ladder:
    """Every kind of rung, with overlapping windows and a stride."""
    rungs = [
        Conv(3, 3, padding="same", stride=2),
        MaxPool(3, stride=2),
        MeanPool(2),
        Conv(3, 1),
        GlobalMeanPool(),
        Dense(3),
    ]
    return Ladder((2, 12, 12), rungs, costs=(1,) * 7, generator=torch.Generator().manual_seed(0))


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


UNLABELED, LABELED, TARGETS = normal(12, 6, seed=1), normal(9, 6, seed=2), torch.arange(9) % 3


def noise_for(rows: int) -> list[Tensor]:
    return [normal(rows, *shape, seed=level) for level, shape in enumerate(LEVELS)]


def assert_same_state(one: Ladder, other: Ladder) -> None:
    state, other_state = one.state_dict(), other.state_dict()
    assert state.keys() == other_state.keys()
    assert all(torch.equal(tensor, other_state[name]) for name, tensor in state.items())


# Settings


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"rungs": []}, ["rungs=[]", "[Dense(100), Dense(10)]"]),
        ({"rungs": [5, 3]}, ["rungs=[5, 3]"]),
        ({"rungs": [Dense(5), Dense(1)]}, ["(1,)", "two classes", "regression"]),
        ({"input_shape": ()}, ["input_shape=()", "(features,)"]),
        ({"input_shape": (0,)}, ["input_shape=(0,)", "(features,)"]),
        (
            {"denoiser": "gauss"},
            ["denoiser='gauss'", "'gaussian', 'mlp', 'no-product', 'linear', 'additive'"],
        ),
        ({"task": "ranking"}, ["task='ranking'", "'classification', 'regression'"]),
        ({"noise": (0.3, 0.3)}, ["noise has 2 values", "3 rungs need 4"]),
        ({"noise": ()}, ["noise has 0 values", "3 rungs need 4"]),
        ({"costs": (1, 1, 1, 1, 1)}, ["costs has 5 values", "3 rungs need 4"]),
        ({"noise": "loud"}, ["'loud'"]),
        ({"noise": None}, ["noise=None"]),
        ({"noise": -0.3}, ["noise=-0.3", "at least 0"]),
        ({"costs": (1, 1, float("nan"), 1)}, ["costs=(1, 1, nan, 1)", "finite"]),
        ({"costs": float("inf")}, ["costs=inf", "finite"]),
    ],
)
def test_wrong_settings_raise_value_error_naming_the_setting(changes, named):
    with pytest.raises(ValueError, match=re.escape(named[0])) as caught:
        small_ladder(**changes)
    assert all(name in str(caught.value) for name in named)


@pytest.mark.parametrize("kind", [list, tuple, np.array, torch.tensor])
def test_noise_and_costs_may_be_numbers_lists_arrays_or_tensors(kind):
    ladder = small_ladder(noise=kind([0.5, 0.25, 0.25, 0.0]), costs=kind([4.0, 2.0, 1.0, 1.0]))
    assert [rung.noise for rung in ladder.rungs] == [0.5, 0.25, 0.25, 0.0]
    assert [rung.cost for rung in ladder.rungs] == [4.0, 2.0, 1.0, 1.0]
    assert [rung.noise for rung in small_ladder(noise=np.float32(0.5)).rungs] == [0.5] * 4
    assert [rung.cost for rung in small_ladder(costs=torch.tensor(2.0)).rungs] == [0.0, 0.0, 0.0, 2.0]


def test_default_costs_are_those_of_the_paper_and_the_top_has_the_same_for_any_number_of_rungs():
    costs = [[rung.cost for rung in Ladder((4,), [Dense(3)] * rungs).rungs] for rungs in (1, 2, 3)]
    assert costs == [[1000.0, 0.1], [1000.0, 10.0, 0.1], [1000.0, 10.0, 0.1, 0.1]]


def test_a_regression_may_have_one_output():
    ladder = small_ladder(rungs=[Dense(5), Dense(4), Dense(1)], task="regression")
    assert ladder.costs(UNLABELED, LABELED, normal(9, 1)).total.isfinite()


@pytest.mark.parametrize("activation", ["relu", "leaky_relu", "tanh", "gelu", "linear"])
def test_every_activation_passes_gradients_to_every_rung(activation):
    ladder = small_ladder(rungs=[Dense(5, activation=activation), Dense(4, activation=activation), Dense(3)])
    ladder.costs(UNLABELED, LABELED, TARGETS).total.backward()
    for level in (1, 2, 3):
        gradient = ladder.rungs[level].weight.grad
        assert gradient.isfinite().all()
        assert gradient.abs().max() > 0


# Names, shapes and first values: those settled in DESIGN.md

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
ABOVE_LEVEL_1 = TOP | {
    "rungs.3.back.weight": (4, 3),
    "rungs.2.denoiser.a": (10, 4),
    "rungs.2.back.weight": (5, 4),
    "rungs.1.denoiser.a": (10, 5),
}
ALL_LEVELS = ABOVE_LEVEL_1 | {"rungs.1.back.weight": (6, 5), "rungs.0.denoiser.a": (10, 6)}
DECODERS = {"full": ALL_LEVELS, "bottom": ALL_LEVELS, "gamma": TOP, "middle": ABOVE_LEVEL_1, "baseline": {}}
BUFFERS = {"calibrated": ()} | {
    f"rungs.{level}.{name}": (units,) for level, units in ((1, 5), (2, 4), (3, 3)) for name in ("mean", "deviation")
}


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("costs", COSTS)
def test_a_ladder_has_only_the_parameters_that_its_costs_need_with_stable_names(costs, task):
    ladder = small_ladder(costs=COSTS[costs], task=task)
    assert {name: tuple(p.shape) for name, p in ladder.named_parameters()} == ENCODER | DECODERS[costs]
    assert {name: tuple(b.shape) for name, b in ladder.named_buffers()} == BUFFERS
    assert set(ladder.state_dict()) == set(ENCODER | DECODERS[costs] | BUFFERS)


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


def test_scales_start_at_one_and_biases_at_zero():
    for name, parameter in small_ladder().named_parameters():
        if name.endswith("gamma"):
            assert torch.equal(parameter, torch.ones_like(parameter))
        if name.endswith("beta"):
            assert torch.equal(parameter, torch.zeros_like(parameter))


def test_initial_weights_are_normal_with_deviation_one_over_the_root_of_their_inputs():
    units = (400, 300, 200, 100)
    ladder = small_ladder(input_shape=units[:1], rungs=[Dense(count) for count in units[1:]])
    parameters = dict(ladder.named_parameters())
    for level in range(1, 4):
        for name, inputs in (("weight", units[level - 1]), ("back.weight", units[level])):
            values = parameters[f"rungs.{level}.{name}"].detach().numpy() * np.sqrt(inputs)
            assert values.std() == pytest.approx(1, abs=0.03), (level, name)
            assert values.mean() == pytest.approx(0, abs=0.03), (level, name)
            # A uniform distribution has kurtosis 1.8 and ends at 1.73; a truncated normal one ends early too.
            assert (values**4).mean() == pytest.approx(3, abs=0.25), (level, name)
            assert np.abs(values).max() > 3.2, (level, name)


def test_the_generator_determines_the_initial_weights():
    assert_same_state(small_ladder(), small_ladder())
    other = Ladder((6,), [Dense(5), Dense(4), Dense(3)], costs=1, generator=torch.Generator().manual_seed(1))
    assert not torch.equal(other.rungs[1].weight, small_ladder().rungs[1].weight)
    other.reset(torch.Generator().manual_seed(2))
    again = deepcopy(other)
    again.reset(torch.Generator().manual_seed(2))
    assert_same_state(other, again)


def test_noise_is_drawn_for_every_level_in_the_order_of_the_levels():
    ladder = small_ladder()
    noise = ladder.draw_noise(UNLABELED, count=21, generator=torch.Generator().manual_seed(3))
    generator = torch.Generator().manual_seed(3)
    for drawn, shape in zip(noise, LEVELS, strict=True):
        assert torch.equal(drawn, torch.randn(21, *shape, generator=generator))
    assert ladder.costs(UNLABELED, LABELED, TARGETS, noise=noise).total.isfinite()


# Rows, noise and targets that do not fit


@pytest.mark.parametrize("shape", [(6,), (12, 5), (12, 6, 1), (2, 12, 6), (12, 1, 6, 2), ()])
@pytest.mark.parametrize("method", ["costs", "forward", "encode", "calibrate", "denoise"])
def test_rows_of_another_shape_raise_value_error(method, shape):
    with pytest.raises(ValueError, match=re.escape(f"{shape}; this ladder takes (rows, 6)")):
        getattr(small_ladder(), method)(torch.zeros(shape))


def test_labeled_rows_of_another_shape_raise_value_error():
    with pytest.raises(ValueError, match=re.escape("(9, 5); this ladder takes (rows, 6)")):
        small_ladder().costs(UNLABELED, LABELED[:, :5], TARGETS)


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        (UNLABELED.numpy(), "ndarray"),
        (UNLABELED.tolist(), "list"),
        (UNLABELED.byte(), "torch.uint8"),
        (UNLABELED.double(), "torch.float64, but this ladder computes in torch.float32"),
        (UNLABELED.half(), "torch.float16, but this ladder computes in torch.float32"),
    ],
    ids=["array", "list", "bytes", "double", "half"],
)
@pytest.mark.parametrize("method", ["costs", "forward", "encode", "denoise"])
def test_rows_of_another_type_raise_type_error(method, rows, named):
    with pytest.raises(TypeError, match=re.escape(named)):
        getattr(small_ladder(), method)(rows)


def test_calibration_accepts_rows_of_any_precision():
    assert_same_state(small_ladder().calibrate(UNLABELED), small_ladder().calibrate(UNLABELED.double()))


def test_autocast_accepts_rows_of_half_precision():
    with torch.autocast("cpu", torch.bfloat16):
        assert small_ladder().costs(UNLABELED.bfloat16(), LABELED.bfloat16(), TARGETS).total.isfinite()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_ladder_in_half_precision_predicts(dtype):
    ladder = small_ladder().calibrate(UNLABELED).to(dtype).eval()
    assert ladder(UNLABELED.to(dtype)).dtype == dtype


@pytest.mark.parametrize("count", [0, 1])
@pytest.mark.parametrize("method", ["costs", "forward", "encode", "denoise"])
def test_a_batch_of_fewer_than_two_rows_raises_value_error(method, count):
    with pytest.raises(ValueError, match=rf"Got {count} (unlabeled )?rows.*at least two"):
        getattr(small_ladder(), method)(UNLABELED[:count])


def test_one_labeled_row_raises_value_error_but_one_unused_unlabeled_row_does_not():
    with pytest.raises(ValueError, match=r"Got 1 labeled row.*at least two"):
        small_ladder().costs(UNLABELED, LABELED[:1], TARGETS[:1])
    assert small_ladder(costs=0).costs(UNLABELED[:1], LABELED, TARGETS).total.isfinite()


def test_without_denoising_costs_no_unlabeled_rows_are_needed():
    assert small_ladder(costs=0).costs(UNLABELED[:0], LABELED, TARGETS).total > 0


@pytest.mark.parametrize(
    "noise",
    [
        noise_for(21)[:3],
        [*noise_for(21), normal(21, 3)],
        noise_for(12),
        noise_for(22),
        [*noise_for(21)[:3], normal(21, 4)],
        [draw[0] for draw in noise_for(21)],
        [draw.expand(2, *draw.shape) for draw in noise_for(21)],
        [],
    ],
    ids=[
        "level missing",
        "level too many",
        "unlabeled rows only",
        "row too many",
        "width",
        "one row",
        "members",
        "none",
    ],
)
def test_noise_of_other_shapes_raises_value_error_with_the_shapes(noise):
    with pytest.raises(ValueError, match=re.escape("[(21, 6), (21, 5), (21, 4), (21, 3)]")) as caught:
        small_ladder().costs(UNLABELED, LABELED, TARGETS, noise=noise)
    assert str([tuple(draw.shape) for draw in noise]) in str(caught.value)


@pytest.mark.parametrize("noise", [noise_for(12)[:2], noise_for(3), noise_for(13), [d[:, :1] for d in noise_for(12)]])
def test_denoise_checks_the_shapes_of_the_noise_too(noise):
    with pytest.raises(ValueError, match=re.escape("[(12, 6), (12, 5), (12, 4), (12, 3)]")):
        small_ladder().denoise(UNLABELED, noise=noise)


@pytest.mark.parametrize(
    ("task", "targets"),
    [
        ("classification", TARGETS[:4]),
        ("regression", normal(9)),
        ("classification", TARGETS[:, None]),
        ("regression", normal(9, 3)[:1]),
    ],
    ids=["too few", "values without outputs", "a column", "one for all"],
)
def test_targets_of_another_shape_raise_value_error(task, targets):
    with pytest.raises(ValueError, match=re.escape(str(tuple(targets.shape)))):
        small_ladder(task=task).costs(UNLABELED, LABELED, targets)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_classes_may_be_integers_of_any_size(dtype):
    noise = noise_for(21)
    expected = small_ladder().costs(UNLABELED, LABELED, TARGETS, noise=noise)
    assert small_ladder().costs(UNLABELED, LABELED, TARGETS.to(dtype), noise=noise).total == expected.total


@pytest.mark.parametrize(
    ("name", "given", "error", "named"),
    [
        ("targets", TARGETS.numpy(), TypeError, "targets as ndarray"),
        ("targets", TARGETS.float(), ValueError, "targets of dtype torch.float32"),
        ("weights", [1.0] * 9, TypeError, "weights as list"),
        ("weights", torch.ones(9, 1), ValueError, "weights of shape (9, 1)"),
    ],
)
def test_wrong_targets_and_weights_raise_errors_that_name_them(name, given, error, named):
    with pytest.raises(error, match=re.escape(named)):
        small_ladder().costs(UNLABELED, LABELED, **{"targets": TARGETS, name: given})


@pytest.mark.parametrize("target", [-1, 3])
def test_a_class_that_does_not_exist_raises_value_error(target):
    # -1 marks unlabeled rows elsewhere, and must not be learned.
    with pytest.raises(ValueError, match=f"target {target}.*from 0 to 2"):
        small_ladder().costs(UNLABELED, LABELED, torch.where(torch.arange(9) == 4, target, TARGETS))


def test_labeled_rows_without_targets_raise_value_error():
    with pytest.raises(ValueError, match=r"9 labeled rows.*no targets"):
        small_ladder().costs(UNLABELED, LABELED)


def test_costs_in_eval_mode_raise_runtime_error_naming_train():
    with pytest.raises(RuntimeError, match=r"Ladder is in eval mode: call train\(\)"):
        small_ladder().eval().costs(UNLABELED)


# Costs and reconstructions


def test_costs_are_scalars_and_one_number_per_level():
    costs = small_ladder(costs=(10, 0, 0.1, 0)).costs(UNLABELED, LABELED, TARGETS)
    assert costs.total.shape == costs.supervised.shape == ()
    assert costs.denoising.shape == (4,)
    assert [cost > 0 for cost in costs.denoising.tolist()] == [True, False, True, False]
    expected = costs.supervised + 10 * costs.denoising[0] + 0.1 * costs.denoising[2]
    torch.testing.assert_close(costs.total, expected)


@pytest.mark.parametrize("labeled", [(), (LABELED[:0], TARGETS[:0])], ids=["none", "empty"])
def test_without_labeled_rows_the_denoising_costs_remain(labeled):
    ladder, noise = small_ladder(), noise_for(21)
    costs = ladder.costs(UNLABELED, *labeled, noise=[draw[9:] for draw in noise])
    with_labels = ladder.costs(UNLABELED, LABELED, TARGETS, noise=noise)
    assert costs.supervised == 0
    torch.testing.assert_close(costs.denoising, with_labels.denoising)
    torch.testing.assert_close(costs.total, with_labels.total - with_labels.supervised)
    costs.total.backward()
    assert ladder.rungs[1].weight.grad.abs().max() > 0
    assert all(p.grad.isfinite().all() for p in ladder.parameters() if p.grad is not None)


def test_without_labeled_images_the_denoising_costs_remain():
    costs = small_conv_ladder().costs(normal(9, 2, 12, 12))
    assert costs.supervised == 0
    assert costs.total.isfinite()


def test_labeled_rows_that_all_have_weight_zero_cost_nothing():
    costs = small_ladder().costs(UNLABELED, LABELED, TARGETS, noise=noise_for(21), weights=torch.zeros(9))
    assert costs.supervised == 0


def test_training_costs_are_the_costs_without_checks():
    ladder, noise = small_ladder(), noise_for(21)
    checked = ladder.costs(UNLABELED, LABELED, TARGETS, noise=noise)
    for cost, expected in zip(ladder.training_costs(UNLABELED, LABELED, TARGETS, noise), checked, strict=True):
        assert torch.equal(cost, expected)


@pytest.mark.parametrize(
    ("costs", "built"),
    [
        ((10, 1, 0.1, 0.1), (True, True, True, True)),
        ((10, 0, 0, 0), (True, True, True, True)),
        ((0, 0, 1, 0), (False, False, True, True)),
        (0.5, (False, False, False, True)),
        (0, (False, False, False, False)),
    ],
)
def test_denoise_returns_a_reconstruction_of_every_level_with_a_denoiser(costs, built):
    denoised = small_ladder(costs=costs).denoise(UNLABELED)
    assert tuple(level is not None for level in denoised) == built
    for level, shape in zip(denoised, LEVELS, strict=True):
        assert level is None or (level.shape == (12, *shape) and not level.requires_grad)


def test_output_does_not_depend_on_noise():
    ladder = small_ladder()
    assert torch.equal(ladder(UNLABELED), ladder(UNLABELED))
    assert torch.equal(ladder(UNLABELED), small_ladder(noise=5.0)(UNLABELED))


def test_gradients_of_maps_have_the_memory_format_of_the_maps():
    maps = torch.rand(4, 3, 5, 5).contiguous(memory_format=torch.channels_last).requires_grad_()
    channels_last = []
    maps.register_hook(lambda grad: channels_last.append(grad.is_contiguous(memory_format=torch.channels_last)))
    cost = squared_distance(maps, torch.zeros(4, 3, 5, 5), shape=(3, 5, 5))
    cost.backward()
    assert channels_last == [True]
    assert cost.item() == pytest.approx(maps.square().mean().item())


# Calibration


def test_eval_mode_without_calibration_raises_runtime_error_naming_calibrate():
    ladder = small_ladder().eval()
    for use in (ladder, ladder.encode):
        with pytest.raises(RuntimeError, match=r"ladder\.calibrate\(rows\)"):
            use(UNLABELED)
    assert ladder.train()(UNLABELED).shape == (12, 3)
    assert ladder.calibrate(UNLABELED).eval()(UNLABELED[:1]).shape == (1, 3)


def test_reset_invalidates_the_calibration():
    ladder = small_ladder().calibrate(UNLABELED).eval()
    ladder.reset()
    with pytest.raises(RuntimeError, match="calibrate"):
        ladder(UNLABELED)


@pytest.mark.parametrize("rows", [0, 1])
def test_calibration_with_fewer_than_two_rows_raises_value_error_and_changes_nothing(rows):
    # The deviation of a single row is zero, and that of an image at the top too.
    ladder = small_ladder().calibrate(UNLABELED)
    before = deepcopy(ladder)
    with pytest.raises(ValueError, match=f"{rows} rows.*at least two"):
        ladder.calibrate(UNLABELED[:rows])
    assert_same_state(ladder, before)
    assert bool(ladder.calibrate(UNLABELED[:2], chunk=1).calibrated)


def test_calibration_ignores_the_default_device():
    ladder, expected = small_ladder(), small_ladder().calibrate(UNLABELED)
    with torch.device("meta"):
        assert_same_state(ladder.calibrate(UNLABELED), expected)


def rows_per_product(ladder: Ladder, monkeypatch: pytest.MonkeyPatch, chunk: int | None = None) -> list[int]:
    """Calibrate, and return the rows of each product at the first rung."""
    up, rows = DenseRung.up, []

    def recorded(rung: DenseRung, hidden: Tensor) -> Tensor:
        if rung is ladder.rungs[1]:
            rows.append(len(hidden))
        return up(rung, hidden)

    with monkeypatch.context() as patch:
        patch.setattr(DenseRung, "up", recorded)
        ladder.calibrate(UNLABELED, chunk=chunk)
    return rows


def test_calibration_takes_chunks_of_the_given_size(monkeypatch):
    ladder = small_ladder()
    assert set(rows_per_product(ladder, monkeypatch, chunk=7)) == {7, 5}
    torch.testing.assert_close(ladder.rungs[-1].deviation, small_ladder().calibrate(UNLABELED).rungs[-1].deviation)


@pytest.mark.parametrize(
    ("limits", "top", "expected"),
    [
        ({}, 3, {12}),
        ({"MAX_SINGLE_PASS_VALUES": 71, "MAX_CHUNK_VALUES_CPU": 29}, 3, {4}),
        ({"MAX_SINGLE_PASS_VALUES": 72, "MAX_CHUNK_VALUES_CPU": 29}, 3, {12}),
        ({"MAX_SINGLE_PASS_VALUES": 1, "MAX_CHUNK_VALUES_CPU": 39}, 8, {4}),
        ({"MAX_SINGLE_PASS_VALUES": 1, "MAX_CHUNK_VALUES_CPU": 1}, 3, {1}),
        ({"MAX_SINGLE_PASS_VALUES": 1, "MAX_CHUNK_ROWS_CPU": 5}, 3, {5, 2}),
    ],
)
def test_calibration_chunks_by_the_values_of_the_largest_level(limits, top, expected, monkeypatch):
    # The largest level is the input with six units, or the top with eight.
    whole = small_ladder(rungs=[Dense(5), Dense(4), Dense(top)]).calibrate(UNLABELED)
    for name, limit in limits.items():
        monkeypatch.setattr(ladder_module, name, limit)
    ladder = small_ladder(rungs=[Dense(5), Dense(4), Dense(top)])
    assert set(rows_per_product(ladder, monkeypatch)) == expected
    torch.testing.assert_close(ladder.rungs[-1].deviation, whole.rungs[-1].deviation)


# Copies, devices and precisions


def copy_by_state_dict(ladder: Ladder) -> Ladder:
    other = Ladder((6,), [Dense(5), Dense(4), Dense(3)], costs=(10, 1, 0.1, 0.1)).eval()
    other.load_state_dict(ladder.state_dict())
    return other


def copy_by_pickle(ladder: Ladder) -> Ladder:
    return pickle.loads(pickle.dumps(ladder))


@pytest.mark.parametrize("copy", [copy_by_state_dict, copy_by_pickle, deepcopy, lambda ladder: ladder.double().float()])
def test_a_copied_ladder_computes_the_same(copy):
    ladder, other = small_ladder().calibrate(UNLABELED).eval(), copy(small_ladder().calibrate(UNLABELED).eval())
    assert_same_state(ladder, other)
    assert torch.equal(ladder(LABELED), other(LABELED))
    one, two = (each.train().costs(UNLABELED, LABELED, TARGETS, noise=noise_for(21)) for each in (ladder, other))
    assert torch.equal(one.total, two.total)


@pytest.mark.parametrize("copy", [copy_by_pickle, deepcopy])
def test_a_copied_ladder_on_images_computes_the_same(copy):
    ladder = small_conv_ladder().calibrate(normal(8, 2, 12, 12)).eval()
    other = copy(ladder)
    assert_same_state(ladder, other)
    assert torch.equal(ladder(normal(4, 2, 12, 12)), other(normal(4, 2, 12, 12)))


def test_the_state_dict_of_another_ladder_raises_runtime_error():
    with pytest.raises(RuntimeError, match=r"rungs\.0\.denoiser\.a"):
        small_ladder(costs=0.5).load_state_dict(small_ladder().state_dict())


@pytest.mark.parametrize("denoiser", ["gaussian", "mlp", "no-product", "linear", "additive"])
def test_double_precision_is_kept_throughout(denoiser):
    ladder = small_ladder(denoiser=denoiser).double()
    costs = ladder.costs(UNLABELED.double(), LABELED.double(), TARGETS)
    costs.total.backward()
    assert {costs.total.dtype, costs.denoising.dtype, costs.supervised.dtype} == {torch.float64}
    assert {p.grad.dtype for p in ladder.parameters() if p.grad is not None} == {torch.float64}
    assert ladder.calibrate(UNLABELED).eval()(UNLABELED.double()).dtype == torch.float64


@pytest.mark.parametrize("denoiser", ["gaussian", "mlp", "no-product", "linear", "additive"])
def test_every_tensor_moves_to_another_device(denoiser):
    # Tensors on the device "meta" have no values; a tensor left on the CPU would raise an error.
    ladder = small_ladder(denoiser=denoiser).to("meta")
    costs = ladder.costs(UNLABELED.to("meta"), LABELED.to("meta"), TARGETS.to("meta"))
    costs.total.backward()
    assert {p.grad.device.type for p in ladder.parameters()} == {"meta"}
    assert ladder.calibrate(UNLABELED.to("meta")).rungs[1].mean.device.type == "meta"


@pytest.mark.parametrize(("device", "dtype"), [("meta", torch.float32), ("cpu", torch.float64)])
def test_every_tensor_of_a_ladder_on_images_moves_to_another_device_or_precision(device, dtype):
    ladder = small_conv_ladder().to(device, dtype)
    rows = normal(9, 2, 12, 12).to(device, dtype)
    costs = ladder.costs(rows, rows, TARGETS.to(device))
    costs.total.backward()
    assert {(p.grad.device.type, p.grad.dtype) for p in ladder.parameters()} == {(device, dtype)}
    assert ladder.calibrate(rows).rungs[2].mean.device.type == device


def test_a_calibrated_ladder_can_be_exported():
    ladder = small_ladder().calibrate(UNLABELED).eval()
    exported = torch.export.export(ladder, (UNLABELED,)).module()
    torch.testing.assert_close(exported(UNLABELED), ladder(UNLABELED))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "ladder",
    [
        Ladder((6,), [Dense(5), Dense(3)], costs=(10, 0, 1)),
        Ladder((2, 8, 8), [Conv(3, 3), MaxPool(2), Dense(3)], costs=(0, 1, 0, 0)),
    ],
    ids=["dense", "convolutional"],
)
def test_costs_are_compiled_once_for_all_sizes_after_the_first(ladder):
    assert_compiled_once_for_all_sizes(ladder, ladder.shapes[0])


@pytest.mark.skipif(torch.__version__ < "2.13", reason="older compilers do not look at the buffer")
@pytest.mark.filterwarnings("ignore")
def test_a_compiled_ladder_without_calibration_raises_runtime_error_naming_calibrate():
    assert_compiled_eval_mode_needs_calibration(small_ladder(), UNLABELED)


# A training loop


def test_a_ladder_learns_digits_from_50_labels():
    images, digits = load_digits(return_X_y=True)
    x, y = torch.from_numpy(images).float() / 16, torch.from_numpy(digits)
    x, y, test_x, test_y = x[:1400], y[:1400], x[1400:], y[1400:]
    labeled = torch.cat([torch.nonzero(y == digit)[:5, 0] for digit in range(10)])
    torch.manual_seed(0)

    ladder = Ladder((64,), [Dense(64), Dense(32), Dense(10)], costs=(100, 10, 0.1, 0.1))
    optimizer = torch.optim.Adam(ladder.parameters(), lr=0.005)
    for _ in range(5):
        for unlabeled in torch.randperm(len(x)).split(100):
            optimizer.zero_grad()
            ladder.costs(x[unlabeled], x[labeled], y[labeled]).total.backward()
            optimizer.step()
    ladder.calibrate(x).eval()

    error = (ladder(test_x).argmax(1) != test_y).double().mean().item()
    assert error < 0.35  # 0.9 by chance


def plane(rows: int, seed: int) -> Tensor:
    """Ten columns that follow from two: eight of ten directions contain only noise."""
    return normal(rows, 2, seed=seed) @ normal(2, 10, seed=99)


def test_a_ladder_learns_without_labels_to_remove_noise():
    generator = torch.Generator().manual_seed(0)
    rungs = [Dense(20), Dense(5)]
    ladder = Ladder((10,), rungs, noise=(0.3, 0, 0), costs=(10, 0, 0), task="regression", generator=generator)
    rows = plane(400, seed=4)
    optimizer = torch.optim.Adam(ladder.parameters(), lr=0.03)
    for update in range(100):
        batch = rows[update % 4 :: 4]
        optimizer.zero_grad()
        ladder.costs(batch, noise=ladder.draw_noise(batch, len(batch), generator)).total.backward()
        optimizer.step()

    noise = ladder.draw_noise(rows, len(rows), torch.Generator().manual_seed(2))
    corrupted, denoised = rows + 0.3 * noise[0], ladder.denoise(rows, noise=noise)[0]
    before, after = ((x - rows).square().mean() for x in (corrupted, denoised))
    assert after < 0.7 * before  # 0.2 would be perfect; before training (ẑ = 0) it is 28
    assert torch.equal(denoised, ladder.denoise(rows, noise=noise)[0])
    assert not torch.allclose(denoised, ladder.denoise(rows)[0])


def test_a_deviation_instead_of_noise_tensors_raises_type_error() -> None:
    ladder = Ladder((4,), [Dense(3)])
    with pytest.raises(TypeError, match=r"noise=0\.3"):
        ladder.costs(torch.rand(6, 4), torch.rand(3, 4), torch.arange(3), noise=0.3)


def test_a_printed_ladder_shows_shape_noise_and_cost_of_each_level() -> None:
    ladder = Ladder((4,), [Dense(3)], noise=0.2, costs=(10, 1))
    assert re.findall(r"shape=.*", str(ladder)) == [
        "shape=(4,), noise=0.2, cost=10.0",
        "shape=(3,), noise=0.2, cost=1.0",
    ]
