"""The regressor among the estimators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils.validation import _check_sample_weight

from tikas.data.labels import as_values, one_for_each_row, scale_of_values
from tikas.data.preprocess import check_scale
from tikas.estimators.base import LadderEstimator
from tikas.estimators.inputs import Array
from tikas.fitted import Fitted
from tikas.training.devices import without_autocast, without_default_device
from tikas.training.suitable import COSTS_OF_VALUES


@dataclass(eq=False, repr=False, kw_only=True)
class LadderRegressor(RegressorMixin, LadderEstimator):  # type: ignore[misc]
    """A regressor that learns from a few labelled rows and many unlabelled ones.

    Targets are standardised for training and put back for prediction.

    Parameters
    ----------
    network, preprocess, activation, noise, costs, denoiser, epochs, annealed, learning_rate, batch_size, \
    labeled_batch_size, calibration, precision, n_members, warm_start, random_state, device, verbose
        As for `LadderClassifier`, but that costs are (1, 0.1) by default, 0.1 for every rung, and a network is no
        module.

    Attributes
    ----------
    transduction_ : ndarray of shape (n_samples,)
        For every row of `fit` its target, or where it had none the value predicted for it.
    target_mean_, target_deviation_ : float
        What the targets were standardised by.
    history_, ladder_, ladders_, recipe_, seeds_, input_shape_, preparation_, input_range_, n_features_in_, \
    feature_names_in_, n_iter_
        As for `LadderClassifier`.

    Examples
    --------
    >>> import numpy as np
    >>> from tikas import LadderRegressor
    >>> X = np.random.default_rng(0).normal(size=(300, 4))
    >>> y = X @ [1.0, -2.0, 0.5, 0.0]
    >>> y[50:] = np.nan  # no target
    >>> regressor = LadderRegressor(network=(32,), epochs=30, random_state=0).fit(X, y)
    >>> regressor.predict(X[:3]).shape
    (3,)
    """

    task = "regression"

    costs: float | Sequence[float] = COSTS_OF_VALUES

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Train on all rows, and on the targets of those that have one.

        Parameters
        ----------
        X, sample_weight : array-like
            As for `LadderClassifier.fit`.
        y : array-like of shape (n_samples,)
            Values; NaN (or None) where there is no target. Here -1 is a value like any other.

        Returns
        -------
        LadderRegressor
            Itself, fitted.

        Raises
        ------
        ValueError, TrainingDivergedError, KeyboardInterrupt
            As `LadderClassifier.fit` does.

        Examples
        --------
        >>> X, y = [[0.0], [0.5], [1.0]] * 10, [0.0, None, 2.0] * 10
        >>> regressor = LadderRegressor((8,), epochs=40, batch_size=30, random_state=0).fit(X, y)
        >>> bool(0.5 < regressor.transduction_[1] < 1.5)
        True
        """
        with without_default_device(), without_autocast(), self._all_or_nothing():
            rows = self._check_training_rows(X)
            values = as_values(one_for_each_row(y, len(rows)))
            given = ~np.isnan(values)
            if not given.any():
                raise ValueError(
                    f"None of the {len(rows)} rows has a target (NaN marks those without). Give at least one."
                )
            places, weights = self._counted(rows, values, sample_weight)
            counted, learned = values[places], given[places]
            if not learned.any():
                raise ValueError("Every row with a target has weight zero; give at least one a positive weight.")
            taken = self._prepare(rows[places])
            check_scale(self._columns(taken), getattr(self, "feature_names_in_", None))
            if not (self.warm_start and hasattr(self, "target_mean_")):  # ladders that go on keep their scale
                self.target_mean_, self.target_deviation_ = scale_of_values(counted[learned])
            standard = np.nan_to_num((counted - self.target_mean_) / self.target_deviation_).astype(np.float32)
            self._train(taken, standard[:, None], learned, 1, weights)
            self.transduction_ = np.where(given, values, self._values(self._answers_to(rows, "outputs")))
        return self

    def _values(self, outputs: Array) -> Array:
        return outputs[:, 0] * self.target_deviation_ + self.target_mean_

    def predict(self, X: ArrayLike) -> Array:
        """The value of each row, averaged over the members.

        Examples
        --------
        >>> X, y = [[0.0], [0.5], [1.0]] * 10, [0.0, None, 2.0] * 10
        >>> regressor = LadderRegressor((8,), epochs=40, batch_size=30, random_state=0).fit(X, y)
        >>> regressor.predict([[0.1], [0.9]]).shape
        (2,)
        """
        return self._values(self._answers(X, "outputs"))

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """The coefficient of determination R² on the rows that have a target; those without one are left out.

        Examples
        --------
        >>> X, y = [[0.0], [0.5], [1.0]] * 10, [0.0, None, 2.0] * 10
        >>> regressor = LadderRegressor((8,), epochs=40, batch_size=30, random_state=0).fit(X, y)
        >>> regressor.score(X, y) > 0.5
        True
        """
        predicted = self.predict(X)
        values = as_values(one_for_each_row(y, len(predicted)))
        given = ~np.isnan(values)
        if not given.any():
            raise ValueError(f"None of the {len(values)} rows has a target, so there is nothing to score.")
        weights = _check_sample_weight(sample_weight, predicted)[given]
        return float(r2_score(values[given], predicted[given], sample_weight=weights))

    def _meaning(self) -> dict[str, Any]:
        return {"target_scale": (self.target_mean_, self.target_deviation_)}

    def _take_meaning(self, fitted: Fitted) -> None:
        assert fitted.target_scale is not None
        self.target_mean_, self.target_deviation_ = fitted.target_scale
