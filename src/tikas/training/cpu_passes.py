"""What code that is compiled for a CPU goes through: masks are never stored.

It is a pass over the compiler's graph, of the way there and the way back as one; the model knows nothing of it.
"""

import torch
from torch import Tensor, fx
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.utils.checkpoint import CheckpointPolicy


class MasksAgain(CustomGraphPass):
    """Has masks computed again on the way back.

    Where an activation was above zero takes a byte a value, so the compiler likes to store that in the value's stead,
    above all in a fleet. But its code for a CPU is slow at writing and reading bytes: with them an update of four seeds
    took 29 ms a seed, and without 23 (`results/bench.jsonl`, revisions 58a3b47 and 9b0926f).

    Examples
    --------
    >>> from torch.fx.experimental.proxy_tensor import make_fx
    >>> program = make_fx(lambda x: x * (x > 0), tracing_mode="fake")(torch.ones(2))
    >>> MasksAgain()(program.graph)
    >>> [(node.name, node.meta["recompute"].name) for node in program.graph.nodes if "recompute" in node.meta]
    [('gt', 'MUST_RECOMPUTE')]
    """

    def __call__(self, graph: fx.graph.Graph) -> None:
        for node in graph.nodes:
            value = node.meta.get("val") if node.op == "call_function" else None
            if isinstance(value, Tensor) and value.dtype == torch.bool:
                node.meta |= {"recompute": CheckpointPolicy.MUST_RECOMPUTE, "ac_graph_id": 0}

    def uuid(self) -> bytes:
        """Compiled code that is kept is known by it to have gone through this pass, as it is in this file."""
        return get_hash_for_files((__file__,))


PASSES = {"joint_custom_post_pass": MasksAgain()}
"""What to tell `torch.compile`: the same for all fleets, which share their code only if it is."""
