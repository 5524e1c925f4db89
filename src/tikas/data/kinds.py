"""What a recipe's data are, told by their name or path alone: a data set, a table or a folder of images."""

from pathlib import Path
from typing import Literal

DATA_SETS = ("digits", "mnist", "fashion-mnist", "cifar10")

Kind = Literal["data set", "table", "folder"]


def kind_of(data: str) -> Kind:
    """A data set by its name, a folder if there is one or a path leads there, a table if there is a suffix.

    A single word that is none of these is taken for the name of a data set, so that the names are told to whoever
    misspelt one.

    Examples
    --------
    >>> kind_of("mnist"), kind_of("mine.csv"), kind_of("photos/of-flowers"), kind_of("minst")
    ('data set', 'table', 'folder', 'data set')
    """
    if data in DATA_SETS:
        return "data set"
    if Path(data).is_dir():
        return "folder"
    if Path(data).suffix:
        return "table"
    return "folder" if len(Path(data).parts) > 1 else "data set"
