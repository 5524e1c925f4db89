"""Train an ensemble of one recipe on MNIST, and record the test error of every member.

    python benchmarks/mnist.py --labels 100 --seeds 40 --record results/mnist-100-labels.jsonl
    python benchmarks/mnist.py --network conv_small --costs 1 --labels 1000 --epochs 10 --seeds 4 --precision exact

With the default settings this is `table1/full/100` of `tikas reproduce`. Seeds that have a record in the same file are
not trained again, and an interrupted run is resumed.
"""

from collections.abc import Sequence
from pathlib import Path

import torch

from common import new_parser
from tikas.paper.experiments import Experiment
from tikas.paper.records import Records
from tikas.paper.reproduce import reproduce
from tikas.training.recipe import Recipe


def main(arguments: Sequence[str] | None = None) -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--data", default="mnist", help="mnist, fashion-mnist or digits")
    parser.add_argument("--data-dir", type=Path, help="the folder with the files of the data set")
    parser.add_argument("--labels", default="100", help="a number, or all")
    parser.add_argument("--costs", type=float, nargs="+", default=Recipe.costs)
    parser.add_argument("--noise", type=float, nargs="+", default=Recipe.noise)
    parser.add_argument("--denoiser", default=Recipe.denoiser)
    parser.add_argument("--network", nargs="+", default=Recipe.network, help="units, or mlp, conv_fc or conv_small")
    parser.add_argument("--epochs", type=int, default=Recipe.epochs)
    parser.add_argument("--precision", choices=("fast", "exact"), default=Recipe.precision)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--threads", type=int, help="of a CPU")
    parser.set_defaults(record=Path("mnist.jsonl"))
    options = parser.parse_args(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    labels = "all" if options.labels == "all" else int(options.labels)
    recipe = Recipe(
        network=[int(item) if str(item).isdigit() else item for item in options.network],
        costs=options.costs,
        noise=options.noise,
        denoiser=options.denoiser,
        epochs=options.epochs,
        precision=options.precision,
    )
    experiment = Experiment(f"{options.data}/{labels}", labels, recipe, data=options.data, seeds=options.seeds)
    records = Records.read(options.record)
    outcome = reproduce(
        [experiment],
        records,
        options.record,
        first_seed=options.first_seed,
        data_dir=options.data_dir,
        device=options.device,
    )
    for name, reason in outcome.failures.items():
        print(f"{name}: {reason}")
    measurement = records.measurement(experiment.key)
    if measurement is None:
        return
    summaries = {"all training rows": measurement.summary, "the labeled rows alone": measurement.labeled}
    for statistics, summary in summaries.items():
        if summary is not None:
            print(f"statistics of {statistics}: {summary.text(3)} %, {summary.runs} seeds")
    print(f"highest error: {max(measurement.errors.values()):.2f} %")
    if measurement.seconds is not None:
        print(f"{measurement.seconds:.2f} s per member on {measurement.hardware}")


if __name__ == "__main__":
    main()
