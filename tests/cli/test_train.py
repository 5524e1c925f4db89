"""`tikas train`: what it prints, which files it writes, and how its options act."""

import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import tikas
from tikas.cli.train import PRESETS
from tikas.data.datasets import Dataset
from tikas.data.splits import split
from tikas.estimators.base import LadderEstimator
from tikas.training.checkpoint import Checkpointer
from tikas.training.engines import EagerEngine
from tikas.training.recipe import SMALL, Recipe, default_costs, default_epochs
from tikas.training.trainer import TrainingDivergedError

QUICK = ["--network", "16", "--epochs", "2", "--quiet"]
OUTPUT = ["--output", "m.safetensors"]


def write_table(name: str = "mine.csv", rows: int = 200, labeled: int | None = None) -> list[str]:
    """Write a table with a number and a class, and return the options that train on it."""
    kinds = [["low", "high"][i >= rows // 2] for i in range(rows)]
    if labeled is not None:
        kinds = [["low", "high"][i % 2] if i < labeled else "" for i in range(rows)]
    Path(name).write_text("a,kind\n" + "".join(f"{i / rows + 0.01},{kind}\n" for i, kind in enumerate(kinds)))
    return ["--data", name, "--target", "kind"]


def test_both_errors_are_printed_and_the_model_is_saved(run, capsys) -> None:
    assert run("train", *QUICK) == 0
    captured = capsys.readouterr()
    saved, title, *table = captured.out.splitlines()
    assert saved == "model saved to models/digits.safetensors"
    assert "digits: 1297 rows, 50 labeled, 10 classes; 16, 2 epochs" in title
    assert re.search(r"test error .* seconds", captured.out)
    assert [line.split("│")[1].strip() for line in table if " % " in line] == [
        "ladder",
        "same network, no denoising costs",
    ]
    assert captured.err == ""
    assert tikas.load("models/digits.safetensors").classes_.tolist() == [str(digit) for digit in range(10)]


def test_the_default_name_of_a_model_is_numbered_if_it_is_taken(run, capsys) -> None:
    for expected in ("digits", "digits-2", "digits-3"):
        assert run("train", *QUICK, "--no-baseline") == 0
        assert f"model saved to models/{expected}.safetensors" in capsys.readouterr().out
    assert len(list(Path("models").iterdir())) == 3


def test_the_printed_errors_are_those_of_the_members_on_the_test_rows(run, capsys) -> None:
    assert run("train", *QUICK, "--members", "2", "--no-baseline", *OUTPUT) == 0
    model = tikas.load("m.safetensors")
    test = tikas.data.datasets.load_dataset("digits")[1]
    errors = []
    for ladder in model.ladders_:
        member = tikas.load("m.safetensors")
        member.ladders_ = [ladder]
        errors.append(100 * np.mean(member.predict(test.rows) != test.classes[test.targets]))
    assert len(errors) == 2
    assert f"{np.mean(errors):.2f} ± {np.std(errors, ddof=1):.2f} %" in capsys.readouterr().out


def test_every_setting_of_a_recipe_is_an_option(run, capsys) -> None:
    assert run("train", "--help") == 0
    printed = capsys.readouterr().out
    for field in Recipe.__dataclass_fields__:
        assert f"--{field.replace('_', '-')} " in printed


@pytest.mark.parametrize("data", ["digits", "mnist", "fashion-mnist", "cifar10"])
def test_help_states_the_defaults_of_a_data_set(data: str, run, capsys) -> None:
    assert run("train", "--help") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith(f"  {data}")]
    preset = vars(SMALL) | PRESETS[data]
    settings = (preset["labels"], *preset["network"], preset["noise"][0], preset["epochs"])
    assert any(line[-len(settings) :] == [str(setting) for setting in settings] for line in lines)


def test_early_stopping_keeps_the_best_of_the_validation_rows(run) -> None:
    stopping = ["--early-stopping", "--n-iter-no-change", "1", "--tol", "0.5", "--validation", "100", "--epochs", "9"]
    assert run("train", *QUICK, *stopping, *OUTPUT, "--no-baseline") == 0
    model = tikas.load("m.safetensors")
    assert (model.recipe_.early_stopping, model.recipe_.tol) == (True, 0.5)
    assert model.n_iter_ == 2


def test_options_set_the_recipe_of_the_saved_model(run) -> None:
    options = "--noise 0.2 0.4 --costs 5 --denoiser mlp --activation tanh --calibration labeled --precision exact"
    rates = "--learning-rate 0.01 --annealed 0.5 --batch-size 60 --labeled-batch-size 30 --labels 60 --validation 100"
    assert run("train", *QUICK, *options.split(), *rates.split(), "--seed", "3", *OUTPUT, "--no-baseline") == 0
    model = tikas.load("m.safetensors")
    assert model.recipe_ == Recipe(
        network=(16,),
        noise=(0.2, 0.4),
        costs=(5.0,),
        denoiser="mlp",
        activation="tanh",
        calibration="labeled",
        precision="exact",
        learning_rate=0.01,
        annealed=0.5,
        batch_size=60,
        labeled_batch_size=30,
        epochs=2,
    )
    assert model.seeds_ == [3]


def test_a_network_without_hidden_rungs_connects_the_input_to_the_top(run, capsys) -> None:
    assert run("train", "--network", "", "--epochs", "2", "--quiet", "--no-baseline", *OUTPUT) == 0
    assert "10 classes; no hidden layers, 2 epochs" in capsys.readouterr().out
    assert tikas.load("m.safetensors").ladder_.shapes == [(64,), (10,)]


def test_a_seed_determines_its_member_alone_or_with_others(run) -> None:
    assert run("train", *QUICK, "--members", "2", "--no-baseline", *OUTPUT) == 0
    assert run("train", *QUICK, "--seed", "1", "--no-baseline", "--output", "alone.safetensors") == 0
    together, alone = (tikas.load(name) for name in ("m.safetensors", "alone.safetensors"))
    assert (together.seeds_, alone.seeds_) == ([0, 1], [1])
    for name, tensor in alone.ladder_.state_dict().items():
        np.testing.assert_allclose(tensor, together.ladders_[1].state_dict()[name], atol=1e-5)


def test_errors_are_measured_on_labels_that_were_not_used(run, capsys) -> None:
    assert run("train", *write_table(), "--labels", "20", "--validation", "30", *QUICK) == 0
    printed = capsys.readouterr().out
    assert re.search(r"error on the 150 hidden labels .* validation error", printed)
    assert printed.count(" %") == 4
    assert "--validation" not in printed


def test_without_other_labels_the_error_is_measured_by_cross_validation(run, capsys) -> None:
    options = [*write_table(labeled=30), *QUICK]
    assert run("train", *options, "--folds", "3") == 0
    printed = capsys.readouterr().out
    assert "30 labeled, 2 classes, 3 folds of 30 labels" in printed
    lines = [line.split("│")[1:4] for line in printed.splitlines() if " % " in line and "│" in line]
    assert [name.strip() for name, *_ in lines] == ["ladder", "same network, no denoising costs"]
    for _, *cells in lines:
        error, low, high = map(float, re.findall(r"[\d.]+", " ".join(cells)))
        assert 0 <= low <= error <= high <= 100
    assert "30 labels" in printed.splitlines()[-1]
    assert run("train", *options, "--no-baseline") == 0
    assert "same network" not in capsys.readouterr().out
    assert not list(Path("models").glob("*.unfinished"))


def test_without_folds_no_error_is_reported_and_validation_is_proposed(run, capsys) -> None:
    options = [*write_table(labeled=30), *QUICK]
    assert run("train", *options, "--folds", "0") == 0
    printed = capsys.readouterr().out
    assert "same network" not in printed
    assert "--validation" in printed
    assert run("train", *options, "--validation", "10") == 0
    assert "validation error" in capsys.readouterr().out


def test_an_interrupted_cross_validation_continues(run, capsys, updates) -> None:
    options = [*write_table(labeled=30), *QUICK, "--checkpoint-every", "0"]
    assert run("train", *options, "--output", "whole.safetensors") == 0
    expected = re.findall(r"[\d.]+ to [\d.]+ %", capsys.readouterr().out)
    all_updates = updates[1]
    updates[:] = [all_updates - 1, 0]
    assert run("train", *options, *OUTPUT) == 130
    captured = capsys.readouterr()
    assert "model saved to m.safetensors" in captured.out
    assert "cross-validation: interrupted" in captured.err
    made = updates[1]
    updates[:] = [0, 0]
    assert run("train", *options, *OUTPUT) == 0
    assert updates[1] < all_updates - made + 3
    assert re.findall(r"[\d.]+ to [\d.]+ %", capsys.readouterr().out) == expected
    assert not list(Path().glob("*.unfinished"))


@pytest.mark.parametrize(
    ("name", "saved"),
    [
        ("Patients 2023 (final).csv", "patients-2023-final"),
        ("Größe & Gewicht.csv", "grosse-gewicht"),
        ("diagnosis.v2.csv", "diagnosis.v2"),
        ("数据.csv", "model"),
    ],
)
def test_the_default_name_of_a_model_can_be_typed(name: str, saved: str, run, capsys) -> None:
    options = [*write_table(name), *QUICK, "--labels", "20", "--no-baseline"]
    for number in ("", "-2"):
        assert run("train", *options) == 0
        assert f"model saved to models/{saved}{number}.safetensors" in capsys.readouterr().out


def test_brackets_in_a_file_name_are_printed_as_they_are(run, capsys) -> None:
    Path("mine[").mkdir()
    for name in ("mine[old].csv", "mine[/old].csv"):
        assert run("train", *write_table(name), *QUICK) == 0
        assert f"{name}: " in capsys.readouterr().out


def test_a_class_with_too_few_labels_is_named_in_the_error(run, capsys) -> None:
    kinds = ["low"] * 30 + ["high"] * 4
    Path("mine.csv").write_text("a,kind\n" + "".join(f"{i % 7},{kind}\n" for i, kind in enumerate(kinds)))
    options = ["--data", "mine.csv", "--target", "kind", "--batch-size", "30", "--network", "4", "--quiet"]
    assert run("train", *options, "--labels", "20") == 2
    message = capsys.readouterr().err
    assert "'high' has 4" in message
    assert "at most 8" in message


def test_a_regression_is_measured_in_the_unit_of_its_target(run, capsys) -> None:
    x = np.random.default_rng(0).normal(size=(300, 2)).round(3)
    y = (100 + 20 * x[:, 0] - 10 * x[:, 1]).round(2)
    lines = [f"{a},{b},{price}" for (a, b), price in zip(x, y, strict=True)]
    Path("mine.csv").write_text("\n".join(["a,b,price", *lines, "0.1,0.2,"]))
    options = "--data mine.csv --target price --task regression --labels 60 --validation 40"
    assert run("train", *options.split(), "--network", "16", "--epochs", "60", "--quiet", *OUTPUT) == 0
    hidden_error, validation_error, _, baseline_error, *_ = map(
        float, re.findall(r"([\d.]+) │", capsys.readouterr().out)
    )
    model = tikas.load("m.safetensors")
    assert isinstance(model, tikas.LadderRegressor)
    chosen = split(np.zeros(300, np.int64), 60, validation=40, seed=0)
    hidden = np.setdiff1d(chosen.unlabeled, chosen.labeled)
    for printed, rows in ((hidden_error, hidden), (validation_error, chosen.validation)):
        predicted = model.predict(pd.DataFrame(x[rows], columns=["a", "b"]))
        assert printed == pytest.approx(np.sqrt(np.mean((predicted - y[rows]) ** 2)), rel=1e-3)
        assert printed < 10  # the deviation of y is 22
    assert baseline_error != hidden_error


def test_arrays_are_read_from_a_file(run, capsys) -> None:
    rows = np.random.default_rng(0).normal(size=(150, 3))
    labels = np.where(np.arange(150) < 50, np.where(rows[:, 0] > 0, "up", "down"), "")
    np.save("rows.npy", rows)
    assert run("train", "--data", "rows.npy", *QUICK) == 2
    assert "rows.npy" in capsys.readouterr().err
    np.savez("rows.npz", x=rows, y=labels)
    assert run("train", "--data", "rows.npz", *QUICK, "--validation", "10", *OUTPUT) == 0
    assert tikas.load("m.safetensors").classes_.tolist() == ["down", "up"]


@pytest.mark.parametrize("preprocess", ["none", "whiten"])
def test_a_folder_of_images_is_trained_on_and_its_test_images_are_measured(
    preprocess: str, photos: Path, run, capsys
) -> None:
    options = ["--network", "conv 4 3", "max 2", "--epochs", "2", "--batch-size", "20", "--quiet"]
    assert run("train", "--data", str(photos), *options, "--preprocess", preprocess, *OUTPUT) == 0
    printed = capsys.readouterr().out
    assert "photos.v2: 50 rows, 40 labeled, 2 classes; " in printed
    assert "test error" in printed
    model = tikas.load("m.safetensors")
    assert (model.recipe_.costs, model.preprocess, model.input_shape_) == ((1.0,), preprocess, (1, 8, 8))
    assert model.classes_.tolist() == ["one", "zero"]


def test_a_module_is_trained_by_its_name_and_compared(run, capsys) -> None:
    images = np.random.default_rng(0).random((12, 3, 12, 14), np.float32)
    np.savez("images.npz", x=images, y=np.arange(12) % 2)
    options = ["--network", "conv_pool_cnn_c", "--epochs", "1", "--batch-size", "6", "--validation", "4", "--quiet"]
    assert run("train", "--data", "images.npz", *options, *OUTPUT) == 0
    assert "same network" in capsys.readouterr().out
    assert tikas.load("m.safetensors").recipe_.is_module


class CaughtError(Exception):
    """Raised in place of training, with the estimator and its data."""


def caught_estimator(run, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Any:
    """Return the estimator that a command is about to fit."""

    def catch(estimator: LadderEstimator, *_: object, **__: object) -> None:
        raise CaughtError(estimator)

    for kind in (tikas.LadderClassifier, tikas.LadderRegressor):
        monkeypatch.setattr(kind, "fit", catch)
    with pytest.raises(CaughtError) as caught:
        run("train", *arguments)
    return caught.value.args[0]


@pytest.mark.parametrize(
    ("data", "shape", "expected"),
    [
        ("mnist", (1, 28, 28), Recipe()),
        ("fashion-mnist", (1, 28, 28), Recipe()),
        (
            "cifar10",
            (3, 32, 32),
            Recipe(
                preprocess="whiten",
                network=("conv_large",),
                activation="leaky_relu",
                costs=4.0,
                epochs=70,
                annealed=0.14,
            ),
        ),
    ],
)
def test_the_papers_data_sets_have_the_papers_settings(
    data: str, shape: tuple[int, ...], expected: Recipe, run, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = np.random.default_rng(0).uniform(0, 0.9, (6000, *shape)).astype(np.float32)
    rows[:, :, :1] = 0
    train = Dataset(rows[:, :, :8, :8], np.arange(6000) % 10, classes=np.arange(10).astype(str))
    test = Dataset(train.rows[:10], train.targets[:10], classes=train.classes)
    monkeypatch.setattr("tikas.data.datasets.load_dataset", lambda *_: (train, test))
    estimator = caught_estimator(run, monkeypatch, "--data", data)
    recipe = estimator._with_defaults(estimator._recipe(), train.rows)
    assert recipe == expected


def test_options_replace_the_settings_of_a_data_set(run, monkeypatch: pytest.MonkeyPatch) -> None:
    digits = tikas.data.datasets.load_dataset("digits")
    monkeypatch.setattr("tikas.data.datasets.load_dataset", lambda *_: digits)
    estimator = caught_estimator(run, monkeypatch, "--data", "cifar10", "--network", "conv_pool_cnn_c", "--labels=50")
    assert (estimator.network, estimator.activation, estimator.preprocess) == (
        ("conv_pool_cnn_c",),
        Recipe.activation,
        "whiten",
    )
    estimator = caught_estimator(run, monkeypatch, "--data=mnist", "--network", "100", "conv 3 3", "--epochs", "7")
    assert (estimator.network, estimator.epochs, estimator.noise) == ((100, "conv 3 3"), 7, Recipe().noise)


def test_costs_and_epochs_that_are_not_given_are_derived_from_the_rows(run, monkeypatch: pytest.MonkeyPatch) -> None:
    options = write_table(rows=310)
    estimator = caught_estimator(run, monkeypatch, *options)
    assert (estimator.costs, estimator.epochs, estimator.preprocess) == (None, None, "columns")
    rows = np.random.default_rng(0).normal(size=(310, 1))
    recipe = estimator._with_defaults(estimator._recipe(), rows)
    assert recipe.costs == default_costs(recipe.network, rows, "classification")
    assert recipe.epochs == default_epochs(rows, recipe.batch_size) == 300


@pytest.mark.filterwarnings("default")
def test_a_warning_of_both_networks_is_printed_once(run, capsys) -> None:
    assert run("train", *write_table(rows=20), "--labels", "10", *QUICK) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("tikas: warning: ")
    assert "20 rows" in line


@pytest.mark.filterwarnings("default")
def test_a_column_of_row_numbers_is_left_out_unless_it_is_given_as_numbers(run, capsys) -> None:
    frame = pd.DataFrame({"size": np.arange(120) % 7, "kind": ["low", "high"] * 60})
    frame.rename_axis(index="id").to_csv("mine.csv")
    options = ["--data", "mine.csv", "--target", "kind", *QUICK, *OUTPUT, "--folds", "0"]
    assert run("train", *options) == 0
    captured = capsys.readouterr()
    assert "left out: id (identifies the rows)" in captured.out
    assert captured.err == ""
    assert tikas.load("m.safetensors").feature_names_in_.tolist() == ["size"]
    assert run("train", *options, "--numeric", "id") == 0
    assert "left out" not in capsys.readouterr().out
    assert tikas.load("m.safetensors").feature_names_in_.tolist() == ["id", "size"]


def test_output_that_cannot_be_written_is_reported_before_training(run, capsys, monkeypatch) -> None:
    Path("file").write_text("in the way")
    assert run("train", *QUICK, "--output", "file/m.safetensors") == 1
    assert "--output file/m.safetensors" in capsys.readouterr().err
    Path("folder").mkdir()
    assert run("train", *QUICK, "--output", "folder") == 2
    assert "--output folder" in capsys.readouterr().err

    def refuse(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tikas.cli.options.TemporaryFile", refuse)  # root may write everywhere
    assert run("train", *QUICK, "--output", "locked/m.safetensors") == 1
    assert "Permission denied" in capsys.readouterr().err


def test_the_data_are_not_overwritten(run, capsys) -> None:
    options = write_table("rows.csv")
    before = Path("rows.csv").read_bytes()
    Path("link.csv").symlink_to("rows.csv")
    for output in ("rows.csv", "link.csv"):
        assert run("train", *options, *QUICK, "--output", output) == 2
        assert f"--output {output}" in capsys.readouterr().err
    assert Path("rows.csv").read_bytes() == before


def test_the_ladder_is_kept_if_the_network_to_compare_diverges(run, capsys, monkeypatch) -> None:
    fit = tikas.LadderClassifier.fit

    def fit_or_diverge(estimator: LadderEstimator, *arguments: Any, **options: Any) -> Any:
        if estimator.costs == 0:
            raise TrainingDivergedError({0: "the supervised cost became infinite"})
        return fit(estimator, *arguments, **options)

    monkeypatch.setattr(tikas.LadderClassifier, "fit", fit_or_diverge)
    assert run("train", *QUICK, *OUTPUT) == 1
    captured = capsys.readouterr()
    assert captured.out.count(" %") == 1
    assert "model saved to m.safetensors" in captured.out
    assert "no denoising costs" in captured.err
    assert "became infinite" in captured.err


def test_no_model_is_saved_if_the_ladder_diverges(run, capsys, monkeypatch) -> None:
    def diverge(*_: object, **__: object) -> None:
        raise TrainingDivergedError({0: "the supervised cost became infinite"})

    monkeypatch.setattr(tikas.LadderClassifier, "fit", diverge)
    assert run("train", *QUICK) == 1
    captured = capsys.readouterr()
    assert (captured.out, "became infinite" in captured.err) == ("", True)
    assert not list(Path("models").iterdir())


def interrupt_after(updates: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Press Ctrl-C after so many updates of all fits together."""
    left = iter(range(updates))
    update = EagerEngine.update

    def update_or_interrupt(engine: EagerEngine, *arguments: Any) -> Any:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return update(engine, *arguments)

    monkeypatch.setattr(EagerEngine, "update", update_or_interrupt)


def test_ctrl_c_keeps_what_was_learned(run, capsys, monkeypatch) -> None:
    interrupt_after(30, monkeypatch)  # 12 updates in an epoch
    assert run("train", "--network", "16", "--epochs", "9", "--quiet", *OUTPUT) == 130
    captured = capsys.readouterr()
    assert "16, 2 epochs" in captured.out
    assert "model saved to m-interrupted.safetensors" in captured.out
    assert captured.out.count(" %") == 1
    assert re.match("tikas: ladder: interrupted.*--restart", captured.err)
    assert tikas.load("m-interrupted.safetensors").n_iter_ == 2


def test_ctrl_c_before_the_first_epoch_leaves_no_model(run, capsys, monkeypatch) -> None:
    interrupt_after(3, monkeypatch)
    assert run("train", *QUICK, *OUTPUT) == 130
    captured = capsys.readouterr()
    assert "model saved" not in captured.out
    assert re.match("tikas: ladder: interrupted.*--restart", captured.err)
    assert not list(Path().glob("*.safetensors"))


def test_ctrl_c_while_the_second_network_is_trained_keeps_the_ladder_as_it_is(run, capsys, monkeypatch) -> None:
    interrupt_after(30, monkeypatch)  # 24 updates of the ladder
    assert run("train", *QUICK, *OUTPUT) == 130
    captured = capsys.readouterr()
    assert captured.out.count(" %") == 1
    assert "model saved to m.safetensors" in captured.out
    assert tikas.load("m.safetensors").n_iter_ == 2


def test_the_model_is_saved_before_it_is_measured(run, capsys, monkeypatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tikas.LadderClassifier, "predict", interrupt)
    assert run("train", *QUICK, *OUTPUT) == 130
    assert "model saved to m.safetensors" in capsys.readouterr().out
    assert tikas.load("m.safetensors").n_iter_ == 2


# Continuing


@pytest.fixture
def updates(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The updates that were made: 24 of the ladder and 24 of the baseline, unless they continue.

    Set its first entry to send Ctrl-C before that update.
    """
    count, update = [0, 0], EagerEngine.update

    def counted(engine: EagerEngine, *arguments: Any) -> Any:
        count[1] += 1
        if count[1] == count[0]:
            signal.raise_signal(signal.SIGINT)
        return update(engine, *arguments)

    monkeypatch.setattr(EagerEngine, "update", counted)
    return count


def assert_same_model(path: str, other: str) -> None:
    one, same = tikas.load(path), tikas.load(other)
    for member, expected in zip(one.ladders_, same.ladders_, strict=True):
        for (name, tensor), equal in zip(member.state_dict().items(), expected.state_dict().values(), strict=True):
            np.testing.assert_array_equal(tensor, equal, name)
    assert [{**line, "seconds": 0} for line in one.history_] == [{**line, "seconds": 0} for line in same.history_]


@pytest.mark.parametrize(
    ("stop", "network", "files"),
    [
        (3, "ladder", {"digits.unfinished"}),
        (15, "ladder", {"digits.unfinished", "digits-interrupted.safetensors"}),
        (30, "no denoising costs", {"digits.unfinished", "digits.safetensors"}),
        (40, "no denoising costs", {"digits.unfinished", "digits.safetensors"}),
    ],
)
def test_the_same_command_continues_after_ctrl_c(
    run, capsys, updates, stop: int, network: str, files: set[str]
) -> None:
    options = ["train", *QUICK, "--members", "2", "--validation", "30"]
    assert run(*options, "--output", "whole.safetensors") == 0
    expected = re.findall(r"[\d.]+ ± [\d.]+ %", capsys.readouterr().out)
    assert (updates[1], Path("whole.unfinished").exists()) == (48, False)
    updates[:] = [stop, 0]
    assert run(*options) == 130
    assert re.search(f"{network}: interrupted.*--restart", capsys.readouterr().err)
    assert {path.name for path in Path("models").iterdir()} == files
    assert run(*options) == 0
    printed = capsys.readouterr().out
    assert "continuing from models/digits.unfinished" in printed
    assert updates[1] == 48  # none is made twice
    assert re.findall(r"[\d.]+ ± [\d.]+ %", printed) == expected
    assert "resumed" in printed
    assert_same_model("models/digits.safetensors", "whole.safetensors")
    assert {path.name for path in Path("models").iterdir()} == (files | {"digits.safetensors"}) - {"digits.unfinished"}


def test_what_a_killed_process_was_writing_is_deleted(run, updates) -> None:
    updates[0] = 40
    assert run("train", *QUICK, *OUTPUT) == 130
    for folder, name in ((".", "m"), ("m.unfinished", "ladder-0.0")):
        Path(folder, f".{name}.safetensors.0123.partial").write_bytes(b"half of it")
    assert run("train", *QUICK, *OUTPUT) == 0
    assert [path.name for path in Path().iterdir()] == ["m.safetensors"]


@pytest.mark.parametrize("stop", [15, 40])
def test_restart_begins_again(run, updates, stop: int) -> None:
    updates[0] = stop
    assert run("train", *QUICK) == 130
    updates[:] = [0, 0]
    assert run("train", *QUICK, "--restart") == 0
    assert updates[1] == 48
    assert run("train", *QUICK, "--restart", "--output", "new.safetensors") == 0
    assert_same_model("models/digits.safetensors", "new.safetensors")
    assert not list(Path().glob("**/*.unfinished"))


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        (["--epochs", "3"], "epochs=2 then, 3 now"),
        (["--labels", "60"], "labels"),
        (["--seed", "1"], "seed"),
        (["--members", "2"], "members: 1"),
        (["--data", "rows.npz"], "data"),
    ],
)
def test_another_command_is_refused_with_what_differs(run, capsys, updates, changed: list[str], named: str) -> None:
    rows = np.random.default_rng(0).random((1297, 64))
    np.savez("rows.npz", x=rows, y=np.arange(1297) % 10)
    updates[0] = 30
    assert run("train", *QUICK, "--labels", "50", *OUTPUT) == 130
    capsys.readouterr()
    assert run("train", *QUICK, "--labels", "50", *changed, *OUTPUT) == 2
    message = capsys.readouterr().err
    assert named in message
    assert "--restart" in message
    assert run("train", *QUICK, "--labels", "50", *changed, "--restart", *OUTPUT) == 0
    assert not Path("m.unfinished").exists()


def test_a_model_that_another_process_trains_is_refused(run, capsys) -> None:
    other = Checkpointer("m.unfinished", names=["ladder-0"])
    other.open([{"seed": 0}])
    for options in ([], ["--restart"]):
        assert run("train", *QUICK, *OUTPUT, *options) == 1
        assert "Another process trains ladder-0 of m.unfinished" in capsys.readouterr().err
    other.close()
    assert run("train", *QUICK, *OUTPUT) == 0


@pytest.mark.filterwarnings("ignore::tikas.training.recipe.UnusualSettingWarning")
def test_a_ladder_that_diverges_leaves_no_snapshots(run) -> None:
    assert run("train", *QUICK, "--learning-rate", "1e30", "--checkpoint-every", "0", *OUTPUT) == 1
    assert not Path("m.unfinished").exists()
    assert run("train", *QUICK, *OUTPUT) == 0
