"""`tikas tune`: what it prints and writes, studies that go on, several processes, and recipes for `tikas train`."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tikas
from tikas.training.recipe import Recipe

optuna = pytest.importorskip("optuna")

QUICK = ["--epochs", "2", "--folds", "2", "--quiet"]


def study_of(path: str, name: str = "digits") -> Any:
    return optuna.load_study(study_name=name, storage=f"sqlite:///{path}")


def test_a_study_ends_with_a_table_importances_and_a_recipe_that_train_takes(run, capsys) -> None:
    command = ["tune", *QUICK, "--trials", "3", "--labels", "40", "--network", "8", "--report", "study.html"]
    assert run(*command) == 0
    printed = capsys.readouterr().out
    errors = [float(error) for error in re.findall(r"trial \d: ([\d.]+) %", printed)]
    assert len(errors) == 3
    table = [line.split("│")[1:3] for line in printed.splitlines() if "±" in line and "│" in line]
    assert [float(error.split()[0]) for _, error in table] == sorted(errors)
    assert re.search(r"importance: .*noise [\d.]+", printed)
    assert "learning rate" in Path("recipes/digits.svg").read_text()

    best = min(range(3), key=errors.__getitem__)
    recipe = Recipe.from_json(Path("recipes/digits.json").read_text())
    assert recipe == Recipe.from_json(study_of("recipes/digits.db").trials[best].user_attrs["recipe"])
    assert (recipe.network, recipe.epochs) == ((8,), 2)
    assert not Path("recipes/digits.unfinished").exists()
    page = Path("study.html").read_text()
    assert f"error of {min(errors):.2f} ±" in page
    assert f"settings have {errors[0]:.2f} ±" in page
    assert page.count("<figure>") == 2 + 5  # trials, importances, noise, three costs, learning rate
    assert "tikas train --data digits --labels 40 --recipe recipes/digits.json" in page

    assert run("train", "--recipe", "recipes/digits.json", "--no-baseline", "--quiet", "-o", "one.safetensors") == 0
    assert tikas.load("one.safetensors").recipe_ == recipe
    options = ["--noise", "0.5", "--epochs", "1", "--no-baseline", "--quiet", "-o", "other.safetensors"]
    assert run("train", "--recipe", "recipes/digits.json", *options) == 0
    other = tikas.load("other.safetensors").recipe_
    assert (other.noise, other.epochs, other.costs) == ((0.5,), 1, recipe.costs)

    capsys.readouterr()
    assert run(*command) == 0
    again = capsys.readouterr().out
    assert "after 3 trials" in again
    assert len(study_of("recipes/digits.db").trials) == 3
    assert Recipe.from_json(Path("recipes/digits.json").read_text()) == recipe


@pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot stop a process")
def test_processes_share_a_study_and_finish_the_trial_of_one_that_was_killed(run, capsys) -> None:
    options = ["--epochs", "8", "--folds", "2", "--network", "4", "--labels", "40", "--quiet"]
    command = ["tune", *options, "--trials", "3"]
    other = subprocess.Popen([sys.executable, "-m", "tikas", *command, "--checkpoint-every", "0"])
    deadline = time.monotonic() + 120
    while not list(Path("recipes").glob("digits.unfinished/trial-0-fold-*.safetensors")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    other.send_signal(signal.SIGSTOP)  # it still holds its locks
    assert run(*command) == 0
    assert "still run 1 of the trials" in capsys.readouterr().out
    other.kill()
    other.wait()
    states = [trial.state.name for trial in study_of("recipes/digits.db").trials]
    assert states == ["RUNNING", "COMPLETE", "COMPLETE"]

    assert run(*command) == 0
    trials = study_of("recipes/digits.db").trials
    assert [trial.state.name for trial in trials] == ["COMPLETE"] * 3
    assert len({trial.user_attrs["recipe"] for trial in trials}) == 3
    assert not Path("recipes/digits.unfinished").exists()

    assert run("tune", *options, "--trials", "1", "--output", "whole/digits.json") == 0
    whole = study_of("whole/digits.db").trials[0]
    assert whole.user_attrs["recipe"] == trials[0].user_attrs["recipe"]
    assert whole.user_attrs["result"]["errors"] == trials[0].user_attrs["result"]["errors"]


def test_ctrl_c_leaves_a_trial_that_the_same_command_finishes(run, capsys, monkeypatch) -> None:
    command = ["tune", *QUICK, "--trials", "1", "--network", "4", "--labels", "40"]

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("tikas.training.tune.Trainer.fit", interrupt)
        assert run(*command) == 130
    assert "same command" in capsys.readouterr().err
    assert [trial.state.name for trial in study_of("recipes/digits.db").trials] == ["RUNNING"]
    assert run(*command) == 0
    assert [trial.state.name for trial in study_of("recipes/digits.db").trials] == ["COMPLETE"]


def test_errors_of_a_regression_have_the_unit_of_the_target(run, capsys) -> None:
    x = np.random.default_rng(0).normal(size=(120, 2)).round(3)
    lines = [f"{a},{b},{'xy'[row % 2]},{100 + 20 * a - 10 * b if row < 60 else ''}" for row, (a, b) in enumerate(x)]
    Path("mine.csv").write_text("\n".join(["a,b,kind,price", *lines]))
    options = ["--data", "mine.csv", "--target", "price", "--task", "regression", "--network", "16", "--noise", "0.1"]
    searched = ["--learning-rate", "0.01", "--trials", "1", "--storage", "study.journal", "--study", "price"]
    assert run("tune", *options, *searched, "--epochs", "60", "--folds", "3", "--quiet") == 0
    error = float(re.findall(r"trial 1: ([\d.]+)\n", capsys.readouterr().out)[0])
    assert 0.5 < error < 15  # the deviation of the values is 22
    assert not Path("recipes/mine.db").exists()
    assert Path("study.journal").exists()
    assert run("train", *options[:4], "--recipe", "recipes/mine.json") == 2
    assert "--task" in capsys.readouterr().err
    again = ["--recipe", "recipes/mine.json", "--folds", "0", "--no-baseline", "--quiet", "-o", "m.safetensors"]
    assert run("train", *options[:6], *again) == 0
    recipe = tikas.load("m.safetensors").recipe_
    assert (recipe.preprocess, recipe.network, recipe.epochs) == ("columns", (16,), 60)
    assert recipe == Recipe.from_json(Path("recipes/mine.json").read_text())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--storage", "nosuch://me:secret@host/study"], ["nosuch", "sqlite:///"]),
        (["--network", "8", "--noise", "1", "--costs", "1", "--learning-rate", "1"], ["--network"]),
        (["--labels", "10"], ["2 folds", "there are 1"]),
    ],
)
def test_a_wrong_option_is_an_error(options: list[str], words: list[str], run, capsys) -> None:
    assert run("tune", *QUICK, *options) == 2
    message = capsys.readouterr().err
    assert all(word in message for word in words)
    assert "secret" not in message


@pytest.mark.parametrize("content", ["noise: 0.3", '{"widths": [3]}', '{"noise": "much"}', "[]"])
def test_a_wrong_recipe_file_is_an_error(content: str, run, capsys) -> None:
    Path("recipe.json").write_text(content)
    assert run("train", "--recipe", "recipe.json") == 2
    assert "recipe.json" in capsys.readouterr().err


def test_a_recipe_file_may_be_written_by_hand(run) -> None:
    Path("recipe.json").write_text(json.dumps({"network": [8], "noise": 0.4, "costs": [10, 1, 0.1], "epochs": 1}))
    assert run("train", "--recipe", "recipe.json", "--no-baseline", "--quiet", "-o", "m.safetensors") == 0
    recipe = tikas.load("m.safetensors").recipe_
    assert (recipe.network, recipe.noise, recipe.epochs) == ((8,), (0.4,), 1)


def test_the_example_of_the_page_runs() -> None:
    page = (Path(__file__).parents[2] / "docs/tuning.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    exec(compile(example, "tuning.md", "exec"), {})
    assert len(study_of("digits.db").trials) == 3
