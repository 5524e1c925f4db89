"""Which program trains a fleet: plain, compiled, or captured as a CUDA graph; all of them learn the same thing."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from shutil import which

import torch
from torch import Tensor

from tikas.data.streams import Streams
from tikas.model.ladder import Ladder
from tikas.training.fleet import Fleet
from tikas.training.recipe import Recipe

WORTH_COMPILING = 1e12
"""Products of parameters, rows and updates from which on compiling (half a minute on a CPU) is paid back."""

WORTH_THREADS = 1e8
"""Products of parameters and rows in an update from which on a second thread is worth it."""

UPDATES_IN_A_REPLAY = 10


class CapturedFleet(Fleet):
    """A fleet on a GPU: a block of updates is compiled once, captured once, and replayed.

    What a replay needs lies in fixed places, which are filled before it: the rows of each update, the noise of the
    block and the learning rates. Nothing is copied from the host but the rates, and nothing is waited for.
    """

    def __init__(self, ladders: Sequence[Ladder], recipe: Recipe, streams: Streams) -> None:
        super().__init__(ladders, recipe, streams)
        self.optimizer = torch.optim.Adam(self.ladder.parameters(), lr=self.rate, fused=True, capturable=True)
        self.costs = torch.compile(self.ladder.costs, dynamic=False)
        self.graph: torch.cuda.CUDAGraph | None = None

    def train_epoch(self, rates: Sequence[float]) -> Tensor:
        self.streams.start_epoch()
        block = self.streams.block
        if self.graph is None:
            self._capture()
        assert self.graph is not None
        all_rates = torch.tensor(rates, dtype=torch.float32).pin_memory().to(self.rate.device, non_blocking=True)
        costs = []
        for first in range(0, self.streams.updates, block):
            self._fill(slice(first, first + block), all_rates)
            self.graph.replay()
            costs.append(self.recorded.clone())
        return torch.cat(costs)

    def _fill(self, updates: slice, rates: Tensor) -> None:
        self.unlabeled.copy_(self.streams.unlabeled_plan[updates])
        self.labeled.copy_(self.streams.labeled_plan[updates])
        self.rates.copy_(rates[updates])
        self.streams.draw_noise()

    def _capture(self) -> None:
        """Warm up beside the real training (weights are put back afterwards), then record one block of updates."""
        block = self.streams.block
        self.unlabeled = self.streams.unlabeled_plan[:block].clone()
        self.labeled = self.streams.labeled_plan[:block].clone()
        self.rates = torch.zeros(block, device=self.rate.device)
        self.streams.noise.normal_()
        first_weights = [parameter.detach().clone() for parameter in self.ladder.parameters()]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self._update_in_place(0)
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        self.optimizer.zero_grad()
        with torch.cuda.graph(self.graph):
            self.recorded = torch.stack([self._update_in_place(place) for place in range(block)])
        with torch.no_grad():
            for parameter, first in zip(self.ladder.parameters(), first_weights, strict=True):
                parameter.copy_(first)
                for moment in self.optimizer.state[parameter].values():
                    moment.zero_()

    def _update_in_place(self, place: int) -> Tensor:
        self.rate.copy_(self.rates[place])
        return self.update(self.streams.assemble(self.unlabeled[place], self.labeled[place], place))


def launch(ladders: Sequence[Ladder], recipe: Recipe, streams: Streams) -> Fleet:
    """The quickest fleet for this device and this amount of work: the plain one, unless compiling is paid back.

    On a CPU that also takes a C++ compiler; where there is none the plain fleet is right, and slower.
    """
    fleet = Fleet(ladders, recipe, streams)
    if _work(fleet) < WORTH_COMPILING:
        return fleet
    if streams.examples.rows.is_cuda:
        torch.set_float32_matmul_precision("high")
        return CapturedFleet(ladders, recipe, streams)
    if which("g++"):
        fleet.costs = torch.compile(fleet.ladder.costs, dynamic=False)
    return fleet


@contextmanager
def suitable_threads(fleet: Fleet) -> Iterator[None]:
    """One thread while a small fleet trains on a CPU: its operations are over before a second one has woken up.

    On two cores a second thread gains a tenth, and when another process wants a core it costs half.
    """
    threads = torch.get_num_threads()
    if not fleet.streams.examples.rows.is_cuda and _work_of_an_update(fleet) < WORTH_THREADS:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _work(fleet: Fleet) -> float:
    return _work_of_an_update(fleet) * fleet.recipe.epochs * fleet.streams.updates


def _work_of_an_update(fleet: Fleet) -> float:
    rows = 2 * fleet.streams.batch_size + fleet.streams.labeled_batch_size
    return float(sum(parameter.numel() for parameter in fleet.ladder.parameters())) * rows
