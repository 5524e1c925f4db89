"""The labeled and unlabeled batches of each epoch, and the noise of each update, for one member or many.

The rows stay on their device; an epoch draws only their indices. Each member draws from its own generators, seeded only
by its seed, so its batches and noise are the same alone and in an ensemble.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, prod
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tikas.data.splits import Split


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
        Row indices of each update of this epoch.
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
        self._unlabeled = [torch.as_tensor(split.unlabeled, device=device) for split in splits]
        self._labeled = [torch.as_tensor(split.labeled, device=device) for split in splits]
        self._order = [generator(seed, "order", device) for seed in seeds]
        self._noise = [generator(seed, "noise", device) for seed in seeds]
        self.batch_size, self.labeled_batch_size = splits[0].batch_sizes(batch_size, labeled_batch_size)
        self.denoised_batch_size = self.batch_size if denoising else 0
        self.updates = len(self._unlabeled[0]) // self.batch_size
        self.block = max(size for size in range(1, block + 1) if self.updates % size == 0)
        members = () if len(seeds) == 1 else (len(seeds),)
        self._sizes = [(self.denoised_batch_size + self.labeled_batch_size) * prod(shape) for shape in shapes]
        self.noise = rows.new_empty(*members, self.block, sum(self._sizes))
        self.unlabeled_plan = self.labeled_plan = torch.empty(0)
        self._position = 0  # the first update of this epoch whose noise is not drawn yet
        self._order_at_start = self._order_state()

    def start_epoch(self) -> None:
        """Draw the row indices of every update of the next epoch."""
        self._position = 0
        self._order_at_start = self._order_state()
        self.unlabeled_plan = _stack(
            [self._draw_unlabeled(rows, order) for rows, order in zip(self._unlabeled, self._order, strict=True)]
        )
        if self._splits[0].fully_labeled:
            self.labeled_plan = self.unlabeled_plan
        else:
            self.labeled_plan = _stack(
                [self._draw_labeled(rows, order) for rows, order in zip(self._labeled, self._order, strict=True)]
            )

    def _draw_unlabeled(self, rows: Tensor, generator: torch.Generator) -> Tensor:
        order = torch.randperm(len(rows), generator=generator, device=self.device)
        return rows[order[: self.updates * self.batch_size]].view(self.updates, self.batch_size)

    def _draw_labeled(self, rows: Tensor, generator: torch.Generator) -> Tensor:
        needed = self.updates * self.labeled_batch_size
        shape = ceil(needed / len(rows)), len(rows)
        keys = torch.rand(shape, generator=generator, device=self.device, dtype=torch.float32)
        return rows[keys.argsort(-1).flatten()[:needed]].view(self.updates, self.labeled_batch_size)

    def draw_noise(self, update: int) -> None:
        """Draw the noise of the block of updates that begins with this update of the epoch."""
        self._position = (update + self.block) % self.updates
        for generator, noise in zip(self._noise, self.noise.view(len(self._noise), -1), strict=True):
            noise.normal_(generator=generator)

    def batch(self, update: int) -> Batch:
        """Return the batch of one update of this epoch; updates must be asked for in order, from 0."""
        if update % self.block == 0:
            self.draw_noise(update)
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


def _level_noise(noise: Tensor, rows: int, shape: tuple[int, ...]) -> Tensor:
    """Reshape a level's noise to ``(*members, rows, *shape)``; on maps, it is channels-last in memory."""
    if len(shape) != 3:
        return noise.view(*noise.shape[:-1], rows, *shape)
    channels, *sides = shape
    return noise.view(*noise.shape[:-1], rows, *sides, channels).movedim(-1, -3)


def _stack(plans: list[Tensor]) -> Tensor:
    """Stack plans ``(updates, rows)`` to ``(updates, members, rows)``; the plan of a single member stays as it is."""
    return plans[0] if len(plans) == 1 else torch.stack(plans, 1)
