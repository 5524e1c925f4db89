"""Mistakes of other implementations (NOTES.md, section 3): each is made in the oracle, matters, and is not in tikas."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from comparison import NETWORKS, TASKS, Comparison, assert_same_costs, assert_same_gradients, compare, dense
from oracle import (
    EPSILON,
    Array,
    Costs,
    Level,
    Oracle,
    Parameters,
    Statistics,
    batch_statistics,
    softmax,
)
from tikas import Conv, GlobalMeanPool, Ladder, MaxPool, MeanPool

MATTERS = 1e-3
"""Relative change of the costs that a mistake must make. The PyTorch code agrees with the oracle to 1e-10."""


class SoftmaxTwiceInTheCost(Oracle):
    def supervised(self, scores: Array, targets: Array, weights: Array | None):
        return super().supervised(softmax(scores), targets, weights)


class SoftmaxTwiceInTheDecoder(Oracle):
    def activate(self, level: int, scores: Array) -> Array:
        h = super().activate(level, scores)
        return softmax(h) if level == self.settings.top else h


class DividedByTheVariance(Oracle):
    def normalize_denoised(self, level: int, denoised: Array, clean: Statistics) -> Array:
        return super().normalize_denoised(level, denoised, clean._replace(deviation=clean.deviation**2))


class NoiseBeforeNormalization(Oracle):
    def normalize(self, projected: Array, noise: Array, statistics: Statistics | None):
        return super().normalize(projected + noise, np.zeros_like(noise), statistics)


class NormalizedAgainAfterTheNoise(Oracle):
    def normalize(self, projected: Array, noise: Array, statistics: Statistics | None):
        corrupted, _ = super().normalize(projected, noise, statistics)
        return super().normalize(corrupted, np.zeros_like(noise), statistics)


class StatisticsOfTheCorruptedPass(Oracle):
    """ẑ normalized for the cost with the statistics of the corrupted pass."""

    def denoising(self, corrupted: list[Level], clean: list[Level]) -> Array:
        levels = zip(clean, corrupted, strict=True)
        return super().denoising(corrupted, [replace(right, statistics=wrong.statistics) for right, wrong in levels])


class BothBatchesNormalizedTogether(Oracle):
    def encode_corrupted(self, unlabeled: Array, labeled: Array, noise: Sequence[Array]):
        levels, count = self.encode(np.concatenate([labeled, unlabeled]), noise), len(labeled)
        return (
            [replace(level, z=level.z[count:], scores=level.scores[count:], h=level.h[count:]) for level in levels],
            [replace(level, z=level.z[:count], scores=level.scores[:count], h=level.h[:count]) for level in levels],
        )


class LabeledRowsDenoisedToo(Oracle):
    def costs(self, unlabeled: Array, labeled: Array, targets: Array, noise: Sequence[Array], weights=None) -> Costs:
        rows, count = np.concatenate([labeled, unlabeled]), len(labeled)
        return super().costs(rows, labeled, targets, [np.vstack([n[:count], n]) for n in noise], weights)


class NormalizedReconstructionSentDown(Oracle):
    def sent_down(self, level: int, denoised: Array, clean: Statistics) -> Array:
        return self.normalize_denoised(level, denoised, clean)


class InputNormalized(Oracle):
    """The input level is normalized in its cost, like a rung."""

    def encode_clean(self, rows: Array, statistics: Sequence[Statistics] | None = None) -> list[Level]:
        bottom, *rungs = super().encode_clean(rows, statistics)
        own = batch_statistics(rows)
        return [replace(bottom, statistics=own, z=own.normalize(rows)), *rungs]


class SupervisedCostOfTheCleanPass(Oracle):
    def encode_corrupted(self, unlabeled: Array, labeled: Array, noise: Sequence[Array]):
        corrupted, _ = super().encode_corrupted(unlabeled, labeled, noise)
        return corrupted, self.encode_clean(labeled)


IN_BOTH_TASKS = [
    DividedByTheVariance,
    NoiseBeforeNormalization,
    NormalizedAgainAfterTheNoise,
    StatisticsOfTheCorruptedPass,
    BothBatchesNormalizedTogether,
    LabeledRowsDenoisedToo,
    NormalizedReconstructionSentDown,
    InputNormalized,
    SupervisedCostOfTheCleanPass,
]


@pytest.mark.parametrize(
    ("mistake", "task"),
    [
        (SoftmaxTwiceInTheCost, "classification"),
        (SoftmaxTwiceInTheDecoder, "classification"),
        *((mistake, task) for mistake in IN_BOTH_TASKS for task in TASKS),
    ],
)
def test_mistake_changes_the_costs_and_is_not_made(mistake: type[Oracle], task: str):
    both = compare(dense(task=task))
    right = both.numpy_costs()
    wrong = both.numpy_costs(mistake(both.settings, both.oracle.parameters))
    assert abs(wrong.total / right.total - 1) > MATTERS
    assert_same_costs(both.torch_costs(both.ladder()), right)


# Softmax applied twice


def test_outputs_are_logits_before_the_softmax():
    both = compare(dense())
    rows = both.batch.unlabeled
    logits = both.oracle.predict(rows, both.oracle.calibrate(rows))
    np.testing.assert_allclose(calibrated_outputs(both, rows, rows), logits, rtol=1e-10)
    assert np.abs(softmax(logits) - logits).max() > 0.1


# Targets detached


@dataclass(frozen=True)
class Detached(Oracle):
    """Parts of the clean pass computed with the first parameters, as if no gradient flowed through them."""

    first: Parameters
    parts: tuple[str, ...]

    def encode_clean(self, rows: Array, statistics: Sequence[Statistics] | None = None) -> list[Level]:
        constant = Oracle(self.settings, self.first).encode_clean(rows, statistics)
        levels = []
        for level, detached in zip(super().encode_clean(rows, statistics), constant, strict=True):
            moments = {part: getattr(detached.statistics, part) for part in self.parts if part != "z"}
            z = detached.z if "z" in self.parts else level.z
            levels.append(replace(level, z=z, statistics=level.statistics._replace(**moments)))
        return levels


@pytest.mark.parametrize("costs", ["full", "gamma", "middle"])
@pytest.mark.parametrize(
    "parts", [("z",), ("mean",), ("deviation",), ("mean", "deviation"), ("z", "mean", "deviation")], ids="-".join
)
def test_gradients_flow_through_the_clean_targets_and_the_clean_statistics(parts, costs):
    both = compare(dense(costs))
    detached = Detached(both.settings, both.oracle.parameters, both.oracle.parameters, parts)
    assert both.numpy_costs(detached).total == both.numpy_costs().total
    encoder = tuple(f"rungs.{level}.weight" for level in range(1, both.settings.top + 1))
    found, right, wrong = (
        both.torch_gradients(),
        both.numpy_gradients(names=encoder),
        both.numpy_gradients(detached, names=encoder),
    )
    assert_same_gradients({name: found[name] for name in encoder}, right)
    lost = sum(((wrong[name] - gradient) ** 2).sum() for name, gradient in right.items())
    assert np.sqrt(lost / sum((gradient**2).sum() for gradient in right.values())) > 0.02


# Noise included in the statistics for eval mode


def calibrated_outputs(both: Comparison, train: Array, test: Array) -> Array:
    ladder = both.ladder()
    ladder.calibrate(torch.from_numpy(train))
    return ladder.eval()(torch.from_numpy(test)).detach().numpy()


def test_calibration_adds_no_noise():
    both = compare(dense())
    rng = np.random.default_rng(4)
    train, test = rng.normal(0.4, 1.3, (200, 6)), rng.normal(0.4, 1.3, (8, 6))
    noise = [
        deviation * rng.normal(size=(200, *shape))
        for deviation, shape in zip(both.settings.noise, both.settings.shapes, strict=True)
    ]
    noisy = [level.statistics for level in both.oracle.encode(train, noise)]
    right = both.oracle.predict(test, both.oracle.calibrate(train))
    assert np.abs(both.oracle.predict(test, noisy) - right).max() > 0.05
    np.testing.assert_allclose(calibrated_outputs(both, train, test), right, rtol=1e-10)


def test_costs_do_not_change_the_calibrated_statistics():
    both = compare(dense())
    ladder, rows = both.ladder(), torch.from_numpy(both.batch.unlabeled)
    ladder.calibrate(rows)
    before = ladder.eval()(rows[:3])
    ladder.train()
    both.torch_costs(ladder)
    ladder(rows[4:])
    torch.testing.assert_close(ladder.eval()(rows[:3]), before, rtol=0, atol=0)


# Statistics of the test batch used at test time


@pytest.mark.parametrize("task", TASKS)
def test_prediction_of_a_row_does_not_depend_on_the_other_rows(task):
    both = compare(dense(task=task))
    rng = np.random.default_rng(6)
    train, test = rng.normal(0.4, 1.3, (60, 6)), rng.normal(1.0, 1.3, (12, 6))
    together = calibrated_outputs(both, train, test)
    alone = np.vstack([calibrated_outputs(both, train, row[None]) for row in test])
    np.testing.assert_allclose(alone, together, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(together, both.oracle.predict(test, both.oracle.calibrate(train)), rtol=1e-10)
    with_statistics_of_the_batch = both.oracle.encode_clean(test)[-1].scores
    assert np.abs(with_statistics_of_the_batch - together).max() > 0.1


def test_statistics_are_those_of_all_rows_and_not_averages_over_chunks():
    # An average of the chunks' deviations, or of levels normalized chunk by chunk, is close but wrong.
    both = compare(dense())
    rng = np.random.default_rng(7)
    train, test = rng.normal(0.4, 1.3, (60, 6)), rng.normal(0.4, 1.3, (8, 6))
    chunks = [both.oracle.calibrate(train[start : start + 10]) for start in range(0, 60, 10)]
    averaged = [
        Statistics(*(np.mean(part, axis=0) for part in zip(*level, strict=True))) for level in zip(*chunks, strict=True)
    ]
    right = both.oracle.predict(test, both.oracle.calibrate(train))
    assert np.abs(both.oracle.predict(test, averaged) - right).max() > 0.01
    ladder = both.ladder()
    ladder.calibrate(torch.from_numpy(train), chunk=10)
    np.testing.assert_allclose(ladder.eval()(torch.from_numpy(test)).detach().numpy(), right, rtol=1e-10)


# Pooling broken, so that no convolutional network can be trained


def is_pool(oracle: Oracle, level: int) -> bool:
    return level > 0 and oracle.settings.rungs[level - 1].kind in ("max", "mean")


class PoolingNotNormalized(Oracle):
    """Pooling as a function between two rungs, and not as a rung: its values are passed on as they are."""

    def encode(self, rows: Array, noise: Sequence[Array], statistics: Sequence[Statistics] | None = None):
        pooled = {}

        class PassingOn(Oracle):
            def up(self, level: int, h: Array) -> Array:
                pooled[level] = super().up(level, h)
                return pooled[level]

            def scale(self, level: int, z: Array) -> Array:
                return pooled[level] if is_pool(self, level) else super().scale(level, z)

        return PassingOn(self.settings, self.parameters).encode(rows, noise, statistics)


class PoolingWithoutNoise(Oracle):
    def encode_corrupted(self, unlabeled: Array, labeled: Array, noise: Sequence[Array]):
        reduced = [0 * draw if is_pool(self, level) else draw for level, draw in enumerate(noise)]
        return super().encode_corrupted(unlabeled, labeled, reduced)


class StatisticsOfEachPosition(Oracle):
    """Maps normalized position by position, and not channel by channel."""

    def normalize(self, projected: Array, noise: Array, statistics: Statistics | None):
        _, per_channel = super().normalize(projected, noise, statistics)
        deviation = np.sqrt(projected.var(axis=0) + EPSILON)
        return (projected - projected.mean(axis=0)) / deviation + noise, per_channel


class CopiedToTheFirstPosition(Oracle):
    """The decoder operation of pooling fills one position of each window and leaves the others zero."""

    def down(self, level: int, denoised: Array) -> Array:
        below = super().down(level, denoised)
        if is_pool(self, level):
            stride, first = self.settings.rungs[level - 1].size, np.zeros(below.shape[2:])
            first[::stride, ::stride] = 1
            below = below * first
        return below


@pytest.mark.parametrize(
    "mistake", [PoolingNotNormalized, PoolingWithoutNoise, StatisticsOfEachPosition, CopiedToTheFirstPosition]
)
def test_mistake_on_maps_changes_the_costs_and_is_not_made(mistake: type[Oracle]):
    both = compare(NETWORKS["pooling"], unlabeled=6, labeled=5)
    right = both.numpy_costs()
    wrong = both.numpy_costs(mistake(both.settings, both.oracle.parameters))
    assert np.abs(wrong.denoising / right.denoising - 1).max() > MATTERS
    assert_same_costs(both.torch_costs(both.ladder()), right)


def test_a_convolutional_ladder_with_pooling_learns_digits():
    images, digits = load_digits(return_X_y=True)
    x, y = torch.from_numpy(images).float().reshape(-1, 1, 8, 8) / 16, torch.from_numpy(digits)
    x, y, test_x, test_y = x[:1400], y[:1400], x[1400:], y[1400:]
    labeled = torch.cat([torch.nonzero(y == digit)[:5, 0] for digit in range(10)])
    torch.manual_seed(0)
    rungs = [Conv(16, 3, padding="full"), MaxPool(2), Conv(32, 3), MeanPool(2), Conv(10, 1), GlobalMeanPool()]
    ladder = Ladder((1, 8, 8), rungs, costs=(10, 1, 0.1, 0.1, 0.1, 0.1, 0.1))
    optimizer = torch.optim.Adam(ladder.parameters(), lr=0.01)
    for _ in range(2):
        for unlabeled in torch.randperm(len(x)).split(100):
            optimizer.zero_grad()
            ladder.costs(x[unlabeled], x[labeled], y[labeled]).total.backward()
            optimizer.step()
    ladder.calibrate(x).eval()
    error = (ladder(test_x).argmax(1) != test_y).double().mean().item()
    assert error < 0.4  # 0.9 by chance


# Size of the labeled batch tied to the number of labels


class BatchesCutInHalf(Oracle):
    """Both batches in one, cut as if they had the same size."""

    def costs(self, unlabeled: Array, labeled: Array, targets: Array, noise: Sequence[Array], weights=None) -> Costs:
        rows, half = np.concatenate([labeled, unlabeled]), (len(labeled) + len(unlabeled)) // 2
        return super().costs(rows[half:], rows[:half], np.resize(targets, half), noise, weights)


@pytest.mark.parametrize("labeled", [2, 3, 10, 30])
def test_the_labeled_batch_may_have_any_size(labeled):
    both = compare(dense(), unlabeled=12, labeled=labeled)
    right = both.numpy_costs()
    wrong = both.numpy_costs(BatchesCutInHalf(both.settings, both.oracle.parameters))
    assert abs(wrong.total / right.total - 1) > MATTERS
    assert_same_costs(both.torch_costs(both.ladder()), right)


def test_neither_batch_affects_the_cost_of_the_other():
    small, large = compare(dense(), labeled=3), compare(dense(), labeled=20)
    ladder = small.ladder()
    noise = [
        np.concatenate([of_large[:20], of_small[3:]])
        for of_large, of_small in zip(large.batch.noise, small.batch.noise, strict=True)
    ]
    mixed = replace(large, batch=replace(large.batch, unlabeled=small.batch.unlabeled, noise=noise))
    one, two, three = (both.torch_costs(ladder) for both in (small, mixed, large))
    torch.testing.assert_close(one.denoising, two.denoising, rtol=1e-10, atol=0)
    torch.testing.assert_close(two.supervised, three.supervised, rtol=1e-10, atol=0)
    assert abs(one.supervised.item() / two.supervised.item() - 1) > MATTERS
    assert abs(two.denoising.sum().item() / three.denoising.sum().item() - 1) > MATTERS
