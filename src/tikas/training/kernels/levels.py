"""The GPU kernels of a dense ladder's update: for every level one up, one down, and the way back through each.

A program holds a few units of one member, with all rows of a batch, on the chip. So statistics, noise, activation and
denoiser are one pass over memory, and the way back computes them again rather than reading what it would have stored:
between kernels there are the products' inputs and outputs, and nothing else. The units that pad a level (see
`tikas.training.fused`) are loaded as zero and stored as zero everywhere.
"""

import triton
import triton.language as tl

from tikas.training.kernels.activations import activate, slope
from tikas.training.kernels.denoisers import denoise, denoise_back
from tikas.training.kernels.reductions import sums

# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"

STRIDES = ["width", "padded"]
"""Kept from the compiler on purpose. If it knew that rows are aligned it would load several units in one go and give
each thread several columns; as it does not, a thread has one column, and most of a sum over rows stays inside it."""


@triton.jit
def _normalize(tile, inside, rows):
    """z, μ and 1/σ of the columns of a tile whose outside is zero; the outside stays so."""
    mean = tl.sum(tile, 0) / rows
    centered = tl.where(inside, tile - mean[None, :], 0.0)
    inverse = 1 / tl.sqrt(tl.sum(centered * centered, 0) / rows + 1e-10)
    return centered * inverse[None, :], mean, inverse


@triton.jit
def _normalize_back(gradient, normalized, inverse, rows):
    """Through z = (x - μ)/σ: (g - mean(g) - z mean(g z))/σ."""
    total, along = sums(gradient, gradient * normalized)
    offset, along = total * inverse / rows, along * inverse / rows
    return gradient * inverse[None, :] - offset[None, :] - normalized * along[None, :]


@triton.jit
def _place(width, padded, ROWS: tl.constexpr, UNITS: tl.constexpr):
    """This program's member, rows and units."""
    member = tl.program_id(0).to(tl.int64)
    units = tl.program_id(1) * UNITS + tl.arange(0, UNITS)
    return member, tl.arange(0, ROWS), units, units < width, units < padded


@triton.jit
def _load(base, first, rows, units, stride, inside):
    """Rows from `first` on of a batch that lies row by row, as float32."""
    return tl.load(base + (first + rows)[:, None] * stride + units[None, :], mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _store(base, first, rows, units, stride, tile, there):
    tl.store(base + (first + rows)[:, None] * stride + units[None, :], tile.to(base.dtype.element_ty), mask=there)


@triton.jit
def _scale_and_shift(gamma, beta, place, real, GAMMA: tl.constexpr, BETA: tl.constexpr, UNITS: tl.constexpr):
    """γ and β of these units; one and zero where a level has none."""
    scale = tl.full([UNITS], 1.0, tl.float32)
    shift = tl.zeros([UNITS], tl.float32)
    if GAMMA:
        scale = tl.load(gamma + place, mask=real, other=0.0)
    if BETA:
        shift = tl.load(beta + place, mask=real, other=0.0)
    return scale, shift


@triton.jit
def gather_kernel(
    examples, labeled_rows, unlabeled_rows, noise, settings, hidden,
    noise_stride, settings_stride, labeled, unlabeled, rows,
    width, padded, UNITS: tl.constexpr,
):  # fmt: skip
    """Level 0, a row a program: h₀ = x + n of the corrupted streams, and x of the clean one behind them."""
    member = tl.program_id(0).to(tl.int64)
    row = tl.program_id(1)
    corrupted = labeled + unlabeled
    is_labeled = row < labeled
    place = tl.where(row < corrupted, row - labeled, row - corrupted)
    number = tl.load(labeled_rows + member * labeled + row, mask=is_labeled, other=0)
    number += tl.load(unlabeled_rows + member * unlabeled + place, mask=row >= labeled, other=0)
    deviation = tl.load(settings + member * settings_stride)
    noised = tl.where(row < corrupted, width, 0)
    for start in range(0, padded, UNITS):
        units = start + tl.arange(0, UNITS)
        x = tl.load(examples + number * width + units, mask=units < width, other=0.0)
        draw = tl.load(noise + member * noise_stride + row * width + units, mask=units < noised, other=0.0)
        h = (x + deviation * draw).to(hidden.dtype.element_ty)
        tl.store(hidden + (member * rows + row) * padded + units, h, mask=units < padded)


@triton.jit(do_not_specialize=STRIDES)
def climb_kernel(
    projected, noise, settings, beta, gamma, hidden,
    noise_stride, settings_stride, vector_stride, width, padded,
    LABELED: tl.constexpr, UNLABELED: tl.constexpr, CLEAN: tl.constexpr,
    ACTIVATION: tl.constexpr, BETA: tl.constexpr, GAMMA: tl.constexpr, ROWS: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    """h = φ(γ·(N(y) + n + β)) of every stream, each with its own statistics; the last stream is the clean one."""
    member, rows, units, real, there = _place(width, padded, ROWS, UNITS)
    total = LABELED + UNLABELED + CLEAN
    projected += member * total * padded
    hidden += member * total * padded
    noise += member * noise_stride
    deviation = tl.load(settings + member * settings_stride)
    scale, shift = _scale_and_shift(gamma, beta, member * vector_stride + units, real, GAMMA, BETA, UNITS)
    for stream in tl.static_range(3):
        first = 0 if stream == 0 else (LABELED if stream == 1 else LABELED + UNLABELED)
        count = LABELED if stream == 0 else (UNLABELED if stream == 1 else CLEAN)
        if count > 0:
            inside = (rows < count)[:, None] & real[None, :]
            latent, _, _ = _normalize(_load(projected, first, rows, units, padded, inside), inside, count)
            if stream < 2:
                latent += deviation * _load(noise, first, rows, units, width, inside)
            h = activate(scale[None, :] * (latent + shift[None, :]), ACTIVATION)
            written = (rows < count)[:, None] & there[None, :]
            _store(hidden, first, rows, units, padded, tl.where(inside, h, 0.0), written)


@triton.jit(do_not_specialize=STRIDES)
def climb_back_kernel(
    projected, noise, settings, beta, gamma, from_hidden, from_corrupted, from_clean, from_statistics,
    to_projected, to_beta, to_gamma,
    noise_stride, settings_stride, vector_stride, from_hidden_rows, width, padded,
    LABELED: tl.constexpr, UNLABELED: tl.constexpr, CLEAN: tl.constexpr,
    ACTIVATION: tl.constexpr, BETA: tl.constexpr, GAMMA: tl.constexpr,
    DENOISED: tl.constexpr, COSTED: tl.constexpr, CLEAN_ABOVE: tl.constexpr,
    ROWS: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    """Back through `climb_kernel`, with what the decoder and the cost of this level ask of z̃, z, μ and σ."""
    member, rows, units, real, there = _place(width, padded, ROWS, UNITS)
    total = LABELED + UNLABELED + CLEAN
    projected += member * total * padded
    to_projected += member * total * padded
    from_hidden += member * from_hidden_rows * padded
    noise += member * noise_stride
    deviation = tl.load(settings + member * settings_stride)
    scale, shift = _scale_and_shift(gamma, beta, member * vector_stride + units, real, GAMMA, BETA, UNITS)
    shift_gradient = tl.zeros([UNITS], tl.float32)
    scale_gradient = tl.zeros([UNITS], tl.float32)
    for stream in tl.static_range(3):
        first = 0 if stream == 0 else (LABELED if stream == 1 else LABELED + UNLABELED)
        count = LABELED if stream == 0 else (UNLABELED if stream == 1 else CLEAN)
        if count > 0:
            inside = (rows < count)[:, None] & real[None, :]
            tile = _load(projected, first, rows, units, padded, inside)
            normalized, _, inverse = _normalize(tile, inside, count)
            latent = normalized
            if stream < 2:
                latent += deviation * _load(noise, first, rows, units, width, inside)
            to_latent = tl.zeros([ROWS, UNITS], tl.float32)
            if (stream < 2) or CLEAN_ABOVE:
                shifted = latent + shift[None, :]
                gradient = _load(from_hidden, first, rows, units, padded, inside)
                gradient *= slope(scale[None, :] * shifted, ACTIVATION)
                to_latent = gradient * scale[None, :]
                if GAMMA:
                    scale_gradient += tl.sum(gradient * shifted, 0)
                if BETA:
                    shift_gradient += tl.sum(to_latent, 0)
            if (stream == 1) and DENOISED:
                to_latent += _load(from_corrupted + member * UNLABELED * padded, 0, rows, units, padded, inside)
            if (stream == 2) and COSTED:
                to_latent += _load(from_clean + member * UNLABELED * padded, 0, rows, units, padded, inside)
            result = _normalize_back(to_latent, normalized, inverse, count)
            if (stream == 2) and COSTED:
                to_mean = tl.load(from_statistics + member * 2 * padded + units, mask=real, other=0.0)
                to_spread = tl.load(from_statistics + (member * 2 + 1) * padded + units, mask=real, other=0.0)
                result += (to_mean / count)[None, :] + (to_spread / count)[None, :] * normalized
            _store(to_projected, first, rows, units, padded, result, (rows < count)[:, None] & there[None, :])
    if BETA:
        tl.store(to_beta + member * vector_stride + units, shift_gradient, mask=there)
    if GAMMA:
        tl.store(to_gamma + member * vector_stride + units, scale_gradient, mask=there)


@triton.jit
def _latents(
    projected, examples, unlabeled_rows, noise, settings, member,
    noise_stride, settings_stride, rows, units, inside, width, padded,
    LABELED: tl.constexpr, UNLABELED: tl.constexpr, CLEAN: tl.constexpr, INPUT: tl.constexpr, COSTED: tl.constexpr,
):  # fmt: skip
    """z̃ of the unlabelled rows, and where the level has a cost z of the clean ones with its μ and 1/σ."""
    mean = tl.zeros_like(units).to(tl.float32)
    inverse = mean + 1.0
    if INPUT:
        number = tl.load(unlabeled_rows + member * UNLABELED + rows, mask=rows < UNLABELED, other=0)
        clean_latent = tl.load(examples + number[:, None] * width + units[None, :], mask=inside, other=0.0)
        corrupted = clean_latent
    else:
        projected += member * (LABELED + UNLABELED + CLEAN) * padded
        corrupted, _, _ = _normalize(_load(projected, LABELED, rows, units, padded, inside), inside, UNLABELED)
        clean_latent = corrupted
        if COSTED:
            tile = _load(projected, LABELED + UNLABELED, rows, units, padded, inside)
            clean_latent, mean, inverse = _normalize(tile, inside, UNLABELED)
    draw = _load(noise + member * noise_stride, LABELED, rows, units, width, inside)
    return corrupted + tl.load(settings + member * settings_stride) * draw, clean_latent, mean, inverse


@triton.jit(do_not_specialize=STRIDES)
def descend_kernel(
    signal, projected, examples, unlabeled_rows, noise, settings, denoiser, denoised, cost,
    noise_stride, settings_stride, vector_stride, cost_stride, width, padded,
    LABELED: tl.constexpr, UNLABELED: tl.constexpr, CLEAN: tl.constexpr,
    DENOISER: tl.constexpr, INPUT: tl.constexpr, COSTED: tl.constexpr, LOWEST: tl.constexpr,
    ROWS: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    """ẑ = g(z̃, N(v)), and this program's share of ‖z - (ẑ - μ)/σ‖²."""
    member, rows, units, real, there = _place(width, padded, ROWS, UNITS)
    inside = (rows < UNLABELED)[:, None] & real[None, :]
    corrupted, clean_latent, mean, inverse = _latents(
        projected, examples, unlabeled_rows, noise, settings, member,
        noise_stride, settings_stride, rows, units, inside, width, padded, LABELED, UNLABELED, CLEAN, INPUT, COSTED,
    )  # fmt: skip
    tile = _load(signal + member * UNLABELED * padded, 0, rows, units, padded, inside)
    above, _, _ = _normalize(tile, inside, UNLABELED)
    estimate = denoise(corrupted, above, denoiser + member * vector_stride, padded, units, real, DENOISER)
    if not LOWEST:
        written = (rows < UNLABELED)[:, None] & there[None, :]
        _store(denoised + member * UNLABELED * padded, 0, rows, units, padded, tl.where(inside, estimate, 0.0), written)
    if COSTED:
        difference = clean_latent - (estimate - mean[None, :]) * inverse[None, :]
        difference = tl.where(inside, difference, 0.0)
        tl.store(cost + member * cost_stride + tl.program_id(1), tl.sum(difference * difference))


@triton.jit(do_not_specialize=STRIDES)
def descend_back_kernel(
    signal, projected, examples, unlabeled_rows, noise, settings, denoiser, from_denoised,
    to_signal, to_corrupted, to_clean, to_statistics, to_denoiser,
    noise_stride, settings_stride, vector_stride, weight_place, width, padded,
    LABELED: tl.constexpr, UNLABELED: tl.constexpr, CLEAN: tl.constexpr,
    DENOISER: tl.constexpr, INPUT: tl.constexpr, COSTED: tl.constexpr, LOWEST: tl.constexpr,
    ROWS: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    """Back through `descend_kernel`: to v, to g's parameters, and to the z̃, z, μ and σ of this level."""
    member, rows, units, real, there = _place(width, padded, ROWS, UNITS)
    inside = (rows < UNLABELED)[:, None] & real[None, :]
    written = (rows < UNLABELED)[:, None] & there[None, :]
    corrupted, clean_latent, mean, inverse = _latents(
        projected, examples, unlabeled_rows, noise, settings, member,
        noise_stride, settings_stride, rows, units, inside, width, padded, LABELED, UNLABELED, CLEAN, INPUT, COSTED,
    )  # fmt: skip
    offset = member * UNLABELED * padded
    above, _, signal_inverse = _normalize(_load(signal + offset, 0, rows, units, padded, inside), inside, UNLABELED)
    parameters = denoiser + member * vector_stride
    gradient = tl.zeros([ROWS, UNITS], tl.float32)
    if not LOWEST:
        gradient += _load(from_denoised + offset, 0, rows, units, padded, inside)
    if COSTED:
        estimate = denoise(corrupted, above, parameters, padded, units, real, DENOISER)
        scaled = (estimate - mean[None, :]) * inverse[None, :]
        weight = tl.load(settings + member * settings_stride + weight_place) * 2 / UNLABELED / width
        difference = tl.where(inside, clean_latent - scaled, 0.0) * weight
        gradient -= difference * inverse[None, :]
        if not INPUT:
            _store(to_clean + offset, 0, rows, units, padded, difference, written)
            statistics = to_statistics + member * 2 * padded + units
            total, along = sums(difference, difference * scaled)
            tl.store(statistics, total * inverse, mask=there)
            tl.store(statistics + padded, along * inverse, mask=there)
    to_parameters = to_denoiser + member * vector_stride
    to_above, through = denoise_back(
        gradient, corrupted, above, parameters, to_parameters, padded, units, real, there, DENOISER
    )
    if not INPUT:
        _store(to_corrupted + offset, 0, rows, units, padded, through, written)
    result = _normalize_back(to_above, above, signal_inverse, UNLABELED)
    _store(to_signal + offset, 0, rows, units, padded, result, written)
