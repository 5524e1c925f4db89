"""What a recipe's data are, told by their name or path alone: a data set, a table or a folder of images."""

from difflib import get_close_matches
from pathlib import Path
from typing import Literal

DATA_SETS = ("digits", "mnist", "fashion-mnist", "cifar10")

Kind = Literal["data set", "table", "folder"]


def kind_of(data: str) -> Kind:
    """A data set by its name, a folder if there is one or a path leads there, a table if there is a suffix or a file.

    A single word that is none of these is taken for the name of a data set.

    Examples
    --------
    >>> kind_of("mnist"), kind_of("mine.csv"), kind_of("photos/of-flowers"), kind_of("minst")
    ('data set', 'table', 'folder', 'data set')
    """
    if data in DATA_SETS:
        return "data set"
    if Path(data).is_dir():
        return "folder"
    if Path(data).suffix or Path(data).is_file():
        return "table"
    return "folder" if len(Path(data).parts) > 1 else "data set"


def check_there_is(data: str) -> None:
    """Refuse what is neither the name of a data set nor the path of anything, with what may have been meant.

    Examples
    --------
    >>> check_there_is("minst")
    Traceback (most recent call last):
    FileNotFoundError: There is no data set, file or folder 'minst': give one of digits, mnist, fashion-mnist, cifar10,
    or the path of a table or of a folder of images. Did you mean mnist?
    """
    path = Path(data).expanduser()
    if data in DATA_SETS or (data and path.exists()):  # of no path at all it would be the working folder
        return
    there = path.parent.iterdir() if path.parent.is_dir() else ()
    names = {name: name for name in DATA_SETS} | {
        name.lower(): str(each) for each in there for name in (each.stem, each.name)
    }
    near = get_close_matches(path.name.lower(), names, n=1)
    raise FileNotFoundError(
        f"There is no data set, file or folder {data!r}: give one of {', '.join(DATA_SETS)}, or the path of a table or "
        f"of a folder of images." + (f" Did you mean {names[near[0]]}?" if near else "")
    )
