"""Where to train and measure: on the device that was asked for, if it is there, whatever the defaults of torch are."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from threading import Lock
from typing import Generic, TypeVar, cast

import torch

Setting = TypeVar("Setting")


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
        torch.zeros(1, device=device).item()  # 'meta' makes tensors, and computes nothing
    except (AssertionError, NotImplementedError, RuntimeError, TypeError) as error:
        raise ValueError(
            f"device={asked!r}: torch has no such device. Give 'cpu', or 'cuda' where there is a GPU, or leave it out."
        ) from error
    return device


class PutBack(Generic[Setting]):
    """A setting of the whole process that is left as it was found, whoever sets it inside.

    Threads may overlap in any order: the last one to leave puts back what the first one had found, which all are told.
    Until then the setting is that of the one that came last.

    Parameters
    ----------
    read, write
        How to look the setting up, and how to set it.

    Examples
    --------
    >>> numbers = [1]
    >>> with PutBack(lambda: numbers[-1], numbers.append)() as found:
    ...     numbers.append(2)
    >>> numbers[-1], found
    (1, 1)
    """

    def __init__(self, read: Callable[[], Setting], write: Callable[[Setting], object]) -> None:
        self._read, self._write = read, write
        self._lock, self._inside = Lock(), 0
        self._found: Setting | None = None

    @contextmanager
    def __call__(self) -> Iterator[Setting]:
        with self._lock:
            if not self._inside:
                self._found = self._read()
            self._inside += 1
            found = cast("Setting", self._found)
        try:
            yield found
        finally:
            with self._lock:
                self._inside -= 1
                if not self._inside:
                    self._write(found)


_default_type = PutBack(torch.get_default_dtype, torch.set_default_dtype)


@contextmanager
def single_precision() -> Iterator[None]:
    """New tensors of float32, whatever type somebody has made the default.

    Examples
    --------
    >>> with single_precision():
    ...     torch.zeros(1).dtype
    torch.float32
    """
    with _default_type():
        torch.set_default_dtype(torch.float32)
        yield


@contextmanager
def without_default_device() -> Iterator[None]:
    """New tensors on the CPU unless they name another place, whatever device somebody has made the default.

    Examples
    --------
    >>> with torch.device("meta"), without_default_device():
    ...     torch.zeros(1).device
    device(type='cpu')
    """
    with nullcontext() if torch.get_default_device().type == "cpu" else torch.device("cpu"):
        yield


@contextmanager
def without_autocast() -> Iterator[None]:
    """Products of the type of their factors, whatever autocast the caller is in.

    Autocast keeps the copies that it makes of weights until it is left: weights that learn inside would be used as they
    were at first. So nothing is kept here, of autocast inside this either.

    Examples
    --------
    >>> with torch.autocast("cpu", torch.bfloat16), without_autocast():
    ...     (torch.ones(2, 2) @ torch.ones(2, 2)).dtype
    torch.float32
    """
    with ExitStack() as contexts:
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                contexts.enter_context(torch.autocast(kind, enabled=False, cache_enabled=False))
        yield
