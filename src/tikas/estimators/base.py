"""What both estimators share: parameters into a recipe, rows into a fleet, members into one answer."""

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
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from tikas.data.preprocess import warn_of_few_rows
from tikas.data.splits import Split
from tikas.data.streams import Examples
from tikas.data.whitening import Whitening
from tikas.model.ladder import Ladder
from tikas.saving import Fitted, epochs_of, joined_history, write_model
from tikas.training.devices import suitable_device
from tikas.training.fit import History, fit
from tikas.training.fleet import build_ladder
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
    """A dataclass, so that the constructor that scikit-learn reads the parameters from is written by Python."""

    task: ClassVar[Literal["classification", "regression"]]

    network: Sequence[int | str] = DIGITS.network
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
        recipe, seeds, device = self._recipe(rows), self._seeds(), suitable_device(self.device)
        warn_of_few_rows(len(rows), recipe.batch_size, stacklevel=3)
        earlier = self._ladders_to_go_on_from(rows.shape[1], outputs) if self.warm_start else None
        start = earlier
        if weights is not None:
            weights = (weights / weights[labeled].mean()).astype(np.float32)
            labeled = labeled & (weights > 0)  # a batch of nothing but zero weights would have no cost
            if earlier is None:
                start = [build_ladder(recipe, rows.shape[1:], outputs, seed) for seed in seeds]
                self._weigh_outputs(start, targets[labeled], weights[labeled])
        split = Split(np.flatnonzero(labeled), np.arange(len(rows)), np.empty(0, np.int64))
        examples = Examples(
            torch.from_numpy(rows),
            torch.from_numpy(targets),
            outputs,
            None if weights is None else torch.from_numpy(weights),
        )
        with progress_bar(shown=self.verbose) as on_epoch:
            trained = fit(examples, [split] * len(seeds), recipe, seeds, start=start, device=device, on_epoch=on_epoch)
        if trained.interrupted:
            epochs = len(trained.histories[0])
            warnings.warn(
                f"Training was interrupted after {epochs} of {recipe.epochs} epochs; the model is kept as it was then. "
                "Fit again for a whole run, or with warm_start=True to go on.",
                UserWarning,
                stacklevel=3,
            )
        before = [] if earlier is None else self.history_
        self._keep(recipe, trained.ladders, seeds, joined_history(trained, before))

    def _weigh_outputs(self, ladders: list[Ladder], targets: Array, weights: Array) -> None:
        """Let new ladders start from what the weights alone tell of the outputs."""

    def _keep(self, recipe: Recipe, ladders: list[Ladder], seeds: list[int] | None, history: History) -> None:
        self._whitening: Whitening | None = None
        self.recipe_ = recipe
        self.ladders_ = ladders
        self.ladder_ = ladders[0]
        self.seeds_ = seeds
        self.history_ = history
        self.n_iter_ = epochs_of(history)

    @classmethod
    def from_fitted(cls, fitted: Fitted) -> Self:
        """An estimator around a model that was trained elsewhere, or read from a file.

        Its parameters are those of the recipe; how the members were seeded is in `seeds_`.

        Examples
        --------
        >>> from tikas import LadderRegressor
        >>> X, y = [[0.0], [0.5], [1.0]] * 10, [0.0, None, 2.0] * 10
        >>> regressor = LadderRegressor((8,), epochs=3, batch_size=20).fit(X, y)
        >>> again = LadderRegressor.from_fitted(regressor.as_fitted())
        >>> bool((again.predict(X) == regressor.predict(X)).all())
        True
        """
        known = cls().get_params(deep=False)
        estimator = cls(**{f.name: getattr(fitted.recipe, f.name) for f in fields(Recipe) if f.name in known})
        estimator.set_params(n_members=len(fitted.ladders))
        estimator._keep(fitted.recipe, fitted.ladders, fitted.seeds, fitted.history)
        estimator.n_features_in_ = prod(estimator.ladder_.shapes[0])
        if fitted.columns:
            estimator.feature_names_in_ = np.array(fitted.columns, dtype=object)
        estimator._whitening = fitted.whitening
        estimator._take_meaning(fitted)
        return estimator

    def as_fitted(self) -> Fitted:
        """The fitted model as a plain value: what a file holds of it, and what `from_fitted` takes.

        Examples
        --------
        >>> from tikas import LadderClassifier
        >>> X, y = [[0.0], [0.2], [0.8], [1.0]] * 5, [0, -1, -1, 1] * 5
        >>> fitted = LadderClassifier((8,), epochs=3, batch_size=20, n_members=2, random_state=4).fit(X, y).as_fitted()
        >>> fitted.seeds, fitted.classes.tolist(), len(fitted.history)
        ([4, 5], [0, 1], 6)
        """
        check_is_fitted(self)
        columns = tuple(getattr(self, "feature_names_in_", ()))
        known = {"columns": columns, "whitening": self._whitening, **self._meaning()}
        return Fitted(self.recipe_, self.ladders_, self.seeds_, self.history_, **known)

    def _meaning(self) -> dict[str, Any]:
        """What the outputs stand for: the fields of `Fitted` that only a classifier, or only a regressor, has."""
        raise NotImplementedError

    def _take_meaning(self, fitted: Fitted) -> None:
        raise NotImplementedError

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
            inputs = (self._whitened(chunk.double()).unflatten(1, precise.shapes[0]) for chunk in chunks)
            outputs = torch.cat([precise.encode(chunk)[0 if latent else 1] for chunk in inputs])
            total = total + (outputs.softmax(-1) if probabilities else outputs)
        return np.asarray((total / len(self.ladders_)).numpy())

    def _whitened(self, rows: Tensor) -> Tensor:
        if self._whitening is None:
            return rows
        return self._whitening(rows.unflatten(1, self._whitening.mean.shape)).flatten(1)

    def transform(self, X: ArrayLike) -> Array:
        """The clean latent of the top rung, ``(n, outputs)``: rows of one kind lie close together in it.

        Examples
        --------
        >>> from tikas import LadderClassifier
        >>> X, y = [[0.0], [0.1], [0.9], [1.0]] * 10, ["low", None, None, "high"] * 10
        >>> classifier = LadderClassifier((8,), epochs=3, batch_size=20).fit(X, y)
        >>> classifier.transform([[0.05]]).shape
        (1, 2)
        """
        return self._outputs(self._check_rows(X), latent=True)

    @property
    def _n_features_out(self) -> int:
        return int(self.ladders_[0].shapes[-1][0])

    def save(self, path: str | Path) -> Path:
        """Write the fitted model into one safetensors file; `tikas.load` reads it back.

        Parameters
        ----------
        path
            Where it goes; an older file there is replaced once the new one is complete.

        Returns
        -------
        Path
            The same path.

        Raises
        ------
        OSError
            Where the file cannot be written; an older one at that path stays whole.

        Examples
        --------
        >>> import tempfile
        >>> from tikas import LadderClassifier
        >>> classifier = LadderClassifier((4,), epochs=1, batch_size=4).fit([[0.0], [0.2], [0.8], [1]], [0, -1, -1, 1])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     classifier.save(folder + "/model.safetensors").name
        'model.safetensors'
        """
        return write_model(path, self.as_fitted())
