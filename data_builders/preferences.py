"""Preference pairs: a conversation so far and two replies, one of which is preferred.

The pairs are minimal. If a fact is missing, asking for it is preferred to a guess; if the same problem is complete, the
right answer is preferred to a question. The preferred reply comes from the data. The other reply comes from a model,
ideally the one that will be trained. Without a model, or if the model never gives such a reply, it comes from another
conversation about the same problem: the solution that uses the withheld fact, or the question for a fact that is not
missing. (A model that never asks would otherwise leave pairs of one kind only, which teach to ask always.)
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from nextturn.data_builders.dialogue.replies import Parsed, read_assistant
from nextturn.data_builders.rows import load_rl_rows, load_sft_rows
from nextturn.data_builders.sections import Preferences
from nextturn.probe.command.files import write_jsonl
from nextturn.probe.data.messages import Message, assistant
from nextturn.probe.engines.ask import Ask, Reply, ask, open_model
from nextturn.probe.engines.base import item_seed
from nextturn.probe.text.equality import same_answer
from nextturn.probe.text.grading import boxed, outcome, strict_answer

VIEW = "preference"


@dataclass(frozen=True)
class PairDraft:
    """A pair whose other reply may still come from a model.

    Attributes:
        kind: "ask" if a fact is missing, else "answer".
        other: The reply from the conversations that is not preferred; "" if they have none.
    """

    id: str
    kind: str
    prompt: tuple[Message, ...]
    chosen: str
    other: str


def draft_pairs(out: Path) -> list[PairDraft]:
    """Return a draft, in order, for each conversation of a build whose first reply asks or answers as it should.

    All parts of the build must be written.
    """
    sft, prompts = (sorted((out / view).glob("part-*.jsonl")) for view in ("sft", "rl"))
    conversations = {row["id"]: row["messages"] for path in sft for row in load_sft_rows(path)}
    drafts: list[tuple[str, PairDraft]] = []
    for row in (row for path in prompts for row in load_rl_rows(path) if not row.turn):
        messages = conversations[row.id.rpartition("-")[0]]
        reply = messages[1]["content"]
        if row.fact.name and outcome(reply, truncated=False) == "asked":
            solutions = (message["content"] for message in messages[3::2] if boxed(message["content"]))
            drafts.append((row.problem, PairDraft(row.id, "ask", row.prompt, reply, next(solutions, ""))))
        elif not row.fact.name and same_answer(strict_answer(reply), row.answer):
            drafts.append((row.problem, PairDraft(row.id, "answer", row.prompt, reply, "")))
    # The first preferred reply of the opposite kind about the same problem; without one, the solution after the reveal.
    first = {(problem, draft.kind): draft.chosen for problem, draft in reversed(drafts)}
    opposite = {"ask": "answer", "answer": "ask"}
    return [replace(draft, other=first.get((problem, opposite[draft.kind]), draft.other)) for problem, draft in drafts]


def unwanted(draft: PairDraft, reply: Reply) -> Parsed:
    """Return a model's reply, marked as unusable if it does what is preferred."""
    parsed = read_assistant(reply)
    reply_outcome = outcome(parsed.text, reply.cut)
    wrong = "answered" if draft.kind == "ask" else "asked"
    return replace(parsed, unusable=parsed.unusable or ("" if reply_outcome == wrong else reply_outcome))


def write_pairs(section: Preferences, out: Path, work: Path, seed: int) -> dict[str, int]:
    """Write the pairs of a build.

    Args:
        work: Stores the model's replies, so that a build that resumes asks for none twice.

    Returns:
        Counts for the manifest: pairs by kind, pairs with the model's reply, conversations without another reply, and
        conversations for which the model could not be asked.

    Raises:
        EngineError: A server cannot be reached, or returns nothing but failures.
    """
    drafts = {draft.id: draft for draft in draft_pairs(out)}

    replies: dict[str, str | None] = {}  # not preferred; "" if the model gives none, None if it could not be asked
    if section.model is not None:
        asks = [
            Ask(draft.prompt, partial(unwanted, draft), partial(item_seed, seed, name, VIEW))
            for name, draft in drafts.items()
        ]
        with open_model("replay", section.model, seed, "preferences.model", work) as model:
            answers = ask(model, asks, section.tries)
        for name, answer in zip(drafts, answers, strict=True):
            none = "" if len(answer.unusable) >= section.tries else None
            replies[name] = answer.parsed.text if answer.parsed is not None else none
    rows, counts = [], Counter[str]()
    for name, draft in drafts.items():
        reply = replies.get(name, "")
        if reply is None:
            counts[f"{draft.kind}_failed"] += 1
            continue
        rejected = reply.strip() or draft.other.strip()
        if not rejected or rejected == draft.chosen.strip():
            counts[f"{draft.kind}_without_other"] += 1
            continue
        counts[draft.kind] += 1
        if section.model is not None:
            counts[f"{draft.kind}_other_of_model"] += bool(reply.strip())
        sides = {"chosen": [assistant(draft.chosen)], "rejected": [assistant(rejected)]}
        rows.append({"id": name, "kind": draft.kind, "prompt": list(draft.prompt), **sides})
    write_jsonl(out / VIEW / "part-00000.jsonl", rows)
    return dict(sorted(counts.items()))
