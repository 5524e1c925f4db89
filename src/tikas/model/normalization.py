"""Means and deviations: of a batch, of any number of rows, and of the BatchNorm layers of user modules.

The tensors of a level have the shape ``(*members, rows, units)``, or for maps ``(*members, rows, channels, height,
width)``. A ladder alone has no member dimension; a packed ensemble has one in front of every parameter and batch.
Dimensions are counted from the end, so the same code computes both.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer

BatchNorm = (
    nn.BatchNorm1d
    | nn.BatchNorm2d
    | nn.BatchNorm3d
    | nn.SyncBatchNorm
    | nn.LazyBatchNorm1d
    | nn.LazyBatchNorm2d
    | nn.LazyBatchNorm3d
)
InstanceNorm = (
    nn.InstanceNorm1d
    | nn.InstanceNorm2d
    | nn.InstanceNorm3d
    | nn.LazyInstanceNorm1d
    | nn.LazyInstanceNorm2d
    | nn.LazyInstanceNorm3d
)
RunningNorm = BatchNorm | InstanceNorm
"""Layers that may have running statistics."""

EPSILON = 1e-10
"""Added to each variance, as in the authors' program."""

CHUNK_VALUES_CPU = 2**18
"""Values of which a CPU takes moments at once: they stay in its cache for both passes over them."""


def row_dim(shape: tuple[int, ...]) -> int:
    """Return the dimension that counts rows in a batch of a level of this shape: −2, or −4 for maps."""
    return -1 - len(shape)


def batch_dims(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the dimensions that a unit's mean runs over: the rows, and the positions of a map."""
    return (row_dim(shape), *range(1 - len(shape), 0))


def per_unit(parameter: Tensor, shape: tuple[int, ...]) -> Tensor:
    """View a parameter ``(*members, units)`` so that it broadcasts over a batch."""
    parameter = parameter.unsqueeze(-2)
    return parameter if len(shape) == 1 else parameter[(...,) + (None,) * (len(shape) - 1)]


def per_member(value: Tensor, shape: tuple[int, ...]) -> Tensor:
    """View a value of each member, ``(*members,)``, so that it broadcasts over a batch."""
    return value[(...,) + (None,) * (len(shape) + 1)]


class Statistics(NamedTuple):
    """The mean and the standard deviation of each unit, shaped to broadcast over a batch."""

    mean: Tensor
    deviation: Tensor

    def normalize(self, x: Tensor) -> Tensor:
        """(x − μ) / σ."""
        return (x - self.mean) / self.deviation


def normalize(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Normalize a batch with its own statistics, in float32 or better: batchnorm of Algorithm 1."""
    x = _at_least_float32(x)
    if x.dim() == 1 + len(shape):  # no member dimension: torch's kernel takes one pass over the batch
        return torch.batch_norm(x, None, None, None, None, True, 0.0, EPSILON, False)
    return normalize_with_statistics(x, shape)[0]


def normalize_with_statistics(x: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, Statistics]:
    """Normalize a batch and return its statistics too: batchmean and batchstd of Algorithm 1.

    Gradients flow through all three results.
    """
    x = _at_least_float32(x)
    normalized, mean, deviation = _NormalizeBatch.apply(x, batch_dims(shape))  # type: ignore[no-untyped-call]
    return normalized, Statistics(mean, deviation)


def _at_least_float32(x: Tensor) -> Tensor:
    """Half precision has too few digits for means and deviations."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


class _NormalizeBatch(torch.autograd.Function):
    """z = (x − μ)/σ with σ = √(variance + ε), the biased variance, and the gradient in closed form.

    With gz, gμ and gσ the gradients of the three results, and N values per unit,

        gx = (gz − mean(gz) − z·mean(gz·z))/σ + (gμ + gσ·z)/N

    Autograd would run four times as many operations, and on a CPU these small operations dominate.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, dims: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
        mean = x.mean(dims, keepdim=True)
        centered = x - mean
        deviation = (centered.square().mean(dims, keepdim=True) + EPSILON).sqrt()
        normalized = centered / deviation
        ctx.save_for_backward(normalized, deviation)
        ctx.dims = dims
        return normalized, mean, deviation

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        normalized, deviation = ctx.saved_tensors
        grad_normalized, grad_mean, grad_deviation = gradients
        count = normalized.numel() // deviation.numel()
        offset = grad_mean / count - grad_normalized.mean(ctx.dims, keepdim=True) / deviation
        slope = grad_deviation / count - (grad_normalized * normalized).mean(ctx.dims, keepdim=True) / deviation
        return torch.addcmul(torch.addcmul(offset, slope, normalized), grad_normalized, 1 / deviation), None


class Moments:
    """Exact mean and deviation of any number of rows, added batch by batch in double precision.

    Batches are merged by the pairwise update of Chan, Golub and LeVeque, which never subtracts large sums of squares
    from each other.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.count = 0
        # A CPU scalar, which merges with tensors on any device.
        self.mean: Tensor = torch.zeros((), dtype=torch.float64, device="cpu")
        self.squares: Tensor = self.mean

    def add(self, x: Tensor) -> None:
        """Add a batch of rows."""
        dims = batch_dims(self.shape)
        if x.is_cuda:
            self._merge(*torch.var_mean(x.double(), dims, correction=0), x.numel())
            return
        # On a CPU, two passes over values in the cache are several times as fast as `torch.var_mean`.
        for rows in x.split(max(1, CHUNK_VALUES_CPU * x.shape[dims[0]] // x.numel()), dims[0]):
            values = rows.double()
            mean = values.mean(dims, keepdim=True)
            self._merge((values - mean).square_().mean(dims), mean.squeeze(dims), values.numel())

    def _merge(self, variance: Tensor, mean: Tensor, values: int) -> None:
        count = values // mean.numel()
        total = self.count + count
        difference = mean - self.mean
        self.mean = self.mean + difference * (count / total)
        self.squares = self.squares + variance * count + difference.square() * (self.count * count / total)
        self.count = total

    def variance(self) -> Tensor:
        """Return the biased variance, ``(*members, units)``."""
        return self.squares / self.count

    def statistics(self) -> Statistics:
        """Return the mean and the deviation, ``(*members, units)``, in double precision."""
        return Statistics(self.mean, (self.variance() + EPSILON).sqrt())


# Running statistics of the normalization layers inside user modules, for the Γ-model


@torch.no_grad()
def calibrate_running_statistics(
    network: nn.Module, chunks: Sequence[Tensor], frozen: Collection[nn.Module] = ()
) -> None:
    """Set the running statistics of every layer that has some, exactly, from all rows; `network` is in eval mode.

    Layers are set in the order of their first call, each with the layers before it already set: one pass over the
    chunks per layer. A single chunk needs one pass in all. `frozen` layers keep their statistics.
    """
    calls: dict[RunningNorm, int] = {}

    def count(layer: RunningNorm, _: Tensor) -> None:
        calls[layer] = calls.get(layer, 0) + 1

    layers = [layer for layer in network.modules() if isinstance(layer, RunningNorm) and layer.running_mean is not None]
    layers = [layer for layer in layers if layer not in frozen]
    if not layers:
        return
    _visit(network, chunks[0], layers, count)

    if len(chunks) == 1 and set(calls.values()) == {1}:  # everything that a layer gets arrives before it runs

        def set_at_once(layer: RunningNorm, values: Tensor) -> None:
            moments = _LayerMoments(layer)
            moments.add(values)
            moments.write()

        _visit(network, chunks[0], list(calls), set_at_once)
        return
    for layer, times in calls.items():
        moments, seen = _LayerMoments(layer), 0

        def add(_: RunningNorm, values: Tensor, moments: "_LayerMoments" = moments, times: int = times) -> None:
            nonlocal seen
            moments.add(values)
            seen += 1
            if seen % times == 0:
                raise _LayerReachedError

        for rows in chunks:
            _visit(network, rows, [layer], add)
        moments.write()


class _LayerReachedError(Exception):
    """Ends a pass after the last call of the layer whose statistics are gathered."""


class _LayerMoments:
    """Mean and variance for a layer: of all rows together or, for instance normalization, the average over rows."""

    def __init__(self, layer: RunningNorm) -> None:
        self.layer = layer
        self.instance = isinstance(layer, InstanceNorm)
        shape = (layer.num_features,) if self.instance else (layer.num_features, 1)
        self.means, self.variances = Moments(shape), Moments(shape)

    def add(self, values: Tensor) -> None:
        """Add values ``(rows, channels, …)``; instance normalization also takes a row without the first dimension."""
        if not self.instance:
            self.means.add(values.reshape(*values.shape[:2], -1))
            return
        kinds = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
        dims = next(dims for dims, kind in enumerate(kinds, 1) if isinstance(self.layer, kind))
        positions = tuple(range(-dims, 0))
        variance, mean = torch.var_mean(values.double(), positions, correction=0)
        self.means.add(torch.atleast_2d(mean))
        self.variances.add(torch.atleast_2d(variance))

    def write(self) -> None:
        """Set the layer's running statistics."""
        assert self.layer.running_mean is not None
        assert self.layer.running_var is not None
        self.layer.running_mean.copy_(self.means.mean)
        self.layer.running_var.copy_(self.variances.mean if self.instance else self.means.variance())


def _visit(
    network: nn.Module, rows: Tensor, layers: Sequence[RunningNorm], visit: Callable[[RunningNorm, Tensor], None]
) -> None:
    """Run the network on rows, calling `visit` with each of these layers and its input before it runs."""

    def hook(layer: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        assert isinstance(layer, RunningNorm)
        visit(layer, inputs[0] if inputs else named["input"])

    handles = [layer.register_forward_pre_hook(hook, with_kwargs=True) for layer in layers]
    assert layers[0].running_mean is not None
    try:
        # A copy, because the network may work in place and other layers need the rows too.
        network(rows_like(rows, layers[0].running_mean).clone())
    except _LayerReachedError:
        pass
    finally:
        for handle in handles:
            handle.remove()


def rows_like(rows: Tensor, other: Tensor) -> Tensor:
    """Move rows to the device and dtype of another tensor; integers (tokens) keep their dtype."""
    return rows.to(other) if rows.is_floating_point() else rows.to(other.device)


@contextmanager
def frozen_running_statistics(network: nn.Module) -> Iterator[None]:
    """Keep running statistics as they are during passes in training mode."""
    layers = [layer for layer in network.modules() if isinstance(layer, RunningNorm) and layer.track_running_stats]
    # Lazy layers create their statistics in their first pass, and only while they track them.
    lazy = [layer for layer in layers if isinstance(layer.running_mean, UninitializedBuffer)]
    layers = [layer for layer in layers if layer not in lazy]
    batch_norms = [layer for layer in layers if isinstance(layer, BatchNorm)]
    # Without tracking, instance normalization would ignore its statistics in eval mode: in training mode they are
    # restored. (A momentum of 0 would change their last digits.)
    moved = [layer for layer in layers if isinstance(layer, InstanceNorm) and layer.training]
    saved = [(buffer, buffer.clone()) for layer in moved for buffer in layer.buffers()]
    for norm in batch_norms:
        norm.track_running_stats = False
    try:
        yield
    finally:
        for norm in batch_norms:
            norm.track_running_stats = True
        for buffer, value in saved:
            buffer.copy_(value)
        for layer in lazy:
            if not isinstance(layer.running_mean, UninitializedBuffer):
                layer.reset_running_stats()


@contextmanager
def eval_mode(network: nn.Module) -> Iterator[None]:
    """Put a network in eval mode, and each of its modules back in its own mode afterwards."""
    training = [module for module in network.modules() if module.training]
    network.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
