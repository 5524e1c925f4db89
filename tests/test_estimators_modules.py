"""The scikit-learn door takes a network that somebody already has, and puts the Γ-model around copies of it."""

import pickle
from concurrent.futures import ThreadPoolExecutor
from time import sleep

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal
from sklearn.base import clone
from sklearn.datasets import load_digits
from torch import nn

from tikas import Dense, Ladder, LadderClassifier, LadderRegressor, gamma
from tikas.data.splits import Split
from tikas.data.streams import Examples
from tikas.estimators.members import build_around
from tikas.model.gamma import Gamma
from tikas.training import evaluation
from tikas.training.fit import fit
from tikas.training.randomness import own_randomness
from tikas.training.recipe import Recipe

DIGITS = load_digits()
IMAGES = (DIGITS.images[:400] / 16).astype(np.float32)[:, None]
ROWS = IMAGES.reshape(400, -1)
CLASSES = DIGITS.target[:400]
SEEN = np.where(np.arange(400) < 100, CLASSES, -1)


def convolutional():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.3),
        nn.Flatten(),
        nn.Linear(72, 10),
    )


class Attentive(nn.Module):
    """Rows of an image as tokens: places of noise with two dimensions."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = nn.LayerNorm(8)
        self.scores = nn.Linear(64, 10)

    def forward(self, x):
        return self.scores(self.norm(x + self.attention(x, x, x, need_weights=False)[0]).flatten(1))


def classifier(network, **settings):
    return LadderClassifier(network, **{"epochs": 2, "random_state": 0, **settings})


def test_a_module_learns_and_the_one_that_was_given_does_not():
    network = convolutional().eval()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    model = classifier(network, epochs=20).fit(IMAGES, SEEN)
    assert np.mean(model.transduction_ == CLASSES) > 0.8  # 0.9; a tenth is chance
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())
    assert not network.training
    assert not network[1]._forward_hooks
    assert model.network is network
    assert isinstance(model.ladder_, Gamma)


def test_it_starts_from_the_weights_that_it_has():
    network = convolutional()
    model = classifier(network, epochs=1, learning_rate=1e-12, n_members=2).fit(IMAGES, SEEN)
    for member in model.ladders_:
        assert torch.allclose(member.network[0].weight, network[0].weight, atol=1e-6)


def test_noise_and_cost_reach_the_model():
    model = classifier(nn.Linear(64, 10), noise=(0.1, 0.4), costs=3, epochs=1).fit(ROWS, SEEN)
    assert (model.ladder_.noise, model.ladder_.corruption.noise, model.ladder_.rung.cost) == (0.1, 0.4, 3.0)
    line = model.history_[0]
    assert line["total"] == pytest.approx(line["supervised"] + 3 * line["denoising"][0], rel=1e-4)
    assert classifier(nn.Linear(64, 10), epochs=1).fit(ROWS, SEEN).ladder_.rung.cost == 1.0


def test_open_epochs_are_the_usual_ones_whatever_the_scale_of_its_rows(monkeypatch):
    asked = []
    monkeypatch.setattr("tikas.estimators.base.suitable_epochs", lambda *given: asked.append(given) or 1)
    classifier(nn.Linear(64, 10), epochs=None, preprocess="standardize").fit(ROWS, SEEN)
    assert asked == [(400, 100, 100)]


def test_a_state_is_as_random_as_it_says_dropout_included():
    model = classifier(convolutional(), n_members=2).fit(IMAGES, SEEN)
    again = clone(model).fit(IMAGES, SEEN)
    assert_array_equal(again.predict_proba(IMAGES), model.predict_proba(IMAGES))
    second = classifier(convolutional(), random_state=1).fit(IMAGES, SEEN)
    assert torch.equal(second.ladder_.network[0].weight, model.ladders_[1].network[0].weight)


def test_a_state_decides_on_first_weights_that_are_drawn_once_the_shape_of_rows_is_known():
    states = []
    for state in (0, 0, 1):
        torch.rand(7)  # the generator is elsewhere each time
        network = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(10))
        states.append(classifier(network, epochs=1, random_state=state).fit(ROWS, SEEN).ladder_.state_dict())
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())
    assert (states[0]["network.0.weight"] - states[2]["network.0.weight"]).abs().max() > 0.05


class OneOrTwo(nn.Module):
    """Takes columns of these two numbers and no others."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(2, 4), nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.embedding(x.long() - 1).flatten(1))


def test_a_module_is_tried_on_no_other_rows_than_those_it_is_given():
    X = np.random.default_rng(0).integers(1, 3, (60, 2)).astype(np.float32)
    y = np.where(np.arange(60) < 20, X[:, 0] > 1, -1)
    model = LadderClassifier(OneOrTwo(), noise=(0, 0.3), epochs=1, batch_size=30, random_state=0).fit(X, y)
    assert model.predict(X).shape == (60,)


class AlwaysDrawing(nn.Linear):
    """It drops values in eval mode, too."""

    def forward(self, x):
        return super().forward(nn.functional.dropout(x, 0.2, training=True))


def test_the_global_generator_is_left_as_it_was():
    network, one_that_draws = convolutional(), AlwaysDrawing(64, 10)
    state = torch.get_rng_state()
    classifier(network, epochs=1).fit(IMAGES, SEEN)
    assert torch.equal(state, torch.get_rng_state())
    build_around(one_that_draws, ROWS)(Recipe(network=(), costs=1.0), (64,), 10, 0)
    assert torch.equal(state, torch.get_rng_state())


def test_clones_pickles_probabilities_and_latents():
    model = classifier(convolutional()).fit(IMAGES, SEEN)
    again = pickle.loads(pickle.dumps(model))
    assert_array_equal(again.predict_proba(IMAGES), model.predict_proba(IMAGES))
    assert clone(model).network is not model.network
    assert model.transform(IMAGES).shape == (400, 10)
    assert np.allclose(model.predict_proba(IMAGES).sum(1), 1)
    assert (model.input_shape_, model.n_features_in_) == ((1, 8, 8), 64)


def test_a_module_gets_x_as_it_is():
    model = classifier(Attentive()).fit(IMAGES[:, 0], SEEN)
    assert model.input_shape_ == (8, 8)
    assert model.ladder_.shapes == [(8, 8), (8, 8), (10,)]
    assert model.score(IMAGES[:, 0], CLASSES) > 0.15
    assert classifier(nn.Linear(64, 10).double(), epochs=1).fit(ROWS, SEEN).predict(ROWS).shape == (400,)


def test_whitening_class_weights_and_warm_starts_hold_for_modules_too():
    settings = {"preprocess": "whiten", "class_weight": "balanced", "warm_start": True}
    model = classifier(convolutional(), **settings).fit(IMAGES, SEEN)
    weight = model.ladder_.network[0].weight.clone()
    model.set_params(learning_rate=1e-12).fit(IMAGES, SEEN)
    assert model.n_iter_ == 4
    assert torch.allclose(model.ladder_.network[0].weight, weight, atol=1e-6)
    assert model.preparation_.mean.shape == (1, 8, 8)


def test_without_a_cost_a_module_learns_from_labels_alone():
    assert classifier(nn.Linear(64, 10), costs=0).fit(ROWS, SEEN).ladder_.rung.cost == 0


def test_a_class_that_weighs_next_to_nothing_is_not_predicted_by_a_module_either():
    weights = {**dict.fromkeys(range(10), 1e-4), 1: 1e3}
    assert (classifier(nn.Linear(64, 10), class_weight=weights).fit(ROWS, SEEN).predict(ROWS) == 1).all()


def test_threads_do_not_draw_from_each_others_seeds():
    def draws(seed):
        with own_randomness():
            torch.manual_seed(seed)
            sleep(0.01)  # training
            return torch.rand(3).tolist()

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(draws, range(4))) == [draws(seed) for seed in range(4)]


class Frozen(nn.Module):
    """Its batch normalisation stays in eval mode, with what another data set left in it."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(1)
        self.norm.running_mean.fill_(3.0)
        self.rest = convolutional()

    def forward(self, x):
        return self.rest(self.norm(x))

    def train(self, mode=True):
        super().train(mode)
        self.norm.eval()
        return self


def test_frozen_statistics_are_those_of_the_module_and_others_are_of_the_rows():
    model = classifier(Frozen(), n_members=2).fit(IMAGES, SEEN)
    for member in model.ladders_:
        assert member.network.norm.running_mean.tolist() == [3.0]
        assert member.network.rest[1].running_mean.abs().max() > 0


def test_statistics_stay_frozen_where_rows_are_held_out_and_each_epoch_is_measured(monkeypatch):
    monkeypatch.setattr(evaluation, "epochs_between", lambda *_: 1)
    recipe = Recipe(data="array", network=(), costs=1.0, epochs=2, validation=100)
    rows = Split(np.arange(100), np.arange(300), np.arange(300, 400))
    examples = Examples(torch.from_numpy(IMAGES), torch.from_numpy(CLASSES), 10)
    trained = fit(examples, [rows], recipe, [0], device="cpu", build=build_around(Frozen(), IMAGES))
    assert all(line["validation_error"] < 100 for line in trained.histories[0])
    assert trained.ladders[0].network.norm.running_mean.tolist() == [3.0]


@pytest.mark.parametrize(
    ("network", "instead"),
    [
        (Ladder((64,), [Dense(10)]), "give LadderClassifier rungs, for example network="),
        (nn.Sequential(Ladder((64,), [Dense(10)])), "give LadderClassifier rungs, for example network="),
        (gamma(nn.Linear(64, 10), 10), "give the network that it stands around"),
    ],
    ids=["ladder", "ladder within", "gamma"],
)
def test_a_model_with_costs_of_its_own_is_refused_with_what_to_give_instead(network, instead):
    with pytest.raises(TypeError, match=f"whose own costs would be left out.*{instead}"):
        classifier(network).fit(ROWS, SEEN)


@pytest.mark.parametrize(
    ("settings", "X", "message"),
    [
        ({"costs": np.array(1.0)}, IMAGES, r"costs=array\(1\.\): expected numbers"),
        ({"costs": (1, 2)}, IMAGES, r"costs=\(1, 2\): a network of your own has one denoising cost.*one number"),
        ({"costs": -1}, IMAGES, r"costs=\(-1.0,\): expected"),
        ({"noise": (0.1, 0.2, 0.3)}, IMAGES, r"noise=\(0.1, 0.2, 0.3\): expected 1 to 2"),
        ({"denoiser": "mlp"}, IMAGES, "denoiser='mlp' is for rungs, and a network of your own has none"),
        ({"activation": "tanh"}, IMAGES, "activation='tanh' is for rungs"),
        ({}, IMAGES[:, 0], r"does not take rows of shape \(8, 8\): .*even if they are grey"),
        ({}, np.moveaxis(IMAGES, 1, -1), r"rows of shape \(8, 8, 1\): Given .*8, 8, 1\].* turn .*moveaxis"),
        ({}, ROWS, r"does not take rows of shape \(64,\)"),
    ],
)
def test_what_does_not_fit_a_module_is_refused(settings, X, message):
    with pytest.raises(ValueError, match=message):
        classifier(convolutional(), **settings).fit(X, SEEN)


def test_a_last_layer_of_another_width_is_refused_with_both_shapes():
    with pytest.raises(ValueError, match=r"\(rows, 7\).*\(rows, 10\).* 10 outputs; n_classes is .* in y") as caught:
        classifier(nn.Linear(64, 7)).fit(ROWS, SEEN)
    assert "set n_classes" not in str(caught.value)  # there is no such parameter


def test_a_table_of_embeddings_is_told_how_to_get_whole_numbers():
    network = nn.Sequential(nn.Embedding(2, 4), nn.Flatten(), nn.Linear(256, 10))
    with pytest.raises(ValueError, match=r"x\.long\(\), and keep noise off them, noise=\(0, 0\.3\)"):
        classifier(network).fit(np.rint(ROWS), SEEN)


class TakesTheLastColumn(nn.Linear):
    def forward(self, x):
        return super().forward(x[:, :, -1])


class TakesNothing(nn.Module):
    def forward(self, x):
        raise NotImplementedError


@pytest.mark.parametrize(
    ("network", "said"),
    [
        (TakesTheLastColumn(8, 10), "too many indices for tensor of dimension 2"),
        (nn.ReflectionPad2d(1), r"not supported for 2D input tensor"),
        (TakesNothing(), "NotImplementedError"),
    ],
    ids=["too few dimensions", "a sentence", "no word"],
)
def test_of_rows_that_a_module_fails_on_it_is_said_in_which_shape_to_give_them(network, said):
    with pytest.raises(ValueError, match=rf"rows of shape \(64,\): [^.]*{said}\. Give X in the shape that it takes"):
        classifier(network).fit(ROWS, SEEN)


class KeepsAGenerator(nn.Linear):
    def __init__(self):
        super().__init__(64, 10)
        self.kept = (count for count in range(3))


@pytest.mark.parametrize("network", [KeepsAGenerator(), nn.Sequential(nn.Linear(64, 10), nn.LazyBatchNorm1d())])
def test_a_module_that_cannot_be_copied_is_refused_with_what_to_do(network):
    with pytest.raises(TypeError, match=r"\(…\) cannot be copied, .* and run lazy layers on a few rows first"):
        classifier(network).fit(ROWS, SEEN)


def test_a_regressor_takes_no_module():
    with pytest.raises(ValueError, match=r"a network of your own gets .* class scores, give a regression rungs"):
        LadderRegressor(nn.Linear(64, 1)).fit(ROWS, CLASSES)


def test_a_module_is_not_saved_and_what_to_do_is_said(tmp_path):
    model = classifier(nn.Linear(64, 10), epochs=1).fit(ROWS, SEEN)
    with pytest.raises(ValueError, match=r"module of your own.*state_dict.*joblib\.dump"):
        model.save(tmp_path / "model")
    assert not list(tmp_path.iterdir())
