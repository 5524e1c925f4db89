"""Mutated files: each is read like the file that it was, or refused with a clear error. `make soak` tries many more."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks"))

import fuzz  # noqa: E402


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", fuzz.KINDS)
def test_a_mutated_file_is_accepted_or_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TIKAS_DATA", raising=False)
    kind, outcomes = fuzz.KINDS[name](), set()
    for number in range(30):
        path, judge = kind.case(random.Random(f"{name} {number}"))
        outcomes.add(judge(path))
    assert outcomes == {"accepted", "refused"}


def test_a_mutated_model_is_read_without_much_memory_or_other_programs() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "fuzz.py"), "--kind", "model", "--cases", "20"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    cases, accepted, refused, failed = (int(cell) for cell in done.stdout.splitlines()[-1].split("|")[2:6])
    assert (cases, accepted + refused, failed) == (20, 20, 0)
