"""What is drawn from torch's global generators, by modules: decided by a seed, and without a trace."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

import torch

from tikas.data.streams import generator

_GENERATORS = RLock()


@contextmanager
def own_randomness(seed: int | None = None) -> Iterator[None]:
    """Leave torch's global generators afterwards as they were before, whoever seeds them inside.

    They are all threads' own: of those that come in here one draws at a time, and the others wait. So a thread may not
    wait in here for another that comes in.

    Parameters
    ----------
    seed
        What is drawn inside follows from it; without one, from where the generators are.

    Examples
    --------
    >>> before = torch.get_rng_state()
    >>> draws = []
    >>> for _ in range(2):
    ...     with own_randomness(seed=5):
    ...         draws.append(torch.rand(1).item())
    >>> draws[0] == draws[1], torch.equal(torch.get_rng_state(), before)
    (True, True)
    """
    with _GENERATORS, torch.random.fork_rng(devices=_gpus()):
        if seed is not None:
            _seed(seed)
        yield


def seed_draws(seed: int, epoch: int) -> None:
    """Let a module draw in an epoch of its member, in dropout say, what follows from the two alone.

    For use within `own_randomness`.

    Examples
    --------
    >>> draws = []
    >>> with own_randomness():
    ...     for seed, epoch in ((0, 1), (0, 2), (1, 1), (0, 1)):
    ...         seed_draws(seed, epoch)
    ...         draws.append(torch.rand(1).item())
    >>> draws[0] == draws[3], len(set(draws))
    (True, 3)
    """
    _seed(generator(seed, f"module, epoch {epoch}").initial_seed())


def _seed(number: int) -> None:
    """Of GPUs that are not in use the generators are left alone: to seed them, and to read them, is to use them."""
    torch.default_generator.manual_seed(number)
    if _gpus():
        torch.cuda.manual_seed_all(number)


def _gpus() -> range:
    return range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0)
