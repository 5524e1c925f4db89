"""Measure experiments: train the members without a record, in ensembles, and append a record for each."""

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
from tikas.paper.autoencoder import Autoencoder
from tikas.paper.experiments import Experiment, Summary
from tikas.paper.records import Records, append_record, revision
from tikas.training.callbacks import progress_bar
from tikas.training.checkpoint import UNFINISHED, Checkpointer
from tikas.training.distributed import LostProcessError, join
from tikas.training.ensemble import to_device
from tikas.training.environment import full_precision, pick_device
from tikas.training.recipe import Preprocess, Recipe
from tikas.training.summary import hardware, versions
from tikas.training.trainer import Build, Trainer, error_of


class Member(NamedTuple):
    """A model to train: an experiment and a seed."""

    experiment: Experiment
    seed: int


@dataclass
class Outcome:
    """Result of `reproduce`: how many members were measured now and before, and reasons of failures by name."""

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

    Neighboring experiments with equal `ensemble_key` train as one ensemble. An experiment that fails does not stop the
    others; Ctrl-C does. The same call resumes from the snapshots beside the file. Processes of torchrun share the
    members of each ensemble, and the first writes the records.

    Parameters
    ----------
    experiments : iterable of Experiment
    records : Records
        The existing records; new ones are added.
    output : Path
        The file for new records.
    seeds : int, optional
        Number of seeds of each experiment; by default its own.
    first_seed : int, default=0
    max_members : int, default=40
        Largest number of members of an ensemble.
    data_dir : Path, optional
        The folder with the files of a data set.
    device : str, optional
        Default: a GPU if there is one.
    quiet : bool, default=False
        No progress bar.

    Raises
    ------
    OSError
        If a record cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> experiment = Experiment("table0/quick/50", 50, Recipe(network=(8,), epochs=1), data="digits", seeds=1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     outcome = reproduce([experiment], Records(), Path(folder, "records.jsonl"), quiet=True)
    table0/quick/50: test error ... % (seeds: 1)
    >>> outcome.measured, outcome.failures
    (1, {})
    """
    revision_at_start = revision()  # files may change while this runs
    members: dict[tuple[Hashable, int], Member] = {}  # experiments may share members
    for experiment in experiments:
        for seed in range(first_seed, first_seed + (seeds or experiment.seeds)):
            members.setdefault((experiment.key, seed), Member(experiment, seed))
    missing = [member for (key, seed), member in members.items() if seed not in records.members(key)]
    outcome = Outcome(finished_before=len(members) - len(missing))
    finished = [member for member in members.values() if member not in missing]
    if finished:  # their snapshots may have been left by a process that died before it deleted them
        _checkpointer(finished, output).delete(range(len(finished)))
    for ensemble in _ensembles(missing, max_members):
        first = ensemble[0].experiment
        checkpointer = _checkpointer(ensemble, output)
        new: dict[int, dict[str, Any]] = {}
        try:
            with progress_bar(shown=not quiet, title=_title(ensemble)) as callback:
                train, test = _load(first.data, first.recipe.preprocess, first.recipe.takes_maps, data_dir, device)
                recipes = [experiment.recipe for experiment, _ in ensemble]
                callbacks = [callback] if callback else []
                build: Build = Recipe.build
                if first.attached is not None:
                    build = partial(Autoencoder, attached=first.attached)
                trainer = Trainer(recipes, device=device, callbacks=callbacks, build=build, checkpointer=checkpointer)
                new = _measure(ensemble, trainer, train, test, checkpointer, outcome)
        except KeyboardInterrupt:
            outcome.interrupted = True
        except LostProcessError:
            raise
        except (ArithmeticError, MemoryError, OSError, RuntimeError, ValueError) as error:
            outcome.failures |= {member.experiment.name: str(error) for member in ensemble}
        for index, record in new.items():
            record["revision"] = revision_at_start
            append_record(output, record)
            checkpointer.delete([index])
            records.add(record)
            outcome.measured += 1
        for name, group in groupby(new.values(), key=lambda record: record["experiment"]):
            errors = Summary.of([record[first.error_field] for record in group])
            print(f"{name}: {first.error_field.replace('_', ' ')} {errors.text()} % (seeds: {errors.runs})", flush=True)
        if outcome.interrupted:
            break
    return outcome


def _ensembles(members: Iterable[Member], max_members: int) -> Iterator[list[Member]]:
    """Yield ensembles of neighboring experiments with equal `ensemble_key`."""
    for _, group in groupby(members, key=lambda member: member.experiment.ensemble_key):
        together = list(group)
        for first in range(0, len(together), max_members):
            yield together[first : first + max_members]


def _checkpointer(members: Sequence[Member], output: Path) -> Checkpointer:
    """Return what saves snapshots of members beside the file of records."""
    return Checkpointer(
        output.with_suffix(UNFINISHED),
        names=[f"{experiment.name.replace('/', '-')}-seed-{seed}" for experiment, seed in members],
        variant=f"attached to {members[0].experiment.attached}",
        save_last=True,
    )


def _title(ensemble: Sequence[Member]) -> str:
    """Return the names of the experiments of an ensemble, shortened, and the number of its members."""
    first, *others = dict.fromkeys(experiment.name for experiment, _ in ensemble)
    return f"{first}{f' and {len(others)} more' if others else ''} (members: {len(ensemble)})"


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


def _measure(
    ensemble: Sequence[Member],
    trainer: Trainer,
    train: Dataset,
    test: Dataset,
    checkpointer: Checkpointer,
    outcome: Outcome,
) -> dict[int, dict[str, Any]]:
    """Train an ensemble, and return a record of each member that was trained to its end, by its index.

    Of several processes the first measures the members, and the others return nothing.
    """
    started = time.perf_counter()
    device = pick_device(trainer.device)
    splits: list[Split] = []
    for experiment, seed in ensemble:
        labels = None if experiment.labels == "all" else experiment.labels
        splits.append(split(train.targets, labels, validation=experiment.validation, seed=seed))
    with join(device) as world:
        result = trainer.fit(train, splits, [seed for _, seed in ensemble])
    outcome.interrupted = result.interrupted
    for index, reason in result.failed.items():
        experiment, seed = ensemble[index]
        outcome.failures[f"{experiment.name}, seed {seed}"] = reason
    if not world.is_first:
        return {}

    records: dict[int, dict[str, Any]] = {}
    for index, model, history in zip(result.indices, result.members, result.histories, strict=True):
        experiment, seed = ensemble[index]
        if len(history) == experiment.recipe.epochs:
            records[index] = {
                "experiment": experiment.name,
                "data": experiment.data,
                "labels": experiment.labels,
                "validation": experiment.validation,
                "attached": experiment.attached,
                "recipe": asdict(experiment.recipe),
                "seed": seed,
                **_errors(experiment, model, splits[index], train, test, device),
                "costs": {name: history[-1][name] for name in ("total", "supervised", "denoising")},
            }
    # An ensemble too large for the memory trains in groups, one after the other. Members of a group share its seconds.
    groups = {tuple(line["seconds"] for line in history) for history in result.histories}
    shared = {
        "members": len(ensemble),
        "seconds": time.perf_counter() - started,
        "seconds_per_epoch": sum(median(group) for group in groups),
        "hardware": hardware(device),
        "versions": versions(),
    }
    if world.size > 1:
        shared["processes"] = world.size
    # If the ensemble was resumed, interrupted or spread over processes, or members diverged, its seconds are not those
    # of a complete run in one process.
    complete = not (checkpointer.resumed_after or result.interrupted or result.failed or world.size > 1)
    for index, record in records.items():
        record |= shared
        if not complete:
            record["continued_after_epochs"] = checkpointer.resumed_after.get(checkpointer.name(index), [])
    return records


def _errors(
    experiment: Experiment, model: Model, chosen: Split, train: Dataset, test: Dataset, device: torch.device
) -> dict[str, float]:
    """Return the error on test or, if there are any, held-out rows, with statistics of all rows and of labeled rows."""
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
    return {experiment.error_field: error, f"{experiment.error_field}_labeled_statistics": labeled_error}
