"""Columns as numbers: kinds that are found, the encoding against scikit-learn and by hand, JSON, and damaged values."""

import datetime as dt
import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from tikas.data.columns import (
    Column,
    ColumnEncoder,
    as_table,
    decimal_mark,
    needs_encoding,
    parse_numbers,
    profile_columns,
)

RNG = np.random.default_rng(0)
N = 300
MIXED = pd.DataFrame(
    {
        "size": np.where(RNG.random(N) < 0.1, np.nan, RNG.normal(50, 9, N)),
        "city": RNG.choice(["Oulu", "Turku", "Espoo", "Kemi", None], N, p=[0.5, 0.2, 0.19, 0.01, 0.1]),
        "smoker": RNG.random(N) < 0.3,
        "born": [f"{day:02}.{month:02}.1990" for day, month in RNG.integers(1, [29, 13], (N, 2))],
        "product": [f"p{number}" for number in RNG.integers(0, 120, N)],
        "note": [f"this is a long text about patient {number}" for number in range(N)],
        "code": [f"P{number:05}" for number in range(N)],
        "unit": "cm",
        "nothing": None,
    }
)
KINDS = ["number", "category", "boolean", "date", "category", "text", "id", "constant", "empty"]


def kind_of(cells: Any, name: str = "a", given: str | None = None) -> str:
    kinds = {} if given is None else {name: given}
    return profile_columns(pd.DataFrame({name: cells}), kinds)[0].column.kind


@pytest.fixture(scope="module")
def encoder() -> ColumnEncoder:
    return ColumnEncoder.fit(MIXED)


def test_kinds_are_found(encoder: ColumnEncoder) -> None:
    assert [column.kind for column in encoder.columns] == KINDS


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (["1.5", "2", "x"] * 2 + [str(i) for i in range(60)], "number"),
        (["1", "2", "3+", "3+"], "category"),
        (["01234", "99999", "04567"] * 5, "category"),
        (["12 %", "3 %", "55 %"] * 5, "number"),
        (["€ 1,200.50", "€ 3"] * 5, "number"),
        (["true", "FALSE", "true"] * 3, "boolean"),
        (["yes", None, "yes", None], "category"),
        ([True, None, False, True], "boolean"),
        (["2020-01-01", "2021-05-01T12:00", None] * 3, "date"),
        (["3/14/2020", "12/25/2021", "1/2/2020"] * 3, "date"),
        (["1 Jan 2020", "14 Mar 2021"] * 3, "date"),
        ([dt.date(2020, 1, 1), None, dt.date(2021, 3, 4)] * 3, "date"),
        (pd.to_datetime(["2020-01-01", "2020-01-01"]), "constant"),
        (pd.Series(["a", "b", "a"], dtype="category"), "category"),
        (pd.Series([1, None, 2], dtype="Int64"), "number"),
        ([np.inf, 1.0, 2.0], "number"),
        ([np.nan, np.nan], "empty"),
        (["?", "", "NA", None], "empty"),
        (["a", "b", "c", "d"], "id"),
        (["red", "blue"] * 9, "category"),
        ([3, 3, 3], "constant"),
    ],
)
def test_kind_of_a_column(cells: Any, kind: str) -> None:
    assert kind_of(cells) == kind


@pytest.mark.parametrize(
    ("cells", "given", "kind"),
    [
        ([1, 2, 3] * 5, "category", "category"),
        (list(range(30)), "number", "number"),
        (["a", "b", "c"], "category", "category"),
        (["a", "b", "c"], "ignored", "ignored"),
        ([True, False, True], "boolean", "boolean"),
        (["Yes", "no", "yes"], "boolean", "boolean"),
        (["1.1.2020", "x", "2.2.2020"], "date", "date"),
        (["x", "y", "3", "4"], "number", "number"),
    ],
)
def test_a_given_kind_is_kept(cells: Any, given: str, kind: str) -> None:
    assert kind_of(cells, given=given) == kind


def test_a_kind_or_name_that_does_not_exist_is_named() -> None:
    with pytest.raises(ValueError, match=r"'siez'.*'size'"):
        profile_columns(MIXED, {"siez": "number"})
    with pytest.raises(ValueError, match=r"number, boolean, category, date, ignored.*'size'"):
        profile_columns(MIXED, {"size": "float"})


@pytest.mark.parametrize(
    ("texts", "decimal", "expected"),
    [
        (["1", " 2.5 ".strip(), "-3e2", "+4", ".5"], ".", [1, 2.5, -300, 4, 0.5]),
        (["1,5", "2", "-0,25", "1.234,5", "1.234"], ",", [1.5, 2, -0.25, 1234.5, 1234]),
        (["1,234", "12,345,678.5", "1.5"], ".", [1234, 12345678.5, 1.5]),
        (["1'234,5", "1 234,5"], ",", [1234.5, 1234.5]),
        (["12%", "$3.50", "4 €"], ".", [12, 3.5, 4]),
        (["x", "1_000", "0x1f", "nan", "inf", "1e400", "", "1,2,3", "12.5.2020"], ".", [np.nan] * 9),
    ],
)
def test_numbers_in_text(texts: list[str], decimal: str, expected: list[float]) -> None:
    cells = pd.Series(texts, dtype=object)
    assert_allclose(parse_numbers(cells, decimal), expected)
    assert decimal_mark(cells) == decimal


def test_dates_are_read_in_the_format_that_fits_and_a_doubt_is_told() -> None:
    table = pd.DataFrame({"us": ["01/31/2020", "02/03/2020"] * 3, "unclear": ["01/02/2020", "02/03/2020"] * 3})
    us, unclear = profile_columns(table)
    assert (us.column.date_format, us.problems) == ("%m/%d/%Y", ())
    assert unclear.column.date_format == "%d/%m/%Y"
    assert "%m/%d/%Y" in " ".join(unclear.problems)


def test_the_encoding_is_that_of_scikit_learn(encoder: ColumnEncoder) -> None:
    encoded = pd.DataFrame(encoder(MIXED), columns=encoder.names)
    size = StandardScaler().fit_transform(SimpleImputer(strategy="median").fit_transform(MIXED[["size"]]))
    assert_allclose(encoded["size"], size[:, 0], atol=1e-6)
    assert_array_equal(encoded["size: missing"], MIXED["size"].isna())
    city = OneHotEncoder(min_frequency=5, sparse_output=False).fit_transform(MIXED[["city"]].fillna("").astype(object))
    names = ["city=missing", "city=Espoo", "city=Oulu", "city=Turku", "city=rare"]
    assert_array_equal(encoded[names], city)
    assert_array_equal(encoded["smoker=true"], MIXED["smoker"])
    days = (pd.to_datetime(MIXED["born"], format="%d.%m.%Y") - pd.Timestamp("1990-01-01")).dt.days
    assert_allclose(encoded["born: time"], (days - days.mean()) / days.std(ddof=0), atol=1e-5)
    assert "born: hour sin" not in encoded
    counts = np.log(MIXED["product"].map(MIXED["product"].value_counts()))
    assert_allclose(encoded["product: frequency"], (counts - counts.mean()) / counts.std(ddof=0), atol=1e-5)
    assert sum(name.startswith("product=") for name in encoded) <= 40
    assert encoded.shape[1] == sum(len(column.outputs) for column in encoder.columns if column.used)
    assert encoder(MIXED).dtype == np.float32


def test_unseen_categories_gaps_and_no_rows_are_encoded(encoder: ColumnEncoder) -> None:
    new = MIXED[:2].assign(size=None, city=["Nowhere", "Oulu"], smoker=[None, "TRUE"], born=[None, "05.05.1990"])
    encoded = pd.DataFrame(encoder(new), columns=encoder.names)
    assert encoded["city=rare"].tolist() == [1, 0]
    assert encoded["size: missing"].tolist() == [1, 1]
    assert encoded[["smoker=false", "smoker=true"]].to_numpy().tolist() == [[0, 0], [0, 1]]
    assert np.isfinite(encoded.to_numpy()).all()
    assert encoder(new[:0]).shape == (0, len(encoder.names))


def test_cells_that_cannot_be_read_count_as_gaps_with_a_warning(encoder: ColumnEncoder) -> None:
    new = MIXED[:3].assign(size=["12", "big", "huge"], born=["01.01.1990", "soon", "02.01.1990"])
    with pytest.warns(UserWarning, match=r"size: 2 cells.*'big', 'huge'.*born: 1 cell.*'soon'"):
        encoded = pd.DataFrame(encoder(new), columns=encoder.names)
    assert encoded["size: missing"].tolist() == [0, 1, 1]


def test_text_typed_and_object_columns_are_encoded_alike(encoder: ColumnEncoder) -> None:
    expected = encoder(MIXED)
    assert_array_equal(encoder(MIXED.astype(object)), expected)
    text = MIXED.astype(object).where(MIXED.notna(), "").map(str)
    assert_array_equal(encoder(text), expected)
    typed = MIXED.assign(born=pd.to_datetime(MIXED["born"], format="%d.%m.%Y"), city=MIXED["city"].astype("category"))
    assert_array_equal(encoder(typed), expected)


def test_json_restores_the_same_encoding(encoder: ColumnEncoder) -> None:
    restored = ColumnEncoder.from_json(json.loads(json.dumps(encoder.to_json())))
    assert restored.columns == encoder.columns
    assert_array_equal(restored(MIXED), encoder(MIXED))


CELLS = st.one_of(
    st.none(), st.floats(allow_subnormal=False), st.integers(-(10**12), 10**12), st.booleans(), st.text(max_size=3)
)


@given(st.lists(st.lists(CELLS, min_size=4, max_size=4), min_size=2, max_size=30))
@settings(max_examples=150)
@pytest.mark.filterwarnings("ignore:Cells that count as gaps")
def test_any_cells_are_encoded_as_finite_numbers_and_restored(rows: list[list[Any]]) -> None:
    table = pd.DataFrame(rows, columns=list("abcd"), dtype=object)
    if not any(profile.column.used for profile in profile_columns(table)):
        with pytest.raises(ValueError, match="No column is left"):
            ColumnEncoder.fit(table)
        return
    encoder = ColumnEncoder.fit(table)
    encoded = encoder(table)
    assert encoded.shape == (len(table), len(encoder.names))
    assert np.isfinite(encoded).all()
    restored = ColumnEncoder.from_json(json.loads(json.dumps(encoder.to_json())))
    assert_array_equal(restored(table), encoded)
    assert_array_equal(restored(table[:1]), encoded[:1])


@pytest.mark.parametrize(
    ("position", "change"),
    [
        (0, {"kind": "code"}),
        (0, {"kind": ["number"]}),
        (0, {"medians": [float("nan")]}),
        (0, {"medians": [1.0, 2.0]}),
        (0, {"deviations": [0.0]}),
        (0, {"parts": []}),
        (0, {"parts": ["time"]}),
        (0, {"gaps": 1}),
        (0, {"decimal": "x"}),
        (0, {"name": None}),
        (0, {"more": 1}),
        (1, {"categories": ["a", "a", "b", "c", "d"]}),
        (1, {"categories": []}),
        (1, {"categories": [f"c{i}" for i in range(50)], "rare": []}),
        (1, {"rare": [9]}),
        (1, {"rare": [0, 0]}),
        (1, {"rare": "0"}),
        (1, {"counts": [1]}),
        (3, {"date_format": "%d"}),
        (3, {"parts": ["time", "time"]}),
        (4, {"counts": [0] * 120}),
    ],
)
def test_values_that_do_not_fit_raise_an_error(position: int, change: dict, encoder: ColumnEncoder) -> None:
    values = encoder.to_json()
    values[position] |= change
    with pytest.raises((ValueError, TypeError)):
        ColumnEncoder.from_json(values)


def test_no_column_that_can_be_used_is_an_error_that_names_them() -> None:
    with pytest.raises(ValueError, match=r"unit \(the same in all rows\), code \(identifies the rows\)"):
        ColumnEncoder.fit(MIXED[["unit", "code"]])
    assert ColumnEncoder.fit(MIXED[["unit", "code"]], {"code": "category"}).columns[1] != Column("code", "category")


def test_cells_that_are_no_values_raise_type_error_naming_the_column() -> None:
    for cell in ([1, 2], {"a": 1}, object()):
        with pytest.raises(TypeError, match=f"'b' contains a {type(cell).__name__}"):
            ColumnEncoder.fit(pd.DataFrame({"a": [1.0, 2.0], "b": pd.Series([cell, None], dtype=object)}))


@pytest.mark.parametrize(
    ("X", "needed"),
    [
        (np.zeros((3, 2)), False),
        (np.array([[1.0, np.nan]]), True),
        (np.array([["1", "2.5"]]), False),
        (np.array([["a", "1"]]), True),
        (np.array([[1, None]], dtype=object), True),
        (np.array([[1, 2.5]], dtype=object), False),
        ([[1, "red"], [2, "blue"]], True),
        ([[1, 2], [3, 4]], False),
        (np.full((2, 3, 3), np.nan), False),
        (np.zeros(3), False),
        (pd.DataFrame({"a": [1, 2], "b": [True, False]}), False),
        (pd.DataFrame({"a": [1, None]}), True),
        (pd.DataFrame({"a": ["x", "y"]}), True),
        (pd.DataFrame({"a": pd.Series([1, 2], dtype=object)}), False),
        (pd.DataFrame({"a": pd.to_datetime(["2020-01-01"])}), True),
        (pd.DataFrame({"a": pd.Series([1, None], dtype="Int64")}), True),
    ],
)
def test_tables_with_gaps_or_other_columns_than_numbers_need_an_encoding(X: Any, needed: bool) -> None:
    assert needs_encoding(X) is needed


def test_frames_of_other_libraries_are_encoded_alike() -> None:
    polars = pytest.importorskip("polars")
    arrow = pytest.importorskip("pyarrow")
    columns = {
        "a": [1.5, None, 3.0, 4.0],
        "city": ["Oulu", "Turku", None, "Oulu"],
        "on": [True, None, False, True],
        "day": [dt.date(2020, 1, 1), None, dt.date(2021, 7, 1), dt.date(2020, 2, 2)],
    }
    expected = ColumnEncoder.fit(pd.DataFrame(columns))
    for frame in (polars.DataFrame(columns), arrow.table(columns)):
        assert needs_encoding(frame)
        table = as_table(frame)
        encoder = ColumnEncoder.fit(table)
        assert [column.kind for column in encoder.columns] == ["number", "category", "boolean", "date"]
        assert_allclose(encoder(table), expected(pd.DataFrame(columns)), atol=1e-6)
