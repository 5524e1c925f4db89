"""What rows can go through before a ladder takes them, by the names that recipes have for it."""

from tikas.data.standardization import Standardization
from tikas.data.whitening import Whitening

Preparation = Whitening | Standardization

PREPARATIONS: dict[str, type[Whitening] | type[Standardization]] = {
    "whiten": Whitening,
    "standardize": Standardization,
}
