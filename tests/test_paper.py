"""The paper as data: figures and settings as printed, every name once, quotations apart from what is measured."""

from collections import Counter
from dataclasses import replace

import pytest
import torch

from tikas.commands.presets import preset_for
from tikas.experiments.appendix import build_for
from tikas.experiments.cells import Cell, Quotation, Row, Table
from tikas.experiments.paper import TABLE_1, TABLE_2, TABLE_3, TABLE_4, TABLES, TEXT
from tikas.experiments.studies import STUDIES
from tikas.experiments.tasks import CELLS, TASKS
from tikas.training.recipe import Recipe

CELL = {cell.name: cell for cell in CELLS}


def test_every_name_stands_for_one_task() -> None:
    assert not [name for name, count in Counter(task.name for task in TASKS).items() if count > 1]


def test_every_cell_stands_in_a_column_of_its_table() -> None:
    for table in TABLES:
        for cell in table.cells:
            assert cell.name.split("/")[0] == table.name
            assert cell.column in table.columns
        for row in table.rows:
            if isinstance(row, Quotation):
                assert set(row.figures) <= set(table.columns)


def test_a_cell_uses_as_many_labels_as_its_column_says() -> None:
    for table in TABLES:
        for cell in table.cells:
            assert str(cell.recipe.labels) == cell.column


@pytest.mark.parametrize(
    ("table", "figures"),
    [
        (TABLE_1, "21.74 1.77 5.70 0.20 0.80 0.03 3.06 1.44 1.53 0.10 0.78 0.03 1.09 0.32 0.90 0.05 0.59 0.03 "
         "1.06 0.37 0.84 0.08 0.57 0.02"),
        (TABLE_2, "6.43 0.84 0.36 0.99 0.15 0.89 0.50"),
        (TABLE_3, "23.33 0.61 9.27 20.40 0.47"),
        (TABLE_4, "1.06 0.07 1.03 0.06 1.11 0.07 1.11 0.06 2.03 0.09 1.70 0.08 1.49 0.10 1.30 0.08 "
         "2.90 1.19 2.11 0.45"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)  # fmt: skip
def test_published_figures_are_those_of_the_printed_table(table: Table, figures: str) -> None:
    published = [cell.published for cell in table.cells if cell.published]
    read_off = [value for each in published for value in (each.mean, each.deviation) if value is not None]
    assert read_off == [float(figure) for figure in figures.split()]


def test_quoted_figures_stand_beside_the_measured_rows_and_cannot_be_run() -> None:
    quoted = [row for table in TABLES for row in table.rows if isinstance(row, Quotation)]
    assert len(quoted) == 13
    assert {row.figures["100"].mean for row in quoted if "100" in row.figures} == {
        16.86, 16.81, 12.03, 10.49, 8.10, 3.33, 2.12, 7.75, 9.17,
    }  # fmt: skip
    assert all(row.source for row in quoted)
    measured = [row for table in TABLES for row in table.rows if isinstance(row, Row)]
    assert len(measured) == 4 + 2 + 8 + 2 + 5 + 5


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
def test_weights_and_noise_are_those_behind_the_figure(
    name: str, costs: tuple[float, ...], noise: tuple[float, float]
) -> None:
    recipe = CELL[name].recipe
    assert recipe.levels_of_costs() == costs
    assert recipe.levels_of_noise() == noise[:1] + noise[1:] * (len(costs) - 1)


def test_the_convolutional_schedules_are_shorter_and_cifar_is_whitened() -> None:
    gamma, baseline = CELL["table3/large-gamma/4000"], CELL["table3/large-baseline/4000"]
    assert (gamma.recipe.epochs, gamma.recipe.annealed, gamma.seeds) == (70, 0.14, 4)
    assert (baseline.recipe.epochs, baseline.recipe.annealed) == (20, 0.5)
    assert (gamma.recipe.preprocess, gamma.recipe.activation, gamma.recipe.data) == ("whiten", "leaky_relu", "cifar10")
    small = CELL["table2/small-baseline/100"].recipe
    assert (small.epochs, small.annealed) == (20, 0.5)
    assert all(cell.recipe.epochs == 150 for cell in TABLE_1.cells)


def test_the_command_line_starts_from_the_papers_own_settings() -> None:
    for data, cell in (("mnist", "table1/full/100"), ("cifar10", "table3/large-gamma/4000")):
        assert preset_for(["train", "--data", data]) == CELL[cell].recipe


def test_the_ladders_at_50_and_100_labels_and_the_full_one_with_all_have_forty_seeds() -> None:
    forty = {cell.name for table in TABLES for cell in table.cells if cell.seeds == 40}
    assert forty == {"table1/full/100", "table1/bottom/100", "table1/full/all", "text/full/50", "text/full-chosen/50"}


def test_final_runs_hold_out_no_rows_and_studies_hold_out_ten_thousand() -> None:
    assert {cell.recipe.validation for cell in CELLS} == {0}
    assert {setting.recipe.validation for setting in STUDIES} == {10_000}
    with pytest.raises(ValueError, match="holds out no rows"):
        Cell("table1/full/100", Recipe(validation=10_000))


def test_every_setting_that_the_authors_chose_is_a_point_of_a_study() -> None:
    tried = {setting.recipe for setting in STUDIES}
    for cell in (cell for table in (TABLE_1, TEXT, TABLE_2, TABLE_3) for cell in table.cells):
        if cell.published is not None and cell.published.runs != 1:  # of single runs it says that nothing was optimised
            assert replace(cell.recipe, validation=10_000) in tried, cell.name


def test_settings_that_are_the_same_are_equal_so_that_studies_share_their_members() -> None:
    levels = {(replace(each.recipe, noise=(0.3,)), each.recipe.levels_of_noise(), each.attached) for each in STUDIES}
    assert len(levels) == len({(each.recipe, each.attached) for each in STUDIES}) < len(STUDIES)


def test_the_one_two_five_grid_of_the_text_is_searched_for_the_gamma_model() -> None:
    weights = [setting.recipe.costs[0] for setting in STUDIES if setting.study == "study/gamma/100"]
    assert {0.1, 0.2, 0.5, 1, 2, 5, 10} <= set(weights)


def test_every_network_can_be_built_for_the_rows_of_its_data() -> None:
    shapes = {"mnist": (1, 28, 28), "cifar10": (3, 32, 32)}
    kinds = {
        (task.recipe.network, task.recipe.denoiser, task.attached, tuple(map(bool, task.recipe.costs))): task
        for task in (*CELLS, *STUDIES)
    }
    for recipe, attached in ((task.recipe, task.attached) for task in kinds.values()):
        images = isinstance(recipe.network[0], str)
        shape = shapes[recipe.data] if images else (784,)
        with torch.device("meta"):
            built = build_for(attached)(recipe, shape, 10, None)
        assert built.shapes[0] == shape
        assert built.shapes[-1] == (10,)
        assert len(built.shapes) == recipe.levels
