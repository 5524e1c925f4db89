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
    as_array,
    as_labels,
    check_sample_weight,
    encode_labels,
    is_unlabeled,
    label_weights,
    mean_and_deviation,
    one_per_row,
    regression_values,
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


def test_many_different_numbers_as_labels_give_a_warning() -> None:
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


@pytest.mark.parametrize("y", [[3, None, 7], pd.Series([3, None, 7], dtype="Int64")])
def test_integers_with_missing_values_stay_integers(y: Any) -> None:
    items = as_array(y)
    codes, classes = encode_labels(items)
    assert (codes.tolist(), classes.tolist(), classes.dtype.kind) == ([0, -1, 1], [3, 7], "i")
    np.testing.assert_array_equal(regression_values(items), [3, NAN, 7])


@pytest.mark.parametrize(
    ("y", "named"),
    [
        (np.array([-1, -1, -1]), "None of the 3 rows"),
        (objects(None, NAN), "None of the 2 rows"),
        (np.array([4, 4, -1]), "one class only, 4"),
        (np.array(["cat", "cat"]), "one class only, 'cat'"),
        (np.array([0, 1.5, 2]), "continuous.*1.5.*LadderRegressor"),
        (objects(0, 0.5), "0.5"),
        (np.array([0, np.inf]), "inf"),
        (objects("cat", 1), "int, str"),
        (np.array([1 + 2j, 3]), "complex128"),
        (np.array(["2020-01-01", "2021-01-01"], dtype="datetime64[D]"), "datetime64"),
        (objects(pd.Timestamp(0), pd.Timestamp(1)), "Timestamp"),
        (np.array([b"cat", b"dog"]), r"\|S3"),
        (objects({1}, {2}), r"Unknown label type.*\{1\}"),
        (np.array(["cat", "dog", -1]), "'-1'.*object.*None"),
        (np.array(["cat", "dog", NAN]), "'nan'"),
        (np.array(["cat", "dog", "<NA>"]), "'<NA>'"),
        (objects("cat", None, "dog", " "), "' '"),
        (objects(2**70, 1), str(2**70)),
    ],
)
def test_labels_that_cannot_be_classes_raise_an_error_that_names_them(y: np.ndarray, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        encode_labels(y)


@pytest.mark.parametrize(
    "classes", [[0, 1, 2], [0, 5], ["0", "1"], [0, 1, 1], [0, 1, "two"], [0, 1, None], 2, {0, 1}, [[0, 1]]], ids=str
)
def test_given_classes_other_than_the_labels_raise_an_error(classes: Any) -> None:
    with pytest.raises(ValueError, match=re.escape(f"classes={classes}") + r".*\[0, 1\]"):
        encode_labels(np.array([0, 1, -1]), as_array(classes))


def test_objects_are_labels_of_their_own_type() -> None:
    labels = as_labels(objects(1, np.int64(0)))
    assert (labels.tolist(), labels.dtype.kind) == ([1, 0], "i")


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
        np.testing.assert_array_equal(regression_values(y), expected)
    np.testing.assert_array_equal(regression_values(np.array([True, False])), [1.0, 0.0])
    np.testing.assert_array_equal(regression_values(objects(True, None, 0.5)), [1.0, NAN, 0.5])


@pytest.mark.parametrize(
    ("y", "named"),
    [
        (np.array(["a", "b"]), "'a'.*LadderClassifier"),
        (objects(1.0, "b"), "'b'"),
        (np.array([1.0, np.inf]), "infinity"),
    ],
)
def test_targets_of_a_regression_that_are_not_numbers_are_named_in_the_error(y: np.ndarray, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        regression_values(y)


def test_the_deviation_of_equal_values_is_set_to_one() -> None:
    assert mean_and_deviation(np.array([1.0, 3.0])) == (2, 1)
    assert mean_and_deviation(np.full(7, 0.1)) == (0.1, 1)  # NumPy's deviation is not exactly 0


CODES, CLASSES = np.array([0, 1, 1, -1]), np.array(["a", "b"])


def test_weights_of_rows_and_classes_are_multiplied() -> None:
    given = np.array([1.0, 2, 0, 5])
    assert label_weights(CODES, CLASSES, None, None) is None
    assert label_weights(CODES, CLASSES, given, {"b": 10}).tolist() == [1, 20, 0, 5]
    assert given.tolist() == [1, 2, 0, 5]
    np.testing.assert_allclose(label_weights(CODES, CLASSES, None, "balanced")[:3], [1.5, 0.75, 0.75])


@pytest.mark.parametrize("weight", [0, -1, NAN])
def test_a_class_without_positive_weight_is_named_in_the_error(weight: float) -> None:
    with pytest.raises(ValueError, match=f"class 'b' .* weight of {float(2 * weight):g}"):
        label_weights(CODES, CLASSES, None, {"b": weight})
    with pytest.raises(ValueError, match=r"class 'b' .* weight of 0"):
        label_weights(CODES, CLASSES, np.array([1.0, 0, 0, 1]), None)


@pytest.mark.parametrize("weight", [-1, np.inf, NAN])
def test_sample_weights_must_be_finite_and_at_least_zero(weight: float) -> None:
    with pytest.raises(ValueError, match="sample_weight"):
        check_sample_weight([1, weight], 2)


@pytest.mark.parametrize("weights", [[1, 2], [[1, 1, 1]]])
def test_there_is_one_sample_weight_per_row(weights: Any) -> None:
    assert check_sample_weight([1, 2, 0], 3).tolist() == [1, 2, 0]
    with pytest.raises(ValueError, match=re.escape(f"{np.shape(weights)}, expected (3,)")):
        check_sample_weight(weights, 3)


@pytest.mark.parametrize("y", [[-2, -1, 0, 1, 2], [0.0, -1.0, -3.0, 1.0]])
def test_classes_below_minus_one_beside_minus_one_raise_value_error(y: list[float]) -> None:
    with pytest.raises(ValueError, match=f"{min(y)} and -1.*LabelEncoder"):
        encode_labels(np.array(y))


def test_a_class_below_minus_one_gives_a_warning() -> None:
    with pytest.warns(UserWarning, match="-2.*taken for a class"):
        codes, classes = encode_labels(np.array([-2, 2, -2]))
    assert (codes.tolist(), classes.tolist()) == ([0, 1, 0], [-2, 2])


def test_one_class_beside_minus_one_may_be_two_classes() -> None:
    with pytest.raises(ValueError, match=r"one class only, 1.*y > 0"):
        encode_labels(np.array([-1, 1, -1, 1]))
