"""Reads a YAML file of wordings (`acts.yaml`, `starter.yaml`) and checks it.

Phrases are data: whoever adds one edits a list, not the code. The files are read where the first phrase is drawn, so
that `--help` and a bad recipe need not wait for them.
"""

from __future__ import annotations

import json
import string
from collections.abc import Collection
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import TypeAdapter, ValidationError

from probe.errors import DataError

W = TypeVar("W")

# The C parser reads both files in a tenth of a second, PyYAML's own takes a second.
_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Base):  # type: ignore[misc]
    """YAML in which a key given twice is an error: of a copied template that kept its name the first would be lost."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key_node.value for key_node, _ in node.value]
        for place, key in enumerate(keys):
            if key in keys[:place]:
                mark = node.value[place][0].start_mark
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is given twice", mark)
        return super().construct_mapping(node, deep)


def load_wordings(cls: type[W], path: Path) -> W:
    """The file as a `cls`, which is a recipe section or an ordinary dataclass.

    Raises:
        DataError: not YAML, or a key is missing, unknown or of the wrong kind; names the file and the line or key.
    """
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise DataError(f"{path}{line}: {error.problem or 'not YAML'}") from None
    try:
        # As JSON, where pydantic's strict mode still takes a list for a tuple.
        return TypeAdapter(cls).validate_json(json.dumps(data))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"] if part != "[key]")
        problem = first["msg"].removeprefix("Value error, ")
        raise DataError(": ".join(part for part in (str(path), key, problem) if part)) from None


def check_slots(key: str, text: str, known: Collection[str], needed: str = "") -> None:
    """Raises ValueError, naming `key`, where the text has a {slot} that is not `known`, or lacks the one `needed`."""
    try:
        slots = {slot for _, slot, _, _ in string.Formatter().parse(text) if slot is not None}
    except ValueError as error:
        raise ValueError(f"{key}: {error} in {text!r}") from None
    if unknown := slots - set(known):
        raise ValueError(f"{key}: {{{min(unknown)}}} in {text!r} is unknown, known here: {', '.join(sorted(known))}")
    if needed and needed not in slots:
        raise ValueError(f"{key}: {text!r} lacks {{{needed}}}")
