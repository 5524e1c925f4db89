r"""The denoising functions: g of the paper's equation (2), and its rivals g1 to g4 of the appendix.

Each maps a corrupted value z̃ and a signal from above u to an estimate ẑ of the clean value, unit by unit, with
parameters of its own for every unit (every channel on maps). All five start at ẑ = 0, with slope one inside their
sigmoids: a start at ẑ = z̃ lets the skip connection carry everything and costs accuracy.
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from tikas.model.layout import batch_dims, rows_per_unit


class Denoiser(nn.Module):
    """What the five have in common: rows of parameters, one value a unit, zero but for the sigmoids' inner slopes.

    Parameters
    ----------
    shape
        Of the level.
    rows
        The names of the parameters, and how many rows each has.

    Examples
    --------
    >>> denoiser = Gaussian(shape=(3,))
    >>> denoiser.reset()
    >>> denoiser(torch.ones(2, 3), torch.ones(2, 3)).abs().max(), denoiser.a.shape
    (tensor(0., grad_fn=<MaxBackward1>), torch.Size([10, 3]))
    """

    def __init__(self, shape: tuple[int, ...], **rows: int) -> None:
        super().__init__()
        self.shape = shape
        for name, count in rows.items():
            self.register_parameter(name, nn.Parameter(torch.zeros(count, shape[0])))

    def rows(self, parameter: Tensor) -> Sequence[Tensor]:
        """The rows of a parameter ``(*members, rows, units)``, each laid out against a batch."""
        return rows_per_unit(parameter, self.shape)

    def reset(self) -> None:
        """Set the first values."""
        raise NotImplementedError

    def forward(self, corrupted: Tensor, above: Tensor) -> Tensor:
        """ẑ = g(z̃, u)."""
        raise NotImplementedError


class Gaussian(Denoiser):
    r"""g, optimal where z given the level above is Gaussian:

    ẑ = (z̃ - μ(u)) υ(u) + μ(u)
    μ(u) = a1 sigmoid(a2 u + a3) + a4 u + a5
    υ(u) = a6 sigmoid(a7 u + a8) + a9 u + a10

    Examples
    --------
    >>> g = Gaussian(shape=(1,))
    >>> with torch.no_grad():
    ...     g.a[4], g.a[9] = 1.0, 0.5  # μ = 1 and υ = 0.5, whatever u says
    >>> g(torch.tensor([[3.0]]), torch.tensor([[7.0]])).item()  # half way between z̃ and μ
    2.0
    """

    a: Tensor

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(shape, a=10)

    def reset(self) -> None:
        with torch.no_grad():
            self.a.zero_()[[1, 6]] = 1.0

    def forward(self, corrupted: Tensor, above: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():
            return cast("Tensor", _Gaussian.apply(corrupted, above, self.a, self.shape))  # type: ignore[no-untyped-call]
        a1, a2, a3, a4, a5, a6, a7, a8, a9, a10 = self.rows(self.a)
        prior = a1 * torch.sigmoid(a2 * above + a3) + a4 * above + a5
        trust = a6 * torch.sigmoid(a7 * above + a8) + a9 * above + a10
        return (corrupted - prior) * trust + prior


class _Gaussian(torch.autograd.Function):
    """g and its derivative in closed form: without a compiler, a quarter of the operations that autograd would run.

    A compiler fuses the plain form as well, and torch 2.11's drops the gradient of `a` when it compiles this one.
    """

    @staticmethod
    def forward(ctx: Any, corrupted: Tensor, above: Tensor, a: Tensor, shape: tuple[int, ...]) -> Tensor:
        a1, a2, a3, a4, a5, a6, a7, a8, a9, a10 = rows_per_unit(a, shape)
        gate = torch.addcmul(a3, a2, above).sigmoid_()
        prior = torch.addcmul(a5, a4, above).addcmul_(a1, gate)
        trust_gate = torch.addcmul(a8, a7, above).sigmoid_()
        trust = torch.addcmul(a10, a9, above).addcmul_(a6, trust_gate)
        distance = corrupted - prior
        ctx.save_for_backward(above, a, gate, trust_gate, trust, distance)
        ctx.shape = shape
        return prior.addcmul_(distance, trust)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        above, a, gate, trust_gate, trust, distance = ctx.saved_tensors
        rows = rows_per_unit(a, ctx.shape)
        (gradient,) = gradients
        to_corrupted = gradient * trust
        prior = _backward_of_mixture(gradient - to_corrupted, above, gate, rows[:5], ctx.shape)
        trusted = _backward_of_mixture(gradient * distance, above, trust_gate, rows[5:], ctx.shape)
        return to_corrupted, prior[0] + trusted[0], torch.stack(prior[1] + trusted[1], -2), None


def _backward_of_mixture(
    gradient: Tensor, above: Tensor, gate: Tensor, rows: Sequence[Tensor], shape: tuple[int, ...]
) -> tuple[Tensor, list[Tensor]]:
    """Through m = a1 s + a4 u + a5, s = sigmoid(a2 u + a3): to u, and to the five parameters."""
    a1, a2, _, a4, _ = rows
    dims = batch_dims(shape)
    inside = (gate - gate.square()).mul_(gradient).mul_(a1)
    to_above = (gradient * a4).addcmul_(inside, a2)
    to_rows = [gradient * gate, inside * above, inside, gradient * above, gradient]
    return to_above, [row.sum(dims) for row in to_rows]


class MiniatureMLP(Denoiser):
    r"""g1, a miniature network that sees the product of its inputs:

    ẑ = a ξ + b sigmoid(c ξ),   ξ = [1, z̃, u, z̃ u]

    Examples
    --------
    >>> g1 = MiniatureMLP(shape=(1,))
    >>> with torch.no_grad():
    ...     g1.a[3] = 1.0
    >>> g1(torch.tensor([[3.0]]), torch.tensor([[7.0]])).item()  # the product of both
    21.0
    """

    a: Tensor
    b: Tensor
    c: Tensor
    width = 4
    """Of ξ."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(shape, a=self.width, b=1, c=self.width)

    def reset(self) -> None:
        with torch.no_grad():
            self.a.zero_()
            self.b.zero_()
            self.c.zero_()[1] = 1.0

    def seen(self, corrupted: Tensor, above: Tensor) -> tuple[Tensor, ...]:
        """ξ without its one."""
        return corrupted, above, corrupted * above

    def forward(self, corrupted: Tensor, above: Tensor) -> Tensor:
        seen = self.seen(corrupted, above)
        (b,) = self.rows(self.b)
        return _affine(self.rows(self.a), seen) + b * torch.sigmoid(_affine(self.rows(self.c), seen))


class NoProduct(MiniatureMLP):
    r"""g2, the miniature network without the product:

    ẑ = a ξ' + b sigmoid(c ξ'),   ξ' = [1, z̃, u]

    Examples
    --------
    >>> g2 = NoProduct(shape=(1,))
    >>> with torch.no_grad():
    ...     g2.a[1:] = 1.0
    >>> g2(torch.tensor([[3.0]]), torch.tensor([[7.0]])).item()
    10.0
    """

    width = 3

    def seen(self, corrupted: Tensor, above: Tensor) -> tuple[Tensor, ...]:
        return corrupted, above


class Linear(Denoiser):
    r"""g3, linear but for the product:

    ẑ = a ξ,   ξ = [1, z̃, u, z̃ u]

    Examples
    --------
    >>> g3 = Linear(shape=(1,))
    >>> with torch.no_grad():
    ...     g3.a[:, 0] = torch.tensor([1.0, 2.0, 3.0, 4.0])
    >>> g3(torch.tensor([[3.0]]), torch.tensor([[7.0]])).item()  # 1 + 2·3 + 3·7 + 4·3·7
    112.0
    """

    a: Tensor

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(shape, a=4)

    def reset(self) -> None:
        with torch.no_grad():
            self.a.zero_()

    def forward(self, corrupted: Tensor, above: Tensor) -> Tensor:
        return _affine(self.rows(self.a), (corrupted, above, corrupted * above))


def _affine(rows: Sequence[Tensor], seen: Sequence[Tensor]) -> Tensor:
    """The first row, and each of the others times what it sees."""
    total, *slopes = rows
    for slope, value in zip(slopes, seen, strict=True):
        total = total + slope * value
    return total


class Additive(Denoiser):
    r"""g4, where u moves the mean and nothing else:

    ẑ = a1 u + a2 sigmoid(a3 u + a4) + a5 z̃ + a6 sigmoid(a7 z̃ + a8) + a9

    Examples
    --------
    >>> g4 = Additive(shape=(1,))
    >>> with torch.no_grad():
    ...     g4.a[0], g4.a[4] = 1.0, 0.5
    >>> g4(torch.tensor([[3.0]]), torch.tensor([[7.0]])).item()  # u + z̃/2
    8.5
    """

    a: Tensor

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(shape, a=9)

    def reset(self) -> None:
        with torch.no_grad():
            self.a.zero_()[[2, 6]] = 1.0

    def forward(self, corrupted: Tensor, above: Tensor) -> Tensor:
        a1, a2, a3, a4, a5, a6, a7, a8, a9 = self.rows(self.a)
        from_above = a1 * above + a2 * torch.sigmoid(a3 * above + a4)
        from_corrupted = a5 * corrupted + a6 * torch.sigmoid(a7 * corrupted + a8)
        return from_above + from_corrupted + a9


DENOISERS: dict[str, type[Gaussian | MiniatureMLP | NoProduct | Linear | Additive]] = {
    "gaussian": Gaussian,
    "mlp": MiniatureMLP,
    "no-product": NoProduct,
    "linear": Linear,
    "additive": Additive,
}
