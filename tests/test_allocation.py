"""Memory on a CPU: what is freed in training is there for the next update, and given back in the end."""

import platform
import subprocess
import sys

import pytest
import torch

from tikas.data.splits import split
from tikas.data.streams import Examples
from tikas.experiments.bench import Side, interleave
from tikas.training import allocation
from tikas.training.allocation import ADAPTED, KEEPING, MAPPED, TRIMMED, freed_memory_kept
from tikas.training.fit import fit
from tikas.training.recipe import Recipe

CPU = torch.device("cpu")
needs_gnu = pytest.mark.skipif(
    allocation._library() is None, reason="the C library is not GNU's, or the environment tunes it"
)
needs_large_blocks = pytest.mark.skipif(
    platform.libc_ver() < ("glibc", "2.35"), reason="this version of the C library maps all large blocks"
)


class Library:
    """Notes what it is told; `most` is the largest block that it leaves unmapped."""

    def __init__(self, most: int = 2**31) -> None:
        self.most, self.told = most, []

    def mallopt(self, name: int, value: int) -> int:
        self.told.append((name, value))
        return int(name != MAPPED or value <= self.most)

    def malloc_trim(self, left: int) -> None:
        self.told.append(("trim", left))


def told_by(program: str) -> list[int]:
    """What a program prints. It is a process of its own: another may have freed or failed to get memory before."""
    told = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    return [int(number) for number in told.split()]


@needs_gnu
@needs_large_blocks
def test_blocks_that_are_freed_and_allocated_again_are_the_same_memory() -> None:
    """Of 100 MB or a little less, so that each has room where the one before it was.

    The library would map such blocks for themselves, however far it had adapted.
    """
    first, *others = told_by("""
import resource
import torch
from tikas.training.allocation import freed_memory_kept

def pages_found():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

with freed_memory_kept(torch.device("cpu")):
    for less in range(10):
        before = pages_found()
        torch.ones(25 * 2**20 - less * 2**16)
        print(pages_found() - before)
""")
    assert sum(others) < 3 * first


@needs_gnu
def test_the_system_gets_back_what_is_free_afterwards() -> None:
    """A block stays in use behind those that are freed, which at the end of the heap would be given back anyway."""
    kept, left = told_by("""
import resource
import torch
from tikas.training.allocation import freed_memory_kept

def resident():
    return resource.getpagesize() * int(open("/proc/self/statm").read().split()[1])

with freed_memory_kept(torch.device("cpu")):
    before = resident()
    blocks = [torch.ones(2**18) for _ in range(201)]
    del blocks[:200]
    kept = resident() - before
print(kept, resident() - before)
""")
    assert kept > 150 * 2**20
    assert left < 50 * 2**20


@needs_gnu
def test_what_the_library_keeps_counts_as_free() -> None:
    """Or the second fleet of a training would be told of less memory than the first."""
    (grown,) = told_by("""
import resource
import torch
from tikas.training.allocation import freed_memory_kept
from tikas.training.memory import free_bytes

def resident():
    return resource.getpagesize() * int(open("/proc/self/statm").read().split()[1])

with freed_memory_kept(torch.device("cpu")):
    before = resident()
    blocks = [torch.ones(2**18) for _ in range(201)]
    del blocks[:200]
    free_bytes(torch.device("cpu"))
    print(resident() - before)
""")
    assert grown < 50 * 2**20


def test_thresholds_are_put_back_when_the_last_one_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library()
    monkeypatch.setattr(allocation, "_library", lambda: library)
    with freed_memory_kept(CPU):
        with freed_memory_kept(CPU):
            pass
        assert library.told == [(MAPPED, KEEPING.mapped), (TRIMMED, KEEPING.trimmed)] * 2
    assert library.told[4:] == [(MAPPED, ADAPTED.mapped), (TRIMMED, ADAPTED.trimmed), ("trim", 0)]


def test_older_libraries_are_asked_for_as_much_as_they_grant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Told of the second alone they would no longer adapt the first, and map every block from 128 kB on for itself."""
    library = Library(most=ADAPTED.mapped)
    monkeypatch.setattr(allocation, "_library", lambda: library)
    with freed_memory_kept(CPU):
        assert library.told == [(MAPPED, KEEPING.mapped), (MAPPED, ADAPTED.mapped), (TRIMMED, KEEPING.trimmed)]


@pytest.mark.parametrize("name", allocation.TUNED_BY)
def test_a_library_that_somebody_has_tuned_is_left_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "glibc.malloc.trim_threshold=1048576")
    assert allocation._library.__wrapped__() is None


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_other_systems_are_left_alone(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", system)
    assert allocation._library.__wrapped__() is None
    monkeypatch.setattr(allocation, "_library", lambda: None)
    with freed_memory_kept(CPU):
        assert torch.ones(3).sum() == 3


def test_training_on_a_gpu_leaves_the_library_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library()
    monkeypatch.setattr(allocation, "_library", lambda: library)
    with freed_memory_kept(torch.device("cuda")):
        assert not library.told


def test_training_keeps_its_memory_from_the_first_epoch_to_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    library, targets = Library(), torch.arange(60) % 3
    monkeypatch.setattr(allocation, "_library", lambda: library)
    told = []
    recipe = Recipe(data="array", network=(5,), batch_size=20, epochs=2)
    examples, splits = Examples(torch.rand(60, 8), targets, 3), [split(targets.numpy(), 9)]
    fit(examples, splits, recipe, [0], device="cpu", on_epoch=lambda _: told.append(list(library.told)))
    assert told
    kept, planned = [(MAPPED, KEEPING.mapped), (TRIMMED, KEEPING.trimmed)], [("trim", 0)] * 2  # to see what is free
    assert all(each == kept + planned for each in told)
    assert library.told[-1] == ("trim", 0)


def test_what_is_timed_side_by_side_keeps_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library()
    monkeypatch.setattr(allocation, "_library", lambda: library)
    told = []
    interleave([Side("one", lambda: told.append(list(library.told)), 1)], CPU, seconds=0)
    assert told
    assert all(each == [(MAPPED, KEEPING.mapped), (TRIMMED, KEEPING.trimmed)] for each in told)
    assert library.told[-1] == ("trim", 0)
