"""One thread for every test: these networks are small, and threads that wait for each other are slower than one.

Hypothesis draws the same examples every time, so that a change which lands is not refused for what was there before.
"""

import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("the same every time", derandomize=True, deadline=None)
settings.load_profile("the same every time")
