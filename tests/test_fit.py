"""The loop does what a plain one would: it anneals, keeps away from held-out rows, repeats itself, and stops well."""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace
from math import isfinite
from typing import Self

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from tikas.data.sources import load
from tikas.data.splits import Split, split
from tikas.data.streams import Examples, Streams
from tikas.model.gamma import gamma
from tikas.model.ladder import Ladder
from tikas.training import evaluation, loop
from tikas.training.building import build_ladder
from tikas.training.fit import Progress, Trained, TrainingDivergedError, error_of, fit
from tikas.training.fleet import Fleet
from tikas.training.randomness import own_randomness
from tikas.training.recipe import Recipe

CLASSES = np.arange(120) % 3
RECIPE = Recipe(data="array", network=(8, 6), costs=(10.0, 1.0, 0.1), batch_size=20, labeled_batch_size=12, epochs=6)
SPLIT = split(CLASSES, 9, seed=0)
HELD_OUT = split(CLASSES, 9, validation=40, seed=0)


def blobs(task: str = "classification") -> Examples:
    """120 rows about three centres; for regression, two values that follow from them."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(3, 7))[CLASSES] + 0.5 * rng.normal(size=(120, 7))
    x = torch.from_numpy(rows).float()
    if task == "regression":
        return Examples(x, x @ torch.from_numpy(rng.normal(size=(7, 2))).float(), 2)
    return Examples(x, torch.from_numpy(CLASSES), 3)


def train(recipe: Recipe = RECIPE, examples: Examples | None = None, split: Split = SPLIT, seed: int = 0, **more):
    return fit(examples or blobs(recipe.task), [split], recipe, [seed], device="cpu", **more)


class Frozen(nn.BatchNorm1d):
    """In eval mode also while the network around it trains, as people keep layers that were trained before."""

    def train(self, mode: bool = True) -> Self:  # noqa: ARG002
        return super().train(False)


def build_module(_: Recipe, shape: Sequence[int], outputs: int, seed: int | None) -> Ladder:
    torch.manual_seed(seed or 0)
    layers = nn.Sequential(nn.Linear(*shape, 6), Frozen(6), nn.ReLU(), nn.Linear(6, outputs))
    return gamma(layers, outputs, example=torch.zeros(2, *shape))


def same_state(one: Ladder, other: Ladder) -> bool:
    """Bit for bit, parameters and statistics."""
    ours, theirs = one.state_dict(), other.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


def costs_of(history: list[dict]) -> list[dict]:
    return [{name: value for name, value in line.items() if name != "seconds"} for line in history]


# Whatever the caller is in.


@pytest.mark.parametrize("build", [build_ladder, build_module], ids=["a ladder", "a module of somebody else's"])
def test_autocast_around_training_changes_nothing(build):
    """It would keep the first copies of weights that it makes, and a module would learn by those until the end."""
    recipe = replace(RECIPE, costs=(1.0,))
    expected = train(recipe, build=build)
    with torch.autocast("cpu", torch.bfloat16):
        found = train(recipe, build=build)
        assert torch.is_autocast_enabled("cpu")
        assert torch.is_autocast_cache_enabled()
    assert costs_of(found.histories[0]) == costs_of(expected.histories[0])
    assert same_state(found.ladders[0], expected.ladders[0])


def test_another_default_device_around_training_changes_nothing():
    expected = train()
    with torch.device("meta"):
        found = train()
    assert same_state(found.ladders[0], expected.ladders[0])


# Annealing reaches the optimiser.


@pytest.fixture
def steps() -> Iterator[list[tuple[float, Tensor]]]:
    """The learning rate that every step of an optimiser used, and the weights after it."""
    taken: list[tuple[float, Tensor]] = []

    def record(optimizer: torch.optim.Optimizer, *_: object) -> None:
        (rate,) = {float(group["lr"]) for group in optimizer.param_groups}
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        taken.append((rate, torch.cat([parameter.detach().flatten().clone() for parameter in parameters])))

    hook = register_optimizer_step_post_hook(record)
    yield taken
    hook.remove()


def test_every_update_uses_the_rate_of_the_recipe(steps):
    train()
    updates = 6 * 120 // 20
    expected = [RECIPE.rate(update, updates) for update in range(updates)]
    assert [rate for rate, _ in steps] == pytest.approx(expected, rel=1e-6)
    assert expected[-1] == pytest.approx(RECIPE.learning_rate / 12)


def test_weights_come_to_rest_at_the_end_and_not_without_annealing(steps):
    recipe = replace(RECIPE, epochs=10)
    movement = {}
    for annealed in (1 / 3, 0.0):
        steps.clear()
        train(replace(recipe, annealed=annealed))
        weights = torch.stack([after for _, after in steps])
        movement[annealed] = weights.diff(dim=0).abs().mean(1)
    for moved in movement.values():
        assert moved[:38].min() > 0.2 * moved[:38].max()  # at a constant rate steps are of about one size
    annealed, constant = movement[1 / 3], movement[0.0]
    assert annealed[-1] < 0.1 * annealed[:38].mean()  # the last rate is 1/20 of the first
    assert constant[-1] > 0.5 * constant[:38].mean()
    assert torch.equal(annealed[:38], constant[:38])


def test_the_first_step_is_adams_every_weight_by_the_learning_rate():
    """The first step is lr·g/(|g| + 1e-8), whatever g; a weight without a gradient stays."""
    recipe = replace(RECIPE, epochs=1, batch_size=120, learning_rate=0.01)
    first, (after,) = build_ladder(recipe, (7,), 3, 0), train(recipe).ladders
    for (name, before), moved in zip(first.named_parameters(), after.parameters(), strict=True):
        steps = (moved - before).abs()
        assert (((steps - 0.01).abs() < 1e-4) | (steps == 0)).all(), name
        if "weight" in name and "back" not in name:
            assert (steps > 0).all()


def plain_loop(recipe: Recipe, examples: Examples, split: Split, seed: int) -> tuple[Ladder, Tensor]:
    """Training as anybody would write it, with its own optimiser; and the total costs of its updates."""
    ladder = build_ladder(recipe, tuple(examples.rows.shape[1:]), examples.outputs, seed)
    optimizer = torch.optim.Adam(ladder.parameters(), betas=(0.9, 0.999), eps=1e-8)
    streams = Streams(examples, [split], [seed], ladder.shapes, recipe.batch_size, recipe.labeled_batch_size)
    totals = []
    for epoch in range(recipe.epochs):
        streams.start_epoch()
        for update in range(streams.updates):
            done = epoch * streams.updates + update
            optimizer.param_groups[0]["lr"] = recipe.rate(done, recipe.epochs * streams.updates)
            optimizer.zero_grad()
            total = ladder.costs(**streams.batch(update)._asdict()).total
            total.backward()
            optimizer.step()
            totals.append(total.item())
    return ladder.calibrate(examples.rows[split.unlabeled]).eval(), torch.tensor(totals).view(recipe.epochs, -1)


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_training_ends_where_a_plain_loop_ends(task):
    recipe = replace(RECIPE, task=task)
    trained = train(recipe)
    ladder, totals = plain_loop(recipe, blobs(task), SPLIT, seed=0)
    for (name, ours), theirs in zip(trained.ladders[0].state_dict().items(), ladder.state_dict().values(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=5e-6, msg=name)  # measured 1e-7; 36 updates go 0.06
    assert [line["total"] for line in trained.histories[0]] == pytest.approx(totals.mean(1).tolist(), rel=1e-5)


# The same again.


def test_the_same_recipe_and_seed_give_the_same_weights_bit_for_bit():
    torch.manual_seed(1)
    one = train(split=HELD_OUT, seed=7)
    torch.manual_seed(2)
    other = train(split=HELD_OUT, seed=7)
    assert same_state(one.ladders[0], other.ladders[0])
    assert costs_of(one.histories[0]) == costs_of(other.histories[0])


def test_other_seeds_give_other_weights():
    ladders = [train(seed=seed).ladders[0] for seed in (7, 8)] + fit(blobs(), [SPLIT] * 2, RECIPE, [9, 10]).ladders
    for one in range(4):
        for other in range(one):
            assert (ladders[one].rungs[1].weight - ladders[other].rungs[1].weight).abs().max() > 0.1


def test_training_leaves_the_global_generator_and_the_examples_alone():
    examples, state = blobs(), torch.get_rng_state()
    train(examples=examples)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(examples.rows, blobs().rows)
    assert torch.equal(examples.targets, blobs().targets)


IMAGES = Examples(torch.rand(12, 1, 12, 12, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3, 3)
ON_IMAGES = Recipe(data="array", network="conv_pool_cnn_c", costs=1.0, batch_size=6, labeled_batch_size=6, epochs=1)


def train_on_images(seed: int) -> Ladder:
    return fit(IMAGES, [split(CLASSES[:12], 6)], ON_IMAGES, [seed], device="cpu").ladders[0]


@pytest.mark.parametrize(
    "work",
    [
        lambda: build_ladder(ON_IMAGES, (1, 12, 12), 3, seed=0),
        lambda: train_on_images(seed=0),
        lambda: train(replace(RECIPE, costs=1.0), build=build_module),
    ],
    ids=["building a module by its name", "training it", "training one of somebody else's that seeds and draws"],
)
def test_the_global_generator_is_left_alone_by(work):
    torch.manual_seed(5)
    state = torch.get_rng_state()
    work()
    assert torch.equal(torch.get_rng_state(), state)


def test_weights_and_dropout_of_a_module_follow_from_the_seed_alone():
    states = []
    for seed in (0, 0, 1):
        torch.rand(7)  # the generator is elsewhere each time
        states.append(train_on_images(seed).state_dict())
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())
    assert not torch.equal(states[0]["network.1.weight"], states[2]["network.1.weight"])


def test_what_a_module_draws_is_another_thing_in_every_epoch_and_of_every_seed():
    drawn: list[float] = []

    class Drawing(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                drawn.append(torch.rand(1).item())
            return super().forward(x)

    def build(_: Recipe, shape: Sequence[int], outputs: int, seed: int | None) -> Ladder:  # noqa: ARG001
        model = gamma(Drawing(*shape, outputs), outputs, example=torch.zeros(2, *shape))
        drawn.clear()  # what it drew when it was tried
        return model

    draws = []
    for seed in (0, 1, 0):
        train(replace(RECIPE, costs=1.0, epochs=2), seed=seed, build=build)
        draws.append(drawn.copy())
    assert draws[0] == draws[2]
    assert len({*draws[0], *draws[1]}) == len(draws[0]) + len(draws[1]) > 4


@pytest.mark.parametrize(("in_use", "forked"), [(False, []), (True, [0, 1])])
def test_gpus_that_are_not_in_use_are_left_so(monkeypatch, in_use, forked):
    """To read the state of a generator there takes memory there."""
    asked, seeded = [], []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: in_use)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    monkeypatch.setattr(torch.random, "fork_rng", lambda devices: asked.append(list(devices)) or nullcontext())
    state = torch.get_rng_state()
    with own_randomness(seed=3):
        assert torch.initial_seed() == 3
    torch.set_rng_state(state)
    assert (asked, seeded) == ([forked], [3] * in_use)


# History.


LINE = {"epoch", "learning_rate", "total", "supervised", "denoising", "seconds"}


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_history_has_a_line_for_every_epoch_with_each_cost(task):
    recipe = replace(RECIPE, task=task, costs=(10.0, 0.0, 0.1))
    started = time.perf_counter()
    (history,) = train(recipe).histories
    assert sum(line["seconds"] for line in history) < time.perf_counter() - started
    assert [line["epoch"] for line in history] == [1, 2, 3, 4, 5, 6]
    assert [line["learning_rate"] for line in history] == [recipe.rate(6 * epoch - 1, 36) for epoch in range(1, 7)]
    for line in history:
        assert line.keys() == LINE
        assert line["seconds"] > 0
        assert [cost > 0 for cost in line["denoising"]] == [True, False, True, True]
        weighted = sum(weight * cost for weight, cost in zip(recipe.levels_of_costs(), line["denoising"], strict=True))
        assert line["total"] == pytest.approx(line["supervised"] + weighted)
    assert history[-1]["total"] < history[0]["total"]


def test_the_engine_is_told_how_many_updates_there_will_be(monkeypatch):
    """Or it could not tell whether compiling is paid back."""
    launch, told = loop.launch, list[int]()

    def watched(ladders: Sequence[Ladder], streams: Streams, updates: int, **more: bool) -> Fleet:
        told.append(updates)
        return launch(ladders, streams, updates, **more)

    monkeypatch.setattr(loop, "launch", watched)
    train()
    assert told == [36]


@pytest.fixture
def measured_every_epoch(monkeypatch):
    """Epochs are so short here that held-out rows would be measured after 17 of them."""
    monkeypatch.setattr(evaluation, "epochs_between", lambda *_: 1)


@pytest.mark.usefixtures("measured_every_epoch")
@pytest.mark.parametrize("task", ["classification", "regression"])
def test_the_error_of_held_out_rows_is_told_where_there_are_any(task):
    (history,) = train(replace(RECIPE, task=task), split=HELD_OUT).histories
    for line in history:
        assert line.keys() == LINE | {"validation_error"}
        assert isfinite(line["validation_error"])


@pytest.mark.parametrize(("epochs", "measured"), [(1, [1]), (34, [17, 34]), (36, [17, 34, 36])])
def test_short_epochs_are_measured_now_and_then_and_the_last_one_always(epochs, measured):
    recipe = replace(RECIPE, epochs=epochs)
    trained = fit(blobs(), [HELD_OUT] * 2, recipe, [0, 1], device="cpu")
    for history in trained.histories:
        assert [line["epoch"] for line in history] == list(range(1, epochs + 1))
        assert [line["epoch"] for line in history if "validation_error" in line] == measured


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_the_last_validation_error_is_that_of_the_ladder_that_comes_back(task):
    """Few rows: the statistics of every epoch's error are those of all unlabelled rows, as the last ladder's."""
    examples = blobs(task)
    trained = train(replace(RECIPE, task=task), examples, HELD_OUT)
    ladder, rows = trained.ladders[0], torch.from_numpy(HELD_OUT.validation)
    outputs, targets = ladder(examples.rows[rows]).detach().numpy(), examples.targets[rows].numpy()
    if task == "classification":
        expected = 100 * np.mean(outputs.argmax(1) != targets)
    else:
        expected = np.sqrt(np.mean((outputs - targets) ** 2))
    assert trained.histories[0][-1]["validation_error"] == pytest.approx(expected, rel=1e-5)
    assert error_of(ladder, examples.rows[rows], examples.targets[rows]) == pytest.approx(expected, rel=1e-5)


@pytest.mark.usefixtures("measured_every_epoch")
@pytest.mark.parametrize("task", ["classification", "regression"])
def test_held_out_rows_are_measured_the_same_one_at_a_time(task, monkeypatch):
    def errors() -> list[list[float]]:
        recipe, splits = replace(RECIPE, task=task), [split(CLASSES, 9, validation=40, seed=seed) for seed in (0, 1)]
        trained = fit(blobs(task), splits, recipe, [0, 1], device="cpu")
        return [[line["validation_error"] for line in history] for history in trained.histories]

    together = errors()
    monkeypatch.setattr(evaluation, "MOST_IN_A_CHUNK", 1)
    assert errors() == [pytest.approx(each, rel=1e-5) for each in together]


def test_the_rows_that_training_is_watched_by_are_of_all_rows_and_not_the_first(monkeypatch):
    """Rows often lie in the order of their classes."""
    calibrate, seen = Ladder.calibrate, []

    def watched(ladder: Ladder, rows: Tensor, *rest: object) -> Ladder:
        seen.append(rows)
        return calibrate(ladder, rows, *rest)

    monkeypatch.setattr(evaluation, "MOST_WATCHED", 20)
    monkeypatch.setattr(Ladder, "calibrate", watched)
    train(replace(RECIPE, epochs=1), split=HELD_OUT)
    every_fifth = blobs().rows[HELD_OUT.unlabeled[::5]]
    torch.testing.assert_close(seen[0].reshape(-1, 7), every_fifth)


@pytest.mark.usefixtures("measured_every_epoch")
def test_a_module_is_in_training_mode_again_after_held_out_rows_were_measured():
    modes = []

    class Watched(nn.Dropout):
        def forward(self, x: Tensor) -> Tensor:
            if torch.is_grad_enabled():
                modes.append(self.training)
            return super().forward(x)

    def build(_: Recipe, shape: Sequence[int], outputs: int, __: int | None) -> Ladder:
        layers = nn.Sequential(nn.Linear(*shape, 6), Watched(0.3), nn.Linear(6, outputs))
        return gamma(layers, outputs, example=torch.zeros(2, *shape))

    train(replace(RECIPE, costs=(1.0,), epochs=3), split=HELD_OUT, build=build)
    assert all(modes)


def test_members_of_other_sizes_are_refused():
    with pytest.raises(ValueError, match=r"equally many .* Fit those apart"):
        fit(blobs(), [SPLIT, HELD_OUT], RECIPE, [0, 1], device="cpu")


def test_a_member_without_labelled_rows_is_refused():
    none = replace(SPLIT, labeled=np.empty(0, np.int64))
    with pytest.raises(ValueError, match=r"no labelled rows.*Give each at least one"):
        fit(blobs(), [SPLIT, none], RECIPE, [0, 1], device="cpu")


@pytest.mark.usefixtures("measured_every_epoch")
def test_validation_error_falls_while_digits_are_learnt():
    digits = load("digits")
    examples = Examples(torch.from_numpy(digits.train_x).flatten(1), torch.from_numpy(digits.train_y), 10)
    recipe = Recipe(data="digits", network=(64, 32), costs=(100.0, 10.0, 0.1), epochs=6, learning_rate=0.005)
    rows = split(digits.train_y, 50, validation=300, seed=0)
    (history,) = train(recipe, examples, rows).histories
    errors = [line["validation_error"] for line in history]
    assert errors[-1] < 30  # percent; by chance 90, and over four seeds 13 to 18
    assert errors[-1] < 0.6 * errors[0]  # over four seeds 0.36 to 0.42


# What must not be learnt from.


@pytest.mark.parametrize("poison", [1e30, float("nan")])
@pytest.mark.parametrize("calibration", ["all", "labeled"])
def test_held_out_rows_never_touch_weights_or_statistics(poison, calibration):
    recipe, examples = replace(RECIPE, calibration=calibration), blobs()
    poisoned = examples._replace(rows=examples.rows.clone(), targets=examples.targets.clone())
    poisoned.rows[HELD_OUT.validation] = poison
    poisoned.targets[HELD_OUT.validation] = 0
    clean, other = (train(recipe, each, HELD_OUT) for each in (examples, poisoned))
    assert same_state(clean.ladders[0], other.ladders[0])
    assert isfinite(other.histories[0][-1]["validation_error"])


def test_targets_of_rows_without_a_label_are_never_looked_at():
    examples = blobs()
    hidden = examples._replace(targets=torch.full_like(examples.targets, -1))
    hidden.targets[SPLIT.labeled] = examples.targets[SPLIT.labeled]
    assert same_state(train(examples=examples).ladders[0], train(examples=hidden).ladders[0])


def test_a_label_makes_a_difference():
    """Or the tests above would show nothing."""
    examples = blobs()
    other = examples._replace(targets=examples.targets.clone())
    other.targets[SPLIT.labeled[0]] = (other.targets[SPLIT.labeled[0]] + 1) % 3
    assert not same_state(train(examples=examples).ladders[0], train(examples=other).ladders[0])


def test_a_weight_of_zero_takes_a_row_out_of_the_supervised_cost():
    examples = blobs()
    outvoted = torch.from_numpy(SPLIT.labeled[:4])
    weights = torch.ones(120).index_fill(0, outvoted, 0.0)
    one = examples._replace(weights=weights)
    other = one._replace(targets=examples.targets.index_fill(0, outvoted, 2))
    assert not torch.equal(one.targets, other.targets)
    assert same_state(train(examples=one).ladders[0], train(examples=other).ladders[0])


def test_weights_of_one_are_no_weights_and_larger_ones_count_for_more():
    examples = blobs()
    plain, ones = train(examples=examples), train(examples=examples._replace(weights=torch.ones(120)))
    assert ones.histories[0][-1]["total"] == pytest.approx(plain.histories[0][-1]["total"], rel=1e-5)
    twice = train(examples=examples._replace(weights=torch.full((120,), 2.0)))
    assert twice.histories[0][-1]["total"] == pytest.approx(plain.histories[0][-1]["total"], rel=1e-5)
    of_class_0 = examples._replace(weights=torch.where(examples.targets == 0, 100.0, 1.0))
    even, uneven = (train(replace(RECIPE, learning_rate=0.02), each).ladders[0] for each in (examples, of_class_0))
    chosen = [ladder(examples.rows).softmax(1)[:, 0].mean().item() for ladder in (even, uneven)]
    assert chosen[1] > 1.1 * chosen[0]


def test_a_batch_whose_rows_all_weigh_nothing_does_not_stop_the_training():
    many = split(CLASSES, 60, seed=0)  # five batches of twelve, of which four at least hold no row that counts
    weights = torch.zeros(120)
    weights[many.labeled[0]] = 1
    train(examples=blobs()._replace(weights=weights), split=many)


# Calibration.


@pytest.mark.parametrize(("calibration", "rows"), [("all", HELD_OUT.unlabeled), ("labeled", HELD_OUT.labeled)])
def test_statistics_for_prediction_come_from_the_rows_that_the_recipe_says(calibration, rows):
    (ladder,) = train(replace(RECIPE, calibration=calibration), split=HELD_OUT).ladders
    again = deepcopy(ladder).calibrate(blobs().rows[rows])
    for level in (1, 2, 3):
        torch.testing.assert_close(ladder.rungs[level].mean, again.rungs[level].mean, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(ladder.rungs[level].deviation, again.rungs[level].deviation, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("calibration", "seen", "message"),
    [
        ("labeled", 120, r"from the labelled rows, and a member has 1 of them.*Give at least two, or set calibration"),
        ("all", 1, r"from the training rows, and a member has 1 of them.*Give at least two\."),
    ],
)
def test_a_single_row_to_calibrate_with_is_refused_before_the_first_epoch(calibration, seen, message):
    recipe, epochs = replace(RECIPE, task="regression", calibration=calibration, costs=0), []
    one = Split(np.array([0]), np.arange(seen), np.empty(0, np.int64))
    with pytest.raises(ValueError, match=message):
        train(recipe, split=one, on_epoch=epochs.append)
    assert epochs == []


def test_calibration_changes_the_statistics_alone():
    every, labeled = (train(replace(RECIPE, calibration=rows)).ladders[0] for rows in ("all", "labeled"))
    assert all(torch.equal(one, other) for one, other in zip(every.parameters(), labeled.parameters(), strict=True))
    assert not torch.allclose(every.rungs[1].mean, labeled.rungs[1].mean)


def test_ladders_come_back_ready_to_predict():
    (ladder,) = train().ladders
    assert not ladder.training
    alone, among = ladder(blobs().rows[:1]), ladder(blobs().rows)[:1]
    torch.testing.assert_close(alone, among)


# Going on.


def test_training_goes_on_from_the_ladders_given():
    """At a rate that no weight of single precision can feel, what comes out is what went in."""
    (first,) = train().ladders
    (after,) = train(replace(RECIPE, learning_rate=1e-30), seed=5, start=[first]).ladders
    assert all(torch.equal(one, other) for one, other in zip(first.parameters(), after.parameters(), strict=True))
    (further,) = train(seed=5, start=[first]).histories
    (anew,) = train(seed=5).histories
    assert further[0]["total"] < anew[0]["total"]


def test_the_ladders_given_stay_as_they_were():
    (first,) = train().ladders
    before = deepcopy(first)
    (after,) = train(seed=5, start=[first]).ladders
    assert same_state(first, before)
    assert not first.training
    assert not same_state(first, after)


def test_every_epoch_is_told_of_as_it_ends():
    told: list[Progress] = []
    trained = fit(blobs(), [HELD_OUT] * 2, RECIPE, [0, 1], device="cpu", on_epoch=told.append)
    assert [progress.epoch for progress in told] == [0, 1, 2, 3, 4, 5, 6]
    start = told.pop(0)
    assert start.members == []
    assert re.fullmatch(r"getting ready: 2 members, about .* of .* GB", start.doing)
    assert {progress.epochs for progress in told} == {6}
    for progress, *lines in zip(told, *trained.histories, strict=True):
        assert progress.members == lines


# Stopping early.


def interrupted_after(updates: int) -> Callable[..., None]:
    """Ctrl-C while this many updates are done and the next one has begun."""
    begun = 0

    def press(*_: object) -> None:
        nonlocal begun
        begun += 1
        if begun > updates:
            raise KeyboardInterrupt

    return press


@pytest.fixture
def press_ctrl_c() -> Iterator[Callable[[int], None]]:
    hooks = []
    yield lambda updates: hooks.append(register_optimizer_step_pre_hook(interrupted_after(updates)))
    for hook in hooks:
        hook.remove()


def train_through_ctrl_c(**arguments) -> Trained:
    """An interrupt that comes out would end pytest itself, and not this test alone."""
    try:
        return train(**arguments)
    except KeyboardInterrupt:
        pytest.fail("Ctrl-C came through, and what there was is lost")


@pytest.mark.parametrize(
    ("epochs", "presses", "measured"),
    [(1, 1, 1), (6, 1, 2), (6, 2, 3)],
    ids=["the first epoch", "the last epoch", "the last epoch, and again"],
)
def test_frozen_layers_stay_so_where_ctrl_c_came_while_held_out_rows_were_measured(
    monkeypatch, epochs, presses, measured
):
    """The whole network is in eval mode then, and nothing would tell them from others that are to be calibrated."""
    recipe, modes, outputs = replace(RECIPE, costs=(1.0,), epochs=epochs), list[bool](), evaluation._outputs

    def press(ladder: Ladder, chunks: Iterable[Tensor]) -> Tensor:
        modes.append(ladder.training)
        if len(modes) <= presses:
            raise KeyboardInterrupt
        return outputs(ladder, chunks)

    monkeypatch.setattr(evaluation, "_outputs", press)
    trained = train_through_ctrl_c(recipe=recipe, split=HELD_OUT, build=build_module)
    assert modes == [False] * measured
    assert all("validation_error" in line for line in trained.histories[0][-1:])
    (frozen,) = (layer for layer in trained.ladders[0].modules() if isinstance(layer, Frozen))
    assert not frozen.running_mean.any()


@pytest.mark.parametrize("updates", [0, 5, 6, 20])
def test_what_there_is_is_kept_at_ctrl_c(press_ctrl_c, updates):
    press_ctrl_c(updates)
    trained = train_through_ctrl_c()
    assert trained.interrupted
    assert len(trained.histories[0]) == updates // 6
    (ladder,) = trained.ladders
    assert not ladder.training
    assert ladder(blobs().rows).isfinite().all()
    assert all(tensor.isfinite().all() for tensor in ladder.state_dict().values())


@pytest.mark.parametrize(
    ("updates", "measured"),
    [(17 * 4, [17]), (17 * 4 + 2, [17]), (19 * 4, [17, 19]), (19 * 4 + 2, [17, 19]), (3, [])],
    ids=["after a measured epoch", "in the next", "after another", "in the one after that", "in the first"],
)
def test_the_last_line_has_an_error_at_ctrl_c_too(press_ctrl_c, updates, measured):
    """Of the ladder that comes back, if its epoch was not one to be measured."""
    press_ctrl_c(updates)
    trained = train_through_ctrl_c(recipe=replace(RECIPE, epochs=36), split=HELD_OUT)
    (ladder,), (history,) = trained.ladders, trained.histories
    assert [line["epoch"] for line in history] == list(range(1, updates // 4 + 1))
    assert [line["epoch"] for line in history if "validation_error" in line] == measured
    if measured == [17, 19]:
        rows, targets = (each[HELD_OUT.validation] for each in (blobs().rows, blobs().targets))
        assert history[-1]["validation_error"] == pytest.approx(error_of(ladder, rows, targets))


def test_what_is_kept_at_ctrl_c_is_what_a_shorter_training_would_have_given():
    recipe = replace(RECIPE, annealed=0.0)

    def press(progress: Progress) -> None:
        if progress.epoch == 4:
            raise KeyboardInterrupt

    cut = train_through_ctrl_c(recipe=recipe, on_epoch=press)
    short = train(replace(recipe, epochs=4))
    assert cut.interrupted
    assert not short.interrupted
    assert same_state(cut.ladders[0], short.ladders[0])
    assert costs_of(cut.histories[0]) == costs_of(short.histories[0])


@pytest.mark.parametrize(("owner", "step"), [(Fleet, "disband"), (Ladder, "calibrate")], ids=["disband", "calibrate"])
def test_ctrl_c_while_the_trained_ladders_are_finished_loses_nothing(monkeypatch, owner, step):
    whole = train()
    finish, calls = getattr(owner, step), []

    def press_once(self: Fleet | Ladder, *arguments: Tensor) -> object:
        calls.append(step)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return finish(self, *arguments)

    monkeypatch.setattr(owner, step, press_once)
    pressed = train_through_ctrl_c()
    assert same_state(pressed.ladders[0], whole.ladders[0])
    assert not pressed.interrupted


def stopped(**arguments) -> str:
    with pytest.raises(TrainingDivergedError) as caught:
        train(**arguments)
    return str(caught.value)


def test_a_denoising_cost_that_is_no_number_stops_the_training_with_its_level_and_advice():
    examples = blobs()
    unlabeled = np.setdiff1d(SPLIT.unlabeled, SPLIT.labeled)[0]
    examples.rows[unlabeled] = 1e25  # its square is beyond single precision
    message = stopped(examples=examples)
    assert "stopped in epoch 1, update " in message
    assert "the denoising cost of level 0 was no longer a finite number" in message
    assert "columns are of about unit scale" in message
    assert "learning rate below 0.002 or smaller costs than (10.0, 1.0, 0.1)" in message


def test_a_supervised_cost_that_is_no_number_stops_the_training():
    examples = blobs("regression")
    examples.targets[SPLIT.labeled[0]] = 1e25
    assert "epoch 1, update 1: the supervised cost" in stopped(
        recipe=replace(RECIPE, task="regression", labeled_batch_size=18), examples=examples
    )


def test_the_epoch_that_training_stopped_in_is_told():
    """One update an epoch: the first is taken from good weights, and leaves bad ones."""
    message = stopped(recipe=replace(RECIPE, batch_size=120, learning_rate=1e38))
    assert "stopped in epoch 2, update 1" in message
    assert "learning rate below 1e+38" in message


def test_the_member_whose_rows_are_bad_is_lost_alone():
    examples = blobs("regression")
    chosen = [split(CLASSES, 9, seed=seed) for seed in (0, 1)]
    bad = np.setdiff1d(chosen[1].labeled, chosen[0].labeled)[0]
    examples.targets[bad] = 1e25
    recipe = replace(RECIPE, task="regression", labeled_batch_size=18)
    trained = fit(examples, chosen, recipe, [7, 8], device="cpu")
    assert list(trained.diverged) == [1]
    assert "in epoch 1, update 1: the supervised cost" in trained.diverged[1]
    assert [len(history) for history in trained.histories] == [recipe.epochs, 0]


def test_weights_that_the_last_update_ruined_stop_the_training_too():
    """One update in all: its cost came from good weights, and no later one shows the bad ones."""
    message = stopped(recipe=replace(RECIPE, batch_size=120, epochs=1, learning_rate=1e38))
    told = re.match(r"After the last update (\S+) was no longer finite\. Check that the columns", message)
    assert told
    assert told[1] in dict(build_ladder(RECIPE, (7,), 3, 0).named_parameters())
    assert "learning rate below 1e+38" in message


def test_a_fleet_measures_as_few_rows_at_a_time_as_its_members_together_ask_for(monkeypatch):
    rows_at_a_time = []

    def spied(self, rows, *more):
        rows_at_a_time.append(rows.shape[-2])
        return forward(self, rows, *more)

    forward = Ladder.forward
    monkeypatch.setattr(Ladder, "forward", spied)
    monkeypatch.setattr(evaluation, "MOST_IN_A_CHUNK", 8 * 60)  # of the widest of the levels, which has eight units
    recipe = replace(RECIPE, epochs=1, validation=40)
    fit(blobs(), [HELD_OUT] * 3, recipe, [0, 1, 2], device="cpu")
    assert rows_at_a_time == [20, 20]
