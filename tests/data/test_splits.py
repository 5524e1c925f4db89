"""Splits: labeled rows are balanced over the classes, validation rows are apart, and both depend on the seed alone."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tikas.data.splits import LabeledKFold, LabeledShuffleSplit, Split, split

Y = np.array([0, 1, 2] * 20 + [-1] * 15)


@st.composite
def possible_splits(draw: st.DrawFn) -> tuple[np.ndarray, int, int, int]:
    n_classes, rows_per_class = draw(st.integers(1, 6)), draw(st.integers(3, 15))
    validation = draw(st.integers(0, rows_per_class // 3))  # small enough to leave enough rows of each class
    labels = draw(st.integers(n_classes, n_classes * (rows_per_class - validation)))
    y = np.concatenate([np.repeat(np.arange(n_classes), rows_per_class), np.full(draw(st.integers(0, 20)), -1)])
    order = np.random.default_rng(draw(st.integers(0, 100))).permutation(len(y))
    return y[order], labels, validation, draw(st.integers(0, 2**40))


@settings(max_examples=60)
@given(possible_splits())
def test_a_split_is_balanced_disjoint_and_reproducible(case: tuple[np.ndarray, int, int, int]) -> None:
    y, labels, validation, seed = case
    rows = split(y, labels, validation=validation, seed=seed)

    counts = np.bincount(y[rows.labeled], minlength=y.max() + 1)
    all_labels = np.count_nonzero(y >= 0) - validation
    assert counts.sum() == len(set(rows.labeled)) == labels
    assert np.ptp(counts) <= 1 or labels == all_labels
    assert len(rows.validation) == validation
    assert (y[rows.validation] >= 0).all()
    assert set(rows.labeled) <= set(rows.unlabeled)
    assert sorted([*rows.unlabeled, *rows.validation]) == list(range(len(y)))
    assert rows.fully_labeled == (labels == len(y) - validation)
    assert set(rows.hidden(y)) == set(np.flatnonzero(y >= 0)) - set(rows.labeled) - set(rows.validation)

    again = split(y, labels, validation=validation, seed=seed)
    for name in ("labeled", "unlabeled", "validation"):
        assert getattr(rows, name).dtype == np.int64
        np.testing.assert_array_equal(getattr(rows, name), getattr(again, name))


def test_the_rows_of_a_seed_never_change() -> None:
    """Records of experiments name their seed only."""
    rows = split(Y, 6, validation=4, seed=0)
    assert rows.labeled.tolist() == [32, 57, 52, 0, 26, 25]
    assert rows.validation.tolist() == [29, 33, 51, 58]


def test_seeds_draw_different_rows_and_give_the_remainder_to_different_classes() -> None:
    splits = [split(Y, 7, validation=10, seed=seed) for seed in range(20)]
    assert len({tuple(sorted(rows.labeled)) for rows in splits}) == 20
    assert len({tuple(rows.validation) for rows in splits}) == 20
    assert {int(np.bincount(Y[rows.labeled]).argmax()) for rows in splits} == {0, 1, 2}


def test_the_number_of_labels_changes_no_validation_row_and_few_labels_are_among_many() -> None:
    few, many = (split(Y, labels, validation=9, seed=3) for labels in (6, 30))
    np.testing.assert_array_equal(few.validation, many.validation)
    assert set(few.labeled) < set(many.labeled)


@pytest.mark.parametrize("labels", [None, 11])
def test_all_labels_are_used_balanced_or_not(labels: int | None) -> None:
    assert sorted(split(np.array([0] * 9 + [1] * 2 + [-1] * 4), labels).labeled) == list(range(11))


def test_rows_without_a_label_are_only_used_as_unlabeled_rows() -> None:
    rows = split(Y, None, validation=20, seed=1)
    unknown = set(np.flatnonzero(Y == -1))
    assert unknown <= set(rows.unlabeled)
    assert not unknown & {*rows.labeled, *rows.validation}


def test_unsigned_codes_are_split_like_signed_ones() -> None:
    signed, unsigned = (split(Y[Y >= 0].astype(dtype), 6, validation=4) for dtype in (np.int64, np.uint8))
    np.testing.assert_array_equal(signed.labeled, unsigned.labeled)
    np.testing.assert_array_equal(signed.validation, unsigned.validation)


def test_each_class_keeps_a_labeled_row_to_train_on() -> None:
    y = np.array([0] * 5 + [1, 2, 2, -1])
    for seed in range(20):
        rows = split(y, None, validation=5, seed=seed)
        assert sorted(y[rows.labeled]) == [0, 1, 2]
        assert len(rows.validation) == 5


def drawn_from_all_labels(y: np.ndarray, validation: int, seed: int) -> list[int]:
    drawn = np.random.default_rng([seed, 1]).choice(np.flatnonzero(y >= 0), validation, replace=False)
    return np.sort(drawn).tolist()


@pytest.mark.parametrize(("seed", "expected"), [(2, [0, 1, 2, 4, 7]), (5, [0, 2, 3, 4, 6]), (0, None)])
def test_validation_rows_are_drawn_again_only_if_they_take_the_last_row_of_a_class(
    seed: int, expected: list[int] | None
) -> None:
    y = np.array([0] * 6 + [1] * 2)
    drawn = drawn_from_all_labels(y, 5, seed)
    assert ({6, 7} <= set(drawn)) == (expected is not None)
    assert split(y, None, validation=5, seed=seed).validation.tolist() == (expected or drawn)


def test_a_fully_labeled_split_has_the_same_rows_in_both_parts_of_an_update() -> None:
    rows = np.arange(60)
    assert Split(rows[:6], rows, rows[:0]).batch_sizes(100, 50) == (60, 50)
    assert Split(rows, rows, rows[:0]).batch_sizes(20, 50) == (20, 20)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"labels": 61}, "labels=61 .* 60 "),
        ({"labels": 60, "validation": 1}, "labels=60 .* 59 "),
        ({"labels": 2}, "labels=2 .* 3 classes"),
        ({"labels": 0}, "labels=0 .* 3 classes"),
        ({"labels": -1}, "labels=-1"),
        ({"labels": 6, "validation": -2}, "negative"),
        ({"labels": 6, "seed": -3}, "non-negative"),
        ({"labels": None, "validation": 58}, "validation=58 .* at most 57"),
    ],
)
def test_impossible_counts_are_named_in_the_error(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        split(Y, **arguments)


@pytest.mark.parametrize(("classes", "name"), [(None, "1"), (["cat", "dog"], "'dog'")])
def test_the_error_for_a_class_with_too_few_rows_names_it_and_the_largest_possible_number(
    classes: Any, name: str
) -> None:
    with pytest.raises(ValueError, match=f"Class {name} has 2 .* labels=8 .* needs 4.* at most 4 labels"):
        split(np.array([0] * 9 + [1] * 2), 8, classes=classes)


def test_a_split_without_any_label_raises_an_error() -> None:
    with pytest.raises(ValueError, match="None of the 2 rows"):
        split(np.array([-1, -1]), None)


# Splitters for scikit-learn


PARTLY = np.where(np.arange(90) % 3 == 0, np.repeat([0, 1, 2], 30), -1)
"""Ten labels of each class, sorted by class."""
VALUES = np.where(np.arange(90) % 3 == 0, np.linspace(-1, 2, 90), np.nan)
SPLITTERS = [
    LabeledKFold(5),
    LabeledKFold(5, shuffle=True, random_state=0),
    LabeledShuffleSplit(5, test_size=6, random_state=0),
]


@pytest.mark.parametrize("splitter", SPLITTERS, ids=repr)
@pytest.mark.parametrize(
    ("y", "missing"),
    [
        (PARTLY, PARTLY == -1),
        (np.array(["no", "yes", "maybe", None], dtype=object)[PARTLY], PARTLY == -1),
        (PARTLY.tolist(), PARTLY == -1),
        (VALUES, np.isnan(VALUES)),
    ],
    ids=["codes", "text", "list", "values"],
)
def test_unlabeled_rows_are_in_every_training_part_and_in_no_test_part(splitter, y, missing) -> None:
    parts = list(splitter.split(None, y))
    assert len(parts) == splitter.get_n_splits() == 5
    for train, test in parts:
        assert np.array_equal(np.sort(train[missing[train]]), np.flatnonzero(missing))
        assert not missing[test].any()
        assert np.array_equal(np.sort(np.concatenate([train, test])), np.arange(90))
        assert len(test) == 6


def test_folds_have_every_label_once_and_as_many_of_each_class() -> None:
    tested = np.concatenate([test for _, test in LabeledKFold(5).split(None, PARTLY)])
    assert np.array_equal(np.sort(tested), np.flatnonzero(PARTLY >= 0))
    for splitter in SPLITTERS:
        for train, test in splitter.split(None, PARTLY):
            assert np.bincount(PARTLY[test]).tolist() == [2, 2, 2]
            assert np.bincount(PARTLY[train] + 1).tolist() == [60, 8, 8, 8]


def test_first_parts_of_the_training_rows_have_all_groups_in_proportion() -> None:
    for train, _ in LabeledKFold(5).split(None, PARTLY):
        assert np.bincount(PARTLY[train[:21]] + 1, minlength=4).tolist() == [15, 2, 2, 2]


def test_labeled_rows_beyond_train_size_are_left_out() -> None:
    for train, test in LabeledShuffleSplit(2, train_size=9, test_size=0.5, random_state=0).split(None, PARTLY):
        assert np.bincount(PARTLY[train] + 1).tolist() == [60, 3, 3, 3]
        assert len(test) == 15


def test_the_random_state_alone_determines_shuffled_splits() -> None:
    def splits(kind: type, seed: int) -> list[list[int]]:
        options = {"shuffle": True} if kind is LabeledKFold else {}
        return [test.tolist() for _, test in kind(2, random_state=seed, **options).split(None, PARTLY)]

    for kind in (LabeledKFold, LabeledShuffleSplit):
        assert splits(kind, 0) == splits(kind, 0) != splits(kind, 1)


@pytest.mark.parametrize(
    ("y", "labeled"),
    [
        (np.where(np.arange(60) % 2, -1.0, np.arange(60) % 3), 30),
        (np.where(np.arange(60) % 2, -1.0, np.arange(60) + 0.5), 60),
        (np.where(np.arange(60) % 2, -1.0, -2.0 * np.arange(60)), 60),
        (np.where(np.arange(60) % 2, np.nan, np.arange(60.0)), 30),
        (np.where(np.arange(60) % 2, -1, np.arange(60) % 3), 30),
    ],
    ids=["class codes as floats", "fractions", "negative values", "whole values", "codes"],
)
def test_minus_one_marks_unlabeled_rows_of_classes_and_is_one_of_other_values(y, labeled: int) -> None:
    assert sum(len(test) for _, test in LabeledKFold(3).split(None, y)) == labeled


def test_the_task_may_be_given() -> None:
    y = np.where(np.arange(60) % 2, -1.0, np.arange(60) % 3)
    assert sum(len(test) for _, test in LabeledKFold(3, task="regression").split(None, y)) == 60
