"""A fleet on a GPU: a block of updates is captured once as a CUDA graph, and replayed."""

from collections.abc import Sequence

import torch
from torch import Tensor

from tikas.data.streams import Streams
from tikas.model.ladder import Ladder
from tikas.training.fleet import Fleet


class CapturedFleet(Fleet):
    """A fleet whose updates are captured, and whose costs are compiled if that is paid back.

    What a replay needs lies in fixed places, which are filled before it: the rows of each update, the noise of the
    block and the learning rates. Nothing is copied from the host but the rates, and nothing is waited for.
    """

    def __init__(self, ladders: Sequence[Ladder], streams: Streams, *, compiled: bool = True) -> None:
        super().__init__(ladders, streams, capturable=True)
        if compiled:
            self.costs = torch.compile(self.ladder.costs, dynamic=False)
        costs = 1 + len(self.ladder.rungs)
        self.recorded = torch.zeros(streams.block, *self.member_dims, costs, device=self.device)
        self.start()

    def start(self) -> None:
        """Nothing is captured yet: the first epoch does that, once its rows are drawn."""
        self.graph: torch.cuda.CUDAGraph | None = None

    def train_epoch(self, rates: Tensor) -> Tensor:
        self.streams.start_epoch()
        prepared = self.prepare_rates(rates).float()
        if self.graph is None:
            self._capture(prepared[: self.streams.block])
        assert self.graph is not None
        prepared = prepared.pin_memory().to(self.device, non_blocking=True)
        recorded = []
        for first in range(0, self.streams.updates, self.streams.block):
            self._fill(slice(first, first + self.streams.block), prepared)
            self.graph.replay()
            recorded.append(self.recorded.clone())
        return self.read_costs(torch.cat(recorded))

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
        """Warm up with a rate of zero, which leaves the weights as they are, then record one block of updates."""
        block = self.streams.block
        self.unlabeled_rows = self.streams.unlabeled_plan[:block].clone()
        self.labeled_rows = self.streams.labeled_plan[:block].clone()
        self.rates = torch.zeros(rates.shape, device=self.device)
        self.streams.noise.zero_()
        side = torch.cuda.Stream(self.device)
        side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(side):
            for place in range(min(3, block)):
                self.update_in_place(place)
        torch.cuda.current_stream(self.device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # Other threads may train on other GPUs meanwhile; what they do is none of this capture's business.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            for place in range(block):
                self.update_in_place(place)
        self.forget_warm_up()
        self.graph = graph

    def update_in_place(self, place: int) -> None:
        """Take one step with the rows, the noise and the rate at this place of the block, and record its costs."""
        batch = self.streams.assemble(self.unlabeled_rows[place], self.labeled_rows[place], place)
        self.recorded[place] = self.update(batch, self.rates[place])

    def forget_warm_up(self) -> None:
        """Set the optimiser back to its start."""
        for state in self.optimizer.state.values():
            for moment in state.values():
                moment.zero_()
