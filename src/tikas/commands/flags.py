"""What the flags of several commands have in common, and the exit codes of all."""

from pathlib import Path
from typing import Annotated

from tyro.conf import FlagCreatePairsOff, arg

USAGE = 2
FAILED = 1
INTERRUPTED = 130

Flag = Annotated[FlagCreatePairsOff[bool], arg(help_behavior_hint="")]
Column = Annotated[str | None, arg(metavar="COLUMN", help_behavior_hint="")]
Columns = Annotated[tuple[str, ...], arg(metavar="COLUMN…", help_behavior_hint="")]
Device = Annotated[str | None, arg(metavar="cpu|cuda", help_behavior_hint="")]
Number = Annotated[int | None, arg(metavar="N", help_behavior_hint="")]
Numbers = Annotated[tuple[float, ...] | None, arg(metavar="X…", help_behavior_hint="")]
OptionalFile = Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")]
OptionalFolder = Annotated[Path | None, arg(metavar="FOLDER", help_behavior_hint="")]


def check_counts(command: object, *names: str) -> None:
    """Refuse counts among the fields of a command that are below one; those that are left open (None) pass.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> check_counts(SimpleNamespace(members=0, epochs=None), "members", "epochs")
    Traceback (most recent call last):
    ValueError: members=0: expected at least 1.
    """
    for name in names:
        value = getattr(command, name)
        if value is not None and value < 1:
            raise ValueError(f"{name}={value}: expected at least 1.")
