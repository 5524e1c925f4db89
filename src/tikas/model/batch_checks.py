"""What ladders and the Γ-model are called with, checked at the door of each call: rows, targets, weights, noise."""

from collections.abc import Sequence
from numbers import Integral

import torch
from torch import Tensor

from tikas.model.names import Task


def check_rows(x: Tensor, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> None:
    """Rows of the input's shape, in numbers with a point and, where they are not converted, of the ladder's own type.

    Examples
    --------
    >>> check_rows(torch.zeros(100, 3, 32, 32), (3, 32, 32))
    >>> check_rows(torch.zeros(100, 32, 32, 3), (3, 32, 32))
    Traceback (most recent call last):
    ValueError: Got rows of shape (100, 32, 32, 3); this ladder takes (rows, 3, 32, 32). Channels come first: ...
    """
    if not isinstance(x, Tensor):
        raise TypeError(
            f"Got rows as {type(x).__name__}; expected a torch.Tensor. Make one with "
            "torch.as_tensor(rows, dtype=torch.float32)."
        )
    if x.dim() <= len(shape) or tuple(x.shape[-len(shape) :]) != shape:
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
            f"Got rows of type {x.dtype}, and this ladder computes in {dtype}. Give it x.to({dtype}), or bring it to "
            f"their type with ladder.to({x.dtype})."
        )


def check_some(x: Tensor) -> None:
    """Unlabelled rows for denoising costs, one at the least.

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


def check_calibration(x: Tensor, chunk: int | None) -> None:
    """Rows to take statistics of, one at the least, and how many of them to look at together.

    Examples
    --------
    >>> check_calibration(torch.zeros(0, 64), chunk=100)
    Traceback (most recent call last):
    ValueError: Got rows of shape (0, 64): there are no rows to calibrate with; give training rows, the more the better.
    """
    if x.numel() == 0:
        raise ValueError(
            f"Got rows of shape {tuple(x.shape)}: there are no rows to calibrate with; give training rows, the more "
            "the better."
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


def check_noise(noise: Sequence[Tensor], rows: int, shapes: Sequence[tuple[int, ...]]) -> None:
    """One draw for each level.

    Examples
    --------
    >>> check_noise([torch.zeros(8, 4), torch.zeros(8, 3)], rows=8, shapes=[(4,), (3,)])
    >>> check_noise([torch.zeros(8, 4)], rows=8, shapes=[(4,), (3,)])
    Traceback (most recent call last):
    ValueError: Got noise of shapes [(8, 4)]; expected one tensor for each level: [(8, 4), (8, 3)].
    """
    given = [tuple(draw.shape) for draw in noise]
    expected = [(rows, *shape) for shape in shapes]
    fits = [shape[-len(wanted) :] == wanted for shape, wanted in zip(given, expected, strict=False)]
    if len(given) != len(expected) or not all(fits):
        raise ValueError(f"Got noise of shapes {given}; expected one tensor for each level: {expected}.")
