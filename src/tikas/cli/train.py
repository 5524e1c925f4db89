"""`tikas train`: train a ladder, compare it with the same network without denoising costs, and save it."""

from __future__ import annotations

import glob
import time
import warnings
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from tikas.cli.options import (
    FAILURE,
    INTERRUPTED,
    DataDir,
    Device,
    Quiet,
    check_output,
    check_table_options,
    print_error,
)
from tikas.model.specs import ActivationName, DenoiserName, Task
from tikas.model.zoo import MODULES
from tikas.paper.experiments import FULL, LARGE_GAMMA
from tikas.training.recipe import Calibration, Precision, Preprocess, Recipe

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from tikas.data.datasets import Dataset
    from tikas.data.sources import AnyRows
    from tikas.data.splits import Split
    from tikas.estimators import LadderClassifier, LadderRegressor

LADDER, BASELINE = "ladder", "same network, no denoising costs"


def _settings_of(recipe: Recipe) -> dict[str, Any]:
    """Return the settings of a recipe; costs are left to the estimator, which derives them from the network."""
    return {name: value for name, value in vars(recipe).items() if name not in ("task", "costs")}


PRESETS: dict[str, dict[str, Any]] = {
    "digits": {"labels": "50", "epochs": 100},
    "mnist": {"labels": "100", **_settings_of(FULL)},
    "fashion-mnist": {"labels": "100", **_settings_of(FULL)},
    "cifar10": {"labels": "4000", **_settings_of(LARGE_GAMMA)},
    "table": {"labels": "all", "preprocess": "standardize"},
    "tables": {"labels": "all", "preprocess": "standardize"},
    "folder": {"labels": "all"},
}
"""Settings that differ from the defaults of the estimators, by data; for the paper's data sets, its settings."""


class ErrorColumn(NamedTuple):
    """An error column of the printed table: its title, and the rows on which each member is measured."""

    title: str
    rows: Dataset
    chosen: Sequence[NDArray[Any] | slice]


def train(
    data: Annotated[
        str,
        typer.Option(
            help="digits, mnist, fashion-mnist, cifar10, or the path of a table or of a folder of images or Parquet "
            "files."
        ),
    ] = "digits",
    target: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column of a table with the labels; empty cells: unlabeled.")
    ] = None,
    ignore: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN...", help="Columns of a table to leave out, such as row ids.")
    ] = None,
    labels: Annotated[
        str | None, typer.Option(metavar="N|all", help="Number of labels to use, balanced over the classes.")
    ] = None,
    validation: Annotated[
        int, typer.Option(metavar="N", min=0, help="Number of labeled rows to hold out and measure the error on.")
    ] = 0,
    task: Annotated[Task, typer.Option(help="Learn classes, or a column of numbers.")] = "classification",
    preprocess: Annotated[Preprocess | None, typer.Option(help="Standardize columns, or whiten images.")] = None,
    network: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LAYER...",
            help="Hidden layers from the input on: a number of units, 'conv 32 5 full', 'max 2', 'mean 3 stride=2', "
            "'dense 100 tanh', 'global'; or mlp, conv_fc, conv_small, conv_large, conv_pool_cnn_c; or '' for none.",
        ),
    ] = None,
    activation: Annotated[ActivationName | None, typer.Option(help="Activation of the hidden layers.")] = None,
    noise: Annotated[
        list[float] | None,
        typer.Option(metavar="X...", help="Noise of the input and each layer; the last is repeated."),
    ] = None,
    costs: Annotated[
        list[float] | None,
        typer.Option(
            metavar="X...",
            help="Weights of the denoising costs from the input on; the last is repeated. One number: the output "
            "layer alone (the Γ-model); 0: a supervised network.",
        ),
    ] = None,
    denoiser: Annotated[DenoiserName | None, typer.Option(help="Denoising function.")] = None,
    epochs: Annotated[int | None, typer.Option(metavar="N", min=1, help="Passes over the rows.")] = None,
    annealed: Annotated[
        float | None,
        typer.Option(metavar="X", min=0, max=1, help="Final fraction of the updates, with a decreasing learning rate."),
    ] = None,
    learning_rate: Annotated[float | None, typer.Option(metavar="X", help="Learning rate of Adam.")] = None,
    batch_size: Annotated[int | None, typer.Option(metavar="N", min=2, help="Unlabeled rows in an update.")] = None,
    labeled_batch_size: Annotated[
        int | None, typer.Option(metavar="N", min=2, help="Labeled rows in an update.")
    ] = None,
    calibration: Annotated[
        Calibration | None, typer.Option(help="Rows that determine the normalization statistics for prediction.")
    ] = None,
    precision: Annotated[
        Precision | None, typer.Option(help="fast: bf16 or TF32 products where they are faster; exact: float32.")
    ] = None,
    seed: Annotated[
        int, typer.Option(metavar="N", min=0, help="Determines labels, initial weights, order and noise.")
    ] = 0,
    members: Annotated[
        int, typer.Option(metavar="N", min=1, help="Number of seeds to train together, from --seed on.")
    ] = 1,
    data_dir: DataDir = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Model file. Default: models/NAME.safetensors."),
    ] = None,
    baseline: Annotated[bool, typer.Option(help="Also train the same network without denoising costs.")] = True,
    checkpoint_every: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="Time between two snapshots; 0: after every epoch.")
    ] = 60.0,
    restart: Annotated[
        bool, typer.Option("--restart", help="Begin again, instead of continuing from the snapshots.")
    ] = False,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Train a ladder network and save it.

    Prints its error on test rows, or on known labels that --labels or --validation left out, beside that of the same
    network without denoising costs. `tikas predict` reads the saved file.

    If the training is stopped, the same command continues from the snapshots in the folder OUTPUT.unfinished, and the
    result is the same.

    \b
    Defaults           labels  network                    noise  epochs
    digits             50      256 128                    0.2    100
    mnist              100     1000 500 250 250 250       0.3    150
    fashion-mnist      100     1000 500 250 250 250       0.3    150
    cifar10, whitened  4000    conv_large                 0.3    70
    your own data      all     256 128                    0.2    derived from the rows

    Columns of a table are standardized. Costs are derived from the network and the scale of the rows.

    \b
    tikas train
    tikas train --data mnist --labels 100 --epochs 10
    tikas train --data my.csv --target kind
    tikas train --data my.csv --target price --task regression --ignore id name
    tikas train --data my-parquet-files --target kind
    tikas train --data my-photos --network "conv 32 5 full" "max 2" "conv 64 3" global top
    """
    given: dict[str, Any] = {
        "labels": labels,
        "preprocess": preprocess,
        "network": network if network is None else _layers(network),
        "activation": activation,
        "noise": noise,
        "costs": costs,
        "denoiser": denoiser,
        "epochs": epochs,
        "annealed": annealed,
        "learning_rate": learning_rate,
        "batch_size": batch_size,
        "labeled_batch_size": labeled_batch_size,
        "calibration": calibration,
        "precision": precision,
    }
    from tikas.training.checkpoint import UNFINISHED, Checkpointer

    train_rows, test_rows = _read(data, data_dir, target, ignore or [], task)
    settings = _settings(data, {name: value for name, value in given.items() if value is not None})
    labels = str(settings.pop("labels"))
    output = output or _free_path(Path("models", f"{Path(data).resolve().stem}.safetensors"))
    check_output(output, inputs=[Path(data)])

    splits = _splits(train_rows, _parse_labels(labels), validation, range(seed, seed + members))
    columns = _columns(train_rows, test_rows, splits)
    settings |= {"n_members": members, "random_state": seed, "device": device, "verbose": not quiet}
    checkpointers = {
        name: Checkpointer(
            output.with_suffix(UNFINISHED),
            seconds=checkpoint_every,
            names=[f"{file}-{member}" for member in range(members)],
            variant=f"members: {members}",
            save_last=True,  # the ladder's until the baseline is trained
            restart_hint="give --restart",
        )
        for name, file in ((LADDER, "ladder"), (BASELINE, "baseline"))
    }
    if restart:
        checkpointers[LADDER].clear()
    elif _has_snapshots(output):
        print(f"continuing from {checkpointers[LADDER].folder}; --restart begins again")
    ladder = _estimator(train_rows, {**settings, "checkpoint": checkpointers[LADDER]})
    estimators = {LADDER: ladder}
    if baseline and columns and (costs is None or any(costs)):
        without = {**settings, "costs": 0.0, "checkpoint": checkpointers[BASELINE]}
        estimators[BASELINE] = _estimator(train_rows, without)

    # Interruptions are reported below.
    warnings.filterwarnings("ignore", message="Training was interrupted")
    X, y = _features(train_rows), _labels(train_rows)
    exit_code = 0
    lines: list[list[str]] = []
    try:
        for name, estimator in estimators.items():
            started = time.perf_counter()
            estimator.fit(X, y, splits=splits)
            seconds = f"{time.perf_counter() - started:.1f}"
            if checkpointers[name].resumed_after:
                seconds = "resumed"
            if estimator is ladder:
                path = output.with_stem(f"{output.stem}-interrupted") if ladder.interrupted_ else output
                print(f"model saved to {ladder.save(path)}")
            errors = [_mean_and_deviation(_errors(estimator, column, seed), task) for column in columns]
            lines.append([name, *errors, seconds])
            if estimator.interrupted_:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        exit_code = INTERRUPTED
        print_error(f"{name}: interrupted. The same command continues, and with --restart it begins again.")
    except ArithmeticError as error:
        exit_code = FAILURE
        print_error(f"{name}: {error}")
    if exit_code != INTERRUPTED:
        for checkpointer in checkpointers.values():
            checkpointer.delete(range(members))
        for partial in output.parent.glob(f".{glob.escape(output.name)}.*.partial"):
            partial.unlink()  # a model that a killed process was writing

    if lines:
        hidden = "-".join(map(str, ladder.recipe_.network)) or "no hidden layers"
        counts = f"{len(train_rows)} rows, {len(splits[0].labeled)} labeled"
        if train_rows.classes is not None:
            counts += f", {len(train_rows.classes)} classes"
        _print_table(f"{data}: {counts}; {hidden}, {ladder.n_iter_} epochs", columns, lines)
    if not columns:
        print("No error is reported: there are no test rows. Hold out labeled rows with --validation N.")
    raise typer.Exit(exit_code)


def _read(
    data: str, data_dir: Path | None, target: str | None, ignore: list[str], task: Task
) -> tuple[Dataset, Dataset]:
    """Return the training rows and the test rows; a table and some folders have no test rows."""
    from tikas.data.datasets import kind_of, load_dataset
    from tikas.data.images import read_folder
    from tikas.data.tables import read_table

    kind = kind_of(data)
    if kind == "table":
        rows = read_table(data, target, ignore, task=task)
        return rows, _select(rows, slice(0))
    if kind == "tables":
        from tikas.data.parquet import read_parquet_folder

        rows = read_parquet_folder(data, target, ignore, task)
        return rows, _select(rows, slice(0))
    check_table_options(data, target=target, ignore=ignore, task=task == "regression")
    return read_folder(data) if kind == "folder" else load_dataset(data, data_dir)


def _settings(data: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return the preset of the data, replaced by what was given."""
    from tikas.data.datasets import kind_of

    settings = PRESETS[data if data in PRESETS else kind_of(data)] | given
    if "activation" not in given and settings.get("network", ())[:1] in [(name,) for name in MODULES]:
        settings.pop("activation", None)  # a module has its own activations
    return settings


def _layers(words: list[str]) -> tuple[int | str, ...]:
    """Return a network; a single empty word means one without hidden layers."""
    return tuple(int(word) if word.isdecimal() else word for word in words if word)


def _parse_labels(text: str) -> int | None:
    """Return the number of labels, None for all of them."""
    if text == "all":
        return None
    if not text.isdecimal():
        raise typer.BadParameter(f"{text!r} is not a whole number or 'all'.", param_hint="--labels")
    return int(text)


def _free_path(path: Path) -> Path:
    """Return the path, or the same with -2, -3, ... if that file exists and its command is finished."""
    free, number = path, 1
    while free.exists() and not _has_snapshots(free):
        number += 1
        free = path.with_stem(f"{path.stem}-{number}")
    return free


def _has_snapshots(output: Path) -> bool:
    """Return whether a command with this output file was stopped."""
    from tikas.training.checkpoint import UNFINISHED

    return any(output.with_suffix(UNFINISHED).glob("*.safetensors"))


def _splits(rows: Dataset, n_labels: int | None, validation: int, seeds: range) -> list[Split]:
    """Return the split of each seed."""
    from tikas.data.splits import split

    classes = None if rows.classes is None else rows.classes.tolist()
    return [split(_codes(rows), n_labels, validation=validation, seed=seed, classes=classes) for seed in seeds]


def _codes(rows: Dataset) -> NDArray[Any]:
    """Return class codes, -1 where unlabeled; rows with a value count as one class."""
    return rows.targets if rows.classes is not None else rows.labeled.astype("int64") - 1


def _columns(train_rows: Dataset, test_rows: Dataset, splits: list[Split]) -> list[ErrorColumn]:
    """Return the error columns: of test rows or else of hidden labels, and of rows held out for validation."""
    error = "RMSE" if train_rows.classes is None else "error"
    hidden = [split.hidden(_codes(train_rows)) for split in splits]
    columns = []
    if len(test_rows):
        columns.append(ErrorColumn(f"test {error}", test_rows, [slice(None)] * len(splits)))
    elif len(hidden[0]):
        columns.append(ErrorColumn(f"{error} on the {len(hidden[0])} hidden labels", train_rows, hidden))
    if len(splits[0].validation):
        columns.append(ErrorColumn(f"validation {error}", train_rows, [split.validation for split in splits]))
    return columns


def _estimator(rows: Dataset, settings: Mapping[str, Any]) -> LadderClassifier | LadderRegressor:
    from tikas.estimators import LadderClassifier, LadderRegressor

    if rows.classes is None:
        return LadderRegressor(**settings)
    return LadderClassifier(**settings, classes=rows.classes)


def _features(rows: Dataset) -> AnyRows | pd.DataFrame:
    """Return the rows for an estimator: a data frame if the columns have names; rows of a source know them."""
    import pandas as pd

    from tikas.data.sources import RowSource

    if isinstance(rows.rows, RowSource):
        return rows.rows
    return pd.DataFrame(rows.rows, columns=list(rows.feature_names)) if rows.feature_names else rows.rows


def _labels(rows: Dataset) -> NDArray[Any]:
    """Return the targets for an estimator: class names, None where unlabeled; or values."""
    if rows.classes is None:
        return rows.targets
    labels: NDArray[Any] = rows.classes[rows.targets].astype(object)
    labels[~rows.labeled] = None
    return labels


def _select(rows: Dataset, chosen: NDArray[Any] | slice) -> Dataset:
    """Return some rows; those of a source are not read."""
    from tikas.data.sources import RowSource, RowView

    source, targets = rows.rows, rows.targets[chosen]
    if isinstance(source, RowSource) and len(targets):
        selected = None if isinstance(chosen, slice) else chosen
        return replace(rows, rows=RowView(source, rows=selected), targets=targets)
    return replace(rows, rows=source[chosen], targets=targets)


def _errors(estimator: LadderClassifier | LadderRegressor, column: ErrorColumn, first_seed: int) -> list[float]:
    """Return the error of each member that was trained: percentage of wrong classes, or root mean square error."""
    errors = []
    for ladder, seed in zip(estimator.ladders_, estimator.seeds_, strict=True):
        member = copy(estimator)
        member.ladders_ = [ladder]
        rows = _select(column.rows, column.chosen[seed - first_seed])
        predicted, labels = member.predict(_features(rows)), _labels(rows)
        if rows.classes is None:
            errors.append(float(((predicted - labels) ** 2).mean() ** 0.5))
        else:
            errors.append(100 * float((predicted != labels).mean()))
    return errors


def _mean_and_deviation(errors: list[float], task: Task) -> str:
    """Format the mean and the standard deviation over the members."""
    form, unit = (".2f", " %") if task == "classification" else (".4g", "")
    deviation = f" ± {stdev(errors):{form}}" if len(errors) > 1 else ""
    return f"{mean(errors):{form}}{deviation}{unit}"


def _print_table(title: str, columns: list[ErrorColumn], lines: list[list[str]]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(title), min_width=min(len(title), 80))
    table.add_column("")
    for name in (*(column.title for column in columns), "seconds"):
        table.add_column(name, justify="right")
    for line in lines:
        table.add_row(*line)
    Console().print(table)
