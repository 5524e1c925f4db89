"""Profile the GPU kernels of an update of the paper's MNIST ladder, and draw two profiles beside each other.

    python benchmarks/profile_update.py --members 40 --out results/profile-40-seeds.json
    python benchmarks/profile_update.py --draw results/profile-40-seeds.txt results/profile-40-seeds.json \\
        --out docs/engine-profile.svg

Drawing needs no GPU. Kernels are profiled on one stream, so that none shares the GPU with another; the time of a whole
update is measured without the profiler and with the side streams that training uses.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch

from common import TimedEngine, epochs_of, interleave, new_parser, provenance, start_engine, synchronize
from tikas.training.environment import pick_device, training_environment
from tikas.training.recipe import Recipe

KINDS = {
    "optimizer": r"adam|fusedopti",
    "products": r"nvjet|gemm|cutlass|xmma|splitk|cublas|wgmma",
    "backward": r"(encode|decode|climb|descend|top)_back",
    "encoder": r"encode|climb|gather_kernel|top_kernel",
    "decoder": r"decode|descend",
    "compiled": r"^triton_",
    "noise": r"distribution|normal|philox",
    "copies of gradients": r"direct_copy",
}
"""What a kernel does, by a pattern of its name: the first that matches counts. Older records have kernels named climb
(now encode) and descend (now decode). "compiled" are the compiler's kernels, which mix forward and backward."""
REST, UNLISTED = "rest", "kernels not listed"

COLORS = {
    "optimizer": "#1f5fa8",
    "copies of gradients": "#7fa6d6",
    "products": "#c2571a",
    "compiled": "#1d5a38",
    "encoder": "#2f7d4f",
    "decoder": "#5aa67a",
    "backward": "#8fc4a5",
    "noise": "#8661a8",
    REST: "#8a8a8a",
    UNLISTED: "#c4c4c4",
}
"""In the order of the segments of a bar."""
NARROW = 0.035
"""Segments below this share of the longest bar have no number in them."""


class Kernel(NamedTuple):
    """A kernel with its microseconds and its calls per update."""

    name: str
    us: float
    calls: float


@dataclass(frozen=True)
class Profile:
    """The kernels of an update.

    `total` are the microseconds of all kernels, listed or not; `wall` those of an update by the clock, without the
    profiler, if they were measured; `about` hardware, versions, revision and engine.
    """

    members: int
    kernels: Sequence[Kernel]
    total: float
    wall: float | None = None
    about: Mapping[str, Any] = field(default_factory=dict)

    def groups(self) -> dict[str, float]:
        """Return the microseconds by what the kernels do, in the order of `COLORS`."""
        found = dict.fromkeys(COLORS, 0.0)
        for kernel in self.kernels:
            found[kind_of(kernel.name)] += kernel.us
        found[UNLISTED] = self.total - sum(kernel.us for kernel in self.kernels)
        return {kind: us for kind, us in found.items() if us > 1e-6 * self.total}

    def write(self, path: Path) -> None:
        """Write the profile as JSON, for `read_profile`."""
        wall = {} if self.wall is None else {"microseconds_by_the_clock": self.wall}
        kernels = {kernel.name: [kernel.us, kernel.calls] for kernel in self.kernels}
        values = {"members": self.members, **wall, "microseconds_and_calls_per_update": kernels, **self.about}
        path.write_text(json.dumps(values, indent=1) + "\n")


def kind_of(kernel: str) -> str:
    """Return what a kernel does.

    Examples
    --------
    >>> kind_of("nvjet_sm90_tst_128x104_64x7_2x1_v_bz_TNT"), kind_of("decode_backward_kernel"), kind_of("Memset")
    ('products', 'backward', 'rest')
    """
    return next((kind for kind, pattern in KINDS.items() if re.search(pattern, kernel, re.IGNORECASE)), REST)


def read_profile(path: Path) -> Profile:
    """Read what `Profile.write` wrote, or the older text with a line for each kernel and the total, of forty seeds."""
    text = path.read_text()
    if text.startswith("{"):
        values = json.loads(text)
        kernels = [Kernel(name, *numbers) for name, numbers in values.pop("microseconds_and_calls_per_update").items()]
        total, wall = sum(kernel.us for kernel in kernels), values.pop("microseconds_by_the_clock", None)
        return Profile(values.pop("members"), kernels, total, wall, values)
    total_us = re.search(r"total us per update ([\d.]+)", text)
    lines = re.findall(r"^\s*([\d.]+) us/upd\s+([\d.]+) calls/upd\s+(.+)$", text, flags=re.MULTILINE)
    if total_us is None or not lines:
        raise ValueError(f"{path}: expected a profile written by benchmarks/profile_update.py.")
    return Profile(40, [Kernel(name, float(us), float(calls)) for us, calls, name in lines], float(total_us[1]))


def profile_epoch(engine: TimedEngine) -> Profile:
    """Profile an epoch on a GPU, after one without the profiler."""
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    device, updates = engine.batches.device, engine.batches.updates
    with training_environment():
        engine.train_epoch()
        synchronize(device)
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            engine.train_epoch()
            synchronize(device)
    kernels = [
        Kernel(event.key, event.self_device_time_total / updates, event.count / updates)
        for event in profiler.key_averages()
        if event.device_type == DeviceType.CUDA and event.self_device_time_total > 0
    ]
    if not kernels:
        raise SystemExit("profile_update.py: the profiler saw no kernels; another one may be running.")
    kernels.sort(key=lambda kernel: -kernel.us)
    about = {**provenance(device), "program": engine.program}
    return Profile(engine.members, kernels, sum(kernel.us for kernel in kernels), about=about)


def measure(members: int, updates: int) -> Profile:
    """Time updates by the clock, then profile the same updates on a single stream."""
    device = pick_device()
    if device.type != "cuda":
        raise SystemExit("profile_update.py: a profile needs a GPU; --draw needs none.")
    from tikas.training.cuda_graph import SideStream
    from tikas.training.fused import engine as fused

    engine = start_engine(Recipe(), device, members=members, updates=updates)
    timing = interleave([epochs_of(engine, "epoch", units=updates)], device, seconds=2.0)["epoch"]
    same_stream = SideStream(torch.device("cpu"))  # runs its work at once, on the current stream
    with patch.object(fused, "_side_stream", lambda *_: same_stream):
        one_stream = start_engine(Recipe(), device, members=members, updates=updates)
        return replace(profile_epoch(one_stream), wall=1000 * timing.ms)


def draw_profiles(profiles: Mapping[str, Profile], path: Path) -> None:
    """Draw a bar for each profile, from top to bottom, with a segment for each kind of kernel."""
    from tikas.paper.figures import svg_figure

    longest = max(profile.total for profile in profiles.values())
    with svg_figure(path) as figure:
        figure.set_size_inches(8.4, 1.3 + 0.62 * len(profiles))
        axes = figure.subplots()
        segments: dict[str, Any] = {}
        for row, profile in enumerate(profiles.values()):
            left = 0.0
            for kind, us in profile.groups().items():
                style = {"color": COLORS[kind], "edgecolor": "white", "linewidth": 0.6}
                segments[kind] = axes.barh(row, us, 0.62, left=left, **style)
                if us > NARROW * longest:
                    axes.text(left + us / 2, row, f"{us:.0f}", ha="center", va="center", color="white", fontsize=8)
                left += us
            axes.text(left + 0.008 * longest, row, f"{profile.total:.0f} µs", va="center")
        axes.set_yticks(range(len(profiles)), list(profiles))
        axes.set_ylim(len(profiles) - 0.5, -0.5)
        axes.set_xlim(0, 1.09 * longest)
        members = " and ".join(sorted({str(profile.members) for profile in profiles.values()}))
        axes.set_xlabel(f"microseconds of GPU time per update of {members} seeds")
        kinds = [kind for kind in COLORS if kind in segments]
        handles = [segments[kind] for kind in kinds]
        figure.legend(handles, kinds, loc="outside lower center", ncols=5, frameon=False, fontsize=8)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--members", type=int, default=40)
    parser.add_argument("--updates", type=int, default=100, help="of the epoch that is profiled")
    parser.add_argument("--draw", nargs=2, type=Path, metavar=("BEFORE", "AFTER"), help="draw these profiles instead")
    parser.add_argument("--out", type=Path, required=True, help="a .json file for the profile, or an .svg file")
    options = parser.parse_args(arguments)
    if options.draw:
        before, after = map(read_profile, options.draw)
        draw_profiles({"before": before, "after": after}, options.out)
        return
    profile = measure(options.members, options.updates)
    for kind, us in profile.groups().items():
        print(f"{us:9.1f} µs  {100 * us / profile.total:5.1f} %  {kind}")
    print(f"{profile.total:9.1f} µs of kernels per update, {profile.wall:.1f} µs by the clock")
    profile.write(options.out)


if __name__ == "__main__":
    main()
