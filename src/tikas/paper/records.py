"""Records: one line of JSON for each trained member, with everything needed to know what was measured and where."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import warnings
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

from tikas.paper.experiments import Summary
from tikas.training.recipe import Recipe

Record = Mapping[str, Any]

CPU_INFO = Path("/proc/cpuinfo")


class DamagedRecordWarning(UserWarning):
    """A line of a file of records was skipped: it cannot be read, or has an impossible value."""


# Where a record comes from


def hardware(device: Any) -> str:
    """The name of the GPU, or of the processor with the number of threads.

    Set the environment variable TIKAS_SHARED where other programs use the same hardware: ", shared" is then added,
    because the seconds cannot be compared with others.
    """
    import torch

    if torch.device(device).type == "cuda":
        name = torch.cuda.get_device_name(device)
    else:
        name = f"{_processor()}, {torch.get_num_threads()} threads"
    return f"{name}, shared" if os.environ.get("TIKAS_SHARED") else name


def _processor() -> str:
    """The name of the processor, with its family where a virtual machine removed the number from the name."""
    try:
        text = CPU_INFO.read_text().split("\n\n")[0]
    except OSError:
        return platform.processor() or platform.machine()
    info = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())}
    name = info.get("model name", platform.machine())
    if re.search(r"\d", name.partition("@")[0]) or "cpu family" not in info:  # after the @ is the clock rate
        return name
    return f"{name} (family {info['cpu family']}, model {info['model']})"


def versions() -> dict[str, str]:
    """Versions of what a figure depends on."""
    import torch

    import tikas

    return {"tikas": tikas.__version__, "torch": torch.__version__, "python": platform.python_version()}


def revision() -> str:
    """The git revision of the working tree, with "-dirty" where files other than records have changes.

    The environment variable TIKAS_REVISION replaces it. Empty where this file is not part of a git repository.
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
    return subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True).stdout.strip()


# Files of records


def append_record(path: str | Path, record: Record) -> None:
    """Append a record to a file; it is on the disk when this returns."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        if file.tell() > 0:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":  # a crash cut the last line short
                file.write(b"\n")
        file.write(json.dumps(record).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def read_records(path: str | Path) -> list[Record]:
    """The records of a file, without lines that cannot be read, such as one that a crash cut short.

    Warns
    -----
    DamagedRecordWarning
        For each line that is skipped, with file and line.
    """
    return [record for _, record in _numbered_records(path)]


def _numbered_records(path: str | Path) -> list[tuple[int, Record]]:
    found: list[tuple[int, Record]] = []
    for number, line in enumerate(Path(path).read_bytes().splitlines(), 1):
        try:
            record = json.loads(line)
            if not isinstance(record, dict):
                raise ValueError("not a JSON object")
        except ValueError as error:
            message = f"{path}, line {number} is skipped: it is not a complete record ({error})."
            warnings.warn(message, DamagedRecordWarning, stacklevel=3)
        else:
            found.append((number, record))
    return found


# What the records say


@dataclass(frozen=True)
class Measurement:
    """The errors of an experiment over its seeds, and what was recorded with them.

    Attributes
    ----------
    errors : mapping of int to float
        Error in percent by seed, with statistics of all training rows.
    labeled : Summary or None
        The errors with statistics of the labeled rows alone, as the paper's authors predicted.
    seconds : float or None
        Wall-clock seconds of an ensemble divided by its members, over the members that trained on `hardware` without
        interruption.
    seconds_per_epoch : float or None
        The same for the median epoch, which has no warm-up.
    hardware : str
        Where most members trained.
    elsewhere : mapping of str to int
        How many members trained on other hardware.
    sizes : collection of int
        Sizes of the ensembles on `hardware`.
    """

    errors: Mapping[int, float]
    labeled: Summary | None
    seconds: float | None
    seconds_per_epoch: float | None
    hardware: str
    elsewhere: Mapping[str, int] = field(default_factory=dict)
    sizes: Collection[int] = ()

    @property
    def summary(self) -> Summary:
        """Mean, deviation and number of the errors."""
        return Summary.of(list(self.errors.values()))


class Records:
    """Records by what was measured, then by seed.

    Where a member has several records the first counts. A record with an impossible value is skipped with a
    `DamagedRecordWarning`; its member counts as missing.

    Examples
    --------
    >>> record = {"data": "mnist", "labels": 100, "recipe": {"epochs": 5}, "test_error": 2.0, "seconds": 60.0}
    >>> records = Records([{**record, "seed": seed, "hardware": "a GPU"} for seed in range(2)])
    >>> records.measurement(("mnist", 100, 0, Recipe(epochs=5), None)).summary
    Summary(mean=2.0, deviation=0.0, runs=2)
    """

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self._members: dict[Hashable, dict[int, Record]] = {}
        for record in records:
            self.add(record)

    @classmethod
    def read(cls, *paths: Path) -> Records:
        """Read files of records, and all files of records in folders, in the order of their names."""
        files: dict[Path, Path] = {}
        for path in paths:
            for file in sorted(path.glob("*.jsonl")) if path.is_dir() else [path]:
                files.setdefault(file.resolve(), file)
        records = cls()
        for file in files.values():
            for number, record in _numbered_records(file) if file.exists() else []:
                records.add(record, f"{file}, line {number}")
        return records

    def add(self, record: Record, source: str = "A record") -> None:
        """Add a record of a member; records of benchmarks are ignored."""
        if "benchmark" in record or not isinstance(record.get("recipe", record.get("method")), dict):
            return
        try:
            _check(record)
            members = self._members.setdefault(record_key(record), {})
        except (KeyError, OverflowError, TypeError, ValueError) as error:
            problem = f"{error} is missing" if isinstance(error, KeyError) else str(error).rstrip(".")
            message = f"{source} is skipped: {problem}. Correct or remove it."
            warnings.warn(message, DamagedRecordWarning, stacklevel=2)
        else:
            members.setdefault(record["seed"], record)

    def members(self, key: Hashable) -> dict[int, Record]:
        """The records of an experiment by seed; `key` is `Experiment.key` or `record_key(...)`."""
        return dict(sorted(self._members.get(key, {}).items()))

    def measurement(self, key: Hashable) -> Measurement | None:
        """The errors of an experiment with what was recorded beside them; None where it has no records."""
        records = list(self.members(key).values())
        if not records:
            return None
        figure = _figure(records[0])
        (most, _), *others = Counter(record["hardware"] for record in records).most_common()
        same = [record for record in records if record["hardware"] == most]
        timed = [record for record in same if "continued_after_epochs" not in record]
        labeled = [record[each] for record in records if (each := f"{figure}_labeled_statistics") in record]
        seconds, epochs = (
            [record[name] / record.get("members", 1) for record in timed if name in record]
            for name in ("seconds", "seconds_per_epoch")
        )
        return Measurement(
            errors={record["seed"]: record[figure] for record in records},
            labeled=Summary.of(labeled) if len(labeled) == len(records) else None,
            seconds=mean(seconds) if seconds else None,
            seconds_per_epoch=mean(epochs) if epochs else None,
            hardware=most,
            elsewhere=dict(others),
            sizes={record.get("members", 1) for record in same},
        )


def record_key(record: Record) -> Hashable:
    """Return what a record is found by: `Experiment.key`, or the same with another method in place of the recipe."""
    recipe = Recipe.from_json(json.dumps(record["recipe"])) if "recipe" in record else None
    measured = recipe or json.dumps(record["method"], sort_keys=True)
    return record["data"], record["labels"], record.get("validation", 0), measured, record.get("attached")


def _figure(record: Record) -> str:
    return "validation_error" if record.get("validation") else "test_error"


def _check(record: Record) -> None:
    """Raise where a field of a record is missing or has an impossible value."""
    figure = _figure(record)
    for name in (figure, "seed", "seconds", "hardware"):
        record[name]
    for name in (figure, f"{figure}_labeled_statistics", "seed", "seconds", "seconds_per_epoch", "members"):
        value, highest = record.get(name, 1), 100 if name.startswith(figure) else float("inf")
        if not isinstance(value, int | float) or not 0 <= value <= highest:
            raise ValueError(f"{name}={value!r}: expected a number from 0 to {highest}")
