"""The ledger: what the records of a folder hold, by what was measured and with which seed."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from reprlib import repr as shortly
from typing import Any, NamedTuple

from tikas.experiments.records import DamagedRecordWarning, Record, read_with_places
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
    of its files, in a file by line. A member's record that lacks a required field, or holds an impossible value,
    is passed over with a `DamagedRecordWarning`: that member has yet to be measured.

    Examples
    --------
    >>> record = {"recipe": {"epochs": 5}, "seed": 3, "test_error": 2.0, "seconds": 60.0, "hardware": "a GPU"}
    >>> ledger = Ledger.of([record])
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
        ledger = cls()
        for path in files.values():
            for place, record in read_with_places(path):
                ledger.enter(record, place)
        return ledger

    def enter(self, record: Record, place: str = "A record") -> None:
        """File one record; `place` is what a warning calls it."""
        if not _is_of_a_member(record):
            return
        try:
            key = _key_of(record)
        except ValueError as error:
            warnings.warn(f"{place}: {error} The record is passed over.", DamagedRecordWarning, stacklevel=2)
        else:
            self._members.setdefault(key, {}).setdefault(record["seed"], record)

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


def _is_of_a_member(record: Record) -> bool:
    named = "cell" in record or any(isinstance(record.get(name), Mapping) for name in ("recipe", "rival"))
    return named and "benchmark" not in record


class _Kind(NamedTuple):
    """What a field of a record must be."""

    words: str
    holds: Callable[[Any], bool]


def _is_number(value: Any, least: float = 0, most: float = sys.float_info.max) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most


def _is_whole(value: Any, least: int = 0) -> bool:
    return isinstance(value, int) and _is_number(value, least)


FIELDS = _Kind("fields by their names", lambda value: isinstance(value, Mapping))
TEXT = _Kind("a text", lambda value: isinstance(value, str))
SEED = _Kind("a whole number of at least 0", _is_whole)
PERCENTAGE = _Kind("a number from 0 to 100", lambda value: _is_number(value, most=100))
SECONDS = _Kind("a finite number of at least 0", _is_number)
COUNT = _Kind("a whole number of at least 1", lambda value: _is_whole(value, least=1))
RUNG = _Kind("the number of a rung, or null", lambda value: value is None or _is_whole(value))


def _key_of(record: Record) -> Key:
    """What a member's record is filed under; a ValueError says what is wrong with one that does not count."""
    key, figure = _rival_and_figure(record) if "rival" in record else _recipe_and_figure(record)
    for name, kind in (("seed", SEED), (figure, PERCENTAGE), ("hardware", TEXT), ("seconds", SECONDS)):
        _require(record, name, kind)
    for name, kind in (
        (f"{figure}_labeled_statistics", PERCENTAGE),
        ("members", COUNT),
        ("seconds_per_epoch", SECONDS),
    ):
        if name in record:  # some came with later versions
            _require(record, name, kind)
    return key


def _rival_and_figure(record: Record) -> tuple[Key, str]:
    _require(record, "rival", FIELDS)
    rival = record["rival"]
    for name, kind in (("method", TEXT), ("settings", FIELDS), ("data", TEXT), ("labels", COUNT)):
        _require(rival, name, kind)
    return rival_key(rival["method"], rival["settings"], rival["data"], rival["labels"]), "test_error"


def _recipe_and_figure(record: Record) -> tuple[Key, str]:
    _require(record, "recipe", FIELDS)
    _require(record, "attached", RUNG)
    try:
        recipe = Recipe.from_json(json.dumps(record["recipe"]))
    except (OverflowError, TypeError, ValueError) as error:
        problem = str(error).rstrip(".")
        raise ValueError(f"recipe: {problem}. Another version of tikas may have written it.") from error
    _require(vars(recipe), "data", TEXT)
    return recipe_key(recipe, record.get("attached")), figure_of(recipe)


def _require(fields: Mapping[str, Any], name: str, kind: _Kind) -> None:
    if not kind.holds(fields.get(name)):
        given = shortly(fields[name]) if name in fields else "missing"
        raise ValueError(f"{name} is {given}; expected {kind.words}. Mend the line or remove it.")
