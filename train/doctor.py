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
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from nextturn.probe.errors import NextturnError, run_command


@dataclass(frozen=True)
class Finding:
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


ok, note, problem = partial(Finding, "ok"), partial(Finding, "note"), partial(Finding, "problem")


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
    importing = start_imports()  # takes many seconds, so it runs during the other checks
    gpus = list(check_gpus())
    on_gpus = [finding.state for finding in gpus if finding.about.startswith("GPU ")]
    yield from check_packages(bool(on_gpus))
    yield from gpus
    if on_gpus:
        yield from check_compilers(any("capability 9." in state for state in on_gpus))
    yield from check_imports(bool(on_gpus), importing)


# --- Installed packages, compared with the ranges in the metadata of the packages that need them.

# Extras that a machine may do without, and what each is for.
OPTIONAL = {
    "vllm": "for generation on GPUs", "flash-linear-attention": "for Qwen3.5 models on GPUs",
    "deepspeed": "for `train.deepspeed` on several GPUs", "wandb": "for a recipe's `tracking:` section",
}  # fmt: skip


def check_packages(has_gpu: bool) -> Iterator[Finding]:
    """Check Python, the packages of nextturn and of its extras, and pairs of packages that exclude each other."""
    try:
        needs = _requirements("nextturn", ("gpu", "deepspeed", "wandb"))
    except metadata.PackageNotFoundError:
        yield problem("nextturn", "not installed in this environment", "pip install -e .")
        return
    wanted = {name: need for need in needs if (name := canonicalize_name(need.name)) != "nextturn"}
    here, python = platform.python_version(), metadata.metadata("nextturn")["Requires-Python"]
    if python and not SpecifierSet(python).contains(here, prereleases=True):
        yield problem("python", f"{here}, expected {python}", "make a new environment with a newer Python")
    else:
        yield ok("python", here)
    for name, need in wanted.items():
        version, install = installed(name), f"pip install '{name}{need.specifier}'"
        if version is None and name in OPTIONAL:
            level = note if has_gpu else ok
            yield level(name, f"not installed; needed only {OPTIONAL[name]}", install if has_gpu else "")
        elif version is None or not need.specifier.contains(version, prereleases=True):
            yield problem(name, f"{version or 'not installed'}, expected {need.specifier}", install)
        else:
            yield ok(name, version)
    yield from check_conflicts(wanted)


def check_conflicts(names: Iterable[str]) -> Iterator[Finding]:
    """Compare the version ranges that these packages ask for with what is installed."""
    for name in names:
        for need in _requirements(name) if installed(name) else ():
            version = installed(need.name)
            if version is not None and not need.specifier.contains(version, prereleases=True):
                state = f"{name} {installed(name)} works with {need.name} {need.specifier}, {version} is installed"
                yield problem("combination", state, f"pip install '{need.name}{need.specifier}'")


def _requirements(name: str, extras: Sequence[str] = ("",)) -> list[Requirement]:
    """Return the requirements that hold on this machine, with those of the extras. Raises PackageNotFoundError."""
    needs = [Requirement(line) for line in metadata.requires(name) or []]
    return [need for need in needs if not need.marker or any(need.marker.evaluate({"extra": e}) for e in extras)]


def installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


# --- GPUs as torch sees them, and the driver.

GIB = 2**30
BF16_SINCE = (8, 0)  # Ampere: NVIDIA, CUDA C++ Programming Guide, tensor core input types by compute capability
# The oldest driver for each major version of CUDA: docs.nvidia.com/deploy/cuda-compatibility, minor version compatibility.
OLDEST_DRIVER = {12: 525, 13: 580}
DRIVER = Path("/proc/driver/nvidia/version")


def check_gpus() -> Iterator[Finding]:
    """Check torch, the NVIDIA driver and each GPU."""
    try:
        import torch
    except ImportError as error:
        yield problem("torch", f"it cannot be imported ({error})", "pip install --force-reinstall torch")
        return
    driver, built = driver_version(), torch.version.cuda
    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            gpu = torch.cuda.get_device_properties(number)
            capability = f"capability {gpu.major}.{gpu.minor}"
            state = f"{gpu.name}, {gpu.total_memory / GIB:.0f} GiB, {capability}, driver {driver}"
            if (gpu.major, gpu.minor) >= BF16_SINCE:
                yield ok(f"GPU {number}", state)
            else:
                do = "--model.dtype float32 --train.bf16 false --train.fp16 true"
                yield note(f"GPU {number}", f"{state}; it has no bf16, which the recipes use", do)
        return
    oldest = OLDEST_DRIVER.get(int((built or "0").partition(".")[0]), 0)
    if driver is None:
        do = "make demo, recipes/demo_*.yaml and --dry-run work on a CPU; a container needs `--gpus all` to see GPUs"
        yield ok("GPU", "none on this machine: training runs on the CPU", do)
    elif built is None:
        version = torch.__version__.partition("+")[0]
        state = f"NVIDIA driver {driver} is installed, but torch {version} is built without CUDA"
        yield problem("GPU", state, f"pip install --force-reinstall 'torch=={version}'")
    elif int(driver.partition(".")[0]) < oldest:
        state = f"NVIDIA driver {driver} is too old for torch {torch.__version__} (CUDA {built}), expected {oldest} or newer"
        do = f"apt-get install nvidia-driver-{oldest} and restart; for a container, upgrade the driver of its host"
        yield problem("driver", state, do)
    else:
        state = f"NVIDIA driver {driver} is installed, but torch (CUDA {built}) finds no GPU"
        yield problem("GPU", state, "check nvidia-smi and CUDA_VISIBLE_DEVICES; start a container with `--gpus all`")


def driver_version() -> str | None:
    """Return the version of the NVIDIA driver, such as "580.95.05" (in a container, the host's), or None."""
    match = re.search(r"\b\d{3}\.[\d.]+\b", DRIVER.read_text() if DRIVER.is_file() else "")
    return match[0] if match else None


# --- Compilers that kernels need at a run's first step.


def check_compilers(hopper: bool) -> Iterator[Finding]:
    """Compile with Python's headers, as Triton does with C (triton/runtime/build.py) and TileLang's nvcc with g++.

    Args:
        hopper: Whether a GPU has compute capability 9.
    """
    do = f"apt-get install -y gcc g++ libc6-dev python{sys.version_info.major}.{sys.version_info.minor}-dev"
    compiler = os.environ.get("CC") or ("gcc" if shutil.which("gcc") else "clang")
    if reason := _compile_error(compiler, "c"):
        yield problem("C compiler", f"{compiler}: {reason}; Triton compiles C at a run's first step", do)
    if os.environ.get("FLA_TILELANG") != "0" and (reason := _compile_error("g++", "c++")):
        state = f"g++: {reason}; on Hopper, TileLang compiles the gradients of linear attention with nvcc and g++"
        instead = "export FLA_TILELANG=0 and run `bash recipes/gpu_check.sh --stages kernels`, which compares gradients"
        yield (problem if hopper else note)("C++ compiler", state, f"{do}; or {instead}")


def _compile_error(compiler: str, language: str) -> str:
    """Return why the compiler fails; empty if it works."""
    if not shutil.which(compiler):
        return "no such command"
    scheme = sysconfig.get_default_scheme().replace("posix_local", "posix_prefix")
    include = f"-I{sysconfig.get_paths(scheme=scheme)['include']}"
    source = "#include <Python.h>\n#include <dlfcn.h>\n#include <stdbool.h>\n"
    command = [compiler, "-x", language, "-fsyntax-only", include, "-"]
    done = subprocess.run(command, input=source, capture_output=True, text=True)
    errors = [line for line in done.stderr.splitlines() if "error" in line]
    return (errors or [f"exit code {done.returncode}"])[0] if done.returncode else ""


# --- Packages with compiled parts, each imported in a process of its own, since a bad one may crash it.

IMPORT_SECONDS = 180.0
INSTEAD = "transformers runs plain torch in its place, which is several times slower"


# By module: what is imported, what its failure means, and what installs it again. fla and causal_conv1d: what transformers
# imports (transformers/models/qwen3_5/modeling_qwen3_5.py). vllm: its platform imports the compiled part, whose name differs
# between versions (vllm._C_stable_libtorch in 0.31).
IMPORTS = {
    "fla": (
        "from fla.ops.gated_delta_rule import chunk_gated_delta_rule, fused_recurrent_gated_delta_rule", INSTEAD,
        "pip install --force-reinstall --no-deps 'flash-linear-attention>=0.6' fla-core",
    ),
    "causal_conv1d": (
        "from causal_conv1d import causal_conv1d_fn, causal_conv1d_update", f"{INSTEAD}, and packing is refused",
        "pip install --no-build-isolation causal-conv1d    (needs nvcc)",
    ),
    "vllm": (
        "from vllm.platforms import current_platform; assert current_platform.is_cuda(), 'it finds no GPU'; from vllm import LLM",
        "recipes with `use_vllm` or `engine: vllm` cannot run", "pip install --force-reinstall --no-deps 'vllm<=0.31'",
    ),
}  # fmt: skip


def start_imports() -> dict[str, subprocess.Popen[str]]:
    """Start a process for each package of IMPORTS that is installed."""
    return {
        name: subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        for name, (code, _, _) in IMPORTS.items()
        if importlib.util.find_spec(name) is not None
    }


def check_imports(has_gpu: bool, importing: dict[str, subprocess.Popen[str]]) -> Iterator[Finding]:
    """Wait for the processes of `start_imports` and yield what became of them. Without a GPU, end them."""
    if not has_gpu:
        for process in importing.values():
            process.kill()
            process.communicate()
        if "fla" in importing and driver_version() is None:
            state = "flash-linear-attention is installed without a GPU, where it crashes every Qwen3.5 model"
            yield problem("fla", state, "pip uninstall -y flash-linear-attention fla-core")
        return
    for name, (_, without, install) in IMPORTS.items():
        if name not in importing:
            yield note(name, f"not installed: {without}", install)
        elif reason := _failure(importing[name]):
            yield problem(name, f"installed, but it cannot be imported ({reason}): {without}", install)
        else:
            yield ok(name, "imported with its compiled parts")


def _failure(process: subprocess.Popen[str]) -> str:
    """Return why an import failed, in one line; empty if it did not."""
    try:
        _, errors = process.communicate(timeout=IMPORT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return f"it takes more than {IMPORT_SECONDS:.0f} s"
    if process.returncode < 0:
        return f"it crashes: {signal.Signals(-process.returncode).name}"
    return (errors.strip().splitlines() or ["no reason given"])[-1] if process.returncode else ""


if __name__ == "__main__":
    sys.exit(run_command(main))
