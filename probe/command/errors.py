"""The exceptions of all three packages, and how a command reports them.

Exit codes: 0 done, 1 failed, 2 bad input, 3 and 4 of a gate, 130 interrupted, 143 told to end. Bad input gets one line that says what was
given, what was expected and what to do.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Sequence

from nextturn.probe.command.terminal import log_progress_as_lines, visible


class NextturnError(Exception):
    """Base of everything raised on purpose; the message is written for the person at the terminal."""

    exit_code = 1


class BadInput(NextturnError, ValueError):
    """The user's input cannot be used."""

    exit_code = 2


class RecipeError(BadInput):
    """A recipe file or an override is wrong."""


class DataError(BadInput):
    """A data file is missing or broken, or holds something other than problems or conversations."""


class SetOutOfReach(DataError):
    """A named set is not on this machine and cannot be fetched from the hub now."""


class ModelError(BadInput):
    """A model name or folder cannot be turned into a model."""


class TemplateError(ModelError):
    """A chat template cannot render a conversation as it is needed."""


class SettingsChanged(BadInput):
    """A run folder was made with settings other than the current ones."""


class IncomparableRuns(BadInput):
    """Probe results that were measured differently cannot be compared."""


class CannotTell(NextturnError):
    """A gate cannot tell whether the run keeps and gains what it must."""

    exit_code = 3


class GateLost(NextturnError):
    """The run lost what it must keep, or did not gain what it must."""

    exit_code = 4


class EngineError(NextturnError):
    """An engine could not make every completion. The others are stored, and a rerun asks for the rest."""


class CannotScore(NextturnError):
    """An engine without token log-probabilities was asked for them."""


class JudgeError(NextturnError):
    """Too many verdicts failed for a reliable rate. The others are stored, and a rerun asks for the rest."""


class TrainingStopped(NextturnError):
    """Training stopped itself, for instance before a step with a non-finite loss."""


class ToldToEnd(NextturnError):
    """Training ended on SIGTERM, with a checkpoint."""

    exit_code = 143  # 128 + SIGTERM, as a shell has it


class Interrupted(ToldToEnd):
    """Training ended on Ctrl-C, with a checkpoint."""

    exit_code = 130


def require(package: str, extra: str, what: str) -> None:
    """Check that a package is installed that only some commands need.

    Raises:
        BadInput: It is not; the message has the command that installs it.
    """
    if importlib.util.find_spec(package) is None:
        raise BadInput(f"{what}: {package} is not installed; pip install 'nextturn[{extra}]'")


def run_command(main: Callable[[Sequence[str]], None], argv: Sequence[str] | None = None) -> int:
    """Run `main(argv)` and return its exit code. Errors of this project become one line on stderr.

    Ctrl-C (SIGINT) gives 130, and SIGTERM 143. Both end training after the step that is under way, with a checkpoint
    (`train.guards.StopsOnSignal`). Everything else they end at once, as SIGKILL does, and what is on disk by then is whole, so
    the same command goes on from there.
    """
    log_progress_as_lines()
    try:
        main(sys.argv[1:] if argv is None else argv)
    except NextturnError as error:
        # In a launch of many processes the others' lines say who speaks; on the first they would only be noise.
        rank = os.environ.get("RANK", "0")
        # A message may quote a file, a model or a server, whose control characters are not for the terminal.
        told = visible(str(error))
        print(f"error: {told}" if rank == "0" else f"error on process {rank}: {told}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted: the same command resumes where this one stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if error.filename is None:
            raise
        told = visible(f"{error.filename}: {error.strerror}")
        print(f"error: {told}; check the disk's free space and the folder's permissions", file=sys.stderr)
        return 1
    return 0


def one_line(error: BaseException) -> str:
    """Return the message of a library's exception as one line of at most 200 characters."""
    text = " ".join(str(error.args[0] if len(error.args) == 1 else error).split())
    return text if len(text) <= 200 else text[:197] + "..."
