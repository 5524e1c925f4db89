"""Usage errors of the command line: the parser's box of several paragraphs, as one line."""

import re
from itertools import groupby, takewhile

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_OURS = re.compile(r"^Error parsing (?:__tyro-dummy-inner__\.recipe|[A-Z]\w*): ")
"""What the parser puts before an error that a command, or its recipe, raised: the name of our class."""

_NO_NUMBER = re.compile(r"no type matching \{None\}\|\S*(INT|FLOAT)\b.* could be instantiated from \[(.*)\]")
"""What the parser says where a flag that may be left out was given no number, or not only numbers."""

_WORDS_ALONE = re.compile(r"Unrecognized options:(?: (?!-)\S+)+")
"""None of them a flag."""

HINTS = {"Perhaps you meant:": "Perhaps you meant", "Argument helptext:": "Expected"}
"""Paragraphs of the parser's error box that name flags, and what to say of these."""


def one_line_of(box: str, help_command: str) -> str:
    """What an error box of the parser says, as one line: its first paragraph, and the flags that later ones name.

    Examples
    --------
    >>> box = '''╭─ Value error ───────────────────────────────────╮
    ... │ Error parsing --epochs: invalid literal: 'many' │
    ... │ ─────────────────────────────────────────────── │
    ... │ Argument helptext:                              │
    ... │     --epochs INT                                │
    ... ╰─────────────────────────────────────────────────╯'''
    >>> one_line_of(box, "tikas train --help")
    "Error parsing --epochs: invalid literal: 'many'. Expected --epochs INT. (tikas train --help shows what there is)"
    """
    box = _COLOUR.sub("", box)
    lines = [line.strip("│").rstrip() for line in box.splitlines() if not line.startswith(("╭", "╰"))]
    ruled = groupby(lines, key=lambda line: set(line.strip()) <= set("─-") and bool(line.strip()))
    paragraphs = [[line for line in group if line.strip()] for rule, group in ruled if not rule]
    first, *others = paragraphs[0 if box.startswith("╭") else 1 :]  # the title is in the frame, or above a rule
    if first[0].strip().startswith("Missing from "):
        least = min(_indent(line) for line in first[1:])
        missing = ", ".join(line.strip() for line in first[1:] if _indent(line) == least)
        said = f"{first[0].strip()} {missing}"
    else:
        said = " ".join(line.strip() for line in takewhile(lambda line: "Got errors:" not in line, first))
    said = _NO_NUMBER.sub(_expecting_numbers, _OURS.sub("", said)).rstrip(".")
    if help_command.startswith("tikas train ") and _WORDS_ALONE.fullmatch(said):
        said += ". Put its flag before it, such as --data or --output"
    for title, *rest in others:
        flags = [line.strip() for line in rest if line.strip().startswith("--")]
        if title.strip() in HINTS and flags:
            said += f". {HINTS[title.strip()]} {' or '.join(flags)}"
        elif title.strip().startswith("Available"):
            said += f". {title.strip()}"
    return f"{said}. ({help_command} shows what there is)"


def _expecting_numbers(found: re.Match[str]) -> str:
    return f"{found[2]}: expected {'a whole number' if found[1] == 'INT' else 'numbers'}"


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
