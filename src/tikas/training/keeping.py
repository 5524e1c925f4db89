"""Exact stop and resume: training under way is kept now and then, and goes on from there as if nothing had been."""

from __future__ import annotations

import hashlib
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tikas.data.splits import Split
from tikas.data.streams import Examples
from tikas.training import checkpoint
from tikas.training.recipe import Recipe

SECONDS_BETWEEN = 60.0
MOST_OF_THE_TIME = 0.01
"""The share of the training's time that keeping may take: large fleets are kept less often."""
BYTES_A_SECOND = 5e8
"""What a disk takes, about; once a fleet was kept, it is known."""
KIND = "unfinished training"


class Kept(NamedTuple):
    """Members after a number of epochs.

    Attributes
    ----------
    epochs
        How many they had.
    snapshot
        All that a fleet of them needs to go on, ``(members, ...)`` of everything.
    histories
        Those of the epochs, a list for every member.
    continued
        After which epochs they had gone on from a file before.
    """

    epochs: int
    snapshot: dict[str, Tensor]
    histories: list[list[dict[str, Any]]]
    continued: list[int]

    def of(self, places: Sequence[int]) -> Kept:
        """Some of the members.

        Examples
        --------
        >>> kept = Kept(2, {"beta": torch.eye(3)}, [[{"epoch": 1}], [], []], [])
        >>> kept.of([0, 2]).snapshot["beta"].tolist()
        [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
        """
        snapshot = {name: tensor[list(places)] for name, tensor in self.snapshot.items()}
        return Kept(self.epochs, snapshot, [self.histories[place] for place in places], self.continued)


class Keeping:
    """Where fleets are kept while they train: in memory, for one that has to be split, or in a folder, for good.

    Parameters
    ----------
    folder
        Every fleet has a file in it, until `discard`. Without one, nothing outlives the process.
    what
        What is trained, where recipes, seeds and rows do not say it all.
    every
        Seconds from one time to the next, at the least.

    Attributes
    ----------
    continued
        After which epochs training went on from the folder.
    seconds_before
        What the epochs took that came from there.

    Examples
    --------
    >>> keeping = Keeping(every=0)
    >>> keeping.begin(["a", "b"]) is None  # nothing is kept yet
    True
    >>> keeping.keep(["a", "b"], {"beta": torch.eye(2)}, [[{"epoch": 1}], [{"epoch": 1}]])
    >>> keeping.begin(["b"]).snapshot["beta"].tolist()
    [[0.0, 1.0]]
    """

    def __init__(self, folder: Path | None = None, what: str = "", every: float = SECONDS_BETWEEN) -> None:
        self.what = what
        self.continued: list[int] = []
        self.seconds_before = 0.0
        self._folder, self._every = folder, every
        self._in_memory: dict[tuple[str, ...], Kept] = {}
        self._files: set[Path] = set()
        self._last: dict[tuple[str, ...], tuple[float, float | None]] = {}
        """When members were last kept, or began, and how many seconds that took, if it is known."""

    def begin(self, names: Sequence[str]) -> Kept | None:
        """What is kept of these members, if it is; the clock starts.

        Of several files that hold them all, the one with the most epochs.
        """
        self._last[tuple(names)] = time.monotonic(), None
        if self._folder is not None:
            return self._begin_from_file(names)
        for members, kept in self._in_memory.items():
            if set(names) <= set(members):
                return kept.of([members.index(name) for name in names])
        return None

    def _begin_from_file(self, names: Sequence[str]) -> Kept | None:
        path = self._best_file(names)
        if path is None:
            return None
        tensors, header = checkpoint.read(path)
        kept = Kept(header["epochs"], tensors, header["histories"], header["continued"])
        kept = kept.of([header["members"].index(name) for name in names])
        if path not in self._files:  # of another process, or of an earlier call in this one
            self._files.add(path)
            self.continued = sorted({*self.continued, *kept.continued, kept.epochs})
            self.seconds_before += sum(line["seconds"] for line in kept.histories[0])
        return kept

    def is_due(self, names: Sequence[str], size: int) -> bool:
        """Whether members, of so many bytes, were last kept long enough ago."""
        last, took = self._last[tuple(names)]
        took = size / BYTES_A_SECOND if took is None else took
        return time.monotonic() >= last + max(self._every, took / MOST_OF_THE_TIME)

    def keep(
        self, names: Sequence[str], snapshot: dict[str, Tensor], histories: Sequence[list[dict[str, Any]]]
    ) -> None:
        """Keep members as they are after the epochs that their histories tell of.

        A file that cannot be written is warned of, once: training goes on without.
        """
        started = time.monotonic()
        kept = Kept(len(histories[0]), snapshot, [list(history) for history in histories], self.continued)
        if self._folder is None:
            self._in_memory.pop(tuple(names), None)
            self._in_memory = {tuple(names): kept, **self._in_memory}  # halves before the whole that they were part of
        else:
            self._write(self._folder / f"{_digest(*names)}.safetensors", names, kept)
        now = time.monotonic()
        self._last[tuple(names)] = now, now - started

    def discard(self) -> None:
        """Forget all that was kept or found: it is finished, and its result is on file."""
        self._in_memory.clear()
        for path in self._files:
            path.unlink(missing_ok=True)
        self._files.clear()

    def _write(self, path: Path, names: Sequence[str], kept: Kept) -> None:
        header = {
            "kind": KIND,
            "members": list(names),
            "epochs": kept.epochs,
            "histories": kept.histories,
            "continued": kept.continued,
        }
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            checkpoint.write(path, kept.snapshot, header)
        except OSError as error:
            self._every = float("inf")
            message = f"Training goes on, but cannot be taken up again if it is interrupted: {error}"
            warnings.warn(message, UserWarning, stacklevel=2)
        else:
            self._files.add(path)

    def _best_file(self, names: Sequence[str]) -> Path | None:
        epochs = {}
        for path in self._folder.glob("*.safetensors") if self._folder is not None else ():
            try:
                header = checkpoint.read_header(path)
            except (checkpoint.NotAModelError, OSError):  # half a file, or somebody else's
                continue
            if header.get("kind") == KIND and set(names) <= set(header["members"]):
                epochs[path] = header["epochs"]
        return max(epochs, key=lambda path: epochs[path]) if epochs else None


def name_of(
    recipe: Recipe, seed: int, split: Split, examples: Examples, device: torch.device | str, what: str = ""
) -> str:
    """What a member is kept under: the same only where it would learn the same thing.

    Generators of a GPU draw other numbers than those of a CPU, so a member goes on where it began.

    Examples
    --------
    >>> from tikas.data.splits import split
    >>> examples = Examples(torch.ones(6, 2), torch.arange(6) % 2, 2)
    >>> names = [name_of(Recipe(), seed, split(examples.targets.numpy(), 4), examples, "cpu") for seed in (0, 0, 1)]
    >>> names[0] == names[1], names[0] == names[2]
    (True, False)
    """
    some = examples.rows[:: 1 + len(examples.rows) // 100].double().cpu().numpy()
    targets = examples.targets.cpu().numpy()[split.labeled]
    arrays: list[NDArray[Any]] = [split.labeled, split.unlabeled, split.validation, some, targets]
    data = _digest(*(np.ascontiguousarray(array).tobytes() for array in arrays))
    return _digest(
        recipe.to_json(), str(seed), data, str(tuple(examples.rows.shape)), str(torch.device(device).type), what
    )


def _digest(*parts: str | bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() if isinstance(part, str) else part)
        digest.update(b"\0")
    return digest.hexdigest()[:32]
