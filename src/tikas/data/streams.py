"""The labelled and the unlabelled stream: which rows, and which noise, every member of a fleet sees in every update.

Rows stay where they are, on the device; a stream is arithmetic on their numbers. Everything that a member draws comes
from generators of its own, seeded by its seed alone, so it sees the same thing alone and in company.
"""

from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tikas.data.splits import Split


class Examples(NamedTuple):
    """Rows to learn from, on the device that they are used on.

    Attributes
    ----------
    rows
        ``(n, *shape)``, labelled or not.
    targets
        ``(n,)`` classes, or ``(n, outputs)`` values; disregarded where a row is not labelled.
    outputs
        How many classes or values there are.
    weights
        How much each row counts when it is labelled; None if all count the same.
    """

    rows: Tensor
    targets: Tensor
    outputs: int
    weights: Tensor | None = None

    def to(self, device: torch.device) -> "Examples":
        """The same examples on another device."""
        weights = None if self.weights is None else self.weights.to(device)
        return Examples(self.rows.to(device), self.targets.to(device), self.outputs, weights)


class Batch(NamedTuple):
    """What one update sees: the arguments of `Ladder.costs`, by their names there."""

    unlabeled: Tensor
    labeled: Tensor
    targets: Tensor
    noise: list[Tensor]
    weights: Tensor | None


def generator(seed: int, purpose: str, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator that depends on a seed and on what is drawn from it, so that no two purposes share numbers."""
    state = np.random.SeedSequence([seed, *purpose.encode()]).generate_state(1, np.uint64)[0]
    return torch.Generator(device).manual_seed(int(state) & (2**63 - 1))


class Streams:
    """The batches of every epoch, for one member or for many with a leading member dimension.

    Unlabelled rows come in a new order every epoch; what does not fill a batch waits for the next one. Labelled rows
    come in one shuffled round after another, cut into batches of their own size, whatever their number. Where every
    row is labelled both streams are the same rows, with other noise.
    """

    def __init__(
        self,
        examples: Examples,
        splits: Sequence[Split],
        seeds: Sequence[int],
        shapes: Sequence[tuple[int, ...]],
        batch_size: int,
        labeled_batch_size: int,
    ) -> None:
        device = examples.rows.device
        self.examples = examples
        self.unlabeled = [torch.as_tensor(split.unlabeled, device=device) for split in splits]
        self.labeled = [torch.as_tensor(split.labeled, device=device) for split in splits]
        self.shapes = shapes
        self.batch_size = min(batch_size, len(self.unlabeled[0]))
        self.updates = len(self.unlabeled[0]) // self.batch_size
        self.fully_labeled = len(self.labeled[0]) == len(self.unlabeled[0])
        self.labeled_batch_size = self.batch_size if self.fully_labeled else labeled_batch_size
        self.order = [generator(seed, "order", device) for seed in seeds]
        self.noise = [generator(seed, "noise", device) for seed in seeds]
        self._unlabeled_plan = self._labeled_plan = torch.empty(0)

    def start_epoch(self) -> None:
        """Draw which rows every member sees in each update of the next epoch."""
        pairs = list(zip(self.unlabeled, self.order, strict=True))
        self._unlabeled_plan = _stack([self._unlabeled_rounds(rows, draw) for rows, draw in pairs], dim=1)
        if self.fully_labeled:
            self._labeled_plan = self._unlabeled_plan
        else:
            pairs = list(zip(self.labeled, self.order, strict=True))
            self._labeled_plan = _stack([self._labeled_rounds(rows, draw) for rows, draw in pairs], dim=1)

    def _unlabeled_rounds(self, rows: Tensor, draw: torch.Generator) -> Tensor:
        order = torch.randperm(len(rows), generator=draw, device=rows.device)
        return rows[order[: self.updates * self.batch_size]].view(self.updates, self.batch_size)

    def _labeled_rounds(self, rows: Tensor, draw: torch.Generator) -> Tensor:
        needed = self.updates * self.labeled_batch_size
        rounds = torch.rand(ceil(needed / len(rows)), len(rows), generator=draw, device=rows.device).argsort(-1)
        return rows[rounds.flatten()[:needed]].view(self.updates, self.labeled_batch_size)

    def batch(self, update: int) -> Batch:
        """The rows, targets and noise of one update of this epoch."""
        unlabeled, labeled = self._unlabeled_plan[update], self._labeled_plan[update]
        rows, targets, _, weights = self.examples
        return Batch(
            rows[unlabeled],
            rows[labeled],
            targets[labeled],
            self._draw_noise(),
            None if weights is None else weights[labeled],
        )

    def _draw_noise(self) -> list[Tensor]:
        count = self.labeled_batch_size + self.batch_size
        like = self.examples.rows.new_empty(0)
        return [
            _stack([like.new_empty(count, *shape).normal_(generator=draw) for draw in self.noise])
            for shape in self.shapes
        ]


def _stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """One tensor with a member dimension, or, for a member alone, just its own."""
    return tensors[0] if len(tensors) == 1 else torch.stack(list(tensors), dim)
