"""Triton kernels of one update of a dense ladder; `engine.py` launches them, README.md explains the design.

Names follow Algorithm 1: ``z_pre = W h``, ``z = N(z_pre)``, ``z_tilde = z + n``, ``u = N(V ẑ)`` and
``z_hat = g(z_tilde, u)``. ``grad_x`` is the gradient of the total cost with respect to ``x``.

A batch has three parts, each normalized by itself and stored one after the other in the rows of every encoder tensor:
labeled rows (part 0), unlabeled rows with noise (part 1), and the same unlabeled rows without noise (part 2, "clean").
A level's width is padded to a multiple of 8. Every kernel loads padding columns as zero and stores them as zero, so
they change no statistic, cost or gradient.

Tensors of a level, contiguous unless a stride is named. "bf16" is the dtype of the products, which may be float32; the
scores of the top and their gradients are float32, because a softmax needs that precision.

    tensor                                      shape                                             dtype
    projected (z_pre), grad_projected           (members, labeled + unlabeled + clean, padded)    bf16
    hidden (h)                                  (members, labeled + unlabeled + clean, padded)    bf16, top float32
    grad_hidden                                 the same, with the clean rows of the level above  bf16, top float32
    statistics (μ and 1/σ of each part)         (members, 6, padded)                              float32
    signal (V ẑ of the level above)             (members, unlabeled, padded)                      bf16, top float32
    grad_signal                                 (members, unlabeled, padded)                      bf16, top float32
    signal_statistics (μ and 1/σ)               (members, 2, padded)                              float32
    denoised (ẑ), grad_denoised                 (members, unlabeled, padded)                      bf16
    grad_latents (of z̃, then of z)              (members, unlabeled + clean, padded)              bf16
    grad_statistics (of μ and σ, clean part)    (members, 2, padded)                              float32
    noise (members are noise_stride apart)      (members, labeled + unlabeled, width)             bf16
    settings (deviations of the noise, then λ)  (members, 2 * levels), from this level on         float32
    beta, gamma (vector_stride apart)           (members, padded)                                 float32
    denoiser (vector_stride apart)              (members, rows of g, padded)                      float32

Conventions of all kernels:

- Program 0 is the member, program 1 a block of UNITS columns, program 2 (encoder) the part. A program holds *all* rows
  of its columns, in tiles ``(ROWS, UNITS)``, so batch statistics need no second pass over memory and no communication
  between programs. ROWS is a power of two, at least the number of rows.
- Everything is loaded before the first sum over rows. Triton keeps loads where they stand in the source, and a sum
  makes the threads of a program wait for each other. A load behind it would begin only then, and with one member no
  other program would run meanwhile: the kernels of the levels took 122 µs an update with late loads, and 77 with early
  ones and a program for each part (README.md).
- Forward kernels store only what a matrix product reads, plus mean and 1/σ. Backward kernels recompute the rest from
  these: reading it back from memory would take longer.
- `unit_mask` is true for real units, `column_mask` for real and padding columns; `mask` and `store_mask` are the same
  with the rows of the part. What is outside of `mask` is zero in every tile that is summed.
- `member` is int64, and with it every offset that it is a factor of: the tensors of a large ensemble have more than
  2³¹ values.
"""

import os

import triton
import triton.language as tl

# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"

ACTIVATIONS = {"relu": 0, "leaky_relu": 1, "tanh": 2, "gelu": 3, "linear": 4}
DENOISERS = {"gaussian": 0, "mlp": 1, "no-product": 2, "linear": 3, "additive": 4}
RELU = tl.constexpr(ACTIVATIONS["relu"])
LEAKY_RELU = tl.constexpr(ACTIVATIONS["leaky_relu"])
TANH = tl.constexpr(ACTIVATIONS["tanh"])
GELU = tl.constexpr(ACTIVATIONS["gelu"])
GAUSSIAN = tl.constexpr(DENOISERS["gaussian"])
MLP = tl.constexpr(DENOISERS["mlp"])
NO_PRODUCT = tl.constexpr(DENOISERS["no-product"])
LINEAR = tl.constexpr(DENOISERS["linear"])

PARTS = 3
"""Labeled, corrupted and clean rows."""
STATISTICS = tl.constexpr(2 * PARTS)
"""Rows of the encoder's statistics ``(members, 6, padded)``: mean and 1/σ of each part."""
UNSPECIALIZED = ["width", "padded"]
"""Arguments that Triton must not specialize on. If it knew that they are multiples of 16, it would load eight columns
at once and give each thread eight columns, and a sum over rows would be exchanged between threads. As it does not, a
thread has one column, and most of a sum stays inside the thread."""
FUSED_SUMS = tl.constexpr(os.environ.get("TRITON_INTERPRET") != "1")
"""Sum several tiles in one reduction; not in Triton's interpreter, which would evaluate it value by value."""


# Sums over rows, (ROWS, UNITS) -> (UNITS,), of several tiles at once: one exchange between threads instead of several.


@triton.jit
def _add_two(a, b, x, y):
    return a + x, b + y


@triton.jit
def _two_sums(a, b):
    if FUSED_SUMS:
        return tl.reduce((a, b), 0, _add_two)
    else:
        return tl.sum(a, 0), tl.sum(b, 0)


@triton.jit
def _add_ten(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, b0, b1, b2, b3, b4, b5, b6, b7, b8, b9):
    return a0 + b0, a1 + b1, a2 + b2, a3 + b3, a4 + b4, a5 + b5, a6 + b6, a7 + b7, a8 + b8, a9 + b9


@triton.jit
def _ten_sums(a, b, c, d, e, f, g, h, i, j):
    if FUSED_SUMS:
        return tl.reduce((a, b, c, d, e, f, g, h, i, j), 0, _add_ten)
    else:
        first = tl.sum(a, 0), tl.sum(b, 0), tl.sum(c, 0), tl.sum(d, 0), tl.sum(e, 0)
        return *first, tl.sum(f, 0), tl.sum(g, 0), tl.sum(h, 0), tl.sum(i, 0), tl.sum(j, 0)


# Activations φ of `tikas.model.layers`


@triton.jit
def _activate(x, ACTIVATION: tl.constexpr):
    if ACTIVATION == RELU:
        return tl.where(x < 0, 0.0, x)  # keeps NaN, so that it shows in the costs; tl.maximum(x, 0) would return 0
    elif ACTIVATION == LEAKY_RELU:
        return tl.where(x > 0, x, 0.1 * x)
    elif ACTIVATION == TANH:
        return 2 * tl.sigmoid(2 * x) - 1
    elif ACTIVATION == GELU:
        return x * 0.5 * (1 + tl.erf(x * 0.7071067811865476))
    else:
        return x


@triton.jit
def _slope(x, ACTIVATION: tl.constexpr):
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


# Denoising functions g of `tikas.model.denoisers`. The parameters of a level are ``(rows, padded)``: the rows of ``a``,
# then those of ``b`` and ``c`` where the function has them.


@triton.jit
def _load_denoiser(parameters, padded, units, unit_mask, DENOISER: tl.constexpr):
    """The parameters of g as ten tiles ``(1, UNITS)``; zeros in place of those that this function does not have."""
    FEWER: tl.constexpr = 7 if DENOISER == NO_PRODUCT else (4 if DENOISER == LINEAR else 9)
    COUNT: tl.constexpr = 10 if DENOISER == GAUSSIAN else FEWER
    return (
        _load_row(parameters, 0, padded, units, unit_mask, COUNT),
        _load_row(parameters, 1, padded, units, unit_mask, COUNT),
        _load_row(parameters, 2, padded, units, unit_mask, COUNT),
        _load_row(parameters, 3, padded, units, unit_mask, COUNT),
        _load_row(parameters, 4, padded, units, unit_mask, COUNT),
        _load_row(parameters, 5, padded, units, unit_mask, COUNT),
        _load_row(parameters, 6, padded, units, unit_mask, COUNT),
        _load_row(parameters, 7, padded, units, unit_mask, COUNT),
        _load_row(parameters, 8, padded, units, unit_mask, COUNT),
        _load_row(parameters, 9, padded, units, unit_mask, COUNT),
    )


@triton.jit
def _load_row(parameters, row, padded, units, unit_mask, COUNT: tl.constexpr):
    return tl.load(parameters + row * padded + units, mask=unit_mask & (row < COUNT), other=0.0)[None, :]


@triton.jit
def _store_sum(grad_parameters, row, padded, units, column_mask, gradient):
    """Store the gradient of one row of parameters: the sum over the rows of the batch."""
    tl.store(grad_parameters + row * padded + units, tl.sum(gradient, 0), mask=column_mask)


@triton.jit
def _denoise(z_tilde, u, a, DENOISER: tl.constexpr):
    """ẑ = g(z̃, u): Eq. 2 (gaussian), or g1 to g4 of the appendix."""
    if DENOISER == GAUSSIAN:
        mu, _ = _mixture(u, a, 0)
        upsilon, _ = _mixture(u, a, 5)
        return (z_tilde - mu) * upsilon + mu
    elif DENOISER == MLP:
        product = z_tilde * u
        linear = _affine(z_tilde, u, a, 0)
        linear += a[3] * product
        inner = _affine(z_tilde, u, a, 5)
        inner += a[8] * product
        return linear + a[4] * tl.sigmoid(inner)
    elif DENOISER == NO_PRODUCT:
        inner = _affine(z_tilde, u, a, 4)
        linear = _affine(z_tilde, u, a, 0)
        return linear + a[3] * tl.sigmoid(inner)
    elif DENOISER == LINEAR:
        linear = _affine(z_tilde, u, a, 0)
        return linear + a[3] * z_tilde * u
    else:
        from_u = _curve(u, a, 0)
        from_z_tilde = _curve(z_tilde, a, 4)
        return from_u + from_z_tilde + a[8]


@triton.jit
def _denoise_backward(gradient, z_tilde, u, a, grad_a, padded, units, column_mask, DENOISER: tl.constexpr):
    """Return the gradients of u and z̃, given that of ẑ; store those of the parameters, each a sum over the rows.

    Outside of the batch `gradient` is zero, and with it everything that is summed here.
    """
    if DENOISER == GAUSSIAN:
        mu, mu_gate = _mixture(u, a, 0)
        upsilon, upsilon_gate = _mixture(u, a, 5)
        grad_z_tilde = gradient * upsilon
        grad_mu = gradient - grad_z_tilde
        grad_upsilon = gradient * (z_tilde - mu)
        grad_mu_inner = grad_mu * a[0] * mu_gate * (1 - mu_gate)
        grad_upsilon_inner = grad_upsilon * a[5] * upsilon_gate * (1 - upsilon_gate)
        grads = _ten_sums(
            grad_mu * mu_gate, grad_mu_inner * u, grad_mu_inner, grad_mu * u, grad_mu,
            grad_upsilon * upsilon_gate, grad_upsilon_inner * u, grad_upsilon_inner, grad_upsilon * u, grad_upsilon,
        )  # fmt: skip
        for row in tl.static_range(10):
            tl.store(grad_a + row * padded + units, grads[row], mask=column_mask)
        grad_u = grad_mu_inner * a[1] + grad_mu * a[3] + grad_upsilon_inner * a[6] + grad_upsilon * a[8]
        return grad_u, grad_z_tilde
    elif DENOISER == MLP:
        product = z_tilde * u
        inner = _affine(z_tilde, u, a, 5)
        gate = tl.sigmoid(inner + a[8] * product)
        grad_inner = gradient * a[4] * gate * (1 - gate)
        _store_sum(grad_a, 4, padded, units, column_mask, gradient * gate)
        _store_sum(grad_a, 3, padded, units, column_mask, gradient * product)
        _store_sum(grad_a, 8, padded, units, column_mask, grad_inner * product)
        grad_u, grad_z_tilde = _affine_backward(gradient, z_tilde, u, a, grad_a, 0, padded, units, column_mask)
        more_u, more_z_tilde = _affine_backward(grad_inner, z_tilde, u, a, grad_a, 5, padded, units, column_mask)
        grad_product = gradient * a[3]
        grad_product += grad_inner * a[8]
        return grad_u + more_u + grad_product * z_tilde, grad_z_tilde + more_z_tilde + grad_product * u
    elif DENOISER == NO_PRODUCT:
        gate = tl.sigmoid(_affine(z_tilde, u, a, 4))
        grad_inner = gradient * a[3] * gate * (1 - gate)
        _store_sum(grad_a, 3, padded, units, column_mask, gradient * gate)
        grad_u, grad_z_tilde = _affine_backward(gradient, z_tilde, u, a, grad_a, 0, padded, units, column_mask)
        more_u, more_z_tilde = _affine_backward(grad_inner, z_tilde, u, a, grad_a, 4, padded, units, column_mask)
        return grad_u + more_u, grad_z_tilde + more_z_tilde
    elif DENOISER == LINEAR:
        grad_u, grad_z_tilde = _affine_backward(gradient, z_tilde, u, a, grad_a, 0, padded, units, column_mask)
        _store_sum(grad_a, 3, padded, units, column_mask, gradient * z_tilde * u)
        grad_product = gradient * a[3]
        return grad_u + grad_product * z_tilde, grad_z_tilde + grad_product * u
    else:
        grad_u = _curve_backward(gradient, u, a, grad_a, 0, padded, units, column_mask)
        grad_z_tilde = _curve_backward(gradient, z_tilde, a, grad_a, 4, padded, units, column_mask)
        _store_sum(grad_a, 8, padded, units, column_mask, gradient)
        return grad_u, grad_z_tilde


@triton.jit
def _mixture(u, a, first: tl.constexpr):
    """μ(u) (first=0) or υ(u) (first=5) of Eq. 2: a1 sigmoid(a2 u + a3) + a4 u + a5; and the sigmoid."""
    slope = a[first + 1]
    gate = tl.sigmoid(slope * u + a[first + 2])
    curved = a[first] * gate
    straight = a[first + 3] * u
    return curved + straight + a[first + 4], gate


@triton.jit
def _affine(z_tilde, u, a, first: tl.constexpr):
    """a1 + a2 z̃ + a3 u."""
    from_z_tilde = a[first + 1] * z_tilde
    from_u = a[first + 2] * u
    return a[first] + from_z_tilde + from_u


@triton.jit
def _affine_backward(gradient, z_tilde, u, a, grad_a, first: tl.constexpr, padded, units, column_mask):
    _store_sum(grad_a, first, padded, units, column_mask, gradient)
    _store_sum(grad_a, first + 1, padded, units, column_mask, gradient * z_tilde)
    _store_sum(grad_a, first + 2, padded, units, column_mask, gradient * u)
    grad_u = gradient * a[first + 2]
    return grad_u, gradient * a[first + 1]


@triton.jit
def _curve(x, a, first: tl.constexpr):
    """a1 x + a2 sigmoid(a3 x + a4)."""
    slope = a[first + 2]
    gate = tl.sigmoid(slope * x + a[first + 3])
    return a[first] * x + a[first + 1] * gate


@triton.jit
def _curve_backward(gradient, x, a, grad_a, first: tl.constexpr, padded, units, column_mask):
    slope = a[first + 2]
    gate = tl.sigmoid(slope * x + a[first + 3])
    grad_inner = gradient * a[first + 1] * gate * (1 - gate)
    _store_sum(grad_a, first, padded, units, column_mask, gradient * x)
    _store_sum(grad_a, first + 1, padded, units, column_mask, gradient * gate)
    _store_sum(grad_a, first + 2, padded, units, column_mask, grad_inner * x)
    _store_sum(grad_a, first + 3, padded, units, column_mask, grad_inner)
    return gradient * a[first] + grad_inner * slope


# Batch normalization


@triton.jit
def _normalize(tile, mask, rows, statistics, padded, column_mask):
    """z = (x - μ)/σ of a tile that is zero outside `mask`, and stays so; μ and 1/σ are stored for other kernels.

    Two passes over the tile in registers: the one-pass variance E[x²] - μ² loses digits where μ is large.
    """
    mean = tl.sum(tile, 0) / rows
    centered = tl.where(mask, tile - mean[None, :], 0.0)
    inverse = 1 / tl.sqrt(tl.sum(centered * centered, 0) / rows + 1e-10)
    tl.store(statistics, mean, mask=column_mask)
    tl.store(statistics + padded, inverse, mask=column_mask)
    return centered * inverse[None, :]


@triton.jit
def _load_statistics(statistics, padded, unit_mask):
    """μ and 1/σ as `_normalize` stored them."""
    return tl.load(statistics, mask=unit_mask, other=0.0), tl.load(statistics + padded, mask=unit_mask, other=0.0)


@triton.jit
def _normalize_with(tile, mask, mean, inverse):
    """z again, from statistics that `_normalize` stored."""
    return tl.where(mask, (tile - mean[None, :]) * inverse[None, :], 0.0)


@triton.jit
def _normalize_backward(gradient, z, inverse, rows):
    """Through z = (x - μ)/σ: (g - mean(g) - z mean(g z))/σ."""
    total, along = _two_sums(gradient, gradient * z)
    offset, along = total * inverse / rows, along * inverse / rows
    return gradient * inverse[None, :] - offset[None, :] - z * along[None, :]


# What a program works on


@triton.jit
def _program(width, padded, ROWS: tl.constexpr, UNITS: tl.constexpr):
    """This program's member, rows and columns, and which columns are units and which exist at all."""
    member = tl.program_id(0).to(tl.int64)
    units = tl.program_id(1) * UNITS + tl.arange(0, UNITS)
    return member, tl.arange(0, ROWS), units, units < width, units < padded


@triton.jit
def _part(LABELED: tl.constexpr, UNLABELED: tl.constexpr, CLEAN: tl.constexpr):
    """This program's part of the batch, its first row and its number of rows."""
    part = tl.program_id(2)
    first = tl.where(part == 0, 0, tl.where(part == 1, LABELED, LABELED + UNLABELED))
    count = tl.where(part == 0, LABELED, tl.where(part == 1, UNLABELED, CLEAN))
    return part, first, count


@triton.jit
def _load(base, first, rows, units, stride, mask):
    """A tile ``(ROWS, UNITS)`` from row `first` on, as float32; zero outside `mask`."""
    return tl.load(base + (first + rows)[:, None] * stride + units[None, :], mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _store(base, first, rows, units, stride, tile, store_mask):
    tl.store(base + (first + rows)[:, None] * stride + units[None, :], tile.to(base.dtype.element_ty), mask=store_mask)


@triton.jit
def _load_gamma_beta(gamma, beta, offset, unit_mask, GAMMA: tl.constexpr, BETA: tl.constexpr, UNITS: tl.constexpr):
    """γ and β of these units; 1 and 0 where a level has none."""
    scale = tl.full([UNITS], 1.0, tl.float32)
    shift = tl.zeros([UNITS], tl.float32)
    if GAMMA:
        scale = tl.load(gamma + offset, mask=unit_mask, other=0.0)
    if BETA:
        shift = tl.load(beta + offset, mask=unit_mask, other=0.0)
    return scale, shift


# Encoder


@triton.jit
def gather_kernel(
    data, labeled_rows, unlabeled_rows, noise, settings, hidden,
    noise_stride, settings_stride, labeled, unlabeled, rows,
    width, padded, UNITS: tl.constexpr,
):  # fmt: skip
    """Level 0: h̃⁰ = x + n of labeled and unlabeled rows, and h⁰ = x of the clean ones behind them.

    Programs: (members, rows); each copies one row of `data` ``(n, width)``, float32, to `hidden` ``(members, rows,
    padded)``. ``labeled_rows (members, labeled)`` and ``unlabeled_rows (members, unlabeled)`` are indices into `data`.
    A program works through its row in steps of UNITS columns.
    """
    member = tl.program_id(0).to(tl.int64)
    row = tl.program_id(1)
    corrupted = labeled + unlabeled
    is_labeled = row < labeled
    position = tl.where(row < corrupted, row - labeled, row - corrupted)
    # Exactly one of the two loads is unmasked; the other one returns 0.
    index = tl.load(labeled_rows + member * labeled + row, mask=is_labeled, other=0)
    index += tl.load(unlabeled_rows + member * unlabeled + position, mask=row >= labeled, other=0)
    deviation = tl.load(settings + member * settings_stride)
    noisy_width = tl.where(row < corrupted, width, 0)
    for start in range(0, padded, UNITS):
        units = start + tl.arange(0, UNITS)
        x = tl.load(data + index * width + units, mask=units < width, other=0.0)
        n = tl.load(noise + member * noise_stride + row * width + units, mask=units < noisy_width, other=0.0)
        h = (x + deviation * n).to(hidden.dtype.element_ty)
        tl.store(hidden + (member * rows + row) * padded + units, h, mask=units < padded)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def encode_kernel(
    projected, noise, settings, beta, gamma, hidden, statistics,
    noise_stride, settings_stride, vector_stride, width, padded,
    LABELED: tl.constexpr, UNLABELED: tl.constexpr, CLEAN: tl.constexpr,
    ACTIVATION: tl.constexpr, BETA: tl.constexpr, GAMMA: tl.constexpr, ROWS: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    """Encoder: z̃ˡ = N(z_preˡ) + n, h̃ˡ = φ(γ(z̃ˡ + β)) of one part of the batch; without n where that is the clean one.

    Programs: (members, blocks of columns, parts). Reads `projected`, writes `hidden` and `statistics`. z̃ is not stored:
    the decoder computes it from `projected`, `statistics` and `noise`.
    """
    member, rows, units, unit_mask, column_mask = _program(width, padded, ROWS, UNITS)
    part, first, count = _part(LABELED, UNLABELED, CLEAN)
    start = member * (LABELED + UNLABELED + CLEAN) * padded
    mask = (rows < count)[:, None] & unit_mask[None, :]
    tile = _load(projected + start, first, rows, units, padded, mask)
    n = _load(noise + member * noise_stride, first, rows, units, width, mask & (part < 2))
    deviation = tl.load(settings + member * settings_stride)
    scale, shift = _load_gamma_beta(gamma, beta, member * vector_stride + units, unit_mask, GAMMA, BETA, UNITS)

    # No load below this line: `_normalize` sums over rows.
    part_statistics = statistics + (member * STATISTICS + 2 * part) * padded + units
    z = _normalize(tile, mask, count, part_statistics, padded, column_mask)
    h = _activate(scale[None, :] * (z + deviation * n + shift[None, :]), ACTIVATION)
    store_mask = (rows < count)[:, None] & column_mask[None, :]
    # The product of the next level reads the padding columns: they must be zero.
    _store(hidden + start, first, rows, units, padded, tl.where(mask, h, 0.0), store_mask)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def encode_backward_kernel(
    projected, noise, settings, beta, gamma, statistics, grad_hidden, grad_latents, grad_statistics,
    grad_projected, grad_beta, grad_gamma,
    noise_stride, settings_stride, vector_stride, partial_stride, grad_hidden_rows, width, padded,
    LABELED: tl.constexpr, UNLABELED: tl.constexpr, CLEAN: tl.constexpr,
    ACTIVATION: tl.constexpr, BETA: tl.constexpr, GAMMA: tl.constexpr,
    DENOISED: tl.constexpr, COSTED: tl.constexpr, CLEAN_ABOVE: tl.constexpr,
    ROWS: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    """Backward of `encode_kernel`: from the gradients of h̃, z̃, z, μ and σ to that of z_pre, and of β and γ.

    Programs: (members, blocks of columns, parts). `grad_hidden` is the product of `grad_projected` and W of the level
    above; it has no clean rows where the clean part ends here (CLEAN_ABOVE false). `grad_latents` and `grad_statistics`
    come from `decode_backward_kernel` of this level. The three parts share β and γ, and their programs run at the same
    time: each stores its own partial sum, `partial_stride` apart, and `adam_kernel` adds them up. (Atomic additions
    would make the result depend on the order in which programs finish.)
    """
    member, rows, units, unit_mask, column_mask = _program(width, padded, ROWS, UNITS)
    part, first, count = _part(LABELED, UNLABELED, CLEAN)
    start = member * (LABELED + UNLABELED + CLEAN) * padded
    mask = (rows < count)[:, None] & unit_mask[None, :]
    clean = part == 2
    tile = _load(projected + start, first, rows, units, padded, mask)
    n = _load(noise + member * noise_stride, first, rows, units, width, mask & (part < 2))
    has_gradient = mask if CLEAN_ABOVE else mask & (part < 2)
    gradient = _load(grad_hidden + member * grad_hidden_rows * padded, first, rows, units, padded, has_gradient)
    direct = tl.zeros([ROWS, UNITS], tl.float32)
    grad_mean = tl.zeros([UNITS], tl.float32)
    grad_deviation = tl.zeros([UNITS], tl.float32)
    if DENOISED:
        has_gradient = mask & (part > 0) if COSTED else mask & (part == 1)
        latents = grad_latents + member * (UNLABELED + CLEAN) * padded
        direct += _load(latents, first - LABELED, rows, units, padded, has_gradient)
    if COSTED:
        grads = grad_statistics + member * 2 * padded + units
        grad_mean += tl.load(grads, mask=unit_mask & clean, other=0.0)
        grad_deviation += tl.load(grads + padded, mask=unit_mask & clean, other=0.0)
    mean, inverse = _load_statistics(statistics + (member * STATISTICS + 2 * part) * padded + units, padded, unit_mask)
    deviation = tl.load(settings + member * settings_stride)
    scale, shift = _load_gamma_beta(gamma, beta, member * vector_stride + units, unit_mask, GAMMA, BETA, UNITS)

    # No load below this line: sums over rows follow.
    z = _normalize_with(tile, mask, mean, inverse)
    shifted = z + deviation * n + shift[None, :]
    gradient *= _slope(scale[None, :] * shifted, ACTIVATION)
    partial = part * partial_stride + member * vector_stride + units
    if GAMMA:
        tl.store(grad_gamma + partial, tl.sum(gradient * shifted, 0), mask=column_mask)
    gradient *= scale[None, :]
    if BETA:
        tl.store(grad_beta + partial, tl.sum(gradient, 0), mask=column_mask)
    result = _normalize_backward(gradient + direct, z, inverse, count)
    if COSTED:
        # μ and σ of the clean part normalize ẑ in the cost (Eq. 3): dμ/dz_pre = 1/N, dσ/dz_pre = z/N. Their gradients
        # were loaded as zero for the other parts.
        result += (grad_mean / count)[None, :] + (grad_deviation / count)[None, :] * z
    _store(grad_projected + start, first, rows, units, padded, result, (rows < count)[:, None] & column_mask[None, :])


# Decoder


@triton.jit
def _load_latents(
    projected, statistics, data, unlabeled_rows, noise, settings, member,
    noise_stride, settings_stride, rows, units, unit_mask, mask, width, padded,
    LABELED: tl.constexpr, UNLABELED: tl.constexpr, CLEAN: tl.constexpr, INPUT: tl.constexpr, COSTED: tl.constexpr,
):  # fmt: skip
    """z̃ of the unlabeled rows, tile ``(ROWS, UNITS)``; and, where the level has a cost, z of the clean ones, μ and 1/σ.

    The input level is not normalized: z̃ = x + n and z = x, with μ = 0 and 1/σ = 1. It is read from `data`: its `hidden`
    is rounded to bf16, and has no clean rows where no level above needs them.
    """
    n = _load(noise + member * noise_stride, LABELED, rows, units, width, mask)
    n *= tl.load(settings + member * settings_stride)
    mean = tl.zeros_like(units).to(tl.float32)
    inverse = mean + 1.0
    if INPUT:
        index = tl.load(unlabeled_rows + member * UNLABELED + rows, mask=rows < UNLABELED, other=0)
        corrupted = tl.load(data + index[:, None] * width + units[None, :], mask=mask, other=0.0)
        clean = corrupted
    else:
        projected += member * (LABELED + UNLABELED + CLEAN) * padded
        statistics += member * STATISTICS * padded + units
        corrupted = _load(projected, LABELED, rows, units, padded, mask)
        corrupted_mean, corrupted_inverse = _load_statistics(statistics + 2 * padded, padded, unit_mask)
        corrupted = _normalize_with(corrupted, mask, corrupted_mean, corrupted_inverse)
        clean = corrupted
        if COSTED:
            clean = _load(projected, LABELED + UNLABELED, rows, units, padded, mask)
            mean, inverse = _load_statistics(statistics + 4 * padded, padded, unit_mask)
            clean = _normalize_with(clean, mask, mean, inverse)
    return corrupted + n, clean, mean, inverse


@triton.jit(do_not_specialize=UNSPECIALIZED)
def decode_kernel(
    signal, projected, statistics, data, unlabeled_rows, noise, settings, denoiser,
    denoised, signal_statistics, cost,
    noise_stride, settings_stride, vector_stride, cost_stride, width, padded,
    LABELED: tl.constexpr, UNLABELED: tl.constexpr, CLEAN: tl.constexpr,
    DENOISER: tl.constexpr, INPUT: tl.constexpr, COSTED: tl.constexpr, LOWEST: tl.constexpr,
    ROWS: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    """Decoder: uˡ = N(Vˡ⁺¹ ẑˡ⁺¹), ẑˡ = g(z̃ˡ, uˡ) (Eq. 2), and this program's share of ‖zˡ - (ẑˡ - μ)/σ‖² (Eq. 3).

    Programs: (members, blocks of columns). Reads `signal`, which is V ẑ of the level above, and at the top the softmax
    of h̃ (of a regression h̃). Writes `signal_statistics`, and `denoised` where a level below reads it. Every program has
    its own slot in `cost`, and `FusedEngine._read_costs` adds them up: atomic additions would be in no fixed order.
    """
    member, rows, units, unit_mask, column_mask = _program(width, padded, ROWS, UNITS)
    mask = (rows < UNLABELED)[:, None] & unit_mask[None, :]
    u = _load(signal + member * UNLABELED * padded, 0, rows, units, padded, mask)
    z_tilde, z, mean, inverse = _load_latents(
        projected, statistics, data, unlabeled_rows, noise, settings, member, noise_stride, settings_stride,
        rows, units, unit_mask, mask, width, padded, LABELED, UNLABELED, CLEAN, INPUT, COSTED,
    )  # fmt: skip
    a = _load_denoiser(denoiser + member * vector_stride, padded, units, unit_mask, DENOISER)

    # No load below this line: `_normalize` sums over rows.
    u = _normalize(u, mask, UNLABELED, signal_statistics + member * 2 * padded + units, padded, column_mask)
    z_hat = _denoise(z_tilde, u, a, DENOISER)
    if not LOWEST:
        store_mask = (rows < UNLABELED)[:, None] & column_mask[None, :]
        _store(denoised + member * UNLABELED * padded, 0, rows, units, padded, tl.where(mask, z_hat, 0.0), store_mask)
    if COSTED:
        difference = z - (z_hat - mean[None, :]) * inverse[None, :]
        difference = tl.where(mask, difference, 0.0)
        tl.store(cost + member * cost_stride + tl.program_id(1), tl.sum(difference * difference))


@triton.jit(do_not_specialize=UNSPECIALIZED)
def decode_backward_kernel(
    signal, signal_statistics, projected, statistics, data, unlabeled_rows, noise, settings, denoiser,
    grad_denoised,
    grad_signal, grad_latents, grad_statistics, grad_denoiser,
    noise_stride, settings_stride, vector_stride, cost_offset, width, padded,
    LABELED: tl.constexpr, UNLABELED: tl.constexpr, CLEAN: tl.constexpr,
    DENOISER: tl.constexpr, INPUT: tl.constexpr, COSTED: tl.constexpr, LOWEST: tl.constexpr,
    ROWS: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    """Backward of `decode_kernel`: gradients of the signal, of g's parameters, and of this level's z̃, z, μ and σ.

    Programs: (members, blocks of columns). `grad_denoised` is the product of `grad_signal` of the level below
    and V; the LOWEST level has none. `settings + cost_offset` points to this level's λ.
    """
    member, rows, units, unit_mask, column_mask = _program(width, padded, ROWS, UNITS)
    mask = (rows < UNLABELED)[:, None] & unit_mask[None, :]
    store_mask = (rows < UNLABELED)[:, None] & column_mask[None, :]
    u = _load(signal + member * UNLABELED * padded, 0, rows, units, padded, mask)
    z_tilde, z, mean, inverse = _load_latents(
        projected, statistics, data, unlabeled_rows, noise, settings, member, noise_stride, settings_stride,
        rows, units, unit_mask, mask, width, padded, LABELED, UNLABELED, CLEAN, INPUT, COSTED,
    )  # fmt: skip
    offset = member * UNLABELED * padded
    gradient = tl.zeros([ROWS, UNITS], tl.float32)
    if not LOWEST:
        gradient += _load(grad_denoised + offset, 0, rows, units, padded, mask)
    a = _load_denoiser(denoiser + member * vector_stride, padded, units, unit_mask, DENOISER)
    weight = tl.load(settings + member * settings_stride + cost_offset) * 2 / UNLABELED / width
    signal_mean, signal_inverse = _load_statistics(signal_statistics + member * 2 * padded + units, padded, unit_mask)

    # No load below this line: sums over rows follow.
    u = _normalize_with(u, mask, signal_mean, signal_inverse)
    latents = grad_latents + member * (UNLABELED + CLEAN) * padded
    if COSTED:
        z_hat = _denoise(z_tilde, u, a, DENOISER)
        z_hat_bn = (z_hat - mean[None, :]) * inverse[None, :]
        difference = tl.where(mask, z - z_hat_bn, 0.0) * weight
        gradient -= difference * inverse[None, :]
        if not INPUT:
            _store(latents, UNLABELED, rows, units, padded, difference, store_mask)
            # ẑ_BN = (ẑ - μ)/σ, and `difference` is the gradient of z and minus that of ẑ_BN: the gradients of μ and σ
            # are Σ difference/σ and Σ difference·ẑ_BN/σ.
            grads = grad_statistics + member * 2 * padded + units
            total, along = _two_sums(difference, difference * z_hat_bn)
            tl.store(grads, total * inverse, mask=column_mask)
            tl.store(grads + padded, along * inverse, mask=column_mask)
    grad_parameters = grad_denoiser + member * vector_stride
    grad_u, grad_z_tilde = _denoise_backward(
        gradient, z_tilde, u, a, grad_parameters, padded, units, column_mask, DENOISER
    )
    if not INPUT:
        _store(latents, 0, rows, units, padded, grad_z_tilde, store_mask)
    result = _normalize_backward(grad_u, u, signal_inverse, UNLABELED)
    _store(grad_signal + offset, 0, rows, units, padded, result, store_mask)


# Top


@triton.jit
def _softmax(scores, mask):
    """Softmax and log-softmax of each row of a tile ``(ROWS, UNITS)``; `mask` must be true somewhere in every row."""
    scores = tl.where(mask, scores, float("-inf"))
    scores -= tl.max(scores, 1)[:, None]
    exponentials = tl.where(mask, tl.exp(scores), 0.0)
    total = tl.sum(exponentials, 1)
    return exponentials / total[:, None], scores - tl.log(total)[:, None]


@triton.jit
def top_kernel(
    scores, targets, weights, labeled_rows, signal, grad_scores, cost,
    cost_stride, scores_rows, width, padded,
    LABELED: tl.constexpr, UNLABELED: tl.constexpr, WEIGHTED: tl.constexpr, CLASSES: tl.constexpr,
    ROWS: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    """Supervised cost of the labeled rows with its gradient (program 0), and the decoder's first signal (program 1).

    Programs: (members, 2), or (members, 1) without a decoder. `scores` ``(members, scores_rows, padded)`` is h̃ of the
    top, `grad_scores` ``(members, labeled + unlabeled, padded)`` its gradient. A program holds all units (UNITS >=
    width, at most 128) of all its rows, so a softmax is one pass. `targets` ``(n,)``, or ``(n, width)`` if they are
    values, and `weights` ``(n,)`` are those of the whole data set, indexed by `labeled_rows` ``(members, labeled)``.
    """
    member = tl.program_id(0).to(tl.int64)
    rows, units = tl.arange(0, ROWS), tl.arange(0, UNITS)
    scores += member * scores_rows * padded
    grad_scores += member * (LABELED + UNLABELED) * padded
    column_mask = units < padded
    if tl.program_id(1) == 0:
        mask = (rows < LABELED)[:, None] & (units < width)[None, :]
        offsets = rows[:, None] * padded + units[None, :]
        tile = tl.load(scores + offsets, mask=mask, other=0.0)
        index = tl.load(labeled_rows + member * LABELED + rows, mask=rows < LABELED, other=0)
        share = tl.where(rows < LABELED, 1.0, 0.0)
        if WEIGHTED:
            share *= tl.load(weights + index, mask=rows < LABELED, other=0.0)
        # The smallest normal float32: a batch whose weights are all zero costs nothing, as in `Ladder.costs`.
        share /= tl.maximum(tl.sum(share), 1.1754943508222875e-38)
        if CLASSES:
            is_target = units[None, :] == tl.load(targets + index, mask=rows < LABELED, other=0)[:, None]
            # The mask covers all rows of the tile: a row without any unit would be -inf - (-inf) = NaN.
            probabilities, logarithms = _softmax(tile, (units < width)[None, :] & (rows >= 0)[:, None])
            row_cost = -tl.sum(tl.where(is_target, logarithms, 0.0), 1)
            gradient = (probabilities - tl.where(is_target, 1.0, 0.0)) * share[:, None]
        else:
            values = tl.load(targets + index[:, None] * width + units[None, :], mask=mask, other=0.0)
            row_cost = tl.sum((tile - values) * (tile - values), 1) / width
            gradient = (tile - values) * share[:, None] * 2 / width
        tl.store(cost + member * cost_stride, tl.sum(row_cost * share))
        store_mask = (rows < LABELED)[:, None] & column_mask[None, :]
        tl.store(grad_scores + offsets, tl.where(mask, gradient, 0.0), mask=store_mask)
    else:
        mask = (rows < UNLABELED)[:, None] & (units < width)[None, :]
        offsets = rows[:, None] * padded + units[None, :]
        tile = tl.load(scores + LABELED * padded + offsets, mask=mask, other=0.0)
        if CLASSES:
            tile, _ = _softmax(tile, (units < width)[None, :] & (rows >= 0)[:, None])
        store_mask = (rows < UNLABELED)[:, None] & column_mask[None, :]
        result = tl.where(mask, tile, 0.0).to(signal.dtype.element_ty)
        tl.store(signal + member * UNLABELED * padded + offsets, result, mask=store_mask)


@triton.jit
def top_backward_kernel(
    scores, grad_signal, grad_scores, scores_rows, width, padded,
    LABELED: tl.constexpr, UNLABELED: tl.constexpr, CLASSES: tl.constexpr, ROWS: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    """Gradient of the unlabeled rows' scores, from that of the decoder's first signal, through the softmax.

    Programs: (members,). `grad_signal` ``(members, unlabeled, padded)``; the others as in `top_kernel`.
    """
    member = tl.program_id(0).to(tl.int64)
    rows, units = tl.arange(0, ROWS), tl.arange(0, UNITS)
    mask = (rows < UNLABELED)[:, None] & (units < width)[None, :]
    offsets = rows[:, None] * padded + units[None, :]
    scores += (member * scores_rows + LABELED) * padded
    grad_scores += (member * (LABELED + UNLABELED) + LABELED) * padded
    gradient = tl.load(grad_signal + member * UNLABELED * padded + offsets, mask=mask, other=0.0).to(tl.float32)
    if CLASSES:
        tile = tl.load(scores + offsets, mask=mask, other=0.0)
        probabilities, _ = _softmax(tile, (units < width)[None, :] & (rows >= 0)[:, None])
        gradient = probabilities * (gradient - tl.sum(gradient * probabilities, 1)[:, None])
    store_mask = (rows < UNLABELED)[:, None] & (units < padded)[None, :]
    tl.store(grad_scores + offsets, tl.where(mask, gradient, 0.0), mask=store_mask)


# Optimizer


@triton.jit
def adam_kernel(
    parameters, gradients, means, squares, copies, rates, count, size, partial_stride,
    PARTIALS: tl.constexpr, COPIED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Adam (0.9, 0.999, 1e-8) for `count` parameters of each member; also writes the copies that products read.

    Programs: (blocks of BLOCK parameters, members). `parameters`, `means`, `squares` and `copies` are ``(members,
    size)``; `gradients` is ``(PARTIALS, members, size)`` and summed over its first dimension. Each pointer points to
    the first of the `count` parameters. ``rates (members, 2)``: the learning rate over 1 - 0.9ᵗ, and 1/√(1 - 0.999ᵗ).

    It is bound by memory: for a parameter of a matrix it reads gradient and first moment (bf16), second moment and
    parameter (float32), 12 bytes, and writes first moment and copy (bf16), second moment and parameter, 12 bytes.
    """
    member = tl.program_id(1).to(tl.int64)
    position = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = position < count
    position += member * size
    rate = tl.load(rates + member * 2)
    correction = tl.load(rates + member * 2 + 1)
    gradient = tl.zeros([BLOCK], tl.float32)
    for partial in tl.static_range(PARTIALS):
        gradient += tl.load(gradients + partial * partial_stride + position, mask=mask, other=0.0).to(tl.float32)
    mean = tl.load(means + position, mask=mask, other=0.0).to(tl.float32)
    square = tl.load(squares + position, mask=mask, other=0.0)
    parameter = tl.load(parameters + position, mask=mask, other=0.0)
    mean += 0.1 * (gradient - mean)
    square = 0.999 * square + 0.001 * gradient * gradient
    parameter -= rate * mean / (tl.sqrt(square) * correction + 1e-8)
    tl.store(means + position, mean.to(means.dtype.element_ty), mask=mask)
    tl.store(squares + position, square, mask=mask)
    tl.store(parameters + position, parameter, mask=mask)
    if COPIED:
        tl.store(copies + position, parameter.to(copies.dtype.element_ty), mask=mask)
