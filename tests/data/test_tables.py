"""Tables from text, Parquet and array files: what is read, and errors that name the file, the column and the row."""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tikas.data.tables import Task, read_table, read_table_rows

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a file and return its path."""

    def write_file(content: str | bytes, name: str = "rows.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write_file


@pytest.fixture
def write_parquet(tmp_path: Path) -> Write:
    pytest.importorskip("pyarrow", reason="needs pyarrow")

    def write_file(frame: pd.DataFrame) -> Path:
        frame.to_parquet(tmp_path / "rows.parquet")
        return tmp_path / "rows.parquet"

    return write_file


def test_a_table_has_rows_names_codes_and_classes(write: Write) -> None:
    table = read_table(write('a,kind,"b, c",on\n1,dog,2.5,True\n-3,,4e1,FALSE\n0,cat,7, false\n'), target="kind")
    assert table.rows.dtype == np.float32
    assert table.rows.tolist() == [[1, 2.5, 1], [-3, 40, 0], [0, 7, 0]]
    assert table.feature_names == ("a", "b, c", "on")
    assert table.targets.tolist() == [1, -1, 0]
    assert table.classes.tolist() == ["cat", "dog"]


def test_a_regression_has_values_and_no_classes(write: Write) -> None:
    table = read_table(write("a,y\n1,-1\n2,?\n3,2.5\n"), "y", task="regression")
    np.testing.assert_array_equal(table.targets, [-1, np.nan, 2.5])
    assert table.classes is None


@pytest.mark.parametrize(
    ("name", "content"),
    [
        pytest.param("rows.tsv", "a\tb\n1\t2\n", id="tsv"),
        pytest.param("rows.csv", "a\tb\n1\t2\n", id="tabs"),
        pytest.param("rows.csv", "a;b\n1;2\n", id="semicolons"),
        pytest.param("ROWS.CSV", "a,b\r\n1,2\r\n", id="line ends of Windows"),
        pytest.param("rows.csv", "\ufeffa,b\n1,2\n", id="byte order mark"),
        pytest.param("rows.csv", '"a","b"\n"1","2"\n', id="quotes"),
        pytest.param("rows.csv", "\na,b\n\n1, 2\n   \n", id="blank lines and spaces"),
        pytest.param("rows.csv", "a , b\n1 , 2 \n", id="spaces before commas"),
    ],
)
def test_separators_line_ends_quotes_and_blank_lines_are_understood(name: str, content: str, write: Write) -> None:
    table = read_table(write(content, name), target="b", task="regression")
    assert (table.feature_names, table.rows.tolist(), table.targets.tolist()) == (("a",), [[1]], [2])


@pytest.mark.parametrize(
    ("header", "names"),
    [
        ('"size, ""cm""";b\n1;2\n', ('size, "cm"', "b")),
        ('"size, cm"\tb\n1\t2\n', ("size, cm", "b")),
        ("a\tb,c\n1,2\n", ("a\tb", "c")),
        ("a;b,c\n1,2\n", ("a;b", "c")),
        (",b\n1,2\n", ("Unnamed: 0", "b")),
    ],
)
def test_names_may_contain_separators_or_be_missing(header: str, names: tuple[str, ...], write: Write) -> None:
    path = write(header)
    assert read_table_rows(path, feature_names=names)[0].tolist() == [[1, 2]]
    assert read_table(path, names[1], task="regression").feature_names == names[:1]


@pytest.mark.parametrize(
    ("content", "expected"),
    [("1,2\n3,4\n", [[1, 2], [3, 4]]), ("True,1\nFalse,2\n", [[1, 1], [0, 2]]), ("1,1\n2,3\n", [[1, 1], [2, 3]])],
)
def test_rows_to_predict_need_no_header(content: str, expected: list, write: Write) -> None:
    path = write(content)
    rows, labels = read_table_rows(path)
    assert (rows.tolist(), labels) == (expected, None)
    with pytest.warns(UserWarning, match="no header line.* 1, b") as caught:
        assert read_table_rows(path, feature_names=["1", "b"])[0].tolist() == expected
    assert caught[0].filename == __file__


def test_a_first_line_of_numbers_is_a_header_if_it_has_the_wanted_names(write: Write) -> None:
    path = write("0,1,2\n5,6,7\n")
    assert len(read_table_rows(path)[0]) == 2
    assert read_table_rows(path, feature_names=["1", "0"])[0].tolist() == [[6, 5]]
    assert read_table_rows(path, ignore=["1"])[0].tolist() == [[5, 7]]
    rows, labels = read_table_rows(path, target="2")
    assert (rows.tolist(), labels.tolist()) == ([[5, 6]], [7])


def test_columns_that_are_not_wanted_may_hold_anything(write: Write) -> None:
    path = write("name,a,b,b,kind\nbob,1,2,3,x\neve,4,,6,y\n")
    rows, labels = read_table_rows(path, feature_names=["a"], target="kind")
    assert (rows.tolist(), labels.tolist()) == ([[1], [4]], ["x", "y"])
    table = read_table(path, "kind", ignore=["name", "b"])
    assert (table.feature_names, table.rows.tolist()) == (("a",), [[1], [4]])


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["1", "0", "2"], [1, 0, 2]),
        (["1", "1.0", "1."], [1, 1, 1]),
        (["1.5", "-0.25", "2"], [1.5, -0.25, 2.0]),
        (["1", "two", "3"], ["1", "two", "3"]),
        (["True", "False", "True"], ["True", "False", "True"]),
        (["1", "", "2"], [1, None, 2]),
        (["cat", "?", "NA"], ["cat", None, None]),
        (["N/A", "<NA>", "#N/A"], [None, None, None]),
        (["-1", "nan", "-1.0"], [None, None, None]),
        (["0123", "0124", "-1"], ["0123", "0124", None]),
        (["1e3", "1000", "1"], ["1e3", "1000", "1"]),
        (["+5", "5", "6"], ["+5", "5", "6"]),
        (["1_000", "2_000", "1_000"], ["1_000", "2_000", "1_000"]),
        (["9007199254740993", "-9007199254740993", "1"], [9007199254740993, -9007199254740993, 1]),
    ],
)
def test_labels_are_integers_numbers_or_strings_and_none_where_unlabeled(
    labels: list[str], expected: list, write: Write
) -> None:
    lines = "".join(f"{i},{label}\n" for i, label in enumerate(labels))
    _, found = read_table_rows(write("a,label\n" + lines), target="label")
    assert found.tolist() == expected
    assert [type(label) for label in found.tolist()] == [type(label) for label in expected]


def test_names_of_classes_are_kept_even_if_they_look_like_missing_values(write: Write) -> None:
    path = write("a,kind\n1,NA\n2,\n3,cat\n")
    assert read_table_rows(path, target="kind", classes=["NA", "cat"])[1].tolist() == ["NA", None, "cat"]
    assert read_table_rows(path, target="kind", classes=np.array([0, 1]))[1].tolist() == [None, None, "cat"]


@pytest.mark.parametrize(
    ("content", "target", "named"),
    [
        ("a,b\n1,2\n3,x\n", None, "row 2, column 'b': 'x'"),
        ("a;b\n1;12,5\n", None, r"row 1, column 'b': '12,5'.*12\.5"),
        ("1,2\n3,x\n", None, "row 2, column '2': 'x'"),
        ("a,b\n1,1_000\n", None, "row 1, column 'b': '1_000'"),
        ("a,b\n1,2\n,4\n", None, "row 2, column 'a': ''"),
        ("a,b\n1,2\n5\n", None, "row 2, column 'b': ''"),
        ("a,b\n1,nan\n", None, "row 1, column 'b': 'nan'"),
        ("NA,2\n3,4\n", None, "row 1, column '1': 'NA'"),
        ('a,b\n1,"two\nlines"\n', None, r"row 1, column 'b': 'two\\nlines'"),
        ('\na,b\n1,"2\n"\n\n3,x\n', None, "row 2, column 'b': 'x'"),
        ("a,y\n1,2\n3,x\n", "y", "row 2.* 'x'"),
        ("a,b\n1,2\n\n1,2,3\n", None, "Expected 2 fields in line 4, saw 3"),
        ("a,b\n1,2,3\n4,5,6\n", None, "Length of header"),
        ('a,b\n1,"2\n', None, "EOF inside string"),
        ("a,b,b\n1,2,3\n", None, "2 columns 'b'"),
        ("a,y,y\n1,2,3\n", "y", "2 columns 'y'"),
        ("", None, "No columns"),
        ("\n  \n", None, "No columns"),
        ("a,b\n", None, "no rows"),
        ("y\n1\n", "y", "no feature column, only y"),
        ("a,b\n1,2\n", "y", "no column 'y'; it has a, b"),
        ("1,2\n3,4\n", "y", "no header line.*'y'"),
        (b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR", None, "codec.*UTF-8"),
        (b"caf\xe9,b\n1,2\n", None, "codec.*UTF-8"),
    ],
)
def test_an_error_names_the_file_the_row_and_the_column(
    content: str | bytes, target: str | None, named: str, write: Write
) -> None:
    with pytest.raises(ValueError, match=rf"rows\.csv.*{named}"):
        read_table_rows(write(content), target=target, task="regression")


@pytest.mark.parametrize(
    ("content", "arguments", "named"),
    [
        (
            "name,a\nbob,1\n",
            {"feature_names": ["c"]},
            "no column 'c', which the model was trained with; it has name, a",
        ),
        ("a,b\n1,2\n", {"ignore": ["c"]}, "no column 'c'; it has a, b"),
        ("1,2\n3,4\n", {"ignore": ["c"]}, "no header line.*'c'"),
        ("a,y\n1,x\n", {"target": "y", "ignore": ["a"]}, "no feature column"),
    ],
)
def test_missing_columns_raise_an_error(content: str, arguments: dict, named: str, write: Write) -> None:
    with pytest.raises(ValueError, match=named):
        read_table_rows(write(content), **arguments)


def test_all_columns_of_text_are_named_in_one_error(write: Write, write_parquet: Write) -> None:
    path = write("id,born,size,city,on,kind\nx1,1999-01-01,1.5,Oulu,True,\n")
    for file in (path, write_parquet(pd.read_csv(path))):
        with pytest.raises(ValueError, match=r"row 1, column 'id': 'x1';.*--ignore id born city.*--target"):
            read_table(file, target="kind")
    names = [f"text {i}" for i in range(30)]
    with pytest.raises(ValueError, match=r"column 'text 9': 'x'; ….*--ignore 'text 0' .* 'text 29'"):
        read_table_rows(write(",".join(names) + "\n" + ",".join("x" * 30) + "\n"))


def test_training_rows_need_labels(write: Write, tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.eye(2))
    for path in (write("a,b\n1,2\n"), tmp_path / "rows.npy"):
        with pytest.raises(ValueError, match=rf"{path.name} has no labels.*--target"):
            read_table(path)


def test_a_missing_file_and_another_suffix_are_different_errors(write: Write, tmp_path: Path) -> None:
    for suffix in ("csv", "npz", "parquet"):
        with pytest.raises(FileNotFoundError, match=rf"nowhere\.{suffix}"):
            read_table(tmp_path / f"nowhere.{suffix}")
    with pytest.raises(ValueError, match=r"cat\.png .*'\.png'.*\.csv, \.tsv, \.npy, \.npz, \.parquet.*folder"):
        read_table(write("", "cat.png"))


@pytest.mark.parametrize(
    ("y", "expected"),
    [
        (np.array([1, 0, 2]), [1, 0, 2]),
        (np.array([1, -1, 2]), [1, None, 2]),
        (np.array([0.5, np.nan, -1.0]), [0.5, None, None]),
        (np.array(["cat", "", "dog"]), ["cat", None, "dog"]),
        (np.array([b"cat", b"cat", b"dog"]), ["cat", "cat", "dog"]),
    ],
)
def test_an_array_file_holds_rows_and_labels(y: np.ndarray, expected: list, tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", x=np.eye(3, dtype=bool), y=y)
    rows, labels = read_table_rows(tmp_path / "rows.npz")
    assert rows.dtype == np.float32
    assert (rows.tolist(), labels.tolist()) == (np.eye(3).tolist(), expected)


def test_the_target_names_the_array_of_labels(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", x=np.eye(2), kind=[3, 4])
    assert read_table_rows(tmp_path / "rows.npz", target="kind")[1].tolist() == [3, 4]
    assert read_table_rows(tmp_path / "rows.npz")[1] is None


def test_images_in_an_array_file_keep_their_shape(tmp_path: Path) -> None:
    images = np.arange(50, dtype=np.uint8).reshape(2, 5, 5)
    np.savez(tmp_path / "rows.npz", x=images, y=[0, 1])
    np.testing.assert_array_equal(read_table(tmp_path / "rows.npz").rows, images)


@pytest.mark.parametrize(
    ("arrays", "target", "named"),
    [
        ({"a": np.eye(2), "b": np.eye(2)}, None, "arrays a, b; expected x and y"),
        ({"x": np.eye(2)}, "kind", "arrays x; expected x and kind"),
        ({"x": np.eye(2), "y": np.arange(3)}, None, r"\(3,\).* \(2, 2\)"),
        ({"x": np.eye(2), "y": np.eye(2)}, None, r"\(2, 2\).* \(2, 2\)"),
        ({"x": np.array([[{}]], dtype=object)}, None, "NumPy arrays"),
    ],
)
def test_arrays_that_are_not_a_table_are_named_in_the_error(
    arrays: dict, target: str | None, named: str, tmp_path: Path
) -> None:
    np.savez(tmp_path / "rows.npz", **arrays)
    with pytest.raises(ValueError, match=rf"rows\.npz.*{named}"):
        read_table_rows(tmp_path / "rows.npz", target=target)


@pytest.mark.parametrize("name", ["rows.npy", "rows.npz"])
@pytest.mark.parametrize("content", [b"", b"not an array", b"PK\x03\x04 broken", b"\x93NUMPY\x01\x00"])
def test_a_damaged_array_file_is_named_in_the_error(name: str, content: bytes, write: Write) -> None:
    with pytest.raises(ValueError, match=rf"{name} .*plain NumPy arrays"):
        read_table(write(content, name))


def test_a_parquet_file_has_rows_names_and_labels(write_parquet: Write) -> None:
    columns = {"a": [1, 2], "on": [True, False], "b": pd.array([3, 4], dtype="Int64"), "name": ["bob", None]}
    path = write_parquet(pd.DataFrame({**columns, "kind": ["cat", None], "y": [0.5, None]}))
    rows, labels = read_table_rows(path, ["b", "on", "a"], target="kind")
    assert (rows.tolist(), labels.tolist()) == ([[3, 1, 1], [4, 0, 2]], ["cat", None])
    table = read_table(path, "y", ignore=["name", "kind"], task="regression")
    assert (table.feature_names, table.rows.tolist()) == (("a", "on", "b"), [[1, 1, 3], [2, 0, 4]])
    np.testing.assert_array_equal(table.targets, [0.5, np.nan])


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ({"a": [1.0, None]}, "row 2, column 'a': 'nan'"),
        ({"a": pd.array([None, 1], dtype="Int64")}, "row 1, column 'a': '<NA>'"),
        ({"a": [1], "when": pd.to_datetime(["2015-07-09"])}, "row 1, column 'when': '2015-07-09"),
        ({"a": [1], "kind": ["cat"]}, "row 1, column 'kind': 'cat'"),
        ({"a": np.empty(0)}, "no rows"),
    ],
)
def test_cells_of_a_parquet_file_that_are_not_numbers_are_named_in_the_error(
    columns: dict, named: str, write_parquet: Write
) -> None:
    with pytest.raises(ValueError, match=rf"rows\.parquet.*{named}"):
        read_table_rows(write_parquet(pd.DataFrame(columns)))


def test_a_damaged_parquet_file_is_named_in_the_error(write: Write) -> None:
    pytest.importorskip("pyarrow", reason="needs pyarrow")
    for content in (b"", b"PAR1 broken"):
        with pytest.raises(ValueError, match=r"rows\.parquet.*Parquet"):
            read_table(write(content, "rows.parquet"))


def test_without_pyarrow_the_error_names_it(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "fastparquet", None)
    with pytest.raises(ImportError, match="pyarrow is required"):
        read_table(write("PAR1", "rows.parquet"))


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["-1", "-1.0", "2"], [-1, -1, 2]),
        (["-1", "?", "2.5"], [-1, np.nan, 2.5]),
        (["3", "3.0", "03"], [3, 3, 3]),
        (["9007199254740993", "nan", " 1 "], [9007199254740992, np.nan, 1]),
    ],
)
def test_a_regression_has_the_same_values_from_every_kind_of_file(
    texts: list[str], expected: list[float], write: Write, write_parquet: Write, tmp_path: Path
) -> None:
    np.savez(tmp_path / "rows.npz", x=np.eye(3), y=np.array(texts))
    rows = "".join(f"{i},{text}\n" for i, text in enumerate(texts))
    paths = [write("a,y\n" + rows), write_parquet(pd.DataFrame({"a": [0, 1, 2], "y": texts})), tmp_path / "rows.npz"]
    for path in paths:
        np.testing.assert_array_equal(read_table_rows(path, target="y", task="regression")[1], expected)


@pytest.mark.parametrize("task", ["classification", "regression"])
@pytest.mark.parametrize("first", [0, -40, 2**24 - 60, 2**24 + 1, 202_300_001])
def test_a_column_of_row_numbers_gives_a_warning(first: int, task: Task, write: Write) -> None:
    """Beyond 2**24, float32 has no longer all integers."""
    numbers = first + np.random.default_rng(0).permutation(300)
    lines = "".join(f"{number},{number % 7 / 10},{i % 2}\n" for i, number in enumerate(numbers))
    path = write("id number,a,y\n" + lines)
    with pytest.warns(UserWarning, match=f"'id number' .* {first} .*--ignore 'id number'") as caught:
        read_table(path, "y", task=task)
    assert [warning.filename for warning in caught] == [__file__]
    read_table(path, "y", ignore=["id number"], task=task)  # a warning would be an error here
    read_table_rows(path, target="y", task=task)


@pytest.mark.parametrize(
    ("name", "numbers", "warned"),
    [
        ("id", np.arange(300) * 3 + 200_000_000, False),
        ("id", np.full(300, 7), False),
        ("id", np.arange(300) // 2, False),
        ("id", np.arange(300) / 2, False),
        ("id", np.arange(9), False),
        ("", np.arange(300) * 3, True),
        ("Unnamed: 0", np.arange(300) * 3, True),
    ],
)
def test_other_numbers_give_a_warning_only_in_a_column_without_a_name(
    name: str, numbers: np.ndarray, warned: bool, write: Write, recwarn: pytest.WarningsRecorder
) -> None:
    lines = "".join(f"{number},{i % 2}\n" for i, number in enumerate(numbers))
    read_table(write(f"{name},y\n" + lines), "y")
    assert len(recwarn) == warned
