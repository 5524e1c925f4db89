"""Both streams bring every row its turn, with fresh noise, and what a member sees depends on its seed alone."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tikas.data.splits import Split, split
from tikas.data.streams import Batch, Examples, Streams, generator
from tikas.training.building import build_ladder
from tikas.training.recipe import Recipe

SHAPES = [(2,), (5,), (5,), (3,)]


def numbered(rows: int, weights: bool = False) -> Examples:
    """Rows that tell their own number, targets and weights that follow from it."""
    numbers = torch.arange(rows)
    return Examples(torch.stack([numbers, -numbers], 1).float(), numbers % 3, 3, numbers / 7 if weights else None)


def numbers_of(rows: torch.Tensor) -> torch.Tensor:
    return rows[..., 0].long()


def split_of(rows: int, labels: int, validation: int = 0, seed: int = 0) -> Split:
    order = np.random.default_rng(seed).permutation(rows)
    held_out, training = np.sort(order[:validation]), order[validation:]
    return Split(training[:labels], np.sort(training), held_out)


def streams_of(
    split: Split, *, batch_size: int = 10, labeled_batch_size: int = 6, seed: int = 0, rows: int = 1000
) -> Streams:
    return Streams(numbered(rows, weights=True), [split], [seed], SHAPES, batch_size, labeled_batch_size)


def epoch_of(streams: Streams) -> list[Batch]:
    """The batches of the next epoch; their noise is copied, for a batch's is good until the next one is asked for."""
    streams.start_epoch()
    batches = (streams.batch(update) for update in range(streams.updates))
    return [batch._replace(noise=[draw.clone() for draw in batch.noise]) for batch in batches]


sizes = st.integers(2, 40).flatmap(
    lambda rows: st.tuples(st.just(rows), st.integers(1, rows), st.integers(2, 50), st.integers(2, 50))
)


@settings(max_examples=80, deadline=None)
@given(sizes)
def test_any_number_of_labels_goes_with_any_batch_sizes(size):
    rows, labels, batch_size, labeled_batch_size = size
    chosen = split_of(rows, labels)
    batches = epoch_of(streams_of(chosen, batch_size=batch_size, labeled_batch_size=labeled_batch_size))

    seen = Counter(number for batch in batches for number in numbers_of(batch.unlabeled).tolist())
    assert max(seen.values()) == 1
    assert set(seen) <= set(chosen.unlabeled)
    assert len(batches) == max(1, rows // batch_size)
    assert all(len(batch.unlabeled) == min(rows, batch_size) for batch in batches)

    shown = Counter(number for batch in batches for number in numbers_of(batch.labeled).tolist())
    assert set(shown) <= set(chosen.labeled)
    if labels == rows:
        assert shown == seen
    else:
        assert all(len(batch.labeled) == labeled_batch_size for batch in batches)
        counts = [shown[number] for number in chosen.labeled]
        assert max(counts) - min(counts) <= 1  # every label equally often, the last round being cut short

    for batch in batches:
        labeled = numbers_of(batch.labeled)
        assert torch.equal(batch.targets, labeled % 3)
        assert torch.equal(batch.weights, labeled / 7)
        count = len(batch.labeled) + len(batch.unlabeled)
        assert [tuple(draw.shape) for draw in batch.noise] == [(count, *shape) for shape in SHAPES]


def test_an_epoch_is_a_permutation_of_the_unlabelled_rows_and_the_next_epoch_is_another():
    chosen = split_of(100, 20, validation=10)
    streams = streams_of(chosen)
    epochs = [torch.cat([numbers_of(batch.unlabeled) for batch in epoch_of(streams)]) for _ in range(4)]
    for order in epochs:
        assert order.sort().values.tolist() == chosen.unlabeled.tolist()
    assert len({tuple(order.tolist()) for order in [*epochs, torch.from_numpy(chosen.unlabeled)]}) == 5


def test_rows_are_shuffled_across_batches_and_not_only_within_them():
    first, second = (
        [frozenset(numbers_of(batch.unlabeled).tolist()) for batch in epoch_of(streams)]
        for streams in [streams_of(split_of(100, 20))] * 2
    )
    assert not set(first) & set(second)


def test_rows_that_fill_no_batch_wait_for_an_epoch_of_their_own_luck():
    chosen = split_of(47, 5)
    streams = streams_of(chosen, batch_size=10)
    waiting = [
        set(chosen.unlabeled) - {n for batch in epoch_of(streams) for n in numbers_of(batch.unlabeled).tolist()}
        for _ in range(12)
    ]
    assert {len(rows) for rows in waiting} == {7}
    assert not set.intersection(*waiting)  # by chance a row waits twelve times with probability (7/47)¹²


def test_labelled_rows_stand_among_the_unlabelled():
    chosen = split_of(60, 12)
    seen = {n for batch in epoch_of(streams_of(chosen)) for n in numbers_of(batch.unlabeled).tolist()}
    assert set(chosen.labeled) <= seen


def test_held_out_rows_never_come():
    chosen = split_of(60, 12, validation=20)
    streams = streams_of(chosen)
    for _ in range(5):
        for batch in epoch_of(streams):
            came = {*numbers_of(batch.unlabeled).tolist(), *numbers_of(batch.labeled).tolist()}
            assert not came & set(chosen.validation)


@pytest.mark.parametrize("labels", [3, 10, 11, 25])
def test_the_labelled_stream_is_one_shuffled_round_after_another(labels):
    """Fewer labels than a batch, as many, one more, and more than twice as many."""
    chosen = split_of(100, labels)
    stream = torch.cat([numbers_of(b.labeled) for b in epoch_of(streams_of(chosen, labeled_batch_size=10))])
    rounds = stream[: len(stream) // labels * labels].view(-1, labels)
    assert all(sorted(one.tolist()) == sorted(chosen.labeled) for one in rounds)
    assert len({tuple(one.tolist()) for one in rounds}) > 1


def test_with_all_labels_both_halves_are_the_same_rows_with_other_noise():
    chosen = split_of(60, 60)
    for batch in epoch_of(streams_of(chosen, batch_size=20, labeled_batch_size=7)):
        assert torch.equal(batch.labeled, batch.unlabeled)
        assert torch.equal(batch.targets, numbers_of(batch.unlabeled) % 3)
        for draw in batch.noise:
            of_labeled, of_unlabeled = draw.split(20)
            assert not torch.isclose(of_labeled, of_unlabeled).any()


def test_fewer_rows_than_a_batch_are_one_batch_of_all():
    streams = streams_of(split_of(7, 3), batch_size=100, labeled_batch_size=4)
    for _ in range(3):
        (batch,) = epoch_of(streams)
        assert sorted(numbers_of(batch.unlabeled).tolist()) == list(range(7))
        assert len(batch.labeled) == 4


def test_without_weights_there_are_none():
    streams = Streams(numbered(30), [split_of(30, 5)], [0], SHAPES, 10, 5)
    assert epoch_of(streams)[0].weights is None


# Noise.


def test_noise_is_standard_normal_at_every_level():
    batches = epoch_of(streams_of(split_of(1000, 50), batch_size=50, labeled_batch_size=50))
    for draws in zip(*(batch.noise for batch in batches), strict=True):
        values = torch.cat(draws).double().flatten()
        error = len(values) ** -0.5  # the deviation of the mean; that of the deviation is 1/√2 of it
        assert abs(values.mean().item()) < 5 * error
        assert abs(values.std().item() - 1) < 5 * error
        assert abs((values**4).mean().item() - 3) < 5 * error * 96**0.5  # and not uniform: the fourth moment is 3


def correlation(one: torch.Tensor, other: torch.Tensor) -> float:
    return torch.corrcoef(torch.stack([one.flatten(), other.flatten()]))[0, 1].item()


@pytest.mark.parametrize("most_in_block", [1, 2, 10])
def test_noise_differs_by_update_by_epoch_by_level_by_row_and_by_member(most_in_block):
    examples, chosen = numbered(200), split_of(200, 20)
    streams = Streams(examples, [chosen] * 2, [4, 5], [(50,), (50,)], 100, 100, most_in_block)
    first, second = epoch_of(streams)
    third, _ = epoch_of(streams)
    one = first.noise[0][0]
    others = [second.noise[0][0], third.noise[0][0], first.noise[1][0], first.noise[0][1], one.roll(1, 0)]
    for other in [*others, one.roll(1, 1)]:
        assert abs(correlation(one, other)) < 0.05  # five deviations of 1/√10,000


@pytest.mark.parametrize(
    ("most_in_block", "block"), [(1, 1), (2, 2), (3, 2), (4, 2), (5, 5), (9, 5), (10, 10), (99, 10)]
)
def test_an_epoch_is_whole_blocks_of_updates(most_in_block, block):
    streams = Streams(numbered(100), [split_of(100, 20)], [0], SHAPES, 10, 6, most_in_block)
    assert (streams.updates, streams.block) == (10, block)
    draws = torch.stack([batch.noise[1] for batch in [*epoch_of(streams), *epoch_of(streams)]]).flatten()
    assert len(draws.unique()) == len(draws)  # in 1600 draws of 24 bits a tie is not expected


def test_no_two_purposes_of_a_seed_share_their_numbers():
    draws = [torch.randn(1000, generator=generator(0, purpose)) for purpose in ("order", "noise", "weights")]
    for one, other in [(0, 1), (0, 2), (1, 2)]:
        assert abs(correlation(draws[one], draws[other])) < 0.16  # five deviations of 1/√1000


@pytest.mark.parametrize(
    ("purpose", "expected"),
    [("order", 631148586959934839), ("noise", 3592391217948464449), ("weights", 6490791970533958236)],
)
def test_a_seed_of_a_purpose_is_the_one_that_it_always_was(purpose, expected):
    """By its number: generators of a CPU use 32 bits of it, those of a GPU all."""
    assert generator(0, purpose).initial_seed() == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_is_of_the_kind_of_the_rows(dtype):
    examples = numbered(30)._replace(rows=torch.rand(30, 2, dtype=dtype))
    batch = epoch_of(Streams(examples, [split_of(30, 5)], [0], SHAPES, 10, 5))[0]
    assert {draw.dtype for draw in batch.noise} == {dtype}


def test_noise_of_maps_lies_with_its_channels_last():
    streams = Streams(numbered(30), [split_of(30, 5)], [0], [(2, 3, 4), (3,)], 10, 6)
    streams.start_epoch()
    maps, _ = streams.batch(0).noise
    assert maps.shape == (16, 2, 3, 4)
    assert maps.is_contiguous(memory_format=torch.channels_last)


# A member and its company.


RECIPE = Recipe(data="array", network=(5, 5), batch_size=20, labeled_batch_size=8)


def seen_by(seed: int, company: list[int], most_in_block: int = 1) -> list[torch.Tensor]:
    """First weights, and two epochs of batches, of one member among others; each seed with a split of its own."""
    classes = np.arange(90) % 3
    splits = [split(classes, 9, validation=10, seed=member) for member in company]
    ladders = [build_ladder(RECIPE, (2,), 3, member) for member in company]
    streams = Streams(numbered(90, weights=True), splits, company, ladders[0].shapes, 20, 8, most_in_block)
    place = company.index(seed)
    seen = [*ladders[place].state_dict().values()]
    for batch in [*epoch_of(streams), *epoch_of(streams)]:
        parts = [batch.unlabeled, batch.labeled, batch.targets, batch.weights, *batch.noise]
        seen += [part[place] if len(company) > 1 else part for part in parts]
    return seen


@pytest.mark.parametrize("most_in_block", [1, 4])
@pytest.mark.parametrize("company", [[7, 8, 9], [8, 7, 9], [9, 8, 7], [7, 100]])
def test_what_a_member_sees_and_starts_from_depends_on_its_seed_alone(company, most_in_block):
    alone, together = seen_by(7, [7], most_in_block), seen_by(7, company, most_in_block)
    assert len(alone) == len(together)
    assert all(torch.equal(one, other) for one, other in zip(alone, together, strict=True))


def test_rows_and_noise_are_drawn_from_generators_of_their_own_and_no_more_than_is_needed():
    """Or a seed would see something else, from the second epoch on, than it saw before."""
    chosen, order, noise = split_of(65, 12), generator(3, "order"), generator(3, "noise")
    streams = Streams(numbered(65), [chosen], [3], SHAPES, 10, 6, most_in_block=2)
    for _ in range(2):
        batches = epoch_of(streams)
        unlabeled = torch.randperm(65, generator=order)[:60]
        labeled = chosen.labeled[torch.rand(3, 12, generator=order).argsort(-1)]
        assert torch.equal(torch.cat([numbers_of(batch.unlabeled) for batch in batches]), unlabeled)
        assert torch.cat([numbers_of(batch.labeled) for batch in batches]).tolist() == labeled.flatten().tolist()
        for first in range(0, 6, 2):
            levels = [level.flatten() for batch in batches[first : first + 2] for level in batch.noise]
            assert torch.equal(torch.cat(levels), torch.empty(2 * 16 * 15).normal_(generator=noise))


@pytest.mark.parametrize("denoising", [True, False])
def test_a_member_taken_out_of_its_company_sees_the_same(denoising):
    splits = [split_of(90, 9, seed=seed) for seed in range(3)]
    company = Streams(numbered(90, weights=True), splits, [7, 8, 9], SHAPES, 20, 8, 4, denoising)
    for alone, together in zip(epoch_of(company.alone(1)), epoch_of(company), strict=True):
        for ours, theirs in zip([*alone[:3], *alone.noise], [*together[:3], *together.noise], strict=True):
            assert torch.equal(ours, theirs[1])


def test_members_of_other_seeds_see_other_rows_and_noise_and_start_from_other_weights():
    company = [7, 8, 9]
    streams = Streams(numbered(90), [split_of(90, 9)] * 3, company, SHAPES, 20, 8)
    batch = epoch_of(streams)[0]
    weights = [build_ladder(RECIPE, (2,), 3, member).rungs[1].weight for member in company]
    for one, other in [(0, 1), (0, 2), (1, 2)]:
        assert not torch.equal(batch.unlabeled[one], batch.unlabeled[other])
        assert not torch.equal(batch.labeled[one], batch.labeled[other])
        assert not any(torch.isclose(draw[one], draw[other]).all() for draw in batch.noise)
        assert not torch.equal(weights[one], weights[other])


def test_the_global_generator_is_neither_used_nor_moved():
    torch.manual_seed(1)
    one = seen_by(7, [7])
    torch.manual_seed(2)
    before = torch.get_rng_state()
    other = seen_by(7, [7])
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert torch.equal(torch.get_rng_state(), before)


def test_without_denoising_a_batch_has_labelled_rows_alone():
    streams = Streams(numbered(60), [split_of(60, 9)], [0], SHAPES, 20, 10, denoising=False)
    streams.start_epoch()
    batch = streams.batch(0)
    assert (streams.updates, len(batch.unlabeled), len(batch.labeled)) == (3, 0, 10)
    assert [len(level) for level in batch.noise] == [10] * len(SHAPES)


def test_all_of_the_examples_go_to_another_device():
    there = numbered(6, weights=True).to(torch.device("meta"))
    assert {there.rows.device.type, there.targets.device.type, there.weights.device.type} == {"meta"}


def test_examples_that_were_made_outside_of_inference_mode_are_not_copied():
    """They may take up most of the memory."""
    examples = numbered(6, weights=True)
    assert all(one is other for one, other in zip(examples, examples.outside_inference_mode(), strict=True))


def test_examples_that_were_made_in_inference_mode_are_copied_out_of_it():
    with torch.inference_mode():
        inside = numbered(6, weights=True)
    outside = inside.outside_inference_mode()
    for one, other in zip(inside, outside, strict=True):
        if isinstance(one, torch.Tensor):
            assert not other.is_inference()
            assert torch.equal(one, other)
