"""Products of compiled code in bf16 on a CPU: factors and results are rounded to it, sums are of float32.

Autocast, and casts that are compiled together with what stands around them, lose most of what is gained
(`benchmarks/cpu_bf16.py`). So a pass over the compiler's graph, of the way there and of the way back, puts in each
product's place an operation that the compiler does not look into. The model knows nothing of it.
"""

import torch
from torch import Tensor, fx
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.bmm.default)


def product_in_half(left: Tensor, right: Tensor) -> Tensor:
    """The product of two matrices, or of two stacks of them, by bf16 copies of both.

    Examples
    --------
    >>> product_in_half(torch.tensor([[1.0, 2**-9]]), torch.tensor([[1.0], [1.0]]))  # bf16 has eight bits
    tensor([[1.]])
    >>> product_in_half(torch.ones(7, 5, 4), torch.ones(7, 4, 3)).dtype
    torch.float32
    """
    return torch.matmul(left.bfloat16(), right.bfloat16()).float()


def _shape_alone(left: Tensor, right: Tensor) -> Tensor:
    return left.new_empty(*left.shape[:-1], right.shape[-1])


_library = torch.library.Library("tikas", "FRAGMENT")
_library.define("product_in_half(Tensor left, Tensor right) -> Tensor")
_library.impl("product_in_half", product_in_half, "CPU")
torch.library.register_fake("tikas::product_in_half", _shape_alone, lib=_library)


class _HalfProducts(CustomGraphPass):
    """Compiled code that is kept is known by `uuid` to be of this pass, as it is in this file."""

    def __call__(self, graph: fx.graph.Graph) -> None:
        for node in list(graph.nodes):
            if node.target not in PRODUCTS or node.meta["val"].dtype != torch.float32:
                continue
            with graph.inserting_before(node):
                instead = graph.call_function(torch.ops.tikas.product_in_half.default, node.args)
            instead.meta.update(node.meta)
            node.replace_all_uses_with(instead)
            graph.erase_node(node)

    def uuid(self) -> bytes:
        return get_hash_for_files((__file__,))


IN_HALF = {"post_grad_custom_pre_pass": _HalfProducts()}
"""What to tell `torch.compile`: the same for all fleets, which share their code only if it is."""
