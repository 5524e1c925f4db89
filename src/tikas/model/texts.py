"""Rungs as texts, for recipes and command lines: ``"conv 64 3 same stride=2"``. No torch here."""

from dataclasses import fields
from typing import Any

from tikas.model.specs import CHOICES, Conv, Dense, GlobalMeanPool, MaxPool, MeanPool, RungSpec, required

KINDS: dict[str, type[RungSpec]] = {spec.kind: spec for spec in (Dense, Conv, MaxPool, MeanPool, GlobalMeanPool)}
OPTIONS: dict[str, tuple[str, Any]] = {
    **{word: (name, word) for name, words in CHOICES.items() for word in words},
    "unscaled": ("scale", False),
}


def from_text(text: str) -> RungSpec:
    """The rung that a text describes: its kind, its numbers, then options in any order.

    Raises
    ------
    ValueError
        Where the text describes none.

    Examples
    --------
    >>> from_text("conv 64 3 same stride=2")
    Conv(features=64, kernel=3, padding='same', stride=2, activation=None)
    """
    kind, *words = text.split() or [""]
    if kind not in KINDS:
        raise ValueError(f"{text!r} is no rung; a rung starts with one of {', '.join(map(repr, KINDS))}.")
    spec = KINDS[kind]
    needed = required(spec)
    numbers = [int(word) for word in words if word.isdecimal()]
    if len(numbers) != len(needed):
        wanted = " ".join([kind, *(name.upper() for name in needed)])
        raise ValueError(f"{text!r} has {len(numbers)} numbers; expected {wanted!r}, and options after it.")
    options = dict(_option(word, text) for word in words if not word.isdecimal())
    unknown = options.keys() - {field.name for field in fields(spec)}
    if unknown:
        raise ValueError(f"{text!r}: a {kind!r} rung has no {' and no '.join(sorted(unknown))}.")
    return spec(*numbers, **options)


def _option(word: str, text: str) -> tuple[str, Any]:
    if word in OPTIONS:
        return OPTIONS[word]
    name, _, value = word.partition("=")
    if name == "stride" and value.isdecimal():
        return name, int(value)
    known = ", ".join(["stride=2", *OPTIONS])
    raise ValueError(f"{text!r}: {word!r} is no option of a rung; there are {known}.")
