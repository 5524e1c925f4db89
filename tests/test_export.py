"""Exported models agree with the estimator in onnxruntime and PyTorch; names, labels and metadata; `tikas export`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_iris
from torch import nn

from tikas import Conv, GlobalMeanPool, LadderClassifier, LadderRegressor, MaxPool, MeanPool
from tikas.cli import main
from tikas.data.datasets import load_dataset

onnx, onnxruntime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

TRAIN, TEST = load_dataset("digits")
IMAGES, LABELS = TRAIN.rows[:200], np.where(np.arange(200) < 100, TRAIN.classes[TRAIN.targets[:200]], None)
QUICK: dict[str, Any] = {"epochs": 3, "batch_size": 50, "random_state": 0, "device": "cpu"}


class Norms(nn.Module):
    """A module with the normalization layers that get noise in training."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(144, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(self.norm(self.convolution(x)).relu())


MAPS = [Conv(6, 3, padding="full"), MaxPool(3), Conv(6, 2, activation="leaky_relu", padding="same"), MeanPool(3)]
KINDS: dict[str, tuple[dict[str, Any], float]] = {
    "dense": ({"network": (32, 16), "activation": "tanh", "preprocess": "standardize"}, 16.0),
    "ensemble": ({"network": (16,), "n_members": 3}, 1.0),
    "convolutional": ({"network": [*MAPS, GlobalMeanPool(), "top"]}, 1.0),
    "whitened, kernel as large as the maps": ({"network": [Conv(8, 7, stride=1)], "preprocess": "whiten"}, 1.0),
    "module": ({"network": Norms()}, 1.0),
}


def run(path: str | Path, inputs: dict[str, np.ndarray]) -> list[Any]:
    return onnxruntime.InferenceSession(path).run(None, inputs)


@pytest.mark.parametrize("kind", KINDS)
def test_exported_probabilities_are_those_of_the_estimator(kind: str, tmp_path: Path) -> None:
    settings, scale = KINDS[kind]
    classifier = LadderClassifier(**QUICK, **settings).fit(IMAGES * scale, LABELS)
    rows = TEST.rows * scale
    expected = classifier.predict_proba(rows)
    path = classifier.to_onnx(tmp_path / "m.onnx")
    labels, probabilities = run(path, {"X": rows})
    np.testing.assert_allclose(probabilities, expected, atol=1e-5)
    np.testing.assert_array_equal(labels, classifier.predict(rows))
    (one,) = run(path, {"X": rows[:1]})[1]
    np.testing.assert_allclose(one, expected[0], atol=1e-5)

    program = torch.export.load(classifier.to_torch_export(tmp_path / "m.pt2"))
    exported = program.module()(torch.from_numpy(rows)).detach().numpy()
    np.testing.assert_allclose(exported, expected, atol=1e-5)


def test_a_data_frame_becomes_an_input_for_each_column_and_the_metadata_name_the_classes(tmp_path: Path) -> None:
    X, y = load_iris(return_X_y=True, as_frame=True)
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    classifier = LadderClassifier((16,), preprocess="standardize", **QUICK).fit(X, names)
    path = classifier.to_onnx(tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(path)
    assert [(each.name, each.shape, each.type) for each in session.get_inputs()] == [
        (name, ["rows", 1], "tensor(float)") for name in X.columns
    ]
    assert [(each.name, each.shape) for each in session.get_outputs()] == [
        ("label", ["rows"]),
        ("probabilities", ["rows", 3]),
    ]
    labels, probabilities = session.run(None, {name: X[[name]].to_numpy(np.float32) for name in X.columns})
    np.testing.assert_allclose(probabilities, classifier.predict_proba(X), atol=1e-5)
    assert labels.tolist() == classifier.predict(X).tolist()
    metadata = session.get_modelmeta().custom_metadata_map
    assert json.loads(metadata["classes"]) == ["setosa", "versicolor", "virginica"]
    assert json.loads(metadata["recipe"])["network"] == [16]
    assert str(Path(__file__).parent) not in path.read_bytes().decode(errors="ignore")


def hard_table(rows: int, seed: int) -> pd.DataFrame:
    """Return a table of all kinds of columns, with gaps, dates before 1970, and rare and many categories."""
    rng = np.random.default_rng(seed)
    number = rng.lognormal(10, 2, rows)
    number[::9], number[5] = np.nan, np.inf
    town = rng.choice(["Espoo", "Turku", "Oulu", "Kemi", "Inari"], rows, p=[0.5, 0.3, 0.18, 0.01, 0.01]).astype(object)
    days = pd.Timestamp("1950-01-01") + pd.to_timedelta(rng.integers(0, 5 * 10**9, rows), unit="s")
    return pd.DataFrame(
        {
            "number": number,
            "relu": rng.integers(1950, 2030, rows),
            "town": np.where(rng.random(rows) < 0.1, None, town),
            "code": rng.choice([1.0, 2.0, np.nan], rows),
            "village": [f"village {value}" for value in rng.integers(0, 90, rows)],
            "new": rng.choice(np.array([True, False, None]), rows, p=[0.5, 0.4, 0.1]),
            "seen": days.to_series(index=range(rows)).mask(rng.random(rows) < 0.1),
            "id": np.arange(rows),
        }
    )


def test_a_table_with_categories_dates_and_gaps_is_encoded_in_the_graph(tmp_path: Path) -> None:
    frame = hard_table(400, seed=0)
    labels = np.where(frame["relu"] > 1990, "late", "early")
    kinds = {"code": "category", "village": "category"}
    with pytest.warns(UserWarning, match="id"):
        classifier = LadderClassifier((16,), columns=kinds, **QUICK).fit(frame, labels)
    assert {column.name: column.kind for column in classifier.encoder_.columns} == {
        "number": "number",
        "relu": "number",
        "town": "category",
        "code": "category",
        "village": "category",
        "new": "boolean",
        "seen": "date",
        "id": "id",
    }
    rows = hard_table(1000, seed=1)
    rows.loc[0, "town"] = "Utopia"
    rows.loc[1, "seen"], rows.loc[2, "seen"] = pd.Timestamp("2000-02-29 23:59"), pd.Timestamp("1900-03-01")
    expected = classifier.predict_proba(rows)

    path = classifier.to_onnx(tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(path)
    inputs = {}
    for each in session.get_inputs():
        cells = rows[each.name]
        if each.type == "tensor(string)":
            values = np.array([str(cell) for cell in cells], dtype=object)
        elif each.type == "tensor(int64)":
            values = cells.to_numpy("datetime64[s]").astype(np.int64)
        else:
            values = cells.to_numpy(np.float64)
        inputs[each.name] = values.reshape(-1, 1)
    assert list(inputs) == ["number", "relu", "town", "code", "village", "new", "seen"]
    predicted, probabilities = session.run(None, inputs)
    np.testing.assert_allclose(probabilities, expected, atol=1e-5)
    assert predicted.tolist() == classifier.predict(rows).tolist()
    assert np.ptp(expected[:, 0]) > 0.2

    columns = json.loads(session.get_modelmeta().custom_metadata_map["columns"])
    assert columns[-1] == {"name": "id", "kind": "id", "categories": []}
    extra = {"tikas.json": ""}
    program = torch.export.load(classifier.to_torch_export(tmp_path / "m.pt2"), extra_files=extra)
    assert json.loads(json.loads(extra["tikas.json"])["columns"]) == columns
    tensors = {}
    for column in columns[:-1]:
        cells, name = inputs[column["name"]], column["name"]
        if column["categories"]:  # known texts alone: the first row has an unknown one
            texts = {text: code for code, text in enumerate(column["categories"])}
            gap = texts.get("", -1)
            cells = [[texts.get(cell.lower() if name == "new" else cell.removesuffix(".0"), gap)] for (cell,) in cells]
        tensors[name] = torch.tensor(cells)
    exported = program.module()(tensors).detach().numpy()
    np.testing.assert_allclose(exported[1:], expected[1:], atol=1e-5)


@pytest.mark.parametrize(
    ("classes", "kind"),
    [
        (np.array([3, 5, 8]), "tensor(int64)"),
        (np.array([1.0, 2.0, 4.0]), "tensor(double)"),
        (np.array([False, True]), "tensor(bool)"),
        (np.array(["é", "b"], dtype=object), "tensor(string)"),
    ],
)
def test_labels_have_the_type_of_the_classes(classes: np.ndarray, kind: str, tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(60, 2)).astype(np.float32)
    classifier = LadderClassifier((4,), **QUICK).fit(X, classes[np.arange(60) % len(classes)])
    session = onnxruntime.InferenceSession(classifier.to_onnx(tmp_path / "m.onnx"))
    assert session.get_outputs()[0].type == kind
    assert session.run(["label"], {"X": X})[0].tolist() == classifier.predict(X).tolist()


def test_a_regressor_returns_values_in_the_unit_of_its_target(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(200, 3))
    y = 1000 + 50 * X[:, 0]
    regressor = LadderRegressor((16,), n_members=2, **QUICK).fit(X, np.where(X[:, 1] > 0, y, np.nan))
    (values,) = run(regressor.to_onnx(tmp_path / "m.onnx"), {"X": X.astype(np.float32)})
    assert values.shape == (200, 1)
    np.testing.assert_allclose(values[:, 0], regressor.predict(X), atol=1e-5 * 50, rtol=1e-6)
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    assert [each.name for each in session.get_outputs()] == ["variable"]


@pytest.mark.parametrize("name", ["label", "probabilities"])
def test_a_column_named_like_an_output_is_an_error(name: str, tmp_path: Path) -> None:
    X = pd.DataFrame(np.random.default_rng(0).normal(size=(60, 2)), columns=["a", name])
    classifier = LadderClassifier((4,), **QUICK).fit(X, [0, 1] * 30)
    with pytest.raises(ValueError, match=f"'{name}'"):
        classifier.to_onnx(tmp_path / "m.onnx")
    assert not (tmp_path / "m.onnx").exists()


class Branching(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) if x.sum() > 0 else super().forward(-x)


def test_a_module_that_pytorch_cannot_export_is_an_error(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(60, 2)).astype(np.float32)
    classifier = LadderClassifier(Branching(2, 2), **QUICK).fit(X, [0, 1] * 30)
    for method in (classifier.to_onnx, classifier.to_torch_export):
        with pytest.raises(ValueError, match=r"torch\.export"):
            method(tmp_path / "m")


def test_an_older_torch_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", torch.torch_version.TorchVersion("2.8.0"))
    with pytest.raises(ImportError, match=r"2\.9 .*2\.8\.0"):
        LadderClassifier((4,)).to_onnx(tmp_path / "model.onnx")


def test_the_command_writes_both_files_and_prints_inputs_and_outputs(tmp_path: Path, capsys) -> None:
    def command(*words: str | Path) -> int:
        with pytest.raises(SystemExit) as stop:
            main(["export", *map(str, words)])
        return int(stop.value.code or 0)

    X = load_iris(as_frame=True)["data"]
    classifier = LadderClassifier((4,), **QUICK).fit(X, ["a", "b", "c"] * 50)
    model, file, program = classifier.save(tmp_path / "m.safetensors"), tmp_path / "m.onnx", tmp_path / "m.pt2"
    assert command(model, "--onnx", file, "--torch-export", program) == 0
    printed = capsys.readouterr().out
    assert f"{file}: 0.0" in printed
    assert "input sepal length (cm): float (rows, 1)" in printed
    assert "output label: string (rows)" in printed
    inputs = {name: X[[name]].to_numpy(np.float32) for name in X.columns}
    np.testing.assert_allclose(run(file, inputs)[1], classifier.predict_proba(X), atol=1e-5)
    columns = {name: torch.zeros(4, 1) for name in X.columns}
    assert torch.export.load(program).module()(columns).shape == (4, 3)

    assert command(model) == 2
    assert "--onnx" in capsys.readouterr().err
    assert command(model, "--onnx", model) == 2
    assert "--onnx" in capsys.readouterr().err
