"""Rows of about unit size pass in silence; others get one warning that says what to do."""

import warnings

import numpy as np
import pytest
from sklearn import datasets
from sklearn.preprocessing import StandardScaler

from tikas.data.preprocess import ScaleWarning, check_scale, range_to_keep, warn_of_few_rows, warn_of_other_scale
from tikas.data.sources import load

NORMAL = np.random.default_rng(0).normal(size=(200, 6))


def warnings_of(X, columns=None):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_scale(X, columns)
    assert all(warning.category is ScaleWarning for warning in caught)
    return [str(warning.message) for warning in caught]


def unit_norm_embeddings(dimensions):
    rows = np.random.default_rng(0).normal(size=(300, dimensions))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def rare_indicators():
    return (np.random.default_rng(0).random((20_000, 60)) < np.geomspace(1e-5, 0.5, 60)).astype(np.float32)


def rarest_indicators():
    """Most of them are one in a single row, and a hundredth as wide as the last one."""
    X = np.eye(50_000, 5, dtype=np.float32)
    X[::2, 4] = 1
    return X


@pytest.mark.parametrize(
    "X",
    [
        pytest.param(load("digits").train_x, id="digits"),
        pytest.param(load("digits").train_x[:10], id="ten-digits"),
        pytest.param(NORMAL, id="normal"),
        pytest.param(np.abs(NORMAL) % 1, id="uniform"),
        pytest.param(StandardScaler().fit_transform(datasets.load_breast_cancer().data), id="standardised"),
        pytest.param(datasets.load_iris().data, id="iris"),
        pytest.param(unit_norm_embeddings(384), id="embeddings"),
        pytest.param(unit_norm_embeddings(4096), id="wide-embeddings"),
        pytest.param(rare_indicators(), id="rare-indicators"),
        pytest.param(rarest_indicators(), id="rarest-indicators"),
        pytest.param(np.hstack([NORMAL, np.zeros((200, 3))]), id="constant-zeros"),
        pytest.param(np.hstack([NORMAL, NORMAL[:, :1] / 200, np.zeros((200, 9))]), id="mostly-constant-zeros"),
        pytest.param(np.hstack([NORMAL, 5 + NORMAL[:, :1] / 4]), id="not-far-from-zero"),
        pytest.param(np.random.default_rng(0).integers(1, 6, (200, 10)), id="answers-from-1-to-5"),
        pytest.param(np.ones((1, 4)), id="one-row"),
    ],
)
def test_rows_of_about_unit_size_pass_in_silence(X):
    assert warnings_of(X) == []


@pytest.mark.parametrize("seed", range(20))
def test_the_data_that_scikit_learn_tests_with_passes_in_silence(seed):
    X_blobs, _ = datasets.make_blobs(n_samples=60, centers=2 + seed % 4, n_features=1 + seed % 8, random_state=seed)
    X_classes, _ = datasets.make_classification(n_samples=80, random_state=seed)
    assert warnings_of(X_blobs) + warnings_of(X_classes) == []


@pytest.mark.parametrize(
    ("factor", "kind", "division"),
    [(255, np.uint8, "by 255"), (255, float, "by 255"), (160, int, "by 255"), (16, int, "by 16")],
)
def test_pixels_that_were_not_scaled_are_told_to_be_divided(factor, kind, division):
    (message,) = warnings_of((load("digits").train_x * factor).astype(kind))
    assert f"run from 0 to {factor}," in message
    assert division in message
    assert message.endswith(", or set preprocess='standardize'.")


def test_scaled_pixels_given_as_images_are_flattened_first():
    (message,) = warnings_of(load("digits").train_x[:50] * 255)
    assert "run from 0 to 255," in message


def test_pixels_are_known_beside_any_number_of_blank_ones():
    pixels = load("digits").train_x.reshape(-1, 64) * 255
    (message,) = warnings_of(np.hstack([pixels, np.zeros((len(pixels), 100))]))
    assert "like pixels" in message


def test_two_rows_have_a_scale():
    (message,) = warnings_of(np.array([[0, 0], [255, 255]]))
    assert "run from 0 to 255," in message


def test_all_rows_count_however_many_there_are():
    X = np.random.default_rng(0).normal(size=(6000, 2))
    X[5000:, 1] *= 50
    (message,) = warnings_of(X)
    assert "X[:, 1]" in message
    assert "X[:, 0]" not in message


def test_a_few_wild_columns_are_named_with_their_deviation():
    scales = np.array([1, 1, 5000, 1, 1, 1])
    (message,) = warnings_of(NORMAL * scales, ["age", "b", "income", "d", "e", "f"])
    assert "'income' (mean" in message
    assert "deviation 5" in message
    assert message.endswith("with preprocess='standardize'.")
    assert "'age'" not in message


def test_at_most_five_wild_columns_are_named():
    (message,) = warnings_of(NORMAL * 100)
    assert message.count("X[:, ") == 5
    assert "and 1 more" in message


def test_a_column_far_from_zero_is_named():
    X = NORMAL.copy()
    X[:, 3] += 2000
    (message,) = warnings_of(X)
    assert "X[:, 3] (mean 2e+03" in message
    assert message.count("X[:, ") == 1


def test_columns_drowned_by_the_largest_are_the_ones_named():
    (message,) = warnings_of(NORMAL * [1, 1, 0.001, 0.001, 0.001, 0.001], list("abcdef"))
    assert "'c'" in message
    assert "'a'" not in message


def test_rows_that_hardly_vary_are_told_to_be_standardised():
    (message,) = warnings_of(NORMAL * 1e-4)
    assert "hardly vary" in message
    assert message.endswith("with preprocess='standardize'.")


def test_columns_constant_at_a_value_other_than_zero_are_named():
    X = np.hstack([NORMAL, np.zeros((200, 1)), np.full((200, 7), 2.5)])
    (message,) = warnings_of(X)
    assert "X[:, 7] (always 2.5)" in message
    assert "X[:, 6]" not in message
    assert "and 2 more" in message
    assert "VarianceThreshold" in message


def test_each_kind_warns_once():
    X = np.hstack([NORMAL * 1000, np.ones((200, 1))])
    assert len(warnings_of(X)) == 2


@pytest.mark.parametrize("value", [0.0, 3.0])
def test_rows_that_are_all_alike_are_refused(value):
    with pytest.raises(ValueError, match="Each of the 4 columns holds a single value in all 10 rows"):
        check_scale(np.full((10, 4), value))


def test_the_warning_points_at_the_line_that_came_through_the_door():
    def door(X):
        check_scale(X)

    with pytest.warns(ScaleWarning) as caught:
        door(NORMAL * 1000)
    assert caught[0].filename == __file__
    assert caught[0].lineno == door.__code__.co_firstlineno + 4


def test_rows_given_are_left_as_they_were():
    X = NORMAL * 1000
    before = X.copy()
    warnings_of(X)
    np.testing.assert_array_equal(X, before)


# Rows to predict.


def skewed(rows):
    return np.random.default_rng(rows).lognormal(sigma=1.0, size=(rows, 20))


TRAINING_AND_OTHERS = {
    "digits": (load("digits").train_x, load("digits").test_x),
    "normal": (NORMAL[:60], NORMAL[60:]),
    "skewed": (skewed(100), skewed(500)),
    "indicators": (rare_indicators()[:200], rare_indicators()[200:1200]),
}


@pytest.mark.parametrize(("training", "others"), TRAINING_AND_OTHERS.values(), ids=TRAINING_AND_OTHERS)
def test_other_rows_of_the_same_kind_are_predicted_in_silence(training, others):
    fitted_on = range_to_keep(training, "none")
    warn_of_other_scale(others, fitted_on)
    warn_of_other_scale(1.5 * others, fitted_on)
    for place in range(len(others)):
        warn_of_other_scale(others[place : place + 1], fitted_on)


@pytest.mark.parametrize("rows", [1, 3, 200])
@pytest.mark.parametrize(("training", "others"), TRAINING_AND_OTHERS.values(), ids=TRAINING_AND_OTHERS)
def test_rows_of_another_scale_are_warned_of_however_many_they_are(training, others, rows):
    with pytest.warns(ScaleWarning, match="of another scale") as caught:
        warn_of_other_scale(255 * others[:rows], range_to_keep(training, "none"))
    assert len(caught) == 1


def test_a_column_in_other_units_is_named():
    lengths = NORMAL.copy()
    lengths[:, 2] = 170 + 10 * lengths[:, 2]
    with pytest.warns(ScaleWarning, match=r"run from .* to 19.*ran from -.* to .*; 'height' is farthest off"):
        warn_of_other_scale(lengths, range_to_keep(NORMAL, "none"), ["a", "b", "height", "d", "e", "f"])
    odd = NORMAL.copy()
    odd[:90, 2] = 1e6  # some rows are not all
    warn_of_other_scale(odd, range_to_keep(NORMAL, "none"))


@pytest.mark.parametrize("shift", [-1000, 1000])
def test_rows_of_another_scale_may_lie_on_either_side(shift):
    with pytest.warns(ScaleWarning, match="of another scale"):
        warn_of_other_scale(NORMAL + shift, range_to_keep(NORMAL, "none"))


def test_a_row_alone_may_be_odder_than_many():
    far = np.full((20, 3), 6.0)  # by five times the width of the range
    warn_of_other_scale(far[:1], (0.0, 1.0))
    with pytest.warns(ScaleWarning, match="of another scale"):
        warn_of_other_scale(far, (0.0, 1.0))


def test_whitened_rows_have_no_range_to_keep():
    assert range_to_keep(NORMAL, "whiten") is None


def test_as_many_rows_as_a_batch_has_are_not_few():
    warn_of_few_rows(100, 100)
    with pytest.warns(UserWarning, match="99 rows are fewer than a batch of 100"):
        warn_of_few_rows(99, 100)
