"""The scikit-learn door: `LadderClassifier`, `LadderRegressor`, and `load`, which brings either back from its file."""

from tikas.estimators.classifier import LadderClassifier
from tikas.estimators.loading import load
from tikas.estimators.regressor import LadderRegressor

__all__ = ["LadderClassifier", "LadderRegressor", "load"]
