"""Images as arrays: channels first, grey ones with a channel of their own, and rows brought to a known shape."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tikas.model.checks import channels_last

MOST_LOOKED_AT = 2000
LIKELY_CHANNELS = (1, 3, 4)
"""Of images as they mostly come: grey, colour, and colour with transparency."""
TURN = "Channels come first: turn the images with numpy.moveaxis(images, -1, 1)."
NARROW = "Maps that really are so narrow can lie on their side, numpy.swapaxes(images, 2, 3)."


def as_images(x: NDArray[Any]) -> NDArray[Any]:
    """Images ``(n, channels, height, width)``, of images that come so or, if they are grey, as ``(n, height, width)``.

    Raises
    ------
    ValueError
        If they have another number of dimensions, or have their channels last.

    Examples
    --------
    >>> import numpy as np
    >>> as_images(np.zeros((5, 28, 28))).shape
    (5, 1, 28, 28)
    >>> as_images(np.zeros((5, 32, 32, 3)))
    Traceback (most recent call last):
    ValueError: Got images of shape (5, 32, 32, 3); expected (5, 3, 32, 32). Channels come first: ...
    """
    images = x[:, None] if x.ndim == 3 else x
    if images.ndim != 4:
        raise ValueError(
            f"Got an array of shape {x.shape}; expected images, (n, channels, height, width), or if they are grey "
            f"(n, height, width)."
        )
    if channels_last(images.shape[1:]):
        n, height, width, channels = images.shape
        raise ValueError(f"Got images of shape {x.shape}; expected {(n, channels, height, width)}. {TURN} {NARROW}")
    return images


def warn_of_channels_last(images: NDArray[Any], takes_maps: bool, preprocess: str, stacklevel: int = 2) -> None:
    """Warn where images that `as_images` takes have the width of grey or colour channels behind two longer sides.

    Not where the order of values is all one, as it is to a dense network that takes them as they come.

    Examples
    --------
    >>> import numpy as np
    >>> with warnings.catch_warnings(record=True, action="always") as caught:
    ...     warn_of_channels_last(np.zeros((5, 8, 6, 3)), takes_maps=True, preprocess="none")
    >>> print(caught[0].message)
    Images of shape (5, 8, 6, 3) are read as (n, channels, height, width), maps 3 wide. If that is (n, height, width,
    channels), turn the images with numpy.moveaxis(images, -1, 1), to (5, 3, 8, 6). Maps that really are so narrow ...
    """
    if images.ndim != 4 or (preprocess == "none" and not takes_maps):
        return
    n, *sides, last = images.shape
    if last in LIKELY_CHANNELS and last < min(sides):
        warnings.warn(
            f"Images of shape {images.shape} are read as (n, channels, height, width), maps {last} wide. If that is "
            "(n, height, width, channels), turn the images with numpy.moveaxis(images, -1, 1), to "
            f"{(n, last, *sides)}. {NARROW}",
            UserWarning,
            stacklevel=stacklevel + 1,
        )


def as_shaped(x: NDArray[Any], shape: Sequence[int]) -> NDArray[Any]:
    """Rows ``(n, *shape)``, of rows that come so, or flat, or as grey images without their channel.

    Raises
    ------
    ValueError
        If they are of another shape; the message has both.

    Examples
    --------
    >>> import numpy as np
    >>> [as_shaped(np.zeros(given), (1, 8, 8)).shape for given in ((5, 1, 8, 8), (5, 8, 8), (5, 64))]
    [(5, 1, 8, 8), (5, 1, 8, 8), (5, 1, 8, 8)]
    """
    shape = tuple(shape)
    if x.shape[1:] in (shape, (prod(shape),)) or (shape[0] == 1 and x.shape[1:] == shape[1:]):
        return x.reshape(len(x), *shape)
    turned = len(shape) == 3 and x.shape[1:] == (*shape[1:], shape[0])
    raise ValueError(
        f"Got rows of shape {x.shape}; this model was fitted on {(len(x), *shape)}. "
        + (TURN if turned else "Give rows of that shape.")
    )


def as_columns(x: NDArray[Any]) -> NDArray[Any]:
    """What has a scale of its own, as columns: of images their channels, ``(positions, channels)``.

    Of many images some thousand are taken, from all over: what is asked of their scale needs no more.

    Examples
    --------
    >>> import numpy as np
    >>> as_columns(np.zeros((5, 3, 8, 8))).shape, as_columns(np.zeros((5, 64))).shape
    ((320, 3), (5, 64))
    """
    if x.ndim != 4:
        return x
    some = x[:: 1 + len(x) // MOST_LOOKED_AT]
    return np.moveaxis(some, 1, -1).reshape(-1, x.shape[1])
