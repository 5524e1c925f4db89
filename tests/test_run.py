"""Runs of a recipe: rows by name or by path, errors with both kinds of statistics, a record for every member."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import tikas
from pictures import save_digits
from tikas.data.preprocess import ScaleWarning
from tikas.data.sources import load
from tikas.data.splits import split
from tikas.experiments.preparing import rows_for
from tikas.experiments.protocol import Setting, training_rows, try_settings
from tikas.experiments.records import append, member_records, read
from tikas.experiments.rows import load_rows
from tikas.experiments.run import measure, run
from tikas.saving import write_model
from tikas.training import checkpoint
from tikas.training.checkpoint import NotAModelError
from tikas.training.fit import Progress, Trained
from tikas.training.recipe import DIGITS, Recipe

QUICK = replace(DIGITS, network=(16,), epochs=2)


def test_a_run_measures_every_seed_on_the_test_rows_with_both_kinds_of_statistics() -> None:
    rows = load_rows("digits")
    outcome = run(QUICK, [3, 4], rows)
    assert outcome.estimator.seeds_ == [3, 4]
    for seed, ladder, error, as_authors in zip(
        [3, 4], outcome.trained.ladders, outcome.test_errors, outcome.labeled_statistics_errors, strict=True
    ):
        x, y = torch.from_numpy(rows.test_x), torch.from_numpy(rows.test_y)
        assert error == pytest.approx(100 * float((ladder(x).argmax(-1) != y).float().mean()), abs=1e-4)
        labeled = split(rows.train_y, 50, seed=seed).labeled
        ladder.calibrate(torch.from_numpy(rows.train_x[labeled]))
        assert as_authors == pytest.approx(100 * float((ladder(x).argmax(-1) != y).float().mean()), abs=1e-4)


@pytest.mark.parametrize("network", [(16,), ("conv 4 3", "max 2")])
def test_a_model_of_whitened_images_predicts_raw_ones_after_it_was_saved(network: tuple, tmp_path: Path) -> None:
    recipe = replace(QUICK, network=network, preprocess="whiten")
    outcome = run(recipe, [0], rows_for(recipe))
    again = tikas.load(outcome.estimator.save(tmp_path / "model"))
    raw = load_rows("digits")
    wrong = again.predict(raw.test_x) != raw.classes[raw.test_y]
    assert 100 * wrong.mean() == pytest.approx(outcome.test_errors[0], abs=0.21)  # one row in 500: rounding


def test_the_range_of_the_rows_is_kept_but_where_whitening_leaves_no_scale() -> None:
    whiten = replace(QUICK, preprocess="whiten", epochs=1)
    assert run(replace(QUICK, epochs=1), [0], load_rows("digits")).estimator.input_range_ == (0, 1)
    assert run(whiten, [0], rows_for(whiten)).estimator.input_range_ is None


def test_a_whitening_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    recipe = replace(QUICK, preprocess="whiten", epochs=1)
    fitted = run(recipe, [0], rows_for(recipe)).estimator.as_fitted()
    with pytest.raises(ValueError, match="what was fitted for it is not known"):
        write_model(tmp_path / "model", replace(fitted, preparation=None))
    assert fitted.preparation is not None
    tensors, header = checkpoint.read(write_model(tmp_path / "model", fitted))
    for lie in ({"whitening.mean": torch.zeros(8)}, {"whitening.matrix": torch.full((64, 64), torch.nan)}):
        checkpoint.write(tmp_path / "model", {**tensors, **lie}, header)
        with pytest.raises(NotAModelError, match="whitening"):
            tikas.load(tmp_path / "model")
    plain = {**header, "recipe": {**header["recipe"], "preprocess": "none"}}
    checkpoint.write(tmp_path / "model", tensors, plain)
    with pytest.raises(NotAModelError, match="it holds a whitening, and its recipe asks for none"):
        tikas.load(tmp_path / "model")


def test_whitened_rows_and_recipe_go_together() -> None:
    whiten = replace(QUICK, preprocess="whiten")
    with pytest.raises(ValueError, match=r"preprocess='whiten', and these rows went through nothing.*rows_for"):
        run(whiten, [0], load_rows("digits"))
    with pytest.raises(ValueError, match="preprocess='none', and these rows went through whitening"):
        run(QUICK, [0], rows_for(whiten))
    setting = Setting("a/study", replace(whiten, validation=300, epochs=1))
    trial = try_settings([setting], [0], training_rows(rows_for(whiten)))
    whitened = rows_for(whiten)
    held_out = split(whitened.train_y, 50, validation=300, seed=0).validation
    outputs = trial.trained.ladders[0](torch.from_numpy(whitened.train_x[held_out]))
    wrong = outputs.argmax(-1).numpy() != whitened.train_y[held_out]
    assert 100 * wrong.mean() == pytest.approx(trial.validation_errors[0], abs=1e-6)
    with pytest.raises(ValueError, match=r"preprocess='whiten'.*rows_for"):
        try_settings([setting], [0], training_rows(load_rows("digits")))


def test_a_folder_of_images_is_a_source(tmp_path: Path) -> None:
    save_digits(tmp_path)
    quick = replace(QUICK, data=str(tmp_path), labels=40, batch_size=20)
    recipe = replace(quick, network=("conv 4 3", "max 2"), preprocess="whiten")
    rows = rows_for(recipe)
    assert rows.train_x.shape == (60, 1, 8, 8)
    assert (rows.train_y == -1).sum() == 20
    assert rows.classes.tolist() == ["one", "zero"]
    assert len(rows.test_y) == 20
    outcome = run(recipe, [0], rows)
    assert len(outcome.test_errors) == 1
    flat = rows_for(replace(recipe, network=(8,), preprocess="none"))
    assert (flat.train_x.shape, flat.input_shape) == ((60, 64), (1, 8, 8))
    with pytest.raises(FileNotFoundError, match=r"no data set, file or folder .*elsewhere"):
        rows_for(replace(recipe, data=str(tmp_path / "elsewhere")))


def test_an_array_file_of_images_stays_images_and_a_table_is_none(tmp_path: Path) -> None:
    digits = load("digits")
    path = tmp_path / "images.npz"
    np.savez(path, x=digits.train_x[:50, 0], y=digits.train_y[:50])
    recipe = replace(QUICK, data=str(path), labels="all", network=("conv 4 3", "max 2"))
    assert rows_for(recipe).train_x.shape == (50, 1, 8, 8)
    np.savez(path, x=digits.train_x[:50, 0] * 255, y=digits.train_y[:50])
    with pytest.warns(ScaleWarning, match="run from 0 to 255"):
        rows_for(recipe)
    rows_for(replace(recipe, preprocess="whiten"))  # contrast has no scale: no warning
    np.savez(path, x=digits.train_x[:50].reshape(50, -1), y=digits.train_y[:50])
    with pytest.raises(ValueError, match=r"takes images, and .*images.npz has rows of 64 columns"):
        rows_for(recipe)


def test_what_is_done_with_members_before_they_are_measured_takes_none_of_their_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]
    monkeypatch.setattr("tikas.experiments.run.time", SimpleNamespace(perf_counter=lambda: clock[0]))

    def begin(_: Progress) -> None:
        clock[0] = 11.0

    def save(_: Trained) -> None:
        clock[0] += 100.0

    measured = measure([QUICK], [0], load_rows("digits"), on_epoch=begin, on_trained=save)
    assert measured.seconds == 11.0


def test_a_seed_decides_which_rows_are_labelled() -> None:
    y = load_rows("digits").train_y
    assert not np.array_equal(split(y, 50, seed=0).labeled, split(y, 50, seed=1).labeled)


def test_a_record_holds_recipe_seed_errors_costs_and_provenance(tmp_path: Path) -> None:
    outcome = run(QUICK, [3, 4], load_rows("digits"))
    path = tmp_path / "records.jsonl"
    for record in member_records(outcome, QUICK, [3, 4], "cpu"):
        append(path, record)
    first, second = read(path)
    assert Recipe.from_json(json.dumps(first["recipe"])) == QUICK
    assert (first["seed"], second["seed"], first["name"]) == (3, 4, QUICK.name)
    assert [first["test_error"], second["test_error"]] == outcome.test_errors
    assert len(first["costs"]["denoising"]) == 3
    assert {"torch", "tikas", "python"} <= first["versions"].keys()
    assert "threads" in first["hardware"]


def test_a_member_that_was_cut_short_has_no_record() -> None:
    def interrupt(progress: Progress) -> None:
        if progress.members:
            raise KeyboardInterrupt

    outcome = run(QUICK, [3, 4], load_rows("digits"), on_epoch=interrupt)
    assert [len(history) for history in outcome.trained.histories] == [1, 1]
    assert not list(member_records(outcome, QUICK, [3, 4], "cpu"))


def test_a_table_brings_its_classes_columns_and_unlabelled_rows(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("a,b,kind\n0.5,1,x\n0.25,0,y\n1,2,\n")
    rows = rows_for(replace(QUICK, data=str(path)), target="kind")
    assert rows.train_y.tolist() == [0, 1, -1]
    assert rows.classes.tolist() == ["x", "y"]
    assert rows.columns == ("a", "b")
    assert len(rows.test_y) == 0


def test_labels_that_are_left_over_measure_where_there_are_no_test_rows(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(200, 2)).round(3)
    kinds = np.where(x[:, 0] > 0, "up", "down")
    path = tmp_path / "mine.csv"
    lines = [f"{a},{b},{kind}" for (a, b), kind in zip(x, kinds, strict=True)]
    path.write_text("\n".join(["a,b,kind", *lines, "0.5,0.5,"]))
    recipe = replace(QUICK, data=str(path), labels=20, validation=30, epochs=9)
    rows = rows_for(recipe, target="kind")
    outcome = run(recipe, [5, 6], rows)
    assert (outcome.test_errors, outcome.hidden_labels) == ([], 150)
    for seed, ladder, error in zip([5, 6], outcome.trained.ladders, outcome.hidden_errors, strict=True):
        chosen = split(rows.train_y, 20, validation=30, seed=seed)
        hidden = sorted({*range(200)} - {*chosen.labeled} - {*chosen.validation})
        predicted = rows.classes[ladder(torch.from_numpy(rows.train_x[hidden])).argmax(-1).numpy()]
        assert error == pytest.approx(100 * (predicted != kinds[hidden]).mean())
    assert run(replace(recipe, labels="all"), [5], rows).hidden_errors == []


def test_values_are_scaled_by_those_that_members_see_and_by_no_others(tmp_path: Path) -> None:
    y = np.random.default_rng(0).normal(50, 10, 100)
    path = tmp_path / "mine.npz"
    np.savez(path, x=np.random.default_rng(1).normal(size=(100, 2)), y=y)
    recipe = replace(QUICK, data=str(path), task="regression", labels=20, validation=30, epochs=1, batch_size=50)
    rows = rows_for(recipe)
    seen = np.unique(np.concatenate([split(rows.train_y, 20, validation=30, seed=seed).labeled for seed in (0, 1)]))
    model = run(recipe, [0, 1], rows).estimator
    assert isinstance(model, tikas.LadderRegressor)
    assert (model.target_mean_, model.target_deviation_) == pytest.approx((y[seen].mean(), y[seen].std()))
    with pytest.raises(ValueError, match=r"task='classification', and these rows have values. Load .* rows_for"):
        run(replace(recipe, task="classification"), [0], rows)
    with pytest.raises(ValueError, match="task='regression', and these rows have classes"):
        run(replace(QUICK, task="regression"), [0], load_rows("digits"))


def test_a_table_without_a_target_is_refused_with_the_flag_to_give(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("a,b\n0.5,1\n0.25,0\n")
    with pytest.raises(ValueError, match="--target"):
        load_rows(str(path))
