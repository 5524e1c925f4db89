"""The names that settings go by, without torch, so that what only reads them is quick to import."""

from typing import Literal

Task = Literal["classification", "regression"]
DenoiserName = Literal["gaussian", "mlp", "no-product", "linear", "additive"]
ActivationName = Literal["relu", "leaky_relu", "tanh", "gelu", "linear"]
Padding = Literal["valid", "same", "full"]
Rounding = Literal["up", "down"]
