"""The HTML page of `tikas reproduce --report`: measured errors beside the paper's, and where they were measured."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import mean

from tikas.paper.experiments import Experiment
from tikas.paper.figures import Errors, draw_errors
from tikas.paper.records import Records
from tikas.paper.render import compare, error_cells, errors_of
from tikas.report.page import Facts, Page, Picture, Pictures, Section, Table, Text, draw_figure

VERDICTS = {
    "better": "significantly better",
    "compatible": "no significant difference",
    "worse": "significantly worse",
    "untested": "not tested: single runs",
}


def reproduction_page(experiments: Sequence[Experiment], records: Records, command: str) -> Page:
    """Return the page on some experiments.

    Parameters
    ----------
    experiments : sequence of Experiment
        What to show.
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
    tables: dict[str, list[Experiment]] = {}
    for experiment in experiments:
        tables.setdefault(experiment.name.partition("/")[0], []).append(experiment)
    sections = [_table_section(name, group, records) for name, group in tables.items()]
    seeds = sum(len(each.measurement.errors) for each in comparisons.values() if each.measurement is not None)
    facts = Facts(
        [("Experiments", f"{len(experiments)}"), ("Measured", f"{len(measured)}"), ("Members trained", f"{seeds:,}")]
    )
    sections += [_hardware_section(experiments, records), Section("Run it again", [Text(command, code=True)])]
    verdicts = [comparison.verdict for comparison in comparisons.values() if comparison.verdict is not None]
    sentences = [f"{len(measured) or 'None'} of the {len(experiments)} experiments {_is(len(measured))} measured."]
    if verdicts:
        counts = [f"{verdicts.count(verdict)} {words}" for verdict, words in VERDICTS.items() if verdict in verdicts]
        sentences.append(f"Beside the published errors: {', '.join(counts)}.")
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
    pictures = [_picture(column, {name: row for name, row in rows.items() if column in row}) for column in columns]
    title = re.sub(r"(\d)", r" \1", name).capitalize()
    return Section(title, [Table(caption, header, lines), Pictures(pictures)])


def _picture(column: str, rows: Mapping[str, Mapping[str, Errors]]) -> Picture:
    """Return the figure of the errors with one number of labels."""
    means = [f"{name}: {mean(row[column].measured):.2f}" for name, row in rows.items() if row[column].measured]
    return draw_figure(
        lambda figure: draw_errors(figure, [column], rows),
        f"Errors of every seed in percent with {column} labels. Means: {'; '.join(means) or 'not measured'}.",
        "Each dot is a seed, the box has quartiles and median; diamonds are the paper's mean ± deviation.",
        (4.8, 1.6 + 0.5 * len(rows)),
    )


def _hardware_section(experiments: Sequence[Experiment], records: Records) -> Section:
    """Return where and with what the members were trained."""
    members: Counter[tuple[str, str]] = Counter()
    for experiment in experiments:
        for record in records.members(experiment.key).values():
            versions = ", ".join(f"{name} {version}" for name, version in record.get("versions", {}).items())
            members[record["hardware"], versions] += 1
    title = "Hardware and versions"
    if not members:
        return Section(title, [Text("Nothing is measured yet.")])
    lines = [[hardware, versions, f"{count:,}"] for (hardware, versions), count in members.most_common()]
    return Section(title, [Table("Where members trained", ["hardware", "versions", "members"], lines, text_columns=2)])
