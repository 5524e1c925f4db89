"""Records of experiments, as `tikas reproduce` writes them."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tikas.paper.experiments import Experiment

MakeRecord = Callable[..., dict[str, Any]]


@pytest.fixture
def make_record() -> MakeRecord:
    """Return a function that makes the record of a member: one of an ensemble of four that took 40 seconds."""

    def make(experiment: Experiment, seed: int = 0, error: float = 5.5, **fields: Any) -> dict[str, Any]:
        return {
            "experiment": experiment.name,
            "data": experiment.data,
            "labels": experiment.labels,
            "validation": experiment.validation,
            **({} if experiment.attached is None else {"attached": experiment.attached}),
            "recipe": json.loads(experiment.recipe.to_json()),
            "seed": seed,
            experiment.error_field: error,
            f"{experiment.error_field}_labeled_statistics": error + 0.1,
            "costs": {"total": 0.1, "supervised": 0.1, "denoising": [0.0]},
            "members": 4,
            "seconds": 40.0,
            "seconds_per_epoch": 0.2,
            "hardware": "a GPU",
            "versions": {"tikas": "0.1.0"},
            "revision": "0878fef966c6",
            **fields,
        }

    return make
