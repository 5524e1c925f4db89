"""Milliseconds per update and seed of the paper's convolutional ladders, against plain PyTorch.

    python benchmarks/convolutions.py --record results/bench.jsonl
    python benchmarks/convolutions.py --fit --data-dir FOLDER --threads 2 --record results/conv-small-cpu.jsonl

Conv-FC (full ladder), Conv-Small (Γ-model and full) and Conv-Large (Γ-model), with 100 labeled and 100 unlabeled
images per update. On a CPU tikas trains these in plain PyTorch, so there is nothing to compare; `--quick` takes 10 + 10
images there. `--fit` instead trains Conv-Small's Γ-model on a CPU for three epochs over the first 10,000 images of
MNIST, 100 of them labeled, and reports the test error and the seconds.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from common import (
    epochs_of,
    interleave,
    new_parser,
    print_machine,
    provenance,
    report,
    start_engine,
    timed_figure,
    write_record,
)
from tikas.training.environment import pick_device
from tikas.training.recipe import Recipe

LADDERS = {
    "conv_fc, full": (Recipe(network=("conv_fc",)), (1, 28, 28)),
    "conv_small, Γ": (Recipe(network=("conv_small",), costs=(1.0,)), (1, 28, 28)),
    "conv_small, full": (Recipe(network=("conv_small",), costs=(1000.0, 10.0, 0.1)), (1, 28, 28)),
    "conv_large, Γ": (Recipe(network=("conv_large",), costs=(4.0,), activation="leaky_relu"), (3, 32, 32)),
}


def measure_updates(name: str, options: argparse.Namespace, device: torch.device) -> None:
    """Time updates of one ladder, in turn with those of the eager engine where tikas chooses another one."""
    recipe, shape = LADDERS[name]
    rows = 10 if options.quick and device.type == "cpu" else recipe.batch_size
    recipe = replace(recipe, batch_size=rows, labeled_batch_size=rows)
    updates = 20 if device.type == "cuda" else 2
    engine = start_engine(recipe, device, members=options.members, updates=updates, shape=shape)
    sides, against = [epochs_of(engine, name)], None
    if engine.program != "EagerEngine, float32":
        eager = start_engine(recipe, device, updates=updates, shape=shape, program="eager")
        sides.append(epochs_of(eager, "plain PyTorch"))
    timings = interleave(sides, device, 4.0 if options.quick else 30.0)
    if len(sides) > 1:
        against = "plain PyTorch", timings["plain PyTorch"]
    details = {"rows": f"{rows} + {rows}", "members": options.members}
    report(timed_figure("convolutions", name, timings[name], engine, against, **details), options, device)


def fit_conv_small(options: argparse.Namespace) -> None:
    """Train Conv-Small's Γ-model on a CPU with the paper's settings but for the number of epochs."""
    from tikas import LadderClassifier
    from tikas.data.datasets import load_dataset
    from tikas.data.splits import split

    train, test = load_dataset("mnist", options.data_dir)
    x, y = train.rows[: options.images], train.targets[: options.images]
    test_x, test_y = test.rows[: options.images], test.targets[: options.images]
    labeled = split(y, 100, seed=0).labeled
    known = np.full(len(y), -1)
    known[labeled] = y[labeled]
    model = LadderClassifier(
        "conv_small",
        noise=0.3,
        learning_rate=0.002,
        labeled_batch_size=100,
        epochs=options.epochs,
        random_state=0,
        device="cpu",
        verbose=True,
    )
    started = time.perf_counter()
    model.fit(x, known)
    seconds = time.perf_counter() - started
    updates = options.epochs * (len(x) // model.batch_size)
    update = sum(line["seconds"] for line in model.history_) / updates
    started = time.perf_counter()
    error = 100 * float(np.mean(model.predict(test_x) != test_y))
    prediction = time.perf_counter() - started
    print(f"error on {len(test_y)} test images: {error:.2f} %")
    print(f"training: {seconds:.1f} s, {1000 * update:.0f} ms per update; prediction: {prediction:.1f} s")
    settings = {"images": len(x), "tests": len(test_y), "epochs": options.epochs, "seed": 0}
    figures = {"error": error, "seconds": seconds, "seconds_per_update": update, "prediction": prediction}
    write_record(options.record, {"benchmark": "conv-small-cpu", **settings, **figures, **provenance("cpu")})


def main(arguments: Sequence[str] | None = None) -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--ladders", nargs="+", choices=LADDERS, default=list(LADDERS))
    parser.add_argument("--members", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="few rounds, and on a CPU few images")
    parser.add_argument("--fit", action="store_true", help="train Conv-Small's Γ-model on a CPU instead")
    parser.add_argument("--data-dir", help="where the files of MNIST are")
    parser.add_argument("--images", type=int, default=10_000, help="of --fit: the first ones")
    parser.add_argument("--epochs", type=int, default=3, help="of --fit")
    parser.add_argument("--threads", type=int, help="of a CPU")
    options = parser.parse_args(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    device = pick_device("cpu" if options.fit else options.device)
    print_machine(device)
    if options.fit:
        fit_conv_small(options)
        return
    for name in options.ladders:
        measure_updates(name, options, device)


if __name__ == "__main__":
    main()
