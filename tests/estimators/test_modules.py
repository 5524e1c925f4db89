"""A torch.nn.Module as the network: each member is the Γ-model around a copy of it."""

import pickle

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.datasets import load_digits
from torch import nn

from tikas import Dense, Ladder, LadderClassifier, LadderRegressor, gamma
from tikas.data.splits import Split
from tikas.estimators import base
from tikas.model.gamma import Gamma
from tikas.training import trainer

IMAGES, DIGITS = (load_digits().images[:300] / 16).astype(np.float32)[:, None], load_digits().target[:300]
ROWS = IMAGES.reshape(300, -1)
PARTIAL = np.where(np.arange(300) < 100, DIGITS, -1)


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


def classifier(network, **settings):
    return LadderClassifier(network, **{"epochs": 1, "random_state": 0, **settings})


class Attention(nn.Module):
    """Takes the rows of an image as tokens."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = nn.LayerNorm(8)
        self.scores = nn.Linear(64, 10)

    def forward(self, x):
        return self.scores(self.norm(x + self.attention(x, x, x, need_weights=False)[0]).flatten(1))


class OnlyOnesAndTwos(nn.Module):
    """Looks its input up in a table of two entries, and fails on other numbers."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(2, 4), nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.embedding(x.long() - 1).flatten(1))


class FrozenNorm(nn.Module):
    """Its first normalization stays in eval mode, with the mean of another data set."""

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


class AlwaysDropout(nn.Linear):
    """Drops values in eval mode too."""

    def forward(self, x):
        return super().forward(nn.functional.dropout(x, 0.2, training=True))


class LastColumn(nn.Linear):
    def forward(self, x):
        return super().forward(x[:, :, -1])


class TestTraining:
    def test_copy_learns_and_the_given_module_stays_unchanged(self):
        network = convolutional().eval()
        before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
        model = classifier(network, epochs=20).fit(IMAGES, PARTIAL)
        assert np.mean(model.transduction_ == DIGITS) > 0.75  # measured 0.9; chance is 0.1
        assert isinstance(model.ladder_, Gamma)
        assert model.network is network
        assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())
        assert (network.training, len(network[1]._forward_hooks)) == (False, 0)

    def test_members_start_from_the_weights_of_the_module(self):
        network = convolutional()
        model = classifier(network, learning_rate=1e-12, n_members=2).fit(IMAGES, PARTIAL)
        for member in model.ladders_:
            assert_allclose(member.network[0].weight.detach(), network[0].weight.detach(), atol=1e-6)

    def test_noise_and_cost_are_passed_to_the_gamma_model(self):
        model = classifier(nn.Linear(64, 10), noise=(0.1, 0.4), costs=3).fit(ROWS, PARTIAL)
        assert (model.ladder_.noise, model.ladder_.layer_noise.noise, model.ladder_.rungs[0].cost) == (0.1, 0.4, 3.0)
        line = model.history_[0]
        assert line["total"] == pytest.approx(line["supervised"] + 3 * line["denoising"][0], rel=1e-4)
        for costs, expected in ((None, 1.0), (0, 0.0)):
            assert classifier(nn.Linear(64, 10), costs=costs).fit(ROWS, PARTIAL).ladder_.rungs[0].cost == expected

    def test_default_epochs_do_not_depend_on_the_scale_of_rows(self, monkeypatch):
        given = []
        monkeypatch.setattr(base, "default_epochs", lambda *_, **options: given.append(options) or 1)
        classifier(nn.Linear(64, 10), epochs=None, preprocess="standardize").fit(ROWS, PARTIAL)
        assert [options["is_module"] for options in given] == [True]

    def test_whitening_class_weights_and_warm_start_work(self):
        settings = {"preprocess": "whiten", "class_weight": "balanced", "warm_start": True}
        model = classifier(convolutional(), **settings).fit(IMAGES, PARTIAL)
        weight = model.ladder_.network[0].weight.clone()
        model.set_params(learning_rate=1e-12).fit(IMAGES, PARTIAL)
        assert model.n_iter_ == 2
        assert torch.allclose(model.ladder_.network[0].weight, weight, atol=1e-6)
        assert model.preparation_.mean.shape == (1, 8, 8)

    def test_class_of_negligible_weight_is_not_predicted(self):
        weights = {**dict.fromkeys(range(10), 1e-4), 1: 1e3}
        model = classifier(nn.Linear(64, 10), class_weight=weights, epochs=2).fit(ROWS, PARTIAL)
        assert_array_equal(model.predict(ROWS), 1)

    @pytest.mark.parametrize("validation", [0, 100])
    def test_frozen_statistics_stay_and_others_are_set_from_the_rows(self, validation, monkeypatch):
        monkeypatch.setattr(trainer, "epochs_between", lambda *_: 1)
        rows = Split(np.arange(100), np.arange(300 - validation), np.arange(300 - validation, 300))
        model = classifier(FrozenNorm(), n_members=2, epochs=2).fit(IMAGES, DIGITS, splits=[rows, rows])
        assert all(("validation_error" in line) == (validation > 0) for line in model.history_)
        for member in model.ladders_:
            assert member.network.norm.running_mean.tolist() == [3.0]
            assert member.network.rest[1].running_mean.abs().max() > 0


class TestRandomness:
    def test_same_seed_gives_same_member_including_dropout(self):
        model = classifier(convolutional(), n_members=2).fit(IMAGES, PARTIAL)
        again = clone(model).fit(IMAGES, PARTIAL)
        assert_array_equal(again.predict_proba(IMAGES), model.predict_proba(IMAGES))
        second = classifier(convolutional(), random_state=1).fit(IMAGES, PARTIAL)
        assert torch.equal(second.ladder_.network[0].weight, model.ladders_[1].network[0].weight)

    def test_seed_determines_the_weights_of_lazy_layers(self):
        states = []
        for seed in (0, 0, 1):
            torch.rand(7)  # the global generator is in another state each time
            network = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(10))
            states.append(classifier(network, random_state=seed).fit(ROWS, PARTIAL).ladder_.state_dict())
        assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())
        assert (states[0]["network.0.weight"] - states[2]["network.0.weight"]).abs().max() > 0.05

    @pytest.mark.parametrize("network", [convolutional(), nn.Sequential(nn.Flatten(), AlwaysDropout(64, 10))])
    def test_training_leaves_the_global_generator_unchanged(self, network):
        before = torch.get_rng_state()
        classifier(network).fit(IMAGES, DIGITS)
        assert torch.equal(before, torch.get_rng_state())


class TestRows:
    def test_module_gets_x_in_its_own_shape(self):
        model = classifier(Attention()).fit(IMAGES[:, 0], PARTIAL)
        assert model.input_shape_ == (8, 8)
        assert model.ladder_.shapes == [(8, 8), (8, 8), (10,)]
        assert model.predict(IMAGES[:, 0]).shape == (300,)

    def test_float64_module_is_converted_to_float32(self):
        model = classifier(nn.Linear(64, 10).double()).fit(ROWS, PARTIAL)
        assert {parameter.dtype for parameter in model.ladder_.parameters()} == {torch.float32}

    def test_module_is_called_with_the_given_rows_only(self):
        X = np.random.default_rng(0).integers(1, 3, (60, 2)).astype(np.float32)
        y = np.where(np.arange(60) < 20, X[:, 0] > 1, -1)
        model = classifier(OnlyOnesAndTwos(), noise=(0, 0.3), batch_size=30).fit(X, y)
        assert model.predict(X).shape == (60,)

    @pytest.mark.parametrize(
        ("network", "X", "message"),
        [
            (convolutional(), IMAGES[:, 0], r"network=Sequential.*\(8, 8\).*\(n, channels, height, width\)"),
            (convolutional(), np.moveaxis(IMAGES, 1, -1), r"\(8, 8, 1\).*moveaxis"),
            (convolutional(), ROWS, r"network=Sequential.*\(64,\)"),
            (LastColumn(8, 10), ROWS, r"network=LastColumn.*\(64,\): too many indices"),
            (nn.ReflectionPad2d(1), ROWS, r"network=ReflectionPad2d.*\(64,\)"),
            (nn.Sequential(nn.Embedding(2, 4), nn.Flatten(), nn.Linear(256, 10)), ROWS, "float32 rows.*Long"),
            (nn.Linear(64, 7), ROWS, r"\(2, 7\).*\(2, 10\)"),
        ],
    )
    def test_rows_or_scores_that_do_not_fit_raise_value_error(self, network, X, message):
        with pytest.raises(ValueError, match=message):
            classifier(network).fit(X, PARTIAL)


class TestParameters:
    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"costs": (1, 2)}, r"costs=\(1, 2\).*network=Linear"),
            ({"costs": np.array(1.0)}, r"costs=array\(1\.\)"),
            ({"costs": -1}, r"costs=\(-1.0,\)"),
            ({"noise": (0.1, 0.2, 0.3)}, r"noise=\(0.1, 0.2, 0.3\).*1 to 2"),
            ({"denoiser": "mlp"}, "denoiser='mlp'.*network=Linear"),
            ({"activation": "tanh"}, "activation='tanh'.*network=Linear"),
        ],
    )
    def test_settings_of_ladders_raise_value_error(self, settings, message):
        with pytest.raises(ValueError, match=message):
            classifier(nn.Linear(64, 10), **settings).fit(ROWS, PARTIAL)

    @pytest.mark.parametrize(
        ("network", "name"),
        [
            (Ladder((64,), [Dense(10)]), "Ladder"),
            (nn.Sequential(Ladder((64,), [Dense(10)])), "Ladder"),
            (gamma(nn.Linear(64, 10), 10), "Gamma"),
        ],
    )
    def test_models_with_their_own_costs_raise_type_error(self, network, name):
        with pytest.raises(TypeError, match=name):
            classifier(network).fit(ROWS, PARTIAL)

    def test_regression_raises_value_error(self):
        with pytest.raises(ValueError, match=r"network=Linear.*regression"):
            LadderRegressor(nn.Linear(64, 1)).fit(ROWS, DIGITS)


def test_fitted_module_can_be_cloned_and_pickled_and_predicts():
    model = classifier(convolutional()).fit(IMAGES, PARTIAL)
    again = pickle.loads(pickle.dumps(model))
    assert_array_equal(again.predict_proba(IMAGES), model.predict_proba(IMAGES))
    assert_allclose(model.predict_proba(IMAGES).sum(1), 1, rtol=1e-12)
    assert clone(model).network is not model.network
    assert model.transform(IMAGES).shape == (300, 10)
    assert (model.input_shape_, model.n_features_in_) == ((1, 8, 8), 64)


def test_module_cannot_be_saved_and_the_error_names_alternatives(tmp_path):
    model = classifier(nn.Linear(64, 10)).fit(ROWS, PARTIAL)
    with pytest.raises(ValueError, match=r"state_dict.*joblib\.dump"):
        model.save(tmp_path / "model")
    assert not list(tmp_path.iterdir())
