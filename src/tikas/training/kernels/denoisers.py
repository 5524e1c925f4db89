"""The five denoising functions and their derivatives inside a kernel, as `tikas.model.denoisers` has them.

A level's parameters lie as rows of its padded width: those of ``a``, then ``b`` and ``c`` where the function has them.
`parameters_of` loads them, early, since a load after a sum over rows would wait for that; the functions are given them.
"""

import triton
import triton.language as tl

from tikas.training.kernels.reductions import ten_sums

# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"

NUMBERS = {"gaussian": 0, "mlp": 1, "no-product": 2, "linear": 3, "additive": 4}
GAUSSIAN = tl.constexpr(NUMBERS["gaussian"])
MLP = tl.constexpr(NUMBERS["mlp"])
NO_PRODUCT = tl.constexpr(NUMBERS["no-product"])
LINEAR = tl.constexpr(NUMBERS["linear"])
ADDITIVE = tl.constexpr(NUMBERS["additive"])


@triton.jit
def parameters_of(parameters, padded, units, real, DENOISER: tl.constexpr):
    """Its rows of parameters, ``(1, units)`` each, and zeros in the place of those that this function has not."""
    FEW: tl.constexpr = 7 if DENOISER == NO_PRODUCT else (4 if DENOISER == LINEAR else 9)
    COUNT: tl.constexpr = 10 if DENOISER == GAUSSIAN else FEW
    return (
        _row(parameters, 0, padded, units, real, COUNT),
        _row(parameters, 1, padded, units, real, COUNT),
        _row(parameters, 2, padded, units, real, COUNT),
        _row(parameters, 3, padded, units, real, COUNT),
        _row(parameters, 4, padded, units, real, COUNT),
        _row(parameters, 5, padded, units, real, COUNT),
        _row(parameters, 6, padded, units, real, COUNT),
        _row(parameters, 7, padded, units, real, COUNT),
        _row(parameters, 8, padded, units, real, COUNT),
        _row(parameters, 9, padded, units, real, COUNT),
    )


@triton.jit
def denoise(corrupted, above, a, DENOISER: tl.constexpr):
    """ẑ = g(z̃, u)."""
    if DENOISER == GAUSSIAN:
        prior, _ = _mixture(above, a, 0)
        trust, _ = _mixture(above, a, 5)
        return (corrupted - prior) * trust + prior
    elif DENOISER == MLP:
        product = corrupted * above
        plain = _affine(corrupted, above, a, 0)
        plain += a[3] * product
        inside = _affine(corrupted, above, a, 5)
        inside += a[8] * product
        return plain + a[4] * tl.sigmoid(inside)
    elif DENOISER == NO_PRODUCT:
        inside = _affine(corrupted, above, a, 4)
        plain = _affine(corrupted, above, a, 0)
        return plain + a[3] * tl.sigmoid(inside)
    elif DENOISER == LINEAR:
        plain = _affine(corrupted, above, a, 0)
        return plain + a[3] * corrupted * above
    else:
        from_above = _bent(above, a, 0)
        from_corrupted = _bent(corrupted, a, 4)
        return from_above + from_corrupted + a[8]


@triton.jit
def denoise_back(gradient, corrupted, above, a, to_parameters, padded, units, there, DENOISER: tl.constexpr):
    """To u and to z̃; the gradients of the parameters are stored."""
    if DENOISER == GAUSSIAN:
        prior, gate = _mixture(above, a, 0)
        trust, trust_gate = _mixture(above, a, 5)
        through = gradient * trust
        to_prior = gradient - through
        to_trust = gradient * (corrupted - prior)
        to_gate = to_prior * a[0] * gate * (1 - gate)
        to_trust_gate = to_trust * a[5] * trust_gate * (1 - trust_gate)
        asked = ten_sums(
            to_prior * gate, to_gate * above, to_gate, to_prior * above, to_prior,
            to_trust * trust_gate, to_trust_gate * above, to_trust_gate, to_trust * above, to_trust,
        )  # fmt: skip
        for row in tl.static_range(10):
            tl.store(to_parameters + row * padded + units, asked[row], mask=there)
        to_above = to_gate * a[1] + to_prior * a[3] + to_trust_gate * a[6] + to_trust * a[8]
        return to_above, through
    elif DENOISER == MLP:
        product = corrupted * above
        inside = _affine(corrupted, above, a, 5)
        gate = tl.sigmoid(inside + a[8] * product)
        to_inside = gradient * a[4] * gate * (1 - gate)
        _keep(to_parameters, 4, padded, units, there, gradient * gate)
        _keep(to_parameters, 3, padded, units, there, gradient * product)
        _keep(to_parameters, 8, padded, units, there, to_inside * product)
        to_above, through = _affine_back(gradient, corrupted, above, a, to_parameters, 0, padded, units, there)
        more_above, more_through = _affine_back(to_inside, corrupted, above, a, to_parameters, 5, padded, units, there)
        to_product = gradient * a[3]
        to_product += to_inside * a[8]
        return to_above + more_above + to_product * corrupted, through + more_through + to_product * above
    elif DENOISER == NO_PRODUCT:
        gate = tl.sigmoid(_affine(corrupted, above, a, 4))
        to_inside = gradient * a[3] * gate * (1 - gate)
        _keep(to_parameters, 3, padded, units, there, gradient * gate)
        to_above, through = _affine_back(gradient, corrupted, above, a, to_parameters, 0, padded, units, there)
        more_above, more_through = _affine_back(to_inside, corrupted, above, a, to_parameters, 4, padded, units, there)
        return to_above + more_above, through + more_through
    elif DENOISER == LINEAR:
        to_above, through = _affine_back(gradient, corrupted, above, a, to_parameters, 0, padded, units, there)
        _keep(to_parameters, 3, padded, units, there, gradient * corrupted * above)
        to_product = gradient * a[3]
        return to_above + to_product * corrupted, through + to_product * above
    else:
        to_above = _bent_back(gradient, above, a, to_parameters, 0, padded, units, there)
        through = _bent_back(gradient, corrupted, a, to_parameters, 4, padded, units, there)
        _keep(to_parameters, 8, padded, units, there, gradient)
        return to_above, through


@triton.jit
def _row(parameters, row, padded, units, real, COUNT: tl.constexpr):
    return tl.load(parameters + row * padded + units, mask=real & (row < COUNT), other=0.0)[None, :]


@triton.jit
def _keep(to_parameters, row, padded, units, there, gradient):
    tl.store(to_parameters + row * padded + units, tl.sum(gradient, 0), mask=there)


@triton.jit
def _mixture(above, a, first: tl.constexpr):
    """a1 sigmoid(a2 u + a3) + a4 u + a5, and its sigmoid."""
    slope = a[first + 1]
    gate = tl.sigmoid(slope * above + a[first + 2])
    bent = a[first] * gate
    straight = a[first + 3] * above
    return bent + straight + a[first + 4], gate


@triton.jit
def _affine(corrupted, above, a, first: tl.constexpr):
    """a1 + a2 z̃ + a3 u."""
    through = a[first + 1] * corrupted
    from_above = a[first + 2] * above
    return a[first] + through + from_above


@triton.jit
def _affine_back(gradient, corrupted, above, a, to_parameters, first: tl.constexpr, padded, units, there):
    _keep(to_parameters, first, padded, units, there, gradient)
    _keep(to_parameters, first + 1, padded, units, there, gradient * corrupted)
    _keep(to_parameters, first + 2, padded, units, there, gradient * above)
    to_above = gradient * a[first + 2]
    return to_above, gradient * a[first + 1]


@triton.jit
def _bent(x, a, first: tl.constexpr):
    """a1 x + a2 sigmoid(a3 x + a4)."""
    slope = a[first + 2]
    gate = tl.sigmoid(slope * x + a[first + 3])
    return a[first] * x + a[first + 1] * gate


@triton.jit
def _bent_back(gradient, x, a, to_parameters, first: tl.constexpr, padded, units, there):
    slope = a[first + 2]
    gate = tl.sigmoid(slope * x + a[first + 3])
    to_inside = gradient * a[first + 1] * gate * (1 - gate)
    _keep(to_parameters, first, padded, units, there, gradient * x)
    _keep(to_parameters, first + 1, padded, units, there, gradient * gate)
    _keep(to_parameters, first + 2, padded, units, there, to_inside * x)
    _keep(to_parameters, first + 3, padded, units, there, to_inside)
    return gradient * a[first] + to_inside * slope
