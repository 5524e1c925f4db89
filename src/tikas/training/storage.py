"""The parameters of a fused fleet: all members in one buffer, padded, with what Adam and the products need of them."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from tikas.model.ladder import Ladder
from tikas.training.fleet import stack, with_tensors


class Storage:
    """Parameters of all members as one matrix, a member a row; by name they are views into it.

    Parameters
    ----------
    shapes
        Rows and columns of each parameter, padded.
    members
        How many rows the matrix has.
    dtype
        Of the gradients, of Adam's means of them, and of the copies that products read.
    shares
        In how many places a gradient is left, to be summed.

    Attributes
    ----------
    values, gradients, means, squares, copies
        The parameters in float32, and what Adam reads and writes. Gradients have a dimension for their shares in
        front. Copies are the values themselves if they are of the same kind.

    Examples
    --------
    >>> storage = Storage({"weight": (3, 4), "beta": (1, 3)}, 2, torch.bfloat16, torch.device("cpu"))
    >>> storage.size, storage.values.shape, storage.copies.dtype
    (15, torch.Size([2, 15]), torch.bfloat16)
    >>> storage.view(storage.values, "beta").fill_(1.0).shape  # a view: what is written there is in `values`
    torch.Size([2, 1, 3])
    >>> storage.values.sum()
    tensor(6.)
    """

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, int]],
        members: int,
        dtype: torch.dtype,
        device: torch.device,
        shares: int = 1,
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
        self.gradients = torch.zeros(shares, members, self.size, dtype=dtype, device=device)

    def __contains__(self, name: str) -> bool:
        return name in self._shapes

    @property
    def buffers(self) -> tuple[Tensor, ...]:
        """Values, gradients, means, squares and copies."""
        return self.values, self.gradients, self.means, self.squares, self.copies

    def place(self, name: str) -> slice:
        """Where a parameter lies in the last dimension of every buffer."""
        rows, columns = self._shapes[name]
        return slice(self._offsets[name], self._offsets[name] + rows * columns)

    def view(self, buffer: Tensor, name: str) -> Tensor:
        """A parameter ``(members, rows, columns)`` in a buffer that lies as `values` does."""
        return buffer[:, self.place(name)].view(len(buffer), *self._shapes[name])


class FleetParameters:
    """All parameters of all members: matrices for the products, and vectors for the kernels.

    Parameters
    ----------
    ladders
        The members, all of one shape.
    padded
        The width of every level with its padding. Padding is zero, and stays so.
    dtype
        Of the products, and of what `Storage` says of matrices.
    shares
        In how many places the gradient of a vector is left.

    Examples
    --------
    >>> from tikas.model.specs import Dense
    >>> members = [Ladder((5,), [Dense(3)]) for _ in range(2)]
    >>> parameters = FleetParameters(members, [8, 8], torch.float32, torch.device("cpu"))
    >>> parameters.matrices.view(parameters.matrices.values, "rungs.1.weight").shape
    torch.Size([2, 8, 8])
    >>> torch.equal(parameters.ladders()[1].rungs[1].weight, members[1].rungs[1].weight)
    True
    """

    def __init__(
        self,
        ladders: Sequence[Ladder],
        padded: Sequence[int],
        dtype: torch.dtype,
        device: torch.device,
        shares: int = 1,
    ) -> None:
        self._ladders = ladders
        matrices, vectors = {}, {}
        for level, rung in enumerate(ladders[0].rungs):
            for name, parameter in rung.named_parameters(prefix=f"rungs.{level}"):
                if name.endswith("back.weight"):
                    matrices[name] = (padded[level - 1], padded[level])
                elif name.endswith("weight"):
                    matrices[name] = (padded[level], padded[level - 1])
                else:
                    vectors[name] = (_as_matrix(parameter).shape[0], padded[level])
        self.matrices = Storage(matrices, len(ladders), dtype, device)
        self.vectors = Storage(vectors, len(ladders), torch.float32, device, shares)
        for member, ladder in enumerate(ladders):
            for name, parameter in ladder.named_parameters():
                self._of(member, name, parameter).copy_(_as_matrix(parameter.detach()))
        self.renew_copies()

    def renew_copies(self) -> None:
        """Let the products see the values as they are."""
        if self.matrices.copies is not self.matrices.values:
            self.matrices.copies.copy_(self.matrices.values)

    def tensors(self) -> dict[str, Tensor]:
        """Where every parameter lies, and Adam's moments of it, without padding: ``(*members, ...)``.

        Examples
        --------
        >>> from tikas.model.specs import Dense
        >>> parameters = FleetParameters([Ladder((5,), [Dense(3)])], [8, 8], torch.bfloat16, torch.device("cpu"))
        >>> parameters.tensors()["square.rungs.1.weight"].shape
        torch.Size([3, 5])
        """
        return {
            f"{kind}.{name}": place
            for kind, buffer in (("ladder", "values"), ("mean", "means"), ("square", "squares"))
            for name, place in self._places(buffer).items()
        }

    def _places(self, buffer: str) -> dict[str, Tensor]:
        """Where every parameter of all members lies, ``(*members, ...)``."""
        everyone: int | slice = 0 if len(self._ladders) == 1 else slice(None)
        return {
            name: _without_row(self._of(everyone, name, parameter, buffer), parameter)
            for name, parameter in self._ladders[0].named_parameters()
        }

    def ladders(self) -> list[Ladder]:
        """The members as they are now, without padding."""
        return [
            with_tensors(
                ladder,
                {
                    name: self._of(member, name, parameter).clone().view(parameter.shape)
                    for name, parameter in ladder.named_parameters()
                },
            )
            for member, ladder in enumerate(self._ladders)
        ]

    def stacked(self) -> Ladder:
        """All members as one ladder, whose parameters are these themselves: it follows them through every update.

        Examples
        --------
        >>> from tikas.model.specs import Dense
        >>> members = [Ladder((5,), [Dense(3)]) for _ in range(2)]
        >>> parameters = FleetParameters(members, [8, 8], torch.float32, torch.device("cpu"))
        >>> together = parameters.stacked()
        >>> parameters.matrices.values.fill_(7.0)[0, 0], together.rungs[1].weight[0, 0, 0].item()
        (tensor(7.), 7.0)
        """
        return with_tensors(stack(self._ladders), self._places("values"))

    def forget_moments(self) -> None:
        """Set Adam back to its start."""
        for storage in (self.matrices, self.vectors):
            storage.means.zero_()
            storage.squares.zero_()

    def _of(self, member: int | slice, name: str, parameter: Tensor, buffer: str = "values") -> Tensor:
        """The place of a member's parameter as a matrix, or of several members', without its padding."""
        storage = self.matrices if name in self.matrices else self.vectors
        rows, columns = _as_matrix(parameter).shape
        return storage.view(getattr(storage, buffer), name)[member, :rows, :columns]


def _without_row(matrix: Tensor, parameter: Tensor) -> Tensor:
    return matrix.squeeze(-2) if parameter.dim() == 1 else matrix


def _as_matrix(parameter: Tensor) -> Tensor:
    return parameter if parameter.dim() == 2 else parameter.unsqueeze(0)
