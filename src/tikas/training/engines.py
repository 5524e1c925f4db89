"""Engines: programs that train the members of an ensemble together, and the choice of the fastest one for a run."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import Protocol

import torch
from torch import Tensor

from tikas.data.batches import Batch, Batches
from tikas.model.ladder import Costs, Model
from tikas.training.ensemble import pack, record, unpack

COMPILE_FROM = 1e12
"""Multiplications of a run (of an update, times the updates) from which compiling, half a minute, pays off."""

SECOND_THREAD_FROM = 1e8
"""Multiplications of an update from which a second CPU thread pays off."""

GPU_BLOCK = 10
"""Updates of a CUDA graph, for which noise is drawn at once."""


class Engine(Protocol):
    """Trains members together, from the batches that it is given."""

    members: int
    batches: Batches
    preparation: str
    """What the first update does before it trains, if that takes long: shown until the first epoch is complete."""

    def train_epoch(self, rates: Tensor, first: int = 0) -> Tensor:
        """Train for one epoch, or for the part of it that begins with update `first`: whole blocks of the batches.

        `rates` are the learning rates, ``(updates,)`` or ``(updates, members)``. Returns the costs of every update,
        ``(updates, *members, 1 + levels)``: the supervised cost, then the unweighted denoising cost of each level.
        """
        ...

    def state_dict(self) -> dict[str, Tensor]:
        """Return everything needed to resume, on the CPU: ``(members, ...)`` each.

        ``model.{name}``: parameters; ``mean.{name}`` and ``square.{name}``: Adam's moments; ``batches.order`` and
        ``batches.noise``: states of the random generators.
        """
        ...

    def load_state_dict(self, state: Mapping[str, Tensor], updates: int) -> None:
        """Restore a `state_dict` taken after `updates` updates."""
        ...

    def models(self) -> list[Model]:
        """Return each member as a model of its own."""
        ...

    def packed(self) -> list[Model]:
        """Return the members in as few models as they run in, to be measured; these may share the engine's tensors."""
        ...


class EagerEngine:
    """Trains with PyTorch's autograd and `torch.optim.Adam`, without compiling anything; it runs everywhere.

    A model alone is trained in place; several are copied into one packed model.

    Parameters
    ----------
    models : sequence of Model
        The members: all of one shape, on the device of the batches. They may differ in noise and cost weights.
    batches : Batches
    capturable : bool, default=False
        Whether updates can be captured in a CUDA graph.
    """

    preparation = ""

    def __init__(self, models: Sequence[Model], batches: Batches, *, capturable: bool = False) -> None:
        self.batches = batches
        self.members = len(models)
        self.model = pack(models).train()
        self.costs: Callable[..., Costs] = self.model.training_costs  # may be replaced by a compiled function
        self.capturable = capturable
        self.rate = torch.zeros((), dtype=torch.float32, device=batches.device)
        self._templates = models
        if self.members == 1 and self.model.packable:
            # Kernels of convolutions, in the layout in which maps and their noise are stored.
            self.model.to(memory_format=torch.channels_last)
        self.optimizer = self._adam(self.model.parameters())
        self._steps: list[Tensor] = []

    def train_epoch(self, rates: Tensor, first: int = 0) -> Tensor:
        """Train for one epoch or a part of it; see `Engine.train_epoch`."""
        if first == 0:
            self.batches.start_epoch()
        costs = []
        for update, rate in enumerate(rates.to(self.batches.device, torch.float32), first):
            costs.append(self.update(self.batches.batch(update), rate))
        return torch.stack(costs)

    def update(self, batch: Batch, rate: Tensor) -> Tensor:
        """Make one update; return the costs before it, ``(*members, 1 + levels)``."""
        self.model.zero_grad()
        costs = self.costs(*batch)
        self.backward(costs)
        if rate.dim():
            self.step_at_rates(rate)
        else:
            self.rate.copy_(rate)
            self.optimizer.step()
        return record(costs)

    def backward(self, costs: Costs) -> None:
        """Compute the gradients."""
        costs.total.sum().backward()

    @torch.no_grad()
    def step_at_rates(self, rates: Tensor) -> None:
        """Take a step with a learning rate ``(members,)`` of each member, which Adam does not offer.

        Adam steps with rate 1 from zeros that stand in for the parameters; the parameters then move by that step times
        the member's rate. So an interrupt at any time finds the parameters before or after a whole step.
        """
        parameters = list(self.model.parameters())
        if not self._steps:
            moments = [self.optimizer.state[parameter] for parameter in parameters]  # of a resumed run
            self._steps = [torch.zeros_like(parameter) for parameter in parameters]
            self.optimizer = self._adam(self._steps)
            self.optimizer.state.update(zip(self._steps, moments, strict=True))
        for step, parameter in zip(self._steps, parameters, strict=True):
            step.grad = parameter.grad
        self.rate.fill_(1.0)
        self.optimizer.step()
        for step, parameter in zip(self._steps, parameters, strict=True):
            parameter.addcmul_(step, rates.to(parameter.dtype).view(-1, *[1] * (parameter.dim() - 1)))
            step.zero_()

    def tensors(self) -> dict[str, Tensor]:
        """Return what updates change, ``(*members, ...)``: parameters and Adam's moments; of modules also buffers."""
        parameters = dict(self.model.named_parameters())
        changing = parameters if self.model.packable else self.model.state_dict()
        tensors = {f"model.{name}": tensor for name, tensor in changing.items() if isinstance(tensor, Tensor)}
        for name, state in zip(parameters, self.adam_state(), strict=True):
            tensors |= {f"mean.{name}": state["exp_avg"], f"square.{name}": state["exp_avg_sq"]}
        return tensors

    def state_dict(self) -> dict[str, Tensor]:
        """Return everything needed to resume; see `Engine.state_dict`."""
        return engine_state(self.tensors(), self.batches, self.members)

    def load_state_dict(self, state: Mapping[str, Tensor], updates: int) -> None:
        """Restore a `state_dict` taken after `updates` updates."""
        load_engine_state(self.tensors(), self.batches, state, self.members, updates)
        for adam in self.adam_state():
            adam["step"].fill_(updates)

    def models(self) -> list[Model]:
        """Return each member as a model of its own."""
        return unpack(self.model, self._templates)

    def packed(self) -> list[Model]:
        """Return the packed model."""
        return [self.model]

    def _adam(self, parameters: Iterable[Tensor]) -> torch.optim.Adam:
        return torch.optim.Adam(parameters, lr=self.rate, fused=True, capturable=self.capturable)

    def adam_state(self) -> list[dict[str, Tensor]]:
        """Return Adam's state of every parameter; before the first step, in the form in which Adam creates it."""
        parameters = self.optimizer.param_groups[0]["params"]
        for parameter in parameters:
            if not self.optimizer.state[parameter]:
                self.optimizer.state[parameter] = {
                    "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
                    "exp_avg": torch.zeros_like(parameter),
                    "exp_avg_sq": torch.zeros_like(parameter),
                }
        return [self.optimizer.state[parameter] for parameter in parameters]


def engine_state(tensors: Mapping[str, Tensor], batches: Batches, members: int) -> dict[str, Tensor]:
    """Copy an engine's tensors ``(*members, ...)`` to the CPU as ``(members, ...)``, with the state of its batches."""
    state = {}
    for name, tensor in tensors.items():
        state[name] = (tensor.unsqueeze(0) if members == 1 else tensor).detach().to("cpu", copy=True)
    return state | {f"batches.{name}": tensor for name, tensor in batches.state_dict().items()}


@torch.no_grad()
def load_engine_state(
    tensors: Mapping[str, Tensor], batches: Batches, state: Mapping[str, Tensor], members: int, updates: int
) -> None:
    """Copy an `engine_state`, taken after `updates` updates, into an engine's tensors and its batches."""
    for name, tensor in tensors.items():
        saved, expected = state.get(name), (1, *tensor.shape) if members == 1 else tuple(tensor.shape)
        if saved is None or saved.shape != expected:
            found = "is missing" if saved is None else f"has shape {tuple(saved.shape)}"
            raise ValueError(
                f"{name} {found} in the snapshot; expected shape {expected}. Another version of tikas may have written "
                "it: delete the snapshot to start again."
            )
        tensor.copy_(saved[0] if members == 1 else saved)
    try:
        generators = {name: state[f"batches.{name}"] for name in ("order", "noise")}
        batches.load_state_dict(generators, updates % batches.updates)
    except (LookupError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(
            f"The snapshot has no states of the random generators that fit ({error}). Delete it to start again."
        ) from error


def choose_engine(models: Sequence[Model], batches: Batches, updates: int, *, exact: bool) -> Engine:
    """Return the fastest engine for this device and `updates` updates.

    On a CPU, dense ladders are compiled if that pays off and a C++ compiler works; everything else runs eagerly. On a
    GPU, ladders run in CUDA graphs; if compiling pays off, dense ladders run in the fused kernels and others are
    compiled. With `exact`, products have full float32 precision. Where processes share the rows, everything runs
    eagerly.
    """
    if batches.share[1] > 1:
        from tikas.training.distributed import DistributedEngine

        return DistributedEngine(models, batches)
    first, on_gpu = models[0], batches.device.type == "cuda"
    if not first.packable:  # modules may do what no compiler follows
        return EagerEngine(models, batches)
    has_maps = any(len(shape) > 1 for shape in first.shapes)
    if not on_gpu and has_maps:  # convolutions are a library's; compiling the rest gained nothing on two cores
        return EagerEngine(models, batches)
    compiled = multiplications(models, batches) * updates >= COMPILE_FROM and _can_compile(batches.device)
    if on_gpu:
        return _choose_gpu_engine(models, batches, compiled=compiled, exact=exact)
    if not compiled or not all(parameter.requires_grad for parameter in first.parameters()):
        return EagerEngine(models, batches)
    from tikas.training.compiled import CompiledEngine, bf16_is_faster

    bf16 = not exact and next(iter(first.parameters())).dtype == torch.float32 and bf16_is_faster()
    return CompiledEngine(models, batches, torch.bfloat16 if bf16 else torch.float32)


def _choose_gpu_engine(models: Sequence[Model], batches: Batches, *, compiled: bool, exact: bool) -> Engine:
    if compiled:
        from tikas.training.fused.engine import FusedEngine, can_fuse  # need Triton

        if can_fuse(models[0], batches):
            return FusedEngine(models, batches, torch.float32 if exact else torch.bfloat16)
    from tikas.training.cuda_graph import CudaGraphEngine, SideBySideEngine

    if len(models) > 1 and _convolves(models[0]):
        return SideBySideEngine(models, batches, compiled=compiled, exact=exact)
    return CudaGraphEngine(models, batches, compiled=compiled, exact=exact)


def _convolves(model: Model) -> bool:
    """Return whether a ladder has convolutions other than matrix products (1x1), which members cannot share."""
    return any(not getattr(rung, "is_product", True) for rung in model.rungs)


def _can_compile(device: torch.device) -> bool:
    from tikas.training.compiled import SlowTrainingWarning, compile_obstacle

    obstacle = compile_obstacle(device)
    if obstacle is not None:
        warnings.warn(f"Training is not compiled, and slower, because {obstacle}.", SlowTrainingWarning, stacklevel=2)
    return obstacle is None


def multiplications(models: Sequence[Model], batches: Batches) -> float:
    """Return the multiplications of an update: parameters times rows times, on maps, positions."""
    rows = 2 * batches.batch_size + batches.labeled_batch_size
    first = models[0]
    if not first.packable:
        return float(rows * sum(parameter.numel() for parameter in first.parameters()))
    work = sum(prod(rung.shape[1:]) * sum(parameter.numel() for parameter in rung.parameters()) for rung in first.rungs)
    return float(work * rows * len(models))
