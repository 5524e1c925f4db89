"""Images as arrays ``(n, channels, height, width)``, and folders of image files."""

from __future__ import annotations

import os
import textwrap
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tikas.data.datasets import Dataset
from tikas.data.labels import NO_LABEL
from tikas.data.sources import STREAM_FROM, AnyRows, Indices, RowSource, RowView

FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".bmp": "BMP", ".webp": "WEBP"}
"""File suffixes that are read, and Pillow's names of the formats."""
UNLABELED_FOLDERS = ("unlabeled", "unlabelled")
TEST_FOLDER = "test"
IGNORED_FILES = ("thumbs.db", "desktop.ini", "__macosx")
GRAY_16_BIT = ("I;16", "I")
"""Pillow's modes of 16-bit gray PNG files, new and old."""
LAYOUT = (
    "Expected one folder per class with its images (cats/1.png, dogs/1.png), optionally a folder 'unlabeled' with "
    "unlabeled images, and optionally a folder 'test' with one folder per class."
)
MAX_THREADS, IMAGES_AT_A_TIME = 8, 1024
"""Threads that read images, and images for which they are started."""
MAX_ROWS_FOR_SCALE = 2000
CHANNELS_FIRST = "Channels come first: use numpy.moveaxis(images, -1, 1)."


def as_images(x: AnyRows) -> AnyRows:
    """Return images as ``(n, channels, height, width)``; gray ones may be given as ``(n, height, width)``."""
    images = x.reshape(len(x), 1, *x.shape[1:]) if x.ndim == 3 else x
    if images.ndim != 4:
        raise ValueError(
            f"X has shape {x.shape}; convolutions and pooling take images (n, channels, height, width), or (n, height, "
            "width). Reshape X, or for a table choose a dense network, such as (256, 128)."
        )
    n, height, width, channels = images.shape
    # Certainly channels last: square images, or few channels behind long sides. Other shapes only get a warning.
    if channels <= 4 and (height == width > 4 or min(height, width) >= 16):
        raise ValueError(
            f"Got images of shape {x.shape}; expected {(n, channels, height, width)}. {CHANNELS_FIRST} If they "
            f"really are {channels} pixels wide, swap height and width."
        )
    return images


def warn_channels_last(images: AnyRows, takes_maps: bool, preprocess: str, stacklevel: int = 2) -> None:
    """Warn if images that `as_images` accepts may have their channels last.

    No warning for a dense network without preprocessing, where the order of the values does not matter.
    """
    if images.ndim != 4 or (preprocess in ("auto", "none", "pixels") and not takes_maps):
        return
    n, *sides, last = images.shape
    if last in (1, 3, 4) and last < min(sides):
        warnings.warn(
            f"Images of shape {images.shape} are read as (n, channels, height, width), {last} pixels wide. Should the "
            f"shape be {(n, last, *sides)}? {CHANNELS_FIRST}",
            UserWarning,
            stacklevel=stacklevel + 1,
        )


def as_shaped(x: AnyRows, shape: Sequence[int]) -> AnyRows:
    """Return rows as ``(n, *shape)``; they may be flat, or gray images without the channel dimension."""
    shape = tuple(shape)
    if x.shape[1:] in (shape, (prod(shape),)) or (shape[0] == 1 and x.shape[1:] == shape[1:]):
        return x.reshape(len(x), *shape)
    channels_last = len(shape) == 3 and x.shape[1:] == (*shape[1:], shape[0])
    raise ValueError(
        f"Got rows of shape {x.shape}; this model was fitted on {(len(x), *shape)}. "
        + (CHANNELS_FIRST if channels_last else "Give rows of that shape.")
    )


def as_columns(x: NDArray[Any]) -> NDArray[Any]:
    """Return a table as it is, and images as a table with one column for each channel, ``(positions, channels)``.

    Of more than about 2000 images only evenly spread ones are used: enough to check their scale.
    """
    if x.ndim != 4:
        return x
    some = x[:: 1 + len(x) // MAX_ROWS_FOR_SCALE]
    return np.moveaxis(some, 1, -1).reshape(-1, x.shape[1])


def read_folder(path: str | os.PathLike[str]) -> tuple[Dataset, Dataset]:
    """Read a folder of images, ``CLASS/*.png``, and optionally ``unlabeled/*.png`` and ``test/CLASS/*.png``.

    Parameters
    ----------
    path : path
        PNG, JPEG, BMP and WebP files are read. All images must have one size, and be all gray or all in color. An
        opaque alpha channel is dropped; photos are rotated according to their EXIF data; of an animation, the first
        image is read. Hidden files are skipped.

    Returns
    -------
    tuple of Dataset
        Training and test images ``(n, channels, height, width)``, pixels in [0, 1], sorted by class and file
        name. Without a folder ``test`` there are 0 test images. Training images of 1 GiB or more, as float32, are a
        `RowSource` and are read while a model trains.

    Raises
    ------
    FileNotFoundError
        If there is no such folder.
    ValueError
        If it has another layout, or an image cannot be read or differs from the first; the message names the file.
    ImportError
        If Pillow is not installed.

    Examples
    --------
    >>> import tempfile
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name, gray in {"day/1.png": 255, "night/1.png": 0, "unlabeled/1.png": 51}.items():
    ...         file = Path(folder, name)
    ...         file.parent.mkdir()
    ...         Image.new("L", (8, 6), gray).save(file)
    ...     train, test = read_folder(folder)
    >>> train.classes.tolist(), train.targets.tolist(), train.rows.shape, len(test)
    (['day', 'night'], [0, 1, -1], (3, 1, 6, 8), 0)
    """
    root = Path(path).expanduser()
    folders = _class_folders(root)
    test_root = folders.pop(TEST_FOLDER, None)
    unlabeled = [folders.pop(name) for name in list(folders) if name.casefold() in UNLABELED_FOLDERS]
    classes = list(folders)
    if len(classes) < 2:
        found = f"one class only, {classes[0]}" if classes else "no class"
        raise ValueError(f"{root} contains {found}; a classifier needs two or more. {LAYOUT}")
    train = [(file, code) for code, name in enumerate(classes) for file in _image_files(folders[name])]
    train += [(file, NO_LABEL) for folder in unlabeled for file in _image_files(folder)]
    test = []
    for name, folder in _class_folders(test_root).items() if test_root else ():
        if name not in classes:
            raise ValueError(f"{folder} is not one of the classes ({', '.join(classes)}). {LAYOUT}")
        test += [(file, classes.index(name)) for file in _image_files(folder)]
    images = ImageRows([file for file, _ in train + test])
    codes = np.array([code for _, code in train + test], np.int64)
    names, n = np.array(classes), len(train)
    streamed = images.dtype.itemsize * prod(images.shape) >= STREAM_FROM
    rows = RowView(images, rows=np.arange(n)) if streamed else images[:n]
    return Dataset(rows, codes[:n], classes=names), Dataset(images[n:], codes[n:], classes=names)


def _class_folders(root: Path) -> dict[str, Path]:
    """Return the folders in `root` by name. Images beside them are an error; other files, such as a README, are not."""
    entries = _entries(root)
    loose = [entry for entry in entries if entry.suffix.lower() in FORMATS and not entry.is_dir()]
    if loose:
        raise ValueError(f"{loose[0]} is not in the folder of a class. {LAYOUT}")
    return {entry.name: entry for entry in entries if entry.is_dir()}


def _image_files(folder: Path) -> list[Path]:
    entries = _entries(folder)
    for entry in entries:
        if entry.suffix.lower() not in FORMATS:
            raise ValueError(f"{entry} is not an image file ({', '.join(FORMATS)}). Convert or remove it.")
    if not entries:
        raise ValueError(f"{folder} contains no images. Add some, or remove the folder.")
    return entries


def _entries(folder: Path) -> list[Path]:
    """Return the entries of a folder, sorted by name, without hidden files and those that operating systems add."""
    return [folder / name for name in sorted(os.listdir(folder)) if not _is_hidden(name)]


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name.casefold() in IGNORED_FILES


def find_images(path: str | os.PathLike[str]) -> list[Path]:
    """Return the image files in a folder and its subfolders, sorted by path; raise ValueError if there are none."""
    files = []
    for folder, subfolders, names in os.walk(path, followlinks=True):
        subfolders[:] = [name for name in subfolders if not _is_hidden(name)]
        files += [Path(folder, name) for name in names if not _is_hidden(name)]
    files = sorted(file for file in files if file.suffix.lower() in FORMATS)
    if not files:
        raise ValueError(f"{path} contains no images; expected files that end in {', '.join(FORMATS)}.")
    return files


class ImageRows(RowSource):
    """Image files of one size, all gray or all in color, as ``(n, channels, height, width)``, pixels in [0, 1].

    Each file is read when its row is needed, by several threads.

    Parameters
    ----------
    files : sequence of Path
        At least one.
    threads : int, optional
        Default: one for each CPU core, at most eight.

    Examples
    --------
    >>> import tempfile
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for gray in (0, 51, 255):
    ...         Image.new("L", (2, 1), gray).save(f"{folder}/{gray:03}.png")
    ...     rows = ImageRows(find_images(folder))
    ...     rows[1:]
    array([[[[0.2, 0.2]]], [[[1. , 1. ]]]], dtype=float32)
    """

    def __init__(self, files: Sequence[Path], threads: int | None = None) -> None:
        self.files = files
        self.threads = threads or min(MAX_THREADS, os.cpu_count() or 1)
        super().__init__((len(files), *_read_image(files[0]).shape))

    def take(self, rows: Indices) -> NDArray[np.float32]:
        """Read images, in the order of these indices."""
        found = np.empty((len(rows), *self.shape[1:]), np.float32)
        with ThreadPoolExecutor(self.threads) as pool:
            for start in range(0, len(rows), IMAGES_AT_A_TIME):
                files = [self.files[row] for row in rows[start : start + IMAGES_AT_A_TIME]]
                for position, pixels in enumerate(pool.map(self._read, files), start):
                    found[position] = pixels
        return found

    def _read(self, file: Path) -> NDArray[np.float32]:
        pixels = _read_image(file)
        if pixels.shape != self.shape[1:]:
            raise ValueError(
                f"{file} has (channels, height, width) {pixels.shape}, but {self.files[0]} has {self.shape[1:]}. "
                "Resize the images to one size, and convert all to gray or all to color."
            )
        return pixels


def read_images(files: Sequence[Path]) -> NDArray[np.float32]:
    """Read image files of one size, all gray or all in color, as ``(n, channels, height, width)`` in [0, 1]."""
    return ImageRows(files)[:]


def _read_image(file: Path) -> NDArray[np.float32]:
    """Return the pixels of an image file, ``(channels, height, width)`` in [0, 1]."""
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise ImportError("Reading images needs Pillow: pip install 'tikas[images]'.") from error
    try:
        with Image.open(file, formats=sorted(set(FORMATS.values()))) as opened:
            image = ImageOps.exif_transpose(opened)
            image.load()
    except Exception as error:  # Pillow raises many types for damaged files
        reason = textwrap.shorten(f"{type(error).__name__}: {error}", 200)
        raise ValueError(f"{file} cannot be read as an image ({reason}). Get a fresh copy, or remove it.") from error
    mode, largest = "L" if image.mode in ("1", "L", "LA") else "RGB", 255
    if image.mode in GRAY_16_BIT:
        mode, largest = image.mode, 65535
    elif image.has_transparency_data:
        image = image.convert("RGBA")
        if np.asarray(image)[..., 3].min() < 255:
            raise ValueError(f"{file} has transparent pixels. Fill in a background, and save it without alpha channel.")
    pixels: NDArray[np.float32] = np.divide(np.asarray(image.convert(mode)), largest, dtype=np.float32)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
