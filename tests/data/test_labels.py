"""Labels in every form that people have them in, as class codes; values of a regression; weights of labels and rows."""

import re
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.exceptions import DataConversionWarning

from tikas.data.labels import (
    MAX_REPETITION,
    as_array,
    as_counts,
    as_values,
    check_sample_weight,
    encode_labels,
    is_unlabeled,
    label_weights,
    labels_to_compare,
    one_per_row,
    row_indices,
    scale_of_values,
)

NAN = float("nan")


def objects(*items: Any) -> np.ndarray:
    return np.array(items, dtype=object)


def pandas_array(items: list[Any], dtype: str) -> np.ndarray:
    return np.asarray(pd.Series(items, dtype=dtype))


@pytest.mark.parametrize(
    ("y", "codes", "classes"),
    [
        pytest.param(np.array([3, -1, 7]), [0, -1, 1], [3, 7], id="integers"),
        pytest.param(np.array([3, 0, 7], np.uint8), [1, 0, 2], [0, 3, 7], id="unsigned integers"),
        pytest.param(np.array([3.0, -1.0, 7.0, NAN]), [0, -1, 1, -1], [3.0, 7.0], id="whole floats"),
        pytest.param(np.array([True, False]), [1, 0], [False, True], id="booleans"),
        pytest.param(np.array(["cat", "ant"]), [1, 0], ["ant", "cat"], id="strings"),
        pytest.param(
            objects("b", -1, None, NAN, pd.NA, pd.NaT, "a"), [1, -1, -1, -1, -1, -1, 0], ["a", "b"], id="objects"
        ),
        pytest.param(objects(True, None, False), [1, -1, 0], [False, True], id="objects, booleans"),
        pytest.param(objects(2, None, np.int64(5)), [0, -1, 1], [2, 5], id="objects, numbers"),
        pytest.param(pandas_array([2, None, 5], "Int64"), [0, -1, 1], [2, 5], id="pandas integers"),
        pytest.param(pandas_array([True, None, False], "boolean"), [1, -1, 0], [False, True], id="pandas booleans"),
        pytest.param(pandas_array(["x", None, "w"], "string"), [1, -1, 0], ["w", "x"], id="pandas strings"),
        pytest.param(pandas_array(["x", None, "w"], "category"), [1, -1, 0], ["w", "x"], id="pandas categories"),
    ],
)
def test_labels_of_every_type_become_codes_and_sorted_classes(y: np.ndarray, codes: list, classes: list) -> None:
    found_codes, found_classes = encode_labels(y)
    assert found_codes.tolist() == codes
    assert found_codes.dtype == np.int64
    assert found_classes.tolist() == classes
    assert is_unlabeled(y).tolist() == [code == -1 for code in codes]


LABELS = st.text(max_size=3).filter(lambda text: text.strip() and text not in ("-1", "nan"))  # the others are errors


@given(st.lists(st.none() | LABELS, min_size=2).filter(lambda y: len(set(y) - {None}) > 1))
def test_codes_index_the_classes(y: list[str | None]) -> None:
    codes, classes = encode_labels(as_array(y))
    assert [None if code == -1 else classes[code] for code in codes] == y


def test_given_classes_keep_their_order() -> None:
    codes, classes = encode_labels(np.array(["low", "high", "mid"]), np.array(["low", "mid", "high"]))
    assert (classes.tolist(), codes.tolist()) == (["low", "mid", "high"], [0, 2, 1])


def test_many_different_numbers_are_warned_of_as_values() -> None:
    with pytest.warns(UserWarning, match="30 labels are 16 different numbers.*LadderRegressor") as caught:
        encode_labels(np.array([*range(16), *range(14), -1]), stacklevel=2)
    assert caught[0].filename == __file__
    for y in (np.arange(30) % 15, np.arange(20), np.arange(30).astype(str)):
        encode_labels(y)  # a warning would be an error here


@pytest.mark.parametrize("sequence", [list, tuple])
def test_items_of_a_sequence_keep_their_types(sequence: Any) -> None:
    items = as_array(sequence(["cat", -1, NAN, None, "-1"]))
    assert items.tolist()[:2] == ["cat", -1]
    assert is_unlabeled(items).tolist() == [False, True, True, True, False]


@pytest.mark.parametrize("y", [np.ma.masked_equal([3, 9, 7], 9), pd.Series([3, None, 7], dtype="Int64")])
def test_integers_with_missing_values_stay_integers(y: Any) -> None:
    items = as_array(y)
    codes, classes = encode_labels(items)
    assert (codes.tolist(), classes.tolist(), classes.dtype.kind) == ([0, -1, 1], [3, 7], "i")
    np.testing.assert_array_equal(as_values(items), [3, NAN, 7])


@pytest.mark.parametrize(
    ("y", "named"),
    [
        (np.array([-1, -1, -1]), "None of the 3 rows"),
        (objects(None, NAN), "None of the 2 rows"),
        (np.array([4, 4, -1]), "one class only, 4"),
        (np.array(["cat", "cat"]), "one class only, 'cat'"),
        (np.array([0, 1.5, 2]), "continuous.*1.5.*LadderRegressor"),
        (objects(0, 0.5), "0.5"),
        (np.array([0, np.inf]), "infinity"),
        (objects("cat", 1), "number, string"),
        (objects(True, 1), "boolean, number"),
        (np.array([1 + 2j, 3]), "complex128"),
        (np.array(["2020-01-01", "2021-01-01"], dtype="datetime64[D]"), "datetime64"),
        (np.array([b"cat", b"dog"]), r"\|S3"),
        (objects({1}, {2}), "Unknown label type: set"),
        (np.array(["cat", "dog", -1]), "'-1'.*object.*None"),
        (np.array(["cat", "dog", NAN]), "'nan'"),
        (np.array(["cat", "dog", "<NA>"]), "'<NA>'"),
        (objects("cat", None, "dog", " "), "' '"),
        (objects(2**70, 1), str(2**70)),
        (objects(2**63 + 1, 2**63, -5), str(2**63 + 1)),
        (objects(2**53 + 1, 1.0), str(2**53 + 1)),
    ],
)
def test_labels_of_no_classes_are_an_error_that_names_what_was_found(y: np.ndarray, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        encode_labels(y)


@pytest.mark.parametrize(
    ("classes", "named"),
    [
        ([0, 1, 2], "No row is labeled 2"),
        ([0, 5], r"y holds 1, .*\[0, 5\]"),
        (["0", "1"], "y holds 0"),
        ([0, 1, 1], r"\[0, 1, 1\].*twice"),
        ([0, 1, "two"], "classes mixes .* number, string"),
        ([0, 1, None], "classes mixes"),
        (2, "classes=2"),
        ({0, 1}, r"classes=\{0, 1\}"),
        ([[0, 1]], r"classes=\[\[0, 1\]\]"),
    ],
)
def test_labels_that_do_not_fit_the_given_classes_are_an_error(classes: Any, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        encode_labels(np.array([0, 1, -1]), as_array(classes))


def test_labels_are_compared_with_classes_of_their_own_type_only() -> None:
    assert labels_to_compare(objects(1, 0), np.array([0, 1])).tolist() == [1, 0]
    with pytest.raises(ValueError, match=r"'0'.* 0, "):
        labels_to_compare(np.array(["0", "1"]), np.array([0, 1]))


def test_y_may_be_a_single_column() -> None:
    with pytest.warns(DataConversionWarning):
        assert one_per_row(pd.DataFrame({"y": [1, 0]}), 2).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("y", "rows", "named"),
    [
        (None, 3, "requires y to be passed"),
        ([0, 1], 3, "X has 3 rows and y has 2"),
        ([0, 1], 1, "X has 1 rows and y has 2"),
        ([[0, 1], [1, 0]], 2, "1d array"),
    ],
)
def test_y_must_have_one_item_per_row(y: Any, rows: int, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        one_per_row(y, rows)


def test_a_regression_reads_minus_one_as_a_value_and_none_as_missing() -> None:
    expected = [0.5, NAN, -1.0]
    for y in (np.array(expected), objects(0.5, None, -1), pandas_array([0.5, None, -1], "Float64")):
        np.testing.assert_array_equal(as_values(y), expected)
    np.testing.assert_array_equal(as_values(np.array([True, False])), [1.0, 0.0])
    np.testing.assert_array_equal(as_values(objects(True, None, 0.5)), [1.0, NAN, 0.5])


@pytest.mark.parametrize(
    ("y", "named"),
    [
        (np.array(["a", "b"]), "'a'.*LadderClassifier"),
        (objects(1.0, "b"), "'b'"),
        (np.array([1 + 1j]), "1j"),
        (np.array([1.0, np.inf]), "infinity"),
    ],
)
def test_targets_of_a_regression_that_are_no_numbers_are_named(y: np.ndarray, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        as_values(y)


def test_the_scale_of_values_is_their_mean_and_deviation() -> None:
    assert scale_of_values(np.array([1.0, 3.0])) == (2, 1)
    for size in (1e-200, 1e200, 1e308):
        assert scale_of_values(np.full(7, size)) == (size, 1)
        with pytest.raises(ValueError, match=re.escape(f"{-size:.3g} to {size:.3g}")):
            scale_of_values(size * np.array([-1.0, 0.5, 1.0]))


def test_weights_of_rows_and_classes_are_multiplied() -> None:
    codes, classes = np.array([0, 1, 1, -1]), np.array(["a", "b"])
    assert label_weights(codes, classes, None, None) is None
    assert label_weights(codes, classes, [1, 2, 0, 5], {"b": 10}).tolist() == [1, 20, 0, 5]
    np.testing.assert_allclose(label_weights(codes, classes, None, "balanced")[:3], [1.5, 0.75, 0.75])


def test_the_given_sample_weights_are_not_changed() -> None:
    given = np.ones(3)
    label_weights(np.array([0, 1, 1]), np.array(["a", "b"]), given, {"b": 10})
    assert given.tolist() == [1, 1, 1]


def test_a_class_whose_labels_all_have_weight_zero_is_named() -> None:
    with pytest.raises(ValueError, match="class 'b' has weight zero"):
        label_weights(np.array([0, 1, 1]), np.array(["a", "b"]), [1, 0, 0], None)


@pytest.mark.parametrize("weight", [-1, np.inf, NAN])
def test_weights_must_be_finite_and_at_least_zero(weight: float) -> None:
    with pytest.raises(ValueError, match=r"class_weight=\{'b': "):
        label_weights(np.array([0, 1]), np.array(["a", "b"]), None, {"b": weight})
    with pytest.raises(ValueError, match=f"sample_weight holds {float(weight)}"):
        check_sample_weight([1, weight], 2)


def test_there_is_one_sample_weight_per_row_or_one_for_all() -> None:
    assert check_sample_weight(2, 3).tolist() == [2, 2, 2]
    for weights in ([1, 2], [[1, 1, 1]]):
        with pytest.raises(ValueError, match=re.escape(f"{np.shape(weights)}, expected (3,)")):
            check_sample_weight(weights, 3)


@pytest.mark.parametrize(
    ("weights", "counts"),
    [
        ([0.5, 0.75, 0.0], [2, 3, 0]),
        ([7.0, 7.0], [1, 1]),
        (np.float32([0.1, 0.3]).astype(float), [1, 3]),
        ([1e-300, 1e300], None),
        ([1.0, 0.0318], None),
        ([1.0, 1.0318], None),
        ([0.0, 0.0], None),
    ],
)
def test_weights_become_the_smallest_integers_with_their_ratios(weights: Any, counts: list[int] | None) -> None:
    found = as_counts(np.array(weights))
    assert (found if found is None else found.tolist()) == counts


def test_weights_repeat_rows_a_limited_number_of_times() -> None:
    assert as_counts(np.array([1.0, 2 * MAX_REPETITION - 1])).sum() == 2 * MAX_REPETITION
    assert as_counts(np.array([1.0, 2 * MAX_REPETITION])) is None


ROWS = np.float32([[3, 0], [1, 0], [2, 0], [1, 0]])


def test_different_rows_keep_their_order() -> None:
    assert row_indices(ROWS, np.array([0, 1, 0, 2])).tolist() == [0, 1, 2, 3]
    assert row_indices(ROWS, np.array([0, 1, 0, 1]), np.array([1, 1, 1, 0])).tolist() == [0, 1, 2]
    wide = np.zeros((2, 100), np.float32)
    wide[1, 0] = 1  # beside the columns that are compared first
    assert row_indices(wide, np.array([0, 0])).tolist() == [0, 1]


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_a_row_of_weight_two_is_the_row_given_twice(zero: float) -> None:
    targets, counts = np.array([0, 1, 0, -1]), np.array([2, 1, 0, 3])
    repeated = np.repeat(np.arange(4), counts)
    again, again_targets = ROWS[repeated].copy(), targets[repeated]
    again[:, 1] = zero
    weighted, given_twice = row_indices(ROWS, targets, counts), row_indices(again, again_targets)
    np.testing.assert_array_equal(ROWS[weighted], again[given_twice])
    np.testing.assert_array_equal(targets[weighted], again_targets[given_twice])
    order = [4, 2, 0, 5, 3, 1]
    assert (again_targets[order][row_indices(again[order], again_targets[order])] == targets[weighted]).all()
