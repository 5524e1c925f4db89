"""The words in which experiments are described: cells to measure, the figures that were published, tables of them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Protocol, TypeVar

from tikas.training.fit import OF_A_MEMBER
from tikas.training.recipe import Recipe


@dataclass(frozen=True)
class Published:
    """A figure that was published: test error in percent, its deviation over the runs, and how many runs there were.

    A deviation or a number of runs that was not given is None; `places` are those behind the point.

    Examples
    --------
    >>> Published(1.06, 0.37, runs=40), Published(0.36).deviation
    (Published(mean=1.06, deviation=0.37, runs=40, places=2), None)
    """

    mean: float
    deviation: float | None = None
    runs: int | None = None
    places: int = 2


@dataclass(frozen=True)
class Cell:
    """A test error to measure: a recipe on all training rows, over seeds from 0 on.

    Parameters
    ----------
    name
        ``table/row/column``.
    recipe
        All that the figure depends on but the seed. It holds out no rows: settings are chosen in studies.
    published
        The figure to compare with.
    seeds
        How many members are wanted.
    attached
        The hidden rung that feeds a plain decoder, where the network is an autoencoder and no ladder.
    against
        The name of a measured cell to compare with, where no figure was published.
    note
        What the paper leaves open, and what was done about it.

    Examples
    --------
    >>> Cell("table1/gamma/1000", Recipe(labels=1000, costs=10), Published(1.53, 0.10, 10)).column
    '1000'
    >>> Cell("table1/full/100", Recipe(validation=10_000))
    Traceback (most recent call last):
    ValueError: table1/full/100: a cell's recipe holds out no rows, this one holds out 10000. Settings are chosen ...
    """

    name: str
    recipe: Recipe
    published: Published | None = None
    seeds: int = 10
    attached: int | None = None
    against: str | None = None
    note: str = ""

    def __post_init__(self) -> None:
        if self.recipe.validation:
            raise ValueError(
                f"{self.name}: a cell's recipe holds out no rows, this one holds out {self.recipe.validation}. "
                "Settings are chosen in a study."
            )
        if self.attached is not None and not 1 <= self.attached <= len(self.recipe.network):
            raise ValueError(f"{self.name}: attached={self.attached} is not one of the hidden rungs, counted from 1.")

    @property
    def column(self) -> str:
        """The part of the name that says which column of its table this is in."""
        return self.name.rpartition("/")[2]

    @property
    def program(self) -> Hashable:
        """Cells that have it in common can train as one fleet.

        Examples
        --------
        >>> few, many, all_of_them = (Cell("table1/full", Recipe(labels=labels)) for labels in (100, 1000, "all"))
        >>> few.program == many.program, few.program == all_of_them.program
        (True, False)
        """
        return program_of(self.recipe, self.attached)


def program_of(recipe: Recipe, attached: int | None = None) -> Hashable:
    """What one program has to be made for: the same for recipes that differ in numbers which each member is told.

    Examples
    --------
    >>> low, high, none = (program_of(Recipe(costs=cost)) for cost in (0.5, 2, 0))
    >>> low == high, low == none
    (True, False)
    """
    alike = (getattr(recipe, field.name) for field in fields(Recipe) if field.name not in OF_A_MEMBER)
    costs = [weight > 0 for weight in recipe.levels_of_costs()]
    labels = recipe.labels if recipe.calibration == "labeled" else recipe.labels == "all"
    return attached, labels, *alike, *costs


@dataclass(frozen=True)
class Row:
    """A row of a table whose cells can be measured."""

    title: str
    cells: tuple[Cell, ...]


def row(title: str, *cells: Cell) -> Row:
    """A row with these cells, from left to right.

    Examples
    --------
    >>> row("Ladder, full", Cell("table1/full/100", Recipe(), Published(1.06, 0.37, 40))).cells[0].column
    '100'
    """
    return Row(title, cells)


@dataclass(frozen=True)
class Quotation:
    """A row that the paper quotes from others: figures by column, never measured here.

    Examples
    --------
    >>> quoted = Quotation("Pseudo-label", "Lee 2013", {"100": Published(10.49), "1000": Published(3.46)})
    >>> quoted.figures["1000"].mean
    3.46
    """

    title: str
    source: str
    figures: dict[str, Published]


@dataclass(frozen=True)
class Table:
    """A table as it is printed: its columns from left to right, its rows from top to bottom.

    Examples
    --------
    >>> quoted = Quotation("Pseudo-label", "Lee 2013", {"100": Published(10.49)})
    >>> measured = row("Ladder, full", Cell("table1/full/100", Recipe(), Published(1.06, 0.37, 40)))
    >>> [cell.name for cell in Table("table1", "Test errors", ("100",), (quoted, measured)).cells]
    ['table1/full/100']
    """

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[Row | Quotation, ...]
    note: str = ""

    @property
    def cells(self) -> Iterator[Cell]:
        """What can be measured, row by row."""
        for row in self.rows:
            if isinstance(row, Row):
                yield from row.cells

    @property
    def has_published(self) -> bool:
        """Whether there is a figure to compare any cell with."""
        return any(cell.published for cell in self.cells)


class Named(Protocol):
    """Anything that can be asked for by a name with parts."""

    @property
    def name(self) -> str: ...


AnyNamed = TypeVar("AnyNamed", bound=Named)


def select(named: Iterable[AnyNamed], wanted: Sequence[str]) -> list[AnyNamed]:
    """Those whose name is wanted, or lies under a name that is wanted, in their own order and each once.

    Examples
    --------
    >>> cells = [Cell(name, Recipe()) for name in ("table1/full/100", "table1/full/1000", "table2/fc/100")]
    >>> [cell.name for cell in select(cells, ["table1"])]
    ['table1/full/100', 'table1/full/1000']
    >>> select(cells, ["table1/ful/100"])
    Traceback (most recent call last):
        ...
    ValueError: There is no 'table1/ful/100'; did you mean table1/full/100 ...? ...
    """
    everything = list(named)
    known = sorted({"/".join(each.name.split("/")[: depth + 1]) for each in everything for depth in range(4)})
    for name in wanted:
        if name not in known:
            close = get_close_matches(name, known, n=3, cutoff=0.5)
            meant = f"; did you mean {' or '.join(close)}?" if close else "."
            raise ValueError(f"There is no {name!r}{meant} `tikas reproduce --list` shows all names.")
    return [
        each for each in everything if any(each.name == name or each.name.startswith(f"{name}/") for name in wanted)
    ]
