"""Training, for every door: members checked, spread over devices and fleets, and brought together again."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import fields

import torch

from tikas.data.splits import Split
from tikas.data.streams import Examples
from tikas.model.ladder import Ladder
from tikas.training.allocation import freed_memory_kept
from tikas.training.building import build_ladder
from tikas.training.devices import single_precision, without_autocast, without_default_device
from tikas.training.evaluation import calibration_rows, error_of
from tikas.training.groups import suitable_devices, train_in_groups
from tikas.training.keeping import Keeping, Memory, name_of
from tikas.training.loop import Build, History, Job, Progress, Trained, TrainingDivergedError
from tikas.training.randomness import own_randomness
from tikas.training.recipe import Calibration, Recipe

__all__ = ["Build", "History", "Progress", "Trained", "TrainingDivergedError", "error_of", "fit"]

OF_A_MEMBER = ("labels", "noise", "costs", "learning_rate", "annealed")
"""The settings in which the members of a fleet may differ: numbers that the one program is told for each."""


def fit(
    examples: Examples,
    splits: Sequence[Split],
    recipe: Recipe | Sequence[Recipe],
    seeds: Sequence[int],
    *,
    start: Sequence[Ladder] | None = None,
    device: str | torch.device | None = None,
    on_epoch: Callable[[Progress], None] | None = None,
    build: Build = build_ladder,
    keep: Keeping | None = None,
) -> Trained:
    """Train one ladder for every seed.

    A member learns the same in any company: where others diverge, it goes on without them.

    Parameters
    ----------
    examples
        The rows, and the targets of those that are labelled.
    splits
        For each seed, which rows are labelled, held out or only looked at.
    recipe
        All else that the result depends on. One for each seed may be given, if they differ in nothing but labels (all
        of them for everyone or for nobody), noise, costs (zero on the same levels), learning rate and its annealing: a
        grid of settings trains as one program too.
    seeds
        Each decides on a member's first weights, order of rows and noise.
    start
        Ladders to go on from, instead of new ones.
    device
        Where to train; by default on every GPU that there is, members spread over them, or else on the CPU. A network
        of somebody else's making trains on one GPU.
    on_epoch
        Called before the first epoch, with what the training needs, and after every epoch.
    build
        Makes the members; by default the ladders that the recipe describes.
    keep
        Keeps training that is under way, every minute or so, and has the same call go on from there: on a CPU, and in
        the same company, to the same result, bit by bit. What it kept is to be discarded when the result is safe.

    Returns
    -------
    Trained
        The ladders and their histories, in the order of the seeds, and in `diverged` the members that are lost.

    Raises
    ------
    ValueError
        Where there are not equally many seeds, splits, recipes and ladders to go on from, or members could not be
        trained by one program, or have no labelled rows, or fewer than two rows to calibrate with, or both `start` and
        `keep` are given.
    TrainingDivergedError
        When a cost of every member is no longer finite, with the epoch, the cost that went first and what to try.

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
    recipes = [recipe] * len(seeds) if isinstance(recipe, Recipe) else list(recipe)
    _check_members(recipes, splits, seeds, start)
    devices = suitable_devices(device, len(seeds))
    names = [str(member) for member in range(len(seeds))]
    if keep is not None:
        if start is not None:
            raise ValueError("Ladders to go on from have no name to be kept under. Leave out either keep or start.")
        members = zip(recipes, seeds, splits, strict=True)
        names = [name_of(*member, examples, devices[0], keep.what) for member in members]
        keep.names = names
    elif len(seeds) > 1:  # memory may part them
        keep = Keeping(Memory())
    # Whatever the caller is in
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        single_precision(),
        without_autocast(),
        without_default_device(),
        freed_memory_kept(devices[0]),
        own_randomness() if recipes[0].is_module or build is not build_ladder else nullcontext(),
    ):
        job = Job(examples.outside_inference_mode(), splits, recipes, seeds, start, build, keep, names)
        return train_in_groups(job, devices, on_epoch)


def _check_members(
    recipes: Sequence[Recipe], splits: Sequence[Split], seeds: Sequence[int], start: Sequence[Ladder] | None
) -> None:
    """As many of each as there are members, and recipes that one program can train."""
    if not len(recipes) == len(splits) == len(seeds) or not seeds:
        raise ValueError(
            f"Got {len(seeds)} seeds, {len(splits)} splits and {len(recipes)} recipes; give one of each for a member, "
            "and at least one member."
        )
    if start is not None and len(start) != len(seeds):
        raise ValueError(f"Got {len(start)} ladders to go on from and {len(seeds)} seeds; give one for each member.")
    sizes = {(len(split.unlabeled), len(split.validation)) for split in splits}
    if len(sizes) > 1:
        raise ValueError(
            f"Members of a fleet have equally many unlabelled and held-out rows; got {sorted(sizes)}. Fit those apart."
        )
    _check_labels([len(split.labeled) for split in splits], len(splits[0].unlabeled), recipes[0].calibration)
    _check_calibration(splits, recipes[0].calibration)
    for other in recipes[1:]:
        different = [
            field.name
            for field in fields(Recipe)
            if field.name not in OF_A_MEMBER and getattr(other, field.name) != getattr(recipes[0], field.name)
        ]
        if different:
            raise ValueError(
                f"Members of a fleet may differ in {', '.join(OF_A_MEMBER)}; these differ in {', '.join(different)}. "
                "Fit those apart."
            )
        levels = [[weight > 0 for weight in recipe.levels_of_costs()] for recipe in (recipes[0], other)]
        if levels[0] != levels[1]:
            raise ValueError(
                f"costs={recipes[0].costs} and costs={other.costs} are zero on other levels, which makes other "
                "programs. Fit those apart."
            )


def _check_labels(labeled: Sequence[int], unlabeled: int, calibration: str) -> None:
    """Members may have any number of labels but none, unless the shape of something follows from it."""
    if 0 in labeled:
        raise ValueError(
            "A member has no labelled rows, and the supervised cost is a mean over them. Give each at least one."
        )
    if len(set(labeled)) == 1:
        return
    counts = f"labels of {', '.join(map(str, sorted(set(labeled))))} rows"
    if unlabeled in labeled:
        raise ValueError(
            f"Members with {counts} cannot train as one fleet: where all {unlabeled} are labelled, both streams are "
            "the same rows. Fit those apart."
        )
    if calibration == "labeled":
        raise ValueError(f"Members with {counts} cannot be calibrated by those as one fleet. Fit those apart.")


def _check_calibration(splits: Sequence[Split], calibration: Calibration) -> None:
    """Rows enough for the statistics for prediction, which are taken when all epochs are over."""
    fewest = min(len(calibration_rows(split, calibration)) for split in splits)
    if fewest < 2:
        kind, remedy = ("labelled", ", or set calibration='all'") if calibration == "labeled" else ("training", "")
        raise ValueError(
            f"calibration={calibration!r} takes the statistics for prediction from the {kind} rows, and a member has "
            f"{fewest} of them, too few for a deviation. Give at least two{remedy}."
        )
