"""Runs of a recipe on a data set."""
