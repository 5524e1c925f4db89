"""The mistakes of other ladders are not made here: each is made in the NumPy oracle, seen to matter, and ruled out."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

import oracle as o
import oracle_rungs as r
from test_convolutional_agreement import NETWORKS
from test_oracle_agreement import TASKS, Pair, assert_same_costs, describe, pair
from tikas import Conv, GlobalMeanPool, Ladder, MaxPool, MeanPool
from tikas.data.sources import load
from tikas.data.splits import split

MATTERS = 1e-3  # relative; agreement is asked to 1e-10


class SoftmaxTwiceInTheCost(o.Oracle):
    def supervised(self, scores: o.Array, targets: o.Array, weights: o.Array | None) -> float:
        return super().supervised(o.softmax(scores), targets, weights)


class SoftmaxTwiceOnTheWayDown(o.Oracle):
    def activate(self, level: int, scores: o.Array) -> o.Array:
        h = super().activate(level, scores)
        return o.softmax(h) if level == self.description.top else h


class DividedByTheVariance(o.Oracle):
    def standardise(self, denoised: o.Array, clean: o.Level) -> o.Array:
        return o.standardised(denoised, clean.mean, clean.deviation**2)


class NoiseBeforeNormalisation(o.Oracle):
    def normalise(self, raw: o.Array, noise: o.Array, statistics: tuple[o.Array, o.Array] | None):
        return super().normalise(raw + noise, np.zeros_like(noise), statistics)


class StatisticsAfterNoise(o.Oracle):
    def normalise(self, raw: o.Array, noise: o.Array, statistics: tuple[o.Array, o.Array] | None):
        noised, _, _ = super().normalise(raw, noise, statistics)
        return super().normalise(noised, np.zeros_like(noise), statistics)


class StatisticsOfTheCorruptedPass(o.Oracle):
    """ẑ normalised for the cost by the statistics of z̃'s way up."""

    def denoising(self, corrupted: list[o.Level], clean: list[o.Level]) -> o.Array:
        pairs = zip(clean, corrupted, strict=True)
        return super().denoising(
            corrupted, [replace(right, mean=wrong.mean, deviation=wrong.deviation) for right, wrong in pairs]
        )


class StreamsNormalisedTogether(o.Oracle):
    def two_streams(self, unlabelled: o.Array, labelled: o.Array, noise: Sequence[o.Array]):
        joined, count = self.encode(np.concatenate([labelled, unlabelled]), noise), len(labelled)
        return (
            [replace(level, z=level.z[count:], scores=level.scores[count:], h=level.h[count:]) for level in joined],
            [replace(level, z=level.z[:count], scores=level.scores[:count], h=level.h[:count]) for level in joined],
        )


class LabelledRowsDenoisedToo(o.Oracle):
    def costs(self, unlabelled: o.Array, labelled: o.Array, targets: o.Array, noise: Sequence[o.Array], weights=None):
        count = len(labelled)
        return super().costs(
            np.concatenate([labelled, unlabelled]),
            labelled,
            targets,
            [np.vstack([n[:count], n]) for n in noise],
            weights,
        )


class NormalisedSentDown(o.Oracle):
    def send_down(self, denoised: o.Array, clean: o.Level) -> o.Array:
        return self.standardise(denoised, clean)


class InputNormalised(o.Oracle):
    """The input level treated like a rung in the cost."""

    def clean(self, rows: o.Array, statistics: o.Statistics | None = None) -> list[o.Level]:
        bottom, *rungs = super().clean(rows, statistics)
        mean, deviation = o.batch_statistics(rows)
        return [replace(bottom, mean=mean, deviation=deviation, z=o.standardised(rows, mean, deviation)), *rungs]


class SupervisedCostOnTheCleanPath(o.Oracle):
    def two_streams(self, unlabelled: o.Array, labelled: o.Array, noise: Sequence[o.Array]):
        corrupted, _ = super().two_streams(unlabelled, labelled, noise)
        return corrupted, self.clean(labelled)


IN_EITHER_TASK = [
    DividedByTheVariance,
    NoiseBeforeNormalisation,
    StatisticsAfterNoise,
    StatisticsOfTheCorruptedPass,
    StreamsNormalisedTogether,
    LabelledRowsDenoisedToo,
    NormalisedSentDown,
    InputNormalised,
    SupervisedCostOnTheCleanPath,
]


@pytest.mark.parametrize(
    ("mistake", "task"),
    [
        (SoftmaxTwiceInTheCost, "classification"),
        (SoftmaxTwiceOnTheWayDown, "classification"),
        *((mistake, task) for mistake in IN_EITHER_TASK for task in TASKS),
    ],
)
def test_mistake_would_change_the_costs_and_is_not_made(mistake: type[o.Oracle], task: str):
    both = pair(describe(task=task))
    right = both.numpy_costs()
    wrong = both.numpy_costs(mistake(both.oracle.description, both.oracle.parameters))
    assert abs(wrong.total / right.total - 1) > MATTERS
    assert_same_costs(both.torch_costs(both.ladder()), right)


# Softmax applied twice.


def test_outputs_are_logits_that_softmax_has_not_touched():
    both = pair(describe())
    rows = both.batch.unlabelled
    ladder = both.ladder()
    ladder.calibrate(torch.from_numpy(rows))
    found = ladder.eval()(torch.from_numpy(rows)).detach().numpy()
    logits = both.oracle.predict(rows, both.oracle.calibrate(rows))
    np.testing.assert_allclose(found, logits, rtol=1e-10)
    assert np.abs(o.softmax(logits) - logits).max() > 0.1


# Targets detached.


@dataclass(frozen=True)
class Detached(o.Oracle):
    """The clean path as it was at the first parameters, as if no gradient went through parts of it."""

    first: o.Parameters
    parts: tuple[str, ...]

    def clean(self, rows: o.Array, statistics: o.Statistics | None = None) -> list[o.Level]:
        frozen = o.Oracle(self.description, self.first).clean(rows, statistics)
        moving = super().clean(rows, statistics)
        return [
            replace(level, **{part: getattr(still, part) for part in self.parts})
            for level, still in zip(moving, frozen, strict=True)
        ]


def encoder_slopes(both: Pair, oracle: o.Oracle) -> o.Parameters:
    """Slopes along the encoder's weights, which the clean path hangs on."""

    def total(moved: o.Parameters) -> float:
        return both.numpy_costs(replace(oracle, parameters=oracle.parameters | moved)).total

    weights = [f"rungs.{level}.weight" for level in range(1, oracle.description.top + 1)]
    return o.central_differences(total, {name: oracle.parameters[name] for name in weights})


@pytest.mark.parametrize("costs", ["full", "gamma", "middle"])
@pytest.mark.parametrize(
    "parts", [("z",), ("mean",), ("deviation",), ("mean", "deviation"), ("z", "mean", "deviation")], ids="-".join
)
def test_gradient_flows_through_the_clean_targets_and_the_clean_statistics(parts, costs):
    both = pair(describe(costs))
    detached = Detached(both.oracle.description, both.oracle.parameters, both.oracle.parameters, parts)
    assert both.numpy_costs(detached).total == both.numpy_costs().total
    found, right, wrong = both.torch_slopes(), encoder_slopes(both, both.oracle), encoder_slopes(both, detached)
    for name, slopes in right.items():
        np.testing.assert_allclose(found[name], slopes, rtol=1e-6, atol=1e-7)
    lost = sum(((wrong[name] - slopes) ** 2).sum() for name, slopes in right.items())
    assert np.sqrt(lost / sum((slopes**2).sum() for slopes in right.values())) > 0.02


# Noise included in the statistics of eval mode.


def test_calibration_adds_no_noise():
    both = pair(describe())
    rng = np.random.default_rng(4)
    train, test = rng.normal(0.4, 1.3, (200, 6)), rng.normal(0.4, 1.3, (8, 6))
    noise = [s * rng.normal(size=(200, *n)) for s, n in zip(describe().noise, describe().levels, strict=True)]
    noisy = [(level.mean, level.deviation) for level in both.oracle.encode(train, noise)]
    right = both.oracle.predict(test, both.oracle.calibrate(train))
    assert np.abs(both.oracle.predict(test, noisy) - right).max() > 0.05
    np.testing.assert_allclose(calibrated_outputs(both, train, test), right, rtol=1e-10)


def test_costs_leave_the_calibrated_statistics_alone():
    both = pair(describe())
    ladder, rows = both.ladder(), torch.from_numpy(both.batch.unlabelled)
    ladder.calibrate(rows)
    before = ladder.eval()(rows[:3])
    ladder.train()
    both.torch_costs(ladder)
    ladder(rows[4:])
    torch.testing.assert_close(ladder.eval()(rows[:3]), before, rtol=0, atol=0)


# Statistics of the test batch used at test time.


def calibrated_outputs(both: Pair, train: o.Array, test: o.Array) -> o.Array:
    ladder = both.ladder()
    ladder.calibrate(torch.from_numpy(train))
    return ladder.eval()(torch.from_numpy(test)).detach().numpy()


@pytest.mark.parametrize("task", TASKS)
def test_prediction_of_a_row_does_not_depend_on_the_rows_beside_it(task):
    both = pair(describe(task=task))
    rng = np.random.default_rng(6)
    train, test = rng.normal(0.4, 1.3, (60, 6)), rng.normal(1.0, 1.3, (12, 6))
    together = calibrated_outputs(both, train, test)
    alone = np.vstack([calibrated_outputs(both, train, row[None]) for row in test])
    np.testing.assert_allclose(alone, together, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(together, both.oracle.predict(test, both.oracle.calibrate(train)), rtol=1e-10)
    of_the_batch = both.oracle.clean(test)[-1].scores
    assert np.abs(of_the_batch - together).max() > 0.1


def test_statistics_are_taken_rung_by_rung_and_not_averaged_over_chunks():
    """A mean of chunks' deviations, or rungs above fed by chunks' own statistics, is near the truth and not it."""
    both = pair(describe())
    rng = np.random.default_rng(7)
    train, test = rng.normal(0.4, 1.3, (60, 6)), rng.normal(0.4, 1.3, (8, 6))
    chunks = [both.oracle.calibrate(train[start : start + 10]) for start in range(0, 60, 10)]
    averaged = [tuple(np.mean(part, axis=0) for part in zip(*rung, strict=True)) for rung in zip(*chunks, strict=True)]
    right = both.oracle.predict(test, both.oracle.calibrate(train))
    assert np.abs(both.oracle.predict(test, averaged) - right).max() > 0.01
    ladder = both.ladder()
    ladder.calibrate(torch.from_numpy(train), chunk=10)
    np.testing.assert_allclose(ladder.eval()(torch.from_numpy(test)).detach().numpy(), right, rtol=1e-10)


# Pooling broken, so no convolutional run at all.


class PoolingNotNormalised(o.Oracle):
    """Pooling as a function between two rungs, not as a rung: values go on as they come out of it."""

    def encode(self, rows: o.Array, noise: Sequence[o.Array], statistics: o.Statistics | None = None):
        raw = {}

        class Noted(o.Oracle):
            def way_up(noted, level: int, h: o.Array) -> o.Array:  # noqa: N805
                raw[level] = super().way_up(level, h)
                return raw[level]

            def scale(noted, level: int, z: o.Array) -> o.Array:  # noqa: N805
                pooling = isinstance(noted.description.rungs[level - 1], r.Pool)
                return raw[level] if pooling else super().scale(level, z)

        return Noted(self.description, self.parameters).encode(rows, noise, statistics)


class PoolingWithoutNoise(o.Oracle):
    def two_streams(self, unlabelled: o.Array, labelled: o.Array, noise: Sequence[o.Array]):
        rungs = [None, *self.description.rungs]
        silent = [0 * n if isinstance(rung, r.Pool) else n for rung, n in zip(rungs, noise, strict=True)]
        return super().two_streams(unlabelled, labelled, silent)


class StatisticsOfEveryPosition(o.Oracle):
    """Maps normalised position by position instead of channel by channel."""

    def normalise(self, raw: o.Array, noise: o.Array, statistics: tuple[o.Array, o.Array] | None):
        _, mean, deviation = super().normalise(raw, noise, statistics)
        each = np.sqrt(raw.var(axis=0) + o.EPSILON)
        return (raw - raw.mean(axis=0)) / each + noise, mean, deviation


class CopiedToTheFirstPosition(o.Oracle):
    """The way down from pooling as zeros with one value a window."""

    def way_down(self, level: int, denoised: o.Array) -> o.Array:
        below = super().way_down(level, denoised)
        rung = self.description.rungs[level - 1]
        if isinstance(rung, r.Pool):
            first = np.zeros(below.shape[2:])
            first[:: rung.stride, :: rung.stride] = 1
            below = below * first
        return below


@pytest.mark.parametrize(
    "mistake", [PoolingNotNormalised, PoolingWithoutNoise, StatisticsOfEveryPosition, CopiedToTheFirstPosition]
)
def test_mistake_on_maps_would_change_the_costs_and_is_not_made(mistake: type[o.Oracle]):
    both = pair(NETWORKS["pooling"], unlabelled=6, labelled=5)
    right = both.numpy_costs()
    wrong = both.numpy_costs(mistake(both.oracle.description, both.oracle.parameters))
    assert np.abs(wrong.denoising / right.denoising - 1).max() > MATTERS
    assert_same_costs(both.torch_costs(both.ladder()), right)


def test_a_convolutional_ladder_with_pooling_learns_digits():
    digits = load("digits")
    x, test_x = (torch.from_numpy(part).reshape(-1, 1, 8, 8) for part in (digits.train_x, digits.test_x))
    y = torch.from_numpy(digits.train_y)
    labeled = torch.from_numpy(split(digits.train_y, 50, seed=0).labeled)
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
    error = (ladder(test_x).argmax(1) != torch.from_numpy(digits.test_y)).double().mean().item()
    assert error < 0.35  # by chance 0.9; over four seeds 0.16 to 0.25


# Labelled batch size tied to the number of labels.


class StreamsCutInHalf(o.Oracle):
    """One batch of both streams, cut as if they were of one size."""

    def costs(self, unlabelled: o.Array, labelled: o.Array, targets: o.Array, noise: Sequence[o.Array], weights=None):
        rows, half = np.concatenate([labelled, unlabelled]), (len(labelled) + len(unlabelled)) // 2
        targets = np.resize(targets, half)
        return super().costs(rows[half:], rows[:half], targets, noise, weights)


@pytest.mark.parametrize("labelled", [2, 3, 10, 30])
def test_labelled_batch_may_have_any_size(labelled):
    both = pair(describe(), unlabelled=12, labelled=labelled)
    right = both.numpy_costs()
    wrong = both.numpy_costs(StreamsCutInHalf(both.oracle.description, both.oracle.parameters))
    assert abs(wrong.total / right.total - 1) > MATTERS
    assert_same_costs(both.torch_costs(both.ladder()), right)


def test_neither_stream_touches_the_cost_of_the_other():
    small, large = pair(describe(), labelled=3), pair(describe(), labelled=20)
    ladder, unlabelled = small.ladder(), small.batch.unlabelled
    noise = [draw[3:] for draw in small.batch.noise]
    same_unlabelled = replace(
        large,
        batch=replace(
            large.batch,
            unlabelled=unlabelled,
            noise=[np.concatenate([a[:20], b]) for a, b in zip(large.batch.noise, noise, strict=True)],
        ),
    )
    one, two, three = (both.torch_costs(ladder) for both in (small, same_unlabelled, large))
    torch.testing.assert_close(one.denoising, two.denoising, rtol=1e-10, atol=0)
    torch.testing.assert_close(two.supervised, three.supervised, rtol=1e-10, atol=0)
    assert abs(one.supervised.item() / two.supervised.item() - 1) > MATTERS
    assert abs(two.denoising.sum().item() / three.denoising.sum().item() - 1) > MATTERS
