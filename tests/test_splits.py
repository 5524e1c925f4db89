"""Labelled rows are balanced, held-out rows are apart, and both depend on the seed alone."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tikas.data.splits import split

MIXED = np.array([0, 1, 2] * 20 + [-1] * 15)


@st.composite
def possible_splits(draw):
    n_classes = draw(st.integers(1, 6))
    rows_per_class = draw(st.integers(3, 15))
    validation = draw(st.integers(0, rows_per_class // 3))  # small enough to leave every class its share
    labels = draw(st.integers(n_classes, n_classes * (rows_per_class - validation)))
    unknown = draw(st.integers(0, 20))
    order = np.random.default_rng(draw(st.integers(0, 100)))
    y = np.concatenate([np.repeat(np.arange(n_classes), rows_per_class), np.full(unknown, -1)])
    return order.permutation(y), labels, validation, draw(st.integers(0, 2**40))


@settings(max_examples=60, deadline=None)
@given(possible_splits())
def test_a_split_is_balanced_apart_and_repeatable(case):
    y, labels, validation, seed = case
    rows = split(y, labels, validation=validation, seed=seed)

    counts = np.bincount(y[rows.labeled], minlength=y.max() + 1)
    remaining = np.count_nonzero(y >= 0) - validation
    assert counts.sum() == labels
    assert counts.max() - counts.min() <= 1 or labels == remaining
    assert len(np.unique(rows.labeled)) == labels
    assert len(rows.validation) == validation
    assert np.all(y[rows.validation] >= 0)
    assert set(rows.labeled) <= set(rows.unlabeled)
    assert sorted([*rows.unlabeled, *rows.validation]) == list(range(len(y)))

    again = split(y, labels, validation=validation, seed=seed)
    for name in ("labeled", "unlabeled", "validation"):
        assert getattr(rows, name).dtype == np.int64
        np.testing.assert_array_equal(getattr(rows, name), getattr(again, name))


def test_seeds_choose_different_rows():
    chosen = {tuple(sorted(split(MIXED, 6, seed=seed).labeled)) for seed in range(20)}
    held_out = {tuple(split(MIXED, 6, validation=10, seed=seed).validation) for seed in range(20)}
    assert len(chosen) == len(held_out) == 20


def test_a_seed_chooses_the_rows_it_always_chose():
    rows = split(MIXED, 6, validation=4, seed=0)
    assert rows.labeled.tolist() == [32, 57, 52, 0, 26, 25]
    assert rows.validation.tolist() == [29, 33, 51, 58]


def test_the_remainder_goes_to_different_classes_under_different_seeds():
    luckiest = {int(np.argmax(np.bincount(MIXED[split(MIXED, 7, seed=seed).labeled]))) for seed in range(30)}
    assert luckiest == {0, 1, 2}


def test_few_labels_are_a_part_of_many():
    few, many = (split(MIXED, labels, validation=5, seed=3) for labels in (6, 13))
    assert set(few.labeled) < set(many.labeled)


def test_held_out_rows_do_not_depend_on_the_number_of_labels():
    few, many = (split(MIXED, labels, validation=9, seed=3) for labels in (6, 30))
    np.testing.assert_array_equal(few.validation, many.validation)


def test_no_number_of_labels_means_all_of_them_however_unbalanced():
    y = np.array([0] * 9 + [1] * 2 + [-1] * 4)
    assert sorted(split(y, None).labeled) == list(range(11))
    assert sorted(split(y, 11).labeled) == list(range(11))


def test_rows_without_a_label_are_looked_at_but_never_labelled_or_held_out():
    rows = split(MIXED, None, validation=20, seed=1)
    unknown = set(np.flatnonzero(MIXED == -1))
    assert unknown <= set(rows.unlabeled)
    assert not unknown & (set(rows.labeled) | set(rows.validation))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"labels": 61}, "61 labels were asked for but 60 are there"),
        ({"labels": 60, "validation": 1}, "60 labels were asked for but 59 are there"),
        ({"labels": 2}, "2 labels cannot cover 3 classes"),
        ({"labels": 0}, "0 labels cannot cover 3 classes"),
        ({"labels": -1}, "labels=-1 was given"),
        ({"labels": 6, "validation": -2}, "validation=-2 was given"),
        ({"labels": 6, "seed": -3}, "seed=-3 was given"),
        ({"labels": None, "validation": 58}, "validation=58 rows cannot be held out of 60"),
    ],
)
def test_counts_that_cannot_be_had_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        split(MIXED, **arguments)


def test_a_class_with_too_few_rows_is_named_with_its_count():
    with pytest.raises(ValueError, match=r"Class 1 has 2 labelled rows to train on, but 4 are needed .* at most 4,"):
        split(np.array([0] * 9 + [1] * 2), 8)


def drawn_from_all(y, validation, seed):
    return np.sort(np.random.default_rng([seed, 1]).choice(np.flatnonzero(y >= 0), validation, replace=False))


def test_a_class_of_one_row_keeps_it():
    y = np.array([0] * 50 + [1])
    for seed in range(50):
        rows = split(y, None, validation=25, seed=seed)
        assert 50 in rows.labeled
        assert len(rows.validation) == 25


def test_a_class_of_two_rows_keeps_one_and_draws_that_left_one_are_as_they_were():
    y = np.array([0] * 50 + [1] * 2)
    redrawn, refused = [], []
    for seed in range(50):
        rows = split(y, None, validation=20, seed=seed)
        assert len(rows.validation) == 20
        assert np.unique(y[rows.labeled]).tolist() == [0, 1]
        before = drawn_from_all(y, 20, seed)
        if {50, 51} <= set(before):
            redrawn.append(seed)
        else:
            np.testing.assert_array_equal(rows.validation, before)
        if len(set(rows.validation) & {50, 51}):  # the advice helps: every label works, as above, and fewer do
            with pytest.raises(ValueError, match=r"Class 1 has 1 labelled rows .* but 2 are needed .* labels=None"):
                split(y, 4, validation=20, seed=seed)
            assert np.bincount(y[split(y, 2, validation=20, seed=seed).labeled]).tolist() == [1, 1]
            refused.append(seed)
        else:
            assert np.bincount(y[split(y, 4, validation=20, seed=seed).labeled]).tolist() == [2, 2]
    assert redrawn
    assert 0 < len(refused) < 50


@pytest.mark.parametrize(("seed", "expected"), [(2, [0, 1, 2, 4, 7]), (5, [0, 2, 3, 4, 6])])
def test_a_seed_whose_draw_took_a_class_draws_again_what_it_always_drew(seed, expected):
    y = np.array([0] * 6 + [1] * 2)
    assert {6, 7} <= set(drawn_from_all(y, 5, seed))
    assert split(y, None, validation=5, seed=seed).validation.tolist() == expected


def test_as_many_rows_are_held_out_as_leave_each_class_one():
    y = np.array([0] * 5 + [1, 2, 2, -1])
    for seed in range(20):
        rows = split(y, None, validation=5, seed=seed)
        assert sorted(y[rows.labeled]) == [0, 1, 2]
        assert 8 in rows.unlabeled
    with pytest.raises(ValueError, match="Hold out at most 5"):
        split(y, None, validation=6)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.array([0.0, 1.0]), "type float64; expected one whole number per row"),
        (np.array([[0, 1]]), r"shape \(1, 2\)"),
        (np.array(["a", "b"]), "expected one whole number per row"),
        (np.array([-1, -1]), "None of the 2 rows has a known label"),
        (np.array([0, 1, -2]), "y holds -2"),
    ],
)
def test_labels_that_are_not_classes_are_refused(y, message):
    with pytest.raises(ValueError, match=message):
        split(y, None)


def test_classes_may_be_unsigned():
    """As those of MNIST are, in its files."""
    y = MIXED[MIXED >= 0]
    signed, unsigned = (split(y.astype(kind), 6, validation=4) for kind in (np.int64, np.uint8))
    np.testing.assert_array_equal(signed.labeled, unsigned.labeled)
    np.testing.assert_array_equal(signed.validation, unsigned.validation)


def test_hidden_are_the_known_labels_of_every_class_that_are_neither_used_nor_held_out():
    y = np.array([0, 1, -1] * 10)
    rows = split(y, 4, validation=3)
    known = set(np.flatnonzero(y >= 0))
    assert set(rows.hidden(y)) == known - set(rows.labeled) - set(rows.validation)
    assert set(y[rows.hidden(y)]) == {0, 1}
