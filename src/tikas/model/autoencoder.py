"""The rival of the paper's appendix: a supervised network with a plain decoder attached to one hidden rung."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import cast

import torch
from torch import Tensor, nn

from tikas.model.checks import check_cost
from tikas.model.costs import Costs, squared_distance
from tikas.model.dense import DenseRung, product, reset_weight
from tikas.model.ladder import Ladder
from tikas.model.layout import per_unit, rows_dim
from tikas.model.specs import Dense, RungSpec


class Autoencoder(Ladder):
    """A ladder without skip connections, whose decoder starts at one rung and rebuilds the clean input.

        d_k = h̃_k;  d_l = ReLU(N(V_l+1 d_l+1) + β_l) for l = k - 1 … 1;  x̂ = sigmoid(V_1 d_1 + b)
        C = -log P(ỹ = t | x) + λ ‖x - x̂‖² / (N m)

    The decoder's layers are as many and as large as the encoder's below the rung that it is attached to. It sees what
    that rung makes of corrupted rows, and no other rung: detail that is lost on the way up is lost to it.

    Parameters
    ----------
    input_shape, rungs, noise, generator
        As those of `Ladder`; the values of the input are in [0, 1].
    attached
        The number of the hidden rung, counted from 1 at the bottom.
    cost
        λ, the weight of the reconstruction.

    Raises
    ------
    ValueError
        Where `attached` is no hidden rung, or a rung below it is not dense.

    References
    ----------
    Rasmus, Berglund, Honkala, Valpola and Raiko: Semi-Supervised Learning with Ladder Networks, 2015, the end of the
    appendix on denoising functions.

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
        check_cost(cost)
        if attached not in range(1, len(rungs)):
            raise ValueError(f"attached={attached}: expected one of the hidden rungs, 1 to {len(rungs) - 1}.")
        if any(len(shape) > 1 for shape in self.shapes[1 : attached + 1]):
            raise ValueError("A plain decoder mirrors dense rungs; here a rung below it makes maps.")
        self.attached = attached
        self.rungs[0].cost = float(cost)  # where a fleet looks for what its members differ in
        layers = [
            DenseRung(Dense(prod(self.shapes[level])), self.shapes[level + 1], top=False, noise=0.0, cost=0.0)
            for level in range(attached - 1, 0, -1)
        ]
        self.decoder = nn.ModuleList([*layers, Pixels(self.shapes[0], self.shapes[1])])
        self._reset_decoder(generator)

    @property
    def cost(self) -> float | Tensor:
        """λ."""
        return self.rungs[0].cost

    def reset(self, generator: torch.Generator | None = None) -> None:
        super().reset(generator)
        if hasattr(self, "decoder"):
            self._reset_decoder(generator)

    def _reset_decoder(self, generator: torch.Generator | None) -> None:
        for layer in self.decoder:
            cast("DenseRung | Pixels", layer).reset(generator)

    def costs(
        self,
        unlabeled: Tensor,
        labeled: Tensor | None = None,
        targets: Tensor | None = None,
        noise: Sequence[Tensor] | None = None,
        weights: Tensor | None = None,
    ) -> Costs:
        """The costs of one update, called as `Ladder.costs` is; the reconstruction's is the input's denoising cost.

        Examples
        --------
        >>> network = Autoencoder((4,), [Dense(5), Dense(3)], attached=1, noise=0, cost=10.0)
        >>> network.costs(torch.rand(8, 4)).denoising.shape  # the input's, and none of the two rungs'
        torch.Size([3])
        """
        rows = unlabeled.shape[rows_dim(self.shapes[0])]
        count = rows if labeled is None else rows + labeled.shape[rows_dim(self.shapes[0])]
        if noise is None:
            noise = self.draw_noise(unlabeled, count)
        supervised = super().costs(unlabeled, labeled, targets, noise, weights).supervised
        draws = [
            draw.narrow(rows_dim(rung.shape), count - rows, rows) for draw, rung in zip(noise, self.rungs, strict=True)
        ]
        rebuilt = self._rebuild(self._corrupted(unlabeled, draws))
        reconstruction = squared_distance(unlabeled, rebuilt, self.shapes[0])
        denoising = [reconstruction, *[torch.zeros_like(supervised)] * self.top]
        return Costs(supervised + self.cost * reconstruction, supervised, torch.stack(denoising, dim=-1))

    def _corrupted(self, hidden: Tensor, draws: Sequence[Tensor]) -> Tensor:
        """h̃ of the rung that the decoder is attached to."""
        for rung, draw in zip(self.rungs[: self.attached + 1], draws, strict=False):
            hidden = rung.activate(rung.corrupt(rung.normalize(rung.up(hidden)), draw))
        return hidden

    def _rebuild(self, hidden: Tensor) -> Tensor:
        *layers, pixels = self.decoder
        for layer in layers:
            rung = cast("DenseRung", layer)
            hidden = rung.activate(rung.normalize(rung.up(hidden)))
        return cast("Tensor", pixels(hidden))


class Pixels(nn.Module):
    """The decoder's last layer: values between 0 and 1, in the shape of the input.

    Examples
    --------
    >>> pixels = Pixels((1, 8, 8), above=(5,))
    >>> pixels.reset(None)
    >>> made = pixels(torch.randn(2, 5))
    >>> made.shape, bool((made > 0).all() and (made < 1).all())
    (torch.Size([2, 1, 8, 8]), True)
    """

    def __init__(self, shape: tuple[int, ...], above: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape
        self.weight = nn.Parameter(torch.empty(prod(shape), *above))
        self.bias = nn.Parameter(torch.zeros(prod(shape)))

    def reset(self, generator: torch.Generator | None) -> None:
        """Draw the first values."""
        reset_weight(self.weight, generator)
        nn.init.zeros_(self.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        flat = torch.sigmoid(product(hidden, self.weight) + per_unit(self.bias, (self.bias.shape[-1],)))
        return flat.reshape(*flat.shape[:-1], *self.shape)
