"""`tikas reproduce`: measure the paper's experiments, list them, or render tables and figures from the records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tikas.cli.options import FAILURE, INTERRUPTED, DataDir, Device, Quiet, Report, check_output, print_error

if TYPE_CHECKING:
    from tikas.paper.experiments import Experiment
    from tikas.paper.records import Records
    from tikas.paper.reproduce import Outcome


def reproduce(
    context: typer.Context,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAMES", help="table1, table1/full, table1/full/100, text, appendix, curve, ...; or all."
        ),
    ] = None,
    list_only: Annotated[
        bool, typer.Option("--list", help="Show these experiments, or all, and how much of each is measured.")
    ] = False,
    render: Annotated[
        bool, typer.Option("--render", help="Fill the tables of README.md in --results, and draw the figures.")
    ] = False,
    seeds: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Seeds of each experiment. Default: as many as the paper.")
    ] = None,
    first_seed: Annotated[int, typer.Option(metavar="N", min=0, help="The first of these seeds.")] = 0,
    epochs: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Another number of epochs, for a trial: records go to smoke.jsonl."),
    ] = None,
    max_members: Annotated[int, typer.Option(metavar="N", min=1, help="Most members in an ensemble.")] = 40,
    results: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Folder with records: all its .jsonl files are read.")
    ] = Path("results"),
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="File for new records. Default: paper.jsonl in --results."),
    ] = None,
    report: Report = None,
    data_dir: DataDir = None,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Train what the paper's tables still lack.

    Every seed that has no record in --results is trained; its record is written when its ensemble is finished. After an
    interruption, the same command resumes from the last snapshot. Processes of torchrun share the seeds.

    \b
    tikas reproduce --list
    tikas reproduce table1/full/100
    tikas reproduce all --seeds 2 --epochs 3
    tikas reproduce --render
    tikas reproduce table1 --report table1.html
    """
    if not (names or list_only or render):
        raise typer.BadParameter("Name an experiment, or all; --list shows all names.", param_hint="NAMES")
    from tikas.paper.experiments import EXPERIMENTS, select
    from tikas.paper.records import Records

    experiments = list(EXPERIMENTS) if "all" in (names or ["all"]) else select(EXPERIMENTS, names or [])
    if epochs is not None:
        experiments = [replace(each, recipe=replace(each.recipe, epochs=epochs)) for each in experiments]
    output = output or results / ("paper.jsonl" if epochs is None else "smoke.jsonl")
    records = Records.read(results, output)
    if report is not None:
        check_output(report, inputs=[output], option="--report")
    exit_code = 0
    if list_only:
        for experiment in experiments:
            print(_line(experiment, records, seeds))
    elif names:
        from tikas.paper.reproduce import reproduce as measure
        from tikas.training.distributed import join
        from tikas.training.environment import pick_device

        check_output(output)
        limits: dict[str, Any] = {"seeds": seeds, "first_seed": first_seed, "max_members": max_members}
        with join(pick_device(device)) as world:  # a device that is missing would stop each experiment by itself
            outcome = measure(experiments, records, output, **limits, data_dir=data_dir, device=device, quiet=quiet)
        if not world.is_first:
            raise typer.Exit(INTERRUPTED if outcome.interrupted else 0)
        exit_code = _report(outcome, output)
    if report is not None:
        from tikas.paper.report import reproduction_page
        from tikas.report.page import write

        print(f"report written to {write(report, reproduction_page(experiments, records, str(context.obj)))}")
    if render:
        from tikas.paper.render import render as render_tables

        for path in render_tables(records, results):
            print(path)
    raise typer.Exit(exit_code)


def _line(experiment: Experiment, records: Records, seeds: int | None) -> str:
    """Return the line of an experiment: name, number of measured seeds, measured and published error."""
    measurement = records.measurement(experiment.key)
    wanted = experiment.seeds if seeds is None else seeds
    done = 0 if measurement is None else len(measurement.errors)
    measured = "missing" if measurement is None else f"measured {measurement.summary.text()}"
    published = f"paper {experiment.published.text()}" if experiment.published else ""
    return f"{experiment.name:<44}{done:>4} of {max(done, wanted):<4}{measured:<26}{published}".rstrip()


def _report(outcome: Outcome, output: Path) -> int:
    """Print what was measured and what failed, and return the exit code."""
    counts = f"{outcome.measured} members measured, {outcome.finished_before} measured before"
    print(f"{counts}, {len(outcome.failures)} failures; records in {output}")
    names_by_reason: dict[str, list[str]] = {}  # one reason, such as missing data, may stop many experiments
    for name, reason in outcome.failures.items():
        names_by_reason.setdefault(reason, []).append(name)
    for reason, names in names_by_reason.items():
        print_error(f"{', '.join(names)}: {reason}")
    if outcome.interrupted:
        print_error("interrupted; the same command continues from the last snapshot, at most about a minute ago.")
        return INTERRUPTED
    return FAILURE if outcome.failures else 0
