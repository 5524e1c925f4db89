"""Files of tensors with a JSON header, written completely or not at all, and snapshots to resume a fit exactly."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import time
import warnings
import zlib
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tikas.data.datasets import Dataset
from tikas.data.splits import Split
from tikas.training.recipe import Recipe

_HEADER, _CHECKSUM = "tikas", "checksum"
_KIND = "snapshot"

MAX_SHARE_OF_TIME = 0.01
"""Share of the training time that writing snapshots may take: those of large ensembles are written less often."""

ASSUMED_BYTES_PER_SECOND = 5e8
"""Speed of a disk, until a snapshot was written and timed."""

SAMPLED_ROWS = 64
"""Rows of a data set that are hashed to recognize it."""


class ModelFileError(ValueError):
    """A file that is not a complete tikas file: another format, truncated or damaged."""


def write_tensors(path: str | Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> Path:
    """Write tensors and a JSON header to a safetensors file, replacing an existing one only when it is complete.

    Raises
    ------
    OSError
        If the file cannot be written; an existing file is unchanged.
    """
    from safetensors.torch import save

    path = Path(path)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(header, sort_keys=True)
    payload = save(tensors, {_HEADER: text, _CHECKSUM: _checksum(text, tensors)})
    try:
        _replace_file(path, payload)
    except OSError as error:
        raise type(error)(
            error.errno,
            f"The file could not be written ({error.strerror}); an existing file is unchanged. Give a path in a "
            f"writable folder with {len(payload) / 1e6:.3g} MB of free space",
            str(path),
        ) from error
    return path


def read_tensors(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the header of a file that `write_tensors` wrote.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ModelFileError
        If it is not a complete tikas file.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    path = Path(path)
    text, header, checksum = _read_header(path)
    try:
        tensors = load(path.read_bytes())
    except (SafetensorError, ValueError, LookupError, TypeError, RuntimeError, OverflowError) as error:
        raise ModelFileError(f"{path} is damaged or truncated ({error}). Copy it again from its source.") from error
    if _checksum(text, tensors) != checksum:
        raise ModelFileError(f"{path} is damaged: its checksum does not match. Copy it again from its source.")
    return tensors, header


def _read_header(path: Path) -> tuple[str, dict[str, Any], str]:
    """Return the header as text and parsed, and the checksum, without reading the tensors."""
    from safetensors import SafetensorError, safe_open

    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist. Give the path of a file that tikas wrote.")
    if not path.is_file():
        raise ModelFileError(f"{path} is not a file. Give the path of a file that tikas wrote.")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata()
        text, checksum = metadata[_HEADER], metadata[_CHECKSUM]
        header = json.loads(text)
    except (SafetensorError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise ModelFileError(
            f"{path} is not a complete tikas file ({error}). Give a file written by `save` or `tikas train`, or copy "
            "it again from its source."
        ) from error
    if not isinstance(header, dict):
        raise ModelFileError(f"{path} is not a tikas file. Give a file written by `save` or `tikas train`.")
    return text, header, checksum


def _checksum(header: str, tensors: Mapping[str, Tensor]) -> str:
    """Return the CRC of the header and of every tensor's name, dtype, shape and values."""
    total = zlib.crc32(header.encode())
    for name, tensor in sorted(tensors.items()):
        total = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), total)
        if tensor.numel():
            total = zlib.crc32(tensor.flatten().view(torch.uint8).numpy().data, total)
    return f"{total:08x}"


def _replace_file(path: Path, payload: bytes) -> None:
    """Write a temporary file beside `path`, sync it to the disk, and rename it. Devices and pipes are an OSError."""
    target = Path(os.path.realpath(path))  # of a link, the file that it points to
    if target.exists() and not target.is_file() and not target.is_dir():
        raise OSError(errno.EINVAL, "Not a regular file", str(target))
    temporary = target.with_name(f".{uuid4().hex}.partial")
    try:
        with temporary.open("xb") as file:
            file.write(payload)
            file.flush()
            os.fsync(file.fileno())
        if target.is_file():
            shutil.copymode(target, temporary)
        temporary.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


class Snapshot(NamedTuple):
    """A member after the epochs of its history: the engine's state of it, and after which epochs it was resumed."""

    tensors: Mapping[str, Tensor]
    history: list[dict[str, Any]]
    resumed_after: list[int]


class Checkpointer:
    """Writes a snapshot of every member to a folder now and then, and finds it again to resume the same fit.

    A resumed fit gives the same result as one without interruption: on a CPU bit by bit, if the same members train
    together. Snapshots are not deleted when the fit ends: call `delete` once its result is saved.

    Parameters
    ----------
    folder : str or Path
        Created with the first snapshot.
    variant : str, default=""
        What decides the result besides recipe, seed, split and data, such as the function that builds the members.
    seconds : float, default=60
        Least time between two snapshots of a member. It grows where writing takes long.

    Attributes
    ----------
    resumed_after : dict of str to list of int
        By key of a member that this object resumed: after which epochs it was resumed, in this and earlier processes.

    Examples
    --------
    >>> import tempfile, torch
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     checkpointer = Checkpointer(folder)
    ...     checkpointer.save(["a"], lambda: {"model.beta": torch.ones(1, 2)}, [[{"epoch": 1}]])
    ...     (snapshot,) = Checkpointer(folder).load(["a"])
    >>> snapshot.history, snapshot.tensors["model.beta"]
    ([{'epoch': 1}], tensor([1., 1.]))
    """

    def __init__(self, folder: str | Path, *, variant: str = "", seconds: float = 60.0) -> None:
        self.folder = Path(folder)
        self.variant = variant
        self.seconds = seconds
        self.resumed_after: dict[str, list[int]] = {}
        self._written: set[str] = set()
        self._started = time.monotonic()
        self._duration: float | None = None

    def key(self, recipe: Recipe, seed: int, split: Split, dataset: Dataset, device: torch.device) -> str:
        """Return the name of a member's snapshot: equal only for members that would learn the same.

        The data set is recognized by its shape, dtype and a sample of rows, and by the targets and weights used.
        """
        sample = dataset.rows[:: max(1, len(dataset) // SAMPLED_ROWS)]
        targets: NDArray[Any] = dataset.targets[split.labeled]
        arrays: list[NDArray[Any]] = [split.labeled, split.unlabeled, split.validation, sample, targets]
        if dataset.weights is not None:
            arrays.append(dataset.weights[split.labeled])
        settings = (recipe.to_json(), seed, self.variant, dataset.rows.shape, str(dataset.rows.dtype))
        digest = hashlib.sha256(repr((*settings, dataset.n_outputs, device.type, torch.__version__)).encode())
        for array in arrays:
            digest.update(f"{array.shape} {array.dtype}".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()[:32]

    def epochs(self, key: str) -> int:
        """Return after how many epochs a member's snapshot was taken, 0 without one."""
        with contextlib.suppress(ModelFileError, OSError):
            header = _read_header(self._path(key))[1]
            return len(header["history"]) if header.get("kind") == _KIND else 0
        return 0

    def load(self, keys: Sequence[str]) -> list[Snapshot] | None:
        """Return the snapshots of members that train together; None unless all are complete and of the same epoch."""
        self._started, self._duration = time.monotonic(), None
        snapshots = []
        for key in keys:
            with contextlib.suppress(ModelFileError, OSError):
                tensors, header = read_tensors(self._path(key))
                if header.get("kind") == _KIND:
                    snapshots.append(Snapshot(tensors, header["history"], header["resumed_after"]))
        if len(snapshots) < len(keys) or len({len(snapshot.history) for snapshot in snapshots}) > 1:
            return None
        for key, snapshot in zip(keys, snapshots, strict=True):
            if key not in self._written:  # else it is this process that continues
                self.resumed_after[key] = sorted({*snapshot.resumed_after, len(snapshot.history)})
        return snapshots

    def is_due(self, size: int) -> bool:
        """Return whether the members that train now, of `size` bytes together, should be saved."""
        duration = size / ASSUMED_BYTES_PER_SECOND if self._duration is None else self._duration
        return time.monotonic() >= self._started + max(self.seconds, duration / MAX_SHARE_OF_TIME)

    def save(
        self,
        keys: Sequence[str],
        state: Callable[[], Mapping[str, Tensor]],
        histories: Sequence[Sequence[Mapping[str, Any]]],
        skip: Container[int] = (),
    ) -> None:
        """Write a snapshot of members, by position, but those in `skip`. Where that fails it only warns.

        `state` returns tensors ``(members, ...)``.
        """
        started = time.monotonic()
        try:
            tensors = state()
            self.folder.mkdir(parents=True, exist_ok=True)
            for member, (key, history) in enumerate(zip(keys, histories, strict=True)):
                if member in skip:
                    continue
                resumed_after = self.resumed_after.get(key, [])
                header = {"kind": _KIND, "history": list(history), "resumed_after": resumed_after}
                write_tensors(self._path(key), {name: tensor[member] for name, tensor in tensors.items()}, header)
                self._written.add(key)
        except (OSError, MemoryError, RuntimeError) as error:  # RuntimeError: torch could not allocate the copies
            cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
            reason = getattr(cause, "strerror", None) or cause
            message = f"No snapshot could be written to {self.folder} ({reason}). Training continues without it."
            warnings.warn(message, UserWarning, stacklevel=2)
        self._started = time.monotonic()
        self._duration = self._started - started

    def delete(self, key: str) -> None:
        """Delete a member's snapshot, if there is one, and the folder if it is empty."""
        self._path(key).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.folder.rmdir()

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.safetensors"
