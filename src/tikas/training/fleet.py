"""Many seeds as one program: ladders of one shape stacked into one, and the update that trains them together."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy

import torch
from torch import Tensor, nn

from tikas.data.streams import Batch, Streams
from tikas.model.costs import Costs
from tikas.model.ladder import Ladder


def stack(ladders: Sequence[Ladder]) -> Ladder:
    """One ladder with a leading member dimension on every parameter and statistic; a ladder alone stays as it is.

    `tikas.model` is written so that such a ladder computes what its members would: see `tikas.model.layout`. Where
    members differ in their noise or in their costs, these have a member dimension too.

    Examples
    --------
    >>> from tikas import Dense
    >>> ladders = [Ladder((4,), [Dense(5), Dense(3)]) for _ in range(2)]
    >>> stack(ladders)(torch.rand(2, 8, 4)).shape  # eight rows for each of two members
    torch.Size([2, 8, 3])
    """
    if len(ladders) == 1:
        return deepcopy(ladders[0])
    states = [ladder.state_dict() for ladder in ladders]
    stacked = with_tensors(ladders[0], {name: torch.stack([state[name] for state in states]) for name in states[0]})
    for level, name, values in own_settings(ladders):
        setattr(stacked.rungs[level], name, values)
    return stacked


def own_settings(ladders: Sequence[Ladder]) -> Iterator[tuple[int, str, Tensor]]:
    """In which noises and costs members differ: the level, the name, and the value of each, ``(members,)``.

    Examples
    --------
    >>> from tikas.model.specs import Dense
    >>> list(own_settings([Ladder((4,), [Dense(3)], noise=(0.3, noise)) for noise in (0.25, 0.5)]))
    [(1, 'noise', tensor([0.2500, 0.5000]))]
    """
    first = next(ladders[0].parameters())
    for level in range(len(ladders[0].rungs)):
        for name in ("noise", "cost"):
            values = [getattr(ladder.rungs[level], name) for ladder in ladders]
            if len(set(values)) > 1:
                yield level, name, torch.tensor(values, dtype=first.dtype, device=first.device)


def unstack(stacked: Ladder, ladders: Sequence[Ladder]) -> list[Ladder]:
    """The members of a stacked ladder, each on its own again, with the settings of those that were stacked.

    Examples
    --------
    >>> from tikas import Dense
    >>> ladders = [Ladder((4,), [Dense(5), Dense(3)]) for _ in range(2)]
    >>> first, second = unstack(stack(ladders), ladders)
    >>> bool((second.rungs[1].weight == ladders[1].rungs[1].weight).all())
    True
    """
    if len(ladders) == 1:
        return [deepcopy(stacked)]
    state = stacked.state_dict()
    return [
        with_tensors(ladder, {name: state[name][member].clone() for name in state})
        for member, ladder in enumerate(ladders)
    ]


def with_tensors(ladder: Ladder, tensors: Mapping[str, Tensor]) -> Ladder:
    """A copy of a ladder that holds other tensors, perhaps of other shapes, under the same names.

    Examples
    --------
    >>> from tikas import Dense
    >>> ladder = Ladder((4,), [Dense(5), Dense(3)])
    >>> with_tensors(ladder, {"rungs.1.weight": torch.zeros(7, 5, 4)}).rungs[1].weight.shape  # of seven members
    torch.Size([7, 5, 4])
    """
    own = _tensors(ladder)
    instead: dict[int, Tensor] = {
        id(own[name]): nn.Parameter(tensor) if isinstance(own[name], nn.Parameter) else tensor
        for name, tensor in tensors.items()
    }
    return deepcopy(ladder, instead)


def copy_on(ladder: Ladder, device: torch.device | str) -> Ladder:
    """A copy of a ladder on a device, of tensors that are copied there and nowhere else on the way.

    Examples
    --------
    >>> from tikas import Dense
    >>> ladder = Ladder((4,), [Dense(5), Dense(3)])
    >>> copy_on(ladder, "meta").rungs[1].weight.device
    device(type='meta')
    """
    copies = {name: tensor.detach().to(device, copy=True) for name, tensor in _tensors(ladder).items()}
    return with_tensors(ladder, copies)


def _tensors(ladder: Ladder) -> dict[str, Tensor]:
    return {**dict(ladder.named_parameters()), **dict(ladder.named_buffers())}


def recorded(costs: Costs) -> Tensor:
    """What is told of an update's costs: ``(*members, 1 + levels)``, the supervised one first.

    Examples
    --------
    >>> recorded(Costs(torch.tensor(9.0), torch.tensor(1.0), torch.tensor([0.5, 0.25])))
    tensor([1.0000, 0.5000, 0.2500])
    """
    return torch.cat([costs.supervised.detach().unsqueeze(-1), costs.denoising.detach()], dim=-1)


class Fleet:
    """Ladders that learn together: one stacked ladder, one optimiser, one update for all of them.

    Parameters
    ----------
    ladders
        The members, all of one shape and on the device to train on. They may differ in noise and in costs.
    streams
        What they see.
    capturable
        Whether updates may be captured as a CUDA graph.

    Examples
    --------
    >>> from tikas import Dense
    >>> from tikas.data.splits import split
    >>> from tikas.data.streams import Examples
    >>> classes, ladders = torch.arange(60) % 3, [Ladder((8,), [Dense(5), Dense(3)]) for _ in range(2)]
    >>> splits = [split(classes.numpy(), 9, seed=seed) for seed in (0, 1)]
    >>> streams = Streams(Examples(torch.rand(60, 8), classes, 3), splits, [0, 1], ladders[0].shapes, 20, 20)
    >>> Fleet(ladders, streams).train_epoch(torch.full((3,), 0.002)).shape  # 3 updates, 2 members, 1 + 3 costs
    torch.Size([3, 2, 4])
    """

    dtype = torch.float32
    """Of what products read, which benchmarks tell."""

    def __init__(self, ladders: Sequence[Ladder], streams: Streams, *, capturable: bool = False) -> None:
        self._enlist(ladders, streams)
        self.ladder = stack(ladders).train()
        if isinstance(self.ladder, Ladder) and not self.member_dims:
            # Kernels of convolutions; nothing else has four dimensions. Maps then lie as they do, and as noise does.
            self.ladder.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.rate = torch.zeros((), device=self.device)
        self.capturable = capturable
        self.optimizer = self._adam(self.ladder.parameters())
        self.costs: Callable[..., Costs] = self.ladder.costs
        self._steps: list[Tensor] = []

    def _enlist(self, ladders: Sequence[Ladder], streams: Streams) -> None:
        """What every kind of fleet knows, whatever it makes of its members."""
        self.streams = streams
        self.ladders = ladders
        self.members = len(ladders)
        self.member_dims = () if self.members == 1 else (self.members,)
        self.device = streams.examples.rows.device

    def train_epoch(self, rates: Tensor) -> Tensor:
        """One pass over the unlabelled rows.

        Parameters
        ----------
        rates
            The learning rate of each update, ``(updates,)``, or of each update and member, ``(updates, members)``.

        Returns
        -------
        Tensor
            The costs of every update, ``(updates, *members, 1 + levels)``, supervised first.
        """
        self.streams.start_epoch()
        rates = rates.to(self.device, torch.float32)
        return torch.stack([self.update(self.streams.batch(update), rate) for update, rate in enumerate(rates)])

    def update(self, batch: Batch, rate: Tensor) -> Tensor:
        """Take one step; the costs before it, ``(*members, 1 + levels)``, supervised first."""
        self.ladder.zero_grad()
        costs = self.costs(**batch._asdict())
        costs.total.sum().backward()
        if rate.dim():
            self._step_at_rates(rate)
        else:
            self.rate.copy_(rate)
            self.optimizer.step()
        return recorded(costs)

    @torch.no_grad()
    def _step_at_rates(self, rates: Tensor) -> None:
        """A step at a rate of one, of which each member goes only as far as its own rate says.

        Zeros take that step in the weights' stead, so that Ctrl-C finds the weights where they belong at any time.
        """
        parameters = list(self.ladder.parameters())
        if not self._steps:
            moments = [self.optimizer.state[parameter] for parameter in parameters]  # a fleet that goes on has some
            self._steps = [torch.zeros_like(parameter) for parameter in parameters]
            self.optimizer = self._adam(self._steps)
            self.optimizer.state.update(zip(self._steps, moments, strict=True))
        for step, parameter in zip(self._steps, parameters, strict=True):
            step.grad = parameter.grad
        self.rate.fill_(1.0)
        self.optimizer.step()
        for step, parameter in zip(self._steps, parameters, strict=True):
            parameter.addcmul_(step, rates.to(parameter.dtype).view(-1, *[1] * (parameter.dim() - 1)))
            step.zero_()

    def _adam(self, parameters: Iterable[Tensor]) -> torch.optim.Adam:
        return torch.optim.Adam(parameters, lr=self.rate, fused=True, capturable=self.capturable)

    # To stop after an epoch and go on from there another time

    def snapshot(self) -> dict[str, Tensor]:
        """All that the members need to go on as if nothing had been, on the CPU: ``(members, ...)`` of everything."""
        alone = not self.member_dims
        tensors = {name: place.unsqueeze(0) if alone else place for name, place in self.tensors().items()}
        copies = {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}
        return copies | {f"streams.{name}": state for name, state in self.streams.states().items()}

    def go_on_from(self, snapshot: Mapping[str, Tensor], updates: int) -> None:
        """Be what a fleet of such members was when it had made so many updates.

        Raises
        ------
        ValueError
            Where the snapshot is of other ladders, or of another number of them.
        """
        self.place(snapshot, updates)
        self.streams.go_on_from({name: snapshot[f"streams.{name}"] for name in ("order", "noise")})

    @torch.no_grad()
    def place(self, snapshot: Mapping[str, Tensor], updates: int) -> None:
        """Put the tensors of a snapshot in their places, and tell the optimiser how many updates they had."""
        for name, place in self.tensors().items():
            kept, expected = snapshot.get(name), (self.members, *place.shape[len(self.member_dims) :])
            if kept is None or kept.shape != expected:
                was = "was not kept" if kept is None else f"was kept with shape {tuple(kept.shape)}"
                raise ValueError(
                    f"{name} {was}, and these members ask for {expected}: another version of tikas may have "
                    "kept them. Delete the folder of unfinished training to begin anew."
                )
            place.copy_(kept if self.member_dims else kept[0])
        self.count_updates(updates)

    def tensors(self) -> dict[str, Tensor]:
        """Where everything lies that updates change, ``(*members, ...)``: parameters, and Adam's moments of them.

        The statistics of a ladder are no such thing: they are set when it is done. A module of somebody else's may
        change whatever it has.
        """
        parameters: dict[str, Tensor] = dict(self.ladder.named_parameters())
        changing = parameters if isinstance(self.ladder, Ladder) else self.ladder.state_dict()
        places = {f"ladder.{name}": tensor for name, tensor in changing.items() if isinstance(tensor, Tensor)}
        for name, state in zip(parameters, self._adam_states(), strict=True):
            places |= {f"mean.{name}": state["exp_avg"], f"square.{name}": state["exp_avg_sq"]}
        return places

    def count_updates(self, updates: int) -> None:
        """Tell the optimiser how many updates there were."""
        for state in self._adam_states():
            state["step"].fill_(updates)

    def _adam_states(self) -> list[dict[str, Tensor]]:
        """Of every parameter, as Adam would make them in its first step if it had not taken one yet."""
        parameters = self.optimizer.param_groups[0]["params"]
        for parameter in parameters:
            if not self.optimizer.state[parameter]:
                self.optimizer.state[parameter] = {
                    "step": torch.zeros((), device=parameter.device),
                    "exp_avg": torch.zeros_like(parameter),
                    "exp_avg_sq": torch.zeros_like(parameter),
                }
        return [self.optimizer.state[parameter] for parameter in parameters]

    def parts(self) -> list[Ladder]:
        """All members as they are now, in as few ladders as they run in: stacked into one, unless they run apart.

        `calibrate` and eval mode may be used, and put back.
        """
        return [self.ladder]

    def disband(self) -> list[Ladder]:
        """The members as they are now, each on its own."""
        return unstack(self.ladder, self.ladders)
