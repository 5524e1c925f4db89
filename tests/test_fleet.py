"""Many seeds as one program: each learns in company what it would have learnt alone."""

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from tikas.data.splits import Split, split
from tikas.data.streams import Examples, Streams
from tikas.model.dense import DenseRung
from tikas.model.ladder import Ladder
from tikas.model.specs import Dense
from tikas.training.building import build_ladder
from tikas.training.fit import Trained, fit
from tikas.training.fleet import own_settings, stack, unstack
from tikas.training.recipe import Recipe
from tikas.training.storage import FleetParameters

DENOISERS = ["gaussian", "mlp", "no-product", "linear", "additive"]
SEEDS = [3, 14, 15, 92, 6, 5, 35, 8]
RECIPE = Recipe(data="array", network=(8, 6), costs=(10.0, 1.0, 0.1), batch_size=20, labeled_batch_size=12, epochs=4)


def blobs(dtype: torch.dtype) -> Examples:
    """A hundred rows about three centres."""
    rng = np.random.default_rng(0)
    classes = np.arange(100) % 3
    rows = rng.normal(size=(3, 7))[classes] + 0.5 * rng.normal(size=(100, 7))
    return Examples(torch.from_numpy(rows).to(dtype), torch.from_numpy(classes), 3)


def split_by(seed: int) -> Split:
    return split(np.arange(100) % 3, 9, seed=seed)


def train(seeds: list[int], recipe: Recipe = RECIPE, dtype: torch.dtype = torch.float32) -> Trained:
    """Five updates an epoch, each seed with labels of its own."""
    start = [build_ladder(recipe, (7,), 3, seed).to(dtype) for seed in seeds]
    return fit(blobs(dtype), [split_by(seed) for seed in seeds], recipe, seeds, start=start, device="cpu")


def farthest(one: Ladder, other: Ladder) -> float:
    """The largest difference between two ladders' parameters."""
    theirs = dict(other.named_parameters())
    return max((value - theirs[name]).abs().max().item() for name, value in one.named_parameters())


# Products of stacked matrices add in another order than those of one: half a last digit or so of weights of about one.
# Measured 3e-7 and 2e-16; the bound leaves room for the kernels of other machines. What a member that saw other rows or
# other noise would be off by is some 0.03, most of the way that twenty updates of 0.002 can take it.
ROUNDING = {torch.float32: 5e-6, torch.float64: 1e-14}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_member_of_eight_ends_after_twenty_updates_where_it_would_have_ended_alone(dtype):
    together = train(SEEDS, dtype=dtype)
    for place, seed in enumerate(SEEDS):
        alone = train([seed], dtype=dtype)
        assert farthest(alone.ladders[0], together.ladders[place]) < ROUNDING[dtype]
        for mine, ours in zip(alone.histories[0], together.histories[place], strict=True):
            for cost in ("total", "supervised", "denoising"):
                assert ours[cost] == pytest.approx(mine[cost], rel=1e-5 if dtype is torch.float32 else 1e-12)


def test_the_bound_on_rounding_would_show_a_member_that_saw_something_else():
    """The same first weights and labels, with the order and noise of another seed."""
    seed, other = SEEDS[:2]
    start = [build_ladder(RECIPE, (7,), 3, seed)]
    swapped = fit(blobs(torch.float32), [split_by(seed)], RECIPE, [other], start=start, device="cpu")
    assert farthest(train([seed]).ladders[0], swapped.ladders[0]) > 1000 * ROUNDING[torch.float32]


@pytest.mark.parametrize("task", ["classification", "regression"])
@pytest.mark.parametrize("denoiser", DENOISERS)
def test_every_denoiser_learns_in_company_what_it_learns_alone(denoiser, task):
    recipe = Recipe(
        data="array", network=(6,), costs=(10.0, 1.0, 0.1), denoiser=denoiser, task=task, batch_size=33, epochs=1
    )
    examples = blobs(torch.float64)
    if task == "regression":
        examples = examples._replace(targets=torch.nn.functional.one_hot(examples.targets, 3).double())

    def trained(seeds: list[int]) -> list[Ladder]:
        start = [build_ladder(recipe, (7,), 3, seed).double() for seed in seeds]
        return fit(examples, [split_by(seed) for seed in seeds], recipe, seeds, start=start, device="cpu").ladders

    together = trained([1, 2, 3])
    for place, seed in enumerate([1, 2, 3]):
        (alone,) = trained([seed])
        assert farthest(alone, together[place]) < ROUNDING[torch.float64]
        assert farthest(alone, build_ladder(recipe, (7,), 3, seed).double()) > 1e-3  # three updates were made


@pytest.mark.parametrize("costs", [(0.5,), (10.0, 0.0), (0.0,)], ids=["gamma", "bottom", "baseline"])
def test_ladders_with_fewer_costs_learn_in_company_what_they_learn_alone(costs):
    """By costs and outputs: with the bottom cost alone, shifts of the levels above do nothing (u is normalised), their
    gradient is rounding and nothing else, and Adam makes steps of it."""
    recipe = Recipe(data="array", network=(6,), costs=costs, batch_size=33, epochs=2)
    together, rows = train([1, 2], recipe, torch.float64), blobs(torch.float64).rows
    for place, seed in enumerate([1, 2]):
        alone = train([seed], recipe, torch.float64)
        assert together.histories[place][-1]["total"] == pytest.approx(alone.histories[0][-1]["total"], rel=1e-6)
        torch.testing.assert_close(together.ladders[place](rows), alone.ladders[0](rows), rtol=0, atol=1e-6)


def test_a_members_place_makes_no_difference():
    forwards, backwards = train([1, 2, 3]), train([3, 2, 1])
    for one, other in zip(forwards.ladders, reversed(backwards.ladders), strict=True):
        assert farthest(one, other) < ROUNDING[torch.float32]


def test_members_do_not_share_what_they_learn():
    ladders = train([1, 2]).ladders
    assert farthest(*ladders) > 0.1  # they started from weights of deviation 1/√7 and more
    ladders[0].rungs[1].weight.data.zero_()
    assert ladders[1].rungs[1].weight.abs().min() > 0


# Stacking.


def ladders_of(denoiser: str = "gaussian", members: int = 3) -> list[Ladder]:
    recipe = Recipe(data="array", network=(5, 4), costs=(10.0, 1.0, 0.1), denoiser=denoiser)
    ladders = [build_ladder(recipe, (7,), 3, seed).double() for seed in range(members)]
    draw = torch.Generator().manual_seed(0)
    for ladder in ladders:
        for parameter in ladder.parameters():  # away from first values, where all denoisers give zero
            parameter.data += 0.3 * torch.randn(parameter.shape, generator=draw, dtype=torch.float64)
        ladder.calibrate(torch.randn(30, 7, generator=draw, dtype=torch.float64))
    return ladders


@pytest.mark.parametrize("denoiser", DENOISERS)
@pytest.mark.parametrize("members", [1, 3])
def test_members_come_out_of_a_stack_as_they_went_in(denoiser, members):
    ladders = ladders_of(denoiser, members)
    for before, after in zip(ladders, unstack(stack(ladders), ladders), strict=True):
        ours, theirs = before.state_dict(), after.state_dict()
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())
        assert [name for name, _ in before.named_parameters()] == [name for name, _ in after.named_parameters()]
        assert all(parameter.requires_grad and parameter.is_leaf for parameter in after.parameters())
        assert not {t.data_ptr() for t in ours.values()} & {t.data_ptr() for t in theirs.values()}


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("denoiser", DENOISERS)
def test_a_stack_costs_what_its_members_cost(denoiser, weighted):
    ladders = ladders_of(denoiser)
    unlabeled, labeled = normal(3, 20, 7, seed=1), normal(3, 9, 7, seed=2)
    targets = torch.randint(3, (3, 9), generator=torch.Generator().manual_seed(3))
    noise = [normal(3, 29, *shape, seed=level) for level, shape in enumerate(ladders[0].shapes)]
    weights = normal(3, 9, seed=9).abs() if weighted else None
    together = stack(ladders).costs(unlabeled, labeled, targets, noise, weights)
    assert together.total.shape == together.supervised.shape == (3,)
    assert together.denoising.shape == (3, 4)
    for member, ladder in enumerate(ladders):
        own = ladder.costs(
            unlabeled[member],
            labeled[member],
            targets[member],
            [draw[member] for draw in noise],
            None if weights is None else weights[member],
        )
        for ours, theirs in zip(own, together, strict=True):
            torch.testing.assert_close(theirs[member], ours, rtol=1e-12, atol=0)


def test_a_stack_gives_the_outputs_and_statistics_of_its_members():
    ladders = ladders_of()
    fleet, rows = stack(ladders), normal(30, 7, seed=1)
    fleet.calibrate(rows.expand(3, 30, 7))
    for mode in (True, False):
        together = fleet.train(mode)(rows.expand(3, 30, 7))
        for member, ladder in enumerate(ladders):
            alone = ladder.calibrate(rows).train(mode)(rows)
            torch.testing.assert_close(together[member], alone, rtol=1e-10, atol=1e-12)


def test_a_stack_is_calibrated_with_no_more_values_of_all_its_members_at_a_time_than_memory_likes(monkeypatch):
    """Thirty rows of three members: 21 values of the input each, and 15 of the first rung, too many to keep."""
    fleet, rows = stack(ladders_of()), normal(3, 30, 7, seed=1)
    whole = deepcopy(fleet).calibrate(rows)
    up, seen = DenseRung.up, []

    def watched(rung: DenseRung, hidden: Tensor) -> Tensor:
        seen.append(hidden.shape)
        return up(rung, hidden)

    monkeypatch.setattr("tikas.model.calibration.MOST_IN_A_CHUNK", 21 * 16 - 1)
    monkeypatch.setattr("tikas.model.calibration.MOST_KEPT", 15 * 30 - 1)
    monkeypatch.setattr(DenseRung, "up", watched)
    fleet.calibrate(rows)
    assert seen == [
        *[(3, 15, 7)] * 2,  # to the first rung
        *[(3, 15, 7), (3, 15, 5)] * 2,  # to the second, by way of the first
        *[(3, 15, 4)] * 2,  # to the top, from the second
    ]
    torch.testing.assert_close(fleet.rungs[3].deviation, whole.rungs[3].deviation)


def test_a_stack_draws_noise_for_every_member():
    ladders = ladders_of()
    draws = stack(ladders).draw_noise(normal(3, 20, 7, seed=1), 25)
    assert [tuple(draw.shape) for draw in draws] == [(3, 25, *shape) for shape in ladders[0].shapes]
    assert not torch.isclose(draws[0][0], draws[0][1]).any()


def test_a_batch_for_a_fleet_is_its_members_batches_on_top_of_each_other():
    seeds = [1, 2, 3]
    examples, splits = blobs(torch.float32), [split_by(seed) for seed in seeds]
    shapes = [(7,), (5,), (3,)]
    together = Streams(examples, splits, seeds, shapes, 20, 12)
    together.start_epoch()
    ours = together.batch(0)
    for place, seed in enumerate(seeds):
        alone = Streams(examples, [splits[place]], [seed], shapes, 20, 12)
        alone.start_epoch()
        mine = alone.batch(0)
        for part in ("unlabeled", "labeled", "targets"):
            assert torch.equal(getattr(ours, part)[place], getattr(mine, part))
        assert all(torch.equal(all_of[place], one) for all_of, one in zip(ours.noise, mine.noise, strict=True))


def test_ctrl_c_right_after_a_step_at_rates_of_their_own_leaves_every_member_where_it_belongs():
    """That step is taken at a rate of one: weights that had taken it would be off by one each."""
    recipes = [replace(RECIPE, learning_rate=rate) for rate in (0.002, 0.004)]
    taken = []

    def press(*_: object) -> None:
        taken.append(True)
        if len(taken) == 3:
            raise KeyboardInterrupt

    hook = register_optimizer_step_post_hook(press)
    try:
        cut = fit(blobs(torch.float32), [split_by(seed) for seed in (0, 1)], recipes, [0, 1], device="cpu")
    finally:
        hook.remove()
    assert cut.interrupted
    for seed, (ladder, recipe) in enumerate(zip(cut.ladders, recipes, strict=True)):
        moved = farthest(ladder, build_ladder(recipe, (7,), 3, seed))
        assert recipe.learning_rate < moved < 3 * recipe.learning_rate


@pytest.mark.filterwarnings("ignore")  # torch.compile warns of its own ways
def test_members_that_differ_in_settings_are_compiled_once_if_these_are_tensors():
    """As floats they are part of the program, and torch.compile gives up after eight of those."""
    torch.compiler.reset()  # other tests may have used them up
    ladders = [Ladder((4,), [Dense(3)], noise=noise, costs=(cost, 1.0)) for noise, cost in ((0.1, 3.0), (0.2, 4.0))]
    rows, targets, noise = torch.rand(6, 4), torch.arange(6) % 3, [torch.randn(12, 4), torch.randn(12, 3)]
    plain = [ladder.costs(rows, rows, targets, noise).total for ladder in ladders]
    for level, name, values in own_settings(ladders):
        for ladder, value in zip(ladders, values, strict=True):
            setattr(ladder.rungs[level], name, value)
    programs: list[object] = []

    def remember(graph: torch.fx.GraphModule, _: object) -> object:
        programs.append(graph)
        return graph

    compiled = [torch.compile(ladder.costs, dynamic=False, backend=remember) for ladder in ladders]
    for costs, expected in zip(compiled, plain, strict=True):
        torch.testing.assert_close(costs(rows, rows, targets, noise).total, expected)
    assert len(programs) == 1


@pytest.mark.parametrize("members", [1, 3])
def test_the_ladder_that_is_watched_follows_a_fused_fleets_parameters(members: int) -> None:
    ladders = [build_ladder(Recipe(network=(6, 5)), (7,), outputs=3, seed=seed) for seed in range(members)]
    parameters = FleetParameters(ladders, [8, 8, 8, 4], torch.bfloat16, torch.device("cpu"))
    watched = parameters.stacked()
    for storage in (parameters.matrices, parameters.vectors):
        storage.values *= 1.5
    rows = torch.rand(*[members] * (members > 1), 20, 7, generator=torch.Generator().manual_seed(0))
    outputs = [ladder.calibrate(rows).eval()(rows) for ladder in (watched, stack(parameters.ladders()))]
    torch.testing.assert_close(*outputs)
