"""Members alone and in company: the same seeds, one by one and as fleets, by one recipe, and their test errors.

    python benchmarks/company.py --data digits --seeds 20 --record results/company.jsonl
    python benchmarks/company.py --data mnist --seeds 40 --epochs 10 --record results/company.jsonl

A seed has the same split, first weights, order and noise in any company, and products are rounded otherwise there:
after training, errors agree by statistics. Every size of a fleet is told beside the seeds alone: mean and deviation of
both, and the mean of the differences seed by seed, with its standard error. On a GPU the fleets are of 10, of 40 and of
all seeds, where there are so many; on a CPU of all seeds.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from math import sqrt
from statistics import mean, stdev

from tikas.experiments.bench import Figure
from tikas.experiments.bench_script import headline, report
from tikas.experiments.rows import Rows, load_rows
from tikas.experiments.run import measure
from tikas.training.devices import suitable_device
from tikas.training.recipe import DIGITS, Recipe

RECIPES = {"digits": DIGITS, "mnist": Recipe()}
ON_A_GPU = (10, 40)


def errors_in_fleets(recipe: Recipe, seeds: Sequence[int], rows: Rows, members: int, device: str | None) -> list[float]:
    """The test error of every seed, so many of them trained together at a time."""
    errors: list[float] = []
    for first in range(0, len(seeds), members):
        fleet = seeds[first : first + members]
        errors += measure([recipe] * len(fleet), fleet, rows, device=device).test_errors
    return errors


def compared(alone: Sequence[float], together: Sequence[float]) -> dict[str, float]:
    """Means and deviations of both, and the mean of the differences with its standard error, in percent of rows."""
    differences = [ours - own for own, ours in zip(alone, together, strict=True)]
    return {
        "mean_alone": mean(alone),
        "deviation_alone": stdev(alone),
        "mean_together": mean(together),
        "deviation_together": stdev(together),
        "difference": mean(differences),
        "standard_error": stdev(differences) / sqrt(len(differences)),
        "equal": sum(difference == 0 for difference in differences),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=RECIPES, default="digits")
    parser.add_argument("--seeds", type=int, default=20, help="how many, from 0; at least 2")
    parser.add_argument("--epochs", type=int, help="by default the recipe's")
    parser.add_argument("--labels", type=int, help="by default the recipe's")
    parser.add_argument("--device", help="cpu or cuda; by default a GPU if there is one")
    parser.add_argument("--record", help="a file to add the figures to")
    arguments = parser.parse_args()
    if arguments.seeds < 2:
        parser.error(f"--seeds {arguments.seeds}: expected at least 2, for a deviation.")
    own = {name: getattr(arguments, name) for name in ("epochs", "labels") if getattr(arguments, name) is not None}
    recipe, rows = replace(RECIPES[arguments.data], **own), load_rows(arguments.data)
    device, seeds = suitable_device(arguments.device), range(arguments.seeds)
    print(headline(device), flush=True)
    print(f"{recipe.data}, {recipe.labels} labels, {recipe.epochs} epochs, {len(seeds)} seeds; test errors in percent")
    started = time.perf_counter()
    alone = errors_in_fleets(recipe, seeds, rows, 1, arguments.device)
    seconds = time.perf_counter() - started
    print(f"alone                {mean(alone):.3f} ± {stdev(alone):.3f}, {seconds:.0f} s", flush=True)
    sizes = {size for size in ON_A_GPU if device.type == "cuda" and size <= len(seeds)} | {len(seeds)}
    for members in sorted(sizes):
        started = time.perf_counter()
        together = errors_in_fleets(recipe, seeds, rows, members, arguments.device)
        seconds = time.perf_counter() - started
        figures = compared(alone, together)
        line = (
            f"in fleets of {members:<7} {mean(together):.3f} ± {stdev(together):.3f}, {seconds:.0f} s; "
            f"difference {figures['difference']:+.4f} ± {figures['standard_error']:.4f} (standard error), "
            f"the same for {figures['equal']} of {len(seeds)} seeds"
        )
        details = {
            "members": members,
            **figures,
            "errors_alone": alone,
            "errors_together": together,
            "seeds": list(seeds),
            "seconds": seconds,
            "recipe": asdict(recipe),
        }
        what = f"{recipe.data}, {recipe.labels} labels, alone and in fleets of {members}"
        report(Figure("company", what, details=details), line, device, arguments.record)


if __name__ == "__main__":
    main()
