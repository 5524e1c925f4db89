"""Estimators with `checkpoint`: a stopped fit continues to the same members, history and predictions."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_iris
from torch import nn

from tikas import Conv, LadderClassifier, LadderRegressor, MaxPool
from tikas.data import batches as batches_module
from tikas.data.batches import Batch, Batches
from tikas.data.sources import ArrayRows
from tikas.data.splits import split
from tikas.estimators.base import LadderEstimator
from tikas.training import checkpoint

pytestmark = pytest.mark.filterwarnings("ignore:Training was interrupted")

ROWS, LABELS = load_iris(return_X_y=True)
ROWS = (ROWS - ROWS.mean(0)) / ROWS.std(0)
PARTLY = np.where(np.arange(150) % 5, -1, LABELS)
VALUES = np.where(np.arange(150) % 5, np.nan, 3 * ROWS[:, 0] + 20)
SPLITS = [split(LABELS, labels=15, validation=30, seed=seed) for seed in range(2)]
SETTINGS = {"epochs": 4, "batch_size": 30, "random_state": 0, "device": "cpu"}
EPOCH = 5
"""Updates of an epoch."""


def in_blocks(rows: Any) -> ArrayRows:
    """Rows that are read and shuffled in blocks of ten."""
    source = ArrayRows(rows)
    source.block_edges = np.arange(0, len(rows) + 1, 10)
    return source


class SpectralNorm(nn.Module):
    """A layer whose buffers change with every forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.utils.parametrizations.spectral_norm(nn.Linear(4, 8)), nn.Dropout(), nn.Linear(8, 3)
        )

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.layers(rows)


torch.manual_seed(0)
CASES: dict[str, tuple[LadderEstimator, tuple[Any, ...], dict[str, Any]]] = {
    "classifier": (LadderClassifier((8,), **SETTINGS), (ROWS, PARTLY), {}),
    "validation rows": (LadderClassifier((8,), n_members=2, **SETTINGS), (ROWS, LABELS), {"splits": SPLITS}),
    "ensemble, standardized": (
        LadderClassifier((8,), n_members=3, preprocess="standardize", **SETTINGS),
        (ROWS + 5, PARTLY),
        {},
    ),
    "regressor": (LadderRegressor((8,), n_members=2, **SETTINGS), (ROWS, VALUES), {}),
    "weights": (LadderClassifier((8,), **SETTINGS), (ROWS, PARTLY, np.linspace(0.5, 2, 150)), {}),
    "images": (LadderClassifier([Conv(4, 1), MaxPool(2)], **SETTINGS), (ROWS.reshape(150, 1, 2, 2), PARTLY), {}),
    "streamed": (
        LadderClassifier((8,), n_members=2, preprocess="standardize", **SETTINGS),
        (in_blocks(ROWS + 5), PARTLY),
        {},
    ),
    "streamed, validation rows": (
        LadderClassifier((8,), **SETTINGS),
        (in_blocks(ROWS), LABELS),
        {"splits": SPLITS[:1]},
    ),
    "module": (LadderClassifier(SpectralNorm(), **SETTINGS), (ROWS, PARTLY), {}),
}


@pytest.fixture(autouse=True)
def snapshots_may_take_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "MAX_SHARE_OF_TIME", np.inf)


@pytest.fixture(autouse=True)
def windows_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches_module, "WINDOW_BYTES", 2 * 30 * ROWS.shape[1] * 4)  # two updates


@pytest.fixture
def stop(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Numbers of updates before which Ctrl-C is pressed; the update itself is made."""
    original, made, stops = Batches.batch, [0], []

    def batch(batches: Batches, update: int) -> Batch:
        made[0] += 1
        if made[0] in stops:
            signal.raise_signal(signal.SIGINT)
        return original(batches, update)

    monkeypatch.setattr(Batches, "batch", batch)
    yield stops
    assert all(each <= made[0] for each in stops)


def fit_until_done(estimator: LadderEstimator, data: tuple[Any, ...], options: dict[str, Any]) -> int:
    """Call fit until it is not interrupted any more, and return how often."""
    for call in range(1, 10):
        try:
            estimator.fit(*data, **options)
        except KeyboardInterrupt:
            continue
        if not estimator.interrupted_:
            return call
    raise AssertionError("fit was always interrupted")


def assert_equal_fits(one: LadderEstimator, other: LadderEstimator, rows: Any) -> None:
    assert one.seeds_ == other.seeds_
    for member, expected in zip(one.ladders_, other.ladders_, strict=True):
        for (name, tensor), same in zip(member.state_dict().items(), expected.state_dict().values(), strict=True):
            if isinstance(tensor, torch.Tensor):
                assert torch.equal(tensor, same), name
    assert [{**line, "seconds": 0} for line in one.history_] == [{**line, "seconds": 0} for line in other.history_]
    assert np.array_equal(one.predict(rows), other.predict(rows))
    assert np.array_equal(one.transduction_, other.transduction_)


def copy_of(estimator: LadderEstimator, **changes: Any) -> Any:
    return type(estimator)(**{**estimator.get_params(deep=False), **changes})


@pytest.mark.parametrize("case", CASES)
def test_a_fit_that_is_stopped_twice_has_the_same_result(case: str, tmp_path: Path, stop: list[int]) -> None:
    estimator, data, options = CASES[case]
    expected = copy_of(estimator).fit(*data, **options)
    begun = EPOCH * 4
    stop[:] = [begun + 3, begun + 3 + 8]
    resumed = copy_of(estimator, checkpoint=tmp_path / "folder", checkpoint_every=0)
    assert fit_until_done(resumed, data, options) == 3
    assert_equal_fits(resumed, expected, data[0])
    assert not (tmp_path / "folder").exists()


def test_a_warm_start_that_is_stopped_continues_from_where_it_started(tmp_path: Path, stop: list[int]) -> None:
    estimator = LadderClassifier((8,), n_members=2, warm_start=True, **SETTINGS)
    expected = copy_of(estimator).fit(ROWS, PARTLY).fit(ROWS, PARTLY)
    stop[:] = [2 * 4 * EPOCH + 8, 3 * 4 * EPOCH + 8]  # in the first fit, and in the second
    resumed = copy_of(estimator, checkpoint=tmp_path / "folder", checkpoint_every=0)
    for epochs in (4, 8):
        assert fit_until_done(resumed, (ROWS, PARTLY), {}) == 2
        assert resumed.n_iter_ == epochs
    assert_equal_fits(resumed, expected, ROWS)


def test_without_a_random_state_the_seeds_of_the_stopped_fit_are_used(tmp_path: Path, stop: list[int]) -> None:
    settings = {**SETTINGS, "random_state": None, "n_members": 2, "checkpoint": tmp_path, "checkpoint_every": 0}
    stop[:] = [8]
    stopped = LadderClassifier((8,), **settings).fit(ROWS, PARTLY)
    assert stopped.interrupted_
    resumed = LadderClassifier((8,), **settings).fit(ROWS, PARTLY)
    assert resumed.seeds_ == stopped.seeds_
    assert len(resumed.history_) == 8


def test_members_begin_again_if_the_first_snapshot_of_one_is_missing(tmp_path: Path, stop: list[int]) -> None:
    """As after a process that died while it wrote the first snapshots."""
    settings = {**SETTINGS, "random_state": None, "n_members": 2, "checkpoint": tmp_path, "checkpoint_every": 0}
    stop[:] = [8]
    stopped = LadderClassifier((8,), **settings).fit(ROWS, PARTLY)
    for path in tmp_path.glob("member-1*"):
        path.unlink()
    resumed = LadderClassifier((8,), **settings).fit(ROWS, PARTLY)
    assert resumed.seeds_[0] == stopped.seeds_[0]
    assert len({line["seconds"] for line in resumed.history_}) == 4  # in one group


def test_another_fit_is_refused_with_what_differs(tmp_path: Path, stop: list[int]) -> None:
    stop[:] = [8]
    estimator = LadderClassifier((8,), checkpoint=tmp_path, checkpoint_every=0, **SETTINGS).fit(ROWS, PARTLY)
    assert estimator.interrupted_
    for changes, rows, named in (({"noise": 0.4}, ROWS, "noise"), ({}, ROWS + 0.1, "data")):
        with pytest.raises(ValueError, match=f"{named}.* now"):
            copy_of(estimator, **changes).fit(rows, PARTLY)
