"""The command line: parses, calls, prints."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from tyro.conf import FlagCreatePairsOff, OmitArgPrefixes, arg, subcommand

import tikas
from tikas.commands.bench import Bench, bench
from tikas.commands.outputs import make_folder_of
from tikas.commands.predict import Predict, predict
from tikas.commands.presets import preset_for
from tikas.commands.reproduce import Reproduce, reproduce
from tikas.training.recipe import Recipe
from tikas.usage import one_line_of

if TYPE_CHECKING:
    from tikas.experiments.run import Run

INTERRUPTED = 130
USAGE = 2
FAILED = 1
COMMANDS = ("train", "predict", "reproduce", "bench")
LADDER, BASELINE = "ladder", "same network, no denoising costs"

Column = Annotated[str | None, arg(metavar="COLUMN", help_behavior_hint="")]
Device = Annotated[str | None, arg(metavar="cpu|cuda", help_behavior_hint="")]
OptionalFile = Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")]
OptionalFolder = Annotated[Path | None, arg(metavar="FOLDER", help_behavior_hint="")]
Flag = Annotated[FlagCreatePairsOff[bool], arg(help_behavior_hint="")]


@dataclass(frozen=True)
class Train:
    """Train a ladder, and the same network without denoising costs to compare it with.

    The end is a table of both test errors, and the path of the saved ladder for `tikas predict`.

    For example,

    tikas train

    tikas train --data mnist --labels 100 --epochs 10

    tikas train --data my.csv --target kind --epochs 100

    tikas train --data mnist --network conv_small --epochs 3

    tikas train --data my-photos --network "conv 32 5 full" "max 2" "conv 64 3" global top
    """

    recipe: OmitArgPrefixes[Recipe] = field(default_factory=Recipe)
    """What is learned, and how. The defaults depend on the data and the network: name them to see their own."""
    seed: int = 0
    """Decides on labels, first weights, order and noise."""
    members: int = 1
    """How many seeds to train together, from that one on."""
    target: Column = None
    """The column with the labels, where the data are a table; rows without a label leave it empty."""
    data_dir: OptionalFolder = None
    """Where the files of a data set are. Without it, where TIKAS_DATA says, or else they are downloaded."""
    output: OptionalFile = None
    """Where the model goes. Without it, into models/, under the name of its recipe."""
    baseline: Annotated[bool, arg(help_behavior_hint="")] = True
    """Whether to train the network without denoising costs too. It is trained unless you say no."""
    device: Device = None
    """Where to train. Without it, on a GPU if there is one."""
    quiet: Flag = False
    """No progress bar."""

    def __post_init__(self) -> None:
        if self.members < 1:
            raise ValueError(f"members={self.members}: expected at least 1.")


Command = Train | Predict | Reproduce | Bench


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 2 for a usage error, 1 for a failure and 130 after Ctrl-C.

    Examples
    --------
    >>> main(["predict", "nowhere.safetensors", "rows.csv"])
    2
    """
    warnings.showwarning = _show_warning
    # Threads that spin while they wait are many times slower where another process wants their core.
    os.environ.setdefault("GOMP_SPINCOUNT", "30000")
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if words == ["--version"]:
            print(f"tikas {tikas.__version__}")
            return 0
        return _carry_out(_parse(words))
    except BrokenPipeError:
        sys.stderr.close()
        return FAILED
    except (ValueError, FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        _complain(error)
        return USAGE
    except (ArithmeticError, ImportError, OSError, RuntimeError) as error:
        _complain(error)
        return FAILED
    except KeyboardInterrupt as stop:
        _complain(str(stop) or "interrupted")
        return INTERRUPTED


def _carry_out(command: Command) -> int:
    if isinstance(command, Train):
        return _train(command)
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
                description="Ladder networks: learn a classifier from a few labels and many unlabelled rows. "
                "(--version tells which tikas this is.)",
                args=arguments,
            )
    except SystemExit as stop:
        if stop.code:
            command_named = [word for word in arguments[:1] if word in COMMANDS]
            _complain(one_line_of(said.getvalue(), " ".join(["tikas", *command_named, "--help"])))
        raise
    except ValueError as error:
        _complain(error)
        raise SystemExit(USAGE) from error
    return command


def _complain(what: object) -> None:
    print(f"tikas: {' '.join(str(what).split())}", file=sys.stderr)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    _complain(f"warning: {message}")


def _train(command: Train) -> int:
    from rich.console import Console

    from tikas.experiments.preparing import rows_for
    from tikas.experiments.run import run
    from tikas.training.devices import suitable_device
    from tikas.training.progress import progress_bar
    from tikas.views.outcome import outcome_table

    recipe = command.recipe
    seeds = range(command.seed, command.seed + command.members)
    device = str(suitable_device(command.device))
    rows = rows_for(recipe, command.data_dir, device, command.target)
    output = command.output or _default_output(command)
    make_folder_of(output)
    compared = command.baseline and any(recipe.costs) and (len(rows.test_y) or recipe.validation)
    variants = {LADDER: recipe, **({BASELINE: recipe.without_denoising()} if compared else {})}
    runs: dict[str, Run] = {}
    interrupted = False
    for name, variant in variants.items():
        try:
            with progress_bar(shown=not command.quiet, title=name) as on_epoch:
                runs[name] = run(variant, seeds, rows, device=device, on_epoch=on_epoch)
        except KeyboardInterrupt:  # before it had anything to show
            if not runs:
                raise
            interrupted = True
            break
        interrupted = runs[name].trained.interrupted
        if name == LADDER:
            saved = _save(runs[name], output)
        if interrupted:
            break
    Console().print(outcome_table(runs, recipe))
    print(f"model saved to {saved}")
    if interrupted:
        _complain(f"interrupted; the figures are of what was trained until then{_members_left(runs)}")
    return INTERRUPTED if interrupted else 0


def _save(outcome: Run, output: Path) -> Path:
    """Save what was trained; what was cut short does not take the place of what was not."""
    if outcome.trained.interrupted:
        output = output.with_stem(f"{output.stem}-interrupted")
    return outcome.classifier.save(output)


def _members_left(runs: Mapping[str, Run]) -> str:
    """How many members the last run is left with, where it lost some."""
    last = list(runs.values())[-1]
    asked, left = len(last.trained.ladders), len(last.classifier.ladders_)
    return f", by {left} of {asked} members" if left < asked else ""


def _default_output(command: Train) -> Path:
    recipe = command.recipe
    seeds = f"seed{command.seed}" + (f"-{command.seed + command.members - 1}" if command.members > 1 else "")
    return Path("models") / f"{Path(recipe.data).stem}-{recipe.labels}-{recipe.name}-{seeds}.safetensors"


if __name__ == "__main__":
    sys.exit(main())
