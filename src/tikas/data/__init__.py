"""From files and arrays to batches; knows nothing of models."""
