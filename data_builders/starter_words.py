"""The names, pronouns and everyday sentences that starter problems are dressed in."""

from __future__ import annotations

import random
import re

from data_builders.template import Template

WOMEN = (
    "Ana", "Bea", "Carmen", "Daria", "Elif", "Fatima", "Grace", "Hana", "Ines", "Julia", "Keiko", "Lena", "Maya",
    "Nadia", "Olga", "Priya", "Rosa", "Sofia", "Tara", "Uma", "Vera", "Wendy", "Yara", "Zoe",
)  # fmt: skip
MEN = (
    "Adam", "Boris", "Carlos", "David", "Emre", "Felix", "George", "Hugo", "Ivan", "Jonas", "Kofi", "Liam", "Marco",
    "Nico", "Omar", "Pablo", "Ravi", "Sam", "Tomas", "Umar", "Victor", "Will", "Yusuf", "Zack",
)  # fmt: skip
NAMES = frozenset(WOMEN + MEN)

# Sentences without numbers that fit any problem, before its givens or right before its question. Some of them
# say "some" or "a few" of a thing that nothing depends on.
GENERAL = (
    "It is a sunny Saturday.",
    "The weather has been nice all week.",
    "{name} lives in a small town near the sea.",
    "{name} has been looking forward to this day for a long time.",
    "{name} likes to plan things carefully.",
    "Some neighbors stop by to say hello.",
    "{name} writes everything down in a little notebook.",
    "A few friends of {name} come along to watch.",
    "{name} wants to get everything right.",
    "{name} has some music on.",
    "{name} got up early today.",
)

CONTEXTS: dict[str, tuple[str, ...]] = {
    "hobby": (
        "{name} loves to collect things.",
        "{His} room is full of boxes and jars.",
        "Every evening {he} sorts {his} collection on the carpet.",
        "{His} cousin collects things, too.",
        "{name} keeps some old toys in the attic.",
    ),
    "food": (
        "There is a lot to do in the kitchen today.",
        "{name} is getting ready for a big family lunch.",
        "The whole house smells wonderful.",
        "{name} learned to cook from {his} grandmother.",
        "Several guests are allergic to nuts, so {name} uses none.",
    ),
    "garden": (
        "{name} spends most of {his} time outside.",
        "The soil is dark and rich.",
        "It rained a little in the morning.",
        "{name} waters everything before breakfast.",
        "A few birds watch from the fence.",
    ),
    "books": (
        "{name} spends a lot of time in the library.",
        "Reading is what {he} likes best.",
        "{His} favorite stories are about pirates.",
        "The librarian knows {him} well.",
        "Some of {his} friends like the same stories.",
    ),
    "school": (
        "The school year has just begun.",
        "Everybody at school is busy this week.",
        "The principal has asked for help.",
        "{name} stays after class to help.",
        "Some parents have offered to help as well.",
    ),
    "travel": (
        "The road runs along the coast.",
        "It is a quiet day with little traffic.",
        "{name} has packed some sandwiches and a bottle of water.",
        "{name} knows the way very well.",
        "The radio plays old songs.",
    ),
    "money": (
        "{name} keeps track of every dollar.",
        "There is a big market in town today.",
        "The shops are open late this week.",
        "{name} thinks a lot about prices.",
        "{His} sister is good with money as well.",
    ),
    "sport": (
        "{name} wants to get better at sports this year.",
        "{His} coach is strict but fair.",
        "There will be a big event at the end of the season.",
        "{name} drinks a lot of water and sleeps well.",
        "{name} meets a few teammates at the field.",
    ),
    "home": (
        "There is a lot to fix around the house.",
        "{name} has borrowed some tools from a neighbor.",
        "{name} measures everything before {he} begins.",
        "The yard behind the house gets a lot of sun.",
        "{His} dog follows {him} everywhere.",
    ),
    "family": (
        "The whole family is together today.",
        "They look at old photos and laugh.",
        "There are some candles on the table.",
        "Everyone is talking at the same time.",
        "{name} likes number puzzles.",
    ),
    "work": (
        "{name} starts early in the morning.",
        "The work is hard, but {he} likes it.",
        "{name} takes some short breaks and drinks a lot of water.",
        "The boss trusts {him}.",
        "{name} has had this job for a few years.",
    ),
}  # fmt: skip

_SHE = {"he": "she", "him": "her", "his": "her", "He": "She", "His": "Her"}
_HE = {"he": "he", "him": "him", "his": "his", "He": "He", "His": "His"}


def words_for(template: Template, rng: random.Random) -> dict[str, str]:
    """A name with its pronouns, a friend, and one of the template's items."""
    name = rng.choice(WOMEN + MEN)
    friend = rng.choice([other for other in WOMEN + MEN if other[0] != name[0]])
    pronouns = _SHE if name in WOMEN else _HE
    return {"name": name, "friend": friend, "items": rng.choice(template.items), **pronouns}


def lower_first(text: str) -> str:
    """The text for the middle of a sentence: its first letter small, unless it begins with a name."""
    first = re.split(r"\W", text, maxsplit=1)[0]
    return text if first in NAMES or first in {"Monday", "Tuesday", "Wednesday"} else text[:1].lower() + text[1:]
