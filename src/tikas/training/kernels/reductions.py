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
def _add_five(a, b, c, d, e, v, w, x, y, z):
    return a + v, b + w, c + x, d + y, e + z


@triton.jit
def five_sums(a, b, c, d, e):
    """Of five tiles."""
    if TOGETHER:
        return tl.reduce((a, b, c, d, e), 0, _add_five)
    else:
        return tl.sum(a, 0), tl.sum(b, 0), tl.sum(c, 0), tl.sum(d, 0), tl.sum(e, 0)
