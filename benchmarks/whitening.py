"""Time the whitening of CIFAR-10: fitting and applying it, its peak memory, and the same equations in plain NumPy.

    python benchmarks/whitening.py --threads 2 --record results/bench.jsonl
    python benchmarks/whitening.py --device cuda --without-numpy

The images are random, which takes as long. Plain NumPy computes in double precision with all rows at once, on the CPU.
"""

import resource
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from common import Figure, new_parser, print_machine, report, synchronize
from tikas.data.transforms import CONTRAST, REGULARIZER, Whitening
from tikas.training.environment import pick_device


def plain_numpy(images: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the whitening matrix."""
    rows = images.reshape(len(images), -1).astype(np.float64)
    rows -= rows.mean(1, keepdims=True)
    rows *= CONTRAST * rows.shape[1] ** 0.5 / np.linalg.norm(rows, axis=1, keepdims=True)
    rows -= rows.mean(0)
    variances, directions = np.linalg.eigh(rows.T @ rows / len(rows))
    return directions @ np.diag((variances + REGULARIZER) ** -0.5) @ directions.T


def timed(function: Callable[[], Any], device: torch.device) -> tuple[Any, dict[str, float]]:
    """Return the result of a call, its seconds, and the peak memory of the process so far."""
    started = time.perf_counter()
    result = function()
    synchronize(device)
    seconds, peak = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    return result, {"seconds": seconds, "peak_gigabytes": peak}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--images", type=int, default=50_000, help="training images; a fifth as many are test images")
    parser.add_argument("--side", type=int, default=32, help="width and height of an image")
    parser.add_argument("--threads", type=int, help="of a CPU")
    parser.add_argument("--without-numpy", action="store_true", help="leave plain NumPy out")
    options = parser.parse_args(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    device = pick_device(options.device or "cpu")
    print_machine(device)
    shape = 3, options.side, options.side
    train, test = (torch.rand(count, *shape) for count in (options.images, options.images // 5))
    if device.type == "cuda":
        Whitening.fit(train[:4000], device)(train[:4000])  # loads the libraries
    whitening, figures = timed(lambda: Whitening.fit(train, device), device)
    report(Figure("whitening", f"fit on {len(train)} images", details=figures), options, device)
    _, applying = timed(lambda: (whitening(train), whitening(test)), device)
    report(Figure("whitening", f"apply to {len(train) + len(test)}", details=applying), options, device)
    if not options.without_numpy:
        matrix, plain = timed(lambda: plain_numpy(train.numpy()), device)
        difference = np.abs(whitening.matrix.cpu().numpy() - matrix).max()
        ratio = plain["seconds"] / figures["seconds"]
        print(f"plain NumPy: {plain['seconds']:.2f} s, {ratio:.1f} times as long as fit")
        print(f"largest difference of the matrices: {difference:.1e}")


if __name__ == "__main__":
    main()
