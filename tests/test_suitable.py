"""What is left open follows from the scale of the rows and their number."""

import tracemalloc

import numpy as np
import pytest
from sklearn.datasets import load_digits

from tikas.training.suitable import VALUES_AT_A_TIME, _variance, suitable_costs, suitable_epochs, usual_epochs


@pytest.mark.parametrize(
    ("half_a_width", "costs"),
    [(0.3, (1000, 10, 0.1)), (0.4, (391, 3.91, 0.1)), (1, (10, 1, 0.1)), (10, (0.1, 1, 0.1))],
)
def test_suitable_costs_fall_with_the_variance_of_the_columns_and_not_to_nothing(half_a_width, costs):
    assert suitable_costs(np.array([[-half_a_width, 50.0], [half_a_width, 50.0 + 2 * half_a_width]])) == costs


@pytest.mark.parametrize("constant", [0, 0.1, -1000.1])
def test_standardised_columns_are_not_taken_for_pixels_however_many_others_are_constant(constant):
    rows = np.full((300, 50), constant, np.float32)
    rows[::2, ::13], rows[1::2, ::13] = -1, 1
    assert suitable_costs(rows) == (10, 1, 0.1)
    assert usual_epochs(rows) == 300
    assert suitable_costs(rows[::2]) == (1000, 10, 0.1)  # where nothing varies at all
    assert usual_epochs(rows[::2]) == 100


@pytest.mark.parametrize("darkest", [0, -0.5])
def test_pixels_are_taken_for_pixels_however_wide_a_border_is_constant(darkest):
    images = np.pad(load_digits().images[:20] > 8, ((0, 0), (2, 2), (2, 2))) + darkest
    rows = images.reshape(20, -1)
    varying = rows[:, rows.min(0) < rows.max(0)]
    assert suitable_costs(rows) == (1000, 10, 0.1) != suitable_costs(varying)
    assert usual_epochs(rows) == 100 != usual_epochs(varying)


def test_suitable_epochs_make_900_updates_at_the_least():
    for rows in range(100, 900):
        assert suitable_epochs(rows, 100) * (rows // 100) >= 900
    assert [suitable_epochs(rows, 100, usual=300) for rows in (90, 300, 5000, 60_000)] == [900, 300, 300, 25]
    assert [suitable_epochs(rows, 100) for rows in (50, 1297, 60_000, 10**6)] == [900, 100, 25, 10]


@pytest.mark.parametrize(("deviation", "epochs"), [(0.1, 100), (0.3, 100), (0.4, 300), (1, 300), (10, 300)])
def test_columns_that_vary_more_than_pixels_take_more_epochs_and_maps_do_not(deviation, epochs):
    rows = np.array([[-deviation], [deviation]])
    assert usual_epochs(rows) == epochs
    assert usual_epochs(rows.reshape(-1, 1, 1, 1)) == 100


@pytest.mark.parametrize("columns", [1, 3, 784, VALUES_AT_A_TIME + 1])
def test_the_variance_is_numpys_and_takes_little_memory_beside_the_rows(columns):
    rows = np.random.default_rng(0).normal(1000, 0.1, (2**22 // columns, columns)).astype(np.float32)
    tracemalloc.start()
    variance = _variance(rows)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert variance == pytest.approx(rows.var(0, dtype=float).mean(), rel=1e-9)
    assert most < rows.nbytes / 2  # a copy in double precision is twice that, and another holds squares
