"""The activations of hidden rungs and their derivatives inside a kernel, as `tikas.model.activations` has them."""

import triton
import triton.language as tl

# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"

NUMBERS = {"relu": 0, "leaky_relu": 1, "tanh": 2, "gelu": 3, "linear": 4}
RELU = tl.constexpr(NUMBERS["relu"])
LEAKY_RELU = tl.constexpr(NUMBERS["leaky_relu"])
TANH = tl.constexpr(NUMBERS["tanh"])
GELU = tl.constexpr(NUMBERS["gelu"])


@triton.jit
def activate(x, ACTIVATION: tl.constexpr):
    if ACTIVATION == RELU:
        return tl.where(x < 0, 0.0, x)  # what is no number stays so, and shows in the costs; tl.maximum makes it 0
    elif ACTIVATION == LEAKY_RELU:
        return tl.where(x > 0, x, 0.1 * x)
    elif ACTIVATION == TANH:
        return 2 * tl.sigmoid(2 * x) - 1
    elif ACTIVATION == GELU:
        return x * 0.5 * (1 + tl.erf(x * 0.7071067811865476))
    else:
        return x


@triton.jit
def slope(x, ACTIVATION: tl.constexpr):
    """φ'(x)."""
    if ACTIVATION == RELU:
        return tl.where(x > 0, 1.0, 0.0)
    elif ACTIVATION == LEAKY_RELU:
        return tl.where(x > 0, 1.0, 0.1)
    elif ACTIVATION == TANH:
        h = 2 * tl.sigmoid(2 * x) - 1
        return 1 - h * h
    elif ACTIVATION == GELU:
        density = 0.3989422804014327 * tl.exp(-0.5 * x * x)
        return 0.5 * (1 + tl.erf(x * 0.7071067811865476)) + x * density
    else:
        return tl.full(x.shape, 1.0, tl.float32)
