"""The encoder: rungs from the input up to the output, run clean, and the statistics that eval mode needs."""

from collections.abc import Sequence
from typing import Self, cast

import torch
from torch import Tensor, nn

from tikas.model.batch_checks import check_calibration, check_not_one, check_precision, check_rows
from tikas.model.calibration import calibrate_rungs
from tikas.model.layout import rows_dim
from tikas.model.names import Task
from tikas.model.rung import Rung


class Encoder(nn.Module):
    """The part of a ladder that is a network like others: rows in, outputs out.

        h₀ = z₀ = x;  zₗ = N(Wₗ hₗ₋₁);  hₗ = φ(γₗ·(zₗ + βₗ))

    Parameters
    ----------
    rungs
        From the input level up to the output.
    task
        ``"classification"``: the outputs are class scores. ``"regression"``: they are values.

    Examples
    --------
    >>> from tikas import Dense, Ladder
    >>> ladder = Ladder(input_shape=(4,), rungs=[Dense(5), Dense(3)])
    >>> isinstance(ladder, Encoder), ladder.shapes, ladder.top
    (True, [(4,), (5,), (3,)], 2)
    """

    rungs: Sequence[Rung]
    calibrated: Tensor

    def __init__(self, rungs: Sequence[Rung], task: Task) -> None:
        super().__init__()
        self.task = task
        self.rungs = cast("Sequence[Rung]", nn.ModuleList(rungs))
        self.register_buffer("calibrated", torch.tensor(False))

    def reset(self, generator: torch.Generator | None = None) -> None:
        """Draw the first weights, again if need be.

        Examples
        --------
        >>> from tikas import Dense, Ladder
        >>> ladder = Ladder(input_shape=(4,), rungs=[Dense(3)], generator=torch.Generator().manual_seed(0))
        >>> first = ladder.rungs[1].weight.clone()
        >>> ladder.reset(torch.Generator().manual_seed(0))
        >>> bool((ladder.rungs[1].weight == first).all())
        True
        """
        for rung in self.rungs:
            rung.reset(generator)
        self.calibrated.fill_(False)  # statistics of weights that are gone

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shape of every level, the input first."""
        return [rung.shape for rung in self.rungs]

    @property
    def top(self) -> int:
        """L, the number of the output level."""
        return len(self.rungs) - 1

    def forward(self, x: Tensor) -> Tensor:
        """The clean output: class scores (logits), or the regression's values.

        In training mode the batch's own statistics normalise it; in eval mode the calibrated ones, so that no row
        depends on another.
        """
        return self.encode(x)[1]

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The top's clean latent z and the output that is made of it.

        Examples
        --------
        >>> from tikas import Dense, Ladder
        >>> latent, scores = Ladder(input_shape=(4,), rungs=[Dense(5), Dense(3)]).encode(torch.rand(8, 4))
        >>> latent.mean(0).abs().max().item() < 1e-5, scores.shape  # normalised with the batch's own statistics
        (True, torch.Size([8, 3]))
        """
        self._check_rows(x, together=self.training)
        if self.training:
            check_not_one(x.shape[rows_dim(self.shapes[0])])
        if not (self.training or torch.compiler.is_compiling() or bool(self.calibrated.all())):
            raise RuntimeError(
                "This ladder has no statistics for eval mode yet: call ladder.calibrate(rows) with training rows first."
            )
        latent = hidden = x
        for rung in self.rungs[1:]:
            projected = rung.up(hidden)
            latent = rung.normalize(projected) if self.training else rung.calibrated.normalize(projected)
            hidden = rung.activate(latent)
        return latent, hidden

    @torch.no_grad()
    def calibrate(self, x: Tensor, chunk: int | None = None) -> Self:
        """Set the statistics of eval mode from these rows: exact, rung by rung, however many rows there are.

        Each rung's statistics are gathered with the rungs below it already calibrated, `chunk` rows at a time (by
        default 4096, or fewer where maps are large, and more on a GPU). Give all training rows for the best result, or
        the labelled ones alone to do as the paper's authors did; two at the least, since one has no deviation.

        Examples
        --------
        >>> from tikas import Dense, Ladder
        >>> rows = torch.rand(50, 4)
        >>> ladder = Ladder(input_shape=(4,), rungs=[Dense(3)]).calibrate(rows).eval()
        >>> bool(torch.allclose(ladder(rows)[:1], ladder(rows[:1]), atol=1e-5))  # no row depends on another
        True
        """
        check_rows(x, self.shapes[0], self._members)
        check_calibration(x, x.shape[rows_dim(self.shapes[0])], chunk)
        calibrate_rungs(self.rungs, x, chunk)
        self.calibrated.fill_(True)
        return self

    @property
    def _members(self) -> int:
        """How many dimensions count members, in parameters and perhaps in rows: none in a ladder alone."""
        return self.rungs[-1].mean.dim() - 1

    def _check_rows(self, x: Tensor, *, together: bool = False) -> None:
        """Rows that fit; `together` if they are normalised with their own statistics."""
        dtype = self.rungs[-1].mean.dtype
        check_rows(x, self.shapes[0], self._members, dtype)
        if together:
            check_precision(dtype)

    def draw_noise(self, rows: Tensor, count: int, generator: torch.Generator | None = None) -> list[Tensor]:
        """Standard-normal noise for `count` rows at every level, of the kind and on the device of `rows`.

        Examples
        --------
        >>> from tikas import Dense, Ladder
        >>> ladder, rows = Ladder(input_shape=(4,), rungs=[Dense(5), Dense(3)]), torch.rand(8, 4)
        >>> noise = ladder.draw_noise(rows, count=8, generator=torch.Generator().manual_seed(0))
        >>> [tuple(draw.shape) for draw in noise]
        [(8, 4), (8, 5), (8, 3)]
        >>> bool(ladder.costs(rows, noise=noise).total == ladder.costs(rows, noise=noise).total)
        True
        """
        members = rows.shape[: rows_dim(self.shapes[0])]
        return [
            torch.randn(*members, count, *shape, generator=generator, dtype=rows.dtype, device=rows.device)
            for shape in self.shapes
        ]
