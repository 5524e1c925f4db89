"""Where to train and measure, and how precisely: the device that was asked for, once it is known to be there."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


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
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            yield
    finally:
        torch.set_float32_matmul_precision(precision)
