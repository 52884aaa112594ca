"""The closed set of labels for a user turn, and what a judge takes and gives.

arXiv 2604.02315 names six labels: genuine follow-up, restatement of the user's turn, restatement of the assistant's turn,
malformed, meta-planning, and degenerate. The other three are added here for failures that the paper describes without a
label: role_drift, new_task and generic_filler. A judge may also leave a turn unscored, with a reason: an unscored turn is
left out of every rate and never counts as "not genuine".
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Protocol

import yaml

from nextturn.probe.text import content_stems

LABELS: tuple[str, ...] = (
    "genuine_followup",
    "user_restatement",
    "assistant_restatement",
    "role_drift",
    "new_task",
    "meta_planning",
    "generic_filler",
    "malformed",
    "degenerate",
)
GENUINE = "genuine_followup"
ROUGH = "follow-up, rules (rough)"


def followup_name(judge: object) -> str:
    """Return what follow-up rates of a judge's version are called; `rules` counts 11 points too many after fine-tuning."""
    return ROUGH if str(judge).startswith("rules") else "follow-up"


def in_order(given: Collection[str]) -> list[str]:
    """Labels in the order of LABELS; those of another version, if any, after them."""
    return [label for label in LABELS if label in given] + sorted(set(given) - set(LABELS))


@cache
def asked() -> dict[str, Any]:
    """The words that a language model is asked with as judge: version, task, labels, rules, examples and the rest."""
    words: dict[str, Any] = yaml.safe_load((files("nextturn.probe.judges") / "llm.yaml").read_text(encoding="utf-8"))
    return words


def meanings() -> dict[str, str]:
    """What each label means, the gravest first, in the words of the `llm` judge's prompt: people and models read alike."""
    return dict(asked()["labels"])


# Who speaks, not how well: a person can repeat a question, change the subject or merely say thanks. A turn that
# solves or explains, says the answer over again, or is no language at all was not written from the user's side.
# Planning is thought about the user, but from outside: it is not the user's voice either.
ROLE_CONSISTENT: frozenset[str] = frozenset({"genuine_followup", "user_restatement", "new_task", "generic_filler"})


@dataclass(frozen=True)
class Case:
    """One user turn to judge.

    Attributes:
        messages: the conversation before it, as {"role", "content"}, ending with an assistant message.
        user_turn: the text to judge.
        cut: generation stopped at the token limit, so a missing end says nothing.
    """

    messages: tuple[dict[str, str], ...]
    user_turn: str
    cut: bool = False


@dataclass(frozen=True)
class Verdict:
    """What a judge made of a case.

    Attributes:
        label: one of LABELS, or None when unscored.
        unscored: the reason, when `label` is None.
        raw: what the judge said; for rules, what decided.
        p_genuine: how likely the turn is a genuine follow-up, 0 to 1, where the judge says so.
    """

    label: str | None
    unscored: str | None
    raw: str
    p_genuine: float | None = None


class Judge(Protocol):
    """Anything that labels user turns. `version` changes whenever a verdict could change.

    `calls` counts the requests that were sent to a model so far; 0 for a judge without one.
    """

    name: str
    version: str
    calls: int

    def stream(self, cases: Sequence[Case], known: Sequence[Verdict] = ()) -> Iterator[tuple[int, Verdict]]:
        """Yields (index of the case, verdict) for every case once, in any order, so that each can be kept at once.

        Args:
            known: this judge's verdicts on the other cases of the same run: a share of failures is one of all of them.
        """
        ...


def judge_all(judge: Judge, cases: Sequence[Case]) -> list[Verdict]:
    """One verdict per case, in the order of the cases."""
    done = dict(judge.stream(cases))
    return [done[index] for index in range(len(cases))]


def names_answer(case: Case) -> bool:
    """Whether the turn names something (a content word or a number) that the last assistant message brought up.

    What also stands in the user's own messages does not count: it could have been said without any answer.
    """
    answer = next((message["content"] for message in reversed(case.messages) if message["role"] == "assistant"), "")
    asked = " ".join(message["content"] for message in case.messages if message["role"] == "user")
    brought_up = set(content_stems(answer)) - set(content_stems(asked))
    return not brought_up.isdisjoint(content_stems(case.user_turn))
