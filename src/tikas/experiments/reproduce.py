"""Measuring what is missing: members in fleets, and a record for every one as it finishes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from tikas.experiments.appendix import build_for
from tikas.experiments.cells import Cell
from tikas.experiments.ledger import Key, Ledger
from tikas.experiments.protocol import Setting, training_rows, try_settings
from tikas.experiments.records import append, errors_of, member_record, revision
from tikas.experiments.rivals import Rival, measure_rival
from tikas.experiments.rows import Rows
from tikas.experiments.run import measure
from tikas.experiments.tasks import Fleet, Member, Task, by_task, families, fleets_of, key_of, seeds_in_words, title_of
from tikas.training.devices import suitable_device
from tikas.training.fit import Progress, Trained, TrainingDivergedError
from tikas.training.keeping import Folder, Keeping

OnEpoch = Callable[[Progress], None] | None
Load = Callable[[Task], Rows]
Watch = Callable[[str], AbstractContextManager[OnEpoch]]

UNFINISHED = "unfinished"
"""The folder, beside the records, of fleets that are under way."""


class InterruptedMeasuringError(Exception):
    """Ctrl-C came while a fleet trained; what unfinished members had learned until then is not a result."""


@dataclass(frozen=True)
class Outcome:
    """How measuring went: members measured now, members that were finished before, and what failed, by its name.

    Examples
    --------
    >>> Outcome(measured=8, finished_before=2)
    Outcome(measured=8, finished_before=2, failures=(), interrupted=False)
    """

    measured: int = 0
    finished_before: int = 0
    failures: tuple[tuple[str, Exception], ...] = ()
    interrupted: bool = False


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

    The seeds of a task train as one fleet, and so do neighbouring cells, and settings of a study, that one program can
    train; where a member diverges, the others go on without it. A task that fails is told of in the outcome, and the
    next one goes on. Ctrl-C ends it all; what was finished until then is on file, what was under way is kept beside it
    once a minute, and the next call goes on from there. So does a record that cannot be written.

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
        The largest fleet: more missing members than that train one fleet after another.
    device
        Where to train; by default on a GPU if there is one.
    watch
        Gives a context for a title, and in it what to call after every epoch.
    tell
        Called with a line for every task of a fleet that is finished.

    Examples
    --------
    >>> import tempfile
    >>> from tikas.experiments.cells import Cell
    >>> from tikas.experiments.rows import load_rows
    >>> from tikas.training.recipe import Recipe
    >>> cell = Cell("table0/quick/50", Recipe(data="digits", labels=50, network=(16,), epochs=1), seeds=2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     out = Path(folder, "records.jsonl")
    ...     first = reproduce([cell], Ledger(), out, lambda _: load_rows("digits"))
    ...     again = reproduce([cell], Ledger.read(out), out, lambda _: load_rows("digits"))
    >>> first.measured, again.measured, again.finished_before
    (2, 0, 2)
    """
    outcome, asked_for = Outcome(), set[tuple[Key, int]]()
    begun_with = revision()  # what runs was loaded by now; the tree may change under it
    for family in families(tasks):
        missing: list[Member] = []
        for task in family:
            key = key_of(task)
            others = [seed for seed in range(task.seeds if seeds is None else seeds) if (key, seed) not in asked_for]
            asked_for.update((key, seed) for seed in others)  # tasks may share a recipe, or come to when shortened
            lacking = ledger.missing(key, others)
            missing += [Member(task, seed) for seed in lacking]
            outcome = replace(outcome, finished_before=outcome.finished_before + len(others) - len(lacking))
        fleets = fleets_of(missing, most)
        while fleets:
            fleet, *fleets = fleets
            records: list[Mapping[str, Any]] = []
            try:
                with watch(title_of(fleet)) as on_epoch:
                    for found in _measure(fleet, load(fleet[0].task), device, on_epoch, out.parent / UNFINISHED):
                        record = {**found, "revision": begun_with}
                        _write(out, record)
                        ledger.enter(record)
                        records.append(record)
                        outcome = replace(outcome, measured=outcome.measured + 1)
            except (InterruptedMeasuringError, KeyboardInterrupt):
                return replace(outcome, interrupted=True)
            except _UnwrittenRecordError as error:
                return replace(outcome, failures=(*outcome.failures, (str(out), error)))
            except (ArithmeticError, MemoryError, OSError, RuntimeError, ValueError) as error:
                # Without its traceback, which would keep the fleet's memory from the next one.
                lost, fleets = _without_failed(fleet, error.with_traceback(None), fleets, tell)
                outcome = replace(outcome, failures=(*outcome.failures, *lost.items()))
            for _, of_a_task in groupby(records, key=lambda record: record["cell"]):
                tell(_line(list(of_a_task)))
    return outcome


class _UnwrittenRecordError(Exception):
    """There is no use in measuring what cannot be written down."""


def _write(out: Path, record: Mapping[str, Any]) -> None:
    try:
        append(out, record)
    except OSError as error:
        raise _UnwrittenRecordError(
            f"A record could not be written ({error.strerror or error}), so nothing more is measured. Make room; "
            "the same command then goes on from what is kept."
        ) from error


def _without_failed(
    fleet: Fleet, error: Exception, later: list[Fleet], tell: Callable[[str], object]
) -> tuple[dict[str, Exception], list[Fleet]]:
    """What is lost by this error, by its title, and the fleets that go on."""
    if isinstance(error, TrainingDivergedError):  # which comes when the others are measured
        said = {fleet[place]: words for place, words in error.members.items()}
        return {title_of(members): ArithmeticError(said[members[0]]) for members in by_task([*said])}, later
    alone = by_task(fleet)
    if len(alone) > 1 and isinstance(error, ArithmeticError | ValueError):
        tell(f"{title_of(fleet)}: {error} They go on one after another.")
        return {}, [*alone, *later]
    failed = {members[0].task.name: error for members in alone}
    left = ([member for member in other if member.task.name not in failed] for other in later)
    return failed, [members for members in left if members]


def _line(records: Sequence[Mapping[str, Any]]) -> str:
    kind = "validation" if "validation_error" in records[0] else "test"
    errors = [record[f"{kind}_error"] for record in records]
    spread = f" ± {stdev(errors):.2f}" if len(errors) > 1 else ""
    seconds = sum(record["seconds"] / record["members"] for record in records)
    which = f"{records[0]['cell']}, {seeds_in_words([record['seed'] for record in records])}"
    return f"{which}: {kind} error {mean(errors):.2f}{spread} %, {seconds:.1f} s"


def _measure(
    fleet: Fleet, rows: Rows, device: str | None, on_epoch: OnEpoch, unfinished: Path
) -> Iterator[dict[str, Any]]:
    """A record of every member, whole when it is given; a member is kept until the next record is asked for."""
    task, seeds = fleet[0].task, [member.seed for member in fleet]
    if isinstance(task, Rival):
        for seed in seeds:
            yield measure_rival(task, seed, rows)
        return
    keep = Keeping(Folder(unfinished), what=f"attached to {task.attached}")
    trained, errors, seconds = _train(fleet, rows, device, on_epoch, keep)
    yield from _records(fleet, trained, errors, seconds, device, keep)
    if trained.diverged:
        raise TrainingDivergedError(trained.diverged)


def _train(
    fleet: Fleet, rows: Rows, device: str | None, on_epoch: OnEpoch, keep: Keeping
) -> tuple[Trained, list[dict[str, float]], float]:
    """The members of cells or of settings, the figures of each, and the time of all."""
    task, seeds = fleet[0].task, [member.seed for member in fleet]
    if isinstance(task, Setting):
        settings = [member.task for member in fleet if isinstance(member.task, Setting)]
        trial = try_settings(settings, seeds, training_rows(rows), device=device, on_epoch=on_epoch, keep=keep)
        errors = [
            {"validation_error": error, "validation_error_labeled_statistics": as_authors}
            for error, as_authors in zip(trial.validation_errors, trial.labeled_statistics_errors, strict=True)
        ]
        return trial.trained, errors, trial.seconds
    cells = [member.task for member in fleet if isinstance(member.task, Cell)]
    build = build_for(cells[0].attached)
    recipes = [cell.recipe for cell in cells]
    measured = measure(recipes, seeds, rows, device=device, on_epoch=on_epoch, build=build, keep=keep)
    return measured.trained, errors_of(measured), measured.seconds


def _records(
    fleet: Fleet,
    trained: Trained,
    errors: Sequence[Mapping[str, float]],
    seconds: float,
    device: str | None,
    keep: Keeping,
) -> Iterator[dict[str, Any]]:
    """Of the members that were trained to their end: a fleet that memory had split may be interrupted in between.

    Where that was so, or some of it was trained before or diverged, the seconds are not those of the members; where
    memory or several GPUs parted them, those of an epoch are not.
    """
    where = suitable_device(device)
    at_one_go = not (keep.continued or trained.interrupted or trained.diverged)
    parted = len({tuple(line["seconds"] for line in history) for history in trained.histories}) > 1
    for (task, seed), name, history, figures in zip(fleet, keep.names, trained.histories, errors, strict=True):
        if not isinstance(task, Rival) and len(history) == task.recipe.epochs:
            record = member_record(task.recipe, seed, history, figures, len(fleet), seconds, where)
            if parted:
                del record["seconds_per_epoch"]
            yield {
                "cell": task.name,
                **({} if task.attached is None else {"attached": task.attached}),
                **record,
                **({} if at_one_go else {"continued_after_epochs": keep.continued.get(name, [])}),
            }
            keep.discard([name])
    if trained.stop_asked:
        raise InterruptedMeasuringError(f"{title_of(fleet)} were interrupted")
