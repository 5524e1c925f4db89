"""The HTML page of `tikas reproduce --report`: measured errors beside the paper's, and where they were measured."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

from tikas.paper.experiments import Experiment
from tikas.paper.figures import Errors, draw_errors
from tikas.paper.records import Records
from tikas.paper.render import compare, error_cells, errors_of
from tikas.report.page import Facts, Page, Pictures, Section, Table, Text, draw_figure

VERDICTS = {
    "better": "significantly better",
    "compatible": "compatible with the paper",
    "worse": "significantly worse",
    "untested": "not tested: single runs",
}


def reproduction_page(experiments: Sequence[Experiment], records: Records, command: str) -> Page:
    """Return the page on some experiments.

    Parameters
    ----------
    experiments : sequence of Experiment
        What to show, sorted by name.
    records : Records
        The measured errors.
    command : str
        The command that wrote the page.

    Examples
    --------
    >>> from tikas.paper.experiments import EXPERIMENTS
    >>> page = reproduction_page(EXPERIMENTS[:3], Records(), "tikas reproduce table1/full --report page.html")
    >>> page.verdict[0]
    'None of the 3 experiments is measured.'
    """
    comparisons = {each.name: compare(each, records) for each in experiments}
    measured = [name for name, comparison in comparisons.items() if comparison.measurement is not None]
    sections = []
    for table, group in groupby(experiments, key=lambda each: each.name.partition("/")[0]):
        sections.append(_table_section(table, list(group), records))
    seeds = sum(len(each.measurement.errors) for each in comparisons.values() if each.measurement is not None)
    facts = Facts(
        [("Experiments", f"{len(experiments)}"), ("Measured", f"{len(measured)}"), ("Members trained", f"{seeds:,}")]
    )
    sections += [_hardware_section(experiments, records), Section("Run it again", [Text(command, code=True)])]
    verdicts = [comparison.verdict for comparison in comparisons.values() if comparison.verdict is not None]
    sentences = [f"{len(measured) or 'None'} of the {len(experiments)} experiments {_is(len(measured))} measured."]
    if verdicts:
        counts = [f"{verdicts.count(verdict)} {words}" for verdict, words in VERDICTS.items() if verdict in verdicts]
        sentences.append(f"Compared with the published errors: {', '.join(counts)}.")
    return Page("Report on the paper's experiments", sentences, facts, sections)


def _is(count: int) -> str:
    return "are" if count > 1 else "is"


def _table_section(name: str, experiments: Sequence[Experiment], records: Records) -> Section:
    """Return the section of one table of the paper: its errors as a table and as a figure."""
    lines = []
    rows: dict[str, dict[str, Errors]] = {}
    for experiment in experiments:
        measurement, p, verdict = compare(experiment, records)
        row = experiment.name.rpartition("/")[0] or experiment.name
        rows.setdefault(row, {})[str(experiment.labels)] = errors_of(experiment, records)
        published = "" if experiment.published is None else experiment.published.text()
        tested = "" if verdict is None else VERDICTS[verdict] + ("" if p is None else f" (p = {p:.2g})")
        lines.append([experiment.name, *error_cells(measurement, experiment.seeds), published, tested])
    header = ["experiment", "measured", "95 % interval", "seeds", "paper", "verdict"]
    caption = "Errors in percent, mean ± deviation over the seeds, and the interval of the mean"
    columns = list(dict.fromkeys(str(experiment.labels) for experiment in experiments))
    listed = "; ".join(f"{line[0]}: {line[1]}" for line in lines)
    size = (min(9.0, 1.8 + 2.6 * len(columns)), 1.2 + 0.5 * len(rows))
    picture = draw_figure(
        lambda figure: draw_errors(figure, columns, rows),
        f"Errors of every seed in percent, by row and number of labels. {listed}.",
        "Each dot is a seed, the box has quartiles and median; diamonds are the paper's mean ± deviation.",
        size,
    )
    return Section(
        name[:1].upper() + re.sub(r"(\d)", r" \1", name[1:]), [Table(caption, header, lines), Pictures([picture])]
    )


def _hardware_section(experiments: Sequence[Experiment], records: Records) -> Section:
    """Return where and with what the members were trained."""
    lines = set()
    for experiment in experiments:
        for record in records.members(experiment.key).values():
            versions = ", ".join(f"{name} {version}" for name, version in record.get("versions", {}).items())
            lines.add((record["hardware"], versions, record.get("revision", "")))
    if not lines:
        return Section("Hardware and versions", [Text("Nothing is measured yet.")])
    header = ["hardware", "versions", "revision"]
    return Section("Hardware and versions", [Table("Where members trained", header, sorted(lines), text_columns=3)])
