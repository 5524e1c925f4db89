"""The labeled and unlabeled batches of each epoch, and the noise of each update, for one member or many.

The rows stay on their device, or in files; an epoch draws only their indices. Each member draws from its own
generators, seeded only by its seed, so its batches and noise are the same alone and in an ensemble.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from math import ceil, prod
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tikas.data.sources import RowSource
from tikas.data.splits import Split

WINDOW_BYTES = 2**27
"""Rows of a member that `StreamedBatches` holds at a time; as many are read ahead. They are shuffled as far as this."""


class Batch(NamedTuple):
    """The arguments of `Model.costs` for one update; with several members each tensor has a leading member dimension.

    ``unlabeled (unlabeled rows, *shape)``, ``labeled (labeled rows, *shape)``, ``targets (labeled rows, ...)``,
    ``noise``: standard normal, one tensor ``(labeled + unlabeled rows, *shape of the level)`` for each level,
    ``weights (labeled rows,)`` or None.
    """

    unlabeled: Tensor
    labeled: Tensor
    targets: Tensor
    noise: list[Tensor]
    weights: Tensor | None


def generator(seed: int, purpose: str, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a generator seeded by `seed` and `purpose`, so that draws for different purposes are independent."""
    state = np.random.SeedSequence([seed, *purpose.encode()]).generate_state(1, np.uint64)[0]
    return torch.Generator(device).manual_seed(int(state) & (2**63 - 1))


class Batches:
    """The batches of every epoch, for one member or for several with a leading member dimension.

    Unlabeled rows are shuffled every epoch; rows that do not fill a batch are left out of that epoch. Labeled rows are
    shuffled as often as needed, and the shuffled rows are cut into batches of `labeled_batch_size`. If every row is
    labeled, the labeled batch contains the same rows as the unlabeled one, with different noise.

    Parameters
    ----------
    rows : Tensor of shape (n, *shape)
        On the device to train on.
    targets : Tensor of shape (n,) or (n, outputs)
        Class codes or values; not used where a row is not labeled.
    weights : Tensor of shape (n,) or None
        Weight of each row's label; None if all are equal.
    splits, seeds : sequence, one per member
    shapes : sequence of tuple of int
        Shape of each level of the model, for the noise.
    batch_size, labeled_batch_size : int
    block : int, default=1
        Largest number of updates whose noise is drawn at once. The largest divisor of `updates` up to this is used.
    denoising : bool, default=True
        Whether any denoising cost is used. If not, batches contain no unlabeled rows.
    share : tuple of int, default=(0, 1)
        Number of this process, and of the processes that share the rows of each batch (of a single member). All draw
        the same orders and noise, and each takes its rows of them.

    Attributes
    ----------
    updates : int
        Updates per epoch.
    denoised_batch_size : int
        Unlabeled rows of a batch: `batch_size`, or 0 without denoising.
    unlabeled_plan, labeled_plan : Tensor of shape (updates, *members, rows)
        Row indices of each update of this epoch: where its rows are in `rows`.
    noise : Tensor of shape (*members, block, values)
        Noise of a block of updates; `values` are those of all rows and levels of an update, level by level.
    """

    def __init__(
        self,
        rows: Tensor,
        targets: Tensor,
        weights: Tensor | None,
        splits: Sequence[Split],
        seeds: Sequence[int],
        shapes: Sequence[tuple[int, ...]],
        batch_size: int,
        labeled_batch_size: int,
        *,
        block: int = 1,
        denoising: bool = True,
        share: tuple[int, int] = (0, 1),
    ) -> None:
        self.share = share
        self.rows, self.targets, self.weights = rows, targets, weights
        self.device = device = rows.device
        self._splits, self._seeds, self._shapes = splits, seeds, shapes
        self._set_splits(len(rows), device)
        self._noise = [generator(seed, "noise", device) for seed in seeds]
        self.batch_size, self.labeled_batch_size = splits[0].batch_sizes(batch_size, labeled_batch_size)
        self.denoised_batch_size = self.batch_size if denoising else 0
        self.updates = len(splits[0].unlabeled) // self.batch_size
        self.block = _largest_divisor(self.updates, block)
        members = () if len(seeds) == 1 else (len(seeds),)
        self._sizes = [(self.denoised_batch_size + self.labeled_batch_size) * prod(shape) for shape in shapes]
        self.noise = rows.new_empty(*members, self.block, sum(self._sizes))
        self.unlabeled_plan = self.labeled_plan = torch.empty(0)
        self._position = 0  # the first update of this epoch whose noise is not drawn yet
        self._order_at_start = self._order_state()

    def _set_splits(self, n_rows: int, device: torch.device) -> None:
        """Set the indices of each member's rows, and the generators that shuffle them, on this device."""
        self.n_rows, self._order_device = n_rows, device
        # Beside millions of rows indices of 8 bytes are not small; kernels on a GPU take no others.
        self._index_dtype = torch.int32 if device.type == "cpu" and n_rows < 2**31 else torch.int64
        self._unlabeled: list[Tensor | None] = [  # None: all rows
            None if len(split.unlabeled) == n_rows else self._indices(split.unlabeled, device) for split in self._splits
        ]
        self._labeled = [self._indices(split.labeled, device) for split in self._splits]
        self._order = [generator(seed, "order", device) for seed in self._seeds]

    def _indices(self, rows: NDArray[np.int64], device: torch.device) -> Tensor:
        return torch.as_tensor(rows, dtype=self._index_dtype, device=device)

    def start_epoch(self) -> None:
        """Draw the row indices of every update of the next epoch."""
        self._position = 0
        self._order_at_start = self._order_state()
        self.unlabeled_plan = self.labeled_plan = torch.empty(0)  # frees those of the last epoch
        self.unlabeled_plan, self.labeled_plan = self._draw_plans()

    def _draw_plans(self) -> tuple[Tensor, Tensor]:
        """Draw the indices of the unlabeled and of the labeled rows of every update, ``(updates, *members, rows)``."""
        members = list(zip(self._unlabeled, self._labeled, self._order, strict=True))
        unlabeled = _stack([self._draw_unlabeled(rows, order) for rows, _, order in members])
        if self._splits[0].fully_labeled:
            return unlabeled, unlabeled
        return unlabeled, _stack([self._draw_labeled(rows, order) for _, rows, order in members])

    def _draw_unlabeled(self, rows: Tensor | None, generator: torch.Generator) -> Tensor:
        count = self.n_rows if rows is None else len(rows)
        order = torch.randperm(count, generator=generator, device=self._order_device, dtype=self._index_dtype)
        order = order[: self.updates * self.batch_size]
        return (order if rows is None else rows[order]).view(self.updates, self.batch_size)

    def _draw_labeled(self, rows: Tensor, generator: torch.Generator) -> Tensor:
        needed = self.updates * self.labeled_batch_size
        shape = ceil(needed / len(rows)), len(rows)
        keys = torch.rand(shape, generator=generator, device=self._order_device, dtype=torch.float32)
        return rows[keys.argsort(-1).flatten()[:needed]].view(self.updates, self.labeled_batch_size)

    def load(self, update: int) -> None:
        """Have the rows of the block of updates that begins with this update of the epoch in `rows`."""

    def close(self) -> None:
        """End what reads rows."""

    def start_block(self, update: int) -> None:
        """Load the rows of the block of updates that begins with this update of the epoch, and draw its noise."""
        self.load(update)
        self._position = (update + self.block) % self.updates
        for generator, noise in zip(self._noise, self.noise.view(len(self._noise), -1), strict=True):
            noise.normal_(generator=generator)

    def batch(self, update: int) -> Batch:
        """Return the batch of one update of this epoch; updates must be asked for in order, from 0."""
        if update % self.block == 0:
            self.start_block(update)
        return self.assemble(self.unlabeled_plan[update], self.labeled_plan[update], update % self.block)

    def assemble(self, unlabeled: Tensor, labeled: Tensor, position: int) -> Batch:
        """Return the batch of these row indices ``(*members, rows)``, with the noise at `position` of the block."""
        count = self.denoised_batch_size + self.labeled_batch_size
        levels = torch.split(self.noise.select(-2, position), self._sizes, -1)
        noise = [_level_noise(level, count, shape) for level, shape in zip(levels, self._shapes, strict=True)]
        unlabeled = unlabeled[..., : self.denoised_batch_size]
        if self.share[1] > 1:
            sizes = self.labeled_batch_size, self.denoised_batch_size
            noise = [torch.cat([part_of(rows, self.share) for rows in level.split(sizes)]) for level in noise]
            unlabeled, labeled = part_of(unlabeled, self.share), part_of(labeled, self.share)
        return Batch(
            self.rows[unlabeled],
            self.rows[labeled],
            self.targets[labeled],
            noise,
            None if self.weights is None else self.weights[labeled],
        )

    def for_member(self, member: int) -> Batches:
        """Return the batches of one member alone, from its first epoch on."""
        return Batches(
            self.rows,
            self.targets,
            self.weights,
            [self._splits[member]],
            [self._seeds[member]],
            self._shapes,
            self.batch_size,
            self.labeled_batch_size,
            block=self.block,
            denoising=self.denoised_batch_size > 0,
        )

    def state_dict(self) -> dict[str, Tensor]:
        """Return the states of the generators, each ``(members, bytes)`` on the CPU.

        ``order`` is from the start of this epoch (between two epochs, of the next one), ``noise`` is the current state.
        """
        order = self._order_at_start if self._position else self._order_state()
        return {"order": order, "noise": torch.stack([generator.get_state() for generator in self._noise])}

    def load_state_dict(self, state: Mapping[str, Tensor], update: int = 0) -> None:
        """Continue the draws from a `state_dict` saved on the same kind of device, before this update of an epoch."""
        for generators, saved in ((self._order, state["order"]), (self._noise, state["noise"])):
            for generator, member_state in zip(generators, saved, strict=True):
                # clone: set_state of torch 2.13 crashes on a view that does not begin its storage
                generator.set_state(member_state.clone())
        if update:
            self.start_epoch()
            self._position = update

    def _order_state(self) -> Tensor:
        return torch.stack([generator.get_state() for generator in self._order])


def part_of(rows: Tensor, share: tuple[int, int], dim: int = 0) -> Tensor:
    """Return the part of some rows that a process takes: consecutive ones, and of each number about equally many."""
    rank, processes = share
    first, end = (rows.shape[dim] * number // processes for number in (rank, rank + 1))
    return rows.narrow(dim, first, end - first)


class StreamedBatches(Batches):
    """Batches of rows that are read while the members train, so that they need not fit into memory.

    `rows` is a buffer: the labeled rows, which stay there, and for each member two windows, each with the rows of
    some consecutive updates. While one is trained on, a thread reads the rows of the other.

    Where single rows are read fast enough, epochs are shuffled as in `Batches`, and these are the same batches. Rows in
    blocks are shuffled in two steps: the blocks are put in random order and cut into windows, and then the rows of each
    window are shuffled. So a window has the rows of a few blocks. The order depends on the seed and the number of rows
    of a window, and on nothing that happens during the training.

    Parameters
    ----------
    source : RowSource
    targets, weights : Tensor
        Those of all rows, in memory.
    splits, seeds, shapes, batch_size, labeled_batch_size, block, denoising, share
        As for `Batches`. Processes that share batches all read all rows.
    device : torch.device
        Where to train.

    Attributes
    ----------
    window : int
        Number of updates whose rows are in a window.
    """

    def __init__(
        self,
        source: RowSource,
        targets: Tensor,
        weights: Tensor | None,
        splits: Sequence[Split],
        seeds: Sequence[int],
        shapes: Sequence[tuple[int, ...]],
        batch_size: int,
        labeled_batch_size: int,
        *,
        device: torch.device,
        block: int = 1,
        denoising: bool = True,
        share: tuple[int, int] = (0, 1),
    ) -> None:
        self._source, self._all_targets, self._all_weights = source, targets.cpu(), weights
        fully_labeled = splits[0].fully_labeled
        size, _ = splits[0].batch_sizes(batch_size, labeled_batch_size)
        updates = len(splits[0].unlabeled) // size
        block = _largest_divisor(updates, block)
        bytes_per_block = source.dtype.itemsize * prod(source.shape[1:]) * size * block
        self.window = min(updates, block * max(1, WINDOW_BYTES // bytes_per_block))
        self._window_rows = self.window * size if denoising or fully_labeled else 0
        kept = np.empty(0, np.int64) if fully_labeled else np.unique(np.concatenate([each.labeled for each in splits]))
        self._kept = len(kept)
        length = self._kept + 2 * len(seeds) * self._window_rows

        def buffer(like: Tensor, shape: tuple[int, ...]) -> Tensor:
            return torch.zeros(length, *shape, dtype=like.dtype, device=device)

        rows = torch.zeros(length, *source.shape[1:], dtype=torch.float32, device=device)
        super().__init__(
            rows,
            buffer(targets, targets.shape[1:]),
            None if weights is None else buffer(weights, ()),
            splits,
            seeds,
            shapes,
            batch_size,
            labeled_batch_size,
            block=block,
            denoising=denoising,
            share=share,
        )
        cpu = torch.device("cpu")
        self._set_splits(len(source), cpu)  # rows are read by their numbers
        self._order_at_start = self._order_state()
        if self._kept:
            self._write(0, source.take(kept), kept)
            self._labeled = [self._indices(np.searchsorted(kept, each.labeled), cpu) for each in splits]
        self._wanted = torch.empty(0)
        """Numbers of the rows of each update of this epoch, ``(updates, members, rows)``."""
        self._windows_before = 0
        """Windows of earlier epochs. Windows take turns in the two halves of the buffer."""
        self._loaded = -1
        """The last window, counted from the first epoch on, that is in the buffer."""
        self._executor = ThreadPoolExecutor(1, "tikas-rows")
        self._reading: tuple[int, Future[list[_Read]]] | None = None
        """The window that is being read."""

    _next: tuple[Tensor, tuple[Tensor, Tensor]] | None = None
    """The plans of the next epoch, if they are drawn already, and the states of the generators before that."""

    def start_epoch(self) -> None:
        """Draw the rows of every update of the next epoch."""
        if self._wanted.numel():
            self._windows_before += ceil(self.updates / self.window)
        self._position = 0
        self.unlabeled_plan = self.labeled_plan = self._wanted = torch.empty(0)
        self._order_at_start, (unlabeled, labeled) = self._next or self._draw_next()
        self._next = None
        self._wanted = self._by_member(unlabeled)
        self.unlabeled_plan = self._positions()
        fully_labeled = self._splits[0].fully_labeled
        self.labeled_plan = self.unlabeled_plan if fully_labeled else labeled.to(self.unlabeled_plan)

    def _draw_next(self) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        return self._order_state(), self._draw_plans()

    def _by_member(self, plan: Tensor) -> Tensor:
        return plan.view(self.updates, len(self._seeds), self.batch_size)

    def _draw_unlabeled(self, rows: Tensor | None, generator: torch.Generator) -> Tensor:
        edges = self._source.block_edges
        if edges is None:
            return super()._draw_unlabeled(rows, generator)
        if rows is None:
            rows = torch.arange(self.n_rows, dtype=self._index_dtype)
        else:
            edges = np.searchsorted(rows.numpy(), edges)
        blocks = torch.randperm(len(edges) - 1, generator=generator).tolist()
        order = torch.cat([rows[edges[block] : edges[block + 1]] for block in blocks])
        order = order[: self.updates * self.batch_size]
        for window in order.split(self.window * self.batch_size):
            window.copy_(window[torch.randperm(len(window), generator=generator)])
        return order.view(self.updates, self.batch_size)

    def _positions(self) -> Tensor:
        """Return where in the buffer the rows of each update will be, ``(updates, *members, rows)``."""
        updates = torch.arange(self.updates)
        halves = (self._windows_before + updates // self.window) % 2
        first = self._start(halves, 0) + updates % self.window * self.batch_size
        rows = torch.arange(len(self._seeds))[:, None] * self._window_rows + torch.arange(self.batch_size)
        dtype = torch.int32 if self.device.type == "cpu" else torch.int64
        positions = torch.empty(self.updates, *rows.shape, dtype=dtype)
        torch.add(first[:, None, None], rows, out=positions)
        return _stack(list(positions.to(self.device).unbind(1)))

    def _start(self, half: Tensor | int, member: int) -> Any:
        """Return where in the buffer a half of a member begins."""
        return self._kept + (half * len(self._seeds) + member) * self._window_rows

    def load(self, update: int) -> None:
        """Have the rows of the block of updates that begins with this update in `rows`, and begin to read the next."""
        number = update // self.window
        window = self._windows_before + number
        if window == self._loaded or not self._window_rows:
            return
        if self._reading is None or self._reading[0] != window:  # in the first epoch, and after an interruption
            self._begin_to_read(window, self._wanted, number)
        assert self._reading is not None
        for read in self._reading[1].result():
            self._write(*read)
        self._loaded, self._reading = window, None
        if (number + 1) * self.window < self.updates:
            self._begin_to_read(window + 1, self._wanted, number + 1)
        else:
            self._next = self._draw_next()
            self._begin_to_read(window + 1, self._by_member(self._next[1][0]), 0)

    def _begin_to_read(self, window: int, wanted: Tensor, number: int) -> None:
        """Read a window, the one of this number in the epoch that wants these rows, in the other thread."""
        self._wait()
        rows = wanted[number * self.window : (number + 1) * self.window]
        self._reading = window, self._executor.submit(self._read, window % 2, rows)

    def _read(self, half: int, wanted: Tensor) -> list[_Read]:
        """Read the rows of a window; write them into the buffer, or return them if it is on a GPU."""
        found = []
        for member, rows in enumerate(wanted.unbind(1)):
            numbers = rows.flatten().numpy().astype(np.int64)
            read = _Read(self._start(half, member), self._source.take(numbers), numbers)
            if self.device.type == "cpu":
                self._write(*read)
            else:  # in the order of the updates, which are queued by the other thread
                found.append(read)
        return found

    def _write(self, start: int, values: NDArray[np.float32], numbers: NDArray[np.int64]) -> None:
        """Write rows of these numbers, with their targets and weights, into the buffer."""
        place = slice(start, start + len(numbers))
        self.rows[place] = torch.from_numpy(values)
        if start < self._kept or self._splits[0].fully_labeled:
            chosen = torch.from_numpy(numbers)
            self.targets[place] = self._all_targets[chosen].to(self.device)
            if self.weights is not None and self._all_weights is not None:
                self.weights[place] = self._all_weights[chosen].to(self.device)

    def _wait(self) -> None:
        """Wait until nothing is being read."""
        if self._reading is not None:
            wait([self._reading[1]])
        self._reading = None

    def close(self) -> None:
        """End the thread that reads rows."""
        self._executor.shutdown(cancel_futures=True)

    def for_member(self, member: int) -> Batches:
        """Return the batches of one member alone, from its first epoch on."""
        return StreamedBatches(
            self._source,
            self._all_targets,
            self._all_weights,
            [self._splits[member]],
            [self._seeds[member]],
            self._shapes,
            self.batch_size,
            self.labeled_batch_size,
            device=self.device,
            block=self.block,
            denoising=self.denoised_batch_size > 0,
        )

    def load_state_dict(self, state: Mapping[str, Tensor], update: int = 0) -> None:
        """Continue the draws from a `state_dict` saved on the same kind of device, before this update of an epoch."""
        self._wait()
        self._next, self._loaded = None, -1
        super().load_state_dict(state, update)

    def _order_state(self) -> Tensor:
        return super()._order_state() if self._next is None else self._next[0]


class _Read(NamedTuple):
    """Rows that were read, their numbers, and where in the buffer they go."""

    start: int
    values: NDArray[np.float32]
    numbers: NDArray[np.int64]


def _largest_divisor(number: int, limit: int) -> int:
    return max(size for size in range(1, limit + 1) if number % size == 0)


def _level_noise(noise: Tensor, rows: int, shape: tuple[int, ...]) -> Tensor:
    """Reshape a level's noise to ``(*members, rows, *shape)``; on maps, it is channels-last in memory."""
    if len(shape) != 3:
        return noise.view(*noise.shape[:-1], rows, *shape)
    channels, *sides = shape
    return noise.view(*noise.shape[:-1], rows, *sides, channels).movedim(-1, -3)


def _stack(plans: list[Tensor]) -> Tensor:
    """Stack plans ``(updates, rows)`` to ``(updates, members, rows)``; the plan of a single member stays as it is."""
    return plans[0] if len(plans) == 1 else torch.stack(plans, 1)
