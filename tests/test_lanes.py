"""Whatever a written-out update does on one stream, nobody on another reads or writes meanwhile.

Kernels are not run: the order in which they may run follows from who waits for whom, and what they read and write from
what they are given.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import pytest
import torch
from torch import Tensor

from pretended import OnStreams
from tikas.data.splits import split
from tikas.data.streams import Examples, Streams
from tikas.training.building import build_ladder
from tikas.training.lanes import Lane, _stream_of
from tikas.training.recipe import Recipe

pytest.importorskip("triton", reason="Triton is not installed on this machine")

WRITTEN = {
    "gather_kernel": {"hidden"},
    "climb_kernel": {"hidden", "statistics"},
    "top_kernel": {"signal", "to_scores", "cost"},
    "descend_kernel": {"denoised", "signal_statistics", "cost"},
    "descend_back_kernel": {"to_signal", "to_latents", "to_statistics", "to_denoiser"},
    "top_back_kernel": {"to_scores"},
    "climb_back_kernel": {"to_projected", "to_beta", "to_gamma"},
    "adam_kernel": {"parameters", "means", "squares", "copies"},
}
FULL = Recipe(data="array", network=(16, 8), costs=(10.0, 1.0, 0.1, 0.1))
RECIPES = {
    "full": FULL,
    "bottom": replace(FULL, costs=(10.0, 0.0, 0.0, 0.0)),
    "middle": replace(FULL, costs=(0.0, 2.0, 0.0, 0.0)),
    "gamma": replace(FULL, costs=(1.0,)),
    "baseline": replace(FULL, costs=(0.0,)),
}


class Stream:
    """One that knows how much of whose work is done before its own next work."""

    device = torch.device("cpu")
    numbers = count()

    def __init__(self, *_: object, **__: object) -> None:
        self.number = next(self.numbers)
        self.seen = {self.number: 0}
        self.captured_with: Stream | None = None

    def wait_stream(self, other: "Stream") -> None:
        """As in a capture, which begins on one stream and comes to others by what waits for it."""
        if other.captured_with is not None:
            self.captured_with = other.captured_with
        assert other.captured_with is self.captured_with, "a capture waits for none that is not part of it"
        self.seen = {one: max(self.seen.get(one, 0), other.seen.get(one, 0)) for one in self.seen | other.seen}


@dataclass
class Access:
    """Of the bytes from the first up to the last, by a stream's work of this number."""

    first: int
    last: int
    written: bool
    stream: int
    work: int
    name: str

    def conflicts_with(self, other: "Access") -> bool:
        return (self.written or other.written) and self.first < other.last and other.first < self.last


@dataclass
class Observer(OnStreams):
    """Notes every access, and those that came without waiting for an earlier one of the same bytes."""

    current: list[Stream] = field(default_factory=lambda: [Stream()])
    accesses: list[Access] = field(default_factory=list)
    races: list[tuple[str, str]] = field(default_factory=list)
    streams: list[Stream] = field(default_factory=list)
    launches: int = 0
    interrupted_after: int | None = None

    def stream(self, *_: object, **__: object) -> Stream:
        self.streams.append(Stream())
        return self.streams[-1]

    def begin_capture(self) -> None:
        for stream in self.streams:
            stream.captured_with = None
        (main,) = self.current
        main.captured_with = main

    def main_has_seen_everything(self) -> bool:
        (main,) = self.current
        return all(main.seen.get(access.stream, 0) >= access.work for access in self.accesses)

    def note(self, name: str, read: list[Tensor], written: list[Tensor]) -> None:
        self.launches += 1
        if self.launches == self.interrupted_after:
            raise KeyboardInterrupt
        stream = self.current[-1]
        stream.seen[stream.number] += 1
        for tensor in (*read, *written):
            if tensor.numel():
                extent = 1 + sum(
                    (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
                )
                first, mine = tensor.data_ptr(), any(tensor is each for each in written)
                last = first + extent * tensor.element_size()
                self._check(Access(first, last, mine, stream.number, stream.seen[stream.number], name), stream)

    def _check(self, access: Access, stream: Stream) -> None:
        for earlier in self.accesses:
            if access.conflicts_with(earlier) and stream.seen.get(earlier.stream, 0) < earlier.work:
                self.races.append((earlier.name, access.name))
        self.accesses.append(access)


@pytest.fixture
def observer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Observer]:
    """Of streams, kernels and products as torch and Triton would have them on a GPU."""
    from triton.runtime.jit import JITFunction

    from tikas.training import fused

    observer = Observer()

    def run(kernel: JITFunction, *given: Any, **_: Any) -> None:
        named = dict(zip(kernel.arg_names, given, strict=False))
        tensors = {name: each for name, each in named.items() if isinstance(each, Tensor)}
        assert tensors.keys() >= WRITTEN[kernel.__name__]
        written = [tensors.pop(name) for name in WRITTEN[kernel.__name__]]
        observer.note(kernel.__name__, list(tensors.values()), written)

    monkeypatch.setattr(JITFunction, "run", run)
    monkeypatch.setattr(torch, "bmm", lambda one, other, out: observer.note("product", [one, other], [out]))
    monkeypatch.setattr(torch.cuda, "Stream", observer.stream)
    monkeypatch.setattr(torch.cuda, "stream", observer.on)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: observer.current[-1])
    monkeypatch.setattr(fused, "Lane", lambda _, urgency=0: Lane(torch.device("cuda"), urgency))
    _stream_of.cache_clear()
    yield observer
    _stream_of.cache_clear()


def make_updates(observer: Observer, recipe: Recipe, block: int = 3, captures: int = 2) -> None:
    """Of one member, whose tensors then lie one behind the other."""
    from tikas.training.fused import FusedFleet

    classes, ladder = torch.arange(60) % 3, build_ladder(recipe, (16,), 3, seed=0)
    examples, splits = Examples(torch.rand(60, 16), classes, 3), [split(classes.numpy(), 9)]
    streams = Streams(examples, splits, [0], ladder.shapes, 20, 8, most_in_block=block, denoising=any(recipe.costs))
    fleet = FusedFleet([ladder], streams)
    streams.start_epoch()
    fleet.unlabeled_rows, fleet.labeled_rows = streams.unlabeled_plan, streams.labeled_plan
    fleet.rates = fleet.prepare_rates(torch.zeros(streams.updates)).float()
    for _ in range(captures):
        observer.begin_capture()
        fleet.update_in_places(range(streams.block))
        assert observer.main_has_seen_everything()


@pytest.mark.parametrize("block", [1, 2, 3])
@pytest.mark.parametrize("name", RECIPES)
def test_nothing_is_touched_while_another_stream_works_with_it(name: str, block: int, observer: Observer) -> None:
    make_updates(observer, RECIPES[name], block)
    assert observer.races == []
    assert {access.name for access in observer.accesses} >= {"product", "adam_kernel", "climb_back_kernel"}
    assert len({access.stream for access in observer.accesses}) == (2 if name in ("gamma", "baseline") else 3)


def test_wherever_an_update_is_interrupted_nothing_is_left_under_way(observer: Observer) -> None:
    make_updates(observer, FULL, captures=1)
    for launch in range(1, observer.launches):
        observer.launches, observer.interrupted_after = 0, launch
        observer.accesses.clear()
        with pytest.raises(KeyboardInterrupt):
            make_updates(observer, FULL, captures=1)
        assert observer.main_has_seen_everything(), f"after launch {launch}"


@pytest.mark.parametrize("forgotten", ["join", "beside"])
def test_waiting_too_little_would_be_seen(forgotten: str, observer: Observer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a join nobody waits for what is done beside; and that waits for nobody if its own waiting is left out."""
    wait = Stream.wait_stream
    main = observer.current[0]

    def careless(stream: Stream, other: Stream) -> None:
        if (stream is main) != (forgotten == "join"):
            wait(stream, other)
        elif stream is not main:
            stream.captured_with = other.captured_with

    monkeypatch.setattr(Stream, "wait_stream", careless)
    monkeypatch.setattr(observer, "main_has_seen_everything", lambda: True)
    make_updates(observer, FULL)
    assert observer.races


def test_fleets_of_a_thread_share_the_streams_beside_them(observer: Observer) -> None:
    for _ in range(3):
        make_updates(observer, FULL)
    assert len(observer.streams) == 2


def test_elsewhere_all_is_done_in_turn() -> None:
    lane, told = Lane(torch.device("cpu")), []
    with lane.beside():
        told.append("beside")
    told.append("after")
    lane.join()
    assert told == ["beside", "after"]
