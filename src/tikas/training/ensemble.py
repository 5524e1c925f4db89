"""An ensemble as one model: members packed into a single model with a leading member dimension, and unpacked again.

`tikas.model` works on tensors ``(*members, ...)`` throughout, so a packed model computes what its members would compute
one by one, up to rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy

import torch
from torch import Tensor, nn

from tikas.model.ladder import Costs, Model


def pack(models: Sequence[Model]) -> Model:
    """Return one model with a leading member dimension on every parameter and buffer; a single model as it is.

    Where members differ in noise or cost weights, these become tensors ``(members,)``.
    """
    if len(models) == 1:
        return models[0]
    states = [model.state_dict() for model in models]
    packed = with_tensors(models[0], {name: torch.stack([state[name] for state in states]) for name in states[0]})
    for level, name, values in differing_settings(models):
        setattr(packed.rungs[level], name, values)
    return packed


def unpack(packed: Model, models: Sequence[Model]) -> list[Model]:
    """Return the members of a packed model, each with the noise and cost weights of its model in `models`."""
    if len(models) == 1:
        return [packed]
    state = packed.state_dict()
    return [
        with_tensors(model, {name: tensor[member].clone() for name, tensor in state.items()})
        for member, model in enumerate(models)
    ]


def differing_settings(models: Sequence[Model]) -> Iterator[tuple[int, str, Tensor]]:
    """Yield level, name ("noise" or "cost") and values ``(members,)`` of each setting in which members differ."""
    first = next(iter(models[0].parameters()))
    for level in range(len(models[0].shapes)):
        for name in ("noise", "cost"):
            values = [getattr(model.rungs[level], name) for model in models]
            if len(set(values)) > 1:
                yield level, name, torch.tensor(values, dtype=first.dtype, device=first.device)


def with_tensors(model: Model, tensors: Mapping[str, Tensor]) -> Model:
    """Return a copy of a model with these parameters and buffers, by name; their shapes may differ from the model's."""
    own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    # deepcopy takes its memo for what is copied already: it puts these in place of the model's tensors.
    memo: dict[int, Tensor] = {}
    for name, tensor in tensors.items():
        is_parameter = isinstance(own[name], nn.Parameter)
        memo[id(own[name])] = nn.Parameter(tensor, own[name].requires_grad) if is_parameter else tensor
    return deepcopy(model, memo)


def to_device(model: Model, device: torch.device | str) -> Model:
    """Return a copy of a model on a device."""
    own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return with_tensors(model, {name: tensor.detach().to(device, copy=True) for name, tensor in own.items()})


def record(costs: Costs) -> Tensor:
    """Return the unweighted costs of an update, ``(*members, 1 + levels)``, the supervised cost first."""
    return torch.cat([costs.supervised.detach().unsqueeze(-1), costs.denoising.detach()], dim=-1)
