"""Models for other programs: ONNX files and torch.export files of the preprocessing and the calibrated clean path.

Apart from `tikas.io`, the files of tikas itself, because it needs packages that those do not.
"""

from __future__ import annotations

import json
import logging
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
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
from tikas.data.columns import GAPS, MAX_NUMBER, Column
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
    from onnx import ModelProto
    from torch.export import ExportedProgram

MIN_TORCH = "2.9"
"""The oldest version of torch whose ONNX files were tested. That of 2.6 exports convolutions to other results."""
OPSET = 18
ROWS = "rows"
"""Name of the dimension that counts rows."""
LABEL, PROBABILITIES, VALUE = "label", "probabilities", "variable"
"""Names of the outputs, as skl2onnx names them: of a classifier the first two, of a regressor the last."""
INTERNAL = "tikas/"
"""Prefix of names inside the graph, so that a column may have any other name."""
ML_OPSET = 3
METADATA = "tikas.json"
"""Name of the metadata in a file of torch.export."""
NO_DATE = -(2**63)
"""What marks a missing date: NumPy's NaT as int64."""
DAYS_TO_1970 = 719_468
"""Days from 1 March of the year 0 to 1 January 1970."""


def to_onnx(estimator: LadderEstimator, path: str | Path) -> Path:
    """Write a fitted estimator as an ONNX file; `LadderEstimator.to_onnx` describes it."""
    try:
        import onnx
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ImportError("Writing ONNX files needs onnx and onnxscript: pip install 'tikas[onnx]'.") from error
    if torch.__version__ < MIN_TORCH:
        raise ImportError(f"Writing ONNX files needs torch {MIN_TORCH} or newer, and this is {torch.__version__}.")
    check_is_fitted(estimator)
    outputs = [LABEL, PROBABILITIES] if isinstance(estimator, LadderClassifier) else [VALUE]
    names = {f"input_{number}": name for number, name in enumerate(_inputs(estimator))}
    for name in names.values():
        if name in outputs or name.startswith(INTERNAL):
            raise ValueError(f"The column {name!r} has the name of an output of the ONNX graph. Rename the column.")
    program = _export(estimator)
    with _quiet():
        exported = torch.onnx.export(
            program, dynamo=True, opset_version=OPSET, input_names=list(names), output_names=outputs[-1:], verbose=False
        )
    assert exported is not None
    model = exported.model_proto
    _rename(model, {**names, outputs[-1]: outputs[-1]})
    if estimator.encoder_ is not None:
        _add_categories(model, [column for column in estimator.encoder_.columns if column.categories])
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
    file = BytesIO()
    program = _export(estimator)
    with _quiet():
        torch.export.save(program, file, extra_files={METADATA: json.dumps(_metadata(estimator))})
    replace_file(Path(path), file.getvalue())
    return Path(path)


def _export(estimator: LadderEstimator) -> ExportedProgram:
    """Return what the estimator computes as a program of PyTorch, for any number of rows."""
    inputs, rows = _inputs(estimator), torch.export.Dim(ROWS)
    arguments: tuple[Any] = (inputs,)
    shapes: tuple[Any] = ({name: {0: rows} for name in inputs},)
    if not _takes_columns(estimator):
        arguments, shapes = (inputs["X"],), ({0: rows},)
    try:
        with _quiet():
            return torch.export.export(CleanPath(estimator), arguments, dynamic_shapes=shapes)
    except Exception as error:  # of a user module, of any type
        if estimator.ladder_.packable:
            raise
        reason = " ".join(str(error).split())[:300]
        raise ValueError(
            f"The network is a module that PyTorch cannot export ({type(error).__name__}: {reason}). Its forward must "
            "be free of conditions on values, and take any number of rows; try torch.export.export on it."
        ) from error


# Inputs


def _inputs(estimator: LadderEstimator) -> dict[str, Tensor]:
    """Return an example of each input, two rows: the columns of a table by name, or the array X."""
    if estimator.encoder_ is not None:
        columns = [column for column in estimator.encoder_.columns if column.used]
        return {
            column.name: torch.zeros(2, 1, dtype=torch.float64 if column.kind == "number" else torch.int64)
            for column in columns
        }
    names = getattr(estimator, "feature_names_in_", ())
    if len(names):
        return {str(name): torch.zeros(2, 1) for name in names}
    return {"X": torch.zeros(2, *estimator.input_shape_)}


def _takes_columns(estimator: LadderEstimator) -> bool:
    return estimator.encoder_ is not None or hasattr(estimator, "feature_names_in_")


# The network


class CleanPath(nn.Module):
    """What a fitted estimator computes from float32 rows, or from the columns of a table as a dict.

    The result is class probabilities ``(rows, classes)``, or values ``(rows, 1)``.

    The normalization of a rung is folded into its weights, in double precision: dividing by a small deviation after a
    float32 product would lose digits, which `predict` keeps by computing in double precision.
    """

    def __init__(self, estimator: LadderEstimator) -> None:
        super().__init__()
        self.columns: nn.Module | None = None
        if estimator.encoder_ is not None:
            self.columns = Encode([column for column in estimator.encoder_.columns if column.used])
        elif _takes_columns(estimator):
            self.columns = Join()
        self.prepare = _preparation(estimator.preparation_)
        self.shape = estimator.ladder_.shapes[0]
        self.members = nn.ModuleList(_member(member) for member in estimator.ladders_)
        self.classifier = isinstance(estimator, LadderClassifier)
        self.mean, self.deviation = 0.0, 1.0
        if isinstance(estimator, LadderRegressor):
            self.mean, self.deviation = estimator.target_mean_, estimator.target_deviation_
        for parameter in self.parameters():  # torch.export.save needs this; kernels may be channels-last
            parameter.data = parameter.data.contiguous()
        self.eval()

    def forward(self, rows: Tensor | dict[str, Tensor]) -> Tensor:
        if self.columns is not None:
            rows = self.columns(rows)
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
    if isinstance(member, Gamma):
        top = cast("NormalizedRung", member.rungs[0])
        return nn.Sequential(deepcopy(member.network), Affine(*_folded(top), dims=0))
    layers: list[nn.Module] = []
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


class Join(nn.Module):
    """Put columns of numbers ``(rows, 1)`` side by side."""

    def forward(self, columns: dict[str, Tensor]) -> Tensor:
        return torch.cat(list(columns.values()), dim=1)


class Encode(nn.Module):
    """What a `ColumnEncoder` computes, from columns ``(rows, 1)``.

    Numbers are float64, NaN where there is none. Dates are int64 seconds since 1970 in UTC, `NO_DATE` where there is
    none. Categories are int64, the position of the category or -1. As in the encoder, all numbers come first, then
    where numbers are missing, then the categories.
    """

    def __init__(self, columns: Sequence[Column]) -> None:
        super().__init__()
        self.specs = list(columns)
        for number, column in enumerate(columns):
            for name in ("medians", "means", "deviations"):
                self.register_buffer(f"{name}_{number}", torch.tensor(getattr(column, name), dtype=torch.float64))
            if not column.categories:
                continue
            # Rare categories share the slot behind the frequent ones. The last item is that of unknown categories.
            slot = {code: position for position, code in enumerate(column.frequent)}
            slots = [slot.get(code, len(slot)) for code in range(len(column.categories) + 1)]
            self.register_buffer(f"slots_{number}", torch.tensor(slots))
            self.register_buffer(f"counts_{number}", torch.tensor([*column.counts, 1], dtype=torch.float64).log())

    def forward(self, columns: dict[str, Tensor]) -> Tensor:
        numbers, gaps, categories = [], [], []
        for number, (column, cells) in enumerate(zip(self.specs, columns.values(), strict=True)):
            values: Tensor | None = None
            if column.kind == "number":
                values = torch.where(cells.abs() <= MAX_NUMBER, cells, torch.nan)
            elif column.kind == "date":
                values = _date_parts(cells, column.parts)
            else:
                codes = torch.where(cells < 0, len(column.categories), cells)
                if column.parts:
                    values = self.get_buffer(f"counts_{number}")[codes]
                width = len(column.frequent) + bool(column.rare)
                if column.frequent:
                    slots = self.get_buffer(f"slots_{number}")[codes]
                    categories.append((slots == torch.arange(width)).float())
            if values is not None:
                medians, means, deviations = (
                    self.get_buffer(f"{name}_{number}") for name in ("medians", "means", "deviations")
                )
                missing = values.isnan()
                numbers.append(((torch.where(missing, medians, values) - means) / deviations).float())
                if column.gaps:
                    gaps.append(missing[:, :1].float())
        return torch.cat([*numbers, *gaps, *categories], dim=1)


def _date_parts(seconds: Tensor, parts: Sequence[str]) -> Tensor:
    """Return the numbers that dates become, ``(rows, parts)``, NaN where there is none."""
    missing = seconds == NO_DATE
    # From 1 March of the year 0 on, so that all numbers are positive, where integer divisions round in one way.
    since = torch.where(missing, 0, seconds) + DAYS_TO_1970 * 86_400
    days = since // 86_400
    hours = ((since % 86_400) // 60).double() / 60
    # The calendar repeats after 400 years of 146,097 days. Years begin in March, so that a leap day is their last.
    day = days % 146_097
    year = (day - day // 1460 + day // 36_524 - day // 146_096) // 365
    day = day - (365 * year + year // 4 - year // 100)
    month = (5 * day + 2) // 153
    day = day - (153 * month + 2) // 5 + 1
    month = torch.where(month < 10, month + 3, month - 9)
    values = {"time": torch.where(missing, 0, seconds).double() / 86_400}
    for name, value, period in (
        ("month", month.double() + day.double() / 31 - 1, 12),
        ("weekday", ((days + 2) % 7).double(), 7),
        ("hour", hours, 24),
    ):
        angle = value * (2 * math.pi / period)
        values |= {f"{name} sin": angle.sin(), f"{name} cos": angle.cos()}
    return torch.where(missing, torch.nan, torch.cat([values[part] for part in parts], dim=1))


# The graph around the network


def _rename(model: ModelProto, names: Mapping[str, str]) -> None:
    """Rename inputs and outputs, and put all others under `INTERNAL`; remove what describes where they came from."""

    def renamed(name: str) -> str:
        return names.get(name, INTERNAL + name) if name else ""

    del model.metadata_props[:]  # these have stack traces with paths of this machine
    graph = model.graph
    graph.name = "tikas"
    del graph.value_info[:]
    for value in (*graph.input, *graph.output):
        value.name = renamed(value.name)
        value.type.tensor_type.shape.dim[0].dim_param = ROWS
        del value.metadata_props[:]
    for initializer in graph.initializer:
        initializer.name = renamed(initializer.name)
        del initializer.metadata_props[:]
    for node in graph.node:
        node.name, node.doc_string = INTERNAL + node.name, ""
        del node.metadata_props[:]
        node.input[:] = map(renamed, node.input)
        node.output[:] = map(renamed, node.output)


def _add_categories(model: ModelProto, columns: Sequence[Column]) -> None:
    """Let columns of categories be text: look up the position of each text."""
    from onnx import TensorProto, helper

    lookups = []
    for number, column in enumerate(columns):
        codes = f"{INTERNAL}codes/{number}"
        for node in model.graph.node:
            node.input[:] = [codes if name == column.name else name for name in node.input]
        position = [value.name for value in model.graph.input].index(column.name)
        model.graph.input[position].CopyFrom(helper.make_tensor_value_info(column.name, TensorProto.STRING, [ROWS, 1]))
        texts = _texts(column)
        lookups.append(
            helper.make_node(
                "LabelEncoder",
                [column.name],
                [codes],
                domain="ai.onnx.ml",
                keys_strings=list(texts),
                values_int64s=list(texts.values()),
                default_int64=-1,
            )
        )
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend([*lookups, *nodes])
    if lookups:
        model.opset_import.append(helper.make_opsetid("ai.onnx.ml", ML_OPSET))


def _texts(column: Column) -> dict[str, int]:
    """Return the position of the category that each text means, among them other ways to write a text or a gap."""
    known = {text: code for code, text in enumerate(column.categories)}
    if "" in known:
        known = {**dict.fromkeys(sorted(GAPS), known[""]), **known}
    for text, code in list(known.items()):
        if column.kind == "boolean":
            known |= {text.title(): code, text.upper(): code}
        elif re.fullmatch(r"-?\d+", text):
            known.setdefault(f"{text}.0", code)
    return known


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


def _metadata(estimator: LadderEstimator) -> dict[str, str]:
    """Return what a file says of its model, each as JSON."""
    values: dict[str, Any] = {"task": estimator.task, "recipe": json.loads(estimator.recipe_.to_json())}
    if isinstance(estimator, LadderClassifier):
        values["classes"] = estimator.classes_.tolist()
    if estimator.encoder_ is not None:
        values["columns"] = [
            {"name": column.name, "kind": column.kind, "categories": list(column.categories)}
            for column in estimator.encoder_.columns
        ]
    values |= {"seeds": estimator.seeds_, "tikas": tikas.__version__}
    return {name: json.dumps(value) for name, value in values.items()}


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
