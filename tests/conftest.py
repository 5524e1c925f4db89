"""Settings of the whole suite."""

import torch
from hypothesis import settings

# One thread: the networks of the tests are small, and threads that wait for each other are slower than one.
torch.set_num_threads(1)

# The same examples in every run, so that a change fails for what it changed.
settings.register_profile("deterministic", derandomize=True, deadline=None)
settings.load_profile("deterministic")
