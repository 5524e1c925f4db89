"""Model files: a model is loaded as it was saved, and a file that is damaged or forged raises `ModelFileError`."""

import json
import os
import pickle
import re
import struct

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from safetensors.torch import save as safetensors_bytes
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_iris
from sklearn.preprocessing import scale

import tikas
from tikas import LadderClassifier, LadderRegressor
from tikas.training.checkpoint import ModelFileError, read_tensors, write_tensors

resource = pytest.importorskip("resource", reason="Windows does not tell how much memory a process has used")

IRIS, SPECIES = scale(load_iris().data), load_iris().target
NAMES = load_iris().target_names
DIABETES, PROGRESSION = scale(load_diabetes().data), load_diabetes().target
IMAGES, IMAGE_CLASSES = np.random.default_rng(0).random((20, 3, 9, 7), np.float32), np.arange(20) % 2
QUICK = {"network": (8,), "epochs": 1, "batch_size": 50, "random_state": 0}
MAPS = ("conv 4 3 same", "max 2", 5)
WEIGHT = "members.0.rungs.1.weight"
MAX_KILOBYTES = 100_000
"""By which the memory of the process may grow while a file of a few kilobytes is refused."""


def classifier(**changes):
    return LadderClassifier(**{**QUICK, **changes})


@pytest.fixture(scope="module")
def model():
    return classifier(n_members=2).fit(IRIS, SPECIES)


@pytest.fixture(scope="module")
def path(model, tmp_path_factory):
    return model.save(tmp_path_factory.mktemp("model") / "iris.safetensors")


@pytest.fixture(scope="module")
def parts(path):
    """The tensors and the header of a file."""
    return read_tensors(path)


@pytest.fixture(scope="module")
def image_parts(tmp_path_factory):
    model = classifier(network=MAPS, batch_size=10, preprocess="whiten").fit(IMAGES, IMAGE_CLASSES)
    return read_tensors(model.save(tmp_path_factory.mktemp("images") / "model"))


@pytest.fixture(scope="module")
def regressor_parts(tmp_path_factory):
    model = LadderRegressor(**QUICK).fit(DIABETES, PROGRESSION)
    return read_tensors(model.save(tmp_path_factory.mktemp("regressor") / "model"))


def load_error(path, payload=None):
    """Return the message of the `ModelFileError` that loading raises, without much memory for it."""
    if payload is not None:
        path.write_bytes(payload)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ModelFileError, match=path.name) as caught:
        tikas.load(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MAX_KILOBYTES
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 500 + len(str(path))
    return message


def forged_error(folder, tensors, header):
    return load_error(write_tensors(folder / "forged", tensors, header))


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
            pytest.param(np.array(["ä", '"', "\\"])[SPECIES], id="special characters"),
        ],
    )
    def test_classes_keep_values_and_type(self, y, tmp_path):
        model = classifier().fit(IRIS, y)
        loaded = tikas.load(model.save(tmp_path / "model"))
        assert isinstance(loaded, LadderClassifier)
        assert loaded.classes_.dtype.kind == model.classes_.dtype.kind
        assert_array_equal(loaded.classes_, model.classes_)
        assert_array_equal(loaded.predict(IRIS), model.predict(IRIS))

    @pytest.mark.parametrize(
        ("model", "X", "y"),
        [
            (classifier(n_members=2, precision="exact"), IRIS, SPECIES),
            (classifier(network=()), IRIS, SPECIES),
            (classifier(preprocess="standardize"), IRIS, SPECIES),
            (LadderRegressor(**QUICK, n_members=2), DIABETES, PROGRESSION),
            (classifier(network=MAPS, batch_size=10), IMAGES, IMAGE_CLASSES),
            (classifier(network=MAPS, batch_size=10, preprocess="whiten"), IMAGES, IMAGE_CLASSES),
            (classifier(batch_size=10, preprocess="whiten"), IMAGES, IMAGE_CLASSES),
            *(
                (classifier(network=(6, 5), activation="tanh", costs=(0, 1, 0, 1), denoiser=denoiser), IRIS, SPECIES)
                for denoiser in ("mlp", "no-product", "linear", "additive")
            ),
        ],
    )
    def test_fitted_attributes_predictions_and_weights_are_the_same(self, model, X, y, tmp_path):
        model = clone(model).fit(X, y)
        loaded = tikas.load(str(model.save(str(tmp_path / "model"))))
        assert type(loaded) is type(model)
        assert_array_equal(loaded.transform(X), model.transform(X))
        assert_array_equal(loaded.predict(X), model.predict(X))
        for name in ("recipe_", "seeds_", "history_", "n_iter_", "n_features_in_", "input_shape_", "interrupted_"):
            assert getattr(loaded, name) == getattr(model, name), name
        assert (loaded.input_range_, loaded.training_) == (model.input_range_, model.training_)
        for one, other in zip(loaded.ladders_, model.ladders_, strict=True):
            state = other.state_dict()
            assert all(torch.equal(tensor, state[name]) for name, tensor in one.state_dict().items())
        parameters = loaded.get_params()
        for name in ("network", "noise", "costs", "epochs", "preprocess", "precision", "denoiser"):
            assert parameters[name] == getattr(model.recipe_, name), name
        assert loaded.n_members == model.n_members

    def test_feature_names_are_checked_after_loading(self, tmp_path):
        frame = pd.DataFrame(IRIS, columns=["a", "b", "c", "d"])
        loaded = tikas.load(classifier().fit(frame, SPECIES).save(tmp_path / "model"))
        assert loaded.feature_names_in_.tolist() == ["a", "b", "c", "d"]
        with pytest.raises(ValueError, match="feature names"):
            loaded.predict(frame.rename(columns={"a": "z"}))

    def test_image_layout_is_checked_after_loading(self, tmp_path):
        loaded = tikas.load(classifier(batch_size=10).fit(IMAGES, IMAGE_CLASSES).save(tmp_path / "model"))
        with pytest.raises(ValueError, match=r"\(20, 9, 7, 3\).*\(20, 3, 9, 7\)"):
            loaded.predict(np.moveaxis(IMAGES, 1, -1))

    @pytest.mark.parametrize(
        ("estimator", "X", "y"), [(LadderClassifier, IRIS, SPECIES), (LadderRegressor, DIABETES, PROGRESSION)]
    )
    def test_loaded_model_continues_training_like_the_saved_one(self, estimator, X, y, tmp_path):
        model = estimator(**QUICK).fit(X, y)
        loaded = tikas.load(model.save(tmp_path / "model"))
        for each in (model, loaded):
            each.set_params(warm_start=True, random_state=7).fit(X, y)
        assert [line["epoch"] for line in loaded.history_] == [1, 2]
        assert_array_equal(loaded.predict(X), model.predict(X))
        assert_array_equal(tikas.load(loaded.save(tmp_path / "model")).predict(X), model.predict(X))

    def test_order_of_given_classes_is_kept_by_the_next_fit(self, tmp_path):
        names = np.array(["one", "two", "three"], dtype=object)
        loaded = tikas.load(classifier(classes=names).fit(IRIS, names[SPECIES]).save(tmp_path / "model"))
        assert loaded.set_params(warm_start=True).fit(IRIS, names[SPECIES]).classes_.tolist() == names.tolist()
        assert clone(loaded).fit(IRIS, names[SPECIES]).classes_.tolist() == names.tolist()
        assert tikas.load(classifier().fit(IRIS, SPECIES).save(tmp_path / "model")).classes is None

    def test_header_describes_the_model_in_json(self, parts):
        tensors, header = parts
        assert (header["version"], header["recipe"]["task"], header["classes"]) == (3, "classification", [0, 1, 2])
        assert (header["input_shape"], header["seeds"], header["recipe"]["network"]) == ([4], [0, 1], [8])
        assert header["recipe"]["activation"] == "relu"
        assert header["training"]["versions"]["tikas"] == tikas.__version__
        assert header["training"]["versions"]["torch"] == torch.__version__
        assert all(tensor.dtype in (torch.float32, torch.bool) for tensor in tensors.values())

    def test_unfitted_model_raises_value_error(self, tmp_path):
        with pytest.raises(ValueError, match="not fitted"):
            LadderClassifier().save(tmp_path / "model")


class TestSavedFile:
    def test_failed_save_leaves_an_existing_file(self, model, tmp_path):
        path = tmp_path / "model.safetensors"
        path.write_bytes(b"the old model")
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))  # the system lets no file grow beyond 1000 bytes
        try:
            with pytest.raises(OSError, match=r"File too large.*MB"):
                model.save(path)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [(path.name, b"the old model")]

    @pytest.mark.parametrize(
        ("name", "error"),
        [
            ("missing/model", FileNotFoundError),
            ("file/model", NotADirectoryError),
            ("folder", IsADirectoryError),
            ("pipe", OSError),
        ],
    )
    def test_unusable_path_raises_os_error_that_names_it(self, name, error, model, tmp_path):
        (tmp_path / "file").touch()
        (tmp_path / "folder").mkdir()
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(error, match=name):
            model.save(tmp_path / name)
        assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "folder", "pipe"]
        assert (tmp_path / "pipe").is_fifo()

    def test_permissions_are_the_usual_ones_or_those_of_the_replaced_file(self, model, tmp_path):
        plain = tmp_path / "plain"
        plain.touch()
        assert model.save(tmp_path / "new").stat().st_mode == plain.stat().st_mode
        plain.chmod(0o600)
        assert model.save(plain).stat().st_mode & 0o777 == 0o600

    def test_link_still_leads_to_the_replaced_file(self, model, tmp_path):
        link, target = tmp_path / "latest", tmp_path / "model"
        target.touch()
        link.symlink_to(target)
        model.save(link)
        assert link.is_symlink()
        assert_array_equal(tikas.load(target).predict(IRIS), model.predict(IRIS))

    def test_longest_possible_file_name_works(self, model, tmp_path):
        assert model.save(tmp_path / ("m" * 255)).is_file()


class Malicious:
    """Unpickling it would create a file."""

    def __reduce__(self):
        return os.system, ("touch executed",)


class TestOtherFiles:
    def test_missing_file_and_folder_are_named(self, tmp_path):
        with pytest.raises(FileNotFoundError, match="nowhere"):
            tikas.load(tmp_path / "nowhere")
        with pytest.raises(ModelFileError, match="not a file"):
            tikas.load(tmp_path)

    @pytest.mark.parametrize(
        "payload",
        [
            b"",
            b"sepal,petal\n1,2\n" * 10,
            bytes(1000),
            b"\xff" * 8 + b"{" * 100,
            pickle.dumps(Malicious()),
            safetensors_bytes({"weight": torch.ones(3)}),
            safetensors_bytes({"weight": torch.ones(3)}, {"format": "pt"}),
        ],
        ids=["empty", "text", "zeros", "long header", "pickle", "safetensors", "safetensors with metadata"],
    )
    def test_file_of_another_kind_raises_model_file_error_and_is_not_executed(self, payload, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        load_error(tmp_path / "other", payload)
        assert not (tmp_path / "executed").exists()

    def test_file_of_torch_raises_model_file_error(self, tmp_path):
        torch.save({"weight": torch.ones(3)}, tmp_path / "torch")
        load_error(tmp_path / "torch")


class TestDamagedFiles:
    def test_truncated_file_raises_model_file_error(self, path, tmp_path):
        whole = path.read_bytes()
        (length,) = struct.unpack("<Q", whole[:8])
        for end in {*range(12), *range(0, len(whole), 199), 7 + length, 8 + length, 9 + length, len(whole) - 1}:
            load_error(tmp_path / "model", whole[:end])

    @given(data=st.data())
    @settings(max_examples=150)
    def test_changed_byte_is_noticed_or_changes_nothing(self, data, model, path, tmp_path_factory):
        damaged = bytearray(path.read_bytes())
        position = data.draw(st.integers(0, len(damaged) - 1) | st.integers(0, 2000))  # often in the header
        damaged[position] ^= data.draw(st.integers(1, 255))
        changed = tmp_path_factory.getbasetemp() / "changed"
        changed.write_bytes(damaged)
        try:
            loaded = tikas.load(changed)
        except ModelFileError:
            return
        assert_array_equal(loaded.predict_proba(IRIS), model.predict_proba(IRIS))  # such as another space in JSON

    @pytest.mark.parametrize("position", [-3, -100])
    def test_changed_weight_is_noticed(self, position, path, tmp_path):
        damaged = bytearray(path.read_bytes())
        damaged[position] ^= 1
        assert "checksum" in load_error(tmp_path / "model", bytes(damaged))

    def test_changed_header_is_noticed(self, path, tmp_path):
        whole = path.read_bytes()
        damaged = whole.replace(b'learning_rate\\": 0.005', b'learning_rate\\": 0.004')
        assert damaged != whole
        assert "checksum" in load_error(tmp_path / "model", damaged)

    @given(payload=st.binary(max_size=200))
    @example(payload=struct.pack("<Q", 2) + b"{}")
    @example(payload=struct.pack("<Q", 20) + b'{"__metadata__":null}')
    @settings(max_examples=60)
    def test_random_bytes_raise_model_file_error(self, payload, tmp_path_factory):
        load_error(tmp_path_factory.getbasetemp() / "random", payload)

    @pytest.mark.parametrize("depth", [500, 100_000])
    def test_deeply_nested_json_raises_model_file_error(self, depth, parts, tmp_path):
        tensors, header = parts
        nested = "[" * depth + "]" * depth
        text = json.dumps({**header, "recipe": None}).replace('"recipe": null', f'"recipe": {nested}')
        outer = f'{{"__metadata__": {nested}}}'.encode()
        payloads = [safetensors_bytes(tensors, {"tikas": each, "checksum": ""}) for each in (nested, text)]
        for payload in [*payloads, struct.pack("<Q", len(outer)) + outer]:
            load_error(tmp_path / "nested", payload)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats() | st.text(max_size=5),
    lambda values: st.lists(values, max_size=4) | st.dictionaries(st.text(max_size=5), values, max_size=3),
    max_leaves=6,
)
HEADER_FIELDS = ["version", "recipe", "input_shape", "input_range", "feature_names", "seeds", "history"]
HEADER_FIELDS += ["interrupted", "classes", "class_kind", "training"]
RECIPE_FIELDS = ["task", "preprocess", "network", "activation", "noise", "costs", "denoiser", "epochs", "batch_size"]


class TestForgedFiles:
    """Files with a correct checksum whose header or tensors were changed."""

    @given(
        field=st.sampled_from(HEADER_FIELDS), of_recipe=st.sampled_from(RECIPE_FIELDS), value=JSON, inner=st.booleans()
    )
    @settings(max_examples=200)
    def test_any_value_in_the_header_loads_or_raises_model_file_error(
        self, field, of_recipe, value, inner, parts, tmp_path_factory
    ):
        tensors, header = parts
        forged = {**header, "recipe": {**header["recipe"], of_recipe: value}} if inner else {**header, field: value}
        path = write_tensors(tmp_path_factory.getbasetemp() / "any", tensors, forged)
        try:
            loaded = tikas.load(path)
        except ModelFileError:
            return
        assert loaded.predict(IRIS).shape == (150,)  # the value was another valid one, such as other seeds

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"version": 2}, "version 2, expected 3"),
            ({"version": None}, "version None"),
            ({"input_shape": [5]}, r"rungs\.0\.denoiser\.a.*\[10, 4\].*\[10, 5\]"),
            ({"input_shape": [10**9]}, r"rungs\.0"),
            ({"input_shape": [10**30]}, ""),
            ({"input_shape": [4, 4]}, r"rungs\.0"),
            ({"input_shape": [True]}, "input_shape"),
            ({"input_shape": [-4]}, "input_shape"),
            ({"input_shape": [1] * 1_000_000}, r"rungs\.0"),
            ({"input_shape": None}, "NoneType"),
            ({"input_range": [0.0]}, "not enough values"),
            ({"classes": [0, 1]}, r"\[3\].*\[2\]"),
            ({"classes": [0, 1, 1]}, "kind 'i'"),
            ({"classes": [0, 1, 2.5]}, "kind 'i'"),
            ({"classes": [0, 1, [2]]}, "sequence"),
            ({"classes": "012"}, "classes"),
            ({"class_kind": "m"}, "'m'"),
            ({"class_kind": "U"}, "kind 'U'"),
            ({"classes": ["a", 1, 2], "class_kind": "O"}, "'<' not supported"),
            ({"feature_names": ["a", "b"]}, "feature names"),
            ({"feature_names": [1, 2, 3, 4]}, "feature names"),
            ({"seeds": [0]}, "none of the 1 members"),
            ({"seeds": [0] * 3}, r"Missing.*rungs\.0"),
            ({"seeds": []}, "none of the 0 members"),
            ({"seeds": None}, "NoneType"),
            ({"history": [5]}, "int"),
            ({"history": [{}]}, "'member'"),
            ({"training": {}}, "'class_counts'"),
            ({"training": []}, ""),
            ({"recipe": []}, ""),
            ({"recipe": {"hidden": 3}}, "hidden"),
        ],
    )
    def test_wrong_header_raises_model_file_error(self, change, message, parts, tmp_path):
        tensors, header = parts
        assert re.search(message, forged_error(tmp_path, tensors, {**header, **change}))

    @pytest.mark.parametrize(
        "name", ["version", "recipe", "input_shape", "seeds", "feature_names", "history", "training", "classes"]
    )
    def test_missing_header_field_is_named(self, name, parts, tmp_path):
        tensors, header = parts
        rest = {key: value for key, value in header.items() if key != name}
        assert f"lacks '{name}'" in forged_error(tmp_path, tensors, rest)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"network": [9]}, r"rungs\.1.*\[8\].*\[9\]"),
            ({"network": [8, 8]}, r"Missing.*rungs\.3"),
            ({"network": [1] * 1_000_000}, "1000000 rungs"),
            ({"network": [10**9]}, r"rungs\.1"),
            ({"network": [10**30]}, ""),
            ({"network": ["import os"]}, "import os"),
            ({"task": "regression"}, "lacks 'target_mean'"),
            ({"activation": "__import__('os')"}, "activation"),
            ({"denoiser": {}}, "denoiser"),
            ({"denoiser": "mlp"}, r"Missing.*denoiser\.b"),
            ({"costs": [0.0]}, r"Unexpected.*denoiser\.a"),
            ({"noise": [float("nan")]}, "noise"),
            ({"learning_rate": float("nan")}, "learning_rate"),
            ({"epochs": 1.5}, "epochs"),
            ({"calibration": None}, "calibration"),
            ({"preprocess": "standardize"}, "Standardization"),
        ],
    )
    def test_wrong_recipe_raises_model_file_error(self, change, message, parts, tmp_path):
        tensors, header = parts
        forged = {**header, "recipe": {**header["recipe"], **change}}
        assert re.search(message, forged_error(tmp_path, tensors, forged))

    @pytest.mark.parametrize(
        ("changed", "removed", "message"),
        [
            ({}, "members.1.rungs.1.weight", r"Missing.*rungs\.1\.weight"),
            ({"members.0.more": torch.ones(2)}, "", "Unexpected.*more"),
            ({"more": torch.ones(2)}, "", "1 tensors belong to none of the 2 members"),
            ({WEIGHT: torch.ones(4, 8)}, "", r"rungs\.1\.weight.*\[4, 8\].*\[8, 4\]"),
            ({WEIGHT: torch.ones(8, 4).double()}, "", r"rungs\.1\.weight.*not finite.*float32"),
            ({WEIGHT: torch.ones(8, 4).bool()}, "", r"rungs\.1\.weight"),
            ({WEIGHT: torch.full((8, 4), torch.nan)}, "", r"rungs\.1\.weight.*not finite"),
            ({"members.0.calibrated": torch.tensor(False)}, "", "without the statistics"),
        ],
    )
    def test_wrong_tensors_raise_model_file_error(self, changed, removed, message, parts, tmp_path):
        tensors, header = parts
        forged = {name: tensor for name, tensor in {**tensors, **changed}.items() if name != removed}
        assert re.search(message, forged_error(tmp_path, forged, header))

    @pytest.mark.parametrize("change", [{"target_mean": float("nan")}, {"target_deviation": 0}, {"target_mean": "x"}])
    def test_wrong_scale_of_targets_raises_model_file_error(self, change, regressor_parts, tmp_path):
        tensors, header = regressor_parts
        forged_error(tmp_path, tensors, {**header, **change})

    @pytest.mark.parametrize(
        ("shape", "network", "message"),
        [
            ([3, 7, 9], MAPS, "preprocessing"),
            ([10**9, 9, 7], MAPS, "preprocessing"),
            ([189], MAPS, "input_shape"),
            ([9, 7, 3, 1], MAPS, "input_shape"),
            ([3, 9.0, 7], MAPS, "input_shape"),
            (["3", "9", "7"], MAPS, "input_shape"),
            ([3, 9, 7], ("conv 4 3", "max 2", 5), ""),
            ([3, 9, 7], ("conv 4 99999999 same", "max 2", 5), ""),
            ([3, 9, 7], ("conv 99999999 3 same", "max 2", 5), ""),
            ([3, 9, 7], ("conv_large",), "conv_large"),
            ([3, 9, 7], ("conv_pool_cnn_c",), "conv_pool_cnn_c"),
        ],
    )
    def test_images_or_maps_that_do_not_fit_raise_model_file_error(
        self, shape, network, message, image_parts, tmp_path
    ):
        tensors, header = image_parts
        forged = {**header, "input_shape": shape, "recipe": {**header["recipe"], "network": network}}
        assert re.search(message, forged_error(tmp_path, tensors, forged))

    def test_whitening_of_other_images_raises_model_file_error(self, image_parts, tmp_path):
        tensors, header = image_parts
        other = {"preparation.mean": torch.zeros(3, 3, 3), "preparation.matrix": torch.eye(27)}
        assert "preprocessing" in forged_error(tmp_path, {**tensors, **other}, header)
        rest = {name: tensor for name, tensor in tensors.items() if not name.startswith("preparation")}
        assert "Whitening" in forged_error(tmp_path, rest, header)


def test_a_safetensors_file_of_another_program_is_not_a_tikas_file(tmp_path) -> None:
    path = tmp_path / "other.safetensors"
    path.write_bytes(safetensors_bytes({"weight": torch.zeros(2)}))
    with pytest.raises(ModelFileError, match=r"other\.safetensors is not a tikas file"):
        tikas.load(path)
