"""What both estimators share: parameters, checks of X, weights of rows, training and prediction."""

import pickle
import warnings

import joblib
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_digits, load_iris
from sklearn.preprocessing import scale
from torch import nn

import tikas
from tikas import LadderClassifier, LadderRegressor
from tikas.data.batches import Batches
from tikas.data.transforms import ScaleWarning, Whitening
from tikas.estimators import base
from tikas.model.gamma import Gamma
from tikas.model.ladder import Ladder
from tikas.training import trainer
from tikas.training.engines import EagerEngine
from tikas.training.trainer import TrainingDivergedError

IRIS, SPECIES = scale(load_iris().data), load_iris().target
LABELED = np.arange(150) % 3 == 0
PARTIAL = np.where(LABELED, SPECIES, -1)
DIABETES, PROGRESSION = scale(load_diabetes().data), load_diabetes().target
IMAGES, DIGITS = (load_digits().images / 16).astype(np.float32)[:, None], load_digits().target
QUICK = {"network": (8,), "epochs": 3, "learning_rate": 0.05, "batch_size": 50, "random_state": 0}
MAPS = ("conv 4 3", "max 2")
MODULE = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def classifier(**settings):
    return LadderClassifier(**{**QUICK, **settings})


def regressor(**settings):
    return LadderRegressor(**{**QUICK, **settings})


def same_objects(before, after):
    return before.keys() == after.keys() and all(before[name] is after[name] for name in before)


class TestTraining:
    @pytest.mark.parametrize(
        ("model", "X", "y"), [(classifier, IRIS, SPECIES), (regressor, DIABETES, PROGRESSION)], ids=["class", "value"]
    )
    def test_network_without_hidden_layers(self, model, X, y):
        fitted = model(network=(), epochs=10).fit(X, y)
        assert fitted.ladder_.shapes == [(X.shape[1],), fitted.ladder_.shapes[-1]]
        assert fitted.ladder_.cost_levels == [0, 1]
        assert fitted.score(X, y) > 0.35

    def test_history_has_a_line_per_epoch_and_member(self):
        model = classifier(n_members=2, annealed=0.5, epochs=4).fit(IRIS, PARTIAL)
        lines = [(line["member"], line["epoch"]) for line in model.history_]
        assert lines == [(member, epoch) for member in (0, 1) for epoch in (1, 2, 3, 4)]
        for line in model.history_:
            weighted = np.dot(model.recipe_.cost_per_level(), line["denoising"])
            assert_allclose(line["total"], line["supervised"] + weighted, rtol=1e-5)
            assert line["seconds"] > 0
        assert model.history_[0]["learning_rate"] == 0.05 > model.history_[3]["learning_rate"] > 0
        assert model.n_iter_ == 4
        assert model.interrupted_ is False

    def test_members_average_to_mean_of_single_fits(self):
        together = classifier(n_members=3, random_state=5).fit(IRIS, PARTIAL).predict_proba(IRIS)
        alone = [classifier(random_state=seed).fit(IRIS, PARTIAL).predict_proba(IRIS) for seed in (5, 6, 7)]
        assert_allclose(together, np.mean(alone, axis=0), atol=1e-4)  # batched products round differently

    def test_same_seed_gives_same_weights(self):
        first, again, other = (classifier(random_state=seed).fit(IRIS, PARTIAL) for seed in (1, 1, 2))
        assert_array_equal(first.predict_proba(IRIS), again.predict_proba(IRIS))
        pairs = zip(first.ladder_.parameters(), again.ladder_.parameters(), strict=True)
        assert all(torch.equal(one, two) for one, two in pairs)
        assert not np.array_equal(first.predict_proba(IRIS), other.predict_proba(IRIS))

    def test_random_state_may_be_a_generator_or_none(self):
        first, again = (classifier(random_state=np.random.RandomState(3)).fit(IRIS, PARTIAL) for _ in range(2))
        assert_array_equal(first.predict_proba(IRIS), again.predict_proba(IRIS))
        first, other = (classifier(random_state=None).fit(IRIS, PARTIAL) for _ in range(2))
        assert not np.array_equal(first.predict_proba(IRIS), other.predict_proba(IRIS))
        again = classifier(random_state=first.seeds_[0]).fit(IRIS, PARTIAL)
        assert_array_equal(first.predict_proba(IRIS), again.predict_proba(IRIS))

    def test_default_costs_follow_from_scale_of_rows(self):
        pixels = LadderClassifier((8,), epochs=1).fit(IMAGES, DIGITS).recipe_
        columns = LadderClassifier((8,), epochs=1, batch_size=50).fit(IRIS, PARTIAL).recipe_
        assert pixels.costs == (1000, 10, 0.1)
        assert_allclose(columns.costs, (10, 1, 0.1), rtol=1e-2)

    @pytest.mark.parametrize(("preprocess", "variance"), [("none", 0.01), ("standardize", 1)])
    def test_default_epochs_follow_from_preprocessed_rows(self, preprocess, variance, monkeypatch):
        given = []
        monkeypatch.setattr(base, "default_epochs", lambda *args, **_: given.append(args) or 2)
        model = classifier(epochs=None, batch_size=30, preprocess=preprocess).fit(IRIS / 10, PARTIAL)
        assert model.n_iter_ == 2
        [(rows, batch_size)] = given
        assert (len(rows), batch_size) == (150, 30)
        assert rows.var() == pytest.approx(variance, rel=1e-3)

    @pytest.mark.parametrize("kind", [LadderClassifier, LadderRegressor])
    def test_precision_is_passed_to_the_engine(self, kind, monkeypatch):
        given, choose = [], trainer.choose_engine

        def noted(*args, exact):
            given.append(exact)
            return choose(*args, exact=exact)

        monkeypatch.setattr(trainer, "choose_engine", noted)
        for precision in ("fast", "exact"):
            kind((4,), epochs=1, batch_size=50, precision=precision).fit(IRIS, SPECIES)
        assert given == [False, True]

    def test_verbose_prints_to_standard_error_only(self, capsys):
        classifier(verbose=True).fit(IRIS, PARTIAL)
        output, error = capsys.readouterr()
        assert output == ""
        assert "1 member" in error
        classifier().fit(IRIS, PARTIAL)
        assert capsys.readouterr() == ("", "")

    def test_rows_of_unit_scale_give_no_warning(self):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            classifier().fit(IRIS, PARTIAL)
            regressor().fit(DIABETES, PROGRESSION)


class TestWarmStart:
    def test_training_continues(self):
        model = classifier(warm_start=True, annealed=0).fit(IRIS, PARTIAL)
        last = model.history_[-1]["total"]
        model.fit(IRIS, PARTIAL)
        assert [line["epoch"] for line in model.history_] == [1, 2, 3, 4, 5, 6]
        assert model.n_iter_ == 6
        assert model.history_[3]["total"] < model.history_[0]["total"]
        assert model.history_[-1]["total"] < last

    def test_range_of_rows_covers_all_fits(self):
        model = classifier(warm_start=True).fit(IRIS, PARTIAL)
        known = model.input_range_
        model.fit(0.2 * IRIS, PARTIAL)
        assert model.input_range_ == known
        assert model.predict(5 * IRIS).shape == (150,)  # a warning would be an error here
        assert model.set_params(warm_start=False).fit(0.2 * IRIS, PARTIAL).input_range_ != known

    def test_noise_and_costs_may_change(self, tmp_path):
        model = classifier(warm_start=True).fit(IRIS, PARTIAL)
        model.set_params(noise=0.1, costs=(1.0, 0.5)).fit(IRIS, PARTIAL)
        last = model.history_[-1]
        assert_allclose(last["total"], last["supervised"] + np.dot((1, 0.5, 0.5), last["denoising"]), rtol=1e-5)
        assert tikas.load(model.save(tmp_path / "model")).recipe_.noise == (0.1,)

    @pytest.mark.parametrize(("before", "after"), [("standardize", "none"), ("none", "standardize")])
    def test_preprocess_may_not_change(self, before, after):
        model = classifier(warm_start=True, preprocess=before).fit(IRIS, PARTIAL)
        with pytest.raises(ValueError, match=f"preprocess='{before}'.*'{after}'"):
            model.set_params(preprocess=after).fit(IRIS, PARTIAL)
        assert model.recipe_.preprocess == before

    @pytest.mark.parametrize(
        ("change", "X", "y", "message"),
        [
            ({}, IRIS[:, :2], PARTIAL, "X has 2 features, but LadderClassifier is expecting 4"),
            ({}, IRIS, np.where(PARTIAL == 2, -1, PARTIAL), r"\[0, 1, 2\].*\[0, 1\]"),
            ({}, IRIS, np.where(PARTIAL == 2, 9, PARTIAL), r"\[0, 1, 9\].*warm_start=False"),
            ({"n_members": 2}, IRIS, PARTIAL, "n_members=1, and now it is 2.*warm_start=False"),
            ({"network": (9,)}, IRIS, PARTIAL, r"network=\(8,\).*\(9,\).*warm_start=False"),
            ({"costs": 0}, IRIS, PARTIAL, "costs"),
            ({"denoiser": "mlp"}, IRIS, PARTIAL, "denoiser"),
        ],
    )
    def test_other_shapes_raise_value_error(self, change, X, y, message):
        model = classifier(warm_start=True).fit(IRIS, PARTIAL)
        before = model.predict_proba(IRIS)
        with pytest.raises(ValueError, match=message):
            model.set_params(**change).fit(X, y)
        assert_array_equal(model.predict_proba(IRIS), before)


class TestConventions:
    def test_classes_can_be_pickled_by_reference(self):
        for estimator in (LadderClassifier, LadderRegressor):
            assert getattr(tikas.estimators, estimator.__name__) is estimator
            assert pickle.loads(pickle.dumps(estimator)) is estimator

    def test_parameters_are_stored_untouched(self):
        noise = [0.1, 0.2]
        model = LadderClassifier((8,), noise=noise, activation="nonsense", n_members=0)
        assert model.noise is noise
        assert clone(model).get_params() == model.get_params()
        assert model.set_params(epochs=7).get_params()["epochs"] == 7
        assert LadderClassifier().get_params().keys() - LadderRegressor().get_params().keys() == {
            "classes",
            "class_weight",
        }
        with pytest.raises(TypeError, match="positional"):
            LadderClassifier((8,), "relu")

    def test_numpy_values_are_accepted_as_parameters(self, tmp_path):
        settings = {
            "network": np.array([8]),
            "noise": np.float32(0.25),
            "costs": np.array([1.0, 0.5]),
            "epochs": np.int64(2),
            "learning_rate": np.float32(0.5),
            "batch_size": np.int32(50),
            "n_members": np.int64(1),
            "random_state": np.int64(3),
        }
        same = {"noise": 0.25, "costs": (1.0, 0.5), "epochs": 2, "learning_rate": 0.5, "random_state": 3}
        model, expected = classifier(**settings).fit(IRIS, PARTIAL), classifier(**same).fit(IRIS, PARTIAL)
        assert_array_equal(model.predict_proba(IRIS), expected.predict_proba(IRIS))
        assert model.save(tmp_path / "model").exists()

    def test_fitted_model_can_be_pickled(self, tmp_path):
        model = classifier(n_members=2).fit(IRIS, PARTIAL)
        joblib.dump(model, tmp_path / "model.joblib")
        for again in (joblib.load(tmp_path / "model.joblib"), pickle.loads(pickle.dumps(model))):
            assert_array_equal(again.predict_proba(IRIS), model.predict_proba(IRIS))
            assert again.history_ == model.history_

    def test_arrays_frames_and_lists_give_the_same_model(self):
        frame = pd.DataFrame(IRIS, columns=load_iris().feature_names)
        model = classifier().fit(IRIS, PARTIAL)
        for X, y in ((IRIS[:, ::-1][:, ::-1].astype(">f8"), PARTIAL), (IRIS.tolist(), PARTIAL.tolist())):
            other = classifier().fit(X, y)
            assert_array_equal(other.predict_proba(IRIS.tolist()), model.predict_proba(IRIS))
        other = classifier().fit(frame, pd.Series(PARTIAL))
        assert_array_equal(other.predict_proba(frame), model.predict_proba(IRIS))

    def test_memory_layout_of_rows_does_not_matter(self):
        model, rows = classifier().fit(IRIS, PARTIAL), IRIS.astype(np.float32)
        expected = model.predict_proba(rows)
        read_only = rows.copy()
        read_only.flags.writeable = False
        for same in (np.asfortranarray(rows), read_only, rows[::-1][::-1]):
            assert_array_equal(model.predict_proba(same), expected)
        assert_array_equal(model.predict_proba(rows[::-1]), expected[::-1])

    def test_column_names_are_checked(self):
        frame = pd.DataFrame(IRIS, columns=["a", "b", "c", "d"])
        model = classifier().fit(frame, PARTIAL)
        assert model.feature_names_in_.tolist() == ["a", "b", "c", "d"]
        with pytest.raises(ValueError, match="feature names"):
            model.predict(frame.rename(columns={"a": "z"}))
        with pytest.warns(UserWarning, match="valid feature names"):
            model.predict(IRIS)

    def test_transform_returns_normalized_top_latents(self):
        model = classifier().fit(IRIS, PARTIAL)
        latents = model.transform(IRIS)
        assert latents.shape == (150, 3)
        assert_allclose(latents.mean(0), 0, atol=1e-5)
        assert_allclose(latents.std(0), 1, atol=1e-4)
        frame = model.set_output(transform="pandas").transform(IRIS)
        assert frame.columns.tolist() == ["ladderclassifier0", "ladderclassifier1", "ladderclassifier2"]
        assert_array_equal(frame.to_numpy(), latents)
        assert regressor().fit(DIABETES, PROGRESSION).transform(DIABETES).shape == (442, 1)


class TestSampleWeight:
    @pytest.mark.parametrize("weight", [1.0, 3.0, 1.0 + 0.01 * np.pi * np.arange(150)], ids=["one", "three", "any"])
    def test_weight_zero_equals_leaving_the_row_out(self, weight):
        ignored = np.arange(150) % 2 == 0
        weights, rest = np.where(ignored, 0, weight), np.broadcast_to(weight, 150)[~ignored]
        wrong = np.where(LABELED & ignored, (SPECIES + 1) % 3, PARTIAL)
        model = classifier(labeled_batch_size=4).fit(np.where(ignored[:, None], 50, IRIS), wrong, weights)
        without = classifier(labeled_batch_size=4).fit(IRIS[~ignored], PARTIAL[~ignored], rest)
        assert_array_equal(model.predict_proba(IRIS), without.predict_proba(IRIS))
        y = np.where(ignored, 1e6, IRIS[:, 0])
        model = regressor().fit(IRIS, y, sample_weight=weights)
        without = regressor().fit(IRIS[~ignored], y[~ignored], rest)
        assert_array_equal(model.predict(IRIS), without.predict(IRIS))
        assert_array_equal(model.transduction_, y)

    def test_only_ratios_of_weights_count(self):
        weights = 1.0 + np.arange(150) % 4
        models = [classifier().fit(IRIS, PARTIAL, sample_weight=unit * weights) for unit in (1, 2**-80, 2**80)]
        assert_array_equal(models[0].predict_proba(IRIS), models[1].predict_proba(IRIS))
        assert_array_equal(models[0].predict_proba(IRIS), models[2].predict_proba(IRIS))

    def test_fewer_than_two_rows_of_positive_weight_raise_value_error(self):
        with pytest.raises(ValueError, match="all but 1 of 150 rows"):
            regressor().fit(IRIS, IRIS[:, 0], sample_weight=np.arange(150) == 3)


class TestRows:
    @pytest.mark.parametrize(("value", "message"), [(np.nan, "NaN"), (np.inf, "infinity")])
    def test_values_that_are_not_finite_raise_value_error(self, value, message):
        X = IRIS.copy()
        X[3, 1] = value
        with pytest.raises(ValueError, match=message):
            classifier(preprocess="none").fit(X, PARTIAL)
        with pytest.raises(ValueError, match=message):
            classifier().fit(IRIS, PARTIAL).predict(X)

    @pytest.mark.parametrize(
        ("X", "message"),
        [
            ([["long", 1.0], ["short", 2.0]] * 75, "'long'"),
            ([[1, 2], [3]] * 75, "sequence"),
            (IRIS[:1], "1 sample.*minimum of 2"),
            (np.ones((150, 4)), "4 columns .* 150 rows"),
        ],
        ids=["text", "ragged", "one row", "constant"],
    )
    def test_unusable_rows_raise_value_error(self, X, message):
        with pytest.raises(ValueError, match=message):
            classifier(preprocess="none").fit(X, PARTIAL[: len(X)])

    def test_other_number_of_columns_raises_value_error(self):
        with pytest.raises(ValueError, match="X has 3 features, but LadderClassifier is expecting 4"):
            classifier().fit(IRIS, PARTIAL).predict(IRIS[:, :3])

    @pytest.mark.parametrize("kind", [scipy.sparse.csr_array, scipy.sparse.csc_matrix, scipy.sparse.coo_array])
    @pytest.mark.parametrize("preprocess", ["none", "standardize"])
    def test_sparse_rows_are_learned_as_dense_ones_are(self, kind, preprocess):
        rows = np.where(np.abs(IRIS) < 1, 0, IRIS)
        expected = classifier(preprocess=preprocess, n_members=2).fit(rows, PARTIAL)
        model = classifier(preprocess=preprocess, n_members=2).fit(kind(rows), PARTIAL)
        assert_array_equal(model.transduction_, expected.transduction_)
        assert_array_equal(model.predict_proba(kind(rows)), expected.predict_proba(rows))
        assert model.recipe_ == expected.recipe_

    @pytest.mark.parametrize(
        ("column", "kind", "message"),
        [
            (pd.date_range("2015-07-09", periods=150), TypeError, "DateTime64"),
            (pd.date_range("2015-07-09", periods=150, tz="UTC"), TypeError, "Timestamp"),
            (["red", "blue"] * 75, ValueError, "'red'"),
        ],
    )
    def test_columns_that_are_not_numbers_raise(self, column, kind, message):
        with pytest.raises(kind, match=message):
            classifier(preprocess="none").fit(pd.DataFrame(IRIS, columns=list("abcd")).assign(e=column), PARTIAL)

    @pytest.mark.parametrize(
        ("X", "message"),
        [
            (np.rint(255 * IMAGES[:150].reshape(150, 64)), "0 to 255.*preprocess='standardize'"),
            (IRIS * [1, 1, 1, 1e6], r"X\[:, 3\].*preprocess='standardize'"),
            (IRIS * 1e-5, "preprocess='standardize'"),
            (np.hstack([IRIS, np.full((150, 1), 7)]), r"X\[:, 4\].*VarianceThreshold"),
        ],
        ids=["pixels", "one large", "small", "constant"],
    )
    def test_scale_warning_points_at_the_line_that_calls_fit(self, X, message):
        with pytest.warns(ScaleWarning, match=message) as caught:
            classifier(epochs=1, preprocess="none").fit(X, PARTIAL)
        assert [warning.filename for warning in caught] == [__file__]
        with pytest.warns(ScaleWarning) as caught:
            regressor(epochs=1, preprocess="none").fit(X, SPECIES)
        assert [warning.filename for warning in caught] == [__file__]

    def test_scale_warning_names_columns(self):
        frame = pd.DataFrame(IRIS * [1, 1, 1, 1e6], columns=["a", "b", "c", "income"])
        with pytest.warns(ScaleWarning, match="'income'"):
            classifier(epochs=1, preprocess="none").fit(frame, PARTIAL)

    def test_rows_to_predict_of_another_scale_give_a_warning(self):
        model = classifier().fit(IRIS, PARTIAL)
        with pytest.warns(ScaleWarning) as caught:
            model.predict(np.vstack([np.tile(IRIS, (10, 1)), np.tile(255 * IRIS, (20, 1))]))
        assert [warning.filename for warning in caught] == [__file__]

    def test_fewer_rows_than_a_batch_give_a_warning(self):
        with pytest.warns(UserWarning, match="150 rows .* 200.*batch_size.*150") as caught:
            classifier(batch_size=200).fit(IRIS, PARTIAL)
        assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"n_members": 0}, "n_members == 0, must be >= 1"),
        ({"activation": "swish"}, "activation='swish'.*'relu'.*'gelu'"),
        ({"denoiser": "magic"}, "denoiser='magic'.*'gaussian'.*'mlp'"),
        ({"preprocess": "center"}, "preprocess='center'.*'auto', 'none', .*'standardize', 'whiten'"),
        ({"noise": -0.3}, r"noise=\(-0.3,\).*1 to 3 finite numbers"),
        ({"noise": "loud"}, "noise='loud'.*number"),
        ({"noise": None}, "noise=None.*number"),
        ({"noise": [[0.3]]}, r"noise=\[\[0.3\]\].*number"),
        ({"costs": float("nan")}, r"costs=\(nan,\)"),
        ({"costs": (1, 1, 1, 1)}, r"costs=\(1.0, 1.0, 1.0, 1.0\).*1 to 3"),
        ({"network": (8.5,)}, r"network=\(8.5,\).*numbers of units"),
        ({"network": (0,)}, r"network=\(0,\)"),
        ({"epochs": 0}, "epochs=0.*at least 1"),
        ({"learning_rate": 0}, "learning_rate=0.0.* above 0"),
        ({"learning_rate": "fast"}, "learning_rate='fast'.*number"),
        ({"annealed": 2}, "annealed=2.0.*0 to 1"),
        ({"calibration": "some"}, "calibration='some'.*'all', 'labeled'"),
        ({"precision": "half"}, "precision='half'.*'fast', 'exact'"),
        ({"batch_size": 1}, "batch_size=1.*at least 2"),
        ({"device": "abacus"}, "device='abacus'"),
        ({"random_state": -1}, "non-negative"),
        ({"random_state": "today"}, "'today'"),
    ],
)
def test_invalid_parameter_raises_value_error_in_fit(settings, expected):
    model = classifier(**settings)
    with pytest.raises(ValueError, match=expected):
        model.fit(IRIS, PARTIAL)
    assert all(model.get_params()[name] is value for name, value in settings.items())


class TestPrediction:
    def fitted(self, network, **settings):
        quick = {"epochs": 1, "n_members": 2, "random_state": 0}
        return LadderClassifier(network, **{**quick, **settings}).fit(IMAGES[:300], DIGITS[:300])

    @pytest.fixture
    def sizes(self, monkeypatch):
        """Collect the number of rows of each chunk that is whitened or encoded."""
        sizes = {"encoded": [], "whitened": []}
        whiten = Whitening.__call__

        def whitened(whitening, images):
            sizes["whitened"].append(len(images))
            return whiten(whitening, images)

        def watched(encode):
            def encoded(member, rows):
                sizes["encoded"].append(len(rows))
                return encode(member, rows)

            return encoded

        monkeypatch.setattr(Whitening, "__call__", whitened)
        for kind in (Ladder, Gamma):
            monkeypatch.setattr(kind, "encode", watched(kind.encode))
        return sizes

    def test_row_is_predicted_the_same_alone_and_among_others(self):
        model = classifier(n_members=2).fit(IRIS, PARTIAL)
        alone = np.vstack([model.predict_proba(row[None]) for row in IRIS])
        assert_allclose(model.predict_proba(IRIS), alone, rtol=1e-12)

    @pytest.mark.parametrize(
        ("network", "preprocess", "largest"),
        [
            ((8,), "whiten", base.MAX_CHUNK_ROWS),
            (MAPS, "whiten", base.MAX_CHUNK_IMAGES),
            (MODULE, "none", base.MAX_CHUNK_IMAGES),
        ],
        ids=["dense", "convolutional", "module"],
    )
    def test_many_rows_are_predicted_in_chunks(self, network, preprocess, largest, sizes):
        model = self.fitted(network, preprocess=preprocess)
        few = model.predict_proba(IMAGES[:50])
        many = np.tile(IMAGES[:50], (100, 1, 1, 1))
        for each in sizes.values():
            each.clear()
        tolerance = 1e-12 if largest == base.MAX_CHUNK_ROWS else 1e-6
        assert_allclose(model.predict_proba(many), np.tile(few, (100, 1)), atol=tolerance)
        assert max(sizes["encoded"]) == largest
        assert sum(sizes["encoded"]) == 2 * 5000
        assert max(sizes["whitened"], default=0) <= largest

    @pytest.mark.parametrize(
        ("network", "values", "expected"),
        [((8,), 640, [10, 10, 5]), ((128,), 640, [5] * 5), ((8,), 10, [1] * 25)],
        ids=["large input", "large layer", "too large"],
    )
    def test_chunks_are_smaller_for_large_levels(self, network, values, expected, sizes, monkeypatch):
        model = self.fitted(network, n_members=1)
        monkeypatch.setattr(base, "MAX_CHUNK_VALUES", values)
        sizes["encoded"].clear()
        model.predict(IMAGES[:25])
        assert sizes["encoded"] == expected

    @pytest.mark.parametrize("network", [(8,), MAPS], ids=["dense", "convolutional"])
    def test_dense_ladders_predict_in_float64_and_others_in_float32(self, network, monkeypatch):
        model, dtypes, encode = self.fitted(network, preprocess="whiten"), [], Ladder.encode

        def noted(member, rows):
            dtypes.append((rows.dtype, member.rungs[1].weight.dtype))
            return encode(member, rows)

        monkeypatch.setattr(Ladder, "encode", noted)
        probabilities = model.predict_proba(IMAGES[:50])
        expected = torch.float64 if network == (8,) else torch.float32
        assert set(dtypes) == {(expected, expected)}
        assert probabilities.dtype == np.float64
        assert_allclose(probabilities.sum(1), 1, rtol=1e-14)

    def test_products_have_full_precision(self, monkeypatch):
        model, found, encode = self.fitted(MAPS), [], Ladder.encode
        monkeypatch.setattr(
            Ladder, "encode", lambda *args: found.append(torch.get_float32_matmul_precision()) or encode(*args)
        )
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("medium")
        try:
            model.predict(IMAGES[:5])
            assert torch.get_float32_matmul_precision() == "medium"
        finally:
            torch.set_float32_matmul_precision(before)
        assert set(found) == {"highest"}

    def test_small_models_are_predicted_by_one_thread(self, monkeypatch):
        model, found, encode = self.fitted((8,)), [], Ladder.encode
        monkeypatch.setattr(Ladder, "encode", lambda *args: found.append(torch.get_num_threads()) or encode(*args))
        before = torch.get_num_threads()
        torch.set_num_threads(2)
        try:
            model.predict(IMAGES)
            assert torch.get_num_threads() == 2
            monkeypatch.setattr(base, "SECOND_THREAD_FROM", 1)
            model.predict(IMAGES)
        finally:
            torch.set_num_threads(before)
        assert found == [1, 1, 2, 2]  # two members each

    def test_prediction_copies_the_encoder_only_and_leaves_the_model_unchanged(self, monkeypatch):
        model, copies, encode = self.fitted((8,)), [], Ladder.encode
        monkeypatch.setattr(Ladder, "encode", lambda *args: copies.append(args[0]) or encode(*args))
        model.predict(IMAGES)
        assert all(rung.denoiser is None and rung.back is None for copy in copies for rung in copy.rungs)
        parameters = list(model.ladder_.parameters())
        assert {(each.device.type, each.dtype) for each in parameters} == {("cpu", torch.float32)}
        assert all(rung.denoiser is not None for rung in model.ladder_.rungs)

    def test_gpu_is_used_where_it_exists_and_is_faster(self, monkeypatch):
        cpu, gpu, second = torch.device("cpu"), torch.device("cuda"), torch.device("cuda:1")
        device, many = base._prediction_device, base.MIN_GPU_PRODUCTS
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
        for asked in (None, "cuda"):  # trained on another machine
            assert device(many, asked, dense=False) == device(many, asked, dense=True) == cpu
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        assert [device(1, asked, dense=False) for asked in (None, "cuda", "cuda:1")] == [gpu, gpu, second]
        assert [device(many, asked, dense=True) for asked in ("cpu", "mps", "cuda:2")] == [cpu] * 3
        assert [device(products, None, dense=True) for products in (many - 1, many)] == [cpu, gpu]


def interrupt_update(monkeypatch, number):
    """Press Ctrl-C in the given update of all."""
    batch, calls = Batches.batch, []

    def interrupted(batches, update):
        calls.append(None)
        if len(calls) == number:
            raise KeyboardInterrupt
        return batch(batches, update)

    monkeypatch.setattr(Batches, "batch", interrupted)


def make_second_member_diverge(monkeypatch):
    update = EagerEngine.update

    def diverging(engine, batch, rate):
        costs = update(engine, batch, rate)
        costs[1, 0] = torch.nan
        return costs

    monkeypatch.setattr(EagerEngine, "update", diverging)


class TestFailure:
    @pytest.mark.parametrize("model", [classifier(preprocess="none"), regressor(preprocess="none")])
    @pytest.mark.parametrize(
        ("X", "y", "error"),
        [
            (IRIS[:, :2] * np.nan, PARTIAL, ValueError),
            (IRIS[:, :2], PARTIAL[:-1], ValueError),
            (IRIS[:, :2] * 1e30, PARTIAL, TrainingDivergedError),
        ],
    )
    @pytest.mark.filterwarnings("ignore::tikas.data.transforms.ScaleWarning", "ignore:.*targets are -1")
    def test_failed_fit_leaves_the_estimator_unchanged(self, model, X, y, error):
        frame = pd.DataFrame(IRIS, columns=["a", "b", "c", "d"])
        model.fit(frame, 100.0 * SPECIES)
        before, attributes = model.predict(frame), dict(vars(model))
        with pytest.raises(error):
            model.fit(X, y)
        assert same_objects(vars(model), attributes)
        assert_array_equal(model.predict(frame), before)

    def test_failed_first_fit_leaves_no_attributes(self):
        model = classifier()
        with pytest.raises(ValueError, match="None of the 150 rows"):
            model.fit(IRIS, np.full(150, -1))
        assert vars(model) == model.get_params()

    def test_divergence_names_epoch_and_cost(self):
        with (
            pytest.warns(ScaleWarning, match="standardize"),
            pytest.raises(TrainingDivergedError, match=r"epoch 1, .*level 0 .*learning rate"),
        ):
            classifier(preprocess="none").fit(IRIS * 1e30, PARTIAL)

    def test_interrupted_fit_keeps_the_model(self, monkeypatch):
        interrupt_update(monkeypatch, number=5)  # an epoch has three updates
        with pytest.warns(UserWarning, match="after 1 of 3 epochs.*warm_start=True") as caught:
            model = classifier(warm_start=True).fit(IRIS, PARTIAL)
        assert [warning.filename for warning in caught] == [__file__]
        assert (model.n_iter_, model.interrupted_) == (1, True)
        assert np.isfinite(model.predict_proba(IRIS)).all()
        assert model.transduction_.shape == (150,)
        model.fit(IRIS, PARTIAL)
        assert (model.n_iter_, model.interrupted_) == (4, False)

    @pytest.mark.parametrize("warm_start", [False, True])
    def test_interrupt_before_an_epoch_is_complete_leaves_the_old_model(self, warm_start, monkeypatch):
        model = classifier(warm_start=warm_start, n_members=2)
        with monkeypatch.context() as patch:
            interrupt_update(patch, number=2)
            with pytest.raises(KeyboardInterrupt):
                model.fit(IRIS, PARTIAL)
        assert vars(model) == model.get_params()
        before = model.fit(IRIS, PARTIAL).predict_proba(IRIS)
        interrupt_update(monkeypatch, number=1)
        with pytest.raises(KeyboardInterrupt):
            model.fit(IRIS[:100], PARTIAL[:100] % 3)
        assert_array_equal(model.predict_proba(IRIS), before)
        assert model.n_iter_ == 3

    def test_interrupted_ensemble_keeps_members_that_finished_an_epoch(self, monkeypatch, tmp_path):
        monkeypatch.setattr(trainer, "_free_bytes", lambda _: 0)  # members train one after the other
        interrupt_update(monkeypatch, number=9 + 3 + 2)  # in the second epoch of the second member
        with pytest.warns(UserWarning, match="after 1 of 3 epochs; 2 of 3 members.*n_members=2 and warm_start"):
            model = classifier(n_members=3, random_state=4).fit(IRIS, PARTIAL)
        assert model.seeds_ == [4, 5]
        assert [(line["member"], line["epoch"]) for line in model.history_] == [(0, 1), (0, 2), (0, 3), (1, 1)]
        assert model.n_iter_ == 3
        loaded = tikas.load(model.save(tmp_path / "model"))
        assert_array_equal(loaded.predict_proba(IRIS), model.predict_proba(IRIS))
        with pytest.raises(ValueError, match="n_members=2, and now it is 3"):
            model.set_params(warm_start=True).fit(IRIS, PARTIAL)
        model.set_params(n_members=2).fit(IRIS, PARTIAL)
        assert [line["epoch"] for line in model.history_ if line["member"] == 1] == [1, 2, 3, 4]

    def test_interrupted_warm_start_keeps_members_that_were_not_trained_again(self, monkeypatch):
        model = classifier(warm_start=True, n_members=3).fit(IRIS, PARTIAL)
        before = model.ladders_[2]
        monkeypatch.setattr(trainer, "_free_bytes", lambda _: 0)
        interrupt_update(monkeypatch, number=9 + 1)
        with pytest.warns(UserWarning, match="after 3 of 3 epochs; 1 of 3 members.*n_members=3"):
            model.fit(IRIS, PARTIAL)
        assert len(model.ladders_) == 3
        assert model.ladders_[2] is before
        assert model.n_iter_ == 6

    def test_diverged_member_is_left_out_with_a_warning(self, monkeypatch):
        make_second_member_diverge(monkeypatch)
        with pytest.warns(UserWarning, match=r"1 of 3 members diverged \(seed 8\).*epoch 1") as caught:
            model = classifier(n_members=3, random_state=7).fit(IRIS, PARTIAL)
        assert [warning.filename for warning in caught] == [__file__]
        assert (len(model.ladders_), model.seeds_) == (2, [7, 9])
        assert {line["member"] for line in model.history_} == {0, 1}
        assert np.isfinite(model.predict_proba(IRIS)).all()

    def test_divergence_in_warm_start_leaves_the_old_model(self, monkeypatch):
        model = classifier(n_members=3, warm_start=True).fit(IRIS, PARTIAL)
        attributes = dict(vars(model))
        make_second_member_diverge(monkeypatch)
        with pytest.raises(TrainingDivergedError, match="epoch 1"):
            model.fit(IRIS, PARTIAL)
        assert same_objects(vars(model), attributes)

    def test_interrupt_after_training_leaves_the_old_model(self, monkeypatch):
        model = classifier().fit(IRIS, PARTIAL)
        before, attributes = model.predict_proba(IRIS), dict(vars(model))

        def interrupted(*_):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(LadderClassifier, "_predict_chunks", interrupted)
            with pytest.raises(KeyboardInterrupt):
                model.set_params(random_state=9).fit(IRIS, PARTIAL)
        assert same_objects(vars(model), {**attributes, "random_state": 9})
        assert_array_equal(model.predict_proba(IRIS), before)


class Shifted(nn.Linear):
    """Creates a tensor on the default device."""

    def forward(self, x):
        return super().forward(x) + torch.ones(3)


class TestTorchSettings:
    @pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode], ids=["no_grad", "inference_mode"])
    def test_gradient_mode_does_not_matter(self, mode):
        expected = classifier().fit(IRIS, PARTIAL).predict_proba(IRIS)
        with mode():
            found = classifier().fit(IRIS, PARTIAL).predict_proba(IRIS)
        assert_array_equal(found, expected)

    def test_default_dtype_does_not_matter(self):
        expected = classifier().fit(IRIS, PARTIAL).predict_proba(IRIS)
        torch.set_default_dtype(torch.float64)
        try:
            found = classifier().fit(IRIS, PARTIAL).predict_proba(IRIS)
            assert torch.get_default_dtype() == torch.float64
        finally:
            torch.set_default_dtype(torch.float32)
        assert_array_equal(found, expected)

    @pytest.mark.parametrize(
        ("model", "weights"),
        [
            (classifier(n_members=2, preprocess="standardize"), None),
            (classifier(), np.linspace(1, 2, 150)),
            (classifier(network=Shifted(4, 3)), None),
            (regressor(), None),
        ],
        ids=["members", "weights", "module", "regressor"],
    )
    @pytest.mark.filterwarnings("ignore:.*targets are -1")
    def test_default_device_does_not_matter(self, model, weights, tmp_path):
        expected, again = model.fit(IRIS, PARTIAL, weights).predict(IRIS), clone(model)
        with torch.device("meta"):  # computes nothing, so that a tensor created there would be noticed
            found = again.fit(IRIS, PARTIAL, weights).predict(IRIS)
            if not isinstance(model.network, nn.Module):
                assert_array_equal(tikas.load(again.save(tmp_path / "model")).predict(IRIS), expected)
        assert_array_equal(found, expected)
        assert {parameter.device.type for parameter in again.ladder_.parameters()} == {"cpu"}

    @pytest.mark.parametrize("preprocess", ["none", "whiten"])
    def test_autocast_does_not_matter(self, preprocess):
        model = LadderClassifier(MAPS, epochs=1, preprocess=preprocess, random_state=0)
        expected = model.fit(IMAGES[:300], DIGITS[:300]).predict_proba(IMAGES[:50])
        with torch.autocast("cpu", torch.bfloat16):
            found = clone(model).fit(IMAGES[:300], DIGITS[:300]).predict_proba(IMAGES[:50])
        assert_array_equal(found, expected)


@pytest.mark.parametrize("column", [["red", "blue"] * 10, pd.date_range("2020", periods=20)], ids=["text", "dates"])
def test_columns_that_are_not_numbers_are_named(column) -> None:
    frame = pd.DataFrame({"size": np.arange(20.0), "color": column})
    with pytest.raises((TypeError, ValueError)) as raised:
        LadderClassifier((4,), epochs=1, preprocess="none").fit(frame, [0, 1] * 10)
    assert "['color']" in raised.value.__notes__[0]
