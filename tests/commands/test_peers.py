"""`make bench-peers` compares times only where both sides worked with the same number of threads; docs/peers.md has its figures."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from bench.peers import compare, page

from support.commands import ROOT

BUSY = """
import sys, threading, time
def work():
    while time.thread_time() < 0.6:
        pass
others = [threading.Thread(target=work) for _ in range(int(sys.argv[1]) - 1)]
[each.start() for each in others]
work()
[each.join() for each in others]
"""
START = "import subprocess, sys; subprocess.run([sys.executable, '-c', *sys.argv[1:]], check=True)"
"""Starts the work in a process of its own, as a launcher does."""


@pytest.mark.parametrize(("ours", "peer"), [(2, 2), (2, 1)])
def test_a_ratio_needs_the_same_number_of_threads(ours: int, peer: int, tmp_path: Path) -> None:
    commands = [[sys.executable, "-c", START, BUSY, str(threads)] for threads in (ours, peer)]
    found = compare("busy", *commands, tmp_path, 1)
    assert (found["ours"]["threads"], found["peer"]["threads"]) == (ours, peer)
    assert (found["ratio"] is None) == (ours != peer)


def test_the_page_has_the_stored_figures() -> None:
    docs = ROOT / "docs"
    assert (docs / "peers.md").read_text() == page(json.loads((docs / "peers.json").read_text()))
