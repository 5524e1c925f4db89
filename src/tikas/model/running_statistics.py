"""Running statistics in networks of others' making: set exactly from given rows, and by nothing else."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import UninitializedBuffer

from tikas.model.statistics import Gathering


class _FarEnough(Exception):  # noqa: N818 - ends a pass, and is no error
    """What comes after the layer that is looked at need not be computed."""


@torch.no_grad()
def calibrate_running_statistics(
    network: nn.Module, chunks: Sequence[Tensor], frozen: Collection[nn.Module] = ()
) -> None:
    """Set the running statistics of every layer that keeps some from these rows, one layer after another.

    That takes a pass over the chunks for each of them; of one chunk, where no layer works twice, one pass sets all.

    A layer's statistics are gathered over all chunks with the layers that work before it already set. Those of batch
    normalisation are the mean and variance of all rows, those of instance normalisation what its rows have on average,
    each for itself. The variance is the biased one, with which a layer normalises in training. A layer that a pass
    calls several times gathers what comes to it in all these calls. Layers that are `frozen` stay as they are. The
    network must be in eval mode.

    Examples
    --------
    >>> network = nn.Sequential(nn.BatchNorm1d(1)).eval()
    >>> calibrate_running_statistics(network, [torch.tensor([[1.0], [2.0]]), torch.tensor([[6.0]])])
    >>> network[0].running_mean, network[0].running_var
    (tensor([3.]), tensor([4.6667]))
    """
    calls = _calls(network, chunks[0], frozen)
    if len(chunks) == 1 and {*calls.values()} == {1}:  # all that a layer ever gets comes at once, before it works
        _run(network, chunks[0], list(calls), _set_from)
        return
    for layer, times in calls.items():
        _set(layer, _gather(network, chunks, layer, times))


def _set_from(layer: _NormBase, values: Tensor) -> None:
    gathered = _nothing_yet(layer)
    gathered.add(values)
    _set(layer, gathered)


def _set(layer: _NormBase, gathered: "_OfAllRows | _OfEachRow") -> None:
    mean, variance = gathered.moments()
    assert layer.running_mean is not None
    assert layer.running_var is not None
    layer.running_mean.copy_(mean)
    layer.running_var.copy_(variance)


def _nothing_yet(layer: _NormBase) -> "_OfAllRows | _OfEachRow":
    return _OfEachRow(layer) if isinstance(layer, _InstanceNorm) else _OfAllRows(layer)


class _OfAllRows:
    """The mean and variance of each channel, over rows and positions: those of batch normalisation."""

    def __init__(self, layer: _NormBase) -> None:
        self.gathering = Gathering((layer.num_features, 1))

    def add(self, values: Tensor) -> None:
        """Merge values ``(rows, channels, …)``."""
        self.gathering.add(values.reshape(*values.shape[:2], -1))

    def moments(self) -> tuple[Tensor, Tensor]:
        """In double precision."""
        return self.gathering.mean, self.gathering.squares / self.gathering.count


class _OfEachRow:
    """The mean and variance of each channel of a row, over positions, averaged over rows: of instance normalisation."""

    def __init__(self, layer: _InstanceNorm) -> None:
        self.channels_dim = -layer._get_no_batch_dim()
        self.means, self.variances = (Gathering((layer.num_features,)) for _ in range(2))

    def add(self, values: Tensor) -> None:
        """Merge values ``(rows, channels, …)``, or of a single row without that dimension."""
        positions = tuple(range(self.channels_dim + 1, 0))
        variance, mean = torch.var_mean(values.double(), positions, correction=0)
        self.means.add(torch.atleast_2d(mean))
        self.variances.add(torch.atleast_2d(variance))

    def moments(self) -> tuple[Tensor, Tensor]:
        """In double precision."""
        return self.means.mean, self.variances.mean


def _calls(network: nn.Module, rows: Tensor, frozen: Collection[nn.Module]) -> dict[_NormBase, int]:
    """The layers that keep running statistics, in the order of their first call, and how often a pass calls each."""
    calls: dict[_NormBase, int] = {}

    def count(layer: _NormBase, values: Tensor) -> None:  # noqa: ARG001
        calls[layer] = calls.get(layer, 0) + 1

    keeping = [m for m in network.modules() if isinstance(m, _NormBase) and m.running_mean is not None]
    to_set = [layer for layer in keeping if layer not in frozen]
    if to_set:
        _run(network, rows, to_set, count)
    return calls


def _gather(network: nn.Module, chunks: Sequence[Tensor], layer: _NormBase, times: int) -> _OfAllRows | _OfEachRow:
    """The moments of all that comes to a layer; each pass ends with the last call of it."""
    gathered = _nothing_yet(layer)
    called = 0

    def gather(_: _NormBase, values: Tensor) -> None:
        nonlocal called
        gathered.add(values)
        called += 1
        if called % times == 0:
            raise _FarEnough

    for rows in chunks:
        _run(network, rows, [layer], gather)
    return gathered


def _run(
    network: nn.Module, rows: Tensor, layers: Sequence[_NormBase], visit: Callable[[_NormBase, Tensor], None]
) -> None:
    """One pass over rows, with a visit to each of these layers before it works."""

    def hook(layer: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        assert isinstance(layer, _NormBase)
        visit(layer, inputs[0] if inputs else named["input"])

    handles = [layer.register_forward_pre_hook(hook, with_kwargs=True) for layer in layers]
    try:
        network(beside(rows, layers[0].running_mean).clone())  # it may work in place, and the next layer needs them too
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


@contextmanager
def running_statistics_left_alone(network: nn.Module) -> Iterator[None]:
    """Let normalisation layers compute inside what they always do, but remember nothing of it.

    Examples
    --------
    >>> network = nn.BatchNorm1d(3)
    >>> with running_statistics_left_alone(network):
    ...     _ = network(torch.rand(8, 3) + 100)
    >>> network.running_mean
    tensor([0., 0., 0.])
    """
    tracked = [layer for layer in network.modules() if isinstance(layer, _NormBase) and layer.track_running_stats]
    # Lazy layers make their statistics in their first pass, and only if they track them.
    lazy = [layer for layer in tracked if isinstance(layer.running_mean, UninitializedBuffer)]
    tracked = [layer for layer in tracked if layer not in lazy]
    batch_norms = [layer for layer in tracked if isinstance(layer, _BatchNorm)]
    # Instance normalisation cannot be told in eval mode not to track: it would then take each row's own statistics.
    moved = [layer for layer in tracked if layer.training and isinstance(layer, _InstanceNorm)]
    kept = [(buffer, buffer.clone()) for layer in moved for buffer in layer.buffers()]
    for layer in batch_norms:
        layer.track_running_stats = False
    try:
        yield
    finally:
        for layer in batch_norms:
            layer.track_running_stats = True
        for buffer, value in kept:
            buffer.copy_(value)
        for made in lazy:
            if not isinstance(made.running_mean, UninitializedBuffer):
                made.reset_running_stats()
