"""Follow-up, exploratory and off by default: does the policy's own next user turn read like a person's?

After the trained turn the policy writes a user turn itself (the probe of arXiv 2604.02315); the part is the share of those
that the rules judge labels genuine. The user turn carries no loss: what is rewarded is an answer after which a genuine
one comes. It is what the probe reports, so a run that uses it is no longer measured by it, and it is easily earned
without being deserved: one network writes the answer and its follow-up, the judge knows words and not sense, and answers
that leave something out or ask about everything draw genuine turns. Watch accuracy and asking beside it.
"""

from __future__ import annotations

from probe.judges.labels import GENUINE, Case, judge_all
from probe.judges.rules import RulesJudge
from probe.sets import Message
from train.played import Played
from train.rewards.part import Part, nothing_played

NO_USER_TURN = "no_user_turn"


def followup(played: Played) -> Part:
    """The share of genuine turns among those that the judge could label."""
    if not played.conversations:
        return nothing_played(played)
    if not played.user_turns:
        return Part(None, NO_USER_TURN)
    before = _before(played)
    verdicts = judge_all(RulesJudge(), [Case(before, turn) for turn in played.user_turns])
    labels = [verdict.label for verdict in verdicts if verdict.label is not None]
    if not labels:
        return Part(None, f"unscored: {verdicts[0].unscored}")
    return Part(sum(label == GENUINE for label in labels) / len(labels))


def _before(played: Played) -> tuple[Message, ...]:
    """The chat up to the last trained turn, after which the user turns were written."""
    conversation = played.conversations[0]
    replies = [place for place, message in enumerate(conversation) if message["role"] == "assistant"]
    # Where all its turns were trained this is a whole conversation, else one reply and what was simulated after it.
    whole = played.tokens == played.simulated_tokens[0]
    return conversation[: (replies[-1] if whole else played.start) + 1]
