"""The compiled fleet of a CPU: it learns what the plain one learns, in float32 and by copies of its matrices in bf16.

Compiling itself is left to `test_engine.py`; here functions run as they are.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tikas.data.splits import split
from tikas.data.streams import Examples, Streams
from tikas.model.dense import product
from tikas.training import engine
from tikas.training.building import build_ladder
from tikas.training.compiled import CompiledFleet, adam_step
from tikas.training.compilers import SlowerWarning
from tikas.training.fleet import Fleet
from tikas.training.recipe import Recipe

RECIPE = Recipe(data="array", network=(7, 6), costs=(10.0, 1.0, 0.1, 0.1), batch_size=20, labeled_batch_size=10)
RATES = torch.full((5,), 0.002)


@pytest.fixture(autouse=True)
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)


def fleet_of(kind: type[Fleet], recipes: Sequence[Recipe] = (RECIPE,), **more: torch.dtype) -> Fleet:
    rows = torch.rand(100, 5, generator=torch.Generator().manual_seed(0))
    targets, seeds = (rows[:, 0] * 3).long(), range(len(recipes))
    ladders = [build_ladder(recipe, (5,), 3, seed) for seed, recipe in enumerate(recipes)]
    splits = [split(targets.numpy(), 30, seed=seed) for seed in seeds]
    return kind(ladders, Streams(Examples(rows, targets, 3), splits, seeds, ladders[0].shapes, 20, 10), **more)


def assert_alike(ours: Fleet, theirs: Fleet, rates: Tensor = RATES, **bounds: float) -> None:
    torch.testing.assert_close(ours.train_epoch(rates), theirs.train_epoch(rates), **bounds)
    for name, place in theirs.tensors().items():
        torch.testing.assert_close(ours.tensors()[name], place, **bounds, msg=lambda said, name=name: f"{name}: {said}")


@pytest.mark.parametrize("members", [1, 3], ids=["alone", "in company"])
@pytest.mark.parametrize("costs", [RECIPE.costs, (1.0,), (0.0,)], ids=["full", "gamma", "baseline"])
def test_its_updates_are_the_plain_ones(members: int, costs: tuple[float, ...]) -> None:
    recipes = [replace(RECIPE, costs=costs)] * members
    assert_alike(fleet_of(CompiledFleet, recipes), fleet_of(Fleet, recipes), rtol=1e-5, atol=1e-6)


def test_members_learn_at_rates_of_their_own() -> None:
    recipes, rates = [RECIPE] * 3, torch.tensor([0.002, 0.01, 0.0]).expand(5, 3)
    assert_alike(fleet_of(CompiledFleet, recipes), fleet_of(Fleet, recipes), rates, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("members", [1, 3], ids=["alone", "in company"])
def test_in_half_it_stays_close_and_is_not_the_same(members: int) -> None:
    exact, half = fleet_of(Fleet, [RECIPE] * members), fleet_of(CompiledFleet, [RECIPE] * members, dtype=torch.bfloat16)
    costs = exact.train_epoch(RATES), half.train_epoch(RATES)
    torch.testing.assert_close(*costs, rtol=3e-2, atol=3e-2)
    assert (costs[0] - costs[1]).abs().max() > 1e-4


def test_the_copies_that_products_read_follow_the_weights_that_learn_and_nothing_else_is_copied() -> None:
    fleet = fleet_of(CompiledFleet, dtype=torch.bfloat16)
    before = fleet.ladder.rungs[1].weight.detach().clone()
    fleet.train_epoch(RATES)
    assert not torch.equal(fleet.ladder.rungs[1].weight, before)
    read = dict(fleet.learning.named_parameters())
    for name, value in fleet.ladder.named_parameters():
        is_matrix = name.endswith("weight")
        assert value.dtype == torch.float32
        assert read[name].dtype == (torch.bfloat16 if is_matrix else torch.float32), name
        assert torch.equal(read[name], value.to(read[name].dtype)), name
        assert (read[name].data_ptr() != value.data_ptr()) is is_matrix, name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_goes_on_from_where_it_was_as_if_nothing_had_been(dtype: torch.dtype) -> None:
    whole, first, second = (fleet_of(CompiledFleet, [RECIPE] * 2, dtype=dtype) for _ in range(3))
    whole.train_epoch(RATES)
    first.train_epoch(RATES)
    second.go_on_from(first.snapshot(), updates=5)
    assert torch.equal(second.train_epoch(RATES), whole.train_epoch(RATES))
    assert all(torch.equal(place, whole.tensors()[name]) for name, place in second.tensors().items())


def test_its_optimiser_is_adam() -> None:
    draw = torch.Generator().manual_seed(0)
    value, mean, square = torch.randn(3, 4, generator=draw, dtype=torch.float64), *torch.zeros(2, 3, 4).double()
    theirs = value.clone().requires_grad_()
    adam = torch.optim.Adam([theirs], lr=0.002)
    for step in range(1, 6):
        gradient = torch.randn(3, 4, generator=draw, dtype=torch.float64)
        theirs.grad = gradient.clone()
        adam.step()
        rate, spread = torch.tensor(0.002).double() / (1 - 0.9**step), torch.tensor((1 - 0.999**step) ** -0.5).double()
        adam_step([value], [gradient], [mean], [square], [None], rate, spread)
        torch.testing.assert_close(value, theirs.detach(), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("members", [(), (2,)], ids=["alone", "in company"])
def test_products_with_matrices_in_bf16_are_in_bf16_both_ways(members: tuple[int, ...]) -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(*members, 5, 4, generator=draw).requires_grad_()
    weight = torch.randn(*members, 3, 4, generator=draw).bfloat16().requires_grad_()
    gradient = torch.randn(*members, 5, 3, generator=draw)
    made = product(x, weight)
    made.backward(gradient)
    half, of_half = x.detach().bfloat16(), gradient.bfloat16()
    for got, expected, dtype in (
        (made, half @ weight.mT, torch.float32),
        (x.grad, of_half @ weight, torch.float32),
        (weight.grad, of_half.mT @ half, torch.bfloat16),
    ):
        assert got.dtype == dtype
        # Sums in another order may be rounded to another side; of exact products hardly one has so few bits.
        assert (got == expected.to(dtype)).float().mean() > 0.9


@pytest.fixture
def long_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run is worth compiling, and products in bf16 are quicker."""
    monkeypatch.setattr(engine, "_half_is_quicker", lambda: True)
    monkeypatch.setattr(engine, "_can_compile", lambda _: True)
    monkeypatch.setattr(engine, "WORTH_COMPILING", 0)


def relaunched(fleet: Fleet, kind: torch.dtype) -> Fleet:
    """The fleet that the engine makes of the same members, with rows and weights of this type."""
    streams, ladders = fleet.streams, [ladder.to(kind) for ladder in fleet.ladders]
    examples = streams.examples._replace(rows=streams.examples.rows.to(kind))
    again = Streams(examples, streams._splits, [0], ladders[0].shapes, 20, 10)
    return engine.launch(ladders, again, updates=5)


@pytest.mark.usefixtures("long_runs")
def test_ladders_in_double_precision_stay_there() -> None:
    assert relaunched(fleet_of(Fleet), torch.float32).learning.rungs[1].weight.dtype == torch.bfloat16
    ours = relaunched(fleet_of(Fleet), torch.float64)
    assert isinstance(ours, CompiledFleet)
    theirs = Fleet(ours.ladders, relaunched(fleet_of(Fleet), torch.float64).streams)
    assert_alike(ours, theirs, rtol=1e-7, atol=1e-9)


@pytest.mark.usefixtures("long_runs")
def test_a_ladder_with_parameters_that_are_not_to_learn_is_left_to_the_plain_fleet() -> None:
    plain = fleet_of(Fleet)
    plain.ladders[0].rungs[1].weight.requires_grad_(False)
    fleet, before = relaunched(plain, torch.float32), plain.ladders[0].rungs[1].weight.clone()
    assert type(fleet) is Fleet
    fleet.train_epoch(RATES)
    assert torch.equal(fleet.ladder.rungs[1].weight, before)


def test_where_the_optimiser_alone_cannot_be_compiled_both_run_uncompiled_and_no_step_is_taken_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def compile_costs_alone(function: Callable[..., object], **_: object) -> Callable[..., object]:
        def fail(*_: object) -> None:
            raise OSError("no room for the optimiser")

        return fail if function is adam_step else function

    monkeypatch.setattr(torch, "compile", compile_costs_alone)
    ours = fleet_of(CompiledFleet)
    with pytest.warns(SlowerWarning, match="no room for the optimiser") as warned:
        assert_alike(ours, fleet_of(Fleet), rtol=1e-5, atol=1e-6)
    assert len(warned) == 1
