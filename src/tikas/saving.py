"""Fitted models as files: what the header of one says, and how everything in it is checked on the way back."""

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
from tikas.data.preparations import PREPARATIONS, Preparation
from tikas.fitted import Fitted
from tikas.training.building import build_ladder
from tikas.training.checkpoint import NotAModelError, read, write
from tikas.training.recipe import Recipe

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tikas.model.ladder import Ladder
    from tikas.training.fit import History

VERSION = 2
"""Of the header. Version 1 had no seeds."""
PREFIXES = {"whiten": "whitening.", "standardize": "standardization."}
"""Of the tensors of what rows go through first."""
TASKS = {"LadderClassifier": "classification", "LadderRegressor": "regression"}
CLASS_DTYPES = {"b": bool, "i": np.int64, "u": np.uint64, "f": np.float64, "U": np.str_, "O": object}
MOST_CHARACTERS = 25_000_000
"""Of all class names, each padded to the longest: NumPy keeps them so."""


def write_model(path: str | Path, fitted: Fitted) -> Path:
    """Write a fitted model into one file, whole or not at all.

    Examples
    --------
    >>> import tempfile
    >>> from tikas import LadderClassifier
    >>> fitted = LadderClassifier((4,), epochs=1, batch_size=3).fit([[0.0], [0.5], [1.0]], [0, -1, 1]).as_fitted()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     read_model(write_model(Path(folder, "model.safetensors"), fitted)).classes.tolist()
    [0, 1]
    """
    tensors = {
        f"members.{member}.{name}": tensor
        for member, ladder in enumerate(fitted.ladders)
        for name, tensor in ladder.state_dict().items()
    }
    prefix = PREFIXES.get(fitted.recipe.preprocess)
    if prefix is not None:
        if fitted.preparation is None:
            raise ValueError(
                f"The recipe says preprocess={fitted.recipe.preprocess!r}, and what was fitted for it is not known: "
                "such a model predicts nothing."
            )
        tensors |= {f"{prefix}{name}": tensor for name, tensor in fitted.preparation.tensors().items()}
    return write(path, tensors, _header(fitted))


def _header(fitted: Fitted) -> dict[str, Any]:
    header = {
        "version": VERSION,
        "estimator": next(name for name, task in TASKS.items() if task == fitted.recipe.task),
        "recipe": json.loads(fitted.recipe.to_json()),
        "shapes": [list(shape) for shape in fitted.ladders[0].shapes],
        "input_shape": list(fitted.input_shape or fitted.ladders[0].shapes[0]),
        "input_range": fitted.input_range,
        "members": len(fitted.ladders),
        "seeds": fitted.seeds,
        "columns": list(fitted.columns),
        "history": fitted.history,
        "versions": {
            "tikas": tikas.__version__,
            "torch": torch.__version__,
            "scikit-learn": sklearn.__version__,
            "python": platform.python_version(),
        },
    }
    if fitted.classes is not None:
        return {**header, "classes": fitted.classes.tolist(), "class_kind": fitted.classes.dtype.kind}
    assert fitted.target_scale is not None
    return {**header, "target_mean": fitted.target_scale[0], "target_deviation": fitted.target_scale[1]}


def read_model(path: str | Path) -> Fitted:
    """Read a model that `write_model` wrote; nothing in the file is executed, and everything in it is checked.

    Raises
    ------
    FileNotFoundError, NotAModelError
        As `tikas.load` does.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
    ...     read_model(file.name)
    Traceback (most recent call last):
    tikas.training.checkpoint.NotAModelError: ...: not a model that tikas saved. ...
    """
    tensors, header = read(path)
    try:
        return _checked(tensors, header)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError, MemoryError) as error:
        reason = f"its header lacks {error}" if isinstance(error, KeyError) else f"{error}".split("\n")[0][:200]
        raise NotAModelError(
            f"{path}: damaged, or no model that this tikas can read ({reason}). Save it again from where it was made."
        ) from error


def _checked(tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> Fitted:
    version = header["version"]
    if version not in range(1, VERSION + 1):
        raise ValueError(f"it is of version {version!r}; this tikas reads versions 1 to {VERSION}")
    recipe = Recipe.from_json(json.dumps(header["recipe"]))
    _require(header["estimator"] in TASKS, f"there is no estimator {header['estimator']!r}")
    prefix = PREFIXES.get(recipe.preprocess)
    of_preparation = {name: each for name, each in tensors.items() if prefix is not None and name.startswith(prefix)}
    of_members = {name: tensor for name, tensor in tensors.items() if name not in of_preparation}
    for other in PREFIXES.values():
        held = any(name.startswith(other) for name in of_members)
        _require(not held, f"it holds a {other[:-1]}, and its recipe asks for none")
    ladders = _ladders(of_members, header, recipe)
    _require(TASKS[header["estimator"]] == recipe.task, f"a {header['estimator']} with a recipe for {recipe.task}")
    outputs = math.prod(ladders[0].shapes[-1])
    return Fitted(
        recipe,
        ladders,
        None if version == 1 else _seeds(header, len(ladders)),
        _history(header),
        _columns(header, math.prod(ladders[0].shapes[0])),
        _classes(header, outputs) if recipe.task == "classification" else None,
        _target_scale(header, outputs) if recipe.task == "regression" else None,
        None if prefix is None else _preparation(of_preparation, recipe.preprocess, math.prod(ladders[0].shapes[0])),
        _input_shape(header, ladders[0].shapes[0]),
        _input_range(header),
    )


def _require(good: bool, complaint: str) -> None:
    if not good:
        raise ValueError(complaint)


def _seeds(header: Mapping[str, Any], members: int) -> list[int] | None:
    seeds = header["seeds"]
    if seeds is None:  # read from a file of version 1 and saved again
        return None
    good = isinstance(seeds, list) and len(seeds) == members and all(type(seed) is int and seed >= 0 for seed in seeds)
    _require(good, f"its seeds are not {members}, one for each member")
    return list(seeds)


def _history(header: Mapping[str, Any]) -> History:
    history = header["history"]
    _require(
        isinstance(history, list) and all(isinstance(line, dict) for line in history),
        "its history is not a list of lines",
    )
    return list(history)


def _columns(header: Mapping[str, Any], inputs: int) -> tuple[str, ...]:
    columns = header["columns"]
    good = isinstance(columns, list) and all(isinstance(column, str) for column in columns)
    _require(good and len(columns) in (0, inputs), "its columns do not fit its inputs")
    return tuple(columns)


def _target_scale(header: Mapping[str, Any], outputs: int) -> tuple[float, float]:
    _require(outputs == 1, "a regressor has one output")
    mean, deviation = float(header["target_mean"]), float(header["target_deviation"])
    good = math.isfinite(mean) and 0 < deviation < math.inf
    _require(good, "the mean and deviation of its targets are not a finite mean and a positive deviation")
    return mean, deviation


def _preparation(tensors: Mapping[str, Tensor], preprocess: str, inputs: int) -> Preparation:
    prefix = PREFIXES[preprocess]
    preparation = PREPARATIONS[preprocess].from_tensors({name.removeprefix(prefix): tensors[name] for name in tensors})
    _require(preparation.mean.numel() == inputs, f"its {prefix[:-1]} does not fit its inputs")
    return preparation


def _input_shape(header: Mapping[str, Any], taken: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a row as it comes: what the ladder takes, or an image that a dense ladder takes flat."""
    shape = header.get("input_shape", list(taken))  # files from before images could be flattened do not tell
    good = isinstance(shape, list) and len(shape) in (1, 3) and all(type(side) is int and side > 0 for side in shape)
    fits = good and (shape == list(taken) or [math.prod(shape)] == list(taken))
    _require(fits, f"its rows do not fit its ladders, which take {taken}")
    return tuple(shape)


def _input_range(header: Mapping[str, Any]) -> tuple[float, float] | None:
    found = header.get("input_range")  # files from before it was kept do not tell
    if found is None:
        return None
    lowest, highest = map(float, found)
    _require(-math.inf < lowest <= highest < math.inf, "the range of its rows is not two finite numbers in order")
    return lowest, highest


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
    good = good and (classes.dtype.kind != "O" or all(isinstance(name, str) for name in names))
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
