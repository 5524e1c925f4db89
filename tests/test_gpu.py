"""On a GPU the captured fleet learns what the plain one learns."""

import pytest
import torch

from tikas.data.splits import split
from tikas.data.streams import Examples, Streams
from tikas.training.engine import CapturedFleet
from tikas.training.fleet import Fleet, build_ladder
from tikas.training.recipe import Recipe

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU on this machine")

RECIPE = Recipe(network=(40, 20), epochs=3)


def trained(
    kind: type[Fleet], seeds: list[int], recipe: Recipe = RECIPE
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The costs of every update, and the first member's weights, after three epochs of ten updates."""
    torch.set_float32_matmul_precision("highest")
    draw = torch.Generator().manual_seed(0)
    rows = torch.rand(1000, 30, generator=draw)
    targets = (rows[:, 0] * 3).long()
    examples = Examples(rows, targets, 3).to(torch.device("cuda"))
    splits = [split(targets.numpy(), 60, seed=seed) for seed in seeds]
    ladders = [build_ladder(recipe, (30,), 3, seed).cuda() for seed in seeds]
    streams = Streams(examples, splits, seeds, ladders[0].shapes, 100, 100, most_in_block=10)
    fleet = kind(ladders, recipe, streams)
    costs = torch.cat([fleet.train_epoch([0.002] * streams.updates) for _ in range(recipe.epochs)])
    return costs, fleet.disband()[0].state_dict()


@pytest.mark.parametrize("seeds", [[3], [3, 4, 5]], ids=["alone", "in company"])
@pytest.mark.parametrize("denoiser", ["gaussian", "mlp"])
def test_captured_updates_are_the_plain_updates(seeds: list[int], denoiser: str) -> None:
    recipe = Recipe(network=(40, 20), epochs=3, denoiser=denoiser)
    plain, plain_weights = trained(Fleet, seeds, recipe)
    captured, captured_weights = trained(CapturedFleet, seeds, recipe)
    # The same arithmetic in another order: rounding grows with each of the thirty updates.
    torch.testing.assert_close(captured, plain, rtol=2e-3, atol=2e-3)
    for name, weights in plain_weights.items():
        torch.testing.assert_close(captured_weights[name], weights, rtol=5e-2, atol=5e-3, msg=name)


def test_a_member_learns_the_same_alone_and_in_company() -> None:
    alone, _ = trained(CapturedFleet, [3])
    together, _ = trained(CapturedFleet, [3, 4, 5])
    torch.testing.assert_close(together[:, 0], alone, rtol=2e-3, atol=2e-3)
