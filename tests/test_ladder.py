"""The PyTorch door: what a ladder refuses and how it says so, what it gives back, and a loop of one's own."""

import pickle
import re
from copy import deepcopy

import numpy as np
import pytest
import torch
from torch import Tensor

from tikas import Conv, Dense, GlobalMeanPool, Ladder, MaxPool, MeanPool
from tikas.data.sources import load
from tikas.data.splits import split
from tikas.model import statistics
from tikas.model.dense import DenseRung
from tikas.model.statistics import Gathering, normalize, normalize_with_statistics

LEVELS = [(6,), (5,), (4,), (3,)]


def ladder_of(**changes) -> Ladder:
    settings = {"input_shape": (6,), "rungs": [Dense(5), Dense(4), Dense(3)], "costs": (10, 1, 0.1, 0.1)}
    return Ladder(**{**settings, **changes}, generator=torch.Generator().manual_seed(0))


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


UNLABELED, LABELED, TARGETS = normal(12, 6, seed=1), normal(9, 6, seed=2), torch.arange(9) % 3


def noise_for(rows: int) -> list[Tensor]:
    return [normal(rows, *shape, seed=level) for level, shape in enumerate(LEVELS)]


def assert_same_state(one: Ladder, other: Ladder) -> None:
    ours, theirs = one.state_dict(), other.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


# What it is made of.


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rungs": []}, "rungs=[]: expected rungs, the output's last, for example [Dense(100), Dense(10)]."),
        (
            {"rungs": Dense(3)},
            "rungs=Dense(features=3, activation=None, scale=True): expected rungs",
        ),
        ({"rungs": [Dense(5), Dense(1)]}, "The top rung has the shape (1,); expected (classes,), two at the least"),
        ({"input_shape": ()}, "input_shape=(): expected (features,), the shape of one row."),
        ({"input_shape": (0,)}, "input_shape=(0,): expected (features,)"),
        (
            {"denoiser": "gauss"},
            "denoiser='gauss': choose one of 'gaussian', 'mlp', 'no-product', 'linear', 'additive'",
        ),
        ({"denoiser": ["gaussian"]}, "denoiser=['gaussian']: choose one of 'gaussian'"),
        ({"task": "ranking"}, "task='ranking': choose 'classification' or 'regression'."),
        ({"noise": (0.3, 0.3)}, "noise has 2 values; with 3 rungs give 4, one for the input and one for each rung"),
        ({"noise": "loud"}, "noise='loud': expected a number, or several numbers."),
        ({"noise": None}, "noise=None: expected a number"),
        ({"costs": [1, 1, "a", 1]}, "costs=[1, 1, 'a', 1]: expected a number"),
        ({"noise": ()}, "noise has 0 values; with 3 rungs give 4"),
        (
            {"costs": (1, 1, 1, 1, 1)},
            "costs has 5 values; with 3 rungs give 4, one for the input and one for each rung",
        ),
        ({"noise": -0.3}, "noise=[-0.3, -0.3, -0.3, -0.3]: every value must be finite and at least 0."),
        ({"costs": (1, 1, float("nan"), 1)}, "costs=[1.0, 1.0, nan, 1.0]: every value must be finite and at least 0."),
        ({"costs": float("inf")}, "costs=[0.0, 0.0, 0.0, inf]: every value must be finite and at least 0."),
    ],
)
def test_settings_that_make_no_ladder_are_refused_with_what_would(changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        ladder_of(**changes)


@pytest.mark.parametrize("kind", [list, tuple, np.array, torch.tensor])
def test_noise_and_costs_are_taken_of_whatever_holds_numbers(kind):
    ladder = ladder_of(noise=kind([0.5, 0.25, 0.25, 0.0]), costs=kind([4.0, 2.0, 1.0, 1.0]))
    assert [rung.noise for rung in ladder.rungs] == [0.5, 0.25, 0.25, 0.0]
    assert [rung.cost for rung in ladder.rungs] == [4.0, 2.0, 1.0, 1.0]
    assert [rung.noise for rung in ladder_of(noise=np.float32(0.5)).rungs] == [0.5] * 4
    assert [rung.cost for rung in ladder_of(costs=torch.tensor(2.0)).rungs] == [0.0, 0.0, 0.0, 2.0]


def test_a_regression_may_have_a_single_output():
    ladder = ladder_of(rungs=[Dense(5), Dense(4), Dense(1)], task="regression")
    assert ladder.costs(UNLABELED, LABELED, normal(9, 1)).total.isfinite()


@pytest.mark.parametrize("features", [0, -3, 2.5, "10", True, None])
def test_a_rung_has_a_positive_whole_number_of_units(features):
    with pytest.raises(ValueError, match=re.escape(f"Dense({features!r}): the number of units must be a positive")):
        Dense(features)


def test_an_activation_that_is_not_known_is_refused_with_those_that_are():
    expected = "Dense(5, activation='selu'): choose one of 'relu', 'leaky_relu', 'tanh', 'gelu', 'linear'."
    with pytest.raises(ValueError, match=re.escape(expected)):
        Dense(5, activation="selu")


@pytest.mark.parametrize("activation", ["relu", "leaky_relu", "tanh", "gelu", "linear"])
def test_every_activation_learns_at_every_rung(activation):
    ladder = ladder_of(rungs=[Dense(5, activation=activation), Dense(4, activation=activation), Dense(3)])
    ladder.costs(UNLABELED, LABELED, TARGETS).total.backward()
    for level in (1, 2, 3):
        gradient = ladder.rungs[level].weight.grad
        assert gradient.isfinite().all()
        assert gradient.abs().max() > 0


def test_without_costs_given_they_are_the_papers():
    assert [rung.cost for rung in ladder_of(costs=None).rungs] == [1000, 10, 0.1, 0.1]


# Rows, noise and targets that do not fit.


@pytest.mark.parametrize("shape", [(6,), (12, 5), (12, 6, 1), (12, 1, 6, 2), ()])
@pytest.mark.parametrize("method", ["costs", "forward", "encode", "calibrate", "denoise"])
def test_rows_of_another_shape_are_refused_everywhere(method, shape):
    with pytest.raises(ValueError, match=re.escape(f"Got rows of shape {shape}; this ladder takes (rows, 6).")):
        getattr(ladder_of(), method)(torch.zeros(shape))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (UNLABELED.numpy(), "Got rows as ndarray; expected a torch.Tensor."),
        (UNLABELED.tolist(), "Got rows as list; expected a torch.Tensor."),
        (UNLABELED.byte(), "Got rows of type torch.uint8; expected floating-point numbers of about unit size."),
        (UNLABELED.double(), "Got rows of type torch.float64, and this ladder computes in torch.float32."),
        (UNLABELED.half(), "Got rows of type torch.float16, and this ladder computes in torch.float32."),
    ],
    ids=["array", "list", "bytes", "double", "half"],
)
@pytest.mark.parametrize("method", ["costs", "forward", "encode", "denoise"])
def test_rows_of_another_kind_are_refused_with_the_way_to_turn_them(method, rows, message):
    with pytest.raises(TypeError, match=re.escape(message)):
        getattr(ladder_of(), method)(rows)


def test_calibration_takes_numbers_of_any_precision_and_whole_numbers_of_none():
    ladder, same = ladder_of(), ladder_of()
    assert_same_state(ladder.calibrate(UNLABELED), same.calibrate(UNLABELED.double()))
    with pytest.raises(TypeError, match=re.escape("Got rows of type torch.int64")):
        ladder.calibrate(UNLABELED.long())


def test_autocast_takes_rows_of_half_precision():
    with torch.autocast("cpu", torch.bfloat16):
        assert ladder_of().costs(UNLABELED.bfloat16(), LABELED.bfloat16(), TARGETS).total.isfinite()


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("members", [(), (2,)], ids=["alone", "members"])
def test_what_products_of_half_precision_gave_is_normalised_in_single_precision(kind, members):
    x = (100 + normal(*members, 50, 4)).to(kind)
    expected = normalize_with_statistics(x.float(), shape=(4,))[0]
    for normalized in (normalize(x, shape=(4,)), normalize_with_statistics(x, shape=(4,))[0]):
        torch.testing.assert_close(normalized, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_a_ladder_of_half_precision_is_not_trained_and_the_way_is_told(kind):
    ladder, rows = ladder_of().calibrate(UNLABELED).to(kind), UNLABELED.to(kind)
    for method in ("costs", "forward", "denoise"):
        with pytest.raises(TypeError, match=re.escape(f"This ladder is in {kind}, which has too few digits")):
            getattr(ladder, method)(rows)
    assert ladder.eval()(rows).dtype == kind


@pytest.mark.parametrize("method", ["costs", "forward", "encode", "denoise"])
def test_a_batch_of_one_row_has_no_statistics_and_is_refused(method):
    with pytest.raises(ValueError, match=r"Got 1 (unlabelled )?row; .* give two rows or more"):
        getattr(ladder_of(), method)(UNLABELED[:1])


def test_one_labelled_row_is_refused_and_one_that_nothing_looks_at_is_not():
    with pytest.raises(ValueError, match=r"Got 1 labelled row; .* give two rows or more"):
        ladder_of().costs(UNLABELED, LABELED[:1], TARGETS[:1])
    assert ladder_of(costs=0).costs(UNLABELED[:1], LABELED, TARGETS).total.isfinite()
    assert len(ladder_of().calibrate(UNLABELED).eval()(UNLABELED[:1])) == 1


@pytest.mark.parametrize("method", ["costs", "forward", "encode", "denoise", "calibrate"])
def test_rows_with_a_dimension_too_many_are_refused(method):
    with pytest.raises(ValueError, match=re.escape("this ladder takes (rows, 6)")):
        getattr(ladder_of(), method)(torch.stack([UNLABELED, UNLABELED]))


def test_drawing_weights_anew_forgets_the_statistics_of_the_old_ones():
    ladder = ladder_of().calibrate(UNLABELED).eval()
    ladder.reset()
    with pytest.raises(RuntimeError, match="has no statistics for eval mode yet"):
        ladder(UNLABELED)


@pytest.mark.parametrize(
    ("turned", "kind"), [(Tensor.numpy, "ndarray"), (Tensor.double, "torch.float64"), (Tensor.tolist, "list")]
)
def test_noise_of_another_kind_is_refused(turned, kind):
    ladder = ladder_of()
    noise = [turned(draw) for draw in ladder.draw_noise(UNLABELED, len(UNLABELED))]
    with pytest.raises(TypeError, match=re.escape(f"Got noise as {kind}; expected tensors of the type of the rows")):
        ladder.costs(UNLABELED, noise=noise)


def test_noise_for_more_members_than_there_are_is_refused():
    ladder = ladder_of()
    noise = [draw.expand(2, *draw.shape) for draw in ladder.draw_noise(UNLABELED, len(UNLABELED))]
    with pytest.raises(ValueError, match="expected one tensor for each level"):
        ladder.costs(UNLABELED, noise=noise)


def test_labelled_rows_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=re.escape("Got rows of shape (9, 5); this ladder takes (rows, 6).")):
        ladder_of().costs(UNLABELED, LABELED[:, :5], TARGETS)


@pytest.mark.parametrize(
    "noise",
    [
        noise_for(21)[:3],
        [*noise_for(21), normal(21, 3)],
        noise_for(12),
        noise_for(22),
        [*noise_for(21)[:3], normal(21, 4)],
        [draw[0] for draw in noise_for(21)],
        [],
    ],
    ids=["a level missing", "a level too many", "unlabelled rows only", "a row too many", "width", "one row", "none"],
)
def test_noise_of_other_shapes_is_refused_with_those_expected(noise):
    expected = "expected one tensor for each level: [(21, 6), (21, 5), (21, 4), (21, 3)]."
    with pytest.raises(ValueError, match=re.escape(expected)):
        ladder_of().costs(UNLABELED, LABELED, TARGETS, noise=noise)


def test_the_message_about_noise_shows_all_that_was_given():
    with pytest.raises(ValueError, match=re.escape("[(21, 6), (21, 5), (21, 4), (21, 3), (21, 2)]; expected")):
        ladder_of().costs(UNLABELED, LABELED, TARGETS, noise=[*noise_for(21), normal(21, 2)])


@pytest.mark.parametrize("noise", [noise_for(12)[:2], noise_for(3), noise_for(13), [d[:, :1] for d in noise_for(12)]])
def test_denoising_refuses_noise_of_other_shapes_too(noise):
    with pytest.raises(ValueError, match="expected one tensor for each level"):
        ladder_of().denoise(UNLABELED, noise=noise)


@pytest.mark.parametrize(
    ("task", "targets"),
    [
        ("classification", TARGETS[:4]),
        ("regression", normal(9)),
        ("classification", TARGETS[:, None]),
        ("classification", normal(9)),
        ("regression", normal(9, 3)[:1]),
    ],
    ids=["too few", "values without outputs", "a column", "values for classes", "one for all"],
)
def test_targets_of_another_shape_or_kind_are_refused(task, targets):
    with pytest.raises(ValueError, match="targets"):
        ladder_of(task=task, rungs=[Dense(5), Dense(4), Dense(3)]).costs(UNLABELED, LABELED, targets)


@pytest.mark.parametrize("kind", [torch.uint8, torch.int16, torch.int32])
def test_classes_are_whole_numbers_of_any_size(kind):
    noise = noise_for(21)
    same = ladder_of().costs(UNLABELED, LABELED, TARGETS, noise=noise)
    assert ladder_of().costs(UNLABELED, LABELED, TARGETS.to(kind), noise=noise).total == same.total


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("targets", TARGETS.numpy(), "Got targets as ndarray; expected a torch.Tensor."),
        ("targets", TARGETS.tolist(), "Got targets as list; expected a torch.Tensor."),
        ("weights", [1.0] * 9, "Got weights as list; expected a torch.Tensor."),
        ("weights", torch.ones(9, 1), "Got weights of shape (9, 1); expected one for each labelled row, (9,)."),
        ("weights", torch.ones(3), "Got weights of shape (3,); expected one for each labelled row, (9,)."),
        ("weights", torch.tensor(1.0), "Got weights of shape (); expected one for each labelled row, (9,)."),
    ],
)
def test_targets_and_weights_that_are_none_are_refused(name, given, message):
    with pytest.raises((ValueError, TypeError), match=re.escape(message)):
        ladder_of().costs(UNLABELED, LABELED, **{"targets": TARGETS, name: given})


@pytest.mark.parametrize("target", [-1, 3])
def test_a_class_that_does_not_exist_is_refused(target):
    """It must not be learnt from: -1 is what marks a row without a label elsewhere."""
    with pytest.raises(ValueError, match=re.escape(f"Got {target} among the targets; expected classes from 0 to 2.")):
        ladder_of().costs(UNLABELED, LABELED, torch.where(torch.arange(9) == 4, target, TARGETS))


def test_labelled_rows_without_targets_are_refused():
    with pytest.raises(ValueError, match="targets"):
        ladder_of().costs(UNLABELED, LABELED)


def test_denoising_costs_of_no_rows_are_refused():
    with pytest.raises(ValueError, match=re.escape("Got no unlabelled rows, of shape (0, 6), and denoising costs are")):
        ladder_of().costs(UNLABELED[:0], LABELED, TARGETS)
    assert ladder_of(costs=0).costs(UNLABELED[:0], LABELED, TARGETS).total > 0


@pytest.mark.parametrize("chunk", [0, -1, 2.5, True])
def test_a_chunk_is_a_positive_whole_number(chunk):
    with pytest.raises(ValueError, match=re.escape(f"chunk={chunk!r}: expected a positive whole number")):
        ladder_of().calibrate(UNLABELED, chunk=chunk)


@pytest.mark.filterwarnings("ignore:var_mean")
def test_calibrating_on_no_rows_is_refused():
    with pytest.raises(ValueError, match="rows"):
        ladder_of().calibrate(UNLABELED[:0])


def test_calibrating_on_one_row_is_refused_and_nothing_is_changed():
    """Its deviation would be zero, and what is divided by that is of no use for any other row."""
    ladder = ladder_of().calibrate(UNLABELED)
    before = deepcopy(ladder)
    with pytest.raises(ValueError, match=re.escape("Got 1 row to calibrate with, of shape (1, 6)") + ".*Give two"):
        ladder.calibrate(UNLABELED[:1])
    assert_same_state(ladder, before)
    assert bool(ladder.calibrate(UNLABELED[:2], chunk=1).calibrated)


def test_a_ladder_is_calibrated_where_it_is_whatever_device_is_the_default():
    ladder, expected = ladder_of(), ladder_of().calibrate(UNLABELED)
    with torch.device("meta"):
        assert_same_state(ladder.calibrate(UNLABELED), expected)


def test_calibrating_on_one_image_is_refused_since_the_top_has_no_positions():
    with pytest.raises(ValueError, match=re.escape("Got 1 row to calibrate with, of shape (1, 2, 12, 12)")):
        ladder_on_images().calibrate(normal(1, 2, 12, 12))


def test_eval_mode_without_calibration_is_refused_with_what_to_do():
    ladder = ladder_of().eval()
    for use in (ladder, ladder.encode):
        with pytest.raises(RuntimeError, match=re.escape("call ladder.calibrate(rows) with training rows first")):
            use(UNLABELED)
    assert ladder.train()(UNLABELED).shape == (12, 3)
    assert ladder.calibrate(UNLABELED).eval()(UNLABELED[:1]).shape == (1, 3)


# What it gives back.


def test_costs_are_scalars_and_one_for_each_level():
    costs = ladder_of(costs=(10, 0, 0.1, 0)).costs(UNLABELED, LABELED, TARGETS)
    assert costs.total.shape == costs.supervised.shape == ()
    assert costs.denoising.shape == (4,)
    assert [cost > 0 for cost in costs.denoising.tolist()] == [True, False, True, False]
    expected = costs.supervised + 10 * costs.denoising[0] + 0.1 * costs.denoising[2]
    torch.testing.assert_close(costs.total, expected)


def test_without_labelled_rows_the_denoising_costs_remain():
    ladder, noise = ladder_of(), noise_for(21)
    costs = ladder.costs(UNLABELED, noise=[draw[9:] for draw in noise])
    with_labels = ladder.costs(UNLABELED, LABELED, TARGETS, noise=noise)
    assert costs.supervised == 0
    torch.testing.assert_close(costs.denoising, with_labels.denoising)
    torch.testing.assert_close(costs.total, with_labels.total - with_labels.supervised)
    costs.total.backward()
    assert ladder.rungs[1].weight.grad.abs().max() > 0
    assert all(p.grad.isfinite().all() for p in ladder.parameters() if p.grad is not None)


@pytest.mark.parametrize("at_once", [1, 100, 2**18], ids=["a row at a time", "a few", "all"])
@pytest.mark.parametrize(
    ("members", "shape", "dims"),
    [((), (3,), 0), ((2,), (3,), 1), ((), (3, 4, 5), (0, 2, 3)), ((2,), (3, 4, 5), (1, 3, 4))],
)
def test_moments_are_those_of_all_rows_however_many_are_taken_at_once(at_once, members, shape, dims, monkeypatch):
    monkeypatch.setattr(statistics, "MOST_AT_ONCE", at_once)
    rows = 1000 + torch.rand(*members, 50, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    before = rows.clone()
    gathering = Gathering(shape)
    for batch in rows.split([20, 30], len(members)):
        gathering.add(batch)
    mean, deviation = gathering.moments()
    variance, expected = torch.var_mean(rows, dims, correction=0)
    torch.testing.assert_close(mean, expected, rtol=1e-14, atol=0)
    torch.testing.assert_close(deviation, variance.sqrt(), rtol=1e-8, atol=0)
    assert torch.equal(rows, before)


def test_a_labelled_batch_of_no_rows_is_as_good_as_none():
    """What a batch cut by ``y >= 0`` holds now and then."""
    costs = ladder_of().costs(UNLABELED, LABELED[:0], TARGETS[:0], noise=noise_for(12))
    assert costs.supervised == 0
    torch.testing.assert_close(costs.total, ladder_of().costs(UNLABELED, noise=noise_for(12)).total)


@pytest.fixture
def chunks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows are calibrated at a time, level after level."""
    add, seen = Gathering.add, []

    def watched(gathering: Gathering, rows: Tensor) -> None:
        seen.append(len(rows))
        add(gathering, rows)

    monkeypatch.setattr(Gathering, "add", watched)
    return seen


@pytest.mark.parametrize(
    ("bound", "most", "top", "expected"),
    [
        ("MOST_IN_A_CHUNK", 29, 3, [4, 4, 4]),
        ("MOST_IN_A_CHUNK", 39, 8, [4, 4, 4]),
        ("MOST_IN_A_CHUNK", 1, 3, [1] * 12),
        ("MOST_ROWS", 5, 3, [5, 5, 2]),
    ],
)
def test_rows_are_calibrated_with_no_more_at_a_time_than_memory_likes(bound, most, top, expected, monkeypatch, chunks):
    """Of the widest level: the input, which has six values, or a top that has eight."""
    rungs = [Dense(5), Dense(4), Dense(top)]
    whole = ladder_of(rungs=rungs).calibrate(UNLABELED)
    chunks.clear()
    monkeypatch.setattr(f"tikas.model.calibration.{bound}", most)
    ladder = ladder_of(rungs=rungs).calibrate(UNLABELED)
    assert chunks == 3 * expected
    torch.testing.assert_close(ladder.rungs[-1].deviation, whole.rungs[-1].deviation)


def test_rows_are_calibrated_as_many_at_a_time_as_are_asked_for(chunks):
    ladder_of().calibrate(UNLABELED, chunk=7)
    assert chunks == 3 * [7, 5]


@pytest.mark.parametrize(("most", "climbs"), [(60, 3), (59, 4), (48, 4), (47, 6)])
def test_a_level_that_is_not_too_large_is_kept_for_those_above_it(most, climbs, monkeypatch):
    """Twelve rows have 60 values on the first rung, 48 on the second. From what is kept, no rung is climbed twice."""
    up, climbed = DenseRung.up, []

    def watched(rung: DenseRung, hidden: Tensor) -> Tensor:
        climbed.append(rung)
        return up(rung, hidden)

    monkeypatch.setattr("tikas.model.calibration.MOST_KEPT", most)
    monkeypatch.setattr(DenseRung, "up", watched)
    ladder_of().calibrate(UNLABELED)
    assert len(climbed) == climbs


def test_labelled_rows_that_all_weigh_nothing_cost_nothing():
    costs = ladder_of().costs(UNLABELED, LABELED, TARGETS, noise=noise_for(21), weights=torch.zeros(9))
    assert costs.supervised == 0


@pytest.mark.parametrize(
    ("costs", "built"),
    [
        ((10, 1, 0.1, 0.1), (True, True, True, True)),
        ((10, 0, 0, 0), (True, True, True, True)),
        ((0, 0, 1, 0), (False, False, True, True)),
        (0.5, (False, False, False, True)),
        (0, (False, False, False, False)),
    ],
)
def test_denoising_gives_a_reconstruction_of_every_level_that_a_cost_needs(costs, built):
    denoised = ladder_of(costs=costs).denoise(UNLABELED)
    assert tuple(level is not None for level in denoised) == built
    for level, shape in zip(denoised, LEVELS, strict=True):
        assert level is None or (level.shape == (12, *shape) and not level.requires_grad)


def test_denoising_hangs_on_the_noise_given_and_draws_its_own_otherwise():
    ladder = trained_on_a_plane()[0]
    rows, noise = plane(12, seed=5), [normal(12, *shape, seed=level) for level, shape in enumerate(ladder.shapes)]
    one, same = ladder.denoise(rows, noise=noise)[0], ladder.denoise(rows, noise=noise)[0]
    assert torch.equal(one, same)
    assert not torch.allclose(one, ladder.denoise(rows)[0])


def plane(rows: int, seed: int) -> Tensor:
    """Ten columns that follow from two: what lies off the plane is noise."""
    return normal(rows, 2, seed=seed) @ normal(2, 10, seed=99)


def trained_on_a_plane() -> tuple[Ladder, Tensor]:
    rungs = [Dense(20), Dense(5)]
    draw = torch.Generator().manual_seed(0)
    ladder = Ladder((10,), rungs, noise=(0.3, 0, 0), costs=(10, 0, 0), task="regression", generator=draw)
    rows = plane(400, seed=4)
    optimizer = torch.optim.Adam(ladder.parameters(), lr=0.03)
    for update in range(100):
        batch = rows[update % 4 :: 4]
        optimizer.zero_grad()
        ladder.costs(batch, noise=ladder.draw_noise(batch, len(batch), draw)).total.backward()
        optimizer.step()
    return ladder, rows


def test_a_ladder_learns_without_a_label_to_take_noise_away():
    ladder, rows = trained_on_a_plane()
    noise = ladder.draw_noise(rows, len(rows), torch.Generator().manual_seed(2))
    corrupted = rows + 0.3 * noise[0]
    before, after = ((x - rows).square().mean() for x in (corrupted, ladder.denoise(rows, noise=noise)[0]))
    assert (
        after < 0.7 * before
    )  # eight of ten directions are noise alone: 0.2 would be perfect; untrained (ẑ = 0) it is 28


def test_output_does_not_hang_on_noise():
    ladder = ladder_of()
    assert torch.equal(ladder(UNLABELED), ladder(UNLABELED))
    loud = ladder_of(noise=5.0)
    assert torch.equal(ladder(UNLABELED), loud(UNLABELED))


# A module like any other.


def calibrated_ladder() -> Ladder:
    return ladder_of().calibrate(UNLABELED).eval()


def through_state_dict(ladder: Ladder) -> Ladder:
    other = Ladder((6,), [Dense(5), Dense(4), Dense(3)], costs=(10, 1, 0.1, 0.1)).eval()
    other.load_state_dict(ladder.state_dict())
    return other


def through_pickle(ladder: Ladder) -> Ladder:
    return pickle.loads(pickle.dumps(ladder))


@pytest.mark.parametrize(
    "through", [through_state_dict, through_pickle, deepcopy, lambda ladder: ladder.double().float()]
)
def test_a_ladder_comes_back_as_it_was(through):
    ladder, other = calibrated_ladder(), through(calibrated_ladder())
    assert_same_state(ladder, other)
    assert torch.equal(ladder(LABELED), other(LABELED))
    one, two = (each.costs(UNLABELED, LABELED, TARGETS, noise=noise_for(21)) for each in (ladder, other))
    assert torch.equal(one.total, two.total)


def test_a_state_dict_of_another_ladder_is_refused():
    with pytest.raises(RuntimeError, match=r"rungs\.0\.denoiser\.a"):
        ladder_of(costs=0.5).load_state_dict(ladder_of().state_dict())


@pytest.mark.parametrize("denoiser", ["gaussian", "mlp", "no-product", "linear", "additive"])
def test_double_precision_computes_in_double(denoiser):
    ladder = ladder_of(denoiser=denoiser).double()
    costs = ladder.costs(UNLABELED.double(), LABELED.double(), TARGETS)
    costs.total.backward()
    assert {costs.total.dtype, costs.denoising.dtype, costs.supervised.dtype} == {torch.float64}
    assert {p.grad.dtype for p in ladder.parameters() if p.grad is not None} == {torch.float64}
    assert ladder.calibrate(UNLABELED).eval()(UNLABELED.double()).dtype == torch.float64


@pytest.mark.parametrize("denoiser", ["gaussian", "mlp", "no-product", "linear", "additive"])
def test_nothing_stays_behind_when_a_ladder_moves_to_another_device(denoiser):
    """On the device "meta" tensors have shapes and no values; any that stayed on the CPU would not mix with them."""
    ladder = ladder_of(denoiser=denoiser).to("meta")
    costs = ladder.costs(UNLABELED.to("meta"), LABELED.to("meta"), TARGETS.to("meta"))
    costs.total.backward()
    assert {p.grad.device.type for p in ladder.parameters()} == {"meta"}
    assert ladder.calibrate(UNLABELED.to("meta")).rungs[1].mean.device.type == "meta"


def ladder_on_images() -> Ladder:
    """Every kind of rung, with overlapping windows and a stride."""
    rungs = [
        Conv(3, 3, padding="same", stride=2),
        MaxPool(3, stride=2),
        MeanPool(2),
        Conv(3, 1),
        GlobalMeanPool(),
        Dense(3),
    ]
    return Ladder((2, 12, 12), rungs, costs=(1,) * 7, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("through", [through_pickle, deepcopy])
def test_a_ladder_on_images_comes_back_as_it_was(through):
    ladder = ladder_on_images().calibrate(normal(8, 2, 12, 12)).eval()
    other = through(ladder)
    assert_same_state(ladder, other)
    assert torch.equal(ladder(normal(4, 2, 12, 12)), other(normal(4, 2, 12, 12)))


@pytest.mark.parametrize(("device", "dtype"), [("meta", torch.float32), ("cpu", torch.float64)])
def test_a_ladder_on_images_moves_as_a_whole(device, dtype):
    ladder = ladder_on_images().to(device, dtype)
    rows = normal(9, 2, 12, 12).to(device, dtype)
    costs = ladder.costs(rows, rows, TARGETS.to(device))
    costs.total.backward()
    assert {(p.grad.device.type, p.grad.dtype) for p in ladder.parameters()} == {(device, dtype)}
    assert ladder.calibrate(rows).rungs[2].mean.device.type == device


def test_without_labelled_images_the_denoising_costs_remain():
    costs = ladder_on_images().costs(normal(9, 2, 12, 12))
    assert costs.supervised == 0
    assert costs.total.isfinite()


def test_the_generator_decides_on_the_first_weights():
    assert_same_state(ladder_of(), ladder_of())
    other = Ladder((6,), [Dense(5), Dense(4), Dense(3)], costs=1, generator=torch.Generator().manual_seed(1))
    assert not torch.equal(other.rungs[1].weight, ladder_of().rungs[1].weight)
    other.reset(torch.Generator().manual_seed(2))
    again = deepcopy(other)
    again.reset(torch.Generator().manual_seed(2))
    assert_same_state(other, again)


# A loop of one's own.


def test_a_loop_of_ones_own_learns_digits():
    digits = load("digits")
    x, y = torch.from_numpy(digits.train_x).flatten(1), torch.from_numpy(digits.train_y)
    labeled = torch.from_numpy(split(digits.train_y, 50, seed=0).labeled)
    torch.manual_seed(0)

    ladder = Ladder((64,), [Dense(64), Dense(32), Dense(10)], costs=(100, 10, 0.1, 0.1))
    optimizer = torch.optim.Adam(ladder.parameters(), lr=0.005)
    for _ in range(5):
        for unlabeled in torch.randperm(len(x)).split(100):
            optimizer.zero_grad()
            ladder.costs(x[unlabeled], x[labeled], y[labeled]).total.backward()
            optimizer.step()
    ladder.calibrate(x).eval()

    test_x, test_y = torch.from_numpy(digits.test_x).flatten(1), torch.from_numpy(digits.test_y)
    error = (ladder(test_x).argmax(1) != test_y).double().mean().item()
    assert error < 0.3  # by chance 0.9; over four seeds 0.11 to 0.17 after twice as many epochs


def test_the_default_cost_of_the_top_is_the_same_however_low_the_ladder_is():
    ladders = [Ladder((4,), [Dense(3)] * rungs) for rungs in (1, 2, 3)]
    weights = [[rung.cost for rung in ladder.rungs] for ladder in ladders]
    assert weights == [[1000.0, 0.1], [1000.0, 10.0, 0.1], [1000.0, 10.0, 0.1, 0.1]]


def test_a_calibrated_ladder_can_be_exported():
    ladder = ladder_of().calibrate(UNLABELED).eval()
    exported = torch.export.export(ladder, (UNLABELED,)).module()
    torch.testing.assert_close(exported(UNLABELED), ladder(UNLABELED))
