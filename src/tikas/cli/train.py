"""`tikas train`: train a ladder, compare it with the same network without denoising costs, and save it."""

from __future__ import annotations

import time
from copy import copy
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tikas.cli.options import FAILURE, INTERRUPTED, DataDir, Device, Quiet, check_output, print_error
from tikas.model.specs import ActivationName, DenoiserName, Task
from tikas.training.recipe import Calibration, Precision, Preprocess, Recipe

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from tikas.data.datasets import Dataset
    from tikas.estimators import LadderClassifier, LadderRegressor
    from tikas.model.ladder import Model

LADDER, BASELINE = "ladder", "same network, no denoising costs"
MAX_VALIDATION_ROWS = 50
"""Most rows that the hint about `--validation` proposes to hold out."""

PAPER = {
    name: getattr(Recipe(), name)
    for name in ("network", "noise", "epochs", "annealed", "learning_rate", "labeled_batch_size")
}
PRESETS: dict[str, dict[str, Any]] = {
    "digits": {"labels": "50", "epochs": 100},
    "mnist": {"labels": "100", **PAPER},
    "fashion-mnist": {"labels": "100", **PAPER},
    "cifar10": {
        **PAPER,
        "labels": "4000",
        "preprocess": "whiten",
        "network": ("conv_large",),
        "activation": "leaky_relu",
        "epochs": 70,
        "annealed": 0.14,
    },
    "table": {"labels": "all", "preprocess": "standardize"},
    "folder": {"labels": "all"},
}
"""Settings that differ from the defaults of the estimators: the paper's for its data sets."""


def train(
    data: Annotated[
        str, typer.Option(help="digits, mnist, fashion-mnist, cifar10, or the path of a table or a folder of images.")
    ] = "digits",
    target: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column of a table with the labels; empty cells: unlabeled.")
    ] = None,
    ignore: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN...", help="Columns of a table to leave out, such as row ids.")
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(
            metavar="N|all",
            help="Number of labels to use, balanced over the classes. "
            "Default: 50 for digits, 100 for mnist, 4000 for cifar10, all for your own data.",
        ),
    ] = None,
    validation: Annotated[
        int, typer.Option(metavar="N", help="Number of labeled rows to hold out and measure the error on.")
    ] = 0,
    task: Annotated[Task, typer.Option(help="Learn classes, or a column of numbers.")] = "classification",
    preprocess: Annotated[
        Preprocess | None,
        typer.Option(
            help="Standardize columns, or whiten images. Default: standardize for a table, whiten for cifar10, else none."
        ),
    ] = None,
    network: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RUNG...",
            help="Hidden rungs from the bottom up: a number of units, 'conv 32 5 full', 'max 2', 'mean 3 stride=2', "
            "'dense 100 tanh', 'global'; or mlp, conv_fc, conv_small, conv_large, conv_pool_cnn_c. "
            "Default: 256 128; for mnist 1000 500 250 250 250; for cifar10 conv_large.",
        ),
    ] = None,
    activation: Annotated[ActivationName | None, typer.Option(help="Activation of the hidden rungs.")] = None,
    noise: Annotated[
        list[float] | None,
        typer.Option(
            metavar="X...",
            help="Noise deviation of the input and each rung; the last holds for all above. Default: 0.2; for mnist 0.3.",
        ),
    ] = None,
    costs: Annotated[
        list[float] | None,
        typer.Option(
            metavar="X...",
            help="Weights of the denoising costs from the input up; the last holds for all above. One number: the top "
            "alone (the Γ-model); 0: a supervised network. Default: derived from the network and the scale of the rows.",
        ),
    ] = None,
    denoiser: Annotated[DenoiserName | None, typer.Option(help="Denoising function.")] = None,
    epochs: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Passes over the rows. Default: 100 for digits, 150 for mnist, 70 for cifar10; "
            "for your own data derived from their scale and number.",
        ),
    ] = None,
    annealed: Annotated[
        float | None, typer.Option(metavar="X", help="Share of the updates, at the end, with a falling learning rate.")
    ] = None,
    learning_rate: Annotated[float | None, typer.Option(metavar="X", help="Learning rate of Adam.")] = None,
    batch_size: Annotated[int | None, typer.Option(metavar="N", help="Unlabeled rows in an update.")] = None,
    labeled_batch_size: Annotated[int | None, typer.Option(metavar="N", help="Labeled rows in an update.")] = None,
    calibration: Annotated[
        Calibration | None, typer.Option(help="Rows that the normalization statistics for prediction come from.")
    ] = None,
    precision: Annotated[
        Precision | None, typer.Option(help="fast: bf16 or TF32 products where they are quicker; exact: float32.")
    ] = None,
    seed: Annotated[
        int, typer.Option(metavar="N", min=0, help="Determines labels, first weights, order and noise.")
    ] = 0,
    members: Annotated[
        int, typer.Option(metavar="N", min=1, help="Number of seeds to train together, from --seed on.")
    ] = 1,
    data_dir: DataDir = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Model file. Default: models/NAME.safetensors.")
    ] = None,
    baseline: Annotated[bool, typer.Option(help="Also train the same network without denoising costs.")] = True,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Train a ladder, and the same network without denoising costs to compare it with.

    Prints the error of both on test rows, or on known labels that --labels or --validation left out, and saves the
    ladder for `tikas predict`.

    \b
    tikas train
    tikas train --data mnist --labels 100 --epochs 10
    tikas train --data my.csv --target kind
    tikas train --data my.csv --target price --task regression --ignore id name
    tikas train --data my-photos --network "conv 32 5 full" "max 2" "conv 64 3" global top
    """
    import numpy as np
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from tikas.data.datasets import kind_of
    from tikas.data.splits import split
    from tikas.estimators import LadderClassifier, LadderRegressor
    from tikas.model.zoo import MODULES

    output = output or _free_path(Path("models", f"{Path(data).stem}.safetensors"))
    check_output(output, inputs=[Path(data)])
    rungs = None if network is None else tuple(int(rung) if rung.isdecimal() else rung for rung in network if rung)
    options = {
        "labels": labels,
        "preprocess": preprocess,
        "network": rungs,
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
    preset = PRESETS[data if data in PRESETS else kind_of(data)]
    settings = preset | {name: value for name, value in options.items() if value is not None}
    if rungs and rungs[0] in MODULES and activation is None:
        settings.pop("activation", None)  # a module has its own activations
    n_labels = _parse_labels(settings.pop("labels"))

    train_rows, test_rows = _read(data, data_dir, target, ignore or [], task)
    codes = train_rows.targets if train_rows.classes is not None else np.where(train_rows.labeled, 0, -1)
    splits = [
        split(codes, n_labels, validation=validation, seed=seed + member, classes=train_rows.classes)
        for member in range(members)
    ]

    # Columns of the table of errors: on which rows each member is measured.
    error = "error" if task == "classification" else "RMSE"
    columns: dict[str, tuple[Dataset, list[NDArray[np.int64]]]] = {}
    hidden = [each.hidden(codes) for each in splits]
    if test_rows is not None:
        columns[f"test {error}"] = test_rows, [np.arange(len(test_rows))] * members
    elif len(hidden[0]):
        columns[f"{error} on the {len(hidden[0])} hidden labels"] = train_rows, hidden
    if validation:
        columns[f"validation {error}"] = train_rows, [each.validation for each in splits]

    estimator_class = LadderClassifier if task == "classification" else LadderRegressor
    estimators = {
        LADDER: estimator_class(
            **settings, n_members=members, random_state=seed, device=device, verbose=not quiet
        )
    }
    if baseline and columns and (costs is None or any(costs)):
        estimators[BASELINE] = clone(estimators[LADDER]).set_params(costs=0.0)

    table = Table("", *(Column(title, justify="right") for title in (*columns, "seconds")))
    X, y = _features(train_rows), _labels(train_rows)
    saved: Path | None = None
    exit_code = 0
    for name, estimator in estimators.items():
        started = time.perf_counter()
        try:
            estimator.fit(X, y, splits=splits)
        except (ArithmeticError, KeyboardInterrupt) as error:
            if saved is None:
                raise
            print_error(f"{name}: {str(error) or 'interrupted'}")
            exit_code = INTERRUPTED if isinstance(error, KeyboardInterrupt) else FAILURE
            break
        seconds = time.perf_counter() - started
        if estimator.interrupted_:
            exit_code = INTERRUPTED
        if saved is None:
            saved = estimator.save(output.with_stem(f"{output.stem}-interrupted") if exit_code else output)
        errors = [_errors(estimator, rows, [chosen[each - seed] for each in estimator.seeds_]) for rows, chosen in columns.values()]
        table.add_row(name, *(_spread(each, task) for each in errors), f"{seconds:.1f}")
        if exit_code:
            break

    network_text = "-".join(map(str, estimator.recipe_.network)) or "no hidden layers"
    labels_text = "all" if n_labels is None else n_labels
    table.title = escape(f"{data}, {labels_text} labels, {network_text}, {estimator.recipe_.epochs} epochs")
    Console().print(table)
    if not columns:
        print(f"No error is reported: there are no test rows.{_validation_hint(train_rows)}")
    print(f"model saved to {saved}")
    raise typer.Exit(exit_code)


def _parse_labels(text: str) -> int | None:
    """Return the number of labels, None for all of them."""
    if text == "all":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise typer.BadParameter(f"{text!r} is not a whole number of at least 1, or 'all'.", param_hint="--labels")
    return int(text)


def _free_path(path: Path) -> Path:
    """Return the path, or the same with -2, -3, ... where a file is in its place."""
    candidates = (path, *(path.with_stem(f"{path.stem}-{number}") for number in count(2)))
    return next(each for each in candidates if not each.exists())


def _read(
    data: str, data_dir: Path | None, target: str | None, ignore: list[str], task: Task
) -> tuple[Dataset, Dataset | None]:
    """Read the training rows, and the test rows if there are any."""


def _features(rows: Dataset) -> NDArray[Any] | pd.DataFrame:
    """Return the rows as an estimator takes them: as a data frame if the columns have names."""
    import pandas as pd

    return pd.DataFrame(rows.rows, columns=list(rows.feature_names)) if rows.feature_names else rows.rows


def _labels(rows: Dataset) -> NDArray[Any]:
    """Return the targets as an estimator takes them: class names, None where unlabeled; or values."""
    if rows.classes is None:
        return rows.targets
    labels = rows.classes[rows.targets].astype(object)
    labels[~rows.labeled] = None
    return labels


def _errors(estimator: LadderClassifier | LadderRegressor, rows: Dataset, chosen: Sequence[NDArray[np.int64]]) -> list[float]:
    """Measure each member on its chosen rows: percentage of wrong classes, or root mean square error."""
    errors = []
    for ladder, indices in zip(estimator.ladders_, chosen, strict=True):
        member = copy(estimator)
        member.ladders_ = [ladder]
        part = replace(rows, rows=rows.rows[indices], targets=rows.targets[indices])
        predicted, labels = member.predict(_features(part)), _labels(part)
        if rows.classes is None:
            errors.append(float(np.sqrt(np.mean((predicted - labels) ** 2))))
        else:
            errors.append(100 * float(np.mean(predicted != labels)))
    return errors


def _spread(errors: list[float], task: Task) -> str:
    """Format the mean and the deviation over the seeds."""
    form, unit = (".2f", " %") if task == "classification" else (".4g", "")
    deviation = f" ± {stdev(errors):{form}}" if len(errors) > 1 else ""
    return f"{mean(errors):{form}}{deviation}{unit}"


def _validation_hint(rows: Dataset) -> str:
    """Propose how many labeled rows to hold out: a third at most, and one of each class is left to train on."""
    labeled = int(rows.labeled.sum())
    held_out = min(MAX_VALIDATION_ROWS, labeled // 3, labeled - rows.n_outputs)
    return f" --validation {held_out} holds out {held_out} of the {labeled} labeled rows." if held_out > 0 else ""
