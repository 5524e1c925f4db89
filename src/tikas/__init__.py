"""Ladder networks: classifiers and regressors that learn from a few labelled rows and many unlabelled ones.

The three doors: `LadderClassifier` and `LadderRegressor` for scikit-learn's habits, `Ladder` and its rungs for
PyTorch's, and ``tikas`` on the command line. Importing this package is quick: torch and scikit-learn load when used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from tikas.estimators import LadderClassifier, LadderRegressor, load
    from tikas.model.costs import Costs
    from tikas.model.gamma import gamma
    from tikas.model.ladder import Ladder
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
    "gamma",
    "load",
]

_HOMES = {
    "Conv": "tikas.model.specs",
    "Costs": "tikas.model.costs",
    "Dense": "tikas.model.specs",
    "GlobalMeanPool": "tikas.model.specs",
    "Ladder": "tikas.model.ladder",
    "LadderClassifier": "tikas.estimators",
    "LadderRegressor": "tikas.estimators",
    "MaxPool": "tikas.model.specs",
    "MeanPool": "tikas.model.specs",
    "gamma": "tikas.model.gamma",
    "load": "tikas.estimators",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tikas' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
