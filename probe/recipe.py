"""Reads a recipe: YAML in sections, each section one dataclass, checked strictly by pydantic.

Unknown keys, wrong types, an empty file and a list at the top are errors of one line: file, key, what was
given, what is wanted, the nearest valid key. Overrides use the recipe's own words:
`--train.learning_rate 2e-5`. Nothing heavy is imported, so a bad recipe answers at once.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
import types
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as _pydantic_dataclass

from nextturn.probe.errors import RecipeError

R = TypeVar("R")

STRICT = ConfigDict(extra="forbid", strict=True)

# Types of keys: a whole number of 1 or more, a share from 0 to 1, a number of 0 or more.
Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Weight = Annotated[float, Field(ge=0)]

_WANTED = {
    "bool_type": "true or false",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "dataclass_type": "a mapping of keys",
    "model_type": "a mapping of keys",
    "none_required": "nothing (null)",
}
_BOUNDS = {
    "greater_than_equal": "{ge:g} or more",
    "greater_than": "more than {gt:g}",
    "less_than_equal": "at most {le:g}",
    "less_than": "less than {lt:g}",
}


@typing.dataclass_transform(kw_only_default=True, frozen_default=True)
def section(cls: type[R]) -> type[R]:
    """Marks a class as a recipe section: a frozen keyword-only dataclass that refuses what it does not know."""
    return _pydantic_dataclass(config=STRICT, frozen=True, kw_only=True)(cls)  # type: ignore[return-value]


class _Loader(yaml.SafeLoader):
    """YAML without four traps: `1e-5` is a number, `no` (a `save_strategy`) is text, and a key given twice and an alias are
    errors: a few lines of aliases can stand for more values than memory holds."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise yaml.composer.ComposerError(None, None, "an alias (*name) is not read; write its value out", mark)
        return super().compose_node(parent, index)

    yaml_implicit_resolvers = {
        start: [(tag, pattern) for tag, pattern in known if tag != "tag:yaml.org,2002:bool"]
        for start, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+0123456789.")
)


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str):
            raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is not text", key_node.start_mark)
        if key in seen:
            raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is given twice", key_node.start_mark)
        seen[key] = loader.construct_object(value_node, deep=True)
    return seen


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)


def load_recipe(
    cls: type[R], path: Path | str, overrides: Sequence[str] = (), inside: tuple[str, str] | None = None
) -> R:
    """The recipe at `path` as a `cls`, with `overrides` such as ["--train.learning_rate", "2e-5"] applied.

    Args:
        inside: two sections. A file with the first is another command's recipe, of which only the second is read.

    Raises:
        RecipeError: the file, a key, a value or an override is wrong; one line.
    """
    path = Path(path)
    data = _read(path)
    if inside is not None and inside[0] in data:
        data = {name: value for name, value in data.items() if name == inside[1]}
    for dotted, value in _parse_overrides(cls, overrides):
        _set(data, dotted, value)
    try:
        # As JSON, where strict mode still takes a mapping for a section and a list for a tuple.
        return TypeAdapter(cls).validate_json(json.dumps(data, default=str))
    except ValidationError as error:
        problem = " ".join(_first_problem(cls, data, error).split())  # a key may hold line ends
        raise RecipeError(f"{path}: {problem}") from None


def recipe_dict(recipe: Any) -> dict[str, Any]:
    """A recipe or section as plain JSON-able data, for manifests; only what was set for trl's own section."""
    if isinstance(recipe, BaseModel):
        return recipe.model_dump(exclude_unset=True)
    values = {field.name: getattr(recipe, field.name) for field in dataclasses.fields(recipe)}
    return {
        name: recipe_dict(value) if isinstance(value, BaseModel) or dataclasses.is_dataclass(value) else _plain(value)
        for name, value in values.items()
    }


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if dataclasses.is_dataclass(value):
        return recipe_dict(value)
    return str(value) if isinstance(value, Path) else value


def _read(path: Path) -> dict[str, Any]:
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except FileNotFoundError:
        raise RecipeError(f"{path}: no such recipe") from None
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: cannot be read ({error})") from None
    except ValueError as error:  # a date such as 2020-13-45
        raise RecipeError(f"{path}: a value that YAML cannot read ({error})") from None
    except RecursionError:
        raise RecipeError(f"{path}: nested too deeply, wanted sections with keys") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise RecipeError(f"{where}: {error.problem or 'not YAML'}") from None
    except yaml.YAMLError as error:
        raise RecipeError(f"{path}: not YAML ({' '.join(str(error).split())})") from None
    if data is None:
        raise RecipeError(f"{path}: the file is empty, wanted sections such as `model:`")
    if not isinstance(data, dict):
        raise RecipeError(f"{path}: a {type(data).__name__} at the top, wanted sections such as `model:`")
    return data


def _parse_overrides(cls: type, arguments: Sequence[str]) -> Iterator[tuple[str, Any]]:
    known = set(_dotted_keys(cls))
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if not argument.startswith("--"):
            raise RecipeError(f"{argument}: not an option; an override looks like --section.key value")
        key, equals, text = argument[2:].partition("=")
        if not equals:
            if not rest:
                raise RecipeError(f"--{key}: a value is missing")
            text = rest.pop(0)
        if key not in known and not any(key.startswith(f"{other}.") for other in known):
            raise RecipeError(f"--{key}: unknown option{_nearest(cls, key)}")
        try:
            yield key, yaml.load(text, Loader=_Loader)
        except (yaml.YAMLError, ValueError, RecursionError):
            yield key, text


def _set(data: dict[str, Any], dotted: str, value: Any) -> None:
    *parents, last = dotted.split(".")
    for parent in parents:
        if not isinstance(data.get(parent), dict):
            data[parent] = {}
        data = data[parent]
    data[last] = value


def _first_problem(cls: type, data: Any, error: ValidationError) -> str:
    """pydantic lists one error per union member; those of the first wrong key become one line."""
    problems = error.errors(include_url=False)
    unknown = [problem for problem in problems if problem["type"] in ("unexpected_keyword_argument", "extra_forbidden")]
    first = (unknown or problems)[0]
    key, given, found = _locate(data, first["loc"])
    if first["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        return f"{key}: unknown key{_nearest(cls, key)}"
    if first["type"].startswith("missing"):
        return f"{'.'.join(str(part) for part in first['loc'])}: missing, and it has no default"
    same = [problem for problem in problems if _locate(data, problem["loc"])[0] == key]
    wanted = list(dict.fromkeys(_wanted(problem) for problem in same))
    shown = f"{given!r} ({type(given).__name__})" if found else "nothing"
    return f"{key}: given {shown}, wanted {' or '.join(wanted)}"


def _wanted(problem: Any) -> str:
    if problem["type"] == "literal_error":
        return f"one of {problem['ctx']['expected']}"
    if problem["type"] in _BOUNDS:
        return _BOUNDS[problem["type"]].format(**problem["ctx"])
    message = problem["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    return _WANTED.get(problem["type"], message)


def _locate(data: Any, location: tuple[int | str, ...]) -> tuple[str, Any, bool]:
    """Follows an error's location as far as it stands in the data; what is past that names union members."""
    key: list[str] = []
    for part in location:
        if isinstance(data, dict) and part in data:
            data = data[part]
        elif isinstance(data, list) and isinstance(part, int) and part < len(data):
            data = data[part]  # noqa: SIM114 - for the type checker these are two lookups
        else:
            break
        key.append(str(part))
    return ".".join(key), data, bool(key)


def _nearest(cls: type, key: str) -> str:
    keys = list(_dotted_keys(cls))
    parent, _, last = key.rpartition(".")
    siblings = {other.rpartition(".")[2]: other for other in keys if other.rpartition(".")[0] == parent}
    anywhere = {other.rpartition(".")[2]: other for other in keys}
    for candidates in (siblings, anywhere):
        close = difflib.get_close_matches(last, list(candidates), n=1, cutoff=0.6)
        if close:
            return f"; did you mean {candidates[close[0]]}?"
    return f"; known here: {', '.join(sorted(siblings))}" if 0 < len(siblings) <= 20 else ""


def _dotted_keys(cls: type, prefix: str = "") -> Iterator[str]:
    for name, annotation in _fields(cls).items():
        yield prefix + name
        for inner in (annotation, *typing.get_args(annotation)):
            if isinstance(inner, types.UnionType):
                inner = next((part for part in typing.get_args(inner) if _fields(part)), inner)
            if isinstance(inner, type) and typing.get_origin(annotation) not in (dict, list, tuple):
                yield from _dotted_keys(inner, f"{prefix}{name}.")


def _fields(cls: Any) -> dict[str, Any]:
    if isinstance(cls, type) and issubclass(cls, BaseModel):
        return {name: field.annotation for name, field in cls.model_fields.items()}
    if isinstance(cls, type) and dataclasses.is_dataclass(cls):
        return typing.get_type_hints(cls)
    return {}
