"""Which program trains a fleet, and that the compiled one learns what the plain one learns."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch
from functorch.compile import min_cut_rematerialization_partition
from torch._dynamo import config as dynamo
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.utils import counters
from torch._inductor.decomposition import select_decomp_table

from tikas.data.splits import split
from tikas.data.streams import Examples, Streams
from tikas.training import captured, compilers, engine
from tikas.training.building import build_ladder
from tikas.training.compilers import hindrance
from tikas.training.cpu_passes import MasksAgain
from tikas.training.devices import PutBack, single_precision
from tikas.training.engine import SlowerWarning, launch, suitable_arithmetic
from tikas.training.fleet import Fleet, stack
from tikas.training.precision import full_precision, precision, steady_precision
from tikas.training.recipe import Recipe

RECIPE = Recipe(network=(6,), epochs=2, batch_size=20, labeled_batch_size=10)


@pytest.fixture(autouse=True)
def quicker(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Sets whether products in bf16 are quicker here. They are not, whatever the chip, unless a test says otherwise."""

    def in_half(are: bool) -> None:
        monkeypatch.setattr(engine, "_half_is_quicker", lambda: are)

    in_half(False)
    return in_half


def small_fleet(recipe: Recipe = RECIPE, *, exact: bool = False) -> Fleet:
    rows = torch.rand(100, 5, generator=torch.Generator().manual_seed(0))
    targets = (rows[:, 0] * 3).long()
    ladders = [build_ladder(recipe, (5,), 3, seed=0)]
    splits = [split(targets.numpy(), 30)]
    streams = Streams(Examples(rows, targets, 3), splits, [0], ladders[0].shapes, 20, 10)
    return launch(ladders, streams, recipe.epochs * streams.updates, exact=exact)


def is_compiled(fleet: Fleet) -> bool:
    return fleet.costs != fleet.ladder.costs


def test_a_short_run_is_not_compiled() -> None:
    assert not is_compiled(small_fleet())


@pytest.mark.parametrize(
    ("compiler", "said"),
    [
        (None, r"there is no C\+\+ compiler \(.*/cxx\)"),
        ("exit 1", r"the C\+\+ compiler \(.*/cxx\) finds no Python\.h"),
        ('case "$*" in *-shared*) exit 1;; esac', r"the C\+\+ compiler \(.*/cxx\) cannot make a library"),
    ],
    ids=["none", "one without Python's headers", "one without a linker"],
)
def test_without_a_compiler_that_works_a_long_run_is_plain(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, compiler: str | None, said: str
) -> None:
    monkeypatch.setattr(engine, "WORTH_COMPILING", 0)
    monkeypatch.setenv("CXX", str(tmp_path / "cxx"))
    if compiler is not None:
        (tmp_path / "cxx").write_text(f"#!/bin/sh\n{compiler}\n")
        (tmp_path / "cxx").chmod(0o755)
    with pytest.warns(SlowerWarning, match=f"without compiled code, and slower, because {said}") as warned:
        fleet = small_fleet()
    assert not is_compiled(fleet)
    assert len(warned) == 1
    assert "\n" not in str(warned[0].message)


@pytest.mark.parametrize("failure", [OSError("no room for the library"), RuntimeError("no such instruction")])
def test_where_compiling_fails_after_all_a_long_run_is_plain(
    monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    plain = small_fleet()

    def fail(*_: object, **__: object) -> None:
        raise failure

    monkeypatch.setattr(engine, "WORTH_COMPILING", 0)
    monkeypatch.setattr(engine, "hindrance", lambda _: None)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=fail))
    fleet, rates = small_fleet(), torch.full((5,), 0.002)
    with pytest.warns(SlowerWarning, match=f"without compiled code, and slower, because .*{failure}") as warned:
        costs = fleet.train_epoch(rates)
    assert len(warned) == 1
    assert "\n" not in str(warned[0].message)
    torch.testing.assert_close(costs, plain.train_epoch(rates), rtol=1e-5, atol=1e-6)


def test_where_only_the_way_back_cannot_be_compiled_a_long_run_is_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("no room for the way back")

    backend = aot_autograd(fw_compiler=lambda graph, _: graph, bw_compiler=fail)
    monkeypatch.setattr(engine, "WORTH_COMPILING", 0)
    monkeypatch.setattr(engine, "hindrance", lambda _: None)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    fleet = small_fleet()
    with suitable_arithmetic(fleet), pytest.warns(SlowerWarning, match="because .*no room for the way back"):
        fleet.train_epoch(torch.full((5,), 0.002))


def test_without_a_folder_for_temporary_files_a_long_run_is_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(compilers, "TemporaryDirectory", none)
    monkeypatch.setattr(compilers, "which", lambda name: name)
    assert hindrance(torch.device("cpu")) == "there is no folder for temporary files"


def test_an_error_of_the_function_itself_is_no_failure_to_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: torch.Tensor) -> None:
        raise ValueError("no such rows")

    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    with pytest.raises(ValueError, match="no such rows"):
        compilers.Compiler()(refuse)(torch.zeros(3))


def test_kernels_need_triton_and_a_c_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda")
    monkeypatch.setenv("CC", "no-such-compiler")
    monkeypatch.setattr(compilers, "find_spec", lambda _: None)
    assert hindrance(gpu) == "Triton is not installed"
    monkeypatch.setattr(compilers, "find_spec", lambda name: name)
    assert hindrance(gpu) == "there is no C compiler (no-such-compiler)"


@pytest.mark.filterwarnings("ignore")
def test_a_fleet_that_is_worth_compiling_learns_what_the_plain_one_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = small_fleet()
    monkeypatch.setattr(engine, "WORTH_COMPILING", 0)
    compiled = small_fleet()
    assert is_compiled(compiled) == (hindrance(torch.device("cpu")) is None)  # without a compiler it is plain too
    costs = []
    for fleet in (plain, compiled):
        with suitable_arithmetic(fleet):
            costs.append(fleet.train_epoch(torch.full((fleet.streams.updates,), 0.002)))
    # The same arithmetic in another order; five updates leave it at rounding.
    torch.testing.assert_close(costs[1], costs[0], rtol=1e-5, atol=1e-6)
    for name, weights in plain.ladder.state_dict().items():
        torch.testing.assert_close(compiled.ladder.state_dict()[name], weights, rtol=1e-4, atol=1e-5)
    assert not counters["aot_autograd"]["autograd_cache_bypass"], "the next start would compile again"


def test_a_cpu_that_is_quicker_by_it_makes_products_in_half_but_where_they_are_to_be_exact(
    monkeypatch: pytest.MonkeyPatch, quicker: Callable[[bool], None]
) -> None:
    monkeypatch.setattr(engine, "_can_compile", lambda _: True)
    quicker(True)
    assert small_fleet().dtype == torch.float32  # of a short run, which is not compiled
    monkeypatch.setattr(engine, "WORTH_COMPILING", 0)
    assert [small_fleet(exact=exact).dtype for exact in (False, True)] == [torch.bfloat16, torch.float32]
    quicker(False)
    assert small_fleet().dtype == torch.float32


@pytest.mark.parametrize(
    ("vendor", "avx512", "expected"),
    [("AuthenticAMD", True, True), ("AuthenticAMD", False, False), ("GenuineIntel", True, False)],
)
@pytest.mark.parametrize("told", [True, False], ids=["told by the system", "not told"])
def test_a_cpu_is_quicker_in_half_if_it_is_amds_and_has_instructions_for_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, vendor: str, avx512: bool, expected: bool, told: bool
) -> None:
    monkeypatch.undo()  # the fixture's own word
    monkeypatch.setattr(engine, "CHIP", tmp_path / "cpuinfo")
    if told:
        engine.CHIP.write_text(f"vendor_id\t: {vendor}\n")
    monkeypatch.setattr(engine.platform, "processor", lambda: f"AMD64 Family 25, {vendor}")
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512)
    assert engine._half_is_quicker() is expected


def through(
    passes: Sequence[Callable[[torch.fx.Graph], None]], there: list[torch.fx.GraphModule]
) -> Callable[..., Any]:
    """A compiler that compiles nothing, but has the ways there and back as one graph go through these passes."""

    def parted(joint: torch.fx.GraphModule, *inputs: Any, **more: Any) -> tuple[torch.fx.GraphModule, ...]:
        for each in passes:
            each(joint.graph)
        parts = min_cut_rematerialization_partition(joint, *inputs, **more)
        there.append(parts[0])
        return parts

    decompositions = select_decomp_table()
    return aot_autograd(fw_compiler=lambda part, _: part, partition_fn=parted, decompositions=decompositions)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("passes", [[MasksAgain()], []], ids=["with the pass", "without it"])
def test_the_pass_keeps_masks_from_being_stored_which_they_would_be_in_company(passes: list[Any]) -> None:
    there = list[torch.fx.GraphModule]()
    recipe, rows = replace(RECIPE, network=(6, 6)), torch.rand(3, 20, 5)
    ladder, draws = stack([build_ladder(recipe, (5,), 3, seed) for seed in range(3)]), torch.Generator().manual_seed(0)
    noise = [torch.randn(3, 40, width, generator=draws) for width in (5, 6, 6, 3)]
    costs = [
        compute(rows, rows, torch.arange(60).view(3, 20) % 3, noise).total.sum()
        for compute in (torch.compile(ladder.costs, backend=through(passes, there)), ladder.costs)
    ]
    gradients = [torch.autograd.grad(cost, list(ladder.parameters())) for cost in costs]
    for ours, plain in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-5)
    stored = [node.meta["val"].dtype for node in there[0].graph.output_node().args[0] if node is not None]
    assert (torch.bool in stored) is not bool(passes)


@pytest.mark.filterwarnings("ignore")
def test_a_fleet_learns_by_products_in_half_what_it_learns_by_exact_ones(
    monkeypatch: pytest.MonkeyPatch, quicker: Callable[[bool], None]
) -> None:
    exact = small_fleet()
    monkeypatch.setattr(engine, "WORTH_COMPILING", 0)
    quicker(True)
    half = small_fleet()
    in_bf16 = half.dtype == torch.bfloat16
    assert in_bf16 == (hindrance(torch.device("cpu")) is None)  # without a compiler it is plain
    costs = []
    for fleet in (exact, half):
        with suitable_arithmetic(fleet):
            costs.append(fleet.train_epoch(torch.full((fleet.streams.updates,), 0.002)))
    torch.testing.assert_close(costs[1], costs[0], rtol=3e-2, atol=3e-2)
    assert bool((costs[1] - costs[0]).abs().max() > 1e-4) == in_bf16
    assert not counters["aot_autograd"]["autograd_cache_bypass"], "the next start would compile again"
    graphs, again = counters["stats"]["unique_graphs"], small_fleet()
    with suitable_arithmetic(again):
        again.train_epoch(torch.full((again.streams.updates,), 0.002))
    assert counters["stats"]["unique_graphs"] == graphs, "the next fleet would be compiled again"


def test_compiled_code_changes_no_precision_or_torch_would_not_keep_it(monkeypatch: pytest.MonkeyPatch) -> None:
    programs: list[torch.fx.GraphModule] = []

    def remember(graph: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        programs.append(graph)
        return graph

    def multiply(rows: torch.Tensor, weights: torch.Tensor) -> Any:
        return rows @ weights

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=remember))
    product = captured._in_bf16(compilers.Compiler()(multiply), "cpu")(rows=torch.rand(5, 4), weights=torch.rand(4, 3))
    assert product.dtype == torch.bfloat16
    (program,) = programs
    assert not [node.target for node in program.graph.nodes if "autocast" in str(node.target)]


@pytest.mark.filterwarnings("ignore")
def test_every_network_that_a_search_tries_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as torch would compile of one function by itself, here one, and then some."""
    programs: list[torch.fx.GraphModule] = []

    def remember(graph: torch.fx.GraphModule, *_: object, **__: object) -> torch.fx.GraphModule:
        programs.append(graph)
        return graph

    monkeypatch.setattr(engine, "WORTH_COMPILING", 0)
    monkeypatch.setattr(engine, "hindrance", lambda _: None)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=remember))
    with dynamo.patch(recompile_limit=1):
        for units in (4, 5, 6):
            fleet = small_fleet(replace(RECIPE, network=(units,)))
            with suitable_arithmetic(fleet):
                fleet.train_epoch(torch.zeros(fleet.streams.updates))
        assert dynamo.recompile_limit == 1
    assert len(programs) == 6  # of the costs and of the optimiser


def test_a_small_fleet_trains_on_one_thread_and_gives_the_others_back() -> None:
    fleet = small_fleet()
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with suitable_arithmetic(fleet):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


PRECISIONS = {
    "products": torch.backends.cuda.matmul,
    "products on a CPU": torch.backends.mkldnn.matmul,
    "convolutions": torch.backends.cudnn.conv,
    "convolutions on a CPU": torch.backends.mkldnn.conv,
}


@pytest.fixture
def own_precision(request: pytest.FixtureRequest) -> Iterator[Callable[[], dict[str, str]]]:
    """A precision that somebody has set by torch's new names; what all of them are now."""
    place, before = PRECISIONS[request.param], PRECISIONS[request.param].fp32_precision
    by_old_names = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    place.fp32_precision = "ieee" if request.param == "convolutions" else "tf32"
    yield lambda: {name: each.fp32_precision for name, each in PRECISIONS.items()}
    place.fp32_precision = before
    assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == by_old_names


@pytest.mark.parametrize("own_precision", PRECISIONS, indirect=True)
def test_a_precision_that_was_set_by_its_new_name_is_no_hindrance_and_is_put_back(own_precision) -> None:
    before = own_precision()
    with precision(tf32=True):
        assert torch.get_float32_matmul_precision() == "high"
        assert torch.backends.cudnn.allow_tf32
        with full_precision():
            assert torch.get_float32_matmul_precision() == "highest"
            assert not torch.backends.cudnn.allow_tf32
            assert set(own_precision().values()) == {"ieee"}
    assert own_precision() == before


@pytest.mark.parametrize("own_precision", PRECISIONS, indirect=True)
def test_a_cpu_trains_exactly_whatever_precision_was_set(own_precision) -> None:
    before = own_precision()
    with suitable_arithmetic(small_fleet()):
        assert set(own_precision().values()) == {"ieee"}
    assert own_precision() == before


@pytest.mark.parametrize("products", ["highest", "high", "medium"])
@pytest.mark.parametrize("convolutions", [False, True])
def test_a_precision_that_was_set_by_its_old_name_is_put_back(products: str, convolutions: bool) -> None:
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    try:
        torch.set_float32_matmul_precision(products)
        torch.backends.cudnn.allow_tf32 = convolutions
        with full_precision():
            assert torch.get_float32_matmul_precision() == "highest"
        assert torch.get_float32_matmul_precision() == products
        assert torch.backends.cudnn.allow_tf32 == convolutions
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


def test_of_threads_that_overlap_none_is_less_exact_than_it_asked_to_be() -> None:
    before = torch.get_float32_matmul_precision()
    training, calibrating, starting = precision(tf32=True), full_precision(), precision(tf32=True)
    seen = []
    for enter_or_leave in (
        training.__enter__,
        calibrating.__enter__,  # of another thread
        starting.__enter__,  # of a third, or its next fleet
        lambda: training.__exit__(None, None, None),
        lambda: calibrating.__exit__(None, None, None),
        lambda: starting.__exit__(None, None, None),
    ):
        enter_or_leave()
        seen.append(torch.get_float32_matmul_precision())
    assert seen == ["high", "highest", "highest", "highest", "high", before]


def test_a_precision_that_is_to_stay_stays_until_all_who_need_it_have_left() -> None:
    before, seen = torch.get_float32_matmul_precision(), []

    def calibrate() -> None:
        with full_precision():
            seen.append(torch.get_float32_matmul_precision())

    training, first, second = precision(tf32=True), steady_precision(), steady_precision()
    with ThreadPoolExecutor(1) as pool:
        for holding in (training, first, second):
            holding.__enter__()
        calibrating = pool.submit(calibrate)
        first.__exit__(None, None, None)
        with pytest.raises(TimeoutError):
            calibrating.result(timeout=0.3)
        training.__exit__(None, None, None)  # which would put back what was there before
        assert torch.get_float32_matmul_precision() == "high"
        second.__exit__(None, None, None)
        calibrating.result(timeout=10)
    assert seen == ["highest"]
    assert torch.get_float32_matmul_precision() == before


def test_who_is_exact_already_or_need_not_be_does_not_wait_for_a_precision_that_is_to_stay() -> None:
    def asked(*, tf32: bool) -> str:
        with precision(tf32=tf32):
            return torch.get_float32_matmul_precision()

    with ThreadPoolExecutor(1) as pool:
        with precision(tf32=True), steady_precision():
            assert pool.submit(asked, tf32=True).result(timeout=10) == "high"
        with full_precision(), steady_precision():
            assert pool.submit(asked, tf32=False).result(timeout=10) == "highest"
            assert pool.submit(asked, tf32=True).result(timeout=10) == "highest"


def test_a_precision_that_changed_hands_while_it_was_to_stay_is_put_back_as_it_was_found() -> None:
    before = torch.get_float32_matmul_precision()
    first, second, steady = precision(tf32=True), precision(tf32=True), steady_precision()
    first.__enter__()
    steady.__enter__()
    first.__exit__(None, None, None)  # of the last one inside; what it found is yet to be put back
    second.__enter__()
    steady.__exit__(None, None, None)
    assert torch.get_float32_matmul_precision() == "high"
    second.__exit__(None, None, None)
    assert torch.get_float32_matmul_precision() == before


def test_what_threads_that_overlap_have_set_is_put_back_by_the_last_of_them() -> None:
    numbers = [1]
    put_back = PutBack(lambda: numbers[-1], numbers.append)
    first, second = put_back(), put_back()
    first.__enter__()
    numbers.append(2)
    second.__enter__()  # of another thread, which finds what the first one has set
    numbers.append(3)
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert numbers[-1] == 1


def test_who_leaves_first_takes_nothing_from_those_who_are_still_inside() -> None:
    """What is drawn in single precision and in double are other numbers, which would be other batches."""
    before = torch.get_default_dtype()
    first, second = single_precision(), single_precision()
    torch.set_default_dtype(torch.float64)
    try:
        first.__enter__()
        second.__enter__()  # of another thread
        first.__exit__(None, None, None)
        assert torch.get_default_dtype() == torch.float32
        second.__exit__(None, None, None)
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("late", [False, True])
def test_of_small_fleets_that_overlap_each_gives_its_threads_back(late: bool) -> None:
    """Torch has a number for every thread of Python; a new one begins with that which was set last."""
    before, fleet, came, may_go = torch.get_num_threads(), small_fleet(), Event(), Event()

    def train() -> int:
        with suitable_arithmetic(fleet):
            came.set()
            assert may_go.wait(timeout=10)
        return torch.get_num_threads()

    torch.set_num_threads(2)
    try:
        with ThreadPoolExecutor(1) as pool:
            with suitable_arithmetic(fleet):
                other = pool.submit(train)
                assert came.wait(timeout=10)
                if not late:
                    may_go.set()
                    assert other.result() == 2
            assert torch.get_num_threads() == 2
            may_go.set()
            assert other.result() == 2
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(torch.get_num_threads).result() == 2
    finally:
        torch.set_num_threads(before)


def test_work_on_maps_counts_their_positions() -> None:
    """A convolution of few weights is much work: 24 by 24 positions, so two threads are worth it."""
    recipe = Recipe(network=("conv 32 5", "max 2", "conv 32 3"), costs=(1.0,))
    rows = torch.rand(100, 1, 28, 28)
    ladder = build_ladder(recipe, (1, 28, 28), 10, seed=0)
    streams = Streams(
        Examples(rows, torch.arange(100) % 10, 10),
        [split((torch.arange(100) % 10).numpy(), 30)],
        [0],
        ladder.shapes,
        100,
        100,
    )
    fleet = launch([ladder], streams, updates=1)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with suitable_arithmetic(fleet):
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
