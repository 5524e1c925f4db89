"""Records: one JSON line for every finished member, with all that is needed to know what was measured."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import tikas
from tikas.experiments.run import Run
from tikas.training.recipe import Recipe


def hardware(device: torch.device | str) -> str:
    """What a run ran on, in words.

    Examples
    --------
    >>> hardware("cpu")
    '..., ... threads'
    """
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{_processor()}, {torch.get_num_threads()} threads"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


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

    Examples
    --------
    >>> revision().removesuffix("-dirty").isalnum() or revision() == ""
    True
    """
    if "TIKAS_REVISION" in os.environ:  # a copy of the tree on another machine may lie inside a repository of its own
        return os.environ["TIKAS_REVISION"]
    try:
        name, changes = _git("rev-parse", "--short=12", "HEAD"), _git("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return ""
    return name + ("-dirty" if changes else "")


def _git(*words: str) -> str:
    command = ["git", *words]
    return subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True).stdout.strip()


def member_records(run: Run, recipe: Recipe, seeds: list[int], device: torch.device | str) -> Iterator[dict[str, Any]]:
    """What there is to know of every member of a run.

    Examples
    --------
    >>> from tikas.experiments.run import load_rows, run
    >>> recipe = Recipe(data="digits", labels=50, network=(16,), epochs=1)
    >>> outcome = run(recipe, [7], load_rows("digits"))
    >>> (record,) = member_records(outcome, recipe, [7], "cpu")
    >>> record["seed"], record["name"] == recipe.name, sorted(record["costs"])
    (7, True, ['denoising', 'supervised', 'total'])
    """
    for member, seed in enumerate(seeds):
        last = run.trained.histories[member][-1]
        yield {
            "recipe": asdict(recipe),
            "name": recipe.name,
            "seed": seed,
            **_errors(run, member),
            "costs": {key: last[key] for key in ("total", "supervised", "denoising")},
            "members": len(seeds),
            "seconds": run.seconds,
            "hardware": hardware(device),
            "versions": versions(),
            "revision": revision(),
        }


def _errors(run: Run, member: int) -> dict[str, float]:
    """On the test rows with both kinds of statistics, if there were test rows."""
    if not run.test_errors:
        return {}
    return {
        "test_error": run.test_errors[member],
        "test_error_labeled_statistics": run.labeled_statistics_errors[member],
    }


def append(path: str | Path, record: dict[str, Any]) -> None:
    """Add a line to a file of records, at once.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     append(Path(folder, "records.jsonl"), {"seed": 0})
    ...     read(Path(folder, "records.jsonl"))
    [{'seed': 0}]
    """
    with Path(path).open("a") as file:
        file.write(json.dumps(record) + "\n")
        file.flush()


def read(path: str | Path) -> list[dict[str, Any]]:
    """The records of a file, in the order they were added in.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "records.jsonl").write_text('{"seed": 3}\\n{"seed": 4}\\n')
    ...     [record["seed"] for record in read(Path(folder, "records.jsonl"))]
    [3, 4]
    """
    return [json.loads(line) for line in Path(path).read_text().splitlines() if line]
