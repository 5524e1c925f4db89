"""Engines for a GPU: a block of updates is captured once as a CUDA graph and replayed from then on.

On any other device nothing is captured: the updates of a block run one after the other, which is for tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy

import torch
from torch import Tensor

from tikas.data.batches import Batches
from tikas.model.ladder import Costs, Model
from tikas.training.compiled import compile_function
from tikas.training.engines import EagerEngine
from tikas.training.ensemble import differing_settings, with_tensors

WARM_UP = 8
"""Updates before the capture. Triton compiles kernels by how tensors are aligned and cannot load one during a capture;
after eight updates, tensors of two bytes a value are aligned as they were at the first."""


class Graph:
    """A block of updates, captured in the first epoch and replayed for every block of every epoch.

    What the updates read lies at fixed addresses, which are filled before each replay: the row indices, the noise of
    the block (`Batches.noise`) and the learning rates. Only the rates come from the host; nothing waits for the GPU.

    Parameters
    ----------
    batches : Batches
    costs : Tensor of shape (block, ...)
        Where the update at each position of the block writes its costs.

    Attributes
    ----------
    unlabeled, labeled : Tensor of shape (block, *members, rows)
        Row indices of the updates of a block. Set, like `rates`, when the first epoch begins.
    rates : Tensor of shape (block, ...)
        Learning rates, float32, in the form that `epoch` is given.
    """

    unlabeled: Tensor
    labeled: Tensor
    rates: Tensor

    def __init__(self, batches: Batches, costs: Tensor) -> None:
        self.batches = batches
        self.costs = costs
        self._graph: torch.cuda.CUDAGraph | None = None
        self._ready = False

    def epoch(
        self, rates: Tensor, first: int, update: Callable[[range], object], moments: Sequence[Tensor]
    ) -> Iterator[Tensor]:
        """Train for one epoch, or the part of it that begins with update `first`; yield `costs` after each block.

        Parameters
        ----------
        rates : Tensor of shape (updates, ...)
        update : callable
            Makes the updates at these positions of the block. When it returns, nothing may be under way on another
            stream than the current one. It is not stored: an engine that its graph refers to would keep its memory
            until the next garbage collection.
        moments : sequence of Tensor
            What an update changes even if the learning rate is zero: the moments and the step of the optimizer.
        """
        batches, block = self.batches, self.batches.block
        if first == 0:
            batches.start_epoch()
        rates = rates.float()
        if not self._ready:
            self.unlabeled = batches.unlabeled_plan[:block].clone()
            self.labeled = batches.labeled_plan[:block].clone()
            self.rates = torch.zeros(block, *rates.shape[1:], device=batches.device)
            if batches.device.type == "cuda":
                batches.load(first)  # the updates of the warm-up need rows
                self._graph = self._capture(update, moments)
            self._ready = True
        if self._graph is not None:
            rates = rates.pin_memory().to(batches.device, non_blocking=True)
        for start in range(0, len(rates), block):
            chosen = slice(first + start, first + start + block)
            self.unlabeled.copy_(batches.unlabeled_plan[chosen])
            self.labeled.copy_(batches.labeled_plan[chosen])
            self.rates.copy_(rates[start : start + block])
            batches.start_block(first + start)
            if self._graph is None:
                update(range(block))
            else:
                self._graph.replay()
            yield self.costs.clone()

    def warm_up(self, update: Callable[[range], object], moments: Sequence[Tensor]) -> None:
        """Run some updates with a learning rate of zero, and restore the optimizer's moments, which they change."""
        saved = [moment.to("cpu", copy=True) if moment.any() else None for moment in moments]  # zero: a new run
        self.batches.noise.zero_()
        update(range(min(WARM_UP, self.batches.block)))
        for moment, values in zip(moments, saved, strict=True):
            if values is None:
                moment.zero_()
            else:
                moment.copy_(values)

    def _capture(self, update: Callable[[range], object], moments: Sequence[Tensor]) -> torch.cuda.CUDAGraph:
        # The default stream cannot be captured. Neither is the one stream used that torch would capture every graph
        # of the process on: products captured on the same stream share scratch memory, and graphs replayed side by
        # side would overwrite each other's. Its priority is above that of the side streams of an update.
        current = torch.cuda.current_stream(self.batches.device)
        is_default = current == torch.cuda.default_stream(self.batches.device)
        stream = torch.cuda.Stream(self.batches.device, priority=-2) if is_default else current
        stream.wait_stream(current)
        try:
            with torch.cuda.stream(stream):
                self.warm_up(update, moments)
        finally:  # after Ctrl-C too: what follows reads and frees what that stream writes
            current.wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # "thread_local": calls of other threads of the process to CUDA do not invalidate the capture.
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            update(range(self.batches.block))
        return graph


class SideStream:
    """A stream beside the current one; on other devices than a GPU, work runs at once, in order."""

    def __init__(self, device: torch.device, priority: int = 0) -> None:
        self._stream = torch.cuda.Stream(device, priority=priority) if device.type == "cuda" else None
        self._busy = False

    @contextmanager
    def run(self) -> Iterator[None]:
        """Run on the side stream, after the work already queued on the current stream."""
        if self._stream is None:
            yield
            return
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        self._busy = True
        with torch.cuda.stream(self._stream):
            yield

    def join(self) -> None:
        """Make the current stream wait for the work of the side stream.

        Without such work there is no wait: a capture does not allow one for a stream that is not part of it.
        """
        if self._stream is not None and self._busy:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)
        self._busy = False


class CudaGraphEngine:
    """Trains members packed into one model by replaying a CUDA graph of eager or compiled updates.

    Parameters
    ----------
    models : sequence of Model
    batches : Batches
    compiled : bool, default=True
        Whether the costs are compiled first.
    exact : bool, default=True
        Whether compiled products stay in float32; otherwise they are computed in bf16.
    """

    def __init__(self, models: Sequence[Model], batches: Batches, *, compiled: bool = True, exact: bool = True) -> None:
        self.batches = batches
        self.members = len(models)
        self.dtype = torch.bfloat16 if compiled and not exact else torch.float32
        self.preparation = ("compiling the update, and " if compiled else "") + "capturing a CUDA graph"
        self.eager = EagerEngine(models, batches, capturable=True)
        if compiled:
            costs = compile_function(self.eager.model.training_costs)
            self.eager.costs = costs if exact else _in_bf16(costs, batches.device.type)
        members = () if self.members == 1 else (self.members,)
        levels = len(self.eager.model.shapes)
        self._graph = Graph(batches, torch.zeros(batches.block, *members, 1 + levels, device=batches.device))

    def train_epoch(self, rates: Tensor, first: int = 0) -> Tensor:
        """Train for one epoch or a part of it; see `Engine.train_epoch`."""
        return torch.cat(list(self.blocks(rates, first)))

    def blocks(self, rates: Tensor, first: int = 0) -> Iterator[Tensor]:
        """Train like `train_epoch`; yield the costs of each block of updates, ``(block, *members, 1 + levels)``."""
        moments = [tensor for state in self.eager.adam_state() for tensor in state.values()]
        return self._graph.epoch(rates, first, self._update, moments)

    def _update(self, positions: range) -> None:
        for position in positions:
            graph = self._graph
            batch = self.batches.assemble(graph.unlabeled[position], graph.labeled[position], position)
            graph.costs[position] = self.eager.update(batch, graph.rates[position])

    def state_dict(self) -> dict[str, Tensor]:
        """Return everything needed to resume; see `Engine.state_dict`."""
        return self.eager.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor], updates: int) -> None:
        """Restore a `state_dict` taken after `updates` updates."""
        self.eager.load_state_dict(state, updates)

    def models(self) -> list[Model]:
        """Return each member as a model of its own."""
        return self.eager.models()

    def packed(self) -> list[Model]:
        """Return the packed model."""
        return self.eager.packed()


def _in_bf16(costs: Callable[..., Costs], device: str) -> Callable[..., Costs]:
    """Return `costs` with products and convolutions in bf16; statistics and what follows from them stay in float32.

    Autocast is entered outside of the compiled function: torch's cache does not keep code that changes it.
    """

    def costs_in_bf16(*batch: object) -> Costs:
        with torch.autocast(device, torch.bfloat16):
            return costs(*batch)

    return costs_in_bf16


class SideBySideEngine:
    """Trains convolutional members each in a CUDA graph and on a stream of its own.

    Such members fill much of a GPU each, and packed into one model their convolutions would be grouped ones, which are
    slow.

    Parameters
    ----------
    models, batches, compiled, exact
        As for `CudaGraphEngine`.
    """

    def __init__(self, models: Sequence[Model], batches: Batches, *, compiled: bool = True, exact: bool = True) -> None:
        self.batches = batches
        self.members = len(models)
        batches.noise = batches.noise.new_empty(0)  # each member draws its own; this would be gigabytes more
        self._templates = models
        copies = [deepcopy(model) for model in models]
        for level, name, values in differing_settings(models):  # as tensors: as numbers, each would be compiled anew
            for model, value in zip(copies, values, strict=True):
                setattr(model.rungs[level], name, value)
        self.engines = [
            CudaGraphEngine([model], batches.for_member(member), compiled=compiled, exact=exact)
            for member, model in enumerate(copies)
        ]
        self.dtype, self.preparation = self.engines[0].dtype, self.engines[0].preparation
        self._streams = [SideStream(batches.device) for _ in models]

    def train_epoch(self, rates: Tensor, first: int = 0) -> Tensor:
        """Train for one epoch or a part of it; see `Engine.train_epoch`."""
        rates = rates.view(len(rates), -1).expand(-1, self.members)
        epochs = [engine.blocks(rates[:, member].contiguous(), first) for member, engine in enumerate(self.engines)]
        costs: list[list[Tensor]] = [[] for _ in epochs]
        try:
            for _ in range(0, len(rates), self.batches.block):  # in turn, so that none gets far ahead
                for epoch, stream, blocks in zip(epochs, self._streams, costs, strict=True):
                    with stream.run():
                        blocks.append(next(epoch))
        finally:  # after Ctrl-C too: what follows reads the weights that these streams write
            for stream in self._streams:
                stream.join()
        # The blocks' memory belongs to the side streams, which write to it again only after waiting for this stream.
        return torch.stack([torch.cat(blocks) for blocks in costs], 1)

    def state_dict(self) -> dict[str, Tensor]:
        """Return everything needed to resume; see `Engine.state_dict`."""
        states = [engine.state_dict() for engine in self.engines]
        return {name: torch.cat([state[name] for state in states]) for name in states[0]}

    def load_state_dict(self, state: Mapping[str, Tensor], updates: int) -> None:
        """Restore a `state_dict` taken after `updates` updates."""
        for member, engine in enumerate(self.engines):
            engine.load_state_dict({name: tensor[member : member + 1] for name, tensor in state.items()}, updates)

    def models(self) -> list[Model]:
        """Return each member as a model of its own, with the noise and the cost weights that it was given."""
        return [
            with_tensors(template, {name: tensor.clone() for name, tensor in engine.eager.model.state_dict().items()})
            for template, engine in zip(self._templates, self.engines, strict=True)
        ]

    def packed(self) -> list[Model]:
        """Return the members, each in the model that trains it."""
        return [engine.eager.model for engine in self.engines]
