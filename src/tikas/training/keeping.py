"""Exact stop and resume: training under way is kept now and then, and goes on from there as if nothing had been."""

from __future__ import annotations

import hashlib
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tikas.data.kinds import DATA_SETS
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
    """A member after the epochs of its history.

    Attributes
    ----------
    tensors
        All that it needs to go on.
    history
        A line for every epoch that it had.
    continued
        After which epochs it had gone on from a file.
    """

    tensors: Mapping[str, Tensor]
    history: list[dict[str, Any]]
    continued: list[int]


class Folder:
    """Members in files of a folder, by their names.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     folder = Folder(Path(place, "unfinished"))
    ...     folder["a"] = Kept({"beta": torch.ones(2)}, [{"epoch": 1}], [])
    ...     folder.epochs("a"), folder.epochs("b"), folder.get("a").tensors["beta"].tolist()
    (1, 0, [1.0, 1.0])
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def epochs(self, name: str) -> int:
        """How many epochs a member had that is kept here; none of one that is not, or whose file is damaged."""
        kept = self.get(name)
        return 0 if kept is None else len(kept.history)

    def get(self, name: str) -> Kept | None:
        """A member, if it is kept here and its file is whole."""
        try:
            tensors, header = checkpoint.read(self._file(name))
        except (checkpoint.NotAModelError, OSError):
            return None
        return Kept(tensors, header["history"], header["continued"]) if header.get("kind") == KIND else None

    def __setitem__(self, name: str, kept: Kept) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        header = {"kind": KIND, "history": kept.history, "continued": kept.continued}
        checkpoint.write(self._file(name), kept.tensors, header)

    def discard(self, name: str) -> None:
        """Delete a member's file, if there is one, and the folder if nothing is left in it."""
        self._file(name).unlink(missing_ok=True)
        with suppress(OSError):  # it holds others, or is not there
            self.path.rmdir()

    def _file(self, name: str) -> Path:
        return self.path / f"{name}.safetensors"


class Memory(dict[str, Kept]):
    """Members while the process lasts, for a fleet that may have to be split.

    Examples
    --------
    >>> memory = Memory(a=Kept({}, [{"epoch": 1}], []))
    >>> memory.epochs("a"), memory.epochs("b")
    (1, 0)
    """

    def epochs(self, name: str) -> int:
        """How many epochs a member had that is kept here."""
        return len(self[name].history) if name in self else 0

    def discard(self, name: str) -> None:
        """Forget a member, if it is here."""
        self.pop(name, None)


class Keeping:
    """What becomes of training under way: every now and then its members are kept, each by its name.

    Parameters
    ----------
    store
        Where they are kept.
    what
        What is trained, where recipes, seeds and rows do not say it all: which function builds the members, say.
    every
        Seconds from one time to the next, at the least; by default `SECONDS_BETWEEN`.

    Attributes
    ----------
    names
        The members' names, in the order of `fit`.
    continued
        By name, after which epochs a member went on from where another call had kept it.

    Examples
    --------
    >>> keeping = Keeping(Memory(), every=0)
    >>> keeping.keep(["a", "b"], lambda: {"beta": torch.eye(2)}, [[{"epoch": 1}], [{"epoch": 1}]])
    >>> keeping.take_up(["b"])[0].tensors["beta"].tolist()
    [0.0, 1.0]
    """

    def __init__(self, store: Folder | Memory, what: str = "", every: float | None = None) -> None:
        self.store = store
        self.what = what
        self.names: Sequence[str] = ()
        self.continued: dict[str, list[int]] = {}
        self._own: set[str] = set()
        self._every = SECONDS_BETWEEN if every is None else every
        self._last: dict[tuple[str, ...], tuple[float, float | None]] = {}
        """When members were last kept, or began, and how many seconds that took, if it is known."""

    def epochs(self, name: str) -> int:
        """How many a member had when it was kept."""
        return self.store.epochs(name)

    def take_up(self, names: Sequence[str]) -> list[Kept] | None:
        """Members as they were kept, if all of them are, after equally many epochs; the clock starts."""
        self.start_clock(names)
        members = [kept for kept in map(self.store.get, names) if kept is not None]
        if len(members) < len(names) or len({len(kept.history) for kept in members}) > 1:
            return None
        for name, kept in zip(names, members, strict=True):
            if name not in self._own:
                self.continued[name] = sorted({*kept.continued, len(kept.history)})
        return members

    def start_clock(self, names: Sequence[str]) -> None:
        """From now on it counts when these members were last kept."""
        self._last[tuple(names)] = time.monotonic(), None

    def is_due(self, names: Sequence[str], size: int) -> bool:
        """Whether members, of so many bytes together, were last kept long enough ago."""
        if isinstance(self.store, Memory) and len(names) == 1:
            return False  # there is nothing to split
        last, took = self._last[tuple(names)]
        took = size / BYTES_A_SECOND if took is None else took
        return time.monotonic() >= last + max(self._every, took / MOST_OF_THE_TIME)

    def keep(
        self,
        names: Sequence[str],
        snapshot: Callable[[], Mapping[str, Tensor]],
        histories: Sequence[list[dict[str, Any]]],
    ) -> None:
        """Keep members as they are after the epochs of their histories, if it can be done; else training just goes on.

        Parameters
        ----------
        names
            Of the members.
        snapshot
            Gives all that they need to go on, ``(members, ...)`` of everything.
        histories
            A list for every member.
        """
        started = time.monotonic()
        try:
            tensors = snapshot()
            for place, (name, history) in enumerate(zip(names, histories, strict=True)):
                of_a_member = {key: tensor[place] for key, tensor in tensors.items()}
                self.store[name] = Kept(of_a_member, list(history), self.continued.get(name, []))
                self._own.add(name)
        except (OSError, MemoryError, RuntimeError) as error:  # the last is how torch says that memory is wanting
            cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
            reason = getattr(cause, "strerror", None) or cause
            where = f" in {self.store.path}" if isinstance(self.store, Folder) else ""
            message = f"Training goes on, but could not be kept{where} for the case that it is interrupted: {reason}."
            warnings.warn(message, UserWarning, stacklevel=2)
        now = time.monotonic()
        self._last[tuple(names)] = now, now - started

    def discard(self, names: Sequence[str]) -> None:
        """Forget members that are finished and whose results are safe."""
        for name in names:
            self.store.discard(name)


def name_of(
    recipe: Recipe, seed: int, split: Split, examples: Examples, device: torch.device | str, what: str = ""
) -> str:
    """What a member is kept under: the same only where it would learn the same thing.

    Generators of a GPU draw other numbers than those of a CPU, so a member goes on where it began. The rows of a data
    set follow from the recipe; others are looked at.

    Examples
    --------
    >>> from tikas.data.splits import split
    >>> examples = Examples(torch.ones(6, 2), torch.arange(6) % 2, 2)
    >>> names = [name_of(Recipe(), seed, split(examples.targets.numpy(), 4), examples, "cpu") for seed in (0, 0, 1)]
    >>> names[0] == names[1], names[0] == names[2]
    (True, False)
    """
    targets = examples.targets.cpu().numpy()
    arrays: list[NDArray[Any]] = [split.labeled, split.unlabeled, split.validation, targets[split.labeled]]
    if recipe.data not in DATA_SETS:
        arrays.append(examples.rows.cpu().numpy())
    if examples.weights is not None:
        arrays.append(examples.weights.cpu().numpy())
    digest = hashlib.sha256()
    shape = tuple(examples.rows.shape)
    settings = recipe.to_json(), seed, what, shape, examples.outputs, torch.device(device).type, torch.__version__
    for part in (*(str(setting).encode() for setting in settings), *(_bytes(array) for array in arrays)):
        digest.update(part)
        digest.update(b"\0")
    return digest.hexdigest()[:32]


def _bytes(array: NDArray[Any]) -> bytes:
    return str(array.shape).encode() + np.ascontiguousarray(array).tobytes()
