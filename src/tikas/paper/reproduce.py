"""Measure experiments: train the members that have no record yet in ensembles, and append a record for each."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache, partial
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch

from tikas.data.datasets import Dataset, load_dataset
from tikas.data.splits import Split, split
from tikas.data.transforms import TRANSFORMS
from tikas.model.ladder import Model
from tikas.paper.autoencoder import build_autoencoder
from tikas.paper.experiments import Experiment, Summary
from tikas.paper.records import Records, append_record, hardware, revision, versions
from tikas.training.callbacks import progress_bar
from tikas.training.checkpoint import Checkpointer
from tikas.training.ensemble import to_device
from tikas.training.environment import full_precision, pick_device
from tikas.training.recipe import Preprocess, Recipe
from tikas.training.trainer import Build, Trainer, TrainingDivergedError, TrainingResult, error_of

SNAPSHOTS = "unfinished"
"""Folder beside the records with the snapshots of members that are training."""


class Member(NamedTuple):
    """One training: an experiment and a seed."""

    experiment: Experiment
    seed: int


@dataclass
class Outcome:
    """What was done: members measured, those measured before, and what failed, by name."""

    measured: int = 0
    finished_before: int = 0
    failures: dict[str, str] = field(default_factory=dict)
    interrupted: bool = False


def reproduce(
    experiments: Iterable[Experiment],
    records: Records,
    output: Path,
    *,
    seeds: int | None = None,
    first_seed: int = 0,
    max_members: int = 40,
    data_dir: Path | None = None,
    device: str | None = None,
    quiet: bool = False,
) -> Outcome:
    """Measure every member that has no record, and append its record to a file as soon as its ensemble is finished.

    Neighboring experiments of one program train as one ensemble. An experiment that fails does not stop the others;
    Ctrl-C does, and so does a record that cannot be written. The same call resumes from the snapshots beside the file.

    Parameters
    ----------
    experiments : iterable of Experiment
    records : Records
        What is measured already; new records are added.
    output : Path
        The file for new records.
    seeds : int, optional
        Number of seeds of each experiment; by default its own.
    first_seed : int, default=0
    max_members : int, default=40
        The largest ensemble.
    data_dir : Path, optional
        The folder with the files of a data set.
    device : str, optional
        Default: a GPU if there is one.
    quiet : bool, default=False
        No progress bar.

    Examples
    --------
    >>> import tempfile
    >>> experiment = Experiment("table0/quick/50", 50, Recipe(network=(8,), epochs=1), data="digits", seeds=1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     outcome = reproduce([experiment], Records(), Path(folder, "records.jsonl"), quiet=True)
    table0/quick/50: test error ... %, 1 seed
    >>> outcome.measured, outcome.failures
    (1, {})
    """
    outcome, revision_at_start = Outcome(), revision()  # files may change while this runs
    for members in _ensembles(experiments, records, seeds, first_seed, max_members, outcome):
        # Without experiments of which another ensemble failed as a whole.
        ensemble = [member for member in members if member.experiment.name not in outcome.failures]
        if not ensemble:
            continue
        first = ensemble[0].experiment
        checkpointer = Checkpointer(output.parent / SNAPSHOTS, variant=f"attached to {first.attached}")
        found: dict[str, dict[str, Any]] = {}
        try:
            with progress_bar(shown=not quiet, title=_title(ensemble)) as callback:
                recipe = first.recipe
                rows = _load(first.data, recipe.preprocess, recipe.takes_maps, data_dir, device)
                trainer = Trainer(
                    [experiment.recipe for experiment, _ in ensemble],
                    device=device,
                    callbacks=[callback] if callback else [],
                    build=_build(first.attached),
                    checkpointer=checkpointer,
                )
                found = _measure(ensemble, trainer, *rows, checkpointer, outcome)
        except KeyboardInterrupt:
            outcome.interrupted = True
        except (ArithmeticError, MemoryError, OSError, RuntimeError, ValueError) as error:
            outcome.failures |= {member.experiment.name: str(error) for member in ensemble}
        for snapshot, record in found.items():
            record["revision"] = revision_at_start
            try:
                append_record(output, record)
            except OSError as error:
                outcome.failures[str(output)] = f"A record could not be written, so nothing more is measured: {error}."
                return outcome
            checkpointer.delete(snapshot)
            records.add(record)
            outcome.measured += 1
        for name, group in groupby(found.values(), key=lambda record: record["experiment"]):
            errors = Summary.of([record[first.figure] for record in group])
            figure = f"{first.figure.replace('_', ' ')} {errors.text()} %"
            print(f"{name}: {figure}, {_count(errors.runs, 'seed')}", flush=True)
        if outcome.interrupted:
            break
    return outcome


def _ensembles(
    experiments: Iterable[Experiment],
    records: Records,
    seeds: int | None,
    first_seed: int,
    max_members: int,
    outcome: Outcome,
) -> Iterator[list[Member]]:
    """Yield the members without a record, in ensembles of neighboring experiments of one program."""
    asked: set[Hashable] = set()  # experiments may have the same recipe
    for _, group in groupby(experiments, key=lambda experiment: experiment.program):
        missing = []
        for experiment in group:
            measured = records.members(experiment.key)
            for seed in range(first_seed, first_seed + (seeds or experiment.seeds)):
                if (experiment.key, seed) in asked:
                    continue
                asked.add((experiment.key, seed))
                if seed in measured:
                    outcome.finished_before += 1
                else:
                    missing.append(Member(experiment, seed))
        for first in range(0, len(missing), max_members):
            yield missing[first : first + max_members]


def _title(ensemble: Sequence[Member]) -> str:
    """Name the experiments of an ensemble and the number of its members."""
    names = list(dict.fromkeys(experiment.name for experiment, _ in ensemble))
    others = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{names[0]}{others}, {_count(len(ensemble), 'member')}"


def _count(number: int, name: str) -> str:
    return f"{number} {name}{'s' * (number != 1)}"


@lru_cache(maxsize=1)
def _load(
    data: str, preprocess: Preprocess, takes_maps: bool, data_dir: Path | None, device: str | None
) -> tuple[Dataset, Dataset]:
    """Return training and test rows as the network takes them; a transform is fitted on the training rows alone."""
    train, test = load_dataset(data, data_dir)
    rows = [torch.from_numpy(train.rows), torch.from_numpy(test.rows)]
    if preprocess != "none":
        transform = TRANSFORMS[preprocess].fit(rows[0], pick_device(device)).to("cpu")
        rows = [transform(each) for each in rows]
    if not takes_maps:
        rows = [each.flatten(1) for each in rows]
    return replace(train, rows=rows[0].numpy()), replace(test, rows=rows[1].numpy())


def _build(attached: int | None) -> Build:
    """Return what builds the members: ladders, or the appendix's autoencoders."""
    return Recipe.build if attached is None else partial(build_autoencoder, attached=attached)


def _measure(
    ensemble: Sequence[Member],
    trainer: Trainer,
    train: Dataset,
    test: Dataset,
    checkpointer: Checkpointer,
    outcome: Outcome,
) -> dict[str, dict[str, Any]]:
    """Train an ensemble, and return a record of each member that was trained to its end, by the key of its snapshot."""
    started = time.perf_counter()
    device = pick_device(trainer.device)
    splits = [_split(experiment, train, seed) for experiment, seed in ensemble]
    keys = [
        checkpointer.key(experiment.recipe, seed, chosen, train, device)
        for (experiment, seed), chosen in zip(ensemble, splits, strict=True)
    ]
    try:
        result = trainer.fit(train, splits, [seed for _, seed in ensemble])
    except TrainingDivergedError as error:
        result = TrainingResult(failed=dict(error.failed))
    outcome.interrupted = result.interrupted
    for index, reason in result.failed.items():
        experiment, seed = ensemble[index]
        outcome.failures[f"{experiment.name}, seed {seed}"] = reason
        checkpointer.delete(keys[index])
    errors = [
        _errors(ensemble[index].experiment, model, splits[index], train, test, device)
        for index, model in zip(result.indices, result.members, strict=True)
    ]
    seconds = time.perf_counter() - started

    # Seconds of an ensemble that was resumed, interrupted or lost members are not those of a whole run; seconds of an
    # epoch are not those of the ensemble if memory divided it.
    complete = not (checkpointer.resumed_after or result.interrupted or result.failed)
    divided = len({tuple(line["seconds"] for line in history) for history in result.histories}) > 1
    records = {}
    for index, history, figures in zip(result.indices, result.histories, errors, strict=True):
        experiment, seed = ensemble[index]
        if len(history) < experiment.recipe.epochs:
            continue
        record = {
            "experiment": experiment.name,
            "data": experiment.data,
            "labels": experiment.labels,
            "validation": experiment.validation,
            "attached": experiment.attached,
            "recipe": asdict(experiment.recipe),
            "seed": seed,
            **figures,
            "costs": {name: history[-1][name] for name in ("total", "supervised", "denoising")},
            "members": len(ensemble),
            "seconds": seconds,
            "seconds_per_epoch": median(line["seconds"] for line in history),
            "hardware": hardware(device),
            "versions": versions(),
        }
        if experiment.attached is None:
            del record["attached"]
        if divided:
            del record["seconds_per_epoch"]
        if not complete:
            record["continued_after_epochs"] = checkpointer.resumed_after.get(keys[index], [])
        records[keys[index]] = record
    return records


def _split(experiment: Experiment, train: Dataset, seed: int) -> Split:
    labels = None if experiment.labels == "all" else experiment.labels
    return split(train.targets, labels, validation=experiment.validation, seed=seed)


def _errors(
    experiment: Experiment, model: Model, chosen: Split, train: Dataset, test: Dataset, device: torch.device
) -> dict[str, float]:
    """Return the error on the test rows, or on held-out rows if there are any, with both kinds of statistics."""
    rows, targets = test.rows, test.targets
    if experiment.validation:
        rows, targets = train.rows[chosen.validation], train.targets[chosen.validation]
    measured = torch.from_numpy(rows).to(device), torch.from_numpy(targets).to(device)
    model = to_device(model, device)
    with full_precision():
        error = labeled_error = error_of(model, *measured)
        if experiment.labels != "all":
            model.calibrate(torch.from_numpy(train.rows[chosen.labeled]).to(device))
            labeled_error = error_of(model, *measured)
    return {experiment.figure: error, f"{experiment.figure}_labeled_statistics": labeled_error}
