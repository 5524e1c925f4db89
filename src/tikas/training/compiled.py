"""CompiledEngine: dense ladders on a CPU, with compiled costs and a compiled optimizer.

This module is the only one that uses what torch does not document: settings of its compiler (`_compiler_settings`) and
a pass over its graphs (`_options`). Versions of torch without them compile more often, to code that is slower.
"""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from shutil import which
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from tikas.data.batches import Batch, Batches
from tikas.model.ladder import Model
from tikas.training.engines import engine_state, load_engine_state
from tikas.training.ensemble import pack, record, unpack, with_tensors

P = ParamSpec("P")
R = TypeVar("R")

RECOMPILE_LIMIT = 256
"""Programs that one function may become. With torch's limit of 8, the ninth network, noise or cost that a search tries
would train uncompiled."""


MIN_TORCH = "2.11"
"""First version of torch whose compiler is used. That of 2.6 fails in the backward pass of a ladder, when training has
begun; that of 2.8 compiles every engine anew. Triton before 3.3 (torch 2.7) does not compile the fused kernels."""


class SlowTrainingWarning(UserWarning):
    """Training is correct, but slower than it could be on this machine."""


class CompiledEngine:
    """Trains dense ladders with compiled costs and a compiled Adam, for runs long enough to pay for compiling.

    With `dtype` bf16, products read bf16 copies of the matrices, which the optimizer writes after every step; it reads
    gradients of that dtype. So no matrix is cast anywhere else. Parameters and Adam's moments keep their dtype.

    Parameters
    ----------
    models : sequence of Model
    batches : Batches
    dtype : torch.dtype, default=torch.float32
        `torch.bfloat16`, or `torch.float32` for the dtype of the parameters.
    """

    preparation = "compiling the update, up to half a minute the first time"

    def __init__(self, models: Sequence[Model], batches: Batches, dtype: torch.dtype = torch.float32) -> None:
        self.batches = batches
        self.members = len(models)
        self.dtype = dtype
        self.model = pack(models).train()
        self._templates = models
        self._updates = 0
        values = {name: parameter.detach() for name, parameter in self.model.named_parameters()}
        matrices = [name for name in values if name.endswith("weight")] if dtype == torch.bfloat16 else []
        copies = {name: values[name].bfloat16() for name in matrices}
        self.learning = with_tensors(self.model, values | copies) if copies else self.model
        self._values = list(values.values())
        self._copies = [copies.get(name) for name in values]
        self._means = [torch.zeros_like(value) for value in self._values]
        self._squares = [torch.zeros_like(value) for value in self._values]
        self._costs = compile_function(self.learning.training_costs, _options())
        self._step = compile_function(adam_step, _options())

    def train_epoch(self, rates: Tensor, first: int = 0) -> Tensor:
        """Train for one epoch or a part of it; see `Engine.train_epoch`."""
        if first == 0:
            self.batches.start_epoch()
        rates = rates.to(self.batches.device, torch.float32)
        return torch.stack([self._update(self.batches.batch(update), rate) for update, rate in enumerate(rates, first)])

    def _update(self, batch: Batch, rate: Tensor) -> Tensor:
        costs = self._costs(*batch)
        gradients = torch.autograd.grad(costs.total.sum(), list(self.learning.parameters()))
        self._updates += 1
        rate = rate.to(self._values[0].dtype) / (1 - 0.9**self._updates)
        scale = rate.new_tensor((1 - 0.999**self._updates) ** -0.5)
        self._step(self._values, gradients, self._means, self._squares, self._copies, rate, scale)
        return record(costs)

    def tensors(self) -> dict[str, Tensor]:
        """Return what updates change, ``(*members, ...)``: parameters and Adam's moments."""
        names = [name for name, _ in self.model.named_parameters()]
        buffers = {"model": self._values, "mean": self._means, "square": self._squares}
        return {f"{kind}.{name}": each for kind in buffers for name, each in zip(names, buffers[kind], strict=True)}

    def state_dict(self) -> dict[str, Tensor]:
        """Return everything needed to resume; see `Engine.state_dict`."""
        return engine_state(self.tensors(), self.batches, self.members)

    def load_state_dict(self, state: Mapping[str, Tensor], updates: int) -> None:
        """Restore a `state_dict` taken after `updates` updates."""
        load_engine_state(self.tensors(), self.batches, state, self.members, updates)
        self._updates = updates
        for value, copy in zip(self._values, self._copies, strict=True):
            if copy is not None:
                copy.copy_(value)

    def models(self) -> list[Model]:
        """Return each member as a model of its own."""
        return unpack(self.model, self._templates)

    def packed(self) -> list[Model]:
        """Return the packed model."""
        return [self.model]


def adam_step(
    values: Sequence[Tensor],
    gradients: Sequence[Tensor],
    means: Sequence[Tensor],
    squares: Sequence[Tensor],
    copies: Sequence[Tensor | None],
    rate: Tensor,
    scale: Tensor,
) -> None:
    """Make Adam's step for every parameter, and write the copies of those that have one.

    `rate` is the learning rate over 1 - 0.9ᵗ, one number or one for each member; `scale` is 1/√(1 - 0.999ᵗ).
    """
    for value, gradient, mean, square, copy in zip(values, gradients, means, squares, copies, strict=True):
        slope = gradient.to(value.dtype)
        mean.lerp_(slope, 0.1)
        square.lerp_(slope.square(), 0.001)
        own_rate = rate[(...,) + (None,) * (value.dim() - rate.dim())]
        value.sub_(own_rate * mean / (square.sqrt() * scale + 1e-8))
        if copy is not None:
            copy.copy_(value)


def compile_function(function: Callable[P, R], options: dict[str, Any] | None = None) -> Callable[P, R]:
    """Return `function`, compiled when it is first called; if that fails, it warns and runs as it is.

    `compile_obstacle` knows a missing compiler before. Missing headers of Python, or a folder that cannot be written,
    show only when something is compiled.
    """
    has_limit = "recompile_limit" in inspect.signature(torch.compile).parameters  # from torch 2.13 on
    limit: dict[str, Any] = {"recompile_limit": RECOMPILE_LIMIT} if has_limit else {}
    program: Callable[P, R] | None = None

    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        nonlocal program
        if program is not None:
            return program(*args, **kwargs)
        compiled: Callable[P, R] = torch.compile(function, dynamic=False, options=options, **limit)
        try:
            with _compiler_settings(limit=not has_limit):
                result = compiled(*args, **kwargs)
            program = compiled
        except Exception as error:  # one of the function itself is raised again by the next line but two
            cause = getattr(error, "inner_exception", error)
            reason = next(iter(str(cause).strip().splitlines()), type(cause).__name__)
            program = function
            result = function(*args, **kwargs)
            message = f"Training is not compiled, and slower, because compiling failed: {reason}"
            warnings.warn(message, SlowTrainingWarning, stacklevel=2)
        return result

    return run


@contextmanager
def _compiler_settings(*, limit: bool) -> Iterator[None]:
    """Change settings of torch's compiler that have no documented names; versions of torch without them ignore that.

    - All compiled code is kept on disk. By default, code with a hand-written derivative is kept in parts, and a later
      process spends most of its first update on putting them together.
    - The backward pass is compiled with the forward pass. Otherwise a failure to compile it would show outside of
      `compile_function`.
    - With `limit`, a function may become `RECOMPILE_LIMIT` programs, for versions whose `torch.compile` does not take
      that number.
    """
    wanted: list[tuple[str, str, object]] = [
        ("torch._functorch.config", "autograd_cache_allow_custom_autograd_functions", True),
        ("torch._functorch.config", "force_non_lazy_backward_lowering", True),
    ]
    if limit:
        wanted.append(("torch._dynamo.config", "recompile_limit", RECOMPILE_LIMIT))
    with ExitStack() as stack:
        for module, name, value in wanted:
            with suppress(ImportError):
                config = import_module(module)
                if hasattr(config, name):
                    stack.enter_context(config.patch({name: value}))
        yield


@cache
def _options() -> dict[str, Any] | None:
    """Return options for `torch.compile`: a pass that has masks recomputed in the backward pass.

    Where an activation was above zero takes a byte a value, so the compiler likes to store that mask instead of the
    value, above all in an ensemble. But its code for CPUs is slow at writing and reading bytes: with stored masks an
    update of four seeds took 29 ms a seed, without them 23 (`results/bench.jsonl`, revisions 58a3b47 and 9b0926f).

    The documented way, `torch.utils.checkpoint`, recomputes the products too. Cached: engines share compiled code only
    if their options are the same objects. None if this version of torch has no such pass.
    """
    try:
        from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
        from torch.utils.checkpoint import CheckpointPolicy
    except ImportError:
        return None

    class RecomputeMasks(CustomGraphPass):
        def __call__(self, graph: torch.fx.Graph) -> None:
            for node in graph.nodes:
                value = node.meta.get("val") if node.op == "call_function" else None
                if isinstance(value, Tensor) and value.dtype == torch.bool:
                    node.meta |= {"recompute": CheckpointPolicy.MUST_RECOMPUTE, "ac_graph_id": 0}

        def uuid(self) -> bytes:
            """Return the key of this pass in torch's cache of compiled code."""
            return get_hash_for_files((__file__,))

    return {"joint_custom_post_pass": RecomputeMasks()}


def bf16_is_faster() -> bool:
    """Return whether products in bf16 pay for their casts on this CPU.

    With AVX-512's bf16 instructions an update of the paper's network takes a third less time (on an AMD EPYC). CPUs
    that also have AMX gained 5 % at most and lost elsewhere, and without such instructions bf16 is many times slower.
    Versions of torch that cannot tell train in float32.
    """
    if not hasattr(torch.cpu, "get_capabilities"):  # new in torch 2.12
        return False
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") and not capabilities.get("amx_bf16"))


def compile_obstacle(device: torch.device) -> str | None:
    """Return why nothing can be compiled for this device; None if nothing is known to be missing."""
    if torch.__version__ < MIN_TORCH:
        return f"torch {torch.__version__} is older than {MIN_TORCH}"
    if device.type != "cuda":
        language, compiler = "C++", os.environ.get("CXX", "g++")
    elif find_spec("triton"):
        language, compiler = "C", os.environ.get("CC", "gcc" if which("gcc") else "clang")
    else:
        return "Triton is not installed"
    return None if which(compiler) else f"there is no {language} compiler ({compiler})"
