"""Ladder networks: classifiers and regressors that learn from a few labeled rows and many unlabeled ones.

Public names are imported on first use, so that ``import tikas`` loads neither torch nor scikit-learn.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from tikas import distributed, plot
    from tikas.data.splits import LabeledKFold, LabeledShuffleSplit
    from tikas.estimators.classifier import LadderClassifier
    from tikas.estimators.regressor import LadderRegressor
    from tikas.estimators.scoring import labeled_scorer
    from tikas.estimators.supervised import as_supervised
    from tikas.io import load
    from tikas.model.gamma import gamma
    from tikas.model.ladder import Costs, Ladder
    from tikas.model.specs import Conv, Dense, GlobalMeanPool, MaxPool, MeanPool
    from tikas.training.callbacks import TensorBoard

__all__ = [
    "Conv",
    "Costs",
    "Dense",
    "GlobalMeanPool",
    "LabeledKFold",
    "LabeledShuffleSplit",
    "Ladder",
    "LadderClassifier",
    "LadderRegressor",
    "MaxPool",
    "MeanPool",
    "TensorBoard",
    "__version__",
    "as_supervised",
    "distributed",
    "gamma",
    "labeled_scorer",
    "load",
    "plot",
]

_MODULES = {
    "Conv": "tikas.model.specs",
    "Costs": "tikas.model.ladder",
    "Dense": "tikas.model.specs",
    "GlobalMeanPool": "tikas.model.specs",
    "LabeledKFold": "tikas.data.splits",
    "LabeledShuffleSplit": "tikas.data.splits",
    "Ladder": "tikas.model.ladder",
    "LadderClassifier": "tikas.estimators.classifier",
    "LadderRegressor": "tikas.estimators.regressor",
    "MaxPool": "tikas.model.specs",
    "MeanPool": "tikas.model.specs",
    "TensorBoard": "tikas.training.callbacks",
    "as_supervised": "tikas.estimators.supervised",
    "gamma": "tikas.model.gamma",
    "labeled_scorer": "tikas.estimators.scoring",
    "load": "tikas.io",
}
_SUBMODULES = ("distributed", "plot")


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return import_module(f"tikas.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module 'tikas' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
