"""How wide a network's output is, as far as can be told without rows to run it on."""

from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional

from tikas.model.corruption import NORMALIZATIONS

ELEMENTWISE = (
    *NORMALIZATIONS,
    nn.Dropout,
    nn.ELU,
    nn.GELU,
    nn.Identity,
    nn.LeakyReLU,
    nn.LogSoftmax,
    nn.ReLU,
    nn.SiLU,
    nn.Sigmoid,
    nn.Softmax,
    nn.Tanh,
)
ELEMENTWISE_FUNCTIONS = {
    functional.dropout,
    functional.log_softmax,
    functional.relu,
    functional.softmax,
    torch.log_softmax,
    torch.relu,
    torch.softmax,
    "log_softmax",
    "relu",
    "softmax",
}
GLOBAL_POOLS = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d)
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d)


def width_of_output(network: nn.Module) -> int | None:
    """Features of the last layer, where it is certain which that is and that its width is the output's.

    The network's own `forward` is followed symbolically, from its output back to a linear layer or to a convolution
    whose maps are pooled to single values. None where that cannot be done.

    Examples
    --------
    >>> width_of_output(nn.Sequential(nn.Linear(4, 3), nn.Dropout()))
    3
    """
    try:
        (output,) = (node for node in fx.symbolic_trace(network).graph.nodes if node.op == "output")
    except Exception:  # whatever a stranger's `forward` does when its input is a symbol
        return None
    node, pooled, flattened = output.args[0], False, False
    while isinstance(node, fx.Node) and node.op in {"call_module", "call_function", "call_method"}:
        layer = _layer(network, node)
        if isinstance(layer, nn.Linear):
            return None if pooled or flattened else layer.out_features
        if isinstance(layer, CONVOLUTIONS):
            return layer.out_channels if pooled else None
        if isinstance(layer, GLOBAL_POOLS) and layer.output_size in (1, (1, 1)):
            pooled = True
        elif isinstance(layer, nn.Flatten) or node.target in {torch.flatten, "flatten"}:
            flattened = True
        elif not isinstance(layer, ELEMENTWISE) and node.target not in ELEMENTWISE_FUNCTIONS:
            return None
        node = node.args[0] if node.args else None
    return None


def _layer(network: nn.Module, node: fx.Node) -> Any:
    return network.get_submodule(str(node.target)) if node.op == "call_module" else None
