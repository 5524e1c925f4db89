"""What the doors of Python say of a parameter, in the words of the command line: its flag."""

import re
import shlex
from dataclasses import fields

from tikas.training.recipe import Recipe

_NAMES = "|".join([*(field.name for field in fields(Recipe)), "seed", "members", "device"])
_TEXT = "'[^']*'"
_NUMBER = r"-?(?:nan|inf|\d+(?:\.\d+)?(?:e[-+]\d+)?)"
_VALUE = rf"{_TEXT}|{_NUMBER}|[(\[][^)\]]*[)\]]"
_SET = re.compile(rf"(?:(?<!\S)|(?<=\s\())({_NAMES})=({_VALUE})(?![.,:;)]*[^\s.,:;)])")
"""A whole word, between brackets too, up to its full stop or comma: what is part of a path or in quotes is somebody's
own name."""


def in_flags(said: str) -> str:
    """A message with every ``parameter=value`` as the flag that sets it.

    Examples
    --------
    >>> in_flags("epochs=0: expected at least 1. Set batch_size=60, or preprocess='standardize'.")
    '--epochs 0: expected at least 1. Set --batch-size 60, or --preprocess standardize.'
    >>> in_flags("noise=(0.3, -1.0): expected network=['conv 32 3', 100].")
    "--noise 0.3 -1.0: expected --network 'conv 32 3' 100."
    >>> in_flags("Leave whitening out (preprocess='none').")
    'Leave whitening out (--preprocess none).'
    >>> in_flags("labels=100/seed=1.csv: there is no column 'epochs=3'.")
    "labels=100/seed=1.csv: there is no column 'epochs=3'."
    """
    return _SET.sub(lambda found: f"--{found[1].replace('_', '-')} {_words(found[2])}", said)


def _words(value: str) -> str:
    return shlex.join(word.strip("'") for word in re.findall(rf"{_TEXT}|[^\s,()\[\]]+", value))
