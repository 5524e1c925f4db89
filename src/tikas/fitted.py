"""A fitted model as a plain value, between those who train one, those who keep it and those who ask it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from tikas.training.recipe import Recipe

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tikas.data.preparations import Preparation
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
    preparation : Preparation or None
        What rows go through first, where the recipe says so.
    input_shape : tuple of int or None
        The shape of a row as it comes, which dense ladders take flat; None where it is the ladders' own.
    input_range : tuple of float or None
        The smallest and the largest value that the ladders took in training; None where whitening leaves no scale, or a
        file from before does not tell.
    """

    recipe: Recipe
    ladders: list[Ladder]
    seeds: list[int] | None
    history: History
    columns: tuple[str, ...] = ()
    classes: NDArray[Any] | None = None
    target_scale: tuple[float, float] | None = None
    preparation: Preparation | None = None
    input_shape: tuple[int, ...] | None = None
    input_range: tuple[float, float] | None = None

    @classmethod
    def from_trained(cls, trained: Trained, recipe: Recipe, seeds: Sequence[int], **known: Any) -> Self:
        """What training gave back, with whatever else is known of the model; members as `begun` gives them.

        Examples
        --------
        >>> from tikas.training.fit import Trained
        >>> fitted = Fitted.from_trained(Trained([], [], interrupted=False), Recipe(), range(3), columns=("length",))
        >>> fitted.seeds, fitted.columns
        ([0, 1, 2], ('length',))
        """
        trained, seeds = begun(trained, seeds)
        return cls(recipe, trained.ladders, list(seeds), joined_history(trained), **known)


def begun(trained: Trained, seeds: Sequence[int]) -> tuple[Trained, Sequence[int]]:
    """The members that are worth keeping and their seeds: all but those that diverged or, at Ctrl-C, had not begun.

    Raises
    ------
    KeyboardInterrupt
        Where none did: the Ctrl-C that training held back, to save what there was, has nothing to wait for.

    Examples
    --------
    >>> from tikas import Dense, Ladder
    >>> from tikas.training.fit import Trained
    >>> ladders = [Ladder(input_shape=(2,), rungs=[Dense(3)]) for _ in range(3)]
    >>> cut = Trained(ladders, [[{"epoch": 1}, {"epoch": 2}], [{"epoch": 1}], []], interrupted=True)
    >>> kept, seeds = begun(cut, seeds=[5, 6, 7])
    >>> len(kept.ladders), seeds
    (2, [5, 6])
    """
    if not (trained.interrupted or trained.diverged):
        return trained, seeds
    kept = [member for member, history in enumerate(trained.histories) if history]
    if not kept:
        raise KeyboardInterrupt("interrupted before an epoch was finished, so that there is no model to keep")
    ladders = [trained.ladders[member] for member in kept]
    histories = [trained.histories[member] for member in kept]
    others = trained._replace(ladders=ladders, histories=histories, diverged={})
    return others, [seeds[member] for member in kept]


def lost_members(trained: Trained, seeds: Sequence[int]) -> str:
    """What to say of members that diverged where others did not.

    Examples
    --------
    >>> from tikas.training.fit import Trained
    >>> lost = {1: "Training stopped in epoch 3.", 2: "Training stopped in epoch 9."}
    >>> lost_members(Trained([], [[{"epoch": 1}], [], []], interrupted=False, diverged=lost), seeds=[5, 6, 7])
    '2 of 3 members diverged (seeds 6, 7) and are left out. Of the first: Training stopped in epoch 3.'
    """
    places = list(trained.diverged)
    which, are, whose = ("seed", "is", "") if len(places) == 1 else ("seeds", "are", " Of the first:")
    lost = ", ".join(str(seeds[place]) for place in places)
    return (
        f"{len(places)} of {len(seeds)} members diverged ({which} {lost}) and {are} left out.{whose} "
        f"{trained.diverged[places[0]]}"
    )


def interruption(histories: Sequence[History], epochs: int, members: int) -> str:
    """What to say of a training of so many epochs and members of which Ctrl-C left these histories.

    Examples
    --------
    >>> print(interruption([[{"epoch": 1}, {"epoch": 2}], [{"epoch": 1}]], epochs=2, members=3))
    Training was interrupted after 1 to 2 of 2 epochs; 2 of 3 members are kept as they were then, without those that had
    diverged or finished none. Fit again for a whole run, or with n_members=2 and warm_start=True to go on.
    """
    kept, again = "the model is kept as it was then", "warm_start=True"
    if len(histories) < members:
        are = "is kept as it was" if len(histories) == 1 else "are kept as they were"
        kept = f"{len(histories)} of {members} members {are} then, without those that had diverged or finished none"
        again = f"n_members={len(histories)} and {again}"
    return (
        f"Training was interrupted after {epochs_finished(histories)} of {epochs} epochs; {kept}. Fit again for a "
        f"whole run, or with {again} to go on."
    )


def epochs_finished(histories: Collection[History]) -> str:
    """How many epochs these members made, in words: one number, or the least and the most.

    Examples
    --------
    >>> epochs_finished([[{"epoch": 1}, {"epoch": 2}], [{"epoch": 1}]]), epochs_finished([[{"epoch": 1}]])
    ('1 to 2', '1')
    """
    least, most = min(map(len, histories)), max(map(len, histories))
    return f"{most}" if least == most else f"{least} to {most}"


def joined_history(trained: Trained, earlier: Sequence[dict[str, Any]] = ()) -> History:
    """The histories of all members as one list, each line with its member; each counts on from its earlier epochs.

    Examples
    --------
    >>> from tikas.training.fit import Trained
    >>> trained = Trained([], [[{"epoch": 1, "total": 0.5}], [{"epoch": 1, "total": 0.4}]], interrupted=False)
    >>> joined_history(trained)[1]
    {'member': 1, 'epoch': 1, 'total': 0.4}
    >>> [line["epoch"] for line in joined_history(trained, joined_history(trained))]
    [1, 1, 2, 2]
    """
    before = _epochs_of_members(earlier)
    lines = (
        {"member": member, **line, "epoch": before[member] + line["epoch"]}
        for member, history in enumerate(trained.histories)
        for line in history
    )
    return [*earlier, *lines]


def epochs_of(history: Sequence[Mapping[str, Any]]) -> int:
    """How many epochs a joined history tells of: those of the member that has the most.

    Examples
    --------
    >>> epochs_of([{"member": 0, "epoch": 1}, {"member": 0, "epoch": 2}, {"member": 1, "epoch": 1}])
    2
    """
    return max(_epochs_of_members(history).values(), default=0)


def _epochs_of_members(history: Sequence[Mapping[str, Any]]) -> Counter[int]:
    members = (line.get("member") for line in history)  # which a damaged file may not name
    return Counter(member for member in members if isinstance(member, int))
