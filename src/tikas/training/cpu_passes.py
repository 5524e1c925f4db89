"""What compiled code goes through on a CPU: products in bf16, if they are quicker, and masks that are never stored.

Both are passes over the compiler's graph, of the way there and the way back as one; the model knows nothing of them.
"""

from collections.abc import Callable

import torch
from torch import Tensor, fx
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.utils.checkpoint import CheckpointPolicy

PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.bmm.default)
CAST = torch.ops.prims.convert_element_type.default
TURN = torch.ops.aten.permute.default


def products_in_half(graph: fx.graph.Graph) -> None:
    """Make products of float32 by bf16 copies of both factors: they and the results are rounded, sums are of float32.

    A factor is copied once, before it is turned, for all products of the way there and back that it is in.

    Examples
    --------
    >>> from torch.fx.experimental.proxy_tensor import make_fx
    >>> program = make_fx(torch.mm, tracing_mode="fake")(torch.ones(2, 3), torch.ones(3, 4))
    >>> products_in_half(program.graph)
    >>> [node.meta["val"].dtype for node in program.graph.nodes if node.op == "call_function"]
    [torch.bfloat16, torch.bfloat16, torch.bfloat16, torch.float32]
    """
    halves: dict[fx.Node, fx.Node] = {}

    def half(factor: fx.Node) -> fx.Node:
        if factor.target is TURN:
            return _insert(graph, factor.next, TURN, half(factor.args[0]), factor.args[1])  # type: ignore[arg-type]
        if factor not in halves:
            place = factor.next
            while place.op == "placeholder":  # which come first, all of them
                place = place.next
            halves[factor] = _insert(graph, place, CAST, factor, torch.bfloat16)
        return halves[factor]

    for node in list(graph.nodes):
        if node.target in PRODUCTS and node.meta["val"].dtype == torch.float32:
            product = _insert(graph, node, node.target, *map(half, node.args))
            node.replace_all_uses_with(_insert(graph, node, CAST, product, torch.float32))
            graph.erase_node(node)


def masks_again(graph: fx.graph.Graph) -> None:
    """Have masks computed again on the way back.

    Where an activation was above zero takes a byte a value, so the compiler likes to store that in the value's stead,
    above all in a fleet. But its code for a CPU is slow at writing and reading bytes: with them an update of four seeds
    took 29 ms a seed, and without 23 (`results/bench.jsonl`, revisions 58a3b47 and 9b0926f).

    Examples
    --------
    >>> from torch.fx.experimental.proxy_tensor import make_fx
    >>> program = make_fx(lambda x: x * (x > 0), tracing_mode="fake")(torch.ones(2))
    >>> masks_again(program.graph)
    >>> [(node.name, node.meta["recompute"].name) for node in program.graph.nodes if "recompute" in node.meta]
    [('gt', 'MUST_RECOMPUTE')]
    """
    for node in graph.nodes:
        value = node.meta.get("val") if node.op == "call_function" else None
        if isinstance(value, Tensor) and value.dtype == torch.bool:
            node.meta |= {"recompute": CheckpointPolicy.MUST_RECOMPUTE, "ac_graph_id": 0}


def _insert(graph: fx.graph.Graph, place: fx.Node, target: Callable[..., Tensor], *arguments: object) -> fx.Node:
    """A call before a place, with what the compiler has to know of its result."""
    with graph.inserting_before(place):
        node = graph.call_function(target, arguments)  # type: ignore[arg-type]
    values = (each.meta["val"] if isinstance(each, fx.Node) else each for each in arguments)
    node.meta["val"] = target(*values)
    return node


class Passes(CustomGraphPass):
    """Some of these, one after the other.

    Compiled code that is kept is known by `uuid` to have gone through them, as they are in this file.
    """

    def __init__(self, *passes: Callable[[fx.graph.Graph], None]) -> None:
        self.passes = passes

    def __call__(self, graph: fx.graph.Graph) -> None:
        for each in self.passes:
            each(graph)

    def uuid(self) -> bytes:
        return get_hash_for_files((__file__,), ", ".join(each.__name__ for each in self.passes))


EXACT = {"joint_custom_post_pass": Passes(masks_again)}
IN_HALF = {"joint_custom_post_pass": Passes(products_in_half, masks_again)}
"""What to tell `torch.compile`: the same for all fleets, which share their code only if it is."""
