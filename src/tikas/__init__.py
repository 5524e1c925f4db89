"""Ladder networks: classifiers and regressors that learn from a few labeled rows and many unlabeled ones.

Public names are imported on first use, so that ``import tikas`` loads neither torch nor scikit-learn.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from tikas import distributed
    from tikas.estimators.classifier import LadderClassifier
    from tikas.estimators.regressor import LadderRegressor
    from tikas.io import load
    from tikas.model.gamma import gamma
    from tikas.model.ladder import Costs, Ladder
    from tikas.model.specs import Conv, Dense, GlobalMeanPool, MaxPool, MeanPool

__all__ = [
    "Conv",
    "Costs",
    "Dense",
    "GlobalMeanPool",
    "Ladder",
    "LadderClassifier",
    "LadderRegressor",
    "MaxPool",
    "MeanPool",
    "__version__",
    "distributed",
    "gamma",
    "load",
]

_MODULES = {
    "Conv": "tikas.model.specs",
    "Costs": "tikas.model.ladder",
    "Dense": "tikas.model.specs",
    "GlobalMeanPool": "tikas.model.specs",
    "Ladder": "tikas.model.ladder",
    "LadderClassifier": "tikas.estimators.classifier",
    "LadderRegressor": "tikas.estimators.regressor",
    "MaxPool": "tikas.model.specs",
    "MeanPool": "tikas.model.specs",
    "gamma": "tikas.model.gamma",
    "load": "tikas.io",
}


def __getattr__(name: str) -> Any:
    if name == "distributed":
        return import_module("tikas.distributed")
    if name not in _MODULES:
        raise AttributeError(f"module 'tikas' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
