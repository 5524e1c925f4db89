"""MNIST and Fashion-MNIST: four IDX files each, gzipped or not."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tikas.data.published import Arrays, PublishedData

IMAGE_SHAPE = (28, 28)
DIGITS = tuple(str(digit) for digit in range(10))
CLOTHES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def _four_files(name: str, mirrors: tuple[str, ...], hashes: Sequence[str]) -> PublishedData:
    zipped = [f"{file}.gz" for file in FILES]
    return PublishedData(
        name,
        mirrors,
        hashes=dict(zip(zipped, hashes, strict=True)),
        forms=(tuple(zip(FILES, zipped, strict=True)),),
        in_words=f"{', '.join(zipped)} (or the same files unpacked, without .gz)",
    )


MNIST = _four_files(
    "mnist",
    mirrors=(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ),
    hashes=(
        "sha256:440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "sha256:3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "sha256:8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "sha256:f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ),
)
FASHION_MNIST = _four_files(
    "fashion-mnist",
    mirrors=(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
    ),
    hashes=(
        "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "md5:25c81989df183df01b3e8a0aad5dffbe",
        "md5:bef4ecab320f06d8554ea6380940ec79",
        "md5:bb300cfdad3c16e7a12a480ee83cd310",
    ),
)
FIRST_LABELS = {
    MNIST.name: [5, 0, 4, 1, 9, 2, 1, 3, 1, 4],
    FASHION_MNIST.name: [9, 0, 0, 3, 0, 2, 7, 2, 5, 5],
}
"""The files of both have the same names; this tells them apart."""


def read_mnist(paths: Sequence[Path], name: str = MNIST.name) -> Arrays:
    """Read the four files, in the order of `FILES`.

    Raises
    ------
    ValueError
        If a file does not hold what its name promises, or belongs to the other data set.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     paths = [Path(folder, name) for name in FILES]
    ...     for path, shape in zip(paths, [(12, 28, 28), (12,), (3, 28, 28), (3,)]):
    ...         header = bytes((0, 0, 8, len(shape))) + struct.pack(f">{len(shape)}I", *shape)
    ...         _ = path.write_bytes(header + bytes([9] * math.prod(shape)))
    ...     train_x, train_y, test_x, test_y = read_mnist(paths)
    >>> train_x.shape, train_x.max().round(4), test_y
    ((12, 1, 28, 28), np.float32(0.0353), array([9, 9, 9]))
    """
    train_images, train_labels, test_images, test_labels = paths
    train_x, train_y = _read_pair(train_images, train_labels)
    for other, first_labels in FIRST_LABELS.items():
        if other != name and train_y[:10].tolist() == first_labels:
            raise ValueError(
                f"{train_labels} belongs to {other}, not to {name}. Keep each data set in a folder of its own name, "
                f"and give the folder above them as --data-dir or TIKAS_DATA."
            )
    test_x, test_y = _read_pair(test_images, test_labels)
    return train_x, train_y, test_x, test_y


def _read_pair(images_path: Path, labels_path: Path) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    images, labels = _read_idx(images_path, IMAGE_SHAPE), _read_idx(labels_path, ())
    if len(images) != len(labels):
        raise ValueError(
            f"{images_path} holds {len(images)} images but {labels_path} holds {len(labels)} labels; "
            f"they must be as many. Take both files from the same copy of the data set."
        )
    if labels.max() > 9:
        raise ValueError(f"{labels_path} holds the label {labels.max()}; expected 0 to 9. Get a fresh copy of it.")
    return np.divide(images, 255, dtype=np.float32).reshape(-1, 1, *IMAGE_SHAPE), labels.astype(np.int64)


def _read_idx(path: Path, item_shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Read an IDX file of unsigned bytes: a magic number, the dimensions, the values."""
    content = path.read_bytes()
    if content.startswith(b"\x1f\x8b"):
        try:
            content = gzip.decompress(content)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{path} is truncated or damaged ({error}). Get a fresh copy of the file.") from error
    n_dimensions = 1 + len(item_shape)
    magic = bytes((0, 0, 8, n_dimensions))
    header_size = 4 + 4 * n_dimensions
    if content[:4] != magic:
        raise ValueError(
            f"{path} is not an IDX file of bytes in {n_dimensions} dimension{'s' * bool(item_shape)}: it begins with "
            f"{content[:4].hex() or 'nothing'}, expected {magic.hex()}. Get a fresh copy of the file."
        )
    if len(content) < header_size:
        raise ValueError(f"{path} is truncated: it ends within its header. Get a fresh copy of the file.")
    n_items, *found_shape = struct.unpack(f">{n_dimensions}I", content[4:header_size])
    if tuple(found_shape) != item_shape:
        raise ValueError(f"{path} holds images of {found_shape} pixels; expected {list(item_shape)}.")
    expected_size = header_size + n_items * math.prod(item_shape)
    if len(content) != expected_size or n_items == 0:
        raise ValueError(
            f"{path} is truncated or damaged: it announces {n_items} items, which take {expected_size} bytes, "
            f"but has {len(content)} bytes. Get a fresh copy of the file."
        )
    return np.frombuffer(content, np.uint8, offset=header_size).reshape(n_items, *item_shape)
