"""Likely mistakes with tables: what `tikas train` and `tikas predict` say to each, and how they end."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import typer

import tikas

QUICK = ["--network", "4", "--epochs", "1", "--batch-size", "20", "--quiet", "--folds", "0"]
QUICK += ["--output", "m.safetensors"]
RNG = np.random.default_rng(0)


def table(rows: int = 60, **columns: Any) -> pd.DataFrame:
    """A table of patients, with other columns or changed ones."""
    frame = pd.DataFrame(
        {
            "age": np.random.default_rng(1).integers(20, 90, rows),
            "weight": np.random.default_rng(2).normal(70, 10, rows).round(1),
            "city": np.random.default_rng(3).choice(["Oulu", "Turku"], rows),
            "diagnosis": ["sick", "well", ""] * (rows // 3),
        }
    )
    return frame.assign(**columns)


def numbers(**changes: Any) -> Callable[[pd.DataFrame], pd.DataFrame]:
    return lambda frame: frame.assign(**changes)


def put(column: str, values: dict[int, Any]) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """Change some cells of a column."""

    def change(frame: pd.DataFrame) -> pd.DataFrame:
        cells = frame[column].astype(object)
        cells.iloc[list(values)] = list(values.values())
        return frame.assign(**{column: cells})

    return change


MISTAKES: dict[str, tuple[Callable[[pd.DataFrame], pd.DataFrame], list[str], int, list[str]]] = {
    # what was done: the change of the table, options, the exit code, and what is named
    "target not named": (numbers(), [], 2, ["--target", "age, weight, city, diagnosis"]),
    "target misspelled": (numbers(), ["--target", "Diagnose"], 2, ["'Diagnose'", "Did you mean 'diagnosis'"]),
    "ignored column misspelled": (numbers(), ["--target", "diagnosis", "--ignore", "wieght"], 2, ["'weight'"]),
    "two misspelled": (numbers(), ["--target", "diagnoses", "--numeric", "agee"], 2, ["'diagnosis'", "'age'"]),
    "target given twice": (
        numbers(),
        ["--target", "diagnosis", "--ignore", "diagnosis"],
        2,
        ["'diagnosis'", "--ignore", "--target"],
    ),
    "unlabeled rows called unknown": (
        put("diagnosis", dict.fromkeys(range(2, 60, 3), "unknown")),
        ["--target", "diagnosis"],
        2,
        ["20 rows", "diagnosis='unknown'", "--unlabeled unknown", "--unlabeled ''"],
    ),
    "unlabeled rows called ? and NA": (
        put("diagnosis", {2: "?", 5: "NA", 8: "?"}),
        ["--target", "diagnosis"],
        2,
        ["'?'", "'NA'", "2 rows", "1 row"],
    ),
    "unlabeled value misspelled": (
        put("diagnosis", {2: "unknown"}),
        ["--target", "diagnosis", "--unlabeled", "unknwon"],
        2,
        ["'unknwon'", "Did you mean 'unknown'"],
    ),
    "classes -1 and 1": (numbers(diagnosis=[-1, 1] * 30), ["--target", "diagnosis"], 2, ["'-1'", "30 rows"]),
    "one class only": (numbers(diagnosis=["sick", ""] * 30), ["--target", "diagnosis"], 2, ["one class", "'sick'"]),
    "no label at all": (numbers(diagnosis=""), ["--target", "diagnosis"], 2, ["None of the 60 rows"]),
    "classes for a regression": (
        numbers(),
        ["--target", "diagnosis", "--task", "regression"],
        2,
        ["40 cells", "'sick' in row 1", "--task classification"],
    ),
    "values for a classification": (
        numbers(diagnosis=np.linspace(0, 1, 60)),
        ["--target", "diagnosis"],
        2,
        ["continuous", "--task regression"],
    ),
    "class that differs in case": (put("diagnosis", {0: "Sick"}), ["--target", "diagnosis"], 0, ["'Sick' and 'sick'"]),
    "class with one label": (put("diagnosis", {0: "ill"}), ["--target", "diagnosis"], 0, ["single label: ill"]),
    "an identifier": (
        numbers(patient=[f"P{i}" for i in range(60)]),
        ["--target", "diagnosis"],
        0,
        ["left out: patient (identifies the rows)"],
    ),
    "row numbers of pandas": (
        lambda frame: frame.reset_index().rename(columns={"index": ""}),
        ["--target", "diagnosis"],
        0,
        ["left out: Unnamed: 0 (identifies the rows)"],
    ),
    "free text": (
        numbers(note=[f"a long note about patient {i}" for i in range(60)]),
        ["--target", "diagnosis"],
        0,
        ["left out: note (free text)"],
    ),
    "a constant column": (numbers(unit="kg"), ["--target", "diagnosis"], 0, ["left out: unit (the same in all rows)"]),
    "an empty column": (numbers(spare=""), ["--target", "diagnosis"], 0, ["left out: spare (empty)"]),
    "the target as a feature": (
        numbers(label=["sick", "well", "sick"] * 20),
        ["--target", "diagnosis"],
        0,
        ["'label'", "equals the target", "--ignore"],
    ),
    "a column that follows from the label": (
        numbers(treated=[3.5, 1.5, ""] * 20),
        ["--target", "diagnosis"],
        0,
        ["'treated'", "exactly where there is a label"],
    ),
    "gaps as -999": (put("weight", {3: -999, 9: -999}), ["--target", "diagnosis"], 0, ["-999 in 2 rows", "'weight'"]),
    "a unit in a number": (
        put("weight", {3: "71 kg"}),
        ["--target", "diagnosis"],
        0,
        ["1 cell", "'71 kg'", "'weight'"],
    ),
    "an infinite number": (put("weight", {3: "inf"}), ["--target", "diagnosis"], 0, ["'weight'", "infinite", "1 cell"]),
    "a category in two spellings": (put("city", {3: "oulu"}), ["--target", "diagnosis"], 0, ["'Oulu' and 'oulu'"]),
    "rows twice": (
        lambda frame: pd.concat([frame, frame[:5]]),
        ["--target", "diagnosis"],
        0,
        ["5 rows repeat earlier ones"],
    ),
    "the same row with two labels": (
        lambda frame: pd.concat([frame, frame[:1].assign(diagnosis="well")]),
        ["--target", "diagnosis"],
        0,
        ["2 labeled rows equal others"],
    ),
    "nothing to learn from": (
        lambda frame: frame[["diagnosis"]].assign(patient=[f"P{i}" for i in range(60)]),
        ["--target", "diagnosis"],
        2,
        ["no column is left", "patient (identifies the rows)", "--categorical"],
    ),
    "a table without preprocessing": (
        numbers(),
        ["--target", "diagnosis", "--preprocess", "none"],
        2,
        ["could not convert", "preprocess='columns'"],
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_with_a_table_is_named(mistake: str, run, capsys) -> None:
    change, options, code, named = MISTAKES[mistake]
    change(table()).to_csv("patients.csv", index=False)
    assert run("train", "--data", "patients.csv", *options, *QUICK) == code
    captured = capsys.readouterr()
    said = captured.out if code == 0 else captured.err.splitlines()[-1]
    said = " ".join(said.split())
    assert [text for text in named if text not in said] == []
    assert Path("m.safetensors").exists() == (code == 0)


FILES: dict[str, tuple[bytes, list[str]]] = {
    "a comma in a number": (b"a,b,y\n1,5,2,x\n2,3,z\n1,7,3,x\n", ["expected 3 fields", "line 2: 4 fields", "2 lines"]),
    "an Excel file with the suffix of CSV": (b"PK\x03\x04\x14\x00\x06\x00\x08", ["not text"]),
    "no header": (b"1,2,3\n4,5,6\n", ["no header line", "'y'"]),
    "a name twice": (b"a,a,y\n1,2,x\n2,3,z\n", ["2 columns are named 'a'"]),
    "an empty file": (b"", ["No columns"]),
    "a header alone": (b"a,y\n", ["no rows"]),
    "an open quote": (b'a,y\n1,"x\n2,z\n', ["EOF inside string"]),
}


@pytest.mark.parametrize("mistake", FILES)
def test_a_mistake_in_a_file_is_named(mistake: str, run, capsys) -> None:
    content, named = FILES[mistake]
    Path("rows.csv").write_bytes(content)
    assert run("train", "--data", "rows.csv", "--target", "y", *QUICK) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("tikas: rows.csv")
    assert [text for text in named if text not in line] == []


def test_unclear_labels_are_asked_about_on_a_terminal(run, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    put("diagnosis", {2: "unknown", 5: "none", 8: "none"})(table()).to_csv("patients.csv", index=False)
    questions: list[str] = []

    def answer(question: str, **_: object) -> bool:
        questions.append(question)
        return "'unknown'" in question

    monkeypatch.setattr("sys.stdin", type("Terminal", (io.StringIO,), {"isatty": lambda _: True})())
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setattr(typer, "confirm", answer)
    assert run("train", "--data", "patients.csv", "--target", "diagnosis", *QUICK) == 0
    assert [("'unknown'" in each, "2 rows" in each) for each in questions] == [(False, True), (True, False)]
    assert tikas.load("m.safetensors").classes_.tolist() == ["none", "sick", "well"]
    assert "none 2, sick 20, well 20" in capsys.readouterr().out


def test_what_was_read_is_printed_before_training(run, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = table(date=pd.date_range("2020-01-01", periods=60).strftime("%d.%m.%Y"), smoker=[True, False, None] * 20)
    frame.to_csv("patients.csv", index=False, sep=";", decimal=",")

    def stop(*_: object, **__: object) -> None:
        raise ArithmeticError("stopped")

    monkeypatch.setattr(tikas.LadderClassifier, "fit", stop)
    assert run("train", "--data", "patients.csv", "--target", "diagnosis", *QUICK) == 1
    printed = capsys.readouterr().out
    facts = [
        "patients.csv",
        "semicolons",
        "decimal commas",
        "60 rows",
        "5 columns",
        "40 of 60 rows",
        "sick 20, well 20",
    ]
    facts += ["unlabeled: 20", "2 numbers: age, weight", "city (2 values)", "smoker (20 gaps)", "date: date"]
    assert [fact for fact in facts if fact not in printed] == []


def test_a_table_is_learned_predicted_and_kept_from_csv_to_parquet(run, capsys) -> None:
    sick = RNG.random(300) < 0.5
    frame = pd.DataFrame(
        {
            "patient": [f"P{i:03}" for i in range(300)],
            "size": np.where(RNG.random(300) < 0.1, np.nan, 10 * sick + RNG.normal(size=300)).round(2),
            "city": np.where(RNG.random(300) < 0.1, None, RNG.choice(["Oulu", "Turku", "Kemi"], 300)),
            "day": (pd.Timestamp("2020-01-01") + pd.to_timedelta(RNG.integers(0, 300, 300), "D")).strftime("%d.%m.%Y"),
            "diagnosis": np.where(np.arange(300) < 60, np.where(sick, "sick", "well"), ""),
        }
    )
    frame.to_csv("patients.csv", index=False, sep=";", decimal=",")
    options = ["--network", "16", "--epochs", "40", "--quiet", "--no-baseline", "--folds", "2"]
    assert run("train", "--data", "patients.csv", "--target", "diagnosis", *options) == 0
    new = frame.drop(columns="diagnosis").assign(city="Nowhere", truth=np.where(sick, "sick", "well"))
    new.loc[:9, "day"] = None
    new.to_csv("new.csv", index=False)
    model = "models/patients.safetensors"
    assert run("predict", model, "new.csv", "--id", "patient", "--target", "truth", "-o", "out.parquet") == 0
    error = float(capsys.readouterr().err.removeprefix("error on the 300 labeled rows: ").removesuffix(" %\n"))
    assert error < 15
    predicted = pd.read_parquet("out.parquet")
    assert predicted.columns.tolist() == ["patient", "prediction", "probability"]
    assert predicted["patient"].tolist() == frame["patient"].tolist()
    expected = tikas.load(model).predict(new[["size", "city", "day"]])
    assert predicted["prediction"].tolist() == expected.tolist()


def test_columns_are_read_as_what_the_options_say(run, capsys) -> None:
    frame = table(zip=[10000 + i % 3 for i in range(60)], visit=range(60))
    frame.to_csv("patients.csv", index=False)
    options = ["--target", "diagnosis", "--categorical", "zip", "age", "--numeric", "visit", "--ignore", "city"]
    assert run("train", "--data", "patients.csv", *options, *QUICK) == 0
    kinds = {column.name: column.kind for column in tikas.load("m.safetensors").encoder_.columns}
    assert kinds == {"age": "category", "weight": "number", "zip": "category", "visit": "number"}
    frame.to_csv("patients.csv", index=False)
    assert run("predict", "m.safetensors", "patients.csv", "--id", "visit") == 0
    assert len(capsys.readouterr().out.splitlines()) > 60


@pytest.mark.parametrize("option", ["--categorical", "--numeric", "--ignore", "--unlabeled"])
def test_options_of_tables_are_refused_with_other_data(option: str, run, capsys) -> None:
    assert run("train", option, "a", *QUICK) == 2
    assert option in capsys.readouterr().err.splitlines()[-1]
