"""The appendix's autoencoder: what it costs by the equations, and that fleets of it learn what members would alone."""

from math import sqrt

import numpy as np
import pytest
import torch

from tikas.model.autoencoder import Autoencoder
from tikas.model.ladder import Ladder
from tikas.model.specs import Conv, Dense, GlobalMeanPool
from tikas.training.fleet import stack

UNITS, ROWS, LABELED = [12, 7, 5, 4, 3], 20, 8
RUNGS = [Dense(units) for units in UNITS[1:]]


def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    draw = torch.Generator().manual_seed(1)
    noise = [torch.randn(LABELED + ROWS, units, generator=draw).double() for units in UNITS]
    unlabeled, labeled = (torch.rand(count, 12, generator=draw).double() for count in (ROWS, LABELED))
    return unlabeled, labeled, torch.arange(LABELED) % 3, noise


def network(attached: int, seed: int = 0) -> Autoencoder:
    made = Autoencoder((12,), RUNGS, attached, noise=(0.3, 0.5, 0.5, 0.5, 0.5), cost=100.0,
                       generator=torch.Generator().manual_seed(seed)).double()  # fmt: skip
    for parameter in made.parameters():
        if parameter.dim() == 1:  # biases start at zero, where mistakes would not show
            torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(len(parameter)))
    return made


def normalized(x: np.ndarray) -> np.ndarray:
    return (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-10)


@pytest.mark.parametrize("attached", [1, 2, 3])
def test_the_reconstruction_is_what_the_equations_say(attached: int) -> None:
    made = network(attached)
    unlabeled, labeled, targets, noise = batch()
    costs = made.costs(unlabeled, labeled, targets, noise=noise)
    weights = {name: value.detach().numpy() for name, value in made.state_dict().items()}
    hidden = unlabeled.numpy() + 0.3 * noise[0][LABELED:].numpy()
    for level in range(1, attached + 1):
        latent = normalized(hidden @ weights[f"rungs.{level}.weight"].T) + 0.5 * noise[level][LABELED:].numpy()
        hidden = np.maximum(latent + weights[f"rungs.{level}.beta"], 0)
    for place in range(attached - 1):
        hidden = normalized(hidden @ weights[f"decoder.{place}.weight"].T) + weights[f"decoder.{place}.beta"]
        hidden = np.maximum(hidden, 0)
    last = f"decoder.{attached - 1}"
    rebuilt = 1 / (1 + np.exp(-(hidden @ weights[f"{last}.weight"].T + weights[f"{last}.bias"])))
    expected = ((unlabeled.numpy() - rebuilt) ** 2).mean()
    assert costs.denoising[0].item() == pytest.approx(expected, rel=1e-9)
    assert costs.denoising[1:].tolist() == [0] * 4
    assert costs.total.item() == pytest.approx(costs.supervised.item() + 100 * expected, rel=1e-9)


def test_the_supervised_cost_is_that_of_the_network_without_a_decoder() -> None:
    made = network(2)
    alone = Ladder((12,), RUNGS, noise=(0.3, 0.5, 0.5, 0.5, 0.5), costs=0).double()
    alone.load_state_dict({name: value for name, value in made.state_dict().items() if "decoder" not in name})
    unlabeled, labeled, targets, noise = batch()
    ours, theirs = (each.costs(unlabeled, labeled, targets, noise=noise).supervised for each in (made, alone))
    assert ours.item() == theirs.item()


def test_rungs_above_the_decoder_learn_from_labels_alone() -> None:
    made = network(2)
    unlabeled, _, _, noise = batch()
    made.costs(unlabeled, noise=[draw[LABELED:] for draw in noise]).total.backward()
    assert [rung.weight.grad is not None for rung in made.rungs[1:]] == [True, True, False, False]


def test_the_decoder_mirrors_the_encoder_below_it() -> None:
    shapes = [tuple(layer.weight.shape) for layer in network(3).decoder]
    assert shapes == [(5, 4), (7, 5), (12, 7)]
    spread = Autoencoder((400,), [Dense(300), Dense(10)], 1).decoder[0].weight.std().item()
    assert spread == pytest.approx(1 / sqrt(300), rel=0.02)


def test_stacked_members_cost_what_each_would_alone() -> None:
    members = [network(3, seed) for seed in (0, 1)]
    members[1].rungs[0].cost = 7.0  # members may differ in λ
    unlabeled, labeled, targets, noise = batch()
    together = stack(members).costs(
        unlabeled.expand(2, -1, -1), labeled.expand(2, -1, -1), targets.expand(2, -1),
        noise=[draw.expand(2, -1, -1) for draw in noise],
    )  # fmt: skip
    for place, member in enumerate(members):
        alone = member.costs(unlabeled, labeled, targets, noise=noise)
        assert together.total[place].item() == pytest.approx(alone.total.item(), rel=1e-9)


@pytest.mark.parametrize("attached", [0, 4, 9, 1.5])
def test_only_a_hidden_rung_can_carry_the_decoder(attached: int) -> None:
    with pytest.raises(ValueError, match="expected one of the hidden rungs, 1 to 3"):
        Autoencoder((12,), RUNGS, attached)


@pytest.mark.parametrize("cost", [-1.0, float("nan"), "much"])
def test_its_cost_is_a_number_of_at_least_zero(cost: float) -> None:
    with pytest.raises(ValueError, match=f"cost={cost!r}: expected a "):
        Autoencoder((12,), RUNGS, 1, cost=cost)


def test_a_decoder_on_maps_is_refused() -> None:
    with pytest.raises(ValueError, match="dense"):
        Autoencoder((1, 8, 8), [Conv(4, 3), Conv(3, 1), GlobalMeanPool()], 1)
