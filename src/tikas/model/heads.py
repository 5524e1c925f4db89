"""What a network ends in, and how wide that is, as far as can be told without rows to run it on."""

import operator
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

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
CONVERSIONS = {"bfloat16", "clone", "contiguous", "double", "float", "half", "to"}
ARITHMETIC = {
    *(operator.add, operator.mul, operator.neg, operator.pow, operator.sub, operator.truediv),
    *(torch.add, torch.div, torch.mul, torch.neg, torch.sub),
    *("add", "div", "mul", "neg", "sub"),
}
KEEPING_THE_WIDTH = ELEMENTWISE_FUNCTIONS | CONVERSIONS | ARITHMETIC
SOFTMAXES = (nn.Softmax, nn.LogSoftmax, nn.Softmax2d)
SOFTMAX_FUNCTIONS: dict[Any, str] = {
    functional.log_softmax: "log_softmax",
    functional.softmax: "softmax",
    torch.log_softmax: "log_softmax",
    torch.softmax: "softmax",
    "log_softmax": "log_softmax",
    "softmax": "softmax",
}
GLOBAL_POOLS = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d)
GLOBAL_POOL_FUNCTIONS = {functional.adaptive_avg_pool2d, functional.adaptive_max_pool2d}
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d)


def width_of_output(network: nn.Module) -> int | None:
    """Features of the last layer, where it is certain which that is and that its width is the output's.

    The `forward` of a copy without values is followed symbolically, from its output back to a linear layer or to a
    convolution whose maps are pooled to single values. None where that cannot be done. The network itself stays as it
    is, whatever its `forward` keeps in it.

    Examples
    --------
    >>> width_of_output(nn.Sequential(nn.Linear(4, 3), nn.Dropout()))
    3
    """
    followed, node = _followed(network)
    pooled = flattened = False
    while isinstance(node, fx.Node) and node.op in {"call_module", "call_function", "call_method"}:
        layer = _layer(followed, node)
        if getattr(layer, "_forward_hooks", None):
            return None  # they may change anything
        if isinstance(layer, nn.Linear):
            return None if pooled or flattened else layer.out_features
        if isinstance(layer, CONVOLUTIONS):
            return layer.out_channels if pooled else None
        if _pools_whole_maps(layer, node):
            pooled = True
        elif isinstance(layer, nn.Flatten) or node.target in {torch.flatten, "flatten"}:
            flattened = True
        elif not isinstance(layer, ELEMENTWISE) and node.target not in KEEPING_THE_WIDTH:
            return None
        if node.target in ARITHMETIC and len(node.all_input_nodes) > 1:
            return None  # tensors of two widths may make a third
        node = node.all_input_nodes[0] if node.all_input_nodes else None
    return None


def softmax_at_the_end(network: nn.Module) -> str | None:
    """The name of a softmax that a network ends in, where it is certain that it does.

    Examples
    --------
    >>> softmax_at_the_end(nn.Sequential(nn.Linear(4, 3), nn.LogSoftmax(1)))
    'LogSoftmax'
    >>> softmax_at_the_end(nn.Linear(4, 3))
    """
    followed, node = _followed(network)
    if not isinstance(node, fx.Node):
        return None
    layer = _layer(followed, node)
    if isinstance(layer, SOFTMAXES):
        return type(layer).__name__
    return SOFTMAX_FUNCTIONS.get(node.target)


def _followed(network: nn.Module) -> tuple[nn.Module, Any]:
    """A copy without values, and what its `forward` returns, as a symbol; None where it cannot be followed."""
    try:
        followed = nn.Sequential(_copy_without_values(_unwrapped(network)))
        with torch.random.fork_rng(devices=[]):
            (output,) = (node for node in _Follower().trace(followed).nodes if node.op == "output")
    except Exception:  # whatever a stranger's `forward` does when its input is a symbol
        return network, None
    return followed, output.args[0]


def _pools_whole_maps(layer: Any, node: fx.Node) -> bool:
    """Whether a layer, a function or a method leaves one value of every map."""
    if isinstance(layer, GLOBAL_POOLS):
        return layer.output_size in (1, (1, 1))
    if node.target in GLOBAL_POOL_FUNCTIONS:
        return _argument(node, "output_size") in (1, (1, 1), [1, 1])
    return node.target in {torch.mean, "mean"} and _argument(node, "dim") in ((2, 3), [2, 3], (-2, -1), [-2, -1])


def _argument(node: fx.Node, name: str) -> Any:
    """The second argument of a call, which may be given by its name."""
    return node.args[1] if len(node.args) > 1 else node.kwargs.get(name)


class _Rows(fx.Proxy):
    """A symbol that stands for two rows where a `forward` asks how many there are."""

    def __len__(self) -> int:
        if self.node.target == "size":
            raise fx.proxy.TraceError("How many dimensions rows have is not known.")
        return 2


class _Follower(fx.Tracer):
    """Goes into whatever has no hooks: those of others are not for symbols."""

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Rows(node, self)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return super().is_leaf_module(m, module_qualified_name) or bool(m._forward_hooks or m._forward_pre_hooks)


def _unwrapped(network: nn.Module) -> nn.Module:
    """What a compiler, or what runs it on several devices, stands around; the scores are the same."""
    name = "module" if isinstance(network, nn.DataParallel | DistributedDataParallel) else "_orig_mod"
    inner = getattr(network, name, None)
    return network if inner is None else _unwrapped(inner)


def _copy_without_values(network: nn.Module) -> nn.Module:
    """The same layers and attributes, but nothing that is the network's own, and of weights the shapes alone."""
    weights = [weight for weight in network.parameters() if not is_lazy(weight)]
    empty: dict[int, Tensor] = {id(w): nn.Parameter(w.detach().to("meta"), w.requires_grad) for w in weights}
    large = (buffer for buffer in network.buffers() if not is_lazy(buffer) and buffer.numel() > 1)
    empty |= {id(buffer): buffer.to("meta") for buffer in large}  # a `forward` may look at counters and switches
    return deepcopy(network, empty)


def _layer(network: nn.Module, node: fx.Node) -> Any:
    return network.get_submodule(str(node.target)) if node.op == "call_module" else None
