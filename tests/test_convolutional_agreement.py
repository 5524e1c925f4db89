"""Ladders on maps compute what the NumPy ladder computes: every kind of rung, up, down, calibrated, stacked."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

import oracle as o
import oracle_rungs as r
from test_oracle_agreement import TASKS, assert_same_costs, pair
from tikas import Conv, Dense, GlobalMeanPool, Ladder, MaxPool, MeanPool
from tikas.model.costs import squared_distance
from tikas.model.rungs import build
from tikas.training.fleet import stack

NETWORKS = {
    "paddings": o.Description(
        (2, 4, 4),
        (r.Conv(2, 2, "full"), r.Conv(2, 3, "valid"), r.Conv(2, 3, "same"), r.Conv(2, 2, "same"), r.Dense(3)),
        ("relu", "leaky_relu", "tanh", "relu"),
        (0.3, 0.2, 0.4, 0.1, 0.5, 0.3),
        (2.0, 1.0, 0.5, 0.4, 0.3, 0.2),
    ),
    "strides": o.Description(
        (1, 8, 7),
        (r.Conv(2, 3, "same", 2), r.Conv(2, 2, "full", 2), r.Conv(2, 2, "valid", 2), r.Dense(3), r.Dense(3)),
        ("relu", "relu", "linear", "tanh"),
        (0.3, 0.2, 0.4, 0.1, 0.5, 0.3),
        (2.0, 1.0, 0.5, 0.4, 0.3, 0.2),
    ),
    "pooling": o.Description(
        (2, 9, 7),
        (
            r.Conv(2, 2, "valid"),
            r.Pool("max", 2, 2),
            r.Conv(3, 2, "full"),
            r.Pool("mean", 2, 2),
            r.Global(),
            r.Dense(3),
        ),
        ("relu", "linear", "leaky_relu", "linear", "linear"),
        (0.3, 0.2, 0.4, 0.1, 0.5, 0.3, 0.2),
        (2.0, 1.0, 0.5, 0.4, 0.3, 0.2, 0.1),
    ),
    "windows": o.Description(  # overlapping, cut off, with gaps between them, and one that is left out
        (1, 12, 11),
        (
            r.Pool("max", 3, 2),
            r.Pool("mean", 3, 2),
            r.Conv(3, 3, "full"),
            r.Pool("max", 2, 3),
            r.Pool("mean", 2, 2, "down"),
            r.Global(),
        ),
        ("linear", "linear", "relu", "linear", "linear"),
        (0.3, 0.2, 0.4, 0.1, 0.5, 0.3, 0.2),
        (2.0, 1.0, 0.5, 0.4, 0.3, 0.2, 0.1),
    ),
    "global top": o.Description(
        (2, 3, 3),
        (r.Conv(2, 3, "valid"), r.Conv(2, 3, "full"), r.Pool("max", 2, 2), r.Conv(3, 1, "valid"), r.Global()),
        ("tanh", "relu", "linear", "relu"),
        (0.3, 0.2, 0.4, 0.1, 0.5, 0.3),
        (2.0, 1.0, 0.5, 0.4, 0.3, 0.2),
        scaled_top=False,
    ),
}


def of_costs(description: o.Description, costs: str) -> o.Description:
    """The same network as a full ladder, with its input's cost alone, as a Γ-model, or without a cost."""
    rest = (0.0,) * description.top
    choices = {"full": description.costs, "bottom": (3.0, *rest), "gamma": (*rest, 0.7), "baseline": (0.0, *rest)}
    return replace(description, costs=choices[costs])


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("costs", ["full", "bottom", "gamma", "baseline"])
@pytest.mark.parametrize("network", NETWORKS)
def test_costs_on_maps_agree_with_numpy(network, costs, task):
    both = pair(of_costs(replace(NETWORKS[network], task=task), costs), unlabelled=5, labelled=4)
    expected = both.numpy_costs()
    assert_same_costs(both.torch_costs(both.ladder()), expected)
    assert_same_costs(both.torch_costs(both.ladder(torch.float32)), expected, relative=1e-5)


@pytest.mark.parametrize("denoiser", o.DENOISERS)
def test_every_denoiser_has_parameters_for_each_channel(denoiser):
    both = pair(replace(NETWORKS["pooling"], denoiser=denoiser), unlabelled=4, labelled=3)
    assert both.ladder().rungs[0].denoiser.a.shape[1] == 2
    assert_same_costs(both.torch_costs(both.ladder()), both.numpy_costs())


@pytest.mark.parametrize(
    ("network", "costs"),
    [
        *((network, "full") for network in NETWORKS),
        ("global top", "bottom"),
        ("pooling", "gamma"),
        ("strides", "baseline"),
    ],
)
def test_gradients_on_maps_agree_with_central_differences(network, costs):
    both = pair(of_costs(NETWORKS[network], costs), unlabelled=5, labelled=4)
    found, expected = both.torch_slopes(), both.numpy_slopes()
    assert found.keys() == expected.keys()
    for name, slopes in expected.items():
        np.testing.assert_allclose(found[name], slopes, rtol=1e-6, atol=5e-8 * (1 + np.abs(slopes).max()), err_msg=name)
        assert np.abs(slopes).max() > 1e-4, f"{name} is not tested: its gradient vanishes"


@pytest.mark.parametrize("chunk", [1, 7, None])
@pytest.mark.parametrize("network", NETWORKS)
def test_calibrated_outputs_on_maps_agree_with_numpy(network, chunk):
    both = pair(NETWORKS[network])
    rng = np.random.default_rng(2)
    train, test = (o.single(rng.normal(0.5, 2, (rows, *both.oracle.description.input_shape))) for rows in (23, 6))
    expected = both.oracle.predict(test, both.oracle.calibrate(train))
    for dtype, relative in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        ladder = both.ladder(dtype).calibrate(torch.from_numpy(train).to(dtype), chunk=chunk)
        found = ladder.eval()(torch.from_numpy(test).to(dtype)).detach().numpy()
        np.testing.assert_allclose(found, expected, rtol=relative, atol=relative * np.abs(expected).max())


@pytest.mark.parametrize("most", [0, 400])
def test_levels_that_are_made_again_are_calibrated_like_those_that_are_kept(most, monkeypatch):
    both = pair(NETWORKS["pooling"])
    rows = torch.from_numpy(both.batch.unlabelled)
    kept = both.ladder().calibrate(rows, chunk=4).state_dict()
    monkeypatch.setattr("tikas.model.calibration.MOST_KEPT", most)
    again = both.ladder().calibrate(rows, chunk=4).state_dict()
    assert all(torch.equal(tensor, again[name]) for name, tensor in kept.items())


# One rung at a time: sizes and kinds by the hundred, up and down.

PAIRS = [
    *(
        (r.Conv(3, kernel, padding, stride), Conv(3, kernel, padding=padding, stride=stride))
        for kernel, padding, stride in product((1, 2, 3, 4), ("valid", "same", "full"), (1, 2, 3))
    ),
    *(
        (r.Pool(kind, size, stride, rounding), spec(size, stride=stride, rounding=rounding))
        for (kind, spec), size, stride, rounding in product(
            (("max", MaxPool), ("mean", MeanPool)), (1, 2, 3), (1, 2, 3, 4), ("up", "down")
        )
    ),
    (r.Global(), GlobalMeanPool()),
    (r.Dense(4), Dense(4)),
]


@pytest.mark.parametrize(("slow", "spec"), PAIRS, ids=[spec.text for _, spec in PAIRS])
def test_a_rung_goes_up_and_back_down_as_in_numpy_on_maps_of_any_size(slow: r.Rung, spec):
    rng = np.random.default_rng(0)
    for below in [*((2, side, 4 + side % 3) for side in range(4, 10)), (2, 12, 4), (2, 4, 12)]:
        rung = build(spec, below, top=False, noise=0.0, cost=1.0)
        rung.add_back()
        rung.double()
        shape = slow.shape(below)
        assert rung.shape == shape
        weight, back = (draw(rng, wanted(below)) for wanted in (slow.weight_shape, slow.back_shape))
        with torch.no_grad():
            for module, values in ((rung, weight), (rung.back, back)):
                if values is not None:
                    module.weight.copy_(torch.from_numpy(values))
        h, denoised = rng.normal(size=(3, *below)), rng.normal(size=(3, *shape))
        up, down = rung.up(torch.from_numpy(h)), rung.back(torch.from_numpy(denoised))
        np.testing.assert_allclose(up.detach().numpy(), slow.up(h, weight), rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(down.detach().numpy(), slow.down(denoised, back, below), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("below", [(1, 40, 3), (1, 3, 40)], ids=["tall", "wide"])
def test_a_kernel_that_goes_beyond_one_side_alone_makes_a_plain_convolution(below):
    rung = build(Conv(2, 5, padding="full"), below, top=False, noise=0.0, cost=1.0)
    rung.add_back()
    assert not rung.is_product
    assert not rung.back.sparse


def draw(rng: np.random.Generator, shape: r.Shape | None) -> o.Array | None:
    return None if shape is None else rng.normal(size=shape)


def test_a_convolution_and_its_way_down_worked_by_hand_agree_with_the_oracle():
    row = np.array([[[[1.0, 2.0, 3.0]] * 3]])
    kernel = np.arange(4.0).reshape(1, 1, 2, 2)  # 0 1 / 2 3
    np.testing.assert_array_equal(r.Conv(1, 2).up(row, kernel)[0, 0, 0], [0 + 2 + 2 + 6, 0 + 3 + 4 + 9])
    np.testing.assert_array_equal(r.Conv(1, 2, "full").up(row, kernel)[0, 0, 0], [3, 2 + 6, 4 + 9, 6])
    above = np.array([[[[1.0, 10.0], [0, 0]]]])
    # The last row and column of the kernel meet the first position of what is above.
    np.testing.assert_array_equal(r.Conv(1, 2).down(above, kernel, (1, 3, 3))[0, 0, :2], [[3, 32, 20], [1, 10, 0]])


def test_pooling_and_its_way_down_worked_by_hand_agree_with_the_oracle():
    row = np.arange(9.0).reshape(1, 1, 3, 3)
    np.testing.assert_array_equal(r.Pool("max", 2, 2).up(row, None)[0, 0], [[4, 5], [7, 8]])
    np.testing.assert_array_equal(r.Pool("mean", 2, 2).up(row, None)[0, 0], [[2, 3.5], [6.5, 8]])
    above = np.array([[[[1.0, 2.0], [3.0, 4.0]]]])
    copied = [[1, 1, 2], [1, 1, 2], [3, 3, 4]]
    np.testing.assert_array_equal(r.Pool("max", 2, 2).down(above, None, (1, 3, 3))[0, 0], copied)
    overlapping = [[1, 1.5, 2], [2, 2.5, 3], [3, 3.5, 4]]
    np.testing.assert_array_equal(r.Pool("max", 2, 1).down(above, None, (1, 3, 3))[0, 0], overlapping)


# Members.


@pytest.mark.parametrize("network", NETWORKS)
def test_a_stack_of_ladders_on_maps_computes_what_its_members_compute_alone(network):
    pairs = [pair(NETWORKS[network], seed, unlabelled=5, labelled=4) for seed in (1, 2, 3)]
    ladders = [both.ladder() for both in pairs]
    fleet = stack(ladders)
    batches = [both.batch for both in pairs]
    rows, labelled, targets = (
        torch.from_numpy(np.stack([getattr(batch, part) for batch in batches]))
        for part in ("unlabelled", "labelled", "targets")
    )
    noise = [torch.from_numpy(np.stack(draws)) for draws in zip(*(batch.noise for batch in batches), strict=True)]
    costs = fleet.costs(rows, labelled, targets, noise=noise)
    costs.total.sum().backward()
    for member, (both, ladder) in enumerate(zip(pairs, ladders, strict=True)):
        own = both.torch_costs(ladder)
        own.total.backward()
        for ours, theirs in zip(own, costs, strict=True):
            torch.testing.assert_close(theirs[member], ours, rtol=1e-12, atol=0)
        stacked = dict(fleet.named_parameters())
        for name, parameter in ladder.named_parameters():
            torch.testing.assert_close(stacked[name].grad[member], parameter.grad, rtol=1e-9, atol=1e-11)
    together = fleet.calibrate(rows).eval()(rows)
    for member, ladder in enumerate(ladders):
        alone = ladder.calibrate(rows[member]).eval()(rows[member])
        torch.testing.assert_close(together[member], alone, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("network", NETWORKS)
def test_a_stack_takes_rows_that_all_members_share(network):
    ladders = [pair(NETWORKS[network], seed, unlabelled=5, labelled=4).ladder() for seed in (1, 2)]
    rows = torch.from_numpy(pair(NETWORKS[network], 1, unlabelled=5, labelled=4).batch.unlabelled)
    together = stack(ladders)(rows)
    for member, ladder in enumerate(ladders):
        torch.testing.assert_close(together[member], ladder(rows), rtol=1e-10, atol=1e-12)


def test_noise_and_costs_may_differ_from_member_to_member():
    one = NETWORKS["pooling"]
    other = replace(one, noise=tuple(2 * n for n in one.noise), costs=tuple(3 * c for c in one.costs))
    pairs = [pair(description, unlabelled=5, labelled=4) for description in (one, other)]
    fleet = stack([both.ladder() for both in pairs])
    for level, rung in enumerate(fleet.rungs):
        for name, values in (("noise", (one.noise, other.noise)), ("cost", (one.costs, other.costs))):
            setattr(rung, name, torch.tensor([value[level] for value in values], dtype=torch.float64))
    batch = pairs[0].batch
    rows, labelled, targets = (
        torch.from_numpy(np.stack([part] * 2)) for part in (batch.unlabelled, batch.labelled, batch.targets)
    )
    costs = fleet.costs(rows, labelled, targets, noise=[torch.from_numpy(np.stack([n] * 2)) for n in batch.noise])
    for member, both in enumerate(pairs):
        own = replace(both, batch=batch).torch_costs(both.ladder())
        for ours, theirs in zip(own, costs, strict=True):
            torch.testing.assert_close(theirs[member], ours, rtol=1e-12, atol=0)
    assert costs.total[1] > 2 * costs.total[0]


# First values and names.


def test_first_kernels_are_uniform_with_deviation_one_over_the_root_of_their_inputs():
    draws = torch.Generator().manual_seed(0)
    ladder = Ladder((20, 9, 9), [Conv(30, 3), MaxPool(2), Dense(2)], costs=(1, 1, 1, 1), generator=draws)
    for weight, inputs in ((ladder.rungs[1].weight, 20 * 9), (ladder.rungs[1].back.weight, 30 * 9)):
        values = weight.detach().numpy() * np.sqrt(inputs)
        assert values.std() == pytest.approx(1, abs=0.02)
        assert np.abs(values).max() == pytest.approx(np.sqrt(3), abs=0.01)
        assert (values**4).mean() == pytest.approx(1.8, abs=0.05)  # of a uniform one; a normal one has 3


def test_parameters_on_maps_have_the_settled_names_and_shapes():
    rungs = [Conv(4, 3, padding="full"), MaxPool(2), Dense(5), Dense(3)]
    ladder = Ladder((2, 7, 7), rungs, costs=(1, 1, 1, 1, 1))
    assert {name: tuple(p.shape) for name, p in ladder.named_parameters()} == {
        "rungs.0.denoiser.a": (10, 2),
        "rungs.1.weight": (4, 2, 3, 3),
        "rungs.1.beta": (4,),
        "rungs.1.back.weight": (2, 4, 3, 3),
        "rungs.1.denoiser.a": (10, 4),
        "rungs.2.denoiser.a": (10, 4),
        "rungs.3.weight": (5, 4 * 5 * 5),
        "rungs.3.beta": (5,),
        "rungs.3.back.weight": (4 * 5 * 5, 5),
        "rungs.3.denoiser.a": (10, 5),
        "rungs.4.weight": (3, 5),
        "rungs.4.beta": (3,),
        "rungs.4.gamma": (3,),
        "rungs.4.back.weight": (5, 3),
        "rungs.4.denoiser.a": (10, 3),
    }
    buffers = {name: tuple(b.shape) for name, b in ladder.named_buffers() if name.startswith("rungs.2")}
    assert buffers == {"rungs.2.mean": (4,), "rungs.2.deviation": (4,)}


@pytest.mark.parametrize("silent", [False, True])
def test_a_silent_channel_does_not_blow_up_the_cost_of_its_pooling_rung(silent: bool):
    draws = torch.Generator().manual_seed(0)
    rungs = [Conv(4, 3), MaxPool(2), GlobalMeanPool(), Dense(3)]
    ladder = Ladder((1, 8, 8), rungs, costs=(1, 1, 1, 1, 1), generator=draws)
    with torch.no_grad():
        for rung in ladder.rungs:
            rung.denoiser.a[9] = 0.5  # ẑ is not zero
        if silent:
            ladder.rungs[1].beta[2] = -100.0
    rows = torch.rand(20, 1, 8, 8, generator=draws)
    noise = [torch.randn(26, *shape, generator=draws) for shape in ladder.shapes]
    costs = ladder.costs(rows, rows[:6], torch.tensor([0, 1, 2, 0, 1, 2]), noise)
    assert costs.denoising.max() < 100


def test_gradients_of_maps_lie_as_the_maps_do():
    maps = torch.rand(4, 3, 5, 5).contiguous(memory_format=torch.channels_last).requires_grad_()
    laid_out = []
    maps.register_hook(lambda gradient: laid_out.append(gradient.is_contiguous(memory_format=torch.channels_last)))
    cost = squared_distance(maps, torch.zeros(4, 3, 5, 5), shape=(3, 5, 5))
    cost.backward()
    assert laid_out == [True]
    assert cost.item() == pytest.approx(maps.square().mean().item())
