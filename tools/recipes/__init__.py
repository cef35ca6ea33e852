"""All recipes by name: the runs behind each table of results, and their settings."""

from tools.recipes import encoders, growth, instructions, meta, relations, streams, synthetic, tasks, text
from tools.recipes.recipe import Recipe

__all__ = ["RECIPES", "Recipe", "page_of"]

RECIPES = text.RECIPES | synthetic.RECIPES | tasks.RECIPES | streams.RECIPES | meta.RECIPES
RECIPES |= encoders.RECIPES | relations.RECIPES | growth.RECIPES | instructions.RECIPES


def page_of(name: str) -> str:
    """Returns the page of a recipe: that of its configuration, unless it names another. Names of no recipe are returned
    unchanged.
    """
    recipe = RECIPES.get(name)
    return recipe.page or recipe.config if recipe else name
