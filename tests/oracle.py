"""The Ladder network in NumPy and float64, as plainly as possible: the reference for the PyTorch code.

It follows Algorithm 1 of the paper step by step. Nothing is imported from tikas; of the rung specs (`Dense`, `Conv`,
...) only the fields are read. Every step that other implementations get wrong is a method of `Oracle`, so that a test
can override it with the mistake.

The arrays of a level are ``(rows, units)`` or ``(rows, channels, height, width)``. All of it also computes with complex
parameters, which gives exact derivatives: see `gradients`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy.special import erf

Array = np.ndarray
Shape = tuple[int, ...]
Parameters = dict[str, Array]

EPSILON = 1e-10
MIN_POOL_DEVIATION = 0.1


# Levels: the encoder operation up and the decoder operation down


class DenseLayer:
    """A matrix product; maps below it are flattened."""

    pools = False

    def __init__(self, spec: Any, below: Shape) -> None:
        self.below = below
        self.shape = (spec.features,)
        self.weight_shape = (spec.features, math.prod(below))
        self.back_shape = (math.prod(below), spec.features)

    def up(self, h: Array, weight: Array) -> Array:
        """W h"""
        return h.reshape(len(h), -1) @ weight.T

    def down(self, denoised: Array, weight: Array) -> Array:
        """V ẑ"""
        return (denoised @ weight.T).reshape(len(denoised), *self.below)


class ConvLayer:
    """A convolution; the decoder operation is one with mirrored padding."""

    pools = False

    def __init__(self, spec: Any, below: Shape) -> None:
        k = spec.kernel
        self.kernel, self.stride = k, spec.stride
        self.before, self.after = {"valid": (0, 0), "same": ((k - 1) // 2, k // 2), "full": (k - 1, k - 1)}[
            spec.padding
        ]
        # The map that stride 1 would make; a stride takes some of its positions.
        self.dense_shape = (spec.features, *(side + self.before + self.after - k + 1 for side in below[1:]))
        self.shape = (spec.features, *(len(range(0, side, self.stride)) for side in self.dense_shape[1:]))
        self.weight_shape = (spec.features, below[0], k, k)
        self.back_shape = (below[0], spec.features, k, k)

    def up(self, h: Array, weight: Array) -> Array:
        return convolve(h, weight, self.before, self.after)[:, :, :: self.stride, :: self.stride]

    def down(self, denoised: Array, weight: Array) -> Array:
        spread = np.zeros((len(denoised), *self.dense_shape), denoised.dtype)
        spread[:, :, :: self.stride, :: self.stride] = denoised
        return convolve(spread, weight, self.kernel - 1 - self.before, self.kernel - 1 - self.after)


def convolve(x: Array, kernels: Array, before: int, after: int) -> Array:
    """At each position of the padded maps, the sum of kernel times values; `kernels` are ``(out, in, k, k)``."""
    padded = np.pad(x, ((0, 0), (0, 0), (before, after), (before, after)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, kernels.shape[2:], axis=(2, 3))
    return np.moveaxis(np.tensordot(windows, kernels, axes=([1, 4, 5], [1, 2, 3])), -1, 1)


class PoolLayer:
    """The maximum or mean of each window; back down, each value is copied to its window."""

    pools = True
    weight_shape = back_shape = None

    def __init__(self, spec: Any, below: Shape) -> None:
        self.below = below
        self.pool = {"max": np.max, "mean": np.mean}[spec.kind]
        self.heights, self.widths = (self.windows(side, spec) for side in below[1:])
        self.shape = (below[0], len(self.heights), len(self.widths))

    @staticmethod
    def windows(side: int, spec: Any) -> list[slice]:
        """From the first position until one window meets the end: there it is cut off or, rounding down, left out."""
        stride = spec.stride or spec.size
        windows = [slice(0, spec.size)]
        while windows[-1].stop < side and windows[-1].start + stride < side:
            start = windows[-1].start + stride
            windows.append(slice(start, start + spec.size))
        return [window for window in windows if spec.rounding == "up" or window.stop <= side]

    def up(self, h: Array, weight: None) -> Array:  # noqa: ARG002
        rows = [[self.pool(h[:, :, i, j], axis=(2, 3)) for j in self.widths] for i in self.heights]
        return np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)

    def down(self, denoised: Array, weight: None) -> Array:  # noqa: ARG002
        total, count = np.zeros((len(denoised), *self.below), denoised.dtype), np.zeros(self.below)
        for i, height in enumerate(self.heights):
            for j, width in enumerate(self.widths):
                total[:, :, height, width] += denoised[:, :, i, j, None, None]
                count[:, height, width] += 1
        return total / np.maximum(count, 1)


class GlobalLayer:
    """The mean of each channel; back down, it is copied to every position."""

    pools = True
    weight_shape = back_shape = None

    def __init__(self, spec: Any, below: Shape) -> None:  # noqa: ARG002
        self.below = below
        self.shape = below[:1]

    def up(self, h: Array, weight: None) -> Array:  # noqa: ARG002
        return h.mean(axis=(2, 3))

    def down(self, denoised: Array, weight: None) -> Array:  # noqa: ARG002
        return np.tile(denoised[:, :, None, None], (1, 1, *self.below[1:]))


Layer = DenseLayer | ConvLayer | PoolLayer | GlobalLayer
LAYERS: dict[str, Callable[[Any, Shape], Layer]] = {
    "dense": DenseLayer,
    "conv": ConvLayer,
    "max": PoolLayer,
    "mean": PoolLayer,
    "global": GlobalLayer,
}


# Activations φ


def log_softmax(x: Array) -> Array:
    shifted = x - x.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def softmax(x: Array) -> Array:
    return np.exp(log_softmax(x))


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": lambda x: np.where(x.real > 0, x, 0),
    "leaky_relu": lambda x: np.where(x.real > 0, x, 0.1 * x),
    "tanh": np.tanh,
    "gelu": lambda x: x * (1 + erf(x / math.sqrt(2))) / 2,
    "linear": lambda x: x,
    "softmax": softmax,  # the top of a classifier
    "output": lambda x: x,  # the top of a regression
}
WITH_BETA = {"relu", "leaky_relu", "tanh", "gelu", "softmax", "output"}
WITH_GAMMA = {"tanh", "gelu", "softmax", "output"}


# Denoising functions ẑ = g(z̃, u)


def gaussian(z: Array, u: Array, a: Array) -> Array:
    """g: ẑ = (z̃ − μ(u)) υ(u) + μ(u)"""
    a1, a2, a3, a4, a5, a6, a7, a8, a9, a10 = a
    mu = a1 * sigmoid(a2 * u + a3) + a4 * u + a5
    v = a6 * sigmoid(a7 * u + a8) + a9 * u + a10
    return (z - mu) * v + mu


def mlp(z: Array, u: Array, a: Array, b: Array, c: Array) -> Array:
    """g1: ẑ = a ξ + b sigmoid(c ξ),  ξ = [1, z̃, u, z̃ u]"""
    return linear(z, u, a) + b[0] * sigmoid(linear(z, u, c))


def no_product(z: Array, u: Array, a: Array, b: Array, c: Array) -> Array:
    """g2: ẑ = a ξ' + b sigmoid(c ξ'),  ξ' = [1, z̃, u]"""
    return a[0] + a[1] * z + a[2] * u + b[0] * sigmoid(c[0] + c[1] * z + c[2] * u)


def linear(z: Array, u: Array, a: Array) -> Array:
    """g3: ẑ = a ξ,  ξ = [1, z̃, u, z̃ u]"""
    return a[0] + a[1] * z + a[2] * u + a[3] * z * u


def additive(z: Array, u: Array, a: Array) -> Array:
    """g4: ẑ = a1 u + a2 sigmoid(a3 u + a4) + a5 z̃ + a6 sigmoid(a7 z̃ + a8) + a9"""
    a1, a2, a3, a4, a5, a6, a7, a8, a9 = a
    return a1 * u + a2 * sigmoid(a3 * u + a4) + a5 * z + a6 * sigmoid(a7 * z + a8) + a9


DENOISERS: dict[str, tuple[Callable[..., Array], dict[str, int]]] = {
    "gaussian": (gaussian, {"a": 10}),
    "mlp": (mlp, {"a": 4, "b": 1, "c": 4}),
    "no-product": (no_product, {"a": 3, "b": 1, "c": 3}),
    "linear": (linear, {"a": 4}),
    "additive": (additive, {"a": 9}),
}
"""The functions, and the rows of their parameters."""


# Batch statistics


class Statistics(NamedTuple):
    """Mean μ and deviation σ of each unit, or of each channel of maps."""

    mean: Array
    deviation: Array

    def normalize(self, x: Array) -> Array:
        """(x − μ)/σ"""
        return (x - per_unit(self.mean, x)) / per_unit(self.deviation, x)


def batch_statistics(x: Array) -> Statistics:
    """μ and σ = √(variance + ε) over the rows, and the positions of maps; the variance is the biased one, 1/N."""
    axes = (0, *range(2, x.ndim))
    mean = x.mean(axis=axes)
    variance = ((x - per_unit(mean, x)) ** 2).mean(axis=axes)
    return Statistics(mean, np.sqrt(variance + EPSILON))


def batchnorm(x: Array) -> Array:
    return batch_statistics(x).normalize(x)


def per_unit(parameter: Array, x: Array) -> Array:
    """A parameter of each unit, or of each channel, shaped to broadcast over the rows `x`."""
    return parameter.reshape(*parameter.shape, *[1] * (x.ndim - 2))


# The ladder


@dataclass(frozen=True)
class Settings:
    """The arguments of `tikas.Ladder`; `noise` and `costs` have one value for each level, the input first."""

    input_shape: Shape
    rungs: tuple[Any, ...]
    noise: tuple[float, ...]
    costs: tuple[float, ...]
    denoiser: str = "gaussian"
    task: str = "classification"

    @property
    def top(self) -> int:
        """L"""
        return len(self.rungs)

    @cached_property
    def layers(self) -> list[Layer]:
        """The layer of each rung; that of level l is ``layers[l - 1]``."""
        layers: list[Layer] = []
        for spec in self.rungs:
            below = layers[-1].shape if layers else self.input_shape
            layers.append(LAYERS[spec.kind](spec, below))
        return layers

    @property
    def shapes(self) -> list[Shape]:
        """The shape of each level, the input first."""
        return [self.input_shape, *(layer.shape for layer in self.layers)]

    @property
    def lowest(self) -> int:
        """The lowest level with a denoising cost, where the decoder ends; L + 1 if there is none."""
        return next((level for level, cost in enumerate(self.costs) if cost), self.top + 1)

    def activation(self, level: int) -> str:
        if level == self.top:
            return "softmax" if self.task == "classification" else "output"
        spec = self.rungs[level - 1]
        return (spec.activation or "relu") if spec.kind in ("dense", "conv") else "linear"

    def has_beta(self, level: int) -> bool:
        return self.activation(level) in WITH_BETA

    def has_gamma(self, level: int) -> bool:
        scaled = level < self.top or getattr(self.rungs[-1], "scale", True)
        return scaled and self.activation(level) in WITH_GAMMA

    def parameter_shapes(self) -> dict[str, Shape]:
        """The parameters that the costs need, and no other."""
        shapes: dict[str, Shape | None] = {}
        for level, (units, *_) in enumerate(self.shapes):
            if level > 0:
                layer = self.layers[level - 1]
                shapes[f"rungs.{level}.weight"] = layer.weight_shape
                shapes[f"rungs.{level}.beta"] = (units,) if self.has_beta(level) else None
                shapes[f"rungs.{level}.gamma"] = (units,) if self.has_gamma(level) else None
                shapes[f"rungs.{level}.back.weight"] = layer.back_shape if level > self.lowest else None
            if level >= self.lowest:
                for name, rows in DENOISERS[self.denoiser][1].items():
                    shapes[f"rungs.{level}.denoiser.{name}"] = (rows, units)
        return {name: shape for name, shape in shapes.items() if shape is not None}


@dataclass(frozen=True)
class Level:
    """What one pass of the encoder computes at one level."""

    statistics: Statistics  # of the values before normalization
    z: Array  # normalized, then with noise in the corrupted pass
    scores: Array  # γ·(z + β)
    h: Array  # φ(γ·(z + β))


class Costs(NamedTuple):
    total: Any
    supervised: Any
    denoising: Array


@dataclass(frozen=True)
class Oracle:
    settings: Settings
    parameters: Parameters

    def costs(
        self,
        unlabeled: Array,
        labeled: Array,
        targets: Array,
        noise: Sequence[Array],
        weights: Array | None = None,
    ) -> Costs:
        """C = C_c + Σ λ_l C_d(l). The noise is standard normal, for the labeled rows and then the unlabeled ones."""
        noise = [deviation * draw for deviation, draw in zip(self.settings.noise, noise, strict=True)]
        corrupted, corrupted_labeled = self.encode_corrupted(unlabeled, labeled, noise)
        supervised = self.supervised(corrupted_labeled[-1].scores, targets, weights)
        denoising = self.denoising(corrupted, self.encode_clean(unlabeled))
        return Costs(supervised + np.dot(self.settings.costs, denoising), supervised, denoising)

    # Encoder

    def encode_corrupted(
        self, unlabeled: Array, labeled: Array, noise: Sequence[Array]
    ) -> tuple[list[Level], list[Level]]:
        """The unlabeled and the labeled rows, each normalized with their own statistics."""
        count = len(labeled)
        return (
            self.encode(unlabeled, [draw[count:] for draw in noise]),
            self.encode(labeled, [draw[:count] for draw in noise]),
        )

    def encode_clean(self, rows: Array, statistics: Sequence[Statistics] | None = None) -> list[Level]:
        return self.encode(rows, [np.zeros(())] * (self.settings.top + 1), statistics)

    def encode(
        self, rows: Array, noise: Sequence[Array], statistics: Sequence[Statistics] | None = None
    ) -> list[Level]:
        """Each level, the input first, normalized with the statistics of these rows or with those given.

        h̃(0) = z̃(0) = x + n
        z̃(l) = batchnorm(W(l) h̃(l−1)) + n
        h̃(l) = φ(γ(l)·(z̃(l) + β(l)))
        """
        z = rows + noise[0]
        levels = [Level(Statistics(np.zeros(rows.shape[1]), np.ones(rows.shape[1])), z, z, z)]
        for level in range(1, self.settings.top + 1):
            projected = self.up(level, levels[-1].h)
            z, used = self.normalize(projected, noise[level], statistics[level] if statistics else None)
            scores = self.scale(level, z)
            levels.append(Level(used, z, scores, self.activate(level, scores)))
        return levels

    def up(self, level: int, h: Array) -> Array:
        """W h"""
        return self.settings.layers[level - 1].up(h, self.parameters.get(f"rungs.{level}.weight"))

    def normalize(self, projected: Array, noise: Array, statistics: Statistics | None) -> tuple[Array, Statistics]:
        """z̃, and the statistics that normalized it. Noise is added after them."""
        statistics = statistics or batch_statistics(projected)
        return statistics.normalize(projected) + noise, statistics

    def scale(self, level: int, z: Array) -> Array:
        """γ·(z + β)"""
        if self.settings.has_beta(level):
            z = z + per_unit(self.parameters[f"rungs.{level}.beta"], z)
        if self.settings.has_gamma(level):
            z = z * per_unit(self.parameters[f"rungs.{level}.gamma"], z)
        return z

    def activate(self, level: int, scores: Array) -> Array:
        """φ"""
        return ACTIVATIONS[self.settings.activation(level)](scores)

    # Decoder

    def denoising(self, corrupted: list[Level], clean: list[Level]) -> Array:
        """C_d of each level, over the unlabeled rows.

        u(L) = batchnorm(h̃(L));  u(l) = batchnorm(V(l+1) ẑ(l+1))
        ẑ(l) = g(z̃(l), u(l))
        C_d(l) = ‖z(l) − (ẑ(l) − μ(l))/σ(l)‖² / (N m(l)), with the clean μ(l) and σ(l)
        """
        settings = self.settings
        costs: list[Any] = [0.0] * (settings.top + 1)
        above = corrupted[-1].h
        for level in range(settings.top, settings.lowest - 1, -1):
            denoised = self.denoise(level, corrupted[level].z, batchnorm(above))
            if settings.costs[level]:
                compared = self.normalize_denoised(level, denoised, clean[level].statistics)
                costs[level] = ((clean[level].z - compared) ** 2).mean()
            if level > settings.lowest:
                above = self.down(level, self.sent_down(level, denoised, clean[level].statistics))
        return np.array(costs)

    def denoise(self, level: int, z: Array, u: Array) -> Array:
        """g(z̃, u)"""
        function, names = DENOISERS[self.settings.denoiser]
        parameters = {name: per_unit(self.parameters[f"rungs.{level}.denoiser.{name}"], z) for name in names}
        return function(z, u, **parameters)

    def normalize_denoised(self, level: int, denoised: Array, clean: Statistics) -> Array:
        """(ẑ − μ)/σ. The input level has mean 0 and deviation 1.

        Below the top, a channel of zeros has almost no deviation after pooling; the cost takes at least 0.1.
        """
        if 0 < level < self.settings.top and self.settings.layers[level - 1].pools:
            clean = clean._replace(deviation=at_least(clean.deviation, MIN_POOL_DEVIATION))
        return clean.normalize(denoised)

    def sent_down(self, level: int, denoised: Array, clean: Statistics) -> Array:  # noqa: ARG002
        """The input of the decoder operation of the level: ẑ, not normalized."""
        return denoised

    def down(self, level: int, denoised: Array) -> Array:
        """V ẑ"""
        return self.settings.layers[level - 1].down(denoised, self.parameters.get(f"rungs.{level}.back.weight"))

    # Supervised cost

    def supervised(self, scores: Array, targets: Array, weights: Array | None) -> Any:
        """−log P(ỹ = t | x), or for regression the squared error: the weighted mean over the labeled rows."""
        if self.settings.task == "classification":
            errors = -log_softmax(scores)[np.arange(len(targets)), targets]
        else:
            errors = ((scores - targets.reshape(scores.shape)) ** 2).mean(axis=1)
        return np.average(errors, weights=weights)

    # Eval mode

    def calibrate(self, rows: Array) -> list[Statistics]:
        """The statistics of all rows at each level, each from rows that the levels below have normalized."""
        return [level.statistics for level in self.encode_clean(rows)]

    def predict(self, rows: Array, statistics: Sequence[Statistics]) -> Array:
        """The logits, or the regression output."""
        return self.encode_clean(rows, statistics)[-1].scores


def at_least(x: Array, bound: float) -> Array:
    return np.where(x.real > bound, x, bound)


# Random parameters and batches, and gradients


@dataclass(frozen=True)
class Batch:
    """The rows, targets and noise of one update."""

    unlabeled: Array
    labeled: Array
    targets: Array
    noise: list[Array]


def as_float32(values: Array) -> Array:
    """Round to what float32 can hold, so that both precisions start from equal numbers."""
    return values.astype(np.float32).astype(np.float64)


def random_parameters(settings: Settings, rng: np.random.Generator) -> Parameters:
    """Draw parameters, none at zero or at its first value, so that an unused or swapped one shows."""

    def draw(name: str, shape: Shape) -> Array:
        if name.endswith("gamma"):
            return rng.uniform(0.6, 1.6, shape)
        if name.endswith("weight"):
            return rng.normal(size=shape) / math.sqrt(math.prod(shape[1:]))
        return rng.normal(scale=0.6, size=shape)

    return {name: as_float32(draw(name, shape)) for name, shape in settings.parameter_shapes().items()}


def random_batch(settings: Settings, rng: np.random.Generator, unlabeled: int = 11, labeled: int = 7) -> Batch:
    count = labeled + unlabeled
    rows = as_float32(rng.normal(0.4, 1.3, (count, *settings.input_shape)))
    if settings.task == "classification":
        targets = rng.integers(settings.shapes[-1][0], size=labeled)
    else:
        targets = as_float32(rng.normal(1.0, 2.0, (labeled, *settings.shapes[-1])))
    noise = [as_float32(rng.normal(size=(count, *shape))) for shape in settings.shapes]
    return Batch(rows[labeled:], rows[:labeled], targets, noise)


def gradients(cost: Callable[[Parameters], Any], parameters: Parameters) -> Parameters:
    """The derivative of `cost` by every entry of every parameter, exact to rounding: f'(x) = Im f(x + ih)/h.

    With a complex step nothing is subtracted, so h can be tiny.
    """
    step = 1e-30
    found = {}
    for name, values in parameters.items():
        moved = values.astype(complex)
        found[name] = np.empty_like(values)
        for index in np.ndindex(values.shape):
            moved[index] += 1j * step
            found[name][index] = cost({**parameters, name: moved}).imag / step
            moved[index] = values[index]
    return found
