"""The page of results: rendered from the records, missing where there are none, and verdicts by a proper test."""

import builtins
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tikas.cli import main
from tikas.commands.reproduce import Reproduce, reproduce
from tikas.experiments.cells import Cell, Published, Table
from tikas.experiments.compare import Summary, p_value, verdict
from tikas.experiments.ledger import Ledger
from tikas.experiments.paper import APPENDIX, TABLES
from tikas.experiments.readings import chosen, judge, reading, reference
from tikas.experiments.records import append
from tikas.experiments.rivals import RIVALS
from tikas.experiments.studies import STUDIES
from tikas.experiments.tasks import CELLS
from tikas.training.recipe import Recipe
from tikas.views.plots import draw
from tikas.views.results import TITLE, pictures, results_page

RESULTS = Path(__file__).parents[1] / "results"
CELL = {cell.name: cell for cell in CELLS}


def record(task: Cell, seed: int, error: float, **other: Any) -> dict[str, Any]:
    return {
        "recipe": {"labels": task.recipe.labels, "costs": task.recipe.costs, "noise": task.recipe.noise},
        "seed": seed,
        "test_error": error,
        "test_error_labeled_statistics": error + 0.1,
        "members": 4,
        "seconds": 40.0,
        "hardware": "a GPU",
        **other,
    }


def records(name: str, errors: list[float], **other: Any) -> list[Mapping[str, Any]]:
    return [record(CELL[name], seed, error, **other) for seed, error in enumerate(errors)]


def line_of(page: str, name: str) -> list[str]:
    (line,) = [line for line in page.splitlines() if line.startswith(f"| `{name}`")]
    return [part.strip() for part in line.strip("|").split("|")]


def test_the_committed_page_is_what_the_committed_records_render_to() -> None:
    rendered = results_page(Ledger.read(RESULTS))
    assert (RESULTS / "README.md").read_text() == rendered, "run `tikas reproduce --render` and commit what it writes"


def test_the_page_opens_with_every_cell_whose_setting_was_chosen_here() -> None:
    opening = " ".join(results_page(Ledger()).partition("\n## ")[0].split())
    ours = [cell.name for table in TABLES if table is not APPENDIX for cell in table.cells if cell.published is None]
    *names, last = (f"`{name}`" for name in ours)
    assert len(ours) == 6
    assert "Six cells were searched for after test errors of their model were known" in opening
    assert f"as their notes tell: {', '.join(names)} and {last}." in opening


def test_every_picture_that_the_page_shows_is_there() -> None:
    page = (RESULTS / "README.md").read_text()
    shown = [part.split(")")[0] for part in page.split("](")[1:] if ".svg)" in part]
    assert shown
    assert [name for name in shown if not (RESULTS / name).exists()] == []


def test_without_records_every_cell_says_missing() -> None:
    page = results_page(Ledger())
    for cell in CELLS:
        if not cell.name.startswith("curve"):
            assert line_of(page, cell.name)[2] == "missing", cell.name
    for rival in RIVALS:
        assert line_of(page, rival.name)[2] == "missing"
    assert ".svg" not in page
    assert f"Not run: `{STUDIES[0].study}`" in page


def test_a_cell_shows_published_against_measured_with_interval_seeds_and_verdict() -> None:
    errors = [0.9, 1.0, 1.1, 0.96]
    page = results_page(Ledger.of(records("table1/full/1000", errors)))
    _, paper, measured, interval, seeds, p, judged, labeled, seconds, hardware = line_of(page, "table1/full/1000")
    assert (paper, measured, seeds) == ("0.84 ± 0.08", "0.990 ± 0.084", "4 of 10")
    low, high = stats.t.interval(0.95, 3, np.mean(errors), np.std(errors, ddof=1) / 2)
    assert interval == f"{low:.3f} to {high:.3f}"
    test = stats.ttest_ind_from_stats(np.mean(errors), np.std(errors, ddof=1), 4, 0.84, 0.08, 10, equal_var=False)
    assert p == f"{test.pvalue:.3f}"
    assert judged == "worse"
    assert (labeled, seconds, hardware) == ("1.090 ± 0.084", "10.0", "a GPU")
    assert "**0.99 ± 0.08**, worse<br>0.84 ± 0.08" in page


def test_an_interval_ends_where_errors_do() -> None:
    page = results_page(Ledger.of(records("table1/full/1000", [1.0, 99.0])))
    assert line_of(page, "table1/full/1000")[3] == "0.000 to 100.000"


def test_quotations_are_marked_and_never_in_the_place_of_a_measurement() -> None:
    page = results_page(Ledger())
    assert "| *DGN* (quoted: Kingma et al. 2014) | *3.33 ± 0.14* | *2.40 ± 0.02* | *0.96* |" in page


def test_quotations_have_no_digit_that_was_not_published() -> None:
    page = results_page(Ledger())
    assert "| *16.86* | *5.73* | *1.5* |" in page
    assert "| *16.81* | *5.38* | *1.40* |" in page
    assert "| *31.9* |  |" in page


def test_the_order_of_the_denoising_functions_is_told_once_all_are_measured() -> None:
    means = {"g": 0.9, "g1": 1.0, "g2": 1.7, "g3": 1.3, "g4": 1.6}
    cells = {name: CELL[f"table4/{name}/1000"] for name in means}
    lines = [record(cells[name], 0, mean) for name, mean in means.items()]
    for line, cell in zip(lines, cells.values(), strict=True):
        line["recipe"]["denoiser"] = cell.recipe.denoiser
    told = "Order of the means at 1000 labels: paper g < g1 < g3 < g2 < g4; measured g < g1 < g3 < g4 < g2."
    assert told in results_page(Ledger.of(lines))
    assert "Order of the means" not in results_page(Ledger.of(lines[:-1]))


def test_seconds_are_those_of_the_hardware_that_most_members_ran_on() -> None:
    found = reading(
        CELL["table1/full/100"],
        Ledger.of(
            [
                *records("table1/full/100", [1.0, 1.1]),
                record(CELL["table1/full/100"], 7, 0.9, hardware="a CPU", seconds=9e9),
            ]
        ),
    )
    assert found is not None
    assert (found.hardware, found.seconds, len(found.errors)) == ("a GPU", 10.0, 3)


def test_welchs_test_agrees_with_the_one_on_the_errors_themselves() -> None:
    draw = np.random.default_rng(0)
    for _ in range(5):
        one, other = draw.normal(1, 0.1, 10).tolist(), draw.normal(1.1, 0.4, 40).tolist()
        expected = stats.ttest_ind(one, other, equal_var=False).pvalue
        assert p_value(Summary.of(one), Summary.of(other)) == pytest.approx(expected, rel=1e-9)


def test_a_single_published_run_is_tested_with_the_measured_deviation() -> None:
    measured = [0.40, 0.44, 0.38, 0.42, 0.41]
    expected = stats.ttest_ind(measured, [0.36], equal_var=True).pvalue
    assert p_value(Summary.of(measured), Summary(0.36, None, 1)) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("measured", "published", "expected"),
    [
        (Summary(0.93, 0.05, 40), Summary(1.06, 0.37, 40), "better"),
        (Summary(1.00, 0.20, 40), Summary(1.06, 0.37, 40), "compatible"),
        (Summary(1.50, 0.20, 40), Summary(1.06, 0.37, 40), "worse"),
        (Summary(0.30, None, 1), Summary(0.36, None, 1), "untested"),
        (Summary(0.30, 0.0, 3), Summary(0.36, None, 1), "better"),
        (Summary(0.36, 0.0, 3), Summary(0.36, None, 1), "compatible"),
        (Summary(0.35, 0.0, 3), Summary(0.36, None, 1), "compatible"),  # one row of 10,000
        (Summary(0.35, 0.0, 2), Summary(0.36, 0.0, 2), "compatible"),
        (Summary(0.30, 0.0, 3), Summary(0.36, 0.0, 3), "better"),
    ],
)
def test_a_verdict_is_a_difference_that_chance_would_hardly_make(
    measured: Summary, published: Summary, expected: str
) -> None:
    assert verdict(measured, published) == expected


@pytest.mark.parametrize("runs", [2, 3, 10])
def test_seeds_that_tie_are_told_apart_by_rounding_at_most(runs: int) -> None:
    """Errors come in steps of 0.01: true means that differ by less give ties, and no tie makes a difference certain."""
    tied, one_step = Summary.of([0.35] * runs), Summary.of([0.36] * runs)
    for other in (one_step, Summary(0.36, None, 1)):
        p = p_value(tied, other)
        assert p is not None
        assert 0 < p < 1
        assert p_value(other, tied) == p
        assert p_value(Summary(0.35, 0.001, runs), other) == p, "a deviation that cannot be seen"
    assert p_value(tied, tied) == 1


def test_one_run_has_no_interval() -> None:
    assert Summary.of([1.0]).interval() is None


def test_a_published_deviation_of_nobody_knows_how_many_runs_is_not_tested_with() -> None:
    published, measured = Summary.of_published(Published(1.06, 0.37)), Summary(0.93, 0.05, 10)
    assert published.interval() is None
    assert p_value(measured, published) == p_value(measured, Summary(1.06, None, 1))
    assert verdict(published, published) == "untested"


def test_the_autoencoder_is_compared_with_the_baseline_as_measured() -> None:
    cell = CELL["appendix/rung3/100"]
    lines = records("table1/baseline/100", [20.0, 21.0, 22.0])
    attached = [record(cell, seed, error, attached=3) for seed, error in enumerate([20.5, 21.0, 21.9])]
    ledger = Ledger.of([*lines, *attached])
    against = reference(cell, ledger, CELL)
    assert against == Summary(21.0, 1.0, 3)
    judgement = judge(reading(cell, ledger), against)
    assert judgement is not None
    assert judgement.verdict == "compatible"
    assert reading(CELL["appendix/rung4/100"], ledger) is None
    shown = "**21.13 ± 0.71**, compatible<br>against `table1/baseline/100` |"
    assert f"| Decoder on rung 3 (250 units) | {shown}" in results_page(ledger)


def test_a_study_chooses_only_when_all_of_its_settings_were_tried() -> None:
    settings = [setting for setting in STUDIES if setting.study == "study/gamma/100"]
    tried = [
        {
            "recipe": {"costs": setting.recipe.costs, "validation": 10_000},
            "seed": 0,
            "validation_error": 1 + abs(setting.recipe.costs[0] - 2),
            "members": 1,
            "seconds": 1.0,
            "hardware": "a GPU",
        }
        for setting in settings
    ]
    assert chosen(settings, Ledger.of(tried[:-1])) is None
    choice = chosen(settings, Ledger.of(tried))
    assert choice is not None
    assert choice.name == "study/gamma/100/2"
    assert chosen(settings, Ledger.of([*tried, {**tried[0], "seed": 1}])) is None, "not on the same held-out rows"
    ten = [{**each, "seed": seed} for each in tried for seed in range(10)]
    more = [{**ten[0], "seed": seed, "validation_error": 0.0} for seed in range(10, 100)]
    assert chosen(settings, Ledger.of([*ten, *more])) == choice, "by the seeds that all of them have"
    asks_for_more = [*settings[:-1], replace(settings[-1], seeds=11)]
    assert chosen(asks_for_more, Ledger.of([*ten, *more])) is None, "one lacks seeds that it asks for"
    assert "| **2** (chosen) | 1.000 ± 0.000 |" in results_page(Ledger.of(ten))
    assert "| **2** (best so far) | 1.000 |" in results_page(Ledger.of(tried)), "one seed of ten"


@pytest.mark.parametrize(
    ("seeds", "told"),
    [(range(10), "10"), (range(12), "12"), (range(2), "2 of 10"), ((1, 4), "2 of 10: 1, 4")],
    ids=["all", "more", "the first", "others"],
)
def test_seeds_are_named_where_they_are_not_the_first(seeds: Sequence[int], told: str) -> None:
    ledger = Ledger.of(record(CELL["table1/gamma/1000"], seed, 1.5) for seed in seeds)
    assert line_of(results_page(ledger), "table1/gamma/1000")[4] == told


def test_pictures_have_the_same_bytes_every_time(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for folder in (tmp_path / "one", tmp_path / "other"):
        for each in [*records("table1/full/100", [0.9, 1.0, 2.2]), *records("table1/gamma/100", [3.0, 5.0])]:
            append(folder / "records.jsonl", each)
        assert reproduce(Reproduce(render=True, results=folder)) == 0
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert names == ["README.md", "curve.svg", "records.jsonl", "table1.svg", "table4.svg"]
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "other" / name).read_bytes()
    assert len((tmp_path / "one" / "table1.svg").read_bytes()) < 100_000


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_figures_along_an_axis_stand_apart(table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = list[Any]()
    figure = pytest.importorskip("matplotlib.figure").Figure
    monkeypatch.setattr(figure, "savefig", lambda self, *_, **__: (self.draw_without_rendering(), figures.append(self)))
    draw({"table.svg": table}, Ledger.read(RESULTS), tmp_path)
    for axes in figures[0].axes:
        low, high = axes.get_xlim()
        ticks = zip(axes.get_xticks(), axes.get_xticklabels(), strict=True)
        boxes = [label.get_window_extent() for value, label in ticks if low <= value <= high]
        assert len(boxes) >= 2
        assert all(left.x1 < right.x0 for left, right in pairwise(boxes)), axes.get_title()


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_long_titles_of_rows_leave_room_for_the_seeds_and_the_legend_is_whole(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = list[Any]()
    figure = pytest.importorskip("matplotlib.figure").Figure
    monkeypatch.setattr(figure, "savefig", lambda self, *_, **__: (self.draw_without_rendering(), figures.append(self)))
    draw({"table.svg": table}, Ledger.read(RESULTS), tmp_path)
    widths = [axes.get_window_extent().width / figures[0].dpi for axes in figures[0].axes]
    assert min(widths) > 1.8  # inches
    assert figures[0].legends[0].get_window_extent().x0 >= 0


def test_where_the_paper_has_no_figure_nothing_is_said_to_be_its_own(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for each in [*records("table1/gamma/100", [3.0, 5.0]), *records("appendix/rung1/100", [17.0, 18.0], attached=1)]:
        append(tmp_path / "records.jsonl", each)
    assert reproduce(Reproduce(render=True, results=tmp_path)) == 0
    assert "paper: mean ± deviation" in (tmp_path / "table1.svg").read_text()
    assert "paper" not in (tmp_path / "appendix.svg").read_text()
    assert "![Errors of the seeds](appendix.svg)" in (tmp_path / "README.md").read_text()


def test_the_curve_joins_times_without_warm_up_and_shows_both(tmp_path: Path) -> None:
    """Of the schedule that ran first they include a compiler's, so that it seems to take longer than the next."""
    axes = pytest.importorskip("matplotlib.axes").Axes
    joined = list[tuple[Any, ...]]()
    short, long, old = ({"recipe": {"epochs": epochs}} for epochs in (5, 10, 20))
    cell = CELL["curve/5"]
    ledger = Ledger.of(
        [
            record(cell, 0, 3.0, seconds=40.0, seconds_per_epoch=0.4, **short),
            record(cell, 0, 2.0, seconds=8.0, seconds_per_epoch=0.4, **long),
            record(cell, 0, 1.5, seconds=8.0, hardware="an older GPU", **old),
        ]
    )
    with pytest.MonkeyPatch.context() as patch:
        plot = axes.plot
        patch.setattr(axes, "plot", lambda self, *data, **style: joined.append(data) or plot(self, *data, **style))
        draw(pictures(ledger), ledger, tmp_path)
    assert joined == [([0.5, 1.0], [3.0, 2.0], "o-"), ([], [], "o-")]
    picture = (tmp_path / "curve.svg").read_text()
    assert "hollow: without warm-up" in picture
    assert "a GPU, fleets of 4" in picture


def test_a_page_that_cannot_be_written_whole_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = f"{TITLE}, some time ago"
    (tmp_path / "README.md").write_text(old)

    def full_disk(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        reproduce(Reproduce(render=True, results=tmp_path))
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("README.md", old)]


def test_a_page_of_something_else_is_not_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "README.md").write_text("# A package\n")
    assert main(["reproduce", "--render", "--results", str(tmp_path)]) == 2
    assert "is not a page of results, and would be lost" in capsys.readouterr().err
    assert (tmp_path / "README.md").read_text() == "# A package\n"


def test_without_matplotlib_the_tables_are_rendered_and_a_line_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for each in records("table1/full/100", [0.9, 1.0]):
        append(tmp_path / "records.jsonl", each)
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    real = builtins.__import__

    def without_matplotlib(name: str, *others: Any, **more: Any) -> Any:
        if name.partition(".")[0] == "matplotlib":
            raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")
        return real(name, *others, **more)

    monkeypatch.setattr(builtins, "__import__", without_matplotlib)
    assert reproduce(Reproduce(render=True, results=tmp_path)) == 0
    assert "tikas[plots]" in capsys.readouterr().err
    assert (tmp_path / "README.md").read_text().startswith("# The paper, measured")


def test_the_list_names_every_cell_with_what_is_measured_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    append(tmp_path / "records.jsonl", record(CELL["table1/full/1000"], 0, 0.9))
    assert reproduce(Reproduce(list=True, results=tmp_path)) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert {"table1/full/100", "text/full/50", "curve/5", "rivals/100/svm", "study/gamma/100/0.5"} <= set(lines)
    assert " ".join(lines["table1/full/1000"].split()[1:]) == "1 of 10 measured 0.90 paper 0.84 ± 0.08"
    assert "missing" in lines["table1/full/100"]


@pytest.mark.parametrize("names", [(), ("all",)], ids=["without names", "all"])
def test_the_list_is_of_the_epochs_and_seeds_that_are_asked_for(
    names: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cell = CELL["table1/full/1000"]
    append(tmp_path / "paper.jsonl", record(cell, 0, 0.9))
    whole = record(cell, 0, 14.6)
    append(tmp_path / "smoke.jsonl", {**whole, "recipe": {**whole["recipe"], "epochs": 3}})
    assert reproduce(Reproduce(names, list=True, epochs=3, seeds=2, results=tmp_path)) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert " ".join(lines[cell.name].split()[1:]) == "1 of 2 measured 14.60 paper 0.84 ± 0.08"


def test_a_command_runs_what_its_names_ask_for_and_goes_on_where_it_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = Cell("table1/quick/50", Recipe(data="digits", labels=50, network=(16,), epochs=1), Published(5.0), seeds=2)
    monkeypatch.setattr("tikas.experiments.tasks.TASKS", (quick, *RIVALS, *STUDIES))
    monkeypatch.setattr("tikas.experiments.tasks.CELLS", (quick,))
    for _ in range(2):
        assert reproduce(Reproduce(("table1",), results=tmp_path, quiet=True, device="cpu")) == 0
    said = capsys.readouterr().out
    assert "2 members measured" in said
    assert "0 members measured, 2 there already" in said
    assert reproduce(Reproduce(("all",), results=tmp_path, epochs=2, seeds=1, quiet=True, device="cpu")) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"paper.jsonl", "smoke.jsonl"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "--list shows every name"),
        ({"names": ("all",), "seeds": 0}, "seeds=0"),
        ({"names": ("all",), "most": 0}, "most=0"),
    ],
)
def test_a_command_that_asks_for_nothing_sensible_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Reproduce(**arguments)


def test_an_unknown_name_is_answered_with_those_that_are_close(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="did you mean table1/full/100"):
        reproduce(Reproduce(("table1/ful/100",), results=tmp_path))


def test_the_command_line_has_it_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "--list", "--results", str(tmp_path)]) == 0
    assert "table1/full/100" in capsys.readouterr().out
    assert main(["reproduce", "table1/ful/100", "--results", str(tmp_path)]) == 2
    assert "did you mean table1/full/100" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stop:
        main(["reproduce"])
    assert stop.value.code == 2
    assert "--list shows every name" in capsys.readouterr().err
