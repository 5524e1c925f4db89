"""Model files: one safetensors file with a JSON header. Reading a file checks it and executes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from math import inf, isfinite, prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from tikas.data.columns import ColumnEncoder
from tikas.data.transforms import TRANSFORMS
from tikas.estimators.base import LadderEstimator
from tikas.estimators.classifier import LadderClassifier
from tikas.estimators.regressor import LadderRegressor
from tikas.model.ladder import Model
from tikas.training.checkpoint import ModelFileError, read_tensors, write_tensors
from tikas.training.recipe import Recipe
from tikas.training.summary import TrainingSummary

VERSION = 3
"""Version of the header."""
ESTIMATORS: dict[str, type[LadderClassifier] | type[LadderRegressor]] = {
    "classification": LadderClassifier,
    "regression": LadderRegressor,
}
"""The estimator class for each task of a recipe."""
CLASS_TYPES = {"b": bool, "i": np.int64, "u": np.uint64, "f": np.float64, "U": np.str_, "O": object}
"""Data type of the classes for each NumPy dtype kind in a header."""


def save(estimator: LadderEstimator, path: str | Path) -> Path:
    """Write a fitted estimator into one file; an existing file is replaced once the new one is complete."""
    check_is_fitted(estimator)
    recipe, members = estimator.recipe_, estimator.ladders_
    if not members[0].packable and not recipe.is_module:
        raise ValueError(
            "The network is your own module, which a file without code cannot restore. Save its weights with "
            "torch.save(estimator.ladder_.network.state_dict(), path), or pickle the estimator with "
            "joblib.dump(estimator, path) and load it only where you trust the file."
        )
    tensors = {
        f"members.{member}.{name}": tensor
        for member, model in enumerate(members)
        for name, tensor in model.state_dict().items()
    }
    if estimator.preparation_ is not None:
        tensors |= {f"preparation.{name}": tensor for name, tensor in estimator.preparation_.tensors().items()}
    header = {
        "version": VERSION,
        "recipe": asdict(recipe),
        "input_shape": list(estimator.input_shape_),
        "input_range": estimator.input_range_,
        "feature_names": list(getattr(estimator, "feature_names_in_", ())),
        "seeds": estimator.seeds_,
        "history": estimator.history_,
        "columns": None if estimator.encoder_ is None else estimator.encoder_.to_json(),
        "interrupted": estimator.interrupted_,
        "training": asdict(estimator.training_),
    }
    if isinstance(estimator, LadderClassifier):
        header |= {"classes": estimator.classes_.tolist(), "class_kind": estimator.classes_.dtype.kind}
    elif isinstance(estimator, LadderRegressor):
        header |= {"target_mean": estimator.target_mean_, "target_deviation": estimator.target_deviation_}
    return write_tensors(path, tensors, header)


def load(path: str | Path) -> LadderClassifier | LadderRegressor:
    """Read a fitted estimator from a file. The file is checked, and nothing in it is executed.

    Parameters
    ----------
    path : str or Path
        A file written by `LadderClassifier.save`, `LadderRegressor.save` or ``tikas train``.

    Returns
    -------
    LadderClassifier or LadderRegressor
        The fitted estimator.

    Raises
    ------
    FileNotFoundError
        If the file does not exist.
    ModelFileError
        If the file is truncated, damaged or not a model of tikas. This is a ValueError.

    Examples
    --------
    >>> import tempfile
    >>> from tikas import LadderClassifier, load
    >>> X = [[0.0], [0.2], [0.8], [1.0]] * 25
    >>> classifier = LadderClassifier((8,), epochs=5, random_state=7).fit(X, ["low", None, None, "high"] * 25)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     loaded = load(classifier.save(folder + "/model.safetensors"))
    >>> bool((loaded.predict_proba(X) == classifier.predict_proba(X)).all()), loaded.seeds_
    (True, [7])
    """
    tensors, header = read_tensors(path)
    try:
        return _restore(tensors, header)
    except Exception as error:  # there are many ways to damage a file
        reason = f"the header lacks {error}" if isinstance(error, KeyError) else " ".join(str(error).split())[:200]
        raise ModelFileError(
            f"{path} is damaged, or not a model that this version of tikas can read ({reason}). Save the model again."
        ) from error


class Predictor:
    """Predicts batches of rows with a saved model, in as many processes as a cluster has.

    A Predictor is pickled as the path of its file. Each process reads the file once, with its first batch, and again if
    the file has changed.

    Parameters
    ----------
    path : str or Path
        A model file, on storage that all processes can read.
    probabilities : bool, default=False
        Whether to add a column ``probability:CLASS`` for each class of a classifier.
    keep : sequence of str, default=()
        Columns to copy to the result, such as the key of each row.

    Raises
    ------
    FileNotFoundError
        If the file does not exist.
    ModelFileError
        With the first batch, if the file is damaged or not a model of tikas.

    Examples
    --------
    >>> import tempfile
    >>> from tikas import LadderClassifier
    >>> from tikas.io import Predictor
    >>> X, y = [[0.0], [0.1], [0.9], [1.0]] * 10, ["low", None, None, "high"] * 10
    >>> classifier = LadderClassifier((8,), costs=1.0, epochs=50, batch_size=20, random_state=0).fit(X, y)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     predictor = Predictor(classifier.save(folder + "/model.safetensors"), keep=["id"])
    ...     predicted = predictor({"id": np.array([7, 8]), "value": np.array([0.05, 0.95])})
    >>> list(predicted), predicted["prediction"].tolist()
    (['id', 'prediction', 'probability'], ['low', 'high'])
    """

    def __init__(self, path: str | Path, *, probabilities: bool = False, keep: Sequence[str] = ()) -> None:
        self.path = Path(path).resolve(strict=True)
        self.probabilities = probabilities
        self.keep = list(keep)

    def __call__(self, batch: Any) -> Any:
        """Return the predictions of a batch.

        Parameters
        ----------
        batch : dict of arrays, DataFrame, or iterator of either
            The columns that the model knows by name, and any others. If it was fitted without names, all columns but
            `keep` are its features in this order; a single column may hold a whole row or image in each cell.

        Returns
        -------
        dict of arrays, DataFrame, or iterator of either
            Like `batch`, with the same index: the columns `keep`, ``prediction``, and of a classifier ``probability``,
            the predicted class's, and on request ``probability:CLASS``.
        """
        if isinstance(batch, Iterator):
            return map(self, batch)
        model = _load_once(self.path, self.path.stat().st_mtime_ns)
        columns = {name: np.asarray(batch[name]) for name in self.keep}
        columns |= predict_columns(model, _features(model, batch, self.keep), probabilities=self.probabilities)
        return columns if isinstance(batch, Mapping) else type(batch)(columns, index=batch.index)


@lru_cache(maxsize=4)
def _load_once(path: Path, modified: int) -> LadderClassifier | LadderRegressor:  # noqa: ARG001
    """Load a model once in each process: a cluster may unpickle a Predictor again for every batch."""
    return load(path)


def _features(model: LadderEstimator, batch: Any, leave_out: Sequence[str]) -> Any:
    """Return the rows of a batch as `predict` takes them."""
    if hasattr(model, "feature_names_in_"):
        import pandas as pd

        return pd.DataFrame({name: batch[name] for name in model.feature_names_in_})
    columns = [np.asarray(batch[name]) for name in batch if name not in leave_out]
    if len(columns) > 1:
        return np.column_stack(columns)
    rows = np.array(list(columns[0]))  # a value, a whole row or an image in each cell
    return rows if rows.ndim > 1 else rows[:, np.newaxis]


def predict_columns(model: Any, rows: Any, *, probabilities: bool) -> dict[str, NDArray[Any]]:
    """Return the columns of the predictions; of an empty batch too, which an estimator does not take."""
    if model.task == "regression":
        return {"prediction": model.predict(rows) if len(rows) else np.empty(0)}
    scores = model.predict_proba(rows) if len(rows) else np.empty((0, len(model.classes_)))
    columns = {"prediction": model.classes_[scores.argmax(1)], "probability": scores.max(1)}
    if probabilities:
        columns |= {f"probability:{name}": column for name, column in zip(model.classes_, scores.T, strict=True)}
    return columns


def _restore(tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> LadderClassifier | LadderRegressor:
    _require(header["version"] == VERSION, f"it has version {header['version']!r}, expected {VERSION}")
    recipe = Recipe(**header["recipe"])
    settings = asdict(recipe)
    estimator = ESTIMATORS[settings.pop("task")](**settings)
    if isinstance(estimator, LadderClassifier):
        estimator.classes_ = _classes(header["classes"], header["class_kind"])
        n_outputs = len(estimator.classes_)
        if not np.array_equal(estimator.classes_, np.unique(estimator.classes_)):
            estimator.classes = estimator.classes_.tolist()  # so that another fit keeps their order
    else:
        n_outputs = 1
        mean, deviation = float(header["target_mean"]), float(header["target_deviation"])
        _require(isfinite(mean) and 0 < deviation < inf, "the mean or the deviation of the targets is out of range")
        estimator.target_mean_, estimator.target_deviation_ = mean, deviation

    shape, names, seeds = tuple(header["input_shape"]), list(header["feature_names"]), list(header["seeds"])
    _require(all(type(side) is int and side > 0 for side in shape), "input_shape is not the shape of a row")
    estimator.input_shape_ = shape
    estimator.n_features_in_ = prod(shape)
    estimator.input_range_ = None
    if header["input_range"] is not None:
        lowest, highest = map(float, header["input_range"])
        estimator.input_range_ = lowest, highest

    _require(recipe.preprocess != "auto", "the preprocessing is not named")
    estimator.encoder_ = None
    if recipe.preprocess == "columns":
        encoder = estimator.encoder_ = ColumnEncoder.from_json(header["columns"])
        own_names = [column.name for column in encoder.columns]
        _require(shape == (len(encoder.names),), "the encoding of the columns does not fit input_shape")
        _require(not names or names == own_names, "the encoded columns are not the named ones")
        estimator.n_features_in_ = len(own_names)
        keys: Sequence[Any] = names or range(len(own_names))
        kinds = (column.kind if column.used else "ignored" for column in encoder.columns)
        estimator.columns = dict(zip(keys, kinds, strict=True))
    if names:
        valid = len(names) == estimator.n_features_in_ and all(isinstance(name, str) for name in names)
        _require(valid, "the feature names do not fit the input")
        estimator.feature_names_in_ = np.array(names, dtype=object)
    preparation = _tensors_of("preparation", tensors)
    estimator.preparation_ = None
    if recipe.preprocess in TRANSFORMS:
        estimator.preparation_ = TRANSFORMS[recipe.preprocess].from_tensors(preparation)
        _require(estimator.preparation_.mean.shape == shape, "the tensors of the preprocessing do not fit input_shape")
    states = [_tensors_of(f"members.{member}", tensors) for member in range(len(seeds))]
    unused = len(tensors) - len(preparation) - sum(map(len, states))
    _require(unused == 0, f"{unused} tensors belong to none of the {len(seeds)} members")
    member_shape = shape if recipe.takes_maps else (prod(shape),)
    members = [_member(state, recipe, member_shape, n_outputs) for state in states]
    estimator.n_members = len(seeds)
    estimator._set_fitted(recipe, members, seeds, header["history"], interrupted=bool(header["interrupted"]))
    estimator.training_ = TrainingSummary.from_json(header["training"])
    return estimator


def _require(valid: bool, problem: str) -> None:
    if not valid:
        raise ValueError(problem)


def _classes(names: list[Any], kind: str) -> NDArray[Any]:
    """Return the classes; raise ValueError unless they are different labels of the kind in the header."""
    classes: NDArray[Any] = np.array(names, dtype=CLASS_TYPES[kind])
    valid = classes.ndim == 1 and len(classes) >= 2 and classes.tolist() == names and len(set(names)) == len(names)
    _require(valid, f"the classes are not different labels of kind {kind!r}")
    return classes


def _tensors_of(part: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of one part: ``preparation``, ``members.0``, ``members.1``, ..."""
    prefix = f"{part}."
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _member(tensors: dict[str, Tensor], recipe: Recipe, input_shape: tuple[int, ...], n_outputs: int) -> Model:
    """Build a member from its tensors. It is built on the device "meta", so nothing is allocated before the checks."""
    with torch.device("meta"):
        model = recipe.build(input_shape, n_outputs, seed=0)
    dtypes = {name: tensor.dtype for name, tensor in model.state_dict().items()}
    model.load_state_dict(tensors, assign=True)  # checks names and shapes
    for name, dtype in dtypes.items():
        valid = tensors[name].dtype == dtype and bool(tensors[name].isfinite().all())
        _require(valid, f"{name} has values that are not finite {dtype} numbers")
    _require(bool(model.calibrated), "a member was saved without the statistics for prediction")
    return model.eval()
