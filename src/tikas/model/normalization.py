"""Means and deviations: of a batch, of any number of rows, and of the BatchNorm layers of user modules.

The tensors of a level have the shape ``(*members, rows, units)``, or for maps ``(*members, rows, channels, height,
width)``. A single ladder has no member dimension; a packed ensemble has one in front of every parameter and batch.
Dimensions are counted from the end, so the same code computes both.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

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


# Running statistics of the BatchNorm layers inside user modules, for the Γ-model


@torch.no_grad()
def calibrate_running_statistics(
    network: nn.Module, chunks: Iterable[Tensor], frozen: Collection[nn.Module] = ()
) -> None:
    """Set the running statistics of every BatchNorm layer to the exact ones of all rows; `network` is in eval mode.

    Layers are set in the order of their first call, each with the layers before it already set: one pass over the
    chunks per layer. A single chunk needs only one pass. `frozen` layers keep their statistics.
    """
    layers = [layer for layer in _tracking_layers(network) if layer not in frozen]
    if not layers:
        return
    calls: Counter[BatchNorm] = Counter()  # in the order of the first calls
    _visit(network, next(iter(chunks)), layers, lambda layer, _: calls.update([layer]))

    single = isinstance(chunks, Sequence) and len(chunks) == 1
    if single and set(calls.values()) == {1}:  # a layer gets all its values in one call

        def set_at_once(layer: BatchNorm, values: Tensor) -> None:
            moments = Moments((layer.num_features, 1))
            moments.add(values.reshape(*values.shape[:2], -1))
            _set_running_statistics(layer, moments)

        _visit(network, next(iter(chunks)), list(calls), set_at_once)
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
        _set_running_statistics(layer, moments)


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


def _set_running_statistics(layer: BatchNorm, moments: Moments) -> None:
    assert layer.running_mean is not None
    assert layer.running_var is not None
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
