"""Memory of the fused engine: the parameters of all members, and the tensors that kernels leave for each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tikas.model.denoisers import DENOISERS
from tikas.model.ladder import Model
from tikas.training.ensemble import pack, with_tensors
from tikas.training.fused import kernels


class Buffers:
    """Parameters of all members as one matrix ``(members, size)``, and the same of all that Adam reads and writes.

    One launch of Adam covers any number of adjacent parameters, and a product reads a parameter of all members as a
    view ``(members, rows, columns)``.

    Parameters
    ----------
    shapes : mapping of str to (int, int)
        Rows and columns of each parameter, with padding.
    members : int
    dtype : torch.dtype
        Type of the gradients, of Adam's first moments and of the copies.
    device : torch.device
    partials : int, default=1
        Number of partial sums of each gradient: of kernels that run at the same time, each stores its own.

    Attributes
    ----------
    values, squares : Tensor of shape (members, size)
        Parameters and Adam's second moments, float32.
    means : Tensor of shape (members, size)
        Adam's first moments.
    copies : Tensor of shape (members, size)
        The parameters in `dtype`, which the products read; `values` itself if that has this type.
    gradients : Tensor of shape (partials, members, size)
    """

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, int]],
        members: int,
        dtype: torch.dtype,
        device: torch.device,
        partials: int = 1,
    ) -> None:
        self._shapes = shapes
        self._offsets: dict[str, int] = {}
        self.size = 0
        for name, (rows, columns) in shapes.items():
            self._offsets[name] = self.size
            self.size += rows * columns
        self.values, self.squares = (torch.zeros(members, self.size, device=device) for _ in range(2))
        self.means = torch.zeros(members, self.size, dtype=dtype, device=device)
        self.copies = self.values if dtype == self.values.dtype else torch.zeros_like(self.means)
        self.gradients = torch.zeros(partials, members, self.size, dtype=dtype, device=device)

    def __contains__(self, name: str) -> bool:
        return name in self._shapes

    @property
    def has_copies(self) -> bool:
        """Whether the copies are a tensor of their own."""
        return self.copies is not self.values

    def columns(self, name: str) -> slice:
        """Return the columns of every buffer that hold a parameter."""
        rows, columns = self._shapes[name]
        return slice(self._offsets[name], self._offsets[name] + rows * columns)

    def view(self, buffer: Tensor, name: str) -> Tensor:
        """Return a parameter in one of the buffers, ``(members, rows, columns)``."""
        return buffer[:, self.columns(name)].view(len(buffer), *self._shapes[name])


class Parameters:
    """All parameters of all members: `matrices` for the products, and `vectors`, which kernels read in float32.

    Padding is zero and stays zero: its gradients are zero.

    Parameters
    ----------
    models : sequence of Ladder
        The members, all of one shape.
    padded : sequence of int
        Width of every level with its padding.
    dtype : torch.dtype
        Type of the products, and of the gradients and first moments of the matrices.
    device : torch.device
    """

    def __init__(
        self, models: Sequence[Model], padded: Sequence[int], dtype: torch.dtype, device: torch.device
    ) -> None:
        self._models = models
        matrices, vectors = {}, {}
        for level, rung in enumerate(models[0].rungs):
            for name, parameter in rung.named_parameters(prefix=f"rungs.{level}"):
                if name.endswith("back.weight"):
                    matrices[name] = (padded[level - 1], padded[level])
                elif name.endswith("weight"):
                    matrices[name] = (padded[level], padded[level - 1])
                else:
                    vectors[name] = (_as_matrix(parameter).shape[0], padded[level])
        self.matrices = Buffers(matrices, len(models), dtype, device)
        self.vectors = Buffers(vectors, len(models), torch.float32, device, kernels.PARTS)
        for member, model in enumerate(models):
            for name, parameter in model.named_parameters():
                self._without_padding(member, name, parameter).copy_(_as_matrix(parameter.detach()))
        self.update_copies()

    def update_copies(self) -> None:
        """Copy the values of the matrices to the copies that products read."""
        if self.matrices.has_copies:
            self.matrices.copies.copy_(self.matrices.values)

    def moments(self) -> list[Tensor]:
        """Return the buffers of Adam's moments."""
        return [buffer for buffers in (self.matrices, self.vectors) for buffer in (buffers.means, buffers.squares)]

    def tensors(self) -> dict[str, Tensor]:
        """Return parameters and Adam's moments as views without padding, ``(*members, ...)``; see `EagerEngine`."""
        return {
            f"{kind}.{name}": tensor
            for kind, buffer in (("model", "values"), ("mean", "means"), ("square", "squares"))
            for name, tensor in self._by_name(buffer).items()
        }

    def packed(self) -> Model:
        """Return all members as one packed model whose parameters are views, so that it follows every update."""
        return with_tensors(pack(self._models), self._by_name("values"))

    def models(self) -> list[Model]:
        """Return a copy of each member."""
        return [
            with_tensors(
                model,
                {
                    name: self._without_padding(member, name, parameter).clone().view(parameter.shape)
                    for name, parameter in model.named_parameters()
                },
            )
            for member, model in enumerate(self._models)
        ]

    def _by_name(self, buffer: str) -> dict[str, Tensor]:
        """Return every parameter of all members in a buffer, ``(*members, ...)``."""
        members: int | slice = 0 if len(self._models) == 1 else slice(None)
        tensors = {}
        for name, parameter in self._models[0].named_parameters():
            matrix = self._without_padding(members, name, parameter, buffer)
            tensors[name] = matrix.squeeze(-2) if parameter.dim() == 1 else matrix
        return tensors

    def _without_padding(self, members: int | slice, name: str, parameter: Tensor, buffer: str = "values") -> Tensor:
        """Return a parameter of one or more members as a matrix, a view without its padding."""
        buffers = self.matrices if name in self.matrices else self.vectors
        rows, columns = _as_matrix(parameter).shape
        return buffers.view(getattr(buffers, buffer), name)[members, :rows, :columns]


def _as_matrix(parameter: Tensor) -> Tensor:
    return parameter if parameter.dim() == 2 else parameter.unsqueeze(0)


@dataclass
class Level:
    """What the kernels of a level need to know, and its tensors.

    Attributes
    ----------
    number : int
        0 for the input.
    width, padded : int
        Units without padding, and with it.
    activation : int
        φ, as a number of `kernels.ACTIVATIONS`.
    beta, gamma, denoised, costed : bool
        Whether the level has β, γ, a denoiser and a denoising cost.
    lowest : bool
        Whether the decoder ends here.
    unlabeled, clean : int
        Rows of the batch's second and third part. There are clean rows up to the highest level with a cost.
    cost_slot : int
        The first of its slots in the costs of an update: every program of `decode_kernel` stores its own share.
    noise_offset : int
        Where its noise begins in that of an update.
    tensors : dict of str to Tensor
        ``(members, rows, padded)`` each, for the kernels; see `build_levels`.
    """

    number: int
    width: int
    padded: int
    activation: int
    beta: bool
    gamma: bool
    denoised: bool
    costed: bool
    lowest: bool
    unlabeled: int
    clean: int
    cost_slot: int = 0
    noise_offset: int = 0
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    @property
    def parts(self) -> int:
        """How many of the labeled, the corrupted and the clean rows there are here, in this order."""
        return 1 + (self.unlabeled > 0) + (self.clean > 0)


def denoiser_number(model: Model) -> int:
    """Return the denoising function as a number of `kernels.DENOISERS`; 0 where there is none to run."""
    types = {type(rung.denoiser) for rung in model.rungs}
    for name, denoiser in DENOISERS.items():
        if denoiser in types:
            return kernels.DENOISERS[name]
    return 0


def build_levels(
    model: Model, members: int, labeled: int, unlabeled: int, dtype: torch.dtype, device: torch.device
) -> list[Level]:
    """Return the levels of a dense ladder, the input first, with the tensors for batches of this many rows.

    Tensors are of `dtype`, but float32 for the scores of the top and their gradients: a softmax needs that precision.
    """
    costed = [number for number, rung in enumerate(model.rungs) if float(rung.cost) > 0]
    levels = [
        Level(
            number=number,
            width=rung.shape[0],
            padded=-(-rung.shape[0] // 8) * 8,
            activation=kernels.ACTIVATIONS[rung.activation.name],
            beta=rung.beta is not None,
            gamma=rung.gamma is not None,
            denoised=rung.denoiser is not None,
            costed=number in costed,
            lowest=bool(costed) and number == costed[0],
            unlabeled=unlabeled,
            clean=unlabeled if number <= max(costed, default=-1) else 0,
        )
        for number, rung in enumerate(model.rungs)
    ]
    levels[0].clean = levels[1].clean  # clean input rows are gathered only for a level above
    offset = 0
    for level in levels:
        level.noise_offset = offset
        offset += (labeled + unlabeled) * level.width
        above = levels[min(level.number + 1, len(levels) - 1)]
        _allocate(level, above, members, labeled, dtype, device)
    return levels


def _allocate(level: Level, above: Level, members: int, labeled: int, dtype: torch.dtype, device: torch.device) -> None:
    """Allocate the tensors of a level; `above` is the level itself at the top."""

    def zeros(rows: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(members, rows, level.padded, dtype=dtype, device=device)

    top = level is above
    score_dtype = torch.float32 if top else dtype
    unlabeled, corrupted = level.unlabeled, labeled + level.unlabeled
    rows = corrupted + level.clean
    level.tensors["hidden"] = zeros(rows, score_dtype)
    if level.number:
        level.tensors["projected"] = zeros(rows, dtype)
        level.tensors["statistics"] = zeros(2 * kernels.PARTS, torch.float32)  # mean and 1/σ of each part
        level.tensors["grad_projected"] = zeros(rows, dtype)
        level.tensors["grad_hidden"] = zeros(corrupted + (0 if top else above.clean), score_dtype)
    if level.denoised:
        level.tensors["signal"] = zeros(unlabeled, score_dtype)
        level.tensors["signal_statistics"] = zeros(2, torch.float32)  # mean and 1/σ
        level.tensors["grad_signal"] = zeros(unlabeled, score_dtype)
        level.tensors["grad_statistics"] = zeros(2, torch.float32)
        level.tensors["denoised"] = zeros(unlabeled, dtype)
        level.tensors["grad_denoised"] = zeros(unlabeled, dtype)
        level.tensors["grad_latents"] = zeros(unlabeled + level.clean, dtype)
