"""Tries training and probing on this machine's GPU with a random model of Qwen3.5-2B's shape; no hub is needed.

    python -m train.gpu_check [--tiny] [--out DIR]      # or: bash recipes/gpu_check.sh

Each stage is a process of its own, so that one that crashes leaves the others; DIR/report.json is written after each.
SFT and GRPO run the shipped 2B recipes through train/sft.py's and train/grpo.py's own functions, with fewer steps.
Exit code 1 where a stage failed; a stage whose library is missing says so and is no failure.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from probe.errors import NextturnError, run_command

STAGES = ("machine", "kernels", "sft", "grpo", "probe")
SECONDS = 240  # of one stage on a GPU at most, so that all end within ten minutes unless several hang
SECONDS_TINY = 900  # a CPU that others use as well may be slow


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m train.gpu_check", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tiny", action="store_true", help="a tiny model, also on a CPU, in about a minute")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu_check"), metavar="DIR", help="default: %(default)s")
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=list(STAGES), help="default: all")
    parser.add_argument("--stage", choices=("model", *STAGES), help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.stage:
        from train.checks.stages import run_stage

        run_stage(arguments.stage, arguments.out, arguments.tiny)
        return
    report = check(arguments.out, arguments.tiny, arguments.stages)
    failed = [name for name, stage in report["stages"].items() if "error" in stage]
    if failed:
        raise NextturnError(f"{', '.join(failed)} failed; the reasons are in {arguments.out / 'report.json'}")
    print(f"all is well: {arguments.out / 'report.json'}")


def check(out: Path, tiny: bool, stages: Sequence[str]) -> dict[str, Any]:
    """Runs the stages one after the other; gives what report.json then holds."""
    from probe.files import write_json

    report: dict[str, Any] = {"schema": 1, "tiny": tiny, "stages": {}}
    made = _stage("model", out, tiny)
    if "error" in made:
        report["stages"]["model"] = made
    for name in stages if "error" not in made else ():
        report["stages"][name] = _stage(name, out, tiny)
        print(told(name, report["stages"][name]), flush=True)
        write_json(out / "report.json", report)
    write_json(out / "report.json", report)
    return report


def _stage(name: str, out: Path, tiny: bool) -> dict[str, Any]:
    """What the stage found, or `error` with the end of what it said."""
    from probe.files import read_json

    out.mkdir(parents=True, exist_ok=True)
    result = out / f"{name}.json"
    result.unlink(missing_ok=True)
    command = [
        sys.executable,
        "-m",
        "train.gpu_check",
        "--stage",
        name,
        "--out",
        str(out),
        *(["--tiny"] if tiny else []),
    ]
    started = time.monotonic()
    seconds = SECONDS_TINY if tiny else SECONDS
    code: int | str
    with (out / f"{name}.log").open("w") as log:
        try:
            code = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, timeout=seconds).returncode
        except subprocess.TimeoutExpired:
            code = f"none within {seconds} s"
    found: dict[str, Any] = read_json(result) if result.is_file() else {}
    if code != 0:
        lines = (out / f"{name}.log").read_text(errors="replace").strip().splitlines()
        found["error"] = f"exit code {code}: {lines[-1] if lines else 'it said nothing'} ({out / name}.log)"
    return {**found, "seconds": round(time.monotonic() - started, 1)}


def told(name: str, found: dict[str, Any]) -> str:
    """One stage as a line."""
    shown = {key: value for key, value in found.items() if key not in ("seconds", "error")}
    parts = [
        f"{key.replace('_', ' ')} {value if isinstance(value, str) else json.dumps(value)}"
        for key, value in shown.items()
    ]
    failed = f"FAILED: {found['error']}; " if "error" in found else ""
    return f"{name:<8} {failed}{', '.join(parts)} ({found['seconds']:.0f} s)"


if __name__ == "__main__":
    sys.exit(run_command(main))
