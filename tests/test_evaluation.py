"""Held-out rows are measured after every epoch where that is little work beside it, and more seldom where it is not."""

import pytest
import torch
from torch import nn

from tikas import gamma
from tikas.training.evaluation import MOST_OF_A_MODULE, MOST_OF_THE_WORK, PASSES, epochs_between, error_of

UPDATE = 250
"""Rows that go up the network."""


def test_every_epoch_is_measured_where_epochs_are_long_or_rows_are_few():
    assert epochs_between(10_000, UPDATE, updates=900) == 1
    assert epochs_between(700, UPDATE, updates=70) == 1
    assert epochs_between(10_000, UPDATE, updates=70) > 1
    assert epochs_between(700, UPDATE, updates=10) > 1


@pytest.mark.parametrize("looked_at", [10, 700, 3_000, 100_000])
@pytest.mark.parametrize("updates", [1, 7, 70, 500])
def test_measuring_stays_within_its_share_of_the_work_and_is_no_more_seldom_than_that_takes(looked_at, updates):
    every = epochs_between(looked_at, UPDATE, updates)
    work = max(looked_at, PASSES * UPDATE)  # of few rows as that of one update
    allowed = MOST_OF_THE_WORK * PASSES * UPDATE * updates
    assert work <= every * allowed
    assert every == 1 or work > (every - 1) * allowed


def test_a_module_is_measured_on_some_rows_at_a_time_as_nobody_knows_how_large_its_maps_are():
    seen: list[int] = []
    network = nn.Linear(3, 2)
    network.register_forward_hook(lambda _module, _rows, output: seen.append(len(output)))
    rows = torch.rand(2 * MOST_OF_A_MODULE + 5, 3)
    model = gamma(network, n_classes=2, example=rows[:2]).calibrate(rows).eval()
    seen.clear()
    error_of(model, rows, torch.zeros(len(rows), dtype=torch.int64))
    assert seen == [MOST_OF_A_MODULE, MOST_OF_A_MODULE, 5]
