"""The written-out update is the plain one: kernels run by Triton's interpreter here, and on a GPU in test_gpu.py."""

import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import pytest
import torch

from tikas import Dense, Ladder
from tikas.data.splits import split
from tikas.data.streams import Examples, Streams
from tikas.training.fleet import Fleet
from tikas.training.keeping import Folder, Keeping

pytest.importorskip("triton", reason="Triton is not installed on this machine")

CASES = [
    "members",
    "gamma",
    "bottom",
    "middle",
    "baseline",
    "regression",
    "weighted",
    "by columns",
    "tanh",
    "gelu",
    "leaky_relu",
    "mlp",
    "no-product",
    "linear",
    "additive",
]


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str]]:
    """What two processes print and complain of that interpret the kernels, each for about as long."""
    script = Path(__file__).with_name("interpreted.py")
    settings = {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    places = {"PYTHONPATH": str(Path(__file__).parents[1] / "src"), "HOME": str(tmp_path_factory.mktemp("home"))}
    processes = [
        subprocess.Popen([sys.executable, script, *half], env=settings | places, stdout=PIPE, stderr=PIPE, text=True)
        for half in (CASES[:2], CASES[2:])
    ]
    told = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0, 0], told
    return told


@pytest.fixture(scope="module")
def farthest(interpreted: list[tuple[str, str]]) -> dict[str, tuple[float, float]]:
    """Of every case the largest relative difference of a cost and of an update."""
    lines = [line.rsplit(maxsplit=2) for output, _ in interpreted for line in output.splitlines()]
    return {name: (float(costs), float(weights)) for name, costs, weights in lines}


@pytest.mark.parametrize("case", CASES)
def test_costs_and_gradients_are_those_of_the_plain_fleet(case: str, farthest: dict[str, tuple[float, float]]) -> None:
    """Costs of two updates, and the gradient of every parameter in the first, as a share of the largest there."""
    costs, gradients = farthest[case]
    # Single precision with sums in another order; 4e-7 and 5e-6 were the largest that were measured.
    assert costs < 3e-6
    assert gradients < 3e-5


def test_a_fleet_goes_on_from_a_snapshot_as_if_nothing_had_been(interpreted: list[tuple[str, str]]) -> None:
    """In single precision with all costs and as the Γ-model, and in bf16."""
    assert interpreted[0][1].split()[:3] == ["True"] * 3


def test_every_update_is_made_at_its_own_rate(interpreted: list[tuple[str, str]]) -> None:
    """In single precision, and in bf16, whose products read the copies that the update before has written."""
    assert interpreted[0][1].split()[3:5] == ["True"] * 2


def test_fit_trains_by_written_out_updates_as_by_plain_ones(interpreted: list[tuple[str, str]]) -> None:
    assert interpreted[0][1].split()[5:] == ["True"]


def test_a_weight_that_is_no_number_shows_in_the_costs_whatever_the_activation(
    interpreted: list[tuple[str, str]],
) -> None:
    assert interpreted[1][1].split() == ["True"] * 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_kernels_take_ladders_in_single_precision_alone(dtype: torch.dtype) -> None:
    from tikas.training.fused import can_be_fused

    ladder, classes = Ladder((4,), [Dense(3)]), torch.arange(60) % 3
    streams = Streams(Examples(torch.rand(60, 4), classes, 3), [split(classes.numpy(), 9)], [0], ladder.shapes, 20, 20)
    assert can_be_fused(ladder.to(dtype), streams) == (dtype == torch.float32)


@pytest.mark.parametrize(
    ("earlier", "later"), [("half", "half"), ("half", "plain"), ("plain", "half")], ids=lambda name: name
)
def test_members_that_one_program_kept_in_files_go_on_in_another(earlier: str, later: str, tmp_path: Path) -> None:
    """With products in bf16 Adam's means of matrices are in bf16 too; nothing else is lost on the way."""
    kept, fleet = _two_members(earlier), _two_members(later)
    draw = torch.Generator().manual_seed(0)
    for place in kept.tensors().values():
        place.data.copy_(torch.rand(place.shape, generator=draw))
    Keeping(Folder(tmp_path), every=0).keep(["a", "b"], kept.snapshot, [[{"epoch": 1}]] * 2)
    members = [Folder(tmp_path).get(name) for name in ("a", "b")]
    assert all(members)
    fleet.go_on_from({name: torch.stack([one.tensors[name] for one in members]) for name in members[0].tensors}, 3)
    told = {name: tensor for name, tensor in fleet.snapshot().items() if tensor.dtype != torch.uint8}  # of generators
    for name, tensor in told.items():
        in_half = later == "half" and name.startswith("mean.") and name.endswith("weight")
        assert tensor.dtype == (torch.bfloat16 if in_half else torch.float32), name
        assert torch.equal(tensor, kept.snapshot()[name].to(tensor.dtype)), name


def _two_members(program: str) -> Fleet:
    from tikas.training.fused import FusedFleet

    classes, ladders = torch.arange(60) % 3, [Ladder((4,), [Dense(5), Dense(3)]) for _ in range(2)]
    splits = [split(classes.numpy(), 9, seed=seed) for seed in (0, 1)]
    streams = Streams(Examples(torch.rand(60, 4), classes, 3), splits, [0, 1], ladders[0].shapes, 20, 20)
    return Fleet(ladders, streams) if program == "plain" else FusedFleet(ladders, streams)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_noise_is_of_the_type_of_the_products(dtype: torch.dtype) -> None:
    """It is read four times in an update; what draws it is the same for both."""
    from tikas.training.fused import FusedFleet

    plain = _two_members("plain")
    fleet = FusedFleet(plain.ladders, plain.streams, dtype)
    fleet.streams.draw_noise()
    assert fleet.noise.dtype == fleet.streams.noise.dtype == dtype
    assert 0.8 < fleet.noise.float().std() < 1.2
