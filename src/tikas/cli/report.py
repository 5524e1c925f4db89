"""`tikas report`: write an HTML page about a saved model, with tables and pictures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tikas.cli.options import DataDir, Device, check_output, check_table_options

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tikas.estimators import LadderClassifier, LadderRegressor
    from tikas.report.evaluation import ReportRows


def report(
    model_path: Annotated[
        Path, typer.Argument(metavar="MODEL", help="A file that `tikas train` or an estimator's `save` wrote.")
    ],
    data: Annotated[
        str | None,
        typer.Option(
            metavar="DATA",
            help="Rows to judge the model by, and to draw: a table, a folder of images, digits, mnist, fashion-mnist "
            "or cifar10.",
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Column of a table with the labels. Default: the column in training."),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN...", help="Columns to leave out. Not needed if the model has the names of its columns."
        ),
    ] = None,
    map_method: Annotated[
        Literal["pca", "tsne"], typer.Option("--map", help="How rows are laid out on the map.")
    ] = "pca",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Default: the name of the model with .html.")
    ] = None,
    data_dir: DataDir = None,
    device: Device = None,
) -> None:
    """Write an HTML page about a saved model: how good it is, what it got wrong, and what it learned.

    The page is one file without scripts, which needs no network. What needs rows is left out without --data. With the
    file that the model was trained on, it is judged by the labels that it did not learn; other rows are taken for new.

    \b
    tikas report models/mine.safetensors --data mine.csv
    tikas report models/mine.safetensors --data new.csv --target kind -o new.html
    tikas report models/digits.safetensors --data digits --map tsne
    """
    output = output or model_path.with_suffix(".html")
    check_output(output, inputs=[model_path, *([Path(data)] if data else [])])

    from tikas.io import load
    from tikas.report.model import model_page
    from tikas.report.page import write
    from tikas.training.environment import pick_device

    pick_device(device)  # fail early
    model = load(model_path).set_params(device=device)
    rows = None if data is None else _rows(model, data, data_dir, target, ignore or [])
    print(f"report written to {write(output, model_page(model, model_path.stem, rows, method=map_method))}")


def _rows(
    model: LadderClassifier | LadderRegressor, data: str, data_dir: Path | None, target: str | None, ignore: list[str]
) -> ReportRows:
    """Return the rows of the data, and which labels the model learned if it was trained on them."""
    import numpy as np

    from tikas.cli.predict import _read_folder
    from tikas.data.datasets import content_digest, kind_of, load_dataset
    from tikas.data.images import read_folder
    from tikas.data.splits import split
    from tikas.report.evaluation import ReportRows, rows_of_training, used_labels
    from tikas.report.plots import class_codes

    training, kind = model.training_, kind_of(data)
    name = Path(data).name
    if kind != "table":
        check_table_options(data, target=target, ignore=ignore)
    if kind == "data set":
        known = data == training.data
    else:
        known = content_digest(data) == training.digest and target in (None, training.target)
    early_stopping = model.recipe_.early_stopping
    classes = model.classes_.tolist() if model.task == "classification" else None
    settings: dict[str, Any] = {
        "labels": training.labels or None,
        "validation": training.validation,
        "classes": classes,
    }
    if kind == "data set" or (kind == "folder" and known):
        train, test = load_dataset(data, data_dir) if kind == "data set" else read_folder(data)
        splits = [split(train.targets, **settings, seed=seed) for seed in model.seeds_] if known else []
        rows = rows_of_training(train, test, splits, early_stopping=early_stopping)
        return rows if known else replace(rows, source=f"test rows of {name}")
    if kind == "folder":
        X, labels, _ = _read_folder(Path(data), model)
        assert labels is not None
        return ReportRows(X, labels, None, f"labeled images of {name}", surely_new=False)
    target = target or training.target or None
    X, labels = _read_table(model, Path(data), target, ignore)
    if labels is None:
        labels = np.full(len(X), np.nan) if classes is None else np.full(len(X), None, dtype=object)
    if not known:
        return ReportRows(X, labels, None, f"labeled rows of {name}", surely_new=False)
    codes = ~np.isnan(labels) - 1 if classes is None else class_codes(model, labels)
    splits = [split(codes, **settings, seed=seed) for seed in model.seeds_]
    return ReportRows(X, labels, used_labels(len(X), splits, early_stopping=early_stopping), "labels held out")


def _read_table(
    model: LadderClassifier | LadderRegressor, path: Path, target: str | None, ignore: list[str]
) -> tuple[Any, NDArray[Any] | None]:
    """Return the rows of a table or of an array file, and their labels if a target is named or in the file."""
    import numpy as np
    import pandas as pd

    from tikas.cli.predict import read_parts
    from tikas.data.tables import labels_of, read_arrays, values_of

    if path.suffix.lower() in (".npy", ".npz"):
        rows, texts = read_arrays(path, target)
        rows = rows.reshape(len(rows), -1) if len(model.input_shape_) == 1 else rows
        if texts is None:
            return rows, None
        return rows, values_of(path, texts) if model.task == "regression" else labels_of(texts, model.classes_)
    parts = [(rows, labels) for _, rows, labels in read_parts(model, path, target, ignore)]
    tables, targets = [rows for rows, _ in parts], [labels for _, labels in parts if labels is not None]
    joined = pd.concat(tables, ignore_index=True) if isinstance(tables[0], pd.DataFrame) else np.concatenate(tables)
    return joined, np.concatenate(targets) if targets else None
