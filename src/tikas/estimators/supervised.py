"""`as_supervised`: an estimator that holds the unlabeled rows and is fitted on labeled rows alone."""

from __future__ import annotations

import copy
import warnings
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse, vstack
from sklearn import get_config
from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone, is_regressor
from sklearn.utils import get_tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import _num_samples, check_is_fitted

from tikas.data.arrays import is_array_api, like, to_numpy
from tikas.data.labels import NO_LABEL, as_labels, is_missing, is_unlabeled, one_per_row, regression_values
from tikas.data.transforms import ScaleWarning

MIN_ROWS_TO_COMPARE = 5
"""Fewer labeled rows tell little about the scale of their columns."""
FAR_MEANS, FAR_DEVIATIONS = 2.0, 4.0
"""Columns differ if their means are more deviations apart than this, or one deviation is so many times the other."""


def as_supervised(estimator: Any, X_unlabeled: ArrayLike) -> SupervisedEstimator:
    """Return an estimator that holds unlabeled rows and is fitted on labeled rows alone.

    scikit-learn's meta-estimators take -1 for a class of its own. With this they need no -1:
    ``CalibratedClassifierCV(as_supervised(classifier, X_unlabeled)).fit(X_labeled, y_labeled)``.

    Parameters
    ----------
    estimator : LadderClassifier, LadderRegressor, or a Pipeline that ends in one
        It is cloned by `fit`, and trained on the rows of `fit` and the unlabeled ones together. All steps of a pipeline
        get all these rows, so it is the whole pipeline that must be wrapped, and not its last step.
    X_unlabeled : array-like of shape (n_samples, n_features) or (n_samples, [channels,] height, width)
        Rows without labels, like those that `fit` is given. They are not copied, also not by `clone`.

    Returns
    -------
    SupervisedEstimator
        Its parameters are ``estimator``, those of the estimator as ``estimator__noise`` and so on, and ``X_unlabeled``.

    Examples
    --------
    >>> from sklearn.calibration import CalibratedClassifierCV
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from tikas import LadderClassifier, as_supervised
    >>> X, y = load_iris(return_X_y=True)
    >>> pipeline = make_pipeline(StandardScaler(), LadderClassifier((8,), epochs=5, random_state=0))
    >>> calibrated = CalibratedClassifierCV(as_supervised(pipeline, X[::2]), cv=3).fit(X[1::2], y[1::2])
    >>> calibrated.classes_.tolist()
    [0, 1, 2]
    """
    return SupervisedEstimator(estimator, X_unlabeled)


def _estimator_has(name: str) -> Any:
    """Return a check for `available_if`: whether the estimator has this method."""
    return lambda self: hasattr(getattr(self, "estimator_", self.estimator), name)


class SupervisedEstimator(MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
    """An estimator with unlabeled rows of its own, fitted on labeled rows alone; made by `as_supervised`.

    Parameters
    ----------
    estimator : LadderClassifier, LadderRegressor, or a Pipeline that ends in one
        It is cloned by `fit`.
    X_unlabeled : array-like or None, default=None
        Rows without labels, like those that `fit` is given. None: there are none.

    Attributes
    ----------
    estimator_ : object
        The fitted clone of `estimator`.
    classes_ : ndarray of shape (n_classes,)
        The classes, of a classifier.
    n_features_in_ : int
        Number of values of a row.
    feature_names_in_ : ndarray of str
        Column names, if X was a data frame with string names.

    Examples
    --------
    >>> from sklearn.ensemble import BaggingClassifier
    >>> from tikas import LadderClassifier
    >>> classifier = LadderClassifier((8,), costs=0.1, epochs=100, batch_size=20, random_state=0)
    >>> supervised = classifier.as_supervised([[0.2], [0.3], [0.8]] * 10)
    >>> bagging = BaggingClassifier(supervised, n_estimators=2, random_state=0)
    >>> bagging.fit([[0.0], [0.1], [0.9], [1.0]] * 5, [0, 0, 1, 1] * 5).predict([[0.05], [0.95]]).tolist()
    [0, 1]
    """

    _is_clone = False
    _sign_dtype: np.dtype[Any] | None = None
    """Of the classes -1 and 1, which the estimator is given as 0 and 1."""

    def __init__(self, estimator: Any, X_unlabeled: Any = None) -> None:
        self.estimator = estimator
        self.X_unlabeled = X_unlabeled

    def __sklearn_clone__(self) -> Self:
        without_rows = copy.copy(self)
        without_rows.X_unlabeled = None  # clone would copy them
        cloned: Self = BaseEstimator.__sklearn_clone__(without_rows)
        cloned.X_unlabeled = self.X_unlabeled
        cloned._is_clone = True
        return cloned

    def __sklearn_tags__(self) -> Any:
        tags = copy.deepcopy(get_tags(self.estimator))
        tags.transformer_tags = None
        tags.array_api_support = False  # labels become NumPy arrays, which not every estimator takes beside tensors
        tags.target_tags.multi_output = False
        if tags.classifier_tags is not None:
            tags.classifier_tags.multi_label = False
        return tags

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Train on labeled rows, and on the unlabeled rows that this estimator holds.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features) or (n_samples, [channels,] height, width)
            Labeled rows.
        y : array-like of shape (n_samples,)
            A label for each row. The classes -1 and 1 alone are classes, as some meta-estimators encode two of them;
            besides others, -1 is an error.
        sample_weight : array-like of shape (n_samples,) or None, default=None
            Relative weight of each label.

        Returns
        -------
        SupervisedEstimator
            The fitted estimator.

        Raises
        ------
        ValueError
            If rows are unlabeled, or X and X_unlabeled have different columns; and as the estimator raises.

        Warns
        -----
        ScaleWarning
            If the columns of X and X_unlabeled have different means or deviations, as after a step of a Pipeline that
            X_unlabeled did not go through.
        """
        targets = one_per_row(None if y is None else to_numpy(y), _num_samples(X))
        estimator = clone(self.estimator)
        last, prefix = estimator, ""
        while hasattr(last, "steps"):
            name, last = last.steps[-1]
            prefix += f"{name}__"
        if hasattr(last, "_is_clone"):
            last._is_clone = self._is_clone  # Ctrl-C keeps what a fit learned unless a search has cloned it
        no_label: float | bool | None = np.nan
        if not is_regressor(self.estimator):
            targets, no_label = self._check_labels(targets)
        else:
            if is_missing(targets).any():
                raise ValueError(_unlabeled_message(is_missing(targets)))
            targets = regression_values(targets) if targets.dtype.kind == "O" else targets

        rows, weights = X, sample_weight
        if self.X_unlabeled is not None:
            rows = _stack(X, self.X_unlabeled)
            added = _num_samples(rows) - len(targets)
            if targets.dtype.kind not in "if":
                targets, no_label = targets.astype(object), None
            targets = np.concatenate([targets, np.full(added, no_label)])
            if weights is not None:
                weights = np.concatenate([np.asarray(to_numpy(weights)), np.ones(added)])
        if get_config().get("enable_metadata_routing"):
            prefix = ""  # the pipeline routes it to the steps that request it
        options = {} if weights is None else {f"{prefix}sample_weight": weights}
        self.estimator_ = estimator.fit(rows, targets, **options)
        if not is_regressor(self.estimator):
            self.classes_ = self.estimator_.classes_
            if self._sign_dtype is not None:
                self.classes_ = np.array([-1, 1], self._sign_dtype)
        return self

    def _check_labels(self, labels: NDArray[Any]) -> tuple[NDArray[Any], float | None]:
        """Return the labels as the estimator takes them, and what marks an unlabeled row beside them."""
        self._sign_dtype = None
        unlabeled = is_unlabeled(labels)
        if not unlabeled.any():
            return as_labels(labels) if labels.dtype.kind == "O" else labels, NO_LABEL
        if labels.dtype.kind in "if" and set(np.unique(labels).tolist()) == {-1, 1}:
            self._sign_dtype = labels.dtype
            return (labels > 0).astype(np.int64), NO_LABEL
        raise ValueError(_unlabeled_message(unlabeled))

    @property
    def n_features_in_(self) -> int:
        """Number of values of a row."""
        return int(self.estimator_.n_features_in_)

    @property
    def feature_names_in_(self) -> Any:
        """Column names, if X was a data frame with string names."""
        return self.estimator_.feature_names_in_

    def predict(self, X: ArrayLike) -> Any:
        """Return the estimator's predictions.

        Parameters
        ----------
        X : array-like
            Rows.

        Returns
        -------
        ndarray of shape (n_samples,)
            Classes or values.
        """
        check_is_fitted(self)
        predicted = self.estimator_.predict(X)
        if self._sign_dtype is None:
            return predicted
        return like(self.classes_[to_numpy(predicted)], X)

    @available_if(_estimator_has("predict_proba"))  # type: ignore[untyped-decorator]
    def predict_proba(self, X: ArrayLike) -> Any:
        """Return the probability of each class.

        Parameters
        ----------
        X : array-like
            Rows.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            Probabilities, with classes ordered as in ``classes_``.
        """
        check_is_fitted(self)
        return self.estimator_.predict_proba(X)

    @available_if(_estimator_has("predict_log_proba"))  # type: ignore[untyped-decorator]
    def predict_log_proba(self, X: ArrayLike) -> Any:
        """Return the logarithm of the probability of each class.

        Parameters
        ----------
        X : array-like
            Rows.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            Logarithms of probabilities, with classes ordered as in ``classes_``.
        """
        check_is_fitted(self)
        return self.estimator_.predict_log_proba(X)

    @available_if(_estimator_has("decision_function"))  # type: ignore[untyped-decorator]
    def decision_function(self, X: ArrayLike) -> Any:
        """Return the score of each class; of two classes, that of the second.

        Parameters
        ----------
        X : array-like
            Rows.

        Returns
        -------
        ndarray of shape (n_samples, n_classes) or (n_samples,)
            Scores.
        """
        check_is_fitted(self)
        return self.estimator_.decision_function(X)

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Return the accuracy of a classifier, or R² of a regressor.

        Parameters
        ----------
        X : array-like
            Labeled rows.
        y : array-like of shape (n_samples,)
            Their labels.
        sample_weight : array-like of shape (n_samples,) or None, default=None
            Weights of the rows.

        Returns
        -------
        float
            The score.
        """
        from sklearn.metrics import accuracy_score, r2_score

        metric = r2_score if is_regressor(self.estimator) else accuracy_score
        return float(metric(to_numpy(y), to_numpy(self.predict(X)), sample_weight=to_numpy(sample_weight)))


def _unlabeled_message(unlabeled: NDArray[np.bool_]) -> str:
    return (
        f"{unlabeled.sum()} of {len(unlabeled)} rows have no label (-1, None or NaN), but an estimator made by "
        "as_supervised is fitted on labeled rows alone. Leave these rows out of X and y, and give them as X_unlabeled."
    )


def _stack(X: Any, X_unlabeled: Any) -> Any:
    """Return the labeled rows with the unlabeled ones below, as data frame, sparse matrix, tensor or array."""
    if hasattr(X, "columns") and hasattr(X_unlabeled, "columns"):
        missing = [name for name in X.columns if name not in X_unlabeled.columns]
        if missing:
            raise ValueError(f"X_unlabeled has no columns {missing}, which X has. Give both the same columns.")
        below = X_unlabeled[list(X.columns)]
        if hasattr(X, "vstack"):  # polars
            return X.vstack(below)
        import pandas as pd

        return pd.concat([X, below], ignore_index=True)
    above, below = _as_rows(X), _as_rows(X_unlabeled)
    if above.shape[1:] != below.shape[1:]:
        raise ValueError(
            f"X_unlabeled has rows of shape {below.shape[1:]}, but those of fit have shape {above.shape[1:]}. "
            "Give rows of the same columns. If a step of a Pipeline, or a meta-estimator, changes the columns before, "
            "wrap the whole pipeline: tikas.as_supervised(pipeline, X_unlabeled)."
        )
    if issparse(above) or issparse(below):
        return vstack([above, below], format="csr")
    _warn_other_scale(above, below)
    rows = np.concatenate([above, below])
    if hasattr(X, "columns"):  # names are kept, and those of X_unlabeled were lost on the way
        import pandas as pd

        return pd.DataFrame(rows, columns=X.columns)
    return like(rows, X) if is_array_api(X) or type(X).__module__ == "torch" else rows


def _as_rows(X: Any) -> Any:
    return X if issparse(X) else np.asarray(to_numpy(X))


def _warn_other_scale(above: NDArray[Any], below: NDArray[Any]) -> None:
    """Warn if most columns of labeled and unlabeled rows have other means or deviations."""
    if above.ndim != 2 or above.dtype.kind not in "biuf" or below.dtype.kind not in "biuf":
        return
    if min(len(above), len(below)) < MIN_ROWS_TO_COMPARE:
        return
    means, deviations = (
        np.stack([function(rows, axis=0) for rows in (above, below)]) for function in (np.mean, np.std)
    )
    varying = deviations.min(0) > 0
    if not varying.any():
        return
    larger, smaller = deviations.max(0)[varying], deviations.min(0)[varying]
    apart = np.abs(means[0] - means[1])[varying] > FAR_MEANS * larger
    if (apart | (larger > FAR_DEVIATIONS * smaller)).mean() > 0.5:
        warnings.warn(
            "The unlabeled rows have other means or deviations than the labeled ones in most columns: "
            f"{means[1][varying][0]:.3g} ± {deviations[1][varying][0]:.3g} and {means[0][varying][0]:.3g} ± "
            f"{deviations[0][varying][0]:.3g} in the first that varies. If X was scaled by a step of a Pipeline, wrap "
            "the whole pipeline: tikas.as_supervised(pipeline, X_unlabeled).",
            ScaleWarning,
            stacklevel=4,
        )
