"""What needs a GPU: the engines for it train as the eager one does, and models predict there as on the CPU."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.datasets import load_digits
from torch import Tensor, nn

from tikas import LadderClassifier, LadderRegressor
from tikas.data.batches import Batches
from tikas.data.datasets import Dataset
from tikas.data.splits import split
from tikas.data.transforms import Whitening
from tikas.estimators import base
from tikas.model.ladder import Model
from tikas.training import checkpoint, engines
from tikas.training.callbacks import Progress
from tikas.training.checkpoint import Checkpointer
from tikas.training.cuda_graph import CudaGraphEngine, SideBySideEngine, SideStream
from tikas.training.engines import EagerEngine, choose_engine
from tikas.training.environment import full_precision
from tikas.training.recipe import Recipe
from tikas.training.trainer import Trainer, TrainingResult

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU on this machine"),
    pytest.mark.filterwarnings("ignore"),  # torch's compiler raises some of its own
]

GPU = "cuda"
RECIPE = Recipe(network=(40, 20), epochs=3)
IMAGES = Recipe(network=("conv 6 3", "max 2", "conv 8 3 same", "mean 2", "global", "top"), epochs=2)
POINTWISE = replace(IMAGES, network=("conv 6 7", "conv 8 1", "global", "top"))
SEEDS = pytest.mark.parametrize("seeds", [[3], [3, 4, 5]], ids=["one member", "three members"])
CONVOLUTIONAL = pytest.mark.parametrize("recipe", [IMAGES, POINTWISE], ids=["3x3", "1x1"])


def make_dataset(shape: tuple[int, ...]) -> Dataset:
    rows = torch.rand(1000, *shape, generator=torch.Generator().manual_seed(0)).numpy()
    targets = (rows.reshape(1000, -1)[:, 0] * 3).astype(np.int64)
    return Dataset(rows, targets, classes=np.arange(3))


def arguments(seeds: Sequence[int], recipe: Recipe, shape: tuple[int, ...]) -> tuple[list[Model], Batches]:
    """Return members and their batches on the GPU: ten updates an epoch, in one block."""
    dataset = make_dataset(shape)
    rows, targets = torch.from_numpy(dataset.rows).to(GPU), torch.from_numpy(dataset.targets).to(GPU)
    splits = [split(dataset.targets, 60, seed=seed) for seed in seeds]
    models = [recipe.build(shape, 3, seed).to(GPU) for seed in seeds]
    shapes, denoising = models[0].shapes, any(recipe.costs)
    return models, Batches(rows, targets, None, splits, seeds, shapes, 100, 80, block=10, denoising=denoising)


def train(
    kind: Any, seeds: Sequence[int], recipe: Recipe = RECIPE, shape: tuple[int, ...] = (30,), **settings: Any
) -> tuple[Tensor, list[Model]]:
    """Return the costs of every update ``(updates, members, 1 + levels)``, and the members."""
    engine = kind(*arguments(seeds, recipe, shape), **settings)
    with full_precision():
        costs = torch.cat([engine.train_epoch(torch.full((10,), 0.002)) for _ in range(recipe.epochs)])
    return costs.view(len(costs), len(seeds), -1), engine.models()


def train_fused(seeds: Sequence[int], *args: Any, dtype: torch.dtype = torch.float32) -> tuple[Tensor, list[Model]]:
    from tikas.training.fused.engine import FusedEngine

    return train(FusedEngine, seeds, *args, dtype=dtype)


def assert_close(ours: tuple[Tensor, list[Model]], theirs: tuple[Tensor, list[Model]]) -> None:
    """Compare up to rounding.

    Where a gradient is almost zero, Adam takes a whole step in the direction of its rounding error: a few weights may
    differ by a step, but no cost.
    """
    torch.testing.assert_close(ours[0], theirs[0], rtol=2e-3, atol=2e-3)
    for one, other in zip(ours[1], theirs[1], strict=True):
        for (name, found), expected in zip(one.named_parameters(), other.parameters(), strict=True):
            differ = ~torch.isclose(found, expected, rtol=5e-2, atol=5e-3)
            assert differ.sum() <= max(2, 0.05 * differ.numel()), name


# Engines


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@SEEDS
def test_replayed_updates_are_those_of_the_eager_engine(seeds: list[int], compiled: bool) -> None:
    assert_close(train(CudaGraphEngine, seeds, compiled=compiled), train(EagerEngine, seeds))


@pytest.mark.parametrize("kind", [SideBySideEngine, CudaGraphEngine])
@CONVOLUTIONAL
def test_replayed_updates_on_images_are_those_of_the_eager_engine(recipe: Recipe, kind: Any) -> None:
    task = [3, 4], recipe, (2, 9, 9)
    assert_close(train(kind, *task, compiled=True), train(EagerEngine, *task))


@pytest.mark.parametrize("denoiser", ["gaussian", "mlp", "no-product", "linear", "additive"])
@SEEDS
def test_fused_updates_are_those_of_the_eager_engine(seeds: list[int], denoiser: Any) -> None:
    recipe = replace(RECIPE, denoiser=denoiser)
    assert_close(train_fused(seeds, recipe), train(EagerEngine, seeds, recipe))


def test_fused_products_in_bf16_stay_close_to_those_in_float32() -> None:
    fast, _ = train_fused([3, 4, 5], dtype=torch.bfloat16)
    exact, _ = train_fused([3, 4, 5])
    torch.testing.assert_close(fast, exact, rtol=2e-2, atol=2e-2)


@CONVOLUTIONAL
def test_convolutions_in_bf16_stay_close_to_those_in_float32(recipe: Recipe) -> None:
    task = [3, 4], recipe, (2, 9, 9)
    fast, _ = train(SideBySideEngine, *task, compiled=True, exact=False)
    exact, _ = train(SideBySideEngine, *task, compiled=True, exact=True)
    torch.testing.assert_close(fast, exact, rtol=5e-2, atol=5e-2)
    assert (fast - exact).abs().max() > 1e-4  # they are in bf16


@pytest.mark.parametrize("seeds", [[3], [3, 4, 5, 6, 7]], ids=["one member", "five members"])
def test_updates_on_side_streams_have_the_bits_of_updates_on_one_stream(
    seeds: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No kernel reads or writes what one on another stream works with."""
    from tikas.training.fused import engine

    task = seeds, replace(RECIPE, network=Recipe().network), (784,)
    costs, models = train_fused(*task, dtype=torch.bfloat16)
    monkeypatch.setattr(engine, "_side_stream", lambda *_: SideStream(torch.device("cpu")))  # runs work in place
    expected_costs, expected = train_fused(*task, dtype=torch.bfloat16)
    assert torch.equal(costs, expected_costs)
    for one, other in zip(models, expected, strict=True):
        assert all(torch.equal(*pair) for pair in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("fused", [False, True], ids=["CUDA graph", "fused"])
def test_a_member_has_the_costs_alone_that_it_has_in_an_ensemble(fused: bool) -> None:
    alone, together = (
        train_fused(seeds, dtype=torch.bfloat16)[0] if fused else train(CudaGraphEngine, seeds)[0]
        for seeds in ([3], [3, 4, 5])
    )
    torch.testing.assert_close(together[:, :1], alone, rtol=2e-2, atol=2e-2)


def test_a_long_run_of_dense_ladders_gets_the_fused_engine_with_bf16_products() -> None:
    task = [3, 4], Recipe(), (784,)
    engine = choose_engine(*arguments(*task), 100_000, exact=False)
    rates = torch.full((10,), 0.002)
    engine.train_epoch(rates)
    torch.cuda.synchronize()
    started = time.perf_counter()
    engine.train_epoch(rates)
    torch.cuda.synchronize()
    assert type(engine).__name__ == "FusedEngine"
    assert engine.dtype == torch.bfloat16
    assert time.perf_counter() - started < 0.1  # 10 ms an update; an H200 takes half a millisecond


# Fits


def fit(
    recipe: Recipe | list[Recipe], seeds: Sequence[int], shape: tuple[int, ...], validation: int = 0, **settings: Any
) -> TrainingResult:
    dataset = make_dataset(shape)
    splits = [split(dataset.targets, 60, validation=validation, seed=seed) for seed in seeds]
    return Trainer(recipe, device="cuda:0" if GPU == "cuda" else GPU, **settings).fit(dataset, splits, seeds)


def test_members_of_different_settings_train_together_as_they_do_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another member's noise changes the total cost by a hundredth, any other setting by more."""
    monkeypatch.setattr(engines, "COMPILE_FROM", 0)
    settings = [(0.3, 1000.0, 0.002), (0.2, 500.0, 0.001), (0.5, 10.0, 0.005)]
    recipes = [
        replace(RECIPE, precision="exact", noise=(noise,), costs=(cost, 1.0, 0.1), learning_rate=rate)
        for noise, cost, rate in settings
    ]
    together = fit(recipes, [0, 1, 2], (30,))
    for seed, recipe in enumerate(recipes):
        (alone,) = fit(recipe, [seed], (30,)).histories
        assert together.histories[seed][-1]["total"] == pytest.approx(alone[-1]["total"], rel=2e-3)


def test_convolutional_members_have_the_validation_errors_that_they_have_alone() -> None:
    together = fit(IMAGES, [0, 1], (2, 9, 9), validation=200)
    for seed, history in enumerate(together.histories):
        (alone,) = fit(IMAGES, [seed], (2, 9, 9), validation=200).histories
        assert history[-1]["validation_error"] == pytest.approx(alone[-1]["validation_error"], abs=3)


@pytest.mark.parametrize(
    ("recipe", "shape"), [(RECIPE, (30,)), (replace(IMAGES, epochs=3), (2, 9, 9))], ids=["fused", "side by side"]
)
def test_an_interrupted_fit_resumes_to_the_same_result(
    recipe: Recipe, shape: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "MAX_SHARE_OF_TIME", float("inf"))  # snapshots after every epoch
    if recipe is RECIPE:
        monkeypatch.setattr(engines, "COMPILE_FROM", 0)

    def interrupt(progress: Progress) -> None:
        if progress.members and progress.epoch == 2:
            raise KeyboardInterrupt

    whole = fit(recipe, [3, 4], shape)
    first = fit(recipe, [3, 4], shape, callbacks=[interrupt], checkpointer=Checkpointer(tmp_path, seconds=0))
    assert first.interrupted
    checkpointer = Checkpointer(tmp_path, seconds=0)
    resumed = fit(recipe, [3, 4], shape, checkpointer=checkpointer)
    assert list(checkpointer.resumed_after.values()) == [[2], [2]]
    costs, expected = (
        torch.tensor([[line["supervised"] for line in history] for history in result.histories])
        for result in (resumed, whole)
    )
    assert_close((costs, resumed.members), (expected, whole.members))


# Predictions and transforms


@pytest.mark.parametrize(
    "network",
    [(64, 32), ("conv 4 3", "max 2"), nn.Sequential(nn.Flatten(), nn.Linear(64, 10))],
    ids=["dense", "convolutional", "module"],
)
def test_a_model_trained_on_a_gpu_predicts_there_as_on_the_cpu(network: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    images, digits = (load_digits().images / 16).astype(np.float32)[:, None], load_digits().target
    classifier = LadderClassifier(network, epochs=1, n_members=2, random_state=0, device=GPU)
    classifier.fit(images[:300], digits[:300])
    monkeypatch.setattr(base, "MIN_GPU_PRODUCTS", 0)
    on_gpu = classifier.predict_proba(images), classifier.transform(images)
    classifier.set_params(device="cpu")
    on_cpu = classifier.predict_proba(images), classifier.transform(images)
    for one, other in zip(on_gpu, on_cpu, strict=True):
        assert_allclose(one, other, atol=1e-10 if network == (64, 32) else 1e-4)
    assert_array_equal(classifier.predict(images), classifier.classes_[on_cpu[0].argmax(1)])
    assert next(classifier.ladder_.parameters()).device == torch.device("cpu")


def test_a_regressor_trained_on_a_gpu_predicts_there_as_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, digits = (load_digits().data / 16).astype(np.float32), load_digits().target
    monkeypatch.setattr(base, "MIN_GPU_PRODUCTS", 0)
    regressor = LadderRegressor((8,), epochs=1, random_state=0, device=GPU).fit(rows[:300], digits[:300])
    on_gpu = regressor.predict(rows)
    assert_allclose(on_gpu, regressor.set_params(device="cpu").predict(rows), atol=1e-8)


def test_whitening_is_fitted_on_a_gpu_in_two_seconds_with_the_result_of_the_cpu() -> None:
    draw = torch.Generator().manual_seed(0)
    images = nn.functional.avg_pool2d(torch.rand(50_000, 3, 34, 34, generator=draw), 3, stride=1)
    Whitening.fit(images[:2000], device=GPU)  # the first call loads cuSOLVER
    torch.cuda.synchronize()
    started = time.perf_counter()
    Whitening.fit(images, device=GPU)
    torch.cuda.synchronize()
    assert time.perf_counter() - started < 2
    few = images[:5000]
    on_gpu, on_cpu = Whitening.fit(few, device=GPU), Whitening.fit(few)
    torch.testing.assert_close(on_gpu.matrix.cpu(), on_cpu.matrix, rtol=0, atol=1e-4)
    torch.testing.assert_close(on_gpu(few), on_cpu(few), rtol=0, atol=1e-3)
    torch.testing.assert_close(on_gpu.to("cpu")(few), on_gpu(few), rtol=0, atol=1e-4)
