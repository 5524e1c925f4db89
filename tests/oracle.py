"""A ladder in NumPy float64, Algorithm 1 one plain step after another: the oracle of the fast ladder.

Nothing here comes from `tikas`. Every step that other implementations get wrong is a method of its own, so that a test
can override it and see what the mistake would give.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from oracle_rungs import Array, Dense, Rung, Shape

Parameters = dict[str, Array]
Statistics = list[tuple[Array, Array]]

EPSILON = 1e-10
SOFTMAX, OUTPUT = "softmax", "output"
WITH_BETA = {"relu", "leaky_relu", "tanh", "gelu", SOFTMAX, OUTPUT}
WITH_GAMMA = {"tanh", "gelu", SOFTMAX, OUTPUT}


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def log_softmax(scores: Array) -> Array:
    shifted = scores - scores.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def softmax(scores: Array) -> Array:
    return np.exp(log_softmax(scores))


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": lambda x: np.maximum(x, 0),
    "leaky_relu": lambda x: np.where(x > 0, x, 0.1 * x),
    "tanh": np.tanh,
    "gelu": lambda x: x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2,
    "linear": lambda x: x,
    SOFTMAX: softmax,
    OUTPUT: lambda x: x,
}


def gaussian(z: Array, u: Array, a: Array) -> Array:
    """The proposed g: v(u)·(z̃ − μ(u)) + μ(u)."""
    a1, a2, a3, a4, a5, a6, a7, a8, a9, a10 = a
    mu = a1 * sigmoid(a2 * u + a3) + a4 * u + a5
    v = a6 * sigmoid(a7 * u + a8) + a9 * u + a10
    return (z - mu) * v + mu


def mlp(z: Array, u: Array, a: Array, b: Array, c: Array) -> Array:
    """g1: a·ξ + b·sigmoid(c·ξ), ξ = [1, z̃, u, z̃u]."""
    return linear(z, u, a) + b[0] * sigmoid(linear(z, u, c))


def no_product(z: Array, u: Array, a: Array, b: Array, c: Array) -> Array:
    """g2: as g1 with ξ' = [1, z̃, u]."""
    return a[0] + a[1] * z + a[2] * u + b[0] * sigmoid(c[0] + c[1] * z + c[2] * u)


def linear(z: Array, u: Array, a: Array) -> Array:
    """g3: a·ξ."""
    return a[0] + a[1] * z + a[2] * u + a[3] * z * u


def additive(z: Array, u: Array, a: Array) -> Array:
    """g4: u shifts ẑ and modulates nothing."""
    a1, a2, a3, a4, a5, a6, a7, a8, a9 = a
    return a1 * u + a2 * sigmoid(a3 * u + a4) + a5 * z + a6 * sigmoid(a7 * z + a8) + a9


DENOISERS: dict[str, tuple[Callable[..., Array], dict[str, int]]] = {
    "gaussian": (gaussian, {"a": 10}),
    "mlp": (mlp, {"a": 4, "b": 1, "c": 4}),
    "no-product": (no_product, {"a": 3, "b": 1, "c": 3}),
    "linear": (linear, {"a": 4}),
    "additive": (additive, {"a": 9}),
}


def batch_statistics(values: Array) -> tuple[Array, Array]:
    """Mean and deviation over the rows, and the positions of maps; the variance is the biased one, 1/N."""
    axes = (0, *range(2, values.ndim))
    mean = values.mean(axis=axes)
    squares = (values - per_unit(mean, values)) ** 2
    return mean, np.sqrt(squares.mean(axis=axes) + EPSILON)


def per_unit(parameter: Array, values: Array) -> Array:
    """A parameter of each unit, or of each channel of maps, against rows of values."""
    return parameter.reshape(*parameter.shape, *[1] * (values.ndim - 2))


def batchnorm(values: Array) -> Array:
    return standardised(values, *batch_statistics(values))


def standardised(values: Array, mean: Array, deviation: Array) -> Array:
    return (values - per_unit(mean, values)) / per_unit(deviation, values)


@dataclass(frozen=True)
class Description:
    """A ladder in words and numbers; `noise` and `costs` run from the input to the top."""

    input_shape: Shape
    rungs: tuple[Rung, ...]
    activations: tuple[str, ...]  # of the hidden rungs; the task decides the top
    noise: tuple[float, ...]
    costs: tuple[float, ...]
    denoiser: str = "gaussian"
    task: str = "classification"
    scaled_top: bool = True

    @property
    def top(self) -> int:
        return len(self.rungs)

    @property
    def levels(self) -> list[Shape]:
        """The shape of every level, the input first."""
        levels = [self.input_shape]
        for rung in self.rungs:
            levels.append(rung.shape(levels[-1]))
        return levels

    @property
    def lowest(self) -> int:
        """The lowest level with a denoising cost, where the way down ends; above the top where there is none."""
        return next((level for level, cost in enumerate(self.costs) if cost), self.top + 1)

    def activation(self, level: int) -> str:
        if level < self.top:
            return self.activations[level - 1]
        return SOFTMAX if self.task == "classification" else OUTPUT

    def has_gamma(self, level: int) -> bool:
        return self.activation(level) in WITH_GAMMA and (self.scaled_top or level < self.top)

    def shapes(self) -> dict[str, Shape]:
        """Every parameter that the ladder needs, and no other."""
        shapes: dict[str, Shape | None] = {}
        levels = self.levels
        for level, (units, *_) in enumerate(levels):
            if level > 0:
                rung, below = self.rungs[level - 1], levels[level - 1]
                shapes[f"rungs.{level}.weight"] = rung.weight_shape(below)
                if self.activation(level) in WITH_BETA:
                    shapes[f"rungs.{level}.beta"] = (units,)
                if self.has_gamma(level):
                    shapes[f"rungs.{level}.gamma"] = (units,)
                if level > self.lowest:
                    shapes[f"rungs.{level}.back.weight"] = rung.back_shape(below)
            if level >= self.lowest:
                for name, count in DENOISERS[self.denoiser][1].items():
                    shapes[f"rungs.{level}.denoiser.{name}"] = (count, units)
        return {name: shape for name, shape in shapes.items() if shape is not None}


def dense(units: tuple[int, ...], activations: tuple[str, ...], *settings, **more) -> Description:
    """A ladder of dense rungs; `units` run from the input to the top."""
    return Description(units[:1], tuple(map(Dense, units[1:])), activations, *settings, **more)


@dataclass(frozen=True)
class Level:
    """What one pass leaves at one level."""

    mean: Array  # of the values before normalisation
    deviation: Array
    z: Array  # normalised, then noised on the corrupted path
    scores: Array  # γ·(z + β)
    h: Array


@dataclass(frozen=True)
class Costs:
    total: float
    supervised: float
    denoising: Array


@dataclass(frozen=True)
class Oracle:
    description: Description
    parameters: Parameters

    def costs(
        self,
        unlabelled: Array,
        labelled: Array,
        targets: Array,
        noise: Sequence[Array],
        weights: Array | None = None,
    ) -> Costs:
        noise = [deviation * draw for deviation, draw in zip(self.description.noise, noise, strict=True)]
        corrupted, corrupted_labelled = self.two_streams(unlabelled, labelled, noise)
        supervised = self.supervised(corrupted_labelled[-1].scores, targets, weights)
        denoising = self.denoising(corrupted, self.clean(unlabelled))
        total = supervised + float(np.dot(self.description.costs, denoising))
        return Costs(total, supervised, denoising)

    def two_streams(
        self, unlabelled: Array, labelled: Array, noise: Sequence[Array]
    ) -> tuple[list[Level], list[Level]]:
        """Each stream by itself, with its own statistics. Noise holds the labelled rows first."""
        count = len(labelled)
        return (
            self.encode(unlabelled, [draw[count:] for draw in noise]),
            self.encode(labelled, [draw[:count] for draw in noise]),
        )

    def clean(self, rows: Array, statistics: Statistics | None = None) -> list[Level]:
        return self.encode(rows, [np.zeros(())] * (self.description.top + 1), statistics)

    def encode(self, rows: Array, noise: Sequence[Array], statistics: Statistics | None = None) -> list[Level]:
        """The way up: with the statistics of these rows, or with the given ones (input first)."""
        z = rows + noise[0]
        levels = [Level(np.zeros(rows.shape[1]), np.ones(rows.shape[1]), z, z, z)]
        for level in range(1, self.description.top + 1):
            raw = self.way_up(level, levels[-1].h)
            z, mean, deviation = self.normalise(raw, noise[level], statistics and statistics[level])
            scores = self.scale(level, z)
            levels.append(Level(mean, deviation, z, scores, self.activate(level, scores)))
        return levels

    def way_up(self, level: int, h: Array) -> Array:
        return self.description.rungs[level - 1].up(h, self.parameters.get(f"rungs.{level}.weight"))

    def way_down(self, level: int, denoised: Array) -> Array:
        rung, below = self.description.rungs[level - 1], self.description.levels[level - 1]
        return rung.down(denoised, self.parameters.get(f"rungs.{level}.back.weight"), below)

    def normalise(self, raw: Array, noise: Array, statistics: tuple[Array, Array] | None) -> tuple[Array, Array, Array]:
        """z, and the mean and deviation that made it. Noise comes after them."""
        mean, deviation = statistics or batch_statistics(raw)
        return standardised(raw, mean, deviation) + noise, mean, deviation

    def scale(self, level: int, z: Array) -> Array:
        if self.description.activation(level) in WITH_BETA:
            z = z + per_unit(self.parameters[f"rungs.{level}.beta"], z)
        if self.description.has_gamma(level):
            z = z * per_unit(self.parameters[f"rungs.{level}.gamma"], z)
        return z

    def activate(self, level: int, scores: Array) -> Array:
        return ACTIVATIONS[self.description.activation(level)](scores)

    def supervised(self, scores: Array, targets: Array, weights: Array | None) -> float:
        if self.description.task == "classification":
            errors = -log_softmax(scores)[np.arange(len(targets)), targets]
        else:
            errors = ((scores - targets.reshape(scores.shape)) ** 2).mean(axis=1)
        return float(np.average(errors, weights=weights))

    def denoising(self, corrupted: list[Level], clean: list[Level]) -> Array:
        """The way down: C_d of every level that has a cost, over the unlabelled rows."""
        description = self.description
        errors = np.zeros(description.top + 1)
        above = corrupted[-1].h
        for level in range(description.top, description.lowest - 1, -1):
            denoised = self.denoise(level, corrupted[level].z, batchnorm(above))
            if description.costs[level]:
                seen = self.standardise(denoised, self.as_costed(level, clean[level]))
                errors[level] = ((clean[level].z - seen) ** 2).mean()
            if level > description.lowest:
                above = self.way_down(level, self.send_down(denoised, clean[level]))
        return errors

    def denoise(self, level: int, z: Array, u: Array) -> Array:
        function, names = DENOISERS[self.description.denoiser]
        return function(z, u, **{n: per_unit(self.parameters[f"rungs.{level}.denoiser.{n}"], z) for n in names})

    def as_costed(self, level: int, clean: Level) -> Level:
        """Below the top, a channel that is silent after pooling hardly deviates; the cost takes 0.1 at least."""
        if level in (0, self.description.top) or not self.description.rungs[level - 1].pools:
            return clean
        return replace(clean, deviation=np.maximum(clean.deviation, 0.1))

    def standardise(self, denoised: Array, clean: Level) -> Array:
        """ẑ as the cost sees it. (The input level has mean 0 and deviation 1: it stays as it is.)"""
        return standardised(denoised, clean.mean, clean.deviation)

    def send_down(self, denoised: Array, clean: Level) -> Array:  # noqa: ARG002
        return denoised

    def calibrate(self, rows: Array) -> Statistics:
        """Statistics of the whole set for eval mode: each rung's come from rows already normalised below."""
        return [(level.mean, level.deviation) for level in self.clean(rows)]

    def predict(self, rows: Array, statistics: Statistics) -> Array:
        """Logits, or the regression output, from given statistics."""
        return self.clean(rows, statistics)[-1].scores


@dataclass(frozen=True)
class Batch:
    """The rows, targets and noise of one update."""

    unlabelled: Array
    labelled: Array
    targets: Array
    noise: list[Array]


def single(values: Array) -> Array:
    """The same values as float32 holds them, so that both precisions start from equal numbers."""
    return values.astype(np.float32).astype(np.float64)


def random_parameters(description: Description, rng: np.random.Generator) -> Parameters:
    """No entry at zero or at its initial value: an unused or swapped parameter has nowhere to hide."""

    def draw(name: str, shape: tuple[int, ...]) -> Array:
        if name.endswith("gamma"):
            return rng.uniform(0.6, 1.6, shape)
        if name.endswith("weight"):
            return rng.normal(size=shape) / math.sqrt(np.prod(shape[1:]))
        return rng.normal(scale=0.6, size=shape)

    return {name: single(draw(name, shape)) for name, shape in description.shapes().items()}


def random_batch(description: Description, rng: np.random.Generator, unlabelled: int = 11, labelled: int = 7) -> Batch:
    levels = description.levels
    rows = single(rng.normal(0.4, 1.3, (labelled + unlabelled, *levels[0])))
    if description.task == "classification":
        targets = rng.integers(levels[-1][0], size=labelled)
    else:
        targets = single(rng.normal(1.0, 2.0, (labelled, *levels[-1])))
    noise = [single(rng.normal(size=(labelled + unlabelled, *shape))) for shape in levels]
    return Batch(rows[labelled:], rows[:labelled], targets, noise)


def central_differences(cost: Callable[[Parameters], float], parameters: Parameters, step: float = 1e-6) -> Parameters:
    """The slope of `cost` along every entry of every parameter."""
    moved = {name: values.copy() for name, values in parameters.items()}
    slopes = {name: np.empty_like(values) for name, values in parameters.items()}
    for name, values in moved.items():
        for index in np.ndindex(values.shape):
            start = values[index]
            values[index] = start + step
            above = cost(moved)
            values[index] = start - step
            below = cost(moved)
            values[index] = start
            slopes[name][index] = (above - below) / (2 * step)
    return slopes
