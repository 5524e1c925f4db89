"""Where a command's output goes."""

from pathlib import Path


def make_folder_of(output: Path) -> None:
    """Find out before the work, not after it, that what comes out has a place to go to.

    Raises
    ------
    IsADirectoryError
        Where the path is that of a folder.
    RuntimeError
        Where its folder cannot be made.

    Examples
    --------
    >>> make_folder_of(Path("/"))
    Traceback (most recent call last):
    IsADirectoryError: --output / is a folder: give the path of a file in it.
    """
    if output.is_dir():
        raise IsADirectoryError(f"--output {output} is a folder: give the path of a file in it.")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RuntimeError(
            f"--output {output}: its folder cannot be made ({error.strerror}). Give a path that can be written to."
        ) from error
