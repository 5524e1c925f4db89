"""Costs as the forward pass of a module, for what wraps a module and knows no other call."""

from typing import Any

from torch import nn

from tikas.model.costs import Costs


class CostsOf(nn.Module):
    """A module whose call is ``model.costs``: what `torch.nn.parallel.DistributedDataParallel` needs.

    Each process normalises its own rows with their own statistics, and the gradients are averaged. `calibrate` sets the
    statistics of its own process alone: call it in the one that saves or answers, with rows of all, or in each with the
    same rows.

    Parameters
    ----------
    model
        A `tikas.Ladder` or what `tikas.gamma` returns.

    Examples
    --------
    In each of the processes that ``torchrun`` started::

        torch.distributed.init_process_group()
        model = gamma(network, n_classes=10)
        costs_of = DistributedDataParallel(CostsOf(model))
        ...
        costs_of(unlabeled, labeled, targets).total.backward()

    Without processes it computes the same:

    >>> import torch
    >>> from tikas import Dense, Ladder
    >>> ladder = Ladder((4,), [Dense(3)], noise=0)
    >>> rows = torch.rand(8, 4)
    >>> bool(CostsOf(ladder)(rows).total == ladder.costs(rows).total)
    True
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Any, **kwargs: Any) -> Costs:
        """The costs of one update; all is passed on."""
        costs: Costs = self.model.costs(*args, **kwargs)  # type: ignore[operator]
        return costs
