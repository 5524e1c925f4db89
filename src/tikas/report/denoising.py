"""What the decoder of a fitted estimator learned: its denoising functions and its reconstructions, as numbers."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from tikas.data.images import as_shaped
from tikas.estimators.base import LadderEstimator
from tikas.model.ladder import Denoising, Model
from tikas.model.layers import Rung
from tikas.model.normalization import Statistics, per_unit

Array = NDArray[Any]

NOISE_LEVELS = (0.0, 0.5, 1.0, 2.0, 4.0)
"""Factors of the deviations of the noise in training."""
MAX_TRACED_ROWS, MAX_TRACED_VALUES = 1000, 2**22
"""Most rows, and most values of a level, that are run through the decoder at once."""
MAX_PAIRS, NOISE_DRAWS, NOISE_DRAWS_OF_MAPS = 20_000, 8, 2
"""Most pairs of a clean and a noisy value for the optimal denoiser of a unit, and how often noise is drawn for them."""
MIN_PAIRS = 30
"""The optimal denoiser is drawn where at least so many pairs determine it."""
U_QUANTILES = {"low": 0.1, "median": 0.5, "high": 0.9}
GRID = 61


def level_names(model: Model) -> list[str]:
    """Return a name for each rung: input, layer 1, ..., output."""
    first = 0 if len(model.rungs) > 1 else 1  # a Γ-model around a module has the output alone
    names = ["input", *(f"layer {level}" for level in range(1, len(model.rungs) - 1)), "output"]
    return names[first:]


class DenoisingFunction(NamedTuple):
    """The denoising function of one unit: learned and optimal ẑ over z̃, by the name of a quantile of u.

    `noisy_error` and `denoised_error` are the mean squared errors of z̃ and of ẑ over all units of the level; they and
    the optimal curves are None without rows.
    """

    level: str
    units: int
    unit: int
    corrupted: Array
    learned: dict[str, Array]
    optimal: dict[str, Array] | None
    noisy_error: float | None
    denoised_error: float | None


def denoising_functions(estimator: LadderEstimator, X: ArrayLike | None = None) -> list[DenoisingFunction]:
    """Return what `denoisers` draws; raise ValueError if the model has no denoising cost."""
    model = estimator.ladder_
    levels = [(name, rung) for name, rung in zip(level_names(model), model.rungs, strict=True)]
    traces: list[list[Denoising | None]] = [] if X is None else _traces(estimator, X)
    functions = []
    for index, (name, rung) in enumerate(levels):
        if rung.denoiser is None or not rung.cost > 0:
            continue
        functions.append(_function_of(name, rung, [trace[index] for trace in traces]))
    if not functions:
        raise ValueError("This model has no denoising cost (costs=0), so it has no denoising function.")
    return functions


def _traces(estimator: LadderEstimator, X: ArrayLike) -> list[list[Denoising | None]]:
    """Return what the denoisers get and return for some of the rows, once for each draw of the noise."""
    model = estimator.ladder_
    rows = member_rows(estimator, X)
    if len(rows) < 2:
        raise ValueError(f"Got {len(rows)} rows; expected some hundred, to estimate how their values are distributed.")
    limit = min(MAX_TRACED_ROWS, max(2, MAX_TRACED_VALUES // max(map(prod, model.shapes))))
    rows = rows[:: ceil(len(rows) / limit)]
    generator = torch.Generator().manual_seed(0)
    draws = NOISE_DRAWS if rows.dim() == 2 else NOISE_DRAWS_OF_MAPS  # a map has many values of a unit
    return [model.trace(rows, model.draw_noise(rows, len(rows), generator)) for _ in range(draws)]


def _function_of(name: str, rung: Rung, traces: Sequence[Denoising | None]) -> DenoisingFunction:
    """Return the denoising function of a level, for its typical unit if there are traces."""
    units = rung.shape[0]
    if not traces:
        above = dict(zip(U_QUANTILES, (-1.3, 0.0, 1.3), strict=True))  # of a normal distribution
        corrupted = np.linspace(-3.0, 3.0, GRID)
        return DenoisingFunction(name, units, 0, corrupted, _learned(rung, 0, corrupted, above), None, None, None)
    kept = [trace for trace in traces if trace is not None]
    values = Denoising(*(torch.cat([_by_unit(getattr(each, part)) for each in kept]) for part in Denoising._fields))
    error = (values.denoised - values.clean).square().mean(0)
    noisy = (values.corrupted - values.clean).square().mean(0)
    varying = torch.nonzero(values.clean.std(0) > 1e-3).flatten()
    candidates = varying if len(varying) else torch.arange(units)
    unit = int(candidates[error[candidates].argsort()[len(candidates) // 2]])
    step = ceil(len(values.clean) / MAX_PAIRS)
    z_noisy, u, _, z = (part[::step, unit].double().numpy() for part in values)
    above = {label: float(np.quantile(u, quantile)) for label, quantile in U_QUANTILES.items()}
    low, high = np.quantile(z_noisy, [0.005, 0.995]).tolist()
    corrupted = np.linspace(low, high, GRID)
    optimal = {label: _conditional_mean(z, z_noisy, u, corrupted, value) for label, value in above.items()}
    learned = _learned(rung, unit, corrupted, above)
    return DenoisingFunction(name, units, unit, corrupted, learned, optimal, float(noisy.mean()), float(error.mean()))


def _by_unit(values: Tensor) -> Tensor:
    """Return the values of a level as ``(rows and positions of maps, units)``."""
    return values if values.dim() == 2 else values.movedim(1, -1).reshape(-1, values.shape[1])


@torch.no_grad()
def _learned(rung: Rung, unit: int, corrupted: Array, above: dict[str, float]) -> dict[str, Array]:
    """Return ẑ of a unit over z̃, for each u, normalized with the calibrated statistics."""
    assert rung.denoiser is not None
    shape = (len(corrupted), rung.shape[0], *[1] * (len(rung.shape) - 1))
    z = torch.from_numpy(corrupted).float().view(-1, *[1] * len(rung.shape)).expand(shape)
    statistics = None
    if hasattr(rung, "mean"):
        statistics = Statistics(per_unit(rung.mean, rung.shape), per_unit(rung.deviation, rung.shape))
    estimates = {}
    for label, value in above.items():
        denoised = rung.normalize_denoised(rung.denoiser(z, torch.full(shape, value)), statistics)
        estimates[label] = np.asarray(denoised[:, unit].flatten().numpy())
    return estimates


def _conditional_mean(z: Array, corrupted: Array, above: Array, at: Array, u: float) -> Array:
    """Return E[z | z̃, u] at some z̃ by local linear regression; NaN where few pairs are near."""
    scale = 1.06 * len(z) ** (-1 / 6)  # Silverman's rule for two dimensions
    widths = [max(scale * float(each.std()), 1e-6) for each in (corrupted, above)]
    near = np.exp(-0.5 * ((above - u) / widths[1]) ** 2)
    kept = near > 1e-4
    z, corrupted, above, near = z[kept], corrupted[kept], above[kept], near[kept]
    means = np.full(len(at), np.nan)
    for index, point in enumerate(at):
        weights = near * np.exp(-0.5 * ((corrupted - point) / widths[0]) ** 2)
        if weights.sum() < 1e-6 or weights.sum() ** 2 < MIN_PAIRS * np.square(weights).sum():
            continue
        features = np.stack([np.ones_like(z), corrupted - point, above - u])
        weighted = features * weights
        means[index] = np.linalg.lstsq(weighted @ features.T, weighted @ z, rcond=1e-9)[0][0]
    return means


class Reconstruction(NamedTuple):
    """Rows as the members take them: clean, with noise of `factor` times the deviation of training, and denoised."""

    factor: float
    clean: Tensor
    noisy: Tensor
    denoised: Tensor


def reconstructed(estimator: LadderEstimator, X: ArrayLike) -> list[Reconstruction]:
    """Return the reconstructions of rows at each noise level; raise ValueError without a cost at the input."""
    model = estimator.ladder_
    if len(model.rungs) == 1 or not model.rungs[0].cost > 0:
        raise ValueError("This model has no denoising cost at the input (a Γ-model), so it reconstructs no rows.")
    rows = member_rows(estimator, X)
    limit = min(MAX_TRACED_ROWS, max(2, MAX_TRACED_VALUES // max(map(prod, model.shapes))))
    rows = rows[:limit]
    noise = model.draw_noise(rows, len(rows), torch.Generator().manual_seed(0))
    found = []
    for factor in NOISE_LEVELS:
        traced = model.trace(rows, [factor * level for level in noise])[0]
        assert traced is not None
        found.append(Reconstruction(factor, rows, traced.corrupted, traced.denoised))
    return found


def member_rows(estimator: LadderEstimator, X: ArrayLike) -> Tensor:
    """Return checked rows as the members take them, in float32."""
    rows = as_shaped(estimator._as_rows(X, reset=False), estimator.input_shape_)
    return estimator._prepare(torch.from_numpy(rows)).float()
