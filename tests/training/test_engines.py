"""The eager engine's updates and state, and which engine is chosen for which models, devices and lengths of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tikas import gamma
from tikas.data.batches import Batches
from tikas.data.splits import split
from tikas.model.ladder import Model
from tikas.training import compiled, engines
from tikas.training.compiled import CompiledEngine, SlowTrainingWarning
from tikas.training.cuda_graph import CudaGraphEngine, SideBySideEngine
from tikas.training.engines import (
    SECOND_THREAD_FROM,
    EagerEngine,
    Engine,
    _choose_gpu_engine,
    choose_engine,
    multiplications,
)
from tikas.training.recipe import Recipe

RECIPE = Recipe(network=(7, 6), costs=(10, 1, 0.1), batch_size=20, labeled_batch_size=10)
MAPS = Recipe(network=("conv 3 3", "max 2"), costs=1.0, batch_size=20, labeled_batch_size=10)
PRODUCTS = replace(MAPS, network=("conv 3 1", "global", "top"))
RATES = torch.full((5,), 0.002)


def parts(recipes: Sequence[Recipe] = (RECIPE,), dtype: torch.dtype = torch.float32) -> tuple[list[Model], Batches]:
    """Members and their batches: 5 updates an epoch."""
    shape = (1, 6, 6) if recipes[0].takes_maps else (5,)
    rows = torch.rand(100, *shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    targets, seeds = torch.arange(100) % 3, range(len(recipes))
    models = [recipe.build(shape, 3, seed).to(dtype) for seed, recipe in enumerate(recipes)]
    splits = [split(targets.numpy(), 30, seed=seed) for seed in seeds]
    return models, Batches(rows, targets, None, splits, seeds, models[0].shapes, 20, 10)


# The eager engine


@pytest.mark.parametrize("members", [1, 3])
def test_an_epoch_returns_the_costs_of_each_update_before_it_was_made(members: int) -> None:
    costs = EagerEngine(*parts([RECIPE] * members)).train_epoch(RATES)
    assert costs.shape == ((5, 1 + 4) if members == 1 else (5, members, 1 + 4))
    models, batches = parts([RECIPE] * members)
    for member, (model, first) in enumerate(zip(models, costs[0].view(members, -1), strict=True)):
        own = batches.for_member(member)
        own.start_epoch()
        batch = own.batch(0)
        expected = model.costs(batch.unlabeled, batch.labeled, batch.targets, batch.noise)
        torch.testing.assert_close(first, torch.cat([expected.supervised[None], expected.denoising]))


def test_the_first_step_moves_each_weight_by_the_learning_rate() -> None:
    """Adam's first step is lr·g/(|g| + 1e-8); a weight without a gradient stays."""
    engine, (before,) = EagerEngine(*parts()), parts()[0]
    engine.batches.start_epoch()
    engine.update(engine.batches.batch(0), torch.tensor(0.01))
    (after,) = engine.models()
    for (name, weight), moved in zip(before.named_parameters(), after.parameters(), strict=True):
        steps = (moved - weight).abs()
        assert (((steps - 0.01).abs() < 1e-4) | (steps == 0)).all(), name
        if "weight" in name and "back" not in name:
            assert (steps > 0).all(), name


def test_rates_of_each_member_make_the_steps_that_one_rate_makes() -> None:
    one, own = EagerEngine(*parts([RECIPE] * 3)), EagerEngine(*parts([RECIPE] * 3))
    costs = one.train_epoch(RATES), own.train_epoch(RATES[:, None].expand(5, 3))
    torch.testing.assert_close(*costs)
    for name, tensor in one.tensors().items():
        torch.testing.assert_close(own.tensors()[name], tensor, msg=name)


def test_a_member_with_rate_zero_stays_and_the_others_move() -> None:
    engine = EagerEngine(*parts([RECIPE] * 3))
    before = engine.model.rungs[1].weight.detach().clone()
    engine.train_epoch(torch.tensor([0.002, 0.0, 0.004]).expand(5, 3))
    moved = (engine.model.rungs[1].weight.detach() - before).abs().amax((1, 2))
    assert moved[1] == 0
    assert moved[2] > 1.5 * moved[0] > 0


@pytest.mark.parametrize("own_rates", [False, True], ids=["one rate", "own rates"])
@pytest.mark.parametrize("members", [1, 2])
def test_an_engine_continues_from_the_state_of_another_with_the_same_bits(members: int, own_rates: bool) -> None:
    rates = RATES[:, None].expand(5, members) if own_rates else RATES
    recipes = [RECIPE] * members
    whole, first, second = (EagerEngine(*parts(recipes)) for _ in range(3))
    costs = [whole.train_epoch(rates) for _ in range(2)]
    first.train_epoch(rates)
    state = first.state_dict()
    assert {len(tensor) for tensor in state.values()} == {members}
    names = [name for name, _ in first.model.named_parameters()]
    kinds = ("model", "mean", "square")
    assert state.keys() == {f"{kind}.{name}" for kind in kinds for name in names} | {"batches.order", "batches.noise"}
    second.load_state_dict(state, updates=5)
    assert torch.equal(second.train_epoch(rates), costs[1])
    for name, tensor in whole.tensors().items():
        assert torch.equal(second.tensors()[name], tensor), name


def test_the_state_of_other_models_raises_value_error_that_names_tensor_and_shapes() -> None:
    state = EagerEngine(*parts([replace(RECIPE, network=(8, 6))])).state_dict()
    with pytest.raises(ValueError, match="delete the snapshot") as raised:
        EagerEngine(*parts()).load_state_dict(state, updates=5)
    for words in ("model.rungs.1.", "(1, 8)", "(1, 7)"):
        assert words in str(raised.value)
    with pytest.raises(ValueError, match=r"shape \(1, "):
        EagerEngine(*parts([RECIPE] * 2)).load_state_dict(EagerEngine(*parts()).state_dict(), updates=5)


def test_the_state_of_a_module_has_its_buffers() -> None:
    (_,), batches = parts()
    network = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    model = gamma(network, 3, example=torch.zeros(2, 5))
    state = EagerEngine([model], batches).state_dict()
    assert state["model.network.1.running_mean"].shape == (1, 4)
    assert "mean.network.0.weight" in state


def test_every_engine_has_what_the_protocol_names() -> None:
    names = {name for name in vars(Engine) if not name.startswith("_")} | set(Engine.__annotations__)
    state = {"state_dict", "load_state_dict"}
    assert names == {"members", "batches", "preparation", "train_epoch", "models", "packed", *state}
    for engine in (EagerEngine(*parts()), CompiledEngine(*parts()), CudaGraphEngine(*parts(), compiled=False)):
        assert names <= set(dir(engine))
    assert names <= set(dir(SideBySideEngine(*parts([MAPS] * 2), compiled=False)))


# The choice of an engine


LONG = 10**12
"""Updates of a run that is worth compiling, whatever the model."""


@pytest.fixture
def can_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "compile_obstacle", lambda _: None)
    monkeypatch.setattr(compiled, "bf16_is_faster", lambda: True)


@pytest.mark.usefixtures("can_compile")
@pytest.mark.parametrize(
    ("updates", "exact", "dtype", "expected"),
    [
        (5, False, torch.float32, None),
        (LONG, False, torch.float32, torch.bfloat16),
        (LONG, True, torch.float32, torch.float32),
        (LONG, False, torch.float64, torch.float32),
    ],
    ids=["short", "long", "exact", "double"],
)
def test_long_runs_of_dense_ladders_are_compiled_on_a_cpu(updates, exact, dtype, expected, monkeypatch) -> None:
    engine = choose_engine(*parts(dtype=dtype), updates, exact=exact)
    if expected is None:
        assert isinstance(engine, EagerEngine)
        return
    assert isinstance(engine, CompiledEngine)
    assert engine.dtype == expected  # float32: that of the parameters
    monkeypatch.setattr(compiled, "bf16_is_faster", lambda: False)
    slow = choose_engine(*parts(dtype=dtype), updates, exact=exact)
    assert isinstance(slow, CompiledEngine)
    assert slow.dtype == torch.float32


@pytest.mark.usefixtures("can_compile")
def test_maps_frozen_parameters_and_modules_are_not_compiled_on_a_cpu() -> None:
    assert isinstance(choose_engine(*parts([MAPS]), LONG, exact=False), EagerEngine)
    models, batches = parts()
    models[0].rungs[1].weight.requires_grad_(False)
    before = models[0].rungs[1].weight.clone()
    engine = choose_engine(models, batches, LONG, exact=False)
    assert isinstance(engine, EagerEngine)
    engine.train_epoch(RATES)
    assert torch.equal(engine.models()[0].rungs[1].weight, before)
    module = gamma(nn.Linear(5, 3), 3, example=torch.zeros(2, 5))
    assert isinstance(choose_engine([module], batches, LONG, exact=False), EagerEngine)


def test_without_a_compiler_a_long_run_is_eager_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "compile_obstacle", lambda _: "there is no compiler")
    with pytest.warns(SlowTrainingWarning, match="there is no compiler") as warned:
        engine = choose_engine(*parts(), LONG, exact=False)
    assert isinstance(engine, EagerEngine)
    assert len(warned) == 1


@pytest.mark.parametrize(
    ("recipes", "expected"),
    [
        ([RECIPE], CudaGraphEngine),
        ([RECIPE] * 2, CudaGraphEngine),
        ([MAPS], CudaGraphEngine),
        ([MAPS] * 2, SideBySideEngine),
        ([PRODUCTS] * 2, CudaGraphEngine),
    ],
    ids=["dense", "dense members", "maps", "members on maps", "convolutions 1x1"],
)
def test_short_runs_on_a_gpu_are_captured_and_members_with_convolutions_side_by_side(recipes, expected) -> None:
    assert type(_choose_gpu_engine(*parts(recipes), compiled=False, exact=True)) is expected


@pytest.mark.parametrize(("exact", "dtype"), [(True, torch.float32), (False, torch.bfloat16)])
def test_long_runs_of_dense_ladders_on_a_gpu_are_fused(exact: bool, dtype: torch.dtype) -> None:
    pytest.importorskip("triton", reason="Triton is not installed on this machine")
    from tikas.training.fused.engine import FusedEngine

    engine = _choose_gpu_engine(*parts(), compiled=True, exact=exact)
    assert isinstance(engine, FusedEngine)
    assert engine.batches.noise.dtype == dtype
    assert type(_choose_gpu_engine(*parts([MAPS]), compiled=True, exact=exact)) is CudaGraphEngine


class OnGpu:
    """Batches of which the device is said to be a GPU."""

    device = torch.device("cuda")
    share = (0, 1)

    def __init__(self, batches: Batches) -> None:
        self.batch_size, self.labeled_batch_size = batches.batch_size, batches.labeled_batch_size


@pytest.mark.usefixtures("can_compile")
@pytest.mark.parametrize(("updates", "expected"), [(5, False), (LONG, True)])
def test_a_gpu_compiles_long_runs(updates: int, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[Any] = []
    monkeypatch.setattr(engines, "_choose_gpu_engine", lambda *_, compiled, exact: chosen.append((compiled, exact)))
    models, batches = parts([MAPS])
    choose_engine(models, OnGpu(batches), updates, exact=True)
    assert chosen == [(expected, True)]


# The work of an update


def test_multiplications_count_parameters_rows_members_and_positions() -> None:
    rows = 2 * 20 + 10
    models, batches = parts([RECIPE] * 3)
    parameters = sum(parameter.numel() for parameter in models[0].parameters())
    assert multiplications(models, batches) == 3 * rows * parameters
    models, batches = parts([MAPS])
    convolution, top = models[0].rungs[1], models[0].rungs[3]
    work = 4 * 4 * _count(convolution.parameters()) + 2 * 2 * _count(models[0].rungs[2].parameters())
    assert multiplications(models, batches) == rows * (work + _count(top.parameters()))
    module = gamma(nn.Linear(5, 3), 3, example=torch.zeros(2, 5))
    assert multiplications([module], batches) == rows * _count(module.parameters())


def _count(parameters: Any) -> int:
    return sum(parameter.numel() for parameter in parameters)


def test_a_few_weights_on_large_maps_are_worth_a_second_thread_and_a_small_dense_ladder_is_not() -> None:
    recipe = Recipe(network=("conv 32 5", "max 2", "conv 32 3"), costs=1.0)
    rows = torch.rand(100, 1, 28, 28)
    model = recipe.build((1, 28, 28), 10, seed=0)
    targets = torch.arange(100) % 10
    batches = Batches(rows, targets, None, [split(targets.numpy(), 30)], [0], model.shapes, 100, 100)
    assert multiplications([model], batches) > SECOND_THREAD_FROM
    assert multiplications(*parts()) < SECOND_THREAD_FROM


def test_adam_is_the_fused_one_of_pytorch_and_capturable_where_asked_for() -> None:
    engine = EagerEngine(*parts())
    assert engine.optimizer.defaults["fused"]
    assert not engine.optimizer.defaults["capturable"]
    assert EagerEngine(*parts(), capturable=True).optimizer.defaults["capturable"]


def test_maps_of_a_single_member_are_channels_last() -> None:
    engine = EagerEngine(*parts([MAPS]))
    weight: Tensor = engine.model.rungs[1].weight
    assert weight.is_contiguous(memory_format=torch.channels_last)
