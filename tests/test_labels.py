"""y as people have it, as codes and classes; what is no label and what is no y, with a message that says so."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tikas.data.labels import (
    as_array,
    as_values,
    encode_labels,
    is_unlabeled,
    label_weights,
    one_for_each_row,
    scale_of_values,
)

NAN = float("nan")


def objects(*values):
    return np.array(values, dtype=object)


@pytest.mark.parametrize(
    ("y", "codes", "classes"),
    [
        pytest.param(np.array([3, -1, 7]), [0, -1, 1], [3, 7], id="integers"),
        pytest.param(np.array([3, 0, 7], dtype=np.uint8), [1, 0, 2], [0, 3, 7], id="unsigned"),
        pytest.param(np.array([3.0, -1.0, 7.0, NAN]), [0, -1, 1, -1], [3.0, 7.0], id="whole-floats"),
        pytest.param(np.array([True, False]), [1, 0], [False, True], id="booleans"),
        pytest.param(np.array(["cat", "ant"]), [1, 0], ["ant", "cat"], id="text"),
        pytest.param(
            objects("b", -1, None, NAN, pd.NA, pd.NaT, "a"),
            [1, -1, -1, -1, -1, -1, 0],
            ["a", "b"],
            id="objects-of-text",
        ),
        pytest.param(objects(True, None, False), [1, -1, 0], [False, True], id="objects-of-booleans"),
        pytest.param(objects(2, None, np.int64(5)), [0, -1, 1], [2, 5], id="objects-of-numbers"),
        pytest.param(np.asarray(pd.Series([2, None, 5], dtype="Int64")), [0, -1, 1], [2, 5], id="nullable-integers"),
        pytest.param(np.asarray(pd.Series([True, None, False], dtype="boolean")), [1, -1, 0], [False, True]),
        pytest.param(np.asarray(pd.Series(["x", None, "w"], dtype="string")), [1, -1, 0], ["w", "x"]),
        pytest.param(np.asarray(pd.Series(["x", None, "w"], dtype="category")), [1, -1, 0], ["w", "x"]),
    ],
)
def test_every_way_to_write_labels_gives_their_codes_and_classes(y, codes, classes):
    found_codes, found_classes = encode_labels(y)
    assert found_codes.tolist() == codes
    assert found_codes.dtype == np.int64
    assert found_classes.tolist() == classes
    assert is_unlabeled(y).tolist() == [code == -1 for code in codes]


TEXTS = st.text(max_size=3).filter(lambda text: text.strip() and text not in ("-1", "nan"))  # those are refused


@given(st.lists(st.one_of(st.none(), TEXTS), min_size=2).filter(lambda y: len(set(y) - {None}) > 1))
def test_codes_lead_back_to_the_labels(y):
    codes, classes = encode_labels(as_array(y))
    assert [None if code == -1 else classes[code] for code in codes] == y


def test_numbers_that_look_like_values_are_warned_of():
    with pytest.warns(UserWarning, match="The 30 labels are 16 different numbers.*LadderRegressor, or tikas train"):
        encode_labels(np.array([*range(16), *range(14), -1]))
    encode_labels(np.arange(30) % 15)  # a warning would be an error here
    encode_labels(np.arange(20))
    encode_labels(np.arange(30).astype(str))


@pytest.mark.parametrize("kind", [list, tuple])
def test_items_of_a_sequence_stay_what_they_were(kind):
    assert as_array(kind(["cat", -1])).tolist() == ["cat", -1]


def test_given_classes_keep_their_order():
    codes, classes = encode_labels(np.array(["low", "high", "mid"]), np.array(["low", "mid", "high"]))
    assert classes.tolist() == ["low", "mid", "high"]
    assert codes.tolist() == [0, 2, 1]


@pytest.mark.parametrize("y", [np.ma.masked_equal([3, 9, 7], 9), pd.Series([3, None, 7], dtype="Int64")])
def test_whole_numbers_with_gaps_stay_whole_numbers_and_gaps(y):
    items = as_array(y)
    assert is_unlabeled(items).tolist() == [False, True, False]
    codes, classes = encode_labels(items)
    assert (codes.tolist(), classes.tolist(), classes.dtype.kind) == ([0, -1, 1], [3, 7], "i")
    np.testing.assert_array_equal(as_values(items), [3, NAN, 7])


def test_a_list_of_text_and_numbers_keeps_both():
    assert as_array(["cat", -1]).tolist() == ["cat", -1]
    assert is_unlabeled(as_array(["cat", -1, NAN, None, "-1"])).tolist() == [False, True, True, True, False]


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.array([-1, -1, -1]), "None of the 3 rows is labelled.*Label at least one row of each class"),
        (objects(None, NAN), "None of the 2 rows is labelled"),
        (np.array([4, 4, -1]), "one class only, 4.*at least two classes"),
        (np.array(["cat", "cat"]), "one class only, 'cat'"),
        (np.array([0, 1.5, 2]), "Unknown label type: continuous.*holds 1.5.*whole numbers.*LadderRegressor"),
        (objects(0, 0.5), "holds 0.5"),
        (np.array([0, np.inf]), "contains infinity"),
        (objects("cat", 1), "mixes labels of different types: number, string.*one type"),
        (objects(True, 1), "mixes labels of different types: boolean, number"),
        (np.array([1 + 2j, 3]), "Unknown label type: complex128"),
        (np.array(["2020-01-01", "2021-01-01"], dtype="datetime64[D]"), "Unknown label type: datetime64"),
        (np.array([b"cat", b"dog"]), "Unknown label type.*convert y"),
        (objects({1}, {2}), "Unknown label type: set"),
        (np.array(["cat", "dog", -1]), "array of text with '-1' in it.*dtype object.*None where there is no label"),
        (np.array(["cat", "dog", NAN]), "array of text with 'nan' in it"),
        (np.array(["cat", "dog", "<NA>"]), "array of text with '<NA>' in it"),
        (np.array(["cat", "dog", ""]), "holds an empty text.*None where there is no label"),
        (objects("cat", None, "dog", " "), "holds an empty text"),
        (objects(2**70, 1), f"y holds {2**70}, too large a number to be exact beside the others. Make text of them"),
        (objects(2**63 + 1, 2**63, -5), f"y holds {2**63 + 1}, too large a number"),
        (objects(2**53 + 1, 1.0), f"y holds {2**53 + 1}, too large a number"),
    ],
)
def test_what_is_no_set_of_labels_is_refused_with_the_reason(y, message):
    with pytest.raises(ValueError, match=message):
        encode_labels(y)


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ([0, 1, 2], r"No row is labelled 2, one of the given classes \[0, 1, 2\].*Label at least one row"),
        ([0, 5], r"y holds 1, which is not among the given classes \[0, 5\].*Add it"),
        (["0", "1"], "y holds 0, which is not among"),
        ([0, 1, 1], "names a class twice"),
        ([0, 1, "two"], "classes mixes labels of different types"),
        ([0, 1, None], "classes mixes labels of different types"),
        (2, r"classes=2: expected a list of the classes, such as \[0, 1\]"),
        ({0, 1}, r"classes=\{0, 1\}: expected a list"),
        ([[0, 1]], r"classes=\[\[0, 1\]\]: expected a list"),
    ],
)
def test_labels_that_do_not_fit_the_given_classes_are_refused(classes, message):
    with pytest.raises(ValueError, match=message):
        encode_labels(np.array([0, 1, -1]), as_array(classes))


def test_y_has_one_item_for_each_row():
    with pytest.raises(ValueError, match="requires y to be passed"):
        one_for_each_row(None, 3)
    with pytest.raises(ValueError, match=r"X has 3 rows and y has 2.*-1"):
        one_for_each_row([0, 1], 3)
    with pytest.raises(ValueError, match="X has 1 rows and y has 2"):
        one_for_each_row([0, 1], 1)
    with pytest.raises(ValueError, match="1d array"):
        one_for_each_row([[0, 1], [1, 0]], 2)


def test_the_values_of_a_regression_may_be_minus_one_and_may_be_missing():
    expected = [0.5, NAN, -1.0]
    for y in (np.array(expected), objects(0.5, None, -1), np.asarray(pd.Series([0.5, None, -1], dtype="Float64"))):
        np.testing.assert_array_equal(as_values(y), expected)
    np.testing.assert_array_equal(as_values(np.array([True, False])), [1.0, 0.0])
    np.testing.assert_array_equal(as_values(objects(True, None, 0.5)), [1.0, NAN, 0.5])


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.array(["a", "b"]), "y holds .*'a'.*regressor learns numbers.*LadderClassifier"),
        (objects(1.0, "b"), "y holds 'b'"),
        (np.array([1 + 1j]), "regressor learns numbers"),
        (np.array([1.0, np.inf]), "infinity"),
    ],
)
def test_what_is_no_value_is_refused_with_the_reason(y, message):
    with pytest.raises(ValueError, match=message):
        as_values(y)


@pytest.mark.parametrize("size", [1e-200, 1e200, 1e308])
def test_values_whose_squares_are_no_numbers_have_no_scale(size):
    with pytest.raises(ValueError, match=r"y runs from .* the square of that is no number any more\. Divide y"):
        scale_of_values(size * np.array([-1.0, 0.5, 1.0]))
    assert scale_of_values(np.full(7, size)) == (size, 1)


def test_weights_of_rows_and_classes_multiply():
    codes, classes = np.array([0, 1, 1, -1]), np.array(["a", "b"])
    assert label_weights(codes, classes, None, None) is None
    assert label_weights(codes, classes, [1, 2, 0, 5], {"b": 10}).tolist() == [1, 20, 0, 5]
    np.testing.assert_allclose(label_weights(codes, classes, None, "balanced")[:3], [1.5, 0.75, 0.75])


def test_a_class_without_weight_is_refused():
    with pytest.raises(ValueError, match=r"class 'b' has weight zero.*positive weight"):
        label_weights(np.array([0, 1, 1]), np.array(["a", "b"]), [1, 0, 0], None)
    with pytest.raises(ValueError, match="Negative values"):
        label_weights(np.array([0, 1]), np.array(["a", "b"]), [1, -1], None)


@pytest.mark.parametrize("weight", [-1, float("inf"), NAN])
def test_the_weight_of_a_class_is_a_finite_number_of_at_least_zero(weight):
    with pytest.raises(ValueError, match=r"class_weight=\{'b': .*\}: expected finite numbers of at least 0"):
        label_weights(np.array([0, 1]), np.array(["a", "b"]), None, {"b": weight})
