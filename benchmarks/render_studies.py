"""Write results/studies.md from the records: the comparison with other methods, and the studies that chose settings.

python benchmarks/render_studies.py
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from common import RESULTS
from other_methods import COMPARISONS, METHODS, Comparison
from studies import STUDIES, chosen, study_name
from tikas.paper.experiments import Experiment
from tikas.paper.records import Records
from tikas.paper.render import MISSING, error_cells, markdown_table, timing_cells

PAGE = """# Other methods and studies

`make tables` writes this page from the records in this folder.

## Other methods: scikit-learn on the same splits of MNIST

Test error in percent, mean ± deviation over the seeds, by number of labels.

{methods}

No setting was chosen by these errors. `rows` is how many of the 60,000 training rows a method was given, where a fit on
all of them had not finished after 20 minutes. Seconds are those of `fit`.

{method_details}

`python benchmarks/other_methods.py methods` measures what is missing.

## Studies: error on 10,000 held-out training rows

Some seeds are harder than others, so settings are compared by the seeds that all of them have. Where these are not the
first ones, they are listed. `python benchmarks/studies.py study/gamma/100` measures what is missing of a study.

{studies}

Not run: {not_run}.
"""


def render(records: Records) -> str:
    """Return the page."""
    tried = [settings for settings in STUDIES if any(records.measurement(each.key) for each in settings)]
    not_run = [settings for settings in STUDIES if settings not in tried]
    return PAGE.format(
        methods=methods_table(records),
        method_details=method_details(records),
        studies="\n\n".join(
            f"### `{study_name(settings[0])}`\n\n{study_table(settings, records)}" for settings in tried
        ),
        not_run=", ".join(f"`{study_name(settings[0])}`" for settings in not_run),
    )


def methods_table(records: Records) -> str:
    """Return the table with a row for each method and a column for each number of labels."""
    labels = sorted({comparison.labels for comparison in COMPARISONS})
    rows = []
    for name, method in METHODS.items():
        cells = [methods_cell(name, count, records) for count in labels]
        shown = {each.settings["rows"] for each in COMPARISONS if each.method == name and "rows" in each.settings}
        rows.append([f"{method.title}{''.join(f', {count} rows' for count in shown)}", *cells])
    return markdown_table(["", *map(str, labels)], rows)


def methods_cell(method: str, labels: int, records: Records) -> str:
    """Return the measured error of a method."""
    (comparison,) = [each for each in COMPARISONS if (each.method, each.labels) == (method, labels)]
    measurement = records.measurement(comparison.key)
    return f"**{measurement.summary.text()}**" if measurement else MISSING


def method_details(records: Records) -> str:
    """Return the table with a row for each method and number of labels."""
    rows = [method_row(comparison, records) for comparison in COMPARISONS]
    header = ["", "differs from scikit-learn's defaults", "measured", "95 % interval", "seeds", "seconds", "hardware"]
    return markdown_table(header, rows, text_columns=2)


def method_row(comparison: Comparison, records: Records) -> list[str]:
    """Return a row of that table."""
    measurement = records.measurement(comparison.key)
    settings = ", ".join(f"{name}={value}" for name, value in comparison.settings.items())
    measured = error_cells(measurement, comparison.seeds)
    return [f"`{comparison.name}`", settings, *measured, *timing_cells(measurement)]


def study_table(settings: Sequence[Experiment], records: Records) -> str:
    """Return the table with a row for each setting; the best one is bold, and chosen if all seeds are measured."""
    best = chosen(settings, records)
    found = [records.measurement(setting.key) for setting in settings]
    complete = all(each and set(each.errors) >= set(range(settings[0].seeds)) for each in found)
    rows = []
    for setting, measurement in zip(settings, found, strict=True):
        name = setting.name.rpartition("/")[2]
        if setting == best:
            name = f"**{name}** ({'chosen' if complete else 'best so far'})"
        labeled = measurement.labeled.text(3) if measurement and measurement.labeled else ""
        rows.append([name, *error_cells(measurement, setting.seeds), labeled])
    header = ["setting", "validation error, %", "95 % interval", "seeds", "with the labeled rows' statistics"]
    return markdown_table(header, rows)


def main(path: Path = RESULTS / "studies.md") -> None:
    path.write_text(render(Records.read(RESULTS)))


if __name__ == "__main__":
    main()
