"""The comparison of the paper's appendix: a supervised network with a plain decoder attached to one hidden rung."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tikas.data.batches import generator
from tikas.model.ladder import Costs, Ladder, Stream, squared_distance
from tikas.model.layers import DenseBack, DenseRung
from tikas.model.normalization import normalize
from tikas.model.specs import Dense
from tikas.training.recipe import Recipe


class Autoencoder(Ladder):
    """A network of dense rungs without skip connections, whose decoder starts at one rung and reconstructs the input.

        d_k = h̃_k;  d_l = ReLU(N(V_l+1 d_l+1) + β_l) for l = k - 1 … 1;  x̂ = sigmoid(V_1 d_1 + b)
        C = -log P(ỹ = t | x) + λ ‖x - x̂‖² / (N m)

    The layers of the decoder have the sizes of the encoder's below the rung that it is attached to.

    Parameters
    ----------
    recipe : Recipe
        The noise, the dense rungs, and λ, the cost of the input. The reconstruction cost is reported as the denoising
        cost of the input.
    input_shape : sequence of int
        Shape of one row; its values lie in [0, 1].
    n_outputs : int
        Number of classes.
    seed : int
        Determines the initial weights.
    attached : int
        Number of the hidden rung that feeds the decoder, counted from 1.

    References
    ----------
    Rasmus et al. 2015, the end of the appendix on denoising functions.

    Examples
    --------
    >>> import torch
    >>> network = Autoencoder(Recipe(network=(32, 16), costs=(1000, 0)), (64,), 10, seed=0, attached=2)
    >>> costs = network.costs(torch.rand(100, 64), torch.rand(20, 64), torch.arange(20) % 10)
    >>> bool(torch.isclose(costs.total, costs.supervised + 1000 * costs.denoising[0]))
    True
    >>> [tuple(layer.weight.shape) for layer in network.decoder]
    [(32, 16), (64, 32)]
    """

    def __init__(self, recipe: Recipe, input_shape: Sequence[int], n_outputs: int, seed: int, *, attached: int) -> None:
        weights = generator(seed, "weights")
        super().__init__(input_shape, recipe.rungs(n_outputs), recipe.noise_per_level(), costs=0.0, generator=weights)
        self.attached = attached
        self.rungs[0].cost = recipe.cost_per_level()[0]
        layers: list[_HiddenLayer | _PixelLayer] = []
        for level in range(attached - 1, 0, -1):
            spec = Dense(self.shapes[level][0])
            layers.append(_HiddenLayer(spec, self.shapes[level + 1], top=False, noise=0.0, cost=0.0))
        layers.append(_PixelLayer(Dense(self.shapes[1][0]), self.shapes[0]))
        for layer in layers:
            layer.reset(weights)
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
        reconstruction = squared_distance(unlabeled, self.decoder(hidden), self.shapes[0])
        denoising = [reconstruction, *[torch.zeros_like(supervised)] * self.top]
        total = supervised + self.rungs[0].cost * reconstruction
        return Costs(total, supervised, torch.stack(denoising, dim=-1))


class _HiddenLayer(DenseRung):
    """A hidden layer of the decoder: ReLU(N(V d) + β)."""

    def forward(self, hidden: Tensor) -> Tensor:
        return self.activate(normalize(self.up(hidden), self.shape))


class _PixelLayer(DenseBack):
    """The last layer of the decoder: values between 0 and 1, in the shape of the input."""

    def __init__(self, spec: Dense, below: tuple[int, ...]) -> None:
        super().__init__(spec, below)
        self.bias = nn.Parameter(torch.zeros(below))

    def forward(self, hidden: Tensor) -> Tensor:
        return torch.sigmoid(super().forward(hidden) + self.bias.unsqueeze(-1 - len(self.below)))
