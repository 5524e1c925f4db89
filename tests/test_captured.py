"""What a captured fleet does between its replays, with streams and graphs that run on a CPU; on a GPU, test_gpu.py."""

import gc
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from threading import Barrier, BrokenBarrierError

import pytest
import torch
from torch import Tensor

from pretended import Machine
from tikas.data.splits import split
from tikas.data.streams import Examples, Streams
from tikas.experiments.bench import program_of
from tikas.model.ladder import Ladder
from tikas.training import loop
from tikas.training.building import build_ladder
from tikas.training.captured import CapturedFleet, SideBySide
from tikas.training.engine import _launch_on_gpu, suitable_arithmetic
from tikas.training.fit import fit
from tikas.training.fleet import Fleet
from tikas.training.loop import Trained
from tikas.training.precision import full_precision, precision
from tikas.training.recipe import Recipe

DENSE = Recipe(data="array", network=(6,), costs=(10.0, 1.0, 0.1), batch_size=10, labeled_batch_size=8)
IMAGES = replace(DENSE, network=("conv 4 3", "max 2", "global", "top"))
PRODUCTS = replace(DENSE, network=("conv 4 6", "conv 5 1", "global", "top"))
SHAPES = {DENSE: (7,), IMAGES: (1, 6, 6), PRODUCTS: (1, 6, 6)}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def fleet_of(kind: type[Fleet], recipe: Recipe, members: int, block: int = 2, **more: object) -> Fleet:
    """Six updates an epoch, in double precision; members with noise and costs of their own."""
    shape, seeds = SHAPES[recipe], list(range(members))
    rows = torch.rand(60, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    classes = torch.arange(60) % 3
    own = [replace(recipe, noise=(0.2 + 0.1 * seed,), costs=(10.0 + seed, 1.0, 0.1)) for seed in seeds]
    ladders = [build_ladder(each, shape, 3, seed).double() for each, seed in zip(own, seeds, strict=True)]
    splits = [split(classes.numpy(), 9, seed=seed) for seed in seeds]
    streams = Streams(Examples(rows, classes, 3), splits, seeds, ladders[0].shapes, 10, 8, most_in_block=block)
    return kind(ladders, streams, **more)


def rates_of(fleet: Fleet, *, own: bool) -> Tensor:
    """Falling ones, and where each member has its own, other ones for the later members."""
    falling = torch.linspace(0.01, 0.002, fleet.streams.updates, dtype=torch.float64)
    return falling[:, None] * torch.arange(1, 1 + fleet.members) if own else falling


def trained(fleet: Fleet, *, own: bool, epochs: int = 2) -> tuple[Tensor, list[Ladder]]:
    costs = [fleet.train_epoch(rates_of(fleet, own=own)) for _ in range(epochs)]
    return torch.cat(costs).view(epochs * fleet.streams.updates, fleet.members, -1), fleet.disband()


def assert_same_weights(ours: Ladder, theirs: Ladder) -> None:
    """Up to rounding, of which Adam makes steps where a gradient is nothing else: 8e-7 was measured, a step is 0.01."""
    assert [(rung.noise, rung.cost) for rung in ours.rungs] == [(rung.noise, rung.cost) for rung in theirs.rungs]
    for (name, one), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5, msg=name)


def assert_same(ours: tuple[Tensor, list[Ladder]], theirs: tuple[Tensor, list[Ladder]]) -> None:
    torch.testing.assert_close(ours[0], theirs[0].float(), rtol=1e-6, atol=1e-6)
    for one, other in zip(ours[1], theirs[1], strict=True):
        assert_same_weights(one, other)


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
@pytest.mark.parametrize(
    ("recipe", "members", "kind"),
    [(DENSE, 3, CapturedFleet), (IMAGES, 1, CapturedFleet), (IMAGES, 3, SideBySide), (PRODUCTS, 3, CapturedFleet)],
    ids=["dense", "one on images", "several on images", "several that need products alone"],
)
@pytest.mark.filterwarnings("ignore")  # torch.compile warns of its own ways
def test_a_gpu_gets_members_stacked_unless_they_convolve(recipe, members, kind, compiled):
    """In double precision, which the kernels of dense ladders do not take."""
    plain = fleet_of(Fleet, recipe, members)
    fleet = _launch_on_gpu(plain.ladders, plain.streams, compiled=compiled, exact=False)
    assert type(fleet) is kind
    assert len(fleet.parts()) == (members if kind is SideBySide else 1)


@pytest.mark.parametrize(("members", "own"), [(1, False), (3, False), (3, True)], ids=["one", "three", "own rates"])
def test_replayed_blocks_are_the_plain_updates_and_getting_ready_leaves_no_trace(machine, members, own):
    captured = trained(fleet_of(CapturedFleet, DENSE, members, compiled=False), own=own)
    assert machine.log == [machine.main] * 6
    assert_same(captured, trained(fleet_of(Fleet, DENSE, members), own=own))


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("recipe", "members", "kind"),
    [(DENSE, 3, CapturedFleet), (IMAGES, 1, CapturedFleet), (IMAGES, 3, SideBySide)],
    ids=["dense", "one on images", "several on images"],
)
def test_fit_trains_by_every_program_of_a_gpu_as_by_the_plain_one(monkeypatch, recipe, members, kind):
    """From members and rows to a history with held-out rows; what is written out is tried in test_fused.py."""
    seeds, classes, launched = list(range(members)), torch.arange(60) % 3, []
    rows = torch.rand(60, *SHAPES[recipe], generator=torch.Generator().manual_seed(0))
    splits = [split(classes.numpy(), 9, seed=seed, validation=10) for seed in seeds]

    def train() -> Trained:
        return fit(Examples(rows, classes, 3), splits, replace(recipe, epochs=3), seeds, device="cpu")

    def launch(ladders: list[Ladder], streams: Streams, *_: object, **__: object) -> Fleet:
        launched.append(_launch_on_gpu(ladders, streams, compiled=False, exact=True))
        return launched[-1]

    plain = train()
    monkeypatch.setattr(loop, "launch", launch)
    ours = train()
    assert [type(fleet) for fleet in launched] == [kind]
    for mine, theirs in zip(ours.histories, plain.histories, strict=True):
        assert [line["total"] for line in mine] == pytest.approx([line["total"] for line in theirs], rel=1e-4)
        assert [line.get("validation_error") for line in mine] == [line.get("validation_error") for line in theirs]


@pytest.mark.usefixtures("machine")
def test_no_tensor_is_aligned_in_a_capture_as_none_was_before_it(monkeypatch):
    """Triton compiles kernels by how tensors are aligned, and none can be loaded in a capture."""
    seen, update, graph = [set()], CapturedFleet.update_in_place, torch.cuda.graph

    def noting(fleet: CapturedFleet, place: int) -> None:
        tensors = fleet.rates[place], fleet.unlabeled_rows[place], fleet.labeled_rows[place], fleet.recorded[place]
        seen[-1].add(tuple(tensor.data_ptr() % 16 for tensor in tensors))
        update(fleet, place)

    monkeypatch.setattr(CapturedFleet, "update_in_place", noting)
    monkeypatch.setattr(torch.cuda, "graph", lambda *given, **named: seen.append(set()) or graph(*given, **named))
    fleet = fleet_of(CapturedFleet, DENSE, 1, block=6, compiled=False)
    fleet.train_epoch(rates_of(fleet, own=False))
    before, in_capture = seen
    assert len(in_capture) == 4
    assert in_capture <= before


@pytest.mark.usefixtures("machine")
def test_no_kernel_meets_an_alignment_in_a_capture_that_it_had_not_met_before(monkeypatch):
    """Noise has two bytes a value, and an odd number of them in an update."""
    pytest.importorskip("triton", reason="Triton is not installed on this machine")
    from triton.runtime.jit import JITFunction

    from tikas.training.fused import FusedFleet

    seen, graph = [set()], torch.cuda.graph

    def note(kernel: JITFunction, *given: object, **_: object) -> None:
        aligned = tuple(each.data_ptr() % 16 == 0 for each in given if isinstance(each, Tensor))
        seen[-1].add((kernel.__name__, aligned))

    monkeypatch.setattr(JITFunction, "run", note)
    monkeypatch.setattr(torch.cuda, "graph", lambda *given, **named: seen.append(set()) or graph(*given, **named))
    classes, ladder = torch.arange(200) % 2, build_ladder(DENSE, (7,), 2, seed=0)
    examples, splits = Examples(torch.rand(200, 7), classes, 2), [split(classes.numpy(), 9)]
    fleet = FusedFleet([ladder], Streams(examples, splits, [0], ladder.shapes, 20, 9, most_in_block=10))
    assert fleet.noise.shape[-1] % 2
    fleet.train_epoch(rates_of(fleet, own=False))
    before, in_capture, *_ = seen
    assert len(in_capture) > 8
    assert in_capture <= before


@pytest.mark.usefixtures("machine")
def test_every_block_ends_with_nothing_under_way_beside_it(monkeypatch):
    """Which is what `update_in_places` sees to, in warming up and in the capture."""
    begun, update = [], CapturedFleet.update_in_places

    def noting(fleet: CapturedFleet, places: range) -> None:
        begun.append(places)
        update(fleet, places)

    monkeypatch.setattr(CapturedFleet, "update_in_places", noting)
    fleet = fleet_of(CapturedFleet, DENSE, 1, block=3, compiled=False)
    fleet.train_epoch(rates_of(fleet, own=False))
    assert begun == [range(3), range(3)]


@pytest.mark.usefixtures("machine")
def test_threads_of_several_gpus_capture_one_after_the_other(monkeypatch):
    meeting, met = Barrier(2), []

    @contextmanager
    def graph(*_: object, **__: object) -> Iterator[None]:
        with suppress(BrokenBarrierError):
            met.append(meeting.wait(timeout=0.5))
        yield

    monkeypatch.setattr(torch.cuda, "graph", graph)
    fleets = [fleet_of(CapturedFleet, DENSE, 1, compiled=False) for _ in "ab"]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda fleet: fleet.train_epoch(rates_of(fleet, own=False)), fleets))
    assert not met


@pytest.mark.usefixtures("machine")
def test_what_ends_on_another_gpu_changes_no_precision_while_a_fleet_gets_ready(monkeypatch):
    """Torch would compile anew within the capture, which fails."""
    seen, calibrating, update = [], [], CapturedFleet.update_in_place

    def calibrate() -> None:
        with full_precision():
            pass

    with ThreadPoolExecutor(1) as pool:

        def noting(fleet: CapturedFleet, place: int) -> None:
            if not calibrating:
                calibrating.append(pool.submit(calibrate))
                with pytest.raises(TimeoutError):
                    calibrating[0].result(timeout=0.3)
            seen.append(torch.get_float32_matmul_precision())
            update(fleet, place)

        monkeypatch.setattr(CapturedFleet, "update_in_place", noting)
        fleet = fleet_of(CapturedFleet, DENSE, 1, compiled=False)
        with precision(tf32=True):
            fleet.streams.start_epoch()
            fleet._capture(torch.zeros(fleet.streams.block))
            calibrating[0].result(timeout=10)
    assert seen == ["high"] * len(seen)
    assert len(seen) == 4  # two to warm up and two that are captured


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("kind", [CapturedFleet, SideBySide])
def test_a_capture_minds_only_what_its_own_thread_does(monkeypatch, kind):
    """By default it fails when a thread that trains on another GPU asks for memory meanwhile."""
    modes, graph = [], torch.cuda.graph

    def noting(*given: object, capture_error_mode: str = "global", **named: object) -> object:
        modes.append(capture_error_mode)
        return graph(*given, **named)

    monkeypatch.setattr(torch.cuda, "graph", noting)
    fleet = fleet_of(kind, IMAGES, 2, compiled=False)
    fleet.train_epoch(rates_of(fleet, own=False))
    assert modes == ["thread_local"] * (2 if kind is SideBySide else 1)


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("own", [False, True], ids=["one rate", "own rates"])
def test_members_side_by_side_learn_what_they_learn_stacked(own):
    apart = trained(fleet_of(SideBySide, IMAGES, 3, compiled=False), own=own)
    assert_same(apart, trained(fleet_of(Fleet, IMAGES, 3), own=own))


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("own", [False, True], ids=["one rate", "own rates"])
@pytest.mark.parametrize(
    ("kind", "recipe", "members"),
    [(CapturedFleet, DENSE, 3), (CapturedFleet, IMAGES, 1), (SideBySide, IMAGES, 3)],
    ids=["stacked", "one", "side by side"],
)
def test_a_fleet_goes_on_from_a_snapshot_as_if_nothing_had_been(kind, recipe, members, own):
    """Getting ready spoils Adam's moments; here they are not zero."""
    one, other = (fleet_of(kind, recipe, members, compiled=False) for _ in "ab")
    for _ in range(2):
        one.train_epoch(rates_of(one, own=own))
    other.go_on_from(one.snapshot(), updates=2 * one.streams.updates)
    (costs, ladders), (expected_costs, expected) = (trained(fleet, own=own) for fleet in (other, one))
    assert torch.equal(costs, expected_costs)
    for ours, theirs in zip(ladders, expected, strict=True):
        assert all(torch.equal(*pair) for pair in zip(ours.parameters(), theirs.parameters(), strict=True))


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(("compiled", "program"), [(False, "captured"), (True, "compiled and captured")])
@pytest.mark.parametrize(("kind", "beside"), [(CapturedFleet, ""), (SideBySide, ", side by side")])
def test_benchmarks_tell_what_members_run(kind, beside, compiled, program):
    assert program_of(fleet_of(kind, IMAGES, 2, compiled=compiled)) == program + beside


def test_members_side_by_side_take_turns_each_on_a_stream_of_its_own(machine):
    trained(fleet_of(SideBySide, IMAGES, 3, compiled=False), own=False)
    assert len(set(machine.log)) == 3
    assert machine.main not in machine.log
    assert machine.log == machine.log[:3] * 6  # two epochs of three blocks
    assert all(machine.main in lane.waited_for for lane in machine.log)  # which may still read what they write
    assert machine.main_has_waited_for_everything()


@pytest.mark.parametrize("replays", [0, 1, 4])
def test_ctrl_c_between_replays_leaves_every_member_with_the_blocks_that_it_has_had(machine, replays):
    fleet = fleet_of(SideBySide, IMAGES, 3, compiled=False)
    machine.replays_left = replays
    with pytest.raises(KeyboardInterrupt):
        fleet.train_epoch(rates_of(fleet, own=False))
    assert machine.main_has_waited_for_everything()
    blocks_had = [(replays + 2 - member) // 3 for member in range(3)]  # in turn, the first member first
    fresh = fleet_of(SideBySide, IMAGES, 3, compiled=False)
    for member, (ladder, blocks) in enumerate(zip(fleet.disband(), blocks_had, strict=True)):
        alone = Fleet([fresh.ladders[member]], fresh.streams.alone(member))
        if blocks:
            alone.train_epoch(rates_of(alone, own=False)[: 2 * blocks])
        assert_same_weights(ladder, *alone.disband())


@pytest.mark.parametrize("kind", [CapturedFleet, SideBySide])
def test_ctrl_c_while_a_fleet_warms_up_is_waited_for_too(machine, monkeypatch, kind):
    """What comes next reads and frees the weights, which the warm-up writes on another stream."""
    fleet, update = fleet_of(kind, IMAGES, 2, compiled=False), Fleet.update

    def pressed(*arguments: object) -> Tensor:
        update(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(Fleet, "update", pressed)
    with pytest.raises(KeyboardInterrupt):
        fleet.train_epoch(rates_of(fleet, own=False))
    assert sum(lane.done for lane in machine.lanes) == 1
    assert machine.main_has_waited_for_everything()


@pytest.mark.usefixtures("machine")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("exact", [True, False])
def test_members_side_by_side_share_one_program(monkeypatch, exact):
    """Though their noise and costs are their own: compiling takes half a minute, and torch would soon refuse to."""
    programs: list[torch.fx.GraphModule] = []

    def remember(graph: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        programs.append(graph)
        return graph

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=remember))
    fleet = fleet_of(SideBySide, IMAGES, 3, compiled=True, exact=exact)
    with suitable_arithmetic(fleet):
        fleet.train_epoch(rates_of(fleet, own=False))
    assert len(programs) == 1


@pytest.mark.usefixtures("machine")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("kind", [CapturedFleet, SideBySide])
def test_a_fleet_that_is_done_with_gives_its_memory_back_at_once(kind, exact):
    """Without the garbage collector: the next fleet has been planned with all of the memory."""
    gc.collect()
    gc.disable()
    try:
        fleet = fleet_of(kind, IMAGES, 2, compiled=True, exact=exact)
        weights = [weakref.ref(parameter) for ladder in fleet.parts() for parameter in ladder.parameters()]
        del fleet
        assert not any(reference() is not None for reference in weights)
    finally:
        gc.enable()
