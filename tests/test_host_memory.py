"""Freed memory goes back to the system, also where it lies between blocks that are still in use."""

from __future__ import annotations

import subprocess
import sys

import pytest

HOLES = """
import ctypes
from pathlib import Path
from train.guards import return_freed

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
size = 100_000  # below the size from which glibc maps a block by itself
blocks = [libc.malloc(size) for _ in range(2000)]
for block in blocks:
    ctypes.memset(block, 1, size)
for block in blocks[:-1]:  # the last one stays, so the top of the heap does
    libc.free(block)
before = resident()
assert return_freed()
print(before - resident())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's call")
def test_what_lies_free_below_a_block_in_use_is_returned() -> None:
    done = subprocess.run([sys.executable, "-c", HOLES], capture_output=True, text=True, timeout=60, check=True)
    assert int(done.stdout) > 150 * 2**20
