"""Measure experiments: train the members that have no record yet in ensembles, and append a record for each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache, partial
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor

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
    """
    outcome, revision_at_start = Outcome(), revision()  # files may change while this runs
    for ensemble in _ensembles(experiments, records, seeds, first_seed, max_members, outcome):
        first = ensemble[0].experiment
        if any(member.experiment.name in outcome.failures for member in ensemble):
            continue  # another ensemble of this experiment failed as a whole
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
            errors = Summary.of([record[_figure(first)] for record in group])
            print(f"{name}: {_figure(first).replace('_', ' ')} {errors.text()} %, {errors.runs} seeds", flush=True)
        if outcome.interrupted:
            break
    return outcome
