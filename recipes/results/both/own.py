"""Write the right solutions of a build of own.yaml or own_math.yaml for rows.py: ids of the problems, and what the model wrote.

python recipes/results/both/own.py BUILD OUT.jsonl.gz
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from nextturn.data_builders.rows import load_sft_rows
from nextturn.probe.command.errors import run_command
from nextturn.probe.command.files import write_atomic


def main(argv: Sequence[str]) -> None:
    build, out = map(Path, argv)
    solved = {
        row["problem"]: row["messages"][1]["content"] for row in load_sft_rows(build) if len(row["messages"]) == 2
    }
    lines = "".join(
        json.dumps({"id": name, "solution": text}, ensure_ascii=False) + "\n" for name, text in solved.items()
    )
    write_atomic(out, gzip.compress(lines.encode(), mtime=0))
    print(f"{out}: {len(solved)} solutions")


if __name__ == "__main__":
    sys.exit(run_command(main))
