"""Ensembles as one model: a packed model computes what its members compute, and a member learns the same as alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tikas import Dense, Ladder
from tikas.data.batches import Batches
from tikas.data.datasets import Dataset
from tikas.data.splits import split
from tikas.model.ladder import Costs, Model
from tikas.training.ensemble import differing_settings, pack, record, to_device, unpack, with_tensors
from tikas.training.recipe import Recipe
from tikas.training.trainer import Trainer, TrainingResult

DENOISERS = ["gaussian", "mlp", "no-product", "linear", "additive"]
RECIPE = Recipe(network=(8, 6), costs=(10, 1, 0.1), batch_size=20, labeled_batch_size=12, epochs=4)
CLASSES = np.arange(100) % 3
RNG = np.random.default_rng(0)
COLUMNS = RNG.normal(size=(3, 7))[CLASSES] + 0.5 * RNG.normal(size=(100, 7))
IMAGES = 0.3 * RNG.normal(size=(100, 2, 6, 6)) + CLASSES[:, None, None, None]


def build_double(recipe: Recipe, input_shape: Sequence[int], n_outputs: int, seed: int) -> Model:
    return recipe.build(input_shape, n_outputs, seed).to(torch.float64)


def train(recipes: Sequence[Recipe], seeds: Sequence[int], labels: Sequence[int | None] = (9,) * 8) -> TrainingResult:
    """Train in double precision; each seed has its own labels."""
    rows = IMAGES if recipes[0].takes_maps else COLUMNS
    dataset = Dataset(rows, CLASSES, classes=np.arange(3))
    if recipes[0].task == "regression":
        dataset = Dataset(rows, COLUMNS[:, 0] * COLUMNS[:, 1])
    splits = [split(CLASSES, number, seed=seed) for seed, number in zip(seeds, labels, strict=False)]
    return Trainer(list(recipes), device="cpu", build=build_double).fit(dataset, splits, seeds)


def largest_difference(one: Model, other: Model) -> float:
    expected = dict(other.named_parameters())
    return max((tensor - expected[name]).abs().max().item() for name, tensor in one.named_parameters())


ROUNDING = 1e-8
"""Products of packed matrices add in another order: 1e-15 in dense ladders, and up to 1e-9 where gradients are so small
that Adam enlarges their rounding. Other rows or other noise would make a difference of about 0.03."""


def assert_same_as_alone(
    recipes: Sequence[Recipe], seeds: Sequence[int], labels: Sequence[int | None] = (9,) * 8
) -> None:
    together = train(recipes, seeds, labels)
    for member, (recipe, seed) in enumerate(zip(recipes, seeds, strict=True)):
        alone = train([recipe], [seed], labels[member : member + 1])
        assert largest_difference(together.members[member], alone.members[0]) < ROUNDING
        assert largest_difference(alone.members[0], build_double(recipe, *_shapes(recipe), seed)) > 1e-3  # it learned
        for line, expected in zip(together.histories[member], alone.histories[0], strict=True):
            assert line["learning_rate"] == expected["learning_rate"]
            for name in ("total", "supervised", "denoising"):
                assert line[name] == pytest.approx(expected[name], rel=1e-10)


def _shapes(recipe: Recipe) -> tuple[tuple[int, ...], int]:
    rows = IMAGES if recipe.takes_maps else COLUMNS
    return rows.shape[1:], 1 if recipe.task == "regression" else 3


# A member alone = the member in the ensemble


def test_a_member_of_eight_learns_after_twenty_updates_what_it_learns_alone() -> None:
    assert_same_as_alone([RECIPE] * 8, [3, 14, 15, 92, 6, 5, 35, 8])


def test_members_with_own_noise_costs_rates_and_labels_learn_what_they_learn_alone() -> None:
    recipes = [
        RECIPE,
        replace(RECIPE, noise=(0.5, 0.1)),
        replace(RECIPE, costs=(3.0, 2.0, 0.7)),
        replace(RECIPE, learning_rate=0.01),
        replace(RECIPE, annealed=1.0, noise=0.2, costs=(20.0, 0.5), learning_rate=0.005),
    ]
    assert_same_as_alone(recipes, [3, 14, 15, 92, 6], [9, 9, 9, 9, 30])


KINDS: dict[str, dict[str, Any]] = {
    **{denoiser: {"denoiser": denoiser} for denoiser in DENOISERS},
    **{f"{denoiser}, regression": {"denoiser": denoiser, "task": "regression"} for denoiser in DENOISERS},
    "activations": {"network": ("dense 6 tanh", "dense 5 gelu", "dense 4 leaky_relu")},
    "top alone": {"costs": 0.5},
    "input alone": {"costs": (10.0, 0.0)},
    "supervised": {"costs": 0.0},
    "convolution": {"network": ("conv 3 3 same", "conv 2 3 full"), "costs": 1.0},
    "convolution, all costs": {"network": ("conv 3 3 same", "max 2"), "costs": (10.0, 1.0, 0.1)},
    "pooling": {"network": ("max 2", "conv 3 1", "mean 2"), "costs": (10.0, 1.0, 0.1)},
    "global pooling": {"network": ("conv 3 1", "global", "top"), "costs": 1.0},
    "regression on maps": {"network": ("conv 3 2",), "costs": (1.0, 0.1), "task": "regression"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_ladder_learns_in_an_ensemble_what_it_learns_alone(kind: str) -> None:
    recipe = replace(RECIPE, epochs=1, batch_size=33, **{"network": (6,), **KINDS[kind]})
    if kind == "input alone":
        # Shifts above the input have no effect on u, which is normalized: their gradients are rounding, and Adam makes
        # steps of these. So costs and outputs are compared.
        together, rows = train([recipe] * 2, [1, 2]), torch.from_numpy(COLUMNS)
        for member in range(2):
            (alone,) = train([recipe], [1 + member]).members
            torch.testing.assert_close(together.members[member](rows), alone(rows), rtol=0, atol=1e-6)
    else:
        assert_same_as_alone([recipe] * 3, [1, 2, 3])


def test_fully_labeled_members_learn_in_an_ensemble_what_they_learn_alone() -> None:
    assert_same_as_alone([replace(RECIPE, epochs=1)] * 2, [1, 2], [None, None])


@pytest.mark.parametrize(
    ("setting", "value"), [("noise", (0.2,)), ("costs", (20.0, 0.5)), ("learning_rate", 0.005), ("annealed", 1.0)]
)
def test_each_setting_of_a_member_changes_that_member_alone(setting: str, value: Any) -> None:
    same = train([RECIPE] * 3, [0, 1, 2])
    changed = train([RECIPE, RECIPE, replace(RECIPE, **{setting: value})], [0, 1, 2])
    for member in range(2):
        assert largest_difference(same.members[member], changed.members[member]) < ROUNDING
    assert largest_difference(same.members[2], changed.members[2]) > 1e-3


def test_the_position_of_a_member_makes_no_difference() -> None:
    one, other = train([RECIPE] * 3, [1, 2, 3]), train([RECIPE] * 3, [3, 2, 1])
    for member, same in zip(one.members, reversed(other.members), strict=True):
        assert largest_difference(member, same) < ROUNDING


def test_members_return_with_their_own_settings_and_share_no_memory() -> None:
    recipes = [RECIPE, replace(RECIPE, noise=(0.5, 0.1), costs=(3, 2, 0.7))]
    first, second = train(recipes, [0, 1]).members
    for member, recipe in ((first, recipes[0]), (second, recipes[1])):
        assert tuple(rung.noise for rung in member.rungs) == recipe.noise_per_level()
        assert tuple(rung.cost for rung in member.rungs) == recipe.cost_per_level()
    first.rungs[1].weight.data.zero_()
    assert second.rungs[1].weight.abs().min() > 0


def test_the_batch_of_an_ensemble_stacks_those_of_its_members() -> None:
    rows, targets, weights = torch.from_numpy(COLUMNS), torch.from_numpy(CLASSES), torch.rand(100)
    splits, shapes = [split(CLASSES, 9, seed=seed) for seed in range(3)], [(7,), (5,), (3,)]

    def first_batch(members: slice) -> Any:
        batches = Batches(rows, targets, weights, splits[members], range(3)[members], shapes, 20, 12)
        batches.start_epoch()
        return batches.batch(0)

    together = first_batch(slice(None))
    for member in range(3):
        alone = first_batch(slice(member, member + 1))
        for name in ("unlabeled", "labeled", "targets", "weights"):
            assert torch.equal(getattr(together, name)[member], getattr(alone, name))
        assert all(torch.equal(level[member], same) for level, same in zip(together.noise, alone.noise, strict=True))


# Packing


def ladders_of(denoiser: str = "gaussian", members: int = 3) -> list[Ladder]:
    draw = torch.Generator().manual_seed(0)
    ladders = []
    for seed in range(members):
        ladder = build_double(replace(RECIPE, network=(5, 4), denoiser=denoiser), (7,), 3, seed)
        for parameter in ladder.parameters():  # away from the initial values, with which all denoisers return zero
            parameter.data += 0.3 * torch.randn(parameter.shape, generator=draw, dtype=torch.float64)
        ladders.append(ladder.calibrate(torch.randn(30, 7, generator=draw, dtype=torch.float64)))
    return ladders


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("denoiser", DENOISERS)
def test_unpacked_members_are_those_that_were_packed(denoiser: str) -> None:
    ladders = ladders_of(denoiser)
    for before, after in zip(ladders, unpack(pack(ladders), ladders), strict=True):
        assert [name for name, _ in before.named_parameters()] == [name for name, _ in after.named_parameters()]
        assert all(parameter.requires_grad and parameter.is_leaf for parameter in after.parameters())
        for (name, tensor), same in zip(before.state_dict().items(), after.state_dict().values(), strict=True):
            assert torch.equal(tensor, same), name
            assert tensor.data_ptr() != same.data_ptr(), name


def test_a_single_model_is_neither_packed_nor_copied() -> None:
    ladders = ladders_of(members=1)
    assert pack(ladders) is ladders[0]
    assert unpack(ladders[0], ladders) == ladders


@pytest.mark.parametrize("weighted", [False, True], ids=["without weights", "with weights"])
@pytest.mark.parametrize("denoiser", DENOISERS)
def test_the_costs_of_a_packed_model_are_those_of_its_members(denoiser: str, weighted: bool) -> None:
    ladders = ladders_of(denoiser)
    unlabeled, labeled = normal(3, 20, 7, seed=1), normal(3, 9, 7, seed=2)
    targets = torch.randint(3, (3, 9), generator=torch.Generator().manual_seed(3))
    noise = [normal(3, 29, *shape, seed=level) for level, shape in enumerate(ladders[0].shapes)]
    weights = normal(3, 9, seed=9).abs() if weighted else None
    together = pack(ladders).costs(unlabeled, labeled, targets, noise, weights)
    assert together.total.shape == together.supervised.shape == (3,)
    for member, ladder in enumerate(ladders):
        own_weights = None if weights is None else weights[member]
        own_noise = [level[member] for level in noise]
        alone = ladder.costs(unlabeled[member], labeled[member], targets[member], own_noise, own_weights)
        for own, packed in zip(alone, together, strict=True):
            torch.testing.assert_close(packed[member], own, rtol=1e-12, atol=0)


def test_the_outputs_and_statistics_of_a_packed_model_are_those_of_its_members() -> None:
    ladders, rows = ladders_of(), normal(30, 7, seed=1)
    packed = pack(ladders).calibrate(rows.expand(3, 30, 7))
    for mode in (True, False):
        together = packed.train(mode)(rows.expand(3, 30, 7))
        for member, ladder in enumerate(ladders):
            alone = ladder.calibrate(rows).train(mode)(rows)
            torch.testing.assert_close(together[member], alone, rtol=1e-10, atol=1e-12)


def test_a_packed_model_draws_noise_for_every_member() -> None:
    ladders = ladders_of()
    noise = pack(ladders).draw_noise(normal(3, 20, 7, seed=1), 25)
    assert [tuple(level.shape) for level in noise] == [(3, 25, *shape) for shape in ladders[0].shapes]
    assert not torch.isclose(noise[0][0], noise[0][1]).any()


def test_settings_in_which_members_differ_become_tensors() -> None:
    ladders = [
        Ladder((4,), [Dense(3)], noise=(0.3, noise), costs=(cost, 1.0)) for noise, cost in ((0.25, 3.0), (0.5, 4.0))
    ]
    found = [(level, name, values.tolist()) for level, name, values in differing_settings(ladders)]
    assert found == [(0, "cost", [3.0, 4.0]), (1, "noise", [0.25, 0.5])]
    packed = pack(ladders)
    assert packed.rungs[0].noise == 0.3
    assert packed.rungs[1].noise.tolist() == [0.25, 0.5]


def test_frozen_parameters_stay_frozen_in_an_ensemble() -> None:
    def build_frozen(recipe: Recipe, input_shape: Sequence[int], n_outputs: int, seed: int) -> Model:
        ladder = recipe.build(input_shape, n_outputs, seed)
        ladder.rungs[1].weight.requires_grad_(False)
        return ladder

    dataset = Dataset(COLUMNS.astype(np.float32), CLASSES, classes=np.arange(3))
    recipes = [RECIPE, replace(RECIPE, learning_rate=0.01)]
    members = Trainer(recipes, device="cpu", build=build_frozen).fit(dataset, [split(CLASSES, 9)] * 2, [0, 1]).members
    for seed, member in enumerate(members):
        initial = RECIPE.build((7,), 3, seed)
        assert torch.equal(member.rungs[1].weight, initial.rungs[1].weight)
        assert not member.rungs[1].weight.requires_grad
        assert not torch.equal(member.rungs[2].weight, initial.rungs[2].weight)


def test_a_copy_with_other_tensors_leaves_the_model_as_it_was() -> None:
    (ladder,) = ladders_of(members=1)
    before = ladder.rungs[1].weight.clone()
    copy = with_tensors(ladder, {"rungs.1.weight": torch.zeros(7, 5, 7)})
    assert copy.rungs[1].weight.shape == (7, 5, 7)
    assert isinstance(copy.rungs[1].weight, torch.nn.Parameter)
    assert copy.rungs[1].beta is not ladder.rungs[1].beta
    assert torch.equal(ladder.rungs[1].weight, before)


def test_a_copy_on_a_device_has_all_its_tensors_there() -> None:
    (ladder,) = ladders_of(members=1)
    copy = to_device(ladder, "meta")
    assert {tensor.device.type for tensor in copy.state_dict().values()} == {"meta"}
    assert {tensor.device.type for tensor in ladder.state_dict().values()} == {"cpu"}


def test_the_record_of_an_update_is_the_supervised_cost_and_each_denoising_cost() -> None:
    costs = Costs(torch.tensor([9.0, 8.0]), torch.tensor([1.0, 2.0]), torch.tensor([[0.5, 0.25], [0.125, 0.0]]))
    assert record(costs).tolist() == [[1.0, 0.5, 0.25], [2.0, 0.125, 0.0]]
