"""Whitening of CIFAR-10: seconds to fit and to apply, peak memory, and how many times quicker than plain NumPy.

    python benchmarks/whitening.py --data-dir FOLDER --threads 2 --record results/bench.jsonl
    python benchmarks/whitening.py --data-dir FOLDER --device cuda --without-plain --record results/bench.jsonl

Plain NumPy is the same equations in double precision on all rows at once, on the CPU; leave it out where time or memory
is short. On a GPU, a fit on a few rows goes first, which loads the libraries.
"""

import argparse
import resource
import time

import numpy as np
import torch

from tikas.data.sources import load
from tikas.data.whitening import REGULARIZER, Whitening
from tikas.experiments.bench import Figure
from tikas.experiments.bench_script import headline, report


def plain(images: np.ndarray) -> np.ndarray:
    """The matrix that whitens."""
    rows = images.reshape(len(images), -1).astype(np.float64)
    rows -= rows.mean(1, keepdims=True)
    rows *= 55 / np.linalg.norm(rows, axis=1, keepdims=True)
    rows -= rows.mean(0)
    variances, directions = np.linalg.eigh(rows.T @ rows / len(rows))
    return directions @ np.diag((variances + REGULARIZER) ** -0.5) @ directions.T


def timed(function, *arguments):
    started = time.perf_counter()
    result = function(*arguments)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return result, time.perf_counter() - started


def peak_gigabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--without-plain", action="store_true", help="leave plain NumPy out")
    parser.add_argument("--record", help="a file to add the figures to")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    torch.set_num_threads(arguments.threads)
    data, seconds = timed(load, "cifar10", arguments.data_dir)
    train, test = torch.from_numpy(data.train_x), torch.from_numpy(data.test_x)
    print(headline(device), flush=True)
    print(f"read:  {seconds:6.2f} s, peak memory {peak_gigabytes():.2f} GB")
    if arguments.device != "cpu":
        Whitening.fit(train[:4000], arguments.device)(train[:4000])
    whitening, fit_seconds = timed(Whitening.fit, train, arguments.device)
    figures = {"seconds": fit_seconds, "peak_gigabytes": peak_gigabytes()}
    line = f"fit:   {fit_seconds:6.2f} s, peak memory {peak_gigabytes():.2f} GB, with the data"
    report(Figure("whitening", f"fit on {len(train)} images", details=figures), line, device, arguments.record)
    _, seconds = timed(lambda: (whitening(train), whitening(test)))
    figures = {"seconds": seconds, "peak_gigabytes": peak_gigabytes()}
    line = f"apply: {seconds:6.2f} s for both sets, peak memory {peak_gigabytes():.2f} GB"
    report(Figure("whitening", f"apply to {len(train) + len(test)}", details=figures), line, device, arguments.record)
    if not arguments.without_plain:
        matrix, seconds = timed(plain, data.train_x)
        apart = np.abs(whitening.matrix.cpu().numpy() - matrix).max()
        print(f"plain NumPy: {seconds:.2f} s, peak memory {peak_gigabytes():.2f} GB; largest difference {apart:.1e}")
        print(f"fit is {seconds / fit_seconds:.1f} times as quick")


if __name__ == "__main__":
    main()
