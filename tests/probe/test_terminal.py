"""Progress in a log: lines now and then, and nothing that moves the cursor."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

BARS = """
from nextturn.probe.command import errors
from nextturn.probe.command import terminal
terminal.LOG_EVERY_S = 0.0 if {often} else 3600.0

def main(argv):
    from tqdm.auto import tqdm
    with tqdm(total=3, desc="outer") as outer:
        for _ in range(3):
            for _ in tqdm(range(2), desc="inner", leave=False):
                pass
            outer.update()
            tqdm.write("between")
    with tqdm(total=64, desc="chunk", mininterval=0) as chunk:
        chunk.update()
        chunk.update(63)
    for _ in tqdm(iter("ab"), desc="endless"):
        pass

errors.run_command(main, [])
"""


def stderr_of(often: bool) -> str:
    done = subprocess.run(
        [sys.executable, "-c", BARS.format(often=often)], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "between\n" * 3
    return done.stderr


def test_bars_in_a_log_are_lines_without_cursor_movements() -> None:
    log = stderr_of(often=True)
    assert not {"\r", "\x1b"} & set(log) and "\n\n" not in log
    assert any(line.startswith("outer: 100%, 3 of 3") for line in log.splitlines()), "the end of a bar is told"
    assert log.splitlines()[-1].startswith("endless: 2 after")
    assert "chunk: 100%, 64 of 64" in log
    assert "1 of 64 " not in log, "the first result of a chunk tells no rate, and the time left would be hours"


def test_a_bar_that_ends_soon_says_nothing_in_a_log() -> None:
    assert stderr_of(often=False) == ""


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
def test_a_terminal_keeps_its_bars() -> None:
    main, other = pty.openpty()
    subprocess.run([sys.executable, "-c", BARS.format(often=True)], stdout=subprocess.DEVNULL, stderr=other, check=True)
    os.close(other)
    shown = os.read(main, 65536)
    os.close(main)
    assert b"\r" in shown
