"""The dense rung: matrices up and down."""

from math import prod
from typing import Any, cast

import torch
from torch import Tensor, nn

from tikas.model.rung import Back, NormalizedRung
from tikas.model.specs import Dense


def product(x: Tensor, weight: Tensor) -> Tensor:
    """x Wᵀ, whose gradient for W comes in the layout of W.

    With a member dimension autograd would give it transposed, and copying every weight's gradient into place took a
    fifth of a fleet's update on a GPU. Where W is in bf16 and x is not, the product is made in bf16, both ways.

    Examples
    --------
    >>> product(torch.ones(7, 5, 4), torch.ones(7, 3, 4)).shape  # seven members, each with weights of its own
    torch.Size([7, 5, 3])
    """
    if weight.dtype == torch.bfloat16 != x.dtype:
        return product(x.bfloat16(), weight).to(x.dtype)
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
        to_x, to_weight = gradient @ weight.to(gradient.dtype), gradient.mT @ x.to(gradient.dtype)
        return to_x.to(x.dtype), to_weight.to(weight.dtype)  # autocast lets the factors differ from the product


def reset_weight(weight: Tensor, generator: torch.Generator | None) -> None:
    """Normal, of deviation 1/√inputs.

    Examples
    --------
    >>> weight = torch.empty(1000, 400)
    >>> reset_weight(weight, torch.Generator().manual_seed(0))
    >>> round(weight.std().item(), 3)
    0.05
    """
    nn.init.normal_(weight, std=weight.shape[-1] ** -0.5, generator=generator)


class DenseBack(Back):
    """V, from a dense level down to the one below it: ``(units below, units above)``.

    Examples
    --------
    >>> back = DenseBack((10,), below=(1, 8, 8))
    >>> back.weight.shape, back(torch.zeros(5, 10)).shape
    (torch.Size([64, 10]), torch.Size([5, 1, 8, 8]))
    """

    def __init__(self, shape: tuple[int, ...], below: tuple[int, ...]) -> None:
        super().__init__()
        self.below = below
        self.weight = nn.Parameter(torch.empty(prod(below), *shape))

    def reset(self, generator: torch.Generator | None) -> None:
        reset_weight(self.weight, generator)

    def forward(self, denoised: Tensor) -> Tensor:
        return product(denoised, self.weight).reshape(*denoised.shape[:-1], *self.below)


class DenseRung(NormalizedRung):
    """A rung whose way up is a matrix: ``weight`` is W, ``(units, units below)``.

    Examples
    --------
    >>> rung = DenseRung(Dense(10), (1, 8, 8), top=True, noise=0.3, cost=0.1)
    >>> rung.weight.shape, rung.up(torch.zeros(5, 1, 8, 8)).shape
    (torch.Size([10, 64]), torch.Size([5, 10]))
    """

    def __init__(self, spec: Dense, below: tuple[int, ...], *, top: bool, noise: float, cost: float) -> None:
        super().__init__(spec, below, top=top, noise=noise, cost=cost)
        self.weight = nn.Parameter(torch.empty(spec.features, prod(below)))

    def add_back(self) -> None:
        self.back = DenseBack(self.shape, self.below)

    def reset(self, generator: torch.Generator | None) -> None:
        reset_weight(self.weight, generator)
        super().reset(generator)

    def up(self, below: Tensor) -> Tensor:
        return product(below.flatten(-len(self.below)), self.weight)
