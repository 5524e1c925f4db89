"""The paper's networks by name. Imports torch only when a module is built, so that the command line starts fast."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING

from tikas.model.specs import Conv, Dense, GlobalMeanPool, MapTooSmallError, MaxPool, RungSpec, shapes_of

if TYPE_CHECKING:
    from torch import nn


def mlp(outputs: int) -> list[RungSpec]:
    """784-1000-500-250-250-250-10, the fully connected network for permutation-invariant MNIST."""
    return [Dense(1000), Dense(500), Dense(250), Dense(250), Dense(250), Dense(outputs)]


def conv_fc(outputs: int) -> list[RungSpec]:
    """Conv-FC for MNIST: the fully connected network on every window of 26×26 pixels, and the mean of its outputs.

    Map sizes 28 → 3 → 3 → 3 → 3 → 3 → 3 → 1.
    """
    return [Conv(1000, 26), Conv(500, 1), Conv(250, 1), Conv(250, 1), Conv(250, 1), Conv(outputs, 1), GlobalMeanPool()]


def conv_small(outputs: int) -> list[RungSpec]:
    """Conv-Small for MNIST. Map sizes 28 → 32 → 16 → 14 → 16 → 8 → 6 → 6 → 1."""
    return [
        Conv(32, 5, padding="full"),
        MaxPool(2),
        Conv(64, 3),
        Conv(64, 3, padding="full"),
        MaxPool(2),
        Conv(128, 3),
        Conv(outputs, 1),
        GlobalMeanPool(),
        Dense(outputs),
    ]


def conv_large(outputs: int) -> list[RungSpec]:
    """Conv-Large for CIFAR-10, with leaky ReLU and no scale at the top.

    Map sizes 32 → 30 → 32 → 34 → 17 → 15 → 17 → 15 → 8 → 6 → 6 → 6 → 1.
    """
    return [
        Conv(96, 3, activation="leaky_relu"),
        Conv(96, 3, padding="full", activation="leaky_relu"),
        Conv(96, 3, padding="full", activation="leaky_relu"),
        MaxPool(2),
        Conv(192, 3, activation="leaky_relu"),
        Conv(192, 3, padding="full", activation="leaky_relu"),
        Conv(192, 3, activation="leaky_relu"),
        MaxPool(2),
        Conv(192, 3, activation="leaky_relu"),
        Conv(192, 1, activation="leaky_relu"),
        Conv(outputs, 1, activation="leaky_relu"),
        GlobalMeanPool(scale=False),
    ]


NETWORKS: dict[str, Callable[[int], list[RungSpec]]] = {
    "mlp": mlp,
    "conv_fc": conv_fc,
    "conv_small": conv_small,
    "conv_large": conv_large,
}
"""Functions that return the rungs of a network with the given number of outputs, by name."""


def conv_pool_cnn_c(outputs: int = 10, channels: int = 3) -> nn.Sequential:
    """ConvPool-CNN-C of Springenberg et al. (2015), the supervised network that Conv-Large is based on.

    Max pooling over 3×3 windows with stride 2, dropout, no normalization: a network for `tikas.gamma`, or to train
    alone. Map sizes 32 → 32 → 32 → 32 → 16 → 16 → 16 → 16 → 8 → 6 → 6 → 6 → 1.

    Parameters
    ----------
    outputs : int, default=10
        Number of classes.
    channels : int, default=3
        Channels of the images.

    References
    ----------
    Springenberg, Dosovitskiy, Brox and Riedmiller: Striving for Simplicity: The All Convolutional Net, 2015.

    Examples
    --------
    >>> import torch
    >>> conv_pool_cnn_c().eval()(torch.rand(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    from torch import nn

    def conv(below: int, features: int, kernel: int, padding: int = 0) -> list[nn.Module]:
        layer = nn.Conv2d(below, features, kernel, padding=padding)
        # Without normalization, the initial weights alone keep the signals at one scale from layer to layer.
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
        return [layer, nn.ReLU()]

    def pool() -> list[nn.Module]:
        return [nn.MaxPool2d(3, stride=2, ceil_mode=True), nn.Dropout(0.5)]

    return nn.Sequential(
        nn.Dropout(0.2),
        *conv(channels, 96, 3, padding=1),
        *conv(96, 96, 3, padding=1),
        *conv(96, 96, 3, padding=1),
        *pool(),
        *conv(96, 192, 3, padding=1),
        *conv(192, 192, 3, padding=1),
        *conv(192, 192, 3, padding=1),
        *pool(),
        *conv(192, 192, 3),
        *conv(192, 192, 1),
        *conv(192, outputs, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )


MODULES: dict[str, Callable[[int, int], nn.Module]] = {"conv_pool_cnn_c": conv_pool_cnn_c}
"""Functions that return a module to train as a Γ-model, with the given numbers of outputs and channels, by name."""


def smallest_side(name: str) -> int:
    """Return the height (and width) of the smallest square images that a network accepts."""
    return next(side for side in count(1) if _accepts(name, side))


def _accepts(name: str, side: int) -> bool:
    try:
        if name in NETWORKS:
            shapes_of((1, side, side), NETWORKS[name](1))
        else:
            import torch

            with torch.device("meta"):  # no initial weights are drawn
                network = MODULES[name](1, 1)
            network.to_empty(device="cpu").eval()(torch.empty(1, 1, side, side, device="cpu"))
    except (MapTooSmallError, RuntimeError):
        return False
    return True
