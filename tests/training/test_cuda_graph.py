"""Engines that replay CUDA graphs. On a CPU nothing is captured, and the updates of a block run one after the other.

Captures, replays and streams are tested in test_gpu. Simulated here: a device without values (torch's "meta" device),
and streams that record who waits for whom.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tikas.data import batches as batches_module
from tikas.data.batches import Batches, StreamedBatches, generator
from tikas.data.sources import ArrayRows
from tikas.data.splits import split
from tikas.model.ladder import Model
from tikas.training.compiled import MIN_TORCH
from tikas.training.cuda_graph import CudaGraphEngine, SideBySideEngine, SideStream
from tikas.training.engines import EagerEngine, Engine, _choose_gpu_engine
from tikas.training.recipe import Recipe

DENSE = Recipe(network=(6,), costs=(10.0, 1.0, 0.1), batch_size=10, labeled_batch_size=8)
IMAGES = replace(DENSE, network=("conv 4 3", "max 2", "global", "top"))
POINTWISE = replace(DENSE, network=("conv 4 6", "conv 5 1", "global", "top"))
SHAPES = {DENSE: (7,), IMAGES: (1, 6, 6), POINTWISE: (1, 6, 6)}
CPU = torch.device("cpu")
ENGINES = [(CudaGraphEngine, DENSE, 1), (CudaGraphEngine, DENSE, 3), (SideBySideEngine, IMAGES, 2)]
NAMES = ["one member", "three members", "side by side"]


def arguments(
    recipe: Recipe, members: int, dtype: torch.dtype = torch.float64, device: str = "cpu"
) -> tuple[list[Model], Batches]:
    """Return members with their own noise and costs, and their batches: six updates an epoch in blocks of two."""
    shape, seeds, classes = SHAPES[recipe], range(members), torch.arange(60) % 3
    rows = torch.rand(60, *shape, generator=torch.Generator().manual_seed(0), dtype=dtype).to(device)
    own = [replace(recipe, noise=(0.2 + 0.1 * seed,), costs=(10.0 + seed, 1.0, 0.1)) for seed in seeds]
    models = [each.build(shape, 3, seed).to(device, dtype) for each, seed in zip(own, seeds, strict=True)]
    splits = [split(classes.numpy(), 9, seed=seed) for seed in seeds]
    batches = Batches(rows, classes.to(device), None, splits, seeds, models[0].shapes, 10, 8, block=2)
    return models, batches


def falling_rates(members: int, *, own: bool) -> Tensor:
    """Return the learning rates of an epoch; with `own`, higher ones for later members."""
    rates = torch.linspace(0.01, 0.002, 6, dtype=torch.float64)
    return rates[:, None] * torch.arange(1, 1 + members) if own else rates


def train(engine: Engine, *, own: bool, epochs: int = 2) -> Tensor:
    return torch.cat([engine.train_epoch(falling_rates(engine.members, own=own)) for _ in range(epochs)])


def assert_close_models(ones: Sequence[Model], others: Sequence[Model]) -> None:
    """Compare up to rounding, which Adam amplifies where a gradient is nothing else."""
    for one, other in zip(ones, others, strict=True):
        assert [(rung.noise, rung.cost) for rung in one.rungs] == [(rung.noise, rung.cost) for rung in other.rungs]
        for (name, found), expected in zip(one.named_parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-5, msg=name)


@pytest.mark.parametrize(("kind", "recipe", "members"), ENGINES, ids=NAMES)
def test_updates_on_streamed_rows_are_those_on_rows_in_memory(
    kind: Any, recipe: Recipe, members: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows that a graph reads lie at fixed addresses: windows of four updates take turns in a buffer."""
    models, batches = arguments(recipe, members, torch.float32)
    monkeypatch.setattr(batches_module, "WINDOW_BYTES", 4 * 10 * batches.rows[0].nbytes)
    source = ArrayRows(batches.rows.numpy())
    source.block_edges = None
    streamed = StreamedBatches(
        source, batches.targets, None, batches._splits, range(members), models[0].shapes, 10, 8, block=2, device=CPU
    )
    assert (streamed.window, streamed.updates) == (4, 6)
    engine, expected = (
        kind(arguments(recipe, members, torch.float32)[0], each, compiled=False) for each in (streamed, batches)
    )
    assert torch.equal(train(engine, own=False), train(expected, own=False))
    for each in (engine, *getattr(engine, "engines", ())):
        each.batches.close()


@pytest.mark.parametrize("own", [False, True], ids=["one rate", "own rates"])
@pytest.mark.parametrize(
    ("kind", "recipe", "members"), [*ENGINES, (CudaGraphEngine, IMAGES, 1)], ids=[*NAMES, "images"]
)
def test_updates_are_those_of_the_eager_engine(kind: Any, recipe: Recipe, members: int, own: bool) -> None:
    engine, eager = kind(*arguments(recipe, members), compiled=False), EagerEngine(*arguments(recipe, members))
    costs, expected = train(engine, own=own), train(eager, own=own)
    torch.testing.assert_close(costs.view(expected.shape), expected.float(), rtol=1e-6, atol=1e-6)
    assert_close_models(engine.models(), eager.models())


@pytest.mark.parametrize("own", [False, True], ids=["one rate", "own rates"])
@pytest.mark.parametrize(("kind", "recipe", "members"), ENGINES, ids=NAMES)
def test_a_loaded_state_continues_to_the_same_bits(kind: Any, recipe: Recipe, members: int, own: bool) -> None:
    one, other = (kind(*arguments(recipe, members), compiled=False) for _ in range(2))
    train(one, own=own)
    other.load_state_dict(one.state_dict(), updates=12)
    assert torch.equal(train(other, own=own, epochs=1), train(one, own=own, epochs=1))
    expected = one.state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in other.state_dict().items())


@pytest.mark.parametrize("epochs", [0, 1], ids=["new run", "resumed run"])
@pytest.mark.parametrize("own", [False, True], ids=["one rate", "own rates"])
def test_the_warm_up_changes_neither_weights_nor_moments(own: bool, epochs: int) -> None:
    engine = CudaGraphEngine(*arguments(DENSE, 2), compiled=False)
    train(engine, own=own, epochs=1)  # sets the rows and rates of a block
    other = CudaGraphEngine(*arguments(DENSE, 2), compiled=False)
    state = engine.state_dict() if epochs else other.state_dict()
    engine.load_state_dict(state, updates=6 * epochs)
    graph = engine._graph
    graph.rates.zero_()
    moments = [tensor for adam in engine.eager.adam_state() for tensor in adam.values()]
    graph.warm_up(engine._update, moments)
    assert all(torch.equal(tensor, state[name]) for name, tensor in engine.state_dict().items())
    assert {float(adam["step"]) for adam in engine.eager.adam_state()} == {6.0 * epochs}


@pytest.mark.parametrize("blocks", [0, 1, 4])
def test_an_interrupt_leaves_every_member_with_the_blocks_that_it_has_had(
    blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Members side by side take turns, block by block."""
    engine, begun, update = SideBySideEngine(*arguments(IMAGES, 3), compiled=False), [], CudaGraphEngine._update

    def interrupted(engine: CudaGraphEngine, positions: range) -> None:
        if len(begun) == blocks:
            raise KeyboardInterrupt
        begun.append(positions)
        update(engine, positions)

    monkeypatch.setattr(CudaGraphEngine, "_update", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.train_epoch(falling_rates(3, own=False))
    models, batches = arguments(IMAGES, 3)
    expected = []
    for member, model in enumerate(models):
        alone = EagerEngine([model], batches.for_member(member))
        done = len(range(member, blocks, 3))
        if done:
            alone.train_epoch(falling_rates(1, own=False)[: 2 * done])
        expected += alone.models()
    assert_close_models(engine.models(), expected)


@pytest.mark.parametrize(
    ("recipe", "members", "dtype", "kind"),
    [
        (DENSE, 3, torch.float32, "FusedEngine"),
        (DENSE, 3, torch.float64, "CudaGraphEngine"),
        (IMAGES, 1, torch.float32, "CudaGraphEngine"),
        (IMAGES, 3, torch.float32, "SideBySideEngine"),
        (POINTWISE, 3, torch.float32, "CudaGraphEngine"),
    ],
)
def test_a_gpu_packs_members_unless_they_convolve(recipe: Recipe, members: int, dtype: torch.dtype, kind: str) -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    engine = _choose_gpu_engine(*arguments(recipe, members, dtype), compiled=True, exact=False)
    assert type(engine).__name__ == kind
    assert len(engine.packed()) == (members if kind == "SideBySideEngine" else 1)


@pytest.mark.skipif(torch.__version__ < MIN_TORCH, reason=f"torch before {MIN_TORCH} is not compiled with")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's compiler raises some of its own
@pytest.mark.parametrize("exact", [True, False])
def test_members_side_by_side_are_compiled_once(exact: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their noise and costs differ, and compiling takes half a minute."""
    programs, compile_function = [], torch.compile

    def backend(graph: torch.fx.GraphModule, _: list[Tensor]) -> torch.fx.GraphModule:
        programs.append(graph)
        return graph

    def record(function: Any, *, dynamic: bool, options: object, **_: Any) -> Any:
        assert options is None
        return compile_function(function, dynamic=dynamic, backend=backend)

    monkeypatch.setattr(torch, "compile", record)
    engine = SideBySideEngine(*arguments(IMAGES, 3, torch.float32), compiled=True, exact=exact)
    engine.train_epoch(falling_rates(3, own=False))
    assert len(programs) == 1


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("kind", [CudaGraphEngine, SideBySideEngine])
def test_an_engine_frees_its_memory_without_the_garbage_collector(kind: Any, exact: bool) -> None:
    """The next engine is planned with all of a GPU's memory."""
    gc.collect()
    gc.disable()
    try:
        engine = kind(*arguments(IMAGES, 2), compiled=True, exact=exact)
        parameters = [weakref.ref(parameter) for model in engine.packed() for parameter in model.parameters()]
        del engine
        assert not any(reference() is not None for reference in parameters)
    finally:
        gc.enable()


# Simulated: a device without values


class CheckedAdam(torch.optim.Adam):
    """Adam whose step, which the meta device does not have, checks that everything it needs is on that device."""

    def step(self) -> None:  # type: ignore[override]
        (group,) = self.param_groups
        moments = [moment for parameter in group["params"] for moment in self.state[parameter].values()]
        needed = [group["lr"], *moments, *(parameter.grad for parameter in group["params"])]
        assert {tensor.device.type for tensor in needed} == {"meta"}


def make_adam(engine: EagerEngine, parameters: Any) -> CheckedAdam:
    adam = CheckedAdam(parameters)
    adam.param_groups[0]["lr"] = engine.rate  # set later, because torch would look whether it is negative
    return adam


@pytest.mark.parametrize(("fused", "members"), [(False, 1), (False, 2), (True, 1), (True, 2)])
def test_updates_mix_no_tensors_of_the_cpu_with_those_of_a_device(
    fused: bool, members: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor do they read a value from the device: a capture allows neither."""
    monkeypatch.setattr(batches_module, "generator", lambda seed, purpose, *_: generator(seed, purpose))
    monkeypatch.setattr(EagerEngine, "_adam", make_adam)
    launched = set()

    def check(kernel: Any, *args: object, **_: object) -> None:
        assert {each.device.type for each in args if isinstance(each, Tensor)} == {"meta"}, kernel.__name__
        launched.add(kernel.__name__)

    models, batches = arguments(DENSE, members, torch.float32, "meta")
    if fused:
        jit = pytest.importorskip("triton.runtime.jit", reason="Triton is not installed")
        from tikas.training.fused.engine import FusedEngine

        monkeypatch.setattr(jit.JITFunction, "run", check)
        engine: Engine = FusedEngine(models, batches)
    else:
        engine = CudaGraphEngine(models, batches, compiled=False)
    assert train(engine, own=members > 1, epochs=1).device.type == "meta"
    assert len(launched) == (8 if fused else 0)


# Simulated: streams


class Stream:
    device = torch.device("cpu")

    def __init__(self, *_: Any, **__: Any) -> None:
        self.waited_for: list[Stream] = []

    def wait_stream(self, other: Stream) -> None:
        self.waited_for.append(other)


def test_a_side_stream_waits_for_the_current_stream_and_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A capture allows no wait for a stream that is not part of it."""
    main, current = Stream(), []
    current.append(main)

    @contextmanager
    def on(stream: Stream) -> Iterator[None]:
        current.append(stream)
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: current[-1])
    side = SideStream(torch.device("cuda"))
    side.join()
    assert main.waited_for == []
    with side.run():
        assert current[-1] is side._stream
        assert side._stream.waited_for == [main]
    side.join()
    side.join()
    assert main.waited_for == [side._stream]
