"""Settings that PyTorch and the C library keep for the whole process: set for a fit, restored after it."""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from types import FrameType
from typing import Any

import torch
from numpy.typing import NDArray
from torch import distributed

from tikas.data.batches import generator

_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1
"""Parameters of mallopt: size from which a block is mapped on its own, and free heap that is returned to the system."""
_TUNED_BY = (
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_MMAP_MAX_",
    "MALLOC_TRIM_THRESHOLD_",
    "MALLOC_TOP_PAD_",
    "GLIBC_TUNABLES",
)
"""Environment variables that set these."""

TORCHRUN_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Environment variables in which torchrun tells a process its number, and how to reach the others."""


def is_first_process() -> bool:
    """Return whether this is process 0, or the only one: it alone prints, and writes what all have."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank() == 0
    return not started_by_torchrun() or int(os.environ["RANK"]) == 0


def started_by_torchrun() -> bool:
    """Return whether this is one of several processes that torchrun, or another launcher in its way, has started."""
    return all(os.environ.get(name) for name in TORCHRUN_VARIABLES) and int(os.environ["WORLD_SIZE"]) > 1


def pick_device(device: str | torch.device | None = None) -> torch.device:
    """Return the given device; by default a GPU if there is one, else the CPU. Each process of torchrun has its GPU.

    Raises
    ------
    ValueError
        If this machine has no such device.
    """
    if device is None:
        return _gpu_of_process() if torch.cuda.is_available() else torch.device("cpu")
    try:
        found = torch.device(device)
        if found == torch.device("cuda"):
            found = _gpu_of_process()
        torch.zeros(1, device=found).item()  # fails on "meta", which computes nothing
    except (AssertionError, NotImplementedError, RuntimeError, TypeError) as error:
        raise ValueError(
            f"device={device!r} is not available on this machine. Give 'cpu', or 'cuda' if there is a GPU."
        ) from error
    return found


def _gpu_of_process() -> torch.device:
    """Return the GPU of this process: the one in use, or in a process of torchrun the one with the process's number."""
    if distributed.is_available() and distributed.is_initialized():
        return torch.device("cuda", torch.cuda.current_device())
    number = os.environ.get("LOCAL_RANK", "")
    # A launcher may show each process its own GPU alone.
    if number.isdecimal() and int(number) < torch.cuda.device_count():
        return torch.device("cuda", int(number))
    return torch.device("cuda")


def as_tensor(array: NDArray[Any]) -> torch.Tensor:
    """Return a tensor with the memory of an array, which is not written to even if PyTorch would let it."""
    if array.flags.writeable:
        return torch.from_numpy(array)
    with warnings.catch_warnings():  # torch warns that it could be written to
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(array)


@contextmanager
def training_environment() -> Iterator[None]:
    """Train with PyTorch's defaults, whatever the caller has set."""
    with torch.inference_mode(False), torch.enable_grad(), plain_computation(), float32_default():
        yield


@contextmanager
def plain_computation() -> Iterator[None]:
    """Compute without autocast and with the CPU as the default device.

    Autocast would keep its copies of the weights from before they are trained.
    """
    with ExitStack() as stack:
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False, cache_enabled=False))
        if torch.empty(0).device.type != "cpu":  # torch.get_default_device ignores `with device:` in older versions
            stack.enter_context(torch.device("cpu"))
        yield


@contextmanager
def float32_default() -> Iterator[None]:
    """Make new tensors float32, whatever the default dtype is."""
    dtype = torch.get_default_dtype()
    if dtype == torch.float32:
        yield
        return
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)


@contextmanager
def arithmetic(device: torch.device, *, exact: bool, small: bool) -> Iterator[None]:
    """Train with TF32 products on a GPU unless `exact`; on a CPU in float32, `small` updates with one thread."""
    benchmark, on_gpu = torch.backends.cudnn.benchmark, device.type == "cuda"
    with _precision(tf32=on_gpu and not exact), single_thread(small and not on_gpu):
        torch.backends.cudnn.benchmark = on_gpu or benchmark
        try:
            yield
        finally:
            torch.backends.cudnn.benchmark = benchmark


@contextmanager
def single_thread(enabled: bool) -> Iterator[None]:
    """Compute with one CPU thread, if `enabled`.

    The operations of a small model are over before a second thread has woken up. An update of the estimators' default
    network took 4.9 ms with one thread and 4.6 ms with two, on two cores of an AMD EPYC; while another process used one
    of them, 5.0 ms and 18 ms.
    """
    threads = torch.get_num_threads()
    if enabled:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def deferred_signals(*, enabled: bool) -> Iterator[list[int]]:
    """Note Ctrl-C and SIGTERM in the list that this yields, instead of stopping in the middle of an update.

    A second Ctrl-C stops at once. Only the main thread may handle signals; elsewhere nothing changes.
    """
    received: list[int] = []
    if not enabled or threading.current_thread() is not threading.main_thread():
        yield received
        return

    def note(number: int, _: FrameType | None) -> None:
        if received and number == signal.SIGINT:
            raise KeyboardInterrupt
        received.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def full_precision() -> Iterator[None]:
    """Compute float32 products and convolutions in float32 on a GPU too, for calibration and prediction."""
    with _precision(tf32=False):
        yield


@contextmanager
def _precision(*, tf32: bool) -> Iterator[None]:
    backends: Any = torch.backends
    # Torch has two sets of names for these settings. Where the newer `fp32_precision` (torch 2.9) was used, the older
    # names refuse to be read; their defaults are restored then, and decide nothing.
    products, convolutions = "highest", True
    with suppress(RuntimeError):
        products = torch.get_float32_matmul_precision()
    with suppress(RuntimeError):
        convolutions = backends.cudnn.allow_tf32
    newer = hasattr(backends.cudnn, "conv")
    own_settings = [backends.cudnn.conv, backends.cudnn.rnn, backends.mkldnn.conv] if newer else []
    places = [backends.cuda.matmul, backends.mkldnn.matmul, *own_settings] if newer else []
    saved = [place.fp32_precision for place in places]
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    backends.cudnn.allow_tf32 = tf32
    for place in own_settings:  # of which the older names say nothing
        place.fp32_precision = "tf32" if tf32 else "ieee"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(products)
        backends.cudnn.allow_tf32 = convolutions
        for place, precision in zip(places, saved, strict=True):
            place.fp32_precision = precision


@contextmanager
def private_random_state(seed: int | None = None) -> Iterator[None]:
    """Restore PyTorch's global random generators at the end; seed them at the start if a seed is given."""
    with torch.random.fork_rng(devices=_gpus_in_use()):
        if seed is not None:
            _seed_global_generators(seed)
        yield


def seed_module_draws(seed: int, epoch: int, process: int = 0) -> None:
    """Seed what a module draws by itself in an epoch, such as dropout; call it within `private_random_state`."""
    purpose = f"module, epoch {epoch}" + (f", process {process}" if process else "")
    _seed_global_generators(generator(seed, purpose).initial_seed())


def _seed_global_generators(seed: int) -> None:
    torch.default_generator.manual_seed(seed)
    if _gpus_in_use():
        torch.cuda.manual_seed_all(seed)


def _gpus_in_use() -> range:
    """Return the GPUs, unless CUDA is not initialized: reading a generator would initialize it."""
    return range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0)


@contextmanager
def freed_memory_kept(*, enabled: bool) -> Iterator[None]:
    """Let glibc keep freed memory for the next allocation: for updates on a CPU that are not small.

    Every update allocates activations and gradients and frees them. glibc returns blocks of that size to the system,
    which clears the pages of the next ones: a tenth of an update of the paper's network, a quarter of Conv-Small's
    (`benchmarks/allocation.py`). glibc cannot tell what its thresholds are, so they are left where its own adaptation
    ends. Settings in the environment are respected.
    """
    library = _glibc() if enabled else None
    if library is None:
        yield
        return
    if not library.mallopt(_MMAP_THRESHOLD, 2**30):
        library.mallopt(_MMAP_THRESHOLD, 2**25)  # the most that older versions accept
    library.mallopt(_TRIM_THRESHOLD, 2**30)
    try:
        yield
    finally:
        library.mallopt(_MMAP_THRESHOLD, 2**25)
        library.mallopt(_TRIM_THRESHOLD, 2**26)
        library.malloc_trim(0)


@cache
def _glibc() -> Any:
    """Return the C library if it is glibc and the environment does not tune its allocator."""
    if sys.platform != "linux" or platform.libc_ver()[0] != "glibc" or any(name in os.environ for name in _TUNED_BY):
        return None
    return ctypes.CDLL(None)
