"""`tikas predict`: what it prints for tables, arrays and images, and how predictions are compared with labels."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import tikas
from tikas.data.datasets import load_dataset

QUICK = ["--epochs", "1", "--quiet", "--no-baseline", "--output", "m.safetensors"]


def save_classifier(classes: tuple[Any, Any] = ("down", "up"), columns: tuple[str, ...] = ()) -> None:
    """Save a model that gives the first class to small values of its only column, and the second to large ones."""
    rows = [[0.0], [1.0]] * 10
    model = tikas.LadderClassifier((4,), costs=0, epochs=40, batch_size=20, random_state=0)
    model.fit(pd.DataFrame(rows, columns=columns) if columns else rows, list(classes) * 10).save("m.safetensors")


def predicted(printed: str) -> list[str]:
    """Return the column of predictions."""
    return pd.read_csv(io.StringIO(printed), dtype=str, keep_default_na=False)["prediction"].tolist()


def test_rows_of_a_table_are_predicted_by_the_names_of_its_columns_and_kept(run, capsys) -> None:
    save_classifier(columns=("size",))
    Path("rows.csv").write_text("name;size;kind\nbob;0,90;up\n eve;0,1;'x\"\n")
    assert run("predict", "m.safetensors", "rows.csv") == 0
    captured = capsys.readouterr()
    certain = tikas.load("m.safetensors").predict_proba(pd.DataFrame({"size": [0.9, 0.1]})).max(1)
    assert captured.out.splitlines() == [
        "name,size,kind,prediction,probability",
        f'bob,"0,90",up,up,{certain[0]:.6f}',
        f'eve,"0,1","\'x""",down,{certain[1]:.6f}',
    ]
    assert captured.err == ""


def test_a_key_alone_is_kept_and_the_output_is_csv_tsv_or_parquet(run, capsys) -> None:
    save_classifier(columns=("size",))
    table = pd.DataFrame({"id": [7, 8, 9], "size": [0.9, 0.1, 0.8], "empty": [None, None, None], "n": [1, None, 3]})
    table.to_parquet("rows.parquet")
    table.to_csv("rows.csv", index=False)
    for output in ("p.csv", "p.tsv"):
        assert run("predict", "m.safetensors", "rows.csv", "--id", "id", "-o", output) == 0
        frame = pd.read_csv(output, sep="\t" if output == "p.tsv" else ",")
        assert frame.columns.tolist() == ["id", "prediction", "probability"]
        assert frame["id"].tolist() == [7, 8, 9]
        assert frame["prediction"].tolist() == ["up", "down", "up"]
    assert run("predict", "m.safetensors", "rows.parquet", "-o", "p.parquet", "--probabilities") == 0
    frame = pd.read_parquet("p.parquet")
    assert frame.columns.tolist() == [*table, "prediction", "probability", "probability:down", "probability:up"]
    pd.testing.assert_frame_equal(frame[["id", "size", "n"]], table[["id", "size", "n"]])
    assert sorted(path.name for path in Path().iterdir()) == sorted(
        ["m.safetensors", "rows.csv", "rows.parquet", "p.csv", "p.tsv", "p.parquet"]
    )
    capsys.readouterr()
    assert run("predict", "m.safetensors", "rows.csv", "-o", "-") == 0
    assert predicted(capsys.readouterr().out) == ["up", "down", "up"]


def test_parts_of_a_file_give_the_same_as_the_whole(run, monkeypatch: pytest.MonkeyPatch) -> None:
    save_classifier(columns=("size",))
    table = pd.DataFrame({"size": np.linspace(0, 1, 25), "note": [None] * 20 + list("abcde"), "kind": ["up"] * 25})
    table.to_csv("rows.csv", index=False)
    table.to_parquet("rows.parquet", row_group_size=10)
    for suffix in ("csv", "parquet"):
        assert run("predict", "m.safetensors", f"rows.{suffix}", "-o", f"whole.{suffix}") == 0
    monkeypatch.setattr("tikas.data.tables.CHUNK_ROWS", 7)
    for suffix in ("csv", "parquet"):
        assert run("predict", "m.safetensors", f"rows.{suffix}", "-o", f"parts.{suffix}") == 0
    assert Path("parts.csv").read_bytes() == Path("whole.csv").read_bytes()
    pd.testing.assert_frame_equal(pd.read_parquet("parts.parquet"), pd.read_parquet("whole.parquet"))
    assert pd.read_parquet("parts.parquet")["note"].tolist()[-1] == "e"


def test_rows_from_standard_input_are_predicted(run, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    save_classifier(columns=("size",))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"size\n0.9\n0.1\n")))
    assert run("predict", "m.safetensors", "-") == 0
    assert predicted(capsys.readouterr().out) == ["up", "down"]


@pytest.mark.parametrize(
    ("content", "options", "named"),
    [
        ("Size,kind\n1,up\n", [], ["lacks 1 column", "'size'", "did you mean 'Size'"]),
        ("size,kind\n1,up\n", ["--id", "knd"], ["no column 'knd' (--id)", "'kind'"]),
        ("size,kind\n1,up\n", ["--target", "label"], ["no column 'label' (--target)"]),
        ("size,prediction\n1,up\n", [], ["a column 'prediction' already", "--id"]),
        ("size,kind\n1,up\n", ["-o", "p.xlsx"], ["'.xlsx'", ".parquet"]),
        ("size,kind\nbig,up\n,up\n0.5,up\n", [], ["'size': 2 cells", "row 1: 'big'"]),
        ("size,size\n1,2\n", [], ["more than one column size"]),
        ("size\n", [], ["no rows"]),
    ],
)
def test_a_mistake_is_named_and_leaves_no_file(content: str, options: list[str], named: list[str], run, capsys) -> None:
    save_classifier(columns=("size",))
    Path("rows.csv").write_text(content)
    assert (
        run("predict", "m.safetensors", "rows.csv", *(options if "-o" in options else [*options, "-o", "p.csv"])) == 2
    )
    line = capsys.readouterr().err.splitlines()[-1]
    assert [text for text in named if text not in line] == []
    assert {path.name for path in Path().iterdir()} == {"m.safetensors", "rows.csv"}


def test_predictions_are_compared_with_a_target(run, capsys) -> None:
    save_classifier()
    Path("rows.csv").write_text("kind,size\nup,0.9\nup,0.1\n,0.2\n")
    for options in ([], ["--probabilities"]):
        assert run("predict", "m.safetensors", "rows.csv", "--target", "kind", *options) == 0
        assert capsys.readouterr().err == "error on the 2 labeled rows: 50.00 %\n"
    Path("rows.csv").write_text("kind,size\n,0.9\n")
    assert run("predict", "m.safetensors", "rows.csv", "--target", "kind") == 0
    assert capsys.readouterr().err == ""


def test_probabilities_have_a_column_for_each_class_and_are_written_to_a_file(run, capsys) -> None:
    save_classifier()
    Path("rows.csv").write_text("size\n0.9\n0.1\n")
    options = ["--probabilities", "-o", "predictions/p.csv"]
    assert run("predict", "m.safetensors", "rows.csv", *options) == 0
    assert capsys.readouterr().out == ""
    frame = pd.read_csv("predictions/p.csv")
    assert frame.columns.tolist() == ["size", "prediction", "probability", "probability:down", "probability:up"]
    expected = tikas.load("m.safetensors").predict_proba([[0.9], [0.1]])
    np.testing.assert_allclose(frame[["probability:down", "probability:up"]], expected, atol=1e-6)
    np.testing.assert_allclose(frame["probability"], expected.max(1), atol=1e-6)
    assert Path("predictions/p.csv").read_text().splitlines()[1].endswith(",".join(f"{p:.6f}" for p in expected[0]))


@pytest.mark.parametrize(
    ("classes", "labels", "error", "unknown"),
    [
        (("up", "down"), ["down", "downwards", ""], "2 labeled rows: 50.00 %", "downwards"),
        (("0", "1"), ["1", "1.0", "0"], "3 labeled rows: 33.33 %", None),
        ((0, 1), ["1", "1.0", "?"], "2 labeled rows: 0.00 %", None),
        ((0, 1), ["1", "one", "0"], "3 labeled rows: 66.67 %", "one"),
        (("0123", "123"), ["123", "0123", "123"], "3 labeled rows: 33.33 %", None),
        (("0123", "0124"), ["0124", "0124", ""], "2 labeled rows: 0.00 %", None),
        (("EU", "NA"), ["NA", "EU", "?"], "2 labeled rows: 50.00 %", None),
        ((False, True), ["True", "True", "False"], "3 labeled rows: 33.33 %", None),
        ((0.0, 1.0), ["1", "0", "1"], "3 labeled rows: 33.33 %", None),
    ],
)
def test_labels_are_compared_as_numbers_or_as_text(
    classes: tuple[Any, Any], labels: list[str], error: str, unknown: str | None, run, capsys
) -> None:
    save_classifier(classes)
    Path("rows.csv").write_text("\n".join(["size,kind", *(f"1.0,{label}" for label in labels)]))
    assert run("predict", "m.safetensors", "rows.csv", "--target", "kind") == 0
    captured = capsys.readouterr()
    assert predicted(captured.out) == [str(classes[1])] * 3
    first, *warnings = captured.err.splitlines()
    assert first == f"error on the {error}"
    assert len(warnings) == (unknown is not None)
    assert unknown is None or repr(unknown) in warnings[0]


def test_values_are_predicted_and_compared(run, capsys) -> None:
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(200, 2)), columns=["a", "b"])
    model = tikas.LadderRegressor((8,), costs=0, epochs=60, random_state=0).fit(frame, frame["a"] * 3)
    model.save("m.safetensors")
    Path("rows.csv").write_text("b,a,value\n0,1,3\n0.5,-1,-3\n0,-0.333,-1\n0,0,\n")
    assert run("predict", "m.safetensors", "rows.csv", "--target", "value") == 0
    captured = capsys.readouterr()
    printed = [float(value) for value in predicted(captured.out)]
    rows = pd.DataFrame({"a": [1, -1, -0.333, 0], "b": [0, 0.5, 0, 0]})
    np.testing.assert_allclose(printed, model.predict(rows), rtol=1e-12)
    error = np.sqrt(np.mean(np.square(np.subtract(printed[:3], [3, -3, -1]))))  # -1 is a value like any other
    assert captured.err == f"RMSE on the 3 rows with a target: {error:.4g}\n"
    assert run("predict", "m.safetensors", "rows.csv", "--probabilities") == 2
    assert "--probabilities: m.safetensors" in capsys.readouterr().err
    Path("rows.csv").write_text("b,a,value\n0,1,\n0,0,\n")
    assert run("predict", "m.safetensors", "rows.csv", "--target", "value") == 0
    assert capsys.readouterr().err == ""


def test_columns_are_ignored_for_a_model_without_column_names(run, capsys) -> None:
    Path("rows.csv").write_text("id,name,size\n1,bob,0.05\n2,eve,0.95\n")
    save_classifier()
    assert run("predict", "m.safetensors", "rows.csv") == 2
    assert "--ignore name" in capsys.readouterr().err
    assert run("predict", "m.safetensors", "rows.csv", "--ignore", "name", "id") == 0
    assert predicted(capsys.readouterr().out) == ["down", "up"]


@pytest.mark.filterwarnings("default")
def test_a_table_without_a_header_is_read_in_the_order_of_the_models_columns(run, capsys) -> None:
    save_classifier(columns=("size",))
    Path("rows.csv").write_text("0.9\n0.1\n")
    assert run("predict", "m.safetensors", "rows.csv") == 0
    captured = capsys.readouterr()
    assert predicted(captured.out) == ["up", "down"]
    assert captured.err.startswith("tikas: warning: rows.csv has no header")


@pytest.mark.parametrize("network", [["16"], ["conv 4 3", "max 2"]], ids=["dense", "convolutional"])
def test_images_are_predicted_from_an_array_unless_channels_are_last(network: list[str], run, capsys) -> None:
    assert run("train", "--network", *network, *QUICK) == 0
    images = load_dataset("digits")[1].rows[:7]
    for layout in (images, images[:, 0], images.reshape(7, -1)):
        np.save("rows.npy", layout)
        capsys.readouterr()
        assert run("predict", "m.safetensors", "rows.npy", "--device", "cpu") == 0
        assert len(capsys.readouterr().out.splitlines()) == 8
    np.save("rows.npy", np.moveaxis(images, 1, -1))
    assert run("predict", "m.safetensors", "rows.npy") == 2
    message = capsys.readouterr().err
    assert "(7, 8, 8, 1)" in message
    assert "(7, 1, 8, 8)" in message


def test_arrays_of_images_are_flattened_for_a_model_of_flat_rows(run, capsys) -> None:
    train, test = load_dataset("digits")
    flat = train.rows[:200].reshape(200, -1)
    model = tikas.LadderClassifier((4,), epochs=1, random_state=0).fit(flat, train.targets[:200])
    model.save("m.safetensors")
    np.savez("rows.npz", x=test.rows[:5], y=test.targets[:5])
    assert run("predict", "m.safetensors", "rows.npz") == 0
    captured = capsys.readouterr()
    assert predicted(captured.out) == [str(each) for each in model.predict(test.rows[:5].reshape(5, -1))]
    assert captured.err.startswith("error on the 5 labeled rows: ")


@pytest.mark.filterwarnings("default")
def test_rows_of_another_scale_are_predicted_with_a_warning(run, capsys) -> None:
    assert run("train", "--network", "16", *QUICK) == 0
    np.save("rows.npy", 255 * load_dataset("digits")[1].rows[:7])
    capsys.readouterr()
    assert run("predict", "m.safetensors", "rows.npy") == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("tikas: warning: ")
    assert "255" in line


def test_images_of_a_folder_are_predicted_and_compared_with_their_folders(photos: Path, run, capsys) -> None:
    options = [
        "--network",
        "conv 8 3",
        "max 2",
        "--epochs",
        "30",
        "--batch-size",
        "20",
        "--quiet",
        "-o",
        "m.safetensors",
    ]
    assert run("train", "--data", str(photos), *options, "--no-baseline") == 0
    capsys.readouterr()
    assert run("predict", "m.safetensors", str(photos / "test")) == 0
    captured = capsys.readouterr()
    header, first, *_ = captured.out.splitlines()
    assert header == "file,prediction,probability"
    assert first.startswith("one/one25.png,one,0.")
    assert float(captured.err.removeprefix("error on the 20 labeled rows: ").removesuffix(" %\n")) <= 20
    assert run("predict", "m.safetensors", str(photos / "unlabeled"), "--probabilities") == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines()[0] == "file,prediction,probability,probability:one,probability:zero"
    assert (len(captured.out.splitlines()), captured.err) == (11, "")
    for option in ("--target", "--ignore"):
        assert run("predict", "m.safetensors", str(photos), option, "kind") == 2
        assert option in capsys.readouterr().err.splitlines()[-1]
    image = photos / "test" / "one" / "one25.png"
    Path("empty").mkdir()
    for file, named in ((image, str(image.parent)), (Path("empty"), "empty")):
        assert run("predict", "m.safetensors", str(file)) == 2
        assert named in capsys.readouterr().err


def test_files_that_cannot_be_read_are_named_in_the_error(run, capsys) -> None:
    save_classifier()
    Path("empty.csv").write_text("")
    Path("foreign.safetensors").write_bytes(b"not a model")
    np.save("wide.npy", np.zeros((3, 5), np.float32))
    for model, file, named in (
        ("m.safetensors", "empty.csv", "empty.csv"),
        ("m.safetensors", "absent.csv", "absent.csv"),
        ("foreign.safetensors", "wide.npy", "foreign.safetensors"),
        ("m.safetensors", "wide.npy", "5 features"),
    ):
        assert run("predict", model, file) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert named in line


def test_output_that_cannot_be_written_is_reported_before_the_model_is_read(run, capsys) -> None:
    Path("file").write_text("in the way")
    assert run("predict", "absent.safetensors", "rows.csv", "--output", "file/p.csv") == 1
    assert "--output file/p.csv" in capsys.readouterr().err


def test_neither_the_model_nor_the_rows_are_overwritten(run, capsys) -> None:
    save_classifier()
    Path("rows.csv").write_text("size\n0.9\n")
    Path("link.csv").symlink_to("rows.csv")
    before = {path: path.read_bytes() for path in Path().iterdir()}
    for output in ("rows.csv", "link.csv", "m.safetensors"):
        assert run("predict", "m.safetensors", "rows.csv", "--output", output) == 2
        assert f"--output {output}" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in Path().iterdir()} == before


def test_a_missing_file_and_a_gap_in_a_column_of_the_model_are_named(run, capsys) -> None:
    save_classifier(columns=("size",))
    assert run("predict", "m.safetensors", "missing.csv") == 2
    assert "missing.csv does not exist" in capsys.readouterr().err
    Path("rows.csv").write_text("name,size\nbob,\neve,1\n")
    assert run("predict", "m.safetensors", "rows.csv") == 2
    error = capsys.readouterr().err
    assert "'size': 1 cell (row 1: '')" in error
    assert "--ignore" not in error  # the model needs the column
