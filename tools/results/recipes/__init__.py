"""Recipes: which runs make a table of results, and at which settings."""

from tools.results.recipes import streams, synthetic, tasks, text
from tools.results.recipes.recipe import Recipe

__all__ = ["RECIPES", "Recipe"]

RECIPES = text.RECIPES | synthetic.RECIPES | tasks.RECIPES | streams.RECIPES
