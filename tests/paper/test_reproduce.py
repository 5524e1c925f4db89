"""Measuring experiments: what is missing and nothing else, a record per member, interruptions, failures."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tikas.data.datasets import Dataset, load_dataset
from tikas.data.splits import split
from tikas.paper import reproduce as module
from tikas.paper.experiments import Experiment
from tikas.paper.records import Records, read_records
from tikas.paper.reproduce import UNFINISHED, Outcome, _load, reproduce
from tikas.training.callbacks import Progress
from tikas.training.checkpoint import Checkpointer
from tikas.training.recipe import SMALL, Recipe
from tikas.training.trainer import Trainer

QUICK = replace(SMALL, network=(16,), costs=(10.0, 1.0), epochs=2)
EXPERIMENT = Experiment("table0/quick/50", 50, QUICK, data="digits", seeds=3)
DIGITS = load_dataset("digits")
TWO_TEST_ROWS = 0.4 + 1e-9
"""Difference of errors that rounding may cause: two of 500 rows."""


@pytest.fixture
def output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file for records. Data sets are loaded anew, and the revision is not asked of git."""
    monkeypatch.setenv("TIKAS_REVISION", "a revision")
    _load.cache_clear()
    yield tmp_path / "paper.jsonl"
    _load.cache_clear()


def measure(output: Path, *experiments: Experiment, **settings: Any) -> Outcome:
    """Measure what has no record in a file."""
    return reproduce(experiments, Records.read(output), output, device="cpu", quiet=True, **settings)


def columns(output: Path, *names: str) -> list[tuple[Any, ...]]:
    return [tuple(record[name] for name in names) for record in read_records(output)]


def with_labels(labels: int | str, **changes: Any) -> Experiment:
    return replace(EXPERIMENT, name=f"table0/quick/{labels}", labels=labels, seeds=2, **changes)


def with_rate(rate: float, **changes: Any) -> Experiment:
    return replace(EXPERIMENT, name=f"table0/{rate}/50", recipe=replace(QUICK, learning_rate=rate), **changes)


def set_callback(callback: Callable[[Progress], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Call a function where the progress bar would be updated."""

    @contextmanager
    def progress_bar(**_: object) -> Iterator[Callable[[Progress], None]]:
        yield callback

    monkeypatch.setattr(module, "progress_bar", progress_bar)


def interrupt_after(epochs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Press Ctrl-C once, after so many epochs of all ensembles together."""
    left = [epochs]

    def callback(progress: Progress) -> None:
        left[0] -= bool(progress.members)
        if left[0] == 0:
            left[0] = -1
            raise KeyboardInterrupt

    set_callback(callback, monkeypatch)


# What is measured


def test_every_member_leaves_one_record(output: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = Records()
    outcome = reproduce([EXPERIMENT], records, output, device="cpu", quiet=True)
    assert (outcome.measured, outcome.finished_before, outcome.failures, outcome.interrupted) == (3, 0, {}, False)
    assert columns(output, "experiment", "data", "labels", "validation", "seed", "members", "revision") == [
        ("table0/quick/50", "digits", 50, 0, seed, 3, "a revision") for seed in range(3)
    ]
    (first, *_) = read_records(output)
    assert Recipe.from_json(json.dumps(first["recipe"])) == QUICK
    assert set(first["costs"]) == {"total", "supervised", "denoising"}
    assert first["seconds"] > 2 * first["seconds_per_epoch"] > 0
    assert first["hardware"].endswith("threads")
    assert first["versions"]["torch"] == torch.__version__
    assert first["attached"] is None
    assert "continued_after_epochs" not in first
    assert records.measurement(EXPERIMENT.key) == Records.read(output).measurement(EXPERIMENT.key)
    errors = records.measurement(EXPERIMENT.key).summary
    assert capsys.readouterr().out == f"table0/quick/50: test error {errors.text()} % (seeds: 3)\n"


def test_members_with_a_record_are_not_measured_again(output: Path) -> None:
    assert measure(output, EXPERIMENT, seeds=1).measured == 1
    outcome = measure(output, EXPERIMENT)
    assert (outcome.measured, outcome.finished_before) == (2, 1)
    assert columns(output, "seed") == [(0,), (1,), (2,)]
    assert measure(output, EXPERIMENT).measured == 0


def test_experiments_with_the_same_recipe_share_their_members(output: Path) -> None:
    outcome = measure(output, EXPERIMENT, replace(EXPERIMENT, name="table9/same/50"))
    assert (outcome.measured, outcome.finished_before) == (3, 0)


def test_seeds_are_counted_from_the_first_one_and_ensembles_are_limited(output: Path) -> None:
    measure(output, EXPERIMENT, seeds=3, first_seed=5, max_members=2)
    assert columns(output, "seed", "members") == [(5, 2), (6, 2), (7, 1)]


def test_errors_are_those_of_the_test_rows_with_both_kinds_of_statistics(output: Path) -> None:
    measure(output, EXPERIMENT, first_seed=4, seeds=1)
    train, test = (replace(each, rows=each.rows.reshape(len(each), -1)) for each in DIGITS)
    chosen = split(train.targets, 50, seed=4)
    (model,) = Trainer(QUICK, device="cpu").fit(train, [chosen], [4]).members
    expected = []
    for statistics in (chosen.unlabeled, chosen.labeled):
        model.calibrate(torch.from_numpy(train.rows[statistics]))
        predicted = model(torch.from_numpy(test.rows)).argmax(1).numpy()
        expected.append(100 * np.mean(predicted != test.targets))
    assert columns(output, "test_error", "test_error_labeled_statistics") == [tuple(expected)]


def test_held_out_rows_are_measured_instead_and_no_test_row_is_read(
    output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, test = DIGITS
    poisoned = Dataset(np.full_like(test.rows, np.nan), test.targets + 1000, classes=test.classes)
    monkeypatch.setattr(module, "load_dataset", lambda *_: (train, poisoned))
    held_out = replace(EXPERIMENT, validation=300)
    assert measure(output, held_out, seeds=1).failures == {}
    (record,) = read_records(output)
    assert not [name for name in record if "test" in name]

    rows = replace(train, rows=train.rows.reshape(len(train), -1))
    chosen = split(rows.targets, 50, validation=300)
    (model,) = Trainer(QUICK, device="cpu").fit(rows, [chosen], [0]).members
    predicted = model(torch.from_numpy(rows.rows[chosen.validation])).argmax(1).numpy()
    assert record["validation_error"] == 100 * np.mean(predicted != rows.targets[chosen.validation]) < 80


def test_whitening_is_fitted_on_the_training_images_alone(output: Path) -> None:
    train, test = _load("digits", "whiten", True, None, "cpu")
    assert (train.rows.shape, test.rows.shape) == ((1297, 1, 8, 8), (500, 1, 8, 8))
    assert np.abs(train.rows.mean(0)).max() < 1e-3 < 1e-2 < np.abs(test.rows.mean(0)).max()
    recipe = replace(QUICK, network=("conv 4 3", "max 2"), costs=(1.0,), preprocess="whiten", epochs=1)
    outcome = measure(output, replace(EXPERIMENT, recipe=recipe, seeds=2))
    assert (outcome.measured, outcome.failures) == (2, {})


# Ensembles


def assert_same_members(together: Path, alone: Path) -> None:
    """Check that members learned the same in both files, up to rounding."""
    for one, other in zip(read_records(together), read_records(alone), strict=True):
        assert (one["experiment"], one["seed"]) == (other["experiment"], other["seed"])
        assert one["costs"]["total"] == pytest.approx(other["costs"]["total"], rel=1e-4)
        assert one["costs"]["denoising"] == pytest.approx(other["costs"]["denoising"], rel=1e-4)
        for name in ("test_error", "test_error_labeled_statistics"):
            assert one[name] == pytest.approx(other[name], abs=TWO_TEST_ROWS)


def test_neighboring_experiments_train_in_one_ensemble_with_the_same_results_as_alone(output: Path) -> None:
    experiments = [with_labels(labels) for labels in (50, 100, "all")]
    assert measure(output, *experiments).measured == 6
    assert columns(output, "members") == [(4,)] * 4 + [(2,)] * 2
    alone = output.with_name("alone.jsonl")
    for experiment in experiments:
        measure(alone, experiment, max_members=1)
    assert_same_members(output, alone)


def test_autoencoders_train_in_an_ensemble_and_are_recorded_apart_from_ladders(output: Path) -> None:
    recipes = [replace(QUICK, network=(16, 8), costs=(cost, 0.0), epochs=10) for cost in (1.0, 100.0)]
    light, heavy = (
        replace(EXPERIMENT, name=f"appendix/cost{recipe.costs[0]:g}/50", recipe=recipe, seeds=2, attached=2)
        for recipe in recipes
    )
    ladder = replace(heavy, name="table0/ladder/50", attached=None, seeds=1)
    assert measure(output, light, heavy, ladder).measured == 5
    assert columns(output, "members") == [(4,)] * 4 + [(1,)]
    records = read_records(output)
    assert [record.get("attached") for record in records] == [2, 2, 2, 2, None]
    first, _, costly, *_ = records
    assert costly["costs"]["denoising"][0] < 0.065  # the mean of the digits would have 0.073
    assert first["costs"]["denoising"][0] > 1.02 * costly["costs"]["denoising"][0]
    assert costly["costs"]["denoising"][1:] == [0, 0, 0]
    assert costly["test_error"] < 60
    assert list(Records.read(output).members(ladder.key)) == [0]
    alone = output.with_name("alone.jsonl")
    for experiment in (light, heavy, ladder):
        measure(alone, experiment, max_members=1)
    assert_same_members(output, alone)


def test_the_progress_bar_is_titled_with_the_experiments_and_members(
    output: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experiments = [with_labels(labels) for labels in (50, 100, 200)]
    reproduce(experiments, Records(), output, device="cpu", max_members=5)
    lines = capsys.readouterr().err.splitlines()
    titles = ["table0/quick/50 and 2 more (members: 5): ", "table0/quick/200 (members: 1): "]
    assert len(lines) > 2  # messages and epochs of both
    assert all(line.startswith(tuple(titles)) for line in lines)
    assert [sum(line.startswith(title) for line in lines) > 0 for title in titles] == [True, True]


# Interruptions


def test_ctrl_c_keeps_finished_ensembles_and_the_same_call_measures_the_rest(
    output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_after(3, monkeypatch)  # in the second ensemble
    outcome = measure(output, EXPERIMENT, max_members=1)
    assert (outcome.interrupted, outcome.measured) == (True, 1)
    assert columns(output, "seed") == [(0,)]
    assert measure(output, EXPERIMENT).measured == 2


def test_ctrl_c_before_the_first_epoch_leaves_no_record(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: Progress) -> None:
        raise KeyboardInterrupt

    set_callback(interrupt, monkeypatch)
    assert measure(output, EXPERIMENT).interrupted
    assert not output.exists()


def test_a_resumed_member_has_the_same_result_and_its_record_says_when_it_was_resumed(
    output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = replace(EXPERIMENT, recipe=replace(QUICK, epochs=4))
    whole = output.with_name("whole.jsonl")
    measure(whole, experiment)
    monkeypatch.setattr(Checkpointer, "is_due", lambda *_, **__: True)
    interrupt_after(2, monkeypatch)
    assert measure(output, experiment).interrupted
    assert not output.exists()
    assert len(list(output.with_suffix(UNFINISHED).glob("*.0.safetensors"))) == 3
    assert measure(output, experiment).measured == 3
    names = ("seed", "test_error", "test_error_labeled_statistics", "costs")
    assert columns(output, *names) == columns(whole, *names)
    assert columns(output, "continued_after_epochs") == [([2],)] * 3
    assert not output.with_suffix(UNFINISHED).exists()


def test_a_snapshot_is_deleted_after_the_record_is_written(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Checkpointer, "is_due", lambda *_, **__: True)
    written = []
    delete = Checkpointer.delete
    monkeypatch.setattr(
        Checkpointer, "delete", lambda *arguments: (written.append(len(read_records(output))), delete(*arguments))
    )
    measure(output, EXPERIMENT)
    assert written == [1, 2, 3]


def test_members_that_were_finished_when_memory_divided_the_ensemble_are_kept(
    output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tikas.training.trainer._free_bytes", lambda _: 1)
    interrupt_after(5, monkeypatch)  # in the third group of one member, each of two epochs
    assert measure(output, EXPERIMENT).interrupted
    assert columns(output, "seed", "members", "continued_after_epochs") == [(0, 3, []), (1, 3, [])]


def test_seconds_of_an_epoch_are_those_of_all_groups_into_which_memory_divided_the_ensemble(
    output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tikas.training.trainer._free_bytes", lambda _: 1)
    histories = []
    fit = Trainer.fit

    def fit_and_keep(*arguments: Any) -> Any:
        result = fit(*arguments)
        histories.extend(result.histories)
        return result

    monkeypatch.setattr(Trainer, "fit", fit_and_keep)
    measure(output, EXPERIMENT)
    expected = sum(np.median([line["seconds"] for line in history]) for history in histories)
    assert columns(output, "seconds_per_epoch") == [(pytest.approx(expected),)] * 3


# Failures


def test_a_member_that_diverges_fails_alone(output: Path) -> None:
    wild, calm = with_rate(1e30, seeds=2), with_rate(0.01, seeds=2)
    outcome = measure(output, wild, calm)
    assert list(outcome.failures) == ["table0/1e+30/50, seed 0", "table0/1e+30/50, seed 1"]
    assert all("finite" in reason for reason in outcome.failures.values())
    assert columns(output, "experiment", "seed", "members", "continued_after_epochs") == [
        ("table0/0.01/50", 0, 4, []),
        ("table0/0.01/50", 1, 4, []),
    ]


def test_an_ensemble_that_fails_is_named_with_its_reason_and_the_next_one_is_measured(output: Path) -> None:
    calm = replace(EXPERIMENT, recipe=replace(QUICK, epochs=1), seeds=1)
    wild = with_rate(1e30, seeds=1)
    outcome = measure(output, wild, replace(wild, name="table9/same/50"), calm)
    assert list(outcome.failures) == ["table0/1e+30/50"]
    assert "below 1e+30" in outcome.failures["table0/1e+30/50"]
    assert (outcome.measured, outcome.finished_before) == (1, 0)


def test_missing_data_stop_only_their_experiments(output: Path) -> None:
    absent = replace(EXPERIMENT, name="table0/absent/50", data="mnist")
    outcome = measure(output, absent, replace(EXPERIMENT, seeds=1), data_dir=output.parent)
    assert list(outcome.failures) == ["table0/absent/50"]
    assert "mnist" in outcome.failures["table0/absent/50"]
    assert outcome.measured == 1


def test_a_record_has_the_revision_from_before_the_measurement(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: object) -> tuple[Dataset, Dataset]:
        monkeypatch.setenv("TIKAS_REVISION", "a later revision")
        return DIGITS

    monkeypatch.setattr(module, "load_dataset", load)
    measure(output, EXPERIMENT, seeds=1)
    assert columns(output, "revision") == [("a revision",)]
