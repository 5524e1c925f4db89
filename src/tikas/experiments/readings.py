"""What the records say of a cell, a rival or a study: summaries over seeds beside what was published."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import mean

from tikas.experiments.cells import Cell, Published
from tikas.experiments.compare import Summary, Verdict, p_value, verdict
from tikas.experiments.ledger import Ledger, figure_of
from tikas.experiments.protocol import Setting, choose
from tikas.experiments.records import Record
from tikas.experiments.rivals import Rival
from tikas.experiments.tasks import Task, key_of


@dataclass(frozen=True)
class Reading:
    """The errors of a task over its seeds, of a setting those on held-out rows, and all that is told beside them.

    Attributes
    ----------
    errors
        By seed, with statistics of all training rows.
    labeled
        With statistics of the labelled rows alone, as the paper's authors took them; None where there is no such kind.
    seconds
        A fleet's time by its members, warm-up included, over the members on `hardware` whose fleets were trained at one
        go; None where there are none.
    updates_seconds
        The same without warm-up: the median epoch's time, times the epochs.
    hardware
        What most of the members were measured on.
    elsewhere
        How many members were measured on which other hardware.
    sizes
        How many members the fleets on `hardware` had.

    Examples
    --------
    >>> found = Reading({0: 1.0, 1: 2.0, 2: 3.0}, None, 4.5, None, hardware="a GPU", elsewhere={"a CPU": 1})
    >>> found.summary, found.all_hardware
    (Summary(mean=2.0, deviation=1.0, runs=3), 'a GPU (2 of 3); a CPU (1 of 3)')
    """

    errors: Mapping[int, float]
    labeled: Summary | None
    seconds: float | None
    updates_seconds: float | None
    hardware: str
    elsewhere: Mapping[str, int] = field(default_factory=dict)
    sizes: Collection[int] = ()

    @property
    def fleets(self) -> str:
        """The sizes of the fleets, in words."""
        return ", ".join(map(str, sorted(self.sizes)))

    @property
    def summary(self) -> Summary:
        """Mean, deviation and number of the errors."""
        return Summary.of(list(self.errors.values()))

    @property
    def all_hardware(self) -> str:
        """What the members were measured on, in words; the seconds are those of the first."""
        if not self.elsewhere:
            return self.hardware
        members = len(self.errors)
        counts = {self.hardware: members - sum(self.elsewhere.values()), **self.elsewhere}
        return "; ".join(f"{name} ({count} of {members})" for name, count in counts.items())


@dataclass(frozen=True)
class Judgement:
    """How a reading compares with what was published, or with another reading."""

    verdict: Verdict
    p: float | None


def reading(task: Task, ledger: Ledger) -> Reading | None:
    """What the records say of a task; None where there are none.

    Examples
    --------
    >>> from tikas.training.recipe import Recipe
    >>> record = {"recipe": {"epochs": 5}, "test_error": 2.0, "seconds": 60.0, "members": 2, "hardware": "a GPU"}
    >>> ledger = Ledger.of([{**record, "seed": 0}, {**record, "seed": 1, "test_error": 3.0}])
    >>> found = reading(Cell("curve/5", Recipe(epochs=5)), ledger)
    >>> found.summary.mean, found.seconds
    (2.5, 30.0)
    """
    figure = "test_error" if isinstance(task, Rival) else figure_of(task.recipe)
    records = ledger.members(key_of(task))
    if not records:
        return None
    (hardware, _), *others = Counter(record["hardware"] for record in records.values()).most_common()
    same = [record for record in records.values() if record["hardware"] == hardware]
    at_one_go = [record for record in same if "continued_after_epochs" not in record]
    labeled = [record.get(f"{figure}_labeled_statistics") for record in records.values()]
    known = [error for error in labeled if error is not None]
    return Reading(
        errors={seed: record[figure] for seed, record in records.items()},
        labeled=Summary.of(known) if len(known) == len(records) else None,
        seconds=mean(record["seconds"] / record.get("members", 1) for record in at_one_go) if at_one_go else None,
        updates_seconds=None if isinstance(task, Rival) else _updates_seconds(at_one_go, task.recipe.epochs),
        hardware=hardware,
        elsewhere=dict(others),
        sizes={record.get("members", 1) for record in same},
    )


def _updates_seconds(records: Iterable[Record], epochs: int) -> float | None:
    timed = [record for record in records if "seconds_per_epoch" in record]
    return mean(each["seconds_per_epoch"] * epochs / each.get("members", 1) for each in timed) if timed else None


def reference(cell: Cell, ledger: Ledger, cells: Mapping[str, Cell]) -> Summary | None:
    """What a cell is compared with: the published figure, or a cell that was measured; None where there is neither.

    Examples
    --------
    >>> from tikas.training.recipe import Recipe
    >>> reference(Cell("table1/full/100", Recipe(), Published(1.06, 0.37, 40)), Ledger(), {})
    Summary(mean=1.06, deviation=0.37, runs=40)
    """
    if cell.published is not None:
        return Summary.of_published(cell.published)
    other = reading(cells[cell.against], ledger) if cell.against else None
    return other.summary if other else None


def judge(measured: Reading | None, against: Summary | None) -> Judgement | None:
    """Better, compatible or worse; None where one side is missing.

    Examples
    --------
    >>> found = Reading({0: 0.9, 1: 1.0, 2: 0.95}, None, 10.0, None, "a GPU")
    >>> judge(found, Summary(1.06, 0.37, 40)).verdict, judge(None, Summary(1.06, 0.37, 40))
    ('compatible', None)
    """
    if measured is None or against is None:
        return None
    return Judgement(verdict(measured.summary, against), p_value(measured.summary, against))


def chosen(settings: Iterable[Setting], ledger: Ledger) -> Setting | None:
    """The setting that a study chooses, by the seeds that all of its settings were tried with.

    None until every one was tried with the same seeds, or with those that the study asks for: what two studies share
    may have more.

    Examples
    --------
    >>> from tikas.training.recipe import Recipe
    >>> low, high = (Setting(f"study/gamma/{cost}", Recipe(costs=cost, validation=10_000)) for cost in (0.5, 2))
    >>> record = {"seed": 0, "seconds": 60.0, "members": 1, "hardware": "a GPU"}
    >>> of_low = {**record, "recipe": {"costs": 0.5, "validation": 10_000}, "validation_error": 2.5}
    >>> of_high = {**record, "recipe": {"costs": 2, "validation": 10_000}, "validation_error": 3.5}
    >>> chosen([low, high], Ledger.of([of_low, of_high])).name, chosen([low, high], Ledger.of([of_low]))
    ('study/gamma/0.5', None)
    """
    found = {setting: reading(setting, ledger) for setting in settings}
    errors = {setting: each.errors for setting, each in found.items() if each is not None}
    if not errors or len(errors) < len(found):
        return None
    common = set.intersection(*map(set, errors.values()))
    alike = all(common == set(by_seed) for by_seed in errors.values())
    if not alike and any(not common.issuperset(range(setting.seeds)) for setting in errors):
        return None
    return choose({setting: [by_seed[seed] for seed in sorted(common)] for setting, by_seed in errors.items()})


def in_words(figure: Published | Summary, places: int = 2) -> str:
    """Mean and deviation, as the paper prints them.

    Examples
    --------
    >>> in_words(Published(1.06, 0.37)), in_words(Published(0.36))
    ('1.06 ± 0.37', '0.36')
    """
    spread = "" if figure.deviation is None else f" ± {figure.deviation:.{places}f}"
    return f"{figure.mean:.{places}f}{spread}"
