"""What a fit leaves for its report: hardware, versions, numbers of rows, and errors with honest intervals."""

import platform
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import binom, norm
from sklearn.datasets import load_iris
from sklearn.preprocessing import scale

from tikas import LadderClassifier, LadderRegressor
from tikas.data.splits import split
from tikas.training import summary as module
from tikas.training.summary import MeasuredError, TrainingSummary, hardware, versions


def test_versions_name_what_a_figure_depends_on() -> None:
    assert versions()["torch"] == torch.__version__
    assert set(versions()) == {"tikas", "torch", "scikit-learn", "python"}


def test_hardware_names_the_threads_and_whether_other_programs_share_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIKAS_SHARED", raising=False)
    alone = hardware("cpu")
    assert alone.endswith(f", {torch.get_num_threads()} threads")
    monkeypatch.setenv("TIKAS_SHARED", "1")
    assert hardware("cpu") == f"{alone}, shared"


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        ("cpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD EPYC", "AMD EPYC (family 26, model 2)"),
        ("cpu family\t: 6\nmodel\t\t: 85\nmodel name\t: Xeon @ 2.80GHz", "Xeon @ 2.80GHz (family 6, model 85)"),
        ("cpu family\t: 25\nmodel\t\t: 1\nmodel name\t: AMD EPYC 7B13", "AMD EPYC 7B13"),
        ("processor\t: 0", platform.machine()),
    ],
    ids=["cut", "clock rate", "with number", "without name"],
)
def test_a_processor_whose_name_lacks_its_number_is_named_with_its_family(
    info: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TIKAS_SHARED", raising=False)
    monkeypatch.setattr(module, "CPU_INFO", tmp_path / "cpuinfo")
    (tmp_path / "cpuinfo").write_text(f"{info}\n\n{info}\n")  # of two cores
    assert hardware("cpu") == f"{expected}, {torch.get_num_threads()} threads"


def test_a_system_without_processor_information_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CPU_INFO", tmp_path / "absent")
    assert (platform.processor() or platform.machine()) in hardware("cpu")


def test_wilson_interval_holds_the_true_error_as_often_as_it_says() -> None:
    """Over all possible counts, weighted by their probability; Wald's interval has 0.64 in the first case."""
    for error, rows in ((0.02, 50), (0.1, 30), (0.5, 20), (0.04, 500)):
        covered = 0.0
        for wrong in range(rows + 1):
            measured = MeasuredError.of_classes("test rows", wrong, rows)
            assert measured.low <= measured.value <= measured.high
            if measured.low <= 100 * error <= measured.high:
                covered += binom.pmf(wrong, rows, error)
        assert covered > 0.91, (error, rows)


def test_an_error_without_wrong_rows_is_not_certain() -> None:
    measured = MeasuredError.of_classes("test rows", 0, 20)
    assert (measured.value, measured.low) == (0, 0)
    assert measured.high == pytest.approx(100 * norm.ppf(0.975) ** 2 / (20 + norm.ppf(0.975) ** 2))


def test_interval_of_an_rmse_holds_the_true_one_about_as_often_as_it_says() -> None:
    random = np.random.default_rng(0)
    intervals = [MeasuredError.of_values("test rows", random.normal(0, 3, 100)) for _ in range(200)]
    assert 0.88 < np.mean([each.low < 3 < each.high for each in intervals]) < 0.99
    assert intervals[0] == MeasuredError.of_values("test rows", np.random.default_rng(0).normal(0, 3, 100))


def test_a_fit_records_rows_labels_and_held_out_rows() -> None:
    X, y = scale(load_iris().data), load_iris().target
    parts = split(y, 12, validation=20, seed=0)
    fitted = LadderClassifier((4,), epochs=1, device="cpu").fit(X, y, splits=[parts])
    found = fitted.training_
    assert (found.rows, found.labeled, found.validation, found.class_counts) == (130, 12, 20, (4, 4, 4))
    assert (found.hardware, found.versions) == (hardware("cpu"), versions())
    assert 0 < found.seconds < 60
    values = LadderRegressor((4,), epochs=1).fit(X, np.where(y == 2, np.nan, y)).training_
    assert (values.rows, values.labeled, values.class_counts) == (150, 100, ())


@pytest.mark.parametrize(
    "change",
    [
        {"rows": "many"},
        {"rows": -1},
        {"seconds": float("nan")},
        {"hardware": 5},
        {"class_counts": [0.5]},
        {"versions": {"torch": 2}},
        {"error": {"value": 1}},
        {"read": []},
        {"more": 1},
    ],
)
def test_a_forged_summary_is_refused(change: dict[str, object]) -> None:
    fields = {**vars(TrainingSummary()), "class_counts": []}
    assert TrainingSummary.from_json(fields) == TrainingSummary()
    with pytest.raises((ValueError, TypeError, AttributeError)):
        TrainingSummary.from_json({**fields, **change})
