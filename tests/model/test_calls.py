"""Ladders and Γ-models in the hands of PyTorch: calls that return costs, export, autocast and data loaders."""

from collections.abc import Iterable
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from tikas import Conv, Dense, Ladder, MaxPool, gamma
from tikas.model.gamma import Gamma

NETWORK = nn.Sequential(nn.Flatten(), nn.Linear(32, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
MODELS = {
    "dense": Ladder((2, 4, 4), [Dense(8), Dense(3)], costs=(10, 1, 0.1)),
    "convolutional": Ladder((2, 4, 4), [Conv(4, 3, padding="same"), MaxPool(2), Dense(3)], costs=(10, 1, 0.1, 0.1)),
    "gamma": gamma(NETWORK, n_classes=3),
}
UNLABELED, LABELED = torch.rand(14, 2, 4, 4), torch.rand(9, 2, 4, 4)
TARGETS = torch.arange(9) % 3


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> Ladder | Gamma:
    return deepcopy(MODELS[request.param])


def test_a_call_with_labeled_rows_returns_the_costs(model):
    noise, weights = model.draw_noise(UNLABELED, 23), torch.rand(9)
    expected = model.costs(UNLABELED, LABELED, TARGETS, noise=noise, weights=weights)
    costs = model(UNLABELED, LABELED, TARGETS, noise=noise, weights=weights)
    assert type(costs) is type(expected)
    assert all(torch.equal(one, other) for one, other in zip(costs, expected, strict=True))
    assert model(UNLABELED, LABELED[:0], TARGETS[:0]).supervised == 0


def test_a_call_with_labeled_rows_in_eval_mode_raises_runtime_error(model):
    model.calibrate(UNLABELED).eval()
    with pytest.raises(RuntimeError, match=r"train\(\)"):
        model(UNLABELED, LABELED, TARGETS)


@pytest.mark.skipif(torch.__version__ < "2.11", reason="older compilers do not take isinstance with a union of types")
@pytest.mark.parametrize("model", ["convolutional", "gamma"], indirect=True)
def test_costs_are_exported_for_any_number_of_rows(model):
    any_number = {0: torch.export.Dim.AUTO}
    noise = model.draw_noise(UNLABELED, 23)
    shapes = (any_number, any_number, any_number, [any_number] * len(noise))
    program = torch.export.export(model, (UNLABELED, LABELED, TARGETS, noise), dynamic_shapes=shapes).module()
    batch = UNLABELED[:7], LABELED[:6], TARGETS[:6], [level[:13] for level in noise]
    torch.testing.assert_close(program(*batch), model(*batch))


def test_autocast_changes_the_costs_by_rounding_only(model):
    noise = model.draw_noise(UNLABELED, 23)
    expected = model(UNLABELED, LABELED, TARGETS, noise=noise)
    with torch.autocast("cpu", torch.bfloat16):
        costs = model(UNLABELED, LABELED, TARGETS, noise=noise)
    costs.total.backward()
    assert {each.dtype for each in costs} == {torch.float32}
    assert not torch.equal(costs.total, expected.total)
    torch.testing.assert_close(costs, expected, rtol=0.1, atol=0.1)


@pytest.mark.parametrize(
    "batches",
    [
        DataLoader(TensorDataset(UNLABELED, torch.arange(14)), batch_size=4, shuffle=True),
        DataLoader(UNLABELED, batch_size=13),  # the last batch is a single row
        [UNLABELED[:5], UNLABELED[5:]],
    ],
    ids=["rows and targets", "rows", "list"],
)
def test_calibration_with_batches_is_that_with_all_rows(model, batches):
    model, expected = model.double(), deepcopy(model).double().calibrate(UNLABELED).state_dict()
    for name, value in model.calibrate(batches).state_dict().items():
        if "num_batches_tracked" not in name:
            torch.testing.assert_close(value, expected[name], rtol=1e-12, atol=1e-12)


def one_by_one(rows: Iterable[Tensor]):
    yield from rows


@pytest.mark.parametrize("make", [one_by_one, iter], ids=["generator", "iterator"])
def test_calibration_with_a_generator_raises_type_error_naming_what_to_give(model, make):
    with pytest.raises(TypeError, match=r"read only once.*DataLoader"):
        model.calibrate(make([UNLABELED]))


@pytest.mark.parametrize("batches", [[], [UNLABELED[:1]]], ids=["no batch", "one row"])
def test_calibration_with_too_few_rows_raises_value_error(model, batches):
    with pytest.raises(ValueError, match=r"rows.*at least two"):
        model.calibrate(batches)
    assert not model.calibrated
