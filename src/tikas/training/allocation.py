"""Memory that one update frees and the next one takes: kept by the C library meanwhile, not handed back and forth."""

import ctypes
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import torch

from tikas.training.devices import PutBack


class Thresholds(NamedTuple):
    """From how many bytes on a block is mapped for itself, and free memory at the end of the heap is handed back."""

    mapped: int
    trimmed: int


KEEPING = Thresholds(2**30, 2**30)
ADAPTED = Thresholds(2**25, 2**26)
"""Where the library's own adapting to a program ends."""

MAPPED, TRIMMED = -3, -1
"""How `mallopt` knows the two."""
TUNED_BY = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")


@contextmanager
def freed_memory_kept(device: torch.device) -> Iterator[None]:
    """What is freed on a CPU inside is kept for what is allocated next; afterwards the system gets all that is free.

    Every update allocates latents and gradients, and frees them. The GNU C library hands blocks of that size back to
    the system at once, unless larger ones were freed before, and the next ones are cleared page by page when they are
    first written to. In a process that had freed nothing large that was a tenth of an update of the paper's network,
    and a quarter of one of Conv-Small (`benchmarks/allocation.py`).

    Other libraries are left alone, and so is this one where the environment tunes it. It does not tell what its
    thresholds are, so they are left where its own adapting would end. Blocks of over 64 MB are kept for the main thread
    alone.

    Examples
    --------
    >>> with freed_memory_kept(torch.device("cpu")):
    ...     latents = torch.zeros(1000, 1000)
    """
    if device.type != "cpu":
        yield
        return
    with _thresholds():
        _set(KEEPING)
        yield


def _set(thresholds: Thresholds) -> None:
    library = _library()
    if library is None:
        return
    if not library.mallopt(MAPPED, thresholds.mapped):
        library.mallopt(MAPPED, ADAPTED.mapped)  # the most that older versions take
    library.mallopt(TRIMMED, thresholds.trimmed)


def hand_back() -> None:
    """Give the system all that the library keeps of freed memory.

    Examples
    --------
    >>> latents = torch.zeros(1000, 1000)
    >>> del latents
    >>> hand_back()
    """
    library = _library()
    if library is not None:
        library.malloc_trim(0)


def _end_keeping(thresholds: Thresholds) -> None:
    _set(thresholds)
    hand_back()


@cache
def _library() -> Any:
    """The GNU C library, where it is this process's and as its makers set it."""
    if sys.platform != "linux" or platform.libc_ver()[0] != "glibc" or any(name in os.environ for name in TUNED_BY):
        return None
    return ctypes.CDLL(None)


_thresholds = PutBack(lambda: ADAPTED, _end_keeping)
