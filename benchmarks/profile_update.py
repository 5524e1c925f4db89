"""Where an update's time goes on a GPU: every kernel, and what the kernels are for; as JSON, and as a picture of two.

    python benchmarks/profile_update.py --members 40 --out results/profile-40-seeds.json
    python benchmarks/profile_update.py --draw results/profile-40-seeds.txt results/profile-40-seeds.json \\
        --out docs/engine-profile.svg

The second needs no GPU, but matplotlib. Kernels are timed one after the other, so that none shares the chip with
another; the time by the clock is that of an update as it is, of whose kernels some run beside others.
"""

import argparse
from dataclasses import replace
from unittest.mock import patch

import torch

from tikas.experiments.bench import epochs_of, interleave, program_of, start_fleet
from tikas.experiments.profiles import Profile, profile_update, read_profile
from tikas.training.devices import suitable_device
from tikas.training.lanes import Lane
from tikas.training.recipe import Recipe


def measure(members: int, updates: int) -> Profile:
    device = suitable_device()
    if device.type != "cuda":
        raise SystemExit("profile_update.py: there is no GPU here; --draw needs none.")
    fleet = start_fleet(Recipe(), device, members=members, updates=updates)
    print(f"{members} members, {program_of(fleet)}")
    by_the_clock = interleave([epochs_of(fleet, "epoch", units=updates)], device, seconds=2.0)["epoch"]
    with patch("tikas.training.fused.Lane", lambda *_, **__: Lane(torch.device("cpu"))):  # which has no stream
        in_turn = start_fleet(Recipe(), device, members=members, updates=updates)
    return replace(profile_update(in_turn), wall=1000 * by_the_clock.ms)


def show(profile: Profile) -> None:
    for kind, us in profile.groups().items():
        print(f"{us:9.1f} µs  {100 * us / profile.total:5.1f} %  {kind}")
    wall = "" if profile.wall is None else f", {profile.wall:.1f} µs by the clock"
    print(f"{profile.total:9.1f} µs an update, {profile.total / profile.members:.1f} a member{wall}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=40)
    parser.add_argument("--updates", type=int, default=100, help="in the epoch that is profiled")
    parser.add_argument("--draw", nargs=2, metavar=("BEFORE", "AFTER"), help="profiles to draw, instead of taking one")
    parser.add_argument("--out", required=True, help="a .json file for the profile, or an .svg file for the picture")
    options = parser.parse_args()
    if options.draw:
        from tikas.views.profiles import draw_profiles

        before, after = map(read_profile, options.draw)
        draw_profiles({"before": before, "after": after}, options.out)
        return
    profile = measure(options.members, options.updates)
    show(profile)
    profile.write(options.out)


if __name__ == "__main__":
    main()
