"""A fleet on a GPU: a block of updates is captured once as a CUDA graph, and replayed."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from tikas.data.streams import Streams
from tikas.model.costs import Costs
from tikas.model.ladder import Ladder
from tikas.training.compilers import Compiler
from tikas.training.fleet import Fleet, own_settings, with_tensors
from tikas.training.precision import steady_precision

_capturing = Lock()
"""Of the threads of several GPUs one captures at a time: torch has no more than one capture in a process."""


class CapturedFleet(Fleet):
    """A fleet whose updates are captured, and whose costs are compiled if that is paid back.

    What a replay needs lies in fixed places, which are filled before it: the rows of each update, the noise of the
    block and the learning rates. Nothing is copied from the host but the rates, and nothing is waited for.

    Parameters
    ----------
    ladders, streams
        As for `Fleet`.
    compiled
        Whether the costs are compiled first.
    exact
        Whether compiled products stay in float32.
    """

    graph: torch.cuda.CUDAGraph | None = None
    """A block of updates: the first epoch captures it, once its rows are drawn."""
    _gone_on_from: tuple[Mapping[str, Tensor], int] | None = None
    """To be put in place again when warming up, which spoils Adam's moments, is over; Ctrl-C may come before."""

    def __init__(
        self, ladders: Sequence[Ladder], streams: Streams, *, compiled: bool = True, exact: bool = True
    ) -> None:
        super().__init__(ladders, streams, capturable=True)
        if compiled:
            costs = Compiler()(self.ladder.costs)
            self.costs = costs if exact else _in_bf16(costs, self.device.type)
            self.dtype = torch.float32 if exact else torch.bfloat16
        figures = 1 + len(self.ladder.rungs)
        self.recorded = torch.zeros(streams.block, *self.member_dims, figures, device=self.device)

    def train_epoch(self, rates: Tensor) -> Tensor:
        return self.read_costs(torch.cat(list(self.replays(rates))))

    def replays(self, rates: Tensor) -> Iterator[Tensor]:
        """An epoch, a block of updates for every step: what each recorded."""
        self.streams.start_epoch()
        prepared = self.prepare_rates(rates).float()
        if self.graph is None:
            self._capture(prepared[: self.streams.block])
        assert self.graph is not None
        prepared = prepared.pin_memory().to(self.device, non_blocking=True)
        for first in range(0, self.streams.updates, self.streams.block):
            self._fill(slice(first, first + self.streams.block), prepared)
            self.graph.replay()
            yield self.recorded.clone()

    def go_on_from(self, snapshot: Mapping[str, Tensor], updates: int) -> None:
        super().go_on_from(snapshot, updates)
        self._gone_on_from = (snapshot, updates) if self.graph is None else None

    def prepare_rates(self, rates: Tensor) -> Tensor:
        """What the update is told of each update's learning rates."""
        return rates

    def read_costs(self, recorded: Tensor) -> Tensor:
        """The costs of each update, from what it recorded."""
        return recorded

    def _fill(self, updates: slice, rates: Tensor) -> None:
        self.unlabeled_rows.copy_(self.streams.unlabeled_plan[updates])
        self.labeled_rows.copy_(self.streams.labeled_plan[updates])
        self.rates.copy_(rates[updates])
        self.streams.draw_noise()

    def _capture(self, rates: Tensor) -> None:
        """Warm up with a rate of zero, which leaves the weights as they are, then record one block of updates.

        Triton compiles kernels by how tensors are aligned, and none can be loaded while updates are recorded. After
        eight updates tensors of two bytes a value are aligned as they were before.
        """
        block = self.streams.block
        self.unlabeled_rows = self.streams.unlabeled_plan[:block].clone()
        self.labeled_rows = self.streams.labeled_plan[:block].clone()
        self.rates = torch.zeros(rates.shape, device=self.device)
        self.streams.noise.zero_()
        with steady_precision():
            graph = self._recorded()
        self.forget_warm_up()
        if self._gone_on_from is not None:
            self.place(*self._gone_on_from)
            self._gone_on_from = None
        self.graph = graph

    def _recorded(self) -> torch.cuda.CUDAGraph:
        here = torch.cuda.current_stream(self.device)
        lane = self._lane(here)
        lane.wait_stream(here)
        try:
            with torch.cuda.stream(lane):
                self.update_in_places(range(min(8, self.streams.block)))
        finally:  # after Ctrl-C too: what comes next reads and frees what that stream writes
            here.wait_stream(lane)
        graph = torch.cuda.CUDAGraph()
        # Other threads may train on other GPUs meanwhile; what they do is none of this capture's business.
        with _capturing, torch.cuda.graph(graph, stream=lane, capture_error_mode="thread_local"):
            self.update_in_places(range(self.streams.block))
        return graph

    def _lane(self, here: torch.cuda.Stream) -> torch.cuda.Stream:
        """The stream to capture on: this one, or one of this fleet's own where this is the default, which cannot be.

        Never the one stream that torch would capture all graphs of a process on. It belongs to one GPU, and products
        captured on the same stream share their scratch memory: replayed side by side they would write over each other.
        One of this fleet's own is more urgent than what it does beside its updates (see `tikas.training.lanes`).
        """
        return torch.cuda.Stream(self.device, priority=-2) if here == torch.cuda.default_stream(self.device) else here

    def update_in_places(self, places: Iterable[int]) -> None:
        """Take a step for each of these places; after the last one nothing is under way on another stream."""
        for place in places:
            self.update_in_place(place)

    def update_in_place(self, place: int) -> None:
        """Take one step with the rows, the noise and the rate at this place of the block, and record its costs."""
        batch = self.streams.assemble(self.unlabeled_rows[place], self.labeled_rows[place], place)
        self.recorded[place] = self.update(batch, self.rates[place])

    def forget_warm_up(self) -> None:
        """Set the optimiser back to its start."""
        for state in self.optimizer.state.values():
            for moment in state.values():
                moment.zero_()


def _in_bf16(costs: Callable[..., Costs], device: str) -> Callable[..., Costs]:
    """The same with products and convolutions in bf16, statistics and all that follows from them in float32.

    No method of the fleet, which would hold on to itself by it, and to its memory when it is done with. And nothing
    that is compiled too: torch does not keep code with such a change of precision in it for the next start.
    """

    def costs_in_bf16(**batch: Any) -> Costs:
        with torch.autocast(device, torch.bfloat16):
            return costs(**batch)

    return costs_in_bf16


class SideBySide(Fleet):
    """Members that fill much of a GPU each, on streams of their own: convolutional ladders.

    Stacked into one program their convolutions would become grouped ones, which are slow.
    """

    def __init__(self, ladders: Sequence[Ladder], streams: Streams, **settings: Any) -> None:
        self._enlist(ladders, streams)
        streams.noise = streams.noise.new_empty(0)  # every member draws its own, and all of it again is gigabytes
        copies = [deepcopy(ladder) for ladder in ladders]
        for level, name, values in own_settings(ladders):  # as tensors, or each would be compiled for itself
            for ladder, value in zip(copies, values, strict=True):
                setattr(ladder.rungs[level], name, value)
        self.fleets = [
            CapturedFleet([ladder], streams.alone(member), **settings) for member, ladder in enumerate(copies)
        ]
        self._lanes = [torch.cuda.Stream(self.device) for _ in ladders]

    def train_epoch(self, rates: Tensor) -> Tensor:
        rates = rates.view(len(rates), -1).expand(-1, self.members)
        here = torch.cuda.current_stream(self.device)
        epochs = [fleet.replays(rates[:, member].contiguous()) for member, fleet in enumerate(self.fleets)]
        recorded: list[list[Tensor]] = [[] for _ in epochs]
        for lane in self._lanes:
            lane.wait_stream(here)
        try:
            for _ in range(0, self.streams.updates, self.streams.block):  # in turn, so that nobody gets far ahead
                for epoch, lane, blocks in zip(epochs, self._lanes, recorded, strict=True):
                    with torch.cuda.stream(lane):
                        blocks.append(next(epoch))
        finally:  # after Ctrl-C too: what comes next reads the weights that these streams write
            for lane in self._lanes:
                here.wait_stream(lane)
        # Blocks are the lanes' memory, and go back to them: they write there again only after their next wait for here.
        costs = [fleet.read_costs(torch.cat(blocks)) for fleet, blocks in zip(self.fleets, recorded, strict=True)]
        return torch.stack(costs, 1)

    def snapshot(self) -> dict[str, Tensor]:
        snapshots = [fleet.snapshot() for fleet in self.fleets]
        return {name: torch.cat([snapshot[name] for snapshot in snapshots]) for name in snapshots[0]}

    def go_on_from(self, snapshot: Mapping[str, Tensor], updates: int) -> None:
        for member, fleet in enumerate(self.fleets):
            fleet.go_on_from({name: kept[member : member + 1] for name, kept in snapshot.items()}, updates)

    def parts(self) -> list[Ladder]:
        return [fleet.ladder for fleet in self.fleets]

    def disband(self) -> list[Ladder]:
        return [
            with_tensors(ladder, {name: tensor.clone() for name, tensor in fleet.ladder.state_dict().items()})
            for fleet, ladder in zip(self.fleets, self.ladders, strict=True)
        ]
