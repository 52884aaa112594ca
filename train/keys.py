"""Print type, default and description of recipe keys.

    nextturn keys sft                      # all keys of an SFT recipe
    nextturn keys grpo rollout.simulator   # those of a section
    nextturn keys probe.judge              # a key of the first recipe that has it

The keys of `train:` are those of trl's config, whose own descriptions are shown: `nextturn keys sft train`.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import json
import typing
from collections.abc import Iterator, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal

from pydantic import BaseModel

from nextturn.data_builders.sections import DataRecipe
from nextturn.probe.command.errors import BadInput, require
from nextturn.probe.command.recipe import aliases_of, key_names, nearest_key, recipe_keys, section_of
from nextturn.probe.command.sections import ProbeRecipe
from nextturn.train.sections import RECIPES as TRAIN_RECIPES

RECIPES: dict[str, type[BaseModel]] = {**TRAIN_RECIPES, "data": DataRecipe, "probe": ProbeRecipe}


def main(argv: Sequence[str]) -> None:
    """Print the keys that `argv` names. Raises BadInput if there is no such key."""
    parser = argparse.ArgumentParser(prog="nextturn keys", description=(__doc__ or "").partition("\n")[0])
    recipes = f"{', '.join(RECIPES)}, or a key alone; default: list the recipes with their sections"
    parser.add_argument("recipe", nargs="?", help=recipes)
    parser.add_argument("key", nargs="?", default="", help="a section or key, such as model.lora; default: all")
    options = parser.parse_args(argv)
    if options.recipe is None:
        print("\n".join(f"{name:<6} {', '.join(cls.model_fields)}" for name, cls in RECIPES.items()))
        return
    recipe, key = options.recipe, options.key
    if recipe not in RECIPES and not key:
        key, section = recipe, recipe.partition(".")[0]
        having = [name for name, cls in RECIPES.items() if section in cls.model_fields]
        recipe = next((name for name in having if key in dict(key_names(RECIPES[name]))), (having or [recipe])[0])
    if recipe not in RECIPES:
        raise BadInput(f"nextturn keys {recipe}: expected one of {', '.join(RECIPES)}, or a key of one of them")
    print("\n".join(describe_keys(recipe, key)))


def describe_keys(recipe: str, asked: str = "") -> Iterator[str]:
    """Yield the lines for a key and those below it; of `train:`, only if it is asked for, since trl takes long to import.

    Raises:
        BadInput: There is no such key.
    """
    cls = RECIPES[recipe]
    asked = dict(key_names(cls)).get(asked, asked)
    keys = [(key, field) for key, field in recipe_keys(cls) if f"{key}.".startswith(f"{asked}." if asked else "")]
    if not keys:
        raise BadInput(f"{asked}: unknown key of a recipe for {recipe}{nearest_key(cls, asked)}")
    in_train = asked.partition(".")[0] == "train"
    trl = _trl_fields(cls.model_fields["train"].annotation) if in_train else {}
    for key, field in keys:
        text, default = field.description or "", field.default
        if key.startswith("train."):
            if not in_train:
                continue
            text, default = trl[key.removeprefix("train.")]
        elif key == "train" and not in_train:
            text += f" `nextturn keys {recipe} train` lists them."
        names = "".join(f", also {alias}" for alias in aliases_of(field))
        if_missing = ", required" if field.is_required() else ""
        if not (if_missing or field.default_factory or isinstance(default, BaseModel)):
            if_missing = f", default {json.dumps(default, default=str)}"
        yield f"{key}{names}: {_kind(field.annotation)}{if_missing}"
        yield f"    {text}"


def _kind(annotation: Any) -> str:
    """Return a type as text, such as "int or null"."""
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if section_of(annotation) is not None:
        return "sections by name" if origin is dict else "section"
    if origin in (typing.Union, UnionType):
        return " or ".join(map(_kind, parts))
    if origin in (Annotated, tuple, list):
        return ("" if origin is Annotated else "list of ") + _kind(parts[0])
    if origin is Literal:
        return " or ".join(map(repr, parts))
    return "null" if annotation is NoneType else inspect.formatannotation(annotation)


def _trl_fields(section: Any) -> dict[str, tuple[str, Any]]:
    """Return {field: (description, default)} of the installed trl's config, whose name the `train:` section has."""
    require("trl", "train", "nextturn keys of a `train:` section")
    import trl

    described = {}
    for field in dataclasses.fields(getattr(trl, section.__name__)):
        sentence = " ".join(str(field.metadata.get("help", "")).split()).partition(". ")[0].rstrip(".") + "."
        made = field.default_factory is not dataclasses.MISSING
        described[field.name] = (sentence, field.default_factory() if made else field.default)  # type: ignore[operator]
    return described
