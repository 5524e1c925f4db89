"""Rung specs: fields, shapes, texts, and errors that name the shapes."""

import re
import subprocess
import sys
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tikas import Conv, Dense, GlobalMeanPool, Ladder, MaxPool, MeanPool
from tikas.model.denoisers import DENOISERS
from tikas.model.layers import ACTIVATIONS
from tikas.model.specs import (
    ActivationName,
    DenoiserName,
    Padding,
    Rounding,
    RungSpec,
    channels_last_hint,
    is_channels_last,
    parse_rung,
    rung_text,
    shapes_of,
)

# Texts

TEXTS = {
    "dense 100": Dense(100),
    "dense 100 tanh": Dense(100, activation="tanh"),
    "dense 10 unscaled": Dense(10, scale=False),
    "conv 32 5": Conv(32, 5),
    "conv 32 5 full": Conv(32, 5, padding="full"),
    "conv 64 3 same stride=2 leaky_relu": Conv(64, 3, padding="same", stride=2, activation="leaky_relu"),
    "max 2": MaxPool(2),
    "max 3 stride=2": MaxPool(3, stride=2),
    "mean 2 down": MeanPool(2, rounding="down"),
    "global": GlobalMeanPool(),
    "global unscaled": GlobalMeanPool(scale=False),
}


@pytest.mark.parametrize(("text", "spec"), TEXTS.items(), ids=TEXTS)
def test_a_rung_has_one_text_and_is_parsed_from_it(text, spec):
    assert rung_text(spec) == text
    assert parse_rung(text) == spec
    assert parse_rung(f"  {text.replace(' ', '   ')} ") == spec


positive = st.integers(1, 10**6)
activations = st.none() | st.sampled_from(get_args(ActivationName))
specs = st.one_of(
    st.builds(Dense, positive, activation=activations, scale=st.booleans()),
    st.builds(Conv, positive, positive, st.sampled_from(get_args(Padding)), positive, activations),
    *(
        st.builds(pool, positive, st.none() | positive, st.sampled_from(get_args(Rounding)))
        for pool in (MaxPool, MeanPool)
    ),
    st.builds(GlobalMeanPool, st.booleans()),
)


@given(spec=specs)
def test_every_rung_is_parsed_from_its_text(spec: RungSpec):
    assert parse_rung(rung_text(spec)) == spec
    assert hash(parse_rung(rung_text(spec))) == hash(spec)


def test_options_may_stand_in_any_order_and_may_repeat_defaults():
    assert parse_rung("conv 8 3 tanh stride=2 same") == parse_rung("conv 8 3 same stride=2 tanh")
    assert rung_text(parse_rung("conv 8 3 valid stride=1")) == "conv 8 3"
    assert parse_rung("max 2 stride=2 up") == MaxPool(2, stride=2) == MaxPool(2)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", ["''", "dense, conv, max, mean, global"]),
        ("convolution 3 3", ["'convolution 3 3'", "conv"]),
        ("32", ["'32'", "dense"]),
        ("conv 32", ["'conv 32'", "1", "'conv FEATURES KERNEL'"]),
        ("max 2 2", ["2", "'max SIZE'"]),
        ("global 3", ["1", "'global'"]),
        ("conv 8 3 wide", ["'wide'", "stride=2, valid, same, full"]),
        ("conv 8 3 stride=-1", ["stride=-1"]),
        ("conv 0 3", ["Conv", "features=0"]),
    ],
)
def test_a_text_that_is_not_a_rung_raises_value_error_with_the_choices(text, named):
    with pytest.raises(ValueError, match=re.escape(named[0])) as caught:
        parse_rung(text)
    assert all(name in str(caught.value) for name in named)


@pytest.mark.parametrize(("text", "named"), [("max 2 relu", "MaxPool.*'activation'"), ("dense 10 same", "padding")])
def test_an_option_of_other_rungs_raises_type_error(text, named):
    with pytest.raises(TypeError, match=named):
        parse_rung(text)


# Fields


@pytest.mark.parametrize("features", [0, -3, 2.5, "10", None])
def test_features_must_be_a_positive_integer(features):
    with pytest.raises(ValueError, match=re.escape(f"Dense: features={features!r}")):
        Dense(features)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Conv(8, 0), "Conv: kernel=0"),
        (lambda: Conv(8, 2.0), "Conv: kernel=2.0"),
        (lambda: MaxPool(0), "MaxPool: size=0"),
        (lambda: MeanPool(2, stride=0), "MeanPool: stride=0"),
        (lambda: Conv(8, 3, padding="wide"), "Conv: padding='wide' is unknown; choose one of 'valid', 'same', 'full'"),
        (lambda: MaxPool(2, rounding="off"), "MaxPool: rounding='off' is unknown; choose one of 'up', 'down'"),
        (
            lambda: Dense(5, activation="selu"),
            "Dense: activation='selu' is unknown; choose one of 'relu', 'leaky_relu'",
        ),
    ],
)
def test_a_field_with_a_wrong_value_raises_value_error_with_the_choices(make, named):
    with pytest.raises(ValueError, match=re.escape(named)):
        make()


def test_the_literal_types_contain_the_implemented_names():
    assert get_args(ActivationName) == tuple(ACTIVATIONS)
    assert get_args(DenoiserName) == tuple(DENOISERS)


def test_specs_and_recipes_are_imported_without_torch():
    program = "import sys, tikas.model.specs, tikas.training.recipe; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_with_activation_fills_in_a_missing_activation():
    assert Conv(8, 3).with_activation("tanh") == Conv(8, 3, activation="tanh")
    assert Dense(8, activation="relu").with_activation("tanh") == Dense(8, activation="relu")
    assert MaxPool(2).with_activation("tanh") == MaxPool(2)


# Shapes


def test_an_odd_map_is_pooled_to_one_more_than_half_and_denoised_to_its_own_size():
    assert MaxPool(2).shape((96, 17, 17)) == MeanPool(2).shape((96, 17, 17)) == (96, 9, 9)
    assert MaxPool(2, rounding="down").shape((96, 17, 17)) == (96, 8, 8)
    ladder = Ladder((2, 17, 15), [MaxPool(2), GlobalMeanPool()], costs=(1, 1, 1))
    shapes = [tuple(level.shape) for level in ladder.denoise(torch.rand(4, 2, 17, 15))]
    assert shapes == [(4, 2, 17, 15), (4, 2, 9, 8), (4, 2)]


@given(side=st.integers(1, 40), size=st.integers(1, 8), stride=st.integers(1, 8))
def test_windows_are_counted_as_in_torch(side, size, stride):
    if size > side:
        return
    for rounding in ("up", "down"):
        shape = MaxPool(size, stride=stride, rounding=rounding).shape((1, side, side))
        ones = torch.ones(1, 1, side, side)
        assert shape == torch.nn.MaxPool2d(size, stride, ceil_mode=rounding == "up")(ones).shape[1:]


@pytest.mark.parametrize(
    ("input_shape", "rungs", "named"),
    [
        ((3, 8, 8), [Conv(4, 9), Dense(2)], ["kernel=9", "(3, 8, 8)"]),
        ((3, 8, 8), [Conv(4, 3), Conv(4, 7), Dense(2)], ["kernel=7", "(4, 6, 6)"]),
        ((3, 8, 5), [Conv(4, 6), Dense(2)], ["kernel=6", "(3, 8, 5)"]),
        ((3, 2, 2), [MaxPool(3), Dense(2)], ["size=3", "(3, 2, 2)"]),
        ((3, 8, 8), [Conv(2, 8), MeanPool(2), Dense(2)], ["size=2", "(2, 1, 1)"]),
        ((64,), [Conv(4, 3), Dense(2)], ["(channels, height, width)", "(64,)"]),
        ((3, 8, 8), [Dense(9), MaxPool(2)], ["(channels, height, width)", "(9,)"]),
        ((3, 8, 8), [GlobalMeanPool(), GlobalMeanPool()], ["(channels, height, width)", "(3,)"]),
        ((3, 8, 8), [Conv(10, 3)], ["(10, 6, 6)", "(outputs,)"]),
        ((3, 8, 8), [Conv(10, 3), MaxPool(2)], ["(10, 3, 3)", "(outputs,)"]),
        ((28, 28, 1), [Conv(10, 3), GlobalMeanPool()], ["(28, 28, 1)", "(1, 28, 28)"]),
        ((32, 32, 3), [Conv(10, 3), GlobalMeanPool()], ["(32, 32, 3)", "(3, 32, 32)"]),
        ((48, 64, 3), [Conv(10, 3), GlobalMeanPool()], ["(48, 64, 3)", "(3, 48, 64)"]),
        ((64, 32, 2), [Dense(10)], ["(64, 32, 2)", "(2, 64, 32)"]),
        (64, [Dense(10)], ["input_shape=64", "(features,)"]),
        ((28, 28), [Conv(10, 3), GlobalMeanPool()], ["(28, 28)", "(1, height, width)"]),
        ((1, 3, 28, 28), [Conv(10, 3), GlobalMeanPool()], ["(1, 3, 28, 28)", "(channels, height, width)"]),
        ((3, 0, 8), [Conv(10, 3), GlobalMeanPool()], ["(3, 0, 8)", "(channels, height, width)"]),
    ],
)
def test_rungs_that_do_not_fit_raise_value_error_with_both_shapes(input_shape, rungs, named):
    with pytest.raises(ValueError, match=re.escape(named[0])) as caught:
        Ladder(input_shape, rungs)
    assert all(name in str(caught.value) for name in named)


def test_images_with_channels_last_raise_value_error_with_the_conversion():
    ladder = Ladder((3, 8, 6), [Conv(4, 3), GlobalMeanPool()], costs=0)
    with pytest.raises(ValueError, match=re.escape("(5, 8, 6, 3)")) as caught:
        ladder(torch.rand(5, 8, 6, 3))
    assert "(rows, 3, 8, 6)" in str(caught.value)
    assert "x.movedim(-1, -3)" in str(caught.value)
    assert ladder(torch.rand(5, 8, 6, 3).movedim(-1, -3)).shape == (5, 4)


def test_maps_with_few_pixels_and_many_channels_are_accepted():
    assert Ladder((8, 8, 8), [Conv(4, 3), GlobalMeanPool()], costs=0).shapes[-1] == (4,)
    for shape in ((12, 100, 1), (12, 100, 3), (64, 2, 32)):  # narrow maps of many channels
        assert not is_channels_last(shape)
        assert Ladder(shape, [Dense(3)], costs=0).shapes[0] == shape
    assert shapes_of((2, 2, 2), [Dense(3)]) == [(2, 2, 2), (3,)]


def test_the_hint_to_move_channels_is_given_where_they_may_be_last():
    assert "(14, 28, 3)" in channels_last_hint((14, 28, 3))
    assert channels_last_hint((3, 14, 28)) == channels_last_hint((64,)) == ""


# Scale and bias


def test_a_top_without_a_scale_has_only_a_bias():
    for top in (Dense(3, scale=False), GlobalMeanPool(scale=False)):
        ladder = Ladder((3, 4, 4), [Conv(3, 1), top], costs=0)
        assert ladder.rungs[-1].gamma is None
        assert ladder.rungs[-1].beta.shape == (3,)
    below = Ladder((3, 4, 4), [Conv(3, 1), GlobalMeanPool(), Dense(3)], costs=0).rungs[2]
    assert below.gamma is None
    assert below.beta is None  # below the top, pooling is linear
