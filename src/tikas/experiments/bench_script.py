"""A benchmark as a script: its options, its lines as text, its records."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch

from tikas.experiments.bench import Figure
from tikas.experiments.bench_suite import BENCHMARKS, Plan
from tikas.experiments.records import append, hardware, versions
from tikas.training.devices import suitable_device


def run(benchmark: str, description: str | None, arguments: Sequence[str] | None = None) -> None:
    """Run one benchmark by its name, with the options that stand behind the script's name.

    Examples
    --------
    >>> from contextlib import redirect_stdout
    >>> from io import StringIO
    >>> from unittest.mock import patch
    >>> instant = {"instant": lambda plan: [Figure("instant", "1 seed", 0.5)]}
    >>> with patch.dict(BENCHMARKS, instant), redirect_stdout(StringIO()) as printed:
    ...     run("instant", "A benchmark that takes no time.", ["--device", "cpu", "--quick"])
    >>> print(printed.getvalue().splitlines()[1])  # behind the hardware and the versions
    1 seed                         0.5 ms
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", help="cpu or cuda; by default a GPU if there is one")
    parser.add_argument("--members", type=int, nargs="+", default=[], help="sizes of fleets, where there are any")
    parser.add_argument("--quick", action="store_true", help="small settings and few rounds")
    parser.add_argument("--record", help="a file to add the figures to")
    options = parser.parse_args(arguments)
    device = suitable_device(options.device)
    plan = Plan(device, options.quick, tuple(options.members))
    print(headline(device), flush=True)
    for figure in BENCHMARKS[benchmark](plan):
        report(figure, line_of(figure), device, options.record, quick=plan.quick)


def report(figure: Figure, line: str, device: torch.device, record: str | None, *, quick: bool = False) -> None:
    """Print a figure in these words, and add it to a file of records where one is given.

    Examples
    --------
    >>> report(Figure("instant", "1 seed", 0.5), "no time at all", torch.device("cpu"), record=None)
    no time at all
    """
    print(line, flush=True)
    if record:
        append(record, figure.record(device, quick=quick))


def headline(device: torch.device) -> str:
    """The hardware and the versions, on one line.

    Examples
    --------
    >>> headline(torch.device("cpu"))
    '... threads, tikas ..., torch ..., python 3...'
    """
    return ", ".join([hardware(device), *(f"{name} {version}" for name, version in versions().items())])


def line_of(figure: Figure) -> str:
    """A figure as text.

    Examples
    --------
    >>> line_of(Figure("engine", "engine", 12.5, 2.5, "plain PyTorch", {"program": "compiled"}))
    'engine                        12.5 ms      2.50 × plain PyTorch     compiled'
    """
    ms = "" if figure.ms is None else f"{figure.ms:.4g} ms"
    return f"{figure.what:<24}{ms:>13}      {ratio_of(figure):<25}{figure.said}".rstrip()


def ratio_of(figure: Figure) -> str:
    """How many times as quick as what; nothing where nothing is compared.

    Examples
    --------
    >>> ratio_of(Figure("fleets", "4 seeds", 5.0, 2.5, "1 seed")), ratio_of(Figure("fleets", "1 seed", 12.5))
    ('2.50 × 1 seed', '')
    """
    return "" if figure.ratio is None else f"{figure.ratio:.2f} × {figure.against}"
