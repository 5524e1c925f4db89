"""What both estimators share: parameters into a recipe, rows into a fleet, members into one answer."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, fields
from math import prod
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted
from torch import nn

from tikas.data.preprocess import warn_of_few_rows
from tikas.data.splits import Split
from tikas.data.streams import Examples
from tikas.data.weights import as_counts, places_of
from tikas.estimators.answers import Answer, mean_answer
from tikas.estimators.inputs import Array, TakesRows
from tikas.estimators.members import build_around, settings_around_module
from tikas.fitted import Fitted, begun, epochs_of, interruption, joined_history, lost_members
from tikas.model.ladder import Ladder
from tikas.model.specs import RungSpec
from tikas.saving import write_model
from tikas.training.building import build_ladder
from tikas.training.devices import suitable_device, without_autocast, without_default_device
from tikas.training.fit import History, TrainingDivergedError, fit
from tikas.training.networks import in_one_form, rungs_of
from tikas.training.progress import progress_bar
from tikas.training.recipe import DIGITS, Recipe
from tikas.training.suitable import costs_that_suit, suitable_epochs, usual_epochs

TINY = float(np.finfo(np.float32).tiny)


@dataclass(eq=False, repr=False)
class LadderEstimator(ClassNamePrefixFeaturesOutMixin, TransformerMixin, TakesRows):  # type: ignore[misc]
    """A dataclass, so that the constructor that scikit-learn reads the parameters from is written by Python."""

    task: ClassVar[Literal["classification", "regression"]]

    network: Sequence[int | str | RungSpec] | str | nn.Module = DIGITS.network
    _: KW_ONLY
    preprocess: str = "none"
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
    precision: str = "fast"
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

    def _recipe(self, rows: Array) -> Recipe:
        """The recipe that the parameters describe; what they leave open follows from the network and the rows."""
        parameters = self.get_params(deep=False)
        chosen = {field.name: parameters[field.name] for field in fields(Recipe) if field.name in parameters}
        if isinstance(self.network, nn.Module):
            chosen |= settings_around_module(chosen, self.task)
        elif self.costs is None:
            chosen["costs"] = costs_that_suit(in_one_form(chosen["network"]), rows, self.task)
        if self.epochs is None:
            usual = DIGITS.epochs if isinstance(self.network, nn.Module) else usual_epochs(rows)
            chosen["epochs"] = suitable_epochs(len(rows), Recipe(batch_size=self.batch_size).batch_size, usual)
        return Recipe(**{**chosen, "data": "array", "labels": "all", "task": self.task})

    def _counted(
        self, rows: Array, targets: Array, sample_weight: ArrayLike | None
    ) -> tuple[Array | slice, Array | None]:
        """Where the rows are that are trained on, each as often as it counts; their weights, if not whole."""
        counts = weights = None
        if sample_weight is not None:
            given = _check_sample_weight(sample_weight, rows, dtype=np.float64, ensure_non_negative=True)
            counts = as_counts(given)
            if counts is None:
                counts, weights = (given > 0).astype(np.int64), (given / max(given.max(), TINY)).clip(TINY)
        places = places_of(rows, targets, counts)
        if len(places) < 2:
            raise ValueError(
                f"Of {len(rows)} rows all but {len(places)} have weight zero, as if they were not there. Give at least "
                "two a positive weight; rows without a label are marked in y."
            )
        everywhere = np.array_equal(places, np.arange(len(rows)))  # then nothing need be copied
        return slice(None) if everywhere else places, None if weights is None else weights[places]

    def _train(self, rows: Array, targets: Array, labeled: Array, outputs: int, weights: Array | None) -> None:
        """Train the members on prepared rows and keep what came out."""
        recipe, device = self._recipe(rows), suitable_device(self.device)
        seeds: Sequence[int] = self._seeds()
        warn_of_few_rows(len(rows), recipe.batch_size, stacklevel=3)
        earlier = self._ladders_to_go_on_from(rows.shape[1:], outputs, recipe) if self.warm_start else None
        build = build_around(self.network, rows) if isinstance(self.network, nn.Module) else build_ladder
        start = earlier
        if weights is not None:
            weights = (weights / weights[labeled].max()).clip(TINY, 1)  # none becomes zero in single precision
            weights = (weights / weights[labeled].mean()).astype(np.float32)
            if earlier is None:
                start = [build(recipe, rows.shape[1:], outputs, seed) for seed in seeds]
                self._weigh_outputs(start, targets[labeled], weights[labeled])
        split = Split(np.flatnonzero(labeled), np.arange(len(rows)), np.empty(0, np.int64))
        examples = Examples(
            torch.from_numpy(rows),
            torch.from_numpy(targets),
            outputs,
            None if weights is None else torch.from_numpy(weights),
        )
        splits = [split] * len(seeds)
        with progress_bar(shown=self.verbose) as on_epoch:
            trained = fit(examples, splits, recipe, seeds, start=start, device=device, on_epoch=on_epoch, build=build)
        if trained.diverged:
            if earlier is not None:  # they have learnt something before, which stays as it was
                raise TrainingDivergedError(trained.diverged)
            warnings.warn(lost_members(trained, seeds), UserWarning, stacklevel=3)
        left = begun(trained, seeds)  # or Ctrl-C, where nobody has learnt anything
        if earlier is None:  # ladders that go on have learnt something before
            trained, seeds = left
        if trained.interrupted:
            warnings.warn(interruption(trained.histories, recipe.epochs, self.n_members), UserWarning, stacklevel=3)
        before = [] if earlier is None else self.history_
        self._keep(recipe, trained.ladders, seeds, joined_history(trained, before))

    def _weigh_outputs(self, ladders: list[Ladder], targets: Array, weights: Array) -> None:
        """Let new ladders start from what the weights alone tell of the outputs."""

    def _keep(self, recipe: Recipe, ladders: list[Ladder], seeds: Sequence[int] | None, history: History) -> None:
        self.recipe_ = recipe
        self.ladders_ = ladders
        self.ladder_ = ladders[0]
        self.seeds_ = None if seeds is None else list(seeds)
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
        estimator._take_shape(fitted.input_shape or estimator.ladder_.shapes[0])
        if fitted.columns:
            estimator.feature_names_in_ = np.array(fitted.columns, dtype=object)
        estimator.preparation_ = fitted.preparation
        estimator.input_range_ = fitted.input_range
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
        if not isinstance(self.ladder_, Ladder) and not self.recipe_.is_module:
            raise ValueError(
                "The network is a module of your own, and a file that holds no code cannot bring it back. Keep its "
                "weights, torch.save(estimator.ladder_.network.state_dict(), path), or the whole estimator by "
                "joblib.dump(estimator, path), to be loaded only where its origin is trusted."
            )
        columns = tuple(getattr(self, "feature_names_in_", ()))
        known = {
            "columns": columns,
            "preparation": self.preparation_,
            "input_shape": self.input_shape_,
            "input_range": self.input_range_,
            **self._meaning(),
        }
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

    def _ladders_to_go_on_from(self, inputs: tuple[int, ...], outputs: int, recipe: Recipe) -> list[Ladder] | None:
        ladders: list[Ladder] | None = getattr(self, "ladders_", None)
        if ladders is None:
            return None
        before = (ladders[0].shapes[0], prod(ladders[0].shapes[-1]), len(ladders))
        if before != (inputs, outputs, self.n_members):
            raise ValueError(
                f"warm_start=True: the fitted model takes rows of shape {before[0]} and gives {before[1]} outputs with "
                f"{before[2]} members; now there are {inputs}, {outputs} and {self.n_members}. "
                "Keep all three as they were, or set warm_start=False."
            )
        if rungs_of(self.recipe_.network, outputs) != rungs_of(recipe.network, outputs):
            fitted = self.recipe_.network if isinstance(ladders[0], Ladder) else ladders[0].network
            raise ValueError(
                f"warm_start=True: the ladders to go on from have other rungs, network={_in_short(fitted)}; now "
                f"network={_in_short(self.network)}. Keep those as they were, or set warm_start=False."
            )
        return ladders

    def _answers(self, X: ArrayLike, asked: Answer) -> Array:
        """What all members together answer for X as it comes."""
        with without_default_device(), without_autocast():
            rows = self._check_rows(X)
            self._compare_scale(rows)
            return self._answers_to(rows, asked)

    def _answers_to(self, rows: Array, asked: Answer) -> Array:
        return mean_answer(self.ladders_, rows, asked, device=self.device, prepare=self._as_taken)

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
        return self._answers(X, "latents")

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


def _in_short(network: Any) -> str:
    return f"{type(network).__name__}(…)" if isinstance(network, nn.Module) else repr(network)
