"""The GPU kernels of a dense ladder's update: for every level one up, one down, and the way back through each.

A program holds a few units of one member, with all rows of a stream, on the chip. So statistics, noise, activation and
denoiser are one pass over memory, and the way back computes them again rather than reading what it would have stored:
between kernels there are the products' inputs and outputs, and nothing else but the statistics, a few numbers for each
unit. The units that pad a level (see `tikas.training.fused`) are loaded as zero and stored as zero everywhere.

A program loads all that it reads before it sums over rows: what is asked for after a sum is waited for once more.
"""

import triton
import triton.language as tl

from tikas.training.kernels.activations import activate, slope
from tikas.training.kernels.denoisers import denoise, denoise_back, parameters_of
from tikas.training.kernels.reductions import sums

# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"

STREAMS = 3
"""Labelled, corrupted and clean rows: each has statistics of its own, and asks for something of γ and β."""
OF_ALL = tl.constexpr(2 * STREAMS)
"""Statistics of a unit, μ and 1/σ of each stream."""
STRIDES = ["width", "padded"]
"""Kept from the compiler on purpose. If it knew that rows are aligned it would load several units in one go and give
each thread several columns; as it does not, a thread has one column, and most of a sum over rows stays inside it."""


@triton.jit
def _normalize(tile, inside, rows, statistics, padded, there):
    """z of the columns of a tile whose outside is zero, and stays so; μ and 1/σ are stored for who comes later."""
    mean = tl.sum(tile, 0) / rows
    centered = tl.where(inside, tile - mean[None, :], 0.0)
    inverse = 1 / tl.sqrt(tl.sum(centered * centered, 0) / rows + 1e-10)
    tl.store(statistics, mean, mask=there)
    tl.store(statistics + padded, inverse, mask=there)
    return centered * inverse[None, :]


@triton.jit
def _statistics(statistics, padded, real):
    """μ and 1/σ, as `_normalize` stored them."""
    return tl.load(statistics, mask=real, other=0.0), tl.load(statistics + padded, mask=real, other=0.0)


@triton.jit
def _normalized(tile, inside, mean, inverse):
    """z again."""
    return tl.where(inside, (tile - mean[None, :]) * inverse[None, :], 0.0)


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
def _stream(LABELED: tl.constexpr, UNLABELED: tl.constexpr, CLEAN: tl.constexpr):
    """This program's stream (labelled, unlabelled, clean), its first row and its number of rows."""
    stream = tl.program_id(2)
    first = tl.where(stream == 0, 0, tl.where(stream == 1, LABELED, LABELED + UNLABELED))
    count = tl.where(stream == 0, LABELED, tl.where(stream == 1, UNLABELED, CLEAN))
    return stream, first, count


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
    projected, noise, settings, beta, gamma, hidden, statistics,
    noise_stride, settings_stride, vector_stride, width, padded,
    LABELED: tl.constexpr, UNLABELED: tl.constexpr, CLEAN: tl.constexpr,
    ACTIVATION: tl.constexpr, BETA: tl.constexpr, GAMMA: tl.constexpr, ROWS: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    """h = φ(γ·(N(y) + n + β)) of a stream, with its own statistics; the clean one goes without n."""
    member, rows, units, real, there = _place(width, padded, ROWS, UNITS)
    stream, first, count = _stream(LABELED, UNLABELED, CLEAN)
    start = member * (LABELED + UNLABELED + CLEAN) * padded
    inside = (rows < count)[:, None] & real[None, :]
    tile = _load(projected + start, first, rows, units, padded, inside)
    draw = _load(noise + member * noise_stride, first, rows, units, width, inside & (stream < 2))
    deviation = tl.load(settings + member * settings_stride)
    scale, shift = _scale_and_shift(gamma, beta, member * vector_stride + units, real, GAMMA, BETA, UNITS)
    normalized = _normalize(
        tile, inside, count, statistics + (member * OF_ALL + 2 * stream) * padded + units, padded, there
    )
    h = activate(scale[None, :] * (normalized + deviation * draw + shift[None, :]), ACTIVATION)
    written = (rows < count)[:, None] & there[None, :]
    _store(hidden + start, first, rows, units, padded, tl.where(inside, h, 0.0), written)


@triton.jit(do_not_specialize=STRIDES)
def climb_back_kernel(
    projected, noise, settings, beta, gamma, statistics, from_hidden, from_latents, from_statistics,
    to_projected, to_beta, to_gamma,
    noise_stride, settings_stride, vector_stride, share_stride, from_hidden_rows, width, padded,
    LABELED: tl.constexpr, UNLABELED: tl.constexpr, CLEAN: tl.constexpr,
    ACTIVATION: tl.constexpr, BETA: tl.constexpr, GAMMA: tl.constexpr,
    DENOISED: tl.constexpr, COSTED: tl.constexpr, CLEAN_ABOVE: tl.constexpr,
    ROWS: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    """Back through `climb_kernel`, with what the decoder and the cost of this level ask of z̃, z, μ and σ.

    Each stream leaves its own share of what is asked of γ and β.
    """
    member, rows, units, real, there = _place(width, padded, ROWS, UNITS)
    stream, first, count = _stream(LABELED, UNLABELED, CLEAN)
    start = member * (LABELED + UNLABELED + CLEAN) * padded
    inside = (rows < count)[:, None] & real[None, :]
    clean = stream == 2
    tile = _load(projected + start, first, rows, units, padded, inside)
    draw = _load(noise + member * noise_stride, first, rows, units, width, inside & (stream < 2))
    asked = inside if CLEAN_ABOVE else inside & (stream < 2)
    gradient = _load(from_hidden + member * from_hidden_rows * padded, first, rows, units, padded, asked)
    direct = tl.zeros([ROWS, UNITS], tl.float32)
    to_mean = tl.zeros([UNITS], tl.float32)
    to_spread = tl.zeros([UNITS], tl.float32)
    if DENOISED:
        asked = inside & (stream > 0) if COSTED else inside & (stream == 1)
        latents = from_latents + member * (UNLABELED + CLEAN) * padded
        direct += _load(latents, first - LABELED, rows, units, padded, asked)
    if COSTED:
        asking = from_statistics + member * 2 * padded + units
        to_mean += tl.load(asking, mask=real & clean, other=0.0)
        to_spread += tl.load(asking + padded, mask=real & clean, other=0.0)
    mean, inverse = _statistics(statistics + (member * OF_ALL + 2 * stream) * padded + units, padded, real)
    deviation = tl.load(settings + member * settings_stride)
    scale, shift = _scale_and_shift(gamma, beta, member * vector_stride + units, real, GAMMA, BETA, UNITS)

    normalized = _normalized(tile, inside, mean, inverse)
    shifted = normalized + deviation * draw + shift[None, :]
    gradient *= slope(scale[None, :] * shifted, ACTIVATION)
    share = stream * share_stride + member * vector_stride + units
    if GAMMA:
        tl.store(to_gamma + share, tl.sum(gradient * shifted, 0), mask=there)
    gradient *= scale[None, :]
    if BETA:
        tl.store(to_beta + share, tl.sum(gradient, 0), mask=there)
    result = _normalize_back(gradient + direct, normalized, inverse, count)
    if COSTED:
        result += (to_mean / count)[None, :] + (to_spread / count)[None, :] * normalized
    _store(to_projected + start, first, rows, units, padded, result, (rows < count)[:, None] & there[None, :])


@triton.jit
def _latents(
    projected, statistics, examples, unlabeled_rows, noise, settings, member,
    noise_stride, settings_stride, rows, units, real, inside, width, padded,
    LABELED: tl.constexpr, UNLABELED: tl.constexpr, CLEAN: tl.constexpr, INPUT: tl.constexpr, COSTED: tl.constexpr,
):  # fmt: skip
    """z̃ of the unlabelled rows, and where the level has a cost z of the clean ones with its μ and 1/σ."""
    draw = _load(noise + member * noise_stride, LABELED, rows, units, width, inside)
    draw *= tl.load(settings + member * settings_stride)
    mean = tl.zeros_like(units).to(tl.float32)
    inverse = mean + 1.0
    if INPUT:
        number = tl.load(unlabeled_rows + member * UNLABELED + rows, mask=rows < UNLABELED, other=0)
        corrupted = tl.load(examples + number[:, None] * width + units[None, :], mask=inside, other=0.0)
        clean = corrupted
    else:
        projected += member * (LABELED + UNLABELED + CLEAN) * padded
        statistics += member * OF_ALL * padded + units
        corrupted = _load(projected, LABELED, rows, units, padded, inside)
        own_mean, own_inverse = _statistics(statistics + 2 * padded, padded, real)
        corrupted = _normalized(corrupted, inside, own_mean, own_inverse)
        clean = corrupted
        if COSTED:
            clean = _load(projected, LABELED + UNLABELED, rows, units, padded, inside)
            mean, inverse = _statistics(statistics + 4 * padded, padded, real)
            clean = _normalized(clean, inside, mean, inverse)
    return corrupted + draw, clean, mean, inverse


@triton.jit(do_not_specialize=STRIDES)
def descend_kernel(
    signal, projected, statistics, examples, unlabeled_rows, noise, settings, denoiser,
    denoised, signal_statistics, cost,
    noise_stride, settings_stride, vector_stride, cost_stride, width, padded,
    LABELED: tl.constexpr, UNLABELED: tl.constexpr, CLEAN: tl.constexpr,
    DENOISER: tl.constexpr, INPUT: tl.constexpr, COSTED: tl.constexpr, LOWEST: tl.constexpr,
    ROWS: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    """ẑ = g(z̃, N(v)), and this program's share of ‖z - (ẑ - μ)/σ‖²."""
    member, rows, units, real, there = _place(width, padded, ROWS, UNITS)
    inside = (rows < UNLABELED)[:, None] & real[None, :]
    above = _load(signal + member * UNLABELED * padded, 0, rows, units, padded, inside)
    corrupted, clean, mean, inverse = _latents(
        projected, statistics, examples, unlabeled_rows, noise, settings, member, noise_stride, settings_stride,
        rows, units, real, inside, width, padded, LABELED, UNLABELED, CLEAN, INPUT, COSTED,
    )  # fmt: skip
    a = parameters_of(denoiser + member * vector_stride, padded, units, real, DENOISER)

    above = _normalize(above, inside, UNLABELED, signal_statistics + member * 2 * padded + units, padded, there)
    estimate = denoise(corrupted, above, a, DENOISER)
    if not LOWEST:
        written = (rows < UNLABELED)[:, None] & there[None, :]
        _store(denoised + member * UNLABELED * padded, 0, rows, units, padded, tl.where(inside, estimate, 0.0), written)
    if COSTED:
        difference = clean - (estimate - mean[None, :]) * inverse[None, :]
        difference = tl.where(inside, difference, 0.0)
        tl.store(cost + member * cost_stride + tl.program_id(1), tl.sum(difference * difference))


@triton.jit(do_not_specialize=STRIDES)
def descend_back_kernel(
    signal, signal_statistics, projected, statistics, examples, unlabeled_rows, noise, settings, denoiser,
    from_denoised,
    to_signal, to_latents, to_statistics, to_denoiser,
    noise_stride, settings_stride, vector_stride, weight_place, width, padded,
    LABELED: tl.constexpr, UNLABELED: tl.constexpr, CLEAN: tl.constexpr,
    DENOISER: tl.constexpr, INPUT: tl.constexpr, COSTED: tl.constexpr, LOWEST: tl.constexpr,
    ROWS: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    """Back through `descend_kernel`: to v, to g's parameters, and to the z̃, z, μ and σ of this level."""
    member, rows, units, real, there = _place(width, padded, ROWS, UNITS)
    inside = (rows < UNLABELED)[:, None] & real[None, :]
    written = (rows < UNLABELED)[:, None] & there[None, :]
    above = _load(signal + member * UNLABELED * padded, 0, rows, units, padded, inside)
    corrupted, clean, mean, inverse = _latents(
        projected, statistics, examples, unlabeled_rows, noise, settings, member, noise_stride, settings_stride,
        rows, units, real, inside, width, padded, LABELED, UNLABELED, CLEAN, INPUT, COSTED,
    )  # fmt: skip
    offset = member * UNLABELED * padded
    gradient = tl.zeros([ROWS, UNITS], tl.float32)
    if not LOWEST:
        gradient += _load(from_denoised + offset, 0, rows, units, padded, inside)
    a = parameters_of(denoiser + member * vector_stride, padded, units, real, DENOISER)
    weight = tl.load(settings + member * settings_stride + weight_place) * 2 / UNLABELED / width
    signal_mean, signal_inverse = _statistics(signal_statistics + member * 2 * padded + units, padded, real)

    above = _normalized(above, inside, signal_mean, signal_inverse)
    latents = to_latents + member * (UNLABELED + CLEAN) * padded
    if COSTED:
        estimate = denoise(corrupted, above, a, DENOISER)
        scaled = (estimate - mean[None, :]) * inverse[None, :]
        difference = tl.where(inside, clean - scaled, 0.0) * weight
        gradient -= difference * inverse[None, :]
        if not INPUT:
            _store(latents, UNLABELED, rows, units, padded, difference, written)
            asking = to_statistics + member * 2 * padded + units
            total, along = sums(difference, difference * scaled)
            tl.store(asking, total * inverse, mask=there)
            tl.store(asking + padded, along * inverse, mask=there)
    to_parameters = to_denoiser + member * vector_stride
    to_above, through = denoise_back(gradient, corrupted, above, a, to_parameters, padded, units, there, DENOISER)
    if not INPUT:
        _store(latents, 0, rows, units, padded, through, written)
    result = _normalize_back(to_above, above, signal_inverse, UNLABELED)
    _store(to_signal + offset, 0, rows, units, padded, result, written)
