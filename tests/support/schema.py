"""What `make schema` writes: trl's names and types for `train:` sections, and a JSON schema of each recipe for editors.

PYTHONPATH=tests python -m support.schema
"""

from __future__ import annotations

import dataclasses
import json
import typing
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any

from nextturn.probe.command.recipe import aliases_of
from nextturn.train.keys import RECIPES

ROOT = Path(__file__).resolve().parents[2]
TRL_FIELDS = ROOT / "train" / "trl_fields.json"
SCHEMAS = ROOT / "recipes" / "schema"
_NAMES = {
    bool: "bool", int: "int", float: "float", str: "str", dict: "dict", list: "list", list[str]: "list[str]",
    list[float]: "list[float]", NoneType: "null",
}  # fmt: skip


def trl_fields() -> dict[str, dict[str, str]]:
    """Return {config: {field: types}} of the installed trl; types such as "int | null"."""
    import trl

    return {
        name: {field.name: _types(field.type) for field in dataclasses.fields(getattr(trl, name)) if field.init}
        for name in ("SFTConfig", "DPOConfig", "GRPOConfig")
    }


def _types(annotation: Any) -> str:
    union = typing.get_origin(annotation) in (typing.Union, UnionType)
    return " | ".join(dict.fromkeys(map(_name, typing.get_args(annotation) if union else [annotation])))


def _name(kind: Any) -> str:
    if isinstance(kind, type) and issubclass(kind, Enum):  # given as text in a recipe
        return "str"
    return _NAMES.get(kind) or _NAMES.get(typing.get_origin(kind), "any")


def schema(recipe: str) -> dict[str, Any]:
    """Return the JSON schema of a recipe such as "sft", with the other names of its keys."""
    cls = RECIPES[recipe]
    made = cls.model_json_schema()
    sections = {kind.__name__: kind for kind in [cls, *_sections(cls)]}
    for name, section in sections.items():
        part = made if section is cls else made["$defs"][name]
        for key, field in section.model_fields.items():
            for alias in aliases_of(field):
                part["properties"][alias] = {"description": f"Another name of `{key}`."}
                part["required"] = [other for other in part.get("required", []) if other != key]
    return made


def _sections(cls: Any) -> list[Any]:
    from nextturn.probe.command.recipe import section_of

    inner = [kind for field in cls.model_fields.values() if (kind := section_of(field.annotation))]
    return [*inner, *(deeper for kind in inner for deeper in _sections(kind))]


def text_of(content: Any) -> str:
    return json.dumps(content, indent=1) + "\n"


if __name__ == "__main__":
    TRL_FIELDS.write_text(text_of(trl_fields()))
    SCHEMAS.mkdir(exist_ok=True)
    for recipe in RECIPES:
        (SCHEMAS / f"{recipe}.json").write_text(json.dumps(schema(recipe)) + "\n")
