"""Files of a published data set: found in a folder that somebody named, or downloaded once with their hashes."""

from __future__ import annotations

import logging
import os
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from rich.progress import Progress

Arrays = tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]
"""Training images, their classes, test images, their classes."""

Form = tuple[tuple[str, ...], ...]
"""Files that make up a data set together, each by the names that it may have."""


@dataclass(frozen=True)
class PublishedData:
    """A data set as others publish it.

    Parameters
    ----------
    name : str
        Also the name of the folder that its files may lie in.
    mirrors : tuple of str
        Addresses, each of which holds all of the files to be downloaded; asked one after the other.
    hashes : mapping of str to str
        The files to be downloaded, each with its hash.
    forms : tuple of Form
        What its files may be in a folder; the first form that is complete is taken.
    in_words : str
        What to put into a folder, for those who have to.
    subfolders : tuple of str
        Where in a folder they may lie, as they do once an archive was unpacked there.

    Examples
    --------
    >>> from tikas.data.mnist import MNIST
    >>> MNIST.name, len(MNIST.hashes), MNIST.forms[0][0]
    ('mnist', 4, ('train-images-idx3-ubyte', 'train-images-idx3-ubyte.gz'))
    """

    name: str
    mirrors: tuple[str, ...]
    hashes: Mapping[str, str]
    forms: tuple[Form, ...]
    in_words: str
    subfolders: tuple[str, ...] = ("",)


def files_of(published: PublishedData, data_dir: str | os.PathLike[str] | None = None) -> list[Path]:
    """The files of a data set: from the folder that is named here or by ``TIKAS_DATA``, else from the cache.

    Raises
    ------
    FileNotFoundError
        If files are missing from the folder that was named, or cannot be downloaded.

    Examples
    --------
    >>> import tempfile
    >>> from tikas.data.mnist import MNIST
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in MNIST.hashes:
    ...         Path(folder, name).touch()
    ...     [path.name for path in files_of(MNIST, folder)][:2]
    ['train-images-idx3-ubyte.gz', 'train-labels-idx1-ubyte.gz']
    """
    folder = data_dir or os.environ.get("TIKAS_DATA")
    return _placed_files(published, Path(folder).expanduser()) if folder else _downloaded_files(published)


def _placed_files(published: PublishedData, folder: Path) -> list[Path]:
    """Find a complete form in the folder of the data set's name, or else in the given folder itself."""
    name = published.name
    if not folder.is_dir():
        raise FileNotFoundError(
            f"{folder} is not a folder, so {name} cannot be read from it. {_where_to_put_them(published, folder)}"
        )
    best = (-1, [""])
    for place in (above / subfolder for above in (folder / name, folder) for subfolder in published.subfolders):
        for form in published.forms:
            found = [next((place / n for n in names if (place / n).is_file()), None) for names in form]
            paths = [path for path in found if path is not None]
            if len(paths) == len(form):
                return paths
            missing = [names[0] for names, path in zip(form, found, strict=True) if path is None]
            best = max(best, (len(paths), missing), key=lambda each: each[0])
    raise FileNotFoundError(
        f"{name} is incomplete: {', '.join(best[1])} not found in {folder} or {folder / name}. "
        f"{_where_to_put_them(published, folder)}"
    )


def _where_to_put_them(published: PublishedData, folder: Path | None = None) -> str:
    place = f"{folder} or {folder / published.name}" if folder else "a folder of your choice"
    return (
        f"Put {published.in_words} into {place}; "
        f"the folder is named by --data-dir or by the environment variable TIKAS_DATA."
    )


def _downloaded_files(published: PublishedData) -> list[Path]:
    import pooch
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with (
        _only_warnings_of(pooch.get_logger()),
        Progress(console=console, transient=True, disable=not console.is_terminal) as progress,
    ):
        return [_download(published, file, progress) for file in published.hashes]


def _download(published: PublishedData, file: str, progress: Progress) -> Path:
    """Return the file's place in the cache, asking one mirror after the other if it is not there yet."""
    import pooch

    failures = []
    for mirror in published.mirrors:
        try:
            path = pooch.retrieve(
                mirror + file,
                known_hash=published.hashes[file],
                fname=file,
                path=pooch.os_cache("tikas") / published.name,
                progressbar=_DownloadBar(progress, file),
            )
        except (OSError, ValueError) as error:  # requests' errors are OSErrors; a wrong hash is a ValueError
            failures.append(f"{mirror}{file}: {textwrap.shorten(str(error), 200)}")
        else:
            return Path(path)
    raise FileNotFoundError(
        f"{published.name} is not on this machine and could not be downloaded ({'; '.join(failures)}). "
        f"{_where_to_put_them(published)}"
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
