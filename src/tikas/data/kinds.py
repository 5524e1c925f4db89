"""What a recipe's data are, told by their name or path alone: a data set, a table or a folder of images."""

from difflib import get_close_matches
from pathlib import Path
from typing import Literal

DATA_SETS = ("digits", "mnist", "fashion-mnist", "cifar10")

MOST_NAMED = 3
"""Of what may have been meant."""

ALIKE = 0.7
"""How much names are, of 1, that may have been meant: mnist is for minst, and mine is not."""

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
    near = _near(path)
    raise FileNotFoundError(
        f"There is no data set, file or folder {data!r}: give one of {', '.join(DATA_SETS)}, or the path of a table or "
        f"of a folder of images." + (f" Did you mean {' or '.join(near)}?" if near else "")
    )


def _near(path: Path) -> list[str]:
    """The data set that is called most alike, then files and folders, suffix or not; a nearer one does not hide it."""
    data_sets = {name: [name] for name in DATA_SETS}
    files: dict[str, list[str]] = {}
    for each in sorted(path.parent.iterdir()) if path.parent.is_dir() else ():
        for name in {each.stem.lower(), each.name.lower()}:
            files.setdefault(name, []).append(str(each))
    found = [
        each
        for called in (data_sets, files)
        for word in (path.stem.lower(), path.name.lower())
        for name in get_close_matches(word, called, n=1, cutoff=ALIKE)
        for each in called[name]
    ]
    return list(dict.fromkeys(found))[:MOST_NAMED]
