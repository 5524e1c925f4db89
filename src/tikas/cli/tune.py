"""`tikas tune`: search noise, costs, learning rate and widths by cross-validation; write a recipe for `tikas train`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tikas.cli.options import INTERRUPTED, DataDir, Device, Quiet, Report, check_output, print_error
from tikas.cli.train import (
    _codes,
    _columns_settings,
    _estimator,
    _features,
    _file_name,
    _layers,
    _parse_labels,
    _read,
    _settings,
)
from tikas.model.specs import Task
from tikas.training.recipe import Preprocess

if TYPE_CHECKING:
    from optuna import Study

    from tikas.data.datasets import Dataset
    from tikas.data.tables import Table
    from tikas.training.tune import Measured, Search, SearchSpace

TOGETHER_ON_GPU, TOGETHER_ON_CPU = 8, 1
"""Trials in an ensemble. On a GPU, 8 trials of 5 folds are 40 members, as in the ensembles that benchmarks/ times. On a
CPU, 10 epochs of the digits took 0.75 s for each member of an ensemble of 5, and 0.69 s in one of 20."""


def tune(
    context: typer.Context,
    data: Annotated[
        str, typer.Option(help="digits, mnist, fashion-mnist, cifar10, or the path of a table or a folder of images.")
    ] = "digits",
    target: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column of a table with the labels; empty cells: unlabeled.")
    ] = None,
    ignore: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN...", help="Columns of a table to leave out, such as row ids.")
    ] = None,
    categorical: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN...", help="Columns that hold categories; as for `tikas train`.")
    ] = None,
    numeric: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN...", help="Columns that hold numbers; as for `tikas train`.")
    ] = None,
    unlabeled: Annotated[
        list[str] | None,
        typer.Option(metavar="VALUE...", help="Cells of the target that mean no label; as for `tikas train`."),
    ] = None,
    labels: Annotated[
        str | None, typer.Option(metavar="N|all", help="Number of labels to use, balanced over the classes.")
    ] = None,
    task: Annotated[Task, typer.Option(help="Learn classes, or a column of numbers.")] = "classification",
    trials: Annotated[
        int, typer.Option(metavar="N", min=1, help="Number of trials of the study, earlier ones included.")
    ] = 50,
    folds: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=2, help="Folds of the cross-validation. Default: 5, or the labels of the rarest class."
        ),
    ] = None,
    together: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Trials, with one network, that train as one ensemble. Default: 8 on a GPU, else 1.",
        ),
    ] = None,
    preprocess: Annotated[Preprocess | None, typer.Option(help="As for `tikas train`.")] = None,
    network: Annotated[
        list[str] | None, typer.Option(metavar="LAYER...", help="Do not search the network; as for `tikas train`.")
    ] = None,
    noise: Annotated[
        list[float] | None, typer.Option(metavar="X...", help="Do not search the noise; as for `tikas train`.")
    ] = None,
    costs: Annotated[
        list[float] | None, typer.Option(metavar="X...", help="Do not search the costs; as for `tikas train`.")
    ] = None,
    learning_rate: Annotated[float | None, typer.Option(metavar="X", help="Do not search the learning rate.")] = None,
    epochs: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Passes over the rows. Default: as for `tikas train`.")
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Where the study is stored: a URL of Optuna, such as sqlite:///FILE or postgresql://…, or the path of "
            "a journal file. Default: an SQLite file beside the output.",
        ),
    ] = None,
    study_name: Annotated[
        str | None, typer.Option("--study", metavar="NAME", help="Name of the study. Default: that of the data.")
    ] = None,
    seed: Annotated[
        int, typer.Option(metavar="N", min=0, help="Determines labels, folds, initial weights and the search.")
    ] = 0,
    data_dir: DataDir = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Recipe file. Default: recipes/NAME.json."),
    ] = None,
    report: Report = None,
    checkpoint_every: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="Time between two snapshots; 0: after every epoch.")
    ] = 60.0,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Search the settings with the smallest cross-validated error, and write them to a recipe file.

    Each trial trains on the labels of all folds but one, for each fold, and on all unlabeled rows. The first trial has
    the settings of `tikas train`. `tikas train --recipe FILE` trains on all labels with the best ones.

    A stopped study continues with the same command, unfinished trials from their snapshots. The same command may run
    several times at once; on several machines, with the same --storage.

    \b
    tikas tune
    tikas tune --data my.csv --target kind --trials 100
    tikas tune --data my.csv --target kind --network 500 250 --storage postgresql://me@host/studies
    tikas tune --data my.csv --target kind --report study.html
    tikas train --data my.csv --target kind --recipe recipes/my.json
    """
    given: dict[str, Any] = {
        "labels": labels,
        "preprocess": preprocess,
        "network": network if network is None else _layers(network),
        "noise": noise,
        "costs": costs,
        "learning_rate": learning_rate,
        "epochs": epochs,
    }
    given = {name: value for name, value in given.items() if value is not None}
    from tikas.report.page import write
    from tikas.report.tuning import plot_importances, study_page
    from tikas.training.checkpoint import UNFINISHED
    from tikas.training.environment import pick_device
    from tikas.training.tune import (
        Search,
        fold_splits,
        import_optuna,
        locked,
        measured_trials,
        open_storage,
        open_study,
    )

    import_optuna()
    name = _file_name(Path(data).resolve().stem)
    output = output or Path("recipes", f"{name}.json")
    of_table = {"ignore": ignore, "categorical": categorical, "numeric": numeric, "unlabeled": unlabeled}
    train_rows, _ = _read(data, data_dir, target, task, of_table)
    check_output(output, inputs=[Path(data)])
    if report is not None:
        check_output(report, inputs=[Path(data), output], option="--report")
    if together is None:
        together = TOGETHER_ON_GPU if pick_device(device).type == "cuda" else TOGETHER_ON_CPU

    settings = _settings(data, given)
    settings |= _columns_settings(train_rows, settings.get("preprocess"))
    train_rows = _with_labels(train_rows, _parse_labels(str(settings.pop("labels"))), seed)
    dataset, space, unit = _prepare(train_rows, settings | {"device": device}, given)
    splits = fold_splits(dataset.targets, folds, seed)

    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    folder = output.with_suffix(UNFINISHED)
    with locked(folder):
        opened = open_storage(storage or f"sqlite:///{output.with_suffix('.db').as_posix()}")
        study = open_study(opened, study_name or name, space, dataset, splits, seed)
    search = Search(
        opened,
        study,
        space,
        dataset,
        splits,
        folder,
        trials=trials,
        together=together,
        unit=unit,
        seed=seed,
        device=device,
        checkpoint_every=checkpoint_every,
    )
    before = measured_trials(study)
    if before:
        print(f"continuing the study {study.study_name!r} after {len(before)} trials")
    unit_text = " %" if task == "classification" else ""
    interrupted = not _run(search, unit_text, quiet=quiet)
    running = sum(trial.state.name == "RUNNING" for trial in study.get_trials(deepcopy=False))
    measured = measured_trials(study)
    if measured and measured[0].errors:
        _print_trials(measured, len(splits), regression=task == "regression")
        importances = _importances(study, measured)
        output.write_text(json.dumps(asdict(measured[0].recipe), indent=2) + "\n")
        same = {"data": data, "target": target, "labels": labels, "task": task if task == "regression" else None}
        words = [word for option, value in same.items() if value for word in (f"--{option}", value)]
        words += [word for option, values in of_table.items() if values for word in (f"--{option}", *values)]
        command = f"tikas train {shlex.join(words)} --recipe {shlex.quote(str(output))}"
        print(f"recipe written to {output}: {command}")
        try:
            if importances:
                plot_importances(output.with_suffix(".svg"), importances)
                print(f"importances drawn in {output.with_suffix('.svg')}")
            if report is not None:
                facts = {"Trials": len(measured), "Folds": len(splits), "Rows": len(train_rows)}
                facts |= {"Labels": int(train_rows.labeled.sum())}
                counts = [(title, f"{count:,}") for title, count in facts.items()]
                read, commands = str(getattr(train_rows, "summary", "")), [str(context.obj), command]
                page = study_page(measured, importances, name, unit_text, counts, read, commands)
                print(f"report written to {write(report, page)}")
        except ImportError as error:
            print_error(error)
    else:
        print_error(
            f"No trial succeeded. The last one: {measured[-1].failure}" if measured else "No trial is finished."
        )
    if interrupted:
        print_error("interrupted. The same command continues.")
        raise typer.Exit(INTERRUPTED)
    search.close()
    if running:
        print(f"Other processes still run {running} of the trials. The last process to end prints all of them.")


def _with_labels(rows: Dataset | Table, n_labels: int | None, seed: int) -> Dataset | Table:
    """Return the rows with this number of labels, balanced over the classes; the others are unlabeled."""
    import numpy as np

    from tikas.data.splits import split

    if n_labels is None:
        return rows
    classes = None if rows.classes is None else rows.classes.tolist()
    chosen = split(_codes(rows), n_labels, seed=seed, classes=classes).labeled
    targets = np.full_like(rows.targets, -1 if rows.classes is not None else np.nan)
    targets[chosen] = rows.targets[chosen]
    return replace(rows, targets=targets)


def _prepare(
    rows: Dataset | Table, settings: dict[str, Any], given: dict[str, Any]
) -> tuple[Dataset, SearchSpace, float]:
    """Return the data set as networks take it, the search around the default settings, and the unit of the errors."""
    import numpy as np

    from tikas.data.labels import mean_and_deviation
    from tikas.training.tune import SEARCHED, SearchSpace

    targets, unit = rows.targets, 1.0
    if rows.classes is None:
        mean, unit = mean_and_deviation(targets[~np.isnan(targets)])
        targets = ((targets - mean) / unit).astype(np.float32)
    recipe, dataset = _estimator(rows, settings).prepare(_features(rows), targets, rows.classes)
    dense = all(isinstance(layer, int) for layer in recipe.network)
    searched = [setting for setting in SEARCHED if setting not in given and (setting != "network" or dense)]
    if not searched:
        raise ValueError("Nothing is left to search: leave out one of --network, --noise, --costs and --learning-rate.")
    return dataset, SearchSpace(recipe, tuple(searched)), unit


def _run(search: Search, unit: str, *, quiet: bool) -> bool:
    """Run trials until the study has enough; return False if Ctrl-C was pressed."""
    from tikas.training.callbacks import progress_bar
    from tikas.training.tune import measured_trials

    try:
        while recipes := search.next_trials():
            numbers = ", ".join(str(number + 1) for number in recipes)
            with progress_bar(shown=not quiet, title=f"trial {numbers} of {search.trials}") as callback:
                if not search.run(recipes, [callback] if callback else []):
                    return False
            for trial in measured_trials(search.study):
                if trial.number in recipes:
                    print(f"trial {trial.number + 1}: {trial.failure or f'{trial.error:.4g}{unit}'}", flush=True)
    except KeyboardInterrupt:
        return False
    return True


def _print_trials(measured: Sequence[Measured], folds: int, *, regression: bool) -> None:
    """Print the best trials, and the first one, which has the default settings."""
    from rich.console import Console
    from rich.table import Table

    from tikas.report.tuning import CAUTION, SHOWN, settings_text

    form, kind = (".4g", "RMSE") if regression else (".2f", "error in %")
    failed = sum(not trial.errors for trial in measured)
    title = f"{len(measured)} trials, {folds} folds" + (f", {failed} failed" if failed else "")
    table = Table(title=title)
    for column in ("trial", f"{kind} ± se", "network", "noise", "costs", "rate", "seconds"):
        table.add_column(column, justify="right")
    for rank, trial in enumerate(measured):
        if rank < SHOWN or trial.number == 0:
            error = f"{trial.error:{form}} ± {trial.standard_error:{form}}" if trial.errors else "failed"
            table.add_row(str(trial.number + 1), error, *settings_text(trial.recipe), f"{trial.seconds:.1f}")
    Console().print(table)
    print("Trial 1 has the default settings. se: standard error of the mean over the folds.")
    print(CAUTION)


def _importances(study: Study, measured: Sequence[Measured]) -> dict[str, float]:
    """Return and print how much of the differences between trials each parameter explains; nothing if none differ."""
    import optuna

    if len({trial.error for trial in measured if trial.errors}) < 2:
        return {}
    importances = optuna.importance.get_param_importances(study)
    print("importance: " + ", ".join(f"{name} {value:.2f}" for name, value in importances.items()))
    return importances
