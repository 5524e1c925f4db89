"""The Ladder network, Algorithm 1 of the paper: a noisy and a clean encoder, a decoder, and the sum of their costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import prod
from typing import Any, ClassVar, NamedTuple, Protocol, Self, cast, get_args

import numpy as np
import torch
from torch import Tensor, nn

from tikas.model.denoisers import DENOISERS
from tikas.model.layers import RUNG_MODULES, Rung
from tikas.model.normalization import Moments, Processes, Statistics, normalize, row_dim, world_size
from tikas.model.specs import DenoiserName, RungSpec, Task, is_channels_last, shapes_of

MAX_CHUNK_VALUES_CPU, MAX_CHUNK_VALUES_GPU = 2**25, 2**26
"""Largest number of values, at the largest level, in a chunk of rows during calibration."""
MAX_CHUNK_ROWS_CPU = 4096
"""Largest number of rows in a chunk on a CPU, which is slower with more."""
MAX_SINGLE_PASS_VALUES = 2**26
"""With up to this number of values at the largest level, all rows are calibrated in one pass, not in chunks."""


class Costs(NamedTuple):
    """The costs of one update.

    Attributes
    ----------
    total : Tensor
        The supervised cost plus the sum of λ times each denoising cost: call ``backward`` on it.
    supervised : Tensor
        Mean cross-entropy, or mean squared error, of the labeled rows' corrupted output.
    denoising : Tensor of shape (levels,)
        The unweighted denoising cost of each level, the input first; zero where λ is 0.

    Examples
    --------
    >>> from tikas import Dense, Ladder
    >>> costs = Ladder(input_shape=(4,), rungs=[Dense(3)], costs=(10, 0)).costs(torch.rand(8, 4))  # no labeled rows
    >>> bool(costs.total == 10 * costs.denoising[0]), costs.supervised.item(), costs.denoising[1].item()
    (True, 0.0, 0.0)
    """

    total: Tensor
    supervised: Tensor
    denoising: Tensor


class Denoising(NamedTuple):
    """What the denoising function of a level gets and returns, for a batch of rows.

    Attributes
    ----------
    corrupted, above : Tensor of shape (rows, *shape of the level)
        z̃ and u.
    denoised, clean : Tensor of shape (rows, *shape of the level)
        The estimate ẑ, normalized as in the cost, and z, which it is compared with.
    """

    corrupted: Tensor
    above: Tensor
    denoised: Tensor
    clean: Tensor


class Model(Protocol):
    """Interface of the modules that can be trained: `Ladder`, and `Gamma` around a user module."""

    packable: ClassVar[bool]
    """Whether members can be packed into one model with a leading member dimension, compiled and run as CUDA graphs."""
    task: Task
    rungs: Sequence[Rung]
    calibrated: Tensor
    processes: Processes | None
    """Those that share each batch, set by `tikas.distributed.synchronize`."""

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Shape of a row at every level that gets noise, the input first."""

    @property
    def output_bias(self) -> Tensor | None:
        """β of the top."""

    def costs(
        self,
        unlabeled: Tensor,
        labeled: Tensor | None = None,
        targets: Tensor | None = None,
        noise: Sequence[Tensor] | None = None,
        weights: Tensor | None = None,
    ) -> Costs:
        """Check a batch and return its costs."""

    def training_costs(
        self,
        unlabeled: Tensor,
        labeled: Tensor,
        targets: Tensor | None,
        noise: Sequence[Tensor],
        weights: Tensor | None = None,
    ) -> Costs:
        """Return the costs without checking the batch; engines call this in every update."""

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the clean latent z of the top, and the output."""

    def trace(self, x: Tensor, noise: Sequence[Tensor] | None = None) -> list[Denoising | None]:
        """Return what each rung's denoising function gets and returns, None for rungs without a cost."""

    def draw_noise(self, rows: Tensor, count: int, generator: torch.Generator | None = None) -> list[Tensor]:
        """Draw standard-normal noise for `costs`."""

    def calibrate(self, x: Tensor | Iterable[Any], chunk: int | None = None) -> Self:
        """Set the statistics for eval mode from these rows."""

    training: bool

    def __call__(self, x: Tensor) -> Tensor: ...
    def train(self, mode: bool = True) -> Self: ...
    def eval(self) -> Self: ...
    def to(self, *args: Any, **kwargs: Any) -> Self: ...
    def cpu(self) -> Self: ...
    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]: ...
    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...
    def named_buffers(self) -> Iterator[tuple[str, Tensor]]: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any: ...
    def zero_grad(self, set_to_none: bool = True) -> None: ...


class Stream(NamedTuple):
    """A batch of rows to run through the encoder, up to `last_level`.

    With `noise` (one tensor for each level) the stream is corrupted, without noise it is clean. It is normalized with
    its own statistics or, if `calibrated`, with those of `Ladder.calibrate`.
    """

    rows: Tensor
    last_level: int
    noise: Sequence[Tensor] | None = None
    calibrated: bool = False


class Activations(NamedTuple):
    """Results of the encoder: ``latents[level][stream]`` is z, and ``outputs[stream]`` is h of the stream's last level.

    `statistics` are μ and σ of the clean stream at each level, None at the input and without a clean stream.
    """

    latents: list[list[Tensor]]
    statistics: list[Statistics | None]
    outputs: Sequence[Tensor]


LABELED, CORRUPTED, CLEAN = range(3)
"""Indices of the streams of an update: labeled rows with noise, unlabeled rows with noise and without noise."""


class Ladder(nn.Module):
    """The Ladder network: an encoder that runs with and without noise, and a decoder that denoises every level.

        z̃₀ = x + n;  z̃ₗ = N(Wₗ h̃ₗ₋₁) + n;  h̃ₗ = φ(γₗ·(z̃ₗ + βₗ))         corrupted encoder; clean: the same without n
        u_L = N(h̃_L);  uₗ = N(Vₗ₊₁ ẑₗ₊₁);  ẑₗ = g(z̃ₗ, uₗ)                  decoder
        C = -log P(ỹ = t | x) + Σₗ λₗ ‖zₗ - (ẑₗ - μₗ)/σₗ‖² / (N mₗ)         μ and σ of the clean batch

    Parameters
    ----------
    input_shape : sequence of int
        Shape of one row: ``(features,)``, or ``(channels, height, width)``.
    rungs : sequence of RungSpec
        `Dense`, `Conv`, `MaxPool`, `MeanPool` and `GlobalMeanPool` from the bottom up; the last one is the output.
    noise : float or sequence of float, default=0.3
        Standard deviation of the noise: one for all levels, or one for the input and one for each rung.
    costs : float or sequence of float, optional
        λ, the weights of the denoising costs: one for the input and one for each rung; or one number for the top alone
        (the Γ-model), where 0 means a supervised network. Default: the paper's 1000, 10 and 0.1 for the rest. Levels
        that no cost needs get no denoiser.
    denoiser : {"gaussian", "mlp", "no-product", "linear", "additive"}, default="gaussian"
        The denoising function: the paper's g, g1, g2, g3 or g4.
    task : {"classification", "regression"}, default="classification"
        ``"classification"``: softmax on top, cross-entropy. ``"regression"``: linear top, squared error.
    generator : torch.Generator, optional
        Draws the initial weights.

    Raises
    ------
    ValueError
        If the numbers of noises or costs do not fit the rungs, a rung does not fit the one below it, or the last rung
        makes maps.

    References
    ----------
    Rasmus, Berglund, Honkala, Valpola and Raiko: Semi-Supervised Learning with Ladder Networks, 2015.

    Examples
    --------
    >>> import torch
    >>> from tikas import Dense, Ladder
    >>> ladder = Ladder(input_shape=(64,), rungs=[Dense(32), Dense(10)], costs=(1000, 10, 0.1))
    >>> unlabeled, labeled, targets = torch.rand(100, 64), torch.rand(20, 64), torch.arange(20) % 10
    >>> costs = ladder.costs(unlabeled, labeled, targets)
    >>> costs.total.backward()
    >>> costs.denoising.shape
    torch.Size([3])
    >>> ladder.calibrate(unlabeled).eval()(labeled).shape
    torch.Size([20, 10])
    """

    packable: ClassVar[bool] = True
    rungs: Sequence[Rung]
    calibrated: Tensor

    def __init__(
        self,
        input_shape: Sequence[int],
        rungs: Sequence[RungSpec],
        noise: float | Sequence[float] = 0.3,
        costs: float | Sequence[float] | None = None,
        denoiser: DenoiserName = "gaussian",
        task: Task = "classification",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        noises, weights = _check_settings(input_shape, rungs, noise, costs, denoiser, task)
        levels = [Rung(tuple(input_shape), noise=noises[0], cost=weights[0])]
        for level, spec in enumerate(rungs, 1):
            top = level == len(rungs)
            build = RUNG_MODULES[type(spec)]
            levels.append(build(spec, levels[-1].shape, top=top, noise=noises[level], cost=weights[level]))
        self.task: Task = task
        self.top = len(rungs)
        self.cost_levels = [level for level, weight in enumerate(weights) if weight > 0]
        for level in self._decoded_levels():
            levels[level].denoiser = DENOISERS[denoiser](levels[level].shape)
            if level > self.cost_levels[0]:
                levels[level].add_back()
        self.rungs = cast("Sequence[Rung]", nn.ModuleList(levels))
        self.register_buffer("calibrated", torch.tensor(False))
        self.processes: Processes | None = None
        self.reset(generator)

    def reset(self, generator: torch.Generator | None = None) -> None:
        """Draw the initial weights.

        Parameters
        ----------
        generator : torch.Generator, optional
            Default: PyTorch's global generator.
        """
        for rung in self.rungs:
            rung.reset(generator)
        self.calibrated.fill_(False)

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Shape of a row at every level, the input first."""
        return [rung.shape for rung in self.rungs]

    @property
    def output_bias(self) -> Tensor | None:
        """β of the top."""
        return self.rungs[-1].beta

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
        unlabeled : Tensor of shape (rows, *input_shape)
            Rows for the denoising costs.
        labeled, targets : Tensor, optional
            Any number of rows for the supervised cost, and their classes ``(rows,)``, or for regression their values
            ``(rows, outputs)``. Without them the supervised cost is zero.
        noise : sequence of Tensor, optional
            One standard-normal tensor for each level, ``(rows, *shape of the level)``, labeled rows first; it is
            multiplied by the deviation of each level. Default: drawn from PyTorch's global generator.
        weights : Tensor of shape (labeled rows,), optional
            Weight of each labeled row in the supervised cost.

        Returns
        -------
        Costs

        Examples
        --------
        >>> from tikas import Dense
        >>> ladder = Ladder(input_shape=(4,), rungs=[Dense(3)], costs=(10, 1))
        >>> costs = ladder.costs(torch.rand(8, 4), torch.rand(6, 4), torch.arange(6) % 3)
        >>> weighted = costs.supervised + 10 * costs.denoising[0] + costs.denoising[1]
        >>> bool(torch.isclose(costs.total, weighted))
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
        dim = row_dim(self.shapes[0])
        alone = joined_processes(self) is None  # other processes may have the rows that this one lacks
        self._check_rows(unlabeled)
        if self.cost_levels and alone:
            check_two_rows(unlabeled.shape[dim], "unlabeled rows")
        if labeled is None:
            labeled = unlabeled.narrow(dim, 0, 0)
        self._check_rows(labeled)
        if labeled.shape[dim] > 0:  # the bare number would make torch 2.6 compile anew for every number of rows
            if alone:
                check_two_rows(labeled.shape[dim], "labeled rows")
            check_targets(targets, weights, labeled.shape[: dim + 1], self.task, self.shapes[-1])
        noise = self._noise(noise, unlabeled, labeled.shape[dim] + unlabeled.shape[dim])
        return self.training_costs(unlabeled, labeled, targets, noise, weights)

    def training_costs(
        self,
        unlabeled: Tensor,
        labeled: Tensor,
        targets: Tensor | None,
        noise: Sequence[Tensor],
        weights: Tensor | None = None,
    ) -> Costs:
        """Return the costs by Algorithm 1, without checking the arguments, which are those of `costs`."""
        noise_of_labeled, noise_of_unlabeled = self._split_noise(noise, labeled, unlabeled)

        # Corrupted and clean encoder: one matrix product for all streams, separate statistics for each.
        activations = self._encode(
            Stream(labeled, self.top, noise_of_labeled),
            Stream(unlabeled, self.top if self.cost_levels else -1, noise_of_unlabeled),
            Stream(unlabeled, max(self.cost_levels, default=-1)),
        )

        # Decoder, from the top down to the lowest level with a cost.
        denoised = self._decode(activations, CORRUPTED)

        # Costs.
        supervised = supervised_cost(activations.outputs[LABELED], targets, weights, self.task)
        denoising = [torch.zeros_like(supervised)] * len(self.rungs)
        for level in self.cost_levels:
            rung = self.rungs[level]
            normalized = rung.normalize_denoised(denoised[level], activations.statistics[level])
            denoising[level] = squared_distance(activations.latents[level][CLEAN], normalized, rung.shape)
        processes = joined_processes(self)
        if processes is not None:
            rows = unlabeled.shape[row_dim(self.shapes[0])]
            supervised, *denoising = average_costs(
                processes, supervised, denoising, activations.outputs[LABELED], weights, rows
            )
        total = supervised
        for level in self.cost_levels:
            total = total + self.rungs[level].cost * denoising[level]
        return Costs(total, supervised, torch.stack(denoising, dim=-1))

    def _encode(self, *streams: Stream) -> Activations:
        """Run the encoder: h₀ = z₀ = x (+ n);  zₗ = N(Wₗ hₗ₋₁) (+ n);  hₗ = φ(γₗ·(zₗ + βₗ)).

        Streams must be sorted by `last_level`, highest first.
        """
        hidden = torch.cat([stream.rows for stream in streams], row_dim(self.shapes[0]))
        sizes = [stream.rows.shape[row_dim(self.shapes[0])] for stream in streams]
        below = self.shapes[0]
        processes = joined_processes(self)
        activations = Activations([], [], [])
        for level in range(streams[0].last_level + 1):
            rung = self.rungs[level]
            active = [stream for stream in streams if stream.last_level >= level]
            sizes = sizes[: len(active)]
            projected = rung.up(_first_rows(hidden, sum(sizes), below))
            batches: Sequence[Tensor] = torch.split(projected, sizes, row_dim(rung.shape))
            statistics = None
            if streams[0].calibrated:
                batches = [rung.normalize_calibrated(batch) for batch in batches]
            else:
                batches, statistics = rung.normalize(batches, clean=active[-1].noise is None, processes=processes)
            latents = []
            for batch, stream in zip(batches, active, strict=True):
                latents.append(batch if stream.noise is None else rung.corrupt(batch, stream.noise[level]))
            activations.latents.append(latents)
            activations.statistics.append(statistics)
            hidden, below = rung.activate(torch.cat(latents, row_dim(rung.shape))), rung.shape
        outputs = torch.split(hidden, sizes, row_dim(below))
        return Activations(activations.latents, activations.statistics, outputs)

    def _decode(self, activations: Activations, stream: int) -> dict[int, Tensor]:
        """Run the decoder: u_L = N(h̃_L);  uₗ = N(Vₗ₊₁ ẑₗ₊₁);  ẑₗ = g(z̃ₗ, uₗ). Return the unnormalized ẑ by level."""
        denoised: dict[int, Tensor] = {}
        if not self.cost_levels:
            return denoised
        above = activations.outputs[stream]
        if self.task == "classification":
            above = above.softmax(-1)
        processes = joined_processes(self)
        for level in self._decoded_levels():
            rung = self.rungs[level]
            assert rung.denoiser is not None
            denoised[level] = rung.denoiser(activations.latents[level][stream], normalize(above, rung.shape, processes))
            if rung.back is not None:
                above = rung.back(denoised[level])
        return denoised

    def _decoded_levels(self) -> range:
        """Return the levels that the decoder visits, from the top down."""
        return range(self.top, self.cost_levels[0] - 1, -1) if self.cost_levels else range(0)

    def forward(
        self,
        x: Tensor,
        labeled: Tensor | None = None,
        targets: Tensor | None = None,
        noise: Sequence[Tensor] | None = None,
        weights: Tensor | None = None,
    ) -> Tensor | Costs:
        """Return the clean output: class scores (logits), or the values of a regression. With `labeled`: the costs.

        Training mode normalizes with the statistics of the batch, eval mode with those of `calibrate`.

        Parameters
        ----------
        x : Tensor of shape (rows, *input_shape)
            For the costs: the unlabeled rows.
        labeled, targets, noise, weights
            As for `costs`. Wrappers such as `DistributedDataParallel` see only this call, and not that of `costs`.
            Without labeled rows, give empty tensors.

        Returns
        -------
        Tensor of shape (rows, outputs), or Costs

        Examples
        --------
        >>> from tikas import Dense
        >>> ladder = Ladder(input_shape=(4,), rungs=[Dense(3)])
        >>> ladder(torch.rand(8, 4)).shape
        torch.Size([8, 3])
        >>> ladder(torch.rand(8, 4), torch.rand(6, 4), torch.arange(6) % 3).denoising.shape
        torch.Size([2])
        """
        if labeled is None:
            return self.encode(x)[1]
        check_synchronized(self)
        return self._costs(x, labeled, targets, noise, weights)

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the clean latent z of the top, and the output computed from it.

        Parameters
        ----------
        x : Tensor of shape (rows, *input_shape)

        Returns
        -------
        latent, output : Tensor of shape (rows, outputs)

        Examples
        --------
        >>> from tikas import Dense, Ladder
        >>> latent, scores = Ladder(input_shape=(4,), rungs=[Dense(5), Dense(3)]).encode(torch.rand(8, 4))
        >>> latent.mean(0).abs().max().item() < 1e-5, scores.shape  # normalized with the statistics of the batch
        (True, torch.Size([8, 3]))
        """
        self._check_rows(x)
        if self.training:
            if joined_processes(self) is None:
                check_two_rows(x.shape[row_dim(self.shapes[0])])
        elif not is_exporting() and not is_calibrated(self.calibrated):
            raise RuntimeError(
                "This ladder has no statistics for eval mode yet: call ladder.calibrate(rows) with training rows first."
            )
        activations = self._encode(Stream(x, self.top, calibrated=not self.training))
        return activations.latents[-1][0], activations.outputs[0]

    @torch.no_grad()
    def calibrate(self, x: Tensor | Iterable[Any], chunk: int | None = None) -> Self:
        """Set the statistics for eval mode to the exact statistics of these rows.

        The statistics of a rung are those of all rows, with the rungs below it already calibrated. If there are too
        many rows for one pass, they are encoded in chunks, in one pass for each rung. A ladder that
        `tikas.distributed.synchronize` returned takes the rows of all processes, each of which has to call this.

        Parameters
        ----------
        x : Tensor of shape (rows, *input_shape), or iterable of batches
            At least two rows: all training rows for the best result, or the labeled ones as the paper's authors did.
            Batches are tensors, or tuples whose first element has the rows, as a `DataLoader` returns them. They are
            read once for each rung, so a generator is refused.
        chunk : int, optional
            Number of rows in a chunk. Default: depends on the size of the largest level.

        Returns
        -------
        Ladder
            Itself.

        Examples
        --------
        >>> from tikas import Dense, Ladder
        >>> rows = torch.rand(50, 4)
        >>> ladder = Ladder(input_shape=(4,), rungs=[Dense(3)]).calibrate(rows).eval()
        >>> bool(torch.allclose(ladder(rows)[:1], ladder(rows[:1]), atol=1e-5))  # no row depends on another
        True
        """
        chunks = row_chunks(x, lambda rows: self._split_rows(rows, chunk))
        if isinstance(chunks, tuple) and len(chunks) == 1:
            self._calibrate_in_one_pass(chunks[0].to(self.rungs[-1].mean))
        else:
            for level, rung in enumerate(self.rungs[1:], 1):
                rung.set_statistics(self._statistics_at(level, chunks))
        self.calibrated.fill_(True)
        return self

    def _calibrate_in_one_pass(self, hidden: Tensor) -> None:
        """Set each rung's statistics from W h of all rows at once; only two levels are in memory at a time."""
        hidden = self.rungs[0].activate(hidden)
        for rung in self.rungs[1:]:
            projected = rung.up(hidden)
            moments = Moments(rung.shape)
            moments.add(projected)
            rung.set_statistics(self._joined_statistics(moments, rung))
            for part in projected.split(MAX_CHUNK_ROWS_CPU, row_dim(rung.shape)):
                part.copy_(rung.activate(rung.normalize_calibrated(part)))
            hidden = projected

    def _split_rows(self, x: Tensor, chunk: int | None = None) -> tuple[Tensor, ...]:
        """Check rows and split them into chunks of `chunk` rows; the default depends on the largest level."""
        check_rows(x, self.shapes[0], self._member_dims)
        count = x.shape[row_dim(self.shapes[0])]
        # Values of a row at the largest level, in all members of a packed ensemble
        values = prod(self.rungs[-1].mean.shape[:-1]) * max(map(prod, self.shapes))
        if chunk is None and count * values > MAX_SINGLE_PASS_VALUES:
            chunk = MAX_CHUNK_VALUES_GPU // values if x.is_cuda else MAX_CHUNK_VALUES_CPU // values
            chunk = max(1, chunk if x.is_cuda else min(chunk, MAX_CHUNK_ROWS_CPU))
        return torch.split(x, chunk or count, row_dim(self.shapes[0]))

    def _statistics_at(self, level: int, chunks: Iterable[Tensor]) -> Statistics:
        """Return the exact statistics of W h at a level over all rows, with the rungs below it already calibrated."""
        rung = self.rungs[level]
        moments = Moments(rung.shape)
        for rows in chunks:
            below = self._encode(Stream(rows.to(self.rungs[-1].mean), level - 1, calibrated=True))
            moments.add(rung.up(below.outputs[0]))
        return self._joined_statistics(moments, rung)

    def _joined_statistics(self, moments: Moments, rung: Rung) -> Statistics:
        """Return the statistics of these rows and those of the other processes."""
        moments.join(self.processes, like=rung.mean)
        check_two_rows(moments.count // prod(rung.shape[1:]))
        return moments.statistics()

    @torch.no_grad()
    def denoise(self, x: Tensor, noise: Sequence[Tensor] | None = None) -> list[Tensor | None]:
        """Corrupt, encode and decode a batch of rows, and return the reconstruction ẑ of every level.

        The batch is normalized with its own statistics, as in training.

        Parameters
        ----------
        x : Tensor of shape (rows, *input_shape)
        noise : sequence of Tensor, optional
            As for `costs`.

        Returns
        -------
        list of Tensor or None
            ẑ of every level, the input first; None for levels without a denoiser.

        Examples
        --------
        >>> from tikas import Dense
        >>> ladder = Ladder(input_shape=(4,), rungs=[Dense(5), Dense(3)])
        >>> [tuple(level.shape) for level in ladder.denoise(torch.rand(8, 4))]
        [(8, 4), (8, 5), (8, 3)]
        """
        self._check_rows(x)
        count = x.shape[row_dim(self.shapes[0])]
        check_two_rows(count)
        denoised = self._decode(self._encode(Stream(x, self.top, self._noise(noise, x, count))), stream=0)
        return [denoised.get(level) for level in range(len(self.rungs))]

    @torch.no_grad()
    def trace(self, x: Tensor, noise: Sequence[Tensor] | None = None) -> list[Denoising | None]:
        """Return what the denoising function of each level gets and returns. Normalized as in `denoise`.

        Parameters
        ----------
        x : Tensor of shape (rows, *input_shape)
        noise : sequence of Tensor, optional
            As for `costs`.

        Returns
        -------
        list of Denoising or None
            For each level, the input first; None for levels without a cost.

        Examples
        --------
        >>> from tikas import Dense
        >>> ladder, rows = Ladder(input_shape=(4,), rungs=[Dense(5), Dense(3)], costs=(10, 0, 1)), torch.rand(8, 4)
        >>> input_level, _, top = ladder.trace(rows)
        >>> bool((input_level.clean == rows).all()), top.denoised.shape
        (True, torch.Size([8, 3]))
        """
        self._check_rows(x)
        count = x.shape[row_dim(self.shapes[0])]
        check_two_rows(count)
        activations = self._encode(Stream(x, self.top, self._noise(noise, x, count)), Stream(x, self.top))
        denoised = self._decode(activations, stream=0)
        traced: list[Denoising | None] = [None] * len(self.rungs)
        for level in self.cost_levels:
            rung = self.rungs[level]
            if level < self.top:
                back = self.rungs[level + 1].back
                assert back is not None
                above = back(denoised[level + 1])
            else:
                above = activations.outputs[0]
                if self.task == "classification":
                    above = above.softmax(-1)
            corrupted, clean = activations.latents[level]
            estimate = rung.normalize_denoised(denoised[level], activations.statistics[level])
            traced[level] = Denoising(corrupted, normalize(above, rung.shape), estimate, clean)
        return traced

    def draw_noise(self, rows: Tensor, count: int, generator: torch.Generator | None = None) -> list[Tensor]:
        """Draw standard-normal noise for `costs`.

        Parameters
        ----------
        rows : Tensor
            Rows with the dtype and device that the noise should have.
        count : int
            Number of labeled and unlabeled rows together.
        generator : torch.Generator, optional

        Returns
        -------
        list of Tensor
            One tensor for each level.

        Examples
        --------
        >>> from tikas import Dense, Ladder
        >>> ladder, rows = Ladder(input_shape=(4,), rungs=[Dense(5), Dense(3)]), torch.rand(8, 4)
        >>> [tuple(level.shape) for level in ladder.draw_noise(rows, count=8)]
        [(8, 4), (8, 5), (8, 3)]
        """
        members = rows.shape[: row_dim(self.shapes[0])]
        # Not torch.randn with a generator, which torch.compile cannot trace for a number of rows that varies.
        return [rows.new_empty(*members, count, *shape).normal_(generator=generator) for shape in self.shapes]

    @classmethod
    def from_sequential(
        cls,
        network: nn.Sequential,
        input_shape: Sequence[int] | None = None,
        *,
        rows: Tensor | None = None,
        noise: float | Sequence[float] = 0.3,
        costs: float | Sequence[float] | None = None,
        denoiser: DenoiserName = "gaussian",
        task: Task = "classification",
        generator: torch.Generator | None = None,
    ) -> Self:
        """Return a ladder whose encoder is a copy of an existing network, trained or not.

        Parameters
        ----------
        network : torch.nn.Sequential
            Linear and Conv2d, each optionally followed by BatchNorm and by ReLU, LeakyReLU, Tanh or GELU; MaxPool2d,
            AvgPool2d, AdaptiveAvgPool2d(1), Flatten, Identity, and nested Sequentials. Dropout is left out with a
            warning.
        input_shape : sequence of int, optional
            Shape of one row. Not needed if the network begins with Linear.
        rows : Tensor, optional
            Training rows that provide the statistics of rungs without BatchNorm.
        noise, costs, denoiser, task, generator
            As for `Ladder`; the generator draws the decoder's initial weights.

        Returns
        -------
        Ladder
            In eval mode it computes what the network computes in eval mode.

        Raises
        ------
        ValueError
            If a layer cannot become a rung; the message names it.

        Notes
        -----
        BatchNorm's running statistics become the calibrated statistics; its scale and bias become γ and β, or are
        multiplied into the next weights where a rung has none.

        In training mode, and after `calibrate`, a ladder normalizes every rung, including pooling rungs. Where the
        network has no BatchNorm, this changes the scale of the values, although the weights are the same. With `rows`,
        the ladder still starts from the network's function, except for pooling rungs below a convolution with padding.

        A `LeakyReLU` with a slope other than 0.1 and the tanh approximation of `GELU` are kept, but neither rung specs
        nor state dicts describe them: load a state dict into a ladder that was converted from the same network.

        Examples
        --------
        >>> network = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)).eval()
        >>> ladder = Ladder.from_sequential(network).eval()
        >>> rows = torch.rand(8, 4)
        >>> bool(torch.allclose(ladder(rows), network(rows), atol=1e-5))
        True
        """
        from tikas.model.convert import from_sequential  # convert imports this module

        settings = {"noise": noise, "costs": costs, "denoiser": denoiser, "task": task, "generator": generator}
        return from_sequential(cls, network, input_shape, rows, **settings)

    @property
    def _member_dims(self) -> int:
        """Number of leading member dimensions: 1 in a packed ensemble, otherwise 0."""
        return self.rungs[-1].mean.dim() - 1

    def _check_rows(self, x: Tensor) -> None:
        check_rows(x, self.shapes[0], self._member_dims, self.rungs[-1].mean.dtype)

    def _noise(self, noise: Sequence[Tensor] | None, batch: Tensor, count: int) -> Sequence[Tensor]:
        """Check the given noise, or draw it, for `count` rows."""
        if noise is None:
            return self.draw_noise(batch, count)
        if isinstance(noise, float | int):
            raise TypeError(f"Got noise={noise}; expected tensors. Give deviations when the ladder is built.")
        members = tuple(batch.shape[: row_dim(self.shapes[0])])
        given, expected = [tuple(level.shape) for level in noise], [(*members, count, *each) for each in self.shapes]
        if given != expected:
            raise ValueError(f"Got noise of shapes {given}; expected one tensor for each level: {expected}.")
        return noise

    def _split_noise(self, noise: Sequence[Tensor], *batches: Tensor) -> list[Sequence[Tensor]]:
        """Split the noise of every level into that of each batch."""
        sizes = [batch.shape[row_dim(self.shapes[0])] for batch in batches]
        parts = [torch.split(level, sizes, row_dim(shape)) for level, shape in zip(noise, self.shapes, strict=True)]
        return list(zip(*parts, strict=True))


def _first_rows(x: Tensor, count: int, shape: tuple[int, ...]) -> Tensor:
    """Return the first `count` rows of a batch of a level of this shape."""
    return x if x.shape[row_dim(shape)] <= count else x.narrow(row_dim(shape), 0, count)


def supervised_cost(output: Tensor, targets: Tensor | None, weights: Tensor | None, task: Task) -> Tensor:
    """Return the (weighted) mean cross-entropy or squared error of labeled rows, ``(*members,)``; zero without rows.

    `output` is ``(*members, rows, outputs)``, `targets` are classes ``(*members, rows)`` or values like `output`, and
    `weights` are ``(*members, rows)``.
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
    """Return ‖one − other‖² divided by the number of rows and units, ``(*members,)``, for batches of a level.

    Computed without `mean`, because its gradient would not be channels-last in memory like all other maps, which slows
    down all operations on it on a CPU.
    """
    dims = tuple(range(row_dim(shape), 0))
    return (one - other).square().sum(dims) / (max(1, one.shape[row_dim(shape)]) * prod(shape))


def average_costs(
    processes: Processes,
    supervised: Tensor,
    denoising: Sequence[Tensor],
    output: Tensor,
    weights: Tensor | None,
    unlabeled: int,
) -> list[Tensor]:
    """Return the supervised and the denoising costs of the batch that processes share.

    `output` and `weights` are those of this process's labeled rows, and `unlabeled` is its number of unlabeled rows.
    """
    labeled = output.shape[-2]
    share = torch.full_like(supervised, labeled) if weights is None or not labeled else weights.sum(-1)
    shares = torch.stack([share.to(supervised), *[torch.full_like(supervised, unlabeled)] * len(denoising)], -1)
    # A process without labeled rows has to run the backward pass of the others: the empty sum is in the graph.
    supervised = supervised + output.narrow(-2, 0, 0).sum((-2, -1))
    average = processes.average(torch.stack([supervised, *denoising], -1), shares)
    return [cost.clone() for cost in average.unbind(-1)]  # FSDP takes no views


def joined_processes(model: Model) -> Processes | None:
    """Return the processes that share batches in training; None in eval mode, and if this process has all rows."""
    processes = model.processes
    return processes if processes is not None and model.training and processes.size > 1 else None


def row_chunks(
    rows: Tensor | Iterable[Any], split: Callable[[Tensor], tuple[Tensor, ...]]
) -> tuple[Tensor, ...] | RowBatches:
    """Return rows in chunks that can be read several times, from a tensor or an iterable of batches.

    `split` checks a tensor and splits it.
    """
    if isinstance(rows, Tensor):
        return split(rows)
    if isinstance(rows, Iterator):
        raise TypeError(
            f"Got rows as {type(rows).__name__}, which can be read only once, but calibrate reads them several times. "
            "Give a tensor, a list of batches or a DataLoader."
        )
    return RowBatches(rows, split)


class RowBatches:
    """The rows of batches, which are tensors or begin with one: ``(rows, targets)``."""

    def __init__(self, batches: Iterable[Any], split: Callable[[Tensor], tuple[Tensor, ...]]) -> None:
        self.batches = batches
        self.split = split

    def __iter__(self) -> Iterator[Tensor]:
        for batch in self.batches:
            rows = batch[0] if isinstance(batch, tuple | list) else batch
            check_tensor(rows)
            yield from self.split(rows)


# Checks of user input


def _check_settings(
    input_shape: Sequence[int],
    rungs: Sequence[RungSpec],
    noise: float | Sequence[float],
    costs: float | Sequence[float] | None,
    denoiser: str,
    task: str,
) -> tuple[list[float], list[float]]:
    """Return the noise and the cost weight of every level; raise ValueError if a setting is wrong."""
    check_input_shape(input_shape)
    if not rungs or not all(isinstance(rung, RungSpec) for rung in rungs):
        raise ValueError(f"rungs={rungs!r}: expected rungs, the output last, for example [Dense(100), Dense(10)].")
    for name, value, choices in (("denoiser", denoiser, tuple(DENOISERS)), ("task", task, get_args(Task))):
        if value not in choices:
            raise ValueError(f"{name}={value!r}: choose one of {', '.join(map(repr, choices))}.")
    top = shapes_of(input_shape, rungs)[-1]
    if len(top) != 1:
        raise ValueError(
            f"The top rung makes maps of shape {top}; expected (outputs,). End with Dense(outputs) or GlobalMeanPool()."
        )
    if top == (1,) and task == "classification":
        raise ValueError("The top rung has shape (1,): use Dense(2) for two classes, or set task='regression'.")
    levels = len(rungs) + 1
    noises = as_floats("noise", noise)
    if len(noises) == 1:
        noises = noises * levels
    if costs is None:
        weights = [*[1000.0, 10.0][: levels - 1], *[0.1] * max(1, levels - 2)]
    else:
        weights = as_floats("costs", costs)
        if len(weights) == 1:
            weights = [0.0] * (levels - 1) + weights
    for name, values in (("noise", noises), ("costs", weights)):
        if len(values) != levels:
            raise ValueError(
                f"{name} has {len(values)} values; {len(rungs)} rungs need {levels}, one for the input and one for "
                "each rung, or a single number."
            )
    return noises, weights


def as_floats(name: str, given: float | Sequence[float]) -> list[float]:
    """Return one or several numbers as a list of floats; raise ValueError unless all are finite and at least 0."""
    values = np.atleast_1d(np.asarray(given, dtype=float))
    if not (np.isfinite(values) & (values >= 0)).all():
        raise ValueError(f"{name}={given!r}: every value must be finite and at least 0.")
    return [float(value) for value in values]


def check_input_shape(shape: Sequence[int]) -> None:
    """Raise ValueError unless a shape is that of one row: features, or channels, height and width."""
    if not isinstance(shape, Sequence) or len(shape) not in (1, 3) or min(shape) < 1:
        raise ValueError(
            f"input_shape={shape!r}: expected the shape of one row, (features,), or (channels, height, width) for "
            "images: (1, height, width) if they are gray."
        )
    if is_channels_last(shape):
        height, width, channels = shape
        raise ValueError(
            f"input_shape={tuple(shape)} is (height, width, channels); expected {(channels, height, width)}, channels "
            "first: numpy.moveaxis(images, -1, -3)."
        )


def check_tensor(value: Any, name: str = "rows") -> None:
    """Raise TypeError unless a value is a tensor."""
    if not isinstance(value, Tensor):
        raise TypeError(f"Got {name} as {type(value).__name__}; expected a torch.Tensor: torch.as_tensor({name}).")


def check_rows(x: Tensor, shape: tuple[int, ...], member_dims: int = 0, dtype: torch.dtype | None = None) -> None:
    """Raise an error unless rows have this shape (after the member and row dimensions) and, if given, this dtype."""
    check_tensor(x)
    if tuple(x.shape[member_dims + 1 :]) != shape:
        is_last = len(shape) == 3 and tuple(x.shape[-3:]) == (*shape[1:], shape[0])
        raise ValueError(
            f"Got rows of shape {tuple(x.shape)}; this ladder takes (rows, {', '.join(map(str, shape))})."
            + (" Channels come first: x.movedim(-1, -3)." if is_last else "")
        )
    if dtype not in (None, x.dtype) and not torch.is_autocast_enabled(x.device.type):
        raise TypeError(
            f"Got rows of dtype {x.dtype}, but this ladder computes in {dtype}. Use x.to({dtype}), and divide pixels "
            "by 255."
        )


is_exporting = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)
"""Whether `torch.export` traces; before torch 2.7, whether any compiler does."""


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def is_calibrated(calibrated: Tensor) -> bool:
    """Return whether a model, and every member of an ensemble, has statistics. A compiler looks only as it traces."""
    return bool(calibrated.all())


def check_training_mode(model: nn.Module) -> None:
    """Raise RuntimeError in eval mode, where a network that `gamma` wraps would compute other costs without notice."""
    if not model.training:
        raise RuntimeError(
            f"costs needs training mode, but this {type(model).__name__} is in eval mode: call train() first. For the "
            "costs of validation rows, call train() too, and use torch.no_grad()."
        )


def check_synchronized(model: Model) -> None:
    """Raise RuntimeError if this is one of several processes, and nothing was said about the statistics."""
    if model.processes is None and world_size() > 1 and torch.is_grad_enabled():
        raise RuntimeError(
            f"{world_size()} processes train this {type(model).__name__}, and each would normalize with the statistics "
            "of its own rows. Call tikas.distributed.synchronize(model) before it is wrapped: then all together learn "
            "what one process learns from all rows. For statistics and costs of each process's own rows, call "
            "synchronize(model, group=torch.distributed.new_subgroups(1)[0])."
        )


def check_called_by_forward() -> None:
    """Raise RuntimeError in one of several processes, where wrappers average the gradients of `forward` alone."""
    if world_size() > 1 and torch.is_grad_enabled():
        raise RuntimeError(
            f"costs bypasses DistributedDataParallel, so the gradients of the {world_size()} processes would not be "
            "averaged. Call the wrapper instead, ddp(unlabeled, labeled, targets), which returns the same costs. A "
            "loop without a wrapper, which averages gradients itself, calls model(unlabeled, labeled, targets). For "
            "costs that are only looked at, use torch.no_grad()."
        )


def check_two_rows(count: int, kind: str = "rows") -> None:
    """Raise ValueError for fewer than two rows, because a batch is normalized with its own statistics."""
    if count < 2:
        raise ValueError(
            f"Got {count} {kind}; expected at least two, because a batch is normalized with its own statistics. "
            "DataLoader(drop_last=True) skips a last batch of one row."
        )


def check_targets(
    targets: Tensor | None, weights: Tensor | None, rows: torch.Size, task: Task, outputs: tuple[int, ...]
) -> None:
    """Raise ValueError unless each labeled row has a valid target and, if given, a weight; `rows` is their shape."""
    if weights is not None:
        check_tensor(weights, "weights")
        if weights.shape != rows:
            raise ValueError(f"Got weights of shape {tuple(weights.shape)}; expected {tuple(rows)}.")
    if targets is None:
        raise ValueError(f"Got {rows[-1]} labeled rows, but no targets. Give one for each.")
    check_tensor(targets, "targets")
    expected = tuple(rows) if task == "classification" else (*rows, *outputs)
    if tuple(targets.shape) != expected:
        raise ValueError(f"Got targets of shape {tuple(targets.shape)}; expected {expected}.")
    if task == "regression":
        return
    if targets.is_floating_point():
        raise ValueError(f"Got targets of dtype {targets.dtype}; expected an integer class for each labeled row.")
    if targets.device.type == "cpu" and not torch.compiler.is_compiling():  # a GPU would have to wait
        wrong = targets[(targets < 0) | (targets >= outputs[0])]
        if wrong.numel():
            raise ValueError(
                f"Got target {wrong[0].item()}; expected classes from 0 to {outputs[0] - 1}. Leave unlabeled "
                "rows out of the labeled ones."
            )
