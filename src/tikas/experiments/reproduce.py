"""Measuring what is missing: cells, settings and rivals, seeds as fleets, a record for every member as it finishes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

import torch

from tikas.experiments.appendix import build_for
from tikas.experiments.cells import Cell
from tikas.experiments.ledger import Key, Ledger, recipe_key, rival_key
from tikas.experiments.paper import CURVE, TABLES
from tikas.experiments.protocol import Setting, training_rows, try_setting
from tikas.experiments.records import append, member_records
from tikas.experiments.rivals import RIVALS, Rival, measure_rival
from tikas.experiments.run import Rows, Run, run
from tikas.experiments.studies import STUDIES
from tikas.training.fit import Progress

Task = Cell | Setting | Rival
OnEpoch = Callable[[Progress], None] | None
Load = Callable[[Task], Rows]
Watch = Callable[[str], AbstractContextManager[OnEpoch]]

CELLS: tuple[Cell, ...] = tuple(cell for table in TABLES for cell in table.cells) + CURVE
TASKS: tuple[Task, ...] = (*CELLS, *RIVALS, *STUDIES)


class InterruptedMeasuringError(Exception):
    """Ctrl-C came while a fleet trained; what it had learned until then is not a result."""


@dataclass(frozen=True)
class Outcome:
    """How measuring went: members measured now, members that were finished before, and what failed, by its name."""

    measured: int = 0
    finished_before: int = 0
    failures: tuple[tuple[str, Exception], ...] = ()
    interrupted: bool = False


def key_of(task: Task) -> Key:
    """What the members of a task are filed under."""
    if isinstance(task, Rival):
        return rival_key(task.method, task.settings, task.data, task.labels)
    return recipe_key(task.recipe, task.attached)


def shortened(task: Task, epochs: int | None) -> Task:
    """The same with another number of epochs, to see that it runs; its records never count as the task's own."""
    if epochs is None or isinstance(task, Rival):
        return task
    return replace(task, recipe=replace(task.recipe, epochs=epochs))


def reproduce(
    tasks: Iterable[Task],
    ledger: Ledger,
    out: Path,
    load: Load,
    *,
    seeds: int | None = None,
    most: int = 40,
    device: str | None = None,
    watch: Watch = lambda _: nullcontext(),
    tell: Callable[[str], object] = lambda _: None,
) -> Outcome:
    """Measure every member that the ledger does not hold, and add a record of each to a file as soon as it is there.

    A task that fails is told of in the outcome, and the next one goes on. Ctrl-C ends it all; what was finished until
    then is on file, and the next call goes on from there.

    Parameters
    ----------
    tasks
        What to measure.
    ledger
        What is measured already; it is kept up to date.
    out
        Where records go.
    load
        Gives the rows of a task.
    seeds
        How many seeds of each; by default as many as each asks for.
    most
        The largest fleet: more missing seeds than that train one fleet after another.
    device
        Where to train; by default on a GPU if there is one.
    watch
        Gives a context for a title, and in it what to call after every epoch.
    tell
        Called with a line for every fleet that is finished.
    """
    outcome = Outcome()
    for task in tasks:
        wanted = range(task.seeds if seeds is None else seeds)
        missing = ledger.missing(key_of(task), wanted)
        outcome = replace(outcome, finished_before=outcome.finished_before + len(wanted) - len(missing))
        try:
            for fleet in _fleets(missing, 1 if isinstance(task, Rival) else most):
                records = []
                with watch(f"{task.name}, {_seeds_in_words(fleet)}") as on_epoch:
                    for record in _measure(task, fleet, load(task), device, on_epoch):
                        append(out, record)
                        ledger.enter(record)
                        records.append(record)
                        outcome = replace(outcome, measured=outcome.measured + 1)
                tell(_line(task, fleet, records))
        except (InterruptedMeasuringError, KeyboardInterrupt):
            return replace(outcome, interrupted=True)
        except (ArithmeticError, OSError, RuntimeError, ValueError) as error:
            # Without its traceback, which would keep the fleet's memory from the next one.
            failure = (task.name, error.with_traceback(None))
            outcome = replace(outcome, failures=(*outcome.failures, failure))
    return outcome


def _fleets(seeds: Sequence[int], most: int) -> Iterator[list[int]]:
    for first in range(0, len(seeds), most):
        yield list(seeds[first : first + most])


def _seeds_in_words(seeds: Sequence[int]) -> str:
    return f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} seeds"


def _line(task: Task, seeds: Sequence[int], records: Sequence[Mapping[str, Any]]) -> str:
    kind = "validation" if isinstance(task, Setting) else "test"
    errors = [record[f"{kind}_error"] for record in records]
    spread = f" ± {stdev(errors):.2f}" if len(errors) > 1 else ""
    seconds = sum(record["seconds"] / record["members"] for record in records)
    return f"{task.name}, {_seeds_in_words(seeds)}: {kind} error {mean(errors):.2f}{spread} %, {seconds:.1f} s"


def _measure(
    task: Task, seeds: list[int], rows: Rows, device: str | None, on_epoch: OnEpoch
) -> Iterator[dict[str, Any]]:
    """A record of every member, whole when it is given."""
    if isinstance(task, Rival):
        for seed in seeds:
            yield measure_rival(task, seed, rows)
    elif isinstance(task, Setting):
        trial = try_setting(task, seeds, training_rows(rows), device=device, on_epoch=on_epoch)
        for record, error in zip(_records(trial.run, task, seeds, device), trial.validation_errors, strict=True):
            yield {**record, "validation_error": error}
    else:
        build = build_for(task.attached)
        outcome = run(task.recipe, seeds, rows, device=device, on_epoch=on_epoch, build=build)
        yield from _records(outcome, task, seeds, device)


def _records(outcome: Run, task: Cell | Setting, seeds: list[int], device: str | None) -> Iterator[dict[str, Any]]:
    if outcome.trained.interrupted:
        raise InterruptedMeasuringError(f"{task.name} was interrupted")
    where = device or ("cuda" if torch.cuda.is_available() else "cpu")
    for member, record in enumerate(member_records(outcome, task.recipe, seeds, where)):
        yield {
            "cell": task.name,
            **({} if task.attached is None else {"attached": task.attached}),
            **record,
            "seconds_per_epoch": median(line["seconds"] for line in outcome.trained.histories[member]),
        }
