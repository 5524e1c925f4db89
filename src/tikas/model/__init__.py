"""PyTorch modules: the Ladder network, its rungs and the Γ-model. Knows nothing of data sets or training."""
