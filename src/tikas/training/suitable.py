"""What a recipe leaves open, as it suits its network and its rows; the same for every door."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any

from tikas.model.names import Task
from tikas.training.networks import Network, rungs_of, takes_maps
from tikas.training.recipe import DIGITS

if TYPE_CHECKING:
    from numpy.typing import NDArray

COSTS_ON_MAPS: dict[int | str, tuple[float, ...]] = {
    "conv_fc": (1000.0, 10.0, 0.1),
    "conv_small": (1.0,),
    "conv_large": (4.0,),
}
"""The paper's costs for its convolutional networks."""

COSTS_OF_VALUES = (1.0, 0.1)
"""Costs for a regression, of every door and every network."""

VARIANCE_OF_PIXELS = 0.1
"""More than columns of pixels in [0, 1] have in the mean."""

CONSTANT = 1e-12
"""A column with less than this share of the largest variance is constant, but for rounding."""

EPOCHS_OF_COLUMNS = 300
"""For columns that vary more than those."""

VALUES_AT_A_TIME = 2**17
"""Of which the variance is computed, so that little memory is needed beside the rows."""


def costs_for(levels: int, costs: tuple[float, ...]) -> tuple[float, ...]:
    """Costs of a larger ladder for one of so many levels: the top keeps its own.

    Examples
    --------
    >>> costs_for(2, (1000.0, 10.0, 0.1)), costs_for(7, (1000.0, 10.0, 0.1))
    ((1000.0, 0.1), (1000.0, 10.0, 0.1))
    """
    return costs if len(costs) <= levels else (*costs[: levels - 1], costs[-1])


def suitable_costs(rows: NDArray[Any]) -> tuple[float, ...]:
    """Costs for rows of this scale: the paper's where columns vary as pixels in [0, 1] do, smaller ones beyond.

    A reconstruction's squared error grows with the variance of the columns, and so does the noise that can be taken out
    of them; on standardised columns the input's cost is 10.

    Examples
    --------
    >>> import numpy as np
    >>> suitable_costs(np.array([[0.0], [0.2]])), suitable_costs(np.array([[-1.0], [1.0]]))
    ((1000.0, 10.0, 0.1), (10.0, 1.0, 0.1))
    """
    variance = _variance(rows)
    bottom = 1000.0 if variance <= VARIANCE_OF_PIXELS else max(0.1, float(f"{10 / variance**2:.3g}"))
    return bottom, max(1.0, bottom / 100), 0.1


def costs_that_suit(network: Network, rows: NDArray[Any], task: Task) -> tuple[float, ...]:
    """Costs that every door takes where they are left open.

    Those of a regression are the same for every network; those of a classifier follow from the network's kind, or from
    the rows' scale.

    Examples
    --------
    >>> import numpy as np
    >>> rows, images = np.array([[0.0], [0.2]]), np.zeros((2, 1, 28, 28))
    >>> costs_that_suit((), rows, "classification"), costs_that_suit(("conv_small",), images, "classification")
    ((1000.0, 0.1), (1.0,))
    >>> costs_that_suit(("conv_small",), images, "regression")
    (1.0, 0.1)
    """
    if task == "regression":
        return COSTS_OF_VALUES
    if takes_maps(network):
        return suitable_costs_on_maps(network)
    return costs_for(1 + len(rungs_of(network, 1)), suitable_costs(rows))


def suitable_costs_on_maps(network: Network) -> tuple[float, ...]:
    """Costs for a network that takes images: the paper's if it is one of the paper's, else the Γ-model's, 1.

    Examples
    --------
    >>> suitable_costs_on_maps(("conv_large",)), suitable_costs_on_maps(("conv 32 3", "max 2"))
    ((4.0,), (1.0,))
    """
    return COSTS_ON_MAPS.get(network[0], (1.0,))


def usual_epochs(rows: NDArray[Any]) -> int:
    """Epochs for rows as a network takes them: 100 for columns that vary as pixels in [0, 1] do, 300 beyond.

    Standardised columns gain more by it. Images whose network begins with a convolution or pooling are taken as such,
    and have 100 whatever their scale; for a network of dense rungs the values of an image are columns like any others.

    Examples
    --------
    >>> import numpy as np
    >>> usual_epochs(np.array([[0.0], [0.2]])), usual_epochs(np.array([[-1.0], [1.0]]))
    (100, 300)
    >>> usual_epochs(np.array([[-1.0], [1.0]]).reshape(2, 1, 1, 1))
    100
    """
    return EPOCHS_OF_COLUMNS if rows.ndim == 2 and _variance(rows) > VARIANCE_OF_PIXELS else DIGITS.epochs


def suitable_epochs(rows: int, batch_size: int, usual: int = DIGITS.epochs) -> int:
    """The usual ones, or as many as make 900 updates if these do not, but no more than make 15,000.

    Examples
    --------
    >>> [suitable_epochs(rows, batch_size=100) for rows in (150, 1297, 60_000)]
    [900, 100, 25]
    """
    updates = max(1, rows // batch_size)
    return max(min(usual, 15_000 // updates), 10, ceil(900 / updates))


def _variance(rows: NDArray[Any]) -> float:
    """Of a column, in the mean over those that vary; over all columns where values are within 1 of each other.

    Constant columns say nothing of the scale of others, and must not make standardised ones look like pixels. Among
    pixels they are the border, which is the wider the fewer the rows: without it, 100 rows of MNIST would vary more
    than `VARIANCE_OF_PIXELS`, and all of them less.
    """
    variances = _variances(rows)
    if rows.max() - rows.min() > 1:
        variances = variances[variances >= CONSTANT * variances.max()]
    return float(variances.mean())


def _variances(rows: NDArray[Any]) -> NDArray[Any]:
    """Of every column, in double precision, which rows are brought to some at a time."""
    mean = rows.mean(0, dtype=float)
    some = max(1, VALUES_AT_A_TIME // mean.size)
    squares = (((rows[start : start + some] - mean) ** 2).sum(0) for start in range(0, len(rows), some))
    variances: NDArray[Any] = sum(squares) / len(rows)
    return variances
