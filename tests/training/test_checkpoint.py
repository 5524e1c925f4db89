"""Files of tensors, and snapshots: a fit that was stopped resumes to the same weights, bit by bit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from tikas import gamma
from tikas.data.batches import Batch, Batches
from tikas.data.datasets import Dataset
from tikas.data.splits import split
from tikas.training import checkpoint
from tikas.training.callbacks import Progress
from tikas.training.checkpoint import Checkpointer, ModelFileError, identity_of, read_tensors, write_tensors
from tikas.training.engines import EagerEngine
from tikas.training.environment import deferred_signals
from tikas.training.recipe import Recipe
from tikas.training.trainer import Trainer, TrainingDivergedError, TrainingResult

ROWS = np.random.default_rng(0).normal(size=(60, 7)).astype(np.float32)
CLASSES = np.arange(60) % 3
DATASET = Dataset(ROWS, CLASSES, classes=np.arange(3))
RECIPE = Recipe(network=(8, 6), costs=(10, 1, 0.1), batch_size=20, labeled_batch_size=10, epochs=5)
OWN_RATES = [RECIPE, replace(RECIPE, learning_rate=0.01), replace(RECIPE, noise=(0.5, 0.1), annealed=1.0)]
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def snapshots_may_take_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "MAX_SHARE_OF_TIME", np.inf)


def build_module(recipe: Recipe, input_shape: Sequence[int], n_outputs: int, seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = nn.Sequential(nn.Linear(*input_shape, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, n_outputs))
    return gamma(network, n_outputs, recipe.noise[0], recipe.costs[0], example=torch.zeros(2, *input_shape))


def train(
    recipes: Sequence[Recipe],
    folder: Path | None = None,
    stop_after: int | None = None,
    seen: list[Progress] | None = None,
    **options: object,
) -> TrainingResult:
    """Train, with a snapshot after every epoch; Ctrl-C after `stop_after` epochs."""

    def callback(progress: Progress) -> None:
        if seen is not None:
            seen.append(progress)
        if progress.members and progress.epoch == stop_after:
            raise KeyboardInterrupt

    splits = [split(CLASSES, labels=9, validation=10, seed=seed) for seed in range(len(recipes))]
    checkpointer = None if folder is None else Checkpointer(folder, seconds=0)
    trainer = Trainer(list(recipes), device="cpu", callbacks=[callback], checkpointer=checkpointer, **options)
    return trainer.fit(DATASET, splits, range(len(recipes)))


def assert_equal_results(one: TrainingResult, other: TrainingResult) -> None:
    for member, expected in zip(one.members, other.members, strict=True):
        for (name, tensor), same in zip(member.state_dict().items(), expected.state_dict().values(), strict=True):
            assert torch.equal(tensor, same), name
    for history, expected in zip(one.histories, other.histories, strict=True):
        assert [{**line, "seconds": 0} for line in history] == [{**line, "seconds": 0} for line in expected]


# Resuming


@pytest.mark.parametrize("stop_after", [1, 4])
@pytest.mark.parametrize(
    ("recipes", "options"),
    [
        ([RECIPE], {}),
        ([RECIPE] * 2, {}),
        (OWN_RATES, {}),
        ([replace(RECIPE, costs=0.0)], {}),
        ([replace(RECIPE, network=(), costs=1.0)], {"build": build_module}),
    ],
    ids=["one member", "two members", "own settings", "supervised", "module with dropout"],
)
def test_an_interrupted_fit_resumes_to_the_same_bits(tmp_path, recipes, options, stop_after) -> None:
    expected = train(recipes, **options)
    assert train(recipes, tmp_path, stop_after, **options).interrupted
    resumed = train(recipes, tmp_path, **options)
    assert not resumed.interrupted
    assert_equal_results(resumed, expected)


@pytest.mark.parametrize("call", ["Batches.batch", "Checkpointer.save"])
def test_a_fit_that_is_interrupted_anywhere_in_its_third_epoch_resumes_to_the_same_bits(tmp_path, monkeypatch, call):
    owner = {"Batches.batch": Batches, "Checkpointer.save": Checkpointer}[call]
    name = call.split(".")[1]
    original, calls = getattr(owner, name), []

    def interrupted(*arguments: object, **options: object) -> object:
        calls.append(name)
        if len(calls) == (6 if owner is Batches else 3):  # an epoch has two updates, and one snapshot
            raise KeyboardInterrupt
        return original(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, interrupted)
        assert train(OWN_RATES, tmp_path).interrupted
    assert_equal_results(train(OWN_RATES, tmp_path), train(OWN_RATES))


def test_a_fit_can_be_interrupted_after_every_epoch(tmp_path: Path) -> None:
    expected = train(OWN_RATES)
    for epoch in range(1, 5):
        train(OWN_RATES, tmp_path, epoch)
    checkpointer = Checkpointer(tmp_path, seconds=0)
    splits = [split(CLASSES, labels=9, validation=10, seed=seed) for seed in range(3)]
    resumed = Trainer(OWN_RATES, device="cpu", checkpointer=checkpointer).fit(DATASET, splits, range(3))
    assert [len(history) for history in resumed.histories] == [5, 5, 5]
    for member, other in zip(resumed.members, expected.members, strict=True):
        for tensor, same in zip(member.state_dict().values(), other.state_dict().values(), strict=True):
            assert torch.equal(tensor, same)
    assert set(map(tuple, checkpointer.resumed_after.values())) == {(1, 2, 3, 4)}


def test_members_with_different_progress_continue_in_separate_groups(tmp_path: Path) -> None:
    expected = train([RECIPE] * 2)
    train([RECIPE], tmp_path, stop_after=2)  # member 0 alone
    seen: list[Progress] = []
    resumed = train([RECIPE] * 2, tmp_path, seen=seen)
    assert [progress.epoch for progress in seen] == [2, 3, 4, 5, 5, 6, 7, 8, 9, 10]
    assert "epoch 2" in seen[0].message
    assert resumed.indices == [0, 1]
    for history, same in zip(resumed.histories, expected.histories, strict=True):
        assert [line["epoch"] for line in history] == [line["epoch"] for line in same]
        assert history[-1]["total"] == pytest.approx(same[-1]["total"], rel=1e-4)


def identity(dataset: Dataset = DATASET, recipe: Recipe = RECIPE, seed: int = 0, variant: str = "", **labels: int):
    labels = {"labels": 9, "validation": 10, **labels}
    return identity_of(recipe, seed, split(CLASSES, **labels), dataset, CPU, variant, None)


def open_and_save(folder: Path, updates: Sequence[int], members: int = 1) -> Checkpointer:
    """Save members after these numbers of updates; the weights are that number."""
    checkpointer = Checkpointer(folder)
    checkpointer.open([{"seed": member} for member in range(members)])
    for count in updates:
        state = {"model.beta": torch.full((members, 3), float(count))}
        checkpointer.save(range(members), lambda state=state: state, [[{"epoch": 1}]] * members, count)
    checkpointer.close()
    return checkpointer


def resume(folder: Path, members: int = 1) -> tuple[list[int], list[float]]:
    """Return the updates that members resume after, and the weight that each one's snapshot holds."""
    checkpointer = Checkpointer(folder)
    updates = checkpointer.open([{"seed": member} for member in range(members)])
    loaded = [checkpointer.load([member]) for member in range(members)]
    checkpointer.close()
    return updates, [each[0].tensors["model.beta"][0].item() if each else 0.0 for each in loaded]


CHANGES = {
    "recipe": ({"recipe": replace(RECIPE, noise=0.25)}, "noise"),
    "seed": ({"seed": 1}, "seed"),
    "number of labels": ({"labels": 12}, "labels"),
    "validation": ({"validation": 11}, "labels"),
    "rows": ({"dataset": replace(DATASET, rows=2 * ROWS)}, "data"),
    "targets": ({"dataset": replace(DATASET, targets=(CLASSES + 1) % 3)}, "labels"),
    "weights": ({"dataset": replace(DATASET, weights=np.linspace(0.5, 1.5, 60, dtype=np.float32))}, "labels"),
    "variant": ({"variant": "other"}, "variant"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_snapshot_of_another_fit_raises_value_error_that_names_what_differs(tmp_path: Path, change: str) -> None:
    changes, named = CHANGES[change]
    checkpointer = Checkpointer(tmp_path)
    checkpointer.open([identity()])
    checkpointer.save([0], lambda: {"model.beta": torch.ones(1, 2)}, [[]], 2)
    checkpointer.close()
    with pytest.raises(ValueError, match=named) as raised:
        Checkpointer(tmp_path).open([identity(**changes)])
    assert str(tmp_path) in str(raised.value)
    accepting = Checkpointer(tmp_path, accept=["recipe", "seed", "data", "labels", "variant"])
    assert accepting.open([identity(**changes)]) == [2]
    accepting.close()
    same = Checkpointer(tmp_path)
    assert same.open([identity()]) == [2]
    same.close()


def test_deleted_members_are_gone_and_no_others(tmp_path: Path) -> None:
    train([RECIPE] * 2, tmp_path, stop_after=2)
    checkpointer = Checkpointer(tmp_path)
    checkpointer.delete([0])
    assert {path.name.partition(".")[0] for path in tmp_path.iterdir()} == {"member-1"}
    checkpointer.delete([1])
    assert not tmp_path.exists()


class KilledError(BaseException):
    """Raised in place of writing a file, as if the process had been killed before."""


@pytest.mark.parametrize("files_written", range(10))
def test_members_resume_from_the_newest_update_that_all_have(tmp_path, monkeypatch, files_written: int) -> None:
    files = iter(range(files_written))

    def write_or_die(*arguments: Any) -> Path:
        if next(files, None) is None:
            raise KilledError
        return write_tensors(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_tensors", write_or_die)
        with pytest.raises(KilledError):
            open_and_save(tmp_path, [20, 40, 60, 80], members=3)
    complete = 20 * (files_written // 3)
    assert resume(tmp_path, members=3) == ([complete] * 3, [complete] * 3)
    open_and_save(tmp_path, [complete + 20], members=3)
    assert resume(tmp_path, members=3) == ([complete + 20] * 3, [complete + 20] * 3)


def test_members_that_memory_divided_into_groups_keep_their_own_progress(tmp_path: Path) -> None:
    open_and_save(tmp_path, [20, 40], members=3)
    checkpointer = Checkpointer(tmp_path)
    checkpointer.open([{"seed": member} for member in range(3)])
    for count in (60, 80):
        checkpointer.save([0, 1], lambda: {"model.beta": torch.ones(2, 3)}, [[{"epoch": 1}]] * 2, count)
    checkpointer.close()
    assert resume(tmp_path, members=3)[0] == [80, 80, 40]


def test_what_a_killed_process_was_writing_is_deleted(tmp_path: Path) -> None:
    open_and_save(tmp_path, [20])
    partial = tmp_path / ".member-0.1.safetensors.0123.partial"
    partial.write_bytes(b"half of it")
    assert resume(tmp_path) == ([20], [20.0])
    assert not partial.exists()


def test_a_folder_is_cleared_of_all_fits_unless_one_is_training(tmp_path: Path) -> None:
    open_and_save(tmp_path / "folder", [20, 40], members=3)
    other, training = Checkpointer(tmp_path / "folder", names=["another"]), Checkpointer(tmp_path / "folder")
    training.open([{"seed": 0}])
    with pytest.raises(RuntimeError, match="member-0"):
        other.clear()
    training.close()
    assert resume(tmp_path / "folder", members=3)[0] == [40] * 3
    other.clear()
    assert list(tmp_path.iterdir()) == []
    other.clear()  # there is no folder


def test_the_seeds_of_a_stopped_fit_are_known(tmp_path: Path) -> None:
    assert Checkpointer(tmp_path / "new").seeds() == []
    open_and_save(tmp_path, [20], members=3)
    assert Checkpointer(tmp_path).seeds() == [0, 1, 2]


def test_members_that_another_process_trains_raise_runtime_error(tmp_path: Path) -> None:
    with subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"""
from tikas.training.checkpoint import Checkpointer
checkpointer = Checkpointer({str(tmp_path)!r})
checkpointer.open([{{"seed": 0}}])
print("open", flush=True)
input()
""",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout.readline() == "open\n"
        with pytest.raises(RuntimeError, match="member-0") as raised:
            Checkpointer(tmp_path).open([{"seed": 0}])
        assert str(tmp_path) in str(raised.value)
        other.kill()
    assert resume(tmp_path) == ([0], [0.0])  # the lock ends with the process


@pytest.fixture
def read_only_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that this user must not write to; it is the current one, because its parents are private."""
    resource = pytest.importorskip("resource", reason="Windows has no such users")
    del resource
    monkeypatch.chdir(tmp_path)
    user = os.geteuid()
    open_and_save(tmp_path / "folder", [20, 40])
    for path in (tmp_path, tmp_path / "folder"):
        path.chmod(0o555)
    if user == 0:  # root may write everywhere
        os.seteuid(65534)
    yield Path("folder")
    os.seteuid(user)
    tmp_path.chmod(0o755)


def test_a_read_only_folder_raises_os_error(read_only_folder: Path) -> None:
    for folder in (read_only_folder, Path("new")):
        with pytest.raises(OSError, match=folder.name):
            Checkpointer(folder).open([{"seed": 0}])


def test_a_folder_that_cannot_be_made_raises_os_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        Checkpointer(tmp_path / "file" / "folder").open([{"seed": 0}])


# Damage


def test_a_snapshot_damaged_anywhere_leaves_the_one_before_it(tmp_path: Path) -> None:
    """Truncated at every length, and with each byte changed."""
    open_and_save(tmp_path, [20, 40])
    newest = tmp_path / "member-0.1.safetensors"
    whole = newest.read_bytes()
    for length in range(len(whole)):
        newest.write_bytes(whole[:length])
        assert resume(tmp_path) == ([20], [20.0]), length
    for position in range(len(whole)):
        newest.write_bytes(whole[:position] + bytes([whole[position] ^ 0x10]) + whole[position + 1 :])
        assert resume(tmp_path) == ([20], [20.0]), position
    newest.write_bytes(whole)
    assert resume(tmp_path) == ([40], [40.0])


def test_if_both_snapshots_of_a_member_are_damaged_model_file_error_says_so(tmp_path: Path) -> None:
    open_and_save(tmp_path, [20, 40])
    for path in tmp_path.glob("*.safetensors"):
        path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ModelFileError, match="member-0"):
        Checkpointer(tmp_path).open([{"seed": 0}])


def test_a_model_file_in_the_place_of_a_snapshot_raises_value_error(tmp_path: Path) -> None:
    write_tensors(tmp_path / "member-0.0.safetensors", {"model.beta": torch.ones(3)}, {"version": 3})
    with pytest.raises(ValueError, match=r"member-0\.0"):
        Checkpointer(tmp_path).open([{"seed": 0}])


@pytest.mark.parametrize(
    "change",
    [
        {"identity": None},
        {"identity": []},
        {"updates": "20"},
        {"history": [{"epoch": None}]},
        {"history": [5]},
        {"resumed_after": [[]]},
        {"together": [[]]},
    ],
)
def test_a_snapshot_with_wrong_fields_raises_model_file_error(tmp_path: Path, change: dict[str, object]) -> None:
    open_and_save(tmp_path, [20])
    path = tmp_path / "member-0.0.safetensors"
    tensors, header = read_tensors(path)
    write_tensors(path, tensors, header | change)
    with pytest.raises(ModelFileError, match=r"member-0\.0"):
        Checkpointer(tmp_path).open([{"seed": 0}])


@pytest.mark.parametrize("state", [None, torch.zeros(7), torch.zeros(5056, dtype=torch.uint8)])
def test_a_snapshot_with_wrong_states_of_generators_raises_value_error(tmp_path: Path, state: torch.Tensor | None):
    train([RECIPE], tmp_path, stop_after=2)
    for path in tmp_path.glob("*.safetensors"):
        tensors, header = read_tensors(path)
        rest = {name: tensor for name, tensor in tensors.items() if name != "batches.noise"}
        write_tensors(path, rest if state is None else {**rest, "batches.noise": state}, header)
    with pytest.raises(ValueError, match=r"random generators.*Delete"):
        train([RECIPE], tmp_path)


def test_a_snapshot_of_other_shapes_raises_value_error_that_names_both(tmp_path: Path) -> None:
    train([RECIPE], tmp_path, stop_after=2)
    path = tmp_path / "member-0.1.safetensors"
    tensors, header = read_tensors(path)
    write_tensors(path, {**tensors, "model.rungs.1.weight": torch.zeros(2, 2)}, header)
    with pytest.raises(ValueError, match=r"model\.rungs\.1\.weight") as raised:
        train([RECIPE], tmp_path)
    assert "(1, 2, 2)" in str(raised.value)
    assert "(1, 8, 7)" in str(raised.value)
    del tensors["mean.rungs.1.beta"]
    write_tensors(path, tensors, header)
    with pytest.raises(ValueError, match=r"mean\.rungs\.1\.beta is missing"):
        train([RECIPE], tmp_path)


def no_folder(*_: object, **__: object) -> None:
    raise PermissionError(13, "Permission denied")


def no_memory(*_: object) -> None:
    raise RuntimeError("DefaultCPUAllocator: no memory")


@pytest.mark.parametrize(
    ("owner", "name", "fail", "reason"),
    [(Path, "open", no_folder, "Permission denied"), (EagerEngine, "state_dict", no_memory, "no memory")],
    ids=["no folder", "no memory"],
)
def test_a_snapshot_that_cannot_be_taken_is_warned_of_and_training_continues(
    tmp_path, monkeypatch, owner, name, fail, reason
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, fail)
        with pytest.warns(UserWarning, match=reason) as warned:
            result = train([RECIPE], tmp_path)
    assert str(tmp_path) in str(warned[0].message)
    assert_equal_results(result, train([RECIPE]))


def test_a_disk_that_is_full_after_any_number_of_bytes_leaves_the_snapshots_before(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource", reason="Windows does not limit the size of files")
    open_and_save(tmp_path, [20, 40])
    size = (tmp_path / "member-0.0.safetensors").stat().st_size
    checkpointer, limits = Checkpointer(tmp_path), resource.getrlimit(resource.RLIMIT_FSIZE)
    checkpointer.open([{"seed": 0}])
    for written in range(size):
        resource.setrlimit(resource.RLIMIT_FSIZE, (written, limits[1]))
        try:
            with pytest.warns(UserWarning, match="File too large"):
                checkpointer.save([0], lambda: {"model.beta": torch.full((1, 3), 60.0)}, [[{"epoch": 1}]], 60)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert len(list(tmp_path.iterdir())) == 3
        assert [checkpoint.read_tensors(path)[1]["updates"] for path in sorted(tmp_path.glob("*0.[01].*"))] == [20, 40]
    checkpointer.save([0], lambda: {"model.beta": torch.full((1, 3), 60.0)}, [[{"epoch": 1}]], 60)
    checkpointer.close()
    assert resume(tmp_path) == ([60], [60.0])


def test_a_fit_whose_members_all_diverge_leaves_no_snapshots(tmp_path: Path, monkeypatch) -> None:
    def diverge(*arguments: Any) -> dict[int, str]:
        epoch = arguments[-1]
        assert len(list((tmp_path / "folder").glob("*.safetensors"))) == min(epoch - 1, 2)
        return {0: "a cost was not finite"} if epoch == 4 else {}

    monkeypatch.setattr("tikas.training.trainer._find_divergence", diverge)
    with pytest.raises(TrainingDivergedError):
        train([RECIPE], tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


def test_callbacks_see_every_epoch_once(tmp_path: Path) -> None:
    seen: list[Progress] = []
    train(OWN_RATES, tmp_path, stop_after=2, seen=seen)
    train(OWN_RATES, tmp_path, seen=seen)
    epochs = [(progress.epoch, [line["epoch"] for line in progress.members]) for progress in seen if progress.members]
    assert epochs == [(epoch, [epoch] * 3) for epoch in range(1, 6)]


def test_a_fit_that_was_saved_after_its_last_epoch_is_not_trained_again(tmp_path, monkeypatch) -> None:
    splits = [split(CLASSES, labels=9, validation=10)]

    def fit() -> TrainingResult:
        checkpointer = Checkpointer(tmp_path, save_last=True)
        return Trainer(RECIPE, device="cpu", checkpointer=checkpointer).fit(DATASET, splits, [0])

    expected = fit()
    monkeypatch.delattr(EagerEngine, "update")
    assert_equal_results(fit(), expected)


def test_members_that_diverged_are_not_saved_and_the_others_are(tmp_path: Path) -> None:
    recipes = [replace(RECIPE, learning_rate=1e30), RECIPE]
    assert train(recipes, tmp_path, stop_after=3).indices == [1]
    seen: list[Progress] = []
    result = train(recipes, tmp_path, seen=seen)
    assert result.indices == [1]
    assert len(result.histories[0]) == 5
    assert seen[0].epoch == 3  # the other one begins again, in a group of its own
    assert not list(tmp_path.glob("member-0*.safetensors"))


def test_an_ensemble_that_runs_out_of_memory_continues_from_its_snapshots_in_halves(tmp_path, monkeypatch) -> None:
    expected, train_epoch, epochs = train(OWN_RATES), EagerEngine.train_epoch, []

    def limited(engine: EagerEngine, rates: torch.Tensor, first: int) -> torch.Tensor:
        if first == 0:
            epochs.append(engine.members)
        if epochs == [3, 3, 3]:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return train_epoch(engine, rates, first)

    monkeypatch.setattr(EagerEngine, "train_epoch", limited)
    seen: list[Progress] = []
    result = train(OWN_RATES, tmp_path, seen=seen)
    assert epochs == [3, 3, 3, *[1] * 3, *[2] * 3]
    assert seen[-1].epoch == seen[-1].epochs == 10
    for member, other in zip(result.members, expected.members, strict=True):
        for tensor, same in zip(member.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(tensor, same, atol=2e-5, rtol=1e-4)


def test_a_fit_that_starts_from_models_resumes_to_the_same_bits(tmp_path: Path) -> None:
    start, splits = train([RECIPE]).members, [split(CLASSES, labels=9)]

    def continue_training(stop_after: int | None = None, folder: Path | None = tmp_path, start=start) -> TrainingResult:
        def callback(progress: Progress) -> None:
            if progress.members and progress.epoch == stop_after:
                raise KeyboardInterrupt

        checkpointer = None if folder is None else Checkpointer(folder, seconds=0)
        trainer = Trainer(RECIPE, device="cpu", callbacks=[callback], checkpointer=checkpointer)
        return trainer.fit(DATASET, splits, [0], start)

    assert continue_training(stop_after=2).interrupted
    assert_equal_results(continue_training(), continue_training(folder=None))
    with pytest.raises(ValueError, match="start"):
        continue_training(start=train([replace(RECIPE, epochs=1)]).members)


# How often


def test_snapshots_are_written_no_more_often_than_asked_for(tmp_path, monkeypatch) -> None:
    now = [0.0]
    monkeypatch.setattr(checkpoint.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(checkpoint, "MAX_SHARE_OF_TIME", 0.01)
    checkpointer = Checkpointer(tmp_path, seconds=60)
    assert not checkpointer.is_due(size=0)
    now[0] = 60.0
    assert checkpointer.is_due(size=0)
    assert not checkpointer.is_due(size=int(1e9))  # 2 s by the assumed speed: worth it after 200 s
    now[0] = 200.0
    assert checkpointer.is_due(size=int(1e9))
    assert Checkpointer(tmp_path, seconds=0).is_due(size=int(1e12))
    assert not Checkpointer(tmp_path, seconds=0).is_due(size=0, within_epoch=True)


# Signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("update", [1, 23], ids=["within an epoch", "within the third epoch"])
def test_a_signal_saves_what_was_trained_until_then(tmp_path, monkeypatch, number: int, update: int) -> None:
    recipes = [replace(RECIPE, batch_size=5)] * 2  # ten updates an epoch
    expected, original, calls = train(recipes), Batches.batch, []

    def batch(batches: Batches, position: int) -> Batch:
        calls.append(position)
        if len(calls) == update:
            signal.raise_signal(number)
        return original(batches, position)

    def terminated(*_: object) -> None:
        raise SystemExit(143)

    before = signal.signal(signal.SIGTERM, terminated)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(Batches, "batch", batch)
            if number == signal.SIGTERM or update == 1:
                with pytest.raises(SystemExit if number == signal.SIGTERM else KeyboardInterrupt):
                    train(recipes, tmp_path)
            else:
                assert train(recipes, tmp_path).interrupted
        assert signal.getsignal(signal.SIGTERM) is terminated
    finally:
        signal.signal(signal.SIGTERM, before)
    calls.clear()
    monkeypatch.setattr(Batches, "batch", lambda batches, at: calls.append(at) or original(batches, at))
    assert_equal_results(train(recipes, tmp_path), expected)
    assert calls[0] == (1 if update == 1 else 0)
    assert len(calls) == (49 if update == 1 else 20)


def test_a_second_ctrl_c_stops_at_once() -> None:
    with deferred_signals(enabled=True) as signals:
        signal.raise_signal(signal.SIGINT)
        assert signals == [signal.SIGINT]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


# Files of tensors


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return write_tensors(tmp_path / "file.safetensors", {"a": torch.arange(6.0).view(2, 3)}, {"kind": "test"})


def test_tensors_and_header_are_read_as_they_were_written(saved: Path) -> None:
    tensors, header = read_tensors(saved)
    assert torch.equal(tensors["a"], torch.arange(6.0).view(2, 3))
    assert header == {"kind": "test"}


@pytest.mark.parametrize("make", [lambda p: p.write_bytes(b""), lambda p: p.write_text("hello"), lambda p: p.mkdir()])
def test_what_is_no_file_of_tikas_raises_model_file_error(tmp_path: Path, make: Callable[[Path], object]) -> None:
    path = tmp_path / "other"
    make(path)
    with pytest.raises(ModelFileError, match="other"):
        read_tensors(path)


@pytest.mark.parametrize(
    "metadata",
    [{"format": "pt"}, {"tikas": "{}"}, {"tikas": "[1]", "checksum": "0"}, {"tikas": "[" * 100_000, "checksum": "0"}],
    ids=["another program", "no checksum", "no object", "too deep"],
)
def test_a_safetensors_file_without_a_header_of_tikas_raises_model_file_error(tmp_path: Path, metadata) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "other", metadata)
    with pytest.raises(ModelFileError, match="other"):
        read_tensors(tmp_path / "other")


def test_tensors_of_a_type_that_torch_does_not_have_raise_model_file_error(saved: Path) -> None:
    saved.write_bytes(saved.read_bytes().replace(b'"F32","shape":[2,3]', b'"F4" , "shape":[48]'))  # four bits a value
    with pytest.raises(ModelFileError, match=saved.name):
        read_tensors(saved)


def test_a_device_in_the_place_of_a_file_raises_os_error() -> None:
    with pytest.raises(OSError, match="Not a regular file"):
        write_tensors("/dev/null", {"a": torch.ones(2)}, {})


def test_a_link_stays_and_the_file_that_it_points_to_is_replaced(saved: Path) -> None:
    link = saved.parent / "link"
    link.symlink_to(saved)
    saved.chmod(0o600)
    write_tensors(link, {"a": torch.zeros(1)}, {"kind": "other"})
    assert link.is_symlink()
    assert read_tensors(saved)[1] == {"kind": "other"}
    assert saved.stat().st_mode & 0o777 == 0o600


def test_a_missing_file_raises_file_not_found_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="missing"):
        read_tensors(tmp_path / "missing")


def test_an_existing_file_stays_if_the_new_one_cannot_be_written(saved, monkeypatch) -> None:
    def disk_full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    before = saved.read_bytes()
    monkeypatch.setattr(checkpoint.os, "fsync", disk_full)
    with pytest.raises(OSError, match="No space left"):
        write_tensors(saved, {"a": torch.zeros(2)}, {})
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


def test_the_checksum_covers_the_header(saved: Path) -> None:
    payload = saved.read_bytes()
    header = json.dumps({"kind": "test"}).encode().replace(b'"', b'\\"')
    assert header in payload
    saved.write_bytes(payload.replace(header, header.replace(b"test", b"tset")))
    with pytest.raises(ModelFileError, match="checksum"):
        read_tensors(saved)
