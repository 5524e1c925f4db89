"""Members spread over GPUs, and over as many fleets, one after another, as memory asks for."""

import gc
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from math import ceil
from threading import Event, Lock

import torch

from tikas.model.ladder import Ladder
from tikas.training.devices import suitable_device
from tikas.training.engine import UPDATES_IN_A_REPLAY
from tikas.training.keeping import Kept, Memory
from tikas.training.loop import History, Job, Parted, Progress, Trained, TrainingDivergedError, train
from tikas.training.memory import bytes_of_a_member, free_bytes, shortage

SHARE_OF_MEMORY = 0.9
NO_MEMORY = ("out of memory", "DefaultCPUAllocator", "STATUS_ALLOC_FAILED", "ALLOCATION_FAILED")
"""How CUDA (of a graph, say), Triton, torch on a CPU and libraries say in other errors that no memory was left."""


def suitable_devices(asked: str | torch.device | None, members: int) -> list[torch.device]:
    """The device that was asked for; where it is any GPU, as many as there are members for, the current one first.

    Examples
    --------
    >>> suitable_devices("cpu", members=8)
    [device(type='cpu')]
    """
    device = suitable_device(asked)
    if device.type != "cuda" or device.index is not None:
        return [device]
    first, count = torch.cuda.current_device(), torch.cuda.device_count()
    return [torch.device("cuda", (first + place) % count) for place in range(min(count, members))]


def train_in_groups(job: Job, devices: Sequence[torch.device], on_epoch: Callable[[Progress], None] | None) -> Trained:
    """Train all members: each device its share of them, in fleets that fit; networks of others' making on the first.

    A fleet that runs out of memory all the same is split in two, and each half goes on for itself from where the fleet
    was last kept: members learn the same in any company. And where some diverge, the others go on without them.

    Raises
    ------
    TrainingDivergedError
        Where all of them did.

    Examples
    --------
    >>> from tikas.data.splits import split
    >>> from tikas.data.streams import Examples
    >>> from tikas.training.building import build_ladder
    >>> from tikas.training.recipe import Recipe
    >>> classes, recipe = torch.arange(60) % 3, Recipe(data="array", network=(5,), batch_size=20, epochs=2)
    >>> splits = [split(classes.numpy(), 9, seed=seed) for seed in (0, 1)]
    >>> job = Job(Examples(torch.rand(60, 8), classes, 3), splits, [recipe] * 2, [0, 1], None, build_ladder)
    >>> [len(history) for history in train_in_groups(job, [torch.device("cpu")], None).histories]
    [2, 2]
    """
    members = len(job.seeds)
    if len(devices) > 1 and not isinstance(job.build_member(0), Ladder):
        devices = devices[:1]  # what others wrote draws from torch's global generators, which all threads share
    size = ceil(members / len(devices))
    shares = [list(range(first, min(first + size, members))) for first in range(0, members, size)]
    reporter, stop = _Reporter(job, on_epoch), Event()
    if len(shares) == 1:
        parts = _train_share(job, shares[0], devices[0], reporter, stop)
    else:
        futures: list[Future[dict[int, Trained]]] = []

        def train_all() -> list[dict[int, Trained]]:
            for share, device in list(zip(shares, devices, strict=False))[len(futures) :]:
                futures.append(pool.submit(_train_share, job, share, device, reporter, stop))
                # where one has failed, other devices need not go on
                futures[-1].add_done_callback(lambda ended: stop.set() if ended.exception() else None)
            return [future.result() for future in futures]

        with ThreadPoolExecutor(len(shares)) as pool:
            try:
                done = train_all()
            except KeyboardInterrupt:  # perhaps before all had begun: those train for no epoch
                stop.set()
                done = train_all()
        parts = {member: part for share in done for member, part in share.items()}
    trained = [parts[member] for member in range(members)]
    diverged = {member: part.diverged[0] for member, part in enumerate(trained) if part.diverged}
    if len(diverged) == members:
        raise TrainingDivergedError(diverged)
    return Trained(
        [part.ladders[0] for part in trained],
        [part.histories[0] for part in trained],
        any(part.interrupted for part in trained),
        stop.is_set(),
        diverged,
    )


def _train_share(
    job: Job, members: Sequence[int], device: torch.device, reporter: "_Reporter", stop: Event
) -> dict[int, Trained]:
    """Train these members on one device, in as many fleets as it takes; what became of each."""
    plan = [group for alike in _by_epochs(job, members) for group in _groups(job, alike, device, reporter)]
    queue: list[tuple[list[int], list[Kept]]] = [(group, []) for group in plan]
    done: dict[int, Trained] = {}
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        while queue:
            group, kept = queue.pop(0)
            try:
                outcome = _train_group(job.of(group), device, reporter, stop, kept)
            except KeyboardInterrupt:  # while a fleet got ready: others, or it itself before, have learnt something
                if stop.is_set() or not (done or _in_memory(job, group)):
                    raise
                stop.set()
                outcome = _train_group(job.of(group), device, reporter, stop, kept)
            if outcome is None:
                half = len(group) // 2
                queue = [(group[:half], kept[:half]), (group[half:], kept[half:]), *queue]
                continue
            for place, member in enumerate(group):
                if place in outcome.diverged:
                    done[member] = _lost(job, member, outcome.diverged[place], stop)
                elif isinstance(outcome, Trained):
                    done[member] = Trained([outcome.ladders[place]], [outcome.histories[place]], outcome.interrupted)
            if isinstance(outcome, Parted):
                queue.insert(0, ([member for member in group if member not in done], outcome.others))
                epochs = len(outcome.others[0].history)
            elif len(outcome.diverged) == len(group):
                epochs = len(outcome.histories[0])
            else:
                continue
            try:
                reporter.loses(len(outcome.diverged), len(group), epochs)
                _make_room()
            except KeyboardInterrupt:  # the others will have no more epochs
                stop.set()
    return done


def _lost(job: Job, member: int, said: str, stop: Event) -> Trained:
    """A member that diverged, as it began; from where it was kept it would diverge again."""

    def as_it_began() -> Ladder:
        if job.keeping is not None:
            job.keeping.discard([job.names[member]])
        return job.build_member(member).eval()

    try:
        ladder = as_it_began()
    except KeyboardInterrupt:  # there is little left to do, and the others to lose
        stop.set()
        ladder = as_it_began()
    return Trained([ladder], [[]], interrupted=False, diverged={0: said})


def _train_group(
    job: Job, device: torch.device, reporter: "_Reporter", stop: Event, kept: list[Kept]
) -> Trained | Parted | None:
    """Train one fleet; None where it was too large for the device, and could be smaller.

    Raises
    ------
    torch.OutOfMemoryError
        Where it could not be smaller.
    """
    members, free, handled = len(job.seeds), free_bytes(device), sys.exception()
    start = _start(job, kept)
    finished = len(start[0].history) if start else 0

    def on_epoch(lines: History) -> None:
        nonlocal finished
        finished += 1
        kept.clear()  # an epoch has found the memory that it takes, so that they need not go on from here in halves
        reporter(lines)

    if not stop.is_set():  # or it will have no epoch
        reporter.starts(members, finished, free)
    try:
        trained = train(job, device, on_epoch, stop, start)
        if job.keeping is not None and isinstance(job.keeping.store, Memory):
            job.keeping.discard(job.names)
        return trained
    except (RuntimeError, MemoryError) as error:
        errors = _chain(error, handled)
        if not any(map(_out_of_memory, errors)):
            raise
        for each in errors:  # whose frames hold the fleet
            each.with_traceback(None)
    # Only here, where the error is gone, nothing holds on to the fleet any more but the circles that are in it.
    _make_room()
    if members == 1:
        of_rows = _bytes_to_bring(job, device)
        raise torch.OutOfMemoryError(
            shortage(device, reporter.needed, of_rows, free, job.recipes[0].batch_size)
        ) from errors[0]
    reporter.splits(members, finished)
    return None


def _start(job: Job, kept: list[Kept]) -> list[Kept] | None:
    """Where members begin: with what they are given, with what was kept of them, or with nothing."""
    if job.keeping is None:
        return list(kept) or None
    if kept:
        job.keeping.start_clock(job.names)
    return list(kept) or job.keeping.take_up(job.names)


def _in_memory(job: Job, members: Sequence[int]) -> bool:
    """Whether any of them was kept where it would be lost with the process."""
    store = None if job.keeping is None else job.keeping.store
    return isinstance(store, Memory) and any(job.names[member] in store for member in members)


def _make_room() -> None:
    gc.collect()
    torch.cuda.empty_cache()


def _chain(error: BaseException, handled: BaseException | None) -> list[BaseException]:
    """An error and those on whose way out it came up, as in a capture, up to one that the caller handles already."""
    chain = [error]
    while (before := chain[-1].__context__) is not None and before is not handled:
        chain.append(before)
    return chain


def _out_of_memory(error: BaseException) -> bool:
    """Whether memory was wanting, on a GPU or not."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(sign in str(error) for sign in NO_MEMORY)


def _by_epochs(job: Job, members: Sequence[int]) -> list[list[int]]:
    """Members parted by how many epochs they had when they were kept: those of one fleet have equally many."""
    epochs = {member: 0 if job.keeping is None else job.keeping.epochs(job.names[member]) for member in members}
    return [
        [member for member in members if epochs[member] == number]
        for number in sorted({*epochs.values()}, reverse=True)
    ]


def _groups(job: Job, members: Sequence[int], device: torch.device, reporter: "_Reporter") -> list[list[int]]:
    """Members that train together: all, or as many as there is memory for; networks of others' making one by one."""
    ladder, recipe = job.build_member(members[0]), job.recipes[0]
    unlabeled, labeled = job.splits[0].rows_of_an_update(recipe.batch_size, recipe.labeled_batch_size)
    block = UPDATES_IN_A_REPLAY if device.type == "cuda" else 1
    denoised, some = unlabeled if any(recipe.costs) else 0, job.examples.rows[:2]
    needed = bytes_of_a_member(ladder, denoised, labeled, block, some)
    left = SHARE_OF_MEMORY * free_bytes(device) - _bytes_to_bring(job, device)
    most = max(1, int(left // needed)) if isinstance(ladder, Ladder) else 1
    fleets = ceil(len(members) / most)
    size = ceil(len(members) / fleets)
    reporter.plans(fleets, needed)
    return [list(members[first : first + size]) for first in range(0, len(members), size)]


def _bytes_to_bring(job: Job, device: torch.device) -> int:
    """What the rows will take on a device, if they are not there yet."""
    rows = job.examples.rows
    return 0 if rows.device == device else rows.nbytes


class _Reporter:
    """Epochs counted over all fleets, whichever thread they train in."""

    def __init__(self, job: Job, on_epoch: Callable[[Progress], None] | None) -> None:
        self._on_epoch = on_epoch
        self._epochs = job.recipes[0].epochs
        self._fleets = self._done = self.needed = 0
        self._lock = Lock()

    def plans(self, fleets: int, needed: int) -> None:
        """So many fleets, of members that need so many bytes each: the same on all devices, which are of one kind."""
        with self._lock:
            self._fleets += fleets
            self.needed = needed

    def splits(self, members: int, lost: int) -> None:
        with self._lock:
            self._fleets += 1
            self._done -= lost
            self._tell([], f"out of memory: {members} members go on in two fleets")

    def loses(self, diverged: int, members: int, epochs: int) -> None:
        """So many of a fleet that has had so many epochs, which starts again without them, if any are left."""
        with self._lock:
            if diverged < members:
                self._tell([], f"{diverged} of {members} members diverged: the others go on")
                self._done -= epochs  # which it will say that it has had
            else:
                self._fleets -= 1
                self._done -= epochs
                self._tell([], f"{diverged} of {members} members diverged")

    def starts(self, members: int, epochs: int, free: int) -> None:
        """A fleet that has had so many epochs, on a device with so many bytes free."""
        with self._lock:
            self._done += epochs
            need = f"about {members * self.needed / 1e9:.2g} of {free / 1e9:.3g} GB"
            behind = f", going on after epoch {epochs}" if epochs else ""
            self._tell([], f"getting ready: {members} member{'s' * (members > 1)}, {need}{behind}")

    def __call__(self, lines: History) -> None:
        with self._lock:
            self._done += 1
            self._tell(lines, "")

    def _tell(self, lines: History, doing: str) -> None:
        if self._on_epoch is not None:
            self._on_epoch(Progress(self._done, self._fleets * self._epochs, lines, doing))
