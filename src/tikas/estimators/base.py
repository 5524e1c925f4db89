"""Base class of both estimators: parameters, checks of X, training, and prediction with all members."""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import KW_ONLY, dataclass, fields, replace
from functools import partial
from math import ceil, log, prod
from numbers import Integral, Real
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeGuard

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import assert_all_finite, check_array, check_random_state, check_scalar
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from tikas.data.arrays import like, to_numpy
from tikas.data.columns import ColumnEncoder, as_table, describe_left_out, needs_encoding
from tikas.data.datasets import Dataset
from tikas.data.images import as_columns, as_images, as_shaped, warn_channels_last
from tikas.data.labels import check_sample_weight
from tikas.data.sources import (
    CHUNK_VALUES,
    STREAM_FROM,
    AnyRows,
    ArrayRows,
    RowSource,
    RowView,
    SparseRows,
    chunks,
    spread_sample,
)
from tikas.data.splits import Split, split
from tikas.data.transforms import (
    TRANSFORMS,
    NotedRange,
    check_scale,
    choose_scaling,
    value_range,
    warn_few_rows,
    warn_other_scale,
)
from tikas.estimators.supervised import SupervisedEstimator
from tikas.model.gamma import gamma
from tikas.model.ladder import Model
from tikas.model.specs import RungSpec, channels_last_hint
from tikas.training.callbacks import Callback, Progress, row_bar
from tikas.training.checkpoint import Checkpointer, weights_digest
from tikas.training.distributed import train_together
from tikas.training.engines import SECOND_THREAD_FROM
from tikas.training.environment import (
    as_tensor,
    full_precision,
    pick_device,
    plain_computation,
    private_random_state,
    single_thread,
)
from tikas.training.recipe import (
    SMALL,
    Preprocess,
    Recipe,
    UnusualSettingWarning,
    check_module_settings,
    default_costs,
    default_epochs,
    unusual_settings,
)
from tikas.training.summary import TrainingSummary, hardware, versions
from tikas.training.trainer import MAX_COPIED_BYTES, Build, Trainer, TrainingDivergedError, TrainingResult

Array = NDArray[Any]
Prediction = Literal["outputs", "latents", "probabilities", "log_probabilities"]

MAX_CHUNK_VALUES = 2**25
"""Largest number of values, at the largest level, in a chunk of rows to predict."""
MAX_CHUNK_ROWS, MAX_CHUNK_IMAGES = 4096, 1024
"""Largest number of rows in a chunk: for dense ladders, and for other models, whose maps may be large."""
MIN_GPU_PRODUCTS = 10**11
"""Dense ladders predict on a GPU from this number of multiplications on: seconds on a CPU, in double precision."""
MAX_COMPARED_ROWS = 1000
"""Largest number of rows to predict (evenly spread) whose range is compared with that of the training rows."""
SAMPLE_VALUES = 2**24
"""Values of the rows of a source from which costs and epochs are derived, and whose scale is checked."""


@dataclass(eq=False, repr=False)
class LadderEstimator(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Base class of both estimators. Its fields are their parameters: the dataclass generates the constructor."""

    task: ClassVar[Literal["classification", "regression"]]

    network: Sequence[int | str | RungSpec] | str | nn.Module = SMALL.network
    _: KW_ONLY
    preprocess: str = "auto"
    columns: Mapping[Any, str] | None = None
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
    early_stopping: bool = SMALL.early_stopping
    validation_fraction: float = 0.1
    n_iter_no_change: int = SMALL.n_iter_no_change
    tol: float = SMALL.tol
    n_members: int = 1
    warm_start: bool = False
    checkpoint: str | Path | Checkpointer | None = None
    checkpoint_every: float = 60.0
    on_interrupt: str = "keep"
    random_state: Any = None
    device: str | None = None
    verbose: bool = False
    callbacks: Sequence[Callback] | None = None

    _is_clone = False

    def __sklearn_clone__(self) -> Self:
        """Return an unfitted copy that raises KeyboardInterrupt on Ctrl-C: searches and meta-estimators fit clones."""
        copied: Self = super().__sklearn_clone__()
        copied._is_clone = True
        return copied

    @property
    def _is_module(self) -> bool:
        return isinstance(self.network, nn.Module)

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's tags: what X may contain."""
        tags = super().__sklearn_tags__()
        tags.array_api_support = True
        tags.input_tags.sparse = True
        encodes = self.preprocess in ("auto", "columns") and not self._is_module
        tags.input_tags.allow_nan = tags.input_tags.string = tags.input_tags.categorical = encodes
        return tags

    @contextmanager
    def _fitting(self) -> Iterator[None]:
        """Compute with PyTorch's default settings, and restore all attributes if the block raises an exception."""
        before = self.__dict__.copy()
        try:
            with plain_computation():
                yield
        except BaseException:
            self.__dict__ = before
            raise

    # Training

    def _recipe(self) -> Recipe:
        """Return the parameters as a checked recipe. `_with_defaults` replaces costs and epochs that are None."""
        if self.on_interrupt not in ("keep", "raise"):
            raise ValueError(f"on_interrupt={self.on_interrupt!r}: expected 'keep' or 'raise'.")
        settings = {field.name: getattr(self, field.name) for field in fields(Recipe)}
        if self.epochs is None:
            settings["epochs"] = SMALL.epochs
        if self.costs is None:
            settings["costs"] = 1.0 if self._is_module else 0.0
        if self._is_module:
            check_module_settings(settings, _module_name(self.network))
            settings["network"] = ()
        return Recipe(**settings)

    def _with_defaults(self, recipe: Recipe, rows: Array, n_rows: int | None = None) -> Recipe:
        """Return the recipe, with costs and epochs that are None derived from the training rows, or a sample."""
        derived: dict[str, Any] = {}
        if self.costs is None and not self._is_module:
            derived["costs"] = default_costs(recipe.network, rows, recipe.task)
        if self.epochs is None:
            derived["epochs"] = default_epochs(rows, recipe.batch_size, is_module=self._is_module, n_rows=n_rows)
        return replace(recipe, **derived) if derived else recipe

    def _check_training_rows(
        self, X: ArrayLike | RowSource, recipe: Recipe, sample_weight: ArrayLike | None
    ) -> AnyRows:
        """Return X as float32 ``(n, *input_shape_)``, and set `input_shape_` and `encoder_`."""
        X = to_numpy(X)
        reset = self._earlier_members() is None
        if reset:
            self.encoder_: ColumnEncoder | None = None
            auto = self.preprocess == "auto" and not self._is_module
            auto = auto and not isinstance(X, RowSource) and not is_large_memmap(X)
            if self.preprocess == "columns" or (auto and (self.columns or needs_encoding(X))):
                self._fit_encoder(X, sample_weight)
        rows = self._as_rows(X, reset=reset)
        if not self._is_module and (rows.ndim > 2 or recipe.takes_maps):
            rows = as_images(rows)
            warn_channels_last(rows, recipe.takes_maps, recipe.preprocess, stacklevel=3)
        if recipe.preprocess == "whiten" and rows.ndim == 2:
            warnings.warn(
                "preprocess='whiten' is for images: it gives every row the same mean and contrast over its columns, "
                "whatever these are. For a table use preprocess='standardize'; give images in the shape (n, channels, "
                "height, width).",
                UnusualSettingWarning,
                stacklevel=3,
            )
        self.input_shape_ = rows.shape[1:]
        return rows

    def _as_rows(self, X: ArrayLike | RowSource, *, reset: bool) -> AnyRows:
        """Return X as finite float32 ``(n, ...)``, or as a source of such rows; `reset` as for `validate_data`."""
        X = to_numpy(X)
        if self.encoder_ is not None:
            described = as_table(X)
            validate_data(self, described, reset=reset, skip_check_array=True)
            return self.encoder_(described)
        if not isinstance(X, RowSource) and not is_large_memmap(X):
            rows = self._as_floats(X, reset=reset)
            return SparseRows(rows) if issparse(rows) else rows
        source = X if isinstance(X, RowSource) else ArrayRows(X)
        table: Any = source.reshape(len(source), -1)
        if source.feature_names:
            import pandas as pd

            table = pd.DataFrame(columns=list(source.feature_names))
        validate_data(self, table, reset=reset, skip_check_array=True)
        return source

    def _as_floats(self, X: ArrayLike | RowSource, *, reset: bool) -> Array:
        """Return X as finite float32 ``(n, ...)``, sparse if it is; `reset` as for `validate_data`."""
        try:
            with np.errstate(over="ignore", invalid="ignore"):  # check_array raises if values are infinite
                rows: Array = check_array(
                    X,
                    dtype=np.float32,
                    order="C",
                    accept_sparse="csr",
                    allow_nd=True,
                    ensure_min_samples=2 if reset else 1,
                    estimator=self,
                    input_name="X",
                )
        except (TypeError, ValueError) as error:
            if hasattr(X, "select_dtypes"):
                columns = X.select_dtypes(exclude=["number", "bool", "boolean"]).columns.tolist()
                if columns:
                    error.add_note(
                        f"Columns that are not numbers or booleans: {columns}. Encode them with preprocess='columns'."
                    )
            raise
        table = X if rows.ndim == 2 else rows.reshape(len(rows), -1)
        validate_data(self, table, reset=reset, skip_check_array=True)
        return rows

    def _fit_encoder(self, X: Any, sample_weight: ArrayLike | None) -> None:
        """Fit the encoding of a table's columns to the rows of positive weight."""
        table = as_table(X)
        if sample_weight is not None:
            table = table[check_sample_weight(sample_weight, len(table)) > 0]
        if len(table) < 2:
            raise ValueError(f"Found {len(table)} sample(s) of positive weight; a minimum of 2 is required.")
        self.encoder_ = ColumnEncoder.fit(table, self.columns)
        left_out = describe_left_out(self.encoder_.columns)
        if left_out:
            warnings.warn(
                f"Columns are left out: {left_out}. Say in the parameter columns what they hold, or 'ignored'.",
                UserWarning,
                stacklevel=4,
            )

    def _select_rows(
        self, n_rows: int, sample_weight: ArrayLike | None, splits: Sequence[Split] | None
    ) -> tuple[Array | slice, Array | None]:
        """Return the indices of the rows to train on, those of positive weight, and their weights."""
        if sample_weight is None:
            return slice(None), None
        if splits is not None:  # splits are row indices, which must not shift
            raise ValueError("sample_weight and splits cannot be combined. Give one of the two.")
        weights = check_sample_weight(to_numpy(sample_weight), n_rows)
        positive = np.flatnonzero(weights)
        if len(positive) < 2:
            raise ValueError(
                f"sample_weight is zero for all but {len(positive)} of {n_rows} rows, and these are not used. Give at "
                "least two rows a positive weight."
            )
        return positive, weights[positive]

    def _prepare_fit(
        self,
        recipe: Recipe,
        rows: AnyRows,
        targets: Array,
        weights: Array | None,
        splits: Sequence[Split] | None,
        seeds: Sequence[int],
        callbacks: Sequence[Callback],
        classes: Array | None = None,
    ) -> tuple[Recipe, Build, Dataset, Sequence[Split]]:
        """Fit the preprocessing; return the complete recipe, the builder of members, the data set and the splits."""
        if recipe.preprocess == "auto":
            recipe = replace(recipe, preprocess=self._choose_preprocess(rows))
        if self._earlier_members() is not None:
            require_unchanged("n_members", len(self.ladders_), self.n_members)
            require_unchanged("network", self.recipe_.network, recipe.network)
            require_unchanged("preprocess", self.recipe_.preprocess, recipe.preprocess)
        if recipe.preprocess == "whiten":
            for callback in callbacks:
                callback(Progress(0, 0, [], f"whitening {len(rows)} images"))
        rows = self._fit_preparation(rows, recipe)
        some = _some(rows)
        # The scale is checked per column, and per channel of images. A module may take rows of any form.
        if self.encoder_ is None:
            scaled = some if self._is_module else as_columns(some.reshape(len(some), *self.input_shape_))
            check_scale(scaled, self._value_names(), stacklevel=4)
        dataset = Dataset(rows, targets, classes=classes)
        labeled = dataset.labeled
        if splits is None and recipe.early_stopping:
            splits = self._hold_out(dataset, seeds)
        elif splits is None:
            splits = [Split(np.flatnonzero(labeled), np.arange(len(rows)), np.empty(0, np.int64))] * self.n_members
        elif not all(labeled[split.labeled].all() and labeled[split.validation].all() for split in splits):
            raise ValueError("splits contain labeled or validation rows that have no label in y. Leave these rows out.")
        trained = splits[0].unlabeled
        warn_few_rows(len(trained), recipe.batch_size, stacklevel=3)
        if isinstance(rows, np.ndarray) and len(trained) < len(rows):
            some = rows[spread_sample(trained, _sample_size(rows)) if rows.nbytes > MAX_COPIED_BYTES else trained]
        recipe = self._with_defaults(recipe, some, len(trained))
        few = some[:: 1 + len(some) // MAX_COMPARED_ROWS]
        for message in unusual_settings(recipe, float(few.std(dtype=np.float64))):
            warnings.warn(message, UnusualSettingWarning, stacklevel=3)
        build: Build = Recipe.build
        if isinstance(self.network, nn.Module):
            build = partial(build_gamma, self.network, rows[:2])
        if weights is not None:
            dataset = replace(dataset, weights=weights.astype(np.float32))
            if classes is not None and np.ptp(weights[labeled]) > 0:
                totals = np.bincount(targets[labeled], weights[labeled])
                build = partial(build_with_bias, build, torch.from_numpy(np.log(totals / totals.mean())))
        return recipe, build, dataset, splits

    def prepare(self, X: ArrayLike | RowSource, targets: Array, classes: Array | None = None) -> tuple[Recipe, Dataset]:
        """Return the complete recipe and the data set that `fit` would train with.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features) or (n_samples, [channels,] height, width)
            Rows as for `fit`.
        targets : ndarray of shape (n_samples,)
            Class codes, -1 where unlabeled; or values, NaN where unlabeled.
        classes : ndarray, optional
            Name of each class; None for a regression.

        Returns
        -------
        recipe : Recipe
            With the defaults that follow from the rows.
        dataset : Dataset
            The rows as the network takes them.

        Examples
        --------
        >>> from tikas import LadderClassifier
        >>> targets, classes = np.array([0, -1, -1, 1]), np.array(["low", "high"])
        >>> X = [[0.0], [0.2], [0.8], [1.0]]
        >>> recipe, dataset = LadderClassifier((4,), batch_size=4).prepare(X, targets, classes)
        >>> recipe.network, len(dataset)
        ((4,), 4)
        """
        recipe = self._recipe()
        rows = self._check_training_rows(X, recipe, None)
        recipe, _, dataset, _ = self._prepare_fit(recipe, rows, targets, None, None, self._seeds(None), [], classes)
        return recipe, dataset

    def _hold_out(self, dataset: Dataset, seeds: Sequence[int]) -> list[Split]:
        """Return for each member a split that holds out `validation_fraction` of the labeled rows."""
        check_scalar(
            self.validation_fraction, "validation_fraction", Real, min_val=0, max_val=1, include_boundaries="neither"
        )
        codes = dataset.targets if dataset.classes is not None else dataset.labeled.astype(np.int64) - 1
        held_out = ceil(self.validation_fraction * int(dataset.labeled.sum()))
        return [split(codes, None, validation=held_out, seed=seed, classes=dataset.classes) for seed in seeds]

    def _trainer(
        self, recipe: Recipe, build: Build, checkpointer: Checkpointer | None, callbacks: Sequence[Callback]
    ) -> Trainer:
        """Return the trainer, which keeps an interrupted training unless that might be scored as a complete one."""
        keep = self.on_interrupt == "keep" and not self._is_clone
        return Trainer(recipe, self.device, callbacks, build, checkpointer, keep_interrupted=keep)

    def _choose_preprocess(self, rows: AnyRows) -> Preprocess:
        """Return what ``preprocess="auto"`` means for rows ``(n, *input_shape_)``."""
        if self._earlier_members() is not None:
            return self.recipe_.preprocess
        if self._is_module:
            return "none"
        if self.encoder_ is not None:
            return "columns"
        with np.errstate(over="ignore", invalid="ignore"):  # values of a source are checked when all are read
            return choose_scaling(as_columns(_some(rows)), images=rows.ndim > 2)

    def _value_names(self) -> Sequence[str] | None:
        """Return the names of the values of a row as the members take it, if they have names."""
        if self.encoder_ is not None:
            return self.encoder_.names
        return getattr(self, "feature_names_in_", None)

    def _fit_preparation(self, rows: AnyRows, recipe: Recipe) -> AnyRows:
        """Set `preparation_` and `input_range_`, and return the rows as the members take them."""
        flat = not self._is_module and not recipe.takes_maps
        if isinstance(rows, RowSource):
            prepared = self._fit_preparation_of_source(rows, recipe)
            return prepared.reshape(len(prepared), -1) if flat else prepared
        earlier_range = None
        if self._earlier_members() is not None:
            earlier_range = self.input_range_
        elif recipe.preprocess not in TRANSFORMS:
            self.preparation_ = None
        else:
            transform = TRANSFORMS[recipe.preprocess]
            self.preparation_ = transform.fit(as_tensor(rows), pick_device(self.device)).to("cpu")
        if self.preparation_ is not None:
            rows = self.preparation_(as_tensor(rows)).numpy()
        self.input_range_: tuple[float, float] | None = value_range(rows, recipe.preprocess, earlier_range)
        return rows.reshape(len(rows), -1) if flat else rows

    def _fit_preparation_of_source(self, rows: RowSource, recipe: Recipe) -> RowSource:
        """Do the same for rows that are not in memory, in one pass over them, which also checks their values."""
        noted = NotedRange(self._chunks_with_progress(rows, "reading"), rows.feature_names)
        earlier_range = None if self._earlier_members() is None else self.input_range_
        if self._earlier_members() is None and recipe.preprocess != "none":
            transform = TRANSFORMS[recipe.preprocess]
            self.preparation_ = transform.fit(noted, pick_device(self.device)).to("cpu")
        else:
            for _ in noted:
                pass
        if self._earlier_members() is None and recipe.preprocess == "none":
            self.preparation_ = None
        bounds, preparation = noted.bounds(), self.preparation_
        if preparation is None:
            self.input_range_ = value_range(bounds, recipe.preprocess, earlier_range)
            return rows
        self.input_range_ = value_range(preparation(torch.from_numpy(bounds)).numpy(), recipe.preprocess, earlier_range)
        return RowView(rows, transform=lambda values: preparation(torch.from_numpy(values)).numpy())

    def _chunks_with_progress(
        self, rows: AnyRows, title: str, chosen: NDArray[np.int64] | None = None, values: int = CHUNK_VALUES
    ) -> Iterator[Array]:
        """Yield rows in chunks; with `verbose`, draw a progress bar for those of a source."""
        shown = self.verbose and isinstance(rows, RowSource)
        with row_bar(title, len(rows) if chosen is None else len(chosen), shown=shown) as advance:
            for chunk in chunks(rows, chosen, values):
                yield chunk
                advance(len(chunk))

    def _set_result(self, result: TrainingResult, recipe: Recipe, seeds: list[int]) -> None:
        """Set the fitted attributes, and warn about members that diverged and about an interruption."""
        earlier, earlier_history = self._start()
        if earlier is not None and result.failed:
            raise TrainingDivergedError(result.failed)
        if result.failed:
            failed = ", ".join(str(seeds[index]) for index in result.failed)
            warnings.warn(
                f"{len(result.failed)} of {self.n_members} members diverged (seed {failed}) and are left out. The "
                f"first: {next(iter(result.failed.values()))}",
                UserWarning,
                stacklevel=3,
            )
        if earlier is None:
            members, seeds, history = result.members, result.seeds, []
            numbers: Sequence[int] = range(len(members))
        else:  # members not trained again before an interruption stay unchanged
            members, history = list(earlier), list(earlier_history)
            numbers = result.indices
        epochs = _epochs_per_member(history)
        for number, member, lines in zip(numbers, result.members, result.histories, strict=True):
            members[number] = member
            history += [{"member": number, **line, "epoch": epochs[number] + line["epoch"]} for line in lines]
        if result.interrupted:
            how = f" with n_members={len(members)} and warm_start=True" if self.checkpoint is None else ""
            warnings.warn(
                f"Training was interrupted after {len(result.histories[-1])} of {recipe.epochs} epochs; "
                f"{len(result.members)} of {self.n_members} members were trained. To continue, call fit again{how}.",
                UserWarning,
                stacklevel=3,
            )
            self._interrupted_start = earlier, earlier_history
        self._set_fitted(recipe, members, seeds, history, interrupted=result.interrupted)

    def _summary(self, dataset: Dataset, split: Split, started: float) -> TrainingSummary:
        """Return what a fit that began at `started` learned from and where; `split` is the first member's."""
        counts = ()
        if dataset.classes is not None:
            labels = dataset.targets[split.labeled]
            counts = tuple(np.bincount(labels, minlength=len(dataset.classes)).tolist())
        return TrainingSummary(
            rows=len(split.unlabeled),
            labeled=len(split.labeled),
            validation=len(split.validation),
            class_counts=counts,
            seconds=time.perf_counter() - started,
            hardware=hardware(pick_device(self.device)),
            versions=versions(),
        )

    def _start(self) -> tuple[list[Model] | None, list[dict[str, Any]]]:
        """Return the fitted members that training continues from, if it does, and their history."""
        if not self.warm_start or not hasattr(self, "ladders_"):
            return None, []
        if self.interrupted_ and self.checkpoint is not None and hasattr(self, "_interrupted_start"):
            return self._interrupted_start  # the snapshots hold what was trained after it
        return self.ladders_, self.history_

    def _earlier_members(self) -> list[Model] | None:
        """Return the fitted members from which training continues, or None without a warm start."""
        return self._start()[0]

    def _checkpointer(self) -> Checkpointer | None:
        """Return the checkpointer, or None if no folder for snapshots was given."""
        if self.checkpoint is None or isinstance(self.checkpoint, Checkpointer):
            return self.checkpoint
        check_scalar(self.checkpoint_every, "checkpoint_every", Real, min_val=0)
        variant = weights_digest(self.network) if isinstance(self.network, nn.Module) else ""
        return Checkpointer(self.checkpoint, seconds=self.checkpoint_every, variant=variant)

    def _delete_snapshots(self, checkpointer: Checkpointer | None) -> None:
        """Delete the snapshots, unless the fit was interrupted; those of a given Checkpointer are its owner's."""
        if checkpointer is not None and checkpointer is not self.checkpoint and not self.interrupted_:
            checkpointer.delete(range(self.n_members))

    def _seeds(self, checkpointer: Checkpointer | None) -> list[int]:
        """Return the seed of each member; without a random state, those of the fit that is resumed."""
        check_scalar(self.n_members, "n_members", Integral, min_val=1)
        if isinstance(self.random_state, Integral):
            return [int(self.random_state) + member for member in range(self.n_members)]
        drawn = check_random_state(self.random_state).randint(2**31 - 1, size=self.n_members)
        saved = checkpointer.seeds() if self.random_state is None and checkpointer is not None else []
        seeds = [*saved, *map(int, drawn)][: self.n_members]
        with train_together(pick_device(self.device)) as world:  # each of several processes has drawn others
            return list(world.first(seeds))

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
        self.preprocess_ = recipe.preprocess
        self.ladders_ = list(members)
        self.ladder_ = members[0]
        self.seeds_ = list(seeds)
        self.history_ = history
        self.n_iter_ = max(_epochs_per_member(history).values(), default=0)
        self.interrupted_ = interrupted

    # Prediction

    def _predict(self, X: ArrayLike | RowSource, kind: Prediction) -> Array:
        """Check X and return the mean prediction of the members."""
        check_is_fitted(self)
        with plain_computation():
            rows = as_shaped(self._as_rows(X, reset=False), self.input_shape_)
            if self.input_range_ is not None:
                evenly = getattr(rows, "block_edges", None) is None  # else all blocks would be read
                compared = rows[:: 1 + len(rows) // MAX_COMPARED_ROWS] if evenly else rows[:MAX_COMPARED_ROWS]
                some = self._prepare(as_tensor(compared))
                warn_other_scale(
                    some.reshape(len(some), *self.input_shape_).numpy(),
                    self.input_range_,
                    self._value_names(),
                    standardized=self.preparation_ is not None or self.encoder_ is not None,
                    stacklevel=3,
                )
            return np.concatenate(list(self._predict_chunks(rows, kind)))

    @torch.no_grad()
    def _predict_chunks(
        self, rows: AnyRows, kind: Prediction, chosen: NDArray[np.int64] | None = None
    ) -> Iterator[Array]:
        """Yield the mean of the members' outputs, top latents or class probabilities, or its log, chunk by chunk.

        Dense ladders predict in double precision: the last digits of a float32 matrix product depend on its number of
        rows, and the prediction of a row must not depend on the other rows. Convolutions would take several times as
        long in double precision, and a module may not support it; these predict in float32.
        """
        first = self.ladder_
        dense = first.packable and all(len(shape) == 1 for shape in first.shapes)
        parameters = len(self.ladders_) * sum(parameter.numel() for parameter in first.parameters())
        count = len(rows) if chosen is None else len(chosen)
        products = count * parameters
        device = _prediction_device(products, self.device, dense)
        dtype = torch.float64 if dense else torch.float32
        copies = [_encoder_copy(member).to(device, dtype) for member in self.ladders_]
        size = min(MAX_CHUNK_ROWS if dense else MAX_CHUNK_IMAGES, MAX_CHUNK_VALUES // max(map(prod, first.shapes)))
        with full_precision(), single_thread(dense and products < SECOND_THREAD_FROM):
            values = max(1, size) * prod(rows.shape[1:])
            for chunk in self._chunks_with_progress(rows, "predicting", chosen, values):
                if isinstance(rows, RowSource):
                    assert_all_finite(chunk, input_name="X")
                prepared = self._prepare(as_tensor(chunk)).to(device, dtype)
                predictions = []
                for copy in copies:
                    latent, output = copy.encode(prepared)
                    predictions.append((latent if kind == "latents" else output).double())
                stacked = torch.stack(predictions)
                if kind == "log_probabilities":
                    mean = stacked.log_softmax(-1).logsumexp(0) - log(len(copies))
                else:
                    mean = (stacked.softmax(-1) if kind == "probabilities" else stacked).mean(0)
                yield mean.cpu().numpy()

    def _prepare(self, rows: Tensor) -> Tensor:
        """Return rows of shape `input_shape_` as the fitted members take them."""
        shape = self.ladder_.shapes[0]
        if self.preparation_ is not None:
            rows = self.preparation_(rows.double() if len(shape) == 1 else rows)
        return rows.reshape(len(rows), *shape)

    def transform(self, X: ArrayLike | RowSource) -> Array:
        """Return the normalized activations of the output layer, before its nonlinearity, averaged over the members.

        Parameters
        ----------
        X : array-like, sparse matrix or RowSource, (n_samples, n_features) or (n_samples, [channels,] height, width)
            Rows with the same scale as those of `fit`.

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
        return like(self._predict(X, "latents"), X)

    @property
    def _n_features_out(self) -> int:
        """The number of columns of `transform`, for which scikit-learn generates names."""
        return int(self.ladder_.shapes[-1][0])

    def as_supervised(self, X_unlabeled: ArrayLike) -> SupervisedEstimator:
        """Return an estimator that holds unlabeled rows and is fitted on labeled rows alone.

        scikit-learn's meta-estimators take -1 for a class of its own; with this they need no -1. Around a pipeline use
        `tikas.as_supervised`.

        Parameters
        ----------
        X_unlabeled : array-like of shape (n_samples, n_features) or (n_samples, [channels,] height, width)
            Rows without labels, like those that `fit` is given.

        Returns
        -------
        SupervisedEstimator
            Its parameters are ``estimator``, this one's as ``estimator__noise`` and so on, and ``X_unlabeled``.

        Examples
        --------
        >>> from sklearn.model_selection import GridSearchCV
        >>> from tikas import LadderClassifier
        >>> supervised = LadderClassifier((8,), epochs=2, batch_size=20).as_supervised([[0.2], [0.8]] * 10)
        >>> search = GridSearchCV(supervised, {"estimator__noise": [0.1, 0.3]}, cv=2)
        >>> sorted(search.fit([[0.0], [0.1], [0.9], [1.0]] * 5, [0, 0, 1, 1] * 5).best_params_)
        ['estimator__noise']
        """
        return SupervisedEstimator(self, X_unlabeled)

    def _repr_html_inner(self) -> str:
        """Return scikit-learn's diagram; of a fitted estimator also its error, its learning curve, and what it read."""
        diagram: str = super()._repr_html_inner()
        if not hasattr(self, "training_"):
            return diagram
        from tikas.report.representation import html_of_fit  # report imports the estimators

        return diagram + html_of_fit(self)

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        bundle: dict[str, str] = super()._repr_mimebundle_(**kwargs)
        if "text/html" in bundle:
            bundle["text/html"] = self._repr_html_inner()
        return bundle

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
            If the network is your own module, which a file without code cannot restore.

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

    def to_onnx(self, path: str | Path) -> Path:
        """Write the fitted model as an ONNX file, for onnxruntime in any language.

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
        ImportError
            If onnx or onnxscript is not installed, or torch is older than 2.9.
        OSError
            If the file cannot be written.
        ValueError
            If the network is a module of yours that PyTorch cannot export, or a column has the name of an output.

        Notes
        -----
        The graph contains the preprocessing. It takes any number of rows: float32 rows as one input ``X`` of the shape
        of those of `fit`; or, if that was a data frame, each column as an input of its name, ``(rows, 1)``, of float32.
        If columns are encoded (``preprocess_ == "columns"``), those that are used are inputs: numbers of float64, NaN
        for a gap; categories and booleans as strings; dates as int64 seconds since 1970 in UTC, -2**63 for a gap.

        The outputs are named as by skl2onnx: of a classifier ``label`` and ``probabilities`` ``(rows, classes)``, of a
        regressor ``variable`` ``(rows, 1)``. The metadata of the file are JSON: ``classes``, ``columns``, ``task``,
        ``recipe``, ``seeds`` and the version ``tikas``.

        Examples
        --------
        >>> import tempfile
        >>> from tikas import LadderClassifier
        >>> classifier = LadderClassifier((4,), epochs=1, batch_size=4).fit([[0.0], [0.2], [0.8], [1]], [0, -1, -1, 1])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     classifier.to_onnx(folder + "/model.onnx").name  # doctest: +SKIP
        'model.onnx'
        """
        from tikas.export import to_onnx  # export imports the estimators

        return to_onnx(self, path)

    def to_torch_export(self, path: str | Path) -> Path:
        """Write the fitted model as a file of `torch.export`, which PyTorch reads without tikas.

        ``torch.export.load(path).module()`` is a function of float32 rows, of the shape of those of `fit`; or, if that
        was a data frame, of a dict of columns, as `to_onnx` describes them, but categories as their positions in
        ``encoder_.columns[...].categories``, int64, -1 for others. It contains the preprocessing and returns the class
        probabilities, or the values of a regressor ``(rows, 1)``.

        Parameters
        ----------
        path : str or Path
            The file to write, by custom with the suffix ``.pt2``. An existing file is replaced once the new one is
            complete.

        Returns
        -------
        Path
            The path of the file.

        Raises
        ------
        OSError
            If the file cannot be written.
        ValueError
            If the network is a module of yours that PyTorch cannot export.

        Examples
        --------
        >>> import tempfile
        >>> from tikas import LadderClassifier
        >>> classifier = LadderClassifier((4,), epochs=1, batch_size=4).fit([[0.0], [0.2], [0.8], [1]], [0, -1, -1, 1])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     program = torch.export.load(classifier.to_torch_export(folder + "/model.pt2"))
        >>> program.module()(torch.tensor([[0.3], [0.5], [0.7]])).shape
        torch.Size([3, 2])
        """
        from tikas.export import to_torch_export

        return to_torch_export(self, path)


def _some(rows: AnyRows) -> Array:
    """Return an array as it is, and of a source a sample of its rows."""
    return rows if isinstance(rows, np.ndarray) else rows[spread_sample(np.arange(len(rows)), _sample_size(rows))]


def _sample_size(rows: AnyRows) -> int:
    """Return how many rows defaults are derived from, and the scale is checked on, where all are too many."""
    return max(MAX_COMPARED_ROWS, SAMPLE_VALUES // prod(rows.shape[1:]))


def is_large_memmap(X: object) -> TypeGuard[np.memmap[Any, Any]]:
    """Return whether X is an array of numbers on disk that is too large to be loaded."""
    if not isinstance(X, np.memmap) or X.ndim < 2 or X.dtype.kind not in "biuf":
        return False
    return X.size * np.dtype(np.float32).itemsize >= STREAM_FROM


def select(rows: AnyRows, selected: Array | slice) -> AnyRows:
    """Return the selected rows; those of a source are not read."""
    if isinstance(rows, np.ndarray):
        return rows[selected]
    return rows if isinstance(selected, slice) else RowView(rows, rows=selected)


def build_gamma(
    module: nn.Module, example: Array, recipe: Recipe, input_shape: Sequence[int], n_outputs: int, seed: int
) -> Model:
    """Build a member from a user module: the Γ-model around a float32 copy, which is run on `example`."""
    copy = deepcopy(module).cpu().float()
    try:
        with private_random_state(seed):  # lazy layers draw their weights now
            return gamma(copy, n_outputs, recipe.noise_per_level(), recipe.costs[0], example=torch.from_numpy(example))
    except (RuntimeError, IndexError) as error:  # raised by layers that take other shapes or dtypes
        raise ValueError(
            f"{_module_name(module)} does not take float32 rows of shape {tuple(input_shape)}: {error}. Give X in the "
            f"shape that the module takes, images as (n, channels, height, width).{channels_last_hint(input_shape)}"
        ) from error


def build_with_bias(
    build: Build, bias: Tensor, recipe: Recipe, input_shape: Sequence[int], n_outputs: int, seed: int
) -> Model:
    """Build a member whose output bias starts at `bias`: the logarithms of the classes' relative total weights.

    Without it, the scores of a class of very small weight would stay as the initial weights set them, because the
    class has almost no effect on the gradient.
    """
    model = build(recipe, input_shape, n_outputs, seed)
    assert model.output_bias is not None
    with torch.no_grad():
        model.output_bias.add_(bias)
    return model


def require_unchanged(name: str, before: object, now: object) -> None:
    """Raise ValueError if a setting that must not change in a warm start has changed."""
    if before != now:
        raise ValueError(
            f"warm_start=True: the fitted model has {name}={before!r}, and now it is {now!r}. Keep it, or set "
            "warm_start=False."
        )


def _prediction_device(products: int, device: str | None, dense: bool) -> torch.device:
    """Return the given GPU, or the default one, if it exists and is faster; else the CPU.

    The model may have been trained on a machine with other devices. Dense ladders predict few rows faster on the CPU.
    """
    gpu = torch.device(device or "cuda")
    if gpu.type != "cuda" or (dense and products < MIN_GPU_PRODUCTS):
        return torch.device("cpu")
    # Asked last: until a process has used a GPU, torch loads the driver's library anew to count them.
    return gpu if (gpu.index or 0) < torch.cuda.device_count() else torch.device("cpu")


def _encoder_copy(member: Model) -> Model:
    """Copy a member without the parts that prediction does not use: denoisers and decoder operations."""
    unused = [part for rung in member.rungs for part in (rung.denoiser, rung.back)]
    return deepcopy(member, {id(part): None for part in unused if part is not None})


def _epochs_per_member(history: Sequence[dict[str, Any]]) -> Counter[int]:
    return Counter(line["member"] for line in history)


def _module_name(module: Any) -> str:
    return f"network={type(module).__name__}(…)"
