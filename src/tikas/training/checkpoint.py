"""Files of tensors with a JSON header: written whole or not at all, read without executing anything."""

import json
import os
import struct
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

FORMAT = "tikas"
MOST_HEADER_BYTES = 100_000_000


class NotAModelError(ValueError):
    """A file that is not what it should be: foreign, truncated, damaged or of another version."""


def write(path: str | Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> Path:
    """Write tensors and a header into one safetensors file, in the place of an older one only once it is complete.

    Raises
    ------
    OSError
        Where the file cannot be written (no such folder, no permission, a full disk). An older file stays as it was.
    """
    from safetensors.torch import save

    path = Path(path)
    payload = save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, _metadata(header))
    try:
        _replace(path, payload)
    except OSError as error:
        raise type(error)(
            error.errno,
            f"The model could not be saved ({error.strerror}); what was at that path before is unchanged. "
            "Choose a folder that exists, can be written to and has "
            f"{len(payload) / 1e6:.1f} MB free",
            str(path),
        ) from error
    return path


def _metadata(header: Mapping[str, Any]) -> dict[str, str]:
    return {FORMAT: json.dumps(header, sort_keys=True)}


def _replace(path: Path, payload: bytes) -> None:
    """Write a temporary file beside the old one, make sure that it is on the disk, then put it in its place."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(payload)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors and the header of a file that `write` made.

    Raises
    ------
    FileNotFoundError
        Where there is no such file.
    NotAModelError
        Where it is not a whole file of this format.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such file. Give the path of a model that tikas saved.")
    payload = path.read_bytes()
    metadata = _read_metadata(path, payload)
    try:
        tensors = load(payload)
    except (SafetensorError, ValueError, KeyError, RuntimeError, OverflowError) as error:
        raise NotAModelError(
            f"{path}: damaged or truncated ({error}). Copy it again from where it was made."
        ) from error
    return tensors, metadata


def _read_metadata(path: Path, payload: bytes) -> dict[str, Any]:
    foreign = NotAModelError(
        f"{path}: not a model that tikas saved. Give a file written by `save` or by `tikas train`."
    )
    if len(payload) < 8:
        raise foreign
    (length,) = struct.unpack("<Q", payload[:8])
    if length > MOST_HEADER_BYTES or payload[8:9] != b"{":
        raise foreign
    if 8 + length > len(payload):
        raise NotAModelError(f"{path}: truncated. Copy it again from where it was made.")
    try:
        header = json.loads(payload[8 : 8 + length])["__metadata__"][FORMAT]
        metadata = json.loads(header)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise foreign from error
    if not isinstance(metadata, dict):
        raise foreign
    return metadata
