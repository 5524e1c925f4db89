"""Sources: rows are the same wherever they are read from, and little more than them is in memory."""

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from numpy.testing import assert_array_equal

from tikas.data import sources
from tikas.data.sources import ArrayRows, RowSource, RowView, SparseRows, chunks, spread_sample

ROWS = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
SOME = np.array([7, 3, 3, 49, 0])


def mapped(path: Path, rows: np.ndarray, mode: str = "r") -> np.memmap:
    np.save(path / "rows.npy", rows)
    return np.load(path / "rows.npy", mmap_mode=mode)


def as_source(kind: str, path: Path) -> RowSource:
    if kind == "sparse":
        return SparseRows(scipy.sparse.csr_array(ROWS))
    if kind == "view":
        rows = np.concatenate([np.zeros((5, 3)), -ROWS]).reshape(55, 1, 3)
        return RowView(ArrayRows(rows), rows=np.arange(5, 55), transform=np.negative, row_shape=(3,))
    return ArrayRows(mapped(path, ROWS) if kind == "mapped" else ROWS.copy(order="F"))


@pytest.mark.parametrize("kind", ["mapped", "Fortran", "sparse", "view"])
def test_rows_are_those_of_the_array(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "BLOCK_BYTES", 100)
    source = as_source(kind, tmp_path)
    assert (source.shape, source.ndim, len(source), source.dtype) == ((50, 3), 2, 50, np.float32)
    for rows in (slice(None), slice(5, 40, 7), slice(60, 70), SOME, SOME.tolist(), ROWS[:, 0] > 0):
        assert_array_equal(source[rows], ROWS[rows])
    images = source.reshape(50, 1, 1, 3)
    assert_array_equal(images[SOME], ROWS[SOME].reshape(5, 1, 1, 3))
    assert_array_equal(np.concatenate(list(chunks(source, values=12))), ROWS)
    assert [len(chunk) for chunk in chunks(source, SOME, values=7)] == [2, 2, 1]


@pytest.mark.parametrize("dtype", ["f2", ">f8", "i2", "?", ">u4"])
def test_numbers_of_any_type_become_float32(dtype: str, tmp_path: Path) -> None:
    rows = np.abs(np.rint(10 * ROWS)).astype(dtype)
    found = ArrayRows(mapped(tmp_path, rows))[:]
    assert found.dtype == np.float32
    assert_array_equal(found, rows.astype(np.float32))


def test_changes_to_a_mapped_array_are_read(tmp_path: Path) -> None:
    """In a private mapping they are in memory alone, whose pages must not be dropped."""
    for mode in ("r+", "c"):
        array = mapped(tmp_path, ROWS, mode)
        source = ArrayRows(array)
        assert_array_equal(source[:2], ROWS[:2])
        array[0] = 7
        assert_array_equal(source[[0, 1]], [[7, 7, 7], ROWS[1]])
        assert_array_equal(source[[0, 1]], [[7, 7, 7], ROWS[1]])


def test_pages_of_a_file_are_dropped_when_they_are_read(tmp_path: Path) -> None:
    status = Path("/proc/self/status")
    if not status.exists():
        pytest.skip("needs Linux")
    source = ArrayRows(mapped(tmp_path, np.ones((2**19, 16), np.float32)))  # 32 MiB

    def resident() -> int:
        return int(status.read_text().split("RssFile:")[1].split()[0]) * 1024

    before = resident()
    for _ in chunks(source, values=2**18):
        assert resident() - before < 2**23


def test_blocks_of_a_view_are_those_of_its_source() -> None:
    source = ArrayRows(ROWS)
    source.block_edges = np.arange(0, 51, 10)
    assert RowView(source, rows=np.array([3, 4, 12, 31, 49])).block_edges.tolist() == [0, 2, 3, 4, 5]
    assert RowView(source).block_edges.tolist() == source.block_edges.tolist()
    assert SparseRows(scipy.sparse.csr_array(ROWS)).block_edges is None


def test_rows_of_another_shape_raise() -> None:
    with pytest.raises(ValueError, match=r"\(50, 3\).*\(50, 2\)"):
        ArrayRows(ROWS).reshape(50, 2)


def test_a_sample_has_a_row_of_each_part_and_of_classes_that_take_turns() -> None:
    rows = np.arange(1000, 2000)
    sample = spread_sample(rows, 100)
    assert ((sample - 1000) // 10).tolist() == list(range(100))
    assert np.bincount(sample % 10).min() > 0  # at equal distances, all would be of one class
    assert_array_equal(sample, spread_sample(rows, 100))
    assert_array_equal(spread_sample(SOME, 5), SOME)
