"""The dialogue acts and their phrasings: what is said, apart from the mathematics it is said about.

User turns are written the way people type: short, not always polite, at times without a capital or a full stop.
Assistant turns that answer never close with a question: a model that learns to close with "Does that help?" asks when
nothing is missing.
"""

from __future__ import annotations

import random

from data_builders.acts.act import Act, Said, Slots, phrase
from data_builders.acts.assistant_asks import ASSISTANT_ASKS
from data_builders.acts.assistant_replies import ASSISTANT_REPLIES
from data_builders.acts.assistant_solves import ASSISTANT_SOLVES
from data_builders.acts.user_answers import USER_ANSWERS
from data_builders.acts.user_openings import USER_OPENINGS
from data_builders.acts.user_reactions import USER_REACTIONS

__all__ = ["ACTS", "Act", "Said", "Slots", "say"]

ACTS: dict[str, Act] = {
    **USER_OPENINGS, **USER_ANSWERS, **USER_REACTIONS, **ASSISTANT_ASKS, **ASSISTANT_SOLVES, **ASSISTANT_REPLIES,
}  # fmt: skip


def say(act: str, rng: random.Random, slots: Slots, casual: bool = False) -> Said:
    """The act in one of its wordings, `slots` filled in. `casual` types a user turn the way people type."""
    return phrase(act, ACTS[act], rng, slots, casual)
