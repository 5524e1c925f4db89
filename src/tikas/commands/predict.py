"""The command `tikas predict`: a saved model's answers for the rows of a file, or for the images of a folder."""

from __future__ import annotations

import csv
import io
import sys
import warnings
from dataclasses import dataclass
from functools import partial
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from tyro.conf import Positional, arg

from tikas.commands.flags import Column, Columns, Device, Flag, OptionalFile
from tikas.commands.outputs import complain, make_folder_of, refuse_to_replace

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tikas.estimators import LadderClassifier, LadderRegressor


@dataclass(frozen=True)
class Predict:
    """Predict the rows of a file, or the images of a folder, with a model that was saved.

    For example,

    tikas predict models/mine.safetensors rows.csv

    tikas predict models/mine.safetensors rows.csv --target kind --probabilities --output predictions.csv

    tikas predict models/flowers.safetensors new-photos
    """

    model: Annotated[Positional[Path], arg(metavar="MODEL")]
    """A file that `tikas train` or an estimator's `save` wrote."""
    file: Annotated[Positional[Path], arg(metavar="FILE")]
    """The rows: .csv, .tsv, .npy, .npz or .parquet; or a folder of images, in folders of their classes or not."""
    target: Column = None
    """A column of the file that holds labels: left out of the rows, and compared with what is predicted."""
    ignore: Columns = ()
    """Columns of the file that are not looked at. A model that names its columns looks at no others in any case."""
    probabilities: Flag = False
    """A column for each class instead of the most probable one."""
    output: OptionalFile = None
    """A .csv file for the predictions. Without it they are printed."""
    device: Device = None
    """Where to predict. Without it, images and many rows on a GPU if there is one."""


class _Given(NamedTuple):
    """Rows to predict, their labels where they are known, and the files that they come from where each has its own."""

    x: NDArray[np.float32]
    y: NDArray[Any] | None
    files: list[str] | None = None


def predict(command: Predict) -> int:
    """Carry the command out.

    Examples
    --------
    >>> import tempfile
    >>> from tikas import LadderClassifier
    >>> X, y = [[0.0], [0.1], [0.9], [1.0]] * 10, ["low", None, None, "high"] * 10
    >>> classifier = LadderClassifier((8,), costs=1.0, epochs=50, batch_size=20, random_state=0).fit(X, y)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model, rows = classifier.save(folder + "/mine.safetensors"), Path(folder, "rows.csv")
    ...     _ = rows.write_text("0.05\\n0.95\\n")
    ...     predict(Predict(model, rows))
    prediction
    low
    high
    0
    """
    from tikas.estimators import load
    from tikas.training.checkpoint import replace_file
    from tikas.training.devices import suitable_device

    if command.output:
        make_folder_of(command.output)
        refuse_to_replace([command.model, command.file], command.output)
    if command.device:
        suitable_device(command.device)
    model = load(command.model).set_params(device=command.device)
    if command.probabilities and model.task != "classification":
        raise ValueError(f"{command.model} predicts values, not classes: leave --probabilities out.")
    given = _from_folder(command, model) if command.file.is_dir() else _from_table(command, model)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "X does not have valid feature names")  # they were read in its order
        if command.probabilities:
            probabilities = model.predict_proba(given.x)
            predicted = model.classes_[probabilities.argmax(1)]
            header = [str(name) for name in model.classes_]
            lines = [[f"{p:.6f}" for p in row] for row in probabilities]
        else:
            predicted = model.predict(given.x)
            header, lines = ["prediction"], [[value] for value in predicted]
    if given.files is not None:
        header, lines = ["file", *header], [[file, *line] for file, line in zip(given.files, lines, strict=True)]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *lines])
    if command.output:
        replace_file(command.output, text.getvalue().encode())
    else:
        print(text.getvalue(), end="")
    _compare(model, given.y, predicted)
    return 0


def _from_table(command: Predict, model: LadderClassifier | LadderRegressor) -> _Given:
    from tikas.data.cells import labels_of, values_of
    from tikas.data.folders import FORMATS
    from tikas.data.tables import read_table

    if command.file.suffix.lower() in FORMATS and command.file.is_file():
        raise ValueError(
            f"{command.file} is one image; expected a folder of them, or a table. Give its folder, "
            f"{command.file.parent}, for all images in it."
        )
    names = {name for name in getattr(model, "classes_", ()) if isinstance(name, str)}
    targets = partial(labels_of, names=names) if model.task == "classification" else values_of
    columns = [str(name) for name in getattr(model, "feature_names_in_", ())]
    for name in command.ignore:
        if name in columns:
            raise ValueError(f"--ignore {name}: {command.model} was trained with that column. Leave --ignore out.")
    table = read_table(command.file, command.target, targets, columns, command.ignore)
    if table.x.ndim > 2 and len(model.input_shape_) > 1:
        return _Given(table.x, table.y)  # the model sees that their layout is right
    if columns and table.columns is None:
        complain(
            f"{command.file} names no columns: they are taken in the order that the model has them in, "
            f"{', '.join(columns[:8])}{', …' if len(columns) > 8 else ''}."
        )
    return _Given(table.flat, table.y)


def _from_folder(command: Predict, model: LadderClassifier | LadderRegressor) -> _Given:
    """All images below a folder; those that lie in the folder of a class are known to be of that class."""
    import numpy as np

    from tikas.data.folders import find_images, read_images

    if command.target is not None:
        raise ValueError(f"--target {command.target} is a column, and {command.file} is a folder: leave --target out.")
    if command.ignore:
        raise ValueError(f"--ignore {command.ignore[0]} is a column, and {command.file} is a folder: leave it out.")
    files = find_images(command.file)
    names = [str(name) for name in getattr(model, "classes_", ())]
    labels = [file.parent.name if file.parent.name in names else None for file in files]
    shown = [str(file.relative_to(command.file)) for file in files]
    return _Given(read_images(files), np.array(labels, dtype=object), shown)


def _compare(model: LadderClassifier | LadderRegressor, labels: NDArray[Any] | None, predicted: NDArray[Any]) -> None:
    """Say how far the predictions are from the labels, if there are any."""
    import numpy as np
    from sklearn.metrics import r2_score

    from tikas.data.labels import as_values, is_unlabeled

    if labels is None:
        return
    if model.task == "classification":
        known = ~is_unlabeled(labels)
        if known.any():
            wrong = 100 * (1 - _agree(predicted[known], labels[known]).mean())
            print(f"error on the {known.sum()} labelled rows: {wrong:.2f} %", file=sys.stderr)
            classes = model.classes_
            given = labels[known][np.unique(labels[known].astype(str), return_index=True)[1]]
            strange = [str(label) for label in given if not _agree(classes, np.full(len(classes), label)).any()]
            if strange:
                names = f"{', '.join(map(str, classes[:8]))}{', …' if len(classes) > 8 else ''}"
                complain(f"the model has no class {strange[0]!r}, so such rows count as errors; it has {names}.")
        return
    values = as_values(labels)
    known = values == values
    if known.sum() > 1:  # one has no variance
        r2 = r2_score(values[known], predicted[known])
        print(f"R² on the {known.sum()} rows with a target: {r2:.3f}", file=sys.stderr)


def _agree(predicted: NDArray[Any], labels: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether classes are the same, as numbers if both are, else as they are written."""
    numbers = predicted.dtype.kind in "iuf" and all(isinstance(label, Real) for label in labels.tolist())
    kind = float if numbers else str
    same: NDArray[np.bool_] = predicted.astype(kind) == labels.astype(kind)
    return same
