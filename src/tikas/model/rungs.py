"""All rungs in one place, as values that say what is wanted and as modules, and what makes a module of a value."""

from collections.abc import Callable
from typing import Any

from tikas.model.activations import ACTIVATIONS, TOP, Activation
from tikas.model.convolutions import ConvBack, ConvRung
from tikas.model.dense import DenseBack, DenseRung, product
from tikas.model.pooling import GlobalBack, GlobalRung, PoolBack, PoolRung
from tikas.model.rung import Back, NormalizedRung, Rung
from tikas.model.specs import Conv, Dense, GlobalMeanPool, MaxPool, MeanPool, RungSpec

__all__ = [
    "ACTIVATIONS",
    "TOP",
    "Activation",
    "Back",
    "Conv",
    "ConvBack",
    "ConvRung",
    "Dense",
    "DenseBack",
    "DenseRung",
    "GlobalBack",
    "GlobalMeanPool",
    "GlobalRung",
    "MaxPool",
    "MeanPool",
    "NormalizedRung",
    "PoolBack",
    "PoolRung",
    "Rung",
    "RungSpec",
    "build",
    "product",
]

MODULES: dict[type[RungSpec], Callable[..., NormalizedRung]] = {
    Dense: DenseRung,
    Conv: ConvRung,
    MaxPool: PoolRung,
    MeanPool: PoolRung,
    GlobalMeanPool: GlobalRung,
}


def build(spec: RungSpec, below: tuple[int, ...], **settings: Any) -> NormalizedRung:
    """The module that stands on a level of shape `below`; `settings` are those of `NormalizedRung`.

    Examples
    --------
    >>> rung = build(Conv(32, 5, padding="full"), (1, 28, 28), top=False, noise=0.3, cost=0.1)
    >>> type(rung).__name__, rung.shape
    ('ConvRung', (32, 32, 32))
    """
    return MODULES[type(spec)](spec, below, **settings)
