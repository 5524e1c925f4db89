"""Sums over the rows of several tiles at once: one exchange between the threads of a program instead of many."""

import os

import triton
import triton.language as tl

# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"

TOGETHER = tl.constexpr(os.environ.get("TRITON_INTERPRET") != "1")
"""Triton's interpreter, with which the tests run without a GPU, goes through such a sum value by value."""


@triton.jit
def _add_two(a, b, x, y):
    return a + x, b + y


@triton.jit
def sums(a, b):
    """Of two tiles."""
    if TOGETHER:
        return tl.reduce((a, b), 0, _add_two)
    else:
        return tl.sum(a, 0), tl.sum(b, 0)


@triton.jit
def _add_ten(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, b0, b1, b2, b3, b4, b5, b6, b7, b8, b9):
    return a0 + b0, a1 + b1, a2 + b2, a3 + b3, a4 + b4, a5 + b5, a6 + b6, a7 + b7, a8 + b8, a9 + b9


@triton.jit
def ten_sums(a, b, c, d, e, f, g, h, i, j):
    """Of ten tiles."""
    if TOGETHER:
        return tl.reduce((a, b, c, d, e, f, g, h, i, j), 0, _add_ten)
    else:
        first = tl.sum(a, 0), tl.sum(b, 0), tl.sum(c, 0), tl.sum(d, 0), tl.sum(e, 0)
        return *first, tl.sum(f, 0), tl.sum(g, 0), tl.sum(h, 0), tl.sum(i, 0), tl.sum(j, 0)
