"""Where the output of a command goes: complaints, and what it makes."""

import sys
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryFile

from tikas.commands.wording import in_flags


def complain(what: object) -> None:
    """Say what is wrong, in one line on standard error and in the words of the command line.

    Examples
    --------
    >>> import contextlib
    >>> with contextlib.redirect_stderr(sys.stdout):
    ...     complain(ValueError("members=0:\\n  expected at least 1."))
    tikas: --members 0: expected at least 1.
    """
    print(f"tikas: {in_flags(' '.join(str(what).split()))}", file=sys.stderr)


def make_folder_of(output: Path, flag: str = "--output") -> None:
    """Find out before the work, not after it, that what comes out has a place to go to.

    Raises
    ------
    IsADirectoryError
        Where the path is that of a folder.
    RuntimeError
        Where its folder cannot be made or written to, or something that is no file is in its place.

    Examples
    --------
    >>> make_folder_of(Path("/"))
    Traceback (most recent call last):
    IsADirectoryError: --output / is a folder: give the path of a file in it.
    """
    if output.is_dir():
        raise IsADirectoryError(f"{flag} {output} is a folder: give the path of a file in it.")
    if output.exists() and not output.is_file():
        raise RuntimeError(f"{flag} {output} is not a regular file. Give the path of one, or of a new one.")
    wrong = "made"
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        wrong = "written to"
        with TemporaryFile(dir=output.parent):
            pass
    except OSError as error:
        raise RuntimeError(
            f"{flag} {output}: its folder cannot be {wrong} ({error.strerror}). Give a path that can be written to."
        ) from error


def refuse_to_replace(inputs: Iterable[Path], output: Path) -> None:
    """Find out before the work that what comes out would take the place of what is read.

    Raises
    ------
    ValueError
        Where the output is one of the inputs, by whatever path.

    Examples
    --------
    >>> refuse_to_replace([Path(__file__)], Path(__file__))
    Traceback (most recent call last):
    ValueError: --output ...outputs.py is a file that is read here, and would be lost. Give another path.
    """
    if any(path.exists() and output.exists() and path.samefile(output) for path in inputs):
        raise ValueError(f"--output {output} is a file that is read here, and would be lost. Give another path.")
