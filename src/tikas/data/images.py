"""Images as arrays ``(n, channels, height, width)``, and folders of image files."""

from __future__ import annotations

import os
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tikas.data.datasets import Dataset
from tikas.data.labels import NO_LABEL

if TYPE_CHECKING:
    from PIL.Image import Image

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
MAX_ROWS_FOR_SCALE = 2000
CHANNELS_FIRST = "Channels come first: use numpy.moveaxis(images, -1, 1)."


def as_images(x: NDArray[Any]) -> NDArray[Any]:
    """Return images as ``(n, channels, height, width)``; gray ones may be given as ``(n, height, width)``."""
    images = x[:, None] if x.ndim == 3 else x
    if images.ndim != 4:
        raise ValueError(
            f"Got an array of shape {x.shape}; expected images, (n, channels, height, width), or (n, height, width) if "
            "they are gray."
        )
    n, height, width, channels = images.shape
    # Certainly channels last: square images, or few channels behind long sides. Other shapes only get a warning.
    if channels <= 4 and (height == width > 4 or min(height, width) >= 16):
        raise ValueError(
            f"Got images of shape {x.shape}; expected {(n, channels, height, width)}. {CHANNELS_FIRST} If the images "
            f"really are {channels} wide, swap height and width with numpy.swapaxes(images, 2, 3)."
        )
    return images


def warn_channels_last(images: NDArray[Any], takes_maps: bool, preprocess: str, stacklevel: int = 2) -> None:
    """Warn if images that `as_images` accepts may have their channels last.

    No warning if the order of the values does not matter: to a dense network without preprocessing.
    """
    if images.ndim != 4 or (preprocess == "none" and not takes_maps):
        return
    n, *sides, last = images.shape
    if last in (1, 3, 4) and last < min(sides):
        warnings.warn(
            f"Images of shape {images.shape} are read as (n, channels, height, width), {last} wide. If they are "
            "(n, height, width, channels), use numpy.moveaxis(images, -1, 1) to get "
            f"{(n, last, *sides)}; else avoid this warning with numpy.swapaxes(images, 2, 3).",
            UserWarning,
            stacklevel=stacklevel + 1,
        )


def as_shaped(x: NDArray[Any], shape: Sequence[int]) -> NDArray[Any]:
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
    """Return what should have a common scale as columns: of images the channels, ``(positions, channels)``.

    Takes at most some 2000 images, evenly spread: enough to judge their scale.
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
        opaque alpha channel is dropped; photographs are rotated as their EXIF data says. Hidden files are skipped.

    Returns
    -------
    tuple of Dataset
        Training and test images ``(n, channels, height, width)``, pixels in [0, 1], in the order of class and file
        names. Without a folder ``test`` there are 0 test images.

    Raises
    ------
    FileNotFoundError, NotADirectoryError
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
    if not root.exists():
        raise FileNotFoundError(f"{root} does not exist. Check its spelling, and the folder you are in.")
    if not root.is_dir():
        raise NotADirectoryError(f"{root} is not a folder. {LAYOUT}")
    folders = _class_folders(root)
    test_root = folders.pop(TEST_FOLDER, None)
    unlabeled = [folders.pop(name) for name in list(folders) if name.casefold() in UNLABELED_FOLDERS]
    classes = list(folders)
    if len(classes) < 2:
        found = f"one class only, {classes[0]}" if classes else "no class"
        raise ValueError(f"{root} holds {found}; a classifier needs two or more. {LAYOUT}")
    train = [(file, code) for code, name in enumerate(classes) for file in _image_files(folders[name])]
    train += [(file, NO_LABEL) for folder in unlabeled for file in _image_files(folder)]
    test = _test_images(test_root, classes) if test_root else []
    rows = read_images([file for file, _ in train + test])
    codes = np.array([code for _, code in train + test], np.int64)
    names, n = np.array(classes), len(train)
    return Dataset(rows[:n], codes[:n], classes=names), Dataset(rows[n:], codes[n:], classes=names)


def _test_images(root: Path, classes: list[str]) -> list[tuple[Path, int]]:
    folders = _class_folders(root)
    unknown = [name for name in folders if name not in classes]
    if unknown or not folders:
        found = f"{root / unknown[0]} is not one of the classes" if unknown else f"{root} has no folder of a class"
        raise ValueError(
            f"{found} ({', '.join(classes[:10])}{', …' if len(classes) > 10 else ''}). Test images must be in folders "
            "with the names of the classes."
        )
    return [(file, classes.index(name)) for name in folders for file in _image_files(folders[name])]


def _class_folders(root: Path) -> dict[str, Path]:
    """Return the folders in `root` by name; images beside them are an error, other files (a README) are not."""
    entries = _entries(root)
    loose = [entry for entry in entries if entry.suffix.lower() in FORMATS and not entry.is_dir()]
    if loose:
        raise ValueError(f"{loose[0]} is not in the folder of a class. {LAYOUT}")
    return {entry.name: entry for entry in entries if entry.is_dir()}


def _image_files(folder: Path) -> list[Path]:
    entries = _entries(folder)
    for entry in entries:
        if entry.is_dir():
            raise ValueError(f"{entry} is a folder inside the folder of a class. {LAYOUT}")
        if entry.suffix.lower() not in FORMATS:
            raise ValueError(f"{entry} is not an image file: expected {', '.join(FORMATS)}. Convert or remove it.")
    if not entries:
        raise ValueError(f"{folder} holds no images. Add some, or remove the folder.")
    return entries


def _entries(folder: Path) -> list[Path]:
    """Return the entries of a folder, sorted by name, without hidden files and those of file managers and archives."""
    entries = sorted(folder.iterdir(), key=lambda entry: entry.name)
    return [each for each in entries if not each.name.startswith(".") and each.name.casefold() not in IGNORED_FILES]


def find_images(path: str | os.PathLike[str]) -> list[Path]:
    """Return the image files in a folder and its subfolders, sorted by path; raise ValueError if there are none."""
    files = sorted(file for file in _files_below(Path(path)) if file.suffix.lower() in FORMATS and file.is_file())
    if not files:
        raise ValueError(f"{path} holds no images; expected files that end in {', '.join(FORMATS)}.")
    return files


def _files_below(folder: Path, parents: tuple[Path, ...] = ()) -> Iterator[Path]:
    """Yield files at any depth; follows links to folders, but not back to a folder it is in."""
    parents = (*parents, folder.resolve())
    for entry in _entries(folder):
        if not entry.is_dir():
            yield entry
        elif entry.resolve() not in parents:
            yield from _files_below(entry, parents)


def read_images(files: Sequence[Path]) -> NDArray[np.float32]:
    """Read image files of one size, all gray or all in color, as ``(n, channels, height, width)`` in [0, 1]."""
    first = _read_image(files[0])
    x = np.empty((len(files), *first.shape), np.float32)
    for i, file in enumerate(files):
        pixels = _read_image(file)
        if pixels.shape != first.shape:
            raise ValueError(
                f"{file} is {_describe(pixels)}, but {files[0]} is {_describe(first)}. All images must have one size, "
                "and be all gray or all in color. Resize or convert them, for instance with Pillow's Image.resize and "
                "Image.convert."
            )
        x[i] = pixels
    return x


def _describe(pixels: NDArray[np.float32]) -> str:
    channels, height, width = pixels.shape
    return f"{'gray' if channels == 1 else 'in color'}, {width} wide and {height} high, {pixels.shape}"


def _read_image(file: Path) -> NDArray[np.float32]:
    """Return the pixels of an image file, ``(channels, height, width)`` in [0, 1]."""
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise ImportError("Reading images needs Pillow: pip install 'tikas[images]'.") from error
    try:
        with Image.open(file, formats=sorted(set(FORMATS.values()))) as opened:
            animated = getattr(opened, "n_frames", 1) > 1
            image = ImageOps.exif_transpose(opened)
            image.load()
    except Exception as error:  # Pillow raises many types for damaged files
        reason = textwrap.shorten(f"{type(error).__name__}: {error}", 200)
        raise ValueError(f"{file} cannot be read as an image ({reason}). Get a fresh copy, or remove it.") from error
    if animated:
        raise ValueError(f"{file} holds more than one image. Save one of them alone, or remove it.")
    largest = 65535 if image.mode in GRAY_16_BIT else 255
    pixels: NDArray[np.float32] = np.divide(np.asarray(_without_alpha(image, file)), largest, dtype=np.float32)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def _without_alpha(image: Image, file: Path) -> Image:
    """Convert to gray (8 or 16 bits) or RGB; raise ValueError if a pixel is transparent."""
    if image.mode not in ("1", "L", "LA", "P", "PA", "RGB", "RGBA", *GRAY_16_BIT):
        raise ValueError(
            f"{file} has Pillow's pixel mode {image.mode!r}; expected gray of 8 or 16 bits, or RGB of 8 bits. Convert "
            "it, for instance with Pillow's Image.convert('RGB'). Scale float pixels (mode 'F') to 0...255 before "
            "Image.convert('L'), which clips them."
        )
    kind, opaque = "L" if image.mode in ("1", "L", "LA") else "RGB", True
    if image.mode in GRAY_16_BIT:
        kind, opaque = image.mode, bool((np.asarray(image) != image.info.get("transparency")).all())
    elif image.has_transparency_data:
        image = image.convert("RGBA")
        opaque = bool((np.asarray(image)[..., 3] == 255).all())
    if not opaque:
        raise ValueError(
            f"{file} has transparent pixels. Put it onto a background, for instance with Pillow's "
            "Image.alpha_composite, and save it without its alpha channel."
        )
    return image.convert(kind)
