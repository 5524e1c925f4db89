"""Commands that are more than a call: each a frozen dataclass and the function that carries it out."""
