"""Images as X: layouts, networks of specs and by name, whitening, and the predictions of models fitted on images."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV
from torch import nn

import tikas
from tikas import Conv, Dense, GlobalMeanPool, LadderClassifier, LadderRegressor, MaxPool
from tikas.data.transforms import ScaleWarning, Whitening

ALL, ALL_DIGITS = (load_digits().images / 16).astype(np.float32)[:, None], load_digits().target
IMAGES, DIGITS, NEW, NEW_DIGITS = ALL[:300], ALL_DIGITS[:300], ALL[400:500], ALL_DIGITS[400:500]
PARTIAL = np.where(np.arange(300) < 100, DIGITS, -1)
COLORS = np.concatenate([IMAGES, IMAGES[..., ::-1], IMAGES / 2], axis=1)
CHANNELS_LAST = np.moveaxis(COLORS, 1, -1)
MAPS = ("conv 4 3", "max 2")
DENSE = (8,)


def classifier(network=MAPS, **settings):
    return LadderClassifier(network, **{"epochs": 1, "random_state": 0, **settings})


def test_convolutional_ladder_learns_from_a_hundred_labels():
    model = classifier(["conv 16 3", "max 2", "conv 32 2"], epochs=15).fit(IMAGES, PARTIAL)
    assert np.mean(model.transduction_ == DIGITS) > 0.8  # measured 0.91; chance is 0.1


def test_regressor_learns_from_images():
    brightness = IMAGES.mean((1, 2, 3)) * 100
    model = LadderRegressor(MAPS, epochs=20, random_state=0).fit(IMAGES, np.where(PARTIAL < 0, np.nan, brightness))
    assert model.score(NEW, NEW.mean((1, 2, 3)) * 100) > 0.5


class TestNetworks:
    @pytest.mark.parametrize(
        "network",
        [
            [Conv(8, 3), MaxPool(2)],
            ("conv 8 3", MaxPool(2)),
            [Conv(8, 3), MaxPool(2), Dense(6)],
            ["conv 8 3", Conv(10, 1), GlobalMeanPool()],
        ],
        ids=["specs", "text and spec", "dense above maps", "global top"],
    )
    def test_layers_are_specs_or_text(self, network):
        before = list(network)
        model = clone(classifier(network)).fit(IMAGES, PARTIAL)
        assert list(model.network) == before
        assert model.ladder_.shapes[1] == (8, 6, 6)
        assert model.predict_proba(NEW).shape == (100, 10)

    @pytest.mark.parametrize(
        ("network", "costs"),
        [("conv_fc", (1000, 10, 0.1)), ("conv_large", (4,)), (MAPS, (1,)), ("mlp", (1000, 10, 0.1)), ((), (1000, 0.1))],
    )
    def test_default_costs_follow_from_the_network(self, network, costs):
        for expected, given in ((costs, None), ((7,), 7)):
            model = LadderClassifier(network, costs=given)
            assert model._with_defaults(model._recipe(), IMAGES.reshape(300, -1)).costs == expected

    def test_network_of_the_paper_has_a_name(self):
        images = np.random.default_rng(0).random((12, 28, 28), np.float32)
        model = classifier("conv_small", batch_size=6, labeled_batch_size=6).fit(images, np.arange(12) % 3)
        assert [shape[-1] for shape in model.ladder_.shapes] == [28, 32, 16, 14, 16, 8, 6, 6, 3, 3]

    def test_conv_pool_cnn_c_is_a_gamma_model_that_can_be_saved_and_continued(self, tmp_path):
        images, labels = np.random.default_rng(0).random((12, 16, 12), np.float32), np.arange(12) % 3
        settings = {"batch_size": 6, "labeled_batch_size": 6, "n_members": 2}
        model = clone(classifier("conv_pool_cnn_c", **settings)).fit(images, labels)
        assert (model.network, model.input_shape_, model.recipe_.costs) == ("conv_pool_cnn_c", (1, 16, 12), (1.0,))
        one, other = (member.network[1].weight for member in model.ladders_)
        assert not torch.allclose(one, other, atol=0.1)  # each member draws its own initial weights
        loaded = tikas.load(model.save(tmp_path / "model"))
        assert_array_equal(loaded.predict_proba(images), model.predict_proba(images))
        assert (loaded.seeds_, loaded.ladder_.shapes[-1]) == ([0, 1], (3,))
        more = [each.set_params(warm_start=True, random_state=5).fit(images, labels) for each in (model, loaded)]
        assert_array_equal(more[0].predict_proba(images), more[1].predict_proba(images))
        assert more[1].n_iter_ == 2

    @pytest.mark.parametrize(
        ("model", "X", "message"),
        [
            (classifier("conv_pool_cnn_c"), IMAGES.reshape(300, -1), r"\(300, 64\).*\(n, channels, height, width\)"),
            (classifier("conv_pool_cnn_c"), IMAGES, r"'conv_pool_cnn_c'.*12 by 12.*\(1, 8, 8\)"),
            (LadderRegressor("conv_pool_cnn_c"), IMAGES, "network='conv_pool_cnn_c'.*regression"),
            (classifier("conv_pool_cnn_c", activation="tanh"), IMAGES, "activation='tanh'.*'conv_pool_cnn_c'"),
            (classifier("conv_pool_cnn_c", costs=(1, 2)), IMAGES, r"costs=\(1.0, 2.0\).*'conv_pool_cnn_c'"),
            (classifier("conv_fc"), IMAGES, r"'conv_fc'.*26 by 26.*\(1, 8, 8\)"),
            (classifier(MAPS), IMAGES.reshape(300, -1), r"\(300, 64\).*\(n, channels, height, width\)"),
            (classifier(MAPS), IMAGES[:, None], r"\(300, 1, 1, 8, 8\).*\(n, channels, height, width\)"),
            (classifier(["conv 8 9"]), IMAGES, r"\(9, 9\).*\(1, 8, 8\)"),
            (classifier(["max 9"]), IMAGES, r"\(9, 9\).*\(1, 8, 8\)"),
            (classifier(["conv 8 3", "global"]), IMAGES, r"\(8,\).*\(10,\).*\('conv 8 3', 'global', 'top'\)"),
            (classifier(["conf 8 3"]), IMAGES, "conf 8 3"),
            (classifier(), np.where(IMAGES > 0.9, np.nan, IMAGES), "NaN"),
            (classifier(), np.where(IMAGES > 0.9, np.inf, IMAGES), "infinity"),
            (classifier(), IMAGES[:1], "1 sample.*minimum of 2"),
        ],
    )
    def test_unusable_images_raise_value_error_and_leave_no_attributes(self, model, X, message):
        with pytest.raises(ValueError, match=message):
            model.fit(X, PARTIAL[: len(X)])
        assert vars(model) == model.get_params()


class TestLayout:
    def test_gray_images_may_lack_the_channel_and_be_predicted_flat(self):
        model = classifier().fit(IMAGES[:, 0], PARTIAL)
        expected = classifier().fit(IMAGES, PARTIAL).predict_proba(NEW)
        assert (model.input_shape_, model.n_features_in_) == ((1, 8, 8), 64)
        for same in (NEW, NEW[:, 0], NEW.reshape(100, -1), NEW[:, 0].tolist()):
            assert_array_equal(model.predict_proba(same), expected)

    @pytest.mark.parametrize("network", [DENSE, "mlp"])
    def test_dense_network_flattens_images(self, network):
        on_images = classifier(network).fit(COLORS, PARTIAL)
        on_rows = classifier(network).fit(COLORS.reshape(300, -1), PARTIAL)
        assert (on_images.input_shape_, on_rows.input_shape_) == ((3, 8, 8), (192,))
        assert_array_equal(on_images.predict_proba(COLORS), on_rows.predict_proba(COLORS.reshape(300, -1)))

    def test_row_is_predicted_the_same_alone_and_among_others(self):
        model = classifier().fit(IMAGES, PARTIAL)
        alone = np.vstack([model.predict_proba(image[None]) for image in NEW[:5]])
        assert_allclose(model.predict_proba(NEW)[:5], alone, atol=1e-6)

    @pytest.mark.parametrize("network", [MAPS, DENSE])
    def test_wrong_layout_raises_value_error_with_both_shapes(self, network):
        with pytest.raises(ValueError, match=r"\(300, 8, 8, 3\).*\(300, 3, 8, 8\).*moveaxis"):
            classifier(network).fit(CHANNELS_LAST, PARTIAL)
        model = classifier(network).fit(COLORS, PARTIAL)
        for ask in (model.predict, model.predict_proba, model.transform):
            with pytest.raises(ValueError, match=r"\(5, 8, 8, 3\).*\(5, 3, 8, 8\).*moveaxis"):
                ask(CHANNELS_LAST[:5])
        for gray in (IMAGES[:5], IMAGES[:5].reshape(5, -1)):
            with pytest.raises(ValueError, match="X has 64 features, but LadderClassifier is expecting 192"):
                model.predict(gray)

    def test_one_image_alone_raises_value_error(self):
        model = classifier().fit(COLORS, PARTIAL)
        with pytest.raises(ValueError, match="X has 64 features, but LadderClassifier is expecting 192"):
            model.predict(COLORS[0])
        assert model.predict(COLORS[:1]).shape == (1,)

    @pytest.mark.parametrize(("network", "preprocess"), [(["conv 4 1"], "none"), (DENSE, "standardize")])
    @pytest.mark.parametrize("channels", [1, 3])
    def test_narrow_images_give_a_warning_that_channels_may_be_last(self, network, preprocess, channels):
        last = CHANNELS_LAST[:, :, :6, :channels]
        message = rf"\(300, 8, 6, {channels}\).*\(300, {channels}, 8, 6\).*moveaxis"
        with pytest.warns(UserWarning, match=message) as caught:
            model = classifier(network, preprocess=preprocess).fit(last, PARTIAL)
        assert [warning.filename for warning in caught] == [__file__]
        assert model.input_shape_ == (8, 6, channels)

    @pytest.mark.parametrize(
        ("network", "X"),
        [
            (["conv 4 2"], COLORS[:, :, :, :6]),
            (["conv 4 2"], COLORS[:, :, :, :2]),
            (["conv 4 2"], CHANNELS_LAST[:, :, :6, :2]),
            (DENSE, CHANNELS_LAST[:, :, :6]),  # the order of values does not matter
        ],
    )
    def test_other_images_that_are_not_square_give_no_warning(self, network, X):
        classifier(network).fit(X, PARTIAL)


class TestScale:
    def test_scale_of_images_is_that_of_their_channels(self):
        bright = IMAGES.copy()
        bright[:, :, 0, 0] = 1.0  # of a table this would be a constant column
        classifier().fit(bright, PARTIAL)
        with pytest.warns(ScaleWarning, match="0 to 255.*by 255.*preprocess='standardize'"):
            classifier(preprocess="none").fit(IMAGES * 255, PARTIAL)
        classifier(preprocess="standardize").fit(IMAGES * 255, PARTIAL)

    def test_images_to_predict_of_another_scale_give_one_warning(self):
        model = classifier().fit(IMAGES, PARTIAL)
        with pytest.warns(ScaleWarning, match="0 to 255") as caught:
            model.predict(NEW * 255)
        assert len(caught) == 1
        assert "X[:" not in str(caught[0].message)  # a pixel's number says nothing

    @pytest.mark.parametrize("network", [MAPS, DENSE])
    def test_images_scaled_only_after_fit_give_a_warning_and_blank_ones_none(self, network):
        bright = 255 * COLORS + np.array([0.0, 0.5, 1.0])[:, None, None]
        model = classifier(network, preprocess="standardize").fit(bright, PARTIAL)
        with pytest.warns(ScaleWarning, match="standardized"):
            model.predict(COLORS)
        model.predict(0 * COLORS)
        model.predict(20 * COLORS[:1])


class TestPreprocess:
    def test_whitening_is_fitted_once_and_applied_to_every_prediction(self):
        model = classifier(preprocess="whiten", epochs=4).fit(IMAGES * 200, PARTIAL)  # contrast has no scale
        whitening = Whitening.fit(torch.from_numpy(IMAGES * 200))
        assert_allclose(model.preparation_.matrix, whitening.matrix)
        train, new = (whitening(torch.from_numpy(X * 200)).numpy() for X in (IMAGES, NEW))
        expected = classifier(epochs=4).fit(train, PARTIAL).predict_proba(new)
        assert_allclose(model.predict_proba(NEW * 200), expected, atol=1e-4)
        assert_array_equal(model.predict(NEW * 256), model.predict(NEW))

    @pytest.mark.parametrize(("network", "dtype"), [(DENSE, torch.float64), (MAPS, torch.float32)])
    def test_rows_are_whitened_in_the_precision_of_the_prediction(self, network, dtype, monkeypatch):
        model, dtypes, whiten = classifier(network, preprocess="whiten").fit(IMAGES, PARTIAL), [], Whitening.__call__
        monkeypatch.setattr(Whitening, "__call__", lambda *args: dtypes.append(args[1].dtype) or whiten(*args))
        model.predict(NEW)
        assert dtypes == [dtype]

    def test_warm_start_keeps_the_whitening(self):
        model = classifier(preprocess="whiten", warm_start=True).fit(IMAGES, PARTIAL)
        before = model.preparation_
        assert model.fit(NEW, NEW_DIGITS).preparation_ is before
        assert clone(model).set_params(preprocess="none").fit(IMAGES, PARTIAL).preparation_ is None


class TestWarmStart:
    def test_equal_network_in_another_form_continues(self):
        model = classifier(warm_start=True).fit(IMAGES, PARTIAL)
        assert model.set_params(network=[Conv(4, 3), MaxPool(2)]).fit(IMAGES, PARTIAL).n_iter_ == 2

    @pytest.mark.parametrize(
        ("network", "X", "message"),
        [
            (MAPS, COLORS, "X has 192 features, but LadderClassifier is expecting 64"),
            (["conv 8 3"], IMAGES, r"network=\('conv 4 3', 'max 2'\).*\('conv 8 3',\).*warm_start=False"),
            (nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), IMAGES, r"network=\('conv 4 3', 'max 2'\).*\(\)"),
        ],
    )
    def test_other_images_or_networks_raise_value_error(self, network, X, message):
        model = classifier(warm_start=True).fit(IMAGES, PARTIAL)
        with pytest.raises(ValueError, match=message):
            model.set_params(network=network).fit(X, PARTIAL)


def test_grid_search_over_networks_takes_images():
    search = GridSearchCV(classifier(), {"network": [MAPS, DENSE]}, cv=2).fit(IMAGES[:, 0], DIGITS)
    assert search.best_params_["network"] in (MAPS, DENSE)
