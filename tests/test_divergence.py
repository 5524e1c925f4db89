"""A member whose costs are no longer numbers is lost alone: the others learn what they would have learnt without it."""

import pickle
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch

from tikas import LadderClassifier
from tikas.data.splits import split
from tikas.data.streams import Examples
from tikas.experiments.records import member_records
from tikas.experiments.rows import load_rows
from tikas.experiments.run import run
from tikas.model.gamma import gamma
from tikas.model.ladder import Ladder
from tikas.training import groups, keeping, loop
from tikas.training.building import build_ladder
from tikas.training.fit import Progress, Trained, TrainingDivergedError, fit
from tikas.training.fleet import Fleet
from tikas.training.keeping import Folder, Keeping
from tikas.training.loop import History, Job
from tikas.training.memory import bytes_of_a_member
from tikas.training.recipe import Recipe
from tikas.views.outcome import outcome_table

CPU = torch.device("cpu")
CLASSES = np.arange(100) % 3
RECIPE = Recipe(
    data="array", network=(8,), costs=(10.0, 1.0, 0.1), batch_size=20, labeled_batch_size=12, epochs=4, validation=10
)
SEEDS = [3, 14, 15, 92]
RATES, COSTS = (0.001, 0.002, 0.003, 0.004), (1.0, 2.0, 3.0, 4.0)


def build_double(recipe: Recipe, shape: Sequence[int], outputs: int, seed: int | None) -> Ladder:
    return build_ladder(recipe, shape, outputs, seed).double()


def build_module(_: Recipe, shape: Sequence[int], outputs: int, seed: int | None) -> Ladder:
    torch.manual_seed(seed or 0)
    return gamma(torch.nn.Linear(*shape, outputs).double(), outputs, example=torch.zeros(2, *shape).double())


def train(seeds: Sequence[int], recipe: Recipe = RECIPE, build=build_double, **more) -> Trained:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(3, 7))[CLASSES] + 0.5 * rng.normal(size=(100, 7))
    examples = Examples(torch.from_numpy(rows), torch.from_numpy(CLASSES), 3)
    splits = [split(CLASSES, 9, seed=seed, validation=10) for seed in seeds]
    return fit(examples, splits, recipe, seeds, device="cpu", build=build, **more)


def damage(
    monkeypatch: pytest.MonkeyPatch, when: dict[int, float], value: float = torch.nan
) -> list[tuple[list[int], int]]:
    """Ruin a weight of each seed's member before an epoch, or after it if a half follows; the epochs that are made."""
    train_epoch, made = loop._train_epoch, list[tuple[list[int], int]]()

    def ruin(fleet: Fleet, job: Job, epoch: float) -> None:
        for place, seed in enumerate(job.seeds):
            if when.get(seed) == epoch:
                weight = next(tensor.detach() for name, tensor in fleet.tensors().items() if name.endswith("weight"))
                (weight[place] if fleet.member_dims else weight)[0] = value

    def damaged(fleet: Fleet, job: Job, epoch: int) -> tuple[History, dict[int, str]]:
        made.append((list(job.seeds), epoch))
        ruin(fleet, job, epoch)
        result = train_epoch(fleet, job, epoch)
        ruin(fleet, job, epoch + 0.5)
        return result

    monkeypatch.setattr(loop, "_train_epoch", damaged)
    return made


def watch_launches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of how many members the fleets are that get ready."""
    launch, launched = loop.launch, list[int]()

    def watched(ladders: Sequence[Ladder], *rest: object, **more: object) -> Fleet:
        launched.append(len(ladders))
        return launch(ladders, *rest, **more)

    monkeypatch.setattr(loop, "launch", watched)
    return launched


def assert_others_same(trained: Trained, expected: Trained) -> None:
    """By weights, statistics and history, but for rounding: stacked products of others add in another order."""
    others = [place for place in range(len(trained.ladders)) if place not in trained.diverged]
    for place, ladder, history in zip(others, expected.ladders, expected.histories, strict=True):
        for name, tensor in ladder.state_dict().items():
            torch.testing.assert_close(trained.ladders[place].state_dict()[name], tensor, rtol=0, atol=1e-11)
        for line, other in zip(trained.histories[place], history, strict=True):
            for name in line.keys() - {"seconds"} | other.keys() - {"seconds"}:
                assert line[name] == pytest.approx(other[name], rel=1e-10)


@pytest.mark.parametrize("epoch", [1, 2, 4])
def test_the_others_go_on_from_where_they_are(monkeypatch, epoch):
    others = [3, 14, 92]
    expected = train(others)
    made, launched = damage(monkeypatch, {15: epoch}), watch_launches(monkeypatch)
    trained = train(SEEDS)
    assert_others_same(trained, expected)
    assert launched == ([4, 3] if epoch < 4 else [4])
    assert made == [(SEEDS if now <= epoch else others, now) for now in (1, 2, 3, 4)]
    assert list(trained.diverged) == [2]
    assert trained.diverged[2].startswith(f"Training stopped in epoch {epoch}, update 1: the supervised cost was no ")
    assert (trained.interrupted, trained.histories[2]) == (False, [])


def test_several_are_lost_one_after_the_other(monkeypatch):
    expected = train([14])
    made = damage(monkeypatch, {3: 3, 15: 1, 92: 2})
    trained = train(SEEDS)
    assert_others_same(trained, expected)
    assert made == [(SEEDS, 1), ([3, 14, 92], 2), ([3, 14], 3), ([14], 4)]
    assert {place: said.split(",")[0] for place, said in trained.diverged.items()} == {
        0: "Training stopped in epoch 3",
        2: "Training stopped in epoch 1",
        3: "Training stopped in epoch 2",
    }


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_the_last_update_ruined_does_not_send_the_others_back(monkeypatch, value):
    expected = train([3, 14, 92])
    made = damage(monkeypatch, {15: 4.5}, value)
    trained = train(SEEDS)
    assert_others_same(trained, expected)
    assert made == [(SEEDS, epoch) for epoch in (1, 2, 3, 4)]
    assert trained.diverged[2].startswith("After the last update ")


def test_those_on_other_devices_do_not_notice(monkeypatch):
    monkeypatch.setattr("tikas.training.fit.suitable_devices", lambda *_: [CPU, CPU])
    expected = train([14, 15, 92])
    made = damage(monkeypatch, {3: 2})
    trained = train(SEEDS)
    assert_others_same(trained, expected)
    assert list(trained.diverged) == [0]
    assert sorted(made) == sorted(
        [([3, 14], 1), ([3, 14], 2), *(([14], now) for now in (3, 4))] + [([15, 92], now) for now in (1, 2, 3, 4)]
    )


def test_a_device_all_of_whose_members_are_lost_leaves_the_others_alone(monkeypatch):
    monkeypatch.setattr("tikas.training.fit.suitable_devices", lambda *_: [CPU, CPU])
    expected = train([3, 14])
    damage(monkeypatch, {15: 2, 92: 2})
    trained = train(SEEDS)
    assert_others_same(trained, expected)
    assert list(trained.diverged) == [2, 3]


def test_networks_of_somebody_elses_go_on_one_by_one(monkeypatch):
    recipe = replace(RECIPE, costs=1.0)
    expected = train([14, 92], recipe, build_module)
    damage(monkeypatch, {3: 2, 15: 1})
    trained = train(SEEDS, recipe, build_module)
    assert_others_same(trained, expected)
    assert list(trained.diverged) == [0, 2]


def test_where_nobody_is_left_training_stops_with_what_happened_first_to_the_first(monkeypatch):
    made = damage(monkeypatch, {3: 2, 14: 1, 15: 2, 92: 1})
    with pytest.raises(
        TrainingDivergedError, match=r"^Training stopped in epoch 2, .* It is not the only one: 4 diverged\.$"
    ) as caught:
        train(SEEDS)
    assert list(caught.value.members) == [0, 1, 2, 3]
    assert made == [(SEEDS, 1), ([3, 15], 2)]


def test_advice_is_of_a_members_own_settings(monkeypatch):
    damage(monkeypatch, {15: 1, 14: 4.5})
    settings = zip(RATES, COSTS, strict=True)
    grid = [replace(RECIPE, learning_rate=rate, costs=(cost, 1.0, 0.1)) for rate, cost in settings]
    said = train(SEEDS, grid).diverged
    for place, words in said.items():
        assert f"below {RATES[place]:g} or smaller costs than ({COSTS[place]}, 1.0, 0.1)." in words
    assert list(said) == [1, 2]


def test_smaller_costs_are_no_advice_where_there_are_none(monkeypatch):
    damage(monkeypatch, {15: 1, 3: 4.5})
    said = train(SEEDS, replace(RECIPE, costs=0.0, learning_rate=0.25)).diverged
    assert [said[place].endswith("then try a learning rate below 0.25.") for place in (0, 2)] == [True, True]


def test_nothing_can_be_predicted_by_a_lost_member(monkeypatch):
    damage(monkeypatch, {15: 1})
    lost = train(SEEDS).ladders[2]
    assert torch.equal(lost.rungs[1].weight, build_double(RECIPE, (7,), 3, 15).rungs[1].weight)
    with pytest.raises(RuntimeError, match="no statistics"):
        lost(torch.zeros(2, 7).double())


def test_what_is_told_of_lost_members_goes_from_process_to_process():
    """As in a grid search with several jobs."""
    error = pickle.loads(pickle.dumps(TrainingDivergedError({1: "Training stopped in epoch 3."})))
    assert (str(error), error.members) == ("Training stopped in epoch 3.", {1: "Training stopped in epoch 3."})
    trained = Trained([], [], interrupted=False)
    assert pickle.loads(pickle.dumps(trained)) == trained


def test_progress_tells_of_it_and_comes_to_its_end(monkeypatch):
    damage(monkeypatch, {15: 2})
    told = list[Progress]()
    train(SEEDS, on_epoch=told.append)
    assert [progress.doing.partition(":")[0] for progress in told if progress.doing] == [
        "getting ready",
        "1 of 4 members diverged",
        "getting ready",
    ]
    assert [progress.epoch for progress in told] == [0, 1, 2, 2, 2, 3, 4]
    assert [len(progress.members) for progress in told] == [0, 4, 3, 0, 0, 3, 3]
    assert {progress.epochs for progress in told} == {4}


def room_for_two(monkeypatch: pytest.MonkeyPatch) -> None:
    size = 3 * bytes_of_a_member(build_double(RECIPE, (7,), 3, 0), 20, 12, updates_in_a_block=1)
    monkeypatch.setattr(groups, "free_bytes", lambda _: size)  # with what is left free


@pytest.mark.parametrize("lost", [SEEDS[:2], SEEDS[2:]], ids=["the first fleet", "the last fleet"])
def test_progress_comes_to_its_end_where_all_members_of_a_fleet_are_lost(monkeypatch, lost):
    room_for_two(monkeypatch)
    damage(monkeypatch, dict.fromkeys(lost, 2))
    told = list[Progress]()
    train(SEEDS, on_epoch=told.append)
    assert [progress.epochs for progress in told][:2] == [8, 8]
    assert "2 of 2 members diverged" in [progress.doing for progress in told]
    assert (told[-1].epoch, told[-1].epochs) == (4, 4)


def test_a_fleet_is_gone_before_the_others_start_again(monkeypatch):
    launch, fleets, alive = loop.launch, list[weakref.ref[Fleet]](), list[int]()

    def watched(*arguments: object, **more: object) -> Fleet:
        alive.append(sum(fleet() is not None for fleet in fleets))
        fleet = launch(*arguments, **more)
        fleet.itself = fleet  # circles of theirs are what the collector is for
        fleets.append(weakref.ref(fleet))
        return fleet

    monkeypatch.setattr(loop, "launch", watched)
    damage(monkeypatch, {15: 2, 3: 3})
    train(SEEDS)
    assert alive == [0, 0, 0]


@pytest.mark.parametrize("training", [False, True], ids=["while they get ready", "in their first epoch"])
def test_the_others_go_on_in_halves_from_where_they_are_if_memory_runs_out(monkeypatch, training):
    launch, launched = loop.launch, list[int]()

    def run_out(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    def short_of_memory(ladders: Sequence[Ladder], *rest: object, **more: object) -> Fleet:
        launched.append(len(ladders))
        if len(launched) == 2 and not training:
            run_out()
        fleet = launch(ladders, *rest, **more)
        if len(launched) == 2:
            fleet.train_epoch = run_out
        return fleet

    expected = train([3, 14, 92])
    made = damage(monkeypatch, {15: 2})
    monkeypatch.setattr(loop, "launch", short_of_memory)
    told = list[Progress]()
    trained = train(SEEDS, on_epoch=told.append)
    assert_others_same(trained, expected)
    tried = [([3, 14, 92], 3)] if training else []
    assert made == [(SEEDS, 1), (SEEDS, 2), *tried, ([3], 3), ([3], 4), ([14, 92], 3), ([14, 92], 4)]
    assert (told[-1].epoch, told[-1].epochs) == (8, 8)


def test_the_others_go_on_in_halves_from_where_they_were_last_kept(monkeypatch):
    """After the loss, that is: they need not go back there."""
    monkeypatch.setattr(keeping, "SECONDS_BETWEEN", 0.0)
    monkeypatch.setattr(keeping, "MOST_OF_THE_TIME", np.inf)
    others = [3, 14, 92]
    expected = train(others)
    made = damage(monkeypatch, {15: 1})
    train_epoch = loop._train_epoch

    def short_of_memory(fleet: Fleet, job: Job, epoch: int) -> tuple[History, dict[int, str]]:
        if (fleet.members, epoch) == (3, 4):
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return train_epoch(fleet, job, epoch)

    monkeypatch.setattr(loop, "_train_epoch", short_of_memory)
    trained = train(SEEDS)
    assert_others_same(trained, expected)
    assert made == [(SEEDS, 1), (others, 2), (others, 3), ([3], 4), ([14, 92], 4)]


# Ctrl-C


def press(monkeypatch: pytest.MonkeyPatch, at: str, times: int = 1) -> list[Progress]:
    """Ctrl-C when progress tells of this for the so manieth time; what is told."""
    told = list[Progress]()

    def pressed(_: groups._Reporter, lines: History, doing: str) -> None:
        told.append(Progress(0, 0, lines, doing))
        if doing.startswith(at) and sum(each.doing.startswith(at) for each in told) == times:
            raise KeyboardInterrupt

    monkeypatch.setattr(groups._Reporter, "_tell", pressed)
    return told


@pytest.mark.parametrize(
    ("at", "times"), [("1 of 4", 1), ("getting ready", 2)], ids=["when it is told", "while the others get ready"]
)
def test_ctrl_c_after_a_loss_keeps_the_others_as_they_are(monkeypatch, at, times):
    expected = train([3, 14, 92], replace(RECIPE, epochs=4))
    made = damage(monkeypatch, {15: 2})
    press(monkeypatch, at, times)
    trained = train(SEEDS)
    assert [len(history) for history in trained.histories] == [2, 2, 0, 2]
    assert (trained.interrupted, trained.stop_asked, list(trained.diverged)) == (True, True, [2])
    assert made == [(SEEDS, 1), (SEEDS, 2)]
    for place, history in zip((0, 1, 3), expected.histories, strict=True):
        assert trained.histories[place][0]["total"] == pytest.approx(history[0]["total"], rel=1e-10)
        assert "validation_error" in trained.histories[place][1]


def test_ctrl_c_between_getting_ready_and_the_next_epoch_keeps_the_others_as_they_are(monkeypatch):
    suitable_arithmetic, entered = loop.suitable_arithmetic, list[Fleet]()

    @contextmanager
    def pressed(fleet: Fleet, **more: bool) -> Iterator[None]:
        entered.append(fleet)
        if len(entered) == 2:
            raise KeyboardInterrupt
        with suitable_arithmetic(fleet, **more):
            yield

    damage(monkeypatch, {15: 2})
    monkeypatch.setattr(loop, "suitable_arithmetic", pressed)
    trained = train(SEEDS)
    assert [len(history) for history in trained.histories] == [2, 2, 0, 2]
    assert (trained.interrupted, trained.stop_asked, list(trained.diverged)) == (True, True, [2])


def test_ctrl_c_while_a_lost_member_is_built_anew_keeps_the_others_as_they_are(monkeypatch):
    built = list[int | None]()

    def pressed(recipe: Recipe, shape: Sequence[int], outputs: int, seed: int | None) -> Ladder:
        built.append(seed)
        if built.count(15) == 2:
            built.clear()
            raise KeyboardInterrupt
        return build_double(recipe, shape, outputs, seed)

    damage(monkeypatch, {15: 2})
    trained = train(SEEDS, build=pressed)
    assert [len(history) for history in trained.histories] == [2, 2, 0, 2]
    assert (trained.interrupted, trained.stop_asked, list(trained.diverged)) == (True, True, [2])


def test_ctrl_c_does_not_hide_that_all_of_a_fleet_are_lost(monkeypatch):
    room_for_two(monkeypatch)
    damage(monkeypatch, dict.fromkeys(SEEDS[2:], 2))
    press(monkeypatch, "2 of 2")
    trained = train(SEEDS)
    assert [len(history) for history in trained.histories] == [4, 4, 0, 0]
    assert (trained.interrupted, trained.stop_asked, list(trained.diverged)) == (False, True, [2, 3])


def test_ctrl_c_does_not_hide_that_another_is_ruined(monkeypatch):
    """The second to be lost shows it only after its last update, in the epoch in which the first was lost."""
    damage(monkeypatch, {15: 2, 3: 2.5})
    press(monkeypatch, "getting ready", times=2)
    trained = train(SEEDS)
    assert [len(history) for history in trained.histories] == [0, 2, 0, 2]
    assert list(trained.diverged) == [0, 2]


def test_ctrl_c_in_an_epoch_in_which_one_is_lost_spoils_nothing_that_is_kept(monkeypatch, tmp_path):
    monkeypatch.setattr(keeping, "SECONDS_BETWEEN", 0.0)
    expected = train([3, 14, 92], keep=Keeping(Folder(tmp_path / "whole")))
    update, updates = Fleet.update, list[int]()

    def pressed(fleet: Fleet, *batch: object) -> torch.Tensor:
        updates.append(1)
        if len(updates) == 11:  # the third of the third epoch, of four updates each
            raise KeyboardInterrupt
        return update(fleet, *batch)

    folder = Folder(tmp_path / "cut")
    with monkeypatch.context() as patch:
        damage(patch, {15: 3})
        patch.setattr(Fleet, "update", pressed)
        cut = train(SEEDS, keep=Keeping(folder))
    assert (cut.interrupted, list(cut.diverged)) == (True, [2])
    assert len(list(folder.path.iterdir())) == 3
    assert_others_same(train([3, 14, 92], keep=Keeping(folder)), expected)


# Estimators


X = np.random.default_rng(0).normal(size=(3, 7))[CLASSES] + 0.5 * np.random.default_rng(1).normal(size=(100, 7))
Y = np.where(np.arange(100) < 20, CLASSES, -1)


def classifier(**settings) -> LadderClassifier:
    return LadderClassifier((8,), epochs=3, batch_size=20, n_members=3, random_state=7, **settings)


def test_an_estimator_warns_of_lost_members_and_goes_on_with_the_others(monkeypatch):
    with monkeypatch.context() as patch:
        damage(patch, {8: 2})
        with pytest.warns(
            UserWarning, match=r"1 of 3 members diverged \(seed 8\) and is left out\. Training stopped in epoch 2"
        ) as caught:
            model = classifier().fit(X, Y)
    assert [warning.filename for warning in caught] == [__file__]
    assert (len(model.ladders_), model.seeds_) == (2, [7, 9])
    assert {line["member"] for line in model.history_} == {0, 1}
    assert model.score(X, CLASSES) > 0.5


def test_ctrl_c_after_a_loss_is_warned_of_beside_it(monkeypatch):
    damage(monkeypatch, {8: 2})
    press(monkeypatch, "getting ready", times=2)
    with pytest.warns(UserWarning, match="diverged") as caught:
        model = classifier().fit(X, Y)
    assert [str(warning.message).partition(". ")[0] for warning in caught] == [
        "1 of 3 members diverged (seed 8) and is left out",
        "Training was interrupted after 2 of 3 epochs; 2 of 3 members are kept as they were then, without those that "
        "had diverged or finished none",
    ]
    assert (model.seeds_, model.n_iter_, len(model.history_)) == ([7, 9], 2, 4)
    assert (model.transduction_[20:] == model.predict(X)[20:]).all()


def test_members_that_had_learnt_something_before_are_not_thrown_away(monkeypatch):
    model = classifier(warm_start=True).fit(X, Y)
    before = model.predict_proba(X)
    damage(monkeypatch, {8: 2})
    with pytest.raises(TrainingDivergedError, match="epoch 2"):
        model.fit(X, Y)
    assert len(model.ladders_) == 3
    assert (model.predict_proba(X) == before).all()


# Runs


@pytest.mark.parametrize("tested", [True, False], ids=["test rows", "hidden labels"])
def test_a_run_has_the_errors_of_those_that_are_left(monkeypatch, tested):
    rows = load_rows("digits")
    if not tested:
        rows = replace(rows, test_x=rows.test_x[:0], test_y=rows.test_y[:0])
    recipe = Recipe(data="digits", labels=50, network=(16,), epochs=2)
    expected = run(recipe, [0, 2], rows, device="cpu")
    damage(monkeypatch, {1: 1})
    with pytest.warns(UserWarning, match=r"1 of 3 members diverged \(seed 1\)"):
        outcome = run(recipe, [0, 1, 2], rows, device="cpu")
    assert outcome.estimator.seeds_ == [0, 2]
    assert [record["seed"] for record in member_records(outcome, recipe, [0, 1, 2], "cpu")] == [0, 2]
    kinds = ("test_errors", "labeled_statistics_errors") if tested else ("hidden_errors",)
    for kind in kinds:
        first, lost, last = getattr(outcome, kind)
        assert np.isnan(lost)
        assert [first, last] == pytest.approx(getattr(expected, kind))
    columns = [list(outcome_table({"ladder": each}, recipe).columns[1].cells) for each in (outcome, expected)]
    assert columns[0] == columns[1]
