"""Fitted models as files: what the header of one says, and how one is brought back."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import sklearn
import torch

import tikas
from tikas.training.checkpoint import NotAModelError, read, write
from tikas.training.fleet import build_ladder
from tikas.training.recipe import Recipe

if TYPE_CHECKING:
    from tikas.estimators import LadderClassifier, LadderRegressor
    from tikas.model.ladder import Ladder

VERSION = 1
CLASS_DTYPES = {"b": bool, "i": np.int64, "u": np.int64, "f": np.float64, "U": np.str_, "O": object}


def write_model(path: str | Path, model: LadderClassifier | LadderRegressor) -> Path:
    """Write a fitted estimator into one file, whole or not at all."""
    tensors = {
        f"members.{member}.{name}": tensor
        for member, ladder in enumerate(model.ladders_)
        for name, tensor in ladder.state_dict().items()
    }
    return write(path, tensors, _header(model))


def _header(model: LadderClassifier | LadderRegressor) -> dict[str, Any]:
    header = {
        "version": VERSION,
        "estimator": type(model).__name__,
        "recipe": json.loads(model.recipe_.to_json()),
        "shapes": [list(shape) for shape in model.ladder_.shapes],
        "members": len(model.ladders_),
        "columns": getattr(model, "feature_names_in_", np.empty(0, object)).tolist(),
        "history": model.history_,
        "versions": {
            "tikas": tikas.__version__,
            "torch": torch.__version__,
            "scikit-learn": sklearn.__version__,
            "python": platform.python_version(),
        },
    }
    if model.task == "classification":
        return {**header, "classes": model.classes_.tolist(), "class_kind": model.classes_.dtype.kind}
    return {**header, "target_mean": model.target_mean_, "target_deviation": model.target_deviation_}


def load(path: str | Path) -> LadderClassifier | LadderRegressor:
    """Bring back a model that was saved; nothing in the file is executed.

    Parameters
    ----------
    path
        A file written by `LadderClassifier.save`, `LadderRegressor.save` or ``tikas train``.

    Raises
    ------
    FileNotFoundError
        Where there is no such file.
    NotAModelError
        Where it is truncated, damaged, or no model of tikas. This is a ValueError.

    Examples
    --------
    >>> import tempfile, tikas
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> classifier = tikas.LadderClassifier(network=(8,), epochs=2, random_state=0).fit((X - X.mean(0)) / X.std(0), y)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = classifier.save(folder + "/iris.safetensors")
    ...     bool((tikas.load(path).predict(X) == classifier.predict(X)).all())
    True
    """
    tensors, header = read(path)
    try:
        return _rebuild(tensors, header)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError) as error:
        raise NotAModelError(f"{path}: the file does not describe a model of tikas ({error}).") from error


def _rebuild(tensors: dict[str, torch.Tensor], header: dict[str, Any]) -> LadderClassifier | LadderRegressor:
    from tikas.estimators import LadderClassifier, LadderRegressor
    from tikas.training.fit import Trained

    if header["version"] != VERSION:
        raise ValueError(f"version {header['version']!r}; this tikas reads version {VERSION}")
    recipe = Recipe.from_json(json.dumps(header["recipe"]))
    ladders = _ladders(tensors, header, recipe)
    estimators = {"LadderClassifier": LadderClassifier, "LadderRegressor": LadderRegressor}
    model = estimators[header["estimator"]].from_trained(Trained(ladders, [header["history"]], False), recipe)
    model.history_ = header["history"]
    if header["columns"]:
        model.feature_names_in_ = np.array([str(column) for column in header["columns"]], dtype=object)
    if model.task == "classification":
        model.classes_ = np.array(header["classes"], dtype=CLASS_DTYPES[header["class_kind"]])
        if model.classes_.shape != ladders[0].shapes[-1]:
            raise ValueError(f"{len(model.classes_)} classes for {ladders[0].shapes[-1][0]} outputs")
    else:
        model.target_mean_ = float(header["target_mean"])
        model.target_deviation_ = float(header["target_deviation"])
    return model


def _ladders(tensors: dict[str, torch.Tensor], header: dict[str, Any], recipe: Recipe) -> list[Ladder]:
    """Ladders of the header's shapes that hold the file's tensors; nothing is allocated before the two agree."""
    ladders = []
    for member in range(int(header["members"])):
        prefix = f"members.{member}."
        own = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
        if not own:
            raise ValueError(f"there are no tensors for member {member}")
        with torch.device("meta"):
            ladder = build_ladder(recipe, tuple(header["shapes"][0]), int(header["shapes"][-1][0]), seed=None)
        ladder.load_state_dict(own, assign=True)
        if not all(tensor.dtype in (torch.float32, torch.bool) for tensor in own.values()):
            raise ValueError("its tensors are not of single precision")
        ladders.append(ladder.eval())
    if len(tensors) != sum(len(ladder.state_dict()) for ladder in ladders):
        raise ValueError("there are tensors that belong to no member")
    return ladders
