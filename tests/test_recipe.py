"""A recipe is the paper's unless told otherwise, has one name, says what is wrong with it, and anneals to zero."""

import re
import subprocess
import sys
from dataclasses import FrozenInstanceError, fields, replace

import numpy as np
import pytest
import tyro
from hypothesis import given
from hypothesis import strategies as st

from tikas import Conv, Dense, GlobalMeanPool, MaxPool
from tikas.training.recipe import DIGITS, Recipe

# Every field, each with a value that is not its default.
OTHER = {
    "data": "digits",
    "labels": "all",
    "validation": 10_000,
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
}


def test_defaults_are_the_papers_for_100_labels_of_mnist():
    recipe = Recipe()
    assert (recipe.data, recipe.labels, recipe.validation, recipe.task) == ("mnist", 100, 0, "classification")
    assert recipe.network == (1000, 500, 250, 250, 250)
    assert (recipe.activation, recipe.denoiser) == ("relu", "gaussian")
    assert recipe.levels_of_noise() == (0.3,) * 7
    assert recipe.levels_of_costs() == (1000, 10, 0.1, 0.1, 0.1, 0.1, 0.1)
    assert (recipe.epochs, recipe.annealed, recipe.learning_rate) == (150, 1 / 3, 0.002)
    assert (recipe.batch_size, recipe.labeled_batch_size) == (100, 100)


def test_statistics_come_from_all_rows_unless_the_authors_way_is_asked_for():
    """NOTES.md, section 2: 0.925 against 1.004 % at 100 labels."""
    assert Recipe().calibration == "all"


def test_the_digits_recipe_is_a_ladder_for_fifty_labels():
    assert (DIGITS.data, DIGITS.labels) == ("digits", 50)
    assert min(DIGITS.levels_of_costs()) > 0


def test_a_recipe_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        Recipe().epochs = 3
    assert hash(Recipe(**OTHER)) == hash(Recipe(**OTHER))


def test_other_values_are_given_for_every_field():
    assert OTHER.keys() == {field.name for field in fields(Recipe)}
    for name, value in OTHER.items():
        assert value != getattr(Recipe(), name)


@pytest.mark.parametrize("recipe", [Recipe(), Recipe(**OTHER), DIGITS], ids=["default", "other", "digits"])
def test_a_recipe_comes_back_from_json_as_it_was(recipe):
    assert Recipe.from_json(recipe.to_json()) == recipe


def test_lists_become_tuples():
    recipe = Recipe(network=[20, 10], noise=[0.1], costs=[1.0, 2.0])
    assert (recipe.network, recipe.noise, recipe.costs) == ((20, 10), (0.1,), (1.0, 2.0))


def test_a_field_that_is_not_known_is_refused_by_its_name():
    with pytest.raises(ValueError, match="does not know: momentum"):
        Recipe.from_json(Recipe().to_json()[:-1] + ', "momentum": 0.9}')


def test_a_recipe_from_json_is_checked_like_any_other():
    with pytest.raises(ValueError, match=r"epochs=0: expected"):
        Recipe.from_json('{"epochs": 0}')


def test_every_field_is_part_of_the_name():
    names = {Recipe().name, *(replace(Recipe(), **{field: value}).name for field, value in OTHER.items())}
    assert len(names) == 1 + len(OTHER)
    assert all(len(name) == 12 for name in names)


def test_the_name_is_the_same_in_another_process():
    """Python's own hash differs from one process to the next; a record that is found by it would be lost."""
    program = "from tikas.training.recipe import Recipe; print(Recipe().name)"
    elsewhere = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert elsewhere.stdout.strip() == Recipe().name


def test_the_default_recipe_has_the_name_it_always_had():
    """Records are filed under names: a field that is dropped or changed makes a new one, knowingly; one that is added
    counts where it is not at its default."""
    assert Recipe().name == "7c1d46545ce8"
    assert Recipe(preprocess="whiten").name != Recipe().name


def test_equal_recipes_have_equal_names():
    whole, broken = Recipe(costs=(1000, 10, 0.1)), Recipe(costs=(1000.0, 10.0, 0.1))
    assert whole == broken
    assert whole.name == broken.name


@pytest.mark.parametrize(
    ("field", "ways", "form"),
    [
        ("noise", [0.3, (0.3,), (0.3, 0.3), (0.3, 0.3, 0.3, 0.3)], (0.3,)),
        ("noise", [(0.3, 0.5), (0.3, 0.5, 0.5), (0.3, 0.5, 0.5, 0.5)], (0.3, 0.5)),
        ("costs", [(1000, 10, 0.1), (1000, 10, 0.1, 0.1)], (1000, 10, 0.1)),
        ("costs", [(5, 5), (5, 5, 5), (5, 5, 5, 5)], (5, 5)),
        ("costs", [0.5, (0.5,), (0, 0, 0, 0.5)], (0.5,)),
        ("costs", [0, (0, 0), (0, 0, 0, 0)], (0,)),
        ("costs", [(5, 0), (5, 0, 0, 0)], (5, 0)),
        ("costs", [(0, 0, 0.5)], (0, 0, 0.5)),
    ],
    ids=str,
)
def test_every_way_to_say_the_same_levels_comes_to_one_form(field, ways, form):
    recipes = [Recipe(network=(20, 10), **{field: way}) for way in ways]
    assert {getattr(recipe, field) for recipe in recipes} == {form}
    assert len({recipe.name for recipe in recipes}) == 1


FEW = st.lists(st.sampled_from([0.0, 0.1, 2.0]), min_size=1, max_size=4).map(tuple)


@given(noise=FEW, costs=FEW)
def test_a_recipe_with_its_levels_written_out_is_the_same_recipe(noise, costs):
    recipe = Recipe(network=(20, 10), noise=noise, costs=costs)
    written_out = replace(recipe, noise=recipe.levels_of_noise(), costs=recipe.levels_of_costs())
    assert written_out == recipe
    assert recipe.levels_of_noise() == (*noise, *noise[-1:] * 4)[:4]
    assert recipe.levels_of_costs() == ((0.0,) * 3 + costs if len(costs) == 1 else (*costs, *costs[-1:] * 4)[:4])


# Levels: the input, the hidden rungs, the top.


@pytest.mark.parametrize(
    ("noise", "levels"),
    [
        ((0.3,), (0.3, 0.3, 0.3, 0.3)),
        ((0.3, 0.5), (0.3, 0.5, 0.5, 0.5)),
        ((0.3, 0.5, 0.0), (0.3, 0.5, 0.0, 0.0)),
        ((0.1, 0.2, 0.3, 0.4), (0.1, 0.2, 0.3, 0.4)),
    ],
)
def test_the_last_noise_given_holds_for_the_rungs_above_it(noise, levels):
    assert Recipe(network=(20, 10), noise=noise).levels_of_noise() == levels


@pytest.mark.parametrize(
    ("costs", "levels"),
    [
        ((1000.0, 10.0, 0.1), (1000.0, 10.0, 0.1, 0.1)),
        ((5000.0, 0.0), (5000.0, 0.0, 0.0, 0.0)),
        ((1.0, 2.0, 3.0, 4.0), (1.0, 2.0, 3.0, 4.0)),
        ((0.5,), (0.0, 0.0, 0.0, 0.5)),
        ((0.0,), (0.0, 0.0, 0.0, 0.0)),
    ],
)
def test_the_last_cost_given_holds_for_the_rungs_above_it_but_one_alone_is_the_tops(costs, levels):
    assert Recipe(network=(20, 10), costs=costs).levels_of_costs() == levels


def test_a_recipe_without_denoising_differs_in_its_costs_alone():
    recipe = Recipe(**OTHER)
    supervised = recipe.without_denoising()
    assert set(supervised.levels_of_costs()) == {0.0}
    assert replace(supervised, costs=recipe.costs) == recipe


def test_a_network_without_hidden_rungs_is_possible():
    assert Recipe(network=(), costs=(1.0, 0.1)).levels_of_costs() == (1.0, 0.1)


# Networks: units, texts of rungs, rungs, or a name.


def test_every_way_to_say_a_network_comes_to_one_form():
    ways = [
        ("conv 8 3 same", "max 2", "dense 20", 10),
        ["conv 8 3 same stride=1", " max  2 stride=2", 20, "dense 10"],
        [Conv(8, 3, padding="same"), MaxPool(2), Dense(20), Dense(10)],
        (Conv(8, 3, padding="same"), "max 2", 20, np.int64(10), "top"),
    ]
    recipes = [Recipe(network=way) for way in ways]
    assert {recipe.network for recipe in recipes} == {("conv 8 3 same", "max 2", 20, 10)}
    assert len({recipe.name for recipe in recipes}) == len(set(recipes)) == 1
    assert Recipe.from_json(recipes[0].to_json()) == recipes[0]


@pytest.mark.parametrize("rung", ["conv_small", "conv 8 3", Conv(8, 3), 20], ids=str)
def test_a_network_of_one_may_be_said_alone(rung):
    alone, among = (Recipe(network=network, costs=1.0) for network in (rung, [rung]))
    assert alone == among
    assert len(alone.network) == 1


@pytest.mark.parametrize(
    ("network", "top"),
    [
        ((20,), Dense(10)),
        ((), Dense(10)),
        (("conv 10 1", "global"), GlobalMeanPool()),
        (("conv 10 1", "global unscaled"), GlobalMeanPool(scale=False)),
        (("conv 12 1", "global", "top"), Dense(10)),
        (("conv 12 1", "global", 20), Dense(10)),
        (("conv 10 3", "max 2"), Dense(10)),
        ("conv_small", Dense(10)),
        ("conv_large", GlobalMeanPool(scale=False)),
    ],
    ids=str,
)
def test_the_top_is_dense_unless_the_network_ends_in_global(network, top):
    recipe = Recipe(network=network, costs=1.0)
    rungs = recipe.rungs(outputs=10)
    assert rungs[-1] == top
    assert recipe.levels == 1 + len(rungs)


def test_hidden_rungs_have_the_recipes_activation_unless_they_say_their_own():
    recipe = Recipe(
        network=(30, "dense 20 gelu", "conv 8 3", Conv(8, 3), Conv(4, 1, activation="relu")), activation="tanh"
    )
    assert [rung.activation for rung in recipe.rungs(10)[:-1]] == ["tanh", "gelu", "tanh", "tanh", "relu"]


@pytest.mark.parametrize(
    ("network", "reason"),
    [
        ((10, 0), "Dense(0): the number of units must be a positive whole number."),
        ((10, 2.5), "Dense(2.5): the number of units"),
        (2.5, "Dense(2.5): the number of units"),
        ((True,), "Dense(True): the number of units"),
        (None, "Dense(None): the number of units"),
        ("100", "'100' is no rung"),
        (("conv_small", 10), "'conv_small' is no rung"),
        (("conv_pool_cnn_c", 10), "'conv_pool_cnn_c' is no rung"),
        ("conv_smal", "Did you mean 'conv_small'? LadderClassifier takes any torch.nn.Module, too."),
        (("Conv-Large",), "Did you mean 'conv_large'?"),
        ("conv_pool_cnn", "Did you mean 'conv_pool_cnn_c'?"),
        (("conv 32", "max 2"), "'conv 32' has 1 numbers; expected 'conv FEATURES KERNEL'"),
        (("top", 10), "'top' stands at the end."),
    ],
    ids=str,
)
def test_what_is_no_network_is_refused_with_what_would_be_and_why(network, reason):
    expected = "expected numbers of units, rungs such as 'conv 32 5 full' and 'max 2', or the name of one network, "
    with pytest.raises(ValueError, match=re.escape(f"network={network!r}: {expected}mlp, conv_fc")) as caught:
        Recipe(network=network)
    assert reason in str(caught.value)


@pytest.mark.parametrize("network", ["conv 8", "conv_tiny", ("conv_smal", 10)], ids=str)
def test_no_name_is_suggested_for_a_network_that_is_like_none(network):
    with pytest.raises(ValueError, match="expected numbers of units") as caught:
        Recipe(network=network)
    assert "Did you mean" not in str(caught.value)


def test_a_record_from_before_there_were_texts_still_reads():
    old = '{"network": [1000, 500], "costs": [1000.0, 10.0, 0.1], "epochs": 10}'
    assert Recipe.from_json(old) == Recipe(network=(1000, 500), epochs=10)


@pytest.mark.parametrize(
    ("words", "network"),
    [
        (["1000", "500"], (1000, 500)),
        (["conv_small"], ("conv_small",)),
        (["conv 8 3", "max 2", "global", "top"], ("conv 8 3", "max 2", "global", "top")),
    ],
    ids=str,
)
def test_the_command_line_takes_every_network(words, network):
    assert tyro.cli(Recipe, args=["--network", *words, "--costs", "1"]).network == network


# What is wrong is said: the field, the value, what was expected.


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("epochs", 0, "at least 1"),
        ("epochs", 2.5, "a whole number"),
        ("epochs", "3", "a whole number"),
        ("epochs", True, "a whole number"),
        ("batch_size", 0, "at least 2, for the statistics of a batch"),
        ("batch_size", 1, "at least 2, for the statistics of a batch"),
        ("labeled_batch_size", -1, "at least 2, for the statistics of a batch"),
        ("labeled_batch_size", 1, "at least 2, for the statistics of a batch"),
        ("labels", 0, "at least 1, or 'all'"),
        ("validation", -1, "at least 0"),
        ("learning_rate", 0.0, "above 0"),
        ("learning_rate", -0.002, "above 0"),
        ("learning_rate", float("inf"), "above 0"),
        ("learning_rate", float("nan"), "above 0"),
        ("annealed", -0.1, "between 0 and 1"),
        ("annealed", 1.1, "between 0 and 1"),
        ("noise", (), "1 to 7 finite numbers of at least 0"),
        ("noise", (-0.3,), "1 to 7 finite numbers of at least 0"),
        ("noise", (float("nan"),), "1 to 7 finite numbers of at least 0"),
        ("costs", (1.0,) * 8, "1 to 7 finite numbers of at least 0"),
        ("costs", (float("inf"), 1.0), "1 to 7 finite numbers of at least 0"),
    ],
)
def test_a_bad_value_is_named_with_its_field_and_what_was_expected(field, value, expected):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the whole message is compared
        Recipe(**{field: value})
    assert str(caught.value) == f"{field}={value!r}: expected {expected}."


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("calibration", "labelled"),
        ("task", "ranking"),
        ("activation", "selu"),
        ("denoiser", "g9"),
        ("preprocess", "zca"),
    ],
)
def test_a_name_that_is_not_known_is_refused(field, value):
    with pytest.raises(ValueError, match=f"{field}={value!r}: expected"):
        Recipe(**{field: value})


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("noise", ("a",), "numbers"),
        ("costs", "5", "numbers"),
        ("costs", None, "numbers"),
        ("labels", "ten", "a whole number, or 'all'"),
        ("learning_rate", "fast", "a number"),
        ("learning_rate", True, "a number"),
        ("noise", (True,), "numbers"),
    ],
)
def test_a_value_of_the_wrong_type_is_named_with_its_field(field, value, expected):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the whole message is compared
        Recipe(**{field: value})
    assert str(caught.value) == f"{field}={value!r}: expected {expected}."


@pytest.mark.parametrize(("field", "value"), [("costs", 5.0), ("costs", 5), ("noise", 0.2), ("network", 100)])
def test_a_number_alone_is_a_tuple_of_one(field, value):
    alone, among = Recipe(**{"costs": 1.0, field: value}), Recipe(**{"costs": (1.0,), field: (value,)})
    assert getattr(alone, field) == (value,)
    assert alone == among
    assert alone.name == among.name


@pytest.mark.parametrize("field", ["epochs", "batch_size", "labeled_batch_size", "labels", "validation", "network"])
def test_whole_numbers_of_numpy_are_whole_numbers(field):
    """A grid search over ``np.array([20, 40])`` hands them over."""
    plain, numpy = Recipe(**{"costs": 1.0, field: 20}), Recipe(**{"costs": 1.0, field: np.int64(20)})
    assert numpy == plain
    assert numpy.name == plain.name
    value = getattr(numpy, field)
    assert type(value[0] if field == "network" else value) is int


@pytest.mark.parametrize("field", ["learning_rate", "annealed", "noise", "costs"])
def test_numbers_of_every_kind_become_floats(field):
    recipes = [Recipe(**{field: kind(1)}) for kind in (int, float, np.float32, np.int64)]
    assert len({recipe.name for recipe in recipes}) == 1
    for recipe in recipes:
        value = getattr(recipe, field)
        assert type(value[0] if isinstance(value, tuple) else value) is float


def test_arrays_become_tuples():
    recipe = Recipe(network=np.array([20, 10]), noise=np.array([0.1, 0.2]), costs=np.array([1, 2]))
    assert recipe == Recipe(network=(20, 10), noise=(0.1, 0.2), costs=(1.0, 2.0))
    assert Recipe.from_json(recipe.to_json()) == recipe


@pytest.mark.parametrize("field", ["labels", "validation"])
def test_half_a_row_is_refused(field):
    with pytest.raises(ValueError, match=f"{field}=2.5: expected"):
        Recipe(**{field: 2.5})


# The learning rate.


def test_the_rate_is_constant_and_then_falls_in_equal_steps_to_zero_over_the_last_third():
    recipe = Recipe(learning_rate=0.3)
    rates = [recipe.rate(update, 9) for update in range(9)]
    assert rates == pytest.approx([0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.2, 0.1])
    assert recipe.rate(9, 9) == 0  # of the update after the last one


def test_the_papers_schedule_anneals_over_its_last_fifty_epochs():
    recipe, updates = Recipe(), 150 * 600
    assert recipe.rate(100 * 600, updates) == 0.002
    assert recipe.rate(125 * 600, updates) == pytest.approx(0.001)
    assert recipe.rate(updates - 1, updates) == pytest.approx(0.002 / 30_000)


@given(
    annealed=st.floats(0, 1),
    learning_rate=st.floats(1e-6, 1.0),
    updates=st.integers(1, 300),
)
def test_the_rate_never_rises_is_never_negative_and_is_smallest_in_the_last_update(annealed, learning_rate, updates):
    recipe = Recipe(annealed=annealed, learning_rate=learning_rate)
    rates = [recipe.rate(update, updates) for update in range(updates)]
    assert all(0 < rate <= learning_rate for rate in rates)
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] == min(rates)
    constant = updates - int(annealed * updates)  # as many updates at least come before the annealing
    assert rates[:constant] == [learning_rate] * constant


@pytest.mark.parametrize(("annealed", "last"), [(0.0, 0.002), (1.0, 0.002 / 60)])
def test_all_or_none_of_the_updates_can_anneal(annealed, last):
    recipe = Recipe(annealed=annealed)
    assert recipe.rate(0, 60) == 0.002
    assert recipe.rate(59, 60) == pytest.approx(last)
