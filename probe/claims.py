"""Which process measures which checkpoint, settled by files alone, so that it holds between machines.

`flock` is not kept between machines on many shared file systems and wall clocks differ, so neither is used. A claim is
a file NAME.K. Creating it with O_EXCL succeeds for exactly one process, on NFS too. Its owner rewrites it every BEAT_S
seconds, each time with another number in it. An observer holds a claim for abandoned

- when its content stayed the same for STALE_S seconds of the observer's *own* monotonic clock, or
- at once, when it names this machine and a process that no longer lives.

An abandoned claim K is not deleted, because a slow second observer could then delete its successor. It is succeeded by
creating K + 1, which again exactly one process can do. An owner can only be succeeded while it stands still, for
instance suspended with its machine. When it wakes, `check`, which is called before anything is written, looks before it
believes: a claim not refreshed for FRESH_S is refreshed first, and an owner that finds K + 1, or its own file
gone (training went back to an earlier step and withdrew it), stops. Should two owners overlap by one write all the
same, it is one of equal content, as completions are seeded.

Contents are read by opening the file, never from its time of change: NFS answers `stat` from a cache for up to a
minute, while opening asks the server.
"""

from __future__ import annotations

import json
import os
import re
import socket
import threading
import time
import uuid
from pathlib import Path
from typing import Any

from probe.errors import NextturnError

BEAT_S = 10.0
STALE_S = 60.0
FRESH_S = 1.0
"""How old may be what `check` goes by: rows are kept many times a second, each look is a file opened."""
# A process counts as another one with the same id when it began this much earlier or later than the claim says; wide,
# because a corrected system clock moves the time that is computed for the start of a process.
_SAME_START_S = 60.0


class ClaimLost(NextturnError):
    """Another process has taken the work over, or it was withdrawn: nothing more may be written."""


class Claims:
    """The claims in a folder as one process sees them; it remembers since when each stands still."""

    def __init__(self, folder: Path, beat_s: float = BEAT_S, stale_s: float = STALE_S) -> None:
        self.folder, self.beat_s, self.stale_s = folder, beat_s, stale_s
        self._seen: dict[Path, tuple[bytes, float]] = {}

    def take(self, name: str) -> Claim | None:
        """The claim on `name`, or None while another process holds it. Use it as a context, which refreshes it."""
        number = self._newest(name)
        if number and not self._abandoned(self.folder / f"{name}.{number}"):
            return None
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            return Claim(self.folder, name, number + 1, self.beat_s, self.stale_s)
        except FileExistsError:
            return None

    def holder(self, name: str) -> str | None:
        """Who holds `name`, for messages; None where nobody does."""
        owner = _owner_in(_content_of(self.folder / f"{name}.{self._newest(name)}"))
        return f"process {owner['pid']} on {owner['host']}" if owner else None

    def names(self) -> list[str]:
        """What is claimed, by whomever."""
        return sorted({path.name.rpartition(".")[0] for path in self.folder.glob("*.*")})

    def withdraw(self, name: str) -> None:
        """Takes `name` away from whoever holds it; that process stops within BEAT_S."""
        for number in range(1, self._newest(name) + 1):
            (self.folder / f"{name}.{number}").unlink(missing_ok=True)

    def _newest(self, name: str) -> int:
        """The highest K of NAME.K; 0 where there is none."""
        found = (re.fullmatch(rf"{re.escape(name)}\.(\d+)", path.name) for path in self.folder.glob(f"{name}.*"))
        return max((int(match[1]) for match in found if match), default=0)

    def _abandoned(self, path: Path) -> bool:
        content = _content_of(path)
        if content is None:  # released a moment ago; the next look settles it
            return False
        owner = _owner_in(content)
        if owner.get("machine") == _machine() and not _alive(owner["pid"], owner["started"]):
            return True
        before, now = self._seen.get(path), time.monotonic()
        if before is None or before[0] != content:
            self._seen[path] = (content, now)
            return False
        return now - before[1] >= self.stale_s


class Claim:
    """One claim, held. As a context it refreshes itself in a thread and is released at the end.

    Raises:
        FileExistsError: another process was first.
    """

    def __init__(self, folder: Path, name: str, number: int, beat_s: float = BEAT_S, stale_s: float = STALE_S) -> None:
        import psutil

        self.folder, self.name, self.number = folder, name, number
        self.beat_s, self.stale_s = beat_s, stale_s
        self.path, self.successor = folder / f"{name}.{number}", folder / f"{name}.{number + 1}"
        self.owner = {
            "host": socket.gethostname(),
            "machine": _machine(),
            "pid": os.getpid(),
            "started": psutil.Process().create_time(),
            "token": uuid.uuid4().hex,
        }
        self._beats = 0
        self._beaten = time.monotonic()
        self._lost: str | None = None
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._keep_beating, name=f"claim {name}", daemon=True)
        with os.fdopen(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644), "wb") as file:
            file.write(self._content())

    def __enter__(self) -> Claim:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._done.set()
        self._thread.join()
        self.release()

    def check(self) -> None:
        """Call it before anything is written.

        Raises:
            ClaimLost: the work is another process's now, or was withdrawn.
        """
        if time.monotonic() - self._beaten > FRESH_S:
            self.beat()
        if self._lost is None and time.monotonic() - self._beaten > self.stale_s:
            self._lost = f"it could not be refreshed for {self.stale_s:g} s"
        if self._lost is not None:
            raise ClaimLost(f"{self.name}: the claim on it is lost: {self._lost}")

    def beat(self) -> None:
        """Refreshes the claim, unless it is lost. A file system that fails for a while is told apart by time."""
        with self._lock:
            now = time.monotonic()
            try:
                # Without creating: a withdrawn claim must not come back. And what another process has put in its
                # place must not be written over.
                with self.path.open("r+b") as file:
                    if _owner_in(file.read()).get("token") != self.owner["token"]:
                        self._lost = "it was withdrawn"
                        return
                    self._beats += 1
                    file.seek(0)
                    file.write(self._content())
            except FileNotFoundError:
                self._lost = "it was withdrawn"
                return
            except OSError:
                return
            if self.successor.exists():
                self._lost = f"{self.successor.name} has taken over, as this process stood still"
                return
            self._beaten = now

    def release(self) -> None:
        """Removes this claim and those it succeeded; a lost one is left to its successor."""
        self.beat()
        if self._lost is None:
            for number in range(1, self.number + 1):
                (self.folder / f"{self.name}.{number}").unlink(missing_ok=True)

    def _keep_beating(self) -> None:
        while not self._done.wait(self.beat_s):
            self.beat()

    def _content(self) -> bytes:
        # The same length each time, so that rewriting it leaves nothing of the old content behind.
        return (json.dumps({**self.owner, "beat": f"{self._beats:012d}"}) + "\n").encode()


def _content_of(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _owner_in(content: bytes | None) -> dict[str, Any]:
    """Who a claim's content names; empty where there is none, or it is torn or not written yet."""
    try:
        owner = json.loads(content or b"")
    except ValueError:
        return {}
    return owner if isinstance(owner, dict) and {"host", "machine", "pid", "started"} <= owner.keys() else {}


def _machine() -> str:
    """Where a process id means the same process: containers share a host's name, but not its process ids."""
    parts = [socket.gethostname()]
    try:
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    except OSError:  # not on Linux, or /proc is closed: the name has to do
        pass
    return " ".join(parts)


def _alive(pid: int, started: float) -> bool:
    import psutil

    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and abs(process.create_time() - started) < _SAME_START_S
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:  # it is there, and somebody else's
        return True
