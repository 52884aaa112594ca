"""The marker of a user model: an adapter or a model that was trained to write the user's turns (`data.loss_on: user`).

`user_model.json` is in the run directory, in every checkpoint and in what `nextturn export` makes of one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nextturn.probe.command.errors import BadInput, DataError
from nextturn.probe.command.files import read_json, write_json

USER_MODEL = "user_model.json"


@dataclass(frozen=True)
class UserModelInfo:
    """The base and the chat template of a user model.

    Attributes:
        base: Name of the model that training started from.
        template_sha256: `Chat.template_sha256` of the chat template that training rendered with.
        intents: Whether conversations began with the user's intent as their system message.
    """

    base: str
    template_sha256: str
    intents: bool


def mark_user_model(folder: Path, info: UserModelInfo) -> None:
    """Write the marker into a folder."""
    write_json(folder / USER_MODEL, vars(info))


def user_model_info(folder: Path) -> UserModelInfo | None:
    """Return what the marker in a run directory, a checkpoint or an exported model says, or None if there is no marker.

    Raises:
        DataError: The marker is damaged.
    """
    path = folder / USER_MODEL
    if not path.is_file():
        return None
    try:
        return UserModelInfo(**read_json(path))
    except TypeError:
        problem = "expected `base`, `template_sha256` and `intents`; copy the file of a checkpoint"
        raise DataError(f"{path}: {problem}") from None


def refuse_user_model(folder: Path, allowed: bool) -> None:
    """Refuse to measure a user model as a policy.

    Args:
        allowed: The recipe's `probe.user_model`.

    Raises:
        BadInput: The folder holds a user model, and that is not allowed.
    """
    if not allowed and user_model_info(folder) is not None:
        ways = "give its base or another model, or --probe.user_model true to measure it anyway"
        raise BadInput(f"{folder}: a user model writes the user's turns, and the probe measures policies; {ways}")
