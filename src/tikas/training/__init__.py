"""Recipes, the trainer and its engines."""
