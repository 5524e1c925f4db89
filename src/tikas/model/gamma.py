"""The Γ-model around any network that returns class scores: a denoising cost on the scores of a pass with noise."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, ClassVar, Self, cast

import torch
from torch import Tensor, nn

from tikas.model.denoisers import Gaussian
from tikas.model.ladder import (
    Costs,
    Denoising,
    Ladder,
    as_floats,
    average_costs,
    check_called_by_forward,
    check_synchronized,
    check_targets,
    check_tensor,
    check_training_mode,
    check_two_rows,
    is_calibrated,
    is_exporting,
    joined_processes,
    row_chunks,
    squared_distance,
    supervised_cost,
)
from tikas.model.layers import NormalizedRung, Rung
from tikas.model.normalization import (
    BatchNorm,
    BatchNormTogether,
    Moments,
    Processes,
    calibrate_running_statistics,
    check_frozen_statistics,
    eval_mode,
    frozen_running_statistics,
    normalize,
    rows_like,
)
from tikas.model.specs import Dense, Task

CHUNK_ROWS = 1024
"""Default number of rows in a chunk during calibration."""

InstanceNorm = nn.InstanceNorm1d | nn.InstanceNorm2d | nn.InstanceNorm3d
Normalization = BatchNorm | InstanceNorm | nn.GroupNorm | nn.LayerNorm | nn.RMSNorm
"""Layers after which noise is added."""

NoiseSource = Callable[[Tensor], Tensor]
"""Returns standard-normal noise in the shape of a tensor. A pass calls it with one tensor after another."""


def gamma(
    network: nn.Module,
    n_classes: int,
    noise: float | Sequence[float] = 0.3,
    cost: float = 1.0,
    *,
    example: Tensor | None = None,
) -> Gamma:
    """Return the Γ-model around a network, which adds a denoising cost on its class scores.

    Parameters
    ----------
    network : torch.nn.Module
        Any module that returns class scores ``(rows, n_classes)`` for a batch of rows. This module itself is trained,
        not a copy.
    n_classes : int
        Number of classes.
    noise : float or sequence of float, default=0.3
        Standard deviation of the noise: one for all noise, or two: for the input, and for all noise after it.
    cost : float, default=1.0
        λ, the weight of the denoising cost; 0 trains the supervised network with noise.
    example : Tensor, optional
        A few rows to run the network on now, so that wrong shapes are found early and `Gamma.shapes` is known.

    Returns
    -------
    Gamma

    Raises
    ------
    ValueError
        If the network does not return `n_classes` scores for each row. Raised here if an `example` is given, otherwise
        by the first call.
    TypeError
        If the network is or contains a `Ladder` or another Γ-model, which have their own costs.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> from tikas import gamma
    >>> network = nn.Sequential(nn.Linear(64, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 10))
    >>> model = gamma(network, n_classes=10, noise=0.3, cost=1.0)
    >>> unlabeled, labeled, targets = torch.rand(100, 64), torch.rand(20, 64), torch.arange(20) % 10
    >>> model.costs(unlabeled, labeled, targets).total.backward()
    >>> model.calibrate(unlabeled).eval()(labeled).shape
    torch.Size([20, 10])
    """
    return Gamma(network, n_classes, noise, cost, example=example)


class Gamma(nn.Module):
    """The Γ-model around a network f; `gamma` returns it. It is called like a `Ladder`.

        z = N(f(x));  z̃ = N(f̃(x + n)) + n;  h̃ = γ·(z̃ + β)                  f̃: f with noise in its normalization layers
        ẑ = g(z̃, N(softmax(h̃)))
        C = -log P(ỹ = t | x) + λ ‖z - (ẑ - μ)/σ‖² / (N m)                  μ and σ of the clean batch of scores

    Parameters
    ----------
    network, n_classes, noise, cost, example
        As for `gamma`.

    Attributes
    ----------
    network : torch.nn.Module
        The network. Its names in the state dict start with ``network.``.
    rungs : sequence of Rung
        A single rung: statistics, β, γ and denoiser of the scores.

    Notes
    -----
    Noise is added to the input (unless it contains integers, such as tokens), to the output of every layer of batch,
    layer, group, instance or RMS normalization before its own scale and bias, and to the normalized scores.

    Labeled, unlabeled, corrupted and clean rows pass through the network separately, so that batch normalization uses
    separate statistics for each. These passes do not change its running statistics: `calibrate` sets them. Layers that
    stay in eval mode during training are frozen and keep their statistics. Dropout works as usual.

    Do not use `torch.utils.checkpoint` in the network, because it would repeat a pass without its noise.
    """

    packable: ClassVar[bool] = False
    network: nn.Module
    rungs: Sequence[Rung]
    calibrated: Tensor
    noise: float
    layer_noise: LayerNoise
    _shapes: list[tuple[int, ...]] | None

    def __init__(
        self,
        network: nn.Module,
        n_classes: int,
        noise: float | Sequence[float] = 0.3,
        cost: float = 1.0,
        *,
        example: Tensor | None = None,
    ) -> None:
        super().__init__()
        _check_network(network)
        if n_classes < 2:
            raise ValueError(f"n_classes={n_classes!r}: expected at least 2.")
        noises, (weight,) = as_floats("noise", noise), as_floats("cost", cost)
        if len(noises) > 2:
            raise ValueError(f"noise={noise!r}: expected one value, or two: for the input, and for all noise after it.")
        self.task: Task = "classification"
        self.noise = noises[0]
        self.network = network
        self.layer_noise = LayerNoise(network, noises[-1])
        top = NormalizedRung(Dense(n_classes), (), top=True, noise=noises[-1], cost=weight)
        if top.cost:
            top.denoiser = Gaussian(top.shape)
        top.reset(None)
        self.rungs = cast("Sequence[Rung]", nn.ModuleList([top]))
        parameter = next(network.parameters(), None)
        if parameter is not None:
            top.to(parameter.device, parameter.dtype)
        self.register_buffer("calibrated", torch.tensor(False, device=top.mean.device))
        self.processes: Processes | None = None
        self._shapes = None if example is None else self._find_shapes(example)

    def extra_repr(self) -> str:
        layers = len(self.layer_noise.layers)
        return f"noise={self.noise:g} on the input, {self.layer_noise.noise:g} on {layers} layers and the scores"

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Shape of a row of every tensor that gets noise: the input first, the scores last."""
        if self._shapes is None:
            raise RuntimeError("The shapes are unknown until the network has run: call gamma(..., example=rows).")
        return self._shapes

    @property
    def output_bias(self) -> Tensor | None:
        """β of the scores."""
        return self._top.beta

    @property
    def _top(self) -> NormalizedRung:
        return cast("NormalizedRung", self.rungs[0])

    def costs(
        self,
        unlabeled: Tensor,
        labeled: Tensor | None = None,
        targets: Tensor | None = None,
        noise: Sequence[Tensor] | None = None,
        weights: Tensor | None = None,
    ) -> Costs:
        """Return the costs of one update. Each batch is normalized with its own statistics.

        Parameters
        ----------
        unlabeled : Tensor of shape (rows, ...)
            Rows for the denoising cost.
        labeled, targets : Tensor, optional
            Rows for the supervised cost and their classes ``(rows,)``. Without them the supervised cost is zero.
        noise : sequence of Tensor, optional
            Standard-normal tensors, labeled rows first: one for the input, one for each call of a normalization layer
            in the order of the calls, one for the scores. `draw_noise` returns such a list. Default: drawn from
            PyTorch's global generator.
        weights : Tensor of shape (labeled rows,), optional
            Weight of each labeled row in the supervised cost.

        Returns
        -------
        Costs
            `denoising` contains one cost, that of the scores.

        Examples
        --------
        >>> model = gamma(nn.Linear(4, 3), n_classes=3, cost=2.0)
        >>> costs = model.costs(torch.rand(8, 4), torch.rand(6, 4), torch.arange(6) % 3)
        >>> bool(torch.isclose(costs.total, costs.supervised + 2.0 * costs.denoising[0]))
        True
        """
        check_called_by_forward()
        return self._costs(unlabeled, labeled, targets, noise, weights)

    def _costs(
        self,
        unlabeled: Tensor,
        labeled: Tensor | None,
        targets: Tensor | None,
        noise: Sequence[Tensor] | None,
        weights: Tensor | None,
    ) -> Costs:
        """Check a batch and return its costs."""
        check_training_mode(self)
        check_frozen_statistics(self.network)
        alone = joined_processes(self) is None  # other processes may have the rows that this one lacks
        check_tensor(unlabeled)
        if self._top.cost and alone:
            check_two_rows(unlabeled.shape[0], "unlabeled rows")
        if labeled is None:
            labeled = unlabeled[:0]
        check_tensor(labeled)
        if labeled.shape[0]:
            if alone:
                check_two_rows(labeled.shape[0], "labeled rows")
            check_targets(targets, weights, labeled.shape[:1], self.task, self._top.shape)
        self.layer_noise.attach(self.network)
        return self.training_costs(unlabeled, labeled, targets, noise, weights)

    def training_costs(
        self,
        unlabeled: Tensor,
        labeled: Tensor,
        targets: Tensor | None,
        noise: Sequence[Tensor] | None,
        weights: Tensor | None = None,
    ) -> Costs:
        """Return the costs without checking the arguments, which are those of `costs`."""
        top = self._top
        processes = joined_processes(self)
        supervised = top.mean.new_zeros(())
        if labeled.shape[0] or processes is not None:  # all processes have to run the same passes
            corrupted = self._corrupt(labeled, _source(noise, slice(None, labeled.shape[0])))
            output = top.activate(corrupted)
            supervised = supervised_cost(output, targets, weights, self.task)
        denoising = torch.zeros_like(supervised)
        if top.denoiser is not None:
            corrupted = self._corrupt(unlabeled, _source(noise, slice(labeled.shape[0], None)))
            (clean,), statistics = top.normalize([self._scores(unlabeled)], clean=True, processes=processes)
            above = normalize(top.activate(corrupted).softmax(-1), top.shape, processes)
            denoised = top.normalize_denoised(top.denoiser(corrupted, above), statistics)
            denoising = squared_distance(clean, denoised, top.shape)
        if processes is not None:
            rows = unlabeled.shape[0]
            supervised, denoising = average_costs(processes, supervised, [denoising], output, weights, rows)
        return Costs(supervised + top.cost * denoising, supervised, torch.stack([denoising], -1))

    def _corrupt(self, rows: Tensor, source: NoiseSource) -> Tensor:
        """Return z̃ = N(f̃(x + n)) + n."""
        if rows.is_floating_point():
            rows = torch.add(rows, source(rows), alpha=self.noise)
        with self.layer_noise.active(source):
            latent = self._normalized_scores(rows)
        return self._top.corrupt(latent, source(latent))

    def _normalized_scores(self, rows: Tensor) -> Tensor:
        """Return N(f(x)), with the statistics of the batch."""
        processes = joined_processes(self)
        (latent,), _ = self._top.normalize([self._scores(rows)], clean=False, processes=processes)
        return latent

    def _scores(self, x: Tensor) -> Tensor:
        """Return f(x), in the current mode of the network (training or eval)."""
        processes = joined_processes(self)
        together = nullcontext() if processes is None else BatchNormTogether(processes)
        with frozen_running_statistics(self.network), together:
            scores = self.network(x.clone())  # the network may change its input in place
        if not isinstance(scores, Tensor):
            raise TypeError(f"The network returns {type(scores).__name__}; wrap it so that it returns class scores.")
        expected = (x.shape[0], *self._top.shape)
        if scores.shape != expected:
            raise ValueError(
                f"The network returns scores of shape {tuple(scores.shape)}, but n_classes={expected[1]} needs "
                f"{expected}: one score for each row and class."
            )
        return scores

    @torch.no_grad()
    def trace(self, x: Tensor, noise: Sequence[Tensor] | None = None) -> list[Denoising | None]:
        """Return what the denoising function of the scores gets and returns, as a list of one; None without a cost.

        Parameters
        ----------
        x : Tensor of shape (rows, ...)
        noise : sequence of Tensor, optional
            As for `costs`.

        Returns
        -------
        list of Denoising or None

        Examples
        --------
        >>> model = gamma(nn.Linear(4, 3), n_classes=3)
        >>> [scores] = model.trace(torch.rand(8, 4))
        >>> scores.denoised.shape
        torch.Size([8, 3])
        """
        top = self._top
        if top.denoiser is None:
            return [None]
        check_tensor(x)
        check_two_rows(len(x))
        self.layer_noise.attach(self.network)
        corrupted = self._corrupt(x, _source(noise, slice(None)))
        (clean,), statistics = top.normalize([self._scores(x)], clean=True, processes=None)
        above = normalize(top.activate(corrupted).softmax(-1), top.shape)
        denoised = top.normalize_denoised(top.denoiser(corrupted, above), statistics)
        return [Denoising(corrupted, above, denoised, clean)]

    def draw_noise(self, rows: Tensor, count: int, generator: torch.Generator | None = None) -> list[Tensor]:
        """Draw standard-normal noise for `costs`.

        Parameters
        ----------
        rows : Tensor
            Rows that the network is run on, to find the shapes of the noise.
        count : int
            Number of labeled and unlabeled rows together.
        generator : torch.Generator, optional

        Returns
        -------
        list of Tensor
            Noise for the input, each call of a normalization layer, and the scores.

        Examples
        --------
        >>> model = gamma(nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.Linear(5, 3)), n_classes=3)
        >>> [tuple(noise.shape) for noise in model.draw_noise(torch.rand(8, 4), count=14)]
        [(14, 4), (14, 5), (14, 3)]
        """
        dtype = self._top.mean.dtype
        return [
            torch.empty(count, *shape, dtype=dtype, device=rows.device).normal_(generator=generator)
            for shape in self._find_shapes(rows)
        ]

    @torch.no_grad()
    def _find_shapes(self, rows: Tensor) -> list[tuple[int, ...]]:
        """Return the shape of a row of every tensor that gets noise, from a pass over two of these rows."""
        check_tensor(rows)
        self.layer_noise.attach(self.network)
        rows, shapes = rows[:2], []

        def record(values: Tensor) -> Tensor:
            if len(values) == len(rows):
                shapes.append(tuple(values.shape[1:]))
            else:  # the layer gets rows and positions as one dimension; the order of noise values does not matter
                shapes.append((values.numel() // len(rows),))
            return torch.zeros_like(values)

        with eval_mode(self.network):  # without dropout, which would draw from the global random generator
            self._corrupt(rows, record)
        return shapes

    def forward(
        self,
        x: Tensor,
        labeled: Tensor | None = None,
        targets: Tensor | None = None,
        noise: Sequence[Tensor] | None = None,
        weights: Tensor | None = None,
    ) -> Tensor | Costs:
        """Return the clean class scores. With `labeled`: the costs.

        Training mode normalizes with the statistics of the batch, eval mode with those of `calibrate`.

        Parameters
        ----------
        x : Tensor of shape (rows, ...)
            For the costs: the unlabeled rows.
        labeled, targets, noise, weights
            As for `costs`. Wrappers such as `DistributedDataParallel` see only this call, and not that of `costs`.
            Without labeled rows, give empty tensors.

        Returns
        -------
        Tensor of shape (rows, n_classes), or Costs
        """
        if labeled is None:
            return self.encode(x)[1]
        check_synchronized(self)
        return self._costs(x, labeled, targets, noise, weights)

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the clean normalized scores z, and the output γ·(z + β).

        Parameters
        ----------
        x : Tensor of shape (rows, ...)

        Returns
        -------
        latent, output : Tensor of shape (rows, n_classes)
        """
        check_tensor(x)
        if self.training:
            if joined_processes(self) is None:
                check_two_rows(x.shape[0])
            latent = self._normalized_scores(x)
        elif is_exporting() or is_calibrated(self.calibrated):
            latent = self._top.normalize_calibrated(self._scores(x))
        else:
            raise RuntimeError(
                "This model has no statistics for eval mode yet: call calibrate(rows) with training rows first."
            )
        return latent, self._top.activate(latent)

    @torch.no_grad()
    def calibrate(self, x: Tensor | Iterable[Any], chunk: int | None = None) -> Self:
        """Set the statistics for eval mode to the exact statistics of these rows.

        The network's BatchNorm layers are set in the order of their calls, each from all rows with the layers before it
        already set, and without dropout. The scores come last. This takes one pass over the rows for each of these
        layers, but only one in total if all rows are in one chunk. Layers in eval mode while the model is in training
        mode are frozen and keep their statistics. A model that `tikas.distributed.synchronize` returned takes the rows
        of all processes, each of which has to call this.

        Parameters
        ----------
        x : Tensor of shape (rows, ...), or iterable of batches
            At least two rows, the more the better. Batches are tensors, or tuples whose first element has the rows, as
            a `DataLoader` returns them. They are read several times, so a generator is refused.
        chunk : int, optional
            Number of rows in a chunk. Default: 1024.

        Returns
        -------
        Gamma
            Itself.

        Examples
        --------
        >>> rows = torch.rand(50, 4)
        >>> network = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))
        >>> model = gamma(network, n_classes=3).calibrate(rows)
        >>> bool(torch.allclose(model.train()(rows), model.eval()(rows), atol=1e-5))
        True
        """
        if isinstance(x, Tensor) and (self.processes is None or self.processes.size == 1):
            check_two_rows(x.shape[0])
        if self.training:
            check_frozen_statistics(self.network)
        frozen = {layer for layer in self.network.modules() if self.training and not layer.training}
        chunks = row_chunks(x, lambda rows: rows.split(chunk or CHUNK_ROWS))
        with eval_mode(self.network):
            calibrate_running_statistics(self.network, chunks, frozen, self.processes)
            moments = Moments(self._top.shape)
            for rows in chunks:
                moments.add(self._scores(rows_like(rows, self._top.mean)))
        moments.join(self.processes, like=self._top.mean)
        check_two_rows(moments.count)
        self._top.set_statistics(moments.statistics())
        self.calibrated.fill_(True)
        return self


class LayerNoise:
    """A forward hook that adds noise to the outputs of normalization layers, in corrupted passes only:

        w·N(x) + b  becomes  w·(N(x) + n) + b

    As on a rung, noise is added before the scale, so that a layer cannot make it negligible by a larger scale. The hook
    stays on its layers between passes, because torch.compile breaks the graph at hooks that are added and removed.
    """

    def __init__(self, network: nn.Module, noise: float) -> None:
        self.noise = noise
        self.source: NoiseSource | None = None
        self.layers: list[nn.Module] = []
        self.attach(network)

    def attach(self, network: nn.Module) -> None:
        """Add the hook to all normalization layers that do not have it yet, such as those that replaced others."""
        new = [layer for layer in network.modules() if isinstance(layer, Normalization) and layer not in self.layers]
        for layer in new:
            layer.register_forward_hook(self)
        self.layers += new
        if new and any(hasattr(module, "_orig_mod") for module in network.modules()):
            torch.compiler.reset()  # what was compiled before would run without the hook

    @contextmanager
    def active(self, source: NoiseSource) -> Iterator[None]:
        """Add noise to the outputs of the layers inside the context."""
        self.source = source
        try:
            yield
        finally:
            self.source = None

    def __call__(self, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor | None:  # noqa: ARG002
        if self.source is None:
            return None
        noise = self.source(output)
        scale = getattr(layer, "weight", None)
        if scale is not None:
            last_dims = isinstance(layer, nn.LayerNorm | nn.RMSNorm) and not _is_channels_first(layer, output)
            noise = noise * (scale if last_dims else scale[(...,) + (None,) * (output.dim() - 2)])
        return torch.add(output, noise, alpha=self.noise)


def _is_channels_first(layer: nn.LayerNorm | nn.RMSNorm, output: Tensor) -> bool:
    """Return whether a user's subclass, such as ConvNeXt's, normalizes the channels of maps in dimension 1."""
    is_subclass = type(layer) not in (nn.LayerNorm, nn.RMSNorm)
    return is_subclass and output.dim() == 4 and output.shape[1:2] == layer.normalized_shape


def _source(noise: Sequence[Tensor] | None, part: slice) -> NoiseSource:
    """Return the noise source of a pass: it draws, or returns the rows `part` of each given tensor in turn."""
    if noise is None:
        return torch.randn_like
    remaining = [each[part] for each in noise]
    return lambda values: remaining.pop(0).reshape(values.shape)


def _check_network(network: nn.Module) -> None:
    if not isinstance(network, nn.Module):
        raise TypeError(f"Got network={network!r}; expected an instance of nn.Module.")
    for module in network.modules():
        if isinstance(module, Ladder | Gamma):
            raise TypeError(f"The network is or contains a {type(module).__name__}, which has its own costs.")
    last = network
    while isinstance(last, nn.Sequential) and len(last):
        last = last[-1]
    if isinstance(last, nn.Softmax | nn.LogSoftmax):
        raise ValueError(f"The network ends with {last}, but the cost includes the softmax. Leave that layer out.")
