"""The closed set of labels for a user turn, and the interface of a judge.

arXiv 2604.02315 names six labels: genuine follow-up, restatement of the user's turn, restatement of the assistant's turn,
malformed, meta-planning, and degenerate. Three more are added here for failures that the paper describes without a label:
role_drift, new_task and generic_filler. A judge may also leave a turn unscored, with a reason. An unscored turn is left out
of every rate and never counts as "not genuine".
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import yaml

from nextturn.probe.text.words import content_stems

LABELS: tuple[str, ...] = (
    "genuine_followup", "user_restatement", "assistant_restatement", "role_drift", "new_task", "meta_planning",
    "generic_filler", "malformed", "degenerate",
)  # fmt: skip
GENUINE = "genuine_followup"
ROUGH = "follow-up, rules (rough, loose)"
"""The name of rates by `rules`, which was fitted on labels by the loose definition of a genuine follow-up."""

# These labels say who speaks, not how well: a person can repeat a question, change the subject or only say thanks. A turn
# that solves or explains, repeats the answer, or is no language was not written from the user's side. Planning thinks about
# the user from outside, so it is not the user's voice either.
ROLE_CONSISTENT: frozenset[str] = frozenset({"genuine_followup", "user_restatement", "new_task", "generic_filler"})


def followup_name(judge: object) -> str:
    """Return the name of follow-up rates by a judge's version."""
    return ROUGH if str(judge).startswith("rules") else "follow-up"


def in_order(labels: Collection[str]) -> list[str]:
    """Return labels in the order of LABELS, then those of other versions."""
    return [label for label in LABELS if label in labels] + sorted(set(labels) - set(LABELS))


@cache
def prompt_parts() -> dict[str, Any]:
    """Return the contents of `llm.yaml`: version, task, labels, rules, examples and the other parts of the prompt.

    "labels" maps each label, the gravest first, to its meaning. The label page shows meanings, rules and examples to people.
    """
    return yaml.safe_load(Path(__file__).with_name("llm.yaml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Case:
    """One user turn to judge.

    Attributes:
        messages: The conversation before the turn, as {"role", "content"}, ending with an assistant message.
        user_turn: The text to judge.
        cut: Generation stopped at the token limit, so a missing end says nothing.
    """

    messages: tuple[dict[str, str], ...]
    user_turn: str
    cut: bool = False


@dataclass(frozen=True)
class Verdict:
    """A judge's verdict on a case.

    Attributes:
        label: One of LABELS, or None when unscored.
        unscored: The reason when `label` is None.
        raw: The judge's reply; for rules, the rule or signals that decided.
    """

    label: str | None
    unscored: str | None
    raw: str

    @property
    def unusable(self) -> str:
        return self.unscored or ""


class Judge(Protocol):
    """Labels user turns.

    Attributes:
        version: Changes whenever a verdict could change.
        calls: Number of requests sent to a model so far; 0 for a judge without a model.
    """

    name: str
    version: str
    calls: int

    def stream(self, cases: Sequence[Case], known: Sequence[Verdict] = ()) -> Iterator[tuple[int, Verdict]]:
        """Yield (index of the case, verdict) once for every case, in any order, so that each can be stored at once.

        Args:
            cases: The cases to judge.
            known: This judge's verdicts on the other cases of the run, which count in the share of failures.
        """
        ...


def names_answer(case: Case) -> bool:
    """Return True if the turn names something (a content word or number) that only the last assistant message introduced.

    Words of the user's own messages do not count: they could have been said without any answer.
    """
    answer = next((message["content"] for message in reversed(case.messages) if message["role"] == "assistant"), "")
    questions = " ".join(message["content"] for message in case.messages if message["role"] == "user")
    introduced = set(content_stems(answer)) - set(content_stems(questions))
    return not introduced.isdisjoint(content_stems(case.user_turn))
