"""Records: what is written and read, which records count, and where they come from."""

import json
import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tikas.paper import records as module
from tikas.paper.experiments import EXPERIMENTS, Experiment
from tikas.paper.records import Records, append_record, read_records, record_key, revision
from tikas.training.recipe import Recipe

RESULTS = Path(__file__).parents[2] / "results"
EXPERIMENT = next(each for each in EXPERIMENTS if each.name == "table1/baseline/1000")


# Files


def test_records_are_read_as_they_were_appended(tmp_path: Path) -> None:
    path = tmp_path / "new" / "records.jsonl"
    for seed in range(3):
        append_record(path, {"seed": seed, "experiment": "Γ"})
    assert read_records(path) == [{"seed": seed, "experiment": "Γ"} for seed in range(3)]


@pytest.mark.parametrize("damage", [b'{"seed"', b"\xff\xfe", b"", "ä".encode()[:1]], ids=lambda damage: repr(damage))
def test_a_damaged_line_is_named_and_skipped(damage: bytes, tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_bytes(b'{"seed": 1}\n' + damage + b'\n{"seed": 2}\n')
    with pytest.warns(UserWarning, match=re.escape(f"{path}, line 2 ")):
        assert read_records(path) == [{"seed": 1}, {"seed": 2}]


def test_a_record_appended_after_a_truncated_line_is_on_a_line_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_bytes(b'{"seed": 1}\n{"seed": 2, "test_er')
    append_record(path, {"seed": 3})
    with pytest.warns(UserWarning, match="line 2 "):
        assert read_records(path) == [{"seed": 1}, {"seed": 3}]


def test_the_first_record_of_a_member_counts_in_the_order_of_files_and_lines(tmp_path: Path, make_record) -> None:
    for name, error in (("results/b.jsonl", 2.0), ("results/a.jsonl", 1.0), ("results/a.jsonl", 4.0), ("0.jsonl", 3.0)):
        append_record(tmp_path / name, make_record(EXPERIMENT, 0, error))
    for names, expected in ((["results"], 1.0), (["results", "0.jsonl"], 1.0), (["0.jsonl", "results"], 3.0)):
        records = Records.read(*(tmp_path / name for name in names), tmp_path / "absent.jsonl")
        assert records.measurement(EXPERIMENT.key).errors == {0: expected}


# Which records count


@pytest.mark.parametrize(
    "record",
    [
        {"benchmark": "ensemble", "members": 1, "ms": 0.5},
        {"benchmark": "epochs", "recipe": {"epochs": 5}, "seconds": 1.0},
        {"what": "a kernel", "seconds": 1.0},
    ],
)
def test_records_of_benchmarks_are_ignored(record: dict[str, Any]) -> None:
    assert Records([record])._members == {}


def test_settings_missing_in_a_record_have_their_default(make_record) -> None:
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
    assert (found.hardware, found.members_on, found.sizes) == ("a GPU", {"a GPU": 3, "a CPU": 1}, {2, 4})
    assert (found.seconds, found.seconds_per_epoch) == (15.0, pytest.approx(0.175))
    assert found.summary.runs == 4


@pytest.mark.parametrize("field", ["experiment", "validation", "seconds_per_epoch", "test_error_labeled_statistics"])
def test_records_without_a_field_of_later_versions_count(field: str, make_record) -> None:
    record = {name: value for name, value in make_record(EXPERIMENT).items() if name != field}
    found = Records([record]).measurement(EXPERIMENT.key)
    assert (found.errors, found.seconds) == ({0: 5.5}, 10.0)
    assert found.seconds_per_epoch == (None if field == "seconds_per_epoch" else 0.05)
    assert (found.labeled is None) == (field == "test_error_labeled_statistics")


def test_errors_with_statistics_of_the_labeled_rows_are_summarized(make_record) -> None:
    both = [make_record(EXPERIMENT, 0, 5.0), make_record(EXPERIMENT, 1, 6.0)]
    assert Records(both).measurement(EXPERIMENT.key).labeled.mean == pytest.approx(5.6)


def test_all_records_of_the_repository_are_read_without_a_warning() -> None:
    records = Records.read(RESULTS)
    assert len(records.members(Experiment("", 100, Recipe()).key)) == 40
    assert len(records.members(Experiment("", 100, Recipe(precision="exact")).key)) == 40
    for experiment in EXPERIMENTS:
        assert set(records.members(experiment.key)) >= set(range(experiment.seeds)), experiment.name


# Where a record comes from


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
