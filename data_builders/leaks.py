"""Whether a text that is withheld at first stands in a turn before it is revealed.

A number counts where it stands by itself. Any other text (a formula, a sentence, the code of a drawing) counts whatever
its white space, and a long one also in part: a run of its words that the user has not said.
"""

from __future__ import annotations

import re

from data_builders.derive.values import states
from data_builders.scripted import Conversation

RUN = 8
"""Words of a long text that give it away."""

_NUMBER = re.compile(r"-?\d[\d.,]*")
_THOUSANDS = re.compile(r"(?<=\d)(?:\{,\}|\\!|,)+(?=\d{3}(?!\d))")
# What LaTeX shows as white space, or not at all.
_UNSEEN = re.compile(r"\\(?:left|right|big|Big|displaystyle|quad|qquad)(?![A-Za-z])|\\[,;:! ]|~")
_FRACTION = re.compile(r"\\[dt]frac(?![A-Za-z])")
_DELIMITERS = re.compile(r"^(?:\$\$?|\\\(|\\\[)|(?:\$\$?|\\\)|\\\])$")


def leak(conversation: Conversation) -> str | None:
    """Says "leak" of an assistant turn that holds what is withheld, "not_withheld" of a user turn; None of neither."""
    task, gap = conversation.task, conversation.gap
    withheld = [(conversation.hidden, conversation.reveal_at)] if conversation.hidden else []
    if conversation.kind == "vague" and task is not None:  # the problem itself, told in the next message
        withheld.append((task.question, 2))
    if conversation.kind == "withheld" and gap is not None and len(gap.value) > 1:
        # A model that knows the problem by heart supplies what it was not told. A digit stands in any text.
        first = next((one for one in conversation.messages if holds(one["content"], gap.value)), None)
        return "leak" if first is not None and first["role"] == "assistant" else None
    return next((found for hidden, until in withheld if (found := _leak(conversation, hidden, until))), None)


def _leak(conversation: Conversation, hidden: str, until: int) -> str | None:
    said = ""
    for message in conversation.messages[:until]:
        text = message["content"]
        if message["role"] == "user":
            said += f"\n{text}"
            if holds(text, hidden):
                return "not_withheld"
        elif holds(text, hidden) or tells_part(text, hidden, said):
            return "leak"
    return None


def holds(text: str, hidden: str) -> bool:
    """Whether the whole of `hidden` stands in the text, not as a part of a longer word or number."""
    if _NUMBER.fullmatch(hidden):
        return states(_THOUSANDS.sub("", text), _THOUSANDS.sub("", hidden))
    wanted = "".join(_DELIMITERS.sub("", _seen(hidden).strip()).split())
    seen = _seen(text)
    squeezed = "".join(seen.split())
    if not wanted or wanted not in squeezed:
        return False
    places = [place for place, letter in enumerate(seen) if not letter.isspace()]
    starts = (start for start in range(len(squeezed)) if squeezed.startswith(wanted, start))
    return any(_alone(seen, places[start], places[start + len(wanted) - 1]) for start in starts)


def tells_part(text: str, hidden: str, said: str) -> bool:
    """Whether the text holds a run of RUN words of `hidden` that does not stand in `said`."""
    return bool(_word_runs(text) & (_word_runs(hidden) - _word_runs(said)))


def _alone(text: str, first: int, last: int) -> bool:
    """Whether no letter or digit goes on from the characters at these places."""
    before, after = text[max(0, first - 1) : first], text[last + 1 : last + 2]
    return not (before.isalnum() and text[first].isalnum()) and not (text[last].isalnum() and after.isalnum())


def _seen(text: str) -> str:
    return _FRACTION.sub(r"\\frac", _UNSEEN.sub(" ", text)).lower()


def _word_runs(text: str) -> set[tuple[str, ...]]:
    found = re.findall(r"\w+", text.lower())
    return {tuple(found[start : start + RUN]) for start in range(len(found) - RUN + 1)}
