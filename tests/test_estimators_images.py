"""The scikit-learn door takes images, networks that work on them, and whitening."""

import pickle

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV
from torch import nn

import tikas
from tikas import Conv, Dense, GlobalMeanPool, Ladder, LadderClassifier, LadderRegressor, MaxPool
from tikas.data.preprocess import ScaleWarning
from tikas.data.whitening import Whitening

DIGITS = load_digits()
IMAGES = (DIGITS.images[:400] / 16).astype(np.float32)[:, None]
CLASSES = DIGITS.target[:400]
SEEN = np.where(np.arange(400) < 100, CLASSES, -1)
NEW, NEW_CLASSES = (DIGITS.images[400:600] / 16).astype(np.float32)[:, None], DIGITS.target[400:600]
COLOURS = np.concatenate([IMAGES, IMAGES[..., ::-1], IMAGES / 2], 1)
RUNGS = ("conv 8 3", "max 2")


def classifier(network=RUNGS, **settings):
    return LadderClassifier(network, **{"epochs": 2, "random_state": 0, **settings})


def test_a_convolutional_ladder_learns_from_images():
    model = classifier(["conv 16 3", "max 2", "conv 32 2"], epochs=15).fit(IMAGES, SEEN)
    assert np.mean(model.transduction_ == CLASSES) > 0.85  # 0.91; a tenth is chance
    assert model.score(NEW, NEW_CLASSES) > 0.6  # 0.73: other people wrote these


@pytest.mark.parametrize(
    "network",
    [
        [Conv(8, 3), MaxPool(2)],
        ["conv 8 3", MaxPool(2)],
        ("conv 8 3", "max 2"),
        [Conv(8, 3), MaxPool(2), Dense(6)],
        ["conv 8 3", Conv(10, 1), GlobalMeanPool()],
    ],
    ids=["specs", "mixed", "texts", "dense-after-maps", "global-top"],
)
def test_rungs_are_given_as_values_or_texts(network):
    before = list(network)
    model = clone(classifier(network, epochs=1)).fit(IMAGES, SEEN)
    assert model.predict_proba(NEW).shape == (200, 10)
    assert list(model.network) == before
    assert model.ladder_.shapes[1] == (8, 6, 6)


def test_the_papers_networks_have_names():
    images = np.random.default_rng(0).random((12, 28, 28), np.float32)
    settings = {"epochs": 1, "batch_size": 6, "labeled_batch_size": 6}
    model = classifier("conv_small", **settings).fit(images, np.arange(12) % 3)
    assert [shape[-1] for shape in model.ladder_.shapes] == [28, 32, 16, 14, 16, 8, 6, 6, 3, 3]
    assert model.recipe_.costs == (1.0,)


def test_conv_pool_cnn_c_has_a_name_too_and_gets_the_gamma_model():
    images = np.random.default_rng(0).random((12, 16, 12), np.float32)
    settings = {"epochs": 1, "batch_size": 6, "labeled_batch_size": 6, "n_members": 2}
    model = clone(classifier("conv_pool_cnn_c", **settings)).fit(images, np.arange(12) % 3)
    assert model.network == "conv_pool_cnn_c"
    assert (model.input_shape_, model.ladder_.shapes[-1], model.recipe_.costs) == ((1, 16, 12), (3,), (1.0,))
    assert_allclose(model.predict_proba(images).sum(1), 1, rtol=1e-5)
    again = clone(model).fit(images[:, None], np.arange(12) % 3)
    assert_array_equal(again.predict_proba(images), model.predict_proba(images))
    one, other = (member.network[1].weight for member in model.ladders_)
    assert not torch.allclose(one, other, atol=0.1)  # each from weights of its own


def test_conv_pool_cnn_c_is_saved_and_goes_on_where_it_was(tmp_path):
    images, classes = np.random.default_rng(0).random((12, 3, 16, 12), np.float32), np.arange(12) % 3
    model = classifier("conv_pool_cnn_c", epochs=1, batch_size=6, labeled_batch_size=6, n_members=2)
    again = tikas.load(model.fit(images, classes).save(tmp_path / "model"))
    assert_array_equal(again.predict_proba(images), model.predict_proba(images))
    assert (again.seeds_, again.ladder_.shapes) == ([0, 1], [(3, 16, 12), (3,)])
    more = [each.set_params(warm_start=True, random_state=5).fit(images, classes) for each in (model, again)]
    assert_array_equal(more[0].predict_proba(images), more[1].predict_proba(images))
    assert more[1].n_iter_ == 2


def test_conv_pool_cnn_c_takes_images_and_gives_classes_alone():
    with pytest.raises(ValueError, match=r"takes images, and X has shape \(400, 64\)"):
        classifier("conv_pool_cnn_c").fit(IMAGES.reshape(400, -1), SEEN)
    with pytest.raises(ValueError, match=r"\(400, 8, 8, 1\); expected \(400, 1, 8, 8\)"):
        classifier("conv_pool_cnn_c").fit(np.moveaxis(IMAGES, 1, -1), SEEN)
    with pytest.raises(ValueError, match=r"network='conv_pool_cnn_c' gets the Γ-model.* give a regression rungs"):
        LadderRegressor("conv_pool_cnn_c").fit(IMAGES, CLASSES)
    with pytest.raises(ValueError, match=r"='tanh' is for rungs, and network='conv_pool_cnn_c' has none\. Leave"):
        classifier("conv_pool_cnn_c", activation="tanh").fit(IMAGES, SEEN)
    with pytest.raises(ValueError, match=r"costs=\(1.0, 2.0\): network='conv_pool_cnn_c' has one denoising cost"):
        classifier("conv_pool_cnn_c", costs=(1, 2)).fit(IMAGES, SEEN)


@pytest.mark.parametrize(
    ("network", "costs"),
    [
        ("conv_fc", (1000, 10, 0.1)),
        ("conv_large", (4,)),
        (RUNGS, (1,)),
        ("mlp", (1000, 10, 0.1)),
        ((8,), None),
        ((), (1000, 0.1)),
    ],
)
def test_costs_follow_from_the_network(network, costs):
    recipe = LadderClassifier(network)._recipe(IMAGES)
    assert recipe.costs == (costs or (1000, 10, 0.1))
    assert LadderClassifier(network, costs=7)._recipe(IMAGES).costs == (7,)


def test_grey_images_need_no_channel_and_rows_of_their_pixels_are_predicted_too():
    model = classifier().fit(IMAGES[:, 0], SEEN)
    assert (model.input_shape_, model.n_features_in_) == ((1, 8, 8), 64)
    assert_array_equal(model.predict_proba(NEW), model.predict_proba(NEW[:, 0]))
    assert_array_equal(model.predict_proba(NEW), model.predict_proba(NEW.reshape(200, -1)))
    assert_array_equal(model.predict_proba(NEW), classifier().fit(IMAGES, SEEN).predict_proba(NEW))
    assert_array_equal(model.predict_proba(NEW), model.predict_proba(NEW[:, 0].tolist()))


@pytest.mark.parametrize("network", [(16,), "mlp"])
def test_a_dense_network_takes_an_image_as_the_row_of_its_pixels(network):
    settings = {"epochs": 1, "batch_size": 200}
    on_images = classifier(network, **settings).fit(COLOURS, SEEN)
    on_rows = classifier(network, **settings).fit(COLOURS.reshape(400, -1), SEEN)
    assert (on_images.input_shape_, on_rows.input_shape_) == ((3, 8, 8), (192,))
    assert_array_equal(on_images.predict_proba(COLOURS), on_rows.predict_proba(COLOURS.reshape(400, -1)))


def test_an_answer_does_not_depend_on_its_company():
    model = classifier().fit(IMAGES, SEEN)
    assert_allclose(model.predict_proba(NEW)[:3], model.predict_proba(NEW[:3]), atol=1e-6)


@pytest.mark.parametrize("network", [RUNGS, (8,)])
def test_a_wrong_layout_is_refused_in_fit_and_in_predict_with_both_shapes(network):
    last = np.moveaxis(COLOURS, 1, -1)
    with pytest.raises(ValueError, match=r"\(400, 8, 8, 3\); expected \(400, 3, 8, 8\).*moveaxis"):
        classifier(network).fit(last, SEEN)
    model = classifier(network, epochs=1).fit(COLOURS, SEEN)
    for ask in (model.predict, model.predict_proba, model.transform):
        with pytest.raises(ValueError, match=r"\(5, 8, 8, 3\); .* \(5, 3, 8, 8\)\. Channels come first"):
            ask(last[:5])
    with pytest.raises(ValueError, match=r"\(5, 1, 8, 8\); .* \(5, 3, 8, 8\)"):
        model.predict(IMAGES[:5])
    with pytest.raises(ValueError, match="X has 64 features"):
        model.predict(IMAGES[:5].reshape(5, -1))


@pytest.mark.parametrize("network", [RUNGS, (8,)])
def test_of_one_image_alone_it_is_said_to_give_several(network):
    grey = classifier(network, epochs=1).fit(IMAGES[:, 0], SEEN)
    for image in (IMAGES[0, 0], IMAGES[0, 0].tolist()):
        with pytest.raises(ValueError, match=r"shape \(8, 8\), as one .* \(n, 1, 8, 8\)\. Give X\[:1\], not X\[0\]"):
            grey.predict(image)
    assert grey.predict(IMAGES[:1, 0]).shape == (1,)
    colour = classifier(network, epochs=1).fit(COLOURS, SEEN)
    with pytest.raises(ValueError, match=r"\(3, 8, 8\), as one image has; expected \(n, 3, 8, 8\)\. Give X\[:1\]"):
        colour.predict(COLOURS[0])
    with pytest.raises(ValueError, match=r"X has 8 features.*Give the columns"):
        colour.predict(IMAGES[0, 0])


@pytest.mark.parametrize(
    ("network", "X", "message"),
    [
        (RUNGS, IMAGES.reshape(400, -1), r"takes images, and X has shape \(400, 64\).*reshape"),
        (RUNGS, IMAGES[:, None], r"\(400, 1, 1, 8, 8\); expected images"),
        (["conv 8 9"], IMAGES, r"kernel of \(9, 9\) is larger than the map.*\(1, 8, 8\)"),
        (["max 9"], IMAGES, r"leaves nothing.*\(9, 9\).*\(1, 8, 8\)"),
        (["conv 8 3", "global"], IMAGES, r"\(8,\); the data ask for \(10,\).*\('conv 8 3', 'global', 'top'\)"),
        ("conv_fc", IMAGES, r"'conv_fc' takes images of 26 by 26 pixels or more.*shape \(1, 8, 8\).*rungs of your own"),
        ("conv_pool_cnn_c", IMAGES, r"'conv_pool_cnn_c' takes images of 12 by 12 pixels or more.*shape \(1, 8, 8\)"),
        (["conf 8 3"], IMAGES, "no rung"),
        (RUNGS, np.where(IMAGES > 0.9, np.nan, IMAGES), "NaN"),
        (RUNGS, np.where(IMAGES > 0.9, np.inf, IMAGES), "infinity.*Leave such rows out"),
        (RUNGS, IMAGES[:1], "n_samples = 1"),
        (RUNGS, IMAGES[:, :0], r"X of shape \(400, 0, 8, 8\): its rows hold no values"),
        (RUNGS, np.zeros((40, 48, 32, 1)), r"\(40, 48, 32, 1\); expected \(40, 1, 48, 32\)"),
    ],
)
def test_what_cannot_be_trained_on_is_refused_and_the_estimator_stays_unfitted(network, X, message):
    model = classifier(network)
    with pytest.raises(ValueError, match=message):
        model.fit(X, SEEN[: len(X)])
    assert not hasattr(model, "input_shape_")


HINT = r"The input has shape \(14, 12, 3\), read as .* If it is \(height, width, channels\), turn .*moveaxis"


@pytest.mark.parametrize("rungs", [[Conv(4, 5)], [MaxPool(4)], [Conv(4, 3), MaxPool(2)]])
def test_where_rungs_do_not_fit_narrow_maps_it_is_asked_whether_the_channels_are_last(rungs):
    with pytest.raises(ValueError, match=rf"(larger|smaller) than.*{HINT}"):
        Ladder((14, 12, 3), [*rungs, Dense(10)])
    with pytest.raises(ValueError, match="larger than the map") as caught:
        Ladder((3, 14, 12), [Conv(4, 15), Dense(10)])
    assert "moveaxis" not in str(caught.value)


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize(("network", "preprocess"), [(["conv 4 1"], "none"), ((8,), "standardize")])
def test_small_oblong_images_that_may_have_their_channels_last_are_warned_of(network, preprocess, channels):
    last = np.moveaxis(COLOURS[:, [0, 1, 2, 0][:channels], :, :6], 1, -1)
    message = (
        rf"\(400, 8, 6, {channels}\) are read as .*maps {channels} wide.*moveaxis.*, to \(400, {channels}, 8, 6\)\. "
        ".*swapaxes"
    )
    with pytest.warns(UserWarning, match=message) as caught:
        model = classifier(network, preprocess=preprocess, epochs=1).fit(last, SEEN)
    assert [warning.filename for warning in caught] == [__file__]
    assert model.input_shape_ == (8, 6, channels)


def test_other_oblong_images_are_taken_without_a_warning():
    for X in (COLOURS[:, :, :, :6], COLOURS[:, :, :, :2], np.moveaxis(COLOURS[:, :2, :, :6], 1, -1)):
        classifier(["conv 4 2"], epochs=1).fit(X, SEEN)
    classifier((8,), epochs=1).fit(np.moveaxis(COLOURS[:, :, :, :6], 1, -1), SEEN)  # any order is good


def test_the_scale_of_images_is_that_of_their_channels():
    bright = IMAGES.copy()
    bright[:, :, 0, 0] = 1.0  # a constant pixel is no column to be dropped
    classifier(epochs=1).fit(bright, SEEN)
    with pytest.warns(ScaleWarning, match=r"run from 0 to 255.*Divide them by 255, or set preprocess='standardize'"):
        classifier(epochs=1).fit(IMAGES * 255, SEEN)
    classifier(epochs=1, preprocess="standardize").fit(IMAGES * 255, SEEN)  # no scaler of scikit-learn takes images


def test_brighter_images_than_those_of_fit_are_warned_of_but_where_whitening_leaves_no_scale():
    with pytest.warns(ScaleWarning, match="rows to predict run from 0 to 255") as caught:
        classifier(epochs=1).fit(IMAGES, SEEN).predict(NEW * 255)
    assert len(caught) == 1
    assert "farthest off" not in str(caught[0].message)  # of a pixel that tells nothing
    whitened = classifier(epochs=1, preprocess="whiten").fit(IMAGES, SEEN)
    assert_array_equal(whitened.predict(NEW * 256), whitened.predict(NEW))


@pytest.mark.parametrize("network", [RUNGS, (8,)])
def test_images_that_were_scaled_after_fit_are_warned_of_and_blank_ones_are_not(network):
    bright = 255 * COLOURS + np.array([0.0, 0.5, 1.0])[:, None, None]
    model = classifier(network, preprocess="standardize", epochs=1).fit(bright, SEEN)
    with pytest.warns(ScaleWarning, match="standardised as the training rows were, run from .* of another scale"):
        model.predict(COLOURS)
    model.predict(0 * COLOURS)
    model.predict(20 * COLOURS[:1])


def test_a_regressor_learns_from_images():
    targets = np.where(SEEN < 0, np.nan, IMAGES.mean((1, 2, 3)) * 100)
    model = LadderRegressor(RUNGS, epochs=20, random_state=0).fit(IMAGES, targets)
    assert model.score(NEW, NEW.mean((1, 2, 3)) * 100) > 0.5
    assert model.ladder_.shapes[0] == (1, 8, 8)


def test_members_clones_pickles_and_grids_work_on_images():
    model = classifier(n_members=2).fit(IMAGES, SEEN)
    assert_array_equal(clone(model).fit(IMAGES, SEEN).predict_proba(NEW), model.predict_proba(NEW))
    assert_array_equal(pickle.loads(pickle.dumps(model)).predict_proba(NEW), model.predict_proba(NEW))
    search = GridSearchCV(classifier(epochs=1), {"network": [RUNGS, (8,)]}, cv=2).fit(IMAGES[:, 0], CLASSES)
    assert search.best_params_["network"] in (RUNGS, (8,))


def test_a_fit_goes_on_from_images_of_the_same_shape_alone():
    model = classifier(warm_start=True).fit(IMAGES, SEEN).fit(IMAGES, SEEN)
    assert model.n_iter_ == 4
    with pytest.raises(ValueError, match=r"takes rows of shape \(1, 8, 8\).*now there are \(3, 8, 8\)"):
        model.fit(COLOURS, SEEN)


def test_a_fit_goes_on_with_the_same_network_alone():
    model = classifier(warm_start=True, epochs=1).fit(IMAGES, SEEN)
    assert model.set_params(network=[Conv(8, 3), MaxPool(2)]).fit(IMAGES, SEEN).n_iter_ == 2
    message = r"other rungs, network=\('conv 8 3', 'max 2'\); now network=\['conv 4 3'\].*warm_start=False"
    with pytest.raises(ValueError, match=message):
        model.set_params(network=["conv 4 3"]).fit(IMAGES, SEEN)
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    with pytest.raises(ValueError, match=r"other rungs, network=\('conv 8 3', 'max 2'\); now network=Sequential\(…\)"):
        model.set_params(network=module).fit(IMAGES, SEEN)


@pytest.mark.parametrize("network", [RUNGS, (16,)])
@pytest.mark.parametrize("preprocess", ["none", "whiten"])
def test_a_saved_model_takes_the_same_images(network, preprocess, tmp_path):
    model = classifier(network, preprocess=preprocess, epochs=1).fit(COLOURS, SEEN)
    again = tikas.load(model.save(tmp_path / "model"))
    assert_array_equal(again.predict_proba(COLOURS), model.predict_proba(COLOURS))
    assert (again.input_shape_, again.n_features_in_, again.preprocess) == ((3, 8, 8), 192, preprocess)
    with pytest.raises(ValueError, match=r"\(400, 8, 8, 3\).*\(400, 3, 8, 8\)"):
        again.predict(np.moveaxis(COLOURS, 1, -1))


def test_whitening_is_fitted_in_fit_and_done_before_every_prediction():
    model = classifier(preprocess="whiten", epochs=4).fit(IMAGES * 200, SEEN)  # contrast has no scale: no warning
    whitening = Whitening.fit(torch.from_numpy(IMAGES * 200))
    assert_allclose(model.preparation_.matrix, whitening.matrix)
    by_hand = classifier(epochs=4).fit(whitening(torch.from_numpy(IMAGES * 200)).numpy(), SEEN)
    assert_allclose(
        model.predict_proba(NEW * 200),
        by_hand.predict_proba(whitening(torch.from_numpy(NEW * 200)).numpy()),
        atol=1e-4,
    )
    assert np.mean((model.predict(IMAGES * 200) == model.transduction_)[SEEN < 0]) > 0.99  # all but for rounding


def test_a_fit_that_goes_on_keeps_its_whitening():
    model = classifier(preprocess="whiten", warm_start=True, epochs=1).fit(IMAGES, SEEN)
    before = model.preparation_
    assert model.fit(NEW, NEW_CLASSES).preparation_ is before
    assert clone(model).set_params(preprocess="none").fit(IMAGES, SEEN).preparation_ is None


def test_a_preprocessing_that_there_is_not_is_refused():
    with pytest.raises(ValueError, match="preprocess='center': expected one of 'none', 'standardize', 'whiten'"):
        classifier(preprocess="center").fit(IMAGES, SEEN)
