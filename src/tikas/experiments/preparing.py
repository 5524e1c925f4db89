"""The rows of a recipe as its network takes them: images or flat rows, prepared as the recipe says."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from tikas.data.images import as_columns, warn_of_channels_last
from tikas.data.kinds import check_there_is, kind_of
from tikas.data.preprocess import check_scale
from tikas.experiments.rows import Rows, load_images
from tikas.training.recipe import Preprocess, Recipe


def rows_for(
    recipe: Recipe,
    data_dir: Path | None = None,
    device: str | None = None,
    target: str | None = None,
    ignore: Sequence[str] = (),
) -> Rows:
    """Load what a recipe names: a data set, or one's own folder of images or table.

    Whitening or standardisation is fitted on the training rows alone, on a GPU if there is one, and applied to both
    sets. The rows of the data set asked for last are kept, for recipes that follow each other.

    Parameters
    ----------
    recipe
        Says which rows, and in which form.
    data_dir
        Where the files of a data set are.
    device
        Where that is fitted.
    target
        The column of a table that holds the labels.
    ignore
        Columns of a table that are not looked at.

    Warns
    -----
    ScaleWarning
        Where one's own rows are not of about unit size.
    UserWarning
        Where one's own images may have their channels last.

    Examples
    --------
    >>> rows_for(Recipe(data="digits", network=(100,))).train_x.shape
    (1297, 64)
    >>> rows_for(Recipe(data="digits", network=("conv 8 3",))).train_x.shape
    (1297, 1, 8, 8)
    """
    check_there_is(recipe.data)
    if recipe.task == "regression" and kind_of(recipe.data) != "table":
        raise ValueError(
            f"task='regression' learns a column of numbers, and {recipe.data} has classes. Give a table and its "
            "column, such as --data my.csv --target price."
        )
    if target is not None and kind_of(recipe.data) != "table":
        raise ValueError(
            f"--target {target} is a column of a table, and {recipe.data} has classes of its own: leave --target out."
        )
    if ignore and kind_of(recipe.data) != "table":
        raise ValueError(f"--ignore {ignore[0]} is a column of a table, and {recipe.data} is none: leave --ignore out.")
    if kind_of(recipe.data) == "data set":
        return _of_data_set(recipe.data, recipe.preprocess, recipe.takes_maps, data_dir, device)
    rows = load_images(recipe.data, data_dir, target, recipe.task, ignore)
    if recipe.takes_maps and rows.train_x.ndim == 2:
        raise ValueError(
            f"network={recipe.network!r} takes images, and {recipe.data} has rows of {rows.train_x.shape[1]} columns. "
            "Give a folder of images, or an array file (n, channels, height, width), or a network of dense rungs."
        )
    if recipe.preprocess == "whiten" and rows.train_x.ndim == 2:
        raise ValueError(
            f"preprocess='whiten' is for images, and {recipe.data} has rows of {rows.train_x.shape[1]} columns. Bring "
            "columns to one scale with 'standardize'."
        )
    warn_of_channels_last(rows.train_x, recipe.takes_maps, recipe.preprocess)
    rows = rows.prepared(recipe.preprocess, device)
    check_scale(as_columns(rows.train_x), rows.columns or None)
    return rows if recipe.takes_maps else rows.flat()


@lru_cache(maxsize=1)
def _of_data_set(data: str, preprocess: Preprocess, images: bool, data_dir: Path | None, device: str | None) -> Rows:
    rows = load_images(data, data_dir).prepared(preprocess, device)
    return rows if images else rows.flat()
