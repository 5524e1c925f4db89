"""What lies between the kernels of a fused update: the levels of a ladder, and the tensors that kernels leave there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tikas.model.denoisers import DENOISERS
from tikas.model.ladder import Ladder
from tikas.model.rungs import ACTIVATIONS, Rung
from tikas.training.kernels.activations import NUMBERS
from tikas.training.kernels.denoisers import NUMBERS as DENOISER_NUMBERS
from tikas.training.kernels.levels import STREAMS


@dataclass
class Level:
    """What the kernels of a level are told, and the tensors that they leave for each other.

    Attributes
    ----------
    width, padded
        Units, without padding and with it.
    activation
        The number that kernels know φ by.
    beta, gamma, denoised, costed
        Whether the level has a β, a γ, a denoiser and a cost.
    lowest
        Whether the descent ends here.
    unlabeled, clean
        Rows of the corrupted unlabelled stream, and of the clean one: none where that has no cost to come to.
    first_cost
        The place of its cost among those that an update records, one for every program.
    noise_offset
        Where its noise begins in that of an update.

    Examples
    --------
    >>> from tikas.model.specs import Dense
    >>> _, hidden, top = levels_of(Ladder((784,), [Dense(250), Dense(10)], costs=(1000, 10, 0.1)), unlabeled=100)
    >>> hidden.width, hidden.padded, hidden.beta, hidden.gamma, top.gamma
    (250, 256, True, False, True)
    """

    number: int
    width: int
    padded: int
    activation: int
    beta: bool
    gamma: bool
    denoised: bool
    costed: bool
    lowest: bool
    unlabeled: int
    clean: int
    first_cost: int = 0
    noise_offset: int = 0
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    @property
    def streams(self) -> int:
        """How many of the labelled, the corrupted and the clean stream have rows here, in this order."""
        return 1 + (self.unlabeled > 0) + (self.clean > 0)


def activation_number(rung: Rung) -> int | None:
    """By its function alone: which of scale and bias there are is told to the kernels too. None where it is unknown.

    Examples
    --------
    >>> from tikas.model.specs import Dense
    >>> ladder = Ladder((4,), [Dense(3, activation="tanh"), Dense(2)])
    >>> [activation_number(rung) for rung in ladder.rungs] == [NUMBERS["linear"], NUMBERS["tanh"], NUMBERS["linear"]]
    True
    """
    functions = {kind.function: NUMBERS[name] for name, kind in ACTIVATIONS.items()}
    return functions.get(rung.activation.function)


def denoiser_number(ladder: Ladder) -> int:
    """The number that kernels know g by; where there is none to run it does not matter.

    Examples
    --------
    >>> from tikas.model.specs import Dense
    >>> denoiser_number(Ladder((4,), [Dense(3)], denoiser="linear")) == DENOISER_NUMBERS["linear"]
    True
    """
    kinds = {type(rung.denoiser) for rung in ladder.rungs}
    return next((DENOISER_NUMBERS[name] for name, kind in DENOISERS.items() if kind in kinds), 0)


def levels_of(ladder: Ladder, unlabeled: int) -> list[Level]:
    """The levels of a dense ladder that sees so many unlabelled rows in an update, the input first.

    Examples
    --------
    >>> from tikas.model.specs import Dense
    >>> levels = levels_of(Ladder((784,), [Dense(250), Dense(10)], costs=(1000, 0, 0)), unlabeled=100)
    >>> [(level.padded, level.denoised, level.costed, level.clean) for level in levels]
    [(784, True, True, 0), (256, True, False, 0), (16, True, False, 0)]
    """
    costed = ladder.costed
    levels = []
    for number, rung in enumerate(ladder.rungs):
        activation = activation_number(rung)
        assert activation is not None
        levels.append(
            Level(
                number=number,
                width=rung.shape[0],
                padded=-(-rung.shape[0] // 8) * 8,
                activation=activation,
                beta=rung.beta is not None,
                gamma=rung.gamma is not None,
                denoised=rung.denoiser is not None,
                costed=number in costed,
                lowest=bool(costed) and number == costed[0],
                unlabeled=unlabeled,
                clean=unlabeled if number <= max(costed, default=-1) else 0,
            )
        )
    levels[0].clean = levels[1].clean  # the clean stream starts only if it has somewhere to go
    return levels


def allocate(levels: Sequence[Level], members: int, labeled: int, dtype: torch.dtype, device: torch.device) -> None:
    """Make the tensors of every level, ``(members, rows, padded)``, and say where its noise begins.

    They are of `dtype`, but for those of the scores: probabilities and their gradients need float32.

    Examples
    --------
    >>> from tikas.model.specs import Dense
    >>> levels = levels_of(Ladder((6,), [Dense(5), Dense(3)], costs=(10, 1, 0.1)), unlabeled=20)
    >>> allocate(levels, 2, 10, torch.bfloat16, torch.device("cpu"))
    >>> levels[1]["hidden"].shape, levels[1]["hidden"].dtype  # 10 labelled rows, 20 corrupted, 20 clean
    (torch.Size([2, 50, 8]), torch.bfloat16)
    >>> [level.noise_offset for level in levels]
    [0, 180, 330]
    """

    def zeros(rows: int, width: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(members, rows, width, dtype=dtype, device=device)

    top, offset = levels[-1], 0
    for level in levels:
        unlabeled, width, above = level.unlabeled, level.padded, levels[min(level.number + 1, top.number)]
        precise = torch.float32 if level is top else dtype
        corrupted = labeled + unlabeled
        level.noise_offset = offset
        offset += corrupted * level.width
        rows = corrupted + level.clean
        level.tensors["hidden"] = zeros(rows, width, precise)
        if level.number:
            level.tensors |= {
                "projected": zeros(rows, width, dtype),
                "statistics": zeros(STREAMS * 2, width, torch.float32),  # μ and 1/σ of each
                "to_projected": zeros(rows, width, dtype),
            }
            rows_above = corrupted if level is top else corrupted + above.clean
            level.tensors["to_hidden"] = zeros(rows_above, width, precise)
        if level.denoised:
            level.tensors |= {
                "signal": zeros(unlabeled, width, precise),
                "signal_statistics": zeros(2, width, torch.float32),
                "to_signal": zeros(unlabeled, width, precise),
                "to_statistics": zeros(2, width, torch.float32),
            }
            for name in ("denoised", "to_denoised"):
                level.tensors[name] = zeros(unlabeled, width, dtype)
            level.tensors["to_latents"] = zeros(unlabeled + level.clean, width, dtype)
