"""Batch statistics, and statistics of any number of rows. Those of user modules are tested in test_gamma.py."""

import pytest
import torch

from tikas.model import normalization
from tikas.model.normalization import (
    EPSILON,
    Moments,
    Processes,
    Statistics,
    normalize,
    normalize_together,
    normalize_with_statistics,
)

SHAPES = [((), (3,), 0), ((2,), (3,), 1), ((), (3, 4, 5), (0, 2, 3)), ((2,), (3, 4, 5), (1, 3, 4))]
"""Member dimensions, the shape of a level, and the dimensions that statistics run over."""


def draw(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0), dtype=dtype)


@pytest.mark.parametrize(("members", "shape", "dims"), SHAPES)
def test_a_batch_is_normalized_with_its_mean_and_biased_deviation(members, shape, dims):
    x = 10 + 3 * draw(*members, 7, *shape)
    variance, mean = torch.var_mean(x, dims, correction=0, keepdim=True)
    normalized, statistics = normalize_with_statistics(x, shape)
    torch.testing.assert_close(statistics.mean, mean)
    torch.testing.assert_close(statistics.deviation, (variance + EPSILON).sqrt())
    for found in (normalized, normalize(x, shape), Statistics(mean, (variance + EPSILON).sqrt()).normalize(x)):
        torch.testing.assert_close(found, (x - mean) / (variance + EPSILON).sqrt())


@pytest.mark.parametrize(("members", "shape"), [each[:2] for each in SHAPES])
def test_gradients_flow_through_the_normalized_batch_and_both_statistics(members, shape):
    def all_three(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        normalized, (mean, deviation) = normalize_with_statistics(x, shape)
        return normalized, mean, deviation

    x = draw(*members, 4, *shape).requires_grad_()
    assert torch.autograd.gradcheck(all_three, (x,))
    assert torch.autograd.gradcheck(lambda x: normalize(x, shape), (x,))


class Alone(Processes):
    """No others; `tests/test_distributed.py` has two."""

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        return x


@pytest.mark.parametrize(("members", "shape"), [each[:2] for each in SHAPES])
def test_gradients_flow_through_batches_that_are_normalized_together(members, shape):
    def all_six(*batches: torch.Tensor) -> tuple[torch.Tensor, ...]:
        (one, first), (two, second) = normalize_together(batches, shape, Alone())
        return one, *first, two, *second

    batches = draw(*members, 4, *shape).requires_grad_(), 1 + draw(*members, 3, *shape).requires_grad_()
    assert torch.autograd.gradcheck(all_six, batches)


def test_a_mean_much_larger_than_the_deviation_costs_no_more_digits_with_other_processes():
    rows = (1000 + draw(200, 3)).float()
    ((found, statistics),) = normalize_together([rows], (3,), Alone())
    expected, (mean, deviation) = normalize_with_statistics(rows, (3,))
    torch.testing.assert_close(statistics.mean, mean)
    torch.testing.assert_close(statistics.deviation, deviation)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=5e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("members", [(), (2,)], ids=["alone", "members"])
def test_half_precision_is_normalized_in_float32(dtype, members):
    x = (100 + draw(*members, 50, 4)).to(dtype)
    expected = normalize_with_statistics(x.float(), shape=(4,))[0]
    for normalized in (normalize(x, shape=(4,)), normalize_with_statistics(x, shape=(4,))[0]):
        assert normalized.dtype == torch.float32
        torch.testing.assert_close(normalized, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("chunk_values", [1, 100, 2**18], ids=["one row", "a few rows", "all rows"])
@pytest.mark.parametrize(("members", "shape", "dims"), SHAPES)
def test_moments_do_not_depend_on_batches_or_chunks(chunk_values, members, shape, dims, monkeypatch):
    monkeypatch.setattr(normalization, "CHUNK_VALUES_CPU", chunk_values)
    rows = 1000 + draw(*members, 50, *shape)
    before = rows.clone()
    moments = Moments(shape)
    for batch in rows.split([20, 30], len(members)):
        moments.add(batch)
    mean, deviation = moments.statistics()
    variance, expected = torch.var_mean(rows, dims, correction=0)
    torch.testing.assert_close(mean, expected, rtol=1e-14, atol=0)
    torch.testing.assert_close(deviation, variance.sqrt(), rtol=1e-8, atol=0)
    assert torch.equal(rows, before)


def test_moments_in_float32_are_exact_for_a_mean_much_larger_than_the_deviation():
    rows = (1e4 + draw(1000, 3)).float()
    moments = Moments((3,))
    for batch in rows.split(64):
        moments.add(batch)
    variance, mean = torch.var_mean(rows.double(), 0, correction=0)
    torch.testing.assert_close(moments.mean, mean, rtol=1e-13, atol=0)
    torch.testing.assert_close(moments.variance(), variance, rtol=1e-9, atol=0)
