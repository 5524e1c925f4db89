"""Run the written-out update and the plain one side by side on a CPU, with TRITON_INTERPRET=1; test_fused.py reads it.

A program of its own, because Triton decides when it is imported whether kernels are interpreted.
"""

import sys
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from triton.language import sum as sum_of_triton
from triton.runtime import interpreter

from tikas.data.splits import split
from tikas.data.streams import Examples, Streams
from tikas.training import loop
from tikas.training.building import build_ladder
from tikas.training.fit import fit
from tikas.training.fleet import Fleet
from tikas.training.fused import FusedFleet
from tikas.training.kernels.levels import climb_kernel
from tikas.training.recipe import Recipe

# As on a GPU, where the maximum of a number and of what is none is the number; the interpreter has the latter.
interpreter.InterpreterBuilder.create_maxnumf = lambda self, one, other: self.binary_op(one, other, np.fmax)

BASE = Recipe(data="array", network=(10, 6), costs=(10.0, 1.0, 0.1), batch_size=14, labeled_batch_size=9)
RECIPES = {
    "members": BASE,
    "bottom": replace(BASE, costs=(10.0, 0.0, 0.0)),
    "middle": replace(BASE, costs=(0.0, 2.0, 0.0)),
    "gamma": replace(BASE, costs=(1.0,)),
    "baseline": replace(BASE, costs=(0.0,)),
    "regression": replace(BASE, task="regression"),
    "weighted": BASE,
    "by columns": BASE,
    **{name: replace(BASE, activation=name) for name in ("tanh", "gelu", "leaky_relu")},
    **{name: replace(BASE, denoiser=name) for name in ("mlp", "no-product", "linear", "additive")},
}


def patch_once() -> None:
    """Make Triton's language Python's for good: its interpreter does that anew in every call, for half of its time."""
    for function in (climb_kernel, sum_of_triton):  # of the two modules by which functions know the language
        interpreter._patch_lang(function.fn)
    interpreter._patch_lang = lambda _: interpreter._LangPatchScope()


class Interpreted(FusedFleet):
    """The same updates, one after the other instead of captured."""

    def train_epoch(self, rates: Tensor) -> Tensor:
        streams, prepared, recorded = self.streams, self.prepare_rates(rates).float(), []
        streams.start_epoch()
        for first in range(0, streams.updates, streams.block):
            block = slice(first, first + streams.block)
            self.unlabeled_rows, self.labeled_rows = streams.unlabeled_plan[block], streams.labeled_plan[block]
            self.rates = prepared[block]
            streams.draw_noise()
            for place in range(streams.block):
                self.update_in_place(place)
            recorded.append(self.recorded.clone())
        return self.read_costs(torch.cat(recorded))


def fleet_of(kind: type[Fleet], name: str, updates: int = 2, dtype: torch.dtype = torch.float32) -> Fleet:
    """With as many updates an epoch; of products in this type where they are written out."""
    recipe, seeds = RECIPES[name], [0, 1, 2] if name == "members" else [0]
    draw = torch.Generator().manual_seed(0)
    rows = torch.rand(14 * updates, 13, generator=draw)
    if name == "by columns":  # as tables often lie in memory
        rows = rows.T.contiguous().T
    classes = torch.arange(len(rows)) % 3
    targets = classes if recipe.task == "classification" else rows[:, :2] * 2
    weights = torch.rand(len(rows), 2, generator=draw)[:, 0] if name == "weighted" else None  # a column of a table
    examples = Examples(rows, targets, 3 if recipe.task == "classification" else 2, weights)
    ladders = []
    for place, seed in enumerate(seeds):  # members differ in their settings, and stand away from first values
        own = replace(recipe, noise=(0.3 + 0.1 * place,), costs=tuple((1 + place) * cost for cost in recipe.costs))
        ladder = build_ladder(own, (13,), examples.outputs, seed)
        for parameter in ladder.parameters():
            parameter.data += 0.2 * torch.randn(parameter.shape, generator=draw)
        ladders.append(ladder)
    splits = [split(classes.numpy(), 9 * updates, seed=seed) for seed in seeds]
    streams = Streams(examples, splits, seeds, ladders[0].shapes, 14, 9, most_in_block=2, denoising=any(recipe.costs))
    return kind(ladders, streams, **({"dtype": dtype} if kind is Interpreted else {}))


def first_gradients(fleet: Fleet) -> dict[str, Tensor]:
    """Of the first update, from Adam's first moments after it: a tenth of the gradient."""
    if isinstance(fleet, Interpreted):
        storages = fleet.parameters.matrices, fleet.parameters.vectors
        names = [name for name, _ in fleet.template.named_parameters()]
        return {name: each.view(each.means, name) for name in names for each in storages if name in each}
    return {
        name: fleet.optimizer.state[parameter]["exp_avg"].view(fleet.members, -1, parameter.shape[-1])
        for name, parameter in fleet.ladder.named_parameters()
    }


def compare(name: str) -> tuple[float, float]:
    """The largest relative difference of a cost, and of a gradient to the largest of its parameter."""
    costs, gradients = [], []
    for kind in (Fleet, Interpreted):
        fleet = fleet_of(kind, name)
        rates = torch.zeros(fleet.streams.updates, dtype=torch.float64)
        costs.append(fleet.train_epoch(rates).view(len(rates), fleet.members, -1))
        gradients.append(first_gradients(fleet))
    worst = 0.0
    largest = max(float(tensor.abs().max()) for tensor in gradients[0].values())
    for parameter, plain in gradients[0].items():
        fused = gradients[1][parameter]
        padding = fused.clone()
        padding[:, : plain.shape[1], : plain.shape[2]] = 0
        assert not padding.any(), f"{name}: padding of {parameter} has a gradient"
        difference = (fused[:, : plain.shape[1], : plain.shape[2]] - plain).abs().max()
        worst = max(worst, float(difference) / max(float(plain.abs().max()), 1e-3 * largest))
    return float(((costs[1] - costs[0]).abs() / (costs[0].abs() + 1e-3)).max()), worst


def goes_on(name: str, dtype: torch.dtype = torch.float32) -> bool:
    """Whether a fleet that goes on from a snapshot makes the very updates of one that was never stopped."""
    one, other = (fleet_of(Interpreted, name, 1, dtype) for _ in "ab")
    rates = torch.full((one.streams.updates,), 0.01, dtype=torch.float64)
    one.train_epoch(rates)
    one.parameters.renew_copies()  # which kernels round as torch does on a GPU, but not where they are interpreted
    other.go_on_from(one.snapshot(), updates=len(rates))
    same_costs = torch.equal(one.train_epoch(rates), other.train_epoch(rates))
    plain = fleet_of(Fleet, name, updates=1)
    plain.go_on_from(one.snapshot(), updates=2 * len(rates))
    assert all(torch.equal(kept, one.snapshot()[key]) for key, kept in plain.snapshot().items())
    return same_costs and all(
        torch.equal(getattr(getattr(one.parameters, kind), buffer), getattr(getattr(other.parameters, kind), buffer))
        for kind in ("matrices", "vectors")
        for buffer in ("values", "means", "squares", "copies")
    )


def heeds_every_rate(name: str, dtype: torch.dtype, rtol: float) -> bool:
    """Whether the first of two updates changes the costs, and the second, whose rate is zero, as in the plain fleet."""
    costs = []
    for kind in (Fleet, Interpreted):
        fleet = fleet_of(kind, name, dtype=dtype)
        fleet.train_epoch(torch.tensor([0.05, 0.0], dtype=torch.float64))
        costs.append(fleet.train_epoch(torch.zeros(2, dtype=torch.float64)).view(2, fleet.members, -1))
    return torch.allclose(*costs, rtol=rtol)


def tells_of_damage(name: str) -> bool:
    """Whether the costs of the next update are no numbers where a weight is none any more."""
    fleet = fleet_of(Interpreted, name)
    fleet.tensors()["ladder.rungs.1.weight"][0, 0] = torch.nan
    return not fleet.train_epoch(torch.zeros(fleet.streams.updates, dtype=torch.float64))[0].isfinite().all()


def trains(name: str) -> bool:
    """Whether training by it, from members and rows to a history with held-out rows, is training by the plain fleet."""
    plain = fleet_of(Fleet, name)
    classes, seeds = plain.streams.examples.targets, [0, 1]
    splits = [split(classes.numpy(), 9, seed=seed, validation=6) for seed in seeds]
    recipe = replace(RECIPES[name], epochs=2)
    launch, histories = loop.launch, []
    for kind in (launch, lambda ladders, streams, *_, **__: Interpreted(ladders, streams, torch.float32)):
        loop.launch = kind
        histories.append(fit(plain.streams.examples, splits, recipe, seeds, device="cpu").histories)
    loop.launch = launch
    totals = torch.tensor([[[line["total"] for line in member] for member in members] for members in histories])
    errors = [[member[-1]["validation_error"] for member in members] for members in histories]
    return torch.allclose(totals[0], totals[1], rtol=1e-4) and errors[0] == errors[1]


if __name__ == "__main__":
    patch_once()
    for case in sys.argv[1:]:
        print(case, *compare(case))
    told = [goes_on(case) for case in ("members", "gamma") if case in sys.argv]
    told += [goes_on(case, torch.bfloat16) for case in ("members",) if case in sys.argv]
    types = (torch.float32, 1e-3), (torch.bfloat16, 0.1)  # 4e-7 and 0.04 were measured; the updates change costs by 0.8
    told += [heeds_every_rate(case, *settings) for case in ("members",) for settings in types if case in sys.argv]
    told += [trains(case) for case in ("members",) if case in sys.argv]
    told += [tells_of_damage(case) for case in ("baseline", "tanh", "gelu", "leaky_relu") if case in sys.argv]
    print(*told, file=sys.stderr)
