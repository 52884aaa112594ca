"""Writes the goldens anew: runs tests/test_golden.py with NEXTTURN_FREEZE=1. Read the diff before committing it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

if __name__ == "__main__":
    os.environ["NEXTTURN_FREEZE"] = "1"
    sys.exit(pytest.main([str(Path(__file__).resolve().parent.parent / "test_golden.py"), *sys.argv[1:]]))
