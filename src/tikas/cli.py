"""The command line: parses, calls, prints."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Annotated, Any

import tyro
from tyro.conf import subcommand

import tikas
from tikas.commands.bench import Bench, bench
from tikas.commands.flags import FAILED, INTERRUPTED, USAGE
from tikas.commands.outputs import complain
from tikas.commands.predict import Predict, predict
from tikas.commands.presets import preset_for
from tikas.commands.reproduce import Reproduce, reproduce
from tikas.commands.train import Train, train
from tikas.usage import one_line_of

COMMANDS = ("train", "predict", "reproduce", "bench")
Command = Train | Predict | Reproduce | Bench


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 2 for a usage error, 1 for a failure and 130 after Ctrl-C.

    Examples
    --------
    >>> main(["predict", "nowhere.safetensors", "rows.csv"])
    2
    """
    # Threads that spin while they wait are many times slower where another process wants their core.
    os.environ.setdefault("GOMP_SPINCOUNT", "30000")
    words = list(sys.argv[1:] if arguments is None else arguments)
    shown: set[str] = set()

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        """Once: every fleet and every network of a command may have the same to say."""
        if str(message) not in shown:
            shown.add(str(message))
            complain(f"warning: {message}")

    with warnings.catch_warnings():
        warnings.showwarning = show
        return _run(words)


def _run(words: list[str]) -> int:
    try:
        if words == ["--version"]:
            print(f"tikas {tikas.__version__}")
            return 0
        return _carry_out(_parse(words))
    except BrokenPipeError:
        sys.stderr.close()
        return FAILED
    except (ValueError, FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        complain(error)
        return USAGE
    except (ArithmeticError, ImportError, OSError, RuntimeError) as error:
        complain(error)
        return FAILED
    except KeyboardInterrupt as stop:
        complain(str(stop) or "interrupted")
        return INTERRUPTED


def _carry_out(command: Command) -> int:
    if isinstance(command, Train):
        return train(command)
    if isinstance(command, Bench):
        return bench(command)
    return predict(command) if isinstance(command, Predict) else reproduce(command)


def _parse(arguments: list[str]) -> Command:
    """The command that the arguments describe; defaults of the recipe follow from its data and its network."""
    commands = (
        Annotated[Train, subcommand("train", default=Train(preset_for(arguments)))]
        | Annotated[Predict, subcommand("predict")]
        | Annotated[Reproduce, subcommand("reproduce")]
        | Annotated[Bench, subcommand("bench")]
    )
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            command: Command = tyro.cli(
                commands,
                prog="tikas",
                description="Ladder networks: learn classes or values from a few labels and many unlabelled rows. "
                "(--version tells which tikas this is.)",
                args=arguments,
            )
    except SystemExit as stop:
        if stop.code:
            command_named = [word for word in arguments[:1] if word in COMMANDS]
            complain(one_line_of(said.getvalue(), " ".join(["tikas", *command_named, "--help"])))
        raise
    except ValueError as error:
        complain(error)
        raise SystemExit(USAGE) from error
    return command


if __name__ == "__main__":
    sys.exit(main())
