"""Tables and figures made from records: they are up to date, show what was measured, and judge it by a proper test."""

import re
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import pytest
import typer
from scipy import stats
from typer.testing import CliRunner

from tikas.paper.experiments import CURVE, EXPERIMENTS, TABLES, Summary
from tikas.paper.figures import Timing
from tikas.paper.records import Records, append_record
from tikas.paper.render import (
    SUMMARIES,
    Verdict,
    _timings,
    all_tables,
    compare,
    fill,
    interval,
    main,
    markdown_table,
    p_value,
    render,
)

ROOT = Path(__file__).parents[2]
BY_NAME = {experiment.name: experiment for experiment in EXPERIMENTS}
MARKER = re.compile(r"<!-- table: (\S+) -->")


def cells(table: str, first: str) -> list[str]:
    """Return the cells of the row that begins with this one."""
    (line,) = [line for line in table.splitlines() if line.startswith(f"| {first} |")]
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def details(name: str, records: list[dict[str, Any]]) -> list[str]:
    """Return the row of an experiment in the table of details."""
    return cells(all_tables(Records(records))[f"{name.split('/')[0]}-details"], f"`{name}`")


# The committed tables


def test_the_committed_tables_are_those_of_the_committed_records() -> None:
    tables = all_tables(Records.read(ROOT / "results"))
    for page in ("results/README.md", "README.md"):
        text = (ROOT / page).read_text()
        assert set(MARKER.findall(text)) & set(tables), page
        assert text == fill(text, tables), f"{page} is out of date: run `make tables` and commit what it writes"


def test_the_results_page_has_every_table_and_its_figures_exist() -> None:
    text = (ROOT / "results" / "README.md").read_text()
    assert set(MARKER.findall(text)) == set(all_tables(Records())) - set(SUMMARIES)
    figures = re.findall(r"\]\((\w+\.svg)\)", text)
    assert sorted(figures) == sorted(["curve.svg", *(f"{table.name}.svg" for table in TABLES)])
    assert all((ROOT / "results" / figure).exists() for figure in figures)


def test_the_results_page_names_every_experiment_whose_settings_were_chosen_here() -> None:
    text = (ROOT / "results" / "README.md").read_text().partition("\n## ")[0]
    chosen = {each.name for table in TABLES[:-1] for each in table.experiments if each.published is None}
    assert len(chosen) == 6
    assert set(re.findall(r"`(\w+/[\w/-]+\d)`", text)) == chosen


# Cells and rows


def test_without_records_every_experiment_is_missing() -> None:
    tables = all_tables(Records())
    for table in TABLES:
        for experiment in table.experiments:
            row = cells(tables[f"{table.name}-details"], f"`{experiment.name}`")
            assert row[1:4] == ["missing", "", f"0 of {experiment.seeds}"]
    assert tables["table1"].count("missing<br>") == 12
    assert cells(tables["verdicts"], "with a figure in the paper") == ["30", "0", "0", "0", "0", "0"]
    assert cells(tables["mnist"], "Ladder, full, costs chosen here") == ["mnist", "50", "missing", "", ""]
    assert cells(tables["curve"], "5")[0] == "missing"
    assert cells(tables["table4-order"], "100") == ["g < g1 < g3 < g2 < g4", "missing"]


def test_an_experiment_shows_error_interval_seeds_verdict_seconds_and_hardware(make_record) -> None:
    errors = [0.9, 1.0, 1.1, 0.96]
    experiment = BY_NAME["table1/full/1000"]
    records = [make_record(experiment, seed, error) for seed, error in enumerate(errors)]
    low, high = stats.t.interval(0.95, 3, mean(errors), stdev(errors) / 2)
    p = stats.ttest_ind_from_stats(mean(errors), stdev(errors), 4, 0.84, 0.08, 10, equal_var=False).pvalue
    assert details(experiment.name, records) == [
        "0.84 ± 0.08",
        "0.990 ± 0.084",
        f"{low:.3f} to {high:.3f}",
        "4 of 10",
        f"{p:.3f}",
        "worse",
        "1.090 ± 0.084",
        "10.0",
        "a GPU",
    ]
    tables = all_tables(Records(records))
    assert cells(tables["table1"], "Ladder, full")[1] == "**0.99 ± 0.08**, worse<br>0.84 ± 0.08"
    assert cells(tables["verdicts"], "with a figure in the paper") == ["30", "1", "0", "0", "1", "0"]
    assert "| Ladder, full | mnist | 1000 | 0.99 ± 0.08 | 4 | 0.84 ± 0.08 |" in tables["mnist"]


def test_small_p_values_and_seconds_are_readable(make_record) -> None:
    records = [make_record(BY_NAME["table1/full/1000"], seed, 9 + seed / 100, seconds=0.5) for seed in range(3)]
    *_, p, verdict, _, seconds, _ = details("table1/full/1000", records)
    assert (p, verdict, seconds) == ("< 0.001", "worse", "0.12")


@pytest.mark.parametrize(
    ("seeds", "expected"),
    [(range(10), "10"), (range(12), "12"), (range(2), "2 of 10"), ((1, 4), "2 of 10: 1, 4")],
    ids=["all", "more", "the first", "others"],
)
def test_seeds_are_named_if_they_are_not_the_first(seeds: Any, expected: str, make_record) -> None:
    records = [make_record(BY_NAME["table1/gamma/1000"], seed, 1.5) for seed in seeds]
    assert details("table1/gamma/1000", records)[3] == expected


def test_an_interval_ends_at_0_and_100_percent(make_record) -> None:
    records = [make_record(BY_NAME["table1/full/1000"], seed, error) for seed, error in enumerate((1.0, 99.0))]
    assert details("table1/full/1000", records)[2] == "0.000 to 100.000"


def test_all_hardware_is_named_with_its_number_of_members(make_record) -> None:
    records = [make_record(BY_NAME["table1/full/1000"], seed, 1.0) for seed in range(9)]
    records.append(make_record(BY_NAME["table1/full/1000"], 9, 1.0, hardware="a CPU", seconds=9e9))
    assert details("table1/full/1000", records)[-2:] == ["10.0", "a GPU (9 of 10); a CPU (1 of 10)"]


def test_quoted_errors_are_marked_and_have_the_printed_digits() -> None:
    tables = all_tables(Records())
    assert "| *DGN* (quoted: Kingma et al. 2014) | *3.33 ± 0.14* | *2.40 ± 0.02* | *0.96* |" in tables["table1"]
    assert "| *16.86* | *5.73* | *1.5* |" in tables["table1"]
    assert "| *31.9* |  |" in tables["table3"]


def test_an_experiment_without_a_published_error_is_compared_with_another_one(make_record) -> None:
    baseline, attached = BY_NAME["table1/baseline/100"], BY_NAME["appendix/rung3/100"]
    records = [make_record(baseline, seed, error) for seed, error in enumerate((20.0, 21.0, 22.0))]
    records += [make_record(attached, seed, error) for seed, error in enumerate((20.5, 21.0, 21.9))]
    row = cells(all_tables(Records(records))["appendix"], "Decoder on rung 3 (250 units)")
    assert row[0] == "**21.13 ± 0.71**, compatible<br>against `table1/baseline/100`"
    assert compare(attached, Records(records[3:])).verdict is None


def test_denoising_functions_are_ordered_once_all_are_measured(make_record) -> None:
    means = {"g": 0.9, "g1": 1.0, "g2": 1.7, "g3": 1.3, "g4": 1.6}
    records = [make_record(BY_NAME[f"table4/{name}/1000"], 0, error) for name, error in means.items()]
    order = cells(all_tables(Records(records))["table4-order"], "1000")
    assert order == ["g < g1 < g3 < g2 < g4", "g < g1 < g3 < g4 < g2"]
    assert cells(all_tables(Records(records[:-1]))["table4-order"], "1000")[1] == "missing"


def test_columns_after_the_text_are_aligned_to_the_right() -> None:
    assert markdown_table(["a", "b"], [["x", "1"]]).splitlines() == ["| a | b |", "| --- | ---: |", "| x | 1 |"]


# Verdicts


def test_the_p_value_is_that_of_welchs_test_on_the_errors() -> None:
    random = np.random.default_rng(0)
    for _ in range(5):
        one, other = random.normal(1, 0.1, 10).tolist(), random.normal(1.1, 0.4, 40).tolist()
        expected = stats.ttest_ind(one, other, equal_var=False).pvalue
        assert p_value(Summary.of(one), Summary.of(other)) == pytest.approx(expected, rel=1e-9)


def test_a_single_run_is_compared_with_the_deviation_of_the_other_side() -> None:
    errors = [0.40, 0.44, 0.38, 0.42, 0.41]
    expected = stats.ttest_ind(errors, [0.36], equal_var=True).pvalue
    assert p_value(Summary.of(errors), Summary(0.36, None, 1)) == pytest.approx(expected, rel=1e-9)


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
def test_a_verdict_needs_a_difference_that_is_unlikely_by_chance(
    measured: Summary, published: Summary, expected: Verdict, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = replace(BY_NAME["table1/full/100"], published=published)
    monkeypatch.setattr(Records, "measurement", lambda *_: type("Measurement", (), {"summary": measured}))
    assert compare(experiment, Records()).verdict == expected


@pytest.mark.parametrize("runs", [2, 3, 10])
def test_equal_errors_of_all_seeds_count_as_equal_up_to_rounding(runs: int) -> None:
    tied = Summary.of([0.35] * runs)
    for other in (Summary.of([0.36] * runs), Summary(0.36, None, 1)):
        p = p_value(tied, other)
        assert 0 < p < 1
        assert p_value(other, tied) == p_value(Summary(0.35, 0.001, runs), other) == p
    assert p_value(tied, tied) == 1


def test_a_single_run_has_no_interval() -> None:
    assert interval(Summary.of([1.0])) is None


# Pages and figures


def test_only_named_tables_between_markers_are_replaced() -> None:
    page = "Text\n<!-- table: a -->\nold\n<!-- /table -->\n<!-- table: b -->\nkept\n<!-- /table -->\n"
    assert fill(page, {"a": "| new |"}) == page.replace("old", "| new |")


def test_rendering_writes_a_page_with_all_tables_if_there_is_none_and_fills_other_pages(
    tmp_path: Path, make_record
) -> None:
    append_record(tmp_path / "results" / "paper.jsonl", make_record(BY_NAME["table1/full/1000"], 0, 3.25))
    page = tmp_path / "README.md"
    page.write_text("Mine.\n<!-- table: mnist -->\n<!-- /table -->\n")
    app = typer.Typer()
    app.command()(main)
    assert CliRunner().invoke(app, ["--results", str(tmp_path / "results"), "--page", str(page)]).exit_code == 0
    assert "| Ladder, full | mnist | 1000 | 3.25 |" in page.read_text()
    made = (tmp_path / "results" / "README.md").read_text()
    assert MARKER.findall(made) == list(all_tables(Records()))
    assert "**3.25**, worse<br>0.84 ± 0.08" in made


def test_figures_of_measured_tables_are_drawn_with_the_same_bytes_every_time(tmp_path: Path, make_record) -> None:
    records = Records(
        [
            *(make_record(BY_NAME["table1/full/100"], seed, error) for seed, error in enumerate((0.9, 1.0, 2.2))),
            *(make_record(BY_NAME["appendix/rung1/100"], seed, error) for seed, error in enumerate((17.0, 18.0))),
        ]
    )
    folders = [tmp_path / "one", tmp_path / "other"]
    for folder in folders:
        folder.mkdir()
        names = [path.name for path in render(records, folder)]
        assert names == ["README.md", "table1.svg", "table4.svg", "appendix.svg", "curve.svg"]
    for name in names:
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes()
    assert "paper: mean" in (folders[0] / "table1.svg").read_text()
    assert "paper" not in (folders[0] / "appendix.svg").read_text()


def test_the_curve_has_seconds_with_and_without_warm_up_by_hardware(make_record) -> None:
    def schedule(epochs: int, error: float, **fields: Any) -> list[dict[str, Any]]:
        (experiment,) = (each for each in CURVE if each.recipe.epochs == epochs)
        return [make_record(experiment, seed, error, **fields) for seed in range(3)]

    records = Records(
        [
            *schedule(5, 3.0, seconds_per_epoch=0.4),
            *schedule(10, 2.0, seconds=8.0, seconds_per_epoch=0.4, members=2),
            *schedule(20, 1.5, seconds=8.0, seconds_per_epoch=0.2, hardware="an older GPU"),
            *schedule(50, 1.2, continued_after_epochs=[7]),
        ]
    )
    margin = 0.01 / 12**0.5 * stats.t.ppf(0.975, 2) / 3**0.5  # equal errors deviate by their rounding
    assert _timings(records) == {
        "a GPU, ensembles of 2, 4": [
            Timing("5 epochs", 3.0, pytest.approx(margin), 10.0, 0.5),
            Timing("10 epochs", 2.0, pytest.approx(margin), 4.0, 2.0),
        ],
        "an older GPU, ensembles of 4": [Timing("20 epochs", 1.5, pytest.approx(margin), 2.0, 1.0)],
    }
    table = all_tables(records)["curve"]
    assert cells(table, "5") == ["3.000 ± 0.000", "2.993 to 3.007", "3 of 10", "10.0", "0.5", "4", "a GPU"]
    assert cells(table, "50")[3:] == ["", "", "4", "a GPU"]
