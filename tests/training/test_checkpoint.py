"""Files of tensors, and snapshots: a fit that was stopped resumes to the same weights, bit by bit."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from tikas import gamma
from tikas.data.batches import Batches
from tikas.data.datasets import Dataset
from tikas.data.splits import split
from tikas.training import checkpoint
from tikas.training.callbacks import Progress
from tikas.training.checkpoint import Checkpointer, ModelFileError, read_tensors, write_tensors
from tikas.training.engines import EagerEngine
from tikas.training.recipe import Recipe
from tikas.training.trainer import Trainer, TrainingResult

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


def test_snapshots_of_different_epochs_are_not_loaded_together(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path)
    for key, epochs in (("a", 1), ("b", 2)):
        history = [{"epoch": epoch} for epoch in range(1, epochs + 1)]
        checkpointer.save([key], lambda: {"model.beta": torch.ones(1, 2)}, [history])
    assert (checkpointer.epochs("a"), checkpointer.epochs("b")) == (1, 2)
    assert checkpointer.load(["a", "b"]) is None
    assert checkpointer.load(["b"]) is not None


@pytest.mark.parametrize("change", ["recipe", "seed", "labels", "validation", "rows", "targets", "weights", "variant"])
def test_members_that_would_learn_something_else_have_other_keys(tmp_path: Path, change: str) -> None:
    def key(
        dataset: Dataset = DATASET, recipe: Recipe = RECIPE, seed: int = 0, variant: str = "", **split_options: int
    ):
        labels = {"labels": 9, "validation": 10, **split_options}
        return Checkpointer(tmp_path, variant=variant).key(recipe, seed, split(CLASSES, **labels), dataset, CPU)

    weights = np.linspace(0.5, 1.5, 60, dtype=np.float32)
    others = {
        "recipe": {"recipe": replace(RECIPE, noise=0.25)},
        "seed": {"seed": 1},
        "labels": {"labels": 12},
        "validation": {"validation": 11},
        "rows": {"dataset": replace(DATASET, rows=2 * ROWS)},
        "targets": {"dataset": replace(DATASET, targets=(CLASSES + 1) % 3)},
        "weights": {"dataset": replace(DATASET, weights=weights)},
        "variant": {"variant": "other"},
    }
    assert key() == key()
    assert key(**others[change]) != key()


def test_a_deleted_snapshot_is_gone_and_no_other(tmp_path: Path) -> None:
    train([RECIPE] * 2, tmp_path, stop_after=2)
    checkpointer = Checkpointer(tmp_path)
    one, other = sorted(path.stem for path in tmp_path.iterdir())
    checkpointer.delete(one)
    assert (checkpointer.epochs(one), checkpointer.epochs(other)) == (0, 2)
    checkpointer.delete(other)
    assert not tmp_path.exists()


# Damage


def test_a_snapshot_truncated_anywhere_or_with_a_flipped_byte_is_not_used(tmp_path: Path) -> None:
    path = Checkpointer(tmp_path)._path("a")
    checkpointer = Checkpointer(tmp_path)
    checkpointer.save(["a"], lambda: {"model.beta": torch.arange(6.0).view(1, 6)}, [[{"epoch": 1}]])
    whole = path.read_bytes()
    assert checkpointer.load(["a"]) is not None
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert checkpointer.load(["a"]) is None, length
    for position in range(len(whole)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x10]) + whole[position + 1 :])
        assert checkpointer.load(["a"]) is None, position


def test_a_damaged_snapshot_makes_only_its_member_start_again(tmp_path: Path) -> None:
    train([RECIPE] * 2, tmp_path, stop_after=3)
    damaged = min(tmp_path.iterdir())
    damaged.write_bytes(damaged.read_bytes()[:-5])
    checkpointer = Checkpointer(tmp_path)
    keys = [path.stem for path in tmp_path.iterdir()]
    assert checkpointer.load(keys) is None
    result = train([RECIPE] * 2, tmp_path)
    assert [len(history) for history in result.histories] == [5, 5]


def test_a_model_file_in_the_place_of_a_snapshot_is_not_used(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path)
    write_tensors(checkpointer._path("a"), {"model.beta": torch.ones(3)}, {"version": 3})
    assert checkpointer.epochs("a") == 0
    assert checkpointer.load(["a"]) is None


def test_a_snapshot_of_other_shapes_raises_value_error_that_names_both(tmp_path: Path) -> None:
    train([RECIPE], tmp_path, stop_after=2)
    (path,) = tmp_path.iterdir()
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


def test_members_that_diverged_are_not_saved_and_the_others_are(tmp_path: Path) -> None:
    recipes = [replace(RECIPE, learning_rate=1e30), RECIPE]
    assert train(recipes, tmp_path, stop_after=3).indices == [1]
    seen: list[Progress] = []
    result = train(recipes, tmp_path, seen=seen)
    assert result.indices == [1]
    assert len(result.histories[0]) == 5
    assert seen[0].epoch == 3  # the other one begins again, in a group of its own
    assert len(list(tmp_path.iterdir())) == 1


def test_an_ensemble_that_runs_out_of_memory_continues_from_its_snapshots_in_halves(tmp_path, monkeypatch) -> None:
    expected, train_epoch, epochs = train(OWN_RATES), EagerEngine.train_epoch, []

    def limited(engine: EagerEngine, rates: torch.Tensor) -> torch.Tensor:
        epochs.append(engine.members)
        if epochs == [3, 3, 3]:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return train_epoch(engine, rates)

    monkeypatch.setattr(EagerEngine, "train_epoch", limited)
    seen: list[Progress] = []
    result = train(OWN_RATES, tmp_path, seen=seen)
    assert epochs == [3, 3, 3, *[1] * 3, *[2] * 3]
    assert seen[-1].epoch == seen[-1].epochs == 10
    for member, other in zip(result.members, expected.members, strict=True):
        for tensor, same in zip(member.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(tensor, same, atol=2e-5, rtol=1e-4)


def test_a_checkpointer_and_models_to_start_from_raise_value_error(tmp_path: Path) -> None:
    start = train([RECIPE]).members
    trainer = Trainer(RECIPE, device="cpu", checkpointer=Checkpointer(tmp_path))
    with pytest.raises(ValueError, match="checkpointer"):
        trainer.fit(DATASET, [split(CLASSES, labels=9)], [0], start)


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
    with pytest.raises(ModelFileError, match="F4"):
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
