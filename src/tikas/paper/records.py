"""Records: one line of JSON for each trained member, with its settings, errors, seconds, hardware and versions."""

from __future__ import annotations

import json
import os
import subprocess
import warnings
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from tikas.paper.experiments import Summary
from tikas.training.recipe import Recipe

Record = Mapping[str, Any]


def revision() -> str:
    """Return the git revision of the working tree, with "-dirty" if files other than records have changes.

    The environment variable TIKAS_REVISION replaces it. Empty if this file is not part of a git repository.
    """
    if "TIKAS_REVISION" in os.environ:  # a copy of the tree may lie inside another repository
        return os.environ["TIKAS_REVISION"]
    try:
        _git("ls-files", "--error-unmatch", __file__)
        name = _git("rev-parse", "--short=12", "HEAD")
        changes = _git("status", "--porcelain", "--untracked-files=no", "--", ":(top)", ":(top,exclude)results")
    except (OSError, subprocess.CalledProcessError):
        return ""
    return f"{name}-dirty" if changes else name


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    folder = Path(__file__).parent
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)  # noqa: S603 - fixed words
    return done.stdout.strip()


# Files of records


def append_record(path: Path, record: Record) -> None:
    """Append a record to a file, and wait until it is on the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        if file.tell() > 0:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":  # a crash cut the last line short
                file.write(b"\n")
        file.write(json.dumps(record).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def read_records(path: Path) -> list[Record]:
    """Return the records of a file, without lines that cannot be read, such as one that a crash cut short.

    Warns
    -----
    UserWarning
        For each line that is skipped, with file and line.
    """
    records = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            records.append(json.loads(line))
        except ValueError as error:
            message = f"{path}, line {number} is skipped: it is not a complete record ({error})."
            warnings.warn(message, UserWarning, stacklevel=2)
    return records


# Measurements


@dataclass(frozen=True)
class Measurement:
    """The errors of an experiment over its seeds, and what was recorded with them.

    Attributes
    ----------
    errors : mapping of int to float
        Error in percent by seed, with normalization statistics of all training rows.
    labeled : Summary or None
        The errors if the normalization statistics are those of the labeled rows alone, as in the authors' code.
    seconds : float or None
        Wall-clock seconds of an ensemble divided by its members, over the members that trained on `hardware` without
        interruption.
    seconds_per_epoch : float or None
        The same for the median epoch, which has no warm-up.
    members_on : mapping of str to int
        How many members trained on which hardware, most members first.
    sizes : collection of int
        Sizes of the ensembles on `hardware`.
    """

    errors: Mapping[int, float]
    labeled: Summary | None
    seconds: float | None
    seconds_per_epoch: float | None
    members_on: Mapping[str, int]
    sizes: Collection[int]

    @property
    def hardware(self) -> str:
        """Where most members trained."""
        return next(iter(self.members_on))

    @property
    def summary(self) -> Summary:
        """Mean, deviation and number of the errors."""
        return Summary.of(list(self.errors.values()))


class Records:
    """Records by experiment, then by seed. If a member has several records, the first one counts.

    Examples
    --------
    >>> record = {"data": "mnist", "labels": 100, "recipe": {"epochs": 5}, "test_error": 2.0}
    >>> about = {"members": 2, "seconds": 60.0, "hardware": "a GPU"}
    >>> records = Records([{**record, **about, "seed": seed} for seed in range(2)])
    >>> records.measurement(("mnist", 100, 0, Recipe(epochs=5), None)).summary
    Summary(mean=2.0, deviation=0.0, runs=2)
    """

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self._members: dict[Hashable, dict[int, Record]] = {}
        for record in records:
            self.add(record)

    @classmethod
    def read(cls, *paths: Path) -> Records:
        """Read files of records, and all files of records in folders, sorted by name."""
        files: list[Path] = []
        for path in paths:
            files += sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
        return cls(record for file in dict.fromkeys(files) if file.exists() for record in read_records(file))

    def add(self, record: Record) -> None:
        """Add a record of a member; records of benchmarks are ignored."""
        if "benchmark" not in record and ("recipe" in record or "method" in record):
            self._members.setdefault(record_key(record), {}).setdefault(record["seed"], record)

    def members(self, key: Hashable) -> dict[int, Record]:
        """Return the records of an experiment by seed; `key` is `Experiment.key` or `record_key(...)`."""
        return dict(sorted(self._members.get(key, {}).items()))

    def measurement(self, key: Hashable) -> Measurement | None:
        """Return the measurement of an experiment; None if it has no records."""
        records = list(self.members(key).values())
        if not records:
            return None
        error_field = "validation_error" if records[0].get("validation") else "test_error"
        labeled = [record[each] for record in records if (each := f"{error_field}_labeled_statistics") in record]
        members_on = dict(Counter(record["hardware"] for record in records).most_common())
        same = [record for record in records if record["hardware"] == next(iter(members_on))]
        timed = [record for record in same if "continued_after_epochs" not in record]
        return Measurement(
            errors={record["seed"]: record[error_field] for record in records},
            labeled=Summary.of(labeled) if labeled else None,
            seconds=_seconds_per_member(timed, "seconds"),
            seconds_per_epoch=_seconds_per_member(timed, "seconds_per_epoch"),
            members_on=members_on,
            sizes={record["members"] for record in same},
        )


def _seconds_per_member(records: Sequence[Record], name: str) -> float | None:
    """Return the mean seconds of an ensemble divided by its members, over the records that have this field."""
    seconds = [record[name] / record["members"] for record in records if name in record]
    return mean(seconds) if seconds else None


def record_key(record: Record) -> Hashable:
    """Return the `Experiment.key` of a record, or for another method a key with the method instead of the recipe."""
    if "recipe" in record:
        measured: Hashable = Recipe.from_json(json.dumps(record["recipe"]))
    else:
        measured = json.dumps(record["method"], sort_keys=True)
    return record["data"], record["labels"], record.get("validation", 0), measured, record.get("attached")
