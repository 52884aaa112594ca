"""Read recipes: YAML in sections, each section one pydantic model, checked strictly.

Unknown keys, wrong types, an empty file and a list at the top are errors of one line: file, key, the value given, the value
expected, the nearest valid key. Options use the recipe's own keys: `--train.learning_rate 2e-5`. Only pydantic and PyYAML are
imported, so that a wrong recipe is refused at once.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import sys
import typing
from collections.abc import Iterator, Sequence
from enum import Enum, auto
from importlib import import_module
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Self, TypeVar

import yaml
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo

from nextturn.probe.command.errors import RecipeError

# Types of keys. Infinity and nan are no numbers here.
Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NAMED = r"[A-Za-z_][\w.]*:[A-Za-z_]\w*"
Named = Annotated[str, Field(pattern=f"^{NAMED}$")]
"""MODULE:NAME, importable from the directory in which the command runs; see `load_named`."""


class Mark(Enum):
    """Where a key may differ, as in `Annotated[int, Mark.FREE]`. A key without a mark identifies a run."""

    FREE = auto()
    """In a run, probe or build that is resumed: it changes speed, place or what is shown, not what is computed."""
    IN_PROBES = auto()
    """In a probe that is resumed: it changes no figure, or a hash or version in the probe's settings stands for it."""
    COMPARED = auto()
    """Between probes that are compared: it decides which figures there are, not what each of them is."""
    IN_BUILDS = auto()
    """In a build that is resumed: another program runs the same model."""
    AFTER_BUILDS = auto()
    """Between a finished build and the recipe that training names, which does not repeat the options of the build."""


class RecipeSection(BaseModel):
    """A section of a recipe. The docstring of a key is its description in `nextturn keys` and in the JSON schema."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True)

    @model_validator(mode="after")
    def _checked(self) -> Self:
        self.check_keys()
        return self

    def check_keys(self) -> None:
        """Raise ValueError("KEY: what is wrong") if keys do not fit together; `load_recipe` adds the file and section."""


S = TypeVar("S", bound=BaseModel)


_TAG = "tag:yaml.org,2002:"


class _Loader(yaml.SafeLoader):
    """YAML without four traps: `1e-5` is a number, `no` (a `save_strategy`) is text, and a repeated key and an alias are
    errors: a few lines of aliases can stand for more values than memory holds."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise yaml.composer.ComposerError(None, None, "an alias (*name) is not read; write its value out", mark)
        return super().compose_node(parent, index)

    yaml_implicit_resolvers = {
        start: [resolver for resolver in known if resolver[0] != f"{_TAG}bool"]
        for start, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


_FLOAT = re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$")
_Loader.add_implicit_resolver(f"{_TAG}bool", re.compile(r"^(true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
_Loader.add_implicit_resolver(f"{_TAG}float", _FLOAT, list("-+0123456789."))


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    mapping: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str) or key in mapping:
            problem = f"key {key!r} is {'given twice' if isinstance(key, str) else 'not text'}"
            raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
        mapping[key] = loader.construct_object(value_node, deep=True)
    return mapping


_Loader.add_constructor(f"{_TAG}map", _mapping)


def load_recipe(
    cls: type[S], path: Path | str, overrides: Sequence[str] = (), inside: tuple[str, str] | None = None
) -> S:
    """Load the recipe at `path` as a `cls`.

    Args:
        overrides: Options such as ["--train.learning_rate", "2e-5"], applied after the file.
        inside: Two sections. A file with the first is another command's recipe, of which only the second is read.

    Raises:
        RecipeError: The file, a key, a value or an option is wrong; one line.
    """
    path = Path(path)
    data = read_yaml(path)
    if inside is not None and inside[0] in data:
        data = {name: value for name, value in data.items() if name == inside[1]}
    _rename_aliases(cls, data, path)
    return section_from(cls, data, str(path), overrides)


def section_from(cls: type[S], data: dict[str, Any], where: str, overrides: Sequence[str] = ()) -> S:
    """Return plain data as a `cls`.

    Args:
        where: What the data are of, for messages.
        overrides: Options, see `load_recipe`.

    Raises:
        RecipeError: A key or value is wrong; one line.
    """
    options = dict(_parse_overrides(cls, overrides))
    for key, value in options.items():
        _set(data, key, value)
    try:
        # As JSON, for which strict mode still takes a list for a tuple.
        return cls.model_validate_json(json.dumps(data, default=str))
    except ValidationError as error:
        key, problem = _first_problem(cls, data, error)
        if any(f"{key}.".startswith(f"{option}.") or option.startswith(f"{key}.") for option in options):
            where = "command line"
        raise RecipeError(f"{where}: {' '.join(problem.split())}") from None  # a key may hold line ends


def recipe_dict(recipe: BaseModel, *without: Mark) -> dict[str, Any]:
    """Return a recipe or section as plain data for JSON files, without the keys that have one of these marks."""
    plain = recipe.model_dump(mode="json")
    for name, field in type(recipe).model_fields.items():
        if any(mark in field.metadata for mark in without):
            plain.pop(name, None)  # trl's arguments are there only if given
        elif without and isinstance(section := getattr(recipe, name), RecipeSection):
            plain[name] = recipe_dict(section, *without)
    return plain


def with_later_keys(before: dict[str, Any], recipe: BaseModel) -> dict[str, Any]:
    """Return the plain data of an older recipe with the keys that did not exist then, where `recipe` has their defaults."""
    now, filled = recipe.model_dump(mode="json"), dict(before)
    for name, field in type(recipe).model_fields.items():
        value = getattr(recipe, name)
        if isinstance(value, RecipeSection) and isinstance(before.get(name), dict):
            filled[name] = with_later_keys(before[name], value)
        elif name not in before and name in now and value == field.default:
            filled[name] = now[name]
    return filled


def recipe_keys(cls: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield (dotted key, field) for every key of a section and of the sections in it; NAME stands for a key of a mapping."""
    for name, field in cls.model_fields.items():
        yield prefix + name, field
        if section := section_of(field.annotation):
            named = ".NAME" if typing.get_origin(field.annotation) is dict else ""
            yield from recipe_keys(section, f"{prefix}{name}{named}.")


def may_differ(cls: type[BaseModel], *where: Mark) -> tuple[str, ...]:
    """Return the dotted keys that have one of these marks."""
    return tuple(key for key, field in recipe_keys(cls) if any(mark in field.metadata for mark in where))


def section_of(annotation: Any) -> type[BaseModel] | None:
    """Return the section that a key of this type holds, alone, optionally, or by name; None for other types."""
    parts = typing.get_args(annotation) if typing.get_origin(annotation) in (dict, typing.Union, UnionType) else ()
    return next((kind for kind in (annotation, *parts) if isinstance(kind, type) and issubclass(kind, BaseModel)), None)


def aliases_of(field: FieldInfo) -> list[str]:
    """Return the other names by which a recipe may give a key."""
    names = field.validation_alias
    return [str(name) for name in names.choices[1:]] if isinstance(names, AliasChoices) else []


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the contents of a recipe file. Raises RecipeError if it is missing or holds something else."""
    if not path.exists():
        raise RecipeError(f"{path}: no such recipe")
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: cannot be read ({error})") from None
    except RecursionError:
        raise RecipeError(f"{path}: nested too deeply, expected sections with keys") from None
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise RecipeError(f"{path}{line}: {error.problem or 'not YAML'}") from None
    except (yaml.YAMLError, ValueError) as error:  # such as a date 2020-13-45
        raise RecipeError(f"{path}: not YAML ({' '.join(str(error).split())})") from None
    if not isinstance(data, dict):
        problem = "the file is empty" if data is None else f"a {type(data).__name__} at the top"
        raise RecipeError(f"{path}: {problem}, expected sections such as `model:`")
    return data


FLAGS = ("dry-run", "device", "label", "out", "resume", "set", "transcripts")
"""Options of commands that are no keys of a recipe."""


def _parse_overrides(cls: type[BaseModel], arguments: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yield (key, value) of options; a key by its first name."""
    known = dict(key_names(cls))
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if not argument.startswith("--"):
            raise RecipeError(f"{argument}: not an option; an option for a key looks like --section.key value")
        key, equals, text = argument[2:].partition("=")
        if key not in known and not any(key.startswith(f"{other}.") for other in known):
            flag = difflib.get_close_matches(key, FLAGS, n=1, cutoff=0.8)
            raise RecipeError(
                f"--{key}: unknown option{f'; did you mean --{flag[0]}?' if flag else nearest_key(cls, key)}"
            )
        if not equals:
            if not rest:
                raise RecipeError(f"--{key}: a value is missing")
            text = rest.pop(0)
        try:
            yield known.get(key, key), yaml.load(text, Loader=_Loader)
        except (yaml.YAMLError, ValueError, RecursionError):
            yield known.get(key, key), text


def key_names(cls: type[BaseModel]) -> Iterator[tuple[str, str]]:
    """Yield (name, dotted key) for every name of every key, aliases included."""
    for key, field in recipe_keys(cls):
        parent = key.rpartition(".")[0]
        for alias in aliases_of(field):
            yield f"{parent}.{alias}", key
        yield key, key


def _rename_aliases(cls: type[BaseModel], data: dict[str, Any], path: Path) -> None:
    """Put the keys' first names in place of their aliases."""
    for alias, key in key_names(cls):
        *parents, last = alias.split(".")
        section: Any = data
        for parent in parents:
            section = section.get(parent) if isinstance(section, dict) else None
        if alias != key and isinstance(section, dict) and last in section:
            first = key.rpartition(".")[2]
            if first in section:
                raise RecipeError(f"{path}: {alias}: another name of {key}, which is given too; expected one of them")
            section[first] = section.pop(last)


def _set(data: dict[str, Any], dotted: str, value: Any) -> None:
    *parents, last = dotted.split(".")
    for parent in parents:
        if not isinstance(data.get(parent), dict):
            data[parent] = {}
        data = data[parent]
    data[last] = value


# What pydantic calls a problem, and what was expected instead.
_EXPECTED = {
    "bool_type": "true or false",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "text",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping of keys",
    "none_required": "nothing (null)",
    "literal_error": "one of {expected}",
    "string_pattern_mismatch": "text that matches {pattern}",
    "greater_than_equal": "{ge:g} or more",
    "greater_than": "more than {gt:g}",
    "less_than_equal": "at most {le:g}",
    "less_than": "less than {lt:g}",
}


def _first_problem(cls: type[BaseModel], data: Any, error: ValidationError) -> tuple[str, str]:
    """Return the first wrong key and one line about it, or about all unknown keys; pydantic has one error for each member of
    a union."""
    problems: list[Any] = error.errors(include_url=False)
    unknown = [_locate(data, problem["loc"])[0] for problem in problems if problem["type"] == "extra_forbidden"]
    if unknown:
        return unknown[0], "; ".join(f"{key}: unknown key{nearest_key(cls, key)}" for key in dict.fromkeys(unknown))
    first = problems[0]
    key, value = _locate(data, first["loc"])
    if first["type"] == "missing":
        return key, f"{'.'.join(map(str, first['loc']))}: missing, and it has no default"
    if first["type"] == "value_error":  # of a section's own validator
        return key, (f"{key}." if key else "") + first["msg"].removeprefix("Value error, ")
    if instead := REMOVED.get(f"{key}: {value}"):
        return key, f"{key}: {value} was removed: {instead}"
    of_key = [{**problem, **problem.get("ctx", {})} for problem in problems if _locate(data, problem["loc"])[0] == key]
    expected = dict.fromkeys(_EXPECTED.get(problem["type"], "{msg}").format(**problem) for problem in of_key)
    return key, f"{key}: given {value!r} ({type(value).__name__}), expected {' or '.join(expected)}"


def _locate(data: Any, location: Sequence[int | str]) -> tuple[str, Any]:
    """Follow an error's location as far as it is in the data; the rest names members of unions."""
    key: list[str] = []
    for part in location:
        try:
            data = data[part]
        except (LookupError, TypeError):
            break
        key.append(str(part))
    return ".".join(key), data


REMOVED = {
    "rollout.gate": "train on prompts with fewer pieces first, then on all of them (`data.path`)",
    "probe.judge_server.verdict": "leave it out; the judge llm gives a reason and a label (`max_tokens` limits both)",
    "source.largest": "leave harder problems out of the file",
    **dict.fromkeys(("eval", "eval.accuracy_n"), "name a file of held-out problems in the probe's sets"),
    **dict.fromkeys(
        ("source.kind: starter", "replay.source: starter"),
        "use `jsonl` with the path of a file such as recipes/problems/mixed.jsonl.gz",
    ),
}
"""Keys of earlier versions, and values as "key: value", and what to use instead."""


def nearest_key(cls: type[BaseModel], key: str) -> str:
    """Return the end of an error about an unknown key: the nearest valid one, in the same section if possible.

    A short form is taken for what it stands for: `lr` for `learning_rate`, `epochs` for `num_train_epochs`. A key that was
    removed gets its line of REMOVED.
    """
    if key in REMOVED:
        return f"; it was removed: {REMOVED[key]}"
    names = [name for name, _ in key_names(cls)]
    parent, _, last = key.rpartition(".")
    siblings = {name.rpartition(".")[2]: name for name in names if name.rpartition(".")[0] == parent}
    for candidates in (siblings, {name.rpartition(".")[2]: name for name in names}):
        close = difflib.get_close_matches(last, list(candidates), n=1, cutoff=0.6)
        close = close or [name for name in candidates if "".join(part[0] for part in name.split("_") if part) == last]
        close = close or sorted((name for name in candidates if f"_{last}_" in f"_{name}_"), key=len)
        if close:
            return f"; did you mean {candidates[close[0]]}?"
    return f"; known here: {', '.join(sorted(siblings))}" if 0 < len(siblings) <= 20 else ""


def load_named(name: str) -> Any:
    """Return what MODULE:NAME names, of a module that Python can import or a file in the working folder.

    Raises:
        ImportError, AttributeError: There is no such module or name.
    """
    module, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    return getattr(import_module(module), attribute)
