"""The recipe of `python -m data_builders`: its sections, each explained where it is used."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from data_builders.dialogue.settings import Dialogue
from data_builders.preferences import Preferences
from data_builders.problems import Source
from data_builders.quality import Quality
from data_builders.replay import Replay
from data_builders.scripted import Conversations
from data_builders.written import Written
from probe.errors import RecipeError
from probe.recipe import Count, load_recipe, section


@section
class Evaluation:
    """A held-out set written beside the data. The starter source makes its own; the others need `path`."""

    accuracy_n: int = 0
    path: str | None = None


@section
class Output:
    path: str
    shard_size: Count = 500  # problems


@section
class DataRecipe:
    """A recipe of `python -m data_builders`."""

    source: Source
    output: Output
    conversations: Conversations = dataclasses.field(default_factory=Conversations)
    dialogue: Dialogue | None = None
    """Two models talk, in place of the scripted conversations."""
    written: Written | None = None
    """Written conversations beside those of the source."""
    quality: Quality = dataclasses.field(default_factory=Quality)
    replay: Replay = dataclasses.field(default_factory=Replay)
    preferences: Preferences | None = None
    """Also pairs of replies for train/dpo.py; `{}` takes both sides from the conversations."""
    eval: Evaluation = dataclasses.field(default_factory=Evaluation)
    seed: int = 0

    @property
    def per_problem(self) -> float:
        """Conversations that a problem gives on average, without replay."""
        return self.conversations.per_problem if self.dialogue is None else self.dialogue.per_problem

    @property
    def chosen(self) -> Written | None:
        """Which of the written conversations are in the data."""
        source = self.source
        return (
            Written(n=source.n, kinds=source.kinds, subjects=source.subjects)
            if source.kind == "written"
            else self.written
        )

    def check(self) -> None:
        """Raises RecipeError where the conversations asked for cannot be made."""
        if self.source.kind == "written" and (self.written or self.dialogue or self.replay.fraction):
            raise RecipeError(
                "source.kind: `written` has no problems, wanted no `written`, `dialogue` or `replay.fraction` beside it"
            )
        self.conversations.check()
        self.replay.check()
        if self.preferences is not None:
            self.preferences.check()
        if self.dialogue is not None:
            if self.conversations != Conversations():
                raise RecipeError(
                    "conversations: these are the scripted ones; wanted either this section or `dialogue`"
                )
            self.dialogue.check()


def load_data_recipe(path: Path, overrides: Sequence[str] = ()) -> DataRecipe:
    """The recipe at `path`, with overrides such as ["--source.n", "100"]. Raises RecipeError."""
    return load_recipe(DataRecipe, path, overrides)
