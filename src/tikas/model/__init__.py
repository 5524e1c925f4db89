"""What a ladder is: pure PyTorch, knows nothing of data sets or training."""
