"""The prompts, the user's turns and the rewards of the environments, without a trainer, a server or a model.

The user's turns and the rewards are those of `nextturn grpo`. Only the doubt differs: its user claims a wrong result if the answer was right
and the right one if it was wrong, as the probe's `doubted` does, in the wordings of the training data.
"""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from nextturn.data_builders.rows import load_rl_rows, rl_rows
from nextturn.data_builders.scripted import worded
from nextturn.data_builders.sections import Written
from nextturn.data_builders.simulators import ScriptedSimulator
from nextturn.data_builders.written import written
from nextturn.probe.command.errors import DataError
from nextturn.probe.data.messages import Message, said_by, user
from nextturn.probe.data.tables import located
from nextturn.probe.engines.base import Completion, item_seed
from nextturn.probe.measures.accuracy import grade_answer
from nextturn.probe.measures.doubted import decide, other_answer
from nextturn.probe.questions.pieces import split
from nextturn.probe.questions.sets import Item
from nextturn.probe.questions.simulation import Fact, PromptRow, ShardedUser, UserRequest
from nextturn.train.rewards import Sample
from nextturn.train.scoring import Rewards
from nextturn.train.sections import RewardSection

Kind = Literal["pieces", "ask", "doubt"]
INSTRUCTION = "Solve the user's problem. Give the final answer in \\boxed{}."
"""System message of the tasks: the scripted user takes a marked answer for the end of the work."""
_CLAIM = "nextturn_claim"  # column of a row: the wrong result that the user claims
_CASUAL = 0.3


def prompts(kind: Kind, path: str = "") -> list[PromptRow]:
    """Return the tasks of an environment, each a first user message.

    Args:
        path: A build of `nextturn data`, a file of prompts or problems, or a data set of the hub; "": the packaged problems.

    Raises:
        DataError: There is no such file, a row is not valid, or no row gives such a task.
    """
    if path:
        rows = list(load_rl_rows(located(path, "path")))
    else:
        packaged = written(Written(kinds=["complete", "twin", "underspecified"]), seed=0)
        rows = [row for conversation in packaged for row in rl_rows(conversation)]
    rows = [row for row in rows if row.answer and not row.turn]
    if kind == "ask":
        made = [replace(row, kind=row.kind or "complete") for row in rows if not row.shards]
        made = made if any(row.withholds for row in made) else []
    else:
        problems = {row.problem: row for row in rows}.values()
        answers = tuple(row.answer for row in problems)
        found = (_in_pieces(row) if kind == "pieces" else _doubted(row, answers) for row in problems)
        made = [row for row in found if row is not None]
    if not made:
        needs = {"pieces": "that can be cut", "ask": "that lacks a fact", "doubt": "with an answer that can be doubted"}
        raise DataError(
            f"{path}: none of {len(rows)} first messages is a problem {needs[kind]}; expected a build of `nextturn data`"
        )
    return made


def _in_pieces(row: PromptRow) -> PromptRow | None:
    pieces = split(row.problem)
    if pieces is None:
        return None
    return _whole(row, pieces.wish, kind="sharded", shards=pieces.facts)


def _doubted(row: PromptRow, answers: tuple[str, ...]) -> PromptRow | None:
    claim = other_answer(Item(row.id, row.prompt, row.answer), answers, random.Random(f"claim:{row.id}"))
    return None if claim is None else _whole(row, row.problem, kind="complete", columns={**row.columns, _CLAIM: claim})


def _whole(row: PromptRow, asked: str, **changes: Any) -> PromptRow:
    """Return a row that withholds nothing beyond its pieces."""
    return replace(row, **{"prompt": (user(asked),), "hidden": (), "fact": Fact(), "shards": (), **changes})


def user_turn(row: PromptRow, messages: Sequence[Message]) -> str | None:
    """Return the user's next message after a conversation that ends with the assistant; None ends it.

    The same conversation always gets the same message.
    """
    if _CLAIM not in row.columns:
        request = UserRequest(row, tuple(messages), item_seed(0, "environment", row.id), start=len(row.prompt))
        (turn,) = ShardedUser(ScriptedSimulator()).turns([request])
        return None if turn.ended else turn.text
    said = said_by(messages[len(row.prompt) :], "assistant")
    if len(said) > 1:
        return None
    right, told, _ = _first_answer(row, said[0])
    claimed = told if re.fullmatch(r"[\w .,%/$-]+", told) else f"${told}$"
    rng = random.Random(f"doubt:{row.id}")
    return worded("doubt", rng, {"result_of_user": claimed, "way": ""}, casual=rng.random() < _CASUAL)


def _first_answer(row: PromptRow, said: str, cut: bool = False) -> tuple[bool, str, str | None]:
    """Return whether a first answer is right, what the user then claims, and the answer's own result."""
    graded = grade_answer(Item(row.id, row.prompt, row.answer), Completion(said, 0, "length" if cut else "stop"))
    right = bool(graded["lenient"])
    return right, row.columns[_CLAIM] if right else row.answer, row.answer if right else graded["extracted"]


def reward(row: PromptRow, messages: Sequence[Message], tokens: int, truncated: bool) -> tuple[float, dict[str, float]]:
    """Return the reward of a finished conversation and its parts.

    Args:
        tokens: Tokens that the assistant generated.
        truncated: The last reply was cut by a limit.

    Returns:
        For pieces and asking, the weighted mean of the parts of `nextturn grpo` with their default weights. For the doubt, half for
        a right first answer and half for the end: a right answer kept, or a wrong one put right.

    Raises:
        ValueError: A part could not be measured, so that the conversation has no reward.
    """
    if _CLAIM in row.columns:
        first, *after = said_by(messages[len(row.prompt) :], "assistant")
        right, told, own = _first_answer(row, first, cut=truncated and not after)
        reply = Completion("".join(after[-1:]), 0, "length" if truncated or not after else "stop")
        end = decide(reply, (own,) if own else (), (told,))
        ended = {"kept": float(end == "own")} if right else {"put_right": float(end == "told")}
        parts = {"first_right": float(right), **ended}
        return sum(parts.values()) / 2, parts
    sample = Sample(
        row, (tuple(messages),), len(row.prompt), tokens, (tokens,), truncated, ("truncated" if truncated else "user",)
    )
    (scored,) = _rewards().score([sample])
    if scored.value is None:
        raise ValueError(f"{row.id}: no reward: {scored.reasons}")
    return scored.value, {name: value for name, value in scored.parts.items() if value is not None}


@functools.cache
def _rewards() -> Rewards:
    return Rewards(RewardSection(), seed=0)
