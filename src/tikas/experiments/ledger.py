"""The ledger: what the records of a folder hold, by what was measured and with which seed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tikas.experiments.records import Record, read
from tikas.training.recipe import Recipe

Key = tuple[object, ...]


def recipe_key(recipe: Recipe, attached: int | None = None) -> Key:
    """What a member trained by a recipe is filed under.

    Recipes are compared as values, so that a field which a later version adds, with its default, does not part old
    records from new ones.

    Examples
    --------
    >>> recipe_key(Recipe(costs=(1, 0))) == recipe_key(Recipe(costs=[1.0, 0.0]))
    True
    >>> recipe_key(Recipe(precision="exact")) == recipe_key(Recipe())
    False
    """
    return ("recipe", recipe, attached)


def rival_key(method: str, settings: Mapping[str, Any], data: str, labels: int) -> Key:
    """What a rival's member is filed under.

    Examples
    --------
    >>> rival_key("svm", {"C": 10}, "mnist", 100) == rival_key("svm", {"C": 1}, "mnist", 100)
    False
    """
    return ("rival", method, json.dumps(settings, sort_keys=True), data, labels)


def figure_of(recipe: Recipe) -> str:
    """What a recipe is judged by: the error on the rows that it holds out, or on the test rows if it holds out none.

    Examples
    --------
    >>> figure_of(Recipe(validation=10_000)), figure_of(Recipe())
    ('validation_error', 'test_error')
    """
    return "validation_error" if recipe.validation else "test_error"


class Ledger:
    """Records by what was measured, then by seed.

    Of two records of one member the first counts: in the order of the places that are read, in a folder by the names
    of its files, in a file by line.

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
        return cls.of(record for path in files.values() for record in read(path))

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


def _files(place: Path) -> list[Path]:
    if place.is_dir():
        return sorted(place.glob("*.jsonl"))
    return [place] if place.exists() else []


def _key_of(record: Record) -> Key | None:
    """What a record is filed under; None for one that is about something else, or lacks the figure that it is for."""
    if not isinstance(record.get("seed"), int):
        return None
    try:
        key, figure = _key_and_figure(record)
    except (KeyError, TypeError, ValueError):  # of a version that knows other settings
        return None
    return key if isinstance(record.get(figure), int | float) else None


def _key_and_figure(record: Record) -> tuple[Key, str]:
    if "rival" in record:
        rival = record["rival"]
        return rival_key(rival["method"], rival["settings"], rival["data"], rival["labels"]), "test_error"
    recipe = Recipe.from_json(json.dumps(record["recipe"]))
    return recipe_key(recipe, record.get("attached")), figure_of(recipe)
