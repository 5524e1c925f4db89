"""Recipes: the paper's defaults, one form for equal settings, errors that name the field, and the learning rate."""

from __future__ import annotations

import re
import tracemalloc
from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from torch import nn

from tikas import Conv, Dense, GlobalMeanPool, MaxPool
from tikas.model.specs import MapTooSmallError
from tikas.training.recipe import (
    CHUNK,
    MAX_RUNGS,
    SMALL,
    Recipe,
    _mean_variance,
    check_module_settings,
    default_costs,
    default_epochs,
)

OTHER: dict[str, Any] = {
    "task": "regression",
    "preprocess": "whiten",
    "network": (64, 32),
    "activation": "gelu",
    "noise": (0.3, 0.5),
    "costs": (2000.0, 20.0, 0.1),
    "denoiser": "mlp",
    "epochs": 10,
    "annealed": 0.5,
    "learning_rate": 0.004,
    "batch_size": 50,
    "labeled_batch_size": 30,
    "calibration": "labeled",
    "precision": "exact",
    "early_stopping": True,
    "n_iter_no_change": 5,
    "tol": 0.01,
}
"""A value of every field that is not its default."""


def test_the_defaults_are_those_of_the_paper_for_100_labels_of_mnist() -> None:
    recipe = Recipe()
    assert recipe.network == (1000, 500, 250, 250, 250)
    assert (recipe.task, recipe.activation, recipe.denoiser) == ("classification", "relu", "gaussian")
    assert recipe.noise_per_level() == (0.3,) * 7
    assert recipe.cost_per_level() == (1000, 10, 0.1, 0.1, 0.1, 0.1, 0.1)
    assert (recipe.epochs, recipe.annealed, recipe.learning_rate) == (150, 1 / 3, 0.002)
    assert (recipe.batch_size, recipe.labeled_batch_size) == (100, 100)
    assert recipe.calibration == "all"  # better than the authors' choice, by 0.08 % at 100 labels


# One form for equal settings


def test_every_field_is_in_the_json_and_in_the_comparison() -> None:
    assert OTHER.keys() == {field.name for field in fields(Recipe)}
    recipes = [Recipe(), SMALL, *(replace(Recipe(), **{name: value}) for name, value in OTHER.items())]
    assert len(set(recipes)) == len({recipe.to_json() for recipe in recipes}) == 2 + len(OTHER)
    for recipe in recipes:
        assert Recipe.from_json(recipe.to_json()) == recipe


def test_a_recipe_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        Recipe().epochs = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("field", "given_as", "form"),
    [
        ("noise", [0.3, (0.3,), [0.3, 0.3], np.full(4, 0.3)], (0.3,)),
        ("noise", [(0.3, 0.5), (0.3, 0.5, 0.5), (0.3, 0.5, 0.5, 0.5)], (0.3, 0.5)),
        ("costs", [(1000, 10, 0.1), np.array([1000, 10, 0.1, 0.1])], (1000, 10, 0.1)),
        ("costs", [(5, 5), (5, 5, 5), (5, 5, 5, 5)], (5, 5)),
        ("costs", [0.5, np.float64(0.5), (0.5,), (0, 0, 0, 0.5)], (0.5,)),
        ("costs", [0, (0, 0), (0, 0, 0, 0)], (0,)),
        ("costs", [(5, 0), (5, 0, 0, 0)], (5, 0)),
        ("costs", [(0, 0, 0.5)], (0, 0, 0.5)),
        ("network", [100, (100,), [np.int64(100)], Dense(100), "dense 100", (" dense  100", "top")], (100,)),
        ("network", ["conv_small", ("conv_small",)], ("conv_small",)),
        (
            "network",
            [
                ("conv 8 3 same", "max 2", "dense 20", 10),
                ["conv 8 3 same stride=1", " max  2 stride=2", 20, "dense 10"],
                [Conv(8, 3, padding="same"), MaxPool(2), Dense(20), 10, "top"],
            ],
            ("conv 8 3 same", "max 2", 20, 10),
        ),
    ],
    ids=str,
)
def test_equal_settings_have_one_form(field: str, given_as: list[Any], form: tuple[Any, ...]) -> None:
    base = {"costs": 1.0} if field == "network" else {"network": (20, 10)}
    recipes = [Recipe(**{**base, field: value}) for value in given_as]
    assert {getattr(recipe, field) for recipe in recipes} == {form}
    assert len(set(recipes)) == len({recipe.to_json() for recipe in recipes}) == 1
    assert Recipe.from_json(recipes[0].to_json()) == recipes[0]


@pytest.mark.parametrize("field", ["epochs", "batch_size", "labeled_batch_size"])
def test_integers_of_numpy_become_int(field: str) -> None:
    recipe = Recipe(**{field: np.int64(20)})
    assert type(getattr(recipe, field)) is int
    assert recipe == Recipe(**{field: 20})


@pytest.mark.parametrize("field", ["learning_rate", "annealed", "noise", "costs"])
def test_numbers_of_all_types_become_float(field: str) -> None:
    recipes = [Recipe(**{field: kind(1)}) for kind in (int, float, np.float32, np.int64)]
    assert len({recipe.to_json() for recipe in recipes}) == 1
    value = getattr(recipes[0], field)
    assert type(value[0] if isinstance(value, tuple) else value) is float


FEW = st.lists(st.sampled_from([0.0, 0.1, 2.0]), min_size=1, max_size=4).map(tuple)


@given(noise=FEW, costs=FEW)
def test_the_last_value_holds_for_the_levels_above_and_a_single_cost_is_that_of_the_top(noise, costs) -> None:
    recipe = Recipe(network=(20, 10), noise=noise, costs=costs)
    assert recipe.noise_per_level() == (*noise, *noise[-1:] * 4)[:4]
    assert recipe.cost_per_level() == ((0.0,) * 3 + costs if len(costs) == 1 else (*costs, *costs[-1:] * 4)[:4])
    assert replace(recipe, noise=recipe.noise_per_level(), costs=recipe.cost_per_level()) == recipe


# Networks


@pytest.mark.parametrize(
    ("network", "top", "maps"),
    [
        ((20,), Dense(10), False),
        ((), Dense(10), False),
        (("conv 10 1", "global"), GlobalMeanPool(), True),
        (("conv 10 1", "global unscaled"), GlobalMeanPool(scale=False), True),
        (("conv 12 1", "global", "top"), Dense(10), True),
        (("conv 12 1", "global", 20), Dense(10), True),
        (("max 2",), Dense(10), True),
        ("mlp", Dense(10), False),
        ("conv_small", Dense(10), True),
        ("conv_large", GlobalMeanPool(scale=False), True),
        ("conv_pool_cnn_c", Dense(10), True),
    ],
    ids=str,
)
def test_the_top_is_dense_unless_the_network_ends_in_global(network: Any, top: Any, maps: bool) -> None:
    recipe = Recipe(network=network, costs=1.0)
    rungs = recipe.rungs(n_outputs=10)
    assert rungs[-1] == top
    assert recipe.levels == 1 + len(rungs)
    assert recipe.takes_maps is maps
    assert recipe.is_module is (network == "conv_pool_cnn_c")


def test_the_activation_is_that_of_hidden_rungs_that_set_none() -> None:
    network = (30, "dense 20 gelu", "conv 8 3", Conv(8, 3), Conv(4, 1, activation="relu"))
    rungs = Recipe(network=network, activation="tanh").rungs(10)
    assert [rung.activation for rung in rungs[:-1]] == ["tanh", "gelu", "tanh", "tanh", "relu"]
    assert rungs[-1].activation is None


@pytest.mark.parametrize(
    ("network", "named"),
    [
        ((10, 0), ["features=0", "mlp, conv_fc"]),
        ((10, 2.5), ["features=2.5"]),
        (2.5, ["features=2.5"]),
        ((True,), ["features=True"]),
        (None, ["features=None"]),
        ("100", ["'100'"]),
        (("conv_small", 10), ["'conv_small'"]),
        ("conv_smal", ["Did you mean 'conv_small'?", "torch.nn.Module"]),
        (("Conv-Large",), ["Did you mean 'conv_large'?"]),
        ("conv_pool_cnn", ["Did you mean 'conv_pool_cnn_c'?"]),
        (("conv 32", "max 2"), ["'conv 32'", "FEATURES KERNEL"]),
        (("top", 10), ["'top'", "last"]),
        ((nn.Linear(3, 2),), ["nn.Sequential", "Linear(in_features=3"]),
    ],
    ids=str,
)
def test_an_invalid_network_raises_value_error(network: Any, named: list[str]) -> None:
    with pytest.raises(ValueError, match="network=") as raised:
        Recipe(network=network)
    for words in named:
        assert words in str(raised.value)


def test_a_network_of_too_many_rungs_raises_value_error() -> None:
    with pytest.raises(ValueError, match=str(MAX_RUNGS)):
        Recipe(network=(1,) * (MAX_RUNGS + 1))


@pytest.mark.parametrize("network", ["conv 8", "conv_tiny", ("conv_smal", 10)], ids=str)
def test_no_name_is_proposed_for_a_network_unlike_all(network: Any) -> None:
    with pytest.raises(ValueError, match="expected numbers of units") as raised:
        Recipe(network=network)
    assert "Did you mean" not in str(raised.value)


# Errors


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("epochs", 0),
        ("epochs", 2.5),
        ("epochs", "3"),
        ("epochs", True),
        ("batch_size", 1),
        ("labeled_batch_size", -1),
        ("learning_rate", 0.0),
        ("learning_rate", float("inf")),
        ("learning_rate", float("nan")),
        ("learning_rate", "fast"),
        ("learning_rate", True),
        ("annealed", -0.1),
        ("annealed", 1.1),
        ("noise", ()),
        ("noise", (-0.3,)),
        ("noise", (float("nan"),)),
        ("noise", ("a",)),
        ("noise", (True,)),
        ("costs", (1.0,) * 8),
        ("costs", (float("inf"), 1.0)),
        ("costs", "5"),
        ("costs", None),
        ("calibration", "half"),
        ("task", "ranking"),
        ("activation", "selu"),
        ("denoiser", "g9"),
        ("preprocess", "zca"),
        ("precision", "low"),
    ],
)
def test_an_invalid_value_raises_value_error_that_names_field_and_value(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=re.escape(f"{field}={value!r}: expected ")):
        Recipe(**{field: value})


def test_json_with_unknown_fields_or_invalid_values_raises_value_error() -> None:
    with pytest.raises(ValueError, match="momentum"):
        Recipe.from_json(Recipe().to_json()[:-1] + ', "momentum": 0.9}')
    with pytest.raises(ValueError, match="epochs=0"):
        Recipe.from_json('{"epochs": 0}')


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"task": "regression"}, "regression"),
        ({"activation": "tanh"}, "activation='tanh'"),
        ({"denoiser": "mlp"}, "denoiser='mlp'"),
        ({"costs": (1.0, 2.0)}, r"costs=\(1\.0, 2\.0\)"),
    ],
)
def test_settings_of_rungs_raise_value_error_for_a_module(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Recipe(**{"network": "conv_pool_cnn_c", "costs": 1.0, **settings})
    with pytest.raises(ValueError, match="a user module"):
        check_module_settings({**vars(Recipe(costs=1.0)), **settings}, "a user module")


# Building


def test_the_initial_weights_depend_on_the_seed_alone() -> None:
    torch.manual_seed(0)
    state = torch.get_rng_state()
    for recipe, shape in (
        (Recipe(network=(5, 4)), (7,)),
        (Recipe(network="conv_pool_cnn_c", costs=1.0), (1, 12, 12)),
    ):
        first, again, other = (recipe.build(shape, 3, seed) for seed in (0, 0, 1))
        weights = [
            torch.cat([each.detach().flatten() for each in model.parameters()]) for model in (first, again, other)
        ]
        assert torch.equal(weights[0], weights[1])
        assert not torch.equal(weights[0], weights[2])
        assert {each.dtype for each in first.parameters()} == {torch.float32}
    assert torch.equal(torch.get_rng_state(), state)


def test_a_ladder_has_the_noise_the_costs_and_the_task_of_its_recipe() -> None:
    recipe = Recipe(network=(5, 4), noise=(0.2, 0.3), costs=(3.0, 2.0, 0.5), task="regression", denoiser="linear")
    ladder = recipe.build((7,), 2, seed=0)
    assert ladder.shapes == [(7,), (5,), (4,), (2,)]
    assert [rung.noise for rung in ladder.rungs] == [0.2, 0.3, 0.3, 0.3]
    assert [rung.cost for rung in ladder.rungs] == [3.0, 2.0, 0.5, 0.5]
    assert ladder.task == "regression"


@pytest.mark.parametrize(
    ("network", "shape", "named"),
    [
        (("conv 8 1", "global"), (1, 6, 6), ["(8,)", "(3,)", "'top'"]),
        ("conv_small", (1, 3, 3), ["conv_small", "(1, 3, 3)"]),
        ("conv_pool_cnn_c", (3, 4, 4), ["conv_pool_cnn_c", "(3, 4, 4)"]),
    ],
    ids=str,
)
def test_a_network_that_does_not_fit_the_rows_raises_value_error(network: Any, shape: Any, named: list[str]) -> None:
    with pytest.raises(ValueError, match="network=") as raised:
        Recipe(network=network, costs=1.0).build(shape, 3, seed=0)
    assert isinstance(raised.value, MapTooSmallError) is ("global" not in network)
    for words in named:
        assert words in str(raised.value)


def test_a_network_of_rungs_that_is_too_deep_for_its_maps_raises_map_too_small_error() -> None:
    with pytest.raises(MapTooSmallError):
        Recipe(network=("conv 8 5", "conv 8 5"), costs=1.0).build((1, 6, 6), 3, seed=0)


# The learning rate


def test_the_rate_falls_in_equal_steps_to_zero_over_the_last_third() -> None:
    recipe = Recipe(learning_rate=0.3)
    rates = [recipe.rate(update, 9) for update in range(9)]
    assert rates == pytest.approx([0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.2, 0.1])
    assert recipe.rate(9, 9) == 0  # of an update after the last one


@given(annealed=st.floats(0, 1), learning_rate=st.floats(1e-6, 1.0), updates=st.integers(1, 300))
def test_the_rate_never_rises_and_stays_positive(annealed: float, learning_rate: float, updates: int) -> None:
    recipe = Recipe(annealed=annealed, learning_rate=learning_rate)
    rates = [recipe.rate(update, updates) for update in range(updates)]
    assert all(0 < rate <= learning_rate for rate in rates)
    assert rates == sorted(rates, reverse=True)
    constant = updates - int(annealed * updates)
    assert rates[:constant] == [learning_rate] * constant


@pytest.mark.parametrize(("annealed", "last"), [(0.0, 0.002), (1.0, 0.002 / 60)])
def test_none_or_all_of_the_updates_can_be_annealed(annealed: float, last: float) -> None:
    recipe = Recipe(annealed=annealed)
    assert recipe.rate(0, 60) == 0.002
    assert recipe.rate(59, 60) == pytest.approx(last)


# Defaults that follow from the data


PAPER = (1000, 10, 0.1)
IMAGES = np.zeros((4, 1, 28, 28))


@pytest.mark.parametrize(
    ("half_width", "costs"), [(0.3, PAPER), (0.4, (391, 3.91, 0.1)), (1, (10, 1, 0.1)), (10, (0.1, 1, 0.1))]
)
def test_default_costs_fall_with_the_variance_of_the_columns(half_width: float, costs: tuple[float, ...]) -> None:
    rows = np.array([[-half_width, 50.0], [half_width, 50.0 + 2 * half_width]])
    assert default_costs((8, 4), rows, "classification") == costs


@pytest.mark.parametrize(
    ("network", "rows", "task", "costs"),
    [
        ((), np.zeros((4, 2)), "classification", (1000, 0.1)),
        (Dense(8), np.zeros((4, 2)), "classification", PAPER),
        ("mlp", np.zeros((4, 2)), "classification", PAPER),
        ("conv_fc", IMAGES, "classification", PAPER),
        ("conv_small", IMAGES, "classification", (1,)),
        ("conv_large", IMAGES, "classification", (4,)),
        ("conv_pool_cnn_c", IMAGES, "classification", (1,)),
        (["conv 8 3", "max 2"], IMAGES, "classification", (1,)),
        ((8,), np.zeros((4, 2)), "regression", (1, 0.1)),
        ("conv_small", IMAGES, "regression", (1, 0.1)),
    ],
    ids=str,
)
def test_default_costs_follow_from_network_and_task(network: Any, rows: Any, task: Any, costs: Any) -> None:
    assert default_costs(network, rows, task) == costs
    Recipe(network=network, costs=costs)  # they fit the network


@pytest.mark.parametrize("constant", [0, 0.1, -1000.1])
def test_standardized_columns_are_not_mistaken_for_pixels_because_others_are_constant(constant: float) -> None:
    rows = np.full((300, 50), constant, np.float32)
    rows[::2, ::13], rows[1::2, ::13] = -1, 1
    assert default_costs((8,), rows, "classification") == (10, 1, 0.1)
    assert default_epochs(rows, batch_size=1) == 50  # of 300, the most that make 15,000 updates
    assert default_costs((8,), rows[::2], "classification") == PAPER  # where nothing varies


@pytest.mark.parametrize("darkest", [0, -0.5])
def test_images_are_recognized_as_pixels_however_wide_their_constant_border(darkest: float) -> None:
    rows = (np.pad(load_digits().images[:20] > 8, ((0, 0), (2, 2), (2, 2))) + darkest).reshape(20, -1)
    varying = rows[:, rows.min(0) < rows.max(0)]
    assert default_costs((8, 4), rows, "classification") == PAPER != default_costs((8, 4), varying, "classification")


PIXELS, COLUMNS = np.tile([[0.0], [0.2]], (30_000, 1)), np.tile([[-1.0], [1.0]], (30_000, 1))


@pytest.mark.parametrize(
    ("rows", "epochs"),
    [(50, 900), (90, 900), (150, 900), (1297, 100), (5000, 100), (30_000, 50), (60_000, 25)],
)
def test_default_epochs_make_900_to_15000_updates_but_are_at_least_10(rows: int, epochs: int) -> None:
    assert default_epochs(PIXELS[:rows], batch_size=100) == epochs
    assert default_epochs(PIXELS[:rows], batch_size=10) >= 10


def test_default_epochs_are_at_least_10() -> None:
    assert default_epochs(PIXELS, batch_size=2) == 10


@pytest.mark.parametrize(("deviation", "epochs"), [(0.1, 100), (0.3, 100), (0.4, 300), (10, 300)])
def test_columns_that_vary_more_than_pixels_take_300_epochs_and_images_and_modules_do_not(deviation, epochs) -> None:
    rows = deviation * COLUMNS[:1000]
    assert default_epochs(rows, batch_size=100) == epochs
    assert default_epochs(rows.reshape(-1, 1, 1, 1), batch_size=100) == 100
    assert default_epochs(rows, batch_size=100, is_module=True) == 100


@pytest.mark.parametrize("columns", [1, 3, 784, CHUNK + 1])
def test_the_mean_variance_is_that_of_numpy_and_needs_little_memory(columns: int) -> None:
    rows = np.random.default_rng(0).normal(1000, 0.1, (2**21 // columns, columns)).astype(np.float32)
    tracemalloc.start()
    variance = _mean_variance(rows)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert variance == pytest.approx(rows.var(0, dtype=float).mean(), rel=1e-9)
    assert peak < rows.nbytes  # a copy in double precision takes twice as much
