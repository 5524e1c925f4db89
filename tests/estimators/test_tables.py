"""Estimators on tables and unscaled numbers: `preprocess="auto"`, mixed frames, model files and `Predictor`."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.datasets import load_digits, load_iris
from sklearn.model_selection import GridSearchCV
from sklearn.preprocessing import scale

import tikas
from tikas import LadderClassifier, LadderRegressor
from tikas.data.transforms import choose_scaling
from tikas.io import Predictor
from tikas.training.checkpoint import ModelFileError, read_tensors, write_tensors

QUICK: dict[str, Any] = {"network": (16,), "epochs": 20, "batch_size": 50, "random_state": 0}
RNG = np.random.default_rng(0)
N = 200
SICK = RNG.random(N) < 0.5
TABLE = pd.DataFrame(
    {
        "size": np.where(RNG.random(N) < 0.1, np.nan, 170 + 8 * RNG.normal(size=N) + 12 * SICK),
        "city": np.where(RNG.random(N) < 0.1, None, np.where(RNG.random(N) < 0.3, "Oulu", "Turku")).astype(object),
        "sport": np.where(SICK ^ (RNG.random(N) < 0.1), "none", "tennis").astype(object),
        "smoker": SICK ^ (RNG.random(N) < 0.2),
        "born": pd.Timestamp("1960-01-01") + pd.to_timedelta(RNG.integers(0, 9000, N), "D"),
    }
)
TABLE["sport"] = TABLE["sport"].replace("none", "no sport")
LABELS = np.where(SICK, "sick", "well").astype(object)
PARTIAL = np.where(np.arange(N) < 60, LABELS, None)
IRIS, SPECIES = scale(load_iris().data), load_iris().target


@pytest.fixture(scope="module")
def model() -> LadderClassifier:
    return LadderClassifier(**QUICK).fit(TABLE, PARTIAL)


@pytest.fixture(scope="module")
def path(model: LadderClassifier, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model.save(tmp_path_factory.mktemp("model") / "model.safetensors")


class TestFrames:
    def test_a_mixed_frame_with_gaps_is_learned_with_the_defaults(self, model: LadderClassifier) -> None:
        assert model.preprocess_ == "columns"
        assert [column.kind for column in model.encoder_.columns] == [
            "number",
            "category",
            "category",
            "boolean",
            "date",
        ]
        assert model.feature_names_in_.tolist() == TABLE.columns.tolist()
        assert (model.n_features_in_, model.input_shape_) == (5, (len(model.encoder_.names),))
        assert model.score(TABLE[60:], LABELS[60:]) > 0.8

    def test_unseen_categories_and_gaps_are_predicted(self, model: LadderClassifier) -> None:
        new = pd.DataFrame(
            {
                "size": [None, 180],
                "city": ["Nowhere", None],
                "sport": [None, "chess"],
                "smoker": [None, True],
                "born": None,
            }
        )
        assert np.isfinite(model.predict_proba(new)).all()

    def test_frames_of_polars_and_arrays_of_objects_give_the_same(self, model: LadderClassifier) -> None:
        polars = pytest.importorskip("polars")
        cells = TABLE.astype(object).where(TABLE.notna(), None)
        frame = polars.DataFrame({name: cells[name].tolist() for name in cells})
        assert_allclose(model.predict_proba(frame), model.predict_proba(TABLE), atol=1e-6)
        fitted = LadderClassifier(**QUICK).fit(frame, polars.Series(PARTIAL.tolist()))
        assert fitted.feature_names_in_.tolist() == TABLE.columns.tolist()
        assert_allclose(fitted.predict_proba(frame), model.predict_proba(TABLE), atol=1e-4)
        array = LadderClassifier(**QUICK).fit(TABLE.to_numpy(dtype=object), PARTIAL)
        assert_allclose(array.predict_proba(TABLE.to_numpy(dtype=object)), model.predict_proba(TABLE), atol=1e-4)

    def test_other_names_or_orders_of_columns_are_an_error(self, model: LadderClassifier) -> None:
        with pytest.raises(ValueError, match="feature names"):
            model.predict(TABLE[TABLE.columns[::-1]])
        with pytest.raises(ValueError, match="feature names"):
            model.predict(TABLE.rename(columns={"size": "height"}))

    def test_columns_that_are_left_out_are_named_in_a_warning_at_the_line_that_calls_fit(self) -> None:
        table = TABLE.assign(code=[f"c{i}" for i in range(N)])
        with pytest.warns(UserWarning, match=r"code \(identifies the rows\)") as caught:
            left_out = LadderClassifier(**QUICK).fit(table, PARTIAL)
        assert [warning.filename for warning in caught] == [__file__]
        assert_array_equal(left_out.predict(table), LadderClassifier(**QUICK).fit(TABLE, PARTIAL).predict(TABLE))
        LadderClassifier(**QUICK, columns={"code": "ignored"}).fit(table, PARTIAL)  # a warning would be an error here

    def test_kinds_of_columns_can_be_given(self) -> None:
        rounded = TABLE.assign(size=TABLE["size"].round(-1))
        fitted = LadderClassifier(**QUICK, columns={"born": "ignored", "size": "category"}).fit(rounded, PARTIAL)
        kinds = [column.kind for column in fitted.encoder_.columns]
        assert kinds == ["category", "category", "category", "boolean", "ignored"]

    def test_rows_of_weight_zero_do_not_count(self) -> None:
        weights = np.where(np.arange(N) < 120, 1.0, 0.0)
        other = TABLE.copy()
        other.loc[120:, "size"] = 1e6
        fitted = LadderClassifier(**QUICK).fit(other, PARTIAL, weights)
        assert_array_equal(
            fitted.predict(TABLE), LadderClassifier(**QUICK).fit(TABLE[:120], PARTIAL[:120]).predict(TABLE)
        )

    def test_a_warm_start_keeps_the_encoding(self) -> None:
        fitted = LadderClassifier(**QUICK, warm_start=True).fit(TABLE, PARTIAL)
        encoder = fitted.encoder_
        assert fitted.fit(TABLE[:100], PARTIAL[:100]).encoder_ is encoder

    def test_regression_pickle_clone_and_grid_search(self, model: LadderClassifier) -> None:
        values = np.where(np.arange(N) < 60, TABLE["size"].fillna(170), np.nan)
        regressor = LadderRegressor(**QUICK).fit(TABLE.drop(columns="size"), values)
        assert (regressor.preprocess_, regressor.predict(TABLE.drop(columns="size")).shape) == ("columns", (N,))
        assert_array_equal(pickle.loads(pickle.dumps(model)).predict(TABLE), model.predict(TABLE))
        folds = [(np.arange(30, N), np.arange(30)), (np.r_[:30, 60:N], np.arange(30, 60))]
        search = GridSearchCV(clone(model).set_params(epochs=2), {"noise": [0.1, 0.3]}, cv=folds)
        assert search.fit(TABLE, PARTIAL).best_estimator_.preprocess_ == "columns"

    def test_gaps_in_an_array_are_filled(self) -> None:
        rows = IRIS.copy()
        rows[::7, 2] = np.nan
        fitted = LadderClassifier(**QUICK).fit(rows, SPECIES)
        assert fitted.preprocess_ == "columns"
        assert fitted.score(rows, SPECIES) > 0.8
        with pytest.raises(ValueError, match="NaN"):
            LadderClassifier(**QUICK).fit(IRIS, SPECIES).predict(rows)


class TestNumbers:
    @pytest.mark.parametrize(
        ("rows", "chosen"),
        [
            (IRIS, "none"),
            (load_iris().data, "none"),
            (load_digits().data / 16, "none"),
            (load_digits().data, "pixels"),
            (load_digits().images, "pixels"),
            (load_digits().images / 16, "none"),
            (np.rint(load_digits().images * 255 / 16), "pixels"),
            (load_digits().images * 1000 - 3000, "standardize"),
            (IRIS * [1, 1, 1, 1e4], "standardize"),
            (IRIS * 1e-4, "standardize"),
            (load_digits().data[:, 10:14], "standardize"),
            (np.ones((10, 3)), "none"),
        ],
    )
    def test_what_numbers_need(self, rows: np.ndarray, chosen: str) -> None:
        columns = rows if rows.ndim == 2 else rows.reshape(-1, 1)
        assert choose_scaling(columns, images=rows.ndim > 2) == chosen

    def test_rows_that_need_nothing_are_learned_as_without_preprocessing(self) -> None:
        auto = LadderClassifier(**QUICK).fit(IRIS, SPECIES)
        none = LadderClassifier(**QUICK, preprocess="none").fit(IRIS, SPECIES)
        assert (auto.preprocess_, auto.recipe_) == ("none", none.recipe_)
        assert_array_equal(auto.predict_proba(IRIS), none.predict_proba(IRIS))

    def test_pixels_are_learned_as_if_somebody_had_scaled_them(self, tmp_path: Path) -> None:
        images, digits = load_digits().images[:300], load_digits().target[:300]
        scaled = LadderClassifier(**QUICK).fit(images / 16, digits)
        raw = LadderClassifier(**QUICK).fit(images, digits)
        assert (raw.preprocess_, raw.recipe_.costs, raw.recipe_.epochs) == ("pixels", *scaled_settings(scaled))
        assert_allclose(raw.predict_proba(images), scaled.predict_proba(images / 16), atol=1e-4)
        loaded = tikas.load(raw.save(tmp_path / "model"))
        assert loaded.preprocess_ == "pixels"
        assert_array_equal(loaded.predict_proba(images), raw.predict_proba(images))

    def test_columns_far_from_unit_size_are_standardized(self) -> None:
        rows = IRIS * [1, 1, 1, 1e4]
        auto, standardized = (
            LadderClassifier(**QUICK, preprocess=each).fit(rows, SPECIES) for each in ("auto", "standardize")
        )
        assert auto.preprocess_ == "standardize"
        assert_array_equal(auto.predict_proba(rows), standardized.predict_proba(rows))


def scaled_settings(model: LadderClassifier) -> tuple[Any, Any]:
    return model.recipe_.costs, model.recipe_.epochs


class TestFiles:
    def test_a_model_is_loaded_as_it_was_saved(self, model: LadderClassifier, path: Path, tmp_path: Path) -> None:
        loaded = tikas.load(path)
        assert_array_equal(loaded.predict_proba(TABLE), model.predict_proba(TABLE))
        assert loaded.encoder_.columns == model.encoder_.columns
        assert (loaded.preprocess_, loaded.input_shape_, loaded.n_features_in_) == ("columns", model.input_shape_, 5)
        again = clone(loaded).set_params(random_state=0).fit(TABLE, PARTIAL)
        assert_array_equal(again.predict_proba(TABLE), model.predict_proba(TABLE))
        assert_array_equal(tikas.load(loaded.save(tmp_path / "again")).predict(TABLE), model.predict(TABLE))

    def test_a_model_of_columns_without_names_is_loaded(self, tmp_path: Path) -> None:
        rows = TABLE.to_numpy(dtype=object)
        fitted = LadderClassifier(**QUICK).fit(rows, PARTIAL)
        loaded = tikas.load(fitted.save(tmp_path / "model"))
        assert_array_equal(loaded.predict_proba(rows), fitted.predict_proba(rows))
        again = clone(loaded).set_params(random_state=0).fit(rows, PARTIAL)
        assert_array_equal(again.predict_proba(rows), fitted.predict_proba(rows))

    def test_the_header_holds_the_values_and_no_code(self, path: Path) -> None:
        _, header = read_tensors(path)
        columns = {column["name"]: column for column in header["columns"]}
        assert set(columns["city"]["categories"]) == {"Oulu", "Turku", ""}
        assert columns["size"]["medians"] == [pytest.approx(TABLE["size"].median())]
        assert json.loads(json.dumps(header["columns"])) == header["columns"]

    @pytest.mark.parametrize(
        "change",
        [
            lambda header: header.update(columns=None),
            lambda header: header.update(columns=[]),
            lambda header: header["columns"].pop(),
            lambda header: header["columns"][0].update(kind="ignored"),
            lambda header: header["columns"][0].update(medians=["1"]),
            lambda header: header["columns"][1].update(categories=["x"]),
            lambda header: header["columns"][0].update(name="other"),
            lambda header: header["recipe"].update(preprocess="auto"),
            lambda header: header["recipe"].update(preprocess="none"),
            lambda header: header.update(input_shape=[5]),
        ],
    )
    def test_forged_columns_raise_model_file_error(self, change: Any, path: Path, tmp_path: Path) -> None:
        tensors, header = read_tensors(path)
        change(header)
        with pytest.raises(ModelFileError, match="forged"):
            tikas.load(write_tensors(tmp_path / "forged", tensors, header))

    @pytest.mark.parametrize(
        "as_batch", [lambda frame: frame, lambda frame: {name: frame[name].to_numpy() for name in frame}]
    )
    def test_a_predictor_takes_the_columns_as_they_are(
        self, as_batch: Any, model: LadderClassifier, path: Path
    ) -> None:
        batch = as_batch(TABLE.assign(id=np.arange(N))[["id", *TABLE.columns[::-1]]])
        predicted = Predictor(path, keep=["id"], probabilities=True)(batch)
        assert list(predicted) == ["id", "prediction", "probability", "probability:sick", "probability:well"]
        assert_array_equal(predicted["prediction"], model.predict(TABLE))
