"""Where an update's time goes on a GPU: its kernels, grouped by what they are for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from tikas.experiments.bench import epochs_of, interleave, program_of
from tikas.experiments.records import hardware, revision, versions
from tikas.training.fleet import Fleet

KINDS = {
    "optimiser": r"adam|fusedopti",
    "products": r"nvjet|gemm|cutlass|xmma|splitk|cublas|wgmma",
    "chains back": r"(climb|descend|top)_back",
    "chains up": r"climb|gather_kernel|top_kernel",
    "chains down": r"descend",
    "chains": r"^triton_",
    "noise": r"distribution|normal|philox",
    "copies of gradients": r"direct_copy",
}
"""What a kernel is for, by its name; the first that fits counts. `chains` are those that a compiler made, there and
back in one; what fits nowhere is the rest."""

BY_KERNEL = "microseconds_and_calls_per_update"
REST, UNLISTED = "rest", "kernels not listed"


class Kernel(NamedTuple):
    """A kernel with its microseconds and its calls in one update.

    Examples
    --------
    >>> kernel = Kernel("adam_kernel", us=868.5, calls=2)
    >>> kernel.us / kernel.calls
    434.25
    """

    name: str
    us: float
    calls: float


@dataclass(frozen=True)
class Profile:
    """The kernels of one update of a fleet.

    Attributes
    ----------
    total
        Microseconds of all kernels of an update together; at least those of the kernels that are named.
    wall
        Microseconds of an update by the clock, without a profiler; None where it was not measured.
    about
        Hardware, versions and the like.
    """

    members: int
    kernels: tuple[Kernel, ...]
    total: float
    wall: float | None = None
    about: Mapping[str, Any] = field(default_factory=dict)

    def groups(self) -> dict[str, float]:
        """Microseconds by what they were spent on.

        Examples
        --------
        >>> kernels = Kernel("nvjet_sm90_tst", 7.0, 4), Kernel("climb_back_kernel", 3.0, 6)
        >>> Profile(40, kernels, total=11.0).groups()
        {'products': 7.0, 'chains back': 3.0, 'kernels not listed': 1.0}
        """
        found = dict.fromkeys([*KINDS, REST, UNLISTED], 0.0)
        for kernel in self.kernels:
            found[kind_of(kernel.name)] += kernel.us
        found[UNLISTED] = self.total - sum(kernel.us for kernel in self.kernels)
        return {kind: us for kind, us in found.items() if us > 1e-6 * self.total}

    def write(self, path: str | Path) -> None:
        """As JSON; `read_profile` reads it back."""
        wall = {} if self.wall is None else {"microseconds_by_the_clock": self.wall}
        kernels = {kernel.name: [kernel.us, kernel.calls] for kernel in self.kernels}
        values = {"members": self.members, **wall, BY_KERNEL: kernels, **self.about}
        Path(path).write_text(json.dumps(values, indent=1) + "\n")


def kind_of(kernel: str) -> str:
    """What a kernel is for, by its name.

    Examples
    --------
    >>> kind_of("nvjet_sm90_tst_128x104_64x7_2x1_v_bz_TNT"), kind_of("descend_back_kernel"), kind_of("Memset (Device)")
    ('products', 'chains back', 'rest')
    """
    return next((kind for kind, pattern in KINDS.items() if re.search(pattern, kernel, re.IGNORECASE)), REST)


def profile_update(fleet: Fleet) -> Profile:
    """Profile an epoch of a fleet on a GPU, after one or more without a profiler, and time it without one too.

    Raises
    ------
    ValueError
        Where the fleet is on no GPU.
    RuntimeError
        Where the profiler saw nothing.

    Examples
    --------
    A profile takes a GPU; `read_profile` shows one.

    >>> from tikas.experiments.bench import start_fleet
    >>> from tikas.training.recipe import Recipe
    >>> profile_update(start_fleet(Recipe(network=(4,), batch_size=10), torch.device("cpu"), shape=(3,)))
    Traceback (most recent call last):
    ValueError: This fleet is on device 'cpu', and the kernels of a GPU are what is profiled. Start it on 'cuda'.
    """
    if fleet.device.type != "cuda":
        raise ValueError(
            f"This fleet is on device '{fleet.device}', and the kernels of a GPU are what is profiled. "
            "Start it on 'cuda'."
        )
    from torch.autograd import DeviceType  # type: ignore[attr-defined]
    from torch.profiler import ProfilerActivity, profile

    updates = fleet.streams.updates
    side = epochs_of(fleet, "epoch", units=updates)
    timing = interleave([side], fleet.device, seconds=2.0)["epoch"]
    with profile(activities=[ProfilerActivity.CUDA]) as taken:
        side.block()
        torch.cuda.synchronize(fleet.device)
    kernels = [
        Kernel(event.key, event.self_device_time_total / updates, event.count / updates)
        for event in taken.key_averages()
        if event.device_type == DeviceType.CUDA and event.self_device_time_total > 0
    ]
    if not kernels:
        raise RuntimeError("The profiler saw no kernel: another one may be running, or it lacks permission.")
    about = {"hardware": hardware(fleet.device), "versions": versions(), "revision": revision()}
    return Profile(
        fleet.members,
        tuple(sorted(kernels, key=lambda kernel: -kernel.us)),
        sum(kernel.us for kernel in kernels),
        1000 * timing.ms,
        {**about, "program": program_of(fleet)},
    )


def read_profile(path: str | Path, members: int = 40) -> Profile:
    """Read what `Profile.write` wrote, or a text with a line for every kernel and the total on top.

    Parameters
    ----------
    members
        Of a text, which does not say.

    Raises
    ------
    ValueError
        Where the file is neither.

    Examples
    --------
    >>> import tempfile
    >>> kernels = Kernel("adam_kernel", 870.0, 2), Kernel("nvjet_sm90_tst", 270.0, 20)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Profile(40, kernels, total=1140.0).write(Path(folder, "profile.json"))
    ...     read_profile(Path(folder, "profile.json")).groups()
    {'optimiser': 870.0, 'products': 270.0}
    """
    text = Path(path).read_text()
    if text.lstrip().startswith("{"):
        values = json.loads(text)
        kernels = tuple(Kernel(name, *figures) for name, figures in values.pop(BY_KERNEL).items())
        total, wall = sum(kernel.us for kernel in kernels), values.pop("microseconds_by_the_clock", None)
        return Profile(values.pop("members"), kernels, total, wall, values)
    kernels = tuple(_kernels_in(text.splitlines()))
    stated = re.search(r"total us per update ([\d.]+)", text)
    if not kernels or stated is None:
        raise ValueError(f"{path}: expected a profile that benchmarks/profile_update.py wrote.")
    return Profile(members, kernels, float(stated[1]))


def _kernels_in(lines: Iterable[str]) -> Iterable[Kernel]:
    for line in lines:
        found = re.match(r"\s*([\d.]+) us/upd\s+([\d.]+) calls/upd\s+(.+)", line)
        if found:
            yield Kernel(found[3].strip(), float(found[1]), float(found[2]))
