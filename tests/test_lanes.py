"""Whatever a written-out update does on one stream, nobody on another reads or writes meanwhile.

Kernels are not run: the order in which they may run follows from who waits for whom, and what they read and write from
what they are given.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import pytest
import torch
from torch import Tensor

from tikas.data.splits import split
from tikas.data.streams import Examples, Streams
from tikas.training.building import build_ladder
from tikas.training.lanes import Lane
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

    def wait_stream(self, other: "Stream") -> None:
        self.seen = {one: max(self.seen.get(one, 0), other.seen.get(one, 0)) for one in self.seen | other.seen}


@dataclass
class Access:
    """Of the bytes from one to the other, by the so-manieth work of a stream."""

    first: int
    last: int
    written: bool
    stream: int
    work: int
    name: str

    def conflicts_with(self, other: "Access") -> bool:
        return (self.written or other.written) and self.first < other.last and other.first < self.last


@dataclass
class Observer:
    """Notes every access, and those that came without waiting for an earlier one of the same bytes."""

    current: list[Stream] = field(default_factory=lambda: [Stream()])
    accesses: list[Access] = field(default_factory=list)
    races: list[tuple[str, str]] = field(default_factory=list)

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        self.current.append(stream)
        try:
            yield
        finally:
            self.current.pop()

    def note(self, name: str, read: list[Tensor], written: list[Tensor]) -> None:
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
def observer(monkeypatch: pytest.MonkeyPatch) -> Observer:
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
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", observer.on)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: observer.current[-1])
    monkeypatch.setattr(fused, "Lane", lambda _, urgency=0: Lane(torch.device("cuda"), urgency))
    return observer


def make_updates(recipe: Recipe, replays: int = 2) -> None:
    """Of one member, whose tensors then lie one behind the other, in blocks of three."""
    from tikas.training.fused import FusedFleet

    classes, ladder = torch.arange(60) % 3, build_ladder(recipe, (16,), 3, seed=0)
    examples, splits = Examples(torch.rand(60, 16), classes, 3), [split(classes.numpy(), 9)]
    streams = Streams(examples, splits, [0], ladder.shapes, 20, 8, most_in_block=3, denoising=any(recipe.costs))
    fleet = FusedFleet([ladder], streams)
    streams.start_epoch()
    fleet.unlabeled_rows, fleet.labeled_rows = streams.unlabeled_plan, streams.labeled_plan
    fleet.rates = fleet.prepare_rates(torch.zeros(streams.updates)).float()
    for _ in range(replays):
        fleet.update_in_places(range(streams.block))


@pytest.mark.parametrize("name", RECIPES)
def test_nothing_is_touched_while_another_stream_works_with_it(name: str, observer: Observer) -> None:
    make_updates(RECIPES[name])
    assert observer.races == []
    assert {access.name for access in observer.accesses} >= {"product", "adam_kernel", "climb_back_kernel"}
    assert len({access.stream for access in observer.accesses}) == (2 if name in ("gamma", "baseline") else 3)


def test_after_a_block_nothing_is_under_way(observer: Observer) -> None:
    make_updates(FULL, replays=1)
    (main,) = observer.current
    assert all(main.seen[access.stream] >= access.work for access in observer.accesses)


@pytest.mark.parametrize("forgotten", ["join", "beside"])
def test_waiting_too_little_would_be_seen(forgotten: str, observer: Observer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a join nobody waits for what is done beside; and that waits for nobody if its own waiting is left out."""
    wait = Stream.wait_stream
    main = observer.current[0]

    def careless(stream: Stream, other: Stream) -> None:
        if (stream is main) != (forgotten == "join"):
            wait(stream, other)

    monkeypatch.setattr(Stream, "wait_stream", careless)
    make_updates(FULL)
    assert observer.races


def test_elsewhere_all_is_done_in_turn() -> None:
    lane, told = Lane(torch.device("cpu")), []
    with lane.beside():
        told.append("beside")
    told.append("after")
    lane.join()
    assert told == ["beside", "after"]
