"""Files of tensors with a JSON header: written whole or not at all, read without executing anything."""

import contextlib
import errno
import json
import os
import shutil
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from torch import Tensor

FORMAT, CHECKSUM = "tikas", "checksum"
MOST_HEADER_BYTES = 100_000_000


class NotAModelError(ValueError):
    """A file that is not what it should be: foreign, truncated, damaged or of another version."""


def write(path: str | Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> Path:
    """Write tensors and a header into one safetensors file, in the place of an older one only once it is complete.

    Raises
    ------
    OSError
        Where the file cannot be written (no such folder, no permission, a full disk). An older file stays as it was.

    Examples
    --------
    >>> import tempfile, torch
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = write(Path(folder, "some.safetensors"), {"weight": torch.ones(2)}, {"epoch": 3})
    ...     tensors, header = read(path)
    >>> tensors["weight"].tolist(), header
    ([1.0, 1.0], {'epoch': 3})
    """
    from safetensors.torch import save

    path = Path(path)
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(header, sort_keys=True)
    payload = save(plain, {FORMAT: text, CHECKSUM: checksum(text, plain)})
    try:
        replace_file(path, payload)
    except OSError as error:
        raise type(error)(
            error.errno,
            f"The model could not be saved ({error.strerror}); what was at that path before is unchanged. "
            f"Name a file in a folder that exists, can be written to and has {len(payload) / 1e6:.3g} MB free",
            str(path),
        ) from error
    return path


def replace_file(path: Path, payload: bytes) -> None:
    """Write a temporary file beside the old one, make sure that it is on the disk, then put it in its place.

    What is neither a file nor a folder (a device, a pipe) is left alone with an OSError.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     replace_file(Path(folder, "notes"), b"old")
    ...     replace_file(Path(folder, "notes"), b"new")
    ...     [(path.name, path.read_bytes()) for path in Path(folder).iterdir()]
    [('notes', b'new')]
    """
    target = Path(os.path.realpath(path))  # of a link, the file that it leads to
    if target.exists() and not target.is_file() and not target.is_dir():
        raise OSError(errno.EINVAL, "Not a regular file", str(target))
    temporary = target.with_name(f".{uuid4().hex}.partial")
    try:
        with temporary.open("xb") as file:
            file.write(payload)
            file.flush()
            os.fsync(file.fileno())
        if target.is_file():
            shutil.copymode(target, temporary)
        temporary.replace(target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError):  # the name of the temporary file would tell nobody anything
            raise type(error)(error.errno, error.strerror, str(path)) from error
        raise


def read(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors and the header of a file that `write` made.

    Raises
    ------
    FileNotFoundError
        Where there is no such file.
    NotAModelError
        Where it is not a whole file of this format.

    Examples
    --------
    >>> read("nowhere.safetensors")
    Traceback (most recent call last):
    FileNotFoundError: nowhere.safetensors: there is no such file. Give the path of a model that tikas saved.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path}: there is no such file. Give the path of a model that tikas saved.")
    if not path.is_file():
        raise NotAModelError(f"{path}: not a file. Give the path of a model that tikas saved.")
    text, header, expected = _read_metadata(path)
    try:
        tensors = load(path.read_bytes())
    except (SafetensorError, ValueError, LookupError, TypeError, RuntimeError, OverflowError) as error:
        raise NotAModelError(
            f"{path}: damaged or truncated ({error}). Copy it again from where it was made."
        ) from error
    if expected is not None and checksum(text, tensors) != expected:
        raise NotAModelError(f"{path}: damaged, its checksum is another. Copy it again from where it was made.")
    return tensors, header


def checksum(header: str, tensors: Mapping[str, Tensor]) -> str:
    """Of the header and of the values of all tensors, in the order of their names.

    Examples
    --------
    >>> import torch
    >>> checksum("{}", {"weight": torch.ones(2)}), checksum('{"epoch": 3}', {"weight": torch.ones(2)})
    ('5cebbc62', '05102498')
    """
    total = zlib.crc32(header.encode())
    for _, tensor in sorted(tensors.items()):
        if tensor.numel():
            total = zlib.crc32(tensor.flatten().view(torch.uint8).numpy().data, total)
    return f"{total:08x}"


def _read_metadata(path: Path) -> tuple[str, dict[str, Any], str | None]:
    """The header as it was written and as what it says, and the checksum; files of earlier versions have none."""
    foreign = NotAModelError(
        f"{path}: not a model that tikas saved. Give a file written by `save` or by `tikas train`."
    )
    with path.open("rb") as file:
        start = file.read(9)
        if len(start) < 9 or start[8:] != b"{":
            raise foreign
        (length,) = struct.unpack("<Q", start[:8])
        if length > MOST_HEADER_BYTES:
            raise foreign
        file.seek(8)
        text = file.read(length)
    truncated = NotAModelError(f"{path}: truncated. Copy it again from where it was made.")
    if len(text) < length:
        raise truncated
    try:
        described = json.loads(text)
        metadata = described.pop("__metadata__")
        written = metadata[FORMAT]
        header = json.loads(written)
        end = max((int(each["data_offsets"][1]) for each in described.values()), default=0)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise foreign from error
    if not isinstance(header, dict):
        raise foreign
    if path.stat().st_size < 8 + length + end:
        raise truncated
    return written, header, metadata.get(CHECKSUM)
