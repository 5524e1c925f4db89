"""docs/deployment.md as it stands: its examples run, in Python, in Node.js and behind FastAPI."""

import asyncio
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/deployment.md").read_text()
EXPORT, CLIENT, FRAME, *SERVERS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
(SCRIPT,) = re.findall(r"```js\n(.*?)```", PAGE, flags=re.DOTALL)
NODE, PACKAGES = shutil.which("node"), ROOT / "tests/javascript/node_modules"
FLOWER = {"sepal length": 5.1, "sepal width": 3.5, "petal length": 1.4, "petal width": 0.2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the model that the page exports."""
    path = tmp_path_factory.mktemp("deployment")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        execute(EXPORT)
    return path


@pytest.fixture(scope="module")
def probabilities(folder: Path) -> np.ndarray:
    """What tikas itself predicts for the flower of the examples."""
    import pandas as pd

    import tikas

    return tikas.load(folder / "iris.safetensors").predict_proba(pd.DataFrame({k: [v] for k, v in FLOWER.items()}))[0]


@pytest.fixture(autouse=True)
def _in_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


def execute(example: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(example, "deployment.md", "exec"), names)
    return names


def test_the_python_example_predicts_as_tikas(probabilities: np.ndarray, capsys) -> None:
    names = execute(CLIENT)
    np.testing.assert_allclose(names["probabilities"][0], probabilities, atol=1e-5)
    assert capsys.readouterr().out.startswith("setosa [")


def test_the_function_for_frames_gives_each_column_the_type_of_its_input() -> None:
    import onnxruntime
    import pandas as pd

    from tikas import LadderClassifier

    dates = pd.Series(pd.date_range("2020-01-01", periods=60)).mask(np.arange(60) == 7)
    towns = pd.Series(["Turku", "Oulu", None] * 20, dtype=object)
    frame = pd.DataFrame({"size": np.sin(np.arange(60)), "town": towns, "seen": dates})
    classifier = LadderClassifier((4,), epochs=2, batch_size=20, random_state=0).fit(frame, ["a", "b"] * 30)
    session = onnxruntime.InferenceSession(classifier.to_onnx("table.onnx"))
    inputs = execute(FRAME)["inputs_of"](session, frame)
    np.testing.assert_allclose(session.run(None, inputs)[1], classifier.predict_proba(frame), atol=1e-5)


@pytest.mark.skipif(NODE is None, reason="Node.js is not installed")
@pytest.mark.skipif(not PACKAGES.is_dir(), reason="no packages: npm ci --ignore-scripts --prefix tests/javascript")
def test_the_javascript_example_predicts_as_tikas(probabilities: np.ndarray, folder: Path) -> None:
    (folder / "example.mjs").write_text(SCRIPT)
    if not (folder / "node_modules").exists():
        os.symlink(PACKAGES, folder / "node_modules")
    printed = subprocess.run([str(NODE), "example.mjs"], check=True, capture_output=True, text=True).stdout
    label, values = printed.split(maxsplit=1)
    assert label == "setosa"
    np.testing.assert_allclose(json.loads(values), probabilities, atol=1e-5)


async def post(app: Any, path: str, content: Any) -> tuple[int, Any]:
    """Send a request to an ASGI application, as a web server would, and return the status and the answer."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": json.dumps(content).encode(), "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    headers = [(b"content-type", b"application/json")]
    request = {"type": "http", "method": "POST", "path": path, "headers": headers, "query_string": b"", "root_path": ""}
    await app({**request, "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http"}, receive, send)
    body = b"".join(message.get("body", b"") for message in sent)
    return sent[0]["status"], json.loads(body)


@pytest.mark.parametrize("example", SERVERS, ids=["onnxruntime", "tikas"])
def test_the_servers_predict_as_tikas(example: str, probabilities: np.ndarray) -> None:
    pytest.importorskip("fastapi")
    app = execute(example)["app"]
    status, answer = asyncio.run(post(app, "/predict", {name: [value, value] for name, value in FLOWER.items()}))
    assert (status, answer["label"]) == (200, ["setosa", "setosa"])
    if "probabilities" in answer:
        np.testing.assert_allclose(answer["probabilities"], [probabilities] * 2, atol=1e-5)
    assert asyncio.run(post(app, "/predict", [1]))[0] == 422


def test_the_configuration_for_triton_names_the_inputs_and_outputs_of_the_file(folder: Path) -> None:
    import onnxruntime

    session = onnxruntime.InferenceSession(folder / "iris.onnx")
    (configuration,) = re.findall(r'```\n(name: "iris".*?)```', PAGE, flags=re.DOTALL)
    found = re.findall(r'\{ name: "(.*?)" data_type: TYPE_(\w+) dims: \[ (\d+) \]', configuration)
    types = {"tensor(float)": "FP32", "tensor(string)": "STRING"}
    values = [*session.get_inputs(), *session.get_outputs()]
    assert found == [(each.name, types[each.type], str([*each.shape, 1][1])) for each in values]
