"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], numbers_from: int = 1) -> str:
    """A table whose columns are set to the right from `numbers_from` on.

    Examples
    --------
    >>> print(markdown_table(["", "error"], [["ladder", "0.93"]]))
    |  | error |
    | --- | ---: |
    | ladder | 0.93 |
    """
    rules = ["---" if place < numbers_from else "---:" for place in range(len(header))]
    return "\n".join(f"| {' | '.join(map(_escaped, line))} |" for line in (header, rules, *rows))


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")
