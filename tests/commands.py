"""Runs the project's commands in the test's own process, where torch is imported once for all of them."""

from __future__ import annotations

import runpy
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest


def call(words: Sequence[str], cwd: Path, **environment: str) -> None:
    """Runs `-m MODULE ...` or `train/SCRIPT.py ...` in `cwd`; a command that does not end with 0 is a failure."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(cwd)
        for name, value in {"HF_HUB_OFFLINE": "1", **environment}.items():
            patch.setenv(name, value)
        module, rest = (words[1], words[2:]) if words[0] == "-m" else (words[0], words[1:])
        module = module.removesuffix(".py").replace("/", ".")
        patch.setattr(sys, "argv", [module, *rest])
        with pytest.raises(SystemExit) as ended:
            runpy.run_module(module, run_name="__main__", alter_sys=False)
        assert not ended.value.code, shlex.join(words)
