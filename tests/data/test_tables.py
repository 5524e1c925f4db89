"""Tables from text, Parquet, Excel and array files: what is read, what is told, and errors that name every problem."""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tikas.data.columns import Column
from tikas.data.datasets import Dataset
from tikas.data.tables import (
    Table,
    TableSummary,
    Task,
    UnclearLabelsError,
    describe,
    feature_table,
    labels_of,
    number_table,
    read_arrays,
    read_chunks,
    read_table,
    values_of,
)

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a file and return its path."""

    def write_file(content: str | bytes, name: str = "rows.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write_file


def numbers(path: Path, names: tuple[str, ...] = (), wanted: tuple[str, ...] = ()) -> list:
    """The cells of a file as a model without gaps reads them."""
    (chunk,) = read_chunks(path, names, wanted)
    return number_table(path, chunk, names or list(chunk.columns), required=bool(names)).to_numpy().tolist()


# Reading


def test_a_table_has_rows_kinds_codes_and_classes(write: Write) -> None:
    table = read_table(write('a,kind,"b, c",on\n1,dog,2.5,True\n-3,,4e1,FALSE\n0,cat,7, false\n'), target="kind")
    assert isinstance(table, Table)
    assert table.rows.columns.tolist() == ["a", "b, c", "on"]
    assert table.rows["b, c"].tolist() == [2.5, 40, 7]
    assert table.kinds == {"a": "number", "b, c": "number", "on": "boolean"}
    assert table.targets.tolist() == [1, -1, 0]
    assert table.labeled.tolist() == [True, False, True]
    assert table.classes.tolist() == ["cat", "dog"]


def test_a_regression_has_values_and_no_classes(write: Write) -> None:
    table = read_table(write("a,y\n1,-1\n2,?\n3,2.5\n"), "y", task="regression")
    np.testing.assert_array_equal(table.targets, [-1, np.nan, 2.5])
    assert table.classes is None
    assert table.summary.target_range == (-1, 2.5, 0.75)


@pytest.mark.parametrize(
    ("name", "content", "note"),
    [
        pytest.param("rows.tsv", "a\tb\n1.5\t2\n2\t3\n", "tabs", id="tsv"),
        pytest.param("rows.csv", "a\tb\n1.5\t2\n2\t3\n", "tabs", id="tabs"),
        pytest.param("rows.csv", "a;b\n1.5;2\n2;3\n", "semicolons", id="semicolons"),
        pytest.param("rows.txt", "a|b\n1.5|2\n2|3\n", "bars", id="bars"),
        pytest.param("rows.csv", "a;b\n1,5;2\n2;3\n", "decimal commas", id="decimal comma"),
        pytest.param("rows.csv", 'a,b\n"1,5",2\n2,3\n', "decimal commas", id="quoted decimal comma"),
        pytest.param("ROWS.CSV", "a,b\r\n1.5,2\r\n2,3\r\n", "", id="line ends of Windows"),
        pytest.param("rows.csv", "\ufeffa,b\n1.5,2\n2,3\n", "", id="byte order mark"),
        pytest.param("rows.csv", "a,b\n1.5,2\n2,3\n".encode("utf-16"), "UTF-16", id="UTF-16"),
        pytest.param("rows.csv", "é;b\n1.5;2\n2;3\n".encode("cp1252"), "Windows-1252", id="Windows-1252"),
        pytest.param("rows.csv", '"a","b"\n"1.5","2"\n"2","3"\n', "", id="quotes"),
        pytest.param("rows.csv", "\na,b\n\n1.5, 2\n   \n2,3\n", "", id="blank lines and spaces"),
        pytest.param("rows.csv", "a , b\n1.5 , 2 \n2,3\n", "", id="spaces before commas"),
    ],
)
def test_separators_encodings_decimal_marks_quotes_and_blank_lines_are_understood(
    name: str, content: str | bytes, note: str, write: Write
) -> None:
    path = write(content, name)
    table = read_table(path, target="b", task="regression")
    assert table.rows.columns.tolist() in (["a"], ["é"])
    assert table.rows.iloc[:, 0].tolist() == [1.5, 2]
    assert table.targets.tolist() == [2, 3]
    assert note in table.summary.source
    assert numbers(path) == [[1.5, 2], [2, 3]]


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
    assert numbers(write(header), names) == [[1, 2]]


@pytest.mark.parametrize(
    ("content", "expected"),
    [("1,2\n3,4\n", [[1, 2], [3, 4]]), ("True,1\nFalse,2\n", [[1, 1], [0, 2]]), ("1,1\n2,3\n", [[1, 1], [2, 3]])],
)
def test_rows_to_predict_need_no_header(content: str, expected: list, write: Write) -> None:
    path = write(content)
    assert numbers(path) == expected
    with pytest.warns(UserWarning, match="no header line.* 1, b"):
        assert numbers(path, ("1", "b"), ("1", "b")) == expected


def test_a_first_line_of_numbers_is_a_header_if_it_has_the_wanted_names(write: Write) -> None:
    path = write("0,1,2\n5,6,7\n4,3,2\n")
    assert len(numbers(path)) == 3
    assert numbers(path, ("1", "0"), ("1", "0")) == [[6, 5], [3, 4]]
    assert read_table(path, "2", task="regression").rows.to_numpy().tolist() == [[5, 6], [4, 3]]


def test_columns_that_are_not_wanted_may_hold_anything(write: Write) -> None:
    path = write("name,a,b,b,kind\nbob,1,2,3,x\neve,4,,6,y\n")
    table = read_table(path, "kind", ignore=["name", "b"])
    assert (table.rows.columns.tolist(), table.rows["a"].tolist()) == (["a"], [1, 4])


def test_rows_are_read_part_by_part_with_the_cells_as_they_are(write: Write) -> None:
    path = write("a;b\n" + "".join(f"{i},50;x{i}\n" for i in range(7)))
    parts = list(read_chunks(path, rows=3))
    assert [len(part) for part in parts] == [3, 3, 1]
    assert parts[1]["a"].tolist() == ["3,50", "4,50", "5,50"]
    columns = [Column("a", "number"), Column("b", "category")]
    assert feature_table(path, parts[1], columns)["a"].tolist() == [3.5, 4.5, 5.5]


@pytest.mark.parametrize(
    ("cells", "expected"),
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
        ([" cat ", "Unknown", None], ["cat", None, None]),
    ],
)
def test_labels_are_integers_numbers_or_strings_and_none_where_unlabeled(cells: list, expected: list) -> None:
    found = labels_of(pd.Series(cells), ())
    assert found.tolist() == expected
    assert [type(label) for label in found.tolist()] == [type(label) for label in expected]


def test_names_of_classes_are_kept_even_if_they_look_like_missing_values() -> None:
    assert labels_of(pd.Series(["NA", "", "unknown"]), ["NA", "unknown"]).tolist() == ["NA", None, "unknown"]
    assert labels_of(pd.Series(["NA", "", "cat"]), np.array([0, 1])).tolist() == [None, None, "cat"]


# Targets that may be a class or a missing label


@pytest.mark.parametrize("value", ["unlabeled", "unknown", "?", "NA", "None", "n/a", "-", "Not labeled", "TBD"])
def test_a_label_that_may_mean_none_is_asked_about(value: str, write: Write) -> None:
    path = write(f"a,kind\n1,cat\n2,dog\n3,{value}\n4,{value}\n5,\n")
    with pytest.raises(UnclearLabelsError, match=r"2 rows have.*--unlabeled") as caught:
        read_table(path, "kind")
    assert caught.value.counts == {value: 2}
    assert read_table(path, "kind", unlabeled=[value]).targets.tolist() == [0, 1, -1, -1, -1]
    table = read_table(path, "kind", unlabeled=[""])
    assert table.targets.tolist()[-1] == -1
    assert value in table.classes.tolist()


def test_minus_one_beside_one_is_asked_about_and_otherwise_unlabeled(write: Write) -> None:
    with pytest.raises(UnclearLabelsError, match="-1"):
        read_table(write("a,y\n1,-1\n2,1\n3,-1\n"), "y")
    assert read_table(write("a,y\n1,-1\n2,1\n3,0\n"), "y").targets.tolist() == [-1, 1, 0]


def test_other_labels_that_mean_none_must_exist(write: Write) -> None:
    path = write("a,kind\n1,cat\n2,dog\n3,open\n")
    assert read_table(path, "kind", unlabeled=["open"]).targets.tolist() == [0, 1, -1]
    with pytest.raises(ValueError, match=r"'opn' \(--unlabeled\).*'open'"):
        read_table(path, "kind", unlabeled=["opn"])


# Errors


@pytest.mark.parametrize(
    ("content", "target", "named"),
    [
        ("a,y\n1,2\n3,x\n4,z\n", "y", "2 cells.*'x' in row 2, 'z' in row 3"),
        ("a,b\n1,2\n\n1,2,3\n1,2,3,4\n", "b", "expected 2 fields; line 4: 3 fields, line 5: 4 fields; 2 lines in all"),
        ("a,b\n1,2,3\n4,5,6\n", "b", "line 2: 3 fields, line 3: 3 fields; 2 lines"),
        ('a,b\n1,"2\n', "b", "EOF inside string"),
        ("a,b,b\n1,2,3\n", "a", "2 columns are named 'b'"),
        ("a,y,y\n1,2,3\n", "y", "2 columns are named 'y'"),
        ("", "y", "No columns"),
        ("\n  \n", "y", "No columns|no header"),
        ("a,b\n", "b", "no rows"),
        ("y\n1\n", "y", "no column to learn from, only y"),
        ("Sepal,Kind\n1,2\n", "kind", r"no column 'kind' \(--target\)\. Did you mean 'Kind'\?.*Sepal, Kind"),
        ("1,2\n3,4\n", "y", "no header line.*'y'"),
        ("a,b\n1,2\n", None, "--target.*a, b"),
        (b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR", "y", "not text"),
    ],
)
def test_an_error_names_the_file_and_all_that_is_wrong(
    content: str | bytes, target: str | None, named: str, write: Write
) -> None:
    with pytest.raises(ValueError, match=rf"rows\.csv.*({named})"):
        read_table(write(content), target, task="regression")


def test_all_columns_that_do_not_exist_are_named_at_once(write: Write) -> None:
    path = write("size,color,kind\n1,red,x\n2,blue,y\n")
    with pytest.raises(ValueError, match=r"'knd'.*'kind'.*'colour'.*'color'.*'sizes'.*'size'"):
        read_table(path, "knd", ignore=["colour"], numeric=["sizes"])
    with pytest.raises(ValueError, match="'size' is given as --ignore and --numeric"):
        read_table(path, "kind", ignore=["size"], numeric=["size"])


def test_a_missing_file_and_another_suffix_are_different_errors(write: Write, tmp_path: Path) -> None:
    for suffix in ("csv", "npz", "parquet", "xlsx"):
        with pytest.raises(FileNotFoundError, match=rf"nowhere\.{suffix}"):
            read_table(tmp_path / f"nowhere.{suffix}", "y")
    with pytest.raises(ValueError, match=r"cat\.png .*'\.png'.*\.csv, \.tsv, .*\.parquet.*folder"):
        read_table(write("", "cat.png"))


@pytest.mark.parametrize("name", ["rows.parquet", "rows.xlsx", "rows.npy", "rows.npz"])
@pytest.mark.parametrize("content", [b"", b"PAR1 broken", b"PK\x03\x04 broken", b"\x93NUMPY\x01\x00"])
def test_a_damaged_file_is_named_in_the_error(name: str, content: bytes, write: Write) -> None:
    with pytest.raises(ValueError, match=rf"{name} .*(Parquet|Excel|plain NumPy)"):
        read_table(write(content, name), "y")


def test_without_pyarrow_the_error_names_it(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pyarrow", "pyarrow.parquet", "fastparquet"):
        monkeypatch.setitem(sys.modules, name, None)
    path = write("PAR1", "rows.parquet")
    with pytest.raises(ImportError, match="pyarrow is required"):
        read_table(path, "y")
    with pytest.raises(ImportError, match=r"tikas\[parquet\]"):
        next(read_chunks(path))


def test_cells_that_a_model_cannot_take_are_counted_with_the_first_of_each_column(write: Write) -> None:
    path = write("id,size,city\nx1,1.5,Oulu\nx2,,Turku\nx3,12 cm,Espoo\n")
    (chunk,) = read_chunks(path)
    with pytest.raises(
        ValueError, match=r"'id': 3 cells \(row 1: 'x1'\); .*'size': 2 cells \(row 2: ''\).*--ignore id size city"
    ):
        number_table(path, chunk, list(chunk.columns), required=False)


# Other files


def test_a_parquet_file_keeps_its_types(tmp_path: Path) -> None:
    columns = {"a": [1, 2, 3], "on": [True, False, True], "b": pd.array([3, None, 4], dtype="Int64")}
    frame = pd.DataFrame(
        {**columns, "kind": ["cat", None, "dog"], "when": pd.to_datetime(["2020-01-01", None, "2021-05-01"])}
    )
    frame.to_parquet(tmp_path / "rows.parquet")
    table = read_table(tmp_path / "rows.parquet", "kind")
    assert table.kinds == {"a": "number", "on": "boolean", "b": "number", "when": "date"}
    assert table.targets.tolist() == [0, -1, 1]
    assert [len(part) for part in read_chunks(tmp_path / "rows.parquet", rows=2)] == [2, 1]


def test_the_first_sheet_of_an_excel_file_is_read(tmp_path: Path) -> None:
    pytest.importorskip("openpyxl", reason="needs the extra excel")
    with pd.ExcelWriter(tmp_path / "rows.xlsx") as book:
        frame = pd.DataFrame({"a": [1, 2, None], "city": ["Oulu", "NA", "Turku"], "kind": ["x", None, "y"]})
        frame.to_excel(book, sheet_name="Data", index=False)
        frame.to_excel(book, sheet_name="Other", index=False)
    table = read_table(tmp_path / "rows.xlsx", "kind", categorical=["city"])
    assert table.targets.tolist() == [0, -1, 1]
    assert [(each.name, each.gaps) for each in table.summary.columns] == [("a", 1), ("city", 1)]
    assert "'Data'" in table.summary.source
    (chunk,) = read_chunks(tmp_path / "rows.xlsx")
    assert chunk["city"].tolist()[0] == "Oulu"


@pytest.mark.parametrize(
    ("y", "expected"),
    [
        (np.array([1, 0, 2]), [1, 0, 2]),
        (np.array([1, -1, 2]), [0, -1, 1]),
        (np.array(["cat", "", "dog"]), [0, -1, 1]),
        (np.array([b"cat", b"cat", b"dog"]), [0, 0, 1]),
    ],
)
def test_an_array_file_holds_rows_and_labels(y: np.ndarray, expected: list, tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", x=np.eye(3, dtype=bool), y=y)
    data = read_table(tmp_path / "rows.npz")
    assert isinstance(data, Dataset)
    assert data.rows.dtype == np.float32
    assert (data.rows.tolist(), data.targets.tolist()) == (np.eye(3).tolist(), expected)


def test_the_target_names_the_array_of_labels(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", x=np.eye(2), kind=[3, 4])
    assert read_arrays(tmp_path / "rows.npz", "kind")[1].tolist() == ["3", "4"]
    assert read_arrays(tmp_path / "rows.npz")[1] is None
    with pytest.raises(ValueError, match="no labels"):
        read_table(tmp_path / "rows.npz")


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
        read_table(tmp_path / "rows.npz", target=target)


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
    texts: list[str], expected: list[float], write: Write, tmp_path: Path
) -> None:
    np.savez(tmp_path / "rows.npz", x=np.eye(3), y=np.array(texts))
    pd.DataFrame({"a": [0, 5, 2], "y": texts}).to_parquet(tmp_path / "rows.parquet")
    rows = "".join(f"{i * i},{text}\n" for i, text in enumerate(texts))
    for path in (write("a,y\n" + rows), tmp_path / "rows.parquet", tmp_path / "rows.npz"):
        np.testing.assert_array_equal(read_table(path, "y", task="regression").targets, expected)
    np.testing.assert_array_equal(values_of(Path("rows.csv"), pd.Series(texts)), expected)


# What is told


@pytest.mark.parametrize("task", ["classification", "regression"])
@pytest.mark.parametrize("first", [0, -40, 2**24 - 60, 2**24 + 1, 202_300_001])
def test_row_numbers_are_left_out_unless_they_are_given_as_numbers(first: int, task: Task, write: Write) -> None:
    """Beyond 2**24, float32 has no longer all integers."""
    row_numbers = first + np.random.default_rng(0).permutation(300)
    lines = "".join(f"{number},{number % 7 / 10},{i % 2}\n" for i, number in enumerate(row_numbers))
    path = write("id number,a,y\n" + lines)
    table = read_table(path, "y", task=task)
    assert table.rows.columns.tolist() == ["a"]
    assert table.summary.columns[0].kind == "id"
    assert read_table(path, "y", task=task, numeric=["id number"]).rows.columns.tolist() == ["id number", "a"]


@pytest.mark.parametrize(
    ("name", "row_numbers", "kind"),
    [
        ("amount", np.arange(300) * 3 + 200_000_000, "id"),
        ("amount", np.random.default_rng(0).permutation(300) * 3, "number"),
        ("customer_id", np.random.default_rng(0).permutation(300) * 3, "id"),
        ("orderNo", np.random.default_rng(0).permutation(300) * 3, "id"),
        ("paid", np.random.default_rng(0).permutation(300) * 3, "number"),
        ("id", np.full(300, 7), "constant"),
        ("id", np.arange(300) // 2, "number"),
        ("id", np.arange(300) / 2, "number"),
        ("id", np.arange(9), "number"),
        ("", np.random.default_rng(0).permutation(300) * 3, "id"),
        ("Unnamed: 0", np.random.default_rng(0).permutation(300) * 3, "id"),
    ],
)
def test_numbers_identify_the_rows_if_all_are_different_and_ordered_or_named_so(
    name: str, row_numbers: np.ndarray, kind: str, write: Write
) -> None:
    lines = "".join(f"{number},{i % 5},{i % 2}\n" for i, number in enumerate(row_numbers))
    assert read_table(write(f"{name},b,y\n" + lines), "y").summary.columns[0].kind == kind


def messy() -> tuple[pd.DataFrame, list]:
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "size": rng.normal(size=60).round(3),
            "city": rng.choice(["Oulu", "oulu", "Turku"], 60),
            "temperature": np.where(np.arange(60) % 20 == 0, -999, rng.integers(0, 40, 60)),
            "weight": [str(weight) for weight in rng.integers(40, 99, 59)] + ["heavy"],
            "score": np.where(np.arange(60) % 2, 1, 0),
        }
    )
    labels = [["no", "yes"][i % 2] if i < 40 else None for i in range(60)]
    table["result"] = [label and 3 for label in labels]
    for row in (10, 50):
        table.iloc[row] = table.iloc[row + 2]
    return table, labels


def test_the_summary_tells_of_every_problem_with_its_count() -> None:
    table, labels = messy()
    summary = describe(table, labels, "sick")
    assert (summary.rows, summary.labeled, summary.unlabeled) == (60, 40, 20)
    assert summary.labels == {"no": 20, "yes": 20}
    assert summary.duplicates == 2
    problems = {column.name: " ".join(column.problems) for column in summary.columns}
    assert "'Oulu' and 'oulu'" in problems["city"]
    assert "-999 in 3 rows" in problems["temperature"]
    assert "1 cell" in problems["weight"]
    assert "'heavy'" in problems["weight"]
    assert "equals the target" in problems["score"]
    assert "exactly where there is a label" in problems["result"]
    assert problems["size"] == ""
    text = str(summary)
    assert max(map(len, text.splitlines())) <= 100
    assert all(fact in text for fact in ("60 rows", "sick", "no 20, yes 20", "unlabeled: 20", "'heavy'", "notice: "))


def test_contradictions_single_labels_and_classes_that_differ_in_case_are_told() -> None:
    table = pd.DataFrame({"a": [1, 1, 2, 2, 3, 4.5], "b": [0, 0, 1, 1, 0, 1]})
    summary = describe(table, ["x", "y", "x", "x", "X", "z"])
    assert (summary.duplicates, summary.contradictions) == (2, 2)
    assert any("'X' and 'x'" in problem for problem in summary.problems)
    assert any("3 classes" in problem for problem in summary.problems)


def test_a_column_that_determines_the_target_is_told() -> None:
    table = pd.DataFrame({"code": [0, 1, 2] * 10, "other": np.arange(30) % 4, "near": np.linspace(0, 1, 30)})
    found = describe(table, ["a", "b", "b"] * 10)
    assert [column.name for column in found.columns if "determines" in " ".join(column.problems)] == ["code"]
    found = describe(table, 3 * table["near"].to_numpy() + 2)
    assert [column.name for column in found.columns if "up to a factor" in " ".join(column.problems)] == ["near"]


def test_short_lines_are_told_and_long_ones_are_an_error(write: Write) -> None:
    table = read_table(write("a,b,y\n1,2,x\n2\n3,5,z\n5,6,x\n"), "y")
    assert any("1 line " in problem for problem in table.summary.problems)
    assert table.summary.unlabeled == 1


def test_a_summary_is_json(write: Write) -> None:
    table = read_table(write("a,b,y\n1,red,x\n2,blue,z\n3,red,x\n"), "y", ignore=["b"])
    values = table.summary.to_dict()
    assert values["columns"][1] == {
        "name": "b",
        "kind": "ignored",
        "gaps": 0,
        "distinct": 0,
        "use": "as you asked",
        "problems": (),
    }
    assert TableSummary(**{**values, "columns": table.summary.columns}) == table.summary
