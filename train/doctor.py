"""Check that this machine and environment can train, and print the command that fixes each problem.

    nextturn doctor

Nothing is changed. Exit code 0: fit to train, on a CPU at least. Exit code 1: something that is needed does not work.
"""

from __future__ import annotations

import argparse
import importlib.metadata as metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from nextturn.probe.command.errors import NextturnError, run_command

_NEEDED = re.compile("extra == .(train|lora)")


class Finding(NamedTuple):
    """One line of the report.

    Attributes:
        level: "problem" if something cannot work here, "note" for advice, "ok" otherwise.
        about: What was checked, such as "torch".
        state: What was seen, such as a version.
        do: What to do, a command if possible; empty if nothing is to be done.
    """

    level: Literal["ok", "note", "problem"]
    about: str
    state: str
    do: str = ""

    def __str__(self) -> str:
        head = f"{self.level:<8}{self.about:<23}"
        return f"{head}{self.state}" + (f"\n{'':{len(head)}}-> {self.do}" if self.do else "")


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="nextturn doctor", description=(__doc__ or "").partition("\n")[0])
    parser.parse_args(argv)
    problems = []
    for finding in examine():
        print(finding, flush=True)
        problems += [finding.about] if finding.level == "problem" else []
    if problems:
        raise NextturnError(f"not fit to train: problems with {', '.join(dict.fromkeys(problems))}")
    print("fit to train")


def examine() -> Iterator[Finding]:
    """Yield all findings, in the order in which they are printed."""
    gpus = list(check_gpus())
    has_gpu = any(finding.about.startswith("GPU ") for finding in gpus)
    yield Finding("ok", "python", platform.python_version())
    yield from check_packages(has_gpu)
    yield from gpus
    if has_gpu:
        yield from check_compilers()
        yield from check_imports()
    elif importlib.util.find_spec("fla") is not None and not made_for_gpus():
        state = "flash-linear-attention is installed, and on a machine without a GPU it crashes every Qwen3.5 model"
        yield Finding("note", "fla", state, "pip uninstall -y flash-linear-attention fla-core")


def made_for_gpus() -> bool:
    """Return True if this machine or its environment is meant for GPUs, such as a login node or one with an old driver."""
    import torch

    return DRIVER.is_file() or torch.version.cuda is not None


def check_packages(has_gpu: bool) -> Iterator[Finding]:
    """Compare installed versions with the ranges that nextturn and the packages that it uses ask for."""
    wanted = _requirements("nextturn", ("", "train", "lora", "gpu", "vllm", "deepspeed", "wandb"))
    for need in wanted:
        version, install = installed(need.name), f"pip install '{need.name}{need.specifier}'"
        if version is not None and need.specifier.contains(version, prereleases=True):
            yield Finding("ok", need.name, version)
        elif version is None and need.marker is not None and not _NEEDED.search(str(need.marker)):
            level: Literal["ok", "note"] = "note" if has_gpu else "ok"
            yield Finding(level, need.name, "not installed, some recipes need it", install if has_gpu else "")
        else:
            yield Finding("problem", need.name, f"{version or 'not installed'}, expected {need.specifier}", install)
    for package in wanted:
        for need in _requirements(package.name):
            version = installed(need.name)
            if version is not None and not need.specifier.contains(version, prereleases=True):
                state = f"{package.name} works with {need.name} {need.specifier}, {version} is installed"
                yield Finding("problem", "combination", state, f"pip install '{need.name}{need.specifier}'")


def _requirements(name: str, extras: Sequence[str] = ("",)) -> list[Requirement]:
    """Return the requirements of an installed package on this machine, with those of the extras."""
    lines = (metadata.requires(name) or []) if installed(name) else []
    needs = [need for need in map(Requirement, lines) if canonicalize_name(need.name) != "nextturn"]
    return [need for need in needs if not need.marker or any(need.marker.evaluate({"extra": e}) for e in extras)]


def installed(name: str) -> str | None:
    """Return the version of an installed package; None if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


GIB = 2**30
BF16_SINCE = (8, 0)  # Ampere: NVIDIA, CUDA C++ Programming Guide, tensor core input types by compute capability
DRIVER = Path("/proc/driver/nvidia/version")


def check_gpus() -> Iterator[Finding]:
    """Check each GPU that torch sees; if there is none in spite of a driver, give torch's reason."""
    import torch

    for number in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(number)
        state = f"{gpu.name}, {gpu.total_memory / GIB:.0f} GiB, capability {gpu.major}.{gpu.minor}"
        if (gpu.major, gpu.minor) >= BF16_SINCE:
            yield Finding("ok", f"GPU {number}", state)
        else:
            do = "--model.dtype float32 --train.bf16 false --train.fp16 true"
            yield Finding("note", f"GPU {number}", f"{state}; it has no bf16, which the recipes use", do)
    if torch.cuda.is_available():
        return
    if not DRIVER.is_file():
        state = "no NVIDIA driver on this machine: training runs on the CPU"
        yield Finding("ok", "GPU", state, "a container needs `--gpus all` to see GPUs")
    elif torch.version.cuda is None:
        version = torch.__version__.partition("+")[0]
        do = f"pip install --force-reinstall 'torch=={version}'"
        yield Finding("problem", "GPU", f"torch {version} is built without CUDA", do)
    else:
        try:
            torch.cuda.init()
            reason = "torch finds no GPU"
        except RuntimeError as error:  # such as a driver that is too old
            reason = " ".join(str(error).split())
        do = "check nvidia-smi and CUDA_VISIBLE_DEVICES; a container has the driver of its host and needs `--gpus all`"
        yield Finding("problem", "GPU", f"torch (CUDA {torch.version.cuda}): {reason}", do)


def check_compilers() -> Iterator[Finding]:
    """Compile with Python's headers, as kernels do at a run's first step."""
    do = f"apt-get install -y gcc g++ libc6-dev python{sys.version_info.major}.{sys.version_info.minor}-dev"
    if reason := _compile_error(os.environ.get("CC", "gcc"), "c"):
        yield Finding("problem", "C compiler", f"{reason}; Triton compiles C at a run's first step", do)
    if os.environ.get("FLA_TILELANG") != "0" and (reason := _compile_error("g++", "c++")):
        state = f"{reason}; on Hopper, TileLang compiles the gradients of linear attention with nvcc and g++"
        yield Finding("problem", "C++ compiler", state, f"{do}; or export FLA_TILELANG=0")


def _compile_error(compiler: str, language: str) -> str:
    """Return why the compiler fails; empty if it works."""
    if not shutil.which(compiler):
        return f"{compiler}: no such command"
    include = f"-I{sysconfig.get_paths(scheme='posix_prefix')['include']}"  # as triton/runtime/build.py
    source = "#include <Python.h>\n#include <dlfcn.h>\n"
    command = [compiler, "-x", language, "-fsyntax-only", include, "-"]
    done = subprocess.run(command, input=source, capture_output=True, text=True)
    errors = [line for line in done.stderr.splitlines() if "error" in line]
    return f"{compiler}: {(errors or ['it fails'])[0]}" if done.returncode else ""


# Packages with compiled parts: what is imported, and what installs them again. fla and causal_conv1d: what transformers imports
# (transformers/models/qwen3_5/modeling_qwen3_5.py). If that fails, it runs plain torch, several times slower, without a message.
IMPORTS = {
    "fla": (
        "from fla.ops.gated_delta_rule import chunk_gated_delta_rule, fused_recurrent_gated_delta_rule",
        "pip install --force-reinstall --no-deps 'flash-linear-attention>=0.6' fla-core",
    ),
    "causal_conv1d": (
        "from causal_conv1d import causal_conv1d_fn, causal_conv1d_update",
        "pip install --no-build-isolation causal-conv1d    (needs nvcc)",
    ),
    "vllm": (
        "from vllm.platforms import current_platform; assert current_platform.is_cuda(), 'it finds no GPU'; from vllm import LLM",
        "pip install --force-reinstall --no-deps 'vllm<=0.31'",
    ),
}  # fmt: skip


def check_imports() -> Iterator[Finding]:
    """Import each package of IMPORTS in a process of its own, since a bad one may crash it."""
    for name, (code, install) in IMPORTS.items():
        if importlib.util.find_spec(name) is None:
            yield Finding("note", name, "not installed", install)
            continue
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            yield Finding("problem", name, f"installed, but it cannot be imported ({reason})", install)
        else:
            yield Finding("ok", name, "imported with its compiled parts")


if __name__ == "__main__":
    sys.exit(run_command(main))
