"""`tikas.io.Predictor`: the columns it returns, what it does in other processes, and Ray and Dask with two workers."""

import pickle
import shutil
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal
from sklearn.datasets import load_diabetes, load_iris
from sklearn.preprocessing import scale

import tikas.io
from tikas import LadderClassifier, LadderRegressor
from tikas.io import Predictor
from tikas.training.checkpoint import ModelFileError

QUICK = {"network": (8,), "epochs": 2, "batch_size": 50, "random_state": 0}
SPECIES = load_iris().target_names[load_iris().target]
COLUMNS = ["sepal length", "sepal width", "petal length", "petal width"]
FRAME = pd.DataFrame(scale(load_iris().data), columns=COLUMNS)


@pytest.fixture(scope="module")
def model():
    return LadderClassifier(**QUICK).fit(FRAME, SPECIES)


@pytest.fixture(scope="module")
def path(model, tmp_path_factory):
    return model.save(tmp_path_factory.mktemp("model") / "iris.safetensors")


def keyed(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the columns in another order, after a key."""
    return pd.DataFrame({"id": np.arange(100, 100 + len(frame)), **frame[COLUMNS[::-1]]}, index=frame.index)


@pytest.mark.parametrize(
    "as_batch", [lambda frame: frame, lambda frame: {name: frame[name].to_numpy() for name in frame}]
)
def test_columns_are_those_of_the_estimator_found_by_name(as_batch, model, path):
    predicted = Predictor(path, probabilities=True, keep=["id"])(as_batch(keyed(FRAME)))
    probabilities = model.predict_proba(FRAME)
    assert list(predicted) == ["id", "prediction", "probability", *(f"probability:{name}" for name in model.classes_)]
    assert_array_equal(predicted["id"], np.arange(100, 250))
    assert_array_equal(predicted["prediction"], model.predict(FRAME))
    assert_array_equal(predicted["probability"], probabilities.max(1))
    assert_array_equal(predicted["probability:versicolor"], probabilities[:, 1])


def test_a_frame_gives_a_frame_with_its_index_and_a_dict_gives_a_dict(path):
    some = FRAME.iloc[[7, 3, 90]]
    assert Predictor(path)(some).index.tolist() == [7, 3, 90]
    assert type(Predictor(path)({name: some[name].to_numpy() for name in some})) is dict


def test_an_iterator_of_batches_gives_an_iterator(model, path):
    parts = [FRAME[:60], FRAME[60:]]
    assert_array_equal(pd.concat(Predictor(path)(iter(parts)))["prediction"], model.predict(FRAME))


@pytest.mark.parametrize("fit", [lambda: LadderClassifier(**QUICK).fit(FRAME, SPECIES), lambda: regressor()])
def test_an_empty_batch_has_the_columns_and_types_of_others(fit, tmp_path):
    model = fit()
    predictor = Predictor(model.save(tmp_path / "model.safetensors"), probabilities=True)
    frame = pd.DataFrame(0.5, columns=model.feature_names_in_, index=range(3))
    assert predictor(frame[:0]).dtypes.to_dict() == predictor(frame).dtypes.to_dict()


def regressor():
    columns = load_diabetes().feature_names
    return LadderRegressor(**QUICK).fit(
        pd.DataFrame(scale(load_diabetes().data), columns=columns), load_diabetes().target
    )


def test_a_regression_has_the_column_prediction_alone(tmp_path):
    model = regressor()
    rows = pd.DataFrame(scale(load_diabetes().data), columns=model.feature_names_in_)
    predicted = Predictor(model.save(tmp_path / "model.safetensors"), probabilities=True)(rows)
    assert list(predicted) == ["prediction"]
    assert_array_equal(predicted["prediction"], model.predict(rows))


def test_without_names_all_columns_but_the_kept_ones_are_features_and_a_cell_may_hold_a_row(tmp_path):
    rows = FRAME.to_numpy(np.float32)
    model = LadderClassifier(**QUICK).fit(rows, SPECIES)
    predictor = Predictor(model.save(tmp_path / "model.safetensors"), keep=["id"])
    key = np.arange(len(rows))
    for features in (
        dict(zip("abcd", rows.T, strict=True)),
        {"row": rows},
        {"row": np.array([*rows, None], object)[:-1]},
    ):
        assert_array_equal(predictor({"id": key, **features})["prediction"], model.predict(rows))
    column = LadderClassifier(**QUICK).fit(rows[:, :1], SPECIES)
    predictor = Predictor(column.save(tmp_path / "column.safetensors"))
    assert_array_equal(predictor({"a": rows[:, 0]})["prediction"], column.predict(rows[:, :1]))


def test_images_are_predicted_from_a_column_of_images(tmp_path):
    images = np.random.default_rng(0).random((20, 3, 9, 7), np.float32)
    model = LadderClassifier(("conv 4 3 same", 5), epochs=1, batch_size=10).fit(images, np.arange(20) % 2)
    predictor = Predictor(model.save(tmp_path / "model.safetensors"))
    assert_array_equal(predictor({"image": images})["prediction"], model.predict(images))
    assert predictor({"image": images[:0]})["probability"].shape == (0,)


def test_a_column_that_is_missing_raises_key_error_naming_it(path):
    with pytest.raises(KeyError, match="petal width"):
        Predictor(path)(FRAME[COLUMNS[:3]])


def test_a_missing_file_raises_at_once_and_a_damaged_one_with_the_first_batch(tmp_path):
    file = tmp_path / "model.safetensors"
    with pytest.raises(FileNotFoundError, match=r"model\.safetensors"):
        Predictor(file)
    file.write_bytes(b"damaged")
    with pytest.raises(ModelFileError):
        Predictor(file)(FRAME)


def test_the_file_is_read_once_in_a_process_and_again_when_it_has_changed(path, tmp_path, monkeypatch):
    file, read = tmp_path / "model.safetensors", []
    shutil.copy(path, file)
    monkeypatch.setattr(tikas.io, "load", lambda path, load=tikas.io.load: read.append(path) or load(path))
    for _ in range(3):
        pickle.loads(pickle.dumps(Predictor(file)))(FRAME)
    assert len(read) == 1
    LadderClassifier(**QUICK).fit(FRAME, SPECIES == "setosa").save(file)
    assert Predictor(file)(FRAME)["prediction"].dtype == bool
    assert len(read) == 2


def test_another_process_predicts_the_same_and_gets_the_path_alone(path):
    predictor = Predictor(path)
    predictor(FRAME)
    assert len(pickle.dumps(predictor)) < 1000
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        pd.testing.assert_frame_equal(pool.submit(predictor, FRAME).result(), predictor(FRAME))


# Clusters: pip install 'tikas[cluster]'


@pytest.fixture
def parquet(tmp_path):
    """Four files of rows with a key."""
    for part in range(4):
        keyed(FRAME).iloc[part::4].to_parquet(tmp_path / f"part-{part}.parquet", index=False)
    return str(tmp_path)


def assert_predicted(predicted: pd.DataFrame, model: LadderClassifier) -> None:
    predicted = predicted.sort_values("id")
    assert_array_equal(predicted["id"], np.arange(100, 250))
    assert_array_equal(predicted["prediction"], model.predict(FRAME))
    assert_array_equal(predicted["probability"], model.predict_proba(FRAME).max(1))


@pytest.mark.cluster
@pytest.mark.filterwarnings("ignore")
def test_ray_predicts_with_two_workers(model, path, parquet):
    ray = pytest.importorskip("ray", reason="needs the extra cluster")
    data = pytest.importorskip("ray.data")
    ray.init(num_cpus=2, include_dashboard=False)
    try:
        predicted = data.read_parquet(parquet).map_batches(Predictor(path, keep=["id"]), batch_size=20).to_pandas()
    finally:
        ray.shutdown()
    assert_predicted(predicted, model)


@pytest.mark.cluster
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("scheduler", ["processes", "threads"])
def test_dask_predicts_with_two_workers(scheduler, model, path, parquet):
    dask = pytest.importorskip("dask.dataframe", reason="needs the extra cluster")
    rows = dask.read_parquet(parquet, split_row_groups=True)
    predicted = rows.map_partitions(Predictor(path, keep=["id"])).compute(scheduler=scheduler, num_workers=2)
    assert_predicted(predicted, model)
