"""Runs of a recipe: rows by name or by path, errors with both kinds of statistics, a record for every member."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tikas.data.splits import split
from tikas.experiments.records import append, member_records, read
from tikas.experiments.run import load_rows, run
from tikas.training.recipe import DIGITS, Recipe

QUICK = replace(DIGITS, network=(16,), epochs=2)


def test_a_run_measures_every_seed_on_the_test_rows_with_both_kinds_of_statistics() -> None:
    rows = load_rows("digits")
    outcome = run(QUICK, [3, 4], rows)
    assert outcome.classifier.seeds_ == [3, 4]
    for seed, ladder, error, as_authors in zip(
        [3, 4], outcome.trained.ladders, outcome.test_errors, outcome.labeled_statistics_errors, strict=True
    ):
        x, y = torch.from_numpy(rows.test_x), torch.from_numpy(rows.test_y)
        assert error == pytest.approx(100 * float((ladder(x).argmax(-1) != y).float().mean()), abs=1e-4)
        labeled = split(rows.train_y, 50, seed=seed).labeled
        ladder.calibrate(torch.from_numpy(rows.train_x[labeled]))
        assert as_authors == pytest.approx(100 * float((ladder(x).argmax(-1) != y).float().mean()), abs=1e-4)


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


def test_a_table_brings_its_classes_columns_and_unlabelled_rows(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("a,b,kind\n0.5,1,x\n0.25,0,y\n1,2,\n")
    rows = load_rows(str(path), target="kind")
    assert rows.train_y.tolist() == [0, 1, -1]
    assert rows.classes.tolist() == ["x", "y"]
    assert rows.columns == ("a", "b")
    assert len(rows.test_y) == 0


def test_a_table_without_a_target_is_refused_with_the_flag_to_give(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("a,b\n0.5,1\n0.25,0\n")
    with pytest.raises(ValueError, match="--target"):
        load_rows(str(path))
