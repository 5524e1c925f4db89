"""Memory: what a member needs while it trains, and how much of it a device has left."""

import os
from math import inf, prod
from pathlib import Path

import torch
from torch import Tensor, nn

from tikas.model.corruption import in_eval_mode
from tikas.model.gamma import Gamma
from tikas.model.ladder import Ladder
from tikas.training.allocation import hand_back

TENSORS_OF_A_PARAMETER = 7
"""As it was at first and as it is, its gradient, Adam's two moments, and two copies of it when members come out: a
fleet that had no room for those would lose all its epochs at the last."""
TENSORS_OF_A_LATENT = 12
"""What the way back needs of every level and row, about."""
TENSORS_OF_A_LAYER = 2
"""The same of all that the layers of a network of somebody else's give: 0.8 to 1.2 were measured of `conv_pool_cnn_c`,
and 2.2 to 2.6 of a residual network whose sums and activations are no layers."""
CONTROL_GROUPS = Path("/sys/fs/cgroup")
USUAL = 8 * 10**9
"""What a machine is taken to have that does not tell, as one with Windows: members that need more train in turn."""


def bytes_of_a_member(
    ladder: Ladder | Gamma, unlabeled: int, labeled: int, updates_in_a_block: int, some: Tensor | None = None
) -> int:
    """About what a member needs while it trains on so many rows of each kind: its parameters, latents and noise.

    Unlabelled rows come corrupted and clean; where no cost denoises there are none. What a network of somebody else's
    needs is seen when it is tried on `some` rows; its shapes tell of little.

    Examples
    --------
    >>> from tikas.training.building import build_ladder
    >>> from tikas.training.recipe import Recipe
    >>> ladder = build_ladder(Recipe(), (784,), 10, seed=0)
    >>> round(bytes_of_a_member(ladder, unlabeled=100, labeled=100, updates_in_a_block=10) / 1e6)
    155
    """
    parameters = sum(parameter.numel() for parameter in ladder.parameters())
    corrupted, noise = unlabeled + labeled, sum(map(prod, ladder.shapes))
    if isinstance(ladder, Ladder) or some is None:
        of_a_row = TENSORS_OF_A_LATENT * noise
    else:
        of_a_row = TENSORS_OF_A_LAYER * _given(ladder, some)
    of_rows = (corrupted + unlabeled) * of_a_row + updates_in_a_block * corrupted * noise
    return 4 * (TENSORS_OF_A_PARAMETER * parameters + of_rows)


@torch.no_grad()
def _given(model: Gamma, rows: Tensor) -> int:
    """How many values all layers of a network give for a row."""
    values = 0

    def count(_: nn.Module, __: object, given: object) -> None:
        nonlocal values
        tensors = given if isinstance(given, tuple) else (given,)
        values += sum(each.numel() for each in tensors if isinstance(each, Tensor))

    layers = [layer for layer in model.network.modules() if not list(layer.children())]
    handles = [layer.register_forward_hook(count) for layer in layers]
    try:
        with in_eval_mode(model.network):
            model.network(rows.to(model.rung.mean, copy=True))  # it may work in place
    finally:
        for handle in handles:
            handle.remove()
    return values // len(rows)


def free_bytes(device: torch.device) -> int:
    """Memory that is left on a device, including what is kept there of earlier tensors.

    Examples
    --------
    >>> free_bytes(torch.device("cpu")) > 10**6
    True
    """
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + kept
    hand_back()
    return int(min(_left_on_the_machine(), _left_to_the_container()))


def shortage(device: torch.device, needed: int, of_rows: int, free: int, batch_size: int) -> str:
    """What to say where a member does not fit on a device, not even alone; rows that are there need no memory.

    Examples
    --------
    >>> print(shortage(torch.device("cuda", 0), 95 * 10**9, of_rows=2 * 10**8, free=79 * 10**9, batch_size=100))
    A member does not fit into the memory of cuda:0. By an estimate it needs 95 GB, beside 0.2 GB for all rows, and
    79 GB were free. Set a batch_size below 100, take a smaller network, or train with device='cpu'.
    """
    beside = f", beside {of_rows / 1e9:.2g} GB for all rows," if of_rows else ""
    otherwise = "train where there is more memory" if device.type == "cpu" else "train with device='cpu'"
    return (
        f"A member does not fit into the memory of {device}. By an estimate it needs {needed / 1e9:.2g} GB{beside} and "
        f"{free / 1e9:.3g} GB were free. Set a batch_size below {batch_size}, take a smaller network, or {otherwise}."
    )


def _left_on_the_machine() -> int:
    try:
        return 1024 * int(_figures(Path("/proc/meminfo"))["MemAvailable:"])
    except (OSError, LookupError):
        known = hasattr(os, "sysconf")
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if known else USUAL


def _left_to_the_container() -> float:
    """What the container that this runs in may still take, by either version of control groups; without one, all."""
    for limit, used, details, reclaimed in (
        ("memory.max", "memory.current", "memory.stat", "inactive_file"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"),
    ):
        try:
            most = int((CONTROL_GROUPS / limit).read_text())
            taken = int((CONTROL_GROUPS / used).read_text()) - int(_figures(CONTROL_GROUPS / details)[reclaimed])
        except (OSError, LookupError, ValueError):  # no such file, or "max"
            continue
        return max(0, most - taken)
    return inf


def _figures(path: Path) -> dict[str, str]:
    """The first figure of every line, by the line's name."""
    return {line.split()[0]: line.split()[1] for line in path.read_text().splitlines()}
