"""The appendix's autoencoder: its costs follow the equations, and its members train in an ensemble as they do alone."""

from collections.abc import Sequence
from math import sqrt

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from tikas.model.ladder import Ladder
from tikas.model.specs import Dense
from tikas.paper.autoencoder import Autoencoder
from tikas.training.ensemble import pack
from tikas.training.recipe import Recipe

UNITS, ROWS, LABELED = [12, 7, 5, 4, 3], 20, 8
RUNGS = [Dense(units) for units in UNITS[1:]]
RECIPE = Recipe(network=(7, 5, 4), noise=(0.3, 0.5), costs=(100, 0))


def random_batch() -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
    """Return unlabeled rows, labeled rows, classes and noise."""
    generator = torch.Generator().manual_seed(1)
    noise = [torch.randn(LABELED + ROWS, units, generator=generator).double() for units in UNITS]
    unlabeled, labeled = (torch.rand(rows, 12, generator=generator).double() for rows in (ROWS, LABELED))
    return unlabeled, labeled, torch.arange(LABELED) % 3, noise


def random_network(attached: int, seed: int = 0) -> Autoencoder:
    """Return a network whose biases are random, too: a mistake would not show at zero."""
    generator = torch.Generator().manual_seed(seed)
    network = Autoencoder(RECIPE, (12,), 3, seed, attached=attached).double()
    for parameter in network.parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, generator=generator)
    return network


def normalized(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-10)


@pytest.mark.parametrize("attached", [1, 2, 3])
def test_the_reconstruction_cost_follows_the_equations(attached: int) -> None:
    network = random_network(attached)
    unlabeled, labeled, targets, noise = random_batch()
    costs = network.costs(unlabeled, labeled, targets, noise=noise)

    weights = {name: value.numpy() for name, value in network.state_dict().items()}
    hidden = unlabeled.numpy() + 0.3 * noise[0][LABELED:].numpy()
    for level in range(1, attached + 1):
        latent = normalized(hidden @ weights[f"rungs.{level}.weight"].T) + 0.5 * noise[level][LABELED:].numpy()
        hidden = np.maximum(latent + weights[f"rungs.{level}.beta"], 0)
    for layer in range(attached - 1):
        latent = normalized(hidden @ weights[f"decoder.{layer}.weight"].T)
        hidden = np.maximum(latent + weights[f"decoder.{layer}.beta"], 0)
    top = f"decoder.{attached - 1}"
    pixels = 1 / (1 + np.exp(-(hidden @ weights[f"{top}.weight"].T + weights[f"{top}.bias"])))
    expected = ((unlabeled.numpy() - pixels) ** 2).mean()

    assert costs.denoising[0].item() == pytest.approx(expected, rel=1e-9)
    assert costs.denoising[1:].tolist() == [0] * 4
    assert costs.total.item() == pytest.approx(costs.supervised.item() + 100 * expected, rel=1e-9)


def test_the_supervised_cost_is_that_of_the_network_without_a_decoder() -> None:
    network = random_network(2)
    alone = Ladder((12,), RUNGS, RECIPE.noise_per_level(), costs=0).double()
    alone.load_state_dict({name: value for name, value in network.state_dict().items() if "decoder" not in name})
    unlabeled, labeled, targets, noise = random_batch()
    costs = [each.costs(unlabeled, labeled, targets, noise=noise).supervised.item() for each in (network, alone)]
    assert costs[0] == costs[1]


def test_rungs_above_the_decoder_learn_from_labels_alone() -> None:
    network = random_network(2)
    unlabeled, _, _, noise = random_batch()
    network.costs(unlabeled, noise=[level[LABELED:] for level in noise]).total.backward()
    assert [rung.weight.grad is not None for rung in network.rungs[1:]] == [True, True, False, False]


def test_the_decoder_has_the_sizes_of_the_encoder_below_it_and_weights_of_the_same_scale() -> None:
    assert [tuple(layer.weight.shape) for layer in random_network(3).decoder] == [(5, 4), (7, 5), (12, 7)]
    deviation = Autoencoder(Recipe(network=(300,)), (400,), 10, 0, attached=1).decoder[0].weight.std().item()
    assert deviation == pytest.approx(1 / sqrt(300), rel=0.02)


def test_packed_members_have_the_costs_that_each_has_alone() -> None:
    members = [random_network(3, seed) for seed in (0, 1)]
    members[1].rungs[0].cost = 7.0
    unlabeled, labeled, targets, noise = random_batch()

    def twice(tensors: Sequence[Tensor]) -> list[Tensor]:
        return [tensor.expand(2, *tensor.shape) for tensor in tensors]

    together = pack(members).costs(*twice([unlabeled, labeled, targets]), noise=twice(noise))
    for member, network in enumerate(members):
        alone = network.costs(unlabeled, labeled, targets, noise=noise)
        assert together.total[member].item() == pytest.approx(alone.total.item(), rel=1e-9)


def test_a_recipe_gives_the_weight_of_the_reconstruction_and_the_seed_the_initial_weights() -> None:
    one, same, other = (Autoencoder(RECIPE, (12,), 3, seed, attached=2) for seed in (0, 0, 1))
    assert (one.attached, one.rungs[0].cost, one.rungs[1].noise) == (2, 100, 0.5)
    assert one.shapes == [(units,) for units in UNITS]
    for name, value in one.state_dict().items():
        assert torch.equal(value, same.state_dict()[name])
    assert not torch.equal(one.decoder[0].weight, other.decoder[0].weight)
