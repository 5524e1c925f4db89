"""`tikas predict`: predict the rows of a file or the images of a folder with a saved model."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tikas.cli.options import Device, Quiet, check_output, check_table_options, print_error

ROWS_AT_A_TIME = 65_536
"""Rows of Parquet files that are in memory at a time."""

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from tikas.estimators import LadderClassifier, LadderRegressor


def predict(
    model_path: Annotated[
        Path, typer.Argument(metavar="MODEL", help="A file that `tikas train` or an estimator's `save` wrote.")
    ],
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="Rows: .csv, .tsv, .npy, .npz or .parquet; a folder of .parquet files; or a folder of images, also in "
            "subfolders.",
        ),
    ],
    target: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column with labels, to measure the error of the predictions.")
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN...", help="Columns to leave out. Not needed if the model has the names of its columns."
        ),
    ] = None,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="One column 'probability:CLASS' for each class.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="File to write: .csv, or .parquet for such files. Default: print."
        ),
    ] = None,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Predict rows or images with a saved model.

    Prints the predictions as CSV, and their error on labeled rows to standard error. Images are labeled if the name of
    their folder is a class. A folder of Parquet files is read part by part, and the columns prediction and probability
    are written in the order of the files.

    \b
    tikas predict models/mine.safetensors rows.csv
    tikas predict models/mine.safetensors rows.csv --target kind --probabilities -o predictions.csv
    tikas predict models/mine.safetensors folder-of-parquet-files -o predictions.parquet
    tikas predict models/photos.safetensors new-photos
    """
    if output is not None:
        check_output(output, inputs=[model_path, file])

    import pandas as pd

    from tikas.data.datasets import kind_of
    from tikas.io import load
    from tikas.training.environment import pick_device

    pick_device(device)  # fail early
    model = load(model_path).set_params(device=device)
    if probabilities and model.task == "regression":
        raise ValueError(f"--probabilities: {model_path} predicts values, not classes.")

    if file.is_dir() and kind_of(str(file)) == "tables":
        _predict_parquet(model, file, target, ignore or [], output, probabilities=probabilities, quiet=quiet)
        return
    table: dict[str, Any] = {}
    if file.is_dir():
        check_table_options(file, target=target, ignore=ignore)
        rows, labels, table["file"] = _read_folder(file, model)
    else:
        rows, labels = _read_table(file, model, target, ignore or [])
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
        _print_error_rate(model, predicted, labels)


def _predict_parquet(
    model: LadderClassifier | LadderRegressor,
    folder: Path,
    target: str | None,
    ignore: list[str],
    output: Path | None,
    *,
    probabilities: bool,
    quiet: bool,
) -> None:
    """Predict the rows of a folder of Parquet files part by part, and print the error on labeled rows."""
    import numpy as np
    import pandas as pd

    from tikas.data.parquet import open_parquet
    from tikas.io import predict_columns
    from tikas.training.callbacks import row_bar

    names = [str(name) for name in getattr(model, "feature_names_in_", ())]
    rows, labels = open_parquet(folder, target, ignore, model.task, columns=names)
    predicted = []
    with row_bar("predicting", len(rows), shown=not quiet and output is not None) as advance, _writer(output) as write:
        for start in range(0, len(rows), ROWS_AT_A_TIME):
            part = rows[start : start + ROWS_AT_A_TIME]
            X = pd.DataFrame(part, columns=names) if names else part
            columns = predict_columns(model, X, probabilities=probabilities)
            write(pd.DataFrame(columns))
            if labels is not None:
                predicted.append(columns["prediction"])
            advance(len(part))
    if labels is not None:
        _print_error_rate(model, np.concatenate(predicted), labels)


@contextmanager
def _writer(path: Path | None) -> Iterator[Callable[[pd.DataFrame], None]]:
    """Yield a function that writes parts of a table, one below the other, to a CSV or Parquet file, or prints them.

    The file appears when it is complete.
    """
    if path is None:
        count = 0

        def show(part: pd.DataFrame) -> None:
            nonlocal count
            print(part.to_csv(index=False, header=count == 0, lineterminator="\n"), end="")
            count += len(part)

        yield show
        return
    partial = path.with_name(f".{path.name}.partial")
    try:
        with _parquet_writer(partial) if path.suffix.lower() == ".parquet" else _csv_writer(partial) as write:
            yield write
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def _csv_writer(path: Path) -> Iterator[Callable[[pd.DataFrame], None]]:
    with path.open("w", encoding="utf-8", newline="") as file:
        yield lambda part: part.to_csv(file, index=False, header=file.tell() == 0, lineterminator="\n")


@contextmanager
def _parquet_writer(path: Path) -> Iterator[Callable[[pd.DataFrame], None]]:
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    with ExitStack() as stack:
        writer = None

        def write(part: pd.DataFrame) -> None:
            nonlocal writer
            table = pa.Table.from_pandas(part, preserve_index=False)
            if writer is None:
                writer = stack.enter_context(ParquetWriter(path, table.schema))
            writer.write_table(table)

        yield write


def _read_folder(
    folder: Path, model: LadderClassifier | LadderRegressor
) -> tuple[NDArray[Any], NDArray[Any] | None, list[str]]:
    """Return the images, their labels (None if their folder is not named like a class), and their paths."""
    import numpy as np

    from tikas.data.images import find_images, read_images

    files = find_images(folder)
    classes = [str(name) for name in getattr(model, "classes_", ())]
    labels = [file.parent.name if file.parent.name in classes else None for file in files]
    return read_images(files), np.array(labels, dtype=object), [str(file.relative_to(folder)) for file in files]


def _read_table(
    file: Path, model: LadderClassifier | LadderRegressor, target: str | None, ignore: list[str]
) -> tuple[NDArray[Any] | pd.DataFrame, NDArray[Any] | None]:
    """Return the rows, and their labels or values if there are any."""
    import pandas as pd

    from tikas.data.tables import read_table_rows

    columns = [str(name) for name in getattr(model, "feature_names_in_", ())]
    rows, labels = read_table_rows(file, columns, target, ignore, model.task, getattr(model, "classes_", ()))
    if columns:
        return pd.DataFrame(rows, columns=columns), labels
    return rows.reshape(len(rows), -1) if len(model.input_shape_) == 1 else rows, labels


def _print_error_rate(model: LadderClassifier | LadderRegressor, predicted: NDArray[Any], labels: NDArray[Any]) -> None:
    """Print the error on labeled rows, or R² for a regression, to standard error."""
    import numpy as np

    from tikas.data.labels import is_unlabeled

    regression = model.task == "regression"
    known = ~np.isnan(labels) if regression else ~is_unlabeled(labels)
    if not known.any():
        return
    predicted, labels = predicted[known], labels[known]
    if regression:
        error = ((predicted - labels) ** 2).mean() ** 0.5
        print(f"RMSE on the {len(labels)} rows with a target: {error:.4g}", file=sys.stderr)
        return
    wrong = [not _is_same(*pair) for pair in zip(predicted.tolist(), labels.tolist(), strict=True)]
    print(f"error on the {len(labels)} labeled rows: {100 * np.mean(wrong):.2f} %", file=sys.stderr)
    classes = model.classes_.tolist()
    unknown = [label for label in dict.fromkeys(labels.tolist()) if not any(_is_same(name, label) for name in classes)]
    if unknown:
        print_error(f"warning: the model has no class {unknown[0]!r}; such rows count as errors.")


def _is_same(one: object, other: object) -> bool:
    """Return whether labels are equal as values or as text: a class may be "1" in the model and 1 in a file."""
    return one == other or str(one) == str(other)
