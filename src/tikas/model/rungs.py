"""The rungs: `Dense`, as a value that says what is wanted and as a module that holds all that belongs to its level."""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from numbers import Integral
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from tikas.model.denoisers import DENOISERS, Denoiser
from tikas.model.layout import per_unit
from tikas.model.statistics import Statistics, calibrated_statistics, normalize, normalize_and_tell


class Activation(NamedTuple):
    """φ of h = φ(γ·(z + β)), and which of γ and β it can tell apart from what the weights do already."""

    function: Callable[[Tensor], Tensor]
    scale: bool
    bias: bool


def _identity(x: Tensor) -> Tensor:
    return x


def _leaky_relu(x: Tensor) -> Tensor:
    return functional.leaky_relu(x, 0.1)


ACTIVATIONS = {
    "relu": Activation(functional.relu, scale=False, bias=True),
    "leaky_relu": Activation(_leaky_relu, scale=False, bias=True),
    "tanh": Activation(torch.tanh, scale=True, bias=True),
    "gelu": Activation(functional.gelu, scale=True, bias=True),
    "linear": Activation(_identity, scale=False, bias=False),
}

TOP = Activation(_identity, scale=True, bias=True)
"""The top's scores: its softmax is part of the cost, and a regression's targets have a mean and a deviation to meet."""


class Rung(nn.Module):
    """One level: the way up to it, its statistics, its noise and cost, its denoiser and the way back down from it.

    Parameters
    ----------
    shape
        Of the level: ``(units,)``.
    activation
        What turns the normalised values into the next rung's input.
    noise
        Deviation of the noise added here in the corrupted pass.
    cost
        λ, the weight of this level's denoising cost.

    Notes
    -----
    The input level is a plain `Rung`: no way up, nothing normalised, but noise, a cost and a denoiser like the others.
    """

    mean: Tensor
    deviation: Tensor
    beta: Tensor | None
    gamma: Tensor | None

    def __init__(
        self,
        shape: tuple[int, ...],
        *,
        activation: Activation = ACTIVATIONS["linear"],
        noise: float = 0.0,
        cost: float = 0.0,
    ) -> None:
        super().__init__()
        self.shape = shape
        self.activation = activation
        self.noise = noise
        self.cost = cost
        self.register_parameter("beta", nn.Parameter(torch.zeros(shape[0])) if activation.bias else None)
        self.register_parameter("gamma", nn.Parameter(torch.ones(shape[0])) if activation.scale else None)
        self.denoiser: Denoiser | None = None
        self.back: DenseBack | None = None

    def up(self, below: Tensor) -> Tensor:
        """W h of the level below, not yet normalised."""
        return below

    def add_denoiser(self, name: str) -> None:
        """Build the denoising function of this level."""
        self.denoiser = DENOISERS[name](self.shape)

    def add_back(self) -> None:
        """Build the way down from this level to the one below it."""
        raise NotImplementedError

    def reset(self, generator: torch.Generator | None) -> None:
        """Draw the first values of all that belongs to this level."""
        if self.beta is not None:
            nn.init.zeros_(self.beta)
        if self.gamma is not None:
            nn.init.ones_(self.gamma)
        if self.denoiser is not None:
            self.denoiser.reset()
        if self.back is not None:
            self.back.reset(generator)

    def normalize(self, projected: Tensor) -> Tensor:
        """A batch normalised with its own statistics."""
        return projected

    def normalize_and_tell(self, projected: Tensor) -> tuple[Tensor, Statistics | None]:
        """A batch normalised with its own statistics, and those."""
        return projected, None

    @property
    def calibrated(self) -> Statistics:
        """The mean and deviation that `Ladder.calibrate` gathered."""
        return calibrated_statistics(self.mean, self.deviation, self.shape)

    def corrupt(self, clean: Tensor, noise: Tensor) -> Tensor:
        """Add this level's noise, drawn with unit deviation."""
        return torch.add(clean, noise, alpha=self.noise)

    def activate(self, normalized: Tensor) -> Tensor:
        """h = φ(γ·(z + β))."""
        if self.beta is not None:
            normalized = normalized + per_unit(self.beta, self.shape)
        if self.gamma is not None:
            normalized = per_unit(self.gamma, self.shape) * normalized
        return self.activation.function(normalized)


def product(x: Tensor, weight: Tensor) -> Tensor:
    """x Wᵀ, whose gradient for W comes in the layout of W.

    With a member dimension autograd would give it transposed, and copying every weight's gradient into place took a
    fifth of a fleet's update on a GPU.
    """
    return x @ weight.mT if x.dim() == 2 else cast("Tensor", _Product.apply(x, weight))  # type: ignore[no-untyped-call]


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight.mT

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        (gradient,) = gradients
        return gradient @ weight, gradient.mT @ x


class DenseBack(nn.Module):
    """V, from a dense level down to the one below it: ``(units below, units above)``."""

    def __init__(self, shape: tuple[int, ...], below: tuple[int, ...]) -> None:
        super().__init__()
        self.below = below
        self.weight = nn.Parameter(torch.empty(prod(below), *shape))

    def reset(self, generator: torch.Generator | None) -> None:
        """Normal, of deviation 1/√inputs."""
        nn.init.normal_(self.weight, std=self.weight.shape[-1] ** -0.5, generator=generator)

    def forward(self, denoised: Tensor) -> Tensor:
        return product(denoised, self.weight).reshape(*denoised.shape[:-1], *self.below)


class DenseRung(Rung):
    """A rung whose way up is a matrix: ``weight`` is W, ``(units, units below)``."""

    def __init__(
        self, shape: tuple[int, ...], below: tuple[int, ...], *, activation: Activation, noise: float, cost: float
    ) -> None:
        super().__init__(shape, activation=activation, noise=noise, cost=cost)
        self.below = below
        self.weight = nn.Parameter(torch.empty(*shape, prod(below)))
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("deviation", torch.ones(shape))

    def add_back(self) -> None:
        self.back = DenseBack(self.shape, self.below)

    def reset(self, generator: torch.Generator | None) -> None:
        nn.init.normal_(self.weight, std=self.weight.shape[-1] ** -0.5, generator=generator)
        super().reset(generator)

    def up(self, below: Tensor) -> Tensor:
        return product(below.flatten(-len(self.below)), self.weight)

    def normalize(self, projected: Tensor) -> Tensor:
        return normalize(projected, self.shape)

    def normalize_and_tell(self, projected: Tensor) -> tuple[Tensor, Statistics]:
        return normalize_and_tell(projected, self.shape)


@dataclass(frozen=True)
class Dense:
    """A fully connected rung.

    Parameters
    ----------
    features
        Number of units.
    activation
        ``"relu"``, ``"leaky_relu"`` (slope 0.1), ``"tanh"``, ``"gelu"`` or ``"linear"``. The top rung of a ladder
        disregards it: its task says what it is.

    Examples
    --------
    >>> Dense(1000)
    Dense(features=1000, activation='relu')
    """

    features: int
    activation: str = "relu"

    def __post_init__(self) -> None:
        if isinstance(self.features, bool) or not isinstance(self.features, Integral) or self.features < 1:
            raise ValueError(f"Dense({self.features!r}): the number of units must be a positive whole number.")
        if self.activation not in ACTIVATIONS:
            raise ValueError(
                f"Dense({self.features}, activation={self.activation!r}): "
                f"choose one of {', '.join(map(repr, ACTIVATIONS))}."
            )

    def build(self, below: tuple[int, ...], *, top: bool, noise: float, cost: float) -> DenseRung:
        """The module that stands on a level of shape `below`."""
        activation = TOP if top else ACTIVATIONS[self.activation]
        return DenseRung((int(self.features),), below, activation=activation, noise=noise, cost=cost)
