"""Rungs as values: their shapes, their texts, and what cannot stand on what, said with both shapes."""

import re
import subprocess
import sys
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tikas import Conv, Dense, GlobalMeanPool, Ladder, MaxPool, MeanPool
from tikas.model.activations import ACTIVATIONS
from tikas.model.denoisers import DENOISERS
from tikas.model.names import ActivationName, DenoiserName, Padding, Rounding
from tikas.model.specs import RungSpec, shapes_of
from tikas.model.texts import KINDS, from_text
from tikas.training.networks import in_one_form

# Texts.

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


@pytest.mark.parametrize(("text", "rung"), TEXTS.items(), ids=TEXTS)
def test_a_rung_has_one_text_and_comes_back_from_it(text, rung):
    assert rung.text == text
    assert from_text(text) == rung
    assert from_text(f"  {text.replace(' ', '   ')} ") == rung


positive = st.integers(1, 10**6)
activations = st.none() | st.sampled_from(get_args(ActivationName))
rungs = st.one_of(
    st.builds(Dense, positive, activation=activations, scale=st.booleans()),
    st.builds(Conv, positive, positive, st.sampled_from(get_args(Padding)), positive, activations),
    *(
        st.builds(pool, positive, st.none() | positive, st.sampled_from(get_args(Rounding)))
        for pool in (MaxPool, MeanPool)
    ),
    st.builds(GlobalMeanPool, st.booleans()),
)


@given(rung=rungs)
def test_every_rung_comes_back_from_its_text(rung: RungSpec):
    assert from_text(rung.text) == rung
    assert hash(from_text(rung.text)) == hash(rung)


def test_options_may_stand_in_any_order_and_defaults_may_be_said():
    assert from_text("conv 8 3 tanh stride=2 same") == from_text("conv 8 3 same stride=2 tanh")
    assert from_text("conv 8 3 valid stride=1").text == "conv 8 3"
    assert from_text("max 2 stride=2 up") == MaxPool(2, stride=2) == MaxPool(2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is no rung; a rung starts with one of 'dense', 'conv', 'max', 'mean', 'global'."),
        ("convolution 3 3", "is no rung"),
        ("32", "is no rung"),
        ("conv 32", "'conv 32' has 1 numbers; expected 'conv FEATURES KERNEL', and options after it."),
        ("max 2 2", "has 2 numbers; expected 'max SIZE'"),
        ("global 3", "has 1 numbers; expected 'global'"),
        ("max 2 relu", "'max 2 relu': a 'max' rung has no activation."),
        ("dense 10 same", "a 'dense' rung has no padding."),
        ("conv 8 3 wide", "'wide' is no option of a rung; there are stride=2, valid, same, full"),
        ("conv 8 3 stride=-1", "'stride=-1' is no option of a rung"),
        ("conv 0 3", "Conv(0): the number of units must be a positive whole number."),
        ("conv 8 3 stride=0", "Conv(stride=0): the stride must be a positive whole number."),
    ],
)
def test_a_text_that_is_no_rung_is_refused_with_what_would_be(text, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        from_text(text)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Conv(8, 0), "Conv(kernel=0): the side of the kernel must be a positive whole number."),
        (lambda: Conv(8, 2.0), "Conv(kernel=2.0): the side of the kernel"),
        (lambda: MaxPool(True), "MaxPool(True): the side of the window"),
        (lambda: MeanPool(2, stride=0), "MeanPool(stride=0): the stride"),
        (lambda: Conv(8, 3, padding="wide"), "Conv(8, 3, padding='wide'): choose one of 'valid', 'same', 'full'."),
        (lambda: MaxPool(2, rounding="off"), "MaxPool(2, rounding='off'): choose one of 'up', 'down'."),
        (lambda: Conv(8, 3, activation="selu"), "Conv(8, 3, activation='selu'): choose one of 'relu', 'leaky_relu'"),
    ],
)
def test_a_rung_that_cannot_be_is_refused_with_what_can(make, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


def test_the_names_are_those_of_what_is_there():
    assert get_args(ActivationName) == tuple(ACTIVATIONS)
    assert get_args(DenoiserName) == tuple(DENOISERS)
    assert {spec.kind for spec in KINDS.values()} == set(KINDS)


def test_a_recipe_is_read_without_torch():
    program = "import sys, tikas.training.recipe; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("layers", [[torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU()], torch.nn.Linear(4, 3)])
def test_of_layers_in_place_of_rungs_it_is_said_to_give_a_sequential_or_rungs(layers):
    layer = layers[0] if isinstance(layers, list) else layers
    with pytest.raises(ValueError, match=r"takes any torch\.nn\.Module, too\.$") as caught:
        in_one_form(layers)
    assert f"{layer} is a layer; give all layers in one nn.Sequential, or rungs, such as" in str(caught.value)


def test_an_activation_is_filled_in_where_none_is_said():
    assert Conv(8, 3).with_activation("tanh") == Conv(8, 3, activation="tanh")
    assert Dense(8, activation="relu").with_activation("tanh") == Dense(8, activation="relu")
    assert MaxPool(2).with_activation("tanh") == MaxPool(2)


# What stands on what.


def test_an_odd_map_is_pooled_to_one_more_than_half_and_back():
    assert MaxPool(2).shape((96, 17, 17)) == MeanPool(2).shape((96, 17, 17)) == (96, 9, 9)
    assert MaxPool(2, rounding="down").shape((96, 17, 17)) == (96, 8, 8)
    ladder = Ladder((2, 17, 15), [MaxPool(2), GlobalMeanPool()], costs=(1, 1, 1))
    assert [tuple(level.shape) for level in ladder.denoise(torch.rand(4, 2, 17, 15))] == [
        (4, 2, 17, 15),
        (4, 2, 9, 8),
        (4, 2),
    ]


@given(side=st.integers(1, 40), size=st.integers(1, 8), stride=st.integers(1, 8))
def test_windows_are_counted_as_torch_counts_them(side, size, stride):
    if size > side:
        return
    for rounding in ("up", "down"):
        made = MaxPool(size, stride=stride, rounding=rounding).shape((1, side, side))
        ones = torch.ones(1, 1, side, side)
        assert made == torch.nn.MaxPool2d(size, stride, ceil_mode=rounding == "up")(ones).shape[1:]


@pytest.mark.parametrize(
    ("input_shape", "rungs", "shapes"),
    [
        ((3, 8, 8), [Conv(4, 9), Dense(2)], ("(9, 9)", "(3, 8, 8)")),
        ((3, 8, 8), [Conv(4, 3), Conv(4, 7), Dense(2)], ("(7, 7)", "(4, 6, 6)")),
        ((3, 8, 5), [Conv(4, 6), Dense(2)], ("(6, 6)", "(3, 8, 5)")),
        ((3, 2, 2), [MaxPool(3), Dense(2)], ("(3, 3)", "(3, 2, 2)")),
        ((3, 8, 8), [Conv(2, 8), MeanPool(2), Dense(2)], ("(2, 2)", "(2, 1, 1)")),
        ((64,), [Conv(4, 3), Dense(2)], ("(channels, height, width)", "(64,)")),
        ((3, 8, 8), [Dense(9), MaxPool(2)], ("(channels, height, width)", "(9,)")),
        ((3, 8, 8), [GlobalMeanPool(), GlobalMeanPool()], ("(channels, height, width)", "(3,)")),
        ((3, 8, 8), [Conv(10, 3)], ("(10, 6, 6)", "(outputs,)")),
        ((3, 8, 8), [Conv(10, 3), MaxPool(2)], ("(10, 3, 3)", "(outputs,)")),
        ((28, 28, 1), [Conv(10, 3), GlobalMeanPool()], ("(28, 28, 1)", "(1, 28, 28)")),
        ((32, 32, 3), [Conv(10, 3), GlobalMeanPool()], ("(32, 32, 3)", "(3, 32, 32)")),
        ((48, 64, 3), [Conv(10, 3), GlobalMeanPool()], ("(48, 64, 3)", "(3, 48, 64)")),
        ((48, 32, 1), [Conv(10, 3), GlobalMeanPool()], ("(48, 32, 1)", "(1, 48, 32)")),
        ((64, 32, 2), [Dense(10)], ("(64, 32, 2)", "(2, 64, 32)")),
        ((64, 32, 2), [Dense(10)], ("(64, 32, 2)", "can lie on their side, (64, 2, 32)")),
        (np.array([1, 28, 28]), [Dense(10)], ("array([ 1, 28, 28])", "Give a tuple, (1, 28, 28).")),
        ((28, 28), [Conv(10, 3), GlobalMeanPool()], ("(28, 28)", "(1, 28, 28)")),
        ((1, 3, 28, 28), [Conv(10, 3), GlobalMeanPool()], ("(1, 3, 28, 28)", "(channels, height, width)")),
        ((3, 0, 8), [Conv(10, 3), GlobalMeanPool()], ("(3, 0, 8)", "(channels, height, width)")),
    ],
)
def test_a_rung_that_cannot_stand_there_is_refused_with_both_shapes(input_shape, rungs, shapes):
    with pytest.raises(ValueError, match=re.escape(shapes[0])) as caught:
        Ladder(input_shape, rungs)
    assert shapes[1] in str(caught.value)


def test_images_with_their_channels_last_are_refused_with_the_way_to_turn_them():
    ladder = Ladder((3, 8, 6), [Conv(4, 3), GlobalMeanPool()], costs=0)
    with pytest.raises(
        ValueError, match=re.escape("Got rows of shape (5, 8, 6, 3); this ladder takes (rows, 3, 8, 6).")
    ) as e:
        ladder(torch.rand(5, 8, 6, 3))
    assert "x.movedim(-1, -3)" in str(e.value)
    assert ladder(torch.rand(5, 8, 6, 3).movedim(-1, -3)).shape == (5, 4)


def test_images_with_few_pixels_and_many_channels_are_no_mistake():
    assert Ladder((8, 8, 8), [Conv(4, 3), GlobalMeanPool()], costs=0).shapes[-1] == (4,)
    for shape in ((12, 100, 1), (12, 100, 3), (64, 2, 32)):  # narrow maps of many channels
        assert Ladder(shape, [Dense(3)], costs=0).shapes[0] == shape
    assert shapes_of((2, 2, 2), [Dense(3)]) == [(2, 2, 2), (3,)]


def test_a_top_without_a_scale_has_a_bias_alone():
    for top in (Dense(3, scale=False), GlobalMeanPool(scale=False)):
        ladder = Ladder((3, 4, 4), [Conv(3, 1), top], costs=0)
        assert ladder.rungs[-1].gamma is None
        assert ladder.rungs[-1].beta.shape == (3,)
    below = Ladder((3, 4, 4), [Conv(3, 1), GlobalMeanPool(), Dense(3)], costs=0).rungs[2]
    assert below.gamma is None
    assert below.beta is None  # below the top pooling is linear
