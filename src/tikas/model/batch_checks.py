"""What ladders and the Γ-model are called with, checked at the door of each call: rows, targets, weights, noise."""

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from tikas.model.layout import rows_dim
from tikas.model.names import Task

HALVES = (torch.bfloat16, torch.float16)


def check_tensor(rows: Any) -> None:
    """That rows are a tensor, as torch's layers ask for.

    Examples
    --------
    >>> check_tensor([[1.0, 2.0]])
    Traceback (most recent call last):
    TypeError: Got rows as list; expected a torch.Tensor. Make one with torch.as_tensor(rows, dtype=torch.float32).
    """
    if not isinstance(rows, Tensor):
        raise TypeError(
            f"Got rows as {type(rows).__name__}; expected a torch.Tensor. Make one with "
            "torch.as_tensor(rows, dtype=torch.float32)."
        )


def check_rows(x: Tensor, shape: tuple[int, ...], members: int = 0, dtype: torch.dtype | None = None) -> None:
    """Floating-point rows of the input's shape and, where they are not converted, of the ladder's own type.

    Rows for a fleet may have dimensions of its members in front of them, or be the same for all.

    Examples
    --------
    >>> check_rows(torch.zeros(100, 3, 32, 32), (3, 32, 32))
    >>> check_rows(torch.zeros(100, 32, 32, 3), (3, 32, 32))
    Traceback (most recent call last):
    ValueError: Got rows of shape (100, 32, 32, 3); this ladder takes (rows, 3, 32, 32). Channels come first: ...
    """
    check_tensor(x)
    if x.dim() - len(shape) - 1 not in (0, members) or tuple(x.shape[-len(shape) :]) != shape:
        last = len(shape) == 3 and x.dim() > 3 and tuple(x.shape[-3:]) == (*shape[1:], shape[0])
        raise ValueError(
            f"Got rows of shape {tuple(x.shape)}; this ladder takes (rows, {', '.join(map(str, shape))}). "
            + (
                "Channels come first: turn the images with x.movedim(-1, -3)."
                if last
                else "Reshape them, or build the ladder with their input_shape."
            )
        )
    if not x.is_floating_point():
        raise TypeError(
            f"Got rows of type {x.dtype}; expected floating-point numbers of about unit size. Make pixels such with "
            "x.float() / 255."
        )
    if dtype not in (None, x.dtype) and not torch.is_autocast_enabled(x.device.type):
        raise TypeError(
            f"Got rows of type {x.dtype}, and this ladder computes in {dtype}. Give it x.to({dtype})"
            + (f", or bring it to their type with ladder.to({x.dtype})." if x.dtype not in HALVES else ".")
        )


def check_precision(dtype: torch.dtype) -> None:
    """A type with enough digits for the statistics of a batch.

    Examples
    --------
    >>> check_precision(torch.bfloat16)
    Traceback (most recent call last):
    TypeError: This ladder is in torch.bfloat16, which has too few digits for the statistics of a batch. ...
    """
    if dtype in HALVES:
        raise TypeError(
            f"This ladder is in {dtype}, which has too few digits for the statistics of a batch. Train it in float32, "
            f"with ladder.float(), and inside torch.autocast if its products are to be in {dtype}."
        )


def check_some(x: Tensor) -> None:
    """Unlabelled rows for denoising costs.

    Examples
    --------
    >>> check_some(torch.zeros(0, 64))
    Traceback (most recent call last):
    ValueError: Got no unlabelled rows, of shape (0, 64), and denoising costs are means over them. ...
    """
    if x.numel() == 0:
        raise ValueError(
            f"Got no unlabelled rows, of shape {tuple(x.shape)}, and denoising costs are means over them. Give some, "
            "or build the model without such costs to learn from labels alone."
        )


def check_not_one(rows: int, kind: str = "") -> None:
    """Rows enough for statistics of their own: a single row has no deviation, and normalised it is zero.

    Examples
    --------
    >>> check_not_one(1, "labelled ")
    Traceback (most recent call last):
    ValueError: Got 1 labelled row; a batch is normalised with its own statistics, so give two rows or more. ...
    """
    if rows == 1:
        raise ValueError(
            f"Got 1 {kind}row; a batch is normalised with its own statistics, so give two rows or more. A DataLoader "
            "leaves a last batch of one out with drop_last=True."
        )


def check_calibration(x: Tensor, rows: int, chunk: int | None) -> None:
    """Rows to take statistics of, two at the least, and how many of them to look at together.

    An image alone has many positions on maps, but like any single row it has no deviation at the top.

    Examples
    --------
    >>> check_calibration(torch.zeros(0, 64), rows=0, chunk=100)
    Traceback (most recent call last):
    ValueError: Got rows of shape (0, 64): there are no rows to calibrate with; give training rows, the more the better.
    >>> check_calibration(torch.zeros(1, 64), rows=1, chunk=100)
    Traceback (most recent call last):
    ValueError: Got 1 row to calibrate with, of shape (1, 64), and a single row has no deviation. Give two training ...
    """
    if x.numel() == 0:
        raise ValueError(
            f"Got rows of shape {tuple(x.shape)}: there are no rows to calibrate with; give training rows, the more "
            "the better."
        )
    if rows == 1:
        raise ValueError(
            f"Got 1 row to calibrate with, of shape {tuple(x.shape)}, and a single row has no deviation. Give two "
            "training rows at the least, the more the better."
        )
    if chunk is not None and (isinstance(chunk, bool) or not isinstance(chunk, Integral) or chunk < 1):
        raise ValueError(f"chunk={chunk!r}: expected a positive whole number, how many rows to look at together.")


def check_targets(
    targets: Tensor | None,
    weights: Tensor | None,
    rows: torch.Size,
    task: Task,
    outputs: tuple[int, ...],
) -> None:
    """A class, or values, for each of the labelled rows, and a weight for each where there are weights.

    Examples
    --------
    >>> check_targets(torch.tensor([0, 2, 1]), None, torch.Size([3]), "classification", (3,))
    >>> check_targets(torch.zeros(3, 2), None, torch.Size([3]), "regression", (1,))
    Traceback (most recent call last):
    ValueError: Got targets of shape (3, 2); expected values of (3, 1).
    """
    for name, given in (("targets", targets), ("weights", weights)):
        if not (given is None or isinstance(given, Tensor)):
            kind = type(given).__name__
            raise TypeError(f"Got {name} as {kind}; expected a torch.Tensor. Make one with torch.as_tensor({name}).")
    if weights is not None and tuple(weights.shape) != tuple(rows):
        raise ValueError(
            f"Got weights of shape {tuple(weights.shape)}; expected one for each labelled row, {tuple(rows)}."
        )
    if targets is None:
        if rows[-1]:
            raise ValueError(f"Got {rows[-1]} labelled rows and no targets; give the target of each.")
        return
    if task == "classification":
        whole = not (targets.is_floating_point() or targets.is_complex())
        if tuple(targets.shape) != tuple(rows) or not whole:
            raise ValueError(
                f"Got targets of shape {tuple(targets.shape)} and type {targets.dtype}; expected the number of a "
                f"class for each labelled row, whole numbers of shape {tuple(rows)}."
            )
        if targets.device.type == "cpu" and not torch.compiler.is_compiling():  # elsewhere looking would mean waiting
            _check_classes(targets, *outputs)
    elif tuple(targets.shape) != (*rows, *outputs):
        raise ValueError(f"Got targets of shape {tuple(targets.shape)}; expected values of {(*rows, *outputs)}.")


def _check_classes(targets: Tensor, classes: int) -> None:
    wrong = targets[(targets < 0) | (targets >= classes)]
    if wrong.numel():
        raise ValueError(
            f"Got {wrong[0].item()} among the targets; expected classes from 0 to {classes - 1}. Leave rows without a "
            "label out of the labelled ones."
        )


def check_draws(noise: Any, dtype: torch.dtype, device: torch.device) -> None:
    """Several tensors, of the type that is computed in.

    Examples
    --------
    >>> check_draws(0.3, torch.float32, torch.device("cpu"))
    Traceback (most recent call last):
    TypeError: Got noise as float; expected several tensors, standard normal: their deviations are the model's own.
    """
    if not isinstance(noise, Sequence):
        raise TypeError(
            f"Got noise as {type(noise).__name__}; expected several tensors, standard normal: their deviations are the "
            "model's own."
        )
    strange = [draw for draw in noise if not isinstance(draw, Tensor) or draw.dtype != dtype]
    if strange and not (isinstance(strange[0], Tensor) and torch.is_autocast_enabled(device.type)):
        kind = strange[0].dtype if isinstance(strange[0], Tensor) else type(strange[0]).__name__
        raise TypeError(f"Got noise as {kind}; expected tensors of the type of the rows, {dtype}.")


def check_noise(noise: Sequence[Tensor], rows: int, shapes: Sequence[tuple[int, ...]], batch: Tensor) -> None:
    """One draw for each level, of the type of the batch that it is for, and for the same members.

    Examples
    --------
    >>> batch = torch.rand(8, 4)
    >>> check_noise([torch.zeros(8, 4), torch.zeros(8, 3)], rows=8, shapes=[(4,), (3,)], batch=batch)
    >>> check_noise([torch.zeros(8, 4)], rows=8, shapes=[(4,), (3,)], batch=batch)
    Traceback (most recent call last):
    ValueError: Got noise of shapes [(8, 4)]; expected one tensor for each level: [(8, 4), (8, 3)].
    """
    check_draws(noise, batch.dtype, batch.device)
    members = tuple(batch.shape[: rows_dim(shapes[0])])
    given, expected = [tuple(draw.shape) for draw in noise], [(*members, rows, *shape) for shape in shapes]
    if given != expected:
        raise ValueError(f"Got noise of shapes {given}; expected one tensor for each level: {expected}.")
