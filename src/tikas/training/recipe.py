"""The recipe: everything that a run depends on but its seed, as one frozen value that has a name."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from hashlib import sha256
from math import isfinite
from operator import index
from typing import Any, Literal, Self, get_args

from tikas.model.names import ActivationName, DenoiserName, Task
from tikas.model.specs import RungSpec
from tikas.training.networks import Network, in_one_form, is_module, rungs_of, takes_maps

Calibration = Literal["all", "labeled"]
Preprocess = Literal["none", "standardize", "whiten"]
Precision = Literal["fast", "exact"]

NEW_FIELDS = ("preprocess", "precision")
"""Fields that are part of a recipe's name only where they are not at their default: records from before keep theirs."""


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
    >>> Recipe(noise=(0.3, 0.3)).noise  # one form for what is the same
    (0.3,)
    """

    data: str = "mnist"
    """Where the rows come from: digits, mnist, fashion-mnist, cifar10, or the path of a table or of a folder of
    images."""
    labels: int | Literal["all"] = 100
    """How many labels are used, balanced over the classes, or all that there are."""
    validation: int = 0
    """How many training rows are held out, to report their error while it trains and at the end."""
    task: Task = "classification"
    """Classes on top, or values."""
    preprocess: Preprocess = "none"
    """What is done to the rows first: nothing, columns brought to mean 0 and deviation 1, or contrast normalisation and
    ZCA of images, as the paper does for CIFAR-10."""
    network: Network = (1000, 500, 250, 250, 250)
    """The hidden rungs from the bottom up: units of dense ones, or texts such as 'conv 32 5 full', 'max 2', 'mean 3
    stride=2', 'dense 100 tanh', 'global'. The dense top follows by itself; a network that ends in 'global' has its top
    there, unless 'top' asks for a dense one. Or a whole network by name: mlp, conv_fc, conv_small, conv_large, or
    conv_pool_cnn_c, which gets the Γ-model."""
    activation: ActivationName = "relu"
    """Of the hidden rungs that do not say their own."""
    noise: tuple[float, ...] = (0.3,)
    """Deviation of the noise on the input and on each rung; the last one given holds for the rungs above it."""
    costs: tuple[float, ...] = (1000.0, 10.0, 0.1)
    """Weights of the denoising costs, the input's first; the last one given holds for the rungs above it. One alone is
    the top's (the Γ-model); 0 leaves the supervised network."""
    denoiser: DenoiserName = "gaussian"
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
    precision: Precision = "fast"
    """Of the products: bf16 or TF32 on a GPU, and bf16 in long runs of dense ladders on a CPU that is quicker by it; or
    exactly float32. Where a GPU's update is written out, also of the noise and of Adam's means."""

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "labeled_batch_size", "validation"):
            self._set(name, _whole, "a whole number")
        if self.labels != "all":
            self._set("labels", _whole, "a whole number, or 'all'")
        for name in ("learning_rate", "annealed"):
            self._set(name, _number, "a number")
        object.__setattr__(self, "network", in_one_form(self.network))
        for name in ("noise", "costs"):
            self._set(name, lambda values: tuple(map(_number, _each(values))), "numbers")
        self._check()
        costs = self.levels_of_costs()
        object.__setattr__(self, "noise", _shortest(self.noise))
        object.__setattr__(self, "costs", _shortest(costs, least=2) if any(costs[:-1]) else costs[-1:])

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
            ("denoiser", DenoiserName),
            ("preprocess", Preprocess),
            ("calibration", Calibration),
            ("precision", Precision),
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
        if self.is_module:
            check_around_module(vars(self), f"network={self.network[0]!r}")
        for name in ("noise", "costs"):
            values = getattr(self, name)
            good = 1 <= len(values) <= self.levels and all(isfinite(v) and v >= 0 for v in values)
            _require(good, name, self, f"1 to {self.levels} finite numbers of at least 0")

    def rungs(self, outputs: int) -> list[RungSpec]:
        """The rungs of the ladder, the top included.

        Examples
        --------
        >>> Recipe(network=("conv 8 3", "max 2", 20)).rungs(outputs=10)[1:]
        [MaxPool(size=2, stride=None, rounding='up'), Dense(features=20, activation='relu', scale=True),
         Dense(features=10, activation=None, scale=True)]
        """
        rungs = rungs_of(self.network, outputs)
        return [*(rung.with_activation(self.activation) for rung in rungs[:-1]), rungs[-1]]

    @property
    def is_module(self) -> bool:
        """Whether the network is no ladder, but a module that gets the Γ-model.

        Examples
        --------
        >>> Recipe(network="conv_pool_cnn_c", costs=1.0).is_module, Recipe(network="mlp").is_module
        (True, False)
        """
        return is_module(self.network)

    @property
    def takes_maps(self) -> bool:
        """Whether the network begins with work on maps, so that rows must be images.

        Examples
        --------
        >>> Recipe(network="conv_small").takes_maps, Recipe(network="mlp").takes_maps
        (True, False)
        """
        return takes_maps(self.network)

    @property
    def levels(self) -> int:
        """The input, the hidden rungs and the top."""
        return 1 + len(self.rungs(outputs=1))

    def levels_of_noise(self) -> tuple[float, ...]:
        """The deviation of the noise at every level."""
        return self.noise + self.noise[-1:] * (self.levels - len(self.noise))

    def levels_of_costs(self) -> tuple[float, ...]:
        """λ of every level."""
        if len(self.costs) == 1:
            return (0.0,) * (self.levels - 1) + self.costs
        return self.costs + self.costs[-1:] * (self.levels - len(self.costs))

    def rate(self, update: int, updates: int) -> float:
        """The learning rate of update number `update`, from 0, of `updates`.

        Examples
        --------
        >>> [Recipe(learning_rate=0.002, annealed=0.5).rate(update, updates=8) for update in (0, 4, 6, 7)]
        [0.002, 0.002, 0.001, 0.0005]
        """
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
        """Twelve hexadecimal digits that stand for this recipe: a hash of its fields."""
        values = asdict(self)
        for field in fields(self):
            if field.name in NEW_FIELDS and values[field.name] == field.default:
                del values[field.name]
        return sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]


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


def _shortest(levels: tuple[float, ...], least: int = 1) -> tuple[float, ...]:
    """Without the last ones that say the same as those before them."""
    while len(levels) > least and levels[-1] == levels[-2]:
        levels = levels[:-1]
    return levels


def _require(good: bool, name: str, recipe: Recipe, expected: str) -> None:
    if not good:
        raise ValueError(f"{name}={getattr(recipe, name)!r}: expected {expected}.")


def check_around_module(settings: Mapping[str, Any], whose: str) -> None:
    """Refuse what is for rungs where the network is a module, named as `whose`, with the Γ-model around it.

    Examples
    --------
    >>> check_around_module({**vars(Recipe()), "activation": "tanh"}, "a network of your own")
    Traceback (most recent call last):
    ValueError: activation='tanh' is for rungs, and a network of your own has none. Leave activation out.
    """
    if settings["task"] != "classification":
        raise ValueError(
            f"As {whose} gets the Γ-model, which denoises class scores, give a regression rungs, for example "
            "network=['conv 32 3', 'max 2', 100]."
        )
    for name in ("activation", "denoiser"):
        if settings[name] != getattr(Recipe, name):
            raise ValueError(f"{name}={settings[name]!r} is for rungs, and {whose} has none. Leave {name} out.")
    costs = settings["costs"]
    if isinstance(costs, Sequence) and len(costs) != 1:
        raise ValueError(f"costs={costs!r}: {whose} has one denoising cost, on its class scores. Give one number.")


DIGITS = Recipe(
    data="digits",
    labels=50,
    network=(256, 128),
    noise=(0.2,),
    epochs=100,
    learning_rate=0.005,
    labeled_batch_size=50,
)
"""For the 8×8 digits that ship with scikit-learn, and what other rows of one's own start from."""
