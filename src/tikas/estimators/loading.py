"""The way back from a file to an estimator."""

from __future__ import annotations

from pathlib import Path

from tikas.estimators.classifier import LadderClassifier
from tikas.estimators.regressor import LadderRegressor
from tikas.fitted import Fitted
from tikas.saving import read_model


def load(path: str | Path) -> LadderClassifier | LadderRegressor:
    """Bring back a model that was saved; nothing in the file is executed.

    Parameters
    ----------
    path
        A file written by `LadderClassifier.save`, `LadderRegressor.save` or ``tikas train``.

    Raises
    ------
    FileNotFoundError
        Where there is no such file.
    NotAModelError
        Where it is truncated, damaged, or no model of tikas. This is a ValueError.

    Examples
    --------
    >>> import tempfile
    >>> from tikas import LadderClassifier, load
    >>> X = [[0.0], [0.2], [0.8], [1.0]] * 25
    >>> classifier = LadderClassifier((8,), epochs=5, random_state=7).fit(X, ["low", None, None, "high"] * 25)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     again = load(classifier.save(folder + "/model.safetensors"))
    >>> bool((again.predict_proba(X) == classifier.predict_proba(X)).all()), again.seeds_
    (True, [7])
    """
    return estimator_of(read_model(path))


def estimator_of(fitted: Fitted) -> LadderClassifier | LadderRegressor:
    """The estimator around a fitted model: a classifier or a regressor, as its recipe says.

    Examples
    --------
    >>> X, y = [[0.0], [0.5], [1.0]] * 10, [0.0, None, 2.0] * 10
    >>> fitted = LadderRegressor((8,), epochs=3, batch_size=20).fit(X, y).as_fitted()
    >>> type(estimator_of(fitted)).__name__
    'LadderRegressor'
    """
    if fitted.recipe.task == "classification":
        return LadderClassifier.from_fitted(fitted)
    return LadderRegressor.from_fitted(fitted)
