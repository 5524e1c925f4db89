"""Training in several processes: they learn what one learns, stop together, and end when one of them dies."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import multiprocessing

import shared_training
from shared_training import CASES, UPDATES
from tikas.data.batches import part_of
from tikas.training.checkpoint import Checkpointer, read_tensors
from tikas.training.distributed import MIN_TORCH, World, pack_message, unpack_message

WITHOUT_GRADIENTS = ("regression with weights", "module")
"""Above the single unit of a regression, and for a bias before BatchNorm, gradients are zero up to rounding, and Adam
makes steps of its learning rate from them. So these parameters differ; no output depends on them."""
SINGLE = [name for name, case in CASES.items() if len(case.seeds) == 1]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


multiprocessing.get_context("forkserver").set_forkserver_preload(["tikas.training.trainer", "torch._dynamo"])


OLD = torch.__version__ < MIN_TORCH
SKIP_OLD = pytest.mark.skipif(OLD, reason=f"torch before {MIN_TORCH} does not train in several processes")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where two processes have saved what they found; they need seconds to start, so all cases are in one start."""
    if OLD:
        pytest.skip(f"torch before {MIN_TORCH} does not train in several processes")
    folder = tmp_path_factory.mktemp("processes")
    shared_training.interrupted(folder / "stopped alone", update=1)
    arguments = str(folder), free_port()
    multiprocessing.start_processes(shared_training.main, arguments, nprocs=2, start_method="forkserver")
    return folder


@pytest.fixture(scope="module", name="found")
def found_in_both(folder: Path) -> list[dict[str, Any]]:
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    """The same trainings in this process alone."""
    return {name: shared_training.summary(shared_training.train(case), case) for name, case in CASES.items()}


def largest_difference(states: list[dict[str, Any]], others: list[dict[str, Any]]) -> float:
    """The largest difference of any tensor in the states of some members."""
    one, other = ([tensor.double() for each in side for tensor in each.values()] for side in (states, others))
    return max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True))


# The same result


@pytest.mark.parametrize("case", SINGLE)
def test_two_processes_that_share_rows_learn_what_one_learns(case: str, found: Any, alone: Any) -> None:
    in_double = CASES[case].dataset.rows.dtype == np.float64
    tolerance = 1e-9 if in_double else 1e-6
    for process in found:
        torch.testing.assert_close(process[case]["outputs"], alone[case]["outputs"], atol=tolerance, rtol=tolerance)
        if case not in WITHOUT_GRADIENTS:
            assert largest_difference(process[case]["states"], alone[case]["states"]) < tolerance
        assert not process[case]["synchronized"]
        for line, expected in zip(process[case]["histories"][0], alone[case]["histories"][0], strict=True):
            assert line.keys() == expected.keys()
            assert all(line[name] == pytest.approx(expected[name], rel=1e-5) for name in line)


@pytest.mark.parametrize("case", CASES)
def test_all_processes_have_the_same_bits(case: str, found: Any) -> None:
    one, other = found
    assert largest_difference(one[case]["states"], other[case]["states"]) == 0
    assert one[case]["histories"] == other[case]["histories"]


def test_a_member_learns_the_same_bits_alone_and_in_a_process_of_its_own(found: Any) -> None:
    case = CASES["members"]._replace(seeds=[4])  # the other process has two of the three
    member = shared_training.summary(shared_training.train(case), case)
    for process in found:
        assert process["members"]["seeds"] == [3, 4, 5]
        assert largest_difference(process["members"]["states"][1:2], member["states"]) == 0
        assert process["members"]["histories"][1] == member["histories"][0]


def test_members_in_two_processes_learn_what_an_ensemble_learns(found: Any, alone: Any) -> None:
    torch.testing.assert_close(found[0]["members"]["outputs"], alone["members"]["outputs"], atol=1e-5, rtol=1e-5)


# What processes do together


def test_callbacks_are_called_in_the_first_process_alone(found: Any) -> None:
    assert found[0]["reports"] == 1 + 10
    assert found[1]["reports"] == 0


def test_a_callback_in_the_first_process_ends_the_training_in_all(found: Any) -> None:
    assert [process["ended"] for process in found] == [2, 2]


def test_early_stopping_ends_all_after_the_same_epoch(found: Any, alone: Any) -> None:
    epochs = len(alone["early stopping"]["histories"][0])
    assert epochs < 30
    assert [len(process["early stopping"]["histories"][0]) for process in found] == [epochs, epochs]


def test_without_a_random_state_the_seeds_of_the_first_process_are_used(found: Any) -> None:
    assert found[0]["drawn seeds"] == found[1]["drawn seeds"]
    assert len(set(found[0]["drawn seeds"])) == 2


def test_all_processes_find_that_a_training_diverged(found: Any) -> None:
    assert not any("diverged" in process for process in found)


def test_other_rows_in_one_process_are_refused_in_all(found: Any) -> None:
    (one, told), (other, refused) = (process["other rows"] for process in found)
    assert (one, other) == ("LostProcessError", "ValueError")
    assert "data: " in refused
    assert "in process 0" in refused
    assert "process 1 of 2" in told
    assert "data: " in told


# Stop and resume


def test_ctrl_c_in_one_process_stops_all_after_the_same_update(folder: Path, found: Any) -> None:
    assert found[0]["stopped"] == found[1]["stopped"] == [(0, 1), (3, 3 * UPDATES - 1)]
    updates = [read_tensors(path)[1]["updates"] for path in sorted(folder.glob("stopped together/*.safetensors"))]
    assert updates == [1, 3 * UPDATES]


def test_one_process_continues_what_two_began(folder: Path, alone: Any) -> None:
    case = CASES["dense"]
    checkpointer = Checkpointer(folder / "stopped together")
    continued = shared_training.summary(shared_training.train(case, checkpointer=checkpointer), case)
    assert checkpointer.resumed_after == {"member-0": [0, 3]}
    torch.testing.assert_close(continued["outputs"], alone["dense"]["outputs"], atol=1e-6, rtol=1e-6)


def test_two_processes_continue_what_one_began(folder: Path, found: Any, alone: Any) -> None:
    assert read_tensors(folder / "stopped alone/member-0.0.safetensors")[1]["updates"] == 1
    for process in found:
        torch.testing.assert_close(process["resumed"]["outputs"], alone["dense"]["outputs"], atol=1e-6, rtol=1e-6)


# Death


@SKIP_OLD
@pytest.mark.parametrize(("members", "dying"), [(1, 1), (2, 0)], ids=["rows", "members"])
def test_the_death_of_a_process_ends_the_other_with_its_name(members: int, dying: int, tmp_path: Path) -> None:
    arguments = str(tmp_path), free_port(), members, dying
    start = {"nprocs": 2, "join": False, "start_method": "forkserver"}
    context = multiprocessing.start_processes(shared_training.die, arguments, **start)
    for process in context.processes:
        process.join(300)
    assert [process.exitcode for process in context.processes][dying] == -signal.SIGKILL
    seconds, _, message = (tmp_path / "error").read_text().partition(" ")
    assert float(seconds) < 60
    pid = (tmp_path / "began").read_text().split()[1]
    assert f"process {dying} of 2 (host {socket.gethostname()}, pid {pid}) died" in message


@SKIP_OLD
def test_torchrun_restarts_a_killed_command_from_its_snapshot(tmp_path: Path) -> None:
    options = "--epochs 40 --network 12 --checkpoint-every 0 --no-baseline --quiet --device cpu -o model.safetensors"
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1"]
    command += ["-m", "tikas", "train", *options.split()]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as torchrun:
        while len(list(tmp_path.glob("model.unfinished/*.safetensors"))) < 2:
            assert torchrun.poll() is None, torchrun.communicate()[0]
            time.sleep(0.01)
        children = subprocess.run(["pgrep", "-P", str(torchrun.pid)], capture_output=True, text=True, check=True)
        os.kill(int(children.stdout.split()[1]), signal.SIGKILL)
        printed = torchrun.communicate(timeout=300)[0]
    assert torchrun.returncode == 0, printed
    assert printed.count("continuing from model.unfinished") == 1
    assert printed.count("model saved to model.safetensors") == 1
    assert re.search(r"ladder .* resumed", printed)
    assert not (tmp_path / "model.unfinished").exists()
    assert read_tensors(tmp_path / "model.safetensors")[1]["history"][-1]["epoch"] == 40


# Parts


@pytest.mark.parametrize("processes", [1, 2, 3, 7])
def test_processes_have_each_row_once_and_about_equally_many(processes: int) -> None:
    parts = [part_of(torch.arange(10), (rank, processes)) for rank in range(processes)]
    assert torch.equal(torch.cat(parts), torch.arange(10))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_a_process_alone_agrees_with_itself() -> None:
    world = World()
    assert world.agree(4, [], ended=True) == (4, 0, True)
    assert world.first({"a": 1}) == {"a": 1}
    assert world.first_snapshots(None) is None


def test_a_message_returns_its_tensors_and_its_header() -> None:
    tensors, header = {"a": torch.arange(3), "b": torch.tensor(True)}, {"numbers": [1, 2.5], "text": "λ"}
    unpacked, found = unpack_message(pack_message(tensors, header))
    assert found == header
    assert all(torch.equal(unpacked[name], tensor) for name, tensor in tensors.items())
