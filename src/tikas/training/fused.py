"""The dense ladder's update by hand: Algorithm 1 up, down and back again, as products and one kernel a level.

What autograd and a compiler would make of `tikas.model.ladder` is bound by memory: chains of small kernels that read
and write every latent a dozen times. Here the products are bf16 (accumulated in float32), each level's chain is one
kernel, and the way back is written out. Parameters stay in float32; the optimiser writes the bf16 copies that the
products read. What a matrix learns it learns on a stream of its own, beside the way back through the levels that
follow. `tests/test_fused.py` holds costs and weights against the plain ladder's.

Widths are padded to whole sixteen bytes, which is what quick products need. Padding units have zero weights both ways,
every kernel leaves them zero, and so they enter no cost, no statistic and no gradient.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
import triton
from torch import Tensor

from tikas.data.streams import Streams
from tikas.model.ladder import Ladder
from tikas.model.rungs import DenseRung
from tikas.training.captured import CapturedFleet
from tikas.training.kernels.adam import adam_kernel
from tikas.training.kernels.levels import (
    STREAMS,
    climb_back_kernel,
    climb_kernel,
    descend_back_kernel,
    descend_kernel,
    gather_kernel,
)
from tikas.training.kernels.top import top_back_kernel, top_kernel
from tikas.training.lanes import Lane
from tikas.training.storage import FleetParameters, Storage
from tikas.training.workspace import Level, activation_number, allocate, denoiser_number, levels_of

MOST_ROWS = 256
MOST_OUTPUTS = 128
ADAM_BLOCK = 2048
WARPS = 4


def can_be_fused(ladder: Ladder, streams: Streams) -> bool:
    """Whether the kernels know every rung, and a batch fits on the chip.

    Examples
    --------
    >>> from tikas.data.splits import split
    >>> from tikas.data.streams import Examples
    >>> from tikas.model.specs import Dense
    >>> classes, ladder = torch.arange(600) % 3, Ladder((4,), [Dense(5), Dense(3)])
    >>> examples, splits = Examples(torch.rand(600, 4), classes, 3), [split(classes.numpy(), 9)]
    >>> [can_be_fused(ladder, Streams(examples, splits, [0], ladder.shapes, rows, 20)) for rows in (100, 500)]
    [True, False]
    """
    if type(ladder) is not Ladder or not all(isinstance(rung, DenseRung) for rung in ladder.rungs[1:]):
        return False
    known = all(activation_number(rung) is not None for rung in ladder.rungs)
    small = max(streams.batch_size, streams.labeled_batch_size) <= MOST_ROWS and ladder.shapes[-1][0] <= MOST_OUTPUTS
    types = {streams.examples.rows.dtype, *(parameter.dtype for parameter in ladder.parameters())}
    return known and small and len(ladder.shapes[0]) == 1 and types == {torch.float32}


class FusedFleet(CapturedFleet):
    """A fleet of dense ladders on a GPU whose update is written out; `tests/interpreted.py` runs one without a GPU.

    Parameters
    ----------
    ladders, streams
        As for `Fleet`; `can_be_fused` says of which.
    dtype
        Of the products, of the noise and of what is stored between kernels.
    """

    def __init__(self, ladders: Sequence[Ladder], streams: Streams, dtype: torch.dtype = torch.bfloat16) -> None:
        self._enlist(ladders, streams)
        self.template = ladders[0]
        self.dtype = dtype
        examples = streams.examples
        self.rows, self.targets = examples.rows.contiguous(), examples.targets.contiguous()
        self.weights = None if examples.weights is None else examples.weights.contiguous()
        self.labeled, self.unlabeled = streams.labeled_batch_size, streams.denoised_batch_size
        self.updates_done = 0
        self.denoiser = denoiser_number(self.template)
        self.levels = levels_of(self.template, self.unlabeled)
        widths = [level.padded for level in self.levels]
        self.parameters = FleetParameters(ladders, widths, dtype, self.device, shares=STREAMS)
        noises = [[float(rung.noise) for rung in ladder.rungs] for ladder in ladders]
        weights = [[float(rung.cost) for rung in ladder.rungs] for ladder in ladders]
        self.settings = torch.cat([torch.tensor(noises), torch.tensor(weights)], 1).to(self.device)
        streams.noise = streams.noise.to(dtype)
        self.noise = streams.noise.view(self.members, streams.block, -1)
        allocate(self.levels, self.members, self.labeled, dtype, self.device)
        self.inputs = [self.levels[0]["hidden"], torch.zeros_like(self.levels[0]["hidden"])]
        self._place_costs()
        self._upward, self._downward = Lane(self.device, urgency=1), Lane(self.device)

    def disband(self) -> list[Ladder]:
        return self.parameters.ladders()

    def tensors(self) -> dict[str, Tensor]:
        return self.parameters.tensors()

    def place(self, snapshot: Mapping[str, Tensor], updates: int) -> None:
        super().place(snapshot, updates)
        self.parameters.renew_copies()

    def go_on_from(self, snapshot: Mapping[str, Tensor], updates: int) -> None:
        super().go_on_from(snapshot, updates)
        self.updates_done = updates

    def count_updates(self, updates: int) -> None:
        """Nothing to tell: rates come with it, and are counted when these are prepared."""

    def parts(self) -> list[Ladder]:
        return [self._together]

    @cached_property
    def _together(self) -> Ladder:
        return self.parameters.stacked().train()

    def _place_costs(self) -> None:
        """Give every program with a share of a cost a place to leave it in; the first is the supervised cost's."""
        slots = 1
        for level in self.levels:
            if level.costed:
                level.first_cost = slots
                slots += self._grid(level)[1]
        self.recorded = torch.zeros(self.streams.block, self.members, slots, device=self.device)

    def _units(self, level: Level, *, back: bool = False) -> int:
        """Units of a program: many for the memory's sake, but few where the chip would stand idle.

        The way back keeps twice as much in its registers.
        """
        sizes = (16,) if back else (32, 16)
        return next((units for units in sizes if self.members * level.padded // units >= 256), 8)

    # The update

    def update_in_place(self, place: int) -> None:
        """Take one step with the rows and the noise at this place of the block, and record its costs.

        The matrices of the way down may still be learning from the update before until they are needed.
        """
        top = self.levels[-1]
        if place == 0:
            self._gather(place)
        for level in self.levels[1:]:
            self._climb(level, place)
        self._top(place)
        if place + 1 < self.streams.block:
            with self._upward.beside():
                self._gather(place + 1)
        self._downward.join()
        descent = [level for level in reversed(self.levels) if level.denoised]
        for level in descent:
            self._descend(level, place)
        for level in reversed(descent):
            self._descend_back(level, place)
        if descent:
            rows, classes = _rows(self.unlabeled), self.template.task == "classification"
            top_back_kernel[(self.members,)](
                top["hidden"], top["to_signal"], top["to_hidden"], top["hidden"].shape[1], top.width, top.padded,
                self.labeled, self.unlabeled, classes, rows, triton.next_power_of_2(top.padded), num_warps=4,
            )  # fmt: skip
        for level in reversed(self.levels[1:]):
            self._climb_back(level, place)
        self._step(self.parameters.vectors, place)
        self._upward.join()

    def update_in_places(self, places: Iterable[int]) -> None:
        try:
            super().update_in_places(places)
        finally:  # after Ctrl-C too
            self._upward.join()
            self._downward.join()

    def _gather(self, place: int) -> None:
        level, hidden = self.levels[0], self._hidden(self.levels[0], place)
        rows = hidden.shape[1]
        gather_kernel[(self.members, rows)](
            self.rows, self.labeled_rows[place], self.unlabeled_rows[place], self._noise(level, place),
            self.settings, hidden,
            self.noise.stride(0), self.settings.stride(0), self.labeled, self.unlabeled, rows, level.width,
            level.padded, UNITS=min(1024, triton.next_power_of_2(level.padded)), num_warps=4,
        )  # fmt: skip

    def _climb(self, level: Level, place: int) -> None:
        below = self.levels[level.number - 1]
        weight = self._copy(f"rungs.{level.number}.weight")
        hidden = self._hidden(below, place)[:, : level["projected"].shape[1]]
        torch.bmm(hidden, weight.mT, out=level["projected"])
        climb_kernel[(*self._grid(level), level.streams)](
            level["projected"], self._noise(level, place), self.settings[:, level.number :],
            *self._scale_and_bias(level, self.parameters.vectors.values), level["hidden"], level["statistics"],
            self.noise.stride(0), self.settings.stride(0), self.parameters.vectors.size, level.width, level.padded,
            **self._sizes(level), ACTIVATION=level.activation, BETA=level.beta, GAMMA=level.gamma, num_warps=WARPS,
        )  # fmt: skip

    def _top(self, place: int) -> None:
        top, weights = self.levels[-1], self.weights
        top_kernel[(self.members, 2 if top.denoised else 1)](
            top["hidden"], self.targets, self.targets if weights is None else weights,
            self.labeled_rows[place], top["signal"] if top.denoised else top["hidden"], top["to_hidden"],
            self.recorded[place], self.recorded.stride(1), top["hidden"].shape[1], top.width, top.padded,
            self.labeled, self.unlabeled, weights is not None, self.template.task == "classification",
            _rows(max(self.labeled, self.unlabeled)), triton.next_power_of_2(top.padded), num_warps=4,
        )  # fmt: skip

    def _descend(self, level: Level, place: int) -> None:
        if level.number < self.levels[-1].number:
            above = self.levels[level.number + 1]
            weight = self._copy(f"rungs.{above.number}.back.weight")
            torch.bmm(above["denoised"], weight.mT, out=level["signal"])
        descend_kernel[self._grid(level)](
            level["signal"], *self._latents(level, place), self._denoiser(level, self.parameters.vectors.values),
            level["denoised"], level["signal_statistics"], self.recorded[place, :, level.first_cost :],
            self.noise.stride(0), self.settings.stride(0), self.parameters.vectors.size, self.recorded.stride(1),
            level.width, level.padded, **self._sizes(level), **self._kind(level), num_warps=WARPS,
        )  # fmt: skip

    def _descend_back(self, level: Level, place: int) -> None:
        if not level.lowest:
            below, name = self.levels[level.number - 1], f"rungs.{level.number}.back.weight"
            torch.bmm(below["to_signal"], self._copy(name), out=level["to_denoised"])
            self._learn(name, below["to_signal"], level["denoised"], place, self._downward)
        descend_back_kernel[self._grid(level, back=True)](
            level["signal"], level["signal_statistics"], *self._latents(level, place),
            self._denoiser(level, self.parameters.vectors.values), level["to_denoised"], level["to_signal"],
            level["to_latents"], level["to_statistics"], self._denoiser(level, self.parameters.vectors.gradients[0]),
            self.noise.stride(0), self.settings.stride(0), self.parameters.vectors.size, len(self.levels),
            level.width, level.padded, **self._sizes(level, back=True), **self._kind(level), num_warps=WARPS,
        )  # fmt: skip

    def _climb_back(self, level: Level, place: int) -> None:
        top = level is self.levels[-1]
        vectors = self.parameters.vectors
        climb_back_kernel[(*self._grid(level, back=True), level.streams)](
            level["projected"], self._noise(level, place), self.settings[:, level.number :],
            *self._scale_and_bias(level, vectors.values), level["statistics"], level["to_hidden"],
            level.tensors.get("to_latents", level["to_projected"]),
            level.tensors.get("to_statistics", level["statistics"]), level["to_projected"],
            *self._scale_and_bias(level, vectors.gradients[0]),
            self.noise.stride(0), self.settings.stride(0), vectors.size, vectors.gradients.stride(0),
            level["to_hidden"].shape[1], level.width, level.padded, **self._sizes(level, back=True),
            ACTIVATION=level.activation, BETA=level.beta, GAMMA=level.gamma, DENOISED=level.denoised,
            COSTED=level.costed, CLEAN_ABOVE=not top and self.levels[level.number + 1].clean > 0, num_warps=WARPS,
        )  # fmt: skip
        name, below = f"rungs.{level.number}.weight", self.levels[level.number - 1]
        if below.number:
            torch.bmm(level["to_projected"], self._copy(name), out=below["to_hidden"])
        rows = self._hidden(below, place)[:, : level["to_projected"].shape[1]]
        self._learn(name, level["to_projected"], rows, place, self._upward)

    def _learn(self, name: str, one: Tensor, other: Tensor, place: int, lane: Lane) -> None:
        """A step of a matrix whose gradient is oneᵀ·other, beside what comes next."""
        matrices = self.parameters.matrices
        with lane.beside():
            torch.bmm(one.mT, other, out=matrices.view(matrices.gradients[0], name))
            self._step(matrices, place, matrices.place(name))

    def _step(self, storage: Storage, place: int, parameters: slice = slice(None)) -> None:
        values, gradients, means, squares, copies = (buffer[..., parameters] for buffer in storage.buffers)
        count = values.shape[-1]
        adam_kernel[(triton.cdiv(count, ADAM_BLOCK), self.members)](
            values, gradients, means, squares, copies, self.rates[place], count, storage.size, gradients.stride(0),
            SHARES=len(gradients), COPIED=storage.copies is not storage.values, BLOCK=ADAM_BLOCK, num_warps=8,
        )  # fmt: skip

    def _copy(self, name: str) -> Tensor:
        return self.parameters.matrices.view(self.parameters.matrices.copies, name)

    def _hidden(self, level: Level, place: int) -> Tensor:
        """What a level hands on; of the input there are two, for an update and the one after it."""
        return level["hidden"] if level.number else self.inputs[place % 2]

    # What kernels are told

    def _grid(self, level: Level, *, back: bool = False) -> tuple[int, int]:
        return self.members, triton.cdiv(level.padded, self._units(level, back=back))

    def _sizes(self, level: Level, *, back: bool = False) -> dict[str, int]:
        return {
            "LABELED": self.labeled,
            "UNLABELED": self.unlabeled,
            "CLEAN": level.clean,
            "ROWS": _rows(max(self.labeled, self.unlabeled)),
            "UNITS": self._units(level, back=back),
        }

    def _kind(self, level: Level) -> dict[str, Any]:
        return {
            "DENOISER": self.denoiser,
            "INPUT": level.number == 0,
            "COSTED": level.costed,
            "LOWEST": level.lowest,
        }

    def _noise(self, level: Level, place: int) -> Tensor:
        return self.noise[:, place, level.noise_offset :]

    def _latents(self, level: Level, place: int) -> tuple[Tensor, ...]:
        # The input level has neither: something that nobody writes stands in, and is not read.
        of_latents = (level["projected"], level["statistics"]) if level.number else (self.rows, self.rows)
        rows, noise = self.unlabeled_rows[place], self._noise(level, place)
        return *of_latents, self.rows, rows, noise, self.settings[:, level.number :]

    def _scale_and_bias(self, level: Level, buffer: Tensor) -> tuple[Tensor, Tensor]:
        names = ((level.beta, "beta"), (level.gamma, "gamma"))
        beta, gamma = (
            self.parameters.vectors.view(buffer, f"rungs.{level.number}.{name}") if there else buffer
            for there, name in names
        )
        return beta, gamma

    def _denoiser(self, level: Level, buffer: Tensor) -> Tensor:
        """From the first of the parameters on; the others lie behind it."""
        return self.parameters.vectors.view(buffer, f"rungs.{level.number}.denoiser.a")

    # What capturing asks for

    def prepare_rates(self, rates: Tensor) -> Tensor:
        """For each update and member the rate over 1 - 0.9ᵗ, and 1/√(1 - 0.999ᵗ)."""
        steps = torch.arange(self.updates_done + 1, self.updates_done + 1 + len(rates), dtype=torch.float64)[:, None]
        self.updates_done += len(rates)
        rates = rates.view(len(rates), -1).expand(-1, self.members)
        return torch.stack([rates / (1 - 0.9**steps), ((1 - 0.999**steps) ** -0.5).expand_as(rates)], -1)

    def forget_warm_up(self) -> None:
        self.parameters.forget_moments()

    def read_costs(self, recorded: Tensor) -> Tensor:
        """Sum up what the programs of each level have recorded."""
        costs = recorded.new_zeros(*recorded.shape[:-1], 1 + len(self.levels))
        costs[..., 0] = recorded[..., 0]
        for level in self.levels:
            if level.costed:
                programs = self._grid(level)[1]
                shares = recorded[..., level.first_cost : level.first_cost + programs]
                costs[..., 1 + level.number] = shares.sum(-1) / (self.unlabeled * level.width)
        return costs


def _rows(count: int) -> int:
    return max(16, 1 << (count - 1).bit_length())
