"""The measures: what each one asks a model, and how its figures are counted from the rows of samples.jsonl.

- accuracy: how often the final answer is right, read strictly and leniently, with the outcome of every reply. Items with
  lettered options are graded by the letter, other items by the value of the answer.
- clarify: does the model ask when information is missing, and answer when nothing is? The two rates are reported separately,
  because a model that asks about everything has a high rate of needed questions.
- followup: the user-turn probe of arXiv 2604.02315. After a question and the model's own answer, the same model opens the
  user's turn, without instruction or persona, and a judge labels the turn. The rate is genuine follow-ups over *judged* turns.
  Turns that the judge could not label are counted by reason and never count as not genuine.
- sharded, doubted: accuracy over several turns (`nextturn.probe.measures.several_turns`).
- grounding: how much the answer explains the user turn, by the measured model's own probabilities, without a judge.

The figures depend on the rows only, so a finished run can be judged again without its model.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, get_args

from nextturn.probe.command.sections import ProbeSection
from nextturn.probe.data.messages import after_thinking, assistant
from nextturn.probe.engines.base import Completion, Request, ScoreRequest, item_seed
from nextturn.probe.engines.stored import Row
from nextturn.probe.judges.verdicts import GENUINE, LABELS, ROLE_CONSISTENT, Case, Verdict, names_answer
from nextturn.probe.measures.perturb import NONE, parse_perturbations
from nextturn.probe.questions.sets import Item
from nextturn.probe.stats import Estimate, clustered_rate, mean_ci
from nextturn.probe.text import grading
from nextturn.probe.text.chat import Chat, Message, PrefixForm
from nextturn.probe.text.equality import is_number, same_answer
from nextturn.probe.text.words import words


def make_row(kind: str, set_name: str, item: str, messages: Sequence[Message], **values: Any) -> Row:
    """Return one line of samples.jsonl. Every row has every field; a field is None if the measure does not use it."""
    return {
        "kind": kind, "set": set_name, "item": item, "perturbation": NONE,
        "temperature": 0.0, "sample": 0, "messages": list(messages),
        "user_turn": None, "user_cut": None, "label": None, "unscored": None, "judge_raw": None,
        "specific": None, "grounding": None, "log_p": None, "changed": None,
        "reference": None, "extracted": None, "graded_as": None, "strict": None, "lenient": None,
        "outcome": None, "condition": None, "asked": None,
        "attempts": None, "ended": None, "tokens": None,
        **values,
    }  # fmt: skip


# --- Accuracy


Grader = Callable[[str, str], bool]
"""A grader of one's own: whether a reply (first argument) gives the answer (second)."""


def answer_kind(item: Item) -> str:
    """Return how an item's answer is graded where no grader is named: "choice", "words", "number" or "formula".

    Of several answers the first one says it.
    """
    return "choice" if item.options else _kind(item.answer or "")


def _kind(answer: str) -> str:
    if grading.is_words(answer):
        return "words"
    return "number" if is_number(answer) else "formula"


def grade_answer(item: Item, reply: Completion, grader: Grader | None = None) -> Row:
    """Grade one reply by both readings.

    A reply that the token limit cut is right only if it had stated its answer before. An answer in words is right strictly if
    the reply (or its mark) is the answer, and leniently if the reply contains it. Of several answers any is right.

    Args:
        grader: Decides in place of both readings.

    Returns:
        "reference", "extracted", "graded_as", "strict", "lenient" and "outcome" of a row.
    """
    if not item.answer:
        raise ValueError(f"item {item.id} has no answer to grade against")
    text, truncated = reply.text, reply.finish == "length"
    graded_as = answer_kind(item) if grader is None else "grader"
    outcome = grading.outcome(text, truncated, item.options)
    answers = (item.answer, *item.aliases)
    if graded_as == "grader" or item.options:
        read = (
            grading.lenient_letter(text, item.options, truncated)
            if item.options
            else grading.lenient_answer(text, truncated)
        )
        strict = grading.strict_letter(text, item.options)
        graded = [(strict == answer, read == answer, read) for answer in answers]
        if grader is not None:
            graded = [
                (right, right, read)
                for right in (bool(grader(after_thinking(text) or "", answer)) for answer in answers)
            ]
    else:
        graded = [_graded(text, answer, truncated) for answer in answers]
    # The answer by which the reply is right, if there is one
    strict_right, right, extracted = max(graded, key=lambda each: each[:2])
    # The outcome is read from marks and numbers. A formula, words, and what a grader takes for right are answers, too.
    if outcome == "no_answer" and (extracted is not None or right or (graded_as == "words" and answer_in(text))):
        outcome = "answered"
    reference = list(answers) if item.aliases else item.answer
    values = {"reference": reference, "extracted": extracted, "graded_as": graded_as, "outcome": outcome}
    return {**values, "strict": strict_right, "lenient": right}


def _graded(text: str, answer: str, truncated: bool) -> tuple[bool, bool, str | None]:
    """Return whether a reply is right by both readings, and what it gives as its answer."""
    kind = _kind(answer)
    if kind == "words":
        return *grading.words_right(text, answer, truncated), grading.stated_words(text)
    extracted = grading.lenient_answer(text, truncated, formula=kind == "formula")
    return same_answer(grading.strict_answer(text), answer), same_answer(extracted, answer), extracted


def accuracy_figures(rows: Sequence[Row]) -> dict[str, Any]:
    """Return {"n", "strict", "lenient", "outcomes"} of rows of `grade_answer`, with 95% Wilson intervals."""
    return {
        "n": len(rows),
        **{reading: rate_of([(row["item"], row[reading]) for row in rows]) for reading in ("strict", "lenient")},
        "outcomes": {kind: sum(row["outcome"] == kind for row in rows) for kind in get_args(grading.Outcome)},
    }


def rate_of(successes: Sequence[tuple[str, bool]]) -> dict[str, Any]:
    """Return {"value", "ci95"} of (item, success) pairs with Wilson's interval; values of one item are one cluster."""
    return _clustered(clustered_rate, successes)


# --- Clarify

CLARIFY = {"underspecified": "ask_when_needed", "complete": "answer_when_complete"}
"""The figure of clarify that a row of each condition counts in."""


def clarify_right(row: Mapping[str, Any]) -> bool:
    """Return True if the reply did what its condition asks for: ask if a fact is missing, answer if none is."""
    return bool(row["asked"]) if row["condition"] == "underspecified" else row["outcome"] in ("answered", "truncated")


def grade_clarify(condition: str, reply: Completion) -> Row:
    """Grade one reply to a problem in `condition` "complete" or "underspecified"."""
    kind = grading.outcome(reply.text, truncated=reply.finish == "length")
    return {"condition": condition, "outcome": kind, "asked": kind == "asked"}


def clarify_figures(rows: Sequence[Row]) -> dict[str, Any]:
    """Return {"n": pairs, "ask_when_needed", "answer_when_complete"} with 95% Wilson intervals.

    - ask_when_needed: share of underspecified problems whose reply asks back.
    - answer_when_complete: share of complete problems whose reply sets out to answer. A reply that the token limit
      cut counts as one; a question and an empty reply do not.
    """
    figures: dict[str, Any] = {"n": sum(row["condition"] == "underspecified" for row in rows)}
    for condition, name in CLARIFY.items():
        of_condition = [row for row in rows if row["condition"] == condition]
        figures[name] = rate_of([(row["item"], clarify_right(row)) for row in of_condition])
    return figures


# --- Follow-up


NO_ANSWER = "no_answer"
"""Why a user turn is unscored if the reply before it thinks and never answers: there is nothing to react to."""


def answer_in(reply: str) -> str | None:
    """Return what a reply says after its thinking, which a user never sees; None if it says nothing after it."""
    answer = (after_thinking(reply) or "").strip()
    return answer if answer or not reply.strip() else None


def user_turn_requests(
    name: str, items: Sequence[Item], replies: Sequence[str], chat: Chat, probe: ProbeSection
) -> Iterator[tuple[Row, Request | None]]:
    """Yield (row, request) of every user turn of a set; the completion fills the row.

    Per item and perturbation there is one greedy turn, and `samples` turns per temperature above 0. A turn after a reply
    without an answer has no request and stays unscored. A sample has the same seed under all perturbations, so that only
    the changed answer can change the turn.
    """
    for item, reply in zip(items, replies, strict=True):
        answer = answer_in(reply)
        for perturbation in parse_perturbations(probe.perturbations):
            shown = reply if answer is None else perturbation.apply(answer, chat.tokenizer)
            messages = [*item.messages, assistant(shown)]
            prefix = () if answer is None else chat.user_prefix_ids(messages, probe.prefix_form)
            unscored = NO_ANSWER if answer is None else None
            for temperature in probe.temperatures:
                for sample in range(probe.samples if temperature > 0 else 1):
                    row = make_row(
                        "followup", name, item.id, messages, unscored=unscored,
                        perturbation=perturbation.name, temperature=temperature, sample=sample,
                    )  # fmt: skip
                    seed = item_seed(probe.seed, name, item.id, temperature, sample)
                    request = Request(prefix, probe.max_user_tokens, chat.stop_ids, temperature, seed)
                    yield row, None if unscored else request


def case_of(row: Row) -> Case:
    """Return a row's user turn as a judge sees it."""
    return Case(tuple(row["messages"]), row["user_turn"], bool(row["user_cut"]))


def judged(case: Case, verdict: Verdict) -> Row:
    """Return the fields of a row that a verdict fills."""
    return {
        "label": verdict.label,
        "unscored": verdict.unscored,
        "judge_raw": verdict.raw,
        "specific": names_answer(case) if verdict.label == GENUINE else None,
    }


def mark_changed(turns: Sequence[Row]) -> None:
    """Fill `changed` of every perturbed turn: does its text differ from that of the same turn in the plain run?"""

    def key(row: Row) -> tuple[Any, ...]:
        return row["set"], row["item"], row["temperature"], row["sample"]

    plain = {key(row): row["user_turn"] for row in turns if row["kind"] == "followup" and row["perturbation"] == NONE}
    for row in turns:
        if row["perturbation"] != NONE:
            row["changed"] = row["user_turn"] != plain[key(row)]


def followup_figures(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the rates of one set, perturbation and temperature. Intervals count an item's samples as one cluster."""
    labelled = [row for row in rows if row["label"] is not None]
    genuine = [row for row in labelled if row["label"] == GENUINE]
    rate = _clustered(clustered_rate, [(row["item"], row["label"] == GENUINE) for row in labelled])
    labels = Counter(row["label"] for row in labelled)
    grounded, changed = (
        [(row["item"], row[field]) for row in rows if row.get(field) is not None] for field in ("grounding", "changed")
    )
    repeated, most = repeated_turns(rows)
    return {
        "n_total": len(rows),
        "n_judged": len(labelled),
        "rate": rate["value"],
        "ci95": rate["ci95"],
        "labels": {label: labels[label] for label in LABELS},
        "unscored": dict(sorted(Counter(row["unscored"] for row in rows if row["label"] is None).items())),
        "role_consistency": _share(sum(row["label"] in ROLE_CONSISTENT for row in labelled), len(labelled)),
        "specificity": _share(sum(bool(row["specific"]) for row in genuine), len(genuine)),
        "repeated": repeated,
        "most_repeated": most,
        "grounding": _clustered(mean_ci, grounded) if grounded else None,
        "changed_text": _clustered(clustered_rate, changed) if changed else None,
    }


OFTEN = 3
"""Items on which a turn comes word for word, from which on it is called repeated."""


def repeated_turns(rows: Sequence[Row]) -> tuple[float | None, str]:
    """Return the share of user turns with the same words on OFTEN or more items, and the most frequent of them ("" if none).

    Such a turn fits any answer, even if a judge calls each single turn genuine.
    """
    items: dict[tuple[str, ...], set[str]] = defaultdict(set)
    # Rows of several trainings (`results.pooled`) are counted apart.
    worded = [(row, (str(row.get("training", "")), *said)) for row in rows if (said := words(row["user_turn"] or ""))]
    for row, wording in worded:
        items[wording].add(row["item"])
    repeated = [(row, wording) for row, wording in worded if len(items[wording]) >= OFTEN]
    most = max(repeated, key=lambda each: len(items[each[1]]), default=None)
    return _share(len(repeated), len(rows)), most[0]["user_turn"] if most else ""


def _clustered(estimate: Callable[..., Estimate], values: Sequence[tuple[str, float]]) -> dict[str, Any]:
    """Return {"value", "ci95"} of (item, value) pairs, clustered by item."""
    return estimate([float(value) for _, value in values], [item for item, _ in values]).as_json()


def _share(count: int, n: int) -> float | None:
    return round(count / n, 6) if n else None


# --- Grounding
#
#     grounding = (log p(u | q, a) - log p(u | q)) / tokens of u        in nats per token
#
# A turn that repeats the question or opens a new task is as likely without the answer, so its grounding is near 0. A turn that
# reacts to the answer has a higher one. So has a turn that repeats the *answer*, which is why grounding is reported in addition
# to the labels and does not replace them.

NEUTRAL = "Ok."
"""A chat template cannot open a user turn directly after a user turn, so "without the answer" means after this answer. It is the
same for every model and item."""


def grounding_requests(messages: Sequence[Message], user_turn: str, chat: Chat, form: PrefixForm) -> list[ScoreRequest]:
    """Return two requests for a user turn after `messages`, with the answer and with the neutral one; none for an empty turn."""
    target = chat.text_ids(user_turn)
    if not target:
        return []
    contexts = (messages, [*messages[:-1], assistant(NEUTRAL)])
    return [ScoreRequest(chat.user_prefix_ids(context, form), target) for context in contexts]


def grounding(tokens: int, log_p: float, log_p_without: float) -> Row:
    """Return "grounding" as above and "log_p" = log p(u | q, a), both in nats per token of a turn of `tokens` tokens."""
    return {"grounding": round((log_p - log_p_without) / tokens, 6), "log_p": round(log_p / tokens, 6)}
