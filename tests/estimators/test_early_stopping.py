"""Early stopping: which rows are held out, when training ends, and whose weights are kept."""

from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal
from sklearn.datasets import load_iris
from sklearn.model_selection import cross_val_score
from sklearn.preprocessing import scale
from torch import nn

import tikas
from tikas import LabeledKFold, LadderClassifier, LadderRegressor
from tikas.data.splits import Split, split
from tikas.training import checkpoint
from tikas.training.callbacks import Progress

IRIS, SPECIES = scale(load_iris().data), load_iris().target
LABELED = np.arange(150) % 2 == 0
PARTIAL = np.where(LABELED, SPECIES, -1)
VALUES = np.where(LABELED, IRIS[:, 0] * 3 + 10, np.nan)
SETTINGS: dict[str, Any] = {
    "network": (8,),
    "epochs": 60,
    "learning_rate": 0.02,
    "batch_size": 50,
    "early_stopping": True,
    "validation_fraction": 0.3,
    "n_iter_no_change": 4,
    "random_state": 0,
}


def errors_of(model: Any, member: int = 0) -> list[float]:
    return [line["validation_error"] for line in model.history_ if line["member"] == member]


def epochs_until_end(errors: list[float], patience: int, tol: float) -> int:
    """The rule of scikit-learn's MLPClassifier, written a second time."""
    smallest, waited = np.inf, 0
    for epoch, error in enumerate(errors, 1):
        waited = waited + 1 if error > smallest - tol else 0
        smallest = min(smallest, error)
        if waited >= patience:
            return epoch
    return len(errors) + 1


@pytest.mark.parametrize("tol", [1e-4, 0.05])
def test_training_ends_when_no_error_has_decreased(tol: float) -> None:
    model = LadderClassifier(**SETTINGS, tol=tol).fit(IRIS, PARTIAL)
    errors = errors_of(model)
    assert len(errors) == model.n_iter_ < 60
    assert epochs_until_end(errors, 4, 100 * tol) == model.n_iter_
    longer = LadderClassifier(**{**SETTINGS, "n_iter_no_change": 1000}).fit(IRIS, PARTIAL)
    assert longer.n_iter_ == 60
    assert errors_of(longer)[: len(errors)] == errors


def test_an_ensemble_ends_with_its_last_member_and_each_keeps_its_best_weights() -> None:
    model = LadderClassifier(**SETTINGS, n_members=3).fit(IRIS, PARTIAL)
    codes = np.where(LABELED, SPECIES, -1)
    ends = []
    for member, (ladder, seed) in enumerate(zip(model.ladders_, model.seeds_, strict=True)):
        held_out = split(codes, None, validation=ceil(0.3 * 75), seed=seed).validation
        predicted = ladder(torch.from_numpy(IRIS[held_out]).float()).argmax(1).numpy()
        errors = errors_of(model, member)
        assert 100 * np.mean(predicted != SPECIES[held_out]) == pytest.approx(min(errors))
        assert epochs_until_end(errors, 4, 0.01) == len(errors)
        ends.append(len(errors))
    assert model.n_iter_ == max(ends) > min(ends)


def test_a_regressor_stops_at_the_error_of_standardized_targets() -> None:
    model = LadderRegressor(**{**SETTINGS, "n_iter_no_change": 2, "tol": 0.3}).fit(IRIS, VALUES)
    assert epochs_until_end(errors_of(model), 2, 0.3) == model.n_iter_ < 60


def test_a_module_keeps_its_best_weights() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    model = LadderClassifier(**{**SETTINGS, "network": network, "epochs": 8}).fit(IRIS, PARTIAL)
    held_out = split(PARTIAL, None, validation=23, seed=0).validation
    assert 100 * (1 - model.score(IRIS[held_out], SPECIES[held_out])) == pytest.approx(min(errors_of(model)))


def test_given_splits_hold_out_their_own_rows() -> None:
    chosen = split(SPECIES, 12, validation=30)
    model = LadderClassifier(**SETTINGS).fit(IRIS, SPECIES, splits=[chosen])
    held_out = chosen.validation
    assert 100 * (1 - model.score(IRIS[held_out], SPECIES[held_out])) == pytest.approx(min(errors_of(model)))


@pytest.mark.parametrize("members", [1, 2])
def test_a_stopped_fit_continues_to_the_same_result(members: int, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(checkpoint, "MAX_SHARE_OF_TIME", np.inf)
    expected = LadderClassifier(**SETTINGS, n_members=members).fit(IRIS, PARTIAL)
    stop_at = expected.n_iter_ - 2  # after the best epoch

    def stop(progress: Progress) -> None:
        if progress.epoch == stop_at:
            raise KeyboardInterrupt

    resumed = LadderClassifier(**SETTINGS, n_members=members, checkpoint=tmp_path, checkpoint_every=0, callbacks=[stop])
    with pytest.warns(UserWarning, match="of 60 epochs"):
        resumed.fit(IRIS, PARTIAL)
    resumed.set_params(callbacks=None).fit(IRIS, PARTIAL)
    assert resumed.n_iter_ == expected.n_iter_
    assert_array_equal(resumed.predict_proba(IRIS), expected.predict_proba(IRIS))


def test_it_works_with_weights_in_a_search_and_is_saved(tmp_path: Path) -> None:
    model = LadderClassifier(**SETTINGS)
    scores = cross_val_score(model, IRIS, PARTIAL, cv=LabeledKFold(2), error_score="raise")
    assert np.isfinite(scores).all()
    model.fit(IRIS, PARTIAL, sample_weight=np.where(np.arange(150) < 10, 0, 1))
    loaded = tikas.load(model.save(tmp_path / "model"))
    assert (loaded.early_stopping, loaded.n_iter_no_change) == (True, 4)


def test_held_out_rows_are_not_learned() -> None:
    held_out = split(PARTIAL, None, validation=23, seed=0).validation
    rest = np.setdiff1d(np.arange(150), held_out)
    model = LadderClassifier(**{**SETTINGS, "n_iter_no_change": 1000, "epochs": 3}).fit(IRIS, PARTIAL)
    chosen = Split(np.flatnonzero(LABELED & ~np.isin(np.arange(150), held_out)), rest, held_out)
    same = LadderClassifier(**{**SETTINGS, "early_stopping": False, "epochs": 3})
    same.fit(IRIS, PARTIAL, splits=[chosen])
    assert len(chosen.labeled) == 52
    assert [line["validation_error"] for line in model.history_][-1] > 0
    np.testing.assert_allclose(
        [line["total"] for line in model.history_], [line["total"] for line in same.history_], rtol=0.2
    )
