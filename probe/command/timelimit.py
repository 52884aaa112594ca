"""Calls that may never end run in separate processes, which are killed if a call takes too long.

A thread cannot be stopped, and an alarm signal reaches the main thread alone and can be swallowed on its way. A
process can always be killed; the others go on, and a new one takes its place. The processes are forked from a server that
holds nothing (where the system has no such server, started anew), so they share no thread, lock or device with this one,
and import no more than what they are asked to run; a script that uses them is re-imported there, so its work stands under
`if __name__ == "__main__"`.
"""

from __future__ import annotations

import atexit
import os
import resource
import signal
import sysconfig
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TIMEOUT = "timeout"
_LOOK_EVERY_S = 1.0
# Longer than a pool takes to stop a call itself: only a worker whose parent is gone ever gets there.
_ORPHANED_AFTER_S = 10.0
_PREPARED_WITHIN_S = 60.0
_DETAIL = 120
_NOT_OF_THE_USER = (
    *(str(Path(__file__).parents[2] / package) for package in ("probe", "data_builders", "train")),
    *(sysconfig.get_paths()[name] for name in ("stdlib", "purelib")),
    "<",
)


@dataclass(frozen=True)
class Done:
    """The result of a call: its value, or `failure`: "timeout", "crashed: ..." or "error: ..."."""

    value: Any = None
    failure: str = ""


class Pending:
    """A call that is running. `wait` returns its result."""

    def __init__(self, workers: Workers, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._workers, self._function, self._args = workers, function, args
        self._pool, self._future = workers._begin(function, args)

    def wait(self) -> Done:
        from pebble import ProcessExpired

        for last in (False, True):
            try:
                value, failure = self._taken()
                return Done(value, failure)
            except TimeoutError:
                return Done(failure=TIMEOUT)
            except ProcessExpired as error:
                return Done(failure=f"crashed: exit code {error.exitcode}")
            except BrokenProcessPool as error:  # a worker died between two calls, which may be no fault of this one
                if last:
                    return Done(failure=f"crashed: {error}")
                self._pool, self._future = self._workers._begin(self._function, self._args)
            except Exception as error:  # noqa: BLE001 - such as arguments that cannot be sent to a process
                return Done(failure=described(error))
        raise AssertionError("the second turn returns")

    def _taken(self) -> tuple[Any, str]:
        while True:
            try:
                return self._future.result(timeout=_LOOK_EVERY_S)
            except TimeoutError:
                if self._future.done():
                    raise
                if not self._pool.active:  # it broke while this call was handed in, and will never answer
                    raise BrokenProcessPool("no worker could be started") from None


class Workers:
    """`number` processes, started with the first call and kept warm until `close`, or the end of this process.

    Args:
        timeout_s: the longest that one call may take, counted from where a worker begins with it.
        prepare: called in each new worker before its first call, such as for slow imports; it has a minute.
    """

    def __init__(self, number: int, timeout_s: float, prepare: Callable[[], None] | None = None) -> None:
        self._number = number
        self._timeout_s = timeout_s
        self._prepare = prepare
        self._lock = threading.Lock()
        self._pool: Any = None

    def start(self, function: Callable[..., Any], *args: Any) -> Pending:
        """Start a call without waiting for it. Function, arguments and value are sent between processes."""
        return Pending(self, function, args)

    def close(self) -> None:
        """End the processes and the running calls. A later call starts new processes."""
        with self._lock:
            pool, self._pool = self._pool, None
        atexit.unregister(self.close)
        if pool is not None:
            pool.stop()
            pool.join()

    def _begin(self, function: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, Future[tuple[Any, str]]]:
        with self._lock:
            if self._pool is None or not self._pool.active:
                self._pool = self._new_pool(broken=self._pool)
            call = (function, args, self._timeout_s + _ORPHANED_AFTER_S)
            return self._pool, self._pool.schedule(_call, args=call, timeout=self._timeout_s)

    def _new_pool(self, broken: Any) -> Any:
        import multiprocessing

        from pebble import ProcessPool

        if broken is None:
            atexit.register(self.close)
        else:
            broken.join()  # ends what is left of it
        clean = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
        context: Any = multiprocessing.get_context(clean)
        return ProcessPool(self._number, initializer=_begin_worker, initargs=[self._prepare], context=context)


def _begin_worker(prepare: Callable[[], None] | None) -> None:
    os.setsid()  # SIGTERM to the whole process group is for those who train: a step that is to be finished needs its rewards
    _alarm(_PREPARED_WITHIN_S)
    if prepare is not None:
        prepare()
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
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_NOT_OF_THE_USER)
    ]
    at = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    text = " ".join(f"{type(error).__name__}{at}: {error}".split())
    return "error: " + (text if len(text) <= _DETAIL else text[: _DETAIL - 3] + "...")


def _call(function: Callable[..., Any], args: tuple[Any, ...], alarm_s: float) -> tuple[Any, str]:
    """Run a call in the worker. An exception is returned as text, because not every exception can be pickled."""
    _alarm(alarm_s)
    try:
        return function(*args), ""
    except BaseException as error:  # noqa: BLE001 - sys.exit() too is the call's own failure
        return None, described(error)
    finally:
        _alarm(0)
