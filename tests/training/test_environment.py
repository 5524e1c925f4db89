"""Settings of the process: what a fit changes is as before afterwards, also after an exception."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tikas import gamma
from tikas.data.datasets import Dataset
from tikas.data.splits import split
from tikas.model.ladder import Model
from tikas.training import environment
from tikas.training.environment import (
    arithmetic,
    float32_default,
    freed_memory_kept,
    full_precision,
    pick_device,
    plain_computation,
    private_random_state,
    seed_module_draws,
    training_environment,
)
from tikas.training.recipe import Recipe
from tikas.training.trainer import Trainer

CPU = torch.device("cpu")
PRECISIONS: dict[str, Any] = {}
"""Where torch keeps its precisions by their newer names, since 2.9."""
if hasattr(torch.backends.cudnn, "conv"):
    PRECISIONS = {
        "products": torch.backends.cuda.matmul,
        "products on a CPU": torch.backends.mkldnn.matmul,
        "convolutions": torch.backends.cudnn.conv,
        "convolutions on a CPU": torch.backends.mkldnn.conv,
    }


# Devices


def test_the_default_device_is_a_gpu_if_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pick_device("cpu") == pick_device(CPU) == CPU
    for available, expected in ((False, "cpu"), (True, "cuda")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda available=available: available)
        assert pick_device() == torch.device(expected)


@pytest.mark.parametrize("device", ["abacus", "meta", "cuda:99", 1.5])
def test_a_device_that_is_not_there_raises_value_error(device: object) -> None:
    with pytest.raises(ValueError, match=f"device={device!r}"):
        pick_device(device)  # type: ignore[arg-type]


# Settings that are as before afterwards


def settings() -> dict[str, object]:
    """The process-wide settings of torch that a fit could change."""
    backends = torch.backends
    precisions = {name: place.fp32_precision for name, place in PRECISIONS.items()}
    if precisions:
        precisions["recurrent layers"] = backends.cudnn.rnn.fp32_precision
    else:
        precisions = {"products": torch.get_float32_matmul_precision(), "convolutions": backends.cudnn.allow_tf32}
    return {
        "threads": torch.get_num_threads(),
        "default dtype": torch.get_default_dtype(),
        "default device": torch.empty(0).device,
        "autocast": torch.is_autocast_enabled("cpu"),
        "inference mode": torch.is_inference_mode_enabled(),
        "gradients": torch.is_grad_enabled(),
        "benchmark": backends.cudnn.benchmark,
        "generator": torch.get_rng_state().tolist(),
        **precisions,
    }


CONTEXTS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "training": lambda: training_environment(),
    "computation": plain_computation,
    "dtype": float32_default,
    "exact arithmetic": lambda: arithmetic(CPU, exact=True, small=True),
    "fast arithmetic on a GPU": lambda: arithmetic(torch.device("cuda"), exact=False, small=False),
    "full precision": full_precision,
    "random state": lambda: private_random_state(3),
}


@pytest.fixture
def unusual_settings() -> Iterator[None]:
    """Settings that differ from what tikas sets."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    torch.set_default_dtype(torch.float64)
    with torch.autocast("cpu"), torch.device("meta"), torch.inference_mode():
        yield
    torch.set_default_dtype(torch.float32)
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("unusual_settings")
@pytest.mark.parametrize("error", [None, ArithmeticError, KeyboardInterrupt])
@pytest.mark.parametrize("name", CONTEXTS)
def test_every_context_restores_the_settings_of_the_caller(name: str, error: type[BaseException] | None) -> None:
    before = settings()
    with nullcontext() if error is None else pytest.raises(error), CONTEXTS[name]():
        if name == "random state":
            torch.rand(3, device="cpu")
        if error is not None:
            raise error
    assert settings() == before


def build_module(recipe: Recipe, input_shape: tuple[int, ...], n_outputs: int, seed: int) -> Model:
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(*input_shape, 4), nn.Dropout(), nn.Linear(4, n_outputs))
    return gamma(network, n_outputs, recipe.noise[0], recipe.costs[0], example=torch.zeros(2, *input_shape))


@pytest.mark.usefixtures("unusual_settings")
@pytest.mark.parametrize("error", [None, ArithmeticError, KeyboardInterrupt])
@pytest.mark.parametrize("build", [Recipe.build, build_module], ids=["ladder", "module"])
def test_a_fit_restores_the_settings_of_the_caller(build: object, error: type[BaseException] | None) -> None:
    during: list[dict[str, object]] = []

    def callback(_: object) -> None:
        during.append(settings())
        if len(during) == 2 and error is not None:
            raise error

    rows, classes = np.random.default_rng(0).random((60, 8), dtype=np.float32), np.arange(60) % 3
    recipe = Recipe(network=(5,), costs=1.0, batch_size=20, epochs=2)
    trainer = Trainer(recipe, device="cpu", callbacks=[callback], build=build)  # type: ignore[arg-type]
    before = settings()
    with pytest.raises(error) if error is ArithmeticError else nullcontext():
        trainer.fit(Dataset(rows, classes, classes=np.arange(3)), [split(classes, 9)], [0])
    assert settings() == before
    in_training = {"threads": 1, "default dtype": torch.float32, "default device": CPU, "autocast": False}
    assert in_training.items() <= during[1].items()


# What the contexts are for


def test_autocast_and_default_device_of_the_caller_are_off_in_plain_computation() -> None:
    with torch.autocast("cpu", torch.bfloat16), torch.device("meta"):
        with plain_computation():
            product = torch.ones(2, 2) @ torch.ones(2, 2)
            assert (product.dtype, product.device) == (torch.float32, CPU)
            with torch.autocast("cpu", torch.bfloat16):  # as a module may use it
                assert not torch.is_autocast_cache_enabled()
        assert torch.is_autocast_cache_enabled()


@pytest.mark.parametrize(("small", "threads"), [(True, 1), (False, 2)])
def test_a_small_model_trains_with_one_thread_on_a_cpu(small: bool, threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with arithmetic(CPU, exact=False, small=small):
            assert torch.get_num_threads() == threads
        with arithmetic(torch.device("cuda"), exact=False, small=small):
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.fixture(params=PRECISIONS)
def own_precision(request: pytest.FixtureRequest) -> Iterator[None]:
    """A precision that the caller has set by torch's newer names; the older ones refuse to be read then."""
    place = PRECISIONS[request.param]
    before = place.fp32_precision
    older = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    place.fp32_precision = "ieee" if request.param == "convolutions" else "tf32"
    yield
    place.fp32_precision = before
    assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == older


def precisions() -> set[str]:
    return {place.fp32_precision for place in PRECISIONS.values()}


@pytest.mark.usefixtures("own_precision")
def test_a_precision_set_by_its_newer_name_does_not_matter_and_is_restored() -> None:
    before = [place.fp32_precision for place in PRECISIONS.values()]
    with arithmetic(torch.device("cuda"), exact=False, small=False):
        assert torch.get_float32_matmul_precision() == "high"
        assert torch.backends.cudnn.allow_tf32
        with full_precision():
            assert torch.get_float32_matmul_precision() == "highest"
            assert precisions() == {"ieee"}
        assert torch.backends.cudnn.benchmark
    with arithmetic(CPU, exact=False, small=False):
        assert precisions() == {"ieee"}
    assert [place.fp32_precision for place in PRECISIONS.values()] == before


@pytest.mark.parametrize("products", ["highest", "high", "medium"])
@pytest.mark.parametrize("convolutions", [False, True])
def test_a_precision_set_by_its_older_name_is_restored(products: str, convolutions: bool) -> None:
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    try:
        torch.set_float32_matmul_precision(products)
        torch.backends.cudnn.allow_tf32 = convolutions
        with full_precision():
            assert torch.get_float32_matmul_precision() == "highest"
        assert torch.get_float32_matmul_precision() == products
        assert torch.backends.cudnn.allow_tf32 == convolutions
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


# Random generators


def test_draws_of_a_module_depend_on_seed_and_epoch_alone() -> None:
    def draw(seed: int, epoch: int) -> float:
        torch.rand(epoch)  # the generator is elsewhere each time
        with private_random_state():
            seed_module_draws(seed, epoch)
            return torch.rand(1).item()

    draws = [draw(0, 1), draw(0, 2), draw(1, 1), draw(0, 1)]
    assert draws[0] == draws[3]
    assert len(set(draws)) == 3


def test_what_a_module_draws_differs_between_epochs_and_seeds() -> None:
    drawn: list[float] = []

    class Drawing(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                drawn.append(torch.rand(1).item())
            return super().forward(x)

    def build(_: Recipe, input_shape: tuple[int, ...], n_outputs: int, __: int) -> Model:
        model = gamma(Drawing(*input_shape, n_outputs), n_outputs, example=torch.zeros(2, *input_shape))
        drawn.clear()  # what was drawn when the network was tried
        return model

    dataset = Dataset(np.ones((60, 7), np.float32), np.arange(60) % 3, classes=np.arange(3))
    recipe, draws = Recipe(network=(5,), costs=1.0, batch_size=20, epochs=2), []
    for seed in (0, 1, 0):
        Trainer(recipe, device="cpu", build=build).fit(dataset, [split(dataset.targets, 9)], [seed])
        draws.append(drawn.copy())
    assert draws[0] == draws[2]
    assert len({*draws[0], *draws[1]}) == len(draws[0]) + len(draws[1]) > 4


@pytest.mark.parametrize(("initialized", "forked"), [(False, []), (True, [0, 1])])
def test_generators_of_gpus_are_only_used_if_cuda_is_initialized(initialized, forked, monkeypatch) -> None:
    """Reading the state of a generator would initialize CUDA, which takes memory."""
    asked, seeded = [], []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: initialized)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    monkeypatch.setattr(torch.random, "fork_rng", lambda devices: asked.append(list(devices)) or nullcontext())
    state = torch.get_rng_state()
    with private_random_state(seed=3):
        assert torch.initial_seed() == 3
    torch.set_rng_state(state)
    assert (asked, seeded) == ([forked], [3] * initialized)


# The C library's memory


MMAP, TRIM = environment._MMAP_THRESHOLD, environment._TRIM_THRESHOLD


class Library:
    """Records what the C library is asked for; `largest` is the largest threshold that it accepts."""

    def __init__(self, largest: int = 2**31) -> None:
        self.largest = largest
        self.calls: list[tuple[object, int]] = []

    def mallopt(self, name: int, value: int) -> int:
        self.calls.append((name, value))
        return int(name != MMAP or value <= self.largest)

    def malloc_trim(self, left: int) -> None:
        self.calls.append(("trim", left))


AFTERWARDS = [(MMAP, 2**25), (TRIM, 2**26), ("trim", 0)]


@pytest.mark.parametrize(
    ("largest", "kept"),
    [(2**31, [(MMAP, 2**30), (TRIM, 2**30)]), (2**25, [(MMAP, 2**30), (MMAP, 2**25), (TRIM, 2**30)])],
    ids=["new glibc", "old glibc"],
)
@pytest.mark.parametrize("error", [None, KeyboardInterrupt])
def test_freed_memory_is_kept_and_returned_afterwards(largest, kept, error, monkeypatch) -> None:
    library = Library(largest)
    monkeypatch.setattr(environment, "_glibc", lambda: library)
    with nullcontext() if error is None else pytest.raises(error), freed_memory_kept(enabled=True):
        assert library.calls == kept
        if error is not None:
            raise error
    assert library.calls == [*kept, *AFTERWARDS]


def test_the_allocator_is_left_alone_if_not_enabled_on_other_systems_and_if_it_is_tuned(monkeypatch) -> None:
    find, library = environment._glibc.__wrapped__, Library()
    with monkeypatch.context() as patch:
        patch.setattr(environment, "_glibc", lambda: library)
        with freed_memory_kept(enabled=False):
            assert not library.calls
    for name in environment._TUNED_BY:
        with monkeypatch.context() as patch:
            patch.setenv(name, "glibc.malloc.trim_threshold=1048576")
            assert find() is None
    for system in ("darwin", "win32"):
        with monkeypatch.context() as patch:
            patch.setattr(sys, "platform", system)
            assert find() is None
            patch.setattr(environment, "_glibc", find)
            with freed_memory_kept(enabled=True):
                assert torch.ones(3).sum() == 3


@pytest.mark.skipif(environment._glibc() is None, reason="the C library is not glibc, or the environment tunes it")
@pytest.mark.skipif(platform.libc_ver() < ("glibc", "2.35"), reason="older versions of glibc map all large blocks")
def test_freed_blocks_are_used_again_without_new_pages_and_returned_at_the_end() -> None:
    """In a process of its own, in which nothing else was freed before."""
    program = """
import resource
import torch
from tikas.training.environment import freed_memory_kept

def pages():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def resident():
    return resource.getpagesize() * int(open("/proc/self/statm").read().split()[1])

with freed_memory_kept(enabled=True):
    before = resident()
    for less in range(10):
        start = pages()
        torch.ones(25 * 2**20 - less * 2**16)
        print(pages() - start)
    blocks = [torch.ones(2**18) for _ in range(201)]
    del blocks[:200]  # the last one stays in use behind them
    print(resident() - before)
print(resident() - before)
"""
    output = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    first, *others, kept, left = map(int, output.split())
    assert sum(others) < 3 * first
    assert kept > 90 * 2**20
    assert left < kept / 2
