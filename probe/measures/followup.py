"""The user-turn probe of arXiv 2604.02315: after a question and the model's own answer, the same model opens the
user's turn, with no instruction and no persona, and a judge labels what it says.

The rate is genuine follow-ups over *judged* turns; what a judge could not label stands beside it by reason and
is never counted as not genuine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from probe.chat import Chat, Message
from probe.engines.base import Completion, Request, item_seed
from probe.judges.labels import GENUINE, LABELS, ROLE_CONSISTENT, Case, Verdict, names_answer
from probe.sets import Item
from probe.settings import ProbeSection
from probe.stats import clustered_rate


@dataclass(frozen=True)
class Turn:
    """One user turn to generate: which item, at which temperature, which sample, after which context."""

    item: str
    temperature: float
    sample: int
    messages: tuple[Message, ...]
    request: Request


def turns(
    name: str, items: Sequence[Item], replies: Sequence[Completion], chat: Chat, probe: ProbeSection
) -> list[Turn]:
    """The user turns of set `name`: per item, one greedy and `samples` per temperature above 0."""
    found = []
    for item, reply in zip(items, replies, strict=True):
        messages = (*item.messages, {"role": "assistant", "content": reply.text.strip()})
        prefix = chat.user_prefix_ids(messages, probe.prefix_form)
        for temperature in probe.temperatures:
            for sample in range(probe.samples if temperature > 0 else 1):
                seed = item_seed(probe.seed, name, item.id, temperature, sample)
                request = Request(prefix, probe.max_user_tokens, chat.stop_ids, temperature, seed)
                found.append(Turn(item.id, temperature, sample, messages, request))
    return found


def case(turn: Turn, completion: Completion) -> Case:
    return Case(turn.messages, completion.text.strip(), cut=completion.finish == "length")


def row(judged: Case, verdict: Verdict) -> dict[str, Any]:
    """What the judge said of one user turn, as it stands in samples.jsonl."""
    genuine = verdict.label == GENUINE
    return {
        "user_turn": judged.user_turn,
        "user_cut": judged.cut,
        "label": verdict.label,
        "unscored": verdict.unscored,
        "judge_raw": verdict.raw,
        "specific": names_answer(judged) if genuine else None,
    }


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The rates of one set, perturbation and temperature; intervals count an item's samples as one cluster."""
    judged = [row for row in rows if row["label"] is not None]
    genuine = [row for row in judged if row["label"] == GENUINE]
    rate = clustered_rate([row["label"] == GENUINE for row in judged], [row["item"] for row in judged])
    labels = Counter(row["label"] for row in judged)
    return {
        "n_total": len(rows),
        "n_judged": len(judged),
        "rate": rate.as_json()["value"],
        "ci95": rate.as_json()["ci95"],
        "labels": {label: labels[label] for label in LABELS},
        "unscored": dict(sorted(Counter(row["unscored"] for row in rows if row["label"] is None).items())),
        "role_consistency": _share(sum(row["label"] in ROLE_CONSISTENT for row in judged), len(judged)),
        "specificity": _share(sum(bool(row["specific"]) for row in genuine), len(genuine)),
        # Needs token log-probabilities and a run without perturbation to compare with; not measured here.
        "grounding": None,
        "changed_text": None,
    }


def _share(count: int, n: int) -> float | None:
    return round(count / n, 6) if n else None
