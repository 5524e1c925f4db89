"""The comparison of the paper's appendix: a supervised network with a plain decoder attached to one hidden rung."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor, nn

from tikas.data.batches import generator
from tikas.model.ladder import Costs, Ladder, Stream, squared_distance
from tikas.model.layers import DenseRung, product, reset_dense_weight
from tikas.model.normalization import per_unit
from tikas.model.specs import Dense, RungSpec
from tikas.training.recipe import Recipe


class Autoencoder(Ladder):
    """A network of dense rungs without skip connections, whose decoder starts at one rung and rebuilds the clean input.

        d_k = h̃_k;  d_l = ReLU(N(V_l+1 d_l+1) + β_l) for l = k - 1 … 1;  x̂ = sigmoid(V_1 d_1 + b)
        C = -log P(ỹ = t | x) + λ ‖x - x̂‖² / (N m)

    The layers of the decoder have the sizes of the encoder's below the rung that it is attached to.

    Parameters
    ----------
    input_shape : sequence of int
        Shape of one row; its values lie in [0, 1].
    rungs : sequence of RungSpec
    attached : int
        Number of the hidden rung that feeds the decoder, counted from 1.
    noise : float or sequence of float, default=0.3
    cost : float, default=1.0
        λ, the weight of the reconstruction. Its cost is reported as the denoising cost of the input.
    generator : torch.Generator, optional
        Draws the initial weights.

    References
    ----------
    Rasmus et al. 2015, the end of the appendix on denoising functions.

    Examples
    --------
    >>> import torch
    >>> network = Autoencoder((64,), [Dense(32), Dense(16), Dense(10)], attached=2, cost=1000.0)
    >>> costs = network.costs(torch.rand(100, 64), torch.rand(20, 64), torch.arange(20) % 10)
    >>> bool(torch.isclose(costs.total, costs.supervised + 1000 * costs.denoising[0]))
    True
    >>> [tuple(layer.weight.shape) for layer in network.decoder]
    [(32, 16), (64, 32)]
    """

    def __init__(
        self,
        input_shape: Sequence[int],
        rungs: Sequence[RungSpec],
        attached: int,
        noise: float | Sequence[float] = 0.3,
        cost: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(input_shape, rungs, noise, costs=0.0, generator=generator)
        if attached not in range(1, self.top):
            raise ValueError(f"attached={attached}: expected one of the hidden rungs, 1 to {self.top - 1}.")
        self.attached = attached
        self.rungs[0].cost = cost
        layers: list[DenseRung | _Pixels] = []
        for level in range(attached - 1, 0, -1):
            spec = Dense(prod(self.shapes[level]))
            layers.append(DenseRung(spec, self.shapes[level + 1], top=False, noise=0.0, cost=0.0))
        layers.append(_Pixels(self.shapes[0], self.shapes[1]))
        for layer in layers:
            layer.reset(generator)
        self.decoder = nn.Sequential(*layers)

    def training_costs(
        self,
        unlabeled: Tensor,
        labeled: Tensor,
        targets: Tensor | None,
        noise: Sequence[Tensor],
        weights: Tensor | None = None,
    ) -> Costs:
        supervised = super().training_costs(unlabeled, labeled, targets, noise, weights).supervised
        _, noise_of_unlabeled = self._split_noise(noise, labeled, unlabeled)
        (hidden,) = self._encode(Stream(unlabeled, self.attached, noise_of_unlabeled)).outputs
        *layers, pixels = self.decoder
        for layer in layers:
            assert isinstance(layer, DenseRung)
            hidden = layer.activate(layer.normalize(layer.up(hidden)))
        reconstruction = squared_distance(unlabeled, pixels(hidden), self.shapes[0])
        denoising = [reconstruction, *[torch.zeros_like(supervised)] * self.top]
        total = supervised + self.rungs[0].cost * reconstruction
        return Costs(total, supervised, torch.stack(denoising, dim=-1))


class _Pixels(nn.Module):
    """The last layer of the decoder: values between 0 and 1, in the shape of the input."""

    def __init__(self, shape: tuple[int, ...], above: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape
        self.weight = nn.Parameter(torch.empty(prod(shape), *above))
        self.bias = nn.Parameter(torch.zeros(prod(shape)))

    def reset(self, generator: torch.Generator | None) -> None:
        """Draw the initial weights."""
        reset_dense_weight(self.weight, generator)

    def forward(self, hidden: Tensor) -> Tensor:
        flat = torch.sigmoid(product(hidden, self.weight) + per_unit(self.bias, self.bias.shape[-1:]))
        return flat.reshape(*flat.shape[:-1], *self.shape)


def build_autoencoder(
    recipe: Recipe, input_shape: Sequence[int], n_outputs: int, seed: int, *, attached: int
) -> Autoencoder:
    """Return the autoencoder of a recipe's network; λ of the input is the weight of the reconstruction."""
    costs, draws = recipe.cost_per_level(), generator(seed, "weights")
    return Autoencoder(input_shape, recipe.rungs(n_outputs), attached, recipe.noise_per_level(), costs[0], draws)
