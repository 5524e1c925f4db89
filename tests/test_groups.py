"""Members spread over fleets and devices learn what they would have learnt as one fleet, and come back in order."""

import re
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from threading import Barrier, Event, local

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tikas import LadderClassifier
from tikas.data.splits import Split, split
from tikas.data.streams import Examples, Streams
from tikas.model.gamma import gamma
from tikas.model.ladder import Ladder
from tikas.training import groups, loop, memory
from tikas.training.building import build_ladder
from tikas.training.engine import launch as launch_fleet
from tikas.training.fit import OF_A_MEMBER, fit
from tikas.training.fleet import Fleet
from tikas.training.groups import suitable_devices, train_in_groups
from tikas.training.keeping import Kept
from tikas.training.loop import History, Job, Progress, Trained
from tikas.training.loop import train as train_one_fleet
from tikas.training.memory import bytes_of_a_member, free_bytes
from tikas.training.recipe import Recipe

CPU = torch.device("cpu")
CLASSES = np.arange(100) % 3
SEEDS = [3, 14, 15, 92, 6]
RECIPE = Recipe(
    data="array",
    labels=9,
    network=(8, 6),
    costs=(10.0, 1.0, 0.1),
    batch_size=20,
    labeled_batch_size=12,
    epochs=4,
)
OWN_SETTINGS = [
    RECIPE,
    replace(RECIPE, noise=(0.5, 0.1)),
    replace(RECIPE, costs=(3.0, 2.0, 0.7)),
    replace(RECIPE, learning_rate=0.01),
    replace(RECIPE, annealed=1.0, noise=(0.2,), costs=(20.0, 0.5), learning_rate=0.005, labels=30),
]

ONE_EPOCH = [replace(RECIPE, epochs=1)] * 5
"""For what shows before anything is learnt: who trains with whom."""

# Measured 5e-16; stacked products add in another order, and no member is off by more than rounding.
ROUNDING = 1e-13


def examples() -> Examples:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(3, 7))[CLASSES] + 0.5 * rng.normal(size=(100, 7))
    return Examples(torch.from_numpy(rows), torch.from_numpy(CLASSES), 3)


def build_double(recipe: Recipe, shape: Sequence[int], outputs: int, seed: int | None) -> Ladder:
    return build_ladder(recipe, shape, outputs, seed).double()


FULL = build_double(RECIPE, (7,), 3, 0)


def job(recipes: Sequence[Recipe] | None = None) -> Job:
    """Five members, twenty updates each, in double precision."""
    recipes = recipes or [RECIPE] * 5
    return Job(examples(), splits_of(recipes), recipes, SEEDS, None, build_double)


def splits_of(recipes: Sequence[Recipe], seeds: Sequence[int] = SEEDS) -> list[Split]:
    labels = [None if recipe.labels == "all" else recipe.labels for recipe in recipes]
    return [split(CLASSES, number, seed=seed) for number, seed in zip(labels, seeds, strict=True)]


def together(recipes: Sequence[Recipe] | None = None) -> Trained:
    return train_in_groups(job(recipes), [CPU], None)


@pytest.fixture(scope="module")
def alike() -> Trained:
    """Five members with the same settings, trained as one fleet."""
    return together()


@pytest.fixture(scope="module")
def own() -> Trained:
    """Five members with settings of their own, trained as one fleet."""
    return together(OWN_SETTINGS)


def farthest(one: Ladder, other: Ladder) -> float:
    theirs = dict(other.named_parameters())
    return max((value - theirs[name]).abs().max().item() for name, value in one.named_parameters())


def assert_same(one: Trained, other: Trained) -> None:
    """The same members in the same order, by weights, statistics and costs."""
    assert len(one.ladders) == len(other.ladders)
    for ours, theirs in zip(one.ladders, other.ladders, strict=True):
        assert farthest(ours, theirs) < ROUNDING
        rows = examples().rows
        torch.testing.assert_close(ours(rows), theirs(rows), rtol=0, atol=1e-10)
    for ours, theirs in zip(one.histories, other.histories, strict=True):
        for line, expected in zip(ours, theirs, strict=True):
            for name in ("epoch", "learning_rate", "total", "supervised", "denoising"):
                assert line[name] == pytest.approx(expected[name], rel=1e-10)


# Members with settings of their own.


def test_members_with_settings_of_their_own_learn_in_one_fleet_what_each_learns_alone(own):
    for place, seed in enumerate(SEEDS):
        alone = fit(
            examples(),
            splits_of([OWN_SETTINGS[place]], [seed]),
            OWN_SETTINGS[place],
            [seed],
            device="cpu",
            build=build_double,
        )
        one = Trained([own.ladders[place]], [own.histories[place]], interrupted=False)
        assert_same(one, alone)


@pytest.mark.parametrize("setting", OF_A_MEMBER)
def test_each_setting_of_a_member_makes_a_difference(setting, alike):
    """Or the test above would show nothing: with one other setting a member goes elsewhere, and its fellows do not."""
    value = getattr(OWN_SETTINGS[4], setting)
    other = together([*[RECIPE] * 4, replace(RECIPE, **{setting: value})])
    for place in range(4):
        assert farthest(alike.ladders[place], other.ladders[place]) < ROUNDING
    assert farthest(alike.ladders[4], other.ladders[4]) > 1e-3


def test_each_member_comes_back_with_its_own_noise_and_costs(own):
    for ladder, recipe in zip(own.ladders, OWN_SETTINGS, strict=True):
        assert tuple(rung.noise for rung in ladder.rungs) == recipe.levels_of_noise()
        assert tuple(rung.cost for rung in ladder.rungs) == recipe.levels_of_costs()


def fit_two(one: Recipe, other: Recipe) -> Trained:
    return fit(examples(), splits_of([one, other], [0, 1]), [one, other], [0, 1], device="cpu")


@pytest.mark.parametrize(
    ("setting", "value"),
    [("network", (8, 5)), ("epochs", 5), ("batch_size", 25), ("denoiser", "linear"), ("calibration", "labeled")],
)
def test_members_that_differ_in_anything_else_are_refused(setting, value):
    with pytest.raises(
        ValueError, match=rf"may differ in labels, noise, costs, .*; these differ in {setting}\. Fit those apart"
    ):
        fit_two(RECIPE, replace(RECIPE, **{setting: value}))


def test_members_with_costs_on_other_levels_are_refused():
    with pytest.raises(ValueError, match=r"zero on other levels, .* Fit those apart"):
        fit_two(RECIPE, replace(RECIPE, costs=(10.0, 0.0, 0.1)))


def test_members_of_whom_one_has_all_labels_are_refused():
    with pytest.raises(ValueError, match=r"labels of 9, 100 rows .* all 100 are labelled, .* Fit those apart"):
        fit_two(RECIPE, replace(RECIPE, labels="all"))


def test_members_calibrated_by_other_numbers_of_labels_are_refused():
    by_labels = replace(RECIPE, calibration="labeled")
    with pytest.raises(ValueError, match=r"labels of 9, 30 rows cannot be calibrated .* Fit those apart"):
        fit_two(by_labels, replace(by_labels, labels=30))


def test_a_recipe_too_few_is_refused():
    with pytest.raises(ValueError, match="Got 2 seeds, 2 splits and 1 recipes"):
        fit(examples(), [split(CLASSES, 9)] * 2, [RECIPE], [0, 1], device="cpu")


def test_no_member_at_all_is_refused():
    with pytest.raises(ValueError, match=r"Got 0 seeds, .* at least one member"):
        fit(examples(), [], RECIPE, [], device="cpu")


def test_a_ladder_to_go_on_from_too_few_is_refused():
    with pytest.raises(ValueError, match="Got 1 ladders to go on from and 2 seeds"):
        fit(examples(), [split(CLASSES, 9)] * 2, RECIPE, [0, 1], start=[build_double(RECIPE, (7,), 3, 0)], device="cpu")


# Memory.


@pytest.fixture
def fleets(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The seeds of every fleet that is trained, in the order that they begin in."""
    begun: list[list[int]] = []

    def train(job: Job, *rest: object) -> Trained:
        begun.append(list(job.seeds))
        return train_one_fleet(job, *rest)

    monkeypatch.setattr(groups, "train", train)
    return begun


def room_for(
    members: float,
    monkeypatch: pytest.MonkeyPatch,
    unlabeled: int = 20,
    labeled: int = 12,
    ladder: Ladder = FULL,
) -> None:
    """Free memory for so many members beside the examples, which are on the device already."""
    needed = bytes_of_a_member(ladder, unlabeled, labeled, updates_in_a_block=1)
    monkeypatch.setattr(groups, "free_bytes", lambda _: members * needed / groups.SHARE_OF_MEMORY)


@pytest.mark.parametrize(
    ("room", "expected"),
    [(5.1, [SEEDS]), (3.5, [SEEDS[:3], SEEDS[3:]]), (2.5, [SEEDS[:2], SEEDS[2:4], SEEDS[4:]])],
    ids=["all fit", "two fleets", "three fleets"],
)
def test_a_fleet_that_does_not_fit_is_split_into_even_ones(monkeypatch, own, fleets, room, expected):
    room_for(room, monkeypatch)
    assert_same(together(OWN_SETTINGS), own)
    assert fleets == expected


@pytest.mark.parametrize(
    ("settings", "unlabeled", "labeled"),
    [
        ({"batch_size": 10 * len(CLASSES)}, len(CLASSES), 12),
        ({"costs": 0.0}, 0, 12),
        ({"labels": "all"}, 20, 20),
        ({"labels": "all", "costs": 0.0}, 0, 20),
    ],
    ids=["fewer rows than a batch", "no denoising", "all labelled", "supervised"],
)
def test_memory_is_planned_for_the_rows_that_are_there(monkeypatch, fleets, settings, unlabeled, labeled):
    recipe = replace(RECIPE, epochs=1, **settings)
    for members in (5.1, 4.9):
        room_for(members, monkeypatch, unlabeled, labeled, build_double(recipe, (7,), 3, 0))
        together([recipe] * 5)
    assert fleets == [SEEDS, SEEDS[:3], SEEDS[3:]]


def test_memory_of_a_network_of_somebody_elses_is_planned_for_all_that_its_layers_give():
    class Pair(nn.Linear):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return super().forward(x), x

    class Network(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.first, self.activation, self.last = nn.Linear(7, width), nn.ReLU(), Pair(width, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.activation(self.first(x.add_(1))))[0]

    some = torch.rand(2, 7)
    model, given_rows = gamma(Network(100), 3, example=some), some.clone()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    planned = bytes_of_a_member(model, unlabeled=20, labeled=12, updates_in_a_block=1, some=some)
    given, noise = 100 + 100 + (3 + 100), 7 + 3
    assert planned == 4 * (7 * parameters + 2 * (2 * 20 + 12) * given + (20 + 12) * noise)
    assert torch.equal(some, given_rows)
    assert not any(layer._forward_hooks for layer in model.network.modules())
    assert model.network.training


@pytest.mark.parametrize("costs", [1.0, 0.0])
def test_noise_takes_the_memory_that_streams_ask_for(costs):
    recipe = replace(RECIPE, costs=costs)
    streams = Streams(examples(), splits_of([recipe], [0]), [0], FULL.shapes, 20, 12, denoising=any(recipe.costs))
    one, two = (bytes_of_a_member(FULL, streams.denoised_batch_size, 12, updates_in_a_block=n) for n in (1, 2))
    assert two - one == 4 * streams.noise.numel()


def test_rows_that_are_yet_to_come_to_a_device_leave_less_room_for_members(monkeypatch, fleets):
    room_for(5.1, monkeypatch)
    monkeypatch.setattr(groups, "_bytes_to_bring", lambda *_: groups.free_bytes(CPU) / 2)
    together(ONE_EPOCH)
    assert fleets == [SEEDS[:2], SEEDS[2:4], SEEDS[4:]]


@pytest.mark.parametrize(("device", "expected"), [("cpu", 0), ("cuda:0", 100 * 7 * 8)])
def test_rows_take_memory_on_a_device_that_they_are_not_on_yet(device, expected):
    assert groups._bytes_to_bring(job(), torch.device(device)) == expected


def test_where_not_even_one_seems_to_fit_they_are_tried_one_by_one(monkeypatch, fleets):
    """What a member needs is an estimate: whether one fits is for the device to say."""
    room_for(0.1, monkeypatch)
    together(ONE_EPOCH)
    assert fleets == [[seed] for seed in SEEDS]


def out_of_memory_beyond(members: int, monkeypatch: pytest.MonkeyPatch, epochs: int = 0) -> list[list[int]]:
    """A device that runs out of memory with more members than that, after so many epochs; what was tried on it."""
    tried: list[list[int]] = []

    def train(
        job: Job, device: torch.device, on_epoch: Callable[[History], None], stop: Event, kept: Sequence[Kept] | None
    ) -> Trained:
        tried.append(list(job.seeds))
        if len(job.seeds) > members:
            for _ in range(epochs):
                on_epoch([{"total": 1.0, "supervised": 1.0}] * len(job.seeds))
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return train_one_fleet(job, device, on_epoch, stop, kept)

    monkeypatch.setattr(groups, "train", train)
    return tried


@pytest.mark.parametrize(
    ("room", "expected"),
    [
        (4, [SEEDS, SEEDS[:2], SEEDS[2:]]),
        (2, [SEEDS, SEEDS[:2], SEEDS[2:], SEEDS[2:3], SEEDS[3:]]),
        (1, [SEEDS, SEEDS[:2], SEEDS[:1], SEEDS[1:2], SEEDS[2:], SEEDS[2:3], SEEDS[3:], SEEDS[3:4], SEEDS[4:]]),
    ],
)
def test_out_of_memory_halfway_splits_and_goes_on(monkeypatch, own, room, expected):
    tried = out_of_memory_beyond(room, monkeypatch)
    assert_same(together(OWN_SETTINGS), own)
    assert tried == expected


def fails_once(monkeypatch: pytest.MonkeyPatch, fail: Callable[[], None]) -> list[list[int]]:
    """A device on which the first fleet fails so; the seeds of all that were tried on it."""
    tried: list[list[int]] = []

    def train(job: Job, *rest: object) -> Trained:
        tried.append(list(job.seeds))
        if len(tried) == 1:
            fail()
        return train_one_fleet(job, *rest)

    monkeypatch.setattr(groups, "train", train)
    return tried


def test_a_capture_that_ends_badly_for_want_of_memory_splits_too(monkeypatch):
    """Leaving a capture that ran out of memory raises an error of its own, in which that one is hidden."""

    def fail() -> None:
        try:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        finally:
            raise RuntimeError("operation failed due to a previous error during capture")

    tried = fails_once(monkeypatch, fail)
    together(ONE_EPOCH)
    assert tried == [SEEDS, SEEDS[:2], SEEDS[2:]]


def test_want_of_memory_on_a_cpu_splits_too(monkeypatch):
    tried = fails_once(monkeypatch, lambda: torch.empty(2**52))
    together(ONE_EPOCH)
    assert tried == [SEEDS, SEEDS[:2], SEEDS[2:]]


@pytest.mark.parametrize(
    "message",
    [
        "CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation'",
        "CUDA driver error: out of memory",
        "Triton Error [CUDA]: out of memory",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    ],
    ids=["CUDA", "its driver", "a kernel that is loaded", "a library", "another"],
)
def test_want_of_memory_that_is_not_the_allocators_splits_too(monkeypatch, message):
    """A graph, or the scratch of a library, on a GPU that is full of tensors."""

    def fail() -> None:
        raise RuntimeError(message)

    tried = fails_once(monkeypatch, fail)
    together(ONE_EPOCH)
    assert tried == [SEEDS, SEEDS[:2], SEEDS[2:]]


def test_any_other_error_does_not_split(monkeypatch):
    tried = fails_once(monkeypatch, lambda: torch.zeros(2) @ torch.zeros(3))
    with pytest.raises(RuntimeError, match="inconsistent tensor size"):
        together()
    assert tried == [SEEDS]


def test_want_of_memory_that_the_caller_has_met_before_is_not_taken_for_another(monkeypatch):
    """Who tries again with less is in the middle of handling it."""
    tried = fails_once(monkeypatch, lambda: torch.zeros(2) @ torch.zeros(3))
    try:
        raise MemoryError("of the caller")
    except MemoryError:
        with pytest.raises(RuntimeError, match="inconsistent tensor size"):
            together()
    assert tried == [SEEDS]


def test_nothing_of_a_fleet_that_failed_is_left_when_the_next_one_begins(monkeypatch):
    """Neither what its error's traceback holds, nor what holds itself in a circle, as compiled fleets do."""

    class Large:
        def __init__(self) -> None:
            self.itself = self

    remembered: list[weakref.ref[Large]] = []
    left: list[bool] = []

    def train(job: Job, *rest: object) -> Trained:
        left.extend(reference() is not None for reference in remembered)
        if not remembered:
            large = Large()
            remembered.append(weakref.ref(large))
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return train_one_fleet(job, *rest)

    monkeypatch.setattr(groups, "train", train)
    together(ONE_EPOCH)
    assert left == [False, False]


def test_a_member_that_does_not_fit_alone_is_an_error_that_says_what_to_do(monkeypatch):
    room_for(5.1, monkeypatch)
    tried = out_of_memory_beyond(0, monkeypatch)
    free = re.escape(f"{groups.free_bytes(CPU) / 1e9:.3g}")
    with pytest.raises(
        torch.OutOfMemoryError,
        match=r"^A member does not fit into the memory of cpu\. "
        rf"By an estimate it needs \S+ GB and {free} GB were free\. "
        r"Set a batch_size below 20, take a smaller network, or train where there is more memory\.$",
    ) as raised:
        together()
    assert tried == [SEEDS, SEEDS[:2], SEEDS[:1]]
    assert str(raised.value.__cause__) == "CUDA out of memory."


def test_where_a_member_does_not_fit_alone_the_rows_that_come_beside_it_are_told(monkeypatch):
    out_of_memory_beyond(0, monkeypatch)
    monkeypatch.setattr(groups, "_bytes_to_bring", lambda *_: 3 * 10**9)
    with pytest.raises(torch.OutOfMemoryError, match=", beside 3 GB for all rows, and "):
        train_in_groups(job().of([0]), [CPU], None)


def test_of_a_gpu_that_is_too_small_its_rows_and_the_cpu_are_told():
    said = memory.shortage(torch.device("cuda", 1), 95 * 10**9, of_rows=10**9, free=8 * 10**10, batch_size=100)
    assert "the memory of cuda:1. By an estimate it needs 95 GB, beside 1 GB for all rows, and 80 GB were free." in said
    assert said.endswith("Set a batch_size below 100, take a smaller network, or train with device='cpu'.")


@pytest.mark.parametrize("error", [MemoryError, torch.OutOfMemoryError])
def test_the_error_of_a_member_that_does_not_fit_holds_nothing_of_its_fleet(monkeypatch, error):
    """Or whoever catches it, and tries something smaller, would have no memory for that."""

    class Large:
        pass

    remembered: list[weakref.ref[Large]] = []

    def train(*_: object) -> Trained:
        large = Large()
        remembered.append(weakref.ref(large))
        try:
            raise error("no memory")
        finally:
            raise RuntimeError("operation failed due to a previous error during capture")

    monkeypatch.setattr(groups, "train", train)
    with pytest.raises(torch.OutOfMemoryError, match="A member does not fit") as raised:
        train_in_groups(job().of([0]), [CPU], None)
    assert [reference() for reference in remembered] == [None]
    assert isinstance(raised.value.__cause__.__context__, error)


def test_a_larger_network_needs_more_memory():
    small, large = (build_ladder(Recipe(network=units), (784,), 10, 0) for units in ((100,), (200,)))
    for rows in ((100, 100, 1), (100, 100, 10), (200, 100, 1)):
        assert bytes_of_a_member(large, *rows) > bytes_of_a_member(small, *rows)
    for more in ((200, 100, 1), (100, 200, 1), (100, 100, 10)):
        assert bytes_of_a_member(small, *more) > bytes_of_a_member(small, 100, 100, 1)


VERSIONS = {
    1: ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"),
    2: ("memory.max", "memory.current", "memory.stat", "inactive_file"),
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("limit", "left"), [("5000000", 5_000_000 - 3_000_000 + 1_000_000), ("1000000", 0)])
def test_a_container_has_what_it_may_take_and_not_what_its_machine_has(tmp_path, monkeypatch, version, limit, left):
    """Files that the system keeps in memory while there is room count as taken, and are given up when it is wanted."""
    (tmp_path / "memory").mkdir()
    *files, cached = VERSIONS[version]
    for name, content in zip(files, (limit, "3000000", f"anon 7\n{cached} 1000000\nslab 9"), strict=True):
        (tmp_path / name).write_text(f"{content}\n")
    monkeypatch.setattr(memory, "CONTROL_GROUPS", tmp_path)
    assert free_bytes(CPU) == left


@pytest.mark.parametrize("limit", [None, "max"])
def test_without_a_limit_there_is_what_the_machine_has(tmp_path, monkeypatch, limit):
    monkeypatch.setattr(memory, "CONTROL_GROUPS", tmp_path)
    if limit is not None:
        (tmp_path / "memory.max").write_text(f"{limit}\n")
    monkeypatch.setattr(memory, "_left_on_the_machine", lambda: 12_345)
    assert free_bytes(CPU) == 12_345


@pytest.mark.parametrize("version", VERSIONS)
def test_a_container_that_does_not_tell_all_has_what_the_machine_has(tmp_path, monkeypatch, version):
    (tmp_path / "memory").mkdir()
    for name, content in zip(VERSIONS[version], ("5000000", "3000000", "anon 7"), strict=False):
        (tmp_path / name).write_text(f"{content}\n")
    monkeypatch.setattr(memory, "CONTROL_GROUPS", tmp_path)
    monkeypatch.setattr(memory, "_left_on_the_machine", lambda: 12_345)
    assert free_bytes(CPU) == 12_345


def test_what_linux_tells_in_kilobytes_is_counted_in_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "CONTROL_GROUPS", tmp_path)
    monkeypatch.setattr(memory, "_figures", lambda _: {"MemTotal:": "9000", "MemAvailable:": "3000"})
    assert free_bytes(CPU) == 3000 * 1024


def figures_are_missing(_: object) -> dict[str, str]:
    raise FileNotFoundError("/proc/meminfo")


def test_macos_has_all_its_pages(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "CONTROL_GROUPS", tmp_path)
    monkeypatch.setattr(memory, "_figures", figures_are_missing)
    monkeypatch.setattr("os.sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 3000}.get)
    assert free_bytes(CPU) == 4096 * 3000


def test_windows_is_taken_to_have_eight_gigabytes(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "CONTROL_GROUPS", tmp_path)
    monkeypatch.setattr(memory, "_figures", figures_are_missing)
    monkeypatch.delattr("os.sysconf")
    assert free_bytes(CPU) == 8_000_000_000


def test_a_gpu_has_what_is_free_and_what_torch_keeps_of_earlier_tensors(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (1000, 9000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 300)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 100)
    assert free_bytes(torch.device("cuda", 0)) == 1000 + (300 - 100)


@pytest.mark.parametrize("system", ["macOS", "Windows"])
def test_members_train_on_systems_that_tell_less_of_their_memory(tmp_path, monkeypatch, fleets, system):
    monkeypatch.setattr(memory, "CONTROL_GROUPS", tmp_path)
    monkeypatch.setattr(memory, "_figures", lambda _: {})  # of /proc, which they have not
    if system == "Windows":
        monkeypatch.delattr("os.sysconf")
    together()
    assert fleets == [SEEDS]


# Devices.


@pytest.mark.parametrize("devices", [2, 8])
def test_members_spread_over_devices_learn_what_they_learn_on_one(devices, own):
    assert_same(train_in_groups(job(OWN_SETTINGS), [CPU] * devices, None), own)


def test_each_device_trains_its_share(fleets):
    train_in_groups(job(ONE_EPOCH), [CPU] * 2, None)
    assert sorted(fleets, key=len) == [SEEDS[3:], SEEDS[:3]]


GPUS = [torch.device("cuda", index) for index in range(4)]


@pytest.fixture
def met(monkeypatch: pytest.MonkeyPatch) -> list[tuple[torch.device, torch.device | None, list[int]]]:
    """Of every fleet that a GPU trains, which a CPU does for it: that GPU, the current one of its thread, its seeds."""
    met: list[tuple[torch.device, torch.device | None, list[int]]] = []
    thread = local()

    @contextmanager
    def current(device: torch.device) -> Iterator[None]:
        thread.current = device
        try:
            yield
        finally:
            thread.current = None

    def train(job: Job, device: torch.device, *rest: object) -> Trained:
        met.append((device, getattr(thread, "current", None), list(job.seeds)))
        return train_one_fleet(job, CPU, *rest)

    monkeypatch.setattr(torch.cuda, "device", current)
    monkeypatch.setattr(groups, "free_bytes", lambda _: 10**9)
    monkeypatch.setattr(groups, "train", train)
    return met


@pytest.mark.parametrize(
    ("devices", "shares"),
    [(GPUS[2:3], [SEEDS]), (GPUS[3:1:-1], [SEEDS[:3], SEEDS[3:]]), (GPUS, [SEEDS[:2], SEEDS[2:4], SEEDS[4:]])],
    ids=["one", "two", "four"],
)
def test_each_share_trains_on_a_gpu_of_its_own_which_is_the_current_one_of_its_thread(met, devices, shares):
    """Triton launches kernels on the current GPU, wherever their tensors are."""
    train_in_groups(job(ONE_EPOCH), devices, None)
    expected = [(device, device, share) for device, share in zip(devices, shares, strict=False)]
    assert sorted(met, key=lambda fleet: SEEDS.index(fleet[2][0])) == expected


def test_modules_train_on_one_device_for_they_draw_from_generators_that_all_threads_share(monkeypatch):
    """Besides, torch traces one module at a time: of two that were built at once, one got the other's layers."""
    network = nn.Sequential(nn.Linear(7, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))
    rows, labels = examples().rows.float().numpy(), np.where(np.arange(100) < 30, CLASSES, -1)

    def weights(devices: int) -> list[Tensor]:
        monkeypatch.setattr("tikas.training.fit.suitable_devices", lambda *_: [CPU] * devices)
        classifier = LadderClassifier(network, epochs=2, n_members=4, random_state=0).fit(rows, labels)
        return [parameter.detach() for ladder in classifier.ladders_ for parameter in ladder.parameters()]

    assert all(torch.equal(*pair) for pair in zip(weights(1), weights(4), strict=True))


def test_a_device_that_was_named_is_the_one_that_is_used():
    assert suitable_devices("cpu", members=8) == [CPU]
    assert suitable_devices(CPU, members=8) == [CPU]


@pytest.mark.parametrize(
    ("asked", "current", "members", "expected"),
    [
        ("cuda", 0, 3, [0, 1, 2]),
        ("cuda", 0, 9, [0, 1, 2, 3]),
        ("cuda", 1, 1, [1]),
        ("cuda", 2, 3, [2, 3, 0]),
        ("cuda:2", 1, 9, [2]),
    ],
)
def test_any_gpu_means_as_many_of_four_as_there_are_members_for_from_the_current_one_on(
    monkeypatch, asked, current, members, expected
):
    monkeypatch.setattr(groups, "suitable_device", torch.device)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current)
    assert suitable_devices(asked, members) == [GPUS[index] for index in expected]


def test_an_error_on_one_device_is_raised_and_ends_the_others(monkeypatch):
    epochs: list[int] = []

    def train(
        job: Job, device: torch.device, on_epoch: Callable[[History], None], stop: Event, kept: Sequence[Kept] | None
    ) -> Trained:
        if SEEDS[0] in job.seeds:
            raise ArithmeticError("no longer finite")
        assert stop.wait(timeout=10)
        trained = train_one_fleet(job, device, on_epoch, stop, kept)
        epochs.append(len(trained.histories[0]))
        return trained

    monkeypatch.setattr(groups, "train", train)
    with pytest.raises(ArithmeticError, match="no longer finite"):
        train_in_groups(job(), [CPU] * 2, None)
    assert epochs == [0]


def test_an_error_on_a_later_device_ends_those_before_it(monkeypatch):
    def train(
        job: Job, device: torch.device, on_epoch: Callable[[History], None], stop: Event, kept: Sequence[Kept] | None
    ) -> Trained:
        if SEEDS[-1] in job.seeds:
            raise ArithmeticError("no longer finite")
        assert stop.wait(timeout=10)
        return train_one_fleet(job, device, on_epoch, stop, kept)

    monkeypatch.setattr(groups, "train", train)
    with pytest.raises(ArithmeticError, match="no longer finite"):
        train_in_groups(job(), [CPU] * 2, None)


def test_a_device_that_cannot_be_planned_for_ends_the_others_too(monkeypatch):
    """One that another process has for itself, say, shows when it is asked for its memory."""
    stopped: list[bool] = []

    def plan(job: Job, members: Sequence[int], *rest: object) -> list[list[int]]:
        if 0 in members:
            raise RuntimeError("CUDA-capable device(s) is/are busy or unavailable")
        return plan_groups(job, members, *rest)

    def train(
        job: Job, device: torch.device, on_epoch: Callable[[History], None], stop: Event, kept: Sequence[Kept] | None
    ) -> Trained:
        stopped.append(stop.wait(timeout=10))
        return train_one_fleet(job, device, on_epoch, stop, kept)

    plan_groups = groups._groups
    monkeypatch.setattr(groups, "_groups", plan)
    monkeypatch.setattr(groups, "train", train)
    with pytest.raises(RuntimeError, match="busy or unavailable"):
        train_in_groups(job(ONE_EPOCH), [CPU] * 2, None)
    assert stopped == [True]


@pytest.mark.parametrize("last", [SEEDS[0], SEEDS[-1]])
def test_precision_is_afterwards_what_it_was_whichever_of_two_fleets_that_overlap_ends_last(monkeypatch, last):
    meeting, ended = Barrier(2), Event()

    def train_epoch(fleet: Fleet, job: Job, epoch: int) -> History:
        if epoch == 1:
            meeting.wait(timeout=10)
        elif last in job.seeds:
            assert ended.wait(timeout=10)
        assert torch.get_float32_matmul_precision() == "highest"
        return train_one_epoch(fleet, job, epoch)

    def train(job: Job, *rest: object) -> Trained:
        trained = train_one_fleet(job, *rest)
        ended.set()
        return trained

    train_one_epoch = loop._train_epoch
    monkeypatch.setattr(loop, "_train_epoch", train_epoch)
    monkeypatch.setattr(groups, "train", train)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        train_in_groups(job(), [CPU] * 2, None)
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)


# Ctrl-C.


def press_after(epochs: int) -> Callable[[Progress], None]:
    """Ctrl-C as it comes while an epoch is told of."""

    def press(progress: Progress) -> None:
        if progress.epoch == epochs:
            raise KeyboardInterrupt

    return press


def test_ctrl_c_in_the_second_of_three_fleets_keeps_the_first_and_what_there_is_of_the_second(monkeypatch, alike):
    room_for(2.5, monkeypatch)
    cut = train_in_groups(job(), [CPU], press_after(4 + 2))
    assert cut.interrupted
    assert [len(history) for history in cut.histories] == [4, 4, 2, 2, 0]
    assert farthest(cut.ladders[4], build_double(RECIPE, (7,), 3, SEEDS[4])) == 0
    for member in (0, 1):
        assert farthest(cut.ladders[member], alike.ladders[member]) < ROUNDING
    assert all(ladder(examples().rows).isfinite().all() for ladder in cut.ladders)


def press_at_launches(numbers: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while a fleet gets ready, at these of the launches, counted from one."""
    launched: list[object] = []

    def launch(*arguments: object, **more: object) -> Fleet:
        launched.append(arguments)
        if len(launched) in numbers:
            raise KeyboardInterrupt
        return launch_fleet(*arguments, **more)

    monkeypatch.setattr(loop, "launch", launch)


def test_ctrl_c_while_the_second_fleet_gets_ready_keeps_the_first(monkeypatch):
    room_for(2.5, monkeypatch)
    press_at_launches({2}, monkeypatch)
    cut = together()
    assert cut.interrupted
    assert [len(history) for history in cut.histories] == [4, 4, 0, 0, 0]
    assert all(ladder(examples().rows).isfinite().all() for ladder in cut.ladders)


def test_ctrl_c_once_more_ends_everything(monkeypatch):
    """While the third fleet gets ready: the second was launched twice, in the end to have no epoch."""
    room_for(2.5, monkeypatch)
    press_at_launches({2, 4}, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        together(ONE_EPOCH)


def test_ctrl_c_while_the_first_fleet_gets_ready_ends_everything(monkeypatch):
    press_at_launches({1}, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        together(ONE_EPOCH)


def test_ctrl_c_in_a_thread_stops_the_fleets_of_all_devices():
    cut = train_in_groups(job(), [CPU] * 2, press_after(3))
    assert cut.interrupted
    assert all(len(history) < 4 for history in cut.histories)
    assert all(ladder(examples().rows).isfinite().all() for ladder in cut.ladders)


@pytest.mark.parametrize("begun", [0, 1, 2])
def test_ctrl_c_while_devices_are_set_to_work_stops_them_all(monkeypatch, begun):
    submit_as_ever, calls = groups.ThreadPoolExecutor.submit, []

    def submit(pool: object, *arguments: object) -> object:
        calls.append(arguments)
        if len(calls) == begun + 1:
            raise KeyboardInterrupt
        return submit_as_ever(pool, *arguments)

    monkeypatch.setattr(groups.ThreadPoolExecutor, "submit", submit)
    cut = train_in_groups(job([replace(RECIPE, epochs=10_000)] * 5), [CPU] * 3, None)
    assert cut.interrupted
    assert len(cut.ladders) == 5
    assert all(len(history) < 10_000 for history in cut.histories)
    assert cut.histories[-1] == []  # of the last device, which had not begun


def test_ctrl_c_while_the_main_thread_waits_for_devices_keeps_what_there_is(monkeypatch):
    """The signal goes to the main thread, which waits for the others' results."""
    submit_as_ever, pressed = groups.ThreadPoolExecutor.submit, []

    def submit(pool: object, *arguments: object) -> object:
        future = submit_as_ever(pool, *arguments)
        wait = future.result

        def interrupted() -> object:
            if not pressed:
                pressed.append(True)
                raise KeyboardInterrupt
            return wait()

        future.result = interrupted
        return future

    monkeypatch.setattr(groups.ThreadPoolExecutor, "submit", submit)
    cut = train_in_groups(job([replace(RECIPE, epochs=10_000)] * 5), [CPU] * 2, None)
    assert cut.interrupted
    assert len(cut.ladders) == 5
    assert all(len(history) < 10_000 for history in cut.histories)


# What is told.


def told_of(monkeypatch: pytest.MonkeyPatch, room: float, devices: int = 1) -> list[Progress]:
    told: list[Progress] = []
    room_for(room, monkeypatch)
    train_in_groups(job(), [CPU] * devices, told.append)
    return told


def test_what_a_fleet_needs_is_told_before_its_first_epoch(monkeypatch):
    first, *others = told_of(monkeypatch, room=5.1)
    assert first.epoch == 0
    assert first.members == []
    needed = bytes_of_a_member(FULL, unlabeled=20, labeled=12, updates_in_a_block=1)
    figures = f"{5 * needed / 1e9:.2g} of {groups.free_bytes(CPU) / 1e9:.3g} GB"
    assert first.doing == f"getting ready: 5 members, about {figures}"
    assert [progress.doing for progress in others] == [""] * 4


@pytest.mark.usefixtures("met")
def test_what_is_free_is_told_of_the_gpu_that_a_fleet_gets_ready_on(monkeypatch):
    """Though all are planned for before the first starts."""
    planned, plan_groups = Barrier(2), groups._groups

    def plan(*given: object) -> list[list[int]]:
        planned_here = plan_groups(*given)
        planned.wait(timeout=10)
        return planned_here

    monkeypatch.setattr(groups, "_groups", plan)
    monkeypatch.setattr(groups, "free_bytes", {GPUS[0]: 80 * 10**9, GPUS[1]: 24 * 10**9}.get)
    told: list[Progress] = []
    train_in_groups(job(ONE_EPOCH), GPUS[:2], told.append)
    starts = [re.sub(r"about \S+", "some", progress.doing) for progress in told if progress.doing]
    assert sorted(starts) == ["getting ready: 2 members, some of 24 GB", "getting ready: 3 members, some of 80 GB"]


def test_every_fleet_tells_that_it_gets_ready(monkeypatch):
    """A smaller one is compiled and captured anew."""
    told = [(progress.epoch, progress.doing.split(",")[0]) for progress in told_of(monkeypatch, 2.5) if progress.doing]
    assert told == [(4 * fleet, f"getting ready: {who}") for fleet, who in enumerate(["2 members"] * 2 + ["1 member"])]


@pytest.mark.parametrize(("room", "fleets_needed", "devices"), [(2.5, 3, 1), (5.1, 2, 2)])
def test_epochs_count_over_all_fleets(monkeypatch, room, fleets_needed, devices):
    told = [progress for progress in told_of(monkeypatch, room, devices) if not progress.doing]
    assert [progress.epoch for progress in told] == list(range(1, 4 * fleets_needed + 1))
    assert told[-1].epochs == 4 * fleets_needed


def test_what_each_half_needs_is_told_after_a_split(monkeypatch):
    out_of_memory_beyond(3, monkeypatch, 0)
    told: list[Progress] = []
    train_in_groups(job(ONE_EPOCH), [CPU], told.append)
    starts = [progress.doing for progress in told if "getting ready" in progress.doing]
    needs = {int(members): float(need) for members, need in re.findall(r"(\d) members, about (\S+)", " ".join(starts))}
    assert needs[2] == pytest.approx(needs[5] * 2 / 5, rel=0.1)


@pytest.mark.parametrize("epochs", [0, 3])
def test_a_split_is_told_and_the_bar_still_ends_at_its_end(monkeypatch, epochs):
    out_of_memory_beyond(3, monkeypatch, epochs)
    told: list[Progress] = []
    train_in_groups(job(), [CPU], told.append)
    (split_told,) = [progress for progress in told if "out of memory" in progress.doing]
    assert split_told.doing == "out of memory: 5 members go on in two fleets"
    assert split_told.epochs == 8
    assert told[-1].epoch == told[-1].epochs == 8
