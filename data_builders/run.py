"""Builds the data of any recipe: scripted conversations, or those between two models."""

from __future__ import annotations

from pathlib import Path

from data_builders.build import Build
from data_builders.dialogue.build import DialogueBuild
from data_builders.folder import finished
from data_builders.recipe import DataRecipe


def open_build(recipe: DataRecipe) -> Build:
    """A recipe with all that it names read and checked; nothing is written yet. Raises BadInput."""
    return Build(recipe) if recipe.dialogue is None else DialogueBuild(recipe)


def build(recipe: DataRecipe, out: Path | None = None) -> Path:
    """Builds the recipe's data into `out` (default: the recipe's output.path); a finished build is left as it is."""
    folder = out or Path(recipe.output.path)
    ready = open_build(recipe)
    if not finished(folder, ready.settings):
        ready.run(folder)
    return folder
