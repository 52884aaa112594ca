"""Imports run one way, train -> data_builders -> probe, and nothing heavy is imported before it is needed."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# What each package may import of this project.
ALLOWED = {
    "probe": {"probe"},
    "data_builders": {"data_builders", "probe"},
    "train": {"train", "data_builders", "probe"},
}
HEAVY = {"accelerate", "datasets", "deepspeed", "matplotlib", "peft", "torch", "transformers", "trl", "vllm", "wandb"}
# A trainer callback or a tensor class needs its base at import; these modules are themselves imported late.
EXCEPTIONS = {
    "train/guards.py": {"transformers"}, "train/probing.py": {"transformers"},
    "train/overrides.py": {"peft", "torch", "transformers", "trl"},
    "probe/engines/decoding.py": {"torch", "transformers"},
}  # fmt: skip
FILES = sorted(str(path.relative_to(ROOT)) for package in ALLOWED for path in (ROOT / package).rglob("*.py"))


class Imports(ast.NodeVisitor):
    """Top names of what a module imports: anywhere in it, and as soon as it is itself imported."""

    def __init__(self, source: str) -> None:
        self.anywhere: set[str] = set()
        self.at_once: set[str] = set()
        self._late = 0
        self.visit(ast.parse(source))

    def visit_Import(self, node: ast.Import) -> None:
        self._found({name.name for name in node.names})

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        assert node.level == 0, f"line {node.lineno}: a relative import does not say its package"
        self._found({node.module or ""})

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._later(node)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._later(node)

    def visit_If(self, node: ast.If) -> None:
        if ast.unparse(node.test) in ("TYPE_CHECKING", "__name__ == '__main__'"):
            self._later(node)
        else:
            self.generic_visit(node)

    def _later(self, node: ast.AST) -> None:
        self._late += 1
        self.generic_visit(node)
        self._late -= 1

    def _found(self, names: set[str]) -> None:
        tops = {name.removeprefix("nextturn.").partition(".")[0] for name in names}
        self.anywhere |= tops
        if not self._late:
            self.at_once |= tops


@pytest.mark.parametrize("file", FILES)
def test_a_module_imports_its_own_package_and_those_below(file: str) -> None:
    imports = Imports((ROOT / file).read_text(encoding="utf-8"))
    assert imports.anywhere & set(ALLOWED) <= ALLOWED[file.split("/")[0]]
    assert "tests" not in imports.anywhere


@pytest.mark.parametrize("file", FILES)
def test_a_module_imports_heavy_packages_inside_the_functions_that_use_them(file: str) -> None:
    imports = Imports((ROOT / file).read_text(encoding="utf-8"))
    assert imports.at_once & HEAVY == EXCEPTIONS.get(file, set())


def test_the_exceptions_are_imported_late() -> None:
    for file in set(FILES) - EXCEPTIONS.keys():
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        at_once = {node.module for node in tree.body if isinstance(node, ast.ImportFrom)}
        for exception in EXCEPTIONS:
            assert "nextturn." + exception.removesuffix(".py").replace("/", ".") not in at_once, file


def modules_of(file: str) -> set[str]:
    """The project's files that a file imports: at its top, inside functions, and for types."""
    found: set[str] = set()
    for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            for name in node.names:
                whole = f"{node.module}.{name.name}".removeprefix("nextturn.").replace(".", "/")
                places = (f"{whole}.py", f"{whole}/__init__.py", whole.rpartition("/")[0] + ".py")
                places += (whole.rpartition("/")[0] + "/__init__.py",)
                found |= {next((place for place in places if place in FILES), file)}
    return found - {file}


def test_no_file_imports_one_that_imports_it() -> None:
    """Imports inside functions and for types count: what stands in a circle can only be read as one file."""
    left = {file: modules_of(file) for file in FILES}
    while free := [file for file, wanted in left.items() if not wanted & left.keys()]:
        for file in free:
            del left[file]
    assert not left, f"in or above a circle of imports: {', '.join(sorted(left))}"


def test_what_is_found_where() -> None:
    source = "import a.b\nif TYPE_CHECKING:\n    import c\nelse:\n    import d\ntry:\n    import e\nexcept E:\n    import f\n"
    source += "class K:\n    import g\n    def m(self):\n        from h.i import j\n"
    imports = Imports(source)
    assert imports.anywhere == set("abcdefgh") - {"b"}
    assert imports.at_once == {"a", "e", "f", "g"}
