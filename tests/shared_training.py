"""Trainings for tests/training/test_distributed.py: in one process, and in two that torchrun could have started."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
from torch import nn

from tikas import Conv, LadderClassifier, MaxPool, gamma
from tikas.data.batches import Batches
from tikas.data.datasets import Dataset
from tikas.data.splits import Split, split
from tikas.model.ladder import Model
from tikas.training import distributed
from tikas.training.checkpoint import Checkpointer
from tikas.training.distributed import LostProcessError
from tikas.training.recipe import Recipe
from tikas.training.trainer import Trainer, TrainingDivergedError, TrainingResult

ROWS = np.random.default_rng(0).normal(size=(301, 16)).astype(np.float32)
CLASSES = (ROWS[:, 0] > 0) + (ROWS[:, 1] > 0).astype(np.int64)
DATA = Dataset(ROWS, CLASSES, classes=np.arange(3))
VALUES = Dataset(ROWS, (ROWS[:, 0] * ROWS[:, 1] + ROWS[:, 2]).astype(np.float32), np.linspace(0.5, 2, 301))
HELD_OUT, ALL_LABELED = split(CLASSES, 31, validation=41), split(CLASSES, None)
RECIPE = Recipe(network=(12, 8), costs=(10, 1, 0.1, 0.1), batch_size=51, labeled_batch_size=17, epochs=10)
"""Fifty updates of batches that two processes cannot halve."""
UPDATES = 5
"""Updates of an epoch."""


def in_double(recipe: Recipe, shape: Sequence[int], outputs: int, seed: int) -> Model:
    return recipe.build(shape, outputs, seed).double()


def module(recipe: Recipe, shape: Sequence[int], outputs: int, seed: int) -> Model:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = nn.Sequential(nn.Linear(*shape, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, outputs))
    return gamma(network, outputs, recipe.noise[0], recipe.costs[0], example=torch.zeros(2, *shape))


class Case(NamedTuple):
    recipe: Recipe = RECIPE
    dataset: Dataset = DATA
    split: Split = HELD_OUT
    seeds: Sequence[int] = (0,)
    build: Any = Recipe.build


CASES = {
    "dense": Case(),
    "dense, double precision": Case(dataset=replace(DATA, rows=ROWS.astype(np.float64)), build=in_double),
    "early stopping": Case(
        replace(RECIPE, early_stopping=True, n_iter_no_change=2, epochs=30),
        replace(DATA, rows=ROWS.astype(np.float64)),
        build=in_double,
    ),
    "convolutions": Case(
        replace(RECIPE, network=(Conv(4, 3), MaxPool(2), 8), costs=(10, 1, 0.1, 0.1, 0.1)),
        replace(DATA, rows=ROWS.reshape(301, 1, 4, 4).astype(np.float64)),
        build=in_double,
    ),
    "regression with weights": Case(replace(RECIPE, task="regression", calibration="labeled"), VALUES),
    "all labeled, supervised": Case(replace(RECIPE, costs=0.0), split=ALL_LABELED),
    "module": Case(replace(RECIPE, costs=1.0), build=module),
    "members": Case(seeds=(3, 4, 5)),
}


def train(case: Case, **options: Any) -> TrainingResult:
    trainer = Trainer(case.recipe, device="cpu", build=case.build, **options)
    return trainer.fit(case.dataset, [case.split] * len(case.seeds), case.seeds)


def summary(result: TrainingResult, case: Case) -> dict[str, Any]:
    """What a training found, without its seconds."""
    rows = torch.from_numpy(case.dataset.rows)
    with torch.no_grad():
        outputs = [model(rows) for model in result.members]
    return {
        "states": [{name: tensor.clone() for name, tensor in each.state_dict().items()} for each in result.members],
        "outputs": outputs,
        "histories": [[{**line, "seconds": 0} for line in history] for history in result.histories],
        "seeds": result.seeds,
        "synchronized": any(model.processes is not None for model in result.members),
    }


def interrupted(folder: Path, update: int, rank: int = 0) -> tuple[int, int]:
    """Press Ctrl-C in process `rank` before an update; return the number of complete epochs and of updates made."""
    batch, made = Batches.batch, 0

    def counted(batches: Batches, number: int) -> Any:
        nonlocal made
        made += 1
        if made == update and rank == int(os.environ.get("RANK", "0")):
            signal.raise_signal(signal.SIGINT)
        return batch(batches, number)

    with mock.patch.object(Batches, "batch", counted):
        try:
            result = train(CASES["dense"], checkpointer=Checkpointer(folder, seconds=1000))
        except KeyboardInterrupt:  # before the first epoch was complete
            return 0, made
    assert result.interrupted
    return len(result.histories[0]), made


def main(rank: int, folder: str, port: int) -> None:
    """Train all cases in one of two processes, and save what it found."""
    start_process(rank, port)
    found: dict[str, Any] = {name: summary(train(case), case) for name, case in CASES.items()}
    reports: list[Any] = []
    case = CASES["dense"]
    resumed = Checkpointer(Path(folder, "stopped alone"), save_last=True)
    found["resumed"] = summary(train(case, checkpointer=resumed, callbacks=[reports.append]), case)
    found["reports"] = len(reports)
    # The first part of a training is one update; those after it are whole epochs here.
    found["stopped"] = [interrupted(Path(folder, "stopped together"), update, rank=1) for update in (1, 2 * UPDATES)]
    found["ended"] = len(train(case, callbacks=[lambda progress: progress.epoch == 2]).histories[0])
    found["drawn seeds"] = LadderClassifier((4,), n_members=2, epochs=1, device="cpu").fit(ROWS, CLASSES).seeds_
    with suppress(TrainingDivergedError):
        train(case._replace(recipe=replace(RECIPE, learning_rate=1e30)))
        found["diverged"] = "no"
    try:
        train(case._replace(dataset=replace(DATA, rows=ROWS + rank)))
    except (ValueError, LostProcessError) as error:
        found["other rows"] = type(error).__name__, str(error)
    torch.save(found, Path(folder, f"{rank}.pt"))


def start_process(rank: int, port: int) -> None:
    """Set the environment as torchrun does."""
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def die(rank: int, folder: str, port: int, members: int, dying: int) -> None:
    """Train until process `dying` kills itself; the other one notes its error, and how long that took."""
    start_process(rank, port)
    distributed.SILENCE, distributed.SILENCE_AFTER_ERROR = 6.0, 4.0
    batch, began = Batches.batch, Path(folder, "began")

    def batch_or_death(batches: Batches, update: int) -> Any:
        made = len(list(Path(folder).glob("checkpoint/*.safetensors")))
        if rank == dying and made:
            began.write_text(f"{time.time()} {os.getpid()}")
            os.kill(os.getpid(), signal.SIGKILL)
        return batch(batches, update)

    with mock.patch.object(Batches, "batch", batch_or_death):
        case = Case(replace(RECIPE, epochs=100_000), seeds=range(members))
        try:
            train(case, checkpointer=Checkpointer(Path(folder, "checkpoint"), seconds=0.0))
        except LostProcessError as error:
            seconds = time.time() - float(began.read_text().split()[0])
            Path(folder, "error").write_text(f"{seconds} {error}")
        except BaseException as error:
            Path(folder, "error").write_text(f"0 {type(error).__name__} {error}")
