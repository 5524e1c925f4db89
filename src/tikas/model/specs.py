"""The rungs as values: what is wanted, and the shape of level that it makes on top of another. No torch here."""

from collections.abc import Iterable, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from numbers import Integral
from typing import ClassVar, Self, get_args

from tikas.model.names import ActivationName, Padding, Rounding

Shape = tuple[int, ...]

COUNTS = {
    "features": "the number of units",
    "kernel": "the side of the kernel",
    "size": "the side of the window",
    "stride": "the stride",
}
CHOICES: dict[str, tuple[str, ...]] = {
    "padding": get_args(Padding),
    "activation": get_args(ActivationName),
    "rounding": get_args(Rounding),
}


class MapTooSmallError(ValueError):
    """A map is smaller than the kernel or the window that is to stand on it."""


@dataclass(frozen=True)
class RungSpec:
    """What the kinds of rungs have in common: checks, and a text that `tikas.model.texts.from_text` reads back."""

    kind: ClassVar[str]

    def __post_init__(self) -> None:
        first, *_ = names = [field.name for field in fields(self)]
        for name in names:
            value = getattr(self, name)
            shown = repr(value) if name == first else f"{name}={value!r}"
            if name in COUNTS and (value is not None or name in required(self)):
                if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
                    raise ValueError(f"{type(self).__name__}({shown}): {COUNTS[name]} must be a positive whole number.")
                object.__setattr__(self, name, int(value))
            if name in CHOICES and value is not None and value not in CHOICES[name]:
                numbers = "".join(f"{getattr(self, number)}, " for number in required(self))
                choices = ", ".join(map(repr, CHOICES[name]))
                raise ValueError(f"{type(self).__name__}({numbers}{shown}): choose one of {choices}.")

    def shape(self, below: Shape) -> Shape:
        """The shape of the level that this rung makes on top of one of shape `below`."""
        raise NotImplementedError

    def with_activation(self, name: ActivationName) -> Self:
        """This rung, with this activation if it may have one and does not say its own.

        Examples
        --------
        >>> Dense(5).with_activation("tanh").activation, Dense(5, activation="relu").with_activation("tanh").activation
        ('tanh', 'relu')
        """
        if getattr(self, "activation", name) is not None:
            return self
        return replace(self, activation=name)  # type: ignore[call-arg]

    @property
    def text(self) -> str:
        """The kind, its numbers, then whatever is not as it would be anyway.

        Examples
        --------
        >>> Conv(64, 3, padding="same", stride=2).text, MaxPool(2).text
        ('conv 64 3 same stride=2', 'max 2')
        """
        words = [self.kind]
        for field in fields(self):
            value = getattr(self, field.name)
            if field.default is MISSING or (isinstance(value, str) and value != field.default):
                words.append(str(value))
            elif value != field.default:
                words.append("unscaled" if field.name == "scale" else f"{field.name}={value}")
        return " ".join(words)

    def _maps(self, below: Shape) -> tuple[int, int, int]:
        """Channels, height and width of the level below, which must have them."""
        if len(below) != 3:
            raise ValueError(
                f"{self!r} works on maps, (channels, height, width), and the level below it has shape {below}. "
                "Give images as input_shape, and put it below the first Dense."
            )
        channels, height, width = below
        return channels, height, width


def required(spec: RungSpec | type[RungSpec]) -> list[str]:
    """The names of those settings that have no default.

    Examples
    --------
    >>> required(Conv), required(GlobalMeanPool)
    (['features', 'kernel'], [])
    """
    return [field.name for field in fields(spec) if field.default is MISSING]


@dataclass(frozen=True)
class Dense(RungSpec):
    """A fully connected rung; maps below it are flattened.

    Parameters
    ----------
    features
        Number of units.
    activation
        ``"relu"``, ``"leaky_relu"`` (slope 0.1), ``"tanh"``, ``"gelu"`` or ``"linear"``. Without one it is the
        recipe's where there is a recipe, else ``"relu"``. The top rung of a ladder disregards it: its task says what
        it is.
    scale
        Whether a top has a scale γ beside its bias β; rungs below the top disregard this.

    Examples
    --------
    >>> Dense(1000).shape((1, 28, 28))
    (1000,)
    """

    kind = "dense"

    features: int
    activation: ActivationName | None = None
    scale: bool = True

    def shape(self, below: Shape) -> Shape:  # noqa: ARG002 - all is flattened
        return (self.features,)


@dataclass(frozen=True)
class Conv(RungSpec):
    """A convolution on maps, with a bias, statistics and a denoiser for each channel.

    Parameters
    ----------
    features
        Number of channels.
    kernel
        Height and width of the kernel.
    padding
        ``"valid"``: none, the map shrinks by kernel - 1. ``"full"``: kernel - 1 zeros on every side, it grows by as
        much. ``"same"``: kernel - 1 zeros in all, it keeps its size; an even kernel has the odd one on the right and
        below.
    stride
        Positions from one place of the kernel to the next.
    activation
        As for `Dense`.

    Notes
    -----
    The way down mirrors this: valid is undone by full and full by valid, with weights ``(channels below, channels
    above, kernel, kernel)``. With a stride, what comes from above first stands `stride` positions apart, with zeros in
    between, on the map that the convolution without a stride would have made.

    Examples
    --------
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
    def padded(self) -> tuple[int, int]:
        """The zeros before the first position and after the last one."""
        around = self.kernel - 1
        return {"valid": (0, 0), "same": (around // 2, around - around // 2), "full": (around, around)}[self.padding]

    def shape(self, below: Shape) -> Shape:
        _, *sides = self._maps(below)
        places = [side + sum(self.padded) - self.kernel for side in sides]
        if min(places) < 0:
            raise MapTooSmallError(
                f"{self!r}: a kernel of {(self.kernel, self.kernel)} is larger than the map below it, which has shape "
                f"{below}. Take a smaller kernel, or padding='same'."
            )
        return (self.features, *(place // self.stride + 1 for place in places))


@dataclass(frozen=True)
class Pool(RungSpec):
    """What `MaxPool` and `MeanPool` have in common: where their windows stand."""

    size: int
    stride: int | None = None
    rounding: Rounding = "up"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stride == self.size:
            object.__setattr__(self, "stride", None)  # as it would be anyway

    @property
    def step(self) -> int:
        """Positions from one window to the next."""
        return self.stride or self.size

    def shape(self, below: Shape) -> Shape:
        channels, *sides = self._maps(below)
        if self.size > min(sides):
            raise MapTooSmallError(
                f"{self!r}: pooling leaves nothing of a map smaller than its window: the window has shape "
                f"{(self.size, self.size)}, the level below {below}. Take a smaller window, or leave this rung out."
            )
        return (channels, *map(self._windows, sides))

    def _windows(self, side: int) -> int:
        """How many windows fit along a side; rounded up, one more that starts on the map and is cut off at its end."""
        whole = (side - self.size) // self.step + 1
        cut = (whole - 1) * self.step + self.size < side and whole * self.step < side
        return whole + (cut and self.rounding == "up")


@dataclass(frozen=True)
class MaxPool(Pool):
    """The largest value of every window, as a linear rung with statistics, noise, denoiser and cost of its own.

    Parameters
    ----------
    size
        Height and width of the window.
    stride
        Positions from one window to the next; by default windows stand side by side.
    rounding
        ``"up"``: a window that is cut off at the end of an odd map counts, 17 positions become 9. ``"down"``: it does
        not, they become 8, as they do in ``torch.nn.MaxPool2d``.

    Notes
    -----
    The way down copies each value to every position of its window. A position in several windows takes the mean of
    their values, one in no window zero.

    Below the top, the cost divides ẑ by a deviation of at least 0.1, which the paper does not: a channel that is silent
    in a batch has next to none, and would make the cost explode.

    Examples
    --------
    >>> MaxPool(2).shape((96, 17, 17)), MaxPool(3, stride=2).shape((96, 17, 17))
    ((96, 9, 9), (96, 8, 8))
    """

    kind = "max"


@dataclass(frozen=True)
class MeanPool(Pool):
    """The mean of every window, of those positions that exist where the map's end cuts it off; else as `MaxPool`.

    Examples
    --------
    >>> MeanPool(2).shape((96, 17, 17))
    (96, 9, 9)
    """

    kind = "mean"


@dataclass(frozen=True)
class GlobalMeanPool(RungSpec):
    """The mean of every channel over its whole map; the way down copies it to every position.

    Parameters
    ----------
    scale
        Whether a top has a scale γ beside its bias β; rungs below the top disregard this.

    Examples
    --------
    >>> GlobalMeanPool().shape((10, 6, 6))
    (10,)
    """

    kind = "global"

    scale: bool = True

    def shape(self, below: Shape) -> Shape:
        return self._maps(below)[:1]


def shapes_of(input_shape: Sequence[int], rungs: Iterable[RungSpec]) -> list[Shape]:
    """The shape of every level that these rungs make on such an input, which comes first.

    Examples
    --------
    >>> shapes_of((1, 28, 28), [Conv(32, 5, padding="full"), MaxPool(2), Dense(10)])
    [(1, 28, 28), (32, 32, 32), (32, 16, 16), (10,)]
    """
    shapes = [tuple(input_shape)]
    for rung in rungs:
        shapes.append(rung.shape(shapes[-1]))
    return shapes
