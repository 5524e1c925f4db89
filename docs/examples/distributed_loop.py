"""A training loop in several processes: digits from 50 labels. Each process reads its share of the rows.

Run it with: torchrun --nproc-per-node 2 distributed_loop.py
"""

import torch
from sklearn.datasets import load_digits
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

import tikas
from tikas import Dense, Ladder


def main() -> None:
    rank, size = distributed.get_rank(), distributed.get_world_size()
    images, digits = load_digits(return_X_y=True)
    x, y = torch.from_numpy(images).float() / 16, torch.from_numpy(digits)
    x, y, test_x, test_y = x[:1400], y[:1400], x[1400:], y[1400:]
    labeled = torch.cat([torch.nonzero(y == digit)[:5, 0] for digit in range(10)])
    x_labeled, y_labeled = x[labeled][rank::size], y[labeled][rank::size]
    x = x[rank::size]

    torch.manual_seed(0)  # the same weights in every process
    ladder = Ladder((64,), [Dense(64), Dense(32), Dense(10)], costs=(100, 10, 0.1, 0.1))
    ddp = DistributedDataParallel(tikas.distributed.synchronize(ladder))
    optimizer = torch.optim.Adam(ladder.parameters(), lr=0.005)

    torch.manual_seed(1 + rank)  # other noise in every process
    for _ in range(5):
        for unlabeled in torch.randperm(len(x)).split(100 // size):
            optimizer.zero_grad()
            costs = ddp(x[unlabeled], x_labeled, y_labeled)  # the costs of the rows of all processes
            costs.total.backward()
            optimizer.step()

    ladder.calibrate(x).eval()  # every process takes part, and gets the statistics of all rows
    if rank == 0:
        error = (ladder(test_x).argmax(1) != test_y).double().mean().item()
        print(f"error on held-out digits: {100 * error:.1f} %")


distributed.init_process_group()  # gloo on CPUs, NCCL on GPUs
main()
distributed.destroy_process_group()  # after main: a wrapper that still exists would keep threads of the group alive
