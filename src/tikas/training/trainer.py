"""Trainer: the one training loop. Epochs, learning rates, history, validation, snapshots and calibration."""

from __future__ import annotations

import gc
import signal
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, field, fields, replace
from math import ceil, inf, prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tikas.data.batches import WINDOW_BYTES, Batches, StreamedBatches, part_of
from tikas.data.datasets import Dataset
from tikas.data.sources import CHUNK_VALUES, RowSource, spread_sample
from tikas.data.splits import Split
from tikas.model.ladder import Model
from tikas.training.callbacks import Callback, Progress, closed_at_the_end
from tikas.training.checkpoint import Checkpointer, Snapshot, identity_of
from tikas.training.distributed import World, gather_members, train_together
from tikas.training.engines import GPU_BLOCK, SECOND_THREAD_FROM, Engine, choose_engine, multiplications
from tikas.training.environment import (
    arithmetic,
    as_tensor,
    deferred_signals,
    freed_memory_kept,
    full_precision,
    pick_device,
    private_random_state,
    seed_module_draws,
    training_environment,
)
from tikas.training.recipe import Calibration, Recipe

History = list[dict[str, Any]]
Build = Callable[[Recipe, Sequence[int], int, int], Model]
"""Builds a member from a recipe, the shape of a row, the number of outputs and a seed, as `Recipe.build` does."""

MEMBER_SETTINGS = ("noise", "costs", "learning_rate", "annealed")
"""Settings of a recipe in which members of one ensemble may differ."""

MEMORY_SHARE = 0.9
"""Share of a device's free memory that an ensemble may be estimated to need; a larger one is trained in groups."""
TENSORS_PER_PARAMETER = 7
"""Initial and current value, gradient, Adam's two moments, and two copies when members are unpacked."""
TENSORS_PER_LATENT = 12
"""Tensors that the backward pass keeps of each level and row, about."""
OUT_OF_MEMORY_WORDS = ("out of memory", "DefaultCPUAllocator", "STATUS_ALLOC_FAILED", "ALLOCATION_FAILED")
"""Words of the errors that CUDA, Triton, libraries and PyTorch on a CPU raise for a lack of memory."""
MEMORY_INFO, CONTROL_GROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")
"""Where Linux tells the memory of the machine, and that of a container."""
UNKNOWN_MEMORY = 8 * 10**9
"""Free memory assumed of other systems: larger ensembles train in groups there."""

MAX_CALIBRATION_ROWS, MIN_CALIBRATION_ROWS = 100_000, 10_000
"""Rows of a source that the statistics for prediction come from: of 100,000, a mean is within 0.3 % of a deviation.
Fewer of rows in blocks, if `MAX_COPIED_BYTES` do not hold so many, since the rows are needed for every rung."""
MAX_COPIED_BYTES = 2**28
"""Most bytes of rows that are copied for calibration; more are read chunk by chunk."""

NO_COSTS = torch.empty(0, dtype=torch.float64)
"""At the start of an epoch. `torch.cat` leaves such a tensor out, whatever the shape of the others."""

MAX_WATCHED_ROWS = 1000
"""Rows that the statistics are taken from when validation rows are measured during training."""
VALIDATION_SHARE = 0.015
"""Most of the training work that validation may take, counted in passes of rows: under 3 % of the time as measured."""
PASSES_PER_TRAINED_ROW = 3
"""Work of training on a row, in units of a forward pass: forward, and backward to values and weights."""
MAX_CHUNK_VALUES_CPU, MAX_CHUNK_VALUES_GPU = 2**26, 2**27
MAX_CHUNK_ROWS_CPU, MAX_CHUNK_ROWS_MODULE = 2048, 1024
"""Rows measured at once; how large the maps inside a user module are is not known."""


class TrainingDivergedError(ArithmeticError):
    """A cost of every member stopped being a finite number.

    Attributes
    ----------
    failed : mapping of int to str
        What happened to each member, by its index.

    Examples
    --------
    >>> print(TrainingDivergedError({0: "Training stopped in epoch 3.", 1: "Training stopped in epoch 2."}))
    Training stopped in epoch 3. All 2 members diverged.
    """

    def __init__(self, failed: Mapping[int, str]) -> None:
        super().__init__(failed)
        self.failed = failed

    def __str__(self) -> str:
        first = next(iter(self.failed.values()))
        return first if len(self.failed) == 1 else f"{first} All {len(self.failed)} members diverged."


@dataclass
class TrainingResult:
    """The trained members.

    Attributes
    ----------
    indices, seeds : list of int
        Index among the given seeds, and seed, of each member that finished at least one epoch.
    members : list of Model
        These members: calibrated, in eval mode, on the CPU.
    histories : list of list of dict
        For each of these members a dict per epoch: ``epoch``, ``learning_rate``, ``total``, ``supervised``,
        ``denoising`` (a list, the input first), ``seconds``, and ``validation_error`` where it was measured.
    failed : dict of int to str
        What happened to members whose costs stopped being finite numbers, by index.
    interrupted : bool
        Whether Ctrl-C was pressed. Members that were training then have fewer epochs.
    """

    indices: list[int] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    members: list[Model] = field(default_factory=list)
    histories: list[History] = field(default_factory=list)
    failed: dict[int, str] = field(default_factory=dict)
    interrupted: bool = False

    def sorted(self) -> TrainingResult:
        """Return the result with its members in the order of their indices."""
        order = sorted(range(len(self.indices)), key=self.indices.__getitem__)
        return replace(
            self,
            indices=[self.indices[each] for each in order],
            seeds=[self.seeds[each] for each in order],
            members=[self.members[each] for each in order],
            histories=[self.histories[each] for each in order],
        )


class Trainer:
    """Trains one member for each seed, all of them together as one ensemble where that is faster.

    In processes that torchrun started, or that share a process group of `torch.distributed`, a single member learns
    from batches whose rows the processes share, and the members of an ensemble are spread over the processes. All of
    them have to make the same calls, and get the same result.

    Parameters
    ----------
    recipe : Recipe or sequence of Recipe
        The hyperparameters: one recipe for all members, or one for each. Members may differ in noise, costs (zero on
        the same levels), learning rate and annealing.
    device : str or torch.device, optional
        Default: a GPU if there is one, else the CPU.
    callbacks : sequence of callable, optional
        Each is called with a `Progress` before the first epoch and after every epoch, and about once a second within
        long epochs that are trained in parts; in process 0 alone. If one returns True after an epoch, the members that
        train then are finished. Those with a method ``close`` are closed at the end.
    build : callable, default=Recipe.build
        Builds a member from a recipe, the shape of a row, the number of outputs and a seed.
    checkpointer : Checkpointer, optional
        Saves snapshots while training, and on SIGTERM and Ctrl-C; the same call resumes from them.
    keep_interrupted : bool, default=True
        Whether Ctrl-C after the first epoch ends the training with what was trained, instead of a KeyboardInterrupt.

    Examples
    --------
    >>> from tikas.data.splits import split
    >>> rows = np.random.default_rng(0).random((60, 8), dtype=np.float32)
    >>> dataset = Dataset(rows, np.arange(60) % 3, classes=np.arange(3))
    >>> trainer = Trainer(Recipe(network=(5,), batch_size=20, epochs=2), device="cpu")
    >>> result = trainer.fit(dataset, [split(dataset.targets, labels=9)], seeds=[0])
    >>> [line["epoch"] for line in result.histories[0]]
    [1, 2]
    """

    def __init__(
        self,
        recipe: Recipe | Sequence[Recipe],
        device: str | torch.device | None = None,
        callbacks: Sequence[Callback] = (),
        build: Build = Recipe.build,
        checkpointer: Checkpointer | None = None,
        *,
        keep_interrupted: bool = True,
    ) -> None:
        self.recipe = recipe
        self.device = device
        self.callbacks = callbacks
        self.build = build
        self.checkpointer = checkpointer
        self.keep_interrupted = keep_interrupted

    def fit(
        self, dataset: Dataset, splits: Sequence[Split], seeds: Sequence[int], start: Sequence[Model] | None = None
    ) -> TrainingResult:
        """Train the members.

        Parameters
        ----------
        dataset : Dataset
            Training rows.
        splits : sequence of Split
            For each member, which rows are labeled, unlabeled and held out.
        seeds : sequence of int
            A member's seed determines its initial weights, the order of its rows, and its noise.
        start : sequence of Model, optional
            Models whose weights the members start from.

        Returns
        -------
        TrainingResult

        Raises
        ------
        ValueError
            If the members cannot train as one ensemble, or have too few rows.
        TrainingDivergedError
            If every member diverged.
        torch.OutOfMemoryError
            If a single member does not fit into the memory of the device.
        KeyboardInterrupt
            If Ctrl-C was pressed before the first epoch was complete, or without `keep_interrupted`. Later on, the
            result is what was trained.
        LostProcessError
            If another process of the training died, or stopped with an error.
        """
        recipes = [self.recipe] * len(seeds) if isinstance(self.recipe, Recipe) else list(self.recipe)
        _check_members(recipes, splits, seeds)
        device = pick_device(self.device)
        result = TrainingResult()
        modules = recipes[0].is_module or self.build is not Recipe.build  # these may draw from global generators
        locked = nullcontext() if self.checkpointer is None else closing(self.checkpointer)
        with (
            training_environment(),
            private_random_state() if modules else nullcontext(),
            locked,
            closed_at_the_end(self.callbacks),
            train_together(device) as world,
        ):
            spread = world.size > 1 and len(seeds) > 1
            run = _Run(self, world, dataset, device, recipes, splits, seeds, start)
            queue = run.groups()
            run.group_count = len(queue)
            while queue and not result.interrupted:
                members, epochs_before = queue.pop(0), run.epochs_done
                try:
                    _Group(run, members).train(result)
                    run.epochs_done = epochs_before + recipes[0].epochs  # also where all of the group diverged
                except KeyboardInterrupt:
                    if not (result.members or spread) or not self.keep_interrupted:
                        raise
                    result.interrupted = True
                    break
                except (RuntimeError, MemoryError) as error:
                    if not _is_out_of_memory(error):
                        raise
                    if len(members) == 1:
                        raise torch.OutOfMemoryError(run.memory_message()) from error
                else:
                    continue
                # Only here, where the exception no longer refers to the tensors of the group, can they be freed.
                gc.collect()
                torch.cuda.empty_cache()
                half = len(members) // 2
                queue = [members[:half], members[half:], *queue]
                run.group_count += 1
                run.epochs_done = epochs_before
                run.report([], f"out of memory: {len(members)} members continue in two groups")
            if spread:
                gather_members(world, result, run.build, self.checkpointer)
                if result.interrupted and not result.members:
                    raise KeyboardInterrupt
        if not result.members:
            if self.checkpointer is not None:  # with other settings, the next fit could not continue from them
                self.checkpointer.delete(range(len(seeds)))
            raise TrainingDivergedError(result.failed)
        return result.sorted()


class _Run:
    """One call of `Trainer.fit`: the data on the device, the members, and how many epochs are done."""

    def __init__(
        self,
        trainer: Trainer,
        world: World,
        dataset: Dataset,
        device: torch.device,
        recipes: Sequence[Recipe],
        splits: Sequence[Split],
        seeds: Sequence[int],
        start: Sequence[Model] | None,
    ) -> None:
        self.trainer, self.dataset, self.device, self.start = trainer, dataset, device, start
        self.recipes, self.splits, self.seeds = recipes, splits, seeds
        self.members = range(len(seeds))[world.rank :: world.size] if len(seeds) > 1 else range(1)
        """Those that this process trains."""
        self.world = world.alone() if len(seeds) > 1 else world
        """The processes that share rows with this one."""
        self.streamed = isinstance(dataset.rows, RowSource)
        if isinstance(dataset.rows, RowSource):
            _check_kept_rows(dataset.rows, splits)
        else:
            self.rows = as_tensor(dataset.rows).to(device)
        targets = torch.from_numpy(dataset.targets).to(device)
        self.targets = targets.unsqueeze(-1) if dataset.classes is None else targets
        self.weights = None if dataset.weights is None else torch.from_numpy(dataset.weights).to(device)
        self.first = self.build(0)
        self.group_count = self.epochs_done = 0
        self._reported = time.perf_counter()
        self._calibrated_on: tuple[NDArray[np.int64], Tensor] | None = None
        self.updates_done = [0] * len(seeds)
        checkpointer = trainer.checkpointer
        if checkpointer is None and world.size == 1:
            return
        variant = "" if checkpointer is None else checkpointer.variant
        identities = [
            identity_of(*member, dataset, device, variant, None if start is None else start[index])
            for index, member in enumerate(zip(recipes, seeds, splits, strict=True))
        ]
        world.require_equal(identities)
        if checkpointer is not None:
            opened = checkpointer.open(identities, self.members) if self.world.rank == 0 else None
            self.updates_done = self.world.first(opened)

    def groups(self) -> list[list[int]]:
        """Return this process's members by the groups in which they train: of equal progress, and small enough."""
        size = 1
        if self.first.packable and len(self.members) > 1:
            neighbors = self.world.neighbors if self.device.type == "cpu" else 1
            size = max(1, int(MEMORY_SHARE * _free_bytes(self.device) / neighbors // self._bytes_per_member()))
        groups = []
        for updates in sorted({self.updates_done[member] for member in self.members}, reverse=True):
            members = [member for member in self.members if self.updates_done[member] == updates]
            count = ceil(len(members) / size)
            even = ceil(len(members) / count)
            groups += [members[first : first + even] for first in range(0, len(members), even)]
        return groups

    def build(self, member: int) -> Model:
        """Build a member, with its initial weights or those that it starts from."""
        recipe, shape = self.recipes[member], self.dataset.rows.shape[1:]
        model = self.trainer.build(recipe, shape, self.dataset.n_outputs, self.seeds[member])
        if self.start is None:
            return model
        earlier = self.start[member]
        try:
            model.to(next(earlier.parameters()).dtype).load_state_dict(earlier.state_dict())
        except RuntimeError as error:
            raise ValueError(
                "The models to start from have other rungs, another denoiser, or costs on other levels than the "
                "recipe. Keep these settings, or train from the beginning."
            ) from error
        return model

    def take(self, rows: NDArray[np.int64]) -> Tensor:
        """Return a copy of some rows on the device."""
        if self.streamed:
            return torch.from_numpy(self.dataset.rows[rows]).to(self.device)
        return self.rows[torch.as_tensor(rows, device=self.device)]

    def batches(self, members: Sequence[int], shapes: Sequence[tuple[int, ...]]) -> Batches:
        """Return the batches of some members, whose levels have these shapes."""
        recipe = self.recipes[members[0]]
        settings: dict[str, Any] = {
            "block": GPU_BLOCK if self.device.type == "cuda" else 1,
            "denoising": any(recipe.costs),
            "share": self.world.share,
        }
        arguments: tuple[Any, ...] = (
            self.targets,
            self.weights,
            [self.splits[member] for member in members],
            [self.seeds[member] for member in members],
            shapes,
            recipe.batch_size,
            recipe.labeled_batch_size,
        )
        if isinstance(self.dataset.rows, RowSource):
            return StreamedBatches(self.dataset.rows, *arguments, **settings, device=self.device)
        return Batches(self.rows, *arguments, **settings)

    def calibration_rows(self, split: Split, calibration: Calibration) -> tuple[Tensor | _RowChunks, int]:
        """Return this process's rows to calibrate a member on, and the number of all; of streamed rows a sample."""
        chosen = calibration_rows(split, calibration)
        if isinstance(self.dataset.rows, RowSource):
            chosen = spread_sample(chosen, _most_calibration_rows(self.dataset.rows))
        used = len(chosen)
        if self.world.size > 1:
            chosen = np.array_split(chosen, self.world.size)[self.world.rank]
        elif not self.streamed and used == len(self.dataset):
            return self.rows, used
        if 4 * len(chosen) * prod(self.dataset.rows.shape[1:]) > MAX_COPIED_BYTES:
            return _RowChunks(self, chosen), used
        if self._calibrated_on is None or not np.array_equal(self._calibrated_on[0], chosen):
            self._calibrated_on = None
            self._calibrated_on = chosen, self.take(chosen)
        return self._calibrated_on[1], used

    def report_start(self, members: Sequence[int], snapshots: Sequence[Snapshot] | None) -> None:
        """Tell the callbacks that members begin, or resume, together."""
        message = f"starting {len(members)} member{'s' * (len(members) > 1)} on {self.device}"
        if self.world.size > 1:
            message += f" and in {self.world.size} processes"
        if self.first.packable:
            message += f", about {len(members) * self._bytes_per_member() / 1e9:.2g} GB"
        if snapshots is not None:
            self.epochs_done += len(snapshots[0].history)
            message += f", resumed after epoch {len(snapshots[0].history)}"
        self.report([], message)

    def report(self, lines: History, message: str = "") -> bool:
        """Call the callbacks, in process 0; return whether one of them ends the training of this group."""
        self._reported = time.perf_counter()
        progress = Progress(self.epochs_done, self.group_count * self.recipes[0].epochs, lines, message)
        answers = [callback(progress) for callback in self.trainer.callbacks if self.world.is_first]
        return any(answer is True for answer in answers)

    def report_part(self, part: float) -> None:
        """Tell the callbacks which share of an epoch is done, if they were not told anything for a second."""
        if time.perf_counter() - self._reported < 1:
            return
        self._reported = time.perf_counter()
        progress = Progress(self.epochs_done, self.group_count * self.recipes[0].epochs, [], part=part)
        for callback in self.trainer.callbacks if self.world.is_first else ():
            callback(progress)

    def _bytes_per_member(self) -> int:
        """Estimate what a member of rungs needs while it trains: parameters, latents and noise."""
        recipe = self.recipes[0]
        unlabeled, labeled = self.splits[0].batch_sizes(recipe.batch_size, recipe.labeled_batch_size)
        unlabeled = unlabeled if any(recipe.costs) else 0
        values = sum(map(prod, self.first.shapes))
        block = GPU_BLOCK if self.device.type == "cuda" else 1
        latents = (2 * unlabeled + labeled) * TENSORS_PER_LATENT * values + block * (unlabeled + labeled) * values
        parameters = sum(parameter.numel() for parameter in self.first.parameters())
        windows = 3 * WINDOW_BYTES if self.streamed else 0
        return 4 * (TENSORS_PER_PARAMETER * parameters + latents) + windows

    def memory_message(self) -> str:
        """Say what to do when a single member does not fit."""
        elsewhere = "train where there is more memory" if self.device.type == "cpu" else "train with device='cpu'"
        return (
            f"A member does not fit into the memory of {self.device}: {_free_bytes(self.device) / 1e9:.3g} GB are free "
            f"beside the rows. Set a batch_size below {self.recipes[0].batch_size}, choose a smaller network, or "
            f"{elsewhere}."
        )


class _Group:
    """Members that train together, from their snapshots if there are any: their engine, and what was recorded."""

    def __init__(self, run: _Run, members: Sequence[int]) -> None:
        self.run, self.members, self.checkpointer = run, members, run.trainer.checkpointer
        self.world = run.world
        self.recipes, self.splits = (
            [run.recipes[member] for member in members],
            [run.splits[member] for member in members],
        )
        self.seeds, self.recipe = [run.seeds[member] for member in members], run.recipes[members[0]]
        snapshots = None
        if self.checkpointer is not None:
            loaded = self.checkpointer.load(members) if self.world.rank == 0 else None
            snapshots = self.world.first_snapshots(loaded)
        run.report_start(members, snapshots)
        models = [(run.first if member == 0 else run.build(member)).to(run.device) for member in members]
        self.packable = models[0].packable
        self.batches = run.batches(members, models[0].shapes)
        exact, updates = self.recipe.precision == "exact", self.batches.updates
        self.engine = choose_engine(models, self.batches, self.recipe.epochs * updates, exact=exact)
        if self.engine.preparation:
            run.report([], self.engine.preparation)
        self.histories: list[History] = [[] for _ in members]
        self.costs = NO_COSTS
        """Costs of the updates of this epoch, ``(updates, members, 1 + levels)``."""
        self.stopping = _EarlyStopping(self.engine, self.recipe) if self.recipe.early_stopping else None
        if snapshots is not None:
            self.histories = [list(snapshot.history) for snapshot in snapshots]
            if self.stopping is not None:
                self.stopping.restore(self.histories, [snapshot.tensors for snapshot in snapshots])
            self.engine.load_state_dict(_stack_snapshots(snapshots), snapshots[0].updates)
            if snapshots[0].costs.numel():
                self.costs = torch.stack([snapshot.costs for snapshot in snapshots], 1)
        held_out = len(self.splits[0].validation) > 0
        self.validation = _Validation(run, self.engine, self.splits, self.recipe) if held_out else None
        self.small = multiplications(models, self.batches) < SECOND_THREAD_FROM
        self.state_bytes = 3 * sum(parameter.nbytes for model in models for parameter in model.parameters())
        self.failed: dict[int, str] = {}

    def train(self, result: TrainingResult) -> None:
        """Train the epochs that are left, and add the members to the result."""
        recipes, updates, checkpointer = self.recipes, self.batches.updates, self.checkpointer
        # With a checkpointer, an epoch is trained in parts of about a second, to stop and save between two of them; so
        # are epochs of which processes share the rows, which all stop after the same update, and long epochs of
        # streamed rows, to report them. Modules draw from generators that are seeded once an epoch.
        deferred = checkpointer is not None or self.world.size > 1
        divided = (deferred or self.run.streamed) and self.packable
        part = self.batches.block if divided else updates
        stop = 0  # the signal that ends the training
        device, exact = self.run.device, self.recipe.precision == "exact"
        with (
            closing(self.batches),
            freed_memory_kept(enabled=device.type == "cpu" and not self.small),
            arithmetic(device, exact=exact, small=self.small),
        ):
            try:
                with deferred_signals(enabled=deferred) as signals:
                    for epoch in range(len(self.histories[0]) + 1, self.recipe.epochs + 1):
                        started = time.perf_counter()
                        if not self.packable:
                            seed_module_draws(self.seeds[0], epoch, self.world.rank)
                        rates = _learning_rates(recipes, (epoch - 1) * updates, updates)
                        while len(self.costs) < updates and not stop:
                            begun, first = time.perf_counter(), len(self.costs)
                            costs = self.engine.train_epoch(rates[first : first + part], first)
                            costs = costs.reshape(len(costs), len(recipes), -1).double().cpu()
                            self.costs = torch.cat([self.costs, costs])
                            if divided and part < updates:
                                seconds = max(time.perf_counter() - begun, 0.1)
                                part = self.batches.block * max(1, int(part / self.batches.block / seconds))
                            part, stop, _ = self.world.agree(part, signals)
                            if len(self.costs) < updates:
                                self._save_if_due(within_epoch=True)
                                if time.perf_counter() - started > 1:
                                    self.run.report_part(len(self.costs) / updates)
                        if len(self.costs) < updates:
                            break
                        lines = _history_lines(recipes, self.costs, rates, epoch, time.perf_counter() - started)
                        failed = _find_divergence(recipes, self.costs, epoch)
                        if failed.keys() - self.failed.keys():
                            self.failed = {**failed, **self.failed}
                            self.run.report([], f"{len(self.failed)} of {len(recipes)} members diverged")
                        if len(self.failed) == len(recipes):
                            break
                        if self.validation is not None and self.validation.is_due(epoch, self.recipe.epochs):
                            for line, error in zip(lines, self.validation.errors(), strict=True):
                                line["validation_error"] = error
                        for history, line in zip(self.histories, lines, strict=True):
                            history.append(line)
                        self.costs = NO_COSTS
                        if self.stopping is not None:
                            self.stopping.update(lines)
                        if epoch < self.recipe.epochs:
                            self._save_if_due()
                        elif checkpointer is not None and checkpointer.save_last:
                            self._save()
                        self.run.epochs_done += 1
                        ended = self.run.report(
                            [
                                {"member": self.members[position], **line}
                                for position, line in enumerate(lines)
                                if position not in self.failed
                            ]
                        )
                        part, stop, ended = self.world.agree(part, signals, ended=ended)
                        if stop or ended or (self.stopping is not None and self.stopping.is_over(self.failed)):
                            break
                    if stop:
                        self._save()
                if stop:
                    signal.raise_signal(stop)
            except KeyboardInterrupt:
                alone = self.world.size > 1 and not stop  # the other processes go on
                if not self.histories[0] or not self.run.trainer.keep_interrupted or alone:
                    raise
                result.interrupted = True
            try:
                self._finish(result)
            except KeyboardInterrupt:  # what is left takes a moment, and everything would be lost
                if not self.run.trainer.keep_interrupted or self.world.size > 1:
                    raise
                result.interrupted = True
                self._finish(result)

    def _save_if_due(self, *, within_epoch: bool = False) -> None:
        """Write snapshots if it is time; the smallest interval means after every epoch, and not within one."""
        if self.checkpointer is None:
            return
        if self.world.first(self.checkpointer.is_due(self.state_bytes, within_epoch=within_epoch)):
            self._save()

    def _save(self) -> None:
        """Write snapshots; of processes that share the rows, which all have the same, the first does."""
        if self.checkpointer is None or self.world.rank > 0:
            return
        updates = len(self.histories[0]) * self.batches.updates + len(self.costs)
        self.checkpointer.save(self.members, self._state, self.histories, updates, self.costs, skip=self.failed)

    def _state(self) -> dict[str, Tensor]:
        return self.engine.state_dict() | ({} if self.stopping is None else self.stopping.tensors())

    def _finish(self, result: TrainingResult) -> None:
        """Measure and calibrate the members, and add them to the result. May be repeated after an interruption."""
        run = self.run
        unmeasured = len(self.failed) < len(self.members) and "validation_error" not in self.histories[0][-1]
        if self.validation is not None and unmeasured:
            for history, error in zip(self.histories, self.validation.errors(), strict=True):
                history[-1]["validation_error"] = error
        finished: list[tuple[int, Model, History]] = []
        for position, (member, model) in enumerate(zip(self.members, self.engine.models(), strict=True)):
            recipe = self.recipes[position]
            if self.stopping is not None:
                self.stopping.finish(position, model, self.histories[position])
            reason = self.failed.get(position) or _find_bad_weights(recipe, model)
            if reason:
                result.failed[member] = reason
                continue
            rows, used = run.calibration_rows(self.splits[position], recipe.calibration)
            if used < len(calibration_rows(self.splits[position], recipe.calibration)):
                self.histories[position][-1]["calibration_rows"] = used
            # In training mode: frozen layers of a user module are recognized by their mode. On the device, from which
            # an interrupted call may have moved it.
            model.to(run.device).train()
            with full_precision():
                model.calibrate(rows)
            model.processes = None
            finished.append((member, model.eval().cpu(), self.histories[position]))
        for member, model, history in finished:
            result.indices.append(member)
            result.seeds.append(run.seeds[member])
            result.members.append(model)
            result.histories.append(history)


class _RowChunks:
    """Rows that are copied or read chunk by chunk, as often as they are needed."""

    def __init__(self, run: _Run, rows: NDArray[np.int64]) -> None:
        self.run, self.rows = run, rows
        self.size = max(2, CHUNK_VALUES // prod(run.dataset.rows.shape[1:]))

    def __iter__(self) -> Iterator[Tensor]:
        for part in np.array_split(self.rows, ceil(len(self.rows) / self.size)):
            yield self.run.take(part)


class _Validation:
    """Measures members on their validation rows during training.

    Statistics come from up to `MAX_WATCHED_ROWS` training rows. It is done after every `every` epochs, which follows
    from counts and not from the clock, so that a run has the same history on every machine.
    """

    def __init__(self, run: _Run, engine: Engine, splits: Sequence[Split], recipe: Recipe) -> None:
        self.engine, batches, self.world = engine, engine.batches, run.world
        seen = [calibration_rows(split, recipe.calibration) for split in splits]
        watched = [rows[:: 1 + len(rows) // MAX_WATCHED_ROWS] for rows in seen]
        models = len(engine.packed())
        members = () if models > 1 or engine.members == 1 else (engine.members,)
        indices = np.stack(watched), np.stack([split.validation for split in splits])
        if run.streamed:  # these rows are read once
            needed = np.unique(np.concatenate([each.ravel() for each in indices]))
            indices = np.searchsorted(needed, indices[0]), np.searchsorted(needed, indices[1])
            self._rows, self._targets = run.take(needed), run.targets[torch.from_numpy(needed).to(run.device)]
        else:
            self._rows, self._targets = run.rows, run.targets
        self._watched, self._held_out = (
            torch.as_tensor(rows, device=batches.device).view(models, *members, -1) for rows in indices
        )
        measured = self._watched.shape[-1] + self._held_out.shape[-1]
        trained = 2 * batches.denoised_batch_size + batches.labeled_batch_size
        self.every = 1 if recipe.early_stopping else epochs_between(measured, trained, batches.updates)

    def is_due(self, epoch: int, epochs: int) -> bool:
        """Return whether the members are measured after this epoch."""
        return epoch % self.every == 0 or epoch == epochs

    @torch.no_grad()
    def errors(self) -> list[float]:
        """Return the error of every member as it is now."""
        rows, targets = self._rows, self._targets
        errors: list[float] = []
        for model, watched, held_out in zip(self.engine.packed(), self._watched, self._held_out, strict=True):
            model.train()
            model.calibrate(rows[part_of(watched, self.world.share, -1)]).eval()
            own = part_of(held_out, self.world.share, -1)
            chunks = own.split(_chunk_rows(model, own.shape[:-1], rows), -1)
            outputs = self.world.join_rows(torch.cat([model(rows[chunk]) for chunk in chunks], -2), -2)
            errors += _errors(outputs, targets[held_out], model.task).reshape(-1).tolist()
            model.train()
        return errors


class _EarlyStopping:
    """Keeps each member's weights of its smallest validation error, and tells when no error decreases any more.

    As in scikit-learn's `MLPClassifier`, an epoch counts as one without change unless its error is below the smallest
    so far by at least `tol`. A member whose error did not change for long enough has ended: it trains on with the
    others of an ensemble, but keeps the weights that it would have alone.
    """

    def __init__(self, engine: Engine, recipe: Recipe) -> None:
        self.engine, self.patience = engine, recipe.n_iter_no_change
        self.tol = recipe.tol * (100 if recipe.task == "classification" else 1)  # those errors are percentages
        self.smallest = [inf] * engine.members
        self.unchanged = [0] * engine.members
        self.ended: dict[int, int] = {}
        """Epochs of each member that has ended."""
        self.best: list[dict[str, Tensor]] = [{} for _ in range(engine.members)]

    def update(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Take the members' errors of an epoch, and copy the weights of those that improved."""
        improved = self._compare(lines, lines[0]["epoch"])
        improved += [member for member, state in enumerate(self.best) if not state and member not in improved]
        if improved:
            models = self.engine.models()
            for member in improved:
                state = models[member].state_dict().items()
                self.best[member] = {name: each.detach().clone() for name, each in state if isinstance(each, Tensor)}

    def _compare(self, lines: Sequence[Mapping[str, Any]], epoch: int) -> list[int]:
        """Count the epochs without change, and return the members with their smallest error so far."""
        improved = []
        for member, line in enumerate(lines):
            if member in self.ended:
                continue
            error = line["validation_error"]
            self.unchanged[member] = 0 if error <= self.smallest[member] - self.tol else self.unchanged[member] + 1
            if self.unchanged[member] >= self.patience:
                self.ended[member] = epoch
            if error < self.smallest[member]:
                self.smallest[member] = error
                improved.append(member)
        return improved

    def is_over(self, failed: Container[int]) -> bool:
        """Return whether all members have ended that did not fail."""
        return all(member in self.ended or member in failed for member in range(len(self.best)))

    def finish(self, member: int, model: Model, history: History) -> None:
        """Set a member's weights to those of its smallest error, and remove what was recorded after it had ended."""
        if self.best[member]:
            model.load_state_dict(self.best[member], strict=False)
        del history[self.ended.get(member, len(history)) :]

    def tensors(self) -> dict[str, Tensor]:
        """Return the best weights, ``(members, ...)``, for a snapshot; nothing before the first epoch is complete."""
        return {f"best.{name}": torch.stack([state[name].cpu() for state in self.best]) for name in self.best[0]}

    def restore(self, histories: Sequence[History], snapshots: Sequence[Mapping[str, Tensor]]) -> None:
        """Continue from the histories and the tensors of the members' snapshots."""
        for epoch, lines in enumerate(zip(*histories, strict=True), 1):
            self._compare(lines, epoch)
        self.best = [
            {name.removeprefix("best."): tensor for name, tensor in tensors.items() if name.startswith("best.")}
            for tensors in snapshots
        ]


def epochs_between(measured: int, trained: int, updates: int) -> int:
    """Return after how many epochs validation takes little beside training.

    `measured` are the rows that are measured or give statistics, `trained` the rows of an update (clean and corrupted
    ones counted twice), `updates` those of an epoch.
    """
    cost_in_updates = max(1, measured / (PASSES_PER_TRAINED_ROW * trained))
    return ceil(cost_in_updates / (VALIDATION_SHARE * updates))


def calibration_rows(split: Split, calibration: Calibration) -> NDArray[np.int64]:
    """Return the rows that a member's statistics for prediction come from."""
    return split.labeled if calibration == "labeled" else split.unlabeled


@torch.no_grad()
def error_of(model: Model, rows: Tensor, targets: Tensor) -> float:
    """Return the percentage of rows that a calibrated model gets wrong, or its root mean squared error.

    Examples
    --------
    >>> from tikas import Dense, Ladder
    >>> ladder = Ladder(input_shape=(4,), rungs=[Dense(2)]).calibrate(torch.rand(50, 4)).eval()
    >>> error_of(ladder, torch.rand(10, 4), torch.zeros(10, dtype=torch.int64)) in range(0, 101, 10)
    True
    """
    outputs = torch.cat([model(chunk) for chunk in rows.split(_chunk_rows(model, (), rows))])
    return float(_errors(outputs, targets, model.task))


def _chunk_rows(model: Model, members: Sequence[int], rows: Tensor) -> int:
    """Return how many rows of every member are measured at once."""
    if not model.packable:
        return MAX_CHUNK_ROWS_MODULE
    values = prod(members) * max(map(prod, model.shapes))
    if rows.is_cuda:
        return max(1, MAX_CHUNK_VALUES_GPU // values)
    return max(1, min(MAX_CHUNK_ROWS_CPU, MAX_CHUNK_VALUES_CPU // values))


def _errors(outputs: Tensor, targets: Tensor, task: str) -> Tensor:
    if task == "classification":
        return 100 * (outputs.argmax(-1) != targets).double().mean(-1)
    return (outputs - targets).double().square().mean((-1, -2)).sqrt()


def _learning_rates(recipes: Sequence[Recipe], first: int, updates: int) -> Tensor:
    """Return the rate of each update, ``(updates,)``, or ``(updates, members)`` if members have different schedules."""
    schedules = {(recipe.learning_rate, recipe.annealed): recipe for recipe in recipes}
    rates = {
        schedule: [recipe.rate(first + update, recipe.epochs * updates) for update in range(updates)]
        for schedule, recipe in schedules.items()
    }
    columns = [rates[recipe.learning_rate, recipe.annealed] for recipe in recipes]
    return torch.tensor(columns[0] if len(schedules) == 1 else list(zip(*columns, strict=True)), dtype=torch.float64)


def _history_lines(
    recipes: Sequence[Recipe], costs: Tensor, rates: Tensor, epoch: int, seconds: float
) -> list[dict[str, Any]]:
    """Return each member's line of history from the costs ``(updates, members, 1 + levels)`` of an epoch."""
    lines = []
    for recipe, means, rate in zip(recipes, costs.mean(0), rates[-1].expand(len(recipes)), strict=True):
        denoising = means[1:]
        weights = torch.tensor(recipe.cost_per_level()[-len(denoising) :], dtype=torch.float64)  # a Γ-model has one
        lines.append(
            {
                "epoch": epoch,
                "learning_rate": float(rate),
                "total": float(means[0] + (weights * denoising).sum()),
                "supervised": float(means[0]),
                "denoising": denoising.tolist(),
                "seconds": seconds,
            }
        )
    return lines


def _find_divergence(recipes: Sequence[Recipe], costs: Tensor, epoch: int) -> dict[int, str]:
    """Say for each member with a cost that is not finite which cost was the first."""
    found: dict[int, str] = {}
    for update, member, cost in (~costs.isfinite()).nonzero().tolist():
        name = "the supervised cost" if cost == 0 else f"the denoising cost of level {cost - 1}"
        found.setdefault(
            member,
            f"Training stopped in epoch {epoch}, update {update + 1}: {name} was not a finite number any more. "
            f"{_divergence_advice(recipes[member])}",
        )
    return found


def _find_bad_weights(recipe: Recipe, model: Model) -> str:
    """Say if the last update, which no cost shows, left weights that are not finite; else return an empty text."""
    for name, parameter in model.named_parameters():
        if not bool(parameter.isfinite().all()):
            return f"After the last update {name} was not finite any more. {_divergence_advice(recipe)}"
    return ""


def _divergence_advice(recipe: Recipe) -> str:
    costs = f" or smaller costs than {recipe.costs}" if any(recipe.costs) else ""
    return (
        "Check that the columns are of about unit scale, then try a learning rate below "
        f"{recipe.learning_rate:g}{costs}."
    )


def _stack_snapshots(snapshots: Sequence[Snapshot]) -> dict[str, Tensor]:
    """Return an engine's state ``(members, ...)`` from those of its members."""
    return {name: torch.stack([each.tensors[name] for each in snapshots]) for name in snapshots[0].tensors}


def _free_bytes(device: torch.device) -> int:
    """Return the memory that a device has left, with what PyTorch has reserved and does not use."""
    if device.type == "cuda":
        reserved = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + reserved
    try:
        free = 1024 * _read_figures(MEMORY_INFO)["MemAvailable:"]
    except (OSError, LookupError):
        return UNKNOWN_MEMORY
    with suppress(OSError, LookupError, ValueError):  # without a limit, the file holds no number
        limit, taken = (int((CONTROL_GROUP / name).read_text()) for name in ("memory.max", "memory.current"))
        files = _read_figures(CONTROL_GROUP / "memory.stat")["inactive_file"]  # cached, dropped when needed
        free = max(0, min(free, limit - taken + files))
    return free


def _read_figures(path: Path) -> dict[str, int]:
    """Return the first figure of each line of a file, by the word before it."""
    return {line.split()[0]: int(line.split()[1]) for line in path.read_text().splitlines()}


def _is_out_of_memory(error: BaseException | None) -> bool:
    """Return whether an error, or one that it was raised while handling, is a lack of memory."""
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError | MemoryError):
            return True
        if any(words in str(error) for words in OUT_OF_MEMORY_WORDS):
            return True
        error = error.__context__
    return False


def _check_members(recipes: Sequence[Recipe], splits: Sequence[Split], seeds: Sequence[int]) -> None:
    """Raise ValueError if the members cannot train as one ensemble."""
    if len(seeds) == 0 or not len(recipes) == len(splits) == len(seeds):
        raise ValueError(
            f"Got {len(seeds)} seeds, {len(splits)} splits and {len(recipes)} recipes; give one of each for every "
            "member."
        )
    if len({(len(split.unlabeled), len(split.validation)) for split in splits}) > 1:
        raise ValueError("Members of an ensemble need equally many unlabeled and validation rows. Fit them separately.")
    _require_equal("settings other than " + ", ".join(MEMBER_SETTINGS), (_shared_settings(each) for each in recipes))
    _require_equal("the levels with a cost", ([cost > 0 for cost in each.cost_per_level()] for each in recipes))
    _require_equal("being fully labeled", (split.fully_labeled for split in splits))
    if min(len(split.labeled) for split in splits) == 0:
        raise ValueError(
            "A member has no labeled rows, but the supervised cost is a mean over them. Give at least one."
        )
    if recipes[0].calibration == "labeled":
        _require_equal("the number of labels, with calibration='labeled'", (len(split.labeled) for split in splits))
    if recipes[0].early_stopping and min(len(split.validation) for split in splits) == 0:
        raise ValueError(
            "early_stopping=True needs validation rows, and the splits have none. Hold out labeled rows "
            "(validation_fraction of the estimators, tikas train --validation N)."
        )
    rows = min(len(calibration_rows(split, recipes[0].calibration)) for split in splits)
    if rows < 2:
        raise ValueError(
            f"calibration={recipes[0].calibration!r}: the statistics for prediction need at least two rows, and a "
            f"member has {rows}. Give more of them, or set calibration='all'."
        )


def _check_kept_rows(source: RowSource, splits: Sequence[Split]) -> None:
    """Raise MemoryError if the rows of a source that stay in memory would need more than there is."""
    labeled = [np.empty(0, np.int64) if split.fully_labeled else split.labeled for split in splits]
    kept = np.unique(np.concatenate([*labeled, *(split.validation for split in splits)]))
    needed, free = 4 * len(kept) * prod(source.shape[1:]), _free_bytes(torch.device("cpu"))
    if needed > free:
        raise MemoryError(
            f"The {len(kept)} labeled and validation rows need {needed / 1e9:.3g} GB, but {free / 1e9:.3g} GB of "
            "memory are free. Of rows in files, only unlabeled ones stay there, unless all are labeled. Use fewer "
            "labels, or all of them without validation rows."
        )


def _most_calibration_rows(source: RowSource) -> int:
    """Return how many rows of a source the statistics for prediction are taken from."""
    if source.block_edges is None:
        return MAX_CALIBRATION_ROWS
    in_memory = MAX_COPIED_BYTES // (source.dtype.itemsize * prod(source.shape[1:]))  # else most blocks were read again
    return min(MAX_CALIBRATION_ROWS, max(MIN_CALIBRATION_ROWS, in_memory))


def _shared_settings(recipe: Recipe) -> list[Any]:
    return [getattr(recipe, each.name) for each in fields(Recipe) if each.name not in MEMBER_SETTINGS]


def _require_equal(name: str, values: Iterable[Any]) -> None:
    first, *others = values
    if any(other != first for other in others):
        raise ValueError(f"Members of an ensemble differ in {name}. Fit them separately.")
