"""What processes that share each batch send to each other in an update: all-reduces, and their bytes.

    python benchmarks/traffic.py
    python benchmarks/traffic.py --widths 10000 5000 2500 2500 2500 --inputs 7840

Counted in the code: the costs and gradients of a few rows are computed without values (on the device "meta"), and what
is summed over processes is noted. The sizes do not depend on the number of rows or of processes.
"""

import argparse
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tikas import Dense, Ladder
from tikas.model.normalization import Processes


@dataclass(frozen=True)
class Traffic:
    """Bytes of each tensor that is summed over the processes in an update, in the order of the sums.

    Attributes
    ----------
    forward, backward
        Sums for batch statistics and costs. The next operation needs each of them, so they cannot overlap with it.
    gradients
        Bytes of all gradients, which `DistributedDataParallel` sums in buckets during the backward pass.
    """

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    gradients: int

    @property
    def all_reduces(self) -> int:
        """Number of sums, without those of gradients."""
        return len(self.forward) + len(self.backward)

    @property
    def bytes(self) -> int:
        """Bytes of all sums, without those of gradients."""
        return sum(self.forward) + sum(self.backward)


class Counted(Processes):
    """Two processes, whose sums are only counted."""

    size = 2

    def __init__(self) -> None:
        super().__init__()
        self.counts: list[int] = []

    def sum(self, x: Tensor) -> Tensor:
        self.counts.append(x.numel() * x.element_size())
        return x


def traffic(model: Any, rows: Tensor | None = None) -> Traffic:
    """Return what the processes that train a model send.

    Parameters
    ----------
    model : Ladder or Γ-model
    rows : Tensor, optional
        A few rows; a Γ-model needs them.
    """
    model = deepcopy(model).to("meta").train()
    processes = Counted()
    model.processes = processes
    unlabeled = torch.empty(4, *model.shapes[0], device="meta") if rows is None else rows.to("meta")
    labeled = unlabeled[:2]
    targets = torch.zeros(2, dtype=torch.long, device="meta")
    if model.task == "regression":
        targets = torch.zeros(2, *model.rungs[-1].shape, device="meta")
    noise = model.draw_noise(unlabeled, len(unlabeled) + 2)
    costs = model.training_costs(unlabeled, labeled, targets, noise)
    forward = tuple(processes.counts)
    processes.counts.clear()
    costs.total.backward()
    gradients = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    return Traffic(forward, tuple(processes.counts), gradients)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=784)
    parser.add_argument("--widths", type=int, nargs="+", default=[1000, 500, 250, 250, 250], help="hidden layers")
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--costs", type=float, nargs="+", help="λ of each level, or one for the top alone")
    args = parser.parse_args()
    with torch.device("meta"):
        ladder = Ladder((args.inputs,), [Dense(width) for width in [*args.widths, args.classes]], costs=args.costs)
    found = traffic(ladder)
    for name, sums in (("forward", found.forward), ("backward", found.backward)):
        print(f"{name}: {len(sums)} all-reduces, {sum(sums):,} bytes, the largest {max(sums):,}")
    print(f"gradients: {found.gradients:,} bytes")


if __name__ == "__main__":
    main()
