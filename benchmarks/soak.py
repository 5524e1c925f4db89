"""Kill trainings at random moments, continue them until they are done, and compare with one that was not killed.

    python benchmarks/soak.py --record results/soak.jsonl

Three tasks: a fit in Python, `tikas train` and `tikas reproduce`. Epochs have two updates, and a snapshot is written
after each. SIGKILL comes after a random part of the time that the task takes, every second time not before a file is
being written; the same call then continues, and may be killed again. A kill is survived if in the end every weight, the
history (without its seconds), every prediction, every record and every printed error equal those of the task without
kills, and no snapshot is left. Two more tasks are "streamed fit", on rows in a file, and "compiled fit", which takes a
C++ compiler and some minutes more.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from common import load_flat, new_parser, print_machine, provenance, write_record

NETWORK, BATCH_SIZE = (200, 100), 600
IMPORTED = ["tikas.cli", "tikas.paper.reproduce", "tikas.io", "pandas", "rich.table", "sklearn.datasets"]
IMPORTED += ["torch._dynamo"]  # which torch.optim imports when it is first used
"""Modules that the processes of the tasks share, so that starting one takes no time."""


def fit(epochs: int) -> None:
    """Train an ensemble with validation rows, and write the model and its predictions."""
    from tikas import LadderClassifier
    from tikas.data.splits import split

    rows = load_flat("digits")[0]
    splits = [split(rows.targets, 50, validation=100, seed=seed) for seed in range(2)]
    classifier = LadderClassifier(
        NETWORK,
        epochs=epochs,
        batch_size=BATCH_SIZE,
        n_members=2,
        checkpoint="fit.unfinished",
        checkpoint_every=0,
        random_state=0,
        device="cpu",
    )
    classifier.fit(rows.rows, rows.targets, splits=splits)
    np.save("predictions.npy", classifier.predict_proba(rows.rows))
    classifier.save("model.safetensors")


def compiled_fit(epochs: int) -> None:
    """Do the same with compiled updates."""
    from tikas.training import engines

    engines.COMPILE_FROM = 0.0
    fit(epochs)


def streamed_fit(epochs: int) -> None:
    """Do the same with rows that are read from a file, of which a window has one update."""
    from tikas import LadderClassifier
    from tikas.data import batches
    from tikas.data.sources import ArrayRows
    from tikas.data.splits import split

    rows = load_flat("digits")[0]
    if not Path("rows.npy").exists():
        np.save("new.npy", rows.rows)
        Path("new.npy").rename("rows.npy")
    source = ArrayRows(np.load("rows.npy", mmap_mode="r"))
    source.block_edges = np.append(np.arange(0, len(source), 20), len(source))
    batches.WINDOW_BYTES = 0
    classifier = LadderClassifier(
        NETWORK,
        preprocess="standardize",
        epochs=epochs,
        batch_size=BATCH_SIZE,
        n_members=2,
        checkpoint="fit.unfinished",
        checkpoint_every=0,
        random_state=0,
        device="cpu",
    )
    splits = [split(rows.targets, 50, validation=97, seed=seed) for seed in range(2)]
    classifier.fit(source, rows.targets, splits=splits)
    np.save("predictions.npy", classifier.predict_proba(source))
    classifier.save("model.safetensors")


def train(epochs: int) -> None:
    """Train a ladder and its baseline on the command line."""
    from tikas.cli import main

    options = f"--epochs {epochs} --batch-size {BATCH_SIZE} --checkpoint-every 0 --device cpu --quiet"
    main(["train", "--network", *map(str, NETWORK), *options.split()])


def reproduce(epochs: int) -> None:
    """Measure four members of an experiment in two ensembles."""
    from tikas.cli import main
    from tikas.paper import experiments
    from tikas.paper import reproduce as runner
    from tikas.training.recipe import Recipe

    recipe = Recipe(network=NETWORK, costs=(10.0, 1.0, 0.1, 0.1), batch_size=BATCH_SIZE, epochs=epochs)
    experiments.EXPERIMENTS = (experiments.Experiment("table0/soak/50", 50, recipe, data="digits", seeds=4),)
    runner.Checkpointer = partial(runner.Checkpointer, seconds=0)
    with redirect_stdout(None):  # it prints the errors of those ensembles that it has measured itself
        main(["reproduce", "all", "--max-members", "2", "--device", "cpu", "--quiet"])


class Task(NamedTuple):
    """What is killed, and for how many epochs it trains."""

    run: Callable[[int], None]
    epochs: int


TASKS = {
    "fit in Python": Task(fit, 24),
    "tikas train": Task(train, 24),
    "tikas reproduce": Task(reproduce, 12),
    "compiled fit": Task(compiled_fit, 200),
    "streamed fit": Task(streamed_fit, 24),
}


def run_in(folder: Path, task: Task) -> None:
    """Run a task in this folder, as a process of its own, which prints to the file ``printed``."""
    folder.mkdir(exist_ok=True)
    os.chdir(folder)
    printed = os.open("printed", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(printed, 1)
    task.run(task.epochs)


class Run(NamedTuple):
    """How a process ended: its exit code, negative for a signal, its seconds, and whether it was writing a file."""

    exit_code: int
    seconds: float
    while_writing: bool


def start(folder: Path, task: Task, kill_after: float | None = None, *, while_writing: bool = False) -> Run:
    """Run a task in a new process, and send it SIGKILL after some seconds, or when it writes a file after them."""
    started, before = time.perf_counter(), partial_files(folder)
    process = get_context("forkserver").Process(target=run_in, args=(folder, task))
    process.start()
    process.join(kill_after)
    while while_writing and process.is_alive() and partial_files(folder) <= before:
        time.sleep(0.0005)
    process.kill()
    process.join()
    return Run(process.exitcode, time.perf_counter() - started, not partial_files(folder) <= before)


def partial_files(folder: Path) -> set[Path]:
    """Return the files that are being written, and those that a killed process was writing."""
    return {Path(root, name) for root, _, names in os.walk(folder) for name in names if name.endswith(".partial")}


def result_of(folder: Path) -> dict[str, Any]:
    """Return everything that a task has left in its folder and that repeats: no seconds."""
    from tikas.paper.records import read_records
    from tikas.training.checkpoint import read_tensors

    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if name.startswith(".model.safetensors."):  # what `save` was writing, which nobody but its caller may delete
            continue
        found[name] = None
        if path.suffix == ".safetensors":
            tensors, header = read_tensors(path)
            for line in header["history"]:
                del line["seconds"]
            if "training" in header:  # a model, not a snapshot
                del header["training"]["seconds"]
            found[name] = {key: tensor.numpy().tobytes() for key, tensor in tensors.items()}, header
        elif path.suffix == ".npy":
            found[name] = path.read_bytes()
        elif path.suffix == ".jsonl":
            fields = ("experiment", "seed", "costs", "test_error", "test_error_labeled_statistics", "recipe")
            found[name] = [[record[field] for field in fields] for record in read_records(path)]
        elif name == "printed":  # errors, without the seconds in the last column of a table
            found[name] = re.findall(r"[\d.]+ %", path.read_text())
    return found


def soak(task: Task, kills: int, random: np.random.Generator) -> dict[str, Any]:
    """Kill a task so many times, and return what happened."""
    started = time.perf_counter()
    counts = {"kills": 0, "survived": 0, "while_writing": 0, "finished": 0}
    with TemporaryDirectory() as temporary:
        expected = Path(temporary, "0")
        seconds = min(start(each, task).seconds for each in (expected, Path(temporary, "again")))
        if result_of(Path(temporary, "again")) != result_of(expected):
            raise SystemExit(f"soak.py: two runs of {task.run.__name__} without kills differ")
        while counts["kills"] < kills:
            folder, killed = Path(temporary, str(1 + counts["finished"])), 0
            while True:
                number = counts["kills"] + killed
                kill_after = random.uniform(0, seconds) if number < kills else None
                run = start(folder, task, kill_after, while_writing=number < kills and number % 2 == 1)
                if run.exit_code == 0:
                    break
                if run.exit_code != -9:
                    raise SystemExit(f"soak.py: exit code {run.exit_code} of {task.run.__name__}; see above")
                killed += 1
                counts["while_writing"] += run.while_writing
            counts["kills"] += killed
            result, wanted = result_of(folder), result_of(expected)
            if result == wanted:
                counts["survived"] += killed
            else:
                different = [name for name in sorted({*result, *wanted}) if result.get(name, 0) != wanted.get(name, 0)]
                print(f"after {killed} kills, these files differ: {', '.join(different)}", flush=True)
            counts["finished"] += 1
    return {**counts, "seconds_without_kills": seconds, "seconds": time.perf_counter() - started}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--kills", type=int, default=20, help="kills of each task (default: 20)")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS)[:3], help="by default the first three")
    parser.add_argument("--seed", type=int, help="determines when processes are killed; by default random")
    parser.add_argument("--quick", action="store_true", help="a third of the epochs, to try this script out")
    options = parser.parse_args(arguments)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # idle threads would take the time of other processes
    context = get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    server = context.Process(target=print_machine, args=("cpu",))  # the first process waits for the imports
    server.start()
    server.join()
    print(f"{'task':<18}{'kills':>7}{'survived':>10}{'while writing':>15}{'compared runs':>15}{'seconds':>9}")
    random, lost = np.random.default_rng(options.seed), 0
    for name in options.tasks:
        task = TASKS[name]
        if options.quick:
            task = task._replace(epochs=task.epochs // 3)
        counts = soak(task, options.kills, random)
        figures = [counts[key] for key in ("kills", "survived", "while_writing", "finished")]
        line = f"{name:<18}{figures[0]:>7}{figures[1]:>10}{figures[2]:>15}{figures[3]:>15}{counts['seconds']:>9.0f}"
        print(line, flush=True)
        record = {"benchmark": "soak", "what": name, **counts, "quick": options.quick}
        write_record(options.record, record | provenance("cpu"))
        lost += counts["kills"] - counts["survived"]
    raise SystemExit(f"soak.py: {lost} kills were not survived" if lost else 0)


if __name__ == "__main__":
    main()
