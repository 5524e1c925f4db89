"""Folders of Parquet files: rows in any order, targets of every type, and what is said about files that do not fit."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal

pytest.importorskip("pyarrow")

from tikas.data import parquet
from tikas.data.parquet import find_parquet, open_parquet, read_parquet_folder

FRAME = pd.DataFrame(
    {
        "size": np.random.default_rng(0).normal(size=100),
        "count": pd.array(np.arange(100) % 7, "Int16"),
        "kept": np.arange(100) % 3 == 0,
        "kind": [["cat", None, "dog", "", "-1"][row % 5] for row in range(100)],
        "class": pd.array([[1, None, 0, -1][row % 4] for row in range(100)], "Int64"),
        "value": [np.nan if row % 4 else row / 8 for row in range(100)],
    }
)
FEATURES = ["size", "count", "kept"]
TARGETS = ["kind", "class", "value"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files: of 70 rows in groups of 20, and of 30 rows in one."""
    FRAME[:70].to_parquet(tmp_path / "a.parquet", row_group_size=20, index=False)
    FRAME[70:].to_parquet(tmp_path / "b.parquet", index=False)
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / ".c.parquet").touch()
    return tmp_path


def test_rows_of_all_files_are_read_in_any_order(folder: Path) -> None:
    assert [file.name for file in find_parquet(folder)] == ["a.parquet", "b.parquet"]
    rows, y = open_parquet(folder, ignore=TARGETS)
    assert y is None
    assert (rows.shape, rows.feature_names) == ((100, 3), tuple(FEATURES))
    assert rows.block_edges.tolist() == [0, 20, 40, 60, 70, 100]
    expected = FRAME[FEATURES].astype(np.float32).to_numpy()
    assert_array_equal(rows[:], expected)
    order = np.random.default_rng(1).permutation(100)
    assert_array_equal(rows[order], expected[order])
    assert open_parquet(folder / "b.parquet", ignore=TARGETS)[0].shape == (30, 3)


def test_a_row_group_is_read_once_for_all_its_rows(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, _ = open_parquet(folder, ignore=TARGETS)
    read, original = [], parquet.pq.ParquetFile.read_row_group
    monkeypatch.setattr(
        parquet.pq.ParquetFile, "read_row_group", lambda *a, **b: read.append(a[1]) or original(*a, **b)
    )
    for start in range(0, 100, 10):
        rows[start : start + 10]
    assert read == [0, 1, 2, 3, 0]


@pytest.mark.parametrize(
    ("target", "task", "expected"),
    [
        ("kind", "classification", ["cat", None, "dog", None, None]),
        ("class", "classification", [1, -1, 0, -1, 1]),
        ("kept", "classification", [True, False, False, True, False]),
        ("value", "regression", [0, np.nan, np.nan, np.nan, 0.5]),
        ("class", "regression", [1, np.nan, 0, -1, 1]),
    ],
)
def test_null_marks_unlabeled_rows(folder: Path, target: str, task: str, expected: list) -> None:
    others = [name for name in (*TARGETS, "count") if name != target]
    _, y = open_parquet(folder, target, others, task=task)
    assert len(y) == 100
    assert_array_equal(y[:5], np.array(expected, dtype=y.dtype))


def test_a_data_set_has_classes_and_rows_that_are_not_in_memory(folder: Path) -> None:
    data = read_parquet_folder(folder, "kind", ["class", "value"])
    assert (data.classes.tolist(), data.feature_names) == (["cat", "dog"], tuple(FEATURES))
    assert data.targets[:5].tolist() == [0, -1, 1, -1, -1]
    assert isinstance(data.rows, parquet.ParquetRows)


def write(folder: Path, **columns: object) -> Path:
    pd.DataFrame(columns).to_parquet(folder / "z.parquet", index=False)
    return folder


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ({"x": [1.0], "name": ["bob"], "y": [2.0]}, ["z.parquet", "'name'", "--ignore"]),
        ({"x": [1.0]}, ["z.parquet", "'y'", "x"]),
        ({"x": [1.0], "y": [np.datetime64("2020-01-01")], "z": [1]}, ["y", "timestamp"]),
        ({"y": [1.0]}, ["no feature column", "y"]),
    ],
)
def test_files_that_do_not_fit_raise_an_error_that_names_them(tmp_path: Path, columns: dict, named: list[str]) -> None:
    with pytest.raises(ValueError, match="column") as error:
        read_parquet_folder(write(tmp_path, **columns), "y", task="regression")
    assert all(name in str(error.value) for name in named)


def test_files_of_different_columns_and_damaged_ones_raise(folder: Path) -> None:
    write(folder, size=[1.0])
    with pytest.raises(ValueError, match=r"z\.parquet has 0 columns 'count'"):
        open_parquet(folder, ignore=TARGETS)
    (folder / "z.parquet").write_bytes((folder / "a.parquet").read_bytes()[:-9])
    with pytest.raises(ValueError, match=r"z\.parquet cannot be read"):
        open_parquet(folder, ignore=TARGETS)
    for path in (folder / "none", folder.parent / "empty"):
        (folder.parent / "empty").mkdir(exist_ok=True)
        with pytest.raises(FileNotFoundError, match=path.name):
            open_parquet(path)


def test_row_numbers_and_large_row_groups_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, id=np.arange(7, 57), x=np.arange(50) / 3)
    with pytest.warns(UserWarning, match="'id' looks like row numbers, from 7 to 56"):
        open_parquet(tmp_path)
    monkeypatch.setattr(parquet, "MAX_GROUP_BYTES", 64)
    with pytest.warns(UserWarning, match="row groups of 50 rows.*about 2 rows"):
        open_parquet(tmp_path, ignore=["id"])
