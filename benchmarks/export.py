"""Compare exported models with the estimators: probabilities on 1,000 rows, size, and latency beside MLPClassifier.

    OMP_NUM_THREADS=1 python benchmarks/export.py --record results/export.jsonl

`difference`: the largest difference of a probability between onnxruntime, or torch.export, and `predict_proba`, on rows
that were not trained on; `labels_differ`: rows whose label differs. Sizes are those of the files, for MLPClassifier of
its pickle. Latency: the median of calls of `predict_proba` on one and on 1,000 rows of the digits, with networks of 256
and 128 units, the ways taking turns; `load` is the machine's load average at the end.
"""

import os
import pickle
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier
from torch import nn

from common import Figure, Side, interleave, new_parser, print_machine, report
from tikas import Conv, LadderClassifier, MaxPool, MeanPool

CPU = torch.device("cpu")
ROWS = 1000
EPOCHS = 30
CALLS = {1: 200, ROWS: 5}
"""Calls in a block that is timed."""
QUICK: dict[str, Any] = {"random_state": 0, "device": "cpu"}


class Module(nn.Module):
    """A module of a user, with layers of batch and layer normalization."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16)
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(576, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(self.norm(self.convolution(x)).relu())


MAPS = (Conv(16, 3, padding="full"), MaxPool(2), Conv(32, 3), MeanPool(2))
KINDS: dict[str, dict[str, Any]] = {
    "dense": {"network": (256, 128)},
    "dense, standardized": {"network": (256, 128), "preprocess": "standardize"},
    "ensemble of 5": {"network": (256, 128), "n_members": 5},
    "convolutional": {"network": MAPS},
    "convolutional, whitened": {"network": MAPS, "preprocess": "whiten"},
    "Γ-model of a module": {"network": Module()},
}


def table(rows: int) -> tuple[pd.DataFrame, np.ndarray]:
    """Return a table with numbers, categories, booleans, dates and gaps, and classes that follow from it."""
    rng = np.random.default_rng(0)
    size, town = (
        rng.normal(50, 20, rows),
        rng.choice(["Espoo", "Turku", "Oulu", "Kemi"], rows, p=[0.5, 0.3, 0.19, 0.01]),
    )
    frame = pd.DataFrame(
        {
            "size": np.where(rng.random(rows) < 0.1, np.nan, size),
            "year": rng.integers(1950, 2025, rows),
            "town": pd.Series(town, dtype=object).where(rng.random(rows) > 0.05, None),
            "new": rng.random(rows) < 0.3,
            "seen": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 10**8, rows), unit="s"),
        }
    )
    return frame, np.where(size + 10 * (town == "Turku") > 55, "high", "low")


def compare(name: str, classifier: LadderClassifier, rows: Any, folder: Path) -> Figure:
    """Return how far the exported files are from the estimator on rows that it was not trained on."""
    expected = classifier.predict_proba(rows)
    file, saved = folder / f"{name}.onnx", folder / f"{name}.safetensors"
    labels, probabilities = run(classifier.to_onnx(file), rows)
    details: dict[str, Any] = {
        "rows": len(rows),
        "difference": float(np.abs(probabilities - expected).max()),
        "labels_differ": int((labels != classifier.predict(rows)).sum()),
        "onnx_bytes": file.stat().st_size,
    }
    if not isinstance(classifier.network, nn.Module):
        details["safetensors_bytes"] = classifier.save(saved).stat().st_size
    program = torch.export.load(classifier.to_torch_export(folder / f"{name}.pt2")).module()
    given = tensors(classifier, rows) if isinstance(rows, pd.DataFrame) else torch.from_numpy(rows)
    details["torch_export_difference"] = float(np.abs(program(given).detach().numpy() - expected).max())
    return Figure("export", name, details=details)


def run(path: Path, rows: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the labels and probabilities of onnxruntime."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path)
    inputs = {"X": rows} if isinstance(rows, np.ndarray) else table_inputs(session, rows)
    return session.run(None, inputs)


def table_inputs(session: Any, frame: pd.DataFrame) -> dict[str, np.ndarray]:
    """Return the columns of a frame in the types of the inputs."""
    inputs = {}
    for each in session.get_inputs():
        cells = frame[each.name]
        if each.type == "tensor(string)":
            values = np.array([str(cell) for cell in cells], dtype=object)
        elif each.type == "tensor(int64)":
            values = cells.to_numpy("datetime64[s]").astype(np.int64)
        else:
            values = cells.to_numpy(np.float64)
        inputs[each.name] = values.reshape(-1, 1)
    return inputs


def tensors(classifier: LadderClassifier, frame: pd.DataFrame) -> dict[str, torch.Tensor]:
    """Return the columns of a frame as the exported program takes them."""
    columns = {}
    for column in classifier.encoder_.columns:
        cells = frame[column.name]
        if column.categories:
            texts = ["" if pd.isna(cell) else str(cell).lower() for cell in cells]
            known = {text.lower(): code for code, text in enumerate(column.categories)}
            values = np.array([known.get(text, -1) for text in texts])
        else:
            date = column.kind == "date"
            values = cells.to_numpy("datetime64[s]").astype(np.int64) if date else cells.to_numpy(np.float64)
        columns[column.name] = torch.tensor(values.reshape(-1, 1))
    return columns


def latencies(seconds: float, folder: Path) -> list[Figure]:
    """Return the latency and size of a dense network in tikas, in onnxruntime and in scikit-learn."""
    import onnxruntime

    X, y = load_digits(return_X_y=True)
    X = np.ascontiguousarray(X / 16, dtype=np.float32)
    ladder = LadderClassifier((256, 128), epochs=5, **QUICK).fit(X[:700], y[:700])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it has not converged
        perceptron = MLPClassifier((256, 128), max_iter=5, random_state=0).fit(X[:700], y[:700])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(ladder.to_onnx(folder / "dense.onnx"), options)
    sizes = {
        "onnxruntime": (folder / "dense.onnx").stat().st_size,
        "tikas": ladder.save(folder / "dense.safetensors").stat().st_size,
        "MLPClassifier": len(pickle.dumps(perceptron)),
    }
    figures = []
    for count, calls in CALLS.items():
        rows = X[-count:]
        ways: dict[str, Callable[[], Any]] = {
            "onnxruntime": lambda rows=rows: session.run(None, {"X": rows}),
            "tikas": lambda rows=rows: ladder.predict_proba(rows),
            "MLPClassifier": lambda rows=rows: perceptron.predict_proba(rows),
        }
        sides = [
            Side(name, lambda way=way, calls=calls: [way() for _ in range(calls)], calls) for name, way in ways.items()
        ]
        timings = interleave(sides, CPU, seconds)
        for name, timing in timings.items():
            ratio = timings["MLPClassifier"].ms / timing.ms
            details = {"rows": count, "bytes": sizes[name], "load": os.getloadavg()[0]}
            figures.append(Figure("latency", f"{name}, {count} rows", timing.ms, ratio, "MLPClassifier", details))
    return figures


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="how long each number of rows is timed")
    parser.add_argument("--quick", action="store_true", help="few epochs and rows, for the tests")
    options = parser.parse_args()
    print_machine(CPU)
    X, y = load_digits(return_X_y=True)
    images = np.ascontiguousarray(X.reshape(-1, 1, 8, 8) / 16, dtype=np.float32)
    y[100:] = -1
    trained = slice(None, 300 if options.quick else len(X) - ROWS)
    epochs = 2 if options.quick else EPOCHS
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for kind, settings in KINDS.items():
            classifier = LadderClassifier(**settings, epochs=epochs, **QUICK).fit(images[trained], y[trained])
            report(compare(kind, classifier, images[-ROWS:], folder), options, CPU)
        frame, classes = table(3 * ROWS)
        classifier = LadderClassifier(epochs=epochs, **QUICK).fit(frame[ROWS:], classes[ROWS:])
        report(compare("table", classifier, frame[:ROWS], folder), options, CPU)
        for figure in latencies(0.0 if options.quick else options.seconds, folder):
            report(figure, options, CPU)


if __name__ == "__main__":
    main()
