"""Masks in compiled code on a CPU: computed again on the way back, and never stored.

Where an activation was above zero takes a byte a value, so the compiler likes to store that in the value's stead, above
all in a fleet. But the code that it makes for a CPU writes and reads such bytes slowly: with them the kernels between
the products of four stacked members took nearly three times as long.
"""

import torch
from torch import Tensor, fx
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.utils.checkpoint import CheckpointPolicy


class _MasksAgain(CustomGraphPass):
    """Over the ways there and back as one graph, before it is parted.

    Compiled code that is kept is known by `uuid` to be of this pass, as it is in this file.
    """

    def __call__(self, graph: fx.graph.Graph) -> None:
        for node in graph.nodes:
            value = node.meta.get("val") if node.op == "call_function" else None
            if isinstance(value, Tensor) and value.dtype == torch.bool:
                node.meta |= {"recompute": CheckpointPolicy.MUST_RECOMPUTE, "ac_graph_id": 0}

    def uuid(self) -> bytes:
        return get_hash_for_files((__file__,))


MASKS_AGAIN = {"joint_custom_post_pass": _MasksAgain()}
"""What to tell `torch.compile`: the same for all fleets, which share their code only if it is."""
