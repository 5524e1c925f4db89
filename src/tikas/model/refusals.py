"""What to say of rows that a network of somebody else's making does not take."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from tikas.model.checks import channels_last


class RefusedRowsError(ValueError):
    """The network does not take rows of this shape; the cause is what torch says of it."""


@contextmanager
def explained(rows: Tensor, dtype: torch.dtype) -> Iterator[None]:
    """Say what to do about rows that a network of this type refuses.

    Not before it does: it may well take pixels as they come, or channels at the end, and turn them itself.

    Examples
    --------
    >>> rows = torch.zeros(2, 3, dtype=torch.uint8)
    >>> with explained(rows, torch.float32):
    ...     torch.nn.Linear(3, 1)(rows)
    Traceback (most recent call last):
    TypeError: Got rows of type torch.uint8, and this network computes in torch.float32: ... Give it x.float() / 255.
    """
    try:
        yield
    except RuntimeError as error:
        said = str(error).partition("\n")[0].rstrip(".")
        numbers = "indices" not in said  # as a table of embeddings asks for
        if numbers and rows.dtype != dtype and ("type" in said or "not implemented for" in said):
            remedy = "x.float() / 255" if rows.dtype == torch.uint8 else f"x.to({dtype})"
            raise TypeError(
                f"Got rows of type {rows.dtype}, and this network computes in {dtype}: {said}. Give it {remedy}."
            ) from error
        remedy = ""
        if channels_last(tuple(rows.shape[1:])) and "channel" in said:
            remedy = "Channels come first: turn the images with x.movedim(-1, -3)."
        elif f"input{[1, *rows.shape]} to have 1 channels" in said:  # all rows were taken for one image
            remedy = "Give grey images their channel, x.unsqueeze(1)."
        if remedy:
            raise RefusedRowsError(
                f"Got rows of shape {tuple(rows.shape)}, which this network does not take: {said}. {remedy}"
            ) from error
        raise
