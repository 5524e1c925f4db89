"""CIFAR-10 is read from either version and from archives, and no batch gets anything executed."""

import functools
import hashlib
import http.server
import io
import os
import pickle
import struct
import tarfile
import threading
import tracemalloc
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pooch
import pytest

from tikas.data import cifar10, sources
from tikas.data.cifar10 import BATCHES
from tikas.data.sources import load

N = 4
RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (6, N, 3072)).astype(np.uint8)
LABELS = RNG.integers(0, 10, (6, N)).astype(np.uint8)
STRIPS = Path(__file__).resolve().parents[2] / "shared" / "data" / "cifar10"


def short_string(text):
    return b"U" + bytes([len(text)]) + text


def pickled_by_python_2(pixels, labels):
    """What Python 2 wrote for {"data": pixels, "labels": labels, "batch_label": ...}, in opcodes of protocol 2."""
    values = pixels.tobytes()
    dtype = (
        b"cnumpy\ndtype\n"
        + (short_string(b"u1") + b"K\0K\x01\x87R(K\x03")
        + (short_string(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb")
    )
    shape = b"M" + struct.pack("<H", len(pixels)) + b"M\0\x0c\x86"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\x85U\x01b\x87R" + (
        b"(K\x01" + shape + dtype + b"\x89T" + struct.pack("<I", len(values)) + values + b"tb"
    )
    label_list = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    entries = short_string(b"data") + array + short_string(b"labels") + label_list
    return b"\x80\x02}(" + short_string(b"batch_label") + short_string(b"testing batch 1 of 1") + entries + b"u."


def pickled_by_python_3(pixels, labels):
    return pickle.dumps({"data": pixels, "labels": labels.tolist()}, protocol=2)


def binary():
    batches = (np.hstack([y[:, None], x]).tobytes() for x, y in zip(PIXELS, LABELS, strict=True))
    return dict(zip((f"{batch}.bin" for batch in BATCHES), batches, strict=True))


def python(pickled=pickled_by_python_2):
    return dict(zip(BATCHES, map(pickled, PIXELS, LABELS), strict=True))


def archive(files, folder):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, content in {"readme.html": b"<html>", **files}.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def place(folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)


@pytest.fixture(autouse=True)
def batches_of_four(monkeypatch):
    monkeypatch.setattr(cifar10, "BATCH_IMAGES", N)
    monkeypatch.delenv("TIKAS_DATA", raising=False)


def assert_is_what_was_written(data):
    assert data.train_x.shape == (5 * N, 3, 32, 32)
    assert data.test_x.shape == (N, 3, 32, 32)
    assert data.train_x.dtype == np.float32
    assert data.train_y.dtype == np.int64
    written = PIXELS.reshape(6 * N, 3, 32, 32)
    np.testing.assert_array_equal(np.concatenate([data.train_x, data.test_x]), written / np.float32(255))
    np.testing.assert_array_equal(np.concatenate([data.train_y, data.test_y]), LABELS.ravel())
    assert data.classes[0] == "airplane"
    assert data.classes[9] == "truck"


@pytest.mark.parametrize("subfolder", [".", "cifar10", "cifar-10-batches-bin", "cifar10/cifar-10-batches-py"])
@pytest.mark.parametrize(
    "files",
    [
        pytest.param(binary(), id="binary"),
        pytest.param(python(), id="python-2"),
        pytest.param(python(pickled_by_python_3), id="python-3"),
        pytest.param({"cifar-10-binary.tar.gz": archive(binary(), "cifar-10-batches-bin")}, id="binary-archive"),
        pytest.param({"cifar-10-python.tar.gz": archive(python(), "cifar-10-batches-py")}, id="python-archive"),
    ],
)
def test_either_version_is_read_unpacked_or_not(tmp_path, files, subfolder):
    place(tmp_path / subfolder, files)
    assert_is_what_was_written(load("cifar10", tmp_path))


def test_what_python_2_wrote_is_what_numpy_reads():
    batch = pickle.loads(pickled_by_python_2(PIXELS[0], LABELS[0]), encoding="bytes")
    np.testing.assert_array_equal(batch[b"data"], PIXELS[0])
    assert batch[b"labels"] == LABELS[0].tolist()


class Creates:
    """A pickle of this creates a folder when it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("where", ["data", "labels", "elsewhere", "altogether"])
def test_a_hostile_pickle_is_an_error_and_nothing_in_it_is_executed(tmp_path, where, protocol):
    trace = tmp_path / "trace"
    batch = {"data": PIXELS[0], "labels": LABELS[0].tolist(), where: Creates(trace)}
    hostile = pickle.dumps(Creates(trace) if where == "altogether" else batch, protocol=protocol)
    pickle.loads(hostile)
    assert trace.exists(), "it would do harm"
    trace.rmdir()
    place(tmp_path, {**python(), "data_batch_3": hostile})
    with pytest.raises(ValueError, match=r"data_batch_3 is truncated, or no batch.*cifar-10-binary.tar.gz"):
        load("cifar10", tmp_path)
    assert not trace.exists()


@pytest.mark.parametrize(
    "hostile",
    [
        b"cbuiltins\neval\n(S'1/0'\ntR.",
        b"cnumpy\nload\n(S'x'\ntR.",
        b"c_codecs\nencode\n(Vtext\nS'zip'\ntR.",
        b"cnumpy\ndtype\n}S'as_bytes'\nNsb.",
        b"(cnumpy\nndarray\no.",
        b"\x82\x01.",
        b"Psomewhere\n.",
        b"}.",
        b"",
        b"\x80\x02}r\xff\xff\xff\xff.",
        b"}p4000000000\n.",
        b"\x80\x02}(" + short_string(b"data") + b"cnumpy\ndtype\n)R" + short_string(b"labels") + b"]u.",
        pickle.dumps({"data": PIXELS[0].astype(float), "labels": LABELS[0].tolist()}, protocol=2),
        pickle.dumps({"data": np.asfortranarray(PIXELS[0]), "labels": LABELS[0].tolist()}, protocol=2),
        pickle.dumps({"data": PIXELS[0], "labels": [0.5] * N}, protocol=2),
        pickle.dumps({"data": PIXELS[0], "labels": [10**30] * N}, protocol=2),
        pickled_by_python_2(PIXELS[0], LABELS[0])[:-5000],
    ],
)
def test_whatever_is_no_batch_is_refused(tmp_path, hostile):
    place(tmp_path, {**python(), "test_batch": hostile})
    with pytest.raises(ValueError, match=r"test_batch is truncated, or no batch of CIFAR-10's Python version"):
        load("cifar10", tmp_path)


def test_a_few_bytes_cannot_ask_for_gigabytes():
    """The unpickler makes room for every number up to the one that something is to be remembered under."""
    tracemalloc.start()
    with pytest.raises(ValueError, match="remembers something under the number 50000000"):
        cifar10._read_python(b"\x80\x02}r" + struct.pack("<I", 50_000_000) + b".", "a batch")
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("data_batch_2.bin", binary()["data_batch_2.bin"][:-1], "has 12291 bytes, but 4 images .* take 12292"),
        ("data_batch_2.bin", binary()["data_batch_2.bin"][:-3073], "has 9219 bytes"),
        ("data_batch_2.bin", b"", "has 0 bytes"),
        ("test_batch.bin", b"\x0a" + binary()["test_batch.bin"][1:], "holds the label 10; expected 0 to 9"),
        ("data_batch_1", pickled_by_python_2(PIXELS[0][:3], LABELS[0][:3]), "has 9216 pixels and 3 labels"),
        ("data_batch_1", pickled_by_python_2(PIXELS[0], LABELS[0][:3]), "has 12288 pixels and 3 labels"),
        ("cifar-10-binary.tar.gz", archive(binary(), "x")[:-3000], r"truncated or damaged \("),
        ("cifar-10-binary.tar.gz", b"no archive", r"truncated or damaged \("),
        ("cifar-10-binary.tar.gz", archive({}, "x"), "holds no data_batch_1, data_batch_2"),
    ],
)
def test_a_truncated_or_foreign_file_is_named(tmp_path, file, content, message):
    siblings = {} if file.endswith("gz") else binary() if file.endswith("bin") else python()
    place(tmp_path, {**siblings, file: content})
    with pytest.raises(ValueError, match=rf"{file}.*{message}.*Get a fresh copy"):
        load("cifar10", tmp_path)


def test_a_file_far_too_large_is_not_read(tmp_path, monkeypatch):
    place(tmp_path, binary())
    monkeypatch.setattr(cifar10, "MOST_BATCH_BYTES", 10_000)
    with pytest.raises(ValueError, match=r"data_batch_1.bin has 12292 bytes; no batch of CIFAR-10 has as many"):
        load("cifar10", tmp_path)


def test_missing_batches_are_named_with_where_to_put_them(tmp_path):
    files = binary()
    del files["data_batch_4.bin"]
    place(tmp_path / "cifar10", files)
    with pytest.raises(FileNotFoundError) as caught:
        load("cifar10", tmp_path)
    message = str(caught.value)
    missing = f"cifar10 is incomplete: data_batch_4.bin not found in {tmp_path} or {tmp_path / 'cifar10'}."
    assert message.startswith(missing)
    assert all(word in message for word in ("cifar-10-binary.tar.gz", "test_batch.bin", "--data-dir", "TIKAS_DATA"))


def test_without_a_network_the_archive_and_the_folder_option_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(pooch, "os_cache", lambda project: tmp_path / project)
    monkeypatch.setattr(pooch, "retrieve", Mock(side_effect=ConnectionError("Network is unreachable")))
    with pytest.raises(FileNotFoundError, match=r"Network is unreachable.*cifar-10-binary\.tar\.gz.*TIKAS_DATA"):
        load("cifar10")


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def test_the_archive_is_downloaded_once_and_kept(tmp_path, monkeypatch):
    packed = archive(binary(), "cifar-10-batches-bin")
    place(tmp_path / "web", {"cifar-10-binary.tar.gz": packed})
    monkeypatch.setattr(pooch, "os_cache", lambda project: tmp_path / "cache" / project)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    handler = functools.partial(QuietHandler, directory=tmp_path / "web")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,)).start()
        source = sources._SOURCES["cifar10"]
        published = replace(
            source.published,
            mirrors=(f"http://127.0.0.1:{server.server_address[1]}/",),
            hashes={"cifar-10-binary.tar.gz": "sha256:" + hashlib.sha256(packed).hexdigest()},
        )
        monkeypatch.setitem(sources._SOURCES, "cifar10", replace(source, published=published))
        assert_is_what_was_written(load("cifar10"))
        server.shutdown()
    assert_is_what_was_written(load("cifar10"))
    assert [path.name for path in (tmp_path / "cache/tikas/cifar10").iterdir()] == ["cifar-10-binary.tar.gz"]


def test_the_official_images_are_these(tmp_path, monkeypatch):
    """The first 500 images of every batch, from the strips that the project's data folder holds."""
    image = pytest.importorskip("PIL.Image", reason="needs Pillow")
    if not STRIPS.is_dir():
        pytest.skip(f"the images are not ours to put into git, and there is no {STRIPS}")
    monkeypatch.setattr(cifar10, "BATCH_IMAGES", 500)
    labels = np.fromfile(STRIPS / "labels.u8", np.uint8).reshape(6, 10_000)[:, :500]
    for batch, y in zip(BATCHES, labels, strict=True):
        packed = (STRIPS / f"{batch}.webps").read_bytes()
        (length,) = struct.unpack_from("<I", packed)
        strip = np.asarray(image.open(io.BytesIO(packed[4 : 4 + length])).convert("RGB"))
        pixels = strip.reshape(500, 32, 32, 3).transpose(0, 3, 1, 2).reshape(500, 3072)
        (tmp_path / f"{batch}.bin").write_bytes(np.hstack([y[:, None], pixels]).tobytes())
    data = load("cifar10", tmp_path)
    assert [data.classes[y] for y in data.train_y[:5]] == ["frog", "truck", "truck", "deer", "automobile"]
    assert [data.classes[y] for y in data.test_y[:4]] == ["cat", "ship", "ship", "airplane"]
    assert (data.train_x[0, :, 0, 0] * 255).round().tolist() == [59, 62, 63]
    assert 0.45 < data.train_x.mean() < 0.5
