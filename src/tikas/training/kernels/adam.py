"""Adam over parameters of all members in one pass, which also writes the low-precision copies that products read."""

import triton
import triton.language as tl

# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"


@triton.jit
def adam_kernel(
    parameters, gradients, means, squares, copies, rates, count, size, share_stride,
    SHARES: tl.constexpr, COPIED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Kingma and Ba's update with 0.9, 0.999 and 1e-8, of so many parameters of each member, who has `size` in all.

    `rates` has two numbers a member: the learning rate over 1 - 0.9ᵗ, and 1/√(1 - 0.999ᵗ). A gradient may lie in
    shares, which are summed.
    """
    member = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    place += member * size
    rate = tl.load(rates + member * 2)
    correction = tl.load(rates + member * 2 + 1)
    gradient = tl.zeros([BLOCK], tl.float32)
    for share in tl.static_range(SHARES):
        gradient += tl.load(gradients + share * share_stride + place, mask=inside, other=0.0).to(tl.float32)
    mean = tl.load(means + place, mask=inside, other=0.0).to(tl.float32)
    square = tl.load(squares + place, mask=inside, other=0.0)
    parameter = tl.load(parameters + place, mask=inside, other=0.0)
    mean += 0.1 * (gradient - mean)
    square = 0.999 * square + 0.001 * gradient * gradient
    parameter -= rate * mean / (tl.sqrt(square) * correction + 1e-8)
    tl.store(means + place, mean.to(means.dtype.element_ty), mask=inside)
    tl.store(squares + place, square, mask=inside)
    tl.store(parameters + place, parameter, mask=inside)
    if COPIED:
        tl.store(copies + place, parameter.to(copies.dtype.element_ty), mask=inside)
