"""Recipe: every hyperparameter of a training run, and the defaults that follow from the data. Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from difflib import get_close_matches
from math import ceil, isfinite
from operator import index
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

from tikas.model.specs import (
    ActivationName,
    DenoiserName,
    Dense,
    GlobalMeanPool,
    MapTooSmallError,
    RungSpec,
    Task,
    channels_last_hint,
    parse_rung,
    rung_text,
)
from tikas.model.zoo import MODULES, NETWORKS, smallest_side

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tikas.model.ladder import Model

Calibration = Literal["all", "labeled"]
Preprocess = Literal["auto", "none", "columns", "pixels", "standardize", "whiten"]
Precision = Literal["fast", "exact"]
Network = tuple[int | str, ...]

TOP = "top"
"""Last item of a network that should get a dense top although it ends in a pooling rung that could be the top."""

MAX_RUNGS = 1000

PIXEL_VARIANCE = 0.1
"""Pixels in [0, 1] have columns of less variance than this, on average; standardized columns have 1."""

MAX_USUAL_RATE, MAX_USUAL_NOISE = 1.0, 5.0
"""Larger learning rates, and noise of more than this many deviations, are told as mistakes."""

CONSTANT = 1e-12
"""A column with less than this share of the largest variance is constant up to rounding."""

CHUNK = 2**17
"""Values of which the variance is computed at a time, so that it needs little memory beside the rows."""


class UnusualSettingWarning(UserWarning):
    """A setting with which training is likely to learn nothing."""


@dataclass(frozen=True)
class Recipe:
    """Every hyperparameter of a training run. The defaults are the paper's, for 100 labels of MNIST.

    Equal settings compare equal however they are written: numbers, NumPy values and `RungSpec`s are converted to one
    form, and trailing repetitions in `noise` and `costs` are removed.

    Parameters
    ----------
    task : {"classification", "regression"}, default="classification"
    preprocess : {"none", "columns", "pixels", "standardize", "whiten", "auto"}, default="none"
        Transform of the rows: none; columns of a table by what they hold; pixels divided by their largest value;
        columns to mean 0 and deviation 1; contrast normalization and ZCA of images. ``"auto"`` is for estimators, which
        replace it by what they choose.
    network : str or sequence of (int, str or RungSpec), default=(1000, 500, 250, 250, 250)
        Hidden rungs from the bottom up: units of dense rungs, specs, or texts such as ``"conv 32 5 full"``,
        ``"max 2"``, ``"dense 100 tanh"`` and ``"global"``. A dense top is added, unless the network ends in
        ``"global"`` without ``"top"`` behind it. Or the name of a network of the paper: ``"mlp"``, ``"conv_fc"``,
        ``"conv_small"``, ``"conv_large"``, or ``"conv_pool_cnn_c"``, which becomes a Γ-model.
    activation : {"relu", "leaky_relu", "tanh", "gelu", "linear"}, default="relu"
        Activation of the hidden rungs that do not set their own.
    noise : float or sequence of float, default=0.3
        Deviation of the noise on the input and on each rung; the last one holds for all rungs above it.
    costs : float or sequence of float, default=(1000, 10, 0.1)
        Weights λ of the denoising costs from the input up; the last one holds for all rungs above it. A single number
        is the top's alone (Γ-model); 0 trains the supervised network.
    denoiser : {"gaussian", "mlp", "no-product", "linear", "additive"}, default="gaussian"
    epochs : int, default=150
        Passes over the unlabeled rows.
    annealed : float, default=1/3
        Share of the updates, at the end, over which the learning rate falls linearly to zero.
    learning_rate : float, default=0.002
        Learning rate of Adam.
    batch_size : int, default=100
        Unlabeled rows per update.
    labeled_batch_size : int, default=100
        Labeled rows per update. With fewer labels than that, rows are repeated with different noise.
    calibration : {"all", "labeled"}, default="all"
        Training rows whose statistics are used for prediction; the paper's authors took the labeled ones.
    precision : {"fast", "exact"}, default="fast"
        ``"fast"``: bf16 or TF32 products where they are faster. ``"exact"``: float32 throughout.
    early_stopping : bool, default=False
        Whether a member keeps the weights of its smallest validation error, and training ends when the error of no
        member has decreased by `tol` for `n_iter_no_change` epochs. Splits must have validation rows.
    n_iter_no_change : int, default=10
        Epochs without such a decrease that end the training.
    tol : float, default=1e-4
        Decrease that counts: of the share of wrong rows, or of the error of standardized targets.

    Examples
    --------
    >>> recipe = Recipe(epochs=10, noise=(0.3, 0.3))
    >>> recipe.noise, recipe.cost_per_level()
    ((0.3,), (1000.0, 10.0, 0.1, 0.1, 0.1, 0.1, 0.1))
    >>> Recipe.from_json(recipe.to_json()) == recipe
    True
    """

    task: Task = "classification"
    preprocess: Preprocess = "none"
    network: Network = (1000, 500, 250, 250, 250)
    activation: ActivationName = "relu"
    noise: tuple[float, ...] = (0.3,)
    costs: tuple[float, ...] = (1000.0, 10.0, 0.1)
    denoiser: DenoiserName = "gaussian"
    epochs: int = 150
    annealed: float = 1 / 3
    learning_rate: float = 0.002
    batch_size: int = 100
    labeled_batch_size: int = 100
    calibration: Calibration = "all"
    precision: Precision = "fast"
    early_stopping: bool = False
    n_iter_no_change: int = 10
    tol: float = 1e-4

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "labeled_batch_size", "n_iter_no_change"):
            self._convert(name, _integer, "an integer")
        for name in ("learning_rate", "annealed", "tol"):
            self._convert(name, _number, "a number")
        self._convert("early_stopping", _boolean, "True or False")
        object.__setattr__(self, "network", _parse_network(self.network))
        for name in ("noise", "costs"):
            self._convert(name, _numbers, "a number or a sequence of numbers")
        self._check()
        object.__setattr__(self, "noise", _shortest(self.noise))
        costs = self.cost_per_level()
        object.__setattr__(self, "costs", _shortest(costs, least=2) if any(costs[:-1]) else costs[-1:])

    def _convert(self, name: str, convert: Callable[[Any], object], expected: str) -> None:
        try:
            object.__setattr__(self, name, convert(getattr(self, name)))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name}={getattr(self, name)!r}: expected {expected}.") from error

    def _check(self) -> None:
        for name, literal in (
            ("task", Task),
            ("activation", ActivationName),
            ("denoiser", DenoiserName),
            ("preprocess", Preprocess),
            ("calibration", Calibration),
            ("precision", Precision),
        ):
            self._require(getattr(self, name) in get_args(literal), name, "one of " + _quoted(get_args(literal)))
        for name in ("epochs", "n_iter_no_change"):
            self._require(getattr(self, name) >= 1, name, "at least 1")
        self._require(0 <= self.tol < float("inf"), "tol", "a finite number of at least 0")
        for name in ("batch_size", "labeled_batch_size"):
            self._require(getattr(self, name) >= 2, name, "at least 2, for the statistics of a batch")
        self._require(0 < self.learning_rate < float("inf"), "learning_rate", "a finite number above 0")
        self._require(0 <= self.annealed <= 1, "annealed", "a number from 0 to 1")
        if self.is_module:
            check_module_settings(vars(self), f"network={self.network[0]!r}")
        levels = self.levels
        for name in ("noise", "costs"):
            values = getattr(self, name)
            valid = 1 <= len(values) <= levels and all(isfinite(value) and value >= 0 for value in values)
            self._require(valid, name, f"1 to {levels} finite numbers of at least 0")

    def _require(self, valid: bool, name: str, expected: str) -> None:
        if not valid:
            raise ValueError(f"{name}={getattr(self, name)!r}: expected {expected}.")

    @property
    def is_module(self) -> bool:
        """Whether the network is a module by name, trained as a Γ-model, instead of rungs."""
        return _is_module(self.network)

    @property
    def takes_maps(self) -> bool:
        """Whether the network begins with a convolution or pooling, so that rows must be images."""
        return takes_maps(self.network)

    @property
    def levels(self) -> int:
        """Number of levels: the input, the hidden rungs and the top."""
        return 1 + len(_rungs(self.network, 1))

    def rungs(self, n_outputs: int) -> list[RungSpec]:
        """Return the rungs of the ladder, the top included."""
        *hidden, top = _rungs(self.network, n_outputs)
        return [*(rung.with_activation(self.activation) for rung in hidden), top]

    def noise_per_level(self) -> tuple[float, ...]:
        """Return the deviation of the noise at every level."""
        return self.noise + self.noise[-1:] * (self.levels - len(self.noise))

    def cost_per_level(self) -> tuple[float, ...]:
        """Return λ of every level."""
        if len(self.costs) == 1:
            return (0.0,) * (self.levels - 1) + self.costs
        return self.costs + self.costs[-1:] * (self.levels - len(self.costs))

    def rate(self, update: int, updates: int) -> float:
        """Return the learning rate of update number `update`, from 0, of `updates`."""
        annealing, left = self.annealed * updates, updates - update
        return self.learning_rate if left >= annealing else self.learning_rate * left / annealing

    def build(self, input_shape: Sequence[int], n_outputs: int, seed: int) -> Model:
        """Return the ladder or Γ-model of this recipe, its initial weights drawn from `seed`.

        Raises
        ------
        ValueError
            If the network does not fit the shape of the rows or the number of outputs.
        """
        from tikas.data.batches import generator
        from tikas.model.ladder import Ladder
        from tikas.training.environment import float32_default

        shape, name = tuple(input_shape), str(self.network[0]) if self.network else ""
        try:
            with float32_default():
                if self.is_module:
                    return self._build_gamma(name, shape, n_outputs, seed)
                ladder = Ladder(
                    input_shape=shape,
                    rungs=self.rungs(n_outputs),
                    noise=self.noise_per_level(),
                    costs=self.cost_per_level(),
                    denoiser=self.denoiser,
                    task=self.task,
                    generator=generator(seed, "weights"),
                )
        except (MapTooSmallError, RuntimeError) as error:
            if name not in (*NETWORKS, *MODULES) or min(shape[1:], default=0) >= smallest_side(name):
                raise
            side = smallest_side(name)
            raise MapTooSmallError(
                f"network={name!r} takes images of at least {side} by {side} pixels, but the rows have shape {shape}. "
                "Give larger images, or choose rungs, for example network=['conv 32 3', 'max 2', 100]."
                f"{channels_last_hint(shape)}"
            ) from error
        if ladder.shapes[-1] != (n_outputs,):
            raise ValueError(
                f"network={self.network!r} ends in a top of shape {ladder.shapes[-1]}, but the data needs "
                f"{(n_outputs,)}. Add 'top' for a dense top, network={(*self.network, TOP)!r}, or give the rung below "
                f"'global' {n_outputs} channels."
            )
        return ladder

    def _build_gamma(self, name: str, shape: tuple[int, ...], n_outputs: int, seed: int) -> Model:
        import torch

        from tikas.model.gamma import gamma
        from tikas.training.environment import private_random_state

        with private_random_state(seed):  # layers draw their initial weights from the global generator
            network = MODULES[name](n_outputs, shape[0])
        return gamma(network, n_outputs, self.noise_per_level(), self.costs[0], example=torch.zeros(2, *shape))

    def to_json(self) -> str:
        """Return the recipe as JSON, for `from_json`."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the recipe that `to_json` wrote; fields that this version does not know are an error."""
        values: Mapping[str, Any] = json.loads(text)
        unknown = set(values) - {field.name for field in fields(cls)}
        if unknown:
            raise ValueError(f"Unknown fields in a recipe: {', '.join(sorted(unknown))}. Update tikas to read it.")
        return cls(**values)


PAPER_COSTS_ON_MAPS: dict[int | str, tuple[float, ...]] = {
    "conv_fc": (1000.0, 10.0, 0.1),
    "conv_small": (1.0,),
    "conv_large": (4.0,),
}


def default_costs(network: Any, rows: NDArray[Any], task: Task) -> tuple[float, ...]:
    """Return the default costs for a network, in any form that `Recipe` takes, and rows in the shape that it takes.

    Regression: 1, 0.1. Networks on images: the paper's, else 1 at the top. Dense networks: the paper's for columns that
    vary like pixels in [0, 1], smaller ones for larger variance, since the squared error grows with it.
    """
    network = _parse_network(network)
    if task == "regression":
        return 1.0, 0.1
    if takes_maps(network):
        return PAPER_COSTS_ON_MAPS.get(network[0], (1.0,))
    variance = _mean_variance(rows)
    bottom = 1000.0 if variance <= PIXEL_VARIANCE else max(0.1, float(f"{10 / variance**2:.3g}"))
    costs = bottom, max(1.0, bottom / 100), 0.1
    levels = 1 + len(_rungs(network, 1))
    return costs if len(costs) <= levels else (*costs[: levels - 1], costs[-1])


def default_epochs(rows: NDArray[Any], batch_size: int, *, is_module: bool = False, n_rows: int | None = None) -> int:
    """Return the default number of epochs: 100, or 300 for flat rows whose columns vary more than pixels.

    More where that makes fewer than 900 updates, fewer (but at least 10) where it makes more than 15,000. User modules
    get 100, whatever the rows. If `rows` are only a sample, `n_rows` is the number of all.
    """
    many = not is_module and rows.ndim == 2 and _mean_variance(rows) > PIXEL_VARIANCE
    updates = max(1, (n_rows or len(rows)) // batch_size)
    return max(min(300 if many else SMALL.epochs, 15_000 // updates), 10, ceil(900 / updates))


def unusual_settings(recipe: Recipe, deviation: float) -> list[str]:
    """Return a message for each setting that no network learns with; `deviation` is that of the training rows."""
    messages = []
    if recipe.learning_rate > MAX_USUAL_RATE:
        messages.append(
            f"learning_rate={recipe.learning_rate:g} moves every weight by about that much in an update, and weights "
            "are about 1. Choose about 0.005, usually 0.0005 to 0.02."
        )
    bottom, *above = recipe.noise_per_level()
    if bottom > MAX_USUAL_NOISE * max(1.0, deviation) or max(above) > MAX_USUAL_NOISE:
        given = recipe.noise[0] if len(recipe.noise) == 1 else recipe.noise
        messages.append(
            f"noise={given} hides the values that it is added to: layers have a deviation of 1, the rows one of "
            f"{deviation:.2g}. Choose about 0.2, usually 0.1 to 1."
        )
    return messages


def check_module_settings(settings: Mapping[str, Any], network: str) -> None:
    """Raise if settings are for rungs, where the network (as the message names it) is a module with a Γ-model."""
    if settings["task"] != "classification":
        raise ValueError(
            f"{network} is trained as a Γ-model, which denoises class scores: it cannot be used for regression. Give "
            "rungs, for example network=['conv 32 3', 'max 2', 100]."
        )
    for name in ("activation", "denoiser"):
        if settings[name] != getattr(Recipe, name):
            raise ValueError(f"{name}={settings[name]!r} applies to rungs, but {network} has none. Leave {name} out.")
    costs = settings["costs"]
    if isinstance(costs, Sequence) and len(costs) != 1:
        raise ValueError(f"costs={costs!r}: {network} has one denoising cost, on its class scores. Give one number.")


def takes_maps(network: Network) -> bool:
    """Return whether a network begins with a convolution or pooling, so that rows must be images."""
    return _is_module(network) or not isinstance(_rungs(network, 1)[0], Dense)


def _is_module(network: Network) -> bool:
    return bool(network) and network[0] in MODULES


def _rungs(network: Network, n_outputs: int) -> list[RungSpec]:
    """Return the rungs of a network, the top included; for a module, the top that the Γ-model adds."""
    if _is_module(network):
        return [Dense(n_outputs)]
    if network and network[0] in NETWORKS:
        return list(NETWORKS[str(network[0])](n_outputs))
    rungs = [Dense(rung) if isinstance(rung, int) else parse_rung(rung) for rung in network if rung != TOP]
    if not rungs or not isinstance(rungs[-1], GlobalMeanPool) or TOP in network:
        rungs.append(Dense(n_outputs))
    return rungs


def _parse_network(given: Any) -> Network:
    """Return a network in its one form: units, texts of other rungs, or one name."""
    items = (given,) if isinstance(given, str | RungSpec) or not isinstance(given, Iterable) else tuple(given)
    if len(items) > MAX_RUNGS:
        raise ValueError(f"network has {len(items)} rungs; expected at most {MAX_RUNGS}.")
    names = (*NETWORKS, *MODULES)
    if len(items) == 1 and isinstance(items[0], str) and items[0] in names:
        return (items[0],)
    try:
        network = tuple(_parse_item(item) for item in items)
        if TOP in network[:-1]:
            raise ValueError("'top' must be the last item.")
    except (TypeError, ValueError) as error:
        name = items[0].lower() if len(items) == 1 and isinstance(items[0], str) else ""
        close = get_close_matches(name, names, n=1, cutoff=0.8)
        suggestion = f" Did you mean {close[0]!r}?" if close else ""
        raise ValueError(
            f"network={given!r}: expected numbers of units, rungs such as 'conv 32 5 full' and 'max 2', or the name of "
            f"a network: {', '.join(names)}. {error}{suggestion} LadderClassifier also takes any torch.nn.Module."
        ) from error
    top_is_optional = len(network) > 1 and str(network[-2]).split()[0] == GlobalMeanPool.kind
    return network if top_is_optional or TOP not in network else network[:-1]


def _parse_item(item: Any) -> int | str:
    """Return units for a plain dense rung, else the text of the rung."""
    if isinstance(item, str) and item.strip() == TOP:
        return TOP
    if hasattr(item, "state_dict"):  # a torch module; torch is not imported for the sake of this message
        raise TypeError(f"{item!r} is a layer; give all layers in one nn.Sequential, or rungs such as Conv(32, 5).")
    spec = item if isinstance(item, RungSpec) else parse_rung(item) if isinstance(item, str) else Dense(item)
    if isinstance(spec, Dense) and spec == Dense(spec.features):
        return spec.features
    return rung_text(spec)


def _integer(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError("a boolean is not a number")
    return index(value)


def _boolean(value: Any) -> bool:
    if type(value).__name__ not in ("bool", "bool_"):  # NumPy's, in both of its versions
        raise TypeError("not a boolean")
    return bool(value)


def _number(value: Any) -> float:
    if isinstance(value, bool | str):
        raise TypeError("a boolean or text is not a number")
    return float(value)


def _numbers(value: Any) -> tuple[float, ...]:
    if isinstance(value, str):
        raise TypeError("text is not numbers")
    return tuple(map(_number, value if isinstance(value, Iterable) else (value,)))


def _shortest(levels: tuple[float, ...], least: int = 1) -> tuple[float, ...]:
    """Remove trailing values that equal the one before them."""
    while len(levels) > least and levels[-1] == levels[-2]:
        levels = levels[:-1]
    return levels


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))


def _mean_variance(rows: NDArray[Any]) -> float:
    """Return the mean variance of the columns; constant ones are left out where values differ by more than 1.

    Standardized columns next to constant ones must not look like pixels. Constant pixels, however, are the border of
    images, and count: without them 100 rows of MNIST would exceed `PIXEL_VARIANCE`, and all 60,000 would not.
    """
    mean = rows.mean(0, dtype=float)
    size = max(1, CHUNK // mean.size)
    squares = (((rows[start : start + size] - mean) ** 2).sum(0) for start in range(0, len(rows), size))
    variances: NDArray[Any] = sum(squares) / len(rows)
    if rows.max() - rows.min() > 1:
        variances = variances[variances >= CONSTANT * variances.max()]
    return float(variances.mean())


SMALL = Recipe(network=(256, 128), noise=(0.2,), epochs=100, learning_rate=0.005, labeled_batch_size=50)
"""Defaults of the estimators: chosen for the 8×8 digits of scikit-learn, and good for other small data sets."""
