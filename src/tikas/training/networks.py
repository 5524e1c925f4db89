"""A recipe's network: numbers and texts in one form, and the rungs that they stand for."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from tikas.model.specs import Dense, GlobalMeanPool, RungSpec
from tikas.model.texts import from_text
from tikas.model.zoo import MODULES, ZOO

Network = tuple[int | str, ...]

TOP = "top"
"""Asks for a dense top where the network ends in a pooling rung that would be the top itself."""

MOST_RUNGS = 1000

NAMES = (*ZOO, *MODULES)
"""Of whole networks."""


def in_one_form(given: Any) -> Network:
    """Numbers of units, texts of rungs, or the name of a whole network alone, whichever way they were said.

    Raises
    ------
    ValueError
        Where it is none of these.

    Examples
    --------
    >>> in_one_form(["conv 8 3 valid stride=1", Dense(20), "dense 10 tanh", "top"])
    ('conv 8 3', 20, 'dense 10 tanh')
    >>> in_one_form("conv_small"), in_one_form(["conv_pool_cnn_c"])
    (('conv_small',), ('conv_pool_cnn_c',))
    """
    each = (given,) if isinstance(given, str | RungSpec) or not isinstance(given, Iterable) else tuple(given)
    if len(each) > MOST_RUNGS:
        raise ValueError(f"network has {len(each)} rungs; expected at most {MOST_RUNGS}.")
    if len(each) == 1 and isinstance(each[0], str) and each[0] in NAMES:
        return (each[0],)
    try:
        written = tuple(TOP if isinstance(rung, str) and rung.strip() == TOP else _rung(rung) for rung in each)
        if TOP in written[:-1]:
            raise ValueError("'top' stands at the end.")
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"network={given!r}: expected numbers of units, rungs such as 'conv 32 5 full' and 'max 2', or the name of "
            f"one network, {', '.join(NAMES)}. {error}{_suggestion(each)} LadderClassifier takes any torch.nn.Module, "
            "too."
        ) from error
    needed = len(written) > 1 and str(written[-2]).split()[0] == GlobalMeanPool.kind
    return written if needed or TOP not in written else written[:-1]


def _suggestion(each: tuple[Any, ...]) -> str:
    """The name that a network alone was meant to have, if it is much like one."""
    name = each[0] if len(each) == 1 and isinstance(each[0], str) else ""
    close = get_close_matches(name.lower(), NAMES, n=1, cutoff=0.8)
    return f" Did you mean {close[0]!r}?" if close else ""


def _rung(given: Any) -> int | str:
    """A rung in its one form: a dense one of which nothing else is said is the number of its units."""
    if hasattr(given, "state_dict"):  # torch is not imported for the sake of a message
        raise TypeError(f"{given!r} is a layer; give all layers in one nn.Sequential, or rungs, such as Conv(32, 5).")
    spec = given if isinstance(given, RungSpec) else from_text(given) if isinstance(given, str) else Dense(given)
    return spec.features if spec == Dense(getattr(spec, "features", 1)) else spec.text


def is_module(network: Network) -> bool:
    """Whether a network in its one form is the name of a module, which gets the Γ-model.

    Examples
    --------
    >>> is_module(("conv_pool_cnn_c",)), is_module(("conv_small",)), is_module(())
    (True, False, False)
    """
    return bool(network) and network[0] in MODULES


def takes_maps(network: Network) -> bool:
    """Whether a network in its one form begins with work on maps, so that rows must be images.

    Examples
    --------
    >>> takes_maps(("conv_small",)), takes_maps((100, 50)), takes_maps(())
    (True, False, False)
    """
    return is_module(network) or not isinstance(rungs_of(network, outputs=1)[0], Dense)


def rungs_of(network: Network, outputs: int) -> list[RungSpec]:
    """The rungs of a network in its one form, the top included; of a module the one that the Γ-model puts on it.

    Examples
    --------
    >>> rungs_of((100,), outputs=10)
    [Dense(features=100, activation=None, scale=True), Dense(features=10, activation=None, scale=True)]
    >>> [rung.text for rung in rungs_of(("conv 10 1", "global"), outputs=10)]
    ['conv 10 1', 'global']
    """
    if is_module(network):
        return [Dense(outputs)]
    if network and network[0] in ZOO:
        return list(ZOO[str(network[0])](outputs))
    rungs = [Dense(rung) if isinstance(rung, int) else from_text(rung) for rung in network if rung != TOP]
    if not rungs or not isinstance(rungs[-1], GlobalMeanPool) or TOP in network:
        rungs.append(Dense(outputs))
    return rungs
