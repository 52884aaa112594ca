"""The user-turn probe of arXiv 2604.02315: after a question and the model's own answer, the same model opens the
user's turn, with no instruction and no persona, and a judge labels what it says.

The rate is genuine follow-ups over *judged* turns; what a judge could not label stands beside it by reason and
is never counted as not genuine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from probe.chat import Chat, Message
from probe.engines.base import Completion, Request, item_seed
from probe.judges.labels import GENUINE, LABELS, ROLE_CONSISTENT, Case, Verdict, names_answer
from probe.measures.grounding import Grounding
from probe.perturb import NONE, parse_perturbations
from probe.sets import Item
from probe.settings import ProbeSection
from probe.stats import clustered_rate, mean_ci


@dataclass(frozen=True)
class Place:
    """Which user turn: of which set and item, after which perturbation, at which temperature, which sample."""

    set: str
    item: str
    perturbation: str = NONE
    temperature: float = 0.0
    sample: int = 0


@dataclass(frozen=True)
class Turn:
    """One user turn to generate, and what it follows."""

    place: Place
    messages: tuple[Message, ...]
    request: Request


@dataclass(frozen=True)
class Said:
    """A user turn as it was said: generated ("followup"), or the real one of a transcript ("actual")."""

    kind: Literal["followup", "actual"]
    place: Place
    messages: tuple[Message, ...]
    text: str
    cut: bool

    def case(self) -> Case:
        return Case(self.messages, self.text, self.cut)


def turns(name: str, items: Sequence[Item], answers: Sequence[str], chat: Chat, probe: ProbeSection) -> Iterator[Turn]:
    """The user turns of set `name`: per item and perturbation, one greedy and `samples` per temperature above 0.

    A sample has one seed under all perturbations, so that only the changed answer can change it.
    """
    perturbations = parse_perturbations(probe.perturbations)
    for item, answer in zip(items, answers, strict=True):
        for perturbation in perturbations:
            changed = perturbation.apply(answer, chat.tokenizer)
            messages = (*item.messages, {"role": "assistant", "content": changed})
            prefix = chat.user_prefix_ids(messages, probe.prefix_form)
            for temperature in probe.temperatures:
                for sample in range(probe.samples if temperature > 0 else 1):
                    seed = item_seed(probe.seed, name, item.id, temperature, sample)
                    request = Request(prefix, probe.max_user_tokens, chat.stop_ids, temperature, seed)
                    yield Turn(Place(name, item.id, perturbation.name, temperature, sample), messages, request)


def said(turn: Turn, completion: Completion) -> Said:
    return Said("followup", turn.place, turn.messages, completion.text.strip(), completion.finish == "length")


def actual(name: str, item: Item) -> Said:
    """The user message that a transcript went on with, judged like a generated one."""
    if item.reply is None or item.actual is None:
        raise ValueError(f"item {item.id} is no transcript")
    messages = (*item.messages, {"role": "assistant", "content": item.reply})
    return Said("actual", Place(name, item.id), messages, item.actual, cut=False)


def row(turn: Said, verdict: Verdict, grounding: Grounding, unperturbed: str | None) -> dict[str, Any]:
    """What is known of one user turn, as it stands in samples.jsonl.

    `unperturbed` is the text at the same place of the plain run; None where there is none to compare with.
    """
    return {
        "perturbation": turn.place.perturbation,
        "temperature": turn.place.temperature,
        "sample": turn.place.sample,
        "user_turn": turn.text,
        "user_cut": turn.cut,
        **labelled(turn.case(), verdict),
        **grounding.as_row(),
        "changed": None if unperturbed is None else turn.text != unperturbed,
    }


def labelled(case: Case, verdict: Verdict) -> dict[str, Any]:
    """What a judge said of a case, as it stands in samples.jsonl."""
    return {
        "label": verdict.label,
        "unscored": verdict.unscored,
        "judge_raw": verdict.raw,
        "specific": names_answer(case) if verdict.label == GENUINE else None,
    }


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The rates of one set, perturbation and temperature; intervals count an item's samples as one cluster."""
    judged = [row for row in rows if row["label"] is not None]
    genuine = [row for row in judged if row["label"] == GENUINE]
    rate = clustered_rate([row["label"] == GENUINE for row in judged], [row["item"] for row in judged]).as_json()
    labels = Counter(row["label"] for row in judged)
    return {
        "n_total": len(rows),
        "n_judged": len(judged),
        "rate": rate["value"],
        "ci95": rate["ci95"],
        "labels": {label: labels[label] for label in LABELS},
        "unscored": dict(sorted(Counter(row["unscored"] for row in rows if row["label"] is None).items())),
        "role_consistency": _share(sum(row["label"] in ROLE_CONSISTENT for row in judged), len(judged)),
        "specificity": _share(sum(bool(row["specific"]) for row in genuine), len(genuine)),
        "grounding": _over_items(mean_ci, "grounding", rows),
        "changed_text": _over_items(clustered_rate, "changed", rows),
    }


def _over_items(estimate: Any, field: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """{"value", "ci95"} of a field over the rows that have it; None where none has."""
    known = [row for row in rows if row.get(field) is not None]
    if not known:
        return None
    found: dict[str, Any] = estimate([float(row[field]) for row in known], [row["item"] for row in known]).as_json()
    return found


def _share(count: int, n: int) -> float | None:
    return round(count / n, 6) if n else None
