"""The command `tikas reproduce`: measure what is missing of the paper, list it, or render the page of results."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from tikas.commands.flags import FAILED, INTERRUPTED, Device, Flag, Number, OptionalFile, OptionalFolder, check_counts
from tikas.commands.outputs import complain, make_folder_of

if TYPE_CHECKING:
    from tikas.experiments.ledger import Ledger
    from tikas.experiments.reproduce import Outcome
    from tikas.experiments.rows import Rows
    from tikas.experiments.tasks import Task


@dataclass(frozen=True)
class Reproduce:
    """Measure what is missing of the paper's tables; members that have a record are not run again.

    For example,

    tikas reproduce --list

    tikas reproduce table1/full/100

    tikas reproduce all --seeds 2 --epochs 3

    tikas reproduce --render
    """

    names: Annotated[Positional[tuple[str, ...]], arg(metavar="NAMES", help_behavior_hint="")] = ()
    """Cells, rows or tables: table1, table1/full, table1/full/100, curve, rivals/100, study/gamma/100; all stands for
    the whole paper and the curve, without rivals and studies."""
    list: Flag = False
    """Show these names, or every one, with how much of each is measured; nothing is measured then."""
    render: Flag = False
    """Make README.md and its pictures from the records; after measuring, if names are given too."""
    seeds: Number = None
    """How many seeds of each. Without it, as many as each asks for."""
    epochs: Number = None
    """Another number of epochs, to see that everything runs; their records go to smoke.jsonl, apart."""
    most: int = 40
    """The largest fleet: more missing members than that train one fleet after another."""
    results: Annotated[Path, arg(metavar="FOLDER")] = Path("results")
    """The folder with the records; all its .jsonl files count."""
    out: OptionalFile = None
    """Where new records go. Without it, into paper.jsonl of that folder."""
    data_dir: OptionalFolder = None
    """Where the files of a data set are. Without it, where TIKAS_DATA says, or else they are downloaded."""
    device: Device = None
    """Where to train. Without it, on a GPU if there is one."""
    quiet: Flag = False
    """No progress bar, and no line for it where there is no terminal."""

    def __post_init__(self) -> None:
        if not (self.names or self.list or self.render):
            raise ValueError("Say what to reproduce, such as table1/full/100 or all; --list shows every name.")
        check_counts(self, "seeds", "epochs", "most")

    @property
    def records(self) -> Path:
        """The file that new records go to.

        Examples
        --------
        >>> str(Reproduce(names=("table1",)).records), str(Reproduce(names=("table1",), epochs=3).records)
        ('results/paper.jsonl', 'results/smoke.jsonl')
        """
        return self.out or self.results / ("paper.jsonl" if self.epochs is None else "smoke.jsonl")


def reproduce(command: Reproduce) -> int:
    """Carry the command out; the exit code is 1 where a cell failed and 130 after Ctrl-C.

    Examples
    --------
    >>> reproduce(Reproduce(list=True, results=Path("nothing-measured")))
    table1/baseline/100   0 of 10  missing   paper ...
    0
    """
    from tikas.experiments.ledger import Ledger

    tasks = _tasks(command)
    page = command.results / "README.md"
    if command.render:
        _refuse_another_page(page)
    ledger = Ledger.read(command.results, command.records)
    code = 0
    if command.list:
        print("\n".join(_listing(tasks, ledger, command.seeds)))
    elif tasks:
        make_folder_of(command.records, "--out")
        code = _measure(command, tasks, ledger)
    if command.render:
        _render(page, ledger)
    return code


def _tasks(command: Reproduce) -> list[Task]:
    from tikas.experiments.cells import select
    from tikas.experiments.tasks import CELLS, TASKS, shortened

    named = select(TASKS, [name for name in command.names if name != "all"])
    chosen = [task for task in TASKS if task in named or ("all" in command.names and task in CELLS)]
    if command.list and not command.names:
        chosen = [*TASKS]
    return [shortened(task, command.epochs) for task in chosen]


def _measure(command: Reproduce, tasks: list[Task], ledger: Ledger) -> int:
    from tikas.experiments.reproduce import reproduce as measure
    from tikas.training.devices import suitable_device
    from tikas.training.progress import progress_bar

    suitable_device(command.device)  # or every task would fail by itself
    outcome = measure(
        tasks,
        ledger,
        command.records,
        load=lambda task: _rows(task, command),
        seeds=command.seeds,
        most=command.most,
        device=command.device,
        watch=lambda title: progress_bar(shown=not command.quiet, title=title),
        tell=partial(print, flush=True),
    )
    print(_in_words(outcome, command.records))
    for message, names in _names_by_message(outcome.failures).items():
        complain(f"{', '.join(names)}: {message}")
    if outcome.interrupted:
        complain(
            "interrupted; the same command goes on with what has no record yet, from where it was last kept "
            "(once a minute)"
        )
        return INTERRUPTED
    return FAILED if outcome.failures else 0


def _names_by_message(failures: Iterable[tuple[str, Exception]]) -> dict[str, list[str]]:
    """One cause, such as data that is not there, may fail all of them, and is told once."""
    names: dict[str, list[str]] = {}
    for name, error in failures:
        names.setdefault(str(error), []).append(name)
    return names


def _rows(task: Task, command: Reproduce) -> Rows:
    from tikas.experiments.preparing import rows_for
    from tikas.experiments.rivals import Rival
    from tikas.training.recipe import Recipe

    recipe = Recipe(data=task.data) if isinstance(task, Rival) else task.recipe
    return rows_for(recipe, command.data_dir, command.device)


def _in_words(outcome: Outcome, out: Path) -> str:
    before = f", {outcome.finished_before} there already" if outcome.finished_before else ""
    failed = f"; {len(outcome.failures)} failed" if outcome.failures else ""
    where = f" in {out}" if outcome.measured else ""
    plural = "" if outcome.measured == 1 else "s"
    return f"{outcome.measured} member{plural} measured{where}{before}{failed}"


def _listing(tasks: Iterable[Task], ledger: Ledger, seeds: int | None) -> list[str]:
    """A line for every task: its name, how many seeds are there of those that are wanted, and the published figure.

    More may be there than are wanted: cells that share a recipe share its members.
    """
    from tikas.experiments.cells import Cell
    from tikas.experiments.readings import in_words, reading

    lines, tasks = [], list(tasks)
    width = max([44, *(len(task.name) + 2 for task in tasks)])
    for task in tasks:
        found = reading(task, ledger)
        done, wanted = 0 if found is None else len(found.errors), task.seeds if seeds is None else seeds
        published = f"paper {in_words(task.published)}" if isinstance(task, Cell) and task.published else ""
        measured = "missing" if found is None else f"measured {in_words(found.summary)}"
        lines.append(f"{task.name:<{width}}{done:>4} of {max(done, wanted):<4}{measured:<26}{published}".rstrip())
    return lines


def _refuse_another_page(page: Path) -> None:
    """Find out before the work that a page which is not of results would be lost."""
    from tikas.views.results import TITLE

    if page.is_file() and not page.read_bytes().startswith(TITLE.encode()):
        raise ValueError(f"{page} is not a page of results, and would be lost. Give the folder with the records.")


def _render(page: Path, ledger: Ledger) -> None:
    from tikas.training.checkpoint import replace_file
    from tikas.views.plots import PlotsMissingError, draw
    from tikas.views.results import pictures, results_page

    folder = page.parent
    if not folder.is_dir():
        raise NotADirectoryError(f"--results {folder} is no folder. Give the one with the records.")
    replace_file(page, results_page(ledger).encode())
    print(page)
    try:
        for path in draw(pictures(ledger), ledger, folder):
            print(path)
    except PlotsMissingError as error:
        complain(error)
