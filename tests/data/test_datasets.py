"""Data sets by name: which rows they have, where their files are found, and which files are rejected."""

import functools
import gzip
import hashlib
import http.server
import io
import os
import struct
import tarfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pooch
import pytest

from tikas.data import datasets
from tikas.data.datasets import (
    CIFAR10_ARCHIVE,
    CIFAR10_BATCHES,
    DATASETS,
    MNIST_FILES,
    SOURCES,
    Dataset,
    kind_of,
    load_dataset,
)
from tikas.data.transforms import ScaleWarning, check_scale

SHARED_DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS = MNIST_FILES
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _no_data_folder_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIKAS_DATA", raising=False)


def describe_bytes(value: object) -> str | None:
    """Name a case of a test, without the bytes of an archive: they contain the time."""
    return f"{len(value)} bytes" if isinstance(value, bytes) else None


def write_files(folder: Path, files: Mapping[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


# What a name stands for.


def test_labeled_rows_and_number_of_outputs_follow_from_targets_and_classes() -> None:
    rows = np.zeros((3, 2), np.float32)
    codes = Dataset(rows, np.array([1, -1, 0]), classes=np.array(["a", "b"]))
    values = Dataset(rows, np.array([-1, np.nan, 0]))
    assert (codes.labeled.tolist(), codes.n_outputs, len(codes)) == ([True, False, True], 2, 3)
    assert (values.labeled.tolist(), values.n_outputs) == ([True, False, True], 1)


def test_data_is_the_name_of_a_data_set_or_the_path_of_a_folder_or_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("photos", "photos.v2", "mnist"):
        (tmp_path / folder).mkdir()
    (tmp_path / "rows").touch()
    for name in DATASETS:
        assert kind_of(name) == "data set"
    assert [kind_of(name) for name in ("photos", "photos.v2", "./mnist", "rows")] == ["folder"] * 3 + ["table"]


@pytest.mark.parametrize(
    ("given", "proposed"),
    [
        ("minst", "mnist?"),
        ("Digits", "digits?"),
        ("flowers", "flowers.csv?"),
        ("FLOWER.CSV", "flowers.csv?"),
        ("sub/phots", "sub/photos?"),
        ("mine", None),
        ("", None),
        ("nowhere/at/all", None),
    ],
)
def test_a_misspelled_name_or_path_raises_an_error_with_similar_ones(
    given: str, proposed: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flowers.csv").touch()
    (tmp_path / "sub" / "photos").mkdir(parents=True)
    with pytest.raises(FileNotFoundError) as caught:
        kind_of(given)
    assert repr(given) in str(caught.value)
    assert str(caught.value).partition("Did you mean ")[2] == (proposed or "")


def test_an_unknown_data_set_raises_an_error_with_the_names() -> None:
    with pytest.raises(ValueError, match=r"'MNISTT'.*digits, mnist, fashion-mnist, cifar10"):
        load_dataset("MNISTT")


# Digits and MNIST.


def test_digits_are_always_split_in_the_same_way() -> None:
    train, test = load_dataset("digits")
    assert (train.rows.shape, test.rows.shape) == ((1297, 1, 8, 8), (500, 1, 8, 8))
    assert (train.rows.dtype, train.targets.dtype, train.rows.max()) == (np.float32, np.int64, 1)
    assert test.targets[:12].tolist() == [4, 8, 8, 3, 9, 0, 6, 3, 9, 8, 4, 5]
    assert np.ptp(np.bincount(test.targets)) <= 3
    np.testing.assert_array_equal(train.rows, load_dataset("digits")[0].rows)


def test_mnist_has_60000_training_and_10000_test_images() -> None:
    folder = Path(os.environ.get("TIKAS_DATA") or SHARED_DATA / "mnist")
    if not folder.is_dir():
        pytest.skip(f"MNIST is not part of the repository, and {folder} does not exist: set TIKAS_DATA")
    train, test = load_dataset("mnist", folder)
    assert (train.rows.shape, test.rows.shape) == ((60_000, 1, 28, 28), (10_000, 1, 28, 28))
    assert (train.rows.dtype, train.targets.dtype) == (np.float32, np.int64)
    assert (train.rows.min(), train.rows.max()) == (0, 1)
    assert train.rows.mean(dtype=np.float64) == pytest.approx(0.1306604762738429)
    assert np.bincount(train.targets).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert test.targets[:5].tolist() == [7, 2, 1, 0, 4]
    assert train.classes.tolist() == list("0123456789")
    check_scale(train.rows[:5000])
    with pytest.warns(ScaleWarning, match="from 0 to 255.* by 255"):
        check_scale(train.rows[:1000] * 255)


def idx(values: object) -> bytes:
    """Return the content of an IDX file of bytes."""
    array = np.asarray(values, dtype=np.uint8)
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


SMALL_MNIST = {
    TRAIN_IMAGES: idx(RNG.integers(0, 256, (12, 28, 28))),
    TRAIN_LABELS: idx(np.arange(12) % 10),
    TEST_IMAGES: idx(RNG.integers(0, 256, (3, 28, 28))),
    TEST_LABELS: idx([7, 8, 9]),
}
ZIPPED_MNIST = {f"{name}.gz": gzip.compress(content) for name, content in SMALL_MNIST.items()}


@pytest.mark.parametrize("subfolder", [".", "fashion-mnist"])
@pytest.mark.parametrize("files", [SMALL_MNIST, ZIPPED_MNIST], ids=["plain", "zipped"])
def test_files_are_found_in_the_folder_or_in_the_one_of_the_data_set(
    files: Mapping[str, bytes], subfolder: str, tmp_path: Path
) -> None:
    write_files(tmp_path / subfolder, files)
    train, test = load_dataset("fashion-mnist", tmp_path)
    images = np.frombuffer(SMALL_MNIST[TRAIN_IMAGES], np.uint8, offset=16).reshape(12, 1, 28, 28)
    np.testing.assert_array_equal(train.rows, images / np.float32(255))
    assert (train.targets.tolist(), test.targets.tolist()) == ([*range(10), 0, 1], [7, 8, 9])
    assert (str(train.classes[9]), str(test.classes[0])) == ("Ankle boot", "T-shirt/top")


def test_the_environment_names_the_folder_unless_the_caller_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIKAS_DATA", str(write_files(tmp_path / "a", SMALL_MNIST)))
    assert len(load_dataset("mnist")[0]) == 12
    with pytest.raises(FileNotFoundError, match=r"incomplete: .*nowhere.*--data-dir.*TIKAS_DATA"):
        load_dataset("mnist", tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("file", "content", "named"),
    [
        (TRAIN_IMAGES, SMALL_MNIST[TRAIN_IMAGES][:-1], " 9423 bytes .* 9424 bytes"),
        (TRAIN_IMAGES, SMALL_MNIST[TRAIN_IMAGES] + b"\0", " 9425 bytes"),
        (TRAIN_IMAGES, SMALL_MNIST[TRAIN_IMAGES][:10], " 10 bytes"),
        (TEST_IMAGES, b"\x89PNG\r\n\x1a\n", "89504e47.*, expected .* 00000803"),
        (TEST_IMAGES, SMALL_MNIST[TEST_LABELS], "00000801.*, expected .* 00000803"),
        (TEST_IMAGES, b"", " 0 bytes"),
        (TEST_IMAGES, idx(np.zeros((3, 32, 32))), r"\(28, 28\).*0000002000000020.*, expected .*0000001c0000001c"),
        (TEST_LABELS, SMALL_MNIST[TEST_IMAGES], "00000803.*, expected .* 00000801"),
        (TEST_LABELS, idx([1, 2, 10]), "label 10"),
        (TEST_LABELS, idx([1, 2, 3, 4]), "4 labels"),
        (TEST_LABELS, idx([]), " 8 bytes"),
    ],
    ids=describe_bytes,
)
def test_a_damaged_or_wrong_idx_file_is_named_in_the_error(
    file: str, content: bytes, named: str, tmp_path: Path
) -> None:
    write_files(tmp_path, SMALL_MNIST | {file: content})
    with pytest.raises(ValueError, match=rf"{file}.*{named}"):
        load_dataset("mnist", tmp_path)


@pytest.mark.parametrize(
    "content", [ZIPPED_MNIST[f"{TRAIN_IMAGES}.gz"][:-20], b"\x1f\x8b and then nonsense"], ids=describe_bytes
)
def test_a_damaged_gzip_file_is_named_in_the_error(content: bytes, tmp_path: Path) -> None:
    write_files(tmp_path, ZIPPED_MNIST | {f"{TRAIN_IMAGES}.gz": content})
    with pytest.raises(ValueError, match=rf"{TRAIN_IMAGES}\.gz is truncated or damaged"):
        load_dataset("mnist", tmp_path)


def test_mnist_is_not_taken_for_fashion_mnist(tmp_path: Path) -> None:
    """Their files have the same names; the first labels tell them apart."""
    write_files(tmp_path, SMALL_MNIST | {TRAIN_LABELS: idx([5, 0, 4, 1, 9, 2, 1, 3, 1, 4, 3, 5])})
    assert len(load_dataset("mnist", tmp_path)[0]) == 12
    with pytest.raises(ValueError, match=f"{TRAIN_LABELS} belongs to mnist, not to fashion-mnist"):
        load_dataset("fashion-mnist", tmp_path)


# CIFAR-10.

BATCH_IMAGES = 4
PIXELS = RNG.integers(0, 256, (6, BATCH_IMAGES, 3072)).astype(np.uint8)
LABELS = RNG.integers(0, 10, (6, BATCH_IMAGES)).astype(np.uint8)
SMALL_CIFAR10 = {
    name: np.hstack([labels[:, None], pixels]).tobytes()
    for name, labels, pixels in zip(CIFAR10_BATCHES, LABELS, PIXELS, strict=True)
}


def archive(files: Mapping[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, content in {"readme.html": b"<html>", **files}.items():
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return packed.getvalue()


@pytest.fixture
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "CIFAR10_BATCH_IMAGES", BATCH_IMAGES)


def assert_is_small_cifar10(train: Dataset, test: Dataset) -> None:
    assert (train.rows.shape, test.rows.shape) == ((20, 3, 32, 32), (4, 3, 32, 32))
    assert (train.rows.dtype, train.targets.dtype) == (np.float32, np.int64)
    rows = np.concatenate([train.rows, test.rows])
    np.testing.assert_array_equal(rows, PIXELS.reshape(24, 3, 32, 32) / np.float32(255))
    assert [*train.targets, *test.targets] == LABELS.ravel().tolist()
    assert (str(train.classes[0]), str(test.classes[9])) == ("airplane", "truck")


@pytest.mark.usefixtures("_small_batches")
@pytest.mark.parametrize("subfolder", [".", "cifar10", "cifar-10-batches-bin", "cifar10/cifar-10-batches-bin"])
@pytest.mark.parametrize("files", [SMALL_CIFAR10, {CIFAR10_ARCHIVE: archive(SMALL_CIFAR10)}], ids=["files", "archive"])
def test_cifar10_is_read_from_its_binary_files_or_their_archive(
    files: Mapping[str, bytes], subfolder: str, tmp_path: Path
) -> None:
    write_files(tmp_path / subfolder, files)
    assert_is_small_cifar10(*load_dataset("cifar10", tmp_path))


@pytest.mark.usefixtures("_small_batches")
@pytest.mark.parametrize(
    ("file", "content", "named"),
    [
        ("data_batch_2.bin", SMALL_CIFAR10["data_batch_2.bin"][:-1], "12291 bytes, not 12292"),
        ("data_batch_2.bin", SMALL_CIFAR10["data_batch_2.bin"] + b"\0", "12293 bytes"),
        ("data_batch_2.bin", b"", " 0 bytes"),
        ("test_batch.bin", b"\x0a" + SMALL_CIFAR10["test_batch.bin"][1:], "label 10"),
        (CIFAR10_ARCHIVE, archive(SMALL_CIFAR10)[:-3000], "truncated or damaged"),
        (CIFAR10_ARCHIVE, b"no archive", "truncated or damaged"),
        (f"data_batch_1.bin in .*{CIFAR10_ARCHIVE}", archive({}), " 0 bytes"),
        (
            f"test_batch.bin in .*{CIFAR10_ARCHIVE}",
            archive(SMALL_CIFAR10 | {"test_batch.bin": bytes(50_000)}),
            " 50000 ",
        ),
    ],
    ids=describe_bytes,
)
def test_a_damaged_or_wrong_batch_is_named_in_the_error(file: str, content: bytes, named: str, tmp_path: Path) -> None:
    from_archive = not file.endswith(".bin")
    write_files(tmp_path, {CIFAR10_ARCHIVE: content} if from_archive else SMALL_CIFAR10 | {file: content})
    with pytest.raises(ValueError, match=rf"{file}.*{named}"):
        load_dataset("cifar10", tmp_path)


@pytest.mark.parametrize(
    ("name", "files", "missing", "to_put"),
    [
        ("mnist", SMALL_MNIST, TEST_LABELS, f"{TRAIN_IMAGES}.gz"),
        ("cifar10", SMALL_CIFAR10, "data_batch_4.bin", CIFAR10_ARCHIVE),
    ],
)
def test_the_error_for_missing_files_names_them_and_where_to_put_them(
    name: str, files: Mapping[str, bytes], missing: str, to_put: str, tmp_path: Path
) -> None:
    write_files(tmp_path / name, {file: content for file, content in files.items() if file != missing})
    with pytest.raises(FileNotFoundError) as caught:
        load_dataset(name, tmp_path)
    message = str(caught.value)
    assert message.startswith(f"{name} is incomplete: {missing} not found in {tmp_path} or {tmp_path / name}.")
    assert all(word in message for word in (to_put, "--data-dir", "TIKAS_DATA"))


def test_the_official_images_of_cifar10_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first 500 images of two batches, which the project's data folder holds as lossless strips."""
    image = pytest.importorskip("PIL.Image", reason="needs Pillow")
    strips = SHARED_DATA / "cifar10"
    if not strips.is_dir():
        pytest.skip(f"CIFAR-10 is not part of the repository, and {strips} does not exist")
    monkeypatch.setattr(datasets, "CIFAR10_BATCH_IMAGES", 500)
    labels = np.fromfile(strips / "labels.u8", np.uint8).reshape(6, 10_000)[:, :500]
    contents = {}
    for name, batch_labels in zip(CIFAR10_BATCHES, labels, strict=True):
        pixels = np.zeros((500, 3072), np.uint8)
        if name in ("data_batch_1.bin", "test_batch.bin"):
            packed = (strips / name).with_suffix(".webps").read_bytes()
            (length,) = struct.unpack_from("<I", packed)
            strip = np.asarray(image.open(io.BytesIO(packed[4 : 4 + length])).convert("RGB"))
            pixels = strip.reshape(500, 32, 32, 3).transpose(0, 3, 1, 2).reshape(500, 3072)
        contents[name] = np.hstack([batch_labels[:, None], pixels]).tobytes()
    train, test = load_dataset("cifar10", write_files(tmp_path, contents))
    assert train.classes[train.targets[:5]].tolist() == ["frog", "truck", "truck", "deer", "automobile"]
    assert test.classes[test.targets[:4]].tolist() == ["cat", "ship", "ship", "airplane"]
    assert (train.rows[0, :, 0, 0] * 255).round().tolist() == [59, 62, 63]
    assert 0.45 < test.rows.mean() < 0.5


# Downloads, from a server on this machine.


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(pooch, "os_cache", lambda project: tmp_path / "cache" / project)
    return tmp_path / "cache" / "tikas"


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, Mapping[str, bytes]], Path]]:
    """Serve the files of a data set from its second mirror, and return their folder; the first mirror has none."""
    handler = functools.partial(QuietHandler, directory=tmp_path / "web")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,)).start()
        address = f"http://127.0.0.1:{server.server_address[1]}"

        def serve_files(name: str, files: Mapping[str, bytes]) -> Path:
            hashes = {file: "sha256:" + hashlib.sha256(content).hexdigest() for file, content in files.items()}
            mirrors = (f"{address}/first/", f"{address}/second/")
            monkeypatch.setitem(SOURCES, name, replace(SOURCES[name], mirrors=mirrors, hashes=hashes))
            return write_files(tmp_path / "web" / "second", files)

        yield serve_files
        server.shutdown()


def test_files_are_downloaded_once_from_the_mirror_that_has_them(
    serve: Callable[[str, Mapping[str, bytes]], Path], cache: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    served = serve("mnist", ZIPPED_MNIST)
    first = load_dataset("mnist")[0]
    assert sorted(path.name for path in (cache / "mnist").iterdir()) == sorted(ZIPPED_MNIST)
    for file in served.iterdir():
        file.unlink()
    np.testing.assert_array_equal(load_dataset("mnist")[0].rows, first.rows)
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("_small_batches", "cache")
def test_a_download_shows_its_progress_on_a_terminal(
    serve: Callable[[str, Mapping[str, bytes]], Path],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    serve("cifar10", {CIFAR10_ARCHIVE: archive(SMALL_CIFAR10)})
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes the output for a terminal
    assert_is_small_cifar10(*load_dataset("cifar10"))
    assert CIFAR10_ARCHIVE in capfd.readouterr().err


def test_a_downloaded_file_with_another_hash_is_not_kept(
    serve: Callable[[str, Mapping[str, bytes]], Path], cache: Path
) -> None:
    (serve("mnist", ZIPPED_MNIST) / f"{TRAIN_LABELS}.gz").write_bytes(b"something else")
    with pytest.raises(FileNotFoundError, match=r"404.*SHA256"):
        load_dataset("mnist")
    assert not (cache / "mnist" / f"{TRAIN_LABELS}.gz").exists()


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10"])
def test_without_a_network_every_mirror_is_tried_and_the_files_are_named(
    name: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    retrieve = Mock(side_effect=ConnectionError("Network is unreachable"))
    monkeypatch.setattr(pooch, "retrieve", retrieve)
    level = pooch.get_logger().level
    with pytest.raises(FileNotFoundError) as caught:
        load_dataset(name)
    assert len({call.args[0] for call in retrieve.call_args_list}) == 2
    words = (*SOURCES[name].hashes, "Network is unreachable", "--data-dir", "TIKAS_DATA")
    assert all(word in str(caught.value) for word in words)
    assert pooch.get_logger().level == level
    assert not cache.exists()
