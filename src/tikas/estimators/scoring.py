"""`labeled_scorer`: scikit-learn's scorers, on the labeled rows alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, overload

import numpy as np
from sklearn.base import is_regressor
from sklearn.metrics import check_scoring, get_scorer
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import _num_samples

from tikas.data.arrays import to_numpy
from tikas.data.labels import as_labels, is_missing, is_unlabeled, one_per_row, regression_values

Scorer = Callable[..., float]


@overload
def labeled_scorer(scoring: str | Scorer | None = None) -> Scorer: ...
@overload
def labeled_scorer(scoring: list[str] | tuple[str, ...] | Mapping[str, str | Scorer]) -> dict[str, Scorer]: ...
def labeled_scorer(
    scoring: str | Scorer | list[str] | tuple[str, ...] | Mapping[str, str | Scorer] | None = None,
) -> Scorer | dict[str, Scorer]:
    """Return a scorer that leaves unlabeled rows out, for `cross_val_score`, `GridSearchCV` and the like.

    It is needed where test rows may be unlabeled, as with ``cv=5``. `LabeledKFold` and `LabeledShuffleSplit` test on
    labeled rows alone, and every scorer works with them.

    Parameters
    ----------
    scoring : str, scorer, list of str, dict or None, default=None
        A metric by scikit-learn's name, such as ``"f1_macro"``, or a scorer as `make_scorer` returns it. Several names,
        or a dict, for several metrics. None: the estimator's `score`.

    Returns
    -------
    callable or dict of str to callable
        A scorer ``(estimator, X, y, **kwargs)``; several by name.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.model_selection import cross_val_score
    >>> from tikas import LadderClassifier, labeled_scorer
    >>> X, y = load_iris(return_X_y=True)
    >>> y[::2] = -1
    >>> classifier = LadderClassifier((8,), preprocess="standardize", epochs=2, random_state=0)
    >>> cross_val_score(classifier, X, y, cv=3, scoring=labeled_scorer("f1_macro")).shape
    (3,)
    """
    if isinstance(scoring, Mapping):
        return {name: _LabeledScorer(one) for name, one in scoring.items()}
    if scoring is None or isinstance(scoring, str) or callable(scoring):
        return _LabeledScorer(scoring)
    return {name: _LabeledScorer(name) for name in scoring}


class _LabeledScorer:
    """Scores the labeled rows with a scorer of scikit-learn, to which metadata is routed."""

    def __init__(self, scoring: str | Scorer | None) -> None:
        self.scorer = get_scorer(scoring) if isinstance(scoring, str) else scoring

    def __call__(self, estimator: Any, X: Any, y: Any, **kwargs: Any) -> float:
        targets = one_per_row(to_numpy(y), _num_samples(X))
        values = is_regressor(estimator)
        rows = np.flatnonzero(~(is_missing(targets) if values else is_unlabeled(targets)))
        if not len(rows):
            raise ValueError(
                f"None of the {len(targets)} rows to score is labeled. Test on labeled rows: cv=tikas.LabeledKFold()."
            )
        known = regression_values(targets[rows]) if values else as_labels(targets[rows])
        chosen = {
            name: _safe_indexing(each, rows) if hasattr(each, "__len__") and len(each) == len(targets) else each
            for name, each in kwargs.items()
        }
        scorer = check_scoring(estimator) if self.scorer is None else self.scorer
        return float(scorer(estimator, _safe_indexing(X, rows), known, **chosen))

    def __repr__(self) -> str:
        return f"labeled_scorer({self.scorer!r})"

    def get_metadata_routing(self) -> Any:
        """Return the requests of the scorer inside, so that `set_score_request` on it works."""
        from sklearn.utils.metadata_routing import get_routing_for_object

        return get_routing_for_object(self.scorer)
