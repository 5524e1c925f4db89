"""The picture of where an update's time goes: a bar for every profile, a segment for everything it is spent on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tikas.experiments.profiles import KINDS, REST, UNLISTED, Profile
from tikas.views.plots import figure_in

COLORS = {
    "optimiser": "#1f5fa8",
    "copies of gradients": "#7fa6d6",
    "products": "#c2571a",
    "chains": "#1d5a38",
    "chains up": "#2f7d4f",
    "chains down": "#5aa67a",
    "chains back": "#8fc4a5",
    "noise": "#8661a8",
    REST: "#8a8a8a",
    UNLISTED: "#c4c4c4",
}
"""In the order of the segments."""

assert COLORS.keys() == {*KINDS, REST, UNLISTED}
NARROW = 0.035
"""A segment of a smaller share of the longest bar has no figure in it."""


def draw_profiles(profiles: Mapping[str, Profile], path: str | Path) -> None:
    """Draw profiles by their titles, from top to bottom, into a file.

    Raises
    ------
    PlotsMissingError
        Where matplotlib is not installed.

    Examples
    --------
    >>> import tempfile
    >>> from tikas.experiments.profiles import Kernel
    >>> one, other = (Profile(40, (Kernel("adam_kernel", us, 2),), total=us) for us in (870.0, 434.0))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     draw_profiles({"before": one, "after": other}, Path(folder, "profiles.svg"))
    ...     "434 µs" in Path(folder, "profiles.svg").read_text()
    True
    """
    longest = max(profile.total for profile in profiles.values())
    with figure_in(path) as figure:
        figure.set_size_inches(8.4, 1.3 + 0.62 * len(profiles))
        axes = figure.subplots()
        segments: dict[str, Any] = {}
        for place, profile in enumerate(profiles.values()):
            left, groups = 0.0, profile.groups()
            for kind in [kind for kind in COLORS if kind in groups]:
                us = groups[kind]
                style = {"color": COLORS[kind], "edgecolor": "white", "linewidth": 0.6}
                segments[kind] = axes.barh(place, us, 0.62, left=left, **style)
                if us > NARROW * longest:
                    axes.text(left + us / 2, place, f"{us:.0f}", ha="center", va="center", color="white", fontsize=8)
                left += us
            axes.text(left + 0.008 * longest, place, f"{profile.total:.0f} µs", va="center")
        axes.set_yticks(range(len(profiles)), list(profiles))
        axes.set_ylim(len(profiles) - 0.5, -0.5)
        axes.set_xlim(0, 1.09 * longest)
        members = " and ".join(sorted({str(profile.members) for profile in profiles.values()}))
        axes.set_xlabel(f"microseconds of GPU time in an update of {members} members")
        shown = [kind for kind in COLORS if kind in segments]
        figure.legend(
            [segments[kind] for kind in shown], shown, loc="outside lower center", ncols=5, frameon=False, fontsize=8
        )
