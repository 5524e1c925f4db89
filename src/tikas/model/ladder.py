"""Algorithm 1: corrupt on the way up, run clean beside it, denoise on the way down, sum the costs."""

from collections.abc import Sequence
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn

from tikas.model.batch_checks import check_noise, check_not_one, check_some, check_targets
from tikas.model.checks import check_settings
from tikas.model.costs import Costs, squared_distance, supervised_cost
from tikas.model.encoder import Encoder
from tikas.model.layout import first_rows, rows_dim
from tikas.model.names import DenoiserName, Task
from tikas.model.rungs import Rung, RungSpec, build
from tikas.model.statistics import Statistics, normalize


class Stream(NamedTuple):
    """A batch on its way up: its rows, the noise of every level (None: it runs clean), the last level that needs it."""

    rows: Tensor
    noise: Sequence[Tensor] | None
    reach: int


class Climb(NamedTuple):
    """What the encoder leaves for the decoder: z of every stream at each level that it reached, and at the top h.

    `statistics` are μ and σ of the clean stream. They are None at the input, which is not normalised, and above the
    last level that needs the clean stream.
    """

    latents: list[list[Tensor]]
    statistics: list[Statistics | None]
    outputs: Sequence[Tensor]


LABELED, CORRUPTED, CLEAN = range(3)
"""The streams of `Ladder.costs`: labelled rows with noise, unlabelled rows with noise, unlabelled rows without."""


class Ladder(Encoder):
    """The Ladder network: an encoder run clean and run with noise, and a decoder that denoises every level.

        z̃₀ = x + n;  z̃ₗ = N(Wₗ h̃ₗ₋₁) + n;  h̃ₗ = φ(γₗ·(z̃ₗ + βₗ))         corrupted, and the same without n: clean
        u_L = N(h̃_L);  uₗ = N(Vₗ₊₁ ẑₗ₊₁);  ẑₗ = g(z̃ₗ, uₗ)                  denoised
        C = -log P(ỹ = t | x) + Σₗ λₗ ‖zₗ - (ẑₗ - μₗ)/σₗ‖² / (N mₗ)         μ and σ of the clean batch

    In the cost of a pooling rung below the top σ is at least 0.1.

    Parameters
    ----------
    input_shape
        Shape of one row: ``(features,)``, or ``(channels, height, width)``.
    rungs
        From the bottom up: `Dense`, `Conv`, `MaxPool`, `MeanPool` and `GlobalMeanPool`, in any order that their shapes
        allow. The last one is the output.
    noise
        Deviation of the noise: one for all levels, or one for the input and one for each rung.
    costs
        λ: one for the input and one for each rung; or one number, for the top alone (the Γ-model); 0 leaves the
        supervised network. By default the paper's 1000, 10 and 0.1 for the rest, of two levels 1000 and 0.1. A level
        that no cost needs has no denoiser.
    denoiser
        ``"gaussian"`` (g), ``"mlp"`` (g1), ``"no-product"`` (g2), ``"linear"`` (g3) or ``"additive"`` (g4).
    task
        ``"classification"``: the top is a softmax. ``"regression"``: it is linear, and the cost a squared error.
    generator
        Where the first weights are drawn from.

    Raises
    ------
    ValueError
        Where a number of noises or costs does not fit the number of rungs, a name is not known, a rung cannot stand
        on the one below it, or the last one makes maps.

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
        noises, weights = check_settings(input_shape, rungs, noise, costs, denoiser, task)
        levels = [Rung(tuple(input_shape), noise=noises[0], cost=weights[0])]
        for level, rung in enumerate(rungs, 1):
            top = level == len(rungs)
            levels.append(build(rung, levels[-1].shape, top=top, noise=noises[level], cost=weights[level]))
        super().__init__(levels, task)
        self.costed = [level for level, weight in enumerate(weights) if weight > 0]
        for level in self._descent():
            self.rungs[level].add_denoiser(denoiser)
            if level > self.costed[0]:
                self.rungs[level].add_back()
        self.reset(generator)

    def costs(
        self,
        unlabeled: Tensor,
        labeled: Tensor | None = None,
        targets: Tensor | None = None,
        noise: Sequence[Tensor] | None = None,
        weights: Tensor | None = None,
    ) -> Costs:
        """The costs of one update, each batch normalised with its own statistics.

        Parameters
        ----------
        unlabeled
            Rows for the denoising costs.
        labeled, targets
            Rows for the supervised cost, as many as you like, and their classes (for regression their values,
            ``(rows, outputs)``). Without them the supervised cost is zero.
        noise
            L+1 standard-normal tensors, one for each level, ``(rows, *shape of the level)``, labelled rows first,
            scaled by the ladder's own deviations. Without it, noise is drawn.
        weights
            How much each labelled row counts in the supervised cost.

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
        self._check_rows(unlabeled, together=True)
        if labeled is None:
            labeled = first_rows(unlabeled, 0, self.shapes[0])
        self._check_batch(unlabeled, labeled, targets, weights)
        of_labeled, of_unlabeled = self._split_noise(noise, labeled, unlabeled)

        # Corrupted encoder and clean encoder. They share each product, and never their statistics.
        climb = self._climb(
            Stream(labeled, of_labeled, reach=self.top),
            Stream(unlabeled, of_unlabeled, reach=self.top if self.costed else -1),
            Stream(unlabeled, None, reach=max(self.costed, default=-1)),
        )

        # Decoder and denoising, from the top to the lowest level that has a cost.
        denoised = self._descend(climb, CORRUPTED)

        # Cost function C for training.
        supervised = supervised_cost(climb.outputs[LABELED], targets, weights, self.task)
        denoising = [torch.zeros_like(supervised)] * len(self.rungs)
        total = supervised
        for level in self.costed:
            denoising[level] = self._denoising_cost(level, climb, denoised[level])
            total = total + self.rungs[level].cost * denoising[level]
        return Costs(total, supervised, torch.stack(denoising, dim=-1))

    def _climb(self, *streams: Stream) -> Climb:
        """The encoder: h₀ = z₀ = x (+ n); zₗ = N(Wₗ hₗ₋₁) (+ n); hₗ = φ(γₗ·(zₗ + βₗ)).

        Streams that reach further come before those that reach less far.
        """
        below = self.shapes[0]
        hidden = torch.cat([stream.rows for stream in streams], rows_dim(below))
        climb = Climb([], [], ())
        for level, rung in enumerate(self.rungs):
            climbing = [stream for stream in streams if stream.reach >= level]
            sizes = [stream.rows.shape[rows_dim(self.shapes[0])] for stream in climbing]
            projected = rung.up(first_rows(hidden, sum(sizes), below))
            latents: list[Tensor] = []
            statistics = None
            for batch, stream in zip(torch.split(projected, sizes, rows_dim(rung.shape)), climbing, strict=True):
                if stream.noise is None:
                    latent, statistics = rung.normalize_with_statistics(batch)
                else:
                    latent = rung.corrupt(rung.normalize(batch), stream.noise[level])
                latents.append(latent)
            climb.latents.append(latents)
            climb.statistics.append(statistics)
            hidden, below = rung.activate(torch.cat(latents, rows_dim(rung.shape))), rung.shape
        return climb._replace(outputs=torch.split(hidden, sizes, rows_dim(below)))

    def _descend(self, climb: Climb, stream: int) -> dict[int, Tensor]:
        """The decoder: u_L = N(h̃_L); uₗ = N(Vₗ₊₁ ẑₗ₊₁); ẑₗ = g(z̃ₗ, uₗ). Unnormalised ẑ goes on down."""
        denoised: dict[int, Tensor] = {}
        if not self.costed:
            return denoised
        above = climb.outputs[stream]
        if self.task == "classification":
            above = above.softmax(-1)
        for level in self._descent():
            rung = self.rungs[level]
            assert rung.denoiser is not None
            denoised[level] = rung.denoiser(climb.latents[level][stream], normalize(above, rung.shape))
            if rung.back is not None:
                above = rung.back(denoised[level])
        return denoised

    def _denoising_cost(self, level: int, climb: Climb, denoised: Tensor) -> Tensor:
        """‖z - (ẑ - μ)/σ‖² per row and unit, with the clean batch's μ and σ."""
        statistics = climb.statistics[level]
        if statistics is not None:
            denoised = self.rungs[level].statistics_of_cost(statistics).normalize(denoised)
        return squared_distance(climb.latents[level][CLEAN], denoised, self.shapes[level])

    def _descent(self) -> range:
        """The levels that the decoder visits, from the top down; none where nothing has a cost."""
        return range(self.top, self.costed[0] - 1, -1) if self.costed else range(0)

    def _check_batch(self, unlabeled: Tensor, labeled: Tensor, targets: Tensor | None, weights: Tensor | None) -> None:
        across = rows_dim(self.shapes[0])
        self._check_rows(labeled, together=True)
        if self.costed:
            check_some(unlabeled)
            check_not_one(unlabeled.shape[across], "unlabelled ")
        check_not_one(labeled.shape[across], "labelled ")
        check_targets(targets, weights, labeled.shape[: across + 1], self.task, self.shapes[-1])

    def _split_noise(self, noise: Sequence[Tensor] | None, *batches: Tensor) -> list[Sequence[Tensor]]:
        """The noise of each batch at every level: that which was given, or else drawn here."""
        sizes = [batch.shape[rows_dim(self.shapes[0])] for batch in batches]
        if noise is None:
            noise = self.draw_noise(batches[-1], sum(sizes))
        check_noise(noise, sum(sizes), self.shapes, batches[-1])
        parts = [torch.split(draw, sizes, rows_dim(shape)) for draw, shape in zip(noise, self.shapes, strict=True)]
        return list(zip(*parts, strict=True))

    @torch.no_grad()
    def denoise(self, x: Tensor, noise: Sequence[Tensor] | None = None) -> list[Tensor | None]:
        """Corrupt a batch of rows, encode it, decode it: ẑ of every level, the input's reconstruction first.

        The batch is normalised with its own statistics, as in training. A level that no cost needs gives None.

        Examples
        --------
        >>> from tikas import Dense
        >>> ladder = Ladder(input_shape=(4,), rungs=[Dense(5), Dense(3)])
        >>> [tuple(level.shape) for level in ladder.denoise(torch.rand(8, 4))]
        [(8, 4), (8, 5), (8, 3)]
        """
        self._check_rows(x, together=True)
        check_not_one(x.shape[rows_dim(self.shapes[0])])
        (draws,) = self._split_noise(noise, x)
        denoised = self._descend(self._climb(Stream(x, draws, reach=self.top)), stream=0)
        return [denoised.get(level) for level in range(len(self.rungs))]

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
        """A ladder whose encoder is a network that somebody already has, trained or not.

        Parameters
        ----------
        network
            Linear and Conv2d, each perhaps with BatchNorm and ReLU, LeakyReLU, Tanh or GELU, MaxPool2d, AvgPool2d,
            AdaptiveAvgPool2d(1), Flatten and Identity, in `nn.Sequential`s within each other. Dropout is left out, and
            said to be. Everything is copied.
        input_shape
            Shape of one row; where the network begins with Linear it follows from that.
        rows
            Training rows, where rungs that the network does not normalise are to have these rows' statistics.
        noise, costs, denoiser, task, generator
            As for `Ladder`; the generator draws the decoder's first weights.

        Raises
        ------
        ValueError
            Where a layer cannot become a rung; the message names it.

        Notes
        -----
        In eval mode the ladder gives at once what the network gives: BatchNorm's running statistics are the calibrated
        ones, its scale and bias become γ and β, or go into the next weights where a rung has none.

        In training mode, and after `calibrate`, a ladder normalises at every rung, pooling ones too. Where the network
        does not, the ladder then starts from the same weights, but its values have other scales. With `rows` it starts
        from the network's function there too, but for a pooling rung below a convolution with padding: zeros around a
        normalised map mean something else.

        Examples
        --------
        >>> network = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)).eval()
        >>> ladder = Ladder.from_sequential(network).eval()
        >>> rows = torch.rand(8, 4)
        >>> bool(torch.allclose(ladder(rows), network(rows), atol=1e-5))
        True
        """
        from tikas.model.sequential import from_sequential  # which needs this module

        settings = {"noise": noise, "costs": costs, "denoiser": denoiser, "task": task, "generator": generator}
        return from_sequential(cls, network, input_shape, rows, **settings)
