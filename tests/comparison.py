"""The same ladder in PyTorch and in NumPy, with equal parameters and an equal batch."""

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pytest
import torch

from oracle import (
    Array,
    Batch,
    Oracle,
    Parameters,
    Settings,
    gradients,
    random_batch,
    random_parameters,
)
from oracle import Costs as NumpyCosts
from tikas import Conv, Costs, Dense, GlobalMeanPool, Ladder, MaxPool, MeanPool
from tikas.model.gamma import Gamma

TASKS = ["classification", "regression"]
COSTS = {
    "full": (2.0, 1.0, 0.5, 0.3),
    "bottom": (3.0, 0.0, 0.0, 0.0),
    "gamma": (0.0, 0.0, 0.0, 0.7),
    "middle": (0.0, 2.0, 0.0, 0.0),
    "baseline": (0.0, 0.0, 0.0, 0.0),
}
"""λ of the dense ladder, the input first."""


def dense(costs: str = "full", activations: tuple[Any, Any] = ("relu", "relu"), **changes: Any) -> Settings:
    """Return the settings of a dense ladder 6-5-4-3."""
    first, second = activations
    rungs = (Dense(5, activation=first), Dense(4, activation=second), Dense(3))
    return replace(Settings((6,), rungs, (0.3, 0.2, 0.5, 0.4), COSTS[costs]), **changes)


NETWORKS = {
    "paddings": Settings(
        (2, 4, 4),
        (
            Conv(2, 2, padding="full"),
            Conv(2, 3, activation="leaky_relu"),
            Conv(2, 3, padding="same", activation="tanh"),
            Conv(2, 2, padding="same"),
            Dense(3),
        ),
        (0.3, 0.2, 0.4, 0.1, 0.5, 0.3),
        (2.0, 1.0, 0.5, 0.4, 0.3, 0.2),
    ),
    "strides": Settings(
        (1, 8, 7),
        (
            Conv(2, 3, padding="same", stride=2),
            Conv(2, 2, padding="full", stride=2),
            Conv(2, 2, stride=2, activation="linear"),
            Dense(3, activation="tanh"),
            Dense(3),
        ),
        (0.3, 0.2, 0.4, 0.1, 0.5, 0.3),
        (2.0, 1.0, 0.5, 0.4, 0.3, 0.2),
    ),
    "pooling": Settings(
        (2, 9, 7),
        (
            Conv(2, 2),
            MaxPool(2),
            Conv(3, 2, padding="full", activation="leaky_relu"),
            MeanPool(2),
            GlobalMeanPool(),
            Dense(3),
        ),
        (0.3, 0.2, 0.4, 0.1, 0.5, 0.3, 0.2),
        (2.0, 1.0, 0.5, 0.4, 0.3, 0.2, 0.1),
    ),
    "windows": Settings(  # overlapping, cut off, with gaps between them, and one that is left out
        (1, 12, 11),
        (
            MaxPool(3, stride=2),
            MeanPool(3, stride=2),
            Conv(3, 3, padding="full"),
            MaxPool(2, stride=3),
            MeanPool(2, rounding="down"),
            GlobalMeanPool(),
        ),
        (0.3, 0.2, 0.4, 0.1, 0.5, 0.3, 0.2),
        (2.0, 1.0, 0.5, 0.4, 0.3, 0.2, 0.1),
    ),
    "global top": Settings(
        (2, 3, 3),
        (
            Conv(2, 3, activation="tanh"),
            Conv(2, 3, padding="full"),
            MaxPool(2),
            Conv(3, 1),
            GlobalMeanPool(scale=False),
        ),
        (0.3, 0.2, 0.4, 0.1, 0.5, 0.3),
        (2.0, 1.0, 0.5, 0.4, 0.3, 0.2),
    ),
}
"""Small ladders on maps, with rungs of every kind."""


@dataclass(frozen=True)
class Comparison:
    """A ladder in NumPy, and a batch for it; `ladder` builds the same in PyTorch."""

    oracle: Oracle
    batch: Batch

    @property
    def settings(self) -> Settings:
        return self.oracle.settings

    def ladder(self, dtype: torch.dtype = torch.float64) -> Ladder:
        """Return the PyTorch ladder with the oracle's parameters."""
        ladder = Ladder(**{field.name: getattr(self.settings, field.name) for field in fields(Settings)}).to(dtype)
        own = dict(ladder.named_parameters())
        assert own.keys() == self.oracle.parameters.keys()
        with torch.no_grad():
            for name, values in self.oracle.parameters.items():
                assert own[name].shape == values.shape, name
                own[name].copy_(torch.from_numpy(values))
        return ladder

    def numpy_costs(self, oracle: Oracle | None = None, weights: Array | None = None) -> NumpyCosts:
        batch = self.batch
        return (oracle or self.oracle).costs(batch.unlabeled, batch.labeled, batch.targets, batch.noise, weights)

    def torch_costs(self, ladder: Ladder, weights: torch.Tensor | None = None) -> Costs:
        dtype, batch = next(ladder.parameters()).dtype, self.batch
        targets = torch.from_numpy(batch.targets)
        return ladder.costs(
            torch.from_numpy(batch.unlabeled).to(dtype),
            torch.from_numpy(batch.labeled).to(dtype),
            targets.to(dtype) if targets.is_floating_point() else targets,
            noise=[torch.from_numpy(draw).to(dtype) for draw in batch.noise],
            weights=weights,
        )

    def numpy_gradients(self, oracle: Oracle | None = None, names: tuple[str, ...] = ("",)) -> Parameters:
        """Return the gradient of the total cost, for parameters whose names end in one of `names`."""
        oracle = oracle or self.oracle

        def total(moved: Parameters) -> Any:
            return self.numpy_costs(replace(oracle, parameters={**oracle.parameters, **moved})).total

        return gradients(total, {name: values for name, values in oracle.parameters.items() if name.endswith(names)})

    def torch_gradients(self, dtype: torch.dtype = torch.float64) -> Parameters:
        """Return the gradient of the total cost; zero for parameters that it does not depend on."""
        ladder = self.ladder(dtype)
        self.torch_costs(ladder).total.backward()
        return {
            name: np.zeros(tuple(parameter.shape)) if parameter.grad is None else parameter.grad.numpy()
            for name, parameter in ladder.named_parameters()
        }


def compare(settings: Settings, seed: int = 1, **rows: int) -> Comparison:
    """Return a comparison with random parameters and a random batch; `rows` may set unlabeled= and labeled=."""
    rng = np.random.default_rng(seed)
    parameters = random_parameters(settings, rng)
    return Comparison(Oracle(settings, parameters), random_batch(settings, rng, **rows))


def assert_same_costs(found: Costs, expected: NumpyCosts, relative: float = 1e-10) -> None:
    assert found.supervised.item() == pytest.approx(expected.supervised, rel=relative)
    assert found.total.item() == pytest.approx(expected.total, rel=relative)
    np.testing.assert_allclose(found.denoising.detach().numpy(), expected.denoising, rtol=relative, atol=0)


def assert_same_gradients(found: Parameters, expected: Parameters, relative: float = 1e-10) -> None:
    """Compare gradients entry by entry, relative to the largest entry of each parameter."""
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        scale = np.abs(gradient).max()
        assert scale > 1e-4, f"{name} is not tested: its gradient vanishes"
        np.testing.assert_allclose(found[name], gradient, rtol=0, atol=relative * scale, err_msg=name)


def assert_compiled_once_for_all_sizes(model: Ladder | Gamma, shape: tuple[int, ...]) -> None:
    """Compile a model that returns costs, with noise drawn inside, for one size of batches, and once for all others."""
    graphs = []

    def backend(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> Any:
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    for unlabeled, labeled in ((40, 20), (37, 18), (16, 30), (50, 16)):
        batch = torch.rand(unlabeled, *shape), torch.rand(labeled, *shape), torch.arange(labeled) % 3
        results = []
        for costs_of in (compiled, model.costs):
            model.zero_grad()
            torch.manual_seed(unlabeled)
            costs = costs_of(*batch)
            costs.total.backward()
            results.append([costs.total.detach(), *(parameter.grad.clone() for parameter in model.parameters())])
        torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)
    assert len(graphs) == 2


def assert_compiled_eval_mode_needs_calibration(model: Ladder | Gamma, rows: torch.Tensor) -> None:
    torch.compiler.reset()
    compiled = torch.compile(model.eval(), backend="eager")
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"calibrate\(rows\)"):
            compiled(rows)
    model.calibrate(rows)
    torch.testing.assert_close(compiled(rows), model(rows))
