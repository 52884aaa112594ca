"""Draws the phrasings of dialogue acts from `acts.yaml`: what is said, apart from the mathematics it is said about."""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from data_builders.recipe import wordings

# Slots that hold a number or a formula, which have no capital to lose after "Yes, ".
_CASELESS = "answer|did|equation|expression|left|new|result|result_of_user|short|undone|value_of|wrong"
_TEXT_FIRST = re.compile(rf"\{{(?!(?:{_CASELESS})\}})")
_SLOT = re.compile(r"(\{\w+\})")
# The first letter of a sentence; "I" and "I'm" stay.
_CAPITAL = re.compile(r"(?:^|(?<=[.?!]\s)|(?<=\n))(?!I\b)[A-Z]")
# An opener after which the core goes on within the sentence: "Ok,", "One thing:".
_WITHIN = re.compile(r"[^.?!\n]\Z")


@dataclass(frozen=True)
class Act:
    """The parts of an act. A phrasing is opener + core + closer, or `plain` in a share `plain_share` of the uses."""

    speaker: str
    openers: list[str]
    cores: list[str]
    closers: list[str] = field(default_factory=lambda: [""])
    plain: str = ""
    plain_share: float = 0.0

    @functools.cached_property
    def pairs(self) -> list[tuple[int, int]]:
        """The openers and cores that go together: no sentence of the problem is torn into the middle of another."""
        torn = [bool(_TEXT_FIRST.match(core)) for core in self.cores]
        return [
            (i, j)
            for i, opener in enumerate(self.openers)
            for j in range(len(self.cores))
            if not (torn[j] and _WITHIN.search(opener))
        ]

    def template(self, opener: int, core: int, closer: int) -> str:
        """These three parts as one text, the core's first letter small within a sentence and large after one."""
        before, text, after = self.openers[opener], self.cores[core], self.closers[closer]
        if not _WITHIN.search(before):
            text = text[:1].upper() + text[1:]
        elif not re.match(r"I\b", text):
            text = text[:1].lower() + text[1:]
        before += " " if before and not before.endswith("\n") else ""
        return before + text + (" " if after and not after.startswith("\n") else "") + after


@functools.cache
def acts() -> dict[str, Act]:
    """The acts of both speakers by name."""
    return {
        name: Act(speaker=speaker, **told)
        for speaker in ("user", "assistant")
        for name, told in wordings("acts.yaml")[speaker].items()
    }


@dataclass(frozen=True)
class Phrase:
    """A text, and which wordings it was made of ("ask:2.5.0", "solve:bare"): its own, and those of phrases inside it.
    None for a text of the problem's own."""

    text: str
    wordings: tuple[str, ...] = ()


def say(name: str, rng: random.Random, slots: Mapping[str, str | Phrase], casual: bool = False) -> Phrase:
    """The act in one of its wordings, `slots` filled in; `casual` types a user turn the way people type."""
    act = acts()[name]
    if act.plain_share and rng.random() < act.plain_share:
        template, wording = act.plain, f"{name}:bare"
    else:
        opener, core = rng.choice(act.pairs)
        closer = rng.randrange(len(act.closers))
        template, wording = act.template(opener, core, closer), f"{name}:{opener}.{core}.{closer}"
    if casual and act.speaker == "user":
        template = _typed_in_a_hurry(template, rng)
    # Slots are filled once and last, so nothing of a problem's text is ever changed or read as a slot.
    phrases = {slot: value if isinstance(value, Phrase) else Phrase(value) for slot, value in slots.items()}
    used = [phrase for slot, phrase in phrases.items() if f"{{{slot}}}" in template]
    if any(not phrase.text for phrase in used):  # an empty slot takes the space before it along
        empty = "|".join(slot for slot, phrase in phrases.items() if not phrase.text)
        template = re.sub(rf" \{{(?:{empty})\}}", "", template)
    text = template.format_map({slot: phrase.text for slot, phrase in phrases.items()})
    return Phrase(text.strip(), (wording, *(one for phrase in used for one in phrase.wordings)))


def _typed_in_a_hurry(template: str, rng: random.Random) -> str:
    """No capital at the start of a sentence, no final full stop, and in half of the cases no apostrophes and a small
    "i". Only our own words: a slot is left as it is."""
    template = _CAPITAL.sub(lambda match: match[0].lower(), template).removesuffix(".")
    if rng.random() < 0.5:
        return template
    return "".join(part if part.startswith("{") else _hurried(part) for part in _SLOT.split(template))


def _hurried(text: str) -> str:
    text = re.sub(r"(?<=[a-z])'(?=(?:t|s|m|re|ve|d|ll)\b)|(?<=I)'(?=m\b|ve\b|d\b)", "", text)
    return re.sub(r"\bI(m|ve|d|ll)?\b", lambda match: "i" + (match[1] or ""), text)
