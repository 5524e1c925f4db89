"""What a GPU does beside an update's own work: begun when what it needs is there, waited for where it counts."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import get_ident

import torch


class Lane:
    """A stream of its own on a GPU; elsewhere everything is done at once, in the order in which it is told.

    Parameters
    ----------
    device
        Where the work is done.
    urgency
        Of the work that could be begun at the same time the more urgent is; ordinary streams have zero.

    Examples
    --------
    >>> lane, told = Lane(torch.device("cpu")), []
    >>> with lane.beside():
    ...     told.append("beside")
    >>> lane.join()
    >>> told
    ['beside']
    """

    def __init__(self, device: torch.device, urgency: int = 0) -> None:
        self._stream = _stream_of(device, urgency, get_ident()) if device.type == "cuda" else None
        self._busy = False

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Have it done when all that the current stream was told before is done, beside what it is told after."""
        if self._stream is None:
            yield
            return
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        self._busy = True
        with torch.cuda.stream(self._stream):
            yield

    def join(self) -> None:
        """Let what the current stream is told from now on wait for all that is under way here.

        Where nothing is, nothing is waited for, which a capture would not allow.
        """
        if self._stream is not None and self._busy:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)
        self._busy = False


@cache
def _stream_of(device: torch.device, urgency: int, thread: int) -> torch.cuda.Stream:  # noqa: ARG001
    """The stream for such work of a thread, whose fleets train one after the other.

    Products keep scratch memory for every stream that they ever ran on, tens of megabytes, so fleets share one.
    """
    return torch.cuda.Stream(device, priority=-urgency)
