"""The five denoising functions and their derivatives inside a kernel, as `tikas.model.denoisers` has them.

A level's parameters lie as rows of its padded width: those of ``a``, then ``b`` and ``c`` where the function has them.
"""

import triton
import triton.language as tl

from tikas.training.kernels.reductions import five_sums

# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"

NUMBERS = {"gaussian": 0, "mlp": 1, "no-product": 2, "linear": 3, "additive": 4}
GAUSSIAN = tl.constexpr(NUMBERS["gaussian"])
MLP = tl.constexpr(NUMBERS["mlp"])
NO_PRODUCT = tl.constexpr(NUMBERS["no-product"])
LINEAR = tl.constexpr(NUMBERS["linear"])
ADDITIVE = tl.constexpr(NUMBERS["additive"])


@triton.jit
def denoise(corrupted, above, parameters, padded, units, real, DENOISER: tl.constexpr):
    """ẑ = g(z̃, u)."""
    if DENOISER == GAUSSIAN:
        prior, _ = _mixture(above, parameters, 0, padded, units, real)
        trust, _ = _mixture(above, parameters, 5, padded, units, real)
        return (corrupted - prior) * trust + prior
    elif DENOISER == MLP:
        product = corrupted * above
        plain = _affine(corrupted, above, parameters, 0, padded, units, real)
        plain += _row(parameters, 3, padded, units, real) * product
        inside = _affine(corrupted, above, parameters, 5, padded, units, real)
        inside += _row(parameters, 8, padded, units, real) * product
        return plain + _row(parameters, 4, padded, units, real) * tl.sigmoid(inside)
    elif DENOISER == NO_PRODUCT:
        inside = _affine(corrupted, above, parameters, 4, padded, units, real)
        plain = _affine(corrupted, above, parameters, 0, padded, units, real)
        return plain + _row(parameters, 3, padded, units, real) * tl.sigmoid(inside)
    elif DENOISER == LINEAR:
        plain = _affine(corrupted, above, parameters, 0, padded, units, real)
        return plain + _row(parameters, 3, padded, units, real) * corrupted * above
    else:
        from_above = _bent(above, parameters, 0, padded, units, real)
        from_corrupted = _bent(corrupted, parameters, 4, padded, units, real)
        return from_above + from_corrupted + _row(parameters, 8, padded, units, real)


@triton.jit
def denoise_back(
    gradient, corrupted, above, parameters, to_parameters, padded, units, real, there, DENOISER: tl.constexpr
):
    """To u and to z̃; the gradients of the parameters are stored."""
    if DENOISER == GAUSSIAN:
        prior, gate = _mixture(above, parameters, 0, padded, units, real)
        trust, trust_gate = _mixture(above, parameters, 5, padded, units, real)
        through = gradient * trust
        to_prior = gradient - through
        to_trust = gradient * (corrupted - prior)
        to_above = _mixture_back(to_prior, above, gate, parameters, to_parameters, 0, padded, units, real, there)
        to_above += _mixture_back(to_trust, above, trust_gate, parameters, to_parameters, 5, padded, units, real, there)
        return to_above, through
    elif DENOISER == MLP:
        product = corrupted * above
        inside = _affine(corrupted, above, parameters, 5, padded, units, real)
        gate = tl.sigmoid(inside + _row(parameters, 8, padded, units, real) * product)
        to_inside = gradient * _row(parameters, 4, padded, units, real) * gate * (1 - gate)
        _keep(to_parameters, 4, padded, units, there, gradient * gate)
        _keep(to_parameters, 3, padded, units, there, gradient * product)
        _keep(to_parameters, 8, padded, units, there, to_inside * product)
        to_above, through = _affine_back(
            gradient, corrupted, above, parameters, to_parameters, 0, padded, units, real, there
        )
        more_above, more_through = _affine_back(
            to_inside, corrupted, above, parameters, to_parameters, 5, padded, units, real, there
        )
        to_product = gradient * _row(parameters, 3, padded, units, real)
        to_product += to_inside * _row(parameters, 8, padded, units, real)
        return to_above + more_above + to_product * corrupted, through + more_through + to_product * above
    elif DENOISER == NO_PRODUCT:
        gate = tl.sigmoid(_affine(corrupted, above, parameters, 4, padded, units, real))
        to_inside = gradient * _row(parameters, 3, padded, units, real) * gate * (1 - gate)
        _keep(to_parameters, 3, padded, units, there, gradient * gate)
        to_above, through = _affine_back(
            gradient, corrupted, above, parameters, to_parameters, 0, padded, units, real, there
        )
        more_above, more_through = _affine_back(
            to_inside, corrupted, above, parameters, to_parameters, 4, padded, units, real, there
        )
        return to_above + more_above, through + more_through
    elif DENOISER == LINEAR:
        to_above, through = _affine_back(
            gradient, corrupted, above, parameters, to_parameters, 0, padded, units, real, there
        )
        _keep(to_parameters, 3, padded, units, there, gradient * corrupted * above)
        to_product = gradient * _row(parameters, 3, padded, units, real)
        return to_above + to_product * corrupted, through + to_product * above
    else:
        to_above = _bent_back(gradient, above, parameters, to_parameters, 0, padded, units, real, there)
        through = _bent_back(gradient, corrupted, parameters, to_parameters, 4, padded, units, real, there)
        _keep(to_parameters, 8, padded, units, there, gradient)
        return to_above, through


@triton.jit
def _row(parameters, row, padded, units, real):
    return tl.load(parameters + row * padded + units, mask=real, other=0.0)[None, :]


@triton.jit
def _keep(to_parameters, row, padded, units, there, gradient):
    tl.store(to_parameters + row * padded + units, tl.sum(gradient, 0), mask=there)


@triton.jit
def _mixture(above, parameters, first, padded, units, real):
    """a1 sigmoid(a2 u + a3) + a4 u + a5, and its sigmoid."""
    slope = _row(parameters, first + 1, padded, units, real)
    gate = tl.sigmoid(slope * above + _row(parameters, first + 2, padded, units, real))
    bent = _row(parameters, first, padded, units, real) * gate
    straight = _row(parameters, first + 3, padded, units, real) * above
    return bent + straight + _row(parameters, first + 4, padded, units, real), gate


@triton.jit
def _mixture_back(gradient, above, gate, parameters, to_parameters, first, padded, units, real, there):
    to_inside = gradient * _row(parameters, first, padded, units, real) * gate * (1 - gate)
    gated, along, bent, straight, flat = five_sums(
        gradient * gate, to_inside * above, to_inside, gradient * above, gradient
    )
    place = to_parameters + first * padded + units
    tl.store(place, gated, mask=there)
    tl.store(place + padded, along, mask=there)
    tl.store(place + 2 * padded, bent, mask=there)
    tl.store(place + 3 * padded, straight, mask=there)
    tl.store(place + 4 * padded, flat, mask=there)
    direct = gradient * _row(parameters, first + 3, padded, units, real)
    return direct + to_inside * _row(parameters, first + 1, padded, units, real)


@triton.jit
def _affine(corrupted, above, parameters, first, padded, units, real):
    """a1 + a2 z̃ + a3 u."""
    through = _row(parameters, first + 1, padded, units, real) * corrupted
    from_above = _row(parameters, first + 2, padded, units, real) * above
    return _row(parameters, first, padded, units, real) + through + from_above


@triton.jit
def _affine_back(gradient, corrupted, above, parameters, to_parameters, first, padded, units, real, there):
    _keep(to_parameters, first, padded, units, there, gradient)
    _keep(to_parameters, first + 1, padded, units, there, gradient * corrupted)
    _keep(to_parameters, first + 2, padded, units, there, gradient * above)
    to_above = gradient * _row(parameters, first + 2, padded, units, real)
    return to_above, gradient * _row(parameters, first + 1, padded, units, real)


@triton.jit
def _bent(x, parameters, first, padded, units, real):
    """a1 x + a2 sigmoid(a3 x + a4)."""
    slope = _row(parameters, first + 2, padded, units, real)
    gate = tl.sigmoid(slope * x + _row(parameters, first + 3, padded, units, real))
    return _row(parameters, first, padded, units, real) * x + _row(parameters, first + 1, padded, units, real) * gate


@triton.jit
def _bent_back(gradient, x, parameters, to_parameters, first, padded, units, real, there):
    slope = _row(parameters, first + 2, padded, units, real)
    gate = tl.sigmoid(slope * x + _row(parameters, first + 3, padded, units, real))
    to_inside = gradient * _row(parameters, first + 1, padded, units, real) * gate * (1 - gate)
    _keep(to_parameters, first, padded, units, there, gradient * x)
    _keep(to_parameters, first + 1, padded, units, there, gradient * gate)
    _keep(to_parameters, first + 2, padded, units, there, to_inside * x)
    _keep(to_parameters, first + 3, padded, units, there, to_inside)
    return gradient * _row(parameters, first, padded, units, real) + to_inside * slope
