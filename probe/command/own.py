"""What a recipe names as MODULE:NAME: classes and functions of one's own."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nextturn.probe.command.errors import BadInput, DataError, NextturnError
from nextturn.probe.command.files import sha256_file
from nextturn.probe.command.recipe import load_named
from nextturn.probe.command.timelimit import described


def load_own(name: str, key: str, expected: str) -> Any:
    """Return what MODULE:NAME names.

    Raises:
        DataError: It cannot be imported. The message names the key, and says what is expected.
    """
    try:
        return load_named(name)
    except (ImportError, AttributeError) as error:
        place = "of a module that Python can import, such as a file in this folder"
        raise DataError(f"{key}: {name} cannot be imported ({error}); expected {expected} {place}") from None


def file_of(name: str) -> dict[str, str]:
    """Return the file of MODULE:NAME, which is loaded, and its hash."""
    file = str(sys.modules[name.partition(":")[0]].__file__)
    return {os.path.relpath(file): sha256_file(Path(file))}


@contextmanager
def own_code(what: str) -> Iterator[None]:
    """Run code of the user's. What it raises becomes one line with `what`, the exception and its place in the user's file.

    Raises:
        BadInput: The code failed.
        NextturnError: The code raised it.
    """
    try:
        yield
    except NextturnError:
        raise
    except Exception as error:
        raise BadInput(f"{what} failed: {described(error).removeprefix('error: ')}") from error


class Own:
    """An object of a class that a recipe names. Its mistakes are errors that name the key.

    Args:
        name: MODULE:CLASS, of a module that Python can import or a file in the working folder.
        where: The key, for messages.
        method: Takes a list, and returns a list with one value for each.
        options: Arguments of the class.

    Raises:
        BadInput: The class cannot be loaded, or has no such method.
    """

    def __init__(self, name: str, where: str, method: str, options: Mapping[str, Any]) -> None:
        self.name, self.where, self.method = name, where, method
        try:
            self.made: Any = load_named(name)(**options)
            inspect.signature(getattr(self.made, method)).bind(())
        except Exception as error:
            expected = f"MODULE:CLASS, found in the working folder, that has `{method}` with one argument"
            raise BadInput(f"{where}: {name} cannot be used ({described(error)}); expected {expected}") from error

    def call(self, given: Sequence[Any], expected: str, fits: Callable[[Any], bool]) -> list[Any]:
        """Return what the method returns for a list; nothing is called for an empty one.

        Args:
            expected: What a value is, for the message.
            fits: Whether a value is that.

        Raises:
            BadInput: The method fails, or returns something else than one value for each.
            NextturnError: The method raises it.
        """
        with own_code(f"{self.where}: {self.name}.{self.method}"):
            made = getattr(self.made, self.method)(given) if given else []
        if not (isinstance(made, list | tuple) and len(made) == len(given) and all(map(fits, made))):
            expected = f"a list of {len(given)} {expected}"
            raise BadInput(f"{self.where}: {self.name}.{self.method} returned {repr(made)[:200]}; expected {expected}")
        return list(made)

    def close(self) -> None:
        """Call the `close` of the class, if it has one."""
        getattr(self.made, "close", lambda: None)()
