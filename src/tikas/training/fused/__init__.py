"""Triton engine for dense ladders on a GPU; README.md beside this file explains it."""
