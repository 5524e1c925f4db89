"""LadderRegressor: targets in any form, their scale, and what is predicted from them."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.datasets import load_diabetes, load_iris
from sklearn.model_selection import GridSearchCV
from sklearn.preprocessing import scale
from torch import nn

from tikas import LadderRegressor
from tikas.data.splits import Split

IRIS, SPECIES = scale(load_iris().data), load_iris().target
NAMES = load_iris().target_names
LABELED = np.arange(150) % 3 == 0
DIABETES, PROGRESSION = scale(load_diabetes().data), load_diabetes().target


def regressor(**settings):
    quick = {"network": (8,), "epochs": 3, "learning_rate": 0.05, "batch_size": 50, "random_state": 0}
    return LadderRegressor(**{**quick, **settings})


def test_learns_from_a_quarter_of_the_targets():
    y = np.where(np.arange(442) % 4 == 0, PROGRESSION, np.nan)
    model = regressor(network=(16,), epochs=15, learning_rate=0.02).fit(DIABETES, y)
    # Linear regression on all targets has 0.52; predicting the mean, 0.
    assert model.score(DIABETES, PROGRESSION) > 0.35


def test_grid_search_ignores_missing_targets():
    y = np.where(np.arange(442) % 2 == 0, PROGRESSION, np.nan)
    search = GridSearchCV(regressor(), {"noise": [0.1, 0.3]}, cv=2).fit(DIABETES, y)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


def test_transduction_keeps_targets_and_predicts_others():
    y = np.where(LABELED, IRIS[:, 0] * 3 - 1, np.nan)
    model = regressor().fit(IRIS, y)
    assert_array_equal(model.transduction_[LABELED], y[LABELED])
    assert_array_equal(model.transduction_[~LABELED], model.predict(IRIS)[~LABELED])


def test_minus_one_is_a_value():
    y = np.where(IRIS[:, 0] > 0, 1, -1)
    model = regressor(epochs=10, costs=0).fit(IRIS, y)
    assert model.target_mean_ == pytest.approx(y.mean())
    assert model.predict(IRIS[y == -1]).mean() < 0 < model.predict(IRIS[y == 1]).mean()


@pytest.mark.parametrize("missing", [None, np.nan, pd.NA])
def test_missing_targets_may_be_none_nan_or_na(missing):
    y = pd.Series([value if known else missing for value, known in zip(IRIS[:, 0], LABELED, strict=True)], dtype=object)
    expected = regressor().fit(IRIS, np.where(LABELED, IRIS[:, 0], np.nan)).predict(IRIS)
    assert_array_equal(regressor().fit(IRIS, y).predict(IRIS), expected)


def test_equal_targets_are_predicted():
    assert_allclose(regressor(costs=0, epochs=30).fit(IRIS, np.full(150, 0.1)).predict(IRIS), 0.1, atol=0.2)


def test_costs_of_none_are_the_default():
    models = [regressor(**costs).fit(DIABETES, PROGRESSION) for costs in ({}, {"costs": None})]
    assert models[0].recipe_ == models[1].recipe_
    assert models[0].recipe_.costs == (1.0, 0.1)


def test_scale_of_targets_is_kept_by_warm_start():
    model = regressor(warm_start=True).fit(DIABETES, PROGRESSION)
    before = model.target_mean_, model.target_deviation_
    model.fit(DIABETES[:200], PROGRESSION[:200])
    assert (model.target_mean_, model.target_deviation_) == before


def test_scale_of_targets_is_that_of_the_splits_labeled_rows():
    splits = [Split(labeled, np.arange(400), np.arange(400, 442)) for labeled in (np.arange(20), np.arange(10, 30))]
    model = regressor(n_members=2).fit(DIABETES, PROGRESSION, splits=splits)
    assert model.target_mean_ == PROGRESSION[:30].mean()
    held_out = np.arange(400, 442)
    for member, ladder in enumerate(model.ladders_):
        model.ladders_ = [ladder]
        rmse = np.sqrt(np.mean((model.predict(DIABETES[held_out]) - PROGRESSION[held_out]) ** 2))
        last = [line for line in model.history_ if line["member"] == member][-1]
        assert last["validation_error"] == pytest.approx(rmse / model.target_deviation_, rel=1e-3)


def test_score_ignores_missing_targets_and_takes_weights():
    model = regressor().fit(DIABETES, PROGRESSION)
    some = np.where(np.arange(442) < 100, PROGRESSION, np.nan)
    assert model.score(DIABETES, some) == pytest.approx(model.score(DIABETES[:100], PROGRESSION[:100]))
    with pytest.raises(ValueError, match="0 sample"):
        model.score(DIABETES, np.full(442, np.nan))
    counts = np.arange(442) % 3
    repeated = model.score(DIABETES.repeat(counts, axis=0), PROGRESSION.repeat(counts))
    assert model.score(DIABETES, PROGRESSION, sample_weight=counts) == pytest.approx(repeated)


def test_heavier_targets_attract_predictions():
    y = np.where(np.arange(150) % 2, 1.0, -1.0)
    plain, weighted = (
        regressor(epochs=10).fit(IRIS, y, sample_weight=weight).predict(IRIS).mean()
        for weight in (None, np.where(y > 0, 20.0, 1.0))
    )
    assert weighted > plain + 0.2  # measured 0.35


def test_one_target_suffices_unless_it_calibrates():
    y = np.where(np.arange(150) == 60, 1.0, np.nan)
    model = regressor().fit(IRIS, y)
    assert np.abs(model.predict(IRIS)).max() < 100
    with pytest.raises(ValueError, match=r"calibration='labeled'.* has 1"):
        model.set_params(calibration="labeled").fit(IRIS, y)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.full(150, np.nan), "None of the 150 rows has a target.*NaN"),
        (np.where(LABELED, np.inf, 0), "infinity"),
        (NAMES[SPECIES], "'setosa'.*LadderClassifier"),
    ],
)
def test_invalid_targets_raise_value_error(y, message):
    with pytest.raises(ValueError, match=message):
        regressor().fit(IRIS, y)


def test_targets_of_weight_zero_raise_value_error():
    with pytest.raises(ValueError, match=r"None of the 150 rows has a target.*positive weight"):
        regressor().fit(IRIS, np.where(LABELED, IRIS[:, 0], np.nan), sample_weight=~LABELED)


def test_module_raises_value_error():
    with pytest.raises(ValueError, match=r"network=Linear\(…\).*regression"):
        LadderRegressor(nn.Linear(64, 1)).fit(DIABETES, PROGRESSION)
