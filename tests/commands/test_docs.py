"""The documentation site (`make docs`) has every page, and what the API page names exists."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]


class _Loader(yaml.SafeLoader):
    """Reads the tag that names a function of an extension as a string."""


_Loader.add_multi_constructor("tag:yaml.org,2002:python/name:", lambda loader, name, node: name)


def pages(nav: list[Any]) -> Iterator[str]:
    for entry in nav:
        for target in entry.values():
            yield from pages(target) if isinstance(target, list) else [target]


def test_the_site_lists_every_page_once() -> None:
    config = yaml.load((ROOT / "docs" / "mkdocs.yml").read_text(), _Loader)  # noqa: S506 - a subclass of SafeLoader
    listed = list(pages(config["nav"]))
    assert len(set(listed)) == len(listed)
    assert all((ROOT / page).is_file() for page in listed)
    assert {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")} <= set(listed)


def test_the_api_page_names_what_can_be_imported() -> None:
    for name in re.findall(r"^- `(nextturn\.\S+)`: ", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE):
        module, _, member = name.rpartition(".")
        assert hasattr(import_module(module), member)


def test_the_citation_has_the_version_of_the_package() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == version
