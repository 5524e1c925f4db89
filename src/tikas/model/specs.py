"""Specs: descriptions of the rungs of a ladder, written by users. Imports no torch, so that the module loads fast."""

from collections.abc import Iterable, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from numbers import Integral
from typing import Any, ClassVar, Literal, Self, get_args

Task = Literal["classification", "regression"]
DenoiserName = Literal["gaussian", "mlp", "no-product", "linear", "additive"]
ActivationName = Literal["relu", "leaky_relu", "tanh", "gelu", "linear"]
Padding = Literal["valid", "same", "full"]
Rounding = Literal["up", "down"]
Shape = tuple[int, ...]
"""The shape of one row of a level: ``(units,)``, or ``(channels, height, width)`` for (feature) maps."""

CHOICES: dict[str, tuple[str, ...]] = {
    "padding": get_args(Padding),
    "activation": get_args(ActivationName),
    "rounding": get_args(Rounding),
}
COUNTS = ("features", "kernel", "size", "stride")

MAX_CHANNELS = 4
"""Largest number of channels of ordinary images: color with transparency."""

MIN_SIDE = 16
"""Images that are not square are recognized as channels-last only if both sides are at least this long."""


class MapTooSmallError(ValueError):
    """A map is smaller than the kernel or the window that should slide over it."""


@dataclass(frozen=True)
class RungSpec:
    """Base class of the rung specs: checks their fields."""

    kind: ClassVar[str]

    def __post_init__(self) -> None:
        for field in fields(self):
            name, value = field.name, getattr(self, field.name)
            if value is None and field.default is None:
                continue
            if name in COUNTS:
                if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
                    raise ValueError(f"{type(self).__name__}: {name}={value!r} must be a positive integer.")
                object.__setattr__(self, name, int(value))  # NumPy's integers too
            if name in CHOICES and value not in CHOICES[name]:
                choices = ", ".join(map(repr, CHOICES[name]))
                raise ValueError(f"{type(self).__name__}: {name}={value!r} is unknown; choose one of {choices}.")

    def shape(self, below: Shape) -> Shape:
        """Return the shape of this rung's level for a level below of shape `below`."""
        raise NotImplementedError

    def with_activation(self, name: ActivationName) -> Self:
        """Return this rung with the given activation, if it takes one and has none set."""
        if getattr(self, "activation", name) is not None:
            return self
        return replace(self, activation=name)  # type: ignore[call-arg]

    def _maps(self, below: Shape) -> tuple[int, int, int]:
        """Return the channels, height and width of the level below; raise ValueError if it has none."""
        if len(below) != 3:
            raise ValueError(f"{self!r} needs maps (channels, height, width); the level below it has shape {below}.")
        channels, height, width = below
        return channels, height, width


@dataclass(frozen=True)
class Dense(RungSpec):
    """A fully connected rung. Maps below it are flattened.

    Parameters
    ----------
    features : int
        Number of units.
    activation : {"relu", "leaky_relu", "tanh", "gelu", "linear"}, optional
        Activation of a hidden rung; ``"leaky_relu"`` has slope 0.1. None means the activation of the recipe or, without
        a recipe, ``"relu"``. Ignored at the top, which is linear or a softmax according to the ladder's task.
    scale : bool, default=True
        Whether the top has a scale γ besides its bias β. Ignored below the top.

    Examples
    --------
    >>> from tikas import Dense
    >>> Dense(1000).shape((1, 28, 28))
    (1000,)
    """

    kind = "dense"

    features: int
    activation: ActivationName | None = None
    scale: bool = True

    def shape(self, below: Shape) -> Shape:  # noqa: ARG002 - everything is flattened
        return (self.features,)


@dataclass(frozen=True)
class Conv(RungSpec):
    """A convolutional rung, with one bias, mean, deviation and set of denoiser parameters for each channel.

    Parameters
    ----------
    features : int
        Number of channels.
    kernel : int
        Height and width of the kernel.
    padding : {"valid", "same", "full"}, default="valid"
        Zeros around the map. ``"valid"``: none, the map shrinks by kernel − 1. ``"full"``: kernel − 1 on every side,
        the map grows by kernel − 1. ``"same"``: kernel − 1 in total, the map keeps its size; with an even kernel the
        odd zero is on the right and at the bottom.
    stride : int, default=1
        Step from one position of the kernel to the next.
    activation : {"relu", "leaky_relu", "tanh", "gelu", "linear"}, optional
        As for `Dense`.

    Notes
    -----
    The decoder mirrors the convolution: ``"valid"`` is reversed by ``"full"`` and the other way round. With a stride,
    the values from above are first spread `stride` positions apart, with zeros between them.

    Examples
    --------
    >>> from tikas import Conv
    >>> Conv(32, 5, padding="full").shape((1, 28, 28))
    (32, 32, 32)
    >>> Conv(64, 3, padding="same", stride=2).shape((3, 17, 17))
    (64, 9, 9)
    """

    kind = "conv"

    features: int
    kernel: int
    padding: Padding = "valid"
    stride: int = 1
    activation: ActivationName | None = None

    @property
    def zeros(self) -> tuple[int, int]:
        """Number of zeros before the first and after the last position of each side of the map."""
        total = self.kernel - 1
        if self.padding == "valid":
            return 0, 0
        if self.padding == "full":
            return total, total
        return total // 2, total - total // 2

    def shape(self, below: Shape) -> Shape:
        _, *sides = self._maps(below)
        steps = [side + sum(self.zeros) - self.kernel for side in sides]
        if min(steps) < 0:
            kernel = (self.kernel, self.kernel)
            raise MapTooSmallError(f"{self!r}: the kernel {kernel} is larger than the map below it, {below}.")
        return (self.features, *(step // self.stride + 1 for step in steps))


@dataclass(frozen=True)
class Pool(RungSpec):
    """Base class of `MaxPool` and `MeanPool`."""

    size: int
    stride: int | None = None
    rounding: Rounding = "up"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stride == self.size:
            object.__setattr__(self, "stride", None)  # the default, so that equal rungs compare equal

    @property
    def step(self) -> int:
        """Positions from one window to the next."""
        return self.stride or self.size

    def shape(self, below: Shape) -> Shape:
        channels, *sides = self._maps(below)
        if self.size > min(sides):
            window = (self.size, self.size)
            raise MapTooSmallError(f"{self!r}: the window {window} is larger than the map below it, {below}.")
        return (channels, *map(self._windows, sides))

    def _windows(self, side: int) -> int:
        """Return the number of windows along a side. Rounding up adds one that starts on the map but ends outside."""
        whole = (side - self.size) // self.step + 1
        partial = (whole - 1) * self.step + self.size < side and whole * self.step < side
        return whole + (partial and self.rounding == "up")


@dataclass(frozen=True)
class MaxPool(Pool):
    """Max pooling, as a linear rung with its own normalization, noise, denoiser and cost.

    Parameters
    ----------
    size : int
        Height and width of the window.
    stride : int, optional
        Step from one window to the next; by default `size`.
    rounding : {"up", "down"}, default="up"
        Whether a window that is cut off at the end of a map counts. ``"up"``: yes, 17 positions become 9. ``"down"``:
        no, 17 become 8, as in ``torch.nn.MaxPool2d``.

    Notes
    -----
    The decoder copies each value to every position of its window. A position in several windows gets the mean of their
    values, one in no window gets zero.

    Below the top, the cost divides ẑ by a deviation of at least 0.1, unlike in the paper: a channel that is zero in a
    whole batch has a deviation near zero, and its cost would explode.

    Examples
    --------
    >>> from tikas import MaxPool
    >>> MaxPool(2).shape((96, 17, 17)), MaxPool(3, stride=2).shape((96, 17, 17))
    ((96, 9, 9), (96, 8, 8))
    """

    kind = "max"


@dataclass(frozen=True)
class MeanPool(Pool):
    """Mean pooling, as a linear rung with its own normalization, noise, denoiser and cost.

    Parameters
    ----------
    size : int
        Height and width of the window. A window that is cut off at the end of the map averages the rest.
    stride : int, optional
        Step from one window to the next; by default `size`.
    rounding : {"up", "down"}, default="up"
        As for `MaxPool`.

    Examples
    --------
    >>> from tikas import MeanPool
    >>> MeanPool(2).shape((96, 17, 17))
    (96, 9, 9)
    """

    kind = "mean"


@dataclass(frozen=True)
class GlobalMeanPool(RungSpec):
    """The mean of each channel over the whole map. The decoder copies it to every position.

    Parameters
    ----------
    scale : bool, default=True
        Whether the top has a scale γ besides its bias β. Ignored below the top.

    Examples
    --------
    >>> from tikas import GlobalMeanPool
    >>> GlobalMeanPool().shape((10, 6, 6))
    (10,)
    """

    kind = "global"

    scale: bool = True

    def shape(self, below: Shape) -> Shape:
        return self._maps(below)[:1]


KINDS: dict[str, type[RungSpec]] = {spec.kind: spec for spec in (Dense, Conv, MaxPool, MeanPool, GlobalMeanPool)}
OPTIONS: dict[str, tuple[str, Any]] = {
    **{word: (name, word) for name, words in CHOICES.items() for word in words},
    "unscaled": ("scale", False),
}
"""Words that set a field in the text of a rung, such as ``same`` in ``"conv 64 3 same"``, by word."""


def parse_rung(text: str) -> RungSpec:
    """Return the rung that a text such as ``"conv 64 3 same stride=2"`` describes.

    Raises
    ------
    ValueError, TypeError
        If the text describes no rung, or has an option that this kind of rung does not have.

    Examples
    --------
    >>> parse_rung("conv 64 3 same stride=2")
    Conv(features=64, kernel=3, padding='same', stride=2, activation=None)
    """
    kind, *words = text.split() or [""]
    if kind not in KINDS:
        raise ValueError(f"{text!r} is not a rung; start with one of {', '.join(KINDS)}.")
    spec = KINDS[kind]
    required = [field.name.upper() for field in fields(spec) if field.default is MISSING]
    numbers = [int(word) for word in words if word.isdecimal()]
    if len(numbers) != len(required):
        expected = " ".join([kind, *required])
        raise ValueError(f"{text!r} has {len(numbers)} numbers; expected {expected!r}, followed by options.")
    options = dict(_parse_option(word) for word in words if not word.isdecimal())
    return spec(*numbers, **options)


def _parse_option(word: str) -> tuple[str, Any]:
    if word in OPTIONS:
        return OPTIONS[word]
    if word.startswith("stride="):
        return "stride", int(word.removeprefix("stride="))
    raise ValueError(f"{word!r} is not an option of a rung; choose from stride=2, {', '.join(OPTIONS)}.")


def rung_text(spec: RungSpec) -> str:
    """Return the text of a rung: its kind, its numbers, then the options that differ from their defaults.

    Examples
    --------
    >>> rung_text(Conv(64, 3, padding="same", stride=2)), rung_text(MaxPool(2))
    ('conv 64 3 same stride=2', 'max 2')
    """
    words = [spec.kind]
    for field in fields(spec):
        value = getattr(spec, field.name)
        if value == field.default:
            continue
        if field.default is MISSING or isinstance(value, str):
            words.append(str(value))
        elif field.name == "scale":
            words.append("unscaled")
        else:
            words.append(f"{field.name}={value}")
    return " ".join(words)


def shapes_of(input_shape: Sequence[int], rungs: Iterable[RungSpec]) -> list[Shape]:
    """Return the shape of every level, the input first."""
    shapes = [tuple(input_shape)]
    for rung in rungs:
        shapes.append(rung.shape(shapes[-1]))
    return shapes


def is_channels_last(shape: Sequence[int]) -> bool:
    """Return whether a shape looks like that of an image with channels last.

    Square images are recognized by a short last dimension, others also need sides of at least `MIN_SIDE`.
    """
    if len(shape) != 3 or shape[2] > MAX_CHANNELS:
        return False
    height, width, _ = shape
    return height == width > MAX_CHANNELS or min(height, width) >= MIN_SIDE


def channels_last_hint(shape: Sequence[int]) -> str:
    """Return a sentence to add to a `MapTooSmallError` if the channels may be last, else an empty string."""
    if len(shape) != 3 or shape[2] > MAX_CHANNELS or shape[2] >= min(shape[:2]):
        return ""
    return (
        f" The input shape {tuple(shape)} is read as (channels, height, width). If it is (height, width, channels), "
        "move the channels first with numpy.moveaxis(images, -1, -3)."
    )
