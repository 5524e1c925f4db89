"""Estimators on rows that stay where they are: the same learning, little memory, clear errors."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image
from sklearn.datasets import load_digits

from tikas import Conv, LadderClassifier, LadderRegressor, MaxPool
from tikas.data import batches as batches_module
from tikas.data.images import ImageRows, find_images
from tikas.data.sources import ArrayRows, RowSource
from tikas.data.splits import split
from tikas.estimators import base
from tikas.training import trainer as trainer_module
from tikas.training.trainer import Trainer

DIGITS, LABELS = load_digits(return_X_y=True)
DIGITS = (DIGITS / 16).astype(np.float32)
FEW = np.where(np.arange(len(LABELS)) < 200, LABELS, -1)
QUICK: dict[str, Any] = {"network": (32,), "epochs": 3, "random_state": 0}


@pytest.fixture(autouse=True)
def windows_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches_module, "WINDOW_BYTES", 4 * 100 * 64 * 4)  # four updates


def mapped(path: Path, rows: np.ndarray) -> np.memmap:
    np.save(path / "rows.npy", rows)
    return np.load(path / "rows.npy", mmap_mode="r")


def in_blocks(rows: np.ndarray, size: int = 20) -> ArrayRows:
    source = ArrayRows(rows)
    source.block_edges = np.append(np.arange(0, len(rows), size), len(rows))
    return source


@pytest.mark.parametrize("preprocess", ["none", "standardize"])
def test_large_arrays_on_disk_are_streamed_and_learned_as_well(tmp_path, monkeypatch, preprocess: str) -> None:
    monkeypatch.setattr(base, "STREAM_FROM", 2**18)
    rows = mapped(tmp_path, DIGITS)
    settings = {**QUICK, "epochs": 8, "preprocess": preprocess}
    model, expected = (LadderClassifier(**settings).fit(X, FEW) for X in (rows, DIGITS))
    assert model.recipe_ == expected.recipe_
    assert_allclose(model.input_range_, expected.input_range_)
    errors = [(each.transduction_[200:] != LABELS[200:]).mean() for each in (model, expected)]
    assert max(errors) < 0.4  # of ten classes, by 200 labels, after few epochs
    assert abs(errors[0] - errors[1]) < 0.1
    assert_array_equal(model.predict_proba(rows), model.predict_proba(DIGITS))


def test_small_arrays_on_disk_are_learned_as_arrays_in_memory(tmp_path: Path) -> None:
    model, expected = (LadderClassifier(**QUICK).fit(X, FEW) for X in (mapped(tmp_path, DIGITS), DIGITS))
    assert_array_equal(model.predict_proba(DIGITS), expected.predict_proba(DIGITS))


@pytest.mark.parametrize("writeable", [True, False])
def test_an_array_of_float32_is_not_copied(monkeypatch: pytest.MonkeyPatch, writeable: bool) -> None:
    rows, trained = DIGITS.copy(), []
    rows.setflags(write=writeable)
    original = Trainer.fit
    monkeypatch.setattr(
        Trainer, "fit", lambda *given, **more: trained.append(given[1].rows) or original(*given, **more)
    )
    LadderClassifier(**QUICK).fit(rows, FEW)
    assert np.shares_memory(trained[0], rows)


def test_validation_rows_weights_and_values_are_those_of_the_rows() -> None:
    """With blocks of single rows the order is that of rows in memory, so everything is the same."""
    source = ArrayRows(DIGITS)
    source.block_edges = None
    splits = [split(LABELS, labels=50, validation=200, seed=seed) for seed in range(2)]
    weights = np.where(np.arange(len(LABELS)) % 7, 1.5, 0)
    for classifier, arguments, options in (
        (LadderClassifier(**QUICK, n_members=2), (LABELS,), {"splits": splits}),
        (LadderClassifier(**QUICK), (FEW, weights), {}),
        (LadderClassifier(**QUICK), (LABELS,), {}),
        (LadderClassifier(**QUICK, costs=0.0), (FEW,), {}),
        (LadderRegressor(**QUICK), (np.where(FEW < 0, np.nan, 0.5 * LABELS),), {}),
    ):
        expected = classifier.fit(DIGITS, *arguments, **options)
        lines, transduction = expected.history_, expected.transduction_
        classifier.fit(source, *arguments, **options)
        assert [{**line, "seconds": 0} for line in classifier.history_] == [{**line, "seconds": 0} for line in lines]
        assert_array_equal(classifier.transduction_, transduction)


def test_images_in_files_are_learned_as_images_in_memory(tmp_path: Path) -> None:
    images = np.rint(255 * DIGITS[:120]).astype(np.uint8).reshape(-1, 8, 8)
    for number, image in enumerate(images):
        Image.fromarray(image).save(tmp_path / f"{number:03}.png")
    rows = ImageRows(find_images(tmp_path))
    in_memory = rows[:]
    assert_array_equal(in_memory[:, 0], np.divide(images, 255, dtype=np.float32))
    settings = {**QUICK, "network": [Conv(4, 3), MaxPool(2)], "preprocess": "whiten", "batch_size": 30}
    predictions = [
        LadderClassifier(**settings).fit(X, LABELS[:120]).predict_proba(in_memory)
        for X in (in_memory, rows, ImageRows(rows.files, threads=1))
    ]
    assert_array_equal(predictions[1], predictions[0])  # the order does not depend on the threads
    assert_array_equal(predictions[2], predictions[0])


def test_columns_keep_their_names(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    from tikas.data.parquet import open_parquet

    frame = pd.DataFrame(DIGITS[:300], columns=[f"pixel {number}" for number in range(64)])
    frame.assign(digit=pd.array(FEW[:300], "Int64").astype(object)).convert_dtypes().to_parquet(tmp_path / "a.parquet")
    rows, y = open_parquet(tmp_path, "digit")
    model = LadderClassifier(**QUICK).fit(rows, y)
    assert model.feature_names_in_.tolist() == frame.columns.tolist()
    assert_array_equal(model.predict(rows), model.predict(frame))
    with pytest.raises(ValueError, match="feature names"):
        model.predict(open_parquet(tmp_path, "digit", columns=frame.columns[::-1].tolist())[0])


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_values_that_are_not_finite_are_named(value: float) -> None:
    rows = DIGITS.astype(float)
    rows[1234, 5] = value
    with pytest.raises(ValueError, match=r"NaN, infinity or a value too large.*row 1234, position \(5,\)"):
        LadderClassifier(**QUICK).fit(ArrayRows(rows), FEW)
    model = LadderClassifier(**QUICK).fit(DIGITS, FEW)
    with pytest.raises(ValueError, match=r"NaN|infinity"):
        model.predict(ArrayRows(rows))


def test_statistics_of_many_rows_come_from_a_sample_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = LadderClassifier(**QUICK).fit(in_blocks(DIGITS), FEW)
    assert "calibration_rows" not in exact.history_[-1]
    monkeypatch.setattr(trainer_module, "MAX_CALIBRATION_ROWS", 900)
    sampled = LadderClassifier(**QUICK).fit(in_blocks(DIGITS), FEW)
    assert [line.get("calibration_rows") for line in sampled.history_] == [None, None, 900]
    one, other = (each.ladder_.rungs[1] for each in (exact, sampled))
    assert torch.equal(one.weight, other.weight)
    error = ((one.mean - other.mean) / one.deviation).abs().max().item()
    assert 0 < error < 5 / 900**0.5
    monkeypatch.setattr(trainer_module, "MIN_CALIBRATION_ROWS", 300)
    monkeypatch.setattr(trainer_module, "MAX_COPIED_BYTES", 500 * 64 * 4)
    for source, rows in ((in_blocks(DIGITS), 500), (scipy.sparse.csr_array(DIGITS), 900)):
        assert LadderClassifier(**QUICK).fit(source, FEW).history_[-1]["calibration_rows"] == rows


@pytest.mark.parametrize("streamed", [True, False])
def test_rows_too_large_to_copy_are_calibrated_in_chunks(monkeypatch: pytest.MonkeyPatch, streamed: bool) -> None:
    rows: np.ndarray | RowSource = in_blocks(DIGITS) if streamed else DIGITS
    splits = [split(LABELS, labels=50, validation=200)]
    expected = LadderClassifier(**QUICK).fit(rows, LABELS, splits=splits)
    for module in (trainer_module, base):
        monkeypatch.setattr(module, "MAX_COPIED_BYTES", 0)
    monkeypatch.setattr(trainer_module, "CHUNK_VALUES", 64 * 300)
    model = LadderClassifier(**QUICK).fit(rows, LABELS, splits=splits)
    for tensor, same in zip(model.ladder_.state_dict().values(), expected.ladder_.state_dict().values(), strict=True):
        assert_allclose(tensor, same, atol=1e-5)


def test_labeled_rows_that_do_not_fit_into_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_module, "_free_bytes", lambda _: 200 * 64 * 4 - 1)
    with pytest.raises(MemoryError, match="200 labeled and validation rows"):
        LadderClassifier(**QUICK).fit(in_blocks(DIGITS), FEW)
    monkeypatch.setattr(trainer_module, "_free_bytes", lambda _: 200 * 64 * 4)
    LadderClassifier(**QUICK).fit(in_blocks(DIGITS), FEW)


def test_parts_of_a_long_epoch_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(10**6))
    monkeypatch.setattr(trainer_module.time, "perf_counter", lambda: float(next(clock)))
    seen = []
    dataset = trainer_module.Dataset(in_blocks(DIGITS), LABELS, classes=np.arange(10))
    recipe = base.Recipe(network=(8,), batch_size=100, epochs=2)
    Trainer(recipe, device="cpu", callbacks=[seen.append]).fit(dataset, [split(LABELS, labels=50)], [0])
    parts = [progress.epoch + progress.part for progress in seen]
    assert parts == sorted(parts)
    assert sum(progress.part > 0 for progress in seen) == 2 * 16  # every update takes a second, and there are 17
    assert [len(progress.members) for progress in seen if not progress.part] == [0, 1, 1]
