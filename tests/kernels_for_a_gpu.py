"""Compile the kernels of an update of the paper's network for an H200, and name them; test_kernels_compile.py reads it.

Nothing is run: a pretended driver says which chip is there, and launches end when there is code for it.
"""

import sys
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from tikas.data.splits import split
from tikas.data.streams import Examples, Streams
from tikas.training.building import build_ladder
from tikas.training.fused import FusedFleet
from tikas.training.recipe import Recipe


class PretendedDriver:
    """What Triton asks of a driver before it launches anything."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _: int) -> int:
        return 0


def paper_fleet(dtype: torch.dtype) -> FusedFleet:
    """One seed, 100 + 100 rows, with all that an update reads in its place."""
    classes, recipe = torch.arange(200) % 10, Recipe()
    ladder = build_ladder(recipe, (784,), 10, seed=0)
    examples, splits = Examples(torch.rand(200, 784), classes, 10), [split(classes.numpy(), 100)]
    fleet = FusedFleet([ladder], Streams(examples, splits, [0], ladder.shapes, 100, 100), dtype)
    fleet.streams.start_epoch()
    fleet.unlabeled_rows, fleet.labeled_rows = fleet.streams.unlabeled_plan, fleet.streams.labeled_plan
    fleet.rates = fleet.prepare_rates(torch.zeros(fleet.streams.updates)).float()
    return fleet


def compile_update(dtype: torch.dtype) -> set[str]:
    """The names of the kernels that an update would launch, each of which became code for the chip."""
    names, launch = set(), JITFunction.run

    def compile_only(kernel: JITFunction, *arguments: Any, warmup: bool, **settings: Any) -> None:  # noqa: ARG001
        assert launch(kernel, *arguments, warmup=True, **settings).asm["cubin"]
        names.add(kernel.__name__)

    driver.set_active(PretendedDriver())
    JITFunction.run = compile_only
    paper_fleet(dtype).update_in_place(0)
    return names


if __name__ == "__main__":
    print(*sorted(compile_update(getattr(torch, sys.argv[1]))))
