"""Estimators with scikit-learn's conventions: `LadderClassifier` and `LadderRegressor`."""

from tikas.estimators.classifier import LadderClassifier
from tikas.estimators.regressor import LadderRegressor

__all__ = ["LadderClassifier", "LadderRegressor"]
