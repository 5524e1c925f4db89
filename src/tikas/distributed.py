"""Training loops of users' own in many processes: `synchronize` makes them learn what one process would."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from torch import nn

from tikas.model.gamma import Gamma
from tikas.model.ladder import Ladder
from tikas.model.normalization import Processes

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

M = TypeVar("M", bound=nn.Module)


def synchronize(model: M, group: ProcessGroup | None = None) -> M:
    """Make the processes of `torch.distributed` that train a model share each batch; return the model.

    In training mode, the means and deviations that a batch is normalized with are then those of the rows of all
    processes, and so are the costs: every process gets the same `Costs`. The average of the processes' gradients, which
    `DistributedDataParallel` and `fully_shard` take, is the gradient of one process with all rows. `calibrate` takes
    the rows of all processes.

    Processes may have different numbers of rows; one may have no labeled rows at all. All have to make the same calls
    in training mode and call `calibrate` together, because they wait for each other. In eval mode each is on its own.

    Parameters
    ----------
    model : Ladder, or Γ-model, or a module that contains some
    group : ProcessGroup, optional
        The processes that share batches. Default: all. With ``torch.distributed.new_subgroups(1)[0]`` each process
        normalizes with the statistics of its own rows.

    Returns
    -------
    torch.nn.Module
        The same model.

    Raises
    ------
    TypeError
        If there is neither a ladder nor a Γ-model.

    Examples
    --------
    With ``torchrun``, after ``torch.distributed.init_process_group()``, the wrapper returns the costs::

        ddp = torch.nn.parallel.DistributedDataParallel(tikas.distributed.synchronize(ladder))
        ddp(unlabeled, labeled, targets).total.backward()

    In a single process nothing changes:

    >>> import tikas, torch
    >>> ladder = tikas.Ladder(input_shape=(4,), rungs=[tikas.Dense(3)])
    >>> tikas.distributed.synchronize(ladder) is ladder
    True
    """
    models = [module for module in model.modules() if isinstance(module, Ladder | Gamma)]
    if not models:
        raise TypeError(f"Got {type(model).__name__}, which contains neither a Ladder nor a Γ-model of tikas.gamma.")
    for each in models:
        each.processes = Processes(group)
    return model
