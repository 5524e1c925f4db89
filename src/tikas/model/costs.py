"""What the output of labelled rows costs."""

import torch
from torch import Tensor

from tikas.model.names import Task


def supervised_cost(output: Tensor, targets: Tensor | None, weights: Tensor | None, task: Task) -> Tensor:
    """The mean over labelled rows of their cross-entropy or squared error; zero where there are none."""
    if targets is None or output.shape[-2] == 0:
        return output.new_zeros(output.shape[:-2])
    if task == "classification":
        cost = -output.log_softmax(-1).gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    else:
        cost = (output - targets).square().mean(-1)
    if weights is None:
        return cost.mean(-1)
    return (weights * cost).sum(-1) / weights.sum(-1).clamp_min(torch.finfo(cost.dtype).tiny)
