"""What training reads: one row per conversation, with plain question-and-solution rows mixed in.

The plain rows (replay) keep a model's single-turn answers from being forgotten. They are attached to problems
by number, so that a shard always holds the same ones.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from data_builders.problems import Kind, Problems, Source
from data_builders.scripted import Conversation
from data_builders.tasks import Task
from probe.errors import DataError, RecipeError
from probe.files import read_jsonl
from probe.recipe import section
from probe.sets import check_messages


@section
class Replay:
    """`fraction` of all rows is replay, from `source` (the file at `path`, else generated or from the hub)."""

    fraction: float = 0.0
    source: Kind = "starter"
    path: str | None = None


class ReplayRows:
    """The replay rows that go with problem `i`; their count follows `fraction` on average.

    Args:
        per_problem: conversations that one problem gives on average.
    """

    def __init__(self, replay: Replay, per_problem: float, problems: int, seed: int) -> None:
        if not 0 <= replay.fraction < 1:
            raise RecipeError(f"replay.fraction: given {replay.fraction}, wanted 0 or more and less than 1")
        self._per_problem = per_problem * replay.fraction / (1 - replay.fraction)
        self._seed = seed
        self._problems: Problems | None = None
        if replay.fraction:
            n = problems if replay.source == "starter" else None
            # Another seed, so that generated replay problems are others than those of the conversations.
            self._problems = Problems(Source(kind=replay.source, path=replay.path, n=n), seed + 1, where="replay")

    def for_problem(self, index: int) -> list[Conversation]:
        if self._problems is None:
            return []
        rng = random.Random(f"replay:{self._seed}:{index}")
        count = int(self._per_problem + rng.random())
        first = index * math.ceil(self._per_problem)  # no replay problem twice before all had their turn
        return [_plain(self._problems[first + number]) for number in range(count)]

    def inputs(self) -> dict[str, str]:
        return self._problems.inputs() if self._problems else {}


def _plain(task: Task) -> Conversation:
    box = f"\\boxed{{{task.answer}}}"
    answer = task.boxed_solution or f"{task.solution}\nThe answer is {box}."
    return Conversation(
        id=f"{task.id}-replay",
        kind="replay",
        messages=({"role": "user", "content": task.question}, {"role": "assistant", "content": answer}),
        source=task.source,
        answer=task.answer,
    )


def sft_row(conversation: Conversation) -> dict[str, Any]:
    """A row of OUT/sft. `acts` names the wordings its turns were made of, for the card."""
    return {
        "id": conversation.id,
        "messages": list(conversation.messages),
        "kind": conversation.kind,
        "source": conversation.source,
        "answer": conversation.answer,
        "acts": list(conversation.wordings),
    }


def load_sft_rows(out: Path) -> Iterator[dict[str, Any]]:
    """All kept rows of a finished build, in order.

    Raises:
        DataError: no build there, an unfinished one, or a row that is no conversation (file:line).
    """
    if not (out / "manifest.json").is_file():
        state = "is not finished" if (out / "settings.json").is_file() else "is no data build"
        raise DataError(f"{out}: {state} (no manifest.json); build it with: python -m data_builders RECIPE --out {out}")
    for path in sorted((out / "sft").glob("part-*.jsonl")):
        yield from read_sft_rows(path)


def read_sft_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of one JSONL file, each with `messages` that end with the assistant; else DataError with file:line."""
    for number, row in read_jsonl(path):
        messages = check_messages(row.get("messages"), f"{path}:{number}")
        if messages[-1]["role"] != "assistant":
            raise DataError(f"{path}:{number}: the conversation ends with the user, wanted an assistant turn last")
        yield row
