"""The activations φ of h = φ(γ·(z + β)), and which of γ and β each needs."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from tikas.model.names import ActivationName
from tikas.model.specs import RungSpec


class Activation(NamedTuple):
    """φ of h = φ(γ·(z + β)), and which of γ and β it can tell apart from what the weights do already.

    Examples
    --------
    >>> relu = ACTIVATIONS["relu"]
    >>> relu.function(torch.tensor([-1.0, 2.0])), relu.scale, relu.bias
    (tensor([0., 2.]), False, True)
    """

    function: Callable[[Tensor], Tensor]
    scale: bool
    bias: bool


def _identity(x: Tensor) -> Tensor:
    return x


def _leaky_relu(x: Tensor) -> Tensor:
    return functional.leaky_relu(x, 0.1)


ACTIVATIONS: dict[ActivationName, Activation] = {
    "relu": Activation(functional.relu, scale=False, bias=True),
    "leaky_relu": Activation(_leaky_relu, scale=False, bias=True),
    "tanh": Activation(torch.tanh, scale=True, bias=True),
    "gelu": Activation(functional.gelu, scale=True, bias=True),
    "linear": Activation(_identity, scale=False, bias=False),
}

TOP = Activation(_identity, scale=True, bias=True)
"""The top's scores: its softmax is part of the cost, and a regression's targets have a mean and a deviation to meet."""


def activation_of(spec: RungSpec, *, top: bool) -> Activation:
    """What a rung does to its normalised values: linear where it is no place for an activation, as pooling is not.

    Examples
    --------
    >>> from tikas.model.specs import Dense, MaxPool
    >>> [activation_of(Dense(5), top=top).scale for top in (False, True)]  # ReLU needs no scale, the top does
    [False, True]
    >>> activation_of(MaxPool(2), top=False) is ACTIVATIONS["linear"]
    True
    """
    if top:
        return TOP._replace(scale=getattr(spec, "scale", True))
    return ACTIVATIONS[getattr(spec, "activation", "linear") or "relu"]
