"""The `train:` section: trl's own field names, checked without importing trl or torch.

The names and types are read from the source files of the installed trl and transformers, so that a recipe is
checked against what is installed and answers at once; importing them takes many seconds.
"""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, create_model

from probe.errors import NextturnError
from probe.recipe import STRICT

_BASES = (
    ("transformers", "training_args.py", "TrainingArguments"),
    ("trl", "trainer/base_config.py", "_BaseConfig"),
)
# transformers' own enums are given as text in a recipe.
_ENUMS = ("IntervalStrategy", "SaveStrategy", "SchedulerType", "OptimizerNames", "HubStrategy")
_NAMES: dict[str, Any] = {
    **{"str": str, "int": int, "float": float, "bool": bool, "dict": dict, "list": list},
    **{"Any": Any, "Literal": Literal},
    **dict.fromkeys(_ENUMS, str),
}


def trl_section(module: str, config: str) -> type[BaseModel]:
    """A section class with the fields of a trl config, such as `trl_section("sft_config", "SFTConfig")`.

    Only the fields that a recipe sets are kept (`model_dump(exclude_unset=True)`); all defaults stay trl's.
    """
    fields: dict[str, Any] = {}
    for package, file, name in (*_BASES, ("trl", f"trainer/{module}.py", config)):
        fields |= _fields(_package_folder(package) / file, name)
    return create_model(config, __config__=STRICT, **{name: (kind, None) for name, kind in fields.items()})  # type: ignore[call-overload]


def _package_folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise NextturnError(f"{package} is not installed; `pip install nextturn` brings it")
    return Path(spec.origin).parent


def _fields(path: Path, name: str) -> dict[str, Any]:
    """{field: type} of the dataclass `name` in a source file; types it cannot read become Any."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = next((node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name), None)
    if found is None:
        raise NextturnError(f"{path} has no class {name}; nextturn needs trl 1.16 and transformers 5.16 or newer")
    return {
        node.target.id: _type(ast.unparse(node.annotation))
        for node in found.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }


def _type(annotation: str) -> Any:
    """The type that an annotation in the installed libraries' own source stands for."""
    try:
        return eval(annotation, {"__builtins__": {}}, _NAMES)
    except (NameError, TypeError):
        return Any
