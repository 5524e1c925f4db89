"""One thread for every test: these networks are small, and threads that wait for each other are slower than one."""

import torch

torch.set_num_threads(1)
