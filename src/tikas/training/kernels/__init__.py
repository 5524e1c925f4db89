"""The GPU kernels of a dense ladder's update, written in Triton; `tikas.training.fused` puts them in order."""
