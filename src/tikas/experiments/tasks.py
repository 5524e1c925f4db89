"""What can be measured: cells, settings and rivals, and which of their members train together as a fleet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

from tikas.experiments.cells import Cell
from tikas.experiments.ledger import Key, recipe_key, rival_key
from tikas.experiments.paper import CURVE, TABLES
from tikas.experiments.protocol import Setting
from tikas.experiments.rivals import RIVALS, Rival
from tikas.experiments.studies import STUDIES

Task = Cell | Setting | Rival

CELLS: tuple[Cell, ...] = tuple(cell for table in TABLES for cell in table.cells) + CURVE
TASKS: tuple[Task, ...] = (*CELLS, *RIVALS, *STUDIES)


def key_of(task: Task) -> Key:
    """What the members of a task are filed under.

    Examples
    --------
    >>> key_of(CELLS[0]) == recipe_key(CELLS[0].recipe)
    True
    """
    if isinstance(task, Rival):
        return rival_key(task.method, task.settings, task.data, task.labels)
    return recipe_key(task.recipe, task.attached)


def shortened(task: Task, epochs: int | None) -> Task:
    """The same with another number of epochs, to see that it runs: its records are filed under another key.

    Examples
    --------
    >>> shortened(CELLS[0], epochs=3).recipe.epochs, shortened(CELLS[0], None) is CELLS[0]
    (3, True)
    """
    if epochs is None or isinstance(task, Rival):
        return task
    return replace(task, recipe=replace(task.recipe, epochs=epochs))


class Member(NamedTuple):
    """One training of a task.

    Examples
    --------
    >>> Member(CELLS[0], seed=3).task.name
    'table1/baseline/100'
    """

    task: Task
    seed: int


Fleet = list[Member]
"""Members that train together, those of a task next to each other."""


def families(tasks: Iterable[Task]) -> Iterator[list[Task]]:
    """Tasks whose members can train together: neighbouring cells or settings of one program, and any rival by itself.

    Examples
    --------
    >>> tasks = [task for task in TASKS if task.name.startswith(("table1/gamma", "study/gamma"))]
    >>> [len(family) for family in families(tasks)]  # 100 and 1000 labels together, those with all of them apart
    [2, 1, 8, 8, 8]
    """
    for _, family in groupby(tasks, key=lambda task: task.name if isinstance(task, Rival) else task.program):
        yield list(family)


def fleets_of(members: Fleet, most: int) -> list[Fleet]:
    """These members in fleets of up to `most`; rivals are measured one by one.

    Examples
    --------
    >>> [len(fleet) for fleet in fleets_of([Member(CELLS[0], seed) for seed in range(10)], most=4)]
    [4, 4, 2]
    """
    size = 1 if any(isinstance(member.task, Rival) for member in members) else most
    return [members[first : first + size] for first in range(0, len(members), size)]


def by_task(fleet: Fleet) -> list[Fleet]:
    """The members of every task by themselves.

    Examples
    --------
    >>> [len(fleet) for fleet in by_task([Member(STUDIES[0], 0), Member(STUDIES[0], 1), Member(STUDIES[1], 0)])]
    [2, 1]
    """
    return [list(members) for _, members in groupby(fleet, key=lambda member: member.task.name)]


def title_of(fleet: Fleet) -> str:
    """A fleet in words.

    Examples
    --------
    >>> title_of([Member(CELLS[0], 0), Member(CELLS[0], 1)])
    'table1/baseline/100, 2 seeds'
    >>> title_of([Member(CELLS[0], 0), Member(CELLS[1], 0)])
    'table1/baseline/100 and table1/baseline/1000, 2 members'
    >>> title_of([Member(STUDIES[0], 0), Member(STUDIES[1], 0)])
    'study/baseline-noise/100, 2 settings, 2 members'
    """
    first = fleet[0].task
    names = [members[0].task.name for members in by_task(fleet)]
    if len(names) == 1:
        return f"{first.name}, {seeds_in_words([member.seed for member in fleet])}"
    what = f"{first.study}, {len(names)} settings" if isinstance(first, Setting) else " and ".join(names)
    return f"{what}, {len(fleet)} members"


def seeds_in_words(seeds: list[int]) -> str:
    """How many, or which if it is one.

    Examples
    --------
    >>> seeds_in_words([3]), seeds_in_words([3, 4])
    ('seed 3', '2 seeds')
    """
    return f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} seeds"
