"""What needs a GPU: captured and written-out fleets learn what the plain one learns, and answers are the CPU's."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.datasets import load_digits
from torch import nn

from tikas import LadderClassifier, LadderRegressor
from tikas.data.splits import split
from tikas.data.streams import Examples, Streams
from tikas.data.whitening import Whitening
from tikas.estimators import answers
from tikas.experiments.bench_suite import BENCHMARKS, Plan
from tikas.model.ladder import Ladder
from tikas.training import keeping
from tikas.training.building import build_ladder
from tikas.training.captured import CapturedFleet, SideBySide
from tikas.training.fit import fit
from tikas.training.fleet import Fleet
from tikas.training.keeping import Folder, Keeping
from tikas.training.lanes import Lane
from tikas.training.loop import Progress, Trained
from tikas.training.recipe import Recipe

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU on this machine"),
    pytest.mark.filterwarnings("ignore"),  # the compiler of torch 2.11 gives some of its own
]

RECIPE = Recipe(data="array", network=(40, 20), epochs=3)
SETTINGS = [(0.3, 1000.0, 0.002), (0.2, 500.0, 0.001), (0.5, 10.0, 0.005)]
IMAGES = Recipe(data="array", network=("conv 6 3", "max 2", "conv 8 3 same", "mean 2", "global", "top"), epochs=2)
PRODUCTS = replace(IMAGES, network=("conv 6 7", "conv 8 1", "global", "top"))


def trained(
    kind: type[Fleet], seeds: list[int], recipe: Recipe = RECIPE, shape: tuple[int, ...] = (30,), **more: object
) -> tuple[torch.Tensor, list[Ladder]]:
    """The costs of every update, and the members, after epochs of ten updates."""
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    draw = torch.Generator().manual_seed(0)
    rows = torch.rand(1000, *shape, generator=draw)
    targets = (rows.flatten(1)[:, 0] * 3).long()
    examples = Examples(rows, targets, 3).to(torch.device("cuda"))
    splits = [split(targets.cpu().numpy(), 60, seed=seed) for seed in seeds]
    ladders = [build_ladder(recipe, shape, 3, seed).cuda() for seed in seeds]
    streams = Streams(
        examples, splits, seeds, ladders[0].shapes, 100, 80, most_in_block=10, denoising=any(recipe.costs)
    )
    fleet = kind(ladders, streams, **more)
    costs = [fleet.train_epoch(torch.full((streams.updates,), 0.002)) for _ in range(recipe.epochs)]
    return torch.cat(costs).view(-1, len(seeds), len(ladders[0].rungs) + 1), fleet.disband()


def assert_same(ours: tuple[torch.Tensor, list[Ladder]], theirs: tuple[torch.Tensor, list[Ladder]]) -> None:
    """The same arithmetic in another order.

    Adam takes whole steps for a weight whose gradient is next to nothing, to the side that rounding puts it on (first
    weights changed by one in a million do the same): few weights may end elsewhere, and no cost.
    """
    torch.testing.assert_close(ours[0], theirs[0], rtol=2e-3, atol=2e-3)
    for one, other in zip(ours[1], theirs[1], strict=True):
        for name, weights in other.named_parameters():
            elsewhere = ~torch.isclose(dict(one.named_parameters())[name], weights, rtol=5e-2, atol=5e-3)
            assert elsewhere.sum() <= max(2, 0.05 * elsewhere.numel()), name


@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
@pytest.mark.parametrize("seeds", [[3], [3, 4, 5]], ids=["alone", "in company"])
def test_captured_updates_are_the_plain_updates(seeds: list[int], compiled: bool) -> None:
    assert_same(trained(CapturedFleet, seeds, compiled=compiled), trained(Fleet, seeds))


@pytest.mark.parametrize("kind", [SideBySide, CapturedFleet])
@pytest.mark.parametrize("recipe", [IMAGES, PRODUCTS], ids=["convolutions", "products"])
def test_captured_updates_on_images_are_the_plain_updates(recipe: Recipe, kind: type[Fleet]) -> None:
    seeds, shape = [3, 4], (2, 9, 9)
    assert_same(trained(kind, seeds, recipe, shape, compiled=True), trained(Fleet, seeds, recipe, shape))


@pytest.mark.parametrize("denoiser", ["gaussian", "mlp", "no-product", "linear", "additive"])
@pytest.mark.parametrize("seeds", [[3], [3, 4, 5]], ids=["alone", "in company"])
def test_written_out_updates_are_the_plain_updates(seeds: list[int], denoiser: str) -> None:
    from tikas.training.fused import FusedFleet

    recipe = Recipe(data="array", network=(40, 20), epochs=3, denoiser=denoiser)
    assert_same(trained(FusedFleet, seeds, recipe, dtype=torch.float32), trained(Fleet, seeds, recipe))


def test_products_in_bf16_stay_close_to_exact_ones() -> None:
    from tikas.training.fused import FusedFleet

    fast, _ = trained(FusedFleet, [3, 4, 5])
    exact, _ = trained(FusedFleet, [3, 4, 5], dtype=torch.float32)
    torch.testing.assert_close(fast, exact, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("seeds", [[3], [3, 4, 5, 6, 7]], ids=["alone", "in company"])
def test_what_matrices_learn_beside_an_update_is_what_they_learn_in_turn(
    seeds: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the last bit: nothing reads or writes what a kernel on another stream still works with."""
    from tikas.training import fused

    recipe = replace(RECIPE, network=Recipe().network)
    costs, ladders = trained(fused.FusedFleet, seeds, recipe, (784,))
    monkeypatch.setattr(fused, "Lane", lambda *_, **__: Lane(torch.device("cpu")))  # which has no stream of its own
    costs_in_turn, ladders_in_turn = trained(fused.FusedFleet, seeds, recipe, (784,))
    assert torch.equal(costs, costs_in_turn)
    for one, other in zip(ladders, ladders_in_turn, strict=True):
        assert all(torch.equal(*pair) for pair in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("recipe", [IMAGES, PRODUCTS], ids=["convolutions", "products"])
def test_convolutions_in_bf16_stay_close_to_exact_ones(recipe: Recipe) -> None:
    fast, _ = trained(SideBySide, [3, 4], recipe, (2, 9, 9), compiled=True, exact=False)
    exact, _ = trained(SideBySide, [3, 4], recipe, (2, 9, 9), compiled=True, exact=True)
    torch.testing.assert_close(fast, exact, rtol=5e-2, atol=5e-2)
    assert (fast - exact).abs().max() > 1e-4, "these are not in bf16"


@pytest.mark.parametrize("kind", ["captured", "fused"])
def test_a_member_learns_the_same_alone_and_in_company(kind: str) -> None:
    from tikas.training.fused import FusedFleet

    fleet = CapturedFleet if kind == "captured" else FusedFleet
    alone, _ = trained(fleet, [3])
    together, _ = trained(fleet, [3, 4, 5])
    torch.testing.assert_close(together[:, :1], alone, rtol=2e-2, atol=2e-2)


def test_members_of_other_settings_train_as_one_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """In exact products; the noise of another member changes the total by a hundredth, any other setting by more."""
    monkeypatch.setattr("tikas.training.engine.WORTH_COMPILING", 0)
    rows = torch.rand(1000, 30, generator=torch.Generator().manual_seed(0))
    targets = (rows[:, 0] * 3).long()
    exact = replace(RECIPE, precision="exact")
    recipes = [replace(exact, noise=(n,), costs=(c, 1.0, 0.1), learning_rate=r) for n, c, r in SETTINGS]
    splits = [split(targets.numpy(), 60, seed=seed) for seed in range(3)]
    together = fit(Examples(rows, targets, 3), splits, recipes, [0, 1, 2])
    for seed, recipe in enumerate(recipes):
        alone = fit(Examples(rows, targets, 3), [splits[seed]], recipe, [seed])
        assert together.histories[seed][-1]["total"] == pytest.approx(alone.histories[0][-1]["total"], rel=2e-3)


@pytest.mark.parametrize(("recipe", "shape"), [(RECIPE, (30,)), (PRODUCTS, (2, 9, 9))], ids=["written out", "compiled"])
def test_threads_capture_and_train_side_by_side(
    recipe: Recipe, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on two GPUs; here it is one, given twice. Exact products tell members apart, by 6 in 10,000 at the least."""
    monkeypatch.setattr("tikas.training.engine.WORTH_COMPILING", 0)
    rows = torch.rand(1000, *shape, generator=torch.Generator().manual_seed(0))
    targets = (rows.flatten(1)[:, 0] * 3).long()
    splits = [split(targets.numpy(), 60, seed=seed) for seed in range(4)]
    recipe = replace(recipe, precision="exact")
    as_one = fit(Examples(rows, targets, 3), splits, recipe, range(4))
    monkeypatch.setattr("tikas.training.fit.suitable_devices", lambda *_: [torch.device("cuda", 0)] * 2)
    spread = fit(Examples(rows, targets, 3), splits, recipe, range(4))
    for one, other in zip(as_one.histories, spread.histories, strict=True):
        assert other[-1]["total"] == pytest.approx(one[-1]["total"], rel=3e-4)


def test_convolutional_members_are_watched_one_by_one_as_they_are_trained() -> None:
    rows = torch.rand(1000, 2, 9, 9, generator=torch.Generator().manual_seed(0))
    targets = (rows[:, 0, 4, 4] * 3).long()
    splits = [split(targets.numpy(), 60, validation=200, seed=seed) for seed in range(2)]
    together = fit(Examples(rows, targets, 3), splits, IMAGES, [0, 1])
    for seed in range(2):
        alone = fit(Examples(rows, targets, 3), [splits[seed]], IMAGES, [seed])
        last = together.histories[seed][-1]["validation_error"]
        assert last == pytest.approx(alone.histories[0][-1]["validation_error"], abs=3)


@pytest.mark.parametrize(
    ("recipe", "shape"), [(RECIPE, (30,)), (replace(IMAGES, epochs=3), (2, 9, 9))], ids=["dense", "on images"]
)
def test_training_that_was_cut_short_goes_on_from_there(
    recipe: Recipe, shape: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "MOST_OF_THE_TIME", float("inf"))  # epochs are over here before keeping them has paid
    if recipe is RECIPE:
        monkeypatch.setattr("tikas.training.engine.WORTH_COMPILING", 0)  # or nothing is written out in so short a run
    rows = torch.rand(1000, *shape, generator=torch.Generator().manual_seed(0))
    targets = (rows.flatten(1)[:, 0] * 3).long()
    splits = [split(targets.numpy(), 60, seed=seed) for seed in (3, 4)]

    def train(keep: Keeping | None, epochs: int) -> Trained:
        def on_epoch(progress: Progress) -> None:
            if progress.members and progress.epoch == epochs:
                raise KeyboardInterrupt

        return fit(Examples(rows, targets, 3), splits, recipe, [3, 4], device="cuda:0", on_epoch=on_epoch, keep=keep)

    whole = train(None, epochs=99)
    assert train(Keeping(Folder(tmp_path), every=0), epochs=2).interrupted
    keep = Keeping(Folder(tmp_path), every=0)
    parts = train(keep, epochs=99)
    assert list(keep.continued.values()) == [[2], [2]]
    assert_same(*((_supervised(each), each.ladders) for each in (parts, whole)))


def _supervised(trained: Trained) -> torch.Tensor:
    return torch.tensor([[line["supervised"] for line in history] for history in trained.histories])


@pytest.mark.parametrize(
    "network",
    [(64, 32), ("conv 4 3", "max 2"), nn.Sequential(nn.Flatten(), nn.Linear(64, 10))],
    ids=["dense", "convolutional", "module"],
)
def test_what_was_trained_on_a_gpu_answers_there_as_on_the_cpu(network: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    images, digits = (load_digits().images / 16).astype(np.float32)[:, None], load_digits().target
    model = LadderClassifier(network, epochs=1, n_members=2, random_state=0, device="cuda").fit(
        images[:300], digits[:300]
    )
    monkeypatch.setattr(answers, "WORTH_A_GPU", 0)
    there = [ask(images) for ask in (model.predict_proba, model.transform)]
    model.set_params(device="cpu")
    for on_gpu, on_cpu in zip(there, (model.predict_proba(images), model.transform(images)), strict=True):
        assert_allclose(on_gpu, on_cpu, atol=1e-10 if network == (64, 32) else 1e-4)
    assert next(model.ladder_.parameters()).device == torch.device("cpu")
    values = LadderRegressor((8,), epochs=1, device="cuda").fit(images[:300, 0], digits[:300])
    assert_allclose(values.predict(images[:, 0]), values.set_params(device="cpu").predict(images[:, 0]), atol=1e-8)
    assert_array_equal(model.predict(images), model.classes_[model.predict_proba(images).argmax(1)])


def test_a_gpu_finds_the_same_whitening_in_two_seconds() -> None:
    draw = torch.Generator().manual_seed(0)
    images = nn.functional.avg_pool2d(torch.rand(50_000, 3, 34, 34, generator=draw), 3, stride=1)
    Whitening.fit(images[:2000], device="cuda")  # the first call loads cuSOLVER
    torch.cuda.synchronize()
    started = time.perf_counter()
    Whitening.fit(images, device="cuda")
    torch.cuda.synchronize()
    assert time.perf_counter() - started < 2
    few = images[:5000]
    on_gpu, on_cpu = Whitening.fit(few, device="cuda"), Whitening.fit(few)
    torch.testing.assert_close(on_gpu.matrix.cpu(), on_cpu.matrix, rtol=0, atol=1e-4)
    torch.testing.assert_close(on_gpu(few), on_cpu(few), rtol=0, atol=1e-3)
    torch.testing.assert_close(on_gpu.to("cpu")(few), on_gpu(few), rtol=0, atol=1e-4)


def test_a_benchmark_tells_what_it_timed() -> None:
    (figure,) = BENCHMARKS["fleets"](Plan(torch.device("cuda"), quick=True, members=(2,)))
    assert figure.details["program"] == "written out, bfloat16 products"
    assert 0 < figure.ms < 10
