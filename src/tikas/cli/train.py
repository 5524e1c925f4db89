"""`tikas train`: train a ladder, compare it with the same network without denoising costs, and save it."""

from __future__ import annotations

import glob
import re
import sys
import time
import unicodedata
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
    Report,
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
    from tikas.data.tables import Table, UnclearLabelsError
    from tikas.estimators import LadderClassifier, LadderRegressor
    from tikas.estimators.comparison import Comparison
    from tikas.training.summary import MeasuredError

LADDER, BASELINE = "ladder", "same network, no denoising costs"


def _settings_of(recipe: Recipe) -> dict[str, Any]:
    """Return the settings of a recipe; costs are left to the estimator, which derives them from the network."""
    return {name: value for name, value in vars(recipe).items() if name not in ("task", "costs")}


PRESETS: dict[str, dict[str, Any]] = {
    "digits": {"labels": "50", "epochs": 100},
    "mnist": {"labels": "100", **_settings_of(FULL)},
    "fashion-mnist": {"labels": "100", **_settings_of(FULL)},
    "cifar10": {"labels": "4000", **_settings_of(LARGE_GAMMA)},
    "table": {"labels": "all"},
    "tables": {"labels": "all", "preprocess": "standardize"},
    "folder": {"labels": "all"},
}
"""Settings that differ from the defaults of the estimators, by data; for the paper's data sets, its settings."""


class ErrorColumn(NamedTuple):
    """An error column of the printed table: its title, and the rows on which each member is measured."""

    title: str
    rows: Dataset | Table
    chosen: Sequence[NDArray[Any] | slice]


def train(
    context: typer.Context,
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
    categorical: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN...", help="Columns of a table that hold categories, whatever they look like."),
    ] = None,
    numeric: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN...", help="Columns of a table that hold numbers, whatever they look like."),
    ] = None,
    unlabeled: Annotated[
        list[str] | None,
        typer.Option(
            metavar="VALUE...",
            help="Cells of the target, beside empty ones, that mean no label, such as unknown; '' for none.",
        ),
    ] = None,
    labels: Annotated[
        str | None, typer.Option(metavar="N|all", help="Number of labels to use, balanced over the classes.")
    ] = None,
    validation: Annotated[
        int, typer.Option(metavar="N", min=0, help="Number of labeled rows to hold out and measure the error on.")
    ] = 0,
    task: Annotated[Task, typer.Option(help="Learn classes, or a column of numbers.")] = "classification",
    preprocess: Annotated[
        Preprocess | None,
        typer.Option(help="Encode columns of a table, scale pixels, standardize columns, or whiten images."),
    ] = None,
    recipe: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Settings that `tikas tune` found; other options override them."),
    ] = None,
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
    early_stopping: Annotated[
        bool,
        typer.Option("--early-stopping", help="Stop when the error on the --validation rows stays; keep the best."),
    ] = False,
    n_iter_no_change: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Epochs without change that stop with --early-stopping.")
    ] = None,
    tol: Annotated[
        float | None, typer.Option(metavar="X", min=0, help="Decrease of the error that counts as a change.")
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
    report: Report = None,
    baseline: Annotated[bool, typer.Option(help="Also train the same network without denoising costs.")] = True,
    folds: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, help="Parts of the labels for a cross-validation, if there are no test rows; 0: none."
        ),
    ] = 5,
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

    Prints what was read from a table, and then the error: on test rows, or on known labels that --labels or
    --validation left out, or else by cross-validation over the labels; beside that of the same network without
    denoising costs. `tikas predict` reads the saved file.

    If the training is stopped, the same command continues from the snapshots in the folder OUTPUT.unfinished, and the
    result is the same. Processes of torchrun share the rows, or with --members the members, and learn the same as one.

    \b
    Defaults           labels  network                    noise  epochs
    digits             50      256 128                    0.2    100
    mnist              100     1000 500 250 250 250       0.3    150
    fashion-mnist      100     1000 500 250 250 250       0.3    150
    cifar10, whitened  4000    conv_large                 0.3    70
    your own data      all     256 128                    0.2    derived from the rows

    Columns of a table are encoded by what they hold: numbers standardized and gaps filled, categories one-hot, dates
    as parts; identifiers, constants and free text are left out. Costs are derived from the network and the rows.

    \b
    tikas train
    tikas train --data mnist --labels 100 --epochs 10
    tikas train --data my.csv --target kind
    tikas train --data my.csv --target price --task regression --ignore id name
    tikas train --data my.csv --target kind --recipe recipes/my.json
    tikas train --data my-parquet-files --target kind
    tikas train --data my-photos --network "conv 32 5 full" "max 2" "conv 64 3" global top
    tikas train --data my.csv --target kind --report my.html
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
        "early_stopping": early_stopping or None,
        "n_iter_no_change": n_iter_no_change,
        "tol": tol,
    }
    from tikas.data.sources import RowSource
    from tikas.report.evaluation import evaluate, rows_of_training
    from tikas.training.checkpoint import UNFINISHED, Checkpointer
    from tikas.training.distributed import join
    from tikas.training.environment import pick_device

    world = context.with_resource(join(pick_device(device)))
    of_table = {"ignore": ignore, "categorical": categorical, "numeric": numeric, "unlabeled": unlabeled}
    train_rows, test_rows = _read(data, data_dir, target, task, of_table, shown=world.is_first)
    found = {} if recipe is None else _read_recipe(recipe, task)
    settings = _settings(data, found | {name: value for name, value in given.items() if value is not None})
    settings |= _columns_settings(train_rows, settings.get("preprocess"))
    labels = str(settings.pop("labels"))
    output = output or _free_path(Path("models", f"{_file_name(Path(data).resolve().stem)}.safetensors"))
    output = Path(world.first(str(output)))
    if report is not None:
        check_output(report, inputs=[Path(data)], option="--report")
    check_output(output, inputs=[Path(data)])

    splits = _splits(train_rows, _parse_labels(labels), validation, range(seed, seed + members))
    columns = _columns(train_rows, test_rows, splits)
    settings |= {"n_members": members, "random_state": seed, "device": device, "verbose": not quiet}

    def checkpointer(file: str, count: int) -> Checkpointer:
        return Checkpointer(
            output.with_suffix(UNFINISHED),
            seconds=checkpoint_every,
            names=[f"{file}-{member}" for member in range(count)],
            variant=f"members: {count}",
            save_last=True,  # the ladder's until the baseline is trained
            restart_hint="give --restart",
        )

    checkpointers = {LADDER: checkpointer("ladder", members), BASELINE: checkpointer("baseline", members)}
    of_folds = {
        LADDER: checkpointer("ladder-fold", folds * members),
        BASELINE: checkpointer("baseline-fold", folds * members),
    }
    if not world.is_first:
        pass
    elif restart:
        checkpointers[LADDER].clear()
    elif _has_snapshots(output):
        print(f"continuing from {checkpointers[LADDER].folder}; --restart begins again")
    ladder = _estimator(train_rows, {**settings, "checkpoint": checkpointers[LADDER]})
    estimators = {LADDER: ladder}
    to_compare = {LADDER: _estimator(train_rows, {**settings, "checkpoint": of_folds[LADDER]})}
    if baseline and any(settings.get("costs", (1,))):
        without = {**settings, "costs": 0.0}
        to_compare[BASELINE] = _estimator(train_rows, {**without, "checkpoint": of_folds[BASELINE]})
        if columns:
            estimators[BASELINE] = _estimator(train_rows, {**without, "checkpoint": checkpointers[BASELINE]})

    # Interruptions are reported below, and the summary of a table tells of its cells.
    warnings.filterwarnings("ignore", message="Training was interrupted|Cells that count as gaps")
    X, y = _features(train_rows), _labels(train_rows)
    report_rows = rows_of_training(train_rows, test_rows, splits, early_stopping=early_stopping)
    of_command: dict[str, Any] = {
        "command": str(context.obj),
        "data": data,
        "digest": _digest(data),
        "target": target or "",
        "labels": _parse_labels(labels) or 0,
        "read": str(getattr(train_rows, "summary", "")),
    }
    exit_code, problem = 0, ""
    lines: list[list[str]] = []
    compared: dict[str, MeasuredError] = {}
    comparison: Comparison | None = None
    try:
        for name, estimator in estimators.items():
            started = time.perf_counter()
            estimator.fit(X, y, splits=splits)
            seconds = f"{time.perf_counter() - started:.1f}"
            if checkpointers[name].resumed_after:
                seconds = "resumed"
            error = evaluate(estimator, report_rows).error if world.is_first else None
            if estimator is ladder and world.is_first:
                ladder.training_ = replace(ladder.training_, **of_command, error=error)
                path = output.with_stem(f"{output.stem}-interrupted") if ladder.interrupted_ else output
                print(f"model saved to {ladder.save(path)}")
            if world.is_first:
                errors = [_mean_and_deviation(_errors(estimator, column, seed), task) for column in columns]
                lines.append([name, *errors, seconds])
            if estimator is not ladder and error is not None:
                compared[name] = error
            if estimator.interrupted_:
                raise KeyboardInterrupt
        if not columns and folds and not isinstance(X, RowSource):  # which would be read once more for each part
            name = "cross-validation"
            comparison = _cross_validate(to_compare, X, y, folds, seed)
            if comparison is not None and world.is_first:
                ladder.training_ = replace(ladder.training_, error=_measured(comparison, 0))
                ladder.save(path)
                compared = {name: _measured(comparison, place) for place, name in enumerate(to_compare) if place}
    except KeyboardInterrupt:
        exit_code = INTERRUPTED
        problem = "interrupted. The same command continues, and with --restart it begins again."
    except ArithmeticError as error:
        exit_code, problem = FAILURE, str(error)
    if not world.is_first:
        raise typer.Exit(exit_code)
    if exit_code:
        print_error(f"{name}: {problem}")
    if exit_code != INTERRUPTED:
        for finished, count in ((checkpointers, members), (of_folds, folds * members)):
            for each in finished.values():
                each.delete(range(count))
        for partial in output.parent.glob(f".{glob.escape(output.name)}.*.partial"):
            partial.unlink()  # a model that a killed process was writing

    if lines:
        hidden = "-".join(map(str, ladder.recipe_.network)) or "no hidden layers"
        counts = f"{len(train_rows)} rows, {len(splits[0].labeled)} labeled"
        if train_rows.classes is not None:
            counts += f", {len(train_rows.classes)} classes"
        titles = [column.title for column in columns]
        if comparison is not None:
            titles, lines = _comparison_table(comparison)
            counts += f", {comparison.folds} folds of {comparison.n_labels} labels"
        _print_table(f"{data}: {counts}; {hidden}, {ladder.n_iter_} epochs", titles, lines)
    if report is not None and lines and exit_code != INTERRUPTED:
        from tikas.report.model import model_page
        from tikas.report.page import write

        print(f"report written to {write(report, model_page(ladder, output.stem, report_rows, compared=compared))}")
    if comparison is not None:
        print(comparison.verdict, end="\n" * bool(comparison.verdict))
    elif not columns and exit_code != INTERRUPTED:
        print("No error is reported: there are no test rows. Hold out labeled rows with --validation N.")
    raise typer.Exit(exit_code)


def _read(
    data: str,
    data_dir: Path | None,
    target: str | None,
    task: Task,
    options: Mapping[str, list[str] | None],
    *,
    shown: bool = True,
) -> tuple[Dataset | Table, Dataset | Table]:
    """Return the training rows and the test rows; a table and some folders have no test rows.

    What was read from a table is printed if `shown`.
    """
    from tikas.data.datasets import kind_of, load_dataset
    from tikas.data.images import read_folder

    kind = kind_of(data)
    if kind == "table":
        rows = _read_table(data, target, task, options, shown=shown)
        return rows, _select(rows, slice(0))
    if kind == "tables":
        from tikas.data.parquet import read_parquet_folder

        check_table_options(data, categorical=options["categorical"], numeric=options["numeric"])
        rows = read_parquet_folder(data, target, options["ignore"] or [], task)
        return rows, _select(rows, slice(0))
    check_table_options(data, target=target, task=task == "regression", **options)
    return read_folder(data) if kind == "folder" else load_dataset(data, data_dir)


def _digest(data: str) -> str:
    """Return a digest of the file or folder; empty for a data set, whose name says enough, and for data too large."""
    from tikas.data.datasets import content_digest, kind_of

    return "" if kind_of(data) in ("data set", "tables") else content_digest(data)


def _read_table(
    data: str, target: str | None, task: Task, options: Mapping[str, list[str] | None], *, shown: bool
) -> Dataset | Table:
    """Read a table and print what is in it; ask what unclear labels mean if somebody is there to answer."""
    from tikas.data.tables import Table, UnclearLabelsError, read_table

    given = {name: value or [] for name, value in options.items() if name != "unlabeled"}
    try:
        rows = read_table(data, target, **given, unlabeled=options["unlabeled"], task=task)
    except UnclearLabelsError as error:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise
        rows = read_table(data, target, **given, unlabeled=_ask(error), task=task)
    if isinstance(rows, Table) and shown:
        print(rows.summary, end="\n\n", flush=True)
    return rows


def _ask(error: UnclearLabelsError) -> list[str]:
    """Return which of the unclear labels mark unlabeled rows."""
    return [
        value
        for value, count in error.counts.items()
        if typer.confirm(f"{count} rows have the target {value!r}. Have these no label?", default=True, err=True)
    ]


def _columns_settings(rows: Dataset | Table, preprocess: str | None) -> dict[str, Any]:
    """Return the settings of an estimator that follow from a table: what its columns hold."""
    kinds = getattr(rows, "kinds", None)
    if kinds is None or preprocess not in (None, "auto", "columns"):
        return {}
    return {"preprocess": "columns", "columns": kinds}


def _file_name(text: str) -> str:
    """Return a name that can be typed without quotes: lower-case letters, digits, dots and hyphens."""
    plain = unicodedata.normalize("NFKD", text.casefold()).encode("ascii", "ignore").decode()
    return re.sub(r"[^a-z0-9._]+", "-", plain).strip("-._") or "model"


def _settings(data: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return the preset of the data, replaced by what was given."""
    from tikas.data.datasets import kind_of

    settings = PRESETS[data if data in PRESETS else kind_of(data)] | given
    if "activation" not in given and settings.get("network", ())[:1] in [(name,) for name in MODULES]:
        settings.pop("activation", None)  # a module has its own activations
    return settings


def _read_recipe(path: Path, task: Task) -> dict[str, Any]:
    """Return the settings of a recipe file."""
    if not path.is_file():
        raise FileNotFoundError(f"--recipe {path}: there is no such file. `tikas tune` writes recipe files.")
    try:
        settings = dict(vars(Recipe.from_json(path.read_text())))
    except (TypeError, ValueError) as error:  # not JSON, another file, or a wrong value
        raise ValueError(f"--recipe {path} is not a recipe file of `tikas tune` ({error}).") from error
    if settings.pop("task") != task:
        raise ValueError(f"--recipe {path} is for another --task than {task}.")
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


def _splits(rows: Dataset | Table, n_labels: int | None, validation: int, seeds: range) -> list[Split]:
    """Return the split of each seed."""
    from tikas.data.splits import split

    classes = None if rows.classes is None else rows.classes.tolist()
    return [split(_codes(rows), n_labels, validation=validation, seed=seed, classes=classes) for seed in seeds]


def _codes(rows: Dataset | Table) -> NDArray[Any]:
    """Return class codes, -1 where unlabeled; rows with a value count as one class."""
    return rows.targets if rows.classes is not None else rows.labeled.astype("int64") - 1


def _columns(train_rows: Dataset | Table, test_rows: Dataset | Table, splits: list[Split]) -> list[ErrorColumn]:
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


def _estimator(rows: Dataset | Table, settings: Mapping[str, Any]) -> LadderClassifier | LadderRegressor:
    from tikas.estimators import LadderClassifier, LadderRegressor

    if rows.classes is None:
        return LadderRegressor(**settings)
    return LadderClassifier(**settings, classes=rows.classes)


def _cross_validate(
    estimators: Mapping[str, LadderClassifier | LadderRegressor], X: Any, y: Any, folds: int, seed: int
) -> Comparison | None:
    from tikas.estimators.comparison import cross_validate

    return cross_validate(estimators, X, y, folds=folds, seed=seed)


def _measured(comparison: Comparison, method: int) -> MeasuredError:
    """Return the error of one of the compared methods, for the model file and the report."""
    from tikas.training.summary import MeasuredError

    line = comparison.table.iloc[method]
    percent = comparison.task == "classification"
    source = f"labels, by {comparison.folds}-fold cross-validation"
    return MeasuredError(source, comparison.n_labels, line["error"], line["low"], line["high"], percent)


def _comparison_table(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Return the titles and lines of the printed table."""
    regression = comparison.task == "regression"
    form, unit = (".4g", "") if regression else (".1f", " %")
    lines = [
        [name, f"{error:{form}}{unit}", f"{low:{form}} to {high:{form}}{unit}", f"{seconds:.1f}"]
        for name, error, low, high, seconds in comparison.table.itertuples(index=False)
    ]
    return [f"cross-validated {'RMSE' if regression else 'error'}", "95 % interval"], lines


def _features(rows: Dataset | Table) -> AnyRows | pd.DataFrame:
    """Return the rows for an estimator: a data frame of a table."""
    return rows.rows


def _labels(rows: Dataset | Table) -> NDArray[Any]:
    """Return the targets for an estimator: class names, None where unlabeled; or values."""
    if rows.classes is None:
        return rows.targets
    labels: NDArray[Any] = rows.classes[rows.targets].astype(object)
    labels[~rows.labeled] = None
    return labels


def _select(rows: Dataset | Table, chosen: NDArray[Any] | slice) -> Dataset | Table:
    """Return some rows; those of a source are not read."""
    from tikas.data.sources import RowSource, RowView

    given, targets = rows.rows, rows.targets[chosen]
    if isinstance(given, RowSource) and len(targets):
        selected: Any = RowView(given, rows=None if isinstance(chosen, slice) else chosen)
    else:
        selected = given.iloc[chosen] if hasattr(given, "iloc") else given[chosen]
    return replace(rows, rows=selected, targets=targets)


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


def _print_table(title: str, titles: Sequence[str], lines: list[list[str]]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(title), min_width=min(len(title), 80))
    table.add_column("")
    for name in (*titles, "seconds"):
        table.add_column(name, justify="right")
    for line in lines:
        table.add_row(*line)
    Console().print(table)
