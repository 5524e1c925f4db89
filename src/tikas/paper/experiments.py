"""The paper's experiments: Tables 1 to 4, the error in the text, the comparison in the appendix, and an error curve.

Recipes list only what differs from the defaults of `Recipe`, which are the settings of the full ladder with 100 labels
of MNIST. Settings that the paper does not give are those of its authors' code. The paper ran 10 seeds for each error,
40 for the ladders with 100 labels, 4 on CIFAR-10, and 1 for the convolutional references with all labels.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from statistics import mean, stdev
from typing import Any, Literal, NamedTuple, Self

from tikas.model.specs import DenoiserName
from tikas.training.recipe import Recipe

Labels = int | Literal["all"]


class Summary(NamedTuple):
    """A mean error in percent, its standard deviation over the runs (None if unknown), and the number of runs."""

    mean: float
    deviation: float | None
    runs: int

    @classmethod
    def of(cls, errors: Sequence[float]) -> Self:
        """Return the summary of these errors."""
        return cls(mean(errors), stdev(errors) if len(errors) > 1 else None, len(errors))

    @classmethod
    def parse(cls, text: str, runs: int) -> Self:
        """Return the summary of a published error, as it is printed.

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
    """An error to measure: a recipe, a data set with a number of labels, and the seeds 0, 1, ...

    Parameters
    ----------
    name : str
        ``table/row/column``.
    labels : int or "all"
        Number of labeled rows, balanced over the classes.
    recipe : Recipe
        The hyperparameters.
    published : Summary, optional
        The paper's error to compare with.
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
        Name of the measured experiment to compare with, if the paper has no such error.

    Examples
    --------
    >>> experiment = Experiment("table1/gamma/1000", 1000, Recipe(costs=(10,)), Summary(1.53, 0.10, 10))
    >>> experiment.error_field
    'test_error'
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
    def error_field(self) -> str:
        """The field of a record that contains the error."""
        return "validation_error" if self.validation else "test_error"

    @property
    def key(self) -> Hashable:
        """Identifies the records of this experiment; experiments with equal keys share their records."""
        return self.data, self.labels, self.validation, self.recipe, self.attached

    @property
    def ensemble_key(self) -> Hashable:
        """Experiments with equal keys can train as one ensemble, whose members may differ in all other settings."""
        denoised = tuple(float(cost > 0) for cost in self.recipe.cost_per_level())
        shared = replace(self.recipe, costs=denoised, noise=(0.0,), learning_rate=1.0, annealed=0.0)
        labels = self.labels if self.recipe.calibration == "labeled" else self.labels == "all"
        return self.data, labels, self.validation, self.attached, shared


class Table(NamedTuple):
    """A table as printed: columns from left to right, rows by title from top to bottom.

    Each row has for every column an experiment, an error that the paper quotes from another paper, or "".
    """

    name: str
    title: str
    columns: Sequence[str]
    rows: Mapping[str, Sequence[Experiment | str]]

    @property
    def experiments(self) -> list[Experiment]:
        """All experiments, row by row."""
        return [cell for cells in self.rows.values() for cell in cells if isinstance(cell, Experiment)]


def select(experiments: Sequence[Experiment], names: Sequence[str]) -> list[Experiment]:
    """Return the experiments whose name is given, or starts with a given table or row, in the order of `experiments`.

    Raises
    ------
    ValueError
        If a name is unknown; the message suggests similar names.

    Examples
    --------
    >>> [experiment.name for experiment in select(EXPERIMENTS, ["table1/full"])]
    ['table1/full/100', 'table1/full/1000', 'table1/full/all']
    """
    known = {"/".join(each.name.split("/")[:depth]) for each in experiments for depth in range(1, 5)}
    for name in names:
        if name not in known:
            similar = ", ".join(get_close_matches(name, sorted(known), cutoff=0.5)) or "none"
            raise ValueError(f"No experiment is named {name!r} (similar: {similar}). See `tikas reproduce --list`.")
    return [each for each in experiments if any(f"{each.name}/".startswith(f"{name}/") for name in names)]


def _cell(name: str, recipe: Recipe, published: str = "", runs: int = 10, **settings: Any) -> Experiment:
    """Build an experiment whose name ends in its number of labels, with as many seeds as the paper had runs."""
    labels = name.rpartition("/")[2]
    figure = Summary.parse(published, runs) if published else None
    return Experiment(name, "all" if labels == "all" else int(labels), recipe, figure, **{"seeds": runs, **settings})


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
    {
        "*Semi-sup. Embedding* (quoted: Weston et al. 2012)": ("16.86", "5.73", "1.5"),
        "*Transductive SVM (with all labels: SVM)* (quoted: from Weston et al. 2012)": ("16.81", "5.38", "1.40"),
        "*MTC* (quoted: Rifai et al. 2011)": ("12.03", "3.64", "0.81"),
        "*Pseudo-label* (quoted: Lee 2013)": ("10.49", "3.46", ""),
        "*AtlasRBF* (quoted: Pitelis et al. 2014)": ("8.10 ± 0.95", "3.68 ± 0.12", "1.31"),
        "*DGN* (quoted: Kingma et al. 2014)": ("3.33 ± 0.14", "2.40 ± 0.02", "0.96"),
        "*DBM, Dropout* (quoted: Srivastava et al. 2014)": ("", "", "0.79"),
        "*Adversarial* (quoted: Goodfellow et al. 2015)": ("", "", "0.78"),
        "*Virtual Adversarial* (quoted: Miyato et al. 2015)": ("2.12", "1.32", "0.64 ± 0.03"),
        "Baseline: MLP, BN, Gaussian noise": (
            _cell("table1/baseline/100", BASELINE, "21.74 ± 1.77"),
            _cell("table1/baseline/1000", BASELINE, "5.70 ± 0.20"),
            _cell("table1/baseline/all", BASELINE, "0.80 ± 0.03"),
        ),
        "Γ-model (Ladder with only top-level cost)": (
            _cell("table1/gamma/100", Recipe(costs=(0.5,)), "3.06 ± 1.44"),
            _cell("table1/gamma/1000", Recipe(costs=(10,)), "1.53 ± 0.10"),
            _cell("table1/gamma/all", Recipe(costs=(2,)), "0.78 ± 0.03"),
        ),
        "Ladder, only bottom-level cost": (
            _cell("table1/bottom/100", Recipe(costs=(5000, 0)), "1.09 ± 0.32", runs=40),
            _cell("table1/bottom/1000", Recipe(costs=(2000, 0)), "0.90 ± 0.05"),
            _cell("table1/bottom/all", Recipe(costs=(2000, 0)), "0.59 ± 0.03"),
        ),
        "Ladder, full": (
            _cell("table1/full/100", FULL, "1.06 ± 0.37", runs=40),
            _cell("table1/full/1000", replace(FULL_1000, noise=(0.3, 0.2)), "0.84 ± 0.08"),
            _cell("table1/full/all", Recipe(costs=(1000, 1, 0.01)), "0.57 ± 0.02", seeds=40),
        ),
    },
)

TEXT = Table(
    "text",
    "In the text: 50 labels of permutation-invariant MNIST",
    ("50",),
    {
        "Ladder, full": (_cell("text/full/50", FULL_1000, "1.62 ± 0.65", seeds=40),),
        "Ladder, full, costs chosen here": (
            _cell("text/full-chosen/50", Recipe(costs=(5000, 50, 0.1)), seeds=40, against="text/full/50"),
        ),
    },
)


def _small(name: str, recipe: Recipe) -> tuple[Experiment, str]:
    """Build a row of Table 2 that the paper does not have, compared with the paper's Γ-model."""
    return _cell(f"table2/{name}/100", recipe, against="table2/small-gamma/100"), ""


TABLE_2 = Table(
    "table2",
    "Table 2: convolutional networks on MNIST",
    ("100", "all"),
    {
        "*EmbedCNN* (quoted: Weston et al. 2012)": ("7.75", ""),
        "*SWWAE* (quoted: Zhao et al. 2015)": ("9.17", "0.71"),
        "Baseline: Conv-Small, supervised only": (
            _cell("table2/small-baseline/100", SMALL_BASELINE, "6.43 ± 0.84"),
            _cell("table2/small-baseline/all", SMALL_BASELINE, "0.36", runs=1),
        ),
        "Conv-FC": (_cell("table2/fc/100", FC, "0.99 ± 0.15"), ""),
        "Conv-Small, Γ-model": (_cell("table2/small-gamma/100", replace(SMALL, costs=(1,)), "0.89 ± 0.50"), ""),
        "Conv-Small, Γ-model, cost chosen here": _small("small-gamma-chosen", replace(SMALL, costs=(0.2,))),
        "Conv-Small, Γ-model, cost and epochs chosen here": _small(
            "small-gamma-short", replace(SMALL, costs=(0.2,), epochs=30)
        ),
        "Conv-Small, Γ-model, all settings chosen here, 70 epochs": _small(
            "small-gamma-input", replace(SMALL_INPUT, epochs=70)
        ),
        "Conv-Small, Γ-model, all settings chosen here, 150 epochs": _small("small-gamma-input-long", SMALL_INPUT),
        "Conv-Small, full ladder": _small("small-full", replace(SMALL, costs=(100, *[0.01] * 8, 1), epochs=30)),
    },
)

TABLE_3 = Table(
    "table3",
    "Table 3: convolutional networks on CIFAR-10, without augmentation",
    ("4000", "all"),
    {
        "*All-Convolutional ConvPool-CNN-C* (quoted: Springenberg et al. 2014)": ("", "9.31"),
        "*Spike-and-Slab Sparse Coding* (quoted: Goodfellow et al. 2012)": ("31.9", ""),
        "Baseline: Conv-Large, supervised only": (
            _cell("table3/large-baseline/4000", LARGE_BASELINE, "23.33 ± 0.61", runs=4, data="cifar10"),
            _cell("table3/large-baseline/all", replace(LARGE_GAMMA, costs=(0,)), "9.27", runs=1, data="cifar10"),
        ),
        "Conv-Large, Γ-model": (
            _cell("table3/large-gamma/4000", LARGE_GAMMA, "20.40 ± 0.47", runs=4, data="cifar10"),
            "",
        ),
    },
)


def _denoising(name: str, denoiser: DenoiserName, at_100: str, at_1000: str) -> tuple[Experiment, Experiment]:
    return (
        _cell(f"table4/{name}/100", replace(FULL, denoiser=denoiser), at_100),
        _cell(f"table4/{name}/1000", replace(FULL_1000, denoiser=denoiser), at_1000),
    )


TABLE_4 = Table(
    "table4",
    "Table 4: denoising functions, permutation-invariant MNIST, noise 0.3",
    ("100", "1000"),
    {
        "Proposed g: Gaussian z": _denoising("g", "gaussian", "1.06 ± 0.07", "1.03 ± 0.06"),
        "Comparison g1: miniature MLP with z̃u": _denoising("g1", "mlp", "1.11 ± 0.07", "1.11 ± 0.06"),
        "Comparison g2: no augmented term z̃u": _denoising("g2", "no-product", "2.03 ± 0.09", "1.70 ± 0.08"),
        "Comparison g3: linear g but with z̃u": _denoising("g3", "linear", "1.49 ± 0.10", "1.30 ± 0.08"),
        "Comparison g4: only the mean depends on u": _denoising("g4", "additive", "2.90 ± 1.19", "2.11 ± 0.45"),
    },
)


def _attached(rung: int, labels: int) -> Experiment:
    name, baseline = f"appendix/rung{rung}/{labels}", f"table1/baseline/{labels}"
    return _cell(name, AUTOENCODER, runs=3, attached=rung, against=baseline)


APPENDIX = Table(
    "appendix",
    "Appendix: an autoencoder, its decoder attached to one hidden rung",
    ("100", "1000"),
    {
        f"Decoder on rung {rung} ({units} units)": (_attached(rung, 100), _attached(rung, 1000))
        for rung, units in enumerate((1000, 500, 250, 250, 250), 1)
    },
)

TABLES = (TABLE_1, TEXT, TABLE_2, TABLE_3, TABLE_4, APPENDIX)

CURVE = tuple(Experiment(f"curve/{epochs}", 100, replace(FULL, epochs=epochs)) for epochs in (5, 10, 20, 50, 150))
"""Not in the paper: the full ladder at 100 labels, by number of epochs. The last one shares records with Table 1."""

EXPERIMENTS = (*(experiment for table in TABLES for experiment in table.experiments), *CURVE)
