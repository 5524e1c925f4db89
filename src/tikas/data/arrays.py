"""PyTorch tensors and arrays of other libraries (the array API standard): to NumPy, and results back to their kind."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn import get_config


def to_numpy(array: Any) -> Any:
    """Return a tensor, or an array of another library, as a NumPy array on the CPU; return everything else as it is."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        return array.detach().cpu().numpy()
    if not is_array_api(array):
        return array
    try:
        return np.from_dlpack(array)
    except (BufferError, RuntimeError, TypeError, ValueError):  # on another device
        return np.from_dlpack(array, device="cpu", copy=True)


def is_array_api(array: Any) -> bool:
    """Return whether this is an array of a library other than NumPy, PyTorch and those of data frames."""
    return hasattr(array, "__array_namespace__") and not isinstance(array, np.ndarray | np.generic)


def like(result: NDArray[Any], example: Any) -> NDArray[Any]:
    """Return a result as an array of the kind and on the device of `example`, if scikit-learn's dispatch is on.

    That is the setting ``array_api_dispatch`` of `sklearn.set_config`; without it, results are NumPy arrays. Text, of
    which only NumPy has arrays, stays there.
    """
    if not get_config().get("array_api_dispatch") or result.dtype.kind not in "biuf":
        return result
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(example, torch.Tensor):
        converted: Any = torch.as_tensor(result, device=example.device)
    elif is_array_api(example):
        converted = example.__array_namespace__().asarray(result, device=example.device)
    else:
        converted = result
    return converted  # type: ignore[no-any-return]
