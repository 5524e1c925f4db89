"""Model files: one safetensors file with a JSON header. Reading a file checks everything in it and executes nothing."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from dataclasses import fields
from math import inf, isfinite, prod
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

import tikas
from tikas.data.transforms import TRANSFORMS
from tikas.estimators.base import LadderEstimator
from tikas.estimators.classifier import LadderClassifier
from tikas.estimators.regressor import LadderRegressor
from tikas.model.ladder import Model
from tikas.training.checkpoint import ModelFileError, read_tensors, write_tensors
from tikas.training.recipe import Recipe

VERSION = 3
"""Version of the header."""
ESTIMATORS: dict[str, type[LadderClassifier] | type[LadderRegressor]] = {
    "LadderClassifier": LadderClassifier,
    "LadderRegressor": LadderRegressor,
}
CLASS_TYPES = {"b": bool, "i": np.int64, "u": np.uint64, "f": np.float64, "U": np.str_, "O": object}
"""Types of the classes by the kind of their array."""
MAX_CHARACTERS = 25_000_000
"""Characters of all class names together: NumPy pads each to the length of the longest."""


def save(estimator: LadderEstimator, path: str | Path) -> Path:
    """Write a fitted estimator into one file; an existing file is replaced once the new one is complete."""
    check_is_fitted(estimator)
    recipe, members = estimator.recipe_, estimator.ladders_
    if not members[0].packable and not recipe.is_module:
        raise ValueError(
            "The network is a module of your own, which a file without code cannot restore. Save its weights with "
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
        "estimator": type(estimator).__name__,
        "recipe": json.loads(recipe.to_json()),
        "input_shape": list(estimator.input_shape_),
        "input_range": estimator.input_range_,
        "feature_names": list(getattr(estimator, "feature_names_in_", ())),
        "seeds": estimator.seeds_,
        "history": estimator.history_,
        "interrupted": estimator.interrupted_,
        "versions": {
            "tikas": tikas.__version__,
            "torch": torch.__version__,
            "scikit-learn": sklearn.__version__,
            "python": platform.python_version(),
        },
    }
    if isinstance(estimator, LadderClassifier):
        header |= {"classes": estimator.classes_.tolist(), "class_kind": estimator.classes_.dtype.kind}
    elif isinstance(estimator, LadderRegressor):
        header |= {"target_mean": estimator.target_mean_, "target_deviation": estimator.target_deviation_}
    return write_tensors(path, tensors, header)


def load(path: str | Path) -> LadderClassifier | LadderRegressor:
    """Read a fitted estimator from a file. Nothing in the file is executed, and everything in it is checked.

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
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError, MemoryError) as error:
        reason = f"the header lacks {error}" if isinstance(error, KeyError) else str(error).split("\n")[0][:200]
        raise ModelFileError(
            f"{path} is damaged, or not a model that this version of tikas can read ({reason}). Save the model again."
        ) from error


def _restore(tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> LadderClassifier | LadderRegressor:
    _require(header["version"] == VERSION, f"it has version {header['version']!r}, expected {VERSION}")
    _require(header["estimator"] in ESTIMATORS, f"unknown estimator {header['estimator']!r}")
    recipe = Recipe.from_json(json.dumps(header["recipe"]))
    kind = ESTIMATORS[header["estimator"]]
    _require(kind.task == recipe.task, f"a {kind.__name__} with a recipe for {recipe.task}")
    names = kind().get_params(deep=False).keys()
    estimator = kind(**{field.name: getattr(recipe, field.name) for field in fields(Recipe) if field.name in names})
    if isinstance(estimator, LadderClassifier):
        estimator.classes_ = _classes(header)
        n_outputs = len(estimator.classes_)
        if not np.array_equal(estimator.classes_, np.unique(estimator.classes_)):
            estimator.classes = estimator.classes_.tolist()  # so that another fit keeps their order
    else:
        n_outputs = 1
        mean, deviation = float(header["target_mean"]), float(header["target_deviation"])
        _require(isfinite(mean) and 0 < deviation < inf, "the mean or the deviation of the targets is out of range")
        estimator.target_mean_, estimator.target_deviation_ = mean, deviation

    shape = header["input_shape"]
    valid = isinstance(shape, list) and len(shape) in (1, 3) and all(type(side) is int and side > 0 for side in shape)
    _require(valid and (len(shape) == 3 or not recipe.takes_maps), "input_shape is not the shape of a row")
    estimator.input_shape_ = tuple(shape)
    estimator.n_features_in_ = prod(shape)
    feature_names = header["feature_names"]
    valid = isinstance(feature_names, list) and all(isinstance(name, str) for name in feature_names)
    _require(valid and len(feature_names) in (0, prod(shape)), "the feature names do not fit the input")
    if feature_names:
        estimator.feature_names_in_ = np.array(feature_names, dtype=object)
    estimator.input_range_ = None
    if header["input_range"] is not None:
        lowest, highest = map(float, header["input_range"])
        _require(-inf < lowest <= highest < inf, "input_range is not two finite numbers in order")
        estimator.input_range_ = lowest, highest

    seeds, history = header["seeds"], header["history"]
    valid = isinstance(seeds, list) and all(type(seed) is int and seed >= 0 for seed in seeds)
    _require(valid and len(seeds) > 0, "the seeds are not integers of at least 0, one per member")
    valid = isinstance(history, list) and all(isinstance(line, dict) for line in history)
    _require(valid, "the history is not a list of dicts")
    groups = _by_prefix(tensors)
    preparation = groups.pop("preparation", None)
    estimator.preparation_ = None
    if preparation is None:
        _require(recipe.preprocess == "none", f"the tensors of preprocess={recipe.preprocess!r} are missing")
    else:
        _require(recipe.preprocess != "none", "preprocess='none', but there are tensors of a preprocessing")
        estimator.preparation_ = TRANSFORMS[recipe.preprocess].from_tensors(preparation)
        fits = estimator.preparation_.mean.shape == estimator.input_shape_
        _require(fits, "the tensors of the preprocessing do not fit input_shape")
    expected = {f"members.{member}" for member in range(len(seeds))}
    _require(groups.keys() == expected, f"there are {len(seeds)} seeds, and tensors of {len(groups)} members")
    taken = estimator.input_shape_ if recipe.takes_maps else (prod(shape),)
    members = [_member(groups[f"members.{member}"], recipe, taken, n_outputs) for member in range(len(seeds))]
    estimator.n_members = len(seeds)
    estimator._set_fitted(recipe, members, seeds, history, interrupted=bool(header["interrupted"]))
    return estimator


def _require(valid: bool, problem: str) -> None:
    if not valid:
        raise ValueError(problem)


def _classes(header: Mapping[str, Any]) -> NDArray[Any]:
    """Return the classes, if they are different labels of the type that the header names."""
    names, kind = header["classes"], header["class_kind"]
    valid = isinstance(names, list) and len(names) >= 2 and all(isinstance(name, str | int | float) for name in names)
    _require(valid, "the classes are not a list of labels")
    _require(kind in CLASS_TYPES, f"unknown kind of classes {kind!r}")
    longest = max((len(name) for name in names if isinstance(name, str)), default=0)
    _require(longest * len(names) <= MAX_CHARACTERS, f"a class has a name of {longest} characters")
    classes: NDArray[Any] = np.array(names, dtype=CLASS_TYPES[kind])
    valid = classes.tolist() == names and len(set(names)) == len(names)
    _require(
        valid and (kind != "O" or all(isinstance(name, str) for name in names)),
        f"the classes are not different labels of kind {kind!r}",
    )
    return classes


def _by_prefix(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Group tensors by what they belong to: ``preparation``, or ``members.0``, ``members.1``, ..."""
    groups: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        prefix = "preparation" if name.startswith("preparation.") else ".".join(name.split(".", 2)[:2])
        groups.setdefault(prefix, {})[name.removeprefix(f"{prefix}.")] = tensor
    return groups


def _member(tensors: dict[str, Tensor], recipe: Recipe, input_shape: tuple[int, ...], n_outputs: int) -> Model:
    """Build a member from its tensors. On the device "meta" nothing is allocated before their shapes are checked."""
    with torch.device("meta"):
        model = recipe.build(input_shape, n_outputs, seed=0)
    expected = model.state_dict()
    different = sorted(expected.keys() ^ tensors.keys())
    _require(not different, f"tensors missing or unexpected: {', '.join(different[:3])}")
    for name, example in expected.items():
        tensor = tensors[name]
        given, wanted = ((tuple(each.shape), each.dtype) for each in (tensor, example))
        _require(given == wanted, f"{name} is {given[0]} of {given[1]}; expected {wanted[0]} of {wanted[1]}")
        _require(bool(tensor.isfinite().all()), f"{name} has values that are not finite")
    model.load_state_dict(tensors, assign=True)
    _require(bool(model.calibrated), "a member was saved without the statistics for prediction")
    return model.eval()
