"""Benchmarks compare like with like, take turns, and say what was measured on what."""

import io
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from rich.console import Console

from tikas.commands.bench import Bench, bench
from tikas.experiments import bench_suite
from tikas.experiments.bench import Figure, Side, Timing, eager_ladder, interleave, program_of, quicker, start_fleet
from tikas.experiments.bench_script import run
from tikas.experiments.bench_suite import BENCHMARKS, Plan, RivalMissingError, operations
from tikas.experiments.ledger import Ledger
from tikas.experiments.profiles import Kernel, Profile, read_profile
from tikas.experiments.records import read
from tikas.model.ladder import Ladder
from tikas.model.specs import Dense
from tikas.training.fleet import Fleet
from tikas.training.recipe import Recipe
from tikas.views.benchmarks import benchmark_table
from tikas.views.profiles import draw_profiles

CPU = torch.device("cpu")
WIDTHS = (7, 9, 6, 3)
WEIGHTS = (1000.0, 10.0, 0.1, 0.2)
SMALL = Recipe(network=(9, 6), batch_size=20, labeled_batch_size=20)


@pytest.fixture
def eager() -> ModuleType:
    module = eager_ladder()
    assert module is not None
    return module


# The plain ladder.


def twins(eager: ModuleType) -> tuple[torch.nn.Module, Ladder, dict[torch.nn.Parameter, torch.nn.Parameter]]:
    """The plain ladder and tikas's with the same weights, away from their first values; and which belong together."""
    torch.manual_seed(0)
    plain = eager.EagerLadder(WIDTHS, 0.3, WEIGHTS).double()
    rungs = [Dense(width) for width in WIDTHS[1:]]
    ours = Ladder((WIDTHS[0],), rungs, noise=0.3, costs=WEIGHTS).double()
    pairs = {plain.gamma: ours.rungs[-1].gamma}
    pairs |= {denoiser.a: rung.denoiser.a for denoiser, rung in zip(plain.denoisers, ours.rungs, strict=True)}
    for level, rung in enumerate(ours.rungs[1:]):
        pairs[plain.encoder[level].weight] = rung.weight
        pairs[plain.decoder[level].weight] = rung.back.weight
        pairs[plain.beta[level]] = rung.beta
    with torch.no_grad():
        for theirs, own in pairs.items():
            theirs += 0.3 * torch.randn_like(theirs)
            own.copy_(theirs)
    return plain, ours, pairs


def test_the_plain_ladder_has_the_costs_and_gradients_of_tikas(eager):
    plain, ours, pairs = twins(eager)
    assert len(pairs) == len(list(plain.parameters())) == len(list(ours.parameters()))
    unlabeled, labeled, targets = torch.rand(20, 7).double(), torch.rand(11, 7).double(), torch.arange(11) % 3
    noise = [torch.randn(31, width).double() for width in WIDTHS]
    total, supervised, denoising = plain.costs(unlabeled, labeled, targets, noise)
    costs = ours.costs(unlabeled, labeled, targets, noise)
    torch.testing.assert_close(supervised, costs.supervised, rtol=1e-10, atol=0)
    torch.testing.assert_close(torch.stack(denoising), costs.denoising, rtol=1e-10, atol=0)
    torch.testing.assert_close(total, costs.total, rtol=1e-10, atol=0)
    total.backward()
    costs.total.backward()
    for theirs, own in pairs.items():
        assert theirs.grad.abs().max() > 0
        torch.testing.assert_close(theirs.grad, own.grad, rtol=1e-8, atol=1e-10)


def test_the_plain_ladder_learns(eager):
    torch.manual_seed(0)
    rows = torch.rand(100, 7)
    targets = (3 * rows[:, 0]).long()
    training = eager.EagerTraining(
        eager.EagerLadder(WIDTHS, 0.3, (1.0, 0.1, 0.1, 0.1)), rows, targets, torch.arange(50), batch_size=25
    )
    totals = [training.update().item() for _ in range(100)]
    assert sum(totals[-20:]) < 0.9 * sum(totals[:20])


# Taking turns.


def test_sides_take_turns_after_a_block_of_each_to_warm_up():
    ran: list[str] = []
    sides = [Side("one", lambda: ran.append("one"), 2), Side("other", lambda: ran.append("other"), 1)]
    timings = interleave(sides, CPU, seconds=0)
    assert ran == ["one", "other"] * 4
    assert [len(timing.blocks) for timing in timings.values()] == [3, 3]
    assert all(timing.warm_up >= 0 for timing in timings.values())


def test_a_slow_round_does_not_decide_who_is_quicker():
    assert quicker(Timing([1.0, 50.0, 1.0], 0), Timing([2.0, 100.0, 2.0], 0)) == 2.0
    assert quicker(Timing([1.0, 50.0, 1.0], 0), Timing([2.0, 2.0, 2.0], 0)) == 2.0


@pytest.mark.usefixtures("small")
def test_the_ratio_is_that_of_the_times_beside_it(monkeypatch):
    uneven = {"plain PyTorch": Timing([3.0, 6.0, 4.0], 0), "engine": Timing([1.0, 2.0, 1.0], 0)}
    monkeypatch.setattr(bench_suite, "interleave", lambda *_: uneven)
    plain, engine = BENCHMARKS["engine"](Plan(CPU, quick=True))
    assert (plain.ms, engine.ms, engine.ratio) == (4.0, 1.0, 4.0)


def test_the_work_of_an_update_is_the_papers_three_streams_and_the_decoder():
    weights = 784 * 1000 + 1000 * 500 + 500 * 250 + 250 * 250 * 2 + 250 * 10
    up, down = 300 * weights, 100 * weights
    assert operations(Recipe(), (784,)) == 2 * (3 * up - 300 * 784 * 1000 + 3 * down)


# The benchmarks.


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same benchmarks on networks of no size, without compiling."""
    monkeypatch.setattr(bench_suite, "MNIST", SMALL)
    monkeypatch.setattr(Plan, "seconds", 0.0)

    def start(recipe: Recipe, device: torch.device, **more: object) -> Fleet:
        few = {"members", "updates", "shape"}
        return start_fleet(recipe, device, **{k: v for k, v in more.items() if k in few}, program="plain")

    monkeypatch.setattr(bench_suite, "start_fleet", start)


@pytest.mark.usefixtures("small")
def test_every_benchmark_gives_figures_on_a_cpu():
    for name, benchmark in BENCHMARKS.items():
        if name == "convolutions":
            continue
        figures = list(benchmark(Plan(CPU, quick=True, members=(1, 3))))
        assert {figure.benchmark for figure in figures} == {name}
        assert all(figure.ms is None or figure.ms > 0 for figure in figures)
        if name in ("engine", "fleets"):
            assert any(figure.ratio for figure in figures)
        if name == "scaling":
            powers = [figure for figure in figures if "exponent" in figure.details]
            assert [power.what.split(":")[0] for power in powers] == ["width", "depth", "batch", "rows"]
        if name == "utilisation":
            assert 0 < figures[0].details["utilisation"] < 1


@pytest.mark.usefixtures("small")
def test_large_products_are_timed_several_at_once_and_told_of_one(monkeypatch):
    timed: list[Side] = []

    def interleaved(sides: list[Side], *_: object) -> dict[str, Timing]:
        timed.extend(sides)
        return {"update": Timing([4.0], 0), "large product": Timing([2.0], 0)}

    monkeypatch.setattr(bench_suite, "interleave", interleaved)
    (figure,) = BENCHMARKS["utilisation"](Plan(CPU, quick=True))
    products: list[torch.Size] = []
    monkeypatch.setattr(torch, "matmul", lambda left, right: products.append(left.shape + right.shape))
    (large,) = (side for side in timed if side.name == "large product")
    large.block()
    assert products == [(2048,) * 4] * 10
    assert large.units == 10
    assert figure.details["large_product_teraflops"] == pytest.approx(2 * 2048**3 / 2e-3 * 1e-12)


@pytest.mark.usefixtures("small")
def test_convolutional_networks_are_timed_with_their_rows(monkeypatch):
    name = "conv_small, Γ"
    monkeypatch.setattr(bench_suite, "CONVOLUTIONAL", {name: bench_suite.CONVOLUTIONAL[name]})
    (figure,) = BENCHMARKS["convolutions"](Plan(CPU, quick=True))
    assert figure.what == name
    assert figure.ms is not None
    assert figure.details["rows"] == "10 + 10"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_of_a_fleet_that_is_written_out_the_type_of_its_products_is_told(dtype):
    pytest.importorskip("triton", reason="Triton is not installed on this machine")
    from tikas.training.fused import FusedFleet

    plain = start_fleet(SMALL, CPU, updates=2, shape=(7,), program="plain")
    fleet = FusedFleet(plain.ladders, plain.streams, dtype)
    assert program_of(fleet) == f"written out, {str(dtype).removeprefix('torch.')} products"
    assert fleet.dtype == dtype  # of the large product beside it


def test_of_a_compiled_fleet_it_is_told_if_products_are_in_bf16():
    fleet = start_fleet(SMALL, CPU, updates=2, shape=(7,), program="plain")
    fleet.costs = fleet.ladders[0].costs
    assert program_of(fleet) == "compiled"
    fleet.dtype = torch.bfloat16
    assert program_of(fleet) == "compiled, bfloat16 products"


def test_sizes_of_fleets_are_checked():
    with pytest.raises(ValueError, match="at least 1"):
        Plan(CPU, members=(4, 0))


# The doors: scripts and the command.


@pytest.mark.usefixtures("small")
def test_a_script_prints_the_hardware_and_adds_records(tmp_path, capsys):
    path = tmp_path / "bench.jsonl"
    run("fleets", None, ["--device", "cpu", "--quick", "--members", "1", "2", "--record", str(path)])
    first, *lines = capsys.readouterr().out.splitlines()
    assert f"torch {torch.__version__}" in first
    assert [line.split("  ")[0] for line in lines] == ["1 seed", "2 seeds"]
    assert "× 1 seed" in lines[1]
    records = read(path)
    assert [record["members"] for record in records] == [1, 2]
    for record in records:
        assert record.keys() >= {"benchmark", "what", "ms", "program", "hardware", "versions", "revision", "quick"}
    assert Ledger.read(tmp_path).members(("recipe", SMALL, None)) == {}  # a ledger of results leaves them alone


@pytest.mark.usefixtures("small")
def test_the_command_prints_a_table_and_adds_records(tmp_path, capsys):
    path = tmp_path / "bench.jsonl"
    assert bench(Bench(("fleets", "utilisation"), members=(1, 2), record=path, device="cpu")) == 0
    out = capsys.readouterr().out
    assert "2 seeds" in out
    assert "utilisation" in out
    assert [record["benchmark"] for record in read(path)] == ["fleets", "fleets", "utilisation"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_what_was_measured_is_shown_where_the_next_benchmark_does_not_end(monkeypatch, capsys, error):
    def ends_badly(_: Plan) -> Iterator[Figure]:
        yield Figure("fleets", "1 seed", 12.5)
        raise error

    monkeypatch.setitem(BENCHMARKS, "fleets", ends_badly)
    with pytest.raises(error):
        bench(Bench(("fleets",), device="cpu"))
    assert "12.5" in capsys.readouterr().out


def test_a_place_where_records_cannot_go_is_refused_before_anything_is_measured(tmp_path, monkeypatch):
    monkeypatch.setitem(BENCHMARKS, "fleets", lambda _: pytest.fail("it was measured"))
    with pytest.raises(IsADirectoryError, match=r"--record .* is a folder: give the path of a file in it"):
        bench(Bench(("fleets",), record=tmp_path, device="cpu"))


def test_a_benchmark_that_there_is_not_is_refused_by_name():
    with pytest.raises(ValueError, match="no benchmark speed; there are engine, fleets"):
        bench(Bench(("speed",)))


@pytest.mark.usefixtures("small")
def test_without_the_repository_the_rest_is_measured_and_one_line_says_what_is_missing(monkeypatch, capsys):
    monkeypatch.setattr(bench_suite, "eager_ladder", lambda: None)
    with pytest.raises(RivalMissingError, match="in the repository"):
        list(BENCHMARKS["engine"](Plan(CPU, quick=True)))
    assert bench(Bench(("engine", "fleets"), members=(1,), device="cpu")) == 1
    said = capsys.readouterr()
    assert "1 seed" in said.out
    assert said.err.splitlines()[-1].startswith("tikas: engine: benchmarks/eager.py")


def test_a_table_names_each_benchmark_once():
    console = Console(width=100, file=io.StringIO())
    console.print(
        benchmark_table([Figure("fleets", "1 seed", 2.0), Figure("fleets", "4 seeds", 1.0, 2.0, "1 seed")], "")
    )
    text = console.file.getvalue()
    assert text.count("fleets") == 1
    assert "2.00 × 1 seed" in text


# Profiles.


RESULTS = Path(__file__).parents[1] / "results"
KERNELS = (
    Kernel("adam_kernel", 400.0, 2),
    Kernel("nvjet_sm90_tst_128x104_64x7_2x1_v_bz_TNT", 200.0, 20),
    Kernel("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_256x128>", 50.0, 1),
    Kernel("descend_back_kernel", 100.0, 7),
    Kernel("top_back_kernel", 1.0, 1),
    Kernel("climb_back_kernel", 80.0, 6),
    Kernel("descend_kernel", 60.0, 7),
    Kernel("climb_kernel", 40.0, 6),
    Kernel("gather_kernel", 5.0, 1),
    Kernel("top_kernel", 1.0, 1),
    Kernel("void at::native::distribution_elementwise_grid_stride_kernel<float, 4>", 30.0, 4),
    Kernel("Memset (Device)", 3.0, 20),
)


def test_kernels_are_grouped_by_what_they_are_for():
    assert Profile(40, KERNELS, total=970.0).groups() == {
        "optimiser": 400.0,
        "products": 250.0,
        "chains back": 181.0,
        "chains up": 46.0,
        "chains down": 60.0,
        "noise": 30.0,
        "rest": 3.0,
    }


def test_a_profile_is_read_back_as_it_was_written(tmp_path):
    profile = Profile(40, KERNELS, total=970.0, wall=1000.0, about={"hardware": "some"})
    profile.write(tmp_path / "profile.json")
    assert read_profile(tmp_path / "profile.json") == profile


@pytest.mark.parametrize("name", ["profile-40-seeds.txt", "profile-40-seeds.json"])
def test_the_recorded_profiles_are_understood(name):
    profile = read_profile(RESULTS / name)
    groups = profile.groups()
    assert sum(groups.values()) == pytest.approx(profile.total)
    assert groups["rest"] < 0.05 * profile.total  # the start of an epoch, which may be one of few updates, is in it
    assert {"optimiser", "products", "noise"} < groups.keys()


def test_a_file_that_is_no_profile_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("nothing of the kind")
    with pytest.raises(ValueError, match=r"notes\.txt: expected a profile"):
        read_profile(tmp_path / "notes.txt")


def test_profiles_are_drawn_with_their_figures(tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "profiles.svg"
    profiles = {"before": Profile(40, KERNELS, total=1234.0), "after": Profile(40, KERNELS[:2], total=600.0)}
    draw_profiles(profiles, path)
    drawn = path.read_text()
    for text in ("before", "after", "1234 µs", "600 µs", "chains back", "kernels not listed"):
        assert text in drawn
    draw_profiles(profiles, tmp_path / "again.svg")
    assert (tmp_path / "again.svg").read_text() == drawn
