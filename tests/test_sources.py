"""Named data sets are the ones everybody compares on; files that are not are refused by name."""

import functools
import gzip
import hashlib
import http.server
import os
import struct
import threading
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pooch
import pytest

from tikas.data import sources
from tikas.data.mnist import FILES
from tikas.data.preprocess import ScaleWarning, check_scale
from tikas.data.sources import load

TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS = FILES


def idx(values):
    values = np.asarray(values, dtype=np.uint8)
    return bytes((0, 0, 8, values.ndim)) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


def tiny_files():
    rng = np.random.default_rng(0)
    return {
        TRAIN_IMAGES: idx(rng.integers(0, 256, (12, 28, 28))),
        TRAIN_LABELS: idx(np.arange(12) % 10),
        TEST_IMAGES: idx(rng.integers(0, 256, (3, 28, 28))),
        TEST_LABELS: idx([7, 8, 9]),
    }


TINY = tiny_files()


def place(folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture(autouse=True)
def no_data_named_by_the_environment(monkeypatch):
    monkeypatch.delenv("TIKAS_DATA", raising=False)


def mnist_folder():
    beside = Path(__file__).resolve().parents[2] / "shared" / "data" / "mnist"
    return Path(os.environ.get("TIKAS_DATA") or beside)


MNIST_FOLDER = mnist_folder()


@pytest.fixture(scope="module")
def mnist():
    if not MNIST_FOLDER.is_dir():
        pytest.skip(f"the images are not ours to put into git, and there is no {MNIST_FOLDER}: name one in TIKAS_DATA")
    return load("mnist", MNIST_FOLDER)


def test_mnist_is_60000_training_and_10000_test_images(mnist):
    assert mnist.train_x.shape == (60_000, 1, 28, 28)
    assert mnist.test_x.shape == (10_000, 1, 28, 28)
    assert mnist.train_x.dtype == np.float32
    assert mnist.train_y.dtype == np.int64
    assert mnist.train_x.min() == 0
    assert mnist.train_x.max() == 1
    assert mnist.train_x.mean(dtype=np.float64) == pytest.approx(0.1306604762738429)
    assert np.bincount(mnist.train_y).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert mnist.test_y[:5].tolist() == [7, 2, 1, 0, 4]
    assert mnist.classes == tuple("0123456789")


def test_mnist_is_of_the_size_that_a_ladder_expects(mnist):
    check_scale(mnist.train_x)
    with pytest.warns(ScaleWarning, match=r"run from 0 to 255.*Divide them by 255"):
        check_scale(mnist.train_x[:1000] * 255)


def test_digits_are_split_the_same_way_every_time():
    digits = load("digits")
    assert digits.train_x.shape == (1297, 1, 8, 8)
    assert digits.test_x.shape == (500, 1, 8, 8)
    assert digits.train_x.dtype == np.float32
    assert digits.train_y.dtype == np.int64
    assert digits.train_x.max() == 1
    assert digits.test_y[:12].tolist() == [4, 8, 8, 3, 9, 0, 6, 3, 9, 8, 4, 5]
    assert np.ptp(np.bincount(digits.test_y)) <= 3
    np.testing.assert_array_equal(digits.train_x, load("digits").train_x)


def test_an_unknown_name_gets_the_names_and_a_suggestion():
    with pytest.raises(ValueError, match=r"'MNISTT'.*digits, mnist, fashion-mnist, cifar10; did you mean 'mnist'"):
        load("MNISTT")
    with pytest.raises(ValueError, match=r"choose from digits, mnist, fashion-mnist, cifar10$"):
        load("wikipedia")


@pytest.mark.parametrize("subfolder", [".", "fashion-mnist"])
@pytest.mark.parametrize("zipped", [True, False])
def test_files_are_found_in_the_folder_or_the_one_of_its_name_gzipped_or_not(tmp_path, subfolder, zipped):
    files = dict(TINY)
    if zipped:
        files = {f"{name}.gz": gzip.compress(content) for name, content in files.items()}
    place(tmp_path / subfolder, files)
    data = load("fashion-mnist", tmp_path)
    assert data.train_x.shape == (12, 1, 28, 28)
    assert data.train_x.max() <= 1
    assert data.test_y.tolist() == [7, 8, 9]
    assert data.classes[9] == "Ankle boot"


def test_the_environment_names_the_folder_unless_the_caller_does(tmp_path, monkeypatch):
    place(tmp_path / "a", TINY)
    monkeypatch.setenv("TIKAS_DATA", str(tmp_path / "a"))
    assert len(load("mnist").train_x) == 12
    with pytest.raises(FileNotFoundError, match=r"nowhere is not a folder.*--data-dir.*TIKAS_DATA"):
        load("mnist", tmp_path / "nowhere")


def test_missing_files_are_named_with_where_to_put_them(tmp_path):
    files = dict(TINY)
    del files[TEST_LABELS]
    place(tmp_path, files)
    with pytest.raises(FileNotFoundError) as caught:
        load("mnist", tmp_path)
    message = str(caught.value)
    assert message.startswith(f"mnist is incomplete: {TEST_LABELS} not found in {tmp_path} or {tmp_path / 'mnist'}.")
    assert f"{TRAIN_IMAGES}.gz" in message
    assert "--data-dir" in message
    assert "TIKAS_DATA" in message


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (TRAIN_IMAGES, TINY[TRAIN_IMAGES][:-1], "announces 12 items, which take 9424 bytes, but has 9423 bytes"),
        (TRAIN_IMAGES, TINY[TRAIN_IMAGES] + b"\0", "but has 9425 bytes"),
        (TRAIN_IMAGES, TINY[TRAIN_IMAGES][:10], "truncated: it ends within its header"),
        (TRAIN_IMAGES, gzip.compress(TINY[TRAIN_IMAGES])[:-20], r"truncated or damaged \(Compressed file ended"),
        (TRAIN_IMAGES, b"\x1f\x8b and then nonsense", "truncated or damaged"),
        (TEST_IMAGES, b"\x89PNG\r\n\x1a\n", "it begins with 89504e47, expected 00000803"),
        (TEST_IMAGES, TINY[TEST_LABELS], "in 3 dimensions: it begins with 00000801"),
        (TEST_IMAGES, b"", "it begins with nothing"),
        (TEST_IMAGES, idx(np.zeros((3, 32, 32))), r"images of \[32, 32\] pixels; expected \[28, 28\]"),
        (TEST_LABELS, TINY[TEST_IMAGES], "in 1 dimension: it begins with 00000803"),
        (TEST_LABELS, idx([1, 2, 10]), "holds the label 10; expected 0 to 9"),
        (TEST_LABELS, idx([1, 2, 3, 4]), "holds 4 labels"),
        (TEST_LABELS, idx([]), "announces 0 items"),
    ],
)
def test_a_truncated_or_foreign_file_is_named(tmp_path, file, content, message):
    place(tmp_path, TINY | {file: content})
    with pytest.raises(ValueError, match=rf"{file}.*{message}"):
        load("mnist", tmp_path)


def test_one_data_set_is_not_taken_for_the_other(tmp_path):
    files = dict(TINY)
    files[TRAIN_LABELS] = idx([5, 0, 4, 1, 9, 2, 1, 3, 1, 4, 3, 5])
    place(tmp_path, files)
    assert len(load("mnist", tmp_path).train_x) == 12
    with pytest.raises(ValueError, match=r"train-labels-idx1-ubyte belongs to mnist, not to fashion-mnist"):
        load("fashion-mnist", tmp_path)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(pooch, "os_cache", lambda project: tmp_path / "cache" / project)
    return tmp_path / "cache" / "tikas" / "mnist"


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    """A server on this machine with the tiny files, standing in for the second mirror; the first has nothing."""
    files = {f"{name}.gz": gzip.compress(content) for name, content in TINY.items()}
    place(tmp_path / "web" / "second", files)
    handler = functools.partial(QuietHandler, directory=tmp_path / "web")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,)).start()
        root = f"http://127.0.0.1:{server.server_address[1]}"
        source = sources._SOURCES["mnist"]
        published = replace(
            source.published,
            mirrors=(f"{root}/first/", f"{root}/second/"),
            hashes={name: "sha256:" + hashlib.sha256(content).hexdigest() for name, content in files.items()},
        )
        monkeypatch.setitem(sources._SOURCES, "mnist", replace(source, published=published))
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield tmp_path / "web" / "second"
        server.shutdown()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def test_files_are_downloaded_once_from_the_mirror_that_has_them(mirror, cache, capfd):
    first = load("mnist")
    assert len(first.train_x) == 12
    assert sorted(path.name for path in cache.iterdir()) == sorted(f"{file}.gz" for file in FILES)
    for path in mirror.iterdir():
        path.unlink()
    np.testing.assert_array_equal(load("mnist").train_x, first.train_x)
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("mirror")
def test_the_download_is_drawn_on_a_terminal(cache, capfd, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes the stream for a terminal
    load("mnist")
    assert cache.is_dir()
    assert f"{TRAIN_IMAGES}.gz" in capfd.readouterr().err


def test_a_download_with_another_hash_is_not_kept(mirror, cache):
    (mirror / f"{TRAIN_LABELS}.gz").write_bytes(b"something else")
    with pytest.raises(FileNotFoundError, match=r"could not be downloaded.*404.*SHA256 hash of downloaded file"):
        load("mnist")
    assert not (cache / f"{TRAIN_LABELS}.gz").exists()


def test_without_a_network_the_files_and_the_folder_option_are_named(cache, monkeypatch):
    retrieve = Mock(side_effect=ConnectionError("Network is unreachable"))
    monkeypatch.setattr(pooch, "retrieve", retrieve)
    with pytest.raises(FileNotFoundError) as caught:
        load("fashion-mnist")
    assert len({call.args[0] for call in retrieve.call_args_list}) == 2, "both mirrors are asked"
    message = str(caught.value)
    assert "Network is unreachable" in message
    assert all(f"{file}.gz" in message for file in FILES)
    assert "--data-dir" in message
    assert "TIKAS_DATA" in message
    assert not cache.exists()


def test_the_logger_of_pooch_is_left_as_it_was(cache, monkeypatch):
    monkeypatch.setattr(pooch, "retrieve", Mock(side_effect=ConnectionError("Network is unreachable")))
    level = pooch.get_logger().level
    with pytest.raises(FileNotFoundError):
        load("mnist")
    assert pooch.get_logger().level == level
    assert not cache.exists()
