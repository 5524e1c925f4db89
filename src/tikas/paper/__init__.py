"""The paper's tables as data, and `tikas reproduce`."""
