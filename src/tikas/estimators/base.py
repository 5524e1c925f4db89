"""What both estimators share: parameters, checks of X, training, and prediction with all members."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import KW_ONLY, dataclass, fields, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_array, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from tikas.data.datasets import Dataset
from tikas.data.images import as_columns, as_images, as_shaped, warn_channels_last
from tikas.data.labels import as_counts, check_sample_weight, row_indices
from tikas.data.splits import Split
from tikas.data.transforms import TRANSFORMS, check_scale, value_range, warn_few_rows, warn_other_scale
from tikas.model.gamma import gamma
from tikas.model.ladder import Model
from tikas.model.specs import RungSpec, channels_last_hint
from tikas.training.engines import SECOND_THREAD_FROM
from tikas.training.environment import (
    full_precision,
    pick_device,
    plain_computation,
    private_random_state,
    single_thread,
)
from tikas.training.recipe import SMALL, Recipe, check_module_settings, default_costs, default_epochs
from tikas.training.trainer import Build, TrainingDivergedError, TrainingResult

Array = NDArray[Any]
Prediction = Literal["outputs", "latents", "probabilities"]

TINY = float(np.finfo(np.float32).tiny)

MAX_CHUNK_VALUES = 2**25
"""Values of the largest level in a chunk of rows that is predicted at once."""
MAX_CHUNK_ROWS, MAX_CHUNK_IMAGES = 4096, 1024
"""Rows of a chunk for dense ladders, and for all other models: how large the maps inside a module are is unknown."""
MIN_GPU_PRODUCTS = 10**11
"""Multiplications from which on dense ladders predict on a GPU: some seconds of a CPU in double precision."""
MAX_COMPARED_ROWS = 1000
"""Rows, spread over all, whose range is compared with that of the training rows."""

DATES = "Convert dates and times to numbers, such as days since the first one, or leave them out."
ADVICE = {
    "features as input": "Give the columns of fit, in the same order.",
    "contains infinity": "Leave such rows out, or clip their values.",
    "string to float": "Encode text as numbers, for instance with scikit-learn's OneHotEncoder, or leave it out.",
    "element with a sequence": "Give rows of equal length, or images of equal size.",
    "Sparse data": "In a pipeline: OneHotEncoder(sparse_output=False), or ColumnTransformer(…, sparse_threshold=0).",
    "not be promoted": DATES,
    "float() argument": DATES,
}
"""What to do about errors of scikit-learn, by a part of their message."""
SHAPE_ADVICE = "Give X in the shape that the module takes; gray images too as (n, channels, height, width)."
INDEX_ADVICE = "X is passed on as floats: convert it to indices in the module, x.long(), and set noise=(0, 0.3)."
"""What to do about rows that a user module does not take, and about rows of indices for its embedding layer."""


@dataclass(eq=False, repr=False)
class LadderEstimator(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Base of both estimators. Its fields are their parameters: the dataclass writes the constructor."""

    task: ClassVar[Literal["classification", "regression"]]

    network: Sequence[int | str | RungSpec] | str | nn.Module = SMALL.network
    _: KW_ONLY
    preprocess: str = "none"
    activation: str = "relu"
    noise: float | Sequence[float] = SMALL.noise[0]
    costs: float | Sequence[float] | None = None
    denoiser: str = "gaussian"
    epochs: int | None = None
    annealed: float = SMALL.annealed
    learning_rate: float = SMALL.learning_rate
    batch_size: int = SMALL.batch_size
    labeled_batch_size: int = SMALL.labeled_batch_size
    calibration: str = "all"
    precision: str = "fast"
    n_members: int = 1
    warm_start: bool = False
    random_state: Any = None
    device: str | None = None
    verbose: bool = False

    @property
    def _is_module(self) -> bool:
        return isinstance(self.network, nn.Module)

    @contextmanager
    def _unchanged_on_error(self) -> Iterator[None]:
        """Restore all attributes if an exception leaves the block."""
        before = self.__dict__.copy()
        try:
            yield
        except BaseException:
            self.__dict__ = before
            raise

    # Training

    def _recipe(self) -> Recipe:
        """Check the parameters. Costs and epochs that are None get their values in `_with_defaults`."""
        settings = {field.name: getattr(self, field.name) for field in fields(Recipe)}
        if self.epochs is None:
            settings["epochs"] = SMALL.epochs
        if self.costs is None:
            settings["costs"] = 1.0 if self._is_module else 0.0
        if self._is_module:
            check_module_settings(settings, _module_name(self.network))
            settings["network"] = ()
        return Recipe(**settings)

    def _with_defaults(self, recipe: Recipe, rows: Array) -> Recipe:
        """Derive costs and epochs that are None from the training rows."""
        derived: dict[str, Any] = {}
        if self.costs is None and not self._is_module:
            derived["costs"] = default_costs(recipe.network, rows, recipe.task)
        if self.epochs is None:
            derived["epochs"] = default_epochs(rows, recipe.batch_size, is_module=self._is_module)
        return replace(recipe, **derived) if derived else recipe

    def _check_training_rows(self, X: ArrayLike, recipe: Recipe) -> Array:
        """Return X as float32 ``(n, *input_shape_)`` and set `input_shape_`."""
        rows = self._as_floats(X, reset=True)
        if len(rows) < 2:
            raise ValueError(
                "Got n_samples = 1: batches are normalized with their own statistics, which takes at least two rows. "
                "Add rows, labeled or not."
            )
        if not self._is_module:
            if rows.ndim > 2:
                rows = as_images(rows)
                warn_channels_last(rows, recipe.takes_maps, recipe.preprocess, stacklevel=3)
            elif recipe.takes_maps:
                raise ValueError(
                    f"network={self.network!r} takes images, and X has shape {rows.shape}; expected "
                    "(n, channels, height, width), or (n, height, width) for gray images. Reshape X, for example "
                    "X.reshape(-1, 1, 28, 28), or choose a network of dense layers."
                )
        self.input_shape_ = rows.shape[1:]
        return rows

    def _as_floats(self, X: ArrayLike, *, reset: bool) -> Array:
        """Return X as finite float32, and add advice to scikit-learn's errors; `reset` as for `validate_data`."""
        try:
            with np.errstate(over="ignore"):  # values beyond float32 become infinite, which check_array reports
                if len(_shape(X)) <= 2:
                    rows = validate_data(self, X, dtype=np.float32, order="C", reset=reset)
                else:
                    rows = check_array(X, dtype=np.float32, order="C", allow_nd=True, estimator=self, input_name="X")
                    if reset and not rows.size:
                        raise ValueError(f"Got X of shape {rows.shape}, which has no values.")
                    if reset:
                        validate_data(self, rows.reshape(len(rows), -1), reset=True, skip_check_array=True)
        except (TypeError, ValueError) as error:
            for part, advice in ADVICE.items():
                if part in str(error):
                    kind = TypeError if isinstance(error, TypeError) else ValueError
                    raise kind(f"{str(error).rstrip('.')}. {advice}") from None
            raise
        return np.require(rows, requirements="W")  # torch warns about read-only memory

    def _select_rows(
        self, rows: Array, targets: Array, sample_weight: ArrayLike | None, splits: Sequence[Split] | None
    ) -> tuple[Array | slice, Array | None]:
        """Return the indices of the rows to train on, repeated if weights are whole, or else the selected weights."""
        if splits is not None:  # they name rows by their positions, so these must stay
            if sample_weight is not None:
                raise ValueError("sample_weight and splits cannot be combined. Give one of the two.")
            return slice(None), None
        counts = weights = None
        if sample_weight is not None:
            given = check_sample_weight(sample_weight, len(rows))
            counts = as_counts(given)
            if counts is None:
                counts, weights = (given > 0).astype(np.int64), (given / max(given.max(), TINY)).clip(TINY)
        indices = row_indices(rows, targets, counts)
        if len(indices) < 2:
            raise ValueError(
                f"sample_weight is zero for all but {len(indices)} of {len(rows)} rows, and rows of weight zero are "
                "ignored. Give at least two rows a positive weight; unlabeled rows are marked in y."
            )
        if np.array_equal(indices, np.arange(len(rows))):
            return slice(None), weights  # without a copy of the rows
        return indices, None if weights is None else weights[indices]

    def _prepare_fit(
        self,
        recipe: Recipe,
        rows: Array,
        targets: Array,
        weights: Array | None,
        splits: Sequence[Split] | None,
        classes: Array | None = None,
    ) -> tuple[Recipe, Build, Dataset, Sequence[Split]]:
        """Fit the preprocessing. Returns the complete recipe, the builder of members, and what `Trainer.fit` takes."""
        earlier = self._earlier_members()
        names = getattr(self, "feature_names_in_", None)
        rows = self._fit_preparation(rows, recipe, warm=earlier is not None)
        # Every column has a scale, and every channel of images; the rows of a module may be anything.
        scaled = rows if self._is_module else as_columns(rows.reshape(len(rows), *self.input_shape_))
        check_scale(scaled, names, stacklevel=4)
        dataset = Dataset(rows, targets, None, () if names is None else tuple(names), classes)
        labeled = dataset.labeled
        if splits is None:
            splits = [Split(np.flatnonzero(labeled), np.arange(len(rows)), np.empty(0, np.int64))] * self.n_members
        else:
            _check_splits(splits, labeled, self.n_members)
        trained = splits[0].unlabeled
        warn_few_rows(len(trained), recipe.batch_size, stacklevel=3)
        recipe = self._with_defaults(recipe, rows if len(trained) == len(rows) else rows[trained])
        if earlier is not None:
            self._check_warm_start(recipe, rows.shape[1:], dataset.n_outputs)
        build: Build = Recipe.build
        if isinstance(self.network, nn.Module):
            build = partial(build_gamma, self.network, rows[:2])
        if weights is not None:
            weights = (weights / weights[labeled].max()).clip(TINY, 1)  # none is zero in single precision
            dataset = replace(dataset, weights=(weights / weights[labeled].mean()).astype(np.float32))
            if classes is not None:
                build = partial(build_with_class_odds, build, dataset)
        return recipe, build, dataset, splits

    def _set_result(self, result: TrainingResult, recipe: Recipe, seeds: list[int]) -> None:
        """Set the fitted attributes, and warn about members that diverged and about an interruption."""
        members, histories, before = result.members, result.histories, []
        earlier = self._earlier_members()
        if earlier is not None:
            if result.failed:
                raise TrainingDivergedError(result.failed)
            # Members that an interruption kept from training stay as they were.
            members, histories, before = list(earlier), [[] for _ in earlier], self.history_
            for index, member, lines in zip(result.indices, result.members, result.histories, strict=True):
                members[index], histories[index] = member, lines
        if result.failed:
            failed = ", ".join(str(seeds[index]) for index in result.failed)
            warnings.warn(
                f"{len(result.failed)} of {self.n_members} members diverged (seed {failed}) and are left out. The "
                f"first: {next(iter(result.failed.values()))}",
                UserWarning,
                stacklevel=3,
            )
        if result.interrupted:
            warnings.warn(_interruption(histories, recipe.epochs, self.n_members), UserWarning, stacklevel=3)
        epochs = _epochs_per_member(before)
        history = list(before)
        for number, lines in enumerate(histories):
            history += [{"member": number, **line, "epoch": epochs[number] + line["epoch"]} for line in lines]
        kept = result.seeds if earlier is None else seeds
        self._set_fitted(recipe, members, kept, history, interrupted=result.interrupted)

    def _fit_preparation(self, rows: Array, recipe: Recipe, *, warm: bool) -> Array:
        """Set `preparation_` and `input_range_`, and return the rows as the members take them."""
        if warm and recipe.preprocess != self.recipe_.preprocess:
            raise ValueError(
                f"warm_start=True: the fitted model has preprocess={self.recipe_.preprocess!r}, and now it is "
                f"{recipe.preprocess!r}. Keep it, or set warm_start=False."
            )
        if recipe.preprocess == "none":
            self.preparation_ = None
        elif not warm:
            transform = TRANSFORMS[recipe.preprocess]
            self.preparation_ = transform.fit(torch.from_numpy(rows), pick_device(self.device)).to("cpu")
        if self.preparation_ is not None:
            rows = self.preparation_(torch.from_numpy(rows)).numpy()
        earlier = self.input_range_ if warm else None
        self.input_range_: tuple[float, float] | None = value_range(rows, recipe.preprocess, earlier)
        return rows if self._is_module or recipe.takes_maps else rows.reshape(len(rows), -1)

    def _earlier_members(self) -> list[Model] | None:
        """Return the fitted members that training continues from, if it does."""
        return getattr(self, "ladders_", None) if self.warm_start else None

    def _seeds(self) -> list[int]:
        """Return the seed of each member."""
        if isinstance(self.n_members, bool) or not isinstance(self.n_members, int | np.integer) or self.n_members < 1:
            raise ValueError(f"n_members={self.n_members!r}: expected a whole number of at least 1.")
        random = check_random_state(self.random_state)
        if isinstance(self.random_state, int | np.integer):
            return [int(self.random_state) + member for member in range(self.n_members)]
        return [int(seed) for seed in random.randint(2**31 - 1, size=self.n_members)]

    def _check_warm_start(self, recipe: Recipe, input_shape: tuple[int, ...], n_outputs: int) -> None:
        """Require that the fitted members have the shapes, number and layers of the new fit."""
        shapes = self.ladders_[0].shapes
        before = (shapes[0], prod(shapes[-1]), len(self.ladders_))
        if before != (input_shape, n_outputs, self.n_members):
            raise ValueError(
                f"warm_start=True: the fitted model takes rows of shape {before[0]} and has {before[1]} outputs and "
                f"{before[2]} members; now there are {input_shape}, {n_outputs} and {self.n_members}. Keep all three, "
                "or set warm_start=False."
            )
        if self.recipe_.network != recipe.network:
            raise ValueError(
                f"warm_start=True: the fitted model has network={self.recipe_.network!r}, and now it is "
                f"{self.network!r}. Keep it, or set warm_start=False."
            )

    def _set_fitted(
        self,
        recipe: Recipe,
        members: Sequence[Model],
        seeds: Sequence[int],
        history: list[dict[str, Any]],
        *,
        interrupted: bool,
    ) -> None:
        """Set the attributes that describe the trained members."""
        self.recipe_ = recipe
        self.ladders_ = list(members)
        self.ladder_ = members[0]
        self.seeds_ = list(seeds)
        self.history_ = history
        self.n_iter_ = max(_epochs_per_member(history).values(), default=0)
        self.interrupted_ = interrupted

    # Prediction

    def _check_rows(self, X: ArrayLike) -> Array:
        """Return X as float32 ``(n, *input_shape_)``."""
        check_is_fitted(self)
        shape = self.input_shape_
        try:
            return as_shaped(self._as_floats(X, reset=False), shape)
        except ValueError:
            given = _shape(X)
            if len(shape) > 1 and shape in (given, (1, *given)):
                raise ValueError(
                    f"Got X of shape {given}, which is one image; expected (n, {', '.join(map(str, shape))}). Give "
                    "X[:1], not X[0], for the first of several."
                ) from None
            raise

    def _predict(self, X: ArrayLike, kind: Prediction) -> Array:
        """Check X and return the mean prediction of the members."""
        with plain_computation():
            rows = self._check_rows(X)
            if self.input_range_ is not None:
                some = self._prepare(torch.from_numpy(rows[:: 1 + len(rows) // MAX_COMPARED_ROWS]))
                warn_other_scale(
                    some.reshape(len(some), *self.input_shape_).numpy(),
                    self.input_range_,
                    getattr(self, "feature_names_in_", None),
                    standardized=self.preparation_ is not None,
                    stacklevel=3,
                )
            return self._predict_rows(rows, kind)

    def _predict_rows(self, rows: Array, kind: Prediction) -> Array:
        return predict_mean(self.ladders_, rows, kind, device=self.device, prepare=self._prepare)

    def _prepare(self, rows: Tensor) -> Tensor:
        """Return rows of shape `input_shape_` as the fitted members take them."""
        shape = self.ladder_.shapes[0]
        if self.preparation_ is not None:
            rows = self.preparation_(rows.double() if len(shape) == 1 else rows)
        return rows.reshape(len(rows), *shape)

    def transform(self, X: ArrayLike) -> Array:
        """Return the normalized activations of the output layer, before its nonlinearity, averaged over the members.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features) or (n_samples, [channels,] height, width)
            Rows on the scale of those of `fit`.

        Returns
        -------
        ndarray of shape (n_samples, n_outputs)
            The clean latent z of the top level. Similar rows are close together in it.

        Examples
        --------
        >>> from tikas import LadderClassifier
        >>> X, y = [[0.0], [0.1], [0.9], [1.0]] * 10, ["low", None, None, "high"] * 10
        >>> classifier = LadderClassifier((8,), epochs=3, batch_size=20).fit(X, y)
        >>> classifier.transform([[0.05]]).shape
        (1, 2)
        """
        return self._predict(X, "latents")

    @property
    def _n_features_out(self) -> int:
        """The number of columns of `transform`, which scikit-learn names."""
        return int(self.ladder_.shapes[-1][0])

    def save(self, path: str | Path) -> Path:
        """Write the fitted model into one safetensors file, which `tikas.load` reads.

        Parameters
        ----------
        path : str or Path
            The file to write. An existing file is replaced once the new one is complete.

        Returns
        -------
        Path
            The path of the file.

        Raises
        ------
        OSError
            If the file cannot be written. An existing file is left unchanged.
        ValueError
            If the network is a module of your own, which a file without code cannot restore.

        Examples
        --------
        >>> import tempfile
        >>> from tikas import LadderClassifier
        >>> classifier = LadderClassifier((4,), epochs=1, batch_size=4).fit([[0.0], [0.2], [0.8], [1]], [0, -1, -1, 1])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     classifier.save(folder + "/model.safetensors").name
        'model.safetensors'
        """
        from tikas.io import save  # io imports the estimators

        return save(self, path)


def _check_splits(splits: Sequence[Split], labeled: Array, n_members: int) -> None:
    if len(splits) != n_members:
        raise ValueError(f"Got {len(splits)} splits for {n_members} members. Give one Split per member.")
    for split in splits:
        if not labeled[split.labeled].all() or not labeled[split.validation].all():
            raise ValueError("splits name labeled or validation rows that have no label in y. Leave these rows out.")


def build_gamma(
    module: nn.Module, example: Array, recipe: Recipe, input_shape: Sequence[int], n_outputs: int, seed: int
) -> Model:
    """Build a member from a user module: the Γ-model around a float32 copy, tried on the rows of `example`."""
    name = _module_name(module)
    try:
        copy = deepcopy(module).cpu().float()
    except Exception as error:  # anything may be raised by the attributes of a user module
        raise TypeError(
            f"{name} cannot be copied, and every member is a copy: {_first_line(error)}. Remove attributes that "
            "copy.deepcopy does not accept, and run lazy layers on a few rows first."
        ) from error
    try:
        with private_random_state(seed):  # lazy layers draw their weights now
            return gamma(copy, n_outputs, recipe.noise_per_level(), recipe.costs[0], example=torch.from_numpy(example))
    except (RuntimeError, IndexError) as error:  # of the module's layers, about rows of another shape or dtype
        problem = _first_line(error)
        advice = INDEX_ADVICE if "'indices'" in problem else SHAPE_ADVICE + channels_last_hint(input_shape)
        raise ValueError(f"{name} does not take rows of shape {tuple(input_shape)}: {problem}. {advice}") from error


def build_with_class_odds(
    build: Callable[..., Model],
    dataset: Dataset,
    recipe: Recipe,
    input_shape: tuple[int, ...],
    n_outputs: int,
    seed: int,
) -> Model:
    """Build a member whose output biases start at the log odds of the classes' total weights.

    A class of very small weight has almost no gradient that could lower its score, so that rows to which the initial
    weights give this class would keep it.
    """
    model = build(recipe, input_shape, n_outputs, seed)
    assert dataset.weights is not None
    targets, weights = dataset.targets[dataset.labeled], dataset.weights[dataset.labeled]
    if model.output_bias is not None and np.ptp(weights) > 0:
        shares = np.bincount(targets, weights.astype(float)) / weights.sum(dtype=float)
        with torch.no_grad():
            model.output_bias.add_(torch.from_numpy(np.log(shares * len(shares))))
    return model


@torch.no_grad()
def predict_mean(
    members: Sequence[Model],
    rows: Array,
    kind: Prediction,
    *,
    device: str | None = None,
    prepare: Callable[[Tensor], Tensor] | None = None,
) -> NDArray[np.float64]:
    """Return the mean of the members' outputs, top latents or class probabilities, chunk by chunk.

    Dense ladders predict in double precision: the last digits of a float32 product depend on the number of rows in it,
    and a row's prediction must not depend on the rows beside it. Convolutions would take several times as long in
    double precision, and a module may not support it; these predict in float32.
    """
    dense = all(member.packable and all(len(shape) == 1 for shape in member.shapes) for member in members)
    products = len(rows) * sum(parameter.numel() for member in members for parameter in member.parameters())
    on = _prediction_device(products, device, dense)
    dtype = torch.float64 if dense else torch.float32
    copies = [_encoder_copy(member).to(on, dtype) for member in members]
    largest = max(prod(shape) for member in members for shape in member.shapes)
    size = max(1, min(MAX_CHUNK_ROWS if dense else MAX_CHUNK_IMAGES, MAX_CHUNK_VALUES // largest))
    means = []
    with full_precision(), single_thread(dense and products < SECOND_THREAD_FROM):
        for chunk in torch.from_numpy(rows).split(size):
            prepared = (chunk if prepare is None else prepare(chunk)).to(on, dtype)
            predictions = []
            for copy in copies:
                latent, output = copy.encode(prepared)
                if kind == "latents":
                    predictions.append(latent.double())
                elif kind == "outputs":
                    predictions.append(output.double())
                else:
                    predictions.append(output.double().softmax(-1))
            means.append(torch.stack(predictions).mean(0).cpu())
    return np.asarray(torch.cat(means).numpy())


def _prediction_device(products: int, device: str | None, dense: bool) -> torch.device:
    """Return the given GPU, or the default one, if it exists and is faster; else the CPU.

    The model may have been trained on a machine with other devices. Dense ladders predict few rows faster on the CPU.
    """
    gpu = torch.device(device or "cuda")
    exists = gpu.type == "cuda" and (gpu.index or 0) < torch.cuda.device_count()
    if exists and (not dense or products >= MIN_GPU_PRODUCTS):
        return gpu
    return torch.device("cpu")


def _encoder_copy(member: Model) -> Model:
    """Copy a member without the parts that prediction does not use: denoisers and decoder maps."""
    unused = [part for rung in getattr(member, "rungs", ()) for part in (rung.denoiser, rung.back)]
    return deepcopy(member, {id(part): None for part in unused if part is not None})


def _interruption(histories: Sequence[Sequence[dict[str, Any]]], epochs: int, n_members: int) -> str:
    """Say how far the kept members were trained."""
    least, most = min(map(len, histories)), max(map(len, histories))
    finished = f"{most}" if least == most else f"{least} to {most}"
    kept, settings = "the model is kept as it was then", "warm_start=True"
    if len(histories) < n_members:
        kept = f"{len(histories)} of {n_members} members are kept as they were then"
        settings = f"n_members={len(histories)} and {settings}"
    return (
        f"Training was interrupted after {finished} of {epochs} epochs; {kept}. Call fit again for a complete run, or "
        f"with {settings} to continue."
    )


def _epochs_per_member(history: Sequence[dict[str, Any]]) -> Counter[int]:
    return Counter(line["member"] for line in history)


def _module_name(module: Any) -> str:
    return f"network={type(module).__name__}(…)"


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0].rstrip(".") or type(error).__name__


def _shape(X: ArrayLike) -> tuple[int, ...]:
    """Return the shape of an array-like, or () if it is ragged, which scikit-learn reports."""
    try:
        return tuple(X.shape if hasattr(X, "shape") else np.asarray(X).shape)
    except ValueError:
        return ()
