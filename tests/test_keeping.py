"""Training that was cut short goes on from where it was kept, to the same weights, bit by bit."""

import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tikas import gamma
from tikas.data.splits import Split, split
from tikas.data.streams import Examples
from tikas.experiments.cells import Cell
from tikas.experiments.ledger import Ledger
from tikas.experiments.protocol import Setting
from tikas.experiments.readings import reading
from tikas.experiments.records import read
from tikas.experiments.reproduce import UNFINISHED, reproduce
from tikas.experiments.rows import load_rows
from tikas.experiments.tasks import Task
from tikas.model.ladder import Ladder
from tikas.training import checkpoint, evaluation, keeping, loop
from tikas.training.building import build_ladder
from tikas.training.fit import fit
from tikas.training.fleet import Fleet
from tikas.training.keeping import Folder, Keeping, Kept, Memory, name_of
from tikas.training.loop import Build, Job, Progress, Trained
from tikas.training.recipe import Recipe

CLASSES = np.arange(60) % 3
RECIPE = Recipe(data="array", labels=9, network=(8, 6), costs=(10, 1, 0.1), batch_size=20, epochs=5)
OWN_RATES = [RECIPE, replace(RECIPE, learning_rate=0.01, labels=12), replace(RECIPE, noise=(0.5, 0.1), annealed=1.0)]
EPOCHS_BEFORE = 2


@pytest.fixture(autouse=True)
def whatever_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Epochs are over here before keeping them has paid."""
    monkeypatch.setattr(keeping, "MOST_OF_THE_TIME", np.inf)


def examples(scale: float = 1.0) -> Examples:
    rows = torch.from_numpy(np.random.default_rng(0).normal(size=(60, 7))).float()
    return Examples(scale * rows, torch.from_numpy(CLASSES), 3)


def splits_of(recipes: Sequence[Recipe]) -> list[Split]:
    return [split(CLASSES, recipe.labels, validation=10, seed=seed) for seed, recipe in enumerate(recipes)]


def train(
    recipes: Sequence[Recipe],
    keep: Keeping | None = None,
    *,
    epochs: int | None = None,
    told: list[Progress] | None = None,
    build: Build = build_ladder,
    rows: Examples | None = None,
) -> Trained:
    """Until Ctrl-C after so many epochs, where a number of them is given."""

    def on_epoch(progress: Progress) -> None:
        if told is not None:
            told.append(progress)
        if progress.members and progress.epoch == epochs:
            raise KeyboardInterrupt

    seeds, rows = range(len(recipes)), rows or examples()
    return fit(rows, splits_of(recipes), recipes, seeds, device="cpu", on_epoch=on_epoch, keep=keep, build=build)


def assert_the_same(one: Trained, other: Trained) -> None:
    for ours, theirs in zip(one.ladders, other.ladders, strict=True):
        assert all(torch.equal(tensor, theirs.state_dict()[name]) for name, tensor in ours.state_dict().items())
    for ours, theirs in zip(one.histories, other.histories, strict=True):
        assert [{**line, "seconds": 0} for line in ours] == [{**line, "seconds": 0} for line in theirs]


def build_module(_: Recipe, shape: Sequence[int], outputs: int, seed: int | None) -> Ladder:
    torch.manual_seed(seed or 0)
    layers = nn.Sequential(nn.Linear(*shape, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(), nn.Linear(6, outputs))
    return gamma(layers, outputs, noise=0.3, cost=1.0, example=torch.zeros(2, *shape))


@pytest.mark.parametrize(
    ("recipes", "build"),
    [
        ([RECIPE], build_ladder),
        ([RECIPE] * 3, build_ladder),
        (OWN_RATES, build_ladder),
        ([replace(RECIPE, costs=(1.0,))], build_module),
    ],
    ids=["one", "three", "three with rates of their own", "a module of somebody else's"],
)
def test_training_that_was_cut_short_goes_on_to_the_same_weights(tmp_path, recipes, build):
    whole = train(recipes, build=build)
    cut = train(recipes, Keeping(Folder(tmp_path), every=0), epochs=EPOCHS_BEFORE, build=build)
    assert cut.interrupted
    told: list[Progress] = []
    keep = Keeping(Folder(tmp_path), every=0)
    assert_the_same(train(recipes, keep, told=told, build=build), whole)
    assert [progress.epoch for progress in told] == [EPOCHS_BEFORE, 3, 4, 5]
    assert f"going on after epoch {EPOCHS_BEFORE}" in told[0].doing
    assert list(keep.continued.values()) == [[EPOCHS_BEFORE]] * len(recipes)


@pytest.mark.parametrize("cut_after", [1, 2, 3, 4])
def test_held_out_rows_are_measured_after_the_same_epochs_where_it_was_cut_short(tmp_path, monkeypatch, cut_after):
    """Whatever was measured for those who saw it end."""
    monkeypatch.setattr(evaluation, "epochs_between", lambda *_: 2)
    cut = train([RECIPE] * 2, Keeping(Folder(tmp_path), every=0), epochs=cut_after)
    assert all("validation_error" in history[-1] for history in cut.histories)
    whole = train([RECIPE] * 2, Keeping(Folder(tmp_path), every=0))
    for history in whole.histories:
        assert [line["epoch"] for line in history if "validation_error" in line] == [2, 4, 5]
    assert_the_same(whole, train([RECIPE] * 2))


def test_it_can_be_cut_short_again_and_again(tmp_path):
    for epochs in (1, 2, 4):
        keep = Keeping(Folder(tmp_path), every=0)
        train([RECIPE], keep, epochs=epochs)
    last = Keeping(Folder(tmp_path), every=0)
    assert_the_same(train([RECIPE], last), train([RECIPE]))
    assert list(last.continued.values()) == [[1, 2, 4]]


def test_what_was_kept_takes_no_memory_once_it_is_in_place(tmp_path, monkeypatch):
    """Three tensors of every parameter, twice, which nobody reckons with."""
    train([RECIPE] * 3, Keeping(Folder(tmp_path), every=0), epochs=EPOCHS_BEFORE)
    kept, alive = list[weakref.ref](), list[int]()
    take_up, go_on_from, train_epoch = Keeping.take_up, Fleet.go_on_from, Fleet.train_epoch

    def taken_up(keep: Keeping, names: Sequence[str]) -> list[Kept]:
        members = take_up(keep, names)
        kept.extend(weakref.ref(tensor) for member in members for tensor in member.tensors.values())
        return members

    def going_on(fleet: Fleet, snapshot: Mapping[str, Tensor], updates: int) -> None:
        kept.extend(weakref.ref(tensor) for tensor in snapshot.values())
        go_on_from(fleet, snapshot, updates)

    def counting(fleet: Fleet, rates: Tensor) -> Tensor:
        alive.append(sum(tensor() is not None for tensor in kept))
        return train_epoch(fleet, rates)

    monkeypatch.setattr(Keeping, "take_up", taken_up)
    monkeypatch.setattr(Fleet, "go_on_from", going_on)
    monkeypatch.setattr(Fleet, "train_epoch", counting)
    train([RECIPE] * 3, Keeping(Folder(tmp_path)))
    assert kept
    assert alive == [0] * 3


def test_members_go_on_in_smaller_company(tmp_path):
    train(OWN_RATES, Keeping(Folder(tmp_path), every=0), epochs=EPOCHS_BEFORE)
    told: list[Progress] = []
    alone = train(OWN_RATES[:1], Keeping(Folder(tmp_path), every=0), told=told)
    assert told[0].epoch == EPOCHS_BEFORE
    for ours, theirs in zip(alone.ladders[0].parameters(), train(OWN_RATES[:1]).ladders[0].parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)  # stacked products add in another order


@pytest.mark.parametrize(
    "other",
    [
        {"recipes": [replace(RECIPE, epochs=6)]},
        {"recipes": [RECIPE], "rows": examples(1.01)},
        {"recipes": [RECIPE], "keep": "another attachment"},
    ],
    ids=["another recipe", "other rows", "something else"],
)
def test_nothing_goes_on_from_what_was_kept_of_others(tmp_path, other):
    train([RECIPE], Keeping(Folder(tmp_path), every=0), epochs=EPOCHS_BEFORE)
    told: list[Progress] = []
    train(**{**other, "keep": Keeping(Folder(tmp_path), other.get("keep", ""), every=0)}, told=told)
    assert told[0].epoch == 0


def test_names_tell_targets_and_weights_apart():
    chosen, plain = split(CLASSES, 9), examples()

    def name(**changes: torch.Tensor) -> str:
        return name_of(RECIPE, 0, chosen, plain._replace(**changes), "cpu")

    def targets_but(row: int) -> torch.Tensor:
        targets = plain.targets.clone()
        targets[row] = (targets[row] + 1) % 3
        return targets

    unlabeled = np.setdiff1d(chosen.unlabeled, chosen.labeled)
    assert name(targets=targets_but(unlabeled[0])) == name(), "the target of a row without a label is not looked at"
    others = name(targets=targets_but(chosen.labeled[0])), name(weights=torch.ones(60)), name(weights=torch.zeros(60))
    assert len({name(), *others}) == 4


def test_names_tell_splits_and_devices_apart():
    names = [
        name_of(RECIPE, 0, split(CLASSES, 9, seed=seed), examples(), device)
        for seed, device in ((0, "cpu"), (1, "cpu"), (0, "cuda"), (0, "cuda:1"))
    ]
    assert len(set(names)) == 3
    assert names[2] == names[3]


def test_members_that_were_kept_after_other_numbers_of_epochs_go_on_apart(tmp_path):
    train([RECIPE] * 2, Keeping(Folder(tmp_path), every=0), epochs=EPOCHS_BEFORE)
    train([RECIPE], Keeping(Folder(tmp_path), every=0), epochs=3)
    told: list[Progress] = []
    trained = train([RECIPE] * 3, Keeping(Folder(tmp_path), every=0), told=told)
    assert [len(history) for history in trained.histories] == [5, 5, 5]
    assert [progress.epoch for progress in told] == [3, 4, 5, 7, 8, 9, 10, 10, 11, 12, 13, 14, 15]
    assert [progress.epochs for progress in told] == [15] * 13


def test_members_that_had_other_numbers_of_epochs_are_not_taken_up_together():
    keep = Keeping(Memory(a=Kept({}, [{"epoch": 1}], []), b=Kept({}, [{"epoch": 1}, {"epoch": 2}], [])))
    assert keep.take_up(["a", "b"]) is None
    assert keep.take_up(["b"]) is not None


def test_what_is_discarded_is_gone_and_nothing_else(tmp_path):
    store = Folder(tmp_path / "unfinished")
    mine, others = (Keeping(store, what, every=0) for what in ("mine", "others"))
    for keep in (mine, others):
        train([RECIPE], keep, epochs=EPOCHS_BEFORE)
    mine.discard(mine.names)
    assert [path.stem for path in store.path.iterdir()] == list(others.names)
    others.discard(others.names)
    assert not store.path.exists()


@pytest.mark.parametrize(
    "damage",
    [lambda whole: whole[:-10], lambda whole: whole[:-10] + bytes(byte ^ 1 for byte in whole[-10:])],
    ids=["cut short", "with other bytes in its tensors"],
)
def test_members_beside_a_damaged_one_go_on(tmp_path, damage):
    keep = Keeping(Folder(tmp_path), every=0)
    train([RECIPE] * 3, keep, epochs=EPOCHS_BEFORE)
    damaged = tmp_path / f"{keep.names[1]}.safetensors"
    damaged.write_bytes(damage(damaged.read_bytes()))
    again = Keeping(Folder(tmp_path), every=0)
    train([RECIPE] * 3, again)
    assert set(again.continued) == {keep.names[0], keep.names[2]}


@pytest.mark.parametrize("length", [0, 100, -50], ids=["empty", "half a header", "half of what it holds"])
def test_a_damaged_file_is_passed_over(tmp_path, length):
    train([RECIPE], Keeping(Folder(tmp_path), every=0), epochs=EPOCHS_BEFORE)
    (kept,) = tmp_path.iterdir()
    kept.write_bytes(kept.read_bytes()[:length])
    assert_the_same(train([RECIPE], Keeping(Folder(tmp_path), every=0)), train([RECIPE]))


def test_a_model_of_that_name_is_passed_over(tmp_path):
    keep = Keeping(Folder(tmp_path), every=0)
    train([RECIPE], keep, epochs=EPOCHS_BEFORE)
    (kept,) = tmp_path.iterdir()
    tensors, header = checkpoint.read(kept)
    checkpoint.write(kept, tensors, {**header, "kind": "something else"})
    assert keep.epochs(keep.names[0]) == 0
    assert keep.take_up(keep.names) is None


def out_of_memory(*_: object) -> None:
    raise MemoryError("no room for a copy")


def no_folder(folder: Folder, *_: object) -> None:
    raise NotADirectoryError(20, "Not a directory", str(folder.path))


@pytest.mark.parametrize(
    ("target", "fail", "reason"),
    [(Folder, no_folder, r"in .*unfinished.*Not a directory"), (Fleet, out_of_memory, "no room for a copy")],
    ids=["a folder that cannot be written", "no memory for a snapshot"],
)
def test_what_cannot_be_kept_is_warned_of_and_loses_nothing(tmp_path, monkeypatch, target, fail, reason):
    monkeypatch.setattr(target, "__setitem__" if target is Folder else "snapshot", fail)
    with pytest.warns(UserWarning, match=rf"Training goes on, but could not be kept.*{reason}"):
        trained = train([RECIPE] * 2, Keeping(Folder(tmp_path / "unfinished"), every=0))
    monkeypatch.undo()
    assert_the_same(trained, train([RECIPE] * 2))


def test_ladders_of_another_shape_are_refused_with_both_shapes(tmp_path):
    """As a later version of the package might make them of the same recipe."""

    def build_wider(recipe: Recipe, shape: Sequence[int], outputs: int, seed: int | None) -> Ladder:
        return build_ladder(replace(recipe, network=(9, 6)), shape, outputs, seed)

    train([RECIPE], Keeping(Folder(tmp_path), every=0), epochs=EPOCHS_BEFORE)
    with pytest.raises(ValueError, match=r"kept with shape \(1, 8\), .* ask for \(1, 9\): .* Delete the folder"):
        train([RECIPE], Keeping(Folder(tmp_path), every=0), build=build_wider)


def test_what_is_missing_of_a_kept_member_is_named(tmp_path):
    keep = Keeping(Folder(tmp_path), every=0)
    train([RECIPE], keep, epochs=EPOCHS_BEFORE)
    (kept,) = keep.take_up(keep.names)
    tensors = {name: tensor for name, tensor in kept.tensors.items() if name != "mean.rungs.1.beta"}
    keep.store[keep.names[0]] = kept._replace(tensors=tensors)
    with pytest.raises(ValueError, match=r"^mean\.rungs\.1\.beta was not kept, .* Delete the folder"):
        train([RECIPE], Keeping(Folder(tmp_path), every=0))


def test_ladders_to_go_on_from_are_not_kept_under_a_name():
    start = [build_ladder(RECIPE, (7,), 3, seed=0)]
    with pytest.raises(ValueError, match="Leave out either keep or start"):
        fit(examples(), splits_of([RECIPE]), RECIPE, [0], start=start, keep=Keeping(Memory()))


def test_members_are_kept_no_more_often_than_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(keeping, "MOST_OF_THE_TIME", 0.1)
    clock = iter(range(0, 10_000, 10))
    monkeypatch.setattr(keeping.time, "monotonic", lambda: float(next(clock)))
    snapshots = count_snapshots(monkeypatch)
    train([replace(RECIPE, epochs=20)], Keeping(Folder(tmp_path), every=45))
    assert len(snapshots) == 2  # it took ten of these seconds, and ten times that is to pass before the next


def test_members_too_large_to_be_kept_soon_are_not_kept_at_first(tmp_path, monkeypatch):
    monkeypatch.setattr(keeping, "MOST_OF_THE_TIME", 0.01)
    snapshots = count_snapshots(monkeypatch)
    for bytes_a_second, kept in ((1.0, 0), (1e12, 1)):
        monkeypatch.setattr(keeping, "BYTES_A_SECOND", bytes_a_second)
        train([replace(RECIPE, epochs=2)], Keeping(Folder(tmp_path), every=0))
        assert len(snapshots) == kept


def test_a_member_alone_is_not_kept_in_memory_since_it_cannot_be_split(monkeypatch):
    snapshots = count_snapshots(monkeypatch)
    train([RECIPE], Keeping(Memory(), every=0))
    assert not snapshots


def count_snapshots(monkeypatch: pytest.MonkeyPatch) -> list[Fleet]:
    taken, snapshot = list[Fleet](), Fleet.snapshot

    def counted(fleet: Fleet) -> dict[str, torch.Tensor]:
        taken.append(fleet)
        return snapshot(fleet)

    monkeypatch.setattr(Fleet, "snapshot", counted)
    return taken


def test_a_fleet_that_runs_out_of_memory_halfway_goes_on_in_halves_from_there(monkeypatch):
    monkeypatch.setattr(keeping, "SECONDS_BETWEEN", 0.0)
    whole = train(OWN_RATES)
    epochs = run_out_of_memory_in_the_fourth(monkeypatch)
    told: list[Progress] = []
    keep = Keeping(Memory())
    parted = train(OWN_RATES, keep, told=told)
    assert not keep.continued, "no other call had begun it"
    assert not keep.store, "what is done needs no memory"
    assert epochs == [(3, 1), (3, 2), (3, 3), (3, 4), (1, 4), (1, 5), (2, 4), (2, 5)]
    assert told[-1].epoch == told[-1].epochs == 10
    for ours, theirs in zip(parted.ladders, whole.ladders, strict=True):
        for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-4)


def run_out_of_memory_in_the_fourth(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """What a fleet of three does; of how many members are the epochs that are tried."""
    epochs, train_epoch = list[tuple[int, int]](), loop._train_epoch

    def tried(fleet: Fleet, job: Job, epoch: int) -> object:
        epochs.append((fleet.members, epoch))
        if (fleet.members, epoch) == (3, 4):
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return train_epoch(fleet, job, epoch)

    monkeypatch.setattr(loop, "_train_epoch", tried)
    return epochs


def test_ctrl_c_while_the_first_half_gets_ready_keeps_what_both_have_learnt(monkeypatch):
    monkeypatch.setattr(keeping, "SECONDS_BETWEEN", 0.0)
    epochs = run_out_of_memory_in_the_fourth(monkeypatch)

    def press(progress: Progress) -> None:
        if progress.doing.startswith("getting ready: 1 member,"):
            raise KeyboardInterrupt

    trained = fit(examples(), splits_of(OWN_RATES), OWN_RATES, range(3), device="cpu", on_epoch=press)
    assert epochs == [(3, 1), (3, 2), (3, 3), (3, 4)]
    assert [len(history) for history in trained.histories] == [3, 3, 3]
    assert (trained.interrupted, trained.stop_asked) == (True, True)


# The paper's cells and studies.

QUICK = Recipe(data="digits", labels=50, network=(16,), epochs=4)
TASKS: dict[str, Callable[[], Task]] = {
    "a cell": lambda: Cell("table0/quick/50", QUICK, seeds=2),
    "a setting": lambda: Setting("study/quick/50/1", replace(QUICK, validation=300), seeds=2),
    "an autoencoder": lambda: Cell("table0/attached/50", replace(QUICK, costs=(10, 0)), seeds=2, attached=1),
}


def measure(
    task: Task, out: Path, monkeypatch: pytest.MonkeyPatch, *, until: int | None = None, most: int = 40
) -> list[int]:
    """Measure it, or be interrupted after so many epochs; which epochs were trained."""
    epochs, train_epoch = list[int](), loop._train_epoch

    def counted(fleet: Fleet, job: object, epoch: int) -> object:
        if epoch == until:
            raise KeyboardInterrupt
        epochs.append(epoch)
        return train_epoch(fleet, job, epoch)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "_train_epoch", counted)
        patch.setattr(keeping, "SECONDS_BETWEEN", 0.0)
        reproduce([task], Ledger.read(out), out, lambda _: load_rows("digits"), device="cpu", most=most)
    return epochs


@pytest.mark.parametrize("kind", TASKS)
def test_what_was_interrupted_goes_on_where_it_stopped(tmp_path, monkeypatch, kind):
    task, parts, whole = TASKS[kind](), tmp_path / "parts" / "paper.jsonl", tmp_path / "whole" / "paper.jsonl"
    assert measure(task, parts, monkeypatch, until=3) == [1, 2]
    assert not parts.exists()
    assert len(os.listdir(parts.parent / UNFINISHED)) == 2
    assert measure(task, parts, monkeypatch) == [3, 4]
    assert not (parts.parent / UNFINISHED).exists()
    measure(task, whole, monkeypatch)
    for one, other in zip(read(parts), read(whole), strict=True):
        assert one.pop("continued_after_epochs") == [2]
        assert "continued_after_epochs" not in other
        for timed in ("seconds", "seconds_per_epoch"):
            assert one.pop(timed) > 0
            assert other.pop(timed) > 0
        assert one == other


def test_what_was_interrupted_goes_on_in_smaller_fleets_too(tmp_path, monkeypatch):
    cell, out = Cell("table0/quick/50", QUICK, seeds=4), tmp_path / "paper.jsonl"
    measure(cell, out, monkeypatch, until=3)
    assert measure(cell, out, monkeypatch, most=2) == [3, 4, 3, 4]
    assert [record["continued_after_epochs"] for record in read(out)] == [[2]] * 4
    assert not (tmp_path / UNFINISHED).exists()


def test_what_diverged_is_not_kept(tmp_path, monkeypatch):
    """From there it would diverge again."""
    cell, out, train_epoch = Cell("table0/quick/50", QUICK, seeds=1), tmp_path / "paper.jsonl", loop._train_epoch

    def diverging(fleet: Fleet, job: Job, epoch: int) -> object:
        lines, _ = train_epoch(fleet, job, epoch)
        return lines, {0: "no longer finite"} if epoch == 3 else {}

    monkeypatch.setattr(loop, "_train_epoch", diverging)
    monkeypatch.setattr(keeping, "SECONDS_BETWEEN", 0.0)
    outcome = reproduce([cell], Ledger(), out, lambda _: load_rows("digits"), device="cpu")
    assert [name for name, _ in outcome.failures] == [f"{cell.name}, seed 0"]
    assert not (tmp_path / UNFINISHED).exists()


def test_seconds_of_what_was_interrupted_are_told_apart(tmp_path, monkeypatch):
    cell, out = Cell("table0/quick/50", QUICK, seeds=2), tmp_path / "paper.jsonl"
    measure(cell, out, monkeypatch, until=3)
    measure(cell, out, monkeypatch)
    found = reading(cell, Ledger.read(out))
    assert found is not None
    assert (found.summary.runs, found.seconds, found.updates_seconds) == (2, None, None)
    more = replace(cell, seeds=3)  # the third is trained at one go
    measure(more, out, monkeypatch)
    found = reading(more, Ledger.read(out))
    assert found is not None
    assert found.seconds == read(out)[2]["seconds"]
