"""The benchmark scripts: their figures are right, they run in their quickest form, and their tables are up to date."""

import doctest
import json
import re
import subprocess
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tikas import Dense, Ladder
from tikas.paper.experiments import EXPERIMENTS, Experiment
from tikas.paper.records import Records, read_records
from tikas.paper.render import fill
from tikas.training.recipe import SMALL, Recipe

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks"))

import bench  # noqa: E402
import compare_revisions  # noqa: E402
import digits  # noqa: E402
import engine  # noqa: E402
import ensemble_accuracy  # noqa: E402
import evaluation  # noqa: E402
import mnist  # noqa: E402
import other_methods  # noqa: E402
import processes  # noqa: E402
import profile_update  # noqa: E402
import render_docs  # noqa: E402
import render_studies  # noqa: E402
import scaling  # noqa: E402
import streaming  # noqa: E402
import studies  # noqa: E402
import traffic  # noqa: E402
import whitening  # noqa: E402
from common import Side, Timing, interleave, load_flat, start_engine  # noqa: E402
from eager import EagerLadder, EagerTraining  # noqa: E402

CPU = torch.device("cpu")
TINY = Recipe(network=(9, 6), batch_size=20, labeled_batch_size=20)
WIDTHS, COSTS = (7, 9, 6, 3), (1000.0, 10.0, 0.1, 0.2)
NO_OPTIONS = {"common", "eager", "render_docs", "render_studies"}
SCRIPTS = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py") if path.stem not in NO_OPTIONS)


@pytest.fixture(scope="module")
def records() -> Records:
    return Records.read(ROOT / "results")


@pytest.mark.parametrize(("costs", "normalizations"), [((1, 1, 1, 1), 3 + 4), ((0, 0, 1, 0), 3 + 2), (0, 3)])
def test_what_processes_send_is_a_sum_for_each_normalization_and_one_for_the_costs(costs, normalizations) -> None:
    ladder = Ladder((6,), [Dense(5), Dense(4), Dense(3)], costs=costs)
    found = traffic.traffic(ladder)
    assert len(found.forward) == len(found.backward) == found.all_reduces / 2 == normalizations + 1
    streams = 3 if ladder.cost_levels else 1
    assert found.forward[0] == 8 * streams * (1 + 2 * 5)  # numbers, sums and squares of the first rung, in float64
    assert found.gradients == 4 * sum(parameter.numel() for parameter in ladder.parameters())
    assert ladder.processes is None


def test_an_update_of_many_gpus_takes_as_long_as_its_parts() -> None:
    machine = processes.Machine(1.0, 100.0, 1.0, launch=10, latency=3, node=8, node_bandwidth=300, bandwidth=50)
    ladder, sent = processes.network(), traffic.Traffic((8,) * 14, (8,) * 14, 4_000_000)
    eight, many = (processes.milliseconds_of_update(ladder, sent, machine, gpus, rows=100) for gpus in (8, 512))
    assert eight.statistics == pytest.approx(28 * (10 + 6 * 3) / 1e3, rel=1e-3)
    assert eight.gradients == pytest.approx((10 + 6 * 3) / 1e3 + 2 * 7 / 8 * 4e6 / 300e6)
    assert many.gradients == pytest.approx((10 + 18 * 3) / 1e3 + 2 * 511 / 512 * 4e6 / 50e6)
    assert many.noise == pytest.approx(64 * eight.noise) == pytest.approx(512 * 200 * 3044 / 1e6)
    assert many.compute == eight.compute == pytest.approx(1 + 6 * 100 * 4 * 1_536_500 / 100e9, rel=1e-2)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_has_help(name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--help"])
    with pytest.raises(SystemExit) as stop:
        import_module(name).main()
    assert stop.value.code == 0
    assert f"python benchmarks/{name}.py" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["common", "other_methods", "profile_update", "studies"])
def test_the_examples_of_a_module_hold(name: str) -> None:
    assert doctest.testmod(import_module(name), optionflags=doctest.ELLIPSIS).failed == 0


# Killed processes


def test_a_fit_and_both_commands_survive_sigkill_bit_by_bit(tmp_path: Path) -> None:
    """In processes of their own, as in ``make soak``; there each is killed twenty times."""
    script, record = ROOT / "benchmarks/soak.py", tmp_path / "soak.jsonl"
    subprocess.run([sys.executable, script, "--kills", "3", "--quick", "--record", record], check=True, timeout=300)
    lines = [(line["what"], line["kills"], line["survived"]) for line in read_records(record)]
    assert lines == [("fit in Python", 3, 3), ("tikas train", 3, 3), ("tikas reproduce", 3, 3)]


# Rows in files


def test_a_fit_to_a_file_needs_a_part_of_its_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("needs Linux")
    monkeypatch.setattr("tikas.estimators.base.STREAM_FROM", 0)
    monkeypatch.setattr("tikas.data.batches.WINDOW_BYTES", 2**22)
    monkeypatch.setattr("tikas.estimators.base.SAMPLE_VALUES", 2**20)
    monkeypatch.setattr("tikas.estimators.base.MAX_CHUNK_ROWS", 512)
    monkeypatch.setattr("tikas.training.trainer.MAX_COPIED_BYTES", 2**22)
    monkeypatch.setattr("tikas.training.trainer.MAX_CALIBRATION_ROWS", 2**12)
    rows = np.random.default_rng(0).random((2**16, 512), np.float32)
    np.save(tmp_path / "rows.npy", rows)
    needed = streaming.measured_fit({"file": tmp_path / "rows.npy", "network": [8], "batch_size": 400})
    assert needed["gigabytes"] == pytest.approx(rows.nbytes / 1e9)
    assert needed["more_than_before_mb"] < 0.7 * rows.nbytes / 1e6


def test_training_on_a_file_is_compared_with_training_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tikas.data.batches.WINDOW_BYTES", 2**20)
    np.save(tmp_path / "rows.npy", np.random.default_rng(0).random((4000, 784), np.float32))
    options = Namespace(quick=True, turns=1, record=tmp_path / "streaming.jsonl")
    streaming.measure_speed(tmp_path / "rows.npy", options)
    (record,) = read_records(options.record)
    assert (record["updates"], record["turns"], record["against"]) == (30, 1, "in memory")
    assert record["ratio"] == pytest.approx(record["ms_in_memory"] / record["ms"])


# The plain PyTorch ladder


def test_the_plain_ladder_has_the_costs_and_gradients_of_tikas() -> None:
    torch.manual_seed(0)
    plain = EagerLadder(WIDTHS, 0.3, COSTS).double()
    ladder = Ladder((7,), [Dense(width) for width in WIDTHS[1:]], noise=0.3, costs=COSTS).double()
    pairs = [(plain.gamma, ladder.rungs[-1].gamma)]
    pairs += [(one.a, other.denoiser.a) for one, other in zip(plain.denoisers, ladder.rungs, strict=True)]
    for level, rung in enumerate(ladder.rungs[1:]):
        pairs += [(plain.encoder[level].weight, rung.weight), (plain.decoder[level].weight, rung.back.weight)]
        pairs += [(plain.beta[level], rung.beta)]
    assert len(pairs) == len(list(plain.parameters())) == len(list(ladder.parameters()))
    with torch.no_grad():
        for one, other in pairs:
            one += 0.3 * torch.randn_like(one)
            other.copy_(one)
    unlabeled, labeled, targets = torch.rand(20, 7).double(), torch.rand(11, 7).double(), torch.arange(11) % 3
    noise = [torch.randn(31, width).double() for width in WIDTHS]
    total, supervised, denoising = plain.costs(unlabeled, labeled, targets, noise)
    costs = ladder.costs(unlabeled, labeled, targets, noise)
    torch.testing.assert_close(torch.stack([supervised, *denoising]), torch.cat([costs.supervised[None], costs[2]]))
    torch.testing.assert_close(total, costs.total, rtol=1e-10, atol=0)
    total.backward()
    costs.total.backward()
    for one, other in pairs:
        assert one.grad.abs().max() > 0
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-8, atol=1e-10)


def test_the_plain_ladder_learns() -> None:
    torch.manual_seed(0)
    rows = torch.rand(100, 7)
    ladder = EagerLadder(WIDTHS, 0.3, (1.0, 0.1, 0.1, 0.1))
    training = EagerTraining(ladder, rows, (3 * rows[:, 0]).long(), torch.arange(50), batch_size=25)
    costs = [training.update().item() for _ in range(100)]
    assert sum(costs[-20:]) < 0.9 * sum(costs[:20])


# Timing and speed


def test_sides_run_in_turn_after_a_block_of_each_for_warm_up() -> None:
    ran: list[str] = []
    sides = [Side("one", lambda: ran.append("one"), 2), Side("other", lambda: ran.append("other"), 1)]
    timings = interleave(sides, CPU, seconds=0)
    assert ran == ["one", "other"] * 4
    assert [len(timing.blocks) for timing in timings.values()] == [3, 3]
    assert Timing([1.0, 50.0, 1.0], warm_up=0).ms == 1.0  # a delayed block does not count


def test_engine_compares_plain_pytorch_with_one_and_several_seeds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "interleave", lambda sides, device, _: interleave(sides, device, 0))
    file = tmp_path / "bench.jsonl"
    options = ["--device", "cpu", "--uncompiled", "--updates", "2", "--record", str(file), "--quick"]
    engine.main([*options, "--members", "1", "3"], TINY)
    lines = capsys.readouterr().out.splitlines()
    assert f"torch {torch.__version__}" in lines[0]
    assert [line.split("  ")[0] for line in lines[1:]] == ["plain PyTorch", "1 seed", "3 seeds"]
    plain, one, three = read_records(file)
    assert one["ratio"] == plain["ms"] / one["ms"]
    assert three["members"] == 3
    assert {"hardware", "versions", "revision", "quick", "program"} <= three.keys()
    assert Records.read(file).members(Experiment("any", 100, TINY).key) == {}  # these are not errors of members


def test_utilization_counts_the_products_of_the_three_streams_and_the_decoder() -> None:
    weights = 784 * 1000 + 1000 * 500 + 500 * 250 + 250 * 250 * 2 + 250 * 10
    up, down = 300 * weights, 100 * weights
    assert scaling.operations(Recipe(), (784,)) == 2 * (3 * up - 300 * 784 * 1000 + 3 * down)


def test_scaling_fits_a_power_to_the_times(capsys: pytest.CaptureFixture[str]) -> None:
    assert scaling.exponent([1, 2, 4], [3, 12, 48]) == pytest.approx(2)
    settings = [scaling.Setting(units, replace(TINY, network=(units,)), updates=2, shape=(5,)) for units in (4, 8)]
    options = Namespace(program="eager", seconds=0, record=None, quick=True)
    scaling.measure_curve("width", settings, options, CPU)
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()] == [
        ["width", "4"],
        ["width", "8"],
        ["width:", "exponent"],
    ]


def test_bench_runs_the_named_benchmarks_and_passes_its_options_on(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Sequence[str]] = []
    monkeypatch.setitem(bench.BENCHMARKS, "scaling", ran.append)
    bench.main(["scaling", "--device", "cpu", "--record", "file.jsonl"])
    bench.main(["scaling", "--full"])
    assert ran == [["--quick", "--device", "cpu", "--record", "file.jsonl"], []]
    with pytest.raises(SystemExit):
        bench.main(["speed"])


def test_whitening_agrees_with_plain_numpy(capsys: pytest.CaptureFixture[str]) -> None:
    whitening.main(["--images", "200", "--side", "4"])
    difference = re.search(r"largest difference of the matrices: (\S+)", capsys.readouterr().out)
    assert difference is not None
    assert float(difference[1]) < 1e-4


# Two revisions side by side


def test_revisions_are_measured_in_turn_and_compared_within_a_round() -> None:
    one, other = compare_revisions.Checkout("other", ROOT), compare_revisions.Checkout("this", ROOT)
    measured: list[str] = []
    figures = {"other": [2.0, 6.0, 4.0], "this": [1.0, 6.0, 1.0]}

    def measure(side: compare_revisions.Checkout) -> float:
        measured.append(side.name)
        return figures[side.name].pop(0)

    found = compare_revisions.in_turn(measure, [one, other], rounds=3, deadline=float("inf"))
    assert measured == ["other", "this", "this", "other", "other", "this"]
    summary = compare_revisions.figures(found)
    assert (summary["ratio"], summary["lowest_ratio"], summary["highest_ratio"], summary["rounds"]) == (2, 1, 4, 3)


def test_this_revision_can_be_compared_with_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = tmp_path / "comparison.json"
    compare_revisions.main([str(ROOT), "--cases", "import", "--time-limit", "1", "--out", str(record)])
    assert capsys.readouterr().out.splitlines()[-1].startswith("import ")
    assert 0.1 < json.loads(record.read_text())["cases"]["import"]["ratio"] < 10


def test_a_case_of_the_comparison_trains_an_epoch() -> None:
    running = compare_revisions.start(compare_revisions.CASES["digits, eager"])
    assert running.units == 12
    assert running.program == "EagerEngine, float32"
    assert compare_revisions.seconds_of(running, 1) > 0


def test_the_checkout_comes_before_other_libraries_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "libraries")
    paths = compare_revisions.Checkout("this", ROOT).environment["PYTHONPATH"].split(":")
    assert paths == [str(ROOT / "src"), "libraries"]


# Accuracy


def test_mnist_records_every_member_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["--data", "digits", "--labels", "50", "--network", "16", "--epochs", "1", "--device", "cpu"]
    for seeds in ("1", "2"):
        mnist.main([*options, "--seeds", seeds])
    found = read_records(tmp_path / "mnist.jsonl")
    assert [record["seed"] for record in found] == [0, 1]
    assert found[0]["recipe"]["network"] == [16]
    assert f"{max(record['test_error'] for record in found):.2f} %" in capsys.readouterr().out


def test_seeds_alone_and_in_an_ensemble_are_compared_seed_by_seed() -> None:
    found = ensemble_accuracy.compare([1.0, 2.0, 3.0], [1.0, 2.5, 4.0])
    assert (found["difference"], found["equal"]) == (0.5, 1)
    assert found["standard_error"] == pytest.approx(0.5 / 3**0.5)
    experiment = Experiment("digits/50", 50, replace(SMALL, network=(16,), epochs=1), data="digits", seeds=2)
    alone, together = (ensemble_accuracy.errors_in_ensembles(experiment, size, "cpu", None) for size in (1, 2))
    assert alone == pytest.approx(together, abs=0.21)  # one of 500 rows: products are rounded differently


def test_evaluation_is_timed_beside_the_epochs() -> None:
    clock = evaluation.Clock(CPU)
    clock.times, clock.training, clock.validated = [1.0, 2.5, 3.5, 5.0], [1.0, 1.0, 1.0, 1.0], [2, 4]
    during = evaluation.during_training(clock)
    assert (during["seconds"], during["epochs_between"], during["share_of_training"]) == (0.5, 2, 0.25)
    after = evaluation.after_training(clock, finished=5.5, epochs=10)
    assert (after["seconds"], after["share_of_training"]) == (0.5, 0.05)
    recipe = replace(SMALL, network=(8,), epochs=2)
    clock, finished = evaluation.run(recipe, 50, 200, 2, load_flat("digits"), CPU)
    assert clock.validated[-1] == len(clock.times) == 2
    assert finished > clock.times[-1]


def test_other_methods_get_the_labels_of_the_seed(records: Records) -> None:
    train, test = load_flat("digits")
    comparison = other_methods.Comparison("svm", 50, data="digits", settings={"C": 10})
    record = other_methods.measure(comparison, 0, train, test)
    assert 5 < record["test_error"] < 20
    assert set(Records([record]).members(comparison.key)) == {0}
    labeled = np.array([3, 70, 90])
    rows = other_methods.some_rows(100, labeled, 10, seed=0)
    assert len(set(rows)) == 10
    assert set(labeled) <= set(rows)
    for known in other_methods.COMPARISONS:
        assert len(records.members(known.key)) == 10


@pytest.mark.parametrize("method", ["LabelSpreading", "SVC on the labels"])
def test_digits_measures_a_method(method: str) -> None:
    _, learns_unlabeled, make = digits.METHODS[method][-1]
    error, seconds = digits.measure(make, learns_unlabeled, seed=100)
    assert 2 < error < 30
    assert seconds > 0


# Studies


def test_every_setting_of_a_study_is_judged_on_held_out_rows() -> None:
    settings = [setting for study in studies.STUDIES for setting in study]
    assert len({setting.name for setting in settings}) == len(settings)
    assert {setting.error_field for setting in settings} == {"validation_error"}
    assert studies.shortened((100, *[0.1] * 8, 1, 1)) == "100-0.1x8-1-1"


@pytest.mark.parametrize(
    ("study", "experiment", "epochs"),
    [
        ("full-short/50", "text/full-chosen/50", 150),
        ("conv-small-gamma-short/100", "table2/small-gamma-short/100", 30),
        ("conv-small-gamma-input-long/100", "table2/small-gamma-input/100", 70),
        ("conv-small-gamma-input-longest/100", "table2/small-gamma-input-long/100", 150),
        ("conv-small-between/100", "table2/small-full/100", 30),
        ("full/all", "table1/full/all", 150),
    ],
)
def test_an_experiment_has_the_setting_that_its_study_chose(
    study: str, experiment: str, epochs: int, records: Records
) -> None:
    (settings,) = [each for each in studies.STUDIES if studies.study_name(each[0]) == f"study/{study}"]
    best = studies.chosen(settings, records)
    (final,) = [each for each in EXPERIMENTS if each.name == experiment]
    assert best is not None
    assert replace(best.recipe, epochs=epochs) == final.recipe


def test_settings_are_compared_by_common_seeds_once_all_have_them() -> None:
    low, high = studies.study("gamma/100", {1: Recipe(costs=(1,)), 2: Recipe(costs=(2,))}, seeds=2)
    errors = {low: {0: 3.0, 1: 5.0, 2: 99.0}, high: {0: 3.5, 1: 5.5}}

    def choose(**found: dict[int, float]) -> Experiment | None:
        by_key = {setting.key: found.get(name) for name, setting in (("low", low), ("high", high))}
        measured = {key: SimpleNamespace(errors=errors) if errors else None for key, errors in by_key.items()}
        return studies.chosen([low, high], SimpleNamespace(measurement=measured.get))

    assert choose(low=errors[low]) is None
    assert choose(low=errors[low], high={0: 3.5}) is None
    assert choose(low=errors[low], high=errors[high]) == low


def test_an_unknown_study_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        studies.main(["study/gama/100"])
    assert "study/gama/100" in capsys.readouterr().err


# Profiles

KERNELS = [
    profile_update.Kernel("adam_kernel", 400.0, 2),
    profile_update.Kernel("nvjet_sm90_tst_128x104_64x7_2x1_v_bz_TNT", 200.0, 20),
    profile_update.Kernel("decode_backward_kernel", 100.0, 7),
    profile_update.Kernel("climb_back_kernel", 80.0, 6),
    profile_update.Kernel("encode_kernel", 40.0, 6),
    profile_update.Kernel("decode_kernel", 60.0, 7),
    profile_update.Kernel("top_kernel", 1.0, 1),
    profile_update.Kernel("Memset (Device)", 3.0, 20),
]


def test_kernels_are_grouped_by_what_they_do() -> None:
    assert profile_update.Profile(40, KERNELS, total=900.0).groups() == {
        "optimizer": 400.0,
        "products": 200.0,
        "encoder": 41.0,
        "decoder": 60.0,
        "backward": 180.0,
        "rest": 3.0,
        "kernels not listed": 16.0,
    }


def test_the_recorded_profiles_are_read_and_drawn(tmp_path: Path) -> None:
    compiled, fused = (profile_update.read_profile(ROOT / f"results/profile-40-seeds.{end}") for end in ("txt", "json"))
    for profile in (compiled, fused):
        assert sum(profile.groups().values()) == pytest.approx(profile.total)
        assert profile.groups()["rest"] < 0.05 * profile.total
    fused.write(tmp_path / "profile.json")
    assert profile_update.read_profile(tmp_path / "profile.json") == fused
    (tmp_path / "notes.txt").write_text("no profile")
    with pytest.raises(ValueError, match=r"notes\.txt"):
        profile_update.read_profile(tmp_path / "notes.txt")
    profile_update.draw_profiles({"before": compiled, "after": fused}, tmp_path / "profiles.svg")
    drawn = (tmp_path / "profiles.svg").read_text()
    assert all(text in drawn for text in ("before", "4230 µs", "1810 µs", "encoder", "kernels not listed"))


# Tables


def test_the_page_of_studies_is_up_to_date(records: Records) -> None:
    assert (ROOT / "results/studies.md").read_text() == render_studies.render(records), "run `make tables`"


def test_the_tables_of_the_documents_are_up_to_date(records: Records) -> None:
    tables = render_docs.tables(records)
    for page in render_docs.PAGES:
        text = page.read_text()
        assert set(re.findall(r"<!-- table: (\S+) -->", text)) <= tables.keys()
        assert fill(text, tables) == text, f"{page.name}: run `make tables`"


def test_a_started_engine_has_as_many_updates_and_members_as_asked_for() -> None:
    started = start_engine(TINY, CPU, members=2, updates=3, shape=(5,))
    assert (started.members, started.batches.updates, len(started.batches.rows)) == (2, 3, 60)
    assert started.train_epoch().shape == (3, 2, 5)
    assert started.program == "EagerEngine, float32"
