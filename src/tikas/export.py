"""Models for other programs: ONNX files and torch.export files of the preprocessing and the calibrated clean path.

Apart from `tikas.io`, the files of tikas itself, because it needs packages that those do not.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

import tikas
from tikas.data.transforms import Standardization, Transform, Whitening, normalize_contrast
from tikas.estimators.base import LadderEstimator
from tikas.estimators.classifier import LadderClassifier
from tikas.estimators.regressor import LadderRegressor
from tikas.model.gamma import Gamma
from tikas.model.ladder import Model
from tikas.model.layers import NormalizedRung
from tikas.model.specs import Conv, Dense, GlobalMeanPool, MaxPool, Pool
from tikas.training.checkpoint import replace_file

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto
    from torch.export import ExportedProgram

OPSET = 18
ROWS = "rows"
"""Name of the dimension that counts rows."""
LABEL, PROBABILITIES, VALUE = "label", "probabilities", "variable"
"""Names of the outputs, as skl2onnx names them: of a classifier the first two, of a regressor the last."""
INTERNAL = "tikas/"
"""Prefix of names inside the graph, so that a column may have any other name."""


def to_onnx(estimator: LadderEstimator, path: str | Path) -> Path:
    """Write a fitted estimator as an ONNX file; `LadderEstimator.to_onnx` describes it."""
    try:
        import onnx
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ImportError("Writing ONNX files needs onnx and onnxscript: pip install 'tikas[onnx]'.") from error
    check_is_fitted(estimator)
    names = _column_names(estimator)
    outputs = [VALUE] if isinstance(estimator, LadderRegressor) else [LABEL, PROBABILITIES]
    reserved = [name for name in names if name in outputs or name.startswith(INTERNAL)]
    if reserved:
        raise ValueError(f"The column {reserved[0]!r} has the name of an output of the ONNX graph. Rename the column.")
    module = CleanPath(estimator)
    with _quiet(), _explained(estimator):
        program = torch.onnx.export(
            module,
            (_example(estimator),),
            dynamo=True,
            opset_version=OPSET,
            input_names=["X"],
            output_names=[PROBABILITIES if isinstance(estimator, LadderClassifier) else VALUE],
            dynamic_shapes=({0: torch.export.Dim(ROWS)},),
            verbose=False,
        )
    assert program is not None
    model = program.model_proto
    _rename_internals(model, keep={"X", *outputs})
    if names:
        _split_columns(model, names)
    if isinstance(estimator, LadderClassifier):
        _add_label(model, estimator.classes_)
    model.producer_name, model.producer_version = "tikas", tikas.__version__
    onnx.helper.set_model_props(model, _metadata(estimator))
    onnx.checker.check_model(model, full_check=True)
    replace_file(Path(path), model.SerializeToString())
    return Path(path)


def to_torch_export(estimator: LadderEstimator, path: str | Path) -> Path:
    """Write a fitted estimator as a file of `torch.export`; `LadderEstimator.to_torch_export` describes it."""
    check_is_fitted(estimator)
    with _quiet(), _explained(estimator):
        program: ExportedProgram = torch.export.export(
            CleanPath(estimator), (_example(estimator),), dynamic_shapes=({0: torch.export.Dim(ROWS)},)
        )
        file = BytesIO()
        torch.export.save(program, file, extra_files={"tikas.json": json.dumps(_metadata(estimator))})
    replace_file(Path(path), file.getvalue())
    return Path(path)


# The network


class CleanPath(nn.Module):
    """What a fitted estimator computes from rows of float32: class probabilities, or values ``(rows, 1)``.

    The normalization of a rung is folded into its weights, in double precision: dividing by a small deviation after a
    float32 product would lose digits, which `predict` keeps by computing in double precision.
    """

    def __init__(self, estimator: LadderEstimator) -> None:
        super().__init__()
        self.prepare = _preparation(estimator.preparation_)
        self.shape = estimator.ladder_.shapes[0]
        self.members = nn.ModuleList(_member(member) for member in estimator.ladders_)
        self.classifier = isinstance(estimator, LadderClassifier)
        self.mean, self.deviation = 0.0, 1.0
        if isinstance(estimator, LadderRegressor):
            self.mean, self.deviation = estimator.target_mean_, estimator.target_deviation_
        self.eval().to(memory_format=torch.contiguous_format)  # as torch.export.save needs

    def forward(self, rows: Tensor) -> Tensor:
        prepared = self.prepare(rows).reshape(-1, *self.shape)
        outputs = [member(prepared) for member in self.members]
        if self.classifier:
            outputs = [output.softmax(-1) for output in outputs]
        mean = outputs[0] if len(outputs) == 1 else torch.stack(outputs).mean(0)
        return mean if self.classifier else mean * self.deviation + self.mean


class Affine(nn.Module):
    """Multiply and shift each channel."""

    scale: Tensor
    shift: Tensor

    def __init__(self, scale: Tensor, shift: Tensor, dims: int) -> None:
        super().__init__()
        self.register_buffer("scale", scale.float().reshape(-1, *[1] * dims))
        self.register_buffer("shift", shift.float().reshape(-1, *[1] * dims))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.shift


class Function(nn.Module):
    """A function without parameters."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return cast("Tensor", self.function(x))


def _member(member: Model) -> nn.Module:
    """Return the clean path of one member as plain layers."""
    layers: list[nn.Module] = []
    if isinstance(member, Gamma):
        layers.append(deepcopy(member.network).eval())
        top = cast("NormalizedRung", member.rungs[0])
        return nn.Sequential(*layers, Affine(*_folded(top), dims=0))
    for rung in member.rungs[1:]:
        layers += _layers(cast("NormalizedRung", rung))
    return nn.Sequential(*layers)


def _folded(rung: NormalizedRung) -> tuple[Tensor, Tensor]:
    """Return a and b of γ·((x − μ)/σ + β) = a·x + b, in double precision."""
    scale, shift = 1 / rung.deviation.double(), -rung.mean.double() / rung.deviation.double()
    if rung.beta is not None:
        shift = shift + rung.beta.detach().double()
    if rung.gamma is not None:
        gamma = rung.gamma.detach().double()
        scale, shift = gamma * scale, gamma * shift
    return scale, shift


def _layers(rung: NormalizedRung) -> list[nn.Module]:
    """Return a rung as layers of PyTorch."""
    spec, (scale, shift) = rung.spec, _folded(rung)
    if isinstance(spec, Dense | Conv):
        weight = cast("Tensor", rung.weight).detach().double()
        weight = weight * scale.reshape(-1, *[1] * (weight.dim() - 1))
        if isinstance(spec, Dense):
            layer: nn.Module = nn.Linear(weight.shape[1], weight.shape[0])
            layers = [nn.Flatten(), layer] if len(rung.below) > 1 else [layer]
        else:
            before, after = spec.zeros
            layer = nn.Conv2d(weight.shape[1], weight.shape[0], spec.kernel, stride=spec.stride)
            layers = [nn.ZeroPad2d((before, after, before, after)), layer] if before or after else [layer]
        layer.weight, layer.bias = nn.Parameter(weight.float()), nn.Parameter(shift.float())
    else:
        layers = [_pool(spec), Affine(scale, shift, dims=len(rung.shape) - 1)]
    return layers if rung.activation.name == "linear" else [*layers, Function(rung.activation.function)]


def _pool(spec: Any) -> nn.Module:
    if isinstance(spec, GlobalMeanPool):
        return Function(lambda maps: maps.mean((-2, -1)))
    assert isinstance(spec, Pool)
    kind = nn.MaxPool2d if isinstance(spec, MaxPool) else nn.AvgPool2d
    return kind(spec.size, spec.step, ceil_mode=spec.rounding == "up")


# Preprocessing


def _preparation(transform: Transform | None) -> nn.Module:
    if isinstance(transform, Standardization):
        return Standardize(transform)
    return nn.Identity() if transform is None else Whiten(cast("Whitening", transform))


class Standardize(nn.Module):
    """(x - μ) / σ in double precision, as float32."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, transform: Standardization) -> None:
        super().__init__()
        self.register_buffer("mean", transform.mean)
        self.register_buffer("deviation", transform.deviation)

    def forward(self, rows: Tensor) -> Tensor:
        return ((rows.double() - self.mean) / self.deviation).float()


class Whiten(nn.Module):
    """Contrast normalization and whitening."""

    mean: Tensor
    matrix: Tensor

    def __init__(self, transform: Whitening) -> None:
        super().__init__()
        self.register_buffer("mean", transform.mean.flatten())
        self.register_buffer("matrix", transform.matrix)

    def forward(self, images: Tensor) -> Tensor:
        rows = normalize_contrast(images.double()).flatten(1) - self.mean
        return rows.float() @ self.matrix


# The graph around the network


def _rename_internals(model: ModelProto, keep: set[str]) -> None:
    """Rename all tensors but inputs and outputs, and remove what describes where they came from: paths among it."""

    def renamed(name: str) -> str:
        return name if not name or name in keep else INTERNAL + name

    del model.metadata_props[:]
    graph = model.graph
    graph.name = "tikas"
    for value in (*graph.input, *graph.output, *graph.value_info):
        value.name = renamed(value.name)
        del value.metadata_props[:]
    for initializer in graph.initializer:
        initializer.name = renamed(initializer.name)
        del initializer.metadata_props[:]
    for node in graph.node:
        node.name, node.doc_string = INTERNAL + node.name, ""
        del node.metadata_props[:]
        node.input[:] = map(renamed, node.input)
        node.output[:] = map(renamed, node.output)


def _split_columns(model: ModelProto, names: Sequence[str]) -> None:
    """Replace the input X by one input ``(rows, 1)`` for each column."""
    from onnx import TensorProto, helper

    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [ROWS, 1]) for name in names]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    _insert(model, [helper.make_node("Concat", list(names), [INTERNAL + "X"], axis=1)])
    for node in model.graph.node[1:]:
        node.input[:] = [INTERNAL + "X" if name == "X" else name for name in node.input]


def _insert(model: ModelProto, nodes: Sequence[NodeProto]) -> None:
    """Put nodes before the others."""
    later = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend([*nodes, *later])


def _add_label(model: ModelProto, classes: np.ndarray[Any, Any]) -> None:
    """Add the output `label`, the class of the largest probability, before the output `probabilities`."""
    from onnx import helper, numpy_helper

    if classes.dtype.kind in "UO":
        names = numpy_helper.from_array(classes.astype(object), INTERNAL + "classes")
    else:
        kinds = {"i": np.int64, "u": np.int64, "f": np.float64, "b": np.bool_}
        names = numpy_helper.from_array(classes.astype(kinds[classes.dtype.kind]), INTERNAL + "classes")
    graph = model.graph
    graph.initializer.append(names)
    graph.node.append(helper.make_node("ArgMax", [PROBABILITIES], [INTERNAL + "code"], axis=1, keepdims=0))
    graph.node.append(helper.make_node("Gather", [INTERNAL + "classes", INTERNAL + "code"], [LABEL]))
    graph.output.insert(0, helper.make_tensor_value_info(LABEL, names.data_type, [ROWS]))


def _column_names(estimator: LadderEstimator) -> list[str]:
    return [str(name) for name in getattr(estimator, "feature_names_in_", ())]


def _metadata(estimator: LadderEstimator) -> dict[str, str]:
    """Return what a file says of its model, each as JSON."""
    values: dict[str, Any] = {"task": estimator.task, "recipe": json.loads(estimator.recipe_.to_json())}
    if isinstance(estimator, LadderClassifier):
        values["classes"] = estimator.classes_.tolist()
    values |= {"seeds": estimator.seeds_, "tikas": tikas.__version__}
    return {name: json.dumps(value) for name, value in values.items()}


def _example(estimator: LadderEstimator) -> Tensor:
    return torch.zeros(2, *estimator.input_shape_)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence what the exporters of PyTorch say about packages that are not installed and about their own code."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore", FutureWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        logger.setLevel(level)


@contextmanager
def _explained(estimator: LadderEstimator) -> Iterator[None]:
    """Raise ValueError if a user module cannot be exported."""
    try:
        yield
    except Exception as error:
        if estimator.ladder_.packable:
            raise
        reason = " ".join(str(error).split())[:300]
        raise ValueError(
            f"The network is a module that PyTorch cannot export ({type(error).__name__}: {reason}). Its forward must "
            "be free of conditions on values, and take any number of rows; try torch.export.export on it."
        ) from error
