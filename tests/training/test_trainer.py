"""The training loop: what it computes, what it reports, and what it does when something goes wrong."""

from __future__ import annotations

import pickle
import re
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from tikas import Ladder, gamma
from tikas.data.batches import Batches
from tikas.data.datasets import Dataset, load_dataset
from tikas.data.splits import Split, split
from tikas.training import trainer as trainer_module
from tikas.training.callbacks import Progress
from tikas.training.distributed import World
from tikas.training.engines import EagerEngine
from tikas.training.recipe import Recipe
from tikas.training.trainer import (
    PASSES_PER_TRAINED_ROW,
    VALIDATION_SHARE,
    Trainer,
    TrainingDivergedError,
    TrainingResult,
    calibration_rows,
    epochs_between,
    error_of,
)

CPU = torch.device("cpu")
ROWS = np.random.default_rng(0).normal(size=(60, 7)).astype(np.float32)
CLASSES = np.arange(60) % 3
CLASSIFICATION = Dataset(ROWS, CLASSES, classes=np.arange(3))
REGRESSION = Dataset(ROWS, (ROWS[:, 0] * ROWS[:, 1]).astype(np.float32))
RECIPE = Recipe(network=(8, 6), costs=(10, 1, 0.1), batch_size=20, labeled_batch_size=10, epochs=4, learning_rate=0.01)
WITHOUT_VALIDATION = split(CLASSES, labels=9)
WITH_VALIDATION = split(CLASSES, labels=9, validation=12)


def dataset_of(recipe: Recipe) -> Dataset:
    return REGRESSION if recipe.task == "regression" else CLASSIFICATION


def train(
    recipes: Recipe | Sequence[Recipe] = RECIPE,
    splits: Split | Sequence[Split] = WITHOUT_VALIDATION,
    seeds: Sequence[int] | None = None,
    dataset: Dataset | None = None,
    callback: Callable[[Progress], None] | None = None,
    start: Sequence[nn.Module] | None = None,
    **options: object,
) -> TrainingResult:
    recipes = [recipes] if isinstance(recipes, Recipe) else recipes
    seeds = seeds or list(range(len(recipes)))
    splits = [splits] * len(seeds) if isinstance(splits, Split) else splits
    callbacks = () if callback is None else (callback,)
    trainer = Trainer(list(recipes), device="cpu", callbacks=callbacks, **options)
    return trainer.fit(dataset or dataset_of(recipes[0]), splits, seeds, start)


def weights_of(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def assert_equal_members(one: nn.Module, other: nn.Module) -> None:
    for (name, tensor), expected in zip(one.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.equal(tensor, expected), name


@pytest.fixture
def diverge(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[int, int]], None]:
    """Return a function that makes the costs of members NaN from an epoch on: {member: epoch}."""

    def patch(epochs: dict[int, int]) -> None:
        train_epoch = EagerEngine.train_epoch

        def poisoned(engine: EagerEngine, rates: torch.Tensor, first: int = 0) -> torch.Tensor:
            engine.epoch = getattr(engine, "epoch", 0) + 1
            costs = train_epoch(engine, rates, first)
            for member, epoch in epochs.items():
                if engine.epoch >= epoch:
                    costs.view(len(costs), engine.members, -1)[-1, member, 0] = torch.nan
            return costs

        monkeypatch.setattr(EagerEngine, "train_epoch", poisoned)

    return patch


# What is computed


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_training_equals_a_plain_loop_of_pytorch(task: str) -> None:
    recipe = replace(RECIPE, task=task)
    data = dataset_of(recipe)
    member = train(recipe).members[0]

    model = recipe.build((7,), data.n_outputs, seed=0)
    targets = torch.from_numpy(data.targets)
    if task == "regression":
        targets = targets.unsqueeze(-1)
    batches = Batches(torch.from_numpy(ROWS), targets, None, [WITHOUT_VALIDATION], [0], model.shapes, 20, 10)
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(recipe.epochs):
        batches.start_epoch()
        for update in range(batches.updates):
            optimizer.param_groups[0]["lr"] = recipe.rate(epoch * batches.updates + update, 4 * batches.updates)
            batch = batches.batch(update)
            costs = model.costs(batch.unlabeled, batch.labeled, batch.targets, batch.noise)
            optimizer.zero_grad()
            costs.total.backward()
            optimizer.step()
    rows = torch.from_numpy(ROWS)
    torch.testing.assert_close(member(rows), model.calibrate(rows).eval()(rows), atol=1e-4, rtol=1e-4)
    if task == "classification":  # above the single unit of a regression, gradients are zero up to rounding
        torch.testing.assert_close(weights_of(member), weights_of(model), atol=1e-5, rtol=1e-5)


def test_equal_seeds_give_equal_bits_and_other_seeds_do_not() -> None:
    one, again, other = train(), train(), train(seeds=[1])
    assert_equal_members(one.members[0], again.members[0])
    assert not torch.allclose(weights_of(one.members[0]), weights_of(other.members[0]))


def test_global_generators_and_the_data_stay_as_they_were() -> None:
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002 - the generator that must not change
    state, numpy_state, rows = torch.get_rng_state(), np.random.get_state()[1].copy(), ROWS.copy()  # noqa: NPY002
    train()
    train(replace(RECIPE, costs=1.0), build=build_module)
    assert torch.equal(torch.get_rng_state(), state)
    assert np.array_equal(np.random.get_state()[1], numpy_state)  # noqa: NPY002
    assert np.array_equal(ROWS, rows)


def build_module(recipe: Recipe, input_shape: Sequence[int], n_outputs: int, seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = nn.Sequential(nn.Linear(*input_shape, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, n_outputs))
    return gamma(network, n_outputs, recipe.noise[0], recipe.costs[0], example=torch.zeros(2, *input_shape))


def test_dropout_of_a_module_depends_on_the_seed_alone() -> None:
    recipe = replace(RECIPE, network=(), costs=1.0)
    with torch.random.fork_rng():
        one = train(recipe, build=build_module)
        torch.manual_seed(7)
        again = train(recipe, build=build_module)
    assert_equal_members(one.members[0], again.members[0])


def test_autocast_default_device_and_default_dtype_of_the_caller_change_nothing() -> None:
    expected = train().members[0]
    torch.set_default_dtype(torch.float64)
    try:
        with torch.autocast("cpu"), torch.device("meta"), torch.inference_mode():
            member = train().members[0]
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert_equal_members(member, expected)


@pytest.mark.parametrize("calibration", ["all", "labeled"])
@pytest.mark.parametrize("poison", [1e30, np.nan])
def test_held_out_rows_change_neither_weights_nor_statistics(poison: float, calibration: str) -> None:
    recipe, poisoned = replace(RECIPE, calibration=calibration), ROWS.copy()
    poisoned[WITH_VALIDATION.validation] = poison
    expected = train(recipe, WITH_VALIDATION)
    found = train(recipe, WITH_VALIDATION, dataset=replace(CLASSIFICATION, rows=poisoned))
    assert_equal_members(found.members[0], expected.members[0])
    assert 0 <= found.histories[0][-1]["validation_error"] <= 100


def test_targets_of_unlabeled_rows_are_not_used_and_those_of_labeled_rows_are() -> None:
    expected = train().members[0]
    others = np.setdiff1d(np.arange(60), WITHOUT_VALIDATION.labeled)
    changed = CLASSES.copy()
    changed[others] = -1
    assert_equal_members(train(dataset=replace(CLASSIFICATION, targets=changed)).members[0], expected)
    changed[WITHOUT_VALIDATION.labeled[0]] = (changed[WITHOUT_VALIDATION.labeled[0]] + 1) % 3
    relabeled = train(dataset=replace(CLASSIFICATION, targets=changed)).members[0]
    assert not torch.equal(weights_of(relabeled), weights_of(expected))


def test_a_label_of_weight_zero_does_not_count() -> None:
    weights = np.ones(60, np.float32)
    weights[WITHOUT_VALIDATION.labeled[0]] = 0
    changed = CLASSES.copy()
    changed[WITHOUT_VALIDATION.labeled[0]] = (changed[WITHOUT_VALIDATION.labeled[0]] + 1) % 3
    one = train(dataset=replace(CLASSIFICATION, weights=weights)).members[0]
    other = train(dataset=replace(CLASSIFICATION, weights=weights, targets=changed)).members[0]
    assert_equal_members(one, other)


def test_weights_of_labels_are_relative_and_batches_without_any_do_not_stop_the_training() -> None:
    plain = train().histories[0][-1]["total"]
    for weight in (1.0, 2.0):
        weights = np.full(60, weight, np.float32)
        weighted = train(dataset=replace(CLASSIFICATION, weights=weights)).histories[0][-1]["total"]
        assert weighted == pytest.approx(plain, rel=1e-5)
    single, many = np.zeros(60, np.float32), split(CLASSES, labels=30)
    single[many.labeled[0]] = 1  # of the labeled batches of an epoch, one has a row that counts
    assert train(splits=many, dataset=replace(CLASSIFICATION, weights=single)).failed == {}


@pytest.mark.parametrize("calibration", ["all", "labeled"])
def test_members_return_calibrated_by_the_rows_of_the_recipe(calibration: str) -> None:
    member = train(replace(RECIPE, calibration=calibration), WITH_VALIDATION).members[0]
    assert not member.training
    rows = calibration_rows(WITH_VALIDATION, calibration)
    assert len(rows) == (9 if calibration == "labeled" else 48)
    before = {name: tensor.clone() for name, tensor in member.state_dict().items()}
    member.calibrate(torch.from_numpy(ROWS[rows]))
    for name, tensor in member.state_dict().items():
        torch.testing.assert_close(tensor, before[name])


def test_members_start_from_given_models_which_stay_as_they_were() -> None:
    first = train()
    before = weights_of(first.members[0]).clone()
    second = train(replace(RECIPE, epochs=1, learning_rate=1e-9), start=first.members)
    torch.testing.assert_close(weights_of(second.members[0]), before, atol=1e-6, rtol=0)
    assert torch.equal(weights_of(first.members[0]), before)


def test_training_from_given_models_continues_where_they_were() -> None:
    first = train()
    continued = train(seeds=[1], start=first.members)
    assert continued.histories[0][0]["total"] < train(seeds=[1]).histories[0][0]["total"]


def test_validation_error_falls_on_the_digits() -> None:
    digits, _ = load_dataset("digits")
    dataset = replace(digits, rows=digits.rows.reshape(len(digits), -1))
    recipe = Recipe(network=(64, 32), costs=(100.0, 10.0, 0.1), epochs=5, learning_rate=0.005)
    (history,) = train(recipe, split(digits.targets, 50, validation=300), dataset=dataset).histories
    errors = [line["validation_error"] for line in history if "validation_error" in line]
    assert errors[-1] < 30  # percent; guessing makes 90


def test_models_of_another_shape_to_start_from_raise_value_error() -> None:
    with pytest.raises(ValueError, match="start from"):
        train(replace(RECIPE, network=(5,)), start=train().members)


# Members together


def test_members_with_own_settings_learn_the_same_alone_and_together() -> None:
    recipes = [
        RECIPE,
        replace(RECIPE, learning_rate=0.003),
        replace(RECIPE, noise=(0.5, 0.1), costs=(5, 2, 0.2)),
        replace(RECIPE, annealed=1.0),
    ]
    splits = [split(CLASSES, labels=labels, seed=seed) for seed, labels in enumerate((9, 9, 12, 30))]
    together = train(recipes, splits)
    assert together.indices == [0, 1, 2, 3]
    for member, recipe in enumerate(recipes):
        alone = train(recipe, splits[member], seeds=[member])
        torch.testing.assert_close(
            weights_of(together.members[member]), weights_of(alone.members[0]), atol=2e-5, rtol=1e-4
        )
        for line, expected in zip(together.histories[member], alone.histories[0], strict=True):
            assert line["learning_rate"] == expected["learning_rate"]
            assert line["total"] == pytest.approx(expected["total"], rel=1e-4)
        assert together.members[member].rungs[0].noise == recipe.noise[0]
        assert together.members[member].rungs[0].cost == recipe.costs[0]


@pytest.mark.parametrize(
    ("recipes", "splits", "named"),
    [
        ([RECIPE, replace(RECIPE, epochs=5)], WITHOUT_VALIDATION, "learning_rate"),
        ([RECIPE, replace(RECIPE, costs=(10, 0, 0.1))], WITHOUT_VALIDATION, "cost"),
        ([RECIPE, RECIPE], [WITHOUT_VALIDATION, split(CLASSES, labels=None)], "labeled"),
        ([RECIPE, RECIPE], [WITHOUT_VALIDATION, WITH_VALIDATION], "validation"),
        ([RECIPE, RECIPE], [WITHOUT_VALIDATION], "2 seeds, 1 splits and 2 recipes"),
        ([], [], "0 seeds"),
        ([RECIPE, replace(RECIPE, network=(8, 5))], WITHOUT_VALIDATION, "noise, costs, learning_rate, annealed"),
        ([replace(RECIPE, calibration="labeled")] * 2, [split(CLASSES, 9), split(CLASSES, 12)], "calibration"),
        (
            [replace(RECIPE, calibration="labeled")],
            [Split(np.array([0]), np.arange(60), np.array([], int))],
            "two rows",
        ),
        ([RECIPE], [Split(np.array([], int), np.arange(60), np.array([], int))], "no labeled rows"),
    ],
)
def test_members_that_cannot_train_together_raise_value_error(recipes, splits, named) -> None:
    with pytest.raises(ValueError, match=named):
        train(recipes, splits, list(range(len(recipes))), CLASSIFICATION)


# History, validation and progress


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_history_has_a_line_per_epoch_with_each_cost(task: str) -> None:
    (history,) = train(replace(RECIPE, task=task)).histories
    assert [line["epoch"] for line in history] == [1, 2, 3, 4]
    for line in history:
        weighted = sum(cost * each for cost, each in zip((10, 1, 0.1, 0.1), line["denoising"], strict=True))
        assert line["total"] == pytest.approx(line["supervised"] + weighted)
        assert line["seconds"] > 0
    assert history[-1]["learning_rate"] < history[0]["learning_rate"] == 0.01
    assert history[-1]["total"] < history[0]["total"]


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_the_last_validation_error_is_that_of_the_returned_member(task: str) -> None:
    recipe = replace(RECIPE, task=task)
    result, rows = train(recipe, WITH_VALIDATION), WITH_VALIDATION.validation
    targets = torch.from_numpy(dataset_of(recipe).targets[rows])
    targets = targets.unsqueeze(-1) if task == "regression" else targets
    expected = error_of(result.members[0], torch.from_numpy(ROWS[rows]), targets)
    assert result.histories[0][-1]["validation_error"] == pytest.approx(expected, abs=1e-5)


def test_validation_rows_are_measured_in_an_ensemble_as_alone() -> None:
    splits = [split(CLASSES, labels=9, validation=12, seed=seed) for seed in range(2)]
    together = train([RECIPE] * 2, splits)
    for member in range(2):
        alone = train(RECIPE, splits[member], seeds=[member])
        error = alone.histories[0][-1]["validation_error"]
        assert together.histories[member][-1]["validation_error"] == pytest.approx(error, abs=100 / 12 + 1e-6)


@pytest.fixture
def measured_every_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_module, "epochs_between", lambda *_: 1)


@pytest.mark.usefixtures("measured_every_epoch")
@pytest.mark.parametrize("task", ["classification", "regression"])
def test_validation_rows_are_measured_in_chunks_as_at_once(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = replace(RECIPE, task=task)
    expected = train([recipe] * 2, WITH_VALIDATION)
    monkeypatch.setattr(trainer_module, "MAX_CHUNK_VALUES_CPU", 2 * 8 * 5)  # 2 members, 8 units, 5 rows: 12 rows in 3
    sizes, forward = [], Ladder.forward

    def counted(ladder: Ladder, rows: torch.Tensor) -> torch.Tensor:
        sizes.append(rows.shape[-2])
        return forward(ladder, rows)

    monkeypatch.setattr(Ladder, "forward", counted)
    found = train([recipe] * 2, WITH_VALIDATION)
    assert sizes == [5, 5, 2] * 4
    for history, same in zip(found.histories, expected.histories, strict=True):
        errors = [line["validation_error"] for line in history]
        assert errors == pytest.approx([line["validation_error"] for line in same], rel=1e-5)


def test_a_module_is_measured_in_chunks_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, network = [], nn.Linear(7, 3)
    network.register_forward_hook(lambda _module, _rows, output: sizes.append(len(output)))
    model = gamma(network, 3, example=torch.zeros(2, 7)).calibrate(torch.from_numpy(ROWS)).eval()
    sizes.clear()
    monkeypatch.setattr(trainer_module, "MAX_CHUNK_ROWS_MODULE", 25)
    error_of(model, torch.from_numpy(ROWS), torch.from_numpy(CLASSES))
    assert sizes == [25, 25, 10]


def test_validation_takes_its_statistics_from_rows_spread_over_all(monkeypatch: pytest.MonkeyPatch) -> None:
    calibrate, seen = Ladder.calibrate, []

    def watched(ladder: Ladder, rows: torch.Tensor, *arguments: object) -> Ladder:
        seen.append(rows)
        return calibrate(ladder, rows, *arguments)

    monkeypatch.setattr(trainer_module, "MAX_WATCHED_ROWS", 20)
    monkeypatch.setattr(Ladder, "calibrate", watched)
    train(replace(RECIPE, epochs=1), WITH_VALIDATION)
    assert torch.equal(seen[0].reshape(-1, 7), torch.from_numpy(ROWS[WITH_VALIDATION.unlabeled[::3]]))
    assert len(seen[1]) == 48  # the returned member's own


class Frozen(nn.BatchNorm1d):
    """A layer with statistics that stays in eval mode while the network around it trains."""

    def __init__(self, features: int) -> None:
        super().__init__(features)
        self.running_var.fill_(2.0)

    def train(self, mode: bool = True) -> Self:  # noqa: ARG002
        return super().train(False)


@pytest.mark.usefixtures("measured_every_epoch")
@pytest.mark.parametrize("presses", [0, 1, 2])
def test_a_module_trains_in_training_mode_after_validation_and_frozen_layers_stay_frozen(monkeypatch, presses) -> None:
    modes, measure = [], trainer_module._errors

    class Watched(nn.Dropout):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if torch.is_grad_enabled():
                modes.append(self.training)
            return super().forward(x)

    def build(_: Recipe, shape: Sequence[int], n_outputs: int, __: int) -> nn.Module:
        network = nn.Sequential(nn.Linear(*shape, 6), Frozen(6), Watched(0.3), nn.Linear(6, n_outputs))
        return gamma(network, n_outputs, example=torch.zeros(2, *shape))

    calls = []

    def interrupted(*arguments: object) -> torch.Tensor:
        calls.append(arguments)
        if 2 <= len(calls) < 2 + presses:  # the module is in eval mode at this moment
            raise KeyboardInterrupt
        return measure(*arguments)

    monkeypatch.setattr(trainer_module, "_errors", interrupted)
    result = train(replace(RECIPE, costs=1.0), WITH_VALIDATION, build=build)
    assert result.interrupted is (presses > 0)
    assert len(result.histories[0]) == (1 if presses else 4)
    assert all(modes)
    (frozen,) = (layer for layer in result.members[0].modules() if isinstance(layer, Frozen))
    assert not frozen.running_mean.any()


@pytest.mark.parametrize("epochs", [1, 40])
def test_short_epochs_are_measured_now_and_then_and_the_last_one_always(epochs: int) -> None:
    (history,) = train(replace(RECIPE, epochs=epochs, network=(2,)), WITH_VALIDATION).histories
    every = epochs_between(12 + 48, 2 * 20 + 10, updates=2)
    assert 1 < every < 40
    assert [line["epoch"] for line in history if "validation_error" in line] == [
        epoch for epoch in range(1, epochs + 1) if epoch % every == 0 or epoch == epochs
    ]


@pytest.mark.parametrize("rows", [10, 700, 3_000, 100_000])
@pytest.mark.parametrize("updates", [1, 7, 70, 500])
def test_validation_stays_within_its_share_of_the_work(rows: int, updates: int) -> None:
    every = epochs_between(rows, trained=250, updates=updates)
    work = max(1, rows / (PASSES_PER_TRAINED_ROW * 250))
    assert work <= VALIDATION_SHARE * updates * every
    assert every == 1 or work > VALIDATION_SHARE * updates * (every - 1)


def test_the_engine_is_chosen_for_all_updates_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    choose, told = trainer_module.choose_engine, []

    def watched(models: Sequence[nn.Module], batches: Batches, updates: int, *, exact: bool) -> object:
        told.append((updates, exact))
        return choose(models, batches, updates, exact=exact)

    monkeypatch.setattr(trainer_module, "choose_engine", watched)
    train()
    train(replace(RECIPE, precision="exact"))
    assert told == [(12, False), (12, True)]


def test_callbacks_get_a_message_first_and_then_every_epoch() -> None:
    seen: list[Progress] = []
    train([RECIPE] * 2, callback=seen.append)
    assert [progress.epoch for progress in seen] == [0, 1, 2, 3, 4]
    assert all(progress.epochs == 4 for progress in seen)
    assert "2 members" in seen[0].message
    assert seen[0].members == []
    assert [len(progress.members) for progress in seen[1:]] == [2, 2, 2, 2]


# Interruption


def interrupt_after(epochs: int) -> Callable[[Progress], None]:
    def callback(progress: Progress) -> None:
        if progress.members and progress.epoch == epochs:
            raise KeyboardInterrupt

    return callback


@pytest.mark.parametrize("epochs", [1, 3, 4])
def test_ctrl_c_keeps_what_was_learned(epochs: int) -> None:
    result = train(splits=WITH_VALIDATION, callback=interrupt_after(epochs))
    assert result.interrupted
    assert [line["epoch"] for line in result.histories[0]] == list(range(1, epochs + 1))
    assert "validation_error" in result.histories[0][-1]
    assert bool(result.members[0].calibrated)


def test_ctrl_c_keeps_what_a_shorter_training_gives() -> None:
    constant = replace(RECIPE, annealed=0.0)
    cut, short = train(constant, callback=interrupt_after(2)), train(replace(constant, epochs=2))
    assert_equal_members(cut.members[0], short.members[0])


@pytest.mark.parametrize("name", ["models", "calibrate"])
def test_ctrl_c_while_trained_members_are_calibrated_loses_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, owner, calls = train([RECIPE] * 2), EagerEngine if name == "models" else Ladder, []
    original = getattr(owner, name)

    def interrupted(*arguments: object) -> object:
        calls.append(name)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return original(*arguments)

    monkeypatch.setattr(owner, name, interrupted)
    result = train([RECIPE] * 2)
    assert result.interrupted
    assert result.indices == [0, 1]
    for member, other in zip(result.members, expected.members, strict=True):
        assert_equal_members(member, other)


def test_ctrl_c_after_a_step_of_adam_leaves_members_with_own_rates_a_whole_step_from_where_they_were() -> None:
    recipes, steps = [replace(RECIPE, learning_rate=rate) for rate in (0.002, 0.004)], []

    def interrupted(*_: object) -> None:
        steps.append(True)
        if len(steps) == 4:  # the first of the second epoch
            raise KeyboardInterrupt

    hook = register_optimizer_step_post_hook(interrupted)
    try:
        result = train(recipes)
    finally:
        hook.remove()
    assert result.interrupted
    for seed, (member, recipe) in enumerate(zip(result.members, recipes, strict=True)):
        moved = (weights_of(member) - weights_of(recipe.build((7,), 3, seed))).abs().max()
        assert recipe.learning_rate < moved < 4 * recipe.learning_rate


def test_ctrl_c_before_the_first_epoch_ends_raises_keyboard_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(EagerEngine, "train_epoch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train()


@pytest.mark.parametrize(("epoch", "epochs"), [(4, [4]), (6, [4, 2])])
def test_ctrl_c_ends_the_groups_that_follow(epoch: int, epochs: list[int]) -> None:
    recipe = replace(RECIPE, network=(), costs=1.0)
    result = train([recipe] * 3, callback=interrupt_after(epoch), build=build_module)  # modules train one by one
    assert result.interrupted
    assert [len(history) for history in result.histories] == epochs
    assert result.indices == list(range(len(epochs)))


def test_ctrl_c_while_the_second_group_starts_keeps_the_first() -> None:
    def callback(progress: Progress) -> None:
        if progress.message and progress.epoch == 4:
            raise KeyboardInterrupt

    result = train([replace(RECIPE, network=(), costs=1.0)] * 3, callback=callback, build=build_module)
    assert (result.interrupted, result.indices) == (True, [0])


# Divergence


def test_members_that_diverge_are_reported_and_the_others_are_unaffected(diverge) -> None:
    expected = train([RECIPE] * 3)
    diverge({1: 2})
    result = train([RECIPE] * 3)
    assert result.indices == result.seeds == [0, 2]
    assert list(result.failed) == [1]
    for word in ("epoch 2", "update 3", "supervised", "0.01"):
        assert word in result.failed[1]
    for member, index in zip(result.members, result.indices, strict=True):
        assert_equal_members(member, expected.members[index])


def test_members_that_diverge_one_after_the_other_leave_the_last_one_unaffected(diverge) -> None:
    expected, seen = train([RECIPE] * 4), []
    diverge({0: 3, 1: 1, 3: 3})
    result = train([RECIPE] * 4, callback=seen.append)
    assert result.indices == [2]
    assert_equal_members(result.members[0], expected.members[2])
    assert {member: re.search(r"epoch \d", reason)[0] for member, reason in result.failed.items()} == {
        0: "epoch 3",
        1: "epoch 1",
        3: "epoch 3",
    }
    assert [progress.message for progress in seen if "diverged" in progress.message] == [
        "1 of 4 members diverged",
        "3 of 4 members diverged",
    ]
    assert [len(progress.members) for progress in seen if not progress.message] == [3, 3, 1, 1]
    assert seen[-1].epoch == seen[-1].epochs == 4


def test_progress_counts_the_epochs_of_a_group_that_diverged(diverge) -> None:
    diverge({0: 2})  # each member trains in a group of its own
    seen: list[Progress] = []
    recipe = replace(RECIPE, network=(), costs=1.0)
    with pytest.raises(TrainingDivergedError):
        train([recipe] * 2, callback=seen.append, build=build_module)
    assert [progress.epoch for progress in seen] == [0, 1, 1, 4, 5, 5]
    assert {progress.epochs for progress in seen} == {8}


def test_real_divergence_of_one_member_leaves_the_others_alone() -> None:
    recipes = [RECIPE, replace(RECIPE, learning_rate=1e30), replace(RECIPE, learning_rate=0.002)]
    result = train(recipes)
    assert result.indices == [0, 2]
    unaffected = train([RECIPE, RECIPE, recipes[2]])
    for member, index in zip(result.members, result.indices, strict=True):
        torch.testing.assert_close(weights_of(member), weights_of(unaffected.members[index]), atol=1e-5, rtol=1e-4)


def test_training_raises_when_every_member_diverged(diverge) -> None:
    diverge({0: 1, 1: 3})
    with pytest.raises(TrainingDivergedError) as raised:
        train([RECIPE] * 2)
    assert "epoch 1" in raised.value.failed[0]
    assert "epoch 3" in raised.value.failed[1]
    assert "2 members" in str(raised.value)
    again = pickle.loads(pickle.dumps(raised.value))  # as scikit-learn's parallel searches do
    assert (str(again), again.failed) == (str(raised.value), raised.value.failed)


def test_the_advice_is_about_the_settings_of_the_member(diverge) -> None:
    diverge({0: 1, 1: 1})
    recipes = [replace(RECIPE, learning_rate=0.25), replace(RECIPE, costs=(5, 1, 0.1))]
    failed = train([*recipes, RECIPE]).failed
    assert "0.25" in failed[0]
    assert "(5.0, 1.0, 0.1)" in failed[1]
    diverge({0: 1})
    assert "costs" not in train([replace(RECIPE, costs=0.0)] * 3).failed[0].partition("finite number")[2]


def test_the_level_of_a_denoising_cost_that_is_not_finite_is_named() -> None:
    rows = ROWS.copy()
    rows[0, 0] = np.inf
    with pytest.raises(TrainingDivergedError, match="level 0"):
        train(dataset=replace(CLASSIFICATION, rows=rows))


def test_weights_that_the_last_update_damaged_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    models = EagerEngine.models

    def damaged(engine: EagerEngine) -> list[nn.Module]:
        members = models(engine)
        with torch.no_grad():
            members[1].rungs[1].weight[0, 0] = torch.nan
        return members

    monkeypatch.setattr(EagerEngine, "models", damaged)
    result = train([RECIPE] * 2)
    assert result.indices == [0]
    assert "rungs.1.weight" in result.failed[1]


# Memory


@pytest.fixture
def small_memory(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[int]]:
    """Return a function that gives memory to `room` members; larger engines fail. It returns the sizes tried."""

    def patch(room: int, error: Exception | None = None) -> list[int]:
        choose, sizes = trainer_module.choose_engine, []

        def limited(models: Sequence[nn.Module], *arguments: object, **options: object) -> object:
            sizes.append(len(models))
            if len(models) > room:
                raise error or torch.OutOfMemoryError("CUDA out of memory")
            return choose(models, *arguments, **options)

        monkeypatch.setattr(trainer_module, "choose_engine", limited)
        return sizes

    return patch


def capture_error() -> RuntimeError:
    """An error that leaving the capture of a CUDA graph raises while it handles a lack of memory."""
    error = RuntimeError("operation failed due to a previous error during capture")
    error.__context__ = torch.OutOfMemoryError("CUDA out of memory")
    return error


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("CUDA driver error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
    ],
    ids=repr,
)
def test_a_lack_of_memory_is_recognized_in_the_errors_of_all_libraries(error: Exception) -> None:
    assert trainer_module._is_out_of_memory(error)


@pytest.mark.parametrize("error", [None, capture_error()], ids=["PyTorch", "capture of a CUDA graph"])
def test_an_ensemble_that_does_not_fit_trains_in_halves(small_memory, error) -> None:
    expected = train([RECIPE] * 3)
    sizes, seen = small_memory(2, error), []
    result = train([RECIPE] * 3, callback=seen.append)
    assert sizes == [3, 1, 2]
    assert result.indices == [0, 1, 2]
    for one, other in zip(result.members, expected.members, strict=True):
        torch.testing.assert_close(weights_of(one), weights_of(other), atol=2e-5, rtol=1e-4)
    assert seen[-1].epoch == seen[-1].epochs == 8
    assert any("memory" in progress.message for progress in seen)


def test_members_of_which_only_one_fits_train_one_by_one(small_memory) -> None:
    sizes = small_memory(1)
    assert train([replace(RECIPE, epochs=1)] * 5).indices == [0, 1, 2, 3, 4]
    assert sizes == [5, 2, 1, 1, 3, 1, 2, 1, 1]


def test_progress_forgets_the_epochs_that_a_lack_of_memory_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    train_epoch, sizes = EagerEngine.train_epoch, []

    def limited(engine: EagerEngine, rates: torch.Tensor, first: int = 0) -> torch.Tensor:
        sizes.append(engine.members)
        if sizes == [2, 2, 2]:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return train_epoch(engine, rates, first)

    monkeypatch.setattr(EagerEngine, "train_epoch", limited)
    seen: list[Progress] = []
    train([RECIPE] * 2, callback=seen.append)
    assert [progress.epoch for progress in seen] == [0, 1, 2, 0, 0, 1, 2, 3, 4, 4, 5, 6, 7, 8]
    assert [progress.epochs for progress in seen] == [4] * 3 + [8] * 11


def test_a_member_that_does_not_fit_alone_raises_out_of_memory_error(small_memory) -> None:
    small_memory(0)
    with pytest.raises(torch.OutOfMemoryError, match="batch_size below 20") as raised:
        train([RECIPE] * 2)
    assert "cpu" in str(raised.value)
    assert str(raised.value.__cause__) == "CUDA out of memory"


def test_an_engine_that_failed_is_freed_before_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    engines: list[weakref.ref[EagerEngine]] = []
    alive: list[int] = []

    def fail(models: Sequence[nn.Module], batches: Batches, *_: object, **__: object) -> object:
        alive.append(sum(engine() is not None for engine in engines))
        engine = EagerEngine(models, batches)
        engine.itself = engine
        engines.append(weakref.ref(engine))
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(trainer_module, "choose_engine", fail)
    with pytest.raises(torch.OutOfMemoryError):
        train([RECIPE] * 2)
    assert alive == [0, 0]


def test_other_errors_are_raised_as_they_are(small_memory) -> None:
    sizes = small_memory(1, RuntimeError("something else"))
    with pytest.raises(RuntimeError, match="something else"):
        train([RECIPE] * 2)
    assert sizes == [2]


def test_groups_are_planned_by_the_memory_that_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    choose = trainer_module.choose_engine

    def counted(models: Sequence[nn.Module], *arguments: object, **options: object) -> object:
        sizes.append(len(models))
        return choose(models, *arguments, **options)

    monkeypatch.setattr(trainer_module, "choose_engine", counted)
    monkeypatch.setattr(trainer_module._Run, "_bytes_per_member", lambda _: 10)
    monkeypatch.setattr(trainer_module, "_free_bytes", lambda _: 25 / trainer_module.MEMORY_SHARE)
    train([RECIPE] * 5)
    assert sizes == [2, 2, 1]


@pytest.mark.parametrize(
    ("changes", "labels", "rows"),
    [
        ({}, 9, 2 * 20 + 10),
        ({"costs": 0.0}, 9, 10),
        ({"batch_size": 1000}, 9, 2 * 60 + 10),
        ({}, None, 2 * 20 + 20),
        ({"costs": 0.0}, None, 20),
    ],
    ids=["ladder", "supervised", "fewer rows than a batch", "fully labeled", "fully labeled and supervised"],
)
def test_the_memory_of_a_member_is_estimated_from_the_rows_of_an_update(changes, labels, rows) -> None:
    recipe, split_of_member = replace(RECIPE, **changes), split(CLASSES, labels=labels)
    run = trainer_module._Run(Trainer(recipe), World(), CLASSIFICATION, CPU, [recipe], [split_of_member], [0], None)
    parameters, values = sum(parameter.numel() for parameter in run.first.parameters()), 7 + 8 + 6 + 3
    unlabeled = (rows - 20) // 2 if labels is None else (rows - 10) // 2
    noise = unlabeled + (20 if labels is None else 10)
    latents = trainer_module.TENSORS_PER_LATENT * rows
    assert run._bytes_per_member() == 4 * (7 * parameters + (latents + noise) * values)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of control groups, on a machine with 9 MB of free memory."""
    (tmp_path / "meminfo").write_text("MemTotal:  12000 kB\nMemAvailable:   9000 kB\nHugePages_Total:  0\n")
    monkeypatch.setattr(trainer_module, "MEMORY_INFO", tmp_path / "meminfo")
    monkeypatch.setattr(trainer_module, "CONTROL_GROUP", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("limit", "free"),
    [("5000000", 5_000_000 - 3_000_000 + 1_000_000), ("1000000", 0), ("max", 9_216_000), (str(2**62), 9_216_000)],
)
def test_a_container_has_the_memory_up_to_its_limit(machine: Path, limit: str, free: int) -> None:
    (machine / "memory.max").write_text(f"{limit}\n")
    (machine / "memory.current").write_text("3000000\n")
    (machine / "memory.stat").write_text("anon 7\ninactive_file 1000000\nslab 9\n")
    assert trainer_module._free_bytes(CPU) == free


def test_without_a_container_the_free_memory_is_that_of_the_machine(machine: Path) -> None:
    assert trainer_module._free_bytes(CPU) == 9000 * 1024
    (machine / "meminfo").unlink()
    assert trainer_module._free_bytes(CPU) == 8 * 10**9


def test_the_free_memory_of_a_gpu_includes_what_pytorch_has_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (1000, 9000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 300)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 100)
    assert trainer_module._free_bytes(torch.device("cuda", 0)) == 1000 + (300 - 100)


@pytest.fixture(autouse=True)
def restored_threads() -> Iterator[None]:
    """Training must leave the number of threads as it was."""
    before = torch.get_num_threads()
    yield
    assert torch.get_num_threads() == before
