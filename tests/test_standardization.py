"""Columns of any scale come out with mean zero and deviation one, from the door to the file and back."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.datasets import load_wine
from sklearn.preprocessing import StandardScaler

import tikas
from tikas import LadderClassifier, LadderRegressor
from tikas.cli import main
from tikas.data.preprocess import ScaleWarning
from tikas.data.standardization import Standardization
from tikas.training.checkpoint import NotAModelError, read, write

X, Y = load_wine(return_X_y=True)
ROWS = X.astype(np.float32)
SEEN = np.where(np.arange(len(Y)) % 6 == 0, Y, -1)


def test_columns_are_standardised_as_scikit_learn_does():
    found = Standardization.fit(torch.from_numpy(ROWS[:100]))(torch.from_numpy(ROWS))
    assert found.dtype == torch.float32
    assert_allclose(found, StandardScaler().fit(ROWS[:100].astype(float)).transform(ROWS), rtol=1e-5, atol=1e-5)


def test_large_numbers_that_vary_little_keep_their_differences():
    years = torch.arange(2_000_000.0, 2_000_010.0)[:, None]
    found = Standardization.fit(years)(years)
    assert_allclose(found[:, 0], (np.arange(10) - 4.5) / np.arange(10).std(), rtol=1e-6)


def test_a_constant_column_becomes_zero_and_is_not_scaled_in_other_rows():
    fitted = Standardization.fit(torch.tensor([[0.1, 1.0]] * 3 + [[0.1, 5.0]]))
    assert_allclose(fitted(torch.tensor([[0.1, 2.0], [0.4, 2.0]]))[:, 0], [0, 0.3], atol=1e-6)


def test_a_column_of_hardly_more_than_rounding_is_not_left_at_its_scale():
    seconds = torch.linspace(1.7e9, 1.7e9 + 900, 200)[:, None]  # single precision has steps of 128
    found = Standardization.fit(seconds)(seconds)
    assert found.abs().max() < 3
    rounding = torch.tensor([[0.1], [0.1 + 1e-8], [0.1 - 1e-8]])
    assert Standardization.fit(rounding)(rounding).abs().max() < 1e-6


def test_images_are_standardised_channel_by_channel():
    images = torch.rand(50, 2, 4, 4) * torch.tensor([1.0, 100.0])[:, None, None]
    found = Standardization.fit(images)(images)
    assert_allclose(found.mean((0, 2, 3)), [0, 0], atol=1e-5)
    assert_allclose(found.std((0, 2, 3), correction=0), [1, 1], rtol=1e-5)


def test_rows_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"Got rows of shape \(5, 2\); expected \(n, 13\)"):
        Standardization.fit(torch.from_numpy(ROWS))(torch.zeros(5, 2))
    with pytest.raises(ValueError, match="two rows or more"):
        Standardization.fit(torch.zeros(1, 3))


@pytest.mark.parametrize("estimator", [LadderClassifier, LadderRegressor])
def test_a_column_in_other_units_is_warned_of_before_and_after_saving(estimator, tmp_path):
    frame, others = (load_wine(as_frame=True).data for _ in "ab")
    others["alcohol"] *= 10
    model = estimator((8,), preprocess="standardize", epochs=2, batch_size=50).fit(frame, Y)
    for each in (model, tikas.load(model.save(tmp_path / "model.safetensors"))):
        each.predict(frame)
        with pytest.warns(
            ScaleWarning, match="standardised as the training rows were.*'alcohol' is farthest off"
        ) as caught:
            each.predict(others)
        assert len(caught) == 1
        with pytest.warns(ScaleWarning):
            each.predict(others[:1])
        with pytest.warns(ScaleWarning):
            each.transform(others)


def test_an_estimator_that_standardises_is_a_pipeline_with_a_scaler(tmp_path):
    settings = {"network": (16,), "epochs": 20, "random_state": 0, "batch_size": 50}
    model = LadderClassifier(preprocess="standardize", **settings).fit(X, SEEN)
    scaled = StandardScaler().fit_transform(X)
    by_hand = LadderClassifier(**settings).fit(scaled, SEEN)
    assert_allclose(model.predict_proba(X), by_hand.predict_proba(scaled), atol=1e-4)
    loaded = tikas.load(model.save(tmp_path / "model.safetensors"))
    assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))


def test_a_regressor_standardises_too():
    model = LadderRegressor((16,), preprocess="standardize", epochs=3, random_state=0).fit(X, X[:, 0])
    assert np.isfinite(model.predict(X)).all()


@pytest.mark.parametrize(
    ("lie", "complaint"),
    [
        ({"standardization.deviation": torch.zeros(13, dtype=torch.float64)}, "are positive"),
        ({"standardization.mean": torch.zeros(13)}, "in double precision"),
        ({"standardization.mean": torch.zeros(12, dtype=torch.float64)}, "has no deviation of"),
        ({"whitening.mean": torch.zeros(13)}, "it holds a whitening, and its recipe asks for none"),
    ],
)
def test_what_is_no_standardisation_is_refused(lie, complaint, tmp_path):
    model = LadderClassifier((4,), preprocess="standardize", epochs=1).fit(X, SEEN)
    tensors, header = read(model.save(tmp_path / "model.safetensors"))
    with pytest.raises(NotAModelError, match=complaint):
        tikas.load(write(tmp_path / "lie.safetensors", {**tensors, **lie}, header))


def test_a_table_of_any_scale_goes_from_training_to_prediction(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = [f"c{i}" for i in range(13)]
    for file, rows in (("train.csv", slice(0, None, 2)), ("test.csv", slice(1, None, 2))):
        labels = [f"kind {y}" for y in Y[rows]]
        lines = [",".join([*map(str, x), label]) for x, label in zip(X[rows], labels, strict=True)]
        (tmp_path / file).write_text("\n".join([",".join([*names, "kind"]), *lines]) + "\n")
    flags = [
        "--labels",
        "24",
        "--batch-size",
        "40",
        "--epochs",
        "40",
        "--network",
        "32",
        "16",
        "--quiet",
        "--output",
        "wine.safetensors",
    ]
    assert main(["train", "--data", "train.csv", "--target", "kind", *flags]) == 0
    assert main(["predict", "wine.safetensors", "test.csv", "--target", "kind", "--output", "p.csv"]) == 0
    error = float(capsys.readouterr().err.split("labelled rows: ")[1].split()[0])
    assert error < 10
