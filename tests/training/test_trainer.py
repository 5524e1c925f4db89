"""The training loop: what it computes, what it reports, and what it does when something goes wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from tikas import gamma
from tikas.data.batches import Batches
from tikas.data.datasets import Dataset
from tikas.data.splits import Split, split
from tikas.training import trainer as trainer_module
from tikas.training.callbacks import Progress
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

        def poisoned(engine: EagerEngine, rates: torch.Tensor) -> torch.Tensor:
            engine.epoch = getattr(engine, "epoch", 0) + 1
            costs = train_epoch(engine, rates)
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


def test_held_out_rows_change_neither_weights_nor_statistics() -> None:
    poisoned = ROWS.copy()
    poisoned[WITH_VALIDATION.validation] = 1e30
    expected = train(splits=WITH_VALIDATION)
    found = train(splits=WITH_VALIDATION, dataset=replace(CLASSIFICATION, rows=poisoned))
    assert_equal_members(found.members[0], expected.members[0])


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
        ([RECIPE, RECIPE], [WITHOUT_VALIDATION], "1 splits and 2 recipes"),
        ([replace(RECIPE, calibration="labeled")] * 2, [split(CLASSES, 9), split(CLASSES, 12)], "calibration"),
        ([replace(RECIPE, calibration="labeled")], [Split(np.array([0]), np.arange(60), np.array([], int))], "two rows"),
        ([RECIPE], [Split(np.array([], int), np.arange(60), np.array([], int))], "no labeled rows"),
    ],
)
def test_members_that_cannot_train_together_raise_value_error(recipes, splits, named) -> None:
    with pytest.raises(ValueError, match=named):
        train(recipes, splits, seeds=list(range(len(recipes))))


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


@pytest.mark.parametrize("epochs", [1, 3])
def test_ctrl_c_keeps_what_was_learned(epochs: int) -> None:
    result = train(splits=WITH_VALIDATION, callback=interrupt_after(epochs))
    assert result.interrupted
    assert [line["epoch"] for line in result.histories[0]] == list(range(1, epochs + 1))
    assert "validation_error" in result.histories[0][-1]
    assert bool(result.members[0].calibrated)


def test_ctrl_c_before_the_first_epoch_ends_raises_keyboard_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(EagerEngine, "train_epoch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train()


def test_ctrl_c_in_the_second_group_keeps_the_first_and_what_there_is_of_the_second() -> None:
    splits = [WITHOUT_VALIDATION] * 3
    recipe = replace(RECIPE, network=(), costs=1.0)
    result = train([recipe] * 3, splits, callback=interrupt_after(6), build=build_module)  # modules train one by one
    assert result.interrupted
    assert result.indices == [0, 1]
    assert [len(history) for history in result.histories] == [4, 2]


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
    """Return a function that makes engines of more than `room` members run out of memory; it returns the sizes tried."""

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


@pytest.mark.parametrize("error", [None, MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
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


def test_a_member_that_does_not_fit_alone_raises_out_of_memory_error(small_memory) -> None:
    small_memory(0)
    with pytest.raises(torch.OutOfMemoryError, match="batch_size below 20"):
        train([RECIPE] * 2)


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


@pytest.fixture(autouse=True)
def restored_threads() -> Iterator[None]:
    """Training must leave the number of threads as it was."""
    before = torch.get_num_threads()
    yield
    assert torch.get_num_threads() == before
