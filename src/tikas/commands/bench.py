"""The command `tikas bench`: a quick version of every benchmark, as a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from tikas.commands.flags import FAILED, Device, Flag, OptionalFile
from tikas.commands.outputs import complain, make_folder_of

if TYPE_CHECKING:
    from tikas.experiments.bench import Figure


@dataclass(frozen=True)
class Bench:
    """Measure how quick training is on this machine, side by side with plain PyTorch.

    For example,

    tikas bench

    tikas bench engine fleets --members 1 4 10

    tikas bench utilisation --full --record results/bench.jsonl
    """

    names: Annotated[Positional[tuple[str, ...]], arg(metavar="NAMES", help_behavior_hint="")] = ()
    """Which: engine (against plain PyTorch), fleets, scaling, utilisation, convolutions. Without a name, all."""
    members: Annotated[tuple[int, ...], arg(metavar="N", help_behavior_hint="")] = ()
    """Sizes of the fleets. Without it, 1, 4, 10 and 40 on a GPU, and 1 and 4 on a CPU."""
    full: Flag = False
    """Larger settings, compiled code for each of them, and more rounds; on a CPU that takes long."""
    record: OptionalFile = None
    """A file of records to add the figures to."""
    device: Device = None
    """Where to measure. Without it, on a GPU if there is one."""


def bench(command: Bench) -> int:
    """Carry the command out; the exit code is 1 where a benchmark could not run.

    Examples
    --------
    >>> bench(Bench(names=("engines",)))
    Traceback (most recent call last):
    ValueError: There is no benchmark engines; there are engine, fleets, scaling, utilisation, convolutions.
    """
    from rich.console import Console

    from tikas.experiments.bench_script import headline
    from tikas.experiments.bench_suite import BENCHMARKS, Plan, RivalMissingError
    from tikas.experiments.records import append
    from tikas.training.devices import suitable_device
    from tikas.views.benchmarks import benchmark_table

    unknown = [name for name in command.names if name not in BENCHMARKS]
    if unknown:
        raise ValueError(f"There is no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}.")
    if command.record:
        make_folder_of(command.record, "--record")
    device = suitable_device(command.device)
    plan = Plan(device, not command.full, command.members)
    figures: list[Figure] = []
    failed = False
    try:
        for name in command.names or BENCHMARKS:
            try:
                with Console(stderr=True).status(f"measuring: {name}"):
                    for figure in BENCHMARKS[name](plan):
                        figures.append(figure)
                        if command.record:
                            append(command.record, figure.record(device, quick=plan.quick))
            except RivalMissingError as error:
                failed = True
                complain(f"{name}: {error}")
    finally:  # after Ctrl-C or an error too: what was measured took minutes
        if figures:
            Console().print(benchmark_table(figures, headline(device)))
    return FAILED if failed else 0
