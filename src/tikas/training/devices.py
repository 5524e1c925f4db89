"""Where to train and measure, and how precisely: the device that was asked for, once it is known to be there."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

_BACKENDS: Any = torch.backends
_CONVOLUTIONS = (_BACKENDS.cudnn.conv, _BACKENDS.cudnn.rnn, _BACKENDS.mkldnn.conv)
_PLACES = (_BACKENDS.cuda.matmul, _BACKENDS.mkldnn.matmul, *_CONVOLUTIONS)
"""Where torch keeps a precision that can be set."""


def suitable_device(asked: str | torch.device | None = None) -> torch.device:
    """The device that was asked for; where none was, a GPU if there is one, else the CPU.

    Raises
    ------
    ValueError
        Where there is no such device.

    Examples
    --------
    >>> suitable_device("cpu")
    device(type='cpu')
    >>> suitable_device("abacus")
    Traceback (most recent call last):
    ValueError: device='abacus': torch has no such device. Give 'cpu', or 'cuda' where there is a GPU, or leave it out.
    """
    if asked is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(asked)
        torch.empty(0, device=device)
    except (AssertionError, NotImplementedError, RuntimeError, TypeError) as error:
        raise ValueError(
            f"device={asked!r}: torch has no such device. Give 'cpu', or 'cuda' where there is a GPU, or leave it out."
        ) from error
    return device


@contextmanager
def full_precision() -> Iterator[None]:
    """Products in whole single precision on a GPU too, whatever training made do with.

    Examples
    --------
    >>> with full_precision():
    ...     torch.get_float32_matmul_precision()
    'highest'
    """
    with precision_put_back():
        set_precision(tf32=False)
        yield


def set_precision(*, tf32: bool) -> None:
    """Make products and convolutions in TF32, or in whole single precision, wherever torch looks that up.

    Examples
    --------
    >>> with precision_put_back():
    ...     set_precision(tf32=True)
    ...     torch.backends.cuda.matmul.fp32_precision, torch.backends.cudnn.conv.fp32_precision
    ('tf32', 'tf32')
    """
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32
    for place in _CONVOLUTIONS:  # which may have a precision of their own, of which the line above says nothing
        place.fp32_precision = "tf32" if tf32 else "ieee"


@contextmanager
def precision_put_back() -> Iterator[None]:
    """Leave torch's precisions afterwards as they were before, by whichever of its two sets of names they were set.

    Where somebody has used the new names (``fp32_precision``) torch refuses to tell what the old ones say; then these
    are put back to what they are at first, and decide on nothing.

    Examples
    --------
    >>> before = torch.get_float32_matmul_precision()
    >>> with precision_put_back():
    ...     torch.set_float32_matmul_precision("medium")
    >>> torch.get_float32_matmul_precision() == before
    True
    """
    products, convolutions = "highest", True
    with suppress(RuntimeError):
        products = torch.get_float32_matmul_precision()
    with suppress(RuntimeError):
        convolutions = torch.backends.cudnn.allow_tf32
    precisions = [place.fp32_precision for place in _PLACES]
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(products)
        torch.backends.cudnn.allow_tf32 = convolutions
        for place, precision in zip(_PLACES, precisions, strict=True):
            place.fp32_precision = precision
