"""Records: what is written and read, which records count, and where they come from."""

import json
import os
import platform
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tikas.paper import records as module
from tikas.paper.experiments import EXPERIMENTS, Experiment
from tikas.paper.records import (
    DamagedRecordWarning,
    Records,
    append_record,
    hardware,
    read_records,
    record_key,
    revision,
    versions,
)
from tikas.training.recipe import Recipe

RESULTS = Path(__file__).parents[2] / "results"
EXPERIMENT = next(each for each in EXPERIMENTS if each.name == "table1/baseline/1000")
ABSENT = object()


def without(record: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in names}


# Files


def test_records_are_read_as_they_were_appended(tmp_path: Path) -> None:
    path = tmp_path / "new" / "records.jsonl"
    for seed in range(3):
        append_record(path, {"seed": seed, "experiment": "Γ"})
    assert read_records(path) == [{"seed": seed, "experiment": "Γ"} for seed in range(3)]


@pytest.mark.parametrize(
    "damage", [b'{"seed"', b"\xff\xfe", b"[1, 2]", b"null", b"", "ä".encode()[:1]], ids=lambda damage: repr(damage)
)
def test_a_damaged_line_is_named_and_skipped(damage: bytes, tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_bytes(b'{"seed": 1}\n' + damage + b'\n{"seed": 2}\n')
    with pytest.warns(DamagedRecordWarning, match=re.escape(f"{path}, line 2 ")):
        assert read_records(path) == [{"seed": 1}, {"seed": 2}]


def test_a_record_appended_after_a_truncated_line_is_on_a_line_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_bytes(b'{"seed": 1}\n{"seed": 2, "test_er')
    append_record(path, {"seed": 3})
    with pytest.warns(DamagedRecordWarning, match="line 2 "):
        assert read_records(path) == [{"seed": 1}, {"seed": 3}]


def test_the_first_record_of_a_member_counts_in_the_order_of_files_and_lines(tmp_path: Path, make_record) -> None:
    for name, error in (("results/b.jsonl", 2.0), ("results/a.jsonl", 1.0), ("results/a.jsonl", 4.0), ("0.jsonl", 3.0)):
        append_record(tmp_path / name, make_record(EXPERIMENT, 0, error))
    for names, expected in ((["results"], 1.0), (["results", "0.jsonl"], 1.0), (["0.jsonl", "results"], 3.0)):
        records = Records.read(*(tmp_path / name for name in names), tmp_path / "absent.jsonl")
        assert records.measurement(EXPERIMENT.key).errors == {0: expected}


# Which records count


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("test_error", float("nan")),
        ("test_error", float("inf")),
        ("test_error", -7),
        ("test_error", 100.1),
        ("test_error", "5.5"),
        ("test_error", None),
        ("test_error", ABSENT),
        ("test_error_labeled_statistics", float("nan")),
        ("seed", -5),
        ("seed", None),
        ("seed", ABSENT),
        ("hardware", ABSENT),
        ("seconds", -1.0),
        ("seconds", ABSENT),
        ("seconds_per_epoch", None),
        ("members", -1),
        ("data", ABSENT),
        ("labels", ABSENT),
        ("labels", [100]),
        ("newfield", "recipe"),
        ("epochs", "recipe"),
    ],
)
def test_a_record_with_an_impossible_value_is_named_and_skipped(
    field: str, value: Any, tmp_path: Path, make_record
) -> None:
    damaged = make_record(EXPERIMENT, 1)
    if value == "recipe":
        damaged["recipe"][field] = 0
    elif value is ABSENT:
        del damaged[field]
    else:
        damaged[field] = value
    for record in (make_record(EXPERIMENT, 0), damaged, make_record(EXPERIMENT, 2)):
        append_record(tmp_path / "x.jsonl", record)
    named = "unhashable" if field == "labels" and value is not ABSENT else field
    with pytest.warns(DamagedRecordWarning, match=rf"x\.jsonl, line 2 .*{named}"):
        records = Records.read(tmp_path)
    assert list(records.members(EXPERIMENT.key)) == [0, 2]


def test_a_valid_record_after_a_damaged_one_counts(make_record) -> None:
    with pytest.warns(DamagedRecordWarning, match="test_error=-7"):
        records = Records([make_record(EXPERIMENT, error=-7), make_record(EXPERIMENT, error=4.0)])
    assert records.measurement(EXPERIMENT.key).errors == {0: 4.0}


@pytest.mark.parametrize("error", [0, 100])
def test_errors_of_0_and_100_percent_count(error: int, make_record) -> None:
    record = make_record(EXPERIMENT, error=error, test_error_labeled_statistics=error)
    assert Records([record]).measurement(EXPERIMENT.key).errors == {0: error}


@pytest.mark.parametrize(
    "record",
    [
        {"benchmark": "ensemble", "members": 1, "ms": 0.5},
        {"benchmark": "epochs", "recipe": {"epochs": 5}, "seconds": 1.0},
        {"recipe": "a name", "seed": 0, "test_error": 1.0},
        {"what": "a kernel", "seconds": 1.0},
    ],
)
def test_records_of_benchmarks_are_ignored(record: dict[str, Any]) -> None:
    assert Records([record])._members == {}


def test_a_recipe_of_which_only_the_differences_are_recorded_is_the_same(make_record) -> None:
    recipe = make_record(EXPERIMENT)["recipe"]
    record = make_record(EXPERIMENT, recipe={name: recipe[name] for name in ("costs", "noise")})
    assert record_key(record) == EXPERIMENT.key


@pytest.mark.parametrize(
    "change",
    [
        {"labels": 100},
        {"data": "fashion-mnist"},
        {"attached": 2},
        {"recipe": replace(EXPERIMENT.recipe, precision="exact")},
    ],
)
def test_records_of_another_measurement_do_not_count(change: dict[str, Any], make_record) -> None:
    other = replace(EXPERIMENT, **change)
    records = Records([make_record(other)])
    assert records.members(EXPERIMENT.key) == {}
    assert list(records.members(other.key)) == [0]


def test_a_record_counts_only_with_the_figure_of_its_experiment(make_record) -> None:
    held_out = replace(EXPERIMENT, validation=10_000)
    for experiment, wrong in ((EXPERIMENT, "validation_error"), (held_out, "test_error")):
        record = make_record(experiment)
        record[wrong] = record.pop(experiment.figure)
        with pytest.warns(DamagedRecordWarning, match=experiment.figure):
            assert Records([record]).members(experiment.key) == {}


def test_records_of_other_methods_are_found_by_their_settings_in_any_order() -> None:
    record = {"data": "mnist", "labels": 100, "method": {"name": "svm", "settings": {"C": 10, "gamma": 1}}}
    reordered = {**record, "method": {"settings": {"gamma": 1, "C": 10}, "name": "svm"}}
    other = {**record, "method": {"name": "svm", "settings": {"C": 1, "gamma": 1}}}
    assert record_key(record) == record_key(reordered) != record_key(other)


def test_members_are_in_the_order_of_their_seeds(make_record) -> None:
    assert list(Records([make_record(EXPERIMENT, seed) for seed in (3, 1, 2)]).members(EXPERIMENT.key)) == [1, 2, 3]


# Measurements


def test_an_experiment_without_records_has_no_measurement() -> None:
    assert Records().measurement(EXPERIMENT.key) is None


def test_seconds_are_those_of_uninterrupted_members_on_the_most_frequent_hardware(make_record) -> None:
    records = [
        make_record(EXPERIMENT, 0),
        make_record(EXPERIMENT, 1, members=2, seconds_per_epoch=0.6),
        make_record(EXPERIMENT, 2, continued_after_epochs=[7], seconds=9e9, seconds_per_epoch=9e9),
        make_record(EXPERIMENT, 3, hardware="a CPU", seconds=9e9, members=9),
    ]
    found = Records(records).measurement(EXPERIMENT.key)
    assert (found.hardware, found.elsewhere, found.sizes) == ("a GPU", {"a CPU": 1}, {2, 4})
    assert (found.seconds, found.seconds_per_epoch) == (15.0, pytest.approx(0.175))
    assert found.summary.runs == 4


@pytest.mark.parametrize(
    ("field", "seconds", "per_epoch"),
    [
        ("experiment", 10.0, 0.05),
        ("validation", 10.0, 0.05),
        ("members", 40.0, 0.2),
        ("seconds_per_epoch", 10.0, None),
        ("test_error_labeled_statistics", 10.0, 0.05),
    ],
)
def test_records_without_a_field_of_later_versions_count(
    field: str, seconds: float, per_epoch: float | None, make_record
) -> None:
    found = Records([without(make_record(EXPERIMENT), field)]).measurement(EXPERIMENT.key)
    assert (found.seconds, found.seconds_per_epoch) == (seconds, per_epoch)


def test_errors_with_statistics_of_the_labeled_rows_are_those_of_all_members_or_of_none(make_record) -> None:
    both = [make_record(EXPERIMENT, 0, 5.0), make_record(EXPERIMENT, 1, 6.0)]
    assert Records(both).measurement(EXPERIMENT.key).labeled.mean == pytest.approx(5.6)
    both[1].pop("test_error_labeled_statistics")
    found = Records(both).measurement(EXPERIMENT.key)
    assert (found.summary.runs, found.labeled) == (2, None)


def test_all_records_of_the_repository_are_read_without_a_warning() -> None:
    records = Records.read(RESULTS)
    assert len(records.members(Experiment("", 100, Recipe()).key)) == 40
    assert len(records.members(Experiment("", 100, Recipe(precision="exact")).key)) == 40
    for experiment in EXPERIMENTS:
        assert set(records.members(experiment.key)) >= set(range(experiment.seeds)), experiment.name


# Where a record comes from


def test_versions_name_what_a_figure_depends_on() -> None:
    assert versions()["torch"] == torch.__version__
    assert set(versions()) == {"tikas", "torch", "python"}


def test_hardware_names_the_threads_and_whether_other_programs_share_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIKAS_SHARED", raising=False)
    alone = hardware("cpu")
    assert alone.endswith(f", {torch.get_num_threads()} threads")
    monkeypatch.setenv("TIKAS_SHARED", "1")
    assert hardware("cpu") == f"{alone}, shared"


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        ("cpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD EPYC", "AMD EPYC (family 26, model 2)"),
        ("cpu family\t: 6\nmodel\t\t: 85\nmodel name\t: Xeon @ 2.80GHz", "Xeon @ 2.80GHz (family 6, model 85)"),
        ("cpu family\t: 25\nmodel\t\t: 1\nmodel name\t: AMD EPYC 7B13", "AMD EPYC 7B13"),
        ("model name\t: Cortex: A", "Cortex: A"),
        ("processor\t: 0", platform.machine()),
    ],
    ids=["cut", "clock rate", "with number", "without family", "without name"],
)
def test_a_processor_whose_name_lacks_its_number_is_named_with_its_family(
    info: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TIKAS_SHARED", raising=False)
    monkeypatch.setattr(module, "CPU_INFO", tmp_path / "cpuinfo")
    (tmp_path / "cpuinfo").write_text(f"{info}\n\nmodel name\t: of another core")
    assert hardware("cpu") == f"{expected}, {torch.get_num_threads()} threads"


def test_a_system_without_processor_information_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CPU_INFO", tmp_path / "absent")
    assert (platform.processor() or platform.machine()) in hardware("cpu")


def test_a_revision_is_marked_if_files_other_than_records_have_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*arguments: str) -> str:
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", *arguments]
        return subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout.strip()

    source, script, record = (tmp_path / name for name in ("src/records.py", "benchmarks/eager.py", "results/a.jsonl"))
    for path in (source, script, record):
        path.parent.mkdir()
    monkeypatch.delenv("TIKAS_REVISION", raising=False)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.setattr(module, "__file__", str(source))
    assert revision() == "", "outside a repository"
    git("init")
    for path in (source, script, record):
        path.write_text("first")
    git("commit", "--allow-empty", "-m", "Begin another project")
    assert revision() == "", "inside another project's repository"
    git("add", ".")
    git("commit", "-m", "Add tikas")
    head = git("rev-parse", "--short=12", "HEAD")
    (tmp_path / "notes.txt").write_text("not tracked")
    append_record(record, {"seed": 0})
    assert revision() == head
    script.write_text("second")
    assert revision() == f"{head}-dirty"
    monkeypatch.setenv("TIKAS_REVISION", "a copy")
    assert revision() == "a copy"


def test_a_record_is_on_the_disk_when_append_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    sync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: (sync(descriptor), synced.append(os.fstat(descriptor).st_size)))
    append_record(tmp_path / "a.jsonl", {"seed": 0})
    assert synced == [len(json.dumps({"seed": 0})) + 1]
