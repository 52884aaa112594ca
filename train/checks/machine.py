"""What else a run leans on: compiler, cores, disk, the hub, wandb, accelerate's own default settings."""

from __future__ import annotations

import os
import shutil
import threading
import time
from pathlib import Path

from train.checks import Finding

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
    from train.launch import helper_locks

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
    from probe.models.conversions import cache_root

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
