"""The top inside a kernel: the supervised cost with its gradient, and the signal that starts the descent."""

import triton
import triton.language as tl

# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"


@triton.jit
def _softmax(scores, inside):
    scores = tl.where(inside, scores, float("-inf"))
    scores -= tl.max(scores, 1)[:, None]
    exponentials = tl.where(inside, tl.exp(scores), 0.0)
    total = tl.sum(exponentials, 1)
    return exponentials / total[:, None], scores - tl.log(total)[:, None]


@triton.jit
def top_kernel(
    scores, targets, weights, labeled_rows, signal, to_scores, cost,
    cost_stride, scores_rows, width, padded,
    LABELED: tl.constexpr, UNLABELED: tl.constexpr, WEIGHTED: tl.constexpr, CLASSES: tl.constexpr,
    ROWS: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    """Of labelled rows the cost and what it asks of the scores, of unlabelled rows the softmax (or the values)."""
    member = tl.program_id(0).to(tl.int64)
    rows, units = tl.arange(0, ROWS), tl.arange(0, UNITS)
    scores += member * scores_rows * padded
    to_scores += member * (LABELED + UNLABELED) * padded
    there = units < padded
    if tl.program_id(1) == 0:
        inside = (rows < LABELED)[:, None] & (units < width)[None, :]
        place = rows[:, None] * padded + units[None, :]
        tile = tl.load(scores + place, mask=inside, other=0.0)
        number = tl.load(labeled_rows + member * LABELED + rows, mask=rows < LABELED, other=0)
        share = tl.where(rows < LABELED, 1.0, 0.0)
        if WEIGHTED:
            share *= tl.load(weights + number, mask=rows < LABELED, other=0.0)
        share /= tl.maximum(tl.sum(share), 1.1754943508222875e-38)
        if CLASSES:
            right = units[None, :] == tl.load(targets + number, mask=rows < LABELED, other=0)[:, None]
            probabilities, logarithms = _softmax(tile, (units < width)[None, :] & (rows >= 0)[:, None])
            row_cost = -tl.sum(tl.where(right, logarithms, 0.0), 1)
            gradient = (probabilities - tl.where(right, 1.0, 0.0)) * share[:, None]
        else:
            wanted = tl.load(targets + number[:, None] * width + units[None, :], mask=inside, other=0.0)
            row_cost = tl.sum((tile - wanted) * (tile - wanted), 1) / width
            gradient = (tile - wanted) * share[:, None] * 2 / width
        tl.store(cost + member * cost_stride, tl.sum(row_cost * share))
        written = (rows < LABELED)[:, None] & there[None, :]
        tl.store(to_scores + place, tl.where(inside, gradient, 0.0), mask=written)
    else:
        inside = (rows < UNLABELED)[:, None] & (units < width)[None, :]
        place = rows[:, None] * padded + units[None, :]
        tile = tl.load(scores + LABELED * padded + place, mask=inside, other=0.0)
        if CLASSES:
            tile, _ = _softmax(tile, (units < width)[None, :] & (rows >= 0)[:, None])
        written = (rows < UNLABELED)[:, None] & there[None, :]
        result = tl.where(inside, tile, 0.0).to(signal.dtype.element_ty)
        tl.store(signal + member * UNLABELED * padded + place, result, mask=written)


@triton.jit
def top_back_kernel(
    scores, from_signal, to_scores, scores_rows, width, padded,
    LABELED: tl.constexpr, UNLABELED: tl.constexpr, CLASSES: tl.constexpr, ROWS: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    """What the descent asks of the unlabelled rows' scores, through the softmax."""
    member = tl.program_id(0).to(tl.int64)
    rows, units = tl.arange(0, ROWS), tl.arange(0, UNITS)
    inside = (rows < UNLABELED)[:, None] & (units < width)[None, :]
    place = rows[:, None] * padded + units[None, :]
    scores += (member * scores_rows + LABELED) * padded
    to_scores += (member * (LABELED + UNLABELED) + LABELED) * padded
    gradient = tl.load(from_signal + member * UNLABELED * padded + place, mask=inside, other=0.0).to(tl.float32)
    if CLASSES:
        tile = tl.load(scores + place, mask=inside, other=0.0)
        probabilities, _ = _softmax(tile, (units < width)[None, :] & (rows >= 0)[:, None])
        gradient = probabilities * (gradient - tl.sum(gradient * probabilities, 1)[:, None])
    written = (rows < UNLABELED)[:, None] & (units < padded)[None, :]
    tl.store(to_scores + place, tl.where(inside, gradient, 0.0), mask=written)
