"""The fused engine trains as the eager engine does; its kernels run in Triton's interpreter here, on a GPU in test_gpu.

Simulated here: the compiler's target, an H200 that compiles but runs nothing, and CUDA streams, which only record who
waits for whom.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tikas.data.batches import Batches
from tikas.data.splits import split
from tikas.training.compiled import MIN_TORCH
from tikas.training.cuda_graph import WARM_UP, SideStream
from tikas.training.engines import EagerEngine
from tikas.training.recipe import Recipe

pytest.importorskip("triton", reason="Triton is not installed")
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from tikas.training.fused import engine as engine_module
from tikas.training.fused.engine import FusedEngine, can_fuse

ROOT = Path(__file__).parents[2]
SMALL = Recipe(network=(16, 8), costs=(10.0, 1.0, 0.1), batch_size=20, labeled_batch_size=8)


def make_batches(
    recipe: Recipe, seeds: Sequence[int] = (0,), shape: tuple[int, ...] = (16,), block: int = 1, rows: int = 60
) -> tuple[list[Any], Batches]:
    """Return members and their batches of random rows of three classes."""
    targets = torch.arange(rows) % 3
    models = [recipe.build(shape, 3, seed) for seed in seeds]
    splits = [split(targets.numpy(), 9, seed=seed) for seed in seeds]
    data = torch.rand(rows, *shape, generator=torch.Generator().manual_seed(0))
    sizes = recipe.batch_size, recipe.labeled_batch_size
    denoising = any(recipe.costs)
    return models, Batches(
        data, targets, None, splits, seeds, models[0].shapes, *sizes, block=block, denoising=denoising
    )


def prepare(engine: FusedEngine) -> None:
    """Draw the rows of an epoch and set the learning rates, so that `engine.update` can be called."""
    batches, graph = engine.batches, engine._graph
    batches.start_epoch()
    graph.unlabeled, graph.labeled = batches.unlabeled_plan, batches.labeled_plan
    graph.rates = engine._adam_rates(torch.zeros(batches.updates)).float()


# Arithmetic, in Triton's interpreter


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `triton_interpreter.py` found."""
    if torch.__version__ < MIN_TORCH:
        pytest.skip(f"Triton of torch before {MIN_TORCH} is not used")
    settings = {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    places = {"PYTHONPATH": str(ROOT / "src"), "HOME": str(tmp_path_factory.mktemp("home"))}
    script = ROOT / "tests" / "triton_interpreter.py"
    done = subprocess.run(
        [sys.executable, script], env=os.environ | settings | places, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


COMPARED = ["two members", "gamma", "input cost only", "middle cost only", "supervised only", "weighted regression"]
ACTIVATIONS = ["tanh", "gelu", "leaky_relu"]
DENOISERS = ["mlp", "no-product", "linear", "additive"]


@pytest.mark.parametrize("case", COMPARED + ACTIVATIONS + DENOISERS)
def test_costs_and_gradients_are_those_of_autograd(interpreted: dict[str, Any], case: str) -> None:
    found = interpreted[case]
    assert found["costs"] < 3e-6  # 7e-7 and 6e-6 were the largest: float32, with sums in another order
    assert found["gradients"] < 3e-5
    assert found["padding"] == 0


def test_a_member_alone_has_the_costs_that_it_has_in_an_ensemble(interpreted: dict[str, Any]) -> None:
    assert interpreted["float32"]["alone"] < 1e-6


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 0.2)])
def test_every_update_is_made_at_its_own_rate(interpreted: dict[str, Any], dtype: str, tolerance: float) -> None:
    """The first update changes the costs of the second one by up to 0.8."""
    if dtype == "bfloat16" and torch.__version__ < "2.13":
        pytest.skip("On a CPU, older versions of torch draw other noise in bf16 than in float32")
    assert interpreted[dtype]["eager"] < tolerance


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_loaded_state_continues_to_the_same_bits(interpreted: dict[str, Any], dtype: str) -> None:
    assert interpreted[dtype]["resumed"]
    assert interpreted[dtype]["loaded into eager"]


def test_the_warm_up_changes_neither_weights_nor_moments(interpreted: dict[str, Any]) -> None:
    assert interpreted["float32"]["unchanged by the warm-up"]


@pytest.mark.parametrize("activation", ["supervised only", *ACTIVATIONS])
def test_a_weight_that_is_nan_shows_in_the_costs(interpreted: dict[str, Any], activation: str) -> None:
    assert interpreted[f"NaN, {activation}"]


def test_a_fit_has_the_history_of_the_eager_engine(interpreted: dict[str, Any]) -> None:
    assert interpreted["fit"] < 1e-5


# Which ladders it takes, and its parameters


@pytest.mark.parametrize(
    ("settings", "shape", "fused"),
    [
        ({}, (16,), True),
        ({"task": "regression", "denoiser": "additive", "activation": "gelu"}, (16,), True),
        ({"batch_size": 256}, (16,), True),
        ({"batch_size": 257}, (16,), False),
        ({"labeled_batch_size": 257}, (16,), False),
        ({"network": ("conv 4 3", "global", "top")}, (1, 6, 6), False),
        ({}, (1, 4, 4), False),
    ],
)
def test_dense_ladders_of_small_batches_are_fused(
    settings: dict[str, Any], shape: tuple[int, ...], fused: bool
) -> None:
    (model,), batches = make_batches(replace(SMALL, **settings), shape=shape, rows=300)
    assert can_fuse(model, batches) == fused


def test_only_float32_and_up_to_128_outputs_are_fused() -> None:
    (model,), batches = make_batches(SMALL)
    assert can_fuse(SMALL.build((16,), 128, 0), batches)
    assert not can_fuse(SMALL.build((16,), 129, 0), batches)
    assert not can_fuse(model.double(), batches)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_noise_is_drawn_in_the_dtype_of_the_products(dtype: torch.dtype) -> None:
    models, batches = make_batches(SMALL, seeds=[0, 1])
    engine = FusedEngine(models, batches, dtype)
    batches.start_block(0)
    assert engine._noise.dtype == batches.noise.dtype == dtype
    assert engine._noise.float().std().item() == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("seeds", [[0], [0, 1]], ids=["one member", "two members"])
@pytest.mark.parametrize(("saved", "loaded"), [("bf16", "bf16"), ("bf16", "eager"), ("eager", "bf16")])
def test_a_state_is_loaded_from_another_engine_without_loss(saved: str, loaded: str, seeds: list[int]) -> None:
    """Only the first moments of matrices, which are bf16 where products are, lose bits."""

    def make_engine(name: str) -> EagerEngine | FusedEngine:
        models, batches = make_batches(SMALL, seeds)
        return EagerEngine(models, batches) if name == "eager" else FusedEngine(models, batches)

    draw = torch.Generator().manual_seed(0)
    state = make_engine(saved).state_dict()
    for tensor in state.values():
        if tensor.dtype != torch.uint8:
            tensor.copy_(torch.rand(tensor.shape, generator=draw))
    engine = make_engine(loaded)
    engine.load_state_dict(state, updates=3)
    for name, tensor in engine.state_dict().items():
        is_rounded = loaded == "bf16" and name.startswith("mean.") and name.endswith("weight")
        if tensor.dtype != torch.uint8:  # those are the states of random generators
            assert tensor.dtype == (torch.bfloat16 if is_rounded else torch.float32), name
        assert torch.equal(tensor, state[name].to(tensor.dtype)), name


def test_the_packed_model_follows_the_engine_and_models_are_copies() -> None:
    models, batches = make_batches(SMALL, seeds=[0, 1])
    engine = FusedEngine(models, batches)
    (packed,), before = engine.packed(), engine.models()
    engine._parameters.matrices.values.add_(1.0)
    assert torch.equal(packed.rungs[1].weight, torch.stack([model.rungs[1].weight + 1 for model in models]))
    for model, copy in zip(models, before, strict=True):
        assert torch.equal(copy.rungs[1].weight, model.rungs[1].weight)
        assert torch.equal(copy.rungs[2].denoiser.a, model.rungs[2].denoiser.a)


def test_an_engine_frees_its_memory_without_the_garbage_collector() -> None:
    """The next engine is planned with all of a GPU's memory."""
    gc.collect()
    gc.disable()
    try:
        engine = FusedEngine(*make_batches(SMALL))
        parameters = weakref.ref(engine._parameters.matrices.values)
        assert engine.packed()
        del engine
        assert parameters() is None
    finally:
        gc.enable()


# Compiling for an H200 (simulated target)


WIDE = Recipe(network=(256,), denoiser="mlp", activation="gelu")


@pytest.mark.skipif(torch.__version__ < MIN_TORCH, reason=f"Triton of torch before {MIN_TORCH} is not used")
@pytest.mark.parametrize(
    ("recipe", "shape", "members", "dtype"),
    [(Recipe(), (784,), 1, torch.bfloat16), (WIDE, (256,), 32, torch.float32)],
    ids=["paper's network, bf16", "32 members, float32"],
)
def test_every_kernel_compiles_for_an_h200(
    recipe: Recipe,
    shape: tuple[int, ...],
    members: int,
    dtype: torch.dtype,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A program has 8 columns for one member, and 16 and 32 for many."""
    h200 = SimpleNamespace(
        get_current_target=lambda: GPUTarget("cuda", 90, 32),
        get_current_device=lambda: "H200",  # a key of Triton's cache in memory that no real GPU has
        get_current_stream=lambda _: 0,
    )
    monkeypatch.setattr("triton.runtime.jit.driver", SimpleNamespace(active=h200))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    compiled, launch = set(), JITFunction.run

    def compile_only(kernel: Any, *args: Any, warmup: bool, **settings: Any) -> None:  # noqa: ARG001
        assert launch(kernel, *args, warmup=True, **settings).asm["cubin"]
        compiled.add(kernel.__name__)

    monkeypatch.setattr(JITFunction, "run", compile_only)
    engine = FusedEngine(*make_batches(recipe, range(members), shape, rows=200), dtype)
    prepare(engine)
    engine.update(range(1))
    assert compiled == set(WRITTEN)


def test_the_warm_up_launches_every_kernel_with_every_alignment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton compiles a kernel for each alignment of its pointers, and cannot while a graph is captured."""
    launched: set[object] = set()

    def record(kernel: Any, *args: Any, **settings: Any) -> None:
        constants = frozenset((name, value) for name, value in settings.items() if name.isupper())
        aligned = tuple(each.data_ptr() % 16 == 0 for each in args if isinstance(each, Tensor))
        launched.add((kernel.__name__, constants, aligned))

    monkeypatch.setattr(JITFunction, "run", record)
    recipe = replace(SMALL, network=(5,), labeled_batch_size=9)
    engine = FusedEngine(*make_batches(recipe, shape=(9,), block=10, rows=200))
    assert engine._noise.shape[1] == 10
    assert engine._noise.shape[2] % 2  # an odd number of two bytes each
    prepare(engine)
    engine.update(range(WARM_UP))
    warm, launched = launched, set()
    engine.update(range(10))
    assert len(launched) > 8
    assert launched <= warm


# Order of work on the side streams (simulated streams: kernels are not run, their launches are recorded)

WRITTEN = {
    "gather_kernel": {"hidden"},
    "encode_kernel": {"hidden", "statistics"},
    "top_kernel": {"signal", "grad_scores", "cost"},
    "decode_kernel": {"denoised", "signal_statistics", "cost"},
    "decode_backward_kernel": {"grad_signal", "grad_latents", "grad_statistics", "grad_denoiser"},
    "top_backward_kernel": {"grad_scores"},
    "encode_backward_kernel": {"grad_projected", "grad_beta", "grad_gamma"},
    "adam_kernel": {"parameters", "means", "squares", "copies"},
}
"""The arguments that each kernel writes; it reads the other tensors."""


class Stream:
    """A stream that knows how many launches of every stream are finished before its own next one begins."""

    device = torch.device("cpu")

    def __init__(self, *_: Any, **__: Any) -> None:
        self.finished: dict[Stream, int] = {self: 0}
        self.captured = False

    def wait_stream(self, other: Stream) -> None:
        assert other.captured, "a capture allows no wait for a stream that is not part of it"
        self.captured = True
        for stream, launches in other.finished.items():
            self.finished[stream] = max(self.finished.get(stream, 0), launches)


@dataclass
class Access:
    """A launch's access to a range of addresses."""

    kernel: str
    stream: Stream
    launch: int
    begin: int
    end: int
    written: bool


class Recorder:
    """Records launches, their streams, and pairs of kernels that use the same bytes in no fixed order (`races`)."""

    def __init__(self) -> None:
        self.current = [Stream()]
        self.accesses: list[Access] = []
        self.races: list[tuple[str, str]] = []
        self.launches = 0
        self.interrupt_at = -1

    @contextmanager
    def on_stream(self, stream: Stream) -> Iterator[None]:
        self.current.append(stream)
        try:
            yield
        finally:
            self.current.pop()

    def launch_kernel(self, kernel: Any, *args: Any, **_: Any) -> None:
        tensors = {name: each for name, each in zip(kernel.arg_names, args, strict=False) if isinstance(each, Tensor)}
        assert tensors.keys() >= WRITTEN[kernel.__name__]
        self.launch(kernel.__name__, [(each, name in WRITTEN[kernel.__name__]) for name, each in tensors.items()])

    def launch_product(self, one: Tensor, other: Tensor, out: Tensor) -> None:
        self.launch("product", [(one, False), (other, False), (out, True)])

    def launch(self, kernel: str, tensors: list[tuple[Tensor, bool]]) -> None:
        if self.launches == self.interrupt_at:
            raise KeyboardInterrupt
        self.launches += 1
        stream = self.current[-1]
        stream.finished[stream] += 1
        new = []
        for tensor, written in tensors:
            if tensor.numel():
                span = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
                begin = tensor.data_ptr()
                end = begin + span * tensor.element_size()
                new.append(Access(kernel, stream, stream.finished[stream], begin, end, written))
        for access in new:
            for earlier in self.accesses:
                overlap = access.begin < earlier.end and earlier.begin < access.end
                ordered = earlier.launch <= stream.finished.get(earlier.stream, 0)
                if overlap and (access.written or earlier.written) and not ordered:
                    self.races.append((earlier.kernel, kernel))
        self.accesses += new

    def main_stream_waited_for_all(self) -> bool:
        (main,) = self.current
        return all(access.launch <= main.finished.get(access.stream, 0) for access in self.accesses)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    monkeypatch.setattr(JITFunction, "run", lambda *args, **settings: recorder.launch_kernel(*args, **settings))
    monkeypatch.setattr(torch, "bmm", recorder.launch_product)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", recorder.on_stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: recorder.current[-1])
    monkeypatch.setattr(engine_module, "_side_stream", lambda _, priority: SideStream(torch.device("cuda"), priority))
    return recorder


def update_twice(recorder: Recorder, recipe: Recipe, block: int = 3) -> None:
    """Make all updates of a block twice, as two captures, with one member, whose tensors are contiguous."""
    engine = FusedEngine(*make_batches(recipe, block=block, rows=120))
    prepare(engine)
    for _ in range(2):
        for stream in recorder.current[0].finished:
            stream.captured = stream is recorder.current[0]
        engine.update(range(block))


@pytest.mark.parametrize("block", [1, 2, 3])
@pytest.mark.parametrize(
    ("costs", "streams"),
    [((10.0, 1.0, 0.1), 3), ((10.0, 0.0, 0.0, 0.0), 3), ((0.0, 2.0, 0.0, 0.0), 3), ((1.0,), 2), ((0.0,), 2)],
    ids=["full", "input cost only", "middle cost only", "gamma", "supervised only"],
)
def test_no_stream_touches_what_another_one_uses(
    recorder: Recorder, costs: tuple[float, ...], streams: int, block: int
) -> None:
    """A Γ-model and a supervised network have no decoder matrices, and so nothing on the decoder's stream."""
    update_twice(recorder, replace(SMALL, costs=costs), block)
    assert recorder.races == []
    assert recorder.main_stream_waited_for_all()
    assert len({access.stream for access in recorder.accesses}) == streams


def test_an_interrupted_update_leaves_no_stream_running(recorder: Recorder) -> None:
    recipe = replace(SMALL, network=(8,))
    update_twice(recorder, recipe, block=2)
    for launch in range(recorder.launches // 2):
        recorder.accesses.clear()
        recorder.launches, recorder.interrupt_at = 0, launch
        with pytest.raises(KeyboardInterrupt):
            update_twice(recorder, recipe, block=2)
        assert recorder.main_stream_waited_for_all(), f"launch {launch}"


@pytest.mark.parametrize("method", ["run", "join"])
def test_a_missing_wait_is_recorded_as_a_race(recorder: Recorder, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    wait = Stream.wait_stream

    def forget(stream: Stream, other: Stream) -> None:
        if (stream is recorder.current[0]) == (method == "run"):
            wait(stream, other)
        else:
            stream.captured = True

    monkeypatch.setattr(Stream, "wait_stream", forget)
    update_twice(recorder, SMALL)
    assert recorder.races


def test_engines_share_their_side_streams() -> None:
    """Products keep scratch memory for every stream that they ever ran on."""
    one, other = (FusedEngine(*make_batches(SMALL)) for _ in range(2))
    assert one._encoder_stream is other._encoder_stream is not one._decoder_stream is other._decoder_stream
