"""The preference view: a conversation so far and two replies, of which one is to be preferred.

The pairs are minimal: where a given is withheld, asking for it stands over a guess; where the same problem is complete, its
right answer stands over asking. The side to prefer is the data's own. The other one is what a model really says, best the one
that will be trained; without a model, and where it never says one, it comes from the other conversations about the same
problem: the solution that has what is withheld, and the question that asks for what is there. (A model that never asks would
otherwise leave pairs of one kind alone, and those teach to ask always.)
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from nextturn.data_builders.dialogue.replies import Parsed, Reply, read_assistant
from nextturn.data_builders.dialogue.roles import RoleModel, ask_each
from nextturn.data_builders.recipe import Preferences
from nextturn.data_builders.rows import RlRow, load_rl_rows, read_sft_rows
from nextturn.probe.conversations import Message
from nextturn.probe.engines.base import item_seed
from nextturn.probe.files import write_jsonl
from nextturn.probe.grading import boxed, outcome, same_answer, strict_answer

VIEW = "preference"


@dataclass(frozen=True)
class Wanted:
    """A pair to be: the conversation so far and the reply to prefer.

    Attributes:
        kind: "ask" where something is missing, else "answer".
        other: the reply to leave, from the conversations; "" where they have none.
    """

    id: str
    kind: str
    prompt: tuple[Message, ...]
    chosen: str
    other: str


def wanted_pairs(out: Path) -> list[Wanted]:
    """One for each conversation of a build (its shards are all written) whose first reply is as it should be, in order."""
    sft, prompts = (sorted((out / view).glob("part-*.jsonl")) for view in ("sft", "rl"))
    said = {row["id"]: row["messages"] for path in sft for row in read_sft_rows(path)}
    found: list[tuple[RlRow, Wanted]] = []
    for row in (row for path in prompts for row in load_rl_rows(path) if not row.turn):
        messages = said[row.id.rpartition("-")[0]]
        reply = messages[1]["content"]
        if row.clause and outcome(reply, truncated=False) == "asked":
            later = (message["content"] for message in messages[3::2] if boxed(message["content"]))
            found.append((row, Wanted(row.id, "ask", row.prompt, reply, next(later, ""))))
        elif not row.clause and same_answer(strict_answer(reply), row.answer):
            found.append((row, Wanted(row.id, "answer", row.prompt, reply, "")))
    # What is said of the same problem where it is the other way round; for want of it, a solution has the one after the reveal.
    first = {(row.problem, pair.kind): pair.chosen for row, pair in reversed(found)}
    kinds = {"ask": "answer", "answer": "ask"}
    return [replace(pair, other=first.get((row.problem, kinds[pair.kind]), pair.other)) for row, pair in found]


def unwanted(pair: Wanted, reply: Reply) -> Parsed:
    """A model's reply, unusable where it does what is wanted anyway."""
    parsed = read_assistant(reply)
    does = outcome(parsed.text, reply.cut)
    wrong = "answered" if pair.kind == "ask" else "asked"
    return replace(parsed, unusable=parsed.unusable or ("" if does == wrong else does))


def write_pairs(section: Preferences, out: Path, work: Path, seed: int) -> dict[str, int]:
    """Writes the view and gives counts for the manifest: pairs by kind, how many of them have the model's reply as the one to
    leave, conversations that have no such reply, and those for which the model could not be asked.

    `work` keeps a model's replies, so that a build that was killed asks for none twice.

    Raises:
        EngineError: a server cannot be reached, or answers nothing but failures.
    """
    pairs = {pair.id: pair for pair in wanted_pairs(out)}

    async def ask(name: str, model: RoleModel) -> str | None:
        """What the model says that is of the unwanted kind; "" where it never does, None where it could not be asked."""
        prompt, read = pairs[name].prompt, partial(unwanted, pairs[name])
        came = await model.ask(prompt, read, lambda attempt: item_seed(seed, name, VIEW, attempt), section.tries)
        if came.parsed is None:
            return "" if len(came.unusable) >= section.tries else None
        return came.parsed.text

    others: dict[str, str | None] = {}
    if section.model is not None:
        others = ask_each(pairs, ask, section.model, seed, "preferences", work, "preferences")
    rows, counts = [], Counter[str]()
    for name, pair in pairs.items():
        of_model = others.get(name, "")
        if of_model is None:
            counts[f"{pair.kind}_failed"] += 1
            continue
        left = of_model.strip() or pair.other.strip()
        if not left or left == pair.chosen.strip():
            counts[f"{pair.kind}_without_other"] += 1
            continue
        counts[pair.kind] += 1
        if section.model is not None:
            counts[f"{pair.kind}_other_of_model"] += bool(of_model.strip())
        sides = (("chosen", pair.chosen), ("rejected", left))
        said = {side: [{"role": "assistant", "content": text}] for side, text in sides}
        rows.append({"id": name, "kind": pair.kind, "prompt": list(pair.prompt), **said})
    write_jsonl(out / VIEW / "part-00000.jsonl", rows)
    return dict(sorted(counts.items()))
