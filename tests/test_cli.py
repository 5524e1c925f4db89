"""The command line: what it prints, what it leaves behind, and how it says no."""

import os
import re
import shlex
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from torch import Tensor

import tikas
from pictures import save_digits
from tikas.cli import _parse, main
from tikas.commands.presets import preset_for
from tikas.commands.train import Train, default_output
from tikas.data.kinds import DATA_SETS
from tikas.data.sources import load
from tikas.data.splits import split
from tikas.data.streams import Batch
from tikas.experiments.rows import Rows
from tikas.experiments.tasks import CELLS
from tikas.training.fit import TrainingDivergedError
from tikas.training.fleet import Fleet
from tikas.training.recipe import Recipe
from tikas.training.suitable import costs_that_suit, usual_epochs

QUICK = ["--network", "16", "--epochs", "2", "--quiet"]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TIKAS_DATA", raising=False)


def run(*arguments: str) -> int:
    """The exit code, whether it is returned or raised."""
    try:
        return main(list(arguments))
    except SystemExit as stop:
        return int(stop.code or 0)


def said(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line on standard error."""
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    return lines[0]


def test_train_ends_with_both_errors_and_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("train", *QUICK) == 0
    printed = capsys.readouterr().out
    assert "digits, 50 labels" in printed
    assert "ladder" in printed
    assert "no denoising costs" in printed
    assert printed.count(" %") == 2
    path = printed.split("model saved to ")[1].strip()
    assert tikas.load(path).classes_.tolist() == [str(digit) for digit in range(10)]


def test_the_package_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "tikas", "--version"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == f"tikas {tikas.__version__}\n"


def test_every_field_of_the_recipe_is_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("train", "--help") == 0
    printed = capsys.readouterr().out
    for field in tikas.training.recipe.Recipe.__dataclass_fields__:
        assert f"--{field.replace('_', '-')}" in printed
    assert "tikas train --data mnist --labels 100" in printed


def test_help_tells_the_epochs_of_every_data_set(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("train", "--help") == 0
    printed = " ".join(capsys.readouterr().out.replace("│", "").split())
    usual, digits, cifar = re.search(
        r"the data set's own: (\d+), of digits (\d+) and of cifar10 (\d+)\.", printed
    ).groups()
    own = {data: preset_for(["train", "--data", data]).epochs for data in DATA_SETS}
    assert own == {"digits": int(digits), "cifar10": int(cifar), "mnist": int(usual), "fashion-mnist": int(usual)}


def test_help_and_the_estimators_tell_the_epochs_of_ones_own_rows(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("train", "--help") == 0
    printed = " ".join(capsys.readouterr().out.replace("│", "").split())
    columns, pixels = re.search(
        r"a table or folder are (\d+), but (\d+) of pixels and for networks that begin with a convolution", printed
    ).groups()
    documented = " ".join(tikas.LadderClassifier.__doc__.split())
    maps, others = re.search(
        r"rows: (\d+) for a network that begins with a convolution .*? pixels in \[0, 1\] do, (\d+) for other columns",
        documented,
    ).groups()
    rows = np.array([[-1.0], [1.0]])
    assert int(columns) == int(others) == usual_epochs(rows)
    assert int(pixels) == int(maps) == usual_epochs(rows / 10) == usual_epochs(rows.reshape(2, 1, 1, 1))


def test_help_tells_the_costs_that_are_taken_where_they_are_left_open(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("train", "--help") == 0
    printed = " ".join(capsys.readouterr().out.replace("│", "").split())
    pixels, columns, maps, large, fc, values = re.search(
        r"Without it, (.*?); (.*?) for standardised columns .*? pooling (.*?), but (.*?) for conv_large and (.*?) for "
        r"conv_fc; for a regression (.*?)\. ",
        printed,
    ).groups()
    networks = {"conv_small": maps, "conv_large": large, "conv_fc": fc}
    told = {(name,): tuple(map(float, costs.split())) for name, costs in networks.items()}
    images = np.zeros((2, 3, 32, 32))
    assert told == {network: costs_that_suit(network, images, "classification") for network in told}
    rows = np.array([[-0.1], [0.1]])
    assert [tuple(map(float, each.split())) for each in (pixels, columns, values)] == [
        costs_that_suit((8,), rows, "classification"),
        costs_that_suit((8,), 10 * rows, "classification"),
        tikas.LadderRegressor().costs,
    ]


def test_flags_reach_the_recipe_of_the_saved_model() -> None:
    flags = ["--noise", "0.2", "0.4", "--costs", "5", "--denoiser", "mlp", "--labels", "60", "--validation", "100"]
    assert run("train", *QUICK, *flags, "--output", "m.safetensors", "--no-baseline") == 0
    recipe = tikas.load("m.safetensors").recipe_
    assert (recipe.noise, recipe.costs, recipe.denoiser) == ((0.2, 0.4), (5.0,), "mlp")
    assert (recipe.labels, recipe.validation, recipe.network, recipe.epochs) == (60, 100, (16,), 2)


def test_no_network_at_all_is_a_ladder_of_the_input_and_the_top(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("train", "--network", "--epochs", "2", "--quiet", "--output", "m.safetensors") == 0
    assert "digits, 50 labels, no hidden rungs, 2 epochs" in capsys.readouterr().out
    assert tikas.load("m.safetensors").ladder_.shapes == [(64,), (10,)]


def test_data_other_than_digits_start_from_the_papers_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("train", "--data", "mnist", "--help") == 0
    assert "(default: 1000 500 250 250 250)" in " ".join(capsys.readouterr().out.replace("│", "").split())


def test_an_equals_sign_says_the_same() -> None:
    assert _parse(["train", "--data=mnist"]) == _parse(["train", "--data", "mnist"])


def test_members_are_trained_together_and_shown_with_their_spread(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("train", *QUICK, "--members", "3", "--no-baseline", "--output", "m.safetensors") == 0
    assert "±" in capsys.readouterr().out
    assert len(tikas.load("m.safetensors").ladders_) == 3


def test_a_table_of_ones_own_goes_from_training_to_prediction(capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 3)).round(3)
    kinds = np.where(x[:, 0] > 0, "up", "down")
    lines = [f"{a},{b},{c},{kind if i < 60 else ''}" for i, ((a, b, c), kind) in enumerate(zip(x, kinds, strict=True))]
    Path("mine.csv").write_text("\n".join(["a,b,c,kind", *lines]) + "\n")
    Path("new.csv").write_text("kind,c,b,a\nup,0.1,0.2,2.5\ndown,0.3,-0.1,-2.5\n")
    flags = ["--network", "16", "--epochs", "60", "--quiet"]
    assert run("train", "--data", "mine.csv", "--target", "kind", *flags, "--output", "m.safetensors") == 0
    assert "--validation 20 holds 20 of its 60 labelled rows out" in capsys.readouterr().out
    assert run("predict", "m.safetensors", "new.csv", "--target", "kind") == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines() == ["prediction", "up", "down"]
    assert "error on the 2 labelled rows: 0.00 %" in captured.err
    assert run("predict", "m.safetensors", "new.csv", "--target", "kind", "--probabilities", "--output", "p.csv") == 0
    header, first, _ = Path("p.csv").read_text().splitlines()
    assert header == "down,up"
    assert sum(map(float, first.split(","))) == pytest.approx(1, abs=2e-6)
    Path("strange.csv").write_text("kind,c,b,a\nUp,0.1,0.2,2.5\ndown,0.3,-0.1,-2.5\n")
    assert run("predict", "m.safetensors", "strange.csv", "--target", "kind") == 0
    assert "the model has no class 'Up', so such rows count as errors; it has down, up." in capsys.readouterr().err
    assert run("predict", "m.safetensors", "new.csv") == 0  # the labels are in it, and nobody looks at them
    assert capsys.readouterr().out.splitlines() == ["prediction", "up", "down"]
    Path("nameless.csv").write_text("2.5,0.2,0.1\n-2.5,-0.1,0.3\n")
    assert run("predict", "m.safetensors", "nameless.csv") == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines() == ["prediction", "up", "down"]
    assert (
        "nameless.csv names no columns: they are taken in the order that the model has them in, a, b, c" in captured.err
    )


def test_labels_that_are_left_over_are_measured_on(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.csv").write_text("a,kind\n" + "".join(f"{i / 100},{'high' if i > 99 else 'low'}\n" for i in range(200)))
    assert run("train", "--data", "mine.csv", "--target", "kind", "--labels", "20", *QUICK) == 0
    printed = capsys.readouterr().out
    assert "error on the 180 hidden labels" in printed
    assert printed.count(" %") == 2  # the network without denoising is worth training too
    assert "nothing to measure" not in printed


def test_a_class_with_too_few_labels_is_called_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    kinds = ["low"] * 30 + ["high"] * 4
    Path("mine.csv").write_text("a,kind\n" + "".join(f"{i % 7},{kind}\n" for i, kind in enumerate(kinds)))
    flags = ["--data", "mine.csv", "--target", "kind", "--batch-size", "30", *QUICK]
    assert run("train", *flags, "--labels", "20") == 2
    line = said(capsys)
    assert "Class 'high' has 4 labelled rows to train on, but 10 are needed" in line
    assert "Ask for at most 8, hold out fewer rows, or use every label there is (--labels all" in line
    for labels in ("8", "all"):
        assert run("train", *flags, "--labels", labels) == 0


@pytest.mark.parametrize(("labels", "proposed"), [(300, 50), (30, 10), (3, 1), (2, None)])
def test_the_proposed_rows_to_hold_out_can_be_held_out(
    labels: int, proposed: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    kinds = [["low", "high"][i % 2] if i < labels else "" for i in range(320)]
    Path("mine.csv").write_text("a,kind\n" + "".join(f"{i % 7},{kind}\n" for i, kind in enumerate(kinds)))
    flags = ["--data", "mine.csv", "--target", "kind", *QUICK]
    assert run("train", *flags) == 0
    printed = capsys.readouterr().out
    if proposed is None:
        assert "nothing to measure it by: its 2 labels are too few" in printed
        return
    (found,) = re.findall(r"--validation (\d+) holds", printed)
    assert int(found) == proposed
    assert run("train", *flags, "--validation", found) == 0
    printed = capsys.readouterr().out
    assert " % │" in printed
    assert "no rows" not in printed  # nothing is said of test rows that nobody has


def test_brackets_in_the_name_of_a_file_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """They are how the library that draws the table is told of colours."""
    Path("mine[").mkdir()
    for name in ("mine[old].csv", "mine[/old].csv"):
        Path(name).write_text("a,kind\n" + "".join(f"{i / 100},{'high' if i > 99 else 'low'}\n" for i in range(200)))
        assert run("train", "--data", name, "--target", "kind", *QUICK, "--no-baseline") == 0
        assert name in capsys.readouterr().out.splitlines()[0]


def test_values_of_a_table_go_from_training_to_prediction(capsys: pytest.CaptureFixture[str]) -> None:
    x = np.random.default_rng(0).normal(size=(300, 2)).round(3)
    y = (100 + 20 * x[:, 0] - 10 * x[:, 1]).round(2)
    lines = [f"{a},{b},{price}" for (a, b), price in zip(x, y, strict=True)]
    Path("mine.csv").write_text("\n".join(["a,b,price", *lines, "0.1,0.2,"]))
    flags = ["--task", "regression", "--labels", "60", "--validation", "40", "--network", "16", "--epochs", "60"]
    assert run("train", "--data", "mine.csv", "--target", "price", *flags, "--quiet", "--output", "m.safetensors") == 0
    printed = capsys.readouterr().out
    assert "RMSE on the 200 hidden" in printed
    assert "validation RMSE" in printed
    hidden_error, validation_error, _, *plain = (float(figure) for figure in re.findall(r"([\d.]+) │", printed))
    model = tikas.load("m.safetensors")
    assert isinstance(model, tikas.LadderRegressor)
    chosen = split(np.zeros(300, np.int64), 60, validation=40, seed=0)
    hidden = np.setdiff1d(chosen.unlabeled, chosen.labeled)
    for told, rows in ((hidden_error, hidden), (validation_error, chosen.validation)):
        predicted = model.predict(pd.DataFrame(x[rows], columns=["a", "b"]))
        assert told == pytest.approx(np.sqrt(np.mean((predicted - y[rows]) ** 2)), rel=1e-3)
        assert told < 10  # the deviation is 22
    assert hidden_error != plain[0] < 20  # the network without denoising is there to compare with
    assert run("predict", "m.safetensors", "mine.csv", "--target", "price") == 0
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 302
    assert float(captured.err.removeprefix("R² on the 300 rows with a target: ")) > 0.8


def test_a_target_of_what_is_no_table_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    save_digits(Path("photos"))
    for data in ("digits", "photos"):
        assert run("train", "--data", data, "--target", "kind", *QUICK) == 2
        assert f"--target kind is a column of a table, and {data} has classes of its own" in said(capsys)


def test_arrays_without_labels_are_told_how_to_have_some(capsys: pytest.CaptureFixture[str]) -> None:
    rows = np.random.default_rng(0).normal(size=(150, 3))
    labels = np.where(np.arange(150) < 50, np.where(rows[:, 0] > 0, "up", "down"), None)
    np.save("rows.npy", rows)
    assert run("train", "--data", "rows.npy", *QUICK) == 2
    line = said(capsys)
    assert "rows.npy holds no labels" in line
    assert "numpy.savez('rows.npz', x=rows, y=labels)" in line
    np.savez("rows.npz", x=rows, y=labels)
    assert run("train", "--data", "rows.npz", *QUICK) == 2
    assert "labels.astype(str) makes text of labels" in said(capsys)
    np.savez("rows.npz", x=rows, y=labels.astype(str))
    assert run("train", "--data", "rows.npz", *QUICK, "--validation", "10", "--output", "m.safetensors") == 0
    assert tikas.load("m.safetensors").classes_.tolist() == ["down", "up"]


def test_a_target_that_is_not_of_the_task_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for targets, task, substance in (
        ("0.5 0.25 0.125", "classification", "or learn values: LadderRegressor, or tikas train --task regression"),
        ("x x ?", "classification", "mine.csv, 'b': y has one class only, 'x'"),
        ("? ? ?", "classification", "mine.csv, 'b': None of the 3 rows is labelled"),
        ("x y x", "regression", "mine.csv, 'b': y holds 'x': a regressor learns numbers"),
        ("? ? ?", "regression", "none of the 3 rows has a value of 'b'"),
    ):
        Path("mine.csv").write_text("\n".join(["a,b", *(f"{a},{b}" for a, b in enumerate(targets.split()))]))
        assert run("train", "--data", "mine.csv", "--target", "b", "--task", task) == 2
        assert substance in said(capsys)


def test_models_of_two_targets_or_of_two_recipes_have_files_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    rows = "".join(f"{i % 7 / 7:.3f},{i % 3},{i % 2}\n" for i in range(40))
    Path("mine.csv").write_text("a,b,c\n" + rows)
    flags = ["--data", "mine.csv", "--network", "4", "--quiet", "--no-baseline", "--batch-size", "20"]
    paths = []
    for target, epochs in (("b", 1), ("c", 1), ("c", 2)):
        assert run("train", *flags, "--target", target, "--epochs", str(epochs)) == 0
        paths.append(Path(capsys.readouterr().out.split("model saved to ")[1].strip()))
    assert sorted(Path("models").iterdir()) == sorted(set(paths))
    for path, target, classes in zip(paths, "bcc", (3, 2, 2), strict=True):
        model = tikas.load(path)
        assert path.name == f"mine-{target}-all-{model.recipe_.name}-seed0.safetensors"
        assert len(model.classes_) == classes


def test_the_name_of_a_model_has_its_target_in_characters_that_a_file_may_have() -> None:
    recipe = Recipe(data="mine.csv")
    columns = ["a/b", "a b", "a_b", "../up", "größe", "a%2Fb", "a:b?*", "x" * 300, "x" * 299, " ", "."]
    paths = [default_output(Train(recipe, target=column)) for column in columns]
    assert len(set(paths)) == len(columns)
    for path in paths:
        assert path.parent == Path("models")
        assert not set(path.name) & set('/\\:*?"<>| ')
        assert len(path.name.encode()) < 200
    assert default_output(Train(recipe, target="größe")).name.startswith("mine-größe-100-")
    assert default_output(Train(Recipe(), target="kind")) == default_output(Train(Recipe()))  # no table


@pytest.mark.parametrize(
    ("classes", "labels", "error"),
    [
        (["up", "down"], ["down", "downwards", ""], "2 labelled rows: 50.00 %"),  # no class, though it begins like one
        (["0", "1"], ["1", "1.0", "0"], "3 labelled rows: 33.33 %"),
        ([0, 1], ["1", "1.0", "?"], "2 labelled rows: 0.00 %"),
        ([0, 1], ["1", "one", "0"], "3 labelled rows: 66.67 %"),
        (["0123", "123"], ["123", "0123", "123.0"], "3 labelled rows: 33.33 %"),
        (["0123", "0124"], ["0124", "0124", ""], "2 labelled rows: 0.00 %"),
        (["EU", "NA"], ["NA", "EU", "?"], "2 labelled rows: 50.00 %"),  # a name of the model's own is no gap
        ([False, True], ["True", "True", "False"], "3 labelled rows: 33.33 %"),
    ],
)
def test_labels_are_compared_as_classes(
    classes: list, labels: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    high = classes[1]  # every row of the file is high
    model = tikas.LadderClassifier((4,), costs=0, epochs=40, batch_size=20, random_state=0)
    model.fit([[0.0], [1.0]] * 10, [classes[0], high] * 10).save("m.safetensors")
    Path("rows.csv").write_text("\n".join(["a,kind", *(f"1.0,{label}" for label in labels)]))
    assert run("predict", "m.safetensors", "rows.csv", "--target", "kind") == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines()[1:] == [str(high)] * 3
    first, *others = captured.err.splitlines()
    assert first == f"error on the {error}"
    assert [line.split(chr(39))[1] for line in others] == [label for label in ("downwards", "one") if label in labels]


def test_probabilities_are_asked_for_once_and_compared_as_their_classes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tikas.LadderClassifier((4,), costs=0, epochs=40, batch_size=20, random_state=0)
    model.fit([[0.0], [1.0]] * 10, ["down", "up"] * 10).save("m.safetensors")
    Path("rows.csv").write_text("a,kind\n1.0,up\n0.0,up\n")
    asked, plain = [], tikas.LadderClassifier.predict_proba

    def watched(classifier: tikas.LadderClassifier, rows: np.ndarray) -> np.ndarray:
        asked.append(len(rows))
        return plain(classifier, rows)

    monkeypatch.setattr(tikas.LadderClassifier, "predict_proba", watched)
    for flags in ([], ["--probabilities"]):
        assert run("predict", "m.safetensors", "rows.csv", "--target", "kind", *flags) == 0
        assert said(capsys) == "error on the 2 labelled rows: 50.00 %"
    assert asked == [2, 2]


def test_values_are_predicted_and_compared(capsys: pytest.CaptureFixture[str]) -> None:
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(200, 2)), columns=["a", "b"])
    model = tikas.LadderRegressor((8,), costs=0, epochs=60, random_state=0).fit(frame, frame["a"] * 3)
    model.save("m.safetensors")
    Path("rows.csv").write_text("b,a,value\n0,1,3\n0.5,-1,-3\n0,-0.333,-1\n0,0,\n")
    assert run("predict", "m.safetensors", "rows.csv", "--target", "value") == 0
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 5
    assert float(captured.err.removeprefix("R² on the 3 rows with a target: ")) > 0.8  # -1 is a target like any other
    assert run("predict", "m.safetensors", "rows.csv", "--target", "value", "--probabilities") == 2
    assert "m.safetensors predicts values, not classes: leave --probabilities out" in said(capsys)


def test_images_are_predicted_from_an_array_file(capsys: pytest.CaptureFixture[str]) -> None:
    run("train", *QUICK, "--no-baseline", "--output", "m.safetensors")
    np.save("rows.npy", load("digits").test_x[:7])
    capsys.readouterr()
    assert run("predict", "m.safetensors", "rows.npy", "--device", "cpu") == 0
    assert len(capsys.readouterr().out.splitlines()) == 8


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("network", [["16"], ["conv 4 3", "max 2"]], ids=["dense", "convolutional"])
def test_images_that_were_not_scaled_as_in_training_are_predicted_with_a_warning(
    network: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    run("train", "--network", *network, "--epochs", "1", "--quiet", "--no-baseline", "--output", "m.safetensors")
    np.save("rows.npy", 255 * load("digits").test_x[:7])
    capsys.readouterr()
    assert run("predict", "m.safetensors", "rows.npy") == 0
    assert said(capsys).startswith(
        "tikas: warning: The rows to predict run from 0 to 255, and those that the model was fitted on ran from 0 to 1:"
    )


def test_a_convolutional_network_gets_images_and_predicts_them(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--network", "conv 4 3", "max 2", "--epochs", "1", "--quiet", "--no-baseline", "--output", "m.safetensors"]
    assert run("train", *flags) == 0
    np.save("rows.npy", load("digits").test_x[:7])
    capsys.readouterr()
    assert run("predict", "m.safetensors", "rows.npy") == 0
    assert len(capsys.readouterr().out.splitlines()) == 8


def test_images_in_the_wrong_layout_are_refused_with_both_shapes(capsys: pytest.CaptureFixture[str]) -> None:
    for network in (["16"], ["conv 4 3", "max 2"]):
        flags = ["--network", *network, "--epochs", "1", "--quiet", "--no-baseline", "--output", "m.safetensors"]
        assert run("train", *flags) == 0
        np.save("rows.npy", np.moveaxis(load("digits").test_x[:7], 1, -1))
        capsys.readouterr()
        assert run("predict", "m.safetensors", "rows.npy") == 2
        assert "(7, 8, 8, 1); this model was fitted on (7, 1, 8, 8)" in said(capsys)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("network", ["conv 4 3", "8"])
def test_an_array_of_images_in_the_wrong_layout_is_refused_or_warned_of(
    network: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--network", network, "--epochs", "1", "--batch-size", "6", "--quiet", "--output", "m.safetensors"]
    for sides, code, sentence in (
        ((8, 8), 2, "Got images of shape (12, 8, 8, 3); expected (12, 3, 8, 8). Channels come first: turn"),
        ((8, 6), 0, "warning: Images of shape (12, 8, 6, 3) are read as (n, channels, height, width), maps 3 wide."),
    ):
        images = np.random.default_rng(0).random((12, *sides, 3), np.float32)
        np.savez("images.npz", x=images, y=np.arange(12) % 2)
        assert run("train", "--data", "images.npz", *flags) == code
        assert sentence in said(capsys)
        np.savez("images.npz", x=np.moveaxis(images, -1, 1), y=np.arange(12) % 2)
        assert run("train", "--data", "images.npz", *flags) == 0
        assert capsys.readouterr().err == ""


@pytest.mark.parametrize("preprocess", ["none", "whiten"])
def test_a_folder_of_images_goes_from_training_to_prediction(
    preprocess: str, capsys: pytest.CaptureFixture[str]
) -> None:
    save_digits(Path("photos.v2"))
    flags = ["--network", "conv 8 3", "max 2", "--epochs", "30", "--batch-size", "20", "--quiet"]
    assert run("train", "--data", "photos.v2", *flags, "--preprocess", preprocess, "--output", "m.safetensors") == 0
    assert "photos.v2, all labels" in capsys.readouterr().out
    model = tikas.load("m.safetensors")
    assert (model.recipe_.costs, model.recipe_.labels, model.preprocess) == ((1.0,), "all", preprocess)
    assert run("predict", "m.safetensors", "photos.v2/test") == 0
    captured = capsys.readouterr()
    header, first, *_ = captured.out.splitlines()
    assert (header, first) == ("file,prediction", "one/one30.png,one")
    error = float(captured.err.removeprefix("error on the 20 labelled rows: ").removesuffix(" %\n"))
    assert error <= 20  # half is chance
    assert run("predict", "m.safetensors", "photos.v2/unlabeled", "--probabilities", "--output", "p.csv") == 0
    assert Path("p.csv").read_text().splitlines()[0] == "file,one,zero"
    assert capsys.readouterr().err == ""
    assert run("predict", "m.safetensors", "photos.v2", "--target", "kind") == 2
    assert "leave --target out" in said(capsys)
    assert run("predict", "m.safetensors", "photos.v2/test/one/one30.png") == 2
    assert "one30.png is one image; expected a folder of them, or a table. Give its folder, " in (line := said(capsys))
    assert "photos.v2/test/one, for all images in it" in line
    Path("nothing").mkdir()
    assert run("predict", "m.safetensors", "nothing") == 2
    assert "nothing holds no images" in said(capsys)


def test_conv_pool_cnn_c_is_trained_by_its_name_and_predicts(capsys: pytest.CaptureFixture[str]) -> None:
    images = np.random.default_rng(0).random((12, 3, 12, 14), np.float32)
    np.savez("images.npz", x=images, y=np.arange(12) % 2)
    flags = ["--network", "conv_pool_cnn_c", "--epochs", "1", "--batch-size", "6", "--validation", "4", "--quiet"]
    answers = []
    for output in ("one.safetensors", "same.safetensors"):
        assert run("train", "--data", "images.npz", *flags, "--members", "2", "--output", output) == 0
        answers.append(tikas.load(output).predict_proba(images))
    assert np.array_equal(*answers)  # what dropout draws is the seed's, too
    assert "same network, no denoising costs" in capsys.readouterr().out
    assert run("predict", "one.safetensors", "images.npz") == 0
    assert len(capsys.readouterr().out.splitlines()) == 13


def test_defaults_follow_from_the_data_and_the_network() -> None:
    def preset(*arguments: str) -> Recipe:
        command = _parse(["train", *arguments])
        assert isinstance(command, Train)
        return command.recipe

    assert preset("--data", "mnist", "--network", "conv_small").costs == (1.0,)
    assert preset("--data", "mnist", "--network=conv_small", "--costs", "5").costs == (5.0,)
    assert preset("--data", "mnist", "--network", "conv_fc").costs == (1000.0, 10.0, 0.1)
    assert preset("--network", "conv 8 3", "mean 3 stride=2", "--labels", "60").costs == (1.0,)
    assert preset("--data", "mnist", "--network", "100", "50").costs == (1000.0, 10.0, 0.1)
    cifar = next(cell.recipe for cell in CELLS if cell.name == "table3/large-gamma/4000")
    assert preset("--data", "cifar10") == preset("--data", "my.csv", "--data=cifar10") == cifar
    assert preset("--data", "cifar10", "--network", "conv_large", "--costs", "4", "--preprocess", "whiten") == cifar
    module = preset("--data", "cifar10", "--network", "conv_pool_cnn_c")
    assert (module.preprocess, module.activation, module.costs) == ("whiten", "relu", (1.0,))
    assert preset("--data", "cifar10", "--network", "mlp").costs == (1000.0, 10.0, 0.1)
    assert preset("--data", "cifar10", "--network").costs == (1000.0, 0.1)
    assert preset("--network", "top").costs == preset("--network").costs == (1000.0, 0.1)
    assert preset("--network", "global").costs == (1.0,)
    assert preset("--network", "--costs", "5", "1").costs == (5.0, 1.0)


@pytest.mark.parametrize(
    ("arguments", "substance"),
    [
        (["trian"], "trian"),
        (["train", "--nois", "3"], "--nois"),
        (["train", "--epoch", "3"], "Perhaps you meant --epochs N"),
        (["train", "mine.csv"], "Unrecognized options: mine.csv. Put its flag before it, such as --data or --output."),
        (["train", "--epochs", "0"], "--epochs 0: expected at least 1"),
        (["train", "--epochs", "many"], "Expected --epochs N"),
        (["train", "--members", "0"], "--members 0: expected"),
        (["train", "--task", "regression"], "learns a column of numbers, and digits has classes. Give a table"),
        (["train", "--output", "empty"], "empty is a folder"),
        (["train", "--device", "abacus"], "--device abacus: torch has no such device"),
        (["train", "--device", "meta"], "--device meta: torch has no such device"),
        (["train", "--seed", "-1"], "--seed -1"),
        (["train", "--denoiser", "magic"], "magic"),
        (["train", "--data", "nope"], "digits, mnist, fashion-mnist"),
        (["train", "--data", "absent.csv", "--target", "kind"], "absent.csv"),
        (["train", "--labels", "7"], "7"),
        (["train", "--network", "conv_tiny"], "conv_tiny"),
        (["train", "--network", "conv_pool_cnn_c"], "takes images of 12 by 12 pixels or more"),
        (["train", "--network", "conv_pool_cnn_c", "--costs", "9", "1"], "has one denoising cost, on its class scores"),
        (["train", "--network", "conv 8 9"], "(9, 9) is larger than the map below it, which has shape (1, 8, 8)"),
        (["train", "--data", "photos/of-flowers"], "no data set, file or folder 'photos/of-flowers'"),
        (["train", "--data", "empty"], "empty holds no class"),
        (["train", "--data", ""], "no data set, file or folder ''"),
        (["train", "--data", "mnist", "--data-dir", "empty"], "train-images-idx3-ubyte"),
        (["predict", "absent.safetensors", "rows.csv"], "absent.safetensors"),
        (["predict"], "Missing from tikas predict: MODEL, FILE"),
        (["predict", "m.safetensors", "rows.csv", "--device", "abacus"], "--device abacus: torch has no such device"),
        (["reproduce", "table1", "--device", "abacus"], "--device abacus: torch has no such device"),
    ],
)
def test_a_usage_error_is_one_clear_line_and_exit_code_2(
    arguments: list[str], substance: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("empty").mkdir()
    assert run(*arguments) == 2
    line = said(capsys)
    assert line.startswith("tikas: ")
    assert substance in line


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("photo", "photos"),
        ("mine", "Mine.csv"),
        ("mine.cvs", "Mine.csv"),
        ("./photos/cats", "photos/cat"),
        ("minst", "mnist"),
        ("of-flowers/all", None),
    ],
)
def test_data_that_are_not_there_are_told_what_is(
    given: str, meant: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("photos/cat").mkdir(parents=True)
    Path("Mine.csv").write_text("a,kind\n")
    expected = (
        f"tikas: There is no data set, file or folder '{given}': give one of digits, mnist, fashion-mnist, cifar10, or "
        "the path of a table or of a folder of images."
    )
    assert run("train", "--data", given, "--target", "kind") == 2  # which says nothing of a target
    assert said(capsys) == expected + (f" Did you mean {meant}?" if meant else "")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("mnist.csv", "mnist or mnist.npz or mnist.tsv"),
        ("minst.csv", "mnist or mnist.npz or mnist.tsv"),
        ("minst", "mnist or mnist.npz or mnist.tsv"),
        ("mnist.npy", "mnist or mnist.npz or mnist.tsv"),
        ("digist", "digits or digistr.csv"),
        ("digist.csv", "digits or digistr.csv"),
    ],
)
def test_near_files_do_not_hide_a_near_data_set_and_a_suffix_hides_neither(
    given: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("mnist.tsv", "mnist.npz", "digistr.csv"):
        Path(name).touch()
    assert run("train", "--data", given) == 2
    assert said(capsys).endswith(f" or of a folder of images. Did you mean {meant}?")


def test_a_file_without_a_suffix_is_told_which_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine").write_text("a,kind\n")
    assert run("train", "--data", "mine", "--target", "kind") == 2
    assert "mine has no suffix; expected one of .csv, .tsv, .npy, .npz, .parquet" in said(capsys)


def test_an_empty_file_and_a_foreign_model_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    run("train", *QUICK, "--no-baseline", "--output", "m.safetensors")
    Path("empty.csv").write_text("")
    Path("foreign.safetensors").write_bytes(b"not a model")
    np.save("narrow.npy", np.zeros((3, 5), np.float32))
    capsys.readouterr()
    for arguments, substance in (
        (("m.safetensors", "empty.csv"), "empty"),
        (("foreign.safetensors", "narrow.npy"), "not a model"),
        (("m.safetensors", "narrow.npy"), "5 features"),
    ):
        assert run("predict", *arguments) == 2
        assert substance in said(capsys)


@pytest.mark.parametrize(
    "command", [["train"], ["predict", "absent.safetensors", "rows.csv"]], ids=["train", "predict"]
)
def test_an_unwritable_path_is_a_failure_that_says_so_before_the_work(
    command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("file").write_text("in the way")
    assert run(*command, "--output", "file/m.safetensors") == 1
    assert "--output file/m.safetensors: its folder cannot be made" in said(capsys)
    assert Path("file").read_text() == "in the way"
    os.mkfifo("pipe")
    assert run(*command, "--output", "pipe") == 1
    assert "--output pipe is not a regular file" in said(capsys)

    def refused(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tikas.commands.outputs.TemporaryFile", refused)  # root may write everywhere
    assert run(*command, "--output", "locked/m.safetensors") == 1
    assert "--output locked/m.safetensors: its folder cannot be written to (Permission denied)" in said(capsys)


def test_what_is_read_is_not_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    Path("rows.csv").write_text("a,kind\n0,x\n1,y\n")
    Path("model.safetensors").write_text("a model")
    Path("link.csv").symlink_to("rows.csv")
    before = {path: path.read_bytes() for path in Path().iterdir()}
    for command, output in (
        (["train", "--data", "rows.csv", "--target", "kind", "--batch-size", "2", *QUICK], "rows.csv"),
        (["predict", "model.safetensors", "rows.csv"], "rows.csv"),
        (["predict", "model.safetensors", "rows.csv"], "link.csv"),
        (["predict", "model.safetensors", "rows.csv"], "model.safetensors"),
    ):
        assert run(*command, "--output", output) == 2
        assert f"--output {output} is a file that is read here, and would be lost" in said(capsys)
    assert {path: path.read_bytes() for path in Path().iterdir()} == before


def test_it_tells_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out == f"tikas {tikas.__version__}\n"


def test_a_warning_is_one_line_and_the_callers_own_way_to_show_it_is_left_as_it_was(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def carry_out(_: object) -> int:
        warnings.simplefilter("always")
        warnings.warn("60 rows are fewer\nthan a batch", UserWarning, stacklevel=1)
        return 0

    monkeypatch.setattr("tikas.cli.train", carry_out)
    before = warnings.showwarning, list(warnings.filters)
    assert run("train") == 0
    assert said(capsys) == "tikas: warning: 60 rows are fewer than a batch"
    assert run("trian") == 2
    assert (warnings.showwarning, list(warnings.filters)) == before


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(("index", "warned"), [(None, False), ("rows", True), ("id", True), ("shuffled", True)])
def test_a_column_that_numbers_the_rows_is_warned_of(
    index: str | None, warned: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = pd.DataFrame({"size": np.arange(120) % 7, "age": np.arange(120) * 2, "kind": ["low", "high"] * 60})
    frame = frame.sample(frac=0.9, random_state=0) if index == "shuffled" else frame
    frame = frame.rename_axis(index="id") if index == "id" else frame
    frame.to_csv("mine.csv", index=index is not None)
    assert run("train", "--data", "mine.csv", "--target", "kind", *QUICK) == 0
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == warned
    if warned:
        name = "id" if index == "id" else "column 1"
        assert f"warning: mine.csv: the column '{name}' numbers the rows, from 0 to 119, and is learnt from" in lines[0]
        ignored = shlex.split(re.search(r"\((--ignore .*?)\)", lines[0])[1])
        assert ignored == ["--ignore", name]
        assert run("train", "--data", "mine.csv", "--target", "kind", *ignored, *QUICK) == 0
        captured = capsys.readouterr()
        assert captured.err == ""
        model = re.search(r"model saved to (\S+)", captured.out)[1]
        assert tikas.load(model).feature_names_in_.tolist() == ["size", "age"]


@pytest.mark.filterwarnings("default")
def test_epochs_that_are_left_open_follow_from_the_rows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []
    monkeypatch.setattr("tikas.commands.train.suitable_epochs", lambda *given: asked.append(given) or 2)
    Path("mine.csv").write_text("a,kind\n" + "".join(f"{i % 7},{'high' if i > 99 else 'low'}\n" for i in range(310)))
    save_digits(Path("photos"))
    table, photos = ["--data", "mine.csv", "--target", "kind"], ["--data=photos"]
    for flags, epochs, given in (
        (table, 2, [(310, 100, 300)]),
        ([*table, "--validation", "20", "--batch-size", "30"], 2, [(290, 30, 300)]),
        (photos, 2, [(60, 100, 100)]),
        ([*photos, "--epochs=1"], 1, []),
        (["--epochs", "1"], 1, []),
    ):
        asked.clear()
        assert run("train", *flags, "--network", "4", "--no-baseline", "--quiet") == 0
        printed = capsys.readouterr().out
        assert asked == given
        assert f", {epochs} epochs" in printed
        model = tikas.load(printed.split("model saved to ")[1].strip())
        assert model.n_iter_ == epochs
        assert model.recipe_.name in printed  # by which the file is called


class ChosenError(Exception):
    """A recipe that was about to be trained by."""


@pytest.fixture
def _untrained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every door raises the recipe that it chose in place of training by it."""

    def choose(_: object, __: object, recipe: Recipe | list[Recipe], *___: object, **____: object) -> None:
        raise ChosenError(recipe if isinstance(recipe, Recipe) else recipe[0])

    for door in ("tikas.estimators.base.fit", "tikas.experiments.run.fit"):
        monkeypatch.setattr(door, choose)


@pytest.mark.usefixtures("_untrained")
@pytest.mark.parametrize(
    ("network", "preprocess", "task", "costs", "epochs"),
    [
        ((256, 128), "none", "classification", (1000, 10, 0.1), 100),
        ((256, 128), "standardize", "classification", (10, 1, 0.1), 300),
        ((256, 128), "standardize", "regression", (1, 0.1), 300),
        ((), "none", "classification", (1000, 0.1), 100),
        ((), "none", "regression", (1, 0.1), 100),
        (("conv_fc",), "none", "classification", (1000, 10, 0.1), 100),
        (("conv_fc",), "none", "regression", (1, 0.1), 100),
        (("conv_small",), "standardize", "classification", (1,), 100),
        (("conv_small",), "standardize", "regression", (1, 0.1), 100),
        (("conv_large",), "none", "classification", (4,), 100),
        (("conv 8 3", "max 2"), "none", "regression", (1, 0.1), 100),
        (("conv_pool_cnn_c",), "none", "classification", (1,), 100),
    ],
)
def test_costs_and_epochs_that_are_left_open_are_those_of_the_estimators(
    network: tuple[int | str, ...], preprocess: str, task: str, costs: tuple[float, ...], epochs: int
) -> None:
    x, y = np.resize([0.2, 0.3, 0.5], (2000, 1, 1, 1)) * np.ones((4, 4)), np.array([3, 7] * 1000)
    np.savez("mine.npz", x=x, y=y)
    door = {"classification": tikas.LadderClassifier, "regression": tikas.LadderRegressor}[task]
    chosen = []
    for open_costs in ({}, {"costs": None}):
        with pytest.raises(ChosenError) as by_estimator:
            door(network, preprocess=preprocess, **open_costs).fit(x, y)
        chosen.append(by_estimator.value.args[0])
    with pytest.raises(ChosenError) as by_command:
        run("train", "--data=mine.npz", "--network", *map(str, network), "--preprocess", preprocess, "--task", task)
    chosen.append(by_command.value.args[0])
    assert [(recipe.costs, recipe.epochs) for recipe in chosen] == [(costs, epochs)] * 3


@pytest.mark.parametrize("data", DATA_SETS)
def test_a_data_set_keeps_its_own_costs_and_epochs_whatever_would_suit_its_rows(
    data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def choose(recipe: Recipe, *_: object, **__: object) -> None:
        raise ChosenError(recipe)

    x, y = np.resize(np.float32([-1, 1]), (60_000, 1)), np.arange(60_000) % 10
    rows = Rows(x, y, np.arange(10), x[:0], y[:0])
    monkeypatch.setattr("tikas.experiments.preparing.rows_for", lambda *_: rows)
    monkeypatch.setattr("tikas.experiments.run.run", choose)
    with pytest.raises(ChosenError) as by_command:
        run("train", "--data", data)
    assert by_command.value.args[0] == preset_for(["train", "--data", data])


@pytest.mark.parametrize("first", ["", "low"])
def test_a_table_without_a_target_asks_for_it_whether_its_first_row_is_labelled_or_not(
    first: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("mine.csv").write_text(f"a,kind\n1,{first}\n2,high\n3,low\n")
    assert run("train", "--data", "mine.csv", *QUICK) == 2
    assert re.search("line 2, column 'kind'.* If these are the labels, name them as the target", said(capsys))


def test_columns_are_ignored_where_a_model_does_not_name_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    x, y = np.array([[0.0], [0.1], [0.9], [1.0]] * 10), [0, -1, -1, 1] * 10
    classifier = tikas.LadderClassifier((8,), costs=1.0, epochs=50, batch_size=20, random_state=0)
    classifier.fit(x, y).save("m.safetensors")
    Path("new.csv").write_text("id,name,size\n1,bob,0.05\n2,eve,0.95\n")
    assert run("predict", "m.safetensors", "new.csv") == 2
    assert "ignore it (--ignore name)" in said(capsys)
    assert run("predict", "m.safetensors", "new.csv", "--ignore", "name", "id") == 0
    assert capsys.readouterr().out.splitlines() == ["prediction", "0", "1"]
    classifier.fit(pd.DataFrame(x, columns=["size"]), y).save("m.safetensors")
    assert run("predict", "m.safetensors", "new.csv", "--ignore", "size") == 2
    assert "--ignore size: m.safetensors was trained with that column" in said(capsys)
    Path("photos").mkdir()
    assert run("predict", "m.safetensors", "photos", "--ignore", "id") == 2
    assert "--ignore id is a column, and photos is a folder" in said(capsys)


def test_only_tables_have_columns_to_ignore(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("train", "--ignore", "id", *QUICK) == 2
    assert said(capsys) == "tikas: --ignore id is a column of a table, and digits is none: leave --ignore out."


@pytest.mark.filterwarnings("default")
def test_warnings_speak_of_flags(capsys: pytest.CaptureFixture[str]) -> None:
    rows = "".join(f"{i % 7 * 40},3,{i % 5 * 60},{'high' if i % 7 > 3 else 'low'}\n" for i in range(60))
    Path("mine.csv").write_text("a,b b,c,kind\n" + rows)
    assert run("train", "--data", "mine.csv", "--target", "kind", "--preprocess", "none", *QUICK) == 0
    pixels, constant, few = capsys.readouterr().err.splitlines()
    assert pixels.endswith("Divide them by 255, or set --preprocess standardize.")
    assert constant.endswith("with scikit-learn's VarianceThreshold, or tikas train --ignore 'b b'.")
    assert few.endswith("or silence this warning with --batch-size 60 or less.")


def test_a_remedy_in_brackets_is_a_flag_too(capsys: pytest.CaptureFixture[str]) -> None:
    np.savez("large.npz", x=np.random.default_rng(0).random((4, 3, 65, 64)), y=[0, 1, 0, 1])
    assert run("train", "--data", "large.npz", "--preprocess", "whiten", *QUICK) == 2
    assert said(capsys).endswith("Make the images smaller, or leave whitening out (--preprocess none).")


@pytest.mark.filterwarnings("default")
def test_a_warning_is_shown_once_though_it_is_of_both_networks(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.csv").write_text("a,kind\n" + "".join(f"{i / 10},{'high' if i > 9 else 'low'}\n" for i in range(20)))
    assert run("train", "--data", "mine.csv", "--target", "kind", "--labels", "10", *QUICK) == 0
    assert "20 rows are fewer than a batch of 100" in said(capsys)


def test_a_baseline_that_diverges_does_not_hide_the_ladder(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = tikas.experiments.run.run

    def run_or_diverge(recipe: Recipe, *arguments: object, **more: object) -> object:
        if not any(recipe.costs):
            raise TrainingDivergedError({0: "the supervised cost was no longer a finite number"})
        return real(recipe, *arguments, **more)

    monkeypatch.setattr("tikas.experiments.run.run", run_or_diverge)
    assert run("train", *QUICK, "--output", "m.safetensors") == 1
    captured = capsys.readouterr()
    assert captured.out.count(" %") == 1
    assert "model saved to m.safetensors" in captured.out
    assert captured.err.startswith("tikas: same network, no denoising costs: the supervised cost was no longer")


def test_ctrl_c_keeps_a_model_that_can_be_used(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    updates = iter(range(30))
    plain = Fleet.update

    def update(fleet: Fleet, batch: Batch, rate: Tensor) -> Tensor:
        if next(updates, None) is None:
            raise KeyboardInterrupt
        return plain(fleet, batch, rate)

    monkeypatch.setattr(Fleet, "update", update)
    assert run("train", "--network", "16", "--epochs", "9", "--quiet", "--output", "m.safetensors") == 130
    captured = capsys.readouterr()
    assert "model saved to m-interrupted.safetensors" in captured.out
    assert "interrupted" in captured.err
    assert tikas.load("m-interrupted.safetensors").n_iter_ == 2


@pytest.mark.parametrize(
    ("command", "limit"), [(["-c", "import tikas"], 0.3), (["-m", "tikas.cli", "--help"], 0.5)], ids=["import", "help"]
)
def test_it_starts_quickly(command: list[str], limit: float) -> None:
    """By the processor's time, the quickest of five: other work on the machine is not what is asked about."""
    resource = pytest.importorskip("resource", reason="Windows does not tell what a process that ended had taken")
    seconds = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *command], check=True, capture_output=True, env={**os.environ})
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(seconds) < limit
