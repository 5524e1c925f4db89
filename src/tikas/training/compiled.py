"""A fleet on a CPU whose costs and optimiser are compiled, with products in bf16 where these are quicker."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from tikas.data.streams import Batch, Streams
from tikas.model.ladder import Ladder
from tikas.training.compilers import Compiler
from tikas.training.fleet import Fleet, recorded, with_tensors


class CompiledFleet(Fleet):
    """A fleet of dense ladders, for runs that are long enough to pay for compiling.

    In bf16, products read copies of the matrices, which the optimiser writes, and it reads gradients of the same type:
    nothing else casts a matrix. The ladder itself and Adam's moments stay in float32.

    Parameters
    ----------
    ladders, streams
        As for `Fleet`.
    dtype
        Of the products.

    Examples
    --------
    >>> from tikas import Dense
    >>> from tikas.data.splits import split
    >>> from tikas.data.streams import Examples
    >>> classes, ladders = torch.arange(60) % 3, [Ladder((8,), [Dense(5), Dense(3)])]
    >>> examples, splits = Examples(torch.rand(60, 8), classes, outputs=3), [split(classes.numpy(), 9)]
    >>> fleet = CompiledFleet(ladders, Streams(examples, splits, [0], ladders[0].shapes, 20, 20), torch.bfloat16)
    >>> fleet.learning.rungs[1].weight.dtype, fleet.ladder.rungs[1].weight.dtype
    (torch.bfloat16, torch.float32)
    """

    def __init__(self, ladders: Sequence[Ladder], streams: Streams, dtype: torch.dtype = torch.float32) -> None:
        from tikas.training.cpu_passes import PASSES  # which imports the compiler

        super().__init__(ladders, streams)
        self.dtype = dtype
        self.updates_done = 0
        values = {name: value.detach() for name, value in self.ladder.named_parameters()}
        matrices = [] if dtype == torch.float32 else [name for name in values if name.endswith("weight")]
        copies = {name: values[name].to(dtype) for name in matrices}
        self.learning = with_tensors(self.ladder, values | copies) if copies else self.ladder
        self._values, self._copies = list(values.values()), [copies.get(name) for name in values]
        self._means, self._squares = ([torch.zeros_like(value) for value in self._values] for _ in range(2))
        compiler = Compiler(PASSES)
        self.costs, self._step = compiler(self.learning.costs), compiler(adam_step)

    def update(self, batch: Batch, rate: Tensor) -> Tensor:
        costs = self.costs(**batch._asdict())
        gradients = torch.autograd.grad(costs.total.sum(), list(self.learning.parameters()))
        self.updates_done += 1
        rate = rate.to(self._values[0].dtype) / (1 - 0.9**self.updates_done)
        spread = rate.new_tensor((1 - 0.999**self.updates_done) ** -0.5)
        self._step(self._values, gradients, self._means, self._squares, self._copies, rate, spread)
        return recorded(costs)

    def place(self, snapshot: Mapping[str, Tensor], updates: int) -> None:
        super().place(snapshot, updates)
        for value, copy in zip(self._values, self._copies, strict=True):
            if copy is not None:
                copy.copy_(value)

    def count_updates(self, updates: int) -> None:
        self.updates_done = updates

    def _adam_states(self) -> list[dict[str, Tensor]]:
        pairs = zip(self._means, self._squares, strict=True)
        return [{"exp_avg": mean, "exp_avg_sq": square} for mean, square in pairs]


def adam_step(
    values: Sequence[Tensor],
    gradients: Sequence[Tensor],
    means: Sequence[Tensor],
    squares: Sequence[Tensor],
    copies: Sequence[Tensor | None],
    rate: Tensor,
    spread: Tensor,
) -> None:
    """Adam's step for every parameter, and the copies of those that have one.

    Parameters
    ----------
    rate
        The learning rate over 1 - 0.9ᵗ, one for all members or one for each, ``(members,)``.
    spread
        1/√(1 - 0.999ᵗ).

    Examples
    --------
    >>> value, gradient, mean, square = torch.tensor([[2.0], [5.0], [0.0], [0.0]])
    >>> adam_step([value], [gradient], [mean], [square], [None], torch.tensor(0.1) / 0.1, torch.tensor(0.001**-0.5))
    >>> value, mean  # the first step is as long as the rate, whatever the gradient
    (tensor([1.9000]), tensor([0.5000]))
    """
    for value, gradient, mean, square, copy in zip(values, gradients, means, squares, copies, strict=True):
        slope = gradient.to(value.dtype)
        mean.lerp_(slope, 0.1)
        square.lerp_(slope.square(), 0.001)
        own_rate = rate[(...,) + (None,) * (value.dim() - rate.dim())]
        value.sub_(own_rate * mean / (square.sqrt() * spread + 1e-8))
        if copy is not None:
            copy.copy_(value)
