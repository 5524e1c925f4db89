"""A fitted model as a plain value, between those who train one, those who keep it and those who ask it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from tikas.training.recipe import Recipe

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tikas.data.whitening import Whitening
    from tikas.model.ladder import Ladder
    from tikas.training.fit import History, Trained


@dataclass(frozen=True, eq=False)
class Fitted:
    """A fitted model as a plain value: what a file holds, and what an estimator is made of.

    Parameters
    ----------
    recipe : Recipe
        What the ladders were trained by.
    ladders : list of Ladder
        The members, calibrated and in eval mode.
    seeds : list of int or None
        One for each member; None where a file of version 1 does not tell.
    history : list of dict
        A line for every epoch of every member.
    columns : tuple of str
        The names of the inputs, if they have any.
    classes : ndarray or None
        Of a classifier: what its outputs stand for.
    target_scale : tuple of float or None
        Of a regressor: the mean and the deviation of its targets.
    whitening : Whitening or None
        What rows go through first, where the recipe whitens them.
    input_shape : tuple of int or None
        The shape of a row as it comes, which dense ladders take flat; None where it is the ladders' own.
    """

    recipe: Recipe
    ladders: list[Ladder]
    seeds: list[int] | None
    history: History
    columns: tuple[str, ...] = ()
    classes: NDArray[Any] | None = None
    target_scale: tuple[float, float] | None = None
    whitening: Whitening | None = None
    input_shape: tuple[int, ...] | None = None

    @classmethod
    def from_trained(cls, trained: Trained, recipe: Recipe, seeds: Sequence[int], **known: Any) -> Self:
        """What training gave back, with whatever else is known of the model.

        Examples
        --------
        >>> from tikas.training.fit import Trained
        >>> fitted = Fitted.from_trained(Trained([], [], interrupted=False), Recipe(), range(3), columns=("length",))
        >>> fitted.seeds, fitted.columns
        ([0, 1, 2], ('length',))
        """
        return cls(recipe, trained.ladders, list(seeds), joined_history(trained), **known)


def joined_history(trained: Trained, earlier: Sequence[dict[str, Any]] = ()) -> History:
    """The histories of all members as one list, each line with its member; epochs are counted on from earlier lines.

    Examples
    --------
    >>> from tikas.training.fit import Trained
    >>> trained = Trained([], [[{"epoch": 1, "total": 0.5}], [{"epoch": 1, "total": 0.4}]], interrupted=False)
    >>> joined_history(trained)[1]
    {'member': 1, 'epoch': 1, 'total': 0.4}
    >>> [line["epoch"] for line in joined_history(trained, joined_history(trained))]
    [1, 1, 2, 2]
    """
    epochs = epochs_of(earlier)
    lines = (
        {"member": member, **line, "epoch": epochs + line["epoch"]}
        for member, history in enumerate(trained.histories)
        for line in history
    )
    return [*earlier, *lines]


def epochs_of(history: Sequence[Mapping[str, Any]]) -> int:
    """How many epochs a joined history tells of.

    Examples
    --------
    >>> epochs_of([{"member": 0, "epoch": 1}, {"member": 0, "epoch": 2}, {"member": 1, "epoch": 1}])
    2
    """
    return sum(line.get("member") == 0 for line in history)
