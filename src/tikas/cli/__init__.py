"""The command line: `tikas train`, `predict`, `report`, `export`, `tune` and `reproduce`."""

from __future__ import annotations

import os
import re
import shlex
import sys
import warnings
from collections.abc import Sequence
from typing import Annotated

import typer

import tikas
from tikas.cli.export import export
from tikas.cli.options import FAILURE, USAGE, print_error
from tikas.cli.predict import predict
from tikas.cli.report import report
from tikas.cli.reproduce import reproduce
from tikas.cli.train import train
from tikas.cli.tune import tune

LIST_OPTIONS = ("--network", "--noise", "--costs", "--ignore", "--categorical", "--numeric", "--unlabeled", "--id")

# Without rich's markup typer starts in half the time, and its messages are lines that other programs can read.
app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)
for _command in (train, predict, report, export, tune, reproduce):
    app.command()(_command)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"tikas {tikas.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Ladder networks: learn classes or values from a few labels and many unlabeled rows."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit: 0 after success, 1 after a failure, 2 after wrong usage, 130 after Ctrl-C."""
    # Threads that busy-wait slow each other down if another process uses the same cores.
    os.environ.setdefault("GOMP_SPINCOUNT", "30000")
    given = sys.argv[1:] if arguments is None else arguments
    words = _repeat_list_options(given)
    shown: set[str] = set()

    def show_warning(message: Warning | str, *_: object, **__: object) -> None:
        """Print a warning once, even if both networks of `tikas train` cause it, and in one process alone."""
        from tikas.training.environment import is_first_process

        if str(message) not in shown and is_first_process():
            shown.add(str(message))
            print_error(f"warning: {message}")

    with warnings.catch_warnings():
        warnings.showwarning = show_warning
        try:
            typer.main.get_command(app)(words, prog_name="tikas", obj=shlex.join(["tikas", *given]))
        except (ArithmeticError, ImportError, MemoryError, OSError, RuntimeError, ValueError) as error:
            print_error(" ".join([str(error), *getattr(error, "__notes__", [])]))
            usage = isinstance(error, ValueError | FileNotFoundError | IsADirectoryError | NotADirectoryError)
            sys.exit(USAGE if usage else FAILURE)


def _repeat_list_options(words: Sequence[str]) -> list[str]:
    """Turn ``--network 256 128`` into ``--network 256 --network 128``, the form that typer reads."""
    repeated: list[str] = []
    option = ""
    for word in words:
        if re.match(r"-\D", word):  # numbers may be negative
            option = word if word in LIST_OPTIONS else ""
        elif option and repeated[-1] != option:
            repeated.append(option)
        repeated.append(word)
    return repeated
