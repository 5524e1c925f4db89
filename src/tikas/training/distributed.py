"""Training in several processes, which torchrun or the caller has started.

One member: the processes share the rows of each batch. Several members: each process trains some of them alone. Process
0 alone calls callbacks and, where rows are shared, reads and writes snapshots.

`join` makes this process one of them, `World` is what they tell each other, and `Watch` is the thread that finds out
which of them does not live any more.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache
from itertools import count
from math import inf
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, distributed, nn

from tikas.data.batches import Batches
from tikas.distributed import synchronize
from tikas.model.ladder import Costs, Model
from tikas.training.checkpoint import Checkpointer, Snapshot, differences
from tikas.training.engines import EagerEngine
from tikas.training.environment import deferred_signals, started_by_torchrun

if TYPE_CHECKING:
    from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

    from tikas.training.trainer import TrainingResult

MIN_TORCH = "2.9"
"""First version of torch for several processes. That of 2.6 holds Python's global lock while it destroys a process
group; if a thread of the group waits for the lock, the process hangs."""
BEAT = 1.0
"""Seconds between two signs of life of a process."""
SILENCE, SILENCE_AFTER_ERROR = 25.0, 6.0
"""Seconds without a sign of life after which a process counts as dead; fewer when another lost its connection."""
GRACE = 10.0
"""Seconds in which the main thread may leave the training after another process died; then the process is ended."""
MAX_PAUSE = 0.1
"""Seconds between two looks whether all processes have arrived."""
PATIENCE = 60.0
"""Seconds of waiting for other processes after which a message says so."""

_group_numbers = count()


class LostProcessError(RuntimeError):
    """Another process of a training died, or stopped with an error.

    Examples
    --------
    >>> issubclass(LostProcessError, RuntimeError)
    True
    """


@dataclass(frozen=True)
class World:
    """The processes that train together; by default there is this one alone.

    Parameters
    ----------
    rank, size : int
        Number of this process, and of all of them, if they share the rows of each batch; otherwise 0 and 1.
    is_first : bool
        Whether this is process 0, which alone calls callbacks.
    neighbors : int
        Number of processes on this machine, which share its memory.
    device : torch.device
        Where messages to the others are, as their backend needs it.
    watch : Watch, optional
        None if there are no others.

    Examples
    --------
    >>> world = World()
    >>> world.first([3, 4]), world.agree(10, signals=[2])
    ([3, 4], (10, 2, False))
    """

    rank: int = 0
    size: int = 1
    is_first: bool = True
    neighbors: int = 1
    device: str | torch.device = "cpu"
    watch: Watch | None = None

    @property
    def share(self) -> tuple[int, int]:
        """The part of each batch that this process takes, for `Batches`."""
        return self.rank, self.size

    def alone(self) -> World:
        """Return the world of a process that trains members of its own: it shares no rows."""
        return replace(self, rank=0, size=1)

    def check(self) -> None:
        """Raise LostProcessError if another process died or left the training."""
        if self.watch is not None:
            self.watch.check()

    def agree(self, number: int, signals: Sequence[int], *, ended: bool = False) -> tuple[int, int, bool]:
        """Return `number`, a signal that any process received (or 0), and `ended`; both others are process 0's."""
        self.check()
        received = signals[0] if signals else 0
        if self.size == 1:
            return number, received, ended
        own = [number, ended] if self.rank == 0 else [0, 0]
        agreed = torch.tensor([*own, received], device=self.device)
        distributed.all_reduce(agreed, distributed.ReduceOp.MAX)
        number, over, received = agreed.tolist()
        return number, received, bool(over)

    def first(self, value: Any) -> Any:
        """Return the value that process 0 has, which JSON can represent."""
        return value if self.size == 1 else json.loads(self._broadcast(json.dumps(value).encode()))

    def first_snapshots(self, snapshots: Sequence[Snapshot] | None) -> list[Snapshot] | None:
        """Return the snapshots that process 0 has, or None."""
        if self.size == 1:
            return None if snapshots is None else list(snapshots)
        found = []
        for number in range(self.first(-1 if snapshots is None else len(snapshots))):
            message = b""
            if snapshots is not None:
                tensors, history, updates, costs = snapshots[number]
                message = pack_message({**tensors, "epoch.costs": costs}, {"history": history, "updates": updates})
            tensors, header = unpack_message(self._broadcast(message))
            found.append(Snapshot(tensors, header["history"], header["updates"], tensors.pop("epoch.costs")))
        return found or None

    def join_rows(self, outputs: Tensor, dim: int) -> Tensor:
        """Return the rows of all processes, one after the other."""
        if self.size == 1:
            return outputs
        message = pack_message({"outputs": outputs}, {})
        return torch.cat([unpack_message(each)[0]["outputs"].to(outputs) for each in self.gather(message)], dim)

    def require_equal(self, identities: Sequence[Mapping[str, Any]]) -> None:
        """Raise ValueError if process 0 trains other members, or on other data, than this one."""
        first = self.first(list(identities))
        for own, other in zip(identities, first, strict=False):
            found = differences({"members": len(first), **other}, {"members": len(identities), **own})
            if found:
                changes = "; ".join(found).replace(" then, ", " in process 0, ").replace(" now", " in this one")
                raise ValueError(
                    f"The processes differ in {changes}. Give all of them the same settings and all rows: tikas "
                    "spreads the rows, or the members, itself. To train alone, start the process without the variables "
                    f"RANK and WORLD_SIZE, and without torch.distributed."
                )

    def gather(self, message: bytes) -> list[bytes]:
        """Return the message of every process."""
        size = torch.tensor([len(message)], device=self.device)
        sizes = [torch.zeros_like(size) for _ in range(self.size)]
        distributed.all_gather(sizes, size)
        longest = max(int(each) for each in sizes)
        padded = torch.zeros(longest, dtype=torch.uint8, device=self.device)
        padded[: len(message)] = torch.frombuffer(bytearray(message), dtype=torch.uint8)
        parts = [torch.empty_like(padded) for _ in range(self.size)]
        distributed.all_gather(parts, padded)
        return [part[: int(each)].cpu().numpy().tobytes() for part, each in zip(parts, sizes, strict=True)]

    def _broadcast(self, message: bytes) -> bytes:
        """Return the message of process 0."""
        size = torch.tensor([len(message)], device=self.device)
        distributed.broadcast(size, 0)
        content = torch.empty(int(size), dtype=torch.uint8, device=self.device)
        if self.rank == 0:
            content.copy_(torch.frombuffer(bytearray(message), dtype=torch.uint8))
        distributed.broadcast(content, 0)
        return content.cpu().numpy().tobytes()


class Watch:
    """Tells the other processes that this one lives, and finds out which of them does not.

    A thread sends a sign of life every second to a store in process 0, which tells all of a process that was silent for
    too long. If the main thread does not leave the training then, because it waits for the dead process in an operation
    that nothing can interrupt, a second thread ends this process. An error that ends the training in one process is
    told to the others in the same way.

    Silence is counted in beats, not seconds, so that processes that were all suspended are not found dead.

    Parameters
    ----------
    rank, size : int
    store : TCPStore
        Hosted by process 0, and used by nothing else.
    """

    def __init__(self, rank: int, size: int, store: TCPStore) -> None:
        self.rank, self.size, self.store = rank, size, store
        self.reason = ""
        """Why this training cannot go on; empty while it can."""
        self._training = False
        self._number = 0  # of trainings that have begun
        self._closed = threading.Event()
        self._beats = 0  # of this process
        self._store_lost = False
        self._seen = [
            (b"", 0)
        ] * size  # in process 0, of each process: its last sign of life, and at which beat it came
        store.set(f"name/{rank}", f"process {rank} of {size} (host {socket.gethostname()}, pid {os.getpid()})")
        store.set(f"beat/{rank}", "0")
        self._arrive("start")
        self._names = [name.decode() for name in store.multi_get([f"name/{each}" for each in range(size)])]
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._talk, self._guard)]
        for thread in self._threads:
            thread.start()

    @contextmanager
    def training(self) -> Iterator[None]:
        """Train in the block: it begins when all processes are there, and an error in it is told to them."""
        self._number += 1
        self._training = True
        try:
            self._arrive(f"training/{self._number}", "call fit")
            yield
        except BaseException as error:
            if _is_connection_error(error):
                raise LostProcessError(self._find_reason(error)) from error
            if not isinstance(error, LostProcessError):
                self._tell(error)
            raise
        finally:
            self._training = False

    def check(self) -> None:
        """Raise LostProcessError if another process died or left this training."""
        if self.reason:
            raise LostProcessError(self.reason)

    def finish(self) -> None:
        """Wait until all processes have trained their members."""
        self._arrive(f"training/{self._number}/finished")

    def close(self) -> None:
        """Tell the others that this process has finished. Process 0, which hosts the store, waits for them."""
        self._closed.set()
        if self._store_lost:
            return
        for thread in self._threads:
            thread.join()
        with suppress(RuntimeError):
            self.store.set(f"beat/{self.rank}", "left")
            deadline = time.monotonic() + GRACE
            while self.rank == 0 and not self._all_left() and time.monotonic() < deadline:
                time.sleep(MAX_PAUSE)

    def _arrive(self, place: str, missed: str = "") -> None:
        """Wait until all processes are at this place, however long; later on, a message says who `missed` a call."""
        arrived, pause = self.store.add(place, 1), 0.001
        complain_at = time.monotonic() + PATIENCE if missed else inf
        self.store.set(f"{place}/{self.rank}", "")
        while arrived < self.size:
            self.check()
            time.sleep(pause)
            pause = min(2 * pause, MAX_PAUSE)
            if time.monotonic() > complain_at:
                missing = [str(rank) for rank in range(self.size) if not self.store.check([f"{place}/{rank}"])]
                print(
                    f"tikas: process {self.rank} waits for process {', '.join(missing)} to {missed}.", file=sys.stderr
                )
                complain_at = inf
            arrived = self.store.add(place, 0)

    def _talk(self) -> None:
        """Send signs of life, and ask the store why the training cannot go on."""
        while not self._closed.wait(BEAT):
            try:
                self.store.set(f"beat/{self.rank}", str(self._beats))
                if self.rank == 0:
                    self._look_for_silence()
                self.reason = self._told()
            except RuntimeError:
                self._lose_store()
                return
            self._beats += 1

    def _guard(self) -> None:
        """End this process if its main thread cannot leave a training that cannot go on."""
        beats, silent, stuck = 0, 0, 0
        while not self._closed.wait(BEAT):
            silent = 0 if self._beats > beats else silent + 1
            beats = self._beats
            if self.rank > 0 and silent > SILENCE / BEAT:  # the other thread waits for an answer of the store
                self._lose_store()
            stuck = stuck + 1 if self.reason and self._training else 0
            if stuck > GRACE / BEAT:
                print(f"tikas: {self.reason}", file=sys.stderr, flush=True)
                os._exit(1)

    def _look_for_silence(self) -> None:
        """In process 0: tell all of a process that was silent for too long."""
        signs = self.store.multi_get([f"beat/{rank}" for rank in range(self.size)])
        self._seen = [
            seen if sign == seen[0] else (sign, self._beats) for sign, seen in zip(signs, self._seen, strict=True)
        ]
        limit = SILENCE_AFTER_ERROR if self.store.check(["trouble"]) else SILENCE
        since, rank = min((since, rank) for rank, (sign, since) in enumerate(self._seen) if sign != b"left")
        if self._beats - since > limit / BEAT:
            self.store.set("dead", f"{self._names[rank]} died")

    def _told(self) -> str:
        """Return why this training cannot go on, as far as the store says."""
        for key in ("dead", f"training/{self._number}/failed"):
            if self.store.check([key]):
                told = self.store.get(key).decode()
                return "" if told.startswith(f"{self._names[self.rank]} ") else self._cannot_continue(told)
        return ""

    def _lose_store(self) -> None:
        """Conclude that process 0, which hosts the store, died."""
        self._store_lost = True
        self.reason = self._cannot_continue(f"{self._names[0]} died")

    def _cannot_continue(self, event: str) -> str:
        return (
            f"{event}, and process {self.rank} cannot continue without it. With snapshots, the same command continues "
            "from the last one, also with another number of processes."
        )

    def _tell(self, error: BaseException) -> None:
        """Tell the others which error ends the training here."""
        with suppress(RuntimeError):
            text = f"{self._names[self.rank]} stopped ({type(error).__name__}: {error})"
            self.store.compare_set(f"training/{self._number}/failed", "", text)

    def _find_reason(self, error: BaseException) -> str:
        """Wait until it is known which process is gone, after the connection to it was lost."""
        self._wait_for_reason(2 * BEAT)  # if process 0 is gone, the store is gone too, and asking would fail
        if not self.reason:
            with suppress(RuntimeError):
                self.store.set("trouble", "")
            self._wait_for_reason(2 * SILENCE_AFTER_ERROR)
        return self.reason or self._cannot_continue(f"The connection to another process was lost ({error})")

    def _wait_for_reason(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not self.reason and time.monotonic() < deadline:
            time.sleep(MAX_PAUSE)

    def _all_left(self) -> bool:
        beats = self.store.multi_get([f"beat/{rank}" for rank in range(self.size)])
        return self.store.check(["dead"]) or all(beat == b"left" for beat in beats)


def _is_connection_error(error: BaseException) -> bool:
    """Return whether an operation of torch.distributed failed because another process is gone."""
    if isinstance(error, distributed.DistError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error) for word in ("gloo", "Connection closed"))


_joined: list[World] = []
"""The world that this process has joined, at most one: like torch's own process group, it belongs to the process."""


@contextmanager
def join(device: torch.device) -> Iterator[World]:
    """Join the other processes for the block, if there are any: those of an initialized process group, or torchrun's.

    Within a block, other blocks have the same world.
    """
    if _joined:
        yield _joined[0]
        return
    initialized = distributed.is_available() and distributed.is_initialized()
    if not (initialized or started_by_torchrun()) or (initialized and distributed.get_world_size() == 1):
        yield World()
        return
    with ExitStack() as stack:
        if not initialized:
            if device.type == "cuda":
                stack.enter_context(torch.cuda.device(device))
            _init_process_group(device)
        rank, size = distributed.get_rank(), distributed.get_world_size()
        by_gpu = distributed.get_backend() == distributed.Backend.NCCL
        neighbors = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        world = World(rank, size, rank == 0, neighbors, device if by_gpu else "cpu")
        watch = Watch(rank, size, _watch_store(world))
        stack.callback(watch.close)
        if not initialized:  # before the watch closes: it is how processes that wait for this one learn of an error
            stack.callback(distributed.destroy_process_group)
        stack.callback(_joined.clear)
        _joined.append(replace(world, watch=watch))
        yield _joined[0]


@contextmanager
def train_together(device: torch.device) -> Iterator[World]:
    """Join the other processes, if there are any, and begin a training when all of them do."""
    with join(device) as world, nullcontext() if world.watch is None else world.watch.training():
        yield world


def _init_process_group(device: torch.device) -> None:
    """Initialize torch's process group from the variables of torchrun."""
    if torch.__version__ < MIN_TORCH:
        raise RuntimeError(
            f"Training in several processes needs torch {MIN_TORCH} or newer, and this is {torch.__version__}. "
            "Update torch, or train in one process."
        )
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]

    store, rank, size = _rendezvous()
    # A store keeps the addresses of earlier groups, also over restarts, so each group has a prefix of its own.
    store = PrefixStore(f"tikas/{os.environ.get('TORCHELASTIC_RESTART_COUNT')}/{next(_group_numbers)}", store)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    distributed.init_process_group(backend, store=store, rank=rank, world_size=size)


@cache
def _rendezvous() -> tuple[Store, int, int]:
    """Return the store that torchrun provides, the number of this process and the number of processes."""
    from torch.distributed import rendezvous  # type: ignore[attr-defined]

    found: tuple[Store, int, int] = next(rendezvous("env://"))
    return found


def _watch_store(world: World) -> TCPStore:
    """Return a store for `Watch`, hosted by process 0 on a free port."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    timeout = timedelta(seconds=SILENCE)
    if world.is_first:
        host = os.environ.get("MASTER_ADDR") or socket.gethostname()
        store = TCPStore(host, 0, world.size, True, timeout, wait_for_workers=False)
        world.first([host, store.port])
        return store
    host, port = world.first(None)
    return TCPStore(host, port, world.size, False, timeout)


# Messages: tensors with a JSON header, as bytes


def pack_message(tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> bytes:
    """Return tensors and a header as bytes."""
    from safetensors.torch import save

    text = torch.frombuffer(bytearray(json.dumps(header).encode()), dtype=torch.uint8)
    message: bytes = save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()} | {"": text})
    return message


def unpack_message(message: bytes) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the header of a message."""
    from safetensors.torch import load

    tensors = load(message)
    header: dict[str, Any] = json.loads(tensors.pop("").numpy().tobytes())
    return tensors, header


# Rows that processes share


class DistributedEngine(EagerEngine):
    """Trains a member eagerly on this process's rows of each batch.

    Statistics and costs are those of the whole batch, and the gradients of all processes are averaged: parameters and
    Adam's moments stay the same on all of them.
    """

    def __init__(self, models: Sequence[Model], batches: Batches) -> None:
        super().__init__(models, batches)
        synchronize(cast(nn.Module, self.model))
        self._parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        with torch.no_grad():
            for tensor in self.model.state_dict().values():  # user modules may differ: process 0's count
                distributed.broadcast(tensor, 0)

    def backward(self, costs: Costs) -> None:
        """Compute the gradients, and average them in one all-reduce."""
        super().backward(costs)
        for parameter in self._parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = [cast(Tensor, parameter.grad) for parameter in self._parameters]
        joined = torch.cat([gradient.flatten() for gradient in gradients])
        distributed.all_reduce(joined)
        parts = joined.div_(self.batches.share[1]).split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))  # in place: Adam needs gradients in the layout of their parameters


# Members that are spread over processes


def gather_members(
    world: World, result: TrainingResult, build: Callable[[int], Model], checkpointer: Checkpointer | None
) -> None:
    """Add to the result of this process what the others have trained; `build` builds a member.

    Processes that have finished their members wait for the others, also after a first Ctrl-C or SIGTERM.
    """
    assert world.watch is not None
    resumed_after = {} if checkpointer is None else checkpointer.resumed_after
    with deferred_signals(enabled=True) as signals:
        world.watch.finish()
        result.interrupted = result.interrupted or bool(signals)
        tensors: dict[str, Tensor] = {}
        for index, model in zip(result.indices, result.members, strict=True):
            state = model.state_dict().items()
            tensors |= {f"{index} {name}": tensor for name, tensor in state if isinstance(tensor, Tensor)}
        own = {name: getattr(result, name) for name in ("indices", "seeds", "histories", "interrupted")}
        header = {**own, "failed": list(result.failed.items()), "resumed_after": resumed_after}
        messages = world.gather(pack_message(tensors, header))
    for rank, message in enumerate(messages):
        if rank == world.rank:
            continue
        tensors, header = unpack_message(message)
        for index in header["indices"]:
            model = build(index).eval()
            with torch.no_grad():
                for name, tensor in model.state_dict().items():
                    if isinstance(tensor, Tensor):
                        tensor.copy_(tensors[f"{index} {name}"])
            result.members.append(model)
        for name in ("indices", "seeds", "histories"):
            getattr(result, name).extend(header[name])
        result.failed |= dict(header["failed"])
        result.interrupted |= header["interrupted"]
        resumed_after |= header["resumed_after"]
    if signal.SIGTERM in signals:
        signal.raise_signal(signal.SIGTERM)
