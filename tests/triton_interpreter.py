"""Train with the fused engine in Triton's interpreter and with the eager engine, and print how they differ, as JSON.

`training/test_fused.py` runs this as a program with TRITON_INTERPRET=1, because Triton decides when it is imported
whether kernels are interpreted. Without a GPU the fused engine makes its updates one after the other.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from triton.language import sum as triton_sum
from triton.runtime import interpreter

from tikas.data.batches import Batches
from tikas.data.splits import split
from tikas.training.engines import EagerEngine
from tikas.training.fused.engine import FusedEngine
from tikas.training.fused.kernels import encode_kernel
from tikas.training.recipe import Recipe

# The maximum of a number and NaN is the number, as on a GPU; in the interpreter it would be NaN.
interpreter.InterpreterBuilder.create_maxnumf = lambda self, one, other: self.binary_op(one, other, np.fmax)

BASE = Recipe(network=(10, 6), costs=(10.0, 1.0, 0.1), batch_size=14, labeled_batch_size=9)
RECIPES = {
    "three members": BASE,
    "gamma": replace(BASE, costs=(1.0,)),
    "input cost only": replace(BASE, costs=(10.0, 0.0, 0.0)),
    "middle cost only": replace(BASE, costs=(0.0, 2.0, 0.0)),
    "supervised only": replace(BASE, costs=(0.0,)),
    "regression": replace(BASE, task="regression"),
    "weighted": BASE,
    "columns first": BASE,
    **{name: replace(BASE, activation=name) for name in ("tanh", "gelu", "leaky_relu")},
    **{name: replace(BASE, denoiser=name) for name in ("mlp", "no-product", "linear", "additive")},
}
MEMBERS = {"three members": 3}
COLUMNS = 13


def patch_interpreter() -> None:
    """Patch Triton's language once: the interpreter does it anew in every call, which takes half of its time."""
    for function in (encode_kernel, triton_sum):  # of the two modules through which kernels know the language
        interpreter._patch_lang(function.fn)
    interpreter._patch_lang = lambda _: interpreter._LangPatchScope()


def make_engine(
    name: str, dtype: torch.dtype | None, updates: int = 2, members: Sequence[int] | None = None
) -> EagerEngine | FusedEngine:
    """Return a fused engine with products of `dtype`, or without a dtype an eager engine.

    The members differ in their settings, and their parameters have left their initial values.
    """
    recipe, draw = RECIPES[name], torch.Generator().manual_seed(0)
    rows = torch.rand(14 * updates, COLUMNS, generator=draw)
    if name == "columns first":  # how tables often lie in memory
        rows = rows.T.contiguous().T
    classes = torch.arange(len(rows)) % 3
    regression = recipe.task == "regression"
    targets = rows[:, :2] * 2 if regression else classes
    weights = torch.rand(len(rows), 2, generator=draw)[:, 0] if name == "weighted" else None  # a column of a table
    seeds = list(members or range(MEMBERS.get(name, 1)))
    models = []
    for seed in seeds:
        costs = tuple((1 + seed) * cost for cost in recipe.costs)
        own = replace(recipe, noise=(0.3 + 0.1 * seed,), costs=costs)
        model = own.build((COLUMNS,), 2 if regression else 3, seed)
        draw.manual_seed(seed)
        for parameter in model.parameters():
            parameter.data += 0.2 * torch.randn(parameter.shape, generator=draw)
        models.append(model)
    splits = [split(classes.numpy(), 9 * updates, seed=seed) for seed in seeds]
    denoising = any(recipe.costs)
    batches = Batches(
        rows, targets, weights, splits, seeds, models[0].shapes, 14, 9, block=2, denoising=denoising
    )
    return EagerEngine(models, batches) if dtype is None else FusedEngine(models, batches, dtype)


def rates(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def difference_from_eager(name: str) -> dict[str, float]:
    """Compare two updates: the largest relative difference of a cost, and of a gradient to its parameter's largest.

    The gradients are those of the first update: its first moments are a tenth of them, and after a second update with
    the same weights they still hold both updates' gradients.
    """
    eager, fused = make_engine(name, None), make_engine(name, torch.float32)
    one, other = (engine.train_epoch(rates(0.0, 0.0)) for engine in (eager, fused))
    costs = float(((other - one).abs() / (one.abs() + 1e-3)).max())
    wanted = {name: tensor for name, tensor in eager.state_dict().items() if name.startswith("mean.")}
    found = fused.state_dict()
    largest = max(float(tensor.abs().max()) for tensor in wanted.values())
    gradients = max(
        float((found[name] - tensor).abs().max()) / max(float(tensor.abs().max()), 1e-3 * largest)
        for name, tensor in wanted.items()
    )
    return {"costs": costs, "gradients": gradients, "padding": padding(fused)}


def padding(engine: FusedEngine) -> float:
    """Return the largest first moment or value in the padding of the engine's parameters."""
    largest = 0.0
    for buffers in (engine._parameters.matrices, engine._parameters.vectors):
        for buffer in (buffers.means, buffers.values):
            for name, parameter in engine.models()[0].named_parameters():
                if name in buffers:
                    tensor = buffers.view(buffer, name).clone()
                    rows, columns = (1, *parameter.shape)[-2:]
                    tensor[:, :rows, :columns] = 0
                    largest = max(largest, float(tensor.abs().max()))
    return largest


def resumes_exactly(name: str, dtype: torch.dtype) -> bool:
    """Return whether an engine that loads a state makes the same updates as the one that saved it."""
    one, other = make_engine(name, dtype, updates=1), make_engine(name, dtype, updates=1)
    one.train_epoch(rates(0.01))
    one._parameters.update_copies()  # rounded by torch, as kernels round on a GPU, but not in the interpreter
    other.load_state_dict(one.state_dict(), updates=1)
    same_costs = torch.equal(one.train_epoch(rates(0.01)), other.train_epoch(rates(0.01)))
    state = other.state_dict()
    return same_costs and all(torch.equal(tensor, state[key]) for key, tensor in one.state_dict().items())


def resumes_in_eager(name: str) -> bool:
    """Return whether an eager engine holds the state of a fused one after loading it."""
    fused, eager = make_engine(name, torch.float32, updates=1), make_engine(name, None, updates=1)
    fused.train_epoch(rates(0.01))
    state = fused.state_dict()
    eager.load_state_dict(state, updates=1)
    loaded = eager.state_dict()
    return loaded.keys() == state.keys() and all(torch.equal(tensor, loaded[key]) for key, tensor in state.items())


def cost_after_update(name: str, dtype: torch.dtype) -> float:
    """Train at two rates of which the second is zero, and return the costs' largest relative difference from eager."""
    costs = []
    for engine in (make_engine(name, None), make_engine(name, dtype)):
        engine.train_epoch(rates(0.05, 0.0))
        costs.append(engine.train_epoch(rates(0.0, 0.0)))
    return float(((costs[1] - costs[0]).abs() / costs[0].abs()).max())


def difference_alone(name: str) -> float:
    """Return by how much the costs of members alone differ from those in the ensemble, relatively, after an update."""
    ensemble = make_engine(name, torch.float32)
    together = ensemble.train_epoch(rates(0.05, 0.01))
    largest = 0.0
    for member in range(ensemble.members):
        alone = make_engine(name, torch.float32, members=[member]).train_epoch(rates(0.05, 0.01))
        largest = max(largest, float(((together[:, member] - alone).abs() / alone.abs()).max()))
    return largest


def costs_show_nan(name: str) -> bool:
    """Return whether the costs of the next update are not finite once a weight is NaN."""
    engine = make_engine(name, torch.float32)
    engine._parameters.tensors()["model.rungs.1.weight"][0, 0] = torch.nan
    return not engine.train_epoch(rates(0.0, 0.0))[0].isfinite().all()


def run(cases: Sequence[str]) -> dict[str, object]:
    found: dict[str, object] = {case: difference_from_eager(case) for case in cases}
    if "three members" in cases:
        found["alone"] = difference_alone("three members")
        found["resume float32"] = resumes_exactly("three members", torch.float32)
        found["resume bfloat16"] = resumes_exactly("three members", torch.bfloat16)
        found["resume gamma"] = resumes_exactly("gamma", torch.float32)
        found["resume in eager"] = resumes_in_eager("three members")
        found["updated float32"] = cost_after_update("three members", torch.float32)
        found["updated bfloat16"] = cost_after_update("three members", torch.bfloat16)
    for name in ("supervised only", "tanh", "gelu", "leaky_relu"):
        if name in cases:
            found[f"nan {name}"] = costs_show_nan(name)
    return found


if __name__ == "__main__":
    patch_interpreter()
    print(json.dumps(run(sys.argv[1:])))
