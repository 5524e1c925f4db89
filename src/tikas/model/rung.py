"""A rung as a module: all that belongs to one level, whatever the way up to it is made of."""

import torch
from torch import Tensor, nn

from tikas.model.activations import ACTIVATIONS, Activation, activation_of
from tikas.model.denoisers import DENOISERS, Denoiser
from tikas.model.layout import per_member, per_unit
from tikas.model.specs import RungSpec
from tikas.model.statistics import Statistics, normalize, normalize_with_statistics


class Back(nn.Module):
    """The way down from a level to the one below it; this one has nothing to learn."""

    def reset(self, generator: torch.Generator | None) -> None:
        """Draw the first weights, where there are any."""

    def forward(self, denoised: Tensor) -> Tensor:
        """V ẑ, of the shape of the level below."""
        raise NotImplementedError


class Rung(nn.Module):
    """One level: the way up to it, its statistics, its noise and cost, its denoiser and the way back down from it.

    Parameters
    ----------
    shape
        Of the level: ``(units,)``, or ``(channels, height, width)``.
    activation
        What turns the normalised values into the next rung's input.
    noise
        Deviation of the noise added here in the corrupted pass.
    cost
        λ, the weight of this level's denoising cost.

    Notes
    -----
    The input level is a plain `Rung`: no way up, nothing normalised, but noise, a cost and a denoiser like the others.
    Where members of a fleet differ in them, `noise` and `cost` are tensors ``(*members,)``.

    Examples
    --------
    >>> level = Rung((3,), noise=0.3, cost=1000.0)
    >>> level.corrupt(torch.zeros(1, 3), torch.ones(1, 3))
    tensor([[0.3000, 0.3000, 0.3000]])
    """

    noise: float | Tensor
    cost: float | Tensor
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
        self.back: Back | None = None

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

    def normalize_with_statistics(self, projected: Tensor) -> tuple[Tensor, Statistics | None]:
        """A batch normalised with its own statistics, and these statistics."""
        return projected, None

    def statistics_of_cost(self, statistics: Statistics) -> Statistics:
        """What ẑ is normalised with in this level's cost, given the statistics of the clean batch."""
        return statistics

    @property
    def calibrated(self) -> Statistics:
        """The mean and deviation that `Ladder.calibrate` gathered."""
        return Statistics(per_unit(self.mean, self.shape), per_unit(self.deviation, self.shape))

    def corrupt(self, clean: Tensor, noise: Tensor) -> Tensor:
        """Add this level's noise, drawn with unit deviation."""
        if isinstance(self.noise, Tensor):
            return torch.addcmul(clean, per_member(self.noise, self.shape), noise)
        return torch.add(clean, noise, alpha=self.noise)

    def activate(self, normalized: Tensor) -> Tensor:
        """h = φ(γ·(z + β))."""
        if self.beta is not None:
            normalized = normalized + per_unit(self.beta, self.shape)
        if self.gamma is not None:
            normalized = per_unit(self.gamma, self.shape) * normalized
        return self.activation.function(normalized)


class NormalizedRung(Rung):
    """A level above the input: what comes up to it is normalised, unit by unit or on maps channel by channel.

    Parameters
    ----------
    spec
        What is wanted.
    below
        The shape of the level that it stands on.
    top
        Whether it is the output.
    noise, cost
        As for `Rung`.

    Examples
    --------
    >>> from tikas.model.specs import Dense
    >>> rung = NormalizedRung(Dense(2), (4,), top=True, noise=0.3, cost=0.1)
    >>> rung.shape, sorted(rung.state_dict())
    ((2,), ['beta', 'deviation', 'gamma', 'mean'])
    >>> rung.normalize(torch.tensor([[1.0, 5.0], [3.0, -5.0]]))
    tensor([[-1.,  1.],
            [ 1., -1.]])
    """

    def __init__(self, spec: RungSpec, below: tuple[int, ...], *, top: bool, noise: float, cost: float) -> None:
        super().__init__(spec.shape(below), activation=activation_of(spec, top=top), noise=noise, cost=cost)
        self.below = below
        self.register_buffer("mean", torch.zeros(self.shape[0]))
        self.register_buffer("deviation", torch.ones(self.shape[0]))

    def normalize(self, projected: Tensor) -> Tensor:
        return normalize(projected, self.shape)

    def normalize_with_statistics(self, projected: Tensor) -> tuple[Tensor, Statistics]:
        return normalize_with_statistics(projected, self.shape)
