"""What is drawn from torch's global generators, by modules: decided by a seed, and without a trace."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

import torch

from tikas.data.streams import generator

_GENERATORS = RLock()


@contextmanager
def own_randomness() -> Iterator[None]:
    """Leave torch's global generators afterwards as they were before, whoever seeds them inside.

    They are all threads' own: what would draw from them at the same time waits.

    Examples
    --------
    >>> before = torch.get_rng_state()
    >>> with own_randomness():
    ...     dropped = torch.nn.functional.dropout(torch.ones(5))
    >>> torch.equal(torch.get_rng_state(), before)
    True
    """
    with _GENERATORS, torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        yield


def seed_draws(seed: int, epoch: int) -> None:
    """Let a module draw in an epoch of its member, in dropout say, what follows from the two alone.

    For use within `own_randomness`.

    Examples
    --------
    >>> draws = []
    >>> with own_randomness():
    ...     for epoch in (1, 2, 1):
    ...         seed_draws(seed=0, epoch=epoch)
    ...         draws.append(torch.rand(1).item())
    >>> draws[0] == draws[2], draws[0] == draws[1]
    (True, False)
    """
    torch.manual_seed(generator(seed, f"module, epoch {epoch}").initial_seed())
