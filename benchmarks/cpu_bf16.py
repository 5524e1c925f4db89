"""Products in bf16 on a CPU that has instructions for it: whether they make the engine's update quicker.

    python benchmarks/cpu_bf16.py --record results/cpu-bf16.jsonl

One seed of the paper's full ladder on two threads. Four programs, all without stored masks: the engine's in float32;
the same under autocast; with casts beside every product in the model; and the engine's in bf16, whose optimiser writes
the copies that products read (`tikas.training.compiled`). Records from before 9b0926f stored masks, and until then the
engine's was product and casts as one operation that the compiler did not look into; then, until the optimiser was
compiled, casts that a pass put into the graph.
On a chip without such instructions bf16 is emulated, and slow. That one with the tiles of AMX has AVX-512's bf16 alone
can be pretended by ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16.
"""

import argparse
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tikas.experiments.bench import Figure, epochs_of, interleave, start_fleet
from tikas.experiments.bench_script import headline, line_of, report
from tikas.model import dense
from tikas.training.compiled import CompiledFleet
from tikas.training.compilers import Compiler
from tikas.training.cpu_passes import PASSES
from tikas.training.recipe import Recipe

CPU = torch.device("cpu")
AS_IT_IS = dense.product
MOST = os.environ.get("ONEDNN_MAX_CPU_ISA", "all")
"""The instructions that products may use."""


class _Cast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        x, weight = x.bfloat16(), weight.bfloat16()
        ctx.save_for_backward(x, weight)
        return (x @ weight.mT).float()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        gradient = gradients[0].bfloat16()
        return (gradient @ weight).float(), (gradient.mT @ x).float()


def fleet_with(
    product: Callable[[Tensor, Tensor], Tensor] = AS_IT_IS,
    *,
    autocast: bool = False,
    dtype: torch.dtype = torch.float32,
) -> CompiledFleet:
    """A fleet of one whose update is compiled with these products."""
    plain = start_fleet(Recipe(), CPU, updates=10, program="plain")
    fleet = CompiledFleet(plain.ladders, plain.streams, dtype)
    costs = fleet.learning.costs

    def run(**batch: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            return costs(**batch)

    train_epoch = fleet.train_epoch

    def with_these_products(rates: Tensor) -> Tensor:
        dense.product = product
        return train_epoch(rates)

    fleet.costs = Compiler(PASSES)(run)
    fleet.train_epoch = with_these_products
    return fleet


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long to time")
    parser.add_argument("--record", help="a file to add the figures to")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(headline(CPU), flush=True)
    chip = {name: bool(getattr(torch.cpu, f"_is_{name}_supported")()) for name in ("avx512_bf16", "amx_tile")}
    print(chip, "instructions:", MOST, flush=True)
    fleets = {
        "float32": fleet_with(),
        "bf16, autocast": fleet_with(autocast=True),
        "bf16, casts compiled": fleet_with(lambda x, weight: _Cast.apply(x, weight)),
        "bf16, the engine's": fleet_with(dtype=torch.bfloat16),
    }
    timings = interleave([epochs_of(fleet, name) for name, fleet in fleets.items()], CPU, arguments.seconds)
    for name, timing in timings.items():
        ratio = timings["float32"].ms / timing.ms
        figure = Figure("cpu_bf16", name, timing.ms, ratio, "float32", {"chip": chip, "most": MOST})
        report(figure, line_of(figure), CPU, arguments.record)


if __name__ == "__main__":
    main()
