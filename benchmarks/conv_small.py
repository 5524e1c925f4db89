"""Conv-Small as a Γ-model on a CPU: three epochs over 10,000 images of MNIST, 100 of them labelled.

    TIKAS_DATA=FOLDER python benchmarks/conv_small.py --threads 2 --record results/conv-small-cpu.jsonl

Prints the error on the 10,000 test images, and the seconds of training (calibration and the training images' own
predictions included), of an update and of prediction.
"""

import argparse
import time

import numpy as np
import torch

from tikas import LadderClassifier
from tikas.data.sources import load
from tikas.data.splits import split
from tikas.experiments.records import append, hardware, revision, versions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir")
    parser.add_argument("--images", type=int, default=10_000, help="how many training images are used, the first ones")
    parser.add_argument("--tests", type=int, default=10_000, help="how many test images are used, the first ones")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--record", help="a file to add the figures to")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)

    data = load("mnist", arguments.data_dir)
    x, y = data.train_x[: arguments.images], data.train_y[: arguments.images]
    test_x, test_y = data.test_x[: arguments.tests], data.test_y[: arguments.tests]
    labeled = split(y, 100, seed=arguments.seed).labeled
    shown = np.full(len(y), -1)
    shown[labeled] = y[labeled]

    # The paper's settings, but for the number of epochs.
    model = LadderClassifier(
        "conv_small",
        noise=0.3,
        learning_rate=0.002,
        labeled_batch_size=100,
        epochs=arguments.epochs,
        random_state=arguments.seed,
        device="cpu",
        verbose=True,
    )
    started = time.perf_counter()
    model.fit(x, shown)
    training = time.perf_counter() - started
    updates = arguments.epochs * (len(x) // model.batch_size)
    update = sum(line["seconds"] for line in model.history_) / updates
    started = time.perf_counter()
    error = 100 * float(np.mean(model.predict(test_x) != test_y))
    prediction = time.perf_counter() - started

    place = hardware("cpu")
    print(f"conv_small, costs {model.recipe_.costs}, {len(x)} images, 100 labels, {arguments.epochs} epochs, {place}")
    print(f"error on {len(test_y)} test images: {error:.2f} %")
    print(f"training: {training:.1f} s, {1000 * update:.0f} ms an update; prediction: {prediction:.1f} s")
    if arguments.record:
        figures = {"error": error, "seconds": training, "seconds_per_update": update, "prediction": prediction}
        settings = {"images": len(x), "tests": len(test_y), "epochs": arguments.epochs, "seed": arguments.seed}
        provenance = {"hardware": place, "versions": versions(), "revision": revision()}
        append(arguments.record, {"benchmark": "conv-small-cpu", **settings, **figures, **provenance})


if __name__ == "__main__":
    main()
