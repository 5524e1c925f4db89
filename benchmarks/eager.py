"""The ladder as one writes it in plain PyTorch: three passes, autograd, Adam. Correct, and not optimized.

`benchmarks/engine.py` measures tikas' engines against it. It shares no code with tikas; `tests/test_benchmarks.py`
checks its costs and gradients against those of `tikas.Ladder`.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

EPSILON = 1e-10


def normalize(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The batch with zero mean and unit deviation, its mean, and its deviation."""
    mean = x.mean(0)
    deviation = torch.sqrt(x.var(0, unbiased=False) + EPSILON)
    return (x - mean) / deviation, mean, deviation


class GaussianDenoiser(nn.Module):
    """ẑ = (z̃ - μ(u)) υ(u) + μ(u), with ten parameters per unit."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.zeros(10, units))
        with torch.no_grad():
            self.a[1] = self.a[6] = 1.0

    def forward(self, corrupted: Tensor, above: Tensor) -> Tensor:
        a = self.a
        mu = a[0] * torch.sigmoid(a[1] * above + a[2]) + a[3] * above + a[4]
        upsilon = a[5] * torch.sigmoid(a[6] * above + a[7]) + a[8] * above + a[9]
        return (corrupted - mu) * upsilon + mu


class EagerLadder(nn.Module):
    """A dense ladder for classification: ReLU in the hidden layers, softmax at the top.

    Parameters
    ----------
    widths : sequence of int
        Of the input, of each hidden layer and of the output.
    noise : float
        Deviation of the noise on every level.
    weights : sequence of float
        λ of every level, the input first.
    """

    def __init__(self, widths: Sequence[int], noise: float, weights: Sequence[float]) -> None:
        super().__init__()
        self.noise = noise
        self.weights = weights
        pairs = list(pairwise(widths))
        self.encoder = nn.ModuleList(nn.Linear(below, above, bias=False) for below, above in pairs)
        self.decoder = nn.ModuleList(nn.Linear(above, below, bias=False) for below, above in pairs)
        for layer in [*self.encoder, *self.decoder]:
            nn.init.normal_(layer.weight, std=layer.in_features**-0.5)
        self.beta = nn.ParameterList(torch.zeros(width) for width in widths[1:])
        self.gamma = nn.Parameter(torch.ones(widths[-1]))
        self.denoisers = nn.ModuleList(GaussianDenoiser(width) for width in widths)

    def encode(
        self, x: Tensor, noise: float, draws: Sequence[Tensor] | None = None
    ) -> tuple[Tensor, list[Tensor], list[Tensor], list[Tensor]]:
        """The logits; z, mean and deviation of every level."""

        def corrupt(z: Tensor, level: int) -> Tensor:
            if noise == 0:
                return z
            return z + noise * (torch.randn_like(z) if draws is None else draws[level])

        h = corrupt(x, 0)
        zs, means, deviations = [h], [torch.zeros_like(x[0])], [torch.ones_like(x[0])]
        for level, layer in enumerate(self.encoder, 1):
            z, mean, deviation = normalize(layer(h))
            z = corrupt(z, level)
            zs.append(z)
            means.append(mean)
            deviations.append(deviation)
            h = z + self.beta[level - 1]
            h = self.gamma * h if level == len(self.encoder) else torch.relu(h)
        return h, zs, means, deviations

    def costs(
        self, unlabeled: Tensor, labeled: Tensor, targets: Tensor, draws: Sequence[Tensor] | None = None
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """The total cost, the supervised cost and the denoising cost of each level.

        `draws` is the noise of each level, labeled rows first; without it, noise is drawn.
        """
        split = len(labeled)
        labeled_draws = None if draws is None else [draw[:split] for draw in draws]
        unlabeled_draws = None if draws is None else [draw[split:] for draw in draws]
        scores, _, _, _ = self.encode(labeled, self.noise, labeled_draws)
        supervised = functional.cross_entropy(scores, targets)
        scores, corrupted, _, _ = self.encode(unlabeled, self.noise, unlabeled_draws)
        _, clean, means, deviations = self.encode(unlabeled, 0.0)
        total, denoising = supervised, []
        above = torch.softmax(scores, dim=1)
        for level in reversed(range(len(corrupted))):
            u, _, _ = normalize(above)
            denoised = self.denoisers[level](corrupted[level], u)
            cost = functional.mse_loss((denoised - means[level]) / deviations[level], clean[level])
            denoising.insert(0, cost)
            total = total + self.weights[level] * cost
            if level > 0:
                above = self.decoder[level - 1](denoised)
        return total, supervised, denoising


class EagerTraining:
    """A ladder and its optimizer on rows that are on the device already, in a new order every epoch.

    Parameters
    ----------
    ladder : EagerLadder
    rows, targets : Tensor
        All rows; targets are read where a row is labeled.
    labeled : Tensor
        Indices of the labeled rows.
    batch_size : int
        Of both batches.
    """

    def __init__(self, ladder: EagerLadder, rows: Tensor, targets: Tensor, labeled: Tensor, batch_size: int) -> None:
        self.ladder = ladder
        self.rows, self.targets, self.labeled, self.batch_size = rows, targets, labeled, batch_size
        self.optimizer = torch.optim.Adam(ladder.parameters(), lr=0.002)
        self.order: list[Tensor] = []

    def update(self) -> Tensor:
        """Make one update; its total cost."""
        if not self.order:
            shuffled = torch.randperm(len(self.rows), device=self.rows.device)
            self.order = [each for each in shuffled.split(self.batch_size) if len(each) == self.batch_size]
        unlabeled = self.order.pop()
        labeled = self.labeled[torch.randperm(len(self.labeled), device=self.rows.device)[: self.batch_size]]
        total, _, _ = self.ladder.costs(self.rows[unlabeled], self.rows[labeled], self.targets[labeled])
        self.optimizer.zero_grad()
        total.backward()
        self.optimizer.step()
        return total.detach()
