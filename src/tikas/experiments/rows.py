"""The rows of a run: training rows with what is known of them, and test rows, of a data set, a folder or a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tikas.data import sources, tables
from tikas.data.cells import labels_of, values_of
from tikas.data.folders import read_folder
from tikas.data.images import as_images
from tikas.data.kinds import kind_of
from tikas.data.labels import NO_LABEL, as_values, encode_labels, scale_of_values
from tikas.data.numbered_rows import warn_of_numbered_rows
from tikas.data.preparations import PREPARATIONS, Preparation
from tikas.data.splits import Split
from tikas.model.names import Task
from tikas.training.devices import suitable_device
from tikas.training.recipe import Preprocess


@dataclass(frozen=True, eq=False)
class Rows:
    """What a run is about: training rows with the labels that are known (-1: none), and test rows if there are any.

    Images are ``(n, channels, height, width)``, or flat.

    Examples
    --------
    >>> rows = load_images("digits")
    >>> rows.test_x.shape, rows.flat().test_x.shape, rows.flat().input_shape
    ((500, 1, 8, 8), (500, 64), (1, 8, 8))
    """

    train_x: NDArray[np.float32]
    train_y: NDArray[np.int64]
    classes: NDArray[np.generic]
    test_x: NDArray[np.float32]
    test_y: NDArray[np.int64]
    columns: tuple[str, ...] = ()
    preparation: Preparation | None = None
    """What these rows went through, if they did; a saved model needs it for rows to come."""
    input_shape: tuple[int, ...] = ()
    """The shape of a row as it comes; by default the one that it has here, which may be flat."""
    values: NDArray[np.float64] | None = None
    """Of a regression: the values of the training rows, NaN where there is none. There `train_y` is 0 for those that
    are known, and `classes` names the one column that they are of."""
    target_scale: tuple[float, float] | None = None
    """The mean and the deviation that these values were brought to zero and one from, if they were."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "input_shape", self.input_shape or self.train_x.shape[1:])

    def prepared(self, preprocess: Preprocess, device: str | None = None) -> Rows:
        """The same rows whitened or standardised, as fitted on the training rows alone, on a GPU if there is one."""
        if preprocess == "none":
            return self
        train_x, test_x = torch.from_numpy(self.train_x), torch.from_numpy(self.test_x)
        preparation = PREPARATIONS[preprocess].fit(train_x, suitable_device(device)).to("cpu")
        return replace(
            self,
            train_x=preparation(train_x).numpy(),
            test_x=preparation(test_x).numpy(),
            preparation=preparation,
        )

    def scaled(self, splits: Sequence[Split]) -> Rows:
        """The same with values of mean zero and deviation one, by those that some member sees; classes stay."""
        if self.values is None:
            return self
        seen = np.unique(np.concatenate([part.labeled for part in splits]))
        mean, deviation = scale_of_values(self.values[seen])
        return replace(self, values=(self.values - mean) / deviation, target_scale=(mean, deviation))

    @property
    def targets(self) -> NDArray[Any]:
        """What the training rows are to lead to: classes ``(n,)``, or values ``(n, 1)``."""
        return self.train_y if self.values is None else np.nan_to_num(self.values).astype(np.float32)[:, None]

    def flat(self) -> Rows:
        """The same with each image as a row of its pixels."""
        train_x, test_x = (x.reshape(len(x), prod(self.input_shape)) for x in (self.train_x, self.test_x))
        return replace(self, train_x=train_x, test_x=test_x)


def load_rows(data: str) -> Rows:
    """A data set by its name, each image as a row of its pixels; for a recipe's own rows there is `rows_for`.

    Examples
    --------
    >>> rows = load_rows("digits")
    >>> rows.train_x.shape[1], rows.classes.tolist()[:3]
    (64, ['0', '1', '2'])
    """
    return load_images(data).flat()


def load_images(
    data: str,
    data_dir: str | Path | None = None,
    target: str | None = None,
    task: Task = "classification",
    ignore: Sequence[str] = (),
) -> Rows:
    """A data set by its name, or a folder of images or a table by its path; nothing is said about their scale.

    Parameters
    ----------
    data
        What a recipe calls `data`.
    data_dir
        Where the files of a data set are.
    target
        The column of a table that holds the labels.
    task
        Whether these are classes or values; data sets and folders have classes.
    ignore
        Columns of a table that are not looked at.

    Examples
    --------
    >>> load_images("digits").train_x.shape
    (1297, 1, 8, 8)
    """
    kind = kind_of(data)
    if kind == "table":
        return _read_table(data, target, task, ignore)
    dataset = read_folder(data) if kind == "folder" else sources.load(data, data_dir)
    return Rows(dataset.train_x, dataset.train_y, np.array(dataset.classes), dataset.test_x, dataset.test_y)


def _read_table(data: str, target: str | None, task: Task, ignore: Sequence[str]) -> Rows:
    table = tables.read_table(data, target, values_of if task == "regression" else labels_of, ignore=ignore)
    if table.y is None and Path(data).suffix.lower() in (".npy", ".npz"):
        raise ValueError(
            f"{data} holds no labels. Save them with the rows, -1 or an empty text where there is none: "
            "numpy.savez('rows.npz', x=rows, y=labels). An array of another name than y is told with --target."
        )
    if table.y is None:
        raise ValueError(f"{data}: say which column holds the labels, with --target; rows without one leave it empty.")
    warn_of_numbered_rows(table, data)
    x, name = table.x if table.x.ndim == 2 else as_images(table.x), target or "y"
    if task == "classification":
        with _placed(data, name):
            codes, classes = encode_labels(table.y)
        return Rows(x, codes, classes, x[:0], codes[:0], table.columns or ())
    with _placed(data, name):
        values = as_values(table.y)
    if np.isnan(values).all():
        raise ValueError(f"{data}: none of the {len(x)} rows has a value of {name!r}. Give at least one.")
    known = np.where(np.isnan(values), NO_LABEL, 0)
    return Rows(x, known, np.array([name]), x[:0], known[:0], table.columns or (), values=values)


@contextmanager
def _placed(data: str, name: str) -> Iterator[None]:
    """Say which labels are wrong: those who have a file have no y."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{data}, {name!r}: {error}") from error
