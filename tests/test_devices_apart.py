"""On a device that holds no values: training there fails if it mixes in tensors of the CPU, or waits for a value.

That device is torch's meta device, in a GPU's stead. A GPU forgives some of this by waiting, and while a graph is
captured nothing of it.
"""

from collections.abc import Iterable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pretended import Machine
from tikas.data import streams as streams_module
from tikas.data.splits import Split, split
from tikas.data.streams import Examples, Streams, generator
from tikas.training.building import build_ladder
from tikas.training.captured import CapturedFleet, SideBySide
from tikas.training.evaluation import HeldOut
from tikas.training.fleet import Fleet
from tikas.training.recipe import Recipe

DENSE = Recipe(data="array", network=(6,), costs=(10.0, 1.0, 0.1))
IMAGES = replace(DENSE, network=("conv 4 3", "max 2", "global", "top"))
PRODUCTS = replace(DENSE, network=("conv 4 6", "conv 5 1", "global", "top"))
SHAPES = {DENSE: (7,), IMAGES: (1, 6, 6), PRODUCTS: (1, 6, 6)}
CLASSES = torch.arange(60) % 3
META = torch.device("meta")


class AskingAdam(torch.optim.Adam):
    """Asks where all is that a step needs, which is one kernel on a GPU and none on the meta device."""

    def step(self) -> None:
        (group,) = self.param_groups
        moments = [moment for parameter in group["params"] for moment in self.state[parameter].values()]
        needed = [group["lr"], *moments, *(parameter.grad for parameter in group["params"])]
        assert {tensor.device for tensor in needed} == {META}


def adam(fleet: Fleet, parameters: Iterable[Tensor]) -> AskingAdam:
    """Told of its rate when it is made, and not before: torch would look whether that is below zero."""
    made = AskingAdam(parameters)
    made.param_groups[0]["lr"] = fleet.rate
    return made


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """With draws from generators of the CPU, since the meta device has none."""
    monkeypatch.setattr(streams_module, "generator", lambda seed, purpose, _: generator(seed, purpose))
    monkeypatch.setattr(Fleet, "_adam", adam)
    return Machine(monkeypatch)


def splits_of(members: int) -> list[Split]:
    return [split(CLASSES.numpy(), 9, validation=12, seed=seed) for seed in range(members)]


def fleet_of(kind: type[Fleet], recipe: Recipe, members: int, device: torch.device = META, **more: object) -> Fleet:
    """Six updates an epoch in blocks of two; members with noise and costs of their own, and rows with weights."""
    shape, seeds = SHAPES[recipe], range(members)
    own = [replace(recipe, noise=(0.2 + 0.1 * seed,), costs=(10.0 + seed, 1.0, 0.1)) for seed in seeds]
    ladders = [build_ladder(each, shape, 3, seed).to(device) for each, seed in zip(own, seeds, strict=True)]
    examples = Examples(torch.rand(60, *shape), CLASSES, 3, torch.ones(60)).to(device)
    streams = Streams(examples, splits_of(members), seeds, ladders[0].shapes, 8, 8, most_in_block=2)
    return kind(ladders, streams, **more)


def rates_of(fleet: Fleet, *, own: bool) -> Tensor:
    return torch.full((fleet.streams.updates, fleet.members) if own else (fleet.streams.updates,), 0.01).double()


@pytest.mark.parametrize("own", [False, True], ids=["one rate", "own rates"])
@pytest.mark.parametrize(
    ("kind", "recipe"),
    [(CapturedFleet, DENSE), (CapturedFleet, PRODUCTS), (SideBySide, IMAGES)],
    ids=["dense", "products", "side by side"],
)
@pytest.mark.parametrize("members", [1, 2])
def test_captured_updates_stay_on_their_device(members: int, kind: type[Fleet], recipe: Recipe, own: bool) -> None:
    fleet = fleet_of(kind, recipe, members, compiled=False)
    costs = [fleet.train_epoch(rates_of(fleet, own=own)) for _ in "ab"]
    assert {each.device for each in costs} == {META}
    assert all(parameter.device == META for ladder in fleet.disband() for parameter in ladder.parameters())


@pytest.mark.parametrize("own", [False, True], ids=["one rate", "own rates"])
@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_written_out_updates_stay_on_their_device(
    dtype: torch.dtype, members: int, own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels are not run, but asked where what they are given lies."""
    pytest.importorskip("triton", reason="Triton is not installed on this machine")
    from triton.runtime.jit import JITFunction

    from tikas.training.fused import FusedFleet

    launched = []

    def ask(kernel: JITFunction, *given: object, **_: object) -> None:
        assert {each.device for each in given if isinstance(each, Tensor)} == {META}, kernel.__name__
        launched.append(kernel.__name__)

    monkeypatch.setattr(JITFunction, "run", ask)
    fleet = fleet_of(FusedFleet, DENSE, members, dtype=dtype)
    assert fleet.train_epoch(rates_of(fleet, own=own)).device == META
    assert len(set(launched)) == 8


@pytest.mark.parametrize(
    ("kind", "recipe"), [(CapturedFleet, DENSE), (SideBySide, IMAGES)], ids=["stacked", "side by side"]
)
def test_what_was_kept_on_the_cpu_goes_on_where_members_train(kind: type[Fleet], recipe: Recipe) -> None:
    kept = fleet_of(Fleet, recipe, 2, torch.device("cpu")).snapshot()
    fleet = fleet_of(kind, recipe, 2, compiled=False)
    fleet.go_on_from(kept, updates=6)
    assert fleet.train_epoch(rates_of(fleet, own=False)).device == META


@pytest.mark.parametrize(
    ("kind", "recipe"), [(CapturedFleet, DENSE), (SideBySide, IMAGES)], ids=["stacked", "side by side"]
)
@pytest.mark.parametrize("calibration", ["all", "labeled"])
def test_held_out_rows_are_measured_where_they_are(
    calibration: str, kind: type[Fleet], recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is waited for is whether ladders are calibrated, and in the end their errors."""
    held_out, errors = HeldOut(fleet_of(kind, recipe, 2, compiled=False), splits_of(2), calibration), []
    assert held_out._watched.device == held_out._judged.device == META
    monkeypatch.setattr(Tensor, "__bool__", lambda calibrated: calibrated.device == META)
    monkeypatch.setattr(Tensor, "tolist", lambda values: errors.append(values) or [0.0] * values.numel())
    assert held_out.errors() == [0.0, 0.0]
    assert {each.device for each in errors} == {META}
    assert sum(each.numel() for each in errors) == 2
