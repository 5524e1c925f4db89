"""`tikas predict`: predict the rows of a file or the images of a folder with a saved model."""

from __future__ import annotations

import sys
import warnings
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tikas.cli.options import Device, check_output, print_error

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tikas.estimators import LadderClassifier, LadderRegressor

MAX_NAMED_CLASSES = 8


def predict(
    model_path: Annotated[
        Path, typer.Argument(metavar="MODEL", help="A file that `tikas train` or an estimator's `save` wrote.")
    ],
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="The rows: .csv, .tsv, .npy, .npz or .parquet; or a folder of images, at any depth."
        ),
    ],
    target: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column with labels, to measure the error of the predictions.")
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN...", help="Columns to leave out. Not needed for a model that knows its columns by name."
        ),
    ] = None,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="One column 'probability:CLASS' for each class.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="CSV file to write. Default: print.")
    ] = None,
    device: Device = None,
) -> None:
    """Predict the rows of a file, or the images of a folder, with a saved model.

    Prints the predictions as CSV, and their error on labeled rows to standard error. Images are labeled if the name of
    their folder is a class.

    \b
    tikas predict models/mine.safetensors rows.csv
    tikas predict models/mine.safetensors rows.csv --target kind --probabilities -o predictions.csv
    tikas predict models/photos.safetensors new-photos
    """
    if output is not None:
        check_output(output, inputs=[model_path, file])

    import pandas as pd

    from tikas.io import load
    from tikas.training.environment import pick_device

    if device is not None:
        pick_device(device)
    model = load(model_path).set_params(device=device)
    if probabilities and model.task == "regression":
        raise ValueError(f"--probabilities: {model_path} predicts values, not classes.")

    labels: NDArray[Any] | None
    files: list[str] | None = None
    if file.is_dir():
        for option, value in (("--target", target), ("--ignore", ignore)):
            if value:
                raise typer.BadParameter(f"It applies to a table, and {file} is a folder.", param_hint=option)
        rows, labels, files = _read_folder(file, model)
    else:
        rows, labels = _read_table(file, model, model_path, target, ignore or [])

    table = {} if files is None else {"file": files}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "X does not have valid feature names")  # they were read in the model's order
        if probabilities:
            scores = model.predict_proba(rows)
            predicted = model.classes_[scores.argmax(1)]
            table |= {f"probability:{name}": column for name, column in zip(model.classes_, scores.T, strict=True)}
        else:
            predicted = table["prediction"] = model.predict(rows)
    text = pd.DataFrame(table).to_csv(index=False, lineterminator="\n", float_format="%.6f" if probabilities else None)
    if output is None:
        print(text, end="")
    else:
        output.write_text(text)
    if labels is not None:
        _print_error_of(model, predicted, labels)


def _read_folder(
    folder: Path, model: LadderClassifier | LadderRegressor
) -> tuple[NDArray[Any], NDArray[Any], list[str]]:
    """Return the images, their labels (None unless the folder has the name of a class), and their files."""
    import numpy as np

    from tikas.data.images import find_images, read_images

    files = find_images(folder)
    classes = [str(name) for name in getattr(model, "classes_", ())]
    labels = [file.parent.name if file.parent.name in classes else None for file in files]
    return read_images(files), np.array(labels, dtype=object), [str(file.relative_to(folder)) for file in files]


def _read_table(
    file: Path, model: LadderClassifier | LadderRegressor, model_path: Path, target: str | None, ignore: list[str]
) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Return the rows, and their labels or values if there are any."""
    from tikas.data.tables import read_table_rows

    columns = [str(name) for name in getattr(model, "feature_names_in_", ())]
    for name in ignore:
        if name in columns:
            raise ValueError(f"--ignore {name}: {model_path} was trained with that column.")
    classes = getattr(model, "classes_", ())
    rows, labels = read_table_rows(file, columns, target, ignore, model.task, classes)
    if rows.ndim > 2 and len(model.input_shape_) == 1:
        rows = rows.reshape(len(rows), -1)
    return rows, labels


def _print_error_of(model: LadderClassifier | LadderRegressor, predicted: NDArray[Any], labels: NDArray[Any]) -> None:
    """Compare predictions with labels, and print the result to standard error."""
    import numpy as np
    from sklearn.metrics import r2_score

    from tikas.data.labels import is_unlabeled

    if model.task == "regression":
        known = ~np.isnan(labels)
        if known.sum() > 1:  # R² of a single value is not defined
            r2 = r2_score(labels[known], predicted[known])
            print(f"R² on the {known.sum()} rows with a target: {r2:.3f}", file=sys.stderr)
        return
    known = ~is_unlabeled(labels)
    if not known.any():
        return
    predicted, labels = predicted[known], labels[known]
    error = 100 * (1 - _equal(predicted, labels).mean())
    print(f"error on the {len(labels)} labeled rows: {error:.2f} %", file=sys.stderr)
    classes = model.classes_
    unknown = [label for label in dict.fromkeys(labels.tolist()) if not _equal(classes, np.array([label])).any()]
    if unknown:
        names = ", ".join(map(str, classes[:MAX_NAMED_CLASSES])) + (", …" if len(classes) > MAX_NAMED_CLASSES else "")
        print_error(f"warning: the model has no class {str(unknown[0])!r}, only {names}; such rows count as errors.")


def _equal(classes: NDArray[Any], labels: NDArray[Any]) -> NDArray[Any]:
    """Compare element by element: as numbers if both are numbers, else as text."""
    numbers = classes.dtype.kind in "iuf" and all(isinstance(label, Real) for label in labels.tolist())
    kind = float if numbers else str
    equal: NDArray[Any] = classes.astype(kind) == labels.astype(kind)
    return equal
