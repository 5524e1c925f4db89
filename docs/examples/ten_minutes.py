"""Write docs/ten-minutes.md: make CSV files, run the commands of the page in an empty folder, and show their output.

    python docs/examples/ten_minutes.py

The rows are the 569 biopsies of scikit-learn's `load_breast_cancer`: ten measurements and the diagnosis are real. What
other files have beside that is added here: a patient's number, a hospital, a day, a size as a word (from the real
area), gaps, and decimal commas. Of 449 rows 50 keep their diagnosis; the other 120 rows are to be predicted.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer

PAGE = Path(__file__).parents[1] / "ten-minutes.md"
LABELS, NEW_ROWS = 50, 120
TEXT = """# Ten minutes with a CSV file

You have a file of patients, and a diagnosis for some of them. This page is what one types, and what tikas says; it is
written by `docs/examples/ten_minutes.py`, which runs the commands. The measurements and diagnoses are those of
scikit-learn's breast cancer data; the patients' numbers, hospitals, days and gaps were added to make it a file like
yours.

```console
$ head -4 diagnosis.csv
{head}
```

It has semicolons and decimal commas, an ID, a category with gaps, a date, numbers with gaps, and a diagnosis in 50 of
449 rows. Nothing has to be prepared.

## Train

```console
$ tikas train --data diagnosis.csv --target diagnosis
{train}
```

Before it trains, tikas says what it has read and what becomes of each column. **Read this part.** Is a column left out
that matters, or used although nobody knows it beforehand? `--ignore`, `--numeric` and `--categorical` change it:

```console
$ tikas train --data diagnosis.csv --target diagnosis --ignore hospital admitted --folds 0 --epochs 20 --quiet
{ignore}
```

The table at the end of the first command says how good the model is. There are no test rows, so the 50 labels are dealt
into five parts, and each part is predicted by a network that has not seen its rows. Beside the ladder stands the same
network without denoising costs, which learns from the labels alone. With so few labels the 95 % interval is wide; the
last sentence says whether the difference between the two is more than chance.

The seconds are those of a machine with two cores that other programs kept busy. `--folds 0` leaves the cross-validation
out, which takes about three times as long as the training itself.

## Predict

New rows may have gaps, hospitals that nobody has seen, and other columns; only the columns of the model are needed.

```console
$ tikas predict models/diagnosis.safetensors new.csv --id patient -o predictions.csv
$ head -4 predictions.csv
{predictions}
```

Without `--id` all columns are kept; `--probabilities` adds a column for each class; `-o predictions.parquet` writes
Parquet, and without `-o` the rows are printed. Here the true diagnoses of the new rows are known, so they can be
compared:

```console
$ tikas predict models/diagnosis.safetensors truth.csv --target diagnosis --id patient -o checked.csv
{error}
```

## When something is wrong with the file

A column that does not exist:

```console
$ tikas train --data diagnosis.csv --target Diagnose
{misspelled}
```

Labels that may mean that there is none. On a terminal tikas asks; elsewhere it stops and says what to type:

```console
$ sed 's/;$/;unknown/' diagnosis.csv > marked.csv
$ tikas train --data marked.csv --target diagnosis
{unclear}
$ tikas train --data marked.csv --target diagnosis --unlabeled unknown --folds 0 --epochs 20 --quiet
{decided}
```

## In Python

The same table with the same treatment of its columns:

```python
import pandas as pd
from tikas import LadderClassifier

table = pd.read_csv("diagnosis.csv", sep=";", decimal=",")
y = table.pop("diagnosis")  # NaN where there is no label
classifier = LadderClassifier(columns={{"patient": "ignored"}}).fit(table, y)
[(column.name, column.kind) for column in classifier.encoder_.columns]
```
"""


def make_tables(folder: Path) -> None:
    """Write diagnosis.csv, new.csv and truth.csv."""
    data, rng = load_breast_cancer(as_frame=True), np.random.default_rng(0)
    table = data.data.iloc[:, :10].round(4)
    rows = len(table)
    area = table["mean area"]
    table.insert(0, "patient", [f"P{number}" for number in 10_000 + rng.permutation(80_000)[:rows]])
    table["hospital"] = rng.choice(["Oulu", "Turku", "Kuopio", "Rauma"], rows, p=[0.5, 0.3, 0.19, 0.01])
    days = pd.to_timedelta(rng.integers(0, 900, rows), "D")
    table["admitted"] = (pd.Timestamp("2019-01-01") + days).strftime("%d.%m.%Y")
    table["size"] = np.where(area < 450, "small", np.where(area < 900, "medium", "large"))
    for column in ("mean texture", "hospital", "size"):
        table[column] = table[column].where(rng.random(rows) >= 0.08)
    table["diagnosis"] = np.where(data.target == 0, "malignant", "benign")
    order = rng.permutation(rows)
    known, new = table.iloc[order[NEW_ROWS:]].copy(), table.iloc[order[:NEW_ROWS]]
    known.iloc[LABELS:, -1] = ""
    options = {"index": False, "sep": ";", "decimal": ",", "lineterminator": "\n"}
    known.sample(frac=1, random_state=0).to_csv(folder / "diagnosis.csv", **options)
    new.drop(columns="diagnosis").to_csv(folder / "new.csv", **options)
    new.to_csv(folder / "truth.csv", **options)


def run(command: str, folder: Path) -> str:
    """Run a command as it is on the page, and return what it prints to a terminal of 100 columns."""
    tikas = f"{sys.executable} -m tikas"
    environment = os.environ | {"COLUMNS": "100"}
    done = subprocess.run(  # noqa: S602 (the commands are those of this file)
        command.replace("tikas ", f"{tikas} ", 1) if command.startswith("tikas ") else command,
        shell=True,
        cwd=folder,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    return "\n".join(line.rstrip() for line in done.stdout.rstrip().splitlines())


def render(folder: Path) -> str:
    """Return the page."""
    make_tables(folder)
    train = "tikas train --data diagnosis.csv --target diagnosis"
    predict = "tikas predict models/diagnosis.safetensors"
    outputs = {
        "head": run("head -4 diagnosis.csv", folder),
        "train": run(train, folder),
        "ignore": run(f"{train} --ignore hospital admitted --folds 0 --epochs 20 --quiet", folder),
    }
    run(f"{predict} new.csv --id patient -o predictions.csv", folder)
    outputs |= {
        "predictions": run("head -4 predictions.csv", folder),
        "error": run(f"{predict} truth.csv --target diagnosis --id patient -o checked.csv", folder),
        "misspelled": run("tikas train --data diagnosis.csv --target Diagnose", folder),
    }
    run("sed 's/;$/;unknown/' diagnosis.csv > marked.csv", folder)
    unlabeled = "tikas train --data marked.csv --target diagnosis"
    outputs |= {
        "unclear": run(unlabeled, folder),
        "decided": run(f"{unlabeled} --unlabeled unknown --folds 0 --epochs 20 --quiet", folder),
    }
    return TEXT.format(**outputs)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    with tempfile.TemporaryDirectory() as name:
        PAGE.write_text(render(Path(name)))
