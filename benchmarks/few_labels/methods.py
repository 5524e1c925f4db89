"""The methods of the benchmark. Settings of the rivals are chosen by cross-validation over the labels, as users do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, KFold, StratifiedKFold
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.semi_supervised import LabelSpreading, SelfTrainingClassifier
from sklearn.svm import SVC, SVR

from tikas import LadderClassifier, LadderRegressor
from tikas.training.recipe import SMALL, default_epochs

Grid = Mapping[str, Sequence[Any]]
MAX_FOLDS = 5


@dataclass(frozen=True)
class Fitted:
    """Predictions for the test rows, and the error in percent that cross-validation over the labels promised."""

    predicted: NDArray[Any]
    cv_error: float | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Draw:
    """One draw of a data set: training rows, of which `y` is known where `labeled`, and test rows.

    `train` and `test` are data frames as they come; `encoded` is the same for methods that need numbers: imputed,
    standardized, categories one-hot, fitted on all training rows.
    """

    train: pd.DataFrame
    test: pd.DataFrame
    y: NDArray[Any]
    labeled: NDArray[np.int64]
    seed: int
    task: str
    encoded: tuple[NDArray[np.float32], NDArray[np.float32]]

    @property
    def targets(self) -> NDArray[Any]:
        """The targets for a semi-supervised estimator: -1, or NaN for a regression, where unlabeled."""
        missing = np.full(len(self.y), -1) if self.task == "classification" else np.full(len(self.y), np.nan)
        missing[self.labeled] = self.y[self.labeled]
        return missing


def encode(train: pd.DataFrame, test: pd.DataFrame) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return training and test rows as numbers: gaps imputed, columns standardized, categories one-hot."""
    numbers = make_pipeline(SimpleImputer(strategy="median", add_indicator=True), StandardScaler())
    categories = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    encoder = make_column_transformer(
        (numbers, make_column_selector(dtype_include="number")),
        (categories, make_column_selector(dtype_exclude="number")),
    )
    return encoder.fit_transform(train).astype(np.float32), encoder.transform(test).astype(np.float32)


Method = Callable[[Draw], Fitted]


def _folds(draw: Draw) -> StratifiedKFold | KFold | None:
    """Return folds over the labeled rows; None if a class has a single label, which no fold can spare."""
    if draw.task == "regression":
        return KFold(MAX_FOLDS, shuffle=True, random_state=draw.seed)
    fewest = np.bincount(draw.y[draw.labeled]).min()
    return StratifiedKFold(min(MAX_FOLDS, fewest), shuffle=True, random_state=draw.seed) if fewest > 1 else None


def _search(estimator: BaseEstimator, grid: Grid, draw: Draw) -> tuple[BaseEstimator, float | None, dict[str, Any]]:
    """Fit an estimator to the labeled rows with the settings that cross-validation over them prefers."""
    rows, y, folds = draw.encoded[0][draw.labeled], draw.y[draw.labeled], _folds(draw)
    if folds is None:
        return estimator.fit(rows, y), None, {}
    scoring = "accuracy" if draw.task == "classification" else "neg_root_mean_squared_error"
    search = GridSearchCV(estimator, grid, cv=folds, scoring=scoring).fit(rows, y)
    score = search.best_score_
    error = 100 * (1 - score) if draw.task == "classification" else 100 * -score / y.std()
    return search.best_estimator_, float(error), search.best_params_


def supervised(classifier: tuple[Any, Grid], regressor: tuple[Any, Grid]) -> Method:
    """Return a method that learns from the labeled rows alone."""

    def run(draw: Draw) -> Fitted:
        estimator, grid = classifier if draw.task == "classification" else regressor
        estimator = clone(estimator)
        if "random_state" in estimator.get_params():
            estimator.set_params(random_state=draw.seed)
        best, error, chosen = _search(estimator, grid, draw)
        return Fitted(best.predict(draw.encoded[1]), error, {"chosen": chosen})

    return run


def label_spreading(draw: Draw) -> Fitted:
    """Fit LabelSpreading, with the kernel chosen by cross-validation over the labels."""
    rows, targets, folds = draw.encoded[0], draw.targets, _folds(draw)
    candidates = [{"kernel": "knn", "n_neighbors": count} for count in (5, 10, 20)]
    candidates += [{"kernel": "rbf", "gamma": gamma / rows.shape[1]} for gamma in (0.3, 1, 3)]
    errors = []
    for settings in candidates if folds else candidates[:1]:
        wrong = 0
        for _, held_out in folds.split(draw.labeled, draw.y[draw.labeled]) if folds else ():
            part = targets.copy()
            part[draw.labeled[held_out]] = -1
            spread = LabelSpreading(**settings).fit(rows, part)
            wrong += (spread.transduction_[draw.labeled[held_out]] != draw.y[draw.labeled[held_out]]).sum()
        errors.append(100 * wrong / len(draw.labeled))
    best = int(np.argmin(errors))
    fitted = LabelSpreading(**candidates[best]).fit(rows, targets)
    return Fitted(fitted.predict(draw.encoded[1]), errors[best] if folds else None, {"chosen": candidates[best]})


def self_training(estimator: BaseEstimator, grid: Grid) -> Method:
    """Return a method that trains a classifier again with its own surest predictions."""

    def run(draw: Draw) -> Fitted:
        best, error, chosen = _search(clone(estimator), grid, draw)
        trained = SelfTrainingClassifier(clone(best)).fit(draw.encoded[0], draw.targets)
        return Fitted(trained.predict(draw.encoded[1]), error, {"chosen": chosen})

    return run


def ladder(epochs_share: float = 1.0, **settings: Any) -> Method:
    """Return a ladder with these settings, and with this share of the default epochs; it gets the encoded rows."""

    def run(draw: Draw) -> Fitted:
        make = LadderClassifier if draw.task == "classification" else LadderRegressor
        default = default_epochs(draw.encoded[0], SMALL.batch_size, is_module=False)
        model = make(**settings, epochs=max(1, round(epochs_share * default)), random_state=draw.seed)
        model.fit(draw.encoded[0], draw.targets)
        return Fitted(model.predict(draw.encoded[1]), details={"epochs": model.recipe_.epochs})

    return run


_C = {"C": [0.01, 0.1, 1, 10, 100]}
_SVC = {"C": [0.1, 1, 10, 100], "gamma": ["scale", 0.001, 0.01, 0.1]}

METHODS: dict[str, Method] = {
    "ladder": ladder(),
    "network": ladder(costs=0.0),
    "ladder-5": ladder(n_members=5),
    "network-5": ladder(costs=0.0, n_members=5),
    "ladder-third": ladder(1 / 3),
    "ladder-tenth": ladder(1 / 10),
    "ladder-5-third": ladder(1 / 3, n_members=5),
    "ladder-5-tenth": ladder(1 / 10, n_members=5),
    "ladder-5-low": ladder(1 / 3, n_members=5, costs=(1.0, 0.1, 0.1)),
    "logistic": supervised((LogisticRegression(max_iter=2000), _C), (Ridge(), {"alpha": [0.1, 1, 10, 100]})),
    "svc": supervised((SVC(), _SVC), (SVR(), _SVC)),
    "k-nn": supervised(
        (KNeighborsClassifier(), {"n_neighbors": [1, 3, 5]}), (KNeighborsRegressor(), {"n_neighbors": [1, 3, 5]})
    ),
    "forest": supervised(
        (RandomForestClassifier(), {"max_features": ["sqrt", 0.5]}),
        (RandomForestRegressor(), {"max_features": [0.3, 1.0]}),
    ),
    "boosting": supervised(
        (HistGradientBoostingClassifier(max_iter=50), {"min_samples_leaf": [2, 5], "learning_rate": [0.1]}),
        (HistGradientBoostingRegressor(max_iter=50), {"min_samples_leaf": [2, 5], "learning_rate": [0.1]}),
    ),
    "label-spreading": label_spreading,
    "self-svc": self_training(SVC(probability=True), _SVC),
    "self-logistic": self_training(LogisticRegression(max_iter=2000), _C),
}
"""All methods by name. The ladders train with the defaults of the estimators."""

NOT_RUN = {"TabPFN": "its weights are downloaded when it is used"}
SIMPLE = ("logistic", "svc", "k-nn", "forest", "boosting")
"""Supervised rivals from which cross-validation over the labels picks one, as a careful user would."""
CLASSIFICATION_ONLY = ("label-spreading", "self-svc", "self-logistic")
