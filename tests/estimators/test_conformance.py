"""Both estimators pass scikit-learn's own checks, except those that contradict unlabeled rows or random batches."""

import os

import pytest
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.utils.estimator_checks import parametrize_with_checks

from tikas import LadderClassifier, LadderRegressor, as_supervised

# Small and quick, but accurate enough for the checks. The costs are small because the checks' data include columns with
# a deviation of 20: denoising these would be all that is learned in so few updates.
QUICK = {
    "network": (8,),
    "costs": (0.01, 0.001),
    "epochs": 6,
    "learning_rate": 0.2,
    "batch_size": 16,
    "labeled_batch_size": 16,
}
EXPECTED_FAILURES = {
    **{
        f"check_sample_weight_equivalence_on_{kind}_data": "batches are drawn at random, so a repeated row changes them"
        for kind in ("dense", "sparse")
    },
    "check_array_api_same_namespace": "rows to predict may be of another library than those of fit",
}
EXPECTED_FAILURES_OF_CLASSIFIER = EXPECTED_FAILURES | {
    "check_classifiers_classes": "it trains on the classes -1 and 1, but -1 marks unlabeled rows",
}

# Estimators with default parameters pass too, but take minutes: each of some hundred fits has 900 updates.
ESTIMATORS = (
    [LadderClassifier(), LadderRegressor()]
    if os.environ.get("TIKAS_CHECK_DEFAULTS")
    else [LadderClassifier(**QUICK), LadderRegressor(**QUICK, n_members=2)]
)


@pytest.fixture(autouse=True)
def array_api(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the checks of tensors and other arrays run, which are skipped without this variable."""
    monkeypatch.setenv("SCIPY_ARRAY_API", "1")


@pytest.mark.filterwarnings("ignore:.*fewer than a batch", "ignore::tikas.data.transforms.ScaleWarning")
@parametrize_with_checks(
    ESTIMATORS,
    expected_failed_checks=lambda estimator: (
        EXPECTED_FAILURES_OF_CLASSIFIER if isinstance(estimator, LadderClassifier) else EXPECTED_FAILURES
    ),
)
def test_estimator_passes_check_of_scikit_learn(estimator, check):
    check(estimator)


@parametrize_with_checks([as_supervised(LogisticRegression(), None), as_supervised(Ridge(), None)])
def test_supervised_estimator_passes_check_of_scikit_learn(estimator, check):
    """With estimators that pass all checks in no time: what is checked is what `as_supervised` adds."""
    check(estimator)
