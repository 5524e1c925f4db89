"""The labelled and the unlabelled stream: which rows, and which noise, every member of a fleet sees in every update.

Rows stay where they are, on the device; a stream is arithmetic on their numbers. Everything that a member draws comes
from generators of its own, seeded by its seed alone, so it sees the same thing alone and in company.
"""

from collections.abc import Mapping, Sequence
from math import ceil, prod
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

    Examples
    --------
    >>> examples = Examples(rows=torch.rand(100, 64), targets=torch.arange(100) % 10, outputs=10)
    >>> examples.to(torch.device("meta")).rows.device.type
    'meta'
    """

    rows: Tensor
    targets: Tensor
    outputs: int
    weights: Tensor | None = None

    def to(self, device: torch.device) -> "Examples":
        """The same examples on another device."""
        weights = None if self.weights is None else self.weights.to(device)
        return Examples(self.rows.to(device), self.targets.to(device), self.outputs, weights)

    def outside_inference_mode(self) -> "Examples":
        """The same, copied where they were made in torch's inference mode, of whose tensors nothing can be learnt."""
        rows, targets = (each.clone() if each.is_inference() else each for each in (self.rows, self.targets))
        weights = self.weights if self.weights is None or not self.weights.is_inference() else self.weights.clone()
        return Examples(rows, targets, self.outputs, weights)


class Batch(NamedTuple):
    """What one update sees: the arguments of `Ladder.costs`, by their names there.

    Examples
    --------
    >>> from tikas import Dense, Ladder
    >>> ladder, rows = Ladder(input_shape=(4,), rungs=[Dense(3)]), torch.rand(14, 4)
    >>> batch = Batch(rows[6:], rows[:6], torch.arange(6) % 3, ladder.draw_noise(rows, count=14), weights=None)
    >>> ladder.costs(**batch._asdict()).denoising.shape
    torch.Size([2])
    """

    unlabeled: Tensor
    labeled: Tensor
    targets: Tensor
    noise: list[Tensor]
    weights: Tensor | None


def generator(seed: int, purpose: str, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator that depends on a seed and on what is drawn from it, so that no two purposes share numbers.

    Examples
    --------
    >>> draws = [torch.rand(1, generator=generator(0, purpose)).item() for purpose in ("order", "order", "noise")]
    >>> draws[0] == draws[1], draws[0] == draws[2]
    (True, False)
    """
    state = np.random.SeedSequence([seed, *purpose.encode()]).generate_state(1, np.uint64)[0]
    return torch.Generator(device).manual_seed(int(state) & (2**63 - 1))


class Streams:
    """The batches of every epoch, for one member or for many with a leading member dimension.

    Unlabelled rows come in a new order every epoch; what does not fill a batch waits for the next one. Labelled rows
    come in one shuffled round after another, cut into batches of their own size, whatever their number. Where every
    row is labelled both streams are the same rows, with other noise.

    Attributes
    ----------
    updates
        How many there are in an epoch.
    denoised_batch_size
        How many unlabelled rows a batch holds: none where no cost needs them.
    block
        For how many updates noise is drawn at a time: a divisor of `updates`, so that an epoch is whole blocks.
    unlabeled_plan, labeled_plan
        The rows of each update of this epoch, ``(updates, *members, rows)``.
    noise
        The noise of a block of updates, ``(*members, updates, values)``: all levels of an update lie together.

    Examples
    --------
    >>> from tikas.data.splits import split
    >>> examples = Examples(rows=torch.rand(100, 4), targets=torch.arange(100) % 3, outputs=3)
    >>> splits = [split(examples.targets.numpy(), labels=6, seed=seed) for seed in (0, 1)]
    >>> streams = Streams(examples, splits, (0, 1), shapes=[(4,), (3,)], batch_size=20, labeled_batch_size=10)
    >>> streams.start_epoch()
    >>> batch = streams.batch(update=0)
    >>> streams.updates, batch.unlabeled.shape, batch.targets.shape  # two members
    (5, torch.Size([2, 20, 4]), torch.Size([2, 10]))
    """

    def __init__(
        self,
        examples: Examples,
        splits: Sequence[Split],
        seeds: Sequence[int],
        shapes: Sequence[tuple[int, ...]],
        batch_size: int,
        labeled_batch_size: int,
        most_in_block: int = 1,
        denoising: bool = True,
    ) -> None:
        device = examples.rows.device
        self.examples = examples
        self._splits, self._seeds = splits, seeds
        self._unlabeled = [torch.as_tensor(split.unlabeled, device=device) for split in splits]
        self._labeled = [torch.as_tensor(split.labeled, device=device) for split in splits]
        self._order = [generator(seed, "order", device) for seed in seeds]
        self._noise = [generator(seed, "noise", device) for seed in seeds]
        self._shapes = shapes
        self.batch_size, self.labeled_batch_size = splits[0].rows_of_an_update(batch_size, labeled_batch_size)
        self.updates = len(self._unlabeled[0]) // self.batch_size
        self.block = max(size for size in range(1, most_in_block + 1) if self.updates % size == 0)
        members = () if len(seeds) == 1 else (len(seeds),)
        self.denoised_batch_size = self.batch_size if denoising else 0
        self._sizes = [(self.denoised_batch_size + self.labeled_batch_size) * prod(shape) for shape in shapes]
        self.noise = examples.rows.new_empty(*members, self.block, sum(self._sizes))
        self.unlabeled_plan = self.labeled_plan = torch.empty(0)

    def alone(self, member: int) -> "Streams":
        """What one of the members sees, as it would see it without the others."""
        return Streams(
            self.examples,
            [self._splits[member]],
            [self._seeds[member]],
            self._shapes,
            self.batch_size,
            self.labeled_batch_size,
            self.block,
            self.denoised_batch_size > 0,
        )

    def states(self) -> dict[str, Tensor]:
        """Where every member is in its draws, after a whole epoch: ``(members, bytes)`` of each kind, on the CPU."""
        return {
            "order": torch.stack([draw.get_state() for draw in self._order]),
            "noise": torch.stack([draw.get_state() for draw in self._noise]),
        }

    def go_on_from(self, states: Mapping[str, Tensor]) -> None:
        """Draw from now on what these would have drawn, which come from streams on the same kind of device.

        Examples
        --------
        >>> from tikas.data.splits import split
        >>> examples = Examples(rows=torch.rand(20, 4), targets=torch.arange(20) % 2, outputs=2)
        >>> one, other = (Streams(examples, [split(examples.targets.numpy(), 4)], [0], [(4,)], 5, 5) for _ in "ab")
        >>> one.start_epoch()
        >>> other.go_on_from(one.states())
        >>> one.start_epoch(), other.start_epoch()
        (None, None)
        >>> torch.equal(one.unlabeled_plan, other.unlabeled_plan)
        True
        """
        for draws, kept in ((self._order, states["order"]), (self._noise, states["noise"])):
            for draw, state in zip(draws, kept, strict=True):
                draw.set_state(state.clone())  # torch 2.13 crashes on a state that does not begin its storage

    def start_epoch(self) -> None:
        """Draw which rows every member sees in each update of the next epoch."""
        pairs = zip(self._unlabeled, self._order, strict=True)
        self.unlabeled_plan = _stack([self._unlabeled_rounds(rows, draw) for rows, draw in pairs])
        if self._splits[0].fully_labeled:
            self.labeled_plan = self.unlabeled_plan
        else:
            pairs = zip(self._labeled, self._order, strict=True)
            self.labeled_plan = _stack([self._labeled_rounds(rows, draw) for rows, draw in pairs])

    def _unlabeled_rounds(self, rows: Tensor, draw: torch.Generator) -> Tensor:
        order = torch.randperm(len(rows), generator=draw, device=rows.device)
        return rows[order[: self.updates * self.batch_size]].view(self.updates, self.batch_size)

    def _labeled_rounds(self, rows: Tensor, draw: torch.Generator) -> Tensor:
        needed = self.updates * self.labeled_batch_size
        rounds = torch.rand(ceil(needed / len(rows)), len(rows), generator=draw, device=rows.device).argsort(-1)
        return rows[rounds.flatten()[:needed]].view(self.updates, self.labeled_batch_size)

    def draw_noise(self) -> None:
        """Draw the noise of the next block of updates, all of a member's at once."""
        for draw, noise in zip(self._noise, self.noise.view(len(self._noise), -1), strict=True):
            noise.normal_(generator=draw)

    def batch(self, update: int) -> Batch:
        """The rows, targets and noise of one update of this epoch; updates are asked for in their order."""
        if update % self.block == 0:
            self.draw_noise()
        return self.assemble(self.unlabeled_plan[update], self.labeled_plan[update], update % self.block)

    def assemble(self, unlabeled: Tensor, labeled: Tensor, place: int) -> Batch:
        """A batch of these rows, with the noise at this place of the block.

        Without denoising costs the unlabelled rows only count the updates, so the batch has none.
        """
        rows, targets, _, weights = self.examples
        count = self.denoised_batch_size + self.labeled_batch_size
        levels = torch.split(self.noise.select(-2, place), self._sizes, -1)
        return Batch(
            rows[unlabeled[..., : self.denoised_batch_size]],
            rows[labeled],
            targets[labeled],
            [_laid_out(level, count, shape) for level, shape in zip(levels, self._shapes, strict=True)],
            None if weights is None else weights[labeled],
        )


def _laid_out(noise: Tensor, rows: int, shape: tuple[int, ...]) -> Tensor:
    """Noise of a level, ``(*members, rows, *shape)``; that of maps lies as convolutions like it, channels last."""
    if len(shape) != 3:
        return noise.view(*noise.shape[:-1], rows, *shape)
    channels, *sides = shape
    return noise.view(*noise.shape[:-1], rows, *sides, channels).movedim(-1, -3)


def _stack(plans: Sequence[Tensor]) -> Tensor:
    """Plans ``(updates, rows)`` with a member dimension in the middle, or, for a member alone, just its own."""
    return plans[0] if len(plans) == 1 else torch.stack(list(plans), 1)
