"""Data sets by name: found on disk, downloaded with their hashes, or shipped with scikit-learn."""

from __future__ import annotations

import difflib
import gzip
import logging
import math
import os
import struct
import textwrap
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from rich.progress import Progress


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images with their classes, in the training and test rows that everybody compares on.

    Parameters
    ----------
    name : str
        The name it was asked for by.
    train_x, test_x : ndarray of float32, shape (n, channels, height, width)
        Pixels in [0, 1].
    train_y, test_y : ndarray of int64, shape (n,)
        The class of each row, an index into `classes`.
    classes : tuple of str
        What each class is called.
    """

    name: str
    train_x: NDArray[np.float32]
    train_y: NDArray[np.int64]
    test_x: NDArray[np.float32]
    test_y: NDArray[np.int64]
    classes: tuple[str, ...]


@dataclass(frozen=True)
class _Source:
    """Four IDX files: their class names, the mirrors that hold them, and how to recognise them."""

    classes: tuple[str, ...]
    mirrors: tuple[str, ...]
    hashes: tuple[str, ...]  # of the gzipped files, in the order of FILES
    first_labels: tuple[int, ...]


FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
IMAGE_SHAPE = (28, 28)
DIGITS = tuple(str(digit) for digit in range(10))
CLOTHES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")

_SOURCES = {
    "mnist": _Source(
        classes=DIGITS,
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
        first_labels=(5, 0, 4, 1, 9, 2, 1, 3, 1, 4),
    ),
    "fashion-mnist": _Source(
        classes=CLOTHES,
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
        first_labels=(9, 0, 0, 3, 0, 2, 7, 2, 5, 5),
    ),
}

NAMES = ("digits", *_SOURCES)


def load(name: str, data_dir: str | os.PathLike[str] | None = None) -> Dataset:
    """Load a data set by its name.

    Parameters
    ----------
    name : {"digits", "mnist", "fashion-mnist"}
        ``"digits"`` ships with scikit-learn: 1297 training and 500 test images of 8×8 pixels, always the same rows.
        The other two are four IDX files each, gzipped or not.
    data_dir : path, optional
        The folder that holds the IDX files, or that holds a folder named like the data set which does. The
        environment variable ``TIKAS_DATA`` stands in for it. Without either, the files are downloaded once and kept.

    Returns
    -------
    Dataset

    Raises
    ------
    ValueError
        If there is no data set of that name, or a file does not hold what its name promises.
    FileNotFoundError
        If files are missing from the folder that was named, or cannot be downloaded.

    Examples
    --------
    >>> from tikas.data.sources import load
    >>> digits = load("digits")
    >>> digits.train_x.shape, digits.test_x.shape
    ((1297, 1, 8, 8), (500, 1, 8, 8))
    >>> digits.classes[digits.test_y[0]]
    '4'
    """
    if name not in NAMES:
        close = difflib.get_close_matches(name.lower(), NAMES, n=1)
        suggestion = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"There is no data set named {name!r}: choose from {', '.join(NAMES)}{suggestion}")
    if name == "digits":
        return _digits()
    folder = data_dir or os.environ.get("TIKAS_DATA")
    paths = _placed_files(name, Path(folder).expanduser()) if folder else _downloaded_files(name)
    return _read_files(name, paths)


def _digits() -> Dataset:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, targets = load_digits(return_X_y=True)
    x = (images / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    y = targets.astype(np.int64)
    train, test = train_test_split(np.arange(len(y)), test_size=500, stratify=y, random_state=0)
    return Dataset("digits", x[train], y[train], x[test], y[test], DIGITS)


def _placed_files(name: str, folder: Path) -> list[Path]:
    """Find the four files in the folder of the data set's name, or else in the given folder itself."""
    if not folder.is_dir():
        raise FileNotFoundError(
            f"{folder} is not a folder, so {name} cannot be read from it. {_where_to_put_them(name, folder)}"
        )
    missing: list[list[str]] = []
    for place in (folder / name, folder):
        found = [next((p for p in (place / file, place / f"{file}.gz") if p.is_file()), None) for file in FILES]
        paths = [path for path in found if path is not None]
        if len(paths) == len(FILES):
            return paths
        missing.append([file for file, path in zip(FILES, found, strict=True) if path is None])
    raise FileNotFoundError(
        f"{name} is incomplete: {', '.join(sorted(missing, key=len)[0])} not found in {folder} or {folder / name}. "
        f"{_where_to_put_them(name, folder)}"
    )


def _where_to_put_them(name: str, folder: Path | None = None) -> str:
    place = f"{folder} or {folder / name}" if folder else "a folder of your choice"
    return (
        f"Put {', '.join(f'{file}.gz' for file in FILES)} (or the same files unpacked, without .gz) into {place}; "
        f"the folder is named by --data-dir or by the environment variable TIKAS_DATA."
    )


def _downloaded_files(name: str) -> list[Path]:
    import pooch
    from rich.console import Console
    from rich.progress import Progress

    source = _SOURCES[name]
    console = Console(stderr=True)
    with (
        _only_warnings_of(pooch.get_logger()),
        Progress(console=console, transient=True, disable=not console.is_terminal) as progress,
    ):
        return [
            _download(name, f"{file}.gz", known_hash, progress)
            for file, known_hash in zip(FILES, source.hashes, strict=True)
        ]


def _download(name: str, file: str, known_hash: str, progress: Progress) -> Path:
    """Return the file's place in the cache, asking one mirror after the other if it is not there yet."""
    import pooch

    failures = []
    for mirror in _SOURCES[name].mirrors:
        try:
            path = pooch.retrieve(
                mirror + file,
                known_hash=known_hash,
                fname=file,
                path=pooch.os_cache("tikas") / name,
                progressbar=_DownloadBar(progress, file),
            )
        except (OSError, ValueError) as error:  # requests' errors are OSErrors; a wrong hash is a ValueError
            failures.append(f"{mirror}{file}: {textwrap.shorten(str(error), 200)}")
        else:
            return Path(path)
    raise FileNotFoundError(
        f"{name} is not on this machine and could not be downloaded ({'; '.join(failures)}). {_where_to_put_them(name)}"
    )


class _DownloadBar:
    """What pooch asks of a progress bar, drawn by rich."""

    def __init__(self, progress: Progress, file: str) -> None:
        self._progress = progress
        self._task = progress.add_task(file, total=None, visible=False)

    @property
    def total(self) -> float | None:
        return self._progress.tasks[self._task].total

    @total.setter
    def total(self, n_bytes: int) -> None:
        self._progress.update(self._task, total=n_bytes or None, visible=True)

    def update(self, n_bytes: int) -> None:
        self._progress.advance(self._task, n_bytes)

    def reset(self) -> None:
        self._progress.reset(self._task)

    def close(self) -> None:
        self._progress.stop_task(self._task)


@contextmanager
def _only_warnings_of(logger: logging.Logger) -> Iterator[None]:
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


def _read_files(name: str, paths: list[Path]) -> Dataset:
    train_images, train_labels, test_images, test_labels = paths
    train_x, train_y = _read_pair(train_images, train_labels)
    first_labels = tuple(train_y[:10].tolist())
    for other, source in _SOURCES.items():
        if other != name and first_labels == source.first_labels:
            raise ValueError(
                f"{train_labels} belongs to {other}, not to {name}. Keep each data set in a folder of its own name, "
                f"and give the folder above them as --data-dir or TIKAS_DATA."
            )
    test_x, test_y = _read_pair(test_images, test_labels)
    return Dataset(name, train_x, train_y, test_x, test_y, _SOURCES[name].classes)


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
