"""What is measured of a model: how each measure is asked, and how its figures are counted from samples.jsonl's rows.

- accuracy: how often the final answer is right, read strictly and leniently, with the class of every reply. An item
  with lettered options is graded by the letter, any other by the value of its answer.
- clarify: does the model ask when a given is missing, and answer when nothing is? The two are reported apart, because
  a high follow-up rate can be bought by asking about everything: a small model trained on scripted clarifying
  questions alone asked back on 98 of 100 complete problems.
- followup: the user-turn probe of arXiv 2604.02315. After a question and the model's own answer, the same model opens
  the user's turn, with no instruction and no persona, and a judge labels what it says. The rate is genuine follow-ups
  over *judged* turns; what a judge could not label stands beside it by reason and is never counted as not genuine.
- grounding: how much the answer explains the user turn, by the measured model's own probabilities; no judge.

Because the figures need nothing but the rows, a finished run can be judged anew without its model.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, get_args

from nextturn.probe.chat import Chat, Message, PrefixForm
from nextturn.probe.conversations import after_thinking
from nextturn.probe.engines.base import Completion, Request, ScoreRequest, item_seed
from nextturn.probe.grading import (
    Outcome,
    clarify_right,
    lenient_answer,
    lenient_letter,
    letter_outcome,
    outcome,
    same_answer,
    strict_answer,
    strict_letter,
)
from nextturn.probe.judges.labels import GENUINE, LABELS, ROLE_CONSISTENT, Case, Verdict, names_answer
from nextturn.probe.measure.perturb import NONE, parse_perturbations
from nextturn.probe.sets import Item
from nextturn.probe.settings import ProbeSection
from nextturn.probe.stats import clustered_rate, mean_ci, wilson

Row = dict[str, Any]


def make_row(kind: str, name: str, item: str, messages: Sequence[Message], **measured: Any) -> Row:
    """One line of samples.jsonl; every row has every field, null where the measure has nothing to say."""
    return {
        "kind": kind, "set": name, "item": item, "perturbation": NONE,
        "temperature": 0.0, "sample": 0, "messages": list(messages),
        "user_turn": None, "user_cut": None, "label": None, "unscored": None, "judge_raw": None,
        "p_genuine": None, "specific": None,
        "grounding": None, "log_p": None, "changed": None,
        "reference": None, "extracted": None, "strict": None, "lenient": None,
        "outcome": None, "condition": None, "asked": None,
        **measured,
    }  # fmt: skip


def figures(rows: Sequence[Row]) -> dict[str, Any]:
    """{"accuracy", "clarify", "followup"} of results.json; with transcripts also "actual", their real user turns."""
    found: dict[str, Any] = {"accuracy": {}, "clarify": {}, "followup": {}}
    by_place: dict[tuple[str, str, str, float], list[Row]] = defaultdict(list)
    for row in rows:
        by_place[row["kind"], row["set"], row["perturbation"], row["temperature"]].append(row)
    for (kind, name, perturbation, temperature), of_place in by_place.items():
        if kind == "accuracy":
            found[kind][name] = accuracy_figures(of_place)
        elif kind == "clarify":
            found[kind][name] = clarify_figures(of_place)
        elif kind == "actual":
            found.setdefault(kind, {})[name] = followup_figures(of_place)
        else:
            of_perturbation = found[kind].setdefault(name, {}).setdefault(perturbation, {})
            of_perturbation[f"T={temperature}"] = followup_figures(of_place)
    return found


# --- Accuracy


def grade_answer(item: Item, reply: Completion) -> Row:
    """Return one reply graded: what was extracted and whether it is right, both readings.

    A reply that the token limit cut is right only where it had stated its answer before.
    """
    if item.answer is None:
        raise ValueError(f"item {item.id} has no answer to grade against")
    truncated = reply.finish == "length"
    if item.options:
        strict, lenient = strict_letter(reply.text, item.options), lenient_letter(reply.text, item.options, truncated)
        right = (strict == item.answer, lenient == item.answer)
        kind = letter_outcome(reply.text, truncated, item.options)
    else:
        strict, lenient = strict_answer(reply.text), lenient_answer(reply.text, truncated)
        right = (same_answer(strict, item.answer), same_answer(lenient, item.answer))
        kind = outcome(reply.text, truncated)
    return {
        "reference": item.answer,
        "extracted": lenient,
        "strict": right[0],
        "lenient": right[1],
        "outcome": kind,
    }


def accuracy_figures(rows: Sequence[Row]) -> dict[str, Any]:
    """{"n", "strict", "lenient", "outcomes"} with 95% Wilson intervals, over rows of `grade_answer`."""
    return {
        "n": len(rows),
        "strict": wilson(sum(row["strict"] for row in rows), len(rows)).as_json(),
        "lenient": wilson(sum(row["lenient"] for row in rows), len(rows)).as_json(),
        "outcomes": {kind: sum(row["outcome"] == kind for row in rows) for kind in get_args(Outcome)},
    }


# --- Clarify


def grade_clarify(condition: str, reply: Completion) -> Row:
    """One reply to a problem in `condition` "complete" or "underspecified"."""
    kind = outcome(reply.text, truncated=reply.finish == "length")
    return {"condition": condition, "outcome": kind, "asked": kind == "asked"}


def clarify_figures(rows: Sequence[Row]) -> dict[str, Any]:
    """{"n": pairs, "ask_when_needed", "answer_when_complete"} with 95% Wilson intervals.

    - ask_when_needed: share of underspecified problems whose reply asks back.
    - answer_when_complete: share of complete problems whose reply sets out to answer. A reply that the token limit
      cut counts as one; a question and an empty reply do not.
    """
    complete = [clarify_right(row) for row in rows if row["condition"] == "complete"]
    underspecified = [clarify_right(row) for row in rows if row["condition"] == "underspecified"]
    return {
        "n": len(underspecified),
        "ask_when_needed": wilson(sum(underspecified), len(underspecified)).as_json(),
        "answer_when_complete": wilson(sum(complete), len(complete)).as_json(),
    }


# --- Follow-up


NO_ANSWER = "no_answer"
"""Why a user turn is unscored where the reply before it thinks and never answers: there is nothing to react to."""


def answer_in(reply: str) -> str | None:
    """Return what a reply says after its thoughts, which a user never sees; None where it says nothing after them."""
    said = (after_thinking(reply) or "").strip()
    return said if said or not reply.strip() else None


def user_turn_requests(
    name: str, items: Sequence[Item], replies: Sequence[str], chat: Chat, probe: ProbeSection
) -> Iterator[tuple[Row, Request | None]]:
    """Yield the user turns of set `name`, each as the row that it will fill: per item and perturbation one greedy turn, and
    `samples` per temperature above 0. A turn after a reply without an answer has no request and stays unscored.

    A sample has one seed under all perturbations, so that only the changed answer can change it.
    """
    for item, reply in zip(items, replies, strict=True):
        answer = answer_in(reply)
        for perturbation in parse_perturbations(probe.perturbations):
            shown = reply if answer is None else perturbation.apply(answer, chat.tokenizer)
            messages = [*item.messages, {"role": "assistant", "content": shown}]
            prefix = () if answer is None else chat.user_prefix_ids(messages, probe.prefix_form)
            for temperature in probe.temperatures:
                for sample in range(probe.samples if temperature > 0 else 1):
                    place: Row = {"perturbation": perturbation.name, "temperature": temperature, "sample": sample}
                    if answer is None:
                        yield make_row("followup", name, item.id, messages, **place, unscored=NO_ANSWER), None
                        continue
                    seed = item_seed(probe.seed, name, item.id, temperature, sample)
                    request = Request(prefix, probe.max_user_tokens, chat.stop_ids, temperature, seed)
                    yield make_row("followup", name, item.id, messages, **place), request


def case_of(row: Row) -> Case:
    """A row's user turn as a judge is shown it."""
    return Case(tuple(row["messages"]), row["user_turn"], bool(row["user_cut"]))


def judged(case: Case, verdict: Verdict) -> Row:
    """What a judge said of a case, as it stands in samples.jsonl."""
    return {
        "label": verdict.label,
        "unscored": verdict.unscored,
        "judge_raw": verdict.raw,
        "p_genuine": verdict.p_genuine,
        "specific": names_answer(case) if verdict.label == GENUINE else None,
    }


def mark_changed(turns: Sequence[Row]) -> None:
    """Fills `changed` of every perturbed turn: does its text differ from that of the plain run in the same place?"""
    plain = {
        (row["set"], row["item"], row["temperature"], row["sample"]): row["user_turn"]
        for row in turns
        if row["kind"] == "followup" and row["perturbation"] == NONE
    }
    for row in turns:
        if row["perturbation"] != NONE:
            unperturbed = plain[row["set"], row["item"], row["temperature"], row["sample"]]
            row["changed"] = row["user_turn"] != unperturbed


def followup_figures(rows: Sequence[Row]) -> dict[str, Any]:
    """The rates of one set, perturbation and temperature; intervals count an item's samples as one cluster."""
    labelled = [row for row in rows if row["label"] is not None]
    genuine = [row for row in labelled if row["label"] == GENUINE]
    rate = clustered_rate([row["label"] == GENUINE for row in labelled], [row["item"] for row in labelled]).as_json()
    labels = Counter(row["label"] for row in labelled)
    return {
        "n_total": len(rows),
        "n_judged": len(labelled),
        "rate": rate["value"],
        "ci95": rate["ci95"],
        "labels": {label: labels[label] for label in LABELS},
        "unscored": dict(sorted(Counter(row["unscored"] for row in rows if row["label"] is None).items())),
        "role_consistency": _share(sum(row["label"] in ROLE_CONSISTENT for row in labelled), len(labelled)),
        "specificity": _share(sum(bool(row["specific"]) for row in genuine), len(genuine)),
        "grounding": _over_items(mean_ci, "grounding", rows),
        "changed_text": _over_items(clustered_rate, "changed", rows),
    }


def _over_items(estimate: Any, field: str, rows: Sequence[Row]) -> dict[str, Any] | None:
    """{"value", "ci95"} of a field over the rows that have it; None where none has."""
    known = [row for row in rows if row.get(field) is not None]
    if not known:
        return None
    found: dict[str, Any] = estimate([float(row[field]) for row in known], [row["item"] for row in known]).as_json()
    return found


def _share(count: int, n: int) -> float | None:
    return round(count / n, 6) if n else None


# --- Grounding
#
#     grounding = (log p(u | q, a) - log p(u | q)) / tokens of u        in nats per token
#
# A turn that repeats the question or opens a new task is as likely without the answer, so it sits near 0; a turn that
# reacts to the answer lies above. So does one that repeats the *answer*, which is why grounding stands beside the
# labels and does not replace them.

NEUTRAL = "Ok."
"""A chat template cannot open a user turn right after a user turn, so "without the answer" is after this one. It is the
same for every model and item."""


def grounding_requests(messages: Sequence[Message], user_turn: str, chat: Chat, form: PrefixForm) -> list[ScoreRequest]:
    """Two requests, with the answer and with the neutral one; none for an empty turn.

    `messages` end with the assistant.
    """
    target = chat.text_ids(user_turn)
    if not target:
        return []
    without = [*messages[:-1], {"role": "assistant", "content": NEUTRAL}]
    return [ScoreRequest(chat.user_prefix_ids(context, form), target) for context in (messages, without)]


def grounding(tokens: int, log_p: float, log_p_without: float) -> Row:
    """Nats per token of a turn of so many tokens: "grounding" as above, "log_p" = log p(u | q, a) alone."""
    return {"grounding": round((log_p - log_p_without) / tokens, 6), "log_p": round(log_p / tokens, 6)}
