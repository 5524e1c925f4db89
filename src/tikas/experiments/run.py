"""One recipe on its rows: split by seed, trained, and measured on the test rows."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import nan
from types import NoneType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tikas.data.preparations import PREPARATIONS, Preparation
from tikas.data.preprocess import range_to_keep, warn_of_few_rows
from tikas.data.splits import Split, split
from tikas.data.streams import Examples
from tikas.estimators import LadderClassifier, LadderRegressor
from tikas.estimators.loading import estimator_of
from tikas.experiments.rows import Rows
from tikas.fitted import Fitted, lost_members
from tikas.model.ladder import Ladder
from tikas.training.building import build_ladder
from tikas.training.fit import Build, Progress, Trained, error_of, fit
from tikas.training.fleet import copy_on
from tikas.training.keeping import Keeping
from tikas.training.precision import full_precision
from tikas.training.recipe import Recipe

Estimator = LadderClassifier | LadderRegressor


@dataclass(frozen=True, eq=False)
class Measured:
    """Members as they were trained, and the test errors of each, in percent, if there were test rows.

    The paper's authors took the statistics for prediction from the labelled rows alone; the second list has the errors
    with those.
    """

    trained: Trained
    test_errors: list[float]
    labeled_statistics_errors: list[float]
    seconds: float


@dataclass(frozen=True, eq=False)
class Run(Measured):
    """What came out of one recipe: the same, an estimator of all seeds and, without test rows, errors on hidden labels.

    Examples
    --------
    >>> from tikas.experiments.rows import load_rows
    >>> rows = load_rows("digits")
    >>> outcome = run(Recipe(data="digits", labels=50, network=(32,), epochs=1), [0], rows)
    >>> outcome.estimator.predict(rows.test_x[:3]).shape, len(outcome.labeled_statistics_errors)
    ((3,), 1)
    """

    estimator: Estimator
    hidden_labels: int
    """How many known labels were hidden from each member, where there are no test rows."""
    hidden_errors: list[float]
    """Of each member on the rows of those, in percent; of values the root mean square, in deviations of these."""


def run(
    recipe: Recipe,
    seeds: Sequence[int],
    rows: Rows,
    *,
    device: str | None = None,
    on_epoch: Callable[[Progress], None] | None = None,
    on_trained: Callable[[Estimator, Trained], None] | None = None,
    build: Build = build_ladder,
) -> Run:
    """Train one member for every seed, which also decides which rows are labelled, and measure each on the test rows.

    Where there are none, each is measured on the training rows whose labels were hidden from it, if any were. Before
    anything is measured `on_trained` is called, so that what was learnt can be saved whatever comes then.

    Examples
    --------
    >>> from tikas.experiments.rows import load_rows
    >>> outcome = run(Recipe(data="digits", labels=50, network=(32,), epochs=1), [0], load_rows("digits"))
    >>> len(outcome.test_errors), outcome.hidden_labels
    (1, 0)
    """
    recipes = [recipe] * len(seeds)
    rows = rows.scaled(splits_of(recipes, seeds, rows.train_y, rows.classes.tolist()))
    meaning = "classes" if rows.values is None else "target_scale"
    known = {name: getattr(rows, name) for name in ("columns", "preparation", "input_shape", meaning)}
    known["input_range"] = range_to_keep(rows.train_x, recipe.preprocess)
    estimators: list[Estimator] = []

    def take(trained: Trained) -> None:
        if trained.diverged:
            warnings.warn(lost_members(trained, seeds), UserWarning, stacklevel=2)
        estimators.append(estimator_of(Fitted.from_trained(trained, recipe, seeds, **known)))
        if on_trained is not None:
            on_trained(estimators[0], trained)

    measured = measure(recipes, seeds, rows, device=device, on_epoch=on_epoch, on_trained=take, build=build)
    hidden = hidden_rows(recipe, seeds, rows)
    train_x, targets = torch.from_numpy(rows.train_x), torch.from_numpy(rows.targets)
    return Run(
        **vars(measured),
        estimator=estimators[0],
        hidden_labels=len(hidden[0]) if hidden else 0,
        hidden_errors=[
            nan
            if member in measured.trained.diverged
            else errors_on(ladder, train_x[chosen], targets[chosen], device=device)[0]
            for member, (ladder, chosen) in enumerate(zip(measured.trained.ladders, hidden, strict=False))
        ],
    )


def hidden_rows(recipe: Recipe, seeds: Sequence[int], rows: Rows) -> list[NDArray[np.int64]]:
    """For every seed the rows whose labels are hidden from it; nothing where none are, or there are test rows instead.

    Examples
    --------
    >>> from dataclasses import replace
    >>> from tikas.experiments.rows import load_rows
    >>> digits = load_rows("digits")
    >>> alone = replace(digits, test_x=digits.test_x[:0], test_y=digits.test_y[:0])
    >>> [len(chosen) for chosen in hidden_rows(Recipe(labels=50, validation=100), [0, 1], alone)]
    [1147, 1147]
    >>> hidden_rows(Recipe(labels="all"), [0, 1], alone), hidden_rows(Recipe(labels=50), [0, 1], digits)
    ([], [])
    """
    if len(rows.test_y):
        return []
    splits = splits_of([recipe] * len(seeds), seeds, rows.train_y, rows.classes.tolist())
    hidden = (part.hidden(rows.train_y) for part in splits)
    return [chosen for chosen in hidden if len(chosen)]


def measure(
    recipes: Sequence[Recipe],
    seeds: Sequence[int],
    rows: Rows,
    *,
    device: str | None = None,
    on_epoch: Callable[[Progress], None] | None = None,
    on_trained: Callable[[Trained], None] | None = None,
    build: Build = build_ladder,
    keep: Keeping | None = None,
) -> Measured:
    """As `run`, for members of several recipes that one program can train: one recipe and one seed for each.

    Training that `keep` had kept goes on; the seconds are those of this call, without `on_trained`.

    Examples
    --------
    >>> from tikas.experiments.rows import load_rows
    >>> recipes = [Recipe(data="digits", labels=labels, network=(32,), epochs=1) for labels in (50, 100)]
    >>> len(measure(recipes, [0, 0], load_rows("digits")).test_errors)
    2
    """
    for recipe in recipes:
        _check_recipe(recipe, rows)
    started = time.perf_counter()
    splits = splits_of(recipes, seeds, rows.train_y)
    warn_of_few_rows(len(splits[0].unlabeled), recipes[0].batch_size)
    examples = Examples(torch.from_numpy(rows.train_x), torch.from_numpy(rows.targets), len(rows.classes))
    trained = fit(examples, splits, recipes, seeds, device=device, on_epoch=on_epoch, build=build, keep=keep)
    if on_trained is not None:
        told = time.perf_counter()
        on_trained(trained)
        started += time.perf_counter() - told
    errors: tuple[list[float], list[float]] = [], []
    if len(rows.test_y):
        place = _place(device)  # once, rather than for every member
        test = torch.from_numpy(rows.test_x).to(place), torch.from_numpy(rows.test_y).to(place)
        errors = errors_of_members(trained, recipes, splits, rows.train_x, [test] * len(recipes), device)
    return Measured(trained, *errors, time.perf_counter() - started)


def splits_of(
    recipes: Sequence[Recipe], seeds: Sequence[int], y: NDArray[np.int64], classes: Sequence[object] | None = None
) -> list[Split]:
    """Which rows each member sees with a label, without one, or not at all; `classes` as `split` takes them.

    Examples
    --------
    >>> recipes = [Recipe(labels=3), Recipe(labels=6, validation=3)]
    >>> [(len(part.labeled), len(part.validation)) for part in splits_of(recipes, [0, 1], np.arange(30) % 3)]
    [(3, 0), (6, 3)]
    """
    return [
        split(
            y,
            None if recipe.labels == "all" else recipe.labels,
            validation=recipe.validation,
            seed=seed,
            classes=classes,
        )
        for recipe, seed in zip(recipes, seeds, strict=True)
    ]


def _check_recipe(recipe: Recipe, rows: Rows) -> None:
    if (recipe.task == "classification") != (rows.values is None):
        known = "classes" if rows.values is None else "values"
        raise ValueError(f"task={recipe.task!r}, and these rows have {known}. Load them with rows_for(recipe).")
    check_preparation(recipe, rows.preparation)


def check_preparation(recipe: Recipe, preparation: Preparation | None) -> None:
    """Refuse rows that did not go through what a recipe says.

    Examples
    --------
    >>> check_preparation(Recipe(preprocess="whiten"), None)
    Traceback (most recent call last):
    ValueError: preprocess='whiten', and these rows went through nothing. Load them with rows_for(recipe).
    """
    if not isinstance(preparation, PREPARATIONS.get(recipe.preprocess, NoneType)):
        went = "nothing" if preparation is None else type(preparation).__name__.lower()
        raise ValueError(
            f"preprocess={recipe.preprocess!r}, and these rows went through {went}. Load them with rows_for(recipe)."
        )


def errors_of_members(
    trained: Trained,
    recipes: Sequence[Recipe],
    splits: Sequence[Split],
    train_x: NDArray[np.float32],
    tests: Iterable[tuple[Tensor, Tensor]],
    device: str | None = None,
) -> tuple[list[float], list[float]]:
    """What `errors_on` gives for every member, each on rows and classes of its own; not a number where it diverged.

    Examples
    --------
    >>> from tikas.experiments.rows import load_rows
    >>> rows = load_rows("digits")
    >>> recipe = Recipe(data="digits", labels=50, network=(32,), epochs=1)
    >>> outcome, splits = run(recipe, [0], rows), splits_of([recipe], [0], rows.train_y)
    >>> tests = [(torch.from_numpy(rows.test_x), torch.from_numpy(rows.test_y))]
    >>> errors, _ = errors_of_members(outcome.trained, [recipe], splits, rows.train_x, tests)
    >>> errors == outcome.test_errors
    True
    """
    errors, labeled_errors = [], []
    members = zip(trained.ladders, recipes, splits, tests, strict=True)
    for member, (ladder, recipe, chosen, (x, y)) in enumerate(members):
        labeled = None if recipe.labels == "all" else torch.from_numpy(train_x[chosen.labeled])
        error, labeled_error = (nan, nan) if member in trained.diverged else errors_on(ladder, x, y, labeled, device)
        errors.append(error)
        labeled_errors.append(labeled_error)
    return errors, labeled_errors


def errors_on(
    ladder: Ladder, x: Tensor, y: Tensor, labeled: Tensor | None = None, device: str | None = None
) -> tuple[float, float]:
    """The percentage of wrong rows as calibrated, and with statistics of the labelled rows alone (None: all are).

    Of a regression they are root mean square errors.

    Examples
    --------
    >>> from tikas.experiments.rows import load_rows
    >>> rows = load_rows("digits")
    >>> outcome = run(Recipe(data="digits", labels=50, network=(32,), epochs=1), [0], rows)
    >>> train_x, test_x, test_y = map(torch.from_numpy, (rows.train_x, rows.test_x, rows.test_y))
    >>> len(errors_on(outcome.trained.ladders[0], test_x, test_y, train_x[:50]))
    2
    """
    place = _place(device)
    copy, x, y = copy_on(ladder, place), x.to(place), y.to(place)
    with full_precision():
        error = error_of(copy, x, y)
        if labeled is None:
            return error, error
        return error, error_of(copy.calibrate(labeled.to(place)), x, y)


def _place(device: str | None) -> str:
    return device or ("cuda" if torch.cuda.is_available() else "cpu")
