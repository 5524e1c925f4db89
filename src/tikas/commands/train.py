"""The command `tikas train`: a ladder, the network to compare it with, a table of both and a file to predict with."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

from tyro.conf import OmitArgPrefixes, Suppress, arg

from tikas.commands.flags import (
    FAILED,
    INTERRUPTED,
    Column,
    Columns,
    Device,
    Flag,
    Number,
    Numbers,
    OptionalFile,
    OptionalFolder,
    check_counts,
)
from tikas.commands.outputs import complain, make_folder_of, refuse_to_replace
from tikas.data.kinds import kind_of
from tikas.training.recipe import Recipe
from tikas.training.suitable import costs_that_suit, suitable_epochs, usual_epochs

if TYPE_CHECKING:
    from tikas.experiments.rows import Rows
    from tikas.experiments.run import Estimator, Run
    from tikas.training.fit import Trained

LADDER, BASELINE = "ladder", "same network, no denoising costs"
MOST_HELD_OUT = 50
"""Rows that `--validation` is proposed for."""
MOST_CHARACTERS = 40
"""Of a column in the name of a file; of a longer one, its beginning and a hash."""


@dataclass(frozen=True)
class _Flags(Recipe):
    """A recipe as flags, but for costs and epochs: `Train` asks for these, and knows whether they were left open."""

    costs: Suppress[tuple[float, ...]] = Recipe.costs
    epochs: Suppress[int] = Recipe.epochs


@dataclass(frozen=True)
class Train:
    """Train a ladder, and the same network without denoising costs to compare it with.

    The end is a table of both errors, on test rows or else on known labels that --labels left out, and the path of the
    saved ladder for `tikas predict`.

    For example,

    tikas train

    tikas train --data mnist --labels 100 --epochs 10

    tikas train --data my.csv --target kind

    tikas train --data my.csv --target price --task regression --ignore id name

    tikas train --data mnist --network conv_small --epochs 3

    tikas train --data my-photos --network "conv 32 5 full" "max 2" "conv 64 3" global top
    """

    recipe: Annotated[OmitArgPrefixes[Recipe], arg(constructor=_Flags)] = field(default_factory=Recipe)
    """What is learned, and how. The defaults depend on the data and the network: name them to see their own."""
    costs: Numbers = None
    """Weights of the denoising costs, the input's first; the last one given holds for the rungs above it. One alone is
    the top's (the Γ-model); 0 leaves the supervised network. Without it, 1000 10 0.1; 10 1 0.1 for standardised columns
    of a table or folder; for networks that begin with a convolution or pooling 1, but 4 for conv_large and 1000 10 0.1
    for conv_fc; for a regression 1 0.1."""
    epochs: Number = None
    """Passes over the unlabelled rows. Without it, the data set's own: 150, of digits 100 and of cifar10 70. Those of a
    table or folder are 300, but 100 of pixels and for networks that begin with a convolution or pooling, or more if its
    rows are few, and fewer if they are many."""
    seed: int = 0
    """Decides on labels, first weights, order and noise."""
    members: int = 1
    """How many seeds to train together, from that one on."""
    target: Column = None
    """The column with the labels, where the data are a table; rows without a label leave it empty."""
    ignore: Columns = ()
    """Columns of a table that are not looked at, such as names and numbers of the rows; they may hold anything."""
    data_dir: OptionalFolder = None
    """Where the files of a data set are. Without it, where TIKAS_DATA says, or else they are downloaded."""
    output: OptionalFile = None
    """Where the model goes. Without it, into models/, under the name of its recipe."""
    baseline: Annotated[bool, arg(help_behavior_hint="")] = True
    """Whether to train the network without denoising costs too. It is trained unless you say no."""
    device: Device = None
    """Where to train. Without it, on a GPU if there is one."""
    quiet: Flag = False
    """No progress bar, and no line for it where there is no terminal."""

    def __post_init__(self) -> None:
        check_counts(self, "members")
        asked = {"costs": self.costs, "epochs": self.epochs}
        given = {name: value for name, value in asked.items() if value is not None}
        object.__setattr__(self, "recipe", Recipe(**{**vars(self.recipe), **given}))


def train(command: Train) -> int:
    """Carry the command out; the exit code is 130 after Ctrl-C, and 1 where the baseline diverged.

    Examples
    --------
    >>> import tempfile
    >>> recipe = Recipe(data="digits", labels=50, network=(16,), epochs=1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     train(Train(recipe, output=Path(folder, "mine.safetensors"), baseline=False, quiet=True))
    digits, 50 labels, 16, 1 epochs
    ...
    model saved to ...mine.safetensors
    0
    """
    from rich.console import Console

    from tikas.experiments.preparing import rows_for
    from tikas.experiments.run import hidden_rows, run
    from tikas.training.devices import suitable_device
    from tikas.training.progress import progress_bar
    from tikas.views.outcome import outcome_table

    seeds = range(command.seed, command.seed + command.members)
    device = str(suitable_device(command.device))
    rows = rows_for(command.recipe, command.data_dir, device, command.target, command.ignore)
    recipe = _completed(command, rows)
    output = command.output or default_output(replace(command, recipe=recipe))
    make_folder_of(output)
    refuse_to_replace([Path(recipe.data)], output)
    measured = len(rows.test_y) > 0 or recipe.validation > 0 or len(hidden_rows(recipe, seeds, rows)) > 0
    compared = command.baseline and any(recipe.costs) and measured
    variants = {LADDER: recipe, **({BASELINE: recipe.without_denoising()} if compared else {})}
    runs: dict[str, Run] = {}
    saved: list[Path] = []
    interrupted = failed = False
    for name, variant in variants.items():
        save = partial(_save, output, saved) if name == LADDER else None
        try:
            with progress_bar(shown=not command.quiet, title=name) as on_epoch:
                runs[name] = run(variant, seeds, rows, device=device, on_epoch=on_epoch, on_trained=save)
        except KeyboardInterrupt:  # before it had anything to show
            if not saved:
                raise
            interrupted = True
            break
        except ArithmeticError as error:
            if not runs:
                raise
            complain(f"{name}: {error}")  # the ladder is trained, and has a figure to show
            failed = True
            break
        interrupted = runs[name].trained.stop_asked
        if interrupted:
            break
    if runs:
        Console().print(outcome_table(runs, recipe))
    if not measured:
        print(f"There is nothing to measure it by: {_way_to_measure(rows)}.")
    print(f"model saved to {saved[0]}")
    if interrupted:
        complain(_interruption(runs))
    return INTERRUPTED if interrupted else FAILED if failed else 0


def _completed(command: Train, rows: Rows) -> Recipe:
    """The recipe with what was left open as it suits one's own rows; a data set has what suits it."""
    recipe = command.recipe
    if kind_of(recipe.data) == "data set":
        return recipe
    if command.costs is None:
        recipe = replace(recipe, costs=costs_that_suit(recipe.network, rows.train_x, recipe.task))
    if command.epochs is None:
        trained = len(rows.train_x) - recipe.validation
        recipe = replace(recipe, epochs=suitable_epochs(trained, recipe.batch_size, usual_epochs(rows.train_x)))
    return recipe


def _way_to_measure(rows: Rows) -> str:
    """How many labelled rows to hold out: a third at most, and each class keeps one to train on."""
    known = int((rows.train_y >= 0).sum())
    some = min(MOST_HELD_OUT, known // 3, known - len(rows.classes))
    if some < 1:
        return f"its {known} labels are too few to hold any of them out"
    return f"--validation {some} holds {some} of its {known} labelled rows out for that"


def _save(output: Path, saved: list[Path], estimator: Estimator, trained: Trained) -> None:
    """Save what was trained, and note where; what was cut short does not take the place of what was not."""
    if trained.interrupted:
        output = output.with_stem(f"{output.stem}-interrupted")
    try:
        saved.append(estimator.save(output))
    except KeyboardInterrupt:  # there is little left to do, and everything to lose
        saved.append(estimator.save(output))
        raise


def _interruption(runs: Mapping[str, Run]) -> str:
    """What to say of Ctrl-C that left these runs, with how many members the last one has, where it lost some."""
    if not runs:
        return "interrupted before the ladder was measured, so that it has no figures; it is saved as it was trained"
    last = list(runs.values())[-1]
    asked, left = len(last.trained.ladders), len(last.estimator.ladders_)
    by = f", by {left} of {asked} members" if left < asked else ""
    return f"interrupted; the figures are of what was trained until then{by}"


def default_output(command: Train) -> Path:
    """Where a model goes unless told otherwise: what tells two trainings apart is in the name.

    Examples
    --------
    >>> str(default_output(Train(Recipe(data="my.csv", labels="all"), target="kind")))
    'models/my-kind-all-...-seed0.safetensors'
    >>> str(default_output(Train(Recipe(data="my.csv", labels="all"), target="kind", ignore=("name", "id"))))
    'models/my-kind-without-id-name-all-...-seed0.safetensors'
    """
    recipe = command.recipe
    seeds = f"seed{command.seed}" + (f"-{command.seed + command.members - 1}" if command.members > 1 else "")
    target = f"-{_as_file_name(command.target)}" if command.target and kind_of(recipe.data) == "table" else ""
    without = "-without-" + "-".join(map(_as_file_name, sorted(command.ignore))) if command.ignore else ""
    data = f"{Path(recipe.data).stem}{target}{without}"
    return Path("models") / f"{data}-{recipe.labels}-{recipe.name}-{seeds}.safetensors"


def _as_file_name(column: str) -> str:
    """A column in characters that every file system takes; different columns stay different (but for case)."""
    safe = re.sub(r"[^\w.-]", lambda character: quote(character[0], safe=""), column)
    if len(safe) <= MOST_CHARACTERS:
        return safe
    return f"{safe[:MOST_CHARACTERS]}-{sha256(column.encode()).hexdigest()[:8]}"
