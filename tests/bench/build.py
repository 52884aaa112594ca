"""`make bench`: how long the scripted builder takes, and how its memory grows with the rows.

    python -m bench.build [--problems FILE] [--sizes 7500 75000]

Builds the shipped recipe from all of MATH's training problems, once as they are and once with ten times as many
conversations (each problem ten times, with other wording), each in a process of its own. Shown are the seconds, the
rows, the share that the gate keeps and the most memory that the process held. Where MATH's file is not there, the 1,500
problems of one step in recipes/problems are used, which are shorter.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nextturn.probe.command.files import read_json, write_jsonl
from support.problems import tasks

ROOT = Path(__file__).resolve().parents[2]
MATH = ROOT.parent / "shared" / "data" / "math" / "train.jsonl"
RECIPE = ROOT / "recipes" / "math_rules.yaml"
OFFLINE = ["--quality.decontaminate=[]"]  # the recipe's own sets come from the hub


@dataclass(frozen=True)
class Built:
    """One build; memory is the most that its process held in RAM, `busy` the seconds of one core that it took."""

    problems: int
    seconds: float
    busy: float
    megabytes: float
    manifest: dict[str, Any]

    def line(self) -> str:
        asked, kept = self.manifest["asked"], self.manifest["kept"]
        reasons = ", ".join(f"{count} {reason}" for reason, count in self.manifest["rejected"].items())
        rows = sum(file["rows"] for name, file in self.manifest["files"].items() if name.startswith("rl/"))
        return (
            f"{self.problems:,} problems: {self.seconds:.1f} s ({self.busy:.1f} s of one core), "
            f"{self.problems / self.seconds:,.0f} a second; "
            f"{kept:,} of {asked:,} rows kept ({kept / asked:.1%}); {rows:,} rl rows; peak {self.megabytes:.0f} MB\n"
            f"    rejected: {reasons}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=Path, help=f"JSONL in MATH's format (default: {MATH}, where it is there)")
    parser.add_argument("--sizes", type=int, nargs="+", default=[7_500, 75_000], help="problems of each build")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source = arguments.problems or (MATH if MATH.is_file() else _of_one_step(Path(folder) / "problems.jsonl"))
        print(f"{RECIPE.name} from {source}")
        runs = [_build(source, size, Path(folder) / str(size)) for size in arguments.sizes]
    first, last = runs[0], runs[-1]
    if len(runs) > 1:
        print(
            f"{last.problems / first.problems:.1f} times the problems: {last.seconds / first.seconds:.1f} times the time, "
            f"{last.megabytes / first.megabytes:.2f} times the memory"
        )


def _build(source: Path, problems: int, out: Path) -> Built:
    options = ["--source.path", source, "--source.levels=null", "--source.n", problems, "--out", out, *OFFLINE]
    command = [sys.executable, "-m", "nextturn.data_builders", RECIPE, *options]
    started = time.perf_counter()
    process = subprocess.Popen([str(word) for word in command], cwd=ROOT, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"the build of {problems} problems ended with {process.returncode}")
    seconds, busy = time.perf_counter() - started, used.ru_utime + used.ru_stime
    built = Built(problems, seconds, busy, used.ru_maxrss / 1024, read_json(out / "manifest.json"))
    print(built.line(), flush=True)
    return built


def _of_one_step(path: Path) -> Path:
    rows = ({"problem": task.question, "level": "Level 1", "type": "Prealgebra",
             "solution": f"{task.solution}\nThe answer is $\\boxed{{{task.answer}}}$."}
            for task in tasks("rl"))  # fmt: skip
    write_jsonl(path, rows)
    return path


if __name__ == "__main__":
    main()
