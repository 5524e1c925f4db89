"""`tikas train` and `tikas predict` on a folder of Parquet files, which are never read as a whole."""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_iris

import tikas

pytest.importorskip("pyarrow")

QUICK = ["--epochs", "20", "--network", "16", "--quiet", "--output", "m.safetensors"]
IRIS = load_iris(as_frame=True).frame.rename(columns={"target": "kind"}).sample(frac=1, random_state=0)
NAMES = load_iris().target_names


@pytest.fixture(autouse=True)
def flowers() -> Path:
    """Three files of 50 flowers; a third of their kinds are null."""
    folder = Path("flowers")
    folder.mkdir()
    kinds = NAMES[IRIS["kind"]].astype(object)
    kinds[::3] = None
    for number in range(3):
        part = slice(50 * number, 50 * number + 50)
        frame = IRIS[part].assign(kind=kinds[part])
        frame.to_parquet(folder / f"{number}.parquet", row_group_size=20, index=False)
    return folder


def test_a_folder_is_learned_and_predicted_into_a_parquet_file(run, capsys) -> None:
    assert run("train", "--data", "flowers", "--target", "kind", "--validation", "20", *QUICK) == 0
    assert "150 rows, 80 labeled, 3 classes" in capsys.readouterr().out
    model = tikas.load("m.safetensors")
    assert model.recipe_.preprocess == "standardize"
    assert model.feature_names_in_.tolist() == IRIS.columns[:4].tolist()

    options = ["--target", "kind", "--probabilities", "-o", "out/p.parquet"]
    assert run("predict", "m.safetensors", "flowers", *options) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error on the 100 labeled rows: ")
    predicted = pd.read_parquet("out/p.parquet")
    assert predicted.columns.tolist() == ["prediction", "probability", *(f"probability:{name}" for name in NAMES)]
    expected = model.predict_proba(IRIS[IRIS.columns[:4]].astype(np.float32))
    np.testing.assert_allclose(predicted.iloc[:, 2:], expected, atol=1e-6)
    assert (predicted["prediction"] == NAMES[expected.argmax(1)]).all()
    assert [path.name for path in Path("out").iterdir()] == ["p.parquet"]


def test_predictions_are_written_part_by_part(run, capsys, monkeypatch) -> None:
    assert run("train", "--data", "flowers", "--target", "kind", *QUICK, "--no-baseline") == 0
    capsys.readouterr()
    assert run("predict", "m.safetensors", "flowers", "-o", "whole.csv") == 0
    monkeypatch.setattr(sys.modules["tikas.cli.predict"], "ROWS_AT_A_TIME", 40)
    assert run("predict", "m.safetensors", "flowers", "-o", "parts.csv") == 0
    assert run("predict", "m.safetensors", "flowers", "-o", "parts.parquet") == 0
    whole, parts = pd.read_csv("whole.csv"), pd.read_csv("parts.csv")
    assert whole.columns.tolist() == ["prediction", "probability"]
    pd.testing.assert_frame_equal(parts, whole)
    pd.testing.assert_frame_equal(pd.read_parquet("parts.parquet"), whole, check_dtype=False)
    capsys.readouterr()
    assert run("predict", "m.safetensors", "flowers") == 0
    assert len(capsys.readouterr().out.splitlines()) == 151


def test_values_are_learned_and_hidden_labels_are_measured(run, capsys) -> None:
    options = ["--data", "flowers", "--target", IRIS.columns[3], "--ignore", "kind", "--task", "regression"]
    assert run("train", *options, "--labels", "60", *QUICK) == 0
    assert "RMSE on the 90 hidden labels" in capsys.readouterr().out
    assert run("predict", "m.safetensors", "flowers", "--target", IRIS.columns[3]) == 0
    assert "RMSE on the 150 rows" in capsys.readouterr().err


def test_a_stopped_command_continues_with_the_same_result(run, monkeypatch) -> None:
    from tikas.data import batches

    monkeypatch.setattr(batches, "WINDOW_BYTES", 0)
    options = ["--data", "flowers", "--target", "kind", "--batch-size", "30", "--no-baseline", *QUICK[:-1]]
    assert run("train", *options, "expected.safetensors") == 0
    original, calls = batches.Batches.batch, []

    def interrupted(self: batches.Batches, update: int) -> batches.Batch:
        calls.append(update)
        if len(calls) == 33:
            raise KeyboardInterrupt
        return original(self, update)

    with monkeypatch.context() as patch:
        patch.setattr(batches.Batches, "batch", interrupted)
        assert run("train", *options, "m.safetensors", "--checkpoint-every", "0") == 130
    assert run("train", *options, "m.safetensors") == 0
    one, other = (tikas.load(path).ladder_.state_dict() for path in ("m.safetensors", "expected.safetensors"))
    assert all(tensor.equal(other[name]) for name, tensor in one.items())


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["train", "--data", "flowers"], "--target"),
        (["train", "--data", "flowers", "--target", "species"], "'species'"),
        (["train", "--data", "flowers", "--target", IRIS.columns[0]], "'kind'"),
        (["predict", "m.safetensors", "empty"], "no images"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(run, capsys, arguments: list[str], named: str) -> None:
    Path("empty").mkdir()
    tikas.LadderClassifier((2,), epochs=1).fit(np.eye(100), np.arange(100) % 2).save("m.safetensors")
    capsys.readouterr()
    assert run(*arguments) == 2
    assert named in capsys.readouterr().err
