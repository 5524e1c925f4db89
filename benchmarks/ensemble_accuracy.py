"""Compare the test errors of seeds trained alone with those of the same seeds trained as an ensemble.

    python benchmarks/ensemble_accuracy.py --data digits --seeds 20 --record results/ensemble-accuracy.jsonl
    python benchmarks/ensemble_accuracy.py --data mnist --seeds 40 --epochs 10 --members 10 40

A seed has the same split, initial weights, order and noise alone and in an ensemble; only products are rounded
differently. After training, errors agree statistically: for each size of ensemble the figures are mean and deviation of
both, and the mean of the differences seed by seed with its standard error.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from math import sqrt
from pathlib import Path
from statistics import mean, stdev
from tempfile import TemporaryDirectory
from time import perf_counter

from common import Figure, new_parser, print_machine, report
from tikas.paper.experiments import Experiment
from tikas.paper.records import Records
from tikas.paper.reproduce import reproduce
from tikas.training.environment import pick_device
from tikas.training.recipe import SMALL, Recipe

RECIPES = {"digits": (SMALL, 50), "mnist": (Recipe(), 100)}
"""Recipe and number of labels of each data set."""


def errors_in_ensembles(experiment: Experiment, members: int, device: str, data_dir: Path | None) -> list[float]:
    """Return the test error of every seed, trained in ensembles of this size."""
    records = Records()
    with TemporaryDirectory() as folder:
        file = Path(folder, "records.jsonl")
        reproduce([experiment], records, file, max_members=members, device=device, data_dir=data_dir, quiet=True)
    measurement = records.measurement(experiment.key)
    if measurement is None or len(measurement.errors) < experiment.seeds:
        raise SystemExit("ensemble_accuracy.py: not all seeds were trained to their end")
    return list(measurement.errors.values())


def compare(alone: Sequence[float], together: Sequence[float]) -> dict[str, float]:
    """Return means and deviations, the mean difference and its standard error, and how many seeds are equal."""
    differences = [other - own for own, other in zip(alone, together, strict=True)]
    return {
        "mean_alone": mean(alone),
        "deviation_alone": stdev(alone),
        "mean_together": mean(together),
        "deviation_together": stdev(together),
        "difference": mean(differences),
        "standard_error": stdev(differences) / sqrt(len(differences)),
        "equal": sum(difference == 0 for difference in differences),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--data", choices=RECIPES, default="digits")
    parser.add_argument("--data-dir", type=Path, help="the folder with the files of MNIST")
    parser.add_argument("--seeds", type=int, default=20, help="at least 2")
    parser.add_argument("--members", type=int, nargs="+", help="sizes of the ensembles; by default all seeds in one")
    parser.add_argument("--epochs", type=int, help="by default those of the recipe")
    options = parser.parse_args(arguments)
    device = pick_device(options.device)
    recipe, labels = RECIPES[options.data]
    recipe = replace(recipe, epochs=options.epochs or recipe.epochs)
    experiment = Experiment(f"{options.data}/{labels}", labels, recipe, data=options.data, seeds=options.seeds)
    print_machine(device)
    alone = errors_in_ensembles(experiment, 1, str(device), options.data_dir)
    for members in options.members or [options.seeds]:
        started = perf_counter()
        together = errors_in_ensembles(experiment, members, str(device), options.data_dir)
        details = {
            "members": members,
            **compare(alone, together),
            "errors_alone": alone,
            "errors_together": together,
            "seeds": list(range(options.seeds)),
            "seconds": perf_counter() - started,
            "data": options.data,
            "labels": labels,
            "recipe": asdict(recipe),
        }
        what = f"{options.data}, {labels} labels, alone and in ensembles of {members}"
        report(Figure("ensemble-accuracy", what, details=details), options, device)


if __name__ == "__main__":
    main()
