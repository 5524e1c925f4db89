"""The compiled engine: its updates are the eager ones, and it runs uncompiled where nothing can be compiled.

Compiling takes half a minute. It is done once, in the fixture `really_compiled`; elsewhere functions run as they are.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._dynamo import config as dynamo
from torch._dynamo.utils import counters
from torch.fx.experimental.proxy_tensor import make_fx
from torch.torch_version import TorchVersion

from tikas.data.batches import Batches
from tikas.data.datasets import Dataset
from tikas.data.splits import split
from tikas.model.ladder import Model
from tikas.model.layers import product
from tikas.training import checkpoint, compiled, trainer
from tikas.training.callbacks import Progress
from tikas.training.checkpoint import Checkpointer
from tikas.training.compiled import (
    MIN_TORCH,
    CompiledEngine,
    SlowTrainingWarning,
    adam_step,
    bf16_is_faster,
    compile_function,
    compile_obstacle,
)
from tikas.training.engines import EagerEngine, Engine
from tikas.training.recipe import Recipe
from tikas.training.trainer import Trainer, TrainingResult

CPU = torch.device("cpu")
COMPILES = pytest.mark.skipif(torch.__version__ < MIN_TORCH, reason=f"torch before {MIN_TORCH} is not compiled with")
RECIPE = Recipe(network=(7, 6), costs=(10.0, 1.0, 0.1), batch_size=20, labeled_batch_size=10, epochs=4)
RATES = torch.full((5,), 0.002)
ROWS = torch.rand(100, 5, generator=torch.Generator().manual_seed(0))
TARGETS = (ROWS[:, 0] * 3).long()


def engine_of(kind: Callable[..., Engine], recipes: Sequence[Recipe] = (RECIPE,), **options: Any) -> Any:
    """Return an engine; an epoch has 5 updates."""
    seeds = range(len(recipes))
    models = [recipe.build((5,), 3, seed) for seed, recipe in enumerate(recipes)]
    splits = [split(TARGETS.numpy(), 30, seed=seed) for seed in seeds]
    return kind(models, Batches(ROWS, TARGETS, None, splits, seeds, models[0].shapes, 20, 10), **options)


def assert_same_epoch(one: Engine, other: Engine, rates: Tensor = RATES, **tolerance: float) -> None:
    torch.testing.assert_close(one.train_epoch(rates), other.train_epoch(rates), **tolerance)
    assert_same_tensors(one, other, **tolerance)


def assert_same_tensors(one: Any, other: Any, **tolerance: float) -> None:
    for name, tensor in other.tensors().items():
        torch.testing.assert_close({name: one.tensors()[name]}, {name: tensor}, **tolerance)


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)


# Really compiled


class Compiled(NamedTuple):
    """A compiled engine after an epoch, the eager one after the same epoch, and what torch counted."""

    engine: CompiledEngine
    eager: EagerEngine
    costs: tuple[Tensor, Tensor]
    graphs: list[int]
    """Compiled graphs before the compiled engine, after it, and after the second one."""
    not_kept: int
    """Programs that torch did not keep on disk."""


@pytest.fixture(scope="module")
def really_compiled() -> Compiled:
    """Two members with their own rates. A second engine for them follows the first, to be compiled again or not."""
    obstacle = compile_obstacle(CPU)
    if obstacle is not None:
        pytest.skip(obstacle)
    recipes, rates = [replace(RECIPE, network=(4,))] * 2, torch.tensor([0.002, 0.004]).expand(5, 2)
    engine, again, eager = (engine_of(kind, recipes) for kind in (CompiledEngine, CompiledEngine, EagerEngine))
    costs, graphs = [], [counters["stats"]["unique_graphs"]]
    not_kept_before = counters["aot_autograd"]["autograd_cache_bypass"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of torch.compile
        warnings.simplefilter("error", SlowTrainingWarning)
        for each in (engine, again, eager):
            costs.append(each.train_epoch(rates))
            graphs.append(counters["stats"]["unique_graphs"])
    not_kept = counters["aot_autograd"]["autograd_cache_bypass"] - not_kept_before
    return Compiled(engine, eager, (costs[0], costs[2]), graphs, not_kept)


def test_compiled_updates_are_the_eager_ones(really_compiled: Compiled) -> None:
    torch.testing.assert_close(*really_compiled.costs, rtol=1e-5, atol=1e-6)
    assert_same_tensors(really_compiled.engine, really_compiled.eager, rtol=1e-4, atol=1e-5)


def test_a_second_engine_uses_the_compiled_code_and_so_can_the_next_process(really_compiled: Compiled) -> None:
    before, after, after_another, *_ = really_compiled.graphs
    assert after - before == 2  # the costs and the optimizer
    assert after_another == after
    assert really_compiled.not_kept == 0


# Its updates


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("costs", [RECIPE.costs, (1.0,), (0.0,)], ids=["all costs", "top alone", "supervised"])
def test_updates_are_the_eager_ones(members: int, costs: tuple[float, ...]) -> None:
    recipes = [replace(RECIPE, costs=costs)] * members
    assert_same_epoch(engine_of(CompiledEngine, recipes), engine_of(EagerEngine, recipes), rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("uncompiled")
def test_members_have_their_own_rates_noise_and_costs() -> None:
    recipes = [RECIPE, replace(RECIPE, noise=(0.5, 0.1)), replace(RECIPE, costs=(3.0, 2.0, 0.7))]
    rates = torch.tensor([0.002, 0.01, 0.0]).expand(5, 3)
    compiled_engine, eager = engine_of(CompiledEngine, recipes), engine_of(EagerEngine, recipes)
    assert_same_epoch(compiled_engine, eager, rates, rtol=1e-5, atol=1e-6)
    for one, other in zip(compiled_engine.models(), eager.models(), strict=True):
        torch.testing.assert_close(one.rungs[1].weight, other.rungs[1].weight)
        assert one.rungs[0].noise == other.rungs[0].noise


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("members", [1, 3])
def test_products_in_bf16_are_close_to_exact_ones_and_differ(members: int) -> None:
    exact = engine_of(EagerEngine, [RECIPE] * members)
    fast = engine_of(CompiledEngine, [RECIPE] * members, dtype=torch.bfloat16)
    costs = exact.train_epoch(RATES), fast.train_epoch(RATES)
    torch.testing.assert_close(*costs, rtol=3e-2, atol=3e-2)
    assert (costs[0] - costs[1]).abs().max() > 1e-4


@pytest.mark.usefixtures("uncompiled")
def test_products_read_bf16_copies_that_follow_the_matrices_and_nothing_else_is_copied() -> None:
    engine = engine_of(CompiledEngine, dtype=torch.bfloat16)
    before = engine.model.rungs[1].weight.detach().clone()
    engine.train_epoch(RATES)
    assert not torch.equal(engine.model.rungs[1].weight, before)
    read = dict(engine.learning.named_parameters())
    for name, value in engine.model.named_parameters():
        is_matrix = name.endswith("weight")
        assert value.dtype == torch.float32
        assert read[name].dtype == (torch.bfloat16 if is_matrix else torch.float32), name
        assert torch.equal(read[name], value.to(read[name].dtype)), name
        assert (read[name].data_ptr() != value.data_ptr()) is is_matrix, name
    assert engine.packed() == [engine.model]


@pytest.mark.parametrize("members", [(), (2,)], ids=["one member", "two members"])
def test_products_with_bf16_matrices_are_in_bf16_forward_and_backward(members: tuple[int, ...]) -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(*members, 5, 4, generator=draw).requires_grad_()
    weight = torch.randn(*members, 3, 4, generator=draw).bfloat16().requires_grad_()
    gradient = torch.randn(*members, 5, 3, generator=draw)
    output = product(x, weight)
    output.backward(gradient)
    x_bf16, gradient_bf16 = x.detach().bfloat16(), gradient.bfloat16()
    for found, expected, dtype in (
        (output, x_bf16 @ weight.mT, torch.float32),
        (x.grad, gradient_bf16 @ weight, torch.float32),
        (weight.grad, gradient_bf16.mT @ x_bf16, torch.bfloat16),
    ):
        assert found.dtype == dtype
        # Sums in another order may be rounded differently; hardly any exact product has so few digits.
        assert (found == expected.to(dtype)).float().mean() > 0.9


def test_the_optimizer_is_adam() -> None:
    draw = torch.Generator().manual_seed(0)
    value, mean, square = torch.randn(3, 4, generator=draw, dtype=torch.float64), *torch.zeros(2, 3, 4).double()
    expected = value.clone().requires_grad_()
    adam = torch.optim.Adam([expected], lr=0.002)
    for step in range(1, 6):
        expected.grad = torch.randn(3, 4, generator=draw, dtype=torch.float64)
        adam.step()
        rate, scale = torch.tensor(0.002).double() / (1 - 0.9**step), torch.tensor((1 - 0.999**step) ** -0.5).double()
        adam_step([value], [expected.grad], [mean], [square], [None], rate, scale)
        torch.testing.assert_close(value, expected.detach(), rtol=1e-7, atol=1e-9)


# Resuming


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_engine_continues_from_the_state_of_another_with_the_same_bits(dtype: torch.dtype, members: int) -> None:
    whole, first, second = (engine_of(CompiledEngine, [RECIPE] * members, dtype=dtype) for _ in range(3))
    expected = [whole.train_epoch(RATES) for _ in range(2)][1]
    first.train_epoch(RATES)
    assert first.state_dict().keys() == engine_of(EagerEngine, [RECIPE] * members).state_dict().keys()
    second.load_state_dict(first.state_dict(), updates=5)
    assert torch.equal(second.train_epoch(RATES), expected)
    for name, tensor in whole.tensors().items():
        assert torch.equal(second.tensors()[name], tensor), name


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("stop_after", [1, 3])
def test_an_interrupted_fit_with_compiled_updates_resumes_to_the_same_bits(tmp_path, monkeypatch, stop_after) -> None:
    def choose_compiled(models: Sequence[Model], batches: Batches, *_: object, **__: object) -> CompiledEngine:
        return CompiledEngine(models, batches, torch.bfloat16)

    def train(checkpointer: Checkpointer | None = None, interrupt_after: int | None = None) -> TrainingResult:
        def callback(progress: Progress) -> None:
            if progress.members and progress.epoch == interrupt_after:
                raise KeyboardInterrupt

        dataset = Dataset(ROWS.numpy(), TARGETS.numpy(), classes=np.arange(3))
        recipes = [RECIPE, replace(RECIPE, learning_rate=0.004)]
        splits = [split(dataset.targets, 30, seed=seed) for seed in range(2)]
        trainer = Trainer(recipes, device="cpu", callbacks=[callback], checkpointer=checkpointer)
        return trainer.fit(dataset, splits, range(2))

    monkeypatch.setattr(trainer, "choose_engine", choose_compiled)
    monkeypatch.setattr(checkpoint, "MAX_SHARE_OF_TIME", np.inf)
    expected = train()
    assert train(Checkpointer(tmp_path, seconds=0), stop_after).interrupted
    resumed = train(Checkpointer(tmp_path, seconds=0))
    assert [len(history) for history in resumed.histories] == [4, 4]
    for member, other in zip(resumed.members, expected.members, strict=True):
        for (name, tensor), same in zip(member.state_dict().items(), other.state_dict().values(), strict=True):
            assert torch.equal(tensor, same), name


# Where compiling fails


@pytest.mark.parametrize("failing", ["costs", "optimizer"])
def test_a_function_that_cannot_be_compiled_runs_as_it_is_with_one_warning(monkeypatch, failing: str) -> None:
    def compile_other(function: Callable[..., Any], **_: object) -> Callable[..., Any]:
        def fail(*_: object) -> None:
            raise OSError("no space for the library\nsecond line")

        return fail if (function is adam_step) == (failing == "optimizer") else function

    monkeypatch.setattr(torch, "compile", compile_other)
    engine = engine_of(CompiledEngine)
    with pytest.warns(SlowTrainingWarning, match="no space for the library") as warned:
        assert_same_epoch(engine, engine_of(EagerEngine), rtol=1e-5, atol=1e-6)  # no step is made twice
    assert len(warned) == 1
    assert "\n" not in str(warned[0].message)


def test_an_error_of_the_function_itself_is_raised_without_a_warning() -> None:
    def check(_: Tensor) -> None:
        raise ValueError("invalid rows")

    with pytest.raises(ValueError, match="invalid rows"):  # a warning would be an error, too
        compile_function(check)(torch.zeros(3))


@COMPILES
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_backward_pass_that_cannot_be_compiled_is_noticed_with_the_forward_pass(monkeypatch) -> None:
    from torch._dynamo.backends.common import aot_autograd

    def fail(*_: object) -> None:
        raise OSError("no space for the backward pass")

    backend = aot_autograd(fw_compiler=lambda graph, _: graph, bw_compiler=fail)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    x = torch.ones(3, requires_grad=True)
    with pytest.warns(SlowTrainingWarning, match="no space for the backward pass"):
        result = compile_function(torch.sin)(x)
    result.sum().backward()
    torch.testing.assert_close(x.grad, torch.ones(3).cos())


def test_a_version_of_torch_whose_compiler_fails_is_an_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", TorchVersion("2.10.1+cu128"))
    assert "2.10.1" in compile_obstacle(CPU)


@COMPILES
def test_a_missing_compiler_is_an_obstacle_that_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cxx"
    monkeypatch.setenv("CXX", str(path))
    assert str(path) in compile_obstacle(CPU)
    path.touch(mode=0o755)
    assert compile_obstacle(CPU) is None


@COMPILES
def test_a_gpu_needs_triton_and_a_c_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda")
    monkeypatch.setenv("CC", "missing-compiler")
    monkeypatch.setattr(compiled, "find_spec", lambda _: None)
    assert "Triton" in compile_obstacle(gpu)
    monkeypatch.setattr(compiled, "find_spec", lambda name: name)
    assert "C compiler (missing-compiler)" in compile_obstacle(gpu)


# What torch does not document


@COMPILES
@pytest.mark.parametrize("documented", [True, False], ids=["torch.compile takes the limit", "it does not"])
def test_a_function_is_compiled_for_more_shapes_than_torch_allows_by_itself(monkeypatch, documented: bool) -> None:
    programs: list[torch.fx.GraphModule] = []

    def remember(graph: torch.fx.GraphModule, *_: object, **__: object) -> torch.fx.GraphModule:
        programs.append(graph)
        return graph

    def double(x: Tensor) -> Tensor:
        return 2 * x

    compile_torch = torch.compile

    def older_compile(function: Any, *, dynamic: bool, options: Any) -> Any:
        return compile_torch(function, dynamic=dynamic, options=options, backend=remember)

    monkeypatch.setattr(torch, "compile", partial(compile_torch, backend=remember) if documented else older_compile)
    with dynamo.patch(recompile_limit=1):
        for units in (4, 5, 6):
            assert compile_function(double)(torch.ones(units)).sum() == 2 * units
        assert dynamo.recompile_limit == 1
    assert len(programs) == 3


def test_versions_of_torch_without_the_settings_and_the_pass_compile_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        for name in ("torch._functorch.config", "torch._dynamo.config", "torch._inductor.custom_graph_pass"):
            patch.setitem(sys.modules, name, None)
        with compiled._compiler_settings(limit=True):
            assert compiled._options.__wrapped__() is None
    assert "joint_custom_post_pass" in compiled._options()
    assert compiled._options() is compiled._options()  # engines share compiled code only if it is the same object


def test_the_pass_marks_masks_to_be_recomputed() -> None:
    program = make_fx(lambda x: (x * (x > 0)).exp(), tracing_mode="fake")(torch.ones(2))
    graph_pass = compiled._options()["joint_custom_post_pass"]
    graph_pass(program.graph)
    marked = [(node.name, node.meta["recompute"].name) for node in program.graph.nodes if "recompute" in node.meta]
    assert marked == [("gt", "MUST_RECOMPUTE")]
    assert graph_pass.uuid() == type(graph_pass)().uuid()  # by which torch finds compiled code on disk


# bf16


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        ({"avx512_bf16": True, "amx_bf16": False}, True),
        ({"avx512_bf16": True, "amx_bf16": True}, False),
        ({"avx512_bf16": False}, False),
        ({}, False),  # not an x86 CPU
    ],
)
def test_bf16_is_used_on_cpus_where_it_was_faster(capabilities: dict[str, bool], expected: bool, monkeypatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    assert bf16_is_faster() is expected


def test_versions_of_torch_that_do_not_know_the_cpu_train_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    assert bf16_is_faster() is False
