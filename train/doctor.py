"""Says whether this machine and environment are fit to train on, and what to do where they are not.

    python -m train.doctor [--json FILE]

Reads and changes nothing. Exit code 0: fit, on a CPU at least; 1: something that is needed does not work.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from probe.errors import NextturnError, run_command

if TYPE_CHECKING:
    from train.checks import Finding

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
    from train.checks.gpus import check_gpus, check_kernels
    from train.checks.machine import check_machine
    from train.checks.packages import check_packages

    gpus = check_gpus()
    has_gpu = any(finding.about.startswith("GPU ") for finding in gpus)
    return [*check_packages(has_gpu), *gpus, *check_kernels(has_gpu), *check_machine(has_gpu)]


def told(finding: Finding) -> str:
    """One finding as text: level, what, found; below it what to do."""
    head = f"{_MARK[finding.level]} {finding.about:<23}"
    lines = textwrap.wrap(finding.found, _WIDTH - len(head), break_long_words=False, break_on_hyphens=False) or [""]
    do = [f"{'':{len(head)}}-> {finding.do}"] if finding.do else []
    return "\n".join([head + lines[0], *(" " * len(head) + line for line in lines[1:]), *do])


if __name__ == "__main__":
    sys.exit(run_command(main))
