"""Fitted models as files: what the header of one says, and how one is brought back."""

from __future__ import annotations

import json
import math
import platform
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import sklearn
import torch
from torch import Tensor

import tikas
from tikas.training.checkpoint import NotAModelError, read, write
from tikas.training.fleet import build_ladder
from tikas.training.recipe import Recipe

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tikas.estimators import LadderClassifier, LadderRegressor
    from tikas.model.ladder import Ladder

VERSION = 1
CLASS_DTYPES = {"b": bool, "i": np.int64, "u": np.uint64, "f": np.float64, "U": np.str_, "O": object}
MOST_CHARACTERS = 25_000_000
"""Of all class names, each padded to the longest: NumPy keeps them so."""


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
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError, MemoryError) as error:
        reason = f"its header lacks {error}" if isinstance(error, KeyError) else f"{error}".split("\n")[0][:200]
        raise NotAModelError(
            f"{path}: damaged, or no model that this tikas can read ({reason}). Save it again from where it was made."
        ) from error


def _rebuild(tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> LadderClassifier | LadderRegressor:
    from tikas.estimators import LadderClassifier, LadderRegressor
    from tikas.training.fit import Trained

    if header["version"] != VERSION:
        raise ValueError(f"it is of version {header['version']!r}; this tikas reads version {VERSION}")
    recipe = Recipe.from_json(json.dumps(header["recipe"]))
    ladders = _ladders(tensors, header, recipe)
    estimators = {estimator.__name__: estimator for estimator in (LadderClassifier, LadderRegressor)}
    _require(header["estimator"] in estimators, f"there is no estimator {header['estimator']!r}")
    model = estimators[header["estimator"]].from_trained(Trained(ladders, [[]], False), recipe)
    _require(model.task == recipe.task, f"a {header['estimator']} with a recipe for {recipe.task}")
    model.history_ = _history(header)
    model.n_iter_ = sum(line.get("member") == 0 for line in model.history_)
    columns = header["columns"]
    if columns:
        good = isinstance(columns, list) and all(isinstance(column, str) for column in columns)
        _require(good and len(columns) == model.n_features_in_, "its columns do not fit its inputs")
        model.feature_names_in_ = np.array(columns, dtype=object)
    if isinstance(model, LadderClassifier):
        model.classes_ = _classes(header, *ladders[0].shapes[-1])
    else:
        _require(ladders[0].shapes[-1] == (1,), "a regressor has one output")
        model.target_mean_, model.target_deviation_ = float(header["target_mean"]), float(header["target_deviation"])
        good = math.isfinite(model.target_mean_) and 0 < model.target_deviation_ < math.inf
        _require(good, "the mean and deviation of its targets are no such thing")
    return model


def _require(good: bool, complaint: str) -> None:
    if not good:
        raise ValueError(complaint)


def _history(header: Mapping[str, Any]) -> list[dict[str, Any]]:
    history = header["history"]
    _require(isinstance(history, list) and all(isinstance(line, dict) for line in history), "its history is none")
    return list(history)


def _classes(header: Mapping[str, Any], outputs: int) -> NDArray[Any]:
    """The classes, if there are as many as outputs, all different, and of the kind that the header says."""
    names = header["classes"]
    _require(isinstance(names, list) and len(names) == outputs, f"its classes are not {outputs}, one for each output")
    _require(all(isinstance(name, str | int | float) for name in names), "its classes are no labels")
    longest = max((len(name) for name in names if isinstance(name, str)), default=0)
    _require(longest * outputs <= MOST_CHARACTERS, f"a class has a name of {longest} characters")
    _require(header["class_kind"] in CLASS_DTYPES, f"there are no classes of kind {header['class_kind']!r}")
    classes: NDArray[Any] = np.array(names, dtype=CLASS_DTYPES[header["class_kind"]])
    good = classes.tolist() == names and len(set(names)) == len(names)
    _require(good, f"its classes are not different values of kind {header['class_kind']!r}")
    return classes


def _ladders(tensors: Mapping[str, Tensor], header: Mapping[str, Any], recipe: Recipe) -> list[Ladder]:
    """Ladders of the header's shapes that hold the file's tensors; nothing is allocated before the two agree."""
    of_member: defaultdict[str, dict[str, Tensor]] = defaultdict(dict)
    for name, tensor in tensors.items():
        member = ".".join(name.split(".", 2)[:2])
        of_member[member][name.removeprefix(f"{member}.")] = tensor
    members = header["members"]
    _require(members == len(of_member) > 0, f"{members!r} members, and tensors of {len(of_member)}")
    return [_ladder(of_member[f"members.{member}"], header["shapes"], recipe) for member in range(len(of_member))]


def _ladder(tensors: dict[str, Tensor], shapes: list[list[int]], recipe: Recipe) -> Ladder:
    _require(len(tensors) >= recipe.levels, f"{len(tensors)} tensors for {recipe.levels} levels")
    with torch.device("meta"):
        ladder = build_ladder(recipe, tuple(shapes[0]), int(shapes[-1][0]), seed=None)
    _require([list(shape) for shape in ladder.shapes] == shapes, "its shapes are not those of its recipe")
    expected = ladder.state_dict()
    missing = expected.keys() ^ tensors.keys()
    _require(not missing, f"tensors missing or left over: {', '.join(sorted(missing)[:3])}")
    for name, tensor in tensors.items():
        said, found = ((tuple(each.shape), each.dtype) for each in (expected[name], tensor))
        _require(said == found, f"{name} is {found[0]} of {found[1]} where {said[0]} of {said[1]} is expected")
        _require(bool(tensor.isfinite().all()), f"{name} holds values that are not finite")
    ladder.load_state_dict(tensors, assign=True)
    _require(bool(ladder.calibrated), "it was saved without the statistics for prediction")
    return ladder.eval()
