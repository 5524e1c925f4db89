"""`tikas predict`: predict the rows of a file or the images of a folder with a saved model."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from tikas.cli.options import Device, Quiet, check_output, check_table_options, print_error

ROWS_AT_A_TIME = 65_536
"""Rows of Parquet files that are in memory at a time."""

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from tikas.estimators import LadderClassifier, LadderRegressor

    Model = LadderClassifier | LadderRegressor
    Part = tuple[pd.DataFrame, NDArray[Any] | None]

WRITTEN = (".csv", ".tsv", ".parquet")
SECONDS_BETWEEN_MESSAGES = 10


def predict(
    model_path: Annotated[
        Path, typer.Argument(metavar="MODEL", help="A file that `tikas train` or an estimator's `save` wrote.")
    ],
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="Rows: .csv, .tsv, .txt, .parquet, .xlsx, .npy or .npz; - for CSV from standard input; a folder of "
            ".parquet files; or a folder of images, also in subfolders.",
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
    id_columns: Annotated[
        list[str] | None,
        typer.Option("--id", metavar="COLUMN...", help="Columns to keep beside the predictions. Default: all."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="File to write: .csv, .tsv or .parquet; - or none: print."),
    ] = None,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Predict rows or images with a saved model.

    Writes the rows with the columns prediction and probability (the predicted class's), part by part, and the error on
    labeled rows to standard error. Images are labeled if the name of their folder is a class. Of a folder of Parquet
    files, the predictions alone are written, in the order of the files.

    \b
    tikas predict models/mine.safetensors rows.csv
    tikas predict models/mine.safetensors rows.csv --id patient --probabilities -o predictions.csv
    tikas predict models/mine.safetensors rows.parquet --target kind -o predictions.parquet
    tikas predict models/mine.safetensors folder-of-parquet-files -o predictions.parquet
    cat rows.csv | tikas predict models/mine.safetensors - > predictions.csv
    tikas predict models/photos.safetensors new-photos
    """
    if output == Path("-"):
        output = None
    if output is not None:
        check_output(output, inputs=[model_path, file])
        if output.suffix.lower() not in WRITTEN:
            raise ValueError(f"--output {output} has the suffix {output.suffix!r}; expected {', '.join(WRITTEN)}.")

    from tikas.data.datasets import kind_of
    from tikas.io import load
    from tikas.training.environment import pick_device

    pick_device(device)  # fail early
    model = load(model_path).set_params(device=device)
    if probabilities and model.task == "regression":
        raise ValueError(f"--probabilities: {model_path} predicts values, not classes.")
    with _standard_input(file) as file:
        if file.is_dir() and kind_of(str(file)) == "tables":
            check_table_options(file, id=id_columns)
            shown = not quiet and output is not None
            parts = _predict_folder_of_tables(model, file, target, ignore or [], probabilities, shown=shown)
        elif file.is_dir() or file.suffix.lower() in (".npy", ".npz"):
            check_table_options(file, ignore=ignore, id=id_columns, target=target if file.is_dir() else None)
            parts = _predict_arrays(model, file, target, probabilities)
        else:
            parts = _predict_table(model, file, target, ignore or [], id_columns, probabilities)
        error = _Error(model)
        with _Writer(output, file) as writer:
            for frame, labels in parts:
                writer.write(frame)
                error.add(frame["prediction"].to_numpy(), labels)
    error.print()


@contextmanager
def _standard_input(file: Path) -> Iterator[Path]:
    """Yield the path of a file; of standard input, that of a copy, since its beginning is read twice."""
    if file != Path("-"):
        yield file
        return
    with TemporaryDirectory() as folder:
        path = Path(folder, "standard-input.csv")
        with path.open("wb") as copy:
            shutil.copyfileobj(sys.stdin.buffer, copy)
        yield path


def _predict_arrays(model: Model, path: Path, target: str | None, probabilities: bool) -> Iterator[Part]:
    """Yield the predictions of an array file or of a folder of images, and the labels if there are any."""
    import pandas as pd

    from tikas.data.tables import labels_of, read_arrays, values_of
    from tikas.io import predict_columns

    frame = pd.DataFrame()
    if path.is_dir():
        rows, labels, frame["file"] = _read_folder(path, model)
    else:
        rows, texts = read_arrays(path, target)
        rows = rows.reshape(len(rows), -1) if len(model.input_shape_) == 1 else rows
        labels = None
        if texts is not None:
            regression = model.task == "regression"
            labels = values_of(path, texts) if regression else labels_of(texts, model.classes_)
    yield frame.assign(**predict_columns(model, rows, probabilities=probabilities)), labels


def _predict_table(
    model: Model, path: Path, target: str | None, ignore: list[str], id_columns: list[str] | None, probabilities: bool
) -> Iterator[Part]:
    """Yield the rows of a table with their predictions, part by part, and the labels if a target is named."""
    from tikas.io import predict_columns

    for chunk, rows, labels in read_parts(model, path, target, ignore, id_columns or []):
        kept = chunk if id_columns is None else chunk[id_columns]
        predicted = predict_columns(model, rows, probabilities=probabilities)
        taken = [name for name in predicted if name in kept]
        if taken:
            raise ValueError(f"{path} has a column {taken[0]!r} already. Name the columns to keep: --id COLUMN.")
        yield kept.assign(**predicted), labels


def read_parts(
    model: Model, path: Path, target: str | None, ignore: Sequence[str], id_columns: Sequence[str] = ()
) -> Iterator[tuple[pd.DataFrame, Any, NDArray[Any] | None]]:
    """Yield a table part by part: its cells, the rows as the model takes them, and the labels if a target is named."""
    from tikas.data.tables import feature_table, labels_of, number_table, read_chunks, require_columns, values_of

    names = [str(name) for name in getattr(model, "feature_names_in_", ())]
    of_target = [target] if target else []
    first_row = 1
    for chunk in read_chunks(path, names, [*(names or ignore), *of_target, *id_columns]):
        require_columns(path, chunk, target=of_target, id=id_columns, ignore=ignore)
        left_out = {*ignore, *id_columns, *of_target}
        if model.encoder_ is not None:
            rows: Any = feature_table(path, chunk, model.encoder_.columns, named=bool(names))
        else:
            chosen = names or [name for name in chunk if name not in left_out]
            rows = number_table(path, chunk, chosen, required=bool(names), first_row=first_row)
            rows = rows if names else rows.to_numpy()
        labels = None
        if target:
            decimal = chunk.attrs.get("decimal", ".")
            regression = model.task == "regression"
            labels = values_of(path, chunk[target], decimal) if regression else labels_of(chunk[target], model.classes_)
        first_row += len(chunk)
        yield chunk, rows, labels


class _Writer:
    """Writes parts of a table to a CSV, TSV or Parquet file, which appears when it is complete, or prints them."""

    def __init__(self, path: Path | None, source: Path) -> None:
        self._path = path
        self._partial = None if path is None else path.with_name(f".{path.name}.partial")
        self._form = ".csv" if path is None else path.suffix.lower()
        self._source = source
        self._rows = 0
        self._parquet: Any = None
        self._told = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def write(self, frame: pd.DataFrame) -> None:
        """Write a part."""
        if self._form == ".parquet":
            self._write_parquet(frame)
        else:
            frame = frame.assign(**{name: frame[name].map("{:.6f}".format) for name in frame if _is_probability(name)})
            text = frame.to_csv(
                index=False, lineterminator="\n", header=self._rows == 0, sep="\t" if self._form == ".tsv" else ","
            )
            if self._partial is None:
                print(text, end="")
            else:
                with self._partial.open("a" if self._rows else "w", encoding="utf-8", newline="") as file:
                    file.write(text)
        self._rows += len(frame)
        self._tell()

    def _write_parquet(self, frame: pd.DataFrame) -> None:
        import pyarrow
        from pyarrow.parquet import ParquetWriter, read_schema

        if self._parquet is None:
            # The columns of a Parquet file keep their types, even where a part of them has nothing but gaps.
            known = read_schema(self._source) if self._source.suffix.lower() == ".parquet" else pyarrow.schema([])
            found = pyarrow.Table.from_pandas(frame, preserve_index=False).schema
            fields = [known.field(field.name) if field.name in known.names else field for field in found]
            self._parquet = ParquetWriter(self._partial, pyarrow.schema(fields))
        self._parquet.write_table(
            pyarrow.Table.from_pandas(frame, schema=self._parquet.schema, preserve_index=False, safe=False)
        )

    def _tell(self) -> None:
        """Say now and then how many rows are done, if this takes long."""
        if self._path is not None and time.monotonic() - self._told > SECONDS_BETWEEN_MESSAGES:
            print(f"{self._rows:,} rows predicted", file=sys.stderr, flush=True)
            self._told = time.monotonic()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._parquet is not None:
            self._parquet.close()
        if self._path is None or self._partial is None:
            return
        if kind is None:
            self._partial.replace(self._path)
        else:
            self._partial.unlink(missing_ok=True)


def _is_probability(name: object) -> bool:
    return name == "probability" or str(name).startswith("probability:")


def _predict_folder_of_tables(
    model: Model, folder: Path, target: str | None, ignore: list[str], probabilities: bool, *, shown: bool
) -> Iterator[Part]:
    """Yield the predictions for a folder of Parquet files part by part, and the labels if a target is named."""
    import pandas as pd

    from tikas.data.parquet import open_parquet
    from tikas.io import predict_columns
    from tikas.training.callbacks import row_bar

    names = [str(name) for name in getattr(model, "feature_names_in_", ())]
    rows, labels = open_parquet(folder, target, ignore, model.task, columns=names)
    with row_bar("predicting", len(rows), shown=shown) as advance:
        for start in range(0, len(rows), ROWS_AT_A_TIME):
            part = rows[start : start + ROWS_AT_A_TIME]
            X = pd.DataFrame(part, columns=names) if names else part
            predicted = pd.DataFrame(predict_columns(model, X, probabilities=probabilities))
            yield predicted, None if labels is None else labels[start : start + len(part)]
            advance(len(part))


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


class _Error:
    """The error on labeled rows, or of values, gathered part by part."""

    def __init__(self, model: Model) -> None:
        self._regression = model.task == "regression"
        self._classes = [] if self._regression else model.classes_.tolist()
        self._count, self._total = 0, 0.0
        self._unknown: dict[object, int] = {}

    def add(self, predicted: NDArray[Any], labels: NDArray[Any] | None) -> None:
        """Add rows and their labels, None or NaN where unlabeled."""
        if labels is None:
            return
        import numpy as np

        from tikas.data.labels import is_unlabeled

        known = ~np.isnan(labels) if self._regression else ~is_unlabeled(labels)
        predicted, labels = predicted[known], labels[known]
        self._count += len(labels)
        if self._regression:
            self._total += float(((predicted - labels) ** 2).sum())
            return
        self._total += sum(not _is_same(*pair) for pair in zip(predicted.tolist(), labels.tolist(), strict=True))
        for label in labels.tolist():
            if label in self._unknown or not any(_is_same(name, label) for name in self._classes):
                self._unknown[label] = self._unknown.get(label, 0) + 1

    def print(self) -> None:
        """Print the error to standard error, if there were labels."""
        if not self._count:
            return
        if self._regression:
            error = (self._total / self._count) ** 0.5
            print(f"RMSE on the {self._count} rows with a target: {error:.4g}", file=sys.stderr)
            return
        print(f"error on the {self._count} labeled rows: {100 * self._total / self._count:.2f} %", file=sys.stderr)
        if self._unknown:
            found = ", ".join(f"{label!r} ({count} rows)" for label, count in list(self._unknown.items())[:10])
            print_error(f"warning: the model has no class {found}; such rows count as errors.")


def _is_same(one: object, other: object) -> bool:
    """Return whether labels are equal as values or as text: a class may be "1" in the model and 1 in a file."""
    return one == other or str(one) == str(other)
