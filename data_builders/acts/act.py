"""What a dialogue act is, and how one of its wordings is drawn and typed.

A phrasing is opener + core + closer. All pairs of an opener and a core that go together are equally likely, and so
are the closers, so an act with dozens of combinations has no favourite. `plain` is the act without any phrasing of
ours: the bare question, the bare solution.
"""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Parts = tuple[str, ...]

# Slots that hold a number or a formula, which have no capital to lose after "Yes, ".
_CASELESS = re.compile(
    r"\{(?:answer|equation|expression|formula|known|left|new|number|other|piece|result|short|slip|tried|tried_result|wrong)\}"
)
_SLOT = re.compile(r"(\{\w+\})")
# The first letter of a sentence; "I" and "I'm" stay.
_CAPITAL = re.compile(r"(?:^|(?<=[.?!]\s)|(?<=\n))(?!I\b)[A-Z]")
_BARE = "bare"


@dataclass(frozen=True)
class Act:
    """The parts of an act. Openers end with a space or a line end, or are empty; after one that ends within a sentence
    ("Ok, ", "One thing: ") the core begins small. `plain` is said instead in a share `bare` of the uses."""

    speaker: Literal["user", "assistant"]
    openers: Parts
    cores: Parts
    closers: Parts = ("",)
    plain: str = ""
    bare: float = 0.0

    @functools.cached_property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """The openers and cores that go together: no sentence of the problem is torn into the middle of another."""
        return tuple(
            (i, j)
            for i, opener in enumerate(self.openers)
            for j, core in enumerate(self.cores)
            if not (_joins(opener) and core.startswith("{") and not _CASELESS.match(core))
        )

    @property
    def combinations(self) -> int:
        return len(self.pairs) * len(self.closers)


@dataclass(frozen=True)
class Said:
    """A phrased act: its text, and which parts it was made of ("ask_number:2.5.0", "solve:bare"); `wording` is empty
    for a text of the problem's own."""

    text: str
    wording: str
    parts: tuple[str, ...] = ()  # the wordings of phrases inside this one

    @property
    def wordings(self) -> tuple[str, ...]:
        return tuple(wording for wording in (self.wording, *self.parts) if wording)


Slots = Mapping[str, "str | Said"]


def phrase(name: str, act: Act, rng: random.Random, slots: Slots, casual: bool = False) -> Said:
    """The act in one of its wordings, `slots` filled in; `casual` types a user turn the way people type."""
    if act.bare and rng.random() < act.bare:
        template, wording = act.plain, _BARE
    else:
        opener, core = rng.choice(act.pairs)
        closer = rng.randrange(len(act.closers))
        template = act.openers[opener] + _cased(act.cores[core], act.openers[opener]) + act.closers[closer]
        wording = f"{opener}.{core}.{closer}"
    if casual and act.speaker == "user":
        template = _typed(template, rng)
    # Slots are filled once and last, so nothing of a problem's text is ever changed or read as a slot.
    texts = {slot: value.text if isinstance(value, Said) else value for slot, value in slots.items()}
    parts = tuple(
        inner
        for slot, value in slots.items()
        if isinstance(value, Said) and f"{{{slot}}}" in template
        for inner in value.wordings
    )
    return Said(template.format_map(texts).strip(), f"{name}:{wording}", parts)


def _joins(opener: str) -> bool:
    return bool(opener) and opener[-1] == " " and opener[-2] not in ".?!"


def _cased(core: str, opener: str) -> str:
    """The core's first letter as its opener wants it: small after a comma or colon, large after a full stop."""
    if _joins(opener):
        return core if re.match(r"I\b", core) else core[:1].lower() + core[1:]
    return core[:1].upper() + core[1:]


def _typed(template: str, rng: random.Random) -> str:
    """Typed in a hurry: no capital at the start of a sentence, no final full stop, and at times no apostrophes and a
    small "i". Only our own words: a slot is left as it is."""
    template = _CAPITAL.sub(lambda match: match[0].lower(), template).removesuffix(".")
    if rng.random() < 0.5:
        return template
    ours = [part if part.startswith("{") else _hurried(part) for part in _SLOT.split(template)]
    return "".join(ours)


def _hurried(text: str) -> str:
    text = re.sub(r"(?<=[a-z])'(?=(?:t|s|m|re|ve|d|ll)\b)|(?<=I)'(?=m\b|ve\b|d\b)", "", text)
    return re.sub(r"\bI(m|ve|d|ll)?\b", lambda match: "i" + (match[1] or ""), text)
