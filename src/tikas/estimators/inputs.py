"""The part of an estimator that X comes in through: checked, in the shape that was fitted on, prepared if asked for."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_array
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from tikas.data.images import as_columns, as_images, as_shaped, warn_of_channels_last
from tikas.data.preparations import PREPARATIONS, Preparation
from tikas.data.preprocess import MOST_COMPARED, range_to_keep, warn_of_other_scale
from tikas.model.ladder import Ladder
from tikas.training.devices import suitable_device
from tikas.training.networks import in_one_form, takes_maps
from tikas.training.recipe import Recipe

Array = NDArray[Any]

DATES = "Make numbers of dates and times, such as days since the first one, or leave them out."
REMEDIES = {
    "features as input": "Give the columns that it was fitted with, in their order.",
    "contains infinity": "Leave such rows out, or clip their values.",
    "string to float": "Encode text as numbers, for instance with scikit-learn's OneHotEncoder, or leave it out.",
    "element with a sequence": "Give rows of equal length, or images of equal size.",
    "Sparse data": "In a pipeline: OneHotEncoder(sparse_output=False), or ColumnTransformer(…, sparse_threshold=0).",
    "not be promoted": DATES,
    "float() argument": DATES,
}
"""What to do, where scikit-learn's own message says only what is wrong."""


class TakesRows(BaseEstimator):  # type: ignore[misc]
    """Rows ``(n, features)`` and images, in the form that the network takes.

    A dense network takes an image as the row of its pixels, a module whatever X is.
    """

    network: Any
    preprocess: str
    warm_start: bool
    device: str | None
    ladder_: Ladder
    recipe_: Recipe
    input_shape_: tuple[int, ...]
    preparation_: Preparation | None
    input_range_: tuple[float, float] | None = None

    @property
    def _takes_maps(self) -> bool:
        """Whether a network that is not a module of one's own works on images alone."""
        return takes_maps(in_one_form(self.network))

    def _check_training_rows(self, X: ArrayLike) -> Array:
        """X as ``(n, *input_shape_)``; the shape is taken from it."""
        rows = self._as_array(X, reset=True)
        if len(rows) < 2:
            raise ValueError(
                "Got n_samples = 1: a ladder normalises every batch with its own statistics, so it needs at least two "
                "rows, and some hundred unlabelled ones to be of use."
            )
        if not isinstance(self.network, nn.Module):
            if rows.ndim > 2:
                rows = as_images(rows)
                warn_of_channels_last(rows, self._takes_maps, self.preprocess, stacklevel=3)  # the line that calls fit
            elif self._takes_maps:
                raise ValueError(
                    f"network={self.network!r} takes images, and X has shape {rows.shape}; expected "
                    "(n, channels, height, width), or (n, height, width) of grey images. Reshape X, for example "
                    "X.reshape(-1, 1, 28, 28), or choose a network of dense rungs."
                )
        self.input_shape_ = rows.shape[1:]
        return rows

    def _prepare(self, rows: Array) -> Array:
        """Training rows as the members take them; whitening or standardisation is fitted to them."""
        self.preparation_ = self._fit_preparation(rows)
        if self.preparation_ is not None:
            rows = self.preparation_(torch.from_numpy(rows)).numpy()
        earlier = self.input_range_ if self.warm_start else None
        self.input_range_ = range_to_keep(rows, self.preprocess, earlier)
        shaped = isinstance(self.network, nn.Module) or self._takes_maps
        return rows if shaped else rows.reshape(len(rows), -1)

    def _fit_preparation(self, rows: Array) -> Preparation | None:
        """Ladders that go on keep what they began with."""
        preprocess = Recipe(preprocess=self.preprocess).preprocess  # type: ignore[arg-type]
        if self.warm_start and hasattr(self, "recipe_"):
            if preprocess != self.recipe_.preprocess:
                raise ValueError(
                    f"warm_start=True: the ladders to go on from have learnt with preprocess="
                    f"{self.recipe_.preprocess!r}, and now it is {preprocess!r}. Keep it as it was, or set "
                    "warm_start=False."
                )
            return self.preparation_
        kind = PREPARATIONS.get(preprocess)
        return None if kind is None else kind.fit(torch.from_numpy(rows), suitable_device(self.device)).to("cpu")

    def _columns(self, rows: Array) -> Array:
        """What has a scale of its own in prepared rows: columns, or the channels of images."""
        if isinstance(self.network, nn.Module):
            return rows
        return as_columns(rows.reshape(len(rows), *self.input_shape_))

    def _check_rows(self, X: ArrayLike) -> Array:
        """X as ``(n, *input_shape_)``, the shape that was fitted on."""
        check_is_fitted(self)
        shape = self.input_shape_
        try:
            return as_shaped(self._as_array(X, reset=False), shape)
        except ValueError:
            given = _shape(X)
            if len(shape) > 1 and shape in (given, (1, *given)):
                raise ValueError(
                    f"Got X of shape {given}, as one image has; expected (n, {', '.join(map(str, shape))}). Give "
                    "X[:1], not X[0], for the first of several."
                ) from None
            raise

    def _compare_scale(self, rows: Array) -> None:
        """Warn where rows to predict are of another scale than those that were fitted on, as far as that is known."""
        if self.input_range_ is None:
            return
        some = self._as_taken(torch.from_numpy(rows[:: 1 + len(rows) // MOST_COMPARED]))
        warn_of_other_scale(
            some.reshape(len(some), *self.input_shape_).numpy(),
            self.input_range_,
            getattr(self, "feature_names_in_", None),
            standardized=self.preparation_ is not None,
            stacklevel=4,  # the line that asks for a prediction
        )

    def _as_taken(self, rows: Tensor) -> Tensor:
        """Some of those rows as the fitted members take them."""
        shape = self.ladder_.shapes[0]
        if self.preparation_ is not None:
            images = rows.reshape(len(rows), *self.preparation_.mean.shape)
            rows = self.preparation_(images.double() if len(shape) == 1 else images)
        return rows.reshape(len(rows), *shape)

    def _as_array(self, X: ArrayLike, *, reset: bool) -> Array:
        """X as finite numbers in single precision, ``(n, features)`` or images."""
        try:
            with np.errstate(over="ignore"):  # what is too large for float32 becomes infinite, and that is reported
                if len(_shape(X)) > 2:
                    rows = check_array(X, dtype=np.float32, order="C", allow_nd=True, estimator=self, input_name="X")
                    if reset and not rows.size:
                        raise ValueError(f"Got X of shape {rows.shape}: its rows hold no values. Give rows with some.")
                    if reset:
                        validate_data(self, rows.reshape(len(rows), -1), reset=True, skip_check_array=True)
                else:
                    rows = validate_data(self, X, dtype=np.float32, order="C", reset=reset)
        except (TypeError, ValueError) as error:
            remedies = [remedy for sign, remedy in REMEDIES.items() if sign in str(error)]
            if not remedies:
                raise
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"{str(error).rstrip('.')}. {remedies[0]}") from None
        return np.require(rows, requirements="W")  # torch shares no memory that it may not write to

    def _take_shape(self, shape: tuple[int, ...]) -> None:
        """Be fitted on rows of this shape."""
        self.input_shape_ = shape
        self.n_features_in_ = prod(shape)


def _shape(X: ArrayLike) -> tuple[int, ...]:
    """Of an array-like; of what cannot be an array none, and scikit-learn says why."""
    try:
        return tuple(X.shape if hasattr(X, "shape") else np.asarray(X).shape)
    except ValueError:
        return ()
