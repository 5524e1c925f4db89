"""PyTorch modules: the Ladder network, its rungs and the Γ-model. Independent of data sets and training."""
