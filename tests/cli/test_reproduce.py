"""`tikas reproduce`: lists experiments, measures them, renders tables, and its exit codes."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tikas.paper import experiments as data
from tikas.paper import reproduce as runner
from tikas.paper.experiments import EXPERIMENTS, Experiment, Summary
from tikas.paper.records import append_record, read_records
from tikas.paper.reproduce import Outcome
from tikas.training.recipe import SMALL

BY_NAME = {experiment.name: experiment for experiment in EXPERIMENTS}
QUICK = replace(SMALL, network=(16,), costs=(10.0, 1.0), epochs=1)
EXPERIMENT = Experiment("table1/quick/50", 50, QUICK, Summary(5.0, None, 1), data="digits", seeds=2)


def write_record(path: str, name: str, error: float, **recipe: Any) -> None:
    experiment = BY_NAME[name]
    record = {
        "experiment": name,
        "data": experiment.data,
        "labels": experiment.labels,
        "recipe": json.loads(replace(experiment.recipe, **recipe).to_json()),
        "seed": 0,
        "test_error": error,
        "members": 1,
        "seconds": 60.0,
        "seconds_per_epoch": 10.0,
        "hardware": "a GPU",
    }
    append_record(Path(path), record)


@pytest.fixture
def _one_experiment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the paper's experiments by a small one on the digits."""
    monkeypatch.setattr(data, "EXPERIMENTS", (EXPERIMENT,))


def listing(printed: str) -> dict[str, str]:
    lines = [line.split() for line in printed.splitlines()]
    return {name: " ".join(rest) for name, *rest in lines}


def test_the_list_shows_how_much_of_each_experiment_is_measured(run, capsys) -> None:
    write_record("results/a.jsonl", "table1/full/1000", 0.9)
    assert run("reproduce", "--list") == 0
    lines = listing(capsys.readouterr().out)
    assert list(lines) == [experiment.name for experiment in EXPERIMENTS]
    assert lines["table1/full/1000"] == "1 of 10 measured 0.90 paper 0.84 ± 0.08"
    assert lines["table2/fc/100"] == "0 of 10 missing paper 0.99 ± 0.15"
    assert lines["text/full-chosen/50"] == "0 of 40 missing"


@pytest.mark.parametrize(
    ("names", "lines"), [([], len(EXPERIMENTS)), (["all"], len(EXPERIMENTS)), (["table1/full"], 3)]
)
def test_the_list_is_of_the_given_names_epochs_and_seeds(names: list[str], lines: int, run, capsys) -> None:
    write_record("results/paper.jsonl", "table1/full/1000", 0.9)
    write_record("results/smoke.jsonl", "table1/full/1000", 14.6, epochs=3)
    assert run("reproduce", *names, "--list", "--epochs", "3", "--seeds", "2") == 0
    found = listing(capsys.readouterr().out)
    assert len(found) == lines
    assert found["table1/full/1000"] == "1 of 2 measured 14.60 paper 0.84 ± 0.08"
    assert sorted(path.name for path in Path("results").iterdir()) == ["paper.jsonl", "smoke.jsonl"]


@pytest.mark.usefixtures("_one_experiment")
def test_missing_members_are_measured_once(run, capsys) -> None:
    for names in (["table1"], ["all"]):
        assert run("reproduce", *names, "--quiet", "--device", "cpu") == 0
    printed = capsys.readouterr().out
    assert "2 members measured, 0 measured before, 0 failures; records in results/paper.jsonl" in printed
    assert "0 members measured, 2 measured before, 0 failures; records in results/paper.jsonl" in printed
    assert [record["seed"] for record in read_records(Path("results/paper.jsonl"))] == [0, 1]


@pytest.mark.usefixtures("_one_experiment")
def test_records_of_another_number_of_epochs_go_to_a_file_of_their_own(run) -> None:
    options = ["--epochs", "2", "--seeds", "1", "--first-seed", "4", "--quiet", "--device", "cpu"]
    assert run("reproduce", "table1", *options) == 0
    (record,) = read_records(Path("results/smoke.jsonl"))
    assert (record["seed"], record["recipe"]["epochs"]) == (4, 2)
    assert run("reproduce", "table1", *options, "--results", "other", "--output", "new/mine.jsonl") == 0
    assert len(read_records(Path("new/mine.jsonl"))) == 1
    assert not Path("other").exists()


def test_all_settings_are_passed_on(run, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    def reproduce(experiments: list[Experiment], _: object, output: Path, **settings: Any) -> Outcome:
        given.update(settings, names=[each.name for each in experiments], output=output)
        return Outcome()

    monkeypatch.setattr(runner, "reproduce", reproduce)
    options = "--seeds 3 --first-seed 7 --max-members 5 --data-dir data --device cpu --quiet"
    assert run("reproduce", "curve/5", "curve/10", *options.split()) == 0
    assert given == {
        "names": ["curve/5", "curve/10"],
        "output": Path("results/paper.jsonl"),
        "seeds": 3,
        "first_seed": 7,
        "max_members": 5,
        "data_dir": Path("data"),
        "device": "cpu",
        "quiet": True,
    }


@pytest.mark.parametrize(
    ("outcome", "code", "printed"),
    [
        (Outcome(measured=8, finished_before=2), 0, []),
        (Outcome(failures={"a": "x", "b": "y", "c": "x"}), 1, ["tikas: a, c: x", "tikas: b: y"]),
        (Outcome(interrupted=True), 130, ["interrupted"]),
        (Outcome(failures={"a": "x"}, interrupted=True), 130, ["tikas: a: x", "interrupted"]),
    ],
    ids=["success", "failures", "interrupted", "both"],
)
def test_failures_and_interruptions_are_printed_and_decide_the_exit_code(
    outcome: Outcome, code: int, printed: list[str], run, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "reproduce", lambda *_, **__: outcome)
    assert run("reproduce", "all") == code
    captured = capsys.readouterr()
    counts = (outcome.measured, outcome.finished_before, len(outcome.failures))
    assert captured.out.startswith("{} members measured, {} measured before, {} failures".format(*counts))
    lines = captured.err.splitlines()
    assert len(lines) == len(printed)
    assert all(expected in line for expected, line in zip(printed, lines, strict=True))


def test_one_reason_for_several_failures_is_printed_once(run, capsys) -> None:
    assert run("reproduce", "table1/gamma", "--data-dir", "absent", "--quiet") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("tikas: table1/gamma/100, table1/gamma/1000, table1/gamma/all: mnist is incomplete: ")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "--list"),
        (["all", "--seeds", "0"], "--seeds"),
        (["all", "--first-seed", "-1"], "--first-seed"),
        (["all", "--epochs", "0"], "--epochs"),
        (["all", "--max-members", "0"], "--max-members"),
        (["all", "--device", "abacus"], "abacus"),
        (["table1/ful/100"], "table1/full/100"),
        (["--render", "--results", "absent"], "absent"),
    ],
)
def test_wrong_usage_exits_with_2_and_names_what_is_wrong(arguments: list[str], named: str, run, capsys) -> None:
    assert run("reproduce", *arguments) == 2
    assert named in capsys.readouterr().err.splitlines()[-1]


def test_output_that_cannot_be_written_is_reported_before_measuring(run, capsys) -> None:
    Path("file").write_text("in the way")
    assert run("reproduce", "table1", "--output", "file/paper.jsonl") == 1
    assert "--output file/paper.jsonl" in capsys.readouterr().err


def test_rendering_includes_the_records_of_output_and_prints_what_was_written(run, capsys) -> None:
    Path("results").mkdir()
    write_record("elsewhere.jsonl", "curve/5", 3.25)
    assert run("reproduce", "--render", "--output", "elsewhere.jsonl") == 0
    assert capsys.readouterr().out.split() == ["results/README.md", "results/curve.svg"]
    assert "3.25" in Path("results/README.md").read_text()


def test_without_matplotlib_the_tables_are_rendered_and_the_error_names_the_extra(
    run, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_record("results/paper.jsonl", "table1/full/1000", 3.25)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert run("reproduce", "--render") == 1
    assert "tikas[plots]" in capsys.readouterr().err
    assert "3.25" in Path("results/README.md").read_text()


@pytest.mark.filterwarnings("default")
def test_a_damaged_record_gives_a_warning_and_the_rest_is_listed(run, capsys) -> None:
    Path("results").mkdir()
    Path("results/x.jsonl").write_text('{"experiment": "table1/fu\n')
    write_record("results/x.jsonl", "table1/full/1000", 0.9)
    assert run("reproduce", "table1/full/1000", "--list") == 0
    captured = capsys.readouterr()
    assert captured.err.startswith("tikas: warning: results/x.jsonl, line 1 ")
    assert listing(captured.out)["table1/full/1000"].startswith("1 of 10 measured 0.90")
