"""The table at the end of a run: errors side by side."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import mean, stdev
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from tikas.fitted import epochs_finished

if TYPE_CHECKING:
    from tikas.experiments.run import Run
    from tikas.training.recipe import Recipe


def outcome_table(runs: Mapping[str, Run], recipe: Recipe) -> Table:
    """Each run's error on the test rows or on hidden labels, validation error where rows were held out, and time.

    The title has the epochs of the recipe, and those that were made where Ctrl-C left fewer.

    Examples
    --------
    >>> from rich.console import Console
    >>> from tikas.experiments.rows import load_rows
    >>> from tikas.experiments.run import run
    >>> from tikas.training.recipe import Recipe
    >>> recipe = Recipe(data="digits", labels=50, network=(16,), epochs=1)
    >>> table = outcome_table({"ladder": run(recipe, [0], load_rows("digits"))}, recipe)
    >>> table.title, [column.header for column in table.columns]
    ('digits, 50 labels, 16, 1 epochs', ['', 'test error', 'seconds'])
    """
    labels = "all labels" if recipe.labels == "all" else f"{recipe.labels} labels"
    network = "-".join(map(str, recipe.network)) or "no hidden rungs"
    made = epochs_finished([each for outcome in runs.values() for each in outcome.trained.histories if each])
    epochs = made if made == str(recipe.epochs) else f"{made} of {recipe.epochs}"
    title = f"{recipe.data}, {labels}, {network}, {epochs} epochs"
    table = Table(title=escape(title), min_width=min(len(title), 80))
    validated, hidden = recipe.validation > 0, max(outcome.hidden_labels for outcome in runs.values())
    error = "error" if recipe.task == "classification" else "RMSE"
    tested = any(outcome.hidden_errors or outcome.test_errors for outcome in runs.values()) or not validated
    judged = f"{error} on the {hidden} hidden labels" if hidden else f"test {error}"
    table.add_column("")
    for column in (*([judged] if tested else []), *([f"validation {error}"] if validated else []), "seconds"):
        table.add_column(column, justify="right")
    for name, outcome in runs.items():
        held_out = [history[-1]["validation_error"] for history in outcome.trained.histories if history and validated]
        measured = outcome.hidden_errors or outcome.test_errors
        begun = zip(measured, outcome.trained.histories, strict=False)  # there may be no such rows
        judgements = [error for error, history in begun if history]
        errors = [*([judgements] if tested else []), *([held_out] if validated else [])]
        deviation = getattr(outcome.estimator, "target_deviation_", None)
        table.add_row(name, *(spread(each, deviation) for each in errors), f"{outcome.seconds:.1f}")
    return table


def spread(errors: list[float], target_deviation: float | None = None) -> str:
    """Mean and deviation over the seeds, in percent; those of values, which come in deviations of these, in their unit.

    Examples
    --------
    >>> spread([1.0, 1.2]), spread([0.5, 0.6], target_deviation=20.0)
    ('1.10 ± 0.14 %', '11 ± 1.414')
    """
    if not errors:
        return "no rows"
    form, unit = (".2f", " %") if target_deviation is None else (".4g", "")
    scaled = [error * (target_deviation or 1) for error in errors]
    return f"{mean(scaled):{form}}" + (f" ± {stdev(scaled):{form}}" if len(scaled) > 1 else "") + unit
