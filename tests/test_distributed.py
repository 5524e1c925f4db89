"""`tikas.distributed.synchronize`: two processes that share a batch compute what one process computes on all of it."""

import json
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import multiprocessing, nn

import shared_batches
import tikas

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two processes found in `shared_batches.main`: all cases in one start, which takes seconds."""
    folder = tmp_path_factory.mktemp("processes")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    multiprocessing.start_processes(shared_batches.main, (str(folder), port), nprocs=2, start_method="spawn")
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


NEW_TORCH = pytest.mark.skipif(not shared_batches.NEW_TORCH, reason="needs a newer version of torch")


@pytest.mark.parametrize(
    "case",
    [
        *shared_batches.CASES,
        pytest.param("fully_shard", marks=NEW_TORCH),
        pytest.param("compiled", marks=NEW_TORCH),
    ],
)
def test_two_processes_compute_what_one_process_computes_on_all_rows(results, case):
    for found in results:
        assert {"costs", "gradients"} <= set(found[case])
        assert max(found[case].values()) < 1e-10, found[case]


def test_statistics_of_own_rows_make_other_costs_and_gradients(results):
    for found in results:
        assert found["own rows"]["costs"] > 1e-2
        assert found["own rows"]["gradients"] > 1e-2


def test_calls_that_would_keep_the_gradients_apart_raise_runtime_error(results):
    for found in results:
        assert "tikas.distributed.synchronize(model)" in found["unsynchronized"]
        assert "ddp(unlabeled, labeled, targets)" in found["past the wrapper"]
        assert found["without gradients"] == ""


def test_the_example_of_a_training_loop_runs_in_two_processes():
    script = ROOT / "docs" / "examples" / "distributed_loop.py"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    (error,) = re.findall(r"error on held-out digits: ([\d.]+) %", done.stdout)  # printed by one process
    assert float(error) < 35


def test_a_module_without_a_ladder_raises_type_error():
    with pytest.raises(TypeError, match="Linear"):
        tikas.distributed.synchronize(nn.Linear(2, 3))


def test_a_synchronized_ladder_in_a_single_process_computes_the_same():
    ladder = shared_batches.dense()()
    rows, targets = torch.rand(9, 6).double(), torch.arange(9) % 3
    noise = ladder.draw_noise(rows, 18)
    expected = ladder.costs(rows, rows, targets, noise)
    costs = tikas.distributed.synchronize(ladder).costs(rows, rows, targets, noise)
    assert all(torch.equal(one, other) for one, other in zip(costs, expected, strict=True))
    assert ladder.calibrate(rows).eval()(rows).shape == (9, 3)
