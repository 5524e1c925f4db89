"""Products in bf16 on a CPU that has instructions for it: each, with its casts, one operation to a compiler."""

from typing import Any, cast

import torch
from torch import Tensor


def has_half_products() -> bool:
    """Whether this machine's CPU multiplies bf16 by instructions of its own; elsewhere that is emulated, and slow.

    Examples
    --------
    >>> has_half_products() in (True, False)
    True
    """
    return any(getattr(torch.cpu, f"_is_{name}_supported", bool)() for name in ("amx_tile", "avx512_bf16"))


def half_product(x: Tensor, weight: Tensor) -> Tensor:
    """x Wᵀ of what is left of both in bf16, in the type of x.

    One operation, which the compiler does not look into. Casts that it sees become part of its chains, which then take
    three times as long as in float32, and the quicker products gain nothing.

    Examples
    --------
    >>> half_product(torch.full((5, 4), 1.001), torch.ones(3, 4))[0]
    tensor([4., 4., 4.])
    """
    return cast("Tensor", _forward(x, weight))


@torch.library.custom_op("tikas::half_product", mutates_args=())
def _forward(x: Tensor, weight: Tensor) -> Tensor:
    return (x.bfloat16() @ weight.bfloat16().mT).to(x.dtype)


@torch.library.custom_op("tikas::half_product_back", mutates_args=())
def _back(gradient: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    half = gradient.bfloat16()
    to_x, to_weight = half @ weight.bfloat16(), half.mT @ x.bfloat16()
    return to_x.to(x.dtype), to_weight.to(weight.dtype)


@_forward.register_fake
def _(x: Tensor, weight: Tensor) -> Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[-2])


@_back.register_fake
def _(_: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), weight.new_empty(weight.shape)


def _keep_factors(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:  # noqa: ARG001
    ctx.save_for_backward(*inputs)


_forward.register_autograd(lambda ctx, gradient: _back(gradient, *ctx.saved_tensors), setup_context=_keep_factors)
