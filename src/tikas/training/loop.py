"""The loop: epochs, annealing, history, calibration, for one fleet on one device."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from threading import Event
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tikas.data.splits import Split
from tikas.data.streams import Examples, Streams
from tikas.model.ladder import Ladder
from tikas.training.engine import UPDATES_IN_A_REPLAY, launch, suitable_arithmetic
from tikas.training.evaluation import HeldOut, calibration_rows
from tikas.training.fleet import Fleet
from tikas.training.keeping import Keeping, Kept
from tikas.training.precision import full_precision
from tikas.training.randomness import seed_draws
from tikas.training.recipe import Recipe

History = list[dict[str, Any]]
Build = Callable[[Recipe, Sequence[int], int, int | None], Ladder]
"""Makes a member of a recipe, the shape of a row, the number of outputs and a seed, as `build_ladder` does."""


class Progress(NamedTuple):
    """What the loop tells: how far it is, the newest line of every member's history, and before those what it does."""

    epoch: int
    epochs: int
    members: list[dict[str, Any]]
    doing: str = ""


class Trained(NamedTuple):
    """What training gives back.

    Attributes
    ----------
    ladders
        One for each seed, calibrated and in eval mode, on the CPU.
    histories
        For each seed a list of dicts, one an epoch: ``epoch``, ``learning_rate``, ``total``, ``supervised``,
        ``denoising`` (a list from the input up), ``seconds``. Where rows were held out, the last line has their
        ``validation_error``, and so has every line of an epoch after which they were measured (see `epochs_between`).
        After Ctrl-C it has one too: of the ladder that comes back, if its epoch was not one to be measured.
    interrupted
        Whether Ctrl-C ended it before its last epoch. A member whose fleet had not begun then has an empty history, and
        its first weights.
    stop_asked
        Whether Ctrl-C came at all. After the last epoch it cuts nothing short, but what was to follow is not wanted.
    diverged
        By their places among the seeds, what there is to say of members whose costs were no longer finite. They have
        an empty history, and the weights that they began with; a new ladder has no statistics to predict with.
    """

    ladders: list[Ladder]
    histories: list[History]
    interrupted: bool
    stop_asked: bool = False
    diverged: Mapping[int, str] = {}


class TrainingDivergedError(ArithmeticError):
    """A cost stopped being a finite number.

    Attributes
    ----------
    members
        By their places among the seeds, what there is to say of each member that it happened to.

    Examples
    --------
    >>> print(TrainingDivergedError({0: "Training stopped in epoch 3."}))
    Training stopped in epoch 3.
    >>> print(TrainingDivergedError({0: "Training stopped in epoch 3.", 1: "Training stopped in epoch 2."}))
    Training stopped in epoch 3. It is not the only one: 2 diverged.
    """

    def __init__(self, members: Mapping[int, str]) -> None:
        super().__init__(members)
        self.members = members

    def __str__(self) -> str:
        first, *others = self.members.values()
        return f"{first} It is not the only one: {len(self.members)} diverged." if others else first


class Parted(NamedTuple):
    """A fleet that goes on without some of its members, by their places: what became of those, and the others."""

    diverged: Mapping[int, str]
    others: list[Kept]


@dataclass(frozen=True, eq=False)
class Job:
    """What is to be trained: the arguments of `fit`, one recipe, split and seed for each member."""

    examples: Examples
    splits: Sequence[Split]
    recipes: Sequence[Recipe]
    seeds: Sequence[int]
    start: Sequence[Ladder] | None
    build: Build
    keeping: Keeping | None = None
    """Where it is kept while it is under way."""
    names: Sequence[str] = ()
    """What the members are kept under."""

    @cached_property
    def weights(self) -> Tensor:
        """λ of every level, ``(members, 1 + rungs)``."""
        return torch.tensor([recipe.levels_of_costs() for recipe in self.recipes], dtype=torch.float64, device="cpu")

    def of(self, members: Sequence[int]) -> "Job":
        """The same for some of the members."""
        return replace(
            self,
            splits=[self.splits[member] for member in members],
            recipes=[self.recipes[member] for member in members],
            seeds=[self.seeds[member] for member in members],
            start=None if self.start is None else [self.start[member] for member in members],
            names=[self.names[member] for member in members] if self.names else (),
        )

    def build_member(self, member: int) -> Ladder:
        """A ladder with its first weights, or with those that it goes on from."""
        recipe, shape = self.recipes[member], tuple(self.examples.rows.shape[1:])
        ladder = self.build(recipe, shape, self.examples.outputs, self.seeds[member])
        if self.start is not None:
            _take_over(ladder, self.start[member])
        return ladder


def train(
    job: Job,
    device: torch.device,
    on_epoch: Callable[[History], None],
    stop: Event,
    kept: list[Kept] | None = None,
) -> Trained | Parted:
    """Train all members of a job as one fleet, from where they were kept until the last epoch, Ctrl-C or `stop`.

    Or until some of them diverge: the others are then as they were after that epoch, since their costs are their own.
    What was kept is taken out of its list.

    Examples
    --------
    >>> from tikas.data.splits import split
    >>> from tikas.training.building import build_ladder
    >>> rows, targets = torch.rand(60, 8), torch.arange(60) % 3
    >>> recipe = Recipe(data="array", network=(5,), batch_size=20, epochs=2)
    >>> job = Job(Examples(rows, targets, 3), [split(targets.numpy(), 9)], [recipe], [0], None, build_ladder)
    >>> trained = train(job, torch.device("cpu"), lambda lines: print("epoch", lines[0]["epoch"]), Event())
    epoch 1
    epoch 2
    >>> trained.interrupted
    False
    """
    job = replace(job, examples=job.examples.to(device))
    recipe, exact = job.recipes[0], job.recipes[0].precision == "exact"
    ladders = [job.build_member(member).to(device) for member in range(len(job.seeds))]
    streams = Streams(
        job.examples,
        job.splits,
        job.seeds,
        ladders[0].shapes,
        recipe.batch_size,
        recipe.labeled_batch_size,
        most_in_block=UPDATES_IN_A_REPLAY if device.type == "cuda" else 1,
        denoising=any(recipe.costs),
    )
    fleet = launch(ladders, streams, recipe.epochs * streams.updates, exact=exact)
    held_out = HeldOut(fleet, job.splits, recipe.calibration) if len(job.splits[0].validation) else None
    histories: list[History] = [[] for _ in job.seeds]
    size = 3 * sum(parameter.nbytes for ladder in ladders for parameter in ladder.parameters())  # with two moments
    if kept is not None:
        histories = [list(member.history) for member in kept]
        fleet.go_on_from(_stacked(kept), len(histories[0]) * streams.updates)
        kept.clear()  # now that it is in place: nobody need hold it until the last epoch
    diverged: dict[int, str] = {}
    try:
        with suitable_arithmetic(fleet, exact=exact):
            for epoch in range(len(histories[0]) + 1, recipe.epochs + 1):
                if stop.is_set() or diverged:
                    break
                lines, diverged = _train_epoch(fleet, job, epoch)
                if len(diverged) == len(lines):
                    break
                if held_out is not None and (epoch % held_out.every == 0 or epoch == recipe.epochs):
                    pairs = zip(lines, held_out.errors(), strict=True)
                    lines = [{**line, "validation_error": error} for line, error in pairs]
                for history, line in zip(histories, lines, strict=True):
                    history.append(line)
                keeping = None if diverged or epoch == recipe.epochs else job.keeping
                if keeping is not None and keeping.is_due(job.names, size):
                    keeping.keep(job.names, fleet.snapshot, histories)
                on_epoch([line for member, line in enumerate(lines) if member not in diverged])
    except KeyboardInterrupt:
        stop.set()
    others = [member for member in range(len(job.seeds)) if member not in diverged]
    try:
        if diverged and others and not stop.is_set() and len(histories[0]) < recipe.epochs:
            return Parted(diverged, _kept(fleet, histories, others))
        return _finish(fleet, job, held_out, histories, diverged, stop)
    except KeyboardInterrupt:  # there is little left to do, and everything to lose
        stop.set()
        return _finish(fleet, job, held_out, histories, diverged, stop)


def _kept(fleet: Fleet, histories: Sequence[History], members: Sequence[int]) -> list[Kept]:
    """Some of the members as they are after the epochs of their histories."""
    tensors = fleet.snapshot()
    return [
        Kept({name: tensor[member] for name, tensor in tensors.items()}, histories[member], []) for member in members
    ]


def _stacked(kept: Sequence[Kept]) -> dict[str, Tensor]:
    """What was kept of all members, ``(members, ...)`` of everything."""
    return {name: torch.stack([member.tensors[name] for member in kept]) for name in kept[0].tensors}


def _measure_last(histories: Sequence[History], held_out: HeldOut | None) -> None:
    """Where training was cut short, put the error of the members as they are now into last lines that have none."""
    lacking = [bool(history) and "validation_error" not in history[-1] for history in histories]
    if held_out is None or not any(lacking):
        return
    for history, lacks, error in zip(histories, lacking, held_out.errors(), strict=True):
        if lacks:
            history[-1] = {**history[-1], "validation_error": error}


def _finish(
    fleet: Fleet,
    job: Job,
    held_out: HeldOut | None,
    histories: Sequence[History],
    diverged: Mapping[int, str],
    stop: Event,
) -> Trained:
    """The trained ladders in eval mode, with the statistics of the rows that each has seen, on the CPU.

    Those that diverged are as they are, and it is said which they are.
    """
    if len(diverged) < len(histories):
        _measure_last(histories, held_out)
    interrupted = len(histories[0]) < job.recipes[0].epochs
    ladders, rows = fleet.disband(), job.examples.rows
    diverged = {**_ruined(ladders, job), **diverged}
    for member, (ladder, split) in enumerate(zip(ladders, job.splits, strict=True)):
        if member in diverged:
            continue
        chosen = calibration_rows(split, job.recipes[0].calibration)
        ladder.train()  # where Ctrl-C found it in eval mode: frozen layers are known by being in that mode alone
        with full_precision():
            ladder.calibrate(rows[torch.as_tensor(chosen, device=rows.device)])
        ladder.eval().cpu()
    return Trained(ladders, list(histories), interrupted and len(diverged) < len(ladders), stop.is_set(), diverged)


def _train_epoch(fleet: Fleet, job: Job, epoch: int) -> tuple[History, dict[int, str]]:
    """One pass over the unlabelled rows: a line of history for every member, and what became of those that diverged."""
    started = time.perf_counter()
    updates = fleet.streams.updates
    rates = _rates(job.recipes, (epoch - 1) * updates, updates)
    if not isinstance(fleet.ladders[0], Ladder):  # the one member, which may draw by itself
        seed_draws(job.seeds[0], epoch)
    costs = fleet.train_epoch(rates if len(set(map(_schedule, job.recipes))) > 1 else rates[:, 0])
    costs = costs.view(updates, fleet.members, -1).double().cpu()
    seconds = time.perf_counter() - started
    means = costs.mean(0)
    denoising = means[:, 1:]  # of a network that somebody else wrote the top's alone
    totals = means[:, 0] + (denoising * job.weights[:, -denoising.shape[1] :]).sum(1)
    columns = (rates[-1], totals, means[:, 0], denoising)
    lines = [
        {
            "epoch": epoch,
            "learning_rate": rate,
            "total": total,
            "supervised": supervised,
            "denoising": levels,
            "seconds": seconds,
        }
        for rate, total, supervised, levels in zip(*(column.tolist() for column in columns), strict=True)
    ]
    return lines, _diverged(costs, epoch, job)


def _rates(recipes: Sequence[Recipe], first: int, updates: int) -> Tensor:
    """The learning rate of each update of an epoch and each member, ``(updates, members)``; of a schedule once."""
    one_of_each = {_schedule(recipe): recipe for recipe in recipes}
    rates = {
        schedule: [recipe.rate(first + update, recipe.epochs * updates) for update in range(updates)]
        for schedule, recipe in one_of_each.items()
    }
    return torch.tensor([rates[_schedule(recipe)] for recipe in recipes], dtype=torch.float64).T.contiguous()


def _schedule(recipe: Recipe) -> tuple[float, float]:
    """What decides on the learning rates of a member, beside the epochs that all have alike."""
    return recipe.learning_rate, recipe.annealed


def _take_over(ladder: Ladder, earlier: Ladder) -> None:
    """Put the weights of an earlier ladder into a new one, which has the recipe's own noise and costs."""
    try:
        ladder.to(next(earlier.parameters()).dtype).load_state_dict(earlier.state_dict())
    except RuntimeError as error:
        raise ValueError(
            "The ladders to go on from have other rungs, another denoiser or costs on other levels than the recipe "
            "asks for. Keep those as they were, or start anew."
        ) from error


def _diverged(costs: Tensor, epoch: int, job: Job) -> dict[int, str]:
    """What to say of members with a cost ``(updates, members, 1 + levels)`` that is no number: which went first."""
    said: dict[int, str] = {}
    for update, member, cost in (~costs.isfinite()).nonzero().tolist():
        name = "the supervised cost" if cost == 0 else f"the denoising cost of level {cost - 1}"
        said.setdefault(
            member,
            f"Training stopped in epoch {epoch}, update {update + 1}: {name} was no longer a finite number. "
            f"{_advice(job.recipes[member])}",
        )
    return said


def _ruined(ladders: Sequence[Ladder], job: Job) -> dict[int, str]:
    """The costs show an update's damage only in the next one; after the last, the weights themselves are looked at."""
    said: dict[int, str] = {}
    for member, ladder in enumerate(ladders):
        for name, parameter in ladder.named_parameters():
            if not bool(parameter.isfinite().all()):
                said.setdefault(
                    member, f"After the last update {name} was no longer finite. {_advice(job.recipes[member])}"
                )
    return said


def _advice(recipe: Recipe) -> str:
    or_costs = f" or smaller costs than {recipe.costs}" if any(recipe.costs) else ""
    return (
        f"Check that the columns are of about unit scale, then try a learning rate below {recipe.learning_rate:g}"
        f"{or_costs}."
    )
