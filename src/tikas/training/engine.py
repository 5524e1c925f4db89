"""Which program trains a fleet: plain, compiled, captured as a CUDA graph, or written out; all learn the same thing."""

import platform
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from math import prod
from pathlib import Path

import torch
from torch._functorch import config as functorch

from tikas.data.streams import Streams
from tikas.model.convolutions import ConvRung
from tikas.model.ladder import Ladder
from tikas.training.captured import CapturedFleet, SideBySide
from tikas.training.compiled import CompiledFleet
from tikas.training.compilers import SlowerWarning, hindrance
from tikas.training.devices import PutBack
from tikas.training.fleet import Fleet
from tikas.training.precision import precision

WORTH_COMPILING = 1e12
"""Products of an update times updates from which on compiling (half a minute) is paid back."""

WORTH_THREADS = 1e8
"""Products of an update from which on a second thread is worth it."""

UPDATES_IN_A_REPLAY = 10

CHIP = Path("/proc/cpuinfo")


def launch(ladders: Sequence[Ladder], streams: Streams, updates: int, *, exact: bool = False) -> Fleet:
    """The quickest fleet for this device and this amount of work.

    Parameters
    ----------
    ladders, streams
        The members and what they see.
    updates
        How many there will be.
    exact
        Products of full float32 precision, instead of bf16 and TF32 where these are quicker.

    Returns
    -------
    Fleet
        On a CPU the plain one, and of dense ladders a compiled one if that is paid back and a C++ compiler works. On a
        GPU a captured one; if compiling is paid back, dense ladders are written out in kernels and others compiled.

    Examples
    --------
    >>> from tikas.data.splits import split
    >>> from tikas.data.streams import Examples
    >>> from tikas.model.specs import Dense
    >>> ladder, classes = Ladder((8,), [Dense(5), Dense(3)]), torch.arange(60) % 3
    >>> examples, splits = Examples(torch.rand(60, 8), classes, outputs=3), [split(classes.numpy(), 9)]
    >>> fleet = launch([ladder], Streams(examples, splits, [0], ladder.shapes, 20, 20), updates=300)
    >>> type(fleet).__name__, fleet.costs == fleet.ladder.costs  # the rows are on the CPU; compiling does not pay
    ('Fleet', True)
    """
    device = streams.examples.rows.device
    if not isinstance(ladders[0], Ladder):  # a network that somebody else wrote may do what no compiler follows
        return Fleet(ladders, streams)
    if device.type != "cuda" and on_maps(ladders[0]):  # a library's; on two cores compiling the rest gained nothing
        return Fleet(ladders, streams)
    compiled = _work_of_an_update(ladders, streams) * updates >= WORTH_COMPILING and _can_compile(device)
    if device.type == "cuda":
        return _launch_on_gpu(ladders, streams, compiled=compiled, exact=exact)
    if not compiled or not all(parameter.requires_grad for parameter in ladders[0].parameters()):
        return Fleet(ladders, streams)
    single = next(ladders[0].parameters()).dtype == torch.float32
    in_half = single and not exact and _half_is_quicker()
    return CompiledFleet(ladders, streams, torch.bfloat16 if in_half else torch.float32)


def _half_is_quicker() -> bool:
    """Whether a CPU's products in bf16 are worth their casts: AMD's with AVX-512's instructions for them.

    They save a third of an update there. Intel's with AMX gain 5 %, and held to AVX-512's bf16 they lose
    (`results/cpu-bf16.jsonl`).
    """
    try:
        vendor = CHIP.read_text()
    except OSError:  # as on Windows
        vendor = platform.processor()
    return "AuthenticAMD" in vendor and bool(torch.cpu._is_avx512_bf16_supported())


def _can_compile(device: torch.device) -> bool:
    """Whether there is what it takes; if not, that is said."""
    why = hindrance(device)
    if why is not None:
        message = f"Training goes on without compiled code, and slower, because {why}."
        warnings.warn(message, SlowerWarning, stacklevel=5)
    return why is None


def _launch_on_gpu(ladders: Sequence[Ladder], streams: Streams, *, compiled: bool, exact: bool) -> Fleet:
    if compiled:
        from tikas.training.fused import FusedFleet, can_be_fused  # which need Triton

        if can_be_fused(ladders[0], streams):
            return FusedFleet(ladders, streams, torch.float32 if exact else torch.bfloat16)
    kind = SideBySide if convolves(ladders[0]) and len(ladders) > 1 else CapturedFleet
    return kind(ladders, streams, compiled=compiled, exact=exact)


def on_maps(ladder: Ladder) -> bool:
    """Whether a ladder has levels that are maps.

    Examples
    --------
    >>> from tikas import Conv, Dense
    >>> on_maps(Ladder((1, 8, 8), [Conv(4, 3), Dense(10)])), on_maps(Ladder((64,), [Dense(10)]))
    (True, False)
    """
    return any(len(shape) > 1 for shape in ladder.shapes)


def convolves(ladder: Ladder) -> bool:
    """Whether a ladder has convolutions that are not made by matrix products, as members can make theirs together.

    Examples
    --------
    >>> from tikas import Conv, Dense
    >>> [convolves(Ladder((1, 8, 8), [Conv(4, kernel), Dense(10)])) for kernel in (1, 3, 7)]
    [False, True, False]
    """
    return any(isinstance(rung, ConvRung) and not rung.is_product for rung in ladder.rungs)


@contextmanager
def suitable_arithmetic(fleet: Fleet, *, exact: bool = False) -> Iterator[None]:
    """TF32 for float32 products while a fleet trains on a GPU, none on a CPU, and there one thread if it is small.

    Operations of a small fleet are over before a second thread has woken up. On two cores it gains a tenth, and when
    another process wants a core it costs half.

    Examples
    --------
    >>> from tikas.data.splits import split
    >>> from tikas.data.streams import Examples
    >>> from tikas.model.specs import Dense
    >>> ladder, classes = Ladder((8,), [Dense(5), Dense(3)]), torch.arange(60) % 3
    >>> examples, splits = Examples(torch.rand(60, 8), classes, outputs=3), [split(classes.numpy(), 9)]
    >>> small = Fleet([ladder], Streams(examples, splits, [0], ladder.shapes, 20, 20))
    >>> with suitable_arithmetic(small):
    ...     torch.get_num_threads()
    1
    """
    on_gpu = fleet.device.type == "cuda"
    with precision(tf32=on_gpu and not exact), _arithmetic() as (threads, _), _compiled_code_kept():
        if on_gpu:
            torch.backends.cudnn.benchmark = True
        elif _work_of_an_update(fleet.ladders, fleet.streams) < WORTH_THREADS:
            torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)  # of which every thread of Python has a number of its own


@contextmanager
def _compiled_code_kept() -> Iterator[None]:
    """Let torch keep all that it compiles, for the next process and for the other fleets of this one.

    Three of its settings are changed:

    - Code with derivatives written by hand, as ours has, is kept whole. By default it is kept in parts, and a start
      spends most of its time on putting them together. What is kept is found by those derivatives too, so that others
      are not taken for them.
    - The way back is compiled with the way there, so that `Compiler` sees it fail.
    - A function may become more than eight programs. By default the ninth network, noise or cost that a search tries
      would train uncompiled.

    In torch 2.13 these are settings of a thread. Before, they are the process's, and threads that train on several GPUs
    may leave them changed behind; that does no more than keep more of what is compiled.
    """
    dynamo = sys.modules.get("torch._dynamo.config")  # slow to import, and there already if anything is compiled
    with ExitStack() as settings:
        for setting in ("autograd_cache_allow_custom_autograd_functions", "force_non_lazy_backward_lowering"):
            if hasattr(functorch, setting):  # older versions of torch have none
                settings.enter_context(functorch.patch({setting: True}))
        if dynamo is not None:
            settings.enter_context(dynamo.patch({"recompile_limit": dynamo.accumulated_recompile_limit}))
        yield


def _write_arithmetic(setting: tuple[int, bool]) -> None:
    threads, torch.backends.cudnn.benchmark = setting
    torch.set_num_threads(threads)


_arithmetic = PutBack(lambda: (torch.get_num_threads(), torch.backends.cudnn.benchmark), _write_arithmetic)


def _work_of_an_update(ladders: Sequence[Ladder], streams: Streams) -> float:
    """Products of weights and rows, and on maps of positions too."""
    rows = 2 * streams.batch_size + streams.labeled_batch_size
    parts = getattr(ladders[0], "rungs", [ladders[0]])
    products = [
        sum(parameter.numel() for parameter in part.parameters()) * prod(getattr(part, "shape", ())[1:])
        for part in parts
    ]
    return float(sum(products)) * rows * len(ladders)
