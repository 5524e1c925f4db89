"""What two processes compute on a batch that they share, beside what one computes on all of it: see test_distributed.

`main` runs in both processes. It writes, for every case, how far the two are apart.
"""

import json
import os
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import tikas
from tikas import Conv, Dense, GlobalMeanPool, Ladder, MaxPool, MeanPool, gamma
from tikas.model.ladder import Costs
from tikas.training.ensemble import pack

NEW_TORCH = torch.__version__ >= "2.11"
"""Older compilers do less, and FSDP needed a GPU."""

DENOISERS = ("gaussian", "mlp", "no-product", "linear", "additive")


@dataclass(frozen=True)
class Case:
    """A model, and which of 14 unlabeled and 9 labeled rows process 0 has; process 1 has the others."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...] = (6,)
    unlabeled: int = 8
    labeled: int = 4
    regression: bool = False
    weights: bool = False
    members: int = 0


def dense(seed: int = 0, **settings: Any) -> Callable[[], nn.Module]:
    rungs = [Dense(5), Dense(4, activation="gelu"), Dense(3)]
    settings = {"costs": (10, 1, 0.1, 0.1), **settings}
    return lambda: Ladder((6,), rungs, generator=torch.Generator().manual_seed(seed), **settings).double()


def convolutional(**settings: Any) -> Callable[[], nn.Module]:
    pools = [MaxPool(3, stride=2), MeanPool(2)]
    rungs = [Conv(3, 3, padding="same", stride=2), *pools, Conv(3, 1), GlobalMeanPool(), Dense(3)]
    settings = {"costs": (1,) * 7, **settings}
    return lambda: Ladder((2, 12, 12), rungs, generator=torch.Generator().manual_seed(0), **settings).double()


def around(*layers: nn.Module, cost: float = 1.0) -> Callable[[], nn.Module]:
    return lambda: gamma(deepcopy(nn.Sequential(*layers)), n_classes=3, cost=cost).double()


def packed() -> nn.Module:
    return pack([dense(seed)() for seed in range(2)])  # type: ignore[return-value]


torch.manual_seed(0)
TABLE_NETWORK = (nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.LayerNorm(5), nn.Linear(5, 3))
FROZEN = nn.BatchNorm1d(5, affine=False).eval()
FROZEN.running_mean = torch.rand(5)
IMAGE_NETWORK = (nn.Conv2d(2, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(400, 3))
PIXELS = (2, 12, 12)

CASES = {
    **{f"dense, {denoiser}": Case(dense(denoiser=denoiser)) for denoiser in DENOISERS},
    "regression": Case(dense(task="regression"), regression=True),
    "weights": Case(dense(), weights=True),
    "weights of a regression": Case(dense(task="regression"), regression=True, weights=True),
    "no labeled row in process 0": Case(dense(), labeled=0),
    "no labeled row in process 1": Case(dense(), labeled=9, weights=True),
    "one labeled row in process 0": Case(dense(), labeled=1),
    "no unlabeled row in process 1": Case(dense(), unlabeled=14),
    "one cost, and no labeled row in process 0": Case(dense(costs=(0, 1, 0, 0)), labeled=0),
    "supervised, and no labeled row in process 0": Case(dense(costs=0), labeled=0),
    "Γ-ladder": Case(dense(costs=0.5)),
    "packed members": Case(packed, members=2),
    **{f"convolutional, {denoiser}": Case(convolutional(denoiser=denoiser), PIXELS) for denoiser in DENOISERS},
    "convolutional, no labeled row in process 0": Case(convolutional(), PIXELS, labeled=0),
    "convolutional regression": Case(convolutional(task="regression"), PIXELS, regression=True),
    "Γ, batch and layer normalization": Case(around(*TABLE_NETWORK)),
    "Γ, frozen layer": Case(around(nn.Linear(6, 5), FROZEN, nn.Linear(5, 3))),
    "Γ, images": Case(around(*IMAGE_NETWORK), PIXELS, weights=True),
    "Γ, no labeled row in process 0": Case(around(*TABLE_NETWORK), labeled=0),
    "Γ, supervised, no labeled row in process 1": Case(around(*TABLE_NETWORK, cost=0), labeled=9),
}


def batch_of(case: Case, model: Any) -> tuple[list[Any], list[Tensor]]:
    """Return unlabeled and labeled rows, targets, weights; and noise, labeled rows first."""
    generator = torch.Generator().manual_seed(1)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*(case.members,) * bool(case.members), *shape, generator=generator, dtype=torch.float64)

    unlabeled, labeled = 3 * draw(14, *case.shape) + 2, draw(9, *case.shape)
    targets = draw(9, 3) if case.regression else (torch.arange(9) % 3).expand(*labeled.shape[: -len(case.shape)])
    weights = draw(9).abs() if case.weights else None
    return [unlabeled, labeled, targets, weights], model.draw_noise(unlabeled, 23, generator)


def share_of(rank: int, case: Case, batch: Sequence[Any], noise: Sequence[Tensor]) -> dict[str, Any]:
    """Return the arguments of `costs` for the rows of one process."""
    unlabeled = slice(None, case.unlabeled) if rank == 0 else slice(case.unlabeled, None)
    labeled = slice(None, case.labeled) if rank == 0 else slice(case.labeled, None)
    members = (slice(None),) * bool(case.members)
    own = [each if each is None else each[*members, labeled] for each in batch[1:]]
    own_noise = [
        torch.cat([each[*members, :9][*members, labeled], each[*members, 9:][*members, unlabeled]], len(members))
        for each in noise
    ]
    x = batch[0][*members, unlabeled]
    return {"x": x, "labeled": own[0], "targets": own[1], "noise": own_noise, "weights": own[2]}


def distance(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Return the largest difference, relative to the largest value of each tensor (or a thousandth of the largest)."""
    scale = max(float(each.detach().abs().max()) for each in expected)
    relative = [
        float((one - other).detach().abs().max()) / max(float(other.detach().abs().max()), 1e-3 * scale)
        for one, other in zip(found, expected, strict=True)
    ]
    return max(relative)


def gradients(model: nn.Module) -> list[Tensor]:
    """Return the whole gradient of every parameter."""
    found = [parameter.grad for parameter in model.parameters()]
    return [each.full_tensor() if hasattr(each, "full_tensor") else each for each in found]


def statistics(model: nn.Module) -> list[Tensor]:
    return [value.double() for name, value in model.named_buffers() if "num_batches" not in name]


def differences(
    rank: int,
    case: Case,
    wrap: Callable[[nn.Module], Callable[..., Costs]] = DistributedDataParallel,
    group: Any = None,
) -> dict[str, float]:
    """Return the distances of costs, gradients, training scores and calibrated statistics from those of one process."""
    alone, model = case.build(), case.build()
    batch, noise = batch_of(case, alone)
    expected = alone.training_costs(*batch[:3], noise, batch[3])
    expected.total.sum().backward()

    wrapper = wrap(tikas.distributed.synchronize(model, group))
    share = share_of(rank, case, batch, noise)
    costs = wrapper(**share)
    costs.total.sum().backward()
    found = {"costs": distance(costs, expected), "gradients": distance(gradients(model), gradients(alone))}
    if wrap is DistributedDataParallel and not case.members:
        scores, all_scores = model(share["x"]), alone(batch[0])
        found["scores"] = (
            distance([scores], [all_scores[: case.unlabeled] if rank == 0 else all_scores[case.unlabeled :]])
            if len(scores)
            else 0.0
        )
        found["statistics"] = distance(statistics(model.calibrate(share["x"])), statistics(alone.calibrate(batch[0])))
        chunks = [(rows, None) for rows in share["x"].split(3)]  # of unequal number in the two processes
        found["batches"] = distance(statistics(model.calibrate(chunks)), statistics(alone)) if chunks else 0.0
    return found


def compiled(model: nn.Module) -> Callable[..., Costs]:
    return torch.compile(DistributedDataParallel(model), backend="eager")


def message_of(call: Callable[[], Any]) -> str:
    try:
        call()
    except RuntimeError as error:
        return str(error)
    return ""


def main(rank: int, folder: str, port: int) -> None:
    """Write the differences of all cases, and the errors that calls raise, to files in the folder."""
    torch.set_num_threads(1)
    address = f"tcp://127.0.0.1:{port}"
    distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    results: dict[str, Any] = {name: differences(rank, case) for name, case in CASES.items()}

    case = CASES["dense, gaussian"]
    own, _ = distributed.new_subgroups(1)
    results["own rows"] = differences(rank, case, group=own)
    if NEW_TORCH:
        results["fully_shard"] = differences(rank, case, wrap=fully_shard)
        results["compiled"] = differences(rank, CASES["Γ-ladder"], wrap=compiled)

    model = case.build()
    batch, _ = batch_of(case, model)
    results["unsynchronized"] = message_of(lambda: DistributedDataParallel(model)(*batch[:3]))
    ddp = DistributedDataParallel(tikas.distributed.synchronize(model))
    results["past the wrapper"] = message_of(lambda: ddp.module.costs(*batch[:3]))
    with torch.no_grad():
        results["without gradients"] = message_of(lambda: ddp.module.costs(*batch[:3]))
    model.calibrate(batch[0]).eval()
    if rank == 0:  # the other process does not take part
        ddp.module(batch[0])
        ddp.module.denoise(batch[0])
    Path(folder, f"{rank}.json").write_text(json.dumps(results))
    distributed.destroy_process_group()
    os._exit(0)  # without Python's cleanup, in which threads of the group at times end the process with an error
