"""A fleet of seeds of one recipe on MNIST, a record for every member.

python benchmarks/mnist.py --labels 100 --seeds 40 --epochs 150 --record results/mnist-100.jsonl
"""

import argparse
import statistics

import torch

from tikas.experiments.preparing import rows_for
from tikas.experiments.records import append, hardware, member_records
from tikas.experiments.run import run
from tikas.training.devices import suitable_device
from tikas.training.fit import Progress
from tikas.training.recipe import Recipe


def say(progress: Progress) -> None:
    if progress.doing:
        print(progress.doing, flush=True)
    elif progress.epoch % 10 == 0:
        line = progress.members[0]
        print(f"epoch {progress.epoch}: total {line['total']:.3f}, {line['seconds']:.2f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--labels", default="100", help="a number, or all")
    parser.add_argument("--costs", type=float, nargs="+", default=Recipe().costs)
    parser.add_argument("--noise", type=float, nargs="+", default=Recipe().noise)
    parser.add_argument("--denoiser", default="gaussian")
    parser.add_argument("--network", default="mlp", help="mlp, conv_fc or conv_small")
    parser.add_argument("--epochs", type=int, default=150)
    parser.add_argument("--precision", default="fast", help="fast or exact")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--device", help="cpu or cuda; by default a GPU if there is one")
    parser.add_argument("--threads", type=int, help="on a CPU")
    parser.add_argument("--record", help="a file to add the members' records to")
    arguments = parser.parse_args()
    recipe = Recipe(
        network=Recipe().network if arguments.network == "mlp" else (arguments.network,),
        labels="all" if arguments.labels == "all" else int(arguments.labels),
        costs=tuple(arguments.costs),
        noise=tuple(arguments.noise),
        denoiser=arguments.denoiser,
        epochs=arguments.epochs,
        precision=arguments.precision,
    )
    device = suitable_device(arguments.device)
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    seeds = list(range(arguments.first_seed, arguments.first_seed + arguments.seeds))
    outcome = run(recipe, seeds, rows_for(recipe), device=arguments.device, on_epoch=say)
    for record in member_records(outcome, recipe, seeds, device):
        if arguments.record:
            append(arguments.record, record)
    if outcome.trained.interrupted:
        raise SystemExit("mnist.py: interrupted; what was cut short is no result, and has no record.")
    for name, errors in (
        ("all training rows", outcome.test_errors),
        ("labelled rows alone", outcome.labeled_statistics_errors),
    ):
        spread = statistics.stdev(errors) if len(errors) > 1 else 0.0
        print(
            f"statistics of {name}: {statistics.mean(errors):.3f} ± {spread:.3f} %, worst {max(errors):.2f} %, "
            f"{len(errors)} seeds"
        )
    print(f"{outcome.seconds:.1f} s on {hardware(device)}")


if __name__ == "__main__":
    main()
