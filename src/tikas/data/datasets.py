"""Data sets by name: digits, MNIST, Fashion-MNIST and CIFAR-10; found on disk, downloaded, or from scikit-learn."""

from __future__ import annotations

import gzip
import os
import struct
import tarfile
import textwrap
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from hashlib import blake2b, file_digest
from math import prod
from pathlib import Path, PurePosixPath
from statistics import mean
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from tikas.data.sources import AnyRows

if TYPE_CHECKING:
    from rich.progress import Progress

DATASETS = ("digits", "mnist", "fashion-mnist", "cifar10")
Rows = tuple[NDArray[np.float32], NDArray[np.int64]]

MNIST_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
FIRST_LABELS = {"mnist": [5, 0, 4, 1, 9, 2, 1, 3, 1, 4], "fashion-mnist": [9, 0, 0, 3, 0, 2, 7, 2, 5, 5]}
"""The files of both data sets have the same names; their first labels tell them apart."""
CIFAR10_ARCHIVE = "cifar-10-binary.tar.gz"
CIFAR10_FOLDER = "cifar-10-batches-bin"
"""The folder in the archive."""
CIFAR10_BATCHES = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")
CIFAR10_BATCH_IMAGES = 10_000
MIN_SIMILARITY = 0.7
"""Names at least this similar to a misspelled one (difflib's ratio) are suggested: mnist for minst, not for mine."""
MAX_SUGGESTED = 3
FRESH_COPY = "Get a new copy of the file."


@dataclass(frozen=True, eq=False)
class Dataset:
    """Rows with their targets.

    Parameters
    ----------
    rows : ndarray of float32, or RowSource, shape (n, *shape)
        Features ``(n, d)``, or images ``(n, channels, height, width)``.
    targets : ndarray of shape (n,)
        int64 class codes, -1 where unlabeled; or floats, NaN where unlabeled, if `classes` is None.
    weights : ndarray of shape (n,), optional
        Weight of each row's label; None if all are equal.
    feature_names : tuple of str, default=()
        Names of the columns, if they have names.
    classes : ndarray, optional
        Name of each class; None for a regression.

    Examples
    --------
    >>> train, test = load_dataset("digits")
    >>> train.rows.shape, train.n_outputs, int(train.labeled.sum()), len(test)
    ((1297, 1, 8, 8), 10, 1297, 500)
    """

    rows: AnyRows
    targets: NDArray[Any]
    weights: NDArray[Any] | None = None
    feature_names: tuple[str, ...] = ()
    classes: NDArray[Any] | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def labeled(self) -> NDArray[np.bool_]:
        """Whether each row is labeled, ``(n,)``."""
        return ~np.isnan(self.targets) if self.classes is None else self.targets >= 0

    @property
    def n_outputs(self) -> int:
        """The number of classes, or 1 for a regression."""
        return 1 if self.classes is None else len(self.classes)


def kind_of(data: str) -> Literal["data set", "table", "tables", "folder"]:
    """Return what `data` is: the name of a data set, or the path of a table, of a folder of tables or one of images.

    Raises FileNotFoundError, with similar names, if it is none of these.
    """
    path = Path(data).expanduser()
    if data in DATASETS:
        return "data set"
    if not data or not path.exists():
        similar = _similar_names(path)
        raise FileNotFoundError(
            f"There is no data set, file or folder {data!r}. Give one of {', '.join(DATASETS)}, or the path of a table "
            "or of a folder of images or Parquet files." + (f" Did you mean {' or '.join(similar)}?" if similar else "")
        )
    if not path.is_dir():
        return "table"
    return "tables" if any(path.glob("*.parquet")) else "folder"


def content_digest(path: str | os.PathLike[str]) -> str:
    """Return a digest of a file, or of all files in a folder with their names: equal if the content is."""
    root = Path(path).expanduser()
    files = [root] if root.is_file() else sorted(file for file in root.rglob("*") if file.is_file())
    total = blake2b(digest_size=16)
    for file in files:
        with file.open("rb") as opened:
            content = file_digest(opened, blake2b).hexdigest()
        total.update(f"{file.relative_to(root)} {content}\n".encode())
    return total.hexdigest()


def _similar_names(path: Path) -> list[str]:
    """Return data sets and files beside `path` whose names, with or without suffix, are similar to its name."""
    candidates = {name: name for name in DATASETS}
    for file in sorted(path.parent.iterdir()) if path.parent.is_dir() else ():
        candidates |= {file.stem.lower(): str(file), file.name.lower(): str(file)}
    similar = get_close_matches(path.name.lower(), candidates, n=MAX_SUGGESTED, cutoff=MIN_SIMILARITY)
    return list(dict.fromkeys(candidates[name] for name in similar))


def load_dataset(name: str, data_dir: str | os.PathLike[str] | None = None) -> tuple[Dataset, Dataset]:
    """Return the training and test rows of a data set.

    Parameters
    ----------
    name : {"digits", "mnist", "fashion-mnist", "cifar10"}
        ``"digits"`` comes with scikit-learn: 1297 training and 500 test images of 8×8 pixels, always the same. MNIST
        and Fashion-MNIST are four IDX files each, gzipped or not; CIFAR-10 is its binary version, six ``.bin`` files or
        the archive of them.
    data_dir : path, optional
        Folder with the files, or with a subfolder of the data set's name that contains them. Default: the environment
        variable ``TIKAS_DATA``. If neither is given, the files are downloaded once and kept.

    Returns
    -------
    tuple of Dataset
        Images ``(n, channels, height, width)`` with pixels in [0, 1].

    Raises
    ------
    ValueError
        If there is no data set of this name, or a file is damaged or belongs to another data set.
    FileNotFoundError
        If files are missing from the given folder, or cannot be downloaded.

    Examples
    --------
    >>> train, test = load_dataset("digits")
    >>> train.rows.shape, test.rows.shape, str(test.classes[test.targets[0]])
    ((1297, 1, 8, 8), (500, 1, 8, 8), '4')
    """
    if name not in DATASETS:
        raise ValueError(f"There is no data set named {name!r}. Choose from {', '.join(DATASETS)}.")
    if name == "digits":
        return _read_digits()
    source = SOURCES[name]
    folder = data_dir or os.environ.get("TIKAS_DATA")
    files = _find(name, source, Path(folder).expanduser()) if folder else _download(name, source)
    train, test = source.read(files)
    classes = np.array(source.classes)
    return Dataset(*train, classes=classes), Dataset(*test, classes=classes)


def _read_digits() -> tuple[Dataset, Dataset]:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, targets = load_digits(return_X_y=True)
    x = (images / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    y = targets.astype(np.int64)
    train, test = train_test_split(np.arange(len(y)), test_size=500, stratify=y, random_state=0)
    classes = np.array(DIGITS)
    return Dataset(x[train], y[train], classes=classes), Dataset(x[test], y[test], classes=classes)


@dataclass(frozen=True)
class Source:
    """Where the files of a data set are found, and how they are read.

    `forms` are alternative sets of files, packed or unpacked; the first complete one is read. `hashes` are those of the
    files to download, by name; each is downloaded from the first mirror that has it.
    """

    classes: Sequence[str]
    read: Callable[[Sequence[Path]], tuple[Rows, Rows]]
    forms: tuple[tuple[str, ...], ...]
    hashes: Mapping[str, str]
    mirrors: tuple[str, ...]


def _find(name: str, source: Source, folder: Path) -> list[Path]:
    """Return the files of a data set, from the subfolder of its name in `folder` or from `folder` itself."""
    folders = [folder / name, folder, folder / name / CIFAR10_FOLDER, folder / CIFAR10_FOLDER]
    candidates = [[each / file for file in form] for each in folders for form in source.forms]
    files = max(candidates, key=lambda files: mean(file.is_file() for file in files))
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise FileNotFoundError(
            f"{name} is incomplete: {', '.join(missing)} not found in {folder} or {folder / name}. {_advice(source)}"
        )
    return files


def _advice(source: Source) -> str:
    return (
        f"Put {', '.join(source.hashes)} (or the same files unpacked) into a folder, and set --data-dir or TIKAS_DATA "
        "to it."
    )


def _download(name: str, source: Source) -> list[Path]:
    """Return the files in pooch's cache; download those that are missing."""
    import pooch
    from rich.console import Console
    from rich.progress import Progress

    console, logger = Console(stderr=True), pooch.get_logger()
    level = logger.level
    logger.setLevel("WARNING")  # the progress bar says what is downloaded
    try:
        progress = Progress(console=console, transient=True)
        with progress if console.is_terminal else nullcontext():
            return [_download_file(name, source, file, progress) for file in source.hashes]
    finally:
        logger.setLevel(level)


def _download_file(name: str, source: Source, file: str, progress: Progress) -> Path:
    import pooch

    folder, failures = pooch.os_cache("tikas") / name, []
    for mirror in source.mirrors:
        bar = _DownloadBar(progress, file)
        try:
            return Path(pooch.retrieve(mirror + file, source.hashes[file], file, folder, progressbar=bar))
        except (OSError, ValueError) as error:  # requests' errors are OSErrors, a wrong hash is a ValueError
            failures.append(f"{mirror}{file}: {textwrap.shorten(str(error), 200)}")
    raise FileNotFoundError(
        f"{name} is not on this machine and could not be downloaded ({'; '.join(failures)}). {_advice(source)}"
    )


class _DownloadBar:
    """A progress bar of rich with the interface that pooch expects."""

    total: float | None = None  # set by pooch once it knows the number of bytes

    def __init__(self, progress: Progress, file: str) -> None:
        self._progress = progress
        self._task = progress.add_task(file, total=None, visible=False)

    def update(self, n_bytes: int) -> None:
        self._progress.update(self._task, total=self.total or None, advance=n_bytes, visible=True)

    def reset(self) -> None:
        self._progress.reset(self._task)

    def close(self) -> None:
        self._progress.stop_task(self._task)


def _read_mnist(name: str, files: Sequence[Path]) -> tuple[Rows, Rows]:
    """Read the four files of MNIST or Fashion-MNIST, in the order of `MNIST_FILES`."""
    train, test = _read_pair(*files[:2]), _read_pair(*files[2:])
    for other, first_labels in FIRST_LABELS.items():
        if other != name and train[1][:10].tolist() == first_labels:
            raise ValueError(
                f"{files[1]} belongs to {other}, not to {name}. Keep the files of each data set in a folder of its "
                "name, and give the folder above as --data-dir or TIKAS_DATA."
            )
    return train, test


def _read_pair(images_file: Path, labels_file: Path) -> Rows:
    images, labels = _read_idx(images_file, (28, 28)), _read_idx(labels_file, ())
    if len(images) != len(labels):
        raise ValueError(f"{images_file} holds {len(images)} images, but {labels_file} holds {len(labels)} labels.")
    _check_labels(labels, labels_file)
    return np.divide(images[:, None], 255, dtype=np.float32), labels.astype(np.int64)


def _read_idx(file: Path, item_shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Read an IDX file of bytes: a magic number, the dimensions as big-endian uint32, the values."""
    content = file.read_bytes()
    if file.suffix == ".gz":
        try:
            content = gzip.decompress(content)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{file} is truncated or damaged ({error}). {FRESH_COPY}") from error
    n_items = int.from_bytes(content[4:8], "big")
    header = struct.pack(f">{2 + len(item_shape)}I", 0x0801 + len(item_shape), n_items, *item_shape)
    size = len(header) + n_items * prod(item_shape)
    if not content.startswith(header) or len(content) != size or n_items == 0:
        raise ValueError(
            f"{file} is damaged or not an IDX file of {item_shape} items: it has {len(content)} bytes and begins "
            f"with {content[: len(header)].hex()}, expected {size} bytes that begin with {header.hex()}. {FRESH_COPY}"
        )
    return np.frombuffer(content, np.uint8, offset=len(header)).reshape(n_items, *item_shape)


def _read_cifar10(files: Sequence[Path]) -> tuple[Rows, Rows]:
    """Read the six binary batches, from separate files or from the archive."""
    if files[0].name == CIFAR10_ARCHIVE:
        source, contents = files[0], _unpack(files[0])
    else:
        source, contents = files[0].parent, {file.name: file.read_bytes() for file in files}
    size = CIFAR10_BATCH_IMAGES * 3073
    batches = []
    for name in CIFAR10_BATCHES:
        content = contents.get(name, b"")
        if len(content) != size:
            raise ValueError(f"{name} in {source} is damaged: it has {len(content)} bytes, not {size}. {FRESH_COPY}")
        # A record is a byte with the class and 3072 bytes with the pixels: red, green and blue, row by row.
        batches.append(np.frombuffer(content, np.uint8).reshape(-1, 3073))
        _check_labels(batches[-1][:, 0], name)
    records = np.concatenate(batches)
    images, labels = np.divide(records[:, 1:], 255, dtype=np.float32), records[:, 0].astype(np.int64)
    images, n_train = images.reshape(-1, 3, 32, 32), 5 * CIFAR10_BATCH_IMAGES
    return (images[:n_train], labels[:n_train]), (images[n_train:], labels[n_train:])


def _unpack(archive: Path) -> dict[str, bytes]:
    """Return the contents of the files in an archive, by name. Nothing is written to the disk."""
    contents = {}
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                if file := tar.extractfile(member):
                    contents[PurePosixPath(member.name).name] = file.read()
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise ValueError(f"{archive} is truncated or damaged ({error}). {FRESH_COPY}") from error
    return contents


def _check_labels(labels: NDArray[np.uint8], file: Path | str) -> None:
    if labels.max() > 9:
        raise ValueError(f"{file} contains the label {labels.max()}; expected 0 to 9. {FRESH_COPY}")


DIGITS = tuple("0123456789")
CLOTHES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
MNIST_FORMS = (MNIST_FILES, tuple(f"{file}.gz" for file in MNIST_FILES))
SOURCES = {
    "mnist": Source(
        classes=DIGITS,
        read=partial(_read_mnist, "mnist"),
        forms=MNIST_FORMS,
        hashes={
            "train-images-idx3-ubyte.gz": "sha256:440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "train-labels-idx1-ubyte.gz": "sha256:3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "t10k-images-idx3-ubyte.gz": "sha256:8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "t10k-labels-idx1-ubyte.gz": "sha256:f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        },
        mirrors=(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
    ),
    "fashion-mnist": Source(
        classes=CLOTHES,
        read=partial(_read_mnist, "fashion-mnist"),
        forms=MNIST_FORMS,
        hashes={
            "train-images-idx3-ubyte.gz": "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1-ubyte.gz": "md5:25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3-ubyte.gz": "md5:bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1-ubyte.gz": "md5:bb300cfdad3c16e7a12a480ee83cd310",
        },
        mirrors=(
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
        ),
    ),
    "cifar10": Source(
        classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        read=_read_cifar10,
        forms=(CIFAR10_BATCHES, (CIFAR10_ARCHIVE,)),
        hashes={CIFAR10_ARCHIVE: "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"},
        mirrors=("https://www.cs.toronto.edu/~kriz/", "https://cave.cs.toronto.edu/kriz/"),
    ),
}
