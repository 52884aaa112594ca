"""Imports run one way, train -> data_builders -> probe and up probe's layers, heavy ones late, and all are declared."""

from __future__ import annotations

import ast
import importlib.metadata
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {"probe": 0, "data_builders": 1, "train": 2}
# The folders of probe, from the bottom up: a module imports those of its own floor and of the floors below.
FLOORS = (
    ("stats.py", "command"), ("data",), ("text",), ("questions", "models"), ("engines",), ("judges",),
)  # fmt: skip
STAGE = (
    ("measures",),
    ("kept.py", "plan.py", "results.py", "store.py", "run.py"),
    ("report",),
    ("labels",),
    ("callback.py", "compare.py", "log.py", "rejudge.py", "watch.py"),
)
FLOOR = {name: floor for floor, names in enumerate(FLOORS + STAGE) for name in names}
HEAVY = {"accelerate", "datasets", "deepspeed", "matplotlib", "peft", "torch", "transformers", "trl", "vllm", "wandb"}
# A trainer callback or a tensor class needs its base class at import. These modules are themselves imported late.
NEEDS_HEAVY = {
    "train/guards.py": {"transformers"}, "train/collapse.py": {"transformers"}, "probe/callback.py": {"transformers"},
    "train/probing.py": set(),
    "train/overrides.py": {"peft", "torch", "transformers", "trl"},
    "probe/engines/decoding.py": {"torch", "transformers"},
}  # fmt: skip
FILES = sorted(str(path.relative_to(ROOT)) for package in PACKAGES for path in (ROOT / package).rglob("*.py"))

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Modules of packages that tests do without and that have another name.
DISTRIBUTIONS = {"fla": "flash-linear-attention"}


@cache
def imports_of(file: str) -> list[tuple[str, bool]]:
    """Return (dotted name, imported at once) of all imports; those in functions and for types are not made at once."""
    found: list[tuple[str, bool]] = []

    def visit(node: ast.AST, at_once: bool) -> None:
        if isinstance(node, ast.Import):
            found.extend((name.name, at_once) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import does not show its package"
            found.extend((f"{node.module}.{name.name}", at_once) for name in node.names)
        late = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        late |= isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "__name__ == '__main__'")
        for child in ast.iter_child_nodes(node):
            visit(child, at_once and not late)

    visit(ast.parse((ROOT / file).read_text(encoding="utf-8")), True)
    return found


def files_imported(file: str, late_too: bool = True) -> set[str]:
    """Return the project's files that a file imports."""
    imported = set[str]()
    for name, at_once in imports_of(file):
        path = name.removeprefix("nextturn.").replace(".", "/")
        parent = path.rpartition("/")[0]
        candidates = (f"{path}.py", f"{path}/__init__.py", f"{parent}.py", f"{parent}/__init__.py")
        if at_once or late_too:
            imported |= {candidate for candidate in candidates if candidate in FILES}
    return imported - {file}


def floor(file: str) -> int:
    return FLOOR[file.split("/")[1]]


def test_a_module_imports_what_is_below_it() -> None:
    for file in FILES:
        package, *rest = file.split("/")
        for imported in files_imported(file):
            what = f"{file} imports {imported}"
            assert PACKAGES[imported.split("/")[0]] <= PACKAGES[package], what
            if imported.startswith("probe/") and imported != "probe/__init__.py":
                if package == "data_builders":
                    assert floor(imported) < len(FLOORS), f"{what}, which is no part of the library"
                elif package == "probe" and rest[0] not in ("__init__.py", "__main__.py"):
                    assert floor(imported) <= floor(file), what
        assert not any(name.partition(".")[0] in ("tests", "support") for name, _ in imports_of(file)), file


def test_a_module_imports_heavy_packages_inside_the_functions_that_use_them() -> None:
    for file in FILES:
        at_once = {name.partition(".")[0] for name, at_once in imports_of(file) if at_once}
        assert at_once & HEAVY == NEEDS_HEAVY.get(file, set()), file
        assert file in NEEDS_HEAVY or not files_imported(file, late_too=False) & NEEDS_HEAVY.keys(), file


def names(requirements: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(requirement).name) for requirement in requirements}


def test_every_imported_package_is_declared() -> None:
    modules = {name.partition(".")[0] for file in FILES for name, _ in imports_of(file)}
    found = importlib.metadata.packages_distributions()
    imported = {
        canonicalize_name(DISTRIBUTIONS.get(module, found.get(module, [module])[0]))
        for module in modules - set(sys.stdlib_module_names) - {"nextturn"}
    }
    extras = PROJECT["optional-dependencies"]
    assert imported - names(PROJECT["dependencies"]) - set.union(*map(names, extras.values())) == set()
    assert HIDDEN & names(PROJECT["dependencies"]) == set()
    assert Requirement(extras["gpu"][0]).extras == {"deepspeed", "train", "vllm", "wandb"}


HIDDEN = {"deepspeed", "if_verifiable", "langdetect", "nltk", "peft", "trl", "verifiers", "vllm", "wandb"}


def test_all_modules_but_those_around_a_trainer_are_imported_without_the_packages_of_extras() -> None:
    around = {"train/overrides.py", "train/environments/plugin.py"}
    trains = {file for file in FILES if {file, *files_imported(file, late_too=False)} & around}
    modules = [f"nextturn.{file[:-3].replace('/', '.')}" for file in FILES if file not in trains]
    modules = [name for name in modules if "example" not in name and not name.endswith("__")]
    assert len(trains) < 8
    code = (
        f"import importlib, sys; sys.modules.update(dict.fromkeys({sorted(HIDDEN)})); "
        f"[importlib.import_module(name) for name in {modules}]"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_no_file_imports_one_that_imports_it() -> None:
    """Imports inside functions and for types count: files in a circle can only be read as one file."""
    left = {file: files_imported(file) for file in FILES}
    while free := [file for file, imported in left.items() if not imported & left.keys()]:
        for file in free:
            del left[file]
    assert not left, f"in or above a circle of imports: {', '.join(sorted(left))}"
