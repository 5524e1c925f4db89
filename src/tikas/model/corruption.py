"""Noise inside a network that somebody else wrote: after each of its normalisation layers, in a corrupted pass."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

NORMALIZATIONS = (_BatchNorm, _InstanceNorm, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


class Draws:
    """Standard-normal noise for one place after another, in the order in which a pass comes to them: drawn there.

    Examples
    --------
    >>> Draws().like(torch.zeros(8, 4)).shape
    torch.Size([8, 4])
    """

    def like(self, values: Tensor) -> Tensor:
        """The next place's noise, for these values."""
        return torch.randn_like(values)

    def finish(self) -> None:
        """Say that there is no further place."""


class GivenDraws(Draws):
    """Noise that somebody chose: a tensor ``(rows, …)`` for each place.

    Examples
    --------
    >>> draws = GivenDraws([torch.arange(6.0).reshape(6, 1)], rows=slice(None, 2))  # the labelled rows come first
    >>> draws.like(torch.zeros(2, 1)).flatten()
    tensor([0., 1.])
    >>> draws.finish()
    """

    def __init__(self, noise: Sequence[Tensor], rows: slice) -> None:
        self.noise = noise
        self.rows = rows
        self.taken = 0

    def like(self, values: Tensor) -> Tensor:
        if self.taken == len(self.noise):
            raise ValueError(
                f"Got noise for {len(self.noise)} places and there are more: give one tensor for the input, one for "
                "each call of a normalisation layer, in that order, and one for the scores."
            )
        draw = self.noise[self.taken][self.rows]
        if draw.numel() != values.numel():
            raise ValueError(
                f"Got noise of shape {tuple(draw.shape)} for place {self.taken}, whose values are of shape "
                f"{tuple(values.shape)}; give (rows, *shape of a row there), labelled rows first."
            )
        self.taken += 1
        return draw.reshape(values.shape)

    def finish(self) -> None:
        if self.taken != len(self.noise):
            raise ValueError(f"Got noise for {len(self.noise)} places; this network has {self.taken} of them.")


class RecordedDraws(Draws):
    """No noise, but the shape of a row at every place, for those who want to draw it themselves.

    Examples
    --------
    >>> draws = RecordedDraws(torch.zeros(2, 64))
    >>> _ = draws.like(torch.zeros(2, 64)), draws.like(torch.zeros(2, 32, 8, 8))
    >>> draws.shapes
    [(64,), (32, 8, 8)]
    """

    def __init__(self, rows: Tensor) -> None:
        self.rows = len(rows)
        self.shapes: list[tuple[int, ...]] = []

    def like(self, values: Tensor) -> Tensor:
        if len(values) == self.rows:
            self.shapes.append(tuple(values.shape[1:]))
        else:  # rows do not come first there, or not alone: any order of the values will do for noise
            self.shapes.append((values.numel() // self.rows,))
        return torch.zeros_like(values)


class Corruption:
    """The hook that hangs on every normalisation layer, and does nothing but in a corrupted pass.

        w·N(x) + b  becomes  w·(N(x) + n) + b

    as on a rung, where noise comes between the normalisation and γ and β: a layer cannot outgrow its noise.

    It stays on its layers, because a compiler follows hooks that are there and stops at those that come and go.

    Parameters
    ----------
    network
        Whose layers it hangs on.
    noise
        Deviation of the noise.

    Examples
    --------
    >>> layer = nn.LayerNorm(2)
    >>> corruption = Corruption(nn.Sequential(nn.Linear(4, 2), layer), noise=0.5)
    >>> corruption.layers
    ['1']
    >>> clean, ones = layer(torch.tensor([[1.0, 2.0]])), GivenDraws([torch.ones(1, 2)], slice(None))
    >>> with corruption.working(ones):
    ...     (layer(torch.tensor([[1.0, 2.0]])) - clean).detach()
    tensor([[0.5000, 0.5000]])
    """

    def __init__(self, network: nn.Module, noise: float) -> None:
        self.noise = noise
        self.draws: Draws | None = None
        self.layers = [name for name, layer in network.named_modules() if isinstance(layer, NORMALIZATIONS)]
        for name in self.layers:
            network.get_submodule(name).register_forward_hook(self)
        if any("_orig_mod" in module._modules for module in network.modules()):
            torch.compiler.reset()  # what was compiled before would go on without the hook

    @contextmanager
    def working(self, draws: Draws) -> Iterator[None]:
        """Corrupt what runs inside."""
        self.draws = draws
        try:
            yield
        finally:
            self.draws = None

    def __call__(self, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor | None:  # noqa: ARG002
        if self.draws is None:
            return None
        noise = self.draws.like(output)
        scale = getattr(layer, "weight", None)
        if scale is not None:
            noise = noise * _laid_out(scale, layer, output)
        return torch.add(output, noise, alpha=self.noise)


def _laid_out(scale: Tensor, layer: nn.Module, output: Tensor) -> Tensor:
    """A layer's weight against its output: over the last dimensions, or one for each channel."""
    if isinstance(layer, nn.LayerNorm | nn.RMSNorm) and not _turns_maps(layer, output):
        return scale
    return scale[(...,) + (None,) * (output.dim() - 2)]


def _turns_maps(layer: nn.LayerNorm | nn.RMSNorm, output: Tensor) -> bool:
    """Whether it is one of somebody's own, as ConvNeXt has, that normalises the channels where they come first."""
    if type(layer) in (nn.LayerNorm, nn.RMSNorm):
        return False
    first, last = (shape == layer.normalized_shape for shape in (output.shape[1:2], output.shape[-1:]))
    return first and (output.dim() == 4 or not last)


@contextmanager
def in_eval_mode(network: nn.Module) -> Iterator[None]:
    """Eval mode inside, and afterwards for each module the mode that it was in.

    Examples
    --------
    >>> network = nn.Sequential(nn.Dropout(), nn.Dropout().eval())
    >>> with in_eval_mode(network):
    ...     [layer.training for layer in network]
    [False, False]
    >>> [layer.training for layer in network]
    [True, False]
    """
    training = [module for module in network.modules() if module.training]
    network.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
