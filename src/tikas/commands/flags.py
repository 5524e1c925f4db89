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
OptionalFile = Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")]
OptionalFolder = Annotated[Path | None, arg(metavar="FOLDER", help_behavior_hint="")]
