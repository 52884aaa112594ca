"""The written conversations of the package (`written.jsonl`), written for this project about problems of their own.

There are eight kinds. *complete*: the problem has all facts and is answered at once. *underspecified*: one needed fact is
missing, and the assistant asks for it. *twin*: the same problem, complete and in other words. *wrong_start*: the user brings
an attempt; one attempt in four is right. *doubt*: the user doubts a right answer, and the assistant keeps it. *slip*: the
user finds the assistant's own mistake, which carries no loss (`loss: false`), and the assistant corrects it. *hint*: the user
wants only a hint. *chat*: no mathematics.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nextturn.data_builders.sections import Written
from nextturn.data_builders.simulators import intent_text, is_casual
from nextturn.data_builders.tasks import Conversation, Task
from nextturn.probe.command.errors import RecipeError
from nextturn.probe.command.files import read_jsonl
from nextturn.probe.data.messages import Message, check_messages, learned
from nextturn.probe.questions.simulation import Fact, PromptRow, Wish
from nextturn.probe.text.grading import boxed

FILE = Path(__file__).with_name("written.jsonl")
_NO_PROMPTS = ("hint", "chat")  # a reward for the answer would teach to give it away, or there is no answer


def written(selection: Written, seed: int) -> list[Conversation]:
    """Return the selected conversations in an order that the seed determines.

    Raises:
        RecipeError: The selection is empty, or has fewer than `n` conversations.
    """
    rows = {row["id"]: row for _, row in read_jsonl(FILE)}
    twins = {row["twin_of"]: row for row in rows.values()}
    groups: dict[str, list[Conversation]] = {}  # a twin stays next to the conversation whose problem it shares
    for row in rows.values():
        subjects, kinds = selection.subjects or [row["subject"]], selection.kinds or [row["kind"]]
        if row["subject"] in subjects and row["kind"] in kinds:
            groups.setdefault(row["twin_of"] or row["id"], []).append(_conversation(row, twins.get(row["id"], row)))
    order = list(groups)
    random.Random(f"written:{seed}").shuffle(order)
    conversations = [conversation for name in order for conversation in groups[name]]
    wanted = 1 if selection.n is None else selection.n
    if not 0 < wanted <= len(conversations):
        subjects = sorted({row["subject"] for row in rows.values()})
        raise RecipeError(
            f"written: {len(conversations)} conversations of these kinds and subjects, expected n from 1 to that number; "
            f"given {selection.n} (the subjects: {', '.join(subjects)})"
        )
    return conversations[: selection.n]


def only_talk(messages: Sequence[Message]) -> list[Message]:
    """Return the messages without loss on solutions, unless all assistant turns are solutions."""
    replies = [message for message in messages if message["role"] == "assistant" and learned(message)]
    solutions = [reply for reply in replies if boxed(reply["content"])]
    if len(solutions) == len(replies):
        return list(messages)
    return [{**message, "loss": False} if message in solutions else message for message in messages]


def _conversation(row: dict[str, Any], whole: dict[str, Any]) -> Conversation:
    """Return the conversation of a row. `whole` has the complete problem in its first message: the row, or its twin."""
    messages = check_messages(row["messages"], f"{FILE.name}: {row['id']}")
    # Where the assistant first boxes a result that it keeps; None in a chat.
    boxes = (at for at in range(1, len(messages), 2) if boxed(messages[at]["content"]) and learned(messages[at]))
    solved = next(boxes, None)
    task, fact = None, Fact()
    if row["kind"] not in _NO_PROMPTS and solved is not None:
        opening, question = messages[0]["content"], whole["messages"][0]["content"]
        if row["withheld"]:
            reveal = row.get("reveal") or messages[solved - 1]["content"]  # one text for what several messages reveal
            question = question if whole is not row else f"{opening}\n{reveal}"
            fact = Fact(opening, row["withheld"], messages[1]["content"], reveal, reveal, thing=row["withheld"])
        text = messages[solved]["content"]
        box = boxed(text)
        name = f"written-{row['twin_of'] or row['id']}"
        task = Task(name, question, box[1] if box else "", "written", steps=(), boxed_solution=text)
    problem = task.question if task and fact.short and whole is not row else ""
    return Conversation(
        f"written-{row['id']}", row["kind"], messages, "written", row["answer"] or "", solved - 1 if fact.short and solved else 0,
        task, fact, {"doubt": (False,), "slip": (True,)}.get(row["kind"], ()),
        row={"intent": _intent(row, fact, problem), **({"intent_first": True} if problem else {})},
    )  # fmt: skip


WISHES: Mapping[str, Wish] = {
    "wrong_start": "check", "doubt": "doubt", "slip": "correct", "hint": "hint", "chat": "help",
}  # fmt: skip
"""The wish of the user by the kind of conversation, where it is not the result."""


def _intent(row: dict[str, Any], fact: Fact, problem: str) -> str:
    """Return what the user of a row knows and wants, as a user model sees it.

    Args:
        problem: The problem in the words of the row's twin, so that a user model learns to state a problem and not to copy it;
            "" if the row has no twin.
    """
    known = PromptRow(row["id"], problem, fact=fact, wish=WISHES.get(row["kind"], "result"))
    texts = [message["content"] for message in row["messages"][::2]]
    text = intent_text(known, casual=2 * sum(map(is_casual, texts)) > len(texts))
    return f"{text} Your problem: {problem}" if problem else text
