"""Options that several commands share, exit codes, and checks of output paths."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated

import typer

FAILURE, USAGE, INTERRUPTED = 1, 2, 130

DataDir = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="Folder with the files of a data set. Default: TIKAS_DATA, or a download."),
]
Device = Annotated[str | None, typer.Option(metavar="cpu|cuda", help="Default: a GPU if there is one.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bar.")]
Report = Annotated[
    Path | None, typer.Option(metavar="FILE", help="HTML page to write, with tables and pictures of the result.")
]


def print_error(message: object) -> None:
    """Print one line to standard error."""
    print("tikas:", " ".join(str(message).split()), file=sys.stderr)


def check_output(output: Path, inputs: Iterable[Path] = (), option: str = "--output") -> None:
    """Check that `output` can be written and is none of `inputs`; create its folder."""
    if output.is_dir():
        raise IsADirectoryError(f"{option} {output} is a folder. Give the path of a file in it.")
    if output.exists() and any(path.exists() and path.samefile(output) for path in inputs):
        raise ValueError(f"{option} {output} is an input file and would be overwritten. Give another path.")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=output.parent):
            pass
    except OSError as error:
        raise RuntimeError(f"{option} {output}: cannot write to its folder ({error.strerror}).") from error


def check_table_options(data: object, **options: object) -> None:
    """Raise an error if an option for the columns of a table was given with other data."""
    for name, value in options.items():
        if value:
            raise typer.BadParameter(f"It applies only to tables, and {data} is not one.", param_hint=f"--{name}")
