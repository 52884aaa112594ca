"""The slots of the written forms in `pieces.yaml`, filled with words of a problem in pieces and of its solution.

Nothing here understands the text. A slot is filled only where a pattern of `pieces.yaml` finds words that read well in every form.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

from nextturn.data_builders.numbers import equations, states
from nextturn.data_builders.sections import wordings
from nextturn.probe.questions.pieces import Shards

Slots = dict[str, str]
_SLOT = re.compile(r"([.?!] )?\{(\w+)\}")


@functools.cache
def forms(kind: str) -> tuple[str, ...]:
    """Return the forms of a kind: first, rest, reaction or reply."""
    return tuple(wordings("pieces.yaml")[kind].splitlines())


def fits(form: str, slots: Slots) -> bool:
    """Return True if all slots of a form are filled."""
    return all(slot in slots for _, slot in _SLOT.findall(form))


def filled(form: str, slots: Slots) -> str:
    """Return a form with its slots filled. A slot that begins a sentence gets a capital letter."""

    def text(match: re.Match[str]) -> str:
        begins, found = match[1] or "", slots[match[2]]
        return begins + (_capital(found) if begins or match.start() == 0 else found)

    return _SLOT.sub(text, form)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


@functools.cache
def _patterns(slot: str) -> dict[re.Pattern[str], str]:
    """Return the patterns of a slot and what they give, with the parts in place of their names."""
    asset = wordings("pieces.yaml")

    def whole(pattern: str) -> str:
        return re.sub(r"%(\w+)%", lambda match: whole(asset["parts"][match[1]]), pattern)

    return {re.compile(whole(pattern)): gives for pattern, gives in asset["patterns"][slot].items()}


def _found(slot: str, text: str) -> list[str]:
    """Return all texts that the patterns of a slot give."""
    return [match.expand(gives) for pattern, gives in _patterns(slot).items() for match in pattern.finditer(text)]


def _first(text: str, *slots: str) -> Slots:
    return {slot: found[0] for slot in slots if (found := _found(slot, text))}


def question_slots(pieces: Shards) -> Slots:
    """Return the slots after the question alone."""
    return _first(pieces.wish, "wish", "thing", "goal", "who")


def fact_slots(pieces: Shards, last: int) -> Slots:
    """Return the slots after the fact number `last`, counted from 0."""
    fact, facts = pieces.facts[last], pieces.facts[: last + 1]
    slots = _first(pieces.wish, "wish", "thing", "goal") | _first(fact, "figure", "quote", "name", "so", "noun")
    if "so" in slots and "name" not in slots:
        slots["so"] = slots["so"][:1].lower() + slots["so"][1:]
    amounts, before = (_listed(_found("amounts", text)) for text in (fact, pieces.facts[last - 1] if last else ""))
    slots |= {"amounts": amounts} if amounts else {}
    slots |= {"before": before} if before not in ("", amounts) and " and " not in before + amounts else {}
    for name in _found("who", " ".join([pieces.wish, *facts])):
        slots |= {"other": name} if not any(name in each[:25] for each in facts) else {}
    known = {
        "thing": any(_head(slots.get("thing", "")) in each for each in facts),  # what is asked about was told already
        "goal": "noun" in slots and _head(slots["noun"]) in slots.get("goal", ""),
        "noun": bool(_found("units", slots.get("noun", ""))) or "amounts" not in slots,
        "figure": bool(_found("amounts", fact)) or len(_found("figure", fact)) > 1,
    }
    return {slot: text for slot, text in slots.items() if not known.get(slot)}


def _head(phrase: str) -> str:
    """Return the word that a phrase is about: "pairs" of "new pairs of jeans"."""
    return phrase.partition(" of ")[0].rpartition(" ")[2]


def _listed(phrases: Sequence[str]) -> str:
    return " and ".join(phrases).lower() if len(phrases) < 3 else ""


def step_slots(solution: str, told: Sequence[str]) -> list[Slots]:
    """Return the slots of each step that can be asked about: a true equation with a result that the user has not said.

    Args:
        told: The messages of the user: the question and the facts.
    """
    for pattern, text in _patterns("as_text").items():
        solution = pattern.sub(text, solution)
    steps: list[Slots] = []
    results: set[str] = set()  # of the steps so far
    for line in (each for each in solution.split("\n") if _found("line", each)):
        for step in list(equations(line))[-1:]:
            results.add(step.result)
            whole = step.is_true and re.fullmatch(r"[\d.]+(?:[-+*/][\d.]+)+", step.left)  # "miles/hour" is no division
            if not whole or any(states(text, step.result) for text in told):
                continue
            value = "$" * (line[step.at - 1] == "$") + step.result
            slots = {"value": value, "left": step.left_shown, "line": _capital(line)}
            slots |= _first(value + line[step.end :], "counted")
            for label in _found("label", line[: step.start]):
                slots["label"] = label[:1].lower() + label[1:]
            for number in re.findall(r"\d+(?:\.\d+)?", step.left):
                # The only fact with this number, if no step before has it as its result and the line is about the same thing.
                facts = [fact for fact in told if states(fact.replace(",", ""), number)]
                if len(facts) != 1 or number in results or not _found("fact", facts[0]):
                    continue
                if {*_found("word", line.lower())} & {*_found("word", facts[0].lower())}:
                    slots |= {"number": number, "fact": facts[0]}
            steps.append(slots)
    return steps
