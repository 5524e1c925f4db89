"""Convert the records of revision 7fcccce and before, whose recipes held the data set, and check every figure.

    git worktree add ../before 7fcccce
    python benchmarks/convert_records.py ../before/results results
    make tables
    python benchmarks/convert_records.py ../before/results results --check

The first call writes the converted files, the second compares them, and the tables made from them, with the originals:
every record must be found with all its figures, and every row of a table must have the same figures as before.

Data set, number of labels and held-out rows move from the recipe to the record, the hash of the recipe goes, `cell`
becomes `experiment`, and methods of scikit-learn are recorded under `method`, with the data set and labels beside it.
"""

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = {
    "company.jsonl": "ensemble-accuracy.jsonl",
    "fleet.jsonl": "ensemble.jsonl",
    "fleet-before-layout.jsonl": "ensemble-before-layout.jsonl",
    "lanes.jsonl": "side-streams.jsonl",
    "rivals.jsonl": "other-methods.jsonl",
}
"""New names of files."""
BENCHMARKS = {"fleet": "ensemble", "fleets": "ensemble", "company": "ensemble-accuracy"}
"""New names of benchmarks."""
TITLES = {
    "label-spreading": "LabelSpreading",
    "self-training-svm": "SelfTrainingClassifier over an SVM",
    "self-training-logistic": "SelfTrainingClassifier over logistic regression",
    "mlp": "MLPClassifier on the labels alone",
    "svm": "SVM on the labels alone",
}


def convert(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record in the new form; all values but names are the same."""
    new: dict[str, Any] = {}
    for name, value in record.items():
        if name == "cell":
            new["experiment"] = value.replace("rivals/", "methods/")
        elif name == "recipe":
            recipe = dict(value)
            new |= {moved: recipe.pop(moved) for moved in ("data", "labels", "validation")}
            new["recipe"] = recipe
        elif name == "rival":
            new |= {"data": value["data"], "labels": value["labels"]}
            method = value["method"]
            new["method"] = {"name": method, "title": TITLES[method], "settings": value["settings"]}
        elif name == "benchmark":
            new["benchmark"] = BENCHMARKS.get(value, value)
        elif name != "name":
            new[name] = value
    return new


def records_of(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the new name of its file, and each record of a folder."""
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            yield NAMES.get(path.name, path.name), json.loads(line)


def write(old: Path, new: Path) -> None:
    """Write all records of a folder in the new form to another, under their new file names."""
    lines: dict[str, list[str]] = {}
    for file, record in records_of(old):
        lines.setdefault(file, []).append(json.dumps(convert(record)) + "\n")
    for name in NAMES:
        (new / name).unlink(missing_ok=True)
    for name, converted in lines.items():
        (new / name).write_text("".join(converted))
        print(f"{new / name}: {len(converted)} records")


def check_records(old: Path, new: Path) -> None:
    """Check that the converted records are these, in this order, and are found by what they measured."""
    from tikas.paper.records import Records, record_key

    before, after = (sorted(records_of(folder), key=lambda each: each[0]) for folder in (old, new))
    assert [(file, _numbers(record)) for file, record in before] == [(file, _numbers(record)) for file, record in after]
    found, members = Records.read(new), 0
    for _, record in after:
        if "benchmark" not in record and ("recipe" in record or "method" in record):
            first = found.members(record_key(record))[record["seed"]]
            members += first == record
    print(f"{len(after)} records converted, {members} count for an experiment")


def _numbers(record: Any) -> list[float]:
    """Return all numbers of a record, in the order of size: moving fields does not change them."""
    values: list[Any] = [record]
    numbers: list[float] = []
    while values:
        value = values.pop()
        if isinstance(value, dict):
            values += [each for name, each in value.items() if name != "name"]
        elif isinstance(value, list):
            values += value
        elif isinstance(value, int | float):
            numbers.append(value)
    return sorted(numbers)


def check_tables(old: Path, new: Path) -> None:
    """Check that each row of the old tables has its figures, and in the same order, in a row of the new ones."""
    before = figures_of((old / "README.md").read_text())
    after = figures_of((new / "README.md").read_text()) + figures_of((new / "studies.md").read_text())
    missing = [row for row in before if row not in after]
    for name, figures in missing:
        print("not found:", name, figures)
    print(f"{len(before) - len(missing)} of {len(before)} rows of tables have the same figures")
    raise SystemExit(1 if missing else 0)


def figures_of(page: str) -> list[tuple[str, list[str]]]:
    """Return the rows of all tables: the name of an experiment, and the texts of all figures and verdicts."""
    rows = []
    for line in page.splitlines():
        if line.startswith("|") and not set(line) <= set("|-: "):
            first, *cells = line.strip("| ").split(" | ")
            name = first.strip("`*").replace("rivals/", "methods/")
            named = name if "/" in name or "(" not in name else ""  # titles of rows were reworded
            figures = re.findall(r"-?\d+\.?\d*|better|worse|compatible|untested|missing", " ".join(cells))
            rows.append((named if "/" in named else "", figures))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, help="the folder with the records as they were")
    parser.add_argument("new", type=Path, help="the folder for the converted records")
    parser.add_argument("--check", action="store_true", help="compare records and tables instead of writing")
    options = parser.parse_args()
    if options.check:
        check_records(options.old, options.new)
        check_tables(options.old, options.new)
    else:
        write(options.old, options.new)


if __name__ == "__main__":
    main()
