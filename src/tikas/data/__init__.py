"""Data sets, labels, splits, preprocessing and batches. Independent of models."""
