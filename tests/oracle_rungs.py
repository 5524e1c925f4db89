"""The ways up and down between levels in NumPy, by plain loops: what the oracle's rungs are made of.

Nothing here comes from `tikas` or torch. A level's shape is ``(units,)`` or ``(channels, height, width)``.
"""

from dataclasses import dataclass

import numpy as np

Array = np.ndarray
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Rung:
    """Where a rung has no weights, so it is on the way down."""

    pools = False

    def shape(self, below: Shape) -> Shape:
        raise NotImplementedError

    def weight_shape(self, below: Shape) -> Shape | None:  # noqa: ARG002
        return None

    def back_shape(self, below: Shape) -> Shape | None:  # noqa: ARG002
        return None

    def up(self, h: Array, weight: Array | None) -> Array:
        raise NotImplementedError

    def down(self, denoised: Array, weight: Array | None, below: Shape) -> Array:
        raise NotImplementedError


@dataclass(frozen=True)
class Dense(Rung):
    units: int

    def shape(self, below: Shape) -> Shape:  # noqa: ARG002
        return (self.units,)

    def weight_shape(self, below: Shape) -> Shape:
        return (self.units, int(np.prod(below)))

    def back_shape(self, below: Shape) -> Shape:
        return (int(np.prod(below)), self.units)

    def up(self, h: Array, weight: Array) -> Array:
        return h.reshape(len(h), -1) @ weight.T

    def down(self, denoised: Array, weight: Array, below: Shape) -> Array:
        return (denoised @ weight.T).reshape(len(denoised), *below)


def convolution(x: Array, kernels: Array, before: int, after: int) -> Array:
    """At every place of the padded maps the sum of kernel times values; kernels are ``(out, in, k, k)``."""
    rows, channels, height, width = x.shape
    padded = np.zeros((rows, channels, before + height + after, before + width + after))
    padded[:, :, before : before + height, before : before + width] = x
    places = np.lib.stride_tricks.sliding_window_view(padded, kernels.shape[2:], axis=(2, 3))
    return np.moveaxis(np.tensordot(places, kernels, axes=([1, 4, 5], [1, 2, 3])), -1, 1)


@dataclass(frozen=True)
class Conv(Rung):
    features: int
    kernel: int
    padding: str = "valid"
    stride: int = 1

    @property
    def zeros(self) -> tuple[int, int]:
        """Before and after: none, as many as keep the size (the odd one after), or as many as the kernel can touch."""
        k = self.kernel
        return {"valid": (0, 0), "same": ((k - 1) // 2, k // 2), "full": (k - 1, k - 1)}[self.padding]

    def unstrided(self, below: Shape) -> Shape:
        return tuple(side + sum(self.zeros) - self.kernel + 1 for side in below[1:])

    def shape(self, below: Shape) -> Shape:
        return (self.features, *(len(range(0, side, self.stride)) for side in self.unstrided(below)))

    def weight_shape(self, below: Shape) -> Shape:
        return (self.features, below[0], self.kernel, self.kernel)

    def back_shape(self, below: Shape) -> Shape:
        return (below[0], self.features, self.kernel, self.kernel)

    def up(self, h: Array, weight: Array) -> Array:
        return convolution(h, weight, *self.zeros)[:, :, :: self.stride, :: self.stride]

    def down(self, denoised: Array, weight: Array, below: Shape) -> Array:
        spaced = np.zeros((len(denoised), self.features, *self.unstrided(below)))
        spaced[:, :, :: self.stride, :: self.stride] = denoised
        before, after = self.zeros
        return convolution(spaced, weight, self.kernel - 1 - before, self.kernel - 1 - after)


@dataclass(frozen=True)
class Pool(Rung):
    pools = True
    kind: str  # "max" or "mean"
    size: int
    stride: int
    rounding: str = "up"

    def windows(self, side: int) -> list[slice]:
        """From the first position on, until one reaches the end; the last may be cut off there, or is left out."""
        windows = [slice(0, self.size)]
        while windows[-1].stop < side and windows[-1].start + self.stride < side:
            start = windows[-1].start + self.stride
            windows.append(slice(start, start + self.size))
        return [window for window in windows if self.rounding == "up" or window.stop <= side]

    def shape(self, below: Shape) -> Shape:
        channels, height, width = below
        return (channels, len(self.windows(height)), len(self.windows(width)))

    def up(self, h: Array, weight: None) -> Array:  # noqa: ARG002
        pool = {"max": np.max, "mean": np.mean}[self.kind]
        rows = [
            [pool(h[:, :, down, across], axis=(2, 3)) for across in self.windows(h.shape[3])]
            for down in self.windows(h.shape[2])
        ]
        return np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)

    def down(self, denoised: Array, weight: None, below: Shape) -> Array:  # noqa: ARG002
        total, count = np.zeros((len(denoised), *below)), np.zeros(below)
        for i, down in enumerate(self.windows(below[1])):
            for j, across in enumerate(self.windows(below[2])):
                total[:, :, down, across] += denoised[:, :, i, j, None, None]
                count[:, down, across] += 1
        return total / np.maximum(count, 1)


@dataclass(frozen=True)
class Global(Rung):
    pools = True

    def shape(self, below: Shape) -> Shape:
        return below[:1]

    def up(self, h: Array, weight: None) -> Array:  # noqa: ARG002
        return h.mean(axis=(2, 3))

    def down(self, denoised: Array, weight: None, below: Shape) -> Array:  # noqa: ARG002
        return np.tile(denoised[:, :, None, None], (1, 1, *below[1:]))
