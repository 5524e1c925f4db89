"""The costs of an update: what `costs` of every model returns, and the two kinds of them."""

from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from tikas.model.layout import all_dims, rows_dim
from tikas.model.names import Task


class Costs(NamedTuple):
    """What `tikas.Ladder.costs` returns, and its likes.

    Attributes
    ----------
    total
        The supervised cost plus each λ times its denoising cost: the one to call ``backward`` on.
    supervised
        Mean cross-entropy of the labelled rows' corrupted output, or its mean squared error.
    denoising
        The L+1 denoising costs from the input up, unweighted; zero where λ is zero.

    Examples
    --------
    >>> from tikas import Dense, Ladder
    >>> costs = Ladder(input_shape=(4,), rungs=[Dense(3)], costs=(10, 0)).costs(torch.rand(8, 4))  # no labelled rows
    >>> bool(costs.total == 10 * costs.denoising[0]), costs.supervised.item(), costs.denoising[1].item()
    (True, 0.0, 0.0)
    """

    total: Tensor
    supervised: Tensor
    denoising: Tensor


def supervised_cost(output: Tensor, targets: Tensor | None, weights: Tensor | None, task: Task) -> Tensor:
    """The mean over labelled rows of their cross-entropy or squared error; zero where there are none.

    Parameters
    ----------
    output
        Class scores or values, ``(*members, rows, outputs)``.
    targets
        Classes ``(*members, rows)``, or values of the output's shape.
    weights
        How much each row counts, ``(*members, rows)``.

    Examples
    --------
    >>> scores = torch.tensor([[0.0, 0.0], [0.0, 0.0]])
    >>> supervised_cost(scores, torch.tensor([0, 1]), None, "classification")
    tensor(0.6931)
    """
    if targets is None or output.shape[-2] == 0:
        return output.new_zeros(output.shape[:-2])
    if task == "classification":
        cost = -output.log_softmax(-1).gather(-1, targets.long().unsqueeze(-1)).squeeze(-1)
    else:
        cost = (output - targets).square().mean(-1)
    if weights is None:
        return cost.mean(-1)
    return (weights * cost).sum(-1) / weights.sum(-1).clamp_min(torch.finfo(cost.dtype).tiny)


def squared_distance(one: Tensor, other: Tensor, shape: tuple[int, ...]) -> Tensor:
    """‖one - other‖² per row and unit of two batches of the level's `shape`, ``(*members,)``.

    The same as a mean, but for the way back of that: it would make a gradient with its channels first for maps that
    have them last, and on a CPU all that meets it goes slower.

    Examples
    --------
    >>> squared_distance(torch.zeros(2, 3), torch.tensor([[3.0, 0.0, 0.0], [0.0, 0.0, 3.0]]), shape=(3,))
    tensor(3.)
    """
    return (one - other).square().sum(all_dims(shape)) / (one.shape[rows_dim(shape)] * prod(shape))
