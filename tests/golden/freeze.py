"""Writes the goldens anew: runs tests/test_golden.py with NEXTTURN_FREEZE=1. Read the diff before committing it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

if __name__ == "__main__":
    command = [sys.executable, "-m", "pytest", "tests/test_golden.py", *sys.argv[1:]]
    sys.exit(subprocess.run(command, cwd=ROOT, env={**os.environ, "NEXTTURN_FREEZE": "1"}, check=False).returncode)
