"""A GPU's streams and graphs, as torch has them, that run on a CPU."""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from tikas.training.captured import CapturedFleet


class Lane:
    """A stream of the kind that does its work at once; it knows how much of whose work it has waited for."""

    def __init__(self, *_: object) -> None:
        self.done = 0
        self.waited_for: dict[Lane, int] = {}

    def wait_stream(self, other: "Lane") -> None:
        self.waited_for[other] = other.done


class OnStreams:
    """Knows the stream on which things are done: the last of `current`."""

    current: list[Any]

    @contextmanager
    def on(self, stream: Any) -> Iterator[None]:
        self.current.append(stream)
        try:
            yield
        finally:
            self.current.pop()


class Machine(OnStreams):
    """Streams and graphs as torch has them: `main` is the default stream, `log` the stream of every replay."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.main, self.log, self.replays_left = Lane(), [], 1_000
        self.current, self.lanes = [self.main], []
        capture, update = CapturedFleet._capture, CapturedFleet.update_in_place

        def captured(fleet: CapturedFleet, rates: Tensor) -> None:
            capture(fleet, rates)
            fleet.graph = Graph(self, fleet)

        def counted(fleet: CapturedFleet, place: int) -> None:
            self.current[-1].done += 1
            update(fleet, place)

        monkeypatch.setattr(CapturedFleet, "_capture", captured)
        monkeypatch.setattr(CapturedFleet, "update_in_place", counted)
        monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: tensor)
        monkeypatch.setattr(torch.cuda, "Stream", self.new_lane)
        monkeypatch.setattr(torch.cuda, "stream", self.on)
        monkeypatch.setattr(torch.cuda, "graph", lambda _, stream, **__: self.on(stream))
        monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
        monkeypatch.setattr(torch.cuda, "default_stream", lambda _: self.main)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda _: self.current[-1])

    def new_lane(self, *_: object, **__: object) -> Lane:
        self.lanes.append(Lane())
        return self.lanes[-1]

    def main_has_waited_for_everything(self) -> bool:
        return all(self.main.waited_for.get(lane, 0) == lane.done for lane in self.lanes)


class Graph:
    """Replays by doing the updates of a block again."""

    def __init__(self, machine: Machine, fleet: CapturedFleet) -> None:
        self.machine, self.fleet = machine, weakref.ref(fleet)

    def replay(self) -> None:
        machine, fleet = self.machine, self.fleet()
        assert fleet is not None
        if not machine.replays_left:
            raise KeyboardInterrupt
        machine.replays_left -= 1
        machine.log.append(machine.current[-1])
        for place in range(fleet.streams.block):
            fleet.update_in_place(place)
