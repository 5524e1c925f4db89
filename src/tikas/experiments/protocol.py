"""How settings are chosen: on rows held out of the training rows, by code that never gets hold of a test row.

A `Setting` is tried on `TrainingRows`, a value that has no test rows in it, and what comes out is a validation error.
A `Cell` holds out nothing and takes `Rows`, test rows included; its recipe is written down before it runs. There is no
function that takes test rows and chooses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

import numpy as np
from numpy.typing import NDArray

from tikas.data.splits import split
from tikas.data.whitening import Whitening
from tikas.experiments.appendix import build_for
from tikas.experiments.run import Rows, Run, error_on, run
from tikas.training.fit import Progress
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


@dataclass(frozen=True, eq=False)
class TrainingRows:
    """All that a choice may depend on: the training rows and their classes. There are no test rows here."""

    x: NDArray[np.float32]
    y: NDArray[np.int64]
    classes: NDArray[np.generic]
    whitening: Whitening | None = None


@dataclass(frozen=True, eq=False)
class Trial:
    """What a setting gave: the run, and each seed's error on the rows that were held out for it, in percent."""

    run: Run
    validation_errors: list[float]


def training_rows(rows: Rows) -> TrainingRows:
    """Leave the test rows behind.

    Examples
    --------
    >>> from tikas.experiments.run import load_rows
    >>> rows = training_rows(load_rows("digits"))
    >>> rows.x.shape, hasattr(rows, "test_x")
    ((1297, 64), False)
    """
    return TrainingRows(rows.train_x, rows.train_y, rows.classes, rows.whitening)


def try_setting(
    setting: Setting,
    seeds: Sequence[int],
    rows: TrainingRows,
    *,
    device: str | None = None,
    on_epoch: Callable[[Progress], None] | None = None,
) -> Trial:
    """Train one member for every seed, which also decides which rows are held out, and measure each on those.

    Examples
    --------
    >>> from tikas.experiments.run import load_rows
    >>> recipe = Recipe(data="digits", labels=50, validation=300, network=(32,), epochs=1)
    >>> trial = try_setting(Setting("study/digits/50/quick", recipe), [0], training_rows(load_rows("digits")))
    >>> len(trial.validation_errors), trial.run.test_errors
    (1, [])
    """
    recipe = setting.recipe
    untested = Rows(rows.x, rows.y, rows.classes, rows.x[:0], rows.y[:0], whitening=rows.whitening)
    outcome = run(recipe, seeds, untested, device=device, on_epoch=on_epoch, build=build_for(setting.attached))
    labels = None if recipe.labels == "all" else recipe.labels
    errors = []
    for seed, ladder in zip(seeds, outcome.trained.ladders, strict=True):
        held_out = split(rows.y, labels, validation=recipe.validation, seed=seed).validation
        errors.append(error_on(ladder, rows.x[held_out], rows.y[held_out], device))
    return Trial(outcome, errors)


def choose(validation_errors: Mapping[str, Sequence[float]]) -> str:
    """The setting with the lowest mean validation error; of equals, the first.

    Examples
    --------
    >>> choose({"study/gamma/100/0.5": [3.1, 2.9], "study/gamma/100/1": [3.5, 3.3]})
    'study/gamma/100/0.5'
    """
    return min(validation_errors, key=lambda name: mean(validation_errors[name]))
