"""FusedEngine: the update of dense ladders as bf16 products and one Triton kernel per level; README.md explains why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from typing import Any

import torch
import triton
from torch import Tensor

from tikas.data.batches import Batches
from tikas.model.ladder import Ladder, Model
from tikas.model.layers import DenseRung
from tikas.training.cuda_graph import Graph, SideStream
from tikas.training.engines import engine_state, load_engine_state
from tikas.training.fused import kernels
from tikas.training.fused.memory import Buffers, Level, Parameters, build_levels, denoiser_number

MAX_ROWS = 256
"""Rows of a part of the batch: a program holds all of them in registers."""

MAX_OUTPUTS = 128
"""Units of the top: a program of `top_kernel` holds all of them, with all rows."""

ADAM_BLOCK = 2048
"""Parameters of a program of `adam_kernel`."""

OPTIONS = {"num_warps": 4, "enable_fp_fusion": True}
"""Triton's options for kernels. It fuses products and sums by default until 3.9; 3.9 warns that 3.10 will not."""


def can_fuse(model: Model, batches: Batches) -> bool:
    """Return whether there is a kernel for every level of a model, and a batch is small enough for them."""
    if type(model) is not Ladder or not all(isinstance(rung, DenseRung) for rung in model.rungs[1:]):
        return False
    known = all(rung.activation.name in kernels.ACTIVATIONS for rung in model.rungs)
    rows = max(batches.batch_size, batches.labeled_batch_size)
    small = rows <= MAX_ROWS and model.shapes[-1][0] <= MAX_OUTPUTS
    dtypes = {batches.rows.dtype, *(parameter.dtype for parameter in model.parameters())}
    return known and small and len(model.shapes[0]) == 1 and dtypes == {torch.float32}


class FusedEngine:
    """Trains dense ladders on a GPU with an update of products and Triton kernels, captured in a CUDA graph.

    Parameters
    ----------
    models : sequence of Ladder
        The members, all of one shape, for which `can_fuse` is true. They may differ in noise and cost weights.
    batches : Batches
    dtype : torch.dtype, default=torch.bfloat16
        Dtype of the products, of the noise, and of what kernels store for each other.
    """

    preparation = "compiling the kernels, and capturing a CUDA graph"

    def __init__(self, models: Sequence[Model], batches: Batches, dtype: torch.dtype = torch.bfloat16) -> None:
        self.batches = batches
        self.members = len(models)
        self.dtype = dtype
        device = batches.device
        self._labeled, self._unlabeled = batches.labeled_batch_size, batches.denoised_batch_size
        self._classes = models[0].task == "classification"
        self._denoiser = denoiser_number(models[0])
        self._levels = build_levels(models[0], self.members, self._labeled, self._unlabeled, dtype, device)
        self._parameters = Parameters(models, [level.padded for level in self._levels], dtype, device)
        self._updates_done = 0
        # Kernels index rows by their address: no strides but those of a row are passed.
        self._data, self._targets = batches.rows.contiguous(), batches.targets.contiguous()
        self._weights = None if batches.weights is None else batches.weights.contiguous()
        # (members, 2 * levels): the noise's deviation at every level, then every λ
        settings = [
            [float(rung.noise) for rung in model.rungs] + [float(rung.cost) for rung in model.rungs] for model in models
        ]
        self._settings = torch.tensor(settings, dtype=torch.float32, device=device)
        batches.noise = batches.noise.to(dtype)  # noise is read four times in an update
        self._noise = batches.noise.view(self.members, batches.block, -1)
        # Two inputs: the next update's is gathered while this one's is still read.
        self._inputs = [self._levels[0]["hidden"], torch.zeros_like(self._levels[0]["hidden"])]
        self._graph = Graph(batches, torch.zeros(batches.block, self.members, self._assign_cost_slots(), device=device))
        # What the encoder's matrices need is on the critical path from one update to the next, so it has priority.
        self._encoder_stream, self._decoder_stream = _side_stream(device, -1), _side_stream(device, 0)

    def train_epoch(self, rates: Tensor, first: int = 0) -> Tensor:
        """Train for one epoch or a part of it; see `Engine.train_epoch`."""
        blocks = self._graph.epoch(self._adam_rates(rates), first, self.update, self._parameters.moments())
        return self._read_costs(torch.cat(list(blocks)))

    def state_dict(self) -> dict[str, Tensor]:
        """Return everything needed to resume; see `Engine.state_dict`."""
        return engine_state(self._parameters.tensors(), self.batches, self.members)

    def load_state_dict(self, state: Mapping[str, Tensor], updates: int) -> None:
        """Restore a `state_dict` taken after `updates` updates."""
        load_engine_state(self._parameters.tensors(), self.batches, state, self.members, updates)
        self._parameters.update_copies()
        self._updates_done = updates

    def models(self) -> list[Model]:
        """Return each member as a model of its own."""
        return self._parameters.models()

    def packed(self) -> list[Model]:
        """Return the members as one packed model, whose parameters are views of the engine's."""
        return [self._packed]

    @cached_property
    def _packed(self) -> Model:
        return self._parameters.packed().train()

    def _assign_cost_slots(self) -> int:
        """Give every program that computes a share of a cost its slot; return their number. Slot 0: supervised cost."""
        slots = 1
        for level in self._levels:
            if level.costed:
                level.cost_slot = slots
                slots += self._grid(level)[1]
        return slots

    def _read_costs(self, slots: Tensor) -> Tensor:
        """Return the costs of each update, ``(updates, *members, 1 + levels)``, from ``(updates, members, slots)``."""
        costs = slots.new_zeros(*slots.shape[:-1], 1 + len(self._levels))
        costs[..., 0] = slots[..., 0]
        for level in self._levels:
            if level.costed:
                shares = slots[..., level.cost_slot : level.cost_slot + self._grid(level)[1]]
                costs[..., 1 + level.number] = shares.sum(-1) / (self._unlabeled * level.width)
        return costs.squeeze(1) if self.members == 1 else costs

    def _adam_rates(self, rates: Tensor) -> Tensor:
        """Return for each update t and member the rate over 1 - 0.9ᵗ, and 1/√(1 - 0.999ᵗ)."""
        first = self._updates_done + 1
        self._updates_done += len(rates)
        steps = torch.arange(first, first + len(rates), dtype=torch.float64)[:, None]
        rates = rates.view(len(rates), -1).expand(-1, self.members)
        return torch.stack([rates / (1 - 0.9**steps), ((1 - 0.999**steps) ** -0.5).expand_as(rates)], -1)

    # One update. README.md shows the order of the launches and the streams.

    def update(self, positions: range) -> None:
        """Train on the rows, noise and rates at these positions of the block, from 0 on, and store the costs."""
        try:
            for position in positions:
                self._update(position)
        finally:  # after Ctrl-C too: what follows reads what the side streams write
            self._encoder_stream.join()
            self._decoder_stream.join()

    def _update(self, position: int) -> None:
        top = self._levels[-1]
        if position == 0:
            self._gather(position)
        for level in self._levels[1:]:
            self._encode(level, position)
        self._compute_top(position)
        if position + 1 < self.batches.block:
            with self._encoder_stream.run():
                self._gather(position + 1)
        self._decoder_stream.join()  # the decoder's matrices may be learning from the previous update until here
        decoded = [level for level in reversed(self._levels) if level.denoised]
        for level in decoded:
            self._decode(level, position)
        for level in reversed(decoded):
            self._decode_backward(level, position)
        if decoded:
            kernels.top_backward_kernel[(self.members,)](
                top["hidden"], top["grad_signal"], top["grad_hidden"], top["hidden"].shape[1], top.width, top.padded,
                self._labeled, self._unlabeled, self._classes, _tile_rows(self._unlabeled),
                triton.next_power_of_2(top.padded), **OPTIONS,
            )  # fmt: skip
        for level in reversed(self._levels[1:]):
            self._encode_backward(level, position)
        self._step(self._parameters.vectors, position)
        self._encoder_stream.join()

    def _gather(self, position: int) -> None:
        level, hidden = self._levels[0], self._hidden(self._levels[0], position)
        rows = hidden.shape[1]
        kernels.gather_kernel[(self.members, rows)](
            self._data, self._graph.labeled[position], self._graph.unlabeled[position], self._noise_of(level, position),
            self._settings, hidden,
            self._noise.stride(0), self._settings.stride(0), self._labeled, self._unlabeled, rows, level.width,
            level.padded, UNITS=min(1024, triton.next_power_of_2(level.padded)), **OPTIONS,
        )  # fmt: skip

    def _encode(self, level: Level, position: int) -> None:
        below, vectors = self._levels[level.number - 1], self._parameters.vectors
        hidden = self._hidden(below, position)[:, : level["projected"].shape[1]]  # the clean rows may end below
        torch.bmm(hidden, self._matrix(f"rungs.{level.number}.weight").mT, out=level["projected"])
        kernels.encode_kernel[(*self._grid(level), level.parts)](
            level["projected"], self._noise_of(level, position), self._settings[:, level.number :],
            *self._beta_and_gamma(level, vectors.values), level["hidden"], level["statistics"],
            self._noise.stride(0), self._settings.stride(0), vectors.size, level.width, level.padded,
            **self._sizes(level), ACTIVATION=level.activation, BETA=level.beta, GAMMA=level.gamma, **OPTIONS,
        )  # fmt: skip

    def _compute_top(self, position: int) -> None:
        top, weights, costs = self._levels[-1], self._weights, self._graph.costs
        kernels.top_kernel[(self.members, 2 if top.denoised else 1)](
            top["hidden"], self._targets, self._targets if weights is None else weights,
            self._graph.labeled[position], top["signal"] if top.denoised else top["hidden"], top["grad_hidden"],
            costs[position], costs.stride(1), top["hidden"].shape[1], top.width, top.padded,
            self._labeled, self._unlabeled, weights is not None, self._classes,
            _tile_rows(max(self._labeled, self._unlabeled)), triton.next_power_of_2(top.padded), **OPTIONS,
        )  # fmt: skip

    def _decode(self, level: Level, position: int) -> None:
        vectors, costs = self._parameters.vectors, self._graph.costs
        if level.number < self._levels[-1].number:
            above = self._levels[level.number + 1]
            weight = self._matrix(f"rungs.{above.number}.back.weight")
            torch.bmm(above["denoised"], weight.mT, out=level["signal"])
        kernels.decode_kernel[self._grid(level)](
            level["signal"], *self._latents(level, position), self._denoiser_of(level, vectors.values),
            level["denoised"], level["signal_statistics"], costs[position, :, level.cost_slot :],
            self._noise.stride(0), self._settings.stride(0), vectors.size, costs.stride(1), level.width, level.padded,
            **self._sizes(level), **self._decoder_flags(level), **OPTIONS,
        )  # fmt: skip

    def _decode_backward(self, level: Level, position: int) -> None:
        vectors = self._parameters.vectors
        if not level.lowest:
            below, name = self._levels[level.number - 1], f"rungs.{level.number}.back.weight"
            torch.bmm(below["grad_signal"], self._matrix(name), out=level["grad_denoised"])
            self._learn(name, below["grad_signal"], level["denoised"], position, self._decoder_stream)
        kernels.decode_backward_kernel[self._grid(level, backward=True)](
            level["signal"], level["signal_statistics"], *self._latents(level, position),
            self._denoiser_of(level, vectors.values), level["grad_denoised"], level["grad_signal"],
            level["grad_latents"], level["grad_statistics"], self._denoiser_of(level, vectors.gradients[0]),
            self._noise.stride(0), self._settings.stride(0), vectors.size, len(self._levels),
            level.width, level.padded, **self._sizes(level, backward=True), **self._decoder_flags(level),
            **OPTIONS,
        )  # fmt: skip

    def _encode_backward(self, level: Level, position: int) -> None:
        top, vectors = level is self._levels[-1], self._parameters.vectors
        kernels.encode_backward_kernel[(*self._grid(level, backward=True), level.parts)](
            level["projected"], self._noise_of(level, position), self._settings[:, level.number :],
            *self._beta_and_gamma(level, vectors.values), level["statistics"], level["grad_hidden"],
            # Levels without a denoiser lack these: another tensor stands in, and is not read.
            level.tensors.get("grad_latents", level["grad_projected"]),
            level.tensors.get("grad_statistics", level["statistics"]), level["grad_projected"],
            *self._beta_and_gamma(level, vectors.gradients[0]),
            self._noise.stride(0), self._settings.stride(0), vectors.size, vectors.gradients.stride(0),
            level["grad_hidden"].shape[1], level.width, level.padded, **self._sizes(level, backward=True),
            ACTIVATION=level.activation, BETA=level.beta, GAMMA=level.gamma, DENOISED=level.denoised,
            COSTED=level.costed, CLEAN_ABOVE=not top and self._levels[level.number + 1].clean > 0, **OPTIONS,
        )  # fmt: skip
        name, below = f"rungs.{level.number}.weight", self._levels[level.number - 1]
        if below.number:
            torch.bmm(level["grad_projected"], self._matrix(name), out=below["grad_hidden"])
        rows = self._hidden(below, position)[:, : level["grad_projected"].shape[1]]
        self._learn(name, level["grad_projected"], rows, position, self._encoder_stream)

    def _learn(self, name: str, one: Tensor, other: Tensor, position: int, stream: SideStream) -> None:
        """Compute the gradient oneᵀ other of a matrix, and update it, beside what follows on the main stream."""
        matrices = self._parameters.matrices
        with stream.run():
            torch.bmm(one.mT, other, out=matrices.view(matrices.gradients[0], name))
            self._step(matrices, position, matrices.columns(name))

    def _step(self, buffers: Buffers, position: int, columns: slice = slice(None)) -> None:
        """Update the parameters in these columns of the buffers with Adam."""
        values, gradients = buffers.values[:, columns], buffers.gradients[..., columns]
        count = values.shape[-1]
        kernels.adam_kernel[(triton.cdiv(count, ADAM_BLOCK), self.members)](
            values, gradients, buffers.means[:, columns], buffers.squares[:, columns], buffers.copies[:, columns],
            self._graph.rates[position], count, buffers.size, gradients.stride(0),
            PARTIALS=len(gradients), COPIED=buffers.has_copies, BLOCK=ADAM_BLOCK,
            **OPTIONS | {"num_warps": 8},
        )  # fmt: skip

    # Arguments of the kernels

    def _units(self, level: Level, *, backward: bool = False) -> int:
        """Return the columns of a program: many use the memory's bandwidth better, few occupy more of the GPU.

        A backward kernel keeps twice as much in registers.
        """
        for units in (16,) if backward else (32, 16):
            if self.members * level.padded // units >= 256:
                return units
        return 8

    def _grid(self, level: Level, *, backward: bool = False) -> tuple[int, int]:
        return self.members, triton.cdiv(level.padded, self._units(level, backward=backward))

    def _sizes(self, level: Level, *, backward: bool = False) -> dict[str, int]:
        return {
            "LABELED": self._labeled,
            "UNLABELED": self._unlabeled,
            "CLEAN": level.clean,
            "ROWS": _tile_rows(max(self._labeled, self._unlabeled)),
            "UNITS": self._units(level, backward=backward),
        }

    def _decoder_flags(self, level: Level) -> dict[str, Any]:
        return {
            "DENOISER": self._denoiser,
            "INPUT": level.number == 0,
            "COSTED": level.costed,
            "LOWEST": level.lowest,
        }

    def _hidden(self, level: Level, position: int) -> Tensor:
        """Return h of a level; of the input, the one of the two that this update reads."""
        return level["hidden"] if level.number else self._inputs[position % 2]

    def _matrix(self, name: str) -> Tensor:
        return self._parameters.matrices.view(self._parameters.matrices.copies, name)

    def _noise_of(self, level: Level, position: int) -> Tensor:
        return self._noise[:, position, level.noise_offset :]

    def _latents(self, level: Level, position: int) -> tuple[Tensor, ...]:
        """Return what `_load_latents` of the kernels reads."""
        # The input has neither z_pre nor statistics: a tensor that no kernel writes stands in, and is not read.
        encoded = (level["projected"], level["statistics"]) if level.number else (self._data, self._data)
        rows, noise = self._graph.unlabeled[position], self._noise_of(level, position)
        return *encoded, self._data, rows, noise, self._settings[:, level.number :]

    def _beta_and_gamma(self, level: Level, buffer: Tensor) -> tuple[Tensor, Tensor]:
        """Return β and γ, or their gradients; `buffer` itself, which is not read, for one that the level lacks."""
        vectors, prefix = self._parameters.vectors, f"rungs.{level.number}"
        beta = vectors.view(buffer, f"{prefix}.beta") if level.beta else buffer
        gamma = vectors.view(buffer, f"{prefix}.gamma") if level.gamma else buffer
        return beta, gamma

    def _denoiser_of(self, level: Level, buffer: Tensor) -> Tensor:
        """Return the first parameter of g, which the others follow, or its gradient."""
        return self._parameters.vectors.view(buffer, f"rungs.{level.number}.denoiser.a")


@cache
def _side_stream(device: torch.device, priority: int) -> SideStream:
    """Return the side stream that all engines share: products keep tens of MB of scratch memory for every stream."""
    return SideStream(device, priority)


def _tile_rows(count: int) -> int:
    """Return the rows of a tile: a power of two, as Triton needs, and at least 16."""
    return max(16, 1 << (count - 1).bit_length())
