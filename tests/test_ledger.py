"""The ledger: odd records are passed over and named, and files merge by concatenation whatever a crash cut off."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest

from tikas.cli import main
from tikas.experiments.ledger import Ledger
from tikas.experiments.readings import reading
from tikas.experiments.records import DamagedRecordWarning, append, read
from tikas.experiments.rivals import RIVALS
from tikas.experiments.tasks import CELLS, key_of

CELL = next(cell for cell in CELLS if cell.name == "table1/baseline/1000")
RECIPE = json.loads(CELL.recipe.to_json())
MISSING = object()


def record(seed: Any = 0, **other: Any) -> dict[str, Any]:
    """Of a member of the cell, as `tikas reproduce` writes it; without what is said to be missing."""
    whole = {
        "cell": CELL.name,
        "recipe": RECIPE,
        "name": CELL.recipe.name,
        "seed": seed,
        "test_error": 5.5,
        "test_error_labeled_statistics": 5.6,
        "costs": {"total": 0.1, "supervised": 0.1, "denoising": [0.0]},
        "members": 10,
        "seconds": 40.0,
        "seconds_per_epoch": 0.2,
        "hardware": "a GPU",
        "versions": {"tikas": "0.1.0"},
        "revision": "0878fef966c6",
        **other,
    }
    return {name: value for name, value in whole.items() if value is not MISSING}


def rival_record(**other: Any) -> dict[str, Any]:
    rival = RIVALS[0]
    what = {"method": rival.method, "settings": rival.settings, "data": rival.data, "labels": rival.labels}
    return record(cell=rival.name, recipe=MISSING, rival={**what, **other}, seconds_per_epoch=MISSING)


ODD = [
    (record(1, test_error=float("nan")), "test_error is nan; expected a number from 0 to 100"),
    (record(1, test_error=float("inf")), "test_error is inf"),
    (record(1, test_error=True), "test_error is True"),
    (record(1, test_error=-7), "test_error is -7"),
    (record(1, test_error=100.1), "test_error is 100.1"),
    (record(1, test_error="5.5"), "test_error is '5.5'"),
    (record(1, test_error=None), "test_error is None"),
    (record(1, test_error=MISSING), "test_error is missing"),
    (record(1, test_error_labeled_statistics=float("nan")), "test_error_labeled_statistics is nan"),
    (record(1, hardware=MISSING), "hardware is missing; expected a text"),
    (record(1, hardware=None), "hardware is None"),
    (record(1, seconds=MISSING), "seconds is missing"),
    (record(1, seconds=float("inf")), "seconds is inf; expected a finite number"),
    (record(1, seconds=10**400), "seconds is 1000"),
    (record(1, seconds_per_epoch=None), "seconds_per_epoch is None"),
    (record(1, members=0), "members is 0; expected a whole number of at least 1"),
    (record(1, members=2.5), "members is 2.5"),
    (record(1, attached=[1]), r"attached is \[1\]; expected the number of a rung, or null"),
    (record(1, attached=True), "attached is True"),
    (record(seed=True), "seed is True"),
    (record(seed=1.0), "seed is 1.0; expected a whole number"),
    (record(seed=-5), "seed is -5"),
    (record(seed=None), "seed is None"),
    (record(1, recipe=MISSING), "recipe is missing"),
    (record(1, recipe=5), "recipe is 5; expected fields by their names"),
    (record(1, recipe={**RECIPE, "newfield": 3}), "does not know: newfield. Another version of tikas may have"),
    (record(1, recipe={**RECIPE, "epochs": 0}), "epochs=0: expected at least 1"),
    (record(1, recipe={**RECIPE, "network": [[1]], "costs": "x"}), "network="),
    (record(1, recipe={**RECIPE, "data": ["mnist"]}), r"data is \['mnist'\]"),
    (record(1, recipe={**RECIPE, "learning_rate": 10**400}), "recipe: int too large to convert to float. "),
    (record(1, rival=7), "rival is 7"),
    (rival_record(labels=[100]), r"labels is \[100\]"),
    (rival_record(settings=None), "settings is None"),
]


@pytest.mark.parametrize(("odd", "told"), ODD, ids=[told for _, told in ODD])
def test_an_odd_record_is_passed_over_with_its_file_and_line_and_its_member_is_missing(
    tmp_path: Path, odd: dict[str, Any], told: str
) -> None:
    for each in (record(0), odd, record(2)):
        append(tmp_path / "x.jsonl", each)
    with pytest.warns(DamagedRecordWarning, match=f"x.jsonl, line 2: .*{told}.* passed over") as caught:
        ledger = Ledger.read(tmp_path)
    assert len(caught) == 1
    assert ledger.missing(key_of(CELL), range(3)) == [1]
    assert not ledger.members(key_of(RIVALS[0]))


def test_a_page_with_an_odd_record_is_rendered_and_the_record_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for odd, _ in ODD:
        append(tmp_path / "x.jsonl", odd)
    append(tmp_path / "x.jsonl", record(0))
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert main(["reproduce", "--list", "--render", "--results", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    for line in range(1, 1 + len(ODD)):
        assert f"x.jsonl, line {line}: " in captured.err
    (listed,) = [line for line in captured.out.splitlines() if line.startswith(CELL.name)]
    assert " ".join(listed.split()[1:6]) == "1 of 10 measured 5.50"
    assert "| 5.500 |" in (tmp_path / "README.md").read_text()


def test_a_whole_record_of_a_member_counts_after_an_odd_one() -> None:
    with pytest.warns(DamagedRecordWarning, match="^A record: test_error is -7"):
        ledger = Ledger.of([record(test_error=-7), record(test_error=4.0)])
    assert ledger.members(key_of(CELL))[0]["test_error"] == 4.0


@pytest.mark.parametrize("name", ["cell", "name", "test_error_labeled_statistics", "members", "seconds_per_epoch"])
def test_a_record_from_before_there_was_a_field_counts(name: str) -> None:
    found = reading(CELL, Ledger.of([record(**{name: MISSING})]))
    assert found is not None
    assert found.seconds == (40.0 if name == "members" else 4.0)
    expected = {"members": 30.0, "seconds_per_epoch": None}
    assert found.updates_seconds == pytest.approx(expected.get(name, 3.0))


def test_errors_with_statistics_of_the_labels_are_told_of_all_members_or_of_none() -> None:
    found = reading(CELL, Ledger.of([record(0), record(1, test_error_labeled_statistics=MISSING)]))
    assert found is not None
    assert (found.summary.runs, found.labeled) == (2, None)


@pytest.mark.parametrize("error", [0, 100])
def test_the_least_and_the_largest_error_count(error: int) -> None:
    assert list(Ledger.of([record(test_error=error)]).members(key_of(CELL))) == [0]


def test_members_come_in_the_order_of_their_seeds() -> None:
    assert list(Ledger.of([record(3), record(1), record(2)]).members(key_of(CELL))) == [1, 2, 3]


def test_settings_of_a_rival_are_the_same_in_any_order() -> None:
    rival = RIVALS[0]
    ledger = Ledger.of([rival_record(settings=dict(reversed(rival.settings.items())))])
    assert list(ledger.members(key_of(rival))) == [0]


def test_the_epochs_of_a_recipe_that_says_only_what_differs_are_the_recipes() -> None:
    shorter = {name: RECIPE[name] for name in ("labels", "costs", "noise")}
    found = reading(CELL, Ledger.of([record(recipe=shorter)]))
    assert found is not None
    assert found.updates_seconds == pytest.approx(3.0)


def test_all_committed_records_are_read_without_a_warning() -> None:
    assert Ledger.read(Path(__file__).parents[1] / "results").members(key_of(CELL))


def written(path: Path, *records: dict[str, Any]) -> bytes:
    for each in records:
        append(path, each)
    return path.read_bytes()


def test_a_file_behind_one_that_was_cut_anywhere_loses_nothing(tmp_path: Path) -> None:
    second, merged = written(tmp_path / "b", record(2), record(3)), tmp_path / "merged.jsonl"
    line = json.dumps(record(1)).encode()
    for length in range(1, len(line)):
        merged.write_bytes(line[:length] + second)
        with pytest.warns(DamagedRecordWarning, match=r"line 1 is no whole record .*, up to a whole one at its end\.$"):
            assert sorted(Ledger.read(merged).members(key_of(CELL))) == [2, 3], line[:length]


def test_no_part_of_a_cut_record_is_taken_for_one(tmp_path: Path) -> None:
    path, line = tmp_path / "a.jsonl", json.dumps(record(1)).encode()
    for length in range(1, len(line)):
        path.write_bytes(line[:length])
        with pytest.warns(DamagedRecordWarning, match=r"line 1 is no whole record .* passed over\.$"):
            assert read(path) == []


def test_a_file_behind_one_that_lost_only_its_last_newline_is_read_whole(tmp_path: Path) -> None:
    merged = tmp_path / "merged.jsonl"
    merged.write_bytes(written(tmp_path / "a", record(0))[:-1] + written(tmp_path / "b", record(1)))
    assert read(merged) == [record(0), record(1)]


def test_a_file_behind_two_that_were_cut_loses_nothing(tmp_path: Path) -> None:
    merged, line = tmp_path / "merged.jsonl", json.dumps(record(0)).encode()
    merged.write_bytes(line[:100] + line[:300] + line + b"\n")
    with pytest.warns(DamagedRecordWarning, match="line 1"):
        assert read(merged) == [record(0)]


def test_an_odd_record_behind_a_cut_one_is_told_by_the_same_line(tmp_path: Path) -> None:
    merged = tmp_path / "merged.jsonl"
    merged.write_bytes(b'{"cell": "tab' + written(tmp_path / "b", record(test_error=-7)))
    with (
        pytest.warns(DamagedRecordWarning, match="line 1 is no whole record"),
        pytest.warns(DamagedRecordWarning, match="line 1: test_error is -7"),
    ):
        assert not Ledger.read(merged).members(key_of(CELL))


def test_hardware_of_a_cell_that_was_measured_on_several_is_told_in_full() -> None:
    several = [record(seed) for seed in range(9)] + [record(9, hardware="a CPU", seconds=9e9)]
    found = reading(CELL, Ledger.of(several))
    assert found is not None
    assert (found.hardware, found.seconds) == ("a GPU", 4.0)
    assert found.all_hardware == "a GPU (9 of 10); a CPU (1 of 10)"
    alone = reading(CELL, Ledger.of(several[:9]))
    assert alone is not None
    assert alone.all_hardware == "a GPU"
