"""The rows of a recipe as its network takes them: images or flat rows, whitened where the recipe says so."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from tikas.data import sources
from tikas.data.whitening import Whitening
from tikas.experiments.run import Rows
from tikas.model.specs import Dense
from tikas.training.recipe import Recipe


def rows_for(recipe: Recipe, data_dir: Path | None = None, device: str | None = None) -> Rows:
    """Load the data set that a recipe names. The rows asked for last are kept, for recipes that follow each other.

    Whitening is fitted on the training images alone, on a GPU if there is one, and applied to both sets.

    Examples
    --------
    >>> rows_for(Recipe(data="digits", network=(100,))).train_x.shape
    (1297, 64)
    >>> rows_for(Recipe(data="digits", network=("conv 8 3",))).train_x.shape
    (1297, 1, 8, 8)
    """
    images = not isinstance(recipe.rungs(outputs=1)[0], Dense)
    return _load(recipe.data, recipe.preprocess == "whiten", images, data_dir, device)


@lru_cache(maxsize=1)
def _load(data: str, whiten: bool, images: bool, data_dir: Path | None, device: str | None) -> Rows:
    dataset = sources.load(data, data_dir)
    train_x, test_x = dataset.train_x, dataset.test_x
    whitening = _fitted_whitening(train_x, device) if whiten else None
    if whitening is not None:
        train_x, test_x = (whitening(torch.from_numpy(x)).numpy() for x in (train_x, test_x))
        whitening = whitening.to("cpu")
    if not images:
        train_x, test_x = (x.reshape(len(x), -1) for x in (train_x, test_x))
    return Rows(train_x, dataset.train_y, np.array(dataset.classes), test_x, dataset.test_y, whitening=whitening)


def _fitted_whitening(images: NDArray[np.float32], device: str | None) -> Whitening:
    place = device or ("cuda" if torch.cuda.is_available() else "cpu")
    return Whitening.fit(torch.from_numpy(images), place)
