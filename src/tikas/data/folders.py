"""A folder of images as a data set: a folder for each class, and one for the images without a label."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tikas.data.labels import NO_LABEL
from tikas.data.sources import Dataset

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".bmp": "BMP", ".webp": "WEBP"}
WITHOUT_LABEL = ("unlabeled", "unlabelled")
FOR_TESTS = "test"
LEFT_BEHIND = ("thumbs.db", "desktop.ini", "__macosx")
"""By file managers and archives."""

SIXTEEN_BITS = ("I;16", "I")
"""Pillow's modes of grey PNG files with 16 bits; the second is that of its older versions."""

LAYOUT = (
    "Expected a folder for each class with its images in it (cats/1.png, dogs/1.png), perhaps a folder unlabeled with "
    "images without a label, and perhaps a folder test with a folder for each class."
)


def read_folder(path: str | os.PathLike[str]) -> Dataset:
    """Read a folder of images.

    Parameters
    ----------
    path : path
        A folder that holds ``CLASS/*.png`` for every class and perhaps ``unlabeled/*.png`` and ``test/CLASS/*.png``;
        ``.jpg``, ``.jpeg``, ``.bmp`` and ``.webp`` files too. All images are of one size, and all grey or all in
        colour. An alpha channel is dropped where everything is opaque, and refused elsewhere. A photograph is turned
        as its camera says. Whether ``unlabeled`` has capitals or a second l does not matter. What file managers and
        archives leave behind is passed over, as is all whose name begins with a dot.

    Returns
    -------
    Dataset
        Classes in the order of their names, images in the order of theirs; ``train_y`` is -1 for ``unlabeled``. There
        are no test rows where there is no folder ``test``.

    Raises
    ------
    FileNotFoundError, NotADirectoryError
        If there is no such folder.
    ValueError
        If it does not hold images in folders, if one of them cannot be read, or if one is not like the first: the
        message names the file.
    ImportError
        If Pillow is not installed.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from PIL import Image
    >>> from tikas.data.folders import read_folder
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name, grey in {"day/1.png": 255, "night/1.png": 0, "unlabeled/1.png": 51}.items():
    ...         file = Path(folder, name)
    ...         file.parent.mkdir()
    ...         Image.new("L", (8, 6), grey).save(file)
    ...     data = read_folder(folder)
    >>> data.classes, data.train_y, data.train_x.shape
    (('day', 'night'), array([ 0,  1, -1]), (3, 1, 6, 8))
    >>> data.train_x[:, 0, 0, 0]
    array([1. , 0. , 0.2], dtype=float32)
    """
    root = Path(path).expanduser()
    if not root.exists():
        raise FileNotFoundError(f"{root} does not exist. Check the spelling and the folder it is looked for in.")
    if not root.is_dir():
        raise NotADirectoryError(f"{root} is no folder. {LAYOUT}")
    folders = _folders_in(root)
    tests = folders.pop(FOR_TESTS, None)
    unlabeled = [folders.pop(name) for name in list(folders) if name.casefold() in WITHOUT_LABEL]
    if len(folders) < 2:
        raise ValueError(
            f"{root} holds {'one class, ' + ', '.join(folders) if folders else 'no class'}; there must be two or more "
            f"to tell apart. {LAYOUT}"
        )
    classes = tuple(folders)
    train = [(file, code) for code, name in enumerate(classes) for file in _images_in(folders[name])]
    train += [(file, NO_LABEL) for folder in unlabeled for file in _images_in(folder)]
    test = _test_images(tests, classes) if tests else []
    x = read_images([file for file, _ in train + test])
    y = np.array([code for _, code in train + test], np.int64)
    n = len(train)
    return Dataset(str(path), x[:n], y[:n], x[n:], y[n:], classes)


def _test_images(folder: Path, classes: tuple[str, ...]) -> list[tuple[Path, int]]:
    folders = _folders_in(folder)
    unknown = [name for name in folders if name not in classes]
    if unknown or not folders:
        found = f"{folder / unknown[0]} is none of the classes" if unknown else f"{folder} has no folder of a class"
        raise ValueError(
            f"{found} ({', '.join(classes[:10])}{', …' if len(classes) > 10 else ''}). Test images lie in folders that "
            f"are named like those of the training images."
        )
    return [(file, classes.index(name)) for name in folders for file in _images_in(folders[name])]


def _folders_in(root: Path) -> dict[str, Path]:
    """The folders by their names, in order; loose images are an error, other loose files (a README) are not."""
    entries = _entries(root)
    loose = [entry for entry in entries if entry.suffix.lower() in FORMATS and not entry.is_dir()]
    if loose:
        raise ValueError(f"{loose[0]} lies outside of the folders of the classes. {LAYOUT}")
    return {entry.name: entry for entry in entries if entry.is_dir()}


def _images_in(folder: Path) -> list[Path]:
    entries = _entries(folder)
    for entry in entries:
        if entry.is_dir():
            raise ValueError(f"{entry} is a folder within the folder of a class. {LAYOUT}")
        if entry.suffix.lower() not in FORMATS:
            raise ValueError(
                f"{entry} is of a kind that is not read; expected {', '.join(FORMATS)}. Convert it, or take it out."
            )
    if not entries:
        raise ValueError(f"{folder} holds no images. Put some into it, or take it away.")
    return entries


def _entries(folder: Path) -> list[Path]:
    """What is in a folder, in the order of names, without what is passed over."""
    return sorted((entry for entry in folder.iterdir() if not _passed_over(entry.name)), key=lambda entry: entry.name)


def _passed_over(name: str) -> bool:
    return name.startswith(".") or name.casefold() in LEFT_BEHIND


def find_images(path: str | os.PathLike[str]) -> list[Path]:
    """The images in a folder and in the folders within it, in the order of their paths; other files are passed over.

    Raises
    ------
    ValueError
        If there are none.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ("b.png", "a.JPG", "notes.txt", ".hidden.png"):
    ...         Path(folder, name).touch()
    ...     [file.name for file in find_images(folder)]
    ['a.JPG', 'b.png']
    """
    root = Path(path)
    files = sorted(file for file in _below(root) if file.suffix.lower() in FORMATS and file.is_file())
    if not files:
        raise ValueError(f"{root} holds no images; expected files that end in {', '.join(FORMATS)}.")
    return files


def _below(folder: Path, above: tuple[Path, ...] = ()) -> Iterator[Path]:
    """What lies in a folder and in those within it, linked ones too, but for a link back to where it comes from."""
    above = (*above, folder.resolve())
    for entry in _entries(folder):
        if not entry.is_dir():
            yield entry
        elif entry.resolve() not in above:
            yield from _below(entry, above)


def read_images(files: Sequence[Path]) -> NDArray[np.float32]:
    """Read images that are all of one size, and all grey or all in colour.

    Returns
    -------
    ndarray of float32, shape (n, channels, height, width)
        Pixels in [0, 1], of 8 bits and of 16; one channel if they are grey, else three.

    Raises
    ------
    ValueError
        If a file cannot be read, or is not like the first.
    ImportError
        If Pillow is not installed.

    Examples
    --------
    >>> import tempfile
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "red.png")
    ...     Image.new("RGB", (8, 6), "red").save(file)
    ...     x = read_images([file])
    >>> x.shape, x[0, :, 0, 0]
    ((1, 3, 6, 8), array([1., 0., 0.], dtype=float32))
    """
    first = _read(files[0])
    x = np.empty((len(files), *first.shape), np.float32)
    for at, file in enumerate(files):
        pixels = _read(file)
        if pixels.shape != first.shape:
            raise ValueError(
                f"{file} is {_in_words(pixels)}, but {files[0]} is {_in_words(first)}. All images must be of one size, "
                f"and all grey or all in colour. Resize or convert those that are not, for instance with Pillow's "
                f"Image.resize and Image.convert."
            )
        x[at] = pixels
    return x


def _in_words(pixels: NDArray[np.float32]) -> str:
    channels, height, width = pixels.shape
    return f"{'grey' if channels == 1 else 'in colour'}, {width} wide and {height} high, {pixels.shape}"


def _read(file: Path) -> NDArray[np.float32]:
    """The pixels of an image in [0, 1], channels first."""
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise ImportError("Images are read by Pillow, which is not installed: pip install 'tikas[images]'.") from error
    try:
        with Image.open(file, formats=sorted(set(FORMATS.values()))) as opened:
            animated = getattr(opened, "n_frames", 1) > 1
            image = ImageOps.exif_transpose(opened)
            image.load()
    except Exception as error:  # a damaged image may fail in any way
        reason = textwrap.shorten(f"{type(error).__name__}: {error}", 200)
        raise ValueError(
            f"{file} cannot be read as an image ({reason}). Get a fresh copy of it, or take it out."
        ) from error
    if animated:
        raise ValueError(f"{file} holds more than one picture. Save one of them alone, or take it out.")
    largest = 65535 if image.mode in SIXTEEN_BITS else 255
    pixels: NDArray[np.float32] = np.divide(np.asarray(_opaque(image, file)), largest, dtype=np.float32)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def _opaque(image: Image, file: Path) -> Image:
    """The image as grey or in colour, without the alpha channel that it may have."""
    if image.mode not in ("1", "L", "LA", "P", "PA", "RGB", "RGBA", *SIXTEEN_BITS):
        raise ValueError(
            f"{file} has pixels of the mode {image.mode!r}; expected 8 or 16 bits of grey, or 8 bits of red, green and "
            f"blue. Convert it, for instance with Pillow's Image.convert('RGB'). Scale grey of the mode 'F' to 0…255 "
            f"before Image.convert('L'), which makes all above that white."
        )
    kind, opaque = "L" if image.mode in ("1", "L", "LA") else "RGB", True
    if image.mode in SIXTEEN_BITS:
        kind, opaque = image.mode, bool((np.asarray(image) != image.info.get("transparency")).all())
    elif image.has_transparency_data:
        image = image.convert("RGBA")
        opaque = bool((np.asarray(image)[..., 3] == 255).all())
    if not opaque:
        raise ValueError(
            f"{file} is transparent in places, where it has no colour of its own. Put it onto a background, for "
            f"instance with Pillow's Image.alpha_composite, and save it without the alpha channel."
        )
    return image.convert(kind)
