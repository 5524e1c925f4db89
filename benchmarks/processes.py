"""Several processes that share the rows of each batch: measured with two on this machine, computed for many GPUs.

    python benchmarks/processes.py --record results/processes.jsonl
    python benchmarks/processes.py --efficiency --bandwidth 25 --latency 5

The first trains the paper's network in one process of one thread and in two, in turn, and prints milliseconds per
update. `cpu_ratio` is the processor time of both processes together over that of one: what sharing adds, also on a
machine that is busy with other work, of which `load` tells. The second prints the table of docs/scaling.md, for the
link speeds and the GPU that its options describe.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import time
from dataclasses import dataclass, replace
from math import ceil, log2
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import multiprocessing

from common import RESULTS, Figure, new_parser, print_machine, report
from tikas import Dense, Ladder
from tikas.data.datasets import Dataset
from tikas.data.splits import split
from tikas.paper.records import read_records
from tikas.paper.render import markdown_table
from tikas.training.callbacks import Progress
from tikas.training.recipe import Recipe
from tikas.training.trainer import Trainer
from traffic import Traffic, traffic

INPUTS, WIDTHS, CLASSES = 784, (1000, 500, 250, 250, 250), 10
"""The paper's network for MNIST."""
GPUS = (8, 64, 512)


@dataclass(frozen=True)
class Machine:
    """GPUs and the links between them. Measured figures are those of an H200 in results/; the others are assumed.

    Attributes
    ----------
    overhead
        Milliseconds of an update without its products: launches of kernels, whatever the number of rows.
    teraflops
        Speed of products: TF32 is assumed to reach an eighth of the bf16 speed that was measured.
    normals
        Billions of normal numbers drawn in a second.
    launch, latency
        Microseconds to begin an all-reduce, and of each of its steps, of which there are 2 log2(GPUs).
    node, node_bandwidth, bandwidth
        GPUs of a node, and gigabytes per second that each of them sends within a node and between nodes.
    """

    overhead: float
    teraflops: float
    normals: float
    launch: float = 10.0
    latency: float = 3.0
    node: int = 8
    node_bandwidth: float = 300.0
    bandwidth: float = 50.0


@dataclass(frozen=True)
class Update:
    """Milliseconds of an update by what they are spent on."""

    compute: float
    statistics: float
    gradients: float
    noise: float

    @property
    def total(self) -> float:
        return self.compute + self.statistics + self.gradients + self.noise


def h200() -> Machine:
    """Return the machine that the page assumes."""
    records = [each for each in read_records(RESULTS / "bench.jsonl") if each["hardware"] == "NVIDIA H200"]
    plain = [each for each in records if each["benchmark"] == "engine" and each["what"] == "plain PyTorch"][-1]
    products = [each for each in records if each["benchmark"] == "utilisation"][-1]
    profile = json.loads((RESULTS / "profile-40-seeds.json").read_text())
    kernels = profile["microseconds_and_calls_per_update"]
    (noise,) = [microseconds for name, (microseconds, _) in kernels.items() if "normal_kernel" in name]
    values = profile["members"] * 200 * (INPUTS + sum(WIDTHS) + CLASSES)
    return Machine(plain["ms"], products["large_product_teraflops"] / 8, values / noise / 1e3)


def network(scale: int = 1) -> Ladder:
    """Return the paper's network with all layers `scale` times as wide, without memory for its weights."""
    with torch.device("meta"):
        return Ladder((scale * INPUTS,), [*(Dense(scale * width) for width in WIDTHS), Dense(CLASSES)])


def milliseconds_of_update(ladder: Ladder, sent: Traffic, machine: Machine, gpus: int, rows: int) -> Update:
    """Return the milliseconds of an update in which each GPU has so many labeled and as many unlabeled rows.

    An all-reduce of B bytes over N GPUs takes launch + 2 log2(N) latency + 2 (N - 1)/N B / bandwidth. A product takes 2
    operations for each weight and row forward and twice as many backward, for labeled, corrupted and clean rows in the
    encoder and corrupted rows in the decoder. Nothing is assumed to overlap.
    """
    encoder = sum(rung.weight.numel() for rung in ladder.rungs[1:])
    decoder = sum(rung.back.weight.numel() for rung in ladder.rungs if rung.back is not None)
    operations = 6 * rows * (3 * encoder + decoder)
    values = gpus * 2 * rows * sum(rung.shape[0] for rung in ladder.rungs)  # each process draws those of all
    compute = machine.overhead + operations / machine.teraflops / 1e9
    if gpus == 1:
        return Update(compute, 0.0, 0.0, values / machine.normals / 1e6)
    bandwidth = machine.node_bandwidth if gpus <= machine.node else machine.bandwidth

    def all_reduces(count: int, size: int) -> float:
        steps = machine.launch + 2 * ceil(log2(gpus)) * machine.latency
        return count * steps / 1e3 + 2 * (gpus - 1) / gpus * size / bandwidth / 1e6

    statistics = all_reduces(sent.all_reduces, sent.bytes)
    return Update(compute, statistics, all_reduces(1, sent.gradients), values / machine.normals / 1e6)


def efficiency_table(machine: Machine, rows: int = 100) -> str:
    """Milliseconds of an update and the share of them that one GPU alone would need for its rows."""
    lines = []
    for name, scale in (("the paper's", 1), ("100 times as many weights", 10)):
        ladder = network(scale)
        sent = traffic(ladder)
        alone = milliseconds_of_update(ladder, sent, machine, 1, rows)
        for gpus in GPUS:
            update = milliseconds_of_update(ladder, sent, machine, gpus, rows)
            parts = (update.compute, update.statistics, update.gradients, update.noise, update.total)
            share = f"{100 * alone.total / update.total:.0f} %"
            lines.append([name, str(gpus), *(f"{part:.2f}" for part in parts), share])
    header = ["network", "GPUs", "compute", "statistics, costs", "gradients", "noise", "all", "efficiency"]
    return markdown_table(header, lines)


def traffic_table() -> str:
    """All-reduces of an update and their bytes."""
    lines = []
    for name, scale in (("the paper's", 1), ("100 times as many weights", 10)):
        sent = traffic(network(scale))
        counts = (len(sent.forward), sum(sent.forward), len(sent.backward), sum(sent.backward), sent.gradients)
        lines.append([name, *(f"{count:,}" for count in counts)])
    header = ["network", "forward", "bytes", "backward", "bytes", "gradients, bytes"]
    return markdown_table(header, lines)


# Measured


def train(rank: int, size: int, port: int, rows: int, updates: int, results: Any) -> None:
    """Train in one of `size` processes; the first puts the seconds of an update, and its seconds of processor time."""
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    recipe = Recipe(network=WIDTHS, costs=(1000.0, 10.0, 0.1), batch_size=rows, labeled_batch_size=rows, epochs=3)
    values = np.random.default_rng(0).random((rows * updates, INPUTS), np.float32)
    data = Dataset(values, np.arange(len(values)) % CLASSES, classes=np.arange(CLASSES))
    times: list[tuple[float, float]] = []  # before the first epoch, and after each

    def note(_: Progress) -> None:
        times.append((time.perf_counter(), time.process_time()))

    Trainer(recipe, device="cpu", callbacks=[note]).fit(data, [split(data.targets, rows)], [0])
    if rank == 0:
        results.put([(end - start) / (2 * updates) for start, end in zip(times[1], times[3], strict=True)])


def measure(size: int, rows: int, updates: int) -> tuple[float, float]:
    """Return milliseconds of an update, and milliseconds of processor time in all processes, which work alike."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    results = multiprocessing.get_context("spawn").SimpleQueue()
    multiprocessing.start_processes(train, (size, port, rows, updates, results), nprocs=size, start_method="spawn")
    wall, processor = results.get()
    return 1000 * wall, 1000 * size * processor


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--updates", type=int, default=20, help="updates of an epoch; the first of three is not measured"
    )
    parser.add_argument("--efficiency", action="store_true", help="print the computed table instead")
    rows_help = "labeled, and also unlabeled, rows: measured, of a batch; computed, of each GPU"
    parser.add_argument("--rows", type=int, nargs="+", default=[100, 1000], help=rows_help)
    for name, default in vars(h200()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    options = parser.parse_args()
    if options.efficiency:
        print("\n".join(efficiency_table(machine_of(options), rows) for rows in options.rows))
        return
    device = torch.device("cpu")
    print_machine(device)
    for rows in options.rows:
        measured = [[measure(size, rows, options.updates) for size in (1, 2)] for _ in range(options.rounds)]
        one, two = (median(pair[side][0] for pair in measured) for side in (0, 1))
        cpu_ratio = median(together[1] / alone[1] for alone, together in measured)
        details = {"rows": rows, "cpu_ratio": cpu_ratio, "load": os.getloadavg()[0], "rounds": options.rounds}
        report(Figure("processes", "1 process", one, details={"rows": rows}), options, device)
        report(Figure("processes", "2 processes", two, one / two, "1 process", details), options, device)


def machine_of(options: argparse.Namespace) -> Machine:
    """Return the machine that the options describe."""
    machine = h200()
    return replace(machine, **{name: getattr(options, name) for name in vars(machine)})


if __name__ == "__main__":
    main()
