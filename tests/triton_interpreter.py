"""Train with the fused engine in Triton's interpreter and with the eager engine, and print how they differ, as JSON.

`training/test_fused.py` runs this as a program with TRITON_INTERPRET=1, because Triton decides when it is imported
whether kernels are interpreted. Without a GPU the fused engine makes its updates one after the other.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor
from triton.language import block_type
from triton.language import sum as triton_sum
from triton.runtime import interpreter

from tikas.data.batches import Batches
from tikas.data.datasets import Dataset
from tikas.data.splits import split
from tikas.training import trainer
from tikas.training.engines import EagerEngine
from tikas.training.fused.engine import FusedEngine
from tikas.training.fused.kernels import encode_kernel
from tikas.training.recipe import Recipe
from tikas.training.trainer import Trainer, TrainingResult

COLUMNS, UNLABELED, LABELED = 13, 7, 5
BASE = Recipe(network=(10, 6), costs=(10.0, 1.0, 0.1), batch_size=UNLABELED, labeled_batch_size=LABELED)
SHALLOW = replace(BASE, network=(10,))
RECIPES = {
    "two members": BASE,
    "gamma": replace(BASE, costs=(1.0,)),
    "input cost only": replace(BASE, costs=(10.0, 0.0, 0.0)),
    "middle cost only": replace(BASE, costs=(0.0, 2.0, 0.0)),
    "supervised only": replace(BASE, costs=(0.0,)),
    "weighted regression": replace(BASE, task="regression"),
    **{name: replace(SHALLOW, activation=name) for name in ("tanh", "gelu", "leaky_relu")},
    **{name: replace(SHALLOW, denoiser=name) for name in ("mlp", "no-product", "linear", "additive")},
}


def patch_interpreter() -> None:
    """Make the maximum of a number and NaN the number, as on a GPU, make masks boolean, and patch the language once.

    The interpreter repeats what a comparison of two scalars gives as int32, which Triton 3.9 refuses as a mask. It
    patches Triton's language anew in every call, which takes half of its time.
    """
    builder = interpreter.InterpreterBuilder
    builder.create_maxnumf = lambda self, one, other: self.binary_op(one, other, np.fmax)
    create_splat = builder.create_splat

    def create_boolean_splat(self: object, block: block_type, scalar: interpreter.TensorHandle) -> object:
        handle = create_splat(self, block, scalar)
        if block.scalar.is_int1():
            handle.data = handle.data.astype(bool)
        return handle

    builder.create_splat = create_boolean_splat
    for function in (encode_kernel, triton_sum):  # of the two modules through which kernels know the language
        interpreter._patch_lang(function.fn)
    interpreter._patch_lang = lambda _: SimpleNamespace(restore=lambda: None)


def make_engine(
    name: str, dtype: torch.dtype | None = None, seeds: Sequence[int] = (), updates: int = 2
) -> EagerEngine | FusedEngine:
    """Return a fused engine with products of `dtype`, or without a dtype an eager engine.

    The members differ in their settings, and their parameters have left their initial values.
    """
    recipe, draw = RECIPES[name], torch.Generator().manual_seed(0)
    seeds = seeds or ([0, 1] if name == "two members" else [0])
    rows, weights = torch.rand(UNLABELED * updates, COLUMNS, generator=draw), None
    classes = torch.arange(len(rows)) % 3
    targets, outputs = classes, 3
    if recipe.task == "regression":
        rows = rows.T.contiguous().T  # columns first, and weights with a stride: columns of a table
        weights = torch.rand(len(rows), 2, generator=draw)[:, 0]
        targets, outputs = rows[:, :2] * 2, 2
    models = []
    for seed in seeds:
        costs = tuple((1 + seed) * cost for cost in recipe.costs)
        model = replace(recipe, noise=(0.3 + 0.1 * seed,), costs=costs).build((COLUMNS,), outputs, seed)
        draw.manual_seed(seed)
        for parameter in model.parameters():
            parameter.data += 0.2 * torch.randn(parameter.shape, generator=draw)
        models.append(model)
    splits = [split(classes.numpy(), LABELED, seed=seed) for seed in seeds]
    shapes, denoising = models[0].shapes, any(recipe.costs)
    batches = Batches(rows, targets, weights, splits, seeds, shapes, UNLABELED, LABELED, block=2, denoising=denoising)
    return EagerEngine(models, batches) if dtype is None else FusedEngine(models, batches, dtype)


def rates(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def relative(one: Tensor, other: Tensor) -> float:
    """Return the largest relative difference of two tensors of costs."""
    return float(((one - other).abs() / (other.abs() + 1e-3)).max())


def difference_from_autograd(name: str) -> dict[str, float]:
    """Make two updates with a learning rate of zero; compare the costs, and the gradients by Adam's first moments.

    Gradients are compared with the largest one of their parameter.
    """
    eager, fused = make_engine(name), make_engine(name, torch.float32)
    expected, costs = (engine.train_epoch(rates(0.0, 0.0)) for engine in (eager, fused))
    state, found = eager.state_dict(), fused.state_dict()
    moments = {name: tensor for name, tensor in state.items() if name.startswith("mean.")}
    largest = max(float(tensor.abs().max()) for tensor in moments.values())
    gradients = max(
        float((found[name] - tensor).abs().max()) / max(float(tensor.abs().max()), 1e-3 * largest)
        for name, tensor in moments.items()
    )
    return {"costs": relative(costs, expected), "gradients": gradients, "padding": largest_padding(fused)}


def largest_padding(engine: FusedEngine) -> float:
    """Return the largest value or first moment in the padding of the engine's parameters."""
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


def check_training(dtype: torch.dtype, seeds: Sequence[int]) -> dict[str, object]:
    """Train members, and compare them with the eager engine, a member alone, and engines that load their state."""
    name, falling = "two members", rates(0.05, 0.01)
    engine, eager = make_engine(name, dtype, seeds), make_engine(name, None, seeds)
    costs = engine.train_epoch(falling)
    found: dict[str, object] = {"eager": relative(costs, eager.train_epoch(falling))}
    if len(seeds) > 1:
        found["alone"] = relative(make_engine(name, dtype, seeds[1:2]).train_epoch(falling), costs[:, 1])
    engine._parameters.update_copies()  # rounded by torch, as kernels round on a GPU, but not in the interpreter
    state, resumed = engine.state_dict(), make_engine(name, dtype, seeds)
    resumed.load_state_dict(state, updates=2)
    eager.load_state_dict(state, updates=2)
    found["loaded into eager"] = equal_states(eager.state_dict(), state)
    if len(seeds) > 1:
        warm_up(resumed, engine.batches)
        found["unchanged by the warm-up"] = equal_states(resumed.state_dict(), state)
    same_costs = torch.equal(engine.train_epoch(falling), resumed.train_epoch(falling))
    found["resumed"] = same_costs and equal_states(engine.state_dict(), resumed.state_dict())
    return found


def warm_up(engine: FusedEngine, batches: Batches) -> None:
    """Warm up as before a capture, with the rows that these batches have drawn."""
    graph = engine._graph
    graph.unlabeled, graph.labeled = batches.unlabeled_plan, batches.labeled_plan
    graph.rates = torch.zeros(batches.block, engine.members, 2)
    graph.warm_up(engine.update, engine._parameters.moments())


def equal_states(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def costs_show_nan(name: str) -> bool:
    """Return whether the costs of the next update are not finite once a weight is NaN."""
    engine = make_engine(name, torch.float32, updates=1)
    engine._parameters.tensors()["model.rungs.1.weight"][0, 0] = torch.nan
    return not engine.train_epoch(rates(0.0)).isfinite().all()


def difference_of_fits() -> float:
    """Return how much the histories of `Trainer.fit` with the fused and with the eager engine differ, relatively."""
    rows = np.random.default_rng(0).random((13, COLUMNS), np.float32)
    dataset = Dataset(rows, np.arange(13) % 3, classes=np.arange(3))
    splits = [split(dataset.targets, labels=6, validation=6, seed=seed) for seed in (0, 1)]

    def fit() -> TrainingResult:
        return Trainer(replace(SHALLOW, epochs=2), device="cpu").fit(dataset, splits, [0, 1])

    expected = fit()
    trainer.choose_engine = lambda models, batches, *_, **__: FusedEngine(models, batches, torch.float32)
    found = fit()
    names = ("total", "supervised", "validation_error")
    pairs = zip(found.histories, expected.histories, strict=True)
    return max(abs(one[-1][name] - other[-1][name]) / (1 + other[-1][name]) for one, other in pairs for name in names)


if __name__ == "__main__":
    patch_interpreter()
    results: dict[str, object] = {name: difference_from_autograd(name) for name in RECIPES}
    results["float32"] = check_training(torch.float32, seeds=[0, 1])
    results["bfloat16"] = check_training(torch.bfloat16, seeds=[0])
    for activation in ("supervised only", "tanh", "gelu", "leaky_relu"):
        results[f"NaN, {activation}"] = costs_show_nan(activation)
    results["fit"] = difference_of_fits()
    print(json.dumps(results))
