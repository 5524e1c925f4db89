"""Prediction of many rows: some thousand at a time, on the device that is worth it, each row answered as if alone."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.datasets import load_digits
from torch import nn

from tikas import LadderClassifier
from tikas.data.whitening import Whitening
from tikas.estimators import answers
from tikas.estimators.answers import MOST_IMAGES, MOST_ROWS, WORTH_A_GPU, place_of_answers
from tikas.model.gamma import Gamma
from tikas.model.ladder import Ladder

IMAGES = (load_digits().images / 16).astype(np.float32)[:, None]
DIGITS = load_digits().target
RUNGS = ("conv 4 3", "max 2")
CPU = torch.device("cpu")
MODULE = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def fitted(network, **settings):
    quick = {"epochs": 1, "n_members": 2, "random_state": 0}
    return LadderClassifier(network, **{**quick, **settings}).fit(IMAGES[:300], DIGITS[:300])


@pytest.fixture
def seen(monkeypatch):
    """How many rows come at once to each of those who work on them."""
    numbers = {"members": [], "whitening": []}
    whiten = Whitening.__call__

    def whitened(whitening, images):
        numbers["whitening"].append(len(images))
        return whiten(whitening, images)

    def watched(encode):
        def encoded(member, rows):
            numbers["members"].append(len(rows))
            return encode(member, rows)

        return encoded

    monkeypatch.setattr(Whitening, "__call__", whitened)
    for kind in (Ladder, Gamma):
        monkeypatch.setattr(kind, "encode", watched(kind.encode))
    return numbers


@pytest.mark.parametrize(
    ("network", "preprocess", "most"),
    [((8,), "whiten", MOST_ROWS), (RUNGS, "whiten", MOST_IMAGES), (MODULE, "none", MOST_IMAGES)],
    ids=["dense", "convolutional", "module"],
)
def test_many_rows_are_whitened_and_answered_some_at_a_time(network, preprocess, most, seen):
    model = fitted(network, preprocess=preprocess)
    few = model.predict_proba(IMAGES[:50]), model.transform(IMAGES[:50])
    many = np.tile(IMAGES[:50], (100, 1, 1, 1))
    for numbers in seen.values():
        numbers.clear()
    for expected, found in zip(few, (model.predict_proba(many), model.transform(many)), strict=True):
        assert_allclose(found, np.tile(expected, (100, 1)), atol=1e-6 if most == MOST_IMAGES else 1e-12)
    assert max(seen["members"]) == most
    assert sum(seen["members"]) == 2 * 2 * 5000
    assert sum(seen["whitening"]) == (0 if preprocess == "none" else 2 * 5000)
    assert max(seen["whitening"], default=0) <= most


@pytest.mark.parametrize(("network", "kind"), [((8,), torch.float64), (RUNGS, torch.float32)], ids=["dense", "maps"])
def test_rows_are_whitened_as_precisely_as_they_are_answered(network, kind, monkeypatch):
    model, kinds, whiten = fitted(network, preprocess="whiten"), [], Whitening.__call__

    def watched(whitening, images):
        kinds.append(images.dtype)
        return whiten(whitening, images)

    monkeypatch.setattr(Whitening, "__call__", watched)
    model.predict(IMAGES[:5])
    assert kinds == [kind]


@pytest.mark.parametrize(
    ("network", "most", "expected"),
    [((8,), 640, [10, 10, 5]), ((128,), 640, [5] * 5), ((8,), 10, [1] * 25)],
    ids=["the input", "a rung", "more than fits"],
)
def test_rows_with_a_large_level_are_answered_fewer_at_a_time(network, most, expected, seen, monkeypatch):
    model = fitted(network, n_members=1)
    monkeypatch.setattr(answers, "MOST_IN_A_CHUNK", most)
    seen["members"].clear()
    model.predict(IMAGES[:25])
    assert seen["members"] == expected


@pytest.mark.parametrize("network", [(8,), RUNGS], ids=["dense", "convolutional"])
def test_probabilities_are_of_double_precision_whatever_they_come_from(network):
    probabilities = fitted(network).predict_proba(IMAGES[:50])
    assert probabilities.dtype == np.float64
    assert_allclose(probabilities.sum(1), 1, rtol=1e-14)


def test_products_are_whole_in_answers_whatever_precision_is_set(monkeypatch):
    """On a GPU that makes a difference."""
    model, found = fitted(RUNGS), []

    def answer(_, rows, __):
        found.append(torch.get_float32_matmul_precision())
        return torch.zeros(len(rows), 10)

    monkeypatch.setattr(answers, "_answer", answer)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        model.predict(IMAGES[:5])
    finally:
        torch.set_float32_matmul_precision(before)
    assert {*found} == {"highest"}


def test_a_copy_that_answers_has_no_decoder_and_the_model_keeps_its_own(monkeypatch):
    model, copies = fitted((8,)), []
    monkeypatch.setattr(answers, "_answer", lambda copy, rows, _: copies.append(copy) or torch.zeros(len(rows), 10))
    model.predict(IMAGES[:5])
    assert all(rung.denoiser is None and rung.back is None for copy in copies for rung in copy.rungs)
    assert all(rung.denoiser is not None for rung in model.ladder_.rungs)


def test_a_network_without_hidden_rungs_is_a_ladder_too():
    model = fitted((), costs=1.0)
    assert model.ladder_.shapes == [(64,), (10,)]
    assert model.predict(IMAGES[:5]).shape == (5,)


@pytest.mark.parametrize("preprocess", ["none", "whiten"])
def test_autocast_around_it_changes_nothing(preprocess):
    with torch.autocast("cpu", torch.bfloat16):
        model = fitted(RUNGS, preprocess=preprocess)
        within = model.predict_proba(IMAGES[:50])
    assert_array_equal(within, model.predict_proba(IMAGES[:50]))
    assert_array_equal(within, fitted(RUNGS, preprocess=preprocess).predict_proba(IMAGES[:50]))


def test_a_model_stays_on_the_cpu_in_single_precision():
    model = fitted((8,))
    model.predict(IMAGES)
    assert {(each.device, each.dtype) for each in model.ladder_.parameters()} == {(CPU, torch.float32)}


def test_the_device_asked_for_answers_where_it_is_here_and_worth_it(monkeypatch):
    flat, on_maps, module = (fitted(network).ladders_ for network in ((8,), RUNGS, MODULE))
    many = WORTH_A_GPU  # rows of some hundred weights each
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert place_of_answers(on_maps, many, None) == CPU
    assert place_of_answers(on_maps, many, "cuda") == CPU  # it was trained elsewhere
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    gpu, second = torch.device("cuda"), torch.device("cuda:1")
    for members in (on_maps, module):
        assert [place_of_answers(members, 1, asked) for asked in (None, "cuda", "cuda:1")] == [gpu, gpu, second]
    for members in (flat, on_maps, module):
        assert [place_of_answers(members, many, asked) for asked in ("cpu", "mps", "cuda:2")] == [CPU] * 3
    assert [place_of_answers(flat, rows, None) for rows in (1000, many)] == [CPU, gpu]
    enough_for_two = 1 + WORTH_A_GPU // (2 * sum(each.numel() for each in flat[0].parameters()))
    assert [place_of_answers(flat[:n], enough_for_two, None) for n in (1, 2)] == [CPU, gpu]
