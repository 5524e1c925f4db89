"""Likely mistakes inside scikit-learn: each is told, with what was given and what to do."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_diabetes, load_digits, load_iris
from sklearn.ensemble import BaggingClassifier
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler, scale

from tikas import (
    LabeledKFold,
    LabeledShuffleSplit,
    LadderClassifier,
    LadderRegressor,
    TensorBoard,
    as_supervised,
    labeled_scorer,
)
from tikas.data.splits import split
from tikas.data.transforms import ScaleWarning
from tikas.training.recipe import UnusualSettingWarning

RAW, SPECIES = load_iris().data, load_iris().target
IRIS, NAMES = scale(RAW), load_iris().target_names
LABELED = np.arange(150) % 3 == 0
PARTIAL = np.where(LABELED, SPECIES, -1)
DIABETES, PROGRESSION = scale(load_diabetes().data), load_diabetes().target
PIXELS = load_digits().data / 16
FRAME = pd.DataFrame(IRIS, columns=["a", "b", "c", "d"])
QUICK: dict[str, Any] = {"network": (8,), "epochs": 2, "batch_size": 50, "random_state": 0}


def classifier(**settings: Any) -> LadderClassifier:
    return LadderClassifier(**{**QUICK, **settings})


def regressor(**settings: Any) -> LadderRegressor:
    return LadderRegressor(**{**QUICK, **settings})


X, Y, UNLABELED = IRIS[LABELED], SPECIES[LABELED], IRIS[~LABELED]
FEW = np.where(np.arange(150) % 50 < 3, SPECIES, -1)

ERRORS: dict[str, tuple[type[Exception], str, Callable[[], Any]]] = {
    # Labels
    "-1 is a class": (
        ValueError,
        r"one class only, 1\b.*y > 0",
        lambda: classifier().fit(IRIS, np.where(SPECIES > 0, 1, -1)),
    ),
    "-2 and -1 are classes": (ValueError, r"-2 and -1\b.*LabelEncoder", lambda: classifier().fit(IRIS, SPECIES - 2)),
    "-2 marks unlabeled rows too": (
        ValueError,
        r"-2 and -1\b.*np\.where\(y < 0, -1, y\)",
        lambda: classifier().fit(IRIS, np.where(np.arange(150) < 9, -2, PARTIAL)),
    ),
    "labels are measurements": (ValueError, "151.5.*LadderRegressor", lambda: classifier().fit(IRIS, SPECIES + 151.5)),
    "no row is labeled": (ValueError, "None of the 150 rows", lambda: classifier().fit(IRIS, np.full(150, -1))),
    "y is shorter than X": (ValueError, "X has 150 rows and y has 149", lambda: classifier().fit(IRIS, PARTIAL[:-1])),
    "y is forgotten": (ValueError, "y.*-1", lambda: classifier().fit(IRIS, None)),
    "text for a regressor": (ValueError, "'setosa'.*LadderClassifier", lambda: regressor().fit(IRIS, NAMES[SPECIES])),
    "weights of the labeled rows alone": (
        ValueError,
        r"sample_weight.shape == \(50,\), expected \(150,\)",
        lambda: classifier().fit(IRIS, PARTIAL, np.ones(50)),
    ),
    # Unlabeled rows apart
    "-1 in a supervised fit": (
        ValueError,
        "100 of 150 rows.*X_unlabeled",
        lambda: classifier().as_supervised(UNLABELED).fit(IRIS, PARTIAL),
    ),
    "None in a supervised fit": (
        ValueError,
        "100 of 150 rows.*X_unlabeled",
        lambda: classifier().as_supervised(UNLABELED).fit(IRIS, np.where(LABELED, NAMES[SPECIES], None)),
    ),
    "NaN in a supervised regression": (
        ValueError,
        "100 of 150 rows.*X_unlabeled",
        lambda: regressor().as_supervised(UNLABELED).fit(IRIS, np.where(LABELED, 1.0 * SPECIES, np.nan)),
    ),
    "-1 in a search of a supervised estimator": (
        ValueError,
        "rows have no label.*X_unlabeled",
        lambda: GridSearchCV(classifier().as_supervised(UNLABELED), {"estimator__noise": [0.1]}, cv=2).fit(
            IRIS, PARTIAL
        ),
    ),
    "unlabeled rows with other columns": (
        ValueError,
        r"\(3,\).*\(4,\).*as_supervised\(pipeline",
        lambda: classifier().as_supervised(UNLABELED[:, :3]).fit(X, Y),
    ),
    "unlabeled rows without a column of the frame": (
        ValueError,
        r"no columns \['d'\]",
        lambda: classifier().as_supervised(FRAME[["a", "b", "c"]]).fit(FRAME[LABELED], Y),
    ),
    "bagging of columns": (
        ValueError,
        r"\(4,\).*\(2,\).*meta-estimator",
        lambda: BaggingClassifier(classifier().as_supervised(UNLABELED), max_features=0.5).fit(X, Y),
    ),
    # Cross-validation
    "a splitter without y": (ValueError, "LabeledKFold.*give y", lambda: next(LabeledKFold().split(IRIS))),
    "more folds than labels of a class": (
        ValueError,
        "n_splits=5.* 3 labeled rows",
        lambda: cross_val_score(classifier(), IRIS, FEW, cv=LabeledKFold(5)),
    ),
    "a splitter without labels": (
        ValueError,
        "No row of y is labeled",
        lambda: next(LabeledShuffleSplit().split(IRIS, np.full(150, -1))),
    ),
    "a metric's name is misspelt": (ValueError, "'acuracy'", lambda: labeled_scorer("acuracy")),
    "test rows without a label": (
        ValueError,
        "None of the 100 rows.*LabeledKFold",
        lambda: labeled_scorer("accuracy")(classifier(), UNLABELED, PARTIAL[~LABELED]),
    ),
    "a parameter of a search is misspelt": (
        ValueError,
        "'noisy'.*LadderClassifier",
        lambda: GridSearchCV(classifier(), {"noisy": [0.1]}, cv=LabeledKFold(2)).fit(IRIS, PARTIAL),
    ),
    "a parameter without the step of its pipeline": (
        ValueError,
        "'noise'.*Pipeline",
        lambda: make_pipeline(StandardScaler(), classifier()).set_params(noise=0.1),
    ),
    "a parameter without estimator__": (
        ValueError,
        "'noise'.*SupervisedEstimator",
        lambda: classifier().as_supervised(UNLABELED).set_params(noise=0.1),
    ),
    # Settings
    "on_interrupt": (
        ValueError,
        "on_interrupt='stop'.*'keep' or 'raise'",
        lambda: classifier(on_interrupt="stop").fit(IRIS, PARTIAL),
    ),
    "callbacks is no list": (
        ValueError,
        r"callbacks=.*TensorBoard.*\[tikas.TensorBoard\(\)\]",
        lambda: classifier(callbacks=TensorBoard("runs")).fit(IRIS, PARTIAL),
    ),
    "a callback by name": (
        ValueError,
        r"callbacks=\['tensorboard'\]",
        lambda: classifier(callbacks=["tensorboard"]).fit(IRIS, PARTIAL),
    ),
    "early_stopping is a number of epochs": (
        ValueError,
        "early_stopping=5.*True or False",
        lambda: classifier(early_stopping=5).fit(IRIS, PARTIAL),
    ),
    "validation_fraction in percent": (
        ValueError,
        "validation_fraction == 10",
        lambda: classifier(early_stopping=True, validation_fraction=10).fit(IRIS, PARTIAL),
    ),
    "no labels left to hold out": (
        ValueError,
        "validation=9 is too many: 9 rows",
        lambda: classifier(early_stopping=True, validation_fraction=0.9).fit(IRIS, FEW),
    ),
    "early stopping with splits that hold out nothing": (
        ValueError,
        "early_stopping=True needs validation rows",
        lambda: classifier(early_stopping=True).fit(IRIS, SPECIES, splits=[split(SPECIES, 12)]),
    ),
    "n_iter_no_change": (
        ValueError,
        "n_iter_no_change=0.*at least 1",
        lambda: classifier(n_iter_no_change=0).fit(IRIS, PARTIAL),
    ),
    "tol": (ValueError, "tol=-1.*at least 0", lambda: classifier(tol=-1.0).fit(IRIS, PARTIAL)),
    "noise without a number": (ValueError, "noise='high'", lambda: classifier(noise="high").fit(IRIS, PARTIAL)),
    "network of negative size": (ValueError, "-8", lambda: classifier(network=(-8,)).fit(IRIS, PARTIAL)),
    # Prediction
    "not fitted": (NotFittedError, "LadderClassifier.*not fitted", lambda: classifier().predict(IRIS)),
    "supervised and not fitted": (
        NotFittedError,
        "SupervisedEstimator.*not fitted",
        lambda: classifier().as_supervised(UNLABELED).predict(IRIS),
    ),
    "other columns to predict": (
        ValueError,
        "X has 3 features, but LadderClassifier is expecting 4",
        lambda: classifier().fit(IRIS, PARTIAL).predict(IRIS[:, :3]),
    ),
    "renamed columns to predict": (
        ValueError,
        r"(?s)feature names.*\bz\b",
        lambda: classifier().fit(FRAME, PARTIAL).predict(FRAME.rename(columns={"a": "z"})),
    ),
    "score without labels": (
        ValueError,
        "None of the 150 rows",
        lambda: classifier().fit(IRIS, PARTIAL).score(IRIS, np.full(150, -1)),
    ),
}

WARNINGS: dict[str, tuple[type[Warning], str, Callable[[], Any]]] = {
    "-2 is a class": (UserWarning, "-2.*taken for a class", lambda: classifier().fit(IRIS, np.where(LABELED, -2, 2))),
    "-1 marks unlabeled rows of a regressor": (
        UserWarning,
        r"100 of 150 targets are -1.*np\.nan",
        lambda: regressor().fit(IRIS, np.where(LABELED, 2.0 * SPECIES, -1)),
    ),
    "every label is another class": (
        UserWarning,
        "LadderRegressor",
        lambda: classifier().fit(DIABETES, PROGRESSION // 1 + np.arange(442)),
    ),
    "learning_rate=1000": (
        UnusualSettingWarning,
        r"learning_rate=1000 .*0\.005",
        lambda: classifier(learning_rate=1000).fit(IRIS, PARTIAL),
    ),
    "noise=50": (UnusualSettingWarning, r"noise=50\.0 .*0\.2", lambda: classifier(noise=50).fit(IRIS, PARTIAL)),
    "noise of a layer": (
        UnusualSettingWarning,
        r"noise=\(0\.1, 50\.0\)",
        lambda: regressor(noise=(0.1, 50)).fit(DIABETES, PROGRESSION),
    ),
    "whitening of a table": (
        UnusualSettingWarning,
        "preprocess='whiten' is for images.*'standardize'",
        lambda: classifier(preprocess="whiten").fit(FRAME, PARTIAL),
    ),
    "unlabeled rows that skipped the scaler": (
        ScaleWarning,
        r"unlabeled rows.*as_supervised\(pipeline, X_unlabeled\)",
        lambda: make_pipeline(StandardScaler(), classifier().as_supervised(RAW[~LABELED])).fit(RAW[LABELED], Y),
    ),
    "pixels that skipped the scaling": (
        ScaleWarning,
        r"unlabeled rows.*as_supervised\(pipeline",
        lambda: classifier().as_supervised(255 * PIXELS[100:]).fit(PIXELS[:100], load_digits().target[:100]),
    ),
    "a batch larger than the rows": (
        UserWarning,
        "150 rows are fewer than a batch of 500",
        lambda: classifier(batch_size=500).fit(IRIS, PARTIAL),
    ),
}


@pytest.mark.parametrize("mistake", ERRORS)
@pytest.mark.filterwarnings("ignore:The least populated class", "ignore:Scoring failed", "ignore:.*fits failed")
def test_error_says_what_was_given_and_what_to_do(mistake: str) -> None:
    kind, message, make = ERRORS[mistake]
    with pytest.raises(kind, match=rf"(?s){message}"):
        make()


@pytest.mark.parametrize("mistake", WARNINGS)
@pytest.mark.filterwarnings("ignore::tikas.data.transforms.ScaleWarning")
def test_warning_says_what_was_given_and_what_to_do(mistake: str) -> None:
    kind, message, make = WARNINGS[mistake]
    with pytest.warns(kind, match=rf"(?s){message}"):
        make()


def test_what_is_no_mistake_gives_no_warning() -> None:
    classifier(learning_rate=1.0, noise=(2.0, 1.0)).fit(IRIS, PARTIAL)
    regressor().fit(IRIS, np.where(SPECIES > 0, 1.0, -1.0))
    pipeline = make_pipeline(StandardScaler(), classifier())
    as_supervised(pipeline, RAW[~LABELED]).fit(RAW[LABELED], Y)
    classifier().as_supervised(PIXELS[100:]).fit(PIXELS[:100], load_digits().target[:100])
    for few in (X[::10], X[:20]):  # of each class; and of one class more than of the others
        classifier(batch_size=20).as_supervised(UNLABELED).fit(few, np.resize([0, 1], len(few)))
