"""What a notebook shows of a fitted estimator below scikit-learn's diagram: error, learning curve, and what it read."""

from __future__ import annotations

from math import log10
from typing import Any

from tikas.estimators.base import LadderEstimator
from tikas.report.evaluation import validation_text
from tikas.report.page import template
from tikas.training.summary import TrainingSummary

WIDTH, HEIGHT = 240, 60
"""Size of the curve, in pixels."""


def html_of_fit(estimator: LadderEstimator) -> str:
    """Return HTML about the fit of an estimator.

    Examples
    --------
    >>> from tikas import LadderClassifier
    >>> classifier = LadderClassifier((4,), epochs=3, batch_size=4).fit([[0.0], [0.2], [0.8], [1.0]], [0, -1, -1, 1])
    >>> "learned from 4 rows, 2 of them labeled" in html_of_fit(classifier)
    True
    """
    training: TrainingSummary = estimator.training_
    costs = _mean_costs(estimator.history_)
    error = validation_text(estimator)
    if training.error is not None:
        error = f"{training.error.text()} on {training.error.rows:,} {training.error.source}"
    curve = f"total cost, from {costs[0]:.4g} to {costs[-1]:.4g} over {len(costs)} epochs" if costs else ""
    return template(
        "estimator.html",
        training=training,
        error=error,
        curve=curve,
        points=_points(costs),
        width=WIDTH,
        height=HEIGHT,
    )


def _mean_costs(history: list[dict[str, Any]]) -> list[float]:
    """Return the mean of the total cost over the members, for each epoch."""
    values: dict[int, list[float]] = {}
    for line in history:
        values.setdefault(line["epoch"], []).append(line["total"])
    return [sum(each) / len(each) for _, each in sorted(values.items())]


def _points(values: list[float]) -> str:
    """Return the points of a polyline on a logarithmic scale."""
    if len(values) < 2 or min(values) <= 0:
        return ""
    logs = [log10(value) for value in values]
    low, width = min(logs), max(max(logs) - min(logs), 1e-9)
    steps = WIDTH / (len(logs) - 1)
    places = [(index * steps, 2 + (HEIGHT - 4) * (1 - (value - low) / width)) for index, value in enumerate(logs)]
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
