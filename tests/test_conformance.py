"""Both estimators keep scikit-learn's conventions, but for what contradicts unlabelled rows."""

import os

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from tikas import LadderClassifier, LadderRegressor

# Small and quick, and good enough for the accuracies that the checks ask for. The costs are small because columns with
# a deviation of 20 are among the checks' data, and denoising those would be all that is learned in so few updates.
QUICK = {
    "network": (8,),
    "costs": (0.01, 0.001),
    "epochs": 6,
    "learning_rate": 0.2,
    "batch_size": 16,
    "labeled_batch_size": 16,
}

MINUS_ONE_IS_NO_CLASS = {
    "check_classifiers_classes": (
        "its last labels are -1 and 1, and -1 marks rows without a label; its other labels are those of "
        "test_estimators.py"
    ),
}


# Default instances keep the conventions too, but the checks fit them some hundred times, at 900 updates a fit.
ESTIMATORS = (
    [LadderClassifier(), LadderRegressor()]
    if os.environ.get("TIKAS_CHECK_DEFAULTS")
    else [LadderClassifier(**QUICK), LadderRegressor(**QUICK, n_members=2)]
)


def expected_failures(estimator):
    return MINUS_ONE_IS_NO_CLASS if isinstance(estimator, LadderClassifier) else {}


@pytest.mark.filterwarnings("ignore:.*fewer than a batch", "ignore::tikas.data.preprocess.ScaleWarning")
@parametrize_with_checks(
    ESTIMATORS,
    expected_failed_checks=expected_failures,
    xfail_strict=True,
)
def test_a_convention_of_scikit_learn_is_kept(estimator, check):
    check(estimator)
