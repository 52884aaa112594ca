"""Calls that may never end run in separate processes, which are killed if a call takes too long.

A thread cannot be stopped, and an alarm signal reaches the main thread alone and can be swallowed on its way. A process
can always be killed; the others go on, and a new one takes its place. A process is a new Python: it shares no thread, lock
or device with this one, and imports no more than what it is asked to run, not the script that started this one.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import sysconfig
import traceback
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

TIMEOUT, NOT_STARTED = "timeout", "not_started"
# Longer than a call takes to be stopped: only a process whose parent is gone ever gets there.
_ORPHANED_AFTER_S = 10.0
_PREPARED_WITHIN_S = 300.0  # imports take seconds; a busy machine or a slow disk has taken more than a minute
_DETAIL = 120
_OURS = (str(Path(__file__).parents[2] / package) for package in ("probe", "data_builders", "train"))
_NOT_OF_THE_USER = (*_OURS, *(sysconfig.get_paths()[name] for name in ("stdlib", "purelib")), "<")


@dataclass(frozen=True)
class Done:
    """The result of a call: its value, or `failure`: "timeout", "crashed: ...", "error: ..." or "not_started: ..."."""

    value: Any = None
    failure: str = ""


class Workers:
    """At most `number` processes that start with the first calls and are kept until `close` or the end of this process.

    Args:
        timeout_s: The longest that one call may take; None for calls that end their process themselves.
        prepare: Called in each new process before its first call, such as for slow imports; it has five minutes.
    """

    def __init__(self, number: int, timeout_s: float | None, prepare: Callable[[], None]) -> None:
        self._timeout_s, self._prepare = timeout_s, prepare
        self._threads = ThreadPoolExecutor(number)
        self._idle, self._processes = list[_Process](), set[_Process]()

    def start(self, function: Callable[..., Any], *args: Any) -> Future[Done]:
        """Start a call without waiting for it. Function, arguments and value are sent between processes."""
        return self._threads.submit(self._call, function, args)

    def _call(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Done:
        process = self._idle.pop() if self._idle else None
        if process is None or not process.runs:  # it was killed meanwhile
            process = _Process(self._prepare)
        self._processes.add(process)
        done = process.call(self._timeout_s, function, args) if process.runs else Done(failure=process.failure)
        (self._idle.append if process.runs else self._processes.remove)(process)
        return done

    def close(self) -> None:
        """End the processes and the running calls."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in list(self._processes):
            process.end()


class _Process:
    failure = f"{NOT_STARTED}: it was killed"

    def __init__(self, prepare: Callable[[], None]) -> None:
        self._pipe, theirs = multiprocessing.Pipe()
        code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import serve; serve({theirs.fileno()})"
        # SIGTERM to the whole process group is for those who train: a step that is to be finished needs its rewards.
        options: dict[str, Any] = dict(pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True)
        with theirs:
            self._process, self._owner = subprocess.Popen([sys.executable, "-c", code], **options), os.getpid()
        atexit.register(self.end)
        if failure := self.call(_PREPARED_WITHIN_S, prepare, ()).failure:
            self.failure = f"{NOT_STARTED}: {failure}"
            self.end()

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def call(self, limit_s: float | None, function: Callable[..., Any], args: tuple[Any, ...]) -> Done:
        """Call a function; a call that reaches the limit ends the process."""
        try:
            self._pipe.send((limit_s, function, args))
            if self._pipe.poll(limit_s):
                return Done(*self._pipe.recv())
        except (EOFError, OSError):
            return Done(failure=f"crashed: exit code {self._process.wait()}")
        except Exception as error:  # noqa: BLE001 - such as arguments that cannot be sent to a process
            return Done(failure=described(error))
        self.end()
        return Done(failure=TIMEOUT)

    def end(self) -> None:
        atexit.unregister(self.end)
        if self._owner == os.getpid():  # not in a fork
            self._process.kill()
            self._process.wait()


def serve(handle: int) -> None:
    """Make the calls that come through a pipe, in a process of `Workers`, until the pipe is closed."""
    pipe = Connection(handle)
    while True:
        try:
            limit_s, function, args = pipe.recv()
        except EOFError:
            return
        try:
            _alarm(limit_s + _ORPHANED_AFTER_S if limit_s else 0)
            pipe.send((function(*args), ""))
        except BaseException as error:  # noqa: BLE001 - sys.exit() too is the call's own failure
            pipe.send((None, described(error)))
        finally:
            _alarm(0)


def ends_within(seconds: float, more_bytes: int, function: Callable[[], Any]) -> bool:
    """Return True if a call ends within so many CPU seconds and with so many more bytes of memory.

    It is made in a fork of this process, for functions that cannot be sent to a worker and take milliseconds. What it raises
    counts as an end.
    """
    child = os.fork()
    if child == 0:
        code = 0
        try:
            _alarm(_PREPARED_WITHIN_S)
            signal.setitimer(signal.ITIMER_PROF, seconds)
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + more_bytes, used + more_bytes))
            function()
        except MemoryError:
            code = 1
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0


def _alarm(seconds: float) -> None:
    """End this process after so many seconds, whatever it is doing; 0 for never."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)


def described(error: BaseException) -> str:
    """Return an exception as one line of bounded length, with its place in the code of the user."""
    calls = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in calls if not frame.filename.startswith(_NOT_OF_THE_USER)]
    at = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    text = " ".join(f"{type(error).__name__}{at}: {error}".split())
    return "error: " + (text if len(text) <= _DETAIL else text[: _DETAIL - 3] + "...")
