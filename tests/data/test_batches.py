"""Batches: every row gets its turn with fresh noise, and what a member sees depends on its seed alone."""

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tikas.data import batches as batches_module
from tikas.data.batches import Batch, Batches, StreamedBatches, generator
from tikas.data.sources import RowSource
from tikas.data.splits import Split

SHAPES = [(2,), (5,), (5,), (3,)]
VALUES = sum(size for (size,) in SHAPES)


def make_split(rows: int, labels: int, validation: int = 0, seed: int = 0) -> Split:
    order = np.random.default_rng(seed).permutation(rows)
    validation_rows, training = np.sort(order[:validation]), order[validation:]
    return Split(training[:labels], np.sort(training), validation_rows)


def make_batches(
    splits: Split | Sequence[Split],
    seeds: Sequence[int] = (0,),
    batch_size: int = 10,
    labeled_batch_size: int = 6,
    *,
    shapes: Sequence[tuple[int, ...]] = SHAPES,
    weighted: bool = True,
    dtype: torch.dtype = torch.float32,
    **options: Any,
) -> Batches:
    """Make batches of rows that hold their own index, with targets and weights that follow from it."""
    splits = [splits] if isinstance(splits, Split) else splits
    indices = torch.arange(len(splits[0].unlabeled) + len(splits[0].validation))
    rows, weights = torch.stack([indices, -indices], 1).to(dtype), indices / 7 if weighted else None
    return Batches(rows, indices % 3, weights, splits, seeds, shapes, batch_size, labeled_batch_size, **options)


def indices_of(rows: Tensor) -> Tensor:
    return rows[..., 0].long()


def next_epoch(batches: Batches) -> list[Batch]:
    """Return the batches of the next epoch, with a copy of their noise, which is valid until the next batch only."""
    batches.start_epoch()
    found = (batches.batch(update) for update in range(batches.updates))
    return [batch._replace(noise=[level.clone() for level in batch.noise]) for batch in found]


def assert_same(one: Batch, other: Batch) -> None:
    for first, second in zip(
        [*one[:3], one.weights, *one.noise], [*other[:3], other.weights, *other.noise], strict=True
    ):
        assert torch.equal(first, second)


def of_member(batch: Batch, member: int) -> Batch:
    """Return what one member of an ensemble sees."""
    unlabeled, labeled, targets, noise, weights = batch
    assert weights is not None
    return Batch(unlabeled[member], labeled[member], targets[member], [n[member] for n in noise], weights[member])


# Rows.

sizes = st.integers(2, 40).flatmap(
    lambda rows: st.tuples(st.just(rows), st.integers(1, rows), st.integers(2, 50), st.integers(2, 50))
)


@settings(max_examples=60)
@given(sizes)
def test_any_numbers_of_rows_and_labels_fill_batches_of_any_size(size: tuple[int, int, int, int]) -> None:
    rows, labels, batch_size, labeled_batch_size = size
    split = make_split(rows, labels)
    epoch = next_epoch(make_batches(split, batch_size=batch_size, labeled_batch_size=labeled_batch_size))
    assert len(epoch) == max(1, rows // batch_size)
    assert {len(batch.unlabeled) for batch in epoch} == {min(rows, batch_size)}

    unlabeled = Counter(index for batch in epoch for index in indices_of(batch.unlabeled).tolist())
    labeled = Counter(index for batch in epoch for index in indices_of(batch.labeled).tolist())
    assert max(unlabeled.values()) == 1
    assert set(labeled) <= set(split.labeled)
    if labels == rows:
        assert labeled == unlabeled
    else:
        assert {len(batch.labeled) for batch in epoch} == {labeled_batch_size}
        counts = [labeled[index] for index in split.labeled]
        assert max(counts) - min(counts) <= 1  # each label equally often; the last round is cut

    for batch in epoch:
        indices = indices_of(batch.labeled)
        assert torch.equal(batch.targets, indices % 3)
        assert torch.equal(batch.weights, indices / 7)
        count = len(batch.labeled) + len(batch.unlabeled)
        assert [tuple(level.shape) for level in batch.noise] == [(count, *shape) for shape in SHAPES]


def test_every_epoch_shuffles_all_unlabeled_rows_across_batches() -> None:
    split = make_split(100, 20, validation=10)
    batches = make_batches(split)
    epochs = [[indices_of(batch.unlabeled) for batch in next_epoch(batches)] for _ in range(4)]
    for epoch in epochs:
        assert torch.cat(epoch).sort().values.tolist() == split.unlabeled.tolist()
    orders = {tuple(torch.cat(epoch).tolist()) for epoch in epochs}
    assert len(orders | {tuple(split.unlabeled.tolist())}) == 5
    first, second = ({frozenset(batch.tolist()) for batch in epoch} for epoch in epochs[:2])
    assert not first & second


def test_different_rows_are_left_out_of_the_batches_of_every_epoch() -> None:
    batches = make_batches(make_split(47, 5))
    left_out = [
        set(range(47)) - {index for batch in next_epoch(batches) for index in indices_of(batch.unlabeled).tolist()}
        for _ in range(12)
    ]
    assert {len(rows) for rows in left_out} == {7}
    assert not set.intersection(*left_out)  # a row is left out twelve times with a chance of (7/47)**12


def test_validation_rows_are_never_used_and_labeled_rows_are_also_used_without_their_label() -> None:
    split = make_split(60, 12, validation=20)
    batches = make_batches(split)
    for _ in range(5):
        epoch = next_epoch(batches)
        unlabeled = {index for batch in epoch for index in indices_of(batch.unlabeled).tolist()}
        labeled = {index for batch in epoch for index in indices_of(batch.labeled).tolist()}
        assert set(split.labeled) <= unlabeled
        assert not (unlabeled | labeled) & set(split.validation)


@pytest.mark.parametrize("labels", [3, 10, 11, 25])
def test_labeled_rows_come_in_shuffled_rounds(labels: int) -> None:
    """Fewer labels than a batch has, as many, one more, and more than twice as many."""
    split = make_split(100, labels)
    rows = torch.cat([indices_of(batch.labeled) for batch in next_epoch(make_batches(split, labeled_batch_size=10))])
    rounds = rows[: len(rows) // labels * labels].view(-1, labels).tolist()
    assert all(sorted(one) == sorted(split.labeled) for one in rounds)
    assert len(set(map(tuple, rounds))) > 1


def test_if_all_rows_are_labeled_both_parts_are_the_same_rows_with_different_noise() -> None:
    for batch in next_epoch(make_batches(make_split(60, 60), batch_size=20, labeled_batch_size=7)):
        assert torch.equal(batch.labeled, batch.unlabeled)
        for level in batch.noise:
            labeled, unlabeled = level.split(20)
            assert not torch.isclose(labeled, unlabeled).any()


def test_without_weights_a_batch_has_none() -> None:
    assert next_epoch(make_batches(make_split(30, 5), weighted=False))[0].weights is None


def test_without_denoising_a_batch_has_labeled_rows_only_and_an_epoch_as_many_updates() -> None:
    batches = make_batches(make_split(60, 9), batch_size=20, labeled_batch_size=10, denoising=False)
    batch = next_epoch(batches)[0]
    assert (batches.updates, len(batch.unlabeled), len(batch.labeled)) == (3, 0, 10)
    assert [len(level) for level in batch.noise] == [10] * len(SHAPES)


# Noise.


def test_noise_is_standard_normal_at_every_level() -> None:
    epoch = next_epoch(make_batches(make_split(1000, 50), batch_size=50, labeled_batch_size=50))
    for level in zip(*(batch.noise for batch in epoch), strict=True):
        values = torch.cat(level).double().flatten()
        error = len(values) ** -0.5  # deviation of the mean; that of the deviation is smaller
        assert abs(values.mean().item()) < 5 * error
        assert abs(values.std().item() - 1) < 5 * error
        assert abs((values**4).mean().item() - 3) < 5 * error * 96**0.5  # 1.8 if it were uniform


def correlation(one: Tensor, other: Tensor) -> float:
    return torch.corrcoef(torch.stack([one.flatten(), other.flatten()]))[0, 1].item()


@pytest.mark.parametrize("block", [1, 2])
def test_noise_differs_between_updates_epochs_levels_rows_and_members(block: int) -> None:
    split = make_split(200, 20)
    batches = make_batches([split] * 2, (4, 5), 100, 100, shapes=[(50,), (50,)], block=block)
    (first, second), (third, _) = next_epoch(batches), next_epoch(batches)
    noise = first.noise[0][0]
    others = [second.noise[0][0], third.noise[0][0], first.noise[1][0], first.noise[0][1], noise.roll(1, 0)]
    for other in [*others, noise.roll(1, 1)]:
        assert abs(correlation(noise, other)) < 0.05  # five deviations, for 10,000 values


@pytest.mark.parametrize(("given", "used"), [(1, 1), (2, 2), (3, 2), (4, 2), (5, 5), (9, 5), (10, 10), (99, 10)])
def test_a_block_is_the_largest_possible_divisor_of_the_updates(given: int, used: int) -> None:
    batches = make_batches(make_split(100, 20), block=given)
    assert (batches.updates, batches.block) == (10, used)
    values = torch.stack([batch.noise[1] for batch in [*next_epoch(batches), *next_epoch(batches)]]).flatten()
    assert len(values.unique()) == len(values)  # no noise is used twice


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_has_the_dtype_of_the_rows(dtype: torch.dtype) -> None:
    batch = next_epoch(make_batches(make_split(30, 5), dtype=dtype))[0]
    assert {level.dtype for level in batch.noise} == {dtype}


def test_noise_of_maps_is_channels_last_in_memory() -> None:
    for seeds in ((0,), (0, 1)):
        batches = make_batches([make_split(30, 5)] * len(seeds), seeds, shapes=[(2, 3, 4), (3,)])
        maps, _ = next_epoch(batches)[0].noise
        assert maps.shape[-4:] == (16, 2, 3, 4)
        assert maps.view(-1, 2, 3, 4).is_contiguous(memory_format=torch.channels_last)


# Seeds and members.


@pytest.mark.parametrize(
    ("purpose", "expected"),
    [("order", 631148586959934839), ("noise", 3592391217948464449), ("weights", 6490791970533958236)],
)
def test_the_generator_of_a_seed_and_purpose_never_changes(purpose: str, expected: int) -> None:
    """The whole seed is compared: a generator on the CPU uses 32 bits of it, one on a GPU all of it."""
    assert generator(0, purpose).initial_seed() == expected


def test_generators_for_different_purposes_are_independent() -> None:
    order, noise = (torch.randn(1000, generator=generator(0, purpose)) for purpose in ("order", "noise"))
    assert abs(correlation(order, noise)) < 0.16  # five deviations, for 1000 values
    assert torch.equal(order, torch.randn(1000, generator=generator(0, "order")))


def test_order_and_noise_have_separate_generators_that_never_change() -> None:
    """Any other number of draws would change what a seed sees from the second epoch on."""
    split, order, noise = make_split(65, 12), generator(3, "order"), generator(3, "noise")
    batches = make_batches(split, (3,), block=2)
    for _ in range(2):
        epoch = next_epoch(batches)
        unlabeled = torch.randperm(65, generator=order)[:60]
        labeled = split.labeled[torch.rand(3, 12, generator=order).argsort(-1)]
        assert torch.equal(torch.cat([indices_of(batch.unlabeled) for batch in epoch]), unlabeled)
        assert torch.cat([indices_of(batch.labeled) for batch in epoch]).tolist() == labeled.flatten().tolist()
        for first in range(0, 6, 2):
            drawn = [level.flatten() for batch in epoch[first : first + 2] for level in batch.noise]
            assert torch.equal(torch.cat(drawn), torch.empty(2 * 16 * VALUES).normal_(generator=noise))


def test_neither_the_global_generator_nor_the_default_dtype_matters() -> None:
    expected = next_epoch(make_batches(make_split(90, 9)))
    state = torch.manual_seed(1).get_state()
    torch.set_default_dtype(torch.float64)
    try:
        found = next_epoch(make_batches(make_split(90, 9)))
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(torch.get_rng_state(), state)
    for one, other in zip(expected, found, strict=True):
        assert_same(one, other._replace(weights=other.weights.float()))


@pytest.mark.parametrize("block", [1, 4])
@pytest.mark.parametrize("denoising", [True, False])
@pytest.mark.parametrize("seeds", [[7, 8, 9], [8, 7, 9], [9, 8, 7], [7, 100]])
def test_a_member_sees_the_same_alone_and_in_any_ensemble(seeds: list[int], denoising: bool, block: int) -> None:
    options: dict[str, Any] = {"batch_size": 20, "labeled_batch_size": 8, "denoising": denoising, "block": block}
    splits = {seed: make_split(90, 9, validation=10, seed=seed) for seed in seeds}
    alone = make_batches(splits[7], (7,), **options)
    ensemble = make_batches(list(splits.values()), seeds, **options)
    member = seeds.index(7)
    taken_out = ensemble.for_member(member)
    for _ in range(2):
        for one, many, other in zip(next_epoch(alone), next_epoch(ensemble), next_epoch(taken_out), strict=True):
            assert_same(one, of_member(many, member))
            assert_same(one, other)


def test_members_of_different_seeds_see_different_rows_and_noise() -> None:
    batch = next_epoch(make_batches([make_split(90, 9)] * 3, (7, 8, 9), 20, 8))[0]
    for one, other in [(0, 1), (0, 2), (1, 2)]:
        assert not torch.equal(batch.unlabeled[one], batch.unlabeled[other])
        assert not torch.equal(batch.labeled[one], batch.labeled[other])
        assert not any(torch.isclose(level[one], level[other]).any() for level in batch.noise)


@pytest.mark.parametrize("seeds", [(3,), (3, 4)])
def test_restored_batches_continue_exactly(seeds: tuple[int, ...]) -> None:
    splits = [make_split(90, 9, seed=seed) for seed in seeds]
    batches, restored = make_batches(splits, seeds, block=3), make_batches(splits, [0] * len(seeds), block=3)
    next_epoch(batches)
    state = batches.state_dict()
    assert {name: len(states) for name, states in state.items()} == {"order": len(seeds), "noise": len(seeds)}
    expected = [*next_epoch(batches), *next_epoch(batches)]
    for _ in range(2):  # a state can be loaded again
        restored.load_state_dict(state)
        for one, other in zip(expected, [*next_epoch(restored), *next_epoch(restored)], strict=True):
            assert_same(one, other)


# Rows that are read while members train.


class Source(RowSource):
    """Rows that hold their own index; notes which are read, and takes its time."""

    def __init__(self, rows: int, block: int | None, seconds: float = 0.0) -> None:
        super().__init__((rows, 2))
        self.block_edges = None if block is None else np.append(np.arange(0, rows, block), rows)
        self.seconds = seconds
        self.read: list[np.ndarray] = []

    def take(self, rows: np.ndarray) -> np.ndarray:
        time.sleep(self.seconds)
        self.read.append(rows)
        return np.stack([rows, -rows], 1).astype(np.float32)


def stream(
    source: Source, splits: Split | Sequence[Split], seeds: Sequence[int] = (0,), *, window: int = 2, **options: Any
) -> StreamedBatches:
    """Make batches of ten rows, and windows of this many batches."""
    splits = [splits] if isinstance(splits, Split) else splits
    indices = torch.arange(len(source))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches_module, "WINDOW_BYTES", window * 10 * 2 * 4)
        return StreamedBatches(
            source, indices % 3, indices / 7, splits, seeds, SHAPES, 10, 6, device=torch.device("cpu"), **options
        )


@pytest.mark.parametrize("options", [{}, {"block": 3}, {"denoising": False}], ids=["", "block", "no denoising"])
@pytest.mark.parametrize("labels", [9, 90], ids=["few labels", "all labels"])
@pytest.mark.parametrize("seeds", [(3,), (3, 4)], ids=["one member", "two members"])
def test_streamed_rows_that_can_be_read_one_by_one_come_in_the_same_batches(seeds, labels, options) -> None:
    splits = [make_split(97, labels, validation=7, seed=seed) for seed in seeds]
    with_source = stream(Source(97, None), splits, seeds, **options)
    in_memory = make_batches(splits, seeds, **options)
    for _ in range(3):
        for one, other in zip(next_epoch(with_source), next_epoch(in_memory), strict=True):
            assert_same(one, other)
    with_source.close()


def test_streamed_blocks_give_every_row_its_turn_and_each_window_the_rows_of_few_blocks() -> None:
    split = make_split(1000, 20, validation=37)
    batches = stream(Source(1000, 5), split, window=8)
    orders = []
    for _ in range(3):
        epoch = [indices_of(batch.unlabeled) for batch in next_epoch(batches)]
        rows = torch.cat(epoch)
        assert len(rows) == len(rows.unique()) == 960  # of 963: the others do not fill a batch
        assert not set(rows.tolist()) & set(split.validation)
        for window in rows.split(80):
            assert len((window // 5).unique()) <= 80 / 5 * 963 / 1000 + 4  # some blocks lack rows, two are cut
            assert len((window[:10] // 5).unique()) > 6  # mixed
        orders.append(rows.tolist())
    assert len({tuple(order) for order in orders}) == 3
    batches.close()


def test_the_order_of_streamed_blocks_depends_on_the_seed_alone() -> None:
    split = make_split(300, 20)
    alone, other = stream(Source(300, 7), split, (3,)), stream(Source(300, 7), split, (4,))
    slow, ensemble = stream(Source(300, 7, seconds=0.002), split, (3,)), stream(Source(300, 7), [split] * 2, (4, 3))
    for _ in range(2):
        epochs = [next_epoch(batches) for batches in (alone, slow, ensemble, other)]
        for one, same, many, different in zip(*epochs, strict=True):
            assert_same(one, same)
            assert_same(one, of_member(many, 1))
            assert not torch.equal(one.unlabeled, different.unlabeled)
    for batches in (alone, other, slow, ensemble):
        batches.close()


@pytest.mark.parametrize("block", [None, 7])
@pytest.mark.parametrize("update", [0, 3, 7, 9])
def test_streamed_batches_continue_exactly_from_any_update(block: int | None, update: int) -> None:
    split = make_split(100, 9)
    batches, restored = stream(Source(100, block), split, (3,), window=3), stream(Source(100, block), split, window=3)
    for each in (batches, restored):
        next_epoch(each)
    if update:
        batches.start_epoch()
        for earlier in range(update):
            batches.batch(earlier)
    restored.load_state_dict(batches.state_dict(), update)  # between two epochs, the next order is drawn already
    if not update:
        for each in (batches, restored):
            each.start_epoch()
    for later in range(update, 10):
        assert_same(batches.batch(later), restored.batch(later))
    for each in (batches, restored):
        each.close()


def test_streamed_rows_are_read_once_an_epoch_and_labeled_ones_at_the_start() -> None:
    split = make_split(100, 9)
    source = Source(100, 7)
    batches = stream(source, split, window=3)
    assert sorted(source.read.pop()) == sorted(split.labeled)
    for _ in range(2):
        next_epoch(batches)
    batches.close()
    numbers = np.concatenate(source.read)
    assert [len(rows) for rows in source.read] == [30, 30, 30, 10] * 2 + [
        30
    ]  # the last one for an epoch that never comes
    assert np.unique(numbers[:100]).tolist() == list(range(100))


def test_without_denoising_unlabeled_rows_are_not_read() -> None:
    source = Source(100, 7)
    batches = stream(source, make_split(100, 9), denoising=False)
    next_epoch(batches)
    batches.close()
    assert len(source.read) == 1


def test_an_error_while_reading_is_raised_where_the_rows_are_needed() -> None:
    source = Source(100, 7)
    batches = stream(source, make_split(100, 9))
    source.take = lambda _: 1 / 0
    with pytest.raises(ZeroDivisionError):
        next_epoch(batches)
    batches.close()
