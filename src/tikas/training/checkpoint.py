"""Files of tensors with a JSON header, written completely or not at all, and snapshots to resume a fit exactly."""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import json
import os
import shutil
import time
import warnings
import zlib
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np
import torch
from filelock import FileLock, Timeout
from numpy.typing import NDArray
from torch import Tensor, nn

import tikas
from tikas.data.datasets import Dataset
from tikas.data.splits import Split
from tikas.model.ladder import Model
from tikas.training.recipe import Recipe

_HEADER, _CHECKSUM = "tikas", "checksum"
_KIND = "snapshot"

UNFINISHED = ".unfinished"
"""Suffix of the folder beside the output file of a command, with the snapshots of what is training."""

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
        replace_file(path, payload)
    except OSError as error:
        raise type(error)(
            error.errno,
            f"The file could not be written ({error.strerror}); an existing file is unchanged. Give a path in an "
            f"existing, writable folder with {len(payload) / 1e6:.3g} MB of free space",
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
            metadata = file.metadata() or {}
        text, checksum = metadata.get(_HEADER, "null"), metadata.get(_CHECKSUM, "")
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


def replace_file(path: Path, payload: bytes) -> None:
    """Write a temporary file beside `path`, sync it to the disk, and rename it. Devices and pipes are an OSError."""
    target = Path(os.path.realpath(path))  # of a link, the file that it points to
    if target.exists() and not target.is_file() and not target.is_dir():
        raise OSError(errno.EINVAL, "Not a regular file", str(target))
    name = os.fsdecode(os.fsencode(target.name)[:200])  # a file name has at most 255 bytes
    temporary = target.with_name(f".{name}.{uuid4().hex}.partial")
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
    """A member after some updates: what its engine needs to continue, and what was recorded so far.

    `costs` are those of the updates of an epoch that is not complete, ``(updates, 1 + levels)``.
    """

    tensors: Mapping[str, Tensor]
    history: list[dict[str, Any]]
    updates: int
    costs: Tensor


class _Found(NamedTuple):
    """A snapshot on the disk: which of a member's two files it is, and the members that were saved together."""

    generation: int
    together: Sequence[str]


class Checkpointer:
    """Writes a snapshot of every member to a folder now and then, and finds it again to resume the same fit.

    A resumed fit gives the same result as one without interruption: on a CPU bit by bit, if the same members train
    together. The last two snapshots of a member are kept, so that there is one whatever happens while another is
    written. They are not deleted when the fit ends: call `delete` once its result is safe.

    Parameters
    ----------
    folder : str or Path
        Created if it does not exist. Members in it are locked while they train.
    seconds : float, default=60
        Least time between two snapshots. It grows where writing takes long; 0 means after every epoch.
    names : sequence of str, optional
        Names of the members' files. Default: ``member-0``, ``member-1``, ...
    variant : str, default=""
        What decides the result besides recipe, seed, split and data, such as the function that builds the members.
    accept : collection of str, default=()
        What may differ in a snapshot to resume from: "recipe", "data", "labels", "versions", "device", ...
    save_last : bool, default=False
        Also save after the last epoch: a fit whose result was lost is then not trained again.
    restart_hint : str, default="delete the folder"
        How to begin again, for the message of an error.

    Attributes
    ----------
    resumed_after : dict of str to list of int
        By name of a member that this object resumed: after which epochs it was resumed, in this and earlier processes.

    Examples
    --------
    >>> import tempfile, torch
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     checkpointer = Checkpointer(folder)
    ...     checkpointer.open([{"seed": 0}])
    ...     checkpointer.save([0], lambda: {"model.beta": torch.ones(1, 2)}, [[{"epoch": 1}]], 20)
    ...     checkpointer.close()
    ...     Checkpointer(folder).open([{"seed": 0}])
    [0]
    [20]
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        seconds: float = 60.0,
        names: Sequence[str] | None = None,
        variant: str = "",
        accept: Collection[str] = (),
        save_last: bool = False,
        restart_hint: str = "delete the folder",
    ) -> None:
        self.folder = Path(folder)
        self.seconds = seconds
        self.variant = variant
        self.save_last = save_last
        self.resumed_after: dict[str, list[int]] = {}
        self._given_names = names
        self._accept = accept
        self._restart_hint = restart_hint
        self._identities: Sequence[Mapping[str, Any]] = ()
        self._locks: list[FileLock] = []
        self._latest: dict[str, int] = {}  # by name: which of its two files was written last, or is resumed from
        self._written: set[str] = set()
        self._started = time.monotonic()
        self._duration: float | None = None

    def open(self, identities: Sequence[Mapping[str, Any]], members: Iterable[int] | None = None) -> list[int]:
        """Lock the members of a fit, and return after how many updates each one's snapshot was taken, 0 without one.

        Members that trained together resume from the same update, or begin together: if the process died while their
        snapshots were written, only some of them have the newest one. `members` are those that this process trains,
        by default all.

        Raises
        ------
        OSError
            If the folder cannot be written to.
        RuntimeError
            If another process trains these members.
        ValueError
            If a snapshot is of another fit, or both of a member's are damaged.
        """
        self._identities = identities
        self.folder.mkdir(parents=True, exist_ok=True)
        found: dict[str, dict[int, _Found]] = {}
        try:
            for member in range(len(identities)) if members is None else members:
                name = self.name(member)
                self._lock(name)
                for partial in self._partial_files(name):
                    partial.unlink()
                found[name] = self._find(name, identities[member])
        except BaseException:
            self.close()
            raise
        newest = {name: max(snapshots, default=0) for name, snapshots in found.items()}
        chosen = dict.fromkeys(map(self.name, range(len(identities))), 0)
        for name, snapshots in found.items():
            complete = [
                updates
                for updates, snapshot in snapshots.items()
                if all(newest.get(other, updates) >= updates for other in snapshot.together)
            ]
            if complete:
                chosen[name] = max(complete)
                self._latest[name] = snapshots[max(complete)].generation
        self._started = time.monotonic()
        return list(chosen.values())

    def close(self) -> None:
        """Unlock the members."""
        while self._locks:
            self._locks.pop().release()

    def name(self, member: int) -> str:
        """Return the name of a member's files."""
        return f"member-{member}" if self._given_names is None else self._given_names[member]

    def seeds(self) -> list[int]:
        """Return the seeds of the first members whose snapshots are in the folder."""
        seeds: list[int] = []
        while found := self._headers(self.name(len(seeds))):
            seeds.append(int(found[0]["identity"]["seed"]))
        return seeds

    def load(self, members: Sequence[int]) -> list[Snapshot] | None:
        """Return the snapshots of members that resume together; None if they begin."""
        snapshots = []
        for name in map(self.name, members):
            if name not in self._latest:
                return None
            tensors, header = read_tensors(self._path(name, self._latest[name]))
            costs = tensors.pop("epoch.costs")
            if name not in self._written:  # else it is this process that continues
                self.resumed_after[name] = sorted({*header["resumed_after"], len(header["history"])})
            snapshots.append(Snapshot(tensors, header["history"], header["updates"], costs))
        return snapshots

    def is_due(self, size: int, *, within_epoch: bool = False) -> bool:
        """Return whether the members that train now, of `size` bytes together, should be saved."""
        if self.seconds == 0:
            return not within_epoch
        duration = size / ASSUMED_BYTES_PER_SECOND if self._duration is None else self._duration
        return time.monotonic() >= self._started + max(self.seconds, duration / MAX_SHARE_OF_TIME)

    def save(
        self,
        members: Sequence[int],
        state: Callable[[], Mapping[str, Tensor]],
        histories: Sequence[Sequence[Mapping[str, Any]]],
        updates: int,
        costs: Tensor | None = None,
        skip: Container[int] = (),
    ) -> None:
        """Write a snapshot of the members that train together, but those whose position is in `skip`.

        `state` returns tensors ``(members, ...)``; `costs` of an incomplete epoch are ``(updates, members, 1 +
        levels)``. Where writing fails it only warns, and the earlier snapshots stay.
        """
        started = time.monotonic()
        try:
            tensors = state()
            positions = [position for position in range(len(members)) if position not in skip]
            together = [self.name(members[position]) for position in positions]
            for position in positions:
                own = {name: tensor[position] for name, tensor in tensors.items()}
                own["epoch.costs"] = costs[:, position] if costs is not None and len(costs) else torch.empty(0)
                self._write(members[position], own, histories[position], updates, together)
        except (OSError, MemoryError, RuntimeError) as error:  # RuntimeError: torch could not allocate the copies
            cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
            reason = getattr(cause, "strerror", None) or cause
            message = f"No snapshot could be written to {self.folder} ({reason}). Training continues without it."
            warnings.warn(message, UserWarning, stacklevel=2)
        self._started = time.monotonic()
        self._duration = self._started - started

    def delete(self, members: Iterable[int]) -> None:
        """Delete the snapshots of members, and the folder if it is empty then."""
        self._delete(map(self.name, members))

    def clear(self) -> None:
        """Delete all snapshots in the folder, of whatever fit.

        Raises
        ------
        RuntimeError
            If another process trains one of these members.
        """
        names = [path.name.removesuffix(".lock") for path in self.folder.glob("*.lock")]
        try:
            for name in names:
                self._lock(name)
            self._delete(names)
        finally:
            self.close()

    def _delete(self, names: Iterable[str]) -> None:
        for name in names:
            files = [self._path(name, 0), self._path(name, 1), *self._partial_files(name), self._lock_file(name)]
            for file in files:
                file.unlink(missing_ok=True)
            self._latest.pop(name, None)
        with contextlib.suppress(OSError):
            self.folder.rmdir()

    def _path(self, name: str, generation: int) -> Path:
        return self.folder / f"{name}.{generation}.safetensors"

    def _lock_file(self, name: str) -> Path:
        return self.folder / f"{name}.lock"

    def _partial_files(self, name: str) -> list[Path]:
        """Return the files that killed processes were writing."""
        return list(self.folder.glob(f".{glob.escape(name)}.[01].safetensors.*.partial"))

    def _lock(self, name: str) -> None:
        lock = FileLock(self._lock_file(name), timeout=0, thread_local=False)
        try:
            lock.acquire()
        except Timeout as error:
            raise RuntimeError(
                f"Another process trains {name} of {self.folder} at this moment. Wait until it ends, stop it, or "
                "choose another folder (`tikas train`: another --output)."
            ) from error
        self._locks.append(lock)

    def _headers(self, name: str) -> list[dict[str, Any]]:
        """Return the headers of a member's snapshots that can be read."""
        headers = []
        for generation in (0, 1):
            with contextlib.suppress(ModelFileError, OSError):
                headers.append(_read_header(self._path(name, generation))[1])
        return headers

    def _find(self, name: str, identity: Mapping[str, Any]) -> dict[int, _Found]:
        """Return a member's snapshots that are not damaged, by their numbers of updates."""
        found, damage = {}, None
        for generation in (0, 1):
            try:
                tensors, header = read_tensors(self._path(name, generation))
            except FileNotFoundError:
                continue
            except ModelFileError as error:
                damage = error
                continue
            if not _is_snapshot(tensors, header):
                raise ModelFileError(f"{self._path(name, generation)} is not a snapshot. Give another folder.")
            changes = differences(header["identity"], identity, self._accept)
            if changes:
                raise ValueError(
                    f"{self.folder} has a snapshot of another fit, which differs in {'; '.join(changes)}. Use the "
                    f"same settings and data to continue it, or {self._restart_hint} to begin again."
                )
            found[int(header["updates"])] = _Found(generation, header["together"])
        if damage is not None and not found:
            raise ModelFileError(
                f"{damage} There is no earlier snapshot of {name}: {self._restart_hint} to begin again."
            )
        return found

    def _write(
        self,
        member: int,
        tensors: Mapping[str, Tensor],
        history: Sequence[Mapping[str, Any]],
        updates: int,
        together: Sequence[str],
    ) -> None:
        """Write a member's snapshot in the place of the older one."""
        name = self.name(member)
        generation = 1 - self._latest.get(name, 1)
        header = {
            "kind": _KIND,
            "identity": self._identities[member],
            "history": list(history),
            "updates": updates,
            "together": together,
            "resumed_after": self.resumed_after.get(name, []),
        }
        write_tensors(self._path(name, generation), tensors, header)
        self._latest[name] = generation
        self._written.add(name)


def _is_snapshot(tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> bool:
    """Whether tensors and header have the fields of a snapshot."""
    fields = {"identity": dict, "history": list, "updates": int, "resumed_after": list, "together": list}
    whole = "epoch.costs" in tensors and all(isinstance(header.get(name), kind) for name, kind in fields.items())
    if not whole or header.get("kind") != _KIND:
        return False
    epochs = [line.get("epoch") if isinstance(line, dict) else None for line in header["history"]]
    are_numbers = all(isinstance(epoch, int) for epoch in (*epochs, *header["resumed_after"]))
    return are_numbers and all(isinstance(name, str) for name in header["together"])


def identity_of(
    recipe: Recipe, seed: int, split: Split, dataset: Dataset, device: torch.device, variant: str, start: Model | None
) -> dict[str, Any]:
    """Return what decides the result of a member, as JSON. Large arrays are recognized by a hash, rows by a sample."""
    sample = dataset.rows[:: max(1, len(dataset) // SAMPLED_ROWS)]
    labels = [split.labeled, split.unlabeled, split.validation]
    labels += [dataset.targets[split.labeled], dataset.targets[split.validation]]
    if dataset.weights is not None:
        labels.append(dataset.weights[split.labeled])
    return {
        "recipe": json.loads(recipe.to_json()),
        "seed": seed,
        "data": f"{dataset.rows.dtype} rows of shape {dataset.rows.shape}, {_digest([sample])}",
        "labels": f"{len(split.labeled)} labels, {dataset.n_outputs} outputs, {_digest(labels)}",
        "start": "" if start is None else weights_digest(start),
        "variant": variant,
        "device": device.type,
        "versions": {"tikas": tikas.__version__, "torch": torch.__version__},
    }


def weights_digest(model: nn.Module | Model) -> str:
    """Return a hash of all parameters and buffers of a model."""
    tensors = model.state_dict().values()
    return _digest([tensor.detach().cpu().numpy() for tensor in tensors if isinstance(tensor, Tensor)])


def _digest(arrays: Iterable[NDArray[Any]]) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.shape} {array.dtype}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:16]


def differences(saved: Mapping[str, Any], given: Mapping[str, Any], accept: Collection[str] = ()) -> list[str]:
    """Say for each field in which two identities differ what it was and what it is."""
    found = []
    for name, value in given.items():
        before = saved.get(name)
        if name in accept or before == value:
            continue
        if isinstance(value, dict) and isinstance(before, dict):
            found += [
                f"{name}: {field}={before.get(field)!r} then, {value[field]!r} now"
                for field in value
                if before.get(field) != value[field]
            ]
        else:
            found.append(f"{name}: {before!r} then, {value!r} now")
    return found
