r"""The denoising functions: g of the paper's equation (2), and its alternatives g1 to g4 of the appendix.

Each maps a corrupted value z̃ and the signal u from the level above to an estimate ẑ of the clean value. Each unit (on
maps, each channel) has its own parameters. All start at ẑ = 0, with slope 1 inside their sigmoids: starting at ẑ = z̃,
with all information in the skip connection, costs accuracy.
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from tikas.model.normalization import batch_dims, per_unit


class Denoiser(nn.Module):
    """Base class: parameters ``(coefficients, units)``, which start at zero except for the sigmoids' inner slopes.

    Parameters
    ----------
    shape
        Shape of the level.
    slopes
        The name of the parameter that contains the inner slopes, and their indices.
    counts
        The number of coefficients of each parameter, by name.
    """

    def __init__(self, shape: tuple[int, ...], slopes: tuple[str, Sequence[int]], **counts: int) -> None:
        super().__init__()
        self.shape = shape
        self.slopes = slopes
        for name, count in counts.items():
            self.register_parameter(name, nn.Parameter(torch.zeros(count, shape[0])))

    @torch.no_grad()
    def reset(self) -> None:
        """Set the initial values."""
        for parameter in self.parameters():
            parameter.zero_()
        name, indices = self.slopes
        self.get_parameter(name)[list(indices)] = 1.0

    def forward(self, corrupted: Tensor, above: Tensor) -> Tensor:
        """Return ẑ = g(z̃, u) for batches of the level."""
        raise NotImplementedError

    def coefficients(self, parameter: Tensor) -> tuple[Tensor, ...]:
        """Return the coefficients of a parameter, each shaped to broadcast over a batch."""
        return _coefficients(parameter, self.shape)


def _coefficients(parameter: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, ...]:
    return per_unit(parameter, shape).unbind(-2 - len(shape))


class Gaussian(Denoiser):
    r"""g, optimal if z is Gaussian given the level above. Equation (2):

    ẑ = (z̃ − μ(u)) υ(u) + μ(u)
    μ(u) = a1 sigmoid(a2 u + a3) + a4 u + a5
    υ(u) = a6 sigmoid(a7 u + a8) + a9 u + a10
    """

    a: Tensor

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(shape, slopes=("a", (1, 6)), a=10)

    def forward(self, corrupted: Tensor, above: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():
            return cast("Tensor", _Gaussian.apply(corrupted, above, self.a, self.shape))  # type: ignore[no-untyped-call]
        a1, a2, a3, a4, a5, a6, a7, a8, a9, a10 = self.coefficients(self.a)
        mean = a1 * torch.sigmoid(a2 * above + a3) + a4 * above + a5
        weight = a6 * torch.sigmoid(a7 * above + a8) + a9 * above + a10
        return (corrupted - mean) * weight + mean


class _Gaussian(torch.autograd.Function):
    """g and its gradient in closed form, with a quarter of the operations that autograd would run.

    Only for eager mode: torch.compile fuses the plain form just as well, and when torch 2.11 compiles this function, it
    drops the gradient of `a`.
    """

    @staticmethod
    def forward(ctx: Any, corrupted: Tensor, above: Tensor, a: Tensor, shape: tuple[int, ...]) -> Tensor:
        a1, a2, a3, a4, a5, a6, a7, a8, a9, a10 = _coefficients(a, shape)
        gate = torch.addcmul(a3, a2, above).sigmoid_()
        mean = torch.addcmul(a5, a4, above).addcmul_(a1, gate)
        weight_gate = torch.addcmul(a8, a7, above).sigmoid_()
        weight = torch.addcmul(a10, a9, above).addcmul_(a6, weight_gate)
        distance = corrupted - mean
        ctx.save_for_backward(above, a, gate, weight_gate, weight, distance)
        ctx.shape = shape
        return mean.addcmul_(distance, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        above, a, gate, weight_gate, weight, distance = ctx.saved_tensors
        parts = _coefficients(a, ctx.shape)
        (grad,) = gradients
        grad_corrupted = grad * weight
        # ∂ẑ/∂μ = 1 − υ and ∂ẑ/∂υ = z̃ − μ
        above_by_mean, grad_mean = _mixture_backward(grad - grad_corrupted, above, gate, parts[:5], ctx.shape)
        above_by_weight, grad_weight = _mixture_backward(grad * distance, above, weight_gate, parts[5:], ctx.shape)
        return grad_corrupted, above_by_mean + above_by_weight, torch.stack(grad_mean + grad_weight, -2), None


def _mixture_backward(
    grad: Tensor, above: Tensor, gate: Tensor, coefficients: Sequence[Tensor], shape: tuple[int, ...]
) -> tuple[Tensor, list[Tensor]]:
    """Return the gradients of u and of the five coefficients in a1 s + a4 u + a5 with s = sigmoid(a2 u + a3)."""
    a1, a2, _, a4, _ = coefficients
    dims = batch_dims(shape)
    inner = (gate - gate.square()).mul_(grad).mul_(a1)  # gradient of a2 u + a3
    grad_above = (grad * a4).addcmul_(inner, a2)
    grad_coefficients = [grad * gate, inner * above, inner, grad * above, grad]
    return grad_above, [each.sum(dims) for each in grad_coefficients]


class MiniatureMLP(Denoiser):
    r"""g1, a miniature network that sees the product of its inputs:

    ẑ = a ξ + b sigmoid(c ξ),   ξ = [1, z̃, u, z̃ u]
    """

    a: Tensor
    b: Tensor
    c: Tensor
    width = 4
    """Length of ξ."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(shape, slopes=("c", (1,)), a=self.width, b=1, c=self.width)

    def features(self, corrupted: Tensor, above: Tensor) -> tuple[Tensor, ...]:
        """Return ξ without its first entry, the constant 1."""
        return corrupted, above, corrupted * above

    def forward(self, corrupted: Tensor, above: Tensor) -> Tensor:
        features = self.features(corrupted, above)
        a, (b,), c = map(self.coefficients, (self.a, self.b, self.c))
        return _affine(a, features) + b * torch.sigmoid(_affine(c, features))


class NoProduct(MiniatureMLP):
    r"""g2, the miniature network without the product:

    ẑ = a ξ' + b sigmoid(c ξ'),   ξ' = [1, z̃, u]
    """

    width = 3

    def features(self, corrupted: Tensor, above: Tensor) -> tuple[Tensor, ...]:
        return corrupted, above


class Linear(Denoiser):
    r"""g3, linear except for the product:

    ẑ = a ξ,   ξ = [1, z̃, u, z̃ u]
    """

    a: Tensor

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(shape, slopes=("a", ()), a=4)

    def forward(self, corrupted: Tensor, above: Tensor) -> Tensor:
        return _affine(self.coefficients(self.a), (corrupted, above, corrupted * above))


def _affine(coefficients: Sequence[Tensor], features: Sequence[Tensor]) -> Tensor:
    """Return the first coefficient plus each other coefficient times its feature."""
    total, *slopes = coefficients
    for slope, feature in zip(slopes, features, strict=True):
        total = total + slope * feature
    return total


class Additive(Denoiser):
    r"""g4, in which u shifts the estimate and never scales it:

    ẑ = a1 u + a2 sigmoid(a3 u + a4) + a5 z̃ + a6 sigmoid(a7 z̃ + a8) + a9
    """

    a: Tensor

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(shape, slopes=("a", (2, 6)), a=9)

    def forward(self, corrupted: Tensor, above: Tensor) -> Tensor:
        a1, a2, a3, a4, a5, a6, a7, a8, a9 = self.coefficients(self.a)
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
