"""The loop: epochs, annealing, history, calibration; one for every door."""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tikas.data.splits import Split
from tikas.data.streams import Examples, Streams
from tikas.model.ladder import Ladder
from tikas.training.engine import UPDATES_IN_A_REPLAY, launch, suitable_threads
from tikas.training.fleet import Fleet, build_ladder
from tikas.training.recipe import Recipe

History = list[dict[str, Any]]
Build = Callable[[Recipe, Sequence[int], int, int | None], Ladder]
"""Makes a member of a recipe, the shape of a row, the number of outputs and a seed, as `build_ladder` does."""


class Progress(NamedTuple):
    """What the loop tells after every epoch: how far it is, and the newest line of every member's history."""

    epoch: int
    epochs: int
    members: list[dict[str, Any]]


class Trained(NamedTuple):
    """What training gives back.

    Attributes
    ----------
    ladders
        One for each seed, calibrated and in eval mode, on the CPU.
    histories
        For each seed a list of dicts, one an epoch: ``epoch``, ``learning_rate``, ``total``, ``supervised``,
        ``denoising`` (a list from the input up), ``seconds``, and ``validation_error`` where rows were held out.
    interrupted
        Whether Ctrl-C ended it before its last epoch.
    """

    ladders: list[Ladder]
    histories: list[History]
    interrupted: bool


class TrainingDivergedError(ArithmeticError):
    """A cost stopped being a finite number."""


def fit(
    examples: Examples,
    splits: Sequence[Split],
    recipe: Recipe,
    seeds: Sequence[int],
    *,
    start: Sequence[Ladder] | None = None,
    device: str | torch.device | None = None,
    on_epoch: Callable[[Progress], None] | None = None,
    build: Build = build_ladder,
) -> Trained:
    """Train one ladder for every seed.

    Parameters
    ----------
    examples
        The rows, and the targets of those that are labelled.
    splits
        For each seed, which rows are labelled, held out or only looked at.
    recipe
        All else that the result depends on.
    seeds
        Each decides on a member's first weights, order of rows and noise.
    start
        Ladders to go on from, instead of new ones.
    device
        Where to train; by default on a GPU if there is one.
    on_epoch
        Called after every epoch.
    build
        Makes the members; by default the ladders that the recipe describes.

    Raises
    ------
    TrainingDivergedError
        When a cost is no longer finite, with the epoch, the cost that went first and what to try.

    Examples
    --------
    >>> import torch
    >>> from tikas.data.splits import split
    >>> from tikas.data.streams import Examples
    >>> rows, targets = torch.rand(60, 8), torch.arange(60) % 3
    >>> recipe = Recipe(data="array", network=(5,), batch_size=20, epochs=2)
    >>> trained = fit(Examples(rows, targets, outputs=3), [split(targets.numpy(), 9)], recipe, seeds=[0])
    >>> [line["epoch"] for line in trained.histories[0]]
    [1, 2]
    """
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    examples = examples.to(device)
    shape = tuple(examples.rows.shape[1:])
    ladders = [build(recipe, shape, examples.outputs, seed) for seed in seeds]
    if start is not None:
        _take_over(ladders, start)
    streams = Streams(
        examples,
        splits,
        seeds,
        ladders[0].shapes,
        recipe.batch_size,
        recipe.labeled_batch_size,
        most_in_block=UPDATES_IN_A_REPLAY if device.type == "cuda" else 1,
        denoising=any(recipe.costs),
    )
    fleet = launch([ladder.to(device) for ladder in ladders], recipe, streams)
    histories: list[History] = [[] for _ in seeds]
    interrupted = False
    with suitable_threads(fleet):
        try:
            for epoch in range(1, recipe.epochs + 1):
                lines = _train_epoch(fleet, epoch)
                _add_validation_errors(lines, fleet, examples, splits)
                for history, line in zip(histories, lines, strict=True):
                    history.append(line)
                if on_epoch is not None:
                    on_epoch(Progress(epoch, recipe.epochs, lines))
        except KeyboardInterrupt:
            interrupted = True
    ladders = fleet.disband()
    _check_weights(ladders, recipe)
    for ladder, split in zip(ladders, splits, strict=True):
        chosen = split.labeled if recipe.calibration == "labeled" else split.unlabeled
        ladder.calibrate(examples.rows[torch.as_tensor(chosen, device=device)]).eval().cpu()
    return Trained(ladders, histories, interrupted)


def _train_epoch(fleet: Fleet, epoch: int) -> History:
    """One pass over the unlabelled rows; a line of history for every member."""
    started = time.perf_counter()
    recipe, updates = fleet.recipe, fleet.streams.updates
    first = (epoch - 1) * updates
    rates = [recipe.rate(first + update, recipe.epochs * updates) for update in range(updates)]
    costs = fleet.train_epoch(rates).view(updates, fleet.members, -1).double().cpu()
    _check_finite(costs, epoch, recipe)
    means = costs.mean(0)
    weights = torch.tensor([1.0, *recipe.levels_of_costs()], dtype=torch.float64)
    return [
        {
            "epoch": epoch,
            "learning_rate": rates[-1],
            "total": float(member @ weights),
            "supervised": float(member[0]),
            "denoising": member[1:].tolist(),
            "seconds": time.perf_counter() - started,
        }
        for member in means
    ]


def _take_over(ladders: Sequence[Ladder], start: Sequence[Ladder]) -> None:
    """Put the weights of earlier ladders into new ones, which have the recipe's own noise and costs."""
    for ladder, earlier in zip(ladders, start, strict=True):
        try:
            ladder.to(earlier.rungs[1].mean.dtype).load_state_dict(earlier.state_dict())
        except RuntimeError as error:
            raise ValueError(
                "The ladders to go on from have other rungs, another denoiser or costs on other levels than the recipe "
                "asks for. Keep those as they were, or start anew."
            ) from error


def _check_finite(costs: Tensor, epoch: int, recipe: Recipe) -> None:
    """Stop when a cost ``(updates, members, 1 + levels)`` is no longer a number, and say which went first."""
    if bool(costs.isfinite().all()):
        return
    update, member, cost = (~costs.isfinite()).nonzero()[0].tolist()
    name = "the supervised cost" if cost == 0 else f"the denoising cost of level {cost - 1}"
    place = f"epoch {epoch}, update {update + 1}" + (f", member {member}" if costs.shape[1] > 1 else "")
    raise TrainingDivergedError(f"Training stopped in {place}: {name} was no longer a finite number. {_advice(recipe)}")


def _check_weights(ladders: Sequence[Ladder], recipe: Recipe) -> None:
    """The costs show an update's damage only in the next one; after the last, the weights themselves are looked at."""
    for member, ladder in enumerate(ladders):
        for name, parameter in ladder.named_parameters():
            if not bool(parameter.isfinite().all()):
                whose = f" of member {member}" if len(ladders) > 1 else ""
                raise TrainingDivergedError(
                    f"After the last update {name}{whose} was no longer finite. {_advice(recipe)}"
                )


def _advice(recipe: Recipe) -> str:
    return (
        f"Check that the columns are of about unit scale, then try a learning rate below {recipe.learning_rate:g} "
        f"or smaller costs than {recipe.costs}."
    )


@torch.no_grad()
def _add_validation_errors(lines: History, fleet: Fleet, examples: Examples, splits: Sequence[Split]) -> None:
    """The error of every member on the rows held out for it: a percentage, or a root mean square for regression.

    Statistics come from no more than 10,000 rows: enough to watch the training by.
    """
    if not any(len(split.validation) for split in splits):
        return
    for line, ladder, split in zip(lines, fleet.disband(), splits, strict=True):
        if len(split.validation):
            held_out = torch.as_tensor(split.validation, device=examples.rows.device)
            some = torch.as_tensor(split.unlabeled[:: 1 + len(split.unlabeled) // 10_000], device=held_out.device)
            ladder.calibrate(examples.rows[some]).eval()
            line["validation_error"] = error_of(ladder, examples.rows[held_out], examples.targets[held_out])


@torch.no_grad()
def error_of(ladder: Ladder, rows: Tensor, targets: Tensor) -> float:
    """The percentage of rows that a calibrated ladder gets wrong, or for regression its root mean square error."""
    outputs = torch.cat([ladder(chunk) for chunk in rows.split(8192)])
    if ladder.task == "classification":
        return 100 * float((outputs.argmax(-1) != targets).double().mean())
    return float(np.sqrt(float((outputs - targets).double().square().mean())))
