"""Conversations that people wrote for this project about problems of their own (`written.jsonl`): they need nothing.

Eight kinds. *complete*: everything is given and answered at once. *underspecified*: one needed thing is not there, and the
assistant asks for exactly that; of *twin* the problem is the same, complete and in other words. *wrong_start*: an attempt,
one in four of them right. *doubt*: a right answer is doubted, and stays. *slip*: the assistant's own slip, which carries no
loss (`loss: false`), is found by the user and mended. *hint*: a hint alone is wished. *chat*: no mathematics.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nextturn.data_builders.recipe import Written
from nextturn.data_builders.tasks import Conversation, Gap, Task
from nextturn.probe.conversations import Message, check_messages, learned
from nextturn.probe.errors import RecipeError
from nextturn.probe.files import read_jsonl
from nextturn.probe.grading import boxed

FILE = Path(__file__).with_name("written.jsonl")
_OWN_WISH = ("hint", "chat")  # a reward for the answer would teach to give it away, or there is none


def written(chosen: Written, seed: int) -> list[Conversation]:
    """The conversations, in an order that follows from `seed`.

    Raises:
        RecipeError: none is left, or fewer than `n`.
    """
    rows = {row["id"]: row for _, row in read_jsonl(FILE)}
    groups: dict[str, list[Conversation]] = {}
    for row in rows.values():
        subjects, kinds = chosen.subjects or [row["subject"]], chosen.kinds or [row["kind"]]
        if row["subject"] in subjects and row["kind"] in kinds:
            twin = next((one for one in rows.values() if one["twin_of"] == row["id"]), row)
            groups.setdefault(row["twin_of"] or row["id"], []).append(_conversation(row, twin))
    order = list(groups)
    random.Random(f"written:{seed}").shuffle(order)
    found = [one for name in order for one in groups[name]]
    if not 0 < (1 if chosen.n is None else chosen.n) <= len(found):
        known = ", ".join(sorted({row["subject"] for row in rows.values()}))
        wanted = "some" if chosen.n is None else chosen.n
        raise RecipeError(
            f"written: {len(found)} conversations of these kinds and subjects, wanted {wanted} (the subjects: {known})"
        )
    return found[: chosen.n]


def _conversation(row: dict[str, Any], whole: dict[str, Any]) -> Conversation:
    """`whole` holds the complete problem in its first message: the row itself, or its twin."""
    messages = check_messages(row["messages"], f"{FILE.name}: {row['id']}")
    told, solved = _solved(messages)
    opening = messages[0]["content"]
    task, gap = None, None
    if row["kind"] not in _OWN_WISH and solved is not None:
        question = whole["messages"][0]["content"]
        if row["withheld"]:
            reveal = row.get("reveal") or messages[told]["content"]  # of what came in parts, one message for both
            question = question if whole is not row else f"{opening}\n{reveal}"
            gap = Gap(opening, row["withheld"], messages[1]["content"], reveal, reveal, "", thing=row["withheld"])
        text = messages[solved]["content"]
        found = boxed(text)
        name = f"written-{row['twin_of'] or row['id']}"
        task = Task(name, question, found[1] if found else "", "written", steps=(), boxed_solution=text)
    return Conversation(
        id=f"written-{row['id']}",
        kind=row["kind"],
        messages=messages,
        source="written",
        answer=row["answer"] or "",
        reveal_at=told if gap else 0,
        task=task,
        gap=gap,
        doubts={"doubt": (False,), "slip": (True,)}.get(row["kind"], ()),
    )


def _solved(messages: Sequence[Message]) -> tuple[int, int | None]:
    """Where the assistant first boxes a result that it stands by, and the user's message before; (0, None) of a chat."""
    for place in range(1, len(messages), 2):
        if boxed(messages[place]["content"]) and learned(messages[place]):
            return place - 1, place
    return 0, None
