"""How precisely products are made: a setting of the whole process, which the threads of several GPUs share."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Condition
from typing import Any

import torch

_BACKENDS: Any = torch.backends
_CONVOLUTIONS = (_BACKENDS.cudnn.conv, _BACKENDS.cudnn.rnn, _BACKENDS.mkldnn.conv)
_PLACES = (_BACKENDS.cuda.matmul, _BACKENDS.mkldnn.matmul, *_CONVOLUTIONS)
"""Where torch keeps a precision that can be set."""


@contextmanager
def full_precision() -> Iterator[None]:
    """Products in whole single precision on a GPU too, whatever training made do with.

    Examples
    --------
    >>> with full_precision():
    ...     torch.get_float32_matmul_precision()
    'highest'
    """
    with precision(tf32=False):
        yield


@contextmanager
def precision(*, tf32: bool) -> Iterator[None]:
    """Products and convolutions in TF32 inside, or in whole single precision; afterwards as they were.

    The setting is the process's. Of threads that are inside at a time, as those of several GPUs, the strictest has its
    way: others may be slower meanwhile, and none is less exact than it has asked to be.

    Examples
    --------
    >>> with precision(tf32=True), full_precision(), precision(tf32=True):
    ...     torch.get_float32_matmul_precision()
    'highest'
    """
    with _asking:
        while not tf32 and _steady and all(_asked):  # who can do with less need not wait for it
            _asking.wait(timeout=1)  # Ctrl-C may have come between leaving and telling of it
        if not _found:
            _found.append(_read_precision())
        _asked.append(tf32)
        _settle()
    try:
        yield
    finally:
        with _asking:
            _asked.remove(tf32)
            _settle()


@contextmanager
def steady_precision() -> Iterator[None]:
    """Whatever the precision is, no thread changes it inside: one that asks for more waits, so none may do so in here.

    Torch compiles anew what it meets in another precision, and can compile nothing while a graph is captured.

    Examples
    --------
    >>> with precision(tf32=True), steady_precision(), precision(tf32=True):
    ...     torch.get_float32_matmul_precision()
    'high'
    """
    holder = object()
    try:
        with _asking:
            _steady.add(holder)
        yield
    finally:
        _steady.discard(holder)  # first of all: after Ctrl-C too, or others would wait for ever
        with _asking:
            _settle()
            _asking.notify_all()


def set_precision(*, tf32: bool) -> None:
    """Make products and convolutions in TF32, or in whole single precision, wherever torch looks that up.

    Examples
    --------
    >>> with full_precision():  # which puts back what was before
    ...     set_precision(tf32=True)
    ...     torch.backends.cuda.matmul.fp32_precision, torch.backends.cudnn.conv.fp32_precision
    ('tf32', 'tf32')
    """
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32
    for place in _CONVOLUTIONS:  # which may have a precision of their own, of which the line above says nothing
        place.fp32_precision = "tf32" if tf32 else "ieee"


def _read_precision() -> tuple[str, bool, list[str]]:
    """By both of torch's sets of names.

    Where somebody has used the new ones (``fp32_precision``) torch refuses to tell what the old ones say; then these
    are put back to what they are at first, and decide on nothing.
    """
    products, convolutions = "highest", True
    with suppress(RuntimeError):
        products = torch.get_float32_matmul_precision()
    with suppress(RuntimeError):
        convolutions = torch.backends.cudnn.allow_tf32
    return products, convolutions, [place.fp32_precision for place in _PLACES]


def _write_precision(setting: tuple[str, bool, list[str]]) -> None:
    products, convolutions, precisions = setting
    torch.set_float32_matmul_precision(products)
    torch.backends.cudnn.allow_tf32 = convolutions
    for place, precision in zip(_PLACES, precisions, strict=True):
        place.fp32_precision = precision


def _settle() -> None:
    """Set what all can do with that are inside, or put back what the first of them found, unless it is to stay."""
    if _steady:
        return
    if _asked:
        set_precision(tf32=all(_asked))
    elif _found:
        _write_precision(_found.pop())


_asking = Condition()
_asked: list[bool] = []
_found: list[tuple[str, bool, list[str]]] = []
"""What those inside `precision` have asked for, and the setting that the first of them found."""
_steady: set[object] = set()
"""Those inside `steady_precision`. The last to leave it settles what changed meanwhile."""
