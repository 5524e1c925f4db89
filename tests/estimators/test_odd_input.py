"""Odd arrays and settings: each trains to finite weights, or is refused with what is wrong and what to do."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from sklearn.datasets import load_diabetes, load_iris
from sklearn.preprocessing import scale

from tikas import LadderClassifier, LadderRegressor
from tikas.training.trainer import TrainingDivergedError

IRIS, SPECIES = scale(load_iris().data), load_iris().target
WHOLE = np.rint(2 * IRIS)
"""Rows that every type of number holds exactly."""
DIABETES, PROGRESSION = scale(load_diabetes().data[:100]), load_diabetes().target[:100]
QUICK: dict[str, Any] = {"network": (6,), "epochs": 2, "batch_size": 50, "random_state": 0}
ESTIMATORS = {"class": LadderClassifier, "value": LadderRegressor}

pytestmark = pytest.mark.filterwarnings(
    "ignore::tikas.data.transforms.ScaleWarning",
    "ignore::tikas.training.recipe.UnusualSettingWarning",
    "ignore:.*fewer than a batch",
)


def classifier(**changes: Any) -> LadderClassifier:
    return LadderClassifier(**{**QUICK, **changes})


def assert_finite(model: LadderClassifier | LadderRegressor, rows: Any) -> None:
    """Check weights, statistics, costs and predictions."""
    for ladder in model.ladders_:
        assert all(bool(tensor.isfinite().all()) for tensor in ladder.state_dict().values())
    for line in model.history_:
        assert np.isfinite([line["total"], line["supervised"], *line["denoising"]]).all()
    assert np.isfinite(model.predict(rows) if model.task == "regression" else model.predict_proba(rows)).all()


class TestArrays:
    @pytest.mark.parametrize(
        "dtype", ["f2", "f4", "f8", "g", ">f4", ">f8", "i1", "i2", "i4", "i8", ">i2", ">i8", object, str]
    )
    def test_type_of_the_numbers_does_not_matter(self, dtype):
        expected = classifier().fit(WHOLE, SPECIES).predict_proba(WHOLE)
        given_rows = WHOLE.astype(dtype)
        assert_array_equal(classifier().fit(given_rows, SPECIES).predict_proba(given_rows), expected)

    @pytest.mark.parametrize("dtype", ["?", "u1", "u2", "u8", ">u4"])
    def test_booleans_and_unsigned_integers_are_numbers(self, dtype):
        rows = (WHOLE > 0).astype(dtype)
        expected = classifier().fit(rows.astype(float), SPECIES).predict_proba(rows)
        assert_array_equal(classifier().fit(rows, SPECIES).predict_proba(rows), expected)

    @pytest.mark.parametrize(
        "layout", ["Fortran", "read-only", "every second", "backwards", "transposed", "memory-mapped", "masked"]
    )
    def test_layout_in_memory_does_not_matter(self, layout: str, tmp_path: Path):
        rows = IRIS.astype(np.float32)
        if layout == "Fortran":
            rows = np.asfortranarray(rows)
        elif layout == "read-only":
            rows.setflags(write=False)
        elif layout == "every second":
            rows = np.repeat(np.repeat(rows, 2, axis=0), 2, axis=1)[::2, ::2]
        elif layout == "backwards":
            rows = rows[::-1, ::-1].copy()[::-1, ::-1]
        elif layout == "transposed":
            rows = rows.T.copy().T
        elif layout == "memory-mapped":
            rows.tofile(tmp_path / "rows")
            rows = np.memmap(tmp_path / "rows", np.float32, "r", shape=rows.shape)
        else:
            rows = np.ma.array(rows, mask=False)
        before = np.array(rows)
        expected = classifier().fit(IRIS, SPECIES).predict_proba(before)
        assert_array_equal(classifier().fit(rows, SPECIES).predict_proba(rows), expected)
        assert_array_equal(rows, before)

    @pytest.mark.parametrize(
        ("rows", "message"),
        [
            (np.empty((0, 4)), "0 sample"),
            (np.empty((150, 0)), "0 feature"),
            (IRIS[:1], "1 sample.*minimum of 2"),
            (IRIS[:, 0], "Expected 2D array, got 1D"),
            (IRIS * 1j, "Complex"),
            (IRIS * 1e300, "too large for dtype.*float32"),
            (np.where(IRIS > 2, np.nan, IRIS), "NaN"),
            (np.where(IRIS > 2, np.inf, IRIS), "infinity"),
            (np.ones((150, 4)), "4 columns has the same value in all 150 rows"),
            (IRIS * 1e-310, "same value.*float32"),  # zero in float32
            (IRIS + 1e9, "same value.*float32.*subtract the mean"),
        ],
    )
    @pytest.mark.parametrize("preprocess", ["none", "standardize"])
    def test_rows_without_information_raise_value_error(self, rows, message, preprocess):
        with pytest.raises(ValueError, match=message):
            classifier(preprocess=preprocess).fit(rows, SPECIES[: len(rows)])

    @pytest.mark.parametrize("factor", [1e-40, 1e-20, 1e12, 1e30, 1e38])
    def test_rows_of_any_size_are_learned_if_standardized(self, factor):
        rows = np.float32(factor) * IRIS.astype(np.float32)
        with np.errstate(under="ignore"):
            assert_finite(classifier(preprocess="standardize").fit(rows, SPECIES), rows)

    @pytest.mark.parametrize("factor", [1e-40, 1e-20, 1e12])
    def test_rows_of_odd_size_train_to_finite_weights(self, factor):
        rows = np.float32(factor) * IRIS.astype(np.float32)
        assert_finite(classifier().fit(rows, SPECIES), rows)

    @pytest.mark.parametrize("where", [np.s_[:], np.s_[3], np.s_[:, 2]], ids=["all", "a row", "a column"])
    def test_rows_so_large_that_their_costs_overflow_raise_an_error_that_says_so(self, where):
        rows = IRIS.copy()
        rows[where] *= 1e30
        with pytest.raises(TrainingDivergedError, match="unit scale"):
            classifier(preprocess="none").fit(rows, SPECIES)
        assert_finite(classifier(preprocess="standardize").fit(rows, SPECIES), rows)

    @pytest.mark.parametrize("value", [0.0, 1.0, -1e30])
    def test_constant_feature_is_no_obstacle_if_standardized(self, value):
        rows = np.column_stack([IRIS, np.full(150, value)])
        assert_finite(classifier(preprocess="standardize").fit(rows, SPECIES), rows)


class TestTargets:
    def test_two_rows(self):
        assert_finite(classifier().fit(IRIS[[0, 149]], [0, 1]), IRIS)
        assert_finite(LadderRegressor(**QUICK).fit(IRIS[[0, 149]], [0.5, np.nan]), IRIS)

    @pytest.mark.parametrize("calibration", ["all", "labeled"])
    def test_one_labeled_row_of_each_class(self, calibration):
        labels = np.full(150, -1)
        labels[[0, 50, 100]] = [0, 1, 2]
        assert_finite(classifier(calibration=calibration).fit(IRIS, labels), IRIS)

    def test_500_classes(self):
        rows = np.random.default_rng(0).normal(size=(1000, 5))
        model = classifier().fit(rows, np.arange(1000) % 500)
        assert_finite(model, rows)
        assert model.predict_proba(rows).shape == (1000, 500)

    @pytest.mark.parametrize("class_weight", [None, "balanced"])
    def test_one_row_of_a_class_beside_10000_of_the_other(self, class_weight):
        rows = np.random.default_rng(0).normal(size=(10_001, 3)).astype(np.float32)
        model = classifier(class_weight=class_weight, batch_size=500).fit(rows, np.arange(10_001) == 7)
        assert_finite(model, rows)
        assert model.classes_.tolist() == [False, True]

    @pytest.mark.parametrize("size", [1e-100, 1e-30, 1e30, 1e150])
    def test_values_of_any_size_are_learned_in_their_unit(self, size):
        model = LadderRegressor(**QUICK).fit(DIABETES, PROGRESSION)
        other = LadderRegressor(**QUICK).fit(DIABETES, size * PROGRESSION)
        np.testing.assert_allclose(other.predict(DIABETES) / size, model.predict(DIABETES), rtol=1e-4)

    @pytest.mark.parametrize("size", [1e-300, 1e-200, 1e200, 1e305])
    def test_values_without_a_finite_deviation_raise_value_error(self, size):
        with pytest.raises(ValueError, match=r"e[+-].*standard deviation.*unit"):
            LadderRegressor(**QUICK).fit(DIABETES, size * PROGRESSION)


class TestSettings:
    @pytest.mark.parametrize("task", ["class", "value"])
    @pytest.mark.parametrize("name", ["noise", "costs"])
    @pytest.mark.parametrize("value", [0.0, 1e-30, 1e6, (1e6, 1e6, 1e6), (0.0, 1e6, 0.0), (1e6, 0.0, 0.0)])
    def test_noise_and_costs_of_any_size_train_to_finite_weights(self, name, value, task):
        model = ESTIMATORS[task](**QUICK, **{name: value}).fit(IRIS, SPECIES)
        assert_finite(model, IRIS)

    @pytest.mark.parametrize("setting", [{"learning_rate": 1e30}, {"costs": 1e300}])
    def test_settings_that_overflow_raise_an_error_that_names_them(self, setting):
        with pytest.raises(TrainingDivergedError, match=r"1e\+30"):
            classifier(**setting).fit(IRIS, SPECIES)


WIDTHS = st.lists(st.integers(1, 6), max_size=3)
MAPS = st.lists(st.sampled_from(["conv 2 2 full", "conv 3 3 same tanh", "max 2", "mean 2", "global", 4]), max_size=3)
LEVELS = st.floats(0, 2) | st.lists(st.floats(0, 2), min_size=1, max_size=2)
COSTS = (
    st.none() | st.sampled_from([0.0, 0.1, 1e3, 1e6]) | st.lists(st.floats(0, 1e6, width=32), min_size=2, max_size=2)
)


@st.composite
def fits(draw: st.DrawFn) -> tuple[LadderClassifier | LadderRegressor, Any, Any]:
    """Draw an estimator with a small network, and a few rows with targets."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n = draw(st.integers(4, 14))
    maps = draw(st.booleans())
    rows = rng.normal(size=(n, 1, 6, 5) if maps else (n, draw(st.integers(1, 4))))
    columns = rows.reshape(n, -1)
    kind = draw(st.sampled_from(["plain", "constant", "equal rows", "large", "small", "binary"]))
    if kind == "constant":
        columns[:, 1:] = 3.0
    elif kind == "equal rows":
        columns[1:-1] = columns[0]
    elif kind == "large":
        columns *= 1e4
    elif kind == "small":
        columns *= 1e-6
    elif kind == "binary":
        columns[:] = columns > 0
        columns[:2] = [[0.0], [1.0]]
    network = draw(MAPS if maps else WIDTHS)
    if "global" in network:  # what follows has no maps
        network = [*network[: network.index("global") + 1], "top"]
    dense = [position for position, rung in enumerate(network) if isinstance(rung, int)]
    if maps and dense:
        network = network[: dense[0] + 1]
    task = draw(st.sampled_from(["class", "value"]))
    y = rng.integers(0, 3, n) if task == "class" else rng.normal(size=n)
    y[:2] = [0, 1]
    y[rng.random(n) < draw(st.sampled_from([0.0, 0.5]))] = -1 if task == "class" else np.nan
    y[:2] = [0, 1]
    estimator = ESTIMATORS[task](
        network,
        noise=draw(LEVELS),
        costs=draw(COSTS),
        denoiser=draw(st.sampled_from(["gaussian", "mlp", "no-product", "linear", "additive"])),
        activation=draw(st.sampled_from(["relu", "leaky_relu", "tanh", "gelu", "linear"])),
        preprocess=draw(st.sampled_from(["auto", "none", "standardize", "pixels"])),
        epochs=2,
        annealed=draw(st.floats(0, 1)),
        learning_rate=draw(st.floats(1e-6, 1)),
        batch_size=draw(st.integers(2, 20)),
        labeled_batch_size=draw(st.integers(2, 20)),
        calibration=draw(st.sampled_from(["all", "labeled"])),
        n_members=draw(st.sampled_from([1, 1, 2])),
        random_state=draw(st.integers(0, 1000)),
    )
    return estimator, rows, y


@given(fits())
@settings(max_examples=500)
def test_random_small_recipes_train_to_finite_weights(fit: tuple[Any, Any, Any]) -> None:
    estimator, rows, y = fit
    assert_finite(estimator.fit(rows, y), rows)
