"""The scikit-learn door: `LadderClassifier` and `LadderRegressor`."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import KW_ONLY, dataclass, fields
from math import prod
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import (
    BaseEstimator,
    ClassifierMixin,
    ClassNamePrefixFeaturesOutMixin,
    RegressorMixin,
    TransformerMixin,
)
from sklearn.metrics import r2_score
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from tikas.data.labels import (
    NO_LABEL,
    as_array,
    as_values,
    encode_labels,
    is_unlabeled,
    label_weights,
    one_for_each_row,
)
from tikas.data.preprocess import check_scale, warn_of_few_rows
from tikas.data.splits import Split
from tikas.data.streams import Examples
from tikas.model.ladder import Ladder
from tikas.saving import write_model
from tikas.training.fit import History, Trained, fit
from tikas.training.progress import progress_bar
from tikas.training.recipe import DIGITS, Recipe, suitable_costs, suitable_epochs

Array = NDArray[Any]

REMEDIES = {
    "features as input": "Give the columns that it was fitted with, in their order.",
    "contains infinity": "Leave such rows out, or clip their values.",
}
"""What to do, where scikit-learn's own message says only what is wrong."""


@dataclass(eq=False, repr=False)
class LadderEstimator(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """What classifier and regressor share: parameters into a recipe, rows into a fleet, members into one answer.

    A dataclass, so that the constructor that scikit-learn reads the parameters from is written by Python.
    """

    task: ClassVar[Literal["classification", "regression"]]

    network: Sequence[int] = DIGITS.network
    _: KW_ONLY
    activation: str = "relu"
    noise: float | Sequence[float] = DIGITS.noise[0]
    costs: float | Sequence[float] | None = None
    denoiser: str = "gaussian"
    epochs: int | None = None
    annealed: float = DIGITS.annealed
    learning_rate: float = DIGITS.learning_rate
    batch_size: int = DIGITS.batch_size
    labeled_batch_size: int = DIGITS.labeled_batch_size
    calibration: str = "all"
    n_members: int = 1
    warm_start: bool = False
    random_state: Any = None
    device: str | None = None
    verbose: bool = False

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Whatever ends a fit before its end, the estimator stays what it was."""
        before = self.__dict__.copy()
        try:
            yield
        except BaseException:
            self.__dict__ = before
            raise

    def _check_training_rows(self, X: ArrayLike) -> Array:
        rows = self._as_rows(X, reset=True)
        if len(rows) < 2:
            raise ValueError(
                "Got n_samples = 1: a ladder normalises every batch with its own statistics, so it needs at least two "
                "rows, and some hundred unlabelled ones to be of use."
            )
        return rows

    def _check_rows(self, X: ArrayLike) -> Array:
        check_is_fitted(self)
        return self._as_rows(X, reset=False)

    def _as_rows(self, X: ArrayLike, *, reset: bool) -> Array:
        try:
            with np.errstate(over="ignore"):  # what is too large for float32 becomes infinite, and that is reported
                rows = validate_data(self, X, dtype=np.float32, order="C", reset=reset)
        except ValueError as error:
            remedies = [remedy for sign, remedy in REMEDIES.items() if sign in str(error)]
            if not remedies:
                raise
            raise ValueError(f"{error} {remedies[0]}") from None
        return np.require(rows, requirements="W")  # torch shares no memory that it may not write to

    def _recipe(self, rows: Array) -> Recipe:
        """The recipe that the parameters describe; what they leave open follows from the rows."""
        parameters = self.get_params(deep=False)
        chosen = {field.name: parameters[field.name] for field in fields(Recipe) if field.name in parameters}
        if self.costs is None:
            chosen["costs"] = suitable_costs(rows)
        if self.epochs is None:
            chosen["epochs"] = suitable_epochs(len(rows), Recipe(batch_size=self.batch_size).batch_size)
        return Recipe(**{**chosen, "data": "array", "labels": "all", "task": self.task})

    def _train(self, rows: Array, targets: Array, labeled: Array, outputs: int, weights: Array | None) -> None:
        """Train the members on checked rows and keep what came out."""
        recipe, seeds = self._recipe(rows), self._seeds()
        warn_of_few_rows(len(rows), recipe.batch_size, stacklevel=3)
        start = self._ladders_to_go_on_from(rows.shape[1], outputs) if self.warm_start else None
        if weights is not None:
            weights = (weights / weights[labeled].mean()).astype(np.float32)
            labeled = labeled & (weights > 0)  # a batch of nothing but zero weights would have no cost
        split = Split(np.flatnonzero(labeled), np.arange(len(rows)), np.empty(0, np.int64))
        examples = Examples(
            torch.from_numpy(rows),
            torch.from_numpy(targets),
            outputs,
            None if weights is None else torch.from_numpy(weights),
        )
        with progress_bar(shown=self.verbose) as on_epoch:
            trained = fit(
                examples, [split] * len(seeds), recipe, seeds, start=start, device=self.device, on_epoch=on_epoch
            )
        if trained.interrupted:
            epochs = len(trained.histories[0])
            warnings.warn(
                f"Training was interrupted after {epochs} of {recipe.epochs} epochs; the model is kept as it was then. "
                "Fit again for a whole run, or with warm_start=True to go on.",
                UserWarning,
                stacklevel=3,
            )
        self._adopt(trained, recipe, going_on=start is not None)

    def _adopt(self, trained: Trained, recipe: Recipe, *, going_on: bool = False) -> None:
        earlier, epochs = (self.history_, self.n_iter_) if going_on else ([], 0)
        self.recipe_ = recipe
        self.ladders_: list[Ladder] = trained.ladders
        self.ladder_ = trained.ladders[0]
        self.history_: History = earlier + [
            {"member": member, **line, "epoch": epochs + line["epoch"]}
            for member, history in enumerate(trained.histories)
            for line in history
        ]
        self.n_iter_: int = epochs + len(trained.histories[0])

    @classmethod
    def from_trained(cls, trained: Trained, recipe: Recipe) -> Self:
        """An estimator around ladders that were trained elsewhere; the caller says what their outputs stand for."""
        known = cls().get_params(deep=False)
        estimator = cls(**{f.name: getattr(recipe, f.name) for f in fields(Recipe) if f.name in known})
        estimator.set_params(n_members=len(trained.ladders))
        estimator._adopt(trained, recipe)
        estimator.n_features_in_ = prod(trained.ladders[0].shapes[0])
        return estimator

    def _seeds(self) -> list[int]:
        if isinstance(self.n_members, bool) or not isinstance(self.n_members, int | np.integer) or self.n_members < 1:
            raise ValueError(f"n_members={self.n_members!r}: expected a whole number of at least 1.")
        draw = check_random_state(self.random_state)
        if isinstance(self.random_state, int | np.integer):
            return [int(self.random_state) + member for member in range(self.n_members)]
        return [int(seed) for seed in draw.randint(2**31 - 1, size=self.n_members)]

    def _ladders_to_go_on_from(self, inputs: int, outputs: int) -> list[Ladder] | None:
        ladders: list[Ladder] | None = getattr(self, "ladders_", None)
        if ladders is None:
            return None
        ends = (prod(ladders[0].shapes[0]), prod(ladders[0].shapes[-1]))
        if ends != (inputs, outputs) or len(ladders) != self.n_members:
            raise ValueError(
                f"warm_start=True: the fitted model takes {ends[0]} columns and gives {ends[1]} outputs with "
                f"{len(ladders)} members; now there are {inputs}, {outputs} and {self.n_members}. "
                "Fit on data of the same shape, or set warm_start=False."
            )
        return ladders

    @torch.no_grad()
    def _outputs(self, rows: Array, *, latent: bool = False, probabilities: bool = False) -> Array:
        """The mean over the members of their top latents, of their class probabilities or of their values.

        In double precision: the last digits of a float32 product vary with the number of rows in it, and a row's
        answer is not to depend on its company.
        """
        total = torch.zeros((), dtype=torch.float64)
        for ladder in self.ladders_:
            precise = deepcopy(ladder).double()
            chunks = torch.from_numpy(rows).split(4096)
            outputs = torch.cat([precise.encode(chunk.double())[0 if latent else 1] for chunk in chunks])
            total = total + (outputs.softmax(-1) if probabilities else outputs)
        return np.asarray((total / len(self.ladders_)).numpy())

    def transform(self, X: ArrayLike) -> Array:
        """The clean latent of the top rung, ``(n, outputs)``: rows of one kind lie close together in it.

        Examples
        --------
        >>> X, y = [[0.0], [0.1], [0.9], [1.0]] * 10, ["low", None, None, "high"] * 10
        >>> classifier = LadderClassifier((8,), costs=1.0, epochs=100, batch_size=20, random_state=0).fit(X, y)
        >>> classifier.transform([[0.05]]).shape
        (1, 2)
        """
        return self._outputs(self._check_rows(X), latent=True)

    @property
    def _n_features_out(self) -> int:
        return int(self.ladders_[0].shapes[-1][0])

    def save(self, path: str | Path) -> Path:
        """Write the fitted model into one safetensors file; `tikas.load` reads it back.

        Raises
        ------
        OSError
            Where the file cannot be written; an older one at that path stays whole.
        """
        check_is_fitted(self)
        return write_model(path, self)


@dataclass(eq=False, repr=False, kw_only=True)
class LadderClassifier(ClassifierMixin, LadderEstimator):  # type: ignore[misc]
    """A classifier that learns from a few labelled rows and many unlabelled ones.

    Parameters
    ----------
    network : tuple of int, default=(256, 128)
        Units of the hidden rungs, from the bottom up.
    activation : {"relu", "leaky_relu", "tanh", "gelu", "linear"}, default="relu"
        Of the hidden rungs.
    noise : float or tuple of float, default=0.2
        Deviation of the noise on the input and on each rung; the last one given holds for the rungs above it.
    costs : float, tuple of float or None, default=None
        Weights of the denoising costs, the input's first; the last one given holds for the rungs above it. A single
        number is the top's alone (the Γ-model); 0 leaves the supervised network. None lets them follow from the scale
        of the rows: 1000, 10 and 0.1 for pixels in [0, 1], 10, 1 and 0.1 for standardised columns.
    denoiser : {"gaussian", "mlp", "no-product", "linear", "additive"}, default="gaussian"
        The denoising function.
    epochs : int or None, default=None
        Passes over the rows. None means 75, or more where that would be fewer than 900 updates, or fewer (but ten)
        where it would be more than 15,000.
    annealed : float, default=1/3
        Share of the updates, at the end, over which the learning rate goes linearly to zero.
    learning_rate : float, default=0.005
        Of Adam.
    batch_size : int, default=100
        Rows in an update for the denoising costs.
    labeled_batch_size : int, default=50
        Labelled rows in an update.
    calibration : {"all", "labeled"}, default="all"
        Which rows the statistics for prediction come from.
    classes : array-like, optional
        The classes, where you want each to be labelled at least once. By default those found in y.
    class_weight : dict, "balanced" or None, default=None
        How much each class's labels count.
    n_members : int, default=1
        Ladders of different seeds, trained together; their probabilities are averaged.
    warm_start : bool, default=False
        Whether `fit` goes on from the last fit's ladders, with the history and the count of epochs going on too.
    random_state : int, RandomState or None, default=None
        Decides on first weights, order and noise. With an int, members have the seeds that follow it.
    device : str, optional
        Where to train; by default on a GPU if there is one.
    verbose : bool, default=False
        Whether a progress bar is shown, on a terminal.

    Attributes
    ----------
    classes_ : ndarray
        The classes, in the order of `predict_proba`.
    transduction_ : ndarray of shape (n_samples,)
        For every row of `fit` its label, or where it had none the class predicted for it.
    history_ : list of dict
        A line an epoch: ``member``, ``epoch``, ``learning_rate``, ``total``, ``supervised``, ``denoising``,
        ``seconds``.
    ladder_, ladders_ : Ladder, list of Ladder
        The first member, and all of them.
    recipe_ : Recipe
        What they were trained by.
    n_features_in_, feature_names_in_, n_iter_
        As everywhere in scikit-learn; epochs are what is counted.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from tikas import LadderClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> y[5:50] = y[55:100] = y[105:150] = -1  # five labels a class
    >>> X = (X - X.mean(0)) / X.std(0)
    >>> classifier = LadderClassifier(network=(32,), epochs=20, random_state=0).fit(X, y)
    >>> classifier.predict(X[:2]).tolist()
    [0, 0]
    """

    task = "classification"

    classes: ArrayLike | None = None
    class_weight: dict[Any, float] | str | None = None

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Train on all rows, and on the labels of those that have one.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Labelled and unlabelled rows together, of about unit scale.
        y : array-like of shape (n_samples,)
            Classes; -1 where there is no label, or None, NaN or ``pd.NA``.
        sample_weight : array-like of shape (n_samples,), optional
            How much each labelled row counts in the supervised cost; one of weight zero counts as unlabelled.
        """
        with self._all_or_nothing():
            rows = self._check_training_rows(X)
            labels = one_for_each_row(y, len(rows))
            codes, classes = encode_labels(labels, None if self.classes is None else as_array(self.classes))
            before = getattr(self, "classes_", classes)
            if self.warm_start and not np.array_equal(before, classes):
                raise ValueError(
                    f"warm_start=True: the fitted model knows the classes {before.tolist()}, and y holds "
                    f"{classes.tolist()}. Fit on labels of the same classes, or set warm_start=False."
                )
            weights = label_weights(codes, classes, sample_weight, self.class_weight)
            check_scale(rows, getattr(self, "feature_names_in_", None))
            self._train(rows, codes, codes != NO_LABEL, len(classes), weights)
            self.classes_ = classes
            predicted = self._outputs(rows, probabilities=True).argmax(1)
            self.transduction_ = classes[np.where(codes == NO_LABEL, predicted, codes)]
        return self

    def predict_proba(self, X: ArrayLike) -> Array:
        """The probability of each class, ``(n, classes)``, averaged over the members.

        Examples
        --------
        >>> X, y = [[0.0], [0.1], [0.9], [1.0]] * 10, ["low", None, None, "high"] * 10
        >>> classifier = LadderClassifier((8,), costs=1.0, epochs=100, batch_size=20, random_state=0).fit(X, y)
        >>> classifier.predict_proba([[0.05]]).shape
        (1, 2)
        """
        return self._outputs(self._check_rows(X), probabilities=True)

    def predict(self, X: ArrayLike) -> Array:
        """The most probable class of each row.

        Examples
        --------
        >>> X, y = [[0.0], [0.1], [0.9], [1.0]] * 10, ["low", None, None, "high"] * 10
        >>> classifier = LadderClassifier((8,), costs=1.0, epochs=100, batch_size=20, random_state=0).fit(X, y)
        >>> classifier.predict([[0.05], [0.95]]).tolist()
        ['low', 'high']
        """
        probabilities = self.predict_proba(X)
        return np.asarray(self.classes_[probabilities.argmax(1)])

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """The accuracy on the rows that have a label; those without one are left out.

        Examples
        --------
        >>> X, y = [[0.0], [0.1], [0.9], [1.0]] * 10, ["low", None, None, "high"] * 10
        >>> classifier = LadderClassifier((8,), costs=1.0, epochs=100, batch_size=20, random_state=0).fit(X, y)
        >>> classifier.score([[0.05], [0.95], [0.5]], ["low", "high", None])
        1.0
        """
        predicted = self.predict(X)
        labels = one_for_each_row(y, len(predicted))
        labeled = ~is_unlabeled(labels)
        if not labeled.any():
            raise ValueError(f"None of the {len(labels)} rows is labelled, so there is nothing to score.")
        weights = _check_sample_weight(sample_weight, predicted)[labeled]
        return float(np.average(predicted[labeled] == labels[labeled], weights=weights))


@dataclass(eq=False, repr=False, kw_only=True)
class LadderRegressor(RegressorMixin, LadderEstimator):  # type: ignore[misc]
    """A regressor that learns from a few labelled rows and many unlabelled ones.

    Targets are standardised for training and put back for prediction.

    Parameters
    ----------
    network, activation, noise, costs, denoiser, epochs, annealed, learning_rate, batch_size, labeled_batch_size, \
    calibration, n_members, warm_start, random_state, device, verbose
        As for `LadderClassifier`, but that costs are (1, 0.1, 0.1) by default.

    Attributes
    ----------
    transduction_ : ndarray of shape (n_samples,)
        For every row of `fit` its target, or where it had none the value predicted for it.
    target_mean_, target_deviation_ : float
        What the targets were standardised by.
    history_, ladder_, ladders_, recipe_, n_features_in_, feature_names_in_, n_iter_
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

    costs: float | Sequence[float] = (1.0, 0.1, 0.1)

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Train on all rows, and on the targets of those that have one.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Labelled and unlabelled rows together, of about unit scale.
        y : array-like of shape (n_samples,)
            Values; NaN (or None) where there is no target. Here -1 is a value like any other.
        sample_weight : array-like of shape (n_samples,), optional
            How much each labelled row counts in the supervised cost; one of weight zero counts as unlabelled.
        """
        with self._all_or_nothing():
            rows = self._check_training_rows(X)
            values = as_values(one_for_each_row(y, len(rows)))
            given = ~np.isnan(values)
            if not given.any():
                raise ValueError(
                    f"None of the {len(rows)} rows has a target (NaN marks those without). Give at least one."
                )
            weights = None
            if sample_weight is not None:
                weights = _check_sample_weight(sample_weight, rows, dtype=np.float64, ensure_non_negative=True)
                if not weights[given].any():
                    raise ValueError("Every row with a target has weight zero; give at least one a positive weight.")
            check_scale(rows, getattr(self, "feature_names_in_", None))
            if not (self.warm_start and hasattr(self, "target_mean_")):  # ladders that go on keep their scale
                learned = values[given if weights is None else given & (weights > 0)]
                self.target_mean_ = float(learned.mean())
                self.target_deviation_ = float(learned.std()) if np.ptp(learned) > 0 else 1.0
            standard = np.nan_to_num((values - self.target_mean_) / self.target_deviation_).astype(np.float32)
            self._train(rows, standard[:, None], given, 1, weights)
            self.transduction_ = np.where(given, values, self._values(rows))
        return self

    def _values(self, rows: Array) -> Array:
        return self._outputs(rows)[:, 0] * self.target_deviation_ + self.target_mean_

    def predict(self, X: ArrayLike) -> Array:
        """The value of each row, averaged over the members."""
        return self._values(self._check_rows(X))

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """The coefficient of determination R² on the rows that have a target; those without one are left out."""
        predicted = self.predict(X)
        values = as_values(one_for_each_row(y, len(predicted)))
        given = ~np.isnan(values)
        if not given.any():
            raise ValueError(f"None of the {len(values)} rows has a target, so there is nothing to score.")
        weights = _check_sample_weight(sample_weight, predicted)[given]
        return float(r2_score(values[given], predicted[given], sample_weight=weights))
