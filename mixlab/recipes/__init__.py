"""Recipes: functions that return a `Job`. The name of a recipe is that of its function, with hyphens.

A docstring says what the recipe is for and what it reached; results are written by runs, and "Not run yet." stands until then.
"""
