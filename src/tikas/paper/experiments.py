"""The paper as data: Tables 1 to 4, the figure in the text, the comparison in the appendix, and an error curve.

Recipes give what differs from the defaults of `Recipe`, which are those of the full ladder at 100 labels of MNIST.
Settings that the paper does not print are those of its authors' program. The paper ran 10 seeds for a figure, 40 for
the ladders at 100 labels, 4 on CIFAR-10, and 1 for the convolutional references with all labels.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from statistics import mean, stdev
from typing import Any, Literal, NamedTuple, Self

from tikas.model.specs import DenoiserName
from tikas.training.recipe import Recipe

Labels = int | Literal["all"]


class Summary(NamedTuple):
    """A mean error in percent, its deviation over the runs (None: not known), and the number of runs."""

    mean: float
    deviation: float | None
    runs: int

    @classmethod
    def of(cls, errors: Sequence[float]) -> Self:
        """Summarize the errors of some seeds."""
        return cls(mean(errors), stdev(errors) if len(errors) > 1 else None, len(errors))

    @classmethod
    def parse(cls, text: str, runs: int) -> Self:
        """Read a published figure as it is printed.

        Examples
        --------
        >>> Summary.parse("1.06 ± 0.37", runs=40), Summary.parse("0.36", runs=1).deviation
        (Summary(mean=1.06, deviation=0.37, runs=40), None)
        """
        mean, _, deviation = text.partition(" ± ")
        return cls(float(mean), float(deviation) if deviation else None, runs)

    def text(self, places: int = 2) -> str:
        """Return mean and deviation, as the paper prints them."""
        return f"{self.mean:.{places}f}" + ("" if self.deviation is None else f" ± {self.deviation:.{places}f}")


@dataclass(frozen=True)
class Experiment:
    """An error to measure: a recipe on a data set with some labels, over seeds from 0 on.

    Parameters
    ----------
    name : str
        ``table/row/column``.
    labels : int or "all"
        Number of labeled rows, balanced over the classes.
    recipe : Recipe
        The hyperparameters.
    published : Summary, optional
        The figure to compare with.
    data : str, default="mnist"
        Name of the data set.
    seeds : int, default=10
        How many members to train.
    validation : int, default=0
        Training rows to hold out. With 0 the test error is measured, otherwise the error on the held-out rows; settings
        are chosen on held-out rows alone.
    attached : int, optional
        For the autoencoder of the appendix: the hidden rung that feeds the decoder, counted from 1.
    against : str, optional
        Name of the measured experiment to compare with, where no figure was published.

    Examples
    --------
    >>> experiment = Experiment("table1/gamma/1000", 1000, Recipe(costs=(10,)), Summary(1.53, 0.10, 10))
    >>> experiment.column, experiment.figure
    ('1000', 'test_error')
    """

    name: str
    labels: Labels
    recipe: Recipe
    published: Summary | None = None
    data: str = "mnist"
    seeds: int = 10
    validation: int = 0
    attached: int | None = None
    against: str | None = None

    @property
    def column(self) -> str:
        """The column of the table."""
        return str(self.labels)

    @property
    def figure(self) -> str:
        """The field of a record that holds the error."""
        return "validation_error" if self.validation else "test_error"

    @property
    def key(self) -> Hashable:
        """What records of this experiment are found by; experiments with equal keys share their records."""
        return self.data, self.labels, self.validation, self.recipe, self.attached

    @property
    def program(self) -> Hashable:
        """Experiments with equal programs can train as one ensemble: in all else, its members may differ."""
        denoised = tuple(float(cost > 0) for cost in self.recipe.cost_per_level())
        shared = replace(self.recipe, costs=denoised, noise=(0.0,), learning_rate=1.0, annealed=0.0)
        labels = self.labels if self.recipe.calibration == "labeled" else self.labels == "all"
        return self.data, labels, self.validation, self.attached, shared


class Row(NamedTuple):
    """A row of a table: for each column an experiment, a figure that the paper quotes from `source`, or ""."""

    title: str
    cells: Sequence[Experiment | str]
    source: str = ""

    @property
    def experiments(self) -> list[Experiment]:
        """The experiments, from left to right."""
        return [cell for cell in self.cells if isinstance(cell, Experiment)]


class Table(NamedTuple):
    """A table as printed: columns from left to right, rows from top to bottom."""

    name: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Row]

    @property
    def measured_rows(self) -> list[Row]:
        """The rows with experiments."""
        return [row for row in self.rows if row.experiments]

    @property
    def experiments(self) -> list[Experiment]:
        """All experiments, row by row."""
        return [experiment for row in self.rows for experiment in row.experiments]


def select(experiments: Iterable[Experiment], names: Iterable[str]) -> list[Experiment]:
    """Return the experiments whose name is given, or starts with a given table or row, in their own order.

    Raises
    ------
    ValueError
        If a name is unknown; the message proposes names that are close to it.

    Examples
    --------
    >>> [experiment.name for experiment in select(EXPERIMENTS, ["table1/full"])]
    ['table1/full/100', 'table1/full/1000', 'table1/full/all']
    """
    experiments, names = list(experiments), list(names)
    known = {"/".join(each.name.split("/")[:depth]) for each in experiments for depth in range(1, 5)}
    for name in names:
        if name not in known:
            close = get_close_matches(name, sorted(known), n=3, cutoff=0.5)
            hint = f" Did you mean {' or '.join(close)}?" if close else ""
            raise ValueError(f"No experiment is named {name!r}.{hint} `tikas reproduce --list` shows all names.")
    return [each for each in experiments if any(f"{each.name}/".startswith(f"{name}/") for name in names)]


def _cell(name: str, recipe: Recipe, published: str = "", runs: int = 10, **settings: Any) -> Experiment:
    """Build an experiment whose name ends in its number of labels, with as many seeds as the paper had runs."""
    column = name.rpartition("/")[2]
    labels: Labels = "all" if column == "all" else int(column)
    figure = Summary.parse(published, runs) if published else None
    return Experiment(name, labels, recipe, figure, **{"seeds": runs, **settings})


def _row(title: str, *cells: Experiment | str) -> Row:
    return Row(title, cells)


def _quoted(title: str, source: str, *figures: str) -> Row:
    """Build a row of figures that the paper quotes from another one."""
    return Row(title, figures, source)


BASELINE = Recipe(costs=(0,), noise=(0.3, 0.5))
FULL = Recipe()
FULL_1000 = Recipe(costs=(2000, 20, 0.1))
FC = Recipe(network=("conv_fc",))
SMALL = Recipe(network=("conv_small",))
SMALL_BASELINE = replace(SMALL, costs=(0,), noise=(0.3, 0.45), epochs=20, annealed=0.5)
SMALL_INPUT = replace(SMALL, costs=(2,), noise=(0.45, 0.3), learning_rate=0.005)
LARGE = Recipe(preprocess="whiten", network=("conv_large",), activation="leaky_relu")
LARGE_BASELINE = replace(LARGE, costs=(0,), epochs=20, annealed=0.5)
LARGE_GAMMA = replace(LARGE, costs=(4,), epochs=70, annealed=0.14)
AUTOENCODER = replace(BASELINE, costs=(1000, 0))

TABLE_1 = Table(
    "table1",
    "Table 1: permutation-invariant MNIST, 784-1000-500-250-250-250-10",
    ("100", "1000", "all"),
    (
        _quoted("Semi-sup. Embedding", "Weston et al. 2012", "16.86", "5.73", "1.5"),
        _quoted("Transductive SVM (with all labels: SVM)", "from Weston et al. 2012", "16.81", "5.38", "1.40"),
        _quoted("MTC", "Rifai et al. 2011", "12.03", "3.64", "0.81"),
        _quoted("Pseudo-label", "Lee 2013", "10.49", "3.46", ""),
        _quoted("AtlasRBF", "Pitelis et al. 2014", "8.10 ± 0.95", "3.68 ± 0.12", "1.31"),
        _quoted("DGN", "Kingma et al. 2014", "3.33 ± 0.14", "2.40 ± 0.02", "0.96"),
        _quoted("DBM, Dropout", "Srivastava et al. 2014", "", "", "0.79"),
        _quoted("Adversarial", "Goodfellow et al. 2015", "", "", "0.78"),
        _quoted("Virtual Adversarial", "Miyato et al. 2015", "2.12", "1.32", "0.64 ± 0.03"),
        _row(
            "Baseline: MLP, BN, Gaussian noise",
            _cell("table1/baseline/100", BASELINE, "21.74 ± 1.77"),
            _cell("table1/baseline/1000", BASELINE, "5.70 ± 0.20"),
            _cell("table1/baseline/all", BASELINE, "0.80 ± 0.03"),
        ),
        _row(
            "Γ-model (Ladder with only top-level cost)",
            _cell("table1/gamma/100", Recipe(costs=(0.5,)), "3.06 ± 1.44"),
            _cell("table1/gamma/1000", Recipe(costs=(10,)), "1.53 ± 0.10"),
            _cell("table1/gamma/all", Recipe(costs=(2,)), "0.78 ± 0.03"),
        ),
        _row(
            "Ladder, only bottom-level cost",
            _cell("table1/bottom/100", Recipe(costs=(5000, 0)), "1.09 ± 0.32", runs=40),
            _cell("table1/bottom/1000", Recipe(costs=(2000, 0)), "0.90 ± 0.05"),
            _cell("table1/bottom/all", Recipe(costs=(2000, 0)), "0.59 ± 0.03"),
        ),
        _row(
            "Ladder, full",
            _cell("table1/full/100", FULL, "1.06 ± 0.37", runs=40),
            _cell("table1/full/1000", replace(FULL_1000, noise=(0.3, 0.2)), "0.84 ± 0.08"),
            _cell("table1/full/all", Recipe(costs=(1000, 1, 0.01)), "0.57 ± 0.02", seeds=40),
        ),
    ),
)

TEXT = Table(
    "text",
    "In the text: 50 labels of permutation-invariant MNIST",
    ("50",),
    (
        _row("Ladder, full", _cell("text/full/50", FULL_1000, "1.62 ± 0.65", seeds=40)),
        _row(
            "Ladder, full, costs chosen here",
            _cell("text/full-chosen/50", Recipe(costs=(5000, 50, 0.1)), seeds=40, against="text/full/50"),
        ),
    ),
)


def _small(title: str, name: str, recipe: Recipe) -> Row:
    """Build a row of Table 2 that the paper does not have, compared with the paper's Γ-model."""
    return _row(title, _cell(f"table2/{name}/100", recipe, against="table2/small-gamma/100"), "")


TABLE_2 = Table(
    "table2",
    "Table 2: convolutional networks on MNIST",
    ("100", "all"),
    (
        _quoted("EmbedCNN", "Weston et al. 2012", "7.75", ""),
        _quoted("SWWAE", "Zhao et al. 2015", "9.17", "0.71"),
        _row(
            "Baseline: Conv-Small, supervised only",
            _cell("table2/small-baseline/100", SMALL_BASELINE, "6.43 ± 0.84"),
            _cell("table2/small-baseline/all", SMALL_BASELINE, "0.36", runs=1),
        ),
        _row("Conv-FC", _cell("table2/fc/100", FC, "0.99 ± 0.15"), ""),
        _row("Conv-Small, Γ-model", _cell("table2/small-gamma/100", replace(SMALL, costs=(1,)), "0.89 ± 0.50"), ""),
        _small("Conv-Small, Γ-model, cost chosen here", "small-gamma-chosen", replace(SMALL, costs=(0.2,))),
        _small(
            "Conv-Small, Γ-model, cost and epochs chosen here",
            "small-gamma-short",
            replace(SMALL, costs=(0.2,), epochs=30),
        ),
        _small(
            "Conv-Small, Γ-model, all settings chosen here, 70 epochs",
            "small-gamma-input",
            replace(SMALL_INPUT, epochs=70),
        ),
        _small("Conv-Small, Γ-model, all settings chosen here, 150 epochs", "small-gamma-input-long", SMALL_INPUT),
        _small("Conv-Small, full ladder", "small-full", replace(SMALL, costs=(100, *[0.01] * 8, 1), epochs=30)),
    ),
)

TABLE_3 = Table(
    "table3",
    "Table 3: convolutional networks on CIFAR-10, without augmentation",
    ("4000", "all"),
    (
        _quoted("All-Convolutional ConvPool-CNN-C", "Springenberg et al. 2014", "", "9.31"),
        _quoted("Spike-and-Slab Sparse Coding", "Goodfellow et al. 2012", "31.9", ""),
        _row(
            "Baseline: Conv-Large, supervised only",
            _cell("table3/large-baseline/4000", LARGE_BASELINE, "23.33 ± 0.61", runs=4, data="cifar10"),
            _cell("table3/large-baseline/all", replace(LARGE_GAMMA, costs=(0,)), "9.27", runs=1, data="cifar10"),
        ),
        _row(
            "Conv-Large, Γ-model",
            _cell("table3/large-gamma/4000", LARGE_GAMMA, "20.40 ± 0.47", runs=4, data="cifar10"),
            "",
        ),
    ),
)


def _denoising(title: str, name: str, denoiser: DenoiserName, at_100: str, at_1000: str) -> Row:
    return _row(
        title,
        _cell(f"table4/{name}/100", replace(FULL, denoiser=denoiser), at_100),
        _cell(f"table4/{name}/1000", replace(FULL_1000, denoiser=denoiser), at_1000),
    )


TABLE_4 = Table(
    "table4",
    "Table 4: denoising functions, permutation-invariant MNIST, noise 0.3",
    ("100", "1000"),
    (
        _denoising("Proposed g: Gaussian z", "g", "gaussian", "1.06 ± 0.07", "1.03 ± 0.06"),
        _denoising("Comparison g1: miniature MLP with z̃u", "g1", "mlp", "1.11 ± 0.07", "1.11 ± 0.06"),
        _denoising("Comparison g2: no augmented term z̃u", "g2", "no-product", "2.03 ± 0.09", "1.70 ± 0.08"),
        _denoising("Comparison g3: linear g but with z̃u", "g3", "linear", "1.49 ± 0.10", "1.30 ± 0.08"),
        _denoising("Comparison g4: only the mean depends on u", "g4", "additive", "2.90 ± 1.19", "2.11 ± 0.45"),
    ),
)


def _attached(rung: int, labels: int) -> Experiment:
    name, baseline = f"appendix/rung{rung}/{labels}", f"table1/baseline/{labels}"
    return _cell(name, AUTOENCODER, runs=3, attached=rung, against=baseline)


APPENDIX = Table(
    "appendix",
    "Appendix: an autoencoder, its decoder attached to one hidden rung",
    ("100", "1000"),
    [
        _row(f"Decoder on rung {rung} ({units} units)", _attached(rung, 100), _attached(rung, 1000))
        for rung, units in enumerate((1000, 500, 250, 250, 250), 1)
    ],
)

TABLES = (TABLE_1, TEXT, TABLE_2, TABLE_3, TABLE_4, APPENDIX)

CURVE = tuple(Experiment(f"curve/{epochs}", 100, replace(FULL, epochs=epochs)) for epochs in (5, 10, 20, 50, 150))
"""Not in the paper: the full ladder at 100 labels, by its number of epochs. The last shares the records of Table 1."""

EXPERIMENTS = (*(experiment for table in TABLES for experiment in table.experiments), *CURVE)
