"""The ledger: what the records of a folder hold, by what was measured and with which seed."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tikas.experiments.records import append
from tikas.training.recipe import Recipe

Record = Mapping[str, Any]
Key = tuple[object, ...]


class DamagedRecordWarning(UserWarning):
    """A line of a file of records cannot be read."""


def recipe_key(recipe: Recipe, attached: int | None = None) -> Key:
    """What a member trained by a recipe is filed under. Recipes are compared as values, so that a field which a later
    version adds, with its default, does not part old records from new ones."""
    return ("recipe", recipe, attached)


def rival_key(method: str, settings: Mapping[str, Any], data: str, labels: int) -> Key:
    """What a rival's member is filed under."""
    return ("rival", method, json.dumps(settings, sort_keys=True), data, labels)


def figure_of(recipe: Recipe) -> str:
    """What a recipe is judged by: the error on the rows that it holds out, or on the test rows if it holds out none."""
    return "validation_error" if recipe.validation else "test_error"


class Ledger:
    """Records by what was measured, then by seed; of two records of one member the first read counts.

    Examples
    --------
    >>> ledger = Ledger.of([{"recipe": {"epochs": 5}, "seed": 3, "test_error": 2.0}])
    >>> sorted(ledger.members(recipe_key(Recipe(epochs=5))))
    [3]
    >>> ledger.missing(recipe_key(Recipe(epochs=5)), range(5))
    [0, 1, 2, 4]
    """

    def __init__(self) -> None:
        self._members: dict[Key, dict[int, Record]] = {}

    @classmethod
    def of(cls, records: Iterable[Record]) -> Ledger:
        """File these records; those that are about something else (a benchmark's) are left out."""
        ledger = cls()
        for record in records:
            ledger.enter(record)
        return ledger

    @classmethod
    def read(cls, *places: Path) -> Ledger:
        """File the records of these files, and of all files of records in these folders."""
        files = {path.resolve(): path for place in places for path in _files(place)}
        return cls.of(record for path in sorted(files.values()) for record in read_lines(path))

    def enter(self, record: Record) -> None:
        """File one record."""
        key = _key_of(record)
        if key is not None:
            self._members.setdefault(key, {}).setdefault(int(record["seed"]), record)

    def members(self, key: Key) -> dict[int, Record]:
        """The records of what was measured, by seed."""
        return dict(sorted(self._members.get(key, {}).items()))

    def missing(self, key: Key, seeds: Iterable[int]) -> list[int]:
        """The seeds that have no record yet."""
        finished = self._members.get(key, {})
        return [seed for seed in seeds if seed not in finished]


def read_lines(path: Path) -> Iterator[Record]:
    """The records of a file. A line that cannot be read, such as one that a crash cut short, is told and passed over.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True, action="always") as caught:
    ...     path = Path(folder, "records.jsonl")
    ...     _ = path.write_text('{"seed": 0}\\n{"se')
    ...     print(list(read_lines(path)), caught[0].message)
    [{'seed': 0}] ...records.jsonl, line 2 is no whole record (cut short by a crash?) and is passed over.
    """
    for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError:  # neither JSON nor, where a character was cut, UTF-8
            record = None
        if isinstance(record, dict):
            yield record
        else:
            message = f"{path}, line {number} is no whole record (cut short by a crash?) and is passed over."
            warnings.warn(message, DamagedRecordWarning, stacklevel=2)


def add(path: Path, record: Record) -> None:
    """Add a record to a file at once, on a line of its own even where a crash cut the last one short."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not (path.read_bytes() or b"\n").endswith(b"\n"):
        with path.open("ab") as file:
            file.write(b"\n")
    append(path, dict(record))


def _files(place: Path) -> list[Path]:
    if place.is_dir():
        return sorted(place.glob("*.jsonl"))
    return [place] if place.exists() else []


def _key_of(record: Record) -> Key | None:
    if not isinstance(record.get("seed"), int):
        return None
    rival = record.get("rival")
    if isinstance(rival, dict):
        return rival_key(rival["method"], rival["settings"], rival["data"], rival["labels"])
    if not isinstance(record.get("recipe"), dict):
        return None
    try:
        recipe = Recipe.from_json(json.dumps(record["recipe"]))
    except (TypeError, ValueError):  # of a version that knows other settings
        return None
    if figure_of(recipe) not in record:
        return None
    return recipe_key(recipe, record.get("attached"))
