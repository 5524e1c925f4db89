"""Records: one JSON line for every finished member, with all that is needed to know what was measured."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import IO, Any

import torch

import tikas
from tikas.experiments.run import Measured, Run
from tikas.training.fit import History
from tikas.training.recipe import Recipe

Record = Mapping[str, Any]

CHIPS = Path("/proc/cpuinfo")


class DamagedRecordWarning(UserWarning):
    """A line of a file of records cannot be read, or holds what no measurement can give."""


def hardware(device: torch.device | str) -> str:
    """What a run ran on, in words.

    Set TIKAS_SHARED where other programs keep it busy meanwhile: seconds are then not to be compared with others.

    Examples
    --------
    >>> hardware("cpu")
    '..., ... threads'
    """
    on_gpu = torch.device(device).type == "cuda"
    name = torch.cuda.get_device_name(device) if on_gpu else f"{_processor()}, {torch.get_num_threads()} threads"
    return f"{name}, shared" if os.environ.get("TIKAS_SHARED") else name


def _processor() -> str:
    """The chip's name; where a virtual machine has cut the number out of it, its family and model instead."""
    try:
        first, *_ = CHIPS.read_text().split("\n\n")
    except OSError:
        return platform.processor() or platform.machine()
    about = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first.splitlines())}
    name = about.get("model name", platform.machine())
    numbered = re.search(r"\d", name.partition("@")[0])  # what follows is the clock's rate
    if numbered or not about.keys() >= {"cpu family", "model"}:
        return name
    return f"{name} (family {about['cpu family']}, model {about['model']})"


def versions() -> dict[str, str]:
    """Of what a figure depends on.

    Examples
    --------
    >>> sorted(versions())
    ['python', 'tikas', 'torch']
    """
    return {"tikas": tikas.__version__, "torch": torch.__version__, "python": platform.python_version()}


def revision() -> str:
    """What TIKAS_REVISION says, else the git revision of the working tree, "-dirty" if it has changes.

    New records in results/ are none: the first of a command would make all others dirty. Empty where this package is in
    no repository, or is only installed inside somebody else's.

    Examples
    --------
    >>> revision().removesuffix("-dirty").isalnum() or revision() == ""
    True
    """
    if "TIKAS_REVISION" in os.environ:  # a copy of the tree on another machine may lie inside a repository of its own
        return os.environ["TIKAS_REVISION"]
    try:
        _git("ls-files", "--error-unmatch", __file__)
        name = _git("rev-parse", "--short=12", "HEAD")
        changes = _git("status", "--porcelain", "--untracked-files=no", "--", ":(top)", ":(top,exclude)results")
    except (OSError, subprocess.CalledProcessError):
        return ""
    return name + ("-dirty" if changes else "")


def _git(*words: str) -> str:
    command = ["git", *words]
    return subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True).stdout.strip()


def member_records(run: Run, recipe: Recipe, seeds: list[int], device: torch.device | str) -> Iterator[dict[str, Any]]:
    """What there is to know of every member of a run; of one that Ctrl-C cut short there is no result, so nothing.

    Examples
    --------
    >>> from tikas.experiments.rows import load_rows
    >>> from tikas.experiments.run import run
    >>> recipe = Recipe(data="digits", labels=50, network=(16,), epochs=1)
    >>> outcome = run(recipe, [7], load_rows("digits"))
    >>> (record,) = member_records(outcome, recipe, [7], "cpu")
    >>> record["seed"], record["name"] == recipe.name, sorted(record["costs"])
    (7, True, ['denoising', 'supervised', 'total'])
    """
    for seed, history, errors in zip(seeds, run.trained.histories, errors_of(run), strict=True):
        if len(history) == recipe.epochs:
            yield member_record(recipe, seed, history, errors, len(seeds), run.seconds, device)


def member_record(
    recipe: Recipe,
    seed: int,
    history: History,
    errors: Mapping[str, float],
    members: int,
    seconds: float,
    device: torch.device | str,
) -> dict[str, Any]:
    """What there is to know of a member: `seconds` is the time that all `members` of its fleet took together.

    Examples
    --------
    >>> line = {"epoch": 1, "total": 2.5, "supervised": 0.5, "denoising": [0.1, 0.2], "seconds": 0.3}
    >>> record = member_record(Recipe(epochs=1), 7, [line], {"validation_error": 1.5}, 10, 4.2, "cpu")
    >>> record["validation_error"], record["costs"]["total"], record["seconds_per_epoch"]
    (1.5, 2.5, 0.3)
    """
    return {
        "recipe": asdict(recipe),
        "name": recipe.name,
        "seed": seed,
        **errors,
        "costs": {key: history[-1][key] for key in ("total", "supervised", "denoising")},
        "members": members,
        "seconds": seconds,
        "seconds_per_epoch": median(line["seconds"] for line in history),
        "hardware": hardware(device),
        "versions": versions(),
        "revision": revision(),
    }


def errors_of(measured: Measured) -> list[dict[str, float]]:
    """The test errors of every member with both kinds of statistics; of each nothing, where there were no test rows.

    Examples
    --------
    >>> from tikas.experiments.rows import load_rows
    >>> from tikas.experiments.run import run
    >>> outcome = run(Recipe(data="digits", labels=50, network=(16,), epochs=1), [7], load_rows("digits"))
    >>> [sorted(errors) for errors in errors_of(outcome)]
    [['test_error', 'test_error_labeled_statistics']]
    """
    if not measured.test_errors:
        return [{} for _ in measured.trained.ladders]
    return [
        {"test_error": error, "test_error_labeled_statistics": as_authors}
        for error, as_authors in zip(measured.test_errors, measured.labeled_statistics_errors, strict=True)
    ]


def append(path: str | Path, record: Record) -> None:
    """Add a record to a file at once, on a line of its own even where a crash cut the last one short.

    It is on the disk when this returns, so that what it was made from may be deleted.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     append(Path(folder, "records.jsonl"), {"seed": 0})
    ...     read(Path(folder, "records.jsonl"))
    [{'seed': 0}]
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        whole = file.tell() == 0 or _last_byte(file) == b"\n"
        file.write(b"" if whole else b"\n")
        file.write(json.dumps(record).encode() + b"\n")
        file.flush()
        if path.is_file():  # a device has no disk behind it
            os.fsync(file.fileno())


def _last_byte(file: IO[bytes]) -> bytes:
    file.seek(-1, os.SEEK_END)
    return file.read(1)


def read(path: str | Path) -> list[Record]:
    """The records of a file, in the order they were added in.

    Warns
    -----
    DamagedRecordWarning
        Of every line that cannot be read, such as one that a crash cut short. It is passed over.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True, action="always") as caught:
    ...     path = Path(folder, "records.jsonl")
    ...     _ = path.write_text('{"seed": 0}\\n{"se')
    ...     print(read(path), caught[0].message)
    [{'seed': 0}] ...records.jsonl, line 2 is no whole record (cut short by a crash?) and is passed over.
    """
    return [record for _, record in read_with_places(path)]


def read_with_places(path: str | Path) -> list[tuple[str, Record]]:
    """The same, each with its file and line, to name it by.

    Where a file was put behind one that a crash had cut short, its first record stands on the line of the cut one. It
    is read; only what is before it is passed over.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True, action="always") as caught:
    ...     path = Path(folder, "records.jsonl")
    ...     _ = path.write_text('{"seed": 0, "hard{"seed": 1, "hardware": "a GPU"}\\n')
    ...     print(read_with_places(path), caught[0].message)
    [('...records.jsonl, line 1', {'seed': 1, 'hardware': 'a GPU'})]
    ...records.jsonl, line 1 is no whole record (cut short by a crash?) and is passed over,
    up to a whole one at its end.
    """
    found: list[tuple[str, Record]] = []
    for number, line in enumerate(Path(path).read_bytes().split(b"\n"), 1):
        place = f"{path}, line {number}"
        records, rest = _whole_records(line)
        found += [(place, record) for record in records]
        if rest.strip():
            until = ", up to a whole one at its end" if records else ""
            message = f"{place} is no whole record (cut short by a crash?) and is passed over{until}."
            warnings.warn(message, DamagedRecordWarning, stacklevel=3)
    return found


def _whole_records(line: bytes) -> tuple[list[Record], bytes]:
    """The records that a line ends in, and what is before them."""
    records: list[Record] = []
    while (last := _last_record(line)) is not None:
        start, record = last
        records.insert(0, record)
        line = line[:start]
    return records, line


def _last_record(line: bytes) -> tuple[int, Record] | None:
    """Where the last record of a line starts, and the record."""
    whole = _parsed(line)
    if whole is not None:
        return 0, whole
    for brace in reversed([match.start() for match in re.finditer(rb"\{", line)]):
        record = _parsed(line[brace:])
        if record is not None and "hardware" in record:  # else it is a part of one, such as its recipe
            return brace, record
    return None


def _parsed(text: bytes) -> Record | None:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):  # neither JSON nor, where a character was cut, UTF-8; or brackets without end
        return None
    return record if isinstance(record, dict) else None
