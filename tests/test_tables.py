"""A user's rows are read as they stand in the file, and what cannot be read is named by line and column."""

from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest

from tikas.data.cells import labels_of, values_of
from tikas.data.numbered_rows import warn_of_numbered_rows
from tikas.data.tables import Table, read_table


@pytest.fixture
def write(tmp_path):
    def write_file(content, name="rows.csv"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write_file


def test_a_csv_with_a_header_gives_rows_names_and_labels(write):
    table = read_table(write('a,kind,"b, c"\n1,cat,2.5\n-3,dog,4e1\n'), target="kind")
    assert table.x.dtype == np.float32
    assert table.x.tolist() == [[1, 2.5], [-3, 40]]
    assert table.y.tolist() == ["cat", "dog"]
    assert table.columns == ("a", "b, c")


def test_without_a_target_there_are_no_labels(write):
    table = read_table(write("a,b\n1,2\n"))
    assert table.y is None
    assert table.columns == ("a", "b")


def test_a_file_of_numbers_alone_has_no_header(write):
    table = read_table(write("1,2\n3,4\n"))
    assert table.x.tolist() == [[1, 2], [3, 4]]
    assert table.columns is None


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("rows.tsv", "a\tb\n1\t2\n"),
        ("rows.csv", "a\tb\n1\t2\n"),
        ("ROWS.CSV", "a,b\r\n1,2\r\n"),
        ("rows.csv", "\ufeffa,b\n1,2\n"),
        ("rows.csv", '"a","b"\n"1","2"\n'),
        ("rows.csv", "a,b\n\n1, 2\n   \n"),
    ],
)
def test_tabs_line_ends_marks_quotes_and_blank_lines_are_understood(write, name, content):
    table = read_table(write(content, name))
    assert table.columns == ("a", "b")
    assert table.x.tolist() == [[1, 2]]


@pytest.mark.parametrize(
    ("labels", "expected", "kind"),
    [
        (["1", "0", "2"], [1, 0, 2], "i"),
        (["1.0", "0.0", "2.0"], [1, 0, 2], "i"),
        (["1.5", "-0.25", "2"], [1.5, -0.25, 2.0], "f"),
        (["1", "two", "3"], ["1", "two", "3"], "U"),
        (["1", "", "2"], [1, None, 2], "O"),
        (["cat", "?", "NA"], ["cat", None, None], "O"),
        (["-1", "nan", "7"], [None, None, 7], "O"),
        (["-1.0", "NaN", "7.0"], [None, None, 7], "O"),
        (["-1.0", "2.5", "nan"], [-1.0, 2.5, None], "O"),
        (["-1", "?", ""], [None, None, None], "O"),
        (["0123", "123", ""], ["0123", "123", None], "O"),
        (["0123", "123", "-1.0"], ["0123", "123", None], "O"),
        (["0123", "0124", "0123"], [123, 124, 123], "i"),
        (["1e3", "1000", "1"], ["1e3", "1000", "1"], "U"),
        (["+5", "5", "6"], ["+5", "5", "6"], "U"),
        (["1", "1.0", "1."], [1, 1, 1], "i"),
        (["1_000", "1000", "1"], ["1_000", "1000", "1"], "U"),
        (["1_000", "2_000", "1_000"], ["1_000", "2_000", "1_000"], "U"),
        (["9007199254740993", "9007199254740992", "1"], ["9007199254740993", "9007199254740992", "1"], "U"),
        (["9007199254740993", "1", "2"], ["9007199254740993", "1", "2"], "U"),
        (["-9007199254740993", "1", "2"], ["-9007199254740993", "1", "2"], "U"),
    ],
)
def test_labels_become_what_all_of_them_are_and_none_where_unknown(write, labels, expected, kind):
    lines = "".join(f"{i},{label}\n" for i, label in enumerate(labels))
    y = read_table(write("a,label\n" + lines), target="label").y
    assert y.tolist() == expected
    assert [type(label) for label in y.tolist()] == [type(label) for label in expected]
    assert y.dtype.kind == kind


@pytest.mark.parametrize(
    ("content", "target", "message"),
    [
        ("a,b\n1,2\n3,x\n", None, r"rows.csv, line 3, column 'b': 'x' is not a finite.*or ignore it.*--target"),
        ("a;b\n1;12,5\n", None, r"line 2, column 'b': '12,5' has a comma in it. Write numbers with a decimal point"),
        ("1,2\n3,x\n", None, r"line 2, column 2: 'x' is not"),
        ("a,b\n1,1_000\n", None, r"line 2, column 'b': '1_000' is not"),
        ("a,b\n1,inf\n", None, r"line 2, column 'b': 'inf' is not"),
        ("a,b\n1,1e300\n", None, r"line 2, column 'b': '1e300' is not"),
        ("a,b\n1,2\n,4\n", None, r"line 3, column 'a': the value is missing \(''\).*SimpleImputer"),
        ("a,b\n1,2\n,\n", None, r"line 3, column 'a': the value is missing"),
        ("a,b\n1,nan\n", None, r"line 2, column 'b': the value is missing"),
        ("NA,2\n3,4\n", None, r"line 1, column 1: the value is missing"),
        ('a,b\n1,"two\nlines"\n', None, r"line 2, column 'b': 'two\\nlines'"),
        ("a,b\n1,2\n\n1,2,3\n", None, r"line 4: 3 fields, but line 1 has 2"),
        ("a,b\n1\n", None, r"line 2: 1 fields, but line 1 has 2"),
        ('a,b\n1,"2\n"\n3,x\n', None, r"line 4, column 'b': 'x' is not"),
        ('a,b\n1,"2\n', None, r"line 2: unexpected end of data. Check the quotes"),
        ("a,b,b\n1,2,3\n", None, r"rows.csv has 2 columns 'b'. Give each a name of its own"),
        ("", None, r"rows.csv is empty"),
        ("\n  \n", None, r"blank lines only"),
        ("a,b\n", None, r"header line but no rows"),
        ("a\n1\n", "a", r"at least one row and one feature column"),
        ("a,b\n1,2\n", "kind", r"target column 'kind' is not there. Its columns: a, b"),
        ("a,kind,kind\n1,2,3\n", "kind", r"'kind' is there more than once"),
        ("1,2\n3,4\n", "kind", r"no header line, so the target 'kind' cannot be found"),
        (b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR", None, r"is not a text file"),
        (b"caf\xe9,b\n1,2\n", None, r"is not UTF-8 text"),
    ],
)
def test_what_cannot_be_read_is_named(write, content, target, message):
    with pytest.raises(ValueError, match=message):
        read_table(write(content), target)


def test_a_missing_file_a_folder_and_an_unknown_suffix_are_told_apart(write, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere.csv does not exist"):
        read_table(tmp_path / "nowhere.csv")
    with pytest.raises(IsADirectoryError, match="is a folder"):
        read_table(tmp_path)
    with pytest.raises(ValueError, match=r"suffix '\.xlsx'; expected one of \.csv, \.tsv, \.npy, \.npz, \.parquet"):
        read_table(write("a", "rows.xlsx"))


def test_an_array_file_keeps_its_shape(tmp_path):
    images = np.arange(24, dtype=np.uint8).reshape(2, 3, 2, 2)
    np.save(tmp_path / "rows.npy", images)
    table = read_table(tmp_path / "rows.npy")
    assert table.x.dtype == np.float32
    np.testing.assert_array_equal(table.x, images)
    assert table.y is None
    assert table.columns is None


@pytest.mark.parametrize(
    ("y", "expected"),
    [
        (np.array([1, 0, 2]), [1, 0, 2]),
        (np.array([1, -1, 2]), [1, None, 2]),
        (np.array([0.5, np.nan, -1.0]), [0.5, None, -1.0]),
        (np.array(["cat", "", "dog"]), ["cat", None, "dog"]),
        (np.array([b"cat", b"cat", b"dog"]), ["cat", "cat", "dog"]),
    ],
)
def test_an_archive_holds_rows_and_labels(tmp_path, y, expected):
    np.savez(tmp_path / "rows.npz", x=np.eye(3), y=y)
    table = read_table(tmp_path / "rows.npz")
    assert table.x.tolist() == np.eye(3).tolist()
    assert table.y.tolist() == expected


def test_an_archive_may_name_its_arrays_otherwise(tmp_path):
    np.savez(tmp_path / "rows.npz", features=np.eye(2), kind=np.array([3, 4]))
    assert read_table(tmp_path / "rows.npz", target="kind").y.tolist() == [3, 4]
    np.savez(tmp_path / "only.npz", features=np.eye(2))
    assert read_table(tmp_path / "only.npz").y is None
    np.savez(tmp_path / "more.npz", other=np.zeros((5, 5)), x=np.eye(2))
    assert read_table(tmp_path / "more.npz").x.tolist() == [[1, 0], [0, 1]]


def test_an_array_of_booleans_is_one_of_ones_and_zeros(tmp_path):
    np.save(tmp_path / "rows.npy", np.eye(2, dtype=bool))
    assert read_table(tmp_path / "rows.npy").x.tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize(
    ("arrays", "target", "message"),
    [
        ({"a": np.eye(2), "b": np.eye(2)}, None, "holds the arrays a, b; expected one named x"),
        ({"x": np.eye(2)}, "kind", "no array 'kind' for the target; it has x"),
        ({"x": np.eye(2), "y": np.arange(3)}, None, r"y has shape \(3,\) but there are 2 rows"),
        ({"x": np.eye(2), "y": np.eye(2)}, None, r"y has shape \(2, 2\) but there are 2 rows"),
        ({"x": np.arange(3)}, None, r"shape \(3,\); expected rows and columns"),
        ({"x": np.empty((0, 3))}, None, r"shape \(0, 3\); expected at least one row"),
        ({"x": np.array([["a"]])}, None, "of type <U1; expected numbers"),
        ({"x": np.array([[0, 1], [2, np.nan]])}, None, r"at \[1, 1\]: the value is missing"),
        ({"x": np.array([[0, -np.inf]])}, None, r"at \[0, 1\]: '-inf' is not a finite number"),
        ({"x": np.array([[0, 1e300]])}, None, r"at \[0, 1\]: '1e\+300' is not a finite number"),
        ({"x": np.array([[{}]], dtype=object)}, None, "does not hold plain NumPy arrays"),
    ],
)
def test_arrays_that_are_no_table_are_named(tmp_path, arrays, target, message):
    np.savez(tmp_path / "rows.npz", **arrays)
    with pytest.raises(ValueError, match=message):
        read_table(tmp_path / "rows.npz", target)


@pytest.mark.parametrize("name", ["rows.npy", "rows.npz"])
@pytest.mark.parametrize("content", [b"not an array at all", b"PK\x03\x04 broken", b"\x93NUMPY\x01\x00"])
def test_a_damaged_array_file_is_named(write, name, content):
    with pytest.raises(ValueError, match=f"{name} does not hold plain NumPy arrays"):
        read_table(write(content, name))


def test_an_array_file_has_no_target(tmp_path):
    np.save(tmp_path / "rows.npy", np.eye(2))
    with pytest.raises(ValueError, match=r"no array 'kind' for the target.*savez"):
        read_table(tmp_path / "rows.npy", target="kind")


@pytest.fixture
def parquet(write, monkeypatch):
    """Stand in for a Parquet engine: the frame is handed over as pandas would read it."""

    def read_frame(frame, *arguments, **more):
        monkeypatch.setattr(pd, "read_parquet", Mock(return_value=frame))
        return read_table(write("PAR1", "rows.parquet"), *arguments, **more)

    return read_frame


def test_a_parquet_frame_gives_rows_names_and_labels(parquet):
    frame = pd.DataFrame(
        {"a": [1, 2], "on": [True, False], "kind": ["cat", None], "b": pd.array([3, 4], dtype="Int64")}
    )
    table = parquet(frame, "kind")
    assert table.x.tolist() == [[1, 1, 3], [2, 0, 4]]
    assert table.columns == ("a", "on", "b")
    assert table.y.tolist() == ["cat", None]


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (pd.DataFrame({"a": [1.0, None]}), r"row 1 \(counted from 0\), column 'a': the value is missing"),
        (pd.DataFrame({"a": pd.array([None, 1], dtype="Int64")}), r"row 0 .*column 'a': the value is missing"),
        (pd.DataFrame({"a": [1], "when": pd.to_datetime(["2015-07-09"])}), "column 'when' is of type datetime64"),
        (pd.DataFrame({"a": [1], "kind": ["cat"]}), "column 'kind' is of type .*name them as the target"),
        (pd.DataFrame({"a": []}, dtype=float), r"shape \(0, 1\); expected at least one row"),
    ],
)
def test_what_is_no_number_in_a_parquet_frame_is_named(parquet, frame, message):
    with pytest.raises(ValueError, match=message):
        parquet(frame)


def test_parquet_without_an_engine_says_what_to_install(write, monkeypatch):
    monkeypatch.setattr(pd, "read_parquet", Mock(side_effect=ImportError("Unable to find a usable engine")))
    with pytest.raises(ValueError, match="pip install pandas pyarrow"):
        read_table(write("PAR1", "rows.parquet"))


def test_a_damaged_parquet_file_is_named(write, monkeypatch):
    monkeypatch.setattr(pd, "read_parquet", Mock(side_effect=OSError("Parquet magic bytes not found")))
    with pytest.raises(ValueError, match=r"rows\.parquet is not a readable Parquet file \(Parquet magic"):
        read_table(write("PAR1", "rows.parquet"))


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["-1", "-1.0", "2"], [-1.0, -1.0, 2.0]),
        (["-1", "?", "2.5"], [-1.0, None, 2.5]),
        (["3", "3.0", "03"], [3.0, 3.0, 3.0]),
        (["9007199254740993", "nan", " 1 "], [9007199254740992.0, None, 1.0]),
        (["1", "two", "inf"], [1.0, "two", float("inf")]),  # a regressor says what is wrong with these
    ],
)
def test_values_are_numbers_and_only_a_gap_is_none(write, tmp_path, parquet, texts, expected):
    rows = "".join(f"{i},{text}\n" for i, text in enumerate(texts))
    np.savez(tmp_path / "rows.npz", x=np.eye(3), y=np.array(texts))
    frame = pd.DataFrame({"a": [0, 1, 2], "y": texts})
    for table in (
        read_table(write("a,y\n" + rows), "y", values_of),
        read_table(tmp_path / "rows.npz", None, values_of),
        parquet(frame, "y", values_of),
    ):
        assert table.y.tolist() == expected


def test_fields_may_be_separated_by_semicolons(write):
    table = read_table(write("a;b\n1;2.5\n"))
    assert (table.columns, table.x.tolist()) == (("a", "b"), [[1, 2.5]])


@pytest.mark.parametrize("separator", [";", "\t"])
def test_a_comma_within_quotes_separates_nothing(write, separator):
    table = read_table(write(f'"size, ""cm"""{separator}b\n1{separator}2\n'))
    assert (table.columns, table.x.tolist()) == (('size, "cm"', "b"), [[1, 2]])


def test_a_separator_within_a_name_is_not_the_tables(write):
    assert read_table(write("a\tb,c\n1,2\n")).columns == ("a\tb", "c")
    assert read_table(write("a;b,c\n1,2\n")).columns == ("a;b", "c")


def test_a_first_row_that_repeats_a_number_is_no_header(write):
    table = read_table(write("1,1\n2,3\n"), columns=["1"])
    assert (table.columns, table.x.tolist()) == (None, [[1, 1], [2, 3]])


def test_names_of_classes_stay_as_they_are_even_if_they_look_like_gaps():
    assert labels_of(["?", "", "cat"], names=["?", "cat"]).tolist() == ["?", None, "cat"]


def test_a_header_of_numbers_is_one_if_what_is_looked_for_is_in_it(write):
    path = write("0,1,2\n5,6,7\n")
    assert read_table(path).columns is None
    assert read_table(path, target="2").columns == ("0", "1")
    table = read_table(path, columns=["1", "0"])
    assert (table.columns, table.x.tolist()) == (("1", "0"), [[6, 5]])


def test_all_columns_of_text_are_named_at_once(write, parquet):
    content = "id,born,size,city,on,kind\nx1,1999-01-01,1.5,Oulu,True,\n"
    named = r"column 'id'.*or ignore it \(--ignore id born city\)\. If these are the labels"
    with pytest.raises(ValueError, match=named):
        read_table(write(content), target="kind")
    with pytest.raises(ValueError, match=named):
        parquet(pd.read_csv(write(content)), "kind")
    with pytest.raises(ValueError, match=r"column 1: 'x'.*or ignore it \(--ignore\)"):
        read_table(write("1,2\nx,y\n"))
    names = [f"text {i}" for i in range(30)]
    with pytest.raises(ValueError, match=r"\(--ignore 'text 0' .* 'text 19' …\)"):
        read_table(write(",".join(names) + "\n" + ",".join("x" * 30) + "\n"))


def test_booleans_of_a_text_file_are_one_and_zero_as_those_of_a_parquet_file_are(write):
    assert read_table(write("a,on\n1,True\n2,FALSE\n3, false\n")).x.tolist() == [[1, 1], [2, 0], [3, 0]]
    table = read_table(write("True,1\nFalse,2\n"))
    assert (table.columns, table.x.tolist()) == (None, [[1, 1], [0, 2]])
    assert read_table(write("a,on\n1,True\n2,False\n"), target="on").y.tolist() == ["True", "False"]


def test_columns_that_are_not_wanted_may_hold_anything(write):
    table = read_table(write("name,a,b,b,kind\nbob,1,2,3,x\n"), "kind", columns=["a"])
    assert (table.x.tolist(), table.y.tolist()) == ([[1]], ["x"])
    with pytest.raises(ValueError, match=r"rows.csv has no column 'c', which the model was trained with; it has name"):
        read_table(write("name,a\nbob,1\n"), columns=["c"])
    with pytest.raises(ValueError, match=r"rows.csv has 2 columns 'b'"):
        read_table(write("a,b,b\n1,2,3\n"), columns=["b"])


def test_columns_to_ignore_may_hold_anything(write, parquet):
    table = read_table(write("name,,a,b,b,kind\nbob,7,1,2,3,x\n"), "kind", ignore=["name", "column 2", "b"])
    assert (table.x.tolist(), table.columns, table.y.tolist()) == ([[1]], ("a",), ["x"])
    table = read_table(write("1,2,3\n4,5,6\n"), ignore=["2"])  # numbers, but it is looked for
    assert (table.x.tolist(), table.columns) == ([[4, 6]], ("1", "3"))
    frame = pd.DataFrame({"a": [1, 2], "name": ["bob", "eve"], "kind": ["cat", None]})
    assert parquet(frame, "kind", ignore=["name"]).columns == ("a",)


@pytest.mark.parametrize(
    ("content", "target", "ignore", "message"),
    [
        ("a,b\n1,2\n", None, "c", r"rows.csv has no column 'c' to ignore; it has a, b\.$"),
        ("a,kind\n1,x\n", "kind", "kind", r"^The column 'kind' holds the labels, and is to be ignored too"),
        ("1,2\n3,4\n", None, "c", r"rows.csv has no header line, so there is no 'c' in it to ignore"),
        ("a,kind\n1,x\n", "kind", "a", "expected at least one row and one feature column"),
    ],
)
def test_what_cannot_be_ignored_is_named(write, content, target, ignore, message):
    with pytest.raises(ValueError, match=message):
        read_table(write(content), target, ignore=[ignore])


def test_columns_of_an_array_have_no_names_to_ignore_them_by(tmp_path):
    np.save(tmp_path / "rows.npy", np.ones((4, 2)))
    with pytest.raises(ValueError, match=r"rows.npy is an array, whose columns have no names: there is no 'a' to"):
        read_table(tmp_path / "rows.npy", ignore=["a"])


@pytest.mark.parametrize("gap", ["None", "null", "NULL", "N/A", "n/a", "<NA>", "#N/A"])
def test_what_others_write_for_a_gap_is_no_class(write, gap):
    assert read_table(write(f"a,kind\n1,cat\n2,{gap}\n"), target="kind").y.tolist() == ["cat", None]


@pytest.mark.parametrize("first", [0, -40, 2**24 - 60, 2**24 + 1, 202_300_001, 999_999_937])
def test_rows_are_numbered_however_large_the_numbers_are(first):
    order = np.random.default_rng(0).permutation(300)
    table = Table((first + order)[:, None].astype(np.float32), y=None, columns=("id",))
    with pytest.warns(UserWarning, match=r"the column 'id' numbers the rows, from"):
        warn_of_numbered_rows(table, "mine.csv")


@pytest.mark.parametrize("numbers", [np.arange(300) * 3 + 2e8, np.full(300, 2e8), np.arange(300) // 2 + 2e8])
def test_large_numbers_do_not_number_rows_by_themselves(numbers):
    warn_of_numbered_rows(Table(numbers[:, None].astype(np.float32), y=None, columns=("id",)), "mine.csv")
