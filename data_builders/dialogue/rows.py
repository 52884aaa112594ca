"""What a finished conversation becomes: training rows of three kinds, and a record of what there was to choose from.

sft: the conversation as it went, best candidates all the way. rl: assistant turns as prompts, with the hidden problem
for a simulator. pairs: of a turn, the best against the worst candidate, in the form that trl's preference
trainers read. candidates: every candidate of every turn with its simulated continuations and the parts of their scores.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

from data_builders import rl
from data_builders.dialogue.conversation import Finished, Turn
from data_builders.dialogue.settings import Role
from data_builders.scripted import Conversation
from data_builders.views import sft_row

Row = dict[str, Any]
COUNTS = ("calls", "input", "output")


def conversation_of(done: Finished) -> Conversation:
    """As the gate and the views of training take it."""
    plan, messages = done.plan, done.messages
    told = (place for place in range(len(messages)) if not plan.still_hidden(messages[: place + 1]))
    return Conversation(
        id=plan.id,
        kind=plan.kind,
        messages=tuple(messages),
        source=plan.task.source,
        answer=plan.task.answer,
        reveal_at=next(told, len(messages)),
        task=plan.task,
        gap=plan.gap,
    )


def told_row(done: Finished, roles: tuple[Role, ...]) -> Row:
    """The sft row, with who talked, how the candidates scored, and what the conversation took."""
    plan = done.plan
    told = {
        "persona": plan.persona.name,
        "knowledge": plan.persona.knowledge,
        "effort": plan.persona.effort,
        "hidden": list(plan.hidden),
        "ended": done.ended,
        "scores": [turn.candidates[turn.chosen].score for turn in done.turns],
        "slips": " ".join(f"{slip.role}.{slip.reason}" for slip in done.slips),
        "calls": {f"{role}.{count}": done.calls[f"{role}.{count}"] for role in roles for count in COUNTS},
    }
    return {**sft_row(conversation_of(done)), "dialogue": told}


def rejected_row(done: Finished, roles: tuple[Role, ...], reason: str) -> Row:
    """The same with the reason, and with every reply that could not be used."""
    return {**told_row(done, roles), "reason": reason, "slips": [asdict(slip) for slip in done.slips]}


def candidate_rows(done: Finished) -> Iterator[Row]:
    """One row for each assistant turn that was made."""
    for number, turn in enumerate(done.turns):
        yield {
            "id": done.plan.id,
            "turn": number,
            "before": turn.before,
            "chosen": turn.chosen,
            "candidates": [
                {
                    "text": candidate.text,
                    "failure": candidate.failure,
                    "score": candidate.score,
                    "parts": candidate.parts,
                    "samples": [{**asdict(sample), "messages": list(sample.messages)} for sample in candidate.samples],
                }
                for candidate in turn.candidates
            ],
        }


def rl_rows(done: Finished) -> Iterator[rl.RlRow]:
    """As of a scripted conversation, with who the user was; hidden is what nobody had stated at that turn."""
    plan, who = done.plan, done.plan.persona
    for row in rl.rl_rows(conversation_of(done)):
        hidden = plan.still_hidden(row.prompt)
        yield replace(row, hidden=hidden, persona=who.name, knowledge=who.knowledge, effort=who.effort)


def pair_rows(done: Finished, min_gap: float) -> Iterator[Row]:
    """One row for each assistant turn whose best and worst candidate are at least `min_gap` apart, and apart at all."""
    for number, turn in enumerate(done.turns):
        ordered = _ordered(turn)
        if len(ordered) < 2:
            continue
        (worst, rejected), (best, chosen) = ordered[0], ordered[-1]
        if best - worst >= min_gap and best > worst:
            yield {
                "id": f"{done.plan.id}-{number}",
                "prompt": done.messages[: turn.before],
                "chosen": [{"role": "assistant", "content": chosen}],
                "rejected": [{"role": "assistant", "content": rejected}],
                "score_chosen": best,
                "score_rejected": worst,
            }


def _ordered(turn: Turn) -> list[tuple[float, str]]:
    """The scored candidates from worst to best; the chosen one is last among equals."""
    scored = [
        (candidate.score, place == turn.chosen, candidate.text)
        for place, candidate in enumerate(turn.candidates)
        if candidate.score is not None
    ]
    return [(score, text) for score, _, text in sorted(scored, key=lambda one: one[:2])]
