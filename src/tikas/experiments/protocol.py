"""How settings are chosen: on rows held out of the training rows, by code that never gets hold of a test row.

A `Setting` is tried on `TrainingRows`, a value that has no test rows in it, and what comes out is a validation error.
A `Cell` holds out nothing and takes `Rows`, test rows included; its recipe is written down before it runs. There is no
function that takes test rows and chooses.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

import numpy as np
import torch
from numpy.typing import NDArray

from tikas.data.preparations import Preparation
from tikas.data.streams import Examples
from tikas.experiments.appendix import build_for
from tikas.experiments.cells import program_of
from tikas.experiments.rows import Rows
from tikas.experiments.run import check_preparation, errors_of_members, splits_of
from tikas.training.fit import Progress, Trained, fit
from tikas.training.keeping import Keeping
from tikas.training.recipe import Recipe

HELD_OUT = 10_000


@dataclass(frozen=True)
class Setting:
    """One point of a study's grid: a recipe that holds rows out, to be judged by its error on them.

    Parameters
    ----------
    name
        ``study/what/labels/setting``.
    recipe
        All that the figure depends on but the seed; it holds out rows.
    seeds
        How many members are wanted.
    attached
        The hidden rung that feeds a plain decoder, where the network is an autoencoder and no ladder.

    Examples
    --------
    >>> Setting("study/gamma/100/0.5", Recipe(costs=0.5, validation=HELD_OUT)).study
    'study/gamma/100'
    >>> Setting("study/gamma/100/0.5", Recipe(costs=0.5))
    Traceback (most recent call last):
    ValueError: study/gamma/100/0.5: a setting is judged on rows held out of the training rows, but validation is 0.
    """

    name: str
    recipe: Recipe
    seeds: int = 10
    attached: int | None = None

    def __post_init__(self) -> None:
        if not self.recipe.validation:
            raise ValueError(
                f"{self.name}: a setting is judged on rows held out of the training rows, but validation is 0."
            )

    @property
    def study(self) -> str:
        """The name of the study that this is a point of."""
        return self.name.rpartition("/")[0]

    @property
    def program(self) -> Hashable:
        """Settings that have it in common can train as one fleet: they differ in numbers that each member is told.

        Examples
        --------
        >>> low, high, none = (Setting("study/cost", Recipe(costs=cost, validation=10)) for cost in (0.5, 2, 0))
        >>> low.program == high.program, low.program == none.program
        (True, False)
        """
        return self.study, program_of(self.recipe, self.attached)


@dataclass(frozen=True, eq=False)
class TrainingRows:
    """All that a choice may depend on: the training rows and their classes. There are no test rows here."""

    x: NDArray[np.float32]
    y: NDArray[np.int64]
    classes: NDArray[np.generic]
    preparation: Preparation | None = None


@dataclass(frozen=True, eq=False)
class Trial:
    """What settings gave: the members, each one's error on the rows that were held out for it, and the time of all."""

    trained: Trained
    validation_errors: list[float]
    """In percent."""
    labeled_statistics_errors: list[float]
    """The same with statistics of the labelled rows alone."""
    seconds: float


def training_rows(rows: Rows) -> TrainingRows:
    """Leave the test rows behind.

    Examples
    --------
    >>> from tikas.experiments.rows import load_rows
    >>> rows = training_rows(load_rows("digits"))
    >>> rows.x.shape, hasattr(rows, "test_x")
    ((1297, 64), False)
    """
    return TrainingRows(rows.train_x, rows.train_y, rows.classes, rows.preparation)


def try_settings(
    settings: Sequence[Setting],
    seeds: Sequence[int],
    rows: TrainingRows,
    *,
    device: str | None = None,
    on_epoch: Callable[[Progress], None] | None = None,
    keep: Keeping | None = None,
) -> Trial:
    """Train a member for each setting and its seed, all as one fleet, and measure each on the rows held out for it.

    Parameters
    ----------
    settings, seeds
        One of each for a member. The settings are all of one `program`; a seed decides on the rows that are held out
        too.
    rows
        To train on and to hold out from.
    device
        Where to train; by default on a GPU if there is one.
    on_epoch
        Called after every epoch.
    keep
        Keeps training that is under way; what it had kept goes on.

    Raises
    ------
    ValueError
        Where the settings are of several programs, or the rows are not preprocessed as they say.

    Examples
    --------
    >>> from dataclasses import replace
    >>> from tikas.experiments.rows import load_rows
    >>> recipe = Recipe(data="digits", labels=50, validation=300, network=(32,), epochs=1)
    >>> grid = [Setting(f"study/noise/50/{noise}", replace(recipe, noise=noise)) for noise in (0.1, 0.2)]
    >>> len(try_settings(grid, [0, 0], training_rows(load_rows("digits"))).validation_errors)
    2
    """
    if len({setting.program for setting in settings}) > 1:
        raise ValueError(f"{settings[0].name} and others cannot train as one program. Try them one after another.")
    check_preparation(settings[0].recipe, rows.preparation)
    started = time.perf_counter()
    recipes = [setting.recipe for setting in settings]
    splits = splits_of(recipes, seeds, rows.y)
    examples = Examples(torch.from_numpy(rows.x), torch.from_numpy(rows.y), len(rows.classes))
    trained = fit(
        examples,
        splits,
        recipes,
        seeds,
        device=device,
        on_epoch=on_epoch,
        build=build_for(settings[0].attached),
        keep=keep,
    )
    held_out = ((examples.rows[chosen.validation], examples.targets[chosen.validation]) for chosen in splits)
    errors = errors_of_members(trained, recipes, splits, rows.x, held_out, device)
    return Trial(trained, *errors, time.perf_counter() - started)


def choose(validation_errors: Mapping[Setting, Sequence[float]]) -> Setting:
    """The setting with the lowest mean validation error; of equals, the first.

    Raises
    ------
    TypeError
        Where something else than settings is to choose from: a cell has test errors, and those choose nothing.

    Examples
    --------
    >>> grid = {cost: Recipe(costs=cost, validation=HELD_OUT) for cost in (0.5, 1)}
    >>> one, other = (Setting(f"study/gamma/100/{cost}", recipe) for cost, recipe in grid.items())
    >>> choose({one: [3.1, 2.9], other: [3.5, 3.3]}).name
    'study/gamma/100/0.5'
    """
    for setting in validation_errors:
        if not isinstance(setting, Setting):
            raise TypeError(f"Choices are made among settings, which hold out training rows; got {setting!r}.")
    return min(validation_errors, key=lambda setting: mean(validation_errors[setting]))
