"""The recipe: everything that a run depends on but its seed, as one frozen value that has a name."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from hashlib import sha256
from math import ceil, isfinite
from operator import index
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

if TYPE_CHECKING:
    from numpy.typing import NDArray

Task = Literal["classification", "regression"]
Calibration = Literal["all", "labeled"]
Denoiser = Literal["gaussian", "mlp", "no-product", "linear", "additive"]
ActivationName = Literal["relu", "leaky_relu", "tanh", "gelu", "linear"]


@dataclass(frozen=True)
class Recipe:
    """Everything that a run depends on but its seed. The defaults are the paper's, for 100 labels of MNIST.

    Examples
    --------
    >>> recipe = Recipe(epochs=10)
    >>> recipe.levels_of_costs(), recipe.levels_of_noise()[:2]
    ((1000.0, 10.0, 0.1, 0.1, 0.1, 0.1, 0.1), (0.3, 0.3))
    >>> Recipe.from_json(recipe.to_json()) == recipe
    True
    """

    data: str = "mnist"
    """Where the rows come from: digits, mnist, fashion-mnist, or a name of your own for arrays."""
    labels: int | Literal["all"] = 100
    """How many labels are used, balanced over the classes, or all that there are."""
    validation: int = 0
    """How many training rows are held out, to report their error after every epoch."""
    task: Task = "classification"
    """Classes on top, or values."""
    network: tuple[int, ...] = (1000, 500, 250, 250, 250)
    """Units of the hidden rungs, from the bottom up; the top's follow from the data."""
    activation: ActivationName = "relu"
    """Of the hidden rungs."""
    noise: tuple[float, ...] = (0.3,)
    """Deviation of the noise on the input and on each rung; the last one given holds for the rungs above it."""
    costs: tuple[float, ...] = (1000.0, 10.0, 0.1)
    """Weights of the denoising costs, the input's first; the last one given holds for the rungs above it. One alone is
    the top's (the Γ-model); 0 leaves the supervised network."""
    denoiser: Denoiser = "gaussian"
    """The denoising function."""
    epochs: int = 150
    """Passes over the unlabelled rows."""
    annealed: float = 1 / 3
    """Share of the updates, at the end, over which the learning rate goes linearly to zero."""
    learning_rate: float = 0.002
    """Of Adam."""
    batch_size: int = 100
    """Unlabelled rows in an update."""
    labeled_batch_size: int = 100
    """Labelled rows in an update; fewer labels than that are repeated, each time with other noise."""
    calibration: Calibration = "all"
    """Which training rows the statistics for prediction come from; the paper's authors took the labelled ones."""

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "labeled_batch_size", "validation"):
            self._set(name, _whole, "a whole number")
        if self.labels != "all":
            self._set("labels", _whole, "a whole number, or 'all'")
        for name in ("learning_rate", "annealed"):
            self._set(name, _number, "a number")
        self._set("network", lambda units: tuple(map(_whole, _each(units))), "whole numbers")
        for name in ("noise", "costs"):
            self._set(name, lambda values: tuple(map(_number, _each(values))), "numbers")
        self._check()

    def _set(self, name: str, convert: Callable[[Any], object], expected: str) -> None:
        """Bring a field to its one form, so that equal recipes have equal names."""
        try:
            object.__setattr__(self, name, convert(getattr(self, name)))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name}={getattr(self, name)!r}: expected {expected}.") from error

    def _check(self) -> None:
        for name, kind in (
            ("task", Task),
            ("activation", ActivationName),
            ("denoiser", Denoiser),
            ("calibration", Calibration),
        ):
            choices = get_args(kind)
            _require(getattr(self, name) in choices, name, self, f"one of {', '.join(map(repr, choices))}")
        _require(self.epochs >= 1, "epochs", self, "at least 1")
        for name in ("batch_size", "labeled_batch_size"):
            _require(getattr(self, name) >= 2, name, self, "at least 2, for the statistics of a batch")
        _require(self.labels == "all" or self.labels >= 1, "labels", self, "at least 1, or 'all'")
        _require(self.validation >= 0, "validation", self, "at least 0")
        _require(0 < self.learning_rate < float("inf"), "learning_rate", self, "above 0")
        _require(0 <= self.annealed <= 1, "annealed", self, "between 0 and 1")
        _require(all(units >= 1 for units in self.network), "network", self, "positive whole numbers")
        for name in ("noise", "costs"):
            values = getattr(self, name)
            good = 1 <= len(values) <= self.levels and all(isfinite(v) and v >= 0 for v in values)
            _require(good, name, self, f"1 to {self.levels} finite numbers of at least 0")

    @property
    def levels(self) -> int:
        """The input, the hidden rungs and the top."""
        return len(self.network) + 2

    def levels_of_noise(self) -> tuple[float, ...]:
        """The deviation of the noise at every level."""
        return self.noise + self.noise[-1:] * (self.levels - len(self.noise))

    def levels_of_costs(self) -> tuple[float, ...]:
        """λ of every level."""
        if len(self.costs) == 1:
            return (0.0,) * (self.levels - 1) + self.costs
        return self.costs + self.costs[-1:] * (self.levels - len(self.costs))

    def rate(self, update: int, updates: int) -> float:
        """The learning rate of update number `update`, from 0, of `updates`."""
        annealing = self.annealed * updates
        left = updates - update
        return self.learning_rate if left >= annealing else self.learning_rate * left / annealing

    def without_denoising(self) -> Self:
        """The same network as a supervised one."""
        return replace(self, costs=(0.0,))

    def to_json(self) -> str:
        """As text; `from_json` reads it back."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read a recipe that `to_json` wrote; fields that this version does not know are an error."""
        values: Mapping[str, Any] = json.loads(text)
        unknown = set(values) - {field.name for field in fields(cls)}
        if unknown:
            raise ValueError(f"This recipe has fields that tikas does not know: {', '.join(sorted(unknown))}.")
        return cls(**values)

    @property
    def name(self) -> str:
        """Twelve letters that stand for this recipe and no other."""
        return sha256(self.to_json().encode()).hexdigest()[:12]


def _whole(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError("a boolean is not a number")
    return index(value)


def _number(value: Any) -> float:
    if isinstance(value, bool | str):
        raise TypeError("a boolean or text is not a number")
    return float(value)


def _each(value: Any) -> Iterable[Any]:
    """The values of a sequence, or a value alone."""
    if isinstance(value, str):
        raise TypeError("text is not numbers")
    return value if isinstance(value, Iterable) else (value,)


def _require(good: bool, name: str, recipe: Recipe, expected: str) -> None:
    if not good:
        raise ValueError(f"{name}={getattr(recipe, name)!r}: expected {expected}.")


DIGITS = Recipe(
    data="digits",
    labels=50,
    network=(256, 128),
    noise=(0.2,),
    epochs=75,
    learning_rate=0.005,
    labeled_batch_size=50,
)
"""For the 8×8 digits that ship with scikit-learn, and for other tables of a few thousand rows."""


def suitable_costs(rows: "NDArray[Any]") -> tuple[float, ...]:
    """Costs for rows of this scale: the paper's where columns vary as pixels in [0, 1] do, smaller ones beyond.

    A reconstruction's squared error grows with the variance of the columns, and so does the noise that can be taken out
    of them; on standardised columns the input's cost is 10.
    """
    variance = float(rows.var(0, dtype=float).mean())
    bottom = 1000.0 if variance <= 0.1 else max(0.1, float(f"{10 / variance**2:.3g}"))
    return bottom, max(1.0, bottom / 100), 0.1


def suitable_epochs(rows: int, batch_size: int) -> int:
    """Those of the digits, or as many as make 900 updates if these do not, but no more than make 15,000."""
    updates = max(1, rows // batch_size)
    return max(min(DIGITS.epochs, 15_000 // updates), 10, ceil(900 / updates))
