"""Problems in pieces: what the user wants, and the facts of the problem one by one.

*LLMs get lost in multi-turn conversation* (arXiv 2505.06120) gives a model the same problem whole, as one message of its pieces
(*concat*), and piece by piece over several turns (*sharded*). There a large model cut the problems. Here a problem is cut
between its sentences, before a clause with a subject of its own, and around the condition of its question. Nothing is reworded, so the pieces
hold every number and name of the problem and nothing else. A problem without such cuts is left alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nextturn.probe.command.errors import DataError
from nextturn.probe.data.messages import row_id
from nextturn.probe.data.tables import read_rows

LEAST = 2
"""Facts that a problem needs at least: with a single one there is nothing to put together."""


@dataclass(frozen=True)
class Shards:
    """A problem in pieces.

    Attributes:
        wish: What the user wants: the question.
        facts: What the user reveals afterwards, in the order of the problem.
    """

    wish: str
    facts: tuple[str, ...]

    def concat(self) -> str:
        """Return the pieces as one message, with the facts as a list, as in arXiv 2505.06120."""
        return "\n".join([self.wish, *(f"- {fact}" for fact in self.facts)])


# Where a sentence ends, with the quotes and brackets that close it; not after "Mr." or an initial.
_SENTENCE_END = re.compile(
    r"(?<=[.?!])(?<!\bMr\.)(?<!\bMs\.)(?<!\bDr\.)(?<!\bSt\.)(?<!\bMrs\.)(?<!\bvs\.)(?<!\b[ap]\.m\.)(?<!\b[A-Z]\.)(?<!\.\.)"
    r"([\"')\]]*) (?=[\"'(]?[A-Z0-9$\\])"
)
# A clause with a pronoun for its subject can stand alone; "and Carl at 3 dollars" cannot.
_CLAUSE = re.compile(r",? (?:and|but)(?: then)? (?=(?:s?he|they|it|we|I|there) \w)|; (?=\w)")
# Drawings, conditions of conditions, choices, lists.
_UNCUT = re.compile(r"\[asy\]|such that if\b|\\qquad|(?<!\w)(?:i\.|1\)) ")
_SHORTEST = 3  # words of a clause
_ASKS = re.compile(
    r"\?[\"')]*$|^(?:[Ff]ind|[Cc]ompute|[Cc]alculate|[Dd]etermine|[Ee]valuate|[Ss]olve|[Ss]implify|[Ww]hat|[Hh]ow)\b"
)
_FORM = re.compile(  # how the answer is to be written, which belongs to the question
    r"^(?:Please )?(?:[Ee]xpress\b|(?:[Gg]ive|[Ww]rite|[Ss]tate|[Ll]eave|[Ee]nter) (?:your|the|all|each)(?: \w+)? answers?\b|[Rr]ound\b.*\bnearest\b)"
)
_CONDITION_FIRST = re.compile(
    r"^(?:If|Given that|Assuming(?: that)?|Suppose(?: that)?) (.+?), (?:then )?((?:how|what|find|compute|calculate|determine)\b.+)$",
    re.DOTALL,
)
_CONDITION_LAST = re.compile(
    r"^((?:How|What|Find|Compute|Calculate|Determine)\b.+?)(?<! than)(?<! even)(?<! only),? (?:if|given that|assuming(?: that)?) (.+?)([?.])$",
    re.DOTALL,
)
_STATES = re.compile(
    r"[\d$\\]|\b(?:one|two|three|four|five|six|seven|eight|nine|ten|twice|half|third|quarter|double|triple|dozen|times)\b",
    re.IGNORECASE,
)


def split(question: str) -> Shards | None:
    """Return a problem in pieces, or None if it cannot be cut into a question and at least two facts, of which one states an amount."""
    every = _SENTENCE_END.sub(r"\1\n", " ".join(question.split())).split("\n")
    forms = [sentence for sentence in every if _FORM.search(sentence)]
    sentences = [sentence for sentence in every if sentence not in forms]
    asked = [place for place, sentence in enumerate(sentences) if _ASKS.search(sentence)]
    if len(asked) != 1 or _UNCUT.search(question):
        return None
    wish, facts = sentences[asked[0]], []
    for place, sentence in enumerate(sentences):
        if place != asked[0]:
            facts += _clauses(sentence)
        elif first := _CONDITION_FIRST.match(wish):
            wish, facts = _sentence(first[2]), [*facts, *_clauses(_sentence(first[1]) + ".")]
        elif last := _CONDITION_LAST.match(wish):
            wish, facts = last[1] + last[3], [*facts, *_clauses(_sentence(last[2]) + ".")]
    wish = " ".join([wish, *forms])
    whole = len(facts) >= LEAST and any(map(_STATES.search, facts))
    return Shards(wish, tuple(facts)) if whole else None


def _clauses(sentence: str) -> list[str]:
    parts = _CLAUSE.split(sentence)
    if any(len(part.split()) < _SHORTEST for part in parts):
        return [sentence]
    return [*(_sentence(part) + "." for part in parts[:-1]), _sentence(parts[-1])]


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def read_shards(path: Path, columns: Mapping[str, str] | None = None) -> Mapping[str, Shards]:
    """Return the pieces that the rows of a file have, by the rows' ids: `shards` in the format of microsoft/lost_in_conversation.

    The first shard is what the user wants.

    Raises:
        DataError: The shards of a row are not a list of {shard}, with at least two.
    """
    found = {}
    for number, row in read_rows(path, columns):
        if "shards" in row:
            pieces = row["shards"] if isinstance(row["shards"], list) else []
            texts = [str(piece.get("shard") or "").strip() for piece in pieces if isinstance(piece, dict)]
            if len(texts) < LEAST or len(texts) != len(pieces) or not all(texts):
                raise DataError(f"{path}:{number}: `shards`: expected at least two {{shard_id, shard}} with text")
            found[row_id(row, number)] = Shards(texts[0], tuple(texts[1:]))
    return found
