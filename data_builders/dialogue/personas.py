"""Who the simulated user is: a manner, how much they know, and how much effort they make. Our own wording."""

from __future__ import annotations

import random
from dataclasses import dataclass

PERSONAS = {
    "terse": "You type as little as you can: a few words, often no capitals, hardly ever a full sentence.",
    "confused": "You mix things up. You are not sure what is asked, and at times you misread a reply and say so.",
    "wrong_at_first": "You believe you know the way and are mistaken: early on you bring up a wrong idea or a wrong "
    "result of your own, and you give it up only when you are shown why.",
    "impatient": "You want the result now. Long replies annoy you, and you say when something was not needed.",
    "curious": "You like to understand: you pick out one step of a reply and ask why it holds or what would change it.",
    "careful": "You check every number against your own notes and point out what does not fit them.",
}
KNOWLEDGES = {
    "little": "You know little mathematics: names of methods mean nothing to you.",
    "some": "You know some mathematics: you can follow a calculation, but would not find the way yourself.",
    "good": "You know this kind of mathematics well enough to question a step.",
}
EFFORTS = {
    "low": "You make little effort: you answer only what you are asked, and only in part if it is much.",
    "medium": "You answer what you are asked, one detail at a time.",
}


@dataclass(frozen=True)
class Persona:
    """One simulated user, by the names of its traits."""

    name: str
    knowledge: str
    effort: str

    @property
    def text(self) -> str:
        return "\n".join((PERSONAS[self.name], KNOWLEDGES[self.knowledge], EFFORTS[self.effort]))


def draw_persona(
    rng: random.Random, names: tuple[str, ...], knowledges: tuple[str, ...], efforts: tuple[str, ...]
) -> Persona:
    return Persona(rng.choice(names), rng.choice(knowledges), rng.choice(efforts))
