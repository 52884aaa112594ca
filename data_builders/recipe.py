"""The recipe of `python -m data_builders`: its sections, each explained where it is used."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from data_builders.dialogue.settings import Dialogue
from data_builders.problems import Source
from data_builders.quality import Quality
from data_builders.replay import Replay
from data_builders.scripted import Conversations
from probe.errors import RecipeError
from probe.recipe import load_recipe, section


@section
class Evaluation:
    """Held-out sets written beside the data. The starter source makes its own; a file source needs `path`."""

    accuracy_n: int = 0
    clarify_n: int = 0
    path: str | None = None


@section
class Output:
    path: str
    shard_size: int = 500  # problems


@section
class DataRecipe:
    """A recipe of `python -m data_builders`."""

    source: Source
    output: Output
    conversations: Conversations = dataclasses.field(default_factory=Conversations)
    dialogue: Dialogue | None = None
    """Two models talk, in place of the scripted conversations."""
    quality: Quality = dataclasses.field(default_factory=Quality)
    replay: Replay = dataclasses.field(default_factory=Replay)
    eval: Evaluation = dataclasses.field(default_factory=Evaluation)
    seed: int = 0

    @property
    def per_problem(self) -> float:
        """Conversations that a problem gives on average, without replay."""
        return self.conversations.per_problem if self.dialogue is None else self.dialogue.per_problem

    def check(self) -> None:
        """Raises RecipeError where the conversations asked for cannot be made."""
        self.conversations.check()
        self.replay.check()
        self.quality.check()
        if self.dialogue is not None:
            if self.conversations != Conversations():
                raise RecipeError(
                    "conversations: these are the scripted ones; wanted either this section or `dialogue`"
                )
            self.dialogue.check()


def load_data_recipe(path: Path, overrides: Sequence[str] = ()) -> DataRecipe:
    """The recipe at `path`, with overrides such as ["--source.n", "100"]. Raises RecipeError."""
    return load_recipe(DataRecipe, path, overrides)
