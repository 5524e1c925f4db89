"""Many seeds as one program: ladders of one shape stacked into one, and the update that trains them together."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy

import torch
from torch import Tensor, nn

from tikas.data.streams import Batch, Streams, generator
from tikas.model.ladder import Costs, Ladder
from tikas.training.recipe import Recipe


def build_ladder(recipe: Recipe, input_shape: Sequence[int], outputs: int, seed: int | None) -> Ladder:
    """The ladder that a recipe describes, with the first weights of this seed (or of none in particular)."""
    ladder = Ladder(
        input_shape=input_shape,
        rungs=recipe.rungs(outputs),
        noise=recipe.levels_of_noise(),
        costs=recipe.levels_of_costs(),
        denoiser=recipe.denoiser,
        task=recipe.task,
        generator=None if seed is None else generator(seed, "weights"),
    )
    if ladder.shapes[-1] != (outputs,):
        raise ValueError(
            f"network={recipe.network!r} has a top of shape {ladder.shapes[-1]}; the data ask for {(outputs,)}. "
            "A network that ends in 'global' needs as many channels below it; any other gets a top of its own."
        )
    return ladder


def stack(ladders: Sequence[Ladder]) -> Ladder:
    """One ladder with a leading member dimension on every parameter and statistic; a ladder alone stays as it is.

    `tikas.model` is written so that such a ladder computes what its members would: see `tikas.model.layout`.
    """
    if len(ladders) == 1:
        return deepcopy(ladders[0])
    states = [ladder.state_dict() for ladder in ladders]
    return _with_tensors(ladders[0], {name: torch.stack([state[name] for state in states]) for name in states[0]})


def unstack(fleet: Ladder, members: int) -> list[Ladder]:
    """The members of a stacked ladder, each on its own again."""
    if members == 1:
        return [deepcopy(fleet)]
    state = fleet.state_dict()
    return [_with_tensors(fleet, {name: state[name][member].clone() for name in state}) for member in range(members)]


def _with_tensors(ladder: Ladder, tensors: Mapping[str, Tensor]) -> Ladder:
    """A copy of a ladder that holds other tensors, of other shapes, under the same names."""
    copy = deepcopy(ladder)
    parameters = {name for name, _ in copy.named_parameters()}
    for name, tensor in tensors.items():
        module, _, leaf = name.rpartition(".")
        setattr(copy.get_submodule(module), leaf, nn.Parameter(tensor) if name in parameters else tensor)
    return copy


class Fleet:
    """Ladders that learn together: one stacked ladder, one optimiser, one update for all of them.

    Parameters
    ----------
    ladders
        The members, all of one shape, on the device to train on.
    recipe
        What they have in common.
    streams
        What they see.
    """

    def __init__(self, ladders: Sequence[Ladder], recipe: Recipe, streams: Streams) -> None:
        self.recipe = recipe
        self.streams = streams
        self.members = len(ladders)
        self.ladder = stack(ladders).train()
        self.rate = torch.tensor(recipe.learning_rate, device=streams.examples.rows.device)
        self.optimizer = torch.optim.Adam(self.ladder.parameters(), lr=self.rate, fused=True)
        self.costs: Callable[..., Costs] = self.ladder.costs

    def train_epoch(self, rates: Sequence[float]) -> Tensor:
        """One pass over the unlabelled rows; the costs of every update, ``(updates, *members, 1 + levels)``."""
        self.streams.start_epoch()
        return torch.stack([self._next_update(update, rate) for update, rate in enumerate(rates)])

    def _next_update(self, update: int, rate: float) -> Tensor:
        self.rate.fill_(rate)
        return self.update(self.streams.batch(update))

    def update(self, batch: Batch) -> Tensor:
        """Take one step; the costs before it, ``(*members, 1 + levels)``, supervised first."""
        self.optimizer.zero_grad()
        costs = self.costs(**batch._asdict())
        costs.total.sum().backward()
        self.optimizer.step()
        return torch.cat([costs.supervised.detach().unsqueeze(-1), costs.denoising.detach()], dim=-1)

    def disband(self) -> list[Ladder]:
        """The members as they are now, each on its own."""
        return unstack(self.ladder, self.members)
