"""`tikas report`, and `--report` of the other commands: which rows they judge by, and what the model file remembers."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_iris

import tikas

Run = Callable[..., int]
QUICK = ("--epochs", "2", "--network", "16", "--quiet", "--no-baseline")


@pytest.fixture
def table() -> Path:
    """Iris as CSV: 100 rows labeled, 50 not."""
    iris = load_iris(as_frame=True)
    kinds = iris.target_names[iris.target].astype(object)
    kinds[np.random.default_rng(0).permutation(150)[:50]] = ""
    iris.data.assign(kind=kinds).to_csv("iris.csv", index=False)
    return Path("iris.csv")


def verdict(path: str) -> str:
    found = re.search(r'class="verdict">\s*<p>(.*?)</p>', Path(path).read_text())
    assert found
    return found[1]


@pytest.mark.usefixtures("undrawn")
def test_the_page_of_train_and_of_its_file_name_the_same_error(
    run: Run, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ("train", "--data", str(table), "--target", "kind", "--labels", "12", "--validation", "20")
    assert run(*command, *QUICK, "--report", "train.html") == 0
    assert "report written to train.html" in capsys.readouterr().out
    assert "of 88 labels held out" in verdict("train.html")
    training = tikas.load("models/iris.safetensors").training_
    assert training.command == " ".join(("tikas", *command, *QUICK, "--report", "train.html"))
    assert (training.data, training.target, training.labels, training.validation) == ("iris.csv", "kind", 12, 20)
    assert training.error is not None
    assert training.error.rows == 88

    assert run("report", "models/iris.safetensors") == 0
    assert run("report", "models/iris.safetensors", "--data", str(table), "-o", "same.html") == 0
    assert verdict("models/iris.html") == verdict("same.html") == verdict("train.html")
    assert "taken for new" not in Path("same.html").read_text()


@pytest.mark.usefixtures("undrawn")
def test_rows_of_another_file_are_judged_by_all_their_labels(run: Run, table: Path) -> None:
    assert run("train", "--data", str(table), "--target", "kind", "--folds", "0", *QUICK) == 0
    pd.read_csv(table).iloc[:60].to_csv("new.csv", index=False)
    labeled = int(pd.read_csv("new.csv")["kind"].notna().sum())
    assert run("report", "models/iris.safetensors", "--data", "new.csv", "--map", "tsne", "-o", "new.html") == 0
    assert f"of {labeled} labeled rows of new.csv" in verdict("new.html")
    assert "taken for new" in Path("new.html").read_text()
    assert "shown by t-SNE" in Path("new.html").read_text()
    assert run("report", "models/iris.safetensors", "--data", str(table), "--output", "same.html") == 0
    assert "has not been measured" in verdict("same.html")  # all labels were learned


@pytest.mark.usefixtures("undrawn")
def test_a_data_set_is_judged_by_its_test_rows(run: Run) -> None:
    assert run("train", *QUICK, "--report", "train.html") == 0
    assert run("report", "models/digits.safetensors", "--data", "digits", "-o", "digits.html") == 0
    assert "of 500 test rows" in verdict("digits.html")
    assert verdict("digits.html") == verdict("train.html")


@pytest.mark.usefixtures("undrawn")
def test_a_folder_of_images_is_judged_by_its_test_images_or_by_all(run: Run, photos: Path) -> None:
    settings = ("--batch-size", "20", "--output", "photos.model", *QUICK)
    assert run("train", "--data", str(photos), *settings) == 0
    assert run("report", "photos.model", "--data", str(photos), "-o", "same.html") == 0
    assert "of 20 test rows" in verdict("same.html")
    assert run("report", "photos.model", "--data", str(photos / "test"), "-o", "new.html") == 0
    assert "of 20 labeled images of test" in verdict("new.html")


@pytest.mark.usefixtures("undrawn")
def test_a_regression_is_reported(run: Run, table: Path) -> None:
    command = (
        "train",
        "--data",
        str(table),
        "--target",
        "petal width (cm)",
        "--task",
        "regression",
        "--ignore",
        "kind",
    )
    assert run(*command, "--validation", "50", *QUICK, "--report", "page.html") == 0
    assert "On 50 labels held out it is off by" in verdict("page.html")


@pytest.mark.parametrize(
    "arguments",
    [
        ("report", "absent.safetensors"),
        ("report", "iris.csv"),
        ("train", "--report", "."),
        ("train", "--data", "iris.csv", "--target", "kind", "--report", "iris.csv"),
    ],
)
def test_a_wrong_path_is_an_error_before_anything_is_trained(
    arguments: tuple[str, ...], run: Run, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = table.read_bytes()
    assert run(*arguments) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert table.read_bytes() == before
    assert not Path("models").exists()


def test_reproduce_writes_a_page_of_the_records(run: Run) -> None:
    results = Path(__file__).parents[2] / "results"
    assert run("reproduce", "table1/gamma", "--list", "--results", str(results), "--report", "page.html") == 0
    page = Path("page.html").read_text()
    assert "3 of the 3 experiments are measured" in verdict("page.html")
    assert "3.737 ± 2.644" in page
    assert "3.06 ± 1.44" in page
    assert page.count("<img") == 3
    assert run("reproduce", "table1/gamma", "--list", "--results", "nowhere", "--report", "page.html") == 0
    assert "None of the 3 experiments is measured" in verdict("page.html")
