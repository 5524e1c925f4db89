"""The paper as data: figures and settings as printed, and which experiments share records or an ensemble."""

from collections import Counter
from dataclasses import replace

import pytest

from tikas.paper.autoencoder import Autoencoder
from tikas.paper.experiments import (
    CURVE,
    EXPERIMENTS,
    TABLE_1,
    TABLE_2,
    TABLE_3,
    TABLE_4,
    TABLES,
    TEXT,
    Experiment,
    Summary,
    Table,
    select,
)
from tikas.training.recipe import Recipe

BY_NAME = {experiment.name: experiment for experiment in EXPERIMENTS}


def test_every_name_is_unique() -> None:
    assert [name for name, count in Counter(each.name for each in EXPERIMENTS).items() if count > 1] == []


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_every_experiment_is_in_the_column_of_its_number_of_labels(table: Table) -> None:
    for cells in table.rows.values():
        for column, cell in zip(table.columns, cells, strict=True):
            if isinstance(cell, Experiment):
                assert (cell.name.split("/")[0], cell.name.split("/")[-1]) == (table.name, column)
                assert str(cell.labels) == column


@pytest.mark.parametrize(
    ("table", "figures"),
    [
        (
            TABLE_1,
            "21.74 1.77 5.70 0.20 0.80 0.03 3.06 1.44 1.53 0.10 0.78 0.03 1.09 0.32 0.90 0.05 0.59 0.03 "
            "1.06 0.37 0.84 0.08 0.57 0.02",
        ),
        (TEXT, "1.62 0.65"),
        (TABLE_2, "6.43 0.84 0.36 0.99 0.15 0.89 0.50"),
        (TABLE_3, "23.33 0.61 9.27 20.40 0.47"),
        (
            TABLE_4,
            "1.06 0.07 1.03 0.06 1.11 0.07 1.11 0.06 2.03 0.09 1.70 0.08 1.49 0.10 1.30 0.08 2.90 1.19 2.11 0.45",
        ),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_published_errors_are_those_of_the_printed_table(table: Table, figures: str) -> None:
    published = [each.published for each in table.experiments if each.published]
    found = [value for each in published for value in (each.mean, each.deviation) if value is not None]
    assert found == [float(figure) for figure in figures.split()]


def test_quoted_rows_name_their_source_and_contain_only_numbers() -> None:
    rows = [(title, cells) for table in TABLES for title, cells in table.rows.items()]
    quoted = [cells for title, cells in rows if "(quoted: " in title]
    assert (len(quoted), len(rows)) == (13, 39)
    assert all(isinstance(cell, str) for cells in quoted for cell in cells)
    assert all(isinstance(cells[0], Experiment) for title, cells in rows if "(quoted: " not in title)
    at_100_labels = [cells[0] for table in (TABLE_1, TABLE_2) for cells in table.rows.values()]
    assert [figure for figure in at_100_labels if figure and isinstance(figure, str)] == [
        "16.86", "16.81", "12.03", "10.49", "8.10 ± 0.95", "3.33 ± 0.14", "2.12", "7.75", "9.17",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "costs", "noise"),
    [
        ("text/full/50", (2000, 20, 0.1, 0.1, 0.1, 0.1, 0.1), (0.3, 0.3)),
        ("table1/full/100", (1000, 10, 0.1, 0.1, 0.1, 0.1, 0.1), (0.3, 0.3)),
        ("table1/full/1000", (2000, 20, 0.1, 0.1, 0.1, 0.1, 0.1), (0.3, 0.2)),
        ("table1/full/all", (1000, 1, 0.01, 0.01, 0.01, 0.01, 0.01), (0.3, 0.3)),
        ("table1/bottom/100", (5000, 0, 0, 0, 0, 0, 0), (0.3, 0.3)),
        ("table1/bottom/1000", (2000, 0, 0, 0, 0, 0, 0), (0.3, 0.3)),
        ("table1/bottom/all", (2000, 0, 0, 0, 0, 0, 0), (0.3, 0.3)),
        ("table1/gamma/100", (0, 0, 0, 0, 0, 0, 0.5), (0.3, 0.3)),
        ("table1/gamma/1000", (0, 0, 0, 0, 0, 0, 10), (0.3, 0.3)),
        ("table1/gamma/all", (0, 0, 0, 0, 0, 0, 2), (0.3, 0.3)),
        ("table1/baseline/100", (0,) * 7, (0.3, 0.5)),
        ("table2/fc/100", (1000, 10, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1), (0.3, 0.3)),
        ("table2/small-gamma/100", (0,) * 9 + (1,), (0.3, 0.3)),
        ("table2/small-baseline/100", (0,) * 10, (0.3, 0.45)),
        ("table3/large-gamma/4000", (0,) * 12 + (4,), (0.3, 0.3)),
        ("table4/g4/1000", (2000, 20, 0.1, 0.1, 0.1, 0.1, 0.1), (0.3, 0.3)),
    ],
)
def test_costs_and_noise_are_those_of_the_published_error(
    name: str, costs: tuple[float, ...], noise: tuple[float, float]
) -> None:
    recipe = BY_NAME[name].recipe
    assert recipe.cost_per_level() == costs
    assert recipe.noise_per_level() == noise[:1] + noise[1:] * (len(costs) - 1)


@pytest.mark.parametrize(
    ("name", "epochs", "annealed", "seeds"),
    [
        ("table1/full/100", 150, 1 / 3, 40),
        ("table2/fc/100", 150, 1 / 3, 10),
        ("table2/small-baseline/100", 20, 0.5, 10),
        ("table2/small-baseline/all", 20, 0.5, 1),
        ("table3/large-baseline/4000", 20, 0.5, 4),
        ("table3/large-baseline/all", 70, 0.14, 1),
        ("table3/large-gamma/4000", 70, 0.14, 4),
        ("appendix/rung1/100", 150, 1 / 3, 3),
    ],
)
def test_schedules_and_numbers_of_seeds(name: str, epochs: int, annealed: float, seeds: int) -> None:
    experiment = BY_NAME[name]
    assert (experiment.recipe.epochs, experiment.recipe.annealed, experiment.seeds) == (epochs, annealed, seeds)


def test_cifar_10_is_whitened_and_table_1_is_trained_for_150_epochs() -> None:
    assert {(each.data, each.recipe.preprocess, each.recipe.activation) for each in TABLE_3.experiments} == {
        ("cifar10", "whiten", "leaky_relu")
    }
    assert {(each.data, each.recipe.epochs) for each in TABLE_1.experiments} == {("mnist", 150)}


def test_ladders_at_50_and_100_labels_and_the_full_one_with_all_have_forty_seeds() -> None:
    forty = {each.name for each in EXPERIMENTS if each.seeds == 40}
    assert forty == {"table1/full/100", "table1/bottom/100", "table1/full/all", "text/full/50", "text/full-chosen/50"}


def test_experiments_hold_out_no_rows_and_are_compared_with_known_ones() -> None:
    assert {each.validation for each in EXPERIMENTS} == {0}
    assert all(each.published or each.against in BY_NAME for table in TABLES for each in table.experiments)


def test_experiments_of_one_recipe_share_their_records() -> None:
    full = BY_NAME["table1/full/100"]
    assert full.key == BY_NAME["table4/g/100"].key == CURVE[-1].key
    others = [
        replace(full, labels=1000),
        replace(full, data="fashion-mnist"),
        replace(full, validation=10_000),
        replace(full, attached=1),
        replace(full, recipe=Recipe(precision="exact")),
    ]
    assert len({full.key, *(each.key for each in others)}) == 6


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"labels": 1000}, True),
        ({"labels": "all"}, False),
        ({"recipe": Recipe(costs=(5, 5), noise=0.5, learning_rate=1e-3, annealed=0.1)}, True),
        ({"recipe": Recipe(costs=(1, 0))}, False),
        ({"recipe": Recipe(epochs=5)}, False),
        ({"recipe": Recipe(denoiser="mlp")}, False),
        ({"attached": 1}, False),
        ({"data": "fashion-mnist"}, False),
    ],
)
def test_experiments_train_in_one_ensemble_if_they_differ_in_settings_of_members_alone(
    change: dict[str, object], same: bool
) -> None:
    experiment = Experiment("table1/full/100", 100, Recipe())
    assert (replace(experiment, **change).ensemble_key == experiment.ensemble_key) == same


def test_statistics_of_the_labeled_rows_need_equally_many_of_them_in_an_ensemble() -> None:
    few, many = (Experiment("a", labels, Recipe(calibration="labeled")) for labels in (100, 1000))
    assert few.ensemble_key != many.ensemble_key


def test_an_experiment_is_measured_on_its_held_out_rows_if_there_are_any() -> None:
    assert Experiment("a", 100, Recipe()).error_field == "test_error"
    assert Experiment("a", 100, Recipe(), validation=10).error_field == "validation_error"


def test_names_select_tables_rows_and_cells_in_their_own_order() -> None:
    names = [each.name for each in select(EXPERIMENTS, ["curve/5", "table3", "table1/gamma/all"])]
    assert names == [
        "table1/gamma/all",
        "table3/large-baseline/4000",
        "table3/large-baseline/all",
        "table3/large-gamma/4000",
        "curve/5",
    ]
    with pytest.raises(ValueError, match=r"table1/ful/100.*table1/full/100"):
        select(EXPERIMENTS, ["table1/ful/100"])


def test_a_summary_is_read_and_written_as_the_paper_prints_it() -> None:
    assert Summary.parse("1.06 ± 0.37", runs=40) == Summary(1.06, 0.37, 40)
    assert Summary.of([1.0, 2.0, 3.0]) == Summary(2.0, 1.0, 3)
    assert Summary.of([1.0]) == Summary(1.0, None, 1)
    assert (Summary(0.8, 0.0312, 10).text(), Summary(9.27, None, 1).text(3)) == ("0.80 ± 0.03", "9.270")


def test_every_network_can_be_built_for_the_rows_of_its_data() -> None:
    shapes = {"mnist": (1, 28, 28), "cifar10": (3, 32, 32)}
    kinds = {(each.data, each.recipe.network, each.recipe.denoiser, each.attached): each for each in EXPERIMENTS}
    assert len(kinds) == 13
    for experiment in kinds.values():
        recipe = experiment.recipe
        shape = shapes[experiment.data] if recipe.takes_maps else (784,)
        if experiment.attached is None:
            built = recipe.build(shape, 10, 0)
        else:
            built = Autoencoder(recipe, shape, 10, 0, attached=experiment.attached)
        assert (built.shapes[0], built.shapes[-1], len(built.shapes)) == (shape, (10,), recipe.levels)
