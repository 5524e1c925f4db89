"""Reproducing: missing members and no others, a record at once, interruptions, damage, no test row in a study."""

import json
import os
import platform
import subprocess
import warnings
from contextlib import nullcontext
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from sklearn.semi_supervised import SelfTrainingClassifier
from sklearn.svm import SVC

from tikas.cli import main
from tikas.data.splits import split
from tikas.experiments import records, rivals
from tikas.experiments.cells import Cell
from tikas.experiments.ledger import Ledger, recipe_key
from tikas.experiments.preparing import rows_for
from tikas.experiments.protocol import Setting, TrainingRows, choose, training_rows, try_settings
from tikas.experiments.readings import chosen, reading
from tikas.experiments.records import DamagedRecordWarning, append, hardware, read, revision
from tikas.experiments.reproduce import UNFINISHED, reproduce
from tikas.experiments.rivals import METHODS, RIVALS, Rival, measure_rival
from tikas.experiments.rows import Rows, load_rows
from tikas.experiments.run import splits_of
from tikas.experiments.tasks import TASKS, Task, families, key_of, shortened
from tikas.training import groups, keeping, loop
from tikas.training.fit import Progress
from tikas.training.recipe import DIGITS, Recipe

QUICK = replace(DIGITS, network=(16,), epochs=2)
CELL = Cell("table0/quick/50", QUICK, seeds=3)
SETTING = Setting("study/quick/50/2", replace(QUICK, validation=300), seeds=2)
DIGIT_ROWS = load_rows("digits")
PROVENANCE = {"members": 1, "seconds": 1.0, "hardware": "a CPU"}


def digits(_: Task) -> Rows:
    return DIGIT_ROWS


def seeds_of(path: Path) -> list[int]:
    return [record["seed"] for record in read(path)]


def test_every_missing_member_leaves_one_record(tmp_path: Path) -> None:
    out = tmp_path / "paper.jsonl"
    outcome = reproduce([CELL], Ledger(), out, digits)
    assert (outcome.measured, outcome.finished_before, outcome.failures) == (3, 0, ())
    records = read(out)
    assert [record["seed"] for record in records] == [0, 1, 2]
    for record in records:
        assert Recipe.from_json(json.dumps(record["recipe"])) == QUICK
        assert record["cell"] == CELL.name
        assert record["members"] == 3
        assert {"test_error", "test_error_labeled_statistics", "costs", "seconds", "hardware", "versions"} <= set(
            record
        )
        assert {"revision", "seconds_per_epoch"} <= set(record)


def test_a_finished_member_is_never_run_again(tmp_path: Path) -> None:
    out = tmp_path / "paper.jsonl"
    reproduce([CELL], Ledger(), out, digits, seeds=1)
    outcome = reproduce([CELL], Ledger.read(tmp_path), out, digits)
    assert (outcome.measured, outcome.finished_before) == (2, 1)
    assert seeds_of(out) == [0, 1, 2]
    assert reproduce([CELL], Ledger.read(tmp_path), out, digits).measured == 0


def test_the_ledger_that_is_given_knows_what_was_measured(tmp_path: Path) -> None:
    """A page that is rendered after measuring is made of it."""
    ledger, out = Ledger(), tmp_path / "paper.jsonl"
    reproduce([CELL], ledger, out, digits)
    found = reading(CELL, ledger)
    assert found is not None
    assert found == reading(CELL, Ledger.read(out))


def test_cells_with_the_same_recipe_share_their_members(tmp_path: Path) -> None:
    out = tmp_path / "paper.jsonl"
    outcome = reproduce([CELL, replace(CELL, name="table9/same/50")], Ledger(), out, digits)
    assert (outcome.measured, outcome.finished_before) == (3, 0)


def test_a_member_that_fails_is_not_tried_again_for_another_cell_of_its_recipe(tmp_path: Path) -> None:
    wild = replace(CELL, recipe=replace(QUICK, learning_rate=1e30), seeds=1)
    between, same = replace(CELL, recipe=replace(QUICK, epochs=1), seeds=1), replace(wild, name="table9/same/50")
    outcome = reproduce([wild, between, same], Ledger(), tmp_path / "paper.jsonl", digits)
    assert [name for name, _ in outcome.failures] == [f"{wild.name}, seed 0"]
    assert (outcome.measured, outcome.finished_before) == (1, 0)


def test_missing_seeds_train_in_fleets_of_the_most_that_is_allowed(tmp_path: Path) -> None:
    out, lines = tmp_path / "paper.jsonl", list[str]()
    reproduce([CELL], Ledger(), out, digits, most=2, tell=lines.append)
    assert [record["members"] for record in read(out)] == [2, 2, 1]
    assert [line.split(":")[0] for line in lines] == ["table0/quick/50, 2 seeds", "table0/quick/50, seed 2"]


def test_a_member_learns_the_same_alone_and_after_an_interruption(tmp_path: Path) -> None:
    reproduce([CELL], Ledger(), tmp_path / "whole.jsonl", digits)
    reproduce([CELL], Ledger(), tmp_path / "parts.jsonl", digits, most=1)
    whole, parts = (read(tmp_path / name) for name in ("whole.jsonl", "parts.jsonl"))
    for one, other in zip(whole, parts, strict=True):
        assert one["test_error"] == pytest.approx(other["test_error"], abs=0.4)  # two rows of 500


@pytest.mark.parametrize("pressed", [2, 3], ids=["at the end of the first fleet", "in the middle of the second"])
def test_ctrl_c_leaves_what_was_finished_and_nothing_half_trained(tmp_path: Path, pressed: int) -> None:
    out = tmp_path / "paper.jsonl"
    epochs = []

    def interrupt(progress: Progress) -> None:
        epochs.extend(progress.members)
        if progress.members and len(epochs) == pressed:
            raise KeyboardInterrupt

    outcome = reproduce([CELL], Ledger(), out, digits, most=1, watch=lambda _: nullcontext(interrupt))
    assert outcome.interrupted
    assert seeds_of(out) == [0]
    assert reproduce([CELL], Ledger.read(out), out, digits).measured == 2
    assert seeds_of(out) == [0, 1, 2]


def test_a_record_is_on_the_disk_before_what_was_kept_of_its_member_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, events, sync, discard = tmp_path / "paper.jsonl", list[tuple[str, int]](), os.fsync, keeping.Folder.discard

    def watched_sync(descriptor: int) -> None:
        sync(descriptor)
        if os.path.samestat(os.fstat(descriptor), out.stat()):
            events.append(("written", len(read(out))))

    def watched_discard(folder: keeping.Folder, name: str) -> None:
        events.append(("deleted", len(read(out))))
        discard(folder, name)

    monkeypatch.setattr(os, "fsync", watched_sync)
    monkeypatch.setattr(keeping.Folder, "discard", watched_discard)
    reproduce([CELL], Ledger(), out, digits, seeds=2)
    assert events == [("written", 1), ("deleted", 1), ("written", 2), ("deleted", 2)]


def test_records_may_go_to_a_device() -> None:
    append("/dev/null", {"seed": 0})


def test_a_cell_that_fails_does_not_keep_the_next_from_running(tmp_path: Path) -> None:
    diverging = replace(CELL, name="table0/diverging/50", recipe=replace(QUICK, learning_rate=1e30))
    outcome = reproduce([diverging, CELL], Ledger(), tmp_path / "paper.jsonl", digits, seeds=1)
    assert outcome.measured == 1
    ((name, error),) = outcome.failures
    assert name == f"{diverging.name}, seed 0"
    assert "finite" in str(error)


def test_an_error_does_not_keep_the_memory_of_its_fleet_from_the_next(tmp_path: Path) -> None:
    def load(_: Task) -> Rows:
        raise OSError("no such rows")

    outcome = reproduce([CELL], Ledger(), tmp_path / "paper.jsonl", load)
    ((name, error),) = outcome.failures
    assert name == CELL.name
    assert error.__traceback__ is None


def test_a_task_that_fails_is_not_tried_again_with_its_other_seeds(tmp_path: Path) -> None:
    asked = list[Task]()

    def load(task: Task) -> Rows:
        asked.append(task)
        raise OSError("no such rows")

    outcome = reproduce([CELL], Ledger(), tmp_path / "paper.jsonl", load, most=1)
    assert asked == [CELL]
    assert len(outcome.failures) == 1


def test_of_two_records_of_a_member_the_first_counts_by_the_name_of_the_file_then_by_line(tmp_path: Path) -> None:
    line = {"recipe": json.loads(QUICK.to_json()), "seed": 0, **PROVENANCE}
    for name, error in (("b.jsonl", 2.0), ("a.jsonl", 1.0), ("a.jsonl", 4.0)):
        append(tmp_path / "results" / name, {**line, "test_error": error})
    append(tmp_path / "0.jsonl", {**line, "test_error": 3.0})
    for places, expected in ((("results",), 1.0), (("results", "0.jsonl"), 1.0), (("0.jsonl", "results"), 3.0)):
        ledger = Ledger.read(*(tmp_path / place for place in places))
        assert ledger.members(key_of(CELL))[0]["test_error"] == expected


def test_records_of_exact_products_do_not_count_for_cells_whose_products_are_fast() -> None:
    line = {"recipe": json.loads(replace(Recipe(), precision="exact").to_json()), "seed": 0, "test_error": 1.0}
    ledger = Ledger.of([{**line, **PROVENANCE}])
    assert not ledger.members(recipe_key(Recipe()))
    assert list(ledger.members(recipe_key(Recipe(precision="exact")))) == [0]
    committed = Ledger.read(Path(__file__).parents[1] / "results")
    fast = committed.members(recipe_key(Recipe()))
    assert committed.members(recipe_key(Recipe(precision="exact")))
    assert not [record for record in fast.values() if record["recipe"].get("precision", "fast") != "fast"]


def test_two_files_merge_by_concatenation_and_a_member_counts_once(tmp_path: Path) -> None:
    for name, seeds in (("one", 2), ("other", 3)):
        reproduce([CELL], Ledger(), tmp_path / name, digits, seeds=seeds)
    merged = tmp_path / "merged.jsonl"
    merged.write_bytes((tmp_path / "one").read_bytes() + (tmp_path / "other").read_bytes())
    assert len(read(merged)) == 5
    assert sorted(Ledger.read(merged).members(key_of(CELL))) == [0, 1, 2]


def test_a_line_cut_short_is_told_and_passed_over_and_the_next_record_stands_on_its_own_line(tmp_path: Path) -> None:
    out = tmp_path / "paper.jsonl"
    reproduce([CELL], Ledger(), out, digits, seeds=2)
    out.write_bytes(out.read_bytes()[:-40])
    with pytest.warns(DamagedRecordWarning, match="line 2 is no whole record"):
        ledger = Ledger.read(tmp_path)
    assert ledger.missing(key_of(CELL), range(2)) == [1]
    append(out, {"recipe": json.loads(QUICK.to_json()), "seed": 7, "test_error": 1.0, **PROVENANCE})
    *_, last, nothing = out.read_bytes().split(b"\n")
    assert (json.loads(last)["seed"], nothing) == (7, b"")
    with pytest.warns(DamagedRecordWarning):
        assert sorted(Ledger.read(tmp_path).members(key_of(CELL))) == [0, 7]


@pytest.mark.parametrize("damage", [b"\xff\xfe", b"[1, 2]", b"null", b'{"seed"', "ä".encode()[:1]])
def test_no_damage_to_a_line_is_fatal(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "records.jsonl"
    path.write_bytes(b'{"seed": 1}\n' + damage + b'\n{"seed": 2}\n')
    with pytest.warns(DamagedRecordWarning, match="line 2"):
        assert seeds_of(path) == [1, 2]


def test_records_written_before_a_field_of_the_recipe_existed_still_count() -> None:
    values = json.loads(Recipe().to_json())
    del values["preprocess"]
    ledger = Ledger.of([{"recipe": values, "seed": 4, "name": "another", "test_error": 1.0, **PROVENANCE}])
    assert list(ledger.members(recipe_key(Recipe()))) == [4]


def test_records_about_something_else_are_left_out() -> None:
    others = [
        {"benchmark": "fleet", "members": 1, "ms": 0.5},
        {"benchmark": "epochs", "recipe": {"epochs": 5}, "seconds": 1.0},
        {"recipe": "a name", "seed": 0, "test_error": 1.0},
        {"rival": "plain PyTorch", "seed": 0, "test_error": 1.0},
    ]
    ledger = Ledger.of(others)
    assert not ledger.members(recipe_key(Recipe()))


def test_a_record_counts_only_with_the_figure_that_its_recipe_is_judged_by() -> None:
    study, final = SETTING.recipe, QUICK
    for recipe, wrong, right in ((study, "test_error", "validation_error"), (final, "validation_error", "test_error")):
        line = {"recipe": json.loads(recipe.to_json()), "seed": 0, **PROVENANCE}
        with pytest.warns(DamagedRecordWarning, match=f"{right} is missing"):
            assert not Ledger.of([{**line, wrong: 1.0}]).members(recipe_key(recipe))
        assert Ledger.of([{**line, right: 1.0}]).members(recipe_key(recipe))


def test_a_decoder_on_another_rung_is_another_measurement() -> None:
    assert recipe_key(Recipe(), attached=1) != recipe_key(Recipe(), attached=2) != recipe_key(Recipe())


def test_the_committed_records_count_for_their_cells() -> None:
    ledger = Ledger.read(Path(__file__).parents[1] / "results")
    assert len(ledger.members(recipe_key(Recipe()))) >= 40
    assert len(ledger.members(recipe_key(Recipe(costs=(0.5,))))) >= 10


def test_an_autoencoder_is_trained_by_the_same_engine_and_filed_apart_from_the_ladder(tmp_path: Path) -> None:
    recipe = replace(QUICK, network=(16, 8), costs=(100, 0), epochs=10)
    cells = [Cell("appendix/rung2/50", recipe, seeds=2, attached=2), Cell("table0/bottom/50", recipe, seeds=1)]
    out = tmp_path / "paper.jsonl"
    assert reproduce(cells, Ledger(), out, digits).failures == ()
    first, second, ladder = read(out)
    assert (first["attached"], second["attached"], "attached" in ladder) == (2, 2, False)
    assert first["costs"]["denoising"][0] < 0.065  # the mean digit would leave 0.073
    assert first["costs"]["denoising"][1:] == [0, 0, 0]
    assert first["test_error"] < 60
    assert sorted(Ledger.read(out).members(key_of(cells[1]))) == [0]


@pytest.mark.parametrize("preprocess", ["none", "whiten"])
def test_convolutional_cells_get_images_and_whitening_is_fitted_on_training_images(
    tmp_path: Path, preprocess: Literal["none", "whiten"]
) -> None:
    recipe = replace(QUICK, network=("conv 4 3", "max 2", "conv 10 1", "global"), preprocess=preprocess, epochs=1)
    cell = Cell("table0/conv/50", recipe, seeds=2)
    outcome = reproduce([cell], Ledger(), tmp_path / "paper.jsonl", lambda _: rows_for(recipe))
    assert outcome.failures == ()
    assert outcome.measured == 2
    rows = rows_for(recipe)
    assert rows.train_x.shape == (1297, 1, 8, 8)
    if preprocess == "whiten":
        assert np.abs(rows.train_x.mean(0)).max() < 1e-3
        assert np.abs(rows.test_x.mean(0)).max() > 1e-2


def test_a_shortened_run_does_not_count_as_the_cell() -> None:
    short = shortened(CELL, epochs=1)
    assert key_of(short) != key_of(CELL)
    assert shortened(CELL, None) is CELL
    assert shortened(RIVALS[0], 1) is RIVALS[0]


def test_training_rows_have_no_place_for_test_rows() -> None:
    assert {field.name for field in fields(TrainingRows)} == {"x", "y", "classes", "preparation"}
    rows = training_rows(DIGIT_ROWS)
    assert len(rows.x) == len(DIGIT_ROWS.train_x)


def test_choosing_a_setting_touches_no_test_row(tmp_path: Path) -> None:
    absent = replace(DIGIT_ROWS, test_x=DIGIT_ROWS.test_x[:0], test_y=DIGIT_ROWS.test_y[:0])
    poisoned = replace(DIGIT_ROWS, test_x=np.full_like(DIGIT_ROWS.test_x, np.nan), test_y=DIGIT_ROWS.test_y + 1000)
    errors = []
    for number, rows in enumerate((DIGIT_ROWS, absent, poisoned)):
        out = tmp_path / f"{number}.jsonl"
        assert not reproduce([SETTING], Ledger(), out, lambda _, rows=rows: rows).failures  # type: ignore[misc]
        records = read(out)
        assert not any("test" in key for record in records for key in record)
        errors.append([record["validation_error"] for record in records])
    assert errors[0] == errors[1] == errors[2]


def test_a_setting_is_judged_on_rows_that_it_was_not_trained_on() -> None:
    rows = training_rows(DIGIT_ROWS)
    (chosen_rows,) = splits_of([SETTING.recipe], [0], rows.y)
    other = replace(rows, x=rows.x.copy())
    other.x[chosen_rows.validation] = 0.5
    trials = [try_settings([SETTING], [0], each) for each in (rows, other)]
    first, second = (trial.trained.ladders[0].state_dict() for trial in trials)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert trials[0].validation_errors[0] < 80 < trials[1].validation_errors[0]


def test_a_setting_is_judged_as_its_last_epoch_was() -> None:
    trial = try_settings([SETTING] * 2, [0, 1], training_rows(DIGIT_ROWS))
    for history, error in zip(trial.trained.histories, trial.validation_errors, strict=True):
        assert error == pytest.approx(history[-1]["validation_error"], abs=1e-9)


def test_a_trial_tells_of_its_epochs() -> None:
    told = list[Progress]()
    try_settings([SETTING], [0], training_rows(DIGIT_ROWS), on_epoch=told.append)
    assert [progress.epoch for progress in told if progress.members] == [1, 2]


def test_a_trial_trains_on_the_device_that_is_asked_for() -> None:
    with pytest.raises(ValueError, match="device='abacus': torch has no such device"):
        try_settings([SETTING], [0], training_rows(DIGIT_ROWS), device="abacus")


def grid(*costs: float) -> list[Task]:
    recipe = replace(QUICK, network=(16,), validation=300)
    return [Setting(f"study/costs/50/{cost}", replace(recipe, costs=cost), seeds=2) for cost in costs]


def test_settings_of_a_study_train_as_one_fleet_and_each_learns_what_it_would_alone(tmp_path: Path) -> None:
    together, alone, lines = tmp_path / "together.jsonl", tmp_path / "alone.jsonl", list[str]()
    tasks = [*grid(0.1, 10.0), *grid(0)]  # the last has another program: no denoiser
    assert reproduce(tasks, Ledger(), together, digits, tell=lines.append).measured == 6
    assert [record["members"] for record in read(together)] == [4, 4, 4, 4, 2, 2]
    assert [line.split(":")[0] for line in lines] == [f"{task.name}, 2 seeds" for task in tasks]
    for task in tasks:
        reproduce([task], Ledger(), alone, digits, most=1)
    for one, other in zip(read(together), read(alone), strict=True):
        assert (one["cell"], one["recipe"], one["seed"]) == (other["cell"], other["recipe"], other["seed"])
        assert one["costs"]["total"] == pytest.approx(other["costs"]["total"], rel=1e-4)
        assert one["validation_error"] == pytest.approx(other["validation_error"], abs=0.67)  # two rows of 300


def test_settings_of_a_study_may_differ_in_their_labels(tmp_path: Path) -> None:
    recipe = replace(QUICK, validation=300)
    tasks = [Setting(f"study/labels/{n}", replace(recipe, labels=n), seeds=1) for n in (50, 500)]
    reproduce(tasks, Ledger(), tmp_path / "together.jsonl", digits)
    for task in tasks:
        reproduce([task], Ledger(), tmp_path / "alone.jsonl", digits)
    together, alone = (read(tmp_path / f"{name}.jsonl") for name in ("together", "alone"))
    assert [record["members"] for record in together] == [2, 2]
    for one, other in zip(together, alone, strict=True):
        assert one["costs"]["supervised"] == pytest.approx(other["costs"]["supervised"], rel=1e-4)


def test_cells_that_share_a_program_and_no_fleet_go_on_one_after_another(tmp_path: Path) -> None:
    """Whether a number of labels is all of them is known when the rows are."""
    cells = [replace(CELL, name=f"table0/quick/{n}", recipe=replace(QUICK, labels=n), seeds=1) for n in (50, 1297)]
    lines = list[str]()
    outcome = reproduce(cells, Ledger(), tmp_path / "paper.jsonl", digits, tell=lines.append)
    assert (outcome.measured, outcome.failures) == (2, ())
    assert "one after another" in lines[0]


def test_a_fleet_that_is_parted_does_not_keep_the_next_from_running(tmp_path: Path) -> None:
    cells = [replace(CELL, name=f"table0/quick/{n}", recipe=replace(QUICK, labels=n), seeds=2) for n in (50, 1297)]
    out = tmp_path / "paper.jsonl"
    assert reproduce(cells, Ledger(), out, digits, most=3).measured == 4
    assert [record["members"] for record in read(out)] == [2, 2, 1, 1]


def test_neighbouring_cells_of_one_program_train_as_one_fleet(tmp_path: Path) -> None:
    together, alone = tmp_path / "together.jsonl", tmp_path / "alone.jsonl"
    cells = [
        replace(CELL, name=f"table0/quick/{n}", recipe=replace(QUICK, labels=n), seeds=2) for n in (50, 100, "all")
    ]
    assert reproduce(cells, Ledger(), together, digits).measured == 6
    assert [record["members"] for record in read(together)] == [4, 4, 4, 4, 2, 2]
    for cell in cells:
        reproduce([cell], Ledger(), alone, digits, most=1)
    for one, other in zip(read(together), read(alone), strict=True):
        assert (one["cell"], one["recipe"], one["seed"]) == (other["cell"], other["recipe"], other["seed"])
        assert one["costs"]["total"] == pytest.approx(other["costs"]["total"], rel=1e-4)
        for error in ("test_error", "test_error_labeled_statistics"):
            assert one[error] == pytest.approx(other[error], abs=0.4)  # two rows of 500


def test_a_study_that_was_interrupted_goes_on_with_the_members_that_it_lacks(tmp_path: Path) -> None:
    out, tasks = tmp_path / "paper.jsonl", grid(0.1, 1.0, 10.0)
    reproduce([tasks[1]], Ledger(), out, digits, seeds=1)
    outcome = reproduce(tasks, Ledger.read(out), out, digits, most=3)
    assert (outcome.measured, outcome.finished_before) == (5, 1)
    assert [record["members"] for record in read(out)] == [1, 3, 3, 3, 2, 2]
    assert len({(record["cell"], record["seed"]) for record in read(out)}) == 6


def test_settings_that_a_shorter_schedule_makes_the_same_are_trained_once(tmp_path: Path) -> None:
    lengths = [replace(SETTING, name=f"study/epochs/50/{n}", recipe=replace(SETTING.recipe, epochs=n)) for n in (5, 9)]
    tasks = [shortened(setting, epochs=1) for setting in lengths]
    assert reproduce(tasks, Ledger(), tmp_path / "smoke.jsonl", digits).measured == 2


def test_a_setting_that_diverges_does_not_take_the_others_of_its_fleet_along(tmp_path: Path) -> None:
    calm, wild = grid(0.1, 1.0)
    assert isinstance(wild, Setting)
    wild = replace(wild, recipe=replace(wild.recipe, learning_rate=1e30))
    lines = list[str]()
    outcome = reproduce([wild, calm], Ledger(), tmp_path / "paper.jsonl", digits, tell=lines.append)
    assert [name for name, _ in outcome.failures] == [f"{wild.name}, 2 seeds"]
    assert [record["cell"] for record in read(tmp_path / "paper.jsonl")] == [calm.name] * 2
    assert [line.partition(":")[0] for line in lines] == [f"{calm.name}, 2 seeds"]


def test_a_seed_that_diverges_does_not_take_the_others_of_its_cell_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither those that train with it nor those that come later, and what they had learnt goes on."""
    train_epoch, starts = loop._train_epoch, list[tuple[int, int]]()

    def diverging(fleet: Any, job: loop.Job, epoch: int) -> Any:
        starts.append((len(job.seeds), epoch))
        lines, _ = train_epoch(fleet, job, epoch)
        return lines, {job.seeds.index(1): "No longer finite."} if epoch == 2 and 1 in job.seeds else {}

    monkeypatch.setattr(loop, "_train_epoch", diverging)
    monkeypatch.setattr(keeping, "SECONDS_BETWEEN", 0.0)
    cell, out = replace(CELL, recipe=replace(QUICK, epochs=3), seeds=5), tmp_path / "paper.jsonl"
    outcome = reproduce([cell], Ledger(), out, digits, most=3)
    assert [name for name, _ in outcome.failures] == [f"{cell.name}, seed 1"]
    assert [record["seed"] for record in read(out)] == [0, 2, 3, 4]
    assert starts == [(3, 1), (3, 2), (2, 3), (2, 1), (2, 2), (2, 3)]
    assert not (tmp_path / UNFINISHED).exists()


def test_each_of_several_that_diverge_is_told_of_by_itself(tmp_path: Path) -> None:
    wild = [
        replace(SETTING, name=f"study/rate/50/{rate:g}", recipe=replace(SETTING.recipe, learning_rate=rate), seeds=1)
        for rate in (1e30, 1e31)
    ]
    outcome = reproduce(wild, Ledger(), tmp_path / "paper.jsonl", digits)
    assert [name for name, _ in outcome.failures] == [f"{setting.name}, seed 0" for setting in wild]
    for setting, (_, error) in zip(wild, outcome.failures, strict=True):
        assert f"below {setting.recipe.learning_rate:g} " in str(error)


def test_what_cannot_be_written_down_is_not_measured_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tikas.experiments.reproduce.append", full)
    cells = [CELL, replace(CELL, name="table0/other/50", recipe=replace(QUICK, epochs=2))]
    outcome = reproduce(cells, Ledger(), tmp_path / "paper.jsonl", digits, seeds=1)
    ((name, error),) = outcome.failures
    assert name == str(tmp_path / "paper.jsonl")
    assert "No space left on device" in str(error)
    assert outcome.measured == 0


def test_seconds_of_a_fleet_that_was_parted_and_interrupted_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = loop.train

    def interrupted_second(job: loop.Job, *rest: Any) -> Any:
        if 2 in job.seeds:
            rest[2].set()  # as Ctrl-C does
        return real(job, *rest)

    monkeypatch.setattr(groups, "train", interrupted_second)
    monkeypatch.setattr(groups, "_groups", lambda *given: [list(given[1][:2]), list(given[1][2:])])
    out = tmp_path / "paper.jsonl"
    assert reproduce([replace(CELL, seeds=4)], Ledger(), out, digits).interrupted
    first, second = read(out)
    assert (first["continued_after_epochs"], second["continued_after_epochs"]) == ([], [])
    assert "seconds_per_epoch" not in first


def test_autoencoders_of_several_weights_train_as_one_fleet_and_each_learns_what_it_would_alone(tmp_path: Path) -> None:
    together, alone = tmp_path / "together.jsonl", tmp_path / "alone.jsonl"
    recipe = replace(QUICK, network=(16, 8), validation=300)
    tasks = [
        Setting(f"study/weight/50/{cost}", replace(recipe, costs=(cost, 0)), seeds=2, attached=2) for cost in (1, 1000)
    ]
    assert reproduce(tasks, Ledger(), together, digits).measured == 4
    assert [record["members"] for record in read(together)] == [4, 4, 4, 4]
    for task in tasks:
        reproduce([task], Ledger(), alone, digits, most=1)
    for one, other in zip(read(together), read(alone), strict=True):
        assert (one["cell"], one["recipe"], one["seed"]) == (other["cell"], other["recipe"], other["seed"])
        assert one["costs"]["total"] == pytest.approx(other["costs"]["total"], rel=1e-4)
        assert one["costs"]["denoising"] == pytest.approx(other["costs"]["denoising"], rel=1e-4)
        assert one["validation_error"] == pytest.approx(other["validation_error"], abs=0.67)  # two rows of 300
    light, _, heavy, _ = read(together)
    assert light["costs"]["denoising"][0] > 1.02 * heavy["costs"]["denoising"][0], "the weights were told to members"


def test_an_autoencoder_without_a_weight_or_on_another_rung_is_another_program() -> None:
    recipes = [replace(SETTING.recipe, network=(16, 8), costs=(cost, 0)) for cost in (0, 1, 1)]
    tasks = [replace(SETTING, attached=rung, recipe=recipe) for rung, recipe in zip((1, 1, 2), recipes, strict=True)]
    assert [len(family) for family in families(tasks)] == [1, 1, 1]
    with pytest.raises(ValueError, match="cannot train as one program"):
        try_settings(tasks[:2], [0, 0], training_rows(DIGIT_ROWS))


def test_members_that_were_finished_before_an_interruption_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory may part a fleet in two; here Ctrl-C comes while the second part trains."""
    monkeypatch.setattr("tikas.training.groups.free_bytes", lambda _: 1)
    lines = list[int]()

    def interrupt(progress: Progress) -> None:
        lines.extend(line["epoch"] for line in progress.members)
        if len(lines) == 3:
            raise KeyboardInterrupt

    out = tmp_path / "paper.jsonl"
    assert reproduce([CELL], Ledger(), out, digits, watch=lambda _: nullcontext(interrupt)).interrupted
    assert seeds_of(out) == [0]


def test_a_setting_without_held_out_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="validation is 0"):
        Setting("study/quick/50/2", QUICK)


def test_the_lowest_mean_validation_error_is_chosen() -> None:
    a, b, c = (replace(SETTING, name=f"study/quick/50/{name}") for name in "abc")
    assert choose({a: [3.0, 1.0], b: [1.9, 1.9], c: [0.5, 9.0]}) == b


def test_nothing_is_chosen_among_cells_which_have_test_errors() -> None:
    ledger = Ledger.of([{"recipe": json.loads(QUICK.to_json()), "seed": 0, "test_error": 1.0, **PROVENANCE}])
    assert reading(CELL, ledger) is not None
    for choice in (lambda: choose({CELL: [1.0]}), lambda: chosen([CELL], ledger)):  # type: ignore[dict-item, list-item]
        with pytest.raises(TypeError, match="which hold out training rows"):
            choice()


@pytest.mark.parametrize("method", METHODS)
def test_every_rival_learns_the_digits_of_the_ladders_own_split(method: str) -> None:
    settings = next(rival.settings for rival in RIVALS if rival.method == method)
    if method == "mlp":
        settings = {**settings, "hidden_layer_sizes": [32]}
    rival = Rival(f"rivals/50/{method}", 50, settings, data="digits")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        record = measure_rival(rival, 0, DIGIT_ROWS)
    assert 2 < record["test_error"] < 25
    assert record["seconds"] > 0
    assert list(Ledger.of([record]).members(key_of(rival))) == [0]


@pytest.mark.parametrize(("rows", "expected"), [({}, 1297), ({"rows": 80}, 80)], ids=["all", "some"])
def test_a_rival_is_shown_all_rows_or_some_with_all_labels(
    monkeypatch: pytest.MonkeyPatch, rows: dict[str, int], expected: int
) -> None:
    seen, fit = list[tuple[int, int]](), SelfTrainingClassifier.fit

    def watched(model: SelfTrainingClassifier, x: np.ndarray, y: np.ndarray) -> SelfTrainingClassifier:
        seen.append((len(x), int((y >= 0).sum())))
        return fit(model, x, y)

    monkeypatch.setattr(SelfTrainingClassifier, "fit", watched)
    rival = Rival("rivals/50/self-training-logistic", 50, {"max_iter": 100, **rows}, data="digits")
    measure_rival(rival, 0, DIGIT_ROWS)
    assert seen == [(expected, 50)]


def test_a_rival_is_shown_the_labels_of_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, fit = list[tuple[np.ndarray, np.ndarray]](), SVC.fit

    def watched(model: SVC, x: np.ndarray, y: np.ndarray) -> SVC:
        seen.append((x, y))
        return fit(model, x, y)

    monkeypatch.setattr(SVC, "fit", watched)
    record = measure_rival(Rival("rivals/50/svm", 50, {"C": 10}, data="digits"), 3, DIGIT_ROWS)
    labeled = split(DIGIT_ROWS.train_y, 50, seed=3).labeled
    np.testing.assert_array_equal(seen[0][0], DIGIT_ROWS.train_x[labeled])
    np.testing.assert_array_equal(seen[0][1], DIGIT_ROWS.train_y[labeled])
    assert record["converged"]


def test_other_seeds_show_a_rival_other_rows_beside_its_labels() -> None:
    labeled = np.array([7, 3, 90])
    one, again, other = (rivals._shown(100, labeled, 20, seed) for seed in (1, 1, 2))
    for shown in (one, other):
        assert len(np.unique(shown)) == 20
        assert np.isin(labeled, shown).all()
    np.testing.assert_array_equal(one, again)
    assert not np.array_equal(one, other)


def test_a_rival_that_did_not_converge_says_so() -> None:
    rival = Rival("rivals/50/mlp", 50, {"hidden_layer_sizes": [4], "max_iter": 1}, data="digits")
    assert not measure_rival(rival, 0, DIGIT_ROWS)["converged"]


@pytest.mark.parametrize("rival", RIVALS, ids=lambda rival: rival.name)
def test_a_rival_is_made_with_its_settings_and_its_seed(rival: Rival) -> None:
    settings = {name: value for name, value in rival.settings.items() if name != "rows"}
    made = METHODS[rival.method].make(3, settings).get_params()
    given = {name.rpartition("__")[2]: made[name] for name in sorted(made, key=lambda name: name.count("__"))}
    assert settings.items() <= given.items()
    if rival.method in ("svm", "self-training-svm", "mlp"):
        assert given["random_state"] == 3
    if rival.method == "self-training-svm":
        assert given["ensemble"] is False, "one SVM, on all that is labelled"


def test_every_rival_is_a_family_by_itself() -> None:
    assert [len(family) for family in families(RIVALS)] == [1] * len(RIVALS)


def test_rivals_are_measured_once_for_each_seed(tmp_path: Path) -> None:
    rival = Rival("rivals/50/svm", 50, {"C": 10}, data="digits", seeds=2)
    out = tmp_path / "rivals.jsonl"
    assert reproduce([rival], Ledger(), out, digits).measured == 2
    assert reproduce([rival], Ledger.read(out), out, digits).measured == 0
    other = replace(rival, settings={"C": 1})
    assert reproduce([other], Ledger.read(out), out, digits, seeds=1).measured == 1


def test_a_revision_says_whether_files_that_git_knows_have_changes_beside_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*words: str) -> str:
        command = ["git", "-c", "user.name=someone", "-c", "user.email=someone@example.org", *words]
        return subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout.strip()

    module, rival, results = (tmp_path / name for name in ("src/records.py", "benchmarks/eager.py", "results/a.jsonl"))
    for path in (module, rival, results):
        path.parent.mkdir()
    monkeypatch.delenv("TIKAS_REVISION", raising=False)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.setattr("tikas.experiments.records.__file__", str(module))
    assert revision() == "", "no repository"
    git("init")
    assert revision() == "", "no commit"
    for path in (module, rival, results):
        path.write_text("first")
    git("commit", "--allow-empty", "-m", "Begin something else")
    assert revision() == "", "installed inside a repository that is not its own"
    git("add", ".")
    git("commit", "-m", "Begin")
    head = git("rev-parse", "--short=12", "HEAD")
    assert revision() == head
    (tmp_path / "notes.txt").write_text("not known to git")
    assert revision() == head
    append(results, {"seed": 0})
    assert revision() == head, "what a measurement adds is not a change to what measured it"
    rival.write_text("second")
    assert revision() == f"{head}-dirty"
    monkeypatch.setenv("TIKAS_REVISION", "a copy")
    assert revision() == "a copy"


def test_hardware_that_others_keep_busy_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIKAS_SHARED", raising=False)
    alone = hardware("cpu")
    monkeypatch.setenv("TIKAS_SHARED", "1")
    assert hardware("cpu") == f"{alone}, shared"


@pytest.mark.parametrize(
    ("chip", "told"),
    [
        ("cpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD EPYC", "AMD EPYC (family 26, model 2)"),
        ("cpu family\t: 6\nmodel\t\t: 85\nmodel name\t: Xeon @ 2.80GHz", "Xeon @ 2.80GHz (family 6, model 85)"),
        ("cpu family\t: 25\nmodel\t\t: 1\nmodel name\t: AMD EPYC 7B13", "AMD EPYC 7B13"),
        ("model name\t: Cortex: A", "Cortex: A"),
        ("processor\t: 0", platform.machine()),
    ],
    ids=["cut", "clock", "whole", "no family", "no name"],
)
def test_a_chip_whose_number_is_cut_out_of_its_name_is_told_by_its_family(
    chip: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TIKAS_SHARED", raising=False)
    monkeypatch.setattr(records, "CHIPS", tmp_path / "cpuinfo")
    (tmp_path / "cpuinfo").write_text(f"{chip}\n\nmodel name\t: another")
    assert hardware("cpu") == f"{told}, {torch.get_num_threads()} threads"


@pytest.mark.parametrize(
    "task", [CELL, SETTING, Rival("rivals/50/svm", 50, {"C": 10}, data="digits")], ids=lambda task: task.name
)
def test_a_record_has_the_revision_that_its_run_began_with(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changed_meanwhile(_: Task) -> Rows:
        monkeypatch.setenv("TIKAS_REVISION", "later")
        return DIGIT_ROWS

    monkeypatch.setenv("TIKAS_REVISION", "begun with")
    reproduce([task], Ledger(), tmp_path / "paper.jsonl", changed_meanwhile, seeds=1)
    assert [record["revision"] for record in read(tmp_path / "paper.jsonl")] == ["begun with"]


# The command.


def test_a_list_of_names_measures_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "table2/fc", "--list", "--results", str(tmp_path)]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert " ".join(line.split()) == "table2/fc/100 0 of 10 missing paper 0.99 ± 0.15"
    assert not list(tmp_path.iterdir())


def test_records_that_would_have_no_place_are_found_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("in the way")
    out = tmp_path / "file" / "paper.jsonl"
    assert main(["reproduce", "table1", "--results", str(tmp_path), "--out", str(out)]) == 1
    assert f"--out {out}: its folder cannot be made" in capsys.readouterr().err


def test_what_fails_for_one_cause_is_told_once_with_every_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(tmp_path / "none")
    assert main(["reproduce", "table1/gamma", "--results", str(tmp_path), "--data-dir", folder, "--quiet"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"tikas: table1/gamma/100, table1/gamma/1000, table1/gamma/all: {folder} is not a folder")


def test_a_page_has_the_records_that_went_elsewhere_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cell = next(task for task in TASKS if task.name == "curve/5")
    out = tmp_path / "elsewhere.jsonl"
    record = {"recipe": json.loads(key_of(cell)[1].to_json()), "seed": 0, "test_error": 3.25, **PROVENANCE}
    append(out, record)
    folder = tmp_path / "results"
    folder.mkdir()
    assert main(["reproduce", "--render", "--results", str(folder), "--out", str(out)]) == 0
    assert "3.25" in (folder / "README.md").read_text()
    assert main(["reproduce", "--render", "--results", str(tmp_path / "none")]) == 2
    assert "none is no folder" in capsys.readouterr().err
