"""Speed beside accuracy: the full ladder at 100 labels, by the number of epochs that it is given."""

from tikas.experiments.cells import Cell
from tikas.training.recipe import Recipe

CURVE = (
    Cell("curve/5", Recipe(epochs=5)),
    Cell("curve/10", Recipe(epochs=10)),
    Cell("curve/20", Recipe(epochs=20)),
    Cell("curve/50", Recipe(epochs=50)),
    Cell("curve/150", Recipe()),
)
"""The last is the full ladder of Table 1 and shares its records."""
