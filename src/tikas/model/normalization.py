"""Means and deviations: of a batch, which processes may share, of any number of rows, and of user modules' BatchNorm.

The tensors of a level have the shape ``(*members, rows, units)``, or for maps ``(*members, rows, channels, height,
width)``. A single ladder has no member dimension; a packed ensemble has one in front of every parameter and batch.
Dimensions are counted from the end, so the same code computes both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Self, cast

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm

EPSILON = 1e-10
"""Added to each variance, as in the authors' code."""

CHUNK_VALUES_CPU = 2**18
"""Number of values in a chunk of `Moments.add` on a CPU: they stay in its cache for both passes over them."""


def row_dim(shape: tuple[int, ...]) -> int:
    """Return the dimension that counts rows in a batch of a level of this shape: −2, or −4 for maps."""
    return -1 - len(shape)


def batch_dims(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the dimensions over which the mean of a unit is taken: the rows, and the positions of a map."""
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
        """Return (x − μ) / σ."""
        return (x - self.mean) / self.deviation


def normalize(x: Tensor, shape: tuple[int, ...], processes: Processes | None = None) -> Tensor:
    """Normalize a batch with its own statistics, in float32 or better: batchnorm of Algorithm 1."""
    if processes is not None:
        return normalize_together([x], shape, processes)[0][0]
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
    """Convert half precision, which has too few digits for means and deviations, to float32."""
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


# Batches that processes share


class Processes:
    """The processes of `torch.distributed` that share every batch: each has some of its rows.

    What is summed over the processes is equal on all of them, so all compute the costs of the whole batch. Gradients
    are those of the sum of all processes' costs: their average, which `DistributedDataParallel` takes, is the gradient
    of the cost of the whole batch.

    Parameters
    ----------
    group : ProcessGroup, optional
        Default: all processes.
    """

    def __init__(self, group: distributed.ProcessGroup | None = None) -> None:
        self.group = group

    @property
    def size(self) -> int:
        """Number of processes; 1 if this process is not in the group."""
        return max(1, distributed.get_world_size(self.group)) if world_size() > 1 else 1

    def sum(self, x: Tensor) -> Tensor:
        """Return the sum of a tensor over the processes, without a gradient. Every process has to call this."""
        x = x.contiguous().clone()
        distributed.all_reduce(x, group=self.group)
        return x

    def average(self, costs: Tensor, weights: Tensor) -> Tensor:
        """Return the means of costs ``(*members, costs)`` over the processes, weighted, with one all-reduce.

        Gradients flow to the costs. A process whose weight is zero has to give a finite cost.
        """
        sums = cast("Tensor", _Sum.apply(torch.cat([costs * weights, weights], -1), self))  # type: ignore[no-untyped-call]
        total, weight = sums.chunk(2, -1)
        return total / weight.clamp_min(torch.finfo(weight.dtype).tiny)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return itself: a copied model shares batches with the same processes."""
        return self


def world_size() -> int:
    """Return the number of all processes of `torch.distributed`, 1 without it."""
    initialized = distributed.is_available() and distributed.is_initialized()
    return distributed.get_world_size() if initialized else 1


class _Sum(torch.autograd.Function):
    """The sum over processes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, processes: Processes) -> Tensor:
        ctx.processes = processes
        return processes.sum(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.processes.sum(gradients[0]), None


def normalize_together(
    batches: Sequence[Tensor], shape: tuple[int, ...], processes: Processes
) -> list[tuple[Tensor, Statistics]]:
    """Normalize several batches, each with its own statistics over all processes, with one all-reduce for all.

    Gradients flow through all results, with one all-reduce in the backward pass. A process may have no rows.
    """
    return _normalize_together(batches, batch_dims(shape), EPSILON, processes)


def _normalize_together(
    batches: Sequence[Tensor], dims: tuple[int, ...], epsilon: float, processes: Processes
) -> list[tuple[Tensor, Statistics]]:
    """Normalize batches over these dimensions."""
    batches = [_at_least_float32(x) for x in batches]
    results = _NormalizeTogether.apply(processes, dims, epsilon, *batches)  # type: ignore[no-untyped-call]
    return [(results[i], Statistics(*results[i + 1 : i + 3])) for i in range(0, len(results), 3)]


class _NormalizeTogether(torch.autograd.Function):
    """`_NormalizeBatch` for batches that processes share.

    A process with N values x per unit adds N, Σ x and Σ x² to the sums over all processes, which give the mean and the
    variance of the whole batch: μ = Σ x / N and Σ x² / N - μ². This difference of squares needs more digits than its
    result has, so the sums are in double precision. The process itself sums in the precision of x, so it subtracts its
    own mean m before: with y = x - m,

        Σ x = Σ y + N m;  Σ x² = Σ y² + 2 m Σ y + N m²

    Σ y is zero up to rounding, but not exactly, and counts where the mean is much larger than the deviation. In the
    backward pass, the gradients of μ and σ are summed over the processes.
    """

    @staticmethod
    def forward(
        ctx: Any, processes: Processes, dims: tuple[int, ...], epsilon: float, *batches: Tensor
    ) -> tuple[Tensor, ...]:
        sums: list[Tensor] = []
        for x in batches:
            mean = x.sum(dims, keepdim=True)
            values = x.numel() // mean.numel()  # of each unit; zero if this process has no rows
            mean = mean / max(values, 1)
            centered = x - mean
            rest, squares = (
                centered.sum(dims, keepdim=True).double(),
                centered.square().sum(dims, keepdim=True).double(),
            )
            mean = mean.double()
            sums.append(mean.new_full((1,), values))
            sums.append(rest + values * mean)
            sums.append(squares + mean * (2 * rest + values * mean))
        totals = _sum_all(sums, processes)
        counts, results = [], []
        for i, x in enumerate(batches):
            count, total, squares = totals[3 * i : 3 * i + 3]
            count = count.clamp_min(1)
            mean = total / count
            deviation = ((squares / count - mean.square()).clamp_min(0) + epsilon).sqrt().to(x.dtype)
            mean = mean.to(x.dtype)
            results += [(x - mean) / deviation, mean, deviation]
            counts.append(count.to(x.dtype))
        ctx.save_for_backward(*results[0::3], *results[2::3], *counts)
        ctx.processes, ctx.dims = processes, dims
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        batches = len(gradients) // 3
        normalized, deviations, counts = (ctx.saved_tensors[i * batches : (i + 1) * batches] for i in range(3))
        grads_normalized = gradients[0::3]
        sums: list[Tensor] = []
        for i in range(batches):
            grad = grads_normalized[i] / deviations[i]
            sums.append(gradients[3 * i + 1] - grad.sum(ctx.dims, keepdim=True))
            sums.append(gradients[3 * i + 2] - (grad * normalized[i]).sum(ctx.dims, keepdim=True))
        totals = _sum_all(sums, ctx.processes)
        grads: list[Tensor] = []
        for i in range(batches):
            offset, slope = totals[2 * i] / counts[i], totals[2 * i + 1] / counts[i]
            grads.append(
                torch.addcmul(torch.addcmul(offset, slope, normalized[i]), grads_normalized[i], 1 / deviations[i])
            )
        return None, None, None, *grads


def _sum_all(tensors: Sequence[Tensor], processes: Processes) -> list[Tensor]:
    """Return the sum of each tensor over the processes, with one all-reduce."""
    parts = processes.sum(torch.cat([tensor.flatten() for tensor in tensors])).split([each.numel() for each in tensors])
    return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]


class BatchNormTogether(TorchFunctionMode):
    """A context in which BatchNorm layers of user modules normalize with the statistics of all processes.

    `torch.nn.SyncBatchNorm`, which runs on GPUs only, would have to replace these layers.
    """

    def __init__(self, processes: Processes) -> None:
        super().__init__()
        self.processes = processes

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if function is functional.batch_norm:
            return self._batch_norm(*args, **kwargs)
        return function(*args, **kwargs)

    def _batch_norm(
        self,
        x: Tensor,
        mean: Tensor | None = None,
        variance: Tensor | None = None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        """Normalize as `torch.nn.functional.batch_norm`, whose parameters these are."""
        if not training:
            return functional.batch_norm(x, mean, variance, weight, bias, False, momentum, eps)
        ((normalized, _),) = _normalize_together([x], (0, *range(2, x.dim())), eps, self.processes)
        per_channel = (slice(None), *(None,) * (x.dim() - 2))
        if weight is not None:
            normalized = normalized * weight[per_channel]
        if bias is not None:
            normalized = normalized + bias[per_channel]
        return normalized.to(x.dtype)


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
        if x.numel() == 0:
            return
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

    def join(self, processes: Processes | None, like: Tensor) -> Self:
        """Add the rows of the other processes; return itself. `like` is ``(*members, units)``, on the right device."""
        if processes is None or processes.size == 1:
            return self
        own, mean = like.new_full((1,), self.count, dtype=torch.float64), self.mean.to(like.device)
        total, sums = _sum_all([own, own * mean.expand_as(like)], processes)
        self.mean = sums / total
        self.squares = processes.sum(self.squares.to(like.device) + own * (mean - self.mean).square())
        self.count = int(total.item())
        return self

    def variance(self) -> Tensor:
        """Return the biased variance, ``(*members, units)``."""
        return self.squares / self.count

    def statistics(self) -> Statistics:
        """Return the mean and the deviation, ``(*members, units)``, in double precision."""
        return Statistics(self.mean, (self.variance() + EPSILON).sqrt())


# Running statistics of the BatchNorm layers inside user modules, for the Γ-model


@torch.no_grad()
def calibrate_running_statistics(
    network: nn.Module,
    chunks: Iterable[Tensor],
    frozen: Collection[nn.Module] = (),
    processes: Processes | None = None,
) -> None:
    """Set the running statistics of every BatchNorm layer to the exact ones of all rows; `network` is in eval mode.

    Layers are set in the order of their first call, each with the layers before it already set: one pass over the
    chunks per layer. A single chunk needs only one pass. `frozen` layers keep their statistics.
    """
    layers = [layer for layer in _tracking_layers(network) if layer not in frozen]
    first = next(iter(chunks), None)
    if not layers or first is None:
        return
    calls: Counter[BatchNorm] = Counter()  # in the order of the first calls
    _visit(network, first, layers, lambda layer, _: calls.update([layer]))

    is_single = isinstance(chunks, Sequence) and len(chunks) == 1
    if is_single and set(calls.values()) == {1}:  # a layer gets all its values in one call

        def set_at_once(layer: BatchNorm, values: Tensor) -> None:
            moments = Moments((layer.num_features, 1))
            moments.add(values.reshape(*values.shape[:2], -1))
            _set_running_statistics(layer, moments, processes)

        _visit(network, first, list(calls), set_at_once)
        return
    for layer, times in calls.items():
        moments, seen = Moments((layer.num_features, 1)), 0

        def add(_: BatchNorm, values: Tensor, moments: Moments = moments, times: int = times) -> None:
            nonlocal seen
            moments.add(values.reshape(*values.shape[:2], -1))
            seen += 1
            if seen % times == 0:
                raise _LayerReachedError

        for rows in chunks:
            _visit(network, rows, [layer], add)
        _set_running_statistics(layer, moments, processes)


class _LayerReachedError(Exception):
    """Ends a pass after the last call of the layer whose statistics are computed."""


def _tracking_layers(network: nn.Module) -> list[BatchNorm]:
    """Return the BatchNorm layers with running statistics."""
    return [layer for layer in network.modules() if isinstance(layer, BatchNorm) and layer.track_running_stats]


def check_frozen_statistics(network: nn.Module) -> None:
    """Raise RuntimeError for a frozen BatchNorm layer, one in eval mode, that still has its initial statistics.

    A user who calls ``network.eval()`` and not ``model.eval()`` freezes all layers, before anything has set them.
    """
    if torch.compiler.is_compiling():  # a compiler cannot look at values
        return
    for name, layer in network.named_modules():
        if layer.training or not isinstance(layer, BatchNorm) or not layer.track_running_stats:
            continue
        assert layer.running_mean is not None
        assert layer.running_var is not None
        if not layer.running_mean.any() and bool((layer.running_var == 1).all()):
            raise RuntimeError(
                f"The {type(layer).__name__} layer {name!r} is in eval mode, but its running statistics were never "
                "set. Call train() on the model. A layer that stays frozen needs statistics, as pretrained ones have."
            )


def _set_running_statistics(layer: BatchNorm, moments: Moments, processes: Processes | None) -> None:
    assert layer.running_mean is not None
    assert layer.running_var is not None
    moments.join(processes, layer.running_mean)
    layer.running_mean.copy_(moments.mean)
    layer.running_var.copy_(moments.variance())


def _visit(
    network: nn.Module, rows: Tensor, layers: Sequence[BatchNorm], visit: Callable[[BatchNorm, Tensor], None]
) -> None:
    """Run the network on rows, calling `visit` with each of these layers and its input before it runs."""

    def hook(layer: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        visit(cast("BatchNorm", layer), inputs[0] if inputs else named["input"])

    handles = [layer.register_forward_pre_hook(hook, with_kwargs=True) for layer in layers]
    assert layers[0].running_mean is not None
    try:
        # A copy, because the network may change its input in place, and the next pass needs the rows again.
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
    """Leave the running statistics of BatchNorm layers unchanged by passes in training mode."""
    layers = _tracking_layers(network)
    for layer in layers:
        layer.track_running_stats = False
    try:
        yield
    finally:
        for layer in layers:
            layer.track_running_stats = True


@contextmanager
def eval_mode(network: nn.Module) -> Iterator[None]:
    """Put a network in eval mode, and restore the mode of each of its modules afterwards."""
    training = [module for module in network.modules() if module.training]
    network.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
