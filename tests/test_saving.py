"""A model comes back from its file as it was; a file that is none is refused, and a failed save costs nothing."""

import errno
import json
import os
import pickle
import re
import resource
import struct
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_iris
from sklearn.preprocessing import scale

import tikas
from tikas import LadderClassifier, LadderRegressor
from tikas.training.checkpoint import NotAModelError

IRIS, SPECIES = scale(load_iris().data), load_iris().target
NAMES = load_iris().target_names
DIABETES, PROGRESSION = scale(load_diabetes().data), load_diabetes().target
QUICK = {"network": (8,), "epochs": 2, "batch_size": 50, "random_state": 0}
WEIGHT = "members.0.rungs.1.weight"


@pytest.fixture(scope="module")
def model():
    return LadderClassifier(**QUICK, n_members=2).fit(IRIS, SPECIES)


@pytest.fixture(scope="module")
def whole(model, tmp_path_factory):
    return model.save(tmp_path_factory.mktemp("model") / "iris.safetensors").read_bytes()


def open_up(payload):
    """The tensors and the header of a file, to be tampered with."""
    (length,) = struct.unpack("<Q", payload[:8])
    return load_tensors(payload), json.loads(json.loads(payload[8 : 8 + length])["__metadata__"]["tikas"])


def close_up(tensors, header):
    return save_tensors(tensors, {"tikas": json.dumps(header)})


def refusal(path, payload):
    """The one line that is said of a file with this in it."""
    path.write_bytes(payload)
    with pytest.raises(NotAModelError) as caught:
        tikas.load(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    assert len(message) < 500 + len(str(path))
    return message


class TestRoundTrip:
    @pytest.mark.parametrize(
        "y",
        [
            pytest.param(SPECIES, id="integers"),
            pytest.param(SPECIES.astype(np.uint8), id="unsigned"),
            pytest.param(SPECIES > 0, id="booleans"),
            pytest.param(SPECIES.astype(float) * 2, id="floats"),
            pytest.param(NAMES[SPECIES], id="text"),
            pytest.param(NAMES[SPECIES].astype(object), id="objects"),
            pytest.param(np.array(["ä", '"', "\\"])[SPECIES], id="odd-text"),
        ],
    )
    def test_a_classifier_predicts_the_same_classes(self, y, tmp_path):
        model = LadderClassifier(**QUICK).fit(IRIS, y)
        again = tikas.load(model.save(tmp_path / "model"))
        assert isinstance(again, LadderClassifier)
        assert again.classes_.dtype.kind == model.classes_.dtype.kind
        assert_array_equal(again.classes_, model.classes_)
        assert_array_equal(again.predict(IRIS), model.predict(IRIS))
        assert_array_equal(again.predict_proba(IRIS), model.predict_proba(IRIS))
        assert_array_equal(again.transform(IRIS), model.transform(IRIS))

    def test_a_regressor_predicts_the_same_values(self, tmp_path):
        model = LadderRegressor(**QUICK, n_members=2).fit(DIABETES, PROGRESSION)
        again = tikas.load(str(model.save(str(tmp_path / "model"))))
        assert isinstance(again, LadderRegressor)
        assert_array_equal(again.predict(DIABETES), model.predict(DIABETES))

    @pytest.mark.parametrize("denoiser", ["gaussian", "mlp", "no-product", "linear", "additive"])
    def test_every_kind_of_ladder_comes_back(self, denoiser, tmp_path):
        settings = {**QUICK, "network": (6, 5), "denoiser": denoiser, "activation": "tanh", "costs": (0, 1, 0, 1)}
        model = LadderClassifier(**settings).fit(IRIS, SPECIES)
        again = tikas.load(model.save(tmp_path / "model"))
        state = again.ladder_.state_dict()
        assert all(torch.equal(tensor, state[name]) for name, tensor in model.ladder_.state_dict().items())
        assert again.recipe_ == model.recipe_

    def test_members_history_and_parameters_come_back(self, model, whole, tmp_path):
        (tmp_path / "model").write_bytes(whole)
        again = tikas.load(tmp_path / "model")
        assert_array_equal(again.predict_proba(IRIS), model.predict_proba(IRIS))
        assert again.history_ == model.history_
        assert again.seeds_ == model.seeds_ == [0, 1]
        assert (again.n_iter_, again.n_features_in_, again.n_members) == (2, 4, 2)
        assert again.recipe_ == model.recipe_
        assert (again.epochs, again.batch_size) == (2, 50)

    def test_the_names_of_columns_come_back_and_are_held_to(self, tmp_path):
        frame = pd.DataFrame(IRIS, columns=["a", "b", "c", "d"])
        model = LadderClassifier(**QUICK).fit(frame, SPECIES)
        again = tikas.load(model.save(tmp_path / "model"))
        assert again.feature_names_in_.tolist() == ["a", "b", "c", "d"]
        assert_array_equal(again.predict(frame), model.predict(frame))
        with pytest.raises(ValueError, match="feature names"):
            again.predict(frame.rename(columns={"a": "z"}))

    @pytest.mark.parametrize(
        ("estimator", "X", "y"), [(LadderClassifier, IRIS, SPECIES), (LadderRegressor, DIABETES, PROGRESSION)]
    )
    def test_a_loaded_model_goes_on_as_the_saved_one_would(self, estimator, X, y, tmp_path):
        model = estimator(**QUICK).fit(X, y)
        again = tikas.load(model.save(tmp_path / "model"))
        for each in (model, again):
            each.set_params(warm_start=True, random_state=7).fit(X, y)
        assert [line["epoch"] for line in again.history_] == [1, 2, 3, 4]
        assert_array_equal(again.predict(X), model.predict(X))
        assert_array_equal(tikas.load(again.save(tmp_path / "model")).predict(X), model.predict(X))

    def test_classes_in_an_order_of_their_own_keep_it_in_another_fit(self, tmp_path):
        names = np.array(["one", "two", "three"], dtype=object)
        model = LadderClassifier(**QUICK, classes=names).fit(IRIS, names[SPECIES])
        again = tikas.load(model.save(tmp_path / "model"))
        assert again.set_params(warm_start=True).fit(IRIS, names[SPECIES]).classes_.tolist() == names.tolist()
        assert clone(again).fit(IRIS, names[SPECIES]).classes_.tolist() == names.tolist()
        assert tikas.load(LadderClassifier(**QUICK).fit(IRIS, SPECIES).save(tmp_path / "model")).classes is None

    def test_the_header_is_json_that_says_what_the_model_is(self, whole):
        _, header = open_up(whole)
        assert header["version"] == 2
        assert header["estimator"] == "LadderClassifier"
        assert header["classes"] == [0, 1, 2]
        assert header["shapes"] == [[4], [8], [3]]
        assert header["members"] == 2
        assert header["seeds"] == [0, 1]
        assert header["recipe"]["network"] == [8]
        assert header["versions"]["tikas"] == tikas.__version__
        assert header["versions"]["torch"] == torch.__version__

    def test_seeds_that_were_drawn_come_back_and_give_the_same_model_again(self, tmp_path):
        model = LadderClassifier(**{**QUICK, "random_state": None}).fit(IRIS, SPECIES)
        (seed,) = tikas.load(model.save(tmp_path / "model")).seeds_
        again = LadderClassifier(**{**QUICK, "random_state": seed}).fit(IRIS, SPECIES)
        assert_array_equal(again.predict_proba(IRIS), model.predict_proba(IRIS))

    def test_a_file_of_version_1_is_read_and_saved_again_though_it_has_no_seeds(self, model, whole, tmp_path):
        tensors, header = open_up(whole)
        del header["seeds"]
        (tmp_path / "old").write_bytes(close_up(tensors, {**header, "version": 1}))
        old = tikas.load(tmp_path / "old")
        again = tikas.load(old.save(tmp_path / "new"))
        assert old.seeds_ is again.seeds_ is None
        assert_array_equal(again.predict_proba(IRIS), model.predict_proba(IRIS))

    def test_a_file_from_before_ranges_were_kept_predicts_rows_of_any_scale_in_silence(self, model, whole, tmp_path):
        tensors, header = open_up(whole)
        assert tuple(header.pop("input_range")) == model.input_range_
        (tmp_path / "old").write_bytes(close_up(tensors, header))
        again = tikas.load(tikas.load(tmp_path / "old").save(tmp_path / "new"))
        assert again.input_range_ is None
        again.predict(255 * IRIS)

    def test_an_unfitted_model_cannot_be_saved(self, tmp_path):
        with pytest.raises(ValueError, match="not fitted"):
            LadderClassifier().save(tmp_path / "model")


class Trap:
    def __reduce__(self):
        return os.system, ("touch executed",)


class TestRefusal:
    def test_a_missing_file_is_named(self, tmp_path):
        with pytest.raises(FileNotFoundError, match=r"nowhere: there is no such file\. Give the path of a model"):
            tikas.load(tmp_path / "nowhere")

    def test_a_folder_is_no_model(self, tmp_path):
        with pytest.raises(NotAModelError, match="not a file"):
            tikas.load(tmp_path)

    def test_files_of_other_kinds_are_no_models(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        others = {
            "empty": b"",
            "text": b"sepal,petal\n1,2\n" * 10,
            "pickle": pickle.dumps(Trap()),
            "safetensors": save_tensors({"weight": torch.ones(3)}),
            "safetensors with a header": save_tensors({"weight": torch.ones(3)}, {"format": "pt"}),
            "zeros": bytes(1000),
            "a header longer than the file can be": b"\xff" * 8 + b"{" * 100,
        }
        for payload in others.values():
            assert "not a model that tikas saved" in refusal(tmp_path / "other", payload)
        torch.save({"weight": torch.ones(3)}, tmp_path / "torch")
        assert "not a model that tikas saved" in refusal(tmp_path / "other", (tmp_path / "torch").read_bytes())
        assert not (tmp_path / "executed").exists()

    def test_a_file_cut_anywhere_is_no_model(self, whole, tmp_path):
        (length,) = struct.unpack("<Q", whole[:8])
        cuts = {*range(12), *range(0, len(whole), 97), 7 + length, 8 + length, 9 + length, len(whole) - 1}
        for cut in cuts:
            refusal(tmp_path / "model", whole[:cut])
        assert "truncated" in refusal(tmp_path / "model", whole[: 8 + length // 2])
        assert "truncated" in refusal(tmp_path / "model", whole[:-1])

    @given(payload=st.binary(max_size=200))
    @example(payload=struct.pack("<Q", 2) + b"{}")
    @example(payload=struct.pack("<Q", 20) + b'{"__metadata__":null}')
    @settings(deadline=None, max_examples=100)
    def test_random_bytes_are_no_model(self, payload, tmp_path_factory):
        refusal(tmp_path_factory.getbasetemp() / "bytes", payload)

    @given(data=st.data())
    @settings(deadline=None, max_examples=60)
    def test_a_damaged_byte_is_noticed_or_changes_no_more_than_a_number(self, data, whole, tmp_path_factory):
        place = data.draw(st.integers(0, len(whole) - 1))
        damaged = bytearray(whole)
        damaged[place] ^= data.draw(st.integers(1, 255))
        path = tmp_path_factory.getbasetemp() / "damaged"
        path.write_bytes(damaged)
        try:
            again = tikas.load(path)
        except NotAModelError:
            return
        assert isinstance(again, LadderClassifier)

    @pytest.mark.parametrize(
        ("lie", "message"),
        [
            ({"version": 3}, "it is of version 3; this tikas reads versions 1 to 2"),
            ({"version": None}, "version None"),
            ({"estimator": "Subprocess"}, "no estimator 'Subprocess'"),
            ({"estimator": ["LadderClassifier"]}, "unhashable"),
            ({"estimator": "LadderRegressor"}, "a LadderRegressor with a recipe for classification"),
            ({"members": 1}, "1 members, and tensors of 2"),
            ({"members": 1_000_000}, "1000000 members, and tensors of 2"),
            ({"members": 0}, "0 members"),
            ({"members": -1}, "-1 members"),
            ({"members": "2"}, "'2' members"),
            ({"members": float("nan")}, "nan members"),
            ({"shapes": [[4], [9], [3]]}, "its shapes are not those of its recipe"),
            ({"shapes": [[10**9], [8], [3]]}, r"rungs\..* is .* where .*1000000000.* is expected"),
            ({"shapes": [[4], [8], [10**9]]}, "1000000000"),
            ({"shapes": [[10**30], [8], [3]]}, ""),
            ({"shapes": [[4, 4], [8], [3]]}, "input_shape"),
            ({"shapes": []}, "out of range"),
            ({"shapes": None}, "NoneType"),
            ({"classes": [0, 1]}, "its classes are not 3"),
            ({"classes": [0, 1, 1]}, "not different values of kind 'i'"),
            ({"classes": [0, 1, 2.5]}, "not different values"),
            ({"classes": [0, 1, [2]]}, "no labels"),
            ({"classes": [0, 1, float("nan")]}, ""),
            ({"classes": "012"}, "its classes are not 3"),
            ({"classes": ["a", "b", "c" * 20_000_000], "class_kind": "U"}, "a name of 20000000 characters"),
            ({"class_kind": "m"}, "no classes of kind 'm'"),
            ({"class_kind": "U"}, "not different values of kind 'U'"),
            ({"classes": ["a", 1, 2], "class_kind": "O"}, "not different values of kind 'O'"),
            ({"columns": ["a", "b"]}, "its columns do not fit"),
            ({"columns": "abcd"}, "its columns do not fit"),
            ({"columns": [1, 2, 3, 4]}, "its columns do not fit"),
            ({"seeds": [0]}, "its seeds are not 2, one for each member"),
            ({"seeds": [0, -1]}, "its seeds are not 2"),
            ({"seeds": [0, True]}, "its seeds are not 2"),
            ({"seeds": "01"}, "its seeds are not 2"),
            ({"input_range": [1.0, 0.0]}, "the range of its rows is not two finite numbers in order"),
            ({"input_range": [0.0, float("nan")]}, "the range of its rows"),
            ({"input_range": [0.0]}, "not enough values"),
            ({"input_range": 5}, "int"),
            ({"history": 5}, "its history"),
            ({"history": [5]}, "its history"),
            ({"recipe": None}, ""),
            ({"recipe": []}, ""),
            ({"recipe": {"hidden": 3}}, "fields that tikas does not know: hidden"),
        ],
    )
    def test_a_header_that_lies_is_refused(self, lie, message, whole, tmp_path):
        tensors, header = open_up(whole)
        assert re.search(message, refusal(tmp_path / "model", close_up(tensors, {**header, **lie})))

    @pytest.mark.parametrize(
        ("lie", "message"),
        [
            ({"network": [9]}, "shapes"),
            ({"network": [8, 8]}, "shapes"),
            ({"network": [1] * 1_000_000}, "1000000 rungs"),
            ({"network": "8"}, "network"),
            ({"task": "regression"}, ""),
            ({"activation": "__import__('os')"}, "activation"),
            ({"denoiser": {}}, "denoiser"),
            ({"denoiser": "mlp"}, "missing or left over"),
            ({"costs": [0.0]}, "missing or left over"),
            ({"noise": [float("nan")]}, "noise"),
            ({"noise": ["loud"]}, "noise"),
            ({"learning_rate": float("nan")}, "learning_rate"),
            ({"epochs": -1}, "epochs"),
            ({"epochs": 1.5}, "epochs"),
            ({"calibration": None}, "calibration"),
        ],
    )
    def test_a_recipe_that_lies_is_refused(self, lie, message, whole, tmp_path):
        tensors, header = open_up(whole)
        header["recipe"].update(lie)
        assert re.search(message, refusal(tmp_path / "model", close_up(tensors, header)))

    @pytest.mark.parametrize("units", [10**9, 10**18, 10**30])
    def test_a_gigantic_network_is_refused_before_it_is_allocated(self, units, whole, tmp_path):
        tensors, header = open_up(whole)
        header["recipe"]["network"], header["shapes"] = [units], [[units], [units], [3]]
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        refusal(tmp_path / "model", close_up(tensors, header))
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kilobytes

    @pytest.mark.parametrize(
        "name", ["version", "estimator", "recipe", "shapes", "members", "seeds", "columns", "history"]
    )
    def test_a_header_that_lacks_something_is_refused_with_its_name(self, name, whole, tmp_path):
        tensors, header = open_up(whole)
        del header[name]
        assert f"its header lacks '{name}'" in refusal(tmp_path / "model", close_up(tensors, header))

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda tensors: tensors.pop("members.1.rungs.1.weight"), r"missing or left over: rungs\.1\.weight"),
            (lambda tensors: tensors.update({"members.0.more": torch.ones(2)}), "missing or left over: more"),
            (lambda tensors: tensors.update({"more": torch.ones(2)}), "2 members, and tensors of 3"),
            (lambda tensors: tensors.clear(), "2 members, and tensors of 0"),
            (lambda tensors: tensors.update({WEIGHT: torch.ones(4, 8)}), r"is \(4, 8\) .* where \(8, 4\)"),
            (lambda tensors: tensors.update({WEIGHT: torch.ones(8, 4).double()}), "float64 where .*float32"),
            (lambda tensors: tensors.update({WEIGHT: torch.ones(8, 4).bool()}), "bool where .*float32"),
            (lambda tensors: tensors.update({WEIGHT: torch.full((8, 4), torch.nan)}), "not finite"),
            (lambda tensors: tensors.update({"members.0.calibrated": torch.tensor(False)}), "without the statistics"),
        ],
    )
    def test_tensors_that_do_not_fit_the_header_are_refused(self, change, message, whole, tmp_path):
        tensors, header = open_up(whole)
        change(tensors)
        assert re.search(message, refusal(tmp_path / "model", close_up(tensors, header)))

    @pytest.mark.parametrize("lie", [{"target_mean": float("nan")}, {"target_deviation": 0}, {"target_mean": "x"}])
    def test_a_regressor_without_the_scale_of_its_targets_is_refused(self, lie, tmp_path):
        model = LadderRegressor(**QUICK).fit(DIABETES, PROGRESSION)
        tensors, header = open_up(model.save(tmp_path / "model").read_bytes())
        refusal(tmp_path / "model", close_up(tensors, {**header, **lie}))

    @pytest.mark.parametrize("depth", [500, 100_000])
    def test_headers_nested_without_end_are_refused(self, depth, whole, tmp_path):
        tensors, header = open_up(whole)
        nested = "[" * depth + "]" * depth
        text = json.dumps({**header, "recipe": None}).replace('"recipe": null', f'"recipe": {nested}')
        for inner in (nested, text):
            refusal(tmp_path / "model", save_tensors(tensors, {"tikas": inner}))
        outer = f'{{"__metadata__": {nested}}}'.encode()
        refusal(tmp_path / "model", struct.pack("<Q", len(outer)) + outer)


def saved_from_images(folder, **settings):
    images = np.random.default_rng(0).random((20, 3, 9, 7), np.float32)
    model = LadderClassifier(**{**QUICK, "batch_size": 10, **settings}).fit(images, np.arange(20) % 2)
    return model.save(folder / "model").read_bytes()


@pytest.fixture(scope="module")
def convolutional(tmp_path_factory):
    network = ("conv 4 3 same", "max 2", 5)
    return saved_from_images(tmp_path_factory.mktemp("images"), network=network, preprocess="whiten")


@pytest.fixture(scope="module")
def flattened(tmp_path_factory):
    return saved_from_images(tmp_path_factory.mktemp("images"))


class TestImages:
    def test_the_header_has_the_shape_of_every_level(self, convolutional, flattened):
        _, header = open_up(convolutional)
        assert header["shapes"] == [[3, 9, 7], [4, 9, 7], [4, 5, 4], [5], [2]]
        assert header["input_shape"] == [3, 9, 7]
        _, header = open_up(flattened)
        assert (header["shapes"][0], header["input_shape"]) == ([189], [3, 9, 7])

    @pytest.mark.parametrize(
        ("lie", "message"),
        [
            ({"shapes": [[3, 7, 9], [4, 7, 9], [4, 4, 5], [5], [2]]}, "whitening|rows do not fit"),
            ({"shapes": [[3, 9, 7], [4, 9, 7], [4, 4, 3], [5], [2]]}, "its shapes are not those of its recipe"),
            ({"shapes": [[10**9, 9, 7], [4, 9, 7], [4, 5, 4], [5], [2]]}, "1000000000"),
            (
                {"shapes": [[3, 10**9, 10**9], [4, 10**9, 10**9], [4, 5 * 10**8, 5 * 10**8], [5], [2]]},
                "expected|overflow",
            ),
            ({"shapes": [[189], [4, 9, 7], [4, 5, 4], [5], [2]]}, "works on maps"),
            ({"shapes": [[9, 9, 3], [4, 9, 7], [4, 5, 4], [5], [2]]}, "channels first"),
            ({"shapes": [[3, 9, -7], [4, 9, 7], [4, 5, 4], [5], [2]]}, "input_shape"),
            ({"shapes": [[3, 9.0, 7], [4, 9, 7], [4, 5, 4], [5], [2]]}, "input_shape"),
            ({"input_shape": [189]}, "rows do not fit its ladders"),
            ({"input_shape": [9, 7, 3]}, "rows do not fit"),
            ({"input_shape": [1] * 1_000_000}, "rows do not fit"),
            ({"input_shape": None}, "rows do not fit"),
            ({"input_shape": ["3", "9", "7"]}, "rows do not fit"),
        ],
    )
    def test_a_header_that_lies_about_images_is_refused(self, lie, message, convolutional, tmp_path):
        tensors, header = open_up(convolutional)
        assert re.search(message, refusal(tmp_path / "model", close_up(tensors, {**header, **lie})))

    @pytest.mark.parametrize("lie", [[3, 9, 8], [189, 1], [True, 9, 21], [3, 9, 7, 1], "189", [0, 9, 7], [-3, -9, 7]])
    def test_a_dense_ladder_has_images_of_as_many_values(self, lie, flattened, tmp_path):
        tensors, header = open_up(flattened)
        assert "rows do not fit" in refusal(tmp_path / "model", close_up(tensors, {**header, "input_shape": lie}))

    @pytest.mark.parametrize(
        ("network", "message"),
        [
            (["conv 4 3", "max 2", 5], "shapes"),
            (["conv 4 99999999 same", "max 2", 5], ""),
            (["conv 99999999 3 same", "max 2", 5], ""),
            (["conv 4 3 same", "max 2 stride=1", 5], "shapes"),
            (["import os", "max 2", 5], "expected numbers of units, rungs"),
            (["conv_large"], "takes images of .* pixels or more"),
            (["conv_pool_cnn_c"], "takes images of .* pixels or more"),
        ],
    )
    def test_a_network_that_lies_is_refused_before_it_is_allocated(self, network, message, convolutional, tmp_path):
        tensors, header = open_up(convolutional)
        header["recipe"]["network"] = network
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert re.search(message, refusal(tmp_path / "model", close_up(tensors, header)))
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kilobytes

    def test_a_file_from_before_images_could_be_flattened_takes_rows(self, flattened, tmp_path):
        tensors, header = open_up(flattened)
        del header["input_shape"]
        (tmp_path / "model").write_bytes(close_up(tensors, header))
        assert tikas.load(tmp_path / "model").input_shape_ == (189,)

    def test_a_whitening_of_other_images_is_refused(self, convolutional, tmp_path):
        tensors, header = open_up(convolutional)
        tensors |= {"whitening.mean": torch.zeros(3, 3, 3), "whitening.matrix": torch.eye(27)}
        assert "its whitening does not fit" in refusal(tmp_path / "model", close_up(tensors, header))


class TestFailedSave:
    @pytest.fixture
    def old(self, tmp_path):
        path = tmp_path / "model.safetensors"
        path.write_bytes(b"the old model")
        return path

    def assert_untouched(self, old):
        assert old.read_bytes() == b"the old model"
        assert list(old.parent.iterdir()) == [old]

    @pytest.fixture
    def full_disk(self):
        """The system itself refuses what goes beyond the first kilobyte of a file; Python ignores the signal of it."""
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
        yield
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    @pytest.mark.usefixtures("full_disk")
    def test_a_full_disk_leaves_the_old_file_whole(self, model, old):
        with pytest.raises(OSError, match=r"could not be saved \(File too large\).*before is unchanged.*MB free"):
            model.save(old)
        self.assert_untouched(old)

    @pytest.mark.parametrize("moment", ["fsync", "replace"])
    @pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")])
    def test_whatever_ends_the_writing_leaves_the_old_file_whole(self, moment, error, model, old, monkeypatch):
        def fail(*_):
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fail) if moment == "fsync" else patch.setattr(Path, "replace", fail)
            with pytest.raises(type(error)):
                model.save(old)
        self.assert_untouched(old)

    def test_a_folder_that_is_not_there_is_named(self, model, tmp_path):
        with pytest.raises(FileNotFoundError, match=r"could not be saved .*folder that exists.*missing/model"):
            model.save(tmp_path / "missing" / "model")
        assert not list(tmp_path.iterdir())

    def test_a_path_that_leads_through_a_file_is_named(self, model, old):
        with pytest.raises(
            NotADirectoryError, match=r"could not be saved \(Not a directory\).*model.safetensors/model"
        ):
            model.save(old / "model")
        self.assert_untouched(old)

    def test_a_folder_is_not_replaced_by_a_model(self, model, tmp_path):
        (tmp_path / "models").mkdir()
        with pytest.raises(IsADirectoryError, match=r"could not be saved .*Name a file in a folder"):
            model.save(tmp_path / "models")
        assert list(tmp_path.iterdir()) == [tmp_path / "models"]

    def test_a_pipe_is_not_replaced_by_a_model(self, model, tmp_path):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(OSError, match=r"could not be saved \(Not a regular file\)"):
            model.save(tmp_path / "pipe")
        assert (tmp_path / "pipe").is_fifo()

    def test_a_model_whose_weights_were_damaged_is_refused(self, model, tmp_path):
        path = model.save(tmp_path / "model")
        written = bytearray(path.read_bytes())
        written[-3] ^= 1
        path.write_bytes(written)
        with pytest.raises(NotAModelError, match="damaged, its checksum is another"):
            tikas.load(path)

    def test_a_model_whose_header_was_damaged_is_refused(self, model, tmp_path):
        path = model.save(tmp_path / "model")
        written = path.read_bytes()
        damaged = written.replace(b'learning_rate\\": 0.005', b'learning_rate\\": 0.004')
        assert damaged != written
        path.write_bytes(damaged)
        with pytest.raises(NotAModelError, match="damaged, its checksum is another"):
            tikas.load(path)

    def test_a_file_from_before_there_were_checksums_is_read(self, model, tmp_path):
        path = model.save(tmp_path / "model")
        written = path.read_bytes()
        path.write_bytes(written.replace(b'"checksum"', b'"nochecks"'))
        assert_array_equal(tikas.load(path).predict(IRIS), model.predict(IRIS))

    def test_a_new_file_has_the_usual_permissions_and_an_old_one_keeps_its_own(self, model, tmp_path):
        plain = tmp_path / "plain"
        plain.touch()
        assert model.save(tmp_path / "new").stat().st_mode == plain.stat().st_mode
        plain.chmod(0o600)
        assert model.save(plain).stat().st_mode & 0o777 == 0o600

    def test_a_link_goes_on_leading_to_the_model(self, model, old, tmp_path):
        link = tmp_path / "latest"
        link.symlink_to(old)
        model.save(link)
        assert link.is_symlink()
        assert_array_equal(tikas.load(old).predict(IRIS), model.predict(IRIS))

    def test_the_longest_of_names_can_be_saved_under(self, model, tmp_path):
        assert model.save(tmp_path / ("m" * 255)).is_file()
