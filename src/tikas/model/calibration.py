"""Exact statistics for eval mode: of a ladder's rungs, and of batch normalisation in networks of others' making."""

from collections.abc import Callable, Sequence
from math import prod

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from tikas.model.layout import rows_dim
from tikas.model.rung import Rung
from tikas.model.statistics import Gathering

MOST_IN_A_CHUNK = 2**25
"""Values of the largest level among those rows that are calibrated at once: 256 MB in double precision."""

MOST_KEPT = 2**26
"""Values of a level that are kept while the one above it is calibrated; of a larger one they are made again."""


@torch.no_grad()
def calibrate_rungs(rungs: Sequence[Rung], x: Tensor, chunk: int | None = None) -> None:
    """Set the mean and the deviation of every rung from these rows, with those of the rungs below it already set.

    Parameters
    ----------
    rungs
        The input level first.
    x
        The rows, ``(*members, rows, *shape)``, any number of them.
    chunk
        How many rows are looked at together; by default 4096, or fewer where maps are large.

    Examples
    --------
    >>> from tikas import Dense, Ladder
    >>> ladder = Ladder(input_shape=(4,), rungs=[Dense(5), Dense(3)])
    >>> rows = torch.rand(50, 4)
    >>> calibrate_rungs(ladder.rungs, rows, chunk=20)
    >>> bool(torch.allclose(ladder.rungs[1].mean, ladder.rungs[1].up(rows).mean(0), atol=1e-6))
    True
    """
    shapes = [rung.shape for rung in rungs]
    chunk = chunk or max(1, min(4096, MOST_IN_A_CHUNK // max(map(prod, shapes))))
    chunks, known = list(torch.split(x, chunk, rows_dim(shapes[0]))), 0
    count = x.numel() // prod(shapes[0])
    for level, rung in enumerate(rungs[1:], 1):
        gathering = Gathering(rung.shape)
        kept: list[Tensor] = []
        small = count * prod(rung.shape) <= MOST_KEPT
        for rows in chunks:
            projected = rung.up(_hidden(rungs[known + 1 : level], rows.to(rung.mean)))
            gathering.add(projected)
            if small:
                kept.append(projected)
        mean, deviation = gathering.moments()
        rung.mean.copy_(mean)
        rung.deviation.copy_(deviation)
        if small:
            chunks, known = [rung.activate(rung.calibrated.normalize(projected)) for projected in kept], level


def _hidden(rungs: Sequence[Rung], hidden: Tensor) -> Tensor:
    """h of the last of these rungs, with the statistics that are set already."""
    for rung in rungs:
        hidden = rung.activate(rung.calibrated.normalize(rung.up(hidden)))
    return hidden


class _FarEnough(Exception):  # noqa: N818 - ends a pass, and is no error
    """What comes after the layer that is looked at need not be computed."""


@torch.no_grad()
def calibrate_batch_norms(network: nn.Module, chunks: Sequence[Tensor]) -> None:
    """Set the running statistics of every batch-normalisation layer from these rows, one layer after another.

    A layer's statistics are gathered over all chunks with the layers that work before it already set. The variance is
    the biased one, with which a layer normalises in training. A layer that a pass calls several times gathers what
    comes to it in all these calls. The network must be in eval mode.

    Examples
    --------
    >>> network = nn.Sequential(nn.BatchNorm1d(1)).eval()
    >>> calibrate_batch_norms(network, [torch.tensor([[1.0], [2.0]]), torch.tensor([[6.0]])])
    >>> network[0].running_mean, network[0].running_var
    (tensor([3.]), tensor([4.6667]))
    """
    for layer, calls in _calls(network, chunks[0]).items():
        gathering = _gather(network, chunks, layer, calls)
        assert layer.running_mean is not None
        assert layer.running_var is not None
        layer.running_mean.copy_(gathering.mean)
        layer.running_var.copy_(gathering.squares / gathering.count)


def _calls(network: nn.Module, rows: Tensor) -> dict[_BatchNorm, int]:
    """The layers that keep running statistics, in the order of their first call, and how often a pass calls each."""
    calls: dict[_BatchNorm, int] = {}

    def count(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:  # noqa: ARG001
        assert isinstance(layer, _BatchNorm)
        calls[layer] = calls.get(layer, 0) + 1

    tracked = [m for m in network.modules() if isinstance(m, _BatchNorm) and m.running_mean is not None]
    if tracked:
        _run(network, rows, tracked, count)
    return calls


def _gather(network: nn.Module, chunks: Sequence[Tensor], layer: _BatchNorm, calls: int) -> Gathering:
    """The moments of all that comes to a layer; each pass ends with the last call of it."""
    gathering: Gathering | None = None
    called = 0

    def gather(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:  # noqa: ARG001
        nonlocal gathering, called
        (values,) = inputs
        gathering = gathering or Gathering(tuple(values.shape[1:]))
        gathering.add(values)
        called += 1
        if called % calls == 0:
            raise _FarEnough

    for rows in chunks:
        _run(network, rows, [layer], gather)
    assert gathering is not None
    return gathering


def _run(network: nn.Module, rows: Tensor, layers: Sequence[_BatchNorm], hook: Callable[..., None]) -> None:
    """One pass over rows, with a hook before each of these layers."""
    handles = [layer.register_forward_pre_hook(hook) for layer in layers]
    try:
        network(beside(rows, layers[0].running_mean))
    except _FarEnough:
        pass
    finally:
        for handle in handles:
            handle.remove()


def beside(rows: Tensor, place: Tensor | None) -> Tensor:
    """Rows on the device of `place` and, unless they are whole numbers, of its kind.

    Examples
    --------
    >>> place = torch.zeros((), dtype=torch.float64)
    >>> beside(torch.rand(2, 3), place).dtype, beside(torch.tensor([[7, 8]]), place).dtype
    (torch.float64, torch.int64)
    """
    assert place is not None
    return rows.to(place) if rows.is_floating_point() else rows.to(place.device)
