"""Ladder networks: classifiers and regressors that learn from a few labelled rows and many unlabelled ones.

The three doors: `LadderClassifier` and `LadderRegressor` for scikit-learn's habits, `Ladder` and its rungs for
PyTorch's, and ``tikas`` on the command line. Importing this package is quick: torch and scikit-learn load when used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from tikas.estimators import LadderClassifier, LadderRegressor
    from tikas.model.ladder import Costs, Ladder
    from tikas.model.rungs import Dense
    from tikas.saving import load

__all__ = ["Costs", "Dense", "Ladder", "LadderClassifier", "LadderRegressor", "__version__", "load"]

_HOMES = {
    "Costs": "tikas.model.ladder",
    "Dense": "tikas.model.rungs",
    "Ladder": "tikas.model.ladder",
    "LadderClassifier": "tikas.estimators",
    "LadderRegressor": "tikas.estimators",
    "load": "tikas.saving",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tikas' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
