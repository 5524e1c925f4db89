"""The scikit-learn door: `LadderClassifier` and `LadderRegressor`."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import fields
from math import prod
from pathlib import Path
from typing import Any, Self

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
from sklearn.utils import check_random_state
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, column_or_1d, validate_data

from tikas.data.labels import NO_LABEL, encode_labels, is_unlabeled
from tikas.data.preprocess import check_scale
from tikas.data.splits import Split
from tikas.data.streams import Examples
from tikas.model.ladder import Ladder
from tikas.saving import write_model
from tikas.training.fit import History, Trained, fit
from tikas.training.recipe import DIGITS, Recipe
from tikas.views.progress import progress_bar

Array = NDArray[Any]


class LadderEstimator(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """What classifier and regressor share: parameters into a recipe, rows into a fleet, members into one answer."""

    task: str
    ladders_: list[Ladder]

    def _check_training_rows(self, X: ArrayLike) -> Array:
        rows: Array = validate_data(self, X, dtype=np.float32, order="C")
        if len(rows) < 2:
            raise ValueError(
                "Got n_samples = 1: a ladder normalises every batch with its own statistics, so it needs at least two "
                "rows, and some hundred unlabelled ones to be of use."
            )
        return rows

    def _check_targets(self, y: ArrayLike | None, rows: int) -> Array:
        if y is None:
            raise ValueError(
                f"{type(self).__name__} requires y to be passed, but the target y is None. Give a label for each row, "
                "or -1 (for a regressor NaN) where there is none."
            )
        targets = np.asarray(y)
        if targets.ndim != 1:
            targets = column_or_1d(targets, warn=True)
        if len(targets) != rows:
            raise ValueError(f"X has {rows} rows and y has {len(targets)}: inconsistent numbers of samples.")
        return targets

    def _recipe(self, rows: int) -> Recipe:
        """The recipe that the parameters describe, for this many rows."""
        parameters = self.get_params(deep=False)
        chosen = {field.name: parameters[field.name] for field in fields(Recipe) if field.name in parameters}
        for name in ("noise", "costs", "network"):
            value = chosen[name]
            chosen[name] = tuple(value) if isinstance(value, Sequence | np.ndarray) else (value,)
        recipe = Recipe(**{**chosen, "data": "array", "labels": "all", "task": self.task})
        if rows < recipe.batch_size:
            warnings.warn(
                f"{rows} rows are fewer than a batch of {recipe.batch_size}: every update sees all of them. "
                f"Set batch_size to {rows} or less to have it so without this warning, or add unlabelled rows.",
                UserWarning,
                stacklevel=3,
            )
        return recipe

    def _train(self, X: Array, targets: Array, labeled: Array, outputs: int, weights: Array | None) -> None:
        """Train the members on checked rows and keep what came out."""
        recipe = self._recipe(len(X))
        seeds = self._seeds()
        split = Split(np.flatnonzero(labeled), np.arange(len(X)), np.empty(0, np.int64))
        examples = Examples(
            torch.from_numpy(X),
            torch.from_numpy(targets),
            outputs,
            None if weights is None else torch.from_numpy(weights.astype(np.float32)),
        )
        start = self._ladders_to_go_on_from(X.shape[1], outputs) if self.warm_start else None
        with progress_bar(shown=self.verbose) as on_epoch:
            trained = fit(
                examples, [split] * len(seeds), recipe, seeds, start=start, device=self.device, on_epoch=on_epoch
            )
        if trained.interrupted:
            epochs = len(trained.histories[0])
            warnings.warn(
                f"Training was interrupted after {epochs} of {recipe.epochs} epochs; the model is kept as it was then.",
                UserWarning,
                stacklevel=3,
            )
        self._adopt(trained, recipe)

    def _adopt(self, trained: Trained, recipe: Recipe) -> None:
        self.recipe_ = recipe
        self.ladders_ = trained.ladders
        self.ladder_ = trained.ladders[0]
        self.history_: History = [
            {"member": member, **line} for member, history in enumerate(trained.histories) for line in history
        ]
        self.n_iter_ = len(trained.histories[0])

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
        if isinstance(self.random_state, int | np.integer):
            return [int(self.random_state) + member for member in range(self.n_members)]
        draw = check_random_state(self.random_state)
        return [int(seed) for seed in draw.randint(2**31 - 1, size=self.n_members)]

    def _ladders_to_go_on_from(self, inputs: int, outputs: int) -> list[Ladder] | None:
        ladders = getattr(self, "ladders_", None)
        if ladders is None:
            return None
        ends = (ladders[0].shapes[0], ladders[0].shapes[-1])
        if ends != ((inputs,), (outputs,)) or len(ladders) != self.n_members:
            raise ValueError(
                f"warm_start=True: the fitted model takes {ends[0][0]} columns and gives {ends[1][0]} outputs with "
                f"{len(ladders)} members; now there are {inputs}, {outputs} and {self.n_members}. "
                "Fit on data of the same shape, or set warm_start=False."
            )
        return list(ladders)

    def _check_rows(self, X: ArrayLike) -> torch.Tensor:
        check_is_fitted(self)
        return torch.from_numpy(validate_data(self, X, dtype=np.float32, reset=False))

    @torch.no_grad()
    def _outputs(self, X: ArrayLike, *, latent: bool = False, probabilities: bool = False) -> Array:
        """The mean over the members of their top latents, of their class probabilities or of their values."""
        rows = self._check_rows(X)
        total = torch.zeros((), dtype=torch.float64)
        for ladder in self.ladders_:
            parts = [ladder.encode(chunk)[0 if latent else 1].double() for chunk in rows.split(8192)]
            outputs = torch.cat(parts)
            total = total + (outputs.softmax(-1) if probabilities else outputs)
        return np.asarray((total / len(self.ladders_)).numpy())

    def transform(self, X: ArrayLike) -> Array:
        """The clean latent of the top rung, ``(n, outputs)``: rows of one kind lie close together in it."""
        return self._outputs(X, latent=True)

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


class LadderClassifier(ClassifierMixin, LadderEstimator):  # type: ignore[misc]
    """A classifier that learns from a few labelled rows and many unlabelled ones.

    Parameters
    ----------
    network : tuple of int, default=(256, 128, 64)
        Units of the hidden rungs, from the bottom up.
    activation : {"relu", "leaky_relu", "tanh", "gelu", "linear"}, default="relu"
        Of the hidden rungs.
    noise : float or tuple of float, default=0.3
        Deviation of the noise on the input and on each rung; the last one given holds for the rungs above it.
    costs : float or tuple of float, default=(1000, 10, 0.1)
        Weights of the denoising costs, the input's first; the last one given holds for the rungs above it. A single
        number is the top's alone (the Γ-model); 0 leaves the supervised network.
    denoiser : {"gaussian", "mlp", "no-product", "linear", "additive"}, default="gaussian"
        The denoising function.
    epochs : int, default=75
        Passes over the rows.
    annealed : float, default=1/3
        Share of the updates, at the end, over which the learning rate goes linearly to zero.
    learning_rate : float, default=0.004
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
        Whether `fit` goes on from the last fit's ladders.
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

    def __init__(
        self,
        network: Sequence[int] = DIGITS.network,
        *,
        activation: str = "relu",
        noise: float | Sequence[float] = 0.3,
        costs: float | Sequence[float] = DIGITS.costs,
        denoiser: str = "gaussian",
        epochs: int = DIGITS.epochs,
        annealed: float = DIGITS.annealed,
        learning_rate: float = DIGITS.learning_rate,
        batch_size: int = DIGITS.batch_size,
        labeled_batch_size: int = DIGITS.labeled_batch_size,
        calibration: str = "all",
        classes: ArrayLike | None = None,
        class_weight: dict[Any, float] | str | None = None,
        n_members: int = 1,
        warm_start: bool = False,
        random_state: Any = None,
        device: str | None = None,
        verbose: bool = False,
    ) -> None:
        self.network = network
        self.activation = activation
        self.noise = noise
        self.costs = costs
        self.denoiser = denoiser
        self.epochs = epochs
        self.annealed = annealed
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.labeled_batch_size = labeled_batch_size
        self.calibration = calibration
        self.classes = classes
        self.class_weight = class_weight
        self.n_members = n_members
        self.warm_start = warm_start
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Train on all rows, and on the labels of those that have one.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Labelled and unlabelled rows together, of about unit scale.
        y : array-like of shape (n_samples,)
            Classes; -1 where there is no label, or None, NaN or ``pd.NA``.
        sample_weight : array-like of shape (n_samples,), optional
            How much each labelled row counts in the supervised cost.
        """
        rows = self._check_training_rows(X)
        labels = self._check_targets(y, len(rows))
        codes, classes = encode_labels(labels, None if self.classes is None else np.asarray(self.classes))
        weights = self._weights(rows, codes, classes, sample_weight)
        check_scale(rows, getattr(self, "feature_names_in_", None))
        self._train(rows, codes, codes != NO_LABEL, len(classes), weights)
        self.classes_ = classes
        self.transduction_ = np.where(is_unlabeled(labels), self.predict(X), labels).astype(classes.dtype)
        return self

    def _weights(self, rows: Array, codes: Array, classes: Array, sample_weight: ArrayLike | None) -> Array | None:
        if sample_weight is None and self.class_weight is None:
            return None
        weights = np.asarray(_check_sample_weight(sample_weight, rows, dtype=np.float64, ensure_non_negative=True))
        labeled = codes != NO_LABEL
        if self.class_weight is not None:
            of_class = compute_class_weight(self.class_weight, classes=classes, y=classes[codes[labeled]])
            weights = weights.copy()
            weights[labeled] *= of_class[codes[labeled]]
        if not weights[labeled].any():
            raise ValueError("Every labelled row has weight zero; give at least one of each class a positive weight.")
        return weights

    def predict_proba(self, X: ArrayLike) -> Array:
        """The probability of each class, ``(n, classes)``, averaged over the members."""
        return self._outputs(X, probabilities=True)

    def predict(self, X: ArrayLike) -> Array:
        """The most probable class of each row."""
        probabilities = self.predict_proba(X)
        return np.asarray(self.classes_[probabilities.argmax(1)])

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """The accuracy on the rows that have a label; those without one are left out."""
        labels = np.asarray(y)
        labeled = ~is_unlabeled(labels)
        if not labeled.any():
            raise ValueError(f"None of the {len(labels)} rows is labelled, so there is nothing to score.")
        weights = None if sample_weight is None else np.asarray(sample_weight)[labeled]
        return float(np.average(self.predict(X)[labeled] == labels[labeled], weights=weights))


class LadderRegressor(RegressorMixin, LadderEstimator):  # type: ignore[misc]
    """A regressor that learns from a few labelled rows and many unlabelled ones.

    Targets are standardised for training and put back for prediction.

    Parameters
    ----------
    network, activation, noise, costs, denoiser, epochs, annealed, learning_rate, batch_size, labeled_batch_size, \
    calibration, n_members, warm_start, random_state, device, verbose
        As for `LadderClassifier`.

    Attributes
    ----------
    transduction_ : ndarray of shape (n_samples,)
        For every row of `fit` its target, or where it had none the value predicted for it.
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

    def __init__(
        self,
        network: Sequence[int] = DIGITS.network,
        *,
        activation: str = "relu",
        noise: float | Sequence[float] = 0.3,
        costs: float | Sequence[float] = (1.0, 0.1, 0.1),
        denoiser: str = "gaussian",
        epochs: int = DIGITS.epochs,
        annealed: float = DIGITS.annealed,
        learning_rate: float = DIGITS.learning_rate,
        batch_size: int = DIGITS.batch_size,
        labeled_batch_size: int = DIGITS.labeled_batch_size,
        calibration: str = "all",
        n_members: int = 1,
        warm_start: bool = False,
        random_state: Any = None,
        device: str | None = None,
        verbose: bool = False,
    ) -> None:
        self.network = network
        self.activation = activation
        self.noise = noise
        self.costs = costs
        self.denoiser = denoiser
        self.epochs = epochs
        self.annealed = annealed
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.labeled_batch_size = labeled_batch_size
        self.calibration = calibration
        self.n_members = n_members
        self.warm_start = warm_start
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Train on all rows, and on the targets of those that have one.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Labelled and unlabelled rows together, of about unit scale.
        y : array-like of shape (n_samples,)
            Values; NaN (or None) where there is no target. Here -1 is a value like any other.
        sample_weight : array-like of shape (n_samples,), optional
            How much each labelled row counts in the supervised cost.
        """
        rows = self._check_training_rows(X)
        targets = self._check_targets(y, len(rows)).astype(np.float64)
        if np.isinf(targets).any():
            raise ValueError("Input y contains infinity or a value too large for float64. Give finite values, or NaN.")
        labeled = ~np.isnan(targets)
        if not labeled.any():
            raise ValueError(f"None of the {len(rows)} rows has a target (NaN marks those without). Give at least one.")
        weights = None
        if sample_weight is not None:
            weights = np.asarray(_check_sample_weight(sample_weight, rows, dtype=np.float64, ensure_non_negative=True))
            if not weights[labeled].any():
                raise ValueError("Every row with a target has weight zero; give at least one a positive weight.")
        check_scale(rows, getattr(self, "feature_names_in_", None))
        self.target_mean_ = float(targets[labeled].mean())
        self.target_deviation_ = float(targets[labeled].std()) or 1.0
        standard = np.nan_to_num((targets - self.target_mean_) / self.target_deviation_).astype(np.float32)[:, None]
        self._train(rows, standard, labeled, 1, weights)
        self.transduction_ = np.where(labeled, targets, self.predict(X))
        return self

    def predict(self, X: ArrayLike) -> Array:
        """The value of each row, averaged over the members."""
        return self._outputs(X)[:, 0] * self.target_deviation_ + self.target_mean_
