"""CIFAR-10: six batches of images, of the binary or the Python version, read without executing anything."""

from __future__ import annotations

import io
import pickle
import pickletools
import tarfile
import textwrap
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tikas.data.published import Arrays, PublishedData

IMAGE_SHAPE = (3, 32, 32)
IMAGE_BYTES = 3 * 32 * 32
BATCH_IMAGES = 10_000
MOST_BATCH_BYTES = 100_000_000
THINGS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
BATCHES = ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch")
FRESH_COPY = "Get a fresh copy of the file."

CIFAR10 = PublishedData(
    "cifar10",
    mirrors=("https://www.cs.toronto.edu/~kriz/", "https://cave.cs.toronto.edu/kriz/"),
    hashes={
        "cifar-10-binary.tar.gz": "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    },
    forms=(
        tuple((f"{batch}.bin",) for batch in BATCHES),
        (("cifar-10-binary.tar.gz",),),
        tuple((batch,) for batch in BATCHES),
        (("cifar-10-python.tar.gz",),),
    ),
    in_words=(
        f"cifar-10-binary.tar.gz, or the files in it ({', '.join(f'{batch}.bin' for batch in BATCHES)}), "
        f"or either of the Python version (cifar-10-python.tar.gz; the same names without .bin),"
    ),
    subfolders=("", "cifar-10-batches-bin", "cifar-10-batches-py"),
)


def read_cifar10(paths: Sequence[Path]) -> Arrays:
    """Read the six batches, from files of their own or from the archive that holds them.

    Raises
    ------
    ValueError
        If a file does not hold what its name promises. A Python batch that asks for anything but an array of bytes and
        a list of labels is refused; nothing that it names is imported or called.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     paths = [Path(folder, f"{batch}.bin") for batch in BATCHES]
    ...     for path in paths:
    ...         _ = path.write_bytes(bytes(3073))  # one image, and its label
    ...     read_cifar10(paths)
    Traceback (most recent call last):
    ValueError: ...data_batch_1.bin is truncated or of another kind: it has 3073 bytes, but 10000 images with their ...
    """
    x = np.empty((len(BATCHES), BATCH_IMAGES, *IMAGE_SHAPE), np.float32)
    y = np.empty((len(BATCHES), BATCH_IMAGES), np.int64)
    missing = set(BATCHES)
    for place, name, content in _contents(paths):
        batch, _, suffix = name.partition(".")
        pixels, labels = _read_binary(content, place) if suffix else _read_python(content, place)
        if labels.max() > 9:
            raise ValueError(f"{place} holds the label {labels.max()}; expected 0 to 9. {FRESH_COPY}")
        at = BATCHES.index(batch)
        np.divide(pixels.reshape(-1, *IMAGE_SHAPE), 255, out=x[at], dtype=np.float32)
        y[at] = labels
        missing.discard(batch)
    if missing:
        raise ValueError(f"{paths[0]} holds no {', '.join(sorted(missing))}. {FRESH_COPY}")
    return x[:-1].reshape(-1, *IMAGE_SHAPE), y[:-1].ravel(), x[-1], y[-1]


def _contents(paths: Sequence[Path]) -> Iterator[tuple[str, str, bytes]]:
    """Each batch: where it lies, its name, its bytes."""
    if paths[0].name.endswith(".tar.gz"):
        yield from _members(paths[0])
        return
    for path in paths:
        _check_size(path.stat().st_size, str(path))
        yield str(path), path.name, path.read_bytes()


def _members(archive: Path) -> Iterator[tuple[str, str, bytes]]:
    """The batches in an archive, which is read in one go and never unpacked."""
    wanted = {*BATCHES, *(f"{batch}.bin" for batch in BATCHES)}
    try:
        with tarfile.open(archive, "r|gz") as tar:
            for member in tar:
                name = PurePosixPath(member.name).name
                if name not in wanted:
                    continue
                place = f"{member.name} in {archive}"
                _check_size(member.size, place)
                file = tar.extractfile(member)
                if file is not None:
                    yield place, name, file.read()
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise ValueError(f"{archive} is truncated or damaged ({error}). {FRESH_COPY}") from error


def _check_size(n_bytes: int, place: str) -> None:
    if n_bytes > MOST_BATCH_BYTES:
        raise ValueError(f"{place} has {n_bytes} bytes; no batch of CIFAR-10 has as many. {FRESH_COPY}")


def _read_binary(content: bytes, place: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """One byte for the class, then the image, as often as there are images."""
    expected = BATCH_IMAGES * (1 + IMAGE_BYTES)
    if len(content) != expected:
        raise ValueError(
            f"{place} is truncated or of another kind: it has {len(content)} bytes, "
            f"but {BATCH_IMAGES} images with their labels take {expected}. {FRESH_COPY}"
        )
    records = np.frombuffer(content, np.uint8).reshape(BATCH_IMAGES, 1 + IMAGE_BYTES)
    return records[:, 1:], records[:, 0]


def _read_python(content: bytes, place: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """A pickled dictionary with an array of bytes as its ``data`` and a list of whole numbers as its ``labels``."""
    try:
        _check_memo(content)
        batch = _HarmlessUnpickler(io.BytesIO(content), encoding="bytes").load()
        entries = {key.decode() if isinstance(key, bytes) else key: value for key, value in batch.items()}
        pixels = entries["data"].as_bytes()
        labels = np.array([label.__index__() for label in entries["labels"]], np.uint8)
    except Exception as error:  # what was not pickled honestly may fail in any way
        reason = textwrap.shorten(f"{type(error).__name__}: {error}", 200)
        raise ValueError(
            f"{place} is truncated, or no batch of CIFAR-10's Python version ({reason}). "
            f"Get a fresh copy of the file, or take the binary version, cifar-10-binary.tar.gz."
        ) from error
    if len(pixels) != BATCH_IMAGES * IMAGE_BYTES or len(labels) != BATCH_IMAGES:
        raise ValueError(
            f"{place} is truncated or of another kind: it has {len(pixels)} pixels and {len(labels)} labels, "
            f"but {BATCH_IMAGES} images take {BATCH_IMAGES * IMAGE_BYTES} and {BATCH_IMAGES}. {FRESH_COPY}"
        )
    return np.frombuffer(pixels, np.uint8), labels


def _check_memo(content: bytes) -> None:
    """Refuse a pickle that numbers what it remembers far beyond what it can hold: memory is taken for every number."""
    for opcode, argument, _ in pickletools.genops(content):
        if "PUT" in opcode.name and (argument or 0) > len(content):
            raise pickle.UnpicklingError(f"it remembers something under the number {argument}")


class _Described:
    """Stands in for what a pickle wants built: keeps what it was described by, and does nothing."""

    def __init__(self, *arguments: Any) -> None:
        self._arguments = arguments
        self._state: Any = None

    def __setstate__(self, state: Any) -> None:
        self._state = state

    def as_bytes(self) -> bytes:
        """The values of an array of bytes, row by row."""
        _, _, kind, by_columns, values = self._state
        if kind._arguments[0] not in (b"u1", "u1") or by_columns or not isinstance(values, bytes):
            raise TypeError("its data is no array of bytes")
        return values


def _latin1(text: str, _: str) -> bytes:
    """How Python 3 spells bytes in the protocols of Python 2."""
    return text.encode("latin-1")


_STAND_INS = {
    ("numpy.core.multiarray", "_reconstruct"): _Described,
    ("numpy._core.multiarray", "_reconstruct"): _Described,
    ("numpy", "ndarray"): _Described,
    ("numpy", "dtype"): _Described,
    ("_codecs", "encode"): _latin1,
}


class _HarmlessUnpickler(pickle.Unpickler):
    """Reads plain containers, and descriptions of arrays; whatever else a pickle names is refused.

    Not even NumPy's own functions are called, which were not written for arguments from strangers.
    """

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _STAND_INS:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is not called")
        return _STAND_INS[module, name]
