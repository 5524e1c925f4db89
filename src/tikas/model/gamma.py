"""The Γ-model around any network that ends in class scores: its corrupted scores learn to be denoised."""

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor, nn

from tikas.model.batch_checks import (
    check_calibration,
    check_draws,
    check_not_one,
    check_some,
    check_targets,
    check_tensor,
)
from tikas.model.checks import WrongScoresError, check_gamma, wrong_scores
from tikas.model.corruption import NORMALIZATIONS, Corruption, Draws, GivenDraws, RecordedDraws, in_eval_mode
from tikas.model.costs import Costs, squared_distance, supervised_cost
from tikas.model.encoder import Encoder
from tikas.model.names import Task
from tikas.model.refusals import explained
from tikas.model.rungs import Dense, NormalizedRung
from tikas.model.running_statistics import beside, calibrate_running_statistics, running_statistics_left_alone
from tikas.model.statistics import Gathering, normalize


def gamma(
    network: nn.Module,
    n_classes: int,
    noise: float | Sequence[float] = 0.3,
    cost: float = 1.0,
    *,
    example: Tensor | None = None,
) -> "Gamma":
    """The Γ-model around a network: a denoising cost on the class scores of a network that somebody already has.

    Parameters
    ----------
    network
        Any module that turns a batch of rows into class scores ``(rows, n_classes)``. It is not copied: what is
        learnt is learnt by it.
    n_classes
        Number of classes.
    noise
        Deviation of the noise: one for all places, or the input's and the one for all others.
    cost
        λ, the weight of the denoising cost; 0 leaves the supervised network with its noise.
    example
        A few rows, where you want the network tried on them at once: everything about its shapes is checked then,
        and `Gamma.shapes` is known.

    Returns
    -------
    Gamma

    Raises
    ------
    ValueError
        Where the network's scores are not `n_classes` wide. That is seen here when the network can be followed to its
        last layer, or with an `example`; otherwise in the first call.
    TypeError
        Where it is, or has in it, a `Ladder` or another Γ-model: those have costs of their own.

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
    """What `gamma` returns; it is called like a `Ladder`.

        z = N(f(x));  z̃ = N(f̃(x + n)) + n;  h̃ = γ·(z̃ + β)                  f̃ has noise after its normalisation layers
        ẑ = g(z̃, N(softmax(h̃)))
        C = -log P(ỹ = t | x) + λ ‖z - (ẑ - μ)/σ‖² / (N m)                  μ and σ of the clean batch of scores

    Parameters
    ----------
    network, n_classes, noise, cost, example
        As `gamma` takes them.

    Attributes
    ----------
    network
        The network itself; its layers and the names of its weights are what they were.
    rung
        What stands on it: the statistics, β, γ and the denoiser of the scores.

    Notes
    -----
    Noise comes upon the input (unless that is whole numbers, such as tokens), upon the output of every layer of
    batch, layer, group, instance or RMS normalisation, before its own scale and bias, and upon the normalised scores.
    A network without such layers has noise on its input and its scores alone.

    Labelled and unlabelled rows, and the corrupted and the clean ones, go through the network in passes of their own,
    so its batch normalisation gives each its own statistics. None of these passes moves the running statistics:
    `calibrate` sets them, but for layers that you keep in eval mode in training: frozen ones work with the statistics
    that they have. Dropout and whatever else the network does in training mode stays as it is.

    Change the network's layers before, not after: a normalisation layer that comes later has no noise, and is refused.

    Under `torch.nn.parallel.DistributedDataParallel` use `tikas.model.parallel.CostsOf`. What `torch.utils.checkpoint`
    computes again in the backward pass it would compute without noise: leave it out of the network.
    """

    calibrated: Tensor

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
        noises = check_gamma(network, n_classes, noise, cost)
        _check_costless(network)
        self.task: Task = "classification"
        self.noise = noises[0]
        self.corruption = Corruption(network, noises[-1])
        self.network = network
        self.rung = NormalizedRung(Dense(n_classes), (), top=True, noise=noises[-1], cost=float(cost))
        if cost:
            self.rung.add_denoiser("gaussian")
        self.rung.reset(None)
        self.register_buffer("calibrated", torch.tensor(False))
        parameter = next(network.parameters(), None)
        if parameter is not None:
            self.to(parameter.device)
            self.rung.to(parameter.dtype)
        self._shapes: list[tuple[int, ...]] | None = None
        if example is not None:
            self._shapes = self._places(example)

    def extra_repr(self) -> str:
        others = self.corruption
        return f"noise={self.noise:g} on the input, {others.noise:g} on {len(others.layers)} layers and the scores"

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shape of a row at every place that noise comes upon: the input's first, the scores' last."""
        if self._shapes is None:
            raise RuntimeError("The shapes follow from rows, and there were none: give gamma an example of them.")
        return self._shapes

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
            Rows for the denoising cost.
        labeled, targets
            Rows for the supervised cost and their classes. Without them the supervised cost is zero.
        noise
            Standard-normal tensors, ``(rows, *shape of a row there)``, labelled rows first: one for the input, one
            for each call of a normalisation layer in the order of the calls, one for the scores. `draw_noise` makes
            such a list. Without it, noise is drawn.
        weights
            How much each labelled row counts in the supervised cost.

        Returns
        -------
        Costs
            `denoising` holds the one cost of the scores.

        Examples
        --------
        >>> model = gamma(nn.Linear(4, 3), n_classes=3, cost=2.0)
        >>> costs = model.costs(torch.rand(8, 4), torch.rand(6, 4), torch.arange(6) % 3)
        >>> bool(torch.isclose(costs.total, costs.supervised + 2.0 * costs.denoising[0]))
        True
        """
        check_tensor(unlabeled)
        if labeled is None:
            labeled = unlabeled[:0]
        check_tensor(labeled)
        if self.rung.cost:
            check_some(unlabeled)
            check_not_one(len(unlabeled), "unlabelled ")
        check_not_one(len(labeled), "labelled ")
        check_targets(targets, weights, labeled.shape[:1], self.task, self.rung.shape)
        if noise is not None:
            check_draws(noise, self.rung.mean.dtype, self.rung.mean.device)
        draws = Draws() if noise is None else GivenDraws(noise, slice(None, len(labeled)))
        supervised = self.rung.mean.new_zeros(())
        if len(labeled):
            output = self.rung.activate(self._corrupted(labeled, draws))
            supervised = supervised_cost(output, targets, weights, self.task)
        draws = Draws() if noise is None else GivenDraws(noise, slice(len(labeled), None))
        denoising = self._denoising_cost(unlabeled, draws) if self.rung.cost else torch.zeros_like(supervised)
        return Costs(supervised + self.rung.cost * denoising, supervised, denoising.unsqueeze(-1))

    def _corrupted(self, rows: Tensor, draws: Draws) -> Tensor:
        """z̃ of the scores."""
        self._check_layers()
        if rows.is_floating_point():
            rows = torch.add(rows, draws.like(rows), alpha=self.noise)
        with self.corruption.working(draws):
            latent = self.rung.normalize(self._scores(rows))
        latent = self.rung.corrupt(latent, draws.like(latent))
        draws.finish()
        return latent

    def _check_layers(self) -> None:
        """Noise for each normalisation layer, those too that took the place of another."""
        for name, layer in self.network.named_modules():
            if isinstance(layer, NORMALIZATIONS) and self.corruption not in layer._forward_hooks.values():
                raise RuntimeError(
                    f"Layer {name} of the network, {type(layer).__name__}, came into it after gamma, and has no noise. "
                    "Change the network first, with SyncBatchNorm.convert_sync_batchnorm for example, and then give it "
                    "to gamma."
                )

    def _denoising_cost(self, rows: Tensor, draws: Draws) -> Tensor:
        """‖z - (ẑ - μ)/σ‖² per row and class, with the clean batch's μ and σ."""
        corrupted = self._corrupted(rows, draws)
        clean, statistics = self.rung.normalize_with_statistics(self._scores(rows))
        above = self.rung.activate(corrupted).softmax(-1)
        assert self.rung.denoiser is not None
        denoised = self.rung.denoiser(corrupted, normalize(above, self.rung.shape))
        return squared_distance(clean, statistics.normalize(denoised), self.rung.shape)

    def draw_noise(self, rows: Tensor, count: int, generator: torch.Generator | None = None) -> list[Tensor]:
        """Standard-normal noise for `count` rows like these at every place, as `costs` takes it.

        Examples
        --------
        >>> model = gamma(nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.Linear(5, 3)), n_classes=3)
        >>> [tuple(draw.shape) for draw in model.draw_noise(torch.rand(8, 4), count=14)]
        [(14, 4), (14, 5), (14, 3)]
        """
        return [
            torch.randn(count, *shape, generator=generator, dtype=self.rung.mean.dtype, device=rows.device)
            for shape in self._places(rows)
        ]

    @torch.no_grad()
    def _places(self, rows: Tensor) -> list[tuple[int, ...]]:
        """The shape of a row at every place, from a corrupted pass over two of these."""
        check_tensor(rows)
        draws = RecordedDraws(rows[:2])
        with in_eval_mode(self.network):
            self._corrupted(rows[:2], draws)
        return draws.shapes

    def forward(self, x: Tensor) -> Tensor:
        """The clean class scores.

        In training mode the batch's own statistics normalise them; in eval mode the calibrated ones.
        """
        return self.encode(x)[1]

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The clean normalised scores z, and the scores γ·(z + β) that are made of them."""
        check_tensor(x)
        if self.training:
            check_not_one(len(x))
        if not (self.training or torch.compiler.is_compiling() or bool(self.calibrated)):
            raise RuntimeError(
                "This model has no statistics for eval mode yet: call calibrate(rows) with training rows first."
            )
        scores = self._scores(x)
        latent = self.rung.normalize(scores) if self.training else self.rung.calibrated.normalize(scores)
        return latent, self.rung.activate(latent)

    @torch.no_grad()
    def calibrate(self, x: Tensor, chunk: int = 1024) -> Self:
        """Set the statistics of eval mode from these rows: exact, layer by layer, however many rows there are.

        Each of the network's layers with running statistics, in the order of their work, gets the mean and variance
        of what comes to it with the layers before it already set and dropout off; then the scores get theirs. That
        takes a pass over the rows for every such layer, up to that layer, `chunk` rows at a time; of a single chunk it
        takes one. Layers that are in eval mode while the model is in training mode are frozen, and keep theirs. In eval
        mode nothing tells them from others: call `calibrate` in training mode where there are some.

        Examples
        --------
        >>> rows = torch.rand(50, 4)
        >>> network = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))
        >>> model = gamma(network, n_classes=3).calibrate(rows)
        >>> bool(torch.allclose(model.train()(rows), model.eval()(rows), atol=1e-5))
        True
        """
        check_tensor(x)
        check_calibration(x, len(x), chunk)
        frozen = {layer for layer in self.network.modules() if self.training and not layer.training}
        with in_eval_mode(self.network):
            chunks = x.split(chunk)
            with explained(x, self.rung.mean.dtype):
                calibrate_running_statistics(self.network, chunks, frozen)
            gathering = Gathering(self.rung.shape)
            for rows in chunks:
                gathering.add(self._scores(beside(rows, self.rung.mean)))
        mean, deviation = gathering.moments()
        self.rung.mean.copy_(mean)
        self.rung.deviation.copy_(deviation)
        self.calibrated.fill_(True)
        return self

    def _scores(self, x: Tensor) -> Tensor:
        """What the network makes of these rows, in the mode that it is in."""
        with running_statistics_left_alone(self.network), explained(x, self.rung.mean.dtype):
            scores = self.network(x.clone())  # it may work in place, and the rows are somebody's
        if not isinstance(scores, Tensor):
            raise TypeError(f"The network returns {type(scores).__name__}; wrap it so that it returns class scores.")
        if scores.shape != (len(x), *self.rung.shape):
            raise WrongScoresError(wrong_scores(tuple(scores.shape), len(x), self.rung.shape[0]))
        return scores


def _check_costless(network: nn.Module) -> None:
    for module in network.modules():
        if isinstance(module, Encoder | Gamma):
            instead = "LadderClassifier rungs, for example network=['conv 32 3', 'max 2', 100]"
            raise TypeError(
                f"network={type(network).__name__}(…) {'is' if module is network else 'has in it'} a "
                f"{type(module).__name__}, whose own costs would be left out, and whose statistics would stay as they "
                "are. Call its own costs and calibrate, or give "
                f"{'the network that it stands around' if isinstance(module, Gamma) else instead}."
            )
