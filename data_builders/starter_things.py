"""Names for the givens of starter problems: the noun phrase beside each clause, and the number with what it counts."""

from __future__ import annotations

import random
import re
from collections.abc import Collection

# Clause -> noun phrase, tried in order; whatever is left is "the number that says ...".
_THINGS = tuple(
    (re.compile(pattern), phrase)
    for pattern, phrase in (
        (r"how many times .*|how many years older .*|in how many years .*", ""),
        (r"how many (.+) are (in|on|at) (.+)", r"the number of \1 \2 \3"),
        (r"how many (.+) there are", r"the number of \1"),
        (r"how many (.+?) (share|come|dry|stay|go|get) (.+)", r"the number of \1 that \2 \3"),
        (r"(?:for|on) how many (.+)", r"the number of \1"),
        (r"how many (.+)", r"the number of \1"),
        (r"after how many hours (.+)", r"the number of hours after which \1"),
        (r"how much water is (.+)", r"the amount of water \1"),
        (r"how much money (.+)", r"the amount of money \1"),
        (r"how much (.+) costs", r"the price of \1"),
        (r"how much (.+) weighs", r"the weight of \1"),
        (r"how much (.+)", r"the amount \1"),
        (r"how fast (.+)", r"the speed at which \1"),
        (r"how old (.+) is", r"the age of \1"),
        (r"how long (.+) is", r"the length of \1"),
        (r"how wide (.+) is", r"the width of \1"),
        (r"how far away (.+) is", r"the distance to \1"),
        (r"how big (.+) is", r"the size of \1"),
        (r"what percentage of (.+) is (.+)", r"the percentage of \1 that is \2"),
        (r"by what percentage (.+)", r"the percentage by which \1"),
    )
)
# There is no week of eight days.
_MOST = {"days a week": 7, "hours a day": 16, "percentage": 95}
_UNCOUNTED = (["times"], ["is"], ["has"], ["as"])


def thing_of(clause: str) -> str:
    """The noun phrase of a clause: "how many marbles are in each bag" -> "the number of marbles in each bag"."""
    for pattern, phrase in _THINGS:
        match = pattern.fullmatch(clause)
        if match and phrase:
            return match.expand(phrase)
        if match:
            break
    return f"the number that says {clause}"


def short_of(value: str, sentence: str) -> str:
    """The number as it stands in its sentence, with what it counts where that follows: "12 marbles", "$12", "20%"."""
    shown = re.search(rf"\$?\b{value}\b%?(?: ((?:[a-z]+ )?(?:[a-zT-]+s|people|children)(?: per hour)?)\b)?", sentence)
    if shown is None:
        return value
    counted = shown.group(1) or ""
    return shown.group().removesuffix(f" {counted}") if counted.split()[-1:] in _UNCOUNTED else shown.group()


def other_of(value: str, clause: str, taken: Collection[int]) -> str:
    """A near number that the given could be as well, and that is none of those `taken`."""
    number = int(value)
    most = next((most for words, most in _MOST.items() if words in clause), number + 9)
    far = 4 if number < 10 else 9
    near = [n for n in range(max(2, number - far), min(most, number + far) + 1) if n != number and n not in taken]
    return str(random.Random(f"other:{clause}:{value}").choice(near))
